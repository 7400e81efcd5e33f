"""Tuned tiles: read with reports of their mistakes, rendered, searched, chosen, and written again."""

from __future__ import annotations

import dataclasses
import importlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from rich.console import Console

import attnforge
from attnforge.cli import arguments, commands
from attnforge.gpu import tuning
from attnforge.gpu.calls import Sizes
from attnforge.gpu.compile import Made
from attnforge.gpu.results import Machine
from attnforge.gpu.trials import Place, Trial
from attnforge.language import algorithm, spec
from attnforge.plan import plan, tiles
from attnforge.plan.tiles import Limit, Row, Tile
from attnforge.render import emit, render
from attnforge.source import resources
from attnforge.source.errors import Problems, SpecError

ROWS = (
    Row("sm_90", "forward", 96, (Tile(64, 64, 4, 2), Tile(32, 32, 4, 1))),
    Row("sm_90", "backward_dkv", 128, (Tile(64, 128, 8, 4),)),
    Row("single", "forward", 64, (Tile(16, 32, 4, 1),)),
    Row("hopper", "forward", 64, (Tile(192, 64, 12, 2),)),
    Limit("faster", "forward", 128, 2048),
    Limit("faster", "backward", 64, None),
)
HERE = Machine("a GPU", "2.11", "3.6")


def written(folder: Path, tuned: str | None, text: str = "mask: [causal]\n") -> Path:
    path = folder / "mine.yaml"
    path.write_text(f"name: mine\n{text}")
    if tuned is not None:
        (folder / "tuning").mkdir(exist_ok=True)
        (folder / "tuning" / "mine.yaml").write_text(tuned)
    return path


def loaded(path: Path) -> spec.Spec:
    return spec.load(path, terms=resources.terms_for(path))


