"""What whole numbers are divided by: of 0 there is neither a quotient nor a rest."""

from __future__ import annotations

from collections.abc import Iterable

from .tree import Node


def divisors(terms: Iterable[Node]) -> set[str]:
    """Names that these divide whole numbers by, unless a condition may keep them from being 0.

    As in `step == 0 or q % step == 0`. Such a condition reads what calls give; one of positions alone holds somewhere.
    """
    return {name for term in terms for name in _divisors(term)}


def _divisors(node: Node) -> Iterable[str]:
    if node.op in ("//", "%") and node.type == "int" and node.args[1].op in ("input", "option"):
        yield str(node.args[1].value)
    for i, arg in enumerate(node.args):
        deciding: tuple[Node, ...] = ()
        if node.op in ("and", "or"):
            deciding = (node.args[1 - i],)
        elif node.op == "where" and i > 0:
            deciding = node.args[:1]
        if not any(n.op in ("input", "option") for one in deciding for n in one.walk()):
            yield from _divisors(arg)
