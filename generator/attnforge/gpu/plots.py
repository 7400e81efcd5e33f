"""Plots the results of `bench`: speed and memory by length, with a row of panels for each variant and head size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..explain.picture import BLUE, INK, QUIET
from . import calls
from .results import OURS, Machine, Result, Row

_COLOURS = ("#e8862e", "#5b9f6b", "#b4545c", "#8a6fb0", "#8c7a5b", "#d38fb5", "#7f8892", "#b7ac3b", "#45a3b5",
            "#4d6a3f", "#a1552b")  # fmt: skip
_WIDE, _TALL = 4.2, 3.1  # inches of a panel
_MEMORY = "memory beside inputs and outputs, MiB"
_PANELS: dict[str, Callable[[Result, Row], float | None]] = {
    "forward, TFLOP/s": lambda result, row: None if result.cached else result.speeds(row)[0],
    "backward, TFLOP/s": lambda result, row: result.speeds(row)[1],
    "over a cache, TB/s": lambda result, row: result.speeds(row)[0] if result.cached else None,
    _MEMORY: lambda result, row: row.forward_mib if row.both_mib is None else row.both_mib,
}


def write(path: Path, machine: Machine, results: Sequence[Result]) -> None:
    """Writes the picture as a PNG."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    groups = grouped(results)
    shown = [x for x, value in _PANELS.items() if any(value(result, row) for result in results for row in result.rows)]
    names = list(dict.fromkeys(row.name for result in results for row in result.rows))
    colours = dict(zip((name for name in names if name != OURS), _COLOURS, strict=False)) | {OURS: BLUE}
    with matplotlib.rc_context({"font.family": "DejaVu Sans", "text.color": INK, "axes.edgecolor": QUIET}):
        tall = _TALL * len(groups) + 0.9
        figure = Figure(figsize=(_WIDE * max(len(shown), 2), tall), dpi=120, facecolor="white")
        FigureCanvasAgg(figure)
        panels = figure.subplots(len(groups), len(shown), squeeze=False)
        for across, (title, group) in zip(panels, groups.items(), strict=True):
            across[0].set_ylabel(title)
            for panel, heading in zip(across, shown, strict=True):
                _panel(panel, heading, group, colours)
        handles = {
            label: line for panel in panels.flat for line, label in zip(*panel.get_legend_handles_labels(), strict=True)
        }
        figure.legend(handles.values(), handles.keys(), loc="upper center", ncol=max(len(handles), 1), frameon=False)
        where = f"{machine.device}, torch {machine.torch}, triton {machine.triton}"
        figure.text(0.5, 0.01, where, ha="center", color=QUIET, size=8)
        figure.tight_layout(rect=(0, 0.02, 1, 1 - 0.35 / tall))
        figure.savefig(path, format="png", metadata={"Software": None})


def grouped(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Groups of results that differ only in length, by a title of what they have in common."""
    found: dict[str, list[Result]] = {}
    for one in results:
        s = one.sizes
        title = f"{one.variant}\n{s.dtype}, heads {calls.pair(s.heads, s.kv_heads)}, size {s.head_dim}"
        found.setdefault(title, []).append(one)
    return found


def _panel(panel: Any, heading: str, group: Sequence[Result], colours: dict[str, str]) -> None:
    lines: dict[str, list[tuple[int, float]]] = {}
    for one in sorted(group, key=lambda result: result.sizes.k_len):
        for row in one.rows:
            if value := _PANELS[heading](one, row):
                lines.setdefault(row.name, []).append((one.sizes.k_len, value))
    for name, points in lines.items():
        width = 2.2 if name == OURS else 1.3
        panel.plot(*zip(*points, strict=True), marker="o", ms=3.5, lw=width, color=colours[name], label=name)
    lengths = sorted({one.sizes.k_len for one in group})
    panel.set_xscale("log", base=2)
    panel.set_xticks(lengths, [str(length) for length in lengths], size=8)
    panel.minorticks_off()
    if heading == _MEMORY:
        panel.set_yscale("log")
    else:
        panel.set_ylim(bottom=0)
    panel.set_title(heading, size=10)
    panel.grid(color="#e3e7ec", lw=0.6)
    panel.spines[["top", "right"]].set_visible(False)
