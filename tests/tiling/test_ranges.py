"""Spans compared with brute force: nothing visible is missed and nothing hidden is called full, along both sides."""

from __future__ import annotations

import ast
import functools
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from brute_force import Cell, Scene, cells, sides
from hypothesis import given, settings
from hypothesis import strategies as st

from attnforge.expressions.evaluation import compiled, evaluate
from attnforge.expressions.tree import Node
from attnforge.language.spec import load
from attnforge.plan import tile_ranges
from attnforge.source import resources
from attnforge.tiling.ranges import Span, spans

INPUTS = {"prefix": ("batch",), "limit": ("batch", "head"), "flag": ("head",), "at_q": ("batch", "query"),
          "at_k": ("batch", "key"), "at_both": ("batch", "query", "key")}  # fmt: skip
BOOLS = {"flag", "at_both"}
MINIMUMS = {"size": 1.0, "window": 1.0}
OPTIONS = {"size", "window", "shift"}
OPS: dict[type, str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//", ast.Mod: "%", ast.Div: "/", ast.Lt: "<",
    ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=", ast.And: "and", ast.Or: "or",
}  # fmt: skip


def expression(text: str) -> Node:
    """Python's own syntax as a tree of ours."""

    def walk(n: ast.expr) -> Node:
        match n:
            case ast.Name(id=name):
                kind = "input" if name in INPUTS else "option" if name in OPTIONS else "var"
                return Node(kind, value=name, type="bool" if name in BOOLS else "int")
            case ast.Constant(value=int() | float() as value):
                return Node("num", value=value, type=type(value).__name__)  # type: ignore[arg-type]
            case ast.BinOp(left=a, op=op, right=b):
                return Node(OPS[type(op)], (walk(a), walk(b)), type="float" if isinstance(op, ast.Div) else "int")
            case ast.UnaryOp(op=ast.Not(), operand=a):
                return Node("not", (walk(a),), type="bool")
            case ast.UnaryOp(operand=a):
                return Node("neg", (walk(a),), type="int")
            case ast.Compare(left=a, ops=[op], comparators=[b]):
                return Node(OPS[type(op)], (walk(a), walk(b)), type="bool")
            case ast.BoolOp(op=op, values=[a, b]):
                return Node(OPS[type(op)], (walk(a), walk(b)), type="bool")
            case ast.IfExp(test=c, body=a, orelse=b):
                return Node("where", (walk(c), walk(a), walk(b)), type=walk(a).type)
            case ast.Call(func=ast.Name(id=name), args=args):
                return Node(name, tuple(map(walk, args)), type="int")
        raise ValueError(ast.dump(n))

    return walk(ast.parse(text, mode="eval").body)


def scenes(q_len: int, k_len: int, **scalars: int) -> Scene:
    base = {"prefix": 3, "limit": 5, "flag": 0, "size": 3, "window": 4, "shift": -2, "h": 1, "b": 0, "kv_h": 0}
    return base | {"q_len": q_len, "k_len": k_len} | scalars


# the two functions below are called for a mask along both sides, and in several scenes
@functools.lru_cache(4)
def told_of(mask: Node, along: Literal["k", "q"]) -> tuple[Span, ...]:
    return tuple(spans(mask, along, INPUTS, MINIMUMS))


def allowed(mask: Node, scene: Scene) -> dict[tuple[int, int], bool]:
    return _allowed(mask, tuple(scene.items()))


@functools.lru_cache(1)
def _allowed(mask: Node, items: tuple[tuple[str, int], ...]) -> dict[tuple[int, int], bool]:
    scene = dict(items)
    env: dict[str, object] = dict(scene)
    table, sees = {}, compiled(mask)
    for q, k in itertools.product(sides(scene)["q"], sides(scene)["k"]):
        env |= {"q": q, "k": k, "at_q": q * 7 % 3, "at_k": k * 5 % 3, "at_both": (q * 3 + k * 5) % 4 > 0}
        table[q, k] = bool(sees(env))
    return table


