"""tanh of a tile of scores in kernels for Hopper GPUs: its assembly, run instruction by instruction in float32."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

TEMPLATE = Path(__file__).parents[2] / "templates" / "hopper" / "tanh.jinja"
ULP = 2.0**-24  # of numbers from 0.5 to 1
float32 = np.float32


def functions() -> dict[str, Any]:
    """The functions of the template, which write assembly."""
    plain = SimpleNamespace(constexpr_function=lambda function: function, jit=lambda function: None)
    found: dict[str, Any] = {"triton": plain, "gluon": plain, "gl": SimpleNamespace(constexpr=None)}
    exec(TEMPLATE.read_text(), found)
    return found


# the hardware's approximations, with the largest error that its manual allows
OFF: dict[str, Callable[[Any], Any]] = {
    "ex2": lambda x: 2.0 ** x.astype(float) * (1 + 2.0**-22),
    "rcp": lambda x: np.divide(1 - 2.0**-23, x.astype(float)),
}
OPERATIONS: dict[str, Callable[..., Any]] = {
    "mov": lambda x: x,
    "abs": np.abs,
    "max": np.fmax,
    "mul": lambda x, y: x.astype(float) * y,
    "add": lambda x, y: x.astype(float) + y,
    "sub": lambda x, y: x.astype(float) - y,
    "fma": lambda x, y, z: x.astype(float) * y + z,
    "copysign": lambda sign, x: np.copysign(x, sign),
    **OFF,
}


def worked_out(lines: list[str], inputs: dict[str, Any]) -> dict[str, Any]:
    """The registers after running some assembly, each an array over the threads of a warp."""
    registers = dict(inputs)
    threads = next(iter(inputs.values())).shape

    def value(text: str) -> Any:
        known = registers.get(text)
        return np.full(threads, float(text), float32) if known is None else known

    at = 0
    while at < len(lines):
        line = lines[at].rstrip(";")
        at += 1
        if line in ("{", "}") or line.startswith(".reg") or line.endswith(":"):
            continue
        if jump := re.fullmatch(r"(?:@(\w+) )?bra\.uni (\w+)", line):
            if jump[1] is None or registers[jump[1]]:
                at = lines.index(f"{jump[2]}:")
            continue
        operation, operands = line.split(" ", 1)
        to, *read = (x.strip() for x in operands.split(","))
        kind = operation.split(".")[0]
        if kind == "setp":
            compared = {"gt": np.greater, "lt": np.less}[operation.split(".")[1]]
            registers[to] = compared(value(read[0]), value(read[1]))
        elif kind == "vote":
            registers[to] = bool(registers[read[0]].any())
        elif kind == "selp":
            registers[to] = np.where(registers[read[2]], value(read[0]), value(read[1]))
        else:
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                registers[to] = float32(OPERATIONS[kind](*map(value, read)))
    return registers


def tanh_by(function: str, x: Any, factor: float = 1.0) -> Any:
    """tanh of x * factor by the assembly that one of the functions writes."""
    known = functions()
    lines = [f"mov.f32 factor, {factor};", *known["numbers"](), *known[function]("x", "y")]
    return worked_out(lines, {"x": x})["y"]


def scores(most: float) -> Any:
    rows = np.linspace(-most, most, 200_001, dtype=float32)
    return np.concatenate([rows, float32([1e-30, -1e-30, 1e-4, 0.0, -0.0])])


def off(found: Any, x: Any) -> float:
    """The largest error, in units in the last place of the exact value."""
    right = np.tanh(x.astype(float))
    return float(np.max(np.abs(found - right) / np.maximum(np.spacing(np.abs(right).astype(float32)), 1e-45)))


@pytest.mark.parametrize("factor", [1.0, -1.0, 2.0**-9, 64.0])
def test_it_is_right_to_two_units_near_zero(factor: float) -> None:
    x = scores(0.55)
    assert off(tanh_by("near_zero", x / float32(factor), factor), x) < 2


@pytest.mark.parametrize("factor", [1.0, -(2.0**-9), 2.0**-14])
def test_it_is_right_to_a_few_units_anywhere(factor: float) -> None:
    x = np.concatenate([scores(12.0), float32([1e30, -1e30, np.inf, -np.inf])])
    assert off(tanh_by("anywhere", x / float32(factor), factor), x) < 6


@pytest.mark.parametrize("factor", [0.0, 1e-5, 1e-30, -1e-12])
def test_a_factor_whose_powers_vanish_loses_no_more_than_the_exponential_does(factor: float) -> None:
    x = scores(3.0) / float32(factor or 1)
    right = np.tanh(x.astype(float) * factor)
    assert np.max(np.abs(tanh_by("anywhere", x[np.isfinite(x)], factor) - right[np.isfinite(x)])) < 6 * ULP


def lines_of(count: int, at_once: int = 64) -> list[str]:
    """The assembly for `count` scores, whose last operand is the factor, here 1."""
    lines: list[str] = functions()["tanh_of_scores"](count, at_once).replace(f"${2 * count}", "1.0").split("\n")
    return lines


def test_what_is_no_number_stays_none() -> None:
    for beside in (0.1, 3.0):
        found = worked_out(lines_of(4), {f"${4 + i}": float32([np.nan, beside]) for i in range(4)})
        assert np.isnan(found["$0"]).tolist() == [True, False]


@pytest.mark.parametrize(("count", "at_once"), [(1, 64), (7, 64), (32, 64), (32, 32), (40, 32)])
def test_a_score_has_the_same_bits_beside_any_others(count: int, at_once: int) -> None:
    x = np.random.default_rng(0).uniform(-0.55, 0.55, (count, 32)).astype(float32)
    alone = worked_out(lines_of(count, at_once), {f"${count + i}": x[i] for i in range(count)})
    beside = x.copy()
    beside[-1, 5] = 3.0
    found = worked_out(lines_of(count, at_once), {f"${count + i}": beside[i] for i in range(count)})
    assert found["outer"].size and "outer" not in alone  # both branches were taken
    for i in range(count):
        same = found[f"${i}"] == alone[f"${i}"]
        assert same.all() if i < count - 1 else same.sum() == 31 and abs(found[f"${i}"][5] - np.tanh(3.0)) < 8 * ULP
