"""A user's mistakes: their places and messages."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Location:
    """A place in a text file: line and column count from 1."""

    path: str
    line: int
    column: int
    text: str = ""

    def shifted(self, columns: int) -> Location:
        """The place `columns` further right on the same line."""
        return Location(self.path, self.line, self.column + columns, self.text)


@dataclass(frozen=True, order=True)
class Problem:
    """One mistake at one place."""

    location: Location
    message: str

    def __str__(self) -> str:
        at = self.location
        lines = [f"{at.path}:{at.line}:{at.column}: error: {self.message}"]
        if at.text:
            caret = "".join("\t" if c == "\t" else " " for c in at.text[: at.column - 1]) + "^"
            lines += [at.text, caret]
        return "\n".join(lines)


def near(word: str, known: Collection[str], cutoff: float = 0.6) -> str:
    """ " (did you mean 'x'?)" if a known word is close, else ""."""
    found = difflib.get_close_matches(word, sorted(known), 1, cutoff)
    return f" (did you mean {found[0]!r}?)" if found else ""


class SpecError(Exception):
    """The user's input is wrong; carries every mistake that was found."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


class Problems:
    """Collects mistakes, so that one run reports all of them."""

    def __init__(self) -> None:
        self._found: list[Problem] = []

    def add(self, location: Location, message: str) -> None:
        """Records one mistake and continues."""
        problem = Problem(location, message)
        if problem not in self._found:
            self._found.append(problem)

    def __iter__(self) -> Iterator[Problem]:
        return iter(sorted(self._found))

    def __bool__(self) -> bool:
        return bool(self._found)

    def raise_if_any(self) -> None:
        """Raises all collected mistakes, in the order of their places."""
        if self._found:
            raise SpecError(list(self))
