"""What decoding refuses, with the name of the argument, and the effect of wrong numbers on a GPU."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from caches import Cache, Sequences, Values, expected, package

pytestmark = pytest.mark.slow

TEXTS = {
    "plain_checked": "mask: [causal]",
    "latent_checked": "latent: true\nmask: [causal]",
    "window_checked": "mask: [causal, sliding_window: {size: runtime}]",
    "chunks_checked": "mask: [causal, any: [expr: 'q // 20 == k // 20', expr: 'k < 4']]",
    "rows_checked": "mask: [causal, expr: 'q - k < far']\ninputs: {far: {axes: [head], dtype: int}}",
    "biased_checked": "mask: [causal]\nscore: [bias]",
    "divided_checked": "mask: [causal, expr: '(q - k) % step == 0']\ninputs: {step: {axes: [], dtype: int}}",
    "made_checked": "mask: [causal, expr: '(q - k) % (2 * step - 6) != 1', "
    "expr: 'k // (by + 1) + k % (step + 1) < 99']\n"
    "inputs: {step: {axes: [], dtype: int}, by: {axes: [], dtype: int, min: 0}}",
    "nested_checked": "mask: [causal, expr: 'q % min(step, by) + q % abs(step - 3) + q % (step if on else by) < 99', "
    "expr: 'k % (12 // (step - 1)) < 99']\n"
    "inputs: {step: {axes: [], dtype: int}, by: {axes: [], dtype: int}, on: {axes: [], dtype: bool}}",
    "summed_checked": "mask: [causal]",
    "late_checked": "mask: [causal, expr: 'k >= 4']",
    "documents_checked": "mask: [causal, expr: 'doc[q] == doc[k]']\ninputs: {doc: {axes: [batch, token], dtype: int}}",
    "described_checked": "mask: [causal]\nscore: [expr: 'score * warmth + shift * far']\ninputs:\n"
    """  warmth: {axes: [head], description: 'the \"\"\" $\\tau$ of \\n \\u \"heads\"'}\n"""
    "  far: {axes: [head]}\n  shift: {axes: [], description: 'in front of far'}",
}


@pytest.fixture(scope="module")
def variant(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], ModuleType]:
    """Renders a variant when it is first asked for."""
    folder, made = tmp_path_factory.mktemp("decode_arguments"), dict[str, ModuleType]()

    def find(name: str) -> ModuleType:
        if name not in made:
            exports = "decode, statistics" if name == "summed_checked" else "decode"
            made[name] = package(folder, name, TEXTS[name], exports=exports)
        return made[name]

    return find


def whole(*numbers: int) -> torch.Tensor:
    """Integers of the type that kernels read."""
    return torch.tensor(numbers, dtype=torch.int32)


Q, K, V = torch.randn(2, 3, 4, 16), torch.randn(2, 40, 2, 16), torch.randn(2, 40, 2, 16)
LENGTHS = whole(5, 30)


@pytest.mark.parametrize("name", ["q", "k_cache", "v_cache"])
def test_out_has_memory_of_its_own(variant: Callable[[str], ModuleType], name: str) -> None:
    """The kernel for sums reads q and keys after out has been written."""
    decoding = variant("summed_checked").decode
    given = {"q": Q.clone(), "k_cache": K.clone(), "v_cache": V.clone()}
    x = given[name]
    overlapping = x.view(-1)[16 : 16 + 384].view(2, 3, 4, 16) if name == "v_cache" else x.view(-1)[:384].view(Q.shape)
    for more in ({}, {"return_key_sums": True}):
        for _ in range(3):
            with pytest.raises(ValueError, match=f"out: expected memory of its own, got some of {name}"):
                decoding.attend_with_cache(**given, seq_lens=LENGTHS, out=overlapping, **more)
    size = decoding.workspace_size(Q, K, V, max_seqlen_q=3, max_seqlen_k=40)
    for first in (0, size - 1):
        workspace = torch.zeros(size + 384)
        given = {"workspace": workspace[:size], "out": workspace[first : first + 384].view(Q.shape)}
        with pytest.raises(ValueError, match="out: expected memory of its own, got some of workspace"):
            decoding.attend_with_cache(Q, K, V, LENGTHS, **given)
    behind = torch.randn(2 * Q.numel())
    q, out = behind[: Q.numel()].view(Q.shape), behind[Q.numel() :].view(Q.shape)
    wanted = decoding.attend_with_cache(q, K, V, LENGTHS)
    assert torch.equal(decoding.attend_with_cache(q, K, V, LENGTHS, out=out), wanted)


@pytest.mark.parametrize(
    ("cuts", "longest", "told"),
    [
        ((0, 5, 2), 5, "cu_seqlens_q: expected cuts that never fall, got 5 before 2"),
        ((-1, 2, 7), 5, "cu_seqlens_q: expected a first cut of at least 0, got -1"),
        ((0, 2, 9), 7, "cu_seqlens_q: expected a last cut of at most the 7 rows that there are, got 9"),
        ((0, 2, 7), 3, "max_seqlen_q: expected at least the longest sequence's 5, got 3"),
    ],
)
def test_wrong_cuts(variant: Callable[[str], ModuleType], cuts: tuple[int, ...], longest: int, told: str) -> None:
    decoding, q = variant("plain_checked").decode, torch.randn(7, 4, 16)
    good = whole(0, 2, 7)
    decoding.attend_with_cache(q, K, V, LENGTHS, cu_seqlens_q=good, max_seqlen_q=max(longest, 5))
    with pytest.raises(ValueError, match=told):
        decoding.attend_with_cache(q, K, V, LENGTHS, cu_seqlens_q=whole(*cuts), max_seqlen_q=longest)


@pytest.mark.parametrize(
    ("cuts", "longest"),
    [((3, 5, 7), 5), ((0, 2, 7), 3), ((2, 3, 5), 2), ((0, 5, 2), 5), ((-4, 9, 3), 7), ((100, 100, 100), 1)],
    ids=str,
)
def test_rows_of_no_sequence_are_zeros(
    variant: Callable[[str], ModuleType], cuts: tuple[int, ...], longest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, where cuts are not checked."""
    decoding, q = variant("plain_checked").decode, torch.randn(7, 4, 16)
    monkeypatch.setattr(decoding.arguments, "check_cuts", lambda *_: None, raising=False)
    out, lse = decoding.attend_with_cache(
        *(q, K, V, LENGTHS),
        cu_seqlens_q=whole(*cuts),
        max_seqlen_q=longest,
        return_lse=True,
        out=torch.full((7, 4, 16), math.nan),
    )
    assert out.isfinite().all()
    assert not lse.isnan().any()
    if list(cuts) == sorted(cuts):
        someones = [row for a, b in itertools.pairwise(cuts) for row in range(a, min(b, a + longest))]
        nobodys = [row for row in range(7) if row not in someones]
        assert (out[nobodys] == 0).all()
        assert (lse[:, nobodys] == -math.inf).all()
        assert (lse[:, [row for row in someones if row < 7]] > -math.inf).all()


