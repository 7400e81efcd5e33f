"""Joining the parts of splits: the bits of a row do not depend on the number of splits that a call makes room for."""

from __future__ import annotations

import importlib
import itertools
import math
import threading
import weakref
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from caches import Sequences, Values, expected, package

pytestmark = pytest.mark.slow

SPLIT = 64  # keys, under the interpreter
SPECS = {
    "plain": ("mask: [causal]", {}),
    "sinking": ("mask: [causal]\nsink: true", {"sinks": torch.tensor([0.5, 3.0])}),
    "window": ("mask: [causal, sliding_window: {size: 900}]", {}),
    "first_keys": ("mask: [causal, any: [sliding_window: {size: 300}, expr: 'k < 200']]", {}),
}
# splits in 1, 2, 3, 5, 9 and 33 chunks; the last ones exceed what is joined at a time, and by one program
LENGTHS = [5, 8 * SPLIT, 9 * SPLIT, 17 * SPLIT + 3, 33 * SPLIT, 66 * SPLIT - 1, 258 * SPLIT]


@pytest.fixture(scope="module", params=SPECS)
def variant(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[ModuleType, Values]:
    """A package, and the keywords of its calls."""
    text, given = SPECS[request.param]
    return package(tmp_path_factory.mktemp("decode_join"), f"join_{request.param}", text), given


def test_bits_are_those_of_any_room(variant: tuple[ModuleType, Values]) -> None:
    module, given = variant
    s = Sequences(LENGTHS, [1] * len(LENGTHS), heads=2, kv_heads=1, v_width=64)
    k, v = (torch.zeros(len(LENGTHS), max(LENGTHS), 1, width) for width in (16, 64))
    for b, n in enumerate(LENGTHS):
        k[b, :n], v[b, :n] = s.k[b], s.v[b]
    q, attend = torch.cat(s.q), module.decode.attend_with_cache
    out, lse = attend(q, k, v, s.seq_lens, return_lse=True, **given)
    wanted, wanted_lse = expected(module, s, lambda b: given)
    for b, n in enumerate(LENGTHS):
        torch.testing.assert_close(out[b], wanted[b][0], rtol=1e-4, atol=2e-5)
        torch.testing.assert_close(lse[:, b], wanted_lse[b][:, 0], rtol=1e-4, atol=2e-5)
        for room in {n, min(2 * n, max(LENGTHS))}:
            one = q[b : b + 1], k[b : b + 1], v[b : b + 1], s.seq_lens[b : b + 1]
            found = attend(*one, return_lse=True, max_seqlen_k=room, **given)
            assert torch.equal(found[0][0], out[b]), (n, room)
            assert torch.equal(found[1][:, 0], lse[:, b]), (n, room)


@pytest.mark.parametrize("packed", [False, True])
def test_programs_count_up_to_zero(
    variant: tuple[ModuleType, Values], packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls with other lengths use the same counters, which nothing clears in between."""
    module, given = variant
    runtime = importlib.import_module(f"{module.__name__}.runtime")
    held = torch.zeros(8, dtype=torch.int32)
    monkeypatch.setattr(runtime, "counters", lambda count, device: held[:count] if count else None)
    for lengths in ([100, 0, 8 * SPLIT, 64], [1, 1, 1, 1], [0, 0, 0, 0], [65, 511, 7, 128]):
        # a sequence without new tokens, and rows of no sequence after the last one
        new = [1, 1, 0, 1] if packed else [1] * 4
        s = Sequences(lengths, new, heads=2, kv_heads=1)
        k, v = (torch.zeros(4, 8 * SPLIT, 1, 16) for _ in "kv")
        for b, n in enumerate(lengths):
            k[b, :n], v[b, :n] = s.k[b], s.v[b]
        cuts = s.cuts() if packed else {}
        q = torch.cat([*s.q, *([s.q[0]] * 3 if packed else [])])
        out, lse = module.decode.attend_with_cache(q, k, v, s.seq_lens, return_lse=True, **cuts, **given)
        wanted, wanted_lse = expected(module, s, lambda b: given)
        rows = sum(new)
        torch.testing.assert_close(out[:rows], torch.cat(wanted), rtol=1e-4, atol=2e-5)
        # without keys only the sink is left
        nothing = given.get("sinks", torch.full((2,), -math.inf))[:, None]
        wanted_lse = [x if n else nothing[:, : x.shape[1]] for n, x in zip(lengths, wanted_lse, strict=True)]
        torch.testing.assert_close(lse[:, :rows], torch.cat(wanted_lse, 1), rtol=1e-4, atol=2e-5)
        assert (out[rows:] == 0).all()
        assert (lse[:, rows:] == -math.inf).all()
        assert not held.any()


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The name of a package."""
    return package(tmp_path_factory.mktemp("decode_join_alone"), "join_alone", SPECS["plain"][0]).__name__


@pytest.fixture
def counting(plain: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, SimpleNamespace]:
    """Counters as for a GPU, and the stream and waits that the test controls."""
    runtime = importlib.import_module(f"{plain}.runtime")
    told = SimpleNamespace(stream=1, waited=0)

    def wait() -> None:
        told.waited += 1

    active = SimpleNamespace(get_current_stream=lambda index: told.stream)
    monkeypatch.setattr(runtime, "driver", SimpleNamespace(active=active))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(synchronize=wait))
    return runtime.Counters(torch.device("cpu")), told


def places(x: torch.Tensor) -> set[int]:
    """The addresses of a tensor's elements."""
    return set(range(x.data_ptr(), x.data_ptr() + x.numel() * x.element_size(), x.element_size()))


def test_calls_of_a_stream_count_in_the_same_numbers(counting: tuple[Any, SimpleNamespace]) -> None:
    counters, told = counting
    first = counters.current(100)
    assert counters.current(7) is first
    told.stream = 2
    other = counters.current(100)
    assert not places(first) & places(other)
    told.stream = 1
    assert counters.current(100) is first
    more = counters.current(100_000)
    assert more.numel() >= 100_000
    assert not more.any()
    # both are parts of one block: while a compiler plans memory, a stream's first call allocates none
    assert told.waited == len(counters.blocks) == 1
    assert places(first) | places(other) <= places(counters.blocks[0])


def test_calls_of_graphs_count_in_numbers_of_their_own(counting: tuple[Any, SimpleNamespace]) -> None:
    counters, told = counting
    stream = counters.current(2048)
    taken, memory = places(stream), []
    for _ in range(300):
        # more than exist at any time: between captures, calls make room for others
        for _ in range(8):
            found = counters.take(100)
            assert found.numel() == 100
            assert not found.any()
            assert not places(found) & taken
            taken |= places(found)
            memory.append(weakref.ref(found._base))
        assert counters.current(2048) is stream
    assert told.waited > 1
    # graphs hold only addresses
    assert all(x() is not None for x in memory)
    # none are left: a graph clears counters of its own
    assert counters.take(2**20).tolist() == [0] * 2**20


def test_a_block_is_made_by_a_thread_of_its_own(
    counting: tuple[Any, SimpleNamespace], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a compiler warms up for a CUDA graph, everything that the thread allocates belongs to that graph."""
    counters, _ = counting
    makers, zeros = list[int](), counters.zeros

    def noted(count: int) -> torch.Tensor:
        makers.append(threading.get_ident())
        made: torch.Tensor = zeros(count)
        return made

    monkeypatch.setattr(counters, "zeros", noted)
    counters.current(100)
    assert len(makers) == 1 and makers[0] != threading.get_ident()

    def fails(count: int) -> torch.Tensor:
        raise torch.cuda.OutOfMemoryError("all taken")

    monkeypatch.setattr(counters, "zeros", fails)
    counters.used = counters.SIZE
    with pytest.raises(torch.cuda.OutOfMemoryError):
        counters.make_room()
    monkeypatch.setattr(counters, "zeros", zeros)
    counters.make_room()
    assert len(counters.blocks) == 2 and counters.used == 0


def test_a_capture_before_any_call_clears_its_own(counting: tuple[Any, SimpleNamespace]) -> None:
    counters, _ = counting
    one, other = counters.take(3), counters.take(3)
    assert one.tolist() == other.tolist() == [0, 0, 0]
    assert not places(one) & places(other)


def test_a_program_joins_what_registers_hold(plain: str) -> None:
    launch = importlib.import_module(f"{plain}.decode_launch")
    for heads, width, tokens, splits in itertools.product((1, 6, 8, 128), (16, 64, 128, 512), (1, 4096), (1, 8, 300)):
        q, v = (torch.empty(n, device="meta") for n in ((tokens, heads, 16), (1, 1, 1, width)))
        chunks, columns, together = launch.tile_of_join(splits, q, v)
        assert heads % together == 0
        assert width % columns == 0
        assert chunks * launch.CHUNK >= min(splits, 256)
        assert chunks * columns * together <= 1024
        for warps, rows in itertools.product((1, 2, 4), (1, 5, 16, 17, 64)):
            joined, columns = launch.rows_of_last(splits, rows, v, warps)
            assert bool(joined) <= (splits <= launch.CHUNK and rows <= 16)
            assert rows <= joined <= 16 or not joined
            assert not joined or (width % columns == 0 and joined * columns <= 256 * warps)


def test_where_memory_is_planned_nothing_stays(
    variant: tuple[ModuleType, Values], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second kernel joins the parts, with the same bits; calls before and after are unchanged."""
    module, given = variant
    runtime, asked = importlib.import_module(f"{module.__name__}.runtime"), list[int]()

    def counters(count: int, device: torch.device) -> torch.Tensor | None:
        asked.append(count)
        return torch.zeros(count, dtype=torch.int32) if count else None

    monkeypatch.setattr(runtime, "counters", counters)
    q, (k, v) = torch.randn(2, 1, 2, 16), torch.randn(2, 2, 200, 1, 16)
    lengths = torch.tensor([200, 3], dtype=torch.int32)
    usual = module.decode.attend_with_cache(q, k, v, lengths, **given)
    assert max(asked) == 2
    asked.clear()
    with runtime.planned:
        planned = module.decode.attend_with_cache(q, k, v, lengths, **given)
    assert not any(asked)
    assert torch.equal(usual, planned)
    assert torch.equal(usual, module.decode.attend_with_cache(q, k, v, lengths, **given))
    assert max(asked) == 2
