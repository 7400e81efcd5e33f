"""Tables with entries for each row: one load and one sum for a row, in tiles whose scores all read the same entry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import devices
import pytest
import row_tables
import torch
import unformatted
import unrewritten
from test_tables import widened

from attnforge.gpu import calls
from attnforge.gpu.calls import Sizes
from attnforge.plan import plan
from attnforge.plan.plan import Plan

DEVICE = "cuda" if devices.GPU else "cpu"


def rendered(name: str, folder: Path) -> tuple[Plan, Any]:
    """The plan and the package of a spec."""
    path = folder / "tables_of_rows.yaml"
    path.write_text(row_tables.text(name))
    loaded = unformatted.write(path, folder / "tables_of_rows")
    return plan.build(loaded), unrewritten.module(folder, "tables_of_rows")


@pytest.mark.parametrize("name", row_tables.SPECS)
def test_results_and_gradients_are_those_of_the_reference(name: str, tmp_path: Path) -> None:
    of, package = rendered(name, tmp_path)
    call = calls.make(of, Sizes(2, 70, 100, 2, 1, 16, 16, "fp32").of(of.spec), DEVICE)
    if name == "of documents":
        document = (torch.arange(100, device=DEVICE).expand(2, 100) // 37).int()
        call.keywords.update(q_segments=document[:, 30:], k_segments=document)
    out, lse = package.attention(*call.operands, **call.keywords, return_lse=True)
    exact = widened(dict(zip("qkv", call.operands, strict=True)) | call.keywords)
    truth = package.reference(**exact, return_lse=True)
    torch.manual_seed(0)
    back = torch.randn(out.shape).to(out), torch.randn(lse.shape).to(lse)
    seen = [truth[1].isfinite(), lse.isfinite()]
    found = torch.autograd.grad((out, lse.where(seen[1], 0)), call.wanted, back)
    wanted = [exact[x] for x in ("q", "k", "v", *call.learned)]
    known = torch.autograd.grad((truth[0], truth[1].where(seen[0], 0)), wanted, [x.double() for x in back])
    for x, y in zip((out, *found), (truth[0], *known), strict=True):
        torch.testing.assert_close(x.double(), y, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", ["of earlier keys", "of documents", "of a window"])
def test_entries_that_no_visible_key_reads_have_no_effect(name: str, tmp_path: Path) -> None:
    of, package = rendered(name, tmp_path)
    call = calls.make(of, Sizes(1, 100, 100, 2, 1, 16, 16, "fp32").of(of.spec), DEVICE)
    length = {"of earlier keys": 100, "of a window": 60, "of documents": 7}[name]
    distance = torch.arange(100, device=DEVICE)
    if name == "of documents":
        call.keywords.update(dict.fromkeys(("q_segments", "k_segments"), (distance // length)[None].int()))
    first = distance % length if name == "of documents" else distance.clamp(max=length - 1)
    table = call.keywords["near"].detach()
    unread = torch.arange(table.shape[-1], device=DEVICE) > first[:, None]  # a query sees keys up to so far back
    clean = package.attention(*call.operands, **call.keywords | {"near": table.masked_fill(unread, 0)})
    spoilt = table.masked_fill(unread, torch.nan).requires_grad_()
    out = package.attention(*call.operands, **call.keywords | {"near": spoilt})
    torch.testing.assert_close(out, clean, rtol=0, atol=0)
    gradients = torch.autograd.grad(out.sum(), (*call.operands, spoilt))
    assert all(x.isfinite().all() for x in gradients)
    assert not gradients[-1][unread.expand_as(table)].any()
