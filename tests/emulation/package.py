"""Packages whose kernels for Hopper GPUs run in the emulation."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from .language import Emulation

_number = count()


class Package:
    """A rendered package on an emulated GPU."""

    def __init__(self, folder: Path, seed: int = 0, multiprocessors: int = 3) -> None:
        self.emulation = Emulation(seed)
        name = f"emulated_{next(_number)}_{folder.name}"
        with self._in_place():
            spec = importlib.util.spec_from_file_location(
                name, folder / "__init__.py", submodule_search_locations=[str(folder)]
            )
            assert spec and spec.loader
            self.module = sys.modules[name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(self.module)
            self.runtime, arguments = (importlib.import_module(f"{name}.{file}") for file in ("runtime", "arguments"))
        arguments.check_place = lambda name, x: None
        arguments.interpreted = lambda: False
        self.runtime.capability = lambda device: (9, 0)
        self.runtime.multiprocessors = lambda device: multiprocessors
        self.runtime.cache_share = lambda device: 2**20
        self.runtime.target = lambda: "hopper"
        self.runtime.address = lambda x: x  # launches after the first pass addresses, which are not enough here

    @contextmanager
    def _in_place(self) -> Iterator[None]:
        """Replaces Triton by the emulation's modules, and fills unwritten memory with NaN."""
        torch.use_deterministic_algorithms(True)
        hidden = {name: x for name, x in sys.modules.items() if name == "triton" or name.startswith("triton.")}
        for name in hidden:
            del sys.modules[name]
        sys.modules.update(self.emulation.modules)
        try:
            # packages choose other kernels if they see this setting
            with mock.patch.object(torch, "are_deterministic_algorithms_enabled", return_value=False):
                yield
        finally:
            torch.use_deterministic_algorithms(False)
            for name in self.emulation.modules:
                sys.modules.pop(name, None)
            sys.modules.update(hidden)

    def part(self, name: str) -> Any:
        """A module of the package."""
        with self._in_place():
            return importlib.import_module(f"{self.module.__name__}.{name}")

    def attend_with_cache(self, *given: torch.Tensor, **more: Any) -> Any:
        decode = self.part("decode")
        with self._in_place():
            return decode.attend_with_cache(*given, **more)

    def attention(self, *given: torch.Tensor, **more: Any) -> Any:
        with self._in_place():
            return self.module.attention(*given, **more)

    def reference(self, *given: torch.Tensor, **more: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Output and LSE, in float32."""
        out, lse = self.module.reference(*(x.float() for x in given), **more, return_lse=True)
        return out, lse

    def gradients(self, out: torch.Tensor, wanted: Any, upstream: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with self._in_place():
            return torch.autograd.grad(out, wanted, upstream)