@pytest.mark.parametrize("bitwise", [None, "training"])
@pytest.mark.parametrize(("rows", "cuts"), [(0, (0,)), (0, (0, 0, 0)), (3, (0, 0, 0)), (3, (0,))], ids=str)
def test_a_step_without_new_tokens(
    variant: Callable[[str], ModuleType], rows: int, cuts: tuple[int, ...], bitwise: str | None
) -> None:
    """The maximum over no tokens is 0, with or without sequences and rows that belong to none."""
    decoding, q, n = variant("plain_checked").decode, torch.randn(rows, 4, 16), len(cuts) - 1
    given = {"cu_seqlens_q": whole(*cuts), "max_seqlen_q": 0}
    assert decoding.workspace_size(q, K, V, max_seqlen_q=0, max_seqlen_k=40) >= 0
    out, lse = decoding.attend_with_cache(q, K[:n], V[:n], LENGTHS[:n], return_lse=True, bitwise=bitwise, **given)
    assert out.shape == q.shape and not out.any()
    assert lse.shape == (4, rows) and (lse == -math.inf).all()
    with pytest.raises(ValueError, match="max_seqlen_q: expected at least 0, got -1"):
        decoding.attend_with_cache(q, K[:n], V[:n], LENGTHS[:n], **given | {"max_seqlen_q": -1})


