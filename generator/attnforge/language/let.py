"""The `let:` beside an expression: names for parts of it, which the parser expands."""

from __future__ import annotations

import dataclasses
import re

from ..expressions.parser import Scope, part
from ..expressions.tree import Node
from ..source.errors import Problems
from ..source.fields import Fields
from ..source.located_yaml import Entry, Value
from . import names

KEYS = ("expr", "let")
MOST = 50
EXAMPLE = '{expr: "score - far", let: {far: "abs(q - k)"}}'


def word(term: Value, problems: Problems) -> tuple[str | None, Value | None]:
    """The word of an inline term, `expr`, and its expression."""
    lone = next((entry for entry in term.entries() if entry.key == "let"), None)
    if lone and all(entry.key != "expr" for entry in term.entries()):
        problems.add(lone.at, f"let names parts of an expression: write {EXAMPLE}")
        return None, None
    return "expr", Fields(term, KEYS, problems, "key beside expr:").get("expr")


def scope(value: Value | None, expression: Value, around: Scope, problems: Problems) -> Scope:
    """The scope of an expression with a `let`: the names of its parts are added to those of `around`."""
    found: dict[str, Node] = {}
    wrong = set(around.wrong)
    entries = list(value.entries()) if value else []
    if value and not 1 <= len(entries) <= MOST:
        got = f"{len(entries)} names" if entries else "an empty one" if value.mapping else value.raw or value.kind
        problems.add(value.at, f"let: expected a mapping of up to {MOST} names, as in {EXAMPLE}, got {got}")
        return dataclasses.replace(around, wrong=wrong | {entry.key for entry in entries})
    for i, entry in enumerate(entries):
        later = {one.key: f"{one.key} is defined further down: a part reads names above it" for one in entries[i + 1 :]}
        closed = {**around.closed, **later, entry.key: f"{entry.key} cannot read itself"}
        node = _part(entry, dataclasses.replace(around, parts=dict(found), wrong=set(wrong), closed=closed), problems)
        if node is None:
            wrong.add(entry.key)
            continue
        found[entry.key] = node
        readers = (_text(one) for one in (expression, *(one.value for one in entries[i + 1 :])))
        if not any(re.search(rf"\b{entry.key}\b", text) for text in readers):
            problems.add(entry.at, f"neither the expression nor a name below reads {entry.key!r}")
    return dataclasses.replace(around, parts=found, wrong=wrong)


def label(value: Value | None, expression: Value) -> str:
    """An expression on one line as its author wrote it, followed by the definitions of its names."""
    named = "; ".join(f"{entry.key} = {_text(entry.value)}" for entry in value.entries()) if value else ""
    return f"{_text(expression)} where {named}" if named else _text(expression)


def _text(value: Value) -> str:
    return " ".join((value.data if isinstance(value.data, str) else value.raw).split())


def _part(entry: Entry, around: Scope, problems: Problems) -> Node | None:
    """The expression that a name stands for; None if a problem was added."""
    name, value = entry.key, entry.value
    taken = "an input" if name in around.inputs else "an option" if name in around.options else ""
    if why := names.wrong_keyword(name) or (taken and f"{name!r} is {taken}: a part needs another name"):
        problems.add(entry.at, why)
        return None
    if isinstance(value.data, bool) or not isinstance(value.data, str | int | float):
        problems.add(value.at, f'{name}: expected an expression such as "abs(q - k)", got {value.raw or value.kind}')
        return None
    return part(str(value.data) if isinstance(value.data, str) else value.raw, around, value.place, problems)
