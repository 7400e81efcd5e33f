"""Latent heads over a cache: columns of q and k beyond a tile's 512, and values that are the first columns of keys."""

from __future__ import annotations

from collections.abc import Callable

from .analysis import Analysis
from .parameters import Parameter
from .statements import Block, Branch, Comment, Statement

_BEHIND = "D > BLOCK_D"
V_IN_K = Parameter("V_IN_K", "constexpr", "call.v_in_k and runtime.padded_width(q) == runtime.padded_width(v)")


def constants(a: Analysis) -> tuple[Parameter, ...]:
    """Whether products of few rows are transposed, how many partial sums weights have, and how values are read.

    A tile of keys that also serves as the tile of values would have to be transposed for one of the two products. As
    bits must not depend on whether it serves as both, no tile of such specs is transposed.
    """
    turned, keys, in_twos = "block_m <= FEW", "block_n // 2", "block_m <= FEW and in_twos(q, v)"
    if a.spec.latent:
        turned, keys, in_twos = "False", "block_n", "False"
    return (
        *((V_IN_K,) if a.spec.latent else ()),
        Parameter("TURNED", "constexpr", turned),
        Parameter("SUMS", "constexpr", f"min(8 * ways[0][1], {keys}) if block_m <= FEW else 8"),
        Parameter("IN_TWOS", "constexpr", in_twos),
    )


def loads(a: Analysis) -> tuple[str, ...]:
    """The functions that load tiles of keys and values."""
    return ("load_places",) if a.spec.latent else ("load_places", "load_twos")


def names(a: Analysis, *texts: str) -> tuple[str, ...]:
    """These names in specs that say `latent`."""
    return texts if a.spec.latent else ()


def queries(a: Analysis, load: Callable[[str, bool], Block]) -> tuple[Block, ...]:
    """The statements that load a tile of queries and the columns beyond it; `load` takes a name, and True for these."""
    rest = (Branch(_BEHIND, (load("q_rest", True),), (Statement("q_rest", "None"),)),) if a.spec.latent else ()
    return (load("q_tile", False), *rest)


def in_units(a: Analysis) -> tuple[Block, ...]:
    """The statements that bring queries below 16, dividing each row by a power of 2."""
    unit, tile = Statement("q_unit", "row_units(q_tile)"), Statement("q_tile", "in_units(q_tile, q_unit)")
    if not a.spec.latent:
        return unit, tile
    largest = Branch(_BEHIND, (Statement("q_unit", "tl.maximum(q_unit, row_units(q_rest))"),))
    return unit, largest, tile, Branch(_BEHIND, (Statement("q_rest", "in_units(q_rest, q_unit)"),))


def scored(a: Analysis, there: str) -> tuple[Block, ...]:
    """The statements with which a step adds the products of the columns beyond to its scores; `there` masks keys."""
    if not a.spec.latent:
        return ()
    load = f"load_places(k_ptr + BLOCK_D, k_place, {there}, D - BLOCK_D, REST).to(q_rest.dtype)"
    product = f"multiply(q_rest, k_rest, PRECISION, TURNED){a.scaling}"
    total = f"tl.fma({product}, 1.0, score)"
    return (
        Branch(
            _BEHIND,
            (
                Statement("k_rest", load, label="[BLOCK_N, REST]"),
                Comment("fma keeps the products apart: if one added to the other, two warps would own the same rows"),
                Statement("score", total, label="[BLOCK_M, BLOCK_N]"),
            ),
        ),
    )


def values(a: Analysis, wider: str) -> tuple[Block, ...]:
    """The statements that load a tile of values, unless keys hold them; `wider` is text of a factor of its width."""
    taken = f"v_ptr, v_place, there, DV{wider}, BLOCK_DV{wider}"
    load = Statement("v_tile", f"load_places({taken}, TURNED).to(q_tile.dtype)")
    if a.spec.latent:
        return (Branch("V_IN_K", (Statement("v_tile", "k_tile"),), (load,)),)
    twos = Statement("v_tile", f"load_twos({taken})")
    return (Branch("IN_TWOS", (twos,), (load,)),)


def stored(a: Analysis) -> tuple[Block, ...]:
    """The statements that end the work on a new token after its keys are stored, if they hold the values."""
    return (Branch("V_IN_K", (Statement("", "return"),)),) if a.spec.latent else ()
