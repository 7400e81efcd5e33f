"""Tile shapes by kernel, architecture, element size and head size: `tiles.yaml`, and what was tuned for a variant."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import yaml

from ..language.terms import shown
from ..source.errors import Problems, near
from ..source.located_yaml import Entry, Value, read

KERNELS = ("forward", "backward_dkv", "backward_dq")
FAMILIES = ("sm_90", "sm_80", "single")
WIDEST = 512  # head size of the last row of each table
LATENT = 576  # that of q and k where a spec says `latent`
_LIMITS = ((16, 256), (16, 256), (1, 16), (1, 8))  # of a tile's numbers


class Tile(NamedTuple):
    """Queries and keys of a tile, and what the compiler is told."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


Table = dict[str, dict[int, tuple[Tile, ...]]]
"""Tiles by kernel and by head sizes up to the key; the best first, those after it need less shared memory."""


class Row(NamedTuple):
    """The tiles of a kernel for head sizes up to `size`, on a family of GPUs; `single`: in float32 on any."""

    family: str
    kernel: str
    size: int
    tiles: tuple[Tile, ...]


class Tables(NamedTuple):
    """The tables of all GPUs."""

    half: dict[str, Table]  # of float16 and bfloat16, by family
    single: Table  # of float32
    hopper: dict[str, dict[int, Tile]]  # of float16 and bfloat16, for kernels of their own on Hopper GPUs
    faster: dict[str, dict[int, int]]  # by pass and head size, from how many keys on those outrun the others

    def of(self, arch: str, dtype: str) -> Table:
        """The table for an architecture such as sm_90, and fp16, bf16 or fp32."""
        return self.single if dtype == "fp32" else self.half[family(arch)]

    def tuned(self, rows: tuple[Row, ...]) -> Tables:
        """The tables with these rows in the place of their own."""
        half = {arch: dict(table) for arch, table in self.half.items()}
        single = dict(self.single)
        for row in rows:
            table = single if row.family == "single" else half[row.family]
            table[row.kernel] = dict(sorted((table[row.kernel] | {row.size: row.tiles}).items()))
        return Tables(half, single, self.hopper, self.faster)


def family(arch: str) -> str:
    """The architecture whose table serves another one; generated code has the same rule."""
    major = arch.removeprefix("sm_").removesuffix("a")[:-1]
    return "sm_90" if arch.startswith("sm_") and major in ("9", "10") else "sm_80"


def widest(latent: bool) -> tuple[int, int]:
    """The largest head size of q and k, and that of v, of a spec that says `latent` or does not."""
    return LATENT if latent else WIDEST, WIDEST


Weight = Literal["bare", "plain", "sloped", "marks", "heavy", "rows"]
"""Classes of what terms load beside q, k, v: nothing, no registers, slopes, little, a lot, floats for each key."""
WEIGHTS: tuple[Weight, ...] = get_args(Weight)  # each builds on the one before


@functools.cache
def tables(
    weight: Weight, packed: bool = False, algorithm: str = "", left: bool = False, latent: bool = False
) -> Tables:
    """The tables that come with the generator; packed sequences and earlier algorithms have some rows of their own.

    `left`: whether masks hide early keys.
    """
    found = _shipped()
    layers = (*WEIGHTS[: WEIGHTS.index(weight) + 1], *(("packed", f"packed_{weight}") if packed else ()), algorithm)
    layers += ("latent",) if latent else ()
    hopper = {
        kernel: {size: tiles[0] for size, tiles in sizes.items()}
        for kernel, sizes in _table(found["hopper"], layers).items()
    }
    faster: dict[str, dict[int, int]] = {}
    for layer in (*layers, *(("left",) if left and weight != "heavy" else ())):
        faster |= found["faster"].get(layer, {})
    return Tables(
        {arch: _table(given, layers) for arch, given in found["half"].items()},
        _table(found["single"], layers),
        hopper,
        faster,
    )


@functools.cache
def _shipped() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "tiles.yaml").read_text(encoding="utf-8"))
    return found


def _table(given: dict[str, Any], layers: Sequence[str]) -> Table:
    found: Table = {}
    for kernel in given["bare"]:
        lists = [given.get(layer, {}).get(kernel, {}) for layer in layers]
        found[kernel] = {size: tuple(Tile(*tile) for tile in row) for one in lists for size, row in one.items()}
    return found


def tuned_path(spec: Path) -> Path:
    """The file of the rows that were tuned for a spec."""
    return spec.resolve().parent / "tuning" / spec.name


def tuned(spec: Path) -> tuple[Row, ...]:
    """The rows that were tuned for a spec. Raises SpecError with all mistakes in their file."""
    path, problems = tuned_path(spec), Problems()
    found = rows(path, shown(path), problems) if path.is_file() else ()
    problems.raise_if_any()
    return found


def rows(path: Path, name: str, problems: Problems) -> tuple[Row, ...]:
    """The rows of a file by family, kernel and head size; `name` is its path as messages have it."""
    document = read(path, name, problems)
    found: list[Row] = []
    for one in _mapping(document, problems):
        if one.key not in FAMILIES:
            problems.add(one.at, f"unknown architecture {one.key!r}{near(one.key, FAMILIES)}")
            continue
        for kernel in _mapping(one.value, problems):
            if kernel.key not in KERNELS:
                problems.add(kernel.at, f"unknown kernel {kernel.key!r}{near(kernel.key, KERNELS)}")
                continue
            found += [row for size in _mapping(kernel.value, problems) if (row := _row(one, kernel, size, problems))]
    return tuple(found)


def _mapping(value: Value | None, problems: Problems) -> list[Entry]:
    if value is not None and not value.mapping:
        problems.add(value.at, f"expected a mapping, got {value.kind}")
    return list(value.entries()) if value is not None else []


def _row(one: Entry, kernel: Entry, size: Entry, problems: Problems) -> Row | None:
    if not re.fullmatch("[0-9]{1,3}", size.key) or not 1 <= int(size.key) <= LATENT:
        problems.add(size.at, f"expected a head size from 1 to {LATENT}, got {size.key}")
        return None
    tiles = [_tile(item, problems) for item in size.value.items()]
    if not tiles:
        problems.add(size.value.at, "expected a list of tiles, such as [[128, 64, 4, 2]]")
    good = tuple(tile for tile in tiles if tile)
    return Row(one.key, kernel.key, int(size.key), good) if good and len(good) == len(tiles) else None


def _tile(value: Value, problems: Problems) -> Tile | None:
    """A tile whose queries, keys and warps are powers of 2."""
    numbers = [item.data for item in value.items()]
    fits = len(numbers) == len(_LIMITS) and all(
        type(n) is int and low <= n <= high and (i == 3 or n & (n - 1) == 0)
        for i, (n, (low, high)) in enumerate(zip(numbers, _LIMITS, strict=False))
    )
    if not fits:
        problems.add(value.at, "expected [queries, keys, warps, stages], the first three powers of 2")
        return None
    return Tile(*numbers)  # type: ignore[arg-type]
