"""The docstring at the head of a rendered `kernels.py` describes its own variant, and nothing else."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from attnforge.plan import glossary
from attnforge.source import resources

GENERATED = Path(__file__).parents[2] / "generated"
FEW = ("causal", "packed_log_decay", "flash1")
HOPPER = ("hopper.py", "by_distance.py", "hopper_backward.py", "hopper_wide.py", "decode_hopper.py")
FILES = ("kernels.py", *HOPPER, "decode_kernels.py", "statistics.py")
REFERS = {"decode_hopper.py": "decode_kernels.py"}  # files whose names apply as well, besides those of kernels.py
PLAIN = {"x", "y", "ptr", "desc", "stride"}  # parameters that a short function explains in its first words


@functools.cache
def parsed(path: Path) -> ast.Module:
    """The code of a file."""
    return ast.parse(path.read_text())


@functools.cache
def kernels(name: str) -> tuple[dict[str, list[str]], set[str], str]:
    """The sections of the head, the names in the code below it, and the whole file."""
    text = (GENERATED / name / "kernels.py").read_text()
    tree = parsed(GENERATED / name / "kernels.py")
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    docstring = ast.get_docstring(tree)
    assert docstring
    found: dict[str, list[str]] = {}
    for section in re.split(r"\n\n(?=\S)", docstring)[1:]:
        title, *lines = section.splitlines()
        found[title.partition(",")[0]] = [line.strip() for line in lines]
    return found, names, text


def symbols(lines: list[str]) -> set[str]:
    """The names that a glossary explains."""
    # a name that leaves no room beside it has a line of its own
    heads = (re.match(r"\w+([,;] \w+)*(?=   )|(?=.{25})\w+(, \w+)*$", line) for line in lines)
    return {name for head in heads if head for name in re.split("[,;] ", head[0])}


@pytest.mark.parametrize("name", sorted(resources.variants()))
def test_the_glossary_explains_names_of_this_very_file(name: str) -> None:
    sections, names, _ = kernels(name)
    assert {name for name in symbols(sections["Symbols"]) - names if not name.startswith("x_")} == set()


def explained(text: str) -> set[str]:
    """The names that a head explains: in columns, and on the left-hand sides of formulas."""
    found = symbols([line.strip() for line in text.splitlines()])
    return found | set(re.findall(r"^ +(\w+)(?:\[\w\])? = ", text, re.MULTILINE))


def known(name: str, head: set[str]) -> bool:
    """Whether a head explains a name, by itself or by a pattern: `x_ptr` explains q_ptr if q is explained."""
    if name in head:
        return True
    patterns = (re.escape(one[1:]).replace("_stride_a", r"_stride(?:_\w+)?") for one in head if one.startswith("x_"))
    made = (re.fullmatch(rf"(\w+?){pattern}", name) for pattern in patterns)
    return any(match and known(match[1], head) for match in made)


def unpacked(function: ast.FunctionDef) -> Iterator[str]:
    """The names in the tuples that a function unpacks."""
    taken = {x.arg for x in function.args.args} - PLAIN
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and node.value.id in taken:
            yield from (x.id for target in node.targets for x in ast.walk(target) if isinstance(x, ast.Name))


@pytest.mark.parametrize("file", FILES)
def test_what_kernels_and_their_functions_take_is_explained(file: str) -> None:
    """By the head of the file or of files that it refers to, or by the function's own docstring."""
    found = {}
    for path in sorted(GENERATED.glob(f"*/{file}")):
        names = ("kernels.py", REFERS.get(file, "kernels.py"), file)
        trees = [parsed(path.parent / one) for one in names]
        head = set[str]().union(*(explained(ast.get_docstring(tree) or "") for tree in trees))
        for node in trees[-1].body:
            if not isinstance(node, ast.FunctionDef) or not any("jit" in ast.unparse(x) for x in node.decorator_list):
                continue
            said = set(re.findall(r"\w+", ast.get_docstring(node) or ""))
            taken = {x.arg for x in node.args.args} | set(unpacked(node))
            if missing := {name for name in taken if not known(name, head | said | PLAIN)}:
                found[path.parent.name, node.name] = missing
    assert found == {}


@pytest.mark.parametrize("file", HOPPER)
def test_a_row_of_many_names_explains_one_that_no_other_row_does(file: str) -> None:
    """`x_free` explains nothing in a file where every name that ends in `_free` has a row of its own."""
    found = {}
    for path in sorted(GENERATED.glob(f"*/{file}")):
        tree = parsed(path)
        head = explained(ast.get_docstring(tree) or "")
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - head
        many = {row for row in head if row.startswith("x_")}
        if idle := {row for row in many if not any(name.endswith(row[1:]) for name in names)}:
            found[path.parent.name] = idle
    assert found == {}


@pytest.mark.parametrize("name", FEW)
def test_the_head_keeps_to_the_width_of_a_line(name: str) -> None:
    _, _, text = kernels(name)
    assert max(map(len, text[: text.index("import triton")].splitlines())) <= 120


def test_the_gradient_of_a_running_sum() -> None:
    sections, names, _ = kernels("packed_log_decay")
    backward = sections["Backward"]
    assert "d score / d in_log_decay[k] = -1.0            # log_decay" in backward
    slope = "(d score / d in_log_decay[k])"
    assert f"in_log_decay_k_sum = sum of ds * {slope} over the queries   # backward_dkv" in backward
    total = "din_log_decay[t] = 0 if t begins a document, else sum of in_log_decay_q_sum + in_log_decay_k_sum"
    assert any(line.startswith(total) for line in backward)
    assert {"tail", "in_log_decay_anchor", "k_aligned"} <= symbols(sections["Symbols"]) & names


def test_nothing_is_said_of_what_a_variant_lacks() -> None:
    sections, _, _ = kernels("flash1")
    assert "Backward" not in sections
    assert {"TILE_AXIS", "delta", "ds", "tail"} & symbols(sections["Symbols"]) == set()
    assert "There is no backward pass." in sections["Programs"]


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("a = b\n\n\n@c.jit\ndef f(x, y: d):\n    z = g(x, h=i)\n\n\n@c.jit\ndef j():\n    f(k)\n", "abcdfgikxyz"),
        ("@a\n@b\ndef f(x): return y\n", "abxy"),
        ('"""Said:\n@a\n"""\nb = c\n', "bc"),
    ],
)
def test_names_are_those_of_all_functions(code: str, found: str) -> None:
    assert glossary.names(code) == set(found)
