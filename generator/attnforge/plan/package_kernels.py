"""The kernels of a package: the parameters of each, and the host's arguments, for definitions and calls alike."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from . import positions, programs, rotation, vanishing
from .analysis import Analysis
from .families import known
from .families.family import Kernels, Pair, Tables
from .parameters import Kernel, Parameter
from .shared_parameters import SharedParameters
from .sides import BLOCKS, OTHER, RANGE, SIDES
from .statements import Block, Branch, Loop, Statement, needed, reads
from .tile_ranges import TileRange
from .tile_states import TileStates


@dataclass(frozen=True)
class PackageKernels(SharedParameters):
    """The kernels of a variant: those of its family, and those that prepare their inputs."""

    @cached_property
    def own(self) -> Kernels:
        """The kernels of the family."""
        return known.of(self.spec).kernels(self)

    @property
    def forward(self) -> Kernel:
        """The forward pass."""
        return self.own.forward

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """The gradients of learned inputs that may have a value of their own for each score, with a kernel for each."""
        return self.own.pairs

    @property
    def tables(self) -> Tables | None:
        """The gradients of tables that are summed over batch entries first, if there are any."""
        return self.own.tables

    @property
    def described(self) -> bool:
        """Whether kernels read values of rows through descriptors."""
        return bool(self._rows)

    @property
    def _rows(self) -> list[Parameter]:
        return [p for kernel in self.all for p in kernel.parts if p.type == "rows"]

    @property
    def level(self) -> str:
        """Text of whether descriptors can read values of queries by position, or "" if no kernel would use them."""
        asked = self.own.dkv and any(p.condition == "level" for p in self.own.dkv.parts)
        return self.storage.level if asked else ""

    @cached_property
    def rotate(self) -> Kernel:
        """The kernel that rotates pairs of components of q and k by the angles of their positions."""
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
        constants = self.constants("PAIRS", "BLOCK_T", "BLOCK_PAIRS")
        rest = self.constants("D", "BLOCK_REST") if self.spec.rope and self.spec.rope.dims else ()
        return Kernel(
            "rotate",
            (
                *sides,
                *self.angles(),
                *self.sizes(scale=False),
                Parameter("Hkv", "i32", "k.shape[-2]"),
                Parameter("tiles", "i32", f"runtime.cdiv(max({', '.join(self.storage.longest)}), block_t)"),
                *constants,
                *rest,
            ),
            "portable/rotate.jinja",
            blocks={
                "enter": (*self.storage.found(), self.analysis.begin),
                "rows": (
                    Statement("row", "tile * BLOCK_T + tl.arange(0, BLOCK_T)"),
                    Statement("position", f"tl.where(h < Hq, {positions.of('row')}, row)"),
                ),
                "positions": rotation.positions(self.analysis),
                "turn_q": rotation.turned(self.analysis, "q", "h"),
                "turn_k": rotation.turned(self.analysis, "k", "h - Hq"),
            },
        )

    @cached_property
    def scan(self) -> Kernel:
        """The kernel of cumulative sums over the tokens of each sequence, and of the ends of its documents."""
        parts = (Parameter("sums_ptr", "*fp32", "sums", written=True),)
        return self._along_tokens("scan", "sums", parts, self.storage.sums())

    @cached_property
    def scan_back(self) -> Kernel:
        """The kernel of the gradient of the summed values, from that of the sums."""
        parts = Parameter("dsums_ptr", "*fp32", "dsums"), Parameter("dx_ptr", "*fp32", "dx", written=True)
        return self._along_tokens("scan_back", "dsums", parts, self.storage.dsums())

    @cached_property
    def vanishing(self) -> tuple[Kernel, ...]:
        """The kernels that find where weights vanish, if they do: of norms, and of what follows from them."""
        return vanishing.kernels(self)

    def _along_tokens(
        self, name: str, sums: str, parts: tuple[Parameter, ...], places: tuple[Statement, ...]
    ) -> Kernel:
        found = (Statement("b, h", "tl.program_id(0) // heads, tl.program_id(0) % heads"), *self.storage.tokens())
        outer = [axis for axis in ("batch", "head", "token") if axis in self.storage.outer]
        return Kernel(
            name,
            (
                Parameter("x_ptr", "*fp32", "x"),
                *(Parameter(f"x_stride_{axis}", "i32", f"x.stride({i})") for i, axis in enumerate(outer)),
                *parts,
                *self.storage.token_sizes(sums),
                Parameter("heads", "i32", "x.shape[-2]"),
                Parameter("RESET", "constexpr", "reset"),
                Parameter("BLOCK", "constexpr", "block"),
            ),
            f"portable/{name}.jinja",
            blocks={"enter": (*found, *places)},
        )

    @property
    def all(self) -> tuple[Kernel, ...]:
        """All kernels of the package."""
        return (
            *((self.bounds,) if self.bounds else ()),
            *((self.ranges,) if self.ranges else ()),
            *self.lists,
            *((self.rotate,) if self.spec.rope else ()),
            *self.own.all,
            *((self.scan,) if self.scanned else ()),
            *self.vanishing,
            *((self.scan_back,) if self.scanned and self.spec.algorithm.backward else ()),
        )

    @cached_property
    def bounds(self) -> Kernel | None:
        """The kernel that notes each tile's extremes of the values that masks read along queries and along keys."""
        notes, a = tuple(self.notes(written=True)), self.analysis
        if not (a.key_states and a.query_states and (a.key_states.noted("q") or a.key_states.noted("k"))):
            return None
        parts = (*notes, *self._told(a.key_states, a.key_states.noting_names))
        of_queries = _noted(a, a.key_states) if a.key_states.noted("q") else ()
        of_keys = (Statement("tile", "q_tiles", "-="), *_noted(a, a.query_states)) if a.key_states.noted("k") else ()
        note = Branch("tile < q_tiles", of_queries, of_keys) if of_queries else Branch("tile >= q_tiles", of_keys)
        enter = self._masked(a.key_states, "(q_tiles + k_tiles)", parts, (note,))
        blocks = {"enter": enter, "note": (note,)}
        return Kernel("bounds", parts, "portable/bounds.jinja", blocks=blocks)

    @property
    def _told_apart(self) -> Iterable[TileStates]:
        """The states of the sides whose programs look up which tiles they need."""
        return (states for states in map(self.analysis.states, SIDES) if states and states.walked)

    @cached_property
    def ranged(self) -> tuple[TileStates, ...]:
        """Those whose programs look up a range."""
        return tuple(states for states in self._told_apart if states.ranged)

    @cached_property
    def listed(self) -> tuple[TileStates, ...]:
        """Those whose programs look up a list."""
        return tuple(states for states in self._told_apart if not states.ranged)

    @cached_property
    def ranges(self) -> Kernel | None:
        """The kernel that finds the parts of keys that each part of queries needs, and the other way round."""
        if not self.ranged:
            return None
        states = self.ranged[0]
        made = (Parameter(f"{x.ranges}_ptr", "*i32", x.ranges, written=True) for x in self.ranged)
        named = {name for one in self.ranged for name in one.telling_names}
        parts = (*made, *self.notes(), *self._told(states, named))
        first, *others = (_range_of(states) for states in self.ranged)
        tiles, note = f"{states.own}_tiles", first
        if others:
            tiles = "(q_tiles + k_tiles)"
            note = (Branch("tile < q_tiles", first, (Statement("tile", "q_tiles", "-="), *others[0])),)
        blocks = {"enter": self._masked(states, tiles, parts, note), "note": note}
        texts = {"both": ", or of queries that a part of keys needs" if others else ""}
        return Kernel("ranges", parts, "portable/ranges.jinja", blocks=blocks, texts=texts)

    @cached_property
    def lists(self) -> tuple[Kernel, ...]:
        """The kernels that list the tiles of one side that each tile of the other side needs."""
        return tuple(map(self._list, self.listed))

    def placed(self, states: TileStates) -> TileRange | None:
        """The range of tiles that a list is made from, if positions alone limit it."""
        tiles = self.analysis.keys if states.own == "q" else self.analysis.queries
        return tiles if tiles.placed else None

    def _list(self, states: TileStates) -> Kernel:
        made = Parameter(f"{states.lists}_ptr", "*i32", states.lists, written=True)
        parts = (made, *self.notes(), *self._told(states, states.telling_names))
        note = _list_of(states, self.placed(states))
        blocks = {"enter": self._masked(states, f"{states.own}_tiles", parts, note), "note": note}
        listed, own = ("keys", "queries") if states.own == "q" else ("queries", "keys")
        texts = {"listed": listed, "own": own}
        return Kernel(f"list_{listed}", parts, "portable/lists.jinja", blocks=blocks, texts=texts)

    def _masked(
        self, states: TileStates, tiles: str, parts: Iterable[Parameter], note: tuple[Block, ...]
    ) -> tuple[Block, ...]:
        """Statements that open a program that evaluates masks alone, up to `note`: its tile, batch entry and head."""
        tile: tuple[Block, ...] = (Statement("tile", f"tl.program_id(0) % {tiles}"),)
        taken = {p.name for p in parts}
        numbers = tuple(number for number in states.numbers if number.target in taken)
        found = (*self.storage.found(), *needed((self.analysis.begin,), reads(note)), *numbers)
        if not states.per_head:
            return (*tile, Statement("b", f"tl.program_id(0) // {tiles}"), *found)
        heads = Statement("b, h", f"tl.program_id(0) // {tiles} // Hq, tl.program_id(0) // {tiles} % Hq")
        grouped = "GROUP" in taken
        return (*tile, heads, *(self.analysis.key_head if grouped else ()), *found)

    def _told(self, states: TileStates, named: set[str]) -> Iterable[Parameter]:
        """The parameters of a small kernel that evaluates masks alone and uses the names in `named`."""
        yield from (p for p in self.sizes(scale=False) if p.name != "Hq" or states.per_head)
        yield from (p for p in self.given(states.inputs) if p.name in named)
        if "kv_h" in named:
            yield from self.constants("GROUP")
        yield from self.constants("BLOCK_M", "BLOCK_N")


