"""Targets of a package's kernels: those that its calls are asked to run, and those that they ran."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

from ..language.targets import TARGETS as TARGETS

_VARIABLE = "ATTNFORGE_TARGET"
# passes by the names of kernels in a launch cache: those for Hopper GPUs compute all gradients in one kernel
_PASSES = {"forward": "forward", "backward_dq": "backward", "backward": "backward"}


@contextlib.contextmanager
def asked(target: str) -> Iterator[None]:
    """Makes calls inside the context run one target's kernels, as a user would request them; "": packages choose."""
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
    """The module through which all launches of a package go."""
    return importlib.import_module(f"{package.__name__}.runtime")


def taken(runtime: Any) -> dict[str, str]:
    """The target whose kernels each pass has run, from the calls that a package's runtime.py remembers."""
    found: dict[str, str] = {}
    for cache in runtime.LaunchCache.known.values():
        for name, its in _PASSES.items():
            on_hopper = bool(cache.hopper_tiles.get(name))
            if on_hopper or cache.tiles.get(name):
                found[its] = TARGETS[on_hopper]
    return found


def told(kernels: Mapping[str, str]) -> str:
    """The target of each pass in words; "" if there is none."""
    found = {*kernels.values()}
    if len(found) == 1:
        return f"{found.pop()} kernels"
    return ", ".join(f"{target} {its}" for its, target in kernels.items())
