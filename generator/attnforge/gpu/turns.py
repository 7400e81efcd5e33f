"""The order in which contenders are timed; a module of its own, because it needs no library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def turns(contenders: Sequence[T], i: int) -> Sequence[T]:
    """Contenders in the order of round i, so that a GPU's heat and clocks affect all of them alike.

    Rounds start with different contenders, and every other round runs backwards: one that always followed a large
    product would be slower by some percent.
    """
    first = i // 2 % max(len(contenders), 1)
    return (*contenders[first:], *contenders[:first])[:: -1 if i % 2 else 1]
