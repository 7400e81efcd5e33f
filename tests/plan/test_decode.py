"""Decoding over dense and paged caches, held against the reference, and the traps of caches."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from caches import Cache, Sequences, Values, expected, package

from attnforge.language import spec
from attnforge.source import resources
from attnforge.source.errors import SpecError

pytestmark = pytest.mark.slow

ANGLES = torch.randn(256, 8)
ROPE = {"cos": ANGLES.cos(), "sin": ANGLES.sin()}


def nothing(s: Sequences, c: Cache, packed: bool) -> tuple[Values, Callable[[int], Values]]:
    """No keywords."""
    return {}, lambda b: {}


def same(**given: Any) -> Callable[..., tuple[Values, Callable[[int], Values]]]:
    """Keywords that no sequence has of its own."""
    return lambda s, c, packed: (given, lambda b: given)


def prefix(s: Sequences, c: Cache, packed: bool) -> tuple[Values, Callable[[int], Values]]:
    """The prefix of each sequence."""
    lengths = torch.tensor([3 + 2 * b for b in range(len(s.lengths))], dtype=torch.int32)
    return {"prefix_len": lengths}, lambda b: {"prefix_len": lengths[b : b + 1]}


def joined(rows: list[torch.Tensor], packed: bool) -> torch.Tensor:
    """Values of new tokens; packed ones have two rows behind them that no sequence has."""
    return torch.cat([*rows, torch.zeros_like(rows[0][:1]), torch.zeros_like(rows[0][:1])]) if packed else torch.stack(rows)


def documents(s: Sequences, c: Cache, packed: bool) -> tuple[Values, Callable[[int], Values]]:
    """The documents of new tokens and of keys."""
    keys = [(torch.arange(n) // 30).int() for n in s.lengths]
    rows = [x[len(x) - new :] for x, new in zip(keys, s.new, strict=True)]
    given = {"k_segments": c.stored(keys), "q_segments": joined(rows, packed)}
    return given, lambda b: {"k_segments": keys[b][None], "q_segments": rows[b][None]}


def tokens(s: Sequences, c: Cache, packed: bool) -> tuple[Values, Callable[[int], Values]]:
    """A value of each token and head."""
    rows = [torch.randn(n, s.heads) for n in s.lengths]
    return {"mood": c.stored(rows)}, lambda b: {"mood": rows[b][None]}


def tree(s: Sequences, c: Cache, packed: bool) -> tuple[Values, Callable[[int], Values]]:
    """Which new tokens see which."""
    found = torch.rand(len(s.new), max(s.new), max(s.new)) > 0.4
    positions = [n - new + torch.arange(new) // 2 for n, new in zip(s.lengths, s.new, strict=True)]
    given = {**ROPE, "tree_mask": found, "positions": joined(positions, packed)}

    def alone(b: int) -> Values:
        n, new = s.lengths[b], s.new[b]
        place = torch.cat([torch.arange(n - new), positions[b]])
        return {**ROPE, "tree_mask": found[b : b + 1, :new, :new], "positions": place[None]}

    return given, alone


def pairs(s: Sequences, c: Cache, packed: bool) -> tuple[Values, Callable[[int], Values]]:
    """A bias of each score."""
    bias = torch.randn(len(s.new), s.heads, max(s.new), c.room)
    return {"bias": bias}, lambda b: {"bias": bias[b : b + 1, :, : s.new[b], : s.lengths[b]]}


def blocks(s: Sequences, c: Cache, packed: bool) -> tuple[Values, Callable[[int], Values]]:
    """Blocks of keys that new tokens see."""
    mask = torch.rand(len(s.new), 1, 1, -(-c.room // 16)) > 0.3
    return {"block_mask": mask}, lambda b: {"block_mask": mask[b : b + 1, ..., : -(-s.lengths[b] // 16)]}


@dataclass(frozen=True)
class Variant:
    """A spec, its keywords, and whether its keys are rotated."""

    text: str
    given: Callable[..., tuple[Values, Callable[[int], Values]]] = nothing
    rope: bool = False
    kv_heads: int = 2


MOOD = "inputs: {mood: {axes: [batch, token, head]}}"
VARIANTS = {
    "plain": Variant("mask: [causal]"),
    "window": Variant("mask: [causal, sliding_window: {size: 20}]"),
    "called_window": Variant("mask: [causal, sliding_window: {size: runtime}]", same(window=33)),
    "capped": Variant("mask: [causal]\nscore: [softcap: {cap: 2.0}]"),
    "sinking": Variant("mask: [causal]\nsink: true", same(sinks=torch.tensor([0.5, 3.0, -1.0, -math.inf]))),
    "slopes": Variant("mask: [causal]\nscore: [alibi]"),
    "given_slopes": Variant("mask: [causal]\nscore: [alibi]", same(slopes=torch.tensor([0.1, 0.2, 0.4, 0.0]))),
    "rotated": Variant("rope: {layout: half}\nmask: [causal]", same(**ROPE), rope=True),
    "partly_rotated": Variant(
        "rope: {layout: interleaved, dims: 8}\nmask: [causal]",
        same(cos=ROPE["cos"][:, :4], sin=ROPE["sin"][:, :4]),
        rope=True,
    ),
    "prefixed": Variant("mask: [prefix_lm]", prefix),
    "documented": Variant("mask: [causal, segments]", documents),
    "first_keys": Variant("mask: [causal, any: [sliding_window: {size: 24}, expr: 'k < 4']]"),
    "drafted": Variant("mask: [tree]\nrope: {layout: half}", tree, rope=True),
    "buckets": Variant(
        "mask: [causal]\nscore: [relative_bias: {bidirectional: false}]", same(rel_bias=torch.randn(4, 32))
    ),
    "biased": Variant("score: [bias]", pairs),
    "blocked": Variant("mask: [causal, block_sparse: {block: 16}]", blocks),
    "moody": Variant(f"mask: [causal]\nscore: [expr: 'score + mood[q] * mood[max(k - 1, 0)] - mood[k]']\n{MOOD}", tokens),
    "by_head": Variant(
        "mask: [causal, expr: 'q - k < reach + h']\ninputs: {reach: {axes: [head], dtype: int}}",
        same(reach=torch.tensor([5, 40, 1, 70])),
    ),
    "by_key_head": Variant(
        "mask: [causal]\nscore: [expr: 'score * warmth']\ninputs: {warmth: {axes: [kv_head]}}",
        same(warmth=torch.tensor([0.5, 2.0])),
    ),
    "equal_heads": Variant("heads: equal\nmask: [causal]", kv_heads=4),
    "packed_training": Variant(f"layout: packed\nmask: [causal]\nscore: [expr: 'score + mood[k]']\n{MOOD}", tokens),
}


@pytest.fixture(scope="module")
def variant(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], ModuleType]:
    """Renders a variant when it is first asked for."""
    folder, made = tmp_path_factory.mktemp("decode"), dict[str, ModuleType]()

    def find(name: str) -> ModuleType:
        if name not in made:
            made[name] = package(folder, name, VARIANTS[name].text)
        return made[name]

    return find


def decode(
    module: ModuleType, name: str, s: Sequences, c: Cache, *, packed: bool = False, **more: Any
) -> tuple[torch.Tensor, torch.Tensor, Callable[[int], Values]]:
    """Out and LSE by a filled cache, and the keywords of each sequence."""
    one, decoding = VARIANTS[name], module.decode
    given, alone = one.given(s, c, packed)

    def turned(b: int) -> Values:
        found = alone(b)
        place = found["positions"][0] if "positions" in found else torch.arange(s.lengths[b])
        return {"cos": found["cos"], "sin": found["sin"], "positions": place} if one.rope else {}

    c.fill(decoding.append, turned)
    q = joined(s.q, packed)
    given = given | s.cuts() if packed else given
    out, lse = decoding.attend_with_cache(q, c.k, c.v, s.seq_lens, return_lse=True, **c.pages(), **given, **more)
    return out, lse, alone


def check(module: ModuleType, name: str, s: Sequences, c: Cache, *, packed: bool = False) -> None:
    """Holds a call against the reference."""
    out, lse, alone = decode(module, name, s, c, packed=packed)
    if packed:
        assert (out[sum(s.new) :] == 0).all()
        assert (lse[:, sum(s.new) :] == -math.inf).all()
        outs, lses = out[: sum(s.new)].split(s.new), lse[:, : sum(s.new)].split(s.new, 1)
    else:
        outs, lses = out.unbind(), lse.unbind()
    for x, y in zip((*outs, *lses), sum(map(list, expected(module, s, alone)), []), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("name", VARIANTS)
def test_one_new_token(variant: Callable[[str], ModuleType], name: str) -> None:
    s = Sequences([100, 5, 64], [1, 1, 1], kv_heads=VARIANTS[name].kv_heads)
    check(variant(name), name, s, Cache(s))


@pytest.mark.parametrize("name", VARIANTS)
def test_several_new_tokens_of_a_cache_without_pages(variant: Callable[[str], ModuleType], name: str) -> None:
    s = Sequences([70, 7], [3, 3], kv_heads=VARIANTS[name].kv_heads, seed=1)
    check(variant(name), name, s, Cache(s, paged=False, room=96))


@pytest.mark.parametrize("name", VARIANTS)
def test_new_tokens_one_behind_the_other(variant: Callable[[str], ModuleType], name: str) -> None:
    if name == "blocked":
        pytest.skip("a block of queries is one of each sequence")
    s = Sequences([67, 9, 40], [5, 1, 2], kv_heads=VARIANTS[name].kv_heads, seed=2)
    check(variant(name), name, s, Cache(s, page=8), packed=True)
