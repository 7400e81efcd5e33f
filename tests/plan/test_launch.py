"""Arguments that launches pass to kernels: with shapes seen before they are those of a first launch."""

from __future__ import annotations

import contextlib
import importlib
import shutil
import tempfile
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import triton
from compiling import Compiler
from triton import knobs
from triton.runtime import driver

from attnforge.gpu import bench
from attnforge.language import spec
from attnforge.plan import plan
from attnforge.plan.statements import lines
from attnforge.source import resources

GENERATED = Path(__file__).parents[2] / "generated"
SCRIPT = Path(__file__).parents[1] / "launches.py"
VARIANTS = sorted(resources.variants())


# the first argument is the folder of a cache, which is not for the script
COMPARISON = f"""
import runpy
import sys
del sys.argv[1]
runpy.run_path({str(SCRIPT)!r}, run_name="__main__")
"""


def compared(compiler: Compiler, folder: Path, *names: str) -> list[str]:
    """The variants in a folder whose launches were compared; fails if launches differ."""
    with tempfile.TemporaryDirectory() as cache:
        return compiler.run(COMPARISON, Path(cache), str(folder), *names)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(2))
def test_launches_that_know_their_shapes_are_first_ones(part: int, compiler: Compiler) -> None:
    names = VARIANTS[part::2]
    assert compared(compiler, GENERATED, *names) == names


@pytest.mark.slow
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("(x.shape, x.stride(), x.dtype, x.data_ptr() % 16)", "(x.shape, x.dtype, x.data_ptr() % 16)"),
        ("(x.shape, x.stride(), x.dtype, x.data_ptr() % 16)", "(x.shape, x.stride(), x.dtype)"),
        ("(x.shape, x.stride(), x.dtype, x.data_ptr() % 16)", "(x.stride(), x.dtype, x.data_ptr() % 16)"),
        ("key = (kernel.fn, *blocks)", "key = bool(blocks)"),
        ("descriptor.__dict__.update(known, base=x)", "descriptor.__dict__.update(known, base=torch.empty_like(x))"),
        ("not agree(*tensors)", "None in tensors"),
        ("map(data_ptr, tensors)) % 16:", "map(data_ptr, tensors)) % 2:"),
        ("type(given[i]) is not type(x) or given[i] != x", "False"),
    ],
)
def test_comparison_finds(right: str, wrong: str, compiler: Compiler, tmp_path: Path) -> None:
    package = tmp_path / "causal"
    package.mkdir()
    for path in (GENERATED / "causal").glob("*.py"):
        text = path.read_text()
        (package / path.name).write_text(text.replace(right, wrong) if path.name == "runtime.py" else text)
    assert (package / "runtime.py").read_text() != (GENERATED / "causal" / "runtime.py").read_text()
    with pytest.raises(AssertionError, match="in place of"):
        compared(compiler, tmp_path, "causal")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "right", "wrong"),
    [
        ("decode_arguments", "(x.shape, x.stride(), x.dtype,", "(x.shape, x.dtype,"),
        ("decode_arguments", "(x.shape, x.stride(), x.dtype,", "(x.stride(), x.dtype,"),
        ("decode_arguments", "(*numbers, *shapes)", "(*shapes,)"),
        (
            "decode_launch",
            "longest, splits, split_size, block_n, joined, lse is None)",
            "longest, lse is None)",
        ),
    ],
)
def test_comparison_of_decoding_finds(file: str, right: str, wrong: str, compiler: Compiler, tmp_path: Path) -> None:
    package = tmp_path / "causal"
    shutil.copytree(GENERATED / "causal", package)
    text = (package / f"{file}.py").read_text()
    assert right in text
    (package / f"{file}.py").write_text(text.replace(right, wrong))
    with pytest.raises(AssertionError, match="in place of"):
        compared(compiler, tmp_path, "causal")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("dlse, level, *wanted", "dlse is None, level, *wanted"),
        ("lse, in_log_decay_sums, dlse", "lse, dlse"),
    ],
)
def test_comparison_of_gradients_finds(right: str, wrong: str, compiler: Compiler, tmp_path: Path) -> None:
    shutil.copytree(GENERATED / "log_decay", tmp_path / "log_decay")
    path = tmp_path / "log_decay" / "launch.py"
    assert right in path.read_text()
    path.write_text(path.read_text().replace(right, wrong))
    with pytest.raises(AssertionError, match="in place of"):
        compared(compiler, tmp_path, "log_decay")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "right", "wrong"),
    [
        ("decode_launch", 'hopper_values if cache.hopper_tiles.get("decode") else', ""),
        ("decode_launch", "longest, splits, split_size,", "splits, split_size,"),
        ("runtime", '"decode": ".decode_hopper"', '"decode": ".nothing"'),
    ],
)
def test_comparison_of_latent_heads_finds(
    file: str, right: str, wrong: str, compiler: Compiler, tmp_path: Path
) -> None:
    name = "deepseek_mla_absorbed"
    shutil.copytree(GENERATED / name, tmp_path / name)
    path = tmp_path / name / f"{file}.py"
    assert right in path.read_text()
    path.write_text(path.read_text().replace(right, wrong))
    with pytest.raises(AssertionError, match=r"in place of|took the portable kernel"):
        compared(compiler, tmp_path, name)


