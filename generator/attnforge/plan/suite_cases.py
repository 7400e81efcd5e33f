"""Lengths of calls in which each number of a spec decides something: cases for the suites.

Numbers are changed one at a time, by one or by a twentieth, and the terms evaluated with and without the change at
places where they could differ. Whoever finds a difference there needs no proof; what never differs decides nothing.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from ..expressions.evaluation import Function, compiled
from ..expressions.inputs import ROW_AXES, Axis, Input
from ..expressions.tree import Node
from ..language.spec import Spec
from . import suite_inputs, tile_ranges

USUAL = (40, 70)  # queries and keys that every suite has a case of
ROWS = 12  # queries of the cases that are made here
LONGEST = 2**14  # keys of them at most
_STEP = 2  # from a row that is looked at to the next one; a number that a length was made of is the place of one
_SEEDS = 3  # draws of the call's tensors, in all of which a number has to decide
_HUNDREDS = (-120.0, -40.0, 40.0, 120.0)  # scores that a scale of 8 leads to
_STEEPEST = 5000  # how many times a score's relative error a softmax bears; gradients of float32 bear twice as much
_SPARSE = 7  # from a place that is tried with such scores to the next one
_MOST_WORK = 300_000  # lengths times what one takes, for numbers that decide in none: ten times what shipped specs have
_FAINT = 1e-5  # of a score: less is not told from roundings
_BOUNDS = "#bounds"  # in an Env, where no input is called that

Env = dict[str, Any]


def heads(spec: Spec) -> int:
    """Query heads of these calls: many where each draws anew what a number decides beside."""
    read = {n.value for mask in spec.masks for n in mask.keep.walk() if n.op == "input"}
    return 8 if any(given.name in read and {"head", "kv_head"} & set(given.kinds) for given in spec.inputs) else 1


@functools.lru_cache(maxsize=64)  # a spec is asked for several times, by those who print its files one by one
def cases(spec: Spec) -> tuple[tuple[int, int], ...]:
    """Queries and keys of the calls in which those numbers decide that decide nothing in a usual one."""
    own = _Terms(spec)
    waiting = [other for other in _changed(spec) if not own.differ(other, USUAL)]
    lengths = [(ROWS, n) for n in _few(_lengths(spec), spec, len(waiting))]
    needed = []
    for other in waiting:
        shape = next((shape for shape in lengths if own.differ(other, shape)), None)
        if shape:
            needed.append((shape, other))
    found: list[tuple[int, int]] = []
    for shape, other in sorted(needed, key=lambda pair: -pair[0][1]):
        if not any(own.differ(other, longer) for longer in found):
            found.append(shape)
    return tuple(found)


def steep(spec: Spec) -> bool:
    """True if scores of a hundred leave a softmax that rounding decides, as of a score's third power."""
    own = _Terms(spec)
    return bool(spec.scores) and any(own.steepness(env, score) > _STEEPEST for env in own.seen() for score in _HUNDREDS)


@dataclasses.dataclass(frozen=True)
class Decided:
    """What a suite alone asks of a spec: it takes as long as much of a plan, and is worked out for who asks."""

    spec: Spec

    @functools.cached_property
    def far(self) -> tuple[tuple[int, int, int], ...]:
        """Queries, keys and heads of calls in which the numbers of the spec decide."""
        return tuple((*lengths, heads(self.spec)) for lengths in cases(self.spec))

    @functools.cached_property
    def steep(self) -> bool:
        """Whether scores of a hundred are too many for its terms."""
        return steep(self.spec)


def _numbers(spec: Spec) -> set[int]:
    """The whole numbers that positions may be held against: not those that are an index by themselves."""
    sides = (arg for term in spec.nodes for n in term.walk() if n.op != "input" for arg in n.args)
    found = {side.value for side in sides if side.op == "num" and type(side.value) is int}
    found |= {int(axis.per) for given in spec.inputs for axis in given.axes if axis.kind in ROW_AXES}
    return {n for n in found if isinstance(n, int) and n > 0}


