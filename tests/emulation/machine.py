"""A multiprocessor: warp groups that take turns, shared memory, barriers, and engines that copy and multiply."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from .values import DType, Misuse, Value, hold, type_of


class Stuck(Misuse):
    """All groups wait: a deadlock."""


class Barrier:
    """A barrier: each round ends after `count` arrivals, and once all expected bytes have arrived."""

    def __init__(self) -> None:
        self.count = self.left = self.bytes = self.round = 0

    def init(self, count: int) -> None:
        self.count = self.left = count

    def arrive(self, count: int) -> None:
        hold(self.left >= count, "more arrivals than a barrier waits for")
        self.left -= count
        self._end()

    def _end(self) -> None:
        if self.left == 0 and self.bytes == 0:
            self.round += 1
            self.left = self.count

    def expect(self, count: int) -> None:
        self.bytes += count
        self.arrive(1)

    def come(self, count: int) -> None:
        """Registers bytes that have arrived."""
        hold(self.bytes >= count, "bytes came that no barrier expects")
        self.bytes -= count
        self._end()

    def over(self, phase: int) -> bool:
        """Whether the round with this phase bit is over."""
        return self.round % 2 != phase


class Barriers:
    """Barriers in shared memory."""

    def __init__(self, made: Sequence[Barrier]) -> None:
        self.made = made

    def index(self, i: Any) -> Any:
        return self.made[int(i)]


class Shared:
    """A tile, or a buffer of tiles, in shared memory."""

    def __init__(self, memory: torch.Tensor) -> None:
        self.memory = memory

    @property
    def x(self) -> torch.Tensor:
        """Its values."""
        return self.memory

    @property
    def dtype(self) -> DType:
        return type_of(self.memory)

    @property
    def shape(self) -> list[int]:
        return list(self.x.shape)

    def index(self, i: Any) -> Shared:
        hold(0 <= int(i) < self.memory.shape[0], "no such tile of a buffer")
        return type(self)(self.memory[int(i)])

    def slice(self, start: int, length: int, dim: int = 0) -> Shared:
        return Shared(self.x.narrow(dim, start, length))

    def permute(self, order: Sequence[int]) -> Shared:
        return Shared(self.x.permute(*order))

    def reshape(self, shape: Sequence[int]) -> Shared:
        return Shared(self.x.view(list(shape)))

    def load(self, layout: Any = None) -> Value:
        return Value(self.x.clone())

    def store(self, x: Value) -> None:
        hold(
            list(x.x.shape) == self.shape and x.x.dtype == self.memory.dtype,
            "a tile of another shape or type is stored",
        )
        self._put(x.x)

    def _put(self, x: torch.Tensor) -> None:
        self.memory.copy_(x)

    def seen_as(self, dtype: DType, shape: Sequence[int], layout: Any) -> Shared:
        """The same memory, or its first part, as a tile of another shape; wide tiles are stored as strips."""
        flat = self.memory.reshape(-1).view(dtype.torch)
        count = math.prod(shape)
        *before, rows, columns = shape
        if columns <= 64:
            return Shared(flat[:count].view(list(shape)))
        return Strips(flat[:count].view([*before, columns // 64, rows, 64]))


class Strips(Shared):
    """Tiles that are stored as strips of 64 columns, or `turned`: their transposes."""

    def __init__(self, memory: torch.Tensor, turned: bool = False) -> None:
        super().__init__(memory)
        self.turned = turned

    @property
    def x(self) -> torch.Tensor:
        """A copy of their values, in rows and columns."""
        rows = self.memory.transpose(-2, -3).flatten(-2)
        return rows.transpose(-1, -2) if self.turned else rows

    def slice(self, start: int, length: int, dim: int = 0) -> Shared:
        hold(not self.turned and dim == 1 and start % 64 == length % 64 == 0, "a part that is no strip")
        strips = self.memory[start // 64 : (start + length) // 64]
        return Strips(strips) if len(strips) > 1 else Shared(strips[0])

    def permute(self, order: Sequence[int]) -> Shared:
        hold(tuple(order) == (1, 0), "another order of axes")
        return Strips(self.memory, not self.turned)

    def _put(self, x: torch.Tensor) -> None:
        hold(not self.turned, "a turned tile is stored")
        self.memory.copy_(x.unflatten(-1, (-1, 64)).transpose(-2, -3))


def shared(dtype: DType, shape: Sequence[int]) -> Shared:
    """A buffer that has not been written yet."""
    fill = float("nan") if dtype.is_floating() else -(2**30)
    return Shared(torch.full(list(shape), fill, dtype=dtype.torch))


LACKING = (1 << 29) - 1  # the bits of float64's mantissa that float32 lacks: a sum is rounded towards 0


class Product:
    """An asynchronous product: until it is waited for, it may read its operands and has no result."""

    def __init__(self, left: Any, right: Shared, below: Any, use_acc: Any) -> None:
        self.left, self.right, self.below, self.use_acc = left, right, below, use_acc
        self.made: Value | None = None
        shape = (left.shape[0], right.shape[1])
        hold(left.shape[1] == right.shape[0] and left.dtype is right.dtype, "operands that do not go together")
        hold(isinstance(below, Product) or tuple(below.shape) == shape, "a product on top of another shape")

    @property
    def shape(self) -> list[int]:
        return [self.left.shape[0], self.right.shape[1]]

    def make(self) -> None:
        below = self.below.made if isinstance(self.below, Product) else self.below
        (rows, columns), parts = self.shape, self.left.shape[1] // 16
        left = self.left.x.float().view(rows, parts, 16).transpose(0, 1)
        # 16 columns at a time, in numpy, which is faster here
        first, *others = (left @ self.right.x.float().view(parts, 16, columns)).double().numpy()
        total = first
        if self.use_acc:
            total, others = below.x.double().numpy(), [first, *others]
        bits = total.view(np.int64)
        with np.errstate(invalid="ignore"):  # of unwritten memory
            for product in others:
                total += product
                bits &= ~LACKING
        self.made = Value(torch.from_numpy(total).float())


def always() -> bool:
    """The condition of a group that only lets others go first."""
    return True


def shut() -> threading.Lock:
    """A lock that is already taken: a thread waits for it until another one releases it."""
    made = threading.Lock()
    made.acquire()
    return made


class Group:
    """A group of warps that does one of a program's tasks."""

    def __init__(self, machine: Machine, task: Callable[..., Any], given: Sequence[Any]) -> None:
        self.ready: Callable[[], bool] = always  # whether it may continue
        self.turn = shut()
        self.over = False
        self.products: list[Product] = []
        self.stores: list[Callable[[], None]] = []
        self.thread = threading.Thread(target=self._run, args=(machine, task, given), daemon=True)

    def _run(self, machine: Machine, task: Callable[..., Any], given: Sequence[Any]) -> None:
        self.turn.acquire()
        try:
            if machine.error is None:
                task(*given)
                hold(not self.products, "a product that nobody waits for")
        except BaseException as error:
            machine.error = machine.error or error
        self.over = True
        machine.pass_on()


