"""Tables with entries for each query, or each key, of which most tiles of scores read a single one.

An example are scores by clamped distance: far from the diagonal all keys of a tile have the same distance. Such a tile
loads one value for each row, and adds one sum for each row to the gradient. In the other tiles, if a row reads each
entry for one score at most, apart from the first and the last one, these scores need no sums.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from ..expressions.build import literal
from ..expressions.linear_forms import linear, variable
from ..expressions.tree import SCORE, Node
from ..printing import printers
from ..tiling import intervals
from ..tiling.intervals import Ends
from . import programs
from .access import CASTS, Access, rows_along
from .kernel_terms import KernelTerms, Sum
from .sides import BLOCKS, OTHER, SIDES, Side
from .statements import Block, Branch, Bundle, Call, Comment, Statement, needed, reads, targets

_LOCAL = {(side, end): Node("local", (), f"{side}_{end}", "int") for side in SIDES for end in ("first", "last")}
_WHY = "in most tiles all scores of a row read the same entry"
_IN_LSE = "if all scores of a row read the same entry, as in most tiles, its LSE contains the value"
_IN_KEY = "if all scores of a row read the same entry, as in most tiles, exponents contain the value"


@dataclass(frozen=True)
class UniformEntry:
    """An access to such a table, by a term that finally adds its value to scores, or subtracts it."""

    terms: KernelTerms
    access: Access
    sign: str
    bounds: Ends  # of its index in a tile
    rows: str  # of a program's or worker's own side, as text
    near: bool  # whether loads take offsets from a tile's first row
    aside: bool  # whether the LSE, or an addend of keys, contains the values of uniform tiles

    @cached_property
    def ends(self) -> tuple[Statement, ...]:
        """The statements that compute the least and the greatest entry that a tile reads."""
        return tuple(
            Statement(f"{self.access.name}_{end}", f"within({self.terms.index_text(node)}, {self._count})")
            for end, node in zip(("least", "most"), self.bounds, strict=True)
        )

    @property
    def alike(self) -> str:
        """Text of the condition that all scores of a tile read the same entry of a row."""
        return f"{self.access.name}_least == {self.access.name}_most"

    @property
    def apart(self) -> str:
        """Text of the opposite."""
        return f"{self.access.name}_least != {self.access.name}_most"

    @property
    def total(self) -> Sum:
        """The gradient of the table."""
        return Sum(self.access)

    @property
    def side(self) -> Side:
        """The side whose rows have entries."""
        assert self.access.tie
        return self.access.tie

    @property
    def _value(self) -> Statement:
        """The load of the values of a tile's rows, if all scores read the same entry."""
        return self._value_of(rows_along(self.access.row_axis))

    def _value_of(self, count: str) -> Statement:
        """The same for the rows before row `count`; others get 0."""
        given, (of_row, of_entry) = self.access.input, self._steps
        entry = f"{self.terms.base(given)} + {self.access.name}_least.to(tl.int64) * {of_entry}"
        text = f"load_vector({entry}, {'row' if self.side == 'q' else 'k_pos'}, {of_row}, {count})"
        size = self.rows if self.side == self.terms.own else BLOCKS[self.side]
        return Statement(self.of_row, text, shape=f"[{size}]")

    @property
    def of_row(self) -> str:
        """The name of these values."""
        return f"{self.access.name}_{self.side}"

    @cached_property
    def _loaded(self) -> frozenset[str]:
        """The names of the value of each score, and of the indices with which it is loaded."""
        places = (self.terms.place_name(self.access, stride) for stride in self.terms.strides(self.access.input))
        return frozenset((self.access.name, *places))

    def scored(self, blocks: Iterable[Block]) -> tuple[Block, ...]:
        """The statements of a step up to the final score, with a branch in place of the term and its loads."""
        found: list[Block] = []
        loads: list[Statement] = []
        for block in (one for one in blocks if one not in self.ends):
            if isinstance(block, Statement) and block.target in self._loaded:
                loads.append(block)
            elif isinstance(block, Statement) and block.target == "score" and block.value.endswith(self._last):
                before, told = block.value.removesuffix(self._last), block.heading or block.label
                if before != "score":
                    found.append(replace(block, value=before))
                elif told:
                    found.append(Comment(told))
                found += [*self.ends, *self._branch(*loads, Statement("score", f"score{self._last}"))]
            else:
                found.append(block)
        return tuple(found)

    @property
    def _last(self) -> str:
        """The end of the text of its term, which may add other values before."""
        return f" {self.sign} {self.access.name}"

    def _branch(self, *each: Statement) -> tuple[Block, ...]:
        """The branch that adds to scores; `each` are the statements that add a value of its own to each score."""
        each = tuple(map(self._near, each)) if self.near else each
        if self.aside and self.side == "q":
            return Comment(_IN_LSE), Branch(self.apart, each)
        if self.aside:
            return self._value_of(f"tl.where({self.alike}, k_len, 0)"), Comment(_IN_KEY), Branch(self.apart, each)
        *_, term = each
        way = f"{self.of_row}{self.terms.way(self.side)}"
        added = Statement("score", re.sub(rf"\b{self.access.name}\b", way, term.value))
        return Comment(_WHY), Branch(self.alike, (self._value, added), each)

    def _near(self, statement: Statement) -> Statement:
        """A statement with offsets from the tile's first row, which take fewer registers than addresses."""
        name = self.access.name
        row, entry = (self.terms.place_name(self.access, step) for step in self._steps)
        first = "q_start" if self.side == "q" else "k_first"
        if statement.target == row:
            return replace(statement, value=f"{statement.value} - {first}")
        if statement.target != name:
            return statement
        of_row, of_entry = self._steps
        base = f"{self.terms.base(self.access.input)} + tl.cast({first}, tl.int64) * {of_row}"
        return replace(statement, value=f"tl.load({base} + ({row} * {of_row} + {entry} * {of_entry})){CASTS['float']}")

    @property
    def _steps(self) -> tuple[str, str]:
        """The names of the strides of rows and of entries."""
        given = self.access.input
        return f"{given.name}_stride_{self.access.row_axis.kind}", f"{given.name}_stride_entry"

    @property
    def fits(self) -> str:
        """Text of whether 32 bits hold these offsets."""
        given, axes = self.access.input, [*self.terms.strides(self.access.input)]
        of_row, of_entry = (f"runtime.stride({given.name}, {axes.index(step)})" for step in self._steps)
        return f"128 * {of_row} + {self._count} * {of_entry} < 2**31"

    @property
    def handed_on(self) -> Branch:
        """The statement that subtracts the values of a uniform tile from the LSE of its queries."""
        sign: Literal["-=", "+="] = "-=" if self.sign == "+" else "+="
        return Branch(self.alike, (Statement("lse", f"{self._value.value} * LOG2E", sign),))

    @property
    def _inside(self) -> str:
        """Text of which rows exist."""
        return "row < q_len" if self.side == "q" else "k_pos < k_len"

    def added(self, blocks: Iterable[Block]) -> tuple[Block, ...]:
        """The statements of a step that take gradients back through terms, with a branch in place of this sum."""
        return tuple(self._added(block) if self._adds(block) else block for block in blocks)

    def _adds(self, block: Block) -> bool:
        """True if a statement adds to the gradient of the table."""
        return isinstance(block, Statement) and not block.target and f"{self.total.name}_ptr" in block.reads

    def _added(self, block: Block) -> Branch:
        """The additions to the gradient, instead of those by entry in a statement."""
        assert isinstance(block, Statement)
        share, sums, row = "ds" if self.sign == "+" else "-ds", f"{self.total.name}_ptr", f"{self.total.name}_row"
        place = f"{sums} + {row} * {self._count} + {self.access.name}_least"
        one = Statement("", f'tl.atomic_add({place}, tl.sum({share}, 1), mask={self._inside}, sem="relaxed")')
        entry = self.terms.entry(self.access)
        found = tuple(load for load in self.terms.loads("step") if load.target == entry)
        each: Block = Statement("", block.value)
        if self.alone:
            numbers = map(str, (*self.alone, self._count))
            each = Call("", "add_to_entries", (sums, row, self._inside, entry, share, *numbers))
        return Branch(block.condition, (Branch(self.alike, (one,), (*found, each)),))

    @property
    def _count(self) -> int:
        """The number of entries of a row."""
        (count,) = self.access.input.sizes
        return count

    @property
    def alone(self) -> tuple[int, int] | None:
        """Two entries between which a row reads each one for a single score at most; None if they are not known."""
        (index,) = self.access.index
        ends = _between(index, 0, self._count - 1, variable(OTHER[self.side]))
        return ends if ends and ends[0] < ends[1] else None


