# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/full.yaml
#   content hash  00224a6d7e196163
#   text hash     0c2a604a7797a635
#   render with   attnforge render specs/full.yaml
"""Launches the kernels as operators that PyTorch can differentiate and compile."""

import contextlib
import functools

import torch
import triton
import triton.language as tl
from triton.runtime.errors import OutOfResources
from triton.tools.tensor_descriptor import TensorDescriptor

from . import kernels

INTERPRETED = triton.knobs.runtime.interpret

# (BLOCK_M, BLOCK_N, warps, stages) by kernel and head size, the best first; those after it need less shared memory
HALF = {
    "sm_90": {
        "forward": {
            64: ((128, 64, 4, 3), (128, 64, 4, 2), (64, 64, 4, 2), (32, 32, 4, 1)),
            128: ((128, 64, 4, 2), (64, 64, 4, 2), (64, 32, 4, 2), (32, 32, 4, 1)),
            256: ((128, 64, 8, 2), (128, 32, 8, 3), (64, 32, 4, 2), (32, 32, 4, 1), (32, 16, 4, 1)),
        },
        "backward_dkv": {
            64: ((64, 64, 4, 3), (64, 64, 4, 1), (32, 32, 4, 1)),
            128: ((32, 64, 4, 3), (32, 64, 4, 1), (32, 32, 4, 1)),
            256: ((64, 64, 8, 2), (32, 64, 8, 1), (16, 32, 4, 1)),
        },
        "backward_dq": {
            64: ((128, 64, 4, 3), (64, 64, 4, 3), (64, 64, 4, 1), (32, 32, 4, 1)),
            128: ((64, 64, 4, 2), (64, 32, 4, 1), (32, 32, 4, 1)),
            256: ((128, 32, 8, 3), (64, 32, 4, 2), (64, 32, 4, 1), (32, 16, 4, 1)),
        },
    },
    "sm_80": {
        "forward": {
            64: ((128, 64, 4, 3), (128, 64, 4, 2), (64, 64, 4, 2), (32, 32, 4, 1)),
            128: ((128, 64, 8, 3), (128, 64, 8, 2), (64, 32, 4, 2), (32, 32, 4, 1)),
            256: ((64, 64, 8, 2), (64, 64, 8, 1), (64, 32, 8, 1), (32, 32, 4, 1), (32, 16, 4, 1)),
        },
        "backward_dkv": {
            64: ((32, 64, 4, 2), (32, 32, 4, 2), (32, 32, 4, 1)),
            128: ((64, 64, 8, 2), (32, 64, 8, 2), (32, 32, 4, 1)),
            256: ((32, 32, 8, 2), (16, 32, 4, 1)),
        },
        "backward_dq": {
            64: ((64, 64, 4, 3), (64, 64, 4, 1), (32, 32, 4, 1)),
            128: ((64, 64, 4, 2), (64, 32, 4, 2), (32, 32, 4, 1)),
            256: ((64, 32, 8, 2), (64, 32, 8, 1), (32, 32, 4, 2), (32, 16, 4, 1)),
        },
    },
}
SINGLE = {
    "forward": {
        64: ((32, 32, 4, 1),),
        128: ((32, 64, 8, 1), (32, 32, 4, 1)),
        256: ((32, 64, 16, 1), (32, 32, 8, 1), (16, 16, 4, 1)),
    },
    "backward_dkv": {
        64: ((16, 32, 4, 1),),
        128: ((32, 32, 8, 1), (16, 32, 4, 1)),
        256: ((64, 32, 16, 1), (32, 32, 16, 1), (16, 16, 4, 1)),
    },
    "backward_dq": {
        64: ((16, 32, 4, 1),),
        128: ((32, 32, 8, 1), (16, 32, 4, 1)),
        256: ((32, 64, 16, 1), (16, 32, 8, 1), (16, 16, 4, 1)),
    },
}


def attend(q, k, v, scale):
    """Out and LSE of checked arguments."""
    # -inf * 0 would be NaN where the kernels apply the scale
    return _attend(q, k, v, max(scale, 1e-30))


def _operator(name):
    """Makes an operator of a function; each copy of this package has operators of its own."""
    return torch.library.custom_op(f"attnforge::{__name__.replace('.', '_')}_{name}", mutates_args=())


