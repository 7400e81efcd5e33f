# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/gemma2_global.yaml
#   content hash  dcf4b4b76133c6ba
#   text hash     e9d7a9fb9dc6ae14
#   render with   attnforge render specs/gemma2_global.yaml
"""Holds `attention` against `reference`: on a GPU where there is one, else small shapes in Triton's interpreter.

ATTNFORGE_FULL=1 runs every combination of lengths, head sizes and dtypes; ATTNFORGE_ERRORS=FILE appends errors beside their limits, as JSON.
"""

from __future__ import annotations

import itertools
import json
import math
import os
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

import pytest
import torch
import torch.utils.checkpoint
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from . import attention, reference
from .reference import _attention as rounding_reference

GPU = torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1"
if not GPU:
    os.environ["TRITON_INTERPRET"] = "1"  # before the first call imports triton

import triton
import triton.language as tl

from .kernels import key_tiles, query_tiles

DEVICE = "cuda" if GPU else "cpu"
GRADIENTS = ("q", "k", "v")


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
        q_lens, k_lens = (
            f"{len(x)}*{x[0]}" if len(x) > 9 else "+".join(map(str, x)) for x in (self.q_lens, self.k_lens)
        )
        sizes = f"{q_lens}x{k_lens}-h{self.Hq}:{self.Hkv}-d{self.D}:{self.Dv}"
        return f"{sizes}-{str(self.dtype).removeprefix('torch.')}"


class Make:
    """Random tensors, the same for the same seed."""

    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)

    def floats(self, shape):
        return torch.randn(shape, generator=self.generator).to(DEVICE)

    def integers(self, shape, end, first=0):
        return torch.randint(first, end, shape, generator=self.generator).to(DEVICE, torch.int32)


def make_inputs(case, seed=0):
    """The arguments of one call."""
    make = Make(seed)
    Hq, Hkv = case.Hq, case.Hkv
    longest = max(case.k_lens)
    B, Tq, Tk = len(case.q_lens), case.q_lens[0], case.k_lens[0]
    q, k, v = make.floats((B, Tq, Hq, case.D)), make.floats((B, Tk, Hkv, case.D)), make.floats((B, Tk, Hkv, case.Dv))
    q, k, v = (laid_out(x.to(case.dtype), case.layout) for x in (q, k, v))
    inputs = {"q": q, "k": k, "v": v}
    dims = case.D
    speeds = 10000.0 ** (-torch.arange(0, dims, 2) / dims)
    angles = (torch.arange(longest + 3)[:, None] * speeds).to(DEVICE)
    inputs["cos"] = angles.cos()
    inputs["sin"] = angles.sin()
    inputs["positions"] = make.integers((B, Tk), longest + 3)
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
    if layout == "shifted":  # rows as far apart as tiles ask for, but none of them on a boundary of 16 bytes
        return torch.nn.functional.pad(x, (1, 7), value=torch.nan)[..., 1:-7]
    return x


def floats(inputs):
    return {name: x for name, x in inputs.items() if isinstance(x, torch.Tensor) and x.is_floating_point()}


def widened(inputs):
    """The inputs in float64, for the reference."""
    return inputs | {name: x.double() for name, x in floats(inputs).items()}


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
    __tracebackhide__ = True
    inputs = make_inputs(case) | changes
    shape = inputs["q"].shape[:-1]
    lse_shape = (shape[1], shape[0]) if PACKED else (shape[0], shape[2], shape[1])
    d_out, d_lse = upstream_of((*shape, case.Dv), lse_shape)
    if expanded_gradient:
        d_out = torch.ones((), device=DEVICE).expand(d_out.shape)

    def rounding(**inputs):
        cuts = dict.fromkeys(("cu_seqlens", "max_seqlen")) if PACKED else {}
        return rounding_reference(**{"scale": None} | cuts | inputs, rounds_to=case.dtype)

    def low(inputs, *upstream):
        return run(inputs, GRADIENTS, rounding, upstream=upstream)

    # what the kernels receive: the gradient of out in the dtype of out
    upstream = d_out.to(case.dtype), d_lse
    got = run(inputs, GRADIENTS, upstream=upstream)
    gold = run(widened(inputs), GRADIENTS, both(reference), upstream=upstream)
    lows = list(yardsticks(low, inputs, *upstream))
    for name in gold:
        accept(case, name, got[name], gold[name], [x[name] for x in lows])
    check_exact(case, got, gold)


