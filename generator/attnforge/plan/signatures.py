"""The kernels' signatures: what each takes, and what the host gives it, for definitions and calls alike."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from . import statements
from .leaf import SIDES, Leaf, Side
from .parameters import Kernel, Parameter
from .score_terms import View
from .shared_parameters import TILED, SharedParameters
from .tile_states import TileStates


@dataclass(frozen=True)
class Pair:
    """The gradient of an input with a query and a key axis: its kernel, and how many batch entries and heads it has."""

    leaf: Leaf
    view: View
    kernel: Kernel
    batches: str
    heads: str


@dataclass(frozen=True)
class Signatures(SharedParameters):
    """The signatures of a variant's kernels."""

    by_query: View
    by_key: View

    @property
    def kv(self) -> str:
        """What kernels call the key head."""
        return "kv_h" if self.spec.grouped else "h"

    @property
    def tail(self) -> bool:
        """Whether a step may meet a tile with rows of the next sequence."""
        return self.storage.cut and not self.spec.algorithm.whole_head

    @property
    def described(self) -> bool:
        """Whether kernels read values of rows by descriptors."""
        return bool(self._rows)

    @property
    def streamed(self) -> bool:
        """Whether an input's values are among them, or the LSE and delta alone."""
        return any(p.given not in ("lse", "delta") for p in self._rows)

    @property
    def _rows(self) -> list[Parameter]:
        return [p for kernel in self.kernels for p in kernel.parts if p.type == "rows"]

    @property
    def level(self) -> str:
        """Text of whether descriptors can read values of queries by position: from multiples of 16 bytes on; or ""."""
        if not any(p.condition for p in self.dkv.parts):
            return ""
        if self.spec.packed:
            return "cu_seqlens_q.data_ptr() == cu_seqlens_k.data_ptr()"
        return "(k.shape[1] - q.shape[1]) % 8 == 0"

    @property
    def forward(self) -> Kernel:
        """The forward pass."""
        return self._by_heads if self.spec.algorithm.whole_head else self._by_queries

    @cached_property
    def _by_queries(self) -> Kernel:
        """One tile of queries, over the keys that it sees."""
        strided = self.spec.algorithm.strided_keys
        keys = ("k_base", "k_stride_row", "D") if strided else ("k_desc",)
        step = self._step(
            "forward",
            self.by_query,
            ("acc", "m", "l", "q_tile", *keys, "v_desc"),
            statements.reads(self.by_query.score),
        )
        return Kernel(
            "forward",
            (
                *self._operands(*(("q_desc", "v_desc") if strided else ("q_desc", "k_desc", "v_desc"))),
                *(self._strided_keys() if strided else ()),
                Parameter("out_ptr", "*T", "out", written=True),
                Parameter("lse_ptr", "*fp32", "lse", written=True),
                *self._sizes(),
                *self.storage.aligned(),
                *self._given(self.by_query),
                *self._skipped("q"),
                *self._sunk(),
                *self._dropped(),
                *self._constants(*(("GROUP", "D", "DV") if strided else ("GROUP", "DV")), *TILED),
                self._axis("q"),
            ),
            step,
        )

    @cached_property
    def _by_heads(self) -> Kernel:
        """One head, a tile of keys after the other, each over the queries that see it."""
        names = ("k_tile", "v_tile", "q_desc", "acc_base", "m_base", "l_base", "DV")
        # a mask asks which keys there are at all
        read = {"k_pos", "k_len", *statements.reads(self.by_key.score)}
        return Kernel(
            "forward",
            (
                *self._operands("q_desc", "k_desc", "v_desc"),
                *(Parameter(f"{name}_ptr", "*fp32", name, written=True) for name in ("acc", "m", "l")),
                Parameter("out_ptr", "*T", "out", written=True),
                Parameter("lse_ptr", "*fp32", "lse", written=True),
                *self._sizes(),
                *self.storage.aligned(),
                *self._given(self.by_key),
                *self._dropped(),
                *self._constants("GROUP", "DV", *TILED),
            ),
            self._step("forward", self.by_key, names, read),
        )

    @cached_property
    def dkv(self) -> Kernel:
        """The gradients of a tile of keys, over the queries that see it."""
        names = (
            "dk",
            "dv",
            *(s.name for s in self.by_key.sums),
            "k_tile",
            "v_tile",
            "q_desc",
            "dout_desc",
            "lse_desc",
            "delta_desc",
            "row_base",
        )
        return Kernel(
            "backward_dkv",
            (
                *self._operands("q_desc", "k_desc", "v_desc", "dout_desc"),
                Parameter("lse_desc", "rows", "lse", ("BLOCK_M",)),
                Parameter("delta_desc", "rows", "delta", ("BLOCK_M",)),
                Parameter("dk_ptr", "*T", "dk", written=True),
                Parameter("dv_ptr", "*T", "dv", written=True),
                *self._sizes(),
                *self.storage.aligned(),
                *self._summed(self.by_key),
                *self._given(self.by_key),
                *self._skipped("k"),
                *self._dropped(),
                *(Parameter(f"{s.name}_ptr", "*fp32", s.name, written=True) for s in self.by_key.learned),
                *self._angles(),
                *self._constants("GROUP", "D", "DV", "PAIRS", *TILED, "BLOCK_PAIRS"),
                self._axis("k"),
            ),
            self._step("backward_dkv", self.by_key, names, _read_backward(self.by_key)),
        )

    @cached_property
    def dq(self) -> Kernel:
        """The gradients of a tile of queries, over the keys that it sees, and delta for the other kernels."""
        names = ("dq", *(s.name for s in self.by_query.sums), "q_tile", "dout_tile", "lse", "delta", "k_desc", "v_desc")
        return Kernel(
            "backward_dq",
            (
                *self._operands("q_desc", "k_desc", "v_desc", "out_desc", "dout_desc"),
                Parameter("dq_ptr", "*T", "dq", written=True),
                Parameter("lse_ptr", "*fp32", "lse"),
                Parameter("dlse_ptr", "*fp32", "dlse"),
                Parameter("delta_ptr", "*fp32", "delta", written=True),
                *self._sizes(),
                *self.storage.aligned(),
                *self._summed(self.by_query),
                *self._given(self.by_query),
                *self._skipped("q"),
                *self._dropped(),
                *(Parameter(f"{s.name}_ptr", "*fp32", s.name, written=True) for s in self.by_query.learned),
                *self._angles(),
                *self._constants("GROUP", "D", "PAIRS", *TILED, "BLOCK_PAIRS"),
                self._axis("q"),
            ),
            self._step("backward_dq", self.by_query, names, _read_backward(self.by_query)),
        )

    @cached_property
    def rotate(self) -> Kernel:
        """Pairs of components of q and k, turned by the angles of their positions."""
        sides = []
        for x in ("q", "k"):
            axes = (*self.storage.outer, "column")
            sides += [Parameter(f"{x}_ptr", "*T", x)]
            sides += [Parameter(f"{x}_stride_{axis}", "i32", f"{x}.stride({i})") for i, axis in enumerate(axes)]
            sides += [Parameter(f"{x}_turned_ptr", "*T", f"{x}_turned", written=True)]
            sides += [
                Parameter(f"{x}_turned_stride_{axis}", "i32", f"{x}_turned.stride({i})")
                for i, axis in enumerate(axes[:-1])
            ]
        constants = self._constants("PAIRS", "BLOCK_T", "BLOCK_PAIRS")
        rest = self._constants("D", "BLOCK_REST") if self.spec.rope and self.spec.rope.dims else ()
        return Kernel(
            "rotate",
            (
                *sides,
                *self._angles(),
                *self._sizes(scale=False),
                Parameter("Hkv", "i32", "k.shape[-2]"),
                Parameter("tiles", "i32", f"_cdiv(max({', '.join(self.storage.longest)}), block_t)"),
                *constants,
                *rest,
            ),
        )

    @cached_property
    def scan(self) -> Kernel:
        """Cumulative sums over the tokens of each sequence, and where its documents begin and end."""
        return self._along_tokens("scan", "sums", Parameter("sums_ptr", "*fp32", "sums", written=True))

    @cached_property
    def scan_back(self) -> Kernel:
        """The gradient of what was summed up, from that of the sums."""
        parts = Parameter("dsums_ptr", "*fp32", "dsums"), Parameter("dx_ptr", "*fp32", "dx", written=True)
        return self._along_tokens("scan_back", "dsums", *parts)

    def _along_tokens(self, name: str, sums: str, *parts: Parameter) -> Kernel:
        outer = [axis for axis in ("batch", "head", "token") if axis in self.storage.outer]
        lengths = (
            (
                Parameter("cu_seqlens_ptr", "*i32", "cu_seqlens_k"),
                Parameter("rows", "i32", "x.shape[-1]"),
                Parameter("total", "i32", f"{sums}.shape[-1]"),
            )
            if self.storage.cut
            else (Parameter("count", "i32", "x.shape[-1]"),)
        )
        return Kernel(
            name,
            (
                Parameter("x_ptr", "*fp32", "x"),
                *(Parameter(f"x_stride_{axis}", "i32", f"x.stride({i})") for i, axis in enumerate(outer)),
                *parts,
                *lengths,
                Parameter("heads", "i32", "x.shape[-2]"),
                Parameter("RESET", "constexpr", "reset"),
                Parameter("BLOCK", "constexpr", "block"),
            ),
        )

    @cached_property
    def pairs(self) -> tuple[Pair, ...]:
        """The gradients of learned inputs that each score may have a value of its own of, a kernel for each."""
        leaves = [leaf for leaf in self.by_query.leaves if leaf.input.grad and leaf.form == "pair"]
        return tuple(self._pair(leaf) for leaf in leaves)

    def _pair(self, leaf: Leaf) -> Pair:
        view, given = View(self.by_query.spec, "q", pair=leaf), leaf.input
        places = {kind: i for i, kind in enumerate(given.kinds)}
        batch = f"{given.name}.shape[{places['batch']}]" if "batch" in places else "1"
        head = next((i for kind, i in places.items() if kind in ("head", "kv_head")), None)
        heads = "1" if head is None else f"{given.name}.shape[{head}]"
        kernel = Kernel(
            f"backward_{given.name}",
            (
                *self._operands("q_desc", "k_desc", "v_desc", "dout_desc"),
                Parameter(f"{leaf.name}_sum_ptr", "*fp32", f"{leaf.name}_sum", written=True),
                Parameter("lse_ptr", "*fp32", "lse"),
                Parameter("delta_ptr", "*fp32", "delta"),
                *self._sizes(),
                Parameter("all_batches", "i32", "q.shape[0]"),
                Parameter("own_batches", "i32", batch),
                Parameter("own_heads", "i32", heads),
                *self._given(view),
                *self._dropped(),
                *self._constants("GROUP", *TILED),
            ),
        )
        return Pair(leaf, view, kernel, batch, heads)

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """All kernels of the package."""
        found = (self.forward, self.dkv, self.dq) if self.spec.algorithm.backward else (self.forward,)
        return (
            ((self.bounds,) if self.bounds else ())
            + ((self.ranges,) if self.ranges else ())
            + found
            + tuple(pair.kernel for pair in self.pairs)
            + ((self.rotate,) if self.spec.rope else ())
            + ((self.scan,) if self.scanned else ())
            + ((self.scan_back,) if self.scanned and self.spec.algorithm.backward else ())
        )

    # -- kernels that look at masks alone, and what they leave to the others -----------------------------------------

    @cached_property
    def bounds(self) -> Kernel | None:
        """The extremes, for each tile, of what masks read along queries and along keys."""
        notes = tuple(self._notes(written=True))
        return Kernel("bounds", (*notes, *self._told(TileStates(self.spec, "q").noting_names))) if notes else None

    @cached_property
    def ranged(self) -> tuple[TileStates, ...]:
        """The sides whose programs find the ranges of tiles that they need worked out."""
        both = (TileStates(self.spec, side) for side in SIDES)
        return tuple(states for states in both if states.any and states.ranged and states.walked)

    @cached_property
    def ranges(self) -> Kernel | None:
        """The parts of keys that each part of queries needs, and the other way round."""
        made = [Parameter(f"{x.ranges}_ptr", "*i32", x.ranges, written=True) for x in self.ranged]
        told = self._told(TileStates(self.spec, "q").telling_names)
        return Kernel("ranges", (*made, *self._notes(), *told)) if made else None

    def _told(self, named: set[str]) -> Iterable[Parameter]:
        """What a small kernel takes that looks at the masks alone, and names these."""
        states = TileStates(self.spec, "q")
        yield from (p for p in self._sizes(scale=False) if p.name != "Hq" or states.per_head)
        yield from (p for p in self._given(states.reader) if p.name in named)
        if "kv_h" in named:
            yield from self._constants("GROUP")
        yield from self._constants("BLOCK_M", "BLOCK_N")

    def _notes(self, *, written: bool = False) -> Iterable[Parameter]:
        """Where the extremes of tiles stand."""
        states = TileStates(self.spec, "q")
        sides = [side for side in SIDES if states.noted(side)]
        for side in sides:
            yield Parameter(f"{side}_bounds_ptr", "*i32", f"{side}_bounds", written=written)
        for side in SIDES if sides else ():
            yield Parameter(f"{side}_tiles", "i32", f"{side}_tiles")

    def _skipped(self, side: Side) -> Iterable[Parameter]:
        """What tells the tiles to skip: their range, or the notes that tell the state of each."""
        states = TileStates(self.spec, side)
        if not (states.any and states.ranged):
            yield from self._notes()
            return
        yield Parameter(f"{states.ranges}_ptr", "*i32", states.ranges)
        yield Parameter(f"{side}_parts", "i32", f"{states.ranges}.shape[1]")

    def _summed(self, view: View) -> Iterable[Parameter]:
        """How many rows a head has in the gradients that a kernel of packed sequences writes row by row."""
        rows = [s.leaf for s in view.learned if s.leaf.tie and self.storage.cut]
        if any(leaf.input.scan for leaf in rows):
            yield Parameter("k_rows", "i32", f"{self.sums[0]}.shape[-1]")

    def _step(self, name: str, view: View, own: tuple[str, ...], read: Iterable[str]) -> tuple[str, ...]:
        """A step's parameters: its own names, where it stands, and what it reads for the terms."""
        by_query = view.own == "q"
        place = self.storage.place("k" if by_query else "q")
        inside = ("k_pos",) if by_query else ("row", "q_pos", "q_first")
        loads = (*view.loads("step"), *view.loads("mask"))
        read = {*read, *statements.reads((*view.keep, *loads))}
        placed = by_query or {"k_len", "q_pos", "q_first"} & read
        where = (self.kv, "k_start") if by_query else ("h", "q_start", "q_len")
        known = (*own, place, *where, *(("k_len",) if placed else ()), "scale" if self.spec.scores else "scale_log2")
        blocks = ("BLOCK_N" if by_query else "BLOCK_M", "BLOCK_D", "BLOCK_DV", "PRECISION")
        if self.spec.dropout:
            read |= statements.names(view.kept) | ({"rescale"} if name != "forward" else set())
        made = statements.targets(loads)
        sums = [name for s in view.learned for name in (f"{s.name}_ptr", f"{s.name}_row")]
        return (*known, *view.passed(read, {*known, *inside, *made}, ("slot", *sums)), *blocks)


def _read_backward(view: View) -> frozenset[str]:
    """The names that the score terms of a backward step read."""
    return statements.reads((*view.added, *view.inward))
