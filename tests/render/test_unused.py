"""Nothing is handed to a rendered function that it does not use, nor worked out there for nobody."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

GENERATED = Path(__file__).parents[2] / "generated"
FILES = sorted({path.name for path in GENERATED.glob("*/*.py") if not path.name.startswith(("__init__", "test_"))})
JITTED = ("kernels.py", "hopper.py", "hopper_backward.py", "hopper_wide.py", "decode_kernels.py", "statistics.py")
# signatures that others fix: by file and function, what a variant may leave alone
FIXED = {
    ("checks.py", "__torch_dispatch__"): {"types"},
    ("decode.py", "_read"): {"position", "k_len"},  # asked alike of all variants
    ("reference.py", "_attend"): {"q_begin"},  # what cuts calls into entries tells it, whatever the masks
    ("runtime.py", "_refuse"): {"ctx", "gradients"},  # autograd's
    ("transformers.py", "mask"): {"batch_size", "q_length", "kv_length", "q_offset", "local_size", "device", "kwargs"},
}
OPERATOR = "_"  # what registers the shapes of an operator's results takes all that the operator does


def functions(path: Path) -> Iterator[tuple[ast.FunctionDef, set[str]]]:
    """The functions of a file, and the names that each reads."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef):
            names = (x for x in ast.walk(node) if isinstance(x, ast.Name))
            yield node, {x.id for x in names if isinstance(x.ctx, ast.Load)}


def parameters(function: ast.FunctionDef) -> list[str]:
    """The names of what a function takes."""
    given = function.args
    return [x.arg for x in (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg) if x]


def unpacked(function: ast.FunctionDef) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The tuples that a function takes apart, and the names of what is in them."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
            for target in node.targets:
                if isinstance(target, ast.Tuple) and node.value.id in parameters(function):
                    yield node.value.id, tuple(x.id for x in target.elts if isinstance(x, ast.Name))


def packages(file: str) -> list[Path]:
    """Where files of a name lie, once each text of which there are several."""
    return [*{path.read_text().partition('"""')[2]: path for path in sorted(GENERATED.glob(f"*/{file}"))}.values()]


@pytest.mark.parametrize("file", FILES)
def test_functions_use_what_they_take(file: str) -> None:
    found = {}
    for path in packages(file):
        for function, read in functions(path):
            allowed = FIXED.get((file, function.name), set()) | {"self", "cls", "_"}
            unused = {*parameters(function)} - read - allowed
            if unused and function.name != OPERATOR:
                found[path.parent.name, function.name] = unused
    assert found == {}


@pytest.mark.parametrize("file", JITTED)
def test_what_travels_in_a_tuple_is_used(file: str) -> None:
    """By one at least of the functions that take the same tuple apart."""
    found = {}
    for path in packages(file):
        used: dict[tuple[str, tuple[str, ...]], set[str]] = {}
        for function, read in functions(path):
            for bundle in unpacked(function):
                used[bundle] = used.get(bundle, set()) | read
        for (bundle, names), read in used.items():
            if unused := {*names} - read:
                found[path.parent.name, bundle] = unused
    assert found == {}


@pytest.mark.parametrize("file", JITTED)
def test_kernels_work_nothing_out_for_nobody(file: str) -> None:
    """Numbers by themselves: of several that a function returns, some may be for other variants."""
    found = {}
    for path in packages(file):
        for function, read in functions(path):
            targets = (x.targets[0] for x in ast.walk(function) if isinstance(x, ast.Assign))
            unused = {x.id for x in targets if isinstance(x, ast.Name)} - read
            if unused:
                found[path.parent.name, function.name] = unused
    assert found == {}


@pytest.mark.parametrize("file", ["hopper_backward.py", "hopper_wide.py", "hopper_launch.py"])
def test_no_call_that_leaves_rows_out_reaches_the_backward_pass_for_hopper_gpus(file: str) -> None:
    for path in packages(file):
        taken = {name for function, _ in functions(path) for name in parameters(function)}
        assert not taken & {"entries", "entries_ptr"}, path.parent.name
