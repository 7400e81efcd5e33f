"""All families, and the one that serves a spec."""

from __future__ import annotations

from ...language.spec import Spec
from .early import EARLY
from .family import Family
from .portable import PORTABLE

FAMILIES: list[Family] = [PORTABLE, EARLY]


def of(spec: Spec) -> Family:
    """The family whose kernels the package of a spec contains."""
    return next(family for family in FAMILIES if family.serves(spec))
