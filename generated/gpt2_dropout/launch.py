# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/gpt2_dropout.yaml
#   content hash  9d10b3dd6a898a15
#   text hash     409876596b26dec0
#   render with   attnforge render specs/gpt2_dropout.yaml
"""Launches the kernels as operators that PyTorch can differentiate and compile."""

import functools

import torch
import triton
import triton.language as tl
from torch.utils._python_dispatch import is_in_torch_dispatch_mode
from triton.runtime.errors import OutOfResources
from triton.tools.tensor_descriptor import TensorDescriptor

from . import kernels

INTERPRETED = triton.knobs.runtime.interpret
LOG2E = kernels.LOG2E.value

# (BLOCK_M, BLOCK_N, warps, stages) by kernel and head size, the best first; those after it need less shared memory
HALF = {
    "sm_90": {
        "forward": {
            64: ((128, 64, 4, 3), (128, 64, 4, 2), (64, 64, 4, 2), (32, 32, 4, 1)),
            128: ((128, 64, 8, 3), (64, 64, 4, 3), (64, 32, 4, 3), (32, 32, 4, 1)),
            256: ((128, 32, 8, 3), (64, 32, 4, 2), (32, 32, 4, 1), (32, 16, 4, 1)),
        },
        "backward_dkv": {
            64: ((32, 64, 4, 3), (32, 64, 4, 1), (32, 32, 4, 1)),
            128: ((32, 64, 4, 3), (32, 64, 4, 1), (32, 32, 4, 1)),
            256: ((64, 64, 8, 2), (32, 64, 8, 1), (16, 32, 4, 1)),
        },
        "backward_dq": {
            64: ((64, 64, 4, 3), (64, 64, 4, 1), (32, 32, 4, 1)),
            128: ((128, 32, 8, 3), (64, 32, 4, 3), (64, 32, 4, 1), (32, 32, 4, 1)),
            256: ((128, 32, 8, 3), (64, 32, 4, 2), (64, 32, 4, 1), (32, 16, 4, 1)),
        },
    },
    "sm_80": {
        "forward": {
            64: ((64, 32, 4, 3), (32, 32, 4, 1)),
            128: ((128, 32, 8, 3), (64, 32, 4, 2), (32, 32, 4, 1)),
            256: ((64, 64, 8, 2), (64, 64, 8, 1), (64, 32, 8, 1), (32, 32, 4, 1), (32, 16, 4, 1)),
        },
        "backward_dkv": {
            64: ((32, 32, 4, 2), (32, 32, 4, 1)),
            128: ((32, 32, 8, 2), (32, 32, 4, 1)),
            256: ((32, 32, 8, 2), (16, 32, 4, 1)),
        },
        "backward_dq": {
            64: ((64, 32, 4, 3), (32, 32, 4, 1)),
            128: ((64, 32, 8, 2), (32, 32, 4, 1)),
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


def attend(q, k, v, dropout_p, seed, scale):
    """Out and LSE of checked arguments, the LSE as kernels want it: in log2 units, inf for a row without keys."""
    # -inf * 0 would be NaN where the kernels apply the scale
    return _attend(q, k, v, dropout_p, seed, max(scale, 1e-37))


def natural(lse):
    """The LSE as users know it."""
    return torch.where(lse == float("inf"), float("-inf"), lse / LOG2E)


_PLAIN = (torch.Tensor, torch.nn.Parameter)


class _Operator:
    """A function that PyTorch can trace and differentiate; each copy of this package has operators of its own.

    PyTorch's way through an operator takes longer than a launch: where nobody looks on, the function is called as such.
    """

    def __init__(self, function):
        self.function = function = _on_the_device_of_its_tensors(function)
        module = __name__.replace("_", "__").replace(".", "_")
        name = f"attnforge::{module}{function.__name__}"
        self.traced = torch.library.custom_op(name, function, mutates_args=())
        self.register_fake = self.traced.register_fake

    def register_autograd(self, backward, setup_context):
        self.traced.register_autograd(backward, setup_context=setup_context)
        parts = {"forward": self.function, "setup_context": setup_context, "backward": backward}
        parts = {name: staticmethod(part) for name, part in parts.items()}
        self.derived = type(self.function.__name__, (torch.autograd.Function,), parts)

    def __call__(self, *args):
        if _watched(args):
            return self.traced(*args)
        if torch._C._are_functorch_transforms_active():
            return self.derived.apply(*args)
        if not torch.is_grad_enabled():
            return self.function(*args)
        # what `apply` comes to, but for its look at the signature of forward
        return super(torch.autograd.Function, self.derived).apply(*args)


def _watched(args):
    """Whether PyTorch has a say: a compiler, a mode, a tensor of a class of its own, one still to be negated."""
    if torch.compiler.is_compiling() or is_in_torch_dispatch_mode():
        return True
    for x in args:
        if isinstance(x, torch.Tensor) and (type(x) not in _PLAIN or x.is_neg()):
            return True
    return False


def _on_the_device_of_its_tensors(function):
    @functools.wraps(function)
    def run(*args):
        device = args[0].device
        if device.type == "cpu" or device.index == torch.cuda.current_device():
            return function(*args)
        with torch.cuda.device(device):
            return function(*args)

    return run


@_Operator
def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float,
    seed: int | None,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    out, lse = _outputs(q, v)
    if out.numel() == 0 or k.numel() == 0:
        return out.zero_(), lse.fill_(float("inf"))
    shapes = _Shapes.of("attend", q, k, v, _seed_kind(seed))
    q, k, v = shapes.readable(q, k, v)

    def launch(block_m, block_n, warps, stages):
        _launch(
            shapes,
            kernels.forward,
            (block_m, block_n),
            (
                q,
                k,
                v,
                out,
                lse,
                float(scale),
                seed,
                _drop_below(dropout_p),
                float(65536 / (65536 - _drop_below(dropout_p))),
            ),
            grid=lambda: _in_groups(q.shape[0] * q.shape[-2], _cdiv(q.shape[1], block_m), k, v),
            known=lambda: dict(
                q_desc=_tiles(q, block_m),
                k_desc=_tiles(k, block_n),
                v_desc=_tiles(v, block_n),
                q_len=q.shape[1],
                k_len=k.shape[1],
                Hq=q.shape[-2],
                DV=v.shape[-1],
                BLOCK_M=block_m,
                BLOCK_N=block_n,
                BLOCK_D=_padded(q),
                BLOCK_DV=_padded(v),
                PRECISION=_precision(q),
                TILES=_axis(_cdiv(q.shape[1], block_m)),
                num_warps=warps,
                num_stages=stages,
            ),
        )

    _run(shapes, "forward", launch, q, v)
    return out, lse


def _outputs(q, v):
    batch, rows, heads, _ = q.shape
    out = q.new_empty(batch, rows, heads, v.shape[-1])
    lse = q.new_empty(batch, heads, rows, dtype=torch.float32)
    return out, lse


@_attend.register_fake
def _(q, k, v, dropout_p, seed, scale):
    return _outputs(q, v)


@_Operator
def _differentiate(
    out: torch.Tensor,
    lse: torch.Tensor,
    dout: torch.Tensor,
    dlse: torch.Tensor | None,
    wanted: list[bool],
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float,
    seed: int | None,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    if out.numel() == 0 or k.numel() == 0:
        gradients = _gradients(wanted, q, k, v)
        return tuple(x.zero_() for x in gradients)
    dq, dk, dv = gradients = _gradients(wanted, q, k, v)
    shapes = _Shapes.of(
        "differentiate", q, k, v, _seed_kind(seed), out, dout, lse.data_ptr() % 16, dlse is None, *wanted
    )
    q, k, v, out, dout = shapes.readable(q, k, v, out, dout)
    dlse = None if dlse is None else dlse.contiguous()
    delta = torch.empty_like(lse)

    dq = dq if wanted[0] else _like(q)

    def launch(block_m, block_n, warps, stages):
        _launch(
            shapes,
            kernels.backward_dq,
            (block_m, block_n),
            (
                q,
                k,
                v,
                out,
                dout,
                dq,
                lse,
                dlse,
                delta,
                float(scale),
                seed,
                _drop_below(dropout_p),
                float(65536 / (65536 - _drop_below(dropout_p))),
            ),
            grid=lambda: _in_groups(q.shape[0] * q.shape[-2], _cdiv(q.shape[1], block_m), k, v),
            known=lambda: dict(
                q_desc=_tiles(q, block_m),
                k_desc=_tiles(k, block_n),
                v_desc=_tiles(v, block_n),
                out_desc=_tiles(out, block_m),
                dout_desc=_tiles(dout, block_m),
                q_len=q.shape[1],
                k_len=k.shape[1],
                Hq=q.shape[-2],
                D=q.shape[-1],
                BLOCK_M=block_m,
                BLOCK_N=block_n,
                BLOCK_D=_padded(q),
                BLOCK_DV=_padded(v),
                PRECISION=_precision(q),
                TILES=_axis(_cdiv(q.shape[1], block_m)),
                num_warps=warps,
                num_stages=stages,
            ),
        )

    _run(shapes, "backward_dq", launch, q, v)

    if wanted[1] or wanted[2]:
        dk = dk if wanted[1] else _like(k)
        dv = dv if wanted[2] else _like(v)

        def launch(block_m, block_n, warps, stages):
            _launch(
                shapes,
                kernels.backward_dkv,
                (block_m, block_n),
                (
                    q,
                    k,
                    v,
                    dout,
                    lse,
                    delta,
                    dk,
                    dv,
                    float(scale),
                    seed,
                    _drop_below(dropout_p),
                    float(65536 / (65536 - _drop_below(dropout_p))),
                ),
                grid=lambda: _in_groups(q.shape[0] * k.shape[-2], _cdiv(k.shape[1], block_n), q, dout),
                known=lambda: dict(
                    q_desc=_tiles(q, block_m),
                    k_desc=_tiles(k, block_n),
                    v_desc=_tiles(v, block_n),
                    dout_desc=_tiles(dout, block_m),
                    lse_desc=_values(lse, block_m),
                    delta_desc=_values(delta, block_m),
                    q_len=q.shape[1],
                    k_len=k.shape[1],
                    Hq=q.shape[-2],
                    D=q.shape[-1],
                    DV=v.shape[-1],
                    BLOCK_M=block_m,
                    BLOCK_N=block_n,
                    BLOCK_D=_padded(q),
                    BLOCK_DV=_padded(v),
                    PRECISION=_precision(q),
                    TILES=_axis(_cdiv(k.shape[1], block_n)),
                    num_warps=warps,
                    num_stages=stages,
                ),
            )

        _run(shapes, "backward_dkv", launch, q, v)
    return tuple(gradients)


def _drop_below(dropout_p):
    """The 16-bit numbers below this one drop a weight; the largest never does."""
    return min(int(dropout_p * 65536 + 0.5), 65535)


def _seed_kind(seed):
    """What the compiler makes of a seed: nothing, or a number of 32 or of 64 bits."""
    return None if seed is None else 32 if -(2**31) <= seed < 2**31 else 64


def _gradients(wanted, *tensors):
    return [_like(x) if want else tensors[0].new_empty(0) for want, x in zip(wanted, tensors)]


@_differentiate.register_fake
def _(out, lse, dout, dlse, wanted, q, k, v, dropout_p, seed, scale):
    return tuple(_gradients(wanted, q, k, v))


def _refuse(ctx, *gradients):
    raise RuntimeError("attention has no second derivative")


_differentiate.register_autograd(_refuse, setup_context=lambda ctx, inputs, output: None)


def _keep(ctx, inputs, output):
    q, k, v, dropout_p, seed, scale = inputs
    out, lse = output
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(out, lse, q, k, v)
    ctx.numbers = dropout_p, seed, scale


def _backward(ctx, dout, dlse):
    out, lse, q, k, v = ctx.saved_tensors
    dropout_p, seed, scale = ctx.numbers
    if dout is None:
        dout = torch.zeros_like(out)
    wanted = [ctx.needs_input_grad[i] for i in (0, 1, 2)]
    gradients = _differentiate(out, lse, dout, dlse, wanted, q, k, v, dropout_p, seed, scale)
    found = [None] * len(ctx.needs_input_grad)
    for i, need, gradient in zip((0, 1, 2), wanted, gradients):
        found[i] = gradient if need else None
    return tuple(found)


_attend.register_autograd(_backward, setup_context=_keep)


class _Shapes:
    """What calls with tensors of some shapes worked out, so that the next call with such tensors launches at once."""

    known = {}

    def __init__(self):
        self.unreadable = None  # which tensors tiles cannot be read from
        self.tiles = {}  # by kernel
        self.launches = {}  # by kernel and tile

    @classmethod
    def of(cls, name, *given):
        """Those of a function's tensors; numbers count by their values."""
        told = [(x.shape, x.stride(), x.dtype, x.data_ptr() % 16) if isinstance(x, torch.Tensor) else x for x in given]
        key = (name, given[0].device, _precision(given[0]), *told)
        shapes = cls.known.get(key)
        if shapes is None:
            if len(cls.known) == 1024:
                # lengths that never come again
                cls.known.clear()
            shapes = cls.known[key] = cls()
        return shapes

    def readable(self, *tensors):
        """The tensors, or copies of those that tiles cannot be read from."""
        if self.unreadable is None:
            self.unreadable = [i for i, x in enumerate(tensors) if not _is_readable(x)]
        if not self.unreadable:
            return tensors
        return [_rows(x).copy_(x) if i in self.unreadable else x for i, x in enumerate(tensors)]


def _launch(shapes, kernel, blocks, given, grid, known):
    """Launches a kernel, from the second time on without a thought about what shapes tell.

    `given` is what each call gives anew, in the kernel's order; what shapes tell follows it there, or says how it is loaded.
    """
    key = (kernel.__name__, *blocks)
    launch = shapes.launches.get(key)
    if launch is None:
        grid, arguments = grid(), dict(zip(kernel.arg_names, given)) | known()
        compiled = kernel[grid](**arguments)
        if not INTERPRETED:
            rest = [arguments[name] for name in kernel.arg_names[len(given) :]]
            fill = [_filled(arguments[name], x) for name, x in zip(kernel.arg_names, given)]
            shapes.launches[key] = compiled[(*grid, 1, 1)[:3]], fill, rest
        return
    start, fill, rest = launch
    start(*[x if f is None else f(x) for f, x in zip(fill, given)], *rest)


_fitting = {}


def _run(shapes, name, launch, q, v):
    """Launches a kernel with the best tile shape that this GPU has the shared memory for."""
    if INTERPRETED:
        return launch(32, 32, 4, 1)
    best = shapes.tiles.get(name)
    if best:
        return launch(*best)
    table = (SINGLE if q.dtype == torch.float32 else HALF[_architecture(q.device)])[name]
    tiles = next(table[size] for size in table if max(q.shape[-1], v.shape[-1]) <= size)
    key = (name, q.device, q.dtype, _padded(q), _padded(v))
    for i in range(_fitting.get(key, 0), len(tiles)):
        try:
            launch(*tiles[i])
        except OutOfResources:
            if i + 1 == len(tiles):
                raise
        else:
            _fitting[key], shapes.tiles[name] = i, tiles[i]
            return


def _in_groups(heads, tiles, *walked):
    """A grid of the heads of a group, tiles and groups: what a group's programs walk along stays in the GPU's cache."""
    size = sum(x.numel() * x.element_size() for x in walked)
    most = min(heads * _cache(walked[0].device) // size, heads)
    group = next((n for n in range(most, 1, -1) if heads % n == 0), 1)
    # of a grid's axes the first alone takes more than 65535
    if _axis(tiles) == 0:
        return tiles, group, heads // group
    return (group, tiles, heads // group) if heads // group < 2**16 else (heads, tiles, 1)


def _axis(tiles):
    """The axis of a grid that holds the tiles: the second, as heads run fastest, or the first where they are too many."""
    return 1 if tiles < 2**16 else 0


def _cache(device):
    """Bytes of a GPU's cache that a group of heads may take: others come while it still works."""
    return 2**15 if INTERPRETED else torch.cuda.get_device_properties(device).L2_cache_size // 3


@functools.cache
def _architecture(device):
    """The architecture whose tile shapes serve a GPU."""
    return "sm_90" if torch.version.hip is None and torch.cuda.get_device_capability(device)[0] in (9, 10) else "sm_80"


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


def _is_readable(x):
    """Whether tiles can be read from x: columns stand side by side, rows on 16-byte boundaries."""
    *sizes, width = x.shape
    *strides, column = x.stride()
    step = 16 // x.element_size()
    if (column != 1 and width != 1) or x.data_ptr() % 16:
        return False
    return all(n == 1 or (s % step == 0 and 0 < s < 2**36 * step) for n, s in zip(sizes, strides))


def _rows(x):
    """An empty tensor of x's shape whose rows begin on 16-byte boundaries."""
    *sizes, width = x.shape
    step = 16 // x.element_size()
    return _like(x) if width % step == 0 else x.new_empty(*sizes, _cdiv(width, step) * step)[..., :width]


def _like(x):
    """An empty tensor of x's shape; in half the time that new_empty takes for one."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _values(x, rows):
    """What kernels load values of queries by: a descriptor of all of them where each head's begin at 16 bytes, or the tensor."""
    aligned = (x.shape[-1] % 4 == 0 or x.numel() == x.shape[-1]) and x.data_ptr() % 16 == 0
    if aligned and 1 < x.numel() < 2**31 and _copies_tiles(x.device):
        return TensorDescriptor(x, [x.numel()], [1], [rows])
    return x


def _tiles(x, rows):
    """What kernels load tiles of one head by, [rows, columns]: a descriptor, or where the rows of x stand."""
    batch, count, heads, width = x.shape
    batch_stride, row_stride, head_stride, _ = x.stride()
    # heads before rows: axes of 1 that lead drop out of a tile without a trace in the compiled code
    sizes = batch, heads, count
    strides = batch_stride, head_stride, row_stride
    # the stride of an axis of size 1 means nothing, but must be a multiple of 16 bytes
    strides = [s if n > 1 else 16 for n, s in zip(sizes, strides)]
    if _copies_tiles(x.device):
        return TensorDescriptor(x, [*sizes, width], [*strides, 1], [1, 1, rows, _padded(x)])
    step = 16 // x.element_size()
    return (x, tl.constexpr(width), *(s // step for s in strides))


def _filled(tiles, x):
    """What makes the like of another x of the same shape, without the checks that a descriptor goes through; None for x."""
    if tiles is x:
        return None
    if isinstance(tiles, tuple):
        return lambda x: (x, *tiles[1:])
    shape, strides, block = tiles.shape, tiles.strides, tiles.block_shape

    def fill(x):
        descriptor = object.__new__(TensorDescriptor)
        descriptor.base, descriptor.shape, descriptor.strides, descriptor.block_shape = x, shape, strides, block
        return descriptor

    return fill


@functools.cache
def _copies_tiles(device):
    """Whether the GPU copies tiles by itself; the interpreter does."""
    return INTERPRETED or (torch.version.hip is None and torch.cuda.get_device_capability(device)[0] >= 9)