@pytest.mark.parametrize("name", ["k_cache", "v_cache", "k_scale", "v_scale"])
def test_append_writes_to_no_number_twice(variant: Callable[[str], ModuleType], name: str) -> None:
    decoding, rows = variant("plain_checked").decode, torch.randn(2, 5, 2, 16)
    form = torch.float8_e4m3fn if "scale" in name else torch.float32
    given = {x: torch.zeros(4, 3, 2, 16).to(form) for x in ("k_cache", "v_cache")}
    if "scale" in name:
        given |= {x: torch.ones(4, 3, 2) for x in ("k_scale", "v_scale")}
    for axes in ((0,), (0, 1)):
        narrow = given[name]
        for axis in axes:
            narrow = narrow.narrow(axis, 0, 1)
        changed = given | {name: narrow.expand(given[name].shape)}
        with pytest.raises(ValueError, match=f"{name}: expected memory for each number, .* got strides"):
            decoding.append(*rows, slot_mapping=torch.arange(5), **changed)
    decoding.append(*rows, slot_mapping=torch.arange(5), **given)
    if "scale" in name:
        one = torch.ones(()).expand(2)
        decoding.append(*rows, slot_mapping=torch.arange(5), **given | {"k_scale": one, "v_scale": one})


@pytest.mark.parametrize("place", [12, -2])
def test_append_wants_places_in_the_cache(variant: Callable[[str], ModuleType], place: int) -> None:
    decoding, rows, cache = variant("plain_checked").decode, torch.randn(2, 2, 2, 16), torch.zeros(2, 4, 3, 2, 16)
    with pytest.raises(ValueError, match=rf"slot_mapping: expected places from 0 to 11, or -1, got \[0, {place}\]"):
        decoding.append(*rows, *cache, torch.tensor([0, place]))
    assert not cache.any()
    decoding.append(*rows, *cache, torch.tensor([-1, 11]))
    assert cache[0].flatten(0, 1)[11].equal(rows[0, 1])


def test_of_many_places_outside_the_cache_some_are_told(variant: Callable[[str], ModuleType]) -> None:
    rows, cache, slots = torch.randn(2, 3000, 2, 16), torch.zeros(2, 4, 3, 2, 16), torch.arange(9, 3009)
    told = r"got \[12, 13, 14, 15, 16, 17, 18, 19\] and 2989 more$"
    with pytest.raises(ValueError, match=rf"^slot_mapping: expected places from 0 to 11, or -1, {told}"):
        variant("plain_checked").decode.append(*rows, *cache, slots)
    slots[5:] = -1
    with pytest.raises(ValueError, match=r"or -1, got \[12, 13\]$"):
        variant("plain_checked").decode.append(*rows, *cache, slots)
    with pytest.raises(TypeError, match=r"^slot_mapping: expected int64, got int32; pass slot_mapping.long\(\)$"):
        variant("plain_checked").decode.append(*rows, *cache, slots.int())


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            {"k_cache": K.transpose(1, 2), "v_cache": V.transpose(1, 2)},
            "of tensors with heads before tokens pass x.transpose(1, 2)",
        ),
        ({"seq_lens": LENGTHS.long()}, "pass seq_lens.int()"),
        ({"seq_lens": torch.ones(2, 40)}, "of a mask with padding on the right pass mask.sum(1).int()"),
        ({"seq_lens": torch.ones(2, 40).int()}, "of a mask with padding on the right pass mask.sum(1).int()"),
        ({"workspace": torch.ones(2**16).double()}, ""),
        ({"out": torch.ones(2, 3, 4, 16).double()}, ""),
    ],
)
def test_messages_say_what_to_pass_instead(variant: Callable[[str], ModuleType], given: Values, told: str) -> None:
    """No other memory takes the place of that which is written to."""
    call = {"q": Q, "k_cache": K, "v_cache": V, "seq_lens": LENGTHS}
    with pytest.raises((TypeError, ValueError), match=f"^{next(iter(given))}: expected ") as found:
        variant("plain_checked").decode.attend_with_cache(**call | given)
    assert str(found.value).partition("; ")[2] == told


