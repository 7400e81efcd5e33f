"""Draws which tiles of a mask are skipped, full and mixed: as an image, or in a page that needs nothing else."""

from __future__ import annotations

import html
import itertools
from collections.abc import Sequence
from pathlib import Path

_COLOURS = {"#": "#2b6cb0", "/": "#ed8936", ".": "#edf2f7"}
_NAMES = {"#": "full", "/": "mixed", ".": "skipped"}

Rows = Sequence[Sequence[str]]


def page(title: str, explanation: str, rows: Rows) -> str:
    """One self-contained page: the explanation, and its tiles where there are any."""
    shown = html.escape(title)
    figure = ""
    if rows:
        legend = " ".join(f'<b style="color:{_COLOURS[m]}">&#9632;</b> {name}' for m, name in _NAMES.items())
        figure = f"<p>Queries downwards, keys to the right: {legend}</p>\n{_svg(rows)}\n"
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{shown}</title>\n'
        f'<body style="font-family:sans-serif;margin:2em">\n<h1>{shown}</h1>\n'
        f'<pre style="overflow-x:auto">{html.escape(explanation)}</pre>\n{figure}</body>\n</html>\n'
    )


def _svg(rows: Rows) -> str:
    parts = [f'<svg viewBox="0 0 {len(rows[0])} {len(rows)}" style="max-width:40em" shape-rendering="crispEdges">']
    for y, row in enumerate(rows):
        x = 0
        for mark, run in itertools.groupby(row):
            width = len(list(run))
            parts.append(f'<rect x="{x}" y="{y}" width="{width}" height="1" fill="{_COLOURS[mark]}"/>')
            x += width
    return "\n".join([*parts, "</svg>"])


def image(path: Path, title: str, rows: Rows) -> None:
    """Writes the tiles as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import colors, patches, pyplot

    numbers = [["./#".index(mark) for mark in row] for row in rows]
    marks = "./#"
    figure, axes = pyplot.subplots(figsize=(6, 6))
    axes.imshow(numbers, cmap=colors.ListedColormap([_COLOURS[m] for m in marks]), vmin=-0.5, vmax=2.5)
    axes.set(title=title, xlabel="tiles of keys", ylabel="tiles of queries")
    handles = [patches.Patch(facecolor=_COLOURS[m], edgecolor="grey", label=_NAMES[m]) for m in marks]
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1, 1))
    figure.savefig(path, dpi=150, bbox_inches="tight", metadata={"Software": None})
    pyplot.close(figure)
