"""A spec -> the texts of attention over tokens that are divided among the ranks of a process group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..expressions.inputs import ROW_AXES, Axis
from ..language import parts
from ..language.spec import Spec
from ..plan import reach, running_sums, storage
from ..plan.arguments import Argument


@dataclass(frozen=True)
class Along:
    """An input's axes of queries and keys, each as its index from the end and the number of tokens per entry."""

    name: str
    query: tuple[int, int] | None
    key: tuple[int, int] | None


@dataclass(frozen=True)
class ContextParallel:
    """The texts that the module's template prints."""

    along: tuple[Along, ...]  # the inputs of which a rank passes its part
    placed: bool  # whether the positions of a part's queries matter
    behind: bool  # whether keys after a part's last query can be left out
    near: str | None  # (keys that a query sees before its own, the step in which earlier keys can be left out)
    numbers: tuple[str, ...]  # the call's numbers that `near` reads


def build(spec: Spec, arguments: Sequence[Argument]) -> ContextParallel:
    """Finds the arguments of a call that run along tokens; `arguments` are the plan's."""
    axes = {given.keyword or given.name: storage.of(spec).kept(given) for given in spec.inputs}
    along = (_along(a, axes.get(a.name, a.axes)) for a in arguments if a.kind == "tensor")
    behind = not any(parts.needs_later_keys(spec))
    seen = reach.build(spec)
    step = parts.early_keys(spec)
    # running sums start later without early keys
    near = behind and step and running_sums.differ(spec) and seen.known and seen.first_keys == "0"
    return ContextParallel(
        tuple(one for one in along if one.query or one.key),
        parts.asks_places(spec),
        behind,
        f"({seen.reach}, {step})" if near else None,
        seen.numbers if near else (),
    )


def _along(argument: Argument, axes: Sequence[Axis]) -> Along:
    kinds = [axis.kind for axis in axes]
    found: dict[str, tuple[int, int]] = {}
    for i, axis in enumerate(axes):
        # an input with an entry for each pair of keys is passed whole
        if axis.kind in ROW_AXES and not (axis.kind == "key" and kinds.count("key") > 1):
            found["query" if axis.kind == "query" else "key"] = i - len(axes), int(axis.per)
    return Along(argument.name, found.get("query"), found.get("key"))
