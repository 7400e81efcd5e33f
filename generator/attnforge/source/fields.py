"""Reads located YAML values: each reader returns a plain value, or adds a problem and returns None."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping

from .errors import Problems, near
from .located_yaml import Entry, Value


class Fields:
    """The entries of a mapping by key; unknown keys are reported, and any value that is not a mapping."""

    def __init__(
        self,
        value: Value | None,
        known: Collection[str],
        problems: Problems,
        what: str = "key",
        meant: Callable[[str], str] = lambda word: "",
    ) -> None:
        self.problems = problems
        self.found: dict[str, Entry] = {}
        self.at = value.at if value else None
        if value is None:
            return
        if not value.mapping:
            example = value.raw if isinstance(value.data, int | float) else "..."
            wanted = f"expected a mapping such as {{{next(iter(known), 'key')}: {example}}}"
            problems.add(value.at, f"{wanted}, got {value.kind}")
            return
        for entry in value.entries():
            if entry.key in known:
                self.found[entry.key] = entry
            else:
                problems.add(entry.at, f"unknown {what} {entry.key!r}{meant(entry.key) or near(entry.key, known)}")

    def __contains__(self, key: str) -> bool:
        return key in self.found

    def get(self, key: str) -> Value | None:
        """The value of a key, or None."""
        return self.found[key].value if key in self.found else None

    def text(self, key: str) -> str | None:
        """Text on one line."""
        value = self.get(key)
        return None if value is None else text(value, self.problems, key)

    def choice(self, key: str, choices: Mapping[str, object] | Collection[str], default: str) -> str:
        """One of a few words."""
        value = self.get(key)
        if value is None:
            return default
        if isinstance(value.data, str) and value.data in choices:
            return value.data
        words = " or ".join(choices)
        hint = near(value.data, choices) if isinstance(value.data, str) else ""
        got = value.raw or value.kind
        self.problems.add(value.at, f"{key}: expected {words}, got {got}{hint}")
        return default

    def truth(self, key: str, hint: str = "") -> bool:
        """true or false; false if it is not given. `hint` is as in `number`."""
        value = self.get(key)
        return value is not None and bool(number(value, "bool", self.problems, key, hint))

    def limits(self, kind: str, *, formula: bool = False) -> tuple[int | float | None, int | float | None]:
        """`min` and `max` of values of this type; None for one that is not given, or if a min is a `formula`."""
        if kind == "bool":
            for key in ("min", "max"):
                if key in self:
                    self.problems.add(self.found[key].at, f"{key}: a truth value has no limits")
            return None, None
        numbers = {key: x for key in ("min", "max") if (x := self.get(key))}
        if formula and "min" in numbers and isinstance(numbers["min"].data, str):
            del numbers["min"]
        low, high = (
            number(numbers[key], kind, self.problems, key) if key in numbers else None for key in ("min", "max")
        )
        if low is not None and high is not None and low > high:
            self.problems.add(self.found["max"].at, f"max: expected at least min, {low}, got {high}")
        return low, high


def text(value: Value, problems: Problems, key: str) -> str | None:
    """Text on one line, of at most 300 characters, without control characters."""
    if not isinstance(value.data, str):
        hint = f': put quotes around it, "{value.raw}"' if value.raw else ""
        problems.add(value.at, f"{key}: expected text, got {value.kind}{hint}")
        return None
    line = value.data.strip()
    if len(line) > 300:
        problems.add(value.at, f"{key}: expected at most 300 characters, got {len(line)}")
    elif not line.isprintable():
        problems.add(value.at, f"{key}: expected one line without control characters")
    else:
        return line
    return None


def words(
    value: Value,
    kind: str,
    known: Collection[str],
    problems: Problems,
    *,
    empty: bool = False,
    meant: Callable[[str], str] = lambda word: "",
) -> list[tuple[str, Value]]:
    """The words of a list that are known, each once, with their values; all others are reported as problems.

    `empty`: whether the list may be empty. `meant` gives suggestions for unknown words.
    """
    found: dict[str, Value] = {}
    if value.mapping or not isinstance(value.data, list) or not (value.data or empty):
        got = "an empty one" if value.data == [] else value.shown("list")
        said = f"{kind}s: expected a list such as [{next(iter(known))}], got {got}"
        problems.add(value.at, said)
        return []
    for item in value.items():
        if not isinstance(item.data, str) or item.data not in known:
            word = item.raw or item.kind
            *some, last = known
            hint = meant(word) or near(word, known) or f": expected {', '.join(some)} or {last}"
            problems.add(item.at, f"unknown {kind} {word!r}{hint}")
        elif item.data in found:
            problems.add(item.at, f"{item.data} stands twice")
        else:
            found[item.data] = item
    return [*found.items()]


def outside(found: float, low: float | None, high: float | None) -> str | None:
    """What was expected in place of a number outside of its limits; None if it is within them."""
    if low is not None and found < low:
        return f"expected at least {low}, got {found}"
    return f"expected at most {high}, got {found}" if high is not None and found > high else None


def number(value: Value, kind: str, problems: Problems, key: str, hint: str = "") -> int | float | bool | None:
    """A number or truth value of the type `kind`; `hint` tells what to do about a number for a truth value, or a text
    for a number.
    """
    data = value.data
    if kind == "bool" and isinstance(data, bool):
        return data
    if kind == "int" and isinstance(data, int) and not isinstance(data, bool):
        if abs(data) <= 2**28:
            return data
        problems.add(value.at, f"{key}: whole numbers may go up to 2**28, got {data}")
        return None
    if kind == "float" and isinstance(data, int | float) and not isinstance(data, bool) and math.isfinite(data):
        if abs(data) <= 1e30:
            return float(data)
        problems.add(value.at, f"{key}: numbers may go up to 1e30, got {value.raw}")
        return None
    names = {"int": "a whole number", "float": "a number", "bool": "true or false"}
    if isinstance(data, float) and not math.isfinite(data):
        names = {"int": "a whole number up to 2**28", "float": "a finite number", "bool": "true or false"}
    mixed_up = not isinstance(data, str) if kind == "bool" else isinstance(data, str)
    problems.add(value.at, f"{key}: expected {names[kind]}, got {value.shown(kind, hint if mixed_up else '')}")
    return None
