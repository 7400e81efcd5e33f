# Written by attnforge. Do not edit: it is the same in every package.
#
#   made from     templates/host/arguments.py.jinja
#   content hash  464d4658811823d9
#   text hash     e4bee39fa5b5c392
#   render with   attnforge render SPEC
"""Checks of arguments: each error names the argument, what was expected and what was given.

Triton is not imported here: once imported, it ignores changes to TRITON_INTERPRET.
"""

import importlib.util
import math
import operator
import os

import torch

FLOATS = (torch.float16, torch.bfloat16, torch.float32)
INTEGERS = (torch.int32, torch.int64)
LARGEST = torch.finfo(torch.float32).max


def cast(*given):
    """The tensors, cast to autocast's dtype if autocast is on."""
    if torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu"):
        return tuple(map(_cast, given))
    return given


def _cast(x):
    if not isinstance(x, torch.Tensor) or not x.is_floating_point() or x.dtype == torch.float64:
        return x
    device = x.device.type
    return x.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else x


def check_operands(q, k, v, axes, grouped, widest):
    """Check that q, k and v have these axes and fit together; if `grouped`, several heads of q share one of k.

    `widest` holds the largest head sizes of q and k, and of v.
    """
    for name, x in (("q", q), ("k", k), ("v", v)):
        check_float(name, x)
        if x.dim() != len(axes):
            raise ValueError(f"{name}: expected {len(axes)} axes ({', '.join(axes)}), got shape {tuple(x.shape)}")
        check_head_size(name, x, widest[int(name == "v")])
    check_place("q", q)
    check_alike("k", k, "q", q)
    check_alike("v", v, "q", q)
    # each access to a shape builds a new object
    q_shape, k_shape, v_shape = q.shape, k.shape, v.shape
    if axes[0] == "batch" and k_shape[0] != q_shape[0]:
        raise ValueError(f"k: expected a batch of {q_shape[0]} as q has, got {k_shape[0]}")
    check_heads("k", k_shape, q_shape, grouped)
    if v_shape[:-1] != k_shape[:-1]:
        raise ValueError(f"v: expected shape ({', '.join(map(str, k_shape[:-1]))}, Dv) beside k, got {tuple(v_shape)}")


def check_float(name, x):
    """Check that x is a tensor of a float dtype that kernels multiply."""
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{name}: expected a tensor, got {type(x).__name__}")
    _check_strided(name, x)
    if x.dtype not in FLOATS:
        raise TypeError(f"{name}: expected float16, bfloat16 or float32, got {plain(x.dtype)}{_if_double(name, x)}")


def check_head_size(name, x, most):
    """Check that the last axis fits into tiles."""
    if not 1 <= x.shape[-1] <= most:
        raise ValueError(f"{name}: expected a head size from 1 to {most}, got {x.shape[-1]}")


def check_alike(name, x, other, like):
    """Check that x has the dtype and the device of another tensor."""
    if x.dtype != like.dtype:
        raise TypeError(f"{name}: expected {plain(like.dtype)} as {other} has, got {plain(x.dtype)}")
    _check_device(name, x, like, other)


def check_heads(name, keys, queries, grouped):
    """Check that the shapes of keys and of queries fit together."""
    if keys[-1] != queries[-1]:
        raise ValueError(f"{name}: expected a head size of {queries[-1]} as q has, got {keys[-1]}")
    if grouped and (keys[-2] == 0 or queries[-2] % keys[-2]):
        hint = _if_heads_lead(keys, queries)
        raise ValueError(f"{name}: expected a number of heads that divides q's {queries[-2]}, got {keys[-2]}{hint}")
    if not grouped and keys[-2] != queries[-2]:
        hint = _if_heads_lead(keys, queries)
        raise ValueError(f"{name}: expected {queries[-2]} heads as q has, got {keys[-2]}{hint}")


def interpreted():
    """Whether kernels run in Triton's interpreter, by the same rule as triton's own."""
    return os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "on", "y", "yes")


