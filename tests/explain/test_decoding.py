"""What `explain` says about decoding: the keys that a new token reads, and the splits that they form."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from attnforge.cli import commands
from attnforge.explain import decoding
from attnforge.plan import splits


def told(spec: str, *options: str) -> list[str]:
    """The lines of the section on decoding, if there is one."""
    done = CliRunner().invoke(commands.main, ["explain", spec, *options])
    assert done.exit_code == 0, done.output
    _, title, lines = done.output.partition(f"\n{decoding.TITLE}\n")
    return [line.strip() for line in lines.splitlines()] if title else []


def table(lines: list[str]) -> dict[tuple[str, str], list[str]]:
    cells = [[cell.strip() for cell in line.split("   ") if cell] for line in lines]
    return {(row[0], row[1]): row[2:] for row in cells if len(row) > 3 and row[0] != "head sizes"}


@pytest.mark.parametrize(
    ("name", "read", "seen"),
    [
        ("causal", "[0, position + 1)", ("4 of 4", "1 of 1")),
        ("runtime_window", "[position - window + 1, position + 1)", ("1 of 4", "1 of 1")),
        ("streaming_llm", "[0, min(position + 1, 4)) and [position - 1023, position + 1)", ("5 of 16", "2 of 4")),
    ],
)
def test_keys_that_are_read_are_told(name: str, read: str, seen: tuple[str, str]) -> None:
    first, *lines = told(name)
    assert first == f"a new token at `position` reads keys {read}, or fewer"
    found = table(lines)
    short, _, many = splits.table(False, False)["16BIT"][128]
    assert found["65 to 128", "up to 16"] == [str(short[0]), str(short[2]), seen[0]]
    assert found["65 to 128", "17 or more"] == [str(many[0]), str(many[2]), seen[1]]
    assert [sizes for sizes, rows in found if rows == "up to 16"] == [
        "1 to 64",
        "65 to 128",
        "129 to 256",
        "257 to 512",
    ]


@pytest.mark.parametrize(("keys", "window"), [(8192, 1024), (8000, 1000), (300, 17), (257, 1), (256, 256)])
def test_splits_are_those_with_a_visible_key(keys: int, window: int, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"name: mine\nmask: [causal, sliding_window: {{size: {window}}}]\nexports: [decode]\n")
    found = table(told(str(path), "--shape", f"3,{keys}"))
    seen = range(keys - window, keys)
    for size in (256, 1024):
        (rows,) = {rows for rows in found.values() if rows[1] == str(size) for rows in [tuple(rows[2:])]}
        assert rows == (f"{len({key // size for key in seen})} of {-(-keys // size)}",)


def test_kernels_of_latent_heads_are_told() -> None:
    found = table(told("deepseek_mla_absorbed"))
    block, _, split = splits.ON_HOPPER[1:]
    assert found["513 to 576", f"from {splits.LEAST_ROWS}, on Hopper GPUs"] == [str(block), str(split), "1 of 1"]


def test_packages_that_read_no_cache_tell_nothing() -> None:
    assert told("full") == []
