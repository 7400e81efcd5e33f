"""A plugin of pytest: suites take a third of the time in Triton's interpreter."""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
from types import FunctionType
from typing import Any


def pytest_collection_finish() -> None:
    """Called by pytest, once the tests have settled where kernels run."""
    if os.environ.get("TRITON_INTERPRET") == "1" and "triton" in sys.modules:
        hasten()


def hasten() -> None:
    """Has kernels in the interpreter, and what they are held against, take a third of the time."""
    import torch

    # the tensors are small: threads would wait for each other most of the time, in processes that are started, too
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    prepare_once()
    skip_unused_checks()


def prepare_once() -> None:
    """Has the interpreter prepare `triton.language` once a launch, not again for each function that a kernel calls."""
    from triton.runtime import interpreter

    prepare = getattr(interpreter, "_patch_lang", None)
    if prepare is None or hasattr(prepare, "__wrapped__"):
        return
    prepared: set[str] = set()  # in the launch that runs, the modules whose `tl` and `tl.core` are

    @functools.wraps(prepare)
    def patch_lang(function: FunctionType) -> Any:
        if function.__module__ in prepared:
            return None  # a launch alone, which is the first to come, takes what is returned
        scope = prepare(function)
        if not prepared:
            undo = scope.restore

            def restore() -> None:
                prepared.clear()
                undo()

            scope.restore = restore
        prepared.add(function.__module__)
        return scope

    interpreter._patch_lang = patch_lang


def skip_unused_checks() -> None:
    """Has the interpreter work out whether whole numbers overflow where it tells: in its debug mode."""
    from triton.runtime import interpreter

    builder = interpreter.interpreter_builder
    if not builder.options.debug:
        builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)
