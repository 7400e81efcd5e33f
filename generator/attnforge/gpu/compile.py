"""Compiles the kernels of a package without a GPU and reports the resources that they use."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, NamedTuple

import click

from ..source.messages import Refused, say
from . import machine_code
from .cases import Case


class _Unit(NamedTuple):
    """Resources that programs share on a multiprocessor."""

    registers: int  # of 32 bits
    threads: int
    programs: int
    shared: int  # KiB, for all programs
    largest: int  # KiB, for one program
    reserved: int  # KiB reserved for each program in addition


_UNITS = {
    "sm_80": _Unit(65536, 2048, 32, 164, 163, 1),
    "sm_86": _Unit(65536, 1536, 16, 100, 99, 1),
    "sm_89": _Unit(65536, 1536, 24, 100, 99, 1),
    "sm_90": _Unit(65536, 2048, 32, 228, 227, 1),
    "sm_100": _Unit(65536, 2048, 32, 228, 227, 1),
    "sm_120": _Unit(65536, 1536, 24, 100, 99, 1),
    "gfx942": _Unit(131072, 2048, 16, 64, 64, 0),
}
ARCHITECTURES = (
    "sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_100a", "sm_103", "sm_120", "sm_120a", "sm_121",
    "gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1101", "gfx1200", "gfx1201",
)  # fmt: skip
# error messages of triton's C++ code, and of the assembler
_COMPLAINT = re.compile(r"(?m)(?:^|[:;] |ptxas )(?:error|fatal) *: (?P<said>.+)|(?P<assertion>Assertion .+ failed)")
_MATRIX = re.compile(r"^\s*(?:@\S+\s+)?(wgmma\.mma_async|mma\.sync|tcgen05\.mma|v_s?mfma|v_wmma)", re.MULTILINE)


class NotCompiled(Exception):
    """The reason why a kernel does not compile, in one line."""


@dataclass(frozen=True)
class Made:
    """The result of compiling one kernel for one architecture."""

    registers: int  # per thread
    spills: int  # instructions that write to or read from local memory, or spilled registers on AMD
    shared: int  # bytes
    threads: int
    matrix: dict[str, int]
    warnings: tuple[str, ...]  # of the assembler, and about its output

    def programs(self, arch: str) -> tuple[int, str] | None:
        """The number of programs that fit on a multiprocessor, and the resource that limits it; None if unknown."""
        unit = _unit(arch)
        if unit is None:
            return None
        granules = -(-self.registers // 8) * 8 * self.threads
        room = {"programs": unit.programs, "threads": unit.threads // self.threads}
        room["registers"] = unit.registers // max(granules, 1)
        room["shared memory"] = unit.shared * 1024 // max(self.shared + unit.reserved * 1024, 1)
        scarce = min(room, key=lambda name: room[name])
        return room[scarce], scarce

    def fits(self, arch: str) -> bool:
        """True if the shared memory of one program fits, or if the limit is unknown."""
        unit = _unit(arch)
        return unit is None or self.shared <= unit.largest * 1024


def _unit(arch: str) -> _Unit | None:
    return _UNITS.get(arch.removesuffix("a"))


def targets(names: Sequence[str]) -> dict[str, Any]:
    """Triton's targets by name: sm_90 and the like, or gfx942 and the like."""
    # before triton is imported: kernels that it imports while this is set cannot be compiled
    os.environ.pop("TRITON_INTERPRET", None)
    try:
        from triton.backends.compiler import GPUTarget
    except ImportError:
        raise Refused("this needs triton: pip install triton") from None

    found: dict[str, Any] = {}
    for name in (n.strip() for n in names):
        if name not in ARCHITECTURES:
            known = ", ".join(ARCHITECTURES)
            raise click.BadParameter(f"unknown architecture {name!r}; expected some of {known}", param_hint="--arch")
        if name.startswith("sm_"):
            found[name] = GPUTarget("cuda", int(name.removeprefix("sm_").removesuffix("a")), 32)
        else:
            found[name] = GPUTarget("hip", name, 64 if name.startswith("gfx9") else 32)
    return found


