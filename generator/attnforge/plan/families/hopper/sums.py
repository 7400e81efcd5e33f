"""Gradients of learned addends of queries and keys in the backward kernel for Hopper GPUs: sums of dS, as products.

The gradient of a running sum takes both sums over rows and sums over keys. A pair of tokens on one side of an entry is
in both and has to cancel out, so both are computed from the same rounded dS in shared memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...kernel_terms import KernelTerms, Sum
from ...parameters import Parameter
from ...positions import BEGIN
from ...shared_parameters import SharedParameters
from ...statements import Block, Branch, Call, Statement, needed, reads
from ..portable import query_places, stored_by_key

_EIGHTHS = (
    "gl.allocate_shared_memory(q_desc.dtype, [8, 16], gl.NVMMASharedLayout.get_default_for([8, 16], q_desc.dtype))"
)
# Two stages of keys hide the ends of a walk, but together with sums they leave a step too few registers: they pay off
# up to this many queries. Kernels with more parameters than _PARAMETERS have no room for two stages, as parameters pass
# through shared memory as well.
_TURNS_TO = 1536
_PARAMETERS = 27


@dataclass(frozen=True)
class Sums:
    """The sums of a variant, and the statements that compute them; none if no addend is learned."""

    shared: SharedParameters

    @property
    def keys(self) -> tuple[Sum, ...]:
        """The sums over the queries of each key."""
        return self.shared.analysis.by_key.sums

    @property
    def rows(self) -> tuple[Sum, ...]:
        """The sums over the keys of each query."""
        return tuple(s for s in self.shared.analysis.by_query.sums if s.access.side) if self.keys else ()

    @property
    def all(self) -> tuple[Sum, ...]:
        """All sums."""
        return (*self.keys, *self.rows)

    def turns_to(self, parts: Sequence[Parameter]) -> int | None:
        """Up to how many queries programs with such parameters take tiles in turns; None: whatever their number.

        Calls with dropout never do: workers exchange random numbers in memory that a second stage of keys would need.
        """
        return 0 if self.shared.spec.dropout else self._turns_to(parts)

    def _turns_to(self, parts: Sequence[Parameter]) -> int | None:
        if not self.keys:
            return None
        return _TURNS_TO if sum(q.type != "constexpr" and not q.absent for q in parts) <= _PARAMETERS else 0

    def told(self, parts: Sequence[Parameter]) -> tuple[Parameter, ...]:
        """The parameter that passes this number to the host, which computes the tiles that programs take."""
        most = self._turns_to(parts)
        text = "" if most is None else str(most)
        if most and self.shared.storage.entries:
            text = f"{most} if entries is None else 0"  # the barrier for rows left out takes the rest of that room
        if self.shared.spec.dropout and most != 0:
            text = f"{text or '2**31'} if seed is None else 0"
        return (Parameter("turns_to", "constexpr", text),) if text else ()

    @property
    def carried(self) -> tuple[str, ...]:
        """The name of the accumulator that a worker carries from step to step."""
        return ("key_sums",) if self.keys else ()

    def exchanged(self, ready: str, made: str, read: str) -> str:
        """Text of the buffers in which workers exchange dS, and of those for their shares of dQ, with their barriers.

        The barriers signal that dS is `ready`, that shares are `made`, and that they have been `read`.
        """
        return f"factors, {ready}, shares, {made}, {read}{', eighths' if self.keys else ''}"

    @property
    def eighths(self) -> tuple[Statement, ...]:
        """The statements that make the tile of eighths, an operand of the products."""
        value = "gl.full([8, 16], 0.125, q_desc.dtype, gl.BlockedLayout([1, 1], [2, 16], [4, 1], [1, 0]))"
        return (Statement("eighths", _EIGHTHS), Statement("", f"eighths.store({value})")) if self.keys else ()

    @property
    def begun(self) -> tuple[Statement, ...]:
        """The statements before a head's walk."""
        places = [Statement(f"{s.name}_row", query_places(self.shared, s.access)[0]) for s in self.rows]
        base = needed((Statement("row_base", self.shared.storage.head_rows),), reads(places))
        start = Statement("key_sums", "gl.full([64, 8], 0.0, gl.float32, SUM)", shape="[64, 8]")
        return (*base, *places, start) if self.keys else ()

    @property
    def read(self) -> tuple[str, ...]:
        """The names that a step reads for the sums, besides its own."""
        rows = (name for s in self.rows for name in (f"{s.name}_ptr", f"{s.name}_row"))
        lengths = (name for name in ("q_len", BEGIN) if name in reads(self.step))
        return (*(f"{s.name}_ptr" for s in self.keys), *rows, *lengths)

    @property
    def step(self) -> tuple[Block, ...]:
        """The statements that add a step's share, once dS of both workers is available."""
        if not self.keys:
            return ()
        given = ("key_sums", "factors", "turn", "eighths", "WORKER", "AHEAD", "ASIDE", "BLOCK_M", "BLOCK_N")
        rows = (
            Statement("row", "q_start + AHEAD + gl.arange(0, 64, gl.SliceLayout(1, SUM))", shape="[64]"),
            Statement("q_pos", f"row + {BEGIN}", shape="[64]"),
        )
        added = (*map(self._added, self.rows),)
        once = (Branch("ASIDE == 0", (*needed(rows, reads(added)), *added)),) if added else ()
        body = (Call("key_sums, row_sums", "sum_up", given), *once)
        wanted = " or ".join(f"{s.name}_ptr is not None" for s in (self.keys if self._alike else self.all))
        return (Branch(wanted, body),)

    @property
    def stored(self) -> tuple[Block, ...]:
        """The statements after a head's walk."""
        found = []
        for s in self.keys:
            sign = self._sign(self.shared.analysis.by_key, s)
            value = f"gl.convert_layout({sign}tl.sum(key_sums, 1), gl.SliceLayout(1, SCORES))"
            made = Statement(s.name, value, shape="[64]")
            found.append(stored_by_key(self.shared, self.shared.analysis.by_key, s, made))
        return tuple(found)

    @property
    def _alike(self) -> bool:
        """True if a call wants all sums or none: they are parts of one running sum."""
        inputs = {s.access.input for s in self.all}
        return len(inputs) == 1 and all(one.scan for one in inputs)

    def _added(self, total: Sum) -> Block:
        _, place, mask = query_places(self.shared, total.access)
        place = f"{total.name}_ptr + {total.name}_row + {place}"
        value = f"{self._sign(self.shared.analysis.by_query, total)}tl.sum(row_sums, 1)"
        add = Statement("", f'tl.atomic_add({place}, {value}, mask={mask}, sem="relaxed")')
        return add if self._alike else Branch(f"{total.name}_ptr is not None", (add,))

    @staticmethod
    def _sign(terms: KernelTerms, total: Sum) -> str:
        """Text before a sum of dS: a minus if scores decrease with the addend."""
        (slope,) = (slope for term in terms.backward_terms for s, slope in term.sums if s == total)
        assert slope.text is None
        return slope.sign.removeprefix("+")
