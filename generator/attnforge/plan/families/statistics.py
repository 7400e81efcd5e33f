"""Statistics that some methods need besides the result of attention: the largest logit, and the weight of each key."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from ...language.spec import Spec
from .. import latent, programs, visibility
from ..analysis import Analysis, analyse
from ..common_values import CommonValues
from ..distance_reads import DistanceReads
from ..kernel_terms import KernelTerms
from ..loops import Loops
from ..parameters import Kernel, Parameter, Step
from ..shared_parameters import TILED, SharedParameters
from ..statements import Statement, code_names, names, needed, reads


@dataclass(frozen=True)
class Statistics:
    """The kernel that measures both, as templates print it."""

    shared: SharedParameters
    known: frozenset[str]  # the names that kernels.py defines

    common = CommonValues()  # shared with other kernels: none

    @property
    def analysis(self) -> Analysis:
        """The analysis of the spec."""
        return self.shared.analysis

    @property
    def terms(self) -> KernelTerms:
        """The spec's terms: programs own keys."""
        return self.analysis.by_key

    @property
    def imports(self) -> tuple[str, ...]:
        """The names that the file imports from kernels.py."""
        found = code_names(*self.kernel.blocks.values())
        return tuple(sorted(found & self.known | {"LOG2E", "load_rows"}))

    @cached_property
    def _step(self) -> Step:
        """The function that handles one tile of queries."""
        a, terms = self.analysis, self.terms
        own = ("k_tile", *latent.names(a, "k_rest"))
        walked = ("q_desc", *latent.names(a, "q_rest_desc"), "lse_desc", "row_base")
        step = self.shared.step("measure_tile", terms, ("largest", "mass"), own, walked, reads(terms.score))
        constants = (name for name in step.constants if name != "BLOCK_DV")
        return replace(step, constants=(*constants, "MAKES"))

    @cached_property
    def kernel(self) -> Kernel:
        """The kernel whose programs take a tile of keys of one query head, and loop over the queries that see it."""
        p, a, terms, step = self.shared, self.analysis, self.terms, self._step
        loops = Loops(a.queries, a.query_states, step.call, a.joined, step.tails, terms.narrowed, tail_stages=1)
        scored = (*terms.loads("step"), *terms.score)
        masked = (*terms.loads("mask"), *visibility.masked(terms, ["(row < q_len)[None, :]"]))
        visit = (
            Statement("row_base", p.storage.head_rows),
            *terms.loads("head"),
            *step.packed,
            *loops.blocks,
        )
        scanned = any(given.scan for given in p.spec.inputs)
        return Kernel(
            "measure",
            (
                *p.operands("q_desc", "k_desc"),
                *p.vectors("lse"),
                Parameter("largest_ptr", "*fp32", "parts", written=True),
                Parameter("key_sums_ptr", "*fp32", "key_sums", written=True),
                *p.sizes(),
                *(size for size in p.storage.aligned() if size.name in names(p.storage.head_rows)),
                *p.given(terms),
                *p.skipped("k"),
                *p.constants("GROUP", *(name for name in TILED if name != "BLOCK_DV")),
                p.axis("k"),
                *p.constants("MAKES"),
            ),
            "statistics/measure.jinja",
            f"runtime.grid({p.storage.sequences} * q.shape[-2], {p.parted('k')}, q)",
            step,
            {
                "step_rows": (
                    *step.unpacked,
                    *needed(programs.rows("q"), {"row"} | reads((*scored, *masked))),
                ),
                "step_loads": programs.tile(a, "q", "q", "BLOCK_D"),
                "tail": programs.tail_cleared(a, "q", "q_tile"),
                "scored": (*latent.scored(a, "k", programs.tail_cleared(a, "q", "q_rest")), *scored),
                "masked": masked,
                "enter": (
                    Statement("tile", "tl.program_id(TILE_AXIS)"),
                    Statement("b, h", "batch_and_head(Hq, TILE_AXIS)"),
                    *a.key_head,
                    Statement("k_start", "tile * BLOCK_N"),
                    *p.storage.found("qk" if scanned else "q"),
                    *programs.beyond(a, "k"),
                    *programs.opened(a, terms, "k", {"k_pos"} | reads(visit)),
                ),
                "begin": (*programs.tile(a, "k", "k", "BLOCK_D"), *latent.opened(a, "k")),
                "visit": visit,
            },
            {"head_keys": p.storage.head_keys},
        )


def build(spec: Spec, known: Iterable[str], by_distance: DistanceReads) -> Statistics | None:
    """The kernel, if a variant asks for it; measures before dropout. `known` are the names that kernels.py defines."""
    if "statistics" not in spec.exports:
        return None
    return Statistics(SharedParameters(analyse(replace(spec, dropout=False), by_distance)), frozenset(known))