@pytest.mark.parametrize("name", ["k_new", "v_new", "k_cache", "v_cache", "k_scale"])
def test_append_has_no_gradients(variant: Callable[[str], ModuleType], name: str) -> None:
    decoding = variant("plain_checked").decode
    form = torch.float8_e4m3fn if "scale" in name else torch.float32
    given = {x: torch.randn(5, 2, 16) for x in ("k_new", "v_new")}
    given |= {x: torch.zeros(4, 3, 2, 16).to(form) for x in ("k_cache", "v_cache")}
    if "scale" in name:
        given |= {x: torch.ones(4, 3, 2) for x in ("k_scale", "v_scale")}
    given[name].requires_grad_()
    with pytest.raises(RuntimeError, match=f"{name}: decoding has no backward pass"):
        decoding.append(slot_mapping=torch.arange(5), **given)
    with torch.no_grad():
        decoding.append(slot_mapping=torch.arange(5), **given)


@pytest.mark.parametrize("bitwise", [None, "training"])
def test_out_has_no_gradients(variant: Callable[[str], ModuleType], bitwise: str | None) -> None:
    attend, out = variant("plain_checked").decode.attend_with_cache, torch.empty_like(Q, requires_grad=True)
    with pytest.raises(RuntimeError, match="out: decoding has no backward pass"):
        attend(Q, K, V, LENGTHS, out=out, bitwise=bitwise)
    with torch.no_grad():
        assert attend(Q, K, V, LENGTHS, out=out, bitwise=bitwise) is out


@pytest.mark.parametrize("name", ["k_scale", "v_scale"])
def test_scales_have_no_gradients(variant: Callable[[str], ModuleType], name: str) -> None:
    k, v = (x.to(torch.float8_e4m3fn) for x in (K, V))
    scales = {x: torch.ones((), requires_grad=x == name) for x in ("k_scale", "v_scale")}
    with pytest.raises(RuntimeError, match=f"{name}: decoding has no backward pass"):
        variant("plain_checked").decode.attend_with_cache(Q, k, v, LENGTHS, **scales)


# a variant, its keywords, and which pages of 4 keys are read for a sequence of 50 whose last 2 tokens are new
PAGES = [
    ("plain_checked", {}, range(13)),
    ("window_checked", {"window": 9}, range(10, 13)),
    ("window_checked", {"window": 14}, range(8, 13)),
    ("chunks_checked", {}, (0, 10, 11, 12)),
]


@pytest.mark.parametrize("wrong", [-1, 16, 2**31 - 1])
@pytest.mark.parametrize(("name", "given", "read"), PAGES)
def test_pages_that_there_are_not(
    variant: Callable[[str], ModuleType], name: str, given: Values, read: range | tuple[int, ...], wrong: int
) -> None:
    decoding, s = variant(name).decode, Sequences([50], [2])
    cache = Cache(s, page=4, room=60).fill(decoding.append)
    assert cache.total > 16
    k, v = cache.k[:16], cache.v[:16]
    table = torch.randperm(16)[None, :15].int()
    for i, page in enumerate(table[0, :13].tolist()):
        k[page], v[page] = (x[0][i * 4 : i * 4 + 4].new_zeros(4, 2, 16) for x in (s.k, s.v))
        n = min(4, 50 - i * 4)
        k[page, :n], v[page, :n] = s.k[0][i * 4 : i * 4 + n], s.v[0][i * 4 : i * 4 + n]
    q = torch.stack(s.q)
    others = table.clone()
    others[:, [i for i in range(15) if i not in read]] = wrong
    out = decoding.attend_with_cache(q, k, v, s.seq_lens, page_table=others, **given)
    torch.testing.assert_close(out[0], expected(variant(name), s, lambda b: given)[0][0], rtol=1e-4, atol=2e-5)
    for i in read:
        changed = table.clone()
        changed[0, i] = wrong
        told = rf"page_table: expected one of the cache's 16 pages, got {wrong} for keys from {4 * i} on of sequence 0"
        with pytest.raises(ValueError, match=told):
            decoding.attend_with_cache(q, k, v, s.seq_lens, page_table=changed, **given)


def test_pages_without_a_table_are_no_sequences(variant: Callable[[str], ModuleType]) -> None:
    pages = torch.randn(2, 6, 4, 2, 16).unbind()
    with pytest.raises(ValueError, match="k_cache: expected 2 sequences as seq_lens has, or a page_table, got 6"):
        variant("plain_checked").decode.attend_with_cache(Q, *pages, whole(3, 4))


