"""Statements at the start of a kernel: the tile, head and sequence of a program, and the positions of its rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from . import latent, positions
from .analysis import Analysis
from .kernel_terms import KernelTerms
from .sides import BLOCKS, Side
from .statements import Block, Branch, Call, Comment, Statement, needed


def heaviest_first(a: Analysis) -> tuple[Block, ...]:
    """The tile of queries that a program takes: the tiles with the most work start first."""
    if not a.spec.masks and not a.storage.cut:
        return (Statement("tile", "tl.program_id(TILE_AXIS)"),)
    why = "late rows tend to see more keys" if a.spec.masks else "late tiles are those of long sequences"
    return (
        Comment(f"{why}, so they start first"),
        Statement("tile", "tl.num_programs(TILE_AXIS) - 1 - tl.program_id(TILE_AXIS)"),
    )


def cleared(a: Analysis, side: Side, tensors: Iterable[tuple[str, str]], share: tuple[str, str, str]) -> Iterator[Call]:
    """Zeros in a share of the rows of no sequence; `share`: its index, the number of shares, and the rows at a time.

    `tensors` are those of one side that the kernel writes, with the widths of their rows.
    """
    head, heads = ("h", "Hq") if side == "q" else (a.kv, a.kv_heads)
    found = (f"{side}_offset", f"{side}_len", f"{side}_end", f"{side}_total")
    for x, width in tensors:
        rows = (f"{x}_ptr + tl.cast({head}, tl.int64) * {width}", f"{heads} * {width}")
        yield Call("", "clear_rows", (*rows, "b", "sequences", *found, *share, latent.columns(a, width), width))


def sequence(a: Analysis, side: Side, written: Iterable[tuple[str, str]], tile: str = "tile") -> tuple[Block, ...]:
    """The statements that locate the program's sequence, and zeros in its share of the rows of no sequence.

    `written` are the tensors of one side that the kernel writes, with the widths of their rows.
    """
    if not a.storage.cut:
        return (*a.storage.found(), *drawn(a))
    scanned = any(given.scan for given in a.spec.inputs)
    share = (tile, "tl.num_programs(TILE_AXIS)" if tile == "tile" else "1", BLOCKS[side])
    return (*a.storage.found("qk" if scanned else "q"), *cleared(a, side, written, share))


def beyond(a: Analysis, side: Side) -> tuple[Block, ...]:
    """The statements that end programs whose tile lies past the end of their sequence."""
    return a.storage.beyond(side)


def drawn(a: Analysis) -> tuple[Statement, ...]:
    """The row number from which dropout draws for the first row: its position, if the call gives positions."""
    text = "0 if entries_ptr is None else tl.load(entries_ptr + 5 * b + 4)"
    return (Statement("drawn", text),) if a.spec.dropout and a.storage.entries else ()


def tile_of_queries(a: Analysis, written: tuple[str, str]) -> tuple[Block, ...]:
    """The tile of queries, head and sequence of a program, and its return if the tile lies past the sequence's end."""
    return (
        *heaviest_first(a),
        Statement("b, h", "batch_and_head(Hq, TILE_AXIS)"),
        *a.key_head,
        Statement("q_start", "tile * BLOCK_M"),
        *sequence(a, "q", [written]),
        *beyond(a, "q"),
    )


def rows(side: Side) -> tuple[Statement, ...]:
    """The rows of a tile, their positions, and its first and last position."""
    start = f"{side}_start"
    if side == "k":
        return (
            Statement("k_first", start),
            Statement("k_last", "tl.minimum(k_start + BLOCK_N, k_len) - 1"),
            Statement("k_pos", "k_start + tl.arange(0, BLOCK_N)", shape="[BLOCK_N]"),
        )
    return (
        *positions.ends("q", start),
        Statement("row", "q_start + tl.arange(0, BLOCK_M)", shape="[BLOCK_M]"),
        Statement("q_pos", positions.of("row"), shape="[BLOCK_M]"),
    )


def opened(a: Analysis, terms: KernelTerms, side: Side, read: Iterable[str]) -> tuple[Statement, ...]:
    """A tile's rows and the values that terms load once for it, as far as the names in `read` need them."""
    return needed((a.begin, *rows(side), *a.scaled, *terms.loads("program")), read)


def tile(a: Analysis, x: str, side: Side, columns: str) -> tuple[Statement, ...]:
    """The statement that loads a tile of a tensor, with so many `columns`."""
    head, rows = "h" if side == "q" else a.kv, BLOCKS[side]
    return (Statement(f"{x}_tile", a.storage.tile(x, side, head, rows, columns), shape=f"[{rows}, {columns}]"),)


def zeros(terms: KernelTerms, shape: str) -> tuple[Block, ...]:
    """The sums that a kernel carries from step to step, set to 0 before the first one."""
    return tuple(
        Statement(s.name, f"tl.zeros({shape}, tl.float32)", shape=shape, serves=terms.readers(s.access))
        for s in terms.sums
    )


def next_cleared(a: Analysis, side: Side, *tiles: str) -> tuple[Block, ...]:
    """Zeroes the next sequence's rows in tiles."""
    if not a.storage.cut:
        return ()
    what = "rows" if len(tiles) > 1 or not tiles[0].startswith("v") else "values"
    row = "k_pos < k_len" if side == "k" else "row < q_len"
    zeroed = (Statement(x, f"tl.where(({row})[:, None], {x}, 0.0)") for x in tiles)
    return (Comment(f"zero the next sequence's {what}: 0 * NaN would be NaN"), *zeroed)


def tail_cleared(a: Analysis, side: Side, *tiles: str) -> tuple[Block, ...]:
    """The same, in steps that may reach the end of a sequence."""
    cleared = next_cleared(a, side, *tiles)
    return (Branch("tail", cleared),) if cleared else ()
