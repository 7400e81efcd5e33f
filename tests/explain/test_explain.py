"""What `explain` draws: tiles compared with brute force, samples, terminals, pictures, formulas, lines of terms."""

from __future__ import annotations

import io
import itertools
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import click
import numpy as np
import pytest

from attnforge.explain import arrays, explain, markdown, picture, samples, svg, trace, values
from attnforge.explain.arrays import EMPTY, FULL, MASKED, MIXED, PLAIN, SKIPPED, UNKNOWN, Mask
from attnforge.explain.page import Page
from attnforge.expressions.evaluation import compiled
from attnforge.expressions.tree import Node
from attnforge.language import spec
from attnforge.language.spec import Spec
from attnforge.printing import mathml
from attnforge.render import render
from attnforge.source import resources

Load = Callable[..., Spec]
GENERATED = Path(__file__).parents[2] / "generated"

DOCUMENTS = (
    'mask: [causal, expr: "qs == ks"]\n'
    "inputs: {qs: {axes: [batch, query], dtype: int}, ks: {axes: [batch, key], dtype: int}}\n"
)
UNTOLD = DOCUMENTS.replace("qs == ks", "1.0 * qs == ks")  # kernels learn nothing from floats
MASKS = {
    "everything": "",
    "causal": "mask: [causal]\n",
    "window": "mask: [causal, sliding_window: {size: 20}]\n",
    "runtime": "mask: [causal, sliding_window: {size: runtime}]\n",
    "prefix": "mask: [prefix_lm]\n",
    "strided": 'mask: [expr: "(q - k) % 4 == 0"]\n',
    "squares": 'mask: [expr: "abs(q // 16 - k // 16) <= 2 and abs(q % 16 - k % 16) <= 2"]\n',
    "sinks": 'mask: [causal, expr: "q - k < 24 or k < 4"]\n',
    "one pair": 'mask: [expr: "q == 37 and k == 11"]\n',
    "all but one": 'mask: [expr: "not (q == 37 and k == 11)"]\n',
    "nothing": 'mask: [expr: "k < 0"]\n',
    "odd": 'mask: [expr: "(q * k) % 7 == 3 or q ** 2 < k"]\n',
    "smooth": 'mask: [expr: "sqrt(abs(q - k)) + sin(k / 9.0) < 4 if k > 5 else tanh(q / 30) > 0.5"]\n',
    "clamped": 'mask: [expr: "abs(k // 8 - clamp(q // 8, 1, k_len // 8 - 2)) <= 1"]\n',
    "one way": 'mask: [expr: "k // 2 <= q % 16"]\n',
    "heads": 'mask: [expr: "q - k < 8 * (h + 1) + b - kv_h"]\n',
    "documents": DOCUMENTS,
    "random": 'mask: [expr: "valid or k <= q - back"]\n'
    "inputs: {valid: {axes: [head, key], dtype: bool}, back: {axes: [], dtype: int}}\n",
    "tokens": 'mask: [expr: "x[q] > x[k] + rate and kind[k] != kind[q]"]\n'
    "inputs: {x: {axes: [batch, token]}, rate: {axes: []}, kind: {axes: [token], dtype: int}}\n",
    "falling": 'mask: [expr: "decay[q] - decay[k] > -0.25"]\ninputs: {decay: {axes: [batch, token], scan: cumsum}}\n',
    "flag": 'mask: [expr: "k <= q or seen"]\ninputs: {seen: {axes: [batch], dtype: bool}}\n',
    "limits": 'mask: [expr: "k // width <= q // width and k < until and far > 0.75 * under"]\n'
    "inputs: {width: {axes: [], dtype: int, min: 5, max: 9}, until: {axes: [query], dtype: int, min: 8, max: 80}, "
    "far: {axes: [key], min: -2, max: 0.5}, under: {axes: [], max: -1.5}}\n",
    "ends of tiles": 'mask: [expr: "k <= q + q_first and q - k < k_last"]\n'
    "inputs: {q_first: {axes: [], dtype: int}, k_last: {axes: [], dtype: int, min: 3}}\n",
    "packed": "layout: packed\nmask: [causal]\n",
    "segments": "mask: [causal, segments]\n",
    "tree": "mask: [tree]\n",
    "blocks": "mask: [block_sparse: {block: 12}, causal]\n",
    "image": "mask: [local_2d: {width: 12, radius: runtime}, dilated: {stride: runtime}]\n",
    "chunks": "mask: [chunked: {size: runtime}]\n",
    "global": "mask: [any: [sliding_window: {size: 9}, global_tokens: {count: runtime}], causal]\n",
    "table": 'mask: [expr: "near[abs(q - k)] or far[h, k // 4] > 0"]\n'
    "inputs: {near: {axes: [16], dtype: bool}, far: {axes: [batch, 8, 4], dtype: int}}\n",
    "pairs": 'mask: [expr: "both > 0 and s[k // 2, q] < 0.75 and c"]\n'
    "inputs: {both: {axes: [query, key], dtype: int}, s: {axes: [key, key]}, "
    "c: {axes: [key // 5, head], dtype: bool}}\n",
}


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def load(text: str, name: str = "one", description: str = "A test.") -> Spec:
        path = tmp_path / f"{name}.yaml"
        path.write_text(f"name: {name}\ndescription: {description}\n{text}")
        return spec.load(path, terms=[resources.specs() / "terms"])

    return load


