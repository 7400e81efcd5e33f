"""Conditions as kernels need them.

Comparisons of single floats, which the interpreter broadcasts as floats, become choices of booleans. Conditions that
are certain to show a query its own key, or plainly hide all later ones, are recognised.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType

from ..expressions.linear_forms import linear, variable
from ..expressions.tree import COMPARISONS, Node
from ..language.patterns import hides_late_keys
from ..language.spec import Spec

Reach = Callable[[Node], Collection[str]]
"""From an expression to the sides along which it varies inside a tile."""


def beside_tiles(node: Node, reach: Reach) -> Node:
    """The expression with comparisons of single floats made int1 where they are combined with tiles of conditions.

    The interpreter would broadcast their result to a tile of floats, which cannot be combined with a condition.
    """
    if not reach(node) or not node.args or node.op == "input":
        return node
    args = tuple(beside_tiles(arg, reach) for arg in node.args)
    if node.type == "bool":
        chosen = args[:1] if node.op == "where" else ()
        args = (*chosen, *(arg if reach(arg) else as_bool(arg) for arg in args[len(chosen) :]))
    return Node(node.op, args, node.value, node.type, node.column)


def no_late_keys(spec: Spec) -> bool:
    """True if a mask plainly hides all keys after a query."""
    return any(hides_late_keys(mask.keep) for mask in spec.masks)


def as_bool(node: Node) -> Node:
    """A condition; if it depends on a comparison of floats, as a choice of booleans."""
    floats = (n for n in node.walk() if n.op in COMPARISONS and "float" in {a.type for a in n.args})
    if node.type != "bool" or not any(floats):
        return node
    truths = tuple(Node("num", (), value, "bool") for value in (True, False))
    return Node("where", (node, *truths), None, "bool")


def shows_itself(keep: Node, least: Mapping[str, float] = MappingProxyType({})) -> bool:
    """True if a condition is certain to show each query the key at its own position.

    `least` has the least values of numbers that it reads.
    """
    if keep.op in ("and", "or"):
        return (all if keep.op == "and" else any)(shows_itself(arg, least) for arg in keep.args)
    if keep.op not in ("<", "<=", ">", ">=", "==") or any(arg.type != "int" for arg in keep.args):
        return False
    left, right = map(linear, map(at_itself, keep.args if keep.op in ("<", "<=") else reversed(keep.args)))
    above = right - left  # a sum of numbers
    numbers = [(str(atom.value), factor) for atom, factor in above.terms if atom.op in ("option", "input")]
    if len(numbers) < len(above.terms) or any(factor < 0 or name not in least for name, factor in numbers):
        return False
    lowest = above.constant + sum(factor * least[name] for name, factor in numbers)
    return lowest >= (0 if "=" in keep.op else 1) and (keep.op != "==" or not (above.terms or above.constant))


def at_itself(node: Node) -> Node:
    """The expression for a query and the key at its own position."""
    return node.replaced(lambda n: variable("q") if n == variable("k") else None)
