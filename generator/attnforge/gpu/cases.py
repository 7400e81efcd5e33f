"""The launches of a package's kernels that are compiled without a GPU."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

from ..plan import splits, tiles
from ..plan.parameters import Kernel
from ..plan.plan import Plan
from ..plan.tiles import Table, Tile
from ..render import emit, render


class Case(NamedTuple):
    """A kernel and everything that the compiler has to know about one launch of it."""

    name: str
    kernel: Any
    signature: dict[str, str]
    constants: dict[str, Any]
    options: dict[str, Any]
    width: int = 0  # head size of the tensors from which tiles are loaded
    aligned: frozenset[str] = frozenset()  # numbers that are multiples of 16, besides pointers
    gluon: bool = False

    @property
    def tile(self) -> str:
        """The queries and keys of its tile, if it has both, and the compiler's options."""
        sizes = [str(self.constants[name]) for name in ("BLOCK_M", "BLOCK_N") if name in self.constants]
        told = [f"{value} {name.removeprefix('num_')}" for name, value in self.options.items()]
        return ", ".join([" x ".join(sizes)] * (len(sizes) == 2) + told)


class Cases(NamedTuple):
    """The kernels of a package, for calls of one head size and type."""

    planned: Plan
    modules: dict[str, Any]  # its modules with kernels, by file
    head_dim: int  # of q and k
    v_dim: int
    dtype: str

    def of(self, arch: str) -> list[Case]:
        """One launch of each kernel with the tiles that an architecture gets first."""
        return [ladder[0] for ladder in self.ladders(arch)]

    def ladders(self, arch: str) -> list[list[Case]]:
        """Launches of each kernel with the tiles of an architecture, best first; the last needs least shared memory."""
        table = self.planned.tables.of(arch, self.dtype)
        found = [[self.case(x, tile) for tile in self.tiles(x, table)] for x in self.planned.kernels.all]
        if statistics := self.planned.statistics:
            kernel = statistics.kernel
            found.append([self._launch("statistics", kernel, tile) for tile in self.tiles(kernel, table)])
        found += [[case] for case in self.by_distance()]
        if arch.removesuffix("a") == "sm_90":
            for name, tiles_of in self.planned.tables.hopper.items():
                for tile in tiles_of.get(self.columns, {}).values():
                    found += [[case] for case in self.on_hopper(name, tile)]
        if decode := self.planned.decode:
            latent = self.planned.spec.latent
            for float8 in ("", "head", "key") if arch.removesuffix("a") == "sm_90" else ():
                found += [[case] for case in self.decoding_on_hopper(float8=float8)]
            tile = splits.tile(decode.splits, latent, self.head_dim, self.dtype, arch, 128 if latent else 4)
            # fewer stages need less shared memory
            stages = range(tile.num_stages, 0, -1)
            plain = [
                [self.decoding(kernel, tile._replace(num_stages=x)) for x in (stages if kernel.step else (1,))]
                for kernel in decode.kernels
            ]
            for ladder in plain if _has_float8(arch) else ():
                if "k_scale_ptr" in ladder[0].signature:
                    found += [[self.over_float8(case, scaled) for case in ladder] for scaled in ("head", "key")]
            found += plain
        return found

    @property
    def columns(self) -> int:
        """The number of columns of a tile of such heads."""
        return max(16, _power_of_2(self.head_dim))

    def tiles(self, kernel: Kernel, table: Table) -> tuple[Tile, ...]:
        """The tiles of a kernel; a kernel without a row in the table has a single small one."""
        warps = 8 if kernel.name == "rotate" and self.head_dim > 256 else 4
        sizes = table.get(kernel.name, {tiles.LATENT: (Tile(64, 64, warps, 3),)})
        return next(sizes[size] for size in sizes if max(self.head_dim, self.v_dim) <= size)

    def case(self, kernel: Kernel, tile: Tile) -> Case:
        """A launch with a tile."""
        return self._launch("kernels", kernel, tile)

    def _launch(self, file: str, kernel: Kernel, tile: Tile) -> Case:
        """The same for a kernel in any file."""
        dims = self.head_dim, self.v_dim
        return _case(kernel, getattr(self.modules[file], kernel.name), self.planned, dims, self.dtype, tile)

    def by_distance(self) -> list[Case]:
        """A launch of each kernel that evaluates parts of scores by distance, or adds up what they learn."""
        file = self.planned.by_distance
        launches = (self._launch("by_distance", one, Tile(64, 64, 4, 1)) for one in (file.kernels if file else ()))
        return [case._replace(name=f"by_distance.{case.name}") for case in launches]

    def on_hopper(self, name: str, tile: Tile) -> list[Case]:
        """A launch of each kernel of a pass for Hopper GPUs, with a tile; none if there are no such kernels."""
        hopper = self.planned.hopper
        if hopper is None or self.dtype == "fp32":
            return []
        kernels = [("hopper", hopper.forward)]
        if name == "backward":
            if hopper.backward is None:
                return []
            before, _, *after = hopper.backward.launched
            main = ("hopper_backward", hopper.backward.kernel)
            if tile.block_n == 64:
                assert hopper.wide
                main = ("hopper_wide", hopper.wide.kernel)
            kernels = [("hopper_backward", before), main, *(("hopper_backward", kernel) for kernel in after)]
        turns = not (hopper.backward and hopper.backward.turns_to == 0)
        found = []
        for file, kernel in kernels:
            case = self._launch(file, kernel, tile)._replace(name=f"{file}.{kernel.name}")
            found.append(_in_gluon(case, tile, turns) if kernel.name == name else case)
        return found

    def decoding(self, kernel: Kernel, tile: Tile, file: str = "decode_kernels") -> Case:
        """A launch of a kernel of decoding: one query over pages, with all its 128 heads if they are latent."""
        warps = int(kernel.texts.get("warps", 4))
        case = self._launch(file, kernel, tile if kernel.step else Tile(16, 16, warps, 2))
        strides = (p.name for p in kernel.parameters if p.type == "i32" and not p.varies)
        scales = [p.name for p in kernel.parameters if p.name.endswith("_scale_ptr")]  # only for float8
        chunks, columns = splits.joined(64, _power_of_2(self.v_dim))
        heads = 128 if self.planned.spec.latent else 4
        joined, at_a_time = splits.last(heads, _power_of_2(self.v_dim), tile.num_warps) if kernel.step else (0, 0)
        told = {
            "attend_split": {"GROUP": heads, "CHUNK": splits.CHUNK, "JOINED": joined, "COLUMNS": at_a_time},
            "append_rows": {"BLOCK_D": _power_of_2(self.head_dim)},
            "sum_keys": {"HEADS": 32, "BLOCK_H": 8},
            "join_splits": {"CHUNK": splits.CHUNK, "CHUNKS": chunks, "COLUMNS": columns, "TOGETHER": 1},
        }
        known, names = told.get(kernel.name, {}), {p.name for p in kernel.parameters}
        return case._replace(
            signature=case.signature | dict.fromkeys(scales, "constexpr"),
            constants=case.constants | dict.fromkeys(scales) | {n: x for n, x in known.items() if n in names},
            aligned=frozenset(strides),
        )

    def over_float8(self, case: Case, scaled: str) -> Case:
        """The same launch of a decoding kernel, over a float8 cache with a scale for each "head" or "key"."""
        types = dict.fromkeys(("k_ptr", "v_ptr"), "*fp8e4nv") | {f"{x}_scale_ptr": "*fp32" for x in "kv"}
        types = {name: kind for name, kind in types.items() if name in case.signature}
        in_twos = case.constants.get("TURNED") and self.dtype != "fp32" and self.v_dim % 2 == 0 and self.v_dim > 16
        told = {"BY_HEAD": scaled == "head", "MEASURED": scaled == "key", "IN_TWOS": bool(in_twos)}
        constants = {name: told.get(name, x) for name, x in case.constants.items() if name not in types}
        name = f"{case.name} of float8, scaled by {scaled}"
        return case._replace(name=name, signature=case.signature | types, constants=constants)

    def decoding_on_hopper(self, page: int = 64, float8: str = "") -> list[Case]:
        """A launch of the decoding kernel for Hopper GPUs, over pages, if there is one for such heads.

        `float8`: the cache is of float8, with a scale for each "head" or "key".
        """
        on_hopper = self.planned.decode_hopper
        if on_hopper is None or self.dtype == "fp32" or self.head_dim != 576:
            return []
        block_m, block_n, stages, _ = on_hopper.tile
        case = self.decoding(on_hopper.kernel, Tile(block_m, block_n, 4, stages), "decode_hopper")
        rows = min(block_n, page & -page)
        told = {"STAGES": stages, "ROWS": rows, "PAGE": page, "OVERLAP": True}
        keys = {"k_desc": f"tensordesc<{self.dtype}[1,1,{rows},64]>"}
        if float8:
            keys = {"k_desc": "tuple<*fp8e4nv,i32,i32,i32>", **{f"{x}_scale_ptr": "*fp32" for x in "kv"}}
            told |= {"BY_HEAD": float8 == "head", "ROWS": 0}
        return [
            case._replace(
                name=f"decode_hopper.{case.name}" + (f" of float8, scaled by {float8}" if float8 else ""),
                signature=case.signature | keys,
                constants={name: x for name, x in case.constants.items() if name not in keys} | told,
                options={"num_warps": 4, "maxnreg": 128},
                gluon=True,
            )
        ]


