"""Specs and terms as files: what is read, what is shared, what takes precedence."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from attnforge.cli import starter
from attnforge.expressions.evaluation import evaluate
from attnforge.expressions.inputs import RuntimeOption
from attnforge.expressions.tree import Node
from attnforge.language import spec
from attnforge.language.spec import Spec
from attnforge.source import resources
from attnforge.source.errors import SpecError

SHIPPED = sorted(resources.variants())


def load(folder: Path, text: str, name: str = "mine") -> Spec:
    """The spec of a text."""
    path = folder / f"{name}.yaml"
    path.write_text(f"name: {name}\ndescription: A test.\n{text}")
    return spec.load(path, terms=resources.terms_for(path))


def mistakes(folder: Path, text: str) -> str:
    """The messages about a wrong spec."""
    with pytest.raises(SpecError) as caught:
        load(folder, text)
    return str(caught.value)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_variants_load(name: str) -> None:
    path = resources.variants()[name]
    loaded = spec.load(path, terms=resources.terms_for(path))
    assert loaded.name == name
    assert loaded.source == f"specs/{name}.yaml"
    assert len(loaded.description) > 10
    assert len(loaded.citation) > 10
    assert len([line for line in path.read_text().splitlines() if line]) <= 14


def test_many_variants_are_shipped_in_groups() -> None:
    groups = [title for title in starter.shipped() if not title.endswith(" terms")]
    assert len(SHIPPED) >= 32
    assert 4 <= len(groups) <= 8


def test_the_foundation_is_shipped() -> None:
    assert set(SHIPPED) >= {
        "full", "causal", "causal_mha", "sliding_window", "runtime_window", "prefix_lm", "alibi", "softcap",
        "log_decay", "rope", "rope_interleaved", "rope_gqa", "rope_swa_softcap", "packed_full", "packed_causal",
        "packed_rope", "packed_log_decay",
    }  # fmt: skip


def test_everything_a_spec_says_arrives(tmp_path: Path) -> None:
    loaded = load(
        tmp_path,
        "layout: packed\nheads: equal\nrope: {layout: interleaved, dims: 8}\n"
        "mask:\n  - sliding_window: {size: runtime}\n  - any: [causal, {not: {expr: 'k < 3'}}]\n"
        "score:\n  - expr: 'score * temp + bonus'\n  - softcap: {cap: 5}\n"
        "inputs:\n  bonus: {axes: []}\n  temp: {axes: [head], grad: true, default: 1.5}\n",
    )
    assert (loaded.packed, loaded.grouped) == (True, False)
    assert loaded.rope == spec.Rope("interleaved", 8)
    assert [m.label for m in loaded.masks] == ["sliding_window", "any(causal, not k < 3)"]
    assert loaded.options == (RuntimeOption("window", "int", 1),)
    # keywords are in the order in which the terms read them
    assert [i.name for i in loaded.inputs] == ["temp", "bonus"]
    assert loaded.inputs[0].default == Node("num", (), 1.5)
    assert evaluate(loaded.scores[1].score, {"score": 2.0}) == pytest.approx(5 * math.tanh(0.4))
    keep = loaded.masks[1].keep
    assert [evaluate(keep, {"q": 1, "k": k}) for k in range(5)] == [True, True, False, True, True]


def test_inputs_of_any_axes_have_one_value_where_none_is_given(tmp_path: Path) -> None:
    loaded = load(
        tmp_path,
        "mask: [expr: 'open and k < doc']\nscore: [expr: 'score * calm + lift + x']\ninputs:\n"
        "  open: {axes: [head], dtype: bool, default: false}\n  doc: {axes: [query // 4], dtype: int, default: 3}\n"
        "  calm: {axes: [batch, key], min: 1, default: 1}\n  lift: {axes: [kv_head], default: 1}\n"
        "  x: {axes: [head], default: 1}\n",
    )
    found = {given.name: (given.value, given.default) for given in loaded.inputs}
    one = Node("num", (), 1, "int")
    assert found.pop("x") == (None, one)
    assert found == {"open": (False, None), "doc": (3, None), "calm": (1.0, None), "lift": (1.0, None)}


def test_numbers_that_divide_a_batch_come_before_what_they_divide(tmp_path: Path) -> None:
    (tmp_path / "terms").mkdir()
    (tmp_path / "terms" / "shared.yaml").write_text(
        "name: shared\nkind: score\ndescription: A test.\noptions:\n  width: {type: int, min: 1, max: 9}\n"
        "inputs:\n  each: {axes: [batch // width, head]}\n"
        "  turns: {axes: [batch % count, head]}\n  count: {axes: [], dtype: int, min: 1}\n"
        "score: score + each + turns\n"
    )
    text = "score:\n  - expr: score + bias\n  - shared: {width: 4}\ninputs:\n"
    loaded = load(tmp_path, f"{text}  bias: {{axes: [batch // rows]}}\n  rows: {{axes: [], dtype: int, min: 1}}")
    assert [given.name for given in loaded.inputs] == ["rows", "bias", "each", "count", "turns"]
    axes = [[str(axis) for axis in given.axes] for given in loaded.inputs]
    assert axes == [[], ["batch // rows"], ["batch // 4", "head"], [], ["batch % count", "head"]]


@pytest.mark.parametrize(
    ("file", "text", "told"),
    [
        ("my near", "name: near\n", "and 'my near' cannot be one: call the file near.yaml"),
        ("my near", "", "name is missing, and the file's name cannot be it: expected letters of ASCII"),
        ("near", "name: far\n", "name: expected the file's name, near, got far"),
        ("near", "", "name is missing: name: near"),
    ],
)
def test_a_name_that_the_file_has_not(file: str, text: str, told: str, tmp_path: Path) -> None:
    """The message asks for something that the next check accepts."""
    path = tmp_path / f"{file}.yaml"
    path.write_text(f"{text}mask: [causal]\n")
    with pytest.raises(SpecError) as caught:
        spec.load(path, terms=resources.terms_for(path))
    assert told in str(caught.value)


def test_a_terms_folder_beside_the_spec_comes_first(tmp_path: Path) -> None:
    (tmp_path / "terms").mkdir()
    own = 'name: causal\nkind: mask\ndescription: Mine.\noptions:\n  by: {type: int, default: 2}\nkeep: "k + by <= q"\n'
    (tmp_path / "terms" / "causal.yaml").write_text(own)
    keep = load(tmp_path, "mask: [causal]\n").masks[0].keep
    assert [evaluate(keep, {"q": 4, "k": k}) for k in (2, 3)] == [True, False]


def test_a_wrong_term_file_is_told_with_its_own_place(tmp_path: Path) -> None:
    (tmp_path / "terms").mkdir()
    (tmp_path / "terms" / "near.yaml").write_text(
        "name: far\nkind: mask\noptions:\n  size: {type: number}\nscore: 1\nkeep: 'q - k < sise'\n"
    )
    found = mistakes(tmp_path, "mask: [near]\n")
    assert "near.yaml:1:7: error: name: expected the file's name, near, got far" in found
    assert "near.yaml:1:1: error: description is missing" in found
    assert "near.yaml:4:16: error: type: expected int or float or bool, got number" in found
    assert "near.yaml:5:1: error: a mask term has 'keep', not 'score'" in found


def test_a_term_file_in_place_of_a_spec_is_told(tmp_path: Path) -> None:
    path = tmp_path / "near.yaml"
    path.write_text("name: near\nkind: mask\ndescription: A test.\noptions: {n: {type: int}}\nkeep: q - k < n\n")
    with pytest.raises(SpecError, match="unknown key 'keep': a file of a term is no spec") as caught:
        spec.load(path, terms=resources.terms_for(path))
    assert len(caught.value.problems) == 1
    path.write_text(path.read_text() + "mask: [causal]\n")
    with pytest.raises(SpecError) as caught:
        spec.load(path, terms=resources.terms_for(path))
    assert [p.message.partition(":")[0] for p in caught.value.problems] == [
        f"unknown key {key!r}" for key in ("kind", "options", "keep")
    ]


def test_a_term_that_is_nowhere_is_told_with_the_place_where_it_was_looked_for(tmp_path: Path) -> None:
    folder = (tmp_path / "terms").resolve().as_posix()
    told = f"unknown term 'zzzzz': expected {folder}/zzzzz.yaml, or a shipped term"
    assert told in mistakes(tmp_path, "mask: [zzzzz]\n")
    assert f"unknown term '{'z' * 61}'\n" in mistakes(tmp_path, f"mask: [{'z' * 61}]\n")


def test_a_wrong_expression_in_a_term_file(tmp_path: Path) -> None:
    (tmp_path / "terms").mkdir()
    (tmp_path / "terms" / "near.yaml").write_text("name: near\nkind: mask\ndescription: A test.\nkeep: q - k < sise\n")
    assert "near.yaml:4:15: error: unknown name 'sise'" in mistakes(tmp_path, "mask: [near]\n")


def test_the_same_term_twice_shares_its_keyword(tmp_path: Path) -> None:
    text = "mask:\n  - any: [{sliding_window: {size: runtime}}, {not: {sliding_window: {size: runtime}}}]\n"
    assert len(load(tmp_path, text).options) == 1


def test_comments_and_layout_of_the_text_do_not_change_it(tmp_path: Path) -> None:
    one = load(tmp_path, "mask: [causal]\n# note\nscore:\n  - softcap: {cap: 5.0}\n")
    two = load(tmp_path, "score: [{softcap: {cap: 5.0}}]\nmask:\n- causal\n")
    other = load(tmp_path, "score: [{softcap: {cap: 6.0}}]\nmask:\n- causal\n")
    assert one.text == two.text != other.text


def test_places_in_expressions_of_every_writing(tmp_path: Path) -> None:
    for text, place in (
        ("mask:\n  - expr: k <= qq\n", "4:16"),
        ("mask:\n  - expr: 'k <= qq'\n", "4:17"),
        ('mask: [{expr: "k <= qq"}]\n', "3:21"),
        ("mask:\n  - expr: >\n      k <=\n      qq\n", "6:7"),
        ("mask:\n  - expr: |\n\n      k <= qq\n", "6:12"),
        ("mask:\n  - expr: k <=\n      qq  # later\n", "5:7"),
        ('mask:\n  - expr: "k\n     <= qq"\n', "5:9"),
        ('mask:\n  - expr: "k\\x20\n     <= qq"\n', "4:11"),  # an escape: the text differs from its value
    ):
        assert f"mine.yaml:{place}: error: unknown name 'qq'" in mistakes(tmp_path, text)


@pytest.mark.parametrize("data", [b"\xff\xfe", b"name: \x00", b"a: &x 1\n", b"? [1]\n: 2\n", b"- " * 3, b"%YAML 9\n"])
def test_bytes_that_are_no_spec(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(data)
    with pytest.raises(SpecError):
        spec.load(path, terms=[])


def test_a_file_that_is_too_large(tmp_path: Path) -> None:
    assert "1048576 bytes" in mistakes(tmp_path, "#" * (1 << 20))


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 6, 8, 12, 16, 20, 32, 40, 64, 128, 2047, 4095, 4096])
def test_alibi_slopes_are_the_published_ones(heads: int) -> None:
    path = resources.variants()["alibi"]
    default = spec.load(path, terms=resources.terms_for(path)).inputs[0].default
    assert default is not None
    power = 2 ** math.floor(math.log2(heads))
    expected = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    expected += [2 ** (-8 * (i + 1) / (2 * power)) for i in range(0, 2 * (heads - power), 2)]
    found = [evaluate(default, {"h": h, "heads": heads}) for h in range(heads)]
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("text", ["mask: [%s]", "score: [%s]", "mask: [{any: [%s]}]"])
def test_a_list_of_too_many_terms_is_told(text: str, tmp_path: Path) -> None:
    terms = "alibi, " * 900 if text.startswith("score") else "causal, " * 900
    assert "may have 50 terms, this one has 900" in mistakes(tmp_path, text % terms + "\n")


def test_masks_joined_within_masks_are_told_not_a_crash(tmp_path: Path) -> None:
    joined = "causal"
    for word in ("any", "all") * 14:
        joined = f"{{{word}: [{joined}, {', '.join(['causal'] * 49)}]}}"
    assert "this term joins more than 100 parts" in mistakes(tmp_path, f"mask: [{joined}]\n")


def test_an_expression_on_several_lines(tmp_path: Path) -> None:
    keep = load(tmp_path, "mask:\n  - expr: |\n      k <= q\n      and k > 3\n").masks[0].keep
    assert [evaluate(keep, {"q": 5, "k": k}) for k in (3, 4)] == [False, True]


def test_an_input_called_as_a_term_is_not_taken_for_it(tmp_path: Path) -> None:
    axes = "{axes: [query, key]}"
    text = "mask:\n  - expr: sliding_window\n  - expr: prefix_lm\nscore:\n  - expr: softcap\n  - expr: bias\n"
    inputs = f"inputs:\n  softcap: {axes}\n  bias: {axes}\n"
    inputs += "".join(f"  {name}: {{axes: [key], dtype: bool}}\n" for name in ("prefix_lm", "sliding_window"))
    layers = load(tmp_path, text + inputs).layers
    assert (layers.seen, layers.window, layers.cap, layers.bias) == ("all", None, None, False)


def test_a_term_behind_a_broken_link_is_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "terms").mkdir()
    (tmp_path / "terms" / "lost.yaml").symlink_to("nowhere.yaml")
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\nmask: [lost]\n")
    with pytest.raises(SpecError) as caught:
        spec.load(path, terms=resources.terms_for(path))
    (problem,) = caught.value.problems
    assert "lost.yaml is a link that leads nowhere" in problem.message and "did you mean" not in problem.message
    assert (problem.location.line, problem.location.column) == (2, 8)
