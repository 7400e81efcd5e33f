"""Both printers compared with Python's own arithmetic: the torch text in fp64, the Triton text as kernels that run."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
import pytest
import torch

from attnforge.expressions import folding, whole_numbers
from attnforge.expressions.functions import FUNCTIONS
from attnforge.expressions.tree import Node, Type
from attnforge.printing import printers

MACROS = Path(__file__).parents[2] / "templates" / "portable"


def num(value: float | bool) -> Node:
    kind: Type = "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "float"
    return Node("num", (), value, kind)


def wrap(value: Node | float) -> Node:
    return value if isinstance(value, Node) else num(value)


def of(op: str, *args: Node | float) -> Node:
    """A node whose type follows from its operands, as the parser would set it."""
    nodes = tuple(map(wrap, args))
    kind: Type
    if op in {"<", "<=", ">", ">=", "==", "!=", "and", "or", "not"}:
        kind = "bool"
    elif op == "/" or op in printers.SMOOTH:
        kind = "float"
    elif op == "floor":
        kind = "int"
    else:
        kind = "float" if any(a.type == "float" for a in nodes[-2:]) else "int"
    return Node(op, nodes, None, kind)


Q, K, K_LEN = (Node("var", (), name, "int") for name in ("q", "k", "k_len"))
SCORE = Node("var", (), "score", "float")
FLAG = Node("input", (), "flag", "bool")
WINDOW = Node("option", (), "window", "int")
DISTANCE = of("-", Q, K)

VALUES: dict[str, list[Any]] = {
    "q": [-7, -3, -1, 0, 1, 2, 3, 9, 12, 1000],
    "k": [0, 2, 3, 7, 1, 0, 5, 2, 11, 12],
    "score": [-30.0, -1.7, -0.62, -1e-3, 0.0, 0.3, 0.63, 1.0, 4.5, 25.0],
    "flag": [True, False] * 5,
}
SCALARS = {"k_len": 1, "window": 4}

CASES: dict[str, Node] = {
    "int floor division": of("//", DISTANCE, 3),
    "int floor division by a negative": of("//", DISTANCE, -4),
    "int remainder": of("%", DISTANCE, 3),
    "int remainder of a negative divisor": of("%", DISTANCE, -4),
    "plain division of positions": of("//", K, 3),
    "plain remainder of positions": of("%", K, 3),
    "maximum of a negative": of("max", Q, of("neg", K)),
    "minimum of negatives": of("min", of("*", K, -3), of("max", of("-", 0, Q), of("neg", K))),
    "float floor division": of("//", SCORE, 0.75),
    "float remainder": of("%", SCORE, -0.75),
    "division of integers": of("/", DISTANCE, 3),
    "division by a length of one": of("/", Q, K_LEN),
    "logarithm of a length of one": of("+", of("log", K_LEN), SCORE),
    "right operand": of("-", Q, of("-", K, of("+", Q, 1))),
    "product of sums": of("*", of("+", SCORE, 1.5), of("-", SCORE, Q)),
    "negated sum": of("neg", of("+", Q, K)),
    "square": of("**", SCORE, 2),
    "square of a sum": of("**", of("+", SCORE, 1.0), 2),
    "fifth power": of("**", SCORE, 5),
    "inverse square": of("**", of("+", of("abs", SCORE), 1.0), Node("num", (), -2, "float")),
    "negated power": of("neg", of("**", SCORE, 2)),
    "power of a negation": of("**", of("neg", SCORE), 3),
    "root by power": of("**", of("abs", SCORE), 0.5),
    "power of positions": of("**", 0.9, of("+", SCORE, K)),
    "softcap": of("*", 50.0, of("tanh", of("/", SCORE, 50.0))),
    "softplus of a position": of("softplus", DISTANCE),
    "sine of a position": of("sin", Q),
    "root of a distance": of("sqrt", of("abs", DISTANCE)),
    "bucket": of("+", 2, of("floor", of("log", of("+", of("abs", DISTANCE), 1)))),
    "minimum of both": of("min", DISTANCE, WINDOW),
    "maximum with a constant": of("max", SCORE, 0),
    "clamp": of("min", of("max", DISTANCE, -2), 2),
    "choice": of("where", of("<", Q, K), SCORE, of("neg", SCORE)),
    "choice of constants": of("where", of("<", Q, K), 0.1, 0.2),
    "choice of an integer": of("*", of("where", of("<", Q, K), Q, 0.5), 3),
    "tenth of a position": of("*", Q, 0.1),
    "and, or": of("or", of("and", of("<=", K, Q), of("<", DISTANCE, WINDOW)), of("==", of("%", K, 2), 0)),
    "or inside and": of("and", of("or", of("<=", K, Q), FLAG), of("!=", K, 0)),
    "not": of("not", of("and", FLAG, of("<", K, 4))),
    "not of a comparison": of("not", of("<", K, 4)),
    "folded": of("*", SCORE, of("/", of("log", 8), of("log", 2.0))),
    "functions of a length": of("+", of("sigmoid", K_LEN), of("*", of("max", K_LEN, 5), SCORE)),
    **{name: of(name, *(SCORE, Q)[: function.count or 2]) for name, function in FUNCTIONS.items()},
    **{f"{name} of a length": of("*", of(name, K_LEN), SCORE) for name in sorted(printers.SMOOTH)},
}

LIMITS = {"window": (1, 2**28)}


def drawn(rng: random.Random, depth: int) -> Node:
    """A random integer expression of positions, lengths and literals."""
    if depth == 0:
        return rng.choice([Q, K, K, DISTANCE, of("-", K_LEN, Q), K_LEN, WINDOW, num(rng.choice((3, 46341, 2**28)))])
    a, b = drawn(rng, depth - 1), drawn(rng, rng.randrange(depth))
    by = rng.choice([num(rng.choice((2, 3, 7, 4096))), of("neg", 5), WINDOW, of("max", b, 1)])
    ways = [
        *[of(op, a, b) for op in ("+", "-", "*", "*", "min", "max")],
        *[of(op, a, by) for op in ("//", "%", "*")],
        *[of(op, a) for op in ("abs", "neg")],
        of("**", a, rng.choice((1, 2, 3))),
        of("*", of("//", a, WINDOW), WINDOW),
        of("max", a, of("neg", b)),
        of("where", of("<", a, b), b, a),
        of("where", of("not", of("==", of("%", a, 3), 0)), a, b),
    ]
    return rng.choice(ways)


def held(node: Node) -> bool:
    """Whether all steps fit into int64, as the parser ensures."""
    ranges = whole_numbers.Ranges(LIMITS)
    return all(ranges.within(n, whole_numbers.LONG) for n in node.walk() if n.type == "int")


def far_cases() -> dict[str, Node]:
    """Integer expressions of distant positions: what users write, and random ones, most of which exceed an int32."""
    square = of("**", DISTANCE, 2)
    found = {
        "square of a distance": square,
        "scaled square of a distance": of("*", square, 1e-6),
        "hash of positions": of("%", of("+", of("*", Q, 7919), of("*", K, 104729)), 3),
        "comparison of products": of("<", of("*", Q, 31), of("*", K, 37)),
        "eighth of eight positions": of("//", of("*", 8, Q), 8),
        "literal times a position": of("*", 2**28, K),
        "distance by a float": of("/", of("*", DISTANCE, DISTANCE), 7),
        "root of a product": of("sqrt", of("*", K, K_LEN)),
        "fourth power": Node("*", (Node("**", (DISTANCE, num(4)), None, "float"), num(1e-30)), None, "float"),
        "product of three": Node("*", (Node("*", (Q, of("*", K, K)), None, "float"), num(1e-12)), None, "float"),
    }
    rng, wanted = random.Random(0), 120
    while len(found) < wanted:
        node = drawn(rng, rng.choice((1, 2, 2, 3)))
        if held(node):
            found[f"random {len(found)}"] = node
    return found


FAR_CASES = far_cases()
_K = [0, 1, 2**28 - 1, 2**28 - 2, 46341, 2**27, 3, 50_000, 2**28 - 4096, 12345678, 7, 99_999_999]
FAR: dict[str, tuple[dict[str, list[Any]], dict[str, int]]] = {
    "far from the first key": (
        {"q": [2**28 - 1, 46342, 0, 2**28 - 1, 0, 2**28 - 3, 268_000_000, 1, 2**27, 100, 2**28 - 1, 4], "k": _K},
        {"k_len": 2**28, "window": 2**27 + 1},
    ),
    "far before the first key": (
        {"q": [q - 2**28 + 2**20 for q in _K], "k": [k % 2**20 for k in _K]},
        {"k_len": 2**20, "window": 11},
    ),
}
for _values, _ in FAR.values():
    _values |= {"score": [0.5] * 12, "flag": [True] * 12}


def evaluate(node: Node, env: Mapping[str, Any]) -> Any:
    """The value according to Python's own operators."""
    if node.op == "num":
        return node.value
    if node.op in printers.LEAVES:
        return env[str(node.value)]
    return folding.OPERATIONS[node.op](*(evaluate(a, env) for a in node.args))


