"""Decoding with the bits of training: rows equal those of `attention` on the whole sequence, whatever the call."""

from __future__ import annotations

import importlib
import inspect
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from caches import Cache, Sequences, Values, package
from test_decode import PLAIN, ROPE, SHIPPED, VARIANTS, joined, of_name
from torch._dynamo.testing import CompileCounterWithBackend

from attnforge.source import resources

pytestmark = pytest.mark.slow

Found = tuple[torch.Tensor, torch.Tensor]
Find = Callable[[str], ModuleType]
SUMS = "sums over tokens start at the first row of a tile: the bits of a row depend on where that is"
PACKED = "attention of this package takes packed sequences alone, and those of a cache have room behind them"
REFUSED = {
    "blocked": "the bits of a row depend on its tile with a mask such as block_sparse",
    "packed_training": PACKED,
    "packed_rows": PACKED,
    "left_out_packed": PACKED,
    "decaying_packed": PACKED,
    **dict.fromkeys(("decaying", "decaying_window", "decaying_pieces", "summed", "summed_both_ways"), SUMS),
}
MORE = {
    # axes in another order, and inputs without a batch axis
    "turned_axes": "score: [expr: 'score + mood[q] * mood[k]']\ninputs: {mood: {axes: [head, token, batch]}}",
    "by_query": "mask: [causal]\nscore: [expr: 'score * calm']\ninputs: {calm: {axes: [head, query, batch]}}",
    "shared_rows": "mask: [causal]\nscore: [expr: 'score * calm']\ninputs: {calm: {axes: [head, query]}}",
    "by_place": "mask: [causal]\nscore: [expr: 'score + far']\ninputs: {far: {axes: [head, key]}}",
    "divided": "mask: [causal, expr: 'step > 0 and q - k < 9//step']\ninputs: {step: {dtype: int, axes: [], min: 0}}",
    "both": "mask: [causal]",
}
GIVEN = {"cos", "sin", "window", "slopes", "positions", "sinks", "rel_bias", "tree_mask", "prefix_len"}
SERVED = [name for name in VARIANTS if name not in REFUSED]


@pytest.fixture(scope="module")
def variant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Find]:
    """Renders a variant when it is first asked for; products are summed as on a GPU, each row by itself."""
    folder, made = tmp_path_factory.mktemp("decode_bits"), dict[str, ModuleType]()
    texts = {name: one.text for name, one in VARIANTS.items()} | MORE
    patched = pytest.MonkeyPatch()

    def find(name: str) -> ModuleType:
        if name not in made:
            exports = "decode, statistics" if name == "both" else "decode"
            made[name] = package(folder, f"bits_of_{name}", texts[name], exports=exports)
            patched.setattr("numpy.matmul", importlib.import_module(f"bits_of_{name}.checks").row_by_row)
        return made[name]

    yield find
    patched.undo()


def whole(module: ModuleType, s: Sequences, b: int, given: Values) -> Found:
    """Results of `attention` for a sequence's new tokens: after earlier ones, unless a keyword has a query axis."""
    chunk = any(word in given for word in ("q_segments", "tree_mask", "bias", "calm", "near")) or not s.lengths[b]
    before = torch.randn(0 if chunk else s.lengths[b] - s.new[b], *s.q[b].shape[1:], dtype=s.q[b].dtype)
    q = torch.cat([before, s.q[b]])
    out, lse = module.attention(q[None], s.k[b][None], s.v[b][None], return_lse=True, **given)
    return out[0, len(before) :], lse[0, :, len(before) :]


