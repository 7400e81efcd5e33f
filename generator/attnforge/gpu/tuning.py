"""Searches the tile shapes of a variant on the GPU at hand.

All shapes are compiled first, side by side. Those that do not fit, or whose products the assembler serializes, are out;
the others run, are held against what the present tiles give, and are timed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import itertools
import math
import os
import statistics
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..language.spec import Spec
from ..plan import plan, tiles
from ..plan.tiles import Row, Tile
from ..render import emit
from . import bench, calls, cases, compile
from .calls import Sizes
from .compile import Made
from .results import Machine

if TYPE_CHECKING:
    import torch

_OWN, _OTHER = (64, 128), (32, 64, 128)  # along the side that a program owns, and the one that it walks along
_WARPS, _STAGES = (4, 8), (1, 2, 3, 4)
_APART = {"bf16": 1e-2, "fp16": 2e-3, "fp32": 1e-4}  # of outputs by other tiles, beside their own size
_search: Search  # of a process that compiles
_target: tuple[str, Any]
_FINAL, _ROUNDS = 5, 5  # how many tiles are timed again, and how often
_WORTH = 0.97  # a tile that spills has to take less than this share of the best without


@dataclass(frozen=True)
class Trial:
    """The result of a tile: `why` it is out, or its time."""

    tile: Tile
    made: Made | None = None
    why: str = ""
    ms: float | None = None


def candidates(kernel: str) -> Iterator[Tile]:
    """The tiles that are tried for a kernel."""
    for own, other, warps, stages in itertools.product(_OWN, _OTHER, _WARPS, _STAGES):
        yield Tile(*((other, own) if kernel == "backward_dkv" else (own, other)), warps, stages)
    if kernel != "backward_dkv":
        # read keys and values half as often, with all of a multiprocessor's registers
        yield from (Tile(256, other, 8, stages) for other in _OTHER[:2] for stages in _STAGES[1:])


def chosen(trials: Iterable[Trial]) -> Trial | None:
    """The fastest; one that spills only if it is clearly faster than all that do not."""
    timed = sorted((trial for trial in trials if trial.ms is not None), key=lambda trial: trial.ms or 0.0)
    dry = next((trial for trial in timed if trial.made is not None and not trial.made.spills), None)
    if not timed or dry is None or dry.ms is None:
        return timed[0] if timed else None
    return timed[0] if (timed[0].ms or 0.0) < _WORTH * dry.ms else dry


def row(family: str, kernel: str, size: int, best: Tile, present: Sequence[Tile]) -> Row:
    """A table's row with the best first; the others stay for GPUs that have less shared memory."""
    return Row(family, kernel, size, (best, *(tile for tile in present if tile != best)))


def text(rows: Sequence[Row], machine: Machine) -> str:
    """The rows as a file of them."""
    lines = [
        f"# Written by `attnforge tune`, last on: {machine.device}, torch {machine.torch}, triton {machine.triton}.",
        "# [queries, keys, warps, stages] of tiles by architecture, kernel and head size; the first that fits is used.",
    ]
    for family in tiles.FAMILIES:
        kernels = {kernel: [r for r in rows if (r.family, r.kernel) == (family, kernel)] for kernel in tiles.KERNELS}
        if any(kernels.values()):
            lines.append(f"{family}:")
        for kernel, found in kernels.items():
            lines += [f"  {kernel}:"] if found else []
            lines += [
                f"    {one.size}: [{', '.join(str(list(tile)) for tile in one.tiles)}]"
                for one in sorted(found, key=lambda one: one.size)
            ]
    return "\n".join(lines) + "\n"


def merged(old: Iterable[Row], new: Iterable[Row]) -> list[Row]:
    """The old rows, those that were made anew replaced."""
    return list({(one.family, one.kernel, one.size): one for one in (*old, *new)}.values())


