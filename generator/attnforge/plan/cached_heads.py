"""Key heads whose rows are adjacent in a cache: a program may read two of them as rows of twice the width."""

from __future__ import annotations

from dataclasses import dataclass

from . import positions
from .parameters import Function, Parameter, jitted
from .statements import Block, Branch, Statement

_SEVERAL = "KV_HEADS > 1"


@dataclass(frozen=True)
class Heads:
    """The parts of a kernel that depend on the key heads of a program: `several`, or one in every call."""

    several: bool

    @property
    def constants(self) -> tuple[Parameter, ...]:
        """The parameter with the number of key heads, if there may be several."""
        return (Parameter("KV_HEADS", "constexpr", "heads"),) if self.several else ()

    @property
    def names(self) -> tuple[str, ...]:
        """The name of that parameter, for functions that take it."""
        return tuple(p.name for p in self.constants)

    @property
    def functions(self) -> tuple[Function, ...]:
        """The functions that kernels call for several key heads."""
        return jitted("decode/products", "apart", "own_columns") if self.several else ()

    @property
    def grid(self) -> str:
        """The host's text of the number of programs for a split of one sequence."""
        if not self.several:
            return "runtime.cdiv(rows, block_m) * k.shape[2]"
        return "runtime.cdiv(rows * heads, block_m) * (k.shape[2] // heads)"

    @property
    def texts(self) -> dict[str, str]:
        """Expressions: query heads of a program, its first key head, the factor of the row width, a row's own scale."""
        if not self.several:
            return {"queries": "GROUP", "first": "kv_h", "wider": "", "k_own": "", "v_own": ""}
        own = {f"{x}_own": f" + own * {x}_scale_stride_head" for x in "kv"}
        return {"queries": "QUERIES", "first": "(kv_h * KV_HEADS)", "wider": " * KV_HEADS", **own}

    @property
    def counted(self) -> tuple[Statement, ...]:
        """The statement that counts the query heads of a program."""
        return (Statement("QUERIES: tl.constexpr", "GROUP * KV_HEADS"),) if self.several else ()

    @property
    def rows(self) -> tuple[Statement, ...]:
        """Tokens, heads and positions of a tile's rows, and which of the program's key heads each row reads."""
        found = rows(self.texts["queries"])
        return (*found, Statement("own", "place % QUERIES // GROUP", shape="[BLOCK_M]")) if self.several else found

    @property
    def apart(self) -> tuple[Block, ...]:
        """The statement that makes rows of queries as wide as those of keys."""
        wide = Statement("q_tile", "apart(q_tile, own, KV_HEADS)", shape="[BLOCK_M, KV_HEADS * BLOCK_D]")
        return (Branch(_SEVERAL, (wide,)),) if self.several else ()

    @property
    def narrowed(self) -> tuple[Block, ...]:
        """The statement that keeps a row's own columns of its result."""
        return (Branch(_SEVERAL, (Statement("acc", "own_columns(acc, own, KV_HEADS)"),)),) if self.several else ()


def rows(heads: str = "GROUP") -> tuple[Statement, ...]:
    """Tokens, heads and positions of a tile's rows; rows past the last one read the same as that one."""
    return (
        Statement(positions.BEGIN, "k_len - q_len"),
        Statement("place", "tile * BLOCK_M + tl.arange(0, BLOCK_M)", shape="[BLOCK_M]"),
        Statement("row", f"tl.minimum(place // {heads}, q_len - 1)", shape="[BLOCK_M]"),
        Statement("own_row", "row if cu_seqlens_q_ptr is None else token + row", shape="[BLOCK_M]"),
        Statement("h", f"kv_h * {heads} + place % {heads}", shape="[BLOCK_M]"),
        Statement("q_pos", positions.of("row"), shape="[BLOCK_M]"),
        Statement("q_first", positions.of(f"tile * BLOCK_M // {heads}")),
        Statement("q_last", f"tl.minimum({positions.of(f'(tile * BLOCK_M + BLOCK_M - 1) // {heads}')}, k_len - 1)"),
    )
