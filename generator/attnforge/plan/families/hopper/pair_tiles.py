"""Floats for pairs of a query and a key, such as biases, in kernels for Hopper GPUs: they are copied tile by tile.

Read through pointers, each score takes a load of its own from an address of its own, and the backward kernel spills.
Instead the loading warp copies a tile of values into shared memory for each tile of scores.

If scores do nothing with a value but add it, its gradient is dS, which the workers of the backward kernel exchange in
shared memory anyway: a warp has it stored from there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from ....expressions.inputs import Axis, Input
from ...access import Access
from ...kernel_terms import KernelTerms, Sum
from ...parameters import Parameter
from ...shared_parameters import SharedParameters
from ...sides import Side
from ...statements import Block, Branch, Comment, Loop, Statement, names

_COUNTS = {"batch": "batches", "head": "heads", "kv_head": "kv_heads"}
_LEAD = 2  # the number of axes of a tile before its rows: those of q, k and v
_BLOCKS = ("pairs_made", "pairs_copied", "pairs_come", "pairs_freed", "pairs_passed")
_PAIR_STAGES = "1 if q.shape[-1] <= 64 else 2"  # as many as fit in the backward pass


@dataclass(frozen=True)
class PairTiles:
    """The input with a float for each query and key, if there is one, in kernels whose steps go along one side."""

    shared: SharedParameters
    walked: Side

    @cached_property
    def access(self) -> Access | None:
        """The only read of such an input; None unless tiles of it can be copied."""
        terms = self.shared.analysis.by_query
        found = [access for access in terms.accesses if access.form == "pair" and access.input.dtype == "float"]
        if len(found) != 1 or found[0] not in terms.scored:
            return None
        (access,) = found
        axes = [*terms.strides(access.input).values()]
        last = [axis.kind for axis in axes[-2:]] == ["query", "key"] and not any(axis.divided for axis in axes[-2:])
        given = access.input.default is None and access.input.value is None
        return access if last and given else None

    def __bool__(self) -> bool:
        return self.access is not None

    @property
    def input(self) -> Input:
        """The input."""
        assert self.access
        return self.access.input

    @property
    def _desc(self) -> str:
        return f"{self.input.name}_desc"

    @property
    def tile(self) -> tuple[str, ...]:
        """The name of a worker's part of the current tile."""
        return (f"{self.input.name}_tile",) if self else ()

    @property
    def buffers(self) -> tuple[str, ...]:
        """The name of the buffer of tiles with the barriers at which they are ready and free, as one tuple."""
        return (f"{self.input.name}_stages",) if self else ()

    @property
    def descriptors(self) -> tuple[str, ...]:
        """The name of the descriptor that the loader copies from."""
        return (self._desc,) if self else ()

    @property
    def pointers(self) -> tuple[str, ...]:
        """The names of pointers by which other kernels read the values."""
        return (f"{self.input.name}_base",) if self else ()

    @property
    def constants(self) -> tuple[str, ...]:
        """The names of constants that copies and steps take besides those of all kernels."""
        return (("WORKERS",) if self.walked == "k" else ("PAIR_STAGES",)) if self else ()

    @property
    def _stages(self) -> tuple[str, str, str]:
        """Texts of the number of stages, of the current one, and of its phase bit."""
        if self.walked == "k":
            return "STAGES", "stage", "at // STAGES & 1"
        return "PAIR_STAGES", "at % PAIR_STAGES", "at // PAIR_STAGES & 1"

    @property
    def _workers(self) -> str:
        return "WORKERS" if self.walked == "k" else "2"

    @property
    def _block(self) -> tuple[str, str]:
        """Texts of the queries and keys of a worker's part."""
        return ("64", "BLOCK_N") if self.walked == "k" else ("BLOCK_M", "64")

    @property
    def _shape(self) -> str:
        """Text of the sizes of a worker's part along all axes."""
        return ", ".join((*["1"] * _LEAD, *self._block))

    @cached_property
    def _counts(self) -> dict[str, Axis]:
        """The axes of batch entries and heads, by the name of the number of their entries."""
        axes = self.shared.analysis.by_query.strides(self.input).values()
        return {f"{self.input.name}_{_COUNTS[axis.kind]}": axis for axis in axes if axis.kind in _COUNTS}

    def _place(self, *lead: str) -> str:
        """Text of the coordinates of a `worker`'s part, after those of the batch entry and head."""
        ahead = " + worker * 64"
        row, key = (ahead, "") if self.walked == "k" else ("", ahead)
        lacking = ("0",) * (_LEAD - len(lead))
        return ", ".join((*lacking, *lead, f"q_start{row}", f"k_start{key}"))

    @property
    def _copied_from(self) -> str:
        """The coordinates from which it is copied; along an axis, one entry may stand for all."""
        index = {"batch": "b", "head": "h", "kv_head": self.shared.analysis.kv}
        counts = self._counts.items()
        return self._place(*(f"tl.minimum({axis.place(index[axis.kind])}, {count} - 1)" for count, axis in counts))

    def parameters(self, given: Iterable[Parameter]) -> Iterable[Parameter]:
        """The parameters for inputs; those with which kernels would read this one through a pointer are replaced."""
        if not self:
            return given
        name, lead = self.input.name, _LEAD - len(self._counts)
        own = {f"{name}_ptr", *self.shared.analysis.by_query.strides(self.input)}
        stages = Parameter("PAIR_STAGES", "constexpr", _PAIR_STAGES)
        return (
            *(part for part in given if part.name not in own),
            Parameter(self._desc, "pairs", name, self._block),
            *(Parameter(count, "i32", f"{name}.shape[{lead + i}]") for i, count in enumerate(self._counts)),
            *((stages,) if stages.name in self.constants else ()),
        )

    @property
    def fits(self) -> tuple[str, ...]:
        """The host's texts of whether tiles can be copied, as they begin on 16-byte boundaries, and there is room."""
        return ("entries is None", f"runtime.has_tiles({self.input.name}, q, k)") if self else ()

    @property
    def of_scores(self) -> str:
        """The host's text of whether each score has a value of its own, so that dS may be stored as the gradient."""
        return f"runtime.is_of_scores({self.input.name}, q, k)"

    @property
    def room(self) -> str:
        """The host's text that allocates the gradient; entries of tiles that no program visits are 0."""
        return f"runtime.room_for_pairs({self.input.name}, whole={not self.shared.spec.masks})"

    @property
    def laid_out(self) -> tuple[Statement, ...]:
        """The host's statement that has tiles readable from the tensor."""
        return (Statement(self.input.name, f"runtime.pair_rows({self.input.name})"),) if self else ()

    def taken(self, known: Iterable[str]) -> tuple[str, ...]:
        """The arguments that copies take in addition to `known` ones."""
        if not self:
            return ()
        read = (*sorted(_of_kernel(self._copied_from)), self._desc, *self.constants)
        return tuple(name for name in read if name not in known)

    @property
    def blocks(self) -> dict[str, tuple[Block, ...]]:
        """The statements that make the buffer, copy a tile once its stage is free, wait for it, free it, or skip it."""
        if not self:
            return dict.fromkeys(_BLOCKS, ())
        buffer, ready, free = (f"{self.input.name}_{name}" for name in ("buffer", "ready", "free"))
        (shared,), (tile,) = self.buffers, self.tile
        unpacked = Statement(f"{buffer}, {ready}, {free}", shared)
        stages, stage, phase = self._stages
        shape = f"[{stages} * {self._workers}, {self._shape}]"
        here, there = f"{ready}.index({stage})", f"{buffer}.index({stage} * {self._workers} + worker)"
        place = f"{self.input.name}_place"
        copy = (
            Statement(place, f"[{self._copied_from}]"),
            Statement("", f"copy_tile({self._desc}, {place}, {here}, {there})"),
        )
        comes = Statement("", f"mbarrier.wait({here}, {phase})")
        freed = Statement("", f"mbarrier.arrive({free}.index({stage}), count=1)")
        return {
            "pairs_made": (
                Statement(buffer, f"gl.allocate_shared_memory({self._desc}.dtype, {shape}, {self._desc}.layout)"),
                Statement(shared, f"({buffer}, barriers({stages}, 1), barriers({stages}, {self._workers}))"),
            ),
            "pairs_copied": (
                unpacked,
                Statement("", f"mbarrier.wait({free}.index({stage}), {phase} ^ 1)"),
                Statement("", f"mbarrier.expect({here}, {self._workers} * {self._desc}.block_type.nbytes)"),
                Loop("worker", "0", self._workers, copy, static=True),
            ),
            "pairs_come": (
                unpacked,
                comes,
                Statement(tile, f"matrix({buffer}, {stage} * {self._workers} + WORKER)"),
            ),
            "pairs_freed": (freed,),
            "pairs_passed": (unpacked, comes, freed),
        }

    def read(self, loads: Iterable[Statement]) -> tuple[Statement, ...]:
        """The loads of a step: the values come from its tile, with keys down if steps go along queries."""
        if not self:
            return tuple(loads)
        (tile,), turned = self.tile, "" if self.walked == "k" else ".permute((1, 0))"
        value = f"{tile}{turned}.load(score.type.layout).to(tl.float32)"
        return tuple(dataclasses.replace(x, value=value) if x.target == self.total.access.name else x for x in loads)

    @property
    def total(self) -> Sum:
        """The gradient."""
        assert self.access
        return Sum(self.access)

    @cached_property
    def learns(self) -> bool:
        """True if dS is the gradient, if the tensor has an entry of its own for each score."""
        if self.access is None or self.input.kinds != ("batch", "head", "query", "key"):
            return False
        if not self.input.grad or any(axis.divided for axis in self.input.axes):
            return False
        terms = KernelTerms(self.shared.spec, "q", alone=(self.access,)).backward_terms
        added = [slope for term in terms for _, slope in term.sums]
        slopes = (*added, *(term.slope for term in terms))
        return len(added) == 1 and all(slope.text is None and slope.sign == "+" for slope in slopes)

    @property
    def gradient(self) -> Parameter:
        """The parameter with which a kernel stores dS as the gradient; None if it is not to."""
        return Parameter(f"{self.total.name}_desc", "pairs", self.total.name, self._block, written=True)

    @property
    def stored(self) -> tuple[Block, ...]:
        """The statements that have dS stored from where workers exchange it."""
        desc = self.gradient.name
        tile = f"factors.index((at & 1) * 2 + worker).reshape([{self._shape}])"
        place = f"{self.input.name}_place"
        store = (Statement(place, f"[{self._place('b', 'h')}]"), Statement("", f"store_tile({desc}, {place}, {tile})"))
        body: tuple[Block, ...] = (
            Comment(f"the gradient of {self.input.keyword or self.input.name} is dS"),
            Statement("", "mbarrier.wait(factors_ready.index(at & 1), at >> 1 & 1)"),
            Loop("worker", "0", "WORKERS", store, static=True),
        )
        return (Branch(f"{desc} is not None", body),)

    @property
    def stores(self) -> tuple[str, ...]:
        """The arguments that these statements take."""
        return (*sorted(_of_kernel(self._place("b", "h"))), self.gradient.name, "BLOCK_M")


def _of_kernel(place: str) -> set[str]:
    """The names in a text of coordinates that a kernel has."""
    return {name for name in names(place) if name.isidentifier()} - {"tl", "minimum", "worker"}
