"""Random specs: results for new tokens over random caches, against the reference of the same package.

ATTNFORGE_RANDOM=N sets how many: half as many as test_random_specs.py takes.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from caches import Cache, Sequences, Values, package
from devices import GPU
from random_inputs import Draw
from random_specs import MASKS, generate, refused

from attnforge.expressions.inputs import ROW_AXES, Axis, Input
from attnforge.language import spec
from attnforge.language.spec import Spec
from attnforge.plan.paged import PAGED, decoded
from attnforge.source import resources

pytestmark = [pytest.mark.slow, pytest.mark.skipif(GPU, reason="sizes of the interpreter")]

COUNT = int(os.environ.get("ATTNFORGE_RANDOM", "10")) // 2
OPTIONS = {keyword: values for _, _, options in MASKS for keyword, values in options.values()}
# an input of the excluded spec has the name of a keyword of decoding
FOUND = [path for path in (Path(__file__).parents[1] / "found_specs").glob("*.yaml") if path.stem != "crowded_names"]


def cut(x: torch.Tensor, axis: int, counts: Sequence[int], batch: int | None) -> tuple[list[torch.Tensor], int]:
    """The first rows of each sequence, without the batch axis, and the axis of these rows."""
    each = [x] * len(counts) if batch is None else x.unbind(batch)
    axis -= batch is not None and batch < axis
    return [y.narrow(axis, 0, n) for y, n in zip(each, counts, strict=True)], axis


def axes(given: Input) -> tuple[int | None, list[int]]:
    """The batch axis, if there is one, and the axes that run over tokens."""
    batch = given.kinds.index("batch") if "batch" in given.kinds else None
    return batch, [i for i, kind in enumerate(given.kinds) if kind in ROW_AXES]


class Calls:
    """Calls of decoding and of the reference that should give the same results."""

    def __init__(self, seed: str, loaded: Spec, module: ModuleType) -> None:
        self.draw, self.spec, self.module = Draw(seed), loaded, module
        pick = self.draw.pick
        width = pick((8, 16, 20)) if not loaded.rope else max(16, loaded.rope.dims or 16)
        kv_heads, count = pick((1, 2, 3)), pick((1, 2, 3))
        self.cuts = self.draw.chance(0.5)  # new tokens are packed, any number in each sequence
        new = [pick((0, 1, 1, 2, 5)) for _ in range(count)] if self.cuts else [pick((1, 1, 3, 9))] * count
        new[0] = max(new[0], 1)
        lengths = [n + pick((0, 1, 5, 31, 64, 90)) for n in new]
        self.s = Sequences(
            lengths, new, kv_heads * (pick((1, 2)) if loaded.grouped else 1), kv_heads, width,
            v_width=pick((width, 12)), seed=self.draw.below(2**30),
        )  # fmt: skip
        paged = self.draw.chance(0.6)
        starts = [] if paged or self.draw.chance(0.5) else [pick((0, 3)) for _ in lengths]
        room = max(lengths) + pick((0, 7))
        self.cache = Cache(self.s, page=pick((1, 8, 32)), paged=paged, room=room, starts=starts)
        self.most = {"query": max(new), "key": max(lengths), "token": max(lengths)}
        self.given, self.wanted = Values(), Values()
        self._fill()

    def _size(self, axis: Axis) -> int:
        """The size of an axis, for an input with a value for each place of the cache."""
        s, query = self.s, self.most["query"]
        counts = {"batch": len(s.new), "head": s.heads, "kv_head": s.kv_heads, "query": query, "size": int(axis.size)}
        count = counts.get(axis.kind, self.cache.room)
        return int(axis.per) if axis.rest else -(-count // int(axis.per))

    def _value(self, given: Input) -> Any:
        """Random values within the limits of an input; a tensor has one for each place of the cache."""
        if not given.axes and given.dtype == "bool":
            return self.draw.chance(0.5)
        shape = [self._size(axis) for axis in given.axes]
        least, most = (-torch.inf if given.minimum is None else given.minimum), given.maximum
        if given.dtype == "bool":
            return torch.randn(shape) > -0.5
        if given.dtype == "int":
            value = torch.randint(0, 3 if given.rows else 41, shape).clamp(least, most).int()
        else:
            size = -0.3 if given.scan and given.name == "log_decay" else 0.3
            value = (torch.rand(shape) if given.name in ("slopes", "log_decay") else torch.randn(shape)) * size
            value = value.clamp(least, most)
        return value if given.axes else value.item()

    def _fill(self) -> None:
        """Draws the keywords of both calls."""
        names = inspect.signature(self.module.decode.attend_with_cache).parameters
        both = {name: self.draw.pick(values) for name, values in OPTIONS.items() if name in names}
        if self.spec.sink:
            both["sinks"] = torch.randn(self.s.heads)
        if self.spec.rope:
            angle = torch.randn(self.cache.room, (self.spec.rope.dims or self.s.width) // 2)
            both |= {"cos": angle.cos(), "sin": angle.sin()}
        if self.draw.chance(0.3):
            both["scale"] = self.draw.pick((0.3, -0.2))
        self.given |= both
        self.wanted |= both
        own = {given.name: given for given in self.spec.inputs}
        for given in decoded(self.spec).inputs:
            name = own[given.name].keyword or given.name
            if name in both or name not in names or (given.default is not None and self.draw.chance(0.5)):
                continue
            value = self._value(given)
            self.given[name] = self._decoded(given, value)
            self.wanted[name] = self._whole(given, value)

    def _decoded(self, given: Input, value: Any) -> Any:
        """An input in the form that decoding takes."""
        batch, rows = axes(given)
        if PAGED.holds(given):
            (token,) = rows
            each, axis = cut(value, token, self.s.lengths, batch)
            stored = self.cache.stored([y.movedim(axis, 0) for y in each])
            return stored.movedim((0, 1), (batch, token))
        if PAGED.follows(given) and self.cuts:
            return torch.cat(*cut(value, *rows, self.s.new, batch))
        return value

    def _whole(self, given: Input, value: Any) -> Any:
        """An input as the reference takes it: cut to the longest sequence, or with all sequences' rows packed."""
        batch, rows = axes(given)
        if not self.spec.packed:
            for i in rows:
                value = value.narrow(i, 0, -(-self.most[given.kinds[i]] // int(given.axes[i].per)))
            return value
        if batch is None or not rows:
            return value
        (row,) = rows
        counts = self.s.new if given.kinds[row] == "query" else self.s.lengths
        return torch.cat(*cut(value, row, counts, batch))

    def expected(self) -> list[list[torch.Tensor]]:
        """Out, LSE and the sums over keys of each sequence."""
        s, new, lengths = self.s, list(self.s.new), list(self.s.lengths)
        q, k, v = ([y.double() for y in x] for x in (s.q, s.k, s.v))
        given = {
            name: x.double() if torch.is_tensor(x) and x.is_floating_point() else x for name, x in self.wanted.items()
        }
        given |= {"return_lse": True, "return_key_sums": True}
        if self.spec.packed:
            out, lse, sums = self.module.reference(*map(torch.cat, (q, k, v)), **given, **s.cuts(), **s.cuts("k"))
            return [list(x) for x in zip(out.split(new), lse.split(new, 1), sums.split(lengths, 1), strict=True)]
        starts = torch.tensor([n - count for n, count in zip(lengths, new, strict=True)], dtype=torch.int32)
        padded = (torch.nn.utils.rnn.pad_sequence(x, batch_first=True) for x in (q, k, v))
        out, lse, sums = self.module.reference(*padded, **given, k_lens=s.seq_lens, q_start=starts)
        rows = zip(out, lse, sums, new, lengths, strict=True)
        return [[o[:n], x[:, :n], y[:, :count]] for o, x, y, n, count in rows]

    def found(self, **more: Any) -> list[list[torch.Tensor]]:
        """The same results from decoding."""
        s, new = self.s, list(self.s.new)
        given = {**self.given, **self.cache.pages(), **more, "return_lse": True}
        q = torch.cat(s.q) if self.cuts else torch.stack(s.q)
        given |= s.cuts() if self.cuts else {}
        out, lse, *sums = self.module.decode.attend_with_cache(q, self.cache.k, self.cache.v, s.seq_lens, **given)
        outs, lses = (out.split(new), lse.split(new, 1)) if self.cuts else (out, lse)
        rows = zip(outs, lses, *sums, strict=True)
        return [[o, x, *(y[:, :count] for y in z)] for (o, x, *z), count in zip(rows, s.lengths, strict=True)]

    def turned(self, b: int) -> Values:
        """The keywords that rotate a sequence's keys."""
        if not self.spec.rope:
            return {}
        return {name: self.given[name] for name in ("cos", "sin")} | {"positions": torch.arange(self.s.lengths[b])}


def ways(draw: Draw) -> Iterator[Values]:
    """Keywords that change which sums are computed, and in which order."""
    yield {"return_key_sums": True}
    yield {"split_size": draw.pick((128, 1024))}
    yield {"bitwise": "training"}


def hold(text: str, name: str, folder: Path, count: int) -> None:
    """Compares `count` calls of a spec's decoding, each in several ways, with its reference."""
    lines = [line for line in text.splitlines() if not line.startswith(("name:", "dropout:", "exports:"))]
    module = package(folder, name, "\n".join(lines), "decode, statistics")
    path = folder / f"{name}.yaml"
    loaded = spec.load(path, terms=resources.terms_for(path))
    for i in range(count):
        calls = Calls(f"decoding {name} {i}", loaded, module)
        calls.cache.fill(module.decode.append, calls.turned)
        wanted = calls.expected()
        for more in ways(calls.draw):
            try:
                found = calls.found(**more)
            except ValueError as error:
                if "bitwise" in more and "bitwise" in str(error):
                    continue
                raise
            about = f"{calls.s.lengths} {calls.s.new} {more}\n{text}"
            for b, (sequence, known) in enumerate(zip(found, wanted, strict=True)):
                for what, x, y in zip(("out", "lse", "sums"), sequence, known, strict=False):
                    close = torch.isclose(x.double(), y, rtol=1e-3, atol=1e-4) | (x == y)
                    assert close.all(), f"{what} of sequence {b}: {about}"


@pytest.mark.parametrize("seed", range(COUNT))
def test_random_specs_decode(seed: int, tmp_path: Path) -> None:
    given = generate(seed)
    if why := refused(given):
        pytest.skip(why)
    hold(given.yaml, given.name, tmp_path, 2)


@pytest.mark.parametrize("path", sorted(FOUND), ids=lambda p: p.stem)
def test_specs_that_failed_once_decode(path: Path, tmp_path: Path) -> None:
    hold(path.read_text(), path.stem, tmp_path, 1)
