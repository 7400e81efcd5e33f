"""Where kernels run in tests: on a GPU, or in the interpreter."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import torch

INTERPRETER = "TRITON_INTERPRET"
GPU = torch.cuda.is_available() and os.environ.get(INTERPRETER) != "1"
if not GPU:
    os.environ[INTERPRETER] = "1"
    import triton  # noqa: F401  # now: what it imports later, with the interpreter turned off, cannot be interpreted


def default() -> contextlib.AbstractContextManager[object]:
    """Has tensors made where kernels run: on the CPU as ever, with no call of torch looked through for a device."""
    return torch.device("cuda") if GPU else contextlib.nullcontext()


def moved(given: Any) -> Any:
    """A tensor, or what of a call's arguments are tensors, where kernels run."""
    if isinstance(given, dict):
        return {name: moved(x) for name, x in given.items()}
    return given.cuda() if GPU and isinstance(given, torch.Tensor) else given