def check_place(name, x):
    """Check that x is on a GPU, or on the CPU if kernels are interpreted."""
    if x.is_cuda:
        return
    if not x.is_cpu:
        raise ValueError(f"{name}: expected a CUDA tensor, got one on {x.device}")
    # without triton, the error of its import says more
    if not interpreted() and importlib.util.find_spec("triton"):
        hint = "set TRITON_INTERPRET=1 before Python starts to run on the CPU"
        raise ValueError(f"{name}: expected a GPU tensor, got one on the CPU; {hint}")


def check_kind(name, x, like, dtypes, other="q"):
    """Check that x is a tensor of one of some dtypes, on the device of another tensor."""
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{name}: expected a tensor, got {type(x).__name__}")
    _check_strided(name, x)
    if x.dtype not in dtypes:
        wanted = " or ".join(map(plain, dtypes))
        raise TypeError(f"{name}: expected {wanted}, got {plain(x.dtype)}{_retyped(name, x, dtypes)}")
    _check_device(name, x, like, other)


def check_tensor(name, x, like, dtypes, shape, full_axes=(), longer=(), other="q", short=False):
    """Check the dtype, device and shape of x. An axis of size 1 stands for any size, except those in `full_axes`.

    Axes in `longer` may be longer; leading axes may be missing if it may be `short`.
    """
    check_kind(name, x, like, dtypes, other)
    sizes = (*[1] * (len(shape) - x.dim()), *x.shape) if short else x.shape
    fits = len(sizes) == len(shape)
    for i, (size, n) in enumerate(zip(sizes, shape)):
        fits = fits and (size == n or (size == 1 and i not in full_axes) or (size > n and i in longer))
    if not fits:
        hint = _if_turned(like.shape, sizes, shape)
        raise ValueError(f"{name}: expected shape {tuple(shape)}, got {tuple(x.shape)}{hint}")


def check_angles(cos, sin, like, dims=None, other="q"):
    """Check tables of angles for all components of a head, or for the first `dims`."""
    width = like.shape[-1]
    if dims and width < dims:
        raise ValueError(f"{other}: expected a head size of at least {dims}, as that many components turn, got {width}")
    if not dims and width % 2:
        raise ValueError(f"{other}: expected an even head size, as its components turn in pairs, got {width}")
    columns = (dims or width) // 2
    for name, x in (("cos", cos), ("sin", sin)):
        check_kind(name, x, like, FLOATS, other)
        if x.dim() != 2 or x.shape[0] == 0 or x.shape[1] != columns:
            hint = _as_table(name, x, columns)
            raise ValueError(f"{name}: expected shape (positions, {columns}), got {tuple(x.shape)}{hint}")
    if sin.shape != cos.shape:
        raise ValueError(f"sin: expected the shape of cos, {tuple(cos.shape)}, got {tuple(sin.shape)}")


def cuts(name, places, longest_name, longest, like, rows):
    """Checked cuts, contiguous in memory, and the length of the longest sequence, which is at most all rows."""
    check_kind(name, places, like, (torch.int32,))
    if places.dim() != 1 or places.shape[0] == 0:
        raise ValueError(f"{name}: expected shape (sequences + 1,), got {tuple(places.shape)}")
    longest = as_int(longest_name, longest, minimum=0, maximum=2**28)
    if at_hand(places):
        check_cuts(name, places.tolist(), longest_name, longest, rows)
    return places.contiguous(), min(longest, rows)


def at_hand(places):
    """Whether values can be read without waiting for a GPU; kernels stay within the rows whatever the cuts."""
    return places.is_cpu and type(places) is torch.Tensor and not torch.compiler.is_compiling()


def check_cuts(name, places, longest_name, longest, rows):
    """Check a list of cuts of rows into sequences, each at most `longest` long."""
    if places[0] < 0:
        raise ValueError(f"{name}: expected a first cut of at least 0, got {places[0]}")
    lengths = [end - first for first, end in zip(places, places[1:])]
    if min(lengths, default=0) < 0:
        i = next(i for i, length in enumerate(lengths) if length < 0)
        raise ValueError(f"{name}: expected cuts that never fall, got {places[i]} before {places[i + 1]}")
    if places[-1] > rows:
        raise ValueError(f"{name}: expected a last cut of at most the {rows} rows that there are, got {places[-1]}")
    if max(lengths, default=0) > longest:
        raise ValueError(f"{longest_name}: expected at least the longest sequence's {max(lengths)}, got {longest}")


