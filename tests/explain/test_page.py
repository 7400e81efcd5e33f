"""The page of `explain --html`, in a real browser: it computes the same as Python and reacts to mouse and keyboard."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import browser
import pytest

from attnforge.explain import arrays, explain, samples, trace
from attnforge.explain.arrays import EMPTY, FULL, MIXED, SKIPPED
from attnforge.expressions.evaluation import evaluate
from attnforge.expressions.functions import FUNCTIONS
from attnforge.expressions.tree import SCORE, Node
from attnforge.language import spec
from attnforge.language.spec import Spec
from attnforge.printing.javascript import javascript
from attnforge.render import render
from attnforge.source import resources

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(browser.PROGRAM is None, reason="needs chromium on the PATH: apt-get install chromium"),
]

NASTY = (
    """</script><script>document.title='hacked'</script><img src=x onerror="document.title='hacked'"> & {{ 7 * 7 }}"""
)
HAND_MADE = {
    "strided": 'mask: [expr: "(q - k) % 4 == 0"]\n',
    "squares": 'mask: [expr: "abs(q // 16 - k // 16) <= 2 and abs(q % 16 - k % 16) <= 2"]\n',
    "sinks": 'mask: [causal, expr: "q - k < 64 or k < 4"]\n',
    "packs": "layout: packed\nmask:\n  - causal\n  - sliding_window: {size: runtime}\n",
    "documents": 'mask: [causal, expr: "qs == ks"]\n'
    "inputs: {qs: {axes: [batch, query], dtype: int}, ks: {axes: [batch, key], dtype: int}}\n",
    "shared": 'mask: [causal, expr: "ks == qs or ks == 0"]\n'
    "inputs: {qs: {axes: [batch, query], dtype: int}, ks: {axes: [batch, key], dtype: int}}\n",
    "given": 'mask: [expr: "valid or k <= q - back or rate * k > q + h"]\n'
    "inputs: {valid: {axes: [key, head], dtype: bool}, back: {axes: [], dtype: int}, rate: {axes: []}}\n",
    "everything": "sink: true\ndropout: true\n",
    "guesses": "mask: [tree]\n",
    "blocks": "mask: [block_sparse: {block: 24}, causal]\n",
    "image": "mask: [local_2d: {width: 12, radius: runtime}, dilated: {stride: runtime}]\n",
    "tables": 'mask: [expr: "near[abs(q - k)] and both > 0"]\nscore: [relative_bias, bias]\n'
    "inputs: {near: {axes: [16], dtype: bool}, both: {axes: [query, key], dtype: int}}\n",
    "odd": f"description: {json.dumps(NASTY)}\n"
    + 'mask: [expr: "q<k   and k>3"]\nscore: [expr: "score if q<k else score / 3"]\n',
}


def load(path: Path) -> Spec:
    return spec.load(path, terms=resources.terms_for(path))


def variants() -> list[str]:
    """One shipped variant for each different mask."""
    masks = {samples.take(load(path)).mask: name for name, path in reversed(resources.variants().items())}
    return sorted(masks.values())


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Browser]:
    running = browser.Browser(tmp_path_factory.mktemp("profile"))
    yield running
    running.close()


@pytest.fixture(scope="module")
def specs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Spec]:
    folder = tmp_path_factory.mktemp("specs")
    loaded = {}
    for name, text in HAND_MADE.items():
        path = folder / f"{name}.yaml"
        path.write_text(f"name: {name}\n" + ("" if "description" in text else "description: A test.\n") + text)
        loaded[name] = spec.load(path, terms=[resources.specs() / "terms"])
    for name, path in resources.variants().items():
        loaded[name] = load(path)
    return loaded


@pytest.fixture
def show(chromium: browser.Browser, specs: dict[str, Spec], tmp_path: Path) -> Any:
    def show(name: str, q_len: int = 64, k_len: int = 64) -> browser.Browser:
        page = tmp_path / f"{name}.html"
        page.write_text(explain.page(specs[name], q_len, k_len), encoding="utf-8")
        chromium.send("Emulation.setEmulatedMedia", features=[])
        chromium.point(1, 1)
        chromium.open(page)
        return chromium

    return show


def change(page: browser.Browser, **values: object) -> None:
    """Types values into fields; the page gets an event for the last one only."""
    page.value(
        "(() => { let f;"
        f" for (const [name, value] of Object.entries({json.dumps(values)}))"
        " { f = document.getElementById(name); f.value = value; }"
        " f.dispatchEvent(new Event('input', {bubbles: true})); })()"
    )
    page.until("view && !view.states.includes(UNKNOWN)")


def tiling(loaded: Spec, q_len: int, k_len: int, size: tuple[int, int], **changed: float) -> arrays.Tiling:
    sample = samples.take(loaded)
    numbers = sample.numbers(q_len, k_len) | changed
    return arrays.Mask(sample.mask, sample.spans, sample.known, q_len, k_len, numbers, sample.back).tiles(size)


def shown(page: browser.Browser) -> tuple[list[int], list[int]]:
    """The states and visits that the page has computed."""
    return page.value("[[...view.states], [...view.visits]]")


def counts(page: browser.Browser) -> list[str]:
    return page.value(
        "['full', 'mixed', 'empty', 'vain'].map((name) => document.getElementById(`count_${name}`).textContent)"
    )


def text(page: browser.Browser, field: str) -> str:
    return str(page.value(f"document.getElementById('{field}').textContent"))


# -- arithmetic --------------------------------------------------------------------------------------------------

TAME = {name: function for name, function in FUNCTIONS.items() if function.finite}


def number(value: float) -> Node:
    return Node("num", (), value, "int" if isinstance(value, int) else "float")


def whole(chance: random.Random, depth: int) -> Node:
    """A random integer expression."""
    if depth == 0 or chance.random() < 0.15:
        name = chance.choice(["q", "k", "k_len", ""])
        return Node("var", (), name, "int") if name else number(chance.randint(-9, 9))
    op = chance.choice(["+", "-", "*", "//", "%", "neg", "abs", "min", "max", "where", "**"])
    if op == "**":
        return Node("**", (whole(chance, 0), number(chance.randint(0, 4))), None, "int")
    count = {"neg": 1, "abs": 1}.get(op, 2)
    args = tuple(whole(chance, depth - 1) for _ in range(count))
    return Node(op, (condition(chance, depth - 1), *args) if op == "where" else args, None, "int")


def condition(chance: random.Random, depth: int) -> Node:
    if depth <= 0 or chance.random() < 0.5:
        op = chance.choice(["<", "<=", ">", ">=", "==", "!="])
        return Node(op, (whole(chance, max(0, depth - 1)), whole(chance, max(0, depth - 1))), None, "bool")
    op = chance.choice(["and", "or", "not"])
    return Node(op, tuple(condition(chance, depth - 1) for _ in range(1 if op == "not" else 2)), None, "bool")


def real(chance: random.Random, depth: int) -> Node:
    if depth == 0:
        return chance.choice([number(chance.uniform(-4, 4)), Node("var", (), chance.choice(["q", "k"]), "int")])
    op = chance.choice(["+", "-", "*", "/", "//", "%", "neg", "where", *TAME])
    count = TAME[op].count or 2 if op in TAME else 1 if op == "neg" else 2
    args = tuple(real(chance, depth - 1) for _ in range(count))
    # as in the parser: an integer zero has no sign
    whole = op in ("+", "-", "*", "//", "%", "neg", "where") and all(arg.type == "int" for arg in args)
    return Node(op, (condition(chance, 1), *args) if op == "where" else args, None, "int" if whole else "float")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_give_in_the_browser_what_they_give_in_python(show: Any, name: str) -> None:
    values = (-math.inf, -900.0, -6.5, -3.0, -1.0, -0.4, -1e-9, 0.0, 1e-20, 0.7, 2.0, 5.9, 30.0, math.inf)
    node = Node(name, (SCORE, number(0.5))[: FUNCTIONS[name].count or 2])
    script = javascript(node, lambda n: "x")
    given = ", ".join(str(x).replace("inf", "Infinity") for x in values)
    found = show("causal").value(f"[{given}].map((x) => String({script}))")
    wanted = [evaluate(node, {"score": x}) for x in values]
    assert list(map(float, found)) == pytest.approx(wanted, rel=1e-12, abs=0, nan_ok=True), script


def test_expressions_mean_in_the_browser_what_they_mean_in_python(show: Any) -> None:
    page = show("causal")
    chance = random.Random(0)
    nodes = [whole(chance, 4) for _ in range(150)] + [condition(chance, 4) for _ in range(150)]
    nodes += [real(chance, 3) for _ in range(150)]
    # powers and products up to the largest exact integer, quotients of large numbers
    large = Node("*", (number(94906265), number(94906265)), None, "int")
    nodes += [large, *(Node(op, (large, number(d)), None, "int") for op in ("//", "%") for d in (-94906265, 7, -3))]
    places = [(q, k) for q in (-7, -1, 0, 1, 5, 12) for k in (0, 1, 3, 8)]
    leaf = {"q": "q", "k": "k", "k_len": "9"}
    texts = [javascript(node, lambda n: leaf[str(n.value)]) for node in nodes]
    functions = ", ".join(f"(q, k) => {t}" for t in texts)
    # JSON cannot express values that are not finite
    found = page.value(
        f"[{functions}].map((f) => {json.dumps(places)}.map(([q, k]) => {{ const v = f(q, k);"
        " return typeof v === 'number' ? Object.is(v, -0) ? '-0' : String(v) : v; }))"
    )
    compared = 0
    for node, script, values in zip(nodes, texts, found, strict=True):
        for (q, k), got in zip(places, values, strict=True):
            try:
                wanted = evaluate(node, {"q": q, "k": k, "k_len": 9})
            except ArithmeticError:
                continue
            compared += 1
            if isinstance(wanted, bool):
                assert got is wanted, (script, q, k)
            elif node.type == "int":
                # beyond 2**53 neither the browser nor the kernels are exact
                assert abs(wanted) >= 2**53 or int(got) == wanted, (script, q, k)
            elif math.isfinite(wanted):
                assert float(got) == pytest.approx(wanted, rel=1e-9, abs=1e-9), (script, q, k)
    assert compared > 8000


def test_whole_numbers_are_divided_by_0_as_by_1(show: Any) -> None:
    page, q = show("causal"), Node("var", (), "q", "int")
    for op, wanted in (("//", [-7, 0, 5]), ("%", [0, 0, 0])):
        node = Node(op, (q, number(0)), None, "int")
        assert page.value(f"[-7, 0, 5].map((q) => {javascript(node, lambda n: 'q')})") == wanted


# -- the mask ----------------------------------------------------------------------------------------------------

SHAPES = [(64, 64, 8, 8), (130, 70, 16, 32), (50, 200, 7, 9), (1, 300, 16, 64), (3000, 2000, 128, 64)]


@pytest.mark.parametrize("name", [*HAND_MADE, *variants()])
def test_the_page_finds_the_tiles_that_python_finds(show: Any, specs: dict[str, Spec], name: str) -> None:
    page = show(name)
    for q_len, k_len, m, n in SHAPES:
        change(page, q_len=q_len, k_len=k_len, tile_m=m, tile_n=n)
        wanted = tiling(specs[name], q_len, k_len, (m, n))
        assert text(page, "problem") == ""
        states, visits = shown(page)
        assert states == wanted.states.ravel().tolist(), (q_len, k_len)
        assert visits == wanted.visits.ravel().tolist(), (q_len, k_len)
        if wanted.back is not None:
            assert page.value("[...view.others]") == (wanted.back.ravel() != SKIPPED).astype(int).tolist()
            (_, every), *other = wanted.kernels
            assert text(page, "visited").startswith(f"{every.visited} of {every.total} tiles are visited")
            assert [f"backward_dkv visits {one.visited}:" in text(page, "visited") for _, one in other] in ([], [True])
            assert ("backward_dkv" in text(page, "visited")) == bool(other)
        empty = int(((wanted.states == EMPTY) & (wanted.visits == SKIPPED)).sum())
        page.until("document.getElementById('count_full').textContent !== '…'")
        assert counts(page) == [str(c) for c in (wanted.count(FULL), wanted.count(MIXED), empty, wanted.vain)]
        assert float(text(page, "saved").removesuffix(" %")) == pytest.approx(100 * wanted.saved, abs=0.0501)
    assert page.errors == []


def test_a_page_loads_nothing_and_runs_no_text_of_the_users(show: Any, specs: dict[str, Spec]) -> None:
    page = show("odd")
    assert [url for url in page.requests if not url.startswith("file://")] == []
    assert len(page.requests) == 1
    assert page.errors == []
    assert page.value("document.title") == "odd: the attention variant explained"
    assert page.value("document.querySelectorAll('script').length") == 1
    assert page.value("document.querySelectorAll('img').length") == 0
    assert page.value("document.querySelector('.lead').textContent") == specs["odd"].description
    labels = page.value("[...document.querySelectorAll('.chip')].map((chip) => chip.textContent)")
    assert labels == ["q<k and k>3", "score if q<k else score / 3"]
    rendered = render.file(specs["odd"], "kernels.py")
    lines = page.value("[...document.querySelectorAll('.line')].map((line) => line.textContent)")
    assert "".join(lines) == rendered


def test_the_policy_stops_what_would_slip_in(show: Any, tmp_path: Path, specs: dict[str, Spec]) -> None:
    page = show("causal")
    changed = tmp_path / "changed.html"
    good = explain.page(specs["causal"], 64, 64)
    changed.write_text(good.replace("<main>", "<script>document.title = 'hacked'</script><img src='http://x/'><main>"))
    page.open(changed)
    assert page.value("document.title") == "causal: the attention variant explained"
    assert any("Content Security Policy" in error for error in page.errors)


def test_pointing_at_a_tile_tells_its_state(show: Any, specs: dict[str, Spec]) -> None:
    page = show("prefix_lm", 64, 96)
    change(page, tile_m=16, tile_n=32)
    box = page.value("(() => { const b = canvas.getBoundingClientRect(); return [b.left, b.top]; })()")
    area = page.value("view.area")
    margin = page.value("MARGIN")

    def point(row: int, column: int) -> None:
        x = box[0] + margin["left"] + (column + 0.5) / 3 * area["width"]
        page.point(x, box[1] + margin["top"] + (row + 0.5) / 4 * area["height"])

    assert page.value("cursor.hidden") is True
    point(1, 1)
    # the first query is at position 32, the prefix has 24 keys: queries 48 to 63 see keys 32 up to their own
    visible = sum(min(q, 63) - 31 for q in range(48, 64))
    assert text(page, "readout") == (
        f"Queries 48 to 63, keys 32 to 63: mixed, {visible} of 512 pairs visible ({100 * visible / 512:.1f} %). "
        "The kernels visit it with the mask."
    )
    assert page.value("cursor.hidden") is False
    point(0, 0)
    assert text(page, "readout") == (
        "Queries 32 to 47, keys 0 to 31: full, 512 of 512 pairs visible (100.0 %). The kernels visit it without a mask."
    )
    point(0, 2)
    assert "empty, 0 of 512 pairs visible (0.0 %). The kernels skip it." in text(page, "readout")
    page.point(1, 1)
    assert page.value("cursor.hidden") is True


def test_tiles_can_be_reached_by_the_keyboard(show: Any) -> None:
    page = show("causal", 32, 32)
    change(page, tile_m=8, tile_n=8)
    page.value("canvas.focus()")
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        page.press(key)
    assert text(page, "readout").startswith("Queries 8 to 15, keys 8 to 15: mixed, 36 of 64")
    for _ in range(9):
        page.press("ArrowUp")
    assert text(page, "readout").startswith("Queries 0 to 7, keys 8 to 15: empty")
    page.press("Escape")
    assert page.value("cursor.hidden") is True


def test_changing_a_length_draws_anew(show: Any, specs: dict[str, Spec]) -> None:
    page = show("causal")
    before = page.value("canvas.toDataURL()")
    assert counts(page)[0] == str(tiling(specs["causal"], 64, 64, (4, 4)).count(FULL))
    change(page, q_len=40)
    assert page.value("canvas.toDataURL()") != before
    assert counts(page)[0] == str(tiling(specs["causal"], 40, 64, (4, 4)).count(FULL))
    for field, wrong in (("q_len", ""), ("q_len", "0"), ("k_len", "1.5"), ("tile_m", "-3"), ("k_len", "60000")):
        drawn = page.value("canvas.toDataURL()")
        good = page.value(f"document.getElementById('{field}').value")
        change(page, **{field: wrong})
        assert text(page, "problem"), wrong
        assert page.value("canvas.toDataURL()") == drawn
        change(page, **{field: good})
        assert text(page, "problem") == ""
    assert page.errors == []


def test_a_samples_numbers_follow_the_lengths_until_they_are_changed(show: Any, specs: dict[str, Spec]) -> None:
    page = show("prefix_lm")
    value = "document.getElementById('sample0').value"
    assert page.value(value) == "16"
    change(page, k_len=80)
    assert page.value(value) == "20"
    change(page, sample0=50)
    wanted = tiling(specs["prefix_lm"], 64, 80, (4, 4), prefix_len=50)
    assert shown(page)[0] == wanted.states.ravel().tolist()
    change(page, k_len=64)
    assert page.value(value) == "50"
    page.value("document.querySelector('[type=reset]').click()")
    page.until(f"{value} === '16'")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_elements_have_the_colours_of_their_tiles(show: Any, scheme: str) -> None:
    page = show("shared", 64, 64)
    page.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    change(page, tile_m=4, tile_n=4)

    def pixel(q: int, k: int) -> list[int]:
        return page.value(
            "(() => { const r = window.devicePixelRatio, { width, height } = view.area;"
            f" const x = MARGIN.left + ({k} + 0.5) / 64 * width, y = MARGIN.top + ({q} + 0.5) / 64 * height;"
            " return [...canvas.getContext('2d').getImageData(x * r, y * r, 1, 1).data].slice(0, 3); })()"
        )

    colours = {name: page.value(f"channels('{name}')") for name in ("full", "mixed", "pale", "vain", "empty")}
    assert len({tuple(c) for c in colours.values()}) == 5
    assert pixel(9, 2) == colours["full"]
    assert pixel(9, 9) == colours["mixed"]
    assert pixel(9, 11) == colours["pale"]
    assert pixel(40, 20) == colours["vain"]
    assert pixel(2, 40) == colours["empty"]


# -- terms and code ----------------------------------------------------------------------------------------------

LIT = "[...document.querySelectorAll('.line')].flatMap((line, i) => line.classList.contains('lit') ? [i] : [])"


@pytest.mark.parametrize("name", ["rope_swa_softcap", "alibi", "tables", "odd"])
def test_pointing_at_a_term_lights_its_lines(show: Any, specs: dict[str, Spec], name: str) -> None:
    page = show(name)
    kernels = render.file(specs[name], "kernels.py")
    terms = trace.lines(specs[name], kernels)
    for i in range(len(specs[name].masks) + len(specs[name].scores)):
        wanted = [at for at, owners in enumerate(terms) if i in owners]
        assert wanted
        x, y = page.value(
            f"(() => {{ const b = document.querySelector('.equation[data-term=\"{i}\"]').getBoundingClientRect();"
            " return [b.left + 8, b.top + 8]; })()"
        )
        page.point(x, y)
        assert page.value(LIT) == wanted
        page.point(1, 1)
        assert page.value(LIT) == []


def test_terms_can_be_reached_by_the_keyboard(show: Any, specs: dict[str, Spec]) -> None:
    page = show("rope_swa_softcap")
    page.press("Tab")
    assert page.value("document.activeElement.dataset.term") == "2"
    terms = trace.lines(specs["rope_swa_softcap"], render.file(specs["rope_swa_softcap"], "kernels.py"))
    wanted = [at for at, owners in enumerate(terms) if 2 in owners]
    assert page.value(LIT) == wanted
    page.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-reduced-motion", "value": "reduce"}])
    places = [at for at in wanted if at - 1 not in wanted]
    assert len(places) > 2
    for at in [*places, places[0]]:
        page.press("Enter")
        line = f"document.querySelectorAll('.line')[{at}].getBoundingClientRect()"
        assert page.value(f"(() => {{ const l = {line}; return l.top >= 0 && l.bottom <= innerHeight; }})()") is True
    page.press("Tab")
    assert page.value("document.activeElement.dataset.term") == "0"


def test_formulas_are_set_as_mathematics(show: Any) -> None:
    page = show("rope_swa_softcap")
    boxes = page.value(
        "[...document.querySelectorAll('.term math')].map((m) => { const b = m.getBoundingClientRect();"
        " return [m.namespaceURI, b.width, b.height, m.textContent]; })"
    )
    assert all(found[0] == "http://www.w3.org/1998/Math/MathML" for found in boxes)
    assert all(found[1] > 30 and found[2] > 10 for found in boxes)
    assert boxes[0][3] == "score′=50·tanh(score50)"
    sums = "[...document.querySelectorAll('math')].map((m) => m.textContent).filter((t) => /^(lse|out)/.test(t))"
    assert page.value(sums) == ["lse=ln∑visibleescore", "out=∑visibleescore−lse𝐯"]
    # the parts of a fraction are stacked
    tops = page.value(
        "[...document.querySelector('.term mfrac').children].map((part) => part.getBoundingClientRect().top)"
    )
    assert tops[0] < tops[1]


def test_sinks_and_dropout_stand_in_the_formula(show: Any, specs: dict[str, Spec]) -> None:
    page = show("everything")
    sums = "[...document.querySelectorAll('math')].map((m) => m.textContent).filter((t) => /^(lse|out)/.test(t))"
    assert page.value(sums) == ["lse=ln(esinksh+∑visibleescore)", "out=∑visibledropout(escore−lse)𝐯"]


def test_a_page_is_small_and_always_the_same(specs: dict[str, Spec]) -> None:
    made = explain.page(specs["odd"], 64, 64)
    assert made == explain.page(specs["odd"], 64, 64)
    assert len(made) < 200_000
    assert NASTY[:20] not in made
