"""The functions of Triton and Gluon that kernels for Hopper GPUs and their host code call."""

from __future__ import annotations

import functools
import inspect
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch.utils import deterministic

from .machine import Barrier, Barriers, Descriptor, Machine, Product, Shared, shared
from .values import TYPES, DType, Pointer, Value, hold, plain, tensor

_ELEMENTWISE = ("abs", "cos", "erf", "exp", "exp2", "floor", "log", "log2", "rsqrt", "sigmoid", "sin", "sqrt")
_LAYOUTS = ("Blocked", "DistributedLinear", "DotOperand", "NVMMADistributed", "NVMMAShared", "Slice", "SwizzledShared")


class Constant:
    """A compile-time constant: a plain number with a `value`."""

    def __new__(cls, x: Any) -> Any:
        if x is None:  # a layout: the emulation has none
            return x
        kind = int if isinstance(x, bool) else type(x)
        return type("Constant", (kind,), {"value": property(kind)})(x)


class Emulation:
    """The modules that replace Triton, and the machine that currently runs a program."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.machine: Machine | None = None
        self.launched: list[str] = []  # names of the kernels that ran
        self.modules = self._modules()

    @property
    def now(self) -> Machine:
        assert self.machine
        return self.machine

    def _modules(self) -> dict[str, ModuleType]:
        language = _module("triton.language", **TYPES, **self._common())
        language.core = SimpleNamespace(tensor_descriptor_base=Descriptor)  # type: ignore[attr-defined]
        language.tuple = tuple  # type: ignore[attr-defined]
        gl = _module("triton.experimental.gluon.language", **TYPES, **self._common(), **self._gluon())
        gl.shared_memory_descriptor = SimpleNamespace(reinterpret=Shared.seen_as)  # type: ignore[attr-defined]
        mbarrier = SimpleNamespace(
            MBarrierLayout=lambda: Barrier,
            init=lambda barrier, count: barrier.init(count),
            arrive=self._arrive,
            expect=self._expect,
            wait=lambda barrier, phase, pred=True: self.now.pause(lambda: not pred or barrier.over(int(phase))),
        )
        tma = SimpleNamespace(
            async_load=lambda *given: self.now.copy(*given),
            async_store=lambda *given: self.now.put(*given, adds=False),
            async_atomic_add=lambda *given: self.now.put(*given, adds=True),
            store_wait=lambda pendings: self.now.wait_for_stores(pendings),
        )
        hopper = _module(
            "triton.experimental.gluon.language.nvidia.hopper",
            fence_async_shared=lambda: None,
            mbarrier=mbarrier,
            tma=tma,
            warpgroup_mma=self._multiply,
            warpgroup_mma_wait=lambda left, deps: self.now.wait_for_products(left, deps),
        )
        runtime = SimpleNamespace(interpret=False, launch_enter_hook=None, launch_exit_hook=None)
        triton = _module(
            "triton", jit=self._jit(False), constexpr_function=lambda f: f, knobs=SimpleNamespace(runtime=runtime)
        )
        triton.language = language  # type: ignore[attr-defined]
        gluon = _module("triton.experimental.gluon", jit=self._jit(True))
        gluon.language = gl  # type: ignore[attr-defined]
        errors = _module("triton.runtime.errors", OutOfResources=type("OutOfResources", (Exception,), {}))
        descriptors = _module("triton.tools.tensor_descriptor", TensorDescriptor=Descriptor)
        hosts = _module("triton.experimental.gluon.nvidia.hopper", TensorDescriptor=Descriptor)
        libdevice = SimpleNamespace(isnan=lambda x: Value(torch.isnan(x.x)))
        found = [
            triton, language, gluon, gl, hopper, hosts, errors, descriptors,
            _module("triton.runtime", driver=None), _module("triton.experimental"), _module("triton.tools"),
            _module("triton.language.extra"), _module(
                "triton.language.extra.cuda", libdevice=libdevice, gdc_wait=lambda: None,
                gdc_launch_dependents=lambda: None,
            ),
            _module("triton.experimental.gluon.nvidia"), _module("triton.experimental.gluon.language.nvidia"),
        ]  # fmt: skip
        return {module.__name__: module for module in found}

    def _jit(self, is_gluon: bool) -> Callable[..., Any]:
        def jit(function: Callable[..., Any] | None = None, **more: Any) -> Any:
            return Kernel(self, function, is_gluon) if function else lambda f: Kernel(self, f, is_gluon)

        return jit

    def _arrive(self, barrier: Barrier, count: int) -> None:
        barrier.arrive(count)
        self.now.pause()

    def _expect(self, barrier: Barrier, count: Any) -> None:
        barrier.expect(int(count))

    def _assembly(self, text: str, constraints: str, given: Sequence[Any], *told: Any) -> Any:
        if "atom.acquire" in text:  # by the first thread
            place = Pointer(given[0].memory, given[0].place.x[:1])
            count = place.add(1).x
            hold(count == 0 or count >= 2**24, "programs that ran have told what they stored")
            return Value(count.expand(32))
        if "bulk.wait_group" in text:
            self.now.wait_for_stores(0)
            return Pointer(given[0].memory, given[0].place.x[:1]).add(2**24)
        return _assembly(text, given)

    def _multiply(self, a: Any, b: Any, acc: Any, *, use_acc: Any = True, is_async: bool = False) -> Product:
        assert is_async
        return self.now.multiply(a, b, acc, use_acc)

    def _common(self) -> dict[str, Any]:
        def elementwise(function: Callable[..., torch.Tensor]) -> Callable[..., Value]:
            return lambda *given: Value(function(*map(tensor, given)))

        return {
            "constexpr": Constant,
            "pointer_type": lambda dtype: dtype,
            "program_id": lambda axis: Value(tensor(self.now.program[axis])),
            "num_programs": lambda axis: Value(tensor(self.now.grid[axis])),
            "cdiv": lambda a, b: (a + b - 1) // b,
            "range": _counted,
            "static_range": range,
            "arange": lambda first, end, layout=None: Value(torch.arange(first, end, dtype=torch.int32)),
            "full": lambda shape, x, dtype, layout=None: Value(tensor(x).to(dtype.torch).expand(list(shape)).clone()),
            "zeros": lambda shape, dtype: Value(torch.zeros(list(shape), dtype=dtype.torch)),
            "load": lambda ptr, mask=None, other=None, **more: ptr.load(mask, other),
            "store": lambda ptr, x, mask=None, **more: ptr.store(x, mask),
            "atomic_add": lambda ptr, x, mask=None, sem=None: ptr.add(x, mask),
            "cast": _cast,
            "where": lambda keep, a, b: Value(torch.where(tensor(keep), _alike(a, b), _alike(b, a))),
            "maximum": _larger,
            "minimum": elementwise(torch.fmin),
            "PropagateNan": SimpleNamespace(ALL="all"),
            "clamp": lambda x, low, high, propagate_nan: Value(x.x.clamp(low, high)),
            "max": lambda x, axis=None: Value(x.x.amax(_axes(x, axis))),
            "min": lambda x, axis=None: Value(x.x.amin(_axes(x, axis))),
            "reduce_or": lambda x, axis: Value(functools.reduce(torch.bitwise_or, x.x.unbind(axis))),
            "sum": lambda x, axis=None: Value(x.x.sum(_axes(x, axis), dtype=_summed(x.x.dtype))),
            "fma": lambda a, b, c: Value(tensor(a) * plain(b) + plain(c)),
            "join": lambda a, b: Value(torch.stack((a.x, b.x), -1)),
            "expand_dims": lambda x, axis: Value(x.x.unsqueeze(axis)),
            "debug_barrier": lambda: None,
            "dot": _multiplied,
            "philox": _drawn,
            "cumsum": lambda x, axis: Value(x.x.cumsum(axis)),
            "associative_scan": _scanned,
            **{name: elementwise(getattr(torch, name)) for name in _ELEMENTWISE},
        }

    def _gluon(self) -> dict[str, Any]:
        def layout(*given: Any, **more: Any) -> None:
            return None

        layout.get_default_for = layout  # type: ignore[attr-defined]
        return {
            **{f"{name}Layout": layout for name in _LAYOUTS},
            "allocate_shared_memory": _allocated,
            "convert_layout": lambda x, layout, assert_trivial=False: x,
            "split": lambda x: (Value(x.x[..., 0]), Value(x.x[..., 1])),
            "inline_asm_elementwise": self._assembly,
            "warp_specialize": lambda tasks, warps, registers: self.now.specialize(tasks),
            "static_assert": lambda holds, told="": hold(holds, told),
            "num_warps": lambda: 4,
            "barrier": lambda: None,
        }


class Kernel:
    """A function in Triton or Gluon."""

    def __init__(self, emulation: Emulation, function: Callable[..., Any], is_gluon: bool) -> None:
        self.emulation, self.fn, self.gluon = emulation, function, is_gluon
        self.arg_names = list(inspect.signature(function).parameters)
        self.__name__ = function.__name__
        self.constants = {name for name, told in function.__annotations__.items() if told is Constant}

    def __call__(self, *given: Any, **more: Any) -> Any:
        return self.fn(*given, **more)

    def is_gluon(self) -> bool:
        return self.gluon

    def __getitem__(self, grid: Sequence[int]) -> Callable[..., Compiled]:
        def launch(**told: Any) -> Compiled:
            self._run((*grid, 1, 1)[:3], [told[name] for name in self.arg_names])
            return Compiled(self)

        return launch

    def _run(self, grid: Sequence[int], given: Sequence[Any]) -> None:
        self.emulation.launched.append(f"{self.fn.__module__.rpartition('.')[2]}.{self.__name__}")
        wrapped = [x if name in self.constants else _given(x) for name, x in zip(self.arg_names, given, strict=True)]
        programs = list(itertools.product(*map(range, grid)))
        self.emulation.chance.shuffle(programs)
        deterministic.fill_uninitialized_memory = False  # or each new tensor would be filled before it is computed
        try:
            for program in programs:
                self.emulation.machine = Machine(self.emulation.chance, program, grid)
                self.fn(*wrapped)
        finally:
            deterministic.fill_uninitialized_memory = True
        self.emulation.machine = None


class Compiled:
    """A launched kernel, as the launch cache keeps it."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel, self.run = kernel, None

    def __getitem__(self, grid: Sequence[int]) -> Callable[..., None]:
        return lambda *given, **more: self.kernel._run(grid, given)


