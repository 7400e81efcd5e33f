"""A suite fails on seeded faults in kernels for Hopper GPUs, each of which could be made by mistake."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

GENERATED = Path(__file__).parents[2] / "generated"
hopper = torch.cuda.is_available() and torch.cuda.get_device_capability(0) == (9, 0)
needs_hopper = pytest.mark.skipif(not hopper, reason="needs a Hopper GPU")

# one case of causal attention, with several tiles each way, the last of them short, and one with wide heads
CASE = "test_values and d80: and not bfloat16 and not float32"
WIDE_CASE = "test_values and d256: and bfloat16"
PATIENCE = 180  # seconds for a suite that compiles first; a program that waits forever exceeds them

FORWARD, BACKWARD, WIDE = "causal/hopper.py", "causal/hopper_backward.py", "causal/hopper_wide.py"
# the loader passes on the terms that keys add to scores, and the inputs that masks read for them
ADDED, VECTORS = "log_decay/hopper.py", "transfusion/hopper.py"
WAIT = "mbarrier.wait(added_ready.index(stage), at // STAGES & 1)"
WINDOWED = "sliding_window/hopper_backward.py"  # its mask is under a branch
# the scale is a factor of tanh, and weights are multiplied by slopes of scores in a separate step
CAPPED, SLOPED = "softcap/hopper.py", "softcap/hopper_backward.py"
LISTED, LISTED_BACKWARD = "block_sparse/hopper.py", "block_sparse/hopper_backward.py"
# dropout draws numbers for each weight, drops weights, and takes their gradients back through it
DROPS, DROPS_BACK, DROPS_WIDE = (f"gpt2_dropout/{file}.py" for file in ("hopper", "hopper_backward", "hopper_wide"))
# parts of scores by distance, and what tables learn from sums by distance
TABLED, TABLED_BACK, TABLES = (f"t5_encoder/{file}.py" for file in ("hopper", "hopper_backward", "by_distance"))
KEPT_ALONE = "tl.maximum({}, 0.0, propagate_nan=tl.PropagateNan.ALL)"
# fault: file, code to replace, its replacement
FAULTS = {
    "keys read before they have come": (
        FORWARD, "mbarrier.wait(k_ready.index(stage), at // STAGES & 1)", "stage = stage"
    ),
    "values waited for in the phase before": (FORWARD, "(at - 1) // STAGES & 1)", "(at - 1) // STAGES & 1 ^ 1)"),
    "values of the stage behind": (FORWARD, "(weights, matrix(v_buffer, before)", "(weights, matrix(v_buffer, stage)"),
    "mixed tiles without their mask": (
        FORWARD, 'tl.where(keep, score, float("-inf"))', "tl.where(keep, score, score)"
    ),
    "sums that are not rescaled": (FORWARD, "l *= gl.convert_layout(shrink,", "l *= gl.convert_layout(shrink * 0 + 1,"),
    "wide sums that are never rescaled": (FORWARD, "@!any bra.uni done;", "bra.uni done;"),
    "the LSE in other units": (FORWARD, "m + tl.log2(l),", "m + tl.log(l),"),
    "mixed tiles backward without their mask": (BACKWARD, "tl.where(keep, p, 0.0)", "tl.where(keep, p, p)"),
    "dQ added up twice": (
        BACKWARD, "            add_tile(dq_sum_desc, [(place + worker) * shares.shape[1], 0], shares.index(worker))\n",
        "            add_tile(dq_sum_desc, [(place + worker) * shares.shape[1], 0], shares.index(worker))\n" * 2
    ),
    "dQ of the first worker's keys alone": (BACKWARD, "factors.index(turn * 2 + i)", "factors.index(turn * 2)"),
    "dQ added to the tile of the other worker": (BACKWARD, "+ worker) * shares", "+ 1 - worker) * shares"),
    "dQ of the last program alone": (BACKWARD, "if before == 0:\n            s", "if before >= 0:\n            s"),
    "delta with the other sign": (BACKWARD, "(dp - delta[None, :])", "(dp + delta[None, :])"),
    "the first worker's keys for both": (BACKWARD, "keys_of[WORKER]", "keys_of[0]"),
    "dS of a tile passed by": (BACKWARD, "0.0, q_buffer.dtype, ZEROS", "1.0, q_buffer.dtype, ZEROS"),
    "a tile passed by with a worker's own keys": (BACKWARD, "keys_of[1 - WORKER]", "keys_of[WORKER]"),
    "a tile too many passed by": (BACKWARD, "tl.maximum(first, low), last)", "tl.maximum(first, low) + 1, last)"),
    "mixed tiles of a window backward without their mask": (
        WINDOWED, 'tl.where(keep, score, float("-inf"))', "tl.where(keep, score, score)"
    ),
    "wide heads' mixed tiles without their mask": (
        WIDE, 'tl.where(keep, score, float("-inf"))', "tl.where(keep, score, score)"
    ),
    "weights read before they are there": (WIDE, "mbarrier.wait(weights_ready, at & 1)", "turn = at & 1"),
    "dS of the other stage": (WIDE, "left = factors.index(turn)", "left = factors.index(1 - turn)"),
    "a piece of dQ added to the first one's place": (WIDE, "(share_tile + piece)", "(share_tile + piece * 0)"),
    "the gradient of the LSE dropped": (BACKWARD, "delta -= tl.load(dlse_ptr", "delta -= 0 * tl.load(dlse_ptr"),
    "a vector of the other stage": (
        VECTORS, "= in_image_k_buffer.index(stage)", "= in_image_k_buffer.index((at + 1) % STAGES)"
    ),
    "a vector stored in the other stage": (
        VECTORS, "in_image_k_buffer.index(stage).store(", "in_image_k_buffer.index((at + 1) % STAGES).store("
    ),
    "a vector of the first keys": (VECTORS, "k_start + gl.arange(0, BLOCK_N, LINE)", "gl.arange(0, BLOCK_N, LINE)"),
    "what keys of the other stage add": (
        ADDED, "= k_added_buffer.index(stage)", "= k_added_buffer.index((at + 1) % STAGES)"
    ),
    "what keys add stored in the other stage": (
        ADDED, "k_added_buffer.index(stage).store(", "k_added_buffer.index((at + 1) % STAGES).store("
    ),
    "what the first keys add": (ADDED, "k_start + gl.arange(0, BLOCK_N, LINE)", "gl.arange(0, BLOCK_N, LINE)"),
    "what the next keys add waited for": (ADDED, WAIT, WAIT.replace("stage", "(at + 1) % STAGES")),
    "the scale applied once more": (CAPPED, "tanh(score, scale / 30.0)", "tanh(score * scale, scale / 30.0)"),
    "weights left out of the gradient of scores": (SLOPED, "    ds = ds * (dp - delta", "    ds = (dp - delta"),
    "full tiles of a list left out": (LISTED, "for j in tl.range(full_first, rest):", "for j in tl.range(rest, rest):"),
    "the tile after the one in the list": (
        LISTED, "k_start = listed(key_list, first + last - 1 - j) * BLOCK_N", "k_start = (last - 1 - j) * BLOCK_N"
    ),
    "the first head's list of queries": (
        LISTED_BACKWARD, "tile_list(query_lists_ptr, b * Hq + h,", "tile_list(query_lists_ptr, b * Hq,"
    ),
    "a list of queries as a range": (
        LISTED_BACKWARD, "q_start = listed(query_list, i) * BLOCK_M", "q_start = i * BLOCK_M"
    ),
    "what a query adds left out": (ADDED, "below = q_added[:, None] + ", "below = 0 * q_added[:, None] + "),
    "random numbers of the first keys": (
        DROPS, "k_start // 8 + gl.arange(0, BLOCK_N // 8", "gl.arange(0, BLOCK_N // 8"
    ),
    "random numbers of the first worker's rows": (
        DROPS, "first_query = q_start + drawn + WORKER * 64", "first_query = q_start + drawn"
    ),
    "the lower half of a random word twice": (DROPS, "(words >> 16).to(gl.int16)", "words.to(gl.int16)"),
    "random words in another order": (DROPS, "gl.join(w0, w2), gl.join(w1, w3)", "gl.join(w0, w1), gl.join(w2, w3)"),
    "random numbers with signs": (DROPS, "apart(draws.to(gl.int32) & 0xFFFF)", "apart(draws.to(gl.int32))"),
    "nothing made up for what is dropped": (DROPS, "0.0, 1 / l) * rescale", "0.0, 1 / l)"),
    "backward, random numbers of the first worker's keys": (
        DROPS_BACK, "q_start + drawn, k_start + WORKER * 64, BLOCK_M)", "q_start + drawn, k_start, BLOCK_M)"
    ),
    "dropped weights in dV": (DROPS_BACK, KEPT_ALONE.format("p"), "tl.abs(p)"),
    "the gradient of dropped weights": (DROPS_BACK, "used * (dp * rescale)", "tl.abs(p) * (dp * rescale)"),
    "weights with their sign": (DROPS_BACK, "tl.abs(p) * delta", "p * delta"),
    "dV that is not rescaled": (DROPS_BACK, "(dv * rescale)", "dv"),
    "wide heads' dropped weights in dV": (DROPS_WIDE, KEPT_ALONE.format("used"), "tl.abs(used)"),
    "wide heads' marks on the other weights": (DROPS_WIDE, "marked(p, 0), marked(p, 1)", "marked(p, 1), marked(p, 0)"),
    "wide heads' delta that is not rescaled": (DROPS_WIDE, "delta * (1 / rescale)", "delta"),
    "wide heads' random numbers of the next keys": (
        DROPS_WIDE, "q_start + drawn, k_start, BLOCK_M)", "q_start + drawn, k_start + 64, BLOCK_M)"
    ),
    "values of the next distance": (TABLED, "tl.load(first_ptr - of_threads", "tl.load(first_ptr + 1 - of_threads"),
    "values of the first worker's distances": (TABLED, "+ q_first + WORKER * 64", "+ q_first"),
    "values of distances with the other sign": (
        TABLED, "tl.load(first_ptr + of_threads", "tl.load(first_ptr - of_threads"
    ),
    "backward, values of the first worker's distances": (TABLED_BACK, "- k_start - WORKER * 64", "- k_start"),
    "one sum for distances that read several entries": (TABLED_BACK, "place - 63) == tl", "place - 63) <= tl"),
    "lower rows added at the distances of upper ones": (TABLED_BACK, "ptr + at - 8 * EIGHTS, lower", "ptr + at, lower"),
    "columns of lower rows eight too near": (TABLED_BACK, "upper + lower_odd", "upper + lower"),
    "distances of other columns": (TABLED_BACK, "upper, at = upper_odd, at_odd", "upper = upper_odd"),
    "what a table learns added to the first head": (
        TABLES, "in_rel_bias_at_sum_ptr + h * 32", "in_rel_bias_at_sum_ptr"
    ),
    "steps that are not counted": (TABLES, ".cumsum(1, dtype=torch.int32)", ".to(torch.int32)"),
}  # fmt: skip
PASSED = {fault for fault in FAULTS if "passed by" in fault}  # shown by more than 64 columns
OF_WIDE_HEADS = {"wide sums that are never rescaled"}  # in a file for all heads
ENDLESS = {
    "values waited for in the phase before", "what the next keys add waited for", "weights read before they are there"
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_has_its_place(fault: str) -> None:
    file, right, _ = FAULTS[fault]
    assert right in (GENERATED / file).read_text(), "bring this test up to date"


def copied(name: str, folder: Path) -> Path:
    """A copy of a package."""
    return shutil.copytree(GENERATED / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))


def faulty(file: str, right: str, wrong: str, folder: Path) -> Path:
    """A copy of a package with one fault."""
    package = copied(file.partition("/")[0], folder)
    path = folder / file
    text = path.read_text()
    assert right in text, "bring this test up to date"
    path.write_text(text.replace(right, wrong))
    return package


def on_gpu() -> dict[str, str]:
    """The environment, without the interpreter."""
    return {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}


def run(package: Path, case: str) -> tuple[int | None, str]:
    """The exit code of a case in a package's suite, by kernels for Hopper GPUs, and its output; None: it hangs."""
    options = ["-q", "-x", "-c", os.devnull, f"--rootdir={package.parent}", "-p", "no:cacheprovider", "-k", case]
    command = [sys.executable, "-m", "pytest", *options, str(package / f"test_{package.name}.py")]
    try:
        done = subprocess.run(
            command, env=on_gpu() | {"ATTNFORGE_TARGET": "hopper"}, capture_output=True, text=True, timeout=PATIENCE
        )
    except subprocess.TimeoutExpired:
        return None, ""
    return done.returncode, done.stdout + done.stderr


