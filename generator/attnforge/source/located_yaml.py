"""YAML text -> values that know their place. YAML's special features are refused: aliases, tags, duplicate keys."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from .errors import Location, Problems

LARGEST, DEEPEST = 1 << 20, 64

Plain = str | int | float | bool | None

# by kind, patterns of text that would be of that kind without its quotation marks
_UNQUOTED = {
    "int": r"-?[0-9]+",
    "float": r"-?([0-9]+\.?[0-9]*|\.[0-9]+)",
    "bool": "true|false",
    "list": r"\[.*\]",
    "mapping": r"\{.*\}",
}


@dataclass(frozen=True)
class Entry:
    """A key of a mapping and its value."""

    key: str
    at: Location
    value: Value


@dataclass(frozen=True)
class Value:
    """A node of a YAML document."""

    at: Location
    data: Plain | list[Value] | list[Entry]
    mapping: bool = False
    lines: tuple[Location, ...] = ()  # if the file has the text's characters as they are: where each line begins
    raw: str = ""  # a scalar as it was written
    quoted: bool = False  # whether that was in quotation marks

    @property
    def kind(self) -> str:
        """Its kind, in words."""
        if self.mapping:
            return "a mapping"
        names = {str: "text", bool: "a truth value", int: "a whole number", float: "a number", list: "a list"}
        return names.get(type(self.data), "nothing")

    @property
    def said(self) -> str:
        """The scalar as it was written; "" if it stands for nothing, as `null` does."""
        return "" if self.data is None else self.raw

    def misquoted(self, kind: str) -> bool:
        """True for text that would be of this kind without its quotation marks."""
        return self.quoted and re.fullmatch(_UNQUOTED[kind], self.raw) is not None

    def shown(self, kind: str, hint: str = "") -> str:
        """The value as messages show it if this kind was expected, and what to do about it."""
        off = f'"{self.raw}": take the quotation marks off'
        return off if self.misquoted(kind) else f"{self.raw or self.kind}{hint}"

    def place(self, offset: int) -> Location:
        """The place of a character of the text."""
        if len(self.lines) == 1:
            return self.lines[0].shifted(offset)
        # when YAML joins lines, it changes nothing but spaces
        left = len(_closed(str(self.data)[:offset]))
        for line in self.lines:
            columns = [i for i, c in enumerate(line.text[line.column - 1 :]) if not c.isspace()]
            if left < len(columns):
                return line.shifted(columns[left])
            left -= len(columns)
        return self.at

    def plain(self) -> object:
        """The value without places, for hashing."""
        if self.mapping:
            return {e.key: e.value.plain() for e in self.entries()}
        return [v.plain() for v in self.items()] if isinstance(self.data, list) else self.data

    def entries(self) -> Iterator[Entry]:
        """The entries of a mapping; none of other values."""
        if self.mapping and isinstance(self.data, list):
            yield from (e for e in self.data if isinstance(e, Entry))

    def items(self) -> Iterator[Value]:
        """The values of a list; none of other values."""
        if not self.mapping and isinstance(self.data, list):
            yield from (v for v in self.data if isinstance(v, Value))


class _Resolver(yaml.SafeLoader):
    """Reads numbers and truth values as in YAML 1.2: `no`, `on`, 1_000 and 1:30 stay text."""


_Resolver.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", list("tTfF")),
    ("int", r"^[-+]?(?:0|[1-9][0-9]*)$", list("-+0123456789")),
    ("float", r"^[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?$", list("-+0123456789.")),
    ("float", r"^[-+]?\.(?:inf|Inf|INF)$|^\.(?:nan|NaN|NAN)$", list("-+.")),
):
    _Resolver.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), _first)


def read(path: Path, shown: str, problems: Problems) -> Value | None:
    """The one document of a file; None if a problem was added. `shown` is the path as messages name it."""
    with path.open("rb") as file:
        return parse(file.read(LARGEST + 1), shown, problems)


def parse(data: bytes, shown: str, problems: Problems) -> Value | None:
    """The one document of a text, as `read` gives that of a file."""
    start = Location(shown, 1, 1)
    if len(data) > LARGEST:
        problems.add(start, f"a spec may have {LARGEST} bytes, this file has more")
        return None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        problems.add(Location(shown, line, 1), "this file is not UTF-8 text")
        return None
    return _Reader(text, shown, problems).document()


class _Reader:
    def __init__(self, text: str, shown: str, problems: Problems) -> None:
        self.text, self.shown, self.problems = text, shown, problems
        self.lines = text.splitlines()

    def location(self, mark: Any) -> Location:
        return self.at(mark.line, mark.column)

    def at(self, line: int, column: int) -> Location:
        return Location(self.shown, line + 1, column + 1, self.lines[line] if line < len(self.lines) else "")

    def document(self) -> Value | None:
        try:
            # events first: an alias or deep nesting is refused before anything is built from it
            if not self._sound():
                return None
            nodes = list(yaml.compose_all(self.text, _Resolver))
        except yaml.reader.ReaderError as error:
            before = self.text[: error.position]
            line = before.count("\n")
            self.problems.add(
                self.at(line, len(before) - before.rfind("\n") - 1), "this character is not allowed in YAML"
            )
            return None
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            at = self.location(mark) if mark else self.at(0, 0)
            self.problems.add(at, f"this is not YAML: {error.problem or error.context}{_mend(error.problem)}")
            return None
        except RecursionError:
            self.problems.add(self.at(0, 0), f"a spec may be nested {DEEPEST} deep")
            return None
        if len(nodes) != 1 or (isinstance(nodes[0], yaml.ScalarNode) and not nodes[0].value):
            if len(nodes) > 1:
                self.problems.add(self.location(nodes[1].start_mark), "expected one document, found another")
            else:
                self.problems.add(self.at(0, 0), "this file is empty")
            return None
        return self.value(nodes[0])

    def _sound(self) -> bool:
        depth = 0
        for event in yaml.parse(self.text, _Resolver):
            at = self.location(event.start_mark)
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
                self.problems.add(at, "anchors and aliases are not part of the language: write it out")
                return False
            tag = getattr(event, "tag", None)
            if tag and tag != "!":
                tag = tag.replace("tag:yaml.org,2002:", "!!")
                self.problems.add(at, f"tags such as {tag} are not part of the language")
                return False
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            if depth > DEEPEST:
                self.problems.add(at, f"a spec may be nested {DEEPEST} deep")
                return False
        return True

    def value(self, node: yaml.Node) -> Value:
        at = self.location(node.start_mark)
        if isinstance(node, yaml.MappingNode):
            return Value(at, self._entries(node), True)
        if isinstance(node, yaml.SequenceNode):
            return Value(at, [self.value(item) for item in node.value])
        assert isinstance(node, yaml.ScalarNode)
        return self._scalar(node, at)

    def _entries(self, node: yaml.MappingNode) -> list[Entry]:
        found: dict[str, Entry] = {}
        for key_node, value_node in node.value:
            at = self.location(key_node.start_mark)
            value = self.value(value_node)
            if not isinstance(key_node, yaml.ScalarNode):
                self.problems.add(at, "a key has to be a word")
            elif key_node.value in found:
                self.problems.add(at, f"key {key_node.value!r} is given a second time here")
            else:
                found[key_node.value] = Entry(key_node.value, at, value)
        return list(found.values())

    def _scalar(self, node: yaml.ScalarNode, at: Location) -> Value:
        kind = node.tag.rsplit(":", 1)[-1]
        text = node.value
        if kind == "null":
            return Value(at, None, raw=text)
        if kind == "bool":
            return Value(at, text.lower() == "true", raw=text)
        if kind == "int":
            # inf stands for an integer too large for any option: its reader reports it
            return Value(at, int(text) if len(text) <= 18 else math.inf, raw=text)
        if kind == "float":
            return Value(at, math.inf if text[-1].isalpha() else float(text), raw=text)
        return Value(at, text, lines=self._lines(node), raw=text, quoted=node.style in ("'", '"'))

    def _lines(self, node: yaml.ScalarNode) -> tuple[Location, ...]:
        """Where each line of a text begins, if the file has its characters as they are, apart from spaces."""
        begin, end = node.start_mark, node.end_mark
        block = node.style in ("|", ">")
        first = self.at(begin.line, begin.column + (node.style in ("'", '"')))
        further = (self.at(line, 0) for line in range(begin.line + 1, end.line + (not block)))
        indented = (line.shifted(len(line.text) - len(line.text.lstrip())) for line in further)
        lines = (*(() if block else (first,)), *indented)
        written = [line.text[line.column - 1 :] for line in lines]
        if len(lines) == 1:
            return lines if written[0].startswith(node.value.rstrip("\n")) else ()
        return lines if _closed("".join(written)).startswith(_closed(node.value)) else ()


def _mend(problem: str | None) -> str:
    """What to do about a problem that PyYAML reports, "" if its message says so."""
    if problem == "mapping values are not allowed here":
        return ": put quotes around a text with a colon, or begin a key in the column of the others"
    return ""


def _closed(text: str) -> str:
    """A text without spaces."""
    return "".join(text.split())