@pytest.mark.parametrize("how", ["bound", "pages", "places", "places of pages"])
@pytest.mark.parametrize("bitwise", [None, "training"])
@pytest.mark.parametrize("name", ["plain_checked", "late_checked", "documents_checked"])
def test_a_call_with_room_for_no_key(
    variant: Callable[[str], ModuleType], how: str, bitwise: str | None, name: str
) -> None:
    """Nothing is read that does not exist: neither pages nor the inputs at the positions of queries."""
    attend = variant(name).decode.attend_with_cache
    places, pages = (0 if "places" in how else 64), (0 if how == "pages" else 3)
    q, k, v = torch.randn(2, 1, 4, 16), torch.randn(2, places, 2, 16), torch.randn(2, places, 2, 16)
    given: Values = {"page_table": torch.zeros(2, pages, dtype=torch.int32)} if "pages" in how else {}
    given |= {"max_seqlen_k": 0} if how == "bound" else {}
    given |= {"doc": torch.zeros(2, places, dtype=torch.int32)} if name == "documents_checked" else {}
    lengths = torch.zeros(2, dtype=torch.int32)
    out, lse = attend(q, k, v, lengths, return_lse=True, bitwise=bitwise, **given)
    assert not out.any() and (lse == -torch.inf).all()
    with pytest.raises(ValueError, match="seq_lens: expected at most the 0 keys that"):
        attend(q, k, v, lengths + 1, bitwise=bitwise, **given)


def test_pages_of_sequences_that_read_nothing(variant: Callable[[str], ModuleType]) -> None:
    """Without new tokens, or without keys, entries may be anything. Pages that only tensors hide are not checked."""
    decoding, s = variant("plain_checked").decode, Sequences([20, 9, 0], [2, 0, 0])
    cache = Cache(s, page=4).fill(decoding.append)
    table = cache.pages()["page_table"]
    table[1:] = -1
    q = torch.cat(s.q)
    decoding.attend_with_cache(q, cache.k, cache.v, s.seq_lens, page_table=table, **s.cuts())
    decoding = variant("rows_checked").decode
    table = cache.pages()["page_table"][:1].clone()
    table[0, :3] = -1
    given = {"page_table": table, "far": whole(3, 5, 1, 4)}
    assert decoding.attend_with_cache(s.q[0][None], cache.k, cache.v, whole(20), **given).isfinite().all()


def test_numbers_of_other_libraries(variant: Callable[[str], ModuleType]) -> None:
    decoding, q = variant("plain_checked").decode, Q.flatten(0, 1)
    cuts = {"cu_seqlens_q": whole(0, 2, 6), "max_seqlen_q": 4}
    wanted = decoding.attend_with_cache(q, K, V, LENGTHS, max_seqlen_k=33, split_size=128, **cuts)
    before = len(decoding.CALLS)
    for _ in range(2):
        cuts["max_seqlen_q"] = np.int16(4)
        sized = {"max_seqlen_k": np.int64(33), "split_size": np.int32(128)}
        assert torch.equal(decoding.attend_with_cache(q, K, V, LENGTHS, **sized, **cuts), wanted)
    assert len(decoding.CALLS) == before
    assert {type(x) for x in decoding.CALLS[None].numbers} == {int}
    decoding.CALLS.clear()
    assert torch.equal(decoding.attend_with_cache(q, K, V, LENGTHS, **sized, **cuts), wanted)
    assert {type(x) for x in decoding.CALLS[None].numbers} == {int}
    size = decoding.workspace_size(q, K, V, max_seqlen_q=np.int16(4), **sized)
    assert type(size) is int


