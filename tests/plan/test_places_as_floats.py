"""Distances of positions in kernels: floats that steps compute once, along the side that runs down their tiles."""

from __future__ import annotations

import pytest

from attnforge.language import spec
from attnforge.plan import plan
from attnforge.source import resources

MOVED = {
    "q": ("q_at, k_at", "moved(q_pos[:, None], k_pos[None, :], k_start)"),
    "k": ("k_at, q_at", "moved(k_pos[:, None], q_pos[None, :], q_first)"),
}


def planned(name: str) -> plan.Plan:
    path = resources.variants()[name]
    return plan.build(spec.load(path, terms=resources.terms_for(path)))


@pytest.mark.parametrize("name", ["alibi", "bloom", "kerple", "mpt"])
def test_steps_make_floats_of_positions_once(name):
    made = planned(name)
    for terms in (made.by_query, made.by_key):
        first, *others = terms.loads("step")
        assert (first.target, first.value) == MOVED[terms.own]
        assert first.target not in {other.target for other in others}


def test_scores_tell_distances_by_them():
    made = planned("alibi")
    (score,) = made.by_query.score
    assert score.value == "score - in_slopes * tl.abs(q_at - k_at)"
    # a distance is finite, so slopes computed from it are not guarded
    assert not made.by_query.guarded


@pytest.mark.parametrize("name", ["shaw", "dilated_window", "t5_decoder"])
def test_where_no_float_is_made_of_a_distance_there_are_none(name):
    made = planned(name)
    for terms in (made.by_query, made.by_key):
        assert not any(terms.places()) and "moved" not in terms.helpers
