"""The inputs that generated suites draw, how they judge results, and how they report a fault."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from devices import INTERPRETER
from inner_run import failures
from random_specs import RandomSpec, suite, write

from attnforge.expressions import evaluation
from attnforge.expressions.tree import Node, Value
from attnforge.gpu import calls
from attnforge.language import spec
from attnforge.plan import plan, suite_cases
from attnforge.render import render
from attnforge.source import resources

pytestmark = pytest.mark.slow

# formulas that are numbers only inside the domain
INSIDE = "score:\n  - expr: 'sqrt(score - {low}) + sqrt({high} - score)'\n"
DOMAINS = {
    "both_limits": ("domain: {min: 0.5, max: 2}\n", 0.5, 2),
    "least": ("domain: {min: 0.1}\n", 0.1, 4.2),
    "most": ("domain: {max: -1}\n", -5.1, -1),
    "around_nothing": ("domain: {min: -1, max: 1}\nheads: equal\n", -1, 1),
    "turned_halves": ("domain: {min: 0.5, max: 2}\nrope: {layout: half}\n", 0.5, 2),
    "turned_neighbours": ("domain: {min: 0.5, max: 2}\nrope: {layout: interleaved, dims: 8}\nlayout: packed\n", 0.5, 2),
}


def made(name: str, text: str, folder: Path) -> ModuleType:
    """The suite of a spec."""
    write(RandomSpec(name, f"name: {name}\n{text}"), folder, far=True)
    return suite(folder, name)


@pytest.mark.parametrize("name", DOMAINS)
def test_scores_are_drawn_from_the_domain(name: str, tmp_path: Path) -> None:
    text, low, high = DOMAINS[name]
    module = made(name, text + INSIDE.format(low=low, high=high), tmp_path)
    for case in module.CASES:
        _, lse = module.checks.reference(**module.make_inputs(case), return_lse=True)
        assert not lse.isnan().any(), case
    path = tmp_path / f"{name}.yaml"
    sizes = calls.Sizes(2, 40, 40, 2, 2, 32, 32, "bf16")
    call = calls.make(plan.build(spec.load(path, terms=resources.terms_for(path))), sizes, "cpu")
    _, lse = module.checks.reference(*call.operands, **call.keywords, return_lse=True)
    assert not lse.isnan().any()


def test_a_domain_changes_the_suite_alone(tmp_path: Path) -> None:
    with_it, without = (tmp_path / "kept.yaml", tmp_path / "other" / "kept.yaml")
    without.parent.mkdir()
    without.write_text("name: kept\nscore: [softcap: {cap: 3.0}]\n")
    with_it.write_text(without.read_text() + "domain: {min: 1}\n")
    one, other = (render.render(spec.load(x, terms=resources.terms_for(x))) for x in (with_it, without))
    bodies = {name: [text.split('"""', 1)[1] for text in (one[name], other[name])] for name in one}
    assert {name for name, (a, b) in bodies.items() if a != b} == {"test_kept.py"}


def test_a_formula_of_some_scores_only(tmp_path: Path) -> None:
    score = "score: [expr: 'log(score)']\n"
    bare = made("bare_logarithm", score, tmp_path)
    with pytest.raises(RuntimeError, match=r"the formula is not defined .*domain: \{min"):
        bare.check(bare.SMALL)
    module = made("logarithm", score + "domain: {min: 0.1}\n", tmp_path)
    module.check(module.SMALL)
    module.test_scale(-0.5)


# correct kernels that a single yardstick rejected, by a narrow margin
UNLUCKY = {
    "states_of_tables": (
        "1+1+1+1+1+1+1+1x1+1+1+1+1+1+1+1-h2:2-d16:16-float32",
        """mask: [causal]
score:
  - bias
  - softcap: {cap: 3.0}
  - expr: "score * temp + tab[(q - k) % 7] + kvt[k % 5] * qb"
inputs:
  temp: {axes: [head], grad: true}
  tab: {axes: [7], grad: true}
  kvt: {axes: [5], grad: true}
  qb: {axes: [head, query], grad: true}
""",
    ),
    "steep_after_flat": (
        "1+1+1+1x70+70+70+70-h2:2-d40:24-float32",
        """heads: equal
score:
  - expr: "sigmoid(score) * 4"
  - expr: "2 * exp(tanh(score))"
""",
    ),
}


