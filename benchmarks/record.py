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

import click
import pages
from pages import RESULTS
from sets import PROFILED, PROFILED_CALL, SETS, SHORT, Set, small

from attnforge.cli import arguments
from attnforge.gpu import bench, calls, counters, profile
from attnforge.gpu.bench import Contender
from attnforge.gpu.calls import Sizes
from attnforge.gpu.results import OURS, Machine, Result, document
from attnforge.language.spec import Spec
from attnforge.plan import plan
from attnforge.render import emit


def made(name: str) -> tuple[Path, Spec, emit.Package]:
    """A variant by its name or path, and its package."""
    loaded = arguments.load([name])
    ((path, spec),), (package,) = loaded.items(), arguments.packages(loaded)
    return path, spec, package


def measured(one: Set, clock: bench.Clock | None = None) -> Iterator[Result]:
    """The results of a set."""
    for name in one.specs:
        _, spec, package = made(name)
        how = {"backward": one.backward, "replays": one.replays}
        yield from bench.run(spec, package, one.sizes, one.peers, target=one.target, clock=clock, **how)


def compile_first(names: Sequence[str], jobs: int) -> None:
    """Calls everything in these sets once, in as many processes at a time: what they compile stays in caches."""
    parts = [dataclasses.replace(SETS[name], specs=(spec,)) for name in names for spec in SETS[name].specs]
    with ProcessPoolExecutor(jobs, get_context("spawn"), max_tasks_per_child=1) as pool:
        list(pool.map(_call, parts))


def _call(part: Set) -> None:
    def once(function: Callable[[], object]) -> float:
        function()
        return 1.0  # of a speed that is worked out and thrown away

    for _ in measured(part, once):
        pass


def outside(calls_of: Sequence[Sizes] = small(2, SHORT, "fp16"), device: str = "cuda") -> list[Result]:
    """What the GPU takes for RoPE inside the package, and for causal attention after PyTorch has turned q and k."""
    import torch

    def turned(x: Any, cos: Any, sin: Any) -> Any:
        a, b = x.chunk(2, -1)
        c, s = cos[: x.shape[1], None], sin[: x.shape[1], None]
        return torch.cat((a * c - b * s, b * c + a * s), -1).to(x.dtype)

    compiled = torch.compile(turned, dynamic=True)
    with tempfile.TemporaryDirectory(prefix="attnforge-") as folder, torch.no_grad():
        (_, spec, inside), (_, _, plain) = made("rope"), made("causal")
        rope, causal = (bench.functions(package, Path(folder)).attention for package in (inside, plain))

        def timed(sizes: Sizes) -> Result:
            call = calls.make(plan.build(spec), sizes, device)
            (q, k, v), angles = call.operands, (call.keywords["cos"], call.keywords["sin"])
            entered = [
                Contender(OURS, lambda: rope(q, k, v, **call.keywords)),
                Contender("outside, compiled", lambda: causal(compiled(q, *angles), compiled(k, *angles), v)),
                Contender("outside, eager", lambda: causal(turned(q, *angles), turned(k, *angles), v)),
                Contender("without RoPE", lambda: causal(q, k, v)),
            ]
            bench.in_turns(entered, "forward", bench.replayed)
            pairs = sizes.batch * sizes.heads * sizes.q_len * (sizes.q_len + 1) // 2
            return Result("rope", sizes, pairs, tuple(one.row for one in entered), replayed=True)

        return [timed(sizes) for sizes in calls_of]


def profiled(tool: str) -> str:
    """What Nsight Compute counts, as JSON."""
    found = [profile.run(*made(name), PROFILED_CALL, tool, backward=False, target="portable") for name in PROFILED]
    return profile.document(Machine.here(), found)


def _keep(name: str, text: str) -> None:
    (RESULTS / f"{name}.json").write_text(text, encoding="utf-8", newline="\n")


def main() -> None:
    """Measures, if asked to, and writes the pages."""
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=style, allow_abbrev=False)
    parser.add_argument("sets", nargs="*", metavar="SET", help=", ".join(SETS))
    parser.add_argument("--page", action="store_true", help="write the pages alone")
    parser.add_argument("--ncu", metavar="FILE", default=shutil.which("ncu"), help="Nsight Compute's command line")
    parser.add_argument("--jobs", metavar="N", type=int, help="compile in N processes before anything is measured")
    asked = parser.parse_args()
    if unknown := [name for name in asked.sets if name not in SETS]:
        parser.error(f"unknown set {unknown[0]!r}; there are {', '.join(SETS)}")
    if asked.page and (asked.sets or asked.jobs is not None):
        parser.error("--page measures nothing: leave sets and --jobs out")
    if asked.jobs is not None and asked.jobs < 1:
        parser.error(f"--jobs: expected at least 1, got {asked.jobs}")
    try:
        if not asked.page:
            measure(asked.sets or list(SETS), asked.jobs, asked.ncu)
        pages.write()
    except (click.ClickException, pages.Damaged) as error:
        parser.error(str(error))


def measure(wanted: Sequence[str], jobs: int | None, ncu: str | None) -> None:
    """Measures sets and keeps what was found; profiles those of which ncu tells."""
    machine = Machine.here()
    if jobs:
        compile_first(wanted, jobs)
    for name in wanted:
        results = []
        for result in measured(SETS[name]):
            print(json.dumps([result.variant, result.sizes.k_len, *((r.name, r.forward_ms) for r in result.rows)]))
            results.append(result)
        _keep(name, document(machine, results))
        if name == "rope":
            _keep("rope_outside", document(machine, outside()))
        if name == "history" and ncu:
            _keep("profiles", profiled(counters.program(ncu)))


if __name__ == "__main__":
    main()
