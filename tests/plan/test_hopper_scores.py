"""How kernels for Hopper GPUs treat a product of queries and keys: where the scale and the slopes are applied."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnforge.language import spec
from attnforge.plan import plan
from attnforge.plan.families.hopper.backward import Backward
from attnforge.plan.families.hopper.hopper import Hopper
from attnforge.plan.parameters import Kernel
from attnforge.plan.statements import lines

GENERATED = Path(__file__).parents[2] / "generated"


def planned(scores: str, masks: str = "causal") -> Hopper:
    text = f"name: mine\ndescription: A trial.\nmask: [{masks}]\nscore: [{scores}]\n"
    found = plan.build(spec.loads(text, Path(), shown="mine.yaml")).hopper
    assert found and found.backward
    return found


def scored(kernel: Kernel) -> list[str]:
    made = (line.partition("  #")[0] for line in lines(kernel.blocks["scored"]))
    return [line for line in made if line.startswith(("score =", "part"))]


@pytest.mark.parametrize(
    ("scores", "first"),
    [
        ("softcap: {cap: 30}", "score = tanh(score, scale / 30.0)"),
        ("{expr: 'tanh(score)'}", "score = tanh(score, scale)"),
        ("softcap: {cap: 30}, {expr: 'score + score * k'}", "score = 30.0 * tanh(score, scale / 30.0)"),
        # the score is used outside tanh as well, or inside it together with something else
        ("{expr: 'tanh(score) + score'}", "score = score * scale"),
        ("{expr: 'tanh(score + k)'}", "score = score * scale"),
        ("{expr: 'tanh(score) * tanh(score)'}", "score = score * scale"),
        ("{expr: 'score + k'}, {expr: 'tanh(score)'}", "score = score * scale"),
        ("{expr: 'exp(score)'}", "score = score * scale"),
    ],
)
def test_the_scale_is_a_factor_of_tanh_where_nothing_else_reads_the_product(scores: str, first: str) -> None:
    assert scored(planned(scores).forward)[0] == first


def test_the_backward_pass_scales_products_alike() -> None:
    found = planned("softcap: {cap: 30}")
    assert found.backward and found.wide
    for kernel in (found.backward.kernel, found.wide.kernel):
        assert scored(kernel)[0] == "part0 = tanh(score, scale / 30.0)"


def test_slopes_meet_weights_before_the_product_under_way_is_waited_for() -> None:
    """Otherwise weights and slopes stay live beside the result of that product, in more registers than there are."""
    text = (GENERATED / "softcap" / "hopper_backward.py").read_text()
    step = text[text.index("def accumulate(") : text.index("return at + 1, dk, dv")]
    order = [
        "ds = ds * slope0",
        "wait(0, [weighing])",
        "ds = ds * (dp - delta",
        ".store(ds)",
        "dout_tile, dv, is_async",
    ]
    places = [step.index(line) for line in order]
    assert places == sorted(places)


def masks_all(backward: Backward) -> bool:
    """Whether all tiles take the mask; otherwise it is under a branch."""
    code = "\n".join(line for block in backward.kernel.blocks.values() for line in lines(block))
    assert ("if mixed:" in code) == ("mixed=mixed" in code)
    assert "keep = " in code
    return "if mixed:" not in code


@pytest.mark.parametrize(
    ("scores", "one_each", "everywhere"),
    [
        ("", False, True),
        ("{expr: 'score * 2'}", False, True),
        ("{expr: 'score * score'}", True, True),
        ("{expr: 'score * (q - k)'}", True, True),
        ("{expr: 'score * q'}", False, False),
        ("{expr: 'score + sqrt(q + k)'}", False, False),
        ("{expr: 'score + sqrt(q - k)'}", False, True),  # read by distance
    ],
)
def test_all_tiles_take_one_comparison_where_registers_are_left_or_scores_have_slopes(
    scores: str, one_each: bool, everywhere: bool
) -> None:
    found = planned(scores)
    assert found.backward and found.wide
    assert found.backward.terms.steep == one_each
    assert masks_all(found.backward) == everywhere
    assert not masks_all(found.wide)


@pytest.mark.parametrize(
    ("masks", "single"),
    [
        ("{expr: 'q - k >= 2'}", True),
        ("causal, {sliding_window: {size: 64}}", False),
        ("{expr: 'q >= k and q < k + 5'}", False),
        ("{expr: 'abs(q - k) <= 4'}", False),
        ("{expr: 'k - q <= 4'}", False),  # keys after the last one have a comparison of their own
        ("{expr: 'q >= k or k < 4'}", False),
        ("{expr: 'q >= k and k % 2 == 0'}", False),
    ],
)
def test_a_mask_that_is_more_than_one_comparison_stands_under_a_branch(masks: str, single: bool) -> None:
    backward = planned("", masks).backward
    assert backward and masks_all(backward) == single
    steep = planned("softcap: {cap: 30}", masks).backward
    assert steep and masks_all(steep)


@pytest.mark.parametrize(
    ("masks", "scores", "branch", "hides"),
    [
        ("causal", "", False, "p = tl.where(keep, p, 0.0)"),
        ("{expr: 'abs(q - k) <= 4'}", "", True, 'score = tl.where(keep, score, float("-inf"))'),
        # terms of keys may add anything to scores that are hidden
        ("causal, {expr: 'k % 2 == 0'}", "alibi", True, "p = tl.where(keep, p, 0.0)"),
        ("causal, {sliding_window: {size: 64}}", "alibi", False, "p = tl.where(keep, p, 0.0)"),
    ],
)
def test_a_branch_stands_in_front_of_weights_where_nothing_is_added_to_scores(
    masks: str, scores: str, branch: bool, hides: str
) -> None:
    backward = planned(scores, masks).backward
    assert backward
    assert masks_all(backward) != branch
    blocks = backward.kernel.blocks
    there, nothing = ("hidden", "masked") if hides.startswith("score") else ("masked", "hidden")
    assert lines(blocks[nothing]) == []
    assert lines(blocks[there])[-1].strip() == hides
