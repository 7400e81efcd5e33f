"""The spec and the call at the beginning of the README."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import devices
import pytest
import torch
import unformatted
import unrewritten

pytestmark = pytest.mark.slow

README = Path(__file__).resolve().parents[1] / "README.md"


def test_the_first_call_runs(tmp_path: Path) -> None:
    text = README.read_text(encoding="utf-8")
    spec = re.findall(r"^```yaml\n# specs/capped.yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[0]
    call = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[0]
    path = tmp_path / "capped.yaml"
    path.write_text(spec)
    unformatted.write(path, tmp_path / "capped")
    reference = unrewritten.module(tmp_path, "capped").reference
    torch.manual_seed(0)
    with devices.default():
        q, k, v = (torch.randn(2, 9, heads, 16, requires_grad=True) for heads in (4, 2, 2))
        temp = torch.randn(4, requires_grad=True)
    names: dict[str, Any] = {"torch": torch, "q": q, "k": k, "v": v, "temp": temp, "Tk": 9, "D": 16}
    exec(compile(call.replace("from generated.", "from "), str(README), "exec"), names)

    # pair i turns by the position times 10000 ** (-2 i / D)
    turned = torch.polar(torch.ones(8), 3.0 * 10000.0 ** (-2.0 * torch.arange(8) / 16)).to(q.device)
    torch.testing.assert_close(torch.complex(names["cos"][3], names["sin"][3]), turned)
    wanted = reference(q, k, v, cos=names["cos"], sin=names["sin"], temp=temp)
    torch.testing.assert_close(names["out"], wanted, rtol=1e-3, atol=1e-3)
    assert all(x.grad is not None and x.grad.any() for x in (q, k, v, temp))
