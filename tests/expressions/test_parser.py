"""The expression parser: whatever it accepts means the same as in Python, and it accepts nothing else."""

from __future__ import annotations

import itertools
import math
import warnings

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from attnforge.expressions import parser, vocabulary
from attnforge.expressions.evaluation import evaluate
from attnforge.expressions.inputs import Axis, Input
from attnforge.expressions.parser import Runtime, Scope, parse
from attnforge.expressions.tree import Node
from attnforge.source.errors import Location, Problems

INPUTS = {
    "temp": Input("temp", (Axis("head"),), grad=True),
    "bonus": Input("bonus", (Axis("batch"), Axis("token"), Axis("head"))),
    "left": Input("left", (Axis("batch"), Axis("query"))),
    "count": Input("count", (), "int"),
    "flag": Input("flag", (Axis("key"),), "bool"),
    "table": Input("table", (Axis("head"), Axis("size", 8)), grad=True),
    "square": Input("square", (Axis("query"), Axis("query")), "bool"),
    "learned": Input("learned", (Axis("token"),), grad=True),
}
OPTIONS: dict[str, int | float | bool | Runtime] = {
    "size": 5,
    "low": -3,
    "on": True,
    "window": Runtime("window", "int"),
}


def told(text: str, kind: str = "score") -> tuple[Node | None, list[tuple[int, str]]]:
    """The tree of an expression, and its mistakes with their columns."""
    problems = Problems()
    scope = Scope(kind, OPTIONS, INPUTS)  # type: ignore[arg-type]
    node = parse(text, scope, lambda offset: Location("x", 1, offset + 1), problems)
    assert (node is None) == bool(problems)
    return node, [(p.location.column, p.message) for p in problems]


def good(text: str, kind: str = "score") -> Node:
    node, mistakes = told(text, kind)
    assert node is not None, mistakes
    return node


numbers = st.sampled_from(["q", "k", "score", "q_len", "3", "2.5", "0", "temp", "count", "size"])


