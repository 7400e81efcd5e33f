"""A family of kernels: the specs that it serves, and its kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...language.spec import Spec
from ..access import Access
from ..kernel_terms import KernelTerms, Sum
from ..parameters import Function, Kernel
from ..shared_parameters import SharedParameters


@dataclass(frozen=True)
class Pair:
    """The gradient of an input with a query and a key axis: its kernel, and its numbers of batch entries and heads."""

    access: Access
    terms: KernelTerms
    kernel: Kernel
    batches: str
    heads: str


@dataclass(frozen=True)
class Tables:
    """The gradients of tables that are summed over batch entries before they are added up by entry: their kernel."""

    terms: KernelTerms
    kernel: Kernel
    by_head: bool  # whether heads may read different entries
    entries: int  # the number of entries of all of them, for each head

    @property
    def sums(self) -> tuple[Sum, ...]:
        """The gradients that it computes."""
        return self.terms.learned

    @property
    def room(self) -> str:
        """The host's text of the numbers of shares and of heads, or of 1 if the sums are over all heads."""
        return f"_shares(q, block_m), {'q.shape[-2]' if self.by_head else '1'}"


@dataclass(frozen=True)
class Kernels:
    """The kernels of a family for one variant; those of the backward pass if there is one."""

    forward: Kernel
    dkv: Kernel | None = None
    dq: Kernel | None = None
    pairs: tuple[Pair, ...] = ()
    tables: Tables | None = None
    functions: tuple[Function, ...] = ()  # those that no other family's kernels call

    @property
    def all(self) -> tuple[Kernel, ...]:
        """All kernels, in the order in which a file holds them."""
        tables = self.tables.kernel if self.tables else None
        found = (self.forward, self.dkv, self.dq, *(pair.kernel for pair in self.pairs), tables)
        return tuple(kernel for kernel in found if kernel)


@dataclass(frozen=True)
class Family:
    """A set of kernels for a purpose."""

    name: str
    serves: Callable[[Spec], bool]
    kernels: Callable[[SharedParameters], Kernels]