class Machine:
    """Runs one program."""

    def __init__(self, chance: random.Random, program: Sequence[int], grid: Sequence[int]) -> None:
        self.chance, self.program, self.grid = chance, program, grid
        self.groups: list[Group] = []
        self.at_work: Group | None = None
        self.copies: list[Callable[[], None]] = []  # still to be done by the engines
        self.error: BaseException | None = None
        self.ended = shut()

    def specialize(self, tasks: Sequence[tuple[Callable[..., Any], Sequence[Any]]]) -> None:
        """Runs the tasks of warp groups concurrently."""
        self.groups = [Group(self, task, given) for task, given in tasks]
        for group in self.groups:
            group.thread.start()
        self.pass_on()
        self.ended.acquire()
        for group in self.groups:
            group.thread.join()
        if self.error:
            raise self.error
        for group in self.groups:
            for store in group.stores:
                store()

    def pass_on(self) -> None:
        """Lets the engines copy, and resumes one of the groups that need not wait."""
        while self.copies and self.chance.random() < 0.5:
            self.copies.pop(self.chance.randrange(len(self.copies)))()
        while True:
            there = [group for group in self.groups if not group.over]
            if not there:
                self.ended.release()
                return
            able = [group for group in there if self.error or group.ready()]
            if able:
                self.at_work = self.chance.choice(able)
                self.at_work.turn.release()
                return
            if self.copies:
                self.copies.pop(self.chance.randrange(len(self.copies)))()
            else:
                self.error = Stuck("every group of warps waits for another one")

    def pause(self, ready: Callable[[], bool] = always) -> None:
        """Lets others run, at least until the condition holds."""
        group = self.at_work
        if group is None:
            hold(ready(), "a program waits for nobody")
            return
        group.ready = ready
        self.pass_on()
        group.turn.acquire()
        if self.error:
            raise self.error

    # ---- engines

    def copy(self, source: Any, place: Sequence[Any], barrier: Barrier, tile: Shared) -> None:
        """Starts a copy of a tile into shared memory, which happens at some later time."""
        found = source.tile(place)

        def come() -> None:
            tile.x.copy_(found.reshape(tile.x.shape))
            barrier.come(found.numel() * found.element_size())

        self.copies.append(come)
        self.pause()

    def put(self, target: Any, place: Sequence[Any], tile: Shared, adds: bool) -> None:
        """Starts a store or an add of a tile of shared memory to memory, done by the time the group waits for it."""
        group = self.at_work
        assert group

        def come() -> None:
            part, there = target.part(place)
            hold(not adds or part.shape == tile.x.shape, "a tile outside of a tensor")
            stored = tile.x[there]
            part.copy_(part + stored if adds else stored)

        if self.chance.random() < 0.5:
            come()
        else:
            group.stores.append(come)
        self.pause()

    def wait_for_stores(self, left: int) -> None:
        group = self.at_work
        assert group
        while len(group.stores) > left:
            group.stores.pop(0)()

    def multiply(self, left: Any, right: Shared, below: Any, use_acc: Any = True) -> Product:
        made = Product(left, right, below, use_acc)
        group = self.at_work
        assert group
        group.products.append(made)
        return made

    def wait_for_products(self, left: int, wanted: Sequence[Any]) -> Any:
        """Waits until at most `left` products are pending, and returns those wanted; operands are read only now."""
        group = self.at_work
        assert group
        self.pause()
        while len(group.products) > left:
            group.products.pop(0).make()
        found = []
        for product in wanted:
            if not isinstance(product, Product):  # the placeholder of a program that needs no product
                found.append(product)
                continue
            hold(product.made is not None, "a product is taken before it is there")
            found.append(product.made)
        return found[0] if len(found) == 1 else tuple(found)


