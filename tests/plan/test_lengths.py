"""Batches with padding, static caches and chunks: `k_lens`, `k_starts` and `q_start`."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import devices  # where kernels run is settled before triton is imported
import pytest
import torch
from random_specs import RandomSpec, suite, write
from torch.utils._python_dispatch import TorchDispatchMode

pytestmark = pytest.mark.slow

SPECS = {
    "full": "",
    "causal": "mask: [causal]",
    "window": "mask: [causal, sliding_window: {size: 20}]",
    "prefix": "mask: [{expr: 'k <= q or k < 9'}]",
    "dropout": "mask: [causal]\ndropout: true",
    "decay": "mask: [causal]\nscore: [log_decay]",
    "rope": "mask: [causal]\nrope: {layout: half}",
    "sinks": "mask: [causal]\nsink: true",
}
Call = dict[str, Any]


@pytest.fixture(scope="module")
def suites(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModuleType]:
    """The suites of small specs."""
    folder = tmp_path_factory.mktemp("lengths")
    for name, text in SPECS.items():
        write(RandomSpec(f"lengths_{name}", f"name: lengths_{name}\n{text}\n"), folder)
    return {name: suite(folder, f"lengths_{name}") for name in SPECS}


@pytest.fixture
def causal(suites: dict[str, ModuleType]) -> ModuleType:
    """The suite of the causal spec."""
    return suites["causal"]


def part(module: ModuleType, name: str) -> ModuleType:
    """Another module of a suite's package."""
    return importlib.import_module(f"{module.__package__}.{name}")


