"""Tile shapes by kernel, architecture, element size and head size, as `tiles.yaml` has them."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, NamedTuple

import yaml


class Tile(NamedTuple):
    """Queries and keys of a tile, and what the compiler is told."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


Table = dict[str, dict[int, tuple[Tile, ...]]]
"""Tiles by kernel and by head sizes up to the key; the best first, those after it need less shared memory."""


class Tables(NamedTuple):
    """The tables of all GPUs."""

    half: dict[str, Table]  # of float16 and bfloat16, by family
    single: Table  # of float32

    def of(self, arch: str, dtype: str) -> Table:
        """The table for an architecture such as sm_90, and fp16, bf16 or fp32."""
        return self.single if dtype == "fp32" else self.half[family(arch)]


def family(arch: str) -> str:
    """Whose table serves an architecture: generated code tells it by the same rule."""
    major = arch.removeprefix("sm_")[:-1]
    return "sm_90" if arch.startswith("sm_") and major in ("9", "10") else "sm_80"


@functools.cache
def tables(loaded: bool) -> Tables:
    """The tables that come with the generator; `loaded`, for variants whose terms load a lot."""
    found = yaml.safe_load((Path(__file__).parent / "tiles.yaml").read_text(encoding="utf-8"))
    return Tables(
        {arch: _table(given, loaded) for arch, given in found["half"].items()}, _table(found["single"], loaded)
    )


def _table(given: dict[str, Any], loaded: bool) -> Table:
    special = given.get("loaded", {}) if loaded else {}
    return {
        kernel: {size: tuple(Tile(*tile) for tile in row) for size, row in (sizes | special.get(kernel, {})).items()}
        for kernel, sizes in given["plain"].items()
    }
