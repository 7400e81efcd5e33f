"""The machine code of a kernel, searched for a fault of the assembler.

The assembler of CUDA 12.8 computes addresses of tiles at the start of a loop, in registers that a warp shares (uniform
registers), and lets a later loop read them: if the first loop has no iterations, they were never set.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_LABEL = re.compile(r"(\.L_\w+):")
_INSTRUCTION = re.compile(r"\s+/\*[0-9a-f]+\*/\s+(?:(?P<only_if>@\S+)\s+)?(?P<name>[^\s;]+)\s*(?P<operands>[^;]*?)\s*;")
_SETS = re.compile(r"U|R2UR|S2UR|CS2UR|REDUX|VOTEU")  # instructions whose first operand may be such a register
_WIDE = re.compile(r"\.(64|WIDE)\b")
_PLACE = re.compile(r"`\((\.L_\w+)\)")


class Instruction(NamedTuple):
    """An instruction, reduced to the registers shared by a warp that it uses, and to its successors."""

    sets: frozenset[int]
    reads: frozenset[int]
    next: tuple[int, ...]  # the instructions that may come after it


def disassembled(cubin: bytes) -> str:
    """The text of a kernel's machine code, with labels."""
    return _told_by("nvdisasm", "-c", cubin)


def usage(cubin: bytes) -> str:
    """The text of a kernel's resource usage."""
    return _told_by("cuobjdump", "-res-usage", cubin)


def _told_by(tool: str, flag: str, cubin: bytes) -> str:
    from triton.backends import nvidia

    path = Path(nvidia.__file__).parent / "bin" / tool
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([path, flag, file.name], capture_output=True, text=True, check=True).stdout


def unset(text: str) -> list[str]:
    """The registers shared by a warp that some path through a kernel's code reads before it sets them, in order."""
    code = list(_instructions(text))
    known: list[frozenset[int] | None] = [frozenset(), *[None] * (len(code) - 1)]  # set on all paths to an instruction
    ahead = [0]
    while ahead:
        here = ahead.pop()
        before = known[here]
        assert before is not None
        after = before | code[here].sets
        for place in code[here].next:
            so_far = known[place]
            both = after if so_far is None else so_far & after
            if both != so_far:
                known[place] = both
                ahead.append(place)
    reached = ((one.reads, there) for one, there in zip(code, known, strict=True) if there is not None)
    return [f"UR{n}" for n in sorted({n for reads, there in reached for n in reads - there})]


def _instructions(text: str) -> Iterator[Instruction]:
    labels: dict[str, int] = {}
    found: list[re.Match[str]] = []
    for line in text.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(found)
        elif instruction := _INSTRUCTION.match(line):
            found.append(instruction)
    for i, one in enumerate(found):
        sets, reads = _registers(one["name"], one["operands"])
        # registers set under a condition are read under the same one
        yield Instruction(sets, frozenset() if one["only_if"] else reads, tuple(_next(i, one, labels, len(found))))


def _next(i: int, one: re.Match[str], labels: dict[str, int], count: int) -> Iterator[int]:
    kind = one["name"].split(".")[0]
    places = [labels[place] for place in _PLACE.findall(one["operands"])] if kind == "BRA" else []
    yield from (place for place in places if place < count)
    leaves = kind in ("BRA", "EXIT") and not one["only_if"] and not re.match(r"!?U?P", one["operands"])
    if not leaves and i + 1 < count:
        yield i + 1


def _registers(name: str, operands: str) -> tuple[frozenset[int], frozenset[int]]:
    """The registers that an instruction sets and reads; those of a pair have the name of the first one."""
    first, *others = map(str.strip, operands.split(","))
    sets: set[int] = set()
    if _SETS.match(name) and re.fullmatch(r"UR\d+", first):
        sets |= _numbered(first, 2 if _WIDE.search(name) else 1)
    else:
        others.insert(0, first)
    reads: set[int] = set()
    for operand in others:
        for what, register in re.findall(r"(gdesc\[|desc\[|\b)(UR\d+)", operand):
            if what == "gdesc[":
                reads |= _numbered(register, 4)
                if re.fullmatch(r"R\d+", others[1]):
                    # the two of the left tile are unused if that tile is in registers of threads
                    reads -= _numbered(register, 2)
            else:
                pair = what or (".64" in name and name.startswith("UIADD3"))
                reads |= _numbered(register, 2 if pair else 1)
    return frozenset(sets), frozenset(reads)


def _numbered(register: str, count: int) -> set[int]:
    first = int(register.removeprefix("UR"))
    return set(range(first, first + count))
