"""Kernels for Hopper GPUs, run without one: their results, in any order of events, and faults in them."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import devices
import layouts
import padding
import pytest
import row_tables
import torch
import unformatted
from emulation.machine import Machine
from emulation.package import Package
from emulation.values import Misuse
from random_specs import RandomSpec, generate
from test_hopper_faults import (
    ENDLESS,
    FAULTS,
    FORWARD,
    IN_TURNS,
    OF_WIDE_HEADS,
    OUTGROWN,
    PACKED,
    PASSED,
    RETAKEN,
    faulty,
)

from attnforge.gpu import calls, targets
from attnforge.gpu.calls import Sizes
from attnforge.language import spec as language
from attnforge.plan import plan, reference
from attnforge.plan.plan import Plan
from attnforge.source import resources

pytestmark = pytest.mark.skipif(devices.GPU, reason="kernels run on the GPU")

GENERATED = Path(__file__).parents[2] / "generated"
VARIANTS = sorted(path.parent.name for path in GENERATED.glob("*/hopper.py"))
DENSE = [name for name in VARIANTS if "cu_seqlens" not in (GENERATED / name / "hopper.py").read_text()]
QUICK = ("causal", "gpt2_dropout", "gpt_oss_window", "log_decay", "packed_causal", "rope_gqa", "softcap")
TILES = [(128, 32, 8, 3), (128, 64, 8, 2), (192, 32, 12, 3), (192, 64, 12, 3), (192, 128, 12, 2)]  # forward
CLOSE = 1.5e-3  # relative error of results in float16


def loaded(name: str) -> language.Spec:
    path = resources.variants()[name]
    return language.load(path, terms=resources.terms_for(path))


@functools.cache
def planned(name: str) -> Plan:
    return plan.build(loaded(name))


def wide(name: str) -> str:
    """The code of a package's backward kernels for wide heads, if there are any, without comments and docstrings."""
    path = GENERATED / name / "hopper_wide.py"
    return re.sub("#.*", "", path.read_text().split('"""', 2)[2]) if path.is_file() else ""


def sized(names: list[str], *, backward: bool = True) -> list[Any]:
    """Combinations of variants and sizes of heads.

    With 64 columns each variant tests its terms; with 128 the same kernels have other tiles, which a few variants
    test; with 256 `backward` runs other kernels, tested once for each different text of them.
    """
    found, known = [], {""}
    for name in sorted(names, key=lambda name: name not in QUICK):
        quick, text = name in QUICK, wide(name)
        sizes = (64, 128, 256) if quick else (64, 256) if backward and text not in known else (64,)
        found += [pytest.param(name, size, marks=[] if quick else [pytest.mark.slow]) for size in sizes]
        known.add(text)
    return found


