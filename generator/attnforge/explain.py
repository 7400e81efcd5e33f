"""Tells in text what a variant computes: its formula, the derivatives, and the tiles that its mask needs."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from . import calculus, picture, plan, printers, walk
from .evaluation import evaluate
from .expression import Node
from .inputs import Axis
from .leaves import Side
from .printers import Text
from .spec import Spec

_SCORE = Node("var", (), "score", "float")
_MOST_TILES = 64


def text(spec: Spec, shape: tuple[int, int] | None = None) -> str:
    """The explanation; with a shape (q_len, k_len) also a picture of its tiles."""
    parts = [_face(spec), _formula(spec), _derivatives(spec), _keywords(spec), _ranges(spec)]
    if shape:
        parts.append(_picture(spec, *shape))
    return "\n\n".join(part for part in parts if part) + "\n"


def draw(spec: Spec, shape: tuple[int, int], png: Path | None, html: Path | None) -> None:
    """Writes the picture of the tiles as an image, and text and picture as one page, where asked for."""
    title = f"{spec.name}, {shape[0]} queries, {shape[1]} keys"
    try:
        rows = list(tiles(spec, *shape, tile_size(*shape)))
    except KeyError:  # the text says why
        rows = []
    if png and not rows:
        raise click.UsageError("--png: the tiles of this variant hang on what a call gives")
    if png and importlib.util.find_spec("matplotlib") is None:
        raise click.UsageError("--png needs matplotlib: pip install attnforge[plot]")
    if png:
        picture.image(png, title, rows)
    if html:
        html.write_text(picture.page(title, text(spec), rows), encoding="utf-8")


def source(node: Node) -> str:
    """An expression in the language of the specs."""
    return _print(node).text


def _face(spec: Spec) -> str:
    layout = "packed sequences" if spec.packed else "dense batches"
    heads = "grouped heads" if spec.grouped else "as many query heads as key heads"
    return f"{spec.name}: {spec.description}\n{spec.source}, {layout}, {heads}"


def _formula(spec: Spec) -> str:
    turned = ""
    if spec.rope:
        dims = f"{spec.rope.dims} components" if spec.rope.dims else "all components"
        turned = f"q and k turned by cos and sin, {spec.rope.layout} layout, {dims}"
    lines = [("score = scale * (q . k)", turned)]
    lines += [(f"score = {source(term.score)}", term.label) for term in spec.scores]
    lines += [(f"visible if {source(mask.keep)}", mask.label) for mask in spec.masks]
    lines += [("lse = logsumexp of score over the visible keys", ""), ("out = sum of exp(score - lse) * v", "")]
    return _section("Formula", lines)


def _derivatives(spec: Spec) -> str:
    learned = {i.name for i in spec.inputs if i.grad}
    lines: list[tuple[str, str]] = []
    for term in spec.scores:
        reads = [n for n in term.score.walk() if n == _SCORE or (n.op == "input" and n.value in learned)]
        leaves = list(dict.fromkeys(reads))
        found = [calculus.simplify(calculus.derivative(term.score, leaf)) for leaf in leaves]
        shared, found = calculus.share(found, "t")
        lines += [(f"{name} = {source(node)}", term.label) for name, node in shared]
        lines += [(f"d score / d {source(x)} = {source(d)}", term.label) for x, d in zip(leaves, found, strict=True)]
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
            full = _interval(span.full_lo, span.full_hi) if span.can_be_full else "nowhere"
            lines.append((f"  {_interval(span.lo, span.hi)}", f"without a mask in {full}"))
    return _section("Tiles", lines)


def _interval(lo: Node | None, hi: Node | None) -> str:
    return f"[{source(lo) if lo else 'first'}, {source(hi) if hi else 'end'})"


def _section(title: str, lines: Sequence[tuple[str, str]]) -> str:
    if not lines:
        return ""
    width = max((len(left) for left, note in lines if note and len(left) <= 60), default=0)
    return "\n".join([title, *(f"  {left:{width}}   # {note}" if note else f"  {left}" for left, note in lines)])


def tile_size(q_len: int, k_len: int) -> int:
    """The side of the tiles that a picture of so many queries and keys shows."""
    return 1 << ((max(q_len, k_len) - 1) // _MOST_TILES).bit_length()


def _picture(spec: Spec, q_len: int, k_len: int) -> str:
    size = tile_size(q_len, k_len)
    title = f"{q_len} queries, {k_len} keys, tiles of {size} x {size}"
    try:
        rows = ["".join(row) for row in tiles(spec, q_len, k_len, size)]
    except KeyError as missing:
        return f"{title}\n  not drawn: the tiles hang on {missing.args[0]}, which a call gives"
    counts = {mark: sum(row.count(mark) for row in rows) for mark in "#/."}
    legend = f"  # full {counts['#']}   / mixed {counts['/']}   . skipped {counts['.']}"
    return "\n".join([title, legend, *(f"  {row}" for row in rows)])


def tiles(spec: Spec, q_len: int, k_len: int, size: int) -> Iterator[list[str]]:
    """For each tile of queries what becomes of each tile of keys: full '#', mixed '/' or skipped '.'."""
    spans = walk.spans(spec, "k")
    for start in range(0, q_len, size):
        first = start + k_len - q_len
        last = min(start + size, q_len) - 1 + k_len - q_len
        env = {"q_first": first, "q_last": last, "q_len": q_len, "k_len": k_len}
        bounds = [tuple(_bound(n, env) for n in (s.lo, s.hi, s.full_lo, s.full_hi)) for s in spans]
        row = []
        for k_first in range(0, k_len, size):
            k_end = min(k_first + size, k_len)
            mark = "."
            for span, (lo, hi, full_lo, full_hi) in zip(spans, bounds, strict=True):
                if (lo is None or k_end > lo) and (hi is None or k_first < hi):
                    mark = "/" if mark == "." else mark
                inside = (full_lo is None or k_first >= full_lo) and (full_hi is None or k_end <= full_hi)
                if span.can_be_full and inside:
                    mark = "#"
            row.append(mark)
        yield row


def _bound(node: Node | None, env: dict[str, int]) -> float | None:
    return None if node is None else evaluate(node, env)


def _print(node: Node) -> Text:
    op, parts = node.op, [_print(a) for a in node.args]
    if op == "num":
        value = repr(node.value)
        return Text(value, printers.UNARY if value.startswith("-") else printers.ATOM)
    if op in printers.LEAVES:
        index = f"[{', '.join(p.text for p in parts)}]" if parts else ""
        return Text(f"{node.value}{index}", printers.ATOM)
    if op in printers.BINARY:
        level = printers.BINARY[op]
        return Text(f"{parts[0].within(level)} {op} {parts[1].within(level + 1)}", level)
    if op in printers.COMPARISONS:
        return Text(f"{parts[0].within(printers.SUM)} {op} {parts[1].within(printers.SUM)}", printers.COMPARE)
    if op in ("and", "or"):
        level = printers.AND if op == "and" else printers.OR
        return Text(f"{parts[0].within(level)} {op} {parts[1].within(level)}", level)
    if op == "**":
        return Text(f"{parts[0].within(printers.ATOM)} ** {parts[1].within(printers.UNARY)}", printers.POWER)
    if op == "neg":
        return Text("-" + parts[0].within(printers.UNARY), printers.UNARY)
    if op == "not":
        return Text("not " + parts[0].within(printers.NOT), printers.NOT)
    if op == "where":
        c, a, b = parts
        text = f"{a.within(printers.OR)} if {c.within(printers.OR)} else {b.within(printers.TERNARY)}"
        return Text(text, printers.TERNARY)
    return Text(f"{op}({', '.join(p.text for p in parts)})", printers.ATOM)
