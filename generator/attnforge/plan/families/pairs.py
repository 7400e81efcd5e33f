"""The gradient of an input that may have a value for each score: a kernel besides those of both passes."""

from __future__ import annotations

from dataclasses import replace

from ...expressions.inputs import HEAD_AXES, Input
from .. import programs, softmax, visibility
from ..access import CASTS, Access
from ..kernel_terms import KernelTerms
from ..parameters import Kernel, Parameter
from ..shared_parameters import TILED, SharedParameters
from ..sides import SIDE_OF
from ..statements import Block, Branch, Comment, Loop, Statement, needed, reads, serving
from .family import Pair
from .partition import numbers_first
from .recomputed import SCORES, ds


def kernel(p: SharedParameters, access: Access) -> Pair:
    """The kernel that computes the gradient of an input that may have a value for each score."""
    a, terms, given = p.analysis, replace(p.analysis.by_query, alone=(access,)), access.input
    places = {kind: i for i, kind in enumerate(given.kinds)}
    batch = f"{given.name}.shape[{places['batch']}]" if "batch" in places else "1"
    head = next((i for kind, i in places.items() if kind in ("head", "kv_head")), None)
    heads = "1" if head is None else f"{given.name}.shape[{head}]"
    (total,) = terms.sums
    keys = a.keys
    visited: tuple[Statement, ...] = (Statement("first, _, _, last", keys.call()),)
    if len(keys.ends) > 1:
        ends = (("first, _, _, _", "0"), ("_, _, _, last", str(len(keys.ends) - 1)))
        visited = tuple(Statement(target, keys.call(span)) for target, span in ends)
    place = f"{total.name}_ptr + place[:, None] * k_total + k_pos[None, :]"
    keep: tuple[Block, ...] = ()
    loads = tuple(load for load in terms.loads("step") if load.target != access.name)
    if terms.spec.masks:
        keep = (
            *terms.loads("mask"),
            *visibility.masked(terms, ("(row < q_len)[:, None]", "(k_pos < k_len)[None, :]")),
            Statement("p", "tl.where(keep, p, 0.0)"),
            *terms.guarded,
        )
    body: tuple[Block, ...] = (
        *ds(p, terms, loads, keep, softmax.passed_back(terms, softmax.kept_anywhere(terms))),
        Statement("before", total.name),
        *terms.outward,
        Branch("entries_ptr is not None", (Statement(total.name, f"tl.where(inside, {total.name}, before)"),)),
    )
    if p.spec.masks:
        visits = Statement("visits", "(k_start + BLOCK_N > first * BLOCK_N) & (k_start < last * BLOCK_N)")
        body = (*visited, visits, Branch("visits", body))
    shared, own_b = _sharing(given)
    numbers, of_program = numbers_first(terms, terms.loads("program"))
    inner = (*needed((*a.key_head, *of_program), reads(body)), *body)
    rows = (a.begin, *programs.rows("q"), *programs.rows("k"))
    sides = (("q_start", "q_len", "BLOCK_M"), ("k_start", "k_len", "BLOCK_N"))
    met = " & ".join(f"({start} < {count}) & ({start} + {block} > 0)" for start, count, block in sides)
    within = "((row >= 0) & (row < q_len))[:, None] & ((k_pos >= 0) & (k_pos < k_len))[None, :]"
    each: tuple[Block, ...] = (
        Statement("b, h", f"{own_b}, own_h * heads + i % heads"),
        *programs.sequence(a, "q", []),
        Comment("rows of the tile, in the numbering of the batch entry"),
        Statement("q_start, k_start", "own_q_start - q_offset, own_k_start - k_offset"),
        *needed(rows, {"row", "k_pos"} | reads(inner)),
        Statement("inside", within),
        Statement("meets", f"True if entries_ptr is None else {met}"),
        Branch("meets", inner),
    )
    kernel = Kernel(
        f"backward_{given.name}",
        (
            *p.operands("q_desc", "k_desc", "v_desc", "dout_desc"),
            Parameter(f"{total.name}_ptr", "*fp32", total.name, written=True),
            Parameter("lse_ptr", "*fp32", "lse"),
            Parameter("delta_ptr", "*fp32", "delta"),
            *p.sizes(),
            Parameter("all_batches", "i32", "q.shape[0]"),
            Parameter("own_batches", "i32", batch),
            Parameter("own_heads", "i32", heads),
            *p.given(terms),
            *p.dropped(),
            *p.constants("GROUP", *TILED),
        ),
        "portable/backward_pairs.jinja",
        f"({batch} * {heads} * {p.tiles('q')} * {p.tiles('k')},)",
        blocks={
            "opened": (*shared, *needed((*numbers, *a.scaled), reads(inner))),
            "start": (*serving(terms.readers(access), (_own_values(terms, access),)), *programs.zeros(terms, SCORES)),
            "visit": (Loop("i", "0", "batches * heads", each),),
            "store": serving(terms.readers(access), (Statement("", f"tl.store({place}, {total.name}, mask=inside)"),)),
        },
        texts={"input": given.keyword},
    )
    return Pair(access, terms, kernel, batch, heads)


def _own_values(terms: KernelTerms, access: Access) -> Statement:
    """The load of the values in a program's tile, which all batch entries and heads that share it read."""
    given, places, sides = access.input, [f"{access.input.name}_ptr"], []
    for stride, axis in terms.strides(given).items():
        if axis.kind in HEAD_AXES:
            own = "own_b" if axis.kind == "batch" else "own_h"
            places.append(f"tl.cast({own}, tl.int64) * {stride}")
    for side, block in (("q", "BLOCK_M"), ("k", "BLOCK_N")):
        (stride,) = (name for name, axis in terms.strides(given).items() if SIDE_OF.get(axis.kind) == side)
        sides.append(f"own_{side}_start + tl.arange(0, {block}), {stride}, {side}_total")
    value = f"load_pairs({' + '.join(places)}, {', '.join(sides)}){CASTS[given.dtype]}"
    return Statement(access.name, value, shape=SCORES)


def _sharing(given: Input) -> tuple[tuple[Statement, ...], str]:
    """The statements that count the batch entries and heads which share a program's; text of the i-th such entry."""
    axis = given.shared_batch
    if axis is None:
        shared = Statement("batches, heads", "all_batches // own_batches, Hq // own_heads")
        return (shared,), "own_b * batches + i // heads"
    heads = Statement("heads", "Hq // own_heads")
    if axis.rest:
        batches = Statement("batches", "tl.cdiv(all_batches - own_b, own_batches)")
        return (batches, heads), "own_b + i // heads * own_batches"
    per = Statement("share", f"tl.where(own_batches > 1, {axis.per}, all_batches)")
    batches = Statement("batches", "tl.minimum(share, all_batches - own_b * share)")
    return (per, batches, heads), "own_b * share + i // heads"