def call(
    module: ModuleType, s: Sequences, c: Cache, given: Values, alone: Callable[[int], Values], **more: Any
) -> list[Found]:
    """Out and LSE of each sequence's new tokens over a cache that is filled here."""

    def turned(b: int) -> Values:
        found = alone(b)
        if "cos" not in found:
            return {}
        place = found.get("positions")
        place = torch.arange(s.lengths[b]) if place is None else place[0]
        return {"cos": found["cos"], "sin": found["sin"], "positions": place}

    packed = "cu_seqlens_q" in more
    c.fill(module.decode.append, turned)
    out, lse = module.decode.attend_with_cache(
        joined(s.q, packed), c.k, c.v, s.seq_lens, return_lse=True, bitwise="training", **c.pages(), **given, **more
    )
    if not packed:
        return list(zip(out, lse, strict=True))
    assert (out[sum(s.new) :] == 0).all()
    assert (lse[:, sum(s.new) :] == -math.inf).all()
    outs, lses = out[: sum(s.new)].split(s.new), lse[:, : sum(s.new)].split(s.new, 1)
    return list(zip(outs, lses, strict=True))


def hold(module: ModuleType, s: Sequences, found: list[Found], alone: Callable[[int], Values]) -> None:
    """Checks that results have the bits of training."""
    for b, (out, lse) in enumerate(found):
        wanted, wanted_lse = whole(module, s, b, alone(b))
        assert torch.equal(out, wanted), (b, (out - wanted).abs().max())
        assert torch.equal(lse, wanted_lse), b


def check(module: ModuleType, name: str, s: Sequences, c: Cache, **more: Any) -> None:
    """Checks that a call of one of the variants has the bits of training."""
    given, alone = VARIANTS[name].given(s, c, "cu_seqlens_q" in more)
    hold(module, s, call(module, s, c, given, alone, **more), alone)


@pytest.mark.parametrize("name", SERVED)
def test_one_new_token(variant: Find, name: str) -> None:
    s = Sequences([100, 5, 64], [1, 1, 1], **VARIANTS[name].shape)
    check(variant(name), name, s, Cache(s))


@pytest.mark.parametrize("name", SERVED)
def test_several_new_tokens_of_a_cache_without_pages(variant: Find, name: str) -> None:
    s = Sequences([70, 7], [3, 3], **VARIANTS[name].shape, seed=1)
    check(variant(name), name, s, Cache(s, paged=False, room=96))


@pytest.mark.parametrize("name", SERVED)
def test_new_tokens_one_behind_the_other(variant: Find, name: str) -> None:
    s = Sequences([67, 9, 40], [5, 1, 2], **VARIANTS[name].shape, seed=2)
    check(variant(name), name, s, Cache(s, page=8), **s.cuts())


@pytest.mark.parametrize("name", ["plain", "first_keys", "rotated", "documented", "moody", "biased", "latent"])
def test_the_first_key_may_stand_anywhere(variant: Find, name: str) -> None:
    s = Sequences([70, 4, 7], [3, 3, 3], **VARIANTS[name].shape, seed=3)
    check(variant(name), name, s, Cache(s, paged=False, starts=(9, 0, 89)))


