"""The order in which contenders are timed; whoever times some imports this alone, which needs no library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def turns(contenders: Sequence[T], i: int) -> Sequence[T]:
    """Contenders in the order of round i, so that a GPU's heat and clocks meet all of them alike.

    Rounds begin with different ones, and every other one goes backwards: what follows a large product each time would
    be slower by some percent.
    """
    first = i // 2 % max(len(contenders), 1)
    return (*contenders[first:], *contenders[:first])[:: -1 if i % 2 else 1]
