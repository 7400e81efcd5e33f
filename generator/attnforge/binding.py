"""Binds the leaves of a spec's terms to what a kernel holds: which way they broadcast, and where they are loaded.

Terms know nothing of tiles. A kernel whose programs own query tiles steps over key tiles, or the other way round; a
value is loaded once per program, once per query head or in each step, as early as its axes allow.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from . import calculus, printers
from .expression import Node
from .spec import Input, Spec

Side = Literal["q", "k"]
ROW_AXES = ("query", "key", "token")
CASTS = {"float": ".to(tl.float32)", "int": ".to(tl.int32)", "bool": ".to(tl.int1)"}
SCORE = Node("var", (), "score", "float")


@dataclass(frozen=True)
class Leaf:
    """An input as an expression reads it; `side` is the position that indexes it, if one does."""

    input: Input
    side: Side | None

    @property
    def name(self) -> str:
        """What kernels call its value."""
        return f"{self.input.name}_{self.side}" if self.side else self.input.name

    @property
    def row_axis(self) -> str:
        """The axis that the position indexes."""
        return next(axis for axis in self.input.axes if axis in ROW_AXES)

    @property
    def per_head(self) -> bool:
        """Whether query heads differ in it."""
        return "head" in self.input.axes


@dataclass(frozen=True)
class Line:
    """A statement's text and the term it comes from."""

    text: str
    label: str


@dataclass(frozen=True)
class Sum:
    """The gradient of a leaf as a kernel sums it up: over the keys of a row, or over the queries of a key."""

    leaf: Leaf

    @property
    def name(self) -> str:
        """What kernels call it."""
        return f"{self.leaf.name}_sum"


@dataclass(frozen=True)
class Slope:
    """What the score's gradient is multiplied by; `text` is None where that is 1."""

    text: str | None
    sign: Literal["+", "-"] = "+"


@dataclass(frozen=True)
class Term:
    """A score term in a backward kernel: its slopes are worked out before it replaces the score."""

    label: str
    before: tuple[tuple[str, str], ...]  # named values, in order
    guarded: tuple[str, ...]  # those of them that may be NaN or infinite where the mask hides the score
    value: str
    slope: Slope
    sums: tuple[tuple[Sum, Slope], ...]


