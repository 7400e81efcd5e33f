"""The JSON Schema that editors read agrees with what the loader accepts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from attnforge.cli import starter
from attnforge.language import algorithm, declarations, schema, spec, terms
from attnforge.source import resources
from attnforge.source.errors import SpecError

GOOD = [
    "rope: {layout: interleaved, dims: 8}\nlayout: packed\nheads: equal\ntargets: [portable]\n",
    "rope: false\nsink: false\ndropout: false\n",
    "algorithm: flash1\n",
    "score: [expr: 'log(score)']\ndomain: {min: 0.1}\n",
    "algorithm: flash2_strided_k\n",
    "mask:\n  - any: [causal, {not: {sliding_window: {size: runtime}}}]\n  - all: [prefix_lm, {expr: 'k < 9'}]\n",
    "score:\n  - expr: score + a + n\n  - expr: score * c[q]\n"
    "inputs:\n  a: {axes: [head], grad: true, default: '1 / heads'}\n"
    "  c: {axes: [batch, token], scan: cumsum, default: -1, description: a test}\n"
    "  n: {axes: [], dtype: int, min: 1, max: 9}\n",
    "score: [expr: 'score + a + c']\n"
    "inputs:\n  n: {axes: [], dtype: int, min: 1}\n"
    "  a: {axes: [batch // 4, head]}\n  c: {axes: [batch % n, key // 8]}\n",
]
BAD = [
    "windw: 4\n", "layout: ragged\n", "heads: 4\n", "rope: {layout: half, dims: 7}\n", "rope: {dims: 8}\n",
    "mask: causal\n", "algorithm: flash3\n", "score: [alibi]\ndomain: 1\n", "description: [a]\n",
    "inputs:\n  a: {axes: [row]}\n", "inputs:\n  a: {axes: [0]}\n", "inputs:\n  a: {dtype: int}\n",
    "inputs:\n  a: {axes: [], dtype: half}\n", "inputs:\n  a: {axes: [], gradient: true}\n",
    "inputs:\n  _a: {axes: []}\n", "inputs:\n  a: {axes: [batch // 0]}\n", "inputs:\n  a: {axes: [key % 8]}\n",
]  # fmt: skip


def validate(text: str) -> None:
    """Validates the text of a spec against the schema."""
    schema.SpecModel.model_validate(yaml.safe_load(text))


def write(folder: Path, text: str) -> Path:
    """Writes a spec to a file."""
    path = folder / "mine.yaml"
    path.write_text(f"name: mine\n{text}", encoding="utf-8")
    return path


def test_the_schema_knows_every_key() -> None:
    made = schema.schema()
    assert set(made["properties"]) == set(spec.KEYS)
    assert made["additionalProperties"] is False
    assert made["required"] == ["name"]
    keys = made["$defs"]["InputModel"]["properties"]
    assert set(keys) == {"axes", "dtype", "grad", "scan", "default", "min", "max", "description"}


def test_the_schema_of_terms_knows_every_key() -> None:
    made = schema.term_schema()
    assert set(made["properties"]) == set(terms.KEYS)
    assert set(made["$defs"]["OptionModel"]["properties"]) == set(terms.OPTION_KEYS)
    assert set(made["$defs"]["TermInputModel"]["properties"]) == set(declarations.KEYS)


def test_the_schema_of_terms_takes_what_is_shipped_and_no_more() -> None:
    for path in (resources.specs() / "terms").glob("*.yaml"):
        given = yaml.safe_load(path.read_text(encoding="utf-8"))
        schema.TermFileModel.model_validate(given)
        with pytest.raises(ValidationError):
            schema.TermFileModel.model_validate(given | {"keeps": "k <= q"})
        with pytest.raises(ValidationError):
            schema.TermFileModel.model_validate(given | {"options": {"size": {"min": 1}}})


def test_the_schema_knows_every_algorithm() -> None:
    field = schema.schema()["properties"]["algorithm"]
    assert field["enum"] == list(algorithm.ALGORITHMS) and field["default"] == algorithm.FLASH2.name
    assert all(f"`{name}`" in field["description"] for name in algorithm.ALGORITHMS)


def test_every_key_is_explained() -> None:
    made, of_terms = schema.schema(), schema.term_schema()
    models = [made, made["$defs"]["InputModel"], made["$defs"]["RopeModel"], of_terms, *of_terms["$defs"].values()]
    for name, field in ((name, field) for model in models for name, field in model["properties"].items()):
        assert len(field.get("description", "")) > 8, name


def test_every_axis_is_explained() -> None:
    told = [axis for meaning in schema.AXES for axis in meaning.axes]
    assert {axis for axis in told if axis.isidentifier()} == set(declarations.AXES)
    schema.InputModel.model_validate({"axes": [int(axis) if axis.isdigit() else axis for axis in told[:6]]})
    for axis in told:
        schema.InputModel.model_validate({"axes": [int(axis) if axis.isdigit() else axis]})


def test_editors_hear_of_every_axis() -> None:
    told = schema.schema()["$defs"]["InputModel"]["properties"]["axes"]["items"]["description"]
    assert all(f"`{axis}`" in told for meaning in schema.AXES for axis in meaning.axes)


def test_limits_are_those_of_the_loader(tmp_path: Path) -> None:
    long, axes = "x" * 301, ", ".join(["batch", "head", "query", "4", "4", "4", "4"])
    for text in (
        f"citation: {long}\n",
        "mask: [" + ", ".join(["causal"] * 51) + "]\n",
        f"score: [expr: 'score + a[0, 0, 0, 0]']\ninputs: {{a: {{axes: [{axes}]}}}}\n",
        "targets: []\n",
    ):
        test_the_schema_refuses_what_the_loader_refuses(text, tmp_path)


def test_the_schema_is_json_and_names_the_shipped_terms() -> None:
    made = json.loads(json.dumps(schema.schema()))
    words = made["$defs"]["TermModel"]["anyOf"][0]["examples"]
    assert words == sorted(path.stem for path in (resources.specs() / "terms").glob("*.yaml"))
    assert "causal" in words


@pytest.mark.parametrize("name", sorted(resources.variants()))
def test_the_schema_takes_what_is_shipped(name: str) -> None:
    validate(resources.variants()[name].read_text(encoding="utf-8"))


def test_the_schema_takes_the_starter() -> None:
    validate(starter.text("mine", None))


@pytest.mark.parametrize("text", GOOD)
def test_the_schema_takes_what_the_loader_takes(text: str, tmp_path: Path) -> None:
    path = write(tmp_path, text)
    spec.load(path, terms=resources.terms_for(path))
    validate(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("text", BAD)
def test_the_schema_refuses_what_the_loader_refuses(text: str, tmp_path: Path) -> None:
    path = write(tmp_path, text)
    with pytest.raises(SpecError):
        spec.load(path, terms=resources.terms_for(path))
    with pytest.raises(ValidationError):
        validate(path.read_text(encoding="utf-8"))
