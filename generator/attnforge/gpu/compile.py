"""Compiles the kernels of a package without a GPU and tells what the compiler made of them."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

import click

from ..plan import tiles
from ..plan.families.decode import SPLITS
from ..plan.parameters import Kernel
from ..plan.plan import Plan
from ..plan.tiles import Table, Tile
from ..render import emit


class _Unit(NamedTuple):
    """Resources that programs share on a multiprocessor."""

    registers: int  # of 32 bits
    threads: int
    programs: int
    shared: int  # KiB, of all programs
    largest: int  # KiB, of one program
    reserved: int  # KiB that each program takes beside its own


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
# of the parts of triton that are written in C++, and of the assembler
_COMPLAINT = re.compile(r"(?m)(?:^|[:;] |ptxas )(?:error|fatal) *: (?P<said>.+)|(?P<assertion>Assertion .+ failed)")
_MATRIX = re.compile(r"^\s*(?:@\S+\s+)?(wgmma\.mma_async|mma\.sync|tcgen05\.mma|v_s?mfma|v_wmma)", re.MULTILINE)


class NotCompiled(Exception):
    """The reason why a kernel does not compile, in one line."""


class Case(NamedTuple):
    """A kernel and all that the compiler must know of one launch of it."""

    name: str
    kernel: Any
    signature: dict[str, str]
    constants: dict[str, Any]
    options: dict[str, Any]
    width: int = 0  # head size of the tensors that tiles are loaded of
    aligned: frozenset[str] = frozenset()  # numbers that are multiples of 16, beside pointers

    @property
    def tile(self) -> str:
        """Queries and keys of its tile, where it has both, and what the compiler is told."""
        sizes = [str(self.constants[name]) for name in ("BLOCK_M", "BLOCK_N") if name in self.constants]
        told = [f"{value} {name.removeprefix('num_')}" for name, value in self.options.items()]
        return ", ".join([" x ".join(sizes)] * (len(sizes) == 2) + told)


@dataclass(frozen=True)
class Made:
    """The result of compiling one kernel for one architecture."""

    registers: int  # of a thread
    spills: int  # instructions that write to or read from local memory, or spilled registers on AMD
    shared: int  # bytes
    threads: int
    matrix: dict[str, int]
    warnings: tuple[str, ...]  # of the assembler

    def programs(self, arch: str) -> tuple[int, str] | None:
        """The number of programs that fit on a multiprocessor, and the resource that limits it; None where unknown."""
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
        """True if one program finds the shared memory that it wants, as far as that is known."""
        unit = _unit(arch)
        return unit is None or self.shared <= unit.largest * 1024


def _unit(arch: str) -> _Unit | None:
    return _UNITS.get(arch.removesuffix("a"))


def targets(names: Sequence[str]) -> dict[str, Any]:
    """Triton's targets by name: sm_90 and the like, or gfx942 and the like."""
    # not later: what triton imports while this is set cannot be compiled
    os.environ.pop("TRITON_INTERPRET", None)
    try:
        from triton.backends.compiler import GPUTarget
    except ImportError:
        raise click.UsageError("this needs triton: pip install triton") from None

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


