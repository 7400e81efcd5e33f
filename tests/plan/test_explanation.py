"""The head of a rendered `kernels.py` says what holds for its own variant, and nothing else."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from attnforge.source import resources

GENERATED = Path(__file__).parents[2] / "generated"
FEW = ("causal", "packed_log_decay", "flash1")


def kernels(name: str) -> tuple[dict[str, list[str]], set[str], str]:
    """The head's sections, the names in the code below it, and all of the file."""
    text = (GENERATED / name / "kernels.py").read_text()
    tree = ast.parse(text)
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
    heads = (re.match(r"\w+(, \w+)*(?=   |$)", line) for line in lines)
    return {name for head in heads if head for name in head[0].split(", ")}


@pytest.mark.parametrize("name", sorted(resources.variants()))
def test_the_glossary_explains_names_of_this_very_file(name: str) -> None:
    sections, names, _ = kernels(name)
    assert symbols(sections["Symbols"]) - names == set()


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
