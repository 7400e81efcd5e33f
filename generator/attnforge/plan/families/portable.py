"""FlashAttention-2 in plain Triton, for every spec and every GPU that Triton compiles for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from .. import latent, programs, rotation, softmax, uniform_entries, visibility
from ..access import Access
from ..kernel_terms import KernelTerms, Sum
from ..loops import Loops
from ..parameters import Kernel, Parameter
from ..shared_parameters import TILED, SharedParameters
from ..sides import Side
from ..statements import Block, Branch, Comment, Loop, Statement, needed, reads, serving
from . import pairs, tables
from .family import Family, Kernels


@dataclass(frozen=True)
class Keys:
    """How the forward pass reads tiles of keys."""

    operands: tuple[str, ...]  # the tensors from which it loads tiles
    parameters: tuple[Parameter, ...]  # further parameters for keys
    passed: tuple[str, ...]  # the arguments of a step for keys
    found: tuple[Statement, ...]  # the statements that find a head's keys
    tile: str  # text that loads a tile
    shape: str
    columns: str  # text of the tile with a key in each column
    constants: tuple[str, ...]


def rows_of_keys(p: SharedParameters) -> Keys:
    """Tiles of whole rows, transposed for the product."""
    tile = p.storage.tile("k", "k", p.analysis.kv, "BLOCK_N", "BLOCK_D")
    return Keys(
        ("q_desc", "k_desc", "v_desc"), (), ("k_desc",), (), tile, "[BLOCK_N, BLOCK_D]", "k_tile.T", ("GROUP", "DV")
    )


def forward(p: SharedParameters, keys: Keys) -> Kernel:
    """The kernel whose programs take one tile of queries, and loop over the keys that it sees."""
    a, terms = p.analysis, p.analysis.by_query
    results, loads, masked = ("acc", "m", "l"), _step_loads(p, terms), terms.loads("mask")
    used = softmax.used(terms)
    own, walked = ("q_tile", *latent.names(a, "q_rest")), (*keys.passed, *latent.names(a, "k_rest_desc"), "v_desc")
    uniform = uniform_entries.of(terms)
    step = p.step("attend", terms, results, own, walked, reads((*terms.score, *used, *uniform.ends)))
    # with parts by distance, whose loads are pipelined, the assembler serializes products in a joined loop
    joined = a.joined and not terms.by_distance.parts
    loops = Loops(a.keys, a.key_states, step.call, joined, step.tails, terms.narrowed, backwards=True)
    start = softmax.start(p.spec)
    return Kernel(
        "forward",
        (
            *p.operands(*keys.operands),
            *keys.parameters,
            Parameter("out_ptr", "*T", "out", written=True),
            Parameter("lse_ptr", "*fp32", "lse", written=True),
            *p.sizes(),
            *p.storage.aligned(),
            *p.given(terms),
            *p.skipped("q"),
            *p.sunk(),
            *p.dropped(),
            *p.constants(*keys.constants, *TILED),
            p.axis("q"),
        ),
        "portable/forward.jinja",
        in_groups(p, "q", "k, v"),
        step,
        {
            "step_loads": (
                *step.unpacked,
                *needed(programs.rows("k"), {"k_pos"} | reads(uniform.ends)),
                Statement("k_tile", keys.tile, shape=keys.shape),
            ),
            "scored": (*latent.scored(a, "q"), *uniform.scored((*loads, *terms.score))),
            "tail": programs.tail_cleared(a, "k", "v_tile"),
            "masked": (*masked, *visibility.of_keys(terms)),
            "unseen": softmax.unseen(p.spec),
            "used": used,
            "enter": (
                *programs.tile_of_queries(a, ("out", "DV")),
                *programs.opened(a, terms, "q", {"row"} | reads((*step.packed, *loops.blocks, *start))),
            ),
            "begin": (*keys.found, *programs.tile(a, "q", "q", "BLOCK_D"), *latent.opened(a, "q")),
            "start": start,
            "visit": (*step.packed, *loops.blocks),
            "empty": softmax.empty(p.spec),
        },
        {"keys": keys.columns, "weights": softmax.weights(p.spec)},
    )


def _step_loads(p: SharedParameters, terms: KernelTerms) -> tuple[Statement, ...]:
    """The loads of a step for scores; values of pairs in full tiles, where all keys exist, are loaded several at once.

    A mask that differs from key to key would have each loaded by itself.
    """
    if p.analysis.joined or p.storage.cut:
        return terms.loads("step")
    pairs = (access for access in terms.accesses if access.form == "pair" and access.input.dtype == "float")
    whole = (access for access in pairs if not any(axis.divided for axis in access.input.axes))
    values = {access.name: terms.pairs_of(access, "k_len if mixed else None") for access in whole}
    return tuple(replace(load, value=values.get(load.target, load.value)) for load in terms.loads("step"))


def in_groups(p: SharedParameters, own: Side, walked: str) -> str:
    """Text of a grid over heads and tiles of one side, whose programs walk along tensors."""
    heads = "q" if own == "q" else "k"
    return f"runtime.grid({p.storage.sequences} * {heads}.shape[-2], {p.parted(own)}, {walked})"


def _taken_backward(p: SharedParameters, terms: KernelTerms) -> Iterator[Parameter]:
    """The parameters of the kernels of dq and of dk, dv, apart from tiles and the results computed from them."""
    yield from (*p.sizes(), *p.storage.aligned(), *p.summed(terms))
    yield from (*p.given(terms), *p.skipped(terms.own), *p.dropped())
    # left out by a launch that computes dv alone
    only = ' if makes != "dv" else None' if terms.own == "k" else ""
    yield from (Parameter(f"{s.name}_ptr", "*fp32", f"{s.name}{only}", written=True) for s in terms.learned)
    yield from (Parameter(f"{name}_ptr", kind, name) for name, kind in terms.tables_back.items())
    yield from p.angles()


def _dkv(p: SharedParameters) -> Kernel:
    """The kernel of the gradients of a tile of keys, whose programs loop over the queries that see it."""
    a, terms = p.analysis, p.analysis.by_key
    results = ("dk", "dv", *latent.names(a, "dk_rest"), *(s.name for s in terms.sums))
    own = ("k_tile", "v_tile", *latent.names(a, "k_rest"))
    walked = ("q_desc", *latent.names(a, "q_rest_desc"), "dout_desc", "lse_desc", "delta_desc", "row_base")
    used, back = softmax.used_again(terms), softmax.passed_back(terms, "stays")
    loads, uniform = _step_loads(p, terms), uniform_entries.of(terms)
    scored = uniform.scored((*loads, *terms.inward))
    masked = (*terms.loads("mask"), *visibility.masked(terms, ["(row < q_len)[None, :]"]))
    read = reads((*terms.added, *terms.inward, *used, *back, *uniform.ends))
    step = p.step("accumulate_dkdv", terms, results, own, walked, read)
    step = replace(step, constants=(*step.constants, "MAKES"))
    loops = Loops(
        a.queries,
        a.query_states,
        step.call,
        a.joined,
        step.tails,
        terms.narrowed,
        full_if="k_start + BLOCK_N <= k_len" if loads != terms.loads("step") else "",
        full_why="behind the last key there are no values to load",
        tail_stages=1,
        tails_last=bool(terms.sums),
        known=a.shared_range,
    )
    by_head: tuple[Block, ...] = (
        Statement("row_base", p.storage.head_rows),
        *terms.loads("head"),
        *programs.zeros(terms, "[BLOCK_N]"),
        *(_row(terms, s, f"{p.storage.head_tokens(s.access.input)} + k_pos") for s in terms.tables),
        *step.packed,
        *loops.blocks,
        *(stored_by_key(p, terms, s) for s in terms.sums),
    )
    if p.spec.grouped:
        heads: tuple[Block, ...] = (Loop("h", "kv_h * GROUP", "(kv_h + 1) * GROUP", by_head),)
    else:
        why = "a single head: without a loop, the compiler generates slower code for 256 columns"
        heads = (Comment(why), Loop("_", "h", "h + 1", by_head))
    known = loops.range if a.shared_range else ()
    unrotate = latent.stored(a, "k") + rotation.back(a, "k", ("dk_ptr + first_row * D", f"{a.kv_heads} * D"))
    return Kernel(
        "backward_dkv",
        (
            *p.operands("q_desc", "k_desc", "v_desc", "dout_desc"),
            *p.vectors("lse", "delta"),
            Parameter("dk_ptr", "*T", "dk", written=True),
            Parameter("dv_ptr", "*T", "dv", written=True),
            *_taken_backward(p, terms),
            *p.constants("GROUP", "D", "DV", "PAIRS", *TILED, "BLOCK_PAIRS"),
            p.axis("k"),
            *p.constants("MAKES"),
        ),
        "portable/backward_dkv.jinja",
        in_groups(p, "k", "q, dout"),
        step,
        {
            "step_rows": (
                *step.unpacked,
                *needed(programs.rows("q"), {"row"} | reads((*scored, *masked, *used))),
            ),
            "step_loads": (*programs.tile(a, "q", "q", "BLOCK_D"), *programs.tile(a, "dout", "q", "BLOCK_DV")),
            "tail": programs.tail_cleared(a, "q", "q_tile", "dout_tile"),
            "scored": (*latent.scored(a, "k", programs.tail_cleared(a, "q", "q_rest")), *scored),
            "masked": masked,
            "guarded": terms.guarded,
            "used": used,
            "back": back,
            "outward": (*uniform.added(terms.outward), *latent.passed_back(a, "k", 'MAKES != "dv"')),
            "enter": (
                Statement("tile", "tl.program_id(TILE_AXIS)"),
                *((Statement("Hkv", "Hq // GROUP"),) if p.spec.grouped else ()),
                Statement(f"b, {a.kv}", f"batch_and_head({a.kv_heads}, TILE_AXIS)"),
                Statement("k_start", "tile * BLOCK_N"),
                *programs.sequence(a, "k", [("dk", "D"), ("dv", "DV")]),
                *programs.beyond(a, "k"),
                *programs.opened(a, terms, "k", reads((*known, *heads, *unrotate))),
            ),
            "begin": (
                *programs.tile(a, "k", "k", "BLOCK_D"),
                *latent.opened(a, "k"),
                *programs.tile(a, "v", "k", "BLOCK_DV"),
            ),
            "visit": (*latent.zeros(a, "k"), *known, *heads),
            "unrotate": (Branch('MAKES != "dv"', unrotate),) if unrotate else (),
        },
        {"weights": softmax.weights(p.spec)},
    )


def _row(terms: KernelTerms, total: Sum, place: str) -> Statement:
    """Finds the tables of a tile's rows in which a sum is accumulated."""
    return Statement(f"{total.name}_row", place, serves=terms.readers(total.access))


