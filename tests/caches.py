"""Random decoding calls, and their expected results: the package's reference, one sequence at a time."""

from __future__ import annotations

import importlib
import inspect
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import unrewritten

Values = dict[str, Any]


def package(folder: Path, name: str, text: str, exports: str = "decode") -> ModuleType:
    """The package of a spec, with decoding among its exports."""
    # a machine with a GPU may lack the packages that rendering needs
    import unformatted

    path = folder / f"{name}.yaml"
    path.write_text(f"name: {name}\nexports: [{exports}]\n{text}")
    unformatted.write(path, folder / name)
    unrewritten.module(folder, f"{name}.decode")
    return sys.modules[name]


def forget(package: ModuleType) -> None:
    """Makes decoding calls choose their kernels again."""
    package.decode.CALLS.clear()
    importlib.import_module(f"{package.__name__}.runtime").LaunchCache.known.clear()


@dataclass
class Sequences:
    """Sequences of given lengths, whose last tokens are new."""

    lengths: Sequence[int]
    new: Sequence[int]
    heads: int = 4
    kv_heads: int = 2
    width: int = 16
    seed: int = 0
    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    v_width: int = 0  # 0: as wide as keys
    latent: bool = False  # whether values are the first columns of keys
    q: list[torch.Tensor] = field(init=False)
    k: list[torch.Tensor] = field(init=False)
    v: list[torch.Tensor] = field(init=False)

    def __post_init__(self) -> None:
        torch.manual_seed(self.seed)
        self.q = [self.drawn(n, self.heads, self.width) for n in self.new]
        self.k = [self.drawn(n, self.kv_heads, self.width) for n in self.lengths]
        v_width = self.v_width or self.width
        self.v = [self.drawn(n, self.kv_heads, v_width) for n in self.lengths]
        if self.latent:
            self.v = [x[..., :v_width] for x in self.k]

    def drawn(self, *shape: int) -> torch.Tensor:
        """Random numbers."""
        return torch.randn(shape, device=self.device, dtype=self.dtype)

    @property
    def seq_lens(self) -> torch.Tensor:
        """The number of keys of each sequence."""
        return torch.tensor(self.lengths, dtype=torch.int32, device=self.device)

    def cuts(self, side: str = "q") -> Values:
        """The offsets of each sequence's new tokens or keys, as keywords."""
        counts = self.new if side == "q" else self.lengths
        cu = torch.tensor([0, *counts], device=self.device).cumsum(0).int()
        return {f"cu_seqlens_{side}": cu, f"max_seqlen_{side}": max(counts)}


