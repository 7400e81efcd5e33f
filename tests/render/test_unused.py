"""Rendered functions use all their parameters, and compute nothing that goes unused."""

from __future__ import annotations

import ast
import functools
from pathlib import Path
from typing import NamedTuple

import pytest

GENERATED = Path(__file__).parents[2] / "generated"
FILES = sorted({path.name for path in GENERATED.glob("*/*.py") if not path.name.startswith(("__init__", "test_"))})
HOPPER = ("hopper.py", "by_distance.py", "hopper_backward.py", "hopper_wide.py", "decode_hopper.py")
JITTED = ("kernels.py", *HOPPER, "decode_kernels.py", "statistics.py")
# signatures fixed by other code: for each file and function, the parameters that a variant may ignore
FIXED = {
    ("checks.py", "__torch_dispatch__"): {"types"},
    ("decode.py", "_read"): {"position", "k_len"},  # called alike for all variants
    ("decode_training.py", "attend_now"): {"workspace", "return_key_sums"},  # it replaces that of decode.py
    ("reference.py", "_attend"): {"q_begin"},  # passed by what splits calls into entries, whatever the masks
    ("runtime.py", "_refuse"): {"ctx", "gradients"},  # called by autograd
    ("transformers.py", "mask"): {"batch_size", "q_length", "kv_length", "q_offset", "local_size", "device", "kwargs"},
    ("transformers.py", "_table"): {"query_length", "key_length", "device", "past_seen_tokens"},
}
OPERATOR = "_"  # functions that register the shapes of an operator's results take all its arguments


class Function(NamedTuple):
    """The parameters of a function, and the names that it reads and assigns to."""

    name: str
    parameters: list[str]
    read: set[str]
    unpacked: list[tuple[str, tuple[str, ...]]]  # tuples that it unpacks, and the names of their items
    made: set[str]  # names assigned to individually


@functools.cache
def functions(path: Path) -> list[Function]:
    """The functions of a file."""
    return [facts(x) for x in ast.walk(ast.parse(path.read_text())) if isinstance(x, ast.FunctionDef)]


def facts(definition: ast.FunctionDef) -> Function:
    """The facts about a function, including those nested in it."""
    given = definition.args
    places = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    found = Function(definition.name, [x.arg for x in places if x], set(), [], set())
    for node in ast.walk(definition):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            found.read.add(node.id)
        elif isinstance(node, ast.Assign):
            if isinstance(node.targets[0], ast.Name):
                found.made.add(node.targets[0].id)
            if isinstance(node.value, ast.Name) and node.value.id in found.parameters:
                tuples = (target for target in node.targets if isinstance(target, ast.Tuple))
                names = (tuple(x.id for x in target.elts if isinstance(x, ast.Name)) for target in tuples)
                found.unpacked.extend((node.value.id, each) for each in names)
    return found


def packages(file: str) -> list[Path]:
    """The paths of files with this name, one for each distinct text."""
    return [*{path.read_text().partition('"""')[2]: path for path in sorted(GENERATED.glob(f"*/{file}"))}.values()]


@pytest.mark.parametrize("file", FILES)
def test_functions_use_what_they_take(file: str) -> None:
    found = {}
    for path in packages(file):
        for function in functions(path):
            allowed = FIXED.get((file, function.name), set()) | {"self", "cls", "_"}
            unused = {*function.parameters} - function.read - allowed
            if unused and function.name != OPERATOR:
                found[path.parent.name, function.name] = unused
    assert found == {}


@pytest.mark.parametrize("file", JITTED)
def test_what_travels_in_a_tuple_is_used(file: str) -> None:
    """By at least one of the functions that unpack the same tuple."""
    found = {}
    for path in packages(file):
        used: dict[tuple[str, tuple[str, ...]], set[str]] = {}
        for function in functions(path):
            for bundle in function.unpacked:
                used[bundle] = used.get(bundle, set()) | function.read
        for (bundle, names), read in used.items():
            if unused := {*names} - read:
                found[path.parent.name, bundle] = unused
    assert found == {}


@pytest.mark.parametrize("file", JITTED)
def test_kernels_work_nothing_out_for_nobody(file: str) -> None:
    """Only names assigned to individually: of several returned values, some may be for other variants."""
    found = {}
    for path in packages(file):
        for function in functions(path):
            if unused := function.made - function.read:
                found[path.parent.name, function.name] = unused
    assert found == {}