@pytest.mark.parametrize(
    ("first", "given", "error", "told"),
    [
        ({}, {"split_size": 2**70}, ValueError, "split_size: expected at most 268435456, got one of 71 bits"),
        ({"max_seqlen_k": 33}, {"max_seqlen_k": 33.0}, TypeError, "max_seqlen_k: expected an int, got float"),
        ({"max_seqlen_q": 3}, {"max_seqlen_q": 3.0}, TypeError, "max_seqlen_q: expected an int, got float"),
        ({"split_size": 128}, {"split_size": 128.0}, TypeError, "split_size: expected an int, got float"),
        ({}, {"max_seqlen_k": torch.tensor(33)}, TypeError, "max_seqlen_k: expected an int, got Tensor"),
        ({}, {"return_lse": "no"}, TypeError, "return_lse: expected a bool, got str"),
        ({}, {"return_lse": None}, TypeError, "return_lse: expected a bool, got NoneType"),
        ({}, {"return_key_sums": 1}, TypeError, "return_key_sums: expected a bool, got int"),
    ],
)
def test_wrong_numbers(
    variant: Callable[[str], ModuleType], first: Values, given: Values, error: type[Exception], told: str
) -> None:
    decoding = variant("summed_checked").decode
    decoding.attend_with_cache(Q, K, V, LENGTHS, **first)
    with pytest.raises(error, match=f"^{told}"):
        decoding.attend_with_cache(Q, K, V, LENGTHS, **given)


@pytest.mark.parametrize(
    ("given", "error", "told"),
    [
        ({"q": torch.randn(2, 3)}, ValueError, r"q: expected \(T, Hq, D\) or \(B, Tq, Hq, D\), got shape \(2, 3\)"),
        ({"q": None}, TypeError, "q: expected a tensor, got NoneType"),
        ({"q": torch.randn(2, 3, 4, 600)}, ValueError, "q: expected a head size from 1 to 512, got 600"),
        ({"k_cache": K[:, :, :0], "v_cache": V[:, :, :0]}, ValueError, "k_cache: expected a number of heads that"),
        ({"k_cache": K[0]}, ValueError, "k_cache: expected 4 axes"),
        ({"v_cache": V.half()}, TypeError, "v_cache: expected float32 or float8_e4m3fn, got float16"),
        ({"v_cache": V[:1]}, ValueError, r"v_cache: expected shape \(2, 40, 2, Dv\) beside k_cache"),
        ({"max_seqlen_q": 3.0}, TypeError, "max_seqlen_q: expected an int, got float"),
        ({"max_seqlen_q": -5}, ValueError, "max_seqlen_q: expected at least 0, got -5"),
        ({"max_seqlen_k": None}, TypeError, "max_seqlen_k: expected an int, got NoneType"),
        ({"max_seqlen_k": -1}, ValueError, "max_seqlen_k: expected at least 0, got -1"),
        ({"split_size": 2**70}, ValueError, "split_size: expected at most 268435456, got one of 71 bits"),
        ({"window": 2.5}, TypeError, "window: expected an int, got float"),
        ({"window": -7}, ValueError, "window: expected at least 1, got -7"),
    ],
)
def test_a_workspace_of_wrong_arguments(
    variant: Callable[[str], ModuleType], given: Values, error: type[Exception], told: str
) -> None:
    values: Values = {"q": Q, "k_cache": K, "v_cache": V, "max_seqlen_q": 3, "max_seqlen_k": 40} | given
    with pytest.raises(error, match=f"^{told}"):
        variant("window_checked").decode.workspace_size(**values)


OUT, LSE = torch.randn(2, 3, 4, 8), torch.randn(2, 4, 3)


@pytest.mark.parametrize(
    ("outs", "lses", "error", "told"),
    [
        ([], [], ValueError, "outs: expected at least one part, got none"),
        (None, [LSE], TypeError, "outs: expected tensors of several parts, got NoneType"),
        ([OUT], 3, TypeError, "lses: expected tensors of several parts, got int"),
        ([OUT, OUT], [LSE], ValueError, "lses: expected one for each of 2 parts, got 1"),
        ([1], [LSE], TypeError, "outs: expected a tensor, got int at 0"),
        ([OUT, None], [LSE, LSE], TypeError, "outs: expected a tensor, got NoneType at 1"),
        ([OUT], [None], TypeError, "lses: expected a tensor, got NoneType at 0"),
        ([torch.randn(4, 8)], [torch.randn(4)], ValueError, r"outs: expected \(.., T, H, Dv\), got shape \(4, 8\)"),
        ([OUT, OUT[:, :1]], [LSE, LSE], ValueError, r"outs: expected the shape of the first part, \(2, 3, 4, 8\), got"),
        ([OUT], [LSE[:1]], ValueError, r"lses: expected shape \(2, 4, 3\), got \(1, 4, 3\) at 0"),
        ([OUT.long()], [LSE], TypeError, "outs: expected float16, bfloat16 or float32, got int64 at 0"),
        ([OUT, OUT.half()], [LSE, LSE], TypeError, "outs: expected float32 as the first part has, got float16 at 1"),
        ([OUT, OUT.to("meta")], [LSE, LSE], ValueError, "outs: expected device cpu as the first part has, got meta"),
        ([OUT], [LSE.long()], TypeError, "lses: expected float16 or bfloat16 or float32, got int64 at 0"),
        ([OUT], [LSE.to("meta")], ValueError, "lses: expected device cpu as the first part has, got meta at 0"),
    ],
)
def test_merge_of_wrong_parts(
    variant: Callable[[str], ModuleType], outs: Any, lses: Any, error: type[Exception], told: str
) -> None:
    with pytest.raises(error, match=f"^{told}"):
        variant("plain_checked").decode.merge(outs, lses)


