"""Measures the recorded set on the GPU at hand, and writes the pages of docs that tell of it.

python benchmarks/record.py [SET...]      measures these sets, all of them if none is named, and writes the pages
python benchmarks/record.py --page        writes the pages alone; needs no GPU
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pages
from pages import RESULTS
from sets import PROFILED, PROFILED_CALL, SETS, SHORT, Set, small

from attnforge import bench, calls, counters, given, plan, profile
from attnforge.bench import Machine, Result
from attnforge.calls import Sizes


def measured(one: Set, clock: bench.Clock | None = None) -> Iterator[Result]:
    """The results of a set."""
    for name in one.specs:
        loaded = given.load([name])
        ((_, spec),), (package,) = loaded.items(), given.packages(loaded)
        how = {"backward": one.backward, "replays": one.replays}
        yield from bench.run(spec, package, one.sizes, one.peers, clock=clock, **how)


def compile_first(names: Sequence[str], jobs: int) -> None:
    """Calls everything in these sets once, in as many processes at a time: what they compile stays in caches."""
    parts = [dataclasses.replace(SETS[name], specs=(spec,)) for name in names for spec in SETS[name].specs]
    with ProcessPoolExecutor(jobs, get_context("spawn"), max_tasks_per_child=1) as pool:
        list(pool.map(_call, parts))


def _call(part: Set) -> None:
    def once(function: Callable[[], object]) -> float:
        function()
        return 0.0

    for _ in measured(part, once):
        pass


def outside(calls_of: Sequence[Sizes] = small(2, SHORT, "fp16"), device: str = "cuda") -> list[dict[str, float]]:
    """What the GPU takes for RoPE inside the package, and for causal attention after PyTorch has turned q and k."""
    import torch

    def turned(x: Any, cos: Any, sin: Any) -> Any:
        a, b = x.chunk(2, -1)
        c, s = cos[: x.shape[1], None], sin[: x.shape[1], None]
        return torch.cat((a * c - b * s, b * c + a * s), -1).to(x.dtype)

    compiled = torch.compile(turned, dynamic=True)
    with tempfile.TemporaryDirectory(prefix="attnforge-") as folder, torch.no_grad():
        loaded = given.load(["rope", "causal"])
        rope, causal = (bench.functions(package, Path(folder)).attention for package in given.packages(loaded))

        def timed(sizes: Sizes) -> dict[str, float]:
            call = calls.make(plan.build(next(iter(loaded.values()))), sizes, device)
            (q, k, v), angles = call.operands, (call.keywords["cos"], call.keywords["sin"])
            ways = {
                "inside": lambda: rope(q, k, v, **call.keywords),
                "outside, compiled": lambda: causal(compiled(q, *angles), compiled(k, *angles), v),
                "outside, eager": lambda: causal(turned(q, *angles), turned(k, *angles), v),
                "without RoPE": lambda: causal(q, k, v),
            }
            return {"T": sizes.k_len} | {name: bench.replayed(way) for name, way in ways.items()}

        return [timed(sizes) for sizes in calls_of]


def profiled(tool: str) -> str:
    """What Nsight Compute counts, as JSON."""
    found = []
    for name in PROFILED:
        loaded = given.load([name])
        ((path, spec),), (package,) = loaded.items(), given.packages(loaded)
        found.append(profile.run(path, spec, package, PROFILED_CALL, tool, backward=False))
    return profile.document(Machine.here(), found)


def main() -> None:
    """Measures, if asked to, and writes the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", choices=[[], *SETS], metavar="SET", help=", ".join(SETS))
    parser.add_argument("--page", action="store_true", help="write the pages alone")
    parser.add_argument("--ncu", metavar="FILE", default=shutil.which("ncu"), help="Nsight Compute's command line")
    parser.add_argument("--jobs", metavar="N", type=int, help="compile in N processes before anything is measured")
    asked = parser.parse_args()
    wanted = [] if asked.page else asked.sets or list(SETS)
    if asked.jobs:
        compile_first(wanted, asked.jobs)
    for name in wanted:
        results = []
        for result in measured(SETS[name]):
            print(json.dumps([result.variant, result.sizes.k_len, *((r.name, r.forward_ms) for r in result.rows)]))
            results.append(result)
        document = bench.document(Machine.here(), results)
        (RESULTS / f"{name}.json").write_text(document, encoding="utf-8", newline="\n")
        if name == "rope":
            (RESULTS / "rope_outside.json").write_text(json.dumps(outside(), indent=1) + "\n", encoding="utf-8")
        if name == "history" and asked.ncu:
            text = profiled(counters.program(asked.ncu))
            (RESULTS / "profiles.json").write_text(text, encoding="utf-8", newline="\n")
    pages.write()


if __name__ == "__main__":
    main()
