"""Makes torch.compile trace everything twice: it may mix up functions of two packages that have equal code.

It caches the instructions of code objects for a while, including those of nested code (a generator expression, an inner
function). Here the cache lasts until a trace restarts; then each code object has to be from the same file as before.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

BYTECODE, SYMBOLIC, ERRORS = ("bytecode_transformation", "symbolic_convert", "exc")
TOLD = "traced twice"


def trace_twice(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Returns a function that has another one traced twice, without graph breaks, and runs nothing of it."""
    bytecode, symbolic, errors = (importlib.import_module(f"torch._dynamo.{x}") for x in (BYTECODE, SYMBOLIC, ERRORS))
    kept = functools.cache(bytecode._cached_cleaned_instructions.__wrapped__)
    restart, begun = symbolic.SpeculationLog.restart, []

    def begin(log: Any) -> None:
        if begun:
            kept.cache_clear()
        begun.append(log)
        restart(log)

    def backend(graph: Any, given: Any) -> None:
        raise errors.TensorifyScalarRestartAnalysis if len(begun) == 1 else RuntimeError(TOLD)

    def traced(function: Callable[..., Any], *given: Any, **more: Any) -> None:
        torch.compiler.reset()
        begun.clear()
        with pytest.raises(Exception, match=TOLD):
            torch.compile(function, backend=backend, fullgraph=True, dynamic=True)(*given, **more)

    monkeypatch.setattr(bytecode, "_cached_cleaned_instructions", kept)
    monkeypatch.setattr(symbolic.SpeculationLog, "restart", begin)
    return traced
