"""The words of the expression language and their meanings: the parser accepts them, the reference documents them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .functions import FUNCTIONS, Call

Kind = Literal["mask", "score", "default", "limit"]


@dataclass(frozen=True)
class Name:
    """A name that stands for a number, and the kinds of expressions that know it."""

    meaning: str
    kinds: tuple[Kind, ...] = ("mask", "score")


@dataclass(frozen=True)
class Operator:
    """Operators of one kind, each as it is written with operands; c is a condition, x an input."""

    forms: tuple[str, ...]
    meaning: str


NAMES = {
    "score": Name("the score so far, `scale * (q . k)` for the first term, in natural-log units", ("score",)),
    "q": Name("the position of the query, `row + k_len - q_len`: the last query lines up with the last key"),
    "k": Name("the position of the key, from 0"),
    "b": Name("the batch entry; the number of the sequence when packed"),
    "h": Name("the query head, from 0", ("mask", "score", "default")),
    "kv_h": Name("the key head, from 0"),
    "q_len": Name("the number of queries of the sequence"),
    "k_len": Name("the number of keys of the sequence"),
    "heads": Name("the number of query heads", ("default",)),
}
OPERATORS = (
    Operator(("a + b", "a - b", "a * b", "-a", "+a"), "arithmetic"),
    Operator(("a / b",), "the quotient, a float even for whole numbers"),
    Operator(
        ("a // b", "a % b"), "the quotient rounded down, and the remainder, as in Python also for negative values"
    ),
    Operator(("a ** b",), "a power; a constant exponent may be at most 64"),
    Operator(
        ("a < b", "a <= b", "a > b", "a >= b", "a == b", "a != b"), "comparison of numbers, chained too: `0 <= a < b`"
    ),
    Operator(("c and c", "c or c", "not c"), "conditions combined and negated"),
    Operator(("c == c", "c != c"), "whether both conditions hold or neither does; whether exactly one holds"),
    Operator(("a if c else b",), "`a` if the condition holds, otherwise `b`"),
    Operator(("x[a]", "x[a, b]"), "the entry of an input"),
)
# calls that are not functions are short for the expression that is their meaning
CALLS: dict[str, Call] = {
    **FUNCTIONS,
    "clamp": Call("x, low, high", "`min(max(x, low), high)`"),
    "where": Call("c, a, b", "`a if c else b`"),
}
