"""The divisors of integer divisions: quotient and remainder are undefined if one is 0."""

from __future__ import annotations

from collections.abc import Iterable

from .tree import Node


def divisors(terms: Iterable[Node]) -> tuple[Node, ...]:
    """The integer divisors in these terms that only numbers of a call determine and that no condition guards.

    A guard, as in `step == 0 or q % step == 0`, is a condition that reads inputs or options; one that reads positions
    alone holds somewhere. The divisors inside a divisor come before it.
    """
    return tuple(dict.fromkeys(node for term in terms for node in _divisors(term)))


def _divisors(node: Node) -> Iterable[Node]:
    for i, arg in enumerate(node.args):
        deciding: tuple[Node, ...] = ()
        if node.op in ("and", "or"):
            deciding = (node.args[1 - i],)
        elif node.op == "where" and i > 0:
            deciding = node.args[:1]
        if not any(n.op in _GIVEN for one in deciding for n in one.walk()):
            yield from _divisors(arg)
    if node.op in ("//", "%") and node.type == "int" and _is_told(node.args[1]):
        yield node.args[1]


_GIVEN = ("input", "option")


def _is_told(divisor: Node) -> bool:
    parts = tuple(divisor.walk())
    return any(n.op in _GIVEN for n in parts) and all(n.op != "var" and n.type != "float" for n in parts)