@needs_hopper
@pytest.mark.parametrize("name", sorted({file.partition("/")[0] for file, _, _ in FAULTS.values()}))
def test_the_suite_passes_without_a_fault(name: str, tmp_path: Path) -> None:
    code, said = run(copied(name, tmp_path), CASE)
    assert code == 0 and "1 passed" in said, said[-2000:]


@needs_hopper
@pytest.mark.parametrize("fault", FAULTS)
def test_the_suite_fails_on(fault: str, tmp_path: Path) -> None:
    wide = FAULTS[fault][0].endswith("/hopper_wide.py") or fault in OF_WIDE_HEADS
    code, said = run(faulty(*FAULTS[fault], tmp_path), WIDE_CASE if wide else CASE)
    if code is None:
        assert fault in ENDLESS, "the suite has no end"
    else:
        # because of the fault: an error in results, not a file that no longer runs
        assert code == 1 and "AssertionError" in said, said[-2000:]


# in rows whose later keys weigh far more than their first ones: no call of a suite has any
OUTGROWN = {
    "no second pass": ("return any_row(asked, 0, WORKERS)", "return 0 * any_row(asked, 0, WORKERS)"),
    "rows that keep what they have outgrown": ("grows = first_lse != first_lse", "grows = first_lse < first_lse"),
    "rows that all follow their largest score": ("grows = first_lse != first_lse", "grows = row == row"),
    "sums of any size": ("~(l <= 2.0)", "(l < 0)"),
    "tiles without a search in the second pass": ("full_last = first\n", "full_last = full_last\n"),
}


