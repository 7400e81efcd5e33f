"""Term files: masks and scores as data, found by name, with options and inputs that become keywords."""

from __future__ import annotations

import dataclasses
import json
import keyword
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ..expressions.folding import chosen, constant
from ..expressions.inputs import Input
from ..expressions.parser import LARGEST_TABLE, WORDS, Runtime, Scope, parse
from ..expressions.tree import Node
from ..source import resources, suggestions
from ..source.errors import Location, Problems
from ..source.fields import Fields, number, outside
from ..source.located_yaml import Value, read
from . import let, names
from .declarations import read_inputs

KEYS = ("name", "kind", "description", "options", "inputs", "keep", "score", "let")
OPTION_KEYS = ("type", "min", "max", "default", "runtime")
_LONGEST = 60  # name of a term
_NOWHERE = Location("", 1, 1)
_EXAMPLES = {"mask": 'keep: "k <= q"', "score": 'score: "score + bias[k]"'}


@dataclass(frozen=True)
class Option:
    """An option of a term, as its file declares it."""

    name: str
    type: Literal["int", "float", "bool"]
    minimum: float | None = None
    maximum: float | None = None
    default: int | float | bool | None = None
    runtime: str | None = None  # the keyword that it becomes if a spec says `runtime`
    least: str = ""  # the least value, if it is an expression of the term's other options

    @property
    def left(self) -> str:
        """How a spec leaves it to the call, as messages append it; "" if it cannot."""
        return f"; {self.name}: runtime leaves it to the call" if self.runtime else ""


@dataclass(frozen=True)
class Term:
    """A term file."""

    name: str
    kind: Literal["mask", "score"]
    description: str
    options: dict[str, Option]
    inputs: dict[str, Input]
    expression: Value
    let: Value | None
    path: Path
    plain: object = field(compare=False)  # the file's content without locations
    sound: bool  # whether no problem was added for its file
    refused: frozenset[str]  # options and inputs whose declaration is wrong: reading one is not another mistake
    options_known: bool  # whether all its options were understood; else those of specs are not checked

    def parse(self, options: Mapping[str, int | float | bool | Runtime], problems: Problems) -> Node | None:
        """The term's expression with its options filled in; None if a problem was added, now or for its file."""
        node = self.read(options, problems)
        return chosen(node) if node and self.sound else None

    def read(self, options: Mapping[str, int | float | bool | Runtime], problems: Problems) -> Node | None:
        """The term's expression, still with all choices that its options decide."""
        around = Scope(self.kind, options, self.filled(options), self.refused)
        scope = let.scope(self.let, self.expression, around, problems)
        return parse(str(self.expression.data), scope, self.expression.place, problems)

    def too_small(self, options: Mapping[str, int | float | bool | Runtime]) -> Iterator[tuple[str, str]]:
        """The options that are below the minimum that the others give, each with its message."""
        for option in self.options.values():
            value = options.get(option.name)
            if option.least and isinstance(value, int | float):
                node = parse(option.least, Scope("limit", options), lambda _: _NOWHERE, Problems())
                low = constant(node) if node else None
                if low is not None and not value >= low:
                    yield option.name, f"{option.name}: expected at least {low}, {option.least}, got {value}"

    def filled(self, options: Mapping[str, object]) -> dict[str, Input]:
        """The term's inputs with the sizes that its options give."""
        return {name: given.filled(options) for name, given in self.inputs.items()}


class Library:
    """The term files of some folders, each read when it is first named."""

    def __init__(self, folders: Sequence[Path], problems: Problems) -> None:
        self.folders, self.problems = folders, problems
        self._read: dict[str, Term | None] = {}

    def names(self) -> list[str]:
        """The names of all terms."""
        return sorted({path.stem for folder in self.folders for path in folder.glob("*.yaml") if path.is_file()})

    def _meant(self, name: str) -> str:
        known = self.names()
        if (turned := name.removeprefix("not ").strip()) in known and turned != name:
            return f": write {{not: {turned}}}"
        for sign, word in ((" and ", "all"), (" or ", "any")):
            parts = [part.strip() for part in name.split(sign)]
            if len(parts) > 1 and set(parts) <= set(known):
                return f": write {{{word}: [{', '.join(parts)}]}}"
        if not name.replace("-", "_").isidentifier():
            return f": write {{expr: {json.dumps(name)}}}"
        return suggestions.term(name, [*known, "expr"]) or self._sought(name)

    def _sought(self, name: str) -> str:
        """Where a term of this name was looked for, unless no file can have it."""
        own = [f"{shown(folder)}/{name}.yaml" for folder in self.folders if folder != resources.specs() / "terms"]
        return f": expected {' or '.join(own)}, or a shipped term" if own and len(name) <= _LONGEST else ""

    def find(self, name: str, at: Location, kind: str) -> Term | None:
        """The term of a name and kind; None if a problem was added."""
        if name not in self._read:
            # a name that no file can have is not looked for
            named = name.isidentifier() and len(name) <= _LONGEST
            paths = [folder / f"{name}.yaml" for folder in self.folders] if named else []
            found = next((path for path in paths if path.is_file() or path.is_symlink()), None)
            if found is None:
                self.problems.add(at, f"unknown term {name!r}{self._meant(name)}")
                return None
            if not found.is_file():
                self.problems.add(at, f"the term {name!r} cannot be read: {shown(found)} is a link that leads nowhere")
                return None
            self._read[name] = load(found, self.problems)
        term = self._read[name]
        if term is not None and term.kind != kind:
            self.problems.add(at, f"{name} is a {term.kind} term: it belongs under `{term.kind}`, not under `{kind}`")
            return None
        return term