def _lengths(spec: Spec) -> list[int]:
    """Keys of calls whose queries lie around a number, around twice it, or where two of them lead."""
    numbers = sorted(_numbers(spec))
    pairs = {f(a, b) for a in numbers for b in numbers for f in (int.__add__, int.__mul__)}
    ends = {n + ROWS // 2 for n in (*numbers, *pairs, *(3 * n for n in numbers))}
    found: list[int] = []
    for n in sorted(n for n in ends if USUAL[0] < n <= LONGEST):
        if not found or n - found[-1] >= ROWS // 4:  # their queries lie at the same places but for two of twelve
            found.append(n)
    return found


def _few(lengths: list[int], spec: Spec, waiting: int) -> list[int]:
    """The lengths, or as many of them as are looked through in seconds, from the first to the last."""
    nodes = sum(node.extent[1] for node in spec.nodes)
    work = len(lengths) * (1 + len(_numbers(spec))) * heads(spec) * nodes * waiting
    return lengths[:: 1 + work // _MOST_WORK]


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
            if axis.divided and axis.kind in ROW_AXES:
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


class _Outcome(NamedTuple):
    """A spec at one place: the value of each mask and, where all are true, the score before and after each term."""

    kept: tuple[bool, ...]
    scores: tuple[float, ...]


class _Terms:
    """The terms of a spec, as functions of a place."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.masks = [compiled(mask.keep) for mask in spec.masks]
        self.scores = [compiled(term.score) for term in spec.scores]
        self._found: dict[tuple[tuple[int, int], int], list[tuple[Env, _Outcome]]] = {}

    def differ(self, other: Spec, shape: tuple[int, int]) -> bool:
        """True if other terms differ somewhere in a call of such a shape, whatever the call's tensors hold."""
        change = _Change(self, other)
        return all(change.decides_at(self._at(shape, seed)) for seed in range(_SEEDS))

    def seen(self) -> Iterator[Env]:
        """Some places of a usual call that the masks show."""
        yield from (env for env, own in self._at(USUAL, 0)[::_SPARSE] if own.scores)

    def steepness(self, env: Env, score: float) -> float:
        """By what multiple of its relative change a score changes the last term's result."""
        try:
            *_, near = _scores(self.scores, env, score)
            *_, far = _scores(self.scores, env, score * (1 + _FAINT))
        except ArithmeticError:
            return math.inf
        return abs(far - near) / _FAINT

    def _at(self, shape: tuple[int, int], seed: int) -> list[tuple[Env, _Outcome]]:
        if (shape, seed) not in self._found:
            reads = [_Read(given) for given in self.spec.inputs]
            places = (env | {read.name: read.of(env) for read in reads} for env in _places(self.spec, shape, seed))
            found = ((env, self._outcome(env)) for env in places)
            self._found[shape, seed] = [(env, own) for env, own in found if own]
        return self._found[shape, seed]

    def _outcome(self, env: Env) -> _Outcome | None:
        try:
            kept = tuple(bool(mask(env)) for mask in self.masks)
            score = 3 * _random("score", env["q"], env["k"], env["seed"])
            return _Outcome(kept, (score, *_scores(self.scores, env, score)) if all(kept) else ())
        except ArithmeticError:
            return None


def _scores(terms: Iterable[Function], env: Env, score: float) -> Iterator[float]:
    for term in terms:
        score = float(term(env | {"score": score}))
        yield score


class _Change:
    """Terms or inputs of another spec in the place of some of this one's."""

    def __init__(self, own: _Terms, other: Spec) -> None:
        spec = own.spec
        self._reads = [_Read(new) for new, old in zip(other.inputs, spec.inputs, strict=True) if new is not old]
        masks, scores = (
            [i for i, (new, old) in enumerate(zip(*both, strict=True)) if self._reads or new is not old]
            for both in ((other.masks, spec.masks), (other.scores, spec.scores))
        )
        self._same = [i for i in range(len(spec.masks)) if i not in masks]
        self._masks = {i: compiled(other.masks[i].keep) for i in masks}
        self._first = min(scores, default=len(spec.scores))
        self._scores = [compiled(term.score) for term in other.scores[self._first :]]

    def decides_at(self, places: Iterable[tuple[Env, _Outcome]]) -> bool:
        """True if one of some places is seen, or its score is, as the own spec does not have it."""
        for env, own in places:
            for i in self._same:
                if not own.kept[i]:
                    break  # hidden by a mask that has not changed
            else:
                if self._decides(env, own):
                    return True
        return False

    def _decides(self, env: Env, own: _Outcome) -> bool:
        if self._reads:
            env = env | {read.name: read.of(env) for read in self._reads}
        try:
            kept = list(own.kept)
            for i, mask in self._masks.items():
                kept[i] = bool(mask(env))
            if all(kept) != bool(own.scores):
                return True
            if not own.scores or not self._scores:
                return False
            *_, score = _scores(self._scores, env, own.scores[self._first])
        except ArithmeticError:
            return False
        return abs(own.scores[-1] - score) > _FAINT * max(1, abs(own.scores[-1]))


def _places(spec: Spec, shape: tuple[int, int], seed: int) -> Iterator[Env]:
    """The pairs of positions at which a number could decide, with all that terms read there."""
    q_len, k_len = shape
    numbers = {0, *_numbers(spec)}
    options = {o.keyword: suite_inputs.between(o, 17 if o.type == "int" else 0.25) for o in spec.options}
    bounds = tile_ranges.compared(spec)
    many = heads(spec)
    lengths = {"q_len": q_len, "k_len": k_len, "b": 0, "heads": many}
    for q in range(k_len - q_len, k_len, _STEP * max(1, q_len // ROWS)):
        centres = {place for n in numbers for place in (n, q - n, q + n, q // max(n, 1) * n, 2 * n, k_len - 1)}
        keys = {place + beside for place in centres for beside in (-1, 0, 1)}
        for k in sorted(k for k in keys if 0 <= k < k_len):
            for h in range(many):
                yield {**options, **lengths, "q": q, "k": k, "h": h, "kv_h": h, "seed": seed, _BOUNDS: bounds}


class _Read:
    """A plausible value of an input at a place, such as a suite draws."""

    def __init__(self, given: Input) -> None:
        self.name = given.name
        self._given, self._written = given, given.written

    def of(self, env: Env) -> float | Callable[..., float]:
        """The entry at a place; of an input that is indexed by hand, all of them."""
        return (lambda *index: self._entry(env, index)) if self._written else self._entry(env, ())

    def _entry(self, env: Env, index: tuple[float, ...]) -> float:
        given, written = self._given, iter(index)
        axes = enumerate(given.axes)
        places = [_place(axis, env, next(written) if i in self._written else None) for i, axis in axes]
        share = (_random(given.name, *places, env["seed"]) + 1) / 2
        if given.dtype == "bool":
            return share > 0.3
        if given.dtype == "float":
            return suite_inputs.between(given, 2 * share - 1)
        end = env["k_len"] + 1 if given.name in env[_BOUNDS] else 3
        return suite_inputs.between(given, int(suite_inputs.between(given, 0)) + int(share * end))


def _place(axis: Axis, env: Env, written: float | None) -> int:
    if axis.kind in ("batch", "head", "kv_head"):
        return int(env["b" if axis.kind == "batch" else "h"])
    first = env["k_len"] - env["q_len"]
    if written is None:
        return int(env["k"] if axis.kind == "key" else env["q"] - first) // int(axis.per)
    if math.isnan(written):
        raise ArithmeticError("an index is no number")
    place = int(written) - (first if axis.kind == "query" else 0)
    rows = env["q_len" if axis.kind == "query" else "k_len"]
    return max(0, min(place, (int(axis.size) if axis.kind == "size" else rows) - 1))


@functools.lru_cache(maxsize=2**16)
def _random(*of: object) -> float:
    """A number from -1 to 1 that hangs on what is given."""
    return int.from_bytes(hashlib.blake2b(repr(of).encode(), digest_size=4).digest(), "big") / 2**31 - 1
