"""Measures the recorded sets on the current GPU, and writes the pages of docs that show them.

python benchmarks/record.py [SET...]      measures these sets, or all if none is named, and writes the pages
python benchmarks/record.py --page        only writes the pages; needs no GPU

Each result is written as soon as it is measured. Results that are not measured again, because of --only or because
the run was interrupted, are kept from the previous record if they come from the same GPU, torch and triton.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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

Record = dict[str, dict[Sizes, Result]]  # the results of a set by variant and call


def made(name: str) -> tuple[Path, Spec, emit.Package]:
    """The path, spec and package of a variant that is given by name or path."""
    loaded = arguments.load([name])
    ((path, spec),), (package,) = loaded.items(), arguments.packages(loaded)
    return path, spec, package


def measured(one: Set, clock: bench.Clock | None = None) -> Iterator[Result]:
    """Measures a set and yields its results."""
    for name in one.specs:
        _, spec, package = made(name)
        how = {"backward": one.backward, "replays": one.replays}
        yield from bench.run(spec, package, one.sizes, one.peers, target=one.target, clock=clock, **how)


def compile_first(wanted: Iterable[Set], jobs: int) -> None:
    """Calls everything in these sets once, in `jobs` processes at a time, to fill compile caches."""
    parts = [
        dataclasses.replace(one, specs=(spec,), sizes=(sizes,))
        for one in wanted
        for spec in one.specs
        for sizes in one.sizes
    ]
    with ProcessPoolExecutor(jobs, get_context("spawn"), max_tasks_per_child=1) as pool:
        list(pool.map(_call, parts))


def _call(part: Set) -> None:
    def once(function: Callable[[], object]) -> float:
        function()
        return 1.0  # any time: the speed that follows from it is discarded

    for _ in measured(part, once):
        pass


def outside(calls_of: Sequence[Sizes] = small(2, SHORT, "fp16"), device: str = "cuda") -> list[Result]:
    """GPU times of RoPE inside the package, and of causal attention after PyTorch has rotated q and k."""
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
    """Counters of Nsight Compute, as JSON."""
    found = [profile.run(*made(name), PROFILED_CALL, tool, backward=False, target="portable") for name in PROFILED]
    return profile.document(Machine.here(), found)


def recorded(name: str, machine: Machine) -> Record:
    """The recorded results of a set, if they come from this machine."""
    try:
        ((_, before, found),) = pages.recorded(name)
    except pages.Damaged:
        return {}
    record: Record = {}
    for result in found if before == machine else ():
        record.setdefault(result.variant, {})[result.sizes] = result
    return record


def _keep_results(name: str, machine: Machine, record: Record) -> None:
    """Writes the results of a set's variants, in the set's order."""
    results = [result for spec in SETS[name].specs for result in record.get(Path(spec).stem, {}).values()]
    _keep(name, document(machine, results))


def _keep(name: str, text: str) -> None:
    (RESULTS / f"{name}.json").write_text(text, encoding="utf-8", newline="\n")


def main() -> None:
    """Measures, unless --page is given, and writes the pages."""
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=style, allow_abbrev=False)
    parser.add_argument("sets", nargs="*", metavar="SET", help=", ".join(SETS))
    parser.add_argument("--page", action="store_true", help="only write the pages")
    parser.add_argument("--ncu", metavar="FILE", default=shutil.which("ncu"), help="Nsight Compute's command line")
    parser.add_argument("--only", nargs="+", metavar="SPEC", help="measure only these variants of the sets")
    parser.add_argument("--jobs", metavar="N", type=int, help="compile in N processes before anything is measured")
    asked = parser.parse_args()
    if unknown := [name for name in asked.sets if name not in SETS]:
        parser.error(f"unknown set {unknown[0]!r}; there are {', '.join(SETS)}")
    if asked.page and (asked.sets or asked.only or asked.jobs is not None):
        parser.error("--page measures nothing: leave sets, --only and --jobs out")
    sets = {name: SETS[name] for name in asked.sets or SETS}
    if asked.only:
        if unknown := [name for name in asked.only if not any(name in one.specs for one in sets.values())]:
            parser.error(f"--only: no set measures {unknown[0]!r}")
        chosen = {name: tuple(spec for spec in one.specs if spec in asked.only) for name, one in sets.items()}
        sets = {name: dataclasses.replace(sets[name], specs=specs) for name, specs in chosen.items() if specs}
    if asked.jobs is not None and asked.jobs < 1:
        parser.error(f"--jobs: expected at least 1, got {asked.jobs}")
    try:
        if not asked.page:
            measure(sets, asked.jobs, asked.ncu)
        pages.write()
    except (click.ClickException, pages.Damaged) as error:
        parser.error(str(error))


def measure(wanted: Mapping[str, Set], jobs: int | None, ncu: str | None) -> None:
    """Measures sets and writes their results; for the set `history`, `ncu` also profiles kernels."""
    machine = Machine.here()
    if jobs:
        compile_first(wanted.values(), jobs)
    for name, one in wanted.items():
        record = recorded(name, machine)
        for spec in one.specs:
            found: dict[Sizes, Result] = {}
            for result in measured(dataclasses.replace(one, specs=(spec,))):
                told = [result.variant, result.sizes.k_len, *((r.name, r.forward_ms) for r in result.rows)]
                print(json.dumps(told), flush=True)
                found[result.sizes] = result
                record[result.variant] = record.get(result.variant, {}) | found
                _keep_results(name, machine, record)
            record[Path(spec).stem] = found
        _keep_results(name, machine, record)
        if name == "rope":
            _keep("rope_outside", document(machine, outside()))
        if name == "history" and ncu:
            _keep("profiles", profiled(counters.program(ncu)))


if __name__ == "__main__":
    main()
