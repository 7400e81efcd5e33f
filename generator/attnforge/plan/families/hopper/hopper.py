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
from . import additions, dropout
from .additions import Added
from .backward import Backward
from .dropout import Dropout
from .forward import Forward
from .scores import OF_SCORES
from .wide import Wide

_OWN = frozenset({"store_rows", "clear_rows"})  # in Gluon these are functions of its own, with the same names


@dataclass(frozen=True)
class Hopper:
    """The files of a variant's Hopper kernels."""

    shared: SharedParameters
    functions: tuple[Function, ...]  # besides those that all such files have
    known: frozenset[str]  # the names that kernels.py defines

    @cached_property
    def forward(self) -> Kernel:
        """The forward pass, as templates print it."""
        return Forward(_of_all_rows(self.shared.analysis), self.shared, self.added).kernel

    @cached_property
    def added(self) -> Added | None:
        """The addends of score terms, if terms do nothing but add floats of queries and keys."""
        return additions.build(self.shared.analysis.by_query)

    def balance(self, *, far: bool) -> list[str]:
        """The arguments with which a launch of the forward pass says which tiles of queries have equal work.

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
        """The backward pass, if there is one: for calls that want the gradients of q, k and v alone.

        Calls that skip rows, or want the gradient of an input, run the portable kernels. An input with values per token
        is computed from the tokens, so calls want its gradient: if it does nothing but add to scores, these kernels
        compute it as well.
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
        """The kernel of the backward pass for wide heads, if there is one."""
        found = self.backward
        return Wide(found.shared, found.added) if found and not (found.added and found.added.learns) else None

    @property
    def passes(self) -> tuple[str, ...]:
        """The passes that have Hopper kernels."""
        return ("forward", *(("backward",) if self.backward else ()))

    @property
    def launched(self) -> tuple[Kernel, ...]:
        """All kernels, with the parameters that the host passes."""
        backward = self.backward.launched if self.backward else ()
        return (self.forward, *backward, *((self.wide.told,) if self.wide else ()))

    def imports(self, kernels: Iterable[Kernel], *more: str) -> tuple[str, ...]:
        """The names that a file imports from kernels.py, for its kernels and for itself."""
        return tuple(sorted(_named(kernels) & self.known - _OWN - OF_SCORES | {"LOG2E", *more}))

    @property
    def helpers(self) -> frozenset[str]:
        """The functions of hopper.py that not all such files have, but templates print."""
        called = self.called(self.launched)
        return called | (dropout.CALLED if called & dropout.NAMES else frozenset())

    @property
    def host_functions(self) -> tuple[str, ...]:
        """The functions of launch.py that launches of these kernels call as well."""
        states = self.shared.analysis.query_states
        listed = ("_query_lists",) if states and not states.ranged else ()
        return (*listed, *(("_drop_below",) if self.shared.spec.dropout else ()))

    @property
    def of_scores(self) -> frozenset[str]:
        """The functions of expressions for which hopper.py has faster ones, on tiles of scores."""
        return self.called(self.launched) & OF_SCORES

    def called(self, kernels: Iterable[Kernel]) -> frozenset[str]:
        """The functions of hopper.py that the terms of some kernels call."""
        return _named(kernels) & (OF_SCORES | dropout.NAMES | {"apart", "of_registers"})


def _of_all_rows(given: Analysis) -> SharedParameters:
    """The parameters shared by kernels that run only in calls without skipped rows."""
    return SharedParameters(dataclasses.replace(given, storage=of_all_rows(given.storage)))


def _slow(access: Access) -> bool:
    """True if steps load floats per query or pair to compute scores: such kernels spill registers."""
    return access.form == "pair" or (access.form == "row" and access.side == "q" and access.input.dtype == "float")


def _named(kernels: Iterable[Kernel]) -> frozenset[str]:
    """All names in the statements of kernels."""
    return code_names(*(body for kernel in kernels for body in kernel.blocks.values()))


def build(p: SharedParameters, known: frozenset[str]) -> Hopper | None:
    """The Hopper kernels of a variant, if it has any; `known` are the names that kernels.py defines.

    None if the spec leaves them out; not yet with latent heads, or without a backward pass.
    """
    spec = p.spec
    if "hopper" not in spec.targets or spec.latent or not spec.algorithm.backward:
        return None
    functions = jitted("hopper/packed", "clear_rows", "clear_behind") if p.storage.cut else ()
    return Hopper(p, (*functions, *Dropout(spec).functions), known)
