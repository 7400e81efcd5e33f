"""Times variants and their alternatives on the local GPU, and measures their memory."""

from __future__ import annotations

import contextlib
import functools
import re
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click

from ..language.spec import Spec
from ..plan import plan, tiles
from ..plan.plan import Plan
from ..render import emit
from . import caches, calls, targets
from .calls import Call, Sizes
from .peers import PEERS, Asked, Exported, Peer, module
from .results import OURS, PASSES, Pair, Result, Row
from .turns import turns

if TYPE_CHECKING:
    import torch

ROUNDS = 5
LARGE = 8192  # rows and columns of the matrices whose product is the ceiling
COPIED = 1 << 30  # bytes of the copy that is the ceiling of calls over a cache
BOTH = "both"  # measure the kernels that calls choose, and those of each target
Clock = Callable[[Callable[[], object]], float]  # returns milliseconds
_NONE: Mapping[str, Path] = MappingProxyType({})
_APART = {"bf16": 2e-2, "fp16": 4e-3, "fp32": 1e-3}  # by how much a right output may differ, relative to its size


def sizes(
    lengths: str, queries: int | None, tokens: int, head_dims: str, heads: str | None, dtype: str, *,
    option: str = "--lengths",
) -> list[Sizes]:  # fmt: skip
    """The calls to measure, from the command line's options; `option` is its name for the lengths."""
    found = []
    for dims in head_dims.split(","):
        head_dim, v_dim = _pair(dims, "--head-dim", tiles.LATENT)
        q_heads, kv_heads = _pair(heads, "--heads", 4096) if heads else (max(2048 // head_dim, 1),) * 2
        if q_heads % kv_heads:
            raise click.BadParameter(f"{kv_heads} key heads do not divide {q_heads}", param_hint="--heads")
        for length in lengths.split(","):
            k_len, _ = _pair(length, option, 2**28)
            batch = max(tokens // k_len, 1)
            found.append(Sizes(batch, queries or k_len, k_len, q_heads, kv_heads, head_dim, v_dim, dtype))
    return found


def _pair(text: str, option: str, most: int) -> tuple[int, int]:
    """A number, or two separated by a colon."""
    numbers = text.split(":") if ":" in text else [text, text]
    if len(numbers) != 2 or not all(re.fullmatch(" *[0-9]{1,9} *", x) and 1 <= int(x) <= most for x in numbers):
        raise click.BadParameter(f"expected numbers from 1 to {most}, got {text!r}", param_hint=option)
    return int(numbers[0]), int(numbers[1])


def functions(package: emit.Package, folder: Path, name: str = "") -> Any:
    """The package as a module, written into a folder; its name differs from that of any package a user may import."""
    emit.write([package], folder)
    return module(f"timed_{name or package.name}", folder / package.name / "__init__.py")


def _nothing() -> None:
    """The call of a contender that cannot be timed."""


@dataclass
class Contender:
    """A contender: its calls, and the measurements so far; `note` is the reason if there can be no more."""

    name: str
    forward: Callable[[], Any] = _nothing
    backward: Callable[[], Any] = _nothing
    within: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext
    note: str = ""
    passes: tuple[str, ...] = PASSES  # the passes in which it is timed
    work: float = 0  # operations or bytes of a call, if it is the ceiling
    found: dict[str, Any] = field(default_factory=dict)

    @property
    def row(self) -> Row:
        """The contender's result."""
        return Row(self.name, **self.found, note=self.note)

    @contextlib.contextmanager
    def trial(self) -> Iterator[None]:
        """Notes any exception and drops the contender; the others go on."""
        try:
            with self.within():
                yield
        except Exception as error:
            self.note, self.forward, self.backward = _told(error), _nothing, _nothing


def run(
    loaded: Spec, package: emit.Package, sizes: Sequence[Sizes], names: Sequence[str], *, target: str = BOTH,
    backward: bool = True, replays: bool = False, cache: bool = False, device: str = "cuda", clock: Clock | None = None,
    beside: Mapping[str, Path] = _NONE,
) -> Iterator[Result]:  # fmt: skip
    """Measures a variant and the peers of these names, one call after another; with another clock, if one is given.

    Gradients are left out on request; replays of a CUDA graph and calls over a cache have none. `beside` maps names to
    folders with packages of the variant, which join under these names.
    """
    import torch

    planned, backward = plan.build(loaded), backward and not replays and not cache and loaded.algorithm.backward
    clock = clock or (replayed if replays else milliseconds)
    with tempfile.TemporaryDirectory(prefix="attnforge-") as folder:
        decoding = planned if cache else None
        ours = _Ours(package, Path(folder), target, several=planned.hopper is not None and not cache, decoding=decoding,
                     beside=beside)  # fmt: skip
        exported = Exported(loaded, Path(folder))

        def measured(fitting: Sizes) -> Result:
            torch._dynamo.reset()
            torch.cuda.empty_cache()
            try:
                call = calls.make(planned, fitting, device)
                call = caches.read_from(planned, call) if cache else call
                own = ours.contender(OURS, call)
                with own.within():
                    gold = own.forward().detach()
            except Exception as error:  # too large a call, or too large a head; the next one may be of interest
                return Result(loaded.name, fitting, 0, (Row(OURS, note=_told(error)),), cached=cache)
            entered = [own, *(ours.in_pages(call, gold) if cache else ours.by_target(call, gold, backward))]
            entered += ours.others(call, gold)
            entered += [_entered(PEERS[name], exported, call, gold) for name in names]
            ceiling = _race(entered, _copy(call) if cache else _large_product(call), call, backward, clock)
            rows = tuple(contender.row for contender in entered)
            pairs, keys = exported.seen(call)
            return Result(
                loaded.name, fitting, pairs, rows, replayed=replays, kernels=ours.kernels(OURS),
                ceiling=ceiling, cached=cache, read=keys * caches.bytes_of_key(call) if cache else 0,
            )  # fmt: skip

        for one in sizes:
            with torch.set_grad_enabled(backward):
                result = measured(one.of(loaded))
            yield result


class _Ours:
    """The package, loaded once for each way to choose its kernels: each copy has a launch cache of its own."""

    def __init__(
        self, package: emit.Package, folder: Path, target: str, *, several: bool, decoding: Plan | None = None,
        beside: Mapping[str, Path] = _NONE,
    ) -> None:  # fmt: skip
        self.decoding = decoding
        self.asked = {OURS: None if target == BOTH else target}
        self.telling = several or target != BOTH
        if target == BOTH and several:
            self.asked |= {name: name for name in targets.TARGETS}
        self.loaded = {name: functions(package, folder / name, f"{package.name}_{name}") for name in self.asked}
        self.beside = tuple(beside)
        for i, (name, place) in enumerate(beside.items()):
            self.asked[name] = self.asked[OURS]
            self.loaded[name] = module(f"timed_{package.name}_beside_{i}", place / "__init__.py")

    def contender(self, name: str, call: Call) -> Contender:
        """The package, with its kernels chosen in one of these ways."""
        loaded = self.loaded[name]
        targets.runtime(loaded).LaunchCache.known.clear()
        if self.decoding:
            return Contender(name, caches.function(loaded, self.decoding, call), within=self.within(name))
        return Contender(name, lambda: loaded.attention(*call.operands, **call.keywords), within=self.within(name))

    def within(self, name: str) -> Callable[[], contextlib.AbstractContextManager[object]]:
        """The context in which calls choose their kernels in this way."""
        target = self.asked[name]
        return contextlib.nullcontext if target is None else functools.partial(targets.asked, target)

    def others(self, call: Call, gold: torch.Tensor) -> list[Contender]:
        """The packages in `beside`."""
        made = [self.contender(name, call) for name in self.beside]
        for one in made:
            _try(one, call, gold)
        return made

    def in_pages(self, call: Call, gold: torch.Tensor) -> list[Contender]:
        """The package, called over a paged cache."""
        assert self.decoding
        made = Contender(caches.PAGED, within=self.within(OURS))
        with made.trial():
            made.forward = caches.function(self.loaded[OURS], self.decoding, call, caches.PAGE)
        _try(made, call, gold)
        return [made]

    def by_target(self, call: Call, gold: torch.Tensor, backward: bool) -> list[Contender]:
        """The package with each target's kernels, if it has Hopper kernels and these run the call, or fail to."""
        import torch

        made = [self.contender(name, call) for name in self.asked if name in targets.TARGETS]
        for one in made:
            _try(one, call, gold)
            if backward and not one.note:
                with one.trial():
                    out = one.forward()
                    _gradients(call, out, torch.randn_like(out))
            taken = self.kernels(one.name)
            one.passes = tuple(its for its in PASSES if one.note or taken.get(its) == one.name)
        return made if all(one.passes for one in made) else []

    def kernels(self, name: str) -> dict[str, str]:
        """The target of each pass of the call, if the package has several or one was requested."""
        return targets.taken(targets.runtime(self.loaded[name])) if self.telling else {}


def _entered(peer: Peer, exported: Exported, call: Call, gold: torch.Tensor) -> Contender:
    """A peer as a contender; dropped if its result differs from ours."""
    made = Contender(peer.name, within=peer.within, note=peer.refusal(Asked(exported.traits, call)))
    if not made.note:
        with made.trial():
            made.forward = exported.function(peer, call, compiled=True)
        # with dropout, each contender drops weights of its own
        _try(made, call, gold, alike=not exported.traits.dropout)
    return made


def _try(one: Contender, call: Call, gold: torch.Tensor, *, alike: bool = True) -> None:
    """Calls a contender for the first time, which compiles it, and drops it if its result differs."""
    if one.note:
        return
    with one.trial():
        apart = difference(one.forward().detach(), gold)
        if alike and apart > _APART[call.sizes.dtype]:
            one.note = f"gives something else: {apart:.2g} apart"


def difference(found: torch.Tensor, gold: torch.Tensor) -> float:
    """The root mean square difference of two outputs, relative to that of the second."""
    if found.shape != gold.shape:
        return float("inf")
    apart, size = ((x.double().square().mean().sqrt()) for x in (found.nan_to_num() - gold, gold))
    return float(apart / size)


def _race(entered: Sequence[Contender], large: Contender, call: Call, backward: bool, clock: Clock) -> Pair:
    """Measures time and memory of all contenders; returns the ceiling's speed for each pass, in tera per second."""
    import torch

    for one in _able(entered, "forward"):
        with one.trial():
            one.found["forward_mib"] = _peak(one.forward)
    in_turns([*entered, large], "forward", clock)
    if not backward:
        return _speed(large, "forward"), None

    def both(forward: Callable[[], torch.Tensor], upstream: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        out = forward()
        return out, *_gradients(call, out, upstream)

    for one in _able(entered, "backward"):
        with one.trial():
            out = one.forward()
            one.backward = functools.partial(_gradients, call, out, torch.randn_like(out), retain_graph=True)
    # first the calls that keep their graph: PyTorch compiles for the first call, and what may free it cannot keep it
    in_turns([*entered, large], "backward", clock)
    for one in _able(entered, "backward"):
        one.backward = _nothing
        with one.trial():
            one.found["both_mib"] = _peak(functools.partial(both, one.forward, torch.randn_like(one.forward())))
    return _speed(large, "forward"), _speed(large, "backward")


def _gradients(call: Call, out: torch.Tensor, upstream: torch.Tensor, **more: bool) -> tuple[torch.Tensor | None, ...]:
    """The gradients of all tensors that get one."""
    import torch

    return torch.autograd.grad(out, call.wanted, upstream, allow_unused=True, **more)


def _large_product(call: Call) -> Contender:
    """A product of two large matrices of the call's type, in turns with both passes: as fast as the GPU multiplies."""
    import torch

    made, q = Contender("product", work=2 * LARGE**3), call.operands[0]
    with made.trial():
        a, b = (torch.randn(LARGE, LARGE, dtype=q.dtype, device=q.device) for _ in range(2))
        made.forward = made.backward = lambda: a @ b
    return made


def _copy(call: Call) -> Contender:
    """A copy larger than any GPU cache: the speed of memory; both bytes read and bytes written count."""
    import torch

    made, device = Contender("copy", work=2 * COPIED), call.operands[0].device
    with made.trial():
        here, there = (torch.empty(COPIED, dtype=torch.uint8, device=device) for _ in range(2))
        made.forward = lambda: there.copy_(here)
    return made


def _speed(large: Contender, phase: str) -> float | None:
    """The speed of the ceiling, timed in turns with a pass."""
    ms = large.found.get(f"{phase}_ms")
    return None if ms is None else large.work / 1e9 / ms


def in_turns(entered: Sequence[Contender], phase: str, clock: Clock) -> None:
    """Times all calls repeatedly, in turns; the median counts."""
    times: dict[str, list[float]] = {}
    for i in range(ROUNDS):
        for one in turns([*_able(entered, phase)], i):
            with one.trial():
                times.setdefault(one.name, []).append(clock(getattr(one, phase)))
    for one in _able(entered, phase):
        one.found[f"{phase}_ms"] = statistics.median(times[one.name])


def _able(entered: Sequence[Contender], phase: str) -> Iterator[Contender]:
    return (one for one in entered if not one.note and phase in one.passes)


def _told(error: Exception) -> str:
    import torch

    if isinstance(error, torch.cuda.OutOfMemoryError):
        torch.cuda.empty_cache()
        return "out of memory"
    line = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {line}"[:120]


def milliseconds(function: Callable[[], object], warmup: int = 50, rep: int = 50) -> float:
    """The median in milliseconds."""
    from triton.testing import do_bench

    return float(do_bench(function, warmup=warmup, rep=rep, return_mode="median"))


def replayed(function: Callable[[], object], rep: int = 50) -> float:
    """The median in milliseconds of calls replayed from a CUDA graph: GPU time alone, with warm caches."""
    from triton.testing import do_bench_cudagraph

    return float(do_bench_cudagraph(function, rep=rep, return_mode="median"))


def _peak(function: Callable[[], Any]) -> float:
    """The peak memory of a call in MiB, without the memory allocated before and without its outputs."""
    import torch

    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    given = function()
    torch.cuda.synchronize()
    stores = [x.untyped_storage() for x in (given if isinstance(given, tuple) else [given]) if x is not None]
    outputs = sum({store.data_ptr(): store.nbytes() for store in stores}.values())
    return float(max(torch.cuda.max_memory_allocated() - before - outputs, 0)) / 2**20
