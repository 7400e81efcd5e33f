"""Weights that the backward kernels for Hopper GPUs recompute from scores, and slopes, the factors of dP - delta."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from ... import programs, uniform_entries, visibility
from ...kernel_terms import KernelTerms
from ...positions import BEGIN
from ...shared_parameters import SharedParameters
from ...statements import Block, Statement, names, needed, reads, targets
from ...uniform_entries import UniformEntries
from . import by_distance
from .additions import Added
from .by_distance import SummedPart
from .dropout import Dropout
from .pair_tiles import PairTiles
from .scores import scaled
from .sums import Sums

_LAYOUTS = {"k_pos": "gl.SliceLayout(1, SCORES)", "row": "gl.SliceLayout(0, SCORES)"}

_NEAR = "of_registers(BLOCK_M, SCORES)"  # the part of a distance that the compiler knows for each register


@dataclass(frozen=True)
class Weights:
    """The statements of a step that compute them; steps walk along tiles of queries, and a worker owns 64 keys."""

    shared: SharedParameters
    added: Added | None = None  # its score terms, if they are addends that the LSE contains
    tables: tuple[SummedPart, ...] = ()  # parts by distance whose gradients steps add up

    @cached_property
    def terms(self) -> KernelTerms:
        """The spec's terms, of programs that own keys."""
        return self.shared.analysis.by_key

    @cached_property
    def sums(self) -> Sums:
        """The sums that are accumulated along the way."""
        return Sums(self.shared)

    @cached_property
    def uniform(self) -> UniformEntries:
        """The tables with entries for each row of which most tiles read a single one."""
        return uniform_entries.of(self.terms, rows="64", aside=True)

    @cached_property
    def pairs(self) -> PairTiles:
        """The values of pairs that steps read from tiles of their own."""
        return PairTiles(self.shared, "q")

    @property
    def dropout(self) -> Dropout:
        """The spec's dropout."""
        return Dropout(self.shared.spec)

    @property
    def _weights(self) -> str:
        """Text of the weights, whether or not dropout keeps them."""
        return self.dropout.unsigned

    @property
    def _dropping(self) -> dict[str, tuple[Block, ...]]:
        """The statements of a step that change with dropout, by their place."""
        drops = self.dropout
        return {
            "drawn": drops.drawn_by_keys,
            "dropped": drops.signed,
            "used": drops.used,
            "derived": drops.derived(self._factors["weight"], sloped=bool(self._sloped)),
        }

    @property
    def _masks_all(self) -> bool:
        """True if all tiles apply the mask: a branch costs more than one comparison, and takes registers from slopes.

        With a function of each score that leaves few registers, but no slope, the branch costs less; so it does with a
        window's two comparisons, if it is placed before weights are computed.
        """
        terms = self.terms
        banded = terms.banded and not visibility.key_bounds(terms) and terms.weight != "sloped"
        single = bool(self.added) or "near" in targets(terms.visible(apart=True, near=_NEAR))
        return (banded and single) or terms.steep or not self.shared.analysis.queries.full

    def _given(self, own: tuple[str, ...]) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """The names that terms read and no step changes; a step is given its `own` as well."""
        terms = self.terms
        loads = (*self._step_loads, *terms.loads("mask"))
        dropout = itertools.chain.from_iterable(self._dropping.values())
        read = reads((*dropout, *self._inward, *terms.visible(apart=True), *loads, *self._tables_learn))
        read |= names(self._exponent)
        scale = "scale_log2" if self._in_log2 else "scale"
        lengths = (name for name in ("q_len", "k_len") if name in reads((*self._scored, *self._masked)))
        of_tables = (part.name for part in by_distance.parameters(self.tables))
        fixed = tuple(dict.fromkeys((*lengths, scale, "k_pos", *self.sums.read, *of_tables)))
        made = {*fixed, *own, "row", "q_pos", "q_first", *targets(loads)}
        words: tuple[str, ...] = tuple(name for name in ("b", "h") if name in read)
        words += (BEGIN,) if {"q_pos", "q_first"} & read and BEGIN not in fixed else ()
        more = ("k_added", "k_first", "k_last", *by_distance.places(terms))
        return (("terms", (*fixed, *words, *terms.passed(read, {*made, *words}, more))),)

    def _rows(self, blocks: Iterable[Block]) -> tuple[Statement, ...]:
        """The rows of a tile of queries, if some blocks need them."""
        return tuple(map(self._laid_out, needed(programs.rows("q"), reads(blocks))))

    def _start(self, more: Iterable[Block] = ()) -> tuple[str, ...]:
        """The name of a tile's first query, if weights or `more` blocks read it."""
        read = reads((*self._rows(self._scored), *self._scored, *self._masked, *more))
        return ("q_start",) if "q_start" in read else ()

    @property
    def _scored(self) -> tuple[Statement, ...]:
        """The statements that turn a product of keys and queries into the score."""
        loads = tuple(map(self._laid_out, self._step_loads))
        return scaled(self.shared.analysis, loads, self._inward)

    @property
    def _placed(self) -> tuple[Statement, ...]:
        """The places of a worker's first key in values by distance."""
        return by_distance.placed(self.terms, self._ahead.removesuffix(" + "))

    @property
    def _tables_learn(self) -> tuple[Block, ...]:
        """The statements that add dS, in float32, to sums by distance."""
        return by_distance.added(self.tables)

    @property
    def _step_loads(self) -> tuple[Statement, ...]:
        """The loads of a step for scores."""
        if self.added:
            return ()
        pairs = self.pairs.read(self.terms.loads("step"))
        return (*self.uniform.ends, *pairs, *by_distance.loads(self.terms))

    @property
    def _inward(self) -> tuple[Statement, ...]:
        """The statements that apply terms to a score in a step."""
        return () if self.added else self.terms.inward

    @property
    def _in_log2(self) -> bool:
        """True if products become scores in log2 units at once."""
        return not self._inward

    @property
    def _exponent(self) -> str:
        """Text of the exponent of 2 that gives the weights."""
        if self.added:
            return "score * scale_log2 + (k_added[:, None] - lse[None, :])"
        product = f"score * {self.shared.analysis.scale_log2}"
        if of_keys := self.uniform.of_keys:
            return f"{product} + ({of_keys} - lse[None, :])"
        return f"{product} - lse[None, :]"

    @property
    def _factors(self) -> dict[str, str]:
        """Texts of exponent and slope, which hold factors moved out of terms, and of the factor of dP - delta."""
        weight = "ds" if self._sloped else "p"
        return {"exponent": self._exponent, "slope": self.shared.analysis.slope, "weight": weight}

    @property
    def _masked(self) -> tuple[Block, ...]:
        """The statements that compute `keep`, with the rows that no score needs: earlier they would take registers.

        Rows past the last query have an LSE of inf, so finite scores have a weight of 0 there; what a score adds by
        distance is finite or -inf wherever a mask of distances is true, and 0 beyond all keys. If no later key is
        visible, no key past the last one is either.
        """
        terms = self.terms
        adds = all(by_distance.only_adds(term.score, terms) for term in terms.spec.scores)
        finite = self._in_log2 or (adds and terms.banded and not self.shared.storage.cut)
        rows = [] if finite else ["(row < q_len)[None, :]"]
        # measured to pay off if all tiles apply the mask
        near = _NEAR if self._masks_all else ""
        keep = visibility.masked(terms, (*rows, *visibility.key_bounds(terms)), apart=True, near=near)
        masked = (*map(self._laid_out, terms.loads("mask")), *keep)
        known = self._rows(self._scored)
        return (*(row for row in self._rows(masked) if row not in known), *masked)

    @property
    def _sloped(self) -> tuple[Statement, ...]:
        """The statements that multiply weights by slopes at once, so that slopes need not wait for dP.

        If inputs are learned, slopes are 1.
        """
        slopes = () if self.terms.sums else self.terms.outward
        return (Statement("ds", self._weights, label="still without the factor dP - delta"), *slopes) if slopes else ()

    def _laid_out(self, statement: Statement) -> Statement:
        """A statement about the rows of a tile, with layouts for vectors; a worker has 64 of the keys."""
        if statement.target == "k_pos":
            value = f"k_start + {self._ahead}gl.arange(0, 64, {_LAYOUTS['k_pos']})"
            statement = dataclasses.replace(statement, value=value)
        elif statement.target == "row":
            value = f"q_start + gl.arange(0, BLOCK_M, {_LAYOUTS['row']})"
            statement = dataclasses.replace(statement, value=value)
        return dataclasses.replace(statement, shape=statement.shape.replace("BLOCK_N", "64"))

    @property
    def _ahead(self) -> str:
        """The offset of a worker's first key from its program's, as the first summand of a text."""
        return "WORKER * 64 + "