@pytest.mark.parametrize("name", UNLUCKY)
def test_right_kernels_are_accepted(name: str, tmp_path: Path) -> None:
    title, text = UNLUCKY[name]
    module = made(name, text, tmp_path)
    (case,) = (case for case in module.CASES if str(case) == title)
    module.check(case)


SQUARED_SUMS = """sink: true
score:
  - log_decay
  - expr: "score ** 2 / 8"
"""


def test_roundings_of_long_rows_are_drawn_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = made("squared_sums", SQUARED_SUMS, tmp_path)
    monkeypatch.setattr(module.checks, "LONG", 0)
    case = module.Case((128,), (2048,), 2, 1, 16, 16, torch.float32)
    module.VARIANT.check_far(case, monkeypatch)


def test_rows_without_keys_leave_the_yardstick_sane(tmp_path: Path) -> None:
    module = made("few_rows", "mask: [causal]\n", tmp_path)
    gold = torch.full((2, 4, 8), -torch.inf, dtype=torch.float64)
    gold[1, 2, 3] = 0.125
    # one row in 64 has a key, and its result is off by a hundredth
    off = gold * 1.01
    module.checks.accept(module.SMALL, "lse", off.half(), gold, [off.half()] * 9, scores=1e4)
    with pytest.raises(RuntimeError, match="too much to judge by"):
        module.checks.accept(module.SMALL, "lse", off.half(), gold, [(gold * 1.1).half()] * 9, scores=1e4)


def test_draws_that_were_lucky_are_followed_by_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = made("lucky", "mask: [causal]\n", tmp_path)
    checks, draws = module.checks, []

    def judged(case: Any, name: str, got: Any, gold: Any, lows: list[Any], scores: float, share: float = 1) -> None:
        draws.append(len(lows))
        if len(lows) < 33:
            raise checks.Near("unlucky")
        accept(case, name, got, gold, lows, scores, share)

    accept = checks.accept
    monkeypatch.setattr(checks, "accept", judged)
    module.check(module.SMALL)
    assert draws == [4, 9, 33, 33, 33, 33, 33]


@pytest.mark.parametrize(("factor", "near"), [(0.9, None), (1.5, True), (3.9, True), (4.5, False)])
def test_what_is_far_beyond_its_limit_is_wrong_at_once(factor: float, near: bool | None, tmp_path: Path) -> None:
    module = made("beyond", "mask: [causal]\n", tmp_path)
    gold = torch.ones(1, 2, 3, 4, dtype=torch.float64)
    limit = 2 * torch.finfo(torch.float32).eps + 5e-7  # the limit for exact draws
    got = (gold + factor * limit).float()
    given = module.SMALL, "out", got, gold, [gold.float()] * 9
    # above two thirds of a limit, a few yardsticks are not enough
    assert not module.checks.sure(*given, 0.0)
    assert module.checks.sure(module.SMALL, "out", (gold + 0.6 * limit).float(), gold, [gold.float()] * 4, 0.0)
    if near is None:
        module.checks.accept(*given)
        return
    with pytest.raises(AssertionError) as raised:
        module.checks.accept(*given)
    assert isinstance(raised.value, module.checks.Near) == near


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, str], tuple[object, int]]:
    """The cases for a spec's numbers, and how many values of terms were computed for them."""

    def cases(folder: Path, text: str) -> tuple[object, int]:
        count = 0

        def compiled(node: Node) -> Callable[[Mapping[str, object]], Value]:
            function = evaluation.compiled(node)

            def value(env: Mapping[str, object]) -> Value:
                nonlocal count
                count += 1
                return function(env)

            return value

        monkeypatch.setattr(suite_cases, "compiled", compiled)
        path = folder / "network.yaml"
        path.write_text(f"name: network\n{text}")
        return suite_cases.cases(spec.load(path, terms=resources.terms_for(path))), count

    return cases


