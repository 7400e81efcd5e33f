"""Modules for FlexAttention: the same results as the printed reference, or a reason why there is none."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from attnforge import cli, format, names, oracle, plan, render, resources, spec

Function = Callable[..., Any]
SHIPPED = resources.variants()


@dataclass(frozen=True)
class Variant:
    """A variant as both modules compute it."""

    planned: plan.Plan
    texts: oracle.Oracle
    attention: Function
    mods: Function | None
    reference: Function


def variant(path: Path, folder: Path) -> Variant:
    loaded = spec.load(path, terms=resources.terms_for(path))
    planned = plan.build(loaded)
    exported = module(render.export(loaded, "flex"), folder / f"{loaded.name}_flex.py")
    reference = module(render.render(loaded)["reference.py"], folder / f"{loaded.name}_reference.py")["reference"]
    texts = oracle.build(loaded, planned.arguments)
    return Variant(planned, texts, exported["attention"], exported.get("mods"), reference)


def module(text: str, path: Path) -> Mapping[str, Any]:
    path.write_text(text)
    found = importlib.util.spec_from_file_location(path.stem, path)
    assert found is not None and found.loader is not None
    made = importlib.util.module_from_spec(found)
    sys.modules[path.stem] = made  # flex_attention looks there for what its functions name
    found.loader.exec_module(made)
    return vars(made)


@dataclass(frozen=True)
class Case:
    """Sizes of a call: the lengths of one sequence of a batch, or of each packed one."""

    q_lens: tuple[int, ...]
    k_lens: tuple[int, ...]
    heads: tuple[int, int]
    dtype: torch.dtype = torch.float64


def arguments(of: Variant, case: Case, *, whole: bool = True) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """q, k, v and keywords; where `whole` is not asked for, axes that may be of size 1 are."""
    torch.manual_seed(sum(case.q_lens) * 100 + sum(case.k_lens))
    (Hq, Hkv), D, Dv, B = case.heads, 8, 6, 2
    if not of.planned.spec.grouped:
        Hkv = Hq
    Tq, Tk, Nq, Nk, S = case.q_lens[0], case.k_lens[0], sum(case.q_lens), sum(case.k_lens), len(case.q_lens)
    sizes = {"B": B, "Tq": Tq, "Tk": Tk, "Nq": Nq, "Nk": Nk, "S": S, "Hq": Hq, "Hkv": Hkv}
    keywords: dict[str, Any] = {}
    if of.planned.spec.packed:
        shapes: list[tuple[int, ...]] = [(Nq, Hq, D), (Nk, Hkv, D), (Nk, Hkv, Dv)]
        for side, lens in (("q", case.q_lens), ("k", case.k_lens)):
            keywords[f"cu_seqlens_{side}"] = torch.tensor((0, *itertools.accumulate(lens)), dtype=torch.int32)
            keywords[f"max_seqlen_{side}"] = max(lens)
    else:
        shapes = [(B, Tq, Hq, D), (B, Tk, Hkv, D), (B, Tk, Hkv, Dv)]
    for a in of.planned.arguments:
        if a.name in ("cos", "sin"):
            assert of.planned.spec.rope is not None
            dims = of.planned.spec.rope.dims or D
            angles = torch.linspace(0, 6, (max(case.k_lens) + 2) * dims // 2, dtype=case.dtype).view(-1, dims // 2)
            keywords[a.name] = getattr(angles, a.name)()
        elif a.kind == "scalar":
            keywords[a.name] = 5 if a.dtype == "int" else 0.75
        elif not a.optional:
            shape = eval(of.texts.shapes[a.name], dict(sizes))
            full = eval(of.texts.full_axes.get(a.name, "()"))
            keywords[a.name] = tensor(a, shape if whole else tuple(n if i in full else 1 for i, n in enumerate(shape)))
    return [torch.randn(shape, dtype=case.dtype) for shape in shapes], {
        name: x.to(case.dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x
        for name, x in keywords.items()
    }


def tensor(a: plan.Argument, shape: tuple[int, ...]) -> torch.Tensor:
    if a.dtype == "bool":
        return torch.rand(shape) < 0.6
    if a.dtype == "int":
        return torch.randint(-2, 9, shape, dtype=torch.int32)
    x = torch.rand(shape, dtype=torch.float64)
    return -x if a.scan else x + 0.25


DENSE = [
    Case((12,), (12,), (4, 2)),
    Case((5,), (14,), (3, 1)),
    Case((9,), (4,), (4, 4)),
    Case((1,), (1,), (2, 2), torch.float32),
]
PACKED = [
    Case((3, 0, 5, 1), (3, 0, 5, 1), (4, 2)),
    Case((3, 2, 1), (4, 2, 7), (3, 1), torch.float32),
]


def cases(of: Variant) -> list[Case]:
    if of.planned.spec.packed:
        return PACKED
    one_key_each = of.texts.token_axes or of.planned.spec.rope
    return [case for case in DENSE if not one_key_each or case.q_lens <= case.k_lens]


def hold(of: Variant, case: Case, *, whole: bool = True) -> None:
    """Holds out and LSE of the exported module against the reference."""
    operands, keywords = arguments(of, case, whole=whole)
    got = of.attention(*operands, **keywords, return_lse=True)
    want = of.reference(*operands, **keywords, return_lse=True)
    close = {} if case.dtype == torch.float32 else {"rtol": 1e-9, "atol": 1e-10}
    torch.testing.assert_close(got, want, **close)
    torch.testing.assert_close(of.attention(*operands, **keywords), got[0], rtol=0, atol=0)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_variants_are_their_reference(name: str, tmp_path: Path) -> None:
    of = variant(SHIPPED[name], tmp_path)
    for case in cases(of):
        hold(of, case)
