"""A spec as the layers of a model would describe it: visible keys, size of the window, cap of the scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..expressions import shifts
from ..expressions.inputs import Input
from ..expressions.tree import Node
from . import patterns


@dataclass(frozen=True)
class LayerTerms:
    """The terms of a spec that layers describe, too."""

    seen: Literal["causal", "prefix", "all"]  # the keys that are visible unless another term hides them
    window: int | str | None = None  # how many past keys are visible, or the keyword for that
    cap: float | None = None
    bias: bool = False
    table: Input | None = None  # a bias of each head, whichever entry a pair reads
    reads_q: bool = False  # whether a term other than the prefix mask reads a query's position
    moves: bool = True  # whether no term changes if positions are counted from elsewhere


ALL_KEYS = LayerTerms("all")


def of(masks: Sequence[Node], scores: Sequence[Node], inputs: Sequence[Input]) -> LayerTerms:
    """The layer's terms among masks and score terms, which read these inputs."""
    by_token = {given.name for given in inputs if given.rows}
    prefixes = [keep for keep in masks if patterns.prefix(keep, inputs)]
    windows = (patterns.window(part) for keep in masks for part in patterns.joined(keep))
    caps = (cap for score in scores if isinstance(cap := patterns.softcap(score), int | float))
    biases = [score for score in scores if patterns.bias(score, inputs)]
    tables = [found for score in scores if (found := patterns.table(score, inputs))]
    others = (*(keep for keep in masks if keep not in prefixes), *scores)
    return LayerTerms(
        "causal" if any(map(patterns.hides_late_keys, masks)) else "prefix" if prefixes else "all",
        next((size for size in windows if isinstance(size, int | str)), None),
        next(caps, None),
        bool(biases),
        tables[0] if len(tables) == 1 else None,
        any(leaf == patterns.Q for node in others for leaf in node.walk()),
        # a bias comes from the layer, which has one for just its keys
        all(shifts.period(node, by_token) == 1 for node in (*masks, *scores) if node not in biases),
    )
