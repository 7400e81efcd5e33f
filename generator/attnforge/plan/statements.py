"""Statements of kernels: assignments that know what they read, and the loops and branches around them."""

from __future__ import annotations

import dataclasses
import re
import textwrap
from collections.abc import Collection, Container, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

_WIDEST = 100  # characters of a term's label on a line

Place = tuple[Literal["mask", "score"], int]
"""A term by its place among the masks or the scores of a spec."""


@dataclass(frozen=True)
class Statement:
    """An assignment, or without a target a call."""

    target: str  # a name, or several
    value: str
    sign: Literal["=", "+=", "-=", "&="] = "="
    label: str = ""  # of the term that it makes the value of
    heading: str = ""  # of the term whose statements it opens
    condition: str = ""  # when it runs at all
    shape: str = ""  # of a tile or a vector that it sets
    serves: frozenset[Place] = frozenset()  # the terms without which it would not be there, or be another

    @property
    def reads(self) -> frozenset[str]:
        """The names in its value, in the condition, and what it adds to."""
        return names(self.value, self.condition, "" if self.sign == "=" else self.target)

    def of(self, wanted: Collection[str]) -> Statement:
        """What it sets of these names, if each has a value of its own; with brackets, which may hold commas, all."""
        targets, values = self.target.split(", "), self.value.split(", ")
        if set("([{").intersection(self.value) or len(values) != len(targets):
            return self
        kept = [pair for pair in zip(targets, values, strict=True) if pair[0] in wanted]
        return dataclasses.replace(self, target=", ".join(t for t, _ in kept), value=", ".join(v for _, v in kept))

    def lines(self) -> Iterator[str]:
        """Its lines in a kernel."""
        if self.heading:
            yield f"# {self.heading}"
        if self.condition:
            yield f"if {self.condition}:"
        text = f"{self.target} {self.sign} {self.value}" if self.target else self.value
        yield f"{'    ' if self.condition else ''}{text}{f'  # {self.label}' if self.label else ''}"


@dataclass(frozen=True)
class Call:
    """A call of a function that takes too many arguments for one a line: they fill lines, out of black's reach."""

    target: str
    function: str
    arguments: tuple[str, ...]

    @property
    def reads(self) -> frozenset[str]:
        """The names in its arguments."""
        return names(*self.arguments)

    def lines(self) -> Iterator[str]:
        """Its lines in a kernel."""
        yield f"{self.target} = {self.function}(" if self.target else f"{self.function}("
        yield from (f"    {line}" for line in filled(self.arguments, 103))
        yield ")  # fmt: skip"


@dataclass(frozen=True)
class Bundle:
    """Values that travel as one tuple, packed or unpacked under the same names."""

    name: str
    values: tuple[str, ...]
    packs: bool

    @property
    def packed(self) -> Bundle:
        """The same where the tuple is made."""
        return dataclasses.replace(self, packs=True)

    @property
    def reads(self) -> frozenset[str]:
        """The names of the values, or of the tuple."""
        return names(*self.values) if self.packs else frozenset({self.name})

    def lines(self) -> Iterator[str]:
        """Its lines in a kernel."""
        end = "," if len(self.values) == 1 else ""
        left, right = (f"{self.name} = (", ")") if self.packs else ("(", f") = {self.name}")
        text = ", ".join(self.values) + end
        if len(left) + len(text) + len(right) <= 100:
            yield f"{left}{text}{right}" if self.packs else f"{text} = {self.name}"
            return
        yield left
        yield from (f"    {line}" for line in filled(self.values, 100))
        yield f"{right}  # fmt: skip"


@dataclass(frozen=True)
class Comment:
    """A line that says why what follows is done."""

    text: str
    reads = frozenset[str]()

    def lines(self) -> Iterator[str]:
        """The line in a kernel."""
        yield f"# {self.text}"


