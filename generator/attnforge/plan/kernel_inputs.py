"""Binds the inputs of a spec's terms to the values of a kernel: how each broadcasts, and where it is loaded.

Terms know nothing about tiles. A kernel whose programs own query tiles steps over key tiles, or the other way round; a
value is loaded once per program, once per query head or in each step, as early as its axes allow.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from ..expressions import distances, whole_numbers
from ..expressions.inputs import HEAD_AXES, ROW_AXES, Axis, Input
from ..expressions.tree import Node
from . import positions, slopes, storage
from .access import CASTS, TYPES, Access, Site, entries_along, rows_along
from .kernel_accesses import KernelAccesses
from .running_sums import REST, anchor
from .sides import BLOCKS, OTHER, RANGE, SIDE_OF, Side
from .statements import Block, Branch, Call, Place, Statement, serving, targets


@dataclass(frozen=True)
class KernelInputs(KernelAccesses):
    """The inputs of a spec's terms, as one kernel loads them."""

    def loads(self, site: Site) -> tuple[Statement, ...]:
        """The statements that load accesses at a site; those of "mask" run in steps that apply the mask."""
        found = dict.fromkeys(self.before(site))

        def add(read: Access | Input, *made: Statement) -> None:
            found.update(dict.fromkeys(serving(self.readers(read), made)))

        for access in self.accesses:
            outer = "head" if self._heads and self.per_head(access) else "program"
            if access.form == "value":
                if site == outer:
                    add(access, Statement(access.name, self._value_of(access.input)))
                continue
            base = "head" if self._heads and "head" in access.input.kinds else "program"
            if access.form == "distance":
                add(access, *self.by_distance.loads(access, site == base, site == "step", self.way))
                continue
            whole = self.whole(access.input)
            if site == base and self._steps(whole):
                place = (self._steps if self.streams(whole) else self._place)(whole)
                add(whole, Statement(f"{whole.name}_base", place))
            extent, inner = self.extent(access), "step" if access in self.scored else "mask"
            owned = "tile" if self.whole_head and extent else outer
            if access.input.scan and site == owned:
                place = f"tl.maximum({self.own}_first, 0).to(tl.int64) * {whole.name}_stride_token"
                add(whole, Statement(anchor(whole.name), f"tl.load({self.base(whole)} + {place})"))
            if site == (owned if extent <= {self.own} else inner):
                add(access, *{"row": self._row, "pair": self._pair, "entry": self._entry}[access.form](access))
        return tuple(found)

    @property
    def _heads(self) -> bool:
        """True if a program goes through several query heads."""
        return self.own == "k" and not self.whole_head

    def before(self, site: Site) -> Iterator[Statement]:
        """The statements that precede the accesses of a site."""
        if site == "program":
            yield from self.numbers()
        elif site == "step":
            yield from self.places()

    def places(self) -> Iterator[Statement]:
        """The statement that turns positions into floats with the same distances, if scores contain such distances."""
        own = (distances.as_floats(term.score) for term in self.spec.scores)
        by: list[Place] = [("score", i) for i, node in enumerate(own) if distances.reads_places(node)]
        if by:
            yield from serving(by, (positions.as_floats(self.down),))

    def numbers(self) -> Iterator[Statement]:
        """Turns the call's numbers into values of the kernel language: the interpreter passes Python floats on."""
        kinds: dict[str, str] = {o.keyword: o.type for o in self.spec.options}
        kinds |= {i.name: i.dtype for i in self.spec.inputs if not i.axes}
        for name, kind in kinds.items():
            if kind != "int":
                yield Statement(name, f"tl.cast({name}, {TYPES[kind]})")

    def streams(self, given: Input) -> Side | None:
        """The side along which steps read an input's values of rows through a descriptor, if there is one."""
        given = self.whole(given)
        if self.whole_head or given.dtype == "bool" or not self.reachable(given):
            return None
        accesses = (access for access in self.scored if access.input == given and access.side not in (None, self.own))
        side = next((access.side for access in accesses), None)
        return side if side and storage.seen_axes(given, self.spec)[-1].kind in ROW_AXES else None

    def reachable(self, given: Input) -> bool:
        """True if descriptors can read rows: packed sequences begin anywhere, except in the package's own vectors."""
        return self.whole(given).scan is not None or not storage.of(self.spec).cut

    def points(self, given: Input) -> bool:
        """True if the kernel, or another kernel of these terms, reads an input through a pointer."""
        return any(self.whole(access.input) == given and not self._streamed(access) for access in self.accesses)

    def _streamed(self, access: Access) -> bool:
        return access in self.scored and access.side is not None and access.side == self.streams(access.input)

    def base(self, given: Input) -> str:
        """Text of the pointer to an input's values for this batch entry and head."""
        whole = self.whole(given)
        ptr = f"{whole.name}_ptr" if self.streams(whole) or not self._steps(whole) else f"{whole.name}_base"
        return " + ".join([ptr, *self._ahead(given)])

    def _ahead(self, given: Input) -> list[str]:
        """Texts of the offsets from a tensor's first value to an input's first one for this batch entry and head."""
        whole = self.whole(given)
        base = [f"{whole.name}_base"] if self.streams(whole) and self._steps(whole) else []
        times = f"{given.part} * " if given.part > 1 else ""
        return base + ([f"{times}{whole.name}_stride_part"] if given.part else [])

    def _place(self, given: Input) -> str:
        """Text of the pointer to an input's first value for this batch entry and head."""
        steps = self._steps(given)
        return f"{given.name}_ptr + {steps}" if steps else f"{given.name}_ptr"

    def _steps(self, given: Input) -> str:
        """Text of the offset of an input's values for this batch entry and head; "" for none."""
        index = {"batch": "b", "head": "h", "kv_head": "kv_h" if self.spec.grouped else "h"}
        heads, rows = [], []
        for name, axis in self.strides(given).items():
            if axis.kind in index:
                heads.append(f"tl.cast({axis.place(index[axis.kind])}, tl.int64) * {name}")
            elif axis.kind in ROW_AXES and not axis.divided:
                side: Side = "q" if axis.kind == "query" else "k"
                rows.append(storage.of(self.spec).ahead(side, name, own=given.scan is not None))
        return " + ".join(filter(None, (*heads, *rows)))

    def _value_of(self, given: Input) -> str:
        """An input's only value for this batch entry and head; its default is computed if the call leaves it out."""
        load = f"tl.load({self._place(given)}){CASTS[given.dtype]}"
        if given.default is None:
            return load
        return f"{given.name}_default(h, Hq) if {given.name}_ptr is None else {load}"

    def _row(self, access: Access) -> list[Statement]:
        given, kind = access.input, access.row_axis.kind
        assert access.side
        by_row = ("q_start", "row") if kind == "query" else ("q_first", "q_pos")
        first, row = ("k_start", "k_pos") if access.side == "k" else by_row
        count, block = "q_len" if kind == "query" else "k_len", BLOCKS[access.side]
        whole, rest = self.whole(given), f"{row}, {self.whole(given).name}_stride_{kind}, {count}"

        def load(part: Input) -> str:
            if self._streamed(access):
                return f"load_rows({whole.name}_desc, {' + '.join(self._ahead(part)) or 0}, {first}, {rest})"
            return f"load_vector({self.base(part)}, {rest}){self._seen_as(part)}"

        if not given.scan:
            return [Statement(access.name, load(given), shape=f"[{block}]")]
        value = f"{load(given)} - {anchor(given.name)} + {load(_rest(given))}"
        return [Statement(access.name, value, shape=f"[{block}]")]

    @staticmethod
    def _seen_as(given: Input) -> str:
        """Text of the cast of an input's values of rows after the load."""
        if given.source and given.dtype == "int":
            return ".to(tl.int32, bitcast=True)"  # it is stored among floats
        return CASTS["bool"] if given.dtype == "bool" else ""

    def _pair(self, access: Access) -> list[Statement]:
        return [Statement(access.name, self.pairs_of(access), shape=self._shape({"q", "k"}))]

    def pairs_of(self, access: Access, keys: str = "") -> str:
        """Text of the load of a tile's values of pairs, if not of all then of so many `keys`."""
        given, sides = access.input, []
        for kind, place in (("query", "row"), ("key", "k_pos")):
            axis = next(axis for axis in given.axes if axis.kind == kind)
            count = (keys if kind == "key" else "") or entries_along(axis)
            sides.append(f"{axis.place(place)}, {given.name}_stride_{kind}, {count}")
        down, across = sides if self.down == "q" else sides[::-1]
        return f"load_pairs({self.base(given)}, {down}, {across}){CASTS[given.dtype]}"

    def _entry(self, access: Access) -> list[Statement]:
        given, places = access.input, []
        text = base = self.base(given)
        strides = {axis_name: axis for axis_name, axis in self.strides(given).items() if axis.kind not in HEAD_AXES}
        counts = []
        for (stride, axis), index in zip(strides.items(), self._indices(access), strict=True):
            counts += [rows_along(axis)] if axis.kind != "size" else []
            place = self.place_name(access, stride)
            places.append(Statement(place, f"within({index}, {entries_along(axis)})"))
            text += f" + {place}.to(tl.int64) * {stride}"
        # an empty sequence has no entry to move to
        there = f", mask={counts[0]} > 0, other=0" if counts else ""
        value = f"tl.load({text}{there}){self._seen_as(given) or CASTS[given.dtype]}"
        if given.scan:
            value += f" - {anchor(given.name)} + tl.load({text.replace(base, self.base(_rest(given)), 1)}{there})"
        return [*places, Statement(access.name, value, shape=self._shape(self.extent(access)))]

    def _shape(self, sides: Collection[str]) -> str:
        """The shape of a value that varies along some sides of a tile of scores."""
        down, across = ("BLOCK_M", "BLOCK_N") if self.down == "q" else ("BLOCK_N", "BLOCK_M")
        sizes = (down if self.down in sides else "1", across if {"q", "k"} - {self.down} & set(sides) else "1")
        return f"[{', '.join(sizes)}]" if sides else ""

    def _indices(self, access: Access) -> Iterator[str]:
        """The indices of an input's axes other than batch and heads, not yet clamped."""
        written = list(access.index)
        for i, axis in enumerate(access.input.axes):
            if axis.kind in HEAD_AXES:
                continue
            if i not in access.input.written:
                place = "row" if axis.kind == "query" else "k_pos"
                own = axis.place(place)
                yield (f"({own})" if axis.divided else own) + self.way(SIDE_OF[axis.kind])
                continue
            node = written.pop(0)
            if axis.kind == "query":
                node = Node("-", (node, positions.FIRST), None, "int")
            yield self.index_text(node)

    def index_text(self, node: Node) -> str:
        """Text of an index; distances stay integers, as floats would be a second copy of them."""
        return self.text(whole_numbers.shortened(self.beside_tiles(node), self.limits))

    def place_name(self, access: Access, stride: str) -> str:
        """The name of an access's index along the axis of a stride."""
        return f"{access.name}_{stride.split('_stride_')[-1]}"

    def entry(self, access: Access) -> str:
        """Text of the flat index of a looked-up entry among all entries of its tables."""
        places = [
            (self.place_name(access, stride), axis.size)
            for stride, axis in self.strides(access.input).items()
            if axis.kind == "size"
        ]
        text = places[0][0]
        for place, size in places[1:]:
            text = f"({text}) * {size} + {place}" if " " in text else f"{text} * {size} + {place}"
        return text

    @property
    def narrowed(self) -> tuple[Block, ...]:
        """The statements that restrict a range of tiles: to documents, and to where weights differ from 0."""
        other, found = OTHER[self.own], list[Block]()
        own = (f"{self.own}_first", f"{self.own}_last", positions.of_first(other))
        for given in (one for one in self.spec.inputs if one.scan):
            place = (self.base(given), f"{given.name}_stride_part", f"{given.name}_stride_token")
            found.append(Call(", ".join(RANGE), "keep_documents", (*place, *own, *RANGE, BLOCKS[other])))
        if slopes.falling(self.spec):
            horizon = "tl.load(horizons_ptr + b * Hq + h)"
            call = Call(", ".join(RANGE), "keep_near", (horizon, *own, *RANGE, BLOCKS[other]))
            found.append(Branch("horizons_ptr is not None", (call,)))
        return tuple(found)

    @cached_property
    def arguments(self) -> tuple[str, ...]:
        """The names of the parameters for the terms: options, scalars, pointers and strides."""
        names = [o.keyword for o in self.spec.options]
        for given in self.taken:
            ways = (f"{given.name}_desc", f"{given.name}_ptr")
            names += [*ways, *self.strides(given)] if given.axes else [given.name]
            names += [f"{given.name}_stride_part"] if given.scan else []
        return (*names, *(("seed", "drop_below", "rescale") if self.spec.dropout else ()))

    @property
    def taken(self) -> tuple[Input, ...]:
        """The inputs that the kernel takes, as they are or as the host has prepared them."""
        return tuple(given for given in self.spec.inputs if not given.source)

    def strides(self, given: Input) -> dict[str, Axis]:
        """The names of an input's strides, and their axes."""
        given = self.whole(given)
        axes = storage.seen_axes(given, self.spec)
        kinds = [axis.kind for axis in axes]
        found = {}
        for i, axis in enumerate(axes):
            if axis.kind == "distance":
                continue  # neighbours
            word = "entry" if axis.kind == "size" else axis.kind
            many = str(kinds[:i].count(axis.kind)) if kinds.count(axis.kind) > 1 else ""
            found[f"{given.name}_stride_{word}{many}"] = axis
        return found

    def passed(self, read: Iterable[str], known: Iterable[str], more: Iterable[str] = ()) -> tuple[str, ...]:
        """The names, out of the kernel's and `more`, that a step reads and that are not `known` to it already."""
        read = set(read) - set(known)
        sites: tuple[Site, ...] = ("program", "head", "tile")
        outer = [name for site in sites for name in targets(self.loads(site))]
        places = ("b", "h", "kv_h", "row", "k_start", "q_pos", "k_pos", "q_len", "k_len", positions.BEGIN, "drawn")
        candidates = (*places, *outer, *self.arguments, *more)
        return tuple(name for name in dict.fromkeys(candidates) if name in read)


def _rest(given: Input) -> Input:
    """The remainder of a running sum that rounding left."""
    return dataclasses.replace(given, source=given.name, part=REST, scan=None)