def _noted(a: Analysis, states: TileStates) -> tuple[Block, ...]:
    """The statements that note the extremes of one tile of a side."""
    side = states.own
    noted, block = states.noted(side), BLOCKS[side]
    inside = "row < q_len" if side == "q" else "k_pos < k_len"
    place = f"tl.cast({states.place} * {side}_tiles + tile, tl.int64) * {2 * len(noted)}"
    stores = []
    for i, access in enumerate(noted):
        there = f"({inside})[:, None]" if access.form == "entry" else inside
        ptr = f"{side}_bounds_ptr + place" + (f" + {2 * i}" if i else "")
        stores.append(Statement("", f"store_extremes({ptr}, {access.name}, {there})"))
    read = reads((*states.noting, *stores))
    rows = needed((Statement(f"{side}_start", f"tile * {block}"), *programs.rows(side)), read)
    return (*rows, *states.noting, Statement("place", place), *stores)


def _range_of(states: TileStates) -> tuple[Block, ...]:
    """The statements that compute and store the range of parts that one part of a side needs."""
    own, other, ends = states.own, OTHER[states.own], ", ".join(RANGE)
    count = f"{other}_tiles"
    step = (*_examined(states, 1024), Statement(ends, f"add_states({ends}, others, some, every, {count})"))
    return (
        *_entered(states, step),
        Statement(ends, f"{count}, {count}, {count}, 0"),
        Loop("start", "0", f"{count}, 1024", step),
        Statement("place", f"tl.cast({states.place} * {own}_tiles + tile, tl.int64) * 4"),
        Statement("", f"store_range({states.ranges}_ptr + place, {ends})"),
    )


