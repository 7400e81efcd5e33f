"""The tree of the expression language.

All nodes of a tree have the same class. `op` says what a node is:

    num             a literal; `value` is an int, a float or a bool
    var             q, k, b, h, kv_h, q_len, k_len, heads or score; `value` is the name
    option          an option set at run time; `value` is the keyword
    local           a name that a kernel or a listing defines; `value` is the name
    input           an extra tensor or scalar; `value` is its name, `args` the written index, if any
    + - * / // % ** neg                    arithmetic
    < <= > >= == !=                        comparison of two numbers
    and or not                             logic of conditions
    where                                  `a if c else b`, args (c, a, b)
    exp min ...                            a function that `functions` lists

`min` and `max` take two arguments (more are nested), `clamp(x, a, b)` is `min(max(x, a), b)`, a chained comparison is
an `and` of two comparisons, `and` and `or` take two arguments (more are nested), `c == d` of conditions is
`d if c else not d`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

Type = Literal["int", "float", "bool"]
Value = int | float | bool | str | None


@dataclass(frozen=True, slots=True)
class Node:
    """A node of an expression; equality ignores where it was written."""

    op: str
    args: tuple[Node, ...] = ()
    value: Value = None
    type: Type = "float"
    column: int = field(default=0, compare=False)
    definition: Node | None = field(default=None, compare=False, repr=False)  # the expression that a local names

    def walk(self) -> Iterator[Node]:
        """This node and all below it."""
        yield self
        for arg in self.args:
            yield from arg.walk()

    def inside_out(self) -> Iterator[Node]:
        """This node and all below it, arguments first."""
        for arg in self.args:
            yield from arg.inside_out()
        yield self

    def summands(self, sign: int = 1) -> Iterator[tuple[int, Node]]:
        """The signed parts of a sum of floats, in order."""
        if self.op in ("+", "-") and self.type == "float":
            left, right = self.args
            yield from left.summands(sign)
            yield from right.summands(sign if self.op == "+" else -sign)
        elif self.op == "neg" and self.type == "float":
            yield from self.args[0].summands(-sign)
        else:
            yield sign, self

    def replaced(self, other: Callable[[Node], Node | None]) -> Node:
        """The expression with `other` nodes in place of those for which there is one; nothing below these changes."""
        found = other(self)
        if found is not None:
            return found
        args = tuple(arg.replaced(other) for arg in self.args)
        return self if all(map(operator.is_, args, self.args)) else replace(self, args=args)

    @property
    def extent(self) -> tuple[int, int]:
        """The number of levels and the number of nodes."""
        level, levels, nodes = [self], 0, 0
        while level:
            levels, nodes = levels + 1, nodes + len(level)
            level = [arg for part in level for arg in part.args]
        return levels, nodes

    def moved(self, column: int) -> Node:
        """The same expression, as if all of it were written at one place."""
        args = tuple(arg.moved(column) for arg in self.args)
        return Node(self.op, args, self.value, self.type, column)


SCORE = Node("var", (), "score", "float")
"""The score so far, which a score term reads."""
COMPARISONS = frozenset({"<", "<=", ">", ">=", "==", "!="})
