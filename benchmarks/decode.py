"""Times decoding on the current GPU, next to a copy and PyTorch's SDPA. Needs only torch and triton.

python benchmarks/decode.py                 caches, pages, drafted tokens, latent heads, lengths, variants, host time
python benchmarks/decode.py --sweep         tiles and splits for one query, for the tables of plan/splits.py
python benchmarks/decode.py --latent        only latent heads; with --sweep their tiles and splits
python benchmarks/decode.py --json FILE     also writes the numbers

All contenders of a line are timed in turns, as replays of CUDA graphs; a line has the medians of their rounds.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from triton.runtime.errors import OutOfResources

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "generator")]

from attnforge.gpu import targets  # noqa: E402
from attnforge.gpu.turns import turns  # noqa: E402

Call = Callable[[], Any]
ROUNDS, LONG = 7, 0.015  # rounds per contender, seconds per round
PEERS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
SHAPES = (  # sequences, query heads, key heads, keys, head size
    (1, 32, 8, 1024, 128),
    (1, 32, 8, 131072, 128),
    (8, 32, 8, 2048, 128),
    (8, 32, 8, 8192, 128),
    (8, 32, 8, 32768, 128),
    (32, 32, 8, 4096, 128),
    (4, 16, 16, 16384, 128),
    (64, 64, 8, 2048, 64),
    (8, 16, 8, 8192, 256),
)
DRAFTED = (  # the same, and new tokens per sequence
    (1, 32, 8, 4096, 128, 8),
    (8, 32, 8, 8192, 128, 5),
    (32, 32, 8, 4096, 128, 8),
    (64, 64, 8, 2048, 64, 3),
    (8, 16, 8, 8192, 256, 16),
)
TILES = ((32, 64, 128), (2, 4), (2, 3, 4), (128, 256, 512, 1024))  # keys per tile, warps, stages, keys per split
LATENT = "deepseek_mla_absorbed"
# sequences, query heads, keys
LATENT_SHAPES = ((8, 128, 8192), (1, 128, 65536), (32, 128, 4096), (8, 32, 8192), (8, 16, 8192))
# keys per tile, warps, stages: for programs of 64 rows if True, of 16 if False; below, keys per split
LATENT_TILES = {
    True: ((32, 8, 3), (32, 8, 4), (64, 8, 2), (64, 16, 2), (32, 16, 3), (16, 8, 4), (128, 8, 1)),
    False: ((32, 4, 3), (32, 4, 4), (16, 4, 4), (16, 4, 6), (32, 8, 3), (64, 8, 3)),
}
LATENT_SPLITS = (256, 512, 1024, 2048)
VARIANTS = (
    *("causal", "softcap", "alibi", "log_decay", "gpt_oss", "llama3"),
    *("streaming_llm", "gpt_oss_window", "sliding_window"),
)


def decoding(name: str) -> Any:
    """The decoding module of a rendered variant."""
    return importlib.import_module(f"generated.{name}.decode")


def graph(call: Call) -> Call:
    """The replay of a call's CUDA graph, captured after warm-up runs."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    found = torch.cuda.CUDAGraph()
    with torch.cuda.graph(found):
        call()
    return found.replay


def in_turns(calls: dict[str, Call]) -> dict[str, float]:
    """Median milliseconds of each call; calls that cannot run are left out."""
    ready, times = dict[str, tuple[Call, int]](), dict[str, list[float]]()
    for name, call in calls.items():
        try:
            replay = graph(call)
        except (RuntimeError, ValueError) as error:
            print(f"  {name}: {str(error).splitlines()[0][:90]}", file=sys.stderr)
            torch.cuda.synchronize()
            continue
        ready[name] = replay, max(5, int(LONG * 1000 / max(clock(replay, 5), 1e-3)))
    for i in range(ROUNDS):
        for name in turns([*ready], i):
            times.setdefault(name, []).append(clock(*ready[name]))
    return {name: statistics.median(found) for name, found in times.items()}


def clock(call: Call, count: int) -> float:
    """Milliseconds per call, as the mean of `count` calls."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(count):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / count


def bandwidth() -> float:
    """Bytes per millisecond that a copy of 1 GiB reads and writes."""
    x = torch.empty(1 << 29, device="cuda", dtype=torch.bfloat16)
    y = torch.empty_like(x)
    return 2 * x.nbytes / min(clock(lambda: y.copy_(x), 10) for _ in range(5))


def paged(k: torch.Tensor, v: torch.Tensor, page: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same keys and values in pages in random order, and the page table."""
    sequences, each = k.shape[0], k.shape[1] // page
    order = torch.randperm(sequences * each, device="cuda")
    pages = [torch.empty(sequences * each, page, *x.shape[2:], device="cuda", dtype=x.dtype) for x in (k, v)]
    for to, x in zip(pages, (k, v), strict=True):
        to[order] = x.reshape(-1, page, *x.shape[2:])
    return *pages, order.reshape(sequences, each).int()


