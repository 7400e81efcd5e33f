"""Decoding over dense and paged caches, compared with the reference, and the pitfalls of caches."""

from __future__ import annotations

import copy
import importlib
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from caches import Cache, Sequences, Values, at_odd_places, expected, forget, package

from attnforge.source import resources

pytestmark = pytest.mark.slow

ANGLES = torch.randn(256, 8)
ROPE = {"cos": ANGLES.cos(), "sin": ANGLES.sin()}
WIDE_ANGLES = torch.randn(256, 288)
LATENT = {"kv_heads": 1, "width": 576, "v_width": 512, "latent": True}


def nothing(s: Sequences, c: Cache, packed: bool) -> tuple[Values, Callable[[int], Values]]:
    """No keywords."""
    return {}, lambda b: {}


def same(**given: Any) -> Callable[..., tuple[Values, Callable[[int], Values]]]:
    """Keywords that all sequences share."""
    return lambda s, c, packed: (given, lambda b: given)


def prefix(s: Sequences, c: Cache, packed: bool) -> tuple[Values, Callable[[int], Values]]:
    """The prefix of each sequence."""
    lengths = torch.tensor([3 + 2 * b for b in range(len(s.lengths))], dtype=torch.int32)
    return {"prefix_len": lengths}, lambda b: {"prefix_len": lengths[b : b + 1]}


def joined(rows: list[torch.Tensor], packed: bool) -> torch.Tensor:
    """Values of new tokens; packed ones are followed by two rows that belong to no sequence."""
    return (
        torch.cat([*rows, torch.zeros_like(rows[0][:1]), torch.zeros_like(rows[0][:1])])
        if packed
        else torch.stack(rows)
    )


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


def decays(s: Sequences, c: Cache, packed: bool) -> tuple[Values, Callable[[int], Values]]:
    """A decay of each token and head, and documents that begin anywhere."""
    rows = [-torch.rand(n, s.heads) for n in s.lengths]
    for x in rows:
        x[torch.rand(x.shape) > 0.97] = -math.inf
    return {"log_decay": c.stored(rows)}, lambda b: {"log_decay": rows[b][None]}


def rises(s: Sequences, c: Cache, packed: bool) -> tuple[Values, Callable[[int], Values]]:
    """Values of each token, in the axes of several inputs."""
    rows = [(0.1 * torch.randn(n, s.heads), 0.1 * torch.randn(n), torch.randn(n, s.kv_heads)) for n in s.lengths]
    for x, _, z in rows:
        x[torch.rand(x.shape) > 0.98] = -math.inf
        z[torch.rand(z.shape) > 0.98] = -math.inf
    x, y, z = (c.stored(list(one)) for one in zip(*rows, strict=True))
    given = {"x": x, "y": y, "z": z.transpose(1, 2)}
    return given, lambda b: {"x": rows[b][0][None], "y": rows[b][1][None], "z": rows[b][2].T[None]}


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


def drafts(s: Sequences, c: Cache, packed: bool) -> tuple[Values, Callable[[int], Values]]:
    """The same without rotation angles."""
    given, alone = tree(s, c, packed)
    return {"tree_mask": given["tree_mask"]}, lambda b: {"tree_mask": alone(b)["tree_mask"]}


def depths(s: Sequences, c: Cache, packed: bool) -> tuple[Values, Callable[[int], Values]]:
    """The depth of each token, which is not its index among the new tokens of a tree."""
    given, alone = tree(s, c, packed)
    deep = [alone(b)["positions"][0].int() for b in range(len(s.new))]
    values = {"tree_mask": given["tree_mask"], "depth": c.stored(deep)}
    return values, lambda b: {"tree_mask": alone(b)["tree_mask"], "depth": deep[b][None]}


def pairs(s: Sequences, c: Cache, packed: bool) -> tuple[Values, Callable[[int], Values]]:
    """A bias of each score."""
    bias = torch.randn(len(s.new), s.heads, max(s.new), c.room)
    return {"bias": bias}, lambda b: {"bias": bias[b : b + 1, :, : s.new[b], : s.lengths[b]]}


def distances(s: Sequences, c: Cache, packed: bool) -> tuple[Values, Callable[[int], Values]]:
    """A table for each new token and head."""
    rows = [torch.randn(new, s.heads, 8) for new in s.new]
    by_head = [row.transpose(0, 1) for row in rows]
    given = joined(rows, packed).transpose(-3, -2)
    return {"near": given}, lambda b: {"near": by_head[b][None]}


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
    shape: Values = field(default_factory=dict)  # arguments of its `Sequences`


