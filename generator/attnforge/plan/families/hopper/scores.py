"""Scores of a tile in kernels for Hopper GPUs: what becomes of products of queries and keys."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from ....expressions.functions import FUNCTIONS
from ...analysis import Analysis
from ...statements import Statement

OF_SCORES = frozenset(function.triton for function in FUNCTIONS.values() if function.hopper)
"""The functions of expressions that hopper.py has faster ones of, which take a factor of their argument, too."""

_CALLS = re.compile(rf"\b({'|'.join(sorted(OF_SCORES))})\(score\)")


def scaled(
    given: Analysis, loads: Sequence[Statement], terms: Sequence[Statement], at_once: str = ""
) -> tuple[Statement, ...]:
    """The statements that scale a product, and make the final score of it by terms and what these load.

    The scale is a factor of such a function, at no cost, if nothing else reads the product; without terms it waits for
    log2 units. `at_once` tells how many of a thread's scores it takes at once.
    """
    if not terms:
        return tuple(loads)
    first = [statement.target for statement in terms].index("score") + 1  # that many see the product
    seen = " ".join(statement.value for statement in terms[:first])
    if not _CALLS.search(seen) or len(re.findall(r"\bscore\b", seen)) > 1:
        return (Statement("score", f"score{given.scaling}"), *loads, *terms)
    call = rf"\1(score, {', '.join(filter(None, (given.inner_scale, at_once)))})"
    called = (dataclasses.replace(one, value=_CALLS.sub(call, one.value)) for one in terms[:first])
    return (*loads, *called, *terms[first:])
