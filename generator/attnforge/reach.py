"""How long a call must be so that each number of a spec decides something: the cases that suites take for that.

Numbers are changed one at a time, by one or by a twentieth, and the terms evaluated with and without the change at
places where they could differ. Whoever finds a difference there needs no proof; what never differs decides nothing.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Iterator
from typing import Any

from . import draws, walk
from .evaluation import evaluate
from .expression import Node
from .inputs import Input
from .spec import Spec

USUAL = (40, 70)  # queries and keys that every suite has a case of
ROWS = 12  # queries of the cases that are made here
LONGEST = 2**14  # keys of them at most
_STEP = 2  # from a row that is looked at to the next one; a number that a length was made of is the place of one
_SEEDS = 3  # draws of the call's tensors, in all of which a number has to decide
_FAINT = 1e-5  # of a score: less is not told from roundings

Env = dict[str, Any]


def heads(spec: Spec) -> int:
    """Query heads of these calls: many where each draws anew what a number decides beside."""
    read = {n.value for mask in spec.masks for n in mask.keep.walk() if n.op == "input"}
    return 8 if any(given.name in read and {"head", "kv_head"} & set(given.kinds) for given in spec.inputs) else 1


def cases(spec: Spec) -> tuple[tuple[int, int], ...]:
    """Queries and keys of the calls in which those numbers decide that decide nothing in a usual one."""
    changed = list(_changed(spec))
    lengths = [(ROWS, n) for n in _lengths(spec)]
    waiting = [other for other in changed if not _differ(spec, other, USUAL)]
    needed = []
    for other in waiting:
        shape = next((shape for shape in lengths if _differ(spec, other, shape)), None)
        if shape:
            needed.append((shape, other))
    found: list[tuple[int, int]] = []
    for shape, other in sorted(needed, key=lambda pair: -pair[0][1]):
        if not any(_differ(spec, other, longer) for longer in found):
            found.append(shape)
    return tuple(found)


def _terms(spec: Spec) -> list[Node]:
    return [m.keep for m in spec.masks] + [s.score for s in spec.scores]


def _numbers(spec: Spec) -> set[int]:
    """The whole numbers that positions may be held against."""
    found = {n.value for term in _terms(spec) for n in term.walk() if n.op == "num" and type(n.value) is int}
    found |= {int(axis.per) for given in spec.inputs for axis in given.axes}
    return {n for n in found if isinstance(n, int) and n > 0}


def _lengths(spec: Spec) -> list[int]:
    """Keys of calls whose queries lie around a number, around twice it, or where two of them lead."""
    numbers = sorted(_numbers(spec))
    pairs = {f(a, b) for a in numbers for b in numbers for f in (int.__add__, int.__mul__)}
    ends = {n + ROWS // 2 for n in (*numbers, *pairs, *(3 * n for n in numbers))}
    return sorted(n for n in ends if USUAL[0] < n <= LONGEST)


def _changed(spec: Spec) -> Iterator[Spec]:
    """The spec with one number changed: at one place, in all places of a term, or as what entries share."""
    for i, mask in enumerate(spec.masks):
        for keep in _variants(mask.keep):
            masks = (*spec.masks[:i], dataclasses.replace(mask, keep=keep), *spec.masks[i + 1 :])
            yield dataclasses.replace(spec, masks=masks)
    for i, term in enumerate(spec.scores):
        for score in _variants(term.score):
            scores = (*spec.scores[:i], dataclasses.replace(term, score=score), *spec.scores[i + 1 :])
            yield dataclasses.replace(spec, scores=scores)
    for i, given in enumerate(spec.inputs):
        for j, axis in enumerate(given.axes):
            if axis.per != 1:
                axes = (*given.axes[:j], dataclasses.replace(axis, per=int(axis.per) + 1), *given.axes[j + 1 :])
                inputs = (*spec.inputs[:i], dataclasses.replace(given, axes=axes), *spec.inputs[i + 1 :])
                yield dataclasses.replace(spec, inputs=inputs)


def _variants(node: Node) -> Iterator[Node]:
    numbers = [n for n in node.walk() if n.op == "num" and type(n.value) in (int, float)]
    for number in numbers:
        yield _with(node, [number])
    for value in {n.value for n in numbers}:
        alike = [n for n in numbers if n.value == value]
        if len(alike) > 1:
            yield _with(node, alike)


def _with(node: Node, numbers: list[Node]) -> Node:
    if any(node is number for number in numbers):
        assert isinstance(node.value, (int, float))
        return dataclasses.replace(node, value=node.value + 1 if node.type == "int" else node.value * 1.05)
    return dataclasses.replace(node, args=tuple(_with(arg, numbers) for arg in node.args))


def _differ(spec: Spec, other: Spec, shape: tuple[int, int]) -> bool:
    """Whether the terms differ somewhere in a call of such a shape, whatever the call's tensors hold."""
    return all(any(_apart(spec, other, env) for env in _places(spec, shape, seed)) for seed in range(_SEEDS))


