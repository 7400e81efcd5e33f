"""Earlier orders of the same computation, forward only: their cost shows what the portable family's order saves."""

from __future__ import annotations

from .. import programs, softmax, visibility
from ..loops import Loops
from ..parameters import Kernel, Parameter, jitted
from ..shared_parameters import TILED, SharedParameters
from ..statements import Statement, needed, reads
from . import portable
from .family import Family, Kernels


def _columns_of_keys(p: SharedParameters) -> portable.Keys:
    """Tiles whose neighbours in a row are a stride apart in memory: as loaded, each column holds a key."""
    # strides are in units of 16 bytes, so that the compiler sees that it may load 16 bytes at once
    names = ["row" if axis == "token" else axis for axis in p.storage.outer]
    strides = (Parameter(f"k_stride_{name}", "i32", f"runtime.stride_in_steps(k, {i})") for i, name in enumerate(names))
    start = f"{p.storage.offset('k', 'k', 'row')} + tl.cast({p.analysis.kv}, tl.int64) * k_stride_head"
    return portable.Keys(
        ("q_desc", "v_desc"),
        (Parameter("k_ptr", "*T", "k"), *strides),
        ("k_base", "k_stride_row", "D"),
        (Statement("k_base", f"k_ptr + ({start}) * elements(k_ptr)"),),
        "load_columns(k_base, k_stride_row, k_start, k_len, D, BLOCK_D, BLOCK_N)",
        "[BLOCK_D, BLOCK_N]",
        "k_tile",
        ("GROUP", "D", "DV"),
    )


def _by_heads(p: SharedParameters) -> Kernel:
    """The kernel whose programs take one head, and loop over its tiles of keys and the queries that see each."""
    a, terms = p.analysis, p.analysis.by_key
    used = softmax.used(terms)
    scored = (*terms.loads("step"), *terms.score)
    masked = (*terms.loads("mask"), *visibility.of_keys(terms))
    walked = ("q_desc", "acc_base", "m_base", "l_base", "DV")
    read = reads((*terms.score, *masked, *used))
    step = p.step("attend", terms, (), ("k_tile", "v_tile"), walked, read)
    whole = "k_start + BLOCK_N <= k_len"
    loops = Loops(a.queries, None, step.call, a.joined, step.tails, terms.narrowed, full_if=whole, stages=1)
    return Kernel(
        "forward",
        (
            *p.operands("q_desc", "k_desc", "v_desc"),
            *(Parameter(f"{name}_ptr", "*fp32", name, written=True) for name in ("acc", "m", "l")),
            Parameter("out_ptr", "*T", "out", written=True),
            Parameter("lse_ptr", "*fp32", "lse", written=True),
            *p.sizes(),
            *p.storage.aligned(),
            *p.given(terms),
            *p.dropped(),
            *p.constants("GROUP", "DV", *TILED),
        ),
        "early/forward_by_heads.jinja",
        f"({p.storage.sequences} * q.shape[-2],)",
        step,
        {
            "step_rows": (
                *step.unpacked,
                *needed(programs.rows("q"), {"row"} | reads((*scored, *masked, *used))),
            ),
            "scored": scored,
            "masked": masked,
            "unseen": softmax.unseen(p.spec),
            "used": used,
            "enter": (
                *a.key_head,
                *programs.sequence(a, "q", [("out", "DV")], tile="0"),
                *needed(
                    (a.begin, *a.scaled, *terms.loads("program")),
                    reads((*terms.loads("tile"), *step.packed, *loops.blocks)),
                ),
            ),
            "tile": (
                *needed(programs.rows("k"), {"k_pos"} | reads((*terms.loads("tile"), *step.packed, *loops.blocks))),
                *terms.loads("tile"),
            ),
            "cleared": programs.next_cleared(a, "k", "v_tile"),
            "visit": (*step.packed, *loops.blocks),
            "empty": softmax.empty(p.spec),
        },
        {"weights": softmax.weights(p.spec)},
        _buffers(p),
    )


def _buffers(p: SharedParameters) -> tuple[str, ...]:
    """The host's statements that allocate the state which the forward pass keeps in memory between steps."""
    acc = "acc = lse.new_zeros(*lse.shape, v.shape[-1])"
    if not p.spec.sink:
        return acc, 'm = lse.new_full(lse.shape, float("-inf"))', "l = lse.new_zeros(lse.shape)"
    # every row starts as if it had seen the sink
    first = "m = lse.new_empty(lse.shape).copy_((sinks.float() * LOG2E)[:, None])"
    return acc, first, 'l = (m > float("-inf")).float()'


def kernels(p: SharedParameters) -> Kernels:
    """The forward pass, in the order that a spec names."""
    if p.spec.algorithm.by_query:
        functions = jitted("early/loads", "elements", "load_columns")
        return Kernels(portable.forward(p, _columns_of_keys(p)), functions=functions)
    return Kernels(_by_heads(p))


EARLY = Family("early", lambda spec: not spec.algorithm.backward, kernels)
