"""Whether an expression changes if positions are counted from another token."""

from __future__ import annotations

import math
from collections.abc import Collection
from fractions import Fraction

from .linear_forms import Linear, linear, variable
from .tree import COMPARISONS, Node

_POSITIONS = (variable("q"), variable("k"))
_UNKNOWN = (variable("k_len"),)  # whoever leaves out tokens changes it


def period(node: Node, fixed: Collection[str] = ()) -> int | None:
    """The number of positions whose multiples can be added to all positions without changing the expression.

    The inputs `fixed` are rows of tokens that would not move along. None if no such number is known.
    """
    found = _shift(node, fixed)
    return found[1] if found is not None and not found[0] else None


_Shift = tuple[Fraction, int]
"""By how much a value grows with each position that is added, and of which number that is true for multiples."""


def _shift(node: Node, fixed: Collection[str]) -> _Shift | None:
    if node in _UNKNOWN or (node.op == "input" and node.value in fixed):
        return None
    if node in _POSITIONS:
        return Fraction(1), 1
    if node.op in COMPARISONS and all(arg.type == "int" for arg in node.args):
        return _constant([_sum(linear(node.args[0]) - linear(node.args[1]), fixed)])
    if node.type == "int" and (form := linear(node)) != Linear(((node, 1),)):
        return _sum(form, fixed)
    parts = [_shift(arg, fixed) for arg in node.args]
    if node.op in ("//", "%") and isinstance(node.args[1].value, int) and node.args[1].op == "num":
        return _divided(parts[0], node.args[1].value, node.op)
    return _constant(parts)


def _sum(form: Linear, fixed: Collection[str]) -> _Shift | None:
    parts = [(_shift(atom, fixed), factor) for atom, factor in form.terms]
    known = [(part, factor) for part, factor in parts if part is not None]
    if len(known) < len(parts):
        return None
    return sum((part[0] * factor for part, factor in known), Fraction()), math.lcm(*(part[1] for part, _ in known))


def _divided(part: _Shift | None, divisor: int, op: str) -> _Shift | None:
    """A quotient, or a remainder: the dividend has to grow by multiples of the divisor."""
    if part is None or not divisor:
        return None
    growth = part[0] / divisor
    return growth if op == "//" else Fraction(), math.lcm(part[1], growth.denominator)


def _constant(parts: list[_Shift | None]) -> _Shift | None:
    """Anything else, which stays the same if all that it is made of does."""
    if any(part is None or part[0] for part in parts):
        return None
    return Fraction(), math.lcm(*(part[1] for part in parts if part is not None))
