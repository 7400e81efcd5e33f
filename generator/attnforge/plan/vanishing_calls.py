"""How the host finds out which keys have no weight because scores fall with the distance."""

from __future__ import annotations

from dataclasses import dataclass

from . import vanishing
from .arguments import Argument
from .package_kernels import PackageKernels
from .statements import names


@dataclass(frozen=True)
class VanishingCalls:
    """The host's statements, and the arguments of its functions in vanishing.py; all are empty if no weights vanish."""

    kernels: PackageKernels
    tensors: tuple[str, ...]  # the operator's, besides q, k and v
    numbers: tuple[str, ...]
    arguments: tuple[Argument, ...]

    @property
    def function(self) -> str:
        """The function that the launcher calls."""
        return "find_horizons" if self.falling else "shorten" if self.shortened else ""

    @property
    def shortened(self) -> tuple[str, ...]:
        """The statement that lets documents end where weights vanish, if running sums tell that."""
        storage = self.kernels.storage
        passed = (*storage.cuts, *storage.entries, *storage.limits, "scale")
        found = vanishing.by_sums(self.kernels.spec)
        return (f"shorten(cache, {self.kernels.sums[0]}, q, k, {', '.join(passed)})",) if found else ()

    def seen_far(self, *more: str) -> tuple[str, ...]:
        """The statement that finds how far heads reach, if scores fall by a slope."""
        passed = ("cache", "q", "k", *self.falling, "scale", *more)
        return (f"horizons = find_horizons({', '.join(passed)})",) if self.falling else ()

    @property
    def falling(self) -> tuple[str, ...]:
        """The arguments that tell how far heads reach, besides q, k and the scale."""
        storage = self.kernels.storage
        kernels = [kernel for kernel in self.kernels.vanishing if kernel.name == "horizons"]
        texts = (p.value for kernel in kernels for p in kernel.parts)
        read = names(*texts, *storage.longest, storage.sequences) if kernels else frozenset[str]()
        return tuple(name for name in (*self.tensors, *self.numbers[:-1]) if name in read)

    @property
    def normed(self) -> tuple[str, ...]:
        """The arguments of the function that finds norms."""
        read = names(*(p.value for kernel in self.kernels.vanishing[:1] for p in kernel.parts))
        return ("q", "k", *(name for name in ("sums", *self.tensors, *self.numbers) if name in read))

    @property
    def fading(self) -> str:
        """Texts for a suite that tests keys without weight: of what scores fall by, and of its sign."""
        if not self.kernels.vanishing:
            return ""
        code, sign = vanishing.cause(self.kernels.spec)
        name = next((a.name for a in self.arguments if a.code == code), "")
        return f'"{name}", {sign}'
