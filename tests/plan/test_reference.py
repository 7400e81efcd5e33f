"""Printed references against formulas written by hand, SDPA, FlexAttention and a worked example."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import unformatted
import yaml
from formulas import attention_by_hand

from attnforge.language import spec

pytestmark = pytest.mark.slow

SPECS = Path(__file__).parents[2] / "specs"

VARIANTS: dict[str, str] = {
    "plain": "",
    "causal": "mask: [causal]",
    "window": "mask: [causal, sliding_window: {size: 5}]",
    "window_set_by_the_call": "mask: [causal, sliding_window: {size: runtime}]",
    "prefix": "mask: [prefix_lm]",
    "negated": "mask: [not: causal]",
    "softcap": "mask: [causal]\nscore: [softcap: {cap: 2.0}]",
    "alibi": "mask: [causal]\nscore: [alibi]",
    "log_decay": "mask: [causal]\nscore: [log_decay]",
    "chunked": "mask: [chunked: {size: 5}]",
    "dilated": "mask: [causal, dilated: {stride: 3}]",
    "first_tokens": "mask: [any: [sliding_window: {size: 3}, global_tokens: {count: 2}]]",
    "local_2d": "mask: [local_2d: {width: 4, radius: 1}]",
    "neighbourhood": "mask: [neighbourhood: {width: 4, radius: 1}]",
    "neighbourhood_of_all": "mask: [neighbourhood: {width: 3, radius: 2}]",
    "segments": "mask: [causal, segments]",
    "tree": "mask: [tree]",
    "block_sparse": "mask: [block_sparse: {block: 3}]",
    "bias": "mask: [causal]\nscore: [bias]",
    "relative_bias": "score: [relative_bias: {buckets: 12, max_distance: 10}]",
    "relative_bias_default": "score: [relative_bias]",
    "relative_bias_causal": "mask: [causal]\n"
    "score: [relative_bias: {buckets: 8, max_distance: 9, bidirectional: false}]",
    "several": "rope: {layout: half}\nmask: [causal, sliding_window: {size: 7}]\nscore: [softcap: {cap: 3.0}, alibi]",
    "rope_half": "rope: {layout: half}\nmask: [causal]",
    "rope_interleaved": "rope: {layout: interleaved, dims: 4}",
}
LEARNED = ("log_decay", "bias", "rel_bias")
READ_AT_BOTH = {"log_decay", "rope_half", "rope_interleaved", "several"}


def load(document: str, folder: Path, name: str) -> dict[str, Any]:
    """The functions of a rendered reference."""
    path = folder / f"{name}.yaml"
    path.write_text(f"name: {name}\ndescription: A test.\n{document}\n")
    module_path = folder / f"{name}_reference.py"
    module_path.write_text(unformatted.file(spec.load(path, terms=[SPECS / "terms"]), "reference.py"))
    found = importlib.util.spec_from_file_location(module_path.stem, module_path)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return vars(module)


@pytest.fixture
def reference(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Any]:
    """The `reference` function of the variant in the test's parameter."""
    name = request.node.callspec.params["variant"]
    found: Callable[..., Any] = load(VARIANTS[name], tmp_path, name)["reference"]
    return found


