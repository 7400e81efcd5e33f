# Written by attnforge. Do not edit: it is the same in every package.
#
#   made from     templates/ranks/ranks.py.jinja
#   content hash  25b3e357d19df215
#   text hash     05d5990cab708f60
#   render with   attnforge render SPEC
"""Tokens that the ranks of a process group share out: each has a part of them, and the keys of all are gathered."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.distributed as dist

from . import arguments


class Along(NamedTuple):
    """An input's axes of queries and of keys, counted from its last axis, and how many tokens have an entry there."""

    query: tuple[int, int] | None = None
    key: tuple[int, int] | None = None


class Parts:
    """The parts of the tokens, as one rank sees them.

    With `zigzag`, tokens are cut into twice as many stretches as there are ranks, and a rank has one from either end:
    under a causal mask all ranks have as much to do then. Otherwise each has one stretch.
    """

    def __init__(self, group, zigzag):
        arguments.as_bool("zigzag", zigzag)
        outside = "group: expected one that has this rank"
        # compilers know of no attributes of process groups
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

    def stretches(self, rows, name="q"):
        """The stretches of a rank's `rows` tokens: their rows, and where they begin and end among all tokens."""
        if self.pieces == self.count:
            return [(slice(0, rows), self.rank * rows, (self.rank + 1) * rows)]
        if rows % 2:
            raise ValueError(f"{name}: expected an even number of tokens on each rank, or zigzag=False, got {rows}")
        half, late = rows // 2, self.pieces - self.rank
        early = slice(0, half), self.rank * half, (self.rank + 1) * half
        return [early, (slice(half, rows), (late - 1) * half, late * half)]

    def cut(self, x, axis):
        """This rank's part of what all ranks have."""
        rows = x.shape[axis]
        if rows % self.pieces:
            raise ValueError(f"x: expected a multiple of {self.pieces} along axis {axis}, got {rows}")
        found = self.stretches(rows // self.count)
        return torch.cat([x.narrow(axis, first, last - first) for _, first, last in found], axis)

    def gathered(self, x, axis):
        """The parts of all ranks, in the order of the tokens; gradients are those of all ranks, added up."""
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
    """The tensors of all ranks, one behind the other."""

    @staticmethod
    def forward(ctx, x, group, count):
        ctx.group, ctx.rows = group, x.shape[0]
        found = x.new_empty(count * x.shape[0], *x.shape[1:])
        _collective("all_gather")(found, x.contiguous(), group=group)
        return found

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dx):
        # in float32 at least, so that a sum over many ranks is rounded once
        wide = dx.to(torch.promote_types(dx.dtype, torch.float32))
        total = wide.new_empty(ctx.rows, *wide.shape[1:])
        _collective("reduce_scatter")(total, wide.contiguous(), group=ctx.group)
        return total.to(dx.dtype), None, None


def _collective(name):
    """A collective over one tensor, by the name that torch has for it: before 2.13 there is no `..._single`."""
    older = {"all_gather": "all_gather_into_tensor", "reduce_scatter": "reduce_scatter_tensor"}[name]
    return getattr(dist, f"{name}_single", None) or getattr(dist, older)


def part(x: torch.Tensor, axis: int, group=None, *, zigzag: bool = True) -> torch.Tensor:
    """This rank's part of a tensor that all ranks have, cut along an axis of tokens.

    x: a tensor whose axis is a multiple of the ranks, with `zigzag` of twice as many
    group: the ranks, a process group or a DeviceMesh of one dimension; all if None
    zigzag: whether a rank has a stretch from either end, in place of one stretch
    """
    return Parts(group, zigzag).cut(x, _checked(x, axis))