_LEFT = ("kernel", "arch", "tile", "matrix instructions")
_COLUMNS = (*_LEFT[:3], "registers", "spills", "shared KiB", "programs per SM, by", *_LEFT[3:])
_LEGEND = "Tiles are those that a call gets. Spills: instructions to and from local memory; on AMD, registers."


def report(title: str, found: Mapping[str, Sequence[Sequence[Case]]], archs: Mapping[str, Any]) -> bool:
    """Prints a table of all kernels, each with the first of its tiles that fits; False if one did not compile."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, caption=_LEGEND)
    for column in _COLUMNS:
        table.add_column(column, justify="left" if column in _LEFT else "right")
    failures: list[str] = []
    warnings: list[str] = []
    for arch, target in archs.items():
        for ladder in found[arch]:
            case, made = _fitting(ladder, arch, target)
            if isinstance(made, NotCompiled):  # the other kernels are still of interest
                table.add_row(case.name, arch, case.tile, "failed")
                failures.append(f"{case.name} on {arch} does not compile with {case.tile}: {made}")
                continue
            unit, programs = _unit(arch), made.programs(arch)
            shared = f"{made.shared / 1024:.1f}" + (f" of {unit.largest}" if unit else "")
            matrix = ", ".join(f"{count} {kind}" for kind, count in made.matrix.items())
            room = "" if programs is None else f"{programs[0]}, {programs[1]}"
            table.add_row(case.name, arch, case.tile, str(made.registers), str(made.spills), shared, room, matrix)
            warnings += [f"{case.name} on {arch}: {warning}" for warning in made.warnings]
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    for warning in warnings:
        click.echo(warning)
    for failure in failures:
        say(failure)
    return not failures


def _fitting(ladder: Sequence[Case], arch: str, target: Any) -> tuple[Case, Made | NotCompiled]:
    """The first launch whose shared memory fits, or else the last one, and the result of compiling it."""
    for case in ladder:
        try:
            made = measured(case, target)
        except NotCompiled as error:
            return case, error
        if made.fits(arch):
            break
    return case, made


def source(case: Case, target: Any) -> Any:
    """A case in the form that the compiler takes."""
    from triton.compiler import ASTSource

    signature: dict[str, Any] = dict(case.signature)
    constants: dict[Any, Any] = dict(case.constants)
    # without known alignment, loads through pointers are not vectorised
    aligned: dict[tuple[int, ...], list[list[Any]]] = {}
    for i, (name, kind) in enumerate(case.signature.items()):
        if kind.startswith("tuple"):
            signature[name] = tuple(kind.removeprefix("tuple<").removesuffix(">").split(","))
            aligned[i, 0] = [["tt.divisibility", 16]]
        if kind.startswith("*") or name in case.aligned:
            aligned[(i,)] = [["tt.divisibility", 16]]
        if kind.startswith("tensordesc") and not _copies_tiles(target):
            dtype, axes = kind.removeprefix("tensordesc<").split("[")[0], kind.count(",")
            if axes == 0:
                signature[name], aligned[(i,)] = f"*{dtype}", [["tt.divisibility", 16]]
                continue
            signature[name] = (f"*{dtype}", "constexpr", *["i32"] * axes)
            constants[i, 1], aligned[i, 0] = case.width, [["tt.divisibility", 16]]
    if case.gluon:
        return _in_gluon(case, signature, aligned)
    return ASTSource(case.kernel, signature=signature, constexprs=constants, attrs=aligned)


def _in_gluon(case: Case, signature: dict[str, Any], aligned: dict[tuple[int, ...], list[list[Any]]]) -> Any:
    """A Gluon kernel in the form that the compiler takes: descriptors also have the shared memory layout of tiles."""
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon._runtime import GluonASTSource

    for name, kind in case.signature.items():
        if kind.startswith("tensordesc"):
            dtype, sizes = kind.removeprefix("tensordesc<").removesuffix("]>").split("[")
            shape = [int(size) for size in sizes.split(",")]
            element = {"bf16": gl.bfloat16, "fp16": gl.float16}.get(dtype)
            plain = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=2)
            layout = gl.NVMMASharedLayout.get_default_for(shape, element) if element else plain
            signature[name] = f"tensordesc<{dtype}{shape},{layout!r}>"
    return GluonASTSource(case.kernel, signature, case.constants, aligned)


def compiled(case: Case, target: Any) -> tuple[Any, str]:
    """The compiled case, with its intermediate texts, and the assembler's output; or raises NotCompiled."""
    import triton
    from triton import knobs

    # a kernel from the cache comes without the assembler's output
    knobs.compilation.always_compile = knobs.nvidia.dump_ptxas_log = True
    with contextlib.redirect_stdout(io.StringIO()) as said, tempfile.TemporaryFile("w+", errors="replace") as written:
        try:
            with _stderr_into(written):
                made = triton.compile(source(case, target), target=target, options=case.options)
        except Exception as error:  # whatever the compiler raises
            raise NotCompiled(why(error, _text(written))) from error
        if text := _text(written).rstrip("\n"):
            say(text)
    return made, said.getvalue()


