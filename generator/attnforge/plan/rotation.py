"""Statements of the rotary embedding: where positions are stored, and the inverse rotation of gradients."""

from __future__ import annotations

from ..language.rope import Rope
from .analysis import Analysis
from .positions import of_first as first_position
from .sides import BLOCKS, Side
from .statements import Block, Branch, Call, Statement

TABLES = (
    *("cos_ptr", "cos_stride_row", "cos_stride_column", "sin_ptr", "sin_stride_row", "sin_stride_column"),
    *("positions_base", "positions_stride_token", "position_end", "PAIRS", "BLOCK_PAIRS"),
)
"""The arguments, besides positions, of the functions that load cosines and sines."""


def columns(a: Analysis) -> str:
    """Text of the two columns of a pair of components."""
    return "pair, pair + PAIRS" if a.spec.rope and a.spec.rope.layout == "half" else "2 * pair, 2 * pair + 1"


def partners(rope: Rope) -> tuple[Statement, ...]:
    """The statements that find the pair of each column, its other column, and whether it is the second of the two."""
    if rope.layout == "half":
        return (
            Statement("second", "column >= PAIRS"),
            Statement("pair", "tl.where(second, column - PAIRS, column)"),
            Statement("other", "tl.where(second, column - PAIRS, column + PAIRS)"),
        )
    return (
        Statement("second", "column % 2 == 1"),
        Statement("pair, other", "column // 2, column ^ 1"),
    )


def inside(a: Analysis) -> tuple[Block, ...]:
    """The statement that leaves out rows before the first position: packed ones would read those of a neighbour."""
    return (Statement("inside", "position >= 0", "&="),) if a.storage.cut else ()


def positions(a: Analysis) -> tuple[Block, ...]:
    """The statements that locate a sequence's positions, if the call gives them."""
    offset = Statement("positions_base", a.storage.offset("k", "positions", "token"), "+=")
    return (Statement("positions_base", "positions_ptr"), Branch("positions_ptr is not None", (offset,)))


def back(a: Analysis, side: Side, rows: tuple[str, str]) -> tuple[Block, ...]:
    """Rotates a program's rows of dq or dk back; `rows` are the address of the first row and the stride of rows."""
    if not a.spec.rope:
        return ()
    ahead, block = first_position(side), BLOCKS[side]
    place = (*rows, f"{side}_start", f"{side}_len", ahead)
    return (*positions(a), Call("", "unrotate", (*place, *TABLES, block)))


def turned(a: Analysis, x: Side, head: str) -> tuple[Block, ...]:
    """Rotates a tile of queries or keys and stores it in the tensor that the other kernels read."""
    places = (
        Statement(
            f"{ptr}_ptr",
            f"{name}_ptr + {a.storage.offset(x, name, 'token')} + tl.cast({head}, tl.int64) * {name}_stride_head",
        )
        for ptr, name in (("x", x), ("turned", f"{x}_turned"))
    )
    source, target = ("x_ptr", f"{x}_stride_token", f"{x}_stride_column"), ("turned_ptr", f"{x}_turned_stride_token")
    common = (*source, *target, "row", "inside")
    rotated = Call("", "rotate_pairs", (*common, "cos", "sin", "PAIRS", "BLOCK_PAIRS"))
    rest = (Call("", "pass_on", (*common, "D", "PAIRS", "BLOCK_REST")),) if a.spec.rope and a.spec.rope.dims else ()
    return (*places, rotated, *rest)
