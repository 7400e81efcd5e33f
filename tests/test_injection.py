"""No string of a spec puts text of its own into the generated code."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import yaml

from attnforge import render, resources, spec

NASTY = [
    'a """ b', "end\\", "{{ 7 * 7 }} {% raw %}", "'''; import os", "# noqa\\u2028import os", "\\N{BULLET}", "%s {0}", "é λ \t",
    '"""); import os; os.system("true") #',
]  # fmt: skip


def code(folder: Path, text: str) -> dict[str, str]:
    """The syntax trees of a package whose strings hold a text, docstrings taken out."""
    variant = {
        "name": "mine",
        "description": text.strip(),
        "mask": [{"expr": f"k <= q  # {text}"}],
        "score": [{"expr": f"score * temp  # {text}"}],
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


@pytest.mark.parametrize("text", [t for t in NASTY if t.strip().isprintable()])
def test_strings_stay_strings(text: str, tmp_path: Path) -> None:
    assert code(tmp_path, text) == code(tmp_path, "harmless")