def tensors(b: int, hq: int, hkv: int, n: int, d: int, new: int = 1) -> tuple[torch.Tensor, ...]:
    """Queries, keys, values and lengths."""
    q = torch.randn(b, new, hq, d, device="cuda", dtype=torch.bfloat16)
    k, v = (torch.randn(b, n, hkv, d, device="cuda", dtype=torch.bfloat16) for _ in "kv")
    return q, k, v, torch.full((b,), n, device="cuda", dtype=torch.int32)


def ours(name: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor, **given: Any) -> Call:
    """A call with a workspace and an output allocated in advance."""
    module = decoding(name)
    most = k.shape[1] * (given["page_table"].shape[1] if given.get("page_table") is not None else 1)
    sized = {"max_seqlen_k": most, "split_size": given.pop("split_size", None)}
    size = module.workspace_size(q, k, v, max_seqlen_q=q.shape[1], **sized)
    out = q.new_empty(*q.shape[:-1], v.shape[-1])
    fixed = {"workspace": q.new_empty(size, dtype=torch.float32), "out": out, **sized}
    return lambda: module.attend_with_cache(q, k, v, lengths, **fixed, **given)


def peer(backend: SDPBackend, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Call:
    """Attention of one query to all keys by PyTorch."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))

    def call() -> torch.Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, enable_gqa=q.shape[1] != k.shape[1])

    return call


def over_caches(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor, split_size: int
) -> dict[str, Call]:
    """Calls over the same keys and values in caches of each kind, with default splits and with the given size."""
    held: dict[str, tuple[Sequence[torch.Tensor], dict[str, torch.Tensor]]] = {"dense": ((k, v), {})}
    for page in (16, 128):
        *rows, table = paged(k, v, page)
        held[f"page {page}"] = rows, {"page_table": table}
    if torch.cuda.get_device_capability() >= (8, 9):
        scales = dict.fromkeys(("k_scale", "v_scale"), torch.ones(k.shape[2], device="cuda"))
        held["float8"] = [x.to(torch.float8_e4m3fn) for x in (k, v)], scales
    return {
        f"{name}{f' by {split}' if split else ''}": ours("causal", q, *cache, lengths, split_size=split, **given)
        for split in (None, split_size)
        for name, (cache, given) in held.items()
    }


def long_caches(limit: float) -> list[dict[str, Any]]:
    """One query over caches of many sizes."""
    found = []
    for shape in SHAPES:
        q, k, v, lengths = tensors(*shape)
        calls = over_caches(q, k, v, lengths, 1024)
        calls |= {name: peer(backend, q, k, v) for name, backend in PEERS.items()}
        times = in_turns(calls)
        least = 2 * k.nbytes / limit
        b, hq, hkv, n, d = shape
        print(f"B{b} {hq}:{hkv} D{d} keys {n}, {2 * k.nbytes >> 20} MiB, at copy bandwidth {least:.4f} ms")
        print("   " + ", ".join(f"{name} {x:.4f} ({least / x:.0%})" for name, x in times.items()), flush=True)
        found.append({"shape": shape, "limit": least, **times})
    return found


def drafted() -> list[dict[str, Any]]:
    """Several new tokens per sequence, as verified in speculative decoding."""
    found = []
    for *shape, new in DRAFTED:
        times = in_turns(over_caches(*tensors(*shape, new), 512))
        b, hq, hkv, n, d = shape
        told = ", ".join(f"{name} {x:.4f}" for name, x in times.items())
        print(f"B{b} {hq}:{hkv} D{d} keys {n}, {new} new tokens: {told}", flush=True)
        found.append({"shape": (*shape, new), **times})
    return found


def latent_tensors(b: int, hq: int, n: int) -> tuple[torch.Tensor, ...]:
    """Queries, keys, values (a view of the first 512 columns of the keys), and lengths."""
    q = torch.randn(b, 1, hq, 576, device="cuda", dtype=torch.bfloat16)
    k = torch.randn(b, n, 1, 576, device="cuda", dtype=torch.bfloat16)
    return q, k, k[..., :512], torch.full((b,), n, device="cuda", dtype=torch.int32)


def latent_pages(k: torch.Tensor, page: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same rows in pages in random order, values as a view of their first columns, and the page table."""
    pages, _, table = paged(k, k[..., :1], page)
    return pages, pages[..., :512], table


def portable(call: Call) -> Call:
    """A latent call with the portable kernel; known launches are set aside, since these fix the kernel of a shape."""
    runtime = importlib.import_module(f"generated.{LATENT}.runtime")
    known = decoding(LATENT).CALLS, runtime.LaunchCache.known

    def asked() -> Any:
        before = [dict(x) for x in known]
        for x in known:
            x.clear()
        with targets.asked("portable"):
            call()
        for x, values in zip(known, before, strict=True):
            x.clear()
            x.update(values)

    return asked


def latent_heads(limit: float) -> list[dict[str, Any]]:
    """One query of absorbed latent attention over long caches: its share of the copy bandwidth, and its TFLOP/s."""
    found = []
    for b, hq, n in LATENT_SHAPES:
        q, k, v, lengths = latent_tensors(b, hq, n)
        calls = {"dense": ours(LATENT, q, k, v, lengths), "copied values": ours(LATENT, q, k, v.contiguous(), lengths)}
        for page in (16, 64):
            pk, pv, table = latent_pages(k, page)
            calls[f"page {page}"] = ours(LATENT, q, pk, pv, lengths, page_table=table)
        if torch.cuda.get_device_capability() >= (8, 9):
            scales = dict.fromkeys(("k_scale", "v_scale"), torch.ones((), device="cuda"))
            short = k.to(torch.float8_e4m3fn)
            calls["float8"] = ours(LATENT, q, short, short[..., :512], lengths, **scales)
        if torch.cuda.get_device_capability() == (9, 0):
            calls |= {f"{name} portable": portable(calls[name]) for name in ("dense", "page 64", "float8")}
        times = in_turns(calls)
        least, work = k.nbytes / limit, 2 * b * hq * n * (576 + 512)
        print(f"latent B{b} {hq} heads, keys {n}, {k.nbytes >> 20} MiB, at copy bandwidth {least:.4f} ms")
        told = (f"{name} {x:.4f} ({least / x:.0%}, {work / x / 1e9:.0f} TFLOP/s)" for name, x in times.items())
        print("   " + ", ".join(told), flush=True)
        found.append({"shape": (b, hq, n), "limit": least, "work": work, **times})
    return found


def mixed_lengths() -> list[dict[str, Any]]:
    """Sequences of mixed lengths compared with equal lengths of the same total."""
    q, k, v, equal = tensors(32, 32, 8, 16384, 128)
    mixed = torch.tensor([16384] * 4 + [8192] * 4 + [1024] * 16 + [512] * 8, device="cuda", dtype=torch.int32)
    equal.fill_(int(mixed.sum()) // 32)
    times = in_turns({"equal": ours("causal", q, k, v, equal), "mixed": ours("causal", q, k, v, mixed)})
    print(f"mixed lengths {times['mixed']:.4f}, equal ones {times['equal']:.4f}: {times['mixed'] / times['equal']:.3f}")
    return [times]


def variants() -> list[dict[str, Any]]:
    """Other variants compared with the plain one, and draft tokens of a tree."""
    q, k, v, lengths = tensors(8, 32, 8, 32768, 128)
    turned = torch.randn(32768, 64, device="cuda")
    angles = {"cos": turned.cos(), "sin": turned.sin()}
    sinks = {"sinks": torch.zeros(32, device="cuda")}
    given = {"gpt_oss": angles | sinks, "gpt_oss_window": angles | sinks, "llama3": angles}
    given["log_decay"] = {"log_decay": F.logsigmoid(torch.randn(8, 32768, 32, device="cuda") + 5)}
    calls = {name: ours(name, q, k, v, lengths, **given.get(name, {})) for name in VARIANTS}
    tree = torch.ones(8, 64, 64, device="cuda", dtype=torch.bool).tril()
    drafts = torch.randn(8, 64, 32, 128, device="cuda", dtype=torch.bfloat16)
    calls["64 drafted"] = ours("tree_decoding", drafts, k, v, lengths, tree_mask=tree, **angles)
    calls["64 causal"] = ours("causal", drafts, k, v, lengths)
    times = in_turns(calls)
    print("32,768 keys: " + ", ".join(f"{name} {x:.4f}" for name, x in times.items()))
    q, k, v, lengths = tensors(8, 32, 8, 131072, 128)
    short = [x[:, :1024].contiguous() for x in (k, v)]
    window = in_turns(
        {
            "window 1024 of 131072": ours("sliding_window", q, k, v, lengths),
            "1024 keys": ours("sliding_window", q, *short, lengths.clamp(max=1024)),
        }
    )
    print(", ".join(f"{name} {x:.4f}" for name, x in window.items()), flush=True)
    return [times, window]


def host_time() -> list[dict[str, Any]]:
    """Microseconds of host time per eager call."""
    found = {}
    for name, shape in (("dense", (1, 32, 8, 64, 128)), ("paged", (1, 32, 8, 64, 128))):
        q, k, v, lengths = tensors(*shape)
        given = {}
        if name == "paged":
            k, v, given["page_table"] = paged(k, v, 16)
        call = ours("causal", q, k, v, lengths, **given)
        for _ in range(20):
            call()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(500):
            call()
        found[name] = (time.perf_counter() - begin) / 500 * 1e6
        torch.cuda.synchronize()
    print("host time of an eager call: " + ", ".join(f"{name} {x:.1f} us" for name, x in found.items()), flush=True)
    return [found]


def sweep(limit: float) -> list[dict[str, Any]]:
    """Tiles and splits for one query, best first."""
    found = []
    for shape in SHAPES:
        q, k, v, lengths = tensors(*shape)
        pk, pv, table = paged(k, v, 16)
        calls = {"dense": lambda x=(q, k, v, lengths): ours("causal", *x)}
        calls["page 16"] = lambda x=(q, pk, pv, lengths), t=table: ours("causal", *x, page_table=t)
        tiles = [tile for tile in itertools.product(*TILES) if tile[0] * shape[-1] * 4 * tile[2] <= 200_000]
        found += swept("causal", shape, max(64, shape[-1]), tiles, calls, 2 * k.nbytes / limit)
    return found


def sweep_latent(limit: float) -> list[dict[str, Any]]:
    """The same for latent heads."""
    found = []
    for shape in LATENT_SHAPES:
        q, k, v, lengths = latent_tensors(*shape)
        pk, pv, table = latent_pages(k, 64)
        calls = {"dense": lambda x=(q, k, v, lengths): ours(LATENT, *x)}
        calls["page 64"] = lambda x=(q, pk, pv, lengths), t=table: ours(LATENT, *x, page_table=t)
        tiles = [(*tile, split) for tile in LATENT_TILES[shape[1] > 16] for split in LATENT_SPLITS]
        found += swept(LATENT, shape, 576, tiles, calls, k.nbytes / limit)
    return found


def swept(
    name: str,
    shape: tuple[int, ...],
    size: int,
    tiles: Sequence[tuple[int, ...]],
    calls: dict[str, Callable[[], Call]],
    least: float,
) -> list[dict[str, Any]]:
    """Times of calls of a variant with each of the tiles, best first; `size` is the row in the table of tiles."""
    launch = importlib.import_module(f"generated.{name}.decode_launch")
    runtime = importlib.import_module(f"generated.{name}.runtime")
    runtime.launch_with_room = lambda start, stages: start(stages)  # without the retry with fewer stages
    lines = []
    for tile in tiles:
        keys, warps, stages, split = tile
        launch.SPLITS_16BIT[size] = ((keys, ((warps, stages), (warps, stages), 1), split),) * 3
        decoding(name).CALLS.clear()
        runtime.LaunchCache.known.clear()
        try:
            # the table's tiles are those of the portable kernels
            with targets.asked("portable"):
                times = {way: clock(graph(made()), 20) for way, made in calls.items()}
        except (RuntimeError, OutOfResources) as error:
            print(f"  {tile}: {str(error).splitlines()[0][:90]}", file=sys.stderr)
            continue
        lines.append({"shape": shape, "tile": tile, **times})
    lines.sort(key=lambda line: line["dense"])
    print(f"{shape}, limit {least:.4f}")
    for line in lines[:8]:
        print(f"   {line['tile']}: " + ", ".join(f"{way} {line[way]:.4f}" for way in calls), flush=True)
    return lines


def main() -> None:
    """Runs the benchmarks that the arguments select."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--latent", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.manual_seed(0)
    limit = bandwidth()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, copy at {limit / 1e9:.2f} TB/s", flush=True)
    if given.sweep:
        found = {"sweep": (sweep_latent if given.latent else sweep)(limit)}
    elif given.latent:
        found = {"latent": latent_heads(limit)}
    else:
        found = {"caches": long_caches(limit), "drafted": drafted(), "latent": latent_heads(limit)}
        found |= {"lengths": mixed_lengths(), "variants": variants(), "host": host_time()}
    if given.json:
        given.json.write_text(json.dumps({"copy": limit, **found}, indent=1))


if __name__ == "__main__":
    main()
