"""Reports on runs: their losses as a table and as a picture, and how far apart they are."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean

from .trainer import Step

Runs = Mapping[str, Sequence[Step]]
COLOURS = {"ours": "#3b76af", "sdpa": "#e8862e"}


@dataclass(frozen=True)
class Difference:
    """How far apart the losses of two runs are, and how much a loss changes from one batch to the next."""

    mean: float
    largest: float
    noise: float

    @property
    def within_noise(self) -> bool:
        """Whether the curves agree."""
        return self.mean <= self.noise


def difference(one: Sequence[Step], other: Sequence[Step]) -> Difference:
    """The difference of two runs on the same batches, over the steps that both have."""
    apart = [abs(a.loss - b.loss) for a, b in zip(one, other, strict=False)]
    changes = [abs(a.loss - b.loss) for a, b in pairwise(other)]
    return Difference(fmean(apart), max(apart), fmean(changes))


def last(steps: Sequence[Step]) -> tuple[float, float]:
    """Loss and recall over the last tenth of a run."""
    part = steps[-max(1, len(steps) // 10) :]
    return fmean(step.loss for step in part), fmean(step.recall for step in part)


def write_table(path: Path, runs: Runs) -> None:
    """Writes a line of CSV for each step of each run."""
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["attention", "step", "loss", "recall", "seconds"])
        for name, steps in runs.items():
            rows.writerows([name, i, s.loss, s.recall, s.seconds] for i, s in enumerate(steps, 1))


def draw(path: Path, runs: Runs, bounds: tuple[float, float]) -> None:
    """Writes a PNG: the loss of all symbols, and that of the values that have to be looked up, with its bounds."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    everything, looked_up = figure.subplots(1, 2)
    for name, steps in runs.items():
        # the second curve is dashed and thin, so that the first shows through where both agree
        style = {"color": COLOURS[name], "label": name, "lw": 3.0 if name == "ours" else 1.2}
        style["ls"] = "-" if name == "ours" else "--"
        everything.plot([step.loss for step in steps], **style)
        looked_up.plot([step.recall for step in steps], **style)
    for bound, label, style in zip(bounds, ("nothing looked up", "best possible"), (":", "-."), strict=True):
        looked_up.axhline(bound, color="#616e7c", lw=1, ls=style, label=label)
    for axes, title in ((everything, "loss of all symbols"), (looked_up, "loss of values that have to be looked up")):
        axes.set(title=title, xlabel="step")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
    figure.savefig(path, metadata={"Software": None})