PACKED = "packed_causal/hopper.py"
RETAKEN = {
    "tiles that never come back": ("again = any_row(verdicts, stage * WORKERS, WORKERS)", "again = 0"),
    "the other stage's verdict": (
        "any_row(verdicts, stage * WORKERS, WORKERS)",
        "any_row(verdicts, (1 - stage) * WORKERS, WORKERS)",
    ),
    "an end before the last verdicts": ("while idle < Q_STAGES:", "while idle < 1:"),
    "a next tile that is lost": ("if (again == 0) & (item < items):", "if item < items:"),
    "a tile of another head": ("handed_on(places.index(stage * 3 + 2)), h)", "h, h)"),
}


@pytest.mark.parametrize("fault", OUTGROWN)
def test_a_fault_of_outgrown_rows_has_its_place(fault: str) -> None:
    assert OUTGROWN[fault][0] in (GENERATED / FORWARD).read_text(), "bring this test up to date"


@pytest.mark.parametrize("fault", RETAKEN)
def test_a_fault_of_tiles_done_again_has_its_place(fault: str) -> None:
    assert RETAKEN[fault][0] in (GENERATED / PACKED).read_text(), "bring this test up to date"


# in programs that take many tiles of keys in turns: no call of a suite has so many
IN_TURNS = {
    "keys of the other stage": ("(matrix(k_buffer, stage * WORKERS), ", "(matrix(k_buffer, (1 - stage) * WORKERS), "),
    "values of the other stage": ("matrix(v_buffer, stage * WORKERS", "matrix(v_buffer, (1 - stage) * WORKERS"),
    "the place of a tile in the other stage": ("    place = stage * 3\n", "    place = (1 - stage) * 3\n"),
    "tiles that nobody takes": ("tl.store(taken_ptr, 0,", "tl.store(taken_ptr, 64,"),
    "a head that is another one's": ("head // Hkv, head % Hkv", "head // Hkv, 0"),
}
COMPARED = """
import importlib, os, sys, torch
sys.path.insert(0, sys.argv[1])
package, runtime = (importlib.import_module(name) for name in ("causal", "causal.runtime"))
torch.manual_seed(0)
q, k, v, dout = (torch.randn(40, 640, heads, 64, device="cuda", dtype=torch.float16) for heads in (24, 12, 12, 24))
for x in (q, k, v):
    x.requires_grad_()
found = {}
for target in ("hopper", "portable"):
    os.environ["ATTNFORGE_TARGET"] = target
    runtime.LaunchCache.known.clear()
    found[target] = torch.autograd.grad(package.attention(q, k, v), (q, k, v), dout)
apart = [(x - y).norm() / y.norm() for x, y in zip(found["hopper"], found["portable"], strict=True)]
print("alike" if max(apart) < 5e-3 else "apart")
"""


@pytest.mark.parametrize("fault", IN_TURNS)
def test_a_fault_of_turns_has_its_place(fault: str) -> None:
    assert IN_TURNS[fault][0] in (GENERATED / BACKWARD).read_text(), "bring this test up to date"


@needs_hopper
@pytest.mark.parametrize("fault", [None, *IN_TURNS])
def test_turns_with_a_fault_give_other_gradients_or_none(fault: str | None, tmp_path: Path) -> None:
    path = copied("causal", tmp_path) / "hopper_backward.py"
    if fault:
        path.write_text(path.read_text().replace(*IN_TURNS[fault]))
    command = [sys.executable, "-c", COMPARED, str(tmp_path)]
    try:
        done = subprocess.run(command, env=on_gpu(), capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        assert fault  # workers that wait for something that never arrives
        return
    found = done.stdout.split()
    if fault and not found:
        assert "[CUDA]" in done.stderr or "CUDA error" in done.stderr, done.stderr[-2000:]  # no such barrier
        return
    assert found == ["apart" if fault else "alike"], done.stderr[-2000:]
