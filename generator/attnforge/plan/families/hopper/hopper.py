"""Kernels for Hopper GPUs, in Gluon: the files of a variant's forward and backward pass."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from ...access import Access
from ...analysis import Analysis, analyse
from ...parameters import Function, Kernel, jitted
from ...shared_parameters import SharedParameters
from ...statements import code_names
from ...storage import of_all_rows
from . import additions
from .additions import Added
from .backward import Backward
from .forward import Forward
from .scores import OF_SCORES
from .wide import Wide

_OWN = frozenset({"store_rows", "clear_rows"})  # what Gluon has functions of its own for, of the same names


@dataclass(frozen=True)
class Hopper:
    """The files of a variant's Hopper kernels."""

    shared: SharedParameters
    functions: tuple[Function, ...]  # beside those that all such files have
    known: frozenset[str]  # what kernels.py defines

    @cached_property
    def forward(self) -> Kernel:
        """The forward pass, worked out for those who print it."""
        return Forward(_of_all_rows(self.shared.analysis), self.shared, self.added).kernel

    @cached_property
    def added(self) -> Added | None:
        """What score terms add to what queries and keys have, if they do nothing else."""
        return additions.build(self.shared.analysis.by_query)

    def balance(self, *, far: bool) -> list[str]:
        """What a launch of the forward pass tells of tiles of queries: which of them have as much to do as others.

        `far`: whether a launch knows how far queries see.
        """
        analysis = self.shared.analysis
        if analysis.storage.cut:
            return ['balance="slots"']
        if analysis.keys.left:
            return ["reach=cache.reach"] if far else []
        return [f'balance="{"tiles" if analysis.keys.whole else "pairs"}"']

    @cached_property
    def backward(self) -> Backward | None:
        """The backward pass, if it has one: of calls that want the gradients of q, k and v alone.

        Calls that leave rows out, or want the gradient of an input, take the portable kernels. What each token has
        values of its own of is made of the tokens, so that calls want its gradient: where it does no more than raise
        scores, they get it as well.
        """
        spec = self.shared.spec
        if self.added and self.added.learns:
            return Backward(_of_all_rows(self.shared.analysis), additions.build(self.shared.analysis.by_key))
        if not all(x.shared for x in spec.inputs if x.grad):
            return None
        given = analyse(spec.given)
        found = Backward(_of_all_rows(given), additions.build(given.by_key))
        return None if any(map(_slow, found.terms.scored)) else found

    @cached_property
    def wide(self) -> Wide | None:
        """The kernel of the backward pass for wide heads, where there is such a pass for them."""
        found = self.backward
        return Wide(found.shared, found.added) if found and not (found.added and found.added.learns) else None

    @property
    def passes(self) -> tuple[str, ...]:
        """The passes that it has kernels for."""
        return ("forward", *(("backward",) if self.backward else ()))

    @property
    def launched(self) -> tuple[Kernel, ...]:
        """All kernels, with what the host tells them."""
        backward = self.backward.launched if self.backward else ()
        return (self.forward, *backward, *((self.wide.told,) if self.wide else ()))

    def imports(self, kernels: Iterable[Kernel], *more: str) -> tuple[str, ...]:
        """What a file takes from kernels.py for its kernels and by itself."""
        return tuple(sorted(_named(kernels) & self.known - _OWN - OF_SCORES | {"LOG2E", *more}))

    @property
    def of_scores(self) -> frozenset[str]:
        """The functions of expressions that hopper.py has faster ones of, for tiles of scores."""
        return self.called(self.launched) & OF_SCORES

    def called(self, kernels: Iterable[Kernel]) -> frozenset[str]:
        """The functions of hopper.py that the terms of some kernels call."""
        return _named(kernels) & (OF_SCORES | {"apart", "of_registers"})


def _of_all_rows(given: Analysis) -> SharedParameters:
    """What kernels share that no call runs which leaves rows out."""
    return SharedParameters(dataclasses.replace(given, storage=of_all_rows(given.storage)))


def _slow(access: Access) -> bool:
    """True if steps load floats for each query or pair that the scores are made of: they spill."""
    return access.form == "pair" or (access.form == "row" and access.side == "q" and access.input.dtype == "float")


def _named(kernels: Iterable[Kernel]) -> frozenset[str]:
    """All names in the statements of kernels."""
    return code_names(*(body for kernel in kernels for body in kernel.blocks.values()))


def build(p: SharedParameters, known: frozenset[str]) -> Hopper | None:
    """The Hopper kernels of a variant, if it has any; `known` is what kernels.py defines.

    Not where the spec leaves them out; not yet where weights are dropped, where heads are wider than 512, and where
    tiles are told apart one by one.
    """
    states = p.analysis.key_states
    spec = p.spec
    if "hopper" not in spec.targets or spec.dropout or spec.latent or not spec.algorithm.backward:
        return None
    if states and not states.ranged:
        return None
    functions = jitted("hopper/packed", "clear_rows", "clear_behind") if p.storage.cut else ()
    return Hopper(p, functions, known)
