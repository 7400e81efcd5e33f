"""What docs/coming-from.md says of other libraries, against those that run on a CPU."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import devices  # noqa: F401  # where kernels run is settled before triton is imported
import pytest
import torch
from random_specs import RandomSpec, suite, write
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention as sdpa

pytestmark = pytest.mark.slow

PAGE = Path(__file__).resolve().parents[1] / "docs" / "coming-from.md"
TEXTS = {
    "others_causal": "mask: [causal]",
    "others_bias": "score: [bias]",
    "others_window": "mask: [expr: 'q - k <= 3 and k - q <= 2']",
    "others_scored": "mask: [any: [causal, expr: 'k < 3']]\nscore: [expr: 'score * 0.5 + far[h] * (q - k)']\n"
    "inputs: {far: {axes: [head], grad: true}}",
}


Attention = Callable[..., Any]


@pytest.fixture(scope="module")
def attention(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Attention]:
    """What the packages of these specs, and of the one on the page, give users to call."""
    folder = tmp_path_factory.mktemp("coming_from")
    (shown,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    texts = {name: f"name: {name}\n{text}\n" for name, text in TEXTS.items()} | {"shown": shown}
    for name, text in texts.items():
        write(RandomSpec(name, text), folder)
    return {name: suite(folder, name).checks.attention for name in texts}


def operands(queries: int, keys: int = 12) -> list[torch.Tensor]:
    make = torch.Generator().manual_seed(queries)
    sizes = (2, 4, queries, 16), (2, 2, keys, 16), (2, 2, keys, 16)
    return [torch.randn(size, generator=make) for size in sizes]


def same(found: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(found.transpose(1, 2), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("queries", [12, 5])
def test_sdpa_lines_up_the_first_query(queries: int, attention: dict[str, Attention]) -> None:
    q, k, v = operands(queries)
    wanted = sdpa(q, k, v, is_causal=True, enable_gqa=True)
    same(attention["others_causal"](*(x.transpose(1, 2) for x in (q, k, v)), q_start=0), wanted)


@pytest.mark.parametrize("shape", [(2, 4, 5, 12), (2, 1, 5, 12), (5, 12)])
def test_masks_of_sdpa(shape: tuple[int, ...], attention: dict[str, Attention]) -> None:
    q, k, v = operands(5)
    given = [x.transpose(1, 2) for x in (q, k, v)]
    mask = torch.rand(shape) > 0.4
    mask[..., 3] = True
    same(attention["shown"](*given, shown=mask), sdpa(q, k, v, attn_mask=mask, enable_gqa=True))
    bias = torch.randn(shape)
    same(attention["others_bias"](*given, bias=bias), sdpa(q, k, v, attn_mask=bias, enable_gqa=True))


def test_windows_of_flash_attn_reach_so_far_to_either_side(attention: dict[str, Attention]) -> None:
    q, k, v = operands(12)
    apart = torch.arange(12)[:, None] - torch.arange(12)
    wanted = sdpa(q, k, v, attn_mask=(apart <= 3) & (apart >= -2), enable_gqa=True)
    same(attention["others_window"](*(x.transpose(1, 2) for x in (q, k, v))), wanted)


@pytest.mark.parametrize("queries", [12, 5])
def test_functions_of_flex_attention(queries: int, attention: dict[str, Attention]) -> None:
    q, k, v = operands(queries)
    far, shift = torch.randn(4), 12 - queries

    def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score * 0.5 + far[h] * (q_idx + shift - kv_idx)

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (q_idx + shift >= kv_idx) | (kv_idx < 3)

    mask = create_block_mask(mask_mod, None, None, queries, 12, device="cpu")
    wanted = flex_attention(q, k, v, score_mod, mask, enable_gqa=True)
    assert isinstance(wanted, torch.Tensor)
    same(attention["others_scored"](*(x.transpose(1, 2) for x in (q, k, v)), far=far), wanted)
