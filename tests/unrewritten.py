"""Imports packages from wherever a test has written them, without rewriting their assertions."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from unittest import mock


def module(folder: Path, name: str) -> ModuleType:
    """A module of a package in a folder, not of one with the same name that another test has imported."""
    package = name.partition(".")[0]
    for known in [x for x in sys.modules if x.partition(".")[0] == package]:
        if not Path(str(sys.modules[known].__file__)).is_relative_to(folder):
            del sys.modules[known]
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(folder))


@contextlib.contextmanager
def assertions() -> Iterator[None]:
    """A context in which pytest does not rewrite assertions of imports: that takes longer than many checks of suites.

    The messages of suites say what failed.
    """
    others = [hook for hook in sys.meta_path if type(hook).__name__ != "AssertionRewritingHook"]
    with mock.patch.object(sys, "meta_path", others):
        yield
