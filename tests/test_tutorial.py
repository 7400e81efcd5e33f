"""Follows docs/tutorial.md as a reader would: all its blocks in order, in an empty folder, without a GPU.

ATTNFORGE_FULL=1 also runs the command that takes a minute according to the tutorial.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

import pytest

from attnforge.gpu import interpreter

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
TUTORIAL = ROOT / "docs" / "tutorial.md"
NUMBER = re.compile(r"-?\d+\.\d+")


@dataclass(frozen=True)
class Block:
    """A fenced block, and the output that the text shows below it."""

    line: int
    language: str
    manner: str  # the words after the language: `exits 2`, `slow`
    text: str
    shown: str | None = None
    roughly: bool = False  # whether numbers may differ by a little


def blocks(text: str) -> list[Block]:
    """The blocks of a document; a shown output belongs to the block right above it."""
    found: list[Block] = []
    end = -1
    for match in re.finditer(r"^```(\w+)([^\n]*)\n(.*?)^```\n", text, re.MULTILINE | re.DOTALL):
        language, manner, inside = match[1], match[2].strip(), match[3]
        if language == "text":
            assert match.start() == end, f"an output without a block that prints it: {inside}"
            last = found.pop()
            found.append(Block(last.line, last.language, last.manner, last.text, inside, manner == "roughly"))
        else:
            found.append(Block(text.count("\n", 0, match.start()) + 1, language, manner, inside))
        end = match.end()
    return found


def fits(shown: str, printed: str, *, roughly: bool = False) -> bool:
    """Whether an output is the shown one, in which `...` stands for anything; roughly: numbers may be a little off."""
    pieces = shown.rstrip().split("...")
    number = r"(-?\d+\.\d+)" if roughly else None
    texts = [(number or "").join(map(re.escape, NUMBER.split(p))) if roughly else re.escape(p) for p in pieces]
    match = re.fullmatch(".*?".join(texts), printed.rstrip(), re.DOTALL)
    if match is None or not roughly:
        return match is not None
    pairs = zip(NUMBER.findall(shown), match.groups(), strict=True)
    return all(abs(float(a) - float(b)) <= 0.02 + 0.15 * abs(float(a)) for a, b in pairs)


class Session:
    """A Python session: names defined by one block are available in the next."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        command = [sys.executable, __file__]
        self.process = subprocess.Popen(
            command, cwd=folder, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def run(self, text: str) -> tuple[str, str]:
        """What a block prints, and the traceback if it fails."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(text) + "\n")
        self.process.stdin.flush()
        printed, error = json.loads(self.process.stdout.readline())
        return printed, error


def serve() -> None:
    """The other end of a session."""
    interpreter.hasten()
    sys.path[0] = os.getcwd()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    names = {"__name__": "__main__"}
    for line in sys.stdin:
        printed, error = io.StringIO(), ""
        with contextlib.redirect_stdout(printed):
            try:
                exec(compile(json.loads(line), "<tutorial>", "exec"), names)
            except BaseException:
                error = traceback.format_exc()
        answers.write(json.dumps([printed.getvalue(), error]) + "\n")
        answers.flush()


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """The variables of a reader who has installed this checkout and has no GPU."""
    bin = tmp_path / "bin"
    bin.mkdir()
    for name, module in (("attnforge", "attnforge"), ("python", "")):
        script = bin / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {"-m " + module if module else ""} "$@"\n')
        script.chmod(0o755)
    changes = {
        "PATH": f"{bin}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "generator"),
        "TRITON_INTERPRET": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "COLUMNS": "120",
    }
    # the suite's own switch for more cases: the text shows the output without it
    return {name: value for name, value in os.environ.items() if name != "ATTNFORGE_FULL"} | changes


def test_every_block_of_the_tutorial_does_what_the_text_shows(tmp_path: Path, env: dict[str, str]) -> None:
    pytest.importorskip("matplotlib", reason="the tutorial writes a picture")
    folder = tmp_path / "folder"
    folder.mkdir()
    session = Session(folder, env)
    try:
        for block in blocks(TUTORIAL.read_text(encoding="utf-8")):
            place = f"docs/tutorial.md:{block.line}"
            if block.language == "yaml":
                name = re.match(r"# (\S+)\n", block.text)
                assert name, f"{place}: the first line says which file this is"
                (folder / name[1]).write_text(block.text, encoding="utf-8")
                continue
            if block.manner == "slow" and os.environ.get("ATTNFORGE_FULL") != "1":
                continue
            if block.language == "python":
                printed, error = session.run(block.text)
                assert not error, f"{place}: {error}"
            else:
                assert block.language == "sh", f"{place}: a block in {block.language}"
                done = subprocess.run(
                    ["bash", "-ec", block.text], cwd=folder, env=env, text=True, capture_output=True, check=False
                )
                printed = done.stdout + done.stderr
                code = int(block.manner.removeprefix("exits ")) if block.manner.startswith("exits") else 0
                assert done.returncode == code, f"{place}: exit code {done.returncode}: {printed}"
            if block.shown is not None:
                assert fits(block.shown, printed, roughly=block.roughly), f"{place} prints:\n{printed}"
            else:
                assert block.language == "sh" or not printed, f"{place} prints what the text does not show:\n{printed}"
    finally:
        session.process.kill()
        session.process.communicate()


def test_commands_of_the_tutorial_that_are_left_out_are_few() -> None:
    slow = [block.text for block in blocks(TUTORIAL.read_text(encoding="utf-8")) if block.manner == "slow"]
    assert slow == ["attnforge test specs/fading.yaml\n"]


def test_outputs_are_compared() -> None:
    assert fits("a 1.50\n", "a 1.50\n") and not fits("a 1.50\n", "a 1.51\n")
    assert fits("a\n...\nd\n", "a\nb\nc\nd\n") and not fits("a\n...\nd\n", "a\nb\n")
    assert fits("loss 0.40, 3 of 4\n", "loss 0.41, 3 of 4\n", roughly=True)
    assert not fits("loss 0.40, 3 of 4\n", "loss 0.60, 3 of 4\n", roughly=True)
    assert not fits("loss 0.40, 3 of 4\n", "loss 0.41, 2 of 4\n", roughly=True)


if __name__ == "__main__":
    serve()
