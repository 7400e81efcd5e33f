"""Kernels of a package: what its calls are asked to run, and what they ran."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

from ..language.targets import TARGETS as TARGETS

_VARIABLE = "ATTNFORGE_TARGET"
# what a launch cache calls the kernels of a pass: those for Hopper GPUs make all gradients in one go
_PASSES = {"forward": "forward", "backward_dq": "backward", "backward": "backward"}


@contextlib.contextmanager
def asked(target: str) -> Iterator[None]:
    """Has calls in here run one target's kernels, as a user asks for them; by "" a package chooses."""
    before = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = target
    try:
        yield
    finally:
        if before is None:
            del os.environ[_VARIABLE]
        else:
            os.environ[_VARIABLE] = before


def runtime(package: Any) -> Any:
    """The module that all launches of a package go through."""
    return importlib.import_module(f"{package.__name__}.runtime")


def taken(runtime: Any) -> dict[str, str]:
    """The target whose kernels each pass has run, as far as a package's runtime.py remembers its calls."""
    found: dict[str, str] = {}
    for cache in runtime.LaunchCache.known.values():
        for name, its in _PASSES.items():
            if tile := cache.tiles.get(name):
                # beside a tile stands the module of the kernels, where they are not the portable ones
                found[its] = TARGETS[len(tile) > 4]
    return found


def told(kernels: Mapping[str, str]) -> str:
    """The target of each pass in words; nothing of none."""
    found = {*kernels.values()}
    if len(found) == 1:
        return f"{found.pop()} kernels"
    return ", ".join(f"{target} {its}" for its, target in kernels.items())