def compare(mask: Node, scene: Scene, along: Literal["k", "q"], tile: int) -> Iterator[Cell]:
    """For each tile of the other side: the positions really seen and full, and those according to the spans."""
    return cells(told_of(mask, along), allowed(mask, scene), scene, along, tile)


def check_sound(mask: Node, scene: Scene, tile: int) -> None:
    for along in ("k", "q"):
        for seen, full, told, told_full in compare(mask, scene, along, tile):
            assert seen <= told, f"missed along {along}"
            assert told_full <= full, f"hidden but full along {along}"


EXACT = {
    "causal": "k <= q",
    "window": "q - k < window and k <= q",
    "fixed window": "q - k < 3 and q >= k",
    "prefix": "k < prefix or k <= q",
    "chunked": "q // size == k // size and k <= q",
    "chunked by a literal": "q // 4 == k // 4 and k <= q",
    "band": "abs(q - k) < 2",
    "shifted": "2 * k <= q + k + 1 and not k < q - window",
    "sinks": "k < 2 or q - k < window and k <= q",
    "per head": "flag or k <= q",
}
SHAPES = [(7, 7), (3, 9), (9, 4), (1, 8), (8, 1)]


@pytest.mark.parametrize("names", [*itertools.combinations_with_replacement(EXACT, 2)], ids=" & ".join)
def test_exact_where_the_bounds_are_monotone(names: tuple[str, str]) -> None:
    mask = expression(f"({EXACT[names[0]]}) and ({EXACT[names[1]]})" if names[0] != names[1] else EXACT[names[0]])
    for (q_len, k_len), tile, size in itertools.product(SHAPES, (1, 3, 4), (1, 3)):
        scene = scenes(q_len, k_len, size=size, window=size + 1, flag=tile % 2, prefix=tile)
        for along in ("k", "q"):
            for seen, full, told, told_full in compare(mask, scene, along, tile):
                assert told == seen
                assert told_full <= full
                # A key tile that only partly consists of sinks has full rows that no single range describes.
                assert told_full == full or ("sinks" in names and along == "q")


CLAMPED = {
    "a band": "abs(k - min(max(q, 2), k_len - 3)) <= 2",
    "a band from its start": "k >= min(max(q - 2, 0), k_len - 5) and k < min(max(q - 2, 0), k_len - 5) + 5",
    "a band that is set by the call": "abs(k - min(max(q, prefix), k_len - 1 - prefix)) <= prefix",
    "blocks": "abs(k // 3 - min(max(q // 3, 1), k_len // 3 - 2)) <= 1",
    "blocks that are set by the call": "abs(k // size - min(max(q // size, 1), k_len // size - 2)) <= 1",
    "a band of the past": "k <= q and abs(k - min(max(q, 2), k_len - 3)) <= 2",
}


@pytest.mark.parametrize("name", CLAMPED)
def test_a_clamped_place_of_the_query_is_inverted(name: str) -> None:
    """A tile of keys visits the queries that see it, and no others: queries at the ends see more keys on one side."""
    mask = expression(CLAMPED[name])
    for (q_len, k_len), tile in itertools.product([(14, 14), (6, 17), (17, 17), (1, 12)], (1, 2, 3, 4)):
        scene = scenes(q_len, k_len, size=3, prefix=2)
        for seen, full, told, told_full in compare(mask, scene, "q", tile):
            assert told == seen
            assert told_full <= full


@pytest.mark.parametrize(("columns", "size"), [("4", 4), ("size", 4)])
def test_a_clamped_row_of_an_image_is_inverted_beside_its_column(columns: str, size: int) -> None:
    def band(of: str, count: str) -> str:
        return f"abs(k {of} {columns} - min(max(q {of} {columns}, 1), {count} - 2)) <= 1"

    rows, both = (band("//", f"k_len // {columns}"), band("%", columns))
    mask = expression(f"({rows}) and ({both})")
    for (q_len, k_len), tile in itertools.product([(24, 24), (7, 24), (20, 40)], (1, 4, 6, 8)):
        scene = scenes(q_len, k_len, size=size)
        truth = cells(spans(mask, "q", INPUTS, MINIMUMS), allowed(expression(rows), scene), scene, "q", tile)
        for seen, _, told, _ in truth:
            assert told == seen
        check_sound(mask, scene, tile)