def check_exact(case, got, gold):
    """Rows without keys and keys without rows give zeros, not small numbers."""
    __tracebackhide__ = True
    empty, unseen = ((gold[name] == 0).all(-1, keepdim=True) for name in ("out", "dv"))
    zeros = {"out": empty, "dv": unseen, "dq": empty, "dk": unseen}
    for name, zero in zeros.items():
        what = "not 0, where nothing is seen"
        refuse(f"{case}: {name}", what, zero & (got[name] != 0), got[name], gold[name])


AXES = ("batch", "row", "head", "column")
LSE_AXES = ("batch", "head", "row")
TAMER = "say in the spec what makes sense: min and max of inputs, domain: {min: ..., max: ...} of the scores"
# the relative rms that rounding may cost a yardstick: more is no measure
SANE = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 1e-5}
NARROW = (torch.bfloat16, torch.float16, torch.float32)
DRAWS = 8
# what kernels compute to a few units in the last place
FUNCTIONS = "cos div erf exp exp2 log log1p log2 pow reciprocal rsqrt sigmoid sin softplus sqrt tanh".split()


class Dithered(TorchDispatchMode):
    """Rounds the result of each operation up or down by chance, of functions further; what needs no rounding stays."""

    def __init__(self, seed):
        super().__init__()
        self.generator = torch.Generator(DEVICE).manual_seed(seed)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **kwargs or {})
        if any(x.alias_info for x in function._schema.returns) or getattr(found, "dtype", None) not in NARROW:
            return found
        exact = function(*tree_map(wide, args), **tree_map(wide, kwargs or {}))
        mantissa, exponent = torch.frexp(exact)
        step = torch.finfo(found.dtype).eps / 2
        place = mantissa / step  # a whole number if it needs no rounding
        chance = torch.rand(exact.shape, generator=self.generator, dtype=torch.float64, device=DEVICE) - 0.5
        chance = chance.to(exact.device)  # numbers of the call stand on the CPU
        reach = 4 if function.overloadpacket.__name__ in FUNCTIONS else 1
        place = torch.where(place == place.floor(), place, torch.floor(place + 0.5 + reach * chance))
        return torch.ldexp(place * step, exponent).to(found.dtype)


def wide(x):
    if isinstance(x, torch.Tensor):
        return x.double() if x.dtype in NARROW else x
    return torch.float64 if x in NARROW else x


def nudged(x, make):
    """x in float32, each number moved by a unit in its last place: what comes in counts as rounded, too."""
    return x.float() * (1 + torch.finfo(torch.float32).eps * make.floats(x.shape).sign())


def yardsticks(function, inputs, *upstream):
    """Results of a reference that rounds as kernels do, once to the nearest number and some times by chance.

    How far one is off hangs on luck where few numbers stand or all cancel, and a kernel that adds in another order is as
    right: its roundings are other ones. Several draws tell how far roundings can take a result.
    """
    yield function(inputs, *upstream)
    # the scores of long rows would fill a GPU's memory: there, inputs that moved have to do, which round otherwise, too
    q, k = inputs["q"], inputs["k"]
    few = q.numel() // q.shape[-1] * (k.shape[-3] if not PACKED else k.shape[0]) < 2**23
    for seed in range(DRAWS if few else 3):
        make = Make(seed)
        near = inputs | {name: nudged(x, make) for name, x in floats(inputs).items()}
        given = [nudged(x, make) for x in upstream]
        with Dithered(seed) if few else nullcontext():
            yield function(near, *given)