def expected(node: Node, values: Mapping[str, list[Any]] = VALUES, scalars: Mapping[str, int] = SCALARS) -> list[Any]:
    rows = (dict(zip(values, row, strict=True)) | scalars for row in zip(*values.values(), strict=True))
    return [evaluate(node, row) for row in rows]


@pytest.mark.parametrize("case", CASES)
def test_torch_text_computes_what_python_computes(case: str) -> None:
    scope: dict[str, Any] = {"torch": torch, "math": math, "dtype": torch.float64} | SCALARS
    scope["_whole_floor"] = lambda x: torch.floor(x).long()
    for name, values in VALUES.items():
        scope[name] = torch.tensor(values, dtype=torch.float64 if name == "score" else None)
    text = printers.torch(CASES[case], lambda leaf: str(leaf.value))
    got = eval(text, scope)
    want = torch.tensor(expected(CASES[case]), dtype=torch.float64 if CASES[case].type == "float" else None)
    if CASES[case].type == "float":
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12, equal_nan=True)
        assert got.dtype == torch.float64, text
    else:
        assert got.tolist() == want.tolist(), text


def rendered_helpers(names: tuple[str, ...]) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(MACROS), undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    macros = environment.get_template("expressions.jinja").module
    return "\n\n".join(str(getattr(macros, name)()) for name in names)


