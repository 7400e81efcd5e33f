"""Which variants with inputs of their own have a backward pass for Hopper GPUs, and from what length on it is used."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnforge.language import spec
from attnforge.plan import plan, tiles
from attnforge.plan.plan import Plan
from attnforge.plan.statements import lines
from attnforge.render import render
from attnforge.source import resources

HEADS, TABLE = "[head]", "[head, 9]"
BY_HEAD = 'score: [{expr: "score + x"}]'
LOOKED_UP = 'score: [{expr: "score + x[clamp(q - k, 0, 8)]"}]'
DECAYS = 'score: [{expr: "score + x[q] - x[k]"}]'
MASKED = 'mask: [{expr: "x[q] > x[k]"}]'


def planned(terms: str, axes: str, *more: str) -> Plan:
    facts = ", ".join((f"axes: {axes}", "description: a number", *more))
    text = f"name: mine\ndescription: A trial.\n{terms}\ninputs:\n  x: {{{facts}}}\n"
    return plan.build(spec.loads(text, Path(), shown="mine.yaml"))


@pytest.mark.parametrize(
    ("terms", "axes", "more", "has"),
    [
        (BY_HEAD, HEADS, (), True),
        (BY_HEAD, HEADS, ("grad: true",), True),
        (LOOKED_UP, TABLE, ("grad: true",), True),
        (LOOKED_UP, "[batch, head, 9]", (), True),
        # calls want the gradient of an input that each token or batch entry learns
        (LOOKED_UP, "[batch, head, 9]", ("grad: true",), False),
        (BY_HEAD, "[batch, key]", ("grad: true",), False),
        (BY_HEAD, "[batch, key]", (), True),
        # floats for each query, which the steps load; those for each pair come in tiles, with keys in rows
        (BY_HEAD, "[batch, query]", (), False),
        (BY_HEAD, "[head, query, key]", (), True),
        (BY_HEAD, "[head, query, key]", ("grad: true",), True),
        (BY_HEAD, "[head, key, query]", (), False),
        (BY_HEAD, "[head, query, key // 2]", (), False),
        (BY_HEAD + "\ndropout: true", "[head, query, key]", (), False),
        # inputs that are only added to scores also enter the LSE, and may be learned
        (DECAYS, "[batch, token, head]", ("scan: cumsum",), True),
        (DECAYS, "[batch, token, head]", ("scan: cumsum", "grad: true"), True),
        (DECAYS, "[token]", ("grad: true",), True),
        (DECAYS + "\nsink: true", "[batch, token]", ("grad: true",), True),
        ('score: [{expr: "score + 2 * x[q] - x[k]"}]', "[batch, token]", ("grad: true",), False),
        ('score: [{expr: "score + x[q] - x[k]"}, {expr: "score * 2"}]', "[batch, token]", ("grad: true",), False),
        # twice on one side: the sum would have two slopes
        ('score: [{expr: "score + x[q] - x[k] - x[k]"}]', "[batch, token]", ("grad: true",), False),
        ('score: [{expr: "score + x[q] - x[k]"}, {expr: "score - x[k]"}]', "[batch, token]", ("grad: true",), False),
        ('score: [{expr: "score + x[q] - x[k] - x[k]"}]', "[batch, token]", (), True),
        (MASKED, "[batch, token]", (), True),
        # the score itself has to be added exactly once
        ('score: [{expr: "score + score + x[q] - x[k]"}]', "[batch, token]", (), False),
        ('score: [{expr: "x[q] - x[k]"}]', "[batch, token]", (), False),
        # the mask reads values that workers do not use otherwise
        (DECAYS + "\n" + MASKED, "[batch, token]", (), False),
    ],
)
def test_learned_inputs_may_be_given(terms: str, axes: str, more: tuple[str, ...], has: bool) -> None:
    hopper = planned(terms, axes, *more).hopper
    assert hopper
    assert (hopper.backward is not None) == has


@pytest.mark.parametrize("beside", ["", "relative_bias, ", "alibi, "])
def test_shared_memory_holds_no_values_of_pairs_beside_wide_heads(beside: str) -> None:
    found = planned(f'score: [{beside}{{expr: "score + x"}}]', "[head, query, key]", "grad: true")
    assert found.hopper and found.hopper.backward and found.hopper.wide is None
    for table in (found.tables.hopper, found.tables.faster):
        assert {its: [*sizes] for its, sizes in table.items()} == {its: [32, 64, 128] for its in tiles.PASSES}


@pytest.mark.parametrize(("terms", "other"), [("bias", True), ("alibi", True), ("relative_bias", False)])
def test_decoding_tells_which_target_has_the_bits_of_training(terms: str, other: bool, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"name: mine\nmask: [causal]\nscore: [{terms}]\nexports: [decode]\n")
    files = render.render(spec.load(path, terms=resources.terms_for(path)))
    said, done = " ".join(files["decode.py"].split()), files["decode_training.py"]
    assert ("ATTNFORGE_TARGET is portable or hopper for both" in said) != other
    assert ("with runtime.portable():" in done) == other


def test_inputs_that_raise_scores_add_their_gradients_up() -> None:
    found = planned(DECAYS, "[batch, token, head]", "grad: true")
    assert found.hopper and found.hopper.backward and found.hopper.wide is None
    assert [total.name for total in found.summed_at_once] == ["in_x_k_sum", "in_x_q_sum"]
    assert all(max(sizes) == 128 for sizes in (found.tables.hopper["backward"], found.tables.faster["backward"]))
    code = "\n".join(lines(block for blocks in found.hopper.backward.kernel.blocks.values() for block in blocks))
    assert (
        "lse -= in_x_q * LOG2E" in code
        and "k_added = -in_x_k * LOG2E" in code
        and "in_x_k_sum = gl.convert_layout(-tl.sum(key_sums, 1)" in code
        and "tl.sum(row_sums, 1), mask=(row < q_len) & (q_pos >= 0)" in code
    )


def test_products_begin_with_what_queries_and_keys_add() -> None:
    found = planned(DECAYS, "[batch, token, head]", "grad: true")
    assert found.hopper and found.least_scale == "1e-30"
    code = "\n".join(lines(block for blocks in found.hopper.forward.blocks.values() for block in blocks))
    assert "k_added = -in_x_k * (1 / scale)" in code and "q_added = in_x_q * (1 / scale)" in code
    assert "below = q_added[:, None] + gl.expand_dims(k_added_tile" in code
    assert "in_x_k_tile" not in code and "in_x_q[:, None]" not in code
    masked = planned(DECAYS + "\n" + MASKED, "[batch, token, head]")
    assert masked.hopper and not masked.hopper.added and masked.least_scale == ""


def test_given_inputs_add_no_gradients_up() -> None:
    learned = planned(BY_HEAD, HEADS, "grad: true")
    assert learned.by_query.learned
    assert learned.hopper and learned.hopper.backward
    assert not learned.hopper.backward.terms.learned
    assert "x_sum" not in str(learned.hopper.backward.kernel)


def test_calls_beside_them_take_it_from_other_lengths_on() -> None:
    given, learned = (planned(BY_HEAD, HEADS, *more).tables.faster["backward"] for more in ((), ("grad: true",)))
    assert given[128] == (512,)
    assert learned[128] == (1024,)