def _module(name: str, **members: Any) -> ModuleType:
    found = ModuleType(name)
    found.__path__ = []
    vars(found).update(members)
    return found


def _given(x: Any) -> Any:
    """An argument as kernels receive it."""
    if isinstance(x, torch.Tensor):
        return Pointer.of(x)
    if isinstance(x, tuple):
        return tuple(map(_given, x))
    return Value(tensor(x)) if type(x) in (int, float, bool) else x


def _counted(first: Any, end: Any, step: Any = 1, num_stages: int | None = None) -> Iterator[Value]:
    return (Value(tensor(i)) for i in range(int(first), int(end), int(step)))


def _axes(x: Value, axis: int | None) -> tuple[int, ...]:
    return tuple(range(x.x.dim())) if axis is None else (axis,)


def _summed(dtype: torch.dtype) -> torch.dtype:
    return torch.int32 if dtype in (torch.bool, torch.int8, torch.int16) else dtype


def _alike(x: Any, other: Any) -> torch.Tensor:
    """A tensor; a plain number gets the type of the other value."""
    if isinstance(x, Value) or not isinstance(other, Value):
        return tensor(x)
    whole = isinstance(x, float) and not other.x.dtype.is_floating_point
    return torch.tensor(x, dtype=torch.float32 if whole else other.x.dtype)


