"""Counters of Nsight Compute for a command's kernels: how they are requested, and how the output is read."""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import click

from ..source.messages import Refused

# the counters to request, each with its names on older and newer GPUs
_COUNTERS = {
    "seconds": ("gpu__time_duration.sum",),
    "read": ("dram__bytes_read.sum", "dram__bytes_op_read.sum"),
    "written": ("dram__bytes_write.sum", "dram__bytes_op_write.sum"),
    "l2": ("lts__t_bytes.sum",),
    "occupancy": ("sm__warps_active.avg.pct_of_peak_sustained_active",),
    "matrix": (
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
        "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active",
    ),
    "conflicts": ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",),
    "wavefronts": ("l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",),
    "registers": ("launch__registers_per_thread",),
}
_ISSUED = "selected"
# why a warp that could not issue an instruction had to wait
STALLS = {
    "barrier": "waits for the other warps of its program",
    "branch_resolving": "waits for the target of a jump",
    "dispatch_stall": "the dispatcher holds it back",
    "drain": "has finished, and waits for its last stores",
    "gmma": "waits until its registers are free for warpgroup matrix products",
    "imc_miss": "waits for constants",
    "lg_throttle": "too many loads and stores of global memory are pending",
    "long_scoreboard": "waits for global memory",
    "math_pipe_throttle": "the tensor core or arithmetic pipe that it needs is busy",
    "membar": "waits for a memory fence",
    "mio_throttle": "too many shared memory instructions are pending",
    "misc": "another reason",
    "no_instruction": "waits for its next instruction to be fetched",
    "not_selected": "was ready, but another warp was selected",
    "short_scoreboard": "waits for shared memory",
    "sleeping": "sleeps, as its code requested",
    "tex_throttle": "too many texture instructions are pending",
    "wait": "waits a fixed number of cycles after its last instruction",
}
_STALLED = {
    reason: f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio" for reason in (*STALLS, _ISSUED)
}
_UNITS = {"nsecond": 1e-9, "ns": 1e-9, "usecond": 1e-6, "us": 1e-6, "msecond": 1e-3, "ms": 1e-3}
_UNITS |= {"Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "Tbyte": 1e12}


@dataclass(frozen=True)
class Reading:
    """Counters of one launch; None for those that a GPU lacks."""

    kernel: str
    seconds: float | None = None
    read: float | None = None  # bytes read from device memory, and written to it
    written: float | None = None
    l2: float | None = None  # bytes that passed through the L2 cache
    occupancy: float | None = None  # % of the warps that a multiprocessor has room for
    matrix: float | None = None  # % of the cycles in which the tensor core pipe was busy
    conflicts: float | None = None
    wavefronts: float | None = None  # passes over shared memory, including those for conflicts
    registers: float | None = None
    stalls: dict[str, float] = field(default_factory=dict)  # share of a warp's time by reason

    @property
    def stall(self) -> str | None:
        """The reason that takes the largest share."""
        return max(self.stalls, key=lambda reason: self.stalls[reason], default=None)


def words(reason: str) -> str:
    """A reason as tables show it."""
    return reason.replace("_", " ")


def program(given: str | None) -> str:
    """The path of Nsight Compute's command line."""
    if found := shutil.which(given or "ncu"):
        return found
    if given:
        raise click.BadParameter(f"{given} is no program", param_hint="--ncu")
    raise Refused("this needs Nsight Compute: no `ncu` is on the PATH; `--ncu FILE` says where it is")


def measured(ncu: str, command: Sequence[str]) -> list[Reading]:
    """The counters of a command, measured while it has the profiler on."""
    wanted = {name: list(names) for name, names in _COUNTERS.items()} | {r: [n] for r, n in _STALLED.items()}
    # some locales write a comma as the decimal point
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"} | {"LC_ALL": "C"}
    while True:
        asked = {names[0]: name for name, names in wanted.items() if names}
        arguments = [ncu, *_options(asked), *command]
        done = subprocess.run(arguments, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        unknown = _unknown(done.stdout + done.stderr, asked)
        # ncu measures nothing at all if a GPU lacks one counter
        if not unknown:
            break
        for name in unknown:
            del wanted[asked[name]][0]
    found = [_reading(values, asked) for values in rows(done.stdout)]
    # counts from before an error may lack half of the kernels
    if not found or "==ERROR==" in done.stdout + done.stderr:
        raise click.ClickException(_failure(done.stdout, done.stderr))
    return found


def _options(names: Mapping[str, str]) -> list[str]:
    # a kernel is run again for every few counters, and must not find its own data in the caches
    how = ["--target-processes", "all", "--profile-from-start", "off", "--cache-control", "all"]
    # ncu lowers the clocks by default, which changes what warps wait for
    how += ["--clock-control", "none"]
    told = ["--csv", "--page", "raw", "--print-units", "base", "--print-kernel-base", "function"]
    return [*how, *told, "--metrics", ",".join(names)]


def _unknown(said: str, names: Mapping[str, str]) -> list[str]:
    """The counters that ncu does not find on this GPU."""
    lines = "\n".join(re.findall(r"(?i)failed to find metric.*", said))
    return [name for name in names if re.search(rf"\b{re.escape(name.split('.')[0])}\b", lines)]


def rows(text: str) -> Iterator[dict[str, float | str]]:
    """The launches in ncu's raw page, in seconds, bytes and plain numbers; missing values are left out."""
    header: list[str] = []
    units: list[str] = []
    # there is other output, too: ncu's progress, and whatever the command prints
    for row in csv.reader(line for line in text.splitlines() if line.startswith('"')):
        if row[:1] == ["ID"]:
            header, units = row, [""] * len(row)
        elif len(row) == len(header) and not row[0]:
            units = row
        elif len(row) == len(header):
            cells = {name: _value(cell, unit) for name, cell, unit in zip(header, row, units, strict=True)}
            yield {name: value for name, value in cells.items() if value is not None}


def _value(cell: str, unit: str) -> float | str | None:
    try:
        number = float(cell.replace(",", ""))
    except ValueError:
        return None if cell in ("", "n/a") else cell
    return number * _UNITS.get(unit, 1) if number == number else None


def _reading(values: Mapping[str, float | str], asked: Mapping[str, str]) -> Reading:
    numbers = {asked[name]: value for name, value in values.items() if name in asked and isinstance(value, float)}
    times = {reason: numbers.pop(reason) for reason in _STALLED if reason in numbers}
    whole = sum(times.values())
    shares = {reason: time / whole for reason, time in times.items() if reason != _ISSUED} if whole else {}
    return Reading(str(values.get("Kernel Name", "")), **numbers, stalls=shares)


def _failure(said: str, errors: str) -> str:
    """The reason of a failure, in the words of ncu and of the command."""
    marked = [line for line in (said + "\n" + errors).splitlines() if line.startswith("==")]
    told = [
        line.split("== ", 1)[1] for mark in ("==ERROR== ", "==WARNING== ") for line in marked if line.startswith(mark)
    ]
    own = [line.strip() for line in errors.splitlines() if line.strip() and not line.startswith("==")]
    return "ncu failed:\n" + "\n".join(dict.fromkeys([*told, *own[-1:]]) or ["it says nothing of why"])
