"""By how much positions can be shifted without changing an expression."""

from __future__ import annotations

import math
from collections.abc import Collection
from fractions import Fraction

from .linear_forms import Linear, linear, variable
from .tree import COMPARISONS, Node

_POSITIONS = (variable("q"), variable("k"))
_UNKNOWN = (variable("k_len"),)  # changes if tokens are left out


def period(node: Node, fixed: Collection[str] = ()) -> int | None:
    """The number whose multiples can be added to all positions without changing the expression; None if none is known.

    The inputs `fixed` have rows for tokens, and would not be shifted along.
    """
    found = _shift(node, fixed)
    return found[1] if found is not None and not found[0] else None


_Shift = tuple[Fraction, int]
"""Growth of a value per added position, and the number of positions for whose multiples this holds."""


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
    """A quotient or a remainder; the dividend has to grow by multiples of the divisor."""
    if part is None or not divisor:
        return None
    growth = part[0] / divisor
    return growth if op == "//" else Fraction(), math.lcm(part[1], growth.denominator)


def _constant(parts: list[_Shift | None]) -> _Shift | None:
    """Any other operation: unchanged if all its arguments are."""
    if any(part is None or part[0] for part in parts):
        return None
    return Fraction(), math.lcm(*(part[1] for part in parts if part is not None))