SHIPPED = {
    "causal": "causal",
    "window": "{sliding_window: {size: runtime}}",
    "chunked": "{chunked: {size: runtime}}",
    "prefix": "prefix_lm",
}
SUBSETS = [names for count in range(1, 5) for names in itertools.combinations(SHIPPED, count)]


@pytest.mark.parametrize("names", SUBSETS, ids=" & ".join)
def test_shipped_masks_visit_what_is_seen_and_nothing_else(names: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "some.yaml"
    path.write_text("\n".join(["name: some", "mask:", *(f"  - {SHIPPED[name]}" for name in names)]) + "\n")
    spec = load(path, terms=resources.terms_for(path))
    whole = tile_ranges.mask(spec)
    assert whole is not None
    for (q_len, k_len), tile, size, prefix in itertools.product([*SHAPES, (20, 20)], (1, 3, 4, 8), (1, 3, 8), (0, 5)):
        scene = scenes(q_len, k_len, window=size + tile, chunk_size=size, prefix_len=prefix)
        truth = allowed(whole, scene)
        for along in ("k", "q"):
            for seen, full, told, told_full in cells(tile_ranges.spans(spec, along), truth, scene, along, tile):
                assert told == seen
                assert told_full == full


def text(node: Node | None) -> str:
    if node is None:
        return ""
    if not node.args:
        return str(node.value)
    if len(node.args) == 2 and not node.op.isalpha():
        return f"({text(node.args[0])} {node.op} {text(node.args[1])})"
    return f"{node.op}({', '.join(map(text, node.args))})"


@pytest.mark.parametrize(
    ("mask", "along", "expected"),
    [
        ("k <= q", "k", [": (q_last + 1) | : (q_first + 1)"]),
        ("k <= q", "q", ["k_first :  | k_last : "]),
        ("k <= q and q - k < 1024", "k", ["(q_first - 1023) : (q_last + 1) | (q_last - 1023) : (q_first + 1)"]),
        ("k <= q and q - k < 1024", "q", ["k_first : (k_last + 1024) | k_last : (k_first + 1024)"]),
        ("k < prefix or k <= q", "k", [": max(prefix, (q_last + 1)) | : max(prefix, (q_first + 1))"]),
        ("k < prefix or k <= q", "q", ["where((k_first < prefix), q_begin, k_first) :  | "
                                       "where((k_last < prefix), q_begin, k_last) : "]),
        ("q // 64 == k // 64 and k <= q", "k", ["(64 * (q_first // 64)) : (q_last + 1) | "
                                                "(64 * (q_last // 64)) : (q_first + 1)"]),
        ("at_q == at_k and k <= q", "k", [": (q_last + 1) | never"]),
        ("q < 5", "k", [": where((q_first < 5), k_len, 0) | : where((q_last < 5), k_len, 0)"]),
        ("q % 2 == k % 2", "q", [":  | never"]),
        ("k < 0.5 * q", "k", [":  | never"]),
    ],
)  # fmt: skip
def test_reads_as_written_by_hand(mask: str, along: Literal["k", "q"], expected: list[str]) -> None:
    def show(s: Span) -> str:
        full = f"{text(s.full_lo)} : {text(s.full_hi)}".lstrip() if s.can_be_full else "never"
        return f"{text(s.lo)} : {text(s.hi)}".lstrip() + f" | {full}"

    assert [show(s) for s in spans(expression(mask), along, INPUTS, MINIMUMS)] == expected


def test_no_mask_and_hopeless_mask() -> None:
    assert spans(None, "k") == (Span(None, None, None, None, True),)
    (nothing,) = spans(Node("num", value=False, type="bool"), "k")
    assert nothing.hi == Node("num", value=0, type="int") and not nothing.can_be_full


def test_what_is_not_declared_is_not_trusted() -> None:
    assert spans(expression("k < prefix"), "k") == (Span(None, None, None, None, False),)
    assert spans(expression("k // shift <= q // shift"), "k", INPUTS, MINIMUMS)[0].hi is None


def test_a_number_that_is_at_least_1_divides_positions(tmp_path: Path) -> None:
    path = tmp_path / "grid.yaml"
    declared, mask = "inputs: {width: {axes: [], dtype: int%s}}", 'mask: [expr: "k // width == q // width"]'
    for limit, solved in ((", min: 1", True), ("", False), (", min: 0", False)):
        path.write_text(f"name: grid\n{declared % limit}\n{mask}\n")
        for along in ("k", "q"):
            (span,) = tile_ranges.spans(load(path, terms=()), along)  # type: ignore[arg-type]
            assert [span.lo is not None, span.hi is not None, span.can_be_full] == [solved] * 3


NAMES = ["q", "k", "prefix", "size", "window", "shift", "k_len", "at_q", "at_k", "h", "limit"]
LEAVES = st.one_of(
    st.sampled_from(["q", "k", "q", "k", *NAMES]).map(expression),
    st.integers(-4, 9).map(lambda n: Node("num", value=n, type="int")),
)


def integer(op: str, *args: Node) -> Node:
    return Node(op, args, type="int")


def truth(op: str, *args: Node) -> Node:
    return Node(op, args, type="bool")


DIVISORS = st.sampled_from(["1", "2", "3", "size", "window"]).map(expression)
FACTORS = st.sampled_from(["2", "-1", "-3", "size", "shift", "0"]).map(expression)
COMPARISONS = st.sampled_from(["<", "<=", ">", ">=", "==", "!="])


def bigger(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    return st.one_of(
        st.builds(integer, st.sampled_from(["+", "-", "-"]), inner, inner),
        st.builds(integer, st.sampled_from(["//", "//", "%"]), inner, DIVISORS),
        st.builds(lambda a, b, swap: integer("*", *((b, a) if swap else (a, b))), inner, FACTORS, st.booleans()),
        st.builds(integer, st.sampled_from(["min", "max"]), inner, inner),
        st.builds(integer, st.sampled_from(["abs", "neg"]), inner),
        st.builds(lambda op, a, b, x, y: integer("where", truth(op, a, b), x, y), COMPARISONS, inner, inner, inner,
                  inner),
    )  # fmt: skip


INTEGERS = st.recursive(LEAVES, bigger, max_leaves=5)
SIMPLE = ["k <= q", "q - k < window", "q // size == k // size", "k < prefix", "q >= 2", "at_both", "flag", "h == 0"]
ATOMS = st.one_of(st.builds(truth, COMPARISONS, INTEGERS, INTEGERS), st.sampled_from(SIMPLE).map(expression))
MASKS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.builds(truth, st.sampled_from(["and", "or"]), inner, inner),
        st.builds(truth, st.just("not"), inner),
        st.builds(truth, st.sampled_from(["==", "!="]), inner, inner),
        st.builds(truth, st.just("where"), inner, inner, inner),
    ),
    max_leaves=6,
)
SCENES = st.builds(
    scenes,
    st.integers(1, 7),
    st.integers(1, 7),
    prefix=st.integers(-2, 9),
    limit=st.integers(-2, 9),
    size=st.integers(1, 5),
    window=st.integers(1, 9),
    shift=st.integers(-3, 3),
    flag=st.integers(0, 1),
    h=st.integers(0, 1),
)