def check_as_many_keys(q_cuts, k_cuts, name):
    """Check that no sequence has more queries than keys: queries read an input at their place among the keys."""
    if at_hand(q_cuts) and at_hand(k_cuts):
        for b, (queries, keys) in enumerate(zip(q_cuts.diff().tolist(), k_cuts.diff().tolist())):
            if queries > keys:
                wanted = f"expected no more queries than keys, as {name} is read at both"
                raise ValueError(f"cu_seqlens_q: {wanted}, got {queries} and {keys} of sequence {b}")


def refuse_gradients(learnable, **tensors):
    """Refuse tensors that get no gradient; those in `learnable` would get one with another spec."""
    for name, x in tensors.items():
        if x is not None and x.requires_grad:
            mend = "set `grad: true` for it in the spec, or " if name in learnable else ""
            wanted = "expected a tensor that requires no gradient, as it gets none, got one that does"
            raise ValueError(f"{name}: {wanted}; {mend}hand over {name}.detach()")


def check_no_gradient(algorithm, *tensors):
    """Refuse tensors that require gradients, for an algorithm without a backward pass."""
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors):
        spec = f"its spec says `algorithm: {algorithm}`"
        raise RuntimeError(f"attention: this package has the forward pass only, {spec}; call it under torch.no_grad()")


def _check_strided(name, x):
    if x.layout is not torch.strided or x.is_nested:
        layout = "a nested one" if x.is_nested else f"one of layout {plain(x.layout).removeprefix('_')}"
        raise TypeError(f"{name}: expected a strided tensor, got {layout}")


def _check_device(name, x, like, other):
    if x.device != like.device:
        raise ValueError(f"{name}: expected device {like.device} as {other} has, got {x.device}")


def plain(kind):
    """The name of a dtype or layout as messages show it."""
    return str(kind).removeprefix("torch.")


LENGTHS = ("k_lens", "seq_lens")
# why numbers that other calls leave out are needed
_LONGEST = "; required: the longest sequence's length, or more"
REQUIRED = {"max_seqlen": _LONGEST, "max_seqlen_q": _LONGEST, "max_seqlen_k": _LONGEST}
REQUIRED["seed"] = "; required if dropout_p is above 0"


def _if_heads_lead(keys, queries):
    """What to do if heads come before tokens, in case the shapes of keys and queries look as if they did."""
    heads, tokens = keys[-3], keys[-2]
    return _swapped(keys) if 0 < heads < tokens and 0 in (queries[-2] % heads, queries[-3] % heads) else ""


def _if_turned(like, sizes, shape):
    """The same in case the sizes of another tensor are those that it would then have, in place of `shape`."""
    if len(like) < 3:
        return ""
    tokens, heads = like[-3:-1]
    return _swapped(like) if list(sizes) == [{tokens: heads, heads: tokens}.get(n, n) for n in shape] else ""


def _swapped(shape):
    return f"; of tensors with heads before tokens pass x.transpose({len(shape) - 3}, {len(shape) - 2})"


def _if_double(name, x):
    return "; `reference` takes float64" if x.dtype == torch.float64 and name in ("q", "k", "v") else ""


def _retyped(name, x, dtypes):
    """What to pass in place of x, in case one of some dtypes can hold its values; "" for memory that is written to."""
    methods = {torch.int32: "int", torch.int64: "long", torch.bool: "bool"}
    method = ""
    if x.dtype in (*INTEGERS, torch.uint8):
        method = next((methods[dtype] for dtype in dtypes if dtype in methods), "")
    elif x.dtype == torch.float64 and dtypes == FLOATS:
        method = "float"
    return of_mask(name, x) or (method and f"; pass {name}.{method}()")