@pytest.fixture
def runtime() -> ModuleType:
    """The module that launches kernels, the same in every package."""
    bench.module("launched_causal", GENERATED / "causal" / "__init__.py")
    return importlib.import_module("launched_causal.runtime")


@pytest.mark.parametrize(
    ("heads", "kib", "tiles", "grid"),
    [
        (32, 1024, 5, (32, 5, 1)),  # all fit
        (32, 256, 5, (8, 5, 4)),
        (24, 224, 5, (6, 5, 4)),  # seven would fit, but do not divide them
        (32, 1, 5, (1, 5, 32)),
        (31, 512, 5, (1, 5, 31)),
        (65537, 1, 5, (65537, 5, 1)),  # the last axis of a grid takes no more than 65535
        (32, 256, 65535, (8, 65535, 4)),
        (32, 256, 65536, (65536, 8, 4)),  # nor does the second one
    ],
)
def test_heads_come_in_groups_that_the_cache_has_room_for(
    heads: int, kib: int, tiles: int, grid: tuple[int, ...], runtime: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "cache_share", lambda device: kib * 1024)
    keys = torch.empty(1, device="meta").expand(1, 64, heads, 64)  # 16 KiB for each head, and as much for its values
    for rows in (tiles * 16, tiles * 16 - 15):
        assert runtime.grid(heads, rows, 16, keys, keys) == grid
        assert grid[runtime.tile_axis(rows, 16)] == tiles


@pytest.mark.parametrize(
    ("rows", "described"),
    [
        (torch.zeros(2, 3, 8), True),
        (torch.zeros(2, 3, 12)[..., :8], True),
        (torch.zeros(2, 1, 8).expand(2, 3, 8), True),
        (torch.zeros(1, 1, 7), True),
        (torch.zeros(2, 4, 1), False),  # one value for all
        (torch.zeros(2, 3, 8, dtype=torch.bfloat16), True),
        (torch.zeros(2, 3, 7), False),
        (torch.zeros(2, 3, 12, dtype=torch.bfloat16), False),
        (torch.zeros(2, 3, 9)[..., 1:], False),
        (torch.zeros(8, 3).T, False),
        (torch.zeros(2, 3, 8, dtype=torch.float64), False),
    ],
)
def test_values_of_rows_are_described_where_descriptors_can_read(
    rows: torch.Tensor, described: bool, runtime: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "copies_tiles", lambda device: True)
    assert isinstance(runtime.vector_source(rows, 4), runtime.TensorDescriptor) == described
    assert runtime.vector_source(rows, None) is rows


@pytest.mark.parametrize(
    ("shape", "described"),
    [((2, 3, 8), True), ((2, 3, 7), False), ((1, 1, 7), True), ((8, 1, 1), False), ((1, 1, 1), False)],
)
def test_an_lse_is_described_where_each_heads_begins_at_16_bytes(
    shape: tuple[int, ...], described: bool, runtime: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "copies_tiles", lambda device: True)
    lse = torch.zeros(shape)
    found = runtime.vector_source(lse, 4)
    assert isinstance(found, runtime.TensorDescriptor) == described
    assert not described or (found.base is lse and found.shape == [lse.numel()])


