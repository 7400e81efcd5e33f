# Written by attnforge. Do not edit: it is the same in every package.
#
#   made from     templates/decode/arguments.py.jinja
#   content hash  cd4b03b4c9b5e561
#   text hash     378e26684236ffb4
#   render with   attnforge render SPEC
"""Checks of the arguments of decoding calls, beyond those in arguments.py, and the shapes that kernels get.

Triton is not imported here: once it is, it ignores changes of TRITON_INTERPRET.
"""

import math

import torch

from . import arguments


class Call:
    """What calls with tensors of the same shapes, and with the same bounds, have in common."""

    def __init__(
        self,
        launch,
        longest,
        max_seqlen_k,
        split_size,
        seen,
        size,
        packed,
        q,
        k_cache,
        v_cache,
        positions=None,
        v_in_k=False,
    ):
        # Triton's interpreter cannot multiply bfloat16
        self.widens = launch.runtime.INTERPRETED and q.dtype == torch.bfloat16
        self.attend = _in_float32(launch.attend) if self.widens else launch.attend
        self.runtime = launch.runtime
        self.longest, self.max_seqlen_k, self.split_size = longest, max_seqlen_k, split_size
        self.seen, self.size, self.v_in_k = seen, size, v_in_k
        self.scale = 1 / math.sqrt(q.shape[-1])
        self.out, self.lse = shapes(q, v_cache)
        self.out_as_q = self.out == q.shape and q.is_contiguous()
        # bytes from the first number of each tensor to its last
        self.bytes = math.prod(self.out) * q.element_size(), *(_span(x) for x in (q, k_cache, v_cache))
        # per sequence, and per head
        self.lse_strides = (0 if packed else 1 if q.dim() == 3 else q.shape[-2] * q.shape[-3]), q.shape[-3]
        # whether new tokens can be read in place, one after the other
        rows = q.reshape(-1, *q.shape[-2:])
        self.in_rows = rows.data_ptr() == q.data_ptr() and rows.stride(-1) == 1
        self.in_rows &= positions is None or positions.is_contiguous()
        self.shapes, self.numbers = (), ()
        # a function that recognises calls like this one; all such functions, by whether an operator calls
        self.alike, self.alikes = None, {}
        self.launches = {}  # by precision, and by whether there is an LSE

    def check_out(self, out, q, k_cache, v_cache, workspace=None):
        """Check the memory of the result, which is written before all arguments have been read."""
        first, (most, q_bytes, k_bytes, v_bytes) = out.data_ptr(), self.bytes
        if -q_bytes < q.data_ptr() - first < most:
            raise ValueError("out: expected memory of its own, got some of q")
        if -k_bytes < k_cache.data_ptr() - first < most:
            raise ValueError("out: expected memory of its own, got some of k_cache")
        if -v_bytes < v_cache.data_ptr() - first < most:
            raise ValueError("out: expected memory of its own, got some of v_cache")
        if workspace is not None and -4 * self.size < workspace.data_ptr() - first < most:
            raise ValueError("out: expected memory of its own, got some of workspace")


def shapes(q, v_cache):
    """The shapes of out and LSE."""
    return (*q.shape[:-1], v_cache.shape[-1]), (*q.shape[:-3], q.shape[-2], q.shape[-3])


def widened(k_cache, v_cache, v_in_k):
    """bfloat16 caches in float32, with values still columns of keys if they are; other caches unchanged."""
    if k_cache.dtype != torch.bfloat16:
        return k_cache, v_cache
    k = k_cache.float()
    return k, k[..., : v_cache.shape[-1]] if v_in_k else v_cache.float()


def _in_float32(attend):
    """A function that launches a bfloat16 call in float32, and rounds at the end."""

    def run(q, call, k_cache, v_cache, out, *given):
        wide = torch.empty_like(out, dtype=torch.float32)
        attend(q.float(), call, *widened(k_cache, v_cache, call.v_in_k), wide, *given)
        out.copy_(wide)

    return run


def _span(x):
    """The number of bytes from the beginning of a tensor's first number to the end of its last."""
    return (1 + sum((n - 1) * step for n, step in zip(x.shape, x.stride()))) * x.element_size() if x.numel() else 0


