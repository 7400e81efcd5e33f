# Written by attnforge. Do not edit: it is the same in every package.
#
#   made from     templates/tests/checks.py.jinja
#   content hash  adaa4ac9ee5e5f57
#   text hash     8f77bf129e7558a6
#   render with   attnforge render SPEC
"""The checks of test suites and their acceptance rule; the test file next to it has what is specific to a variant.

The test file imports the test classes that apply to its variant, and passes it to them as the fixture `variant`.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import sys
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch.utils._python_dispatch import TorchDispatchMode

from . import attention, reference

GPU = torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1"
if not GPU:
    os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported, here and by the first call

import triton
import triton.language as tl

DEVICE = "cuda" if GPU else "cpu"


@dataclass(frozen=True)
class Case:
    """Sizes of one call; a batch has a single length, packed sequences have one each."""

    q_lens: tuple[int, ...]
    k_lens: tuple[int, ...]
    Hq: int
    Hkv: int
    D: int
    Dv: int
    dtype: torch.dtype
    layout: str = "contiguous"

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

    def decays(self, shape):
        return torch.nn.functional.logsigmoid(self.floats(shape) + 5)

    def between(self, shape, low, high):
        return low + (high - low) * torch.rand(shape, generator=self.generator).to(DEVICE)

    def integers(self, shape, end, first=0):
        return torch.randint(first, end, shape, generator=self.generator).to(DEVICE, torch.int32)

    def bools(self, shape):
        return self.floats(shape) > -0.5

    def qkv(self, case, packed):
        """q, k and v of a case, in float32."""
        q_rows, k_rows = (sum(x) if packed else x[0] for x in (case.q_lens, case.k_lens))
        batch = () if packed else (len(case.q_lens),)
        heads = [(q_rows, case.Hq, case.D), (k_rows, case.Hkv, case.D), (k_rows, case.Hkv, case.Dv)]
        return [self.floats((*batch, *shape)) for shape in heads]


def arguments(case, packed, q, k, v):
    """The arguments of every variant: q, k and v in the dtype and layout of a case, and the cuts of sequences."""
    inputs = {name: as_operand(x, case) for name, x in (("q", q), ("k", k), ("v", v))}
    if packed:
        for name, lens in (("q", case.q_lens), ("k", case.k_lens)):
            cuts = torch.tensor((0, *itertools.accumulate(lens)), dtype=torch.int32, device=DEVICE)
            inputs["cu_seqlens_" + name] = cuts.repeat_interleave(2)[::2] if case.layout == "sliced" else cuts
            inputs["max_seqlen_" + name] = max(lens)
    return inputs


def as_operand(x, case):
    """The same values in the dtype of a case, with the strides of its layout."""
    x, layout = x.to(case.dtype), case.layout
    if layout == "transposed":
        return x.transpose(-3, -2).contiguous().transpose(-3, -2)
    if layout == "sliced":  # as if q, k and v were slices of one tensor
        return torch.cat((x, torch.full_like(x, torch.nan)), -2)[..., : x.shape[-2], :]
    if layout == "expanded":
        return x[..., :1, :].expand(x.shape)
    if layout == "unaligned":
        return torch.nn.functional.pad(x, (1, 2), value=torch.nan)[..., 1:-2]
    if layout == "shifted":  # row strides as tiles require, but no row on a boundary of 16 bytes
        return torch.nn.functional.pad(x, (1, 7), value=torch.nan)[..., 1:-7]
    return x


def in_domain(x, held, length):
    """A q or k whose scores are in the spec's domain: the last column gives the middle, the others are small."""
    x = x * (length / x.norm(dim=-1, keepdim=True))
    x[..., -1] = held
    return x * x.shape[-1] ** 0.25  # makes up for half of the scale


def rope_angles(dims, count, *, still=False):
    """Angles of `count` positions, (count, dims / 2); `still` leaves the last pair of columns unrotated."""
    speeds = 10000.0 ** (-torch.arange(0, dims, 2) / dims)
    if still:
        speeds[-1] = 0
    return (torch.arange(count)[:, None] * speeds).to(DEVICE)


def floats(inputs):
    """The floating-point tensors among arguments."""
    return {name: x for name, x in inputs.items() if isinstance(x, torch.Tensor) and x.is_floating_point()}


def widened(inputs):
    """The arguments with all floats in float64, for the reference."""
    return inputs | {name: x.double() for name, x in floats(inputs).items()}