@pytest.mark.slow
@settings(max_examples=1500, deadline=None, derandomize=True)
@given(mask=MASKS, scene=SCENES, tile=st.integers(1, 4))
def test_sound_on_random_masks(mask: Node, scene: Scene, tile: int) -> None:
    check_sound(mask, scene, tile)


@pytest.mark.slow
@settings(max_examples=500, deadline=None, derandomize=True)
@given(mask=MASKS, scene=SCENES)
def test_spans_that_are_called_exact_are(mask: Node, scene: Scene) -> None:
    for along in ("k", "q"):
        found = spans(mask, along, INPUTS, MINIMUMS)  # type: ignore[arg-type]
        if all(span.exact for span in found):
            for seen, _, told, _ in compare(mask, scene, along, 1):  # type: ignore[arg-type]
                assert told == seen


@pytest.mark.slow
@settings(max_examples=300, deadline=None, derandomize=True)
@given(parts=st.lists(ATOMS, min_size=4, max_size=12), joins=st.lists(st.sampled_from(["and", "or"]), min_size=11,
       max_size=11), scene=SCENES, tile=st.integers(1, 4))  # fmt: skip
def test_sound_when_there_are_too_many_parts(parts: list[Node], joins: list[str], scene: Scene, tile: int) -> None:
    mask = parts[0]
    for join, part in zip(joins, parts[1:], strict=False):
        mask = truth(join, part, mask)
    check_sound(mask, scene, tile)


