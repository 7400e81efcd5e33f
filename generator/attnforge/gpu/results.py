"""Measurements of contenders: the records that hold them, and the table that shows them."""

from __future__ import annotations

import ctypes
import dataclasses
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..source.messages import Refused
from . import targets
from .calls import Sizes

OURS = "attnforge"
PASSES = ("forward", "backward")
_NO_GPU = "this needs a GPU that torch can use; `attnforge inspect` needs none"
Pair = tuple[float | None, float | None]  # forward and backward


@dataclass(frozen=True)
class Row:
    """Measurements of one contender; `note` is the reason if there are none."""

    name: str
    forward_ms: float | None = None
    backward_ms: float | None = None
    forward_mib: float | None = None  # at the peak, without inputs and outputs
    both_mib: float | None = None
    note: str = ""

    @property
    def took(self) -> Pair:
        """Milliseconds forward and backward."""
        return self.forward_ms, self.backward_ms


@dataclass(frozen=True)
class Result:
    """All contenders in one call, ours first."""

    variant: str
    sizes: Sizes
    pairs: int  # visible query-key pairs, over all heads
    rows: tuple[Row, ...]
    replayed: bool = False  # whether calls were replayed from a CUDA graph, so that times do not include the host
    kernels: dict[str, str] = field(default_factory=dict)  # the target of ours, by pass, if there are several
    ceiling: Pair = (None, None)  # TFLOP/s of a large product, or TB/s of a copy, timed in turns with each pass
    cached: bool = False  # whether the call is over a cache
    read: int = 0  # bytes of keys and values in the cache that some query sees

    def speeds(self, row: Row) -> Pair:
        """TB/s over a cache; else TFLOP/s forward and backward: for the products of visible pairs, two and five."""
        work = (self.read if self.cached else 2 * self.pairs * (self.sizes.head_dim + self.sizes.v_dim)) / 1e9
        forward, backward = (
            None if ms is None else times * work / ms for ms, times in zip(row.took, (1, 2.5), strict=True)
        )
        return forward, backward

    def shares(self, row: Row) -> Pair:
        """The speeds in percent of the ceiling."""
        forward, backward = (
            None if rate is None or most is None else 100 * rate / most
            for rate, most in zip(self.speeds(row), self.ceiling, strict=True)
        )
        return forward, backward

    def mark(self, name: str, its: str) -> str:
        """A star if calls choose the kernels of a contender in a pass by themselves."""
        return "*" if self.kernels.get(its) == name else ""


@dataclass(frozen=True)
class Machine:
    """The device and versions of a measurement."""

    device: str
    torch: str
    triton: str

    @staticmethod
    def here() -> Machine:
        """This machine, if it has a GPU."""
        if not _driver():
            raise Refused(_NO_GPU)
        try:
            import torch
            import triton
        except ImportError as missing:
            raise Refused(f"this needs {missing.name}: pip install {missing.name}") from None
        if not torch.cuda.is_available():
            raise Refused(_NO_GPU)
        return Machine(torch.cuda.get_device_name(), torch.__version__, triton.__version__)


def _driver() -> bool:
    """True if the driver of CUDA or ROCm is installed: without one there is no GPU, and no need to import torch."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return Path("/dev/kfd").exists()
    return True


_COLUMNS = ("forward ms", "TFLOP/s", "%", "x", "backward ms", "TFLOP/s", "%", "x", "MiB forward", "MiB both")
_CACHED = ("ms", "TB/s", "%", "x")  # of a call over a cache


def table(result: Result) -> Any:
    """The measurements of one call; `x` is the contender's time divided by ours."""
    from rich.table import Table

    over = " over a cache" if result.cached else ""
    made = Table(title=f"{result.variant}{over}: {result.sizes.told}{', replayed' if result.replayed else ''}")
    made.caption = _legend(result)
    made.add_column("contender")
    columns = _CACHED if result.cached else _COLUMNS
    for column in columns:
        made.add_column(column, justify="right")
    made.add_column("note")
    ours = result.rows[0]
    for row in result.rows:
        cells = []
        for its, ms, rate, share, best in zip(
            PASSES, row.took, result.speeds(row), result.shares(row), ours.took, strict=True
        ):
            ratio = None if ms is None or best is None else ms / best
            figures = (cell(rate, ".2f" if result.cached else ".0f"), cell(share, ".0f"), cell(ratio, ".2f"))
            cells += [result.mark(row.name, its) + cell(ms, ".4f" if result.cached else ".3f"), *figures]
        cells += [cell(row.forward_mib, ".1f"), cell(row.both_mib, ".1f")]
        note = row.note or (targets.told(result.kernels) if row is ours else "")
        made.add_row(row.name, *cells[: len(columns)], note)
    return made


def _legend(result: Result) -> str | None:
    """The meaning of stars and percentages, if there are any."""
    told, (beside, _) = [], result.ceiling
    speeds = [f"{rate:.0f}" for rate in result.ceiling if rate is not None]
    if result.cached:
        told = ["TB/s: of the keys and values that are seen"]
        told += [] if beside is None else [f"%: of a copy in the same turns, {beside:.2f} TB/s"]
    elif speeds:
        told = [f"%: of a large matrix product in the same turns, {' and '.join(speeds)} TFLOP/s"]
        if any(share and share > 100 for row in result.rows for share in result.shares(row)):
            told.append("above 100: visible keys without weight are not visited")
    if any(result.mark(row.name, its) for row in result.rows for its in PASSES):
        told.append("*: what a call takes")
    return "; ".join(told) or None


def summary(results: Sequence[Result]) -> str:
    """The geometric mean over calls of the fastest peer's time divided by ours, for each pass; "" without peers."""
    told = []
    for i, its in enumerate(PASSES):
        ratios = []
        for result in results:
            ours, *others = ((row.name, row.took[i]) for row in result.rows)
            peers = [ms for name, ms in others if ms is not None and name not in targets.TARGETS]
            ratios += [min(peers) / ours[1]] if peers and ours[1] else []
        if ratios:
            told.append(f"{its} {statistics.geometric_mean(ratios):.2f} ({len(ratios)} call{'s' * (len(ratios) > 1)})")
    return f"the fastest peer's time by ours, geometric mean: {', '.join(told)}" if told else ""


def cell(value: float | None, style: str) -> str:
    """A figure of a table; "" if it was not measured."""
    return "" if value is None else f"{value:{style}}"


def document(machine: Machine, results: Sequence[Result]) -> str:
    """The results as JSON."""
    found = {"machine": dataclasses.asdict(machine), "results": [dataclasses.asdict(result) for result in results]}
    return json.dumps(found, indent=1) + "\n"


def read(text: str) -> tuple[Machine, list[Result]]:
    """The results that a document holds."""
    found = json.loads(text)
    return Machine(**found["machine"]), [_result(**one) for one in found["results"]]


def _result(
    sizes: dict[str, Any], rows: Sequence[dict[str, Any]], ceiling: Sequence[float | None] = (None, None), **more: Any
) -> Result:
    forward, backward = ceiling
    return Result(sizes=Sizes(**sizes), rows=tuple(Row(**row) for row in rows), ceiling=(forward, backward), **more)
