"""The backward pass for Hopper GPUs of heads wider than 128: a group of warps for each of dK, dV and dQ."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ...parameters import Function, Kernel, Parameter, Step
from ...statements import Block, Statement, names, reads
from ..partition import Role
from .backward import Backward
from .dropout import DELTA


@dataclass(frozen=True)
class Wide(Backward):
    """Its main kernel: a program has 64 keys; the kernels before and after it are those of other heads."""

    @property
    def functions(self) -> tuple[Function, ...]:
        """Its functions besides those that all such kernels have."""
        return self.dropout.functions_of_wide

    @property
    def borrowed(self) -> tuple[str, ...]:
        """The names that it shares with the kernel of other heads."""
        return ("by_threads", "load_tiles", "place_of", *(("view",) if self.functions else ()))

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

    @property
    def _weights(self) -> str:
        return "p"

    @property
    def _dropping(self) -> dict[str, tuple[Block, ...]]:
        return {"handed_on": self.dropout.handed_on(self._factors["weight"])}

    @cached_property
    def step(self) -> Step:
        """The function that handles one tile of queries for dV."""
        results = ("at", "dv")
        constants = ("D", "BLOCK_M", "STAGES", "SCORES", "OUT")
        own = (*results, "k_tile", *self._start(self._dropping["handed_on"]), "queries", "exchange")
        return Step("weigh", results, own, self._given(own), constants, False, self._masks_all)

    @property
    def kernel(self) -> Kernel:
        """The kernel."""
        roles = self._roles
        blocks: dict[str, tuple[Block, ...]] = {
            **self._scoring,
            "rescaled": self.dropout.rescaled,
            "derived": self.dropout.derived_from_factors,
            "packed": tuple(role.bundle.packed for role in (*roles.values(), self.loader)),
        }
        for name, role in roles.items():
            blocks |= role.blocks(name)
        texts = {f"{name}_takes": ", ".join(role.taken) for name, role in (*roles.items(), ("load", self.loader))}
        texts |= {"ones": self._ones, **self._factors, "used": self.dropout.weights, "dv": self.dropout.dv}
        texts |= {"delta": "delta" if self.dropout.rescaled else DELTA, "derive_takes": ", ".join(self._derive_takes)}
        return Kernel("backward", self.parts, "hopper/wide.jinja", self.order.grid, self.step, blocks, texts)

    @property
    def _derive_takes(self) -> tuple[str, ...]:
        """The arguments of a step for dK."""
        read = reads((*self.dropout.rescaled, *self.dropout.derived_from_factors))
        drops = (name for name in ("seed", "rescale") if name in read)
        return ("at", "dk", "dk_rest", "v_tile", "queries", "exchange", *drops, "STAGES", "SCORES", "OUT")

    @property
    def _roles(self) -> dict[str, Role]:
        """The groups of warps that multiply, by the gradient that they compute."""
        p, a = self.shared, self.shared.analysis
        stored = {a.kv_heads, "k_len", "Hq", *names(p.storage.rows("k"))}
        share = ("tile", "room", "WIDE")
        buffers = ("keys", "queries", "exchange")

        def cleared(name: str, width: str) -> tuple[Block, ...]:
            return self._cleared([(name, width)], share)

        found = (*self._head_loads, *self._placed, *self._k_added)
        weights = (*found, *self.step.packed, *self._loops(self.step.call).blocks)
        summed = ("at", self._share_tile, "k_tile", "exchange", "dq_sum_ptr", "D", "BLOCK_M")
        spread = self._walk("at", "spread", summed)
        here = "tl.program_id(0)"
        return {
            "dv": self._role(
                "for_dv",
                weights,
                stored | {"dv_ptr", *names(a.rescale)},
                buffers,
                ("DV", "BLOCK_DV"),
                cleared("dv", "DV"),
                place=here,
            ),
            "dk": self._role(
                "for_dk",
                self._walk("at, dk, dk_rest", "derive", self._derive_takes),
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
