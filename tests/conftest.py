"""What all tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

NAME = "TRITON_INTERPRET"
if not torch.cuda.is_available():
    os.environ[NAME] = "1"
    import triton  # noqa: F401  # now: what it imports later, with the interpreter turned off, cannot be interpreted


@pytest.fixture(autouse=True)
def whether_kernels_are_interpreted() -> Iterator[None]:
    """Stays what it was: whoever compiles in a test's own process turns the interpreter off."""
    before = os.environ.get(NAME)
    yield
    if before is None:
        os.environ.pop(NAME, None)
    else:
        os.environ[NAME] = before
