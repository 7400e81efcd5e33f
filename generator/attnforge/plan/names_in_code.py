"""The names in generated code of things that a user named: with a prefix that none of the code's own names has.

The code appends suffixes: `slopes` is `in_slopes`, and in kernels also `in_slopes_ptr` and `in_slopes_sum`. If one
user's name extends another one, as `x_ptr` extends `x`, its prefix is `in2_`, so that no suffix makes them collide.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from ..expressions.inputs import Input
from ..expressions.tree import Node
from ..language.spec import Spec


def in_code(spec: Spec) -> Spec:
    """The spec with its inputs and options under the names that they have in generated code."""
    own = names_in_code(spec)
    return dataclasses.replace(
        spec,
        masks=tuple(dataclasses.replace(term, keep=_renamed(term.keep, own)) for term in spec.masks),
        scores=tuple(dataclasses.replace(term, score=_renamed(term.score, own)) for term in spec.scores),
        inputs=tuple(dataclasses.replace(_renamed_axes(x, own), name=own[x.name], keyword=x.name) for x in spec.inputs),
        options=tuple(dataclasses.replace(option, keyword=own[option.keyword]) for option in spec.options),
    )


def names_in_code(spec: Spec) -> dict[str, str]:
    """A name in generated code for each input and option."""
    return prefixed([*(option.keyword for option in spec.options), *(given.name for given in spec.inputs)])


def prefixed(names: Iterable[str]) -> dict[str, str]:
    """A name in generated code for each name, such that no two of them collide whatever suffixes follow."""
    names = list(names)
    shorter = {name: sum(name.startswith(f"{other}_") for other in names) for name in names}
    return {name: f"in{count + 1 if count else ''}_{name}" for name, count in shorter.items()}


def _renamed_axes(given: Input, own: Mapping[str, str]) -> Input:
    axes = (dataclasses.replace(axis, per=own.get(str(axis.per), axis.per)) for axis in given.axes)
    return dataclasses.replace(given, axes=tuple(axes))


def _renamed(node: Node, own: Mapping[str, str]) -> Node:
    value = own[str(node.value)] if node.op in ("input", "option") else node.value
    return dataclasses.replace(node, args=tuple(_renamed(arg, own) for arg in node.args), value=value)
