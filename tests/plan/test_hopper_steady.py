"""Kernels for Hopper GPUs whose rows keep the reference of their weights: which scores are certain to be finite."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnforge.language import spec
from attnforge.plan.conditions import at_itself
from attnforge.plan.families.hopper.steady_rows import may_hide

INPUTS = {
    "slope": "{axes: [head]}",
    "bias": "{axes: [key]}",
    "hidden": "{axes: [head]}",
    "table": "{axes: [head, 33]}",
    "pairs": "{axes: [batch, head, query, key]}",
    "decay": "{axes: [batch, token, head], scan: cumsum, max: 0}",
}


@pytest.mark.parametrize(
    ("score", "itself", "anywhere"),
    [
        ("30 * tanh(score / 30)", True, True),
        ("score - slope * abs(q - k)", True, True),
        ("score + (decay[q] - decay[k])", True, False),
        ("score * sigmoid(score)", True, True),
        ("score + bias", False, False),
        ("score + pairs", False, False),
        ("score + table[clamp(q - k, 0, 32)]", False, False),
        ("score - log(q - k)", False, False),
        ("score / slope", False, False),
        ("score - 2.5e38 * (1.0 if q == k else 0.0)", False, False),
        ("score if q > k else hidden", False, False),
        ("score + (hidden if q == k else 0.0)", False, False),
    ],
)
def test_scores_that_cannot_hide_a_key_are_known(score: str, itself: bool, anywhere: bool) -> None:
    """For the key at a query's own position, and for any key."""
    read = "".join(f"\n  {name}: {axes}" for name, axes in INPUTS.items() if name in score)
    text = f'name: mine\nmask: [causal]\nscore: [{{expr: "{score}"}}]\n' + (f"inputs:{read}\n" if read else "")
    found = spec.loads(text, Path(), shown="mine.yaml")
    (term,) = found.scores
    assert may_hide(at_itself(term.score), found.inputs) != itself
    assert may_hide(term.score, found.inputs) != anywhere
