"""Which large values of inputs that are summed over tokens begin a document, and which do not."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import devices  # where kernels run is settled before triton is imported
import pytest
import torch
from random_specs import RandomSpec, suite, write

from attnforge.language import spec
from attnforge.plan import plan, running_sums
from attnforge.plan.statements import lines
from attnforge.source import resources

DEVICE = "cuda" if devices.GPU else "cpu"
DECAY = "[{expr: 'score + (x[q] - x[k])'}]\ninputs: {x: {axes: [token], scan: cumsum"
RESETS = {
    "causal": ("mask: [causal]\nscore: [log_decay]", -4096.0),
    "in_chunks": ("mask: [chunked: {size: 64}]\nscore: [log_decay]", -4096.0),
    # the keys after it weigh more for the queries before it, not less
    "both_ways": ("score: [log_decay]", -math.inf),
    "behind_or_near": ("mask: [any: [causal, {expr: 'k < 8'}]]\nscore: [log_decay]", -math.inf),
    # a query may see only keys on the other side of it
    "without_itself": ("mask: [expr: 'k < q']\nscore: [log_decay]", -math.inf),
    "under_a_cap": ("mask: [causal]\nscore:\n  - log_decay\n  - softcap: {cap: 4.0}", -math.inf),
    "of_the_spec": (f"mask: [causal]\nscore: {DECAY}, max: 0}}}}", -4096.0),
    # an earlier value or another term may compensate for it
    "of_any_sign": (f"mask: [causal]\nscore: {DECAY}}}}}", -math.inf),
    "of_any_score": (f"mask: [causal]\nscore: [{{expr: 'score * 1e5'}}, {DECAY[1:]}, max: 0}}}}", -math.inf),
    "beside_a_bias": ("mask: [causal]\nscore: [log_decay, bias]", -math.inf),
    "behind_slopes": ("mask: [causal]\nscore: [alibi, log_decay]", -math.inf),
    "beside_positions": ("mask: [causal]\nscore: [log_decay, {expr: 'score + k * 2.0'}]", -math.inf),
    "behind_a_jump": ("mask: [causal]\nscore: [{expr: score + 1e4 if score > 0 else score}, log_decay]", -math.inf),
    "with_jumps": (f"mask: [causal]\nscore: {DECAY.replace(')', ') - floor(x[q])')}, max: 0}}}}", -math.inf),
    "twice": ("mask: [causal]\nscore: [log_decay, log_decay]", -math.inf),
}


@pytest.mark.parametrize("name", RESETS)
def test_what_begins_a_document(name: str, tmp_path: Path) -> None:
    text, expected = RESETS[name]
    path = tmp_path / f"{name}.yaml"
    path.write_text(f"name: {name}\n{text}\n")
    own = spec.load(path, terms=resources.terms_for(path))
    (summed,) = (given for given in own.inputs if given.scan)
    assert running_sums.largest_reset(own, summed) == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", ["both_ways", "behind_a_jump"])
def test_a_large_value_does_not_hide_what_has_a_weight(name: str, tmp_path: Path) -> None:
    write(RandomSpec(name, f"name: {name}\n{RESETS[name][0]}\n"), tmp_path)
    module = suite(tmp_path, name)
    inputs = module.make_inputs(module.SMALL)
    inputs["log_decay"][:, 20] = -5000.0
    got, expected = (
        module.VARIANT.run(inputs, function=f)["out"] for f in (module.checks.attention, module.checks.reference)
    )
    torch.testing.assert_close(got, expected, rtol=1e-2, atol=1e-2)


def test_sums_of_bfloat16_learn(tmp_path: Path) -> None:
    """Also in the interpreter, beside q, k and v in float32."""
    write(RandomSpec("short", "name: short\nmask: [causal]\nscore: [log_decay]\n"), tmp_path)
    module = suite(tmp_path, "short")
    inputs = module.make_inputs(module.SMALL)
    decay = inputs["log_decay"].bfloat16().index_fill(1, torch.tensor([9], device=DEVICE), -math.inf)
    found = []
    for attend in (module.checks.attention, module.checks.reference):
        out = attend(**inputs | {"log_decay": decay.requires_grad_()})
        found.append(torch.autograd.grad(out.square().sum(), decay)[0])
    torch.testing.assert_close(*found, rtol=2e-2, atol=2e-2)


def test_masks_read_whole_sums(tmp_path: Path) -> None:
    """Kernels measure sums from the first token of a tile, which only differences may be compared with."""
    text = "mask: [causal, {expr: 'x[k] > -2 or x[k] < x[q] + 0.5 or x[q] < -3'}]\nscore: " + DECAY + "}}"
    write(RandomSpec("limited", f"name: limited\n{text}\n"), tmp_path)
    checks = suite(tmp_path, "limited").checks
    make = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 100, 2, 16, generator=make).to(DEVICE).requires_grad_() for _ in range(3))
    falls = -0.08 * torch.rand(100, generator=make).to(DEVICE)
    found = []
    for attend in (checks.attention, checks.reference):
        out, lse = attend(q, k, v, x=falls, return_lse=True)
        found.append((out, lse, *torch.autograd.grad(out.square().sum(), (q, k, v))))
    for got, expected in zip(*found, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4)


def test_gradients_by_pairs_see_documents_without_a_mask(tmp_path: Path) -> None:
    path = tmp_path / "both.yaml"
    path.write_text("name: both\nscore: [log_decay, bias]\n")
    found = plan.build(spec.load(path, terms=resources.terms_for(path)))
    (pair,) = found.kernels.pairs
    assert any("a document of log_decay" in line for block in pair.kernel.blocks.values() for line in lines(block))


def test_documents_are_bounds_of_distances_where_registers_are_kept_apart(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\nmask: [causal]\nscore: [log_decay]\n")
    found = plan.build(spec.load(path, terms=resources.terms_for(path)))
    for terms, held, own in (
        (
            found.by_query,
            "in_log_decay_at_begin_q[:, None] <= k_pos[None, :]",
            "q_pos[:, None] - in_log_decay_at_begin_q",
        ),
        (found.by_key, "q_pos[None, :] < in_log_decay_at_end_k[:, None]", "in_log_decay_at_end_k[:, None] - k_pos"),
    ):
        plain, apart = (lines(terms.visible(apart=kept)) for kept in (False, True))
        assert f"keep &= {held}" in plain[-1] and not any("distance" in line for line in plain)
        assert apart[0].startswith("distance = apart(") and apart[-1].startswith("keep &= distance <")
        assert f"tl.maximum({own}" in apart[-1]


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["dense", "packed"])
def test_errors_of_rows_do_not_add_up_over_all_that_come_later(layout: str, tmp_path: Path) -> None:
    """Without a gradient of the LSE, a row's sum is 0 up to rounding of out, which running sums must not add up."""
    text = "mask: [causal, {sliding_window: {size: 2}}]\nscore: [log_decay]\n"
    name = f"decaying_{layout}"
    write(RandomSpec(name, f"name: {name}\nlayout: {layout}\n{text}"), tmp_path)
    checks = suite(tmp_path, name).checks
    lead, more = ((130,), {"cu_seqlens": torch.tensor([0, 130], dtype=torch.int32), "max_seqlen": 130})
    lead, more = (lead, more) if layout == "packed" else ((1, *lead), {})
    make = torch.Generator(device=DEVICE).manual_seed(0)
    q, k, v, dout = (torch.randn(*lead, 2, 72, generator=make, device=DEVICE) for _ in range(4))
    decay = torch.nn.functional.logsigmoid(torch.randn(*lead, 2, generator=make, device=DEVICE) + 3)
    more = {name: x.to(DEVICE) if torch.is_tensor(x) else x for name, x in more.items()}

    def gradient(attend: Callable[..., torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
        learned = decay.to(torch.promote_types(dtype, torch.float32)).requires_grad_()
        given = [x.half().to(dtype).requires_grad_() for x in (q, k, v)]
        out = attend(*given, log_decay=learned, **more)
        return torch.autograd.grad(out, learned, dout.half().to(dtype))[0]

    exact = gradient(checks.reference, torch.float64)
    error = (gradient(checks.attention, torch.float16) - exact).norm() / exact.norm()
    assert error < 2e-3, error
