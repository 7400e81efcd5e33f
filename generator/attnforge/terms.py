"""Term files: masks and scores as data, found by name, with options and inputs that become keywords."""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from . import names
from .errors import Location, Problems
from .expression import Node
from .fields import Fields, near, number
from .parser import WORDS, Runtime, Scope, parse
from .yaml_source import Value, read

ROW_AXES = ("query", "key", "token")
AXES = ("batch", "head", "kv_head", *ROW_AXES)
# terms of the language that this version does not have
LATER = frozenset(
    "chunked dilated segments global_tokens local_2d tree block_sparse bias relative_bias".split()  # noqa: SIM905
)
_EXAMPLES = {"mask": 'keep: "k <= q"', "score": 'score: "score + bias[k]"'}


@dataclass(frozen=True)
class Input:
    """A tensor (or, without axes, a scalar) that expressions read and `attention` takes as a keyword."""

    name: str
    axes: tuple[str, ...]
    dtype: Literal["float", "int", "bool"] = "float"
    grad: bool = False
    scan: Literal["cumsum"] | None = None
    default: Node | None = None  # over h and heads
    description: str = ""


@dataclass(frozen=True)
class Option:
    """An option of a term, as its file declares it."""

    name: str
    type: Literal["int", "float", "bool"]
    minimum: float | None = None
    maximum: float | None = None
    default: int | float | bool | None = None
    runtime: str | None = None  # the keyword that it becomes where a spec says `runtime`


@dataclass(frozen=True)
class Term:
    """A term file."""

    name: str
    kind: Literal["mask", "score"]
    description: str
    options: dict[str, Option]
    inputs: dict[str, Input]
    expression: Value
    path: Path
    plain: object = field(compare=False)  # the file's content without places

    def parse(self, options: Mapping[str, int | float | bool | Runtime], problems: Problems) -> Node | None:
        """The term's expression with its options filled in."""
        scope = Scope(self.kind, options, self.inputs)
        return parse(str(self.expression.data), scope, self.expression.place, problems)


class Library:
    """The term files of some folders, each read when it is first named."""

    def __init__(self, folders: Sequence[Path], problems: Problems) -> None:
        self.folders, self.problems = folders, problems
        self._read: dict[str, Term | None] = {}

    def names(self) -> list[str]:
        """The names of all terms."""
        return sorted({path.stem for folder in self.folders for path in folder.glob("*.yaml")})

    def find(self, name: str, at: Location, kind: str) -> Term | None:
        """The term of a name and kind; None if a problem was added."""
        if name not in self._read:
            found = next((f / f"{name}.yaml" for f in self.folders if (f / f"{name}.yaml").is_file()), None)
            if found is None or not name.isidentifier():
                if name in LATER:
                    self.problems.add(at, f"the term {name!r} is not supported yet")
                else:
                    self.problems.add(at, f"unknown term {name!r}{near(name, [*self.names(), 'expr'])}")
                return None
            self._read[name] = load(found, self.problems)
        term = self._read[name]
        if term is not None and term.kind != kind:
            self.problems.add(at, f"{name} is a {term.kind} term: it belongs under `{term.kind}`, not under `{kind}`")
            return None
        return term


def shown(path: Path) -> str:
    """A path as messages name it: relative to the working folder where it lies below it."""
    try:
        return path.relative_to(Path.cwd()).as_posix()
    except ValueError:
        return path.as_posix()