def triton_text(node: Node) -> str:
    return printers.triton(node, lambda leaf: str(leaf.value), LIMITS)


def triton_module(cases: Mapping[str, Node]) -> str:
    """One kernel per case, and a main that prints what they compute as JSON."""
    lines = ["import json, sys, torch, triton", "import triton.language as tl", ""]
    lines.append(rendered_helpers(printers.triton_helpers(cases.values())))
    for index, node in enumerate(cases.values()):
        kind = "float32" if node.type == "float" else "int64"
        lines += [
            "@triton.jit",
            f"def case_{index}(q_ptr, k_ptr, score_ptr, flag_ptr, out_ptr, k_len, window, N: tl.constexpr):",
            "    at = tl.arange(0, 16)",
            *(f"    {name} = tl.load({name}_ptr + at, mask=at < N, other=1)" for name in ("q", "k", "score")),
            "    flag = tl.load(flag_ptr + at, mask=at < N, other=0) != 0",
            f"    tl.store(out_ptr + at, tl.cast({triton_text(node)}, tl.{kind}), mask=at < N)",
            "",
        ]
    return "\n".join(lines) + MAIN


MAIN = """
def main():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    values = json.load(open(sys.argv[1]))
    tensors = [torch.tensor(values[n], device=device).to(t) for n, t in
               [("q", torch.int32), ("k", torch.int32), ("score", torch.float32), ("flag", torch.int32)]]
    results = []
    for index, kind in enumerate(values["types"]):
        out = torch.zeros(len(values["q"]), device=device, dtype=torch.float32 if kind == "float" else torch.int64)
        globals()[f"case_{index}"][(1,)](*tensors, out, values["k_len"], values["window"], N=len(values["q"]))
        results.append(out.tolist())
    print(json.dumps(results))


if __name__ == "__main__":
    main()
"""


def computed(folder: Path, cases: Mapping[str, Node], values: Mapping[str, Any]) -> dict[str, list[float]]:
    """What the kernels compute, in a process of its own: the interpreter is chosen before triton is imported."""
    (folder / "cases.py").write_text(triton_module(cases))
    (folder / "values.json").write_text(json.dumps(values | {"types": [node.type for node in cases.values()]}))
    env = os.environ | ({} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"})
    command = [sys.executable, str(folder / "cases.py"), str(folder / "values.json")]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=env, timeout=300)
    assert done.returncode == 0, done.stderr
    return dict(zip(cases, json.loads(done.stdout), strict=True))


@pytest.fixture(scope="session")
def triton_results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    return computed(tmp_path_factory.mktemp("printers"), CASES, VALUES | SCALARS)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
@pytest.mark.parametrize("case", CASES)
def test_triton_text_computes_what_python_computes(case: str, triton_results: dict[str, list[float]]) -> None:
    want = torch.tensor([float(value) for value in expected(CASES[case])])
    got = torch.tensor(triton_results[case])
    text = triton_text(CASES[case])
    if CASES[case].type == "float":
        torch.testing.assert_close(got, want, rtol=3e-6, atol=3e-6, equal_nan=True, msg=text)
    else:
        assert got.tolist() == want.tolist(), text


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
def test_functions_of_kernels_are_right_to_a_few_units_in_the_last_place(tmp_path: Path) -> None:
    scores = [
        -math.inf,
        -1e4,
        -80,
        -1.75,
        -1.0,
        -0.625,
        -1e-3,
        -1e-20,
        0.0,
        1e-30,
        3e-8,
        0.3,
        1.25,
        25.0,
        1e4,
        math.inf,
    ]
    scores = torch.tensor(scores).double().tolist()  # rounded to float32
    values = {"q": [1] * 16, "k": [1] * 16, "score": scores, "flag": [True] * 16}
    cases = {name: of(name, SCORE) for name in sorted(printers.SMOOTH)}
    for case, got in computed(tmp_path, cases, values | SCALARS).items():
        want = torch.tensor(expected(cases[case], values), dtype=torch.float64).float()
        torch.testing.assert_close(torch.tensor(got), want, rtol=6e-7, atol=0, equal_nan=True, msg=case)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