def rendered(
    package: emit.Package, planned: Plan, folder: Path, head_dim: int, dtype: str, v_dim: int | None = None
) -> Cases:
    """The kernels of a package, which is first written into the folder."""
    emit.write([package], folder / "generated")
    return written(planned, folder, head_dim, dtype, v_dim)


def written(planned: Plan, folder: Path, head_dim: int, dtype: str, v_dim: int | None = None) -> Cases:
    """The kernels of a package in the folder; `v_dim` defaults to the columns of keys, at most WIDEST."""
    sys.path.insert(0, str(folder))
    try:
        files = ["kernels", *render.hopper_files(planned)]
        files += ["by_distance"] if planned.by_distance else []
        files += ["decode_kernels"] if planned.decode else []
        files += ["decode_hopper"] if planned.decode_hopper else []
        files += ["statistics"] if planned.statistics else []
        modules = {file: importlib.import_module(f"generated.{planned.spec.name}.{file}") for file in files}
    finally:
        sys.path.remove(str(folder))
    return Cases(planned, modules, head_dim, v_dim or min(head_dim, tiles.WIDEST), dtype)


def _in_gluon(case: Case, tile: Tile, turns: bool) -> Case:
    """A launch of a Gluon kernel as runtime.py makes it, derived from a launch of a plain Triton kernel."""
    constants = case.constants | {"STAGES": tile.num_stages}
    least = _piece(case.constants["BLOCK_D"], case.constants["BLOCK_DV"])
    constants |= {name: max(constants[name], least) for name in ("BLOCK_D", "BLOCK_DV") if name in constants}
    if "PAIR_STAGES" in constants:
        constants["PAIR_STAGES"] = 1 if constants["BLOCK_D"] <= 64 else 2
    if "Q_STAGES" in constants:
        constants["Q_STAGES"] = 2 if constants["BLOCK_D"] <= 128 else 1
    if "K_STAGES" in constants:
        constants["K_STAGES"] = 2 if constants["BLOCK_D"] <= 64 and turns else 1
    signature = dict(case.signature)
    for name, kind in signature.items():
        if kind.startswith("tensordesc") and kind.count(",") == 0:
            signature[name] = f"*{kind.removeprefix('tensordesc<').split('[')[0]}"
        elif kind.startswith("tensordesc"):
            signature[name] = re.sub(r",(16|32)\]", f",{least}]", kind)
    # each worker owns 64 rows
    own, block = (("q_desc",), "BLOCK_M") if "out_ptr" in signature else (("k_desc", "v_desc"), "BLOCK_N")
    for name in own:
        signature[name] = signature[name].replace(f",{constants[block]},", ",64,")
    three = 192 if own == ("q_desc",) else 64  # rows of a tile that three groups of warps share
    options = {"num_warps": 4, "maxnreg": 128 if constants[block] == three else 168}
    return case._replace(signature=signature, constants=constants, options=options, gluon=True)


