"""Gradients of tables that are summed over the batch before they are added up by entry."""

from __future__ import annotations

import functools
import importlib
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import devices  # noqa: F401  # where kernels run is settled before triton is imported
import pytest
import torch
import unformatted

from attnforge.language import spec
from attnforge.plan import plan

D = 16
WINDOWS = "q // 4 - k // 4 + 9, q % 4 - k % 4 + 3"
# scores, inputs, and other lines of a spec; all tables learn
SPECS: dict[str, tuple[str, dict[str, str], str]] = {
    "for each head": (f"score + table[{WINDOWS}]", {"table": "head, 19, 7"}, "heads: equal"),
    "for heads of groups": (f"score + table[{WINDOWS}]", {"table": "19, 7, head"}, "mask: [causal]"),
    "for key heads": (f"score - table[{WINDOWS}]", {"table": "kv_head, 19, 7"}, ""),
    "for all heads": (f"score + 2 * table[{WINDOWS}]", {"table": "19, 7"}, ""),
    "by the number of the head": ("score + table[(h + q) % 3, k % 4]", {"table": "3, 4"}, ""),
    "by the number of the key head": ("score * table[kv_h + q % 3]", {"table": "5"}, "mask: [causal]"),
    "two": ("score + rows[q // 4 - k // 4 + 9] - columns[q % 4, k % 4]", {"rows": "19, head", "columns": "4, 4"}, ""),
    "twice": ("score * table[q % 5, k % 3] + table[k % 5, q % 3]", {"table": "kv_head, 5, 3"}, "heads: equal"),
    "slopes": ("score * exp(rows[q // 8]) + columns[k % 5] * rows[k % 7]", {"rows": "7", "columns": "5"}, ""),
    "below a cap": (f"2 * tanh((score + table[{WINDOWS}]) / 2)", {"table": "head, 19, 7"}, "mask: [causal]"),
    "beside buckets": ("score + table[q // 4, k // 4] + near[min(abs(q - k), 5)]",
                       {"table": "head, 18, 18", "near": "head, 6"}, "mask: [causal]"),
    "in two spans": ("score + table[q % 6, k % 6]", {"table": "6, 6"},
                     'mask: [expr: "k <= q and (q - k < 9 or k < 3)"]'),
    "turned": (f"score + table[{WINDOWS}]", {"table": "head, 19, 7"}, "rope: {layout: half}\nsink: true"),
    "of a number": ("score + table[min(q // width, 7), k % width]", {"table": "8, 9", "width": ""}, ""),
    "of regions": (f"score + table[{WINDOWS}]", {"table": "head, 19, 7", "region": "batch % 3, token"},
                   'mask: [expr: "region[q] == region[k]"]'),
    "with values of entries": (f"score + table[{WINDOWS}] + decay[q] - decay[k] + pairs",
                               {"table": "19, 7", "decay": "batch, token, head", "pairs": "batch, query, key"}, ""),
    "where slopes are wild": ("score + table[q % 4, k % 4] / (q - k) * log(q + 0.0)", {"table": "4, 4"},
                              'mask: [expr: "k < q"]'),
}  # fmt: skip
OTHERS = {
    "width": "width: {axes: [], dtype: int, min: 1}",
    "region": "region: {axes: [batch % 3, token], dtype: int}",
    "decay": "decay: {axes: [batch, token, head], grad: true, scan: cumsum}",
}


def text(name: str, *lines: str) -> str:
    """The spec of a name in SPECS."""
    score, inputs, more = SPECS[name]
    declared = (OTHERS.get(x, f"{x}: {{axes: [{axes}], grad: true}}") for x, axes in inputs.items())
    written = ["name: tables", more, *lines, f'score: [expr: "{score}"]', "inputs:", *(f"  {x}" for x in declared)]
    return "\n".join(written)


@functools.cache
def module(name: str, folder: Path) -> ModuleType:
    """The package of such a spec."""
    package = f"tables_{list(SPECS).index(name)}"
    path = folder / f"{package}.yaml"
    path.write_text(text(name).replace("name: tables", f"name: {package}"))
    unformatted.write(path, folder / package)
    return importlib.import_module(package)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        found = tmp_path_factory.mktemp("tables")
        patch.syspath_prepend(str(found))
        yield found