@dataclass(frozen=True)
class View:
    """The terms of a spec as one kernel reads them; `own` is the side whose tiles its programs own."""

    spec: Spec
    own: Side

    def text(self, node: Node) -> str:
        """Triton text of an expression over tiles."""
        return printers.triton(node, self._leaf)

    def _leaf(self, node: Node) -> str:
        name = str(node.value)
        if node.op == "var":
            if name in ("q", "k"):
                return f"{name}_pos{self._way(name)}"
            return "h" if name == "kv_h" and not self.spec.grouped else name
        if node.op != "input":
            return name
        leaf = self.leaf(node)
        return leaf.name + (self._way(leaf.side) if leaf.side else "")

    def _way(self, side: str) -> str:
        return "[:, None]" if side == self.own else "[None, :]"

    def leaf(self, node: Node) -> Leaf:
        """The leaf that an input node reads."""
        given = next(i for i in self.spec.inputs if i.name == node.value)
        if "token" in given.axes:
            return Leaf(given, "q" if node.args[0].value == "q" else "k")
        return Leaf(given, "q" if "query" in given.axes else "k" if "key" in given.axes else None)

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """All expressions of the spec's terms."""
        return (*(m.keep for m in self.spec.masks), *(s.score for s in self.spec.scores))

    @cached_property
    def leaves(self) -> tuple[Leaf, ...]:
        """All leaves with axes, in the order in which terms read them."""
        found = (self.leaf(n) for node in self.nodes for n in node.walk() if n.op == "input")
        return tuple(dict.fromkeys(leaf for leaf in found if leaf.input.axes))

    @property
    def keep(self) -> tuple[Line, ...]:
        """What a visible place has to meet, one line for each mask."""
        return tuple(Line(self.text(m.keep), label(m.label)) for m in self.spec.masks)

    @property
    def score(self) -> tuple[Line, ...]:
        """The score terms' values, in order."""
        return tuple(Line(self.text(s.score), label(s.label)) for s in self.spec.scores)

    @cached_property
    def sums(self) -> tuple[Sum, ...]:
        """The gradients that this backward kernel sums up: of leaves at keys where it owns keys, else of all others."""
        return tuple(Sum(leaf) for leaf in self.leaves if leaf.input.grad and (leaf.side == "k") == (self.own == "k"))

    @cached_property
    def terms(self) -> tuple[Term, ...]:
        """The score terms with the slopes that this backward kernel needs."""
        taken = 0
        terms = []
        for i, term in enumerate(self.spec.scores):
            nodes = {n: self.leaf(n) for n in term.score.walk() if n.op == "input"}
            wanted = {n: Sum(leaf) for n, leaf in nodes.items() if Sum(leaf) in self.sums}
            slopes = [calculus.simplify(calculus.derivative(term.score, x)) for x in (SCORE, *wanted)]
            parts, (value, *slopes) = calculus.share([term.score, *slopes], self._fresh("part"))
            names = {old: f"{self._fresh('part')}{taken + j}" for j, (old, _) in enumerate(parts)}
            taken += len(parts)
            before = [(names[old], _renamed(node, names)) for old, node in parts]
            named: list[Slope] = []
            guarded: list[str] = []
            for j, slope in enumerate(_renamed(node, names) for node in slopes):
                if slope.op == "num" and slope.value in (1, -1):
                    named.append(Slope(None, "+" if slope.value == 1 else "-"))
                elif slope.op == "neg" and slope.args[0] == Node("num", value=1.0):
                    named.append(Slope(None, "-"))
                else:
                    name = f"{self._fresh('slope')}{i}" + (f"_{j}" if j else "")
                    before.append((name, slope))
                    named.append(Slope(name))
                    guarded += [name] if self._varies(slope) else []
            terms.append(
                Term(
                    label(term.label),
                    tuple((name, self.text(node)) for name, node in before),
                    tuple(guarded),
                    self.text(_renamed(value, names)),
                    named[0],
                    tuple(zip(wanted.values(), named[1:], strict=True)),
                )
            )
        return tuple(terms)

    @property
    def inward(self) -> tuple[str, ...]:
        """A backward step's statements from the plain score to the final one, slopes on the way."""
        lines: list[str] = []
        for term in self.terms:
            lines.append(f"# {term.label}")
            lines += [f"{name} = {text}" for name, text in term.before]
            lines.append(f"score = {term.value}")
        return tuple(lines)

    @property
    def guarded(self) -> tuple[str, ...]:
        """The slopes that must not be read where the mask hides the score."""
        return tuple(name for term in self.terms for name in term.guarded)

    @property
    def outward(self) -> tuple[str, ...]:
        """A backward step's statements from the final score's gradient, `ds`, to the plain one's."""
        lines: list[str] = []
        for term in reversed(self.terms):
            for total, slope in term.sums:
                lines.append(f"{total.name} {slope.sign}= tl.sum(ds{f' * {slope.text}' if slope.text else ''}, 1)")
            if term.slope.text:
                lines.append(f"ds = ds * {term.slope.text}")
            elif term.slope.sign == "-":
                lines.append("ds = -ds")
        return tuple(lines)

    def _fresh(self, stem: str) -> str:
        """The stem of names that no keyword of the spec begins with."""
        keywords = [i.name for i in self.spec.inputs] + [o.keyword for o in self.spec.options]
        while any(re.match(stem + r"\d", keyword) for keyword in keywords):
            stem += "_"
        return stem

    def _varies(self, node: Node) -> bool:
        """Whether a value differs inside a tile."""
        return any(
            n.op == "local"
            or (n.op == "var" and n.value in ("q", "k", "score"))
            or (n.op == "input" and self.leaf(n).side is not None)
            for n in node.walk()
        )

    @property
    def helpers(self) -> tuple[str, ...]:
        """The functions that the terms' text calls, slopes included."""
        nodes = list(self.nodes)
        for term in self.spec.scores:
            leaves = {n for n in term.score.walk() if n.op == "input" and self.leaf(n).input.grad}
            nodes += [calculus.simplify(calculus.derivative(term.score, x)) for x in (SCORE, *leaves)]
        return printers.triton_helpers(nodes)

    # -- loads ---------------------------------------------------------------------------------------------------

    def loads(self, site: Literal["program", "head", "step"]) -> tuple[str, ...]:
        """The statements that make leaves available, by how often they run."""
        lines: dict[str, None] = {}
        for leaf in self.leaves:
            outer = "head" if self.own == "k" and leaf.per_head else "program"
            place = self._place(leaf.input)
            if leaf.side is None:
                if site == outer:
                    lines[f"{leaf.name} = tl.load({place}){CASTS[leaf.input.dtype]}"] = None
                continue
            if site == outer and self._base(leaf.input).endswith("_base"):
                lines[f"{leaf.input.name}_base = {place}"] = None
            if site == (outer if leaf.side == self.own else "step"):
                lines[f"{leaf.name} = {self._vector(leaf)}"] = None
        return tuple(lines)

    def _base(self, given: Input) -> str:
        return f"{given.name}_ptr" if self._place(given) == f"{given.name}_ptr" else f"{given.name}_base"

    def _place(self, given: Input) -> str:
        """Where an input's values for this batch entry and head begin."""
        rows = next((axis for axis in given.axes if axis in ROW_AXES), None)
        index = {"batch": "b", "head": "h", "kv_head": "kv_h" if self.spec.grouped else "h"}
        text = f"{given.name}_ptr"
        for name, axis in self.strides(given).items():
            if axis in index:
                text += f" + tl.cast({index[axis]}, tl.int64) * {name}"
        if rows and self.spec.packed:
            text += f" + {'q' if rows == 'query' else 'k'}_offset.to(tl.int64) * {given.name}_stride_{rows}"
        return text

    def _vector(self, leaf: Leaf) -> str:
        given, axis = leaf.input, leaf.row_axis
        first = "k_start" if leaf.side == "k" else "q_start" if axis == "query" else "q_first"
        count, block = "q_len" if axis == "query" else "k_len", "BLOCK_M" if leaf.side == "q" else "BLOCK_N"
        stride = f"{given.name}_stride_{axis}"
        return f"load_vector({self._base(given)}, {first}, {stride}, {count}, {block}){CASTS[given.dtype]}"

    @cached_property
    def arguments(self) -> tuple[str, ...]:
        """What the kernel takes for its terms: options, scalars, pointers and strides, by name."""
        names = [o.keyword for o in self.spec.options]
        for given in self.spec.inputs:
            names += [f"{given.name}_ptr", *self.strides(given)] if given.axes else [given.name]
        return tuple(names)

    def strides(self, given: Input) -> dict[str, str]:
        """The names of an input's strides, and their axes."""
        return {f"{given.name}_stride_{axis}": axis for axis in seen_axes(given, self.spec)}

    def passed(self, texts: Iterable[str], known: Iterable[str]) -> tuple[str, ...]:
        """The names of the kernel's that a step's texts read, apart from those it knows anyway."""
        words = {word for text in texts for word in re.findall(r"\w+", text)} - set(known)
        values = [leaf.name for leaf in self.leaves]
        bases = [self._base(leaf.input) for leaf in self.leaves]
        candidates = ["b", "h", "kv_h", "q_pos", "k_pos", "q_len", "k_len", *values, *bases, *self.arguments]
        loaded = {line.split(" = ")[0] for line in self.loads("step")}
        return tuple(name for name in dict.fromkeys(candidates) if name in words and name not in loaded)


def seen_axes(given: Input, spec: Spec) -> tuple[str, ...]:
    """The axes of an input as kernels see it: rows of packed sequences have no batch, a scan puts the tokens last."""
    packed = spec.packed and any(axis in ROW_AXES for axis in given.axes)
    axes = tuple(a for a in given.axes if not (a == "batch" and packed))
    return tuple(a for a in ("batch", "head", "kv_head", "token") if a in axes) if given.scan else axes


def label(text: str) -> str:
    """A term's label as the end of a line of code."""
    text = " ".join(text.split())
    return text if len(text) <= 60 else text[:57] + "..."


def _renamed(node: Node, names: dict[str, str]) -> Node:
    if node.op == "local" and node.value in names:
        return Node("local", (), names[str(node.value)], node.type)
    args = tuple(_renamed(arg, names) for arg in node.args)
    return Node(node.op, args, node.value, node.type, node.column)
