"""Runs generated suites inside a test's own process."""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path

import pytest
import unrewritten


class Failures:
    """A plugin that collects the failures of a run of pytest inside this process."""

    def __init__(self) -> None:
        self.reports: list[pytest.TestReport] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Called by pytest: most faults show up in values, whose tests come late in a suite, so these run first."""
        items.sort(key=lambda item: not item.name.startswith("test_values"))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called by pytest."""
        if report.failed:
            self.reports.append(report)


def failures(suite: Path, *options: str) -> list[pytest.TestReport]:
    """The first failure of a suite, in a process that has imported torch and triton already."""
    found = Failures()
    # the last of these plugins collects garbage at the end, which takes longer than many tests
    without = [f"-pno:{plugin}" for plugin in ("cacheprovider", "xdist", "unraisableexception")]
    # without the second option pytest would also search the folders of all other tests
    place = [f"{option}={suite.parents[1]}" for option in ("--rootdir", "--confcutdir")]
    quiet = ["-q", "-x", "--assert=plain", "-c", os.devnull, *place, *without]
    with contextlib.redirect_stdout(io.StringIO()), unrewritten.assertions():
        pytest.main([*quiet, *options, str(suite)], plugins=[found])
    return found.reports