def test_merge_takes_stacked_parts(variant: Callable[[str], ModuleType]) -> None:
    merge = variant("plain_checked").decode.merge
    stacked = merge(torch.stack([OUT, OUT + 1]), torch.stack([LSE, LSE - 1]))
    for x, y in zip(stacked, merge((OUT, OUT + 1), iter([LSE, LSE - 1])), strict=True):
        assert torch.equal(x, y)


def test_merge_has_slopes_of_0_where_no_part_sees_a_key(variant: Callable[[str], ModuleType]) -> None:
    outs, lses = torch.randn(2, 2, 3, 4, 8), torch.randn(2, 2, 4, 3)
    # no part sees a key of the first row; one of two parts sees keys of the second, and the other may hold anything
    lses[..., 0] = lses[0, ..., 1] = -math.inf
    outs[:, :, 0] = outs[0, :, 1] = math.nan
    out, lse = variant("plain_checked").decode.merge(outs.requires_grad_(), lses.requires_grad_())
    (of_outs,) = torch.autograd.grad(out.sum(), outs, retain_graph=True)
    assert not of_outs[:, :, 0].any() and not of_outs[0, :, 1].any() and (of_outs[1, :, 1] == 1).all()
    (of_lses,) = torch.autograd.grad(out.sum(), lses, retain_graph=True)
    assert not of_lses[..., :2].any() and of_lses.isfinite().all()
    # the derivatives of the LSE are the shares of the parts
    (of_lses,) = torch.autograd.grad(lse.sum(), lses)
    torch.testing.assert_close(of_lses, lses.softmax(0).nan_to_num().detach())


def test_keys_and_values_have_memory_of_their_own(variant: Callable[[str], ModuleType]) -> None:
    rows, slots, cache = torch.randn(3, 2, 16), torch.arange(3), torch.zeros(4, 4, 2, 16)
    for name, values in (("plain_checked", cache), ("latent_checked", cache.transpose(0, 1))):
        with pytest.raises(ValueError, match="v_cache: expected memory of its own, got that of k_cache"):
            variant(name).decode.append(rows, rows, cache, values, slots)
    assert not cache.any()


@pytest.mark.parametrize("form", ["one", "places"])
def test_append_rounds_to_the_nearest_float8(variant: Callable[[str], ModuleType], form: str) -> None:
    """As torch does, with ties to even; a mantissa that is rounded up to the next power of 2 carries."""
    every = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    between = (every[1:] + every[:-1]) / 2
    exact = torch.cat([every, between, between * (1 - 2**-20), between * (1 + 2**-20), torch.tensor([7.7949, 500.0])])
    numbers = torch.cat([exact, -exact, torch.randn(2000), 2.0 ** -torch.arange(1, 30)])
    rows = torch.nn.functional.pad(numbers, (0, -len(numbers) % 32)).view(-1, 2, 16)
    k, v = (torch.zeros(1, len(rows), 2, 16).to(torch.float8_e4m3fn) for _ in "kv")
    scales = [torch.ones(() if form == "one" else (1, len(rows), 2)) for _ in "kv"]
    given = {"k_scale": scales[0], "v_scale": scales[1]}
    variant("plain_checked").decode.append(rows, rows, k, v, torch.arange(len(rows)), **given)
    over = scales[0][0][..., None] if form == "places" else scales[0]
    wanted = (rows / over).clamp(-448, 448).to(torch.float8_e4m3fn)
    for cache in (k, v):
        assert torch.equal(cache[0].float(), wanted.float())


