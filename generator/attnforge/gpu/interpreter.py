"""A plugin of pytest: suites take a quarter of the time in Triton's interpreter."""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
from types import FunctionType
from typing import Any


def pytest_collection_finish() -> None:
    """Called by pytest, once the tests have settled where kernels run."""
    if os.environ.get("TRITON_INTERPRET") == "1" and "triton" in sys.modules:
        hasten()


def hasten() -> None:
    """Has kernels in the interpreter, and what they are held against, take a quarter of the time."""
    import torch

    # the tensors are small: threads would wait for each other most of the time, in processes that are started, too
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    prepare_once()
    skip_unused_checks()
    remember_types()


def prepare_once() -> None:
    """Has the interpreter prepare `triton.language` once a launch, not again for each function that a kernel calls."""
    from triton.runtime import interpreter

    prepare = getattr(interpreter, "_patch_lang", None)
    if prepare is None or hasattr(prepare, "__wrapped__"):
        return
    prepared: set[str] = set()  # in the launch that runs, the modules whose `tl` and `tl.core` are

    @functools.wraps(prepare)
    def patch_lang(function: FunctionType) -> Any:
        if function.__module__ in prepared:
            return None  # a launch alone, which is the first to come, takes what is returned
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


def skip_unused_checks() -> None:
    """Has the interpreter work out whether whole numbers overflow where it tells: in its debug mode."""
    from triton.runtime import interpreter

    builder = interpreter.interpreter_builder
    if not builder.options.debug:
        builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)


def remember_types() -> None:
    """Has the interpreter work the type of a tile out once, not again for each operation on one."""
    from triton.language import core, semantic
    from triton.runtime import interpreter

    if hasattr(core.block_type.__init__, "__wrapped__"):
        return
    find_dtype, make_type, make_tensor = interpreter._get_np_dtype, core.block_type.__init__, core.tensor.__init__
    broadcast = semantic.TritonSemantic.broadcast_impl_value
    # by a type's name, as types of pointers and tiles have no hash
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
