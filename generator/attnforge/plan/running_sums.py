"""Inputs that kernels and reference read as running sums over tokens.

A value of -inf begins a new document: it adds nothing to the sums, and neither document is visible from the other.
Kernels read four parts from one tensor: the sum, the remainder of its rounding to float32, and the beginning and end of
the token's document. They measure sums from the first token of their own tile, so that the difference of two late sums
is as exact as that of two early ones.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Sequence

from ..expressions.inputs import Input
from ..expressions.linear_forms import number
from ..expressions.tree import SCORE, Node
from ..language.spec import MaskTerm, ScoreTerm, Spec
from .conditions import no_late_keys, shows_itself

REST, BEGIN, END = 1, 2, 3
# exp(-4096) is 0 in every type, and 4096 times float32's precision is small
LARGE = -4096.0

_Q, _K = (Node("var", (), side, "int") for side in "qk")


def by_documents(spec: Spec) -> Spec:
    """The spec with a mask for each running sum that compares the numbers of documents, as the reference does."""
    found = [_part(given, "document", 0) for given in spec.inputs if given.scan]
    masks = (_mask(given, Node("==", (_read(given, _Q), _read(given, _K)), None, "bool")) for given in found)
    return dataclasses.replace(spec, masks=(*spec.masks, *masks), inputs=(*spec.inputs, *found))


def in_kernels(spec: Spec, own: str) -> Spec:
    """The spec as kernels read it: positions of the other side lie within the documents of the own side's tokens."""
    if not any(given.scan for given in spec.inputs):
        return spec
    place, other = (_Q, _K) if own == "q" else (_K, _Q)
    masks, parts = [], []
    for given in (i for i in spec.inputs if i.scan):
        begin, end = _part(given, "begin", BEGIN), _part(given, "end", END)
        from_begin = Node("<=", (_read(begin, place), other), None, "bool")
        to_end = Node("<", (other, _read(end, place)), None, "bool")
        # keys after a query's document are after the query
        needed = [(begin, from_begin), (end, to_end)]
        needed = needed if not no_late_keys(spec) else needed[:1] if own == "q" else needed[1:]
        masks += [_mask(part, keep) for part, keep in needed]
        parts += [part for part, _ in needed]
    return _with_parts(spec, masks, parts)


def in_cache(spec: Spec) -> Spec:
    """The spec as decode kernels read it: key and query lie at or after the beginning of each other's document."""
    masks, parts = [], []
    for given in (i for i in spec.inputs if i.scan):
        begin = _part(given, "begin", BEGIN)
        parts.append(begin)
        # a query before the first key belongs to the first key's document
        sides = [(_Q, _K)] if no_late_keys(spec) else [(_Q, _K), (_K, Node("max", (_Q, number(0)), None, "int"))]
        masks += [_mask(begin, Node("<=", (_read(begin, own), other), None, "bool")) for own, other in sides]
    return _with_parts(spec, masks, parts)


def differ(spec: Spec) -> bool:
    """True if running sums are read only as differences between the sum at a query and the one at a key."""
    sums = {given.name for given in spec.inputs if given.scan}
    terms = in_cache(spec)
    roots = (*(term.keep for term in terms.masks), *(term.score for term in terms.scores))
    read = [node for root in roots for node in root.walk()]
    elsewhere = any(_is_sum(node, sums) and node.args[0] not in (_Q, _K) for node in read)
    return not elsewhere and {anchor(name) for name in sums}.isdisjoint(str(n.value) for n in read if n.op == "local")


def anchor(name: object) -> str:
    """The kernels' name of the sum from which an input's running sums are measured."""
    return f"{name}_anchor"


def _with_parts(spec: Spec, masks: Sequence[MaskTerm], parts: Sequence[Input]) -> Spec:
    """The spec with parts of running sums, masks that read them, and terms that add anchors to single sums."""
    sums = {given.name for given in spec.inputs if given.scan}

    def whole(node: Node) -> Node:
        return _absolute(_regrouped(node, sums), sums)

    shown = (MaskTerm(term.label, whole(term.keep)) for term in spec.masks)
    scores = tuple(ScoreTerm(term.label, whole(term.score)) for term in spec.scores)
    return dataclasses.replace(spec, masks=(*shown, *masks), scores=scores, inputs=(*spec.inputs, *parts))