class Descriptor:
    """Describes a tensor to the engines that copy its tiles; entries outside the tensor are zeros."""

    def __init__(self, base: Any, shape: Any, strides: Any, block_shape: Any, layout: Any = None) -> None:
        self.base, self.shape, self.strides, self.layout = base, list(shape), list(strides), layout
        self.block_shape = list(block_shape)
        self.block_type = SimpleNamespace(
            nbytes=math.prod(self.block_shape) * base.element_size(), shape=self.block_shape
        )

    @property
    def dtype(self) -> DType:
        return type_of(self.base)

    def _whole(self) -> torch.Tensor:
        return self.base.detach().as_strided(self.shape, self.strides)  # type: ignore[no-any-return]

    def _cut(self, place: Sequence[Any]) -> tuple[list[slice], list[slice]]:
        hold(int(place[-1]) * self.base.element_size() % 16 == 0, "a tile that does not begin on a 16-byte boundary")
        inside, there = [], []
        for first, length, size in zip(map(int, place), self.block_shape, self.shape, strict=True):
            low, high = max(first, 0), min(first + length, size)
            inside.append(slice(low, max(high, low)))
            there.append(slice(low - first, max(high, low) - first))
        return inside, there

    def tile(self, place: Sequence[Any]) -> torch.Tensor:
        inside, there = self._cut(place)
        known = self._whole()[tuple(inside)]
        if list(known.shape) == self.block_shape:
            return known.clone()
        found = torch.zeros(self.block_shape, dtype=self.base.dtype)
        found[tuple(there)] = known
        return found

    def part(self, place: Sequence[Any]) -> tuple[torch.Tensor, tuple[slice, ...]]:
        """The memory of a tile, and the part of the tile that is inside the tensor."""
        inside, there = self._cut(place)
        return self._whole()[tuple(inside)], tuple(there)

    def load(self, place: Sequence[Any]) -> Value:
        return Value(self.tile(place))