@contextlib.contextmanager
def _stderr_into(file: IO[str]) -> Iterator[None]:
    """Redirects standard error to a file, also for libraries that bypass Python's `sys.stderr`."""
    sys.stderr.flush()
    before = os.dup(2)
    os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(before, 2)
        os.close(before)


def _text(file: IO[str]) -> str:
    """All that was written to a file."""
    file.seek(0)
    return file.read()


def why(error: BaseException, written: str) -> str:
    """The line that says why a kernel does not compile."""
    while error.__cause__:
        error = error.__cause__
    if complaint := _COMPLAINT.search(f"{written}\n{error}"):
        return complaint["said"] or complaint["assertion"]
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[-1].strip()}"


def _copies_tiles(target: Any) -> bool:
    """True if the GPU copies tiles in hardware, so kernels get tensor descriptors; else pointers and strides."""
    return bool(target.backend == "cuda" and target.arch >= 90)


def measured(case: Case, target: Any) -> Made:
    """The result of compiling a case."""
    return figures(*compiled(case, target), target)


def figures(made: Any, log: str, target: Any) -> Made:
    """The figures of a kernel that `compiled` returned, with its log of the assembler."""
    if target.backend == "hip":
        text = made.asm["amdgcn"]
        registers, spills = (_number(rf"\.{name}:\s+(\d+)", text) for name in ("vgpr_count", "vgpr_spill_count"))
        lost: list[str] = []
    else:
        text = made.asm["ptx"]
        registers, spills, lost = _assembled(made.asm["cubin"], log, apart="setmaxnreg" in text)
    matrix: dict[str, int] = {}
    for kind in _MATRIX.findall(text):
        matrix[kind] = matrix.get(kind, 0) + 1
    threads = made.metadata.num_warps * target.warp_size
    warnings = [
        line.split(":", 1)[1].strip() for line in log.splitlines() if re.match(r"ptxas (warning|info *: *\(C)", line)
    ]
    if lost:
        warnings.append(f"{', '.join(lost)} may be read before they are set, which makes results wrong")
    return Made(registers, spills, made.metadata.shared, threads, matrix, tuple(dict.fromkeys(warnings)))


def _assembled(cubin: bytes, log: str, *, apart: bool) -> tuple[int, int, list[str]]:
    """Registers of a compiled kernel, its spills, and registers left unset if its warps are specialized (`apart`)."""
    used, stacks = re.search(r"Used (\d+) registers", log), re.findall(r"(\d+) bytes stack frame", log)
    # nothing spills without a stack; disassembling takes as long as assembling
    bare = used is not None and bool(stacks) and not any(map(int, stacks))
    registers = int(used[1]) if used and bare else _number(r"REG:(\d+)", machine_code.usage(cubin))
    if bare and not apart:
        return registers, 0, []
    code = machine_code.disassembled(cubin)
    return registers, len(re.findall(r"\b(?:STL|LDL)\b", code)), machine_code.unset(code) if apart else []


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    assert found is not None, pattern
    return int(found[1])
