"""The gradients of tables whose entries are the same in all batch entries: a kernel that sums over these first.

To add up a tile's gradients of scores by entry takes a pass over the tile for each entry. If all batch entries read the
same entries at the same places, the gradients are summed over them before that, in registers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from ...expressions import by_distance
from ...expressions.tree import Node
from .. import positions, programs, softmax, visibility
from ..access import Access
from ..analysis import Analysis
from ..kernel_terms import KernelTerms, Sum
from ..parameters import Kernel, Parameter
from ..shared_parameters import TILED, SharedParameters
from ..statements import Block, Loop, Statement, needed, reads, serving
from .family import Tables
from .recomputed import SCORES, ds


def build(p: SharedParameters) -> Tables | None:
    """The kernel of these gradients, if there are any."""
    accesses = _served(p)
    if not accesses:
        return None
    terms = replace(p.analysis.by_query, alone=accesses)
    by_head = any(map(_by_head, accesses))
    entries = sum(math.prod(access.input.sizes) for access in accesses)
    return Tables(terms, _kernel(p, terms, by_head=by_head), by_head, entries)


def _served(p: SharedParameters) -> tuple[Access, ...]:
    """The accesses to such tables. Positions of packed sequences differ, and sums by distance are another matter."""
    terms = p.analysis.by_query

    def served(access: Access) -> bool:
        of_call = (n.op == "input" and terms.access(n).input.axes for index in access.index for n in index.walk())
        alike = access.input.shared and not _reads(access, "b") and not any(of_call)
        return alike and not all(map(_in_distances, access.index))

    found = () if p.storage.cut else tuple(s.access for s in terms.tables if served(s.access))
    # an input's sums have the same shape, as the host adds them up
    partials = (partial.access for part in terms.by_distance.parts for partial in part.partials)
    others = {access.input for access in (*terms.accesses, *partials) if access not in found}
    return tuple(access for access in found if access.input not in others)


def _in_distances(index: Node) -> bool:
    """True if an index depends on positions only by the distance from key to query."""
    return not any(n.op == "var" and n.value in ("q", "k") for n in by_distance.at_distance(index).walk())


def _by_head(access: Access) -> bool:
    """True if heads may read different entries."""
    return not {"head", "kv_head"}.isdisjoint(access.input.kinds) or _reads(access, "h", "kv_h")


def _reads(access: Access, *names: str) -> bool:
    """True if an index depends on one of these variables."""
    return any(n.op == "var" and n.value in names for index in access.index for n in index.walk())


def _kernel(p: SharedParameters, terms: KernelTerms, *, by_head: bool) -> Kernel:
    """The kernel, whose programs own a tile of queries and a share of the batch entries, of one head or of all."""
    a = p.analysis
    begin = Statement(positions.BEGIN, "k_len - q_len")
    rows = (*a.key_head, begin, *programs.rows("q"), *a.scaled)
    own, of_entry, varying = _split((*rows, *terms.loads("program")), {"b"} if by_head else {"b", "h"})
    fixed, loaded, varying = _split((*programs.rows("k"), *terms.loads("step"), *terms.loads("mask")), varying)
    keep, hidden = visibility.of_keys(terms), Statement("p", "tl.where(keep, p, 0.0)")
    by_entry = not varying.isdisjoint(reads(keep))
    masked = (*keep, hidden, *terms.guarded) if by_entry else ()
    body: tuple[Block, ...] = (
        *ds(p, terms, loaded, masked, softmax.passed_back(terms)),
        *terms.outward,
    )
    place = "share + j * shares"
    found = Statement("b", place) if by_head else Statement("b, h", f"({place}) // Hq, ({place}) % Hq")
    each = (found, *needed(of_entry, reads(body)), *body)
    many = "all_batches" if by_head else "all_batches * Hq"
    step: tuple[Block, ...] = (
        *programs.zeros(terms, SCORES),
        Loop("j", "0", f"tl.cdiv({many} - share, shares)", each),
        *(block for total in terms.learned for block in _added(terms, total, () if by_entry else _hidden(total))),
    )
    step = (*(() if by_entry else keep), *step)
    step = (*needed((Statement("k_start", "i * BLOCK_N"), *fixed), {"k_start"} | reads(step)), *step)
    visit = _visited(a, varying, step)
    drawn = Statement("drawn", "0")
    enter = (*_program(by_head=by_head), *needed((drawn, *own), reads(visit)))
    return Kernel(
        "backward_tables",
        (
            *p.operands("q_desc", "k_desc", "v_desc", "dout_desc"),
            Parameter("lse_ptr", "*fp32", "lse"),
            Parameter("delta_ptr", "*fp32", "delta"),
            *(size for size in p.sizes() if size.name not in p.storage.told),
            Parameter("all_batches", "i32", "q.shape[0]"),
            Parameter("shares", "i32", "_shares(q, block_m)"),
            *p.given(terms),
            *p.dropped(),
            *(Parameter(f"{s.name}_ptr", "*fp32", s.name, written=True) for s in terms.learned),
            *p.constants("GROUP", *TILED),
        ),
        "portable/backward_tables.jinja",
        f"(_shares(q, block_m) * {'q.shape[-2] * ' if by_head else ''}{p.tiles('q')},)",
        blocks={"enter": enter, "visit": visit},
        texts={
            "inputs": ", ".join(dict.fromkeys(s.access.input.keyword for s in terms.learned)),
            "summed": "of" if by_head else "head of",
        },
    )


def _program(*, by_head: bool) -> tuple[Statement, ...]:
    """The statements that find a program's tile of queries, its head if it has one, and its share of the batch."""
    other = "tl.program_id(0) // own_tiles"
    place = Statement("h, share", f"{other} % Hq, {other} // Hq") if by_head else Statement("share", other)
    return (
        Statement("slot", "tl.program_id(0).to(tl.int64)"),
        Statement("own_tiles", "tl.cdiv(q_total, BLOCK_M)"),
        Statement("q_start", "tl.program_id(0) % own_tiles * BLOCK_M"),
        place,
        Statement("q_offset, q_len, k_offset, k_len", "0, q_total, 0, k_total"),
    )


