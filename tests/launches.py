"""Runs the host code of packages without a GPU, and compares launches with known shapes to first launches.

A script, since it runs with the interpreter turned off: `python launches.py FOLDER NAME...` takes packages
from a folder and fails if a second launch passes a kernel anything other than a first one would.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import torch
import triton
import triton.compiler
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonDescriptor
from triton.runtime import driver
from triton.tools.tensor_descriptor import TensorDescriptor

from attnforge.gpu import calls
from attnforge.gpu.calls import Call, Sizes
from attnforge.language import spec
from attnforge.plan import plan
from attnforge.source import resources

SMALL = Sizes(2, 40, 40, 4, 2, 16, 16, "fp16")


class Compiled:
    """A kernel that records how it is launched."""

    notes: list[Any] = []  # noqa: RUF012
    packed_metadata = function = 0

    def __init__(self, source: Any) -> None:
        self.variant = source.fn.__name__, str(source.signature), str(source.constants), str(source.attrs)

    def launch_metadata(self, *_: Any) -> None:
        pass

    def run(self, x: int, y: int, z: int, stream: int, *rest: Any) -> None:
        """Called by triton's own launch."""
        self.notes.append(("first", self.variant, (x, y, z), rest[5:]))

    def __getitem__(self, grid: tuple[int, int, int]) -> Callable[..., None]:
        return lambda *args, stream=None: self.notes.append(("again", self.variant, grid, args))


class Forgetful(dict[Any, Any]):
    """A dict that stores nothing."""

    def __setitem__(self, key: Any, value: Any) -> None:
        pass


@dataclasses.dataclass(frozen=True)
class Saved(Call):
    """A call whose LSE has a gradient, too."""

    dlse: int = 0  # offset of the LSE's gradient from a boundary of 16 bytes, in numbers
    kept: int = 0  # the same for what the forward pass saved besides output and LSE


def pretend() -> None:
    """Replaces the machine's GPU, if any, by one that does not exist."""
    driver.set_active(
        SimpleNamespace(
            get_current_device=lambda: 0,
            get_current_stream=lambda device: 0,
            get_current_target=lambda: GPUTarget("cuda", 90, 32),
        )
    )
    triton.compiler.compile = lambda source, **_: Compiled(source)


def alternatives(planned: plan.Plan) -> Iterator[Call]:
    """Calls that all differ in a shape, stride, alignment or type."""
    grouped = SMALL.of(planned.spec)
    usual = calls.make(planned, grouped, "cpu")
    yield usual
    optional = {a.name for a in planned.arguments if a.default}
    yield dataclasses.replace(usual, keywords={name: x for name, x in usual.keywords.items() if name not in optional})
    q, k, v = (x.detach() for x in usual.operands)
    moved = torch.empty(k.numel() + 1, dtype=k.dtype)[1:].view(k.shape).copy_(k)
    for operands in (
        (q.transpose(0, 1).contiguous().transpose(0, 1), k, v),
        (q, moved, v),
        (q, k, v.flip(-1)[:1].expand_as(v)),
    ):
        learns = usual.operands[0].requires_grad
        yield dataclasses.replace(usual, operands=tuple(x.requires_grad_(learns) for x in operands))
    if usual.operands[0].requires_grad:
        for dlse, kept in ((0, 0), (1, 0), (0, 1)):
            yield Saved(**vars(usual), dlse=dlse, kept=kept)
    for change in ({"q_len": 48, "k_len": 48}, {"head_dim": 32}, {"v_dim": 24}, {"dtype": "fp32"}, {"batch": 1}):
        yield calls.make(planned, dataclasses.replace(grouped, **change), "cpu")


def anew(call: Call, numbers: float) -> Call:
    """The same call with tensors at other addresses, and with other numbers."""
    operands = tuple(_elsewhere(x) for x in call.operands)
    _, k, v = call.operands
    if v.numel() and v.data_ptr() == k.data_ptr():
        operands = (*operands[:2], operands[1].as_strided(v.shape, v.stride()))
    keywords = {name: _elsewhere(x) if isinstance(x, torch.Tensor) else x for name, x in call.keywords.items()}
    changed = {"dropout_p": lambda x: x * numbers, "seed": lambda x: int(x + numbers * 4)}
    keywords |= {name: change(keywords[name]) for name, change in changed.items() if name in keywords}
    return dataclasses.replace(call, operands=operands, keywords=keywords | {"scale": numbers})


