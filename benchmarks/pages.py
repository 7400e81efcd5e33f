"""The pages that show recorded results, docs/measurements.md and docs/archaeology.md, their pictures, and README."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import jinja2
from sets import HERE, SETS

from attnforge.explain import markdown
from attnforge.gpu import plots, profile
from attnforge.gpu.profile import Profile
from attnforge.gpu.results import OURS, PASSES, Machine, Result, Row, cell, read

RESULTS, DOCS, README = HERE / "results", HERE.parent / "docs", HERE.parent / "README.md"
STEPS = ("history", "rope_outside")  # what docs/archaeology.md shows
MEASURED = tuple(name for name in SETS if name not in STEPS)
INTRODUCTION = """# Measurements

Written by `make bench`; the records are in `benchmarks/results`. Milliseconds are medians; TFLOP/s count the products
of visible pairs, two forward and five backward; % is their share of what a product of two matrices of 8192 rows and
columns reached in the same rounds, above 100 if visible keys without weight were not visited. The column of a peer is
its time divided by ours, forward / backward: above 1 it is slower. The columns `portable` and `hopper` say the same
of a package's kernels for all GPUs and of those for Hopper GPUs, each timed separately; a star marks those that a
call takes. MiB are the peak memory of a call in addition to its inputs and outputs, including gradients. What was
tried and did not help is in [the notes](../benchmarks/NOTES.md), what each step of the algorithm brought is in [How
attention got here](archaeology.md).
"""


FIGURES, END = "<!-- figures: written by `make bench` -->", "<!-- end of figures -->"  # in README
SHOWN = {
    "FlexAttention": ("flex", "flex-flash"), "FlashAttention-4": ("fa4",), "cuDNN": ("sdpa-cudnn",),
    "flash-linear-attention": ("fla",),
}  # fmt: skip

T = TypeVar("T")


class Damaged(Exception):
    """A record that is missing, or that cannot be read."""


def _read(path: Path, reader: Callable[[str], T]) -> T:
    try:
        return reader(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Damaged(f"{path}: there is no such record") from None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Damaged(f"{path}: damaged, {type(error).__name__}: {error}") from error


def recorded(*names: str) -> Iterator[tuple[str, Machine, list[Result]]]:
    """The records with these names."""
    for name in names:
        yield name, *_read(RESULTS / f"{name}.json", read)


def picture(name: str) -> Path:
    """The path of a set's picture."""
    return DOCS / "pictures" / f"bench_{name}.png"


def write() -> None:
    """Writes the pages, and draws their pictures first."""
    for name, machine, results in recorded(*MEASURED):
        if any(len(group) > 1 for group in plots.grouped(results).values()):
            plots.write(picture(name), machine, results)
    for name, machine, results in recorded(*STEPS):
        plots.write(picture(name), machine, together(results))
    for name, text in (("measurements", measurements()), ("archaeology", archaeology())):
        (DOCS / f"{name}.md").write_text(text, encoding="utf-8", newline="\n")
    README.write_text(readme(README.read_text(encoding="utf-8")), encoding="utf-8", newline="\n")


# -- measurements --------------------------------------------------------------------------------------------------


def measurements(sets: Sequence[str] = MEASURED) -> str:
    """The text of docs/measurements.md for these sets."""
    parts = [INTRODUCTION]
    for name, machine, results in recorded(*sets):
        title = SETS[name].title
        how = " Replays of a CUDA graph: GPU time only." if results[0].replayed else ""
        parts.append(f"\n## {title}\n\n{_where(machine)}.{how}\n")
        parts += [_table(variant, group) for variant, group in plots.grouped(results).items()]
        if picture(name).exists():
            parts.append(f"\n![{title}: speed and memory by length](pictures/{picture(name).name})\n")
    return "".join(parts)


def _where(machine: Machine) -> str:
    return f"{machine.device}, torch {machine.torch}, triton {machine.triton}"


