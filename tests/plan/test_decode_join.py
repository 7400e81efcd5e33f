"""The parts of splits, joined: bits of a row are no matter of how many splits a call makes room for."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from caches import Sequences, Values, expected, package

pytestmark = pytest.mark.slow

SPLIT = 64  # keys, under the interpreter
SPECS = {
    "plain": ("mask: [causal]", {}),
    "sinking": ("mask: [causal]\nsink: true", {"sinks": torch.tensor([0.5, 3.0])}),
    "window": ("mask: [causal, sliding_window: {size: 900}]", {}),
    "first_keys": ("mask: [causal, any: [sliding_window: {size: 300}, expr: 'k < 200']]", {}),
}
# splits in one chunk, two, three, five, nine and 33; the last pass what is joined at a time, and by one program
LENGTHS = [5, 8 * SPLIT, 9 * SPLIT, 17 * SPLIT + 3, 33 * SPLIT, 66 * SPLIT - 1, 258 * SPLIT]


@pytest.fixture(scope="module", params=SPECS)
def variant(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[ModuleType, Values]:
    """A package, and its keywords."""
    text, given = SPECS[request.param]
    return package(tmp_path_factory.mktemp("decode_join"), f"join_{request.param}", text), given


def test_bits_are_those_of_any_room(variant: tuple[ModuleType, Values]) -> None:
    module, given = variant
    s = Sequences(LENGTHS, [1] * len(LENGTHS), heads=2, kv_heads=1, v_width=64)
    k, v = (torch.zeros(len(LENGTHS), max(LENGTHS), 1, width) for width in (16, 64))
    for b, n in enumerate(LENGTHS):
        k[b, :n], v[b, :n] = s.k[b], s.v[b]
    q, attend = torch.cat(s.q), module.decode.attend_with_cache
    out, lse = attend(q, k, v, s.seq_lens, return_lse=True, **given)
    wanted, wanted_lse = expected(module, s, lambda b: given)
    for b, n in enumerate(LENGTHS):
        torch.testing.assert_close(out[b], wanted[b][0], rtol=1e-4, atol=2e-5)
        torch.testing.assert_close(lse[:, b], wanted_lse[b][:, 0], rtol=1e-4, atol=2e-5)
        for room in {n, min(2 * n, max(LENGTHS))}:
            one = q[b : b + 1], k[b : b + 1], v[b : b + 1], s.seq_lens[b : b + 1]
            found = attend(*one, return_lse=True, max_seqlen_k=room, **given)
            assert torch.equal(found[0][0], out[b]), (n, room)
            assert torch.equal(found[1][:, 0], lse[:, b]), (n, room)
