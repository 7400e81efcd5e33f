"""The positions that tiles see, found by checking every pair, and the positions that spans claim."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from attnforge.expressions.evaluation import evaluate
from attnforge.expressions.tree import Node
from attnforge.tiling.ranges import Span

Scene = dict[str, Any]
Cell = tuple[set[int], set[int], set[int], set[int]]


def sides(scene: Scene) -> dict[str, range]:
    """The positions of queries and keys."""
    return {"q": range(scene["k_len"] - scene["q_len"], scene["k_len"]), "k": range(scene["k_len"])}


def inside(lo: Node | None, hi: Node | None, env: Scene, among: range) -> set[int]:
    """The positions from `lo` up to, not including, `hi`; None is the end of `among`."""
    first = among.start if lo is None else evaluate(lo, env)
    past = among.stop if hi is None else evaluate(hi, env)
    return {x for x in among if first <= x < past}


def cells(
    found: Sequence[Span], truth: Mapping[tuple[int, int], bool], scene: Scene, along: Literal["k", "q"], tile: int
) -> Iterator[Cell]:
    """For each tile of the other side: the positions really seen and full, and those according to the spans."""
    assert 1 <= len(found) <= 8
    other = "q" if along == "k" else "k"
    positions, sought = sides(scene)[other], sides(scene)[along]
    for start in range(positions.start, positions.stop, tile):
        held = range(start, min(start + tile, positions.stop))
        env = {
            **scene,
            "q_begin": scene["k_len"] - scene["q_len"],
            f"{other}_first": held[0],
            f"{other}_last": held[-1],
        }
        lows = [sought.start if s.lo is None else evaluate(s.lo, env) for s in found[1:]]
        assert found[0].lo is None or not lows or evaluate(found[0].lo, env) <= lows[0]
        assert lows == sorted(lows) and all(s.lo is not None for s in found[1:])

        def sees(o: int, x: int) -> bool:
            return truth[(o, x) if along == "k" else (x, o)]

        seen = {x for x in sought if any(sees(o, x) for o in held)}
        full = {x for x in sought if all(sees(o, x) for o in held)}
        told = set[int]().union(*(inside(s.lo, s.hi, env, sought) for s in found))
        told_full = set[int]().union(*(inside(s.full_lo, s.full_hi, env, sought) for s in found if s.can_be_full))
        yield seen, full, told, told_full
