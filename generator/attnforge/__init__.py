"""Renders attention variants, written as YAML, into Triton kernel packages."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from types import ModuleType

__version__ = "0.1.0"
__all__ = ["__version__", "build"]


def build(spec: str | PathLike[str] | Mapping[str, object]) -> ModuleType:
    """The package of a spec, imported; it is rendered into a cache if it is not there yet.

    `spec` is a file, the name of a shipped variant, YAML text, or a mapping with the content of such a text. The
    docstring of the module ends with the folder of its code. ATTNFORGE_CACHE names another folder for the cache. Raises
    `attnforge.source.errors.SpecError` with all mistakes and their places.
    """
    from .render import cache

    return cache.build(spec)
