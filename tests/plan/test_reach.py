"""Which kernels a call takes depends on how far its queries see, if a mask hides early keys."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from attnforge.cli import commands
from attnforge.language import spec
from attnforge.plan import plan
from attnforge.plan.plan import Plan
from attnforge.source import resources

WINDOW = importlib.import_module("generated.runtime_window")


def planned(folder: Path, text: str) -> Plan:
    path = folder / "some.yaml"
    path.write_text(f"name: some\n{text}\n")
    return plan.build(spec.load(path, terms=resources.terms_for(path)))


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("mask: [causal]", {64, 128}),
        ("mask: [causal, sliding_window: {size: 64}]", set()),
        ("mask: [causal, sliding_window: {size: 512}]", {128}),
        ("mask: [causal, sliding_window: {size: 1024}]", {128}),
        ("mask: [causal, sliding_window: {size: 2048}]", {64, 128}),
        ("mask: [causal, chunked: {size: 8192}]", {64, 128}),
        ("mask: [causal, any: [sliding_window: {size: 4096}, expr: 'k < 4']]", {64, 128}),
        ("mask: [causal, segments]", set()),
        ("mask: [any: [causal, segments]]", {64, 128}),  # hides no early key
        ("dropout: true\nmask: [causal, segments]", {64, 128}),  # random numbers cost more than hidden keys
        ("dropout: true\nmask: [causal, block_sparse: {block: 128}]", {64, 128}),
        ("dropout: true\nmask: [causal, sliding_window: {size: 512}]", set()),
        ("mask: [sliding_window: {size: 64}, block_sparse: {block: 128}]", {64, 128}),
        ("mask: [causal, sliding_window: {size: 1024}]\nscore: [softcap: {cap: 20.0}]", set()),
        ("mask: [causal, sliding_window: {size: 4096}]\nscore: [softcap: {cap: 20.0}]", {128}),
    ],
)
def test_narrow_windows_and_what_tensors_bound_stay_with_portable_kernels(
    tmp_path: Path, text: str, taken: set[int]
) -> None:
    tables = planned(tmp_path, text).tables
    assert {64, 128} & {*tables.faster["forward"]} == taken
    assert not tables.reach


def test_calls_tell_how_far_they_see_where_they_give_the_window(tmp_path: Path) -> None:
    found = planned(tmp_path, "mask: [causal, sliding_window: {size: runtime}]")
    assert found.far == "max(0, in_window - 1)"
    assert found.tables.reach["forward"] == {64: 2000, 128: 100}
    assert {*found.tables.reach["forward"]} <= {*found.tables.faster["forward"]}
    # no kernels for Hopper GPUs depend on it
    portable = planned(tmp_path, "mask: [causal, sliding_window: {size: runtime}]\ntargets: [portable]")
    assert portable.far == ""


@pytest.mark.parametrize(("window", "hopper"), [(1, False), (99, False), (128, True), (100_000, True)])
def test_a_call_with_a_window_takes_the_faster_kernels(
    window: int, hopper: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = importlib.import_module("generated.runtime_window.runtime")
    tables = importlib.import_module("generated.runtime_window.tiles")
    monkeypatch.delenv("ATTNFORGE_TARGET", raising=False)
    monkeypatch.setattr(runtime, "INTERPRETED", False)
    monkeypatch.setattr(runtime, "hopper_kernels", lambda *given: "kernels")
    monkeypatch.setattr(runtime, "LaunchCache", type("Own", (runtime.LaunchCache,), {"known": {}}))
    taken = list[str]()

    def noted(*best: Any) -> None:
        taken.append(best[-1])

    def attended(cache: Any, _: Any, keys: int, q: Any, k: Any, v: Any, *given: Any) -> Any:
        return runtime.launch_on_hopper(cache, tables, "forward", noted, q, v, keys)

    monkeypatch.setattr(runtime, "attended", attended)
    monkeypatch.setattr(runtime, "launch_tuned", lambda *given: taken.append("portable"))
    q = torch.zeros(1, 2048, 1, 128, dtype=torch.float16)
    for _ in range(2):  # the second call uses what is remembered of the first
        WINDOW.attention(q, q, q, window=window)
    WINDOW.attention(q, q, q, window=70)
    assert taken == ["kernels" if hopper else "portable"] * 2 + ["portable"]


def test_explain_tells_which_windows_take_them() -> None:
    def row(window: int) -> str:
        given = ["explain", str(resources.variants()["runtime_window"]), "--shape", "2048,2048", "--with"]
        done = CliRunner().invoke(commands.main, [*given, f"window={window}"])
        assert done.exit_code == 0, done.output
        rows = (" ".join(line.split()) for line in done.output.splitlines())
        return next(line for line in rows if line.startswith("forward 65 to"))

    assert "from 512 keys on if queries see 100 before theirs portable" in row(100)
    assert "from 512 keys on if queries see 100 before theirs hopper" in row(101)
