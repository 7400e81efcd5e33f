"""The content of a variant's page: its mathematics, its mask for a browser to draw, its kernels line by line."""

from __future__ import annotations

import html
import io
import keyword
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from ..expressions import calculus
from ..expressions.folding import fold
from ..expressions.indices import IMPLICIT
from ..expressions.inputs import Axis, Input
from ..expressions.tree import SCORE, Node
from ..language.spec import Spec
from ..plan import tile_ranges
from ..plan.sides import Side
from ..printing import mathml
from ..printing.javascript import javascript
from ..printing.mathml import row
from ..printing.spec_text import plain
from ..render import render
from . import samples, trace

_SHORT, _LETTERS = 6, "ijlmn"  # nodes of an index that is shown in a formula, at most; names of longer ones
_VARIABLES = {"q_len": "qLen", "k_len": "kLen", "q_first": "first", "q_last": "last"}
_VARIABLES |= {"k_first": "kFirst", "k_last": "kLast", "q_begin": "(kLen - qLen)"}
_SCORE, _AFTER = "<mi>score</mi>", "<mi>score′</mi>"
_VISIBLE = "<mtext>visible if\u00a0</mtext>"


@dataclass(frozen=True)
class Equation:
    """A line of mathematics; `term` is the place of the term it states, over masks and then scores."""

    markup: str
    term: int | None = None
    label: str = ""


@dataclass(frozen=True)
class Control:
    """A number that a reader of the page may change; `value` is JavaScript over qLen and kLen."""

    label: str
    value: str
    minimum: float | None
    maximum: float | None
    whole: bool


@dataclass(frozen=True)
class Ends:
    """A span of keys that kernels visit, as JavaScript; `full` is the part that needs no mask."""

    lo: str
    hi: str
    full: tuple[str, str] | None


@dataclass(frozen=True)
class Noted:
    """A value, as JavaScript, whose extremes kernels record for each tile; the step of a side without effect is 0."""

    rows: int
    keys: int
    value: str


@dataclass(frozen=True)
class Line:
    """A line of code as markup, and the terms that it implements."""

    markup: str
    terms: frozenset[int]


