"""How decoding reads a cache: which keys a new token reads, and how many of them each program processes."""

from __future__ import annotations

from collections.abc import Iterator

from ..language.spec import Spec
from ..plan import cached_range, plan
from ..plan.plan import Plan
from .arrays import Mask, count_visited
from .columns import aligned

TITLE = "Decoding over a cache, float16 and bfloat16"
_NOTES = (
    "rows: new tokens of a sequence times query heads of a key head; split_size asks for other splits",
    "more than 256 rows are not split where all heads have more than 2,048 of them",
)


def text(spec: Spec, mask: Mask) -> str:
    """The keys that are read, how they are split and how many splits the last query sees, as `explain` prints it."""
    if "decode" not in spec.exports:
        return ""
    read = " and ".join(f"[{lo}, {hi})" for lo, hi in cached_range.build(spec).read)
    keys = (f"a new token at `position` reads keys {read}, or fewer",) if read else ()
    header = "head sizes", "rows", "keys of a tile", "keys of a split", "splits of the last query"
    table = aligned([header, *_rows(plan.build(spec), mask)])
    return "\n".join([TITLE, *(f"  {line}" for line in (*keys, *table, *_NOTES))]) + "\n"


def _rows(planned: Plan, mask: Mask) -> Iterator[tuple[str, ...]]:
    """For each range of head sizes, the tiles for few rows, and those for many."""
    assert planned.decode
    least = 1
    for size, (short, _, many) in planned.decode.splits["16BIT"].items():
        found = {"up to 16": (short[0], short[2]), "17 or more": (many[0], many[2])}
        if planned.decode_hopper and size > 512:
            _, tile, _, split = planned.decode_hopper.tile
            found[f"from {planned.decode_hopper.least_rows}, on Hopper GPUs"] = tile, split
        for rows, (tile, split) in found.items():
            yield f"{least} to {size}", rows, str(tile), str(split), _count(mask, split)
        least = size + 1


def _count(mask: Mask, split: int) -> str:
    """How many splits of the keys the last query sees."""
    visits = mask.last_visits((1, split))
    return f"{count_visited(visits)} of {visits.size}"