def _list_of(states: TileStates, placed: TileRange | None) -> tuple[Block, ...]:
    """The statements that list the tiles that one tile of a side needs: those that need no mask, then the others."""
    begin, end = ("first", "last") if placed else ("0", f"{OTHER[states.own]}_tiles")

    def found(count: str, wanted: str) -> Loop:
        appended = Statement(count, f"append({states.own_list}, {count}, others, {wanted})")
        return Loop("start", begin, f"{end}, 128", (*_examined(states, 128), appended))

    steps = (
        *((Statement("first, _, _, last", placed.call()),) if placed else ()),
        Statement("full", "0"),
        found("full", "every"),
        Statement("count", "full"),
        found("count", "some & ~every"),
    )
    return (
        *_entered(states, steps),
        states.list_found("tile"),
        *steps,
        Statement("", f"tl.store({states.own_list}, full)"),
        Statement("", f"tl.store({states.own_list} + 1, count)"),
    )


def _entered(states: TileStates, steps: tuple[Block, ...]) -> tuple[Block, ...]:
    """The statements that find a tile's own positions and values, on which the states of other tiles depend."""
    loaded = (*states.telling, *states.bases("tile"), *states.notes(states.own))
    return (*needed(positions.ends(states.own, f"tile * {BLOCKS[states.own]}"), reads((*loaded, *steps))), *loaded)


def _examined(states: TileStates, many: int) -> tuple[Statement, ...]:
    """The statements that compute the states of so many tiles of the other side, from tile `start` on."""
    return (
        Statement("others", f"start + tl.arange(0, {many})"),
        Statement("some, every", f"{states.function}({', '.join(('others', *states.parameters, states.block))})"),
    )