def numbers(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def make(module: ModuleType, queries: int, keys: int, batch: int = 2) -> Call:
    """The arguments of one call without lengths."""
    case = dataclasses.replace(module.SMALL, q_lens=(queries,) * batch, k_lens=(keys,) * batch)
    made: Call = module.make_inputs(case)
    return made


def alone(call: Call, entry: int, queries: slice, keys: slice) -> Call:
    """Some rows of a single batch entry."""
    rows = {"q": queries, "k": keys, "v": keys, "log_decay": keys, "positions": keys}
    return {name: x[entry : entry + 1, rows[name]] if name in rows else x for name, x in call.items()}


@pytest.mark.skipif(devices.GPU, reason="nothing warns on a GPU")
@pytest.mark.filterwarnings("error")
def test_rows_without_keys_are_no_reason_to_warn(causal: ModuleType) -> None:
    call = make(causal, 24, 8)
    out, lse = causal.checks.attention(**call | {"q": call["q"].requires_grad_()}, return_lse=True)
    out.sum().backward()
    assert torch.equal(lse == float("-inf"), (torch.arange(24) < 16).expand_as(lse))


@pytest.mark.parametrize("name", ["full", "causal", "window", "prefix", "decay", "rope"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_padded_entry_gives_what_it_gives_alone(name: str, side: str, suites: dict[str, ModuleType]) -> None:
    variant, call = suites[name].VARIANT, make(suites[name], 70, 70)
    rows = slice(27, 70) if side == "left" else slice(0, 43)
    places = {
        "left": {"k_starts": numbers(0, 27), "q_start": numbers(0, -27)},
        "right": {"k_lens": numbers(70, 43), "q_start": 0},
    }[side]
    d_out, d_lse = variant.upstream(call)
    got = variant.run(call | places, upstream=(d_out, d_lse))
    by_itself = variant.run(alone(call, 1, rows, rows), upstream=(d_out[1:, rows], d_lse[1:, :, rows]))
    for label, x in by_itself.items():
        assert torch.equal(got[label][1:, :, rows] if label == "lse" else got[label][1:, rows], x), label
    outside = [row for row in range(70) if row not in range(rows.start, rows.stop)]
    assert not got["out"][1, outside].any()
    assert (got["lse"][1, :, outside] == -torch.inf).all()


@pytest.mark.parametrize("name", ["causal", "window", "prefix", "dropout", "decay", "rope"])
def test_chunks_give_what_the_whole_gives(
    name: str, suites: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = suites[name]
    monkeypatch.setattr("numpy.matmul", module.checks.row_by_row)
    call = make(module, 70, 70)
    whole = module.checks.attention(**call)
    # sums of decays start at the first token of a tile, which may be another one in a chunk
    close = {"rtol": 1e-5, "atol": 1e-5} if name == "decay" else {"rtol": 0, "atol": 0}
    for first, end in ((0, 33), (33, 64), (64, 70)):
        chunk = module.checks.attention(**call | {"q": call["q"][:, first:end], "q_start": first})
        torch.testing.assert_close(chunk, whole[:, first:end], **close)


@pytest.mark.parametrize("axes", ["token", "head, token", "token, kv_head"])
def test_entries_sum_up_what_they_share_each_for_itself(axes: str, tmp_path: Path) -> None:
    name = f"lengths_shared_{axes.replace(', ', '_')}"
    text = "mask: [causal]\nscore: [{expr: 'score + beta[q] - 0.5 * beta[k]'}]\n"
    text += f"inputs: {{beta: {{axes: [{axes}], scan: cumsum, grad: true}}}}\n"
    write(RandomSpec(name, f"name: {name}\n{text}"), tmp_path)
    module = suite(tmp_path, name)
    case = dataclasses.replace(module.SMALL, q_lens=(34, 34), k_lens=(40, 40))
    for places in (
        {"k_starts": numbers(3, 0), "k_lens": numbers(38, 40), "q_start": numbers(-1, 4)},
        {"k_starts": numbers(9, 2), "k_lens": numbers(20, 36), "q_start": numbers(0, 0)},
        {},
    ):
        module.check(case, **places)


@pytest.mark.parametrize("places", [{"q_start": 0}, {"k_lens": numbers(0, 0)}], ids=["padding", "rows without keys"])
@pytest.mark.parametrize("keys", [0, 20])
def test_padding_has_no_sink(places: Call, keys: int, suites: dict[str, ModuleType]) -> None:
    module = suites["sinks"]
    case = dataclasses.replace(module.SMALL, q_lens=(40, 40), k_lens=(keys, keys))
    module.check(case, **places)


@pytest.mark.parametrize("name", SPECS)
def test_all_rows_are_what_no_lengths_say(name: str, suites: dict[str, ModuleType]) -> None:
    module = suites[name]
    variant, call = module.VARIANT, make(module, 40, 70 if name != "dropout" else 40)
    keys = call["k"].shape[1]
    plain, told = variant.run(call), variant.run(call | {"k_starts": numbers(0), "k_lens": numbers(keys)})
    for label, x in plain.items():
        assert torch.equal(x, told[label]), label


def test_a_static_cache_ends_where_it_is_told(causal: ModuleType) -> None:
    attention, call = causal.checks.attention, make(causal, 5, 70)
    expected = attention(**call | {name: call[name][:, :44] for name in "kv"})
    for name in "kv":
        call[name][:, 44:] = torch.nan
    filled = numbers(44, 44)
    assert torch.equal(attention(**call, k_lens=filled), expected)
    filled -= 1  # the same tensor with other numbers, as when a graph runs again
    assert not torch.equal(attention(**call, k_lens=filled), expected)


def test_queries_without_a_start_attend_to_all_that_the_mask_shows(suites: dict[str, ModuleType]) -> None:
    attention, call = suites["full"].checks.attention, make(suites["full"], 40, 20)
    assert attention(**call, k_lens=numbers(20, 7)).any(-1).all()
    assert not attention(**call, k_lens=numbers(20, 7), q_start=0)[1, 7:].any()


@pytest.mark.parametrize(
    "places",
    [
        {"k_lens": numbers(500, -3)},
        {"k_starts": numbers(-5, 90), "k_lens": numbers(20, 50)},
        {"k_starts": numbers(30, 2), "k_lens": numbers(20, 50), "q_start": numbers(2**31 - 1, -(2**31))},
        {"q_start": 2**28},
        {"q_start": torch.tensor([2**40, -(2**40)])},
    ],
    ids=["past the end", "before the first", "ends before it begins", "far away", "further than 32 bits"],
)
def test_rows_that_are_not_there_count_for_none(places: Call, causal: ModuleType) -> None:
    case = dataclasses.replace(causal.SMALL, q_lens=(40, 40), k_lens=(70, 70))
    causal.check(case, **places)


def test_tiles_of_padding_are_not_visited(suites: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch) -> None:
    module = suites["full"]
    kernels, visits = part(module, "kernels"), []
    call = make(module, 128, 128, batch=1)
    for step in ("attend", "accumulate_dq", "accumulate_dkdv"):
        function = getattr(kernels, step)
        counted = lambda *args, f=function, n=step, **more: (visits.append(n), f(*args, **more))[1]  # noqa: E731
        monkeypatch.setattr(kernels, step, counted)

    def counts(**places: Any) -> list[int]:
        visits.clear()
        module.VARIANT.run(call | places)
        heads = call["q"].shape[2]
        return [visits.count(step) // heads for step in ("attend", "accumulate_dq", "accumulate_dkdv")]

    assert counts() == [16, 16, 16]  # of 32 queries and 32 keys
    assert counts(k_lens=numbers(64)) == [8, 8, 8]
    assert counts(k_lens=numbers(64), q_start=0) == [4, 4, 4]
    assert counts(k_starts=numbers(64), q_start=-64) == [4, 4, 4]
    assert counts(k_lens=numbers(0), q_start=0) == [0, 0, 0]


class Reads(TorchDispatchMode):
    """Fails if the host waits for a tensor's values."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func not in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)
        return func(*args, **kwargs or {})


@pytest.mark.parametrize("name", ["causal", "decay", "rope"])
def test_the_host_reads_no_lengths(name: str, suites: dict[str, ModuleType]) -> None:
    module = suites[name]
    call = make(module, 40, 40)
    api = part(module, "api")
    with Reads(), pytest.MonkeyPatch.context() as patch:
        launch = part(module, "launch")
        patch.setattr(launch, "attend", lambda q, *_: (q, q))  # the interpreter's kernels read all that they are given
        api.attention(**call, k_lens=numbers(40, 12), k_starts=numbers(3, 4), q_start=numbers(0, 0))


def test_a_decay_of_all_entries_is_summed_up_by_each(suites: dict[str, ModuleType]) -> None:
    module = suites["decay"]
    case = dataclasses.replace(module.SMALL, q_lens=(40, 40), k_lens=(40, 40))
    decay = module.make_inputs(case)["log_decay"][:1]
    module.check(case, log_decay=decay, k_starts=numbers(3, 9), k_lens=numbers(33, 40))


@pytest.mark.parametrize("given", [True, False])
def test_compiled_calls_follow_their_lengths(given: bool, causal: ModuleType) -> None:
    attention = causal.checks.attention
    compiled = torch.compile(attention, fullgraph=True, dynamic=True, backend="aot_eager")
    for keys in (40, 57):
        call = make(causal, 40, keys)
        places = {"k_lens": numbers(30, 40), "q_start": numbers(0, 3)} if given else {"q_start": keys - 40}
        torch.testing.assert_close(compiled(**call, **places), attention(**call, **places))


@pytest.mark.parametrize(
    ("places", "error", "message"),
    [
        ({"k_lens": [3, 4]}, TypeError, "k_lens: expected a tensor, got list"),
        ({"k_starts": torch.zeros(2)}, TypeError, "k_starts: expected int32, got float32"),
        ({"k_lens": numbers(1, 2).long()}, TypeError, "k_lens: expected int32, got int64"),
        ({"k_lens": numbers(1, 2, 3)}, ValueError, r"k_lens: expected shape \(2,\), got \(3,\)"),
        ({"q_start": numbers(1, 2)[None]}, ValueError, r"q_start: expected shape \(2,\), got \(1, 2\)"),
        ({"q_start": 1.5}, TypeError, "q_start: expected an int, got float"),
        ({"q_start": 2**28 + 1}, ValueError, "q_start: expected at most 268435456, got 268435457"),
    ],
    ids=str,
)
def test_mistakes_are_named(places: Call, error: type[Exception], message: str, causal: ModuleType) -> None:
    with pytest.raises(error, match=f"^{message}"):
        causal.checks.attention(**make(causal, 40, 40), **places)


def test_packed_sequences_have_cuts_instead(tmp_path: Path) -> None:
    write(RandomSpec("lengths_packed", "name: lengths_packed\nlayout: packed\n"), tmp_path)
    module = suite(tmp_path, "lengths_packed")
    with pytest.raises(TypeError, match="unexpected keyword argument 'k_lens'"):
        module.checks.attention(**module.make_inputs(module.SMALL), k_lens=numbers(1, 2))


def test_rows_may_stand_further_apart_than_32_bits_count(causal: ModuleType, tmp_path: Path) -> None:
    call = make(causal, 2, 2, batch=1)
    given = {name: call[name].detach().half() for name in ("q", "k", "v")}
    given["k_lens"] = numbers(2).to(given["k"].device)
    size = 2**31 + 2 * given["k"][0, 0].numel()
    # most of it is never touched, and takes no room on the disk
    far = torch.from_file(str(tmp_path / "far"), shared=True, size=size, dtype=torch.float16)
    if devices.GPU:
        far = torch.empty_like(far, device="cuda")
    places = {}
    for i, name in enumerate("kv"):
        x = given[name]
        places[name] = far.as_strided(x.shape, (0, 2**31, x.shape[3], 1), i * x[0, 0].numel()).copy_(x)
    attention = causal.checks.attention
    assert torch.equal(attention(**given | places), attention(**given))
