"""Packages imported as they stand: to rewrite the assertions of a suite takes longer than many of its checks."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from unittest import mock


@contextlib.contextmanager
def assertions() -> Iterator[None]:
    """While it lasts, pytest rewrites none in what is imported: checks of suites say by themselves what failed."""
    others = [hook for hook in sys.meta_path if type(hook).__name__ != "AssertionRewritingHook"]
    with mock.patch.object(sys, "meta_path", others):
        yield
