"""The benchmark of models: each case takes a step, and the table of the docs is what its record makes of it."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from pathlib import Path

import devices  # noqa: F401  # where kernels run is settled before triton is imported
import pytest

pytest.importorskip("transformers")
models = pytest.importorskip("models")

TIMES = {"causal": 4.0, "llama3": 3.0, "sdpa": 5.0, "flex_attention": 6.0}


def test_the_table_is_what_the_record_makes_of_it() -> None:
    text = models.PAGE.read_text(encoding="utf-8")
    assert models.page(text, models.recorded()) == text, "benchmarks/models.py --page"


def rows(text: str) -> dict[str, str]:
    """The last column of the table by the first one."""
    table = re.search(r"^\| models \|.*?\n\n", text, re.MULTILINE | re.DOTALL)
    assert table
    lines = [line.strip("| ").split(" | ") for line in table[0].strip().splitlines()[2:]]
    return {line[0]: line[-1] for line in lines}


def test_what_is_measured_stands_in_the_row_of_its_model() -> None:
    text = models.PAGE.read_text(encoding="utf-8")
    assert {case.row for case in models.CASES if case.row} <= set(rows(text))
    cases = [{"case": "llama, eager", "ms": TIMES}, {"case": "llama, compiled", "ms": TIMES | {"flex_attention": 3.0}}]
    # one whose own step failed tells nothing
    cases.append({"case": "gemma 2, eager", "ms": {"eager": 7.0}})
    found = models.page(text, {"device": "GPU", "libraries": "torch 0", "cases": cases})
    assert rows(found)["Llama"] == "eager 1.25 (sdpa), compiled 0.75 (flex_attention)"
    others = {value for row, value in rows(found).items() if row != "Llama"}
    assert others == {models.UNKNOWN}
    assert "\nSpeed: Measured on one GPU, torch 0.\n" in found


@pytest.mark.slow
@pytest.mark.parametrize("case", models.CASES, ids=lambda case: case.name)
def test_each_case_takes_a_step(case: models.Case) -> None:
    models.training(case, case.spec, False, True)()


@pytest.mark.slow
def test_a_record_can_be_made_into_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "models.json"
    # the other peer is compiled first, which takes longer than all else here
    cases = [dataclasses.replace(case, peers=("sdpa",)) for case in models.CASES]
    monkeypatch.setattr(models, "CASES", cases)
    monkeypatch.setattr(sys, "argv", ["models.py", "--tiny", "--only", "deepseek", "--json", str(out)])
    models.main()
    told = rows(models.page(models.PAGE.read_text(encoding="utf-8"), json.loads(out.read_text())))["DeepSeek V2, V3"]
    assert re.fullmatch(r"eager \d+\.\d\d \(sdpa\)", told)