@pytest.mark.parametrize(
    ("balance", "tiles", "columns", "found"),
    [
        ({"balance": "tiles"}, 64, 128, (10, 768, 1, 1)),  # the tiles of a head one after another
        ({"balance": "pairs"}, 64, 128, (10, 384, 4, 2)),
        ({"balance": "pairs"}, 66, 128, (792, 792, 4, 1)),
        ({"balance": "pairs"}, 32, 256, (384, 384, 4, 1)),
        ({"balance": "pairs"}, 31, 256, (10, 192, 4, 2)),
        ({}, 32, 128, (384, 384, 4, 1)),
        ({}, 31, 128, (10, 192, 4, 2)),
        ({"balance": "pairs"}, 1, 128, (12, 12, 4, 1)),  # ten programs would take twelve pairs two at a time
        ({"balance": "tiles"}, 1, 128, (10, 12, 1, 1)),
        ({"reach": 1023}, 32, 128, (10, 384, 1, 1)),  # in a narrow window all tiles have the same amount of work
        ({"reach": 1023}, 31, 128, (10, 192, 4, 2)),
        ({"reach": 2049}, 128, 128, (1536, 1536, 4, 1)),
        ({"reach": 1023}, 32, 256, (384, 384, 4, 1)),
        ({"reach": 4095, "BLOCK_M": 192}, 32, 64, (10, 384, 4, 1)),
        ({"balance": "pairs", "uneven": True}, 31, 128, (372, 372, 4, 1)),
        ({"reach": 1023, "uneven": True}, 32, 128, (384, 384, 4, 1)),
        ({"balance": "pairs", "uneven": True, "ranked": True}, 31, 128, (10, 372, 1, 1)),
    ],
)
@pytest.mark.parametrize("axis", [0, 1])
def test_programs_take_items_in_turns_that_have_as_much_to_do(
    axis: int,
    balance: dict[str, Any],
    tiles: int,
    columns: int,
    found: tuple[int, int, int, int],
    runtime: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runtime, "multiprocessors", lambda device: 10)
    told = {
        "TILE_AXIS": axis,
        "BLOCK_M": 128,
        "BLOCK_D": columns,
        "q_desc": SimpleNamespace(base=SimpleNamespace(device="gpu")),
    }
    grid = (tiles, 4, 3) if axis == 0 else (4, tiles, 3)  # three groups of four heads
    (programs,), told = runtime.in_turns(grid, told | balance)
    assert (programs, told["items"], told["group"], told["per_item"]) == found
    assert told["tiles"] == tiles


@pytest.mark.parametrize(
    ("more", "tiles", "columns", "joined", "programs"),
    [
        ({}, 1, 128, 12, 12),  # fewer tiles than programs
        ({}, 8, 128, 4, 96),
        ({"balance": "slots"}, 8, 128, 12, 96),  # few slots: all heads at once
        ({"balance": "slots"}, 16, 128, 4, 192),
        ({}, 9, 64, 4, 108),
        ({}, 10, 64, 0, 10),  # many tiles: programs take the next one in turn
        ({"turns_to": 512}, 10, 64, 0, 10),
        ({"turns_to": 511}, 10, 64, 4, 120),  # long sequences, with kernels that are slower with two stages
        ({"turns_to": 511, "sequences": 2}, 10, 64, 0, 10),
    ],
)
@pytest.mark.parametrize("axis", [0, 1])
def test_each_tile_of_keys_has_its_place_and_late_keys_end_a_run(
    axis: int,
    more: dict[str, Any],
    tiles: int,
    columns: int,
    joined: int,
    programs: int,
    runtime: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runtime, "multiprocessors", lambda device: 10)
    told = {"TILE_AXIS": axis, "BLOCK_D": columns, "q_desc": SimpleNamespace(base=SimpleNamespace(device="gpu"))}
    told["q_total"] = 512
    grid = (tiles, 4, 3) if axis == 0 else (4, tiles, 3)  # three groups of four heads
    launched, told = runtime.by_groups(grid, told | more)
    assert (launched, told["joined"]) == ((programs,), joined)
    of = plan.build(spec.loads("name: mine\ndescription: A trial.\nmask: [causal]\n", Path(), shown="mine.yaml"))
    assert of.hopper and of.hopper.backward
    code = "\n".join(lines(of.hopper.backward.order.found))
    found = []
    for place in range(told["items"]):
        here = told | {"place": place, "Hkv": 3, "tl": SimpleNamespace(where=lambda which, x, y: x if which else y)}
        exec(code, {}, here)
        found.append((here["b"], here["head"], here["tile"]))
    assert sorted(found) == [(b, head, tile) for b in range(4) for head in range(3) for tile in range(tiles)]
    assert {tile for *_, tile in found[len(found) - joined :]} <= {tiles - 1}


