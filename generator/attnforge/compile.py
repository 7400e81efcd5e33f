"""Compiles the kernels of a package without a GPU and tells what the compiler made of them."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import click

from . import emit

_SHARED_LIMIT = {"sm_80": 163, "sm_86": 99, "sm_89": 99, "sm_90": 227, "sm_100": 227, "sm_120": 99}  # KiB
_MATRIX = re.compile(r"^\s*(?:@\S+\s+)?(wgmma\.mma_async|mma\.sync|tcgen05\.mma|v_s?mfma|v_wmma)", re.MULTILINE)


class Case(NamedTuple):
    """A kernel and all that the compiler must know of one launch of it."""

    name: str
    kernel: Any
    signature: dict[str, str]
    constants: dict[str, Any]
    options: dict[str, Any]


@dataclass(frozen=True)
class Made:
    """What became of one kernel on one architecture."""

    registers: int
    spills: int  # instructions that write to or read from local memory, or spilled registers on AMD
    shared: int  # bytes
    matrix: dict[str, int]


def targets(names: Sequence[str]) -> dict[str, Any]:
    """Triton's targets by name: sm_90 and the like, or gfx942 and the like."""
    # not later: what triton imports while this is set cannot be compiled
    os.environ.pop("TRITON_INTERPRET", None)
    from triton.backends.compiler import GPUTarget

    found: dict[str, Any] = {}
    for name in (n.strip() for n in names):
        if match := re.fullmatch(r"sm_(\d+)a?", name):
            found[name] = GPUTarget("cuda", int(match[1]), 32)
        elif re.fullmatch(r"gfx(9[0-9a-f]{2})", name):
            found[name] = GPUTarget("hip", name, 64)
        elif re.fullmatch(r"gfx1[0-9a-f]{3}", name):
            found[name] = GPUTarget("hip", name, 32)
        else:
            raise click.BadParameter(f"unknown architecture {name!r}; expected sm_90, gfx942, ...", param_hint="--arch")
    return found


def report(package: emit.Package, archs: dict[str, Any], head_dim: int, dtype: str) -> bool:
    """Prints a table of every kernel and architecture; False if one did not compile."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{package.name}, head size {head_dim}, {dtype}")
    for column in ("kernel", "arch", "registers", "spills", "shared KiB", "matrix instructions"):
        table.add_column(column, justify="left" if column in ("kernel", "arch", "matrix instructions") else "right")
    failures: list[str] = []
    with tempfile.TemporaryDirectory(prefix="attnforge-") as folder:
        for case in _cases(package, Path(folder), head_dim, dtype):
            for arch, target in archs.items():
                try:
                    made = _compile(case, target)
                except Exception as error:  # whatever the compiler raises; the other kernels are still of interest
                    table.add_row(case.name, arch, "failed")
                    failures.append(f"{case.name} on {arch}: {type(error).__name__}: {error}")
                    continue
                limit = _SHARED_LIMIT.get(arch)
                shared = f"{made.shared / 1024:.1f}" + (f" of {limit}" if limit else "")
                if limit and made.shared > limit * 1024:
                    failures.append(f"{case.name} on {arch}: needs {shared} KiB of shared memory")
                matrix = ", ".join(f"{count} {kind}" for kind, count in made.matrix.items())
                table.add_row(case.name, arch, str(made.registers), str(made.spills), shared, matrix)
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    for failure in failures:
        click.echo(failure, err=True)
    return not failures


def _cases(package: emit.Package, folder: Path, head_dim: int, dtype: str) -> list[Case]:
    """The package's own list of its kernels."""
    emit.write([package], folder / "generated")
    sys.path.insert(0, str(folder))
    try:
        launch = importlib.import_module(f"generated.{package.name}.launch")
    finally:
        sys.path.remove(str(folder))
    return [Case(*found) for found in launch.compile_cases(head_dim, dtype)]


def _compile(case: Case, target: Any) -> Made:
    import triton
    from triton.compiler import ASTSource

    # without it loads through pointers do not vectorise
    aligned = {
        (i,): [["tt.divisibility", 16]] for i, kind in enumerate(case.signature.values()) if kind.startswith("*")
    }
    source = ASTSource(case.kernel, signature=case.signature, constexprs=case.constants, attrs=aligned)
    compiled = triton.compile(source, target=target, options=case.options)
    if target.backend == "hip":
        text = compiled.asm["amdgcn"]
        registers, spills = (_number(rf"\.{name}:\s+(\d+)", text) for name in ("vgpr_count", "vgpr_spill_count"))
    else:
        text = compiled.asm["ptx"]
        registers, spills = _usage(compiled.asm["cubin"])
    matrix: dict[str, int] = {}
    for kind in _MATRIX.findall(text):
        matrix[kind] = matrix.get(kind, 0) + 1
    return Made(registers, spills, compiled.metadata.shared, matrix)


def _usage(cubin: bytes) -> tuple[int, int]:
    """Registers, and the instructions that spill, of a compiled kernel."""
    from triton.backends import nvidia

    tool = Path(nvidia.__file__).parent / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage, code = (
            subprocess.run([tool, flag, file.name], capture_output=True, text=True, check=True).stdout
            for flag in ("-res-usage", "-sass")
        )
    return _number(r"REG:(\d+)", usage), len(re.findall(r"\b(?:STL|LDL)\b", code))


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    assert found is not None, pattern
    return int(found[1])