def by_distance(keep: Node, spec: Spec) -> Node:
    """An end of a document as a bound of distances, which is never below 0: a token belongs to its own document.

    Compilers merge it with the condition of a causal mask into one comparison.
    """
    parts = {given.name: given.part for given in spec.inputs}
    distance, bound = Node("-", (_Q, _K), None, "int"), [parts.get(str(arg.value)) for arg in keep.args]
    match keep.op, keep.args:
        case "<=", (begin, position) if bound[0] == BEGIN and position == _K:
            length = Node("-", (_Q, begin), None, "int")
        case "<", (position, end) if bound[1] == END and position == _Q:
            length = Node("-", (end, _K), None, "int")
        case _:
            return keep
    return Node(keep.op, (distance, Node("max", (length, number(0)), None, "int")), None, "bool")


def largest_reset(spec: Spec, given: Input) -> float:
    """The largest value of a running sum's input that begins a document.

    If only the difference of two sums of values that are never above 0 is added to scores, and each query sees its own
    key and none after it, then weights across a large negative value are 0: such a value begins a document too, and
    causes no rounding of later sums. Otherwise it costs the sums of its own tile their last digits.
    """
    reads = [Node("input", (place,), given.name, given.dtype) for place in (_Q, _K)]
    below = [term for term in spec.scores if given.name in {n.value for n in term.score.walk()}]
    if len(below) != 1 or not no_late_keys(spec) or not all(shows_itself(mask.keep) for mask in spec.masks):
        return -math.inf
    if given.maximum is None or given.maximum > 0:
        return -math.inf
    # anything else, such as other summands and functions that jump, may compensate the value
    for term in spec.scores:
        summands = [(sign, part) for sign, part in term.score.summands() if part.op != "num"]
        expected = [(1, SCORE), *(((1, reads[0]), (-1, reads[1])) if term is below[0] else ())]
        if len(summands) != len(expected) or not all(one in summands for one in expected):
            return -math.inf
    return LARGE


def reset(spec: Spec, given: Input) -> str:
    """Text of the value of `largest_reset`."""
    value = largest_reset(spec, given)
    return repr(value) if math.isfinite(value) else 'float("-inf")'


def _part(given: Input, word: str, part: int) -> Input:
    name = f"{given.name}_at_{word}"
    return dataclasses.replace(given, name=name, dtype="int", grad=False, scan=None, source=given.name, part=part)


def _mask(given: Input, keep: Node) -> MaskTerm:
    return MaskTerm(f"a document of {given.keyword or given.source}", keep)


def _read(given: Input, place: Node) -> Node:
    return Node("input", (place,), given.name, "int")


def _regrouped(node: Node, sums: Collection[object]) -> Node:
    """The expression with two reads of a running sum next to each other if one is added and one subtracted."""
    node = dataclasses.replace(node, args=tuple(_regrouped(arg, sums) for arg in node.args))
    if node.op not in ("+", "-") or node.type != "float":
        return node
    parts = list(node.summands())
    pairs = []
    for more in [part for sign, part in parts if sign > 0 and _is_sum(part, sums)]:
        less = next(
            (part for sign, part in parts if sign < 0 and part.op == "input" and part.value == more.value), None
        )
        if less is not None:
            parts.remove((1, more))
            parts.remove((-1, less))
            pairs.append((1, Node("-", (more, less))))
    if not pairs:
        return node
    (_, total), *rest = (*parts, *pairs) if parts and parts[0][0] > 0 else (*pairs, *parts)
    for sign, part in rest:
        total = Node("+" if sign > 0 else "-", (total, part))
    return total


def _is_sum(node: Node, sums: Collection[object]) -> bool:
    return node.op == "input" and node.value in sums


def _absolute(node: Node, sums: Collection[object]) -> Node:
    """The node with the anchor added to running sums from which no other one is subtracted."""

    def absolute(n: Node) -> Node | None:
        if _is_sum(n, sums):
            return Node("+", (n, Node("local", (), anchor(n.value))))
        both = n.op == "-" and all(_is_sum(arg, sums) for arg in n.args)
        return n if both and n.args[0].value == n.args[1].value else None

    return node.replaced(absolute)