def _apart(spec: Spec, other: Spec, env: Env) -> bool:
    try:
        (shown, score), (other_shown, other_score) = _outcome(spec, env), _outcome(other, env)
    except ArithmeticError:
        return False
    return shown != other_shown or (shown and not abs(score - other_score) <= _FAINT * max(1, abs(score)))


def _outcome(spec: Spec, env: Env) -> tuple[bool, float]:
    """Whether a place is visible, and its score."""
    env |= {given.name: _Read(given, env) for given in spec.inputs}
    if not all(evaluate(mask.keep, env) for mask in spec.masks):
        return False, 0.0
    score = 3 * _random("score", env["q"], env["k"], env["seed"])
    for term in spec.scores:
        score = float(evaluate(term.score, env | {"score": score}))
    return True, score


def _places(spec: Spec, shape: tuple[int, int], seed: int) -> Iterator[Env]:
    """The pairs of positions at which a number could decide, with all that terms read there."""
    q_len, k_len = shape
    numbers = {0, *_numbers(spec)}
    options = {o.keyword: draws.between(o, 17 if o.type == "int" else 0.25) for o in spec.options}
    bounds = walk.bounds(spec)
    lengths = {"q_len": q_len, "k_len": k_len, "b": 0, "heads": heads(spec)}
    for q in range(k_len - q_len, k_len, _STEP * max(1, q_len // ROWS)):
        centres = {place for n in numbers for place in (n, q - n, q + n, q // max(n, 1) * n, 2 * n, k_len - 1)}
        keys = {place + beside for place in centres for beside in (-1, 0, 1)}
        for k, h in itertools.product(sorted(k for k in keys if 0 <= k < k_len), range(heads(spec))):
            yield {**options, **lengths, "q": q, "k": k, "h": h, "kv_h": h, "seed": seed, "bounds": bounds}


@dataclasses.dataclass(frozen=True)
class _Read:
    """An entry of an input at a place, as like as not what a suite draws there."""

    given: Input
    env: Env

    def __call__(self, *written: float) -> float | bool:
        given, index = self.given, iter(written)
        places = [self._place(i, index) for i in range(len(given.axes))]
        share = (_random(given.name, *places, self.env["seed"]) + 1) / 2
        if given.dtype == "bool":
            return share > 0.3
        if given.dtype == "float":
            return draws.between(given, 2 * share - 1)
        end = self.env["k_len"] + 1 if given.name in self.env["bounds"] else 3
        return draws.between(given, int(draws.between(given, 0)) + int(share * end))

    def _place(self, i: int, index: Iterator[float]) -> int:
        axis, first = self.given.axes[i], self.env["k_len"] - self.env["q_len"]
        if axis.kind in ("batch", "head", "kv_head"):
            return int(self.env["b" if axis.kind == "batch" else "h"])
        if i in self.given.written:
            place = int(next(index)) - (first if axis.kind == "query" else 0)
            last = (
                int(axis.size) - 1
                if axis.kind == "size"
                else self.env["q_len" if axis.kind == "query" else "k_len"] - 1
            )
            return int(min(max(place, 0), last))
        place = self.env["k"] if axis.kind == "key" else self.env["q"] - first
        return int(place) // int(axis.per)


def _random(*of: object) -> float:
    """A number from -1 to 1 that hangs on what is given."""
    return int.from_bytes(hashlib.blake2b(repr(of).encode(), digest_size=4).digest(), "big") / 2**31 - 1