def _visited(a: Analysis, varying: frozenset[str], step: tuple[Block, ...]) -> tuple[Block, ...]:
    """The loop over the tiles of keys: all of them, if ranges differ between batch entries or take a call's tensors."""
    many = len(a.keys.ends) > 1
    found = Statement("first, _, _, last", a.keys.call("span" if many else ""))
    if a.keys.whole or a.key_states or varying & found.reads:
        return (Loop("i", "0", "tl.cdiv(k_len, BLOCK_N)", step),)
    tiles: tuple[Block, ...] = (found, Loop("i", "first", "last", step))
    return (Loop("span", "0", str(len(a.keys.ends)), tiles),) if many else tiles


def _hidden(total: Sum) -> tuple[Statement, ...]:
    """The statement that leaves out hidden scores."""
    return (Statement(total.name, f"tl.where(keep, {total.name}, 0.0)"),)


def _added(terms: KernelTerms, total: Sum, hidden: tuple[Statement, ...]) -> tuple[Statement, ...]:
    """The statements that add a tile's sums by entry."""
    return serving(terms.readers(total.access), (*hidden, terms.added_by_entry(total, total.name)))


def _split(
    statements: Iterable[Statement], varying: Iterable[str]
) -> tuple[tuple[Statement, ...], tuple[Statement, ...], frozenset[str]]:
    """The statements whose values do not depend on `varying` names, the others, and all names that vary."""
    fixed, others, names = list[Statement](), list[Statement](), {*varying}
    for statement in statements:
        if names.isdisjoint(statement.reads):
            fixed.append(statement)
        else:
            others.append(statement)
            names.update(statement.target.split(", "))
    return tuple(fixed), tuple(others), frozenset(names)
