"""Tools that measure both targets, on a Hopper GPU: `bench`, the trials of `tune`, and the launches of `profile`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from attnforge.cli import arguments
from attnforge.gpu import bench, calls, profile, targets, tuning
from attnforge.gpu.calls import Sizes
from attnforge.gpu.trials import Trial

hopper = torch.cuda.is_available() and torch.cuda.get_device_capability(0) == (9, 0)
pytestmark = pytest.mark.skipif(not hopper, reason="needs a Hopper GPU")
SIZES = Sizes(1, 1024, 1024, 4, 4, 128, 128, "bf16")


def test_bench_times_each_target_and_the_ceiling() -> None:
    loaded = arguments.load(["causal"])
    ((_, spec),), (package,) = loaded.items(), arguments.packages(loaded)
    narrow = Sizes(1, 1024, 1024, 4, 4, 128, 64, "bf16")
    both, forward = bench.run(spec, package, [SIZES, narrow], ["sdpa-flash"])
    rows = {row.name: row for row in both.rows}
    assert list(rows) == ["attnforge", "portable", "hopper", "sdpa-flash"]
    assert all(row.forward_ms and row.backward_ms and row.both_mib is not None for row in rows.values()), rows
    assert not any(row.note for row in rows.values()) and set(both.kernels) == {"forward", "backward"}
    assert all(rate and rate > 100 for rate in both.ceiling)
    # heads of 128 columns with narrower values have no backward kernels for Hopper GPUs
    rows = {row.name: row for row in forward.rows}
    assert rows["hopper"].forward_ms and rows["hopper"].backward_ms is None and rows["portable"].backward_ms
    (alone,) = bench.run(spec, package, [SIZES], [], target="hopper", backward=False)
    assert [row.name for row in alone.rows] == ["attnforge"] and alone.kernels == {"forward": "hopper"}
    (graph,) = bench.run(spec, package, [SIZES], [], replays=True)
    assert all(row.forward_ms and not row.note for row in graph.rows)


def test_tiles_of_both_targets_are_tried(tmp_path: Path) -> None:
    loaded = arguments.load(["causal"])
    ((_, spec),), (package,) = loaded.items(), arguments.packages(loaded)
    search = tuning.Search(spec, package, SIZES, tmp_path)
    places = [place for target in targets.TARGETS for place in search.places(target)]
    assert [place.told for place in places] == [
        "forward", "backward_dkv", "backward_dq", "hopper.forward", "hopper.backward"
    ]  # fmt: skip
    for place in places:
        assert search.runner.runs(place), place
        tried = search.runner.timed(place, Trial(search.present(place)[0]))
        assert tried.ms and not tried.why, (place, tried)
    for its in ("forward", "backward"):
        times = search.runner.both(its, SIZES)
        assert set(times) == set(targets.TARGETS) and all(times.values())


@pytest.mark.parametrize("target", targets.TARGETS)
def test_launches_of_each_target_are_known(target: str, tmp_path: Path) -> None:
    loaded = arguments.load(["rope_gqa"])
    ((_, spec),), (package,) = loaded.items(), arguments.packages(loaded)
    bench.functions(package, tmp_path)  # writes it
    attention, runtime = profile.package(tmp_path / "rope_gqa")
    runtime.LaunchCache.known.clear()  # of the other target: a process imports a module only once
    planned = profile.plan.build(spec)
    with targets.asked(target):
        once = profile.passes(attention, calls.make(planned, SIZES, "cuda"), backward=True)
        found = [one.kernel for one in profile.least(planned, runtime, once)]
    assert targets.taken(runtime) == {"forward": target, "backward": target}
    backward = (
        ["backward_dq", "backward_dkv"] if target == "portable" else ["prepare", "backward", "finish", "turn_back"]
    )
    assert found == ["rotate", "forward", *backward]
