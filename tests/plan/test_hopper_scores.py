"""What kernels for Hopper GPUs make of a product of queries and keys: where the scale is applied, and slopes are."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnforge.language import spec
from attnforge.plan import plan
from attnforge.plan.families.hopper import Hopper
from attnforge.plan.parameters import Kernel
from attnforge.plan.statements import lines

GENERATED = Path(__file__).parents[2] / "generated"


def planned(scores: str) -> Hopper:
    text = f"name: mine\ndescription: A trial.\nmask: [causal]\nscore: [{scores}]\n"
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
        # whose scores stand beside tanh as well, or in it with something else
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


def test_slopes_meet_weights_before_a_product_is_issued() -> None:
    """Else weights and slopes are kept beside the one that is under way, in more registers than there are."""
    text = (GENERATED / "softcap" / "hopper_backward.py").read_text()
    step = text[text.index("def accumulate(") : text.index("return at + 1, dk, dv")]
    order = ["ds = ds * slope0", "dout_tile, dv, is_async=True)", "wait(1, [weighing])", "ds = ds * dp_less_delta"]
    places = [step.index(line) for line in order]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("name", "file", "mixed"),
    [
        ("softcap", "hopper_backward", "mixed=True"),
        ("softcap", "hopper_wide", "mixed=mixed"),
        ("causal", "hopper_backward", "mixed=mixed"),
    ],
)
def test_a_step_masks_all_tiles_where_a_branch_would_keep_slopes(name: str, file: str, mixed: str) -> None:
    assert mixed in (GENERATED / name / f"{file}.py").read_text()


@pytest.mark.parametrize(
    ("scores", "one_each"),
    [
        ("{expr: 'score * score'}", True),
        ("{expr: 'score * (q - k)'}", True),
        ("{expr: 'score * 2'}", False),
        ("{expr: 'score * q'}", False),
        ("{expr: 'score + sqrt(q - k)'}", False),
    ],
)
def test_so_it_does_wherever_each_score_has_a_slope_of_its_own(scores: str, one_each: bool) -> None:
    backward = planned(scores).backward
    assert backward and backward.terms.steep == one_each
    code = "\n".join(line for block in backward.kernel.blocks.values() for line in lines(block))
    assert ("mixed=True" in code, "mixed=mixed" in code) == (one_each, not one_each)
