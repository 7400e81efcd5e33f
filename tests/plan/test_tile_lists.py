"""Lists of the tiles that block masks need, against the mask itself."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
import unformatted
from devices import GPU

from attnforge.language import spec

B, H, TQ, TK, BLOCK = 2, 3, 90, 150, 12
SPEC = """
name: listed_tiles
heads: equal
mask:
  - expr: "some"
inputs:
  some: {axes: [batch, head, query // 12, key // 12], dtype: bool}
"""

pytestmark = pytest.mark.skipif(GPU, reason="the same kernels")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    folder = tmp_path_factory.mktemp("lists")
    (folder / "listed_tiles.yaml").write_text(SPEC)
    (folder / "listed_tiles").mkdir()
    for file, text in unformatted.interpreted(spec.load(folder / "listed_tiles.yaml", terms=())).items():
        (folder / "listed_tiles" / file).write_text(text)
    sys.path.insert(0, str(folder))
    yield importlib.import_module("listed_tiles.launch")
    sys.path.remove(str(folder))


def call(share: float, queries: int = TQ) -> tuple[Any, ...]:
    """q, k and a block mask of which a share is visible."""
    make = torch.Generator().manual_seed(0)
    blocks = (B, H, -(-queries // BLOCK), -(-TK // BLOCK))
    q, k = torch.zeros(B, queries, H, 16), torch.zeros(B, TK, H, 16)
    return q, k, torch.rand(blocks, generator=make) < share


def visible(some: torch.Tensor, queries: int) -> torch.Tensor:
    """What the mask shows, (B, H, queries, TK)."""
    q, k = torch.arange(queries), torch.arange(TK)
    return some[:, :, q[:, None] // BLOCK, k[None, :] // BLOCK]


def listed(tiles: torch.Tensor) -> tuple[list[int], list[int]]:
    """The full tiles of a list, and the others."""
    full, count = tiles[:2].tolist()
    return tiles[2 : 2 + full].tolist(), tiles[2 + full : 2 + count].tolist()


def wanted(pairs: torch.Tensor, other: int) -> tuple[list[int], list[int]]:
    """The same for a tile of rows, from the pairs that are visible; the last tile of the other side may be short."""
    parts = list(enumerate(pairs.split(other, 1)))
    full = [i for i, part in parts if part.all() and part.shape[1] == other]
    return full, [i for i, part in parts if part.any() and i not in full]


@pytest.mark.parametrize("share", [0.0, 0.3, 0.95, 1.0])
@pytest.mark.parametrize(("block_m", "block_n"), [(16, 16), (32, 16), (16, 64), (64, 32)])
def test_lists_hold_the_tiles_with_something_visible(
    package: ModuleType, share: float, block_m: int, block_n: int
) -> None:
    """Tiles smaller than blocks and larger ones, beginning inside of them; those that need no mask come first."""
    q, k, some = call(share)
    cache = package.runtime.LaunchCache.of("lists", q, k, some, block_m, block_n)
    keys = package._key_lists(cache, q, k, None, some, block_m, block_n)
    queries = package._query_lists(cache, q, k, None, some, block_m, block_n)
    seen = visible(some, TQ).flatten(0, 1)
    for head, pairs in enumerate(seen):
        for i, rows in enumerate(pairs.split(block_m)):
            assert listed(keys[head, i]) == wanted(rows, block_n)
        for i, columns in enumerate(pairs.split(block_n, 1)):
            assert listed(queries[head, i]) == wanted(columns.T, block_m)


def test_a_list_of_more_tiles_than_one_step_looks_at(package: ModuleType) -> None:
    queries = 16 * 140
    q, k, some = call(0.5, queries)
    cache = package.runtime.LaunchCache.of("long", q, k, some)
    lists = package._query_lists(cache, q, k, None, some, 16, 32)
    columns = visible(some, queries)[1, 2, :, 64:96]
    assert listed(lists[1 * H + 2, 2]) == wanted(columns.T, 16)


def test_heads_that_share_blocks_have_lists_of_their_own(package: ModuleType) -> None:
    q, k, some = call(0.5)
    shared = some[:1, :1].expand(B, H, -1, -1)
    cache = package.runtime.LaunchCache.of("shared", q, k, shared)
    lists = package._key_lists(cache, q, k, None, shared, 16, 16)
    for tile in range(lists.shape[1]):
        assert len({str(listed(one)) for one in lists[:, tile]}) == 1