@dataclass(frozen=True)
class Loop:
    """A loop over whole numbers."""

    index: str
    begin: str
    end: str
    body: tuple[Block, ...]
    stages: int | str | None = None  # None: as the launch says
    static: bool = False  # whether the compiler writes it out

    @property
    def reads(self) -> frozenset[str]:
        """The names in its ends and its body."""
        return names(self.begin, self.end) | reads(self.body)

    def lines(self) -> Iterator[str]:
        """Its lines in a kernel."""
        stages = f", num_stages={self.stages}" if self.stages else ""
        kind = "gl.static_range" if self.static else "tl.range"
        index = self.index if self.index in reads(self.body) else "_"
        yield f"for {index} in {kind}({self.begin}, {self.end}{stages}):"
        yield from (f"    {line}" for line in lines(self.body))


@dataclass(frozen=True)
class Branch:
    """One of two blocks by a condition."""

    condition: str
    then: tuple[Block, ...]
    otherwise: tuple[Block, ...] = ()

    @property
    def reads(self) -> frozenset[str]:
        """The names in the condition and in both blocks."""
        return names(self.condition) | reads((*self.then, *self.otherwise))

    def lines(self) -> Iterator[str]:
        """Its lines in a kernel."""
        yield f"if {self.condition}:"
        yield from (f"    {line}" for line in lines(self.then))
        if self.otherwise:
            yield "else:"
            yield from (f"    {line}" for line in lines(self.otherwise))


Block = Statement | Call | Bundle | Comment | Loop | Branch


def filled(words: Iterable[str], width: int) -> list[str]:
    """Words behind one another with commas between, on lines of so many letters; a word keeps together."""
    text = ", ".join(word.replace(" ", "\u00a0") for word in words)
    found = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
    return [line.replace("\u00a0", " ") for line in found]


def typed(parameters: Iterable[str]) -> list[str]:
    """Parameters of a jitted function as its head has them: names in capitals are sizes that the compiler knows."""
    return [f"{name}: tl.constexpr" if name.isupper() else name for name in parameters]


def names(*texts: str) -> frozenset[str]:
    """The names, and whatever else is a word, in texts of code."""
    return frozenset(word for text in texts for word in re.findall(r"\w+", text))


def reads(blocks: Iterable[Block]) -> frozenset[str]:
    """The names that any of them reads."""
    return frozenset(name for block in blocks for name in block.reads)


def targets_of(ends: Iterable[str], read: Container[str]) -> str:
    """Text of what a call's results are called: `_` for those that nothing reads."""
    return ", ".join(end if end in read else "_" for end in ends)


def needed(candidates: Iterable[Statement], read: Iterable[str]) -> tuple[Statement, ...]:
    """Those of some statements that others need, which read these names; of several names that one sets, likewise."""
    wanted, found = set(read), []
    for candidate in reversed(tuple(candidates)):
        if wanted.intersection(candidate.target.split(", ")):
            statement = candidate.of(wanted)
            found.append(statement)
            wanted |= statement.reads
    return tuple(reversed(found))


def serving(places: Iterable[Place], statements: Iterable[Statement]) -> tuple[Statement, ...]:
    """The same statements, as those of some terms."""
    return tuple(dataclasses.replace(statement, serves=frozenset(places)) for statement in statements)


def targets(statements: Iterable[Statement]) -> tuple[str, ...]:
    """What they set, in order."""
    return tuple(statement.target for statement in statements)


def lines(blocks: Iterable[Block]) -> list[str]:
    """The lines of statements in a kernel, one after the other; a shape stands above all that have it."""
    found: list[str] = []
    shape = ""
    for block in blocks:
        other = block.shape if isinstance(block, Statement) else ""
        if other and other != shape:
            found.append(f"# {other}")
        shape = other
        found += block.lines()
    return found


def code_names(*bodies: Iterable[Block]) -> frozenset[str]:
    """All names in the code of statements; what comments say of terms names nothing."""
    return names(*(line.partition("#")[0] for body in bodies for line in lines(body)))


def labelled(code: str, label: str) -> list[str]:
    """Lines of code with all of a term's label: at the end, or above where it is long."""
    text = " ".join(label.split())
    if len(text) <= _WIDEST:
        return [f"{code}  # {text}"]
    lines = textwrap.wrap(text, _WIDEST, break_long_words=False, break_on_hyphens=False)
    return [*(f"# {line}" for line in lines), code]


def label(text: str) -> str:
    """A term's label as the end of a line of code."""
    text = " ".join(text.split())
    return text if len(text) <= 60 else text[:57] + "..."
