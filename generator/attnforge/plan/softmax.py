"""Statements of the softmax: the initial running values, and the weights that dropout keeps."""

from __future__ import annotations

from ..language.spec import Spec
from . import storage
from .kernel_terms import KernelTerms
from .statements import Block, Branch, Comment, Statement

_DRAWN = "seed is not None"  # whether the call drops any weights


def start(
    spec: Spec,
    full: str = "tl.full",
    rows: str = "BLOCK_M",
    layouts: tuple[str, str] = ("", ""),
    sums: str = "8",
) -> tuple[Block, ...]:
    """The statements that initialise the running maximum `m` and the partial sums `l` of rows that have seen no key.

    `full` is the function that makes a tile of one value, `rows` its number of rows, and `layouts` the last arguments
    for `m` and for `l`; a row of `l` has `sums` partial sums.
    """
    of_rows, of_sums = (f", {layout}" if layout else "" for layout in layouts)

    def made(largest: str, total: str) -> tuple[Statement, Statement]:
        return (
            Statement("m", f"{full}([{rows}], {largest}, tl.float32{of_rows})", shape=f"[{rows}]"),
            Statement("l", f"{full}([{rows}, {sums}], {total}, tl.float32{of_sums})", shape=f"[{rows}, {sums}]"),
        )

    if not spec.sink:
        return made('float("-inf")', "0.0")
    m, l_of_sink = made("sink * LOG2E", 'tl.where(sink == float("-inf"), 0.0, 1 / 8)')
    return (
        Comment("every row starts as if it had seen the sink"),
        Statement("sink", "tl.load(sinks_ptr + tl.cast(h, tl.int64) * sinks_stride_head).to(tl.float32)"),
        m,
        Comment("each of the eight partial sums starts with an eighth of its weight"),
        l_of_sink,
    )


def unseen(spec: Spec, instead: str = "0") -> tuple[Block, ...]:
    """The comment on why `instead`, not the maximum, is subtracted from scores of a row that has seen nothing."""
    what = "neither key nor sink" if spec.sink else "no key yet"
    return (Comment(f"a row that has seen {what} has m = -inf: subtract {instead} instead, as -inf - -inf is NaN"),)


def empty(spec: Spec) -> tuple[Block, ...]:
    """The comment on the results of rows without keys."""
    return (Comment(f"rows without keys: out is 0, the LSE {'is the sink' if spec.sink else 'makes every weight 0'}"),)


def kept(terms: KernelTerms) -> str:
    """Text of the mask of a tile's weights that dropout keeps."""
    drawn = f"kept(seed, drop_below, b, h, {storage.of(terms.spec).drawn_from('row')}, k_start, k_pos.shape[0])"
    return drawn + (".T" if terms.down == "k" else "")


def kept_anywhere(terms: KernelTerms) -> str:
    """The same for tiles that may begin anywhere if the call says which rows a batch entry has."""
    alone = f"kept_alone(seed, drop_below, b, h, {storage.of(terms.spec).drawn_from('row')}, k_pos)"
    return f"({kept(terms)} if entries_ptr is None else {alone})"


def weights(spec: Spec) -> str:
    """The name of the weights by which values are multiplied."""
    return "used" if spec.dropout else "p"


def used(terms: KernelTerms) -> tuple[Block, ...]:
    """The statements that compute these weights in a forward step."""
    if not terms.spec.dropout:
        return ()
    return (Statement("used", f"p if seed is None else tl.where({kept(terms)}, p, 0.0)"),)


def used_again(terms: KernelTerms) -> tuple[Block, ...]:
    """The statements that compute them in a backward step that needs both the weights and their gradient."""
    if not terms.spec.dropout:
        return ()
    drawn = (Statement("stays", kept(terms)), Statement("used", "tl.where(stays, p, 0.0)"))
    return (Statement("used", "p"), Branch(_DRAWN, drawn))


def passed_back(terms: KernelTerms, stays: str = "") -> tuple[Block, ...]:
    """The statements that take the gradient of the weights, `dp`, back through dropout; `stays` is the kept mask."""
    if not terms.spec.dropout:
        return ()
    return (Branch(_DRAWN, (Statement("dp", f"tl.where({stays or kept(terms)}, dp * rescale, 0.0)"),)),)
