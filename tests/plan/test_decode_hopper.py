"""Which calls of decoding take the kernel for Hopper GPUs, and which variants have one."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from attnforge.gpu import bench
from attnforge.language import spec
from attnforge.plan import plan, splits
from attnforge.source import resources

GENERATED = Path(__file__).parents[2] / "generated"


@pytest.fixture
def launch(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The launch module of the shipped variant, as on a GPU that has kernels for Hopper."""
    bench.module("launched_latent", GENERATED / "deepseek_mla_absorbed" / "__init__.py")
    found = importlib.import_module("launched_latent.decode_launch")
    monkeypatch.setattr(found.runtime, "INTERPRETED", False)
    monkeypatch.setattr(found.runtime, "capability", lambda device: (9, 0))
    monkeypatch.setattr(found.runtime, "hopper_kernels", lambda *_: "kernels")
    monkeypatch.delenv("ATTNFORGE_TARGET", raising=False)
    return found


def chosen(
    launch: ModuleType, k: torch.Tensor, heads: int = 128, new: int = 1, v: torch.Tensor | None = None, **more: Any
) -> tuple[Any, ...]:
    """The choice of `on_hopper` for a call over a cache, which is dense unless `paged` is given."""
    q = torch.zeros(2 * new, heads, k.shape[-1], dtype=more.get("dtype", k.dtype))
    v = k[..., :512] if v is None else v
    table = torch.zeros(2, 4, dtype=torch.int32) if more.get("paged") else None
    columns = launch.decode_arguments.are_columns(v, k)
    rows = new * heads // k.shape[2]
    found: tuple[Any, ...] = launch.on_hopper(q, k, v, columns, table, more.get("k_starts"), rows)
    return found


