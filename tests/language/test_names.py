"""The names that a spec may define: all that the language does not use itself."""

from __future__ import annotations

import io
import itertools
import re
import tokenize
from pathlib import Path

import pytest
import unformatted
from hypothesis import given
from hypothesis import strategies as st

from attnforge.language import names, spec
from attnforge.plan.names_in_code import prefixed
from attnforge.source import resources

ROOT = Path(__file__).parents[2]
PREFIX = r"\bin\d*_\w+"
WORDS = st.lists(st.sampled_from(["x", "q", "ptr", "sum", "stride", "head", "at1"]), min_size=1, max_size=4)


@given(st.sets(WORDS.map("_".join), max_size=6), WORDS.map("_".join))
def test_no_suffix_makes_two_names_meet(found: set[str], suffix: str) -> None:
    own = prefixed(sorted(found))
    endings = {suffix, *("_".join(name.split("_")[i:]) for name in found for i in range(1, 4))} - {""}
    made = [{code, *(f"{code}_{ending}" for ending in endings)} for code in own.values()]
    for one, other in itertools.combinations(made, 2):
        assert not one & other


def test_prefixes_differ_where_one_name_goes_on_from_another() -> None:
    assert prefixed(["x", "x_ptr", "x_ptr_q", "xy"]) == {
        "x": "in_x",
        "x_ptr": "in2_x_ptr",
        "x_ptr_q": "in3_x_ptr_q",
        "xy": "in_xy",
    }


@pytest.mark.parametrize("folder", ["portable", "early", "macros"])
def test_no_name_of_the_templates_has_the_prefix(folder: str) -> None:
    for path in (ROOT / "templates" / folder).glob("*.jinja"):
        assert not re.findall(PREFIX, path.read_text()), path


@pytest.mark.parametrize("name", ["packed_log_decay", "pair_bias", "runtime_window", "tree_decoding"])
def test_all_that_has_the_prefix_is_made_of_a_name_of_the_user(name: str) -> None:
    path = ROOT / "specs" / f"{name}.yaml"
    loaded = spec.load(path, terms=resources.terms_for(path))
    mine = [given.name for given in loaded.inputs] + [option.keyword for option in loaded.options]
    files = unformatted.interpreted(loaded)
    for file in ("kernels.py", "launch.py", "api.py", "reference.py"):
        tokens = tokenize.generate_tokens(io.StringIO(files[file]).readline)
        words = {token.string for token in tokens if token.type == tokenize.NAME}
        assert any(word.startswith(f"in_{mine[0]}") for word in words), file
        assert all(word.startswith(tuple(f"in_{x}" for x in mine)) for word in words if re.fullmatch(PREFIX, word))
        if file in ("kernels.py", "launch.py"):
            assert not words & set(mine)


@pytest.mark.parametrize(
    "name",
    [
        "temp",
        "slopes",
        "x",
        "acc",
        "m",
        "key_tiles",
        "torch",
        "self",
        "print",
        "x_stride_head",
        "part0",
        "in_x",
        "A",
        "Tq",
        "BLOCK_M",
    ],
)
def test_names_that_are_free(name: str) -> None:
    assert names.wrong_keyword(name) is None


@pytest.mark.parametrize("name", ["", "_a", "a-b", "é", "a" * 41, "lambda", "score", "exp", "k_len", "scale"])
def test_names_that_are_not(name: str) -> None:
    assert names.wrong_keyword(name)


@pytest.mark.parametrize("name", ["mine", "Mine", "T5", "x_1"])
def test_packages_that_can_be(name: str) -> None:
    assert names.wrong_package(name) is None


@pytest.mark.parametrize("name", ["", "1a", "a-b", "a.b", "../a", "torch", "class", "TRUE", "Null", "a" * 61])
def test_packages_that_cannot_be(name: str) -> None:
    assert names.wrong_package(name)
