"""Reports what each kernel of a variant does on the local GPU, compared with the least data that it has to move.

`python -m attnforge.gpu.profile FILE` makes one call of a package: the process that Nsight Compute profiles.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..language import spec
from ..language.spec import Spec
from ..plan import plan
from ..plan.plan import Plan
from ..render import emit
from ..source import resources
from . import calls, counters, targets
from .calls import Call, Sizes
from .counters import Reading
from .peers import module
from .results import Machine, cell

OTHERS = "others"  # PyTorch's own kernels: casts, copies, fills


@dataclass(frozen=True)
class Least:
    """The bytes of a launch if each tensor is moved once."""

    kernel: str
    read: int
    written: int


@dataclass(frozen=True)
class Launch:
    """One launch, and the least data that it has to move, if it is one of the package's own."""

    name: str
    reading: Reading
    least: Least | None = None

    @property
    def ratio(self) -> float | None:
        """The bytes moved, divided by the least."""
        r, least = self.reading, self.least
        if least is None or r.read is None or r.written is None:
            return None
        return (r.read + r.written) / max(least.read + least.written, 1)


@dataclass(frozen=True)
class Profile:
    """All launches of one call, in order."""

    variant: str
    sizes: Sizes
    launches: tuple[Launch, ...]
    kernels: dict[str, str] = field(default_factory=dict)  # the target by pass, if the package has several


def run(
    path: Path, loaded: Spec, package: emit.Package, sizes: Sizes, ncu: str, *, backward: bool = True, target: str = "",
) -> Profile:  # fmt: skip
    """Measures one call of a variant, with the kernels of a target if one is given."""
    fitting, planned = sizes.of(loaded), plan.build(loaded)
    with tempfile.TemporaryDirectory(prefix="attnforge-") as folder:
        emit.write([package], Path(folder))
        job, answer = Path(folder) / "job.json", Path(folder) / "answer.json"
        asked: dict[str, Any] = {
            "spec": str(path.resolve()),
            "package": str(Path(folder) / package.name),
            "answer": str(answer),
        }
        asked |= {"sizes": dataclasses.asdict(fitting), "backward": backward, "target": target}
        job.write_text(json.dumps(asked))
        readings = counters.measured(ncu, [sys.executable, "-m", "attnforge.gpu.profile", str(job)])
        told = json.loads(answer.read_text()) if answer.exists() else {"least": [], "kernels": {}}
    known = [Least(**one) for one in told["least"]]
    launches = tuple(joined(readings, known, [*written(planned)]))
    return Profile(loaded.name, fitting, launches, told["kernels"] if planned.hopper else {})


def joined(readings: Sequence[Reading], least: Sequence[Least], names: Sequence[str]) -> Iterator[Launch]:
    """Each launch of the package's own kernels with its least; all other launches together as one."""
    known = {name: [one for one in least if one.kernel == name] for name in names}
    counts = Counter(reading.kernel for reading in readings)
    seen: Counter[str] = Counter()
    for reading in readings:
        if (its := known.get(reading.kernel)) is not None:
            i = seen[reading.kernel]
            seen[reading.kernel] += 1
            # if the numbers of launches differ, they cannot be matched
            fits = len(its) == counts[reading.kernel]
            yield Launch(reading.kernel + (f" {i + 1}" if i else ""), reading, its[i] if fits else None)
    others = [reading for reading in readings if reading.kernel not in known]
    if others:
        seconds, read, written, l2 = (
            sum(x for x in column if x is not None)
            for column in zip(*((r.seconds, r.read, r.written, r.l2) for r in others), strict=True)
        )
        yield Launch(f"{OTHERS} ({len(others)})", Reading(OTHERS, seconds, read, written, l2))


# -- the call that is profiled -------------------------------------------------------------------------------------


def main(job: Path) -> None:
    """Makes the call that a file describes, the third time with the profiler on."""
    import torch

    asked = json.loads(job.read_text())
    path = Path(asked["spec"])
    planned = plan.build(spec.load(path, terms=resources.terms_for(path)))
    call = calls.make(planned, Sizes(**asked["sizes"]), "cuda")
    attention, runtime = package(Path(asked["package"]))
    with targets.asked(asked["target"]) if asked["target"] else contextlib.nullcontext():
        once = passes(attention, call, backward=asked["backward"])
        once()  # compiles
        found = [dataclasses.asdict(one) for one in least(planned, runtime, once)]
        Path(asked["answer"]).write_text(json.dumps({"least": found, "kernels": targets.taken(runtime)}))
        torch.cuda.synchronize()
        with torch.cuda.profiler.profile():
            once()
            torch.cuda.synchronize()


def package(folder: Path) -> tuple[Any, Any]:
    """The function of a written package, and its module through which all launches go."""
    name = f"profiled_{folder.name}"
    return module(name, folder / "__init__.py").attention, importlib.import_module(f"{name}.runtime")


def passes(attention: Any, call: Call, *, backward: bool) -> Callable[[], None]:
    """A function that runs the passes of a call, and can be called repeatedly."""
    import torch

    upstream = torch.randn_like(attention(*call.operands, **call.keywords))

    def once() -> None:
        out = attention(*call.operands, **call.keywords)
        if backward and out.requires_grad:
            torch.autograd.grad(out, call.wanted, upstream, allow_unused=True)

    return once