def needs_dispatcher(given):
    """Whether PyTorch's dispatcher must handle these: one with a pending negation, or a class with its own dispatch.

    Other subclasses do not need it: the operator hands them on as they are, and `attend_now` would call it again.
    """
    for x in given:
        if isinstance(x, torch.Tensor) and (
            x.is_neg() or type(x).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
        ):
            return True
    return False


def remembered(calls, check, given, numbers):
    """What `check` returns for a call, and whether the last call was like this one, and so without gradients.

    From the second call with such shapes and numbers on, nothing is checked. It is None if a call needs the dispatcher,
    or if a mode of PyTorch has to see it.
    """
    try:
        last = calls.get(None)
        if last is not None and last.numbers == numbers and last.alike(given):
            return last, True
        if needs_dispatcher(given):
            return None, False
        shapes = [
            (x.shape, x.stride(), x.dtype, x.device, x.data_ptr() % 16) if isinstance(x, torch.Tensor) else x
            for x in given
        ]
        key = (*numbers, *shapes)
        call = calls.get(key)
    except (RuntimeError, TypeError):
        # something else in place of a tensor or a number, or a tensor without strides
        return check(*given, *numbers), False
    if call is None:
        call = check(*given, *numbers)
        call.shapes, call.numbers = shapes, numbers
        call.runtime.keep(calls, key, call)
    if call.runtime.is_watched():
        return None, False
    # under a mode that lets calls pass, no call is remembered as the last one
    if not call.runtime.has_mode() and not any(x is not None and x.requires_grad for x in given):
        within = call.runtime.planned.depth > 0
        if within not in call.alikes:
            call.alikes[within] = call.runtime.alike(given)
        call.alike, calls[None] = call.alikes[within], call
    return call, False


def check_values(call, q, seq_lens, cu_seqlens_q):
    """Check that lengths and cuts are within the bounds of the call."""
    lengths = seq_lens.tolist()
    if min(lengths, default=0) < 0:
        raise ValueError(f"seq_lens: expected none below 0, got {min(lengths)}")
    if max(lengths, default=0) > call.max_seqlen_k:
        room = f"the {call.max_seqlen_k} keys that max_seqlen_k, the cache or page_table has room for"
        raise ValueError(f"seq_lens: expected at most {room}, got {max(lengths)}")
    if cu_seqlens_q is not None:
        arguments.check_cuts("cu_seqlens_q", cu_seqlens_q.tolist(), "max_seqlen_q", call.longest, q.shape[0])


def check_pages(call, k_cache, seq_lens, page_table, cu_seqlens_q, read, numbers):
    """Check the page table entries that new tokens read; `read` gives the keys that one at some position reads."""
    pages, size = k_cache.shape[:2]
    if not ((page_table < 0) | (page_table >= pages)).any():
        return
    lengths, new = seq_lens.tolist(), [call.longest] * len(seq_lens)
    if cu_seqlens_q is not None:
        new = cu_seqlens_q.diff().tolist()
    for b, (entries, k_len, count) in enumerate(zip(page_table.tolist(), lengths, new)):
        wrong = [place for place, page in enumerate(entries) if not 0 <= page < pages]
        for position in range(max(k_len - count, 0), k_len) if wrong else ():
            for lo, hi in read(position, k_len, *numbers):
                lo, hi = max(lo, 0), min(hi, k_len)
                place = next((n for n in wrong if max(lo, n * size) < min(hi, n * size + size)), None)
                if place is not None:
                    told = f"got {entries[place]} for keys from {place * size} on of sequence {b}"
                    raise ValueError(f"page_table: expected one of the cache's {pages} pages, {told}")


def check_slots(slots, rows):
    """Check that slots are rows of a cache, or -1."""
    inside = (slots >= -1) & (slots < rows)
    if not inside.all():
        # of many slots, some of the wrong ones
        wrong = (slots if inside.numel() <= 8 else slots[~inside]).tolist()
        got = f"{wrong[:8]}{f' and {len(wrong) - 8} more' if len(wrong) > 8 else ''}"
        raise ValueError(f"slot_mapping: expected places from 0 to {rows - 1}, or -1, got {got}")