def mask(loaded: Spec, q_len: int, k_len: int, **changed: float) -> Mask:
    sample = samples.take(loaded)
    numbers = sample.numbers(q_len, k_len) | changed
    return Mask(sample.mask, sample.spans, sample.known, q_len, k_len, numbers, sample.back)


def by_hand(found: Mask) -> Any:
    """The mask, computed pair by pair in Python's own arithmetic."""
    env = {**found.numbers, "q_len": found.q_len, "k_len": found.k_len}
    keys, sees = range(found.k_len), compiled(found.keep)
    return np.array([[bool(sees({**env, "q": row + found.shift, "k": k})) for k in keys] for row in range(found.q_len)])


def states(visible: Any, m: int, n: int) -> list[list[int]]:
    rows = [visible[at : at + m] for at in range(0, visible.shape[0], m)]
    parts = [[row[:, at : at + n] for at in range(0, visible.shape[1], n)] for row in rows]
    return [[FULL if part.all() else MIXED if part.any() else EMPTY for part in row] for row in parts]


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize(
    ("q_len", "k_len", "m", "n"), [(64, 64, 8, 8), (50, 90, 16, 7), (90, 40, 32, 64), (1, 70, 4, 16)]
)
def test_tiles_are_what_their_elements_say(load: Load, name: str, q_len: int, k_len: int, m: int, n: int) -> None:
    found = mask(load(MASKS[name]), q_len, k_len)
    visible = by_hand(found)
    assert (found.visible(np.arange(q_len)[:, None], np.arange(k_len)) == visible).all()
    tiling = found.tiles((m, n))
    assert tiling.states.tolist() == states(visible, m, n)
    assert (tiling.states[tiling.visits == SKIPPED] == EMPTY).all()
    assert (tiling.states[tiling.visits == PLAIN] == FULL).all()
    assert (tiling.states[tiling.back == SKIPPED] == EMPTY).all()
    assert (tiling.states[tiling.back == PLAIN] == FULL).all()
    assert tiling.total == tiling.count(FULL) + tiling.count(MIXED) + tiling.count(EMPTY)
    assert tiling.visited == int((tiling.visits != SKIPPED).sum())
    assert tiling.vain == int(((tiling.states == EMPTY) & (tiling.visits != SKIPPED)).sum())


WALKED = ["causal", "window", "runtime", "prefix", "sinks", "squares", "everything", "one pair", "clamped", "one way"]