def written(planned: Plan) -> dict[str, frozenset[str]]:
    """The parameters that kernels write, by the kernels' names; those of several targets may share one."""
    found: dict[str, frozenset[str]] = {}
    tables = planned.by_distance.kernels if planned.by_distance else ()
    for kernel in (*planned.kernels.all, *tables, *(planned.hopper.launched if planned.hopper else ())):
        found[kernel.name] = found.get(kernel.name, frozenset()) | kernel.written
    return found


def least(planned: Plan, runtime: Any, once: Callable[[], None]) -> list[Least]:
    """The least data that each launch of a call has to move, in order."""
    made = written(planned)
    found: list[Least] = []
    start = runtime.launch

    def noted(cache: Any, kernel: Any, blocks: Any, given: Sequence[Any], **more: Any) -> None:
        start(cache, kernel, blocks, given, **more)
        # after the launch: tiles that do not fit on the GPU are not launched
        name, tensors = kernel.__name__, dict(zip(kernel.arg_names, given, strict=False))
        stored = {key: x for key, x in tensors.items() if key in made[name]}
        read = {key: x for key, x in tensors.items() if key not in stored}
        found.append(Least(name, _bytes(read), _bytes(stored)))

    runtime.launch = noted
    try:
        once()
    finally:
        runtime.launch = start
    return found


def _bytes(tensors: Mapping[str, Any]) -> int:
    """The bytes of tensors, each address counted once: a tensor may be passed twice, or be expanded along an axis."""
    import torch

    places: dict[int, int] = {}
    for x in tensors.values():
        if isinstance(x, torch.Tensor):
            size = x.element_size()
            for n, stride in zip(x.shape, x.stride(), strict=True):
                size *= n if stride else min(n, 1)
            places[x.data_ptr()] = max(places.get(x.data_ptr(), 0), size)
    return sum(places.values())


# -- the report --------------------------------------------------------------------------------------------------

COLUMNS = {
    "kernel": "its name, with a number from its second launch on",
    "ms": "duration",
    "MiB in": "read from device memory",
    "least in": "size of the tensors that it reads, each counted once",
    "MiB out": "written to device memory",
    "least out": "size of the tensors that it writes",
    "x": "bytes moved, relative to the least",
    "L2 MiB": "bytes that passed through the L2 cache",
    "warps %": "active warps, of those that multiprocessors have room for: the achieved occupancy",
    "matrix %": "cycles in which the tensor cores were busy, of those in which there was work",
    "banks %": "share of the passes over shared memory that are due to bank conflicts",
    "regs": "registers per thread",
    "top stall": "what a warp waits for most, and the share of its time",
}


def table(profile: Profile) -> Any:
    """The launches of one call; `x` is the bytes moved, divided by the least."""
    from rich.table import Table

    kernels = targets.told(profile.kernels)
    made = Table(title=f"{profile.variant}: {profile.sizes.told}{', ' if kernels else ''}{kernels}")
    for column in COLUMNS:
        made.add_column(column, justify="left" if column in ("kernel", "top stall") else "right", no_wrap=True)
    for one in profile.launches:
        made.add_row(*cells(one))
    return made


def cells(one: Launch) -> list[str]:
    """A launch's figures, one per column."""
    r, least = one.reading, one.least
    mib = (r.read, least.read if least else None, r.written, least.written if least else None)
    share = None if r.conflicts is None or not r.wavefronts else 100 * r.conflicts / r.wavefronts
    return [
        one.name,
        cell(None if r.seconds is None else 1e3 * r.seconds, ".3f"),
        *(cell(None if x is None else x / 2**20, ".1f") for x in mib),
        cell(one.ratio, ".2f"),
        cell(None if r.l2 is None else r.l2 / 2**20, ".0f"),
        *(cell(x, ".0f") for x in (r.occupancy, r.matrix, share, r.registers)),
        f"{counters.words(r.stall)} {100 * r.stalls[r.stall]:.0f} %" if r.stall else "",
    ]


def meanings(profile: Profile) -> list[str]:
    """Explanations of the stall reasons in a table's last column."""
    reasons = dict.fromkeys(one.reading.stall for one in profile.launches if one.reading.stall)
    return [f"{counters.words(reason)}: {counters.STALLS[reason]}" for reason in reasons if reason]


def document(machine: Machine, profiles: Sequence[Profile]) -> str:
    """The profiles as JSON."""
    found = {"machine": dataclasses.asdict(machine), "profiles": [dataclasses.asdict(one) for one in profiles]}
    return json.dumps(found, indent=1) + "\n"


def read(text: str) -> tuple[Machine, list[Profile]]:
    """The profiles that a document holds."""
    found = json.loads(text)

    def launch(one: dict[str, Any]) -> Launch:
        return Launch(one["name"], Reading(**one["reading"]), Least(**one["least"]) if one["least"] else None)

    profiles = [
        Profile(one["variant"], Sizes(**one["sizes"]), tuple(map(launch, one["launches"])), one.get("kernels", {}))
        for one in found["profiles"]
    ]
    return Machine(**found["machine"]), profiles


if __name__ == "__main__":
    main(Path(sys.argv[1]))
