"""Draws a mask as an image: its elements, the tiles over them, and which of those kernels visit."""

from __future__ import annotations

import importlib.util
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..source.messages import Refused
from .arrays import EMPTY, FULL, MIXED, SKIPPED, UNKNOWN, Mask, Tiling, power, raster

BLUE, ORANGE, PALE, ROSE, GREY = "#3b76af", "#e8862e", "#fbe7d0", "#f6d9dc", "#eceff3"
INK, QUIET = "#1f2933", "#616e7c"
_LONGEST = 1024  # pixels of the picture's longer side
_LINES = 32  # lines of the grid, at most, in one direction
_TICKS = 8
_WIDE, _TALL, _LEAST = 9.6, 7.4, 5.2  # width, greatest and least height in inches; wide masks are lower
_PLOT, _AROUND = 5.76, 1.924  # the mask's width, and the space above and below it, in inches


def needed(option: str) -> None:
    """Refuses an option that draws if matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise Refused(f"{option} needs matplotlib: pip install matplotlib")


@dataclass(frozen=True)
class Caption:
    """The labels around the picture."""

    name: str
    description: str
    formula: str
    notes: Sequence[str]


def write(path: Path, mask: Mask, tiling: Tiling, caption: Caption) -> None:
    """Writes the picture of a mask and its tiles as a PNG."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # the font that matplotlib includes, whatever else is installed
    with matplotlib.rc_context({"font.family": "DejaVu Sans", "text.color": INK, "axes.edgecolor": QUIET}):
        tall = min(_TALL, max(_LEAST, _PLOT * mask.q_len / mask.k_len + _AROUND)) if square(mask) else _TALL
        figure = Figure(figsize=(_WIDE, tall), dpi=150, facecolor="white")
        FigureCanvasAgg(figure)
        axes = figure.add_axes((0.085, _up(figure, 0.115), _PLOT / _WIDE, (tall - _AROUND) / tall))
        _elements(axes, mask, tiling)
        axes.set_aspect("equal" if square(mask) else "auto", anchor="NW")
        _axes(axes, mask, tiling.size)
        _words(figure, mask, caption)
        _legend(figure, tiling)
        figure.savefig(path, format="png", metadata={"Software": None})


def _elements(axes: Any, mask: Mask, tiling: Tiling) -> None:
    shift = mask.shift
    extent = (0, mask.k_len, mask.q_len + shift, shift)
    axes.imshow(pixels(mask, tiling), extent=extent, interpolation="nearest", aspect="auto")


def pixels(mask: Mask, tiling: Tiling) -> Any:
    """The colours of the picture, one pixel for each element or for a square of them: rows, keys, RGB from 0 to 1."""
    import numpy as np
    from matplotlib.colors import to_rgb

    drawn = raster(mask, tiling, _LONGEST)
    blue, orange, pale, rose, grey = (np.array(to_rgb(c), np.float32) for c in (BLUE, ORANGE, PALE, ROSE, GREY))
    mixed = pale + (orange - pale) * (drawn.shares[..., None] / 16)
    plain = np.where(
        (drawn.states == FULL)[..., None], blue, np.where((drawn.visits == SKIPPED)[..., None], grey, rose)
    )
    return np.where(((drawn.states == MIXED) | (drawn.states == UNKNOWN))[..., None], mixed, plain)


@dataclass(frozen=True)
class Entry:
    """A line of the legend: a state of tiles, in its colours, and how many are in it."""

    colours: tuple[str, ...]
    name: str
    meaning: str
    count: int


def legend(tiling: Tiling) -> list[Entry]:
    """The legend of the colours."""
    entries = [
        Entry((BLUE,), "full", "every pair is visible", tiling.count(FULL)),
        Entry((ORANGE, PALE), "mixed", "visible and hidden pairs", tiling.count(MIXED)),
        Entry((GREY,), "empty", "no pair is visible", tiling.count(EMPTY) - tiling.vain),
    ]
    if tiling.vain:
        entries.append(Entry((ROSE,), "empty, yet visited", "only the elements can tell", tiling.vain))
    if tiling.count(UNKNOWN):
        entries.append(Entry((ORANGE, PALE), "visited", "too large to look into", tiling.count(UNKNOWN)))
    return entries


def visited(tiling: Tiling) -> list[str]:
    """Counts of visited tiles, with separate ones for kernels that visit other tiles than the picture shows."""
    (_, shown), *others = tiling.kernels
    lines = [f"{number(shown.visited)} of {number(shown.total)} tiles are visited"]
    return lines + [f"{who} {number(one.visited)}: {100 * one.saved:.1f} % saved" for who, one in others]


