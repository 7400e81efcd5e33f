"""What `bench` compares: peers give the same outputs, refuse what they cannot express, and results are kept."""

from __future__ import annotations

import dataclasses
import importlib.machinery
import io
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from rich.console import Console

from attnforge.cli import arguments, commands
from attnforge.gpu import bench, calls, plots, results, targets
from attnforge.gpu.bench import Contender
from attnforge.gpu.calls import Call, Sizes
from attnforge.gpu.library_features import Traits, traits
from attnforge.gpu.peers import PEERS, Asked, Exported, Peer, module
from attnforge.gpu.results import Machine, Result, Row
from attnforge.language import spec
from attnforge.language.spec import Spec
from attnforge.plan import plan
from attnforge.render import emit, render
from attnforge.source import resources

GENERATED = Path(__file__).parents[2] / "generated"
SMALL = Sizes(2, 40, 40, 4, 2, 16, 16, "fp32")


@pytest.fixture(autouse=True)
def small_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the ceiling's matrices small enough for a CPU."""
    monkeypatch.setattr(bench, "LARGE", 16)


@pytest.fixture(autouse=True)
def runtime_of_stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """These packages keep the memory of their calls in an attribute instead of a module."""
    monkeypatch.setattr(targets, "runtime", lambda package: package.runtime)


def shipped(name: str) -> Spec:
    path = resources.variants()[name]
    return spec.load(path, terms=resources.terms_for(path))


def written(folder: Path, text: str) -> Spec:
    path = folder / "mine.yaml"
    path.write_text(f"name: mine\n{text}")
    return spec.load(path, terms=resources.terms_for(path))


def reference(name: str) -> Any:
    return module(f"reference_of_{name}", GENERATED / name / "reference.py").reference


def called(loaded: Spec, sizes: Sizes = SMALL) -> Call:
    call = calls.make(plan.build(loaded), sizes.of(loaded), "cpu")
    still = {"dropout_p": 0.0} if loaded.dropout else {}
    return dataclasses.replace(call, keywords=call.keywords | still)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(resources.variants()))
def test_peers_give_what_the_reference_gives(name: str, tmp_path: Path) -> None:
    loaded = shipped(name)
    call, exported = called(loaded), Exported(loaded, tmp_path)
    gold = reference(name)(*call.operands, **call.keywords)
    learns = loaded.algorithm.backward
    grads = torch.autograd.grad(gold.square().sum(), call.wanted, allow_unused=True) if learns else ()
    given = [peer for peer in ("naive", "sdpa-flash") if not PEERS[peer].refusal(Asked(exported.traits, call))]
    assert given[0] == "naive"
    for peer in given:
        out = exported.function(PEERS[peer], call, compiled=False)()
        assert bench.difference(out, gold) < 1e-6
        got = torch.autograd.grad(out.square().sum(), call.wanted) if learns else ()
        for found, right in zip(got, grads, strict=True):
            torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("layout", "rows"), [("dense", (1, SMALL.k_len)), ("packed", (SMALL.batch * SMALL.k_len,))])
def test_what_has_one_value_unless_it_is_given_keeps_it(layout: str, rows: tuple[int, ...], tmp_path: Path) -> None:
    text = (
        f"layout: {layout}\nmask: [expr: 'seen and kind[k] == kind[q]']\nscore: [expr: 'score + lift[h % 3]']\n"
        "inputs:\n  seen: {axes: [batch], dtype: bool, default: true}\n"
        "  kind: {axes: [batch, token], dtype: int, default: 4}\n  lift: {axes: [3], grad: true, default: 0.5}\n"
    )
    call = called(written(tmp_path, text))
    assert [call.keywords["seen"].all().item(), call.keywords["kind"].unique().item()] == [True, 4]
    assert (call.keywords["kind"].shape, call.keywords["lift"].tolist()) == (rows, [0.5] * 3)
    assert call.learned == ()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["causal", "packed_rope", "gpt_oss_window", "bigbird", "alibi", "t5_decoder"])
