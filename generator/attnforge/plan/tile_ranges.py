"""The tiles that a kernel's programs visit: the spans of the mask, as text in terms of the other side's tile."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass

from ..expressions import whole_numbers
from ..expressions.tree import Node
from ..language.spec import Spec
from ..printing import printers
from ..tiling import ranges
from ..tiling.ranges import Span
from .kernel_inputs import KernelInputs
from .positions import BEGIN, FIRST
from .sides import RANGE, Side
from .statements import Statement, names

_POSITIONS = ("q_first", "q_last", "k_first", "k_last", "q_len", "k_len", BEGIN, "b", "h", "kv_h")


@dataclass(frozen=True)
class Bounds:
    """The ends of one span, in rows: of the part that is needed, and of the part therein that needs no mask, if any."""

    lo: str
    hi: str
    full: tuple[str, str] | None


@dataclass(frozen=True)
class TileRange:
    """The tiles to visit, for the function that computes their range and for the loops over it."""

    function: str  # key_tiles or query_tiles
    parameters: tuple[str, ...]  # without the tile's size
    block: str
    ends: tuple[Bounds, ...]
    full: bool  # whether some tile may be full
    left: bool  # whether mixed tiles may precede the full ones
    narrowed: bool  # whether tensors of the call determine which tiles kernels visit
    exact: bool  # whether the range of a single position holds only what that position sees
    plain: tuple[str, ...] | None  # the parameters that a call gives, if all are plain numbers; else None
    after: bool  # whether ranges may have to begin after a previous span: some side has several

    @property
    def whole(self) -> bool:
        """Whether all tiles are visited whatever the call gives, and all within the sequence are full."""
        return not self.narrowed and self.ends == (Bounds("0", self.count, ("0", self.count)),)

    @property
    def placed(self) -> bool:
        """Whether positions, lengths and plain numbers of the call limit the tiles to visit."""
        limited = all((ends.lo, ends.hi) != ("0", self.count) for ends in self.ends)
        return len(self.ends) == 1 and limited and self.plain == ()

    def call(self, span: str = "") -> str:
        """Text that computes the range: that of one `span` if there are several."""
        arguments = (*((span,) if len(self.ends) > 1 else ()), *self.parameters, self.block)
        return f"{self.function}({', '.join(arguments)})"

    @property
    def arguments(self) -> tuple[str, ...]:
        """The function's parameters before the tile size."""
        return (*(("span",) if len(self.ends) > 1 else ()), *self.parameters)

    @property
    def body(self) -> tuple[Statement, ...]:
        """The function's statements."""
        found: list[Statement] = []
        for n, ends in enumerate(self.ends):
            full = ends.full or (ends.hi, ends.hi)
            after = (f"last{n - 1}" if n else "0",) if self.after else ()
            # the trailing comma keeps each argument on a line of its own
            call = f"tile_range({', '.join((ends.lo, ends.hi, *full, *after, self.block))},)"
            if len(self.ends) == 1:
                return (*found, Statement("", f"return {call}"))
            found.append(Statement(", ".join(f"{name}{n}" for name in RANGE), call))
        for name in RANGE:
            *others, last = (f"{name}{n}" for n in range(len(self.ends)))
            choice = "".join(f"tl.where(span == {n}, {other}, " for n, other in enumerate(others))
            found.append(Statement(name, f"{choice}{last}{')' * len(others)}"))
        return (*found, Statement("", f"return {', '.join(RANGE)}"))

    @property
    def count(self) -> str:
        """The name of the number of rows to visit."""
        return "k_len" if self.block == "BLOCK_N" else "q_len"


def mask(spec: Spec) -> Node | None:
    """All masks of a spec, joined into one by `and`."""
    keeps = [m.keep for m in spec.masks]
    return functools.reduce(lambda a, b: Node("and", (a, b), type="bool"), keeps) if keeps else None


def compared(spec: Spec) -> frozenset[str]:
    """The inputs that a mask compares with a position by `<`, `<=`, `>` or `>=`."""
    nodes = (node for term in spec.masks for node in term.keep.walk() if node.op in ("<", "<=", ">", ">="))
    beside = (side for node in nodes for side, other in (node.args, node.args[::-1]) if _places(other))
    return frozenset(str(part.value) for side in beside for part in side.walk() if part.op == "input")


def _places(node: Node) -> bool:
    """Whether a number depends on a position other than through the index of an input."""
    return node.value in ("q", "k") if node.op in ("var", "input") else any(map(_places, node.args))


