"""Measures the recorded set on the GPU at hand, and writes docs/measurements.md and its pictures from what is recorded.

python benchmarks/record.py [SET...]      measures these sets, all of them if none is named, and writes the page
python benchmarks/record.py --page        writes the page alone; needs no GPU
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnforge import bench, calls, given, markdown, plan, plots
from attnforge.bench import Machine, Result
from attnforge.calls import Sizes

HERE = Path(__file__).parent
RESULTS, DOCS = HERE / "results", HERE.parent / "docs"
LENGTHS, SHORT = (1024, 4096, 16384), (512, 1024, 2048, 4096, 8192)


@dataclass(frozen=True)
class Set:
    """Variants that are measured for the same calls."""

    title: str
    specs: tuple[str, ...]
    peers: tuple[str, ...]
    sizes: tuple[Sizes, ...]
    backward: bool = True
    replays: bool = False  # what the GPU takes, without the host


def tokens(head_dims: Sequence[int], lengths: Sequence[int] = LENGTHS) -> tuple[Sizes, ...]:
    """Calls of 16,384 tokens and 2,048 columns of heads in all, bf16."""
    return tuple(Sizes(16384 // t, t, t, 2048 // d, 2048 // d, d, d, "bf16") for d in head_dims for t in lengths)


def small(batch: int, lengths: Sequence[int], dtype: str) -> tuple[Sizes, ...]:
    """Calls of 16 heads of 64 columns."""
    return tuple(Sizes(batch, t, t, 16, 16, 64, 64, dtype) for t in lengths)


LIBRARIES = ("flex", "flex-flash", "sdpa-flash", "sdpa-cudnn", "flash-attn-4", "fla")
SETS = {
    "variants": Set(
        "Variants beside their peers",
        ("causal", "full", "llama3", "sliding_window", "alibi", "softcap", "llama3_documents", "packed_causal",
         "log_decay", "packed_log_decay"),
        LIBRARIES,
        tokens((64, 128)),
    ),
    "wide": Set("Heads of 256 columns", ("causal", "softcap"), LIBRARIES, tokens((256,))),
    "grouped": Set(
        "Eight key heads for 32 query heads", ("causal", "sliding_window", "softcap", "alibi"), LIBRARIES,
        (Sizes(2, 8192, 8192, 32, 8, 128, 128, "bf16"),),
    ),
    "cross": Set(
        "Small work", ("cross",), LIBRARIES, (Sizes(1, 512, 256, 16, 16, 64, 64, "bf16"),)
    ),
    "memory": Set("Memory beside naive PyTorch", ("causal",), ("naive",), small(1, SHORT, "bf16")),
    "history": Set(
        "How attention got here", ("causal", str(HERE / "specs" / "causal_late.yaml"), "flash2_strided_k", "flash1"),
        ("naive",), small(2, SHORT, "fp16"), replays=True,
    ),
    "rope": Set("RoPE inside", ("rope",), LIBRARIES, small(2, SHORT, "fp16"), backward=False),
    "rope_replayed": Set("RoPE inside, the GPU's share", ("rope",), LIBRARIES, small(2, SHORT, "fp16"), replays=True),
}  # fmt: skip


def measured(one: Set) -> Iterator[Result]:
    """The results of a set."""
    for name in one.specs:
        loaded = given.load([name])
        ((_, spec),), (package,) = loaded.items(), given.packages(loaded)
        for result in bench.run(spec, package, one.sizes, one.peers, backward=one.backward, replays=one.replays):
            print(json.dumps([result.variant, result.sizes.k_len, *((r.name, r.forward_ms) for r in result.rows)]))
            yield result


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


# -- the page ------------------------------------------------------------------------------------------------------


INTRODUCTION = """# Measurements

Written by `make bench`; the records stand in `benchmarks/results`. Milliseconds are medians; TFLOP/s count the products
of visible pairs, five backward for two forward. Under a peer stands its time by ours, forward / backward: above 1 it is
slower. What was tried and did not pay is in [the notes](../benchmarks/NOTES.md).
"""


def recorded() -> Iterator[tuple[str, Machine, list[Result]]]:
    """The sets that are recorded."""
    for name in SETS:
        record = RESULTS / f"{name}.json"
        if record.exists():
            yield name, *bench.read(record.read_text(encoding="utf-8"))


def picture(name: str) -> Path:
    """Where a set's picture stands."""
    return DOCS / "pictures" / f"bench_{name}.png"


def page() -> str:
    """What docs/measurements.md says."""
    parts = [INTRODUCTION]
    for name, machine, results in recorded():
        title = SETS[name].title
        how = " Replays of a CUDA graph: what the GPU takes." if results[0].replayed else ""
        parts.append(f"\n## {title}\n\n{machine.device}, torch {machine.torch}, triton {machine.triton}.{how}\n")
        parts += [_table(variant, group) for variant, group in plots.grouped(results).items()]
        if picture(name).exists():
            parts.append(f"\n![{title}: speed and memory by length](pictures/{picture(name).name})\n")
    record = RESULTS / "rope_outside.json"
    if record.exists():
        rows = json.loads(record.read_text())
        table = markdown.table(list(rows[0]), map(_told, rows))
        parts.append(f"\n## RoPE inside and outside, milliseconds of the GPU\n\n{table}\n")
    return "".join(parts)


def _table(title: str, group: Sequence[Result]) -> str:
    """One variant, a line for each length."""
    names = list(dict.fromkeys(row.name for r in group for row in r.rows[1:] if row.forward_ms is not None))
    lines: list[list[str]] = []
    for r in group:
        ours, rows = r.rows[0], {row.name: row for row in r.rows}
        speeds = r.teraflops(ours)
        cells = [f"{r.sizes.q_len} x {r.sizes.k_len}"]
        for ms, speed in zip((ours.forward_ms, ours.backward_ms), speeds, strict=True):
            cells += [bench.cell(ms, ".3f"), bench.cell(speed, ".0f")]
        cells.append(bench.cell(ours.both_mib if ours.both_mib is not None else ours.forward_mib, ".1f"))
        for name in names:
            row = rows.get(name)
            pairs = ((row.forward_ms, ours.forward_ms), (row.backward_ms, ours.backward_ms)) if row else ()
            cells.append(" / ".join(f"{x / own:.2f}" for x, own in pairs if x and own))
        lines.append(cells)
    header = ["queries x keys", "forward ms", "TFLOP/s", "backward ms", "TFLOP/s", "MiB", *names]
    return f"\n**{' '.join(title.split())}**\n\n{markdown.table(header, lines)}\n"


def _told(row: dict[str, float]) -> list[str]:
    return [f"{x:g}" if name == "T" else f"{x:.3f}" for name, x in row.items()]


def main() -> None:
    """Measures, if asked to, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", choices=[[], *SETS], metavar="SET", help=", ".join(SETS))
    parser.add_argument("--page", action="store_true", help="write the page alone")
    asked = parser.parse_args()
    wanted = [] if asked.page else asked.sets or list(SETS)
    for name in wanted:
        document = bench.document(Machine.here(), list(measured(SETS[name])))
        (RESULTS / f"{name}.json").write_text(document, encoding="utf-8", newline="\n")
        if name == "rope":
            (RESULTS / "rope_outside.json").write_text(json.dumps(outside(), indent=1) + "\n", encoding="utf-8")
    for name, machine, results in recorded():
        if any(len(group) > 1 for group in plots.grouped(results).values()):
            plots.write(picture(name), machine, results)
    (DOCS / "measurements.md").write_text(page(), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
