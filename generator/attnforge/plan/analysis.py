"""A spec analysed for tiles: its terms as kernels read them, the tiles they leave visible, and the layout of rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ..language.spec import Spec
from . import positions, running_sums, statements, storage, tile_ranges, tiles
from .distance_reads import NOTHING, DistanceReads
from .kernel_terms import KernelTerms
from .sides import SIDES, Side
from .statements import Statement
from .storage import Storage
from .tile_ranges import TileRange
from .tile_states import TileStates

IN_LOG2 = Statement("scale_log2", "scale * LOG2E")


@dataclass(frozen=True)
class Analysis:
    """The facts about a variant that all its kernels and the host share."""

    spec: Spec
    by_query: KernelTerms  # the terms as read by kernels whose programs own queries
    by_key: KernelTerms  # the terms as read by kernels whose programs own keys
    keys: TileRange
    queries: TileRange
    key_states: TileStates | None  # by which programs that own queries skip tiles of keys, based on the call's tensors
    query_states: TileStates | None
    storage: Storage

    def states(self, own: Side) -> TileStates | None:
        """The tile states by which programs that own tiles of a side skip others, if the call's tensors allow it."""
        return self.key_states if own == "q" else self.query_states

    @property
    def begin(self) -> Statement:
        """The statement that finds the position of a sequence's first query."""
        return Statement(positions.BEGIN, self.storage.begin)

    @property
    def kv(self) -> str:
        """The kernels' name for the key head."""
        return "kv_h" if self.spec.grouped else "h"

    @property
    def kv_heads(self) -> str:
        """The kernels' name for the number of key heads."""
        return "Hkv" if self.spec.grouped else "Hq"

    @property
    def key_head(self) -> tuple[Statement, ...]:
        """The statements that find the key head of a query head."""
        return (Statement("kv_h", "h // GROUP"),) if self.spec.grouped else ()

    @property
    def joined(self) -> bool:
        """Whether mixed and full tiles share a loop, the mask under a branch that the assembler has to live with."""
        return self.by_query.weight not in tiles.APART

    @property
    def scale_log2(self) -> str:
        """Text of the factor from a kernel's score to log2 units; if there are terms, the scale comes before them."""
        if not self.spec.scores:
            return "scale_log2"
        outer = self.by_query.factored.outer
        return "LOG2E" if outer == 1 else f"({outer!r} * LOG2E)"

    @property
    def scaled(self) -> tuple[Statement, ...]:
        """The statement that merges the scale and the factor for log2 units, if no score terms come between them."""
        return () if self.spec.scores else (IN_LOG2,)

    @property
    def inner_scale(self) -> str:
        """Text of the factor that products of queries and keys need before the score terms."""
        op, number = self.by_query.factored.inner
        return "scale" if number == 1 else f"scale {op} {number!r}"

    @property
    def scaling(self) -> str:
        """Text that scales a product of queries and keys at once; without score terms, `scale_log2` does it later."""
        scale = self.inner_scale
        return "" if not self.spec.scores else " * scale" if scale == "scale" else f" * ({scale})"

    @property
    def slope(self) -> str:
        """Text of the final factor of the gradient with respect to the terms' score."""
        both = self.by_query.factored.both
        return "scale" if both == 1 else f"(scale * {both!r})"

    @property
    def rescale(self) -> str:
        """Text that rescales a sum to make up for the weights that dropout drops."""
        return " * rescale" if self.spec.dropout else ""

    @cached_property
    def shared_range(self) -> bool:
        """Whether all heads of a group visit the same queries: the range depends on nothing that differs among them."""
        by_head = {"h", *statements.targets(self.by_key.loads("head"))}
        if by_head & statements.reads(self.by_key.narrowed):
            return False
        if self.query_states:
            return not self.query_states.per_head
        return len(self.queries.ends) == 1 and not by_head & set(self.queries.parameters)


def analyse(spec: Spec, by_distance: DistanceReads = NOTHING) -> Analysis:
    """Works out how the terms of a spec apply to tiles; `by_distance`: what kernels read by distance."""
    key_states, query_states = (found if (found := TileStates(spec, side)).any else None for side in SIDES)
    return Analysis(
        spec,
        KernelTerms(running_sums.in_kernels(spec, "q"), "q", by_distance=by_distance),
        KernelTerms(running_sums.in_kernels(spec, "k"), "k", not spec.algorithm.by_query, by_distance),
        *tile_ranges.both(spec, key_states=key_states is not None, query_states=query_states is not None),
        key_states,
        query_states,
        storage.of(spec),
    )
