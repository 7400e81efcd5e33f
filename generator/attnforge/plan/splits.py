"""The tiles of decode kernels, and how many keys of a sequence one program processes."""

from __future__ import annotations

from .tiles import Tile, family

Ways = tuple[tuple[float, int, int], ...]
"""The least programs per multiprocessor, with the warps and stages for them: many programs hide each other's loads, and
each has less room. No bits depend on the choice: partial sums follow the first number of warps."""
Split = tuple[int, Ways, int]
"""Keys of a tile, warps and stages, and keys of a split."""
Splits = tuple[Split, Split, Split]
"""For tiles of FEW rows with short and with long splits, and for tiles of up to 64 rows."""
Table = dict[str, dict[int, Splits]]
"""By the type that is stored: 16 bits, float8 or float32. Then by the largest head size for which a row is used."""


def _any(keys: int, warps: int, stages: int, split: int) -> Split:
    """A split with the same warps and stages for any number of programs."""
    return keys, ((0, warps, stages),), split


# measured on an NVIDIA H200 or H100, torch 2.11, triton 3.6; for heads wider than 256 chosen by the compiler's output
_MANY = {64: _any(128, 4, 3, 1024), 128: _any(64, 4, 3, 1024)}
_TABLE: Table = {
    "16BIT": {
        64: (
            (128, ((0, 4, 3), (3.5, 2, 2)), 512),
            (32, ((0, 4, 3), (1.75, 2, 3), (7, 2, 2)), 1024),
            _MANY[64],
        ),
        128: (
            (64, ((0, 4, 3), (3.5, 2, 2)), 256),
            (32, ((0, 4, 3), (1.75, 2, 3), (3.5, 2, 2), (7, 1, 2)), 1024),
            _MANY[128],
        ),
        256: (
            (32, ((0, 4, 3), (3.5, 2, 2)), 256),
            (32, ((0, 4, 3), (2.25, 2, 2)), 1024),
            _any(16, 4, 4, 1024),
        ),
        512: (_any(16, 4, 3, 256), _any(16, 4, 3, 1024), _any(16, 8, 3, 1024)),
    },
    "FLOAT8": {
        64: (
            (128, ((0, 4, 3), (3.5, 2, 3)), 512),
            (32, ((0, 4, 3), (1.5, 2, 3), (3.5, 1, 3)), 1024),
            _MANY[64],
        ),
        128: (
            (64, ((0, 4, 3), (3.5, 2, 3)), 256),
            (64, ((0, 4, 3), (1.5, 2, 3)), 1024),
            _MANY[128],
        ),
        256: (_any(32, 4, 3, 256), (32, ((0, 4, 3), (1.5, 2, 3)), 1024), _any(32, 4, 3, 1024)),
        512: (_any(16, 4, 3, 256), _any(16, 4, 3, 1024), _any(16, 8, 3, 1024)),
    },
    "FP32": {
        64: (_any(32, 2, 4, 512), _any(32, 2, 4, 1024), _any(32, 4, 4, 2048)),
        128: (_any(32, 4, 3, 256), _any(32, 4, 3, 1024), _any(32, 8, 3, 1024)),
        256: (_any(16, 4, 3, 256), _any(16, 4, 3, 1024), _any(16, 8, 3, 1024)),
        512: (_any(16, 8, 2, 256), _any(16, 8, 2, 1024), _any(16, 8, 2, 1024)),
    },
}
# for tiles of up to 64 rows if scores read tensors: these values are copied ahead as keys are, and with larger tiles a
# multiprocessor would have room for one program only
_LOADING: dict[str, dict[int, Split]] = {
    "16BIT": {64: _any(64, 4, 3, 1024), 128: _any(32, 4, 3, 1024)},
    "FLOAT8": {64: _any(64, 4, 3, 1024)},
}
# for specs that say `latent`, in addition, for values that are columns of keys. Of all 128 heads a program has 64:
# their accumulator takes half of the registers of 8 warps, their queries 72 KB of shared memory, a tile of 32 keys
# 36 KB. Products with tiles of 64 keys are easier, but only two such tiles fit, one of them in flight, and they spill
_LATENT_SPLITS = (_any(32, 4, 3, 256), _any(32, 4, 3, 1024), _any(32, 8, 3, 1024))
_LATENT: Table = {
    "16BIT": {576: _LATENT_SPLITS},
    "FLOAT8": {576: _LATENT_SPLITS},
    "FP32": {576: (_any(16, 8, 2, 256), _any(16, 8, 2, 1024), _any(16, 8, 2, 1024))},
}

# for the kernel of latent heads on Hopper GPUs: rows and keys of a tile, stages, and keys of a split; and the least
# rows of a pair of sequence and key head for which it is faster: with 17 to 64 rows it is 1.6 to 3 times as fast as the
# portable kernel, with 16 as fast or slower, 0.042 to 0.053 ms instead of 0.038
ON_HOPPER = (64, 64, 2, 1024)
LEAST_ROWS = 17

FEW = 16  # rows of a tile that become the columns of products: the GPU computes 16 rows by 8 columns at a time
CHUNK = 8  # splits that are joined one after the other
TOGETHER, MANY_ROWS = 4, 2048  # query heads that a program joins if splits are few, and from how many rows on
PAIRED = 7  # from this many programs per multiprocessor on, a program reads two key heads


def table(latent: bool, loading: bool) -> Table:
    """The tiles and splits of a spec, which may say `latent`, and whose scores may read tensors (`loading`)."""
    sizes = {kind: sizes | (_LATENT[kind] if latent else {}) for kind, sizes in _TABLE.items()}
    for kind, found in _LOADING.items() if loading else ():
        sizes[kind] |= {size: (*sizes[kind][size][:2], many) for size, many in found.items()}
    return sizes


def joined(splits: int, columns: int) -> tuple[int, int]:
    """How many chunks of so many splits a program joins at a time, and how many columns of out.

    All chunks, but no more than 32, with as many columns as 4 warps hold in registers. Generated code has the same
    rule.
    """
    chunks = min(1 << (-(-splits // CHUNK) - 1).bit_length(), 32)
    return chunks, min(columns, 1024 // chunks)


def last(rows: int, columns: int, warps: int) -> tuple[int, int]:
    """How many rows the program that stores the last of few parts joins, and how many columns of out at a time.

    0 rows if it joins none. Generated code has the same rule.
    """
    at_a_time = min(columns, 256 * warps // rows)
    return (rows, at_a_time) if rows <= FEW and columns <= 4 * at_a_time else (0, 0)


def tile(tables: Table, latent: bool, head_dim: int, dtype: str, arch: str, rows: int) -> Tile:
    """The tile of a call with so many rows for each key head, and no `split_size`; generated code has the same rule."""
    sizes = tables["FP32" if dtype == "fp32" else "16BIT"]
    short, _, many = next(found for size, found in sizes.items() if head_dim <= size)
    whole = dtype != "fp32" and family(arch) == "sm_90"
    roomy = head_dim <= 256 or whole
    # AMD's matrix instructions have 16 columns
    fewest = 8 if arch.startswith("sm_") and not latent else FEW
    block_m = min(max(rows, fewest), 64 if roomy else FEW)
    # products have this many rows there
    block_m = 64 if block_m > FEW and whole else block_m
    block_n, ((_, warps, stages), *_), _ = many if block_m > FEW else short
    return Tile(block_m, block_n, warps, stages)
