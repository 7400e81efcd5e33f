"""What runs before and after the backward kernel for Hopper GPUs: delta, dQ out of sums, rotations undone."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from .. import programs, rotation
from ..parameters import Kernel, Parameter
from ..shared_parameters import SharedParameters
from ..sides import BLOCKS, Side
from ..statements import Block, Call, Statement, names, needed, reads
from .portable import in_groups


@dataclass(frozen=True)
class Frame:
    """These kernels of a variant: plain Triton, a tile of rows in each program."""

    shared: SharedParameters

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """All of them, in the order in which they run."""
        return (self.prepare, self.finish, *((self.turn_back,) if self.shared.spec.rope else ()))

    @cached_property
    def prepare(self) -> Kernel:
        """Delta, and zeros where dQ is added up."""
        p = self.shared
        enter = self.entered("q")
        parts = (
            *p.operands("out_desc", "dout_desc"),
            Parameter("dq_sum_ptr", "*fp32", "dq_sum", written=True),
            Parameter("dlse_ptr", "*fp32", "dlse"),
            Parameter("delta_ptr", "*fp32", "delta", written=True),
            *p.sizes(scale=False),
            *p.storage.aligned(),
            *p.constants("BLOCK_M", "BLOCK_D", "BLOCK_DV"),
            p.axis("q"),
        )
        begin = tuple(
            Statement(f"{x}_tile", p.storage.tile(x, "q", "h", "BLOCK_M", "BLOCK_DV"), shape="[BLOCK_M, BLOCK_DV]")
            for x in ("dout", "out")
        )
        return self._made("prepare", parts, "q", {"enter": enter, "begin": begin})

    @cached_property
    def finish(self) -> Kernel:
        """DQ out of what was added up."""
        p, a = self.shared, self.shared.analysis
        parts = (
            Parameter("dq_sum_ptr", "*fp32", "dq_sum"),
            Parameter("dq_ptr", "*T", "dq", written=True),
            *p.sizes(),
            *p.storage.aligned(),
            *p.angles(),
            *p.constants("D", "PAIRS", "BLOCK_M", "BLOCK_D", "BLOCK_PAIRS"),
            p.axis("q"),
        )
        stores = rotation.back(a, "q", ("dq_ptr + first_row * D", "Hq * D"))
        # clear_rows by itself is the one in Gluon
        enter = tuple(
            dataclasses.replace(block, function="kernels.clear_rows") if isinstance(block, Call) else block
            for block in (*self.entered("q", [("dq", "D")]), *needed((a.begin,), reads(stores)))
        )
        return self._made("finish", parts, "q", {"enter": enter, "stores": stores})

    @cached_property
    def turn_back(self) -> Kernel:
        """DK as of the keys before their rotation."""
        p, a = self.shared, self.shared.analysis
        parts = (
            Parameter("dk_ptr", "*T", "dk", written=True),
            *p.sizes(scale=False),
            *p.angles(),
            *p.constants("GROUP", "D", "PAIRS", "BLOCK_N", "BLOCK_PAIRS"),
            p.axis("k"),
        )
        stores = rotation.back(a, "k", ("dk_ptr + first_row * D", f"{a.kv_heads} * D"))
        return self._made("turn_back", parts, "k", {"enter": self.entered("k"), "stores": stores})

    def _made(
        self, name: str, parts: tuple[Parameter, ...], side: Side, blocks: dict[str, tuple[Block, ...]]
    ) -> Kernel:
        """A kernel whose programs each take a tile of one side, with what it reads of some parameters."""
        storage = self.shared.storage
        found = {
            "prepare": (storage.tiled_rows, storage.head_rows, "q_len"),
            "finish": (storage.tiled_rows, storage.rows("q"), "q_len", "Hq", "scale"),
            "turn_back": (storage.rows("k"),),
        }
        read = reads(block for some in blocks.values() for block in some) | names(*found[name])
        taken = tuple(q for q in parts if q.type not in ("i32", "fp32") or q.name in read)
        grid = in_groups(self.shared, side, "q, dout" if side == "k" else "k, v")
        return Kernel(name, taken, f"hopper/{name}.jinja", grid, blocks=blocks)

    def entered(self, side: Side, cleared: Iterable[tuple[str, str]] = ()) -> tuple[Block, ...]:
        """Which tile, head and sequence a program has, and the way home behind that one's end."""
        a = self.shared.analysis
        heads = "Hq" if side == "q" else a.kv_heads
        return (
            Statement("tile", "tl.program_id(TILE_AXIS)"),
            *((Statement("Hkv", "Hq // GROUP"),) if side == "k" and a.spec.grouped else ()),
            Statement(f"b, {'h' if side == 'q' else a.kv}", f"batch_and_head({heads}, TILE_AXIS)"),
            Statement(f"{side}_start", f"tile * {BLOCKS[side]}"),
            *programs.sequence(a, side, cleared),
            *programs.beyond(a, side),
        )
