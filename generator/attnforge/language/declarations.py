"""The `inputs:` of a spec or a term -> the inputs that expressions read."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Literal

from ..expressions.divisors import divisors
from ..expressions.evaluation import evaluate
from ..expressions.inputs import AXES, HEAD_AXES, Axis, Input
from ..expressions.parser import LARGEST_FLOAT, LARGEST_TABLE, Scope, parse
from ..expressions.tree import Node
from ..source import suggestions
from ..source.errors import Problems
from ..source.fields import Fields, number, outside
from ..source.located_yaml import Value
from . import names

KEYS = ("axes", "dtype", "grad", "scan", "default", "min", "max", "description")
_HEADS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 64, 128)


def read_inputs(
    value: Value | None, kind: str, problems: Problems, options: Mapping[str, str] | None = None
) -> dict[str, Input]:
    """The declarations of inputs; `kind` is mask, score, or spec if terms of both kinds may read them.

    `options` are the types of a term's options, by name: integer options may give the sizes of axes.
    """
    found: dict[str, Input] = {}
    if value is None:
        return found
    declared, divided = {entry.key for entry in value.entries()}, list[tuple[str, Value, str]]()
    sound = set[str]()
    if not value.mapping:
        problems.add(value.at, f"inputs: expected a mapping, got {value.kind}")
    for entry in value.entries():
        why = names.wrong_keyword(entry.key)
        if why:
            problems.add(entry.at, why)
            continue
        before = len(list(problems))
        fields = Fields(entry.value, KEYS, problems, meant=suggestions.declared)
        if not entry.value.mapping:
            continue
        reader = _Reader(entry.key, fields, kind, problems, options or {}, declared)
        given = reader.input()
        divided += reader.divided
        if given is not None:
            found[entry.key] = given
        if len(list(problems)) == before:
            sound.add(entry.key)
    for name, item, by in divided:
        if by in sound and (found[by].axes or found[by].dtype != "int" or (found[by].minimum or 0) < 1):
            needed = "axes: [], dtype: int, and a min of at least 1"
            problems.add(item.at, f"{item.raw}: {by} gives the size of an axis: it needs {needed}")
            sound.remove(by)
        if by not in sound:
            found.pop(name, None)
    return found


def unread(document: Value, known: Collection[str], left: Collection[str], problems: Problems) -> None:
    """Reports the inputs in `left`, which nothing reads, except those that occur under a key that is not known."""
    elsewhere = " ".join(str(entry.value.plain()) for entry in document.entries() if entry.key not in known)
    declared = (one for entry in document.entries() if entry.key == "inputs" for one in entry.value.entries())
    for entry in declared:
        if entry.key in left and not re.search(rf"\b{entry.key}\b", elsewhere):
            problems.add(entry.at, f"no expression reads the input {entry.key!r}")


def dividing(inputs: Value | None, found: Mapping[str, Input], terms: Iterable[Node], problems: Problems) -> None:
    """Reports integer divisors that are 0 in every call, by their limits, or in each without them, by their default."""
    divided = {node.value for node in divisors(terms) if node.op == "input"}
    for entry in inputs.entries() if inputs else ():
        given = found.get(entry.key)
        if given is None or entry.key not in divided or given.axes:
            continue
        places = {one.key: one.value.at for one in entry.value.entries()}
        if given.minimum == given.maximum == 0:
            problems.add(places["max"], f"max of {entry.key!r}: expected one that leaves a number to divide by, got 0")
        elif given.value == 0:
            problems.add(places["default"], f"default of {entry.key!r}: expected a number to divide by, got 0")


def _wrong_somewhere(default: Node, given: Input) -> str:
    """Why a default is not a valid value for some head, tried for a few numbers of heads; "" if it always is."""
    low = -LARGEST_FLOAT if given.minimum is None else given.minimum
    high = LARGEST_FLOAT if given.maximum is None else given.maximum
    for heads in _HEADS:
        for h in range(heads):
            try:
                value = evaluate(default, {"h": h, "heads": heads})
            except ArithmeticError:
                value = math.nan
            if isinstance(value, complex) or not -LARGEST_FLOAT <= value <= LARGEST_FLOAT:
                return f"expected a finite number for every head, got {value} for head {h} of {heads}"
            if not low <= value <= high:
                wanted = f"at least {low}" if value < low else f"at most {high}"
                return f"expected {wanted}, got {value} for head {h} of {heads}"
    return ""


class _Reader:
    """Reads the declaration of one input."""

    def __init__(
        self,
        name: str,
        fields: Fields,
        kind: str,
        problems: Problems,
        options: Mapping[str, str],
        declared: Collection[str],
    ) -> None:
        self.name, self.fields, self.kind, self.problems, self.options = name, fields, kind, problems, options
        self.declared = declared  # the names of all inputs
        self.divided: list[tuple[str, Value, str]] = []  # the input's name, an axis, and the input that divides it
        self.wrong = False

    def fail(self, key: str, message: str) -> None:
        """Adds a problem at a key."""
        self.wrong = True
        self.problems.add(self.fields.found[key].at, message)

    def input(self) -> Input | None:
        """The input; None if a problem was added."""
        fields, name = self.fields, self.name
        assert fields.at is not None
        axes = self._axes()
        dtype = fields.choice("dtype", ("float", "int", "bool"), "float")
        scan = fields.choice("scan", ("cumsum",), "")
        description = fields.text("description") or ""
        typed: Literal["float", "int", "bool"] = "float" if dtype == "float" else "int" if dtype == "int" else "bool"
        before = len(list(self.problems))
        low, high = fields.limits(typed)
        self.wrong = self.wrong or len(list(self.problems)) > before
        scanned: Literal["cumsum"] | None = "cumsum" if scan else None
        given = Input(name, axes or (), typed, fields.truth("grad"), scanned, None, description, low, high)
        if given.grad:
            self._gradient(given, axes)
        if scan and (axes is None or "token" not in given.kinds or dtype != "float"):
            self.fail("scan", "only float inputs with a token axis can be scanned")
        elif scan and (set(given.kinds) - {*HEAD_AXES, "token"} or any(axis.divided for axis in given.axes)):
            self.fail("scan", "a scanned input has no other axes than batch, head or kv_head, and token")
        if "default" in fields and given.kinds == ("head",) and dtype != "bool":
            given = dataclasses.replace(given, default=self._default(given))
        elif "default" in fields and axes is not None:
            given = dataclasses.replace(given, value=self._value(given))
        return None if axes is None or self.wrong else given

    def _gradient(self, given: Input, axes: tuple[Axis, ...] | None) -> None:
        if self.kind == "mask":
            self.fail("grad", "only inputs of score terms have a gradient: a mask has no slope")
        if (axes is not None or given.dtype != "float") and (why := given.no_gradient):
            self.fail("grad", why)

    def _default(self, given: Input) -> Node | None:
        """The default of an input with the single axis `head`, which may differ between heads, too."""
        value = self.fields.found["default"].value
        if isinstance(value.data, bool) or not isinstance(value.data, str | int | float):
            got = value.raw or value.kind
            self.fail("default", f"default: expected a number or an expression of h and heads, got {got}")
        elif isinstance(value.data, float) and not math.isfinite(value.data):
            self.fail("default", f"default: expected a finite number, got {value.raw}")
        else:
            default = parse(str(value.data), Scope("default"), value.place, self.problems)
            self.wrong = self.wrong or default is None
            # the whole numbers that floor gives are of type float
            if default is not None and given.dtype == "int" and default.type != "int" and default.op != "floor":
                self.fail("default", f"{self.name} is int: its default has to be a whole number")
            elif default is not None and (why := _wrong_somewhere(default, given)):
                self.fail("default", f"default: {why}")
            return default
        return None

    def _value(self, given: Input) -> int | float | bool | None:
        """The default of a number of the call, or of all entries of an input."""
        value = self.fields.found["default"].value
        if isinstance(value.data, str) and re.search(r"\b(h|heads)\b", value.data):
            why = "only floats and whole numbers with the axes [head] differ between heads where none are given"
            self.fail("default", f"default: expected a number or truth value, got {value.raw}: {why}")
            return None
        found = number(value, given.dtype, self.problems, "default")
        if found is None:
            self.wrong = True
        elif wrong := outside(found, given.minimum, given.maximum):
            self.fail("default", f"default: {wrong}")
        return found

    # -- axes ----------------------------------------------------------------------------------------------------

    def _axes(self) -> tuple[Axis, ...] | None:
        value = self.fields.get("axes")
        if value is None:
            assert self.fields.at is not None
            self.problems.add(self.fields.at, "axes is missing, such as axes: [head]; axes: [] for a number")
            return None
        if not isinstance(value.data, list) or value.mapping:
            hint = f": write [{value.raw}]" if value.said else ""
            self.problems.add(value.at, f"axes: expected a list, got {value.shown('list', hint)}")
            return None
        axes: list[Axis] = []
        before = len(list(self.problems))
        for item in value.items():
            axis = self._axis(item)
            if axis is None:
                continue
            again = [a.kind for a in axes].count(axis.kind)
            if again and axis.kind != "size" and (axis.kind not in ("query", "key") or again > 1 or axis.per != 1):
                self.problems.add(item.at, f"axis {axis.kind} is given a second time here")
            axes.append(axis)
        kinds = [axis.kind for axis in axes]
        if "token" in kinds and {"query", "key"} & set(kinds):
            self.problems.add(value.at, "token cannot be combined with query or key: read the token axis at q or k")
        if {"head", "kv_head"} <= set(kinds):
            self.problems.add(
                value.at, "head and kv_head cannot both be axes of one input: head tells them apart already"
            )
        if len(axes) > 6:
            self.problems.add(value.at, f"an input may have 6 axes, this one has {len(axes)}")
        return tuple(axes) if len(list(self.problems)) == before else None

    def _axis(self, item: Value) -> Axis | None:
        axis = item.data
        if isinstance(axis, int) and not isinstance(axis, bool):
            if 1 <= axis <= LARGEST_TABLE:
                return Axis("size", axis)
            self.problems.add(item.at, f"a table's axis may have 1 to {LARGEST_TABLE} entries, not {axis}")
            return None
        if isinstance(axis, str) and axis in AXES:
            return Axis(axis)  # type: ignore[arg-type]
        if isinstance(axis, str) and axis in self.options:
            if self.options[axis] == "int":
                return Axis("size", axis)
            self.problems.add(
                item.at, f"the size of an axis is a whole number, the option {axis} is {self.options[axis]}"
            )
            return None
        if isinstance(axis, str) and (match := re.fullmatch(r"(batch|query|key) *(//|%) *(\w+)", axis)):
            return self._divided(item, match[1], match[2], match[3])
        known = (*AXES, *self.options)
        told = f"{item.raw or item.kind!r}{suggestions.axis(str(axis), known)}"
        self.problems.add(item.at, f"unknown axis {item.shown('int') if item.misquoted('int') else told}")
        return None

    def _divided(self, item: Value, kind: str, sign: str, per: str) -> Axis | None:
        got = per if len(per) <= 40 else f"{per[:40]}..."
        if sign == "%" and kind != "batch":
            index = f"table[{kind[0]} % {got}]"
            self.problems.add(item.at, f"{kind} % {got}: only batch has a remainder: read a table by hand, {index}")
            return None
        if self.options.get(per) == "int":
            return Axis(kind, 0, per, sign == "%")  # type: ignore[arg-type]
        # str.isdigit accepts digits that int refuses, and int refuses thousands of them
        if re.fullmatch("[0-9]{1,9}", per) and 1 <= int(per) <= LARGEST_TABLE:
            return Axis(kind, 0, int(per), sign == "%")  # type: ignore[arg-type]
        if kind == "batch" and per in self.declared and per not in self.options:
            self.divided.append((self.name, item, per))
            return Axis("batch", 0, per, sign == "%")
        counted, more = ("batch entries", ", or an input") if kind == "batch" else ("positions", "")
        wanted = f"expected a whole number of {counted} from 1 to {LARGEST_TABLE}{more}"
        self.problems.add(item.at, f"{kind} {sign} {got}: {wanted}, got {got}")
        return None
