"""The columns of q and k beyond a tile's own, in specs that say `latent`: a separate tile holds them for each.

A product over 576 columns is one over 512 and one over 64; rounded up to a power of 2 it would be over 1024.
"""

from __future__ import annotations

from collections.abc import Iterator

from .analysis import Analysis
from .sides import BLOCKS, Side
from .statements import Block, Branch, Statement


def names(a: Analysis, *texts: str) -> tuple[str, ...]:
    """These names if there are such columns, else none."""
    return texts if a.spec.latent else ()


def opened(a: Analysis, own: Side) -> tuple[Block, ...]:
    """The statements with which a program loads these columns of its own rows."""
    return _there(a, own, (_load(a, own),), (Statement(f"{own}_rest", "None"),))


def scored(a: Analysis, own: Side, cleared: tuple[Block, ...] = ()) -> tuple[Block, ...]:
    """The statements with which a step adds their products to scores; each row of a score tile is a row of `own`."""
    other: Side = "k" if own == "q" else "q"
    return _there(a, other, (_load(a, other), *cleared, _product(a, own, other)))


def scored_at_once(a: Analysis) -> tuple[Block, ...]:
    """The same for a program that loads rows of both sides anew in each step."""
    return _there(a, "q", (_load(a, "q"), _load(a, "k"), _product(a, "q", "k")))


def zeros(a: Analysis, own: Side) -> tuple[Block, ...]:
    """Their gradient before the first step."""
    shape = f"[{BLOCKS[own]}, REST]"
    made = Statement(f"d{own}_rest", f"tl.zeros({shape}, tl.float32)", shape=shape)
    return (made,) if a.spec.latent else ()


def passed_back(a: Analysis, own: Side, wanted: str = "") -> tuple[Block, ...]:
    """The statements that add a step's share to their gradient; `wanted` is text of whether a launch computes it."""
    x, total = ("k" if own == "q" else "q"), f"d{own}_rest"
    share = f"add_product({total}, ds.to({x}_rest.dtype), {x}_rest, PRECISION)"
    condition = f"{x}_rest_desc is not None" + (f" and {wanted}" if wanted else "")
    return _there(a, x, (Statement(total, share, label=f"[{BLOCKS[own]}, REST]"),), condition=condition)


def stored(a: Analysis, own: Side) -> tuple[Block, ...]:
    """The statements that store their gradient."""
    heads, x = ("Hq" if own == "q" else a.kv_heads), f"d{own}"
    place = f"{x}_ptr + first_row * D + BLOCK_D, {heads} * D"
    rows = f"{x}_rest * {a.slope}, {own}_start, {own}_len"
    return _there(a, own, (Statement("", f"store_rows({place}, {rows}, D - BLOCK_D)"),))


def columns(a: Analysis, width: str) -> str:
    """Text of the number of columns of a tile that holds whole rows of `width` D or DV."""
    if width == "D" and a.spec.latent:
        return "BLOCK_D if D <= BLOCK_D else 2 * BLOCK_D"
    return f"BLOCK_{width}"


def _there(
    a: Analysis, x: str, then: tuple[Block, ...], otherwise: tuple[Block, ...] = (), condition: str = ""
) -> tuple[Block, ...]:
    """A branch for calls that have such columns of q or k, in specs that allow them."""
    return (Branch(condition or f"{x}_rest_desc is not None", then, otherwise),) if a.spec.latent else ()


def _load(a: Analysis, x: Side) -> Statement:
    head, rows = "h" if x == "q" else a.kv, BLOCKS[x]
    return Statement(f"{x}_rest", a.storage.tile(f"{x}_rest", x, head, rows, "REST"), shape=f"[{rows}, REST]")


def _product(a: Analysis, down: Side, across: Side) -> Statement:
    text = f"tl.dot({down}_rest, {across}_rest.T, input_precision=PRECISION){a.scaling}"
    return Statement("score", text, "+=", label=f"[{BLOCKS[down]}, {BLOCKS[across]}]")


def descriptors(a: Analysis, *sides: Side) -> Iterator[tuple[str, str, tuple[str, str]]]:
    """The sources of these columns: a kernel's name for each, the host's text, and the shape of a tile."""
    for x in sides if a.spec.latent else ():
        yield f"{x}_rest_desc", f"runtime.rest({x})", (BLOCKS[x], "REST")