def load(path: Path, problems: Problems) -> Term | None:
    """A term file; None if a problem was added."""
    before = len(list(problems))
    document = read(path, shown(path), problems)
    if document is None:
        return None
    known = ("name", "kind", "description", "options", "inputs", "keep", "score")
    fields = Fields(document, known, problems)
    name = fields.get("name")
    if name is not None and fields.text("name") not in (None, path.stem):
        problems.add(name.at, f"name: expected the file's name, {path.stem}, got {name.data}")
    for key in ("name", "kind", "description"):
        if key not in fields:
            problems.add(document.at, f"{key} is missing")
    kind: Literal["mask", "score"] = "mask" if fields.choice("kind", ("mask", "score"), "mask") == "mask" else "score"
    wanted, other = ("keep", "score") if kind == "mask" else ("score", "keep")
    if other in fields:
        problems.add(fields.found[other].at, f"a {kind} term has {wanted!r}, not {other!r}")
    expression = fields.get(wanted)
    if expression is None:
        problems.add(document.at, f"{wanted} is missing, such as {_EXAMPLES[kind]}")
    elif not isinstance(expression.data, str):
        problems.add(expression.at, f"{wanted}: expected an expression, got {expression.kind}")
    options = _options(fields.get("options"), problems)
    inputs = read_inputs(fields.get("inputs"), kind, problems)
    for word in sorted(options.keys() & inputs.keys()):
        problems.add(fields.found["inputs"].at, f"{word!r} is both an option and an input")
    if len(list(problems)) > before or expression is None:
        return None
    term = Term(path.stem, kind, fields.text("description") or "", options, inputs, expression, path, document.plain())
    _unread(term, fields, problems)
    return None if len(list(problems)) > before else term


def _unread(term: Term, fields: Fields, problems: Problems) -> None:
    """Tells the options and inputs that the term's expression does not read."""
    stand_ins: dict[str, int | float | bool | Runtime] = {
        name: False if option.type == "bool" else Runtime(name, option.type) for name, option in term.options.items()
    }
    found = Problems()
    node = term.parse(stand_ins, found)
    if node is None:
        # told once a spec gives the options their values, which may change what is wrong
        return
    words = set(re.findall(r"\w+", str(term.expression.data)))
    read = {str(n.value) for n in node.walk() if n.op == "input"}
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
        if entry.key in WORDS or keyword.iskeyword(entry.key) or not re.fullmatch(r"[a-z][a-z0-9_]*", entry.key):
            problems.add(entry.at, f"{entry.key!r} cannot be the name of an option")
            continue
        fields = Fields(entry.value, ("type", "min", "max", "default", "runtime"), problems)
        if entry.value.mapping and "type" not in fields:
            problems.add(entry.value.at, "type is missing: int, float or bool")
        kind = fields.choice("type", ("int", "float", "bool"), "int")
        limits = {
            key: number(limit, "float" if kind == "bool" else kind, problems, key)
            for key in ("min", "max")
            if (limit := fields.get(key))
        }
        default = number(given, kind, problems, "default") if (given := fields.get("default")) else None
        _limits(fields, kind, limits, default, problems)
        runtime = fields.text("runtime")
        if runtime is not None and (why := names.wrong_keyword(runtime)) and (at := fields.get("runtime")):
            problems.add(at.at, f"runtime: {why}")
        if runtime is not None and kind == "bool" and (at := fields.get("runtime")):
            problems.add(at.at, "runtime: only numbers can be left to the call")
        typed: Literal["int", "float", "bool"] = "int" if kind == "int" else "float" if kind == "float" else "bool"
        found[entry.key] = Option(entry.key, typed, limits.get("min"), limits.get("max"), default, runtime)
    return found


def _limits(
    fields: Fields, kind: str, limits: Mapping[str, float | None], default: float | None, problems: Problems
) -> None:
    """Tells limits that contradict the type, each other or the default."""
    if kind == "bool":
        for key in limits:
            problems.add(fields.found[key].at, f"{key}: a truth value has no limits")
        return
    low, high = limits.get("min"), limits.get("max")
    if low is not None and high is not None and low > high:
        problems.add(fields.found["max"].at, f"max: expected at least min, {low}, got {high}")
    elif default is not None and low is not None and default < low:
        problems.add(fields.found["default"].at, f"default: expected at least {low}, got {default}")
    elif default is not None and high is not None and default > high:
        problems.add(fields.found["default"].at, f"default: expected at most {high}, got {default}")


