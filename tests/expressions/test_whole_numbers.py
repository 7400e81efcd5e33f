"""How large integers can get: ranges contain all values, and what fits no integer type is a float or a mistake."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from attnforge.explain.values import evaluate as as_arrays
from attnforge.expressions.evaluation import evaluate
from attnforge.expressions.sharing import share
from attnforge.expressions.tree import Node
from attnforge.expressions.whole_numbers import LONG, SHORT, Ranges, settled
from attnforge.language.spec import Spec, load
from attnforge.plan import tile_ranges
from attnforge.plan.kernel_inputs import KernelInputs
from attnforge.source.errors import SpecError

LIMITS = {"window": (1, 2**28), "shift": (-5, 9)}
FAR = 2**28


def of(op: str, *args: Node, kind: str = "int") -> Node:
    return Node(op, args, type=kind)  # type: ignore[arg-type]


def number(value: int) -> Node:
    return Node("num", value=value, type="int")


VARIABLES = [Node("var", value=name, type="int") for name in ("q", "k", "k", "q_len", "k_len", "h")]
OPTIONS = [Node("option", value=name, type="int") for name in LIMITS]
LEAVES = st.one_of(st.sampled_from([*VARIABLES, of("-", *VARIABLES[:2]), *OPTIONS]), st.integers(0, FAR).map(number))


def larger(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    divisor = st.one_of(st.integers(1, FAR).map(number), st.just(OPTIONS[0]), st.just(of("neg", number(7))))
    return st.one_of(
        st.builds(of, st.sampled_from(["+", "-", "*", "min", "max"]), inner, inner),
        st.builds(of, st.sampled_from(["//", "%"]), inner, divisor),
        st.builds(of, st.sampled_from(["abs", "neg"]), inner),
        st.builds(lambda a: of("*", a, a), inner),
        st.builds(lambda a: of("*", of("//", a, OPTIONS[0]), OPTIONS[0]), inner),
        st.builds(lambda a: of("*", OPTIONS[0], of("min", of("-", of("//", a, OPTIONS[0]), a), a)), inner),
        st.builds(lambda a, n: of("**", a, number(n)), inner, st.integers(0, 3)),
        st.builds(lambda a, b, c: of("where", of("<", a, b, kind="bool"), b, c), inner, inner, inner),
    )


@st.composite
def places(draw: st.DrawFn) -> dict[str, object]:
    """A query and a key in sequences of any length, and numbers of the call."""
    q_len, k_len = (draw(st.sampled_from([1, 2, 3, 46341, FAR]) | st.integers(1, FAR)) for _ in range(2))
    row = draw(st.sampled_from([0, q_len - 1]) | st.integers(0, q_len - 1))
    k = draw(st.sampled_from([0, k_len - 1]) | st.integers(0, k_len - 1))
    window, shift = draw(st.sampled_from([1, FAR]) | st.integers(1, FAR)), draw(st.integers(-5, 9))
    found: dict[str, object] = {"q": row + k_len - q_len, "k": k, "q_len": q_len, "k_len": k_len}
    return found | {"h": draw(st.integers(0, 2**24)), "window": window, "shift": shift}


@settings(max_examples=1500, deadline=None, derandomize=True)
@example(node=of("*", *[of("**", number(2642246), number(3))] * 2), env=dict.fromkeys(("q_len", "k_len"), 1))
@given(node=st.recursive(LEAVES, larger, max_leaves=6), env=places())
def test_a_range_holds_every_value(node: Node, env: dict[str, object]) -> None:
    low, high = (min(max(end, -(2**128)), 2**128) for end in Ranges(LIMITS).of(node))
    assert low <= min(max(evaluate(node, env), -(2**128)), 2**128) <= high


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("q - k", (-FAR, FAR)),
        ("3 * q - 3 * k + 1", (1 - 3 * FAR, 1 + 3 * FAR)),
        ("k_len - 1 - q", (-1, FAR - 1)),
        ("(q - k) * (q - k)", (0, FAR**2)),
        ("(k - q) ** 2 * 3", (0, 3 * FAR**2)),
        ("k // 64 * 64", (0, FAR)),
        ("k % 100 * 7", (0, 693)),
        ("q % 8 - k % 8", (-7, 7)),
    ],
)
def test_ranges_are_tight_where_users_count_on_it(text: str, expected: tuple[int, int], tmp_path: Path) -> None:
    (mask,) = loaded(tmp_path, f'mask: [expr: "{text} > 5 * k"]').masks
    assert Ranges({}).of(mask.keep.args[0]) == expected


def loaded(folder: Path, text: str) -> Spec:
    path = folder / "far.yaml"
    path.write_text(f"name: far\n{text}\n")
    return load(path, terms=())


def test_what_can_pass_int64_is_refused_with_its_place(tmp_path: Path) -> None:
    for text, column in (("q ** 3 * k % 7 == 0", 13), ("k < q ** 2 * k * 8", 17), ("(k ** 4 + 1) % 3 < 2", 14)):
        with pytest.raises(SpecError) as error:
            loaded(tmp_path, f'mask: [expr: "{text}"]')
        told = str(error.value)
        assert f"far.yaml:2:{column + 2}: error: this whole number can pass 2**63" in told, told


def test_what_can_pass_int64_beside_a_float_is_one(tmp_path: Path) -> None:
    terms = ("score + 1e-20 * (q - k) ** 3 * abs(k)", "score * (q - k) ** 2 * 0.5")
    texts = "".join(f'\n  - expr: "{term}"' for term in terms)
    far, near = (term.score for term in loaded(tmp_path, f"score:{texts}").scores)
    assert {n.type for n in far.walk() if n.op == "**"} == {"float"}
    assert {n.type for n in near.walk() if n.op == "**"} == {"int"}


def test_floats_of_whole_numbers_do_not_overflow_in_arrays() -> None:
    q = Node("var", value="q", type="int")
    told: list[Node] = []
    limit = Node("num", value=1.5)
    node = settled(of("<", of("**", q, number(5)), limit, kind="bool"), (), lambda at, _: told.append(at))

    assert not told and not as_arrays(node, {"q": numpy.array([FAR - 1])})[0]


def test_a_named_part_is_as_wide_as_what_it_stands_for() -> None:
    q, k = VARIABLES[:2]
    part = of("*", of("-", q, k), number(4))
    (named,), (root,) = share([of("*", part, of("+", part, number(1)))], "part")
    assert Ranges({}).within(named[1], SHORT) and not Ranges({}).within(root, SHORT)


def test_a_far_index_is_an_int32(tmp_path: Path) -> None:
    text = 'score: [expr: "score + table[INDEX]"]\ninputs: {table: {axes: [64], grad: true}}'
    for index, wide in (("abs(q - k)", False), ("abs(q - k) * 1000 - 7000", True)):
        inputs = KernelInputs(loaded(tmp_path, text.replace("INDEX", index)), "q")
        (place,) = (load.value for load in inputs.loads("step") if "within(" in load.value)
        assert ("tl.cast(" in place) == wide and (".to(tl.int32)" in place) == wide, place


@pytest.mark.parametrize("along", ["k", "q"])
@pytest.mark.parametrize(
    "mask",
    [
        "3 * k <= 16 * q + 7",
        "q <= 7 * k + 9",
        "k * size <= q * 7919",
        "k // 3 * 104729 <= q // 64 * 7919",
        "k * k < q * q * 9",
    ],
)
def test_ends_of_spans_are_counted_in_integers_that_hold_them(mask: str, along: str, tmp_path: Path) -> None:
    inputs = "inputs: {size: {axes: [], dtype: int, min: 1}}\n" if "size" in mask else ""
    spec = loaded(tmp_path, f'{inputs}mask: [expr: "{mask}"]')
    inputs = KernelInputs(spec, "q")
    ranges = Ranges(inputs.limits)
    walked = tile_ranges.build(spec, along)  # type: ignore[arg-type]
    for span, ends in zip(tile_ranges.spans(spec, along), walked.ends, strict=True):  # type: ignore[arg-type]
        for node, text in ((span.lo, ends.lo), (span.hi, ends.hi)):
            if node is not None:
                assert all(ranges.within(n, LONG) for n in node.walk() if n.type == "int")
                most = SHORT if along == "k" else SHORT - FAR  # the first query's position is subtracted
                assert ranges.within(node, most) or text.endswith(".to(tl.int32)"), text
