"""Kernels, their steps and their parameters, in order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ..expressions.inputs import Input
from .statements import Block, Branch, Bundle, Call, names

_LOADED = ("tiles", "rows", "fragments", "strips", "pairs")


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel, and the launcher's text for it."""

    name: str
    # tiles, rows (a value of each), fragments (tiles as products leave them), strips (64 columns of a cache's rows),
    # pairs (tiles of a value for each query and key),
    # *T (pointer to elements as q has them), *fp32, *i32, *i1, i32, fp32, constexpr
    type: str
    given: str
    block: tuple[str, ...] = ()  # rows and columns of tiles; of rows, how many
    element: str = "fp32"  # of rows
    # if calls differ in whether a descriptor can load it: text of whether it can, or of tiles, of why it cannot
    condition: str = ""
    own: bool = False  # an integer that each call gives anew, as it does floats and tensors
    written: bool = False  # a tensor that the kernel writes
    absent: bool = False  # a tensor that most calls leave out

    @property
    def loaded(self) -> str:
        """The launcher's text of the source from which tiles or values of rows are loaded."""
        if self.type == "fragments":
            return f"runtime.fragment_source({self.given}, runtime.piece(q, v))"
        rows = self.block[0].lower()
        if self.type == "pairs":
            return f"runtime.pair_source({self.given}, {rows}, {self.block[1].lower()})"
        if self.type == "strips":
            return f"runtime.strip_source({self.given}, {rows})"
        if self.type == "tiles":
            return f"runtime.tile_source({', '.join(filter(None, (self.given, rows, self.condition)))})"
        return f"runtime.vector_source({self.given}, {rows}{self.condition and f' if {self.condition} else None'})"

    @property
    def value(self) -> str:
        """The launcher's text of the value, as far as shapes determine it."""
        return self.loaded if self.type in _LOADED else self.given

    @property
    def shaped(self) -> bool:
        """True if the shapes of a call's tensors determine it."""
        return self.type == "constexpr" or (self.type in ("i32", "i64") and not self.own)

    @property
    def varies(self) -> bool:
        """Whether the compiler must not specialise on this value: lengths and options change from call to call."""
        return self.type in ("i32", "i64") and (self.own or "_stride_" not in self.name)


@dataclass(frozen=True)
class Function:
    """A jitted function: the template and the macro of its text, and the macro's arguments, if any."""

    template: str
    name: str
    about: tuple[object, ...] = ()

    @property
    def defines(self) -> str:
        """The name of the function in a file."""
        about = self.about[0] if self.about else None
        if isinstance(about, Input):
            return f"{about.name}_{self.name}"
        return str(getattr(about, "function", self.name))


def jitted(template: str, *names: str) -> tuple[Function, ...]:
    """Functions of a template, which is named without its file extension."""
    return tuple(Function(f"{template}.jinja", name) for name in names)


@dataclass(frozen=True)
class Step:
    """The function that a kernel calls for each tile it visits."""

    function: str
    results: tuple[str, ...]
    own: tuple[str, ...]  # the single values that it takes first
    bundles: tuple[tuple[str, tuple[str, ...]], ...]  # values that no step changes: tuples and the names in them
    constants: tuple[str, ...]
    tails: bool  # whether the next sequence may begin inside a tile
    masks_all: bool = False  # whether all tiles take the mask

    @property
    def parameters(self) -> tuple[str, ...]:
        """All its parameters: it masks if a tile is `mixed`, and zeroes the next sequence's rows in a `tail`."""
        return (*self._given, *(() if self.masks_all else ("mixed",)), *(("tail",) if self.tails else ()))

    def masked(self, blocks: Iterable[Block]) -> tuple[Block, ...]:
        """The statements of a mask, run only if a tile needs it."""
        return tuple(blocks) if self.masks_all else (Branch("mixed", tuple(blocks)),)

    @property
    def _given(self) -> tuple[str, ...]:
        return (*self.own, *(name for name, _ in self.bundles), *self.constants)

    @property
    def packed(self) -> tuple[Block, ...]:
        """The statements, before the loops, that make the tuples."""
        return tuple(Bundle(name, values, packs=True) for name, values in self.bundles)

    @property
    def unpacked(self) -> tuple[Block, ...]:
        """The statements, at the start of the function, that take them apart."""
        return tuple(Bundle(name, values, packs=False) for name, values in self.bundles)

    @property
    def names(self) -> frozenset[str]:
        """All names that it is given."""
        return frozenset((*self.parameters, *(value for _, values in self.bundles for value in values)))

    def call(self, mixed: str, tail: str) -> Call:
        """The call for one tile."""
        kind = (*(() if self.masks_all else (f"mixed={mixed}",)), *((f"tail={tail}",) if self.tails else ()))
        return Call(", ".join(self.results), self.function, (*self._given, *kind))


@dataclass(frozen=True)
class Kernel:
    """A kernel: its parameters, the template of its text, and the statements that fill the template in."""

    name: str
    parts: tuple[Parameter, ...]
    template: str
    grid: str = ""  # the launcher's text; "" if the host has a function for it
    step: Step | None = None
    blocks: dict[str, tuple[Block, ...]] = field(default_factory=dict, hash=False)  # by their place in the template
    texts: dict[str, str] = field(default_factory=dict, hash=False)  # expressions, likewise
    made: tuple[str, ...] = ()  # statements of the launcher that allocate the tensors in which it works

    @property
    def tiled(self) -> tuple[Parameter, ...]:
        """The tensors that it reads tile by tile."""
        return tuple(p for p in self.parts if p.type in _LOADED)

    @property
    def given(self) -> tuple[Parameter, ...]:
        """The other parameters that each call gives anew."""
        return tuple(p for p in self.parts if p.type not in _LOADED and not p.shaped)

    @property
    def shaped(self) -> tuple[Parameter, ...]:
        """The parameters that the shapes of a call's tensors determine."""
        return tuple(p for p in self.parts if p.shaped)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """All parameters in order: a launch whose shapes are known already fills in the first ones only."""
        return (*self.tiled, *self.given, *self.shaped)

    @property
    def host_reads(self) -> frozenset[str]:
        """The names that its launch reads."""
        return names(self.grid, *(text for p in self.parts for text in (p.given, p.value)))

    @property
    def written(self) -> frozenset[str]:
        """The tensors that it writes or adds to."""
        return frozenset(p.name for p in self.parts if p.written)

    @property
    def varying(self) -> tuple[str, ...]:
        """The parameters on which the compiler must not specialize."""
        return tuple(p.name for p in self.parameters if p.varies)