def test_tiles_are_made_before(name: str, tmp_path: Path) -> None:
    loaded = shipped(name)
    call, exported = called(loaded), Exported(loaded, tmp_path)
    still = dataclasses.replace(call, operands=tuple(x.detach() for x in call.operands))
    still.keywords.update({n: x.detach() for n, x in call.keywords.items() if isinstance(x, torch.Tensor)})
    function = exported.function(PEERS["flex"], still, compiled=False)
    assert bench.difference(function(), reference(name)(*still.operands, **still.keywords)) < 1e-6


def test_a_wrong_peer_is_told_from_a_right_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blind = PEERS["naive"].attend(Asked(Traits(), called(shipped("causal"))))

    def attend(_: Asked) -> Any:
        return lambda q, k, v, block_mask, **more: blind(q, k, v, **more)

    rows = measured(
        "causal", [PEERS["naive"], dataclasses.replace(PEERS["naive"], name="blind", attend=attend)], monkeypatch
    )
    assert rows["naive"].forward_ms == rows["attnforge"].backward_ms == 2.0
    assert rows["blind"].forward_ms is None and rows["blind"].note.startswith("gives something else")


def test_a_peer_that_fails_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def attend(_: Asked) -> Any:
        def fail(*_: Any, **__: Any) -> Any:
            raise RuntimeError("\nno kernel for this\nand more")

        return fail

    broken = dataclasses.replace(PEERS["naive"], name="broken", attend=attend)
    rows = measured("packed_rope", [broken, PEERS["naive"]], monkeypatch)
    assert rows["broken"].note == "RuntimeError: no kernel for this"
    assert rows["naive"].both_mib == 3.0


def test_contenders_are_timed_in_turns() -> None:
    called: list[str] = []
    entered = [Contender(name, lambda name=name: called.append(name)) for name in ("ours", "theirs")]  # type: ignore[misc]
    entered.append(Contender("absent", note="is not installed"))
    heat = {"ours": iter([3.0, 1.0, 2.0, 9.0, 2.5]), "theirs": iter([30.0, 10.0, 20.0, 90.0, 25.0])}
    bench.in_turns(entered, "forward", lambda function: function() or next(heat[called[-1]]))
    forth, back = ["ours", "theirs"], ["theirs", "ours"]
    assert called == [*forth, *back, *back, *forth, *forth], "each of both comes first and last by turns"
    assert [one.row.forward_ms for one in entered] == [2.5, 25.0, None]


def test_the_first_backward_keeps_its_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[bool] = []
    real = torch.autograd.grad

    def grad(*given: Any, retain_graph: bool = False, **more: Any) -> Any:
        kept.append(retain_graph)
        return real(*given, retain_graph=retain_graph, **more)

    monkeypatch.setattr(torch.autograd, "grad", grad)
    called = lambda function: 2.0 if function() is not None else 0.0  # noqa: E731
    result = timed(monkeypatch, _peak=called, clock=called)
    targets_tried = [False] * 2
    assert kept == targets_tried + [True] * 2 * bench.ROUNDS + [False] * 2
    assert [(row.backward_ms, row.both_mib, row.note) for row in result.rows] == [(2.0, 2.0, "")] * 2


def test_a_contender_that_fails_in_a_turn_is_out_and_keeps_what_it_has() -> None:
    def clock(function: Callable[[], object]) -> float:
        turns.append(function())
        if turns == ["weak", "strong", "strong", "weak"]:
            raise RuntimeError("gives up")
        return 2.0

    turns: list[object] = []
    entered = [Contender("weak", lambda: "weak", found={"forward_mib": 3.0}), Contender("strong", lambda: "strong")]
    bench.in_turns(entered, "forward", clock)
    assert entered[0].row == Row("weak", forward_mib=3.0, note="RuntimeError: gives up")
    assert entered[0].forward() is None
    assert entered[1].row.forward_ms == 2.0 and turns.count("strong") == 5


