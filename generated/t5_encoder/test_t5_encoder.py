# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/t5_encoder.yaml
#   content hash  aef2683049d5a969
#   text hash     d20c66e52a24615a
#   render with   attnforge render specs/t5_encoder.yaml
"""Holds `attention` against `reference`: on a GPU where there is one, else small shapes in Triton's interpreter.

ATTNFORGE_FULL=1 runs every combination of lengths, head sizes and dtypes; ATTNFORGE_ERRORS=FILE appends errors beside their limits, as JSON.
"""

from __future__ import annotations

import itertools
import json
import math
import os
from dataclasses import dataclass, field, replace

import pytest
import torch
import torch.utils.checkpoint

from . import attention, reference
from .reference import _attention as rounding_reference

GPU = torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1"
if not GPU:
    os.environ["TRITON_INTERPRET"] = "1"  # before the first call imports triton

DEVICE = "cuda" if GPU else "cpu"
GRADIENTS = ("q", "k", "v", "rel_bias")


PACKED = False


@dataclass(frozen=True)
class Case:
    """Sizes of one call; a batch has one length, packed sequences have one each."""

    q_lens: tuple[int, ...]
    k_lens: tuple[int, ...]
    Hq: int
    Hkv: int
    D: int
    Dv: int
    dtype: torch.dtype
    layout: str = field(default="contiguous")

    def __str__(self):
        sizes = f"{'+'.join(map(str, self.q_lens))}x{'+'.join(map(str, self.k_lens))}-h{self.Hq}:{self.Hkv}-d{self.D}:{self.Dv}"
        return f"{sizes}-{str(self.dtype).removeprefix('torch.')}"


class Make:
    """Random tensors, the same for the same seed."""

    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)

    def floats(self, shape):
        return torch.randn(shape, generator=self.generator).to(DEVICE)


def make_inputs(case, seed=0):
    """The arguments of one call."""
    make = Make(seed)
    Hq, Hkv = case.Hq, case.Hkv
    B, Tq, Tk = len(case.q_lens), case.q_lens[0], case.k_lens[0]
    q, k, v = make.floats((B, Tq, Hq, case.D)), make.floats((B, Tk, Hkv, case.D)), make.floats((B, Tk, Hkv, case.Dv))
    q, k, v = (laid_out(x.to(case.dtype), case.layout) for x in (q, k, v))
    inputs = {"q": q, "k": k, "v": v}
    inputs["rel_bias"] = make.floats((Hq, 32)) / 8
    return inputs


def laid_out(x, layout):
    """The same values behind other strides."""
    if layout == "transposed":
        return x.transpose(-3, -2).contiguous().transpose(-3, -2)
    if layout == "sliced":  # as one of q, k and v in one tensor
        return torch.cat((x, torch.full_like(x, torch.nan)), -2)[..., : x.shape[-2], :]
    if layout == "expanded":
        return x[..., :1, :].expand(x.shape)
    if layout == "unaligned":
        return torch.nn.functional.pad(x, (1, 2), value=torch.nan)[..., 1:-2]
    return x


def widened(inputs):
    """The inputs in float64, for the reference."""
    floating = {n: x for n, x in inputs.items() if isinstance(x, torch.Tensor) and x.is_floating_point()}
    return inputs | {name: x.double() for name, x in floating.items()}


def both(function):
    return lambda **inputs: function(**inputs, return_lse=True)


def run(inputs, gradients, function=None, *, upstream=None):
    """Out, LSE and gradients of one call, by name; of `attention` where no function is given."""
    function = function or both(attention)
    inputs = dict(inputs)
    for name in gradients:
        if inputs.get(name) is not None:
            inputs[name] = inputs[name].detach().requires_grad_()
    learned = [name for name in gradients if inputs.get(name) is not None]
    out, lse = function(**inputs)
    d_out, d_lse = upstream or upstream_of(out.shape, lse.shape)
    seen = torch.isfinite(lse.detach())
    # the gradient of an LSE of -inf is 0, whatever comes in
    loss = (out * d_out.to(out.dtype)).sum() + (torch.where(seen, lse, 0) * d_lse.to(lse.dtype)).sum()
    # a term may leave out the score or take no slope: then autograd knows of no gradient where kernels write zeros
    grads = torch.autograd.grad(loss, [inputs[name] for name in learned], materialize_grads=True)
    return {"out": out.detach(), "lse": lse.detach()} | {"d" + n: g for n, g in zip(learned, grads)}


