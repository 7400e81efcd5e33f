"""Statements of kernels: assignments that know the names they read, and the loops and branches around them."""

from __future__ import annotations

import dataclasses
import re
import textwrap
from collections.abc import Collection, Container, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

_WIDEST = 100  # characters of a term's label on a line

Place = tuple[Literal["mask", "score"], int]
"""A term, identified by its index among the masks or the scores of a spec."""


@dataclass(frozen=True)
class Statement:
    """An assignment, or a call if there is no target."""

    target: str  # a name, or several
    value: str
    sign: Literal["=", "+=", "-=", "&="] = "="
    label: str = ""  # of the term whose value it computes
    heading: str = ""  # of the term whose statements begin with it
    condition: str = ""  # under which it runs; "" if it always does
    shape: str = ""  # of the tile or vector that it sets
    serves: frozenset[Place] = frozenset()  # the terms without which it would be absent or different

    @property
    def reads(self) -> frozenset[str]:
        """The names in its value and condition, and the target if it updates that one."""
        return names(self.value, self.condition, "" if self.sign == "=" else self.target)

    def of(self, wanted: Collection[str]) -> Statement:
        """The part that sets these names, if each target has its own value; all of it if the value has brackets."""
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
    """A call with too many arguments for one on each line: they fill whole lines, which black is told to skip."""

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
    """Values that are passed as one tuple, and packed or unpacked under the same names."""

    name: str
    values: tuple[str, ...]
    packs: bool

    @property
    def packed(self) -> Bundle:
        """The same values, packed into the tuple."""
        return dataclasses.replace(self, packs=True)

    @property
    def reads(self) -> frozenset[str]:
        """The names of the values if it packs them, else that of the tuple."""
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
    """A comment line that gives the reason for the code below it."""

    text: str
    reads = frozenset[str]()

    def lines(self) -> Iterator[str]:
        """The line in a kernel."""
        yield f"# {self.text}"


@dataclass(frozen=True)
class Loop:
    """A loop over integers."""

    index: str
    begin: str
    end: str
    body: tuple[Block, ...]
    stages: int | str | None = None  # None: as set by the launch
    static: bool = False  # whether the compiler unrolls it

    @property
    def reads(self) -> frozenset[str]:
        """The names in its limits and its body."""
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
    """One of two blocks, chosen by a condition."""

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
    """Words joined by commas, on lines of at most `width` characters; no word is broken."""
    text = ", ".join(word.replace(" ", "\u00a0") for word in words)
    found = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
    return [line.replace("\u00a0", " ") for line in found]


def typed(parameters: Iterable[str]) -> list[str]:
    """Parameters as in a jitted function's signature: names in capitals are sizes known at compile time."""
    return [f"{name}: tl.constexpr" if name.isupper() else name for name in parameters]


def names(*texts: str) -> frozenset[str]:
    """The names and all other words in texts of code."""
    return frozenset(word for text in texts for word in re.findall(r"\w+", text))


def reads(blocks: Iterable[Block]) -> frozenset[str]:
    """The names that any of the blocks reads."""
    return frozenset(name for block in blocks for name in block.reads)


def targets_of(ends: Iterable[str], read: Container[str]) -> str:
    """Text of the targets of a call's results: `_` for those that nothing reads."""
    return ", ".join(end if end in read else "_" for end in ends)


def needed(candidates: Iterable[Statement], read: Iterable[str]) -> tuple[Statement, ...]:
    """The candidates on which the names in `read` depend, directly or not, without targets that nothing needs."""
    wanted, found = set(read), []
    for candidate in reversed(tuple(candidates)):
        if wanted.intersection(candidate.target.split(", ")):
            statement = candidate.of(wanted)
            found.append(statement)
            wanted |= statement.reads
    return tuple(reversed(found))


def serving(places: Iterable[Place], statements: Iterable[Statement]) -> tuple[Statement, ...]:
    """The same statements, marked as serving these terms."""
    return tuple(dataclasses.replace(statement, serves=frozenset(places)) for statement in statements)


def targets(statements: Iterable[Statement]) -> tuple[str, ...]:
    """The targets of the statements, in order."""
    return tuple(statement.target for statement in statements)


def lines(blocks: Iterable[Block]) -> list[str]:
    """The lines of statements in a kernel; a comment with their shape precedes each run of statements that share it."""
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
    """All names in the code of statements, without the words of comments."""
    return names(*(line.partition("#")[0] for body in bodies for line in lines(body)))


def labelled(code: str, label: str) -> list[str]:
    """A line of code with a term's whole label: at its end, or on lines above it if the label is long."""
    text = " ".join(label.split())
    if len(text) <= _WIDEST:
        return [f"{code}  # {text}"]
    lines = textwrap.wrap(text, _WIDEST, break_long_words=False, break_on_hyphens=False)
    return [*(f"# {line}" for line in lines), code]


def label(text: str) -> str:
    """A term's label, shortened to fit at the end of a line of code."""
    text = " ".join(text.split())
    return text if len(text) <= 60 else text[:57] + "..."