def _cast(x: Any, dtype: DType, bitcast: bool = False) -> Any:
    if isinstance(x, Pointer):
        return x.as_type(dtype)
    return Value(tensor(x)).to(dtype, bitcast)


def _allocated(dtype: DType, shape: Sequence[int], layout: Any = None) -> Any:
    if layout is Barrier:
        return Barriers([Barrier() for _ in range(shape[0])])
    return shared(dtype, shape)


def _multiplied(a: Value, b: Value, acc: Value | None = None, input_precision: str = "", **more: Any) -> Value:
    product = a.x.float() @ b.x.float()
    return Value(product if acc is None else acc.x + product)


def _larger(a: Any, b: Any, propagate_nan: Any = None) -> Value:
    """The larger of two values; unless it propagates a NaN, that of a NaN and a number is the number."""
    return Value((torch.maximum if propagate_nan else torch.fmax)(*map(tensor, (a, b))))


def _drawn(seed: Value, *counter: Any) -> list[Value]:
    """Random words of 32 bits from a seed and four integers: Philox, the last argument gives the number of rounds."""
    *words, rounds = counter
    c0, c1, c2, c3 = (tensor(word).long() & 0xFFFFFFFF for word in words)
    key = [int(seed) & 0xFFFFFFFF, int(seed) >> 32]
    for _ in range(rounds):
        # both halves of a product of 64 bits, whose sign does not matter
        first, second = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1 = (second >> 32 & 0xFFFFFFFF) ^ c1 ^ key[0], second & 0xFFFFFFFF
        c2, c3 = (first >> 32 & 0xFFFFFFFF) ^ c3 ^ key[1], first & 0xFFFFFFFF
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return [Value(word) for word in torch.broadcast_tensors(c0, c1, c2, c3)]


def _scanned(x: Value, axis: int, combine: Callable[[Value, Value], Value]) -> Value:
    assert axis == 0
    found = [Value(x.x[0])]
    for one in x.x[1:]:
        found.append(combine(found[-1], Value(one)))
    return Value(torch.stack([one.x for one in found]))


def _assembly(text: str, given: Sequence[Any]) -> Any:
    """The effect of inline assembly, for the pieces that packages contain."""
    if "cvt.rn" in text:
        half = torch.bfloat16 if "bf16x2" in text else torch.float16
        low, high = (x.x.to(half).contiguous().view(torch.int16).to(torch.int32) for x in given)
        return Value((high << 16) | (low & 0xFFFF))
    if "red.relaxed" in text:
        x, place = given
        neighbour = Value(torch.arange(x.shape[-1], dtype=torch.int32) % 4)
        return (place + neighbour[None, :]).add(x)
    if "tanh" in text or "largest" in text:
        return Value(torch.tanh(given[0].x * given[1].x))
    if "vote" in text and len(given) == 2:
        return given[0] * given[1]
    if text.startswith(("or.b32", "and.b32")):
        bits, mask = given[0].to(TYPES["int32"], bitcast=True), int(text.rstrip(";").rpartition(" ")[2])
        return (bits | mask if text.startswith("or") else bits & mask).to(TYPES["float32"], bitcast=True)
    assert text.startswith(("mov.b32", "mov.b64")) or ("vote" in text and len(given) == 1), text
    return given[0]
