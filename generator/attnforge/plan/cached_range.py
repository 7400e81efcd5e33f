"""Which keys of a cache new tokens see: of a tile, for kernels; at most, as far as a call's numbers tell, for hosts."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ..expressions.linear_forms import Linear, atom, linear, variable
from ..expressions.tree import Node
from ..language.spec import Spec
from ..printing import printers
from . import tile_ranges
from .statements import Block, Loop, Statement, names
from .tile_ranges import TileRange

SPAN = ("lo", "hi", "full_lo", "full_hi")
_EVERYTHING = "2**28"  # no sequence is longer


@dataclass(frozen=True)
class KeySpan:
    """The function that tells which keys a tile of rows sees, and which of them need no mask."""

    tiles: TileRange
    by_row: frozenset[str]  # names of which each row has a value
    function = "key_span"

    @property
    def parameters(self) -> tuple[str, ...]:
        """What it takes."""
        return (*(("span",) if len(self.tiles.ends) > 1 else ()), *self.tiles.parameters)

    @property
    def call(self) -> str:
        """Text that calls it."""
        return f"{self.function}({', '.join('h[:, None]' if name == 'h' else name for name in self.parameters)})"

    @property
    def body(self) -> tuple[Statement, ...]:
        """Its statements; a span begins where the one before it ends, at the earliest."""
        found: list[Statement] = []
        several = len(self.tiles.ends) > 1
        for n, ends in enumerate(self.tiles.ends):
            number = str(n) if several else ""
            lo, hi, full_lo, full_hi = (f"{name}{number}" for name in SPAN)
            first = self._over_rows("min", ends.lo)
            found.append(Statement(lo, f"tl.maximum({first}, hi{n - 1})" if n else first))
            found.append(Statement(hi, f"tl.maximum({self._over_rows('max', ends.hi)}, {lo})"))
            if ends.full:
                full = self._over_rows("max", ends.full[0]), self._over_rows("min", ends.full[1])
                found.append(Statement(full_lo, f"tl.maximum({full[0]}, {lo})"))
                found.append(Statement(full_hi, f"tl.minimum({full[1]}, {hi})"))
            else:
                found.append(Statement(f"{full_lo}, {full_hi}", f"{hi}, {lo}"))
        for name in SPAN if several else ():
            *others, last = (f"{name}{n}" for n in range(len(self.tiles.ends)))
            choice = "".join(f"tl.where(span == {n}, {other}, " for n, other in enumerate(others))
            found.append(Statement(name, f"{choice}{last}{')' * len(others)}"))
        return (*found, Statement("", f"return {', '.join(SPAN)}"))

    def visit(self, *blocks: Block) -> tuple[Block, ...]:
        """The statements that go with `blocks` through the tiles of a split that the rows see, range by range."""
        inside: tuple[Block, ...] = (
            Statement(", ".join(SPAN), self.call),
            Statement("begin, end", "tl.maximum(lo, split_begin), tl.minimum(hi, split_begin + split_size)"),
            Statement("first", "begin // BLOCK_N"),
            Statement("last", "tl.where(begin < end, tl.cdiv(end, BLOCK_N), first)"),
            *blocks,
        )
        count = len(self.tiles.ends)
        return (Loop("span", "0", str(count), inside),) if count > 1 else inside

    def _over_rows(self, extreme: str, text: str) -> str:
        """Text of an end that holds for all rows of the tile."""
        return f"tl.{extreme}({text})" if names(text) & self.by_row else text


@dataclass(frozen=True)
class CachedRange:
    """The host's texts of how many keys before its own position a token may see, and of how many first keys beside.

    `read` are the keys that it does read, over `position` and `k_len`: ends of ranges, as far as numbers tell them.
    """

    reach: str = _EVERYTHING
    first_keys: str = "0"
    numbers: tuple[str, ...] = ()  # the call's numbers that they read
    read: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    reading: tuple[str, ...] = field(default=(), compare=False)  # the call's numbers that those read


def build(spec: Spec) -> CachedRange:
    """The range of a spec's mask; everything where tensors or nothing at all bound it."""
    scalars = {o.keyword for o in spec.options} | {i.name for i in spec.inputs if not i.axes}
    read = tuple(_read(spec, scalars))
    named = names(*(text for ends in read for text in ends))
    reading = tuple(name for name in _names(spec) if name in named)
    return dataclasses.replace(_bounds(spec, scalars), read=read, reading=reading)


