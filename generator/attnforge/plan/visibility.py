"""The statements that compute `keep`, the visible scores of a tile: first its bounds, then the masks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from .conditions import no_late_keys
from .kernel_terms import KernelTerms
from .statements import Statement


def masked(terms: KernelTerms, bounds: Iterable[str], *, apart: bool = False, near: str = "") -> tuple[Statement, ...]:
    """The statements, to run after those that load the masks' inputs.

    `apart` is for kernels that have a function of this name, which keeps registers of distances apart; `near` is text
    of the part of a distance that the compiler knows for each register.
    """
    made, first = [*terms.visible(apart=apart, near=near)], " & ".join(bounds)
    if first:
        return (Statement("keep", first), *made)
    place = next(i for i, one in enumerate(made) if one.target == "keep")
    made[place] = dataclasses.replace(made[place], sign="=")
    return tuple(made)


def of_keys(terms: KernelTerms, *, apart: bool = False) -> tuple[Statement, ...]:
    """The statements for a tile whose keys may lie past the last one."""
    return masked(terms, key_bounds(terms), apart=apart)


def key_bounds(terms: KernelTerms) -> tuple[str, ...]:
    """The bound of keys, unless a mask plainly hides all keys after a query: no query comes after the last key.

    Rows past the last query may then see keys past the last one, but nothing that they compute is stored.
    """
    return () if no_late_keys(terms.spec) else (f"(k_pos < k_len){terms.way('k')}",)
