"""Scores of a tile in kernels for Hopper GPUs: what becomes of products of queries and keys."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence

from ...expressions.functions import FUNCTIONS
from ..analysis import Analysis
from ..statements import Statement

OF_SCORES = frozenset(function.triton for function in FUNCTIONS.values() if function.hopper)
"""The functions of expressions that hopper.py has faster ones of, which take a factor of their argument, too."""

_CALLS = re.compile(rf"\b({'|'.join(sorted(OF_SCORES))})\(score\)")


def scaled(given: Analysis, loads: Sequence[Statement], terms: Sequence[Statement]) -> tuple[Statement, ...]:
    """The statements that scale a product, and make the final score of it by terms and what these load.

    The scale is a factor of such a function, at no cost, if nothing else reads the product.
    """
    scale = given.scaling.removeprefix(" * ")
    readers = [statement.value for statement in _before_the_first_score(terms)]
    calls = sum(len(_CALLS.findall(value)) for value in readers)
    if calls != 1 or sum(len(re.findall(r"\bscore\b", value)) for value in readers) != 1:
        return (Statement("score", f"score * {scale}"), *loads, *terms)
    scale = scale.removeprefix("(").removesuffix(")")
    called = (
        dataclasses.replace(one, value=_CALLS.sub(rf"\1(score, {scale})", one.value)) for one in terms[: len(readers)]
    )
    return (*loads, *called, *terms[len(readers) :])


def _before_the_first_score(terms: Sequence[Statement]) -> Iterator[Statement]:
    """The statements that see the product: up to the one that puts a score in its place."""
    for statement in terms:
        yield statement
        if statement.target == "score":
            return