def borders(length: int, side: int) -> range:
    """Places of lines between tiles along an axis; of many tiles only every second, fourth, ... border gets one."""
    every = side * power(-(-length // (side * _LINES)))
    return range(every, length, every)


def ticks(length: int) -> range:
    """Places of numbers along an axis."""
    return range(0, length + 1, power(-(-length // _TICKS)))


def square(mask: Mask) -> bool:
    """True if elements are drawn as squares: a long decoding step has few queries, its elements need not be."""
    return 1 / 3 <= mask.k_len / mask.q_len <= 3


def _axes(axes: Any, mask: Mask, size: tuple[int, int]) -> None:
    shift = mask.shift
    for axis, length, side, first in ((axes.yaxis, mask.q_len, size[0], shift), (axes.xaxis, mask.k_len, size[1], 0)):
        lines = [first + at for at in borders(length, side)]
        draw = axes.axhline if axis is axes.yaxis else axes.axvline
        for at in lines:
            draw(at, color="white", linewidth=0.7 if len(lines) <= _LINES // 2 else 0.45, alpha=0.9)
        places = [first + at for at in ticks(length)]
        axis.set_ticks(places, [number(at) for at in places])
    axes.tick_params(labelsize=8.5, colors=QUIET, length=3)
    axes.set_xlabel("position of the key, k", fontsize=10, color=INK, labelpad=6)
    axes.set_ylabel("position of the query, q", fontsize=10, color=INK, labelpad=6)
    for spine in axes.spines.values():
        spine.set_linewidth(0.8)


def _down(figure: Any, y: float) -> float:
    """A height, given for the tallest picture, at the same distance from the top of a lower one."""
    return 1 - (1 - y) * _TALL / float(figure.get_figheight())


def _up(figure: Any, y: float) -> float:
    """The same, at the same distance from the bottom."""
    return y * _TALL / float(figure.get_figheight())


def _words(figure: Any, mask: Mask, caption: Caption) -> None:
    figure.text(0.03, _down(figure, 0.955), _plain(caption.name), fontsize=16, fontweight="bold")
    lengths = f"{number(mask.q_len)} queries, {number(mask.k_len)} keys"
    figure.text(0.97, _down(figure, 0.958), lengths, fontsize=11, color=QUIET, ha="right")
    description = textwrap.shorten(caption.description, 110, placeholder=" ...")
    figure.text(0.03, _down(figure, 0.918), _plain(description), fontsize=10, color=QUIET)
    for i, line in enumerate(_lines(caption.formula, 95, 2)):
        figure.text(0.03, _down(figure, 0.888 - 0.024 * i), _plain(line), fontsize=9, family="DejaVu Sans Mono")
    if caption.notes:
        lines = _lines(f"Sample: {'; '.join(caption.notes)}.", 130, 2)
        for i, line in enumerate(lines):
            y = _up(figure, 0.017 + 0.022 * (len(lines) - 1 - i))
            figure.text(0.03, y, _plain(line), fontsize=8.5, color=QUIET)


def _lines(text: str, width: int, most: int) -> list[str]:
    lines = textwrap.wrap(text, width)
    return (
        lines
        if len(lines) <= most
        else [*lines[: most - 1], textwrap.shorten(lines[most - 1], width - 4, placeholder="") + " ..."]
    )


def _legend(figure: Any, tiling: Tiling) -> None:
    from matplotlib.patches import Rectangle

    x, y, box = 0.725, 0.835, _up(figure, 0.034)

    def write(x: float, y: float, text: str, **style: Any) -> None:
        figure.text(x, _down(figure, y), text, **style)

    write(x, y, f"Tiles of {tiling.size[0]} × {tiling.size[1]}", fontsize=11, fontweight="bold")
    for entry in legend(tiling):
        y -= 0.066
        corner = (x, _down(figure, y))
        for i, colour in enumerate(entry.colours):
            width = 0.026 / len(entry.colours)
            place = (x + i * width, corner[1])
            figure.add_artist(Rectangle(place, width, box, facecolor=colour, edgecolor="none"))
        figure.add_artist(Rectangle(corner, 0.026, box, fill=False, edgecolor="#9aa5b1", linewidth=0.6))
        write(x + 0.036, y + 0.019, entry.name, fontsize=10)
        write(x + 0.036, y - 0.003, entry.meaning, fontsize=8, color=QUIET)
        write(0.97, y + 0.019, number(entry.count), fontsize=10, ha="right")
    write(x, y - 0.1, f"{100 * tiling.saved:.1f} %", fontsize=22, fontweight="bold")
    write(x, y - 0.13, "of the work saved", fontsize=10)
    for line in visited(tiling):
        y -= 0.028
        write(x, y - 0.13, line, fontsize=8.5, color=QUIET)


def number(value: int) -> str:
    """A number as pictures show it, with its thousands separated."""
    return f"{value:,}".replace(",", "\u2009").replace("-", "\u2212")


def _plain(text: str) -> str:
    """Text that matplotlib does not read as mathematics."""
    return text.replace("$", r"\$")