@_operator("attend")
def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    out, lse = _outputs(q, v)
    if out.numel() == 0 or k.numel() == 0:
        return out.zero_(), lse.fill_(float("-inf"))
    q, k, v = _readable(q), _readable(k), _readable(v)
    block_d, block_dv = _padded(q), _padded(v)

    def launch(block_m, block_n, warps, stages):
        kernels.forward[q.shape[0] * q.shape[2], _cdiv(q.shape[1], block_m)](
            q_desc=_tiles(q, block_m, block_d),
            k_desc=_tiles(k, block_n, block_d),
            v_desc=_tiles(v, block_n, block_dv),
            out_ptr=out,
            lse_ptr=lse,
            q_len=q.shape[1],
            k_len=k.shape[1],
            Hq=q.shape[-2],
            scale=scale,
            GROUP=q.shape[-2] // k.shape[-2],
            DV=v.shape[-1],
            BLOCK_M=block_m,
            BLOCK_N=block_n,
            BLOCK_D=block_d,
            BLOCK_DV=block_dv,
            PRECISION=_precision(q),
            num_warps=warps,
            num_stages=stages,
        )

    _run("forward", launch, q, v)
    return out, lse


def _outputs(q, v):
    return q.new_empty(*q.shape[:-1], v.shape[-1]), q.new_empty(q.shape[0], q.shape[2], q.shape[1], dtype=torch.float32)


@_attend.register_fake
def _(q, k, v, scale):
    return _outputs(q, v)


@_operator("differentiate")
def _differentiate(
    out: torch.Tensor,
    lse: torch.Tensor,
    dout: torch.Tensor,
    dlse: torch.Tensor | None,
    wanted: list[bool],
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
) -> list[torch.Tensor]:
    gradients = _gradients(wanted, q, k, v)
    if lse.numel() == 0 or k.numel() == 0:
        return [x.zero_() for x in gradients]
    dq, dk, dv = gradients
    q, k, v, out, dout = _readable(q), _readable(k), _readable(v), _readable(out), _readable(dout)
    delta = torch.empty_like(lse)
    block_d, block_dv = _padded(q), _padded(v)

    block_m = 32 if INTERPRETED else 64
    with _current(q):
        kernels.backward_preprocess[q.shape[0] * q.shape[2], _cdiv(q.shape[1], block_m)](
            out_desc=_tiles(out, block_m, block_dv),
            dout_desc=_tiles(dout, block_m, block_dv),
            delta_ptr=delta,
            q_len=q.shape[1],
            Hq=q.shape[-2],
            BLOCK_M=block_m,
            BLOCK_DV=block_dv,
        )
    if dlse is not None:
        # as if every score were taken once more: d lse / d score is the weight itself
        delta -= dlse

    if wanted[0]:
        dq = dq if wanted[0] else q.new_empty(q.shape)

        def launch(block_m, block_n, warps, stages):
            kernels.backward_dq[q.shape[0] * q.shape[-2], _cdiv(q.shape[1], block_m)](
                q_desc=_tiles(q, block_m, block_d),
                k_desc=_tiles(k, block_n, block_d),
                v_desc=_tiles(v, block_n, block_dv),
                dout_desc=_tiles(dout, block_m, block_dv),
                dq_ptr=dq,
                lse_ptr=lse,
                delta_ptr=delta,
                q_len=q.shape[1],
                k_len=k.shape[1],
                Hq=q.shape[-2],
                scale=scale,
                GROUP=q.shape[-2] // k.shape[-2],
                D=q.shape[-1],
                BLOCK_M=block_m,
                BLOCK_N=block_n,
                BLOCK_D=block_d,
                BLOCK_DV=block_dv,
                PRECISION=_precision(q),
                num_warps=warps,
                num_stages=stages,
            )

        _run("backward_dq", launch, q, v)

    if wanted[1] or wanted[2]:
        dk = dk if wanted[1] else k.new_empty(k.shape)
        dv = dv if wanted[2] else v.new_empty(v.shape)

        def launch(block_m, block_n, warps, stages):
            kernels.backward_dkv[q.shape[0] * k.shape[-2], _cdiv(k.shape[1], block_n)](
                q_desc=_tiles(q, block_m, block_d),
                k_desc=_tiles(k, block_n, block_d),
                v_desc=_tiles(v, block_n, block_dv),
                dout_desc=_tiles(dout, block_m, block_dv),
                dk_ptr=dk,
                dv_ptr=dv,
                lse_ptr=lse,
                delta_ptr=delta,
                q_len=q.shape[1],
                k_len=k.shape[1],
                Hq=q.shape[-2],
                scale=scale,
                GROUP=q.shape[-2] // k.shape[-2],
                D=q.shape[-1],
                DV=v.shape[-1],
                BLOCK_M=block_m,
                BLOCK_N=block_n,
                BLOCK_D=block_d,
                BLOCK_DV=block_dv,
                PRECISION=_precision(q),
                num_warps=warps,
                num_stages=stages,
            )

        _run("backward_dkv", launch, q, v)
    return gradients