@dataclass(frozen=True)
class Search:
    """The search for a variant's tiles at one head size."""

    spec: Spec
    package: emit.Package
    sizes: Sizes
    folder: Path

    @functools.cached_property
    def planned(self) -> plan.Plan:
        return plan.build(self.spec)

    @functools.cached_property
    def arch(self) -> str:
        """The GPU's architecture as `inspect` names it."""
        import torch

        if torch.version.hip is not None:
            raise click.UsageError("tune knows NVIDIA's GPUs only, so far")
        return "sm_{}{}".format(*torch.cuda.get_device_capability())

    @property
    def family(self) -> str:
        """The table that rows go to."""
        return "single" if self.sizes.dtype == "fp32" else tiles.family(self.arch)

    @property
    def kernels(self) -> tuple[str, ...]:
        """The kernels whose tiles are searched."""
        found = {kernel.name for kernel in self.planned.kernels.all}
        return tuple(kernel for kernel in tiles.KERNELS if kernel in found)

    def size(self, kernel: str) -> int:
        """The head size whose row of the table serves these."""
        widest = max(self.sizes.head_dim, self.sizes.v_dim)
        return next(size for size in self.planned.tables.of(self.arch, self.sizes.dtype)[kernel] if widest <= size)

    def present(self, kernel: str) -> tuple[Tile, ...]:
        """The tiles as they are."""
        return self.planned.tables.of(self.arch, self.sizes.dtype)[kernel][self.size(kernel)]

    def compiled(self, kernels: Sequence[str]) -> Iterator[tuple[str, Trial]]:
        """Every kernel's tiles as the compiler leaves them, in the order in which they are ready to be told."""
        for name in ("generated", "timed"):
            emit.write([self.package], self.folder / name)
        wanted = [
            (kernel, tile) for kernel in kernels for tile in dict.fromkeys((*self.present(kernel), *candidates(kernel)))
        ]
        sizes = dataclasses.replace(self.sizes, batch=2, q_len=256, k_len=256)
        begin = dataclasses.replace(self, sizes=sizes), self.arch
        # not forked: a process that has used the GPU cannot be copied
        with ProcessPoolExecutor(_workers(), get_context("spawn"), _begin, begin) as pool:
            yield from zip((kernel for kernel, _ in wanted), pool.map(_examined, wanted), strict=True)

    @functools.cached_property
    def runner(self) -> _Runner:
        """The runner of the package on this GPU."""
        return _Runner(self)

    def prepare(self, kernel: str, tile: Tile) -> None:
        """Compiles a tile for calls, which takes longer than to time it; what goes wrong is told when it is timed."""
        import torch

        if torch.cuda.is_available():
            with contextlib.suppress(Exception), self.runner.tile(kernel, tile):
                self.runner.results(kernel)

    def timed(self, kernel: str, trials: Sequence[Trial]) -> Iterator[Trial]:
        """The trials with their times, one by one; those that give something else are out."""
        for trial in trials:
            yield self.runner.timed(kernel, trial) if not trial.why else trial

    def again(self, kernel: str, trials: Sequence[Trial]) -> list[Trial]:
        """The trials, the best of them timed again in turns, so that a GPU's heat and clocks meet all of them alike."""
        timed = sorted((trial for trial in trials if trial.ms is not None), key=lambda trial: trial.ms or 0.0)
        dry = (trial for trial in timed if trial.made is not None and not trial.made.spills)
        best = {trial.tile: trial for trial in (*timed[:_FINAL], *itertools.islice(dry, 1))}
        rounds = [[self.runner.timed(kernel, x).ms or math.inf for x in best.values()] for _ in range(_ROUNDS)]
        times = {tile: statistics.median(column) for tile, column in zip(best, zip(*rounds, strict=True), strict=True)}
        return [dataclasses.replace(trial, ms=times.get(trial.tile)) for trial in trials]


def _workers() -> int:
    """The number of processes that compile side by side: beyond some their start takes longer than their work."""
    return min(os.cpu_count() or 1, 16)


def _begin(search: Search, arch: str) -> None:
    """Tells a process that compiles what to compile."""
    global _search, _target
    _search, _target = search, (arch, compile.targets([arch])[arch])


def _examined(wanted: tuple[str, Tile]) -> Trial:
    """One tile, compiled in a process of its own, and there where GPUs are, left where a first launch finds it."""
    kernel, tile = wanted
    arch, target = _target
    launches = cases.written(_search.planned, _search.folder, _search.sizes.head_dim, _search.sizes.dtype)
    signature = next(one for one in launches.planned.kernels.all if one.name == kernel)
    try:
        made = compile.measured(launches.case(signature, tile), target)
    except compile.NotCompiled as error:
        return Trial(tile, why=f"does not compile: {error}")
    trial = Trial(tile, made, refusal(made, arch))
    if not trial.why:
        _search.prepare(kernel, tile)
    return trial


def refusal(made: Made, arch: str) -> str:
    """The reason why a compiled tile is out, if it is."""
    if any("serialized" in warning for warning in made.warnings):
        return "serializes its products"
    if (room := made.programs(arch)) and not room[0]:
        return "does not fit"
    return ""


