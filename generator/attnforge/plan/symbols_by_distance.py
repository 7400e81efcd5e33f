"""The meaning of names of what kernels read by distance: rows of the glossary."""

from __future__ import annotations

from collections.abc import Iterator

from .plan import Plan


def read(plan: Plan) -> Iterator[tuple[str, str]]:
    """Names that kernels have for it."""
    values = plan.by_distance.values if plan.by_distance else None
    for part in values.parts if values else ():
        yield (
            f"{part.name}, {part.name}_ptr",
            "part of the scores by the distance from key to query: a row for each head; distance 0 is at the pointer",
        )
        yield f"{part.name}_row", "where the head's row begins, there and in other tensors by distance"
        for slope in part.slopes:
            yield f"{slope.name}, {slope.name}_ptr", f"{slope.meaning}, likewise"
    for entries in values.entries if values else ():
        name, partial = entries.name, entries.partial
        yield f"{partial.entries}_ptr, {partial.entries}", f"index of the entry that {name} is, likewise"
        yield f"{partial.steps}_ptr, {partial.steps}", "how often that index has changed, up to each distance"


def evaluated(plan: Plan) -> Iterator[tuple[str, str]]:
    """Names of by_distance.py that kernels.py does not have."""
    yield from read(plan)
    yield from summed(plan)
    yield "distance", "how far a key is before a query"
    yield "first, last", "the first distance, and the one after the last"
    yield "place", "index of a distance of the head"
    yield "value", "what is stored for a distance"
    yield "entry", "index of the entry that is read at a distance"


def summed(plan: Plan) -> Iterator[tuple[str, str]]:
    """Names that kernels for Hopper GPUs have besides."""
    parts = plan.hopper.by_distance if plan.hopper else None
    for one in parts.learned if parts else ():
        yield f"{one.sums}_ptr, {one.sums}", "sums of dS, likewise"
    for part in parts.values.parts if parts else ():
        yield f"{part.name}_place", "index of a distance there: from position 0 of the other side to the first own row"