MOOD = "inputs: {mood: {axes: [batch, token, head]}}"
LEFT_OUT = """mask: [causal, expr: 'q - k < reach[(q - k) % 3]', expr: 'open and doc[k] == doc[q]']
score: [expr: 'score * calm + lift * tanh(score) + fade[q] * fade[max(k - 1, 0)] * near[min(q - k, 7)] + mood[k]']
inputs:
  reach: {axes: [kv_head, 3], dtype: int, default: 20}
  open: {axes: [batch], dtype: bool, default: true}
  doc: {axes: [batch, token], dtype: int, default: 3}
  lift: {axes: [head, batch, query], grad: true, default: 0.5}
  fade: {axes: [batch, token, head], default: -0.5}
  near: {axes: [batch, query, 8], default: 0.25}
  calm: {axes: [key, batch], default: 0.75, min: 0.5}
  mood: {axes: [token], default: 1.5}
"""
SUMS = """mask: [{0}]
score: [expr: 'score * (1 + 0.01 * (y[q] - y[k])) + 0.1 * (x[q] - x[k]) + 0.05 * z[k] + 0.01 * y[max(k - 70, 0)]']
inputs:
  x: {{axes: [batch, token, head], scan: cumsum}}
  y: {{axes: [batch, token], grad: false, scan: cumsum}}
  z: {{axes: [batch, kv_head, token], grad: true, scan: cumsum}}
"""
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
    "in_pieces": Variant("mask: [causal, any: [expr: 'q // 20 == k // 20', expr: 'k < 4']]"),
    "drafted": Variant("mask: [tree]\nrope: {layout: half}", tree, rope=True),
    "drafted_window": Variant("mask: [tree, sliding_window: {size: 20}]", drafts),
    "drafted_depths": Variant(
        "mask: [tree, sliding_window: {size: 24}, expr: 'depth[q] - depth[k] < 20']\n"
        "inputs: {depth: {axes: [batch, token], dtype: int}}",
        depths,
    ),
    "buckets": Variant(
        "mask: [causal]\nscore: [relative_bias: {bidirectional: false}]", same(rel_bias=torch.randn(4, 32))
    ),
    "biased": Variant("score: [bias]", pairs),
    "by_distance": Variant(
        "mask: [causal]\nscore: [expr: 'score + near[min(q - k, 7)]']\ninputs: {near: {axes: [batch, head, query, 8]}}",
        distances,
    ),
    "blocked": Variant("mask: [causal, block_sparse: {block: 16}]", blocks),
    "moody": Variant(
        f"mask: [causal]\nscore: [expr: 'score + mood[q] * mood[max(k - 1, 0)] - mood[k]']\n{MOOD}", tokens
    ),
    "raised": Variant(f"mask: [causal]\nscore: [expr: 'score + mood[q] - mood[k]']\n{MOOD}", tokens),
    "tables_of_tokens": Variant(
        "mask: [causal]\nscore: [expr: 'score + mood[q, min(q - k, 3)] * mood[max(k - 1, 0), h]']\n"
        "inputs: {mood: {axes: [batch, token, 4]}}",
        tokens,
    ),
    "tables_of_keys": Variant(
        "mask: [causal]\nscore: [expr: 'score + mood[(q - k) % 4]']\ninputs: {mood: {axes: [batch, key, 4]}}", tokens
    ),
    "by_head": Variant(
        "mask: [causal, expr: 'q - k < reach + h']\ninputs: {reach: {axes: [head], dtype: int}}",
        same(reach=torch.tensor([5, 40, 1, 70])),
    ),
    "by_key_head": Variant(
        "mask: [causal]\nscore: [expr: 'score * warmth']\ninputs: {warmth: {axes: [kv_head]}}",
        same(warmth=torch.tensor([0.5, 2.0])),
    ),
    "left_out": Variant(LEFT_OUT),
    "left_out_packed": Variant(f"layout: packed\n{LEFT_OUT}"),
    "equal_heads": Variant("heads: equal\nmask: [causal]", shape={"kv_heads": 4}),
    "packed_training": Variant(f"layout: packed\nmask: [causal]\nscore: [expr: 'score + mood[k]']\n{MOOD}", tokens),
    "packed_rows": Variant(
        "layout: packed\nmask: [causal]\nscore: [expr: 'score + mood[k]']\ninputs: {mood: {axes: [token, head]}}",
        tokens,
    ),
    "wide": Variant("mask: [causal]\nscore: [softcap: {cap: 5.0}]", shape={"width": 288, "v_width": 300}),
    "wide_rotated": Variant(
        "rope: {layout: interleaved}\nmask: [causal]",
        same(cos=WIDE_ANGLES.cos()[:, :144], sin=WIDE_ANGLES.sin()[:, :144]),
        rope=True,
        shape={"width": 288},
    ),
    "decaying": Variant("mask: [causal]\nscore: [log_decay]", decays),
    "decaying_packed": Variant("layout: packed\nmask: [causal]\nscore: [log_decay]", decays),
    "decaying_window": Variant("mask: [causal, sliding_window: {size: 20}]\nscore: [log_decay]", decays),
    "decaying_pieces": Variant(
        "mask: [causal, any: [expr: 'q // 20 == k // 20', expr: 'k < 4']]\nscore: [log_decay]", decays
    ),
    "summed": Variant(SUMS.format("causal"), rises),
    "summed_both_ways": Variant(SUMS.format("expr: 'q - k < 90'"), rises),
    "latent": Variant("latent: true\nmask: [causal]", shape=LATENT),
    "latent_scored": Variant(
        "latent: true\nmask: [causal, sliding_window: {size: 40}]\nscore: [alibi]\nsink: true",
        same(sinks=torch.tensor([0.5, 3.0, -1.0, -math.inf])),
        shape=LATENT | {"width": 530},
    ),
    "latent_rotated": Variant(
        "latent: true\nrope: {layout: half}\nmask: [causal]",
        same(cos=WIDE_ANGLES.cos(), sin=WIDE_ANGLES.sin()),
        rope=True,
        shape={"kv_heads": 1, "width": 576, "v_width": 32},
    ),
    "latent_drafted": Variant("latent: true\nmask: [tree]", drafts, shape={"kv_heads": 2, "width": 40, "latent": True}),
}


def of_name(name: str, s: Sequences, c: Cache) -> tuple[Any, Callable[[int], Any]]:
    """A keyword of a shipped variant, and its value for each sequence."""
    if name == "log_decay":
        given, alone = decays(s, c, packed=False)
        return given[name], lambda b: alone(b)[name]
    if name == "tree_mask":
        mask = torch.rand(len(s.new), max(s.new), max(s.new)) > 0.4
        return mask, lambda b: mask[b : b + 1, : s.new[b], : s.new[b]]
    if name == "prefix_len":
        lengths = torch.tensor([3 + 2 * b for b in range(len(s.lengths))])
        return lengths, lambda b: lengths[b : b + 1]
    once = {"cos": ROPE["cos"], "sin": ROPE["sin"], "window": 33, "slopes": None, "positions": None}
    once |= {"sinks": torch.linspace(-2, 3, 4), "rel_bias": torch.randn(4, 32)}
    return once[name], lambda b: once[name]


SHIPPED = sorted(name for name, path in resources.variants().items() if "exports: [decode]" in path.read_text())


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_variants(tmp_path: Path, name: str) -> None:
    text = resources.variants()[name].read_text()
    kept = [line for line in text.splitlines() if not line.startswith(("name:", "exports:"))]
    module = package(tmp_path, f"shipped_{name}", "\n".join(kept))
    parameters = inspect.signature(module.decode.attend_with_cache).parameters
    ours = {*inspect.signature(module.attention).parameters} - {"q", "k", "v", "scale", "return_lse", "k_starts"}
    for new in (1, 4):
        s = Sequences([90, 6], [new, new], kv_heads=4 if "heads: equal" in text else 2, seed=new)
        cache = Cache(s, page=8)
        found = {x: of_name(x, s, cache) for x in parameters if x in ours}

        def alone(b: int, found: Values = found) -> Values:
            return {x: one(b) for x, (_, one) in found.items()}

        def turned(b: int, found: Values = found, s: Sequences = s) -> Values:
            place = {"positions": torch.arange(s.lengths[b])}
            return {**ROPE, **place} if "cos" in found else {}

        cache.fill(module.decode.append, turned)
        given = {x: value for x, (value, _) in found.items()} | cache.pages()
        out = module.decode.attend_with_cache(torch.stack(s.q), cache.k, cache.v, s.seq_lens, **given)
        for x, y in zip(out, expected(module, s, alone)[0], strict=True):
            torch.testing.assert_close(x, y, rtol=1e-4, atol=2e-5)


@pytest.fixture(scope="module")
def variant(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], ModuleType]:
    """Renders a variant when it is first asked for."""
    folder, made = tmp_path_factory.mktemp("decode"), dict[str, ModuleType]()

    def find(name: str) -> ModuleType:
        if name not in made:
            made[name] = package(folder, name, VARIANTS[name].text)
        return made[name]

    return find


def turned(one: Variant, s: Sequences, alone: Callable[[int], Values]) -> Callable[[int], Values]:
    """The keywords that rotate the keys of each sequence."""

    def given(b: int) -> Values:
        found = alone(b)
        place = found["positions"][0] if "positions" in found else torch.arange(s.lengths[b])
        return {"cos": found["cos"], "sin": found["sin"], "positions": place} if one.rope else {}

    return given


def decode(
    module: ModuleType, name: str, s: Sequences, c: Cache, *, packed: bool = False, **more: Any
) -> tuple[torch.Tensor, torch.Tensor, Callable[[int], Values]]:
    """Out and LSE of a call over a filled cache, and the keywords of each sequence."""
    one, decoding = VARIANTS[name], module.decode
    given, alone = one.given(s, c, packed)
    c.fill(decoding.append, turned(one, s, alone))
    q = joined(s.q, packed)
    given = given | s.cuts() if packed else given
    out, lse = decoding.attend_with_cache(q, c.k, c.v, s.seq_lens, return_lse=True, **c.pages(), **given, **more)
    return out, lse, alone