def parts(outs, lses):
    """Check results over parts of all keys, and their LSEs."""
    found = []
    for name, x in (("outs", outs), ("lses", lses)):
        try:
            found.append(list(x))
        except TypeError:
            raise TypeError(f"{name}: expected tensors of several parts, got {type(x).__name__}") from None
    outs, lses = found
    if not outs:
        raise ValueError("outs: expected at least one part, got none")
    if len(lses) != len(outs):
        raise ValueError(f"lses: expected one for each of {len(outs)} parts, got {len(lses)}")
    first = outs[0]
    for i, (out, lse) in enumerate(zip(outs, lses)):
        try:
            arguments.check_float("outs", out)
            arguments.check_alike("outs", out, "the first part", first)
            arguments.check_kind("lses", lse, first, arguments.FLOATS, "the first part")
        except (TypeError, ValueError) as error:
            raise type(error)(f"{error} at {i}") from None
        if out.dim() < 3:
            raise ValueError(f"outs: expected (.., T, H, Dv), got shape {tuple(out.shape)} at {i}")
        if out.shape != first.shape:
            raise ValueError(
                f"outs: expected the shape of the first part, {tuple(first.shape)}, got {tuple(out.shape)} at {i}"
            )
        *lead, tokens, heads, _ = out.shape
        if lse.shape != (*lead, heads, tokens):
            raise ValueError(f"lses: expected shape {(*lead, heads, tokens)}, got {tuple(lse.shape)} at {i}")
    return outs, lses


def check_operands(q, k_cache, v_cache, grouped, widest):
    """Check new tokens and a cache; if `grouped`, several heads of q may share one of the cache.

    `widest` has the largest head sizes of q and k, and of v.
    """
    arguments.check_float("q", q)
    if q.dim() not in (3, 4):
        raise ValueError(f"q: expected (T, Hq, D) or (B, Tq, Hq, D), got shape {tuple(q.shape)}")
    arguments.check_head_size("q", q, widest[0])
    _check_cache(k_cache, v_cache, "q", q, widest)
    arguments.check_heads("k_cache", k_cache.shape, q.shape, grouped)
    if v_cache.shape[:-1] != k_cache.shape[:-1]:
        raise ValueError(
            f"v_cache: expected shape ({', '.join(map(str, k_cache.shape[:-1]))}, Dv) beside k_cache, got {tuple(v_cache.shape)}"
        )


def _check_cache(k_cache, v_cache, other, like, widest):
    for name, x, most in zip(("k_cache", "v_cache"), (k_cache, v_cache), widest):
        arguments.check_kind(name, x, like, (like.dtype, torch.float8_e4m3fn), other)
        if x.dim() != 4:
            raise ValueError(f"{name}: expected 4 axes (pages, places, heads, head size), got shape {tuple(x.shape)}")
        if x.shape[-1] != 1 and x.stride(-1) != 1:
            raise ValueError(f"{name}: expected head sizes that lie side by side, got a stride of {x.stride(-1)}")
        arguments.check_head_size(name, x, most)
    arguments.check_alike("v_cache", v_cache, "k_cache", k_cache)
    if k_cache.dtype == torch.float8_e4m3fn and like.is_cuda and torch.cuda.get_device_capability(like.device) < (8, 9):
        raise TypeError("k_cache: this GPU has no float8_e4m3fn; hand over a cache of q's type")


def _check_written(name, x):
    """Check memory that kernels write to."""
    for n, step in zip(x.shape, x.stride()):
        if step == 0 and n > 1:
            wanted = "expected memory for each number, as it is written to"
            raise ValueError(f"{name}: {wanted}, got strides {x.stride()} for shape {tuple(x.shape)}")