@pytest.mark.parametrize(
    ("text", "most"),
    [
        ("mask: [causal]", None),  # with two stages of keys whenever there are many tiles
        # nor do rows left out leave room for it, beside sums
        ("mask: [causal]\nscore: [log_decay]", "1536 if entries is None else 0"),
        # random numbers are exchanged in the memory of the second stage
        ("mask: [causal]\ndropout: true", "2**31 if seed is None else 0"),
        ("mask: [causal]\nscore: [log_decay]\ndropout: true", 0),  # too many parameters, too
        # its parameters leave no room for a second stage
        ("layout: packed\nmask: [causal, sliding_window: {size: runtime}]\nscore: [log_decay, expr: score + x]\n"
         "inputs: {x: {axes: [batch, head, query], grad: true}}", 0),
    ],
)  # fmt: skip
def test_kernels_with_sums_take_tiles_in_turns_where_walks_are_short(text: str, most: int | str | None) -> None:
    of = plan.build(spec.loads(f"name: mine\ndescription: A trial.\n{text}\n", Path(), shown="mine.yaml"))
    assert of.hopper and of.hopper.backward
    told = {one.name: one.given for one in of.hopper.backward.launched[1].parts}
    assert told.get("turns_to") == (None if most is None else str(most))


@pytest.mark.parametrize(
    ("rows", "sequences", "heads", "share", "found"),
    [
        (1000, 3, 4, 2**20, (10, 40, 10, 4)),  # seven whole tiles, and one more for each sequence
        (1024, 1, 4, 2**20, (10, 36, 9, 4)),
        # one head's keys and values fit in the cache, and therefore those of three heads in one sequence
        (1000, 3, 4, 1000 * 2 * 64 * 2, (10, 40, 10, 2)),
        (1000, 3, 4, 1000 * 2 * 64 * 2 * 2, (10, 40, 10, 4)),
        (127, 1, 6, 0, (6, 6, 1, 1)),  # fewer than multiprocessors
    ],
)
def test_packed_sequences_have_slots_for_their_tiles(
    rows: int,
    sequences: int,
    heads: int,
    share: int,
    found: tuple[int, int, int, int],
    runtime: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runtime, "multiprocessors", lambda device: 10)
    monkeypatch.setattr(runtime, "cache_share", lambda device: share)
    keys = SimpleNamespace(base=torch.zeros(rows, heads, 64, dtype=torch.bfloat16))
    told = {"TILE_AXIS": 1, "BLOCK_M": 128, "BLOCK_D": 64, "q_total": rows, "sequences": sequences, "Hq": heads}
    told |= {"q_desc": keys, "k_desc": keys, "v_desc": keys, "balance": "slots"}
    (programs,), told = runtime.in_turns((heads, 8, sequences), told)
    assert (programs, told["items"], told["slots"], told["group"]) == found


