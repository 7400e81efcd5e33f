"""The tile tables of a variant: those of its class, with rows for the kernels that only it has."""

from __future__ import annotations

from ..language.spec import Spec
from . import tiles
from .families.hopper.hopper import Hopper
from .package_kernels import PackageKernels
from .reach import Reach
from .tiles import Limit, Row, Table, Tables


def build(
    spec: Spec, kernels: PackageKernels, on_hopper: Hopper | None, far: Reach | None, tuned: tuple[Row | Limit, ...]
) -> Tables:
    """The tables of a variant; `tuned` rows replace others, `far` says how far back queries see."""
    weight = kernels.analysis.by_query.weight
    learns = any(given.grad for given in spec.inputs)
    added, seen = (on_hopper.kind, on_hopper.weight) if on_hopper else ("", weight)
    found = tiles.tables(weight, spec.packed, spec.algorithm.name, far, spec.latent, learns, added, seen).tuned(tuned)
    half = {arch: _with_own(spec, kernels, arch, table) for arch, table in found.half.items()}
    found = found._replace(half=half, single=_with_own(spec, kernels, "single", found.single))
    wide = on_hopper is not None and on_hopper.wide is not None
    return found.only(on_hopper.passes if on_hopper else (), wide=wide)


def _with_own(spec: Spec, kernels: PackageKernels, family: str, table: Table) -> Table:
    """A table with rows for kernels that work as others do."""
    kept = table if spec.algorithm.backward else {"forward": table["forward"]}
    own = {kernels.tables.kernel.name: table["backward_dq"]} if kernels.tables else {}
    of_pairs = dict(sorted((table["backward_dkv"] | tiles.of_pairs(family)).items()))
    own |= {pair.kernel.name: of_pairs for pair in kernels.pairs}
    own |= {"measure": table["backward_dkv"]} if "statistics" in spec.exports else {}
    return kept | own