@pytest.mark.parametrize(
    "mask",
    [*EXACT.values(), "k // size <= prefix", "k // 64 < limit", "prefix <= k // size", "q // size - k // size < 3",
     "k - q < limit and k // 128 >= q // 128 - limit"],
)  # fmt: skip
@pytest.mark.parametrize("along", ["k", "q"])
def test_bounds_stay_within_int32(mask: str, along: Literal["k", "q"]) -> None:
    big = 2**28
    found = spans(expression(mask), along, INPUTS, MINIMUMS)
    nodes = [end for s in found for end in (s.lo, s.hi, s.full_lo, s.full_hi)]
    for scalar, size, position in itertools.product((-big, -7, 9, big), (1, 64, big), (-big, 0, big - 1)):
        scene = scenes(big, big, prefix=scalar, limit=scalar, size=size, window=size, q_begin=0)
        scene |= {f"{side}_{end}": position for side in "qk" for end in ("first", "last")}
        for node in (n for end in nodes if end for n in end.walk()):
            assert -(2**31) <= evaluate(node, scene) < 2**31, text(node)


@pytest.mark.parametrize("mask", ["k * 48000 // 44100 <= q", "k * 48000 // size <= q", "k * 48000 // size < 3 * q"])
def test_quotients_of_large_multiples_are_solved(mask: str) -> None:
    (span,) = spans(expression(mask), "k", INPUTS, MINIMUMS)
    assert span.hi and span.full_hi
    for q in (7, 12_175, 12_180, 500_000, 2**26):
        scene = scenes(2**28, 2**28, size=44100) | {"q": q, "q_first": q, "q_last": q}
        for end in (span.hi, span.full_hi):
            past = int(evaluate(end, scene))
            assert [evaluate(expression(mask), scene | {"k": k}) for k in (past - 1, past)] == [True, False]


@pytest.mark.parametrize(
    ("given_text", "expected"),
    [
        ("-7 // 2", -4),
        ("-7 % 3", 2),
        ("7 % -3", -2),
        ("1 if 2 < 1 else 5", 5),
        ("min(3, max(1, 2))", 2),
        ("not 1 == 1 or 2 != 3", True),
        ("7 / 2", 3.5),
        ("1.0 / 0", float("inf")),
        ("exp(1000.0)", float("inf")),
        ("log(0)", float("-inf")),
        ("sigmoid(-2000.0)", 0.0),
        ("softplus(800.0)", 800.0),
        ("erf(0.5)", 0.5204998778130465),
        ("log1p(1e-20)", 1e-20),
        ("log1p(-1)", float("-inf")),
    ],
)
def test_evaluate(given_text: str, expected: float) -> None:
    assert evaluate(expression(given_text), {}) == expected


def test_evaluate_reads_names_and_indices() -> None:
    node = Node("input", (expression("q + 1"),), "table", "int")
    assert evaluate(node, {"q": 2, "table": lambda i: 10 * i}) == 30
    assert evaluate(expression("size * q"), {"q": 2, "size": 4}) == 8
    with pytest.raises(KeyError):
        evaluate(expression("prefix"), {})