def of_mask(name, x):
    """What to pass in place of a mask of keys x where lengths are expected; "" in place of anything else."""
    return "; of a mask with padding on the right pass mask.sum(1).int()" if name in LENGTHS and x.dim() == 2 else ""


def _as_table(name, x, columns):
    """What to pass in place of angles x with leading axes of size 1, or with a column for each component of a pair."""
    rank = x.dim() - 2
    if rank < 0 or any(n != 1 for n in x.shape[:rank]) or x.shape[-1] not in (columns, 2 * columns):
        return ""
    lead = "0, " * rank
    if x.shape[-1] == columns:
        return f"; pass {name}[{lead[:-2]}]" if rank else ""
    told = f"; a pair has one column: of two equal halves pass {name}[{lead}:, :{columns}]"
    return f"{told}, of doubled columns {name}[{lead}:, ::2]"


def check_places(q, k_lens, k_starts, q_start):
    """Check what says which rows of each batch entry count; returns `q_start`, as an int if it is a number."""
    _check_numbers("k_lens", k_lens, q, (torch.int32,))
    _check_numbers("k_starts", k_starts, q, (torch.int32,))
    if not isinstance(q_start, torch.Tensor):
        return None if q_start is None else as_int("q_start", q_start, minimum=-(2**28), maximum=2**28)
    _check_numbers("q_start", q_start, q, INTEGERS)
    return q_start


def _check_numbers(name, x, like, dtypes):
    """Check that x has an integer for each batch entry, if it is given."""
    if x is None:
        return
    check_kind(name, x, like, dtypes)
    if x.dim() != 1 or x.shape[0] not in (1, like.shape[0]):
        raise ValueError(f"{name}: expected shape {(like.shape[0],)}, got {tuple(x.shape)}{of_mask(name, x)}")


def as_int(name, x, minimum=None, maximum=None, divides=False):
    """x as an int, from any library; not 0 if it `divides`, as integers have no quotient by 0."""
    if isinstance(x, bool) or not isinstance(x, (int, torch.SymInt)):
        x = _converted(name, x, "int", operator.index)
    _check_limits(name, x, minimum, maximum)
    if divides and x == 0:
        raise ValueError(f"{name}: expected a number to divide by, got 0")
    return x


def as_bool(name, x):
    """x, if it is a bool."""
    if not isinstance(x, bool):
        raise TypeError(f"{name}: expected a bool, got {type(x).__name__}")
    return x


def as_float(name, x, minimum=None, maximum=None):
    """x as a number within the range of float32, from any library."""
    if isinstance(x, bool) or not isinstance(x, (int, float, torch.SymInt, torch.SymFloat)):
        x = _converted(name, x, "float", float)
    if not -LARGEST <= x <= LARGEST:
        raise ValueError(f"{name}: expected a finite number within the range of float32, got {_shown(x)}")
    _check_limits(name, x, minimum, maximum)
    return x


def _check_limits(name, x, minimum, maximum):
    if minimum is not None and x < minimum:
        raise ValueError(f"{name}: expected at least {minimum}, got {_shown(x)}")
    if maximum is not None and x > maximum:
        raise ValueError(f"{name}: expected at most {maximum}, got {_shown(x)}")


def _shown(x):
    """A number as messages show it, without more digits than anybody would read."""
    x = float(x) if isinstance(x, (float, torch.SymFloat)) else int(x)  # a traced number cannot be formatted
    return f"one of {x.bit_length()} bits" if isinstance(x, int) and x.bit_length() > 64 else x


def _converted(name, x, kind, convert):
    """A number of another library; not from a tensor, which would have to be copied from its device, nor from text."""
    if not isinstance(x, (bool, str, bytes, bytearray, torch.Tensor)):
        try:
            return convert(x)
        except TypeError:
            pass
        except OverflowError:
            return math.inf
    hint = REQUIRED.get(name, "") if x is None else ""
    raise TypeError(f"{name}: expected {'an' if kind == 'int' else 'a'} {kind}, got {type(x).__name__}{hint}")
