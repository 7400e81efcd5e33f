"""Torch texts that convert the layouts of a call's tensors to those of kernels, and back."""

from __future__ import annotations

from ..expressions.inputs import Input
from ..language.spec import Spec
from .storage import seen_axes


def reduced(given: Input, spec: Spec) -> str:
    """Torch text from `total` to an input's gradient, contiguous; rows of packed sequences have no batch axis."""
    wanted: list[str] = []
    for axis in seen_axes(given, spec):
        wanted.append(f"size{sum(x.startswith('size') for x in wanted)}" if axis.kind == "size" else axis.kind)
    if given.pairs:
        dims = ["batch", "kv_head" if "kv_head" in wanted else "head", "query", "key"]
    elif given.rows:
        dims = ["head", given.rows[0]] if spec.packed else ["batch", "head", given.rows[0]]
    else:
        dims = ["batch", "head", "tiles"]
    text = "total" if given.pairs else _shared_total(given, len(dims) + bool(given.sizes))
    if given.sizes:
        sizes = ", ".join(map(str, given.sizes))
        text += f".unflatten(-1, ({sizes}))" if len(given.sizes) > 1 else ""
        dims += [f"size{i}" for i in range(len(given.sizes))]
    if "kv_head" in wanted and "head" in dims:
        text += f".unflatten({dims.index('head')}, (k.shape[-2], -1)).sum({dims.index('head') + 1})"
        dims[dims.index("head")] = "kv_head"
    gone = [i for i, axis in enumerate(dims) if axis not in wanted]
    if given.scan:
        # the remaining axes are those of the sums, which have a single value where the call gives one
        return text + f".sum_to_size({given.name}_sums[..., 0, :].shape)"
    if gone:
        text += f".sum(({', '.join(map(str, gone))},))" if len(gone) == 1 else f".sum(({', '.join(map(str, gone))}))"
    left = [axis for axis in dims if axis in wanted]
    if left != wanted:
        text += f".permute({', '.join(str(left.index(axis)) for axis in wanted)}).contiguous()"
    return text + f".sum_to_size({given.name}.shape).to({given.name}.dtype)"


def _shared_total(given: Input, rank: int) -> str:
    """Torch text from `total`, with so many axes, to sums over the batch entries that share an entry of an input."""
    axis = given.shared_batch
    if axis is None:
        return "total"
    # an axis of size 1 broadcasts
    size = f"{given.name}.shape[{given.axes.index(axis)}]" if axis.rest else f"max(min({axis.per}, total.shape[0]), 1)"
    padding = "0, 0, " * (rank - 1) + f"0, -total.shape[0] % {size}"
    return f"torch.nn.functional.pad(total, ({padding})).unflatten(0, (-1, {size})).sum({0 if axis.rest else 1})"


def scan_view(given: Input, spec: Spec) -> tuple[str, str]:
    """Torch texts: an input with the axes that a scan takes, (batch, head, token), and the way back to its own axes.

    The way back ends with a contiguous tensor. Packed sequences have no batch axis.
    """
    axes = [kind for kind in given.kinds if not (kind == "batch" and spec.packed)]
    order = [axis.kind for axis in seen_axes(given, spec) if axis.kind in axes]
    text, back = given.name, ""
    if order != axes:
        text += f".permute({', '.join(str(axes.index(a)) for a in order)})"
        back = f".permute({', '.join(str(order.index(a)) for a in axes)}).contiguous()"
    if not {"head", "kv_head"} & set(axes):
        text, back = text + ".unsqueeze(-2)", ".squeeze(-2)" + back
    if not spec.packed and "batch" not in axes:
        text, back = text + "[None]", "[0]" + back
    return text, back
