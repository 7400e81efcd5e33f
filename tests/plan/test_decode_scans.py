"""Running sums over a cache: pages hold raw values, and each stretch of 64 keys is summed separately."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from caches import Cache, Sequences, Values, expected, package
from test_decode import LATENT, SUMS, joined, rises

pytestmark = pytest.mark.slow

TEXTS = {
    "decays": "mask: [causal]\nscore: [log_decay]",
    "decays_of_latent_heads": "latent: true\nmask: [causal]\nscore: [log_decay]",
    "decays_near": "mask: [causal, sliding_window: {size: runtime}]\nscore: [log_decay]",
    "decays_at_first": "mask: [causal, any: [sliding_window: {size: 40}, expr: 'k < 4']]\nscore: [log_decay]",
    "decays_behind": "mask: [causal, expr: 'q - k < 150 and q - k > 9']\nscore: [log_decay]",
    "sums": SUMS.format("causal"),
    "sums_both_ways": SUMS.format("expr: 'q - k < 90'"),
    "rises": "mask: [causal, sliding_window: {size: 40}]\nscore: [expr: 'score + x[k]']\n"
    "inputs: {x: {axes: [batch, token], scan: cumsum}}",
    "shared": "mask: [causal]\nscore: [expr: 'score + (x[q] - x[k]) + 0.01 * y[k]']\n"
    "inputs:\n  x: {axes: [head, token], scan: cumsum}\n  y: {axes: [token], scan: cumsum}",
    "decays_both_ways": "score: [log_decay]",
    "decays_in_a_mask": "mask: [causal, expr: 'x[k] < -0.6 or x[q] > -0.4']\nscore: [expr: 'score + (x[q] - x[k])']\n"
    "inputs: {x: {axes: [batch, token, head], scan: cumsum}}",
    "left_out": "mask: [causal]\nscore: [expr: 'score + (x[q] - x[k])']\n"
    "inputs: {x: {axes: [batch, token, head], scan: cumsum, default: -0.125}}",
}
Find = Callable[[str], ModuleType]


@pytest.fixture(scope="module")
def variant(tmp_path_factory: pytest.TempPathFactory) -> Find:
    """Renders a variant when it is first asked for."""
    folder, made = tmp_path_factory.mktemp("decode_scans"), dict[str, ModuleType]()

    def find(name: str) -> ModuleType:
        if name not in made:
            made[name] = package(folder, f"scan_{name}", TEXTS[name], exports="decode, statistics")
        return made[name]

    return find


def decays(s: Sequences, *resets: tuple[int, float]) -> list[torch.Tensor]:
    """Decays of each token and head; some heads have documents that begin at given places."""
    rows = [-torch.rand(n, s.heads) for n in s.lengths]
    for x in rows:
        for i, (place, value) in enumerate(resets):
            x[place : place + 1, i % (s.heads - 1)] = value
    return rows


def decode(
    module: ModuleType, s: Sequences, c: Cache, given: Values, *, packed: bool = False
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Out and LSE of each sequence's new tokens over a cache that is filled here."""
    c.fill(module.decode.append)
    more = s.cuts() if packed else {}
    out, lse = module.decode.attend_with_cache(
        joined(s.q, packed), c.k, c.v, s.seq_lens, return_lse=True, **c.pages(), **more, **given
    )
    if not packed:
        return [*out], [*lse]
    return [*out[: sum(s.new)].split(s.new)], [*lse[:, : sum(s.new)].split(s.new, 1)]


def agree(
    module: ModuleType,
    s: Sequences,
    found: tuple[list[torch.Tensor], list[torch.Tensor]],
    alone: Callable[[int], Values],
) -> None:
    """Compares results with the reference."""
    for x, y in zip(itertools.chain(*found), itertools.chain(*expected(module, s, alone)), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=2e-5)


# at the first and the last key, on both sides of boundaries of stretches, and values so low that a weight becomes 0
RESETS = ((0, -math.inf), (63, -math.inf), (64, -math.inf), (128, -5000.0), (299, -math.inf), (200, -4096.0))


