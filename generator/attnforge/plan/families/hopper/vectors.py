"""Per-key values on Hopper GPUs: the loading warp reads those of a tile, workers read them from shared memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from ...access import TYPES, Access, Site
from ...kernel_terms import KernelTerms
from ...statements import Statement

IN_LINE = (
    Statement("LINE: gl.constexpr", "gl.BlockedLayout([BLOCK_N // 32], [32], [1], [0])"),
    Statement("k_pos", "k_start + gl.arange(0, BLOCK_N, LINE)", shape="[BLOCK_N]"),
)
READY, BEGIN_READY = "vectors_ready", "added_ready"
# vectors are stored once the values in their stage are added up: with one stage, workers need them before that
_SAID = "what terms read of keys takes two stages: with one, warps wait for each other"
ENOUGH = Statement("", f'gl.static_assert(STAGES > 1, "{_SAID}")')


@dataclass(frozen=True)
class Vector:
    """A value for each key of a tile, read by scores or masks."""

    read: Statement  # the load from global memory
    type: str  # its type in the spec

    @property
    def name(self) -> str:
        """Its name in kernels."""
        return self.read.target

    @property
    def buffer(self) -> str:
        """The name of the buffer of such vectors, one per stage."""
        return f"{self.name}_buffer"

    @property
    def tile(self) -> str:
        """The name of the current stage of the buffer."""
        return f"{self.name}_tile"

    @property
    def made(self) -> Statement:
        """The statement that allocates the buffer."""
        element, line = self._element, "gl.SwizzledSharedLayout(1, 1, 1, [0])"
        return Statement(self.buffer, f"gl.allocate_shared_memory({element}, [STAGES, BLOCK_N], {line})")

    @property
    def stored(self) -> Statement:
        """The statement that stores the values of a tile there."""
        value = self.name + (".to(gl.int32)" if self.type == "bool" else "")
        return Statement("", f"{self.buffer}.index(stage).store({value})")

    @property
    def at_hand(self) -> Statement:
        """The statement that selects the current stage."""
        return Statement(self.tile, f"{self.buffer}.index(stage)")

    def taken(self, layout: str) -> Statement:
        """The statement with which a worker loads them, in a layout."""
        value = f"{self.tile}.load({layout})" + (f".to({TYPES[self.type]})" if self.type == "bool" else "")
        return dataclasses.replace(self.read, value=value)

    @property
    def _element(self) -> str:
        return "gl.float32" if self.type == "float" else "gl.int32"


def vectors(terms: KernelTerms, sites: Iterable[Site]) -> tuple[Vector, ...]:
    """All vectors that are loaded at some sites, for terms of programs that own queries."""
    rows: dict[str, Access] = {access.name: access for access in terms.accesses if access.side == "k"}
    loads = (load for site in sites for load in terms.loads(site))
    return tuple(Vector(load, rows[load.target].input.dtype) for load in loads if load.target in rows)


def wait(barriers: str) -> Statement:
    """The statement that waits for the loader's vectors in a stage."""
    return Statement("", f"mbarrier.wait({barriers}.index(stage), at // STAGES & 1)")


def hand_on(barriers: str, vectors: Collection[Vector]) -> tuple[Statement, ...]:
    """The statements that pass on the values of a tile's keys, in a stage that workers have finished with."""
    arrive = Statement("", f"mbarrier.arrive({barriers}.index(stage), count=1)")
    return (*(vector.stored for vector in vectors), arrive) if vectors else ()


def taken(loads: Iterable[Statement], vectors: Iterable[Vector], layout: str) -> tuple[Statement, ...]:
    """The loads of a step; vectors are loaded from shared memory."""
    known = {vector.name: vector for vector in vectors}
    return tuple(known[load.target].taken(layout) if load.target in known else load for load in loads)