@pytest.mark.slow
@pytest.mark.parametrize("name", WALKED)
def test_visits_are_those_of_the_generated_code(load: Load, name: str) -> None:
    loaded = load(MASKS[name])
    visit = generated_walk(loaded, "key_tiles")
    for q_len, k_len, m, n in ((64, 64, 8, 8), (50, 90, 16, 7), (90, 40, 32, 64)):
        found = mask(loaded, q_len, k_len)
        given = {f"in_{name}": number for name, number in found.numbers.items()}
        wanted = np.full((-(-q_len // m), -(-k_len // n)), SKIPPED)
        for row in range(wanted.shape[0]):
            first = row * m + k_len - q_len
            scene = {**given, "q_len": q_len, "k_len": k_len, "q_begin": k_len - q_len, "BLOCK_N": n}
            for lo, full_lo, full_hi, hi in visit(scene | {"q_first": first, "q_last": min(first + m, k_len) - 1}):
                wanted[row, lo:hi] = MASKED
                wanted[row, full_lo:full_hi] = PLAIN
        assert found.tiles((m, n)).visits.tolist() == wanted.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("name", WALKED)
def test_visits_of_tiles_of_keys_are_those_of_the_generated_code(load: Load, name: str) -> None:
    loaded = load(MASKS[name])
    visit = generated_walk(loaded, "query_tiles")
    for q_len, k_len, m, n in ((64, 64, 8, 8), (50, 90, 16, 7), (90, 40, 32, 64)):
        found = mask(loaded, q_len, k_len)
        given = {f"in_{name}": number for name, number in found.numbers.items()}
        wanted = np.full((-(-q_len // m), -(-k_len // n)), SKIPPED)
        for column in range(wanted.shape[1]):
            first = column * n
            scene = {**given, "q_len": q_len, "k_len": k_len, "q_begin": k_len - q_len, "BLOCK_M": m}
            for lo, full_lo, full_hi, hi in visit(scene | {"k_first": first, "k_last": min(first + n, k_len) - 1}):
                wanted[lo:hi, column] = MASKED
                wanted[full_lo:full_hi, column] = PLAIN
        assert found.tiles((m, n)).back.tolist() == wanted.tolist()


def test_kernels_that_visit_other_tiles_are_counted_apart(load: Load) -> None:
    apart = explain.draw(load(MASKS["one way"]), 64, 64)
    tiling = apart.tiling
    assert [who for who, _ in tiling.kernels] == ["forward and backward_dq visit", "backward_dkv visits"]
    one, other = (int((visits != SKIPPED).sum()) for visits in (tiling.visits, tiling.back))
    assert one < other == tiling.total
    assert f"forward and backward_dq visit {one} of {other} tiles" in apart.blocks()
    assert f"backward_dkv visits {other} of {other} tiles" in apart.blocks() and "0.0 % of the work" in apart.blocks()
    assert f"backward_dkv visits {other}: 0.0 % saved" in apart.svg()
    together = explain.draw(load(MASKS["clamped"]), 64, 64)
    assert len(together.tiling.kernels) == 1 and "the kernels visit" in together.blocks()
    # an algorithm without a backward pass has no such kernel
    alone = explain.draw(load(MASKS["one way"] + "algorithm: flash2_strided_k\n"), 64, 64)
    assert alone.tiling.back is None and "the kernels visit" in alone.blocks()


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (DOCUMENTS, (16, 16)),
        ("mask: [causal, segments]\n", (32, 16)),
        ("mask: [block_sparse: {block: 16}]\n", (16, 16)),
        ("mask: [causal, block_sparse: {block: 32}]\n", (16, 32)),
        ("mask: [any: [block_sparse: {block: 16}, {sliding_window: {size: 16}}], causal]\n", (16, 16)),
    ],
)
def test_tiles_that_values_rule_out_are_skipped(load: Load, text: str, size: tuple[int, int]) -> None:
    tiling = mask(load(text), 160, 160).tiles(size)
    assert tiling.count(EMPTY) > 0
    assert tiling.vain == 0
    assert ((tiling.visits == PLAIN) == (tiling.states == FULL)).all()


def test_holes_in_a_range_are_visited(load: Load) -> None:
    text = 'mask: [expr: "kind[q] == kind[k] or kind[k] == 0"]\ninputs: {kind: {axes: [batch, token], dtype: int}}\n'
    tiling = mask(load(text), 80, 80).tiles((8, 8))
    assert (tiling.visits != SKIPPED).tolist() == [
        [column <= row // 2 * 2 + 1 for column in range(10)] for row in range(10)
    ]
    assert tiling.vain == sum(2 * (document - 1) * 2 for document in range(2, 5))


def generated_walk(loaded: Spec, function: str) -> Callable[[dict[str, Any]], list[tuple[int, ...]]]:
    """The rendered function that works out the tiles that a program visits, run as Python."""
    text = render.file(loaded, "kernels.py")
    parts = [re.search(rf"\ndef {name}\(.*?(?=\n\n\n)", text, re.DOTALL) for name in ("tile_range", function)]

    class tl:
        constexpr = int
        maximum, minimum = max, min
        abs = abs

        @staticmethod
        def cdiv(a: int, b: int) -> int:
            return -(-a // b)

        @staticmethod
        def where(c: bool, a: int, b: int) -> int:
            return a if c else b

    names: dict[str, Any] = {"tl": tl, "floor_div": lambda a, b: a // b, "floor_mod": lambda a, b: a % b}
    for part in parts:
        assert part
        exec(part[0], names)
    walk = names[function]
    wanted = walk.__code__.co_varnames[: walk.__code__.co_argcount]

    def visit(scene: dict[str, Any]) -> list[tuple[int, ...]]:
        assert parts[1]
        spans = parts[1][0].count(" tile_range(")
        return [
            walk(**{name: value for name, value in (scene | {"span": i}).items() if name in wanted})
            for i in range(spans)
        ]

    return visit


@pytest.mark.slow
def test_large_masks_are_counted_exactly(load: Load) -> None:
    side = 16384
    tiles = side // 128
    causal = mask(load(MASKS["causal"]), side, side).tiles((128, 128))
    assert (causal.count(FULL), causal.count(MIXED)) == (tiles * (tiles - 1) // 2, tiles)
    strided = mask(load(MASKS["strided"]), side, side).tiles((128, 128))
    assert strided.count(MIXED) == tiles**2
    # only one pair in 2**28 is visible: no grid of sample points finds it
    hidden = mask(load('mask: [expr: "(q * 16384 + k) % 268435456 == 200000003"]\n'), side, side).tiles((128, 128))
    assert (hidden.count(MIXED), hidden.count(EMPTY)) == (1, tiles**2 - 1)
    assert np.argwhere(hidden.states == MIXED).tolist() == [[200000003 // side // 128, 200000003 % side // 128]]


def test_what_is_too_much_work_is_told_as_visited(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "_BUDGET", 0)
    tiling = mask(load(UNTOLD), 4096, 4096).tiles((64, 64))
    assert tiling.count(UNKNOWN) > 0
    assert (tiling.visits[tiling.states == UNKNOWN] == MASKED).all()
    shown = explain.draw(load(UNTOLD), 4096, 4096).text()
    assert re.search(r"\d+ not looked into", shown)
    assert "?" in shown


def test_tiles_of_a_long_mask_are_joined_for_signs(load: Load) -> None:
    for name in ("window", "documents", "random", "nothing", "one pair"):
        found = mask(load(MASKS[name]), 70, 110)
        joined, whole = found.tiles((4, 8)).coarser((4, 2)), found.tiles((16, 16))
        assert joined.size == whole.size and joined.states.tolist() == whole.states.tolist()
        assert ((joined.visits == SKIPPED) <= (whole.states == EMPTY)).all()
    states = np.array([[UNKNOWN, EMPTY, UNKNOWN, FULL, UNKNOWN, MIXED]])
    joined = arrays.Tiling((1, 1), states, np.full((1, 6), MASKED)).coarser((1, 2))
    assert joined.states.tolist() == [[UNKNOWN, UNKNOWN, MIXED]]


def test_kernels_that_visit_as_many_other_tiles_are_told_apart() -> None:
    states, forward = np.array([[MIXED, MIXED]]), np.array([[MASKED, SKIPPED]])
    tilings = [arrays.Tiling((1, 1), states, forward, back) for back in (forward, np.array([[SKIPPED, MASKED]]))]
    assert [len(tiling.kernels) for tiling in tilings] == [1, 2]


def test_counts_are_those_of_visits(load: Load) -> None:
    for name in ("sinks", "one way", "documents", "tokens", "blocks", "everything"):
        found = mask(load(MASKS[name]), 70, 110)
        for owns_keys in (False, True):
            visits = found.visits((16, 8), owns_keys)
            assert found.count((16, 8), owns_keys) == (int((visits != SKIPPED).sum()), visits.size)
        assert found.last_visits((1, 8)).tolist() == found.visits((1, 8), owns_keys=False)[-1].tolist()


@pytest.fixture
def worked_out(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of values in the result of each evaluated expression, in order."""
    made: list[int] = []

    def evaluate(node: Node, env: Any) -> Any:
        found = values.evaluate(node, env)
        made.append(np.size(found))
        return found

    monkeypatch.setattr(arrays, "evaluate", evaluate)
    return made


@pytest.mark.parametrize("name", ["causal", "sinks", "documents", "segments"])
def test_long_masks_need_no_look_at_each_tile(load: Load, worked_out: list[int], name: str) -> None:
    found = mask(load(MASKS[name]), 1 << 20, 1 << 20)
    tiling = found.tiles((8192, 8192))
    assert tiling.total == 128**2 and tiling.count(EMPTY) > 0
    visited, total = found.count((64, 64), owns_keys=False)
    assert total == 1 << 28 and (visited is None) == (found.told is not None)
    assert sum(worked_out) < 1 << 24


def test_tiles_as_far_apart_are_looked_at_once(load: Load, worked_out: list[int]) -> None:
    text = 'mask: [causal, expr: "near[clamp(q - k, 0, 99)] > 0.5"]\ninputs: {near: {axes: [head, 100]}}\n'
    found = mask(load(text), 1000, 1030)
    tiling, looked = found.tiles((32, 32)), sum(worked_out)
    assert tiling.states.tolist() == states(found.visible(np.arange(1000)[:, None], np.arange(1030)), 32, 32)
    assert looked < 1000 * 1030 // 2, "half of the tiles are uniform, most of them as far apart as others"


def test_lengths_with_too_many_blocks_are_refused(load: Load) -> None:
    loaded = load("mask: [block_sparse: {block: 4}, causal]\n")
    with pytest.raises(
        click.BadParameter, match=r"expected lengths up to 32768,32768, got 65536,32769: .* 4 x 4 pairs"
    ):
        explain.draw(loaded, 65536, 32769)
    assert explain.draw(loaded, 1, 1 << 20).tiling.total == 128


# -- samples -----------------------------------------------------------------------------------------------------


def test_samples_are_told_with_their_numbers(load: Load) -> None:
    assert samples.take(load(MASKS["prefix"])).told(64, 96) == ("prefix_len = k_len // 4 = 24", "batch entry 0")
    assert samples.take(load(MASKS["runtime"])).told(64, 96) == ("window = max(k_len // 8, 1) = 12",)
    assert samples.take(load(MASKS["causal"])).told(64, 96) == ()
    assert samples.take(load(MASKS["heads"])).told(64, 64) == ("head 0 and batch entry 0 and key head 0",)
    assert samples.take(load(DOCUMENTS.replace("int}", "int, default: 3}"))).told(64, 64) == ("qs = 3", "ks = 3")
    notes = samples.take(load(MASKS["random"])).told(64, 64)
    assert notes == ("valid: random bits, 50 of 100 true", "back = k_len // 4 = 16", "head 0")


def test_documents_follow_each_other(load: Load) -> None:
    visible = by_hand(mask(load('mask: [expr: "qs == ks"]\n' + DOCUMENTS.partition("\n")[2]), 40, 100))
    starts = [0, 20, 40, 60, 80, 100]
    for row in range(40):
        first, end = next((a, b) for a, b in itertools.pairwise(starts) if a <= row + 60 < b)
        assert visible[row].tolist() == [first <= k < end for k in range(100)]


def test_a_tree_of_guesses_grows_from_the_keys_before_it(load: Load) -> None:
    visible = by_hand(mask(load(MASKS["tree"]), 20, 50))
    assert visible[:, :30].all()
    for i in range(20):
        way = {i}
        while min(way) > 0:
            way.add(max(0, min(way) - 3))
        assert set(np.flatnonzero(visible[i, 30:]).tolist()) == way | {0}
    # descendants of a token see everything that it sees
    seen = [set(np.flatnonzero(row).tolist()) for row in visible]
    assert all(seen[j] <= seen[i] for i in range(20) for j in range(20) if 30 + j in seen[i])


def test_blocks_are_of_one_kind_throughout(load: Load) -> None:
    visible = by_hand(mask(load("mask: [block_sparse: {block: 12}]\n"), 60, 40))
    assert {state for row in states(visible, 12, 12) for state in row} == {FULL, EMPTY}


def test_random_bits_look_random_and_stay_the_same(load: Load) -> None:
    loaded = load(
        'mask: [expr: "a[q] or not c[k]"]\ninputs: {a: {axes: [token], dtype: bool}, c: {axes: [token], dtype: bool}}\n'
    )
    first, again = (mask(loaded, 2000, 2000).visible(np.arange(2000)[:, None], np.arange(2000)) for _ in range(2))
    assert (first == again).all()
    assert abs(first.mean() - 0.75) < 0.03
    changed = mask(loaded, 2000, 2000, **{"#seed": 1}).visible(np.arange(2000)[:, None], np.arange(2000))
    assert (changed != first).mean() > 0.2
    assert mask(loaded, 50, 50, **{"#share": 100}).visible(0, np.arange(50)).all()
    a = first.all(1)
    # the bits are not periodic
    for period in range(1, 64):
        assert (a[period:] != a[:-period]).mean() > 0.3


@pytest.mark.parametrize("variant", sorted(resources.variants()))
def test_every_variant_can_be_drawn(variant: str) -> None:
    path = resources.variants()[variant]
    drawn = explain.draw(spec.load(path, terms=resources.terms_for(path)), 300, 500)
    assert drawn.tiling.count(UNKNOWN) == 0
    assert drawn.text().isascii()


# -- the terminal ------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    """Standard output as a terminal would be."""

    def __init__(self, encoding: str) -> None:
        super().__init__()
        self._encoding = encoding

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def terminal(encoding: str = "utf-8", **variables: str) -> None:
        for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
            monkeypatch.delenv(name, raising=False)
        for name, value in ({"TERM": "xterm-256color", "COLORTERM": "truecolor", "COLUMNS": "100"} | variables).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "stdout", Terminal(encoding))

    return terminal


def rows(drawn: str, count: int) -> list[str]:
    return [line.removeprefix("  ") for line in drawn.splitlines()[-count:]]


def test_a_file_gets_plain_characters(load: Load) -> None:
    drawn = explain.draw(load(MASKS["causal"]), 32, 32).text()
    assert rows(drawn, 32) == ["#" * (i + 1) + "." * (31 - i) for i in range(32)]
    assert "tiles of 2 x 2: 120 full, 16 mixed, 120 empty" in drawn
    assert "visit 136 of 256 tiles: 46.9 % of the work saved" in drawn


def test_a_terminal_gets_half_blocks_in_colour(load: Load, terminal: Callable[..., None]) -> None:
    terminal()
    drawn = explain.draw(load(MASKS["causal"]), 32, 32).text()
    lines = rows(drawn, 16)
    assert all(re.sub(r"\x1b\[[0-9;]*m", "", line) == "▀" * 32 for line in lines)

    def code(colour: str, kind: int) -> str:
        return f"{kind};2;" + ";".join(str(int(colour[i : i + 2], 16)) for i in (1, 3, 5))

    # the top half of the last line is row 30; all tiles of rows 30 and 31 are full except for the last one
    assert code(picture.BLUE, 38) in lines[-1]
    assert code(picture.ORANGE, 38) in lines[-1]
    assert code(picture.ORANGE, 48) in lines[-1]
    assert code(picture.BLUE, 38) not in lines[0]
    assert "46.9 % of the work saved" in drawn


def test_a_terminal_without_colours_or_blocks(load: Load, terminal: Callable[..., None]) -> None:
    causal = load(MASKS["causal"])
    terminal(NO_COLOR="1")
    assert rows(explain.draw(causal, 16, 16).text(), 16)[3] == "█" * 4 + "·" * 12
    terminal(encoding="ascii")
    assert rows(explain.draw(causal, 16, 16).text(), 16)[3] == "#" * 4 + "." * 12
    terminal(COLUMNS="40")
    assert max(len(re.sub(r"\x1b\[[0-9;]*m", "", row)) for row in rows(explain.draw(causal, 64, 64).text(), 8)) <= 40


# -- pictures ----------------------------------------------------------------------------------------------------


def colour(hex_: str) -> Any:
    return np.array([int(hex_[i : i + 2], 16) for i in (1, 3, 5)]) / 255


def test_pixels_show_elements_in_the_colours_of_their_tiles(load: Load) -> None:
    pytest.importorskip("matplotlib")
    found = mask(load(DOCUMENTS), 64, 64)
    tiling = found.tiles((4, 4))
    shown = picture.pixels(found, tiling)
    assert shown.shape == (64, 64, 3)
    visible = by_hand(found)
    for q in range(64):
        for k in range(64):
            state, visit = tiling.states[q // 4, k // 4], tiling.visits[q // 4, k // 4]
            mixed = picture.ORANGE if visible[q, k] else picture.PALE
            plain = picture.BLUE if state == FULL else picture.GREY if visit == SKIPPED else picture.ROSE
            assert np.allclose(shown[q, k], colour(mixed if state == MIXED else plain), atol=1e-5), (q, k)


def test_pixels_of_many_elements_average_them(load: Load) -> None:
    pytest.importorskip("matplotlib")
    found = mask(load(MASKS["strided"]), 16384, 16384)
    shown = picture.pixels(found, found.tiles((128, 128)))
    assert shown.shape == (1024, 1024, 3)
    # a quarter of the pairs is visible everywhere: the picture has no stripes that the mask does not have
    wanted = colour(picture.PALE) + (colour(picture.ORANGE) - colour(picture.PALE)) / 4
    assert np.allclose(shown.mean((0, 1)), wanted, atol=0.02)
    assert shown[::16].mean((1, 2)).std() < 0.03


@pytest.mark.parametrize(("q_len", "k_len"), [(64, 64), (16384, 16384), (128, 64), (1, 4096), (5000, 100)])
def test_pictures_are_images_of_one_size_with_all_their_parts(
    load: Load, tmp_path: Path, q_len: int, k_len: int
) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.image import imread

    path = tmp_path / "mask.png"
    description = "$x$ ^ & a description of " + "many " * 40 + "words."
    drawn = explain.draw(load(UNTOLD, description=f'"{description[:300]}"'), q_len, k_len)
    drawn.png(path)
    image = imread(path)[..., :3]
    assert image.shape[:2] == (1110, 1440)
    legend = image[:, 1040:]
    for wanted in (picture.BLUE, picture.ORANGE, picture.GREY):
        assert np.isclose(legend, colour(wanted), atol=0.01).all(-1).sum() > 500
    area = image[140:985, 120:1000]
    share = {
        name: np.isclose(area, colour(c), atol=0.02).all(-1).mean()
        for name, c in vars(picture).items()
        if name in ("BLUE", "GREY", "ROSE")
    }
    if q_len == k_len:
        assert share["GREY"] > 0.2
        assert 0.02 < share["BLUE"] < 0.2
        assert share["ROSE"] > 0.2
    # nothing is drawn beyond the margins
    for edge in (image[:8], image[-8:], image[:, :8], image[:, -20:]):
        assert (edge == 1).all()


# -- mathematics -------------------------------------------------------------------------------------------------


def markup(load: Load, expression: str, inputs: str = "") -> str:
    loaded = load(f'score: [expr: "{expression}"]\n{inputs}')
    return Page(loaded, 64, 64, 8).formulas[0].markup.partition("<mo>=</mo>")[2].removesuffix("</mrow>")


@pytest.mark.parametrize(
    ("expression", "part"),
    [
        ("score / 3", "<mfrac><mrow><mi>score</mi></mrow><mrow><mn>3</mn></mrow></mfrac>"),
        ("score + k % 7", '<mi>k</mi><mtext>\u00a0mod\u00a0</mtext><mn>7</mn>'),
        ("score ** 2", "<msup><mrow><mi>score</mi></mrow><mrow><mn>2</mn></mrow></msup>"),
        ("sqrt(score)", "<msqrt><mi>score</mi></msqrt>"),
        ("exp(score)", "<msup><mi>e</mi><mrow><mi>score</mi></mrow></msup>"),
        ("log(score)", "<mi>ln</mi>"),
        ("min(score, k, 3)", "<mi>score</mi><mo>,</mo><mi>k</mi><mo>,</mo><mn>3</mn>"),
        ("score - (k - q)", "<mi>score</mi><mo>−</mo><mrow><mo stretchy=\"false\">(</mo>"),
        ("score + q_len", "<msub><mi>T</mi><mi>q</mi></msub>"),
        ("score if k <= q else 0", "<mtd><mrow><mtext>\u00a0if\u00a0</mtext><mrow><mi>k</mi><mo>≤</mo>"),
        ("score * 0.0001", "<msup><mn>10</mn><mrow><mo>−</mo><mn>"),
    ],
)  # fmt: skip
def test_expressions_are_set_as_mathematics(load: Load, expression: str, part: str) -> None:
    if "0.0001" in expression:
        expression = "score * 0.00001"
    found = markup(load, expression)
    assert part in found
    ElementTree.fromstring(f"<math>{found}</math>")


def test_brackets_stand_where_they_must(load: Load) -> None:
    def words(expression: str) -> str:
        return "".join(ElementTree.fromstring(f"<math>{markup(load, expression)}</math>").itertext())

    assert words("(score + 1) * 2") == "(score+1)·2"
    assert words("score + k * 2") == "score+k·2"
    assert words("score - (1 - k)") == "score−(1−k)"
    assert words("-(score + 1)") == "−(score+1)"
    assert words("(score / 2) ** 3") == "(score2)3"
    assert words("score + abs(k // 2)") == "score+|⌊k2⌋|"
    assert words("score if not (k < q and q < 5) else -score").startswith(
        "{score\u00a0if\u00a0¬(k<q\u00a0and\u00a0q<5)−score"
    )


def test_inputs_carry_the_places_they_are_read_at(load: Load) -> None:
    inputs = "inputs: {x: {axes: [batch, token, head]}, y: {axes: [head, key]}}\n"
    found = markup(load, "score + x[q] * y", inputs)
    assert "<msub><mi>x</mi><mrow><mi>b</mi><mo>,</mo><mi>q</mi><mo>,</mo><mi>h</mi></mrow></msub>" in found
    assert "<msub><mi>y</mi><mrow><mi>h</mi><mo>,</mo><mi>k</mi></mrow></msub>" in found


@pytest.mark.parametrize("variant", sorted(resources.variants()))
def test_the_mathematics_of_every_variant_is_well_formed(variant: str) -> None:
    path = resources.variants()[variant]
    page = Page(spec.load(path, terms=resources.terms_for(path)), 64, 64, 8)
    for equation in (*page.formulas, *page.derivatives):
        ElementTree.fromstring(f"<math>{equation.markup}</math>")


def test_long_indices_get_a_name_and_literals_are_worked_out(load: Load) -> None:
    page = Page(load("score: [relative_bias: {buckets: 32}]\n"), 64, 64, 8)

    def words(markup: str) -> str:
        return "".join(ElementTree.fromstring(f"<math>{markup}</math>").itertext())

    formula, index = (words(equation.markup) for equation in page.formulas)
    assert formula == "score′=score+rel_biash,i"
    assert index.startswith("i={16\u00a0if\u00a0k>q0\u00a0otherwise") or index.startswith("i=({16\u00a0if\u00a0k>q0")
    assert [words(e.markup) for e in page.derivatives] == ["∂score′∂score=1", "∂score′∂rel_biash,i=1"]


@pytest.mark.slow
@pytest.mark.parametrize("card", ["aside", ".equation"])
def test_a_card_that_scrolls_shows_that_it_does(load: Load, card: str) -> None:
    page = explain.page(load(MASKS["causal"]), 64, 64)
    assert re.search(
        rf"(?m)^{re.escape(card)} {{[^}}]*var\(--shade\)[^}}]*background-attachment: local, local, scroll", page
    )


def test_names_are_escaped() -> None:
    node = Node("option", (), "a<b&c", "int")
    assert mathml.mathml(node, lambda n: "") == "<mi>a&lt;b&amp;c</mi>"


# -- lines of terms ----------------------------------------------------------------------------------------------

TERMS = """mask:
  - causal
  - sliding_window: {size: 32}
  - expr: "ks > 2"
score:
  - expr: "score * temp"
  - softcap: {cap: 50.0}
  - alibi
inputs:
  ks: {axes: [batch, key], dtype: int}
  temp: {axes: [head], grad: true}
"""


@pytest.mark.slow
def test_lines_are_traced_to_their_terms(load: Load) -> None:
    loaded = load(TERMS)
    text = render.file(loaded, "kernels.py")
    rows = text.splitlines()
    found = trace.lines(loaded, text)
    assert len(found) == len(rows)
    labels = ["causal", "sliding_window", "ks > 2", "score * temp", "softcap", "alibi"]
    mine: dict[str, set[str]] = {name: set() for name in labels}
    code = rows.index("import triton")  # the formulas of terms come before this
    for row, owners in zip(rows[code:], found[code:], strict=True):
        for owner in owners:
            mine[labels[owner]].add(row.strip())
        # a line that ends with the name of a term comes from that term alone
        named = [name for name in labels if row.endswith(f"  # {name}") or row.strip() == f"# {name}"]
        if named:
            assert [labels[owner] for owner in owners] == named, row
    assert "some &= k_first <= q_last  # causal" in mine["causal"]
    assert any(row.startswith("every &= ") for row in mine["ks > 2"])
    assert any(row.startswith("in_ks_k = load_vector(") for row in mine["ks > 2"])
    assert any(row.startswith("in_temp = tl.load(") for row in mine["score * temp"])
    assert any(row.startswith("in_temp_sum += ") for row in mine["score * temp"])
    assert any(row.startswith("in_slopes_sum += ") for row in mine["alibi"])
    slopes = [row for row in mine["softcap"] if row.startswith("ds = ds * slope")]
    assert len(slopes) == 1
    assert not any(row.startswith("ds = ds * slope1") for row in mine["score * temp"] | mine["alibi"])
    assert "# softcap" in mine["softcap"]
    for name in labels:  # lines that handle a whole step belong to no term
        assert not any(row.startswith(("def ", "return", "m_new", "acc", "terms = ")) for row in mine[name])


def test_ends_of_ranges_are_traced_to_their_terms(load: Load) -> None:
    loaded = load("mask:\n  - causal\n  - sliding_window: {size: 32}\n")
    text = render.file(loaded, "kernels.py")
    mine: list[set[str]] = [set(), set()]
    for row, owners in zip(text.splitlines(), trace.lines(loaded, text), strict=True):
        for owner in owners:
            mine[owner].add(row.strip())
    assert "tl.minimum(q_last + 1, k_len)," in mine[0]
    assert "tl.maximum(q_first - 31, 0)," in mine[1]
    assert not any("tl.maximum(q_first - 31" in row for row in mine[0])


LOOKED_UP = """mask: [segments, tree, block_sparse: {block: 16}]
score:
  - relative_bias
  - bias
  - expr: "score + t[min(k // 4, 7)] * score"
inputs: {t: {axes: [8], grad: true}}
"""


@pytest.mark.slow
@pytest.mark.parametrize("variant", [*sorted(resources.variants()), "looked up"])
def test_every_term_has_lines_in_every_kernel_that_attends(load: Load, variant: str) -> None:
    if variant == "looked up":
        loaded = load(LOOKED_UP)
        text = render.file(loaded, "kernels.py")
    else:
        path = resources.variants()[variant]
        loaded = spec.load(path, terms=resources.terms_for(path))
        text = (GENERATED / variant / "kernels.py").read_text()
    found = trace.lines(loaded, text)
    starts = [i for i, row in enumerate(text.splitlines()) if row.startswith("def ")] + [len(found)]
    functions = {text.splitlines()[a].split("(")[0][4:]: range(a, b) for a, b in itertools.pairwise(starts)}
    for term in range(len(loaded.masks) + len(loaded.scores)):
        for name in ("attend", *(("accumulate_dkdv", "accumulate_dq") if loaded.algorithm.backward else ())):
            assert any(term in found[line] for line in functions[name]), (term, name)


# -- pictures without matplotlib, and pages of text ---------------------------------------------------------------


def painted(svg: str, mask: Mask) -> Any:
    """The colour of each pair, found by painting the paths of the file one after the other."""
    names = {"s": "http://www.w3.org/2000/svg"}
    found = np.full((mask.q_len, mask.k_len), "", object)
    group = ElementTree.fromstring(svg).findall("s:g", names)[0]
    for path in group.findall("s:path", names):
        piece = r"M(\d+) (\d+)h(\d+)v(\d+)h-\3z"
        assert re.fullmatch(f"({piece.replace('3', '4')})*", path.attrib["d"])
        for x, y, wide, tall in re.findall(piece, path.attrib["d"]):
            found[int(y) : int(y) + int(tall), int(x) : int(x) + int(wide)] = path.attrib["fill"]
    return found


@pytest.mark.parametrize("name", ["documents", "tree", "blocks", "odd", "everything", "nothing"])
@pytest.mark.parametrize(("q_len", "k_len"), [(64, 64), (50, 90), (1, 70)])
def test_an_svg_shows_elements_in_the_colours_of_their_tiles(load: Load, name: str, q_len: int, k_len: int) -> None:
    found = mask(load(MASKS[name]), q_len, k_len)
    tiling = found.tiles((4, 4))
    shown, visible = painted(svg.svg(found, tiling, "a title"), found), by_hand(found)
    for q, k in itertools.product(range(q_len), range(k_len)):
        state, visit = tiling.states[q // 4, k // 4], tiling.visits[q // 4, k // 4]
        mixed = picture.ORANGE if visible[q, k] else picture.PALE
        plain = picture.BLUE if state == FULL else picture.GREY if visit == SKIPPED else picture.ROSE
        assert shown[q, k] == (mixed if state == MIXED else plain), (q, k)


def test_an_svg_of_many_elements_averages_them(load: Load) -> None:
    found = mask(load(MASKS["strided"]), 4096, 4000)
    shown = painted(svg.svg(found, found.tiles((128, 128)), "a title"), found)
    shades = [np.array([int(c[i : i + 2], 16) for i in (1, 3, 5)]) for c in shown[::32, ::32].ravel()]
    wanted = colour(picture.PALE) + (colour(picture.ORANGE) - colour(picture.PALE)) / 4
    assert np.allclose(np.mean(shades, 0) / 255, wanted, atol=0.02)
    assert (shown != "").all()


def test_an_svg_tells_what_it_shows_and_holds_its_text(load: Load) -> None:
    found = mask(load(MASKS["tree"]), 32, 64)
    tiling = found.tiles((4, 4))
    words = [t.text for t in ElementTree.fromstring(svg.svg(found, tiling, "<a> & b")).iter() if t.text]
    assert "<a> & b" in words
    for wanted in ("Tiles of 4 × 4", str(tiling.count(MIXED)), "empty, yet visited", f"{100 * tiling.saved:.1f} %"):
        assert wanted in words


def test_a_tree_of_guesses_is_drawn_behind_older_keys(load: Load) -> None:
    assert explain.shape(load(MASKS["tree"])) == (16, 32)
    assert explain.shape(load("mask: [tree, sliding_window: {size: 1000}]\n")) == (16, 4096)
    assert explain.shape(load(MASKS["causal"])) == (1024, 1024)
    assert explain.shape(load("mask: [sliding_window: {size: 100000}]\n")) == (16384, 16384)


def test_blocks_are_squares_of_two_signs(load: Load, terminal: Callable[..., None]) -> None:
    drawn = explain.draw(load(MASKS["causal"]), 32, 32)
    wanted = ["██" * (i + 1) + "··" * (31 - i) for i in range(32)]
    assert rows(drawn.blocks(), 32) == wanted
    # whatever the terminal is
    terminal(encoding="ascii")
    assert rows(drawn.blocks(), 32) == wanted
    assert rows(explain.draw(load(MASKS["causal"]), 128, 128).blocks(), 32)[1] == "██▒▒" + "··" * 30


def test_markdown_shows_words_as_they_are() -> None:
    for text, wanted in {
        "a <b> & *c* [d](e) | f": r"a \<b\> \& \*c\* \[d\](e) \| f",
        "_a_ a_b `c_*d*` e`": r"\_a\_ a_b `c_*d*` e\`",
        "# a": r"\# a",
        "1. a": r"1\. a",
        "- a\nb": r"\- a b",
    }.items():
        assert markdown.words(text) == wanted
    assert markdown.code("a `b` c") == "``a `b` c``"
    assert markdown.fenced("```\na\n```\n", "text") == "````text\n```\na\n```\n````"
    assert markdown.table(("a",), [("`b | c`",)]).splitlines()[2] == r"| `b \| c` |"
    assert markdown.cited("A (2021), arXiv:2104.09864; doi:10.1038/s41586-1, B") == (
        "A (2021), [arXiv:2104.09864](https://arxiv.org/abs/2104.09864); "
        "[doi:10.1038/s41586-1](https://doi.org/10.1038/s41586-1), B"
    )


def test_whole_numbers_are_divided_by_0_as_by_1() -> None:
    """As in kernels and references."""
    for op, wanted in (("//", [-7, 0, 5]), ("%", [0, 0, 0])):
        node = Node(op, (Node("var", (), "q", "int"), Node("var", (), "k", "int")), None, "int")
        assert values.evaluate(node, {"q": np.array([-7, 0, 5]), "k": np.array([0])}).tolist() == wanted
        assert values.evaluate(node, {"q": np.array([-7, 0, 5]), "k": 0}).tolist() == wanted
