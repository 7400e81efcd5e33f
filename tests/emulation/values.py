"""Tiles, numbers, and pointers to memory."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch


class Misuse(Exception):
    """A kernel does something that a GPU would not report, or that would crash it."""


def hold(holds: Any, told: str) -> None:
    """Raises Misuse with this message unless the condition holds."""
    if not holds:
        raise Misuse(told)


class DType:
    """A type of values, as kernels name it."""

    def __init__(self, name: str, torch_dtype: torch.dtype) -> None:
        self.name, self.torch = name, torch_dtype
        self.primitive_bitwidth = torch_dtype.itemsize * 8

    def is_floating(self) -> bool:
        return self.torch.is_floating_point

    def __repr__(self) -> str:
        return self.name


# int16 and uint16 only hold bits; unsigned numbers of 32 bits need more room, as torch has no arithmetic for them
TYPES = {
    name: DType(name, getattr(torch, known))
    for name, known in {
        "float64": "float64",
        "float32": "float32",
        "float16": "float16",
        "bfloat16": "bfloat16",
        "float8e4nv": "float8_e4m3fn",
        "int64": "int64",
        "int32": "int32",
        "uint32": "int64",
        "int16": "int16",
        "uint16": "int16",
        "int8": "int8",
        "int1": "bool",
    }.items()
}
_BY_TORCH = {known.torch: known for name, known in TYPES.items() if not name.startswith("uint")}


def type_of(x: torch.Tensor) -> DType:
    return _BY_TORCH[x.dtype]


def plain(x: Any) -> Any:
    """The tensor of a value, or the number itself: what torch computes with."""
    return x.x if type(x) is Value else x


def beside(x: torch.Tensor, other: Any) -> Any:
    """The same for an operand of this tensor; torch takes half the time for a tensor in place of a whole number."""
    if type(other) is int and x.dtype is torch.int32 and -(2**31) <= other < 2**31:
        return _number(other)
    return plain(other)


def tensor(x: Any) -> torch.Tensor:
    """The tensor of a value, or of a number with the type it has in kernels."""
    if type(x) is Value:
        return x.x
    return x if isinstance(x, torch.Tensor) else _number(x)


@functools.lru_cache(4096, typed=True)
def _number(x: Any) -> torch.Tensor:
    """The tensor of a number, shared by all uses: nothing writes to a value."""
    if isinstance(x, bool):
        return torch.tensor(x)
    if isinstance(x, int):
        return torch.tensor(x, dtype=torch.int32 if -(2**31) <= x < 2**31 else torch.int64)
    return torch.tensor(x, dtype=torch.float32)


def _truncated(a: Any, b: Any) -> torch.Tensor:
    return torch.div(tensor(a), b, rounding_mode="trunc")


def _remainder(a: Any, b: Any) -> torch.Tensor:
    return torch.fmod(tensor(a), b)


class Value:
    """A tile, a vector or a number."""

    __slots__ = ("x",)

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x

    @property
    def shape(self) -> list[int]:
        return list(self.x.shape)

    @property
    def dtype(self) -> DType:
        return type_of(self.x)

    @property
    def type(self) -> Any:
        return SimpleNamespace(layout=None)

    def __bool__(self) -> bool:
        return bool(self.x)

    def __index__(self) -> int:
        return int(self.x)

    def __getitem__(self, key: Any) -> Value:
        return Value(self.x[key])

    def __neg__(self) -> Value:
        return Value(-self.x)

    def __invert__(self) -> Value:
        return Value(~self.x)

    def to(self, dtype: DType, bitcast: bool = False) -> Value:
        return Value(self.x.contiguous().view(dtype.torch) if bitcast else self.x.to(dtype.torch))

    def reshape(self, shape: Sequence[int]) -> Value:
        return Value(self.x.reshape(list(shape)))

    def permute(self, *order: Any) -> Value:
        return Value(self.x.permute(order[0] if len(order) == 1 else order))

    @property
    def T(self) -> Value:
        return Value(self.x.T)

    def broadcast_to(self, shape: Sequence[int]) -> Value:
        return Value(self.x.broadcast_to(list(shape)))


def _add_operators() -> None:
    calculated: dict[str, Callable[[Any, Any], Any]] = {
        **{name: getattr(operator, name) for name in ("add", "sub", "mul", "truediv", "lshift", "rshift")},
        **{name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
        "and": operator.and_,
        "or": operator.or_,
        "xor": operator.xor,
        "floordiv": _truncated,
        "mod": _remainder,
    }
    for name, function in calculated.items():

        def one(self: Value, other: Any, function: Callable[[Any, Any], Any] = function) -> Any:
            if isinstance(other, Pointer):
                return NotImplemented
            return Value(function(self.x, beside(self.x, other)))

        def other(self: Value, other: Any, function: Callable[[Any, Any], Any] = function) -> Value:
            return Value(function(beside(self.x, other), self.x))

        setattr(Value, f"__{name}__", one)
        setattr(Value, f"__r{name}__", other)


class Pointer:
    """Addresses in a tensor's memory: indices into it."""

    def __init__(self, memory: torch.Tensor, place: Any = 0) -> None:
        self.memory, self.place = memory, place

    @classmethod
    def of(cls, x: torch.Tensor) -> Pointer:
        """A pointer to the first value of a tensor, in all the memory that it is a part of."""
        whole = x.untyped_storage().nbytes() // x.element_size()
        return cls(x.detach().as_strided((whole,), (1,), 0), x.storage_offset())

    @property
    def dtype(self) -> Any:
        return SimpleNamespace(element_ty=type_of(self.memory))

    def __add__(self, offset: Any) -> Pointer:
        return Pointer(self.memory, offset + self.place)

    __radd__ = __add__

    def __sub__(self, offset: Any) -> Pointer:
        return Pointer(self.memory, self.place - offset)

    def to(self, dtype: DType) -> Pointer:
        """The pointer as an integer, for atomic adds in assembly: unchanged."""
        return self

    def as_type(self, dtype: DType) -> Pointer:
        return Pointer(self.memory.view(dtype.torch), self.place)

    def _places(self, mask: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Indices, 0 in place of those that the mask hides, and the mask if it hides any."""
        place = tensor(self.place).long()
        if mask is not None:
            place, mask = torch.broadcast_tensors(place, tensor(mask))
            mask = None if mask.all() else mask
        if mask is not None:
            place = torch.where(mask, place, 0)
        low, high = map(int, place.aminmax())
        hold(low >= 0 and high < self.memory.numel(), f"places {low} to {high} of a tensor of {self.memory.numel()}")
        return place, mask

    def _taken(self, place: torch.Tensor) -> torch.Tensor:
        found = self.memory[place]
        return found if place.dim() else found.clone()  # indexing with a scalar gives a view

    def load(self, mask: Any, other: Any) -> Value:
        place, mask = self._places(mask)
        found = self._taken(place)
        fill = tensor(0 if other is None else other).to(found.dtype)
        return Value(found if mask is None else torch.where(mask, found, fill))

    def _put(self, place: torch.Tensor, mask: torch.Tensor | None, x: Any, adds: bool) -> None:
        x = tensor(x).to(self.memory.dtype).broadcast_to(place.shape)
        if mask is not None:
            place, x = place[mask], x[mask]
        self.memory.index_put_((place,), x, accumulate=adds)

    def store(self, x: Any, mask: Any) -> None:
        self._put(*self._places(mask), x, adds=False)

    def add(self, x: Any, mask: Any = None) -> Value:
        """Adds values, several of them at one place if need be, and returns the previous ones."""
        place, mask = self._places(mask)
        before = self._taken(place)
        self._put(place, mask, x, adds=True)
        return Value(before)


_add_operators()
