"""Where the backward kernel for Hopper GPUs keeps a worker's values: in shared memory, or half of them in registers."""

from __future__ import annotations

from collections.abc import Iterable

from ....language.spec import Spec
from ...statements import Block, reads

_TILE = "matrix(v_buffer, stage * WORKERS + WORKER)"


def fit(spec: Spec, masked: Iterable[Block]) -> bool:
    """True if steps leave registers for values: scores are bare products, and a mask is a bound the compiler knows."""
    return not spec.scores and not spec.dropout and (not spec.masks or "near" in reads(masked))


def texts(held: bool) -> tuple[str, str]:
    """Texts of a worker's values, and of the product that computes dP from them."""
    if held:
        return f"load_values({_TILE}, SCORES)", "values_product(v_tile, dout_tile, zeros)"
    product = "warpgroup_mma(v_tile, dout_tile.permute((1, 0)), zeros, use_acc=False, is_async=True)"
    return _TILE, product