def cases(small, *, packed, more_queries):
    """Sizes around those of tiles, different lengths, groups of heads, different and odd head sizes.

    `more_queries` also asks for calls with more queries than keys.
    """
    if packed:
        lens = [(1,) * 8, (0, 33, 0, 1, 17, 0), *([(127, 129, 1, 0, 128), (1000, 3, 300)] if GPU else [])]
        pairs = [(x, x) for x in lens] + [((5, 0, 33), (40, 7, 33))]
        longer = [((40, 7, 33), (5, 0, 33))]
    else:
        lens = (1, 17, 127, 129, 1000, 4096) if GPU else (1, 33)
        # errors of a few rows say little about each other: the shortest lengths come in larger batches
        pairs = [((n,) * (8 if n == 1 else 2 if n < 1000 else 1),) * 2 for n in lens]
        pairs += [((1,) * (8 if GPU else 4), (70,) * (8 if GPU else 4)), ((40, 40), (70, 70))]
        longer = [((70, 70), (20, 20))]
    pairs += longer if more_queries else []
    if small.Hq == small.Hkv:
        heads = [(2, 2), (3, 3)]
    else:
        heads = [(2, 2), (4, 1), (8, 2)] if GPU else [(2, 2), (4, 2)]
    sizes = [(16, 16), (24, 40), (40, 24), (64, 64), (80, 80), (96, 96), (128, 128), (192, 128), (256, 256)]
    sizes = [(max(size, small.D), v_size) for size, v_size in (sizes if GPU else sizes[:3])]
    dtypes = (torch.float16, torch.bfloat16, torch.float32) if GPU else (torch.float32,)
    if os.environ.get("ATTNFORGE_FULL") == "1":
        every = enumerate(itertools.product(pairs, sizes, dtypes))
        return [Case(*pair, *heads[(i + i // len(heads)) % len(heads)], *d, dtype) for i, (pair, d, dtype) in every]
    # each pair of lengths and each head size at least once with every dtype, combined differently for each
    count, found = max(len(pairs), len(sizes)), []
    for turn, dtype in enumerate(dtypes):
        for i in range(count):
            pair, size = pairs[i % len(pairs)], sizes[(i + 3 * turn) % len(sizes)]
            found.append(Case(*pair, *heads[i % len(heads)], *size, dtype))
    return found if GPU else [*found, replace(small, dtype=torch.float16)]


def mistakes(*, packed, tensors=(), least=None):
    """Wrong arguments by title: the argument, a function that makes it wrong, the error.

    `tensors` names those that a variant takes besides q, k and v, `least` its numbers that have a minimum.
    """
    rows = slice(-1) if packed else (slice(None), slice(-1))
    found = {
        "dtype": ("q", lambda q: q.double(), TypeError),
        "dtypes apart": ("k", lambda k: k.half(), TypeError),
        "no tensor": ("v", lambda v: 1.0, TypeError),
        "axes": ("q", lambda q: q[0], ValueError),
        "head size": ("k", lambda k: k[..., :-1], ValueError),
        "length": ("v", lambda v: v[rows], ValueError),
        "heads": ("k", lambda k: torch.cat((k, k, k), -2), ValueError),
    }
    for name, value in (least or {}).items():
        found[f"{name} too small"] = (name, lambda _, value=value: value - 1, ValueError)
    for name in tensors:
        found[f"shape of {name}"] = (name, lambda x: x[..., None], ValueError)
        found[f"dtype of {name}"] = (name, lambda x: x.to(torch.complex64), TypeError)
    return found


@dataclass(frozen=True)
class Variant:
    """What the checks need to know of a variant."""

    make_inputs: Callable[..., dict[str, Any]]  # the arguments of one call, for a case and a seed
    small: Case
    packed: bool
    gradients: tuple[str, ...]  # the inputs that get gradients; none if a variant has only the forward pass
    dropout: bool = False
    any_chunk: bool = True  # whether a row's bits are the same wherever a chunk of queries begins

    @property
    def alike(self):
        """The small case; on a GPU also one in 16 bits with wider heads, which other kernels may compute."""
        return [self.small, *([replace(self.small, D=64, Dv=64, dtype=torch.bfloat16)] if GPU else [])]

    def run(self, inputs, gradients=None, function=attention, *, upstream=None):
        """Out, LSE and gradients of one call, by name."""
        wanted = self.gradients if gradients is None else gradients
        wanted = [name for name in wanted if inputs.get(name) is not None]
        inputs = inputs | {name: inputs[name].detach().requires_grad_() for name in wanted}
        out, lse = function(**inputs, return_lse=True)
        if not wanted:
            return {"out": out, "lse": lse}
        d_out, d_lse = upstream or self.upstream(inputs)
        # the gradient of an LSE of -inf is 0, whatever the incoming one is
        finite = torch.isfinite(lse.detach())
        loss = (out * d_out.to(out.dtype)).sum() + (torch.where(finite, lse, 0) * d_lse.to(lse.dtype)).sum()
        # a term may not use the score, or have no slope: then autograd has no gradient where kernels write zeros
        grads = torch.autograd.grad(loss, [inputs[name] for name in wanted], materialize_grads=True)
        return {"out": out.detach(), "lse": lse.detach()} | {"d" + name: x for name, x in zip(wanted, grads)}

    def upstream(self, inputs):
        """Random gradients of out and LSE."""
        make, shape = Make(7), inputs["q"].shape[:-1]
        d_out = make.floats((*shape, inputs["v"].shape[-1]))
        return d_out, make.floats((shape[1], shape[0]) if self.packed else (shape[0], shape[2], shape[1]))

    def check(self, case, /, *, _expanded_gradient=False, **changes):
        """Compares out, LSE and all gradients of a case, with some arguments changed, with the reference."""
        __tracebackhide__ = True
        inputs = self.make_inputs(case) | changes
        upstream = ()
        if self.gradients:
            d_out, d_lse = self.upstream(inputs)
            if _expanded_gradient:
                d_out = torch.ones((), device=DEVICE).expand(d_out.shape)
            # as kernels receive it: the gradient of out in the dtype of out
            upstream = d_out.to(case.dtype), d_lse

        def rounding(inputs, *upstream):
            with rounded_reference(case.dtype, backward=bool(self.gradients)):
                return self.run(inputs, function=reference, upstream=upstream)

        got = self.run(inputs, upstream=upstream)
        gold = self.run(widened(inputs), function=reference, upstream=upstream)
        draws = yardsticks(rounding, inputs, *upstream)
        lows = list(itertools.islice(draws, FEW))
        weighed = gold["lse"][gold["lse"].isfinite()].abs()
        scores = weighed.max().item() if weighed.numel() else 0.0
        for name in gold:
            given = case, name, got[name], gold[name]
            if sure(*given, [x[name] for x in lows], scores):
                continue
            lows += draws
            try:
                accept(*given, [x[name] for x in lows], scores)
            except Near:
                # of thousands of rows, one may be off by three deviations where a few draws were off by half of one
                if len(lows) <= DRAWS + 1:
                    lows += yardsticks(rounding, inputs, *upstream, more=True)
                accept(*given, [x[name] for x in lows], scores)
        self.check_zeros(case, got, gold)

    def check_zeros(self, case, got, gold):
        """Rows without keys and keys without rows give exact zeros, not small numbers."""
        __tracebackhide__ = True
        empty = (gold["out"] == 0).all(-1, keepdim=True)
        zeros = {"out": empty}
        if self.gradients:
            unseen = (gold["dv"] == 0).all(-1, keepdim=True)
            # a row of which dropout leaves nothing still has gradients
            zeros |= {"dv": unseen} if self.dropout else {"dv": unseen, "dq": empty, "dk": unseen}
        for name, zero in zeros.items():
            what = "not 0, where nothing is seen"
            refuse(f"{case}: {name}", what, zero & (got[name] != 0), got[name], gold[name])

    def check_size_1(self, name, axes):
        """An input of size 1 along some axes is expanded to any size."""
        __tracebackhide__ = True
        for case in self.alike:
            # its gradient is a sum over all that share a value, which may nearly cancel: then other numbers are drawn
            for seed in itertools.count():
                inputs = self.make_inputs(case, seed)
                for axis in axes:
                    inputs[name] = inputs[name].narrow(axis, 0, 1)
                try:
                    self.check(case, **inputs)
                    break
                except Useless:
                    if seed == 3:
                        raise

    def check_float32(self, name):
        """An input may have more bits than q, k and v."""
        __tracebackhide__ = True
        case = replace(self.alike[-1], dtype=torch.float16)
        self.check(case, **{name: self.make_inputs(case)[name].float()})

    def check_least(self, name):
        """An input that is added to scores may hide pairs with the lowest number of its dtype."""
        __tracebackhide__ = True
        for case in self.alike:
            x = self.make_inputs(case)[name]
            x[..., x.shape[-2] // 2, :] = x[..., : x.shape[-1] // 2] = torch.finfo(x.dtype).min
            self.check(case, **{name: x})

    def check_operands(self, case):
        """Compares the gradients of q, k and v with the reference, for a call that wants no gradients of inputs."""
        __tracebackhide__ = True
        replace(self, gradients=self.gradients[:3]).check(case)

    def check_gradient_alone(self, name):
        """A gradient that is requested alone is the same as among all."""
        inputs = self.make_inputs(self.small)
        every, one = self.run(inputs), self.run(inputs, (name,))
        assert torch.equal(one["out"], every["out"])
        torch.testing.assert_close(one["d" + name], every["d" + name])

    def check_gradient_refused(self, name):
        """A variant with only the forward pass says so if a gradient is requested."""
        inputs = self.make_inputs(self.small)
        inputs[name] = inputs[name].clone().requires_grad_()
        with pytest.raises(RuntimeError, match="has the forward pass only"):
            attention(**inputs)
        with torch.no_grad():
            assert torch.equal(attention(**inputs), attention(**inputs | {name: inputs[name].detach()}))

    def check_far(self, case, monkeypatch):
        """A case of many keys; the interpreter uses tiles of a size that suits it."""
        __tracebackhide__ = True
        if not GPU:
            from . import runtime

            monkeypatch.setattr(runtime, "launch_tuned", lambda cache, tables, name, start, *more: start(16, 256, 4, 1))
        self.check(case)

    def check_sums(self, name, axis, places, value, others=None):
        """Sums over an input with one value at some tokens, and another one at about a twentieth of all places."""
        __tracebackhide__ = True
        lens = (70, 0, 33) if self.packed else (70, 70)
        case = replace(self.small, q_lens=lens, k_lens=lens)
        x = self.make_inputs(case)[name].index_fill(axis, torch.tensor(places, device=DEVICE), value)
        if others is not None:
            x = x.masked_fill(Make(1).floats(x.shape) > 1.6, others)
        self.check(case, **{name: x})

    def check_mistake(self, name, change, error):
        """A wrong argument is named, with what was expected and what it was."""
        inputs = self.make_inputs(self.small)
        with pytest.raises(error, match=f"^{name}: expected .*got"):
            attention(**inputs | {name: change(inputs[name])})


TAMER = "say in the spec what makes sense: min and max of inputs, domain: {min: ..., max: ...} of the scores"
# the relative rms that rounding may cost a yardstick, three times that for a gradient: with more it measures nothing.
# Of 1,500 random specs on a GPU, seven reached between a seventh and nine tenths of it, all others far less.
SANE = {torch.bfloat16: 3e-2, torch.float16: 1.5e-2, torch.float32: 1e-4}
NARROW = (torch.bfloat16, torch.float16, torch.float32)
DRAWS = 8
FEW = 4  # yardsticks that suffice for an error far within its limit
MORE = 24  # further draws if an error is slightly beyond its limit
LONG = 2**23  # scores of a call, from which on there are fewer draws
PART = 2**22  # numbers that are rounded at a time
ARITHMETIC = ("add", "sub", "rsub", "mul")
# functions that kernels compute to a few units in the last place
FUNCTIONS = "cos div erf exp exp2 log log1p log2 pow reciprocal rsqrt sigmoid sin softplus sqrt tanh".split()
PIECE = 256  # numbers that kernels add up with little more than one rounding
SEVERAL = 16  # such pieces, whose roundings may all go in one direction
# the axes of results, without the first one if sequences are packed
AXES = dict.fromkeys(("out", "dq", "dk", "dv"), ("batch", "row", "head", "column")) | {"lse": ("batch", "head", "row")}


class Near(AssertionError):
    """An error so slightly beyond its limit that the draws of the yardstick may just have been lucky."""


class Useless(RuntimeError):
    """A yardstick that measures nothing, as rounding alone moves the reference too far."""


class Dithered(TorchDispatchMode):
    """Rounds the result of each operation up or down at random, results of functions and of long sums by more.

    Numbers that need no rounding stay as they are.
    """

    def __init__(self, seed):
        super().__init__()
        self.generator = torch.Generator(DEVICE).manual_seed(seed)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **kwargs or {})
        name, dtype = function.overloadpacket.__name__, getattr(found, "dtype", None)
        # a reference keeps sums over tokens in float64; kernels compute with them in float32
        summed = dtype == torch.float64 and name in (*ARITHMETIC, *FUNCTIONS)
        if any(x.alias_info for x in function._schema.returns) or not (dtype in NARROW or summed):
            return found
        exact = function(*wide(args), **{key: wide(x) for key, x in (kwargs or {}).items()})
        narrow = torch.float32 if summed else dtype
        reach = 4 if name in FUNCTIONS else 2 if summed else 1
        if name in ("bmm", "sum") and found.numel():
            added = args[0].shape[-1] if name == "bmm" else args[0].numel() // found.numel()
            pieces = added // PIECE
            # roundings of many additions go in either direction
            reach += pieces if pieces < SEVERAL else math.isqrt(SEVERAL * pieces)
        # the scores of long rows would fill a GPU's memory several times over
        found_rows, rows = found[None], exact[None]
        axis, parts = max(range(rows.dim()), key=rows.size), max(1, rows.numel() // PART)
        for part, exact_part in zip(found_rows.chunk(parts, axis), rows.chunk(parts, axis)):
            part.copy_(self.rounded(exact_part, narrow, reach))
        return found

    def rounded(self, exact, dtype, reach):
        # the bits of a float64 that a narrower number lacks, and random offsets of up to `reach` of its units
        lost = 2 ** (52 + int(math.log2(torch.finfo(dtype).eps)))
        bits, ends = exact.double().view(torch.int64), (lost * (1 - reach) // 2, lost * (1 + reach) // 2)
        chance = torch.randint(*ends, bits.shape, generator=self.generator, device=DEVICE)
        moved = (bits + chance.to(bits.device)) & -lost  # numbers of the call are on the CPU
        # the smallest numbers have larger units than this assumes
        stays = (bits & (lost - 1) == 0) | (exact.abs() < 1e-300)
        return torch.where(stays, bits, moved).view(torch.float64)


def wide(x):
    if isinstance(x, torch.Tensor):
        return x.double() if x.dtype in NARROW else x
    if isinstance(x, (list, tuple)):
        return [wide(y) for y in x]
    return torch.float64 if x in NARROW else x


def nudged(x, make):
    """x in float32, each number moved by a unit in its last place: inputs count as rounded, too."""
    return x.float() * (1 + torch.finfo(torch.float32).eps * make.floats(x.shape).sign())


def yardsticks(function, inputs, *upstream, more=False):
    """Results of a reference that rounds as kernels do: once to nearest, and several times at random, or `more` times.

    The error of one result is a matter of luck if there are few numbers or they cancel, and a kernel that adds in
    another order, with other roundings, is just as right. Several draws show how far roundings can move a result.
    """
    # if there are many scores, they make up for fewer draws
    scores = inputs["q"].numel() // inputs["q"].shape[-1] * inputs["k"].shape[-3]
    if not more:
        yield function(inputs, *upstream)
    for seed in range(DRAWS, DRAWS + MORE) if more else range(DRAWS if scores < LONG else 3):
        make = Make(seed)
        near = inputs | {name: nudged(x, make) for name, x in floats(inputs).items()}
        given = [nudged(x, make) for x in upstream]
        with Dithered(seed):
            yield function(near, *given)


def sure(case, name, got, gold, lows, scores):
    """Whether these yardsticks are enough: the rms over all draws is at least such a share of that over a few."""
    if os.environ.get("ATTNFORGE_ERRORS"):  # its lines have limits from all draws
        return False
    try:
        accept(case, name, got, gold, lows, scores, share=(FEW / (DRAWS + 1)) ** 0.5)
    except (AssertionError, RuntimeError):
        return False
    return True


def accept(case, name, got, gold, lows, scores=0.0, share=1.0):
    """The acceptance rule: an error may be slightly more than those of references that round as kernels do.

    `scores` is the size of scores with weight, `share` the part of the limits that an error may reach.
    """
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

    # rows of one (batch, head, row), or of one (batch, head) for the LSE; tensors without such rows are taken whole
    shape = gold.shape if name in AXES else (1, -1)
    size, error = torch.where(finite, gold, 0.0), off(got)
    row_size, row_error = (rms(x.reshape(shape)) for x in (size, error))
    yards = [(x.abs().max(), rms(x.reshape(shape))) for x in map(off, lows)]
    yard, row_yard = max(most for most, _ in yards), rms(torch.stack([rows for _, rows in yards], -1))
    # a NaN or useless yardstick would pass anything; rounding a score of 1000 moves its weight by thousands of eps
    steep = min(SANE[torch.float16], 16 * torch.finfo(torch.float32).eps * scores)
    sane = max(SANE[case.dtype], steep) * (3 if name.startswith("d") else 1)
    if not rms(row_yard.flatten()) <= sane * rms(size.flatten()) + 1e-2 * torch.finfo(case.dtype).eps:
        far = f"rounding alone puts the reference off by {rms(row_yard.flatten()):.3g} of {rms(size.flatten()):.3g}"
        raise Useless(f"{title}: {far}, too much to judge by; {TAMER}")

    # of thousands of rows, some have a small error in every draw: they are held to the median over all rows
    alive = row_yard[row_size > 0]
    row_yard = torch.maximum(row_yard, alive.median()) if alive.numel() else row_yard

    # Of 17,136 results of correct kernels of random specs on an NVIDIA H200, none exceeded two thirds of these limits:
    # the factors leave room for the tails of chance. Faults exceed them by orders of magnitude, as draws have no errors
    # but roundings. Sums in float32 on a GPU: torch adds in a tree what kernels add one by one. On an NVIDIA H200 the
    # largest error seen is 4.3 times that of one yardstick, with a head size of 192 and single queries; that of a fault
    # is hundreds of times larger.
    order = 3 if GPU and got.dtype == torch.float32 else 1
    # numbers that cancel in the reference leave a few roundings of numbers around 1 in kernels
    limit = share * (2 * order * (yard + eps * size.abs().max()) + 5e-7)
    row_limit = share * (4 * order * torch.maximum(row_yard, eps * row_size) + 1e-6)
    worst = row_error / row_limit
    note(title, error.abs().max(), limit, worst.max())
    kind = Near if max(error.abs().max() / limit, worst.max()) < 4 else AssertionError
    refuse(title, f"error {error.abs().max():.3g}, limit {limit:.3g}", error.abs() > limit, got, gold, kind)
    at = worst.argmax()
    rows = f"a row's error (rms) {row_error.flatten()[at]:.3g}, limit {row_limit.flatten()[at]:.3g}"
    wrong = (worst > 1) & (worst == worst.max())
    refuse(title, rows, wrong[..., None].expand(error.reshape(shape).shape).reshape(gold.shape), got, gold, kind)


def refuse(title, what, wrong, got, gold, kind=AssertionError):
    """Fails if anything is wrong, and reports the place with the largest error."""
    __tracebackhide__ = True
    if wrong.any():
        off = torch.where(wrong, (got.double() - gold).abs().nan_to_num(torch.inf, torch.inf), -1.0)
        place = [i.item() for i in torch.unravel_index(off.argmax(), off.shape)]
        axes = AXES.get(title.split(": ")[-1], ())[-gold.dim() :]
        at = ", ".join(f"{axis} {i}" for axis, i in zip(axes, place)) if axes else f"entry {place}"
        numbers = f"got {got[tuple(place)].item():.9g}, expected {gold[tuple(place)].item():.9g}"
        raise kind(f"{title}: {what}\nat {at}: {numbers}")


def rms(x):
    return x.square().mean(-1).sqrt()


def note(title, error, limit, worst_row):
    """Appends one line to the table of errors, if one is requested."""
    if path := os.environ.get("ATTNFORGE_ERRORS"):
        variant = __package__.rpartition(".")[2]
        line = {"test": f"{variant} {title}", "error": error.item(), "limit": limit.item(), "row": worst_row.item()}
        with open(path, "a") as file:
            file.write(json.dumps(line) + "\n")


LOG2E = 1 / math.log(2)


@contextmanager
def rounded_reference(dtype, *, backward):
    """Makes `reference` round operands of products to a dtype, as kernels do: a yardstick for their errors."""
    module = sys.modules[reference.__module__]
    rotated, scores = getattr(module, "_rotated", None), module._scores

    def weighted(score, v, sink=None, kept=None):
        return (RoundedWeights.apply if backward else rounded_weights)(score, v, dtype, sink, kept)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_weighted", weighted)
        if rotated:  # kernels round what they have rotated
            patch.setattr(module, "_rotated", lambda *args: [Round.apply(x, dtype, "value") for x in rotated(*args)])
        if backward:
            patch.setattr(module, "_scores", lambda q, k: Round.apply(scores(q, k), dtype, "gradient"))
        yield


def rounded_weights(score, v, dtype, sink, kept):
    """The reference's `_weighted` as kernels compute it: in log2 units, with rounded weights."""
    score = score * LOG2E
    if sink is None:
        top = score.detach().amax(-1, keepdim=True)
    else:
        sink = (sink * LOG2E).expand(*score.shape[:-1])[..., None]
        top = torch.cat((score, sink), -1).detach().amax(-1, keepdim=True)
    top = torch.where(top == -math.inf, 0.0, top)
    weight = torch.exp2(score - top)
    total = weight.sum(-1, keepdim=True)
    if sink is not None:
        total = total + torch.exp2(sink - top)
    visible = total != 0
    total = torch.where(visible, total, 1.0)
    lse = torch.where(visible, top + torch.log2(total), -math.inf)[..., 0]
    weight = weight / total
    top = weight.amax(-1, keepdim=True)
    top = torch.where(top == 0, 1.0, top)
    weight = (weight / top).to(dtype).to(v.dtype)
    weight = weight if kept is None else weight * kept
    return torch.einsum("bhij,bjhd->bhid", weight, v) * top, lse / LOG2E


class RoundedWeights(torch.autograd.Function):
    """The same, with gradients that recompute rounded weights from the LSE."""

    @staticmethod
    def forward(ctx, score, v, dtype, sink, kept):
        out, lse = rounded_weights(score, v, dtype, sink, kept)
        ctx.save_for_backward(score, v, out.to(dtype).to(v.dtype), lse, sink, kept)
        ctx.dtype = dtype
        return out, lse

    @staticmethod
    def backward(ctx, dout, dlse):
        score, v, out, lse, sink, kept = ctx.saved_tensors
        if sink is not None:
            share = torch.where(lse == -math.inf, 0.0, torch.exp(sink - lse))
        lse = torch.where(lse == -math.inf, math.inf, lse)
        weight = torch.exp2(score * LOG2E - (lse * LOG2E)[..., None])
        rounded = weight.to(ctx.dtype).to(v.dtype)
        dweight = torch.einsum("bhid,bjhd->bhij", dout, v)
        if kept is not None:
            rounded, dweight = rounded * kept, dweight * kept
        dv = torch.einsum("bhij,bhid->bjhd", rounded, dout)
        delta = (out * dout).sum(-1) - dlse
        dsink = None if sink is None else -(share * delta).sum((0, 2))[:, None]
        return weight * (dweight - delta[..., None]), dv, None, dsink, None


class Round(torch.autograd.Function):
    """x with its value or its gradient rounded to a dtype and back."""

    @staticmethod
    def forward(ctx, x, dtype, what):
        ctx.dtype = dtype if what == "gradient" else x.dtype
        return x.to(dtype).to(x.dtype) if what == "value" else x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad.to(ctx.dtype).to(grad.dtype), None, None


@dataclass(frozen=True)
class Ranges:
    """A kernel function that computes which tiles to visit, to be compared with brute force over the mask."""

    kernel: Callable[..., None]  # stores the result of the function for all tiles of queries, or of keys
    numbers: tuple[str, ...] = ()  # the arguments of `attention` that it takes, in order
    spans: int = 1  # number of ranges of one tile
    exact: bool = True  # whether single rows visit only what they see


@triton.jit
def rows_of_tiles(first, k_len, TILE: tl.constexpr, COUNT: tl.constexpr):
    """The first and last positions of the rows of COUNT tiles at once."""
    start = tl.arange(0, COUNT) * TILE + first
    return start, tl.minimum(start + TILE, k_len) - 1


@triton.jit
def store_range(found_ptr, span, found, COUNT: tl.constexpr):
    """Stores (first, full_first, full_last, last) of one span for each tile in found_ptr (spans, 4, COUNT)."""
    for place in tl.static_range(4):
        tl.store(found_ptr + (span * 4 + place) * COUNT + tl.arange(0, COUNT), found[place])


def visible_keys(inputs):
    """Which keys each query of a single head sees, (rows, keys): those whose score the reference does not hide."""
    module, scores = sys.modules[reference.__module__], []
    weighted = module._weighted
    # weights cannot tell: they are also 0 for scores far below the others, and NaN if the domain of scores lacks 0
    equal = {name: torch.zeros_like(inputs[name], dtype=torch.float64) for name in "qk"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            module, "_weighted", lambda score, v, **more: (scores.append(score), weighted(score, v, **more))[1]
        )
        reference(**widened(inputs) | equal)
    return scores[0][0, 0] != -math.inf


def by_tiles(visible, own, other):
    """Which tiles of `other` columns show something to tiles of `own` rows, and which show everything."""
    rows, columns = -visible.shape[0] % own, -visible.shape[1] % other
    some = torch.nn.functional.pad(visible, (0, columns, 0, rows))
    every = torch.nn.functional.pad(torch.nn.functional.pad(visible, (0, columns)), (0, 0, 0, rows), value=True)
    some, every = (x.unflatten(1, (-1, other)).unflatten(0, (-1, own)) for x in (some, every))
    return some.any(-1).any(1), every.all(-1).all(1)


def check_ranges(variant, case, rows, ranges):
    """Tiles of `rows`, "queries" or "keys", visit all that they see, and apply the mask to what they see in part."""
    inputs = variant.make_inputs(replace(case, Hq=1, Hkv=1))
    visible = visible_keys(inputs)
    lengths = {"q_len": visible.shape[0], "k_len": visible.shape[1]}
    numbers = [int(torch.as_tensor(inputs[name]).flatten()[0]) for name in ranges.numbers]
    # single positions reveal ranges that are off by one, tiles those taken from the wrong end of a tile
    for own, other in ((1, 1), (5, 1), (32, 32)):
        some, every = by_tiles(visible if rows == "queries" else visible.T, own, other)
        count = 1 << (len(some) - 1).bit_length()
        found = torch.zeros(ranges.spans, 4, count, dtype=torch.int32)
        ranges.kernel[(1,)](found, *numbers, **lengths, TILE=own, BLOCK=other, COUNT=count)
        found, tile = found[..., : len(some), None], torch.arange(some.shape[1])
        visited = ((found[:, 0] <= tile) & (tile < found[:, 3])).any(0)
        outside = (found[:, 0] < found[:, 3]) & ((found[:, 0] < 0) | (found[:, 3] > some.shape[1]))
        unmasked = ((found[:, 1] <= tile) & (tile < found[:, 2])).any(0)
        sizes = f"tiles of {own} rows and {other} columns"
        assert not (some & ~visited).any(), f"a tile that shows something is not visited: {sizes}"
        assert not outside.any(), f"a tile is visited that is not there: {sizes}"
        assert not (unmasked & ~every).any(), f"a tile that hides something is visited without the mask: {sizes}"
        if ranges.exact and own == 1:
            assert torch.equal(visited, some), f"a tile that shows nothing is visited: {sizes}"


def check_vanishing(variant, name, sign, monkeypatch):
    """Results have the same bits whether or not what is too far away is left out.

    Scores fall by some 2000 from the first key to the last, because of the input called `name`, if there is one.
    """
    from . import runtime, vanishing

    length = vanishing.LONG * 3 // 2
    small = variant.small
    sizes = {"D": 64, "Dv": 64, "dtype": torch.bfloat16} if GPU else {}
    case = replace(small, q_lens=(length,), k_lens=(length,), **sizes)
    inputs = variant.make_inputs(case)
    if name:
        x = inputs.get(name)
        shape = (small.Hq,) if x is None else x.shape
        inputs[name] = sign * Make(1).between(shape, 1000 / length, 3000 / length)
    upstream, found = variant.upstream(inputs), []
    for leaves_out in (True, False):
        with monkeypatch.context() as patch:
            patch.setattr(runtime.LaunchCache, "known", {})
            if not leaves_out:
                patch.setattr(vanishing, "LONG", 4 * length)
            found.append(run_on_nan(variant, inputs, upstream=upstream))
    for key, value in found[0].items():
        assert torch.equal(value, found[1][key]), key


class TestAnyVariant:
    """What holds for every variant."""

    @pytest.mark.parametrize("layout", ["transposed", "sliced", "expanded", "unaligned", "shifted"])
    def test_strides(self, variant, layout):
        for case in variant.alike:
            variant.check(replace(case, layout=layout))

    @pytest.mark.parametrize("more", [0, 6])
    def test_as_on_gpus_that_copy_no_tiles(self, variant, more, monkeypatch):
        from . import runtime

        monkeypatch.setattr(runtime, "copies_tiles", lambda device: False)
        monkeypatch.setattr(runtime.LaunchCache, "known", {})
        small = variant.small
        variant.check(replace(small, D=min(small.D + more, 256), Dv=small.Dv + more))

    def test_wide_heads(self, variant):
        case = replace(variant.small, q_lens=(20,), k_lens=(20,), D=264, Dv=270)
        if GPU:
            case = replace(case, q_lens=(150,), k_lens=(150,), D=512, Dv=512, dtype=torch.bfloat16)
        variant.check(case)

    def test_outputs_are_written_in_full_and_the_same_each_time(self, variant):
        inputs = variant.make_inputs(variant.small)
        first, second = (run_on_nan(variant, inputs) for _ in range(2))
        for name, value in first.items():
            assert not value.isnan().any(), name
            assert torch.equal(value, second[name]), name

    def test_hidden_keys_leak_into_no_row(self, variant):
        inputs = variant.make_inputs(variant.small)
        changed = inputs | {"k": inputs["k"].clone(), "v": inputs["v"].clone()}
        last = (-1,) if variant.packed else (slice(None), -1)
        changed["k"][last] *= -3
        changed["v"][last] += 100
        before, after = (reference(**widened(x)) for x in (inputs, changed))
        rows = (before == after).all(-1)
        assert torch.equal(attention(**inputs)[rows], attention(**changed)[rows])

    def test_a_nan_stays_in_its_own_sequence(self, variant):
        inputs = variant.make_inputs(replace(variant.small, q_lens=(36, 36), k_lens=(36, 36)))
        own, other = (slice(36), slice(36, None)) if variant.packed else (0, 1)
        upstream = variant.upstream(inputs)

        def found():
            result = variant.run(inputs, variant.gradients[:3], upstream=upstream)
            return {name: x[own] for name, x in result.items() if name != "lse"}

        before = found()
        for x in (inputs["q"], inputs["k"], inputs["v"], upstream[0]):
            x[other] = torch.nan
        after = found()
        for name, value in before.items():
            assert torch.equal(value, after[name]), name

    def test_bits_hang_on_no_other_sequence(self, variant):
        eleven, one = (variant.make_inputs(replace(variant.small, q_lens=(2,) * n, k_lens=(40,) * n)) for n in (11, 1))
        # from axes of sequences, of their cuts, queries or keys, take the part of the first sequence
        alone = {
            name: x[tuple(map(slice, one[name].shape))] if isinstance(x, torch.Tensor) else x
            for name, x in eleven.items()
        }
        for x, y in zip(attention(**alone, return_lse=True), attention(**eleven, return_lse=True)):
            first = (..., slice(2)) if variant.packed and x.dim() == 2 else slice(len(x))
            assert torch.equal(x, y[first])

    @pytest.mark.skipif(not GPU, reason="needs a GPU")
    def test_more_heads_than_a_grid_axis_holds(self, variant):
        lens = (5,) * 1100
        variant.check(replace(variant.small, q_lens=lens, k_lens=lens, Hq=64, Hkv=64, dtype=torch.bfloat16))

    def test_tensors_that_are_still_to_be_negated(self, variant):
        inputs = variant.make_inputs(variant.small)
        lazy = {name: torch._neg_view(-x) for name, x in floats(inputs).items()}
        assert torch.equal(attention(**inputs | lazy), attention(**inputs))

    def test_autocast(self, variant):
        inputs = variant.make_inputs(variant.small)
        low = inputs | {name: inputs[name].half() for name in "qkv"}
        with torch.autocast(DEVICE, torch.float16):
            out = attention(**inputs)
        assert out.dtype == torch.float16
        assert torch.equal(out, attention(**low))

    def test_compile(self, variant):
        backend = "inductor" if GPU else "aot_eager"
        compiled = torch.compile(lambda inputs: attention(**inputs), fullgraph=True, dynamic=True, backend=backend)
        for length in (33, 47):
            inputs = variant.make_inputs(replace(variant.small, q_lens=(length,) * 2, k_lens=(length,) * 2))
            torch.testing.assert_close(compiled(inputs), attention(**inputs))

    @pytest.mark.skipif(not GPU, reason="needs a GPU")
    def test_cuda_graph(self, variant):
        inputs, others = (variant.make_inputs(variant.small, seed=seed) for seed in range(2))
        upstream = variant.upstream(inputs)
        main, side = torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            variant.run(inputs, upstream=upstream)
        main.wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = variant.run(inputs, upstream=upstream)
        for name, x in inputs.items():
            if isinstance(x, torch.Tensor):
                x.copy_(others[name])
        graph.replay()
        torch.testing.assert_close(found, variant.run(inputs, upstream=upstream))

    @pytest.mark.skipif(not GPU or torch.cuda.device_count() < 2, reason="needs two GPUs")
    def test_device_that_is_not_current(self, variant):
        inputs = variant.make_inputs(variant.small)
        moved = {name: x.to("cuda:1") if isinstance(x, torch.Tensor) else x for name, x in inputs.items()}
        torch.testing.assert_close(attention(**moved).to("cuda:0"), attention(**inputs))


def run_on_nan(variant, inputs, upstream=None):
    """The result of a call if new memory holds NaN, as it does in deterministic mode."""
    torch.use_deterministic_algorithms(True)
    try:
        return variant.run(inputs, upstream=upstream)
    finally:
        torch.use_deterministic_algorithms(False)


class TestBackward:
    """What holds for every variant that has gradients."""

    def test_output_gradient_of_stride_0(self, variant):
        variant.check(variant.small, _expanded_gradient=True)

    @pytest.mark.parametrize("place", [0, 1], ids=["out", "lse"])
    def test_no_gradient_is_a_gradient_of_0(self, variant, place):
        def detached(**inputs):
            return [x.detach() if i == place else x for i, x in enumerate(attention(**inputs))]

        inputs = variant.make_inputs(variant.small)
        upstream = variant.upstream(inputs)
        none = variant.run(inputs, function=detached, upstream=upstream)
        zeros = [torch.zeros_like(x) if i == place else x for i, x in enumerate(upstream)]
        zero = variant.run(inputs, upstream=zeros)
        torch.testing.assert_close(none, zero, rtol=1e-4, atol=1e-4)

    def test_second_derivative_raises(self, variant):
        inputs = variant.make_inputs(variant.small)
        q = inputs["q"].requires_grad_()
        (first,) = torch.autograd.grad(attention(**inputs).sum(), q, create_graph=True)
        with pytest.raises(RuntimeError, match="no second derivative"):
            torch.autograd.grad(first.sum(), q)

    def test_torch_func(self, variant):
        inputs = variant.make_inputs(variant.small)
        q = inputs.pop("q")
        transformed = torch.func.grad(lambda q: attention(q=q, **inputs).sum())(q)
        plain = torch.autograd.grad(attention(q=q.requires_grad_(), **inputs).sum(), q)[0]
        torch.testing.assert_close(transformed, plain)

    def test_checkpointing(self, variant):
        inputs = variant.make_inputs(variant.small)
        q = inputs.pop("q").requires_grad_()
        plain = attention(q=q, **inputs)
        again = torch.utils.checkpoint.checkpoint(lambda q: attention(q=q, **inputs), q, use_reentrant=False)
        torch.testing.assert_close(torch.autograd.grad(again.sum(), q), torch.autograd.grad(plain.sum(), q))


class TestLengths:
    """Rows of a batch that are padding, and queries that are not at the end."""

    @pytest.mark.parametrize(
        ("queries", "keys", "places"),
        [
            (34, 40, {"k_starts": (3, 0), "k_lens": (38, 40), "q_start": (-1, 4)}),
            (5, 40, {"k_starts": (3, 0), "k_lens": (40, 4)}),
        ],
        ids=["padding", "cache"],
    )
    def test_lengths(self, variant, queries, keys, places):
        case = replace(variant.small, q_lens=(queries,) * 2, k_lens=(keys,) * 2)
        variant.check(case, **whole_numbers(places))

    def test_padding_is_neither_read_nor_written(self, variant):
        # a third sequence, without padding: gradients of inputs by heads have another shape than those by tokens
        inputs = variant.make_inputs(replace(variant.small, q_lens=(34,) * 3, k_lens=(34,) * 3))
        inputs |= whole_numbers({"k_starts": (5, 0, 0), "k_lens": (34, 20, 34), "q_start": (-5, 0, 0)})
        outside = torch.tensor(
            [[row < first or row >= last for row in range(34)] for first, last in [(5, 34), (0, 20), (0, 34)]]
        )
        upstream = variant.upstream(inputs)
        before = run_on_nan(variant, inputs, upstream)
        for x in (inputs["q"], inputs["k"], inputs["v"], upstream[0]):
            x[outside] = torch.nan
        # kernels that add up gradients in any order do not run in deterministic mode
        assert not any(x.isnan().any() for x in variant.run(inputs, upstream=upstream).values())
        for name, x in run_on_nan(variant, inputs, upstream).items():
            assert torch.equal(x, before[name]), name
            if name == "lse":
                assert (x.transpose(1, 2)[outside] == -math.inf).all()
            elif x.shape[:2] == outside.shape:
                assert not x[outside].any(), name

    def test_bits_hang_on_neither_chunk_nor_prefix(self, variant, monkeypatch):
        if not GPU:
            monkeypatch.setattr("numpy.matmul", row_by_row)  # the interpreter's
        size = 10 if GPU else 1
        rows, keys, later, end = 39 * size, 40 * size, 24 * size, 30 * size
        case = replace(variant.small, q_lens=(rows,), k_lens=(keys,), Hq=1, Hkv=1)
        inputs = variant.make_inputs(case) | whole_numbers({"k_lens": (keys,), "q_start": 1})
        # only axes of queries have this size
        chunk = {name: moved(x, rows, later) for name, x in inputs.items()} | {"q_start": 1 + later}
        others = [(inputs | whole_numbers({"k_lens": (end,)}), 0, end - 1)]
        others += [(chunk, later, rows)] if variant.any_chunk else []
        gold, got = reference(**widened(inputs)), attention(**inputs)
        for other, first, past in others:
            known = reference(**widened(other))[:, : past - first]
            # rows that see the same keys
            same = (known - gold[:, first:past]).abs().amax(-1) < 1e-9
            if same.any():
                assert torch.equal(attention(**other)[:, : past - first][same], got[:, first:past][same])


def row_by_row(a, b, dtype=None):
    """The product of two matrices, in which a row depends neither on other rows nor on its place, as in tensor cores.

    Some libraries sum the last rows of a matrix in another order than its first ones.
    """
    return sum((a[:, i, None] * b[i] for i in range(1, len(b))), a[:, 0, None] * b[0]).astype(dtype)


def moved(x, rows, by):
    """A tensor with later rows moved to the place of the first ones; tensors without such an axis are unchanged."""
    for axis in range(x.dim()) if isinstance(x, torch.Tensor) else ():
        x = x.roll(-by, axis) if x.shape[axis] == rows else x
    return x


def whole_numbers(places):
    """The same arguments, with tuples of numbers as tensors."""
    made = {name: torch.tensor(x, dtype=torch.int32, device=DEVICE) for name, x in places.items() if type(x) is tuple}
    return places | made


class TestPacked:
    """Rows of packed tensors that belong to no sequence, and wrong cuts."""

    @pytest.mark.parametrize(
        "places", [(3, 38, 78, 78, 80), (0, 5, 38, 78, 148), (0, 33, 33, 34, 35), (100,) * 5], ids=str
    )
    def test_rows_of_no_sequence_are_zeros(self, variant, places):
        case = replace(variant.small, q_lens=(38, 40, 0, 70), k_lens=(38, 40, 0, 70))
        outside = torch.ones(148, dtype=torch.bool)
        outside[places[0] : places[-1]] = False
        variant.check(case, **cut(places))
        inputs = variant.make_inputs(case) | cut(places)
        before = variant.run(inputs)
        for name in "qkv":
            inputs[name][outside] = torch.nan
        for name, x in run_on_nan(variant, inputs).items():
            assert torch.equal(x, before[name]), name
            if name == "lse":
                assert (x[:, outside] == -math.inf).all()
            elif x.shape[0] == 148:
                assert not x[outside].any(), name

    def test_calls_without_sequences_give_zeros(self, variant):
        inputs = variant.make_inputs(replace(variant.small, q_lens=(33,), k_lens=(33,))) | cut((0,))
        for found in (run_on_nan(variant, inputs), variant.run(inputs, function=reference)):
            for name, x in found.items():
                assert (x == (-math.inf if name == "lse" else 0)).all(), name

    @pytest.mark.parametrize("longest", [0, 1, 32, 37, 2**20])
    def test_a_sequence_ends_at_the_longest_length_told(self, variant, longest, monkeypatch):
        from . import arguments

        monkeypatch.setattr(arguments, "check_cuts", lambda *_: None)
        changes, case = {"max_seqlen_q": longest, "max_seqlen_k": longest}, replace(variant.small, **LOOSE)
        variant.check(case, **changes)
        for name, x in run_on_nan(variant, variant.make_inputs(case) | changes).items():
            assert not x.isnan().any(), name

    @pytest.mark.parametrize(
        "places", [(-9, 5, 40, 78, 78, 2**30), (0, 78, 40, 5, 140, 90), (-(2**31), 2**31 - 1, 0, 0, -7, 148)], ids=str
    )
    def test_wrong_cuts_stay_within_the_rows(self, variant, places, monkeypatch):
        from . import arguments

        monkeypatch.setattr(arguments, "check_cuts", lambda *_: None)
        changes, case = cut(places) | {"max_seqlen_q": 148, "max_seqlen_k": 148}, replace(variant.small, **LOOSE)
        for name, x in run_on_nan(variant, variant.make_inputs(case) | changes).items():
            assert not x.isnan().any(), name
        if places[1:] == tuple(sorted(places[1:])):
            variant.check(case, **changes)

    def test_bits_hang_on_neither_chunk_nor_prefix(self, variant, monkeypatch):
        if not GPU:
            monkeypatch.setattr("numpy.matmul", row_by_row)  # the interpreter's
        # axes are found by their size, so no table may have these sizes
        rows, keys, later, end = (379, 401, 240, 300) if GPU else (37, 41, 24, 30)
        inputs = variant.make_inputs(replace(variant.small, q_lens=(rows,), k_lens=(keys,), Hq=1, Hkv=1))
        others = [(part(inputs, rows, keys, 0, end), 0)] + [
            (part(inputs, rows, keys, later, keys), later)
        ] * variant.any_chunk
        gold, got = reference(**widened(inputs)), attention(**inputs)
        for other, first in others:
            known = reference(**widened(other))
            past = first + len(known)
            # rows that see the same keys
            same = (known - gold[first:past]).abs().amax(-1) < 1e-9
            if same.any():
                assert torch.equal(attention(**other)[same], got[first:past][same])


def part(inputs, rows, keys, later, end):
    """From a sequence of more keys than queries, the queries from a later one on, and the keys up to an end."""
    past = rows - (keys - end)
    kept = {rows: slice(later, past), keys: slice(end)}
    found = {
        name: x[tuple(kept.get(size, slice(None)) for size in x.shape)] if isinstance(x, torch.Tensor) else x
        for name, x in inputs.items()
    }
    for name, count in (("q", past - later), ("k", end)):
        found |= {f"cu_seqlens_{name}": cut((0, count))[f"cu_seqlens_{name}"], f"max_seqlen_{name}": count}
    return found


LOOSE = {"q_lens": (5, 33, 40, 0, 70), "k_lens": (5, 33, 40, 0, 70)}


def cut(places):
    """Arguments that cut rows into sequences at some places."""
    return {name: torch.tensor(places, dtype=torch.int32, device=DEVICE) for name in ("cu_seqlens_q", "cu_seqlens_k")}


class TestDropout:
    """The effects of the seed and of the share of dropped weights."""

    def test_dropout_is_a_matter_of_the_seed(self, variant):
        inputs = variant.make_inputs(variant.small)
        first, again, other = (attention(**inputs | {"seed": seed}) for seed in (5, 5, 5 + 2**32))
        assert torch.equal(first, again)
        # by chance, a few rows may be the same
        assert first.any(-1).sum() < 20 or not torch.equal(first, other)
        variant.check(variant.small, seed=5 + 2**32)

    def test_dropout_keeps_its_share_of_the_weights(self, variant):
        inputs = variant.make_inputs(replace(variant.small, q_lens=(200,), k_lens=(200,)))
        inputs["v"] = torch.ones_like(inputs["v"])
        plain, dropped = (attention(**inputs | {"dropout_p": share})[..., 0] for share in (0.0, 0.3))
        apart = (dropped - plain)[plain > 0]  # for rows that see a key
        if apart.numel() < 50:
            pytest.skip("too few rows to tell a share from chance")
        assert 0 < apart.mean().abs() < 4 * apart.std() / apart.numel() ** 0.5

    def test_dropout_makes_up_for_the_share_that_it_drops(self, variant):
        inputs = variant.make_inputs(replace(variant.small, q_lens=(16,) * 20, k_lens=(16,) * 20))
        # a row of out holds its weights
        each = torch.eye(16, device=DEVICE).repeat(20, 1)[:, None].expand(-1, variant.small.Hkv, -1)
        inputs["v"] = each.reshape(inputs["v"].shape)
        plain, dropped = (attention(**inputs | {"dropout_p": share}) for share in (0.0, 0.9))
        shares = (dropped / plain)[plain > 1e-3]
        if shares.numel() < 100:
            pytest.skip("too few weights for one in ten to be kept for certain")
        steps = 65536 / shares[shares > 0].median()  # weights that are kept are multiplied by 65536 / n, n an integer
        assert abs(steps - steps.round()) < 0.01

    @pytest.mark.parametrize("share", [0.99, 0.999999])
    def test_dropout_of_almost_all(self, variant, share):
        variant.check(variant.small, dropout_p=share)

    @pytest.mark.parametrize("changes", [{"dropout_p": 1.0}, {"dropout_p": -0.1}, {"seed": -1}], ids=str)
    def test_dropout_that_cannot_be(self, variant, changes):
        with pytest.raises(ValueError, match=f"^{next(iter(changes))}: expected .*got"):
            attention(**variant.make_inputs(variant.small) | changes)

    def test_dropout_needs_a_seed(self, variant):
        with pytest.raises(TypeError, match="^seed: expected an int, got NoneType"):
            attention(**variant.make_inputs(variant.small) | {"seed": None})


class TestStatistics:
    """What attention returns besides out and LSE: the largest logit of each head, and the weight that each key gets."""

    def test_statistics(self, variant):
        case = replace(variant.small, dtype=torch.bfloat16) if GPU else variant.small
        inputs = variant.make_inputs(case)

        def measured(inputs, function=reference):
            found = function(**inputs, return_max_logit=True, return_key_sums=True)
            return dict(zip(("out", "max_logit", "key_sums"), found))

        def rounding(inputs):
            with rounded_reference(case.dtype, backward=False):
                return measured(inputs)

        got, gold = measured(inputs, attention), measured(widened(inputs))
        # sums over queries, and maxima of many, depend less on luck than rows do
        lows = list(itertools.islice(yardsticks(rounding, inputs), 4))
        for name in gold:
            accept(case, name, got[name], gold[name], [x[name] for x in lows])
        assert torch.equal(got["out"], attention(**inputs))
