"""Tile shapes by kernel, element size and head size; the best first, those after it need less shared memory."""

from __future__ import annotations

from typing import NamedTuple


class Tile(NamedTuple):
    """Queries and keys of a tile, and what the compiler is told."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


Table = dict[str, dict[int, tuple[Tile, ...]]]

# head sizes up to the key; the first of each measured on an NVIDIA H200, the others for GPUs with less shared memory
HALF: Table = {
    "forward": {
        64: (Tile(128, 64, 4, 3), Tile(128, 64, 4, 2), Tile(64, 64, 4, 2), Tile(32, 32, 4, 1)),
        128: (Tile(128, 64, 4, 2), Tile(64, 64, 4, 2), Tile(64, 32, 4, 2), Tile(32, 32, 4, 1)),
        256: (Tile(128, 64, 8, 2), Tile(128, 32, 8, 3), Tile(64, 32, 4, 2), Tile(32, 32, 4, 1), Tile(32, 16, 4, 1)),
    },
    "backward_dkv": {
        64: (Tile(64, 64, 4, 3), Tile(64, 64, 4, 1), Tile(32, 32, 4, 1)),
        128: (Tile(32, 64, 4, 3), Tile(32, 64, 4, 1), Tile(32, 32, 4, 1)),
        256: (Tile(64, 64, 8, 2), Tile(32, 64, 8, 1), Tile(16, 32, 4, 1)),
    },
    "backward_dq": {
        64: (Tile(128, 64, 4, 3), Tile(64, 64, 4, 3), Tile(64, 64, 4, 1), Tile(32, 32, 4, 1)),
        128: (Tile(64, 64, 4, 2), Tile(64, 32, 4, 1), Tile(32, 32, 4, 1)),
        256: (Tile(128, 32, 8, 3), Tile(64, 32, 4, 2), Tile(64, 32, 4, 1), Tile(32, 16, 4, 1)),
    },
}
SINGLE: Table = {
    "forward": {
        64: (Tile(32, 32, 4, 1),),
        128: (Tile(32, 64, 8, 1), Tile(32, 32, 4, 1)),
        256: (Tile(32, 64, 16, 1), Tile(32, 32, 8, 1), Tile(16, 16, 4, 1)),
    },
    "backward_dkv": {
        64: (Tile(16, 32, 4, 1),),
        128: (Tile(32, 32, 8, 1), Tile(16, 32, 4, 1)),
        256: (Tile(64, 32, 16, 1), Tile(32, 32, 16, 1), Tile(16, 16, 4, 1)),
    },
    "backward_dq": {
        64: (Tile(16, 32, 4, 1),),
        128: (Tile(32, 32, 8, 1), Tile(16, 32, 4, 1)),
        256: (Tile(32, 64, 16, 1), Tile(16, 32, 8, 1), Tile(16, 16, 4, 1)),
    },
}
