"""Times variants beside what a user would pick instead, on the GPU at hand, and measures their memory."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import json
import re
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..language.spec import Spec
from ..plan import plan, tiles
from ..render import emit
from . import calls
from .calls import Call, Sizes
from .peers import PEERS, Asked, Exported, Peer, module

if TYPE_CHECKING:
    import torch

OURS = "attnforge"
ROUNDS = 5
_NO_GPU = "this needs a GPU that torch can use; `attnforge inspect` needs none"
Clock = Callable[[Callable[[], object]], float]  # gives milliseconds
_APART = {"bf16": 2e-2, "fp16": 4e-3, "fp32": 1e-3}  # of what a right output may differ by, beside its own size


@dataclass(frozen=True)
class Row:
    """Measurements of one contender; `note` gives the reason where there are none."""

    name: str
    forward_ms: float | None = None
    backward_ms: float | None = None
    forward_mib: float | None = None  # at the peak, beside inputs and outputs
    both_mib: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Result:
    """All contenders in one call."""

    variant: str
    sizes: Sizes
    pairs: int  # that are visible, over all heads
    rows: tuple[Row, ...]
    replayed: bool = False  # whether a CUDA graph held the calls, so that the host has no share in their times

    def teraflops(self, row: Row) -> tuple[float | None, float | None]:
        """TFLOP/s forward and backward: of the products of the visible pairs, five backward for two forward."""
        work = 2 * self.pairs * (self.sizes.head_dim + self.sizes.v_dim) / 1e9
        rates = (
            None if ms is None else times * work / ms for ms, times in ((row.forward_ms, 1), (row.backward_ms, 2.5))
        )
        forward, backward = rates
        return forward, backward


@dataclass(frozen=True)
class Machine:
    """The device and versions of a measurement."""

    device: str
    torch: str
    triton: str

    @staticmethod
    def here() -> Machine:
        """This one, if it has a GPU."""
        if not _driver():
            raise click.UsageError(_NO_GPU)
        try:
            import torch
            import triton
        except ImportError as missing:
            raise click.UsageError(f"this needs {missing.name}: pip install {missing.name}") from None
        if not torch.cuda.is_available():
            raise click.UsageError(_NO_GPU)
        return Machine(torch.cuda.get_device_name(), torch.__version__, triton.__version__)


def _driver() -> bool:
    """True if CUDA's driver or ROCm's is there: where neither is, no import of torch is needed to find no GPU."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return Path("/dev/kfd").exists()
    return True


def sizes(
    lengths: str, queries: int | None, tokens: int, head_dims: str, heads: str | None, dtype: str, *,
    option: str = "--lengths",
) -> list[Sizes]:  # fmt: skip
    """The calls to measure, as the command line gives them; `option` is what it calls the lengths."""
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
    """A number, or two with a colon between them."""
    numbers = text.split(":") if ":" in text else [text, text]
    if len(numbers) != 2 or not all(re.fullmatch(" *[0-9]{1,9} *", x) and 1 <= int(x) <= most for x in numbers):
        raise click.BadParameter(f"expected numbers from 1 to {most}, got {text!r}", param_hint=option)
    return int(numbers[0]), int(numbers[1])


def functions(package: emit.Package, folder: Path) -> Any:
    """The package as a module, written into a folder; its name is not that of a package which the user may import."""
    emit.write([package], folder)
    return module(f"timed_{package.name}", folder / package.name / "__init__.py")


def _nothing() -> None:
    """The call of a contender that cannot be timed."""


@dataclass
class Contender:
    """A contender: its calls, and the measurements so far; `note` gives the reason if there can be no more."""

    name: str
    forward: Callable[[], Any] = _nothing
    backward: Callable[[], Any] = _nothing
    within: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext
    note: str = ""
    found: dict[str, Any] = field(default_factory=dict)

    @property
    def row(self) -> Row:
        """The contender's result."""
        return Row(self.name, **self.found, note=self.note)

    @contextlib.contextmanager
    def trial(self) -> Iterator[None]:
        """Note any exception and drop the contender; the others go on."""
        try:
            with self.within():
                yield
        except Exception as error:
            self.note, self.forward, self.backward = _told(error), _nothing, _nothing


def run(
    loaded: Spec, package: emit.Package, sizes: Sequence[Sizes], names: Sequence[str], *, backward: bool = True,
    replays: bool = False, device: str = "cuda", clock: Clock | None = None,
) -> Iterator[Result]:  # fmt: skip
    """Measures a variant and the peers of these names, one call after the other; by another clock, if one is given.

    Without gradients, if asked to; replays of a CUDA graph have none.
    """
    import torch

    planned, backward = plan.build(loaded), backward and not replays and loaded.algorithm.backward
    clock = clock or (replayed if replays else milliseconds)
    with tempfile.TemporaryDirectory(prefix="attnforge-") as folder:
        ours = functions(package, Path(folder)).attention
        exported = Exported(loaded, Path(folder))

        def measured(fitting: Sizes) -> Result:
            torch._dynamo.reset()
            torch.cuda.empty_cache()
            try:
                call = calls.make(planned, fitting, device)
                gold = ours(*call.operands, **call.keywords).detach()
            except Exception as error:  # too large a call, or too large a head; the next one may be of interest
                return Result(loaded.name, fitting, 0, (Row(OURS, note=_told(error)),))
            entered = [Contender(OURS, lambda: ours(*call.operands, **call.keywords))]
            entered += [_entered(PEERS[name], exported, call, gold) for name in names]
            _race(entered, call, backward, clock)
            rows = tuple(contender.row for contender in entered)
            return Result(loaded.name, fitting, exported.pairs(call), rows, replays)

        for one in sizes:
            with torch.set_grad_enabled(backward):
                result = measured(one.of(loaded))
            yield result


