"""A variant in text: its formula, the derivatives, the keywords, and the spans of tiles."""

from __future__ import annotations

import dataclasses

from ..expressions.tree import Node
from ..language.spec import Spec
from ..plan import plan, positions, tile_ranges
from ..plan.arguments import Argument
from ..plan.formula import Section, derivatives, formula, written
from ..plan.sides import Side
from ..plan.tile_states import TileStates
from ..tiling import ranges


def text(spec: Spec) -> str:
    """The description, formula, derivatives, keywords and tiles of a spec."""
    shown = (formula(spec), derivatives(spec), _keywords(spec), tiles(spec))
    parts = ["\n".join([section.title, *(f"  {row}" for row in section.rows)]) for section in shown if section.lines]
    return "\n\n".join([_face(spec), *parts]) + "\n"


def traits(spec: Spec) -> str:
    """Layout, heads, algorithm and head sizes: the differences among variants of the same formula."""
    layout = "packed sequences" if spec.packed else "dense batches"
    order = "" if spec.algorithm.backward else f", forward only, algorithm {spec.algorithm.name}"
    order += ", head sizes of q and k up to 576" if spec.latent else ""
    return f"{layout}, {'grouped heads' if spec.grouped else 'as many query heads as key heads'}{order}"


def identity(spec: Spec) -> object:
    """A value that is equal for specs of the same formula, whatever they and their inputs are called."""
    names = {given.name: f"input {i}" for i, given in enumerate(spec.inputs)}

    def renamed(node: Node) -> Node:
        value = names[str(node.value)] if node.op == "input" else node.value
        return Node(node.op, tuple(map(renamed, node.args)), value, node.type)

    return (
        spec.rope,
        frozenset(renamed(term.keep) for term in spec.masks),
        tuple(renamed(term.score) for term in spec.scores),
        spec.sink,
        spec.dropout,
        frozenset(dataclasses.replace(given, name=names[given.name], description="") for given in spec.inputs),
        frozenset(spec.options),
    )


def _face(spec: Spec) -> str:
    citation = f"\nfrom {spec.citation}" if spec.citation else ""
    return f"{spec.name}: {spec.description}{citation}\n{spec.source}, {traits(spec)}"


def meaning(argument: Argument) -> str:
    """A keyword's description, and how the variant uses it."""
    default = f"{argument.value} if left out" if argument.value else "may be left out" if argument.absent else ""
    return ", ".join(filter(None, (argument.doc.rstrip("."), *argument.facts, default)))


def _keywords(spec: Spec) -> Section:
    lines = []
    for a in plan.build(spec).arguments:
        axes = f" ({', '.join(map(str, a.axes))})" if a.axes else ""
        lines.append((f"{a.name}: {a.dtype} {a.kind}{axes}", meaning(a)))
    return Section("Keywords", tuple(lines))


def tiles(spec: Spec) -> Section:
    """The keys that a tile of queries needs, and the queries that a tile of keys needs."""
    if not spec.masks:
        return Section("Tiles", (("every key is visible: all tiles are full", ""),))
    lines: list[tuple[str, str]] = []
    directions: tuple[tuple[Side, Side, str, str], ...] = (("k", "q", "keys", "queries"), ("q", "k", "queries", "keys"))
    for along, side, name, other in directions:
        lines.append((f"{name} that the {other} {side}_first to {side}_last need", ""))
        for span in tile_ranges.spans(spec, along):
            full = (
                f"without a mask in {_interval(span.full_lo, span.full_hi)}"
                if span.can_be_full
                else "never without a mask"
            )
            lines.append((f"  {_interval(span.lo, span.hi)}", full))
    if told := telling(spec):
        lines.append((f"less the tiles that the values of {' and '.join(told)} rule out in a call", ""))
    lines += [(f"{term} is decided pair by pair: it rules out no tile", "") for term in _undecided(spec)]
    return Section("Tiles", tuple(lines))


def telling(spec: Spec) -> tuple[str, ...]:
    """The inputs whose values rule out tiles in a call."""
    return tuple(dict.fromkeys(access.input.name for access in TileStates(spec, "q").tellers))


def _undecided(spec: Spec) -> list[str]:
    """The masks that neither positions nor a call's values decide for whole tiles."""
    alone = {mask.label: dataclasses.replace(spec, masks=(mask,)) for mask in spec.masks}
    nothing = ranges.Span(None, None, None, None, False)
    return [
        term
        for term, one in alone.items()
        if not telling(one) and all(set(tile_ranges.spans(one, along)) == {nothing} for along in ("k", "q"))
    ]


def _interval(lo: Node | None, hi: Node | None) -> str:
    return f"[{written(_first_named(lo)) if lo else 'first'}, {written(_first_named(hi)) if hi else 'end'})"


def _first_named(node: Node) -> Node:
    """The expression with the position of the first query under the name that it has in intervals."""
    first = dataclasses.replace(positions.FIRST, value="first")
    return node.replaced(lambda n: first if n == positions.FIRST else None)