class StandIn:
    """A package with the reference in place of its kernels; like a real one, it remembers which ones it was asked for.

    By default only the forward pass takes kernels for Hopper GPUs; if asked for them, the passes in `hopper` do.
    """

    def __init__(self, name: str, hopper: tuple[str, ...] = ()) -> None:
        self.name, self.hopper = name, hopper
        self.asked: list[str] = []
        self.runtime = SimpleNamespace(LaunchCache=SimpleNamespace(known={}))

    def attention(self, *operands: Any, **keywords: Any) -> Any:
        wanted = os.environ.get("ATTNFORGE_TARGET", "")
        self.asked.append(wanted)
        runs = {"": self.hopper[:1], "portable": (), "hopper": self.hopper}[wanted]
        tile = (64, 64, 4, 2)
        # as in a package: those for Hopper GPUs are empty where they do not run
        hopper_tiles = {its: (*tile, "hopper") if its in runs else () for its in ("forward", "backward")}
        portable = {"forward": "forward", "backward": "backward_dq"}
        tiles = {kernel: tile for its, kernel in portable.items() if its not in runs}
        self.runtime.LaunchCache.known["call"] = SimpleNamespace(tiles=tiles, hopper_tiles=hopper_tiles)
        return reference(self.name)(*operands, **keywords)


def measured(name: str, peers: list[Peer], monkeypatch: pytest.MonkeyPatch) -> dict[str, Row]:
    """A run with a clock that stands still, and the reference in place of the kernels."""
    monkeypatch.setattr(bench, "functions", lambda *_: StandIn(name))
    monkeypatch.setattr(bench, "PEERS", {peer.name: peer for peer in peers})
    monkeypatch.setattr(bench, "milliseconds", lambda function: function() is not None and 2.0)
    monkeypatch.setattr(bench, "_peak", lambda function: function() is not None and 3.0)
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    package = emit.Package(name, "", Path(), {})
    (result,) = bench.run(shipped(name), package, [SMALL], [peer.name for peer in peers], device="cpu")
    return {row.name: row for row in result.rows}


def test_a_variant_without_a_backward_pass_is_timed_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = measured("flash1", [PEERS["naive"]], monkeypatch)
    for row in rows.values():
        assert (row.forward_ms, row.backward_ms, row.forward_mib, row.both_mib, row.note) == (2.0, None, 3.0, None, "")


def test_a_peer_may_drop_other_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    assert measured("gpt2_dropout", [PEERS["naive"]], monkeypatch)["naive"].note == ""


def timed(
    monkeypatch: pytest.MonkeyPatch, _peak: Any = lambda _: 3.0, package_of: Callable[[str], Any] | None = None,
    **how: Any,
) -> Result:  # fmt: skip
    """A run of causal attention beside naive PyTorch, with the reference in place of the kernels."""
    monkeypatch.setattr(bench, "functions", lambda *_: (package_of or StandIn)("causal"))
    monkeypatch.setattr(bench, "_peak", _peak)
    package = emit.Package("causal", "", Path(), {})
    (result,) = bench.run(shipped("causal"), package, [SMALL], ["naive"], device="cpu", **how)
    return result


@pytest.mark.parametrize("backward", [False, True])
def test_a_forward_pass_by_itself_is_timed_without_gradients(backward: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    enabled: list[bool] = []
    monkeypatch.setattr(bench, "milliseconds", lambda _: enabled.append(torch.is_grad_enabled()) or 2.0)
    result = timed(monkeypatch, backward=backward)
    assert [row.note for row in result.rows] == ["", ""]
    assert enabled == [backward] * (6 if backward else 3) * bench.ROUNDS and torch.is_grad_enabled()


def test_replays_are_timed_by_a_clock_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "replayed", lambda _: torch.is_grad_enabled() or 2.0)
    result = timed(monkeypatch, replays=True)
    assert result.replayed and [row.forward_ms for row in result.rows] == [2.0, 2.0]
    assert [row.backward_ms for row in result.rows] == [None, None]
    result = timed(monkeypatch, clock=lambda _: 7.0)
    assert not result.replayed and {row.backward_ms for row in result.rows} == {7.0}


