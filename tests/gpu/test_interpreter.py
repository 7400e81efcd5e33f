"""Work that the interpreter does less often in tests, while kernels give the same results."""

from __future__ import annotations

import contextlib
import importlib.util
import resource
import traceback
from pathlib import Path
from types import FunctionType
from typing import Any

import devices
import pytest
import torch
import triton
import triton.language as tl
import unrewritten
from triton.language import core, semantic
from triton.runtime import interpreter as triton_interpreter

from attnforge.gpu import interpreter

GENERATED = Path(__file__).parents[2] / "generated"

pytestmark = pytest.mark.skipif(devices.GPU, reason="kernels run on the GPU")


@triton.jit
def _doubled(x):
    return x + x


@triton.jit
def _first(out_ptr, FAIL: tl.constexpr):
    x = _doubled(_doubled(tl.zeros([4], tl.float32) + 1.0))
    tl.store(out_ptr + tl.arange(0, 4), tl.sum(x) + tl.load(out_ptr + tl.arange(0, 4)))
    if FAIL:
        tl.load(x)


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The modules that were prepared, in order."""
    names: list[str] = []
    prepare = getattr(triton_interpreter._patch_lang, "__wrapped__", triton_interpreter._patch_lang)

    def noted(function: FunctionType) -> Any:
        names.append(function.__module__)
        return prepare(function)

    monkeypatch.setattr(triton_interpreter, "_patch_lang", noted)
    interpreter.prepare_once()
    return names


def test_each_module_is_prepared_once_a_launch(prepared: list[str]) -> None:
    before = tl.zeros, tl.arange, tl.load, tl.range, tl.tensor.__add__
    for _ in range(2):
        out = torch.zeros(4)
        _first[(3,)](out, False)
        assert out.tolist() == [48.0] * 4
        assert sorted(prepared) == sorted({__name__, "triton.language.standard"})
        assert (tl.zeros, tl.arange, tl.load, tl.range, tl.tensor.__add__) == before
        prepared.clear()


def test_a_launch_that_fails_leaves_nothing_prepared(prepared: list[str]) -> None:
    out = torch.zeros(4)
    with pytest.raises(triton_interpreter.InterpreterError):
        _first[(1,)](out, True)
    first = prepared.copy()
    _first[(1,)](out, False)
    assert prepared == 2 * first


def test_it_is_asked_for_twice_without_harm() -> None:
    interpreter.prepare_once()
    once = triton_interpreter._patch_lang
    interpreter.prepare_once()
    assert triton_interpreter._patch_lang is once


TWICE = """\
import triton
import triton.language as tl


@triton.jit
def twice(out_ptr, x, N: tl.constexpr = {first}):
    y = {value}
    tl.store(out_ptr + tl.arange(0, N), y + x)
    if x > 5:
        no_such_thing
"""


def test_a_function_that_two_packages_have_is_rewritten_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_they_were(monkeypatch, (triton_interpreter.FunctionRewriter, "rewrite_ast"))
    asked: list[str] = []
    rewrite = triton_interpreter.FunctionRewriter.rewrite_ast
    monkeypatch.setattr(
        triton_interpreter.FunctionRewriter, "rewrite_ast", lambda x: asked.append(x.fn.__module__) or rewrite(x)
    )
    interpreter.rewrite_once()
    for name, first, value, above, wanted in (
        ("rewritten_a", 4, "A", 0, [3.0] * 4), ("as_a", 8, "A", 7, [4.0] * 8), ("rewritten_b", 4, "B", 0, [5.0] * 4)
    ):  # fmt: skip
        path = tmp_path / f"{name}.py"
        path.write_text("\n" * above + TWICE.format(first=first, value=value))
        module = unrewritten.module(tmp_path, name)
        module.A, module.B = tl.constexpr(first // 4), tl.constexpr(3)
        out = torch.zeros(first)
        module.twice[(1,)](out, 2)
        assert out.tolist() == wanted
        with pytest.raises(triton_interpreter.InterpreterError) as told:
            module.twice[(1,)](out, 6)
        assert told.value.__cause__
        *_, last = traceback.extract_tb(told.value.__cause__.__traceback__)
        assert (last.filename, last.lineno, last.line) == (str(path), above + 10, "no_such_thing")
    assert asked == ["rewritten_a", "rewritten_b"]


@triton.jit
def _past_the_end(out_ptr):
    i = tl.arange(0, 4) + 2147483645
    tl.store(out_ptr + tl.arange(0, 4), i * 2)


@pytest.mark.parametrize("debug", [False, True])
def test_overflow_is_worked_out_only_where_it_is_told(debug: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    builder, options = triton_interpreter.interpreter_builder, triton_interpreter.InterpreterOptions(debug=debug)
    monkeypatch.setattr(builder, "options", options)
    found = []
    for _ in range(2):
        out = torch.zeros(4, dtype=torch.int32)
        told = pytest.raises(triton_interpreter.InterpreterError, match="overflow")
        with told if debug else contextlib.nullcontext():
            _past_the_end[(1,)](out)
        found.append(out.tolist())
        interpreter.skip_unused_checks()
    assert found[0] == found[1] and builder.options.sanitize_overflow == debug


def as_they_were(monkeypatch: pytest.MonkeyPatch, *owners: tuple[Any, str]) -> None:
    """Restores the interpreter's own functions for the duration of a test."""
    for owner, name in owners:
        own = getattr(owner, name)
        monkeypatch.setattr(owner, name, getattr(own, "__wrapped__", own))