@pytest.mark.parametrize(("page", "paged"), [(1, True), (7, True), (64, True), (256, True), (16, False)])
def test_documents_begin_anywhere(variant: Find, page: int, paged: bool) -> None:
    """With more stretches than are summed at a time."""
    s = Sequences([300, 129, 0, 64, 1], [1] * 5)
    c, rows = Cache(s, page=page, paged=paged), decays(s, *RESETS)
    module = variant("decays")
    agree(module, s, decode(module, s, c, {"log_decay": c.stored(rows)}), lambda b: {"log_decay": rows[b][None]})


@pytest.mark.parametrize("heads", [16, 18, 40])
def test_heads_that_several_programs_sum_up(variant: Find, heads: int) -> None:
    s = Sequences([130, 40], [1, 1], heads, 2)
    c, rows, module = Cache(s), decays(s, *RESETS), variant("decays")
    agree(module, s, decode(module, s, c, {"log_decay": c.stored(rows)}), lambda b: {"log_decay": rows[b][None]})


def test_latent_heads(variant: Find) -> None:
    s = Sequences([150, 40], [2, 2], **LATENT)
    c, rows, module = Cache(s), decays(s, *RESETS), variant("decays_of_latent_heads")
    agree(module, s, decode(module, s, c, {"log_decay": c.stored(rows)}), lambda b: {"log_decay": rows[b][None]})
    assert not (Path(str(module.__file__)).parent / "decode_hopper.py").exists()


@pytest.mark.parametrize("place", [0, 63, 64, 127, 128, 190, 299])
def test_one_document_begins_late(variant: Find, place: int) -> None:
    s = Sequences([300, 300], [1, 2], seed=place)
    c, rows = Cache(s), decays(s)
    # keys before the document would weigh hardly less than keys in it
    rows[1] /= 1000
    rows[1][place] = -math.inf
    module = variant("decays")
    found = decode(module, s, c, {"log_decay": c.stored(rows)}, packed=True)
    agree(module, s, found, lambda b: {"log_decay": rows[b][None]})


@pytest.mark.parametrize(
    ("name", "new"),
    [("decays", [70, 3]), ("decays", [66, 1]), ("decays", [10, 130])]
    + [(name, [66, 1]) for name in ("decays_near", "decays_at_first", "decays_behind")],
)
def test_chunks_of_prompts(variant: Find, name: str, new: list[int]) -> None:
    """New tokens cross the boundaries of stretches, and of splits of 256 keys."""
    s = Sequences([290, 133], new, seed=sum(new))
    large = -5000.0 if name == "decays" else -math.inf
    c, rows = Cache(s, page=8), decays(s, (64, -math.inf), (129, -math.inf), (131, large), (260, -math.inf))
    module, more = variant(name), {"window": 90} if name == "decays_near" else {}
    found = decode(module, s, c, {"log_decay": c.stored(rows), **more}, packed=True)
    agree(module, s, found, lambda b: {"log_decay": rows[b][None], **more})


def test_a_chunk_whose_programs_go_through_all_keys(variant: Find) -> None:
    s = Sequences([280], [259], heads=8, kv_heads=8, width=8)
    c, rows = Cache(s), decays(s, (64, -math.inf), (131, -5000.0), (260, -math.inf))
    module = variant("decays")
    agree(module, s, decode(module, s, c, {"log_decay": c.stored(rows)}), lambda b: {"log_decay": rows[b][None]})


@pytest.mark.parametrize("name", ["sums", "sums_both_ways"])
def test_several_sums(variant: Find, name: str) -> None:
    """By query head, by key head and of all heads; as differences and by themselves; after a query too."""
    s = Sequences([210, 7, 70], [5, 7, 68], seed=3)
    c = Cache(s, page=4)
    given, alone = rises(s, c, packed=True)
    module = variant(name)
    agree(module, s, decode(module, s, c, given, packed=True), alone)