def test_indices_lead_to_no_long_calls(tmp_path: Path, counted: Callable[[Path, str], tuple[object, int]]) -> None:
    """A network of ten units over distances: numbers that only index its units are compared with no position."""
    units = " + ".join(f"out[{n}] * max(inner[{n}] * log(abs(q - k) + 1), 0)" for n in range(10))
    inputs = "inputs: {inner: {axes: [10], grad: true}, out: {axes: [head, 10], grad: true}}\n"
    found, count = counted(tmp_path, f"score: [expr: 'score + {units}']\n{inputs}")
    assert found == () and count < 30_000


def test_many_numbers_lead_to_few_calls(tmp_path: Path, counted: Callable[[Path, str], tuple[object, int]]) -> None:
    """Thresholds of distances: the number of lengths that pairs of them lead to grows with the square of theirs."""
    steps = " + ".join(f"(out[{n}] if q - k > {n * n + 3} else 0)" for n in range(20))
    found, count = counted(tmp_path, f"score: [expr: 'score + {steps}']\ninputs: {{out: {{axes: [20]}}}}\n")
    assert found and count < 200_000


# specs that some tests of a suite do not suit: those that could take a correct package for a wrong one, the spec
UNUSUAL = {
    "sink_of_sums": ("without_keys", "sink: true\nmask: [causal]\nscore: [log_decay]\n"),
    "sums_that_count_twice": ("large_value", "mask: [causal]\nscore: [log_decay, log_decay]\n"),
    "sums_under_a_cap": (
        "large_value",
        "layout: packed\nmask: [causal]\nscore:\n  - log_decay\n  - softcap: {cap: 4.0}\n",
    ),
    "sums_both_ways": ("large_value", "score: [log_decay]\n"),
    "sums_of_little": (
        "large_value",
        """mask: [causal]
score: [expr: "score + sqrt(1000 + w[q]) - sqrt(1000 + w[k])"]
inputs: {w: {axes: [batch, token, head], scan: cumsum, min: -1, max: 0, grad: true}}
""",
    ),
    "own_key_dropped": ("dropout", 'layout: packed\ndropout: true\nmask: [expr: "k <= q - 3"]\n'),
    "nothing_to_drop": ("dropout", 'dropout: true\nmask: [expr: "k < q and k > q + 3"]\n'),
    "next_to_nothing_to_drop": ("dropout", 'dropout: true\nmask: [expr: "k == 1 and q == 2"]\n'),
    "zero_outside": ("visited", 'mask: [causal]\ndomain: {min: 0.5}\nscore: [expr: "sqrt(score - 0.5)"]\n'),
    "no_weight_far_away": (
        "visited",
        'mask:\n  - causal\n  - sliding_window: {size: 4096}\nscore: [expr: "score - abs(q - k)"]\n',
    ),
    "a_root": ("test_scale", 'domain: {min: 0.1}\nscore: [expr: "score ** 0.5"]\n'),
    "steep_squares": (
        "test_scale",
        """sink: true
score:
  - log_decay
  - expr: "score ** 2 / 8"
  - expr: "score + w[q] if k >= 2 * q + 32 else -score"
inputs: {w: {axes: [token], grad: true}}
""",
    ),
    "a_third_power": ("test_scale", 'heads: equal\nscore: [expr: "score ** 3 / 32"]\n'),
    "large_heads_that_turn": ("copy_no_tiles or float16", "rope: {layout: half, dims: 32}\n"),
    "learned_by_places": (
        "padding_is_neither_read",
        'mask: [causal]\nscore: [expr: "score + lift"]\ninputs: {lift: {axes: [head, query, key], grad: true}}\n',
    ),
    "as_many_entries_as_sequences": (
        "no_other_sequence",
        'score: [expr: "score + near[min(abs(q - k), 10)]"]\ninputs: {near: {axes: [11], grad: true}}\n',
    ),
    "as_many_entries_as_rows": (
        "no_other_sequence",
        'layout: packed\nscore: [expr: "score + t[min(abs(q - k), 21)]"]\ninputs: {t: {axes: [22], grad: true}}\n',
    ),
    "few_blocks": (
        "least_number",
        'score: [expr: "score + b0"]\ninputs: {b0: {axes: [head, "query // 16", "key // 16"]}}\n',
    ),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_no_false_alarm_for(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tests, text = UNUSUAL[name]
    write(RandomSpec(name, f"name: {name}\n{text}"), tmp_path, far=True)
    monkeypatch.setenv(INTERPRETER, "1")
    found = failures(tmp_path / name / f"test_{name}.py", "-k", tests)
    assert not found, found[0].longreprtext


# for some of these: the tests and the spec, code in the kernels and its replacement
STILL = {
    "what_rounding_left_of_sums": (
        *UNUSUAL["sums_under_a_cap"],
        ("(sums - rounded.to(tl.float64)).to(tl.float32)", "0.0 * rounded"),
    ),
    "weights_not_made_up_for": (*UNUSUAL["own_key_dropped"], ("[:, None] * rescale", "[:, None]")),
}


@pytest.mark.parametrize("name", STILL)
def test_a_fault_still_shows_in(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tests, text, (right, wrong) = STILL[name]
    write(RandomSpec(name, f"name: {name}\n{text}"), tmp_path, far=True)
    kernels = tmp_path / name / "kernels.py"
    whole = kernels.read_text()
    assert right in whole
    kernels.write_text(whole.replace(right, wrong))
    monkeypatch.setenv(INTERPRETER, "1")
    (failure,) = failures(tmp_path / name / f"test_{name}.py", "-k", f"({tests}) and not values")
    assert "AssertionError" in failure.longreprtext


def test_chance_rounds_to_the_neighbours_and_keeps_what_is_exact(tmp_path: Path) -> None:
    module = made("plain", "", tmp_path)
    ones, thirds = torch.ones(4000), torch.full((4000,), 3.0)
    with module.checks.Dithered(0):
        third, one, half, quotient, whole = (
            ones * (1 / 3),
            ones * 1,
            (ones * (1 / 3)).half(),
            ones / thirds,
            thirds / thirds,
        )
    eps = torch.finfo(torch.float32).eps
    lower, upper = third.unique().tolist()
    assert lower < 1 / 3 < upper and upper - lower == eps / 4
    # the nearer one is drawn more often in proportion, so that the mean is right
    assert abs(third.double().mean() - 1 / 3) < eps / 4 / 20
    assert (one == 1).all() and (whole == 1).all() and len(half.unique()) == 2
    # a quotient may be off by a few units in the last place
    assert 3 <= len(quotient.unique()) <= 5
    with module.checks.Dithered(1):  # in float64 they are smaller than its smallest normal numbers
        tiny = torch.linspace(-800, -650, 4000).exp()
    assert not tiny.any()


def test_a_failure_tells_case_numbers_and_place_in_few_lines(tmp_path: Path) -> None:
    write(RandomSpec("wrong", "name: wrong\nmask: [causal]\n"), tmp_path)
    kernels = tmp_path / "wrong" / "kernels.py"
    text = kernels.read_text()
    assert "dq * scale" in text
    kernels.write_text(text.replace("dq * scale", "dq"))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-c",
        os.devnull,
        f"--rootdir={tmp_path}",
        "-p",
        "no:cacheprovider",
    ]
    command += ["-k", "values", "wrong"]
    env = os.environ | {INTERPRETER: "1"}
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    failure = done.stdout[done.stdout.index("= FAILURES") : done.stdout.index("= short test summary")]
    assert re.search(r"AssertionError: [\dx+]+-h2:2-d16:16-float32: dq: error \S+, limit \S+\n", failure)
    assert re.search(r"at batch \d, row \d, head \d, column \d+: got \S+, expected \S+\n", failure)
    lines = failure[: failure.index("warnings summary") if "warnings summary" in failure else None].splitlines()
    assert len(lines) < 20