def _learn_from_both(attention: Any, call: Saved) -> None:
    given = {x.data_ptr() for x in (*call.operands, *call.keywords.values()) if isinstance(x, torch.Tensor)}

    def moved(x: torch.Tensor) -> torch.Tensor:
        return x if x.data_ptr() in given else _elsewhere(x, call.kept)

    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, moved):
        out, lse = attention(*call.operands, **call.keywords, return_lse=True)
        given |= {out.data_ptr(), lse.data_ptr()}
        slopes = torch.ones_like(out), _elsewhere(torch.ones_like(lse), call.dlse)
        torch.autograd.grad((out, lse), call.wanted, slopes)


def _elsewhere(x: torch.Tensor, offset: int | None = None) -> torch.Tensor:
    """A copy with the same strides, `offset` numbers after a boundary of 16 bytes; by default as many as x."""
    learned, x = x.requires_grad, x.detach()
    span = 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
    offset = x.data_ptr() % 16 // x.element_size() if offset is None else offset
    copy = torch.empty(span + offset, dtype=x.dtype)[offset:]
    if not x.is_floating_point():  # floats are never read, as no kernel runs
        copy.copy_(x.as_strided((span,), (1,)))
    return copy.as_strided(x.shape, x.stride()).requires_grad_(learned)


