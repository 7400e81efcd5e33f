"""Calls over a cache that `bench` times: they agree with peers, dense and in pages, and report what they read."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from rich.console import Console

from attnforge.cli import arguments, commands
from attnforge.gpu import bench, caches, calls, results
from attnforge.gpu.calls import Sizes
from attnforge.gpu.peers import PEERS, Asked, Exported, Peer
from attnforge.gpu.results import Machine, Result, Row
from attnforge.language import spec
from attnforge.language.spec import Spec
from attnforge.plan import plan
from attnforge.render import emit
from attnforge.source import resources

GENERATED = Path(__file__).parents[2] / "generated"
SMALL = Sizes(2, 1, 48, 4, 2, 16, 16, "fp32")
LATENT = dataclasses.replace(SMALL, kv_heads=1, head_dim=576, v_dim=512)


@pytest.fixture(autouse=True)
def small_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the ceiling's copy small enough for a CPU."""
    monkeypatch.setattr(bench, "COPIED", 64)


def shipped(name: str) -> tuple[Spec, emit.Package]:
    path = resources.variants()[name]
    loaded = spec.load(path, terms=resources.terms_for(path))
    files = {file.name: file.read_text() for file in (GENERATED / name).glob("*.py")}
    return loaded, emit.Package(name, loaded.source, path, files)


def timed(name: str, sizes: Sizes, monkeypatch: pytest.MonkeyPatch, *peers: str) -> Result:
    """A run with a clock that stands still."""
    monkeypatch.setattr(bench, "_peak", lambda _: 3.0)
    loaded, package = shipped(name)
    how: dict[str, Any] = {"cache": True, "device": "cpu", "clock": lambda call: call() is not None and 2.0}
    (result,) = bench.run(loaded, package, [sizes], peers, **how)
    return result


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("causal", SMALL),
        ("gpt_oss", SMALL),
        ("log_decay", dataclasses.replace(SMALL, q_len=3)),
        ("prefix_lm", dataclasses.replace(SMALL, q_len=3)),
        ("tree_decoding", dataclasses.replace(SMALL, q_len=4)),
        ("deepseek_mla_absorbed", LATENT),
    ],
)
def test_caches_give_what_a_peer_gives(name: str, sizes: Sizes, monkeypatch: pytest.MonkeyPatch) -> None:
    result = timed(name, sizes, monkeypatch, "naive")
    assert [(row.name, row.forward_ms, row.backward_ms, row.note) for row in result.rows] == [
        (contender, 2.0, None, "") for contender in ("attnforge", "pages of 16", "naive")
    ]
    columns = 576 if name == "deepseek_mla_absorbed" else 32
    assert result.read == 2 * 48 * sizes.kv_heads * columns * 4
    assert result.ceiling == (2 * 64 / 2e9, None)


def test_pages_that_hold_other_keys_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    shuffled, count = torch.randperm, iter(range(9))
    monkeypatch.setattr(torch, "randperm", lambda n, **more: shuffled(n, **more) * 0 + next(count))
    notes = {row.name: row.note for row in timed("causal", SMALL, monkeypatch).rows}
    assert notes["attnforge"] == "" and notes["pages of 16"].startswith("gives something else")


def test_lengths_that_fill_no_pages_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    notes = {row.name: row.note for row in timed("causal", dataclasses.replace(SMALL, k_len=40), monkeypatch).rows}
    assert notes == {"attnforge": "", "pages of 16": "ValueError: 40 keys do not fill pages of 16"}


@pytest.mark.parametrize(("queries", "seen"), [(1, 5), (4, 8)])
def test_keys_that_no_query_sees_are_not_read(queries: int, seen: int, tmp_path: Path) -> None:
    path = tmp_path / "window.yaml"
    path.write_text("name: window\nmask: [causal, sliding_window: {size: 5}]\nexports: [decode]\n")
    loaded = spec.load(path, terms=resources.terms_for(path))
    call = calls.make(plan.build(loaded), dataclasses.replace(SMALL, q_len=queries), "cpu")
    assert Exported(loaded, tmp_path).seen(call)[1] == 2 * seen
    assert caches.bytes_of_key(call) == 2 * 32 * 4


