"""Searches for the best tile shapes of a variant on the local GPU.

All shapes are compiled first, in parallel. Those that do not fit, or whose products the assembler serializes, are out;
the others run, are compared with the results of the present tiles, and are timed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
import os
import statistics
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from ..language.spec import Spec
from ..plan import plan, tiles
from ..plan.tiles import Limit, Row, Tile
from ..render import emit
from ..source.messages import Refused
from . import bench, cases, compile, results, targets
from .calls import Sizes
from .cases import Case, Cases
from .compile import Made
from .results import Machine
from .trials import Place, Runner, Trial

_OWN, _OTHER = (64, 128), (32, 64, 128)  # tile sizes along the side that a program owns, and along the other
_WARPS, _STAGES = (4, 8), (1, 2, 3, 4)
_OWN_ON_HOPPER = (128, 192)  # of two and three workers
_KEYS = (512, 1024, 2048, 4096, 8192, 16384)  # lengths of sequences with which targets are compared
_search: Search  # in a process that compiles
_target: tuple[str, Any]
_FINAL, _ROUNDS = 5, 5  # how many tiles are timed again, and how often
_WORTH = 0.97  # a tile that spills has to take less than this share of the best time without spills


def candidates(place: Place, present: Sequence[Tile]) -> Iterator[Tile]:
    """The tiles to try for a row, besides the present ones."""
    kernel = place.kernel
    if place.family == tiles.HOPPER:
        yield from _candidates_on_hopper(kernel, present)
        return
    for own, other, warps, stages in itertools.product(_OWN, _OTHER, _WARPS, _STAGES):
        yield Tile(*((other, own) if kernel == "backward_dkv" else (own, other)), warps, stages)
    if kernel != "backward_dkv":
        # these read keys and values half as often, with all of a multiprocessor's registers
        yield from (Tile(256, other, 8, stages) for other in _OTHER[:2] for stages in _STAGES[1:])


def _candidates_on_hopper(its: str, present: Sequence[Tile]) -> Iterator[Tile]:
    """In the backward pass, workers fix a program's keys and a step's queries, so only stages vary."""
    if its == "forward":
        for own, other, stages in itertools.product(_OWN_ON_HOPPER, _OTHER[1:], _STAGES[1:]):
            yield Tile(own, other, own // 16, stages)
    else:
        yield from (tile._replace(num_stages=stages) for tile in present for stages in _STAGES[:3])


def chosen(trials: Iterable[Trial]) -> Trial | None:
    """The fastest trial; one that spills only if it is clearly faster than all that do not."""
    timed = sorted((trial for trial in trials if trial.ms is not None), key=lambda trial: trial.ms or 0.0)
    dry = next((trial for trial in timed if trial.made is not None and not trial.made.spills), None)
    if not timed or dry is None or dry.ms is None:
        return timed[0] if timed else None
    return timed[0] if (timed[0].ms or 0.0) < _WORTH * dry.ms else dry


def row(place: Place, best: Tile, present: Sequence[Tile]) -> Row:
    """A row of a table with the best tile first; the others stay for GPUs with less shared memory."""
    others = () if place.family == tiles.HOPPER else (tile for tile in present if tile != best)
    return Row(*place, (best, *others))


def outruns(times: Mapping[int, Mapping[str, float | None]]) -> int | None:
    """The number of keys from which Hopper kernels take no longer, by the times of both targets; None: never."""
    found = None
    for keys in sorted(times, reverse=True):
        portable, hopper = (times[keys][target] for target in targets.TARGETS)
        if hopper is None or (portable is not None and hopper > portable):
            break
        found = keys
    return 0 if found == min(times, default=0) else found


def text(rows: Sequence[Row | Limit], machine: Machine) -> str:
    """The rows as the text of a file."""
    lines = [
        f"# Written by `attnforge tune`, last on: {machine.device}, torch {machine.torch}, triton {machine.triton}.",
        "# [queries, keys, warps, stages] of tiles by architecture, kernel and head size; the first that fits is used.",
        "# hopper: those of kernels for Hopper GPUs; faster: from how many keys on calls take these.",
    ]
    for family, known in tiles.TUNED.items():
        kernels = {kernel: [r for r in rows if (r.family, r.kernel) == (family, kernel)] for kernel in known}
        if any(kernels.values()):
            lines.append(f"{family}:")
        for kernel, found in kernels.items():
            lines += [f"  {kernel}:"] if found else []
            lines += [f"    {one.size}: {_told(one)}" for one in sorted(found, key=lambda one: one.size)]
    return "\n".join(lines) + "\n"


def _told(one: Row | Limit) -> str:
    if isinstance(one, Limit):
        return tiles.NEVER if one.keys is None else str(one.keys)
    return f"[{', '.join(str(list(tile)) for tile in one.tiles)}]"


def merged(old: Iterable[Row | Limit], new: Iterable[Row | Limit]) -> list[Row | Limit]:
    """The old rows, replaced by new ones where there are any."""
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
        """The GPU's architecture, as `inspect` names it."""
        import torch

        if torch.version.hip is not None:
            raise Refused("tune knows NVIDIA's GPUs only, so far")
        return "sm_{}{}".format(*torch.cuda.get_device_capability())

    def places(self, target: str) -> tuple[Place, ...]:
        """The rows to search for a target: those of its kernels that serve this call."""
        if target == "portable":
            found = {kernel.name for kernel in self.planned.kernels.all}
            return tuple(self._portable(kernel) for kernel in tiles.KERNELS if kernel in found)
        if self.arch != "sm_90" or self.sizes.dtype == "fp32":
            return ()
        columns = max(1 << max(self.sizes.head_dim - 1, 15).bit_length(), tiles.NARROW)
        passes = self.planned.tables.hopper
        return tuple(Place(tiles.HOPPER, its, columns) for its in passes if columns in passes[its])

    def _portable(self, kernel: str) -> Place:
        """The row of a portable kernel that serves these head sizes."""
        widest = max(self.sizes.head_dim, self.sizes.v_dim)
        table = self.planned.tables.of(self.arch, self.sizes.dtype)[kernel]
        family = "single" if self.sizes.dtype == "fp32" else tiles.family(self.arch)
        return Place(family, kernel, next(size for size in table if widest <= size))

    def present(self, place: Place) -> tuple[Tile, ...]:
        """The present tiles of a row."""
        if place.family == tiles.HOPPER:
            by_length = self.planned.tables.hopper[place.kernel][place.size]
            return (tiles.of_length(by_length, self.planned.visible_keys(self.sizes.k_len, {})),)
        return self.planned.tables.of(self.arch, self.sizes.dtype)[place.kernel][place.size]

    def tried(self, place: Place) -> list[Tile]:
        """The tiles to try, the present ones first."""
        present = self.present(place)
        return list(dict.fromkeys((*present, *candidates(place, present))))

    def compiled(self, places: Sequence[Place]) -> Iterator[tuple[Place, Trial]]:
        """The compiled tiles of all rows, in order, as they become available."""
        for name in ("generated", "timed"):
            emit.write([self.package], self.folder / name)
        wanted = [(place, tile) for place in places for tile in self.tried(place)]
        sizes = dataclasses.replace(self.sizes, batch=2, q_len=256, k_len=256)
        begin = dataclasses.replace(self, sizes=sizes), self.arch
        # spawned, as a process that has used the GPU cannot be forked
        with ProcessPoolExecutor(_workers(), get_context("spawn"), _begin, begin) as pool:
            yield from zip((place for place, _ in wanted), pool.map(_examined, wanted), strict=True)

    @functools.cached_property
    def runner(self) -> Runner:
        """The runner of the package on this GPU."""
        return Runner(self.planned, self.package, self.sizes, self.folder / "timed")

    def prepare(self, place: Place, tile: Tile) -> None:
        """Compiles a tile for calls, which takes longer than timing it; errors are reported when it is timed."""
        import torch

        if torch.cuda.is_available():
            with contextlib.suppress(Exception), self.runner.tile(place, tile):
                self.runner.results(place.kernel)

    def timed(self, place: Place, trials: Sequence[Trial]) -> Iterator[Trial]:
        """The trials with their times, one by one; those whose results differ are out."""
        for trial in trials:
            yield self.runner.timed(place, trial) if not trial.why else trial

    def again(self, place: Place, trials: Sequence[Trial]) -> list[Trial]:
        """The trials, the best of them timed again in turns, so that a GPU's heat and clocks affect them all alike."""
        timed = sorted((trial for trial in trials if trial.ms is not None), key=lambda trial: trial.ms or 0.0)
        dry = (trial for trial in timed if trial.made is not None and not trial.made.spills)
        best = {trial.tile: trial for trial in (*timed[:_FINAL], *itertools.islice(dry, 1))}
        rounds = [[self.runner.timed(place, x).ms or math.inf for x in best.values()] for _ in range(_ROUNDS)]
        times = {tile: statistics.median(column) for tile, column in zip(best, zip(*rounds, strict=True), strict=True)}
        return [dataclasses.replace(trial, ms=times.get(trial.tile)) for trial in trials]

    def limit(self, place: Place, best: Mapping[Place, Tile]) -> tuple[Limit, dict[int, dict[str, float | None]]]:
        """The number of keys from which calls should run a pass's Hopper kernels, and the times that show it."""
        for found, tile in best.items():
            self.runner.put(found, tile)
        tokens, times = self.sizes.batch * self.sizes.k_len, {}
        for keys in _KEYS:
            sizes = dataclasses.replace(self.sizes, batch=max(tokens // keys, 1), q_len=keys, k_len=keys)
            took = self.runner.both(place.kernel, sizes)
            # for packed sequences, the longest counts
            times[self.runner.call.keywords.get("max_seqlen_k", keys)] = took
        return Limit("faster", place.kernel, place.size, outruns(times)), times


def _workers() -> int:
    """The number of processes that compile in parallel: beyond a limit, starting them takes longer than their work."""
    return min(os.cpu_count() or 1, 16)


def _begin(search: Search, arch: str) -> None:
    """Tells a compiling process what to compile."""
    global _search, _target
    _search, _target = search, (arch, compile.targets([arch])[arch])


def _examined(wanted: tuple[Place, Tile]) -> Trial:
    """One tile, compiled in a process of its own; if there is a GPU, also into the cache that a first launch reads."""
    place, tile = wanted
    arch, target = _target
    sizes = _search.sizes
    launches = cases.written(_search.planned, _search.folder, sizes.head_dim, sizes.dtype, sizes.v_dim)
    try:
        made = compile.measured(_case(launches, place, tile), target)
    except compile.NotCompiled as error:
        return Trial(tile, why=f"does not compile: {error}")
    trial = Trial(tile, made, refusal(made, arch))
    if not trial.why:
        _search.prepare(place, tile)
    return trial


def _case(launches: Cases, place: Place, tile: Tile) -> Case:
    """The launch of a row's kernel with a tile; in the backward pass on Hopper GPUs, of the main kernel."""
    if place.family == tiles.HOPPER:
        return next(case for case in launches.on_hopper(place.kernel, tile) if case.gluon)
    signature = next(one for one in launches.planned.kernels.all if one.name == place.kernel)
    return launches.case(signature, tile)


def refusal(made: Made, arch: str) -> str:
    """The reason why a compiled tile is out; "" if it is not."""
    if any("serialized" in warning for warning in made.warnings):
        return "serializes its products"
    if (room := made.programs(arch)) and not room[0]:
        return "does not fit"
    return ""


def run(
    spec: Spec, package: emit.Package, sizes: Sequence[Sizes], console: Any, *, target: str = bench.BOTH
) -> list[Row | Limit]:  # fmt: skip
    """Searches for a variant's tiles, with a progress bar, and prints the results."""
    from rich.progress import Progress

    found: list[Row | Limit] = []
    wanted = targets.TARGETS if target == bench.BOTH else (target,)
    for one in sizes:
        with tempfile.TemporaryDirectory(prefix="attnforge-") as folder, Progress(console=console) as progress:
            search = Search(spec, package, one.of(spec), Path(folder))
            found += _searched(search, [place for name in wanted for place in search.places(name)], progress)
    return found


def _searched(search: Search, places: Sequence[Place], progress: Any) -> Iterator[Row | Limit]:
    """The rows of a search, and the limits from which its Hopper kernels should run, if they were searched."""
    title = f"{search.spec.name}, head size {search.sizes.head_dim}"
    rows: dict[Place, list[Trial]] = {place: [] for place in places}
    bar = progress.add_task(f"{title}: compiling", total=sum(len(search.tried(place)) for place in places))
    for place, trial in search.compiled(places):
        rows[place].append(trial)
        progress.advance(bar)
    best: dict[Place, Tile] = {}
    for place, trials in rows.items():
        if not search.runner.runs(place):
            progress.console.print(f"{title}: {place.told} does not run here")
            continue
        bar = progress.add_task(f"{place.told}: timing", total=len(trials))
        timed = []
        for trial in search.timed(place, trials):
            timed.append(trial)
            progress.advance(bar)
        timed = search.again(place, timed)
        progress.console.print(table(f"{title}: {place.told}", timed))
        if first := chosen(timed):
            best[place] = first.tile
            yield row(place, first.tile, search.present(place))
    for place in best:
        if place.family == tiles.HOPPER:
            limit, times = search.limit(place, best)
            progress.console.print(table_of_targets(f"{title}: {place.kernel}", limit, times))
            yield limit


def table(title: str, trials: Sequence[Trial], most: int = 8) -> Any:
    """The fastest trials, and how many are out for which reason."""
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


def table_of_targets(title: str, limit: Limit, times: Mapping[int, Mapping[str, float | None]]) -> Any:
    """The times of both targets by length; a star marks the one that calls will run."""
    from rich.table import Table

    made = Table(title=title)
    for column in ("keys", *targets.TARGETS):
        made.add_column(f"{column} ms" if column != "keys" else column, justify="right")
    for keys, by_target in times.items():
        taken = targets.TARGETS[limit.keys is not None and keys >= limit.keys]
        cells = ("*" * (name == taken) + results.cell(ms, ".4f") for name, ms in by_target.items())
        made.add_row(str(keys), *cells)
    return made