def call(name: str, batch: int, q_len: int, k_len: int) -> dict[str, Any]:
    """The arguments of a call, learned ones among them."""
    torch.manual_seed(batch)
    equal = "heads: equal" in SPECS[name][2]
    sizes = {"batch": batch, "token": k_len, "query": q_len, "key": k_len, "head": 4, "kv_head": 4 if equal else 2}
    heads = sizes["head"], sizes["kv_head"], sizes["kv_head"]
    given: dict[str, Any] = {
        x: torch.randn(batch, length, count, D).requires_grad_()
        for x, length, count in zip("qkv", (q_len, k_len, k_len), heads, strict=True)
    }
    for x, axes in SPECS[name][1].items():
        shape = [sizes.get(axis) or int(axis) for axis in axes.replace("batch % 3", "3").split(", ") if axis]
        given[x] = torch.randn(shape).requires_grad_()
    if "width" in given:
        given["width"] = 5
    if "region" in given:
        given["region"] = torch.randint(0, 2, given["region"].shape, dtype=torch.int32)
    if "decay" in given:
        given["decay"] = (-given["decay"].detach().abs() / 8).requires_grad_()
    if "rope" in SPECS[name][2]:
        angles = torch.randn(k_len, D // 2)
        given |= {"cos": angles.cos(), "sin": angles.sin(), "sinks": torch.randn(4).requires_grad_()}
    return given


def gradients(function: Any, given: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The gradients of all learned arguments."""
    learned = {x: value for x, value in given.items() if torch.is_tensor(value) and value.requires_grad}
    out, lse = function(**given, return_lse=True)
    torch.manual_seed(0)
    seen = lse.masked_fill(lse == -torch.inf, 0)
    slopes = torch.randn(out.shape).to(out), torch.randn(lse.shape).to(lse)
    found = torch.autograd.grad((out, seen), list(learned.values()), slopes)
    return dict(zip(learned, found, strict=True))


def widened(given: dict[str, Any]) -> dict[str, Any]:
    """The same arguments in float64."""
    return {
        x: value.detach().double().requires_grad_(value.requires_grad)
        if torch.is_tensor(value) and value.is_floating_point()
        else value
        for x, value in given.items()
    }


def close(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, x in found.items():
        y = wanted[name]
        assert x.shape == y.shape
        torch.testing.assert_close(x.double(), y, rtol=1e-4, atol=1e-4, msg=lambda said, of=name: f"{of}: {said}")


def launched(made: ModuleType, monkeypatch: pytest.MonkeyPatch, *, apart: bool | None = None) -> list[str]:
    """The names of the kernels that calls launch from now on; `apart`: whether by a kernel of tables, not by shapes."""
    launch, names = importlib.import_module(f"{made.__name__}.launch"), list[str]()
    before = launch.runtime.launch_tuned
    monkeypatch.setattr(launch.runtime, "launch_tuned", lambda *given: (names.append(given[2]), before(*given)))
    if apart is not None:
        monkeypatch.setattr(launch, "_tables_apart", lambda q, k, entries: apart and entries is None)
    return names


@pytest.mark.slow
@pytest.mark.parametrize("name", SPECS)
def test_gradients_are_those_of_the_reference(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = module(name, folder)
    for batch, q_len, k_len in ((5, 20, 20), (2, 36, 40)):
        given = call(name, batch, q_len, k_len)
        wanted = gradients(made.reference, widened(given))
        for apart in (True, False):
            with monkeypatch.context() as patch:
                names = launched(made, patch, apart=apart)
                close(gradients(made.attention, given), wanted)
            assert ("backward_tables" in names) == apart


@pytest.mark.slow
@pytest.mark.parametrize("name", ["two", "slopes", "turned"])
def test_each_gradient_alone(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = module(name, folder)
    whole = call(name, 3, 20, 20)
    wanted = gradients(made.reference, widened(whole))
    launched(made, monkeypatch, apart=True)
    for only in wanted:
        given = {x: y.detach().requires_grad_(x == only) if x in wanted else y for x, y in whole.items()}
        close(gradients(made.attention, given), {only: wanted[only]})


@pytest.mark.slow
def test_each_program_adds_up_what_it_owns(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A share of the batch entries, a head and a tile of queries: nothing depends on the order of programs."""
    made, given, kept = module("for each head", folder), call("for each head", 7, 40, 40), []
    launch = importlib.import_module(f"{made.__name__}.launch")
    before = launch.runtime.launch

    def noted(cache: Any, kernel: Any, blocks: Any, values: Any, *more: Any, **others: Any) -> None:
        before(cache, kernel, blocks, values, *more, **others)
        if kernel is launch.kernels.backward_tables:
            kept.append(values[-1])

    monkeypatch.setattr(launch.runtime, "launch", noted)
    launched(made, monkeypatch, apart=True)
    torch.manual_seed(0)
    slope = torch.randn(7, 40, 4, D)
    torch.autograd.grad(made.attention(**given), given["table"], slope)
    (sums,) = kept
    assert sums.shape == (3, 4, 2, 19 * 7)
    gold = widened(given)
    out = made.reference(**gold)
    for share, head, tile in itertools.product(*map(range, sums.shape[:3])):
        owned = torch.zeros_like(out)
        owned[share::3, tile * 32 : tile * 32 + 32, head] = 1
        (wanted,) = torch.autograd.grad(out, gold["table"], slope * owned, retain_graph=True)
        torch.testing.assert_close(sums[share, head, tile].double(), wanted[head].flatten(), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_bits_are_the_same_from_run_to_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, given = module("twice", folder), call("twice", 5, 36, 40)
    names = launched(made, monkeypatch, apart=True)
    torch.use_deterministic_algorithms(True)
    try:
        first, second = (gradients(made.attention, given) for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(False)
    assert names.count("backward_tables") == 2
    assert all(torch.equal(x, second[name]) for name, x in first.items())


@pytest.mark.slow
def test_rows_that_a_call_leaves_out_take_part_in_no_sum(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batch entries of different lengths have different positions: their gradients are added up one by one."""
    made, given = module("for all heads", folder), call("for all heads", 3, 20, 20)
    more: dict[str, Any] = {"k_lens": torch.tensor([20, 7, 13], dtype=torch.int32), "q_start": 0}
    names = launched(made, monkeypatch)
    found = gradients(functools.partial(made.attention, **more), given)
    close(found, gradients(functools.partial(made.reference, **more), widened(given)))
    assert "backward_tables" not in names and "backward_dq" in names


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "batch", "length", "apart"),
    [
        ("for each head", 2, 64, True),  # 133 entries
        ("for each head", 1, 64, False),
        ("for each head", 2, 257, False),  # five tiles of 64 keys
        ("for all heads", 1, 64, True),  # heads share what they read, too
        ("by the number of the head", 4, 20, False),  # 12 entries
    ],
)
def test_shapes_decide(
    name: str, batch: int, length: int, apart: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = module(name, folder)
    launch, names = importlib.import_module(f"{made.__name__}.launch"), launched(made, monkeypatch)
    monkeypatch.setattr(launch.runtime, "launch", lambda *given, **more: None)
    gradients(made.attention, call(name, batch, length, length))
    assert ("backward_tables" in names) == apart


@pytest.mark.parametrize("batch", [1, 2, 3, 7, 64, 334, 4096])
@pytest.mark.parametrize("heads", [1, 3, 24, 300])
@pytest.mark.parametrize("tiles", [1, 2, 16])
def test_a_share_has_two_batch_entries_or_more(batch: int, heads: int, tiles: int, folder: Path) -> None:
    q = torch.empty(batch, 64 * tiles, heads, 0)
    for name in ("for each head", "for all heads"):
        launch = importlib.import_module(f"{module(name, folder).__name__}.launch")
        shares, entries = launch._shares(q, 64), batch * (heads if name == "for all heads" else 1)
        programs = shares * tiles * (1 if name == "for all heads" else heads)
        assert 1 <= shares <= max(entries // 2, 1) and (shares == 1 or programs <= 256)
        more = programs // shares * (shares + 1)
        assert shares + 1 > entries // 2 or more > 256, "another share would have had room"


@pytest.mark.parametrize(
    ("score", "served"),
    [
        ("score + table[q // 7 + k % 7]", 1),
        ("score + table[q // 7 + k % 7] + table[k]", 2),
        ("score + table[h + q]", 1),
        ("score + table[n * q + k]", 1),
        ("score + table[min(abs(q - k), 40)]", 0),  # by distance
        ("score + table[q // 7 + k % 7] + table[max(q - k, 0)]", 0),  # the sums of an input have the same shape
        ("score + table[q // 7 + k % 7] + of_entry[q % 5]", 1),
        ("score + table[b + k]", 0),
        ("score + table[kind[q] + k]", 0),
        ("score + table[starts + k]", 0),
    ],
)
def test_tables_that_batch_entries_read_alike(score: str, served: int, tmp_path: Path) -> None:
    inputs = (
        "table: {axes: [41], grad: true}",
        "of_entry: {axes: [batch, 5], grad: true}",
        "kind: {axes: [token], dtype: int}",
        "starts: {axes: [head], dtype: int}",
        "n: {axes: [], dtype: int}",
    )
    declared = "".join(f"  {x}\n" for x in inputs if re.search(rf"\b{x.partition(':')[0]}\b", score))
    for layout in ("dense", "packed"):
        path = tmp_path / f"{layout}.yaml"
        path.write_text(f"name: {layout}\nlayout: {layout}\nscore: [expr: '{score}']\ninputs:\n{declared}")
        tables = plan.build(spec.load(path, terms=())).kernels.tables
        assert len(tables.sums if tables else ()) == (served if layout == "dense" else 0)
