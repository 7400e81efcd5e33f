"""Tile shapes by kernel, architecture, element size and head size: `tiles.yaml`, and what was tuned for a variant."""

from __future__ import annotations

import bisect
import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import yaml

from ..language.terms import shown
from ..source.errors import Problems, near
from ..source.located_yaml import Entry, Value, read
from .reach import Reach

KERNELS = ("forward", "backward_dkv", "backward_dq")
FAMILIES = ("sm_90", "sm_80", "single")
HOPPER, FASTER = "hopper", "faster"  # the tables of kernels for Hopper GPUs: their tiles, and when calls use them
PASSES = ("forward", "backward")
TUNED = dict.fromkeys(FAMILIES, KERNELS) | dict.fromkeys((HOPPER, FASTER), PASSES)  # all tables, and their keys
NARROW = 32  # head size of the first row for Hopper GPUs, whose tiles are those of 64
WIDEST = 512  # head size of the last row of each table
LATENT = 576  # that of q and k if a spec says `latent`
NEVER = "never"
_LIMITS = ((16, 256), (16, 256), (1, 16), (1, 8))  # of a tile's numbers


class Tile(NamedTuple):
    """The queries and keys of a tile, and the compiler's options."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


Table = dict[str, dict[int, tuple[Tile, ...]]]
"""Tiles by kernel and by head sizes up to the key; the best tile first, those after it need less shared memory."""


class Row(NamedTuple):
    """The tiles of a kernel for head sizes up to `size`, on a family of GPUs; family `single`: in float32 on any GPU.

    In family `hopper` the kernel is a pass, and `size` the columns of its one tile.
    """

    family: str
    kernel: str
    size: int
    tiles: tuple[Tile, ...]


class Limit(NamedTuple):
    """The least keys with which calls use the kernels of a pass for Hopper GPUs, by columns of a tile; None: never."""

    family: Literal["faster"]
    kernel: str
    size: int
    keys: int | None


Columns = int | tuple[int, int]
"""Columns of a tile, or those of q's and of v's tiles if the two together have an entry of their own."""


class Tables(NamedTuple):
    """The tables of all GPUs."""

    half: dict[str, Table]  # of float16 and bfloat16, by family
    single: Table  # of float32
    # of float16 and bfloat16, for the kernels for Hopper GPUs: by pass, by columns of a tile, and by the least number
    # of keys of the longest sequence
    hopper: dict[str, dict[int, dict[int, Tile]]]
    # by pass and columns, numbers of keys: from the first number on these kernels outrun the others, from the second
    # on they do not, from the third on they do again
    faster: dict[str, dict[Columns, tuple[int, ...]]]
    # by pass and columns, how many keys before its own a query must be able to see for that, if a call's numbers say so
    reach: dict[str, dict[int, int]]

    def of(self, arch: str, dtype: str) -> Table:
        """The table for an architecture such as sm_90, and a dtype of fp16, bf16 or fp32."""
        return self.single if dtype == "fp32" else self.half[family(arch)]

    def tuned(self, rows: tuple[Row | Limit, ...]) -> Tables:
        """The tables with these rows in place of their own."""
        half = {arch: dict(table) for arch, table in self.half.items()}
        single, hopper, faster = dict(self.single), dict(self.hopper), dict(self.faster)
        for row in rows:
            if isinstance(row, Limit):
                # whatever the columns of v
                sizes = {size: keys for size, keys in faster[row.kernel].items() if _of_q(size) != row.size}
                sizes |= {row.size: (row.keys,)} if row.keys is not None else {}
                faster[row.kernel] = dict(sorted(sizes.items(), key=lambda item: _of_q(item[0])))
            elif row.family == HOPPER:
                hopper[row.kernel] = dict(sorted((hopper[row.kernel] | {row.size: {0: row.tiles[0]}}).items()))
            else:
                table = single if row.family == "single" else half[row.family]
                table[row.kernel] = dict(sorted((table[row.kernel] | {row.size: row.tiles}).items()))
        return self._replace(half=half, single=single, hopper=hopper, faster=faster)

    def only(self, passes: Sequence[str], *, wide: bool) -> Tables:
        """The tables whose rows for Hopper GPUs are for these passes only, backward with `wide` heads only if set."""

        def there(its: str, columns: Columns) -> bool:
            return its == "forward" or wide or _of_q(columns) <= 128

        kept = {its: {n: row for n, row in self.hopper[its].items() if there(its, n)} for its in passes}
        faster = {its: {n: row for n, row in self.faster[its].items() if there(its, n)} for its in passes}
        reach = {its: row for its, row in self.reach.items() if its in passes}
        return self._replace(hopper=kept, faster=faster, reach=reach)


def outrun(limits: Sequence[int], keys: int, reach: int = 0, least: int = 0) -> bool:
    """Whether kernels for Hopper GPUs are faster for so many keys, if a query sees `reach` keys before its own.

    Generated code has the same rule.
    """
    return bisect.bisect(limits, keys) % 2 == 1 and reach >= least


def of_length(by_length: Mapping[int, Tile], keys: int) -> Tile:
    """The tile if queries see up to so many keys; generated code has the same rule."""
    return by_length[max(least for least in by_length if least <= keys)]


def family(arch: str) -> str:
    """The architecture whose table serves this one; generated code has the same rule."""
    major = arch.removeprefix("sm_").removesuffix("a")[:-1]
    return "sm_90" if arch.startswith("sm_") and major in ("9", "10") else "sm_80"


def widest(latent: bool) -> tuple[int, int]:
    """The largest head size of q and k, and that of v, of a spec that says `latent` or does not."""
    return LATENT if latent else WIDEST, WIDEST


Weight = Literal[
    "bare", "plain", "sloped", "capped", "marks", "heavy", "tabled", "drawn", "rows", "small_blocks", "blocks"
]  # fmt: skip
"""Classes of terms by what they load and compute; `tiles.yaml` describes each one."""
WEIGHTS: tuple[Weight, ...] = get_args(Weight)  # each builds on the one before
APART: tuple[Weight, ...] = ("heavy", "drawn", "small_blocks", "blocks")  # mixed and full tiles have loops of their own
_FAR_OR_NEAR: tuple[Weight, ...] = ("heavy", "tabled", "small_blocks", "blocks")  # limits hold however far queries see


@functools.cache
def tables(
    weight: Weight,
    packed: bool = False,
    algorithm: str = "",
    reach: Reach | None = None,
    latent: bool = False,
    given: bool = False,
    added: str = "",
    on_hopper: Weight | None = None,
) -> Tables:
    """The tables that come with the generator; packed sequences and earlier algorithms have some rows of their own.

    `reach`: how far back queries see, if masks hide early keys; a distance of 0 if only tensors determine it. `given`:
    whether kernels for Hopper GPUs take inputs that may learn as given. `added`: what terms do if they only add floats,
    or how expensive they are if kernels for Hopper GPUs read them by distance; then these are in a class of their own.
    """
    if on_hopper not in (None, weight):
        plain = tables(weight, packed, algorithm, reach, latent, given, added)
        other = tables(on_hopper, packed, algorithm, reach, latent, given, added)
        return plain._replace(hopper=other.hopper, faster=other.faster, reach=other.reach)
    found = _shipped()
    layers = (*WEIGHTS[: WEIGHTS.index(weight) + 1], *(("packed", f"packed_{weight}") if packed else ()), algorithm)
    layers += ("latent",) if latent else ()
    hopper: dict[str, dict[int, dict[int, Tile]]] = {its: {} for its in PASSES}
    for layer in (*layers, *((added,) if added else ())):
        for its, sizes in found["hopper"].get(layer, {}).items():
            hopper[its] |= {size: {keys: Tile(*t) for keys, t in row.items()} for size, row in sizes.items()}
            hopper[its] = {size: row for size, row in hopper[its].items() if row}
    hopper = {its: ({NARROW: rows[64]} if 64 in rows else {}) | rows for its, rows in hopper.items()}
    faster: dict[str, dict[Columns, tuple[int, ...]]] = {}
    least: dict[str, dict[int, int]] = {}
    layers += (f"given_{weight}", *((f"packed_given_{weight}",) if packed else ())) if given else ()
    drawn = weight == "drawn"
    layers += (added, *((f"packed_{added}",) if packed else ())) if added else ()
    near = reach and weight not in _FAR_OR_NEAR and not (drawn and not reach.known and not reach.numbers)
    for layer in (*layers, *(("left", f"left_{weight}") if near else ())):
        for its, limits in found["faster"].get(layer, {}).items():
            faster[its] = {
                _columns(n): tuple(keys) if isinstance(keys, list) else (keys,) for n, keys in limits.items()
            }
        least |= found["reach"].get(layer, {})
    if reach and not reach.numbers:
        far = reach.of({}) if reach.known else 0
        faster = {
            its: {n: keys for n, keys in limits.items() if far >= least.get(its, {}).get(_of_q(n), 0)}
            for its, limits in faster.items()
        }
        least = {}
    least = {its: {n: far for n, far in row.items() if n in faster[its]} for its, row in least.items()}
    least = {its: row for its, row in least.items() if row}
    return Tables(
        {arch: _table(given, layers) for arch, given in found["half"].items()},
        _table(found["single"], layers),
        hopper,
        faster,
        least,
    )


def of_pairs(family: str) -> dict[int, tuple[Tile, ...]]:
    """Tiles of kernels of gradients of values of pairs, by head size, where they differ from those of dk and dv."""
    return {size: tuple(Tile(*tile) for tile in row) for size, row in _shipped()["pairs"].get(family, {}).items()}


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


def _columns(text: int | str) -> Columns:
    """Columns as `tiles.yaml` writes them: 256, or "256:128"."""
    if isinstance(text, int):
        return text
    q, v = map(int, text.split(":"))
    return q, v


def _of_q(columns: Columns) -> int:
    return columns if isinstance(columns, int) else columns[0]


def tuned_path(spec: Path) -> Path:
    """The file of the rows that were tuned for a spec."""
    return spec.resolve().parent / "tuning" / spec.name


def tuned(spec: Path) -> tuple[Row | Limit, ...]:
    """The rows that were tuned for a spec. Raises SpecError with all mistakes in their file."""
    path, problems = tuned_path(spec), Problems()
    found = rows(path, shown(path), problems) if path.is_file() else ()
    problems.raise_if_any()
    return found


def rows(path: Path, name: str, problems: Problems) -> tuple[Row | Limit, ...]:
    """The rows of a file by family, kernel and head size; `name` is its path as shown in messages."""
    document = read(path, name, problems)
    found: list[Row | Limit] = []
    for one in _mapping(document, problems):
        if one.key not in TUNED:
            problems.add(one.at, f"unknown architecture {one.key!r}{near(one.key, TUNED)}")
            continue
        for kernel in _mapping(one.value, problems):
            if kernel.key not in TUNED[one.key]:
                problems.add(kernel.at, f"unknown kernel {kernel.key!r}{near(kernel.key, TUNED[one.key])}")
                continue
            made = _limit if one.key == FASTER else _row
            found += [row for size in _mapping(kernel.value, problems) if (row := made(one, kernel, size, problems))]
    return tuple(found)


def _mapping(value: Value | None, problems: Problems) -> list[Entry]:
    if value is not None and not value.mapping:
        problems.add(value.at, f"expected a mapping, got {value.kind}")
    return list(value.entries()) if value is not None else []


def _row(one: Entry, kernel: Entry, size: Entry, problems: Problems) -> Row | None:
    if not _sized(size, problems):
        return None
    read_tile = _tile_on_hopper if one.key == HOPPER else _tile
    tiles = [read_tile(item, kernel.key, problems) for item in size.value.items()]
    if not tiles or (one.key == HOPPER and len(tiles) > 1):
        some = "one tile, such as [[128, 128, 8, 2]]" if one.key == HOPPER else "tiles, such as [[128, 64, 4, 2]]"
        problems.add(size.value.at, f"expected a list of {some}")
        return None
    good = tuple(tile for tile in tiles if tile)
    return Row(one.key, kernel.key, int(size.key), good) if good and len(good) == len(tiles) else None


def _limit(one: Entry, kernel: Entry, size: Entry, problems: Problems) -> Limit | None:
    if not _sized(size, problems):
        return None
    keys = size.value.data
    if keys != NEVER and (type(keys) is not int or keys < 0):
        problems.add(size.value.at, f"expected a number of keys, or {NEVER}")
        return None
    return Limit("faster", kernel.key, int(size.key), keys if isinstance(keys, int) else None)


def _sized(size: Entry, problems: Problems) -> bool:
    """True if the key is a head size; if not, a problem is added."""
    good = bool(re.fullmatch("[0-9]{1,3}", size.key)) and 1 <= int(size.key) <= LATENT
    if not good:
        problems.add(size.at, f"expected a head size from 1 to {LATENT}, got {size.key}")
    return good


def _tile(value: Value, _: str, problems: Problems) -> Tile | None:
    """A tile whose queries, keys and warps are powers of 2."""
    found = _numbers(value)
    if not found or any(n & (n - 1) for n in found[:3]):
        problems.add(value.at, "expected [queries, keys, warps, stages], the first three powers of 2")
        return None
    return found


def _tile_on_hopper(value: Value, its: str, problems: Problems) -> Tile | None:
    """A tile with four warps for every 64 rows that a program owns: queries, or keys in the backward pass."""
    found = _numbers(value)
    own, other = (found[:2] if its == "forward" else found[1::-1]) if found else (0, 0)
    if not found or own % 64 or found.num_warps * 16 != own or other & (other - 1):
        side, across = ("queries", "keys") if its == "forward" else ("keys", "queries")
        told = f"expected [queries, keys, warps, stages], four warps for each 64 {side}, {across} a power of 2"
        problems.add(value.at, told)
        return None
    return found


def _numbers(value: Value) -> Tile | None:
    """The numbers of a tile, if they are within limits."""
    numbers = [item.data for item in value.items()]
    if len(numbers) != len(_LIMITS):
        return None
    fits = all(type(n) is int and low <= n <= high for n, (low, high) in zip(numbers, _LIMITS, strict=True))
    return Tile(*numbers) if fits else None  # type: ignore[arg-type]
