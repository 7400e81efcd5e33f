"""The training example: its text, what it writes, that both kinds of attention learn the same, that runs can resume."""

from __future__ import annotations

import csv
import dataclasses
import importlib.util
import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import train
from click.testing import CliRunner, Result
from devices import GPU
from training import report, sdpa
from training.decoder import NEAR, Sizes
from training.text import Diary
from training.trainer import Settings, Step, Trainer

TINY = partial(
    Settings,
    text=Diary(names=2, values=4),
    sizes=Sizes(layers=2, width=16, heads=2, kv_heads=1, head_size=8, window=3, length=12),
    batch=2,
    rate=1e-2,
)


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Renders packages once, into a folder of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATTNFORGE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def run(monkeypatch: pytest.MonkeyPatch, out: Path, *arguments: str) -> Result:
    monkeypatch.setitem(train.SIZES, "small", TINY)
    return CliRunner().invoke(train.main, ["--device", "cpu", "--out", str(out), *arguments])


def losses(out: Path) -> dict[str, list[tuple[float, float]]]:
    """Loss and recall of each step, by the kind of attention."""
    found: dict[str, list[tuple[float, float]]] = {}
    with (out / "losses.csv").open() as file:
        for row in csv.DictReader(file):
            steps = found.setdefault(row["attention"], [])
            steps.append((float(row["loss"]), float(row["recall"])))
            assert int(row["step"]) == len(steps) and float(row["seconds"]) > 0
    return found


# -- text ----------------------------------------------------------------------------------------------------------


def test_a_value_is_the_one_that_its_name_was_given_last() -> None:
    diary = Diary(names=3, values=5, change=0)
    text, known = diary.draw(4, 41, torch.Generator().manual_seed(0))
    assert text.shape == known.shape == (4, 41)
    different = False
    for symbols, marks in zip(map(diary.written, text), known.tolist(), strict=True):
        given: dict[str, str] = {}
        for i in range(0, 40, 2):
            name, value = symbols[i : i + 2]
            assert marks[i : i + 2] == [False, name in given]
            assert given.setdefault(name, value) == value
        different |= len(set(given.values())) > 1
    assert different


def test_changes_last_and_are_as_frequent_as_the_bounds_say() -> None:
    diary = Diary(names=2, values=4, change=0.2)
    text, known = diary.draw(200, 100, torch.Generator().manual_seed(0))
    predicted, right = 0, 0
    for symbols, marks in zip(text.tolist(), known.tolist(), strict=True):
        given: dict[int, int] = {}
        for i in range(0, 100, 2):
            predicted += marks[i + 1]
            right += given.get(symbols[i]) == symbols[i + 1]
            given[symbols[i]] = symbols[i + 1]
    share = right / predicted
    best = -share * math.log(share) - (1 - share) * math.log((1 - share) / 3)
    blind, least = diary.bounds()
    assert blind == pytest.approx(math.log(4))
    assert least == pytest.approx(best, abs=0.02)


def test_text_follows_from_its_seed() -> None:
    draw = partial(Diary(names=2, values=4).draw, 2, 20)
    one, same, other = (draw(torch.Generator().manual_seed(seed))[0] for seed in (1, 1, 2))
    assert torch.equal(one, same) and not torch.equal(one, other)


# -- runs ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(GPU, reason="kernels run on a CPU in the interpreter alone")
def test_both_learn_the_same_and_a_run_that_was_cut_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="the example draws a picture")
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    done = run(monkeypatch, whole, "--steps", "3")
    assert done.exit_code == 0, done.output
    assert "ours and sdpa agree" in done.output
    found = losses(whole)
    assert list(found) == ["ours", "sdpa"] and len(found["ours"]) == 3
    for ours, theirs in zip(*found.values(), strict=True):
        assert ours == pytest.approx(theirs, abs=2e-5)
    assert found["ours"][2] != found["ours"][1]
    assert (whole / "losses.png").read_bytes().startswith(b"\x89PNG")

    assert run(monkeypatch, cut, "--steps", "2").exit_code == 0
    assert run(monkeypatch, cut, "--steps", "3", "--resume").exit_code == 0
    assert losses(cut) == found