class _Runner:
    """Runs the package with tiles put in the place of a table's row."""

    def __init__(self, search: Search, device: str = "cuda") -> None:
        import torch

        # the search is for tiles of the portable kernels
        os.environ["ATTNFORGE_TARGET"] = "portable"
        self.search = search
        self.call = calls.make(search.planned, search.sizes, device)
        self.attention = bench.functions(search.package, search.folder / "timed").attention
        self.tables, self.runtime = (
            importlib.import_module(f"timed_{search.package.name}.{name}") for name in ("tiles", "runtime")
        )
        self.upstream = torch.randn_like(self.attention(*self.call.operands, **self.call.keywords))

    @functools.cached_property
    def gold(self) -> dict[str, list[torch.Tensor]]:
        """The results of the present tiles, by kernel."""
        return {kernel: self.results(kernel) for kernel in self.search.kernels}

    def operands(self, kernel: str) -> tuple[torch.Tensor, ...]:
        """q, k and v, of which those that the kernel makes a gradient of have one."""
        learns = {"forward": (), "backward_dkv": (1, 2), "backward_dq": (0,)}[kernel]
        return tuple(x.detach().requires_grad_(i in learns) for i, x in enumerate(self.call.operands))

    def function(self, kernel: str) -> Any:
        """A call that runs the kernel, and little else; the gradient of q comes with those of k and v in any case."""
        import torch

        operands = self.operands(kernel)
        keywords = {n: x.detach() if isinstance(x, torch.Tensor) else x for n, x in self.call.keywords.items()}
        if kernel == "forward":
            return lambda: (self.attention(*operands, **keywords),)
        out = self.attention(*operands, **keywords)
        wanted = [x for x in operands if x.requires_grad]
        return lambda: torch.autograd.grad(out, wanted, self.upstream, retain_graph=True)

    def results(self, kernel: str) -> list[torch.Tensor]:
        return [x.detach() for x in self.function(kernel)()]

    def go_on(self, tile: Tile) -> None:
        """Tells if a tile has left the GPU in a state in which nothing runs any more."""
        import torch

        try:
            torch.cuda.synchronize()
        except Exception as error:
            told = f"the tile {list(tile)} of {self.search.spec.name} broke the GPU's context: {error}"
            raise click.ClickException(f"{told}; nothing was written") from error

    @contextlib.contextmanager
    def tile(self, kernel: str, tile: Tile) -> Iterator[None]:
        """Puts a tile in the place of those that a kernel has."""
        family = self.search.family
        table = self.tables.TILES_FP32 if family == "single" else self.tables.TILES_16BIT[family]
        sizes, present = table[kernel], dict(table[kernel])
        try:
            sizes[self.search.size(kernel)] = (tuple(tile),)
            self.forget()
            yield
        finally:
            sizes.update(present)
            self.forget()

    def forget(self) -> None:
        """Makes the next call look up its tiles."""
        self.runtime.fitting.clear()
        self.runtime.LaunchCache.known.clear()

    def timed(self, kernel: str, trial: Trial) -> Trial:
        """The trial with its time."""
        gold = self.gold[kernel]
        try:
            with self.tile(kernel, trial.tile):
                function = self.function(kernel)
                found = [x.detach() for x in function()]
                apart = max(bench.difference(x, right) for x, right in zip(found, gold, strict=True))
                if not apart <= _APART[self.search.sizes.dtype]:
                    return Trial(trial.tile, trial.made, f"gives something else: {apart:.2g} apart")
                return Trial(trial.tile, trial.made, "", bench.milliseconds(function, warmup=25, rep=60))
        except Exception as error:  # out of resources, or what else a GPU tells
            self.go_on(trial.tile)
            return Trial(trial.tile, trial.made, f"does not run: {type(error).__name__}")


def run(spec: Spec, package: emit.Package, sizes: Sequence[Sizes], console: Any) -> list[Row]:
    """Searches a variant's tiles, with a bar of progress, and tells what was found."""
    from rich.progress import Progress

    found: list[Row] = []
    for one in sizes:
        fitting = one.of(spec)
        with tempfile.TemporaryDirectory(prefix="attnforge-") as folder, Progress(console=console) as progress:
            search = Search(spec, package, fitting, Path(folder))
            kernels: dict[str, list[Trial]] = {kernel: [] for kernel in search.kernels}
            count = sum(len({*search.present(kernel), *candidates(kernel)}) for kernel in kernels)
            bar = progress.add_task(f"{spec.name}, head size {one.head_dim}: compiling", total=count)
            for kernel, trial in search.compiled(tuple(kernels)):
                kernels[kernel].append(trial)
                progress.advance(bar)
            for kernel, trials in kernels.items():
                bar = progress.add_task(f"{kernel}: timing", total=len(trials))
                timed = []
                for trial in search.timed(kernel, trials):
                    timed.append(trial)
                    progress.advance(bar)
                timed = search.again(kernel, timed)
                progress.console.print(table(f"{spec.name}, head size {one.head_dim}: {kernel}", timed))
                if best := chosen(timed):
                    found.append(row(search.family, kernel, search.size(kernel), best.tile, search.present(kernel)))
    return found


def table(title: str, trials: Sequence[Trial], most: int = 8) -> Any:
    """The fastest trials, and how many are out for what."""
    from rich.table import Table

    made = Table(title=title)
    for column in ("tile", "ms", "registers", "spills", "shared KiB"):
        made.add_column(column, justify="left" if column == "tile" else "right")
    best = chosen(trials)
    timed = sorted((trial for trial in trials if trial.ms is not None), key=lambda trial: trial.ms or 0.0)
    for trial in timed[:most]:
        mark = " *" if trial is best else ""
        m = trial.made
        facts = (str(m.registers), str(m.spills), f"{m.shared / 1024:.1f}") if m else ("",) * 3
        made.add_row(str(list(trial.tile)) + mark, f"{trial.ms:.4f}", *facts)
    reasons = [trial.why.split(":")[0] for trial in trials if trial.why]
    for why in dict.fromkeys(reasons):
        made.add_row(f"{reasons.count(why)} tiles: {why}", "", "", "", "")
    return made