class Cases(NamedTuple):
    """The kernels of a package, for calls of one head size and type."""

    planned: Plan
    kernels: Any  # the module
    head_dim: int
    dtype: str
    decoding: Any = None  # the module of the kernels of decoding, if there are any

    def of(self, arch: str) -> list[Case]:
        """One launch of each kernel with the tiles that an architecture gets first."""
        return [ladder[0] for ladder in self.ladders(arch)]

    def ladders(self, arch: str) -> list[list[Case]]:
        """Launches of each kernel with the tiles of an architecture, the best first; the last takes least room."""
        table = self.planned.tables.of(arch, self.dtype)
        found = [[self.case(x, tile) for tile in self.tiles(x, table)] for x in self.planned.kernels.all]
        decode = self.planned.decode if self.head_dim <= max(SPLITS["16BIT"]) else None
        return found + ([[self._decoding(x)] for x in decode.kernels] if decode else [])

    def tiles(self, kernel: Kernel, table: Table) -> tuple[Tile, ...]:
        """The tiles of a kernel; those without a row in the table have few of them, and they are small."""
        warps = 8 if kernel.name == "rotate" and self.head_dim > 256 else 4
        sizes = table.get(kernel.name, {tiles.LATENT: (Tile(64, 64, warps, 3),)})
        return next(sizes[size] for size in sizes if self.head_dim <= size)

    def case(self, kernel: Kernel, tile: Tile) -> Case:
        """A launch with a tile."""
        return _case(kernel, getattr(self.kernels, kernel.name), self.planned, self.head_dim, self.dtype, tile)

    def _decoding(self, kernel: Kernel) -> Case:
        """A launch of a kernel of decoding: one query over pages."""
        assert self.planned.decode
        tile = self.planned.decode.tile(self.head_dim, self.dtype == "fp32") if kernel.step else Tile(16, 16, 4, 2)
        case = _case(kernel, getattr(self.decoding, kernel.name), self.planned, self.head_dim, self.dtype, tile)
        strides = (p.name for p in kernel.parameters if p.type == "i32" and not p.varies)
        scales = [p.name for p in kernel.parameters if p.name.endswith("_scale_ptr")]  # of float8 alone
        return case._replace(
            signature=case.signature | dict.fromkeys(scales, "constexpr"),
            constants=case.constants | dict.fromkeys(scales),
            aligned=frozenset(strides),
        )


def cases(package: emit.Package, planned: Plan, folder: Path, head_dim: int, dtype: str) -> Cases:
    """The kernels of a package, which is written into the folder."""
    emit.write([package], folder / "generated")
    return written(planned, folder, head_dim, dtype)


def written(planned: Plan, folder: Path, head_dim: int, dtype: str) -> Cases:
    """The kernels of a package that stands in the folder."""
    sys.path.insert(0, str(folder))
    try:
        kernels = importlib.import_module(f"generated.{planned.spec.name}.kernels")
        name = f"generated.{planned.spec.name}.decode_kernels"
        decoding = importlib.import_module(name) if planned.decode else None
    finally:
        sys.path.remove(str(folder))
    return Cases(planned, kernels, head_dim, dtype, decoding)