@pytest.mark.parametrize("bitwise", [None, "training"])
def test_a_bias_may_lack_leading_axes(variant: Callable[[str], ModuleType], bitwise: str | None) -> None:
    attend = variant("biased_checked").decode.attend_with_cache
    given = {"q": Q, "k_cache": K, "v_cache": V, "seq_lens": LENGTHS, "bitwise": bitwise}
    bias = torch.randn(3, 40)
    for _ in range(2):
        assert torch.equal(attend(**given, bias=bias), attend(**given, bias=bias.expand(2, 4, 3, 40)))
    with pytest.raises(ValueError, match=r"^bias: expected shape \(2, 4, 3, 40\), got \(3, 7\)$"):
        attend(**given, bias=bias[:, :7])


def test_a_number_that_divides_is_not_0(variant: Callable[[str], ModuleType]) -> None:
    attend = variant("divided_checked").decode.attend_with_cache
    with pytest.raises(ValueError, match=r"^step: expected a number to divide by, got 0$"):
        attend(Q, K, V, LENGTHS, step=0)
    assert attend(Q, K, V, LENGTHS, step=-2).isfinite().all()


def test_what_numbers_make_to_divide_by_is_not_0(variant: Callable[[str], ModuleType]) -> None:
    module = variant("made_checked")

    def decode(step: int) -> torch.Tensor:
        found: torch.Tensor = module.decode.attend_with_cache(Q, K, V, LENGTHS, step=step, by=0)
        return found

    for attend in (decode, lambda step: module.attention(Q, K, V, step=step, by=0)):
        for step, made in ((3, "2 * step - 6"), (-1, "step + 1")):
            with pytest.raises(ValueError, match=rf"^{re.escape(made)}: expected a number to divide by, got 0$"):
                attend(step)
        assert attend(4).isfinite().all()
    # a divisor that is at least 1 is not checked
    assert "in_by + 1" not in Path(module.api.__file__).read_text()


@pytest.mark.parametrize(
    ("step", "by", "on", "told"),
    [
        (2, 0, True, "min(step, by)"), (3, 3, True, "abs(step - 3)"), (2, 0, False, "min(step, by)"),
        (0, 1, True, "min(step, by)"), (1, 1, True, "step - 1"), (14, 2, True, "12 // (step - 1)"),
    ],
)  # fmt: skip
def test_so_is_what_functions_and_choices_make(
    variant: Callable[[str], ModuleType], step: int, by: int, on: bool, told: str
) -> None:
    module = variant("nested_checked")
    for attend in (module.attention, lambda *given, **more: module.decode.attend_with_cache(*given, LENGTHS, **more)):
        with pytest.raises(ValueError, match=rf"^{re.escape(told)}: expected a number to divide by, got 0$"):
            attend(Q, K, V, step=step, by=by, on=on)
        assert attend(Q, K, V, step=4, by=7, on=on).isfinite().all()


def test_descriptions_stand_in_docstrings_as_they_are(variant: Callable[[str], ModuleType]) -> None:
    text = variant("described_checked").decode.attend_with_cache.__doc__
    lines = [line.strip() for line in text.splitlines()]
    assert 'warmth: float (Hq,); the """ $\\tau$ of \\n \\u "heads"' in lines
    assert "far: float (Hq,)" in lines and "shift: float; in front of far" in lines


def test_the_oldest_calls_are_forgotten_first(
    variant: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    decoding, checked = variant("plain_checked").decode, list[int]()
    check = decoding._check_call
    monkeypatch.setattr(decoding, "CALLS", type(decoding.CALLS)())

    def count(*given: Any) -> Any:
        checked.append(given[-2])  # max_seqlen_k
        return check(*given)

    monkeypatch.setattr(decoding, "_check_call", count)
    q, cache = torch.zeros(0, 3, 4, 16), torch.zeros(0, 1100, 2, 16)
    for most in (*range(1100), *range(1099, 99, -1), 0):
        decoding.attend_with_cache(q, cache, cache, LENGTHS[:0], max_seqlen_k=most)
    assert checked == [*range(1100), 0]