def _gradients(wanted, *tensors):
    return [x.new_empty(x.shape if want else 0) for want, x in zip(wanted, tensors)]


@_differentiate.register_fake
def _(out, lse, dout, dlse, wanted, q, k, v, scale):
    return _gradients(wanted, q, k, v)


def _keep(ctx, inputs, output):
    q, k, v, scale = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*output, q, k, v)
    ctx.numbers = scale


def _backward(ctx, dout, dlse):
    out, lse, q, k, v = ctx.saved_tensors
    scale = ctx.numbers
    if dout is None:
        dout = torch.zeros_like(out)
    wanted = [ctx.needs_input_grad[i] for i in (0, 1, 2)]
    gradients = _differentiate(out, lse, dout, dlse, wanted, q, k, v, scale)
    found = dict(zip((0, 1, 2), gradients))
    return tuple(found[i] if need else None for i, need in enumerate(ctx.needs_input_grad))


_attend.register_autograd(_backward, setup_context=_keep)


_fitting = {}


def _run(name, launch, q, v):
    """Launches a kernel with the best tile shape that this GPU has the shared memory for."""
    if INTERPRETED:
        return launch(32, 32, 4, 1)
    shapes = (SINGLE if q.dtype == torch.float32 else HALF[_architecture(q.device)])[name]
    size = next(size for size in shapes if max(q.shape[-1], v.shape[-1]) <= size)
    key = (name, q.device, q.dtype, _padded(q), _padded(v))
    with _current(q):
        for i in range(_fitting.get(key, 0), len(shapes[size])):
            try:
                launch(*shapes[size][i])
            except OutOfResources:
                if i + 1 == len(shapes[size]):
                    raise
            else:
                _fitting[key] = i
                return


@functools.cache
def _architecture(device):
    """The architecture whose tile shapes serve a GPU."""
    return "sm_90" if torch.version.hip is None and torch.cuda.get_device_capability(device)[0] in (9, 10) else "sm_80"


def _current(x):
    """Makes the device of x the current one, where it is a GPU."""
    return torch.cuda.device(x.device) if x.is_cuda else contextlib.nullcontext()


def _precision(x):
    tf32 = x.dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32
    return "tf32" if tf32 else "ieee"


def _padded(x):
    """Columns of a tile that holds x's."""
    return max(16, _power_of_2(x.shape[-1]))


# triton's own take microseconds outside of kernels
def _cdiv(a, b):
    return -(-a // b)


def _power_of_2(n):
    return 1 << (n - 1).bit_length()


def _readable(x):
    """x, or a copy of it that tiles can be read from: columns side by side, rows on 16-byte boundaries."""
    *sizes, width = x.shape
    *strides, column = x.stride()
    step = 16 // x.element_size()
    if (column == 1 or width == 1) and x.data_ptr() % 16 == 0:
        if all(n == 1 or (s % step == 0 and 0 < s < 2**36 * step) for n, s in zip(sizes, strides)):
            return x
    return _rows(x).copy_(x)


def _rows(x):
    """An empty tensor of x's shape whose rows begin on 16-byte boundaries."""
    step = 16 // x.element_size()
    return x.new_empty(*x.shape[:-1], _cdiv(x.shape[-1], step) * step)[..., : x.shape[-1]]


def _tiles(x, rows, columns):
    """What kernels load tiles of one head by, [rows, columns]: a descriptor, or where the rows of x stand."""
    batch, count, heads, width = x.shape
    batch_stride, row_stride, head_stride, _ = x.stride()
    # heads before rows: axes of 1 that lead drop out of a tile without a trace in the compiled code
    sizes = batch, heads, count
    strides = batch_stride, head_stride, row_stride
    # the stride of an axis of size 1 means nothing, but must be a multiple of 16 bytes
    strides = [s if n > 1 else 16 for n, s in zip(sizes, strides)]
    if _copies_tiles(x.device):
        return TensorDescriptor(x, [*sizes, width], [*strides, 1], [1, 1, rows, columns])
    step = 16 // x.element_size()
    return (x, tl.constexpr(width), *(s // step for s in strides))


@functools.cache
def _copies_tiles(device):
    """Whether the GPU copies tiles by itself; the interpreter does."""
    return INTERPRETED or (torch.version.hip is None and torch.cuda.get_device_capability(device)[0] >= 9)