def cache(places: int = 64, heads: int = 1, width: int = 576, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """A cache of two sequences, or pages."""
    return torch.zeros(2, places, heads, width, dtype=dtype)


@pytest.mark.parametrize(
    ("heads", "new", "target", "taken"),
    [
        (128, 1, "", True),
        (64, 1, "", True),
        (17, 1, "", True),
        (16, 1, "", False),
        (4, 4, "", False),
        (16, 2, "", True),
        (20, 4, "", True),
        (16, 1, "hopper", True),
        (128, 1, "hopper", True),
        (128, 1, "portable", False),
    ],
)
def test_rows_and_the_target_decide(
    heads: int, new: int, target: str, taken: bool, launch: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATTNFORGE_TARGET", target)
    assert chosen(launch, cache(), heads, new) == ((64, 64, 2, 64, "kernels") if taken else ())


@pytest.mark.parametrize(
    ("page", "box"), [(1, 0), (4, 0), (12, 0), (8, 8), (24, 8), (16, 16), (48, 16), (32, 32), (64, 64), (256, 64)]
)
def test_boxes_divide_pages(page: int, box: int, launch: ModuleType) -> None:
    assert chosen(launch, cache(page), paged=True) == ((64, 64, 2, box, "kernels") if box else ())
    # without pages the whole axis is one page, and rows of float8 are loaded one by one
    assert chosen(launch, cache(page)) == (64, 64, 2, 64, "kernels")
    float8 = cache(page, dtype=torch.float8_e4m3fn)
    assert chosen(launch, float8, paged=True, dtype=torch.bfloat16) == (64, 64, 2, 0, "kernels")


def test_what_the_gpu_cannot_copy_goes_to_the_portable_kernel(launch: ModuleType) -> None:
    k = cache()
    assert chosen(launch, k.half())
    assert chosen(launch, cache(heads=2), 256)
    assert chosen(launch, cache(width=584)[..., :576])
    assert chosen(launch, cache(64).transpose(1, 2).contiguous().transpose(1, 2))
    for other in (
        k.float(),
        cache(width=580)[..., :576],  # rows that do not begin at multiples of 16 bytes
        cache(width=577)[..., 1:],
        cache(0),
        cache()[:, :1].expand(2, 64, 1, 576),
    ):
        assert chosen(launch, other) == ()
    wide = cache(width=584, dtype=torch.float8_e4m3fn)
    assert chosen(launch, wide[..., :576], dtype=torch.bfloat16) == ()  # rows that begin at multiples of 8 bytes
    assert chosen(launch, k.to(torch.float8_e4m3fn), dtype=torch.float32) == ()
    assert chosen(launch, k, k_starts=torch.zeros(2, dtype=torch.int32)) == ()


def test_values_are_the_first_512_columns_of_576(launch: ModuleType) -> None:
    k = cache()
    assert chosen(launch, k, v=k[..., :512])
    assert chosen(launch, k, v=k[..., :512].contiguous()) == ()
    assert chosen(launch, k, v=k[..., :256]) == ()
    assert chosen(launch, k, v=k[..., 64:]) == ()
    assert chosen(launch, cache(width=544)) == ()


@pytest.mark.parametrize(("capability", "interpreted"), [((8, 0), False), ((10, 0), False), ((9, 0), True)])
def test_other_gpus_have_the_portable_kernel(
    capability: tuple[int, int], interpreted: bool, launch: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(launch.runtime, "INTERPRETED", interpreted)
    monkeypatch.setattr(launch.runtime, "capability", lambda device: capability)
    launch.runtime.hopper_kernels.cache_clear()
    assert chosen(launch, cache()) == ()
    launch.runtime.hopper_kernels.cache_clear()


@pytest.mark.parametrize(
    ("heads", "width", "dtype", "rows"),
    [
        (16, 576, torch.bfloat16, 16),
        (32, 576, torch.bfloat16, 64),
        (32, 576, torch.float8_e4m3fn, 32),
        (32, 576, torch.float32, 16),
        (32, 128, torch.float16, 64),
        (32, 256, torch.float8_e4m3fn, 64),
        (32, 128, torch.float32, 32),
    ],
)
def test_products_of_hopper_gpus_have_64_rows(
    heads: int, width: int, dtype: torch.dtype, rows: int, launch: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On other GPUs, with float32 and with wide float8, products have only as many rows as there are."""
    k, kind = cache(width=width, dtype=dtype), torch.bfloat16 if dtype.itemsize == 1 else dtype
    v, q = k[..., : min(width, 512)], torch.zeros(2, heads, width, dtype=kind)
    name = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}[kind]
    for arch, expected in (("sm_90", rows), ("sm_80", 32 if heads == 32 and width <= 256 else 16)):
        monkeypatch.setattr(launch.runtime, "architecture", lambda device, arch=arch: arch)
        assert launch.split_of(q, k, v, 1, None)[0] == expected
        if kind == dtype:
            assert splits.tile(splits.table(True, False), True, width, name, arch, heads).block_m == expected


@pytest.mark.parametrize("split_size", [None, 128, 1024, 2048])
@pytest.mark.parametrize(("heads", "new"), [(16, 1), (128, 1), (128, 2), (128, 40)])
def test_a_workspace_has_room_for_either_kernel(
    heads: int, new: int, split_size: int | None, launch: ModuleType
) -> None:
    k, q = cache(20000), torch.zeros(2, new, heads, 576, dtype=torch.bfloat16)
    seen = new, 20000, 2**28, 0
    size = launch.workspace_size(q, k, k[..., :512], new, 20000, split_size, *seen[2:])
    for keys in (
        launch.split_of(q, k, k[..., :512], new, split_size)[-1],
        launch.keys_of_split(q, new * heads, new, split_size, launch.ON_HOPPER[-1]),
    ):
        splits = launch.count_splits(keys, *seen)
        assert size >= 2 * new * heads * splits * 513


def loaded(folder: Path, text: str) -> plan.Plan:
    """The plan of a spec."""
    path = folder / "some.yaml"
    path.write_text(f"name: some\nexports: [decode]\n{text}\n")
    return plan.build(spec.load(path, terms=resources.terms_for(path)))


@pytest.mark.parametrize(
    ("text", "there"),
    [
        ("latent: true\nmask: [causal]", True),
        ("latent: true\nmask: [causal, sliding_window: {size: 40}]\nscore: [softcap: {cap: 30.0}, alibi]", True),
        ("latent: true\nmask: [tree]", True),
        ("latent: true\nmask: [causal, any: [sliding_window: {size: 24}, expr: 'k < 4']]\nsink: true", True),
        ("latent: true\nscore: [bias]", True),
        ("mask: [causal]", False),
        ("latent: true\nmask: [causal]\ntargets: [portable]", False),
        ("latent: true\nmask: [causal]\nrope: {layout: half}", False),
        ("latent: true\nmask: [causal, segments]", False),
        (
            "latent: true\nmask: [causal, expr: 'q - k < reach + h']\ninputs: {reach: {axes: [head], dtype: int}}",
            False,
        ),
    ],
)
def test_variants_with_a_kernel_for_hopper_gpus(text: str, there: bool, tmp_path: Path) -> None:
    assert (loaded(tmp_path, text).decode_hopper is not None) == there
