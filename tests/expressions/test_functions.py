"""The record of each function is complete and consistent; kernels are tested together with the printers."""

from __future__ import annotations

import inspect
import itertools
import math
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from attnforge.explain import values
from attnforge.expressions.calculus import FLAT, derivative
from attnforge.expressions.evaluation import evaluate
from attnforge.expressions.folding import constant, fold
from attnforge.expressions.functions import FUNCTIONS, Function
from attnforge.expressions.parser import WORDS, Scope, parse
from attnforge.expressions.tree import SCORE, Node
from attnforge.language.names import wrong_keyword
from attnforge.plan import finite
from attnforge.printing import javascript, mathml, printers
from attnforge.source import suggestions
from attnforge.source.errors import Location, Problems

TEMPLATES = Path(__file__).parents[2] / "templates"
OTHER = Node("option", (), "y", "float")
NUMBERS = (-math.inf, -1e30, -900.0, -2.5, -1.0, -0.4, -1e-9, 0.0, 1e-20, 0.7, 3.0, 90.0, 1e30, math.inf, math.nan)
CLOSE = {"rel": 1e-14, "abs": 0.0, "nan_ok": True}

every = pytest.mark.parametrize(("name", "function"), FUNCTIONS.items(), ids=list(FUNCTIONS))


def node(name: str, *args: Node) -> Node:
    """A call of a function; by default its arguments are the score and another number."""
    return Node(name, args or (SCORE, OTHER)[: FUNCTIONS[name].count or 2])


def number(value: float) -> Node:
    return Node("num", (), value, "int" if isinstance(value, int) else "float")


def read(text: str) -> tuple[Node | None, list[str]]:
    """The tree of a score, and its mistakes."""
    problems = Problems()
    found = parse(text, Scope("score", {}, {}), lambda offset: Location("x", 1, offset + 1), problems)
    return found, [problem.message for problem in problems]


def leaf(n: Node) -> str:
    return str(n.value)


@every
def test_it_is_a_word_that_takes_its_arguments(name: str, function: Function) -> None:
    count = function.count or 2
    assert function.meaning and len(set(function.arguments.split(", "))) >= count
    assert read(f"{name}({', '.join(['score'] * count)})")[0] == Node(name, (SCORE,) * count)
    wanted = "2 or more arguments" if function.count is None else "1 argument"
    assert read(f"{name}()")[1] == [f"{name} takes {wanted}, got 0"]
    assert (
        read(f"{name}({', '.join(['k < q'] * count)})")[1]
        == [f"expected a number, got a condition: {name} takes numbers"] * count
    )
    assert name in WORDS and wrong_keyword(name)
    assert name not in suggestions._FUNCTIONS


@every
def test_its_value_is_one_of_a_tensor(name: str, function: Function) -> None:
    for args in itertools.product(NUMBERS, repeat=function.count or 2):
        if len(args) > 1 and any(map(math.isnan, args)):
            continue  # Python's own min and max depend on the order
        got, env = function.value(*args), dict(zip(("score", "y"), args, strict=False))
        tensors = {key: torch.tensor(x, dtype=torch.float64) for key, x in env.items()}
        text = printers.torch(node(name), leaf)
        want = eval(text, {"torch": torch, "dtype": torch.float64}, tensors).item()
        assert got == pytest.approx(want, **CLOSE), args
        assert evaluate(node(name), env) == pytest.approx(got, **CLOSE), args
        assert values.evaluate(node(name), {key: np.array([x]) for key, x in env.items()})[0] == pytest.approx(
            got, **CLOSE
        ), args
        if all(map(math.isfinite, args)) and math.isfinite(got):
            literals = node(name, *map(number, args))
            assert constant(literals) == got and fold(literals).value == got


@every
def test_its_text_of_python_numbers_gives_its_value(name: str, function: Function) -> None:
    length = Node("var", (), "k_len", "int")
    text = printers.torch(node(name, *(length, number(3.5))[: function.count or 2]), leaf)
    assert printers.is_scalar(node(name, length, length))
    got = eval(text, {"torch": torch, "math": math, "dtype": torch.float64, "k_len": 5})
    # not a tensor: torch computes no gradient for one on the CPU beside others on a GPU
    assert isinstance(got, int | float)
    assert float(got) == pytest.approx(function.value(*(5, 3.5)[: function.count or 2]), **CLOSE)


@every
def test_its_kind_tells_what_it_makes_of_whole_numbers_and_slopes(name: str, function: Function) -> None:
    whole = read(f"{name}({', '.join(['q', 'k'][: function.count or 2])})")[0]
    assert whole is not None and (whole.type == "int") == (function.kind == "choice")
    assert (function.slope is None) == (name in FLAT) == (function.kind == "flat")
    if function.slope:
        assert len(inspect.signature(function.slope).parameters) == 1 + 2 * (function.count or 2)


@every
def test_it_is_finite_where_it_says(name: str, function: Function) -> None:
    places = [x for x in NUMBERS if math.isfinite(x)]
    slope = derivative(node(name), SCORE)
    found = []
    for args in itertools.product(places, repeat=function.count or 2):
        env = dict(zip(("score", "y"), args, strict=False))
        found += [evaluate(node(name), env), evaluate(slope, env)]
    assert all(map(math.isfinite, found)) == function.finite
    assert finite.tame(node(name, SCORE, SCORE) if function.count is None else node(name), {}) == function.finite


@every
def test_kernels_and_pages_have_what_it_is_printed_as(name: str, function: Function) -> None:
    helpers = (TEMPLATES / "portable" / "expressions.jinja").read_text()
    if function.triton.startswith("tl."):
        assert printers.triton_helpers([node(name)]) == ()
    else:
        assert f"def {function.triton}(" in helpers
        assert function.triton in WORDS  # so that no input can have this name
        assert printers.triton_helpers([node(name)]) == (function.triton,)
    assert f"{function.triton}(" in printers.triton(node(name), leaf, {})
    script = (TEMPLATES / "page" / "arithmetic.js.jinja").read_text()
    assert function.javascript.startswith("Math.") or re.search(rf"(const|function) {function.javascript}\b", script)
    assert f"{function.javascript}(" in javascript.javascript(node(name), leaf)


@every
def test_its_markup_is_whole_and_its_own(name: str, function: Function) -> None:
    markup = mathml.mathml(node(name), lambda n: "")
    assert "score" in "".join(ElementTree.fromstring(f"<math>{markup}</math>").itertext())
    others = [f.mathml for other, f in FUNCTIONS.items() if other != name]
    assert function.mathml and function.mathml not in others
