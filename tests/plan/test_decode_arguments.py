"""What decoding refuses, each by the name of the argument, and what wrong numbers on a GPU come to."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from caches import package

pytestmark = pytest.mark.slow

TEXTS = {
    "plain_checked": "mask: [causal]",
    "window_checked": "mask: [causal, sliding_window: {size: runtime}]",
    "chunks_checked": "mask: [causal, any: [expr: 'q // 20 == k // 20', expr: 'k < 4']]",
    "rows_checked": "mask: [causal, expr: 'q - k < far']\ninputs: {far: {axes: [head], dtype: int}}",
    "summed_checked": "mask: [causal]",
}


@pytest.fixture(scope="module")
def variant(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], ModuleType]:
    """Renders a variant when it is first asked for."""
    folder, made = tmp_path_factory.mktemp("decode_arguments"), dict[str, ModuleType]()

    def find(name: str) -> ModuleType:
        if name not in made:
            exports = "decode, statistics" if name == "summed_checked" else "decode"
            made[name] = package(folder, name, TEXTS[name], exports=exports)
        return made[name]

    return find


@pytest.mark.parametrize("form", ["one", "places"])
def test_append_rounds_to_the_nearest_float8(variant: Callable[[str], ModuleType], form: str) -> None:
    """As torch does, ties to even; a mantissa that is rounded up to the next power of 2 carries."""
    every = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    between = (every[1:] + every[:-1]) / 2
    exact = torch.cat([every, between, between * (1 - 2**-20), between * (1 + 2**-20), torch.tensor([7.7949, 500.0])])
    numbers = torch.cat([exact, -exact, torch.randn(2000), 2.0 ** -torch.arange(1, 30)])
    rows = torch.nn.functional.pad(numbers, (0, -len(numbers) % 32)).view(-1, 2, 16)
    k, v = (torch.zeros(1, len(rows), 2, 16).to(torch.float8_e4m3fn) for _ in "kv")
    scales = [torch.ones(() if form == "one" else (1, len(rows), 2)) for _ in "kv"]
    given = {"k_scale": scales[0], "v_scale": scales[1]}
    variant("plain_checked").decode.append(rows, rows, k, v, torch.arange(len(rows)), **given)
    over = scales[0][0][..., None] if form == "places" else scales[0]
    wanted = (rows / over).clamp(-448, 448).to(torch.float8_e4m3fn)
    for cache in (k, v):
        assert torch.equal(cache[0].float(), wanted.float())
