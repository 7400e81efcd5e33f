"""Generated suites fail on seeded faults: each kernel and term is broken once, as it could be by mistake."""

from __future__ import annotations

import shutil
from pathlib import Path

import devices  # noqa: F401  # where kernels run is settled before triton is imported
import pytest
import unformatted
from inner_run import failures

from attnforge.expressions import linear_forms
from attnforge.expressions.tree import Node
from attnforge.language import spec
from attnforge.tiling import ranges

pytestmark = pytest.mark.slow

GENERATED = Path(__file__).parents[2] / "generated"

# fault: variant, code to replace, its replacement; the tests that notice, if many others run before them
FAULTS: dict[str, tuple[str, ...]] = {
    "causal mask leaves out the diagonal": (
        "causal",
        "k_pos[None, :] <= q_pos[:, None]",
        "k_pos[None, :] < q_pos[:, None]",
    ),
    "a tile that hangs on the batch": (
        "causal",
        "return launch(32, 32, 4, 1)",
        "return launch(32, 32 if q.shape[0] == 1 else 16, 4, 1)",
        "bits_hang",
    ),
    "a tile of packed keys that hangs on the queries": (
        "packed_causal",
        "return launch(32, 32, 4, 1)",
        "return launch(32, 32 if q.shape[0] > 20 else 16, 4, 1)",
        "chunk_nor_prefix",
    ),
    "window one too wide": ("runtime_window", "distance < in_window", "distance <= in_window"),
    "window's tiles begin too late": (
        "runtime_window",
        "tl.maximum(q_first - in_window + 1, 0)",
        "tl.maximum(q_first, 0)",
    ),
    "window's query tiles end too soon": ("runtime_window", "k_last + in_window - q_begin", "k_last + 1 - q_begin"),
    "causal tiles end a tile too soon": ("causal", "tl.minimum(q_last + 1, k_len)", "tl.minimum(q_first + 1, k_len)"),
    "a mixed tile taken for full": ("causal", "tl.minimum(q_first + 1, k_len)", "tl.minimum(q_last + 1, k_len)"),
    "query tiles begin a tile too late": (
        "causal",
        "tl.maximum(k_first - q_begin, 0)",
        "tl.maximum(k_last - q_begin, 0)",
    ),
    "prefix and causal swapped for their meet": ("prefix_lm", ") | (", ") & ("),
    "softcap without its slope": ("softcap", "ds = ds * slope0", "ds = ds"),
    "softcap in other units": ("softcap", "score * (30.0 * LOG2E) - pivot", "score * LOG2E - pivot"),
    "softcap of unscaled scores": ("softcap", "* (scale / 30.0)", "* scale"),
    "another head in the place of the last group's": ("full", "tl.program_id(2) * tl.num_programs(1 - TILE_AXIS)", "0"),
    "rows of packed sequences that overlap": ("packed_causal", "(q_offset // 4 + b) * 4", "q_offset // 4 * 4"),
    "tail of the keys unmasked": ("full", "keep = (k_pos < k_len)[None, :]", "keep = (k_pos < k_len + 1)[None, :]"),
    "dq without its scale": ("full", "dq * scale", "dq"),
    "dk without its scale": ("full", "dk * scale", "dk"),
    "a head of the group left out": ("causal", "tl.range(kv_h * GROUP, ", "tl.range(kv_h * GROUP + 1, "),
    "the wrong key head": ("causal", "kv_h = h // GROUP", "kv_h = h % (Hq // GROUP)"),
    "lse in the wrong units": ("full", "lse / LOG2E", "lse"),
    "the rescaling of the sums forgotten": (
        "full", "acc * shrink[:, None], l * shrink[:, None], m_new", "acc * shrink[:, None], l, m_new"
    ),
    "the gradient of the lse dropped": ("full", "delta -= tl.load(dlse_ptr", "delta -= 0 * tl.load(dlse_ptr"),
    "delta forgotten in dq": ("full", "ds = p * (dp - delta[:, None])", "ds = p * dp"),
    "values of other rows": ("full", "desc.load([tl.cast(base + first,", "desc.load([tl.cast(base + first + 4,"),
    "mixed tiles before the full ones unmasked": (
        "sliding_window", "mixed = (i < full_first) | (i >= full_last)", "mixed = i >= full_last"
    ),
    "the next head's delta left in": (
        "full", "delta = tl.where(row < q_len, delta, 0.0)", "delta += 0.0", "a_nan_stays"
    ),
    "the next sequence's queries left in": (
        "packed_causal", "q_tile = tl.where((row < q_len)[:, None], q_tile, 0.0)", "q_tile += 0.0", "a_nan_stays"
    ),
    "the next sequence's values left in": (
        "packed_causal", "v_tile = tl.where((k_pos < k_len)[:, None], v_tile, 0.0)", "v_tile += 0.0", "a_nan_stays"
    ),
    "rotation the wrong way": ("rope", "rotated(b, a, cos, sin)", "rotated(b, -a, cos, sin)"),
    "gradients not turned back": ("rope", "cos, -sin,", "cos, sin,"),
    "positions from the top": ("rope", "tl.where(h < Hq, row + q_begin, row)", "row"),
    "decay with the wrong sign": ("log_decay", "log_decay_k_sum -= ", "log_decay_k_sum += "),
    "decay scanned the wrong way back": (
        "log_decay",
        "dx = carry + tl.cumsum(dsums, 0)",
        "dx = carry + tl.sum(dsums, 0) - tl.cumsum(dsums, 0)",
    ),
    "decay not carried on": (
        "log_decay",
        "carry, first = last_of(sums), last_of(begin)",
        "first = last_of(begin)",
    ),
    "what rounding left of decays dropped": (
        "log_decay",
        "(sums - rounded.to(tl.float64)).to(tl.float32)",
        "0.0 * rounded",
        "behind_a_large_value",
    ),
    "documents of decays that begin too soon": (
        "log_decay",
        "tl.where(x <= RESET, token, 0)",
        "tl.where(x <= RESET, token - 1, 0)",
        "begins_a_document",
    ),
    "documents of decays that end too late": (
        "log_decay", "(count - found).to", "(count - found + 1).to", "begins_a_document"
    ),
    "slopes of the wrong side": (
        "alibi",
        "tl.abs(q_at - k_at)",
        "(q_pos[:, None] - k_pos[None, :] + 1)",
    ),
    "slopes of the first head": ("alibi", "in_slopes_ptr + tl.cast(h, tl.int64)", "in_slopes_ptr + 0"),
    "another sequence's keys": (
        "packed_causal", "load_tile(k_desc, kv_h, k_offset + k_start", "load_tile(k_desc, kv_h, k_start"
    ),
    "another document's tiles": ("llama3_documents", "in_k_segments_k_least <= in_q_segments_q_most", "k_first < 0"),
    "a tile taken for full": ("llama3_documents", "(in_q_segments_q_least == in_k_segments_k_most)", "(k_first >= 0)"),
    "a block taken for empty": ("block_sparse", "in_block_mask_qk_most != 0", "in_block_mask_qk_most == 0"),
    "no weight for the sink": ("gpt_oss", 'tl.where(sink == float("-inf"), 0.0, 1 / 8)', "0.0"),
    "a sink's gradient of the other sign": ("gpt_oss", "return -(weight * delta)", "return (weight * delta)"),
    "dropped weights not made up for": ("gpt2_dropout", "[:, None] * rescale", "[:, None]"),
    "a gradient through dropped weights": ("gpt2_dropout", "dp * rescale, 0.0)", "dp * rescale, dp)"),
    "other weights dropped in the backward pass": (
        "gpt2_dropout", "kept(seed, drop_below, b, h, row + drawn, k_start, k_pos.shape[0]).T",
        "kept(seed + 1, drop_below, b, h, row + drawn, k_start, k_pos.shape[0]).T"
    ),
    "an entry beside the right one": ("t5_encoder", "return tl.maximum(tl.minimum(place, count - 1), 0)",
                                      "return tl.maximum(tl.minimum(place + 1, count - 1), 0)"),
    "the last entry left out": ("t5_decoder", "end = tl.max(tl.where(there, entry, -1)) + 1",
                                "end = tl.max(tl.where(there, entry, -1))"),
    "a batch entry of a share left out": (
        "swin", "tl.cdiv(all_batches - share, shares)", "tl.cdiv(all_batches - share, shares + 1)"
    ),
    "hidden keys in sums over batch entries": (
        "swin", "tl.where(keep, in_offset_bias_at_sum, 0.0)", "in_offset_bias_at_sum + 0.0 * keep"
    ),
    "the sums of one batch entry by entry": ("swin", "in_offset_bias_at_sum += ds", "in_offset_bias_at_sum = ds"),
    "the first head in the place of each": ("swin", "// own_tiles % Hq, ", "// own_tiles % Hq * 0, "),
    "values of the next distance": (
        "t5_encoder", "by_distance_row + (q_pos[:, None] - k_pos[None, :])",
        "by_distance_row + (q_pos[:, None] - k_pos[None, :] + 1)"
    ),
    "values of distances with the other sign": (
        "t5_decoder", "by_distance_row + (q_pos[None, :] - k_pos[:, None])",
        "by_distance_row - (q_pos[None, :] - k_pos[:, None])"
    ),
    "values of the first head": (
        "t5_decoder", "by_distance_row = tl.cast(h, tl.int64) * by_distance_stride_head", "by_distance_row = h * 0"
    ),
    "values stored at the next distance": (
        "t5_encoder", "tl.store(by_distance_ptr + place, value", "tl.store(by_distance_ptr + place + 1, value"
    ),
    "one entry for distances that read several": (
        "t5_encoder", "tl.load(steps_ptr + (x.shape[0] - 1))", "tl.load(steps_ptr - (x.shape[1] - 1))"
    ),
    "changes of entries that are not counted": ("t5_encoder", ".cumsum(1, dtype=torch.int32)", ".to(torch.int32)"),
    "entries of distances with the other sign": ("t5_decoder", "entries_ptr + distance)", "entries_ptr - distance)"),
    "a row's entries to another row": ("shaw", "first, between = row * ENTRIES", "first, between = row // 2 * ENTRIES"),
    "a row's last entry left out": ("shaw", "ptr + (first + MOST)", "ptr + (first + MOST - 1)"),
    "a pair's gradient of one head alone": ("pair_bias", "in_bias_qk_sum += ds", "in_bias_qk_sum = ds", "size_1"),
    "a tree that hides nothing": ("tree_decoding", "| in_tree_mask_at", "| (q_len > 0)"),
    "rows too close without copies of tiles": (
        "full", "tl.int64) * STEP)", "tl.int64) * STEP // 2)", "copy_no_tiles"
    ),
    "a running sum that is not undone": ("flash1", "acc * l_old[:, None]", "acc"),
    "an old sum that is not rescaled": ("flash1", "l * tl.exp2(m - pivot)", "l"),
    "query tiles of a key tile begin too late": (
        "flash1", "tl.maximum(k_first - q_begin, 0)", "tl.maximum(k_last - q_begin, 0)"
    ),
    "columns too close": ("flash2_strided_k", "(stride * elements(ptr))", "(stride * elements(ptr) // 2)"),
    "a sink's gradient in rows without keys in other units": ("gpt_oss", "-dlse * LOG2E", "-dlse", "without_keys"),
    "ones for the gradient of out that is missing": ("full", "torch.zeros_like(out)", "torch.ones_like(out)", "of_0"),
    "tiles read from memory that is not aligned": ("full", " or x.data_ptr() % 16:", ":", "strides"),
    "made up for another share than is dropped": (
        "gpt2_dropout", "65536 / (65536 - _drop_below(dropout_p))", "1 / (1 - dropout_p)", "makes_up"
    ),
    "the upper half of a seed left out": (
        "gpt2_dropout", "tl.philox(seed,", "tl.philox(seed & 0x7FFFFFFF,", "of_the_seed"
    ),
    "a window a hundred times as wide": ("mistral", "4096", "409600", "numbers"),
    "chunks a hundred times as long": ("llama4_chunked", "8192", "819200", "numbers"),
    "keys of padding attended to": ("full", "tl.load(entry_ptr + 2)", "0 * tl.load(entry_ptr + 2)", "lengths"),
    "queries of padding answered": ("full", "len = tl.load(entry_ptr),", "len = 0 * tl.load(entry_ptr),", "lengths"),
    "positions of padded batches from the bottom right": (
        "causal", "else tl.load(entries_ptr + 5 * b + 4)", "else k_len - q_len", "test_lengths"
    ),
    "tiles that reach into padding": (
        "causal", "runtime.tile_source(v, block_n, entries)", "runtime.tile_source(v, block_n)", "padding"
    ),
    "gradients of padding left as they were": (
        "full", "if x.numel():", "if x.numel() and not keys:", "padding"
    ),
    "a sink's gradient of padding": (
        "gpt_oss", "else torch.zeros_like(lse)", "else torch.full_like(lse, torch.nan)", "padding"
    ),
    "sums from the first row of the tensor": (
        "log_decay", "find_entry(entries_ptr, b, 0, k_total)", "find_entry(None, b, 0, k_total)", "test_lengths"
    ),
    "a pair's gradient beside its place": (
        "pair_bias", "own_k_start - k_offset", "own_k_start", "test_lengths"
    ),
    "positions given from the first row of the tensor": (
        "rope", "+ tl.cast(k_offset, tl.int64) * positions_stride_token", "+ 0", "test_lengths"
    ),
    "rows written to the first sequence": ("packed_causal", "(q_offset.to(tl.int64) * Hq + h) * DV", "h * DV"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_the_suite_fails_on(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variant, right, wrong, *tests = FAULTS[fault]
    # the names of packages that the process has imported are taken
    package = tmp_path / f"{variant}_{list(FAULTS).index(fault)}"
    shutil.copytree(GENERATED / variant, package, ignore=shutil.ignore_patterns("__pycache__"))
    found = 0
    for name in ("kernels.py", "by_distance.py", "launch.py", "padding.py", "runtime.py"):
        if (package / name).is_file():
            text = (package / name).read_text()
            found += text.count(right)
            (package / name).write_text(text.replace(right, wrong))
    assert found, "the fault has no place in the package: bring this test up to date"
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    (failure,) = failures(package / f"test_{variant}.py", *(("-k", tests[0]) if tests else ()))
    # because of the fault: an error in results, not a file that no longer runs
    assert "AssertionError" in failure.longreprtext, failure.longreprtext[-2000:]


Ends = tuple[linear_forms.Linear, linear_forms.Linear]


def of_remainders(ends: Ends, node: Node) -> Ends:
    """Makes the largest value of a remainder one too small."""
    return (ends[0], ends[1] + -1) if node.op == "%" else ends


def of_quotients(ends: Ends, node: Node) -> Ends:
    """Takes the near end of a quotient as its far end."""
    return (ends[0], ends[0]) if node.op == "//" else ends


# fault of the generator: a mask that depends on it, the module or class, the name replaced there, its replacement
BOUNDS = {
    "a remainder's largest value one too small": ("k <= q % 8", linear_forms.Tile, "_ends", of_remainders),
    "a quotient's far end taken from its near one": ("k <= q // 8", linear_forms.Tile, "_ends", of_quotients),
    "an upper bound's quotient rounded up": ("3 * k <= q", ranges, "floor_divided", linear_forms.ceil_divided),
    "a lower bound's quotient rounded down": ("3 * k >= q", ranges, "ceil_divided", linear_forms.floor_divided),
}


@pytest.mark.parametrize("fault", BOUNDS)
def test_the_suite_fails_on_ranges_with(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mask, place, name, wrong = BOUNDS[fault]
    path = tmp_path / "bounded.yaml"
    path.write_text(f'name: bounded\nmask: [expr: "{mask}"]\n')
    right = getattr(place, name)
    changed = (lambda tile, node: (ends := right(tile, node)) and wrong(ends, node)) if name == "_ends" else wrong
    for label, function in (("right", right), ("wrong", changed)):
        monkeypatch.setattr(place, name, function)
        package = tmp_path / f"{label}_{list(BOUNDS).index(fault)}"
        package.mkdir()
        for file, text in unformatted.interpreted(spec.load(path, terms=()), suite=True, far=True).items():
            (package / file).write_text(text)
        found = failures(package / "test_bounded.py", "-k", "tiles_are_visited")
        assert bool(found) == (label == "wrong")
    assert "AssertionError: a tile that" in found[0].longreprtext