def deeper(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Larger expressions made of smaller ones."""
    pairs = st.tuples(inner, inner)
    comparison = st.tuples(inner, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), inner).map(" ".join)
    return st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*"]), inner).map(" ".join),
        st.tuples(inner, st.sampled_from(["// 3", "% 4", "/ 2", "** 2"])).map(lambda x: f"({x[0]}) {x[1]}"),
        pairs.map(lambda x: f"min({x[0]}, {x[1]}, 7)"),
        pairs.map(lambda x: f"max({x[0]}, {x[1]})"),
        inner.map(lambda x: f"abs({x})"),
        inner.map(lambda x: f"-({x})"),
        inner.map(lambda x: f"tanh({x})"),
        st.tuples(inner, comparison, inner).map(lambda x: f"({x[0]} if {x[1]} else {x[2]})"),
        st.tuples(inner, comparison, comparison).map(lambda x: f"({x[0]} if {x[1]} and not {x[2]} else 1)"),
        inner.map(lambda x: f"clamp({x}, -2, 2)"),
    )


@settings(max_examples=300, deadline=None)
@given(st.recursive(numbers, deeper, max_leaves=12), st.integers(-9, 9), st.integers(0, 9), st.floats(-4, 4))
@example("-(clamp(q * q * q, -2, 2))", 0, 0, 0.0)
def test_what_gets_through_means_what_python_means(text: str, q: int, k: int, score: float) -> None:
    env = {"q": q, "k": k, "score": score, "q_len": 7, "temp": 0.5, "count": 3}
    functions = {"tanh": math.tanh, "clamp": lambda x, low, high: min(max(x, low), high), "size": 5}
    try:
        expected = eval(text, {"__builtins__": {"min": min, "max": max, "abs": abs}}, env | functions)
    except (OverflowError, ZeroDivisionError):
        return
    node, mistakes = told(text)
    if node is None:  # such as q * q * q inside clamp
        assert all("can pass 2**63" in message for _, message in mistakes)
        return
    assert evaluate(node, env) == pytest.approx(expected, rel=1e-12, nan_ok=True)


@pytest.mark.parametrize("text", ["(q < 3) == (k < 3)", "(q < k) != (k % 2 == 0) == (k < 5)", "(k < 3) == on != flag"])
def test_conditions_are_compared_as_in_python(text: str) -> None:
    node = good(text, "mask")
    for q, k, flag in itertools.product(range(6), range(6), (False, True)):
        env = {"q": q, "k": k, "flag": flag}
        assert evaluate(node, env) == eval(text, {"on": True}, env)


def test_conditions_compared_at_many_levels_stay_small() -> None:
    text = "q < 1"
    for level in range(20):
        text = f"(k < {level}) == ({text})" if level % 2 else f"({text}) != (k < {level})"
    assert sum(1 for _ in good(text, "mask").walk()) < 300


def test_conditions_compared_at_many_levels_on_both_sides_are_told() -> None:
    text = "q < k"
    for _ in range(9):
        text = f"({text}) == ({text})"
    (mistake,) = told(text, "mask")[1]
    assert mistake[1] == f"this expression has more than {parser.MOST_NODES} names, numbers and operations"


def test_whole_numbers_that_are_known_are_worked_out() -> None:
    assert good("q // (2 * size) < k + min(4, 9) - 3 ** 2", "mask") == good("q // 10 < k + 4 - 9", "mask")
    assert good("score + (low - 2)") == good("score + -5")
    assert good("score * (1 / 3)").args[1].op == "/"


@pytest.mark.parametrize("sign", ["<", "<=", ">", ">=", "==", "!="])
@pytest.mark.parametrize("limit", ["2.0", "2.5", "-2.5", "-0.0", "5 / 2", "size * 0.4"])
def test_whole_numbers_are_compared_with_whole_limits(sign: str, limit: str) -> None:
    bound = eval(limit, {"size": 5})
    for text, turned in ((f"q {sign} {limit}", False), (f"{limit} {sign} q", True)):
        node = good(text, "mask")
        whole = sign not in ("==", "!=") or bound == int(bound)
        assert ({side.type for side in node.args} == {"int"}) == whole
        for q in range(-4, 5):
            assert evaluate(node, {"q": q}) == eval(f"{bound} {sign} {q}" if turned else f"{q} {sign} {bound}")


@settings(max_examples=400, deadline=None)
@given(st.text(alphabet="qk score()[]+-*/<>=!&|~%.,:'\"\\\n\x00\té0129_aeinortxλif", max_size=40))
def test_no_text_does_more_than_be_refused(text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        told(text)
        told(text, "mask")


BAD: list[tuple[str, str, int, str]] = [
    ("score", "scor + 1", 1, "unknown name 'scor' (did you mean 'score'?)"),
    ("score", "λ + scor", 1, "unknown name 'λ': what a call passes is declared under inputs"),
    ("score", "score + tmp", 9, "unknown name 'tmp' (did you mean 'temp'?)"),
    ("score", "score + temp[k]", 14, "wrong index of temp: write temp or temp[h]"),
    ("score", "score + left[k]", 14, "wrong index of left: write left or left[b, q]"),
    ("score", "score + count[0]", 15, "wrong index of count: count has no axes: write count"),
    ("score", "score + bonus", 9, "bonus needs an index: write bonus[q] or bonus[k]"),
    ("score", "score + bonus[q, k]", 9, "wrong index of bonus: write bonus[q] or bonus[k]"),
    ("score", "bonus[q - 1]", 7, "bonus[q - 1] reaches before the first token: write bonus[max(q - 1, 0)]"),
    ("score", "bonus[2 * k]", 7, "bonus[2 * k] reaches past the last token: write bonus[min(2 * k, k_len - 1)]"),
    ("score", "learned[max(k - 1, 0)]", 9, "learned has a gradient: its token axis is read at q and k only: "
     "write learned[q] or learned[k]"),
    ("score", "table", 1, "table needs an index: write table[an index]"),
    ("score", "table[b, 3]", 7, "wrong index of table: write table[an index]"),
    ("score", "table[q / 2]", 7, "an index of table is a whole number: write floor(...)"),
    ("score", "table[k < q]", 7, "expected a number, got a condition: an index is a number"),
    ("score", "table[floor(score)]", 7, "an index cannot depend on the score: it has no slope"),
    ("mask", "square", 1, "square needs an index: write square[q, k]"),
    ("score", "score[q]", 1, "score is not an input: it cannot be indexed"),
    ("score", "(score)[q:k]", 1, "score is not an input: it cannot be indexed"),
    ("score", "bonus[q:k]", 7, "a slice is not part of the language"),
    ("score", "tanh", 1, "tanh is a function: write tanh(...)"),
    ("score", "temp(score)", 1, "temp is not a function"),
    ("score", "tann(score)", 1, "unknown function 'tann' (did you mean 'tanh'?)"),
    ("score", "tanh(x=score)", 6, "tanh takes no arguments by name"),
    ("score", "tanh()", 1, "tanh takes 1 argument, got 0"),
    ("score", "clamp(score, 1)", 1, "clamp takes 3 arguments, got 2"),
    ("score", "min(score)", 1, "min takes 2 or more arguments, got 1"),
    ("score", "min(*score, 1)", 5, "a star is not part of the language"),
    ("score", "[score]", 1, "a list is not part of the language"),
    ("score", "(score, 1)", 1, "a tuple is not part of the language"),
    ("score", "{score: 1}", 1, "a dictionary is not part of the language"),
    ("score", "score.real", 1, "an attribute is not part of the language"),
    ("score", "lambda: score", 1, "a lambda is not part of the language"),
    ("score", "'a'", 1, "a string is not part of the language"),
    ("score", "f'{score}'", 1, "a string is not part of the language"),
    ("score", "2j * score", 1, "a complex number is not part of the language"),
    ("score", "score + None", 9, "None is not part of the language"),
    ("score", "score | 1", 1, "'|' is not part of the language (did you mean 'or'?)"),
    ("score", "score ^ 2", 1, "'^' is not part of the language (did you mean '**'?)"),
    ("score", "~score", 1, "'~' is not part of the language (did you mean 'not'?)"),
    ("score", "score @ score", 1, "'@' is not part of the language"),
    ("score", "score << 1", 1, "'<<' is not part of the language"),
    ("mask", "q is k", 1, "'is' is not part of the language"),
    ("mask", "q in k", 1, "'in' is not part of the language"),
    ("mask", "q + (k < 1) < 2", 6, "expected a number, got a condition: '+' takes numbers; "
     "conditions go into `a if c else b`"),
    ("mask", "not q", 5, "expected a condition, got a number: `not` turns a condition round"),
    ("mask", "q and k < 1", 1, "expected a condition, got a number: `and` joins conditions"),
    ("mask", "(q < k) < 3", 2, "expected a number, got a condition: comparisons take numbers"),
    ("mask", "(q < k) == 1", 2, "expected a number, got a condition: '==' takes two numbers or two conditions"),
    ("mask", "q < k if q else k < 1", 10, "expected a condition, got a number: the choice depends on a condition"),
    ("mask", "q < 1 if flag else 1", 20, "both choices have to be numbers, or both conditions"),
    ("mask", "score > 0", 1, "only score terms can read score: there `score if score > 1 else -3e38` hides a key"),
    ("mask", "k % 0 == 1", 5, "division by zero"),
    ("mask", "k < 999999999", 5, "whole numbers may go up to 2**28; write 999999999.0 for a float"),
    ("mask", "k < 99999999999999999999", 5, "this number is too large"),
    ("score", "score * 1e400", 9, "this number is too large"),
    ("score", "score ** 99", 10, "powers may go up to 64"),
    ("score", "", 1, "expected an expression"),
    ("score", "score +", 7, "cannot read this expression: something is missing or out of place"),
    ("score", "score = 1", 7, "cannot read this expression: '=' is not part of the language (did you mean '=='?)"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "text", "column", "message"), BAD)
def test_mistakes(kind: str, text: str, column: int, message: str) -> None:
    found = told(text, kind)[1]
    assert (column, message) in found, found


def test_all_mistakes_are_told_at_once() -> None:
    assert [column for column, _ in told("foo + bar(score) - temp[k]")[1]] == [1, 7, 25]


def test_lines_may_break_anywhere() -> None:
    assert good("score\n  + temp\n  * 2") == good("score + temp * 2")
    assert told("score\n + foo")[1][0][0] == 10


def test_too_long_and_too_deep() -> None:
    assert "10000 characters" in told("score + " * 2000 + "1")[1][0][1]
    assert "nested deeper" in told("(" * 60 + "score" + ")" * 60 + "+ -" + "-" * 60 + "1")[1][0][1]
    assert "nested" in told("-" * 3000 + "1")[1][0][1]


def test_indices_that_mean_the_axis_itself_are_dropped() -> None:
    assert good("score * temp[h]") == good("score * temp")
    assert good("score + left[b, q]") == good("score + left")
    assert good("flag[k]", "mask") == good("flag", "mask")
    assert good("table[h, k % 8]") == good("table[k % 8]")


def test_options_are_filled_in() -> None:
    assert good("q - k < size", "mask").args[1] == Node("num", (), 5, "int")
    assert good("low", "score").op == "neg"
    assert good("q - k < window", "mask").args[1] == Node("option", (), "window", "int")


def test_types() -> None:
    assert good("q // 2 - k % 3").type == "int"
    assert good("q / 2").type == "float"
    assert good("q ** 2").type == "int"
    assert good("q ** -1").type == "float"
    assert good("min(q, 2.0)").type == "float"
    assert good("0 <= q - k < 4", "mask").op == "and"


# -- the vocabulary, which the reference lists ---------------------------------------------------------------------


OPERANDS = {
    "a": Input("a", (), "int"),
    "b": Input("b", (), "int"),
    "c": Input("c", (), "bool"),
    "x": Input("x", (Axis("size", 8),)),
}
FORMS = [form for operator in vocabulary.OPERATORS for form in operator.forms]
IN_CODE = {name: f.meaning.strip("`") for name, f in vocabulary.CALLS.items() if f.meaning.startswith("`")}


def kinds(text: str, inputs: dict[str, Input]) -> list[str]:
    """The kinds of expressions, masks or scores, as which a text is valid."""
    found = []
    for kind in ("mask", "score"):
        problems = Problems()
        scope = Scope(kind, {}, inputs)  # type: ignore[arg-type]
        if parse(text, scope, lambda offset: Location("x", 1, offset + 1), problems):
            found.append(kind)
    return found


@pytest.mark.parametrize("form", FORMS)
def test_every_operator_of_the_vocabulary_is_taken(form: str) -> None:
    table = {"x": Input("x", (Axis("size", 8), Axis("size", 8)))} if "," in form else {}
    condition = any(sign in form for sign in ("<", ">", "==", "!=", "c ", "not"))
    assert kinds(form, OPERANDS | table) == ["mask" if condition and " if " not in form else "score"]


def test_the_vocabulary_tells_every_operator() -> None:
    signs = {word for form in FORMS for word in form.split()} | {form[0] for form in FORMS}
    assert {*parser._BINARY.values(), *parser._COMPARE.values(), "and", "or", "not", "if", "else"} <= signs


@pytest.mark.parametrize("name", vocabulary.CALLS)
def test_every_function_of_the_vocabulary_is_taken(name: str) -> None:
    written = vocabulary.CALLS[name].arguments.replace("...", "7")
    inputs = OPERANDS | {word: Input(word, ()) for word in ("x", "low", "high")}
    assert kinds(f"{name}({written})", inputs) == ["score"]
    assert kinds(f"{name}({written}, x, x, x)", inputs) == ([] if parser.ARGUMENTS[name] else ["score"])


@pytest.mark.parametrize("name", IN_CODE)
def test_meanings_in_code_are_true(name: str) -> None:
    inputs = OPERANDS | {word: Input(word, ()) for word in ("x", "low", "high")}
    call = f"{name}({vocabulary.CALLS[name].arguments})"

    def value(text: str, **env: float) -> float:
        scope = Scope("score", {}, inputs)
        node = parse(text, scope, lambda offset: Location("x", 1, offset + 1), Problems())
        assert node is not None, text
        return float(evaluate(node, env))

    for x, low, high, c in itertools.product((-7.5, -0.25, 0.5, 3.0), (-1.0, 2.0), (1.0, 4.0), (True, False)):
        env = {"x": x, "a": x, "b": low, "low": low, "high": high, "c": c}
        assert value(call, **env) == pytest.approx(value(IN_CODE[name], **env))


@pytest.mark.parametrize("kind", ["mask", "score", "default"])
def test_every_name_of_the_vocabulary_is_known_where_it_says(kind: str) -> None:
    for name, known in vocabulary.NAMES.items():
        _, mistakes = told(f"{name} < 3" if kind == "mask" else name, kind)
        assert (not mistakes) == (kind in known.kinds), name
