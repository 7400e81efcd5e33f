"""What tokens add to scores learns in the backward kernel for Hopper GPUs: sums of dS, as products of it with ones.

A running sum of sums of rows and of keys leaves what pairs across a token have, as each pair before or behind it is in
both: so both are made of dS as it lies in shared memory, rounded.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..kernel_terms import KernelTerms, Sum
from ..positions import BEGIN
from ..shared_parameters import SharedParameters
from ..statements import Block, Branch, Call, Statement
from .portable import query_places, stored_sum

_ONES = "gl.allocate_shared_memory(q_desc.dtype, [8, 64], gl.NVMMASharedLayout.get_default_for([8, 64], q_desc.dtype))"


@dataclass(frozen=True)
class Sums:
    """The sums of a variant, and where they are told; none where nothing of that learns."""

    shared: SharedParameters
    terms: KernelTerms  # of programs that own keys

    @property
    def keys(self) -> tuple[Sum, ...]:
        """Those over the queries of each key."""
        return self.terms.sums

    @property
    def rows(self) -> tuple[Sum, ...]:
        """Those over the keys of each query, of what tokens have."""
        found = self.shared.analysis.by_query.sums if self.keys else ()
        return tuple(s for s in found if s.access.row_axis.kind == "token")

    @property
    def all(self) -> tuple[Sum, ...]:
        """All of them."""
        return (*self.keys, *self.rows)

    @property
    def carried(self) -> tuple[str, ...]:
        """The name of what a worker carries from step to step."""
        return ("key_sums",) if self.keys else ()

    @property
    def exchanged(self) -> str:
        """Text of the buffers that workers exchange dS by."""
        return f"factors, factors_ready, shares{', ones' if self.keys else ''}"

    @property
    def ones(self) -> tuple[Statement, ...]:
        """The statements that make the tile of ones."""
        value = "gl.full([8, 64], 1.0, q_desc.dtype, gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]))"
        return (Statement("ones", _ONES), Statement("", f"ones.store({value})")) if self.keys else ()

    @property
    def begun(self) -> tuple[Statement, ...]:
        """The statements before a head's walk."""
        places = (Statement(f"{s.name}_row", self._place(s)) for s in self.rows)
        start = Statement("key_sums", "gl.full([64, 8], 0.0, gl.float32, SUMS)", shape="[64, 8]")
        return (*places, start) if self.keys else ()

    @property
    def read(self) -> tuple[str, ...]:
        """What a step reads for them, besides its own."""
        rows = (name for s in self.rows for name in (f"{s.name}_ptr", f"{s.name}_row"))
        lengths = ("q_len", BEGIN) if self.rows else ()
        return (*(f"{s.name}_ptr" for s in self.keys), *rows, *lengths)

    @property
    def step(self) -> tuple[Block, ...]:
        """The statements that add a step's share, once dS of both workers is there."""
        if not self.keys:
            return ()
        given = ("key_sums", "factors", "turn * 2", "ones", "WORKER", "AHEAD", "ASIDE", "BLOCK_M", "BLOCK_N")
        wanted = " or ".join(f"{s.name}_ptr is not None" for s in self.all)
        rows = (
            Statement("row", "q_start + AHEAD + gl.arange(0, 64, gl.SliceLayout(1, SUMS))", shape="[64]"),
            Statement("q_pos", f"row + {BEGIN}", shape="[64]"),
            *map(self._added, self.rows),
        )
        once = Branch("ASIDE == 0", rows)
        return (Branch(wanted, (Call("key_sums, row_sums", "sum_up", given), *((once,) if self.rows else ()))),)

    @property
    def stored(self) -> tuple[Block, ...]:
        """The statements behind a head's walk."""
        found: list[Block] = []
        for s in self.keys:
            value = f"gl.convert_layout(tl.sum(key_sums, 1) * {self._share(self.terms, s)}, gl.SliceLayout(1, SCORES))"
            found.append(Statement(s.name, value, shape="[64]"))
            place = f"{self.shared.storage.head_tokens(s.access.input)} + k_pos"
            found.append(stored_sum(self.terms, s, place, "k_pos < k_len"))
        return tuple(found)

    def _added(self, total: Sum) -> Block:
        value = f"tl.sum(row_sums, 1) * {self._share(self.shared.analysis.by_query, total)}"
        place = f"{total.name}_ptr + {total.name}_row + q_pos"
        add = Statement("", f'tl.atomic_add({place}, {value}, mask=row < q_len, sem="relaxed")')
        return Branch(f"{total.name}_ptr is not None", (add,))

    def _place(self, total: Sum) -> str:
        return query_places(self.shared, total.access).removesuffix(" + q_pos")

    @staticmethod
    def _share(terms: KernelTerms, total: Sum) -> str:
        """Text of a column's part of a sum: all eight are the same."""
        slopes = {s: slope for term in terms.backward_terms for s, slope in term.sums}
        return "0.125" if slopes[total].sign == "+" else "-0.125"