def accept(case, name, got, gold, lows):
    """The acceptance rule: an error may be little more than those of references that round as the kernels do."""
    __tracebackhide__ = True  # a failure shows its test and the numbers
    title, first = f"{case}: {name}", lows[0]
    if (got.shape, got.dtype, got.device) != (first.shape, first.dtype, first.device):
        kinds = [f"{x.dtype} {tuple(x.shape)} on {x.device}" for x in (got, first)]
        raise AssertionError(f"{title}: {kinds[0]}, expected {kinds[1]}")
    if gold.isnan().any():
        undefined = f"{gold.isnan().sum()} of {gold.numel()} values of the reference are NaN"
        raise RuntimeError(f"{title}: {undefined}: the formula is not defined for all that is drawn; {TAMER}")
    finite = gold.isfinite()
    refuse(title, "infinite, or not, where the reference is not", ~finite & (got.double() != gold), got, gold)
    refuse(title, "not finite where the reference is", finite & ~got.isfinite(), got, gold)
    if got.numel() == 0:
        return
    eps = torch.finfo(got.dtype).eps

    def off(x):
        return torch.where(finite, x.to(got.dtype).double() - gold, 0.0)

    # rows of one (batch, head, row), of one (batch, head) for the LSE; what has no such rows is taken whole
    shape = gold.shape if name in ("out", "dq", "dk", "dv", "lse") else (1, -1)
    size, error = torch.where(finite, gold, 0.0), off(got)
    row_size, row_error = (rms(x.reshape(shape)) for x in (size, error))
    yards = [(x.abs().max(), rms(x.reshape(shape))) for x in map(off, lows)]
    yard, row_yard = max(most for most, _ in yards), rms(torch.stack([rows for _, rows in yards], -1))
    # of thousands of rows some are off by little in each draw: they are held to what half of all rows are off by
    alive = row_yard[row_size > 0]
    row_yard = torch.maximum(row_yard, alive.median()) if alive.numel() else row_yard

    # a NaN or useless yardstick would pass anything
    sane = SANE[case.dtype] * (3 if name.startswith("d") else 1)
    if not rms(row_yard.flatten()) <= sane * rms(size.flatten()) + 1e-2 * torch.finfo(case.dtype).eps:
        far = f"rounding alone puts the reference off by {rms(row_yard.flatten()):.3g} of {rms(size.flatten()):.3g}"
        raise RuntimeError(f"{title}: {far}, too much to judge by; {TAMER}")

    # Of 1,100 results of right kernels of random specs, none came closer than half to these limits, in the interpreter: the
    # factors leave room for the tails of chance. Faults leave it by orders of magnitude, as no draw is off by more than roundings.
    # Sums in float32 on a GPU: torch adds in a tree what kernels add one by one. On an NVIDIA H200 the largest error seen
    # is 4.3 times that of one yardstick, with a head size of 192 and single queries; a fault's is hundreds of times larger.
    order = 3 if GPU and got.dtype == torch.float32 else 1
    limit = 2 * order * (yard + eps * size.abs().max())
    row_limit = 4 * order * torch.maximum(row_yard, eps * row_size) + 1e-6
    worst = row_error / row_limit
    note(title, error.abs().max(), limit, worst.max())
    refuse(title, f"error {error.abs().max():.3g}, limit {limit:.3g}", error.abs() > limit, got, gold)
    at = worst.argmax()
    rows = f"a row's error (rms) {row_error.flatten()[at]:.3g}, limit {row_limit.flatten()[at]:.3g}"
    wrong = (worst > 1) & (worst == worst.max())
    refuse(title, rows, wrong[..., None].expand(error.reshape(shape).shape).reshape(gold.shape), got, gold)


def refuse(title, what, wrong, got, gold):
    """Fails if anything is wrong, and tells the place that is furthest off."""
    __tracebackhide__ = True
    if wrong.any():
        off = torch.where(wrong, (got.double() - gold).abs().nan_to_num(torch.inf, torch.inf), -1.0)
        place = [i.item() for i in torch.unravel_index(off.argmax(), off.shape)]
        words = {"out": AXES, "dq": AXES, "dk": AXES, "dv": AXES, "lse": LSE_AXES}.get(title.split(": ")[-1])
        at = ", ".join(f"{word} {i}" for word, i in zip(words, place)) if words else f"entry {place}"
        numbers = f"got {got[tuple(place)].item():.9g}, expected {gold[tuple(place)].item():.9g}"
        raise AssertionError(f"{title}: {what}\nat {at}: {numbers}")