@pytest.mark.parametrize("name", ["causal", "full", "pair_bias"])
def test_calls_take_the_tile_of_their_length(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = plan.build(loaded(resources.variants()[name])).tables
    runtime, rendered = (importlib.import_module(f"generated.{name}.{file}") for file in ("runtime", "tiles"))
    monkeypatch.setattr(runtime, "hopper_kernels", lambda *_: "kernels")
    monkeypatch.setenv("ATTNFORGE_TARGET", "hopper")
    for its, sizes in tables.hopper.items():
        for size, by_length in sizes.items():
            assert len({tile.block_n for tile in by_length.values()}) == 1, "bits would hang on the length"
            q = torch.empty(1, 1, 1, size, dtype=torch.float16)
            for keys in {1, *by_length, *(keys - 1 for keys in by_length if keys)}:
                for reach in (keys - 1, 2**28):
                    *tile, kernels = runtime.on_hopper(rendered, its, q, q, 2**20 if reach < keys else keys, reach)
                    assert tiles.of_length(by_length, keys) == tuple(tile) and kernels == "kernels"
    assert len(tables.hopper["forward"][64]) == (1 if name == "pair_bias" else 2)


@pytest.mark.parametrize(
    ("its", "dims", "served"),
    [
        ("backward", (192, 128), True), ("backward", (256, 128), True), ("backward", (160, 40), True),
        ("backward", (192, 32), True), ("backward", (128, 64), False), ("backward", (128, 256), False),
        ("forward", (192, 128), True), ("forward", (128, 64), True), ("forward", (64, 128), False),
        ("forward", (32, 64), True), ("backward", (64, 16), True), ("backward", (16, 128), False),
    ],
)  # fmt: skip
def test_values_may_have_fewer_columns_where_stores_find_room(
    its: str, dims: tuple[int, int], served: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, rendered = (importlib.import_module(f"generated.causal.{file}") for file in ("runtime", "tiles"))
    monkeypatch.setattr(runtime, "hopper_kernels", lambda *_: "kernels")
    monkeypatch.setenv("ATTNFORGE_TARGET", "hopper")
    q, v = (torch.empty(1, 1, 1, size, dtype=torch.bfloat16) for size in dims)
    assert bool(runtime.on_hopper(rendered, its, q, v, 1, 2**28)) == served


def test_fewer_columns_of_values_have_a_number_of_keys_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = plan.build(loaded(resources.variants()["causal"])).tables
    runtime, rendered = (importlib.import_module(f"generated.causal.{file}") for file in ("runtime", "tiles"))
    monkeypatch.setattr(runtime, "hopper_kernels", lambda *_: "kernels")
    monkeypatch.delenv("ATTNFORGE_TARGET", raising=False)
    monkeypatch.setattr(rendered, "HOPPER_IS_FASTER", {"backward": {256: (7,), (256, 128): (9,)}})
    q, same, half, quarter = (torch.empty(1, 1, 1, size, dtype=torch.bfloat16) for size in (192, 192, 128, 64))
    given = (rendered, "backward", q)
    taken = {v.shape[-1]: [bool(runtime.on_hopper(*given, v, keys, 2**28)) for keys in (6, 7, 8, 9)]
             for v in (same, half, quarter)}  # fmt: skip
    assert taken == {192: [False, True, True, True], 128: [False] * 3 + [True], 64: [False, True, True, True]}
    assert (256, 128) in tables.faster["backward"]
    for keys, left in ((5, {256: (5,)}), (None, {})):
        faster = tables.tuned((Limit("faster", "backward", 256, keys),)).faster["backward"]
        assert {size: row for size, row in faster.items() if size not in (32, 64, 128)} == left


def test_rows_beside_a_spec_take_the_place_of_the_generators(tmp_path: Path) -> None:
    mine = loaded(written(tmp_path, None))
    before, untuned = plan.build(mine).tables, render.file(mine, "tiles.py")
    written(tmp_path, tuning.text(ROWS, HERE))
    assert tiles.tuned(mine.path) == ROWS
    after, tuned = plan.build(mine).tables, render.file(mine, "tiles.py")
    assert list(after.half["sm_90"]["forward"]) == [64, 96, 128, 256, 512]
    assert after.half["sm_90"]["forward"][96] == ROWS[0].tiles
    assert after.half["sm_90"]["backward_dkv"][128] == (Tile(64, 128, 8, 4),)
    assert after.single["forward"][64] == (Tile(16, 32, 4, 1),)
    assert after.half["sm_80"] == before.half["sm_80"] and 96 not in before.half["sm_90"]["forward"]
    assert after.hopper["forward"] == before.hopper["forward"] | {64: {0: Tile(192, 64, 12, 2)}}
    assert after.faster["forward"] == before.faster["forward"] | {128: (2048,)}
    assert 64 in before.faster["backward"] and 64 not in after.faster["backward"]
    assert "128: ((64, 128, 8, 4),)," in tuned and "(64, 128, 8, 4)" not in untuned
    first, second = (re.search("content hash  (.*)", text) for text in (untuned, tuned))
    assert first and second and first[1] != second[1], "packages of other tiles have another content hash"


def test_mistakes_of_rows_are_told_with_their_places(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "sm_91: {}\nsm_90:\n  forwards: {}\n  forward: {600: [], 64: [[63, 64, 4, 2]], 128: []}\n  backward_dq: [4]\n"
        "single:\n  forward: {\u00b2: [], 64: [[32, 32, 4, true]]}\n"
        "hopper:\n  backward_dq: {}\n  forward: {64: [[192, 128, 8, 3]], 128: [[64, 64, 4, 2], [128, 64, 8, 2]]}\n"
        "  backward: {64: [[128, 64, 8, 2]], 128: [[96, 128, 8, 2]]}\nfaster: {forward: {64: -1, 128: no}}\n",
    )
    with pytest.raises(SpecError) as caught:
        plan.build(loaded(path))
    assert [(p.location.line, p.location.column, p.message) for p in caught.value.problems] == [
        (1, 1, "unknown architecture 'sm_91' (did you mean 'sm_90'?)"),
        (3, 3, "unknown kernel 'forwards' (did you mean 'forward'?)"),
        (4, 13, "expected a head size from 1 to 576, got 600"),
        (4, 27, "expected [queries, keys, warps, stages], the first three powers of 2"),
        (4, 49, "expected a list of tiles, such as [[128, 64, 4, 2]]"),
        (5, 16, "expected a mapping, got a list"),
        (7, 13, "expected a head size from 1 to 576, got \u00b2"),
        (7, 25, "expected [queries, keys, warps, stages], the first three powers of 2"),
        (9, 3, "unknown kernel 'backward_dq' (did you mean 'backward'?)"),
        (10, 18, "expected [queries, keys, warps, stages], four warps for each 64 queries, keys a power of 2"),
        (10, 42, "expected a list of one tile, such as [[128, 128, 8, 2]]"),
        (11, 19, "expected [queries, keys, warps, stages], four warps for each 64 keys, queries a power of 2"),
        (11, 43, "expected [queries, keys, warps, stages], four warps for each 64 keys, queries a power of 2"),
        (12, 24, "expected a number of keys, or never"),
        (12, 33, "expected a number of keys, or never"),
    ]


def test_terms_that_load_a_lot_have_rows_of_their_own() -> None:
    bare, plain, sloped, capped, marks, heavy, tabled, drawn, rows, small_blocks, _ = map(tiles.tables, tiles.WEIGHTS)
    for size in (64, 128):
        assert len({one.half["sm_90"]["forward"][size] for one in (plain, marks, heavy)}) == 3
    assert (
        heavy.half["sm_90"]["forward"][256] == rows.half["sm_90"]["forward"][256] != plain.half["sm_90"]["forward"][256]
    )
    assert len({one.half["sm_90"]["backward_dq"][64] for one in (plain, heavy, rows)}) == 3
    assert bare.half["sm_90"]["backward_dkv"][64] != plain.half["sm_90"]["backward_dkv"][64]
    variants = resources.variants()
    for name, expected in (("full", bare), ("causal", plain), ("alibi", plain), ("softcap", capped), ("kerple", sloped),
                           ("llama3_documents", marks), ("log_decay", rows), ("pair_bias", heavy),
                           ("gpt2_dropout", drawn), ("t5_encoder", tabled),
                           ("block_sparse", small_blocks)):  # fmt: skip
        found = plan.build(loaded(variants[name])).tables.half["sm_90"]
        assert all(found[kernel] == expected.half["sm_90"][kernel] for kernel in ("forward", "backward_dkv")), name
    found_on_hopper = plan.build(loaded(variants["t5_encoder"])).tables.hopper["forward"]
    assert found_on_hopper == tabled.hopper["forward"] != heavy.hopper["forward"]


@pytest.mark.parametrize(
    ("score", "expected"),
    [("tanh(score)", "capped"), ("2 * tanh(score / 9) + k / 4", "capped"),
     ("score + tanh((q - k) / 9)", "sloped"), ("tanh(score) + log(1 + abs(q - k))", "sloped"), ("2 * score", "plain")],
)  # fmt: skip
def test_scores_are_capped_by_functions_of_them_alone(score: str, expected: str, tmp_path: Path) -> None:
    mine = loaded(written(tmp_path, None, f"mask: [causal]\nscore: [expr: {score}]\n"))
    assert plan.build(mine).analysis.by_query.weight == expected


@pytest.mark.parametrize(
    ("arch", "family"),
    [("sm_90", "sm_90"), ("sm_90a", "sm_90"),
     ("sm_100", "sm_90"), ("sm_103", "sm_90"), ("sm_80", "sm_80"), ("sm_86", "sm_80"),
     ("sm_89", "sm_80"), ("sm_120", "sm_80"), ("gfx942", "sm_80")],
)  # fmt: skip
def test_each_architecture_has_a_table(arch: str, family: str) -> None:
    assert tiles.family(arch) == family


def test_every_table_falls_back_to_little_shared_memory() -> None:
    earlier = [tiles.tables("plain", algorithm=name) for name in algorithm.ALGORITHMS]
    packed = [tiles.tables(weight, packed=True) for weight in tiles.WEIGHTS]
    wide = tiles.tables("plain", latent=True)
    for given in (*map(tiles.tables, tiles.WEIGHTS), *packed, *earlier, wide):
        for table in (*given.half.values(), given.single):
            for sizes in table.values():
                assert list(sizes) == [64, 128, 256, 512] + [576] * (given is wide)
                for row in sizes.values():
                    assert len(set(row)) == len(row)
                    assert row[-1].block_m * row[-1].block_n <= 1024 and row[-1].num_stages == 1


FORWARD = Place("sm_90", "forward", 128)


def made(spills: int = 0, shared: int = 1024, warnings: tuple[str, ...] = ()) -> Made:
    return Made(128, spills, shared, 128, {}, warnings)


def test_the_best_are_timed_again_in_turns() -> None:
    tried = [Tile(64, 64, 4, stages) for stages in range(1, 8)]
    first = [0.5, 0.9, 0.6, 0.7, 0.8, 0.95, 1.5]  # the first one met a cold GPU, only the last one has no spills
    trials = [Trial(x, made(spills=0 if x == tried[-1] else 9), "", ms) for x, ms in zip(tried, first, strict=True)]
    trials.append(Trial(Tile(32, 32, 4, 1), None, "does not fit"))
    order: list[Tile] = []

    class Runner:
        def timed(self, _: Place, trial: Trial) -> Trial:
            order.append(trial.tile)
            settled = 0.75 if trial.tile == tried[0] else trial.ms
            return dataclasses.replace(trial, ms=settled)

    search = object.__new__(tuning.Search)
    object.__setattr__(search, "runner", Runner())
    found = {trial.tile: trial.ms for trial in search.again(FORWARD, trials)}
    assert order[:6] == order[6:12] == [tried[i] for i in (0, 2, 3, 4, 1, 6)]
    assert found[tried[0]] == 0.75 and found[tried[2]] == 0.6 and found[tried[6]] == 1.5
    assert found[tried[5]] is None and found[Tile(32, 32, 4, 1)] is None


def trial(ms: float | None, spills: int = 0, why: str = "") -> Trial:
    return Trial(Tile(64, 64, 4, 2), made(spills), why, ms)


def test_a_tile_that_spills_wins_only_by_a_clear_margin() -> None:
    dry, close, clear = trial(1.0), trial(0.98, 20), trial(0.9, 20)
    assert tuning.chosen([dry, close]) is dry
    assert tuning.chosen([dry, close, clear]) is clear
    assert tuning.chosen([trial(2.0, 5), close]) is close
    assert tuning.chosen([trial(None, why="does not fit"), dry]) is dry
    assert tuning.chosen([trial(None, why="does not fit")]) is None


def test_what_the_assembler_says_rules_tiles_out() -> None:
    assert tuning.refusal(made(), "sm_90") == ""
    assert tuning.refusal(made(shared=228 * 1024), "sm_90") == "does not fit"
    serialized = made(warnings=("wgmma.mma_async instructions are serialized due to ...",))
    assert tuning.refusal(serialized, "sm_90") == "serializes its products"


def test_the_others_stay_behind_the_best() -> None:
    present = (Tile(128, 64, 4, 2), Tile(64, 64, 4, 2), Tile(32, 32, 4, 1))
    found = tuning.row(FORWARD, Tile(64, 64, 4, 2), present)
    assert found.tiles == (Tile(64, 64, 4, 2), Tile(128, 64, 4, 2), Tile(32, 32, 4, 1))
    alone = tuning.row(Place("hopper", "forward", 64), Tile(128, 64, 8, 2), (Tile(192, 128, 12, 3),))
    assert alone == Row("hopper", "forward", 64, (Tile(128, 64, 8, 2),))


def test_rows_are_written_and_read_again(tmp_path: Path) -> None:
    new = Row("sm_90", "forward", 96, (Tile(128, 64, 8, 3),))
    both = tuning.merged(ROWS, [new])
    assert len(both) == len(ROWS) and new in both and ROWS[0] not in both
    path = tmp_path / "rows.yaml"
    path.write_text(tuning.text(both, HERE))
    problems = Problems()
    assert set(tiles.rows(path, "rows.yaml", problems)) == set(both) and not problems
    assert path.read_text().startswith("# Written by `attnforge tune`, last on: a GPU, torch 2.11, triton 3.6.\n")


def test_candidates_own_the_larger_side() -> None:
    for kernel in tiles.KERNELS:
        found = list(tuning.candidates(Place("sm_90", kernel, 128), ()))
        assert len(set(found)) == len(found) > 30
        owned = {tile.block_n if kernel == "backward_dkv" else tile.block_m for tile in found}
        assert owned == ({64, 128} if kernel == "backward_dkv" else {64, 128, 256})


def test_candidates_on_hopper_gpus_have_a_worker_for_each_64_rows() -> None:
    forward, backward = (Place("hopper", its, 128) for its in tiles.PASSES)
    found = list(tuning.candidates(forward, ()))
    assert len(set(found)) == len(found) == 12 and all(tile.num_warps * 16 == tile.block_m for tile in found)
    present = Tile(64, 128, 8, 2)
    assert list(tuning.candidates(backward, (present,))) == [present._replace(num_stages=n) for n in (1, 2, 3)]


def test_calls_take_the_target_that_outruns_the_other_from_some_length_on() -> None:
    def times(*hopper: float | None) -> dict[int, dict[str, float | None]]:
        return {512 << i: {"portable": 1.0, "hopper": ms} for i, ms in enumerate(hopper)}

    assert tuning.outruns(times(0.9, 1.0, 0.8)) == 0
    assert tuning.outruns(times(0.9, 1.1, 0.8, 0.7)) == 2048
    assert tuning.outruns(times(0.9, 0.9, 1.01)) is None
    assert tuning.outruns(times(0.9, 0.9, None)) is None
    assert tuning.outruns({512: {"portable": None, "hopper": 1.0}}) == 0
    limit = Limit("faster", "forward", 64, 1024)
    console = Console(file=io.StringIO(), width=80)
    console.print(tuning.table_of_targets("a title", limit, times(1.1, 0.5)))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert re.search(r"512 .* \*1.0000 .* 1.1000", text) and re.search(r"1024 .* 1.0000 .* \*0.5000", text)


PLACES = os.pathsep.join(map(str, (Path(attnforge.__file__).parents[1], Path(__file__).parents[1])))
SEARCH = """
import os, sys
from pathlib import Path
import unformatted
from attnforge.gpu import bench, calls, tuning
from attnforge.plan import tiles
from attnforge.plan.tiles import Tile
from attnforge.source import resources


def search_of(arch, *sizes, name="causal"):
    loaded, package = unformatted.package(resources.variants()[name])
    search = tuning.Search(loaded, package, calls.Sizes(*sizes), Path(sys.argv[1]))
    search.__dict__["arch"] = arch
    return search
"""
COMPILED = (
    SEARCH
    + """
if __name__ == "__main__":
    search = search_of("sm_86", 1, 64, 64, 2, 2, 128, 128, "bf16")
    tuning.candidates = lambda place, present: [Tile(128, 128, 8, 4), Tile(64, 32, 4, 2)]
    search.__class__.present = lambda self, place: (Tile(64, 32, 4, 1),)
    for place, trial in search.compiled(search.places("portable")[:1]):
        print(place.told, *trial.tile, trial.made.shared, trial.why, sep="|")
"""
)


@pytest.mark.slow
def test_tiles_are_compiled_side_by_side_without_a_gpu(tmp_path: Path) -> None:
    env = os.environ | {"PYTHONPATH": PLACES, "TRITON_CACHE_DIR": str(tmp_path)}
    env.pop("TRITON_INTERPRET", None)
    script = tmp_path / "script.py"
    script.write_text(COMPILED)
    done = subprocess.run([sys.executable, str(script), str(tmp_path)], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = [line.split("|") for line in done.stdout.splitlines()]
    assert [(row[0], *map(int, row[1:5])) for row in rows] == [
        ("forward", 64, 32, 4, 1), ("forward", 128, 128, 8, 4), ("forward", 64, 32, 4, 2)
    ]  # fmt: skip
    assert [row[6] for row in rows] == ["", "does not fit", ""]


TRIED = (
    SEARCH
    + """
search = search_of("sm_90", 1, 40, 40, 2, 2, 16, 16, "fp16", name=sys.argv[2])
bench.milliseconds = lambda function, **_: 0.25
runner = tuning.Runner(search.planned, search.package, search.sizes, search.folder, "cpu")
table = runner.tables.TILES_16BIT["sm_90"]
before = {kernel: dict(sizes) for kernel, sizes in table.items()}
for place in search.places("portable"):
    trial = tuning.Trial(Tile(64, 32, 8, 1))
    with runner.tile(place, trial.tile):
        print(place.told, len(runner.right(place)), *table[place.kernel][64], end=" ")
    print(runner.timed(place, trial).ms, end=" ")
    runner.gold[place] = [x + 1 for x in runner.gold[place]]
    print(runner.timed(place, trial).why.split(":")[0])
print(table == before)
wide = search_of("sm_90", 1, 40, 40, 2, 2, 256, 256, "fp16", name=sys.argv[2])
print(*(place.told for place in wide.places("hopper")))
if search.planned.hopper:
    place, table = tuning.Place("hopper", "forward", 64), runner.tables.TILES_HOPPER["forward"]
    before = dict(table)
    with runner.tile(place, Tile(128, 64, 8, 2)):
        print(os.environ["ATTNFORGE_TARGET"], table[64], end=" ")
    print(table == before, "ATTNFORGE_TARGET" in os.environ, end=" ")
    took = runner.both("backward", calls.Sizes(1, 20, 20, 2, 2, 16, 16, "fp16"))
    print(*took.items(), runner.runs(place), runner.runs(search.places("portable")[0]))
"""
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kernels", "hopper"),
    [
        (
            "causal",
            (("forward", 1), ("backward_dkv", 2), ("backward_dq", 1)),
            [
                "hopper.forward hopper.backward",
                "hopper {0: (128, 64, 8, 2)} True False ('portable', 0.25) ('hopper', 0.25) False True",
            ],
        ),
        ("flash1", (("forward", 1),), [""]),
    ],
)
def test_a_tile_is_tried_in_the_place_of_the_present_ones(
    name: str, kernels: tuple[tuple[str, int], ...], hopper: list[str], tmp_path: Path
) -> None:
    env = os.environ | {"PYTHONPATH": PLACES, "TRITON_INTERPRET": "1"}
    env.pop("ATTNFORGE_TARGET", None)
    done = subprocess.run([sys.executable, "-c", TRIED, str(tmp_path), name], env=env, capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        f"{kernel} {made} (64, 32, 8, 1) 0.25 gives something else" for kernel, made in kernels
    ] + ["True", *hopper], done.stderr


def test_a_search_finds_rows_of_both_targets_and_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of `run` except compiling and the GPU: more stages are faster, and Hopper's forward pass does not run."""
    portable, lacking, backward = FORWARD, Place("hopper", "forward", 128), Place("hopper", "backward", 128)
    put: dict[Place, Tile] = {}

    class Runner:
        call = SimpleNamespace(keywords={"max_seqlen_k": 7000})

        def runs(self, place: Place) -> bool:
            return place != lacking

        def timed(self, _: Place, trial: Trial) -> Trial:
            return dataclasses.replace(trial, ms=1 / trial.tile.num_stages)

        def put(self, place: Place, tile: Tile) -> None:
            put[place] = tile

        def both(self, its: str, sizes: Sizes) -> dict[str, float | None]:
            assert its == "backward" and sizes.batch == max(8192 // sizes.k_len, 1) and sizes.q_len == sizes.k_len
            return {"portable": 1.0, "hopper": 0.5}

    def compiled(self: tuning.Search, places: list[Place]) -> Iterator[tuple[Place, Trial]]:
        yield from ((place, Trial(tile, made())) for place in places for tile in self.tried(place))

    def places(self: tuning.Search, target: str) -> tuple[Place, ...]:
        return (portable,) if target == "portable" else (lacking, backward)

    monkeypatch.setattr(tuning.Search, "compiled", compiled)
    monkeypatch.setattr(tuning.Search, "places", places)
    monkeypatch.setattr(tuning.Search, "runner", Runner())
    monkeypatch.setattr(tuning.Search, "arch", "sm_90")
    spec_of, package = loaded(written(tmp_path, None)), emit.Package("mine", "", Path(), {})
    console = Console(file=io.StringIO(), width=120)
    found = tuning.run(spec_of, package, [Sizes(2, 4096, 4096, 4, 4, 128, 128, "bf16")], console)
    own, other, limit = found
    assert isinstance(own, Row) and own[:3] == portable and own.tiles[0].num_stages == 4 and len(own.tiles) > 1
    assert isinstance(other, Row) and other[:3] == backward and [tile.num_stages for tile in other.tiles] == [3]
    assert limit == Limit("faster", "backward", 128, 0) and put == {portable: own.tiles[0], backward: other.tiles[0]}
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert "hopper.forward does not run here" in said and "7000" in said
    (alone,) = tuning.run(spec_of, package, [Sizes(2, 4096, 4096, 4, 4, 128, 128, "bf16")], console, target="portable")
    assert alone == own


def test_the_command_keeps_what_was_found_for_a_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, asked = written(tmp_path, "single: {forward: {64: [[32, 32, 4, 1]]}}\n"), []

    def run(*_: Any, target: str) -> list[Row | Limit]:
        asked.append(target)
        return [Row("hopper", "forward", 128, (Tile(128, 64, 8, 3),)), Limit("faster", "forward", 128, 0)]

    monkeypatch.setattr(tuning, "run", run)
    monkeypatch.setattr(Machine, "here", staticmethod(lambda: HERE))
    monkeypatch.setattr(arguments, "packages", lambda loaded: [None] * len(loaded))
    done = CliRunner().invoke(commands.main, ["tune", str(path), "--target", "hopper"])
    assert done.exit_code == 0 and asked == ["hopper"], done.output
    text = (tmp_path / "tuning" / "mine.yaml").read_text()
    assert "single:\n  forward:\n    64: [[32, 32, 4, 1]]\n" in text
    assert text.endswith("hopper:\n  forward:\n    128: [[128, 64, 8, 3]]\nfaster:\n  forward:\n    128: 0\n")
    assert plan.build(loaded(path)).tables.hopper["forward"][128] == {0: Tile(128, 64, 8, 3)}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_written(tmp_path: Path) -> None:
    path = written(tmp_path, None)
    done = CliRunner().invoke(commands.main, ["tune", str(path)])
    assert done.exit_code == 2 and "this needs a GPU that torch can use" in done.output
    assert not (tmp_path / "tuning").exists()