def check_scales(k_scale, v_scale, k_cache, sequences=None):
    """Check scales: one for all, per head, per sequence if the number of `sequences` is given, or per place.

    If it is not given, scales per place are to be measured.
    """
    for name, x in (("k_scale", k_scale), ("v_scale", v_scale)):
        if x is None and k_cache.dtype == torch.float8_e4m3fn:
            raise ValueError(f"{name}: expected one beside a cache of float8_e4m3fn, got None")
    heads = k_cache.shape[2]
    shapes = [(), (heads,), *([(sequences, heads)] if sequences is not None else []), tuple(k_cache.shape[:3])]
    for name, x in (("k_scale", k_scale), ("v_scale", v_scale)):
        if x is None:
            continue
        arguments.check_kind(name, x, k_cache, (torch.float32,), "k_cache")
        if k_cache.dtype != torch.float8_e4m3fn:
            found = arguments.plain(k_cache.dtype)
            raise ValueError(f"{name}: expected a cache of float8_e4m3fn beside it, got {found}")
        if x.shape not in shapes or x.dim() != k_scale.dim():
            raise ValueError(f"{name}: expected one of the shapes {shapes}, both alike, got {tuple(x.shape)}")
        if sequences is None and x.dim() == 3:
            _check_written(name, x)


def bounds(q, k_cache, seq_lens, page_table, k_starts, cu_seqlens_q, max_seqlen_q, max_seqlen_k):
    """Check lengths and pages; return the most new tokens and the most keys of a sequence that the call allows."""
    arguments.check_kind("seq_lens", seq_lens, q, (torch.int32,))
    if seq_lens.dim() != 1 or not seq_lens.is_contiguous() or seq_lens.shape[0] >= 2**16:
        hint = arguments.of_mask("seq_lens", seq_lens)
        raise ValueError(
            f"seq_lens: expected shape (B,), contiguous, below 65536, got shape {tuple(seq_lens.shape)}{hint}"
        )
    sequences, room = seq_lens.shape[0], k_cache.shape[1]
    if page_table is None:
        if k_cache.shape[0] != sequences:
            raise ValueError(
                f"k_cache: expected {sequences} sequences as seq_lens has, or a page_table, got {k_cache.shape[0]}"
            )
    else:
        arguments.check_kind("page_table", page_table, q, (torch.int32,))
        if (
            page_table.dim() != 2
            or page_table.shape[0] != sequences
            or page_table.stride(1) != 1 != page_table.shape[1]
        ):
            wanted = f"expected shape ({sequences}, pages), rows that lie side by side"
            raise ValueError(
                f"page_table: {wanted}, got shape {tuple(page_table.shape)}, strides {page_table.stride()}"
            )
        room *= page_table.shape[1]
    if k_starts is not None:
        arguments.check_kind("k_starts", k_starts, q, (torch.int32,))
        if page_table is not None:
            raise ValueError("k_starts: expected none beside page_table, whose sequences begin with a page")
        if k_starts.shape != (sequences,) or not k_starts.is_contiguous():
            raise ValueError(f"k_starts: expected shape ({sequences},), contiguous, got shape {tuple(k_starts.shape)}")
    if cu_seqlens_q is None:
        if q.shape[0] != sequences:
            hint = "" if q.dim() == 4 else ", or cu_seqlens_q"
            raise ValueError(f"q: expected {sequences} sequences as seq_lens has{hint}, got shape {tuple(q.shape)}")
        longest = 1 if q.dim() == 3 else q.shape[1]
        if max_seqlen_q is not None and arguments.as_int("max_seqlen_q", max_seqlen_q) < longest:
            raise ValueError(f"max_seqlen_q: expected at least the {longest} new tokens of q, got {max_seqlen_q}")
    else:
        arguments.check_kind("cu_seqlens_q", cu_seqlens_q, q, (torch.int32,))
        if q.dim() != 3:
            raise ValueError(f"q: expected (T, Hq, D) beside cu_seqlens_q, got shape {tuple(q.shape)}")
        if cu_seqlens_q.shape != (sequences + 1,) or not cu_seqlens_q.is_contiguous():
            raise ValueError(
                f"cu_seqlens_q: expected shape ({sequences + 1},), contiguous, got {tuple(cu_seqlens_q.shape)}"
            )
        longest = max(min(arguments.as_int("max_seqlen_q", max_seqlen_q, minimum=0), q.shape[0]), 1)
    most = room if max_seqlen_k is None else arguments.as_int("max_seqlen_k", max_seqlen_k, minimum=0, maximum=2**28)
    if most > max(room, 1):
        raise ValueError(f"max_seqlen_k: expected at most the {room} keys that a sequence has room for, got {most}")
    return longest, min(most, room)


