"""The values that the kernels of attention and its gradients have in common, so that the host writes them once."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from .parameters import Kernel, Parameter


@dataclass(frozen=True)
class CommonValues:
    """The parameters given by shapes that several kernels share, and the host's names that their values read."""

    parameters: tuple[Parameter, ...] = ()
    reads: tuple[str, ...] = ()

    def rest(self, kernel: Kernel) -> tuple[Parameter, ...]:
        """The other parameters of a kernel that are given by shapes."""
        return tuple(p for p in (*kernel.tiled, *kernel.shaped) if p not in self.parameters)


def of(kernels: Sequence[Kernel], names: Collection[str]) -> CommonValues:
    """The common values of these kernels; `names` are those that the host has at each of their launches, in order."""
    told = [p for kernel in kernels for p in (*kernel.tiled, *kernel.shaped)]
    found = []
    for p in dict.fromkeys(told):
        alike = {other.value for other in told if other.name == p.name} == {p.value}
        if alike and told.count(p) > 1 and _read(p) <= set(names):
            found.append(p)
    return CommonValues(tuple(found), tuple(name for name in names if any(name in _read(p) for p in found)))


def _read(p: Parameter) -> set[str]:
    return set(re.findall(r"(?<![.\w])[a-z]\w*", p.value)) - {"runtime", "max", "if", "is", "else", "float", "int"}
