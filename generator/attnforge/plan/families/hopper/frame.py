"""The kernels before and after the backward kernel for Hopper GPUs: delta, dQ from its sums, rotations undone."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from ... import programs, rotation
from ...parameters import Kernel, Parameter
from ...shared_parameters import SharedParameters
from ...sides import BLOCKS, Side
from ...statements import Block, Call, Statement, names, needed, reads
from ..portable import in_groups


@dataclass(frozen=True)
class Frame:
    """These kernels of a variant: plain Triton, one tile of rows per program."""

    shared: SharedParameters

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """All of these kernels, in the order in which they run."""
        return (self.prepare, self.finish, *((self.turn_back,) if self.shared.spec.rope else ()))

    @cached_property
    def prepare(self) -> Kernel:
        """The kernel that computes delta, and zeroes the counters and the accumulator of dQ."""
        p = self.shared
        parts = (
            *p.operands("out_desc", "dout_desc"),
            Parameter("dq_sum_ptr", "*fp32", "dq_sum", written=True),
            Parameter("taken_ptr", "*i32", "taken", written=True),
            Parameter("dlse_ptr", "*fp32", "dlse"),
            Parameter("delta_ptr", "*fp32", "delta", written=True),
            *p.sizes(scale=False),
            *p.storage.aligned(),
            *p.constants("D", "BLOCK_M", "BLOCK_N", "BLOCK_DV", "PIECE"),
            p.axis("q"),
        )
        begin = tuple(
            Statement(f"{x}_tile", p.storage.tile(x, "q", "h", "BLOCK_M", "BLOCK_DV"), shape="[BLOCK_M, BLOCK_DV]")
            for x in ("dout", "out")
        )
        read = names(p.storage.tiled_rows, p.storage.head_rows) | {"taken_ptr"}
        return self._made("prepare", parts, "q", self.entered("q", read | reads(begin)), read, begin=begin)

    @cached_property
    def finish(self) -> Kernel:
        """The kernel that makes dQ from its accumulator."""
        p, a = self.shared, self.shared.analysis
        parts = (
            Parameter("dq_sum_ptr", "*fp32", "dq_sum"),
            Parameter("taken_ptr", "*i32", "taken"),
            Parameter("dq_ptr", "*T", "dq", written=True),
            *p.sizes(),
            *p.storage.aligned(),
            *p.angles(),
            *p.constants("D", "PAIRS", "BLOCK_M", "BLOCK_N", *(("BLOCK_D",) if p.storage.cut else ())),
            *p.constants("BLOCK_PAIRS", "PIECE"),
            p.axis("q"),
        )
        stores = rotation.back(a, "q", ("dq_ptr + first_row * D", "Hq * D"))
        read = names(p.storage.tiled_rows, p.storage.rows("q"))
        begin = needed((a.begin,), reads(stores))
        # an unqualified clear_rows would be the Gluon function
        enter = tuple(
            dataclasses.replace(block, function="kernels.clear_rows") if isinstance(block, Call) else block
            for block in self.entered("q", read | reads((*begin, *stores)), [("dq", "D")])
        )
        made = self._made("finish", parts, "q", (*enter, *begin), read | {"Hq", "scale", "taken_ptr"}, stores=stores)
        return dataclasses.replace(made, texts={"slope": a.slope})

    @cached_property
    def turn_back(self) -> Kernel:
        """The kernel that turns dK into the gradient of the keys before their rotation."""
        p, a = self.shared, self.shared.analysis
        parts = (
            Parameter("dk_ptr", "*T", "dk", written=True),
            *p.sizes(scale=False),
            *p.angles(),
            *p.constants("GROUP", "D", "PAIRS", "BLOCK_N", "BLOCK_PAIRS"),
            p.axis("k"),
        )
        stores = rotation.back(a, "k", ("dk_ptr + first_row * D", f"{a.kv_heads} * D"))
        read = names(p.storage.rows("k"))
        return self._made("turn_back", parts, "k", self.entered("k", read | reads(stores)), read, stores=stores)

    def _made(
        self,
        name: str,
        parts: tuple[Parameter, ...],
        side: Side,
        enter: tuple[Block, ...],
        read: Iterable[str],
        **blocks: tuple[Block, ...],
    ) -> Kernel:
        """A kernel whose programs each take a tile of one side, with only the parameters that it reads.

        `read` holds the names that its template reads in addition.
        """
        blocks = {"enter": enter, **blocks}
        read = {*read, *reads(block for some in blocks.values() for block in some)}
        taken = tuple(q for q in parts if q.type not in ("i32", "fp32", "*i32") or q.name in read)
        grid = in_groups(self.shared, side, "q, dout" if side == "k" else "k, v")
        return Kernel(name, taken, f"hopper/{name}.jinja", grid, blocks=blocks)

    def entered(self, side: Side, read: Iterable[str], cleared: Iterable[tuple[str, str]] = ()) -> tuple[Block, ...]:
        """The statements that find a program's tile, head and sequence, if read; past the sequence's end it returns."""
        a = self.shared.analysis
        heads = "Hq" if side == "q" else a.kv_heads
        found = (
            Statement("tile", "tl.program_id(TILE_AXIS)"),
            *((Statement("Hkv", "Hq // GROUP"),) if side == "k" and a.spec.grouped else ()),
            Statement(f"b, {'h' if side == 'q' else a.kv}", f"batch_and_head({heads}, TILE_AXIS)"),
            Statement(f"{side}_start", f"tile * {BLOCKS[side]}"),
            *a.storage.found("q"),
        )
        share = ("tile", "tl.num_programs(TILE_AXIS)", BLOCKS[side])
        zeros = programs.cleared(a, side, cleared, share) if a.storage.cut else ()
        after = (*zeros, *programs.beyond(a, side))
        return (*needed(found, {f"{side}_start", f"{side}_len", *read, *reads(after)}), *after)
