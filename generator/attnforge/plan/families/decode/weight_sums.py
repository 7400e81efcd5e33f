"""The sum of the weights that new tokens give to each key of a cache: a kernel of decoding that calls ask for."""

from __future__ import annotations

from ... import cached_latent, positions
from ...analysis import Analysis
from ...cached_range import SPAN, KeySpan
from ...cached_terms import CachedTerms
from ...paged import PAGED
from ...parameters import Kernel, Parameter
from ...statements import Block, Statement, names, needed, reads
from ..partition import numbers_first
from .scan import Scans

# the parameters of `attend_split` for values, partial results and splits
_NEEDLESS = (
    *("v_", "parts_ptr", "splits", "split_size", "reach", "first_keys"),
    *("DV", "BLOCK_DV", "V_IN_K", "SUMS", "IN_TWOS", "KV_HEADS", "BY_HEAD", "FAR", "OVERLAP", "END_STAGES"),
)


def build(split: Kernel, analysis: Analysis, terms: CachedTerms, span: KeySpan, scans: Scans) -> Kernel | None:
    """The kernel, derived from the one that attends: a program loops over the new tokens one by one."""
    if "statistics" not in analysis.spec.exports:
        return None
    found: tuple[Block, ...] = (Statement(", ".join(SPAN), span.call), *terms.narrowed)
    numbers, loads = numbers_first(terms, terms.loads("program"))
    loaded = (*analysis.scaled, *loads)
    behind = cached_latent.scored(analysis, "inside")
    rows = (Statement(positions.BEGIN, "k_len - q_len"), *_rows(), *loaded)
    used = (*split.blocks["queries"], *found, *split.blocks["scored"], *split.blocks["masked"])
    read = {"place", "h", "own_row"} | names(analysis.scale_log2) | reads((*used, *behind))
    needless = set(_NEEDLESS) - reads(scans.first)
    return Kernel(
        "sum_weights",
        (
            *(p for p in split.parts if not p.name.startswith(_NEEDLESS[0]) and p.name not in needless),
            Parameter("lse_ptr", "*fp32", "lse"),
            Parameter("key_sums_ptr", "*fp32", "key_sums", written=True),
            Parameter("lse_stride_sequence", "i32", "lse_strides[0]"),
            Parameter("lse_stride_head", "i32", "lse_strides[1]"),
        ),
        "decode/sums.jinja",
        "(k.shape[2] * runtime.cdiv(rows // longest, block_m) * runtime.cdiv(max_seqlen_k, block_n), sequences)",
        blocks={
            **{name: split.blocks[name] for name in ("queries", "units", "scored", "masked")},
            "behind": behind,
            "sequence": (PAGED.sequence(), PAGED.first_key(), *scans.first, *needed(numbers, read)),
            "rows": needed(rows, read),
            "span": found,
        },
        texts={"spans": str(len(span.tiles.ends)), "tokens": scans.where_summed("q_len")},
    )


def _rows() -> tuple[Statement, ...]:
    """The heads of a tile's rows, whose token is `i`; rows past the last head read the values of that head."""
    return (
        Statement("place", "tl.where(head < GROUP, i * GROUP + head, count)", shape="[BLOCK_M]"),
        Statement("row", "i + tl.zeros([BLOCK_M], tl.int32)", shape="[BLOCK_M]"),
        Statement("own_row", "row if cu_seqlens_q_ptr is None else token + row", shape="[BLOCK_M]"),
        Statement("h", "kv_h * GROUP + tl.minimum(head, GROUP - 1)", shape="[BLOCK_M]"),
        Statement("q_pos", positions.of("row"), shape="[BLOCK_M]"),
        Statement("q_first", positions.of("i")),
        Statement("q_last", f"tl.minimum({positions.of('i')}, k_len - 1)"),
    )
