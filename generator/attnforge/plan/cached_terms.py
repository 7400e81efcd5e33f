"""The terms of a spec as decode kernels read them: rows are pairs of a new token and a head, keys are in pages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..expressions.inputs import Axis, Input
from ..expressions.tree import Node
from . import cached_sums
from .access import CASTS, Access, Site
from .kernel_terms import KernelTerms
from .paged import PAGED
from .positions import FIRST
from .sides import SIDES, Side
from .statements import Block, Statement, serving

_ROWS = "[:, None]"
_KEYS = "[None, :]"


@dataclass(frozen=True)
class CachedTerms(KernelTerms):
    """The terms over a tile of rows and keys; values that differ between heads differ between its rows."""

    def leaf_text(self, node: Node) -> str:
        """Text of a leaf of an expression."""
        if node.op == "input":
            return self.access(node).name
        return f"h{_ROWS}" if node.op == "var" and node.value == "h" else super().leaf_text(node)

    def extent(self, access: Access) -> frozenset[str]:
        """The sides along which an access varies inside a tile."""
        own = "head" in access.input.kinds or cached_sums.reads(access)
        return super().extent(access) | ({"q"} if own else frozenset())

    def reach(self, node: Node) -> frozenset[str]:
        """The sides along which an expression varies inside a tile."""
        return frozenset({"q"}) if node.op == "var" and node.value == "h" else super().reach(node)

    def streams(self, given: Input) -> Side | None:
        """No side: pages are not contiguous, as a descriptor would require."""
        return None

    def points(self, given: Input) -> bool:
        """True: all inputs are read through pointers."""
        return True

    @property
    def taken(self) -> tuple[Input, ...]:
        """The inputs that the kernel takes as they are; of the others it takes running sums."""
        return tuple(given for given in super().taken if not given.scan)

    @property
    def scanned(self) -> tuple[Input, ...]:
        """The inputs whose running sums it takes."""
        return tuple(given for given in self.spec.inputs if given.scan)

    @property
    def narrowed(self) -> tuple[Block, ...]:
        """The statements that restrict a range of keys to the documents of the tile's rows."""
        begins = [access for access in self.accesses if access.input.source]
        return tuple(cached_sums.narrowed(access) for access in begins)

    @property
    def loading(self) -> bool:
        """Whether scores read tensors whose values differ between keys."""
        return any("k" in self.extent(access) for access in self.accesses if access in self.scored)

    def loads(self, site: Site) -> tuple[Statement, ...]:
        """The statements that load accesses at a site: "program", "step", or "mask" in steps."""
        found = list(self.before(site))
        for given in self.scanned if site == "program" else ():
            found += serving(self.readers(given), cached_sums.found(given))
        for access in self.accesses:
            inner = "step" if access in self.scored else "mask"
            if site == ("program" if self.extent(access) <= {"q"} else inner):
                found += serving(self.readers(access), self._read(access))
        return tuple(dict.fromkeys(found))

    def passed(self, read: Iterable[str], known: Iterable[str], more: Iterable[str] = ()) -> tuple[str, ...]:
        """The names that a step reads and that are not `known` to it already, rows among packed new tokens included."""
        return super().passed(read, known, ("own_row", *cached_sums.SHARED, *more))

    @property
    def paged(self) -> bool:
        """True if some input is stored in pages."""
        return any(PAGED.holds(access.input) for access in self.accesses)

    @property
    def packed(self) -> bool:
        """True if some input is laid out as packed new tokens are."""
        return any(PAGED.follows(access.input) for access in self.accesses)

    def _read(self, access: Access) -> Iterator[Statement]:
        """The statements that load an access."""
        given, extent = access.input, self.extent(access)
        if cached_sums.reads(access):
            yield from self._sum(access)
            return
        strides, written = dict(zip(self.strides(given), given.axes, strict=True)), list(access.index)
        offsets, keys = [], False
        for i, (stride, axis) in enumerate(strides.items()):
            if axis.kind == "batch" and PAGED.holds(given):
                continue
            index = written.pop(0) if i in given.written else None
            if axis.kind in ("batch", "head", "kv_head"):
                place = {"batch": "b", "head": f"h{_ROWS}", "kv_head": "kv_h"}[axis.kind]
                offsets.append(f"tl.cast({axis.place(place)}, tl.int64) * {stride}")
                continue
            own = _own(axis, index)
            keys |= own == "k"
            text = self._along(access, axis, index)
            if index is not None and not own:
                place = self.place_name(access, stride)
                yield Statement(place, text)
                text = place
            if axis.kind == "size" or not PAGED.holds(given):
                offsets.append(f"{text}.to(tl.int64) * {stride}")
                continue
            page, slot = f"k_page{_KEYS}", f"k_slot{_KEYS}"
            if not keys:
                page, slot = f"{access.name}_page", f"{access.name}_slot"
                yield PAGED.page(f"{page}, {slot}", text, f"{text} < k_len")
            sequence = next(name for name, other in strides.items() if other.kind == "batch")
            offsets += [f"{page} * {sequence}", f"{slot}.to(tl.int64) * {stride}"]
        mask = f", mask=inside{_KEYS}, other=0" if keys else ""
        value = f"tl.load({' + '.join((f'{given.name}_ptr', *offsets))}{mask}){CASTS[given.dtype]}"
        if given.default is not None:
            value = f"{given.name}_default(h{_ROWS}, Hq) if {given.name}_ptr is None else {value}"
        yield Statement(access.name, value, shape=self._shape(extent))

    def _sum(self, access: Access) -> Iterator[Statement]:
        """The statements that load a running sum, or the beginning of a token's document."""
        (node,) = access.index
        own = node.value if node.op == "var" else None
        place = {"q": f"tl.maximum(q_pos, 0){_ROWS}", "k": f"k_pos{_KEYS}"}.get(str(own), f"{access.name}_place")
        if place == f"{access.name}_place":
            yield Statement(place, f"within({self.index_text(node)}, k_len)")
        value = cached_sums.value(access, place)
        yield Statement(access.name, value, shape=self._shape(self.extent(access)))

    def _along(self, access: Access, axis: Axis, index: Node | None) -> str:
        """Text of the index along an axis of tokens or of a table, clamped to it."""
        own = _own(axis, index)
        if own == "k":
            return f"({axis.place('k_pos')}){_KEYS}" if axis.divided else f"k_pos{_KEYS}"
        if index is None:
            row = "own_row" if PAGED.follows(access.input) else "row"
            return f"({axis.place(row)}){_ROWS}" if axis.divided else f"{row}{_ROWS}"
        if own == "q":
            # a sequence that is shorter than its new tokens has rows before its first position
            return f"tl.maximum(q_pos, 0){_ROWS}"
        count = {"size": str(axis.size), "query": "q_len"}.get(axis.kind, "k_len")
        if axis.kind == "query":
            index = Node("-", (index, FIRST), None, "int")
        return f"within({self.index_text(index)}, {count})"


def _own(axis: Axis, index: Node | None) -> Side | None:
    """The side whose own position is the index along an axis of keys or tokens, if there is one."""
    if axis.kind not in ("key", "token"):
        return None
    if index is None:
        return "k"
    return next((side for side in SIDES if index.op == "var" and index.value == side), None)