@dataclass(frozen=True)
class Page:
    """Everything that the templates of the page read."""

    spec: Spec
    q_len: int
    k_len: int
    tile: int
    given: samples.Given | None = None

    def write(self) -> str:
        """The page, which is self-contained."""
        return render.page({"page": self, "spec": self.spec})

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The labels of the terms: the masks, then the scores."""
        return (*(mask.label for mask in self.spec.masks), *(score.label for score in self.spec.scores))

    @cached_property
    def _subscripts(self) -> _Subscripts:
        return _Subscripts({given.name: given for given in self.spec.inputs})

    def _math(self, node: Node) -> str:
        return mathml.mathml(_tidy(plain(node)), self._subscripts)

    def _stated(self, markup: str, term: int, label: str) -> list[Equation]:
        """An equation, and definitions of the names that it uses for long indices."""
        found = [Equation(markup, term, label)]
        for name, index in self._subscripts.untold():
            found.append(Equation(row(f"<mi>{name}</mi><mo>=</mo>", self._math(index)), term, label))
        return found

    @cached_property
    def formulas(self) -> tuple[Equation, ...]:
        """The terms in MathML, in order: the scores, then the masks."""
        found: list[Equation] = []
        for i, score in enumerate(self.spec.scores, len(self.spec.masks)):
            found += self._stated(row(_AFTER, "<mo>=</mo>", self._math(score.score)), i, score.label)
        for i, mask in enumerate(self.spec.masks):
            found += self._stated(row(_VISIBLE, self._math(mask.keep)), i, mask.label)
        return tuple(found)

    @cached_property
    def derivatives(self) -> tuple[Equation, ...]:
        """The slopes of the score terms."""
        found: list[Equation] = []
        scores = self.spec.scores if self.spec.algorithm.backward else ()
        for i, term in enumerate(scores, len(self.spec.masks)):
            shared, slopes = calculus.slopes(term.score, [given.name for given in self.spec.inputs if given.grad])
            for name, node in shared:
                found.append(Equation(row(mathml.temporary(name), "<mo>=</mo>", self._math(node)), i, term.label))
            for leaf, node in slopes:
                left = mathml.derivative(_AFTER, _SCORE if leaf == SCORE else self._math(leaf))
                found += self._stated(row(left, "<mo>=</mo>", self._math(node)), i, term.label)
        return tuple(found)

    @cached_property
    def ranges(self) -> tuple[Equation, ...]:
        """The keys that a tile of queries needs, the queries that a tile of keys needs, and parts without a mask."""
        found: list[Equation] = []
        directions: tuple[tuple[Side, str, str], ...] = (("k", "keys", "queries"), ("q", "queries", "keys"))
        for along, name, others in directions:
            for span in tile_ranges.spans(self.spec, along) if self.spec.masks else ():
                needed = f"{name} that a tile of {others} needs"
                found.append(Equation(self._interval(along, span.lo, span.hi), label=needed))
                if span.can_be_full:
                    inner = self._interval(along, span.full_lo, span.full_hi)
                    found.append(Equation(inner, label="of them without a mask"))
        return tuple(found)

    def _interval(self, along: Side, lo: Node | None, hi: Node | None) -> str:
        first = "<mn>0</mn>" if along == "k" else row(mathml.name("k_len"), "<mo>−</mo>", mathml.name("q_len"))
        ends = (self._math(lo) if lo else first, self._math(hi) if hi else mathml.name("k_len"))
        return row(f"<mi>{along}</mi><mo>∈</mo>", mathml.fenced("[", "<mo>,</mo>".join(ends), ")"))

    @cached_property
    def sample(self) -> samples.Sample:
        """The samples that stand in for a call's inputs."""
        return samples.take(self.spec, self.given)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the sample, without its numbers, which the reader may change."""
        return tuple(note.split(" = {")[0] for note in self.sample.notes)

    @cached_property
    def controls(self) -> tuple[Control, ...]:
        """The numbers of the sample."""
        return tuple(
            Control(p.label, self._script(p.value), p.minimum, p.maximum, p.value.type != "float")
            for p in self.sample.parameters
        )

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the numbers in the script."""
        return tuple(f"p{i}" for i in range(len(self.controls)))

    @property
    def keep(self) -> str:
        """The mask as JavaScript over q and k."""
        return self._script(self.sample.mask)

    @property
    def spans(self) -> tuple[Ends, ...]:
        """The spans of keys as JavaScript over the first and the last query of a tile."""
        found = []
        for span in self.sample.spans:
            lo, hi, full_lo, full_hi = (
                self._script(end) if end is not None else otherwise
                for end, otherwise in zip(
                    (span.lo, span.hi, span.full_lo, span.full_hi), ("0", "kLen", "0", "kLen"), strict=True
                )
            )
            found.append(Ends(lo, hi, (full_lo, full_hi) if span.can_be_full else None))
        return tuple(found)

    @property
    def back(self) -> tuple[tuple[str, str], ...] | None:
        """The spans of queries as JavaScript over the first and the last key of a tile, if a kernel loops over them."""
        if self.sample.back is None:
            return None
        none = ("kLen - qLen", "kLen")
        ends = (zip((span.lo, span.hi), none, strict=True) for span in self.sample.back)
        return tuple(tuple(other if end is None else self._script(end) for end, other in pair) for pair in ends)  # type: ignore[misc]

    @property
    def noted(self) -> tuple[Noted, ...]:
        """The values, of tensors that the mask reads, whose extremes kernels record."""
        notes = self.sample.known.notes if self.sample.known else ()
        return tuple(Noted(n.steps.get("q", 0), n.steps.get("k", 0), self._script(n.value)) for n in notes)

    @property
    def ranged(self) -> bool:
        """True if kernels visit one range of tiles, around all those with visible pairs."""
        return self.sample.known is not None and self.sample.known.ranged

    @property
    def states(self) -> tuple[str, str]:
        """Conditions for any pair, and all pairs, of a tile to be visible, as JavaScript over its ends and notes."""
        assert self.sample.known is not None
        return self._script(self.sample.known.some), self._script(self.sample.known.every)

    def _script(self, node: Node) -> str:
        names = {parameter.name: f"p{i}" for i, parameter in enumerate(self.sample.parameters)}
        names |= {"q_first": "qFirst", "q_last": "qLast", "k_first": "kFirst", "k_last": "kLast"}
        for i, note in enumerate(self.sample.known.notes if self.sample.known else ()):
            names |= {f"{note.name}_least": f"least{i}", f"{note.name}_most": f"most{i}"}

        def leaf(node: Node) -> str:
            name = str(node.value)
            return names[name] if node.op == "local" else _VARIABLES.get(name, name)

        return javascript(node, leaf)

    @cached_property
    def code(self) -> tuple[Line, ...]:
        """The kernels as they are rendered."""
        text = render.file(self.spec, "kernels.py")
        marked = zip(_coloured(text), trace.lines(self.spec, text), strict=True)
        return tuple(Line(markup, terms) for markup, terms in marked)