def rms(x):
    return x.square().mean(-1).sqrt()


def note(title, error, limit, worst_row):
    """Appends one line to the table of errors, where one is asked for."""
    if path := os.environ.get("ATTNFORGE_ERRORS"):
        line = {"test": "gemma2_global " + title, "error": error.item(), "limit": limit.item(), "row": worst_row.item()}
        with open(path, "a") as file:
            file.write(json.dumps(line) + "\n")


def cases():
    """Sizes around the tiles, lengths apart, groups of heads, head sizes apart and odd."""
    lens = (1, 17, 127, 129, 1000, 4096) if GPU else (1, 33)
    # errors of a few rows are no measure of each other: the shortest come in numbers
    pairs = [((n,) * (8 if n == 1 else 2 if n < 1000 else 1),) * 2 for n in lens]
    pairs += [((1,) * (8 if GPU else 4), (70,) * (8 if GPU else 4)), ((40, 40), (70, 70))]
    heads = [(2, 2), (4, 1), (8, 2)] if GPU else [(2, 2), (4, 2)]
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


SMALL = Case((33, 33), (33, 33), 2, 1, 16, 16, torch.float32)
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
    "shape of positions": ("positions", lambda x: x[..., None], ValueError),
    "dtype of positions": ("positions", lambda x: x.to(torch.complex64), TypeError),
}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_and_gradients(case):
    check(case)


@pytest.mark.parametrize("layout", ["transposed", "sliced", "expanded", "unaligned", "shifted"])
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


@pytest.mark.parametrize("scale", [0.3, -0.5, 8.0])  # with the last one, scores of a hundred
def test_scale(scale):
    check(SMALL, scale=scale)


def test_without_positions():
    check(SMALL, positions=None)


def test_positions_of_size_1_along_an_axis():
    positions = make_inputs(SMALL)["positions"]
    positions = positions.narrow(0, 0, 1)
    check(SMALL, positions=positions)


def test_positions_of_size_1_along_every_axis():
    positions = make_inputs(SMALL)["positions"]
    positions = positions.narrow(0, 0, 1)
    positions = positions.narrow(1, 0, 1)
    check(SMALL, positions=positions)


@pytest.mark.parametrize("name", GRADIENTS)
def test_each_gradient_alone(name):
    inputs = make_inputs(SMALL)
    every, one = run(inputs, GRADIENTS), run(inputs, (name,))
    assert torch.equal(one["out"], every["out"])
    torch.testing.assert_close(one["d" + name], every["d" + name])


@pytest.mark.parametrize("place", [0, 1], ids=["out", "lse"])
def test_no_gradient_is_a_gradient_of_0(place):
    def detached(**inputs):
        results = attention(**inputs, return_lse=True)
        return [x.detach() if i == place else x for i, x in enumerate(results)]

    inputs = make_inputs(SMALL)
    given = upstream_of(*(x.shape for x in attention(**inputs, return_lse=True)))
    none = run(inputs, GRADIENTS, detached, upstream=given)
    zero = run(inputs, GRADIENTS, upstream=[torch.zeros_like(x) if i == place else x for i, x in enumerate(given)])
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


@triton.jit
def note_key_tiles(found_ptr, q_len, k_len, TILE: tl.constexpr, BLOCK_N: tl.constexpr, COUNT: tl.constexpr):
    """The ranges of all tiles of queries at once."""
    b, h, kv_h = 0, 0, 0
    i = tl.arange(0, COUNT)
    q_first = i * TILE + (k_len - q_len)
    q_last = tl.minimum(q_first + TILE, k_len) - 1
    for span in tl.static_range(1):
        found = key_tiles(q_first, q_last, k_len, BLOCK_N)
        for place in tl.static_range(4):
            tl.store(found_ptr + (span * 4 + place) * COUNT + i, found[place])


@triton.jit
def note_query_tiles(found_ptr, q_len, k_len, TILE: tl.constexpr, BLOCK_M: tl.constexpr, COUNT: tl.constexpr):
    """The ranges of all tiles of keys at once."""
    b, h, kv_h = 0, 0, 0
    i = tl.arange(0, COUNT)
    k_first = i * TILE
    k_last = tl.minimum(k_first + TILE, k_len) - 1
    for span in tl.static_range(1):
        found = query_tiles(k_first, k_last, q_len, k_len, BLOCK_M)
        for place in tl.static_range(4):
            tl.store(found_ptr + (span * 4 + place) * COUNT + i, found[place])


