"""Scores of a tile in kernels for Hopper GPUs, computed from products of queries and keys."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from ....expressions.functions import FUNCTIONS
from ...analysis import Analysis
from ...statements import Statement

OF_SCORES = frozenset(function.triton for function in FUNCTIONS.values() if function.hopper)
"""The functions of expressions for which hopper.py has faster ones, which also take a factor of their argument."""

_CALLS = re.compile(rf"\b({'|'.join(sorted(OF_SCORES))})\(score\)")


def scaled(
    given: Analysis, loads: Sequence[Statement], terms: Sequence[Statement], at_once: str = ""
) -> tuple[Statement, ...]:
    """The statements that scale a product, and turn it into the final score with terms and their loads.

    If only such a function reads the product, the scale becomes the function's factor, at no cost; without terms it is
    applied later, with the conversion to log2 units. `at_once` says how many of a thread's scores the function takes at
    once.
    """
    if not terms:
        return tuple(loads)
    first = [statement.target for statement in terms].index("score") + 1  # so many statements see the product
    seen = " ".join(statement.value for statement in terms[:first])
    if not _CALLS.search(seen) or len(re.findall(r"\bscore\b", seen)) > 1:
        return (Statement("score", f"score{given.scaling}"), *loads, *terms)
    call = rf"\1(score, {', '.join(filter(None, (given.inner_scale, at_once)))})"
    called = (dataclasses.replace(one, value=_CALLS.sub(call, one.value)) for one in terms[:first])
    return (*loads, *called, *terms[first:])