class _Subscripts:
    """Markup of the indices at which an expression reads an input; an index that is too long gets a name."""

    def __init__(self, inputs: dict[str, Input]) -> None:
        self.inputs = inputs
        self.named: dict[Node, str] = {}
        self.told = 0

    def __call__(self, node: Node) -> str:
        given, written = self.inputs[str(node.value)], iter(node.args)
        indices = [next(written) if i in given.written else _own(axis) for i, axis in enumerate(given.axes)]
        return "<mo>,</mo>".join(map(self._index, indices))

    def _index(self, index: Node) -> str:
        if sum(1 for _ in index.walk()) <= _SHORT:
            return mathml.mathml(index, self)
        number = len(self.named)
        return f"<mi>{self.named.setdefault(index, _LETTERS[number] if number < len(_LETTERS) else f'i{number}')}</mi>"

    def untold(self) -> list[tuple[str, Node]]:
        """The names that were given since the last call, and the indices that they stand for."""
        found = [(name, index) for index, name in self.named.items()][self.told :]
        self.told = len(self.named)
        return found


def _tidy(node: Node) -> Node:
    """The expression with operations on integer literals evaluated, which options often leave."""
    args = tuple(map(_tidy, node.args))
    found = Node(node.op, args, node.value, node.type, node.column)
    literal = args and node.type == "int" and all(arg.op == "num" for arg in args)
    return fold(found) if literal else found


def _own(axis: Axis) -> Node:
    """The implicit index of an axis."""
    place = Node("var", (), IMPLICIT[axis.kind], "int")
    if not axis.divided:
        return place
    by = Node("num" if isinstance(axis.per, int) else "input", (), axis.per, "int")
    return Node("%" if axis.rest else "//", (place, by), None, "int")


def _coloured(text: str) -> Iterator[str]:
    """Each line of Python code as markup, with comments, strings and keywords highlighted."""
    lines = text.splitlines()
    marks: list[list[tuple[int, int, str]]] = [[] for _ in lines]
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        kind = {tokenize.COMMENT: "comment", tokenize.STRING: "string"}.get(token.type)
        if token.type == tokenize.NAME and keyword.iskeyword(token.string):
            kind = "keyword"
        for line in range(token.start[0], token.end[0] + 1) if kind else ():
            start = token.start[1] if line == token.start[0] else 0
            end = token.end[1] if line == token.end[0] else len(lines[line - 1])
            marks[line - 1].append((start, end, str(kind)))
    for line_text, found in zip(lines, marks, strict=True):
        yield "".join(_pieces(line_text, found))


def _pieces(line: str, marks: Sequence[tuple[int, int, str]]) -> Iterator[str]:
    at = 0
    for start, end, kind in marks:
        yield html.escape(line[at:start])
        yield f'<span class="{kind}">{html.escape(line[start:end])}</span>'
        at = end
    yield html.escape(line[at:])
