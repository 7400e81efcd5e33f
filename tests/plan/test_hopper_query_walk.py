"""When workers of the backward kernel for Hopper GPUs loop over the queries of their own keys, and how they count."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnforge.language import spec
from attnforge.plan import plan
from attnforge.plan.families.hopper.backward import Backward

OWN = {
    "mask: [causal]": True,
    "mask: [causal, sliding_window: {size: 100}]": True,
    "mask: [causal]\nrope: {layout: half}": True,
    "mask: [causal]\nlayout: packed": True,
    "mask: [causal]\nheads: equal": False,  # with one query head per key head they gain as often as they lose
    "mask: [causal]\nscore: [softcap: {cap: 5.0}]": False,
    "mask: [expr: 'k // 8 == q % 8']": False,  # keys of any tile are seen from everywhere
    "mask: [causal, expr: group]\ninputs: {group: {axes: [batch, key], dtype: bool}}": False,  # tiles have given states
    "mask: [expr: 'k <= q + reach']\ninputs: {reach: {axes: [head], dtype: int}}": False,  # heads have different ranges
    "mask: [expr: 'q < end']\ninputs: {end: {axes: [batch, key], dtype: int}}": False,
    "": False,
}


def backward(text: str) -> Backward:
    found = plan.build(spec.loads(f"name: mine\n{text}\n", Path(), shown="mine.yaml")).hopper
    assert found and found.backward
    return found.backward


@pytest.mark.parametrize("text", OWN)
def test_workers_have_ranges_where_their_keys_alone_tell_them(text: str) -> None:
    walk = backward(text).walk
    assert walk.own == OWN[text]
    calls = "\n".join(line for block in walk.blocks for line in block.lines())
    assert ("pass_by" in calls) == OWN[text]


def test_stages_have_no_sign_where_nothing_takes_registers() -> None:
    def signed(text: str) -> bool:
        return not any("uint32" in line for block in backward(text).kernel.blocks["stage"] for line in block.lines())

    assert not signed("") and not signed("layout: packed")
    assert signed("mask: [causal]") and signed("score: [softcap: {cap: 5.0}]")
