"""What `explain` says about kernels for Hopper GPUs: which calls use them, and which tiles they visit."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from attnforge.cli import commands
from attnforge.explain import kernels
from attnforge.plan import tiles

TUNED = """
sm_90:
  forward: {64: [[128, 64, 4, 2]], 128: [[64, 64, 4, 2]]}
  backward_dq: {64: [[64, 32, 4, 2]]}
  backward_dkv: {64: [[32, 64, 4, 2]]}
hopper:
  forward: {64: [[192, 64, 12, 2]], 128: [[128, 128, 8, 2]]}
  backward: {64: [[64, 128, 8, 2]]}
faster:
  forward: {64: 1024, 128: 0}
  backward: {64: never}
"""


def told(folder: Path, text: str, *options: str) -> dict[tuple[str, str], list[str]]:
    """The rows of the table by pass and head sizes, as the command prints them."""
    path = folder / "mine.yaml"
    path.write_text(f"name: mine\n{text}")
    (folder / "tuning").mkdir(exist_ok=True)
    (folder / "tuning" / "mine.yaml").write_text(TUNED)
    done = CliRunner().invoke(commands.main, ["explain", str(path), *options])
    assert done.exit_code == 0, done.output
    _, title, table = done.output.partition("\nKernels on Hopper GPUs, float16 and bfloat16\n")
    rows = [
        [cell for cell in line.split("   ") if cell]
        for line in table.splitlines()[1:]
        if title and "? where" not in line
    ]
    return {(row[0].strip(), row[1].strip()): [cell.strip() for cell in row[2:]] for row in rows}


def test_calls_that_take_them_are_told(tmp_path: Path) -> None:
    found = told(tmp_path, "mask: [causal]\n")
    assert found["forward", "33 to 64"] == ["from 1024 keys on", "hopper", "61 of 96, 192 x 64", "72 of 128, 128 x 64"]
    assert found["forward", "65 to 128"] == ["always", "hopper", "36 of 64, 128 x 128", "136 of 256, 64 x 64"]
    assert found["backward", "33 to 64"] == [
        "if asked for", "portable", "72 of 128, 64 x 128", "272 of 512, 64 x 32 and 272 of 512, 32 x 64"
    ]  # fmt: skip


def test_lengths_between_which_they_are_faster_are_told() -> None:
    assert [kernels._when(limits) for limits in ((), (0,), (7,), (0, 8))] == [
        "if asked for", "always", "from 7 keys on", "up to 7 keys"
    ]  # fmt: skip
    assert kernels._when((0, 8, 64)) == "up to 7 keys and from 64 keys on"
    assert kernels._when((8, 64)) == "from 8 to 63 keys"
    assert [tiles.outrun((0, 8, 64), keys) for keys in (1, 7, 8, 63, 64)] == [True, True, False, False, True]


def test_tiles_of_both_targets_are_counted(tmp_path: Path) -> None:
    found = told(tmp_path, "mask: [causal]\n", "--shape", "512,512")
    # by rows of tiles: the first 192, 384 and 512 queries see 3, 6 and 8 tiles of keys, and so on
    assert found["forward", "33 to 64"] == ["from 1024 keys on", "portable", "17 of 24, 192 x 64", "20 of 32, 128 x 64"]
    assert found["forward", "65 to 128"] == ["always", "hopper", "10 of 16, 128 x 128", "36 of 64, 64 x 64"]
    assert found["backward", "33 to 64"] == [
        "if asked for", "portable", "20 of 32, 64 x 128", "72 of 128, 64 x 32 and 72 of 128, 32 x 64"
    ]  # fmt: skip
    longer = told(tmp_path, "mask: [causal]\n", "--shape", "1024,1024")
    assert longer["forward", "33 to 64"][1] == "hopper"


def test_tiles_that_are_too_many_to_look_at_are_not_counted(tmp_path: Path) -> None:
    found = told(tmp_path, "mask: [causal, segments]\n", "--shape", "300000,300000")
    assert found["forward", "33 to 64"][2] == "? of 7327344, 192 x 64"
    found = told(tmp_path, "mask: [causal]\n", "--shape", "1000000,1000000")
    assert found["forward", "65 to 128"][2] == "30525391 of 61042969, 128 x 128"


def test_kernels_that_own_keys_are_counted_by_their_own_ranges(tmp_path: Path) -> None:
    found = told(tmp_path, 'mask: [expr: "k // 2 <= q % 16"]\n', "--shape", "64,128")
    # ranges of queries exclude nothing; ranges of keys exclude all but the first quarter
    forward, backward = (found[its, "33 to 64"] for its in ("forward", "backward"))
    assert forward[3] == "1 of 2, 128 x 64" and backward[3] == "1 of 4, 64 x 32 and 4 of 4, 32 x 64"


def test_variants_without_them_have_no_table(tmp_path: Path) -> None:
    assert told(tmp_path, "algorithm: flash1\nmask: [causal]\n", "--shape", "64,64") == {}
    found = told(tmp_path, 'score: [{expr: "score * temp[q]"}]\ninputs:\n  temp: {axes: [head, token], grad: true}\n')
    assert {its for its, _ in found} == {"forward"}, "what multiplies scores and learns has no backward pass there"


def test_wide_heads_whose_scores_are_raised_have_no_backward_pass_there(tmp_path: Path) -> None:
    found = told(tmp_path, "score: [log_decay]\n")
    assert {sizes for its, sizes in found if its == "backward"} == {"up to 32", "33 to 64", "65 to 128"}
