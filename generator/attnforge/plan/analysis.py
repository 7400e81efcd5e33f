"""A spec worked out for tiles: its terms as kernels read them, the tiles they leave, and where rows stand."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ..language.spec import Spec
from . import positions, running_sums, statements, storage, tile_ranges
from .kernel_terms import KernelTerms
from .sides import SIDES, Side
from .statements import Statement
from .storage import Storage
from .tile_ranges import TileRange
from .tile_states import TileStates

IN_LOG2 = Statement("scale_log2", "scale * LOG2E")


@dataclass(frozen=True)
class Analysis:
    """What all kernels of a variant, and the host, know of it."""

    spec: Spec
    by_query: KernelTerms  # the terms as kernels read them whose programs own queries
    by_key: KernelTerms  # the terms as kernels read them whose programs own keys
    keys: TileRange
    queries: TileRange
    key_states: TileStates | None  # how programs that own queries skip tiles by what the call gives
    query_states: TileStates | None
    storage: Storage

    def states(self, own: Side) -> TileStates | None:
        """How programs that own tiles of a side skip tiles by what the call gives, if they do."""
        return self.key_states if own == "q" else self.query_states

    @property
    def begin(self) -> Statement:
        """The statement that finds the position of a sequence's first query."""
        return Statement(positions.BEGIN, self.storage.begin)

    @property
    def kv(self) -> str:
        """What kernels call the key head."""
        return "kv_h" if self.spec.grouped else "h"

    @property
    def kv_heads(self) -> str:
        """What kernels call the number of key heads."""
        return "Hkv" if self.spec.grouped else "Hq"

    @property
    def key_head(self) -> tuple[Statement, ...]:
        """The statements that find the key head of a query head."""
        return (Statement("kv_h", "h // GROUP"),) if self.spec.grouped else ()

    @property
    def joined(self) -> bool:
        """Whether mixed and full tiles share a loop, the mask under a branch that the assembler has to live with."""
        return self.by_query.weight != "heavy"

    @property
    def scale_log2(self) -> str:
        """What turns a kernel's score into log2 units: with terms in between, the scale is applied before them."""
        if not self.spec.scores:
            return "scale_log2"
        outer = self.by_query.factored.outer
        return "LOG2E" if outer == 1 else f"({outer!r} * LOG2E)"

    @property
    def scaled(self) -> tuple[Statement, ...]:
        """The statement that makes a factor of the scale and of log2 units, where nothing comes between them."""
        return () if self.spec.scores else (IN_LOG2,)

    @property
    def inner_scale(self) -> str:
        """What terms want products of queries and keys to be multiplied by."""
        op, number = self.by_query.factored.inner
        return "scale" if number == 1 else f"scale {op} {number!r}"

    @property
    def scaling(self) -> str:
        """What a step does to a product of queries and keys at once: without terms, the scale waits for log2 units."""
        scale = self.inner_scale
        return "" if not self.spec.scores else " * scale" if scale == "scale" else f" * ({scale})"

    @property
    def slope(self) -> str:
        """What the gradient of the terms' score is multiplied by in the end."""
        both = self.by_query.factored.both
        return "scale" if both == 1 else f"(scale * {both!r})"

    @property
    def rescale(self) -> str:
        """What makes up in a sum for the weights that dropout drops."""
        return " * rescale" if self.spec.dropout else ""

    @cached_property
    def shared_range(self) -> bool:
        """Whether all heads of a group walk along the same queries, a matter of nothing that differs between them."""
        by_head = {"h", *statements.targets(self.by_key.loads("head"))}
        if by_head & statements.reads(self.by_key.narrowed):
            return False
        if self.query_states:
            return self.query_states.ranged and not self.query_states.per_head
        return len(self.queries.ends) == 1 and not by_head & set(self.queries.parameters)


def analyse(spec: Spec) -> Analysis:
    """Works out what a spec's terms mean for tiles."""
    key_states, query_states = (found if (found := TileStates(spec, side)).any else None for side in SIDES)
    return Analysis(
        spec,
        KernelTerms(running_sums.in_kernels(spec, "q"), "q"),
        KernelTerms(running_sums.in_kernels(spec, "k"), "k", not spec.algorithm.by_query),
        *tile_ranges.both(spec, key_states=key_states is not None, query_states=query_states is not None),
        key_states,
        query_states,
        storage.of(spec),
    )
