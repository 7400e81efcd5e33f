"""The backward pass for Hopper GPUs of heads wider than 128: a group of warps for each of dK, dV and dQ."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ...parameters import Kernel, Parameter, Step
from ...statements import Block, Statement, names
from ..partition import Role
from .backward import Backward


@dataclass(frozen=True)
class Wide(Backward):
    """Its main kernel: a program has 64 keys; the kernels before and after it are those of other heads."""

    @property
    def _sums(self) -> Parameter:
        return Parameter("dq_sum_ptr", "*fp32", "dq_sum", written=True)

    @property
    def _pieces(self) -> str:
        return "(D + 63) // 64"

    @property
    def _ahead(self) -> str:
        return ""

    @property
    def _masks_all(self) -> bool:
        return not self.shared.analysis.queries.full  # the group that computes weights has registers for both

    @cached_property
    def step(self) -> Step:
        """The function that handles one tile of queries for dV."""
        results = ("at", "dv")
        constants = ("D", "BLOCK_M", "STAGES", "SCORES", "OUT")
        own = (*results, "k_tile", *self._start(), "queries", "exchange")
        return Step("weigh", results, own, self._given(own), constants, False, self._masks_all)

    @property
    def kernel(self) -> Kernel:
        """The kernel."""
        roles = self._roles
        blocks: dict[str, tuple[Block, ...]] = {
            **self._scoring,
            "packed": tuple(role.bundle.packed for role in (*roles.values(), self.loader)),
        }
        for name, role in roles.items():
            blocks |= role.blocks(name)
        texts = {f"{name}_takes": ", ".join(role.taken) for name, role in (*roles.items(), ("load", self.loader))}
        texts |= {"ones": self._ones, **self._factors}
        return Kernel("backward", self.parts, "hopper/wide.jinja", self.order.grid, self.step, blocks, texts)

    @property
    def _roles(self) -> dict[str, Role]:
        """The groups of warps that multiply, by the gradient that they compute."""
        p, a = self.shared, self.shared.analysis
        stored = {a.kv_heads, "k_len", "Hq", *names(p.storage.rows("k"))}
        share = ("tile", "room", "WIDE")
        buffers = ("keys", "queries", "exchange")

        def cleared(name: str, width: str) -> tuple[Block, ...]:
            return self._cleared([(name, width)], share)

        weights = (*self._head_loads, *self._k_added, *self.step.packed, *self._loops(self.step.call).blocks)
        derived = ("at", "dk", "dk_rest", "v_tile", "queries", "exchange", "STAGES", "SCORES", "OUT")
        summed = ("at", self._share_tile, "k_tile", "exchange", "dq_sum_ptr", "D", "BLOCK_M")
        spread = self._walk("at", "spread", summed)
        here = "tl.program_id(0)"
        return {
            "dv": self._role(
                "for_dv",
                weights,
                stored | {"dv_ptr"},
                buffers,
                ("DV", "BLOCK_DV"),
                cleared("dv", "DV"),
                place=here,
            ),
            "dk": self._role(
                "for_dk",
                self._walk("at, dk, dk_rest", "derive", derived),
                stored | {"dk_ptr", "scale"},
                buffers,
                ("D", "BLOCK_D"),
                cleared("dk", "D"),
                place=here,
            ),
            "dq": self._role(
                "for_dq",
                (Statement("sum_tile", self._sum_tile), *spread),
                {"dq_sum_ptr"},
                ("keys", "exchange"),
                ("D",),
                fixed=("BLOCK_M", "BLOCK_N"),
                place=here,
            ),
        }

    @property
    def told(self) -> Kernel:
        """The kernel with the parameters that the host passes."""
        _, kernel, *_ = self.launched
        return kernel