def read_inputs(value: Value | None, kind: str, problems: Problems) -> dict[str, Input]:
    """The declarations of inputs; `kind` is mask, score, or spec where terms of both kinds may read them."""
    found: dict[str, Input] = {}
    if value is None:
        return found
    if not value.mapping:
        problems.add(value.at, f"inputs: expected a mapping, got {value.kind}")
    for entry in value.entries():
        why = names.wrong_keyword(entry.key)
        if why:
            problems.add(entry.at, why)
            continue
        fields = Fields(entry.value, ("axes", "dtype", "grad", "scan", "default", "description"), problems)
        if not entry.value.mapping:
            continue
        given = _input(entry.key, fields, kind, problems)
        if given is not None:
            found[entry.key] = given
    return found


def _input(name: str, fields: Fields, kind: str, problems: Problems) -> Input | None:
    assert fields.at is not None
    axes = _axes(fields, problems)
    dtype = fields.choice("dtype", ("float", "int", "bool"), "float")
    grad = fields.truth("grad")
    scan = fields.choice("scan", ("cumsum",), "")
    description = fields.text("description") or ""
    wrong = False

    def fail(key: str, message: str) -> None:
        nonlocal wrong
        wrong = True
        problems.add(fields.found[key].at, message)

    if grad and dtype != "float":
        fail("grad", f"only float inputs have a gradient, {name} is {dtype}")
    if grad and kind == "mask":
        fail("grad", "only inputs of score terms have a gradient: a mask has no slope")
    if grad and axes == ():
        fail(
            "grad",
            f"{name} is a number of the call, without axes: it has no gradient",
        )
    if scan and (axes is None or "token" not in axes or dtype != "float"):
        fail("scan", "only float inputs with a token axis can be scanned")
    default = None
    if (given := fields.get("default")) is not None:
        if axes and set(axes) - {"head"}:
            fail("default", "only inputs with no other axis than head can have a default")
        elif isinstance(given.data, bool) or not isinstance(given.data, str | int | float):
            fail(
                "default", f"default: expected a number or an expression of h and heads, got {given.raw or given.kind}"
            )
        elif axes == ():
            fail("default", "a number of the call cannot have a default: make it an option of a term")
        elif dtype == "bool":
            fail("default", "an input of truth values cannot have a default")
        elif isinstance(given.data, float) and not math.isfinite(given.data):
            fail("default", f"default: expected a finite number, got {given.raw}")
        else:
            default = parse(str(given.data), Scope("default"), given.place, problems)
            wrong = wrong or default is None
            # floor's whole numbers are of type float
            if default is not None and dtype == "int" and default.type != "int" and default.op != "floor":
                fail("default", f"{name} is int: its default has to be a whole number")
    if axes is None or wrong:
        return None
    typed: Literal["float", "int", "bool"] = "float" if dtype == "float" else "int" if dtype == "int" else "bool"
    return Input(name, axes, typed, grad, "cumsum" if scan else None, default, description)


def _axes(fields: Fields, problems: Problems) -> tuple[str, ...] | None:
    value = fields.get("axes")
    if value is None:
        assert fields.at is not None
        problems.add(fields.at, "axes is missing, such as axes: [head]; axes: [] for a number")
        return None
    if not isinstance(value.data, list) or value.mapping:
        problems.add(value.at, f"axes: expected a list, got {value.raw or value.kind}")
        return None
    axes: list[str] = []
    good = True
    for item in value.items():
        axis = item.data
        if isinstance(axis, int) and not isinstance(axis, bool):
            problems.add(item.at, f"an axis of a literal size, {axis}, is not supported yet")
            good = False
        elif axis not in AXES:
            problems.add(item.at, f"unknown axis {item.raw or item.kind!r}{near(str(axis), AXES)}")
            good = False
        elif axis in axes:
            problems.add(item.at, f"axis {axis} stands here for the second time")
            good = False
        else:
            axes.append(str(axis))
    rows = [axis for axis in axes if axis in ROW_AXES]
    if len(rows) > 1:
        problems.add(value.at, f"an input with the axes {' and '.join(rows)} is not supported yet")
        good = False
    if {"head", "kv_head"} <= set(axes):
        problems.add(value.at, "head and kv_head cannot both be axes of one input: head tells them apart already")
        good = False
    return tuple(axes) if good else None