def stored_by_key(p: SharedParameters, terms: KernelTerms, total: Sum, *made: Statement) -> Block:
    """Stores a sum of a tile of keys, row by row, right after the statements in `made`."""
    return _stored_sum(terms, total, f"{p.storage.head_tokens(total.access.input)} + k_pos", "k_pos < k_len", *made)


def _stored_sum(terms: KernelTerms, total: Sum, place: str, mask: str, *made: Statement) -> Block:
    """Stores a sum if the call wants it, right after the statements in `made`."""
    ptr = f"{total.name}_ptr"
    store = Statement("", f"tl.store({ptr} + {place}, {total.name}, mask={mask})", serves=terms.readers(total.access))
    return Branch(f"{ptr} is not None", (*made, store))


def query_places(p: SharedParameters, access: Access) -> tuple[str, str, str]:
    """Texts of a head's start in an input's gradient, of its queries' offsets from there, and of which have one."""
    if access.row_axis.kind == "token":
        return p.storage.head_tokens(access.input), "q_pos", "(row < q_len) & (q_pos >= 0)"
    return p.storage.head_queries, "row", "row < q_len"


def _dq(p: SharedParameters) -> Kernel:
    """The kernel of the gradients of a tile of queries and of delta, whose programs loop over the keys that it sees."""
    a, terms = p.analysis, p.analysis.by_query
    results = ("dq", *latent.names(a, "dq_rest"), *(s.name for s in terms.sums))
    tiles = ("q_tile", *latent.names(a, "q_rest"), "dout_tile", "lse", "delta")
    walked = ("k_desc", *latent.names(a, "k_rest_desc"), "v_desc")
    back, uniform = softmax.passed_back(terms), uniform_entries.of(terms)
    read = reads((*terms.added, *terms.inward, *back, *uniform.ends))
    step = p.step("accumulate_dq", terms, results, tiles, walked, read)
    loops = Loops(a.keys, a.key_states, step.call, a.joined, step.tails, terms.narrowed)
    slot = "(b.to(tl.int64) * Hq + h) * tl.num_programs(TILE_AXIS) + tile"
    slots = (Statement("slot", slot),) if any(s.access.tie is None for s in terms.tables) else ()
    places = tuple(_row(terms, s, " + ".join(query_places(p, s.access)[:2])) for s in terms.tables if s.access.tie)
    stores = (
        *latent.stored(a, "q"),
        *rotation.back(a, "q", ("dq_ptr + first_row * D", "Hq * D")),
        *(_stored_by_query(p, terms, s, slot) for s in terms.sums),
    )
    return Kernel(
        "backward_dq",
        (
            *p.operands("q_desc", "k_desc", "v_desc", "out_desc", "dout_desc"),
            Parameter("dq_ptr", "*T", "dq", written=True),
            Parameter("lse_ptr", "*fp32", "lse"),
            Parameter("dlse_ptr", "*fp32", "dlse"),
            Parameter("delta_ptr", "*fp32", "delta", written=True),
            *_taken_backward(p, terms),
            *p.constants("GROUP", "D", "PAIRS", *TILED, "BLOCK_PAIRS"),
            p.axis("q"),
        ),
        "portable/backward_dq.jinja",
        in_groups(p, "q", "k, v"),
        step,
        {
            "step_loads": (
                *step.unpacked,
                *needed(programs.rows("k"), {"k_pos"} | reads(uniform.ends)),
                *programs.tile(a, "k", "k", "BLOCK_D"),
                *programs.tile(a, "v", "k", "BLOCK_DV"),
            ),
            "tail": programs.tail_cleared(a, "k", "k_tile", "v_tile"),
            "scored": (
                *latent.scored(a, "q", programs.tail_cleared(a, "k", "k_rest")),
                *uniform.scored((*_step_loads(p, terms), *terms.inward)),
            ),
            "masked": (*terms.loads("mask"), *visibility.of_keys(terms)),
            "guarded": terms.guarded,
            "back": back,
            "outward": (*uniform.added(terms.outward), *latent.passed_back(a, "q")),
            "enter": (
                *programs.tile_of_queries(a, ("dq", "D")),
                *programs.opened(
                    a, terms, "q", {"row"} | reads((*step.packed, *loops.blocks, *slots, *places, *stores))
                ),
            ),
            "begin": tuple(
                statement
                for x, columns in (("q", "BLOCK_D"), ("dout", "BLOCK_DV"), ("out", "BLOCK_DV"))
                for statement in programs.tile(a, x, "q", columns)
            )
            + latent.opened(a, "q"),
            "sums": (*latent.zeros(a, "q"), *programs.zeros(terms, "[BLOCK_M]"), *slots, *places),
            "visit": (*step.packed, *loops.blocks),
            "stores": stores,
        },
    )


def _stored_by_query(p: SharedParameters, terms: KernelTerms, total: Sum, slot: str) -> Block:
    """Stores a sum of a tile of queries: row by row, or their total if the input has one value for all of them."""
    name, access = total.name, total.access
    if access.side:
        *place, mask = query_places(p, access)
        return _stored_sum(terms, total, " + ".join(place), mask)
    whole = (
        Statement(name, f"tl.where(row < q_len, {name}, 0.0)"),
        Statement("", f"tl.store({name}_ptr + {slot}, tl.sum({name}, 0))"),
    )
    return Branch(f"{name}_ptr is not None", serving(terms.readers(access), whole))


def kernels(p: SharedParameters) -> Kernels:
    """The kernels of both passes."""
    accesses = (access for access in p.analysis.by_query.accesses if access.input.grad and access.form == "pair")
    of_pairs = tuple(pairs.kernel(p, access) for access in accesses)
    return Kernels(forward(p, rows_of_keys(p)), _dkv(p), _dq(p), of_pairs, tables.build(p))


PORTABLE = Family("portable", lambda spec: spec.algorithm.backward, kernels)
