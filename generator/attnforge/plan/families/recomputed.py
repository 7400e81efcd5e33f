"""Gradients of scores that kernels beside those of both passes compute once more, each tile on its own."""

from __future__ import annotations

from .. import latent, programs
from ..kernel_terms import KernelTerms
from ..shared_parameters import SharedParameters
from ..statements import Block, Statement

SCORES = "[BLOCK_M, BLOCK_N]"
"""The shape of such a tile, as text."""


def ds(
    p: SharedParameters,
    terms: KernelTerms,
    loads: tuple[Statement, ...],
    masked: tuple[Block, ...],
    passed_back: tuple[Block, ...],
) -> tuple[Block, ...]:
    """The statements that compute `ds`: weights from `loads` of what scores read, `masked`, and dP as `passed_back`."""
    a = p.analysis
    of_row = "tl.load({}_ptr + row_base + row, mask=row < q_len, other=0.0)"
    return (
        *programs.tile(a, "q", "q", "BLOCK_D"),
        *programs.tile(a, "k", "k", "BLOCK_D"),
        Statement("score", f"tl.dot(q_tile, k_tile.T, input_precision=PRECISION){a.scaling}", label=SCORES),
        *latent.scored_at_once(a),
        *loads,
        *terms.inward,
        Statement("row_base", p.storage.head_rows),
        Statement("lse", of_row.format("lse"), shape="[BLOCK_M]"),
        Statement("p", f"tl.exp2(score * {a.scale_log2} - lse[:, None])", label=SCORES),
        *masked,
        *programs.tile(a, "dout", "q", "BLOCK_DV"),
        *programs.tile(a, "v", "k", "BLOCK_DV"),
        Statement("dp", "tl.dot(dout_tile, v_tile.T, input_precision=PRECISION)", label=SCORES),
        *passed_back,
        Statement("delta", of_row.format("delta"), shape="[BLOCK_M]"),
        Statement("ds", "p * (dp - delta[:, None])", label=SCORES),
    )