def _between(index: Node, least: int, most: int, walked: Node) -> tuple[int, int] | None:
    """Two numbers, limits of an index at first, between which it has each value for one `walked` position at most."""
    match index.op, index.args:
        case "min" | "max", (inner, bound) if (end := literal(bound)) is not None:
            limits = (least, min(most, int(end))) if index.op == "min" else (max(least, int(end)), most)
            return _between(inner, *limits, walked)
        case "+", (inner, added) if (ahead := literal(added)) is not None:
            ends = _between(inner, least - int(ahead), most - int(ahead), walked)
            return ends and (ends[0] + int(ahead), ends[1] + int(ahead))
        case "-", (first, inner) if (end := literal(first)) is not None:
            ends = _between(inner, int(end) - most, int(end) - least, walked)
            return ends and (int(end) - ends[1], int(end) - ends[0])
    form = linear(index)
    others = (n for atom, _ in form.without(walked).terms for n in atom.walk())
    return (least, most) if abs(form.factor(walked)) == 1 and walked not in others else None


@dataclass(frozen=True)
class UniformEntries:
    """The accesses of a kernel to such tables."""

    all: tuple[UniformEntry, ...]

    @property
    def ends(self) -> tuple[Statement, ...]:
        """The statements that compute the least and the greatest entries that a tile reads."""
        return tuple(statement for entry in self.all for statement in entry.ends)

    @property
    def helpers(self) -> tuple[str, ...]:
        """The functions that the text of these entries calls."""
        return printers.triton_helpers(node for entry in self.all for node in entry.bounds)

    def aside(self, *sides: Side) -> tuple[UniformEntry, ...]:
        """Those of some sides, or of both, whose values in uniform tiles are added elsewhere."""
        return tuple(entry for entry in self.all if entry.aside and entry.side in (sides or SIDES))

    @property
    def handed_on(self) -> tuple[Bundle | Statement | Branch, ...]:
        """The statements that subtract these values, after the tuple of the names that they read; `row` is known."""
        handed = self.aside("q")
        if not handed:
            return ()
        ends = tuple(statement for entry in handed for statement in entry.ends)
        places = needed((one for one in programs.rows("q") if one.target != "row"), reads(ends))
        made: tuple[Statement | Branch, ...] = (*places, *ends, *(entry.handed_on for entry in handed))
        known = {*targets((*places, *ends)), "row", "lse", "q_start", "q_len"}
        passed = handed[0].terms.passed(reads(made), known, ("k_first", "k_last"))
        return (Bundle("terms", passed, packs=False), *made)

    @property
    def of_keys(self) -> str:
        """Text of what the exponents of a key's weights contain besides its scores, in log2 units; "" for nothing."""
        return " + ".join(f"{'-' * (entry.sign == '-')}{entry.of_row}[:, None] * LOG2E" for entry in self.aside("k"))

    def scored(self, blocks: tuple[Block, ...]) -> tuple[Block, ...]:
        """The statements of a step up to the final score, with branches in place of these terms and their loads."""
        # of a term that adds several values, the last one is found first
        return functools.reduce(lambda found, entry: entry.scored(found), reversed(self.all), blocks)

    def added(self, blocks: tuple[Block, ...]) -> tuple[Block, ...]:
        """The statements of a step that take gradients back through terms, with branches in place of these sums."""
        return functools.reduce(lambda found, entry: entry.added(found), self.all, blocks)


