"""Names for parts of an expression: a spec that uses them yields the same as one with the expression written out."""

from __future__ import annotations

import ast
import itertools
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import unformatted

from attnforge.expressions.parser import MOST_NODES
from attnforge.language import spec
from attnforge.language.spec import Spec
from attnforge.plan import statements
from attnforge.source import resources
from attnforge.source.errors import SpecError

# specs with names, and the same specs written out
PAIRS = {
    "distances": (
        """
score:
  - let: {far: "log(1 + abs(q - k))"}
    expr: "score - slope * far + softplus(slope) * far ** power"
inputs:
  slope: {axes: [head], grad: true}
  power: {axes: []}
""",
        """
score:
  - expr: "score - slope * log(1 + abs(q - k)) + softplus(slope) * log(1 + abs(q - k)) ** power"
inputs:
  slope: {axes: [head], grad: true}
  power: {axes: []}
""",
    ),
    "frames": (
        """
mask:
  - expr: "frame_q == frame_k or near"
    let:
      rows: 4
      size: "rows * rows"
      frame_q: "q // size"
      frame_k: "k // size"
      near: "abs(q - k) <= 2"
  - not: {expr: "late", let: {late: "k > q"}}
exports: [decode, statistics]
""",
        """
mask:
  - expr: "q // 16 == k // 16 or abs(q - k) <= 2"
  - not: {expr: "k > q"}
exports: [decode, statistics]
""",
    ),
    "choices": (
        """
layout: packed
mask:
  - any:
      - causal
      - expr: "same == (k < 7)"
        let: {other: "image[q]", same: "image[k] == other"}
score:
  - expr: "score + table[bucket] if back > 0 else score * least - table[0]"
    let:
      back: "q - k"
      half: "back // 2"
      bucket: "min(half, 7)"
      least: -0.5
inputs:
  image: {axes: [token], dtype: int}
  table: {axes: [8], grad: true}
""",
        """
layout: packed
mask:
  - any:
      - causal
      - expr: "(image[k] == image[q]) == (k < 7)"
score:
  - expr: "score + table[min((q - k) // 2, 7)] if q - k > 0 else score * -0.5 - table[0]"
inputs:
  image: {axes: [token], dtype: int}
  table: {axes: [8], grad: true}
""",
    ),
}


def load(folder: Path, text: str) -> Spec:
    """The spec of a text, always with the same name."""
    folder.mkdir(exist_ok=True)
    path = folder / "mine.yaml"
    path.write_text(f"name: mine\ndescription: A test.\n{text}")
    return spec.load(path, terms=resources.terms_for(path))


def code(text: str) -> str:
    """Code without its comments and docstrings."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            del node.body[0]
    return ast.unparse(tree)


@pytest.mark.parametrize("name", PAIRS)
def test_names_make_the_code_that_is_made_without(name: str, tmp_path: Path) -> None:
    named, written = (load(tmp_path / folder, text) for folder, text in zip("ab", PAIRS[name], strict=True))
    assert named.nodes == written.nodes and named.inputs == written.inputs
    assert named.text != written.text
    found, expected = unformatted.files(named), unformatted.files(written)
    assert found.keys() == expected.keys()
    for file in (file for file in found if file.endswith(".py")):
        assert code(found[file]) == code(expected[file]), file


@pytest.mark.parametrize("options", ["", ": {both: false}", ": {size: 6}"])
def test_a_terms_file_names_parts(options: str, tmp_path: Path) -> None:
    (tmp_path / "terms").mkdir()
    (tmp_path / "terms" / "near.yaml").write_text(
        "name: near\nkind: mask\ndescription: A test.\n"
        "options:\n  size: {type: int, min: 1, default: 8}\n  both: {type: bool, default: true}\n"
        "inputs:\n  image: {axes: [token], dtype: int}\n"
        "let:\n  back: q - k\n  far: abs(back) if both else back\n  same: image[q] == image[k]\n"
        "keep: far // size < 2 and same\n"
    )
    size, far = 6 if "size" in options else 8, "q - k" if "both" in options else "abs(q - k)"
    inputs = "inputs:\n  image: {axes: [token], dtype: int}\n"
    written = load(tmp_path, f"mask:\n  - expr: ({far}) // {size} < 2 and image[q] == image[k]\n{inputs}")
    named = load(tmp_path, f"mask:\n  - near{options}\n")
    assert named.nodes == written.nodes
    assert named.masks[0].label == "near"


def test_labels_tell_the_expression_as_written_and_its_names(tmp_path: Path) -> None:
    (mask, _) = load(tmp_path, PAIRS["frames"][0]).masks
    assert mask.label == (
        "frame_q == frame_k or near where rows = 4; size = rows * rows; frame_q = q // size; frame_k = k // size; "
        "near = abs(q - k) <= 2"
    )


@pytest.mark.parametrize("words", [["short"], ["a name"] * 9, ["a much longer name", "of a part"] * 20])
def test_long_labels_stand_above_their_line(words: Sequence[str]) -> None:
    text = " ".join(words)
    *above, last = statements.labelled("keep = k <= q", text)
    assert all(len(line) <= 110 and line.startswith("# ") for line in above)
    assert last == ("keep = k <= q" if above else f"keep = k <= q  # {text}")
    assert " ".join([*(line[2:] for line in above), last.partition("  # ")[2]]).strip() == text
    assert bool(above) == (len(text) > 100)


def test_names_are_known_in_their_own_term_alone(tmp_path: Path) -> None:
    load(tmp_path, 'mask:\n  - {expr: "k < n", let: {n: 8}}\n  - {expr: "k < n", let: {n: 9}}\n')
    with pytest.raises(SpecError, match="unknown name 'n'"):
        load(tmp_path, 'mask:\n  - {expr: "k < n", let: {n: 8}}\n  - {expr: "k < n"}\n')


def test_names_that_grow_are_told_before_they_have_grown(tmp_path: Path) -> None:
    words = [f"{letter}{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"]
    parts = [f"  {words[0]}: q + k + 0.5", *(f"  {x}: {y} * {y}" for y, x in itertools.pairwise(words))]
    text = "\n".join(["score:", "  - expr: score + zz", "    let:", *(f"    {part}" for part in parts)])
    began = time.perf_counter()
    with pytest.raises(SpecError, match=f"more than {MOST_NODES} names, numbers and operations") as caught:
        load(tmp_path, text)
    assert len(caught.value.problems) == 1 and time.perf_counter() - began < 10