@pytest.mark.slow
@pytest.mark.skipif(GPU, reason="kernels run on a CPU in the interpreter alone")
def test_both_learn_the_same_in_bfloat16_in_the_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = run(monkeypatch, tmp_path, "--steps", "2", "--dtype", "bfloat16")
    assert done.exit_code == 0, done.output
    for ours, theirs in zip(*losses(tmp_path).values(), strict=True):
        assert ours == pytest.approx(theirs, abs=0.01)


def test_the_model_learns_to_look_values_up(tmp_path: Path) -> None:
    settings = train.SIZES["small"](seed=0, device="cpu", dtype="float32")
    trainer = Trainer(settings, "sdpa", tmp_path / "sdpa.pt")
    for _ in range(train.STEPS["small"]):
        trainer.step()
    blind, least = settings.text.bounds()
    assert trainer.steps[0].recall > blind
    assert report.last(trainer.steps)[1] < least + 0.2 * (blind - least)


@pytest.mark.skipif(not GPU, reason="needs a GPU")
def test_the_large_size_takes_a_step_in_bfloat16(tmp_path: Path) -> None:
    settings = train.SIZES["large"](seed=0, device="cuda", dtype="bfloat16")
    first, second = (Trainer(settings, name, tmp_path / name).step() for name in ("ours", "sdpa"))
    assert first.loss == pytest.approx(second.loss, abs=0.02)


def test_the_page_shows_the_spec_that_is_used() -> None:
    page = (Path(__file__).parents[1] / "docs" / "training.md").read_text(encoding="utf-8")
    assert f"```yaml\n# examples/training/specs/near.yaml\n{NEAR.read_text()}```" in page


# -- refusals and reports ------------------------------------------------------------------------------------------


def test_a_checkpoint_of_other_settings_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = "--attention", "sdpa", "--steps", "2"
    missing = run(monkeypatch, tmp_path, *arguments, "--resume")
    assert missing.exit_code == 2 and f"no checkpoint of sdpa in {tmp_path}" in " ".join(missing.output.split())
    assert run(monkeypatch, tmp_path, *arguments).exit_code == 0
    assert list(losses(tmp_path)) == ["sdpa"]
    other = run(monkeypatch, tmp_path, *arguments, "--resume", "--seed", "1")
    assert other.exit_code == 2 and "was made with other settings" in " ".join(other.output.split())


def test_a_checkpoint_is_whole_or_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(TINY(seed=0, device="cpu", dtype="float32"), "sdpa", tmp_path / "sdpa.pt")
    trainer.save()

    def fail(state: object, path: Path) -> None:
        path.write_bytes(b"half of")
        raise OSError("no space left")

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(OSError, match="no space"):
        trainer.save()
    trainer.load()


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_what_cannot_be_used_is_told_before_anything_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = run(monkeypatch, tmp_path / "new", "--device", "cuda")
    assert done.exit_code == 2 and "torch finds no GPU here" in done.output
    assert not (tmp_path / "new").exists()
    taken = tmp_path / "file"
    taken.touch()
    done = run(monkeypatch, taken, "--attention", "sdpa", "--steps", "2")
    assert done.exit_code == 2 and "is a file" in " ".join(done.output.split())


def test_losses_are_written_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    done = run(monkeypatch, tmp_path, "--attention", "sdpa", "--steps", "2")
    assert done.exit_code == 0 and "pip install matplotlib" in done.output
    assert {path.name for path in tmp_path.iterdir()} == {"losses.csv", "sdpa.pt"}


def test_losses_that_are_further_apart_than_batches_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    near = [Step(loss, loss, 0.1) for loss in (3.0, 2.9, 2.8)]
    far = [dataclasses.replace(step, loss=step.loss + 0.2) for step in near]
    found = report.difference(near, far)
    assert (found.mean, found.largest, found.noise) == pytest.approx((0.2, 0.2, 0.1))
    assert not found.within_noise
    assert report.difference(near, near).within_noise


def test_decay_of_sdpa_is_that_of_the_formula() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(1, 3, 2, 4), torch.randn(1, 3, 1, 4), torch.randn(1, 3, 1, 4)
    decay = -torch.rand(1, 3, 2)
    out = sdpa.far(q, k, v, log_decay=decay)
    for head in range(2):
        score = q[0, 2, head] @ k[0, :, 0].T / 2
        score += torch.stack([decay[0, 1:, head].sum(), decay[0, 2, head], torch.tensor(0.0)])
        torch.testing.assert_close(out[0, 2, head], score.softmax(-1) @ v[0, :, 0])
