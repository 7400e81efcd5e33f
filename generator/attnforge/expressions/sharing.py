"""Common subexpressions: those that occur more than once get a name."""

from __future__ import annotations

from collections.abc import Sequence

from .tree import Node

ATOMS = frozenset({"num", "var", "option", "input", "local"})


def opposite(node: Node) -> Node | None:
    """The integer expression that this one negates, if it is written as a negation; None otherwise."""
    if node.op == "neg" and node.args[0].op != "num":
        return node.args[0]
    if node.op == "-" and node.args[0].value == 0:
        return node.args[1]
    if node.op == "*":
        for factor, other in (node.args, node.args[::-1]):
            if factor.op == "num" and isinstance(factor.value, int) and factor.value < 0:
                return Node("*", (Node("num", (), -factor.value, "int"), other), None, "int")
    return None


def share(nodes: Sequence[Node], prefix: str) -> tuple[list[tuple[str, Node]], list[Node]]:
    """Names subexpressions that occur more than once: the temporaries in order, and the nodes rewritten to read them.

    Inputs and their indices stay as they are, because printers look them up by equality.
    """
    canonical: dict[tuple[object, ...], Node] = {}
    seen: dict[int, Node] = {}
    uses: dict[int, int] = {}

    def intern(n: Node) -> Node:
        if id(n) in seen:
            return seen[id(n)]
        args = n.args if n.op in ATOMS else tuple(intern(arg) for arg in n.args)
        key = (n.op, n.type, repr(n.value), args if n.op in ATOMS else tuple(map(id, args)))
        if key not in canonical:
            # Counted once for each distinct parent: a node that repeats only inside a repeated parent needs no name.
            canonical[key] = Node(n.op, args, n.value, n.type, n.column, n.definition)
            for arg in args:
                uses[id(arg)] = uses.get(id(arg), 0) + 1
        seen[id(n)] = canonical[key]
        return canonical[key]

    roots = [intern(node) for node in nodes]
    for root in roots:
        uses[id(root)] = uses.get(id(root), 0) + 1

    for n in canonical.values():
        # printers have to see the sign of a negated integer, so the expression that it negates is named instead
        if n.type == "int" and opposite(n) and uses.get(id(n), 0) > 1:
            for arg in n.args:
                uses[id(arg)] += uses[id(n)] - 1
    temporaries: list[tuple[str, Node]] = []
    rewritten: dict[int, Node] = {}

    def rewrite(n: Node) -> Node:
        if n.op in ATOMS:
            return n
        if id(n) not in rewritten:
            new = Node(n.op, tuple(rewrite(arg) for arg in n.args), n.value, n.type, n.column)
            signed = opposite(n) if n.type == "int" else n.op == "neg" and n.args[0].op in ATOMS
            if uses[id(n)] > 1 and not signed:
                name = f"{prefix}{len(temporaries)}"
                temporaries.append((name, new))
                new = Node("local", value=name, type=n.type, definition=new)
            rewritten[id(n)] = new
        return rewritten[id(n)]

    return temporaries, [rewrite(root) for root in roots]
