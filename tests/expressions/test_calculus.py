"""Derivatives compared with torch's autograd and finite differences; shared parts with the value of the whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnforge.expressions.calculus import derivative, simplify
from attnforge.expressions.functions import FUNCTIONS
from attnforge.expressions.sharing import share
from attnforge.expressions.tree import Node

SCORE = Node("var", value="score")
Y = Node("input", value="y")
CAP = Node("option", value="cap")
Q = Node("var", value="q", type="int")
K = Node("var", value="k", type="int")


def num(value: float) -> Node:
    return Node("num", value=value, type="int" if isinstance(value, int) else "float")


def call(op: str, *args: Node) -> Node:
    return Node(op, args, type="bool" if op in COMPARE else "float")


COMPARE = {"<", "<=", ">", ">=", "==", "!="}
TORCH: dict[str, Callable[..., torch.Tensor]] = {
    "+": torch.add,
    "-": torch.sub,
    "*": torch.mul,
    "/": torch.div,
    "//": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "%": torch.remainder,
    "**": torch.pow,
    "neg": torch.neg,
    "<": torch.lt,
    "<=": torch.le,
    ">": torch.gt,
    ">=": torch.ge,
    "==": torch.eq,
    "!=": torch.ne,
    "and": torch.logical_and,
    "or": torch.logical_or,
    "not": torch.logical_not,
    "where": torch.where,
    **{name: attrgetter(function.torch.removeprefix("torch."))(torch) for name, function in FUNCTIONS.items()},
}


def value(node: Node, env: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The value of the expression in torch, with literals as 0-d fp64 tensors."""
    if node.op == "num":
        assert node.value is not None and not isinstance(node.value, str)
        return torch.tensor(node.value, dtype=torch.bool if isinstance(node.value, bool) else torch.float64)
    if node.op in ("var", "option", "input", "local"):
        return env[str(node.value)]
    return TORCH[node.op](*(value(arg, env) for arg in node.args))


def environment(score: list[float], y: list[float]) -> dict[str, torch.Tensor]:
    made = {"score": torch.tensor(score), "y": torch.tensor(y), "cap": torch.tensor(3.0), "q": torch.tensor(7.0)}
    made["k"] = torch.tensor(4.0)
    return {name: tensor.double() for name, tensor in made.items()}


def autograd(node: Node, leaf: str, env: Mapping[str, torch.Tensor]) -> torch.Tensor:
    here = dict(env)
    here[leaf] = env[leaf].clone().requires_grad_()
    out = value(node, here)
    if not out.requires_grad:
        return torch.zeros_like(env[leaf])
    return torch.autograd.grad(out.expand_as(env[leaf]).sum(), here[leaf])[0]


t = call("tanh", call("/", SCORE, CAP))
TABLE = {
    "sum": call("-", call("+", SCORE, Y), call("*", SCORE, num(3))),
    "product": call("*", call("*", SCORE, Y), SCORE),
    "quotient": call("/", SCORE, Y),
    "reciprocal": call("/", num(2.0), SCORE),
    "softcap": call("*", CAP, t),
    "exp": call("exp", call("neg", call("*", SCORE, Y))),
    "log": call("log", call("+", call("*", SCORE, SCORE), num(1))),
    "sqrt": call("sqrt", call("abs", SCORE)),
    "sigmoid": call("sigmoid", call("*", SCORE, num(2))),
    "softplus": call("softplus", call("-", SCORE, Y)),
    "sin": call("sin", call("*", SCORE, SCORE)),
    "cos": call("cos", call("/", SCORE, Y)),
    "square": call("**", SCORE, num(2)),
    "cube": call("**", SCORE, num(3)),
    "inverse": call("**", SCORE, call("neg", num(2))),
    "to the zero": call("**", SCORE, num(0)),
    "root": call("**", call("abs", SCORE), num(0.5)),
    "power": call("**", call("+", call("abs", SCORE), num(0.5)), Y),
    "exponential": call("**", num(2.0), SCORE),
    "modulo": call("%", SCORE, Y),
    "floor": call("*", SCORE, call("floor", SCORE)),
    "floor division": call("*", SCORE, call("//", SCORE, Y)),
    "min": call("min", SCORE, call("*", Y, num(2))),
    "max": call("max", call("*", SCORE, SCORE), Y),
    "clamp": call("min", call("max", SCORE, num(-1.0)), num(1.0)),
    "where": call("where", call(">", SCORE, num(0)), call("*", SCORE, Y), call("exp", SCORE)),
    "positions": call("+", SCORE, call("*", Y, Node("abs", (Node("-", (Q, K), type="int"),), type="int"))),
    **{
        f"{name} by itself": call(name, *(call("+", call("*", SCORE, SCORE), num(0.5)), Y)[: function.count or 2])
        for name, function in FUNCTIONS.items()
    },
}
POINTS = environment([0.7, -0.4, 2.5, -3.25, 1.0], [1.5, -2.0, 0.3, 2.75, -0.8])