def spans(spec: Spec, along: Side) -> tuple[Span, ...]:
    """The spans of a spec's mask; without a mask everything is full."""
    whole = mask(spec)
    if whole is None:
        return (Span(None, None, None, None, True),)
    return ranges.spans(whole, along, {i.name: i.kinds for i in spec.inputs}, least_values(spec))


def least_values(spec: Spec) -> dict[str, float]:
    """The minimum of each of the call's numbers that has one."""
    scalars = {o.keyword: o.minimum for o in spec.options} | {i.name: i.minimum for i in spec.inputs if not i.axes}
    return {name: low for name, low in scalars.items() if low is not None}


def both(spec: Spec, *, key_states: bool = False, query_states: bool = False) -> tuple[TileRange, TileRange]:
    """The ranges of keys and of queries; the flags say whether kernels know the states of each side's tiles."""
    keys, queries = build(spec, "k", told=key_states), build(spec, "q", told=query_states)
    after = any(len(tiles.ends) > 1 for tiles in (keys, queries))
    return dataclasses.replace(keys, after=after), dataclasses.replace(queries, after=after)


def build(spec: Spec, along: Side, *, told: bool = False) -> TileRange:
    """The range of keys that programs of query tiles visit, or of queries that programs of key tiles visit.

    If kernels are `told` the states of tiles, several spans become one of everything, and any tile may be full.
    """
    found = spans(spec, along)
    if told and len(found) > 1:
        found = (Span(None, None, None, None, False),)
    ends = tuple(_bounds(span, along, spec) for span in found)
    named = set(names(*(text for e in ends for text in (e.lo, e.hi, *(e.full or ())))))
    tile = ("q_first", "q_last") if along == "k" else ("k_first", "k_last")
    accesses = KernelInputs(spec, "q").accesses
    given = [o.keyword for o in spec.options] + [i.name for i in spec.inputs] + [access.name for access in accesses]
    candidates = dict.fromkeys([*tile, "q_len", "k_len", BEGIN, "b", "h", "kv_h", *given])
    parameters = tuple(name for name in candidates if name in named)
    full = told or any(e.full for e in ends)
    narrowed = told or any(given.scan for given in spec.inputs)
    left = narrowed or len(found) > 1 or any(span.lo is not None or span.full_lo is not None for span in found)
    function, block = ("key_tiles", "BLOCK_N") if along == "k" else ("query_tiles", "BLOCK_M")
    exact, plain = all(span.exact for span in found), _plain(spec, parameters)
    return TileRange(function, parameters, block, ends, full, left, narrowed, exact, plain, False)


def _plain(spec: Spec, parameters: tuple[str, ...]) -> tuple[str, ...] | None:
    """The parameters given by a call, if all are options or integers with one value per batch entry or head."""
    single = {i.name for i in spec.inputs if i.dtype == "int" and {"batch", "head", "kv_head"}.issuperset(i.kinds)}
    given = tuple(name for name in parameters if name not in _POSITIONS)
    return given if single | {o.keyword for o in spec.options} >= set(given) else None


def _bounds(span: Span, along: str, spec: Spec) -> Bounds:
    return Bounds(
        _end(span.lo, "lo", along, spec),
        _end(span.hi, "hi", along, spec),
        (_end(span.full_lo, "lo", along, spec), _end(span.full_hi, "hi", along, spec)) if span.can_be_full else None,
    )


def _end(node: Node | None, kind: str, along: str, spec: Spec) -> str:
    """An end of a span, clamped to the rows that exist: keys from 0 to k_len, queries from row 0 to q_len."""
    count = "k_len" if along == "k" else "q_len"
    if node is None:
        return "0" if kind == "lo" else count
    inputs = KernelInputs(spec, "q")
    if along == "q":
        node = Node("-", (node, FIRST), None, "int")
    text = inputs.text(node)
    if text == "0":
        return text
    if not whole_numbers.Ranges(inputs.limits).within(node, whole_numbers.SHORT):
        return f"tl.minimum(tl.maximum({text}, 0), {count}).to(tl.int32)"
    return f"tl.maximum({text}, 0)" if kind == "lo" else text if text == count else f"tl.minimum({text}, {count})"


def helpers(spec: Spec) -> tuple[str, ...]:
    """The functions that the text of the ends calls."""
    found = [span for along in spec.algorithm.walks for span in spans(spec, along)]
    nodes = [n for span in found for n in (span.lo, span.hi, span.full_lo, span.full_hi) if n is not None]
    return printers.triton_helpers(nodes)