def apart(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The relative difference between a result and what it should be."""
    found, wanted = found.detach().float(), wanted.detach().float()
    there = wanted.isfinite()
    if not there.all():
        if not torch.equal(found[~there], wanted[~there]):
            return float("inf")
        found, wanted = found[there], wanted[there]
    distance = float((found - wanted).norm() / (wanted.norm() + 1e-9))
    return float("inf") if math.isnan(distance) else distance


def deviation(out: torch.Tensor, lse: torch.Tensor, truth: torch.Tensor, known: torch.Tensor) -> float:
    """How far out, in bfloat16 with three bits less than float16, and the LSE are from those of the reference."""
    return max(apart(out, truth) / 8, apart(lse, known))


def shown(measured: Callable[[int], float]) -> str:
    """How a fault shows with one of nine seeds: in "numbers" or as "misuse"; empty if it does not."""
    for seed in range(9):
        try:
            if measured(seed) > 10 * CLOSE:
                return "numbers"
        except Misuse:
            return "misuse"
    return ""


def distances(package: Package, of: Plan, sizes: Sizes, *, learn: bool = True) -> Iterator[float]:
    """How far out, the LSE and gradients are from the reference's; without `learn`, only q, k and v have gradients.

    Gradients are computed when the first of them is asked for.
    """
    call = calls.make(of, sizes.of(of.spec), "cpu")
    wanted = call.wanted if learn else call.operands
    for x in call.keywords.values():
        if not learn and torch.is_tensor(x):
            x.requires_grad_(False)
    results = package.attention(*call.operands, **call.keywords, return_lse=True)
    expected = package.reference(*call.operands, **call.keywords)
    yield from map(apart, results, expected)
    make = torch.Generator().manual_seed(1)
    upstream = [torch.randn(x.shape, generator=make).half().to(x.dtype) for x in results]
    found = package.gradients(results, wanted, upstream)
    known = torch.autograd.grad(expected, wanted, [x.float() for x in upstream])
    yield from itertools.starmap(apart, zip(found, known, strict=True))


def differentiates(of: Plan, size: int) -> bool:
    """Whether kernels for Hopper GPUs compute gradients; those of tables may come from a kernel of their own."""
    assert of.hopper
    given, tables = {x.name for x in of.arguments if x.default}, of.kernels.tables
    apart = {*(tables.sums if tables else ()), *((of.hopper.pairs.total,) if of.hopper.pairs else ())}
    learned = [one for one in of.learned if one.input.keyword not in given and not one.made_of(apart)]
    if of.hopper.backward is None or not all(one.made_of({*of.summed_at_once}) for one in learned):
        return False
    return size <= 128 or (of.hopper.wide is not None and not learned and not of.hopper.pairs)


@pytest.mark.parametrize(("name", "size"), sized(VARIANTS))
def test_results_are_those_of_the_reference(name: str, size: int) -> None:
    of, package = planned(name), Package(GENERATED / name)
    # 64 columns with several entries and several heads of keys; 128 with one entry, 256 with one head of keys
    entries, heads = {64: (2, (4, 2)), 128: (1, (4, 2)), 256: (2, (2, 1))}[size]
    assert max(distances(package, of, Sizes(entries, 300, 300, *heads, size, size, "fp16"))) < CLOSE
    assert "hopper.forward" in package.emulation.launched
    ran = {"hopper_backward.backward", "hopper_wide.backward"} & set(package.emulation.launched)
    assert bool(ran) == differentiates(of, size)


@pytest.mark.parametrize(
    ("name", "size", "v_size"),
    [("causal", 24, 64), ("causal", 64, 16), ("causal", 192, 32), ("packed_causal", 16, 32), ("pair_bias", 32, 32),
     ("t5_encoder", 32, 32)],
)  # fmt: skip
def test_few_columns_are_a_part_of_a_tile(name: str, size: int, v_size: int) -> None:
    of, package = planned(name), Package(GENERATED / name)
    assert max(distances(package, of, Sizes(1, 200, 200, 2, 1, size, v_size, "fp16"))) < CLOSE
    backward = "hopper_wide.backward" if size > 128 else "hopper_backward.backward"
    assert {"hopper.forward", backward} <= {*package.emulation.launched}


@pytest.mark.parametrize(("name", "backward"), [("full", "hopper"), ("shaw", "portable")])
def test_the_target_of_each_pass_is_told(name: str, backward: str) -> None:
    of, package = planned(name), Package(GENERATED / name)
    call = calls.make(of, Sizes(1, 70, 70, 1, 1, 64, 64, "fp16"), "cpu")
    out = package.attention(*call.operands, **call.keywords)
    package.gradients(out, call.wanted, torch.ones_like(out))
    assert targets.taken(package.runtime) == {"forward": "hopper", "backward": backward}


STEADY = [name for name in VARIANTS if "def work_through" in (GENERATED / name / "hopper.py").read_text()]


@pytest.mark.parametrize(("name", "tile"), [(n, t) for n in ("causal", "sliding_window") for t in TILES])
def test_tiles_of_ones_own_give_the_same(name: str, tile: tuple[int, int, int, int], tmp_path: Path) -> None:
    """Two or three workers, with fewer keys in a tile than each worker has rows, as many, and more."""
    before, after = (f"        64: {{0: {one}, 3072:" for one in ((128, 128, 8, 2), tile))
    package = faulty(f"{name}/tiles.py", before, after, tmp_path)
    sizes = Sizes(1, 450, 500, 4, 2, 64, 64, "fp16")
    found = distances(Package(package, multiprocessors=1), planned(name), sizes)
    assert max(itertools.islice(found, 2)) < CLOSE  # out and the LSE


@pytest.mark.parametrize("lengths", [(128, 300), (300, 300)])
def test_a_worker_whose_rows_see_nothing_waits_for_nothing(lengths: tuple[int, int], tmp_path: Path) -> None:
    """Its empty range may be after the range of all workers."""
    text = "name: ahead\nmask: [{expr: 'k > q + 200'}]\n"
    of = rendered(RandomSpec("ahead", text), tmp_path)
    found = distances(Package(tmp_path / "ahead", multiprocessors=1), of, Sizes(1, *lengths, 2, 1, 256, 256, "fp16"))
    assert max(itertools.islice(found, 2)) < CLOSE


def outgrown(name: str, size: int, folder: Path, seed: int = 0) -> float:
    """The error of results with a row that outgrows its first keys; infinite if other rows change."""
    of, package = planned(name), Package(folder, seed, multiprocessors=2)
    call = calls.make(of, Sizes(2, 300, 300, 2, 2, size, size, "bf16").of(of.spec), "cpu")
    q, k, *_ = call.operands
    before, _ = package.attention(*call.operands, **call.keywords, return_lse=True)
    with torch.no_grad():
        q[0, 290] = 40 * k[0, 200]
    out, lse = package.attention(*call.operands, **call.keywords, return_lse=True)
    truth, known = package.reference(*call.operands, **call.keywords)
    assert known[0, :, 290].min() > 45 or of.analysis.by_query.weight == "capped", "the row has not grown"
    others = torch.ones(2, 300, dtype=torch.bool)
    others[0, 290] = False
    kept = torch.equal(out[others], before[others])
    return deviation(out, lse, truth, known) if kept else float("inf")


@pytest.mark.parametrize(("name", "size"), sized(STEADY, backward=False))
def test_rows_that_outgrow_their_first_keys_are_right(name: str, size: int) -> None:
    """Their tiles are processed twice, and all other rows keep their bits."""
    assert outgrown(name, size, GENERATED / name) < CLOSE


def test_only_tiles_with_rows_that_outgrow_are_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    multiply, made = Machine.multiply, 0

    def counted(*given: Any) -> Any:
        nonlocal made
        made += 1
        return multiply(*given)

    monkeypatch.setattr(Machine, "multiply", counted)
    of, package = planned("causal"), Package(GENERATED / "causal", multiprocessors=2)
    call = calls.make(of, Sizes(1, 1000, 1000, 2, 2, 64, 64, "bf16").of(of.spec), "cpu")
    package.attention(*call.operands)
    once, made = made, 0
    with torch.no_grad():
        call.operands[0][0, 290] = 40 * call.operands[1][0, 200]
    package.attention(*call.operands)
    assert once < made < 1.3 * once


def retaken(name: str, size: int, folder: Path, seed: int = 0, multiprocessors: int = 2) -> float:
    """The same with packed sequences, whose tiles are redone one by one; several rows grow, one in the last tile."""
    package, make = Package(folder, seed, multiprocessors), torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(700, 2, size, generator=make).bfloat16() for _ in range(3))
    more: dict[str, Any] = {"cu_seqlens": torch.tensor([0, 3, 303, 690], dtype=torch.int32), "max_seqlen": 387}
    if name == "packed_log_decay":
        more["log_decay"] = -torch.rand(700, 2, generator=make)
    if name == "packed_rope":
        turned = torch.rand(387, size // 2, generator=make)
        more |= {"cos": turned.cos(), "sin": turned.sin()}
    before, _ = package.attention(q, k, v, **more, return_lse=True)
    grown = torch.tensor([293, 302, 689])
    q[grown] = 60 * k[grown - 140]
    out, lse = package.attention(q, k, v, **more, return_lse=True)
    truth, known = package.reference(q, k, v, **more)
    assert known[:, grown].min() > 45, "the rows have not grown"
    others = torch.ones(700, dtype=torch.bool)
    others[grown] = False
    kept = torch.equal(out[others], before[others])
    return deviation(out, lse[:, 3:690], truth, known[:, 3:690]) if kept else float("inf")


@pytest.mark.parametrize(
    ("name", "size"),
    [(name, 64) for name in ("packed_full", "packed_log_decay", "packed_rope")]
    + [("packed_causal", size) for size in (64, 128, 256)],
)
@pytest.mark.parametrize("multiprocessors", [1, 40])
def test_packed_rows_that_outgrow_their_first_keys_are_right(name: str, size: int, multiprocessors: int) -> None:
    assert retaken(name, size, GENERATED / name, multiprocessors=multiprocessors) < CLOSE


@pytest.mark.parametrize("name", ["causal", "full"])
@pytest.mark.parametrize("strength", [1, 5])
@pytest.mark.parametrize("size", [1e36, 1e-12])
def test_values_of_any_size_are_weighed(name: str, strength: int, size: float) -> None:
    """Weights above 1 would take large values out of the range of float32; far below 1 they would lose small ones."""
    of, package = planned(name), Package(GENERATED / name)
    call = calls.make(of, Sizes(1, 300, 300, 2, 2, 64, 64, "bf16").of(of.spec), "cpu")
    q, k, v = call.operands
    with torch.no_grad():
        q[0, 290], v[:] = strength * k[0, 100], v * size
    out, lse = package.attention(q, k, v, **call.keywords, return_lse=True)
    truth, known = package.reference(q, k, v, **call.keywords)
    assert truth.isfinite().all()
    assert deviation(out / size, lse, truth / size, known) < CLOSE


@pytest.mark.parametrize("name", ["causal", "packed_causal"])
def test_scores_as_coarse_as_the_room_above_them_are_weighed(name: str) -> None:
    """From 2**30 on, float32 resolves log2 scores to 128, twice the room: m must not end up 128 above any of them."""
    of, package = planned(name), Package(GENERATED / name)
    call = calls.make(of, Sizes(1, 200, 200, 1, 1, 64, 64, "bf16").of(of.spec), "cpu")
    q, k, v = call.operands
    for strength in (1e8, 3e8, 1e9, -3e8):
        given = (strength * q.detach(), k.detach(), v.detach())
        out, lse = package.attention(*given, **call.keywords, return_lse=True)
        truth, known = package.reference(*given, **call.keywords)
        assert deviation(out, lse, truth, known) < CLOSE


@pytest.mark.parametrize("fault", RETAKEN)
def test_a_fault_of_tiles_done_again_shows(fault: str, tmp_path: Path) -> None:
    folder = faulty(PACKED, *RETAKEN[fault], tmp_path)

    def measured(seed: int) -> float:
        return retaken("packed_causal", 64, folder, seed)

    assert shown(measured)


@pytest.mark.parametrize("fault", OUTGROWN)
def test_a_fault_of_outgrown_rows_shows(fault: str, tmp_path: Path) -> None:
    folder = faulty(FORWARD, *OUTGROWN[fault], tmp_path)

    def measured(seed: int) -> float:
        return outgrown("causal", 64, folder, seed)

    assert shown(measured)


@pytest.mark.parametrize("name", ["causal", "full", "sliding_window", "softcap"])
@pytest.mark.parametrize("size", [64, 128])
def test_rows_keep_their_bits_wherever_a_chunk_begins(name: str, size: int) -> None:
    """Also if the first query's own key is the last one of a tile."""
    of, package = planned(name), Package(GENERATED / name)
    call = calls.make(of, Sizes(1, 300, 300, 2, 2, size, size, "bf16").of(of.spec), "cpu")
    q, *others = call.operands
    whole = package.attention(q, *others, **call.keywords)
    for rows in (1, 45, 109, 172, 173):
        assert torch.equal(package.attention(q[:, -rows:], *others, **call.keywords), whole[:, -rows:])


@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("mask", ["causal", "causal, {sliding_window: {size: 200}}"])
def test_rows_keep_their_bits_where_biases_hide_their_first_keys(mask: str, size: int, tmp_path: Path) -> None:
    """Whether a tile with other keys of a row takes the mask depends on the chunk."""
    text = f"name: padded\nmask: [{mask}]\nscore: [{{expr: score + bias}}]\ninputs: {{bias: {{axes: [batch, key]}}}}\n"
    of = rendered(RandomSpec("padded", text), tmp_path)
    package = Package(tmp_path / "padded")
    call = calls.make(of, Sizes(2, 300, 300, 1, 1, size, size, "bf16").of(of.spec), "cpu")
    q, *others = call.operands
    bias = call.keywords["bias"].detach().clone()
    bias[0, 256:], bias[1, :200] = -torch.inf, -torch.inf
    whole, lse = package.attention(q, *others, bias=bias, return_lse=True)
    truth, known = package.reference(*call.operands, bias=bias)
    assert deviation(whole, lse, truth, known) < CLOSE
    assert (whole[1, :200] == 0).all() and (lse[1, :, :200] == -torch.inf).all()
    for rows in (45, 109, 162, 173, 290):
        assert torch.equal(package.attention(q[:, -rows:], *others, bias=bias), whole[:, -rows:])


@pytest.mark.parametrize("size", [64, 128])
def test_sinks_far_below_all_scores_are_no_reason_for_a_second_pass(size: int) -> None:
    """Rows have the same bits as without a sink: no row takes it as its reference."""
    of, package = planned("sink_window"), Package(GENERATED / "sink_window")
    call = calls.make(of, Sizes(1, 300, 300, 2, 2, size, size, "bf16").of(of.spec), "cpu")
    found = []
    for sink in (-torch.inf, -1e4, -1e30):
        more = {**call.keywords, "sinks": torch.full((2,), sink)}
        found.append(package.attention(*call.operands, **more))
    assert torch.equal(found[1], found[0]) and torch.equal(found[2], found[0])


def test_a_sink_that_is_no_number_shows() -> None:
    """The maximum of NaN and a number is the number: the reference of a row must not lose the NaN."""
    of, package = planned("sink_window"), Package(GENERATED / "sink_window")
    for dtype in ("bf16", "fp16"):
        call = calls.make(of, Sizes(1, 300, 300, 2, 2, 64, 64, dtype).of(of.spec), "cpu")
        more = {**call.keywords, "sinks": torch.tensor([torch.nan, 0.5])}
        out, lse = package.attention(*call.operands, **more, return_lse=True)
        assert out[:, :, 0].isnan().all() and lse[:, 0].isnan().all()
        assert out[:, :, 1].isfinite().all() and lse[:, 1].isfinite().all()


ROWED = """
name: rowed
score: [{expr: "score + row + column"}]
sink: true
inputs: {row: {axes: [query], grad: true}, column: {axes: [key], grad: true}}
"""


def test_what_queries_add_learns_beside_what_keys_do(tmp_path: Path) -> None:
    of = rendered(RandomSpec("rowed", ROWED), tmp_path)
    for wanted in ([True, True], [False, True]):
        package = Package(tmp_path / "rowed")
        call = calls.make(of, Sizes(1, 100, 100, 2, 2, 64, 64, "fp16").of(of.spec), "cpu")
        for name, want in zip(("row", "column"), wanted, strict=True):
            call.keywords[name].requires_grad_(want)
        results = package.attention(*call.operands, **call.keywords, return_lse=True)
        learned = [x for x in (*call.operands, *call.keywords.values()) if torch.is_tensor(x) and x.requires_grad]
        upstream = [torch.randn(x.shape, generator=torch.Generator().manual_seed(1)).to(x.dtype) for x in results]
        found = package.gradients(results, learned, upstream)
        truth = package.reference(*call.operands, **call.keywords)
        known = torch.autograd.grad(truth, learned, [x.float() for x in upstream])
        assert "hopper_backward.backward" in package.emulation.launched
        assert max(apart(x, y) for x, y in zip(found, known, strict=True)) < 2 * CLOSE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "size"),
    [(name, 64) for name in ("cross", "log_decay", "longformer", "packed_log_decay", "sliding_window")]
    + [(name, size) for name in ("causal", "packed_rope") for size in (64, 80, 128)],
)
@pytest.mark.parametrize(("multiprocessors", "lengths"), [(1, (65, 450)), (40, (1, 300)), (1, (450, 450))])
def test_results_do_not_depend_on_what_comes_first(
    name: str, size: int, multiprocessors: int, lengths: tuple[int, int]
) -> None:
    """Programs that process many tiles, or one each; engines that finish soon, or late."""
    # one entry with four heads gives a program enough tiles; packed calls need several sequences
    entries = 1 if lengths == (450, 450) and not planned(name).spec.packed else 2
    package = Package(GENERATED / name, multiprocessors=multiprocessors)
    assert max(distances(package, planned(name), Sizes(entries, *lengths, 4, 2, size, size, "fp16"))) < CLOSE