@triton.jit
def _of_types(out_ptr, x_ptr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row, column = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    x = tl.load(x_ptr + row[:, None] * COLUMNS + column[None, :]).to(tl.float16)
    kept = (row[:, None] <= column[None, :]) & (tl.sum(x, 1) > 0)[:, None]
    y = tl.dot(tl.where(kept, x, 0.0), x.T).to(tl.float32) + row[:, None] * 2 - tl.max(x, 1)[None, :]
    tl.store(out_ptr + row[:, None] * ROWS + row[None, :], y)


def test_types_are_those_that_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    owners = (
        (triton_interpreter, "_get_np_dtype"),
        (core.block_type, "__init__"),
        (core.tensor, "__init__"),
        (semantic.TritonSemantic, "broadcast_impl_value"),
    )
    as_they_were(monkeypatch, *owners)
    asked: list[tuple[object, ...]] = []
    make = core.block_type.__init__
    monkeypatch.setattr(core.block_type, "__init__", lambda *given: asked.append(given) or make(*given))
    found, counts = [], []
    for remembered in (False, True):
        if remembered:
            interpreter.remember_types()
        for rows, columns in ((4, 8), (8, 4), (4, 8)):
            x = torch.arange(rows * columns, dtype=torch.float32).view(rows, columns) % 7 - 3
            out = torch.zeros(rows, rows)
            _of_types[(2,)](out, x, rows, columns)
            found.append(out)
        counts.append(len(asked))
    assert all(map(torch.equal, found[:3], found[3:]))
    assert found[0].any() and not torch.equal(found[0], found[1])
    assert counts[1] - counts[0] < counts[0] / 4


@triton.jit
def _of_operands(out_ptr, x_ptr, count, share, SIZE: tl.constexpr):
    row = tl.arange(0, SIZE)
    x = tl.load(x_ptr + row[:, None] * SIZE + row[None, :])
    whole = row[:, None].to(tl.int64) * count - 3 % (row[None, :] + 1)
    y = tl.where(whole < 2 * count, 1 - x, tl.where(row > 1, 0.0, -1.0)[None, :]) * 2 + -0.0 * x
    y += tl.clamp(x, -share, 1.0) / count + tl.minimum(share, x.to(tl.float16)) / 3.0 + tl.trans(x * 1) + (row * True)
    y += (whole // 2 + (7 >> row)[:, None]).to(tl.float32) - (count & 1) * share + tl.sum(x > 0, 1)[:, None] * 0.5
    tl.store(1 + out_ptr + row[:, None] * SIZE + row[None, :] - 1, y, mask=row[:, None] < count)


def test_operands_give_what_they_gave(monkeypatch: pytest.MonkeyPatch) -> None:
    matching = semantic.TritonSemantic, "binary_op_type_checking_impl"
    as_they_were(monkeypatch, matching, (triton_interpreter, "_patch_attr"))
    asked: list[tuple[object, ...]] = []
    match = getattr(*matching)
    monkeypatch.setattr(*matching, lambda *given, **more: asked.append(given) or match(*given, **more))
    found, counts = [], []
    for hastened in (False, True):
        if hastened:
            interpreter.call_directly()
            interpreter.match_once()
        for size, count, share in ((4, 3, 0.5), (8, 8, 0.25), (4, 4, -0.0)):
            x = torch.arange(size * size, dtype=torch.float32).view(size, size) % 7 - 3
            out = torch.zeros(size, size)
            _of_operands[(2,)](out, x, count, share, size)
            found.append(out)
        counts.append(len(asked))
    assert all(map(torch.equal, found[:3], found[3:]))
    assert all(x.any() for x in found)
    assert counts[1] - counts[0] < counts[0] / 2


@triton.jit
def _of_types_that_do_not_fit(out_ptr, SIZE: tl.constexpr):
    tl.store(out_ptr + tl.arange(0, SIZE), tl.arange(0, SIZE) + tl.zeros([2], tl.int32))


def test_operands_that_do_not_fit_are_refused_each_time() -> None:
    interpreter.match_once()
    for _ in range(2):
        with pytest.raises(triton_interpreter.InterpreterError, match="incompatible dimensions"):
            _of_types_that_do_not_fit[(1,)](torch.zeros(4), 4)


def _broad() -> None:
    """Takes a frame of a quarter of a chunk of Python's stack."""


_broad.__code__ = _broad.__code__.replace(co_stacksize=500)


def mapped(depth: int) -> int:
    """The pages newly mapped by 99 calls, made `depth` calls below this one."""
    if depth:
        return mapped(depth - 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(99):
        _broad()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_calls_have_room_however_deep_a_test_makes_them() -> None:
    assert max(map(mapped, range(300))) < 50


def test_it_is_told_when_it_was_asked_for_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's own functions, once compiled, call nothing that is interpreted."""
    monkeypatch.setattr(triton.language, "sum", triton.JITFunction.__new__(triton.JITFunction))
    runtime = GENERATED / "causal" / "runtime.py"
    spec = importlib.util.spec_from_file_location("late_runtime", runtime)
    assert spec and spec.loader
    with pytest.raises(RuntimeError, match=r"TRITON_INTERPRET=1 came after triton was imported.*before Python starts"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