def visible(inputs):
    """Which keys each query of a single head sees: those that have a weight in the reference."""
    alike = {name: torch.zeros_like(inputs[name], dtype=torch.float64) for name in "qk"}
    v = torch.zeros_like(inputs["v"][..., :1], dtype=torch.float64).requires_grad_()
    out = reference(**widened(inputs) | alike | {"v": v})
    rows = torch.eye(out.numel(), dtype=torch.float64).view(-1, *out.shape)
    return torch.autograd.grad(out, v, rows, is_grads_batched=True)[0].flatten(1) > 0


def by_tiles(seen, own, other):
    """Which tiles of `other` columns show something to tiles of `own` rows, and which show all."""
    rows, columns = -seen.shape[0] % own, -seen.shape[1] % other
    some = torch.nn.functional.pad(seen, (0, columns, 0, rows))
    every = torch.nn.functional.pad(torch.nn.functional.pad(seen, (0, columns)), (0, 0, 0, rows), value=True)
    some, every = (x.unflatten(1, (-1, other)).unflatten(0, (-1, own)) for x in (some, every))
    return some.any(-1).any(1), every.all(-1).all(1)


# single positions find the ends of ranges off by one, tiles those that were taken from the wrong end of a tile
@pytest.mark.skipif(GPU, reason="whole numbers: what holds in the interpreter holds there")
@pytest.mark.parametrize("own, other", [(1, 1), (5, 1), (32, 32)])
@pytest.mark.parametrize("case", [replace(SMALL, q_lens=(40,), k_lens=(70,))], ids=str)
def test_tiles_are_visited_where_the_mask_shows_something(case, own, other):
    inputs = make_inputs(replace(case, Hq=1, Hkv=1))
    seen = visible(inputs)
    lengths = {"q_len": seen.shape[0], "k_len": seen.shape[1]}
    some, every = by_tiles(seen, own, other)
    numbers = {name: int(torch.as_tensor(inputs[name]).flatten()[0]) for name in []}
    count = 1 << (len(some) - 1).bit_length()
    found = torch.zeros(1, 4, count, dtype=torch.int32)
    note_key_tiles[(1,)](found, **numbers, **lengths, TILE=own, BLOCK_N=other, COUNT=count)
    found, tile = found[..., : len(some), None], torch.arange(some.shape[1])
    visited = ((found[:, 0] <= tile) & (tile < found[:, 3])).any(0)
    unmasked = ((found[:, 1] <= tile) & (tile < found[:, 2])).any(0)
    assert not (some & ~visited).any(), "a tile that shows something is not visited"
    assert not (unmasked & ~every).any(), "a tile that hides something is visited without the mask"
    assert own > 1 or torch.equal(visited, some), "a tile that shows nothing is visited"
    some, every = by_tiles(seen.T, own, other)
    numbers = {name: int(torch.as_tensor(inputs[name]).flatten()[0]) for name in []}
    count = 1 << (len(some) - 1).bit_length()
    found = torch.zeros(1, 4, count, dtype=torch.int32)
    note_query_tiles[(1,)](found, **numbers, **lengths, TILE=own, BLOCK_M=other, COUNT=count)
    found, tile = found[..., : len(some), None], torch.arange(some.shape[1])
    visited = ((found[:, 0] <= tile) & (tile < found[:, 3])).any(0)
    unmasked = ((found[:, 1] <= tile) & (tile < found[:, 2])).any(0)
    assert not (some & ~visited).any(), "a tile that shows something is not visited"
    assert not (unmasked & ~every).any(), "a tile that hides something is visited without the mask"
    assert own > 1 or torch.equal(visited, some), "a tile that shows nothing is visited"


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
    lazy = {name: torch._neg_view(-x) for name, x in floats(inputs).items()}
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
    inputs["q"].copy_(make_inputs(SMALL, seed=1)["q"])
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