def rendered(given: RandomSpec, folder: Path) -> Plan:
    """Writes the package of a spec."""
    path = folder / f"{given.name}.yaml"
    path.write_text(given.yaml)
    return plan.build(unformatted.write(path, folder / given.name, unformatted.compiled))


@pytest.mark.parametrize("layout", ["dense", "packed"])
@pytest.mark.parametrize("size", [64, 256])
def test_heads_reach_differently_far(layout: str, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of = rendered(RandomSpec("falling", f"name: falling\nlayout: {layout}\nmask: [causal]\nscore: [alibi]\n"), tmp_path)
    package = Package(tmp_path / "falling")
    call = calls.make(of, Sizes(2, 500, 500, 4, 2, size, size, "fp16").of(of.spec), "cpu")
    call.keywords["slopes"] = torch.tensor([0.01, 0.5, 1.0, 4.0])
    expected = package.reference(*call.operands, **call.keywords)
    upstream = torch.ones(expected[0].shape)
    wanted = torch.autograd.grad(expected[0], call.operands, upstream)
    monkeypatch.setattr(package.part("vanishing"), "LONG", 500)
    out = package.attention(*call.operands, **call.keywords)
    found = (out, *package.gradients(out, call.operands, upstream.half()))
    assert max(itertools.starmap(apart, zip(found, (expected[0], *wanted), strict=True))) < 2 * CLOSE
    assert {"hopper.forward", "kernels.horizons"} <= {*package.emulation.launched}


# the keys of a tile that queries do not see: later ones, earlier ones, or all of them between two other tiles
APART = {
    "of later keys": "q >= k",
    "of earlier keys": "q >= k and q < k + 70",
    "of all between": "q // 64 == k // 64 * 3",
    "of a tile": "q >= k + 300",
}


@pytest.mark.parametrize("keep", APART.values(), ids=APART)
@pytest.mark.parametrize("kv_heads", [1, 4])
def test_workers_pass_by_what_the_other_one_sees_alone(keep: str, kv_heads: int, tmp_path: Path) -> None:
    text = f"name: apart\nheads: grouped\nmask: [{{expr: '{keep}'}}]\n"
    of = rendered(RandomSpec("apart", text), tmp_path)
    assert of.hopper and of.hopper.backward and of.hopper.backward.walk.own
    package = Package(tmp_path / "apart")
    assert max(distances(package, of, Sizes(1, 450, 450, 4, kv_heads, 128, 128, "fp16"))) < CLOSE


# how scores fall with the distance, and whether the shares of a query and a key are separated
SLOPES = {
    "score: [{expr: 'score + 0.25 * (k - q)'}]\nmask: [causal]": True,
    "score: [{expr: 'score + (q - k) * 0.0125'}]": True,
    "score: [alibi]\nmask: [causal, {sliding_window: {size: 100}}]": True,
    "score: [alibi]\nmask: [causal]\nlayout: packed": True,
    "score: [alibi, {expr: 'score - abs(k - q) * 0.02'}]\nmask: [causal]": True,
    "score: [log_decay, alibi]\nmask: [causal]": True,
    "score: [{expr: 'score - (q - k) * slope'}]\ninputs: {slope: {axes: []}}\nmask: [{expr: 'k < q + 1'}]": True,
    "score: [alibi]": False,  # keys after a query are as far away
    "score: [alibi]\nmask: [causal]\nsink: true": True,
    "score: [log_decay]\nmask: [causal]\nsink: true": True,
    "score: [{expr: 'score - 0.5 * (q - 2 * k)'}]\nmask: [causal]": False,
    "score: [{expr: 'score - 0.5 * 0.25'}]\nmask: [causal]": False,
}


# wide heads take the terms added to scores in the same two shares
@pytest.mark.parametrize(
    ("text", "size"), [*((text, 64) for text in SLOPES), *((text, 256) for text in [*SLOPES][::3])]
)
def test_slopes_times_distances_are_right(text: str, size: int, tmp_path: Path) -> None:
    of = rendered(RandomSpec("sloped", f"name: sloped\n{text}\n"), tmp_path)
    assert of.hopper and (of.hopper.added is not None) == SLOPES[text]
    assert max(distances(Package(tmp_path / "sloped"), of, Sizes(2, 300, 300, 4, 2, size, size, "fp16"))) < 2 * CLOSE


# parts of scores that are read by distance, and whether kernels for Hopper GPUs compute what they learn
BY_DISTANCE = {
    "score: [relative_bias]": True,
    "score: [relative_bias]\nheads: equal\nsink: true": True,
    "score: [relative_bias]\nlayout: packed": True,
    "score: [{relative_bias: {bidirectional: false}}]\nlayout: packed\nmask: [causal]": True,
    "score: [{relative_bias: {bidirectional: false}}]\nmask: [causal, {sliding_window: {size: 100}}]": True,
    "score: [{expr: 'score - 2 * bias[clamp(q - k + 16, 0, 32)]'}]\ninputs: {bias: {axes: [33], grad: true}}": True,
    "score: [{expr: 'score + bias[clamp(k - q, -9, 9) + 9] + cosine[(q - k) % 7]'}]\nmask: [causal]\n"
    "inputs: {bias: {axes: [kv_head, 19], grad: true}, cosine: {axes: [head, 7], grad: true}}": True,
    "score: [{softcap: {cap: 3}}, relative_bias]": False,
    "score: [relative_bias, {softcap: {cap: 3}}]": False,
    "score: [{expr: 'score * 1.5'}, relative_bias]": False,
    "score: [{expr: 'score + rate * bias[clamp(q - k, 0, 9)]'}]\nmask: [causal]\n"
    "inputs: {rate: {axes: [head]}, bias: {axes: [head, 10], grad: true}}": False,
    "score: [{expr: 'score - exp(-rate * (q - k))'}]\nmask: [causal]\n"
    "inputs: {rate: {axes: [head], grad: true}}": False,
    "score: [{expr: 'score * exp(-0.01 * abs(q - k)) + log(1 + abs(q - k)) * n'}]\ninputs: {n: {axes: []}}": True,
    "score: [alibi, {expr: 'score + sqrt(1 + q - k)'}]\nmask: [causal]": True,
    "score: [{expr: 'score + table[(2 * q - 2 * k) // 5 + 120, h]'}]\n"
    "inputs: {table: {axes: [240, 4], grad: true}}": True,
    # an entry that two parts read, and one that one part reads in two ways
    "score: [{expr: 'score + bias[abs(q - k) % 9] - exp(bias[abs(q - k) % 9])'}]\n"
    "inputs: {bias: {axes: [head, 9], grad: true}}": False,
    "score: [{expr: 'score + bias[abs(q - k) % 9]'}, {expr: 'score - 3 * bias[(q - k) % 7]'}]\n"
    "inputs: {bias: {axes: [head, 9], grad: true}}": True,
    "score: [{expr: 'score + rate * log(1 + abs(q - k))'}]\n"
    "inputs: {rate: {axes: [head], default: '1 / (h + 2)'}}": True,
    "score: [relative_bias]\nmask: [{expr: chosen}]\n"
    "inputs: {chosen: {axes: [head, query // 64, key // 64], dtype: bool}}": True,
    "score: [relative_bias, {expr: 'score + place * k'}]\ninputs: {place: {axes: [head]}}": True,
    "score: [relative_bias]\ndropout: true": True,
    "score: [relative_bias]\nmask: [segments]": True,
    # a part that reads nothing of the head of keys but its number
    "score: [{expr: 'score - sqrt(q - k) / (2 + kv_h)'}]\nmask: [causal]": True,
}


SIZES = [*((t, 64) for t in BY_DISTANCE), *((t, 128) for t in [*BY_DISTANCE][:7:3])]
SIZES += [(t, 256) for t in [*BY_DISTANCE][::5]]


@pytest.mark.parametrize(("text", "size"), SIZES)
def test_parts_by_distance_are_right(text: str, size: int, tmp_path: Path) -> None:
    of = rendered(RandomSpec("tabled", f"name: tabled\n{text}\n"), tmp_path)
    assert of.hopper and of.hopper.by_distance and of.hopper.backward
    assert differentiates(of, 64) == BY_DISTANCE[text]
    package = Package(tmp_path / "tabled")
    for lengths, learn in (((300, 300), True), ((130, 200), False)):
        sizes = Sizes(2, *lengths, 4, 4 if "heads: equal" in text else 2, size, size, "fp16")
        assert max(distances(package, of, sizes, learn=learn)) < 2 * CLOSE
        assert "hopper.forward" in package.emulation.launched


OF_ROWS = [*((name, 64) for name in row_tables.SPECS), ("of both in one term", 128), ("of sequences", 128)]


@pytest.mark.parametrize(("name", "size"), OF_ROWS)
def test_tables_of_rows_are_right(name: str, size: int, tmp_path: Path) -> None:
    """Most tiles of scores read one entry of each row."""
    of = rendered(RandomSpec("tables_of_rows", row_tables.text(name)), tmp_path)
    assert differentiates(of, size) == (name in row_tables.DIFFERENTIATED)
    package = Package(tmp_path / "tables_of_rows", multiprocessors=2)
    sizes = Sizes(2, 200, 200 if "packed" in row_tables.text(name) else 300, 2, 1, size, size, "fp16")
    assert max(distances(package, of, sizes)) < 2 * CLOSE
    ran = {"forward": "hopper", "backward": "hopper" if differentiates(of, size) else "portable"}
    assert targets.taken(package.runtime) == ran


# values of pairs that are read from tiles, and whether dS is stored as their gradient; None: no kernels differentiate
PAIRED = {
    "score: [bias]": True,
    "score: [bias]\nmask: [causal]\nsink: true": True,
    "score: [bias]\nmask: [causal, {sliding_window: {size: 70}}]": True,
    "score: [bias]\nmask: [causal]\ndropout: true": None,
    "score: [{expr: 'score + lift'}]\ninputs: {lift: {axes: [batch, kv_head, query, key], grad: true}}": False,
    "score: [bias, bias]": False,
    "score: [{expr: 'score - 2 * lift'}]\ninputs: {lift: {axes: [head, query, key], grad: true}}": False,
    "score: [{expr: 'score + lift'}]\ninputs: {lift: {axes: [batch // 2, query, key], grad: true}}": False,
    "score: [{softcap: {cap: 3}}, bias]": False,
    "score: [bias, {softcap: {cap: 3}}]\nheads: equal": False,
    "score: [bias, {expr: 'score + place'}]\nmask: [{expr: known}]\n"
    "inputs: {place: {axes: [head, key]}, known: {axes: [batch, key], dtype: bool}}": True,
}


@pytest.mark.parametrize(("text", "size"), [*((t, 64) for t in PAIRED), *((t, 128) for t in [*PAIRED][::3])])
def test_values_of_pairs_are_right(text: str, size: int, tmp_path: Path) -> None:
    of = rendered(RandomSpec("paired", f"name: paired\n{text}\n"), tmp_path)
    assert of.hopper and of.hopper.pairs
    back = of.hopper.backward
    assert (back and back.stores_pairs) == PAIRED[text]
    for lengths in ((300, 300), (136, 304)):  # rows of 304 values begin on 16-byte boundaries, rows of 300 are copied
        package = Package(tmp_path / "paired")
        entries = 3 if "batch //" in text else 2
        sizes = Sizes(entries, *lengths, 4, 4 if "heads: equal" in text else 2, size, size, "fp16")
        assert max(distances(package, of, sizes)) < 2 * CLOSE
        assert {"hopper.forward", *(("hopper_backward.backward",) if back else ())} <= {*package.emulation.launched}
        apart = any(name.startswith("kernels.backward_in_") for name in package.emulation.launched)
        assert apart == (any(x.grad for x in of.spec.inputs) and not PAIRED[text])


SHARED_PAIRS = [(1, 1, 136, 304), (2, 1, 136, 304), (1, 4, 136, 304), (136, 304), (2, 4, 1, 304), (2, 4, 136, 1)]


@pytest.mark.parametrize("shape", [*SHARED_PAIRS, (1, 1, 1, 304), (1, 4, 1, 1)])
@pytest.mark.parametrize("expanded", [False, True])
def test_values_of_pairs_may_be_shared(shape: tuple[int, ...], expanded: bool) -> None:
    """Between batch entries, heads, queries or keys, in tensors of that shape or expanded ones."""
    package, of = Package(GENERATED / "pair_bias"), planned("pair_bias")
    call = calls.make(of, Sizes(2, 136, 304, 4, 4, 64, 64, "fp16"), "cpu")
    own = torch.randn(shape, generator=torch.Generator().manual_seed(2)).half().requires_grad_()
    bias = own.expand(2, 4, 136, 304) if expanded else own
    out, lse = package.attention(*call.operands, bias=bias, return_lse=True)
    truth, known = package.reference(*call.operands, bias=bias.float())
    assert max(apart(out, truth), apart(lse, known)) < CLOSE
    assert ("hopper.forward" in package.emulation.launched) == (bias.shape[-2:] == (136, 304))
    one = torch.randn(out.shape, generator=torch.Generator().manual_seed(3)).half()
    found = package.gradients(out, (*call.operands, own), one)
    wanted = torch.autograd.grad(truth, (*call.operands, own), one.float())
    if shape[-1] == 1:  # what all keys share changes no weight: rounding errors of so many rows remain
        *found, of_bias = found
        assert of_bias.abs().max() < CLOSE * (out[..., 0].numel() / own.numel()) ** 0.5
    assert max(map(apart, found, wanted)) < CLOSE


PAIRS_FORWARD, PAIRS_BACK = "pair_bias/hopper.py", "pair_bias/hopper_backward.py"
OF_PAIRS = {
    "values that nobody waits for": (PAIRS_FORWARD, "mbarrier.wait(in_bias_ready.index(stage), at // STAGES & 1)", ""),
    "values copied over those of the last tile": (
        PAIRS_FORWARD, "mbarrier.wait(in_bias_free.index(stage), at // STAGES & 1 ^ 1)", ""
    ),
    "values of the other worker": (PAIRS_BACK, "% PAIR_STAGES * 2 + WORKER", "% PAIR_STAGES * 2 + 1 - WORKER"),
    "values of the first entry": (PAIRS_BACK, "tl.minimum(b, in_bias_batches - 1)", "tl.minimum(b, 0)"),
    "values of the first keys": (PAIRS_FORWARD, "worker * 64,\n            k_start,", "worker * 64,\n            0,"),
    "values copied over those still to be read": (
        PAIRS_BACK, "mbarrier.wait(in_bias_free.index(at % PAIR_STAGES), at // PAIR_STAGES & 1 ^ 1)", ""
    ),
    "dS stored before it is there": (
        PAIRS_BACK, "mbarrier.wait(factors_ready.index(at & 1), at >> 1 & 1)\n        for", "for"
    ),
    "dS of the last step": (
        PAIRS_BACK, "factors.index((at & 1) * 2 + worker)", "factors.index((at + 1 & 1) * 2 + worker)"
    ),
    "dS of one worker for both": (
        PAIRS_BACK, "[b, h, q_start, k_start + worker * 64]", "[b, h, q_start, k_start]"
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("fault", OF_PAIRS)
def test_a_fault_of_values_of_pairs_shows(fault: str, tmp_path: Path) -> None:
    package, of = faulty(*OF_PAIRS[fault], tmp_path), planned("pair_bias")

    def first(seed: int) -> float:
        far = distances(Package(package, seed), of, Sizes(2, 300, 304, 4, 4, 64, 64, "fp16"))
        return next((x for x in far if x > 10 * CLOSE), 0.0)

    assert shown(first)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in VARIANTS if [*planned(name).spec.inputs]])
@pytest.mark.parametrize("shared", ["the last axis", "all axes"])
def test_tensors_of_any_layout_are_read(name: str, shared: str) -> None:
    of, package, chance = planned(name), Package(GENERATED / name), random.Random(name)
    call = calls.make(of, Sizes(2, 136, 304, 4, 2, 64, 64, "fp16").of(of.spec), "cpu")
    axes = dict(reference.build(loaded(name), of.arguments).narrowed)  # all that may have size 1 come last
    if shared == "the last axis":
        axes = {name: some[-1:] for name, some in axes.items()}
    given = {name: x for name, x in call.keywords.items() if torch.is_tensor(x) and not name.startswith("cu_")}
    given = {name: layouts.changed(x, chance, axes.get(name, ())) for name, x in given.items()}
    operands = tuple(layouts.changed(x, chance) for x in call.operands)
    call = dataclasses.replace(call, operands=operands, keywords=call.keywords | given)
    results = package.attention(*call.operands, **call.keywords, return_lse=True)
    expected = package.reference(*call.operands, **call.keywords)
    assert max(map(apart, results, expected)) < CLOSE
    # values of pairs that keys share have no tiles
    assert ("hopper.forward" in package.emulation.launched) == (name != "pair_bias")
    make = torch.Generator().manual_seed(1)
    upstream = [torch.randn(x.shape, generator=make).half().to(x.dtype) for x in results]
    found = package.gradients(results, call.wanted, upstream)
    known = torch.autograd.grad(expected, call.wanted, [x.float() for x in upstream])
    assert max(map(apart, found, known)) < 10 * CLOSE  # sums over all that share a value may nearly cancel


@pytest.mark.parametrize("permuted", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_values_of_pairs_of_any_type_and_order_are_read(permuted: bool, dtype: torch.dtype) -> None:
    package, of = Package(GENERATED / "pair_bias"), planned("pair_bias")
    call = calls.make(of, Sizes(2, 136, 304, 4, 4, 64, 64, "fp16"), "cpu")
    bias = torch.randn(2, 136, 304, 4, generator=torch.Generator().manual_seed(2)).to(dtype).permute(0, 3, 1, 2)
    bias = bias if permuted else bias.contiguous()
    out, lse = package.attention(*call.operands, bias=bias, return_lse=True)
    truth, known = package.reference(*call.operands, bias=bias.float())
    assert max(apart(out, truth), apart(lse, known)) < CLOSE
    assert ("hopper.forward" in package.emulation.launched) == (dtype == torch.float16)


@pytest.mark.parametrize(("name", "strength"), [("alibi", 1), ("log_decay", 30), ("causal", 1)])
@pytest.mark.parametrize("size", [64, 128, 256])
def test_the_lse_keeps_its_digits(name: str, strength: float, size: int) -> None:
    """A product that begins with a large number keeps few digits of a small score."""
    call = calls.make(planned(name), Sizes(1, 400, 400, 8, 8, size, size, "bf16").of(planned(name).spec), "cpu")
    more: dict[str, Any] = dict(call.keywords)
    for given in call.learned:
        more[given] = more[given].detach() * strength
    package = Package(GENERATED / name)
    found = package.attention(*call.operands, **more, return_lse=True)[1]
    wanted = package.reference(*call.operands, **more)[1]
    assert float((found - wanted).detach().abs().max()) < 1e-5


# scores whose slopes are far from 1, and scores with other values where masks hide them
STEEP = [
    "softcap: {cap: 1}",
    "{expr: '-2 * tanh(score / 3)'}",
    "{expr: 'exp(score / 2)'}",
    "{expr: 'sqrt(abs(score) + 0.1) - sqrt(q - k)'}",
    "softcap: {cap: 2}, {expr: 'score * abs(score)'}",
]


@pytest.mark.parametrize("scores", STEEP)
@pytest.mark.parametrize("size", [64, 256])
def test_scores_whose_slopes_differ_are_right(scores: str, size: int, tmp_path: Path) -> None:
    of = rendered(RandomSpec("steep", f"name: steep\nmask: [causal]\nscore: [{scores}]\n"), tmp_path)
    assert of.hopper and of.hopper.backward
    found = distances(Package(tmp_path / "steep"), of, Sizes(2, 300, 300, 4, 2, size, size, "fp16"))
    assert max(found) < 2 * CLOSE


# dropout beside masks, terms of scores, sinks, and with packed sequences
DROPPED = {
    "full": "",
    "grouped": "heads: grouped\nmask: [causal, {sliding_window: {size: 100}}]",
    "both sides": "mask: [prefix_lm]",
    "documents": "heads: equal\nmask: [causal, segments]",
    "capped": "mask: [causal]\nscore: [softcap: {cap: 2}]",
    "steep": "mask: [causal]\nscore: [{expr: 'score * abs(score) - sqrt(q - k)'}]",
    "sloped": "mask: [causal]\nscore: [alibi]",
    "decaying": "mask: [causal]\nscore: [log_decay]",
    "biased": "score: [{expr: score + bias}]\ninputs: {bias: {axes: [batch, key]}}",
    "sunk": "mask: [causal]\nsink: true",
    "packed": "layout: packed\nmask: [causal]",
}


LISTED = {
    "heads": "mask: [{expr: m}]\ninputs: {m: {axes: [batch, head, query // 48, key // 80], dtype: bool}}",
    "key heads": "mask: [{expr: 'm > 0'}]\ninputs: {m: {axes: [kv_head, query // 64, key // 64], dtype: int}}",
    "no heads": "mask: [causal, {expr: m}]\ninputs: {m: {axes: [query // 64, key // 128], dtype: bool}}",
    "queries": "mask: [causal, {expr: m}]\ninputs: {m: {axes: [batch, kv_head, query, key // 64], dtype: bool}}",
    "two": """mask: [{expr: m or my_entries}]
inputs:
  m: {axes: [batch, query // 32, key // 32], dtype: bool}
  my_entries: {axes: [head, query // 64, key // 96], dtype: bool}
""",
    "window": "mask: [{expr: 'q - k < 150'}, block_sparse: {block: 32}]",
    "documents": "mask: [causal, segments, block_sparse: {block: 64}]\nsink: true",
    "decays": "mask: [causal, block_sparse: {block: 64}]\nscore: [log_decay]",
    "dropout": "dropout: true\nmask: [causal, block_sparse: {block: 64}]",
}


@pytest.mark.parametrize("size", [64, 256])
@pytest.mark.parametrize("text", LISTED.values(), ids=LISTED)
def test_blocks_are_right_beside_other_terms(text: str, size: int, tmp_path: Path) -> None:
    of = rendered(RandomSpec("blocks", f"name: blocks\n{text}\n"), tmp_path)
    package = Package(tmp_path / "blocks", multiprocessors=2)
    assert max(distances(package, of, Sizes(2, 200, 300, 4, 2, size, size, "fp16"))) < 2 * CLOSE
    assert "hopper.forward" in package.emulation.launched
    ran = {"hopper_backward.backward", "hopper_wide.backward"} & set(package.emulation.launched)
    assert bool(ran) == differentiates(of, size)


@pytest.mark.parametrize("size", [64, 128, 256])
@pytest.mark.parametrize("text", DROPPED.values(), ids=DROPPED)
def test_dropout_is_right_beside_other_terms(text: str, size: int, tmp_path: Path) -> None:
    of = rendered(RandomSpec("dropped", f"name: dropped\ndropout: true\n{text}\n"), tmp_path)
    package = Package(tmp_path / "dropped")
    assert max(distances(package, of, Sizes(2, 130, 200, 2, 1, size, size, "fp16"))) < 2 * CLOSE
    ran = {"hopper_backward.backward", "hopper_wide.backward"} & set(package.emulation.launched)
    assert bool(ran) == differentiates(of, size)


def results_of_dropout(
    lengths: tuple[int, int], size: int, share: float, seed: int | None, heads: int = 2
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Out, the LSE and gradients from kernels, and from the reference, in float16."""
    make, package = torch.Generator().manual_seed(0), Package(GENERATED / "gpt2_dropout")
    q, k, v = (torch.randn(2, rows, heads, size, generator=make).half() for rows in (*lengths, lengths[1]))
    dout = torch.randn(2, lengths[0], heads, size, generator=make).half()
    given = [x.requires_grad_() for x in (q, k, v)]
    found = package.attention(*given, dropout_p=share, seed=seed, return_lse=True)
    wanted = package.reference(*given, dropout_p=share, seed=seed)
    back = package.gradients(found[0], given, dout), torch.autograd.grad(wanted[0], given, dout.float())
    assert "hopper.forward" in package.emulation.launched
    return [*found, *back[0]], [*wanted, *back[1]]


# 32 and 64 bits of a seed; few queries, few keys, and tiles that are almost empty
@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**63 - 1])
@pytest.mark.parametrize(("lengths", "size"), [((1, 70), 64), ((70, 70), 128), ((129, 300), 64), ((65, 129), 256)])
def test_dropout_of_all_lengths_and_seeds_is_right(lengths: tuple[int, int], size: int, seed: int) -> None:
    found, wanted = results_of_dropout(lengths, size, 0.3, seed)
    assert max(map(apart, found, wanted)) < 2 * CLOSE


@pytest.mark.parametrize("size", [64, 256])
@pytest.mark.parametrize("share", [0.0, 1e-5, 0.9, 0.9999, 1 - 1e-9])
def test_dropout_of_any_share_is_right(share: float, size: int) -> None:
    """Of nothing, which takes no seed, and of almost everything: then few weights count 65,536 times."""
    found, wanted = results_of_dropout((130, 130), size, share, None if share == 0 else 5)
    assert max(map(apart, found, wanted)) < 2 * CLOSE


@pytest.mark.parametrize("size", [64, 128, 256])
def test_dropout_draws_the_same_everywhere(size: int) -> None:
    """Each weight that the reference drops is 0 in out, if values are 1 for a single key, and in dV likewise."""
    rows, package, make = 150, Package(GENERATED / "gpt2_dropout"), torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, rows, 2, size, generator=make).half() for _ in range(2))
    more: dict[str, Any] = {"dropout_p": 0.4, "seed": 11}
    for first in range(0, rows, size):
        one = torch.zeros(1, rows, 2, size, dtype=torch.float16)
        one[0, first : first + size] = torch.eye(size, dtype=torch.float16)[: rows - first, None]
        v = one.clone().requires_grad_()
        for given in (v, torch.ones_like(v).requires_grad_()):
            queries = [x.clone().requires_grad_() for x in (q, k)]
            out, known = package.attention(*queries, given, **more), package.reference(*queries, given, **more)[0]
            if given is v:
                assert torch.equal(out == 0, known == 0)
            back = package.gradients(out, [*queries, given], one), torch.autograd.grad(known, [given], one.float())
            assert torch.equal(back[0][2] == 0, back[1][0] == 0)


def of_padded(package: Package, of: Plan, kind: str, size: int, length: int = 300) -> Iterator[float]:
    """How far out, the LSE and gradients of a padded batch are from the reference's; padding of q, k and v is NaN."""
    heads = (4, 2) if size == 64 else (2, 1)  # kernels find these at every size
    queries, places = padding.of(kind, length)
    call = calls.make(of, Sizes(3, queries, length, *heads, size, size, "fp16").of(of.spec), "cpu")
    given, queries_out = padding.leaves(call.operands, places)
    results = package.attention(*given, **call.keywords, **places, return_lse=True)
    expected = package.reference(*call.operands, **call.keywords, **places)
    yield from map(apart, results, expected)
    if not differentiates(of, size):
        return
    make = torch.Generator().manual_seed(1)
    dout, dlse = (torch.randn(x.shape, generator=make).half().to(x.dtype) for x in results)
    dlse = dlse.masked_fill(queries_out[:, None], 0.0)
    learned = call.wanted[3:]
    found = package.gradients(results, (*given, *learned), [padding.with_nan(dout, queries_out), dlse])
    zeros = dout.masked_fill(queries_out[:, :, None, None], 0.0)
    known = torch.autograd.grad(expected, call.wanted, [zeros.float(), dlse])
    yield from itertools.starmap(apart, zip(found, known, strict=True))


def kinds_of_padding() -> list[Any]:
    """Variants with a kind of padding each; those that stand for many others have all kinds, and all sizes of heads."""
    found = []
    for i, given in enumerate(sized(DENSE)):
        name, size = given.values
        if name in QUICK:
            found += [pytest.param(name, size, kind) for kind in padding.KINDS]
        elif size == 64:
            found += [pytest.param(name, size, padding.KINDS[i % 3], marks=pytest.mark.slow)]
    return found


@pytest.mark.parametrize(("name", "size", "kind"), kinds_of_padding())
def test_rows_left_out_are_not_read(name: str, size: int, kind: str) -> None:
    assert max(of_padded(Package(GENERATED / name), planned(name), kind, size)) < CLOSE


@pytest.mark.parametrize("name", ["full", "cross", "causal", "t5_encoder"])
@pytest.mark.parametrize("size", [64, 256])
def test_queries_without_keys_are_written(name: str, size: int) -> None:
    assert max(of_padded(Package(GENERATED / name), planned(name), "keys", size)) < CLOSE


PADDED, PADDED_BACK = "causal/hopper.py", "causal/hopper_backward.py"
OF_PADDING = {
    "values behind an entry left in": (PADDED, "v_buffer, stage), k_len - k_start,", "v_buffer, stage), BLOCK_N,"),
    "queries behind an entry left in": (
        PADDED_BACK, "(q_buffer, stage), q_len - q_start,", "(q_buffer, stage), BLOCK_M,"
    ),
    "dout behind an entry left in": (
        PADDED_BACK, "(dout_buffer, stage), q_len - q_start,", "(dout_buffer, stage), BLOCK_M,"
    ),
    "keys behind an entry left in": (
        PADDED_BACK, "clear_behind(matrix(k_buffer, stage * WORKERS + worker), k_len - k_start - worker * 64",
        "clear_behind(matrix(k_buffer, stage * WORKERS + worker), 64"
    ),
    "an end taken for the one before": (
        PADDED, "mbarrier.wait(v_come, ends & 1)", "mbarrier.wait(v_come, ends & 1 ^ 1)"
    ),
    "ends of entries that are not counted": (PADDED_BACK, "ends += 1", "ends += 0"),
    "positions of the first entry": (PADDED, "tl.load(entries_ptr + 5 * b + 4)", "tl.load(entries_ptr + 4)"),
    "dQ in tiles of an entry's own length": (PADDED_BACK, "tl.cdiv(q_total, BLOCK_M)", "tl.cdiv(q_len, BLOCK_M)"),
    "the tile of the next rank": (PADDED, "1 + place // Hq * 2", "3 + place // Hq * 2"),
    "the last round left out": (PADDED, "tl.cdiv(tl.load(ranked_ptr) * Hq, tl", "(tl.load(ranked_ptr) * Hq // tl"),
    "tiles without keys that are not ranked": ("full/padding.py", "q_start < q_len, keys + 1, 0", "keys > 0, keys, 0"),
    "ranks that tiles share": ("causal/padding.py", "(other[None, :] < own[:, None])", "(other[None, :] < 0)"),
    "random numbers of rows in place of positions": (
        "gpt2_dropout/hopper.py", "q_start + drawn + WORKER * 64", "q_start + WORKER * 64"
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("fault", OF_PADDING)
def test_a_fault_of_padded_batches_shows(fault: str, tmp_path: Path) -> None:
    package, name = faulty(*OF_PADDING[fault], tmp_path), OF_PADDING[fault][0].partition("/")[0]

    def first(seed: int) -> float:
        kinds = ("keys",) if name == "full" else padding.KINDS
        far = (x for kind in kinds for x in of_padded(Package(package, seed), planned(name), kind, 64))
        return next((x for x in far if x > 10 * CLOSE), 0.0)

    assert shown(first)


@pytest.mark.parametrize("score", ["score + k * tanh(0.25)", "score + 0.1 * apart"])
def test_what_comments_alone_name_is_not_imported(score: str, tmp_path: Path) -> None:
    text = f"name: said\nscore: [{{expr: '{score}'}}]\n"
    text += "inputs: {apart: {axes: [kv_head]}}\n" if "apart" in score else ""
    of = rendered(RandomSpec("said", text), tmp_path)
    assert max(distances(Package(tmp_path / "said"), of, Sizes(1, 70, 70, 2, 1, 64, 64, "fp16"))) < CLOSE


@pytest.mark.parametrize("terms", ["alibi, softcap: {cap: 30}", "softcap: {cap: 30}, alibi"])
@pytest.mark.parametrize("size", [64, 256])
def test_factors_of_terms_have_their_place_where_inputs_could_learn(terms: str, size: int, tmp_path: Path) -> None:
    of = rendered(RandomSpec("learned", f"name: learned\nscore: [{terms}]\n"), tmp_path)
    assert max(distances(Package(tmp_path / "learned"), of, Sizes(1, 100, 100, 2, 1, size, size, "fp16"))) < CLOSE


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 9, 17, 22, 28, 32, 52, 58])  # of specs that have such kernels
def test_results_of_random_specs(seed: int, tmp_path: Path) -> None:
    given = generate(seed)
    of = rendered(given, tmp_path)
    package = Package(tmp_path / given.name, seed)
    for size in (24, 64, 256):
        sizes = Sizes(2, 130, 200, 2, 2, size, size, "fp16")
        assert max(distances(package, of, sizes, learn=False)) < 5 * CLOSE, given.yaml
    assert "hopper.forward" in package.emulation.launched


@pytest.mark.parametrize("size", [32, 64])
@pytest.mark.parametrize("name", ["causal", "packed_causal"])
def test_dq_of_many_queries_begins_with_zeros(name: str, size: int, tmp_path: Path) -> None:
    package = Package(faulty(f"{name}/hopper_backward.py", "tl.constexpr(4096)", "tl.constexpr(100)", tmp_path))
    assert max(distances(package, planned(name), Sizes(2, 300, 300, 4, 2, size, size, "fp16"))) < CLOSE


def test_nothing_of_the_next_sequence_is_seen() -> None:
    make = torch.Generator().manual_seed(0)
    cuts = torch.tensor([0, 70, 71, 300, 556], dtype=torch.int32)
    q, k, v, dout = (torch.randn(600, 4, 64, generator=make).half() for _ in range(4))
    found = []
    for spoilt in (False, True):
        for x in (q, k, v, dout) if spoilt else ():
            x[70:71], x[300:] = float("nan"), float("nan")
        package = Package(GENERATED / "packed_full")
        given = [x.clone().requires_grad_() for x in (q, k, v)]
        out = package.attention(*given, cu_seqlens=cuts, max_seqlen=256)
        found.append((out, *package.gradients(out, given, dout)))
    for x, y in zip(*found, strict=True):
        for rows in (slice(0, 70), slice(71, 300)):
            assert bool(x[rows].isfinite().all())
            torch.testing.assert_close(x[rows], y[rows], rtol=1e-3, atol=1e-3)


MIXED = [(0, 0, 1, 300), (0, 0, 40, 60), (1, 200, 3, 500), (1, 200, 40, 60), (1000, 1, 1, 300), (1000, 1, 3, 500)]


# the places of rows depend on neither size nor tiles: other sizes cover only long sequences and many sequences
@pytest.mark.parametrize(
    ("size", "multiprocessors", "first", "behind", "count", "longest"),
    [(64, multiprocessors, *given) for multiprocessors in (1, 5) for given in MIXED]
    + [
        pytest.param(*size, *given, marks=pytest.mark.slow)
        for size in ((32, 3), (128, 5), (256, 1))
        for given in (MIXED[3], MIXED[5])
    ],
)
def test_every_row_of_mixed_sequences_is_found(
    size: int, multiprocessors: int, first: int, behind: int, count: int, longest: int
) -> None:
    """Some are empty; rows before the first and after the last one belong to no sequence, and are 0."""
    make = torch.Generator().manual_seed(0)
    lengths = torch.randint(0, longest + 1, (count,), generator=make)
    lengths[::3], lengths[-1] = 0, longest
    cuts = (torch.cat((torch.tensor([0]), lengths.cumsum(0))) + first).to(torch.int32)
    rows = first + int(lengths.sum()) + behind
    q, k, v, dout = (torch.randn(rows, heads, size, generator=make).half() for heads in (4, 2, 2, 4))
    given = [x.requires_grad_() for x in (q, k, v)]
    package = Package(GENERATED / "packed_causal", multiprocessors=multiprocessors)
    more = {"cu_seqlens": cuts, "max_seqlen": longest}
    found = package.attention(*given, **more, return_lse=True)
    wanted = package.reference(*given, **more)
    assert max(itertools.starmap(apart, zip(found, wanted, strict=True))) < CLOSE
    gradients = package.gradients(found[0], given, dout), torch.autograd.grad(wanted[0], given, dout.float())
    assert max(itertools.starmap(apart, zip(*gradients, strict=True))) < CLOSE


FREED = "    mbarrier.arrive(v_free.index(before), count=1)\n"
WAITED = """\
    acc = warpgroup_mma_wait(0, [adding])
    # until here the product was reading the registers of the previous weights
    packed = pack(p, v_buffer.dtype)
"""
LOADED_OVER = ("causal/hopper.py", "mbarrier.wait(q_free.index(stage), begun // Q_STAGES & 1 ^ 1)", "stage = stage")
# faults of concurrency, and of the tiles that packed sequences share: file, correct code, faulty code
MORE = {
    "values given back before their product is there": ("causal/hopper.py", WAITED + FREED, FREED + WAITED),
    "queries loaded over those that are read": LOADED_OVER,
    "the only queries loaded over": LOADED_OVER,
    "out stored over the next queries": (
        "causal/hopper.py", "    if Q_STAGES == 1:\n        return", "    if Q_STAGES == 0:\n        return"
    ),
    "a worker's tiles by the rows of the first one": (
        "causal/hopper.py", "tl.minimum(q_first + WORKER * 64, q_last)", "tl.minimum(q_first, q_last)"
    ),
    "tiles passed by that are not given back": (
        "causal/hopper.py", "        mbarrier.arrive(v_free.index(stage), count=1)\n        at += 1\n    return at",
        "        at += 1\n    return at"
    ),
    "a share of dQ stored over one that is added": (
        "causal/hopper_backward.py", "    tma.store_wait(0)\n", ""
    ),
    "a packed tile that no program takes": (
        "packed_causal/hopper.py", "tl.num_programs(0) + taken", "tl.num_programs(0) + 2 * taken"
    ),
    "the place of a packed tile in the other stage": (
        "packed_causal/hopper.py", "    place = stage * 3\n", "    place = (1 - stage) * 3\n"
    ),
    "a packed tile that is taken for the next sequence's": (
        "packed_causal/hopper.py", "row // ROWS + number)", "row // ROWS + number - 1)"
    ),
    "a tile of packed keys taken for the next one": (
        "packed_causal/hopper_backward.py", "    return tile, b, head\n", "    return tile + 1, b, head\n"
    ),
    "packed tiles that are told too early": (
        "packed_causal/hopper.py", "barriers(Q_STAGES, 2)", "barriers(Q_STAGES, 1)"
    ),
}  # fmt: skip
# faults that heads of 256 columns show, with one stage of queries, if one tile holds all keys: otherwise these wait
OF_ONE_STAGE = {"the only queries loaded over", "out stored over the next queries"}
# and faults that tiles with as many keys as a worker has rows show, as some workers pass them by
OF_SHORT_TILES = {"a worker's tiles by the rows of the first one", "tiles passed by that are not given back"}
TURNS = {fault: ("causal/hopper_backward.py", *told) for fault, told in IN_TURNS.items()}
SEEN = {
    fault: told
    for fault, told in {**FAULTS, **TURNS, **MORE}.items()
    if fault not in OF_WIDE_HEADS  # in assembly, which is not run here
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", SEEN)
def test_a_fault_shows(fault: str, tmp_path: Path) -> None:
    file, right, wrong = SEEN[fault]
    wide = file.endswith("/hopper_wide.py") or fault in OF_ONE_STAGE | OF_SHORT_TILES
    name, size = file.partition("/")[0], 256 if wide else 128 if fault in PASSED else 64
    length = 50 if fault in OF_ONE_STAGE else 500
    package = faulty(file, right, wrong, tmp_path)
    # most faults show in the first entry, those of programs that take many tiles in turns only after many of them
    entries = 1 if fault in FAULTS else 3
    of, sizes = planned(name), Sizes(entries, length, length, 4, 2, size, size, "fp16")

    def first(seed: int) -> float:
        return next((far for far in distances(Package(package, seed, 1), of, sizes) if far > 10 * CLOSE), 0.0)

    how = shown(first)
    assert how == "misuse" or (how == "numbers" and fault not in ENDLESS)
