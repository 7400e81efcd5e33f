"""Running sums over the tokens of a cache, as decode kernels read them.

One kernel sums the keys of each stretch, another the stretches before each. The other kernels read both, relative to
the stretch of a row's own position, so that the difference of two late sums is as exact as that of two early ones.
"""

from __future__ import annotations

from ..expressions.inputs import Input
from .access import Access
from .running_sums import anchor
from .statements import Statement

SHARED = ("first_stretch", "stretches")
"""The values that all running sums share in kernels: the first stretch that is stored, and how many are."""
_AT = "first_stretch, stretches"


def reads(access: Access) -> bool:
    """True if an access reads a running sum, or where the document of a token begins."""
    return bool(access.input.scan or access.input.source)


def base(given: Input) -> str:
    """The name of the pointers to the sums of a row's head."""
    return f"{given.source or given.name}_base"


def before(given: Input) -> str:
    """The name of the sums of all stretches before those of rows."""
    return f"{given.name}_before"


def found(given: Input) -> tuple[Statement, ...]:
    """The statements that locate the sums of a tile's rows, and compute the sums from which rows measure them."""
    head = {"head": "h[:, None]", "kv_head": "kv_h"}
    h = next((head[kind] for kind in given.kinds if kind in head), "0")
    strides = f"{given.name}_stride_sequence, {given.name}_stride_head"
    place = "tl.maximum(q_pos, 0)[:, None]"
    return (
        Statement(base(given), f"find_sums(sums_ptr, {given.name}_sums_begin, b, {h}, {strides})"),
        Statement(before(given), f"sum_before({base(given)}, {place}, {_AT})"),
        Statement(anchor(given.name), f"{before(given)}.to(tl.float32)"),
    )


def value(access: Access, place: str) -> str:
    """Text of the values of an access at `place`, the indices of keys of a sequence."""
    given = access.input
    if given.source:
        return f"find_begin({base(given)}, {place}, q_begin, k_len, {_AT})"
    if access.side == "q":
        return f"load_sums({base(given)}, {place}, first_stretch)"
    # a tile of keys lies in one stretch
    start = "k_start" if access.side == "k" else place
    earlier = f"(sum_before({base(given)}, {start}, {_AT}) - {before(given)}).to(tl.float32)"
    return f"load_sums({base(given)}, {place}, first_stretch) + {earlier}"


def narrowed(access: Access) -> Statement:
    """The statement that restricts a range of keys to the rows' documents, by the beginnings that the access reads."""
    if access.side == "q":
        ends = f"tl.maximum(lo, tl.min({access.name})), tl.maximum(full_lo, tl.max({access.name}))"
        return Statement("lo, full_lo", ends)
    # documents may begin at new tokens
    return Statement("full_hi", "tl.minimum(full_hi, tl.maximum(q_begin, 0))")