@pytest.mark.parametrize("where", FAR)
def test_whole_numbers_of_distant_positions_are_exact(where: str, tmp_path: Path) -> None:
    values, scalars = FAR[where]
    results = computed(tmp_path, FAR_CASES, values | scalars)
    for case, node in FAR_CASES.items():
        want = expected(node, values, scalars)
        if node.type == "float":
            torch.testing.assert_close(results[case], [float(x) for x in want], rtol=2e-6, atol=1e-7, msg=case)
        else:
            assert results[case] == want, f"{case}: {triton_text(node)}"
    assert sum("tl.int64" in triton_text(node) for node in FAR_CASES.values()) > 30


@pytest.mark.parametrize("where", FAR)
def test_the_reference_is_exact_there_too(where: str) -> None:
    values, scalars = FAR[where]
    scope: dict[str, Any] = {"torch": torch, "math": math, "dtype": torch.float64, "window": scalars["window"]}
    scope |= {name: torch.tensor(numbers) for name, numbers in values.items()} | {"k_len": scalars["k_len"]}
    for case, node in FAR_CASES.items():
        got = torch.as_tensor(eval(printers.torch(node, lambda leaf: str(leaf.value)), scope)).broadcast_to(12)
        if node.type == "float":
            want = torch.tensor([float(x) for x in expected(node, values, scalars)], dtype=torch.float64)
            torch.testing.assert_close(got, want, rtol=1e-12, atol=0, msg=case)
        else:
            assert got.tolist() == expected(node, values, scalars), case


def test_an_int64_stands_only_where_a_number_can_pass_an_int32() -> None:
    def text(node: Node) -> str:
        return printers.triton(node, lambda leaf: str(leaf.value), {"window": (1, 1024)})

    assert text(of("*", DISTANCE, 7)) == "(q - k) * 7"
    assert text(of("*", DISTANCE, 8)) == "tl.cast(q - k, tl.int64) * 8"
    assert text(of("*", of("//", Q, WINDOW), WINDOW)) == "floor_div(q, window) * window"
    assert text(of("*", of("%", K, 1000), of("%", Q, 2000))) == "k % 1000 * floor_mod(q, 2000)"
    assert text(of("%", of("*", Q, K), 5)) == "floor_mod(tl.cast(q, tl.int64) * k, 5).to(tl.int32)"
    assert text(of("<", of("*", K, 9), 2)) == "tl.cast(k, tl.int64) * 9 < 2"


def test_brackets_are_as_few_as_precedence_allows() -> None:
    keep = of("and", of("<=", K, Q), of("<", DISTANCE, 1024))
    assert triton_text(keep) == "(k <= q) & (q - k < 1024)"
    assert printers.torch(keep, lambda n: str(n.value)) == "(k <= q) & (q - k < 1024)"
    softcap = CASES["softcap"]
    assert triton_text(softcap) == "50.0 * tanh(score / 50.0)"
    assert printers.torch(softcap, lambda n: str(n.value)) == "50.0 * torch.tanh(score / 50.0)"


def test_literals_keep_their_precision() -> None:
    node = of("*", SCORE, 0.1 + 0.2)
    assert "0.30000000000000004" in printers.triton(node, lambda n: "x", {})
    with pytest.raises(ValueError, match="finite"):
        printers.triton(of("*", SCORE, math.inf), lambda n: "x", {})


def test_helpers_are_named_once_and_only_where_called() -> None:
    assert printers.triton_helpers([of("+", Q, 1)]) == ()
    assert printers.triton_helpers([of("tanh", SCORE), of("*", 2.0, of("tanh", SCORE))]) == ("tanh",)
    assert printers.triton_helpers([of("**", SCORE, SCORE)]) == ("as_float", "power")


def test_ties_split_the_gradient_as_torch_does() -> None:
    score = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    text = printers.torch(of("max", SCORE, 0.0), lambda leaf: str(leaf.value))
    eval(text, {"torch": torch, "score": score, "dtype": torch.float64}).sum().backward()
    assert score.grad is not None and score.grad.item() == 0.5
