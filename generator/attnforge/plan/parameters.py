"""What a kernel takes, in the order in which it takes it."""

from __future__ import annotations

from dataclasses import dataclass

_LOADED = ("tiles", "rows")


@dataclass(frozen=True)
class Parameter:
    """What a kernel takes, and the launcher's text for it."""

    name: str
    # tiles, rows (a value of each), *T (pointer to elements as q has them), *fp32, *i32, *i1, i32, fp32, constexpr
    type: str
    given: str
    block: tuple[str, ...] = ()  # rows and columns of tiles; of rows, how many
    element: str = "fp32"  # of rows
    condition: str = ""  # whether a descriptor can read rows, where calls differ in it
    own: bool = False  # a whole number that each call gives anew, beside floats and tensors
    written: bool = False  # a tensor that the kernel makes

    @property
    def loaded(self) -> str:
        """The launcher's text for what tiles or values of rows are loaded by."""
        rows = self.block[0].lower() + (f" if {self.condition} else None" if self.condition else "")
        return f"{'_tiles' if self.type == 'tiles' else '_values'}({self.given}, {rows})"

    @property
    def shaped(self) -> bool:
        """Whether the shapes of a call's tensors tell it."""
        return self.type == "constexpr" or (self.type in ("i32", "i64") and not self.own)

    @property
    def varies(self) -> bool:
        """Whether the compiler must not bind itself to this value: lengths and options change from call to call."""
        return self.type in ("i32", "i64") and (self.own or "_stride_" not in self.name)


@dataclass(frozen=True)
class Kernel:
    """A kernel's signature; `step` are the parameters of the function that handles one tile."""

    name: str
    parts: tuple[Parameter, ...]
    step: tuple[str, ...] = ()

    @property
    def tiled(self) -> tuple[Parameter, ...]:
        """The tensors that it reads tile by tile."""
        return tuple(p for p in self.parts if p.type in _LOADED)

    @property
    def given(self) -> tuple[Parameter, ...]:
        """What each call gives anew besides."""
        return tuple(p for p in self.parts if p.type not in _LOADED and not p.shaped)

    @property
    def shaped(self) -> tuple[Parameter, ...]:
        """What the shapes of a call's tensors tell."""
        return tuple(p for p in self.parts if p.shaped)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """All of them in order: a launch that knows its shapes already fills in the first ones alone."""
        return (*self.tiled, *self.given, *self.shaped)

    @property
    def written(self) -> frozenset[str]:
        """The tensors that it makes, or adds to."""
        return frozenset(p.name for p in self.parts if p.written)

    @property
    def varying(self) -> tuple[str, ...]:
        """The parameters that the compiler must not bind itself to."""
        return tuple(p.name for p in self.parameters if p.varies)