@pytest.mark.parametrize("leaf", [SCORE, Y], ids=["score", "y"])
@pytest.mark.parametrize("name", TABLE)
def test_agrees_with_autograd(name: str, leaf: Node) -> None:
    node = TABLE[name]
    expected = autograd(node, str(leaf.value), POINTS)
    for found in (derivative(node, leaf), simplify(derivative(node, leaf))):
        torch.testing.assert_close(value(found, POINTS).double().expand_as(expected), expected)


@pytest.mark.parametrize("name", sorted(TABLE.keys() - {"floor", "floor division", "floor by itself"}))
def test_agrees_with_finite_differences(name: str) -> None:
    node, step = TABLE[name], 1e-6
    up, down = (POINTS | {"score": POINTS["score"] + s} for s in (step, -step))
    expected = (value(node, up) - value(node, down)) / (2 * step)
    found = value(derivative(node, SCORE), POINTS).double().expand_as(expected)
    smooth = torch.ones_like(expected, dtype=torch.bool)
    smooth[-1] = name != "clamp"  # the last point is at clamp's corner
    torch.testing.assert_close(found[smooth], expected.expand_as(found)[smooth], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("node", "at", "expected"),
    [
        (call("max", SCORE, num(0.0)), 0.0, 0.5),
        (call("min", SCORE, num(0.0)), 0.0, 0.5),
        (call("max", SCORE, call("*", num(3.0), SCORE)), 0.0, 2.0),
        (call("abs", SCORE), 0.0, 0.0),
        (call("floor", SCORE), 0.5, 0.0),
        (call("**", SCORE, num(0)), 0.0, 0.0),
        (call("**", SCORE, num(1)), 0.0, 1.0),
        (call("**", SCORE, num(2)), 0.0, 0.0),
        (call("softplus", SCORE), 800.0, 1.0),
        (call("softplus", SCORE), -800.0, 0.0),
        (call("sigmoid", SCORE), 800.0, 0.0),
        (call("where", call(">", SCORE, num(0)), call("log", SCORE), num(0.0)), 0.0, 0.0),
        (call("where", call(">", SCORE, num(0)), call("sqrt", SCORE), num(0.0)), -1.0, 0.0),
        # the division by 0 is in the branch not taken
        (call("log", call("max", SCORE, num(0.0))), -1.0, 0.0),
        (call("sqrt", call("max", call("max", SCORE, num(0.0)), num(0.0))), -1.0, 0.0),
        (call("/", num(1.0), call("min", SCORE, num(0.0))), 2.0, 0.0),
        (call("**", call("max", SCORE, num(0.0)), num(-0.5)), -1.0, 0.0),
        (call("log", call("neg", call("where", call(">", SCORE, num(0)), num(0.0), SCORE))), 1.0, 0.0),
        (call("log", call("*", num(0.5), call("max", SCORE, num(0.0)))), -1.0, 0.0),
    ],
)
def test_kinks_and_ends(node: Node, at: float, expected: float) -> None:
    env = environment([at], [1.0])
    assert float(value(derivative(node, SCORE), env)) == expected


def test_same_node_is_same_leaf_and_another_index_is_not() -> None:
    at_q = Node("input", (Q,), "decay")
    node = call("-", call("+", SCORE, at_q), Node("input", (K,), "decay"))
    assert derivative(node, at_q) == num(1.0)
    assert derivative(node, Node("input", (K,), "decay")) == num(-1.0)
    assert derivative(node, Node("input", (), "decay")) == num(0.0)


def test_softcap_derivative_is_what_one_would_write() -> None:
    for cap in (CAP, num(50.0), num(30.0)):
        tanh = call("tanh", call("/", SCORE, cap))
        node = call("*", cap, tanh)
        slope = derivative(node, SCORE)
        assert slope == call("-", num(1.0), call("*", tanh, tanh))
        temporaries, (shared_value, shared_slope) = share([node, slope], "t")
        t0 = Node("local", value="t0")
        assert temporaries == [("t0", tanh)]
        assert shared_value == call("*", cap, t0)
        assert shared_slope == call("-", num(1.0), call("*", t0, t0))


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (call("+", SCORE, num(0.0)), SCORE),
        (call("*", num(1.0), SCORE), SCORE),
        (call("*", call("exp", SCORE), num(0.0)), num(0.0)),
        (call("neg", call("neg", SCORE)), SCORE),
        (call("+", SCORE, call("neg", Y)), call("-", SCORE, Y)),
        (call("*", call("neg", SCORE), call("neg", Y)), call("*", SCORE, Y)),
        (call("/", SCORE, num(1)), SCORE),
        (call("where", Node("num", value=True, type="bool"), SCORE, Y), SCORE),
        (call("where", call("<", SCORE, Y), Y, Y), Y),
        (call("*", num(8.0), call("*", SCORE, num(0.25))), call("*", num(2.0), SCORE)),
        (call("/", num(1.0), num(0.0)), call("/", num(1.0), num(0.0))),
    ],
)
def test_simplify(node: Node, expected: Node) -> None:
    assert simplify(node) == expected


