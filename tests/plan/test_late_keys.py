"""Masks that evidently hide all keys after a query: kernels need no further bound on keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnforge.language import spec
from attnforge.language.patterns import hides_late_keys
from attnforge.plan import plan, visibility
from attnforge.plan.statements import lines


@pytest.mark.parametrize(
    ("mask", "hides"),
    [
        ("k <= q", True),
        ("q >= k", True),
        ("k < q", True),
        ("k < q + 1", True),
        ("q - k > -1", True),
        ("k + 3 <= q", True),
        ("k <= q and q - k < 9", True),
        ("k <= q + 1", False),
        ("k < q + 2", False),
        ("q <= k", False),
        ("abs(q - k) < 5", False),
        ("k <= q or k < 4", False),
        ("k <= q and k < 4 or k + 9 < q", True),
    ],
)
def test_masks_that_hide_late_keys_need_no_bound(mask: str, hides: bool) -> None:
    text = f'name: mine\ndescription: A trial.\nmask: [{{expr: "{mask}"}}]\n'
    found = plan.build(spec.loads(text, Path(), shown="mine.yaml"))
    assert [hides_late_keys(one.keep) for one in found.spec.masks] == [hides]
    assert visibility.key_bounds(found.by_query) == (() if hides else ("(k_pos < k_len)[None, :]",))


@pytest.mark.parametrize(("mask", "parts"), [("causal", True), ("causal, {sliding_window: {size: 9}}", False)])
def test_one_comparison_is_of_what_the_compiler_knows(mask: str, parts: bool) -> None:
    found = plan.build(spec.loads(f"name: mine\ndescription: A trial.\nmask: [{mask}]\n", Path(), shown="mine.yaml"))
    assert found.hopper and found.hopper.backward
    blocks = found.hopper.backward.kernel.blocks
    code = lines((*blocks["hidden"], *blocks["masked"]))
    assert any("near >= far" in line for line in code) == parts
    assert any("distance = " in line for line in code) == (not parts)
