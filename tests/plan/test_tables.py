"""Gradients of tables that are summed over the batch before they are added up by entry."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import devices  # noqa: F401  # where kernels run is settled before triton is imported
import pytest
import torch
import unformatted

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