def test_more_new_tokens_than_keys(variant: Find) -> None:
    """New tokens before the first key see nothing."""
    decoding, q, k = variant("decays").decode, torch.randn(2, 5, 4, 16), torch.randn(2, 70, 2, 16)
    lengths, values = torch.tensor([3, 0], dtype=torch.int32), -torch.rand(2, 70, 4)
    out = decoding.attend_with_cache(q, k, k, lengths, log_decay=values)
    assert (out[0, :2] == 0).all() and (out[1] == 0).all()
    wanted = variant("decays").reference(q[:1, 2:], k[:1, :3], k[:1, :3], log_decay=values[:1, :3])
    torch.testing.assert_close(out[:1, 2:], wanted, rtol=1e-4, atol=2e-5)


def test_values_of_16_bits_in_any_memory(variant: Find) -> None:
    """Heads before tokens, as in some caches."""
    s, module = Sequences([150, 40], [2, 2]), variant("decays")
    c, rows = Cache(s).fill(module.decode.append), [x.half().float() for x in decays(s, *RESETS)]
    values = c.stored(rows).half().transpose(1, 2).contiguous().transpose(1, 2)
    found = decode(module, s, c, {"log_decay": values})
    agree(module, s, found, lambda b: {"log_decay": rows[b][None]})


def test_sums_that_all_sequences_share(variant: Find) -> None:
    """They count from a sequence's first key, and may be longer than the room in the cache."""
    s = Sequences([150, 20, 3], [2, 2, 2])
    c = Cache(s, paged=False, starts=(5, 0, 90))
    given = {"x": -torch.rand(4, c.room), "y": torch.randn(c.room)}
    module = variant("shared")
    found = decode(module, s, c, given)
    agree(module, s, found, lambda b: {"x": given["x"][:, : s.lengths[b]], "y": given["y"][: s.lengths[b]]})


def test_values_that_are_left_out_or_stand_for_many(variant: Find) -> None:
    s = Sequences([150, 20], [2, 2])
    module = variant("left_out")
    for given in ({}, {"x": torch.full((1, 160, 1), -0.5)}):
        found = decode(module, s, Cache(s, paged=not given, room=160), given)

        def alone(b: int, given: Values = given) -> Values:
            return {name: x[:, : s.lengths[b]] for name, x in given.items()}

        agree(module, s, found, alone)


@pytest.mark.parametrize("starts", [(), (9, 0, 27)])
def test_values_that_nobody_should_read(variant: Find, starts: tuple[int, ...]) -> None:
    """Values before a window and after the last key are NaN, like the workspace; pages there belong to no sequence."""
    s = Sequences([300, 64, 70], [2, 2, 2])
    c, rows = Cache(s, page=4, paged=not starts, starts=starts), decays(s, (290, -math.inf))
    decoding, q = variant("decays_near").decode, torch.stack(s.q)
    c.fill(decoding.append)
    for b, x in enumerate(rows):
        # the first of two rows sees 20 keys
        x[: max(0, s.lengths[b] - 21)] = math.nan
    values = c.stored(rows)
    size = decoding.workspace_size(q, c.k, c.v, max_seqlen_q=2, max_seqlen_k=300, window=20)
    old = {"max_seqlen_k": 300, "workspace": torch.full((size,), math.nan), "window": 20}
    pages = c.pages(lambda length: length - 21)
    if not starts:
        pages["page_table"][pages["page_table"] == c.nobodys] = -1
    out = decoding.attend_with_cache(q, c.k, c.v, s.seq_lens, log_decay=values, **pages, **old)
    for x in rows:
        x.nan_to_num_(0.0, neginf=-math.inf)
    wanted, _ = expected(variant("decays_near"), s, lambda b: {"log_decay": rows[b][None], "window": 20})
    for one, two in zip(out, wanted, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=2e-5)


