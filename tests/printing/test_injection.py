"""No string in a spec can inject text into the generated code; expressions only get there through their parser."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import yaml

from attnforge.language import spec
from attnforge.render import render
from attnforge.source import resources

NASTY = [
    'a """ b \\',
    "{{ 7 * 7 }} {% raw %} %s {0}",
    "'; import os \\u2028 é λ",
    '"""); import os; os.system("true") #',
]


def code(folder: Path, text: str) -> dict[str, str]:
    """The syntax trees, without docstrings, of a package whose strings contain a text."""
    variant = {
        "name": "mine",
        "description": text.strip(),
        "mask": ["causal"],
        "score": [{"expr": "score * temp"}],
        "inputs": {"temp": {"axes": ["head"], "grad": True, "description": text.strip()}},
    }
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(variant, allow_unicode=True), encoding="utf-8")
    found = {}
    for name, made in render.render(spec.load(path, terms=resources.terms_for(path))).items():
        tree = ast.parse(made)
        for node in ast.walk(tree):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                node.value = ast.Constant(None)
        found[name] = ast.dump(tree)
    return found


@pytest.fixture(scope="module")
def harmless(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The code of a package with harmless strings."""
    return code(tmp_path_factory.mktemp("harmless"), "harmless")


@pytest.mark.parametrize("text", NASTY)
def test_strings_stay_strings(text: str, tmp_path: Path, harmless: dict[str, str]) -> None:
    assert code(tmp_path, text) == harmless
