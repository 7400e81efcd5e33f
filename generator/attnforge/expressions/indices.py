"""Indices of inputs: how an expression reads an input, and the rules for explicit indices."""

from __future__ import annotations

from .evaluation import evaluate
from .folding import LARGEST
from .inputs import Input
from .tree import Node

IMPLICIT = {"batch": "b", "head": "h", "kv_head": "kv_h", "query": "q", "key": "k"}


def reading(given: Input) -> str:
    """How expressions read an input, as text for messages."""
    by_hand = given.written
    if not by_hand:
        return f"{given.name} or {given.name}[{', '.join(IMPLICIT[kind] for kind in given.kinds)}]"
    if given.kinds.count("token") == len(by_hand):
        return f"{given.name}[q] or {given.name}[k]"
    sides = iter("qk")
    plain = ("an index" if given.kinds[i] == "size" else next(sides) for i in by_hand)
    return f"{given.name}[{', '.join(plain)}]"


def whole(node: Node) -> Node | None:
    """The number as an integer if it is certain to be whole, else None; outside of indices, floor gives a float."""
    if node.type == "int":
        return node
    if node.op == "num" and isinstance(node.value, float) and node.value.is_integer() and abs(node.value) <= LARGEST:
        return Node("num", (), int(node.value), "int", node.column)
    if node.op == "floor":
        return Node("floor", node.args, None, "int", node.column)
    first = 1 if node.op == "where" else 0
    if node.op not in ("+", "-", "*", "min", "max", "neg", "abs", "where"):
        return None
    args = tuple(whole(arg) for arg in node.args[first:])
    found = tuple(arg for arg in args if arg is not None)
    return Node(node.op, (*node.args[:first], *found), None, "int", node.column) if len(found) == len(args) else None


def outside(given: Input, text: str, index: Node) -> str | None:
    """An error message if an index leaves the tokens of some short sequence; `text` is the index as it was written."""
    if any(n.op in ("input", "option") for n in index.walk()):
        return None
    for k_len, q, k in ((n, q, k) for n in (1, 2, 5, 9) for q in range(n) for k in range(n)):
        value = evaluate(index, {"q": q, "k": k, "q_len": k_len, "k_len": k_len, "b": 0, "h": 0, "kv_h": 0})
        if not 0 <= value < k_len:
            where = "before the first token" if value < 0 else "past the last token"
            hint = f"max({text}, 0)" if value < 0 else f"min({text}, k_len - 1)"
            return f"{given.name}[{text}] reaches {where}: write {given.name}[{hint}]"
    return None
