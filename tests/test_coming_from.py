"""What docs/coming-from.md says about other libraries, compared with those that run on a CPU."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import devices  # noqa: F401  # where kernels run is settled before triton is imported
import pytest
import torch
from caches import Sequences, expected, package
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
    """The functions that users call, from the packages of these specs and of the one on the page."""
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


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("side", ["right", "left"])
def test_masks_of_padded_tokens_are_lengths(side: str, causal: bool, attention: dict[str, Attention]) -> None:
    """Tokens are those of SDPA with a mask of keys; padding gives 0, on the left under any mask with q_start=-pads."""
    q, k, v = operands(12)
    row, lengths = torch.arange(12), torch.tensor([12, 5]).int()
    pads = 12 - lengths
    token = row < lengths[:, None] if side == "right" else row >= pads[:, None]
    more = {} if causal else {"shown": torch.ones(12, 12, dtype=torch.bool)}
    attend = attention["others_causal" if causal else "shown"]
    rows = [x.transpose(1, 2) for x in (q, k, v)]
    mask = token[:, None, None] & (row[:, None] >= row if causal else more["shown"])
    wanted = sdpa(q, k, v, attn_mask=mask, enable_gqa=True).transpose(1, 2)[token]
    given: dict[str, Any] = {"k_lens": lengths, "q_start": 0} if side == "right" else {"k_starts": pads}
    out = attend(*rows, **more, **given)
    torch.testing.assert_close(out[token], wanted, rtol=1e-4, atol=1e-5)
    assert bool(out[~token].any()) == (side == "left" and not causal)
    if side == "left":
        out = attend(*rows, **more, k_starts=pads, q_start=-pads)
        torch.testing.assert_close(out[token], wanted, rtol=1e-4, atol=1e-5)
        assert not out[~token].any()
    elif causal:  # without q_start the last row, of padding, lines up with the last key
        late = attend(*rows, k_lens=lengths)
        seen = row - 12 + lengths[:, None] >= 0
        assert torch.equal(late.flatten(2).any(2), seen) and not seen[1, :5].all()


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


def test_pages_of_flashinfer_are_a_table(tmp_path: Path) -> None:
    """Heads before slots, an empty sequence among others, and partial results whose LSE has base 2."""
    module = package(tmp_path, "others_paged", "mask: [causal]")
    s = Sequences([20, 0, 9, 16], [1] * 4)
    there = torch.full((9, 2, 2, 8, 16), math.nan)
    k_cache, v_cache = there.transpose(2, 3).unbind(1)
    given = {"kv_indptr": torch.tensor([0, 3, 3, 5, 7]).int(), "kv_indices": torch.tensor([8, 1, 4, 0, 7, 3, 5]).int()}
    given |= {"kv_last_page_len": torch.tensor([4, 0, 1, 8]).int(), "page_size": 8, "most_pages": 4, "torch": torch}
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(block, given)
    page_table, seq_lens = given["page_table"], given["seq_lens"]
    assert seq_lens.tolist() == s.lengths and page_table.dtype == torch.int32
    for b, n in enumerate(s.lengths):
        at = torch.arange(n)
        module.decode.append(s.k[b], s.v[b], k_cache, v_cache, page_table[b][at // 8].long() * 8 + at % 8)
    out, lse = module.decode.attend_with_cache(
        torch.cat(s.q), k_cache, v_cache, seq_lens, page_table=page_table, return_lse=True
    )
    wanted, wanted_lse = expected(module, s)
    torch.testing.assert_close(out, torch.cat(wanted), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(lse, torch.cat(wanted_lse, 1), rtol=1e-4, atol=1e-5)
    parts = lse.T / math.log(2)
    both, _ = module.decode.merge((out, 3 * out), [x.T * math.log(2) for x in (parts, parts)])
    torch.testing.assert_close(both, 2 * out)


def test_places_of_sglang_are_pages_of_one_token(tmp_path: Path) -> None:
    module = package(tmp_path, "others_places", "mask: [causal]")
    s = Sequences([20, 9], [1, 1])
    k_buffer, v_buffer = torch.full((2, 64, 2, 16), math.nan)
    req_to_token = torch.randperm(64).int()[:60].view(3, 20)
    page_table = req_to_token[torch.tensor([2, 0])]
    for b, n in enumerate(s.lengths):
        module.decode.append(s.k[b], s.v[b], k_buffer[:, None], v_buffer[:, None], page_table[b, :n].long())
    out = module.decode.attend_with_cache(
        torch.cat(s.q), k_buffer[:, None], v_buffer[:, None], s.seq_lens, page_table=page_table
    )
    torch.testing.assert_close(out, torch.cat(expected(module, s)[0]), rtol=1e-4, atol=1e-5)
