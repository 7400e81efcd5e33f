# Written by attnforge. Do not edit: it is the same in every package.
#
#   made from     templates/ranks/ranks.py.jinja
#   content hash  6c71a7a9d36c1327
#   text hash     9cb42e51fd173d69
#   render with   attnforge render SPEC
"""Tokens divided among the ranks of a process group: each has a part and receives the keys that its queries see."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.distributed as dist

from . import arguments


class Along(NamedTuple):
    """An input's axes of queries and of keys, counted from its last axis, each with the number of tokens per entry."""

    query: tuple[int, int] | None = None
    key: tuple[int, int] | None = None


class Parts:
    """The parts of the tokens, as one rank sees them.

    With `zigzag`, tokens are cut into twice as many stretches as there are ranks, and each rank has one from either
    end, which gives all ranks the same amount of work under a causal mask. Otherwise each rank has one stretch.
    """

    def __init__(self, group, zigzag):
        arguments.as_bool("zigzag", zigzag)
        outside = "group: expected one that has this rank"
        # compilers do not support attributes of process groups
        mesh = group is not None and not isinstance(group, dist.ProcessGroup) and hasattr(group, "get_group")
        if mesh:
            if group.ndim != 1:
                raise ValueError(f"group: expected a DeviceMesh of one dimension, got one of {group.ndim}")
            if group.get_coordinate() is None:
                raise ValueError(outside)
            group = group.get_group()
        there = group is not None or dist.is_available() and dist.is_initialized()
        self.group, self.rank, self.count = group, 0, 1
        if there:
            self.rank, self.count = dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise ValueError(outside)
        self.pieces = self.count * (2 if zigzag and self.count > 1 else 1)
        self.own = [self.rank, self.pieces - 1 - self.rank][: self.pieces // self.count]  # stretches of this rank

    def stretches(self, rows, name="q"):
        """The stretches of a rank's `rows` tokens: their rows, and their beginning and end among all tokens."""
        if rows % len(self.own):
            raise ValueError(f"{name}: expected an even number of tokens on each rank, or zigzag=False, got {rows}")
        size = rows // len(self.own)
        return [(slice(i * size, (i + 1) * size), n * size, (n + 1) * size) for i, n in enumerate(self.own)]

    def holder(self, stretch):
        """The rank that has a stretch of all, and which of its stretches that is."""
        return (stretch, 0) if stretch < self.count else (self.pieces - 1 - stretch, 1)

    def cut(self, x, axis):
        """This rank's part of a tensor that all ranks have."""
        rows = x.shape[axis]
        if rows % self.pieces:
            raise ValueError(f"x: expected a multiple of {self.pieces} along axis {axis}, got {rows}")
        found = self.stretches(rows // self.count)
        return torch.cat([x.narrow(axis, first, last - first) for _, first, last in found], axis)

    def gathered(self, x, axis):
        """The parts of all ranks, in the order of the tokens; gradients are summed over all ranks."""
        if self.count == 1:
            return x
        self.stretches(x.shape[axis], "x")
        x = x.movedim(axis, 0)
        found = _Gathered.apply(x, self.group, self.count)
        if self.pieces > self.count:
            early, late = found.unflatten(0, (self.count, 2, x.shape[0] // 2)).unbind(1)
            found = torch.cat([*early.unbind(), *late.unbind()[::-1]])
        return found.movedim(0, axis)


class _Gathered(torch.autograd.Function):
    """The tensors of all ranks, concatenated."""

    @staticmethod
    def forward(ctx, x, group, count):
        ctx.group, ctx.rows = group, x.shape[0]
        found = x.new_empty(count * x.shape[0], *x.shape[1:])
        _collective("all_gather")(found, x.contiguous(), group=group)
        return found

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dx):
        # in at least float32, so that a sum over many ranks is rounded once
        wide = dx.to(torch.promote_types(dx.dtype, torch.float32))
        total = wide.new_empty(ctx.rows, *wide.shape[1:])
        _collective("reduce_scatter")(total, wide.contiguous(), group=ctx.group)
        return total.to(dx.dtype), None, None


def _collective(name):
    """A collective over one tensor, under the name that torch has for it: before 2.13 there is no `..._single`."""
    older = {"all_gather": "all_gather_into_tensor", "reduce_scatter": "reduce_scatter_tensor"}[name]
    return getattr(dist, f"{name}_single", None) or getattr(dist, older)


# keys of a stretch start at a multiple of this, as tiles do: results keep their bits, except with running sums, and in
# packed sequences, whose tiles start at their own first keys
ALIGNED = 256


def window_starts(parts, rows, back, step):
    """For each stretch of all ranks, the first key that its queries see, rounded down to a multiple of `step`.

    No query sees further back than `back` keys. None if a rank would receive as many keys as by gathering all.
    """
    own = len(parts.own)
    if own * (back + step) >= (parts.pieces - own) * rows:
        return None
    return [max(stretch * rows - back, 0) // step * step for stretch in range(parts.pieces)]


def exchange(parts, starts, rows):
    """The rows that this rank sends and receives, so that each stretch has those from its entry in `starts` on."""
    sent, received = [[] for _ in range(parts.count)], [[] for _ in range(parts.count)]
    order = [[] for _ in parts.own]
    for seeing, start in enumerate(starts):
        taker, sees = parts.holder(seeing)
        for stretch in range(start // rows, seeing):
            giver, own = parts.holder(stretch)
            first = max(start, stretch * rows)
            if giver == parts.rank:
                sent[taker].append((own, first - stretch * rows))
            if taker == parts.rank:
                order[sees].append((giver, len(received[giver])))
                received[giver].append((sees, first - start, (stretch + 1) * rows - first))
    return rows, sent, received, order


class _WithNeighbours(torch.autograd.Function):
    """The rows of each stretch of a rank, preceded by rows of earlier stretches, as `exchange` finds them.

    sent: for each rank, pairs (own stretch, first row): the rows of the stretch from there on go to that rank
    received: for each rank, triples (own stretch, offset, rows): the piece is at that offset of the stretch's result
    order: for each own stretch, the pieces before it, as pairs (rank, index of the piece among those it sends)
    """

    @staticmethod
    def forward(ctx, x, rows, sent, received, order, group):
        ctx.rows, ctx.sent, ctx.received, ctx.group = rows, sent, received, group
        own = x.split(rows)
        given = [[own[i][first:] for i, first in to] for to in sent]
        taken = _exchanged(given, [[n for *_, n in by] for by in received], x, group)
        return tuple(torch.cat([*(taken[rank][i] for rank, i in before), own[n]]) for n, before in enumerate(order))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *gradients):
        # in at least float32, so that a sum over stretches is rounded once
        wide = [dx.to(torch.promote_types(dx.dtype, torch.float32)) for dx in gradients]
        given = [[wide[i][place : place + n] for i, place, n in by] for by in ctx.received]
        taken = _exchanged(given, [[ctx.rows - first for _, first in to] for to in ctx.sent], wide[0], ctx.group)
        total = torch.stack([dx[-ctx.rows :] for dx in wide])
        for to, pieces in zip(ctx.sent, taken):
            for (i, first), piece in zip(to, pieces):
                total[i, first:] += piece
        return total.flatten(0, 1).to(gradients[0].dtype), None, None, None, None, None


def _exchanged(given, sizes, like, group):
    """Sends pieces to each rank, and returns the pieces of `sizes` rows from each; `like` has their other axes."""
    pieces = [piece for to in given for piece in to]
    # joined pieces may keep an order of axes that they had in memory
    sending = (torch.cat(pieces) if pieces else like[:0]).contiguous()
    found = like.new_empty(sum(map(sum, sizes)), *like.shape[1:])
    dist.all_to_all_single(found, sending, [*map(sum, sizes)], [sum(map(len, to)) for to in given], group=group)
    each = iter(found.split([n for by in sizes for n in by]))
    return [[next(each) for _ in by] for by in sizes]


def part(x: torch.Tensor, axis: int, group=None, *, zigzag: bool = True) -> torch.Tensor:
    """This rank's part of a tensor that all ranks have, cut along an axis of tokens.

    x: a tensor whose axis is a multiple of the number of ranks, or with `zigzag` of twice that
    group: the ranks, a process group or a DeviceMesh of one dimension; all if None
    zigzag: whether each rank has a stretch from either end, instead of a single stretch
    """
    return Parts(group, zigzag).cut(x, _checked(x, axis))


def whole(x: torch.Tensor, axis: int, group=None, *, zigzag: bool = True) -> torch.Tensor:
    """The parts of all ranks along an axis, in the order of the tokens; the gradient of x is summed over all ranks.

    x: a rank's part, as `part` cuts it; group, zigzag: as there
    """
    return Parts(group, zigzag).gathered(x, _checked(x, axis))


def _checked(x, axis):
    """The axis, if the tensor has it."""
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"x: expected a tensor, got {type(x).__name__}")
    axis = arguments.as_int("axis", axis)
    if not -x.dim() <= axis < x.dim():
        raise ValueError(f"axis: expected one of the {x.dim()} that x has, got {axis}")
    return axis


def attend(
    attention,
    parts,
    inputs,
    q,
    k,
    v,
    terms,
    *,
    placed,
    behind,
    near,
    angles,
    k_lens,
    k_starts,
    q_start,
    scale,
    return_lse,
):
    """The result of `attention` for this rank's queries.

    inputs: for terms with an axis along tokens, their `Along`
    terms: the call's keywords that come from the spec
    placed: whether the positions of queries matter; if not, no call has to state them
    behind: whether keys after the last query of a stretch can be left out
    near: (how many keys before its own position a query sees, the step in which earlier keys can be left out); None if
        they are needed
    angles: the keywords with one row per position
    """
    queries, keys = parts.count * q.shape[1], parts.count * k.shape[1]
    if q_start is not None and not isinstance(q_start, torch.Tensor):
        q_start = arguments.as_int("q_start", q_start, minimum=-(2**28), maximum=2**28 - queries)
    plain = k_lens is k_starts is q_start is None
    if placed and q_start is None and not plain:
        raise ValueError("q_start: expected the position of the first query of all ranks beside k_lens and k_starts")
    behind = behind and plain and queries == keys
    if placed and not behind and q_start is None:
        if queries > keys:
            raise ValueError(
                f"q: expected no more queries than keys, as terms read positions, got {queries} and {keys}"
            )
        q_start = keys - queries
    stretches = parts.stretches(q.shape[1])
    parts.stretches(k.shape[1], "k")
    seen = Seen(parts, stretches, keys, behind, near, inputs)
    calls = _calls(seen, inputs, terms, q.shape[1], k.shape[1], angles)
    found = []
    for (rows, first, _), k_seen, v_seen, given in zip(stretches, seen.of(k, -3), seen.of(v, -3), calls):
        start = None if q_start is None else q_start + first
        found.append(
            attention(
                q[:, rows], k_seen, v_seen, **given, k_lens=k_lens, k_starts=k_starts, q_start=start, scale=scale,
                return_lse=return_lse,
            )
        )  # fmt: skip
    return _joined(found, return_lse, (1, 2))


def attend_packed(attention, parts, inputs, q, k, v, terms, *, behind, near, cu_seqlens, max_seqlen, scale, return_lse):
    """The same for packed sequences; `cu_seqlens` and `max_seqlen` are those of all tokens."""
    if q.shape[0] != k.shape[0]:
        raise ValueError(f"k: expected the {q.shape[0]} tokens of q, got {k.shape[0]}")
    tokens = parts.count * q.shape[0]
    cu_seqlens, longest = arguments.cuts("cu_seqlens", cu_seqlens, "max_seqlen", max_seqlen, q, tokens)
    stretches = parts.stretches(q.shape[0])
    seen = Seen(parts, stretches, tokens, behind, near, inputs)
    calls = _calls(seen, inputs, terms, q.shape[0], q.shape[0])
    found = []
    for (rows, first, last), keys, k_seen, v_seen, given in zip(
        stretches, seen.keys, seen.of(k, -3), seen.of(v, -3), calls
    ):
        found.append(
            attention(
                q[rows], k_seen, v_seen, **given, cu_seqlens_q=cu_seqlens.clamp(first, last) - first,
                cu_seqlens_k=cu_seqlens.clamp(keys.start, keys.stop) - keys.start,
                max_seqlen_q=min(longest, last - first), max_seqlen_k=min(longest, keys.stop - keys.start),
                scale=scale, return_lse=return_lse,
            )
        )  # fmt: skip
    return _joined(found, return_lse, (0, 1))


class Seen:
    """The keys that the queries of each stretch of a rank see, counted over the tokens of all ranks."""

    def __init__(self, parts, stretches, keys, behind, near, inputs):
        self.parts, self.stretches = parts, [rows for rows, *_ in stretches]
        self.rows = stretches[0][2] - stretches[0][1]
        self.starts, self.exchanges = None, {}
        if behind and near is not None:
            # tokens that share an entry of an input must not be separated
            shared = (along.key[1] for along in inputs.values() if along.key)
            self.starts = window_starts(parts, self.rows, near[0], math.lcm(ALIGNED, near[1], *shared))
        self.keys = [
            slice(0 if self.starts is None else self.starts[n], last if behind else keys)
            for n, (*_, last) in zip(parts.own, stretches)
        ]

    def of(self, x, axis, per=1):
        """For each stretch, its keys' entries, from this rank's part of a tensor with one entry per `per` tokens."""
        if self.starts is None:
            whole = self.parts.gathered(x, axis)
            return [_stretch(whole, (axis, per), keys) for keys in self.keys]
        if per not in self.exchanges:
            self.exchanges[per] = exchange(self.parts, [start // per for start in self.starts], self.rows // per)
        found = _WithNeighbours.apply(x.movedim(axis, 0), *self.exchanges[per], self.parts.group)
        return [one.movedim(0, axis) for one in found]


def _calls(seen, inputs, terms, queries, keys, angles=()):
    """The keywords of each stretch's call; `queries` and `keys` are a rank's, `angles` have one row per position."""
    calls = [dict(terms) for _ in seen.keys]
    for name, along in inputs.items():
        x, rows = terms[name], queries if along.query else keys
        axis, per = along.query or along.key
        if not isinstance(x, torch.Tensor) or x.dim() < -axis:
            continue  # left out, or `attention` reports what is wrong
        step = rows // len(seen.parts.own)
        if step % per:
            raise ValueError(
                f"{name}: expected stretches of a multiple of {per} tokens, as so many have an entry, got {step}"
            )
        _check_size(name, x, axis, rows // per, "this rank's")
        if along.query and along.key and x.dim() >= -along.key[0]:
            _check_size(name, x, along.key[0], math.ceil(seen.parts.count * keys / along.key[1]), "all ranks'")
        if not along.query and x.shape[axis] == rows // per:  # a single entry may apply to all
            found = seen.of(x, axis, per)
        else:
            found = [_stretch(_stretch(x, along.query, q), along.key, k) for q, k in zip(seen.stretches, seen.keys)]
        for call, one in zip(calls, found):
            call[name] = one
    for name in angles:
        for call, keys in zip(calls, seen.keys):
            call[name] = terms[name][keys.start :] if isinstance(terms[name], torch.Tensor) else terms[name]
    return calls


def _check_size(name, x, axis, size, whose):
    if x.shape[axis] not in (1, size):
        raise ValueError(f"{name}: expected {whose} {size} along axis {axis}, got shape {tuple(x.shape)}")


def _stretch(x, place, rows):
    """Some rows of an input's axis; all of it if one entry applies to all."""
    if place is None or not isinstance(x, torch.Tensor) or x.dim() < -place[0] or x.shape[place[0]] == 1:
        return x
    axis, per = place
    return x[(..., slice(rows.start // per, math.ceil(rows.stop / per)), *[slice(None)] * (-axis - 1))]


def _joined(found, return_lse, axes):
    """Join the results of stretches; with an LSE, out and LSE along their axes."""
    if not return_lse:
        return torch.cat(found, axes[0])
    return tuple(torch.cat(one, axis) for one, axis in zip(zip(*found), axes))
