"""A pytest plugin with which suites take a quarter of the time in Triton's interpreter."""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any


def pytest_itemcollected(item: Any) -> None:
    """Called by pytest."""
    item.runtest = functools.partial(with_room, item.runtest)


def with_room(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function, with room next to this frame for its own frame and those of all its calls.

    Python maps memory for frames in chunks of 16 KiB, or as large as a frame needs, and unmaps a chunk as soon as it
    holds no frame: in a loop whose frame is at the end of a chunk, each call would map the next chunk and unmap it.
    """
    return function(*arguments)


# a frame of more than half of 1 MiB, so that 1 MiB is mapped for it
with_room.__code__ = with_room.__code__.replace(co_stacksize=2**19 // 8)


def pytest_collection_finish() -> None:
    """Called by pytest, when the tests have decided where kernels run."""
    if os.environ.get("TRITON_INTERPRET") == "1" and "triton" in sys.modules:
        hasten()


def hasten() -> None:
    """Makes kernels in the interpreter, and the computations they are compared with, take a quarter of the time."""
    import torch

    # the tensors are small: threads would mostly wait for each other, also in child processes
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    prepare_once()
    rewrite_once()
    skip_unused_checks()
    remember_types()
    call_directly()
    match_once()
    look_less()
    spread_late()


def prepare_once() -> None:
    """Makes the interpreter patch `triton.language` once per launch, not for each function that a kernel calls."""
    from triton.runtime import interpreter

    prepare = getattr(interpreter, "_patch_lang", None)
    if prepare is None or hasattr(prepare, "__wrapped__"):
        return
    prepared: set[str] = set()  # the modules whose `tl` and `tl.core` are patched in the current launch

    @functools.wraps(prepare)
    def patch_lang(function: FunctionType) -> Any:
        if function.__module__ in prepared:
            return None  # only the launch itself, which comes first, uses the return value
        scope = prepare(function)
        if not prepared:
            undo = scope.restore

            def restore() -> None:
                prepared.clear()
                undo()

            scope.restore = restore
        prepared.add(function.__module__)
        return scope

    interpreter._patch_lang = patch_lang


def rewrite_once() -> None:
    """Makes the interpreter rewrite a function once, not again for each package that has the same one."""
    from triton.runtime import interpreter

    rewriter = interpreter.FunctionRewriter
    rewrite = rewriter.rewrite_ast
    if hasattr(rewrite, "__wrapped__"):
        return
    # code as it was rewritten, by its own: equal code has the same lines, counted from its first one, in any file
    known: dict[tuple[CodeType, bytes], CodeType] = {}

    @functools.wraps(rewrite)
    def rewritten(self: Any) -> Any:
        function: FunctionType = self.fn
        own = function.__code__
        key = own.replace(co_firstlineno=0), own.co_linetable
        if key not in known:
            made = rewrite(self)
            if made is not function:  # which has no text
                first = made.__code__.co_firstlineno - own.co_firstlineno
                known[key] = made.__code__.replace(co_firstlineno=first)
            return made
        names = function.__globals__
        for name, value in vars(interpreter).items():  # rewritten code calls some of these
            names.setdefault(name, value)
        code = known[key]
        code = code.replace(co_filename=own.co_filename, co_firstlineno=own.co_firstlineno + code.co_firstlineno)
        made = FunctionType(code, names, function.__name__, function.__defaults__)
        made.__annotations__ = function.__annotations__
        return made

    rewriter.rewrite_ast = rewritten


def skip_unused_checks() -> None:
    """Makes the interpreter check for integer overflow only where it reports it: in its debug mode."""
    from triton.runtime import interpreter

    builder = interpreter.interpreter_builder
    if not builder.options.debug:
        builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)


def remember_types() -> None:
    """Makes the interpreter determine the type of a tile once, not again for each operation on it."""
    from triton.language import core, semantic
    from triton.runtime import interpreter

    if hasattr(core.block_type.__init__, "__wrapped__"):
        return
    find_dtype, make_type, make_tensor = interpreter._get_np_dtype, core.block_type.__init__, core.tensor.__init__
    broadcast = semantic.TritonSemantic.broadcast_impl_value
    # by a type's name, as pointer and tile types are not hashable
    dtypes: dict[str, object] = {}
    types: dict[tuple[object, ...], dict[str, Any]] = {}

    @functools.wraps(find_dtype)
    def np_dtype(type: Any) -> object:
        known = dtypes.get(type.name)
        if known is None:
            known = dtypes[type.name] = find_dtype(type)
        return known

    @functools.wraps(make_type)
    def block_type(self: Any, element_ty: Any, shape: Any) -> None:
        key = element_ty.name, getattr(element_ty, "address_space", 0), *shape
        if key in types:
            vars(self).update(types[key])
        else:
            make_type(self, element_ty, shape)
            types[key] = vars(self)

    @functools.wraps(make_tensor)
    def tensor(self: Any, handle: Any, type: Any) -> None:
        known = vars(type).get("of_tensors")
        if known is None:
            make_tensor(self, handle, type)
            type.of_tensors = self.shape, self.numel
        else:
            self.handle, self.type, self.dtype = handle, type, type.scalar
            self.shape, self.numel = known

    @functools.wraps(broadcast)
    def alike(self: Any, lhs: Any, rhs: Any) -> Any:
        one, other = getattr(lhs.type, "shape", ()), getattr(rhs.type, "shape", ())
        return (lhs, rhs) if one is other or [*one] == [*other] else broadcast(self, lhs, rhs)

    interpreter._get_np_dtype, core.block_type.__init__, core.tensor.__init__ = np_dtype, block_type, tensor
    semantic.TritonSemantic.broadcast_impl_value = alike


def call_directly() -> None:
    """Makes the interpreter call functions of `triton.language` without inspecting their keywords each time."""
    from triton.runtime import interpreter

    patch = getattr(interpreter, "_patch_attr", None)
    if patch is None or hasattr(patch, "__wrapped__"):
        return
    semantic = interpreter.interpreter_semantic

    @functools.wraps(patch)
    def patch_attr(owner: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
        function = getattr(member, "__wrapped__", member)  # its wrapper only checks for `_semantic`

        def called(*args: Any, **keywords: Any) -> Any:
            keywords["_semantic"] = semantic
            return function(*args, **keywords)

        scope.set_attr(owner, name, called)

    interpreter._patch_attr = patch_attr


def match_once() -> None:
    """Makes the interpreter match the types of two operands once, and leaves broadcasting to numpy."""
    from triton.language import core, semantic

    match, tensor = semantic.TritonSemantic.binary_op_type_checking_impl, core.tensor
    if hasattr(match, "__wrapped__"):
        return
    # by the types of two operands, or their values if they are numbers; for each operand: the tensor of a number, or
    # the matching type and whether to convert to it, or None if that is its own type
    known: dict[tuple[object, ...], list[Any]] = {}

    def named(x: Any) -> object:
        return x.type.name if type(x) is tensor else (type(x), x)

    @functools.wraps(match)
    def matched(self: Any, lhs: Any, rhs: Any, *checks: bool, **more: bool) -> Any:
        key = named(lhs), named(rhs), checks, *more.items()
        found = known.get(key)
        if found:
            return taken(self, lhs, found[0]), taken(self, rhs, found[1])
        both = match(self, lhs, rhs, *checks, **more)
        known[key] = [held(self, x, y) for x, y in zip((lhs, rhs), both, strict=True)]
        return both

    def held(self: Any, x: Any, matching: Any) -> Any:
        if type(x) is tensor:
            return None if x.type.name == matching.type.name else (matching.type, x.dtype != matching.dtype)
        return tensor(self.scalar_constant(x, matching.dtype).handle, matching.type)

    def taken(self: Any, x: Any, found: Any) -> Any:
        if found is None or type(found) is tensor:
            return x if found is None else found
        matching, convert = found
        return tensor((self.cast(x, matching.scalar) if convert else x).handle, matching)

    semantic.TritonSemantic.binary_op_type_checking_impl = matched


def look_less() -> None:
    """Makes the interpreter spend less time on the most frequent cases: identical types, numbers that fit."""
    from triton.language import core
    from triton.runtime import interpreter

    handle, equal, unwrap = interpreter.TensorHandle, core.dtype.__eq__, core._unwrap_if_constexpr
    if hasattr(handle.__init__, "__wrapped__"):
        return
    dtype, pointer, constant, tensor = core.dtype, core.pointer_type, core.constexpr, core.tensor

    @functools.wraps(handle.__init__)
    def held(self: Any, data: Any, dtype: Any, attr: Any = None) -> None:
        self.data, self.dtype, self.attr = data, dtype, {} if attr is None else attr
        if type(dtype) is not pointer and data.itemsize * 8 > dtype.primitive_bitwidth:
            self.__post_init__()

    @functools.wraps(equal)
    def same(self: Any, other: Any) -> bool:
        return self is other or (self.name == other.name if type(other) is dtype else equal(self, other))

    @functools.wraps(unwrap)
    def unwrapped(x: Any) -> Any:
        return x if type(x) is tensor else x.value if type(x) is constant else unwrap(x)

    handle.__init__, dtype.__eq__, core._unwrap_if_constexpr = held, same, unwrapped


def spread_late() -> None:
    """Makes the interpreter compute the addresses of a tile per row and column before it broadcasts them."""
    import numpy as np
    from triton.runtime import interpreter

    described, handle = interpreter.TensorDescHandle, interpreter.TensorHandle
    places = described.materialize_pointers
    if hasattr(places, "__wrapped__"):
        return

    @functools.wraps(places)
    def materialized(self: Any, offsets: Any) -> Any:
        assert len(offsets) == self.ndim
        size = self.base.dtype.element_ty.primitive_bitwidth // 8
        assert offsets[-1].data * size % 16 == 0, "block offset start must be 16-byte aligned"
        pointers, keep = self.base.data, True
        for axis, (offset, count) in enumerate(zip(offsets, self.block_shape, strict=True)):
            place = offset.data + np.arange(count).reshape(-1, *[1] * (self.ndim - 1 - axis))
            pointers = pointers + (size * place * self.strides[axis].data).astype(np.uint64)
            keep = keep & (place >= 0) & (place < self.shape[axis].data)
        return handle(pointers, self.base.dtype.scalar), keep

    described.materialize_pointers = materialized
