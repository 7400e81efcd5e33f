"""Times variants beside SDPA, FlexAttention and naive PyTorch on one GPU, and measures their memory.

python benchmarks/speed.py [--out FILE.json] [--dims 64,128] [--lengths 1024,4096,16384]
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import triton
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from generated.causal import attention

TOKENS, WIDTH = 16_384, 2048


def causal(b, h, q, k):
    """FlexAttention's way to say it."""
    return q >= k


def contenders(q, k, v) -> dict[str, Callable[[], torch.Tensor]]:
    """What is timed, by name, on the same tensors; peers take (B, H, T, D)."""
    heads_first = [x.transpose(1, 2) for x in (q, k, v)]
    found: dict[str, Callable[[], torch.Tensor]] = {"attnforge": lambda: attention(q, k, v)}
    sdpa = functools.partial(torch.nn.functional.scaled_dot_product_attention, *heads_first, is_causal=True)

    def backend(kind: SDPBackend) -> torch.Tensor:
        with sdpa_kernel(kind):
            return sdpa().transpose(1, 2)

    found["sdpa flash"] = functools.partial(backend, SDPBackend.FLASH_ATTENTION)
    found["sdpa cudnn"] = functools.partial(backend, SDPBackend.CUDNN_ATTENTION)
    T = q.shape[1]
    block_mask = create_block_mask(causal, None, None, T, T)
    compiled = torch.compile(flex_attention, dynamic=False)
    found["flex"] = lambda: compiled(*heads_first, block_mask=block_mask).transpose(1, 2)
    if T <= 4096:
        mask = torch.ones(T, T, dtype=torch.bool, device=q.device).tril()

        def naive() -> torch.Tensor:
            x, y, z = heads_first
            score = x @ y.transpose(-1, -2) / math.sqrt(x.shape[-1])
            return (score.masked_fill(~mask, -math.inf).softmax(-1) @ z).transpose(1, 2)

        found["naive"] = naive
    return found


def peak(run: Callable[[], object]) -> float:
    """MiB that a call needs at its peak beyond what is there before it."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def measure(T: int, D: int) -> list[dict[str, object]]:
    """One length and head size: all contenders, one after the other."""
    B, H = TOKENS // T, WIDTH // D
    make = functools.partial(torch.randn, B, T, H, D, device="cuda", dtype=torch.bfloat16)
    q, k, v = (make().requires_grad_() for _ in range(3))
    dout = make()
    pairs = B * H * T * (T + 1) / 2
    rows: list[dict[str, object]] = []
    gold = None
    for name, run in contenders(q, k, v).items():
        out = run()
        gold = out.detach() if gold is None else gold
        assert (out - gold).abs().max() < 0.05, name

        def backward(out: torch.Tensor = out) -> None:
            torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)

        def both(run: Callable[[], torch.Tensor] = run) -> None:
            torch.autograd.grad(run(), (q, k, v), dout)

        time = functools.partial(triton.testing.do_bench, warmup=20, rep=100, return_mode="median")
        forward_ms, backward_ms = time(run), time(backward)
        row: dict[str, object] = {"name": name, "T": T, "D": D, "forward_ms": forward_ms, "backward_ms": backward_ms}
        row["forward_tflops"], row["backward_tflops"] = (
            4 * pairs * D / ms / 1e9 for ms in (forward_ms, backward_ms / 2.5)
        )
        row["forward_mib"], row["both_mib"] = peak(run), peak(both)
        rows.append(row)
    return rows


def main() -> None:
    """Measures and prints a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--dims", default="64,128")
    parser.add_argument("--lengths", default="1024,4096,16384")
    given = parser.parse_args()
    rows: list[dict[str, object]] = []
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}, causal, bf16")
    columns = ("forward_ms", "backward_ms", "forward_tflops", "backward_tflops", "forward_mib", "both_mib")
    print(f"{'':12}{'D':>5}{'T':>7}" + "".join(f"{column:>17}" for column in columns))
    for D in map(int, given.dims.split(",")):
        for T in map(int, given.lengths.split(",")):
            torch.manual_seed(0)
            for row in measure(T, D):
                rows.append(row)
                print(f"{row['name']:12}{D:5}{T:7}" + "".join(f"{row[column]:17.3f}" for column in columns), flush=True)
            torch.cuda.empty_cache()
    if given.out:
        given.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
