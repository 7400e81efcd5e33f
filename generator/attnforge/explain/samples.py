"""Stand-ins for what only a call gives, so that every mask can be drawn: each is a rule in the expression language.

A rule replaces the input in the mask's expression, and reads numbers that a reader may change: the number of documents
that the tokens belong to, the seed of random bits, the length of a prefix. All rules are for batch entry 0 and, unless
another one is asked for, head 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..expressions.evaluation import evaluate
from ..expressions.folding import LARGEST
from ..expressions.inputs import HEAD_AXES, Axis, Input, RuntimeOption
from ..expressions.tree import Node
from ..language.spec import Spec
from ..plan import tile_ranges
from ..plan.sides import Side
from ..plan.tile_states import TileStates
from ..printing.spec_text import source
from ..tiling import intervals
from ..tiling.ranges import Span

_PRIME = 67108859  # the largest below 2**26: squares of its remainders are exact in a double
_SIDES: dict[str, Side] = {"query": "q", "key": "k"}


@dataclass(frozen=True)
class Parameter:
    """A number that a sample depends on; `value` is an expression over q_len and k_len."""

    name: str
    label: str
    value: Node
    minimum: float | None = None
    maximum: float | None = None


@dataclass(frozen=True)
class Note:
    """A value whose extremes kernels record for each tile, as `NAME_least` and `NAME_most`."""

    name: str
    steps: dict[Side, int]  # how many positions of a side share one value; sides without effect on it are absent
    value: Node  # an integer expression over q and k


@dataclass(frozen=True)
class Told:
    """Conditions for any pair, and for all pairs, of a tile to be visible, over notes and the tile's ends."""

    notes: tuple[Note, ...]
    some: Node
    every: Node
    ranged: bool  # whether kernels visit one range of tiles; otherwise they skip each tile without visible pairs


@dataclass(frozen=True)
class Sample:
    """A mask and its spans with all inputs replaced: over positions, lengths and the parameters."""

    mask: Node
    spans: tuple[Span, ...]  # of keys
    back: tuple[Span, ...] | None  # of queries, if some kernels loop over these and others do not
    known: Told | None
    parameters: tuple[Parameter, ...]
    notes: tuple[str, ...]  # descriptions of the samples for people; `{name}` stands for the parameter's value
    places: tuple[str, ...] = ()  # the heads and the batch entry that it is for

    def numbers(self, q_len: int, k_len: int) -> dict[str, float]:
        """The values of the parameters for given numbers of queries and keys."""
        lengths = {"q_len": q_len, "k_len": k_len}
        return {p.name: evaluate(p.value, lengths) for p in self.parameters}

    def told(self, q_len: int, k_len: int) -> tuple[str, ...]:
        """The notes for given numbers of queries and keys."""
        return tuple(note.format_map(self.numbers(q_len, k_len)) for note in self.notes)


@dataclass(frozen=True)
class Given:
    """A reader's choice: a query head, and numbers by name in place of those that a sample would take."""

    head: int = 0
    numbers: Mapping[str, float] = field(default_factory=dict)


def take(spec: Spec, given: Given | None = None) -> Sample:
    """The sample of a spec's mask."""
    whole = tile_ranges.mask(spec) or Node("num", (), True, "bool")
    taken = _Taken(spec, given or Given())
    mask = taken.replaced(whole)
    spans = tuple(taken.span(span) for span in tile_ranges.spans(spec, "k"))
    both = len(spec.algorithm.walks) > 1
    back = tuple(taken.span(span) for span in tile_ranges.spans(spec, "q")) if both else None
    told = taken.told(TileStates(spec, "q"), whole)
    if spec.packed:
        taken.notes["one of the packed sequences"] = None
    if taken.places:
        taken.notes[" and ".join(dict.fromkeys(taken.places))] = None
    parameters, places = tuple(taken.parameters.values()), tuple(taken.places)
    return Sample(mask, spans, back, told, parameters, tuple(taken.notes), places)


def _value(name: str, value: Node) -> str:
    """A note of a parameter's rule and value."""
    return f"{name} = {source(value)}" + ("" if value.op == "num" else f" = {{{_apart(name)}}}")


def _apart(name: str) -> str:
    """The name of a number, marked if ends or extremes of tiles have such names."""
    return f"#{name}" if re.fullmatch(r"[qk]_(first|last)|\w+_(least|most)", name) else name


def _int(value: int) -> Node:
    return Node("num", (), value, "int")


def _float(value: float) -> Node:
    sign = Node("num", (), abs(value), "float")
    return sign if value >= 0 else Node("neg", (sign,), None, "float")


def _within(value: Node, given: Input | RuntimeOption) -> Node:
    """The value, or the limit that it lies beyond."""
    for op, limit in (("max", given.minimum), ("min", given.maximum)):
        if limit is not None:
            end = _int(int(limit)) if value.type == "int" else _float(float(limit))
            value = Node(op, (value, end), None, value.type)
    return value


def _var(name: str) -> Node:
    return Node("var", (), name, "int")


