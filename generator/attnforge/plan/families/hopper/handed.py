"""What the loading warp of the forward kernel passes on to workers besides keys and values, and how they take it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ...access import Site
from ...kernel_terms import KernelTerms
from ...shared_parameters import SharedParameters
from ...statements import Block, Branch, Bundle, Statement, needed, reads, targets
from . import by_distance
from .additions import Added
from .pair_tiles import PairTiles
from .vectors import BEGIN_READY, ENOUGH, IN_LINE, READY, Vector, hand_on, taken, vectors, wait

KEYS_OF_SCORES = "gl.SliceLayout(0, score.type.layout)"
"""The layout of a value for each key of a tile of scores."""


@dataclass(frozen=True)
class Handed:
    """Values of the keys of a tile, and of its pairs of a query and a key."""

    shared: SharedParameters
    added: Added | None  # the score terms, if the accumulators of score products start from them

    @property
    def terms(self) -> KernelTerms:
        """The spec's terms."""
        return self.shared.analysis.by_query

    @cached_property
    def pairs(self) -> PairTiles:
        """The values of pairs that steps read from tiles of their own."""
        return PairTiles(self.shared, "k")

    @cached_property
    def vectors(self) -> tuple[Vector, ...]:
        """The values of each key that steps read, apart from the addend where its scores start."""
        return vectors(self.terms, ("mask",) if self.added else ("step", "mask"))

    @property
    def begin(self) -> tuple[Vector, ...]:
        """The addend where the scores of each key start, if it is not 0."""
        return (self.added.begin,) if self.added else ()

    @cached_property
    def keys(self) -> tuple[Vector, ...]:
        """All values of each key."""
        return (*self.begin, *self.vectors)

    @property
    def tiles(self) -> tuple[str, ...]:
        """The names of what a step reads of a tile."""
        return (*(vector.tile for vector in self.vectors), *self.pairs.tile)

    @cached_property
    def read(self) -> tuple[Statement, ...]:
        """The statements with which the loader reads the values of a tile's keys."""
        loads = (*self.terms.loads("step"), *self.terms.loads("mask"))
        return needed((*loads, *(vector.read for vector in self.begin)), (vector.name for vector in self.keys))

    def given(self, taken: tuple[str, ...]) -> tuple[Bundle, ...]:
        """The arguments of these statements besides `taken` ones, as one tuple, if there is something to read."""
        passed = self.terms.passed(reads(self.read), {*targets(self.read), "k_pos", *taken}, ("q_first", "scale"))
        return (Bundle("terms", passed, packs=False),) if self.keys else ()

    @property
    def buffers(self) -> tuple[str, ...]:
        """The names of what loader and workers share besides the buffers of keys and values."""
        return (*self._barriers, *(vector.buffer for vector in self.keys), *self.pairs.buffers)

    @property
    def told(self) -> str:
        """What the loader copies and passes on for a tile, in words."""
        copied = f"keys, one of values and one of {self.pairs.input.name}" if self.pairs else "keys and one of values"
        return f"one tile of {copied}" + (", and pass on what else workers read of each key" if self.keys else "")

    @property
    def made(self) -> tuple[Statement, ...]:
        """The statements that make them."""
        return (
            *((ENOUGH,) if self.vectors else ()),
            *(Statement(barriers, "barriers(STAGES, 1)") for barriers in self._barriers),
            *(vector.made for vector in self.keys),
            *self.pairs.blocks["pairs_made"],
        )

    @property
    def _barriers(self) -> tuple[str, ...]:
        """The names of the barriers at which values of keys are ready."""
        return (*((BEGIN_READY,) if self.begin else ()), *((READY,) if self.vectors else ()))

    def loads(self, site: Site) -> tuple[Statement, ...]:
        """A step's loads of the values that terms read."""
        if self.added and site == "step":
            return ()
        loads = (*self.pairs.read(self.terms.loads(site)), *(by_distance.loads(self.terms) if site == "step" else ()))
        return taken(loads, self.vectors, KEYS_OF_SCORES)

    def _come(self, *, always: bool) -> tuple[Block, ...]:
        """The statements that wait for a tile's values of keys, and find them; masks need them in mixed tiles only."""
        if not self.vectors:
            return ()
        scored = {load.target for load in self.loads("step")}
        always = always or any(vector.name in scored for vector in self.vectors)
        return (wait(READY) if always else Branch("mixed", (wait(READY),)), *(one.at_hand for one in self.vectors))

    def blocks(self, given: tuple[Bundle, ...]) -> dict[str, tuple[Block, ...]]:
        """The statements of the loader, for arguments that it is `given`, and of workers, by their place."""
        return {
            "keys_read": (*given, *IN_LINE, *self.read) if self.keys else (),
            "begin_stored": hand_on(BEGIN_READY, self.begin),
            "begin_comes": (wait(BEGIN_READY), *(vector.at_hand for vector in self.begin)) if self.begin else (),
            "vectors": hand_on(READY, self.vectors),
            "first_vectors": self._come(always=True),
            "vectors_come": self._come(always=False),
            **self.pairs.blocks,
        }