def measured(
    module: ModuleType, name: str, s: Sequences, c: Cache, given: tuple[Values, Callable[[int], Values]], more: Values
) -> tuple[torch.Tensor, ...]:
    """Everything that a call with packed new tokens returns."""

    def turned(b: int) -> Values:
        found = given[1](b)
        return {**ROPE, "positions": found["positions"][0]} if "positions" in found else {}

    c.fill(module.decode.append, turned)
    found: tuple[torch.Tensor, ...] = module.decode.attend_with_cache(
        joined(s.q, True), c.k, c.v, s.seq_lens, return_lse=True, **c.pages(), **given[0], **s.cuts(), **more
    )
    return found


def check(module: ModuleType, name: str, s: Sequences, c: Cache, *, packed: bool = False) -> None:
    """Compares a call with the reference."""
    out, lse, alone = decode(module, name, s, c, packed=packed)
    if packed:
        assert (out[sum(s.new) :] == 0).all()
        assert (lse[:, sum(s.new) :] == -math.inf).all()
        outs, lses = out[: sum(s.new)].split(s.new), lse[:, : sum(s.new)].split(s.new, 1)
    else:
        outs, lses = out.unbind(), lse.unbind()
    wanted, wanted_lse = expected(module, s, alone)
    for x, y in zip((*outs, *lses), (*wanted, *wanted_lse), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("name", VARIANTS)
def test_one_new_token(variant: Callable[[str], ModuleType], name: str) -> None:
    s = Sequences([100, 5, 64], [1, 1, 1], **VARIANTS[name].shape)
    check(variant(name), name, s, Cache(s))


@pytest.mark.parametrize("name", VARIANTS)
def test_several_new_tokens_of_a_cache_without_pages(variant: Callable[[str], ModuleType], name: str) -> None:
    s = Sequences([70, 7], [3, 3], **VARIANTS[name].shape, seed=1)
    check(variant(name), name, s, Cache(s, paged=False, room=96))


@pytest.mark.parametrize(
    "name", ["plain", "window", "first_keys", "rotated", "documented", "moody", "biased", "latent"]
)
def test_the_first_key_may_stand_anywhere(variant: Callable[[str], ModuleType], name: str) -> None:
    s = Sequences([70, 4, 7], [3, 3, 3], **VARIANTS[name].shape, seed=3)
    check(variant(name), name, s, Cache(s, paged=False, starts=(9, 0, 89)))


@pytest.mark.parametrize("name", VARIANTS)
def test_new_tokens_one_behind_the_other(variant: Callable[[str], ModuleType], name: str) -> None:
    if name == "blocked":
        pytest.skip("a block of queries is one of each sequence")
    s = Sequences([67, 9, 40], [5, 1, 2], **VARIANTS[name].shape, seed=2)
    check(variant(name), name, s, Cache(s, page=8), packed=True)


PLAIN = Sequences([100, 5, 64], [1, 1, 1])


def alone(b: int) -> Sequences:
    """One of the plain sequences alone."""
    s = Sequences([PLAIN.lengths[b]], [1])
    s.q, s.k, s.v = [PLAIN.q[b]], [PLAIN.k[b]], [PLAIN.v[b]]
    return s


@pytest.mark.parametrize(("page", "paged"), [(1, True), (7, True), (256, True), (16, False)])
def test_bits_hang_on_neither_pages_nor_the_batch(variant: Callable[[str], ModuleType], page: int, paged: bool) -> None:
    out, lse, _ = decode(variant("plain"), "plain", PLAIN, Cache(PLAIN))
    s = alone(0)
    one, one_lse, _ = decode(variant("plain"), "plain", s, Cache(s, page=page, paged=paged, room=512))
    assert torch.equal(out[0], one[0])
    assert torch.equal(lse[0], one_lse[0])


def test_bits_hang_on_no_drafts_of_others_beside_one_bound(variant: Callable[[str], ModuleType]) -> None:
    """If rows of no sequence make q as long as the bound, a token has the same tile and splits in each call."""
    decoding, rows, found = variant("plain").decode, torch.randn(40, 4, 16), []
    cache = Cache(PLAIN).fill(decoding.append)
    for drafted in (0, 1, 4, 20):
        cuts = {"cu_seqlens_q": torch.tensor([0, 1, 1, 1 + drafted], dtype=torch.int32), "max_seqlen_q": 20}
        q = torch.cat([rows[: 1 + drafted], rows.new_full((max(0, 19 - drafted), 4, 16), math.nan)])
        found.append(decoding.attend_with_cache(q, cache.k, cache.v, PLAIN.seq_lens, **cache.pages(), **cuts)[0])
    assert all(torch.equal(x, found[0]) for x in found)


@pytest.mark.parametrize(
    ("name", "heads", "most"),
    [("plain", 1, 1), ("plain", 4, 4), ("plain", 6, 2), ("sinking", 4, 4), ("first_keys", 4, 4), ("decaying", 4, 4)],
)
def test_bits_hang_on_no_other_heads_that_a_program_joins(
    variant: Callable[[str], ModuleType], name: str, heads: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bits of a row are the same whether its program joins up to `most` rows or that row alone."""
    module, s = variant(name), Sequences([300, 9, 40], [5, 1, 2], heads=heads, kv_heads=1)
    launch = importlib.import_module(f"{module.__name__}.decode_launch")
    found = []
    for rows, together in ((1, most), (1000, 1)):
        monkeypatch.setattr(launch, "MANY_ROWS", rows)
        forget(module)
        assert launch.tile_of_join(5, torch.zeros(8, heads, 16), torch.zeros(1, 8, 1, 16))[-1] == together
        torch.manual_seed(0)
        found.append(decode(module, name, s, Cache(s), packed=True)[:2])
    for x, y in zip(*found, strict=True):
        assert torch.equal(x, y)


def test_heads_may_stand_before_places(variant: Callable[[str], ModuleType]) -> None:
    out, _, _ = decode(variant("plain"), "plain", PLAIN, Cache(PLAIN))
    cache = Cache(PLAIN, swapped=True)
    assert cache.k.stride(2) > cache.k.stride(1)
    assert torch.equal(decode(variant("plain"), "plain", PLAIN, cache)[0], out)


def test_new_tokens_may_stand_anywhere(variant: Callable[[str], ModuleType]) -> None:
    s, decoding = Sequences([40, 9], [3, 3]), variant("rotated").decode
    q, cache = (
        torch.stack(s.q),
        Cache(s).fill(decoding.append, lambda b: {**ROPE, "positions": torch.arange(s.lengths[b])}),
    )
    given = {**ROPE, "positions": torch.tensor([[5, 6, 7], [1, 0, 2]]), **cache.pages()}
    out = decoding.attend_with_cache(q, cache.k, cache.v, s.seq_lens, **given)
    given["positions"] = given["positions"].T.contiguous().T
    for apart in (
        q.transpose(0, 1).contiguous().transpose(0, 1),
        q.transpose(-1, -2).contiguous().transpose(-1, -2),
        q,
    ):
        assert torch.equal(decoding.attend_with_cache(apart, cache.k, cache.v, s.seq_lens, **given), out)


def test_angles_reach_as_far_as_there_is_room(variant: Callable[[str], ModuleType]) -> None:
    """Unless the call bounds the lengths of sequences, or gives the positions of its new tokens."""
    decoding, q, (k, v) = variant("rotated").decode, torch.randn(1, 1, 4, 16), torch.randn(2, 1, 48, 2, 16)
    given = {"seq_lens": torch.tensor([40], dtype=torch.int32), "cos": ROPE["cos"][:40], "sin": ROPE["sin"][:40]}
    room = "the 48 keys that max_seqlen_k, the cache or page_table has room for, or positions, got 40 rows"
    with pytest.raises(ValueError, match=f"^cos: expected a row for each of {room}"):
        decoding.attend_with_cache(q, k, v, **given)
    out = decoding.attend_with_cache(q, k, v, max_seqlen_k=40, **given)
    assert torch.equal(decoding.attend_with_cache(q, k, v, positions=torch.tensor([[39]]), **given), out)


@pytest.mark.parametrize("name", ["plain", "sinking"])
def test_a_sequence_without_keys(variant: Callable[[str], ModuleType], name: str) -> None:
    s = Sequences([0, 3], [1, 1])
    out, lse, given = decode(variant(name), name, s, Cache(s))
    assert (out[0] == 0).all()
    sinks = given(0).get("sinks", torch.full((4,), -math.inf))
    torch.testing.assert_close(lse[0, :, 0], sinks)


@pytest.mark.parametrize("name", ["plain", "sinking"])
def test_docstrings_say_what_a_row_without_keys_gets(variant: Callable[[str], ModuleType], name: str) -> None:
    module, sinking = variant(name), name == "sinking"
    text = " ".join(module.decode.attend_with_cache.__doc__.split())
    told = "; 0 gives 0 and the LSE of the sinks, -inf without them page_table:"
    assert (told if sinking else "; 0 gives 0 and an LSE of -inf page_table:") in text
    row = "without keys and sink." if sinking else "without keys."
    assert importlib.import_module(f"{module.__name__}.launch").natural.__doc__.endswith(row)
    if sinking:
        q, k = torch.randn(1, 4, 16), torch.randn(1, 3, 2, 16)
        out, lse = module.decode.attend_with_cache(q, k, k, torch.tensor([0]).int(), sinks=None, return_lse=True)
        assert (out == 0).all() and (lse == -math.inf).all()


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("most", [3, 4, 20])
def test_a_workspace_has_room_whatever_the_bound_of_rows(
    cut: bool, most: int, variant: Callable[[str], ModuleType]
) -> None:
    decoding, lengths = variant("plain").decode, torch.tensor([250, 300], dtype=torch.int32)
    k = torch.randn(2, 300, 2, 16)
    q = torch.randn(7, 4, 16) if cut else torch.randn(2, 3, 4, 16)
    cuts = {"cu_seqlens_q": torch.tensor([0, 3, 7], dtype=torch.int32)} if cut else {}
    most = max(most, 4) if cut else most
    for rows, more in ((q, {"max_seqlen_q": most, **cuts}), (q.reshape(-1, 4, 16)[:2], {})):
        size = decoding.workspace_size(rows, k, k, max_seqlen_q=most, max_seqlen_k=300)
        more |= {"max_seqlen_k": 300, "workspace": torch.full((size,), math.nan)}
        assert decoding.attend_with_cache(rows, k, k, lengths, **more).isfinite().all()


@pytest.mark.parametrize(("name", "most"), [("window", 20), ("drafted_window", 20), ("drafted_depths", 24)])
def test_a_window_reads_its_own_pages_alone(variant: Callable[[str], ModuleType], name: str, most: int) -> None:
    s, decoding = Sequences([200, 64], [2, 2]), variant(name).decode
    q, cache = torch.stack(s.q), Cache(s, page=4).fill(decoding.append)
    given, alone = VARIANTS[name].given(s, cache, False)
    # the first of two rows sees this many keys
    table = cache.pages(lambda length: length - 1 - most) | given
    # whole splits are hidden: their parts of the workspace keep the old NaN
    size = decoding.workspace_size(q, cache.k, cache.v, max_seqlen_q=2, max_seqlen_k=200)
    old = {"max_seqlen_k": 200, "workspace": torch.full((size,), math.nan)}
    out = decoding.attend_with_cache(q, cache.k, cache.v, s.seq_lens, **table, **old)
    for x, y in zip(out, expected(variant(name), s, alone)[0], strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(("name", "new"), [("window", 1), ("called_window", 3), ("first_keys", 3), ("in_pieces", 1)])
def test_splits_outside_a_window_are_not_started(
    variant: Callable[[str], ModuleType], name: str, new: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bits are those of a call that starts all of them."""
    # two windows begin in a chunk of eight splits and end in the next
    lengths = [1100, 5, 129, 1029, 517]
    s, decoding = Sequences(lengths, [new] * 5, heads=2, kv_heads=1), variant(name).decode
    q, (k, v) = torch.stack(s.q), torch.full((2, 5, 1100, 1, 16), math.nan)
    for b, n in enumerate(s.lengths):
        k[b, :n], v[b, :n] = s.k[b], s.v[b]
    given, alone = VARIANTS[name].given(s, Cache(s, paged=False), False)

    def call(**sized: Any) -> tuple[int, tuple[torch.Tensor, ...]]:
        size = decoding.workspace_size(q, k, v, max_seqlen_q=new, max_seqlen_k=1100, **sized)
        old = torch.full((size,), math.nan)
        # the number of splits: each has a part for every row, with an LSE
        return size // (5 * new * 2 * 17), decoding.attend_with_cache(
            q, k, v, s.seq_lens, return_lse=True, workspace=old, **given
        )

    splits, few = call(**given)
    # a window begins in one split and ends in another; the first keys have a split of their own
    assert splits == (3 if name in ("first_keys", "in_pieces") else 2)
    monkeypatch.setattr(decoding, "_seen", lambda *numbers: (2**28, 0))
    monkeypatch.setattr(decoding, "CALLS", {})
    splits, every = call()
    assert splits == 18
    assert torch.equal(few[0], every[0])
    assert torch.equal(few[1], every[1])
    torch.testing.assert_close(few[0][0], expected(variant(name), s, alone)[0][0], rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("name", ["plain", "window", "first_keys", "in_pieces", "sinking"])
def test_splits_of_another_size(variant: Callable[[str], ModuleType], name: str) -> None:
    """Results agree up to rounding; sizes for which one split holds all keys give the same bits."""
    s, found = Sequences([30, 128, 129, 417], [1] * 4, seed=5), variant(name)
    given = VARIANTS[name].given(s, Cache(s), False)[0]
    sized = {key: x for key, x in given.items() if not isinstance(x, torch.Tensor)}
    q, (k, v) = torch.zeros(4, 4, 16), torch.zeros(2, 4, 1024, 2, 16)
    own, wide = (
        found.decode.workspace_size(q, k, v, max_seqlen_q=1, max_seqlen_k=1024, split_size=size, **sized)
        for size in (None, 1024)
    )
    assert wide == 16 * 17 < own
    usual = decode(found, name, s, Cache(s))[:2]
    one, other = (decode(found, name, s, Cache(s), split_size=size)[:2] for size in (512, 1024))
    for x, y, z in zip(usual, one, other, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-5, atol=2e-6)
        assert torch.equal(y, z)


def test_other_lengths_within_the_same_bounds(variant: Callable[[str], ModuleType]) -> None:
    """As in a graph: the same tensors, changed in place, and a workspace full of earlier values."""
    decoding = variant("plain").decode
    q, cache = torch.stack(PLAIN.q), Cache(PLAIN, room=200).fill(decoding.append)
    lengths, table = PLAIN.seq_lens, cache.table.int()
    workspace = torch.full((decoding.workspace_size(q, cache.k, cache.v, max_seqlen_q=1, max_seqlen_k=200),), math.nan)
    out = torch.full_like(q, math.nan)

    def call() -> torch.Tensor:
        given = {"page_table": table, "max_seqlen_k": 200, "workspace": workspace, "out": out}
        assert decoding.attend_with_cache(q, cache.k, cache.v, lengths, **given) is out
        return out.clone()

    long = call()
    for b in range(3):
        s = alone(b)
        assert torch.equal(long[b], decode(variant("plain"), "plain", s, Cache(s))[0][0])
    lengths.copy_(torch.tensor([33, 0, 64]))
    short = call()
    cut = Sequences([33], [1])
    cut.q, cut.k, cut.v = [PLAIN.q[0]], [PLAIN.k[0][:33]], [PLAIN.v[0][:33]]
    assert torch.equal(short[0], decode(variant("plain"), "plain", cut, Cache(cut))[0][0])
    assert (short[1] == 0).all()
    assert torch.equal(short[2], long[2])


def test_offsets_pass_32_bits(variant: Callable[[str], ModuleType]) -> None:
    s, apart = Sequences([20], [1]), 2**30
    # only pages that are written take memory
    memory = torch.empty(2 * apart + 1024, dtype=torch.float16)
    k, v = (memory[i * 512 :].as_strided((3, 16, 2, 16), (apart, 32, 16, 1)) for i in range(2))
    decoding = variant("plain").decode
    s.q, s.k, s.v = ([x.half() for x in rows] for rows in (s.q, s.k, s.v))
    slots = torch.cat([32 + torch.arange(16), torch.arange(4)])
    decoding.append(s.k[0], s.v[0], k, v, slots)
    table = torch.tensor([[2, 0]], dtype=torch.int32)
    out = decoding.attend_with_cache(torch.stack(s.q), k, v, s.seq_lens, page_table=table)
    torch.testing.assert_close(out[0], expected(variant("plain"), s)[0][0], rtol=2e-3, atol=2e-3)


def test_slots_and_positions_may_have_any_strides(variant: Callable[[str], ModuleType]) -> None:
    """For example one step's column of all slots, and a position that all sequences share."""
    decoding, found = variant("rotated").decode, []
    rows, q = torch.randn(2, 3, 1, 2, 16), torch.randn(3, 1, 4, 16)
    steps = torch.tensor([[35, 1, 0], [3, 9, 9], [17, 2, 8]])
    positions = torch.tensor([[3]], dtype=torch.int32).expand(3, 1)
    spread = torch.full((3, 7), 9, dtype=torch.int32)[:, :1].copy_(positions)
    seq_lens = torch.full((3,), 4, dtype=torch.int32)
    for slots, place in (
        (steps[:, :1], positions),
        (steps[:, 0].unsqueeze(1), spread),
        (steps[:, :1].clone(), positions.clone()),
    ):
        k, v = torch.zeros(2, 3, 16, 2, 16)
        decoding.append(*rows, k, v, slots, **ROPE, positions=place)
        out = decoding.attend_with_cache(q, k, v, seq_lens, **ROPE, positions=place)
        found.append(torch.cat([x.flatten() for x in (k, v, out)]))
    assert torch.equal(found[0], found[2]) and torch.equal(found[1], found[2])
    assert k.view(48, 2, 16).any((1, 2)).nonzero().flatten().tolist() == [3, 17, 35]


def test_calls_are_not_run_as_those_beside_boundaries(variant: Callable[[str], ModuleType]) -> None:
    """A call takes kernels that read 16 bytes at a time if its tensors allow it, whatever call came before it."""
    decoding = variant("plain").decode
    q, (k, v) = torch.randn(1, 1, 4, 16), torch.randn(2, 1, 16, 2, 16)
    beside = torch.empty(k.numel() + 1)[1:].view(k.shape).copy_(k)
    seq_lens = torch.tensor([16], dtype=torch.int32)
    decoding.CALLS.clear()
    for keys in (beside, k, beside, k, k):
        decoding.attend_with_cache(q, keys, v, seq_lens)
    assert len([key for key in decoding.CALLS if key is not None]) == 2
    assert decoding.CALLS[None].shapes[1][-1] == 0


@pytest.mark.parametrize("lengths", [(1, 1), (1, 300), (300, 1)])
def test_splits_that_many_rows_go_through(variant: Callable[[str], ModuleType], lengths: tuple[int, int]) -> None:
    """A chunk of a prompt: with so many rows, keys are not split."""
    s = Sequences(
        [max(lengths[0], 150), max(lengths[1], 9)], [min(140, n) for n in lengths], heads=2, kv_heads=1, seed=3
    )
    check(variant("plain"), "plain", s, Cache(s), packed=True)


def test_append_skips(variant: Callable[[str], ModuleType]) -> None:
    k, v = (torch.full((2, 4, 2, 16), math.nan) for _ in "kv")
    rows = torch.randn(2, 3, 2, 16)
    variant("plain").decode.append(*rows, k, v, torch.tensor([6, -1, 0]))
    for cache, new in ((k, rows[0]), (v, rows[1])):
        assert torch.equal(cache[1, 2], new[0])
        assert torch.equal(cache[0, 0], new[2])
        assert cache.isnan().sum() == 6 * 32


def test_merge_of_a_shared_prefix(variant: Callable[[str], ModuleType]) -> None:
    """Attention to keys that all sequences share is computed separately, and the sink joins once."""
    module = variant("sinking")
    decoding, sinks = module.decode, torch.tensor([0.5, 3.0, -1.0, -math.inf])
    s = Sequences([80, 90], [1, 1])
    s.k[1][:64], s.v[1][:64] = s.k[0][:64], s.v[0][:64]
    whole = expected(module, s, lambda b: {"sinks": sinks})
    q, cache = torch.stack(s.q), Cache(s, paged=False).fill(decoding.append)
    first = [x[:1, :64].expand(2, -1, -1, -1) for x in (cache.k, cache.v)]
    rest = [x[:, 64:] for x in (cache.k, cache.v)]
    parts = [
        decoding.attend_with_cache(q, *kv, lengths, sinks=None, return_lse=True)
        for kv, lengths in ((first, torch.full((2,), 64).int()), (rest, s.seq_lens - 64))
    ]
    nothing_seen = torch.full_like(q, math.nan), torch.full((2, 4, 1), -math.inf)
    outs, lses = zip(*parts, nothing_seen, strict=True)
    out, lse = decoding.merge(outs, lses, sinks)
    for b in range(2):
        torch.testing.assert_close(out[b], whole[0][b], rtol=1e-4, atol=2e-5)
        torch.testing.assert_close(lse[b], whole[1][b], rtol=1e-4, atol=2e-5)
    out, lse = decoding.merge(*([x] for x in nothing_seen))
    assert (out == 0).all()
    assert (lse == -math.inf).all()


@pytest.mark.parametrize(
    ("given", "error", "told"),
    [
        ({"max_seqlen_k": 20}, ValueError, "seq_lens: expected at most the 20 keys that max_seqlen_k"),
        (
            {"max_seqlen_k": 1000},
            ValueError,
            "max_seqlen_k: expected at most the 112 keys",
        ),
        ({"max_seqlen_q": 0}, ValueError, "max_seqlen_q: expected at least the 1 new tokens of q, got 0"),
        ({"seq_lens": [1, 2, 3]}, TypeError, "seq_lens: expected a tensor, got list"),
        ({"seq_lens": torch.tensor([1, 2, 3])}, TypeError, "seq_lens: expected int32, got int64"),
        ({"page_table": torch.zeros(2, 2, dtype=torch.int32)}, ValueError, r"page_table: expected shape \(3, pages\)"),
        ({"page_table": None}, None, ""),
        ({"q": torch.zeros(3, 1, 3, 16)}, ValueError, "k_cache: expected a number of heads that divides q's 3, got 2"),
        ({"q": torch.zeros(2, 1, 4, 16)}, ValueError, "q: expected 3 sequences as seq_lens has, got shape"),
        ({"q": torch.zeros(3, 1, 4, 16).half()}, TypeError, "k_cache: expected float16 or float8_e4m3fn, got float32"),
        ({"out": torch.zeros(3, 4, 16)}, ValueError, r"out: expected shape \(3, 1, 4, 16\), contiguous, got"),
        ({"k_starts": torch.zeros(3).int()}, ValueError, "k_starts: expected none beside page_table"),
        ({"page_table": None, "k_starts": torch.zeros(2).int()}, ValueError, r"k_starts: expected shape \(3,\)"),
        ({"page_table": None, "k_starts": torch.zeros(3)}, TypeError, "k_starts: expected int32, got float32"),
        (
            {"page_table": None, "k_starts": torch.tensor([0, 0, 49]).int()},
            ValueError,
            "k_starts: expected room for 64 keys from 49 on at 2, got 112 places",
        ),
        (
            {"page_table": None, "k_starts": torch.tensor([-1, 0, 0]).int()},
            ValueError,
            "k_starts: expected room for 100",
        ),
        ({"split_size": 100}, ValueError, "split_size: expected a multiple of 128, got 100"),
        ({"split_size": 0}, ValueError, "split_size: expected a multiple of 128, got 0"),
        ({"split_size": 128.0}, TypeError, "split_size: expected an int"),
        ({"workspace": torch.zeros(3)}, ValueError, r"workspace: expected \d+ values side by side, got shape \(3,\)"),
        ({"cu_seqlens_q": torch.arange(4).int()}, ValueError, r"q: expected \(T, Hq, D\) beside cu_seqlens_q, got"),
        ({"q": torch.zeros(3, 1, 4, 16, requires_grad=True)}, RuntimeError, "q: decoding has no backward pass"),
        ({"scale": math.nan}, ValueError, "scale: expected a finite number"),
    ],
)
def test_wrong_arguments(
    variant: Callable[[str], ModuleType], given: Values, error: type[Exception] | None, told: str
) -> None:
    cache = Cache(PLAIN)
    values = {"q": torch.stack(PLAIN.q), "seq_lens": PLAIN.seq_lens, **cache.pages()} | given
    q, lengths = values.pop("q"), values.pop("seq_lens")
    if values.get("page_table", 0) is None:
        cache = Cache(PLAIN, paged=False)
    if error is None:
        variant("plain").decode.attend_with_cache(q, cache.k, cache.v, lengths, **values)
        return
    with pytest.raises(error, match=told):
        variant("plain").decode.attend_with_cache(q, cache.k, cache.v, lengths, **values)


@pytest.mark.parametrize("seed", range(6))
def test_random_calls(variant: Callable[[str], ModuleType], seed: int) -> None:
    """Any lengths, new tokens, heads, sizes and pages; some sequences have no new token, some no key."""
    torch.manual_seed(seed)

    def drawn(*choices: int) -> int:
        return choices[int(torch.randint(len(choices), ()))]

    lengths = [drawn(0, 1, 17, 63, 64, 65, 130) for _ in range(3)] + [40]
    new = [min(n, drawn(0, 1, 2, 7)) for n in lengths[:3]] + [1]
    name, kv_heads = ("capped", "window", "first_keys")[seed % 3], drawn(1, 2, 3)
    s = Sequences(lengths, new, kv_heads * drawn(1, 3, 5), kv_heads, drawn(8, 16, 24), seed)
    s.v = [torch.randn(n, kv_heads, 12) for n in lengths]
    check(variant(name), name, s, Cache(s, drawn(1, 5, 16, 64), swapped=bool(seed % 2)), packed=True)


def short(*shape: int) -> torch.Tensor:
    """Numbers that float8 holds exactly after division by a power of 2, including the largest of each row."""
    found = torch.randint(-13, 14, shape) / 16
    found[..., 0] = 14 / 16
    return found


@pytest.mark.parametrize("form", ["one", "heads", "sequences", "places"])
def test_caches_of_float8(variant: Callable[[str], ModuleType], form: str) -> None:
    """A cache gives the results of its values times their scales."""
    s, decoding = Sequences(PLAIN.lengths, PLAIN.new), variant("plain").decode
    s.k, s.v = ([short(n, 2, 16) for n in s.lengths] for _ in "kv")
    cache = Cache(s)
    cache.k, cache.v = (x.to(torch.float8_e4m3fn) for x in (cache.k, cache.v))
    shape = {"one": (), "heads": (2,), "sequences": (3, 2), "places": cache.k.shape[:3]}[form]
    scales = [torch.exp2(torch.randint(-6, -2, shape).float()) for _ in "kv"]
    for b in range(3):
        # scales of sequences are passed one by one: `append` does not know sequences
        k_scale, v_scale = (x[b] if form == "sequences" else x for x in scales)
        decoding.append(s.k[b], s.v[b], cache.k, cache.v, cache.slots(b), k_scale=k_scale, v_scale=v_scale)
        place = cache.slots(b) // 16, cache.slots(b) % 16
        for pages, scale, rows in ((cache.k, k_scale, s.k[b]), (cache.v, v_scale, s.v[b])):
            factor = scale[place] if form == "places" else scale
            assert torch.equal(pages.float()[place] * (factor[..., None] if factor.dim() else factor), rows)
    assert form != "places" or scales[0].unique().tolist()[0] == 14 / 16 / 448
    given = {"k_scale": scales[0], "v_scale": scales[1], **cache.pages()}
    out, lse = decoding.attend_with_cache(torch.stack(s.q), cache.k, cache.v, s.seq_lens, return_lse=True, **given)
    wanted, wanted_lse = expected(variant("plain"), s)
    for x, y in zip((*out, *lse), (*wanted, *wanted_lse), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(("new", "page"), [(1, 16), (3, 0), (12, 64)])
def test_values_of_float8_are_read_two_columns_at_a_time(
    variant: Callable[[str], ModuleType], new: int, page: int
) -> None:
    """All float8 numbers: by few rows, as columns of products, and by many, whose columns are read one by one."""
    module, s = variant("window"), Sequences([100, 64, 40], [new] * 3, width=34, dtype=torch.float16)
    launch = importlib.import_module(f"{module.__name__}.decode_launch")
    cache, one = Cache(s, page or 16, paged=bool(page)), torch.tensor(1.0)
    bits = torch.arange(cache.k.numel()) * 7 % 127 + torch.arange(cache.k.numel()) % 2 * 128
    cache.k, cache.v = (x.to(torch.uint8).view(torch.float8_e4m3fn).view(cache.k.shape) for x in (bits, bits.flip(0)))
    given = {"k_scale": one, "v_scale": one, "scale": 0.001, "return_lse": True, **cache.pages()}
    found = []
    for v in (cache.v, at_odd_places(cache.v)):
        assert launch.in_twos(s.q[0], v) == (v is cache.v) and not launch.in_twos(s.q[0].float(), v)
        found.append(module.decode.attend_with_cache(torch.stack(s.q), cache.k, v, s.seq_lens, **given))
    for x, y in zip(*found, strict=True):
        assert torch.equal(x, y) and not x.isnan().any()


@pytest.mark.parametrize(("form", "new", "page"), [("one", 1, 16), ("heads", 2, 0), ("sequences", 1, 64)])
def test_a_head_may_be_read_beside_another(
    variant: Callable[[str], ModuleType], form: str, new: int, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of two heads, 64 bytes each, are read together, and each has its own scale."""
    s = Sequences([100, 64, 40], [new] * 3, heads=12, kv_heads=4, width=64, dtype=torch.float16)
    module, cache = variant("window"), Cache(s, page or 16, paged=bool(page))
    launch = importlib.import_module(f"{module.__name__}.decode_launch")
    cache.k, cache.v = (torch.randn(x.shape).to(torch.float8_e4m3fn) for x in (cache.k, cache.v))
    shape = {"one": (), "heads": (4,), "sequences": (3, 4)}[form]
    given = {f"{x}_scale": torch.rand(shape) for x in "kv"} | {"return_lse": True, **cache.pages()}
    found, chosen, choose = [], list[int](), launch.side_by_side

    def noted(*taken: Any) -> tuple[int, int]:
        heads, block_m = choose(*taken)
        chosen.append(heads)
        return heads, block_m

    monkeypatch.setattr(launch, "side_by_side", noted)
    for least in (0, 2**30):
        monkeypatch.setattr(launch, "PAIRED", least)
        forget(module)
        found.append(module.decode.attend_with_cache(torch.stack(s.q), cache.k, cache.v, s.seq_lens, **given))
    assert chosen == [2, 1]
    for together, alone in zip(*found, strict=True):
        torch.testing.assert_close(together, alone)


def test_rows_of_a_tile_may_pass_32_bits(variant: Callable[[str], ModuleType]) -> None:
    """Offsets within a tile have 32 bits whenever they fit."""
    decoding, n, stride = variant("plain").decode, 33, 2**31 // 31 + 1
    k, v = torch.randn(2, 1, n, 1, 16).to(torch.float8_e4m3fn)
    # most of it is never touched
    far = torch.empty(n * stride, dtype=torch.uint8).view(torch.float8_e4m3fn)
    far_k, far_v = (far.as_strided(k.shape, (0, stride, 16, 1), 16 * i) for i in range(2))
    far_k.copy_(k)
    far_v.copy_(v)
    given = {"q": torch.randn(1, 4, 16).half(), "seq_lens": torch.tensor([n], dtype=torch.int32)}
    given |= {"k_scale": torch.tensor(1.0), "v_scale": torch.tensor(1.0)}
    out = decoding.attend_with_cache(k_cache=far_k, v_cache=far_v, **given)
    assert torch.equal(out, decoding.attend_with_cache(k_cache=k, v_cache=v, **given))


def test_scales_stand_beside_caches_of_float8_alone(variant: Callable[[str], ModuleType]) -> None:
    cache, decoding = Cache(PLAIN), variant("plain").decode
    q, one = torch.stack(PLAIN.q), torch.tensor(1.0)
    with pytest.raises(ValueError, match="k_scale: expected a cache of float8_e4m3fn beside it, got float32"):
        decoding.attend_with_cache(q, cache.k, cache.v, PLAIN.seq_lens, k_scale=one, v_scale=one, **cache.pages())
    cache.k, cache.v = (x.to(torch.float8_e4m3fn) for x in (cache.k, cache.v))
    with pytest.raises(ValueError, match="k_scale: expected one beside a cache of float8_e4m3fn, got None"):
        decoding.attend_with_cache(q, cache.k, cache.v, PLAIN.seq_lens, **cache.pages())
    with pytest.raises(ValueError, match="v_scale: expected one of the shapes"):
        decoding.attend_with_cache(
            q, cache.k, cache.v, PLAIN.seq_lens, k_scale=one, v_scale=torch.ones(2, 2, 2, 2), **cache.pages()
        )


def latent(lengths: list[int], new: list[int], **more: Any) -> Sequences:
    """Sequences of latent heads."""
    return Sequences(lengths, new, **LATENT, **more)


@pytest.mark.parametrize("new", [1, 3])
def test_all_heads_of_a_latent_model(variant: Callable[[str], ModuleType], new: int) -> None:
    """128 heads over one key head make several tiles of rows, here across a boundary of splits."""
    s = latent([290, 40], [new, new], heads=128)
    check(variant("latent"), "latent", s, Cache(s))


def values_in_keys(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Records for each call whether its launch uses a tile of keys as the tile of values too."""
    runtime = importlib.import_module(f"{module.__name__}.runtime")
    found, launch = [], runtime.launch

    def noted(cache: Any, kernel: Any, blocks: Any, given: Any, grid: Any, from_shapes: Callable[[], Values]) -> None:
        if "V_IN_K" in kernel.arg_names:
            found.append(from_shapes()["V_IN_K"])
        launch(cache, kernel, blocks, given, grid=grid, from_shapes=from_shapes)

    monkeypatch.setattr(runtime, "launch", noted)
    return found


def test_rows_that_hold_keys_and_values_are_read_once(
    variant: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    module, s = variant("latent"), latent([100, 5], [1, 1])
    decoding, cache, q = module.decode, Cache(s).fill(module.decode.append), torch.stack(s.q)
    found = values_in_keys(module, monkeypatch)

    def call(v: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = decoding.attend_with_cache(q, cache.k, v, s.seq_lens, **cache.pages())
        return out

    out = call(cache.v)
    # strides like those of a view, but separate numbers
    other = cache.k.flip(-1)[..., :512]
    assert other.stride() == cache.v.stride()
    wanted = [
        module.reference(s.q[b][None], s.k[b][None], s.k[b].flip(-1)[None, ..., :512])[0] for b in range(len(s.lengths))
    ]
    for x, y in zip(call(other), wanted, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=2e-5)
    assert torch.equal(call(cache.v.contiguous()), out)
    # tiles of keys are wider than these values
    assert torch.equal(call(cache.v[..., :200]), out[..., :200])
    assert found == [True, False, False, False]


@pytest.mark.parametrize(("new", "block_m", "turned"), [(4, 8, True), (5, 16, True), (9, 32, False), (40, 64, False)])
@pytest.mark.parametrize("name", ["plain", "capped", "biased"])
def test_how_rows_stand_in_products(
    variant: Callable[[str], ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    new: int,
    block_m: int,
    turned: bool,
) -> None:
    """Few rows (here of two heads each) are the columns of products; results agree either way."""
    module, s = variant(name), Sequences([100, 47], [new, min(new, 47)], **VARIANTS[name].shape)
    found, runtime = [], importlib.import_module(f"{module.__name__}.runtime")
    launch = runtime.launch

    def seen(*given: Any, from_shapes: Callable[[], Values], **more: Any) -> None:
        found.append(from_shapes())
        launch(*given, from_shapes=from_shapes, **more)

    monkeypatch.setattr(runtime, "launch", seen)
    check(module, name, s, Cache(s))
    given = next(one for one in found if "TURNED" in one)
    assert (given["BLOCK_M"], given["TURNED"]) == (block_m, turned)


def test_a_new_row_of_keys_and_values_is_stored_once(variant: Callable[[str], ModuleType]) -> None:
    s, decoding = latent([20], [1]), variant("latent").decode
    cache = Cache(s)
    decoding.append(s.k[0], torch.full_like(s.v[0], math.nan), cache.k, cache.v, cache.slots(0))
    place = cache.slots(0) // cache.size, cache.slots(0) % cache.size
    assert torch.equal(cache.k[place], s.k[0])


@pytest.mark.parametrize("form", ["one", "places"])
def test_latent_caches_of_float8(variant: Callable[[str], ModuleType], form: str) -> None:
    """One scale serves keys and values."""
    s, decoding = latent([100, 5], [2, 2]), variant("latent").decode
    s.k = [short(n, 1, 576) for n in s.lengths]
    s.v = [x[..., :512] for x in s.k]
    cache = Cache(s)
    cache.k = cache.k.to(torch.float8_e4m3fn)
    cache.v = cache.k[..., :512]
    scale = torch.exp2(torch.randint(-6, -2, () if form == "one" else cache.k.shape[:3]).float())
    for b in range(2):
        decoding.append(s.k[b], s.v[b], cache.k, cache.v, cache.slots(b), k_scale=scale, v_scale=scale)
        with pytest.raises(ValueError, match="v_scale: expected k_scale itself, as v_cache is columns of k_cache"):
            decoding.append(s.k[b], s.v[b], cache.k, cache.v, cache.slots(b), k_scale=scale, v_scale=scale.clone())
    given = {"k_scale": scale, "v_scale": scale, **cache.pages()}
    out, lse = decoding.attend_with_cache(torch.stack(s.q), cache.k, cache.v, s.seq_lens, return_lse=True, **given)
    wanted, wanted_lse = expected(variant("latent"), s)
    for x, y in zip((*out, *lse), (*wanted, *wanted_lse), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(
    ("name", "width", "v_width", "told"),
    [
        ("plain", 513, 16, "q: expected a head size from 1 to 512, got 513"),
        ("plain", 16, 513, "v_cache: expected a head size from 1 to 512, got 513"),
        ("latent", 577, 16, "q: expected a head size from 1 to 576, got 577"),
        ("latent", 576, 513, "v_cache: expected a head size from 1 to 512, got 513"),
    ],
)
def test_wider_heads_are_refused(
    variant: Callable[[str], ModuleType], name: str, width: int, v_width: int, told: str
) -> None:
    s = Sequences([5], [1], kv_heads=1, width=width, v_width=v_width)
    cache, decoding = Cache(s, paged=False), variant(name).decode
    with pytest.raises(ValueError, match=told):
        decoding.attend_with_cache(torch.stack(s.q), cache.k, cache.v, s.seq_lens)
    with pytest.raises(ValueError, match=told.replace("q:", "k_cache:")):
        decoding.append(s.k[0], s.v[0], cache.k, cache.v, cache.slots(0))


MEASURED = ["plain", "window", "in_pieces", "first_keys", "capped", "sinking", "moody", "drafted", "by_head", "latent"]


@pytest.mark.parametrize("name", MEASURED)
def test_what_keys_get_of_the_weights(tmp_path: Path, name: str) -> None:
    """Keys that no new token sees get nothing, and neither do those after a sequence's last key."""
    module = package(tmp_path, f"summed_{name}", VARIANTS[name].text, exports="decode, statistics")
    s = Sequences([70, 7, 0], [3, 3, 0], **VARIANTS[name].shape, seed=4)
    s.q[2] = s.q[2].new_zeros(0, *s.q[2].shape[1:])
    without_pages: Values = {"paged": False, "starts": (5, 3, 0)}
    c = Cache(s, page=8, **without_pages if name in ("window", "moody", "latent") else {})
    found, given = [], VARIANTS[name].given(s, c, True)
    for more in ({}, {"return_key_sums": True}):
        out, lse, *sums = measured(module, name, s, c, given, more)
        found.append((out, lse))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
    assert sums[0].shape == (3, s.heads, c.room)
    for b, n in enumerate(s.lengths):
        assert (sums[0][b, :, n:] == 0).all()
        if n:
            rows = given[1](b)
            _, wanted = module.reference(s.q[b][None], s.k[b][None], s.v[b][None], return_key_sums=True, **rows)
            torch.testing.assert_close(sums[0][b, :, :n], wanted[0], rtol=1e-4, atol=2e-5)


def widened(s: Sequences, c: Cache) -> Cache:
    """A cache with the same numbers in float32."""
    wide = copy.copy(c)
    wide.of = copy.copy(s)
    wide.of.k, wide.of.v = ([x.float() for x in rows] for rows in (s.k, s.v))
    wide.k = c.k.float()
    wide.v = wide.k[..., : c.v.shape[-1]] if s.latent else c.v.float()
    return wide


NARROW = ["plain", "rotated", "drafted", "moody", "decaying", "latent_scored", "latent_rotated"]


@pytest.mark.parametrize("name", NARROW)
def test_bfloat16_is_rounded_at_both_ends_in_the_interpreter(variant: Callable[[str], ModuleType], name: str) -> None:
    one, decoding = VARIANTS[name], variant(name).decode
    s = Sequences([40, 9], [2, 2], dtype=torch.bfloat16, **one.shape)
    c = Cache(s)
    given, alone = one.given(s, c, False)
    wide, keys = widened(s, c), turned(one, s, alone)
    wide.fill(decoding.append, keys)
    c.fill(decoding.append, keys)
    for narrow, known in ((c.k, wide.k), (c.v, wide.v)):
        torch.testing.assert_close(narrow, known.bfloat16(), rtol=0, atol=0, equal_nan=True)
    wide, q, given = widened(s, c), torch.stack(s.q), given | c.pages()
    for more in ({}, {"bitwise": "training"}) if name != "decaying" else ({},):
        for out in (None, torch.empty(2, 2, s.heads, s.v[0].shape[-1], dtype=torch.bfloat16)):
            found, lse = decoding.attend_with_cache(q, c.k, c.v, s.seq_lens, return_lse=True, out=out, **given, **more)
            known, known_lse = decoding.attend_with_cache(
                q.float(), wide.k, wide.v, s.seq_lens, return_lse=True, **given, **more
            )
            assert out is None or found is out
            assert torch.equal(found, known.bfloat16()) and torch.equal(lse, known_lse)


def test_bfloat16_beside_float8_in_the_interpreter(variant: Callable[[str], ModuleType]) -> None:
    decoding, s = variant("plain").decode, Sequences([40, 9], [2, 2], dtype=torch.bfloat16)
    c = Cache(s)
    caches = [[torch.zeros_like(x).to(torch.float8_e4m3fn) for x in (c.k, c.v)] for _ in range(2)]
    scales = {"k_scale": torch.tensor(0.5), "v_scale": torch.tensor(0.25)}
    for b in range(2):
        decoding.append(s.k[b], s.v[b], *caches[0], c.slots(b), **scales)
        decoding.append(s.k[b].float(), s.v[b].float(), *caches[1], c.slots(b), **scales)
    for x, y in zip(*caches, strict=True):
        assert torch.equal(x.float(), y.float())
    q, given = torch.stack(s.q), {**scales, **c.pages()}
    out, known = (decoding.attend_with_cache(x, *caches[0], s.seq_lens, **given) for x in (q, q.float()))
    assert torch.equal(out, known.bfloat16())