def on_hopper(runtime: ModuleType, error: Exception | None, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What is remembered of a first launch on a Hopper GPU, which fails if an error is given."""

    def launch(*_: Any) -> None:
        if error:
            raise error

    monkeypatch.setattr(runtime, "INTERPRETED", False)
    monkeypatch.setattr(runtime, "on_hopper", lambda *_: (128, 128, 8, 2, "kernels"))
    monkeypatch.setattr(runtime, "unwilling", set())
    cache = runtime.LaunchCache(reach=0)
    tables = SimpleNamespace(__package__="launched_causal")
    assert runtime.launch_on_hopper(cache, tables, "forward", launch, None, None, 64) is (error is None)
    tiles: dict[str, Any] = cache.hopper_tiles
    return tiles


@pytest.fixture
def tries(runtime: ModuleType, monkeypatch: pytest.MonkeyPatch) -> set[Any]:
    """The tiles that will not be tried again."""
    tried: set[Any] = set()
    monkeypatch.setattr(runtime, "failed", tried)
    return tried


@pytest.mark.usefixtures("tries")
def test_kernels_that_do_not_compile_give_way_and_others_stay(
    runtime: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert on_hopper(runtime, None, monkeypatch) == {"forward": (128, 128, 8, 2, "kernels")}
    with pytest.warns(UserWarning, match="launched_causal: portable kernels take the place .* RuntimeError: no room"):
        assert on_hopper(runtime, RuntimeError("no room\nfor more"), monkeypatch) == {"forward": ()}
    monkeypatch.setenv("ATTNFORGE_TARGET", "hopper")
    with pytest.raises(RuntimeError, match="no room"):
        on_hopper(runtime, RuntimeError("no room"), monkeypatch)


@pytest.mark.usefixtures("tries")
def test_a_call_may_ask_for_portable_kernels(runtime: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others with the same arguments take the faster ones: before it, after it, and in other threads."""
    monkeypatch.setattr(runtime, "INTERPRETED", False)
    monkeypatch.setattr(runtime, "on_hopper", lambda *_: (128, 128, 8, 2, "kernels"))
    monkeypatch.setattr(runtime.LaunchCache, "known", OrderedDict())
    tables, x, taken = SimpleNamespace(__package__="launched_causal"), torch.zeros(4), list[bool]()

    def call() -> None:
        cache = runtime.LaunchCache.of("asked", x)
        taken.append(runtime.launch_on_hopper(cache, tables, "forward", lambda *_: None, None, None, 64))

    for _ in range(2):
        call()
        with runtime.portable():
            call()
            other = threading.Thread(target=call)
            other.start()
            other.join()
        with pytest.raises(RuntimeError, match="no room"), runtime.portable():
            raise RuntimeError("no room")
    assert taken == [True, False, True] * 2


def test_kernels_that_do_not_compile_are_tried_once_for_all_lengths(
    runtime: ModuleType, tries: set[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.warns(UserWarning, match="no room"):
        on_hopper(runtime, RuntimeError("no room"), monkeypatch)
    assert tries == {(128, 128, 8, 2, "kernels")}

    def launch(*_: Any) -> None:
        raise AssertionError("tried again")

    tables = SimpleNamespace(__package__="launched_causal")
    assert not runtime.launch_on_hopper(runtime.LaunchCache(reach=0), tables, "forward", launch, None, None, 96)


@pytest.mark.parametrize(
    ("ask", "found"),
    [
        ("", "ieee"),
        ("torch.backends.cuda.matmul.allow_tf32 = True", "tf32"),
        ("torch.set_float32_matmul_precision('high')", "tf32"),
        ("torch.backends.cuda.matmul.fp32_precision = 'tf32'", "tf32"),
        ("torch.backends.fp32_precision = 'tf32'", "tf32"),
        ("torch.set_float32_matmul_precision('high'); torch.backends.cuda.matmul.fp32_precision = 'ieee'", "ieee"),
    ],
)
def test_float32_is_multiplied_as_pytorch_does(ask: str, found: str, compiler: Compiler, tmp_path: Path) -> None:
    code = f"import sys\nimport torch\nsys.path.insert(0, {str(GENERATED)!r})\nfrom causal import runtime\n{ask}\n"
    code += "print(*(runtime.precision(torch.zeros(1, dtype=x)) for x in (torch.float32, torch.half)))"
    assert compiler.run(code, tmp_path) == [f"{found} ieee"]


def test_the_oldest_shapes_are_forgotten_first(runtime: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime.LaunchCache, "known", type(runtime.LaunchCache.known)())
    x = torch.zeros(1)
    caches = [runtime.LaunchCache.of("call", x, n) for n in range(1100)]
    assert len(runtime.LaunchCache.known) == 1024 + 1  # the last call's has a second place, under its function's name
    assert all(runtime.LaunchCache.of("call", x, n) is caches[n] for n in range(1100 - 1024, 1100))
    assert runtime.LaunchCache.of("call", x, 0) is not caches[0]


def test_a_call_like_the_last_one_has_its_cache(runtime: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime.LaunchCache, "known", type(runtime.LaunchCache.known)())
    of = runtime.LaunchCache.of

    def given(columns: int = 8, dtype: torch.dtype = torch.float32) -> tuple[Any, ...]:
        return torch.zeros(2, columns, dtype=dtype), torch.zeros(3), None, 5, True

    first = of("call", *given())
    monkeypatch.setattr(runtime, "isinstance", None, raising=False)  # which only building a key calls
    assert of("call", *given()) is first
    monkeypatch.undo()
    monkeypatch.setattr(runtime.LaunchCache, "known", {"call": first})
    unaligned = torch.zeros(17)[1:].view(2, 8)
    q, more, absent, number, wanted = given()
    for other in (
        given(16),
        given(dtype=torch.float16),
        (unaligned, more, absent, number, wanted),
        (q, more, more, number, wanted),
        (q, None, absent, number, wanted),
        (q, more, absent, 6, wanted),
        (q, more, absent, number, False),
    ):
        runtime.LaunchCache.known["call"] = first
        assert of("call", *other) is not first
    runtime.LaunchCache.known["call"] = first
    assert of("call", *given(), reach=3) is not first
    runtime.LaunchCache.known["call"] = first
    with runtime.portable():
        assert of("call", *given()) is not first
    runtime.LaunchCache.known["call"] = first
    monkeypatch.setattr(runtime, "precision", lambda x: "tf32")
    assert of("call", *given()) is not first


@pytest.mark.parametrize(("most", "wanted"), [(4, [4]), (2, [4, 3, 2]), (0, [4, 3, 2, 1])])
def test_fewer_stages_take_the_place_of_those_without_room(most: int, wanted: list[int], runtime: ModuleType) -> None:
    tried = []

    def launch(stages: int) -> None:
        tried.append(stages)
        if stages > most:
            raise runtime.OutOfResources(106496, 101376, "shared memory")

    with contextlib.nullcontext() if most else pytest.raises(runtime.OutOfResources):
        runtime.launch_with_room(launch, 4)
    assert tried == wanted


def test_a_call_has_the_first_tile_with_room_whatever_came_before(
    runtime: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inputs that a call reads besides q, k and v take shared memory too, and so do float32 products by tf32."""
    table: dict[str, dict[int, Any]] = {"forward": {64: ((64, 64, 4, 1), (32, 32, 4, 1), (16, 16, 4, 1))}}
    tables = SimpleNamespace(__package__="launched_causal", TILES_FP32=table)
    monkeypatch.setattr(runtime, "INTERPRETED", False)
    x, tried = torch.zeros(1, 4, 1, 64), []

    def tile(most: int) -> Any:
        def launch(rows: int, *_: Any) -> None:
            tried.append(rows)
            if rows > most:
                raise runtime.OutOfResources(106496, 101376, "shared memory")

        cache = runtime.LaunchCache(reach=0)
        for _ in range(2):
            runtime.launch_tuned(cache, tables, "forward", launch, x, x)
        return cache.tiles["forward"][0]

    assert [tile(most) for most in (16, 64, 32)] == [16, 64, 32]
    # the next call with such tensors gets the same tile at once
    assert tried == [64, 32, 16, 16, 64, 64, 64, 32, 32]


def test_a_gpu_without_memory_says_nothing_of_kernels(runtime: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(torch.cuda.OutOfMemoryError):
        on_hopper(runtime, torch.cuda.OutOfMemoryError("all taken"), monkeypatch)


def test_an_earlier_kernel_that_failed_says_nothing_of_kernels(
    runtime: ModuleType, tries: set[Any], monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    """Its error appears at the next call into the driver, such as the launch of another kernel."""

    def wait() -> None:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "synchronize", wait)
    with pytest.raises(torch.AcceleratorError, match="illegal memory access"):
        on_hopper(runtime, RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"), monkeypatch)
    assert not tries and not recwarn.list
    # during a capture nothing may wait: a kernel that does not compile gives way all the same
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.warns(UserWarning, match="no room"):
        assert on_hopper(runtime, RuntimeError("no room"), monkeypatch) == {"forward": ()}


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), MemoryError()])
def test_a_full_disk_says_nothing_of_kernels(
    runtime: ModuleType, error: Exception, tries: set[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.warns(UserWarning, match="portable kernels take the place"):
        assert on_hopper(runtime, error, monkeypatch) == {}
    assert not tries


class Compiled:
    """A kernel as compiled by Triton, whose launcher in C records its arguments."""

    packed_metadata, name, metadata = (4, 1, 0), "kernel", None

    def __init__(self, together: bool, **launcher: int) -> None:
        self.function, self.notes = object(), list[tuple[Any, ...]]()
        scratch = {"global_scratch_size": 0, "profile_scratch_size": 0} | launcher
        self.run = Launcher(lambda *given: self.notes.append(given), together, **scratch)

    def __getitem__(self, grid: tuple[int, int, int]) -> Callable[..., None]:
        def run(*given: Any, stream: int | None = None) -> None:
            hooks = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
            self.run(
                *grid, 5 if stream is None else stream, self.function, self.packed_metadata, "name", *hooks, *given
            )

        return run


class Launcher:
    """The layer before the launcher in C; `together` as from triton 3.7 on."""

    def __init__(self, launch: Callable[..., None], together: bool, **scratch: int) -> None:
        self.launch, self.together = launch, together
        vars(self).update(scratch)

    def __call__(self, x: int, y: int, z: int, stream: int, function: object, *rest: Any) -> None:
        scratch = [size and "room" for name, size in vars(self).items() if name.endswith("_scratch_size")]
        before, given = rest[:4], rest[4:]
        if self.together:
            self.launch(x, y, z, stream, function, True, *before, *scratch, [], b"", given)
        else:
            self.launch(x, y, z, stream, function, True, False, *scratch, *before, *given)


def started(runtime: ModuleType, compiled: Compiled, *given: Any, stream: int | None = None) -> list[tuple[Any, ...]]:
    """What reaches the launcher in C by our path and by Triton's, without the data for launch hooks."""
    compiled.notes.clear()
    runtime.repeated(compiled, (3, 2, 1), [*given], given)(given, stream)
    compiled[3, 2, 1](*given, stream=stream)
    return list(map(without_told, compiled.notes))


def without_told(note: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments of the launcher in C without the data for launch hooks; any sequence is the same to it."""
    told = "name", knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
    clean = (None if any(x is hook for hook in told) else x for x in note)
    return tuple(tuple(x) if isinstance(x, list) else x for x in clean)


@pytest.mark.parametrize("together", [False, True])
def test_kernels_start_as_triton_would_start_them(
    together: bool, runtime: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    active = SimpleNamespace(get_current_device=lambda: 1, get_current_stream=lambda device: 4 + device)
    monkeypatch.setattr(runtime, "driver", SimpleNamespace(active=active))
    compiled = Compiled(together)
    for stream in (None, 7):
        for given in ((), (None,), (1, 2.5, None, "q")):
            ours, usual = started(runtime, compiled, *given, stream=stream)
            assert ours == usual
            assert ours[:5] == (3, 2, 1, stream or 5, compiled.function)


@pytest.mark.parametrize("kind", ["global", "profile"])
def test_kernels_that_want_room_start_by_way_of_triton(kind: str, runtime: ModuleType) -> None:
    ours, usual = started(runtime, Compiled(True, **{f"{kind}_scratch_size": 16}), 1)
    assert ours == usual and "room" in ours


@pytest.mark.parametrize("hook", ["launch_enter_hook", "launch_exit_hook"])
@pytest.mark.parametrize("chained", [False, True])
def test_hooks_of_triton_are_told_of_launches(
    hook: str, chained: bool, runtime: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(metadata: Any) -> None:
        pass

    if chained:
        monkeypatch.setattr(getattr(knobs.runtime, hook), "calls", [told])
    else:
        monkeypatch.setattr(knobs.runtime, hook, told)
    compiled = Compiled(True)
    runtime.repeated(compiled, (3, 2, 1), [1], (1,))((1,), 5)
    assert compiled.notes[0][7:10] == ("name", knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook)


def test_triton_still_has_the_launcher_that_is_looked_for(runtime: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.backends.nvidia.driver import CudaLauncher

    monkeypatch.setattr(driver, "_active", SimpleNamespace())  # from 3.8 on, triton looks for it before anything else
    compiled, run = Compiled(True), object.__new__(CudaLauncher)
    names = "launch_cooperative_grid", "launch_pdl", "gsan_enabled", "arg_annotations", "kernel_signature"
    names += "num_ctas", "global_scratch_align", "profile_scratch_align"
    vars(run).update(vars(compiled.run), **dict.fromkeys(names, 0))
    compiled.run = run
    ours, usual = started(runtime, compiled, 1, 2.5, None, stream=7)
    assert ours == usual and len(compiled.notes) == 2
    assert "name" not in compiled.notes[0] and "name" in compiled.notes[1]


class WithTiles(Compiled):
    """A kernel with descriptors, which Triton replaces by their contents on the way to the launcher in C."""

    def __init__(self, signature: dict[str, str]) -> None:
        from triton.backends.nvidia.driver import wrap_handle_tensordesc

        super().__init__(triton.__version__ >= "3.7")
        tiles = sum(kind.startswith("tensordesc") for kind in signature.values())
        layout = {"swizzle": 3, "elem_size": 2, "elem_type": 6, "block_size": [16], "fp4_padded": False}
        self.run.launch = wrap_handle_tensordesc(self.run.launch, signature, [layout] * tiles)


@pytest.mark.parametrize("hooked", [False, True])
def test_contents_of_descriptors_are_those_of_triton(
    hooked: bool, runtime: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded = list[Any]()

    def encode(*given: Any) -> tuple[Any, ...]:
        encoded.append(given)
        return given

    utils = SimpleNamespace(fill_tma_descriptor=encode, fill_tma_descriptor_tiled=encode)
    monkeypatch.setattr(driver, "_active", SimpleNamespace(utils=utils))
    if hooked:
        monkeypatch.setattr(knobs.runtime, "launch_enter_hook", lambda metadata: None)
    tile = "tensordesc<fp16[16]>"
    kernel = WithTiles({"q": tile, "out": "*fp16", "k": tile, "scale": "fp32", "lse": "*fp32", "more": "i32"})

    def given(scale: float) -> tuple[Any, ...]:
        rows = [torch.zeros(48, dtype=torch.float16) for _ in range(3)]
        return (*rows, scale, torch.zeros(3))

    def sources(q: Any, out: Any, k: Any, *rest: Any) -> list[Any]:
        q_tiles, k_tiles = (runtime.TensorDescriptor(x, [48 - i], [1], [16]) for i, x in enumerate((q, k)))
        return [q_tiles, out, k_tiles, *rest, 7]

    first, others = given(0.5), [given(0.25), given(0.125)]
    kept = [weakref.ref(x) for x in first if isinstance(x, torch.Tensor)]
    again = runtime.repeated(kernel, (3, 2, 1), sources(*first), first)
    for call in (*others, *others):
        kernel.notes.clear()
        again(call, 5)
        kernel[3, 2, 1](*(x.data_ptr() if torch.is_tensor(x) else x for x in sources(*call)), stream=5)
        ours, usual = map(without_told, kernel.notes)
        assert ours == usual
        assert call[0].data_ptr() in {x[0] for x in encoded[-2:]}
    del first
    assert not any(x() is not None for x in kept)
    # hooks are told by Triton's own path, which encodes each time
    encoded.clear()
    for call in others:
        again(call, 5)
    assert len(encoded) == (4 if hooked else 0)


def test_triton_still_has_the_launcher_in_c_that_is_looked_for(runtime: ModuleType) -> None:
    from triton.backends.nvidia.driver import wrap_handle_tensordesc

    wrapped = wrap_handle_tensordesc(print, {"q": "tensordesc<fp16[16]>"}, None)
    assert wrapped is not print
    assert runtime.launcher(wrapped)[0] is runtime.launcher(print)[0] is print


def test_kernels_get_addresses_of_tensors(runtime: ModuleType) -> None:
    x = torch.zeros(3)
    assert runtime.refill(x, x)(x[1:]) == x[1:].data_ptr()
    assert runtime.refill(None, None) is runtime.refill(0.5, 0.5) is None
    rows = runtime.TensorDescriptor(torch.zeros(16), [16], [1], [16])
    other = torch.ones(16)
    assert runtime.refill(rows, rows.base)(other).base is other


@pytest.mark.parametrize("source", ["tile_source", "vector_source", "fragment_source"])
@pytest.mark.parametrize("copies", [False, True])
def test_no_call_is_kept_alive_by_what_is_remembered(
    source: str, copies: bool, runtime: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "copies_tiles", lambda device: copies)
    x = torch.zeros(2, 128, 4, 64)
    fill = runtime.refill(getattr(runtime, source)(x, 64), x)
    other = fill(torch.ones(x.shape))
    assert isinstance(other, int) or (other[0] if isinstance(other, tuple) else other.base).all()
    kept = weakref.ref(x)
    del x
    assert kept() is None


def test_no_two_packages_share_an_operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    found = []
    for name, package in (("causal", "one_two/three"), ("full", "one/two_three")):
        target = tmp_path / package
        target.parent.mkdir()
        (target.parent / "__init__.py").touch()
        shutil.copytree(GENERATED / name, target, ignore=shutil.ignore_patterns("__pycache__"))
        found.append(importlib.import_module(package.replace("/", ".") + ".launch"))
    names = [launch._attend.name for launch in found]
    assert names == ["one__two_three_launch_attend", "one_two__three_launch_attend"]