def _bounds(spec: Spec, scalars: set[str]) -> CachedRange:
    reaches, heads = list[Linear](), list[Linear]()
    for span in tile_ranges.spans(spec, "k"):
        reach = _first(span.lo, "max", lambda form: _known(atom(variable("q_first")) - form, scalars))
        head = _first(span.hi, "min", lambda form: _known(form, scalars))
        if reach is not None:
            reaches.append(reach)
        elif head is not None:
            heads.append(head)
        else:
            return CachedRange()
    read = {str(part.value) for form in (*reaches, *heads) for part, _ in form.terms}
    return CachedRange(_text(reaches), _text(heads), tuple(name for name in _names(spec) if name in read))


def _read(spec: Spec, scalars: set[str]) -> Iterable[tuple[str, str]]:
    """Text of the ranges of keys that the program of a row loads for it, or of less."""
    for span in tile_ranges.spans(spec, "k"):
        lo = Node("num", (), 0, "int") if span.lo is None else _of_row(span.lo, "min", scalars)
        hi = Node("var", (), "k_len", "int") if span.hi is None else _of_row(span.hi, "max", scalars)
        if lo and hi:
            yield printers.torch(lo, lambda node: str(node.value)), printers.torch(hi, lambda node: str(node.value))


def _of_row(end: Node, extreme: str, scalars: set[str]) -> Node | None:
    """An end for a tile of one row, if numbers tell it; of the `extreme` of several ends, that of those they tell."""
    if end.op == "var" and end.value in ("q_first", "q_last"):
        return Node("option", (), "position", "int")
    if end.op in ("option", "input"):
        return Node("option", (), end.value, end.type) if end.value in scalars and not end.args else None
    if end.op in ("var", "local"):
        return end if end.value == "k_len" else None
    args = [_of_row(arg, extreme if end.op in ("min", "max") else "", scalars) for arg in end.args]
    known = [arg for arg in args if arg]
    if end.op == extreme and known:
        return functools.reduce(lambda a, b: dataclasses.replace(end, args=(a, b)), known)
    return dataclasses.replace(end, args=tuple(known)) if len(known) == len(args) else None


def _known(form: Linear, scalars: set[str]) -> Linear | None:
    """The form, or more, if numbers of the call alone tell it; what a quotient rounds off is less than its divisor."""
    for part, factor in form.terms:
        divisor = part.args[1].value if part.op == "//" and part.args[1].op == "num" else None
        if isinstance(divisor, int) and divisor > 0 and factor < 0 and factor % divisor == 0:
            least = linear(part.args[0]) + (1 - divisor)
            form = form.without(part) + least * (factor // divisor)
    host = all(part.type == "int" and str(part.value) in scalars and not part.args for part, _ in form.terms)
    return form if host else None


def _first(end: Node | None, extreme: str, find: Callable[[Linear], Linear | None]) -> Linear | None:
    """What is found of an end, or of one of those that it is the extreme of."""
    if end is None:
        return None
    found = (find(linear(x)) for x in (end.args if end.op == extreme else (end,)))
    return next((form for form in found if form is not None), None)


def _names(spec: Spec) -> Iterable[str]:
    return (*(o.keyword for o in spec.options), *(i.name for i in spec.inputs))


def _text(forms: list[Linear]) -> str:
    least = max([0, *(form.constant for form in forms if not form.terms)])
    texts = [printers.torch(form.node(), lambda node: str(node.value)) for form in forms if form.terms]
    return f"max({', '.join((str(least), *dict.fromkeys(texts)))})" if texts else str(least)