def upstream_of(out_shape, lse_shape, seed=7):
    make = Make(seed)
    return make.floats(out_shape), make.floats(lse_shape)


def check(case, *, expanded_gradient=False, **changes):
    """Holds out, LSE and all gradients of a case against the reference."""
    inputs = make_inputs(case) | changes
    shape = inputs["q"].shape[:-1]
    lse_shape = (shape[1], shape[0]) if PACKED else (shape[0], shape[2], shape[1])
    d_out, d_lse = upstream_of((*shape, case.Dv), lse_shape)
    if expanded_gradient:
        d_out = torch.ones((), device=DEVICE).expand(d_out.shape)
    # what the kernels receive: the gradient of out in the dtype of out
    upstream = d_out.to(case.dtype), d_lse

    def rounding(**inputs):
        cuts = dict.fromkeys(("cu_seqlens", "max_seqlen")) if PACKED else {}
        return rounding_reference(**{"scale": None} | cuts | inputs, rounds_to=case.dtype)

    got = run(inputs, GRADIENTS, upstream=upstream)
    gold = run(widened(inputs), GRADIENTS, both(reference), upstream=upstream)
    low = run(inputs, GRADIENTS, rounding, upstream=upstream)
    # a few sums over everything tell little of each other: they are judged over several draws of what comes in
    totals = gold.keys() & ({"drel_bias"} | {"d" + name for name in changes})
    seeds = range(8, 20 if GPU else 11) if totals else ()
    draws = [(got, gold, low)]
    for seed in seeds:
        other = upstream_of(d_out.shape, d_lse.shape, seed)
        other = other[0].to(case.dtype), other[1]
        calls = (inputs, None), (widened(inputs), both(reference)), (inputs, rounding)
        draws.append([run(given, GRADIENTS, function, upstream=other) for given, function in calls])
    for name in totals:
        got[name], gold[name], low[name] = (torch.stack([found[name] for found in side]) for side in zip(*draws))
    for name in gold:
        accept(f"{case} {name}", name, got[name], gold[name], low[name], case.dtype)
    check_exact(got, gold)


def check_exact(got, gold):
    """Rows without keys and keys without rows give zeros, not small numbers."""
    empty = (gold["out"] == 0).all(-1)
    unseen = (gold["dv"] == 0).all(-1)
    assert not got["out"][empty].any() and not got["dv"][unseen].any()
    assert not got["dq"][empty].any() and not got["dk"][unseen].any()