def keywords(document: str, q: torch.Tensor, k: torch.Tensor) -> dict[str, Any]:
    """Random tensors for the keywords of a variant's terms."""
    (B, Tq, Hq, D), Tk = q.shape, k.shape[1]
    loaded = yaml.safe_load(document) or {}
    dims = (loaded.get("rope") or {}).get("dims", D)
    angles = torch.rand(Tk + 2, dims // 2, dtype=torch.float64) * 6
    known: dict[str, dict[str, Any]] = {
        "rope": {"cos": angles.cos(), "sin": angles.sin()},
        "runtime": {"window": 6},
        "prefix_lm": {"prefix_len": torch.randint(0, Tk, (B,))},
        "segments": {
            "q_segments": torch.randint(0, 3, (B, Tq)).sort().values,
            "k_segments": torch.randint(0, 3, (B, Tk)).sort().values,
        },
        "tree": {"tree_mask": torch.rand(B, Tq, Tq) > 0.4},
        "block_sparse": {"block_mask": torch.rand(1, Hq, -(-Tq // 3), -(-Tk // 3)) > 0.4},
        "score: [bias": {"bias": torch.randn(B, Hq, Tq, Tk, dtype=torch.float64)},
        "relative_bias": {
            "rel_bias": torch.randn(Hq, 32 if "buckets" not in document else 12, dtype=torch.float64)[
                :, : 8 if "false" in document else None
            ]
        },
        "log_decay": {"log_decay": -torch.rand(B, Tk, Hq, dtype=torch.float64)},
    }
    return {name: x for word, found in known.items() if word in document for name, x in found.items()}


def operands(Tq: int, Tk: int, Hq: int = 4, Hkv: int = 2, D: int = 8, Dv: int = 6) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(Tq * 1000 + Tk)
    shapes = ((2, Tq, Hq, D), (2, Tk, Hkv, D), (2, Tk, Hkv, Dv))
    return tuple(torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes)


@pytest.mark.parametrize("sizes", [(1, 1), (12, 12), (5, 14), (9, 4)], ids=str)
@pytest.mark.parametrize("variant", VARIANTS)
def test_reference_is_the_formula(variant: str, sizes: tuple[int, int], reference: Callable[..., Any]) -> None:
    if sizes[0] > sizes[1] and variant in READ_AT_BOTH:
        pytest.skip("needs a key for each query")
    document = VARIANTS[variant]
    q, k, v = operands(*sizes)
    x = keywords(document, q, k)
    x |= {name: x[name].requires_grad_() for name in LEARNED if name in x}
    learned = [q, k, v, *(x[name] for name in LEARNED if name in x)]
    results = []
    for out, lse in (
        reference(q, k, v, **x, return_lse=True),
        attention_by_hand(yaml.safe_load(document) or {}, q, k, v, x),
    ):
        seen = torch.where(lse == -torch.inf, 0, lse)
        loss = (out * torch.linspace(-1, 1, out.numel()).view(out.shape)).sum() + (seen * seen).sum()
        results.append((out, lse, *torch.autograd.grad(loss, learned)))
    torch.testing.assert_close(*results, rtol=1e-7, atol=1e-9)


def test_what_a_term_does_not_choose_reaches_no_gradient(tmp_path: Path) -> None:
    # the logarithm of a number that is not positive has no derivative, or an infinite one
    term = "score: [expr: 'score + a * log(q - k) if q > k else score']\ninputs: {a: {axes: [head], grad: true}}"
    reference = load(term, tmp_path, "chosen")["reference"]
    q, k, v = operands(12, 12)
    a = torch.randn(4, dtype=torch.float64, requires_grad=True)
    places = torch.arange(12, dtype=torch.float64)
    far = (places[:, None] - places).clamp(min=1).log()
    score = torch.einsum("bihd,bjhd->bhij", q, k.repeat_interleave(2, 2)) / 8**0.5 + a[:, None, None] * far
    by_hand = torch.einsum("bhij,bjhd->bihd", score.softmax(-1), v.repeat_interleave(2, 2))
    results = []
    for out in (reference(q, k, v, a=a), by_hand):
        results.append((out, *torch.autograd.grad(out.square().sum(), (q, k, v, a))))
    torch.testing.assert_close(*results, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(
    "text",
    [
        "k == 0 or q % k == 0",
        "k % (q - 3) == 0 if q > 3 else k == 0",
        "k < 2 or q // k < 2",
        "few == 0 or q % few == 0",
    ],
)
def test_whole_numbers_are_not_divided_by_a_0_that_is_not_chosen(text: str, tmp_path: Path) -> None:
    inputs = "inputs: {few: {axes: [], dtype: int}}" if "few" in text else ""
    q, k, v = (x.detach() for x in operands(9, 9))
    reference = load(f'mask: [expr: "{text}"]\n{inputs}', tmp_path, "divided")["reference"]
    out = reference(q, k, v, **{"few": 0} if inputs else {})
    keep = torch.tensor([[eval(text, {"q": i, "k": j, "few": 0}) for j in range(9)] for i in range(9)])
    score = torch.einsum("bihd,bjhd->bhij", q, k.repeat_interleave(2, 2)) / 8**0.5
    weights = score.masked_fill(~keep, -torch.inf).softmax(-1)
    torch.testing.assert_close(out, torch.einsum("bhij,bjhd->bihd", weights, v.repeat_interleave(2, 2)))


@pytest.mark.parametrize(
    ("number", "value"),
    [
        ("max(log(k_len // 32), 1)", 1.0),
        ("max(log1p(q_len - k_len - 1), 2)", 2.0),
        ("max(floor(log(k_len // 32)), -3)", -3.0),
        ("min(exp(k_len * 100), 4)", 4.0),
        ("min(2.0 ** (k_len * 200), 4)", 4.0),
        ("min(1 / (k_len - q_len), 3)", 3.0),
        ("min((k_len - q_len) ** -1.0, 3)", 3.0),
        ("(1 if sqrt(k_len - 30) >= 0 else 2)", 2.0),
        ("(3.0 if k >= 0 else sin(1 / (k_len - q_len)))", 3.0),
        ("(3 if k >= 0 else k_len // (k_len - q_len))", 3.0),
        ("(3 if k >= 0 else k_len % (k_len - q_len))", 3.0),
        ("table[floor(log(k_len // 32))]", 0.5),
        ("table[floor(1 / (k_len - q_len))]", 3.5),
    ],
)
def test_lengths_may_lie_where_operations_have_no_finite_value(number: str, value: float, tmp_path: Path) -> None:
    inputs = "inputs: {table: {axes: [4]}}" if "table" in number else ""
    reference = load(f'score: [expr: "score * {number}"]\n{inputs}', tmp_path, "unbounded")["reference"]
    q, k, v = operands(9, 9)
    given = {"table": torch.arange(4) + 0.5} if inputs else {}
    plain = load("", tmp_path, "plain")["reference"](q, k, v, scale=value / 8**0.5)
    torch.testing.assert_close(reference(q, k, v, **given), plain)


def test_a_default_that_is_whole_looks_up_an_entry(tmp_path: Path) -> None:
    inputs = "inputs: {w: {axes: [head], dtype: int, default: h // 2}, table: {axes: [8]}}"
    term = f"score: [expr: 'score + table[w]']\n{inputs}"
    reference, (q, k, v) = load(term, tmp_path, "looked_up")["reference"], operands(5, 5)
    table = torch.arange(8.0)
    given = torch.tensor([0, 0, 1, 1], dtype=torch.int32)
    found, known = (reference(q, k, v, table=table, w=w, return_lse=True) for w in (None, given))
    torch.testing.assert_close(found, known, rtol=0, atol=0)


def test_a_nan_is_seen_in_the_lse(tmp_path: Path) -> None:
    q, k, v = (x.detach() for x in operands(3, 3))
    q[0, 1] = torch.nan
    out, lse = load("", tmp_path, "seen")["reference"](q, k, v, return_lse=True)
    assert lse[0, :, 1].isnan().all() and out[0, 1].isnan().all()
    assert not lse[0, :, ::2].isnan().any()


def test_queries_before_the_first_key_of_a_sequence_turn_as_position_0(tmp_path: Path) -> None:
    reference = load("layout: packed\nrope: {layout: half}", tmp_path, "ahead")["reference"]
    q, k, v = (x.detach().flatten(0, 1) for x in operands(7, 3))
    angles = torch.rand(9, 4, dtype=torch.float64) * 6
    x = {"cos": angles.cos(), "sin": angles.sin()}
    cuts = {"cu_seqlens_q": torch.tensor([0, 7, 14]), "cu_seqlens_k": torch.tensor([0, 3, 6])}
    cuts = {name: cut.int() for name, cut in cuts.items()} | {"max_seqlen_q": 7, "max_seqlen_k": 3}
    given = torch.tensor([4, 0, 8, 1, 2, 3])
    out = reference(q, k, v, **cuts, **x, positions=given)
    # q and k rotated beforehand: each query has the position of its key
    rows = torch.tensor([0, 0, 0, 0, 4, 0, 8, 0, 0, 0, 0, 1, 2, 3])
    turn = load("", tmp_path, "turned")["reference"]
    pairs = [(y, place) for y, place in ((q, rows), (k, given))]
    turned = []
    for y, place in pairs:
        first, second = y.chunk(2, -1)
        c, s = x["cos"][place][:, None], x["sin"][place][:, None]
        turned.append(torch.cat((first * c - second * s, second * c + first * s), -1))
    wanted = turn(*(y.unflatten(0, (2, -1)) for y in (*turned, v)))
    torch.testing.assert_close(out, wanted.flatten(0, 1))


@pytest.mark.parametrize("variant", ["causal", "softcap", "alibi", "log_decay", "rope_half"])
def test_packed_sequences_are_attended_one_by_one(variant: str, tmp_path: Path) -> None:
    document = VARIANTS[variant]
    packed = load("layout: packed\n" + document, tmp_path, variant)["reference"]
    lengths = [0, 5, 1, 0, 9, 0]
    cuts = list(itertools.accumulate(lengths, initial=0))
    q, k, v = (x[0] for x in operands(sum(lengths), sum(lengths)))
    x = keywords(document, q[None], k[None])
    if "log_decay" in x:
        x["log_decay"] = x["log_decay"][0]
    cu_seqlens = torch.tensor(cuts, dtype=torch.int32)
    out, lse = packed(q, k, v, cu_seqlens=cu_seqlens, max_seqlen=9, **x, return_lse=True)
    for first, last in itertools.pairwise(cuts):
        part = dict(x)
        if "log_decay" in x:
            part["log_decay"] = x["log_decay"][None, first:last]
        if first == last:
            continue
        want = attention_by_hand(yaml.safe_load(document), *(t[None, first:last] for t in (q, k, v)), part)
        torch.testing.assert_close((out[first:last], lse[:, first:last]), (want[0][0], want[1][0]))


PACKED_NUMBERS = """
layout: packed
sink: true
mask: [causal, {expr: "k < reach[b]"}]
score:
  - expr: "score * slope[b, h]"
inputs:
  reach: {axes: [batch], dtype: int}
  slope: {axes: [batch, head], grad: true}
"""


@pytest.mark.parametrize("rows", [0, 5])
def test_calls_without_sequences_give_zeros(rows: int, tmp_path: Path) -> None:
    packed = load(PACKED_NUMBERS, tmp_path, "packed_numbers")["reference"]
    q, k, v = (x.detach()[0].requires_grad_() for x in operands(rows, rows))
    x = {"sinks": torch.randn(4), "reach": torch.zeros(0, dtype=torch.int32), "slope": torch.randn(0, 4)}
    cuts = {"cu_seqlens": torch.zeros(1, dtype=torch.int32), "max_seqlen": 0}
    out, lse = packed(q, k, v, **cuts, **x, return_lse=True)
    assert out.shape == (rows, 4, 6) and lse.shape == (4, rows)
    assert (lse == -torch.inf).all()
    assert not any(y.any() for y in (out, *torch.autograd.grad(out.sum(), (q, k, v))))


@pytest.mark.parametrize("given", [{"k_lens": torch.zeros(0, dtype=torch.int32)}, {"q_start": 3}, {}], ids=str)
def test_empty_batches_have_gradients(given: dict[str, Any], tmp_path: Path) -> None:
    causal = load("mask: [causal]", tmp_path, "causal")["reference"]
    q, k, v = (x.detach()[:0].requires_grad_() for x in operands(5, 5))
    out, lse = causal(q, k, v, **given, return_lse=True)
    assert out.shape == (0, 5, 4, 6) and lse.shape == (0, 4, 5)
    assert [x.shape for x in torch.autograd.grad(out.sum(), (q, k, v))] == [x.shape for x in (q, k, v)]


NOBODY = {
    "no keys": ("score: [bias]", (3, 0), {}),
    "no queries": ("score: [bias]", (0, 3), {}),
    "keys of no length": ("score: [bias]", (3, 4), {"k_lens": torch.zeros(2, dtype=torch.int32)}),
    "queries elsewhere": ("score: [bias]", (3, 4), {"q_start": 9}),
    "no sequences": (
        "layout: packed\nscore: [{expr: 'score + w[h]'}]\ninputs: {w: {axes: [head], grad: true}}",
        (3, 3),
        {"cu_seqlens": torch.zeros(1, dtype=torch.int32), "max_seqlen": 0},
    ),
    "scores of something else": ("score: [{expr: 'w + k * 0.1'}]\ninputs: {w: {axes: [head], grad: true}}", (3, 3), {}),
}


@pytest.mark.parametrize("case", NOBODY)
def test_gradients_of_what_no_result_hangs_on_are_0(case: str, tmp_path: Path) -> None:
    text, (queries, keys), given = NOBODY[case]
    reference = load(text, tmp_path, "nobody")["reference"]
    q, k, v = operands(queries, keys)
    learned = {"w": torch.randn(4, requires_grad=True)}
    if "bias" in text:
        learned = {"bias": torch.randn(2, 4, queries, keys, requires_grad=True)}
    if "packed" in text:
        q, k, v = (x.detach()[0].requires_grad_() for x in (q, k, v))
    results = reference(q, k, v, **given, **learned, return_lse=True)
    wanted = (q, k, v, *learned.values())
    for x in results:
        found = torch.autograd.grad(x.sum(), wanted, retain_graph=True)
        assert [y.shape for y in found] == [y.shape for y in wanted]
        # v may have a gradient: its values are weighed, if there are any
        assert not any(y.any() for y in found[:2])


@pytest.mark.parametrize("variant", ["plain", "causal"])
def test_reference_is_sdpa(variant: str, reference: Callable[..., Any]) -> None:
    q, k, v = (x.detach() for x in operands(11, 11, Dv=8))
    want = torch.nn.functional.scaled_dot_product_attention(
        *(t.transpose(1, 2) for t in (q, k, v)),
        is_causal=variant == "causal",
        enable_gqa=True,
    )
    torch.testing.assert_close(reference(q, k, v), want.transpose(1, 2))


@pytest.mark.parametrize("variant", ["window", "softcap"])
def test_reference_is_flex_attention(variant: str, reference: Callable[..., Any]) -> None:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def keep(b: Any, h: Any, q: Any, k: Any) -> Any:
        return (k <= q) & (q - k < (5 if variant == "window" else 1000))

    def cap(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return 2 * torch.tanh(score / 2) if variant == "softcap" else score

    q, k, v = (x.detach().float() for x in operands(40, 40, Dv=8))
    block_mask = create_block_mask(keep, None, None, 40, 40, device="cpu")
    heads_first = (t.transpose(1, 2) for t in (q, k, v))
    want = flex_attention(*heads_first, score_mod=cap, block_mask=block_mask, enable_gqa=True)
    assert isinstance(want, torch.Tensor)
    torch.testing.assert_close(reference(q, k, v), want.transpose(1, 2))


def test_worked_example_of_rope(tmp_path: Path) -> None:
    functions = load("rope: {layout: half}\nmask: [causal]", tmp_path, "worked")
    rows = [
        [0.3581, 0.1616, 0.5714, 0.4795],
        [0.5468, 0.3008, 0.9154, 0.3457],
        [0.4201, 0.1406, 0.2273, 0.5269],
        [0.1441, 0.1024, 0.8580, 0.8310],
    ]
    x = torch.zeros(1, 8, 1, 4, dtype=torch.float64)
    x[0, :4, 0] = torch.tensor(rows)
    angles = torch.arange(8, dtype=torch.float64)[:, None] * torch.tensor([1.0, 0.01])
    turned = functions["_rotate"](x, angles.cos(), angles.sin(), torch.arange(8)[None])[0, :, 0]
    want = torch.tensor([0.3026, 0.6789, 0.5255, 0.3139], dtype=torch.float64)
    torch.testing.assert_close((turned @ turned.T)[2, :4], want, rtol=0, atol=6e-5)


@pytest.mark.parametrize("variant", ["rope_half", "rope_interleaved"])
def test_positions_choose_the_rows_of_the_tables(variant: str, reference: Callable[..., Any]) -> None:
    q, k, v = operands(5, 9)
    x = keywords(VARIANTS[variant], q, k) | {"positions": torch.randint(0, 11, (2, 9))}
    want = attention_by_hand(yaml.safe_load(VARIANTS[variant]), q, k, v, x)
    torch.testing.assert_close(reference(q, k, v, **x, return_lse=True), want)


@pytest.mark.parametrize("variant", ["causal", "softcap"])
def test_rows_without_keys_are_zero(variant: str, reference: Callable[..., Any]) -> None:
    q, k, v = operands(6, 4)
    out, lse = reference(q, k, v, return_lse=True)
    assert torch.equal(out[:, :2], torch.zeros_like(out[:, :2]))
    assert (lse[..., :2] == -torch.inf).all() and lse[..., 2:].isfinite().all()
    grads = torch.autograd.grad(out.sum() + lse[..., 2:].sum(), (q, k, v))
    assert all(g.isfinite().all() for g in grads)
    assert not grads[0][:, :2].any()


@pytest.mark.parametrize(
    "text",
    [
        "score * log(q - k + 1)",
        "score + 1 / (q - k + 1)",
        "score + w * exp(100.0 * (k - q))",
        "score * sqrt(q - k)",
        'score + log(q - k + 1)"\n  - expr: "tanh(score)',  # with a finite score, tanh would be finite
    ],
)
def test_what_a_mask_hides_poisons_no_gradient(text: str, tmp_path: Path) -> None:
    document = f'mask: [causal]\nscore:\n  - expr: "{text}"\ninputs:\n  w: {{axes: [head], grad: true}}'
    if "w *" not in text:
        document = document.split("\ninputs")[0]
    reference = load(document, tmp_path, "hidden")["reference"]
    # at the first hidden key, at distance 1, the terms are NaN or infinite
    q, k, v = (x.detach().float().requires_grad_() for x in operands(12, 12))
    x = {"w": torch.zeros(4, requires_grad=True)} if "w *" in text else {}
    out = reference(q, k, v, **x)
    assert out.isfinite().all()
    learned = (q, k, v, *x.values())
    assert all(g.isfinite().all() for g in torch.autograd.grad(out.square().sum(), learned))


@pytest.mark.parametrize("heads", [(4, 0), (4, 3), (1, 2)], ids=str)
@pytest.mark.parametrize("name", ["k", "v"])
@pytest.mark.parametrize("variant", ["causal"])
def test_heads_that_share_no_key_head(
    variant: str, name: str, heads: tuple[int, int], reference: Callable[..., Any]
) -> None:
    q, k, v = (x.detach() for x in operands(7, 7, *heads))
    k = q if name == "v" else k
    divides = f"^k: expected a number of heads that divides q's {heads[0]}, got {heads[1]}$"
    told = divides if name == "k" else rf"^v: expected shape \(2, 7, {heads[0]}, Dv\) beside k"
    with pytest.raises(ValueError, match=told):
        reference(q, k, v)


@pytest.mark.parametrize("variant", ["causal"])
def test_dtypes(variant: str, reference: Callable[..., Any]) -> None:
    q, k, v = (x.detach() for x in operands(7, 7))
    for dtype, lse_dtype in ((torch.bfloat16, torch.float32), (torch.float64, torch.float64)):
        out, lse = reference(q.to(dtype), k.to(dtype), v.to(dtype), return_lse=True)
        assert (out.dtype, lse.dtype) == (dtype, lse_dtype)


@pytest.mark.parametrize("variant", ["causal"])
def test_devices_without_autocast(variant: str, reference: Callable[..., Any]) -> None:
    out, lse = reference(*(x.detach().bfloat16().to("meta") for x in operands(5, 7)), return_lse=True)
    assert (out.device.type, out.shape[:2], out.dtype, lse.dtype) == ("meta", (2, 5), torch.bfloat16, torch.float32)


@pytest.mark.parametrize("variant", ["causal"])
def test_autocast_rounds_what_is_multiplied_as_it_does_for_kernels(variant: str, reference: Callable[..., Any]) -> None:
    q, k, v = (x.detach() for x in operands(7, 7))
    rounded = reference(*(x.bfloat16() for x in (q, k, v)), return_lse=True)
    exact = reference(q, k, v, return_lse=True)
    with torch.autocast("cpu", torch.bfloat16):
        given = q.float(), k.bfloat16(), v.float()
        torch.testing.assert_close(reference(*given, return_lse=True), rounded, rtol=0, atol=0)
        torch.testing.assert_close(reference(q, k, v, return_lse=True), exact, rtol=0, atol=0)
    x = q.float().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        out = reference(x, k.float(), v.float())
    assert (out.dtype, torch.autograd.grad(out.sum(), x)[0].dtype) == (torch.bfloat16, torch.float32)
