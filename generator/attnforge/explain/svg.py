"""Draws a mask as a small SVG, the same on every machine: rectangles of pixels of one colour, and a legend."""

from __future__ import annotations

import html
from collections.abc import Iterator
from pathlib import Path

from .arrays import EMPTY, FULL, MIXED, SKIPPED, UNKNOWN, Mask, Raster, Tiling, raster
from .picture import BLUE, GREY, INK, ORANGE, PALE, QUIET, ROSE, borders, legend, number, square, ticks, visited

_LONGEST = 128  # pixels of the longer side: as many as a page shows, in a few thousand rectangles at most
_PLOT, _LEFT, _TOP = 480, 56, 20
_LEGEND, _WIDE, _LEAST = 566, 760, 300  # x of the legend, the picture's width, its least height


def svg(mask: Mask, tiling: Tiling, title: str) -> str:
    """The picture as the text of a file; the title is for readers who cannot see it."""
    scale = _PLOT / max(mask.q_len, mask.k_len)
    wide, tall = (mask.k_len * scale, mask.q_len * scale) if square(mask) else (_PLOT, _PLOT)
    height = max(round(tall) + _TOP + 50, _LEAST)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDE} {height}" width="{_WIDE}" height="{height}"'
        f' font-family="sans-serif" font-size="12" fill="{INK}">',
        f"<title>{html.escape(title)}</title>",
        f'<rect width="{_WIDE}" height="{height}" rx="6" fill="#ffffff"/>',
        f'<g transform="translate({_LEFT} {_TOP}) scale({_short(wide / mask.k_len)} {_short(tall / mask.q_len)})"'
        ' shape-rendering="crispEdges">',
        *_elements(mask, tiling),
        "</g>",
        f'<g transform="translate({_LEFT} {_TOP})" stroke="#ffffff" stroke-width="0.7" stroke-opacity="0.9">',
        *_grid(mask, tiling, wide, tall),
        "</g>",
        *_axes(mask, wide, tall),
        *_legend(tiling),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def drew(path: Path, name: str) -> bool:
    """True if a file holds the picture of a variant's mask."""
    with path.open(encoding="utf-8", errors="replace") as file:
        return f"<title>The mask of {html.escape(name)} for " in file.read(1000)


def _elements(mask: Mask, tiling: Tiling) -> Iterator[str]:
    """A path for each colour, over queries and keys; that of empty tiles is the background."""
    yield f'<path fill="{GREY}" d="M0 0h{mask.k_len}v{mask.q_len}h-{mask.k_len}z"/>'
    drawn = raster(mask, tiling, _LONGEST)
    found: dict[str, list[str]] = {}
    for colour, (x, y, right, down) in _rectangles(_colours(drawn)):
        x, right = x * drawn.side, min(right * drawn.side, mask.k_len)
        y, down = y * drawn.side, min(down * drawn.side, mask.q_len)
        found.setdefault(colour, []).append(f"M{x} {y}h{right - x}v{down - y}h{x - right}z")
    for colour, pieces in sorted(found.items()):
        yield f'<path fill="{colour}" d="{"".join(pieces)}"/>'


def _colours(drawn: Raster) -> list[list[str]]:
    """The colour of each pixel, "" if nothing has to be drawn."""
    shades = [_between(PALE, ORANGE, share) for share in range(17)]

    def colour(share: int, state: int, visit: int) -> str:
        if state in (MIXED, UNKNOWN):
            return shades[share]
        return BLUE if state == FULL else "" if state == EMPTY and visit == SKIPPED else ROSE

    rows = zip(drawn.shares.tolist(), drawn.states.tolist(), drawn.visits.tolist(), strict=True)
    return [[colour(*pixel) for pixel in zip(*row, strict=True)] for row in rows]


