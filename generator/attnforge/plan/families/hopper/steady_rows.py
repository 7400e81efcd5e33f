"""Rows of the forward pass for Hopper GPUs whose weights stay relative to a fixed reference.

A row's softmax may be relative to any number near its largest score. If that is the largest score in the tile of its
own key or, without masks, in the last tile, then tiles that all rows see need no search for a maximum, and no
accumulator is rescaled. That works while float32 and bfloat16 can hold the weights: a row that outgrows its reference
leaves NaN as its LSE, and its tile is computed once more; in this second pass such rows track their largest score.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from ....expressions.inputs import Input
from ....expressions.tree import Node
from ....language.spec import Spec
from ... import softmax
from ...analysis import Analysis
from ...conditions import at_itself, no_late_keys, shows_itself
from ...finite import is_finite
from ...statements import Block, Branch, Comment, Statement
from ...tile_ranges import least_values

_ROOM = 63
"""By how many powers of 2 later weights may be larger than those of a row's first keys.

Weights are scaled down by this factor, so that values times weights are as far from the largest float32 as the values.
Less than 64: floats between 2**30 and 2**31 are 128 apart, and half of such scores plus 64 would round up by 128.
"""

_LEAST = "-3.4028234e38"
"""The least finite float32. Any score outgrows it in rows whose reference it is."""

_UNSEEN = 'm == float("-inf")'
"""Text of the condition that a row has seen no key so far."""

_LOWEST: tuple[Block, ...] = (
    Comment("if the first keys have scores of -inf, any later score is too large at once, whichever tile it is in"),
    Statement("m", f"tl.where(~grows & ({_UNSEEN}), {_LEAST}, m)"),
)

_OUTGROWN: tuple[Block, ...] = (
    Comment("a NaN counts as outgrown, too"),
    Statement("outgrown", "(row < q_len) & ~grows & ~(l <= 2.0)"),
    Statement("lse", 'tl.where(outgrown, float("nan"), lse)'),
)

_ALLOCATED = "gl.allocate_shared_memory(gl.int32, [WORKERS, 64], gl.SwizzledSharedLayout(1, 1, 1, [0]))"
PLACES = (Statement("asked", _ALLOCATED), Statement("asked_ready", "barriers(1, WORKERS).index(0)"))
VERDICTS = (Statement("verdicts", "verdict_buffer(Q_STAGES * WORKERS)"),)


def fits(a: Analysis) -> bool:
    """True if each row has a key in a tile that is visited before those that all rows see.

    Then a row's reference depends on its own position alone, and so do the bits of its result.
    """
    spec = a.spec
    if spec.dropout or a.by_query.weight == "heavy" or a.key_states or len(a.keys.ends) > 1 or not a.keys.full:
        return False
    least = least_values(spec)
    return not spec.masks or (no_late_keys(spec) and all(shows_itself(mask.keep, least) for mask in spec.masks))


def may_hide(score: Node, inputs: Iterable[Input]) -> bool:
    """True if a score may become -inf although the arguments of a call are valid.

    Values of pairs, keys or tables may be -inf to hide keys; a value per head would hide all keys alike.
    """
    of_heads = {x.name for x in inputs if {*x.kinds} <= {"batch", "head", "kv_head"}}

    def certain(node: Node) -> Node | None:
        if node.op == "-" and node.args[0] == node.args[1]:
            return Node("num", value=0.0)  # also for running sums
        if node.op == "input" and node.value in of_heads:
            return Node("option", value=node.value)
        return None

    return not is_finite(score.replaced(certain))


def _first(a: Analysis) -> str:
    """Text of the condition that a row meets its first keys in a tile that is searched.

    These are the rows that have seen no key so far. If the scores of their first keys may be -inf, or a sink precedes
    them, the position decides: otherwise a row's reference could come from a tile that only some calls search.
    """
    spec = a.spec
    scores = [at_itself(term.score) if spec.masks else term.score for term in spec.scores]
    if not spec.sink and not any(may_hide(score, spec.inputs) for score in scores):
        return _UNSEEN
    return "k_start + BLOCK_N > q_pos" if spec.masks else "k_start + BLOCK_N >= k_len"


def blocks(a: Analysis, scale: str, fitting: bool) -> dict[str, tuple[Block, ...]]:
    """The statements of it in a template, if rows of a variant are `fitting`; `scale` converts scores to log2 units.

    Those of `grows` flag rows that track their largest score: in float16 all, otherwise those that outgrew the first.
    """
    top = f"tl.max(score, 1) * {scale}"
    sums = 'tl.where(l == 0, float("inf"), {})'
    if not fitting:
        none: dict[str, tuple[Block, ...]] = dict.fromkeys(("grows", "lowest", "outgrown"), ())
        largest = Statement("m_new", f"tl.maximum(m, {top})")
        return {**none, "largest": (largest,), "lse": (Statement("lse", sums.format("m + tl.log2(l)")),)}
    given = f"tl.load(lse_ptr + {a.storage.head_rows} + row, mask=row < q_len, other=0.0)"
    grown = (Statement("first_lse", given), Statement("grows", "first_lse != first_lse"))
    at_first = Statement("grows", "row == row if q_buffer.dtype == gl.float16 else row != row")
    grows: tuple[Block, ...] = (Branch("AGAIN", grown, (at_first,)),)
    tell = Statement("asks", "asks | tl.where(outgrown, 1 << nth, 0)")
    if a.storage.cut:
        grows = (at_first, Branch("again > 0", grown))
        tell = Statement("", "verdicts.index(stage * WORKERS + WORKER).store(outgrown.to(gl.int32))")
    first, as_first = _first(a), f"tl.log2(l * 2.0**{_ROOM})"
    largest_of_first: tuple[Block, ...] = (
        Statement("top", top),
        Comment("a row keeps the maximum of its first keys, with room for larger scores, unless it has outgrown that"),
        Statement("top", f"tl.where(grows, top, top + {_ROOM}.0)"),
        Statement("m_new", f"tl.where(grows | ({first}), tl.maximum(m, top), m)"),
    )
    return {
        "grows": grows,
        "lowest": () if first == _UNSEEN else _LOWEST,
        "largest": largest_of_first,
        "lse": (Statement("lse", sums.format(f"tl.where(grows, m + tl.log2(l), m - {_ROOM}.0 + {as_first})")),),
        "outgrown": (*_OUTGROWN, tell),
    }


def pivot(spec: Spec) -> tuple[Block, ...]:
    """The statements that compute the reference that a step subtracts from scores."""
    return (*softmax.unseen(spec, "the lowest number"), Statement("pivot", f"tl.maximum(m_new, {_LEAST})"))


def told() -> str:
    """The explanation in a rendered file."""
    words = f"""\
With bfloat16 a row's weights are relative to 2**{_ROOM} times the largest weight of the first tile that shows it a key,
so full tiles need no search for a larger one. If the weights of a row then add up to more than 2, its LSE becomes NaN,
and its tile is computed once more; in this second pass such rows track their largest score."""
    return "\n" + textwrap.fill(" ".join(words.split()), 120)


def full_tiles(a: Analysis) -> tuple[Block, ...]:
    """The statements that exclude from full tiles those that a row may see first, and all of them in a second pass."""
    before: tuple[Block, ...] = (
        Comment("m must come from a tile that is searched: full ones end before the first query's own key"),
        Statement("full_last", "tl.minimum(full_last, tl.maximum(q_first, 0) // BLOCK_N)"),
    )
    none: Block = Branch("AGAIN", (Statement("full_last", "first"),))
    if a.storage.cut:
        none = Statement("full_last", "tl.where(again > 0, first, full_last)")
    return (*(before if a.spec.masks else ()), none)
