"""Where the backward kernel for Hopper GPUs has the values of a worker's keys: shared memory, or half in registers."""

from __future__ import annotations

from collections.abc import Iterable

from ...language.spec import Spec
from ..statements import Block, reads

_TILE = "matrix(v_buffer, stage * WORKERS + WORKER)"


def held(spec: Spec, masked: Iterable[Block]) -> bool:
    """True if steps leave registers for values: scores are products alone, a mask is a bound known to the compiler."""
    return not spec.scores and (not spec.masks or "near" in reads(masked))


def texts(in_registers: bool) -> dict[str, str]:
    """Texts of a tile of values, and of the product that makes dP with it."""
    if in_registers:
        return {"held": f"held({_TILE}, SCORES)", "weighing": "values_product(v_tile, dout_tile, zeros)"}
    product = "warpgroup_mma(v_tile, dout_tile.permute((1, 0)), zeros, use_acc=False, is_async=True)"
    return {"held": _TILE, "weighing": product}
