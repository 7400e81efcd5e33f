"""The families there are, and which of them serves a spec."""

from __future__ import annotations

from ...language.spec import Spec
from .early import EARLY
from .family import Family
from .portable import PORTABLE

FAMILIES: list[Family] = [PORTABLE, EARLY]


def of(spec: Spec) -> Family:
    """The family whose kernels a spec's package has."""
    return next(family for family in FAMILIES if family.serves(spec))
