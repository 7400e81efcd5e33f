"""Decoding at the sizes of real models, on a GPU: compared with the reference in float64, replayed as a CUDA graph."""

from __future__ import annotations

import importlib
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from caches import Cache, Sequences, Values, at_odd_places, expected, forget, hold_float8
from devices import GPU

sys.path.insert(0, str(Path(__file__).parents[2]))
pytestmark = pytest.mark.skipif(not GPU, reason="needs a GPU")
HEADS, KV_HEADS, MOST = 32, 8, 8192
LENGTHS = (5000, 1, 0, 129, 2048, 513)
Given = tuple[Values, Callable[[int], Values]]


def load(name: str) -> ModuleType:
    """A package that decodes."""
    importlib.import_module(f"generated.{name}.decode")
    return importlib.import_module(f"generated.{name}")


def angles(width: int) -> Values:
    """Cosines and sines of the positions of a model."""
    rates = 10000.0 ** (-torch.arange(width // 2, device="cuda") * 2 / width)
    turned = torch.arange(MOST, device="cuda")[:, None] * rates
    return {"cos": turned.cos(), "sin": turned.sin()}


def given(name: str, s: Sequences) -> Given:
    """Keywords of a call, and those of each of its sequences."""
    found: Values = {}
    if name in ("mistral", "llama3", "gpt_oss", "gpt_oss_window", "gemma2_local", "tree_decoding"):
        found |= angles(s.width)
    if name.startswith("gpt_oss"):
        found["sinks"] = torch.linspace(-2, 4, s.heads, device="cuda")
    if name == "prefix_lm":
        lengths = torch.arange(len(s.lengths), device="cuda", dtype=torch.int32) * 50
        return {"prefix_len": lengths}, lambda b: {"prefix_len": lengths[b : b + 1]}
    if name == "tree_decoding":
        mask = torch.rand(len(s.new), max(s.new), max(s.new), device="cuda") > 0.4
        return found | {"tree_mask": mask}, lambda b: found | {"tree_mask": mask[b : b + 1, : s.new[b], : s.new[b]]}
    return found, lambda b: found


def turned(module: ModuleType, s: Sequences, alone: Callable[[int], Values]) -> Callable[[int], Values]:
    """The keywords that rotate keys as they are stored in a cache."""

    def find(b: int) -> Values:
        found = {x: y for x, y in alone(b).items() if x in ("cos", "sin")}
        return found and found | {"positions": torch.arange(s.lengths[b], device="cuda")}

    return find


def check(outs: list[torch.Tensor], wanted: list[torch.Tensor], limit: float) -> None:
    """Compares rows with what they should be, by the norm of the difference."""
    for x, y in zip(outs, wanted, strict=True):
        assert torch.equal(x == -math.inf, y == -math.inf)
        seen = y > -math.inf
        gap = (x.double() - y.double())[seen].norm()
        assert gap <= limit * y.double()[seen].norm() + 1e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("width", [64, 128, 256])
@pytest.mark.parametrize("page", [0, 16, 256])
def test_one_new_token(page: int, width: int, dtype: torch.dtype) -> None:
    name, s = "causal", Sequences(LENGTHS, [1] * len(LENGTHS), HEADS, KV_HEADS, width, device="cuda", dtype=dtype)
    module = load(name)
    cache = Cache(s, page or 16, paged=bool(page)).fill(module.decode.append)
    q = torch.cat(s.q)
    out, lse = module.decode.attend_with_cache(q, cache.k, cache.v, s.seq_lens, return_lse=True, **cache.pages())
    wanted, wanted_lse = expected(module, s)
    check(list(out.split(1)), wanted, 6e-3)
    check(list(lse.split(1, 1)), wanted_lse, 1e-3)


@pytest.mark.parametrize("kind", ["bf16", "fp16", "fp32", "float8"])
@pytest.mark.parametrize(
    ("name", "width"), [*(("causal", d) for d in (64, 128, 256)), ("log_decay", 128), ("gpt_oss", 64)]
)
@pytest.mark.parametrize("split_size", [None, 1024])
def test_bits_hang_on_no_other_programs(
    split_size: int | None, name: str, width: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With many other programs, a program has other warps and stages, and one that joins parts has several heads."""
    dtype = {"fp16": torch.float16, "fp32": torch.float32}.get(kind, torch.bfloat16)
    s = Sequences(LENGTHS, [1] * len(LENGTHS), HEADS, KV_HEADS, width, device="cuda", dtype=dtype)
    module, launch = load(name), importlib.import_module(f"generated.{name}.decode_launch")
    cache, more = Cache(s), dict(given(name, s)[0], split_size=split_size, return_lse=True)
    if kind == "float8":
        cache.k, cache.v = (torch.randn_like(x).to(torch.float8_e4m3fn) for x in (cache.k, cache.v))
        more |= dict.fromkeys(("k_scale", "v_scale"), torch.tensor(0.5, device="cuda"))
    else:
        cache.k, cache.v = (torch.randn_like(x) for x in (cache.k, cache.v))
    if name == "log_decay":
        more["log_decay"] = cache.stored([torch.rand(n, HEADS, device="cuda") / -100 for n in LENGTHS])
    found = []
    for last in range(3):
        monkeypatch.setattr(launch, "beside", lambda ways, *_, last=last: ways[: last + 1][-1][1:])
        monkeypatch.setattr(launch, "MANY_ROWS", 0 if last else 2**30)
        forget(module)
        found.append(
            module.decode.attend_with_cache(torch.cat(s.q), cache.k, cache.v, s.seq_lens, **cache.pages(), **more)
        )
    alone, *others = found
    for one in others:
        assert all(map(torch.equal, one, alone))


@pytest.mark.parametrize("name", ["causal", "sliding_window"])
def test_the_first_key_may_stand_anywhere(name: str) -> None:
    s = Sequences([3000, 3, 129], [3, 3, 3], HEADS, KV_HEADS, 128, device="cuda", dtype=torch.bfloat16)
    module, cache = load(name), Cache(s, paged=False, starts=(5, 3013, 64))
    cache.fill(module.decode.append)
    given = {**cache.pages(), "return_lse": True}
    out, lse = module.decode.attend_with_cache(torch.stack(s.q), cache.k, cache.v, s.seq_lens, **given)
    wanted, wanted_lse = expected(module, s)
    check(list(out), wanted, 6e-3)
    check(list(lse), wanted_lse, 1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("width", "v_width"), [(288, 288), (512, 512), (320, 64)])
def test_heads_wider_than_256(width: int, v_width: int, dtype: torch.dtype) -> None:
    module = load("causal")
    for new in (1, 9):
        lengths = [3000, new, 513]
        s = Sequences(lengths, [new] * 3, HEADS, KV_HEADS, width, device="cuda", dtype=dtype, v_width=v_width)
        cache = Cache(s).fill(module.decode.append)
        given = {**cache.pages(), "return_lse": True}
        out, lse = module.decode.attend_with_cache(torch.stack(s.q), cache.k, cache.v, s.seq_lens, **given)
        wanted, wanted_lse = expected(module, s)
        check(list(out), wanted, 6e-3)
        check(list(lse), wanted_lse, 1e-3)


def latent(lengths: list[int], new: int, heads: int = 128, dtype: torch.dtype = torch.bfloat16) -> Sequences:
    """Sequences of absorbed latent attention."""
    shape = {"width": 576, "v_width": 512, "latent": True, "device": "cuda", "dtype": dtype}
    return Sequences(lengths, [min(new, n) for n in lengths], heads, 1, **shape)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("page", [0, 16, 64])
@pytest.mark.parametrize("heads", [8, 16, 40, 128])
def test_latent_heads(heads: int, page: int, dtype: torch.dtype) -> None:
    module, s = load("deepseek_mla_absorbed"), latent(list(LENGTHS), 1, heads, dtype)
    cache = Cache(s, page or 16, paged=bool(page)).fill(module.decode.append)
    given = {**cache.pages(), **s.cuts(), "return_lse": True}
    out, lse = module.decode.attend_with_cache(torch.cat(s.q), cache.k, cache.v, s.seq_lens, **given)
    wanted, wanted_lse = expected(module, s)
    check(list(out.split(s.new)), wanted, 6e-3)
    check(list(lse.split(s.new, 1)), wanted_lse, 1e-3)


hopper = pytest.mark.skipif(not GPU or torch.cuda.get_device_capability() != (9, 0), reason="needs a Hopper GPU")


class Latent:
    """The shipped variant with latent heads; each call chooses a target, and earlier launches are forgotten."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.module, self.monkeypatch = load("deepseek_mla_absorbed"), monkeypatch
        self.runtime = importlib.import_module("generated.deepseek_mla_absorbed.runtime")
        self.ask("")

    def ask(self, target: str) -> None:
        """Makes calls take the kernels of a target."""
        self.monkeypatch.setenv("ATTNFORGE_TARGET", target)
        forget(self.module)

    def took(self) -> set[str]:
        """The modules of the kernels that have run attention since then."""
        caches = self.runtime.LaunchCache.known.values()
        known = [cache.hopper_tiles["decode"] for cache in caches if "decode" in cache.hopper_tiles]
        return {best[-1].__name__.rpartition(".")[2] if best else "decode_kernels" for best in known}


@hopper
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("page", [0, 8, 16, 24, 64, 256])
@pytest.mark.parametrize(("heads", "new"), [(128, 1), (64, 1), (128, 3), (20, 5)])
def test_latent_heads_on_hopper_gpus(
    heads: int, new: int, page: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lengths around the boundaries of tiles and splits; rows of no sequence are NaN, unused entries name no pages."""
    package = Latent(monkeypatch)
    lengths = [5000, 1, 0, 63, 64, 65, 127, 128, 129, 1023, 1024, 1025, 2048, 2049]
    s = latent(lengths, new, heads, dtype)
    cache = Cache(s, page or 16, paged=bool(page)).fill(package.module.decode.append)
    given = {**cache.pages(), **s.cuts(), "return_lse": True}
    if page:
        used = torch.tensor([-(-n // page) for n in lengths], device="cuda")[:, None]
        table = given["page_table"]
        place = torch.arange(table.shape[1], device="cuda")[None]
        given["page_table"] = torch.where(place < used, table, 2**30 - 1 + place % 2).int()
    wanted, wanted_lse = expected(package.module, s)
    for scale in (None, -0.02):
        more = given if scale is None else {**given, "scale": scale}
        out, lse = package.module.decode.attend_with_cache(torch.cat(s.q), cache.k, cache.v, s.seq_lens, **more)
        if scale is not None:
            wanted, wanted_lse = expected(package.module, s, lambda b: {"scale": -0.02})
        check(list(out.split(s.new)), wanted, 6e-3)
        check(list(lse.split(s.new, 1)), wanted_lse, 1e-3)
    assert package.took() == {"decode_hopper"}


@hopper
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("form", ["one", "sequences", "places"])
@pytest.mark.parametrize("page", [0, 1, 12, 64])
@pytest.mark.parametrize(("heads", "new"), [(128, 1), (20, 5)])
def test_latent_heads_of_float8_on_hopper_gpus(
    heads: int, new: int, page: int, form: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys and values may have separate scales; pages may have any size, and those that no key uses are NaN."""
    package = Latent(monkeypatch)
    lengths = [2049, 1, 0, 63, 64, 65, 129, 1024]
    s = latent(lengths, new, heads, dtype)
    cache = Cache(s, page or 16, paged=bool(page))
    scales = hold_float8(s, cache, form)
    given = {**cache.pages(), **s.cuts(), **scales, "return_lse": True}
    wanted, wanted_lse = expected(package.module, s)
    for _ in range(2):
        out, lse = package.module.decode.attend_with_cache(torch.cat(s.q), cache.k, cache.v, s.seq_lens, **given)
        check(list(out.split(s.new)), wanted, 6e-3)
        check(list(lse.split(s.new, 1)), wanted_lse, 1e-3)
    assert package.took() == {"decode_hopper"}


@hopper
@pytest.mark.parametrize("split_size", [None, 128, 2048])
def test_latent_heads_by_each_target(split_size: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ragged tokens among sequences without any; the second call uses what the first one left remembered."""
    package = Latent(monkeypatch)
    lengths, new = [700, 300, 5, 3000, 40, 0], [3, 1, 5, 2, 0, 0]
    shape = {"width": 576, "v_width": 512, "latent": True, "device": "cuda", "dtype": torch.bfloat16}
    s = Sequences(lengths, new, 64, 1, **shape)
    cache = Cache(s, 64).fill(package.module.decode.append)
    given = {**cache.pages(), **s.cuts(), "return_lse": True, "split_size": split_size}
    q, (wanted, wanted_lse) = torch.cat([*s.q, torch.zeros_like(s.q[0])]), expected(package.module, s)
    for target, taken in (("portable", "decode_kernels"), ("hopper", "decode_hopper"), ("", "decode_hopper")):
        package.ask(target)
        found = [package.module.decode.attend_with_cache(q, cache.k, cache.v, s.seq_lens, **given) for _ in range(3)]
        assert package.took() == {taken}
        for out, lse in found:
            assert torch.equal(out, found[0][0]) and torch.equal(lse, found[0][1])
            assert (out[sum(new) :] == 0).all() and (lse[:, sum(new) :] == -math.inf).all()
            check(list(out[: sum(new)].split(new)), wanted, 6e-3)
            check(list(lse[:, : sum(new)].split(new, 1)), wanted_lse, 1e-3)


@hopper
@pytest.mark.parametrize("scale", [0.0, -1.0, 1e-30])
def test_scales_of_latent_heads(scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    package, s = Latent(monkeypatch), latent([300, 65], 2)
    cache = Cache(s, 64).fill(package.module.decode.append)
    out = package.module.decode.attend_with_cache(
        torch.cat(s.q), cache.k, cache.v, s.seq_lens, scale=scale, **cache.pages(), **s.cuts()
    )
    check(list(out.split(s.new)), expected(package.module, s, lambda b: {"scale": scale})[0], 6e-3)
    assert package.took() == {"decode_hopper"}


@hopper
def test_latent_caches_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remembered launches read the cache that they are given; the portable kernel reads one that a GPU cannot copy."""
    package = Latent(monkeypatch)
    for seed in range(3):
        s = latent([700, 129], 1)
        s.q = [x + seed for x in s.q]
        cache = Cache(s, 64).fill(package.module.decode.append)
        out = package.module.decode.attend_with_cache(torch.cat(s.q), cache.k, cache.v, s.seq_lens, **cache.pages())
        check(list(out.split(1)), expected(package.module, s)[0], 6e-3)
    assert package.took() == {"decode_hopper"}
    k = torch.empty(cache.k.numel() + 1, device="cuda", dtype=cache.k.dtype)[1:].view(cache.k.shape).copy_(cache.k)
    moved = package.module.decode.attend_with_cache(torch.cat(s.q), k, k[..., :512], s.seq_lens, **cache.pages())
    check([moved], [out], 6e-3)
    assert package.took() == {"decode_hopper", "decode_kernels"}


@hopper
@pytest.mark.parametrize("page", [8, 16, 64])
def test_bits_of_latent_heads_hang_on_neither_pages_nor_the_batch(page: int, monkeypatch: pytest.MonkeyPatch) -> None:
    package, s = Latent(monkeypatch), latent([3000, 129, 700, 65], 1)
    decoding = package.module.decode
    cache = Cache(s, page).fill(decoding.append)
    out = decoding.attend_with_cache(torch.cat(s.q), cache.k, cache.v, s.seq_lens, **cache.pages())
    for b in range(4):
        k = s.k[b][None]
        alone = decoding.attend_with_cache(s.q[b], k, k[..., :512], s.seq_lens[b : b + 1])
        assert torch.equal(alone[0], out[b])
    assert package.took() == {"decode_hopper"}


@hopper
def test_a_kernel_for_latent_heads_that_does_not_compile_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    package, s = Latent(monkeypatch), latent([300, 65], 1)
    cache = Cache(s, 64).fill(package.module.decode.append)

    def call() -> torch.Tensor:
        q = torch.cat(s.q)
        out: torch.Tensor = package.module.decode.attend_with_cache(q, cache.k, cache.v, s.seq_lens, **cache.pages())
        return out

    wanted = call()
    package.ask("")
    monkeypatch.setattr(package.runtime, "strip_source", lambda *_: 1 / 0)
    for remembered in ("unwilling", "failed"):
        monkeypatch.setattr(package.runtime, remembered, set())
    with pytest.warns(UserWarning, match="portable kernels take the place of those for Hopper GPUs: ZeroDivisionError"):
        out = call()
    assert package.took() == {"decode_kernels"}
    check([out], [wanted], 6e-3)
    assert torch.equal(call(), out)


@pytest.mark.parametrize("new", [2, 7, 40])
def test_new_tokens_of_latent_heads(new: int) -> None:
    """Values that are columns of keys give the same as a copy of them."""
    module, s = load("deepseek_mla_absorbed"), latent([5000, 700, 129], new)
    cache = Cache(s, 64).fill(module.decode.append)
    given = {**cache.pages(), **s.cuts()}
    wanted = expected(module, s)[0]
    for v in (cache.v, cache.v.contiguous()):
        out = module.decode.attend_with_cache(torch.cat(s.q), cache.k, v, s.seq_lens, **given)
        check(list(out.split(s.new)), wanted, 6e-3)


@pytest.mark.skipif(GPU and torch.cuda.get_device_capability() < (8, 9), reason="needs a GPU that knows float8_e4m3fn")
@pytest.mark.parametrize("form", ["one", "heads", "sequences"])
@pytest.mark.parametrize("page", [0, 16, 64])
@pytest.mark.parametrize(("name", "group", "new"), [("causal", 4, 1), ("gpt_oss", 8, 1), ("sliding_window", 2, 3)])
def test_bits_hang_on_no_head_that_is_read_beside_another(
    name: str, group: int, new: int, page: int, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of two heads, 64 bytes each, with separate scales."""
    lengths = [max(n, new) for n in LENGTHS]
    s = Sequences(lengths, [new] * len(lengths), group * KV_HEADS, KV_HEADS, 64, device="cuda", dtype=torch.bfloat16)
    module, launch = load(name), importlib.import_module(f"generated.{name}.decode_launch")
    cache = Cache(s, page or 16, paged=bool(page))
    cache.k, cache.v = (torch.randn(x.shape, device="cuda").to(torch.float8_e4m3fn) for x in (cache.k, cache.v))
    shape = {"one": (), "heads": (KV_HEADS,), "sequences": (len(lengths), KV_HEADS)}[form]
    scales = {f"{x}_scale": torch.rand(shape, device="cuda") for x in "kv"}
    more = dict(given(name, s)[0], split_size=1024, return_lse=True, **scales, **cache.pages())
    found = []
    for least in (0, 2**30):
        monkeypatch.setattr(launch, "PAIRED", least)
        forget(module)
        found.append(module.decode.attend_with_cache(torch.stack(s.q), cache.k, cache.v, s.seq_lens, **more))
    for together, alone in zip(*found, strict=True):
        assert torch.equal(together, alone) and not together.isnan().any()


@pytest.mark.skipif(GPU and torch.cuda.get_device_capability() < (8, 9), reason="needs a GPU that knows float8_e4m3fn")
@pytest.mark.parametrize("power", [0, -100, 90])
@pytest.mark.parametrize("heads", [16, 128])
def test_latent_caches_of_float8(heads: int, power: int) -> None:
    """Rows of q are brought below 16 by the largest value in all of their columns."""
    module, s = load("deepseek_mla_absorbed"), latent([2000, 129], 1, heads)
    for x in s.q:
        x[..., 570] *= 64
    cache, scale = Cache(s, 64), torch.tensor(0.03, device="cuda")
    cache.k = torch.zeros_like(cache.k).to(torch.float8_e4m3fn)
    cache.v = cache.k[..., :512]
    for b in range(2):
        place = cache.slots(b) // 64, cache.slots(b) % 64
        module.decode.append(s.k[b], s.v[b], cache.k, cache.v, cache.slots(b), k_scale=scale, v_scale=scale)
        s.k[b] = cache.k.float()[place] * scale
        s.v[b] = s.k[b][..., :512]
    given = {"k_scale": scale, "v_scale": scale, "scale": 0.01 / 2.0**power, **cache.pages()}
    q = torch.stack(s.q) * 2.0**power
    out = module.decode.attend_with_cache(q, cache.k, cache.v, s.seq_lens, **given)
    check(list(out), expected(module, s, lambda b: {"scale": 0.01})[0], 6e-3)


@pytest.mark.parametrize("new", [1, 5, 64, 300])
@pytest.mark.parametrize(
    "name",
    [
        "causal",
        "mistral",
        "llama3",
        "gpt_oss",
        "gpt_oss_window",
        "gemma2_local",
        "softcap",
        "alibi",
        "prefix_lm",
        "streaming_llm",
        "tree_decoding",
    ],
)
def test_new_tokens_of_variants(name: str, new: int) -> None:
    lengths = [5000, 700, 129, 300]
    s = Sequences(lengths, [min(new, n) for n in lengths], HEADS, KV_HEADS, 128, device="cuda", dtype=torch.bfloat16)
    module = load(name)
    values, alone = given(name, s)
    cache = Cache(s).fill(module.decode.append, turned(module, s, alone))
    more = values | cache.pages() | s.cuts()
    out, lse = module.decode.attend_with_cache(torch.cat(s.q), cache.k, cache.v, s.seq_lens, return_lse=True, **more)
    wanted, wanted_lse = expected(module, s, alone)
    # the rotated keys in the cache are rounded
    check(list(out.split(s.new)), wanted, 2e-2 if "cos" in values else 6e-3)
    check(list(lse.split(s.new, 1)), wanted_lse, 5e-3)


@pytest.mark.skipif(GPU and torch.cuda.get_device_capability() < (8, 9), reason="needs a GPU that knows float8_e4m3fn")
@pytest.mark.parametrize("held", [torch.bfloat16, torch.float16, torch.float8_e4m3fn])
@pytest.mark.parametrize("page", [0, 16, 64])
@pytest.mark.parametrize("width", [48, 64, 128, 256])
@pytest.mark.parametrize("new", [5, 8, 12, 100])
def test_drafted_tokens(new: int, width: int, page: int, held: torch.dtype) -> None:
    """Tiles have more rows than for one new token."""
    lengths = [3000, new, 129, 1025, 0]
    short = held == torch.float8_e4m3fn
    dtype = torch.bfloat16 if short else held
    s = Sequences(
        lengths, [min(new, n) for n in lengths], HEADS, KV_HEADS, width, device="cuda", dtype=dtype, seed=width + new
    )
    module, cache = load("causal"), Cache(s, page or 16, paged=bool(page))
    scales: Values = {}
    if short:
        s.k, s.v = ([x.to(held).to(dtype) for x in rows] for rows in (s.k, s.v))
        cache.k, cache.v = cache.k.to(held), cache.v.to(held)
        scales = dict.fromkeys(("k_scale", "v_scale"), torch.tensor(1.0, device="cuda"))
    cache.fill(module.decode.append, lambda b: scales)
    given = {**cache.pages(), **s.cuts(), **scales, "return_lse": True}
    out, lse = module.decode.attend_with_cache(torch.cat(s.q), cache.k, cache.v, s.seq_lens, **given)
    wanted, wanted_lse = expected(module, s)
    check(list(out.split(s.new)), wanted, 6e-3)
    check(list(lse.split(s.new, 1)), wanted_lse, 1e-3)


@pytest.mark.skipif(GPU and torch.cuda.get_device_capability() < (8, 9), reason="needs a GPU that knows float8_e4m3fn")
@pytest.mark.parametrize("form", ["one", "heads", "sequences", "places"])
def test_caches_of_float8(form: str) -> None:
    """No further from attention over the cache's values than with a cache of 16 bits."""
    s = Sequences([5000, 513, 129], [1] * 3, HEADS, KV_HEADS, 128, device="cuda", dtype=torch.bfloat16)
    module = load("causal")
    decoding, cache = module.decode, Cache(s)
    cache.k, cache.v = (torch.zeros_like(x).to(torch.float8_e4m3fn) for x in (cache.k, cache.v))
    shape = {"one": (), "heads": (KV_HEADS,), "sequences": (3, KV_HEADS), "places": cache.k.shape[:3]}[form]
    scales = [torch.rand(shape, device="cuda") * 0.02 + 0.02 for _ in "kv"]
    for b in range(3):
        k_scale, v_scale = (x[b] if form == "sequences" else x for x in scales)
        decoding.append(s.k[b], s.v[b], cache.k, cache.v, cache.slots(b), k_scale=k_scale, v_scale=v_scale)
        place = cache.slots(b) // 16, cache.slots(b) % 16
        for pages, scale, rows in ((cache.k, k_scale, s.k), (cache.v, v_scale, s.v)):
            factor = scale[place] if form == "places" else scale
            held = pages.float()[place] * (factor[..., None] if factor.dim() else factor)
            torch.testing.assert_close(held, rows[b].float(), rtol=0.07, atol=0.01)
            rows[b] = held.double()
    given = {"k_scale": scales[0], "v_scale": scales[1], **cache.pages()}
    out = decoding.attend_with_cache(torch.cat(s.q), cache.k, cache.v, s.seq_lens, **given)
    check(list(out.split(1)), expected(module, s)[0], 6e-3)


@pytest.mark.skipif(GPU and torch.cuda.get_device_capability() < (8, 9), reason="needs a GPU that knows float8_e4m3fn")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("page", [0, 16, 64])
@pytest.mark.parametrize("width", [32, 64, 96, 128, 256])
@pytest.mark.parametrize("split_size", [None, 1024])
def test_values_of_float8_are_read_two_columns_at_a_time(
    split_size: int | None, width: int, page: int, dtype: torch.dtype
) -> None:
    """All numbers of float8."""
    s = Sequences(LENGTHS, [1] * len(LENGTHS), HEADS, KV_HEADS, width, device="cuda", dtype=dtype)
    module, launch = load("causal"), importlib.import_module("generated.causal.decode_launch")
    cache, one = Cache(s, page or 16, paged=bool(page)), torch.tensor(1.0, device="cuda")
    bits = torch.arange(cache.k.numel(), device="cuda")
    bits = bits * 7 % 127 + (bits * 3 + bits // 127) % 2 * 128
    cache.k, cache.v = (x.to(torch.uint8).view(torch.float8_e4m3fn).view(cache.k.shape) for x in (bits, bits.flip(0)))
    given = {"k_scale": one, "v_scale": one, "scale": 0.001, "return_lse": True, "split_size": split_size}
    found = []
    for v in (cache.v, at_odd_places(cache.v)):
        assert launch.in_twos(s.q[0], v) == (v is cache.v)
        found.append(module.decode.attend_with_cache(torch.cat(s.q), cache.k, v, s.seq_lens, **cache.pages(), **given))
    (even, even_lse), (odd, odd_lse) = found
    assert torch.equal(even_lse, odd_lse) and not even.isnan().any()
    # keys are added in another order, and sums are rounded
    torch.testing.assert_close(even, odd, rtol=2 * torch.finfo(dtype).eps, atol=2e-3)


@pytest.mark.skipif(GPU and torch.cuda.get_device_capability() < (8, 9), reason="needs a GPU that knows float8_e4m3fn")
@pytest.mark.parametrize("power", [-100, -6, 90])
def test_queries_of_any_size_over_float8(power: int) -> None:
    """Queries in bfloat16 are multiplied in float16, which has a smaller range."""
    s = Sequences([700, 33], [1, 1], HEADS, KV_HEADS, 128, device="cuda", dtype=torch.bfloat16)
    decoding, cache = load("causal").decode, Cache(s)
    cache.k, cache.v = (torch.randn_like(x).to(torch.float8_e4m3fn) for x in (cache.k, cache.v))
    one, q = torch.tensor(1.0, device="cuda"), torch.cat(s.q)
    given = {"k_scale": one, "v_scale": one, **cache.pages()}
    out = decoding.attend_with_cache(q, cache.k, cache.v, s.seq_lens, scale=0.25, **given)
    moved = decoding.attend_with_cache(q * 2.0**power, cache.k, cache.v, s.seq_lens, scale=0.25 / 2.0**power, **given)
    assert torch.equal(out, moved)


@pytest.mark.parametrize("new", [1, 6])
@pytest.mark.parametrize("name", ["llama3", "sink_window"])
def test_what_keys_get_of_the_weights(name: str, new: int) -> None:
    lengths = [3000, 700, 129]
    s = Sequences(lengths, [new] * 3, HEADS, KV_HEADS, 128, device="cuda", dtype=torch.bfloat16)
    module = load(name)
    values = angles(128) if name == "llama3" else {"window": 500, "sinks": torch.linspace(-2, 4, HEADS, device="cuda")}
    cache = Cache(s).fill(module.decode.append, turned(module, s, lambda b: values))
    given = {**values, **cache.pages(), "return_key_sums": True}
    _, sums = module.decode.attend_with_cache(torch.stack(s.q), cache.k, cache.v, s.seq_lens, **given)
    for b, n in enumerate(lengths):
        rows = [x[b][None].double() for x in (s.q, s.k, s.v)]
        _, wanted = module.reference(*rows, **values, return_key_sums=True)
        check([sums[b, :, :n]], [wanted[0]], 2e-2)
        assert (sums[b, :, n:] == 0).all()


@pytest.mark.parametrize("page", [1, 16, 128])
def test_bits_hang_on_neither_pages_nor_the_batch(page: int) -> None:
    s = Sequences(LENGTHS, [1] * len(LENGTHS), HEADS, KV_HEADS, 128, device="cuda", dtype=torch.bfloat16)
    decoding = load("causal").decode
    cache = Cache(s, page).fill(decoding.append)
    out = decoding.attend_with_cache(torch.cat(s.q), cache.k, cache.v, s.seq_lens, **cache.pages())
    for b, n in enumerate(LENGTHS):
        k, v = s.k[b][None], s.v[b][None]
        if n:
            assert torch.equal(decoding.attend_with_cache(s.q[b], k, v, s.seq_lens[b : b + 1])[0], out[b])


# with 1,024 keys, the last program of a split joins the parts
@pytest.mark.parametrize("split_size", [None, 1024])
@pytest.mark.parametrize("name", ["causal", "gpt_oss_window", "deepseek_mla_absorbed"])
def test_a_graph_replayed_with_other_lengths(name: str, split_size: int | None) -> None:
    lengths = [4000, 3000, 100, 7]
    s = Sequences(lengths, [1] * 4, HEADS, KV_HEADS, 128, device="cuda", dtype=torch.bfloat16)
    if name == "deepseek_mla_absorbed":
        s = latent(lengths, 1)
    module = load(name)
    decoding = module.decode
    values, alone = given(name, s)
    cache = Cache(s, room=4096).fill(decoding.append, turned(module, s, alone))
    q, lengths, table = torch.cat(s.q), s.seq_lens, cache.table.int().cuda()
    sized = {"max_seqlen_k": 4096, "split_size": split_size}
    size = decoding.workspace_size(q, cache.k, cache.v, max_seqlen_q=1, **sized)
    fixed = {"page_table": table, "workspace": q.new_full((size,), math.nan, dtype=torch.float32)} | sized
    out = q.new_empty(*q.shape[:-1], cache.v.shape[-1])

    def call() -> torch.Tensor:
        return decoding.attend_with_cache(q, cache.k, cache.v, lengths, out=out, **fixed, **values)

    with torch.cuda.stream(torch.cuda.Stream()):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    for others in ([4000, 3000, 100, 7], [100, 0, 99, 1], [3999, 3000, 2, 0], [0, 0, 0, 0]):
        lengths.copy_(torch.tensor(others))
        fixed["workspace"].fill_(math.nan)
        graph.replay()
        replayed = out.clone()
        assert torch.equal(replayed, call())
        assert not replayed.isnan().any()
        assert all((replayed[b] == 0).all() for b, n in enumerate(others) if n == 0)


@pytest.mark.parametrize("split_size", [None, 1024])
def test_a_call_waits_for_nothing_and_takes_no_memory(split_size: int | None) -> None:
    s = Sequences(LENGTHS, [1] * len(LENGTHS), HEADS, KV_HEADS, 128, device="cuda", dtype=torch.bfloat16)
    decoding = load("causal").decode
    cache = Cache(s).fill(decoding.append)
    q, lengths, table = torch.cat(s.q), s.seq_lens, cache.pages()
    sized = {"max_seqlen_k": 5008, "split_size": split_size}
    size = decoding.workspace_size(q, cache.k, cache.v, max_seqlen_q=1, **sized)
    fixed = {"workspace": q.new_empty(size, dtype=torch.float32), "out": torch.empty_like(q)} | table | sized
    decoding.attend_with_cache(q, cache.k, cache.v, lengths, **fixed)
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    torch.cuda.set_sync_debug_mode("error")
    try:
        decoding.attend_with_cache(q, cache.k, cache.v, lengths, **fixed)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


def few_splits(seed: int) -> tuple[Values, torch.Tensor]:
    """A call whose last programs join the parts, and its result."""
    s = Sequences(LENGTHS, [1] * len(LENGTHS), HEADS, KV_HEADS, 128, seed, "cuda", torch.bfloat16)
    cache = Cache(s, paged=False).fill(load("causal").decode.append)
    call = {"q": torch.cat(s.q), "k_cache": cache.k, "v_cache": cache.v, "seq_lens": s.seq_lens, "split_size": 1024}
    wanted = load("causal").decode.attend_with_cache(**call)
    torch.cuda.synchronize()
    return call, wanted


def test_calls_of_several_streams_at_once() -> None:
    """Each stream has its own counters, and so do the graphs beside them."""
    attend = load("causal").decode.attend_with_cache
    streams, graphs = [torch.cuda.Stream() for _ in range(3)], []
    made = [few_splits(seed) for seed in range(6)]
    for call, _ in made[3:]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            graphs.append((graph, attend(**call)))
    torch.cuda.synchronize()
    for _ in range(200):
        found = []
        for stream, (call, _), (graph, _) in zip(streams, made, graphs, strict=False):
            with torch.cuda.stream(stream):
                found.append(attend(**call))
                graph.replay()
                attend(**call)
        torch.cuda.synchronize()
        for x, (_, wanted) in zip((*found, *(out for _, out in graphs)), made, strict=True):
            assert torch.equal(x, wanted)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_calls_of_compiled_graphs(mode: str) -> None:
    """PyTorch plans the memory of a graph, and objects to tensors that stay in it."""
    attend = load("causal").decode.attend_with_cache
    call, wanted = few_splits(7)
    compiled = torch.compile(lambda: attend(**call) * 1, mode=mode, fullgraph=True)
    for _ in range(4):
        assert torch.equal(compiled(), wanted)
        assert torch.equal(attend(**call), wanted)


FIRST_IN_A_GRAPH = """
import torch
from generated.causal import decode, runtime

@torch.library.custom_op("own::decode", mutates_args=())
def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return decode.attend_with_cache(q, k, v, lengths, split_size=1024)

@attend.register_fake
def _(q, k, v, lengths):
    return torch.empty_like(q)

make = torch.Generator("cuda").manual_seed(0)
q, k, v = (
    torch.randn(4, n, heads, 128, device="cuda", dtype=torch.bfloat16, generator=make)
    for n, heads in ((1, 32), (4096, 8), (4096, 8))
)
lengths = torch.tensor([4096, 1, 1500, 3000], device="cuda", dtype=torch.int32)
compiled = torch.compile(lambda *given: attend(*given) * 1, mode="reduce-overhead", fullgraph=True)
for i in range(4):
    found = compiled(q, k, v, lengths).clone()
    assert runtime.counters_of(q.device).blocks, "no program counted"
    junk = [torch.full((2**18,), i + 1, device="cuda", dtype=torch.int32) for _ in range(8)]
    assert torch.equal(found, attend(q, k, v, lengths))
"""


def test_a_first_call_by_an_operator_of_a_compiled_graph() -> None:
    """Tensors that a package keeps are not allocated in the graph's memory, of which PyTorch knows each tensor."""
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", FIRST_IN_A_GRAPH]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, timeout=500)
    assert done.returncode == 0, done.stderr


KINDS_OF_TRAINING = [("portable", torch.bfloat16), ("portable", torch.float32)]
KINDS_OF_TRAINING += [("hopper", torch.bfloat16)] if GPU and torch.cuda.get_device_capability() == (9, 0) else []


@pytest.mark.parametrize(("target", "dtype"), KINDS_OF_TRAINING)
@pytest.mark.parametrize("name", ["causal", "llama3", "mistral", "gpt_oss", "prefix_lm", "tree_decoding"])
def test_bits_of_training(name: str, target: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """With packed new tokens, by a call and by replaying a graph of it."""
    monkeypatch.setenv("ATTNFORGE_TARGET", target)
    s = Sequences([5000, 129, 513, 40, 7], [3, 1, 2, 7, 7], HEADS, KV_HEADS, 128, device="cuda", dtype=dtype)
    module, (found, alone) = load(name), given(name, s)
    launches = importlib.import_module(f"generated.{name}.launch")
    # such shapes may have been assigned to kernels for Hopper GPUs before
    monkeypatch.setattr(launches.runtime.LaunchCache, "known", {})
    cache = Cache(s, 16).fill(module.decode.append, turned(module, s, alone))
    q, lengths = torch.cat([*s.q, torch.zeros_like(s.q[0])]), s.seq_lens
    more = {**found, **cache.pages(), **s.cuts(), "return_lse": True, "bitwise": "training"}
    called = module.decode.attend_with_cache(q, cache.k, cache.v, lengths, **more)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = module.decode.attend_with_cache(q, cache.k, cache.v, lengths, **more)
    graph.replay()
    for out, lse in (called, replayed):
        assert (out[sum(s.new) :] == 0).all() and (lse[:, sum(s.new) :] == -math.inf).all()
        rows = zip(out[: sum(s.new)].split(s.new), lse[:, : sum(s.new)].split(s.new, 1), strict=True)
        for b, (own, own_lse) in enumerate(rows):
            before = s.drawn(0 if name == "tree_decoding" else s.lengths[b] - s.new[b], s.heads, s.width)
            whole = torch.cat([before, s.q[b]]), s.k[b], s.v[b]
            wanted, wanted_lse = module.attention(*(x[None] for x in whole), return_lse=True, **alone(b))
            assert torch.equal(own, wanted[0, len(before) :])
            assert torch.equal(own_lse, wanted_lse[0, :, len(before) :])


def test_offsets_pass_32_bits() -> None:
    s = Sequences([2000], [1], HEADS, KV_HEADS, 128, device="cuda", dtype=torch.bfloat16)
    decoding = load("causal").decode
    pages = 2**31 // (16 * KV_HEADS * 128) + 200
    k, v = (torch.empty(pages, 16, KV_HEADS, 128, device="cuda", dtype=torch.bfloat16) for _ in "kv")
    table = torch.arange(pages - 125, pages, device="cuda", dtype=torch.int32)[None]
    slots = (pages - 125) * 16 + torch.arange(2000, device="cuda")
    decoding.append(s.k[0], s.v[0], k, v, slots)
    out = decoding.attend_with_cache(s.q[0], k, v, s.seq_lens, page_table=table)
    assert torch.equal(out, decoding.attend_with_cache(s.q[0], s.k[0][None], s.v[0][None], s.seq_lens))


def test_rows_of_a_tile_pass_32_bits() -> None:
    s = Sequences([130], [1], HEADS, KV_HEADS, 128, device="cuda", dtype=torch.bfloat16)
    attend, stride = load("causal").decode.attend_with_cache, 2**25
    far = torch.empty(130 * stride, device="cuda", dtype=torch.bfloat16)
    k, v = (far.as_strided((1, 130, KV_HEADS, 128), (0, stride, 128, 1), i * KV_HEADS * 128) for i in range(2))
    k.copy_(s.k[0])
    v.copy_(s.v[0])
    out = attend(s.q[0], k, v, s.seq_lens)
    assert torch.equal(out, attend(s.q[0], s.k[0][None], s.v[0][None], s.seq_lens))
