"""Parameters that several kernels take, in order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..expressions.inputs import Input
from ..language.spec import Spec
from . import latent, slopes, statements
from .analysis import Analysis
from .kernel_inputs import KernelInputs
from .kernel_terms import KernelTerms
from .parameters import Parameter, Step
from .positions import BEGIN
from .sides import BLOCKS, SIDES, Side
from .storage import Storage

TILED = ("BLOCK_M", "BLOCK_N", "BLOCK_D", "BLOCK_DV", "REST", "PRECISION")
_CONSTANTS = {
    "D": "q.shape[-1]",
    "DV": "v.shape[-1]",
    "GROUP": "q.shape[-2] // k.shape[-2]",
    "PRECISION": "runtime.precision(q)",
    "PAIRS": "cos.shape[1]",
    "BLOCK_D": "runtime.padded_width(q)",
    "BLOCK_DV": "runtime.padded_width(v)",
    "REST": "runtime.rest_width(q)",
    "PIECE": "runtime.piece(q, v)",
    "BLOCK_PAIRS": "runtime.power_of_2(cos.shape[1])",
    "BLOCK_REST": "runtime.power_of_2(max(q.shape[-1] - 2 * cos.shape[1], 1))",
}


@dataclass(frozen=True)
class SharedParameters:
    """The parameters that kernels of a variant share."""

    analysis: Analysis

    @property
    def spec(self) -> Spec:
        """The spec."""
        return self.analysis.spec

    @property
    def storage(self) -> Storage:
        """The layout of rows in the tensors of a call."""
        return self.analysis.storage

    @property
    def scanned(self) -> tuple[Input, ...]:
        """The inputs that kernels read as cumulative sums."""
        return tuple(given for given in self.spec.inputs if given.scan)

    @property
    def sums(self) -> tuple[str, ...]:
        """The host's names of these sums."""
        return tuple(f"{given.name}_sums" for given in self.scanned)

    def parted(self, side: Side) -> str:
        """Text of the number of queries or keys of the longest sequence, and of a tile."""
        return f"{self.storage.longest[SIDES.index(side)]}, {BLOCKS[side].lower()}"

    def rows_of(self, x: str) -> str:
        """Text of the number of rows of a tensor."""
        return f"{x}.shape[{self.storage.outer.index('token')}]"

    def tiles(self, side: Side) -> str:
        """Text of the number of tiles of queries or keys in the longest sequence."""
        return f"runtime.cdiv({self.parted(side)})"

    def axis(self, side: Side) -> Parameter:
        """The axis of a kernel's grid that holds the tiles which its programs own."""
        return Parameter("TILE_AXIS", "constexpr", f"runtime.tile_axis({self.parted(side)})")

    def operands(self, *names: str) -> Iterable[Parameter]:
        rows = {"k": "BLOCK_N", "v": "BLOCK_N"}
        columns = {"q": "BLOCK_D", "k": "BLOCK_D"}
        for name in names:
            x = name.removesuffix("_desc")
            block = rows.get(x, "BLOCK_M"), columns.get(x, "BLOCK_DV")
            yield Parameter(name, "tiles", x, block, condition=self.storage.left_out)
        for name, given, block in latent.descriptors(self.analysis, *(x for x in SIDES if f"{x}_desc" in names)):
            yield Parameter(name, "tiles", given, block, condition=self.storage.left_out)

    def vectors(self, *names: str) -> Iterable[Parameter]:
        """Vectors with a value for each query, which steps read one tile at a time."""
        for name in names:
            yield Parameter(f"{name}_desc", "rows", name, ("BLOCK_M",), condition=self.storage.whole)

    def sizes(self, *, scale: bool = True) -> Iterable[Parameter]:
        yield from self.storage.sizes()
        yield Parameter("Hq", "i32", "q.shape[-2]")
        if scale:
            yield Parameter("scale", "fp32", "scale")

    def given(self, inputs: KernelInputs) -> Iterable[Parameter]:
        for option in self.spec.options:
            yield Parameter(option.keyword, {"int": "i32", "float": "fp32"}[option.type], option.keyword, own=True)
        for given in inputs.taken:
            kind = {"float": "fp32", "int": "i32", "bool": "i1"}[given.dtype]
            if not given.axes:
                # the interpreter does not accept booleans
                truth = given.dtype == "bool"
                text = f"int({given.name})" if truth else given.name
                yield Parameter(given.name, "i32" if truth else kind, text, own=True)
                continue
            text = f"{given.name}_sums" if given.scan else given.name
            if side := inputs.streams(given):
                level = "level" if side == "q" and given.rows == ("token",) else self.storage.whole
                yield Parameter(f"{given.name}_desc", "rows", text, (BLOCKS[side],), kind, level)
            if not side or inputs.points(given):
                yield Parameter(f"{given.name}_ptr", "*" + kind, text)
            for i, (name, axis) in enumerate(inputs.strides(given).items()):
                place = {"batch": 0, "token": -1}.get(axis.kind, -3) if given.scan else i
                yield Parameter(name, "i32", f"runtime.stride({text}, {place})")
            if given.scan:
                yield Parameter(f"{given.name}_stride_part", "i32", f"{text}.stride(-2)")

    def angles(self) -> Iterable[Parameter]:
        """The parameters that give the angles of positions."""
        if self.spec.rope:
            for name in ("cos", "sin"):
                yield Parameter(f"{name}_ptr", "*fp32", name)
                yield Parameter(f"{name}_stride_row", "i32", f"{name}.stride(0)")
                yield Parameter(f"{name}_stride_column", "i32", f"{name}.stride(1)")
            yield Parameter("positions_ptr", "*i32", "positions")
            for place, axis in enumerate(self.storage.outer[:-1]):
                yield Parameter(f"positions_stride_{axis}", "i32", f"runtime.stride(positions, {place})")
            yield Parameter("position_end", "i32", "cos.shape[0]")

    def sunk(self) -> Iterable[Parameter]:
        if self.spec.sink:
            yield Parameter("sinks_ptr", "*fp32", "sinks")
            yield Parameter("sinks_stride_head", "i32", "runtime.stride(sinks, 0)")

    def dropped(self) -> Iterable[Parameter]:
        if self.spec.dropout:
            yield Parameter("seed", "i64", "seed", own=True)
            yield Parameter("drop_below", "i32", "_drop_below(dropout_p)", own=True)
            yield Parameter("rescale", "fp32", "65536 / (65536 - _drop_below(dropout_p))")

    def constants(self, *names: str) -> Iterable[Parameter]:
        needless = (() if self.spec.grouped else ("GROUP",)) + (() if self.spec.rope else ("PAIRS", "BLOCK_PAIRS"))
        needless += () if self.spec.latent else ("REST",)
        return [Parameter(n, "constexpr", _CONSTANTS.get(n, n.lower())) for n in names if n not in needless]

    def skipped(self, side: Side) -> Iterable[Parameter]:
        """The parameters that tell which tiles to visit, if tensors of the call determine that.

        These are how far heads reach, and a range or a list.
        """
        if slopes.falling(self.spec):
            yield Parameter("horizons_ptr", "*i32", "horizons", absent=True)
        states = self.analysis.states(side)
        if not states:
            return
        if states.ranged:
            yield Parameter(f"{states.ranges}_ptr", "*i32", states.ranges)
            yield Parameter(f"{side}_parts", "i32", f"{states.ranges}.shape[1]")
            return
        yield Parameter(f"{states.lists}_ptr", "*i32", states.lists)
        for one, rows in zip(SIDES, self.storage.longest, strict=True):
            yield Parameter(f"{one}_tiles", "i32", f"runtime.cdiv({rows}, {BLOCKS[one].lower()})")

    def notes(self, *, written: bool = False) -> Iterable[Parameter]:
        """The pointers to the extremes of tiles, and the numbers of tiles."""
        states = self.analysis.key_states
        sides = [side for side in SIDES if states and states.noted(side)]
        for side in sides:
            yield Parameter(f"{side}_bounds_ptr", "*i32", f"{side}_bounds", written=written)
        for side in SIDES if sides or (states and not states.ranged) else ():
            yield Parameter(f"{side}_tiles", "i32", f"{side}_tiles")

    def summed(self, terms: KernelTerms) -> Iterable[Parameter]:
        """The number of rows of a head in the gradients that a kernel of packed sequences writes row by row."""
        rows = [s.access for s in terms.learned if s.access.tie and self.storage.cut]
        if any(access.input.scan for access in rows):
            yield Parameter("k_rows", "i32", f"{self.sums[0]}.shape[-1]")

    def step(
        self,
        function: str,
        terms: KernelTerms,
        results: tuple[str, ...],
        own: tuple[str, ...],
        walked: tuple[str, ...],
        read: Iterable[str],
    ) -> Step:
        """A kernel's step: it takes the program's own tiles, the means to locate others, and the terms' inputs."""
        by_query = terms.own == "q"
        place, start = self.storage.place("k" if by_query else "q"), "k_start" if by_query else "q_start"
        inside = ("k_first", "k_last", "k_pos") if by_query else ("row", "q_pos", "q_first", "q_last")
        loads = (*terms.loads("step"), *terms.loads("mask"))
        read = {*read, *statements.reads((*terms.keep, *loads))}
        rows = (self.analysis.kv, "k_len") if by_query else ("h", "q_len")
        walked = (*walked, *place, *rows)
        lengths = (BEGIN,) if not by_query and {"q_pos", "q_first", "q_last"} & read else ()
        scale = "scale" if self.spec.scores else "scale_log2"
        blocks = (
            "BLOCK_N" if by_query else "BLOCK_M",
            "BLOCK_D",
            "BLOCK_DV",
            *latent.names(self.analysis, "REST"),
            "PRECISION",
        )
        made = statements.targets(loads)
        sums = [name for s in terms.learned for name in (f"{s.name}_ptr", f"{s.name}_row")]
        sums += ["q_first", "q_last"] if by_query else ["k_first", "k_last"]
        sums += [f"{name}_ptr" for name in terms.tables_back]
        known = {*results, *own, start, *walked, *lengths, scale, *inside, *made}
        words = (*lengths, scale, *terms.passed(read, known, ("slot", *sums)))
        bundles = (("keys" if by_query else "queries", walked), ("terms", words))
        tails = self.storage.cut and self.spec.algorithm.by_query
        return Step(function, results, (*results, *own, start), bundles, blocks, tails)