def _entered(peer: Peer, exported: Exported, call: Call, gold: torch.Tensor) -> Contender:
    """A peer, if it gives what we give."""
    made = Contender(peer.name, within=peer.within, note=peer.refusal(Asked(exported.traits, call)))
    if not made.note:
        with made.trial():
            made.forward = exported.function(peer, call, compiled=True)
            apart = difference(made.forward().detach(), gold)
            # what it dropped is its own
            if apart > _APART[call.sizes.dtype] and not exported.traits.dropout:
                made.note = f"gives something else: {apart:.2g} apart"
    return made


def difference(found: torch.Tensor, gold: torch.Tensor) -> float:
    """The root mean square difference of two outputs, relative to that of the second."""
    if found.shape != gold.shape:
        return float("inf")
    apart, size = ((x.double().square().mean().sqrt()) for x in (found.nan_to_num() - gold, gold))
    return float(apart / size)


def _race(entered: Sequence[Contender], call: Call, backward: bool, clock: Clock) -> None:
    """Measures the time and the memory of all contenders, forward and backward."""
    import torch

    for one in _able(entered):
        with one.trial():
            one.found["forward_mib"] = _peak(one.forward)
    in_turns(entered, "forward", clock)
    if not backward:
        return

    def gradients(out: torch.Tensor, upstream: torch.Tensor, **more: bool) -> tuple[torch.Tensor | None, ...]:
        return torch.autograd.grad(out, call.wanted, upstream, allow_unused=True, **more)

    def both(forward: Callable[[], torch.Tensor], upstream: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        out = forward()
        return out, *gradients(out, upstream)

    for one in _able(entered):
        with one.trial():
            out = one.forward()
            one.backward = functools.partial(gradients, out, torch.randn_like(out), retain_graph=True)
    # first the calls that keep their graph: PyTorch compiles for what it meets first, and one that may drop it cannot
    in_turns(entered, "backward", clock)
    for one in _able(entered):
        one.backward = _nothing
        with one.trial():
            one.found["both_mib"] = _peak(functools.partial(both, one.forward, torch.randn_like(one.forward())))


def in_turns(entered: Sequence[Contender], phase: str, clock: Clock) -> None:
    """Times all calls again and again, so that a GPU's heat and clocks meet all of them alike; the median counts."""
    times: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        for one in _able(entered):
            with one.trial():
                times.setdefault(one.name, []).append(clock(getattr(one, phase)))
    for one in _able(entered):
        one.found[f"{phase}_ms"] = statistics.median(times[one.name])


def _able(entered: Sequence[Contender]) -> Iterator[Contender]:
    return (one for one in entered if not one.note)


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
    """The median in milliseconds of calls that a CUDA graph holds: the GPU's share alone, caches warm."""
    from triton.testing import do_bench_cudagraph

    return float(do_bench_cudagraph(function, rep=rep, return_mode="median"))


def _peak(function: Callable[[], Any]) -> float:
    """MiB that a call takes at its peak beside what there is before and what it gives."""
    import torch

    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    given = function()
    torch.cuda.synchronize()
    stores = [x.untyped_storage() for x in (given if isinstance(given, tuple) else [given]) if x is not None]
    outputs = sum({store.data_ptr(): store.nbytes() for store in stores}.values())
    return float(max(torch.cuda.max_memory_allocated() - before - outputs, 0)) / 2**20


# -- what is told ------------------------------------------------------------------------------------------------

_COLUMNS = ("contender", "forward ms", "TFLOP/s", "x", "backward ms", "TFLOP/s", "x", "MiB forward", "MiB both", "note")


def table(result: Result) -> Any:
    """The measures of one call; `x` is the contender's time by ours."""
    from rich.table import Table

    made = Table(title=f"{result.variant}: {result.sizes.told}{', replayed' if result.replayed else ''}")
    for column in _COLUMNS:
        made.add_column(column, justify="left" if column in ("contender", "note") else "right")
    ours = result.rows[0]
    for row in result.rows:
        cells = []
        for ms, rate, best in zip(
            (row.forward_ms, row.backward_ms), result.teraflops(row), (ours.forward_ms, ours.backward_ms), strict=True
        ):
            ratio = None if ms is None or best is None else ms / best
            cells += [cell(ms, ".3f"), cell(rate, ".0f"), cell(ratio, ".2f")]
        made.add_row(row.name, *cells, cell(row.forward_mib, ".1f"), cell(row.both_mib, ".1f"), row.note)
    return made


def cell(value: float | None, style: str) -> str:
    """A figure of a table; nothing where it was not measured."""
    return "" if value is None else f"{value:{style}}"


def document(machine: Machine, results: Sequence[Result]) -> str:
    """The results as JSON."""
    found = {"machine": dataclasses.asdict(machine), "results": [dataclasses.asdict(result) for result in results]}
    return json.dumps(found, indent=1) + "\n"


def read(text: str) -> tuple[Machine, list[Result]]:
    """The results that a document holds."""
    found = json.loads(text)
    results = [
        Result(**one | {"sizes": Sizes(**one["sizes"]), "rows": tuple(Row(**row) for row in one["rows"])})
        for one in found["results"]
    ]
    return Machine(**found["machine"]), results
