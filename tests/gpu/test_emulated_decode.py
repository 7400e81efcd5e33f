"""The kernel for Hopper GPUs that decodes latent heads, run without one: results in any order of events, and faults."""

from __future__ import annotations

import itertools
from pathlib import Path

import devices
import pytest
import torch
from caches import Cache, Sequences, expected, hold_float8
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
    package: Package, page: int, split: int, lengths: tuple[int, ...] = LENGTHS, new: int = 3, heads: int = 4,
    dtype: torch.dtype = torch.float16, form: str = "",
) -> float:  # fmt: skip
    """The relative difference between the reference and new tokens' rows and LSE; a `page` of 0 means no pages.

    If `form` is given, the cache holds float8 with scales of this form.
    """
    shape = {"width": 576, "v_width": 512, "latent": True, "dtype": dtype}
    s = Sequences(lengths, [min(new, n) for n in lengths], heads, 1, **shape)
    cache, scales = Cache(s, page or 16, paged=bool(page)), {}
    if form:
        scales = hold_float8(s, cache, form)
    else:
        cache.fill(put)
    q, given = torch.cat(s.q), {**cache.pages(), **s.cuts(), **scales, "return_lse": True, "split_size": split}
    found = package.attend_with_cache(q, cache.k, cache.v, s.seq_lens, **given)
    s.q, s.k, s.v = ([x.float() for x in rows] for rows in (s.q, s.k, s.v))
    out, lse = expected(package.module, s)
    assert package.emulation.launched[-2:] == ["decode_hopper.attend_split", "decode_kernels.join_splits"]
    return max(itertools.starmap(apart, zip(found, (torch.cat(out), torch.cat(lse, 1)), strict=True)))


@pytest.mark.parametrize("page", [0, 8, 24, 64, 256])
@pytest.mark.parametrize("split", [128, 1024])
@pytest.mark.parametrize("new", [1, 3])
def test_new_tokens_see_their_keys(page: int, split: int, new: int) -> None:
    """Rows of no sequence are NaN, and pages after the last key belong to no sequence."""
    for seed in range(2):
        assert distance(Package(LATENT, seed), page, split, new=new) < CLOSE


def test_rows_fill_more_than_a_tile() -> None:
    assert distance(Package(LATENT), 16, 128, (70, 5), heads=40) < CLOSE


@pytest.mark.parametrize("form", ["one", "sequences", "places"])
@pytest.mark.parametrize("page", [0, 5, 64])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_new_tokens_see_keys_of_float8(dtype: torch.dtype, page: int, form: str) -> None:
    """Products are in float16, for which each row of bfloat16 is divided by a power of 2."""
    for new, split in ((1, 1024), (3, 128)):
        given = {"new": new, "dtype": dtype, "form": form}
        assert distance(Package(LATENT, new), page, split, **given) < (CLOSE if dtype == torch.float16 else 2 * CLOSE)


# fault: correct code, faulty code
FAULTS = {
    "keys copied over those that are read": ("mbarrier.wait(k_free.index(place), phase ^ 1)", "stage = stage"),
    "keys read before they have come": ("mbarrier.wait(k_ready.index(stage * 2 + 1), phase)", "stage = stage"),
    "values read before they have come": ("mbarrier.wait(k_ready.index(place), at // STAGES & 1)", "turn = turn"),
    "weights read before they are there": ("mbarrier.wait(p_ready.index(turn), at >> 1 & 1)", "turn = turn"),
    "shares of rows read before they are there": ("mbarrier.wait(shares_ready, 0)", "at = at"),
    "values of the other half": ("at % STAGES * 2 + WORKER, at & 1", "at % STAGES * 2 + 1 - WORKER, at & 1"),
    "strips from the last one": ("(place * 4 + strip) * COUNT + i", "(place * 4 + 3 - strip) * COUNT + i"),
    "boxes from the last one": ("rest_boxes.index(stage * COUNT + i)", "rest_boxes.index((stage + 1) * COUNT - 1 - i)"),
    "no word that queries have come": ("mbarrier.arrive(q_loaded, count=1)", "count = count"),
    "what nobody sees stays": ("tl.where(inside[:, None], v_strip.load(WIDE), 0.0)", "v_strip.load(WIDE)"),
    "mixed tiles without their mask": ("mixed = (k_start < full_lo) | (k_start + BLOCK_N > full_hi)", "mixed = False"),
}  # fmt: skip


# the same with float8, with a scale for each key or one for each sequence
FAULTS_OF_FLOAT8 = {
    "keys stored over those that are read": ("mbarrier.wait(k_free.index(stage * 2 + half), phase ^ 1)", "half = half"),
    "pages of the tile before": ("find_pages(pages_ptr, k_start + BLOCK_N, lo", "find_pages(pages_ptr, k_start, lo"),
    "keys of another half": ("column = gl.arange(half * 256, half * 256 + 256", "column = gl.arange(256, 512"),
    "places of another page": ("if pages_ptr is None else k_pos % PAGE", "if pages_ptr is None else k_pos % 8"),
    "scales of the other stage": ("k_scales.index(stage).load(", "k_scales.index(1 - stage).load("),
    "values without their scales": ("weight *= v_scales", "other = v_scales"),
    "rows without their units": ("score *= q_unit[:, None]", "score = score"),
    "results without their scale": ("share *= tl.load(", "other = tl.load("),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_shows(fault: str, tmp_path: Path) -> None:
    package = faulty(f"{LATENT.name}/decode_hopper.py", *FAULTS[fault], tmp_path)
    assert shown(lambda seed: distance(Package(package, seed), 16, 1024))


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS_OF_FLOAT8)
def test_a_fault_shows_with_keys_of_float8(fault: str, tmp_path: Path) -> None:
    package = faulty(f"{LATENT.name}/decode_hopper.py", *FAULTS_OF_FLOAT8[fault], tmp_path)
    given = {"dtype": torch.bfloat16}
    assert any(
        shown(lambda seed, form=form: distance(Package(package, seed), 16, 1024, form=form, **given))
        for form in ("places", "sequences")
    )