def _rectangles(rows: list[list[str]]) -> Iterator[tuple[str, tuple[int, int, int, int]]]:
    """Runs of one colour, merged if they have the same ends in successive rows: the colour, x, y and the ends."""
    pending: dict[tuple[int, int, str], int] = {}
    for y, row in enumerate([*rows, []]):
        runs = set(_runs(row))
        for run, first in list(pending.items()):
            if run not in runs:
                yield run[2], (run[0], first, run[1], y)
                del pending[run]
        for run in _runs(row):
            pending.setdefault(run, y)


def _runs(row: list[str]) -> Iterator[tuple[int, int, str]]:
    start = 0
    for x in range(1, len(row) + 1):
        if x == len(row) or row[x] != row[start]:
            if row[start]:
                yield start, x, row[start]
            start = x


def _between(first: str, last: str, share: int) -> str:
    """A colour that is `share` sixteenths of the way from one to another."""
    ends = ([int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in (first, last))
    return "#" + "".join(f"{(a * (16 - share) + b * share + 8) // 16:02x}" for a, b in zip(*ends, strict=True))


def _grid(mask: Mask, tiling: Tiling, wide: float, tall: float) -> Iterator[str]:
    down = "".join(f"M{_short(x * wide / mask.k_len)} 0V{_short(tall)}" for x in borders(mask.k_len, tiling.size[1]))
    across = "".join(f"M0 {_short(y * tall / mask.q_len)}H{_short(wide)}" for y in borders(mask.q_len, tiling.size[0]))
    if down or across:
        yield f'<path d="{down}{across}"/>'


def _axes(mask: Mask, wide: float, tall: float) -> Iterator[str]:
    yield f'<g fill="{QUIET}" font-size="11" text-anchor="end">'
    for at in ticks(mask.q_len):
        yield f'<text x="{_LEFT - 5}" y="{_short(_TOP + at * tall / mask.q_len + 4)}">{number(at + mask.shift)}</text>'
    yield f'</g>\n<g fill="{QUIET}" font-size="11" text-anchor="middle">'
    for at in ticks(mask.k_len):
        yield f'<text x="{_short(_LEFT + at * wide / mask.k_len)}" y="{_short(_TOP + tall + 15)}">{number(at)}</text>'
    yield "</g>"
    x, y = _short(_LEFT + wide / 2), _short(_TOP + tall / 2)
    yield f'<text x="{x}" y="{_short(_TOP + tall + 36)}" text-anchor="middle">position of the key, k</text>'
    side = f'<text transform="translate(14 {y}) rotate(-90)" text-anchor="middle">'
    yield f"{side}position of the query, q</text>"


def _legend(tiling: Tiling) -> Iterator[str]:
    y = _TOP + 12
    title = f"Tiles of {tiling.size[0]} × {tiling.size[1]}"
    yield f'<text x="{_LEGEND}" y="{y}" font-size="13" font-weight="bold">{title}</text>'
    for entry in legend(tiling):
        y += 38
        width = 20 / len(entry.colours)
        for i, colour in enumerate(entry.colours):
            place = f'x="{_short(_LEGEND + i * width)}" y="{y - 12}" width="{_short(width)}" height="20"'
            yield f'<rect {place} fill="{colour}"/>'
        yield f'<text x="{_LEGEND + 28}" y="{y - 2}">{entry.name}</text>'
        yield f'<text x="{_WIDE - 16}" y="{y - 2}" text-anchor="end">{number(entry.count)}</text>'
        yield f'<text x="{_LEGEND + 28}" y="{y + 12}" font-size="10.5" fill="{QUIET}">{entry.meaning}</text>'
    y += 54
    yield f'<text x="{_LEGEND}" y="{y}" font-size="22" font-weight="bold">{100 * tiling.saved:.1f} %</text>'
    yield f'<text x="{_LEGEND}" y="{y + 18}">of the work saved</text>'
    for i, line in enumerate(visited(tiling)):
        yield f'<text x="{_LEGEND}" y="{y + 36 + 16 * i}" font-size="10.5" fill="{QUIET}">{line}</text>'


def _short(value: float) -> str:
    """A number of few digits."""
    return f"{value:.5f}".rstrip("0").rstrip(".")