def accept(title, name, got, gold, low, dtype):
    """The acceptance rule: the error may be little more than that of a reference that rounds as the kernels do."""
    gradient = name.startswith("d")
    assert (got.shape, got.dtype, got.device) == (low.shape, low.dtype, low.device), title
    if gold.isnan().any():
        undefined = f"{gold.isnan().sum()} of {gold.numel()} values of the reference are NaN"
        raise RuntimeError(
            f"{title}: {undefined}: the formula is not defined for all inputs drawn; give them min and max"
        )
    finite = gold.isfinite()
    assert torch.equal(got[~finite].double(), gold[~finite]), f"{title}: infinite where the reference is not"
    assert got.isfinite()[finite].all(), f"{title}: not finite where the reference is"
    if got.numel() == 0:
        return
    eps = torch.finfo(got.dtype).eps
    zero = torch.zeros((), dtype=torch.float64, device=gold.device)
    gold, error, yard = (torch.where(finite, x, zero) for x in (gold, got.double() - gold, low.double() - gold))

    # a NaN or useless yardstick would pass anything
    sane = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 1e-5}[dtype] * (3 if gradient else 1)
    if not rms(yard.flatten()) <= sane * rms(gold.flatten()) + 1e-2 * torch.finfo(dtype).eps:
        far = f"rounding alone puts the reference off by {rms(yard.flatten()):.3g} of {rms(gold.flatten()):.3g}"
        raise RuntimeError(f"{title}: {far}, too much to judge by; draw smaller inputs, by their min and max")

    # Sums in float32 on a GPU: torch adds in a tree what kernels add one by one. On an NVIDIA H200 the largest error seen
    # is 4.3 times the yardstick's, with a head size of 192 and single queries; a fault's is hundreds of times larger.
    order = 3 if GPU and got.dtype == torch.float32 else 1
    limit = 2 * order * (yard.abs().max() + eps * gold.abs().max())
    # rows of one (batch, head, row), of one (batch, head) for the LSE; what has no such rows is taken whole
    shape = gold.shape if name in ("out", "dq", "dk", "dv", "lse") else (1, -1)
    row_error, row_yard, row_gold = (rms(x.reshape(shape)) for x in (error, yard, gold))
    # a row that hangs on few numbers errs by chance: it is held to what its neighbours err, and half of all rows
    alive = row_yard[row_gold > 0]
    row_yard = torch.maximum(around(row_yard), alive.median() if alive.numel() else zero)
    row_limit = 4 * order * torch.maximum(row_yard, eps * row_gold) + 1e-6
    worst = (row_error / row_limit).max()
    note(title, error.abs().max(), limit, worst)
    assert error.abs().max() <= limit, f"{title}: error {error.abs().max():.3g}, limit {limit:.3g}"
    assert worst <= 1, f"{title}: a row's error is {worst:.3g} times its limit"


def around(row_yard):
    """The largest among each row and its neighbours; rows stand before heads."""
    if row_yard.dim() < 2 or row_yard.shape[-2] == 1:
        return row_yard
    rows = row_yard.movedim(-2, -1)
    pooled = torch.nn.functional.max_pool1d(rows.reshape(1, -1, rows.shape[-1]), 9, stride=1, padding=4)
    return pooled.reshape(rows.shape).movedim(-1, -2)


def rms(x):
    return x.square().mean(-1).sqrt()


def note(title, error, limit, worst_row):
    """Appends one line to the table of errors, where one is asked for."""
    if path := os.environ.get("ATTNFORGE_ERRORS"):
        line = {"test": "t5_encoder " + title, "error": error.item(), "limit": limit.item(), "row": worst_row.item()}
        with open(path, "a") as file:
            file.write(json.dumps(line) + "\n")


