"""A name that a spec may give never meets a name of the generated code's own."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from attnforge.language import names, spec
from attnforge.render import render
from attnforge.source import resources

COMPREHENSIONS = (ast.GeneratorExp, ast.ListComp, ast.SetComp, ast.DictComp)
# the plan picks other stems where a keyword begins like these
AVOIDED = r"(?:part|slope)_*\d+(?:_\d+)?"
SCORE = "score:\n  - expr: 'score * tanh(score) + {0}'\ninputs:\n  mine: {{axes: {1}{2}}}\n"
SPECS = {
    "head": "mask: [causal]\n" + SCORE.format("mine", "[head]", ", grad: true"),
    "scan": "rope: {layout: half}\n" + SCORE.format("mine[k]", "[batch, token]", ", grad: true, scan: cumsum"),
    "packed_scan": "layout: packed\n" + SCORE.format("mine[q]", "[token, head]", ", grad: true, scan: cumsum"),
    "rows": "rope: {layout: interleaved, dims: 8}\n" + SCORE.format("mine", "[batch, query]", ", grad: true"),
    "number": SCORE.format("mine", "[]", ""),
    "mask": "mask:\n  - expr: q - k < mine\ninputs:\n  mine: {axes: [batch], dtype: int}\n",
}


def neighbours(function: ast.FunctionDef) -> set[str]:
    """The names in a function that reads `mine`, but for those that live in a comprehension that does not."""
    found: set[str] = set()
    pending: list[ast.AST] = [function]
    while pending:
        node = pending.pop()
        inside = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        if isinstance(node, COMPREHENSIONS) and "mine" not in inside:
            own = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
            found |= inside - own
            continue
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.FunctionDef) and node is not function:
            found.add(node.name)
        pending += ast.iter_child_nodes(node)
    return found if "mine" in found else set()


@pytest.mark.slow
@pytest.mark.parametrize("kind", SPECS)
def test_no_name_of_generated_functions_is_free_for_a_keyword(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "variant.yaml"
    path.write_text("name: variant\n" + SPECS[kind])
    loaded = spec.load(path, terms=resources.terms_for(path))
    met = set()
    for text in (*render.render(loaded).values(), render.export(loaded, "flex")):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                met |= neighbours(node)
    assert "mine" in met
    derived = {name for name in met if name.startswith("mine_")}
    assert {name for name in derived if names.wrong_keyword(name) is None} == set()
    free = {name for name in met - derived - {"mine"} if names.wrong_keyword(name) is None}
    assert {name for name in free if not re.fullmatch(AVOIDED, name)} == set()


@pytest.mark.parametrize("name", ["temp", "slopes", "log_decay", "window", "prefix_len", "x", "a", "size"])
def test_names_that_are_free(name: str) -> None:
    assert names.wrong_keyword(name) is None


@pytest.mark.parametrize(
    "name", ["", "_a", "A", "a-b", "é", "a" * 41, "lambda", "print", "score", "k_len", "scale", "acc"]
)
def test_names_that_are_not(name: str) -> None:
    assert names.wrong_keyword(name)


@pytest.mark.parametrize("name", ["", "Mine", "1a", "a.b", "../a", "torch", "class", "a" * 61])
def test_packages_that_cannot_be(name: str) -> None:
    assert names.wrong_package(name)