def is_term(document: Value, problems: Problems) -> bool:
    """Whether a file in place of a spec is that of a term; reports it."""
    found = {entry.key: entry for entry in document.entries()}
    mark = next((found[key] for key in ("keep", "kind") if key in found), None)
    if mark is None or not found.keys() <= set(KEYS):
        return False
    said = "it under score" if "score" in found else "it under mask"
    problems.add(mark.at, f"unknown key {mark.key!r}: a file of a term is no spec; check a spec that names {said}")
    return True


def shown(path: Path) -> str:
    """A path as messages name it: relative to the working folder if it is below it."""
    try:
        return path.relative_to(Path.cwd()).as_posix()
    except ValueError:
        return path.as_posix()


def load(path: Path, problems: Problems) -> Term | None:
    """Reads a term file and reports its mistakes; None if its expression cannot be checked any further."""
    before = len(list(problems))
    document = read(path, shown(path), problems)
    if document is None:
        return None
    fields = Fields(document, KEYS, problems)
    name = fields.get("name")
    if name is not None and fields.text("name") not in (None, path.stem):
        problems.add(name.at, f"name: expected the file's name, {path.stem}, got {name.data}")
    for key in ("name", "kind", "description"):
        if key not in fields:
            problems.add(document.at, f"{key} is missing")
    # if the kind is unknown, the one whose expression the file has
    likely = "score" if "score" in fields and "keep" not in fields else "mask"
    kind: Literal["mask", "score"] = "mask" if fields.choice("kind", ("mask", "score"), likely) == "mask" else "score"
    wanted, other = ("keep", "score") if kind == "mask" else ("score", "keep")
    if other in fields:
        problems.add(fields.found[other].at, f"a {kind} term has {wanted!r}, not {other!r}")
    expression = fields.get(wanted)
    if expression is None:
        problems.add(document.at, f"{wanted} is missing, such as {_EXAMPLES[kind]}")
    elif not isinstance(expression.data, str):
        problems.add(expression.at, f"{wanted}: expected an expression, got {expression.kind}")
    options, inputs, refused, known = _declared(fields, kind, problems)
    described, named = fields.text("description") or "", fields.get("let")
    legible = all(x is None or x.mapping for x in (fields.get("options"), fields.get("inputs")))
    if expression is None or not isinstance(expression.data, str) or not legible:
        return None
    plain = document.plain()
    term = Term(path.stem, kind, described, options, inputs, expression, named, path, plain, True, refused, known)
    _unread(term, fields, problems)
    return dataclasses.replace(term, sound=len(list(problems)) == before)


def _declared(
    fields: Fields, kind: Literal["mask", "score"], problems: Problems
) -> tuple[dict[str, Option], dict[str, Input], frozenset[str], bool]:
    """A term's options, its inputs, the names of the refused ones, and whether all options were understood."""
    before = len(list(problems))
    options = _options(fields.get("options"), problems)
    known = len(list(problems)) == before
    declared = fields.get("inputs")
    inputs = read_inputs(declared, kind, problems, {o.name: o.type for o in options.values()})
    before = len(list(problems))
    for word in sorted(options.keys() & inputs.keys()):
        problems.add(fields.found["inputs"].at, f"{word!r} is both an option and an input")
    _sizing(options, inputs, fields, problems)
    known = known and len(list(problems)) == before
    refused = {entry.key for entry in declared.entries()} - inputs.keys() if declared else set()
    if not known:
        refused |= options.keys() | {name for name, given in inputs.items() if _given_by([given], options)}
    return options, {name: given for name, given in inputs.items() if name not in refused}, frozenset(refused), known