def test_packages_of_other_folders_join(monkeypatch: pytest.MonkeyPatch) -> None:
    places: list[Path] = []

    def other(_: str, path: Path) -> StandIn:
        places.append(path)
        return StandIn("causal" if path.parts[0] == "before" else "full")

    monkeypatch.setattr(bench, "module", other)
    beside = {"before": Path("before/causal"), "wrong": Path("elsewhere/causal")}
    rows = timed(monkeypatch, beside=beside, clock=lambda _: 7.0).rows
    assert [row.name for row in rows] == ["attnforge", "before", "wrong", "naive"]
    assert [row.backward_ms for row in rows] == [7.0, 7.0, None, 7.0]
    assert rows[2].note.startswith("gives something else")
    assert [path.as_posix() for path in places] == ["before/causal/__init__.py", "elsewhere/causal/__init__.py"]


@pytest.mark.parametrize(
    ("hopper", "backward"), [(("forward", "backward"), 2.0), (("forward",), None)], ids=["both passes", "one pass"]
)
def test_targets_are_timed_beside_what_a_call_takes(
    hopper: tuple[str, ...], backward: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[StandIn] = []

    def package_of(name: str) -> StandIn:
        made.append(StandIn(name, hopper))
        return made[-1]

    result = timed(monkeypatch, package_of=package_of, clock=lambda _: 2.0)
    assert [set(one.asked) for one in made] == [{""}, {"portable"}, {"hopper"}]
    times = {row.name: (row.forward_ms, row.backward_ms, row.both_mib, row.note) for row in result.rows}
    whole = (2.0, 2.0, 3.0, "")
    assert times == {"attnforge": whole, "portable": whole, "naive": whole} | {
        "hopper": (2.0, backward, 3.0 if backward else None, "")
    }
    assert list(times)[:3] == ["attnforge", "portable", "hopper"]
    assert result.kernels == {"forward": "hopper", "backward": "portable"}
    assert result.ceiling == (2 * 16**3 / 2e9,) * 2


def test_a_call_without_kernels_for_hopper_gpus_is_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    result = timed(monkeypatch, clock=lambda _: 2.0)
    assert [row.name for row in result.rows] == ["attnforge", "naive"]
    assert result.kernels == {"forward": "portable", "backward": "portable"}


def test_kernels_for_hopper_gpus_that_fail_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(StandIn):
        def attention(self, *operands: Any, **keywords: Any) -> Any:
            out = super().attention(*operands, **keywords)
            if self.asked[-1] == "hopper":
                raise RuntimeError("no such product")
            return out

    result = timed(monkeypatch, package_of=Failing, clock=lambda _: 2.0)
    rows = {row.name: row for row in result.rows}
    assert rows["hopper"] == Row("hopper", note="RuntimeError: no such product")
    assert rows["attnforge"].backward_ms == rows["portable"].backward_ms == 2.0


@pytest.mark.parametrize("target", targets.TARGETS)
def test_a_target_is_timed_alone_where_it_is_asked_for(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNFORGE_TARGET", "portable")
    both = ("forward", "backward")
    result = timed(monkeypatch, package_of=lambda name: StandIn(name, both), clock=lambda _: 2.0, target=target)
    assert [row.name for row in result.rows] == ["attnforge", "naive"]
    assert result.kernels == dict.fromkeys(both, target) and os.environ["ATTNFORGE_TARGET"] == "portable"


def test_a_target_that_there_is_not_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "functions", lambda *_: StandIn("flash1"))
    monkeypatch.setattr(bench, "_peak", lambda _: 3.0)
    package = emit.Package("flash1", "", Path(), {})
    for target, kernels in ((bench.BOTH, {}), ("hopper", {"forward": "portable", "backward": "portable"})):
        how = {"target": target, "clock": lambda _: 2.0}
        (result,) = bench.run(shipped("flash1"), package, [SMALL], [], device="cpu", **how)
        assert [row.name for row in result.rows] == ["attnforge"] and result.kernels == kernels


def test_the_command_passes_a_target_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def run(*_: Any, **more: Any) -> Any:
        asked.append((more["target"], more["backward"]))
        return iter(RESULTS)

    monkeypatch.setattr(bench, "run", run)
    monkeypatch.setattr(Machine, "here", staticmethod(lambda: HERE))
    monkeypatch.setattr(arguments, "packages", lambda loaded: [None] * len(loaded))
    for options in ([], ["--target", "hopper", "--forward"]):
        file = tmp_path / "found.json"
        done = CliRunner().invoke(commands.main, ["bench", "causal", "--json", str(file), *options])
        assert done.exit_code == 0 and "hopper" in done.output, done.output
        assert results.read(file.read_text()) == (HERE, RESULTS)
    assert asked == [("both", True), ("hopper", False)]


@pytest.mark.parametrize(
    ("name", "pairs"),
    [
        ("full", 2 * 4 * 40 * 40),
        ("causal", 2 * 4 * 820),
        ("causal_mha", 2 * 4 * 820),
        ("runtime_window", 2 * 4 * (820 - 35 * 36 // 2)),
        ("block_sparse", None),
        ("packed_causal", None),
    ],
)
def test_visible_pairs_are_counted(name: str, pairs: int | None, tmp_path: Path) -> None:
    loaded = shipped(name)
    call = called(loaded)
    if name == "block_sparse":
        (blocks,) = call.keywords.values()
        pairs = int(blocks.repeat_interleave(128, 2)[:, :, :40].repeat_interleave(128, 3)[..., :40].sum())
    if name == "packed_causal":
        lengths = call.keywords["cu_seqlens_q"].diff()
        assert int(lengths.sum()) == 80 and len(lengths) == 2
        pairs = int((4 * lengths * (lengths + 1) // 2).sum())
    assert Exported(loaded, tmp_path).seen(call)[0] == pairs


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", Traits()),
        ("mask: [causal, sliding_window: {size: 8}]\n", Traits(causal=True, window=8)),
        ("mask: [expr: 'q >= k and q - k < 8']\n", Traits(causal=True, window=8)),
        ("mask: [sliding_window: {size: runtime}]\nlayout: packed\n", Traits(window="window", packed=True)),
        ("mask: [causal]\nscore: [softcap: {cap: 30.0}]\n", Traits(causal=True, softcap=30.0)),
        ("score: [softcap: {cap: 30.0}, alibi]\n", Traits(softcap=30.0, others=("alibi",))),
        ("score: [alibi]\nsink: true\ndropout: true\n", Traits(alibi="slopes", sink=True, dropout=True)),
        ("mask: [causal]\nscore: [log_decay]\n", Traits(causal=True, decay="log_decay")),
        ("mask: [sliding_window: {size: 8}, sliding_window: {size: 9}]\n",
         Traits(window=8, others=("sliding_window",))),
        ("mask: [not: causal, expr: 'k < q']\n", Traits(others=("not causal", "k < q"))),
        ("score: [expr: '30.0 * tanh(score / 20.0)']\n", Traits(others=("30.0 * tanh(score / 20.0)",))),
    ],
)  # fmt: skip
def test_features_are_known_by_their_formulas(text: str, expected: Traits, tmp_path: Path) -> None:
    assert traits(written(tmp_path, text)) == expected


def test_a_name_alone_is_no_feature(tmp_path: Path) -> None:
    (tmp_path / "terms").mkdir()
    (tmp_path / "terms" / "causal.yaml").write_text('name: causal\nkind: mask\ndescription: A test.\nkeep: "k < q"\n')
    assert traits(written(tmp_path, "mask: [causal]\n")) == Traits(others=("causal",))


@pytest.mark.parametrize(
    ("name", "peer", "why"),
    [
        ("alibi", "sdpa-flash", "has no alibi"),
        ("gpt_oss_window", "fa4", "is not installed"),
        ("llama3_documents", "sdpa-cudnn", "has no segments"),
        ("gpt2_dropout", "flex", "has no dropout"),
        ("causal", "sdpa-flash", ""),
        ("log_decay", "naive", ""),
    ],
)
def test_peers_refuse_what_they_cannot_say(name: str, peer: str, why: str) -> None:
    loaded = shipped(name)
    refusal = PEERS[peer].refusal(Asked(traits(loaded), called(loaded)))
    assert refusal.endswith(why) if why else refusal == ""


def attend_as_fa4(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, softmax_scale: float | None = None, causal: bool = False,
    window_size: tuple[int | None, int | None] = (None, None), learnable_sink: torch.Tensor | None = None,
    softcap: float = 0.0,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """FlashAttention-4's interface, with its keywords, on a CPU."""
    k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], 2) for x in (k, v))
    score = torch.einsum("bihd,bjhd->bhij", q, k) * (q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale)
    score = softcap * torch.tanh(score / softcap) if softcap else score
    apart = torch.arange(q.shape[1])[:, None] + k.shape[1] - q.shape[1] - torch.arange(k.shape[1])
    left, right = window_size
    hidden = (apart < 0) & causal | (apart > (math.inf if left is None else left))
    score = score.masked_fill(hidden | (-apart > (math.inf if right is None else right)), -math.inf)
    if learnable_sink is not None:
        score = torch.cat((score, learnable_sink.view(1, -1, 1, 1).expand(*score.shape[:3], 1)), -1)
    weight = score.softmax(-1)[..., : k.shape[1]]
    return torch.einsum("bhij,bjhd->bihd", weight, v), None


@pytest.mark.parametrize("name", ["causal", "sliding_window", "softcap", "gpt_oss_window"])
def test_fa4_gets_the_features_that_it_has(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("flash_attn", "flash_attn.cute"):
        fake = ModuleType(place)
        fake.__spec__ = importlib.machinery.ModuleSpec(place, None)
        fake.flash_attn_func = attend_as_fa4  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, place, fake)
    loaded = shipped(name)
    call, exported = called(loaded), Exported(loaded, tmp_path)
    assert PEERS["fa4"].refusal(Asked(exported.traits, call)) == ""
    out = exported.function(PEERS["fa4"], call, compiled=False)()
    assert bench.difference(out.detach(), reference(name)(*call.operands, **call.keywords).detach()) < 1e-6


def test_causal_rows_that_do_not_line_up_are_refused() -> None:
    loaded = shipped("causal")
    call = called(loaded, dataclasses.replace(SMALL, q_len=8))
    assert PEERS["sdpa-flash"].refusal(Asked(traits(loaded), call)) == "lines up the first query with the first key"
    assert PEERS["naive"].refusal(Asked(traits(loaded), call)) == ""


SIZES = [Sizes(4, t, t, 16, 4, 128, 128, "bf16") for t in (1024, 4096)]
RESULTS = [
    Result("causal", s, 4 * 16 * s.q_len**2 // 2,
           (Row("attnforge", 1.0, 2.5, 3.0, 4.0), Row("hopper", 1.0, 2.0), Row("flex", 1.5, 5.0, 3.5, 9.25),
            Row("fla", note="is not installed")),
           kernels={"forward": "hopper", "backward": "portable"}, ceiling=(34.36, None))
    for s in SIZES
]  # fmt: skip
HERE = Machine("a GPU", "2.11", "3.6")


def test_results_are_told_beside_ours() -> None:
    console = Console(file=io.StringIO(), width=150)
    console.print(results.table(RESULTS[0]))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "causal: batch 4, length 1024, heads 16:4, head size 128, bf16" in text
    rows = {
        line.split("│")[1].strip(): [cell.strip() for cell in line.split("│")[2:-1]]
        for line in text.splitlines()
        if "│" in line
    }
    own = ["1.000", "17", "50", "1.00", "2.500", "17", "", "1.00", "3.0", "4.0", "hopper forward, portable backward"]
    assert rows["attnforge"] == own
    assert rows["hopper"] == ["*1.000", "17", "50", "1.00", "2.000", "21", "", "0.80", "", "", ""]
    assert rows["flex"] == ["1.500", "11", "33", "1.50", "5.000", "9", "", "2.00", "3.5", "9.2", ""]
    assert rows["fla"] == [""] * 10 + ["is not installed"]
    assert "%: of a large matrix product in the same turns, 34 TFLOP/s; *: what a call takes" in text
    console.print(results.table(dataclasses.replace(RESULTS[0], ceiling=(17.0, None))))
    fast = console.file.getvalue()  # type: ignore[attr-defined]
    assert "17 TFLOP/s; above 100: visible keys without weight are not visited; *: what" in fast
    assert targets.told(dict.fromkeys(("forward", "backward"), "hopper")) == "hopper kernels"


def test_the_fastest_peers_are_summed_up() -> None:
    faster = dataclasses.replace(RESULTS[1], rows=(*RESULTS[1].rows, Row("fa4", 6.0)))
    slower = dataclasses.replace(RESULTS[1], rows=(Row("attnforge", 1.0), Row("flex", 6.0), Row("fa4", 3.0)))
    # forward 1.5 and 3, as our own kernels for a single target are not peers; backward 2
    told = "the fastest peer's time by ours, geometric mean: forward 2.12 (2 calls), backward 2.00 (1 call)"
    assert results.summary([faster, slower]) == told
    assert results.summary([dataclasses.replace(faster, rows=faster.rows[:2])]) == ""


def test_results_are_kept_and_read_again() -> None:
    assert results.read(results.document(HERE, RESULTS)) == (HERE, RESULTS)


def test_results_are_drawn(tmp_path: Path) -> None:
    plots.write(tmp_path / "one.png", HERE, RESULTS)
    faster = dataclasses.replace(RESULTS[1], rows=(Row("attnforge", 0.5, 2.5, 3.0, 4.0), *RESULTS[1].rows[1:]))
    plots.write(tmp_path / "two.png", HERE, [RESULTS[0], faster])
    one, two = ((tmp_path / f"{name}.png").read_bytes() for name in ("one", "two"))
    assert one.startswith(b"\x89PNG") and one != two
    assert list(plots.grouped(RESULTS)) == ["causal\nbf16, heads 16:4, size 128"]


def test_sizes_as_the_command_line_gives_them() -> None:
    found = bench.sizes("1024,32768", 7, 16384, "64,192:128", None, "fp16")
    assert [(s.batch, s.q_len, s.k_len, s.heads, s.head_dim, s.v_dim) for s in found] == [
        (16, 7, 1024, 32, 64, 64), (1, 7, 32768, 32, 64, 64), (16, 7, 1024, 10, 192, 128), (1, 7, 32768, 10, 192, 128)
    ]  # fmt: skip


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["causal"], "this needs a GPU that torch can use"),
        (["causal", "--against", "flex,nope"], "unknown peer 'nope'"),
        (["causal", "--heads", "3:2"], "2 key heads do not divide 3"),
        (["causal", "--head-dim", "64,577"], "expected numbers from 1 to 576, got '577'"),
        (["causal", "--lengths", "1k"], "got '1k'"),
        (["nothing"], "neither a file nor a shipped variant"),
        (["causal", "--beside", "before"], "expected NAME=DIR, got 'before'"),
        (["causal", "--beside", "flex=generated"], "another contender is called 'flex'"),
        (["causal", "--beside", "before=nowhere"], "no package in nowhere/causal"),
    ],
)
def test_mistakes_are_told(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(commands.main, ["bench", *arguments])
    assert done.exit_code == 2
    assert message in done.output


def test_a_package_is_loaded_from_its_own_folder(tmp_path: Path) -> None:
    loaded = shipped("causal")
    package = emit.Package("causal", loaded.source, Path(), render.render(loaded))
    loads = bench.functions(package, tmp_path)
    assert Path(loads.__file__).parent == tmp_path / "causal"
    assert loads.attention.__module__ == "timed_causal.api" and "timed_causal" in sys.modules