def whole(x: torch.Tensor, axis: int, group=None, *, zigzag: bool = True) -> torch.Tensor:
    """The parts of all ranks along an axis, in the order of the tokens; its gradient is what all ranks ask of x.

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


def attend(attention, parts, inputs, q, k, v, terms, *, placed, behind, k_lens, k_starts, q_start, scale, return_lse):
    """What `attention` gives to this rank's queries.

    inputs: of terms with an axis along tokens, their `Along`
    terms: the call's keywords that stem from the spec
    placed: whether it matters at which positions queries stand; if not, no call has to say where they do
    behind: whether keys behind the last query of a stretch can be left out
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
    terms = _gathered(parts, inputs, terms, q.shape[1], k.shape[1])
    k, v = parts.gathered(k, 1), parts.gathered(v, 1)
    found = []
    for rows, first, last in stretches:
        seen = slice(0, last if behind else keys)
        start = None if q_start is None else q_start + first
        found.append(
            attention(
                q[:, rows], k[:, seen], v[:, seen], **_cut(inputs, terms, rows, seen), k_lens=k_lens, k_starts=k_starts,
                q_start=start, scale=scale, return_lse=return_lse,
            )
        )  # fmt: skip
    return _joined(found, return_lse, (1, 2))


def attend_packed(attention, parts, inputs, q, k, v, terms, *, behind, cu_seqlens, max_seqlen, scale, return_lse):
    """The same of sequences that are packed; `cu_seqlens` and `max_seqlen` are those of all tokens."""
    if q.shape[0] != k.shape[0]:
        raise ValueError(f"k: expected the {q.shape[0]} tokens of q, got {k.shape[0]}")
    tokens = parts.count * q.shape[0]
    cu_seqlens, longest = arguments.cuts("cu_seqlens", cu_seqlens, "max_seqlen", max_seqlen, q, tokens)
    stretches = parts.stretches(q.shape[0])
    terms = _gathered(parts, inputs, terms, q.shape[0], q.shape[0])
    k, v = parts.gathered(k, 0), parts.gathered(v, 0)
    found = []
    for rows, first, last in stretches:
        seen = slice(0, last if behind else tokens)
        found.append(
            attention(
                q[rows], k[seen], v[seen], **_cut(inputs, terms, rows, seen),
                cu_seqlens_q=cu_seqlens.clamp(first, last) - first, cu_seqlens_k=cu_seqlens.clamp(max=seen.stop),
                max_seqlen_q=min(longest, last - first), max_seqlen_k=min(longest, seen.stop), scale=scale,
                return_lse=return_lse,
            )
        )  # fmt: skip
    return _joined(found, return_lse, (0, 1))


def _gathered(parts, inputs, terms, queries, keys):
    """The call's keywords with inputs gathered that have keys and no queries, of which a rank has so many."""
    found = dict(terms)
    for name, along in inputs.items():
        x, rows = found[name], queries if along.query else keys
        axis, per = along.query or along.key
        if not isinstance(x, torch.Tensor) or x.dim() < -axis:
            continue  # left out, or `attention` tells what is wrong
        step = parts.count * rows // parts.pieces
        if step % per:
            raise ValueError(
                f"{name}: expected stretches of a multiple of {per} tokens, as so many have an entry, got {step}"
            )
        _check_size(name, x, axis, rows // per, "this rank's")
        if along.query and along.key and x.dim() >= -along.key[0]:
            _check_size(name, x, along.key[0], math.ceil(parts.count * keys / along.key[1]), "all ranks'")
        if not along.query and x.shape[axis] == rows // per:  # one may stand for all
            found[name] = parts.gathered(x, axis)
    return found


def _check_size(name, x, axis, size, whose):
    if x.shape[axis] not in (1, size):
        raise ValueError(f"{name}: expected {whose} {size} along axis {axis}, got shape {tuple(x.shape)}")


def _cut(inputs, terms, rows, seen):
    """The call's keywords for the queries of some rows and the keys that are `seen`."""
    cut = {name: _stretch(_stretch(terms[name], x.query, rows), x.key, seen) for name, x in inputs.items()}
    return terms | cut


def _stretch(x, place, rows):
    """Some rows of an input's axis; all of it where one entry stands for all."""
    if place is None or not isinstance(x, torch.Tensor) or x.dim() < -place[0] or x.shape[place[0]] == 1:
        return x
    axis, per = place
    return x[(..., slice(rows.start // per, math.ceil(rows.stop / per)), *[slice(None)] * (-axis - 1))]


def _joined(found, return_lse, axes):
    """The results of stretches as one; with an LSE, out and LSE along their axes."""
    if not return_lse:
        return torch.cat(found, axes[0])
    return tuple(torch.cat(one, axis) for one, axis in zip(zip(*found), axes))
