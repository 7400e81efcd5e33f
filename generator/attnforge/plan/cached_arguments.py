"""The keywords of decoding: those of `attention`, with the shapes of inputs alongside a cache."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from ..expressions.inputs import Input
from ..language.spec import Spec
from .arguments import Argument
from .paged import PAGED
from .reference import broadcast, described

_COUNTS = {"batch": "B", "head": "Hq", "kv_head": "Hkv", "query": "Tq", "key": "Tk", "token": "Tk"}
_PAGED = {"batch": "P", "key": "page", "token": "page"}
_ELSEWHERE = ("cos", "sin", "positions", "sinks")  # keywords with checks of their own


@dataclass(frozen=True)
class CachedArgument:
    """A keyword of decoding that comes from a term or an input."""

    argument: Argument
    shape: str  # text over the sizes that the checks know
    told: str = ""  # the same with the names that users know
    whole: tuple[int, ...] = ()  # axes along which a size of 1 does not broadcast
    longer: tuple[int, ...] = ()  # axes that may be longer than the call needs
    packed: str = ""  # its shape with packed new tokens, if it is laid out as they are
    batch: int | None = None  # the axis that packed tokens lack
    fewer: str = ""  # how it may have fewer values than its shape

    @property
    def made(self) -> str:
        """Torch text of its value if a call leaves it out: a single entry, which broadcasts."""
        argument = dataclasses.replace(self.argument, sizes=("1",) * len(self.argument.axes))
        return argument.made(dtype="torch.float32", device="q.device")

    @property
    def doc(self) -> str:
        """Its description, on one line."""
        argument = dataclasses.replace(self.argument, grad=False)  # decoding has no gradients
        return described(argument, f"{self.told}, packed {self.packed}" if self.packed else self.told, self.fewer)


def build(spec: Spec, arguments: Iterable[Argument]) -> tuple[CachedArgument, ...]:
    """The keywords that come from terms and inputs, in order; the spec has the names used in code."""
    inputs = {given.name: given for given in spec.inputs}
    taken = (a for a in arguments if a.name not in _ELSEWHERE)
    return tuple(_argument(a, inputs[a.code]) if a.axes else CachedArgument(a, "") for a in taken)


def _argument(a: Argument, given: Input) -> CachedArgument:
    counts = _COUNTS | (_PAGED if PAGED.holds(given) else {})
    sizes, told = ([axis.count(counts.get(axis.kind, "")) for axis in axes] for axes in (given.axes, a.axes))
    longer = () if PAGED.holds(given) else tuple(i for i, kind in enumerate(given.kinds) if kind in given.rows)
    packed, batch = "", None
    if PAGED.follows(given):
        longer = ()
        batch = given.kinds.index("batch") if "batch" in given.kinds else None
        rows = ["T" if kind == "query" else size for kind, size in zip(given.kinds, sizes, strict=True)]
        packed = _tuple(size for i, size in enumerate(rows) if i != batch)
    fewer = broadcast(told, {*range(len(told))} - {*given.written}) if given.pairs else ""
    return CachedArgument(a, _tuple(sizes), _tuple(told), given.written, longer, packed, batch, fewer)


def _tuple(sizes: Iterable[str]) -> str:
    texts = list(sizes)
    return f"({', '.join(texts)}{',' if len(texts) == 1 else ''})"
