"""Latent heads decode by the kernel for Hopper GPUs, run without one: results in any order of events, and faults."""

from __future__ import annotations

import itertools
from pathlib import Path

import devices
import pytest
import torch
from caches import Cache, Sequences, expected
from emulation.package import Package
from test_emulated import CLOSE, apart, shown
from test_hopper_faults import faulty

pytestmark = pytest.mark.skipif(devices.GPU, reason="kernels run on the GPU")

LATENT = Path(__file__).parents[2] / "generated" / "deepseek_mla_absorbed"
LENGTHS = (300, 1, 0, 63, 64, 65, 129)


def put(k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slots: torch.Tensor) -> None:
    """Stores keys, whose first columns are the values."""
    k_cache[slots // k_cache.shape[1], slots % k_cache.shape[1]] = k


def distance(
    package: Package, page: int, split: int, lengths: tuple[int, ...] = LENGTHS, new: int = 3, heads: int = 4
) -> float:
    """How far new tokens' rows and LSE are from the reference's, as a part of these; 0 stands for no pages."""
    shape = {"width": 576, "v_width": 512, "latent": True, "dtype": torch.float16}
    s = Sequences(lengths, [min(new, n) for n in lengths], heads, 1, **shape)
    cache = Cache(s, page or 16, paged=bool(page)).fill(put)
    q, given = torch.cat(s.q), {**cache.pages(), **s.cuts(), "return_lse": True, "split_size": split}
    found = package.attend_with_cache(q, cache.k, cache.v, s.seq_lens, **given)
    s.q, s.k, s.v = ([x.float() for x in rows] for rows in (s.q, s.k, s.v))
    out, lse = expected(package.module, s)
    assert package.emulation.launched[-2:] == ["decode_hopper.attend_split", "decode_kernels.join_splits"]
    return max(itertools.starmap(apart, zip(found, (torch.cat(out), torch.cat(lse, 1)), strict=True)))


@pytest.mark.parametrize("page", [0, 8, 24, 64, 256])
@pytest.mark.parametrize("split", [128, 1024])
@pytest.mark.parametrize("new", [1, 3])
def test_new_tokens_see_their_keys(page: int, split: int, new: int) -> None:
    """Rows of nobody are NaN, and pages behind the last key are nobody's."""
    for seed in range(2):
        assert distance(Package(LATENT, seed), page, split, new=new) < CLOSE


def test_rows_fill_more_than_a_tile() -> None:
    assert distance(Package(LATENT), 16, 128, (70, 5), heads=40) < CLOSE


# file, right, wrong
FAULTS = {
    "keys copied over those that are read": ("mbarrier.wait(k_free.index(place), phase ^ 1)", "stage = stage"),
    "keys read before they have come": ("mbarrier.wait(k_ready.index(stage * 2 + 1), phase)", "stage = stage"),
    "values read before they have come": ("mbarrier.wait(k_ready.index(place), at // STAGES & 1)", "turn = turn"),
    "weights read before they are there": ("mbarrier.wait(p_ready.index(turn), at >> 1 & 1)", "turn = turn"),
    "shares of rows read before they are there": ("mbarrier.wait(shares_ready, 0)", "at = at"),
    "values of the other half": ("at % STAGES * 2 + WORKER, at & 1", "at % STAGES * 2 + 1 - WORKER, at & 1"),
    "strips from the last one": ("(place * 4 + strip) * COUNT + i", "(place * 4 + 3 - strip) * COUNT + i"),
    "boxes from the last one": ("rest_boxes.index(stage * COUNT + i)", "rest_boxes.index((stage + 1) * COUNT - 1 - i)"),
    "what nobody sees stays": ("tl.where(inside[:, None], v_strip.load(WIDE), 0.0)", "v_strip.load(WIDE)"),
    "mixed tiles without their mask": ("mixed = (k_start < full_lo) | (k_start + BLOCK_N > full_hi)", "mixed = False"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_shows(fault: str, tmp_path: Path) -> None:
    package = faulty(f"{LATENT.name}/decode_hopper.py", *FAULTS[fault], tmp_path)
    assert shown(lambda seed: distance(Package(package, seed), 16, 1024))
