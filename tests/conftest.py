"""Settings and fixtures that all tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import recompiling
from compiling import Compiler
from devices import INTERPRETER
from hypothesis import HealthCheck, settings

# the duration of a draw means nothing while other tests keep the machine busy
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")
recompiling.once()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Called by pytest: tests of the whole project take longest, so they start first and no worker waits for them."""
    items.sort(key=lambda item: item.path.parent != Path(__file__).parent)


@pytest.fixture(autouse=True)
def whether_kernels_are_interpreted() -> Iterator[None]:
    """Restored after each test: compiling in a test's own process turns the interpreter off."""
    before = os.environ.get(INTERPRETER)
    yield
    if before is None:
        os.environ.pop(INTERPRETER, None)
    else:
        os.environ[INTERPRETER] = before


@pytest.fixture(scope="session")
def compiler() -> Iterator[Compiler]:
    """A process that compiles kernels."""
    made = Compiler()
    yield made
    made.end()
