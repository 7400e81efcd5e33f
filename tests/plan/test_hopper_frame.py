"""What runs before and after the backward kernel for Hopper GPUs: plain Triton, so the interpreter runs it."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch
from devices import GPU

DEVICE = "cuda" if GPU else "cpu"
sys.path.insert(0, str(Path(__file__).parents[2]))
SIZES = [(64, 128), (80, 64), (128, 64), (160, 64), (192, 64), (256, 64)]  # of heads, and queries of a tile
BATCH, HEADS, ROWS = 2, 3, 150


def as_products_leave(rows: torch.Tensor) -> torch.Tensor:
    """Tiles of [64, 64] values in the order of threads: groups of 8 columns, of 16 rows, and so on."""
    batch, heads, many, columns = rows.shape
    tiles = rows.reshape(batch, heads, many // 64, 4, 2, 8, columns // 64, 8, 4, 2)
    return tiles.permute(0, 1, 2, 6, 7, 3, 5, 8, 4, 9).contiguous()


@pytest.mark.parametrize(("size", "block_m"), SIZES)
def test_sums_of_dq_become_its_rows(size: int, block_m: int) -> None:
    kernels = importlib.import_module("generated.causal.hopper_backward")
    tiles, columns = -(-ROWS // block_m), -(-size // 64) * 64
    torch.manual_seed(0)
    sums = torch.randn(BATCH, HEADS, tiles * block_m, columns, device=DEVICE)
    dq = torch.full((BATCH * ROWS * HEADS * size + 64,), 7.0, device=DEVICE)
    place = (as_products_leave(sums), dq, 0.5, ROWS, HEADS)
    kernels.finish[BATCH * HEADS, tiles](*place, D=size, BLOCK_M=block_m, TILE_AXIS=1)
    found = dq[:-64].view(BATCH, ROWS, HEADS, size)
    assert torch.equal(found, 0.5 * sums[:, :, :ROWS, :size].transpose(1, 2))
    assert torch.equal(dq[-64:], torch.full_like(dq[-64:], 7.0))  # nothing is written behind it


@pytest.mark.parametrize(("size", "block_m"), SIZES)
def test_all_that_dq_is_added_up_in_begins_as_zero(size: int, block_m: int) -> None:
    kernels, runtime = (importlib.import_module(f"generated.causal.{name}") for name in ("hopper_backward", "runtime"))
    tiles, columns = -(-ROWS // block_m), -(-size // 64) * 64
    out, dout = (torch.randn(BATCH, ROWS, HEADS, 64, device=DEVICE) for _ in range(2))
    sums = torch.full((BATCH * HEADS * tiles * block_m * columns + 64,), 7.0, device=DEVICE)
    delta = torch.empty(BATCH, HEADS, ROWS, device=DEVICE)
    sources = (runtime.tile_source(x, block_m) for x in (out, dout))
    counted = torch.full((1,), 5, dtype=torch.int32, device=DEVICE)
    given = (*sources, sums, counted, None, delta, ROWS, HEADS)
    kernels.prepare[BATCH * HEADS, tiles](*given, D=size, BLOCK_M=block_m, BLOCK_DV=64, TILE_AXIS=1)
    assert not counted.any() and not sums[:-64].any() and torch.equal(sums[-64:], torch.full_like(sums[-64:], 7.0))
    torch.testing.assert_close(delta, (out * dout).sum(-1).transpose(1, 2))
