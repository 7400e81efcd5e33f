"""Running sums over a cache at the sizes of real models, on a GPU: compared with the reference in float64."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from caches import Cache, Sequences, Values, expected
from devices import GPU
from test_decode_on_gpu import HEADS, KV_HEADS, LENGTHS, check, load

pytestmark = pytest.mark.skipif(not GPU, reason="needs a GPU")


def decays(s: Sequences, share: float = 0.002) -> list[torch.Tensor]:
    """Decays of each token and head; some begin documents."""
    rows = [torch.nn.functional.logsigmoid(torch.randn(n, s.heads, device="cuda") + 5) for n in s.lengths]
    for x in rows:
        x[torch.rand(x.shape, device="cuda") < share] = -math.inf
    return rows


def given(s: Sequences, c: Cache, rows: list[torch.Tensor]) -> tuple[Values, Callable[[int], Values]]:
    """Keywords of a call, and those of each of its sequences."""
    return {"log_decay": c.stored(rows)}, lambda b: {"log_decay": rows[b][None]}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("page", [0, 1, 16, 256])
@pytest.mark.parametrize("width", [64, 128, 256])
def test_one_new_token(width: int, page: int, dtype: torch.dtype) -> None:
    s = Sequences(LENGTHS, [1] * len(LENGTHS), HEADS, KV_HEADS, width, device="cuda", dtype=dtype)
    module = load("log_decay")
    cache = Cache(s, page or 16, paged=bool(page)).fill(module.decode.append)
    values, alone = given(s, cache, decays(s))
    more = {**values, **cache.pages(), "return_lse": True}
    for split_size in (None, 1024):
        out, lse = module.decode.attend_with_cache(
            torch.cat(s.q), cache.k, cache.v, s.seq_lens, **more, split_size=split_size
        )
        wanted, wanted_lse = expected(module, s, alone)
        check(list(out.split(1)), wanted, 6e-3)
        check(list(lse.split(1, 1)), wanted_lse, 1e-3)


@pytest.mark.parametrize("new", [5, 64, 300])
def test_new_tokens(new: int) -> None:
    lengths = [5000, 700, 129, 300]
    s = Sequences(lengths, [min(new, n) for n in lengths], HEADS, KV_HEADS, 128, device="cuda", dtype=torch.bfloat16)
    module = load("log_decay")
    cache = Cache(s).fill(module.decode.append)
    values, alone = given(s, cache, decays(s))
    more = values | cache.pages() | s.cuts()
    out, lse = module.decode.attend_with_cache(torch.cat(s.q), cache.k, cache.v, s.seq_lens, return_lse=True, **more)
    wanted, wanted_lse = expected(module, s, alone)
    check(list(out.split(s.new)), wanted, 6e-3)
    check(list(lse.split(s.new, 1)), wanted_lse, 5e-3)


@pytest.mark.parametrize("page", [1, 16, 128])
def test_bits_hang_on_neither_pages_nor_the_batch(page: int) -> None:
    s = Sequences(LENGTHS, [1] * len(LENGTHS), HEADS, KV_HEADS, 128, device="cuda", dtype=torch.bfloat16)
    decoding = load("log_decay").decode
    cache, rows = Cache(s, page).fill(decoding.append), decays(s)
    values = cache.stored(rows)
    out = decoding.attend_with_cache(torch.cat(s.q), cache.k, cache.v, s.seq_lens, log_decay=values, **cache.pages())
    for b, n in enumerate(LENGTHS):
        if n:
            k, v, x = (one[b][None] for one in (s.k, s.v, rows))
            alone = decoding.attend_with_cache(s.q[b], k, v, s.seq_lens[b : b + 1], log_decay=x)
            assert torch.equal(alone[0], out[b])


def test_a_graph_replayed_with_other_lengths_and_values() -> None:
    s = Sequences([4000, 3000, 100, 7], [1] * 4, HEADS, KV_HEADS, 128, device="cuda", dtype=torch.bfloat16)
    decoding = load("log_decay").decode
    cache = Cache(s, room=4096).fill(decoding.append)
    q, lengths, table = torch.cat(s.q), s.seq_lens, cache.table
    assert table is not None
    size = decoding.workspace_size(q, cache.k, cache.v, max_seqlen_q=1, max_seqlen_k=4096)
    workspace, values = q.new_full((size,), math.nan, dtype=torch.float32), cache.stored(decays(s))
    fixed = {"page_table": table.int().cuda(), "max_seqlen_k": 4096, "workspace": workspace}
    out = torch.empty_like(q)

    def call() -> torch.Tensor:
        found: torch.Tensor = decoding.attend_with_cache(
            q, cache.k, cache.v, lengths, log_decay=values, out=out, **fixed
        )
        return found

    with torch.cuda.stream(torch.cuda.Stream()):
        call()
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    torch.cuda.set_sync_debug_mode("error")
    try:
        call()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    for others in ([4000, 3000, 100, 7], [100, 0, 99, 1], [3999, 3000, 2, 0], [0, 0, 0, 0]):
        lengths.copy_(torch.tensor(others))
        values.copy_(cache.stored(decays(s, 0.01)))
        workspace.fill_(math.nan)
        graph.replay()
        replayed = out.clone()
        workspace.fill_(math.nan)
        assert torch.equal(replayed, call())
        assert not replayed.isnan().any()
        assert all((replayed[b] == 0).all() for b, n in enumerate(others) if n == 0)