@pytest.mark.parametrize("name", [name for name in SHIPPED if name != "forgetting_transformer"])
def test_shipped_variants(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = resources.variants()[name].read_text()
    kept = [line for line in text.splitlines() if not line.startswith(("name:", "exports:"))]
    module = package(tmp_path, f"bits_shipped_{name}", "\n".join(kept))
    monkeypatch.setattr("numpy.matmul", importlib.import_module(f"{module.__name__}.checks").row_by_row)
    ours = {*inspect.signature(module.attention).parameters} & GIVEN
    for new in (1, 4):
        s = Sequences([90, 6], [new, new], kv_heads=4 if "heads: equal" in text else 2, seed=new)
        cache = Cache(s, page=8)
        found = {x: of_name(x, s, cache) for x in ours}

        def alone(b: int, found: Values = found) -> Values:
            return {x: one(b) for x, (_, one) in found.items()}

        given = {x: value for x, (value, _) in found.items()}
        hold(module, s, call(module, s, cache, given, alone), alone)


LONG = Sequences([300, 129, 64], [2, 2, 2])


@pytest.mark.parametrize(("page", "paged"), [(1, True), (8, True), (16, True), (16, False)])
def test_bits_over_several_splits(variant: Find, page: int, paged: bool) -> None:
    """Splits of 64 keys are joined in another order: without the keyword the bits differ."""
    module, cache = variant("rotated"), Cache(LONG, page=page, paged=paged, room=320)
    angles = torch.randn(320, 8)
    given = {"cos": angles.cos(), "sin": angles.sin()}
    found = call(module, LONG, cache, given, lambda b: given)
    hold(module, LONG, found, lambda b: given)
    split = module.decode.attend_with_cache(
        torch.stack(LONG.q), cache.k, cache.v, LONG.seq_lens, **cache.pages(), **given
    )
    torch.testing.assert_close(split[0], found[0][0], rtol=1e-4, atol=2e-5)
    assert not torch.equal(split[0], found[0][0])


def test_bits_hang_on_no_bound(variant: Find) -> None:
    module, s = variant("plain"), Sequences([100, 40], [5, 2])
    usual = call(module, s, Cache(s, room=256), {}, lambda b: {}, **s.cuts())
    for more in ({"max_seqlen_k": 100}, {"max_seqlen_q": 7}):
        other = call(module, s, Cache(s, room=256), {}, lambda b: {}, **s.cuts() | more)
        for x, y in zip(usual, other, strict=True):
            assert torch.equal(x[0], y[0]) and torch.equal(x[1], y[1])


@pytest.mark.parametrize("name", ["plain", "capped", "rotated", "raised"])
def test_a_scale_below_0(variant: Find, name: str) -> None:
    cache, more = Cache(PLAIN), {"scale": -0.3}
    given, alone = VARIANTS[name].given(PLAIN, cache, False)
    found = call(variant(name), PLAIN, cache, given | more, lambda b: alone(b) | more)
    hold(variant(name), PLAIN, found, lambda b: alone(b) | more)


def test_tokens_without_an_axis_of_their_own(variant: Find) -> None:
    """(B, Hq, D) stands for one new token of each sequence."""
    module, s = variant("rotated"), Sequences([40, 9], [1, 1])
    cache = Cache(s).fill(module.decode.append, lambda b: {**ROPE, "positions": torch.arange(s.lengths[b])})
    attend, given = module.decode.attend_with_cache, {**cache.pages(), **ROPE, "return_lse": True}
    given["bitwise"] = "training"
    for more in ({}, {"positions": torch.tensor([3, 11])}):
        out, lse = attend(torch.cat(s.q), cache.k, cache.v, s.seq_lens, **given, **more)
        more = {x: y[:, None] for x, y in more.items()}
        rows, rows_lse = attend(torch.stack(s.q), cache.k, cache.v, s.seq_lens, **given, **more)
        assert torch.equal(out, rows[:, 0]) and torch.equal(lse, rows_lse[..., 0].T)
        assert lse.is_contiguous()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", ["turned_axes", "by_query"])
def test_axes_in_any_order(variant: Find, name: str, packed: bool) -> None:
    """Axes of heads and sequences may be anywhere, for inputs of keys and of new tokens."""
    module, s = variant(name), Sequences([67, 40], [3, 3])
    cache = Cache(s, page=8)
    word, lengths = ("mood", s.lengths) if name == "turned_axes" else ("calm", s.new)
    rows = [torch.randn(n, s.heads) for n in lengths]
    if name == "turned_axes":
        given = cache.stored(rows).permute(2, 1, 0)
    else:
        given = joined(rows, packed).movedim(-1, 0) if packed else torch.stack(rows).permute(2, 1, 0)

    def alone(b: int) -> Values:
        return {word: rows[b].T[..., None]}

    found = call(module, s, cache, {word: given}, alone, **(s.cuts() if packed else {}))
    hold(module, s, found, alone)


def test_what_all_sequences_share(variant: Find) -> None:
    """Values by place count from a sequence's first key; values by row cannot be split up if tokens are packed."""
    module, s = variant("by_place"), Sequences([70, 7], [3, 3])
    far = torch.randn(4, 96)
    found = call(module, s, Cache(s, paged=False, starts=(9, 80)), {"far": far}, lambda b: {})
    hold(module, s, found, lambda b: {"far": far[:, : s.lengths[b]]})
    module, calm = variant("shared_rows"), torch.randn(4, 3)
    hold(module, s, call(module, s, Cache(s), {"calm": calm}, lambda b: {}), lambda b: {"calm": calm})
    with pytest.raises(ValueError, match="calm: all sequences share it in training"):
        call(module, s, Cache(s), {"calm": torch.randn(4, 8)}, lambda b: {}, **s.cuts())


@pytest.mark.parametrize("name", ["plain", "sinking", "rotated"])
def test_sequences_without_keys(variant: Find, name: str) -> None:
    module, s = variant(name), Sequences([0, 3], [1, 1])
    given, alone = VARIANTS[name].given(s, Cache(s), False)
    (out, lse), other = call(module, s, Cache(s), given, alone)
    assert (out == 0).all()
    torch.testing.assert_close(lse[:, 0], given.get("sinks", torch.full((4,), -math.inf)))
    wanted = whole(module, s, 1, alone(1))
    assert torch.equal(other[0], wanted[0]) and torch.equal(other[1], wanted[1])
    nothing = {"q": torch.randn(2, 4, 16), "cu_seqlens_q": torch.tensor([0]).int(), "max_seqlen_q": 1}
    lengths, table = torch.empty(0, dtype=torch.int32), torch.empty(0, 1, dtype=torch.int32)
    pages = torch.randn(2, 3, 16, 2, 16)
    attend = module.decode.attend_with_cache
    more = {"return_lse": True, "bitwise": "training", **given}
    out, lse = attend(k_cache=pages[0], v_cache=pages[1], seq_lens=lengths, page_table=table, **nothing, **more)
    assert (out == 0).all() and (lse == -math.inf).all()
    for none in (pages[:, :0], pages):
        table = torch.empty(2, 1 if none is pages else 0, dtype=torch.int32).fill_(-9)
        given = {"seq_lens": torch.zeros(2, dtype=torch.int32), "page_table": table, **more}
        assert (attend(torch.randn(2, 4, 16), none[0], none[1], **given)[0] == 0).all()


def test_sequences_shorter_than_their_new_tokens(variant: Find) -> None:
    """Under a causal mask, rows before the first key see nothing."""
    for name in ("plain", "rotated", "moody"):
        module, s = variant(name), Sequences([2, 40], [4, 4])
        cache = Cache(s)
        given, alone = VARIANTS[name].given(s, cache, False)
        found = call(module, s, cache, given, alone)
        assert (found[0][0][:2] == 0).all() and (found[0][1][:, :2] == -math.inf).all()
        s.q[0], s.new = s.q[0][2:], [2, 4]
        hold(module, s, [(found[0][0][2:], found[0][1][:, 2:]), found[1]], alone)


def test_queries_that_no_position_has(variant: Find) -> None:
    """If an input is read at the positions of queries, those before the first key are padding under any mask."""
    module, s = variant("turned_axes"), Sequences([2, 40], [4, 4])
    cache, rows = Cache(s), [torch.randn(n, s.heads) for n in s.lengths]
    given = {"mood": cache.stored(rows).permute(2, 1, 0)}
    found = call(module, s, cache, given, lambda b: {})
    assert (found[0][0][:2] == 0).all() and (found[0][1][:, :2] == -math.inf).all()
    s.q[0], s.new = s.q[0][2:], [2, 4]
    found[0] = (found[0][0][2:], found[0][1][:, 2:])
    hold(module, s, found, lambda b: {"mood": rows[b].T[..., None]})


def test_pages_of_others_do_not_show(variant: Find) -> None:
    """Entries after a sequence's last page may name pages of other sequences, or no page at all."""
    module, s = variant("plain"), Sequences([40, 9], [1, 1])
    cache = Cache(s, room=96).fill(module.decode.append)
    table = cache.pages()["page_table"]
    for b, n in enumerate(s.lengths):
        table[b, -(-n // 16) :] = torch.tensor([-5, 2**31 - 1, 99, -(2**31), 7, 8])[: 6 - -(-n // 16)]
    given = {"page_table": table, "return_lse": True, "bitwise": "training"}
    found = module.decode.attend_with_cache(torch.stack(s.q), cache.k, cache.v, s.seq_lens, **given)
    hold(module, s, list(zip(*found, strict=True)), lambda b: {})


@pytest.mark.parametrize("name", ["window", "called_window", "first_keys", "in_pieces", "latent_scored"])
def test_pages_before_a_window_may_be_anybodys(variant: Find, name: str) -> None:
    module, s = variant(name), Sequences([107, 64], [2, 2], **VARIANTS[name].shape)
    given, alone = VARIANTS[name].given(s, Cache(s), False)
    cache = Cache(s, page=4).fill(module.decode.append)
    table = cache.pages()["page_table"]
    reach = {"called_window": 32, "first_keys": 23, "latent_scored": 39}.get(name, 19)
    for b, n in enumerate(s.lengths):
        first = (n - 2) // 20 * 20 if name == "in_pieces" else n - 2 - reach
        table[b, int(name in ("first_keys", "in_pieces")) : first // 4] = cache.nobodys
    more = {"page_table": table, "return_lse": True, "bitwise": "training"}
    found = module.decode.attend_with_cache(torch.stack(s.q), cache.k, cache.v, s.seq_lens, **given, **more)
    hold(module, s, list(zip(*found, strict=True)), alone)


@pytest.mark.parametrize("step", [0, 7])
def test_a_condition_keeps_a_number_from_dividing(variant: Find, step: int) -> None:
    module, s = variant("divided"), Sequences([40, 9], [1, 1])
    cache = Cache(s).fill(module.decode.append)
    more = {"step": step, "return_lse": True, "bitwise": "training", **cache.pages()}
    found = module.decode.attend_with_cache(torch.stack(s.q), cache.k, cache.v, s.seq_lens, **more)
    hold(module, s, list(zip(*found, strict=True)), lambda b: {"step": step})


def test_lengths_may_change_in_place(variant: Find) -> None:
    """As in a graph: the same tensors with other values."""
    module, cuts = variant("plain"), torch.tensor([0, 3, 4], dtype=torch.int32)
    q, k, v = torch.randn(4, 4, 16), *torch.randn(2, 2, 96, 2, 16)
    lengths, out = torch.tensor([90, 20], dtype=torch.int32), torch.full((4, 4, 16), math.nan)
    for longs, ends in (([90, 20], [0, 3, 4]), ([33, 50], [0, 1, 4]), ([5, 0], [1, 3, 3])):
        lengths.copy_(torch.tensor(longs))
        cuts.copy_(torch.tensor(ends))
        more = {"cu_seqlens_q": cuts, "max_seqlen_q": 3, "out": out, "workspace": torch.empty(0)}
        assert module.decode.attend_with_cache(q, k, v, lengths, bitwise="training", **more) is out
        for b, n in enumerate(longs):
            first, end = ends[b : b + 2]
            wanted = module.attention(q[None, first:end], k[None, b, :n], v[None, b, :n])[0]
            assert torch.equal(out[first:end], wanted)
        assert (out[: ends[0]] == 0).all() and (out[ends[-1] :] == 0).all()


Q, K = torch.randn(2, 1, 4, 16), torch.randn(2, 40, 2, 16)
EIGHT_BITS = K.to(torch.float8_e4m3fn)
LENGTHS = torch.tensor([5, 30], dtype=torch.int32)


@pytest.mark.parametrize(
    ("name", "given", "told"),
    [
        ("plain", {"bitwise": "always"}, "bitwise: expected None or 'training', got 'always'"),
        ("plain", {"bitwise": True}, "bitwise: expected None or 'training', got True"),
        (
            "plain",
            {"split_size": 128},
            "split_size: expected None beside bitwise='training', which has no splits, got 128",
        ),
        ("both", {"return_key_sums": True}, "return_key_sums: expected False beside bitwise='training'"),
        ("sinking", {"sinks": None}, "sinks: expected a tensor beside bitwise='training'"),
        (
            "plain",
            {"k_cache": EIGHT_BITS, "v_cache": EIGHT_BITS},
            "k_cache: expected float32 as q has beside bitwise='training', which knows no other, got float8_e4m3fn",
        ),
        ("plain", {"out": Q}, "out: expected memory of its own, got some of q"),
        *((name, {}, f"bitwise: expected None, as {why}; got 'training'") for name, why in REFUSED.items()),
    ],
)
def test_what_is_refused(variant: Find, name: str, given: Values, told: str) -> None:
    given = {"q": Q, "k_cache": K, "v_cache": K, "seq_lens": LENGTHS, "bitwise": "training", **given}
    if given["k_cache"].dtype == torch.float8_e4m3fn:
        given |= {"k_scale": torch.tensor(1.0), "v_scale": torch.tensor(1.0)}
    given |= {"block_mask": torch.ones(2, 1, 1, 3, dtype=torch.bool)} if name == "blocked" else {}
    words = {"decaying": ("log_decay",), "summed": ("x", "y", "z")}.get(name.partition("_")[0], ("mood",))
    given |= dict.fromkeys(words, torch.randn(2, 40, 4)) if REFUSED.get(name) in (PACKED, SUMS) else {}
    with pytest.raises(ValueError, match=re.escape(told)):
        variant(name).decode.attend_with_cache(**given)


def test_gradients_are_refused(variant: Find) -> None:
    with pytest.raises(RuntimeError, match="q: decoding has no backward pass"):
        variant("plain").decode.attend_with_cache(Q.clone().requires_grad_(), K, K, LENGTHS, bitwise="training")


def test_calls_without_the_keyword_stay_away(variant: Find, monkeypatch: pytest.MonkeyPatch) -> None:
    decode = variant("plain").decode
    training = importlib.import_module(f"{variant('plain').__name__}.decode_training")
    for name in ("check_numbers", "attend", "attend_now"):
        monkeypatch.setattr(training, name, lambda *_: pytest.fail("the long way"))
    decode.attend_with_cache(Q, K, K, LENGTHS)


def test_a_compiler_traces_it_once(variant: Find) -> None:
    torch.compiler.reset()
    attend = variant("sinking").decode.attend_with_cache
    counted = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(attend, fullgraph=True, dynamic=True, backend=counted)
    sinks = torch.randn(4)
    for batch in (3, 5, 6):  # sizes that are equal once are assumed to be equal always
        q, k = torch.randn(batch, 1, 4, 16), torch.randn(batch, 300, 2, 16)
        lengths = torch.randint(200, 300, (batch,), dtype=torch.int32)
        given = {"sinks": sinks, "bitwise": "training", "return_lse": True}
        out, lse = compiled(q, k, k, lengths, **given)
        for b, n in enumerate(lengths.tolist()):
            one = variant("sinking").attention(q[b, None], k[b, None, :n], k[b, None, :n], sinks=sinks, return_lse=True)
            assert torch.equal(out[b], one[0][0]) and torch.equal(lse[b], one[1][0])
    assert counted.frame_count == 1
    with pytest.raises(torch._dynamo.exc.Unsupported, match="sinks: expected a tensor beside bitwise"):
        compiled(q, k, k, lengths, sinks=None, bitwise="training")
    with pytest.raises(torch._dynamo.exc.Unsupported, match="bitwise: expected None or 'training'"):
        compiled(q, k, k, lengths, sinks=sinks, bitwise="inference")
