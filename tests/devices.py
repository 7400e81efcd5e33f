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
    import triton  # noqa: F401  # now: if it were imported later, with the interpreter off, it could not interpret


def default() -> contextlib.AbstractContextManager[object]:
    """Creates tensors where kernels run; on the CPU without a device context, which would intercept each torch call."""
    return torch.device("cuda") if GPU else contextlib.nullcontext()


def moved(given: Any) -> Any:
    """A tensor, or the tensors among a call's arguments, on the device where kernels run."""
    if isinstance(given, dict):
        return {name: moved(x) for name, x in given.items()}
    return given.cuda() if GPU and isinstance(given, torch.Tensor) else given
