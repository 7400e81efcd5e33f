"""What a variant computes, in text: its formula, the derivatives, the keywords, and the spans of tiles."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass

from ..expressions import calculus
from ..expressions.folding import LARGEST
from ..expressions.inputs import Axis
from ..expressions.tree import Node
from ..language.spec import Spec
from ..plan import loops, plan
from ..plan.arguments import Argument
from ..plan.leaf import Side
from ..plan.statements import label
from ..plan.tile_states import TileStates
from ..printing.spec_text import plain, source
from ..tiling import ranges

_WIDE, _WIDEST = 100, 120  # characters of a line of a formula, and of one with a note beside it


@dataclass(frozen=True)
class Section:
    """Lines under a title, each with a note beside it or an empty one."""

    title: str
    lines: tuple[tuple[str, str], ...]

    @property
    def rows(self) -> list[str]:
        """The lines with their notes in one column."""
        width = max((len(left) for left, note in self.lines if note and len(left) <= 60), default=0)
        found: list[str] = []
        for line, note in self.lines:
            *above, last = _wrapped(line)
            beside = f"{last:{width}}   # {note}" if note else last
            indent = " " * (len(line) - len(line.lstrip()))
            found += [
                *above,
                *([beside] if len(beside) <= _WIDEST else [last, *(f"{indent}# {part}" for part in _wrapped(note))]),
            ]
        return found


def _wrapped(line: str) -> list[str]:
    """A line, or several where it is long: broken where the fewest brackets are open, the rest further in."""
    found, indent = [], " " * (4 + len(line) - len(line.lstrip()))
    while len(line) > _WIDE:
        open_ = list(itertools.accumulate((c in "([") - (c in ")]") for c in line))
        spaces = [i for i in range(_WIDE // 2, _WIDE) if line[i] == " "]
        if not spaces:
            break
        at = min(spaces, key=lambda i: (open_[i], -i))
        found.append(line[:at])
        line = indent + line[at + 1 :]
    return [*found, line]


def text(spec: Spec) -> str:
    """All of it."""
    shown = (formula(spec), derivatives(spec), _keywords(spec), tiles(spec))
    parts = ["\n".join([section.title, *(f"  {row}" for row in section.rows)]) for section in shown if section.lines]
    return "\n\n".join([_face(spec), *parts]) + "\n"


def traits(spec: Spec) -> str:
    """What tells variants of the same formula apart."""
    layout = "packed sequences" if spec.packed else "dense batches"
    order = "" if spec.algorithm.backward else f", forward only, algorithm {spec.algorithm.name}"
    return f"{layout}, {'grouped heads' if spec.grouped else 'as many query heads as key heads'}{order}"


def identity(spec: Spec) -> object:
    """What two specs of the same formula have in common, whatever their names, and inputs, are called."""
    names = {given.name: f"input {i}" for i, given in enumerate(spec.inputs)}

    def renamed(node: Node) -> Node:
        value = names[str(node.value)] if node.op == "input" else node.value
        return Node(node.op, tuple(map(renamed, node.args)), value, node.type)

    return (
        spec.rope,
        frozenset(renamed(term.keep) for term in spec.masks),
        tuple(renamed(term.score) for term in spec.scores),
        spec.sink,
        spec.dropout,
        frozenset(dataclasses.replace(given, name=names[given.name], description="") for given in spec.inputs),
        frozenset(spec.options),
    )


def _face(spec: Spec) -> str:
    citation = f"\nfrom {spec.citation}" if spec.citation else ""
    return f"{spec.name}: {spec.description}{citation}\n{spec.source}, {traits(spec)}"


def formula(spec: Spec) -> Section:
    """From the product of q and k to the output."""
    turned = ""
    if spec.rope:
        dims = f"{spec.rope.dims} components" if spec.rope.dims else "all components"
        turned = f"q and k turned by cos and sin, {spec.rope.layout} layout, {dims}"
    lines = [("score = scale * (q . k)", turned)]
    for term in spec.scores:
        drops = "" if any(n.value == "score" for n in term.score.walk()) else "takes the place of the score so far"
        lines.append((f"score = {_source(term.score)}", ", ".join(filter(None, (_name(term.label), drops)))))
    lines += [(f"visible if {_source(mask.keep)}", _name(mask.label)) for mask in spec.masks]
    seen = "logsumexp of score over the visible keys"
    lines.append((f"lse = log(exp(sinks) + exp({seen}))" if spec.sink else f"lse = {seen}", ""))
    weight = "exp(score - lse)"
    lines.append((f"out = sum of {f'dropout({weight})' if spec.dropout else weight} * v", ""))
    return Section("Formula", tuple(lines))


def derivatives(spec: Spec) -> Section:
    """The slopes of the score terms."""
    learned = [given.name for given in spec.inputs if given.grad]
    lines: list[tuple[str, str]] = []
    for term in spec.scores if spec.algorithm.backward else ():
        note = label(term.label) if len(spec.scores) > 1 else _name(term.label)
        shared, slopes = calculus.slopes(term.score, learned)
        lines += [(f"{name} = {_source(node)}", note) for name, node in shared]
        lines += [(f"d score / d {_source(x)} = {_source(slope)}", note) for x, slope in slopes]
    return Section("Derivatives of the score terms", tuple(lines))


def _source(node: Node) -> str:
    return source(plain(node))


def _name(label: str) -> str:
    """The name of a term; an inline expression has none and says what it is."""
    return label if label.isidentifier() else ""


def meaning(argument: Argument) -> str:
    """What a keyword is, and what becomes of it."""
    facts = {
        "learned": argument.grad,
        "read as its cumulative sum": argument.scan,
        "may be left out": argument.optional or argument.default,
    }
    held = "" if argument.doc else limits(argument.minimum, argument.maximum)
    notes = [argument.doc.rstrip("."), held, *(name for name, holds in facts.items() if holds)]
    return ", ".join(filter(None, notes))


def limits(low: float | None, high: float | None) -> str:
    """Between what a number lies, as far as that says more than what all numbers keep to."""
    low, high = (None if x is None or abs(x) == LARGEST else x for x in (low, high))
    if low is not None and high is not None:
        return f"from {low} to {high}"
    return f"at least {low}" if low is not None else f"at most {high}" if high is not None else ""


def _keywords(spec: Spec) -> Section:
    lines = []
    for a in plan.build(spec).arguments:
        axes = f" ({', '.join(map(axis, a.axes))})" if a.axes else ""
        lines.append((f"{a.name}: {a.dtype} {a.kind}{axes}", meaning(a)))
    return Section("Keywords", tuple(lines))


def axis(axis: Axis) -> str:
    """An axis as a spec declares it."""
    return str(axis.size) if axis.kind == "size" else axis.kind if axis.per == 1 else f"{axis.kind} // {axis.per}"


def tiles(spec: Spec) -> Section:
    """The keys that a tile of queries needs, and the other way round."""
    if not spec.masks:
        return Section("Tiles", (("every key is visible: all tiles are full", ""),))
    lines: list[tuple[str, str]] = []
    directions: tuple[tuple[Side, Side, str, str], ...] = (("k", "q", "keys", "queries"), ("q", "k", "queries", "keys"))
    for along, side, name, other in directions:
        lines.append((f"{name} that the {other} {side}_first to {side}_last need", ""))
        for span in loops.spans(spec, along):
            full = (
                f"without a mask in {_interval(span.full_lo, span.full_hi)}"
                if span.can_be_full
                else "never without a mask"
            )
            lines.append((f"  {_interval(span.lo, span.hi)}", full))
    if told := telling(spec):
        lines.append((f"less the tiles that the values of {' and '.join(told)} rule out in a call", ""))
    lines += [(f"{term} is decided pair by pair: it rules out no tile", "") for term in _undecided(spec)]
    return Section("Tiles", tuple(lines))


def telling(spec: Spec) -> tuple[str, ...]:
    """The inputs whose values rule out tiles in a call."""
    return tuple(dict.fromkeys(leaf.input.name for leaf in TileStates(spec, "q").tellers))


def _undecided(spec: Spec) -> list[str]:
    """The masks that neither positions nor a call's values decide for tiles."""
    alone = {mask.label: dataclasses.replace(spec, masks=(mask,)) for mask in spec.masks}
    nothing = ranges.Span(None, None, None, None, False)
    return [
        term
        for term, one in alone.items()
        if not telling(one) and all(set(loops.spans(one, along)) == {nothing} for along in ("k", "q"))
    ]


def _interval(lo: Node | None, hi: Node | None) -> str:
    return f"[{_source(lo) if lo else 'first'}, {_source(hi) if hi else 'end'})"
