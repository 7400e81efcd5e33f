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

B, H, TQ, TK = 2, 2, 70, 130
SPEC = """
name: {name}
heads: equal
mask:
  - expr: "some"
inputs:
  some: {{axes: [batch, head, query // {per_q}, key // {per_k}], dtype: bool}}
"""
PER = {"blocks": (12, 12), "of_keys": (1, 12), "of_queries": (20, 1)}  # how many queries and keys share a value

pytestmark = pytest.mark.skipif(GPU, reason="the same kernels")


@pytest.fixture(scope="module", params=PER)
def package(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    name, folder = f"listed_{request.param}", tmp_path_factory.mktemp("lists")
    per_q, per_k = PER[request.param]
    path = folder / f"{name}.yaml"
    path.write_text(SPEC.format(name=name, per_q=per_q, per_k=per_k).replace("// 1,", ",").replace("// 1]", "]"))
    unformatted.write(path, folder / name)
    sys.path.insert(0, str(folder))
    launch = importlib.import_module(f"{name}.launch")
    launch.per = (per_q, per_k)
    yield launch
    sys.path.remove(str(folder))


def call(package: ModuleType, share: float, queries: int = TQ) -> tuple[Any, ...]:
    """q, k and a mask of which a share is visible; neighbours are alike, so that some tiles are full or empty."""
    make, (per_q, per_k) = torch.Generator().manual_seed(0), package.per
    rough = torch.rand(B, H, -(-queries // 12), -(-TK // 12), generator=make) < share
    rows, columns = torch.arange(-(-queries // per_q)) * per_q // 12, torch.arange(-(-TK // per_k)) * per_k // 12
    some = rough[:, :, rows][:, :, :, columns]
    return torch.zeros(B, queries, H, 16), torch.zeros(B, TK, H, 16), some


def visible(package: ModuleType, some: torch.Tensor, queries: int) -> torch.Tensor:
    """The pairs that the mask shows, (B, H, queries, TK)."""
    per_q, per_k = package.per
    return some[:, :, torch.arange(queries)[:, None] // per_q, torch.arange(TK)[None, :] // per_k]


def listed(tiles: torch.Tensor) -> tuple[list[int], list[int]]:
    """The full tiles of a list, and the others."""
    full, count = tiles[:2].tolist()
    return tiles[2 : 2 + full].tolist(), tiles[2 + full : 2 + count].tolist()


def wanted(pairs: torch.Tensor, other: int) -> tuple[list[int], list[int]]:
    """The same for a tile of rows, from the pairs that are visible; the last tile of the other side may be short."""
    parts = list(enumerate(pairs.split(other, 1)))
    full = [i for i, part in parts if part.all() and part.shape[1] == other]
    return full, [i for i, part in parts if part.any() and i not in full]


@pytest.mark.parametrize(
    ("share", "block_m", "block_n"),
    [(0.3, 16, 16), (0.95, 32, 16), (0.95, 16, 64), (0.3, 64, 32), (0.0, 32, 32), (1.0, 32, 32)],
)
def test_lists_hold_the_tiles_with_something_visible(
    package: ModuleType, share: float, block_m: int, block_n: int
) -> None:
    """Tiles smaller than blocks and larger ones, beginning inside of them; those that need no mask come first."""
    q, k, some = call(package, share)
    cache = package.runtime.LaunchCache.of("lists", q, k, some, block_m, block_n)
    keys = package._key_lists(cache, q, k, None, some, block_m, block_n)
    queries = package._query_lists(cache, q, k, None, some, block_m, block_n)
    seen = visible(package, some, TQ).flatten(0, 1)
    for head, pairs in enumerate(seen):
        for i, rows in enumerate(pairs.split(block_m)):
            assert listed(keys[head, i]) == wanted(rows, block_n)
        for i, columns in enumerate(pairs.split(block_n, 1)):
            assert listed(queries[head, i]) == wanted(columns.T, block_m)


def test_a_list_of_more_tiles_than_one_step_looks_at(package: ModuleType) -> None:
    queries = 16 * 140
    q, k, some = call(package, 0.5, queries)
    cache = package.runtime.LaunchCache.of("long", q, k, some)
    lists = package._query_lists(cache, q, k, None, some, 16, 32)
    columns = visible(package, some, queries)[1, 1, :, 64:96]
    assert listed(lists[1 * H + 1, 2]) == wanted(columns.T, 16)


def test_entries_list_what_their_own_rows_need(package: ModuleType) -> None:
    """Entries with fewer rows, and without any: tiles past the end of one list nothing, and no list goes past it."""
    q, k, some = call(package, 0.5)
    entries = torch.tensor([[0, 50, 0, 100, 50], [3, 0, 5, 0, 0]], dtype=torch.int32)
    cache = package.runtime.LaunchCache.of("entries", q, k, some, entries)
    lists = package._key_lists(cache, q, k, entries, some, 16, 16)
    pairs = visible(package, some, TQ)[0, 1, :50, :100]
    for tile, rows in enumerate(pairs.split(16)):
        assert listed(lists[1, tile]) == wanted(rows, 16)
    assert not lists[H:, :, 1].any()


def test_heads_that_share_blocks_have_lists_of_their_own(package: ModuleType) -> None:
    q, k, some = call(package, 0.5)
    shared = some[:1, :1].expand(B, H, -1, -1)
    cache = package.runtime.LaunchCache.of("shared", q, k, shared)
    lists = package._key_lists(cache, q, k, None, shared, 16, 16)
    for tile in range(lists.shape[1]):
        assert len({str(listed(one)) for one in lists[:, tile]}) == 1