def test_the_mask_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked, visible = [], Exported._visible
    monkeypatch.setattr(Exported, "_visible", lambda *given: (looked.append(given), visible(*given))[1])
    result = timed("causal", SMALL, monkeypatch)
    assert len(looked) == 1
    assert (result.pairs, result.read) == (2 * 4 * 48, 2 * 48 * 2 * 32 * 4)


def test_a_single_query_sees_all_keys_without_a_causal_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """SDPA's causal mask aligns the first query with the first key."""
    plain = Peer("sdpa", "", PEERS["sdpa-flash"].features, PEERS["sdpa-flash"].attend)
    monkeypatch.setattr(bench, "PEERS", {"sdpa": plain})
    assert timed("causal", SMALL, monkeypatch, "sdpa").rows[-1] == Row("sdpa", 2.0, None, 3.0)
    loaded, _ = shipped("causal")
    call = calls.make(plan.build(loaded), dataclasses.replace(SMALL, q_len=2), "cpu")
    traits = Exported(loaded, Path()).traits
    assert plain.refusal(Asked(traits, call)) == "lines up the first query with the first key"


FOUND = Result(
    "causal", Sizes(8, 1, 8192, 32, 8, 128, 128, "bf16"), 8 * 32 * 8192,
    (Row("attnforge", 0.07, None, 3.0), Row("pages of 16", 0.077), Row("naive", note="out of memory")),
    replayed=True, cached=True, read=1 << 28, ceiling=(4.25, None),
)  # fmt: skip


def test_bytes_are_told_in_place_of_products() -> None:
    console = Console(file=io.StringIO(), width=150)
    console.print(results.table(FOUND))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    title = "causal over a cache: batch 8, length 1 x 8192, heads 32:8, head size 128, bf16, replayed"
    assert title in " ".join(text.split())
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if "│" in line]
    assert rows == [
        ["attnforge", "0.0700", "3.83", "90", "1.00", ""],
        ["pages of 16", "0.0770", "3.49", "82", "1.10", ""],
        ["naive", "", "", "", "", "out of memory"],
    ]
    assert "%: of a copy in the same turns, 4.25 TB/s" in " ".join(text.split())
    here = Machine("a GPU", "2.11", "3.6")
    assert results.read(results.document(here, [FOUND])) == (here, [FOUND])


def test_the_command_asks_for_one_new_token(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def run(_: Spec, __: emit.Package, sizes: list[Sizes], *___: Any, **more: Any) -> Any:
        asked.append((sizes[0].q_len, sizes[0].k_len, more["cache"]))
        return iter([FOUND])

    monkeypatch.setattr(bench, "run", run)
    monkeypatch.setattr(Machine, "here", staticmethod(lambda: Machine("a GPU", "2.11", "3.6")))
    monkeypatch.setattr(arguments, "packages", lambda loaded: [None] * len(loaded))
    for options in (["--cache"], ["--cache", "--queries", "4"], ["--queries", "4"]):
        done = CliRunner().invoke(commands.main, ["bench", "causal", "--lengths", "8192", *options])
        assert done.exit_code == 0 and "pages of 16" in done.output, done.output
    assert asked == [(1, 8192, True), (4, 8192, True), (4, 8192, False)]


def test_new_tokens_are_among_the_keys() -> None:
    done = CliRunner().invoke(commands.main, ["bench", "causal", "--cache", "--queries", "8", "--lengths", "64,4"])
    assert done.exit_code == 2 and "8 new tokens are more than a cache of 4 keys holds" in done.output


def test_a_call_that_fails_stays_one_over_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    result = timed("causal", dataclasses.replace(SMALL, head_dim=9999, v_dim=9999), monkeypatch)
    assert result.cached and result.rows[0].note
    console = Console(file=io.StringIO(), width=150)
    for found in (result, dataclasses.replace(FOUND, ceiling=(None, None))):
        console.print(results.table(found))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "backward" not in text and "of a copy" not in text


def test_specs_that_read_no_cache_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "many.yaml"
    path.write_text("name: many\nlayout: packed\nmask: [causal]\nexports: [decode]\n")
    for name, told in (
        ("full", "full has no attend_with_cache; it takes `exports: [decode]`"),
        (path, "many is packed"),
    ):
        done = CliRunner().invoke(commands.main, ["bench", str(name), "--cache"])
        assert done.exit_code == 2 and told in " ".join(done.output.split()), done.output
