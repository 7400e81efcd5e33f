"""The code that runs before and after the backward kernel for Hopper GPUs: plain Triton, so the interpreter runs it."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch
from devices import GPU

DEVICE = "cuda" if GPU else "cpu"
sys.path.insert(0, str(Path(__file__).parents[2]))
# of heads, and queries of a tile
SIZES = [(24, 128), (32, 128), (64, 128), (80, 64), (128, 64), (160, 64), (192, 64), (256, 64)]
BATCH, HEADS, ROWS = 2, 3, 150


def piece(size: int) -> int:
    """The columns of a piece of dQ."""
    return 32 if size <= 32 else 64


def as_products_leave(rows: torch.Tensor, piece: int) -> torch.Tensor:
    """Pieces of 64 rows in the order in which threads hold them: groups of 8 columns, of 16 rows, and so on."""
    batch, heads, many, columns = rows.shape
    tiles = rows.reshape(batch, heads, many // 64, 4, 2, 8, columns // piece, piece // 8, 4, 2)
    return tiles.permute(0, 1, 2, 6, 7, 3, 5, 8, 4, 9).contiguous()


@pytest.mark.parametrize(("size", "block_m"), SIZES)
@pytest.mark.parametrize("block_n", [64, 128])
def test_sums_of_dq_become_its_rows(size: int, block_m: int, block_n: int) -> None:
    kernels = importlib.import_module("generated.causal.hopper_backward")
    wide = piece(size)
    tiles, columns = -(-ROWS // block_m), -(-size // wide) * wide
    torch.manual_seed(0)
    sums = torch.randn(BATCH, HEADS, tiles * block_m, columns, device=DEVICE)
    dq = torch.full((BATCH * ROWS * HEADS * size + 64,), 7.0, device=DEVICE)
    counts = torch.full((1 + BATCH * HEADS * tiles,), 2**24 + 3, dtype=torch.int32, device=DEVICE)
    left = as_products_leave(sums, wide)
    if block_n == 128:  # no program reached the first tile of the last head, whose sums may hold anything
        counts[-tiles] = 0
        left.view(BATCH, HEADS, tiles, -1)[-1, -1, 0] = float("nan")
        sums[-1, -1, :block_m] = 0
    place = (left, counts, dq, None, 0.5, ROWS, ROWS, HEADS)
    kernels.finish[BATCH * HEADS, tiles](*place, D=size, PIECE=wide, BLOCK_M=block_m, BLOCK_N=block_n, TILE_AXIS=1)
    found = dq[:-64].view(BATCH, ROWS, HEADS, size)
    assert torch.equal(found, 0.5 * sums[:, :, :ROWS, :size].transpose(1, 2))
    assert torch.equal(dq[-64:], torch.full_like(dq[-64:], 7.0))  # nothing is written after it


@pytest.mark.parametrize(("size", "block_m"), SIZES)
@pytest.mark.parametrize("block_n", [64, 128])
def test_sums_of_dq_or_counts_of_programs_begin_as_zero(size: int, block_m: int, block_n: int) -> None:
    kernels, runtime = (importlib.import_module(f"generated.causal.{name}") for name in ("hopper_backward", "runtime"))
    wide = piece(size)
    tiles, columns = -(-ROWS // block_m), -(-size // wide) * wide
    out, dout = (torch.randn(BATCH, ROWS, HEADS, 64, device=DEVICE) for _ in range(2))
    sums = torch.full((BATCH * HEADS * tiles * block_m * columns + 64,), 7.0, device=DEVICE)
    delta = torch.empty(BATCH, HEADS, ROWS, device=DEVICE)
    sources = (runtime.tile_source(x, block_m) for x in (out, dout))
    counts = torch.full((2 + BATCH * HEADS * tiles,), 5, dtype=torch.int32, device=DEVICE)
    given = (*sources, sums, counts, None, delta, None, ROWS, ROWS, HEADS)
    told = {"D": size, "PIECE": wide, "BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_DV": 64, "TILE_AXIS": 1}
    kernels.prepare[BATCH * HEADS, tiles](*given, **told)
    begun, kept = (counts[1:-1], sums) if block_n == 128 else (sums[:-64], counts[1:])
    assert counts[0] == 0 and not begun.any() and counts[-1] == 5
    assert (kept == kept[-1]).all() and sums[-1] == 7
    torch.testing.assert_close(delta, (out * dout).sum(-1).transpose(1, 2))
