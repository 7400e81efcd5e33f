"""Lengths of calls in which each number of a spec makes a difference: cases for the suites.

Numbers are changed one at a time, by one or by a twentieth, and the terms evaluated with and without the change at
places where they could differ. A difference found there needs no proof; a number without any decides nothing.
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

USUAL = (40, 70)  # queries and keys of a case that every suite has
ROWS = 12  # queries of the cases that are made here
LONGEST = 2**14  # the most keys of these cases
_STEP = 2  # distance of the rows that are examined; a number from which a length was made is the position of one
_SEEDS = 3  # draws of the call's tensors, in all of which a number has to make a difference
_HUNDREDS = (-120.0, -40.0, 40.0, 120.0)  # scores that result from a scale of 8
_STEEPEST = 5000  # the most by which softmax may amplify a score's relative error; for float32 gradients twice that
_SPARSE = 7  # distance of the places that are tried with such scores
_MOST_WORK = 300_000  # lengths times the work of one, if numbers decide in none: ten times that of shipped specs
_FAINT = 1e-5  # relative to a score: smaller differences cannot be told from rounding
_BOUNDS = "#bounds"  # key of an Env; no input has this name

Env = dict[str, Any]


def heads(spec: Spec) -> int:
    """Query heads of these calls: many if masks read values drawn for each head, on which a decision also depends."""
    read = {n.value for mask in spec.masks for n in mask.keep.walk() if n.op == "input"}
    return 8 if any(given.name in read and {"head", "kv_head"} & set(given.kinds) for given in spec.inputs) else 1


@functools.lru_cache(maxsize=64)  # each file printed for a spec asks for its cases
def cases(spec: Spec) -> tuple[tuple[int, int], ...]:
    """Queries and keys of calls for the numbers that make a difference in them, but none in a usual call."""
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
    """True if scores of a hundred lead to a softmax that rounding decides, as for a score's third power."""
    own = _Terms(spec)
    return bool(spec.scores) and any(own.steepness(env, score) > _STEEPEST for env in own.seen() for score in _HUNDREDS)


@dataclasses.dataclass(frozen=True)
class Decided:
    """Facts about a spec that only suites need: they take as long as much of a plan, so are computed on demand."""

    spec: Spec

    @functools.cached_property
    def far(self) -> tuple[tuple[int, int, int], ...]:
        """Queries, keys and heads of calls in which the numbers of the spec make a difference."""
        return tuple((*lengths, heads(self.spec)) for lengths in cases(self.spec))

    @functools.cached_property
    def steep(self) -> bool:
        """Whether scores of a hundred are too large for its terms."""
        return steep(self.spec)


def _numbers(spec: Spec) -> set[int]:
    """The integers with which positions may be compared: not those that are an index by themselves."""
    sides = (arg for term in spec.nodes for n in term.walk() if n.op != "input" for arg in n.args)
    found = {side.value for side in sides if side.op == "num" and type(side.value) is int}
    found |= {int(axis.per) for given in spec.inputs for axis in given.axes if axis.kind in ROW_AXES}
    return {n for n in found if isinstance(n, int) and n > 0}


def _lengths(spec: Spec) -> list[int]:
    """Keys of calls whose queries lie around a number, its double or triple, or the sum or product of two."""
    numbers = sorted(_numbers(spec))
    pairs = {f(a, b) for a in numbers for b in numbers for f in (int.__add__, int.__mul__)}
    ends = {n + ROWS // 2 for n in (*numbers, *pairs, *(3 * n for n in numbers))}
    found: list[int] = []
    for n in sorted(n for n in ends if USUAL[0] < n <= LONGEST):
        if not found or n - found[-1] >= ROWS // 4:  # else all but two of twelve queries would be at the same places
            found.append(n)
    return found


def _few(lengths: list[int], spec: Spec, waiting: int) -> list[int]:
    """The lengths, or as many of them as can be searched within seconds, from the first to the last."""
    nodes = sum(node.extent[1] for node in spec.nodes)
    work = len(lengths) * (1 + len(_numbers(spec))) * heads(spec) * nodes * waiting
    return lengths[:: 1 + work // _MOST_WORK]


def _changed(spec: Spec) -> Iterator[Spec]:
    """The specs with one number changed: at one place, at all places in a term, or as the rows that share an entry."""
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
        yield node.replaced(functools.partial(_other, [number]))
    for value in {n.value for n in numbers}:
        alike = [n for n in numbers if n.value == value]
        if len(alike) > 1:
            yield node.replaced(functools.partial(_other, alike))


def _other(numbers: list[Node], node: Node) -> Node | None:
    """Another number in place of one of these."""
    if not any(node is number for number in numbers):
        return None
    assert isinstance(node.value, (int, float))
    return dataclasses.replace(node, value=node.value + 1 if node.type == "int" else node.value * 1.05)


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
        """True if other terms differ somewhere in a call of this shape, whatever the call's tensors hold."""
        change = _Change(self, other)
        return all(change.decides_at(self._at(shape, seed)) for seed in range(_SEEDS))

    def seen(self) -> Iterator[Env]:
        """Some places of a usual call that the masks show."""
        yield from (env for env, own in self._at(USUAL, 0)[::_SPARSE] if own.scores)

    def steepness(self, env: Env, score: float) -> float:
        """The change of the last term's result as a multiple of the score's relative change."""
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
    """Terms or inputs of another spec in place of some of this one's."""

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
        """True if the change makes a difference at one of these places: in visibility, or in the score."""
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
    """The pairs of positions at which a number could make a difference, with all values that terms read there."""
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
        """The entry at a place; for an input that is indexed by hand, a function of the index."""
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
    """A number from -1 to 1 that depends on the arguments alone."""
    return int.from_bytes(hashlib.blake2b(repr(of).encode(), digest_size=4).digest(), "big") / 2**31 - 1