def _given_by(inputs: Iterable[Input], options: Collection[str]) -> set[str]:
    """The options that give sizes of axes."""
    found = {x for given in inputs for axis in given.axes for x in (axis.size, axis.per)}
    return {x for x in found if isinstance(x, str) and x in options}


def _sizing(options: Mapping[str, Option], inputs: Mapping[str, Input], fields: Fields, problems: Problems) -> None:
    """Reports options that give sizes of axes but are left to the call or have unsuitable limits."""
    for name in sorted(_given_by(inputs.values(), options)):
        option = options[name]
        at = next(entry.at for entry in fields.found["options"].value.entries() if entry.key == name)
        if option.runtime is not None:
            problems.add(at, f"{name} gives the size of an axis: it cannot be left to the call")
        if (option.minimum or 0) < 1 or (option.maximum or math.inf) > LARGEST_TABLE:
            limits = f"a min of at least 1 and a max up to {LARGEST_TABLE}"
            problems.add(at, f"{name} gives the size of an axis: it needs {limits}")


def _unread(term: Term, fields: Fields, problems: Problems) -> None:
    """Reports the options and inputs that the term's expression does not read."""
    sizing = _given_by(term.inputs.values(), term.options)
    stand_ins: dict[str, int | float | bool | Runtime] = {
        name: False if option.type == "bool" else Runtime(name, option.type) for name, option in term.options.items()
    }
    stand_ins |= {name: int(term.options[name].minimum or 1) for name in sizing}
    found = Problems()
    node = term.read(stand_ins, found)
    if node is None:
        # reported once a spec gives the options their values, which may change the mistakes
        return
    words = {*re.findall(r"\w+", let.label(term.let, term.expression)), *sizing}
    read = {str(n.value) for n in node.walk() if n.op == "input"}
    read |= {number for name in read for number in term.inputs[name].numbers}
    for key, what, unread in (
        ("options", "option", term.options.keys() - words),
        ("inputs", "input", term.inputs.keys() - read),
    ):
        value = fields.get(key)
        for entry in value.entries() if value is not None else ():
            if entry.key in unread:
                problems.add(entry.at, f"the term does not read the {what} {entry.key!r}")


def _options(value: Value | None, problems: Problems) -> dict[str, Option]:
    found: dict[str, Option] = {}
    if value is None:
        return found
    if not value.mapping:
        problems.add(value.at, f"options: expected a mapping, got {value.kind}")
    for entry in value.entries():
        if entry.key in WORDS or keyword.iskeyword(entry.key) or not names.IDENTIFIER.fullmatch(entry.key):
            problems.add(entry.at, f"{entry.key!r} cannot be the name of an option")
            continue
        fields = Fields(entry.value, OPTION_KEYS, problems)
        if entry.value.mapping and "type" not in fields:
            problems.add(entry.value.at, "type is missing: int, float or bool")
        kind = fields.choice("type", ("int", "float", "bool"), "int")
        low, high = fields.limits(kind, formula=True)
        default = number(given, kind, problems, "default") if (given := fields.get("default")) else None
        if default is not None and (why := outside(default, low, high)):
            problems.add(fields.found["default"].at, f"default: {why}")
        runtime = fields.text("runtime")
        if runtime is not None and (why := names.wrong_keyword(runtime)) and (at := fields.get("runtime")):
            problems.add(at.at, f"runtime: {why}")
        if runtime is not None and kind == "bool" and (at := fields.get("runtime")):
            problems.add(at.at, "runtime: only numbers can be left to the call")
        typed: Literal["int", "float", "bool"] = "int" if kind == "int" else "float" if kind == "float" else "bool"
        least = str(given.data) if (given := fields.get("min")) and isinstance(given.data, str) else ""
        if least and runtime is not None:
            problems.add(fields.found["min"].at, "min: what a call is held to is a number, not an expression")
        found[entry.key] = Option(entry.key, typed, low, high, default, runtime, least)
    _limits(value, found, problems)
    return found


def _limits(value: Value, options: Mapping[str, Option], problems: Problems) -> None:
    """Reports mistakes in least values that are expressions: these read options that a spec fixes."""
    fixed: dict[str, int | float | bool | Runtime] = {
        o.name: False if o.type == "bool" else Runtime(o.name, o.type) for o in options.values() if o.runtime is None
    }
    for entry in value.entries():
        if entry.key in options and options[entry.key].least:
            least = next(inner.value for inner in entry.value.entries() if inner.key == "min")
            others = {name: stand_in for name, stand_in in fixed.items() if name != entry.key}
            parse(str(least.data), Scope("limit", others), least.place, problems)
