"""Tells in text what a variant computes: its formula, the derivatives, and the tiles that its mask needs."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from . import calculus, picture, plan, samples, terminal, walk
from .elements import Mask, Tiling
from .expression import Node
from .inputs import Axis
from .leaves import Side
from .notation import source
from .page import Page
from .spec import Spec

_TILES = (16, 128)  # in a row of a picture, at least and at most


@dataclass(frozen=True)
class Drawn:
    """A variant's mask for so many queries and keys, and its tiles."""

    spec: Spec
    mask: Mask
    tiling: Tiling
    notes: tuple[str, ...]  # which sample was drawn of what a call gives

    def text(self) -> str:
        """The drawing for standard output."""
        return terminal.draw(self.mask, self.tiling, self.notes) + "\n"

    def png(self, path: Path) -> None:
        """Writes the picture as an image."""
        if importlib.util.find_spec("matplotlib") is None:
            raise click.UsageError("--png needs matplotlib: pip install attnforge[plot]")
        whole = walk.mask(self.spec)
        formula = f"visible if {source(whole)}" if whole else "every key is visible"
        caption = picture.Caption(self.spec.name, self.spec.description, formula, self.notes)
        picture.write(path, self.mask, self.tiling, caption)


def page(spec: Spec, q_len: int, k_len: int) -> str:
    """One self-contained page that tells and draws the same, and shows the kernels."""
    return Page(spec, q_len, k_len, tile_size(q_len, k_len)).write()


def draw(spec: Spec, q_len: int, k_len: int) -> Drawn:
    """The mask of a variant, with a sample of what only a call gives."""
    sample = samples.take(spec)
    mask = Mask(sample.mask, sample.spans, q_len, k_len, sample.numbers(q_len, k_len))
    side = tile_size(q_len, k_len)
    return Drawn(spec, mask, mask.tiles((side, side)), sample.told(q_len, k_len))


def tile_size(q_len: int, k_len: int) -> int:
    """The side of the tiles that a picture shows: 128, as kernels have it, where that gives a good number of them."""
    longest = max(q_len, k_len)
    fewest, most = (1 << (-(-longest // tiles) - 1).bit_length() for tiles in _TILES)
    return max(min(128, fewest), most)


def length(spec: Spec) -> int:
    """So many queries and keys that a picture shows what the numbers in the mask do, within reason."""
    whole = walk.mask(spec)
    numbers = [n.value for n in whole.walk() if n.op == "num"] if whole else []
    largest = max((n for n in numbers if isinstance(n, int)), default=0)
    return min(max(1024, 1 << (4 * largest - 1).bit_length()), 16384)


def text(spec: Spec) -> str:
    """The formula of a variant, the derivatives, the keywords and the spans of tiles."""
    parts = [_face(spec), _formula(spec), _derivatives(spec), _keywords(spec), _ranges(spec)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _face(spec: Spec) -> str:
    layout = "packed sequences" if spec.packed else "dense batches"
    heads = "grouped heads" if spec.grouped else "as many query heads as key heads"
    citation = f"\nfrom {spec.citation}" if spec.citation else ""
    return f"{spec.name}: {spec.description}{citation}\n{spec.source}, {layout}, {heads}"


def _formula(spec: Spec) -> str:
    turned = ""
    if spec.rope:
        dims = f"{spec.rope.dims} components" if spec.rope.dims else "all components"
        turned = f"q and k turned by cos and sin, {spec.rope.layout} layout, {dims}"
    lines = [("score = scale * (q . k)", turned)]
    lines += [(f"score = {source(term.score)}", term.label) for term in spec.scores]
    lines += [(f"visible if {source(mask.keep)}", mask.label) for mask in spec.masks]
    seen = "logsumexp of score over the visible keys"
    lines.append((f"lse = log(exp(sinks) + exp({seen}))" if spec.sink else f"lse = {seen}", ""))
    weight = "exp(score - lse)"
    lines.append((f"out = sum of {f'dropout({weight})' if spec.dropout else weight} * v", ""))
    return _section("Formula", lines)


def _derivatives(spec: Spec) -> str:
    learned = [given.name for given in spec.inputs if given.grad]
    lines: list[tuple[str, str]] = []
    for term in spec.scores:
        shared, slopes = calculus.slopes(term.score, learned)
        lines += [(f"{name} = {source(node)}", term.label) for name, node in shared]
        lines += [(f"d score / d {source(x)} = {source(slope)}", term.label) for x, slope in slopes]
    return _section("Derivatives of the score terms", lines)


def _keywords(spec: Spec) -> str:
    lines = []
    for a in plan.build(spec).arguments:
        axes = f" ({', '.join(map(_axis, a.axes))})" if a.axes else ""
        facts = {"learned": a.grad, "read as its cumulative sum": a.scan, "may be left out": a.optional or a.default}
        notes = [a.doc.rstrip("."), *(name for name, holds in facts.items() if holds)]
        lines.append((f"{a.name}: {a.dtype} {a.kind}{axes}", ", ".join(filter(None, notes))))
    return _section("Keywords", lines)


def _axis(axis: Axis) -> str:
    return str(axis.size) if axis.kind == "size" else axis.kind if axis.per == 1 else f"{axis.kind} // {axis.per}"


def _ranges(spec: Spec) -> str:
    if not spec.masks:
        return _section("Tiles", [("every key is visible: all tiles are full", "")])
    lines: list[tuple[str, str]] = []
    directions: tuple[tuple[Side, Side, str, str], ...] = (("k", "q", "keys", "queries"), ("q", "k", "queries", "keys"))
    for along, side, name, other in directions:
        lines.append((f"{name} that the {other} {side}_first to {side}_last need", ""))
        for span in walk.spans(spec, along):
            full = (
                f"without a mask in {_interval(span.full_lo, span.full_hi)}"
                if span.can_be_full
                else "never without a mask"
            )
            lines.append((f"  {_interval(span.lo, span.hi)}", full))
    return _section("Tiles", lines)


def _interval(lo: Node | None, hi: Node | None) -> str:
    return f"[{source(lo) if lo else 'first'}, {source(hi) if hi else 'end'})"


def _section(title: str, lines: Sequence[tuple[str, str]]) -> str:
    if not lines:
        return ""
    width = max((len(left) for left, note in lines if note and len(left) <= 60), default=0)
    return "\n".join([title, *(f"  {left:{width}}   # {note}" if note else f"  {left}" for left, note in lines)])
