"""Kernels for Hopper GPUs, in Gluon: the files of a variant's forward and backward pass."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from ....language.spec import Spec
from ... import slopes, uniform_entries
from ...access import Access
from ...analysis import analyse
from ...by_distance import ByDistance
from ...common_values import CommonValues
from ...conditions import no_late_keys
from ...kernel_terms import Sum
from ...parameters import Function, Kernel, jitted
from ...shared_parameters import SharedParameters
from ...sides import Side
from ...statements import code_names, names
from ...tiles import Weight
from . import additions, dropout
from .additions import Added
from .backward import Backward
from .by_distance import OnHopper
from .dropout import Dropout
from .forward import Forward
from .pair_tiles import PairTiles
from .scores import OF_SCORES
from .wide import Wide

_OWN = frozenset({"store_rows", "clear_rows"})  # in Gluon these are functions of its own, with the same names


@dataclass(frozen=True)
class Hopper:
    """The files of a variant's Hopper kernels."""

    shared: SharedParameters
    functions: tuple[Function, ...]  # besides those that all such files have
    known: frozenset[str]  # the names that kernels.py defines
    by_distance: OnHopper | None = None  # the parts of scores that are evaluated once for every distance

    @cached_property
    def forward(self) -> Kernel:
        """The forward pass, as templates print it."""
        return self._forward.kernel

    @cached_property
    def _forward(self) -> Forward:
        return Forward(self._read, self.added)

    @cached_property
    def _read(self) -> SharedParameters:
        """The parameters that its kernels share: they read values by distance."""
        return SharedParameters(analyse(self.by_distance.given)) if self.by_distance else self.shared

    @property
    def attend(self) -> Kernel:
        """The forward pass with the parameters that the host passes."""
        return self._forward.told

    @property
    def reads_forward(self) -> frozenset[str]:
        """The names that the launch of the forward pass reads."""
        return self.attend.host_reads | (self.by_distance.values.inputs if self.by_distance else frozenset())

    @property
    def reads_back(self) -> frozenset[str]:
        """The names that launches of the backward pass read."""
        launched = self.backward.launched if self.backward else ()
        read = names(self.shared.storage.tiled).union(*(kernel.host_reads for kernel in launched))
        return read | (self.by_distance.values.inputs if self.by_distance else frozenset())

    @property
    def apart(self) -> CommonValues:
        """Values that launches of these kernels take from what the portable ones have in common: none."""
        return CommonValues()

    @property
    def other_bits(self) -> bool:
        """True if rows of a call that leaves rows out may have other bits here than those of other calls.

        Distances that terms add count from a row's tile, and values of pairs take such calls to portable kernels.
        """
        return bool(self.pairs) or (self.added is not None and self.added.kind == "distances")

    @property
    def weight(self) -> Weight:
        """The class of the variant by what terms load and compute in these kernels."""
        return self._read.analysis.by_query.weight

    @property
    def kind(self) -> str:
        """The name of a row of tiles.yaml for what they do in place of evaluating terms; "" if there is none."""
        if self.pairs:
            return "paired"
        if self.by_distance:
            return f"tabled_{self.shared.analysis.by_query.weight}"
        if uniform_entries.are_all(self.shared.analysis.by_query):
            return "uniform"
        return self.added.kind if self.added and self.weight != "drawn" else ""  # dropout is measured by itself

    @cached_property
    def pairs(self) -> PairTiles:
        """The values of pairs that kernels read from tiles of their own."""
        return PairTiles(self.shared, "q")

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
        known = ["uneven=horizons is not None"] if slopes.falling(self.shared.spec) else []
        known += ["ranked=ranked is not None"]
        if analysis.keys.left:
            return ["reach=cache.reach", *known] if far else known
        return [f'balance="{"tiles" if analysis.keys.whole else "pairs"}"', *known]

    def ranks(self, *, far: bool) -> str:
        """The arguments that say how many keys a tile of queries sees in a padded batch: none later, and how far."""
        reach = ", reach=cache.reach" if far and self.shared.analysis.keys.left else ""
        return f"behind={no_late_keys(self.shared.spec)}{reach}"

    @cached_property
    def backward(self) -> Backward | None:
        """The backward pass, if there is one: for calls that want the gradients of q, k and v.

        Calls that want the gradient of an input that is not in `summed` run the portable kernels. An input with values
        per token is computed from the tokens, so calls want its gradient: if it does nothing but add to scores, these
        kernels compute it as well.
        """
        spec = self.shared.spec
        if self.added and self.added.learns:
            return Backward(self.shared, additions.build(self.shared.analysis.by_key))
        if self.pairs and spec.dropout:
            return None  # shared memory holds either random numbers or values of pairs
        if not all(x.shared for x in spec.inputs if x.grad and not (self.pairs and x.pairs)):
            return None
        given = analyse(self.by_distance.learning if self.by_distance else spec.given)
        tables = self.by_distance.learned if self.by_distance else ()
        found = Backward(SharedParameters(given), additions.build(given.by_key), tables, self.pairs.learns)
        return None if any(map(_slow, found.terms.scored - {found.pairs.access})) else found

    @cached_property
    def wide(self) -> Wide | None:
        """The kernel of the backward pass for wide heads, if there is one."""
        found = self.backward
        if found is None or self.pairs or found.uniform.aside() or (found.added and found.added.learns):
            return None
        return Wide(found.shared, found.added)

    @property
    def summed(self) -> tuple[Sum, ...]:
        """The gradients of inputs that the backward pass computes."""
        if not self.backward:
            return ()
        return (*self.backward.sums.all, *(self.by_distance.totals if self.by_distance else ()))

    @property
    def fits(self) -> tuple[str, ...]:
        """Texts of what the inputs of a call have to be for the backward pass."""
        entries = self.backward.uniform.all if self.backward else ()
        return (*self.pairs.fits, *(one.fits for one in entries))

    @property
    def of_narrow_heads(self) -> tuple[Sum, ...]:
        """Those of them that no kernel for wide heads computes, though there is one."""
        return self.by_distance.totals if self.by_distance and self.wide else ()

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

    def named(self, kernels: Iterable[Kernel]) -> tuple[str, ...]:
        """The names that kernels which are not in Gluon import from kernels.py."""
        return tuple(sorted(_named(kernels) & self.known))

    @property
    def helpers(self) -> frozenset[str]:
        """The functions of hopper.py that not all such files have, but templates print."""
        called = self.called(self.launched)
        return called | (dropout.CALLED if called & dropout.NAMES else frozenset())

    @property
    def host_functions(self) -> tuple[str, ...]:
        """The functions of launch.py that launches of the backward pass call as well."""
        return self._of_host("q")

    @property
    def attend_functions(self) -> tuple[str, ...]:
        """Those that the launch of the forward pass calls."""
        return self._of_host("k")

    def _of_host(self, walked: Side) -> tuple[str, ...]:
        a = self.shared.analysis
        states = a.key_states if walked == "k" else a.query_states
        listed = (f"_{states.lists}",) if states and not states.ranged else ()
        return (*listed, *(("_drop_below",) if self.shared.spec.dropout else ()))

    @property
    def of_scores(self) -> frozenset[str]:
        """The functions of expressions for which hopper.py has faster ones, on tiles of scores."""
        return self.called(self.launched) & OF_SCORES

    def called(self, kernels: Iterable[Kernel]) -> frozenset[str]:
        """The functions of hopper.py that the terms of some kernels call."""
        return _named(kernels) & (OF_SCORES | dropout.NAMES | {"apart", "of_registers", "at_distances"})


def _slow(access: Access) -> bool:
    """True if steps load floats per query or pair to compute scores: such kernels spill registers."""
    return access.form == "pair" or (access.form == "row" and access.side == "q" and access.input.dtype == "float")


def _named(kernels: Iterable[Kernel]) -> frozenset[str]:
    """All names in the statements of kernels."""
    return code_names(*(body for kernel in kernels for body in kernel.blocks.values()))


def serves(spec: Spec) -> bool:
    """True if a spec has such kernels: it may leave them out, and neither latent heads nor earlier algorithms do."""
    return "hopper" in spec.targets and not spec.latent and spec.algorithm.backward


def build(p: SharedParameters, known: frozenset[str], parts: ByDistance | None) -> Hopper | None:
    """The Hopper kernels of a variant, if it has any.

    `known` are the names that kernels.py defines, `parts` those of its scores that are read by distance.
    """
    spec = p.spec
    if not serves(spec):
        return None
    functions = jitted("hopper/cleared", *(("clear_rows",) if p.storage.cut else ()), "clear_behind")
    return Hopper(p, (*functions, *Dropout(spec).functions), known, OnHopper(parts) if parts else None)