def _of(op: str, *args: Node | int, kind: str = "int") -> Node:
    nodes = tuple(_int(arg) if isinstance(arg, int) else arg for arg in args)
    return Node(op, nodes, None, "float" if kind == "float" else "bool" if kind == "bool" else "int")


_SHIFT = _of("-", _var("k_len"), _var("q_len"))  # the position of the first query


class _Taken:
    def __init__(self, spec: Spec, given: Given) -> None:
        self.given = given
        self.inputs = {given.name: given for given in spec.inputs}
        self.bounds = tile_ranges.compared(spec)
        self.options = {option.keyword: option for option in spec.options}
        self.parameters: dict[str, Parameter] = {}
        self.notes: dict[str, None] = {}
        self.places: list[str] = []

    def replaced(self, node: Node) -> Node:
        """The expression with inputs replaced by their rules, and everything else that a call gives by parameters."""
        if node.op == "input":
            return self._input(self.inputs[str(node.value)], [self.replaced(arg) for arg in node.args])
        if node.op == "option":
            return self._option(self.options[str(node.value)])
        if node.op == "var" and node.value in ("b", "h", "kv_h"):
            self._place(str(node.value))
            what = {"b": "batch entry", "h": "query head", "kv_h": "key head"}[str(node.value)]
            value = _int(self.given.head) if node.value == "h" else self._asked(str(node.value), _int(0))
            return self._number(str(node.value), f"{what}, {node.value}", value, 0)
        return Node(node.op, tuple(map(self.replaced, node.args)), node.value, node.type)

    def span(self, span: Span) -> Span:
        """The span with its ends replaced."""
        lo, hi, full_lo, full_hi = (
            end and self.replaced(end) for end in (span.lo, span.hi, span.full_lo, span.full_hi)
        )
        return Span(lo, hi, full_lo, full_hi, span.can_be_full)

    def told(self, states: TileStates, whole: Node) -> Told | None:
        """The kernels' conditions on tiles, if the mask reads anything that decides them."""
        if not states.any:
            return None
        found = intervals.condition(whole, states.known)
        notes = []
        for access in states.tellers:
            value = self.replaced(Node("input", access.index, access.input.name, access.input.dtype))
            number = _of("where", value, 1, 0) if value.type == "bool" else value
            extent = states.inputs.extent(access)
            steps: dict[Side, int] = {side: 1 for side in _SIDES.values() if side in extent}
            if access in states.blocks:
                steps = {_SIDES[axis.kind]: int(axis.per) for axis in access.input.axes if axis.kind in _SIDES}
            notes.append(Note(access.name, steps, number))
        return Told(tuple(notes), self.replaced(found.most), self.replaced(found.least), states.ranged)

    def _place(self, name: str) -> None:
        if name in ("h", "head"):
            self.places.append(f"head {self.given.head}")
            return
        side, number = ("batch entry", "b") if name in ("b", "batch") else ("key head", "kv_h")
        self.places.append(f"{side} {source(self._asked(number, _int(0)))}")

    def _asked(self, name: str, value: Node) -> Node:
        """The number that the reader asked for, or else the sample's."""
        asked = self.given.numbers.get(name.lstrip("#"))
        return value if asked is None else _int(int(asked)) if value.type == "int" else _float(asked)

    def _number(
        self, name: str, label: str, value: Node, least: float | None = None, most: float | None = None
    ) -> Node:
        name = _apart(name)
        self.parameters.setdefault(name, Parameter(name, label, value, least, most))
        return Node("local", (), name, value.type)

    def _option(self, option: RuntimeOption) -> Node:
        value = _of("//", _var("k_len"), 8) if option.type == "int" else Node("num", (), 1.0, "float")
        value = self._asked(option.keyword, _within(value, option))
        self.notes[_value(option.keyword, value)] = None
        return self._number(option.keyword, option.keyword, value, option.minimum, option.maximum)

    def _input(self, given: Input, written: list[Node]) -> Node:
        """The rule of an input, at the places that the expression reads."""
        if given.value is not None:
            return self._scalar(given)
        places: list[tuple[Axis, Node]] = []
        for i, axis in enumerate(given.axes):
            if axis.kind in HEAD_AXES:
                self._place(axis.kind)
            else:
                places.append((axis, self._written(axis, written.pop(0)) if i in given.written else self._own(axis)))
        if not places:
            return self._scalar(given)
        if given.scan:
            self.notes[f"{given.name}: falls by 1/64 from token to token"] = None
            return Node("/", (_of("neg", _of("+", places[0][1], 1)), _int(64)), None, "float")
        if given.dtype == "bool" and given.rows == ("query", "query"):
            return self._tree(given, *(place for _, place in places))
        if given.dtype == "bool":
            return self._bits(given, [place for _, place in places])
        plain = given.minimum is None and given.maximum is None and given.name not in self.bounds
        if given.dtype == "int" and plain and len(places) == 1 and places[0][0].kind != "size":
            return self._documents(given, *places[0])
        return self._numbers(given, [place for _, place in places])

    @staticmethod
    def _own(axis: Axis) -> Node:
        """The entry that a query or a key reads implicitly."""
        place = _var("k") if axis.kind == "key" else _of("-", _var("q"), _SHIFT)
        return _of("//", place, int(axis.per)) if axis.divided else place

    @staticmethod
    def _written(axis: Axis, index: Node) -> Node:
        """The entry at an explicit index, which is clamped; along an axis of queries or keys it is a position."""
        if axis.kind == "token" and index.op == "var":
            return index
        place = _of("-", index, _SHIFT) if axis.kind == "query" else index
        count = _int(int(axis.size)) if axis.kind == "size" else _var("q_len" if axis.kind == "query" else "k_len")
        return _of("min", _of("max", place, 0), _of("-", count, 1))

    def _scalar(self, given: Input) -> Node:
        if given.dtype == "bool":
            value = self._asked(given.name, _int(given.value is not False))
            self.notes[f"{given.name} is {'true' if value.value else 'false'}"] = None
            return _of("!=", self._number(given.name, f"{given.name}, 1 or 0", value, 0, 1), 0, kind="bool")
        if given.value is not None:
            value = _int(int(given.value)) if given.dtype == "int" else _float(given.value)
        else:
            value = _of("//", _var("k_len"), 4) if given.dtype == "int" else _float(0.5)
        value = self._asked(given.name, _within(value, given))
        self.notes[_value(given.name, value)] = None
        most = LARGEST if given.dtype == "int" else None
        low = given.minimum if given.minimum is not None or most is None else -most
        return self._number(given.name, given.name, value, low, most if given.maximum is None else given.maximum)

    def _numbers(self, given: Input, places: list[Node]) -> Node:
        """Random numbers between the limits; if one is missing, close to the other, or up to the number of keys."""
        if given.dtype == "int" and given.name in self.bounds and given.maximum is None:
            least = int(given.minimum or 0)
            self.notes[f"{given.name}: random numbers from {least} to k_len"] = None
            number = _of("%", self._random(given, places), _of("+", _var("k_len"), 1))
            return _of("max", number, least) if least else number
        width = 1 if given.dtype == "float" else 2
        low = given.minimum if given.minimum is not None else min(0, (given.maximum or width) - width)
        high = given.maximum if given.maximum is not None else low + width
        self.notes[f"{given.name}: random numbers from {low} to {high}"] = None
        number = self._random(given, places)
        if given.dtype == "int":
            number = _of("%", number, int(high - low) + 1)
            return _of("+", number, int(low)) if low else number
        share = Node("/", (number, _int(_PRIME)), None, "float")
        if (low, high) == (0, 1):
            return share
        return _of("+", _of("*", share, _float(high - low), kind="float"), _float(low), kind="float")

    def _documents(self, given: Input, axis: Axis, entry: Node) -> Node:
        """Documents of equal length, one after the other; a row belongs to the document at its position."""
        asked = self._asked("#documents", _int(5))
        count = self._number("#documents", "documents", asked, 1, LARGEST)
        self.notes[f"{given.name}: {source(asked)} documents of equal length"] = None
        position = entry if axis.per == 1 else _of("*", entry, int(axis.per))
        if axis.kind == "query":
            position = _of("+", position, _SHIFT)
        return _of("//", _of("*", position, count), _var("k_len"))

    def _tree(self, given: Input, row: Node, column: Node) -> Node:
        """A tree of tokens as in speculative decoding: interleaved branches from one root."""
        asked = self._asked("#branches", _int(3))
        count = self._number("#branches", "branches", asked, 1, LARGEST)
        self.notes[f"{given.name}: a tree of {source(asked)} branches"] = None
        behind = _of("==", _of("%", _of("-", row, column), count), 0, kind="bool")
        on_way = _of("or", _of("==", column, 0, kind="bool"), behind, kind="bool")
        return _of("and", _of("<=", column, row, kind="bool"), on_way, kind="bool")

    def _bits(self, given: Input, places: list[Node]) -> Node:
        asked = self._asked("#share", _int(50))
        share = self._number("#share", "true in 100 bits", asked, 0, 100)
        self.notes[f"{given.name}: random bits, {source(asked)} of 100 true"] = None
        return _of("<", _of("%", self._random(given, places), 100), share, kind="bool")

    def _random(self, given: Input, places: list[Node]) -> Node:
        """A number from 0 to a prime less 1 that looks random from place to place; all its steps stay below 2**53."""
        seed = self._number("#seed", "seed of the random numbers", self._asked("#seed", _int(0)), 0, 1 << 16)
        # inputs are told apart by their order
        mixed = _of("+", _of("*", seed, 1299709), 15485863 + 32452843 * (1 + list(self.inputs).index(given.name)))
        for turn in range(3):
            for i, place in enumerate(places):
                mixed = _of("+", mixed, _of("*", place, (7919, 104729, 611953)[(i + turn) % 3]))
            mixed = _of("%", mixed, _PRIME)
            if turn < 2:
                mixed = _of("**", mixed, 2)
        return mixed
