"""Runs a package with tiles that replace those in a row of a table: the measurements of tuning."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ..plan import tiles
from ..plan.plan import Plan
from ..plan.tiles import Tile
from ..render import emit
from . import bench, calls, targets
from .bench import Contender
from .calls import Sizes
from .compile import Made

if TYPE_CHECKING:
    import torch

_APART = {"bf16": 1e-2, "fp16": 2e-3, "fp32": 1e-4}  # by how much outputs may differ, relative to their size
# the operands among q, k and v that get a gradient, so that a kernel runs and little else
_LEARNED = {"forward": (), "backward_dkv": (1, 2), "backward_dq": (0,), "backward": (0, 1, 2)}


class Place(NamedTuple):
    """A row of the tables: that of a kernel, or of a pass on Hopper GPUs."""

    family: str
    kernel: str
    size: int

    @property
    def target(self) -> str:
        """The target whose kernels use the row."""
        return "hopper" if self.family == tiles.HOPPER else "portable"

    @property
    def told(self) -> str:
        """Its name for tables."""
        return f"hopper.{self.kernel}" if self.family == tiles.HOPPER else self.kernel


@dataclass(frozen=True)
class Trial:
    """The result of trying a tile: `why` it is out, or its time."""

    tile: Tile
    made: Made | None = None
    why: str = ""
    ms: float | None = None


class Runner:
    """A package that runs with tiles that replace those in a row of a table."""

    def __init__(self, planned: Plan, package: emit.Package, sizes: Sizes, folder: Path, device: str = "cuda") -> None:
        self.planned, self.sizes, self.device = planned, sizes, device
        self.attention = bench.functions(package, folder).attention
        self.tables, self.runtime = (
            importlib.import_module(f"timed_{package.name}.{name}") for name in ("tiles", "runtime")
        )
        self.gold: dict[Place, list[torch.Tensor]] = {}

    @functools.cached_property
    def call(self) -> calls.Call:
        return calls.make(self.planned, self.sizes, self.device)

    @property
    def keywords(self) -> dict[str, Any]:
        """The call's keywords, without gradients."""
        import torch

        return {n: x.detach() if isinstance(x, torch.Tensor) else x for n, x in self.call.keywords.items()}

    def function(self, kernel: str) -> Callable[[], tuple[torch.Tensor, ...]]:
        """A call that runs the kernel, and little else; gradients of k and v never come without that of q."""
        import torch

        operands = [x.detach().requires_grad_(i in _LEARNED[kernel]) for i, x in enumerate(self.call.operands)]
        keywords = self.keywords
        if kernel == "forward":
            return lambda: (self.attention(*operands, **keywords),)
        out = self.attention(*operands, **keywords)
        wanted = [x for x in operands if x.requires_grad]
        upstream = torch.randn(out.shape, generator=torch.Generator(out.device).manual_seed(0), device=out.device)
        upstream = upstream.to(out.dtype)
        return lambda: torch.autograd.grad(out, wanted, upstream, retain_graph=True)

    def results(self, kernel: str) -> list[torch.Tensor]:
        return [x.detach() for x in self.function(kernel)()]

    def right(self, place: Place) -> list[torch.Tensor]:
        """The results of the portable kernels with their present tiles."""
        if place not in self.gold:
            with self.asking("portable"):
                self.gold[place] = self.results(place.kernel)
        return self.gold[place]

    def runs(self, place: Place) -> bool:
        """True if calls that ask for its target run its kernels."""
        with contextlib.suppress(Exception), self.asking(place.target):
            self.results(place.kernel)
            return place.target == "portable" or targets.taken(self.runtime).get(place.kernel) == place.target
        return False

    @contextlib.contextmanager
    def asking(self, target: str) -> Iterator[None]:
        """Makes calls look up their launches anew, and run one target's kernels."""
        self.forget()
        try:
            with targets.asked(target):
                yield
        finally:
            self.forget()

    @contextlib.contextmanager
    def tile(self, place: Place, tile: Tile) -> Iterator[None]:
        """Replaces the tiles of a row by this one, and makes calls run the kernels of that row."""
        sizes = self.table(place)
        present = dict(sizes)
        try:
            self.put(place, tile)
            with self.asking(place.target):
                yield
        finally:
            sizes.clear()
            sizes.update(present)
            self.forget()

    def put(self, place: Place, tile: Tile) -> None:
        """Makes this the only tile of a row."""
        one = tuple(tile)
        self.table(place)[place.size] = {0: one} if place.family == tiles.HOPPER else (one,)

    def table(self, place: Place) -> dict[int, Any]:
        """The rows of a kernel, by head size."""
        tables = {tiles.HOPPER: getattr(self.tables, "TILES_HOPPER", {}), "single": self.tables.TILES_FP32}
        found: dict[int, Any] = (tables | self.tables.TILES_16BIT)[place.family][place.kernel]
        return found

    def forget(self) -> None:
        """Makes the next call look up its tiles again."""
        self.runtime.LaunchCache.known.clear()

    def timed(self, place: Place, trial: Trial) -> Trial:
        """The trial with its time."""
        gold = self.right(place)
        try:
            with self.tile(place, trial.tile):
                function = self.function(place.kernel)
                found = [x.detach() for x in function()]
                apart = max(bench.difference(x, right) for x, right in zip(found, gold, strict=True))
                if not apart <= _APART[self.sizes.dtype]:
                    return dataclasses.replace(trial, why=f"gives something else: {apart:.2g} apart")
                return dataclasses.replace(trial, ms=bench.milliseconds(function, warmup=25, rep=60))
        except Exception as error:  # out of resources, or any other error of a GPU
            self.go_on(trial.tile)
            return dataclasses.replace(trial, why=f"does not run: {type(error).__name__}")

    def go_on(self, tile: Tile) -> None:
        """Raises an error if a tile has left the GPU in a state in which nothing runs any more."""
        import torch

        try:
            torch.cuda.synchronize()
        except Exception as error:
            told = f"the tile {list(tile)} of {self.planned.spec.name} broke the GPU's context: {error}"
            raise click.ClickException(f"{told}; nothing was written") from error

    def both(self, its: str, sizes: Sizes) -> dict[str, float | None]:
        """Milliseconds of a pass of a call with other sizes, by target, timed in turns."""
        self.call = calls.make(self.planned, sizes, self.device)
        asking = {target: functools.partial(self.asking, target) for target in targets.TARGETS}
        entered = [Contender(target, within=within) for target, within in asking.items()]
        for one in entered:
            with one.trial():
                setattr(one, its, self.function(its))
        bench.in_turns(entered, its, bench.milliseconds)
        return {one.name: one.found.get(f"{its}_ms") for one in entered}
