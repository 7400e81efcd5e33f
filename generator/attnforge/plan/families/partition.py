"""Arguments of the warps of a program that do one of its tasks: a warp-specialized kernel passes each task its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..kernel_inputs import KernelInputs
from ..parameters import Parameter
from ..statements import Block, Bundle, Statement, targets


@dataclass(frozen=True)
class Partition:
    """The arguments of some of a program's warps."""

    bundle: Bundle  # the values, as the warps unpack them
    taken: tuple[str, ...]  # all arguments: the tuple of values, buffers, constants


@dataclass(frozen=True)
class Role:
    """The arguments of some of a program's warps, and the statements of their function."""

    bundle: Bundle
    taken: tuple[str, ...]
    numbers: tuple[Statement, ...]  # convert the call's numbers to values of the kernel language
    enter: tuple[Statement, ...]  # find the current tile, head and sequence
    cleared: tuple[Block, ...]
    own: tuple[Statement, ...]  # load values of its keys
    visit: tuple[Block, ...]

    def blocks(self, name: str) -> dict[str, tuple[Block, ...]]:
        """Its statements, for a template."""
        return {
            f"{name}_unpacked": (self.bundle, *self.numbers),
            f"{name}_enter": (*self.enter, *self.cleared),
            f"{name}_own": self.own,
            f"{name}_visit": self.visit,
        }


def numbers_first(
    terms: KernelInputs, opened: Iterable[Statement]
) -> tuple[tuple[Statement, ...], tuple[Statement, ...]]:
    """Statements that give the call's numbers their types, which names keep in branches and loops, and the others."""
    known, numbers, others = targets(terms.numbers()), list[Statement](), list[Statement]()
    for statement in opened:
        (numbers if statement.target in known else others).append(statement)
    return tuple(numbers), tuple(others)


def partition(
    bundle: str,
    parts: Iterable[Parameter],
    read: Iterable[str],
    given: tuple[str, ...],
    fixed: tuple[str, ...],
    constants: tuple[str, ...],
) -> Partition:
    """The arguments of some warps: those values and constants of a kernel's `parts` that they read, and `given` ones.

    `fixed` and `constants` are the constants that they take in any case, before and after the others.
    """
    read, parts = set(read), tuple(parts)
    values = (q.name for q in parts if q.type not in ("constexpr", "tiles", "fragments", "strips", "pairs"))
    more = (q.name for q in parts if q.type == "constexpr" and q.name not in (*fixed, *constants))
    taken = (bundle, *given, *fixed, *(name for name in more if name in read), *constants)
    return Partition(Bundle(bundle, tuple(name for name in values if name in read), packs=False), taken)
