"""The benchmark of models: each case takes a step, and the table in the docs follows from the record of a run."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
from pathlib import Path

import devices  # noqa: F401  # where kernels run is settled before triton is imported
import pytest
import torch

pytest.importorskip("transformers")
models = pytest.importorskip("models")

TIMES = {"causal": 4.0, "llama3": 3.0, "sdpa": 5.0, "flex_attention": 6.0}


def test_the_table_is_what_the_record_makes_of_it() -> None:
    text = models.PAGE.read_text(encoding="utf-8")
    assert models.page(text, models.recorded()) == text, "benchmarks/models.py --page"


def rows(text: str) -> dict[str, str]:
    """The last column of the table, keyed by the first one."""
    table = re.search(r"^\| models \|.*?\n\n", text, re.MULTILINE | re.DOTALL)
    assert table
    lines = [line.strip("| ").split(" | ") for line in table[0].strip().splitlines()[2:]]
    return {line[0]: line[-1] for line in lines}


def test_what_is_measured_stands_in_the_row_of_its_model() -> None:
    text = models.PAGE.read_text(encoding="utf-8")
    assert {case.row for case in models.CASES if case.row} <= set(rows(text))
    cases = [{"case": "llama, eager", "ms": TIMES}, {"case": "llama, compiled", "ms": TIMES | {"flex_attention": 3.0}}]
    # a case whose own step failed gives no result
    cases.append({"case": "gemma 2, eager", "ms": {"eager": 7.0}})
    found = models.page(text, {"device": "GPU", "libraries": "torch 0", "cases": cases})
    assert rows(found)["Llama"] == "eager 1.25 (sdpa), compiled 0.75 (flex_attention)"
    others = {value for row, value in rows(found).items() if row != "Llama"}
    assert others == {models.UNKNOWN}
    assert "\nSpeed: Measured on one GPU, torch 0.\n" in found


@pytest.mark.slow
@pytest.mark.parametrize("case", models.CASES, ids=lambda case: case.name)
def test_each_case_takes_a_step(case: models.Case) -> None:
    models.training(case, case.spec, "eager", True)()


@pytest.mark.slow
@pytest.mark.parametrize("way", models.EXPERTS)
def test_each_way_through_experts_gives_the_same_gradients(way: str) -> None:
    (case,) = (case for case in models.CASES if case.experts)
    gradients = []
    for experts in (case.experts, way):
        model = models.made(dataclasses.replace(case, experts=experts), "eager", True)
        assert model.config._experts_implementation == experts
        torch.manual_seed(1)
        for name, parameter in model.named_parameters():
            if name.endswith("_bias"):
                torch.nn.init.normal_(parameter)
        ids = torch.randint(63, (2, 24), device=models.DEVICE)
        (model(ids, use_cache=False).last_hidden_state.float() ** 3).sum().backward()
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
    assert (gradients[0] - gradients[1]).norm() < 1e-5 * gradients[0].norm()


def test_the_spec_of_t5_is_that_of_the_page() -> None:
    text = (models.ROOT / "benchmarks" / "specs" / "t5.yaml").read_text(encoding="utf-8")
    assert f"```yaml\n{text}```" in models.PAGE.read_text(encoding="utf-8")


def test_a_record_keeps_what_else_was_measured_on_that_gpu(tmp_path: Path) -> None:
    out, about = tmp_path / "models.json", {"device": "GPU", "libraries": "torch 0"}
    for case, ms in (("a", 1.0), ("b", 2.0), ("a", 3.0)):
        models.keep([{"case": case, "ms": ms}], out, about)
    assert {one["case"]: one["ms"] for one in json.loads(out.read_text())["cases"]} == {"a": 3.0, "b": 2.0}
    with pytest.raises(SystemExit, match="is of GPU, torch 0"):
        models.keep([], out, about | {"device": "another"})


def test_a_contender_that_fails_leaves_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> models.Step:
        raise RuntimeError("no such\nthing")

    found = models.in_turns("a title", {"one": fails, "other": lambda: lambda: None}, 2)
    assert set(found["ms"]) == {"other"}
    assert "a title, one: RuntimeError: no such\n" in capsys.readouterr().err


class Raises(models.Case):
    """A case that cannot run in a process of its own."""

    def few(self) -> models.Case:
        raise RuntimeError("no such\nthing")


class Dies(models.Case):
    """A case that ends the process."""

    def few(self) -> models.Case:
        os._exit(3)


@pytest.mark.slow
def test_a_contender_that_breaks_its_process_is_left_out_and_the_others_are_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "models.json"
    llama = next(case for case in models.CASES if case.name == "llama")
    of = {field.name: getattr(llama, field.name) for field in dataclasses.fields(llama)}
    of |= {"patched": "", "peers": ("sdpa",)}
    cases = [kind(**of | {"name": kind.__name__}) for kind in (Dies, Raises, models.Case)]
    monkeypatch.setattr(models, "CASES", cases)
    arguments = ["--tiny", "--only", "Dies", "Raises", "Case", "--modes", "eager", "--jobs", "2", "--json", str(out)]
    monkeypatch.setattr(sys, "argv", ["models.py", *arguments])
    models.main()
    timed = {one["case"]: set(one["ms"]) for one in json.loads(out.read_text())["cases"]}
    assert timed == {"Dies, eager": {"sdpa"}, "Raises, eager": {"sdpa"}, "Case, eager": {llama.spec, "sdpa"}}
    told = capsys.readouterr().err
    assert f"Dies, eager, {llama.spec} is left out: BrokenProcessPool: " in told
    assert f"Raises, eager, {llama.spec} is left out: RuntimeError: no such\n" in told
    # a model that is compiled as a whole gets no process of its own, and runs the same kernels
    failed = {("Case", "eager", llama.spec): "a reason"}
    assert set(models.makers(cases[-1], "compiled", True, failed)) == {"sdpa"}
    assert set(models.makers(cases[-1], "layers", True, failed)) == {llama.spec, "sdpa"}


@pytest.mark.slow
def test_a_record_can_be_made_into_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "models.json"
    # the other peer is compiled first, which takes longer than everything else here
    cases = [dataclasses.replace(case, peers=("sdpa",)) for case in models.CASES]
    monkeypatch.setattr(models, "CASES", cases)
    monkeypatch.setattr(
        sys, "argv", ["models.py", "--tiny", "--only", "deepseek", "--modes", "eager", "--json", str(out)]
    )
    models.main()
    told = rows(models.page(models.PAGE.read_text(encoding="utf-8"), json.loads(out.read_text())))["DeepSeek V2, V3"]
    assert re.fullmatch(r"eager \d+\.\d\d \(sdpa\)", told)
