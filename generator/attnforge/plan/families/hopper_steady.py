"""Rows of the forward pass for Hopper GPUs that keep what their weights are measured from.

A row's softmax may be measured from anything near its largest score. From the largest one of the tile with its own key
or, without masks, of the last tile, a tile that all rows see needs no search, and no sum has to shrink. That holds as
long as float32 and bfloat16 hold the weights: a row that outgrows it leaves NaN for its LSE, and the program goes
through its tiles once more, in which such rows follow their largest score.
"""

from __future__ import annotations

import textwrap

from ..analysis import Analysis
from ..conditions import hides_late_keys, shows_itself
from ..statements import Block, Branch, Comment, Statement
from ..tile_ranges import least_values

LARGEST_SUM = "2.0**64"
"""What a row's weights may add up to, measured from one of them: far from where float32 ends."""

LOWEST = "-3.4e38"
"""What rows whose first keys have scores of -inf are measured from: any other score outgrows it."""

_LOWEST: tuple[Block, ...] = (
    Comment("where first keys have scores of -inf, others are too large at once, whichever tiles they stand in"),
    Statement("m", f"tl.where(grows, m, tl.maximum(m, {LOWEST}))"),
)

_OUTGROWN: tuple[Block, ...] = (
    Comment("NaN, too, is not known to be small; and weights like that may carry values beyond float32"),
    Statement("finite", "gl.convert_layout(tl.sum(out * 0.0, 1), m.type.layout) == 0.0", shape="[64]"),
    Statement("outgrown", f"(row < q_len) & ~grows & ~((l <= {LARGEST_SUM}) & finite)"),
    Statement("lse", 'tl.where(outgrown, float("nan"), lse)'),
)
_TOLD = "outgrown.to(gl.int32)"

_ALLOCATED = "gl.allocate_shared_memory(gl.int32, [WORKERS, 64], gl.SwizzledSharedLayout(1, 1, 1, [0]))"
PLACES = (Statement("asked", _ALLOCATED), Statement("asked_ready", "barriers(1, WORKERS).index(0)"))
VERDICTS = (Statement("verdicts", "verdict_buffer(Q_STAGES * WORKERS)"),)


def fits(a: Analysis) -> bool:
    """True if each row has a key in a tile that is visited before those that all rows see.

    So what a row is measured from is a matter of its own position alone, and so are its bits.
    """
    spec = a.spec
    if a.by_query.weight == "heavy" or a.key_states or len(a.keys.ends) > 1 or not a.keys.full:
        return False
    masks, least = [mask.keep for mask in spec.masks], least_values(spec)
    return not masks or (any(map(hides_late_keys, masks)) and all(shows_itself(keep, least) for keep in masks))


def _kept(a: Analysis) -> tuple[Block, ...]:
    """The statements that let a row be measured from its first keys alone, and from its sink if that is larger.

    They read what masks do.
    """
    first = "k_start + BLOCK_N > q_pos" if a.spec.masks else "k_start + BLOCK_N >= k_len"
    return (
        Comment("a row keeps what its first keys gave, unless it has outgrown that"),
        Statement("m_new", f"tl.where(grows | ({first}), m_new, m)"),
    )


def blocks(a: Analysis) -> dict[str, tuple[Block, ...]]:
    """The statements of it in a template.

    Those of `grows` tell which rows follow their largest scores: in float16 all, else those that outgrew the first one.
    """
    given = f"tl.load(lse_ptr + {a.storage.head_rows} + row, mask=row < q_len, other=0.0)"
    grown = (Statement("first_lse", given), Statement("grows", "first_lse != first_lse"))
    at_first = Statement("grows", "row == row if q_buffer.dtype == gl.float16 else row != row")
    grows: tuple[Block, ...] = (Branch("AGAIN", grown, (at_first,)),)
    tell = Statement("asks", f"asks | {_TOLD}")
    if a.storage.cut:
        grows = (at_first, Branch("again > 0", grown))
        tell = Statement("", f"verdicts.index(stage * WORKERS + WORKER).store({_TOLD})")
    return {"grows": grows, "lowest": _LOWEST, "kept": _kept(a), "outgrown": (*_OUTGROWN, tell)}


NONE: dict[str, tuple[Block, ...]] = dict.fromkeys(("grows", "lowest", "kept", "outgrown"), ())
"""The same where rows follow their largest scores."""


def told(a: Analysis) -> str:
    """What a file says of it."""
    done = "its tile is done once more" if a.storage.cut else "the program goes through all its tiles once more"
    words = f"""\
With bfloat16 a row's weights are measured from the largest score of the first tile that shows it a key: full tiles need
no search for larger ones. If a row's weights add up to more than 2**64 of that one, its LSE becomes NaN, and {done};
such rows then follow their largest score."""
    return "\n" + textwrap.fill(" ".join(words.split()), 120)


def full_tiles(a: Analysis) -> tuple[Block, ...]:
    """The statements that leave out of full tiles what a row may see first, and all of them in a second pass."""
    before: tuple[Block, ...] = (
        Comment("the first query's own key is in none of them"),
        Statement("full_last", "tl.minimum(full_last, tl.maximum(q_first, 0) // BLOCK_N)"),
    )
    none: Block = Branch("AGAIN", (Statement("full_last", "first"),))
    if a.storage.cut:
        none = Statement("full_last", "tl.where(again > 0, first, full_last)")
    return (*(before if a.spec.masks else ()), none)
