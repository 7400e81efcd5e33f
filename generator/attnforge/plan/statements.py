"""Statements of kernels: what each sets, what it reads, and the term that it serves."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Statement:
    """An assignment, or without a target a call."""

    target: str  # a name, or several
    value: str
    sign: Literal["=", "+=", "-=", "&="] = "="
    label: str = ""  # of the term that it makes the value of
    heading: str = ""  # of the term whose statements it opens
    condition: str = ""  # when it runs at all

    @property
    def reads(self) -> frozenset[str]:
        """The names in its value, in the condition, and what it adds to."""
        return names(self.value, self.condition, "" if self.sign == "=" else self.target)

    def lines(self) -> Iterator[str]:
        """Its lines in a kernel."""
        if self.heading:
            yield f"# {self.heading}"
        if self.condition:
            yield f"if {self.condition}:"
        text = f"{self.target} {self.sign} {self.value}" if self.target else self.value
        yield f"{'    ' if self.condition else ''}{text}{f'  # {self.label}' if self.label else ''}"


def names(*texts: str) -> frozenset[str]:
    """The names, and whatever else is a word, in texts of code."""
    return frozenset(word for text in texts for word in re.findall(r"\w+", text))


def reads(statements: Iterable[Statement]) -> frozenset[str]:
    """The names that any of them reads."""
    return frozenset(name for statement in statements for name in statement.reads)


def targets(statements: Iterable[Statement]) -> tuple[str, ...]:
    """What they set, in order."""
    return tuple(statement.target for statement in statements)


def lines(statements: Iterable[Statement]) -> list[str]:
    """The lines of statements in a kernel, one after the other."""
    return [line for statement in statements for line in statement.lines()]


def label(text: str) -> str:
    """A term's label as the end of a line of code."""
    text = " ".join(text.split())
    return text if len(text) <= 60 else text[:57] + "..."