def _table(title: str, group: Sequence[Result]) -> str:
    """A table of one variant, a line for each length."""
    names = list(dict.fromkeys(row.name for r in group for row in r.rows[1:] if row.forward_ms is not None))
    lines: list[list[str]] = []
    for r in group:
        ours, rows = r.rows[0], {row.name: row for row in r.rows}
        cells = [f"{r.sizes.q_len} x {r.sizes.k_len}"]
        for ms, speed, share in zip(ours.took, r.speeds(ours), r.shares(ours), strict=True):
            cells += [cell(ms, ".3f"), cell(speed, ".0f"), cell(share, ".0f")]
        cells.append(cell(ours.both_mib if ours.both_mib is not None else ours.forward_mib, ".1f"))
        for name in names:
            times = zip(PASSES, rows[name].took, ours.took, strict=True) if name in rows else ()
            cells.append(" / ".join(f"{x / own:.2f}{r.mark(name, its)}" for its, x, own in times if x and own))
        lines.append(cells)
    header = ["queries x keys", "forward ms", "TFLOP/s", "%", "backward ms", "TFLOP/s", "%", "MiB", *names]
    told = [i for i, _ in enumerate(header) if any(line[i] for line in lines)]
    cut = [[line[i] for i in told] for line in (header, *lines)]
    return f"\n**{' '.join(title.split())}**\n\n{markdown.table(cut[0], cut[1:])}\n"


# -- README --------------------------------------------------------------------------------------------------------


def readme(text: str, length: int = 4096, columns: int = 128) -> str:
    """README with a table of variants beside libraries in its place; as it is if no such call was measured."""
    ((_, machine, results),) = recorded("variants")
    taken = [r for r in results if (r.sizes.k_len, r.sizes.head_dim) == (length, columns)]
    if not taken:
        return text
    lines = []
    for r in taken:
        rows = {row.name: row for row in r.rows}
        beside = ([rows[name] for name in names if name in rows] for names in SHOWN.values())
        name = f"[{r.variant}](docs/variants/{r.variant}.md)"
        lines.append(
            [name, " / ".join(cell(ms, ".2f") for ms in rows[OURS].took), *(_best(x, rows[OURS]) for x in beside)]
        )
    ours = taken[0].sizes
    call = f"{ours.dtype}, {ours.batch} sequences of {length:,} tokens, {ours.heads} heads of {columns}"
    shown = markdown.table(("variant", "ms", *SHOWN), lines)
    return markdown.between(text, FIGURES, END, f"{_where(machine)}, {call}:\n\n{shown}")


def _best(rows: Sequence[Row], ours: Row) -> str:
    """The shortest times of some contenders over ours, forward and backward; "" if none of them was timed."""
    times = [[ms for ms in took if ms] for took in zip(*(row.took for row in rows), strict=True)]
    found = [min(ms) / own for ms, own in zip(times, ours.took, strict=False) if ms and own]
    return " / ".join(f"{x:.2f}" for x in found)


# -- archaeology ---------------------------------------------------------------------------------------------------


def together(results: Sequence[Result]) -> list[Result]:
    """The variants of a set as contenders of one: the first is ours, the others have the variants' names."""
    found: dict[int, Result] = {}
    for one in results:
        known = found.setdefault(one.sizes.k_len, one)
        if known is not one:
            own = dataclasses.replace(one.rows[0], name=one.variant)
            found[one.sizes.k_len] = dataclasses.replace(known, rows=(*known.rows, own))
    return list(found.values())


def archaeology() -> str:
    """The text of docs/archaeology.md."""
    (_, machine, steps), (_, _, turned) = recorded(*STEPS)
    steps = together(steps)
    text = (HERE / "archaeology.md.jinja").read_text(encoding="utf-8")
    return jinja2.Template(text, trim_blocks=True, keep_trailing_newline=True).render(
        machine=_where(machine),
        steps=_times(steps, ("naive", "flash1", "flash2_strided_k", OURS)),
        late=_times(steps, ("causal_late", OURS), ratio=True),
        turned=_times(turned, ("without RoPE", OURS, "outside, compiled", "outside, eager")),
        profiles=_profiles(_read(RESULTS / "profiles.json", profile.read)[1]),
    )


def _times(results: Sequence[Result], names: Sequence[str], ratio: bool = False) -> str:
    """Milliseconds of contenders, a line for each length; `ratio` adds the first one's divided by the last one's."""
    lines = []
    for one in results:
        took = {row.name: row.forward_ms for row in one.rows}
        cells = [str(one.sizes.k_len), *(cell(took.get(name), ".4f") for name in names)]
        first, last = (took.get(names[i]) for i in (0, -1))
        lines.append([*cells, f"{first / last:.2f}" if first and last else ""] if ratio else cells)
    return markdown.table(["T", *names, *(["ratio"] if ratio else [])], lines)


def _profiles(profiles: Sequence[Profile]) -> str:
    """Counters of Nsight Compute, a line for each kernel of each variant."""
    rows = [[one.variant, *profile.cells(launch)] for one in profiles for launch in one.launches]
    return markdown.table(["variant", *profile.COLUMNS], rows)
