"""Draws the visible pairs of a variant's mask and the tiles it needs: as text, as a picture, on a page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from ..expressions.folding import LARGEST
from ..expressions.parser import LARGEST_FLOAT
from ..language.spec import Spec
from ..plan import tile_ranges
from ..printing.spec_text import source
from ..source.errors import near
from . import picture, samples, svg, terminal
from .arrays import Mask, Tiling, power
from .page import Page

_TILES = (16, 128)  # the number in a row of a picture, at least and at most
_GUESSES = 16  # tokens in the drawing of a tree
_BLOCKS = 2**26  # blocks for which a value is evaluated, at most


@dataclass(frozen=True)
class Drawn:
    """A variant's mask for given numbers of queries and keys, and its tiles."""

    spec: Spec
    mask: Mask
    tiling: Tiling
    notes: tuple[str, ...]  # which samples stand in for what a call gives

    def text(self) -> str:
        """The drawing for standard output."""
        return terminal.draw(self.mask, self.tiling, self.notes) + "\n"

    def blocks(self) -> str:
        """The drawing for a page of text, whatever standard output is."""
        return terminal.blocks(self.mask, self.tiling, self.notes)

    def svg(self) -> str:
        """The picture as an SVG."""
        shown = f"{self.mask.q_len} queries and {self.mask.k_len} keys"
        return svg.svg(self.mask, self.tiling, f"The mask of {self.spec.name} for {shown}")

    def png(self, path: Path) -> None:
        """Writes the picture as an image."""
        picture.needed("--png")
        whole = tile_ranges.mask(self.spec)
        formula = f"visible if {source(whole)}" if whole else "every key is visible"
        caption = picture.Caption(self.spec.name, self.spec.description, formula, self.notes)
        picture.write(path, self.mask, self.tiling, caption)


def page(spec: Spec, q_len: int, k_len: int, given: samples.Given | None = None) -> str:
    """One self-contained page with the same text and drawing, and with the kernels."""
    return Page(spec, q_len, k_len, tile_size(q_len, k_len), given).write()


def draw(spec: Spec, q_len: int, k_len: int, given: samples.Given | None = None) -> Drawn:
    """The mask of a variant, with samples of the inputs that only a call gives."""
    sample = samples.take(spec, given)
    _feasible(sample, q_len, k_len)
    mask = Mask(sample.mask, sample.spans, sample.known, q_len, k_len, sample.numbers(q_len, k_len), sample.back)
    side = tile_size(q_len, k_len)
    return Drawn(spec, mask, mask.tiles((side, side)), sample.told(q_len, k_len))


def tile_size(q_len: int, k_len: int) -> int:
    """The side of the tiles in a picture: 128, as in kernels, if that gives a good number of them."""
    longest = max(q_len, k_len)
    fewest, most = (power(-(-longest // tiles)) for tiles in _TILES)
    return max(min(128, fewest), most)


def lengths(text: str) -> tuple[int, int]:
    """The numbers of queries and keys that the command line gives."""
    try:
        q_len, k_len = (int(part) for part in text.split(","))
    except ValueError:
        raise click.BadParameter(f"expected two lengths such as 256,512, got {text!r}", param_hint="--shape") from None
    if min(q_len, k_len) < 1 or max(q_len, k_len) > 1 << 20:
        raise click.BadParameter(f"expected lengths from 1 to 2**20, got {text}", param_hint="--shape")
    return q_len, k_len


def _feasible(sample: samples.Sample, q_len: int, k_len: int) -> None:
    """Refuses lengths with more blocks of pairs than can be evaluated, if kernels know a value for each block."""
    for note in sample.known.notes if sample.known else ():
        rows, keys = (note.steps.get(side, 1 << 20) for side in ("q", "k"))
        if -(-q_len // rows) * -(-k_len // keys) > _BLOCKS:
            side = math.isqrt(_BLOCKS)
            each = f"the mask has a value for each {rows} x {keys} pairs and at most {_BLOCKS} of them are looked at"
            most = f"expected lengths up to {side * rows},{side * keys}, got {q_len},{k_len}: {each}"
            raise click.BadParameter(most, param_hint="--shape")


def given(spec: Spec, head: int | None, numbers: Sequence[str]) -> samples.Given | None:
    """A head and numbers, each written NAME=N, as the command line gives them; None if it gives none."""
    sample = samples.take(spec)
    known = {p.name.lstrip("#"): p for p in sample.parameters if p.name != "h"}
    found: dict[str, float] = {}
    for text in numbers:
        name, _, value = (part.strip() for part in text.partition("="))
        if name not in known:
            takes = f"the mask of {spec.name} takes {', '.join(known) or 'no numbers'}"
            raise click.BadParameter(f"unknown number {name!r}{near(name, known)}: {takes}", param_hint="--with")
        if name in found:
            raise click.BadParameter(f"{name}: expected one number, got several", param_hint="--with")
        found[name] = _number(name, value, known[name])
    if head is not None and not any(place.startswith("head ") for place in sample.places):
        raise click.BadParameter(f"the mask of {spec.name} is the same for all query heads", param_hint="--head")
    return samples.Given(head or 0, found) if found or head is not None else None


def _number(name: str, text: str, parameter: samples.Parameter) -> float:
    whole = parameter.value.type == "int"
    most = LARGEST if whole else LARGEST_FLOAT
    low = -most if parameter.minimum is None else parameter.minimum
    high = most if parameter.maximum is None else parameter.maximum
    try:
        number = int(text) if whole else float(text)
    except ValueError:
        number = math.nan
    if not low <= number <= high:
        wanted = f"a {'whole ' if whole else ''}number from {low} to {high}"
        raise click.BadParameter(f"{name}: expected {wanted}, got {text!r}", param_hint="--with")
    return number


def shape(spec: Spec) -> tuple[int, int]:
    """Numbers of queries and keys with which a picture shows the effect of the mask's numbers, within reason."""
    whole = tile_ranges.mask(spec)
    nodes = list(whole.walk()) if whole else []
    largest = max((n.value for n in nodes if n.op == "num" and isinstance(n.value, int)), default=0)
    read = {n.value for n in nodes if n.op == "input"}
    # an input that says which queries each query sees is a tree of guesses: few of them, after older keys
    guesses = any(given.name in read and given.rows == ("query", "query") for given in spec.inputs)
    k_len = min(max(2 * _GUESSES if guesses else 1024, power(4 * largest)), 16384)
    return (_GUESSES if guesses else k_len), k_len
