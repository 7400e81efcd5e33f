"""Terms that libraries and models have names for, and keys that masks plainly hide, recognised by formula alone."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from ..expressions.inputs import Axis, Input
from ..expressions.linear_forms import linear, variable
from ..expressions.tree import Node

Q, K, SCORE = variable("q"), variable("k"), Node("var", (), "score")
DISTANCE = Node("-", (Q, K), None, "int")
_PAIRS = (Axis("batch"), Axis("head"), Axis("query"), Axis("key"))
Number = int | float | str  # a str is the keyword by which a call gives it


def joined(mask: Node) -> Iterator[Node]:
    """The parts of a mask that all have to hold."""
    if mask.op == "and":
        yield from (part for arg in mask.args for part in joined(arg))
    else:
        yield mask


def causal(mask: Node) -> bool:
    """True for `k <= q`."""
    return mask in (Node("<=", (K, Q), None, "bool"), Node(">=", (Q, K), None, "bool"))


def hides_late_keys(keep: Node) -> bool:
    """True if a condition plainly hides all keys after a query."""
    if keep.op in ("and", "or"):
        return (any if keep.op == "and" else all)(map(hides_late_keys, keep.args))
    if keep.op not in ("<", "<=", ">", ">=") or any(arg.type != "int" for arg in keep.args):
        return False
    low, high = map(linear, keep.args if keep.op in ("<", "<=") else reversed(keep.args))
    ahead = low - high - (linear(K) - linear(Q))
    return not ahead.terms and ahead.constant >= (0 if "=" in keep.op else -1)


def window(mask: Node) -> Number | None:
    """The number of past keys that `q - k < size` shows, the query's own included; None for other masks."""
    return _number(mask.args[1]) if mask.op == "<" and mask.args[0] == DISTANCE else None


def prefix(mask: Node, inputs: Collection[Input]) -> bool:
    """True for `k <= q or k < prefix_len`, with one number per batch entry."""
    given = any(one.name == "prefix_len" and one.axes == (Axis("batch"),) for one in inputs)
    short = Node("<", (K, Node("input", (), "prefix_len", "int")), None, "bool")
    return given and mask.op == "or" and causal(mask.args[0]) and mask.args[1] == short


def softcap(score: Node) -> Number | None:
    """The cap of `cap * tanh(score / cap)`; None for other terms."""
    cap = score.args[0] if score.args else score
    return _number(cap) if score == Node("*", (cap, Node("tanh", (Node("/", (SCORE, cap)),)))) else None


def bias(score: Node, inputs: Collection[Input]) -> bool:
    """True for `score + bias`, with one number per pair of query and key."""
    given = any(one.name == "bias" and one.axes == _PAIRS for one in inputs)
    return given and score == Node("+", (SCORE, Node("input", (), "bias")))


def table(score: Node, inputs: Collection[Input]) -> Input | None:
    """The input of `score + table[...]` that has one number per head and entry, whichever entry is read."""
    if score.op != "+" or score.args[0] != SCORE or score.args[1].op != "input":
        return None
    return next((x for x in inputs if x.name == score.args[1].value and x.kinds == ("head", "size")), None)


def _number(node: Node) -> Number | None:
    if node.op == "option":
        return str(node.value)
    return node.value if node.op == "num" and isinstance(node.value, int | float) else None