def test_pages_of_sequences_without_new_tokens_are_not_read(variant: Find) -> None:
    s = Sequences([20, 90], [2, 0])
    c, rows = Cache(s, page=4), decays(s)
    c.fill(variant("decays").decode.append)
    table = c.pages()["page_table"]
    table[1:] = 2**30
    cuts = {"cu_seqlens_q": torch.tensor([0, 2, 2], dtype=torch.int32), "max_seqlen_q": 2, "page_table": table}
    out = variant("decays").decode.attend_with_cache(s.q[0], c.k, c.v, s.seq_lens, log_decay=c.stored(rows), **cuts)
    wanted, _ = expected(variant("decays"), s, lambda b: {"log_decay": rows[b][None]})
    torch.testing.assert_close(out, wanted[0], rtol=1e-4, atol=2e-5)


def test_sums_by_themselves_are_of_all_tokens(variant: Find) -> None:
    """Including those that a window hides."""
    s = Sequences([200, 64], [2, 2])
    c, rows = Cache(s, page=4), [torch.rand(n) for n in s.lengths]
    module = variant("rises")
    agree(module, s, decode(module, s, c, {"x": c.stored(rows)}), lambda b: {"x": rows[b][None]})
    table = c.pages()["page_table"].clone()
    table[0, 2] = -1
    told = "page_table: expected one of the cache's 103 pages, got -1 for keys from 8 on of sequence 0"
    with pytest.raises(ValueError, match=told):
        module.decode.attend_with_cache(
            torch.stack(s.q), c.k, c.v, s.seq_lens, x=c.stored(rows), **c.pages() | {"page_table": table}
        )


def test_masks_read_sums_of_all_tokens(variant: Find) -> None:
    s = Sequences([210, 100, 70], [2, 2, 2])
    c, rows = Cache(s, page=4), [x / 50 for x in decays(s)]
    module = variant("decays_in_a_mask")
    agree(module, s, decode(module, s, c, {"x": c.stored(rows)}), lambda b: {"x": rows[b][None]})


def test_late_differences_are_as_exact_as_early_ones(variant: Find) -> None:
    s, module = Sequences([300], [1]), variant("decays")
    c, rows = Cache(s).fill(module.decode.append), [-torch.rand(300, 4) / 8]
    given: Values = {"split_size": 128, "return_lse": True, **c.pages()}
    found = []
    for early in (0.0, -4000.0):
        # float32 numbers are 1/32 apart at the sum of these values, -512,000
        rows[0][:128] = early
        values = c.stored(rows)
        found.append(module.decode.attend_with_cache(torch.stack(s.q), c.k, c.v, s.seq_lens, log_decay=values, **given))
    wanted, wanted_lse = expected(module, s, lambda b: {"log_decay": rows[b][None]})
    assert not torch.allclose(found[0][1], found[1][1], rtol=1e-5)
    torch.testing.assert_close(found[1][1][0], wanted_lse[0], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found[1][0][0], wanted[0], rtol=1e-5, atol=2e-6)


def test_bits_hang_on_neither_pages_nor_the_batch(variant: Find) -> None:
    s, decoding = Sequences([300, 5, 64], [1, 1, 1]), variant("decays").decode
    rows = decays(s, *RESETS)
    found = []
    for page, paged, room in ((16, True, 0), (1, True, 0), (256, True, 1024), (16, False, 512)):
        for own in ([0, 1, 2], [0]):
            one = Sequences([s.lengths[b] for b in own], [1] * len(own))
            one.q, one.k, one.v = ([x[b] for b in own] for x in (s.q, s.k, s.v))
            c = Cache(one, page=page, paged=paged, room=room).fill(decoding.append)
            values = c.stored([rows[b] for b in own])
            found.append(
                decoding.attend_with_cache(
                    torch.stack(one.q), c.k, c.v, one.seq_lens, log_decay=values, return_lse=True, **c.pages()
                )
            )
    for out, lse in found[1:]:
        assert torch.equal(out[0], found[0][0][0])
        assert torch.equal(lse[0], found[0][1][0])