def check_first_keys(k_starts, seq_lens, k_cache):
    """Check the places of first keys, on the CPU, where reading them waits for nothing."""
    room = k_cache.shape[1]
    for b, (begin, count) in enumerate(zip(k_starts.tolist(), seq_lens.tolist())):
        if not 0 <= begin <= room - count:
            raise ValueError(f"k_starts: expected room for {count} keys from {begin} on at {b}, got {room} places")


def check_new(k_new, v_new, k_cache, v_cache, slot_mapping, widest):
    """Check rows for a cache, and their places in it."""
    for name, x in (("k_new", k_new), ("v_new", v_new)):
        arguments.check_float(name, x)
    arguments.check_alike("v_new", v_new, "k_new", k_new)
    arguments.check_place("k_new", k_new)
    _check_cache(k_cache, v_cache, "k_new", k_new, widest)
    if v_cache.shape[:3] != k_cache.shape[:3]:
        raise ValueError(
            f"v_cache: expected shape ({', '.join(map(str, k_cache.shape[:3]))}, Dv) beside k_cache, got {tuple(v_cache.shape)}"
        )
    for name, x, cache in (("k_new", k_new, k_cache), ("v_new", v_new, v_cache)):
        if x.dim() < 3 or x.shape[-2:] != cache.shape[-2:] or x.shape[:-2] != k_new.shape[:-2]:
            wanted = f"(tokens, {cache.shape[-2]}, {cache.shape[-1]})"
            raise ValueError(f"{name}: expected shape {wanted} as the cache has heads, got {tuple(x.shape)}")
    _check_written("k_cache", k_cache)
    _check_written("v_cache", v_cache)
    check_each("slot_mapping", slot_mapping, k_new, (torch.int64,), "k_new")
    if arguments.at_hand(slot_mapping):
        check_slots(slot_mapping, k_cache.shape[0] * k_cache.shape[1])


def check_each(name, x, rows, dtypes, other):
    """Check a tensor of one number per token of some rows, whose last axes are heads and columns."""
    shape = rows.shape[:-2]
    arguments.check_tensor(name, x, rows, dtypes, shape, full_axes=range(len(shape)), other=other)


def are_columns(v_cache, k_cache):
    """Whether values are the first columns of keys, in the same memory."""
    both = isinstance(v_cache, torch.Tensor) and isinstance(k_cache, torch.Tensor)
    return both and v_cache.data_ptr() == k_cache.data_ptr() and v_cache.stride() == k_cache.stride()


def as_split_size(split_size):
    """The number of keys of a split, or None if the call does not set it."""
    if split_size is None:
        return None
    split_size = arguments.as_int("split_size", split_size, maximum=2**28)
    if split_size < 1 or split_size % 128:
        raise ValueError(f"split_size: expected a multiple of 128, got {split_size}")
    return split_size


def check_workspace(workspace, q, size):
    """Check the memory for partial results."""
    arguments.check_kind("workspace", workspace, q, (torch.float32,))
    if workspace.numel() < size or not workspace.is_contiguous():
        raise ValueError(f"workspace: expected {size} values side by side, got shape {tuple(workspace.shape)}")


def check_out(out, q, v_cache):
    """Check the memory for the result."""
    arguments.check_kind("out", out, q, (q.dtype,))
    shape = (*q.shape[:-1], v_cache.shape[-1])
    if out.shape != shape or not out.is_contiguous():
        raise ValueError(f"out: expected shape {shape}, contiguous, got {tuple(out.shape)}")


def refuse_gradients(**tensors):
    """Raise an error for tensors that require a gradient."""
    for name, x in tensors.items():
        if x is not None and x.requires_grad:
            raise RuntimeError(f"{name}: decoding has no backward pass; call it under torch.no_grad()")


def by_place(scale):
    """Scales by sequence, page, place and head, with axes of size 1 that one scale is shared along."""
    if scale is None or scale.dim() < 2:
        return scale if scale is None else scale.view(1, 1, 1, -1)
    return scale[None] if scale.dim() == 3 else scale[:, None, None]