def launches(attention: Any, call: Call) -> list[Any]:
    """All arguments of kernels in the forward and any backward pass; the call's own tensors as their names."""
    Compiled.notes = notes = []
    if isinstance(call, Saved):
        _learn_from_both(attention, call)
    else:
        out = attention(*call.operands, **call.keywords)
        if out.requires_grad:
            torch.autograd.grad(out, call.wanted, torch.ones_like(out))
    given = dict(zip("qkv", call.operands, strict=True)) | call.keywords
    names = {x.data_ptr(): name for name, x in given.items() if isinstance(x, torch.Tensor)}

    def shown(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return names.get(x.data_ptr(), "own"), tuple(x.shape), x.stride(), x.dtype
        if isinstance(x, TensorDescriptor | GluonDescriptor):
            return {field.name: shown(getattr(x, field.name)) for field in dataclasses.fields(x)}
        if isinstance(x, tuple | list):
            return tuple(shown(value) for value in x)
        return (type(x).__name__, getattr(x, "value", x))

    return [(how, variant, grid, shown(args)) for how, variant, grid, args in notes]


def check(package: str, planned: plan.Plan) -> None:
    """Fails if a launch with known shapes differs from a first one."""
    attention = importlib.import_module(package).attention
    launch = importlib.import_module(f"{package}.launch")
    runtime = launch.runtime
    # an LSE converted to other units would be a different tensor, and so would its gradient
    launch.natural = lambda lse, *_: lse
    runtime.architecture = lambda device: "sm_90"
    runtime.cache_share = lambda device: 2**12
    # pass tensors instead of addresses, so that they can be identified
    runtime.address = lambda x: x
    different = list(alternatives(planned))
    for copies in (True, False):
        runtime.copies_tiles = lambda device, copies=copies: copies
        runtime.LaunchCache.known.clear()
        compare(attention, runtime, different)


def check_decoding(package: str, planned: plan.Plan) -> None:
    """The same for a package's decoding, which also remembers the results of its checks."""
    decode = importlib.import_module(f"{package}.decode")
    runtime = importlib.import_module(f"{package}.decode_launch").runtime
    runtime.multiprocessors = lambda device: 2

    def attend(*given: Any, **keywords: Any) -> torch.Tensor:
        found = decode.attend_with_cache(*given, **keywords)
        return found[0] if keywords["return_lse"] else found

    keywords = inspect.signature(decode.attend_with_cache).parameters
    different = list(cached_calls({*keywords}, 2 if planned.spec.grouped else 4))
    if planned.spec.latent:
        q, (k, other) = torch.randn(2, 3, 4, 32).half(), torch.randn(2, 2, 1280, 2, 32).half()
        # values that are columns of the keys, and other values with the same strides
        different += [dataclasses.replace(different[0], operands=(q, k, v)) for v in (k[..., :20], other[..., :20])]
    compare(attend, runtime, different, decode.CALLS)
    if planned.decode_training:
        more = (call for call in different if not {"return_key_sums", "split_size"} & {*call.keywords})
        asked = [dataclasses.replace(call, keywords={**call.keywords, "bitwise": "training"}) for call in more]
        compare(attend, runtime, asked, decode.CALLS)
    if planned.decode_hopper:
        runtime.capability, runtime.copies_tiles = (lambda device: (9, 0)), (lambda device: True)
        found = compare(attend, runtime, list(latent_calls()), decode.CALLS)
        assert all("k_desc" in names for names in found), "a call took the portable kernel"


def latent_calls() -> Iterator[Call]:
    """Calls with latent heads for the Hopper kernel that all differ in a shape, stride, alignment or bound."""
    more = {"return_lse": True, "seq_lens": torch.tensor([30, 40], dtype=torch.int32)}
    q, k = torch.randn(2, 1, 64, 576).half(), torch.randn(2, 64, 1, 576).half()
    yield Call(SMALL, (q, k, k[..., :512]), more, ())
    yield Call(SMALL, (q, k, k[..., :512]), {**more, "return_lse": False}, ())
    yield Call(SMALL, (q, k, k[..., :512]), {**more, "max_seqlen_k": 48}, ())
    wide = torch.randn(2, 64, 1, 584).half()[..., :576]
    yield Call(SMALL, (q, wide, wide[..., :512]), more, ())
    for page in (8, 32, 64):
        pages = k.reshape(-1, page, 1, 576)
        table = torch.arange(128 // page, dtype=torch.int32).view(2, -1)
        yield Call(SMALL, (q, pages, pages[..., :512]), {**more, "page_table": table}, ())
    cuts = {"cu_seqlens_q": torch.tensor([0, 1, 4], dtype=torch.int32), "max_seqlen_q": 3}
    rows = torch.randn(4, 128, 576).half()
    yield Call(SMALL, (rows, k, k[..., :512]), more | cuts, ())
    yield Call(SMALL, (rows, k, k[..., :512]), {**more, **cuts, "max_seqlen_q": 4}, ())


def cached_calls(keywords: set[str], kv_heads: int) -> Iterator[Call]:
    """Calls of decoding that all differ in a shape, stride, alignment, type or bound."""
    turned = torch.randn(1280, 8)
    more = {"cos": turned.cos(), "sin": turned.sin(), "sinks": torch.zeros(4), "window": 20}
    more |= {"prefix_len": torch.tensor([3, 5]), "rel_bias": torch.zeros(4, 32)}
    more |= {"tree_mask": torch.ones(2, 5, 5, dtype=torch.bool), "log_decay": -torch.rand(2, 1280, 4)}
    more = {name: x for name, x in more.items() if name in keywords} | {"return_lse": True}
    more["seq_lens"] = torch.tensor([30, 40], dtype=torch.int32)
    first = {name: more[name][:1] for name in ("seq_lens", "prefix_len", "tree_mask", "log_decay") if name in more}
    q, (k, v) = torch.randn(2, 3, 4, 16).half(), torch.randn(2, 2, 1280, kv_heads, 16).half()
    yield Call(SMALL, (q, k, v), more, ())
    # each like the one before, except for an argument or an alignment
    yield Call(SMALL, (q, k, v), {**more, "page_table": torch.arange(2, dtype=torch.int32)[:, None]}, ())
    room = {**more, "out": torch.empty_like(q), "workspace": torch.empty(2**14)}
    yield Call(SMALL, (q, k, v), room, ())
    yield Call(SMALL, (q, torch.empty(k.numel() + 1, dtype=k.dtype)[1:].view(k.shape).copy_(k), v), room, ())
    yield Call(SMALL, (q, k, v), {**more, "max_seqlen_k": 48}, ())
    yield Call(SMALL, (q.float(), k.float(), v.float()), more, ())
    yield Call(SMALL, (q.transpose(0, 1).contiguous().transpose(0, 1), k, v), more, ())
    yield Call(SMALL, (q, *(x.transpose(1, 2).contiguous().transpose(1, 2) for x in (k, v))), more, ())
    yield Call(SMALL, (q[:1], k[:1], v[:1]), more | first, ())
    yield Call(SMALL, (q, k, v), {**more, "return_lse": False}, ())
    paged = {**more, "page_table": torch.arange(160, dtype=torch.int32).view(2, 80)}
    if "log_decay" in more:
        by_heads = more["log_decay"].transpose(1, 2).contiguous().transpose(1, 2)
        yield Call(SMALL, (q, k, v), {**more, "log_decay": by_heads}, ())
        paged["log_decay"] = more["log_decay"].reshape(160, 16, 4)
    k, v = (x.reshape(160, 16, kv_heads, 16) for x in (k, v))
    yield Call(SMALL, (q, k, v), paged, ())
    # as many keys to a split as without being asked, but other tiles
    yield Call(SMALL, (q, k, v), {**paged, "split_size": 512}, ())
    cuts = {"cu_seqlens_q": torch.tensor([0, 1, 6], dtype=torch.int32), "max_seqlen_q": 5}
    yield Call(SMALL, (q.reshape(6, 4, 16), k, v), paged | cuts, ())
    if "return_key_sums" in keywords:
        # the same number of splits, but another number of tiles of keys
        for most in (1279, 1100):
            yield Call(SMALL, (q, k, v), {**paged, "return_key_sums": True, "max_seqlen_k": most}, ())
    if "window" in keywords:
        yield Call(SMALL, (q, k, v), {**paged, "window": 700}, ())
    if "positions" in keywords:
        yield Call(SMALL, (q, k, v), {**paged, "positions": torch.zeros(3, 2, dtype=torch.int64).T}, ())


def compare(
    attention: Any, runtime: Any, different: Sequence[Call], checked: dict[Any, Any] | None = None
) -> list[str]:
    """Fails if second launches of calls differ from first ones; returns the signatures of their first kernels."""
    remembered, checked, found = runtime.LaunchCache.of, {} if checked is None else checked, list[str]()

    def forgotten(*_: Any, reach: int = 0) -> Any:
        cache = runtime.LaunchCache(reach)
        cache.launches = Forgetful()
        return cache

    # kernels are compiled for a GPU, but calls with CPU tensors have to be accepted
    os.environ["TRITON_INTERPRET"] = "1"
    for call in different:
        launches(attention, anew(call, 0.5))
    for call in [anew(call, 0.25) for call in different]:
        again, before = launches(attention, call), dict(checked)
        runtime.LaunchCache.of = forgotten
        checked.clear()
        first = launches(attention, call)
        runtime.LaunchCache.of = remembered
        checked |= before
        assert {how for how, *_ in again} == {"again"}, "a launch forgot its shapes"
        assert {how for how, *_ in first} == {"first"}
        assert len(again) == len(first), f"{len(again)} launches\nin place of\n{len(first)}"
        for (_, *one), (_, *other) in zip(again, first, strict=True):
            assert one == other, f"{one}\nin place of\n{other}"
        found.append(first[0][1][1])
    del os.environ["TRITON_INTERPRET"]
    return found


if __name__ == "__main__":
    os.environ.pop("TRITON_INTERPRET", None)
    pretend()
    sys.path.insert(0, sys.argv[1])
    for name in sys.argv[2:]:
        path = resources.variants()[name]
        planned = plan.build(spec.load(path, terms=resources.terms_for(path)))
        check(name, planned)
        if planned.decode:
            check_decoding(name, planned)
        print(name)