def of(terms: KernelTerms, rows: str = "", *, aside: bool = False) -> UniformEntries:
    """The accesses of a kernel to such tables; its workers have so many `rows`, if not all of a tile.

    `aside`: values of uniform tiles are added to exponents, if nothing but additions to scores follows.
    """
    found, scores, size = list[UniformEntry](), terms.factored.scores, rows or BLOCKS[terms.own]
    for i, score in enumerate(scores):
        if SCORE not in score.walk():
            continue  # its text is added to a tile of zeros
        last = aside and terms.factored.outer == 1 and all(map(_only_adds, scores[i + 1 :]))
        node, chain = score, list[UniformEntry]()
        while node.op in ("+", "-") and node.args[1].op == "input":
            access = terms.access(node.args[1])
            bounds = None if _read_again(terms, node.args[1]) else _bounds(terms, access)
            if not bounds:
                break
            chain.append(UniformEntry(terms, access, node.op, bounds, size, aside, last))
            node = node.args[0]
        found += reversed(chain)
    return UniformEntries(tuple(found))


def are_all(terms: KernelTerms) -> bool:
    """True if terms load something for each score only where queries read several entries of such tables."""
    found = {entry.access for entry in of(terms).all if entry.side == "q"}
    return bool(found) and all(access in found for access in terms.accesses if access.form in ("pair", "entry"))


def _only_adds(score: Node) -> bool:
    """True if a term does nothing but add to scores, or subtract from them."""
    if score == SCORE:
        return True
    return score.op in ("+", "-") and _only_adds(score.args[0]) and SCORE not in score.args[1].walk()


def _read_again(terms: KernelTerms, read: Node) -> bool:
    """True if something else reads the same value."""
    roots = (*terms.factored.scores, *(mask.keep for mask in terms.spec.masks))
    return sum(n == read for root in roots for n in root.walk()) > 1


def _bounds(terms: KernelTerms, access: Access) -> Ends | None:
    """The ends of the index of a table with entries for each query or key; None for other accesses."""
    given = access.input
    sizes = [axis for axis in given.axes if axis.kind == "size"]
    rows = {"query", "key"} & {*given.kinds}
    if access.form != "entry" or given.dtype != "float" or given.scan or len(sizes) != 1 or len(access.index) != 1:
        return None
    if access.tie is None or not rows or access.row_axis.divided:
        return None

    def known(node: Node) -> Ends | None:
        if node.op == "var" and node.value in SIDES:
            return Ends(*(_LOCAL[node.value, end] for end in ("first", "last")))
        if node.op == "input" and terms.access(node).input.axes:
            return None
        return Ends(node, node)

    return intervals.ends(access.index[0], known)