def test_literal_factors_that_could_overflow_stay_apart() -> None:
    node = call("*", num(1e30), call("*", num(1e30), SCORE))
    assert simplify(node) == node


def test_shares_only_what_repeats_and_leaves_inputs_alone() -> None:
    index = Node("min", (Node("abs", (Node("-", (Q, K), type="int"),), type="int"), num(127)), type="int")
    table = Node("input", (index,), "table")
    inner = call("*", SCORE, num(2.0))
    outer = call("exp", inner)
    temporaries, roots = share([call("+", outer, table), call("*", outer, table), call("neg", SCORE)], "x")
    assert temporaries == [("x0", outer)]
    x0 = Node("local", value="x0")
    assert roots == [call("+", x0, table), call("*", x0, table), call("neg", SCORE)]


def test_a_shared_root_is_a_temporary() -> None:
    node = call("exp", SCORE)
    assert share([node, node], "x") == ([("x0", node)], [Node("local", value="x0")] * 2)
    assert share([node], "x") == ([], [node])
    assert share([SCORE, SCORE], "x") == ([], [SCORE, SCORE])


def test_deep_nesting_stays_small() -> None:
    node = SCORE
    for i in range(40):
        node = call("max", call("*", node, num(0.9)), num(-float(i)))
    # a slope around the choices appears in each branch, once for each factor that ties leave
    for slope, most in ((derivative(node, SCORE), 300), (derivative(call("log", node), SCORE), 800)):
        temporaries, _ = share([node, slope], "x")
        assert len(temporaries) < most


LEAVES = st.sampled_from([SCORE, Y, CAP, Q, num(2), num(-0.5), num(1.5)])


def deeper(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    unary = st.sampled_from(["neg", *(name for name, function in FUNCTIONS.items() if function.count == 1)])
    binary = st.sampled_from(["+", "-", "*", "/", "min", "max", "%", "//", "**"])
    return st.one_of(
        st.builds(call, unary, inner),
        st.builds(call, binary, inner, inner),
        st.builds(lambda x, n: call("**", x, num(n)), inner, st.integers(-3, 4)),
        st.builds(lambda op, a, b, x, y: call("where", call(op, a, b), x, y), st.sampled_from(sorted(COMPARE)),
                  inner, inner, inner, inner),
    )  # fmt: skip


NODES = st.recursive(LEAVES, deeper, max_leaves=8)
FLOATS = st.floats(-3, 3, allow_subnormal=False).map(lambda x: round(x, 3))


@settings(max_examples=400, deadline=None, derandomize=True)
@given(node=NODES, score=FLOATS, y=FLOATS)
def test_random_expressions(node: Node, score: float, y: float) -> None:
    env = environment([score], [y])
    whole = value(node, env)
    for leaf in (SCORE, Y):
        slope = derivative(node, leaf)
        expected = autograd(node, str(leaf.value), env)
        if not bool(expected.isfinite().all()) or bool(whole.isnan().any()):
            continue
        if expected.abs().max() > 1e8 or whole.nan_to_num(0, 0, 0).abs().max() > 1e8:
            continue
        for found in (slope, simplify(slope)):
            torch.testing.assert_close(value(found, env).double().expand_as(expected), expected, rtol=1e-6, atol=1e-6)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(nodes=st.lists(NODES, min_size=1, max_size=3), score=FLOATS, y=FLOATS)
def test_sharing_keeps_values(nodes: list[Node], score: float, y: float) -> None:
    nodes = nodes + [derivative(node, SCORE) for node in nodes]
    env = environment([score], [y])
    temporaries, rewritten = share(nodes, "tmp")
    bound = dict(env)
    for name, node in temporaries:
        bound[name] = value(node, bound)
    for before, after in zip(nodes, rewritten, strict=True):
        torch.testing.assert_close(value(after, bound), value(before, env), rtol=0, atol=0, equal_nan=True)
    # No part of the result occurs twice.
    parts: list[Node] = []
    for node in [made for _, made in temporaries] + rewritten:
        parts += [n for n in node.walk() if n.args and n.op != "input" and not (n.op == "neg" and not n.args[0].args)]
    assert len(parts) == len(set(map(repr, parts)))
