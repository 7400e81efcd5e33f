"""Dropout in kernels for Hopper GPUs: which weights it keeps, and what it does to weights and their gradients.

Random numbers are those of the portable kernels: one call of the generator serves eight keys of a row. A thread has
scores of two of these eight, so the threads of a warp share the calls for their scores, and exchange what they draw.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....language.spec import Spec
from ... import softmax, storage
from ...parameters import Function, jitted
from ...statements import Block, Branch, Bundle, Comment, Statement

_FUNCTIONS = jitted("hopper/dropout", "draw", "draw_by_rows", "draw_by_keys", "kept_by", "marked", "is_marked")

NAMES = frozenset(function.name for function in _FUNCTIONS)
"""The functions of hopper.py that only these statements call."""

CALLED = frozenset({"apart"})
"""The functions of hopper.py that those call, besides each other."""

DELTA = "delta_buffer.index(stage).load(gl.SliceLayout(0, SCORES))"
"""Text of delta of a tile of queries."""

_KEPT = "kept_by(draws, drop_below)"
_BY_ROWS = "draw_by_rows(seed, b, h, first_query, k_start, BLOCK_N)"
_BY_KEYS = "draw_by_keys(seed, b, h, {}, {}, BLOCK_M)"
_OF_KEYS, _OF_ROWS, _OF_QUERIES = "[64, BLOCK_M]", "[64, BLOCK_N]", "[BLOCK_M]"  # shapes of tiles, and of a vector


@dataclass(frozen=True)
class Dropout:
    """The statements of a spec's dropout; without it there are none."""

    spec: Spec

    @property
    def functions(self) -> tuple[Function, ...]:
        """The functions of hopper.py that its statements call, directly or not."""
        return _FUNCTIONS if self.spec.dropout else ()

    @property
    def functions_of_wide(self) -> tuple[Function, ...]:
        """The functions of hopper_wide.py that its statements call; they call `view`."""
        return jitted("hopper/dropout", "exchanged") if self.spec.dropout else ()

    @property
    def weights(self) -> str:
        """The name of the weights by which a backward step multiplies dout."""
        return softmax.weights(self.spec)

    @property
    def unsigned(self) -> str:
        """Text of the weights of a backward step, whichever sign they have."""
        return "tl.abs(p)" if self.spec.dropout else "p"

    @property
    def dv(self) -> str:
        """Text of dV, once all its products are added up."""
        return "(dv * rescale)" if self.spec.dropout else "dv"

    @property
    def first_query(self) -> tuple[Statement, ...]:
        """The statement that finds the first query of a worker of the forward pass."""
        return (Statement("first_query", f"{self._from('q_start')} + WORKER * 64"),)

    @property
    def bundle(self) -> tuple[Bundle, ...]:
        """What such a worker draws from, as one tuple."""
        values = ("seed", "drop_below", "b", "h", "first_query")
        return (Bundle("dropout", values, packs=False),) if self.spec.dropout else ()

    @property
    def drawn_by_rows(self) -> tuple[Block, ...]:
        """The statements of a forward step that draw, while the product for scores runs."""
        draws = Statement("draws", f"gl.convert_layout({_BY_ROWS}, SCORES)", shape=_OF_ROWS)
        return (*self.bundle, *self._if_any(draws))

    @property
    def dropped(self) -> tuple[Block, ...]:
        """The statements of a forward step that drop weights, once the denominator has counted them."""
        return self._if_any(Statement("p", f"tl.where({_KEPT}, p, 0.0)"))

    @property
    def drawn_by_keys(self) -> tuple[Block, ...]:
        """The statements of a backward step that draw, while the product for scores runs."""
        draws = f"gl.convert_layout({self._by_keys('k_start + WORKER * 64')}, SCORES)"
        return self._if_any(Statement("draws", draws, shape=_OF_KEYS))

    @property
    def signed(self) -> tuple[Block, ...]:
        """The statements of such a step after which the sign of a weight says whether dropout keeps it.

        So a thread holds nothing but weights while it waits for their gradients.
        """
        return self._if_any(Comment("a minus marks what dropout drops"), Statement("p", f"tl.where({_KEPT}, p, -p)"))

    @property
    def used(self) -> tuple[Block, ...]:
        """The statements of such a step that compute the weights by which dout is multiplied."""
        plain = (Statement("used", "p"),) if self.spec.dropout else ()
        return (*plain, *self._if_any(_kept("p")))

    def issued(self, product: Statement) -> tuple[tuple[Block, ...], tuple[Block, ...], str]:
        """Where such a step issues the product for dP: before scores arrive, or only once weights have their signs.

        Random numbers, scores and dP together would take more registers than there are. The text is the number of
        products that run behind those for scores when the step waits for scores.
        """
        if not self.spec.dropout:
            return (product,), (), "1"
        return (Branch("seed is None", (product,)),), self._if_any(product), "1 if seed is None else 0"

    def derived(self, weight: str, *, sloped: bool) -> tuple[Block, ...]:
        """The statements of such a step that compute dS; if scores are `sloped`, `weight` has no sign, but a slope."""
        plain = Statement("ds", f"{weight} * (dp - delta[None, :])", label=_OF_KEYS)
        if not self.spec.dropout:
            return (plain,)
        back = "used * (dp * rescale) - tl.abs(p) * delta[None, :]"
        if sloped:
            back = f"{weight} * (tl.where(p > 0, dp * rescale, 0.0) - delta[None, :])"
        return (Branch("seed is None", (plain,), (Statement("ds", back, label=_OF_KEYS),)),)

    def handed_on(self, weight: str) -> tuple[Block, ...]:
        """The statements of a step that hands on `weight` to warps that multiply it by dp - delta, but draw nothing.

        These warps subtract delta / rescale instead. Where a weight is dropped, they get dS itself, with a mark.
        A thread has no registers for random numbers before the score is a weight; and as no memory is left for the
        exchange, it takes place in that of weights.
        """
        free = Statement("", "mbarrier.wait(weights_free, at & 1 ^ 1)")
        if not self.spec.dropout:
            return (free,)
        dropped = (
            Statement("draws", "exchanged(draws, weights, SCORES)", shape=_OF_KEYS),
            Statement("delta", DELTA, shape=_OF_QUERIES),
            Statement("stays", _KEPT, shape=_OF_KEYS),
            Statement("used", "tl.where(stays, p, -p)", shape=_OF_KEYS),
            _kept("used"),
            Comment("of a weight that stays, its product with rescale; of others, dS itself, with a mark"),
            Statement(weight, f"{weight} * tl.where(stays, rescale, -delta[None, :])", shape=_OF_KEYS),
            Statement(weight, f"tl.where(stays, marked({weight}, 0), marked({weight}, 1))", shape=_OF_KEYS),
        )
        drawn = Statement("draws", self._by_keys("k_start"), shape=_OF_KEYS)
        return (*self._if_any(drawn), free, Statement("used", "p"), *self._if_any(*dropped))

    @property
    def rescaled(self) -> tuple[Block, ...]:
        """The statements with which those warps find what to subtract."""
        less = Statement("delta", "delta * (1 / rescale)", shape=_OF_QUERIES)
        why = Comment("weights come times rescale, so dP - delta / rescale is their factor")
        return (Statement("delta", DELTA, shape=_OF_QUERIES), *self._if_any(why, less)) if self.spec.dropout else ()

    @property
    def derived_from_factors(self) -> tuple[Block, ...]:
        """The statements with which they compute dS from dp - delta."""
        loaded = "weights.load(dp_less_delta.type.layout)"
        if not self.spec.dropout:
            return (Statement("ds", f"dp_less_delta * {loaded}"),)
        dropped = Statement("ds", "tl.where(is_marked(factor), factor, ds)")
        return (Statement("factor", loaded), Statement("ds", "dp_less_delta * factor"), *self._if_any(dropped))

    def _from(self, row: str) -> str:
        """Text of the row number from which it draws for a row."""
        return storage.of(self.spec).drawn_from(row)

    def _by_keys(self, k_start: str) -> str:
        """Text of the random numbers of a tile of queries and a worker's keys."""
        return _BY_KEYS.format(self._from("q_start"), k_start)

    def _if_any(self, *blocks: Block) -> tuple[Block, ...]:
        """The statements, run if the call drops any weights."""
        return (Branch("seed is not None", blocks),) if self.spec.dropout else ()


def _kept(weight: str) -> Statement:
    """The statement that takes the weights which dropout keeps from those with signs; a NaN stays one."""
    return Statement("used", f"tl.maximum({weight}, 0.0, propagate_nan=tl.PropagateNan.ALL)", shape=_OF_KEYS)