def _case(kernel: Kernel, function: Any, planned: Plan, head_dim: int, dtype: str, tile: Tile) -> Case:
    rope = planned.spec.rope
    half = (rope.dims if rope and rope.dims else head_dim) // 2
    columns = min(max(16, _power_of_2(head_dim)), tiles.WIDEST)
    rest = max(head_dim - tiles.WIDEST, 0)
    known = {"GROUP": 4, "D": head_dim, "DV": head_dim - rest, "PAIRS": half, "REST": max(16, _power_of_2(rest))}
    known |= {"BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n, "BLOCK_D": columns, "BLOCK_DV": columns}
    known |= {"TILE_AXIS": 1, "BLOCK_T": 32, "BLOCK_PAIRS": _power_of_2(half), "BLOCK_REST": columns, "BLOCK": 1024}
    known |= {"PAGE": 16, "BLOCK_S": 16, "BLOCK_H": 8, "MEASURED": False}
    constants = known | {"PRECISION": "ieee", "RESET": float("-inf"), "MAKES": "dk" if head_dim > 256 else None}
    signature = {}
    for p in kernel.parameters:
        if p.type == "tiles" and "REST" in p.block and not rest:
            signature[p.name], constants[p.name] = "constexpr", None
        elif p.type == "tiles":
            rows, block = known[p.block[0]], known[p.block[1]]
            shape = f"1,{rows},{block}" if planned.spec.packed else f"1,1,{rows},{block}"
            signature[p.name] = f"tensordesc<{dtype}[{shape}]>"
        elif p.type == "rows":
            signature[p.name] = f"tensordesc<{p.element}[{known[p.block[0]]}]>"
        else:
            signature[p.name] = "constexpr" if p.absent else p.type.replace("*T", f"*{dtype}")
    given = {p.name: constants.get(p.name) for p in kernel.parameters if signature[p.name] == "constexpr"}
    options = {"num_warps": tile.num_warps, "num_stages": tile.num_stages}
    return Case(kernel.name, function, signature, given, options, head_dim)


def _power_of_2(size: int) -> int:
    return 1 << max(size - 1, 0).bit_length()


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
        click.echo(failure, err=True)
    return not failures


def _fitting(ladder: Sequence[Case], arch: str, target: Any) -> tuple[Case, Made | NotCompiled]:
    """The first launch that finds the shared memory it wants, or the last one, and what became of it."""
    for case in ladder:
        try:
            made = measured(case, target)
        except NotCompiled as error:
            return case, error
        if made.fits(arch):
            break
    return case, made


def source(case: Case, target: Any) -> Any:
    """A case as the compiler takes it."""
    from triton.compiler import ASTSource

    signature: dict[str, Any] = dict(case.signature)
    constants: dict[Any, Any] = dict(case.constants)
    # without it loads through pointers do not vectorise
    aligned: dict[tuple[int, ...], list[list[Any]]] = {}
    for i, (name, kind) in enumerate(case.signature.items()):
        if kind.startswith("*") or name in case.aligned:
            aligned[(i,)] = [["tt.divisibility", 16]]
        if kind.startswith("tensordesc") and not _copies_tiles(target):
            dtype, axes = kind.removeprefix("tensordesc<").split("[")[0], kind.count(",")
            if axes == 0:
                signature[name], aligned[(i,)] = f"*{dtype}", [["tt.divisibility", 16]]
                continue
            signature[name] = (f"*{dtype}", "constexpr", *["i32"] * axes)
            constants[i, 1], aligned[i, 0] = case.width, [["tt.divisibility", 16]]
    return ASTSource(case.kernel, signature=signature, constexprs=constants, attrs=aligned)


def compiled(case: Case, target: Any) -> tuple[Any, str]:
    """A case as the compiler leaves it, with its intermediate texts, and what the assembler said; or NotCompiled."""
    import triton
    from triton import knobs

    # a kernel out of the cache comes without a word of the assembler
    knobs.compilation.always_compile = knobs.nvidia.dump_ptxas_log = True
    with contextlib.redirect_stdout(io.StringIO()) as said, tempfile.TemporaryFile("w+", errors="replace") as written:
        try:
            with _stderr_into(written):
                made = triton.compile(source(case, target), target=target, options=case.options)
        except Exception as error:  # whatever the compiler raises
            raise NotCompiled(why(error, _text(written))) from error
        sys.stderr.write(_text(written))
    return made, said.getvalue()


@contextlib.contextmanager
def _stderr_into(file: IO[str]) -> Iterator[None]:
    """Puts a file in the place of standard error, also for libraries that know nothing of Python's."""
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
    """The line that tells why a kernel does not compile."""
    while error.__cause__:
        error = error.__cause__
    if complaint := _COMPLAINT.search(f"{written}\n{error}"):
        return complaint["said"] or complaint["assertion"]
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[-1].strip()}"


def _copies_tiles(target: Any) -> bool:
    """True if the GPU copies tiles by itself, so that kernels get descriptors of tensors; else pointers and strides."""
    return bool(target.backend == "cuda" and target.arch >= 90)


def measured(case: Case, target: Any) -> Made:
    """The result of compiling a case."""
    made, log = compiled(case, target)
    if target.backend == "hip":
        text = made.asm["amdgcn"]
        registers, spills = (_number(rf"\.{name}:\s+(\d+)", text) for name in ("vgpr_count", "vgpr_spill_count"))
    else:
        text = made.asm["ptx"]
        registers, spills = _usage(made.asm["cubin"])
    matrix: dict[str, int] = {}
    for kind in _MATRIX.findall(text):
        matrix[kind] = matrix.get(kind, 0) + 1
    threads = made.metadata.num_warps * target.warp_size
    warnings = [
        line.split(":", 1)[1].strip() for line in log.splitlines() if re.match(r"ptxas (warning|info *: *\(C)", line)
    ]
    return Made(registers, spills, made.metadata.shared, threads, matrix, tuple(dict.fromkeys(warnings)))


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
