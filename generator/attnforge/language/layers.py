"""What a spec says in the words of a model's layers: which keys they see, their window, the cap of their scores."""

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
    """The terms of a spec that layers speak of, too."""

    seen: Literal["causal", "prefix", "all"]  # the keys that no other term hides
    window: int | str | None = None  # how many keys of the past are visible, or the keyword that takes that
    cap: float | None = None
    bias: bool = False
    reads_q: bool = False  # whether some term that is not the prefix's asks for a query's position
    moves: bool = True  # whether all terms stay as they are where the count of positions begins elsewhere


ALL_KEYS = LayerTerms("all")


def of(masks: Sequence[Node], scores: Sequence[Node], inputs: Sequence[Input]) -> LayerTerms:
    """The layer's terms among masks and score terms, which read these inputs."""
    by_token = {given.name for given in inputs if given.rows}
    prefixes = [keep for keep in masks if patterns.prefix(keep, inputs)]
    windows = (patterns.window(part) for keep in masks for part in patterns.joined(keep))
    caps = (cap for score in scores if isinstance(cap := patterns.softcap(score), int | float))
    biases = [score for score in scores if patterns.bias(score, inputs)]
    others = (*(keep for keep in masks if keep not in prefixes), *scores)
    return LayerTerms(
        "causal" if any(map(patterns.hides_late_keys, masks)) else "prefix" if prefixes else "all",
        next((size for size in windows if isinstance(size, int | str)), None),
        next(caps, None),
        bool(biases),
        any(leaf == patterns.Q for node in others for leaf in node.walk()),
        # a bias is the layer's own, which has one for the keys that there are
        all(shifts.period(node, by_token) == 1 for node in (*masks, *scores) if node not in biases),
    )
