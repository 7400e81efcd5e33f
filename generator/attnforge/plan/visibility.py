"""The statements that make `keep`, which scores of a tile are visible: its bounds first, then what the masks say."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from ..language.patterns import hides_late_keys
from .kernel_terms import KernelTerms
from .statements import Statement


def masked(terms: KernelTerms, bounds: Iterable[str], *, apart: bool = False, near: str = "") -> tuple[Statement, ...]:
    """The statements, after those that load what masks read.

    `apart` is for kernels that have a function of this name, which keeps registers of distances apart; `near` is text
    of the part of a distance that the compiler knows of each of them.
    """
    made, first = [*terms.visible(apart=apart, near=near)], " & ".join(bounds)
    if first:
        return (Statement("keep", first), *made)
    place = next(i for i, one in enumerate(made) if one.target == "keep")
    made[place] = dataclasses.replace(made[place], sign="=")
    return tuple(made)


def of_keys(terms: KernelTerms, *, apart: bool = False) -> tuple[Statement, ...]:
    """Those of a tile whose keys may be behind the last one."""
    return masked(terms, key_bounds(terms), apart=apart)


def key_bounds(terms: KernelTerms) -> tuple[str, ...]:
    """The bound of keys, unless a mask plainly hides all that are behind a query: none stands behind the last key.

    Rows behind the last query may see keys behind the last one then, and nothing that they make is stored.
    """
    hidden = any(hides_late_keys(mask.keep) for mask in terms.spec.masks)
    return () if hidden else (f"(k_pos < k_len){terms.way('k')}",)
