"""Records of measurements, and the page generated from them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pages
import pytest
import record
import torch
from sets import PROFILED_CALL, SETS, Set

from attnforge.cli import arguments
from attnforge.gpu import bench, counters, profile
from attnforge.gpu.calls import Sizes
from attnforge.gpu.counters import Reading
from attnforge.gpu.results import OURS, Machine, Result, Row, document

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", ["measurements", "archaeology"])
def test_a_page_is_what_the_records_make_of_it(page: str) -> None:
    text = getattr(pages, page)()
    assert (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8") == text, "benchmarks/record.py --page"


def test_readme_tells_what_the_records_say() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert pages.readme(text) == text, "benchmarks/record.py --page"


def test_sets_name_variants_and_peers_that_there_are() -> None:
    for one in SETS.values():
        specs = [spec for name in one.specs for spec in arguments.load([name]).values()]
        assert len(specs) == len(one.specs) and set(one.peers) <= set(bench.PEERS)
        assert all(spec.algorithm.backward or one.replays or not one.backward for spec in specs)
        assert all(s.heads % s.kv_heads == 0 for s in one.sizes)


@pytest.mark.slow
def test_rope_outside_is_what_rope_inside_is(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[torch.Tensor] = []
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    monkeypatch.setattr(bench, "replayed", lambda function: found.append(function()) or float(len(found)))
    rows = record.outside([Sizes(1, 20, 20, 2, 2, 16, 16, "fp32")], "cpu")
    assert [(result.sizes.k_len, result.pairs, result.replayed) for result in rows] == [(20, 2 * 210, True)]
    took = {row.name: row.forward_ms for row in rows[0].rows}
    # the third of five rounds: each of the four is timed once per round, and the second one begins this round
    assert took == {"outside, compiled": 9, "outside, eager": 10, "without RoPE": 11, "attnforge": 12}
    inside, compiled, eager, without = found[:4]
    assert torch.allclose(inside, compiled, atol=1e-5) and torch.allclose(inside, eager, atol=1e-5)
    assert not torch.allclose(inside, without, atol=1e-2)


def test_a_peer_is_told_by_its_time_over_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = Sizes(16, 1024, 1024, 32, 32, 64, 64, "bf16")
    pairs = 16 * 32 * 1024 * 1024
    rows = (Row(OURS, 0.25, 0.5, 66.0, 260.0), Row("portable", 0.25, 0.6), Row("flex", 0.3, 0.75))
    result = Result("causal", sizes, pairs, (*rows, Row("fla", note="has no packed")), False, {"forward": "portable"})
    text = document(Machine("a card", "2.11", "3.6"), [result, replace(result, ceiling=(800.0, 750.0))])
    (tmp_path / "variants.json").write_text(text)
    monkeypatch.setattr(pages, "RESULTS", tmp_path)
    page = pages.measurements(["variants"])
    assert "a card, torch 2.11, triton 3.6." in page and "fla" not in page
    assert "| 1024 x 1024 | 0.250 | 550 |  | 0.500 | 687 |  | 260.0 | 1.00* / 1.20 | 1.20 / 1.50 |" in page
    assert "| 1024 x 1024 | 0.250 | 550 | 69 | 0.500 | 687 | 92 | 260.0 | 1.00* / 1.20 | 1.20 / 1.50 |" in page
    (tmp_path / "variants.json").write_text(document(Machine("a card", "2.11", "3.6"), [result]))
    page = pages.measurements(["variants"])
    assert "| 1024 x 1024 | 0.250 | 550 | 0.500 | 687 | 260.0 | 1.00* / 1.20 | 1.20 / 1.50 |" in page


def test_steps_stand_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = Sizes(2, 512, 512, 16, 16, 64, 64, "fp16")
    took = {"causal": 0.01, "flash1": 0.08, "causal_late": 0.025}
    results = [Result(name, sizes, 10**9, (Row(OURS, ms), Row("naive", 0.5)), True) for name, ms in took.items()]
    (tmp_path / "history.json").write_text(document(Machine("a card", "2.11", "3.6"), results))
    machine = Machine("a card", "2.11", "3.6")
    beside = Result("rope", sizes, 10**9, (Row(OURS, 0.0204), Row("without RoPE", 0.0125)), True)
    (tmp_path / "rope_outside.json").write_text(document(machine, [beside]))
    reading = Reading("forward", seconds=1e-4, read=2.0**20, written=2.0**21, stalls={"barrier": 0.5, "wait": 0.25})
    launch = profile.Launch("forward", reading, profile.Least("forward", 2**19, 2**20))
    counted = profile.Profile("flash1", PROFILED_CALL, (launch,))
    (tmp_path / "profiles.json").write_text(profile.document(machine, [counted]))
    assert profile.read((tmp_path / "profiles.json").read_text()) == (machine, [counted])
    monkeypatch.setattr(pages, "RESULTS", tmp_path)
    page = pages.archaeology()
    assert "| 512 | 0.5000 | 0.0800 |  | 0.0100 |" in page  # one of the steps is missing
    assert "| 512 | 0.0250 | 0.0100 | 2.50 |" in page
    assert "| 512 | 0.0125 | 0.0204 |  |  |" in page
    counts = (
        f"| flash1 | forward | 0.100 | 1.0 | 0.5 | 2.0 | 1.0 | 2.00 |  |  |  |  |  | {counters.words('barrier')} 50 % |"
    )
    assert counts in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["variants"], "this needs a GPU that torch can use"),
        (["nothing"], "unknown set 'nothing'; there are variants, "),
        (["--page", "variants"], "--page measures nothing"),
        (["--jobs", "0"], "--jobs: expected at least 1, got 0"),
        (["variants", "--only", "cross"], "--only: no set measures 'cross'"),
        (["--pag"], "unrecognized arguments: --pag"),
    ],
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_mistakes_are_told_before_anything_is_done(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["record.py", *arguments])
    with pytest.raises(SystemExit) as stopped:
        record.main()
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_a_run_that_is_cut_keeps_its_results_and_those_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine, (first, second) = Machine("GPU", "2.11", "3.6"), SETS["grouped"].specs[:2]
    short, long = (Sizes(1, n, n, 1, 1, 64, 64, "bf16") for n in (64, 128))

    def result(name: str, sizes: Sizes, took: float) -> Result:
        return Result(name, sizes, 1, (Row(OURS, took),))

    def measured(one: Set, clock: object = None) -> Iterator[Result]:
        yield result(one.specs[0], short, 2.0)
        if one.specs[0] == second:
            raise KeyboardInterrupt
        yield result(one.specs[0], long, 2.0)

    for module in (pages, record):
        monkeypatch.setattr(module, "RESULTS", tmp_path)
    monkeypatch.setattr(Machine, "here", lambda: machine)
    monkeypatch.setattr(record, "measured", measured)
    before = [result(name, sizes, 1.0) for name in (first, second) for sizes in (short, long)]
    stale = result(first, Sizes(1, 256, 256, 1, 1, 64, 64, "bf16"), 1.0)
    for same in (True, False):
        told = machine if same else Machine("another", "2.11", "3.6")
        (tmp_path / "grouped.json").write_text(document(told, [stale, *before]))
        with pytest.raises(KeyboardInterrupt):
            record.measure({"grouped": SETS["grouped"]}, None, None)
        ((_, found_on, found),) = pages.recorded("grouped")
        assert found_on == machine
        took = {(one.variant, one.sizes): one.rows[0].forward_ms for one in found}
        wanted = {(first, short): 2.0, (first, long): 2.0, (second, short): 2.0, (second, long): 1.0}
        assert took == (wanted if same else {call: 2.0 for call, ms in wanted.items() if ms == 2.0})


@pytest.mark.parametrize("text", ["", "{}", "[]", None])
def test_a_damaged_record_is_told_by_its_name(
    text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if text is not None:
        (tmp_path / "variants.json").write_text(text)
    monkeypatch.setattr(pages, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["record.py", "--page"])
    with pytest.raises(SystemExit):
        record.main()
    assert f"{tmp_path / 'variants.json'}: {'there is no' if text is None else 'damaged'}" in capsys.readouterr().err