@dataclass
class Cache:
    """Keys and values of sequences in pages in random order, or in consecutive rows; everything else is NaN."""

    of: Sequences
    page: int = 16
    paged: bool = True
    room: int = 0  # slots per sequence
    swapped: bool = False  # whether heads come before slots
    starts: Sequence[int] = ()  # without pages: slots of the sequences' first keys

    def __post_init__(self) -> None:
        s = self.of
        most = max(start + n for start, n in zip(self.starts or [0] * len(s.lengths), s.lengths, strict=True))
        self.room = -(-max(self.room, most, 1) // self.page) * self.page
        count, each = len(s.lengths), self.room // self.page
        self.total = count * each + 3 if self.paged else count
        self.size = self.page if self.paged else self.room
        order = torch.randperm(self.total)
        self.table = order[: count * each].reshape(count, each) if self.paged else None
        self.nobodys = int(order[-1])
        self.k, self.v = (self.empty(x[0].shape[1:], x[0].dtype) for x in (s.k, s.v))
        if s.latent:
            self.v = self.k[..., : s.v[0].shape[-1]]

    def empty(self, rest: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Pages full of values that nothing should read."""
        lost, swapped = math.nan if dtype.is_floating_point else -7, self.swapped and len(rest) == 2
        shape = (self.total, rest[0], self.size, rest[1]) if swapped else (self.total, self.size, *rest)
        pages = torch.full(shape, lost, dtype=dtype, device=self.of.device)
        return pages.transpose(1, 2) if swapped else pages

    def slots(self, b: int) -> torch.Tensor:
        """The slots of a sequence's tokens."""
        place = torch.arange(self.of.lengths[b])
        if self.table is None:
            return (b * self.room + (self.starts[b] if self.starts else 0) + place).to(self.of.device)
        return (self.table[b][place // self.page] * self.page + place % self.page).to(self.of.device)

    def stored(self, rows: Sequence[torch.Tensor]) -> torch.Tensor:
        """Values of each token, in pages like the keys."""
        pages = self.empty(rows[0].shape[1:], rows[0].dtype)
        for b, x in enumerate(rows):
            pages[self.slots(b) // self.size, self.slots(b) % self.size] = x
        return pages

    def fill(self, append: Callable[..., None], turned: Callable[[int], Values] = lambda b: {}) -> Cache:
        """The same cache, filled with keys and values; `turned` gives the keywords that rotate a sequence's keys.

        If keys are stored unchanged, all but the last tokens are copied first: each appended token takes a program.
        """
        for b, (k, v) in enumerate(zip(self.of.k, self.of.v, strict=True)):
            given, slots = turned(b), self.slots(b)
            as_it_came = not given and k.dtype == self.k.dtype
            first = max(0, len(k) - 8) if as_it_came else 0
            for x, pages in ((k, self.k), (v, self.v)):
                pages[slots[:first] // self.size, slots[:first] % self.size] = x[:first].to(pages.dtype)
            if len(k):
                append(k[first:], v[first:], self.k, self.v, slots[first:], **given)
        return self

    def pages(self, seen: Callable[[int], int] = lambda length: 0) -> Values:
        """The page table as a keyword, or the slots of the first keys; table entries before the first key `seen` and
        after the last key point to an unused page.
        """
        if self.starts:
            return {"k_starts": torch.tensor(self.starts, dtype=torch.int32, device=self.of.device)}
        if self.table is None:
            return {}
        table = self.table.int()
        for b, n in enumerate(self.of.lengths):
            table[b, -(-n // self.page) :] = self.nobodys
            table[b, : seen(n) // self.page] = self.nobodys
        return {"page_table": table.to(self.of.device)}


def hold_float8(s: Sequences, cache: Cache, form: str) -> Values:
    """Fills a cache of latent heads with float8 keys; returns scales of the given form, NaN for unused slots.

    The keys and values of the sequences are replaced by those in the cache, times their scales.
    """
    cache.k = cache.k.to(torch.float8_e4m3fn)
    cache.v = cache.k[..., : s.v[0].shape[-1]]
    shape = {"one": (), "heads": (1,), "sequences": (len(s.lengths), 1), "places": cache.k.shape[:3]}[form]
    scales = {f"{x}_scale": torch.rand(shape, device=s.device) + 0.1 for x in "kv"}
    owned = torch.zeros(cache.k.shape[:3], dtype=torch.bool, device=s.device)
    for b in range(len(s.lengths)):
        place = cache.slots(b) // cache.size, cache.slots(b) % cache.size
        cache.k[place], owned[place] = s.k[b].to(cache.k.dtype), True
        stored = cache.k[place].float()
        for rows, scale in ((s.k, scales["k_scale"]), (s.v, scales["v_scale"])):
            own = scale[place][..., None] if form == "places" else scale[b] if form == "sequences" else scale
            rows[b] = stored[..., : rows[b].shape[-1]] * own
    if form == "places":
        scales = {name: scale.where(owned, math.nan) for name, scale in scales.items()}
    return scales


def expected(
    package: ModuleType, s: Sequences, given: Callable[[int], Values] = lambda b: {}
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Output and LSE of each sequence by the reference; `given` returns its keywords for a sequence."""
    found = []
    for b, n in enumerate(s.lengths):
        if n == 0 or s.new[b] == 0:
            empty = s.q[b].new_zeros(s.new[b], s.heads, s.v[b].shape[-1])
            found.append((empty, torch.full((s.heads, s.new[b]), -math.inf, device=s.device)))
            continue
        q, k, v = (x[b].double() if s.device != "cpu" else x[b] for x in (s.q, s.k, s.v))
        if "cu_seqlens" in inspect.signature(package.reference).parameters:
            cuts = (torch.tensor([0, len(x)], dtype=torch.int32, device=s.device) for x in (q, k))
            more = dict(
                zip(("cu_seqlens_q", "cu_seqlens_k"), cuts, strict=True), max_seqlen_q=len(q), max_seqlen_k=len(k)
            )
            rows = {name: x[0] for name, x in given(b).items()}
            found.append(package.reference(q, k, v, return_lse=True, **more, **rows))
            continue
        out, lse = package.reference(q[None], k[None], v[None], return_lse=True, **given(b))
        found.append((out[0], lse[0]))
    return [out for out, _ in found], [lse for _, lse in found]


def at_odd_places(x: torch.Tensor) -> torch.Tensor:
    """The same one-byte numbers, in rows that begin at odd and at even addresses."""
    wide = torch.empty(*x.shape[:-1], x.shape[-1] + 1, dtype=x.dtype, device=x.device)
    wide[..., 1:] = x
    return wide[..., 1:]