def test_earlier_rows_of_a_longer_call_have_the_same_bits(variant: Find) -> None:
    """Tokens after a row do not affect its sums."""
    s, decoding = Sequences([200], [3]), variant("decays").decode
    c, rows = Cache(s).fill(decoding.append), decays(s, (70, -math.inf))
    values, q = c.stored(rows), torch.cat([torch.randn(2, 4, 16), s.q[0]])
    found = []
    for end in (198, 200):
        lengths = torch.tensor([end], dtype=torch.int32)
        out = decoding.attend_with_cache(
            q[None, end - 198 : end - 195], c.k, c.v, lengths, log_decay=values, **c.pages()
        )
        found.append(out[0])
    assert torch.equal(found[0][2], found[1][0])


@pytest.mark.parametrize("shift", [0, 1, 3])
def test_a_workspace_may_begin_anywhere(variant: Find, shift: int) -> None:
    s, decoding = Sequences([100, 70], [2, 2]), variant("decays").decode
    c, rows, q = Cache(s).fill(decoding.append), decays(s), torch.stack(s.q)
    size = decoding.workspace_size(q, c.k, c.v, max_seqlen_q=2, max_seqlen_k=112)
    room = torch.full((size + 64,), math.nan)
    given = {"log_decay": c.stored(rows), **c.pages()}
    wanted = decoding.attend_with_cache(q, c.k, c.v, s.seq_lens, **given)
    out = decoding.attend_with_cache(q, c.k, c.v, s.seq_lens, **given, workspace=room[shift : shift + size])
    assert torch.equal(out, wanted)
    assert room[:shift].isnan().all() and room[shift + size :].isnan().all()
    with pytest.raises(ValueError, match=f"workspace: expected {size} values side by side"):
        decoding.attend_with_cache(q, c.k, c.v, s.seq_lens, **given, workspace=room[: size - 1])


def test_a_workspace_for_more_sequences_than_tokens(variant: Find) -> None:
    """Some sequences have no new tokens; otherwise there are at most as many as tokens."""
    decoding, q, k = variant("decays").decode, torch.randn(2, 4, 16), torch.randn(3, 40, 2, 16)
    bounds = {"max_seqlen_q": 2, "max_seqlen_k": 40}
    cuts = torch.tensor([0, 0, 2, 2], dtype=torch.int32)
    lengths, decay = torch.tensor([4, 33, 0], dtype=torch.int32), -torch.rand(3, 40, 4)
    sizes = [decoding.workspace_size(q, k, k, **bounds, sequences=n) for n in (None, 3, 2, 1)]
    assert sizes[0] == sizes[2] and sizes[1] - sizes[2] == sizes[2] - sizes[3] > 4 * 64
    given = {"cu_seqlens_q": cuts, "max_seqlen_q": 2, "log_decay": decay}
    decoding.attend_with_cache(q, k, k, lengths, **given, workspace=torch.empty(sizes[1]))
    with pytest.raises(ValueError, match="workspace: expected"):
        decoding.attend_with_cache(q, k, k, lengths, **given, workspace=torch.empty(sizes[2]))