def cases():
    """Sizes around the tiles, lengths apart, groups of heads, head sizes apart and odd."""
    lens = (1, 17, 127, 129, 1000, 4096) if GPU else (1, 33)
    # errors of a few rows are no measure of each other: the shortest come in numbers
    pairs = [((n,) * (8 if n == 1 else 2 if n < 1000 else 1),) * 2 for n in lens]
    pairs += [((1,) * (8 if GPU else 4), (70,) * (8 if GPU else 4)), ((40, 40), (70, 70))]
    pairs += [((70, 70), (20, 20))]
    heads = [(2, 2), (3, 3)]
    sizes = [(16, 16), (24, 40), (40, 24), (64, 64), (80, 80), (96, 96), (128, 128), (192, 128), (256, 256)]
    if not GPU:
        sizes = sizes[:3]
    dtypes = (torch.float16, torch.bfloat16, torch.float32) if GPU else (torch.float32,)
    if os.environ.get("ATTNFORGE_FULL") == "1":
        every = enumerate(itertools.product(pairs, sizes, dtypes))
        return [Case(*pair, *heads[(i + i // len(heads)) % len(heads)], *d, dtype) for i, (pair, d, dtype) in every]
    # each pair of lengths and each head size at least once with every dtype
    count = max(len(pairs), len(sizes))
    mixed = [(pairs[i % len(pairs)], heads[i % len(heads)], sizes[i % len(sizes)]) for i in range(count)]
    found = [Case(*pair, *h, *d, dtype) for dtype in dtypes for pair, h, d in mixed]
    return found if GPU else [*found, replace(SMALL, dtype=torch.float16)]


SMALL = Case((33, 33), (33, 33), 2, 2, 16, 16, torch.float32)
CASES = cases()
MISTAKES = {
    "dtype": ("q", lambda q: q.double(), TypeError),
    **({} if GPU else {"bfloat16 in the interpreter": ("q", lambda q: q.bfloat16(), TypeError)}),
    "dtypes apart": ("k", lambda k: k.half(), TypeError),
    "no tensor": ("v", lambda v: 1.0, TypeError),
    "axes": ("q", lambda q: q[0], ValueError),
    "head size": ("k", lambda k: k[..., :-1], ValueError),
    "length": ("v", lambda v: v[:, :-1], ValueError),
    "heads": ("k", lambda k: torch.cat((k, k, k), -2), ValueError),
    "shape of rel_bias": ("rel_bias", lambda x: x[..., None], ValueError),
    "dtype of rel_bias": ("rel_bias", lambda x: x.to(torch.complex64), TypeError),
}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_and_gradients(case):
    check(case)


@pytest.mark.parametrize("layout", ["transposed", "sliced", "expanded", "unaligned"])
def test_strides(layout):
    check(replace(SMALL, layout=layout))


@pytest.mark.parametrize("size", [16, 22])
def test_as_on_gpus_that_copy_no_tiles(size, monkeypatch):
    from . import launch

    monkeypatch.setattr(launch, "_copies_tiles", lambda device: False)
    monkeypatch.setattr(launch._Shapes, "known", {})
    check(replace(SMALL, D=size, Dv=size))


def test_output_gradient_of_stride_0():
    check(SMALL, expanded_gradient=True)


@pytest.mark.parametrize("scale", [0.3, -0.5])
def test_scale(scale):
    check(SMALL, scale=scale)


def test_rel_bias_of_size_1_along_an_axis():
    rel_bias = make_inputs(SMALL)["rel_bias"]
    rel_bias = rel_bias.narrow(0, 0, 1)
    check(SMALL, rel_bias=rel_bias)


@pytest.mark.parametrize("name", GRADIENTS)
def test_each_gradient_alone(name):
    inputs = make_inputs(SMALL)
    every, one = run(inputs, GRADIENTS), run(inputs, (name,))
    assert torch.equal(one["out"], every["out"])
    torch.testing.assert_close(one["d" + name], every["d" + name])


def test_an_lse_without_a_gradient_is_one_with_a_gradient_of_0():
    def detached(**inputs):
        out, lse = attention(**inputs, return_lse=True)
        return out, lse.detach()

    inputs = make_inputs(SMALL)
    d_out, d_lse = upstream_of(*(x.shape for x in attention(**inputs, return_lse=True)))
    none = run(inputs, GRADIENTS, detached, upstream=(d_out, d_lse))
    zero = run(inputs, GRADIENTS, upstream=(d_out, torch.zeros_like(d_lse)))
    torch.testing.assert_close(none, zero, rtol=1e-4, atol=1e-4)


def test_outputs_are_written_in_full_and_the_same_each_time():
    inputs = make_inputs(SMALL)
    torch.use_deterministic_algorithms(True)  # fills new tensors with NaN
    try:
        first, second = run(inputs, GRADIENTS), run(inputs, GRADIENTS)
    finally:
        torch.use_deterministic_algorithms(False)
    for name, value in first.items():
        assert not value.isnan().any(), name
        assert torch.equal(value, second[name]), name


def test_hidden_keys_leak_into_no_row():
    inputs = make_inputs(SMALL)
    changed = inputs | {"k": inputs["k"].clone(), "v": inputs["v"].clone()}
    last = (-1,) if PACKED else (slice(None), -1)
    changed["k"][last] *= -3
    changed["v"][last] += 100
    before, after = (reference(**widened(x)) for x in (inputs, changed))
    rows = (before == after).all(-1)
    assert torch.equal(attention(**inputs)[rows], attention(**changed)[rows])


def test_a_nan_stays_in_its_own_sequence():
    inputs = make_inputs(replace(SMALL, q_lens=(36, 36), k_lens=(36, 36)))
    own, other = (slice(36), slice(36, None)) if PACKED else (0, 1)
    with torch.no_grad():
        upstream = upstream_of(*(x.shape for x in attention(**inputs, return_lse=True)))

    def found(*changed):
        for x in changed:
            x[other] = torch.nan
        result = run(inputs, ("q", "k", "v"), upstream=upstream)
        return {name: x[own] for name, x in result.items() if name != "lse"}

    before = found()
    after = found(inputs["q"], inputs["k"], inputs["v"], upstream[0])
    for name, value in before.items():
        assert torch.equal(value, after[name]), name


@pytest.mark.skipif(not GPU, reason="needs a GPU")
def test_more_heads_than_a_grid_axis_holds():
    check(replace(SMALL, q_lens=(5,) * 1100, k_lens=(5,) * 1100, Hq=64, Hkv=64, dtype=torch.bfloat16))


def test_second_derivative_raises():
    inputs = make_inputs(SMALL)
    q = inputs["q"].requires_grad_()
    (first,) = torch.autograd.grad(attention(**inputs).sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(first.sum(), q)


def test_torch_func():
    inputs = make_inputs(SMALL)
    q = inputs.pop("q")
    transformed = torch.func.grad(lambda q: attention(q=q, **inputs).sum())(q)
    plain = torch.autograd.grad(attention(q=q.requires_grad_(), **inputs).sum(), q)[0]
    torch.testing.assert_close(transformed, plain)


def test_tensors_that_are_still_to_be_negated():
    inputs = make_inputs(SMALL)
    floats = {name: x for name, x in inputs.items() if isinstance(x, torch.Tensor) and x.is_floating_point()}
    lazy = {name: torch._neg_view(-x) for name, x in floats.items()}
    assert torch.equal(attention(**inputs | lazy), attention(**inputs))


def test_autocast():
    inputs = make_inputs(SMALL)
    low = inputs | {name: inputs[name].half() for name in "qkv"}
    with torch.autocast(DEVICE, torch.float16):
        out = attention(**inputs)
    assert out.dtype == torch.float16
    assert torch.equal(out, attention(**low))


def test_checkpointing():
    inputs = make_inputs(SMALL)
    q = inputs.pop("q").requires_grad_()
    plain = attention(q=q, **inputs)
    kept = torch.utils.checkpoint.checkpoint(lambda q: attention(q=q, **inputs), q, use_reentrant=False)
    torch.testing.assert_close(torch.autograd.grad(kept.sum(), q), torch.autograd.grad(plain.sum(), q))


def test_compile():
    backend = "inductor" if GPU else "aot_eager"
    compiled = torch.compile(lambda inputs: attention(**inputs), fullgraph=True, dynamic=True, backend=backend)
    for length in (33, 47):
        inputs = make_inputs(replace(SMALL, q_lens=(length,) * 2, k_lens=(length,) * 2))
        torch.testing.assert_close(compiled(inputs), attention(**inputs))


@pytest.mark.skipif(not GPU, reason="needs a GPU")
def test_cuda_graph():
    inputs = make_inputs(SMALL)
    attention(**inputs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attention(**inputs)
    inputs["q"].copy_(torch.randn_like(inputs["q"]))
    graph.replay()
    torch.testing.assert_close(out, attention(**inputs))


@pytest.mark.skipif(not GPU or torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_device_that_is_not_current():
    inputs = make_inputs(SMALL)
    moved = {name: x.to("cuda:1") if isinstance(x, torch.Tensor) else x for name, x in inputs.items()}
    torch.testing.assert_close(attention(**moved).to("cuda:0"), attention(**inputs))


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named(mistake):
    name, change, error = MISTAKES[mistake]
    inputs = make_inputs(SMALL)
    with pytest.raises(error, match=f"^{name}: expected .*got"):
        attention(**inputs | {name: change(inputs[name])})