def _case(kernel: Kernel, function: Any, planned: Plan, dims: tuple[int, int], dtype: str, tile: Tile) -> Case:
    rope, (head_dim, v_dim) = planned.spec.rope, dims
    half = (rope.dims if rope and rope.dims else head_dim) // 2
    columns, v_columns = (min(max(16, _power_of_2(dim)), tiles.WIDEST) for dim in dims)
    rest = max(head_dim - tiles.WIDEST, 0)
    known = {"GROUP": 4, "D": head_dim, "DV": v_dim, "PAIRS": half, "REST": max(16, _power_of_2(rest))}
    known["PIECE"] = _piece(*dims)
    known |= {"BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n, "BLOCK_D": columns, "BLOCK_DV": v_columns}
    known |= {"TILE_AXIS": 1, "BLOCK_T": 32, "BLOCK_PAIRS": _power_of_2(half), "BLOCK_REST": columns, "BLOCK": 1024}
    known |= {"PART": 128, "ROWS": 32}  # of norms
    known |= {"PAGE": 16, "BLOCK_H": 8, "MEASURED": False, "OVERLAP": False, "V_IN_K": True}
    few = tile.block_m <= splits.FEW
    turned = few and not planned.spec.latent
    known |= {
        "TURNED": turned,
        "IN_TWOS": False,
        "KV_HEADS": 1,
        "SUMS": min(8 * tile.num_warps, tile.block_n // 2 if turned else tile.block_n) if few else 8,
        "BY_HEAD": False,
        "FAR": False,
        "END_STAGES": min(tile.num_stages, 2),
    }
    constants = known | {"PRECISION": "ieee", "RESET": float("-inf"), "MAKES": "dk" if max(dims) > 256 else None}
    signature = {}
    for p in kernel.parameters:
        if p.type == "tiles" and "REST" in p.block and not rest:
            signature[p.name], constants[p.name] = "constexpr", None
        elif p.type == "tiles":
            rows, block = known[p.block[0]], known[p.block[1]]
            shape = f"1,{rows},{block}" if planned.spec.packed else f"1,1,{rows},{block}"
            signature[p.name] = f"tensordesc<{dtype}[{shape}]>"
        elif p.type == "strips":
            signature[p.name] = ""  # depends on the rows of a page: filled in later
        elif p.type == "pairs":
            sizes = ",".join(str(known.get(size, size)) for size in p.block)
            signature[p.name] = f"tensordesc<{dtype}[1,1,{sizes}]>"
        elif p.type == "fragments":
            signature[p.name] = f"tensordesc<fp32[{known['PIECE'] // 4},256]>"
        elif p.type == "rows":
            signature[p.name] = f"tensordesc<{p.element}[{known[p.block[0]]}]>"
        else:
            signature[p.name] = "constexpr" if p.absent else p.type.replace("*T", f"*{dtype}")
    given = {p.name: constants.get(p.name) for p in kernel.parameters if signature[p.name] == "constexpr"}
    options = {"num_warps": tile.num_warps, "num_stages": tile.num_stages}
    return Case(kernel.name, function, signature, given, options, head_dim)


def _piece(*columns: int) -> int:
    """The columns of a piece of dQ, and the fewest of a tile for Hopper GPUs; runtime.py has the same rule."""
    return 32 if max(columns) <= 32 else 64


def _has_float8(arch: str) -> bool:
    """Whether an architecture supports caches of float8."""
    return arch.startswith("sm_") and int(arch.removeprefix("sm_").removesuffix("a")) >= 89


def _power_of_2(size: int) -> int:
    return 1 << max(size - 1, 0).bit_length()
