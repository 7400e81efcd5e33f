"""Which kernels a call uses on Hopper GPUs, and how many tiles those of each target visit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..language.spec import Spec
from ..plan import plan, reach
from ..plan.plan import Plan
from ..plan.tiles import NARROW, Tile, of_length, outrun
from .arrays import Mask
from .columns import aligned

TITLE = "Kernels on Hopper GPUs, float16 and bfloat16"
_UNCOUNTED = "? where so many tiles are not looked at, of which only values tell whether they are visited"
_PORTABLE = {"forward": ("forward",), "backward": ("backward_dq", "backward_dkv")}  # the kernels of each pass


def text(spec: Spec, mask: Mask) -> str:
    """The passes by head size and the tiles they visit, as `explain` prints them; "" without such kernels."""
    rows = list(_rows(plan.build(spec), mask, reach.build(spec).of(mask.numbers)))
    if not rows:
        return ""
    header = ("pass", "head sizes", "takes those of hopper", "here", "hopper visits", "portable")
    lines = [*aligned([header, *rows]), *([_UNCOUNTED] if any("? of" in cell for row in rows for cell in row) else [])]
    return "\n".join([TITLE, *(f"  {line}" for line in lines)]) + "\n"


def _rows(planned: Plan, mask: Mask, far: int) -> Iterator[tuple[str, ...]]:
    """For each pass and each range of head sizes, the choice of kernels by a call whose queries see `far` keys back."""
    for its, sizes in planned.tables.hopper.items():
        for size, by_length in sizes.items():
            limits = planned.tables.faster[its].get(size, ())
            least = planned.tables.reach.get(its, {}).get(size, 0)
            here = "hopper" if outrun(limits, mask.k_len, far, least) else "portable"
            tile = of_length(by_length, planned.visible_keys(mask.k_len, mask.numbers))
            visits = _count(mask, tile, owns_keys=its == "backward"), _portable(planned, mask, its, size)
            sizes_told = f"{size // 2 + 1} to {size}" if size > NARROW else f"up to {size}"
            yield its, sizes_told, _when(limits, least), here, *visits


def _when(limits: Sequence[int], least: int = 0) -> str:
    """The numbers of keys for which a call uses these kernels, and how many keys before its own a query has to see."""
    if limits and least:
        return f"{_when(limits)} if queries see {least} before theirs"
    if limits == (0,):
        return "always"
    bounds = [f"from {first} to {end - 1} keys" for first, end in zip(limits[::2], limits[1::2], strict=False)]
    bounds += [f"from {limits[-1]} keys on"] if len(limits) % 2 else []
    return " and ".join(bounds).replace("from 0 to", "up to") or "if asked for"


def _portable(planned: Plan, mask: Mask, its: str, size: int) -> str:
    """The tiles that the portable kernels of a pass visit."""
    table = planned.tables.half["sm_90"]
    tiles = {name: next(table[name][wide][0] for wide in table[name] if size <= wide) for name in _PORTABLE[its]}
    return " and ".join(_count(mask, tile, owns_keys=name == "backward_dkv") for name, tile in tiles.items())


def _count(mask: Mask, tile: Tile, owns_keys: bool) -> str:
    visited, total = mask.count((tile.block_m, tile.block_n), owns_keys)
    return f"{'?' if visited is None else visited} of {total}, {tile.block_m} x {tile.block_n}"
