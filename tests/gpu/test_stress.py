"""The stress test: its shapes, what it refuses, and how it handles a call that hangs."""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path

import pytest
import stress
import torch

from attnforge.gpu import calls
from attnforge.gpu.calls import Sizes

hopper = torch.cuda.is_available() and torch.cuda.get_device_capability(0) == (9, 0)


@pytest.mark.skipif(not hopper or "ATTNFORGE_STRESS" not in os.environ, reason="asked for by ATTNFORGE_STRESS=LAUNCHES")
def test_many_launches_of_random_shapes_go_well() -> None:
    assert stress.main(["--launches", os.environ["ATTNFORGE_STRESS"]]) == 0


def test_shapes_are_the_same_for_a_seed_and_cover_all_variants() -> None:
    found = list(itertools.islice(stress.shapes([*stress.VARIANTS], 3, small=False), 2000))
    assert found == list(itertools.islice(stress.shapes([*stress.VARIANTS], 3, small=False), 2000))
    seen = {(shape.variant, shape.sizes.head_dim) for shape in found}
    assert seen == {(name, size) for name, sizes in stress.VARIANTS.items() for size in sizes}
    for shape in found:
        s = shape.sizes
        assert 1 <= s.q_len <= s.k_len and s.heads == 4 * s.kv_heads and s.heads % 16
        assert s.batch * s.k_len * s.heads <= max(stress.ROWS, s.k_len * s.heads)
    assert {shape.sizes.dtype for shape in found} == {"bf16", "fp16"}
    small = itertools.islice(stress.shapes(["causal"], 0, small=True), 100)
    assert all(shape.sizes.k_len <= 300 and shape.sizes.batch == 1 for shape in small)


@pytest.mark.parametrize("name", ["rope_gqa", "packed_causal", "llama3_documents", "packed_log_decay", "transfusion"])
def test_a_call_is_held_against_the_other_target(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package = stress.Package(name, "cpu")
    sizes = Sizes(2, 5, 5, 4, 1, 16, 16, "fp16")
    shape, told = stress.Shape(name, sizes), []
    wrong: dict[str, torch.Tensor] = {}

    def forward(target: str, call: calls.Call) -> torch.Tensor:
        out = package.modules[target].reference(*call.operands, **call.keywords)
        return out + wrong.get(target, 0)

    monkeypatch.setattr(package, "forward", forward)
    monkeypatch.setattr(package, "took", lambda: {"forward": "hopper", "backward": "hopper"})
    made = stress.stress(package, shape, lambda what, patience: told.append((what, patience)), times=2, repeats=True)
    assert made == {"forward": 3, "backward": 3} and not torch.are_deterministic_algorithms_enabled()
    assert told[0] == (f"{shape.told}, forward, hopper", stress.COMPILING)
    assert told[1] == (f"{shape.told}, forward, hopper: waiting for the GPU", stress.PATIENCE)
    wrong["hopper"] = torch.tensor(0.1)
    with pytest.raises(stress.Wrong, match="out: "):
        stress.stress(package, shape, lambda what, patience: None, times=1, repeats=False)
    wrong.clear()
    monkeypatch.setattr(package, "took", lambda: {"forward": "portable"})
    with pytest.raises(stress.Wrong, match="portable kernels ran"):
        stress.stress(package, shape, lambda what, patience: None, times=1, repeats=False)


def test_each_launch_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    package, shape = stress.Package("causal", "cpu"), stress.Shape("causal", Sizes(1, 5, 5, 4, 1, 16, 16, "fp16"))
    made = {"forward": 0, "backward": 0}
    wrong = ""
    backward = package.backward

    def tell(its: str, target: str) -> float:
        made[its] += target == "hopper"
        return 0.5 * (its == wrong and target == "hopper" and made[its] == 4)

    def attend(target: str, call: calls.Call) -> torch.Tensor:
        return package.modules[target].reference(*call.operands, **call.keywords) + tell("forward", target)

    def differentiate(target: str, call: calls.Call, out: torch.Tensor) -> list[torch.Tensor]:
        off = tell("backward", target)
        return [x + off for x in backward(target, call, out)]

    monkeypatch.setattr(package, "forward", attend)
    monkeypatch.setattr(package, "backward", differentiate)
    monkeypatch.setattr(package, "took", lambda: {"forward": "hopper", "backward": "hopper"})
    for its, what in (("forward", "out: other bits"), ("backward", "gradient 0: ")):
        wrong = its
        made.update(forward=0, backward=0)
        stress.stress(package, shape, lambda what, patience: None, times=2, repeats=False)
        made.update(forward=0, backward=0)
        with pytest.raises(stress.Wrong, match=what):
            stress.stress(package, shape, lambda what, patience: None, times=3, repeats=False)


def test_results_that_are_no_numbers_and_other_bits_are_refused() -> None:
    one = torch.ones(3)
    stress.hold("x", one + 1e-3, one, 2e-3)
    for x in (one + 4e-3, one * float("nan")):
        with pytest.raises(stress.Wrong):
            stress.hold("x", x, one, 2e-3)
    stress.same("x", [one], [one.clone()])
    with pytest.raises(stress.Wrong):
        stress.same("x", [one], [one + 1e-7])


LINE = 'print(\'a word of others\'); print(\'{"doing": "%s", "patience": %s, "launches": 7}\', flush=True); '


@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        (LINE % ("all of it", 20), 0, "all of it"),
        (LINE % ("a shape", 0.2) + "import time; time.sleep(60)", 1, "stood still for 0.2 s after 7 launches: a shape"),
        (LINE % ("a shape", 20) + "raise SystemExit(3)", 1, "ended with 3 after 7 launches: a shape"),
    ],
    ids=["well", "still", "failed"],
)
def test_a_command_is_watched(script: str, code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert stress.watch([sys.executable, "-c", script]) == code
    assert capsys.readouterr().out.strip() == said


def test_it_runs_as_a_script(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(stress, "watch", lambda command: commands.append(command) or 0)
    assert stress.main(["--launches", "5"]) == 0
    assert commands == [[sys.executable, stress.__file__, "--launches", "5", "--jobs", "0", "--here"]]
    assert Path(stress.__file__).name == "stress.py"
    with pytest.raises(SystemExit):
        stress.main(["--variants", "nothing"])
