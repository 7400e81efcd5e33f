"""The formula of a variant and the derivatives of its score terms, as lines of text."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from ..expressions import calculus
from ..expressions.tree import Node
from ..language.spec import Spec
from ..printing.spec_text import plain, source
from .statements import label

_WIDE, _WIDEST = 100, 120  # characters of a line of a formula, and of one with a note beside it


@dataclass(frozen=True)
class Section:
    """Lines under a title, each with a note beside it, which may be empty."""

    title: str
    lines: tuple[tuple[str, str], ...]

    @property
    def rows(self) -> list[str]:
        """The lines with their notes in one column."""
        return self.within(_WIDEST)

    def within(self, widest: int) -> list[str]:
        """The lines for a page of this width; a note that does not fit beside its line goes above it."""
        width = max((len(left) for left, note in self.lines if note and len(left) <= 60), default=0)
        found: list[str] = []
        for line, note in self.lines:
            *first, last = _wrapped(line)
            beside = f"{last:{width}}   # {note}" if note else last
            indent = " " * (len(line) - len(line.lstrip()))
            fits = len(beside) <= widest
            above = [] if fits else [f"{indent}# {part}" for part in _wrapped(note)]
            found += [*above, *first, beside if fits else last]
        return found


def _wrapped(line: str) -> list[str]:
    """A line, or several if it is long: broken where the fewest brackets are open, with the rest indented further."""
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


def written(node: Node) -> str:
    """An expression in the language of the specs, as people read it."""
    return source(plain(node))


def formula(spec: Spec) -> Section:
    """From the product of q and k to the output."""
    rotation = ""
    if spec.rope:
        dims = f"{spec.rope.dims} components" if spec.rope.dims else "all components"
        rotation = f"q and k rotated by cos and sin, {spec.rope.layout} layout, {dims}"
    lines = [("score = scale * (q . k)", rotation)]
    for term in spec.scores:
        drops = "takes the place of the score so far" if term.replaces else ""
        lines.append((f"score = {written(term.score)}", ", ".join(filter(None, (_name(term.label), drops)))))
    lines += [(f"visible if {written(mask.keep)}", _name(mask.label)) for mask in spec.masks]
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
        lines += [(f"{name} = {written(node)}", note) for name, node in shared]
        lines += [(f"d score / d {written(x)} = {written(slope)}", note) for x, slope in slopes]
    return Section("Derivatives of the score terms", tuple(lines))


def _name(label: str) -> str:
    """The name of a term; an inline expression has none and explains itself."""
    return label if label.isidentifier() else ""