@pytest.mark.parametrize("name", ["decays", "decays_near", "sums", "sums_both_ways"])
def test_what_keys_get_of_the_weights(variant: Find, name: str) -> None:
    """Keys that no new token sees get nothing, and neither do those after a sequence's last key."""
    module, s = variant(name), Sequences([200, 7, 0], [3, 3, 0], seed=4)
    s.q[2] = s.q[2].new_zeros(0, 4, 16)
    c, rows = Cache(s, page=8, room=230).fill(module.decode.append), decays(s, (64, -math.inf), (198, -math.inf))
    given: Values = {"log_decay": c.stored(rows)} | ({"window": 90} if name == "decays_near" else {})
    alone: Callable[[int], Values] = lambda b: {**given, "log_decay": rows[b][None]}  # noqa: E731
    if name.startswith("sums"):
        given, alone = rises(s, c, packed=True)
    sums = module.decode.attend_with_cache(
        joined(s.q, packed=True), c.k, c.v, s.seq_lens, return_key_sums=True, **c.pages(), **given, **s.cuts()
    )[1]
    for b, n in enumerate(s.lengths):
        assert (sums[b, :, n:] == 0).all()
        if n:
            q, k, v = (x[b][None] for x in (s.q, s.k, s.v))
            _, wanted = module.reference(q, k, v, return_key_sums=True, **alone(b))
            torch.testing.assert_close(sums[b, :, :n], wanted[0], rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(
    ("change", "error", "told"),
    [
        (lambda x: x[:, :, :3], ValueError, r"log_decay: expected shape \(6, 16, 4\), got \(6, 16, 3\)"),
        (lambda x: x[:, :8], ValueError, r"log_decay: expected shape"),
        (lambda x: x[:3], ValueError, r"log_decay: expected shape"),
        (lambda x: x.int(), TypeError, "log_decay: expected float"),
        (lambda x: None, TypeError, "log_decay: expected a tensor, got NoneType"),
        (lambda x: x.requires_grad_(), RuntimeError, "log_decay: decoding has no backward pass"),
    ],
)
def test_wrong_values(
    variant: Find, change: Callable[[torch.Tensor], torch.Tensor | None], error: type[Exception], told: str
) -> None:
    s, decoding = Sequences([40], [1]), variant("decays").decode
    c = Cache(s).fill(decoding.append)
    given = {"log_decay": change(torch.zeros(c.total, 16, 4)), **c.pages()}
    with pytest.raises(error, match=told):
        decoding.attend_with_cache(torch.stack(s.q), c.k, c.v, s.seq_lens, **given)


def test_the_bits_of_training_cannot_be_had(variant: Find) -> None:
    s, decoding = Sequences([40], [1]), variant("decays").decode
    c = Cache(s).fill(decoding.append)
    given = {"log_decay": torch.zeros(c.total, 16, 4), **c.pages()}
    with pytest.raises(
        ValueError, match="bitwise: expected None, as sums over tokens start at the first row of a tile"
    ):
        decoding.attend_with_cache(torch.stack(s.q), c.k, c.v, s.seq_lens, bitwise="training", **given)


def test_kernels_hand_on_sums_in_order(variant: Find, tmp_path: Path) -> None:
    """Programmatic launches start early: each kernel waits for the one before it, the first for the call's inputs."""
    text = (Path(str(variant("decays").__file__)).parent / "decode_kernels.py").read_text()
    for kernel in ("sum_keys", "sum_stretches", "attend_split"):
        body = text.split(f"def {kernel}(")[1].split('"""', 2)[2]
        assert body.lstrip().startswith("if OVERLAP:\n        gdc_wait()\n        gdc_launch_dependents()\n"), kernel


def test_new_tokens_before_the_first_key_stand_with_it(variant: Find) -> None:
    """More new tokens than keys: those before the first key have its sum and its document."""
    s = Sequences([4, 1, 2], [6, 3, 2])
    rows = decays(s, (2, -math.inf))
    cache = Cache(s)
    module = variant("decays_both_ways")
    found = decode(module, s, cache, {"log_decay": cache.stored(rows)}, packed=True)
    for b, (out, lse) in enumerate(zip(*found, strict=True)):
        q, k, v = (x[b].double() for x in (s.q, s.k, s.v))
        k, v = (x.repeat_interleave(2, 1) for x in (k, v))
        begins = rows[b] == -math.inf
        sums, documents = rows[b].masked_fill(begins, 0).double().cumsum(0).T, begins.cumsum(0).T
        at = (torch.arange(len(q)) + len(k) - len(q)).clamp(min=0)
        score = torch.einsum("ihd,jhd->hij", q, k) / 4 + sums[:, at, None] - sums[:, None]
        score = score.masked_fill(documents[:, at, None] != documents[:, None], -math.inf)
        torch.testing.assert_close(lse.double(), score.logsumexp(-1), rtol=1e-4, atol=2e-5)
        wanted = torch.einsum("hij,jhd->ihd", score.softmax(-1), v)
        torch.testing.assert_close(out.double(), wanted, rtol=1e-4, atol=2e-5)
