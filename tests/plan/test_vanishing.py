"""Keys too far back to have a weight: kernels do not visit them, and no bit of any result changes."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import devices  # where kernels run is settled before triton is imported
import pytest
import torch
import unformatted
import unrewritten

from attnforge.gpu import calls
from attnforge.gpu.calls import Call, Sizes
from attnforge.language import spec
from attnforge.plan import plan
from attnforge.plan.plan import Plan
from attnforge.source import resources

DEVICE, T = ("cuda", 8300) if devices.GPU else ("cpu", 75)
PART = 128 if devices.GPU else 16
SUMS = "score: [{expr: 'score + (x[q] - x[k])'}]\ninputs: {x: {axes: [AXES], scan: cumsum, max: 0, grad: true}}"
SPECS = {
    "of each head": "mask: [causal]\nscore: [log_decay]",
    "of key heads": "mask: [causal]\n" + SUMS.replace("AXES", "batch, token, kv_head"),
    "of all heads": "mask: [causal]\n" + SUMS.replace("AXES", "token"),
    "of heads alone": "mask: [causal]\n" + SUMS.replace("AXES", "head, token"),
    "in a window": "mask: [causal, {sliding_window: {size: 70}}]\nscore: [log_decay]",
    "with rotation": "mask: [causal]\nscore: [log_decay]\nrope: {layout: half}",
    "with sinks": "mask: [causal]\nscore: [log_decay]\nsink: true\ndropout: true",
    "packed": "layout: packed\nmask: [causal]\nscore: [log_decay]",
}
SLOPES = {
    "slopes": "mask: [causal]\nscore: [alibi]",
    "slopes of key heads": "mask: [causal, {sliding_window: {size: 70}}]\n"
    "score: [{expr: 'score - (q - k) * slopes'}]\ninputs: {slopes: {axes: [kv_head, batch]}}",
    "a slope": "mask: [causal]\nscore: [{expr: 'score + slopes * (k - q)'}]\n"
    "sink: true\nrope: {layout: half}\ninputs: {slopes: {axes: []}}",
    "slopes of packed sequences": "layout: packed\nmask: [causal]\nscore: [alibi]",
}

MEASURED = {
    "measured sums": SPECS["of each head"] + "\nexports: [statistics]",
    "measured slopes": SLOPES["slopes"] + "\nexports: [statistics]",
}


def rendered(name: str, folder: Path) -> tuple[Plan, Any]:
    """The plan and the package of a spec."""
    path = folder / "vanishing.yaml"
    path.write_text(f"name: vanishing\n{(SPECS | SLOPES | MEASURED)[name]}\n")
    loaded = unformatted.write(path, folder / "vanishing")
    unrewritten.module(folder, "vanishing.launch")
    return plan.build(loaded), unrewritten.module(folder, "vanishing")


def call_of(of: Plan) -> Call:
    """A call whose scores fall by some 500 from the first token to the last, or by some 100 to 800 by head."""
    call = calls.make(of, Sizes(2, T, T, 4, 2, 16, 16, "fp32").of(of.spec), DEVICE)
    scanned = [a.name for a in of.arguments if a.scan]
    if not scanned:
        given = call.keywords["slopes"]
        if isinstance(given, torch.Tensor):
            call.keywords["slopes"] = (torch.arange(given.numel()).view_as(given).exp2() * 100 / T).to(given)
        else:
            call.keywords["slopes"] = 500 / T
        return call
    (name,) = scanned
    decays = -torch.rand(call.keywords[name].shape, generator=torch.Generator().manual_seed(0)).to(DEVICE) * 1000 / T
    call.keywords[name] = decays.requires_grad_()
    return call


def results(package: Any, call: Call) -> tuple[torch.Tensor, ...]:
    """Out, LSE and all gradients."""
    out, lse = package.attention(*call.operands, **call.keywords, return_lse=True)
    back = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out)
    wanted = [x for x in (*call.operands, *call.keywords.values()) if isinstance(x, torch.Tensor) and x.requires_grad]
    return out, lse, *torch.autograd.grad((out, lse.where(lse.isfinite(), 0)), wanted, (back, torch.ones_like(lse)))


@pytest.fixture
def deterministic() -> Any:
    torch.use_deterministic_algorithms(devices.GPU)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize(
    ("name", "padded", "opposed"),
    [
        *((name, False, False) for name in (*SPECS, *SLOPES)),
        *((name, True, False) for name in ("of each head", "slopes")),
        *((name, False, True) for name in ("of key heads", "slopes")),
    ],
)
def test_no_bit_changes(
    name: str, padded: bool, opposed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of, package = rendered(name, tmp_path)
    call = call_of(of)
    if padded:
        call.keywords["k_lens"] = torch.tensor([T - 20, T], device=DEVICE).int()
        call.keywords["q_start"] = torch.tensor([0, 9], device=DEVICE).int()  # some queries are past the last key
    if opposed:  # the scores of the first keys outweigh their decays
        call.operands[0].data.fill_(4)
        call.operands[1].data.fill_(-4)[:, :PART].fill_(4)
    left_out = results(package, call)
    monkeypatch.setattr(package.vanishing, "LONG", 4 * T)
    package.runtime.LaunchCache.known.clear()
    for x, y in zip(left_out, results(package, call), strict=True):
        assert torch.equal(x, y)
        assert not x.isnan().any()


@pytest.mark.parametrize("name", SPECS)
def test_documents_leave_out_what_has_no_weight(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of, package = rendered(name, tmp_path)
    call = call_of(of)
    shorten, seen = package.launch.shorten, list[torch.Tensor]()

    def spied(cache: Any, sums: torch.Tensor, *given: Any) -> None:
        shorten(cache, sums, *given)
        seen.append(sums.clone())

    monkeypatch.setattr(package.launch, "shorten", spied)
    package.attention(*call.operands, **call.keywords)
    (sums,) = seen
    q, k = (x.detach().double() for x in call.operands[:2])
    cuts = call.keywords["cu_seqlens_k"].tolist() if of.spec.packed else [0, T]
    hidden = pairs = 0
    for b, (begin, end) in enumerate(itertools.pairwise(cuts)):
        first = (begin // 4 + b) * 4 if of.spec.packed else 0
        parts = sums[..., first : first + end - begin]
        parts = parts[None] if of.spec.packed else parts
        queries, keys = (x[begin:end][None] if of.spec.packed else x for x in (q, k))
        keys = keys.repeat_interleave(2, 2)
        products = torch.einsum("bqhd,bkhd->bhqk", queries, keys) / 4
        total = parts[..., 0, :].double() + parts[..., 1, :].double()
        score = products + heads(total[..., :, None] - total[..., None, :])
        own = score.diagonal(0, -2, -1)[..., None]
        begins, ends = (heads(parts[..., i, :].contiguous().view(torch.int32)) for i in (2, 3))
        place = torch.arange(end - begin, device=DEVICE)
        causal = place[:, None] >= place
        early = causal & (place < begins[..., None])
        late = causal & (place[:, None] >= ends[..., None, :])
        # both sides leave out the same tokens: those of whole parts, all of which are far away
        assert torch.equal(early.expand_as(score), late.expand_as(score))
        assert ((score - own)[early.expand_as(score)] < -103.98).all()
        hidden, pairs = hidden + int(early.expand_as(score).sum()), pairs + score.shape[:2].numel() * int(causal.sum())
    assert hidden > pairs / (20 if of.spec.packed else 5)


@pytest.mark.parametrize("name", SLOPES)
def test_heads_reach_all_that_has_a_weight(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of, package = rendered(name, tmp_path)
    call = call_of(of)
    find, seen = package.launch.find_horizons, list[torch.Tensor]()
    monkeypatch.setattr(package.launch, "find_horizons", lambda *given: seen.append(find(*given)) or seen[-1])
    package.attention(*call.operands, **call.keywords)
    q, k = (x.detach().double() for x in call.operands[:2])
    slopes = torch.as_tensor(call.keywords["slopes"], device=DEVICE, dtype=torch.float64)
    slopes = slopes.T if name == "slopes of key heads" else slopes
    slopes = (slopes.repeat_interleave(4 // slopes.shape[-1], -1) if slopes.dim() else slopes).expand(2, 4)
    cuts = call.keywords["cu_seqlens_k"].tolist() if of.spec.packed else [0, T, 2 * T]
    q, k = (x.reshape(-1, *x.shape[-2:]) for x in (q, k))
    for b, (begin, end) in enumerate(itertools.pairwise(cuts)):
        norms = [x[begin:end].norm(dim=-1).amax(0) for x in (q, k.repeat_interleave(2, 1))]
        least = (104 + 2 * norms[0] * norms[1] / 4) / slopes[b]
        assert (seen[0][b] >= least.clamp(max=T)).all()
        assert (seen[0][b] <= 1.1 * least + 2).all()


@pytest.mark.parametrize("name", ["of each head", "slopes"])
def test_heads_that_reach_all_keys_need_no_norms(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of, package = rendered(name, tmp_path)
    call, norms, seen = call_of(of), package.vanishing._norms, list[torch.Tensor]()
    faint = [0, 2, 3]  # so that a key head reaches all queries that read it, too
    (falls,) = (x.detach() for x in call.keywords.values() if isinstance(x, torch.Tensor))
    falls[..., faint] *= 0.1
    monkeypatch.setattr(package.vanishing, "_norms", lambda *given: seen.append(norms(*given)) or seen[-1])
    package.attention(*call.operands, **call.keywords)
    squares = torch.cat([x.detach().double().square().sum(-1) for x in call.operands[:2]], -1).mT
    parts = torch.nn.functional.pad(squares, (0, -T % PART)).unflatten(-1, (-1, PART)).amax(-1)
    parts[:, [*faint, 4 + 1]] = 0
    torch.testing.assert_close(seen[0].double(), parts, rtol=1e-5, atol=0)


@pytest.mark.parametrize("slope", ["slopes", "16777216"])
def test_large_whole_slopes_reach_what_has_a_weight(slope: str, tmp_path: Path) -> None:
    """The first keys outweigh a fall by more than an int32 holds."""
    path, count = tmp_path / "steep.yaml", 8192 if devices.GPU else 128
    text = f"mask: [causal]\nscore: [{{expr: 'score - {slope} * (q - k)'}}]\n"
    text += "inputs: {slopes: {axes: [head], dtype: int}}\n" if slope == "slopes" else ""
    path.write_text(f"name: steep\n{text}")
    unformatted.write(path, tmp_path / "steep")
    package = unrewritten.module(tmp_path, "steep")
    q, k = (torch.full((1, count, 1, 16), x, device=DEVICE) for x in (2.0**15, -(2.0**15)))
    k[:, :PART] *= -1
    v = torch.arange(count, device=DEVICE).float()[None, :, None, None].expand(-1, -1, -1, 16).contiguous()
    given = {"slopes": torch.tensor([2**24], device=DEVICE).int()} if slope == "slopes" else {}
    torch.testing.assert_close(package.attention(q, k, v, **given), package.reference(q, k, v, **given))


def heads(x: torch.Tensor) -> torch.Tensor:
    """Values of one head, or of each key head, as those of four query heads."""
    return x.repeat_interleave(4 // x.shape[1], 1)


@pytest.mark.parametrize("name", ["measured sums", "measured slopes"])
def test_statistics_do_not_change(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of, package = rendered(name, tmp_path)
    call = call_of(of)
    found = package.attention(*call.operands, **call.keywords, return_max_logit=True, return_key_sums=True)
    monkeypatch.setattr(package.vanishing, "LONG", 4 * T)
    package.runtime.LaunchCache.known.clear()
    wanted = package.attention(*call.operands, **call.keywords, return_max_logit=True, return_key_sums=True)
    assert all(map(torch.equal, found, wanted))


@pytest.mark.parametrize("name", ["of each head", "packed", "slopes", "slopes of packed sequences"])
def test_keys_without_weight_are_not_read(name: str, tmp_path: Path) -> None:
    of, package = rendered(name, tmp_path)
    call = call_of(of)
    if of.spec.packed:
        call.keywords.update(dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k"), torch.tensor([0, T], device=DEVICE).int()))
        call.keywords.update(dict.fromkeys(("max_seqlen_q", "max_seqlen_k"), T))
    q, k, v = call.operands
    rows = slice(0, PART) if of.spec.packed else (slice(None), slice(0, PART))
    spoilt = v.detach().clone()
    spoilt[rows] = torch.nan
    out = package.attention(q, k, spoilt, **call.keywords)
    last = (out[T - 1] if of.spec.packed else out[:, -1])[..., -1, :]
    assert last.isfinite().all() and out.isnan().any()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (SPECS["of each head"], True),
        ("score: [log_decay]", False),
        ("mask: [causal]\nscore: [log_decay, bias]", False),
        ("mask: [causal, segments]\nscore: [log_decay]", False),
        ("mask: [causal]\nscore: [log_decay, {softcap: {cap: 20}}]", False),
        ("mask: [causal]\n" + SUMS.replace("AXES", "token").replace(", max: 0", ""), False),
        ("mask: [causal]\nscore: [{expr: score + 1}, log_decay]", True),
        ("mask: [causal]\nscore: [{expr: score + 1000 if score > 0 else score}, log_decay]", False),
        ("mask: [causal]\nscore: [{expr: score + 1000 * floor(score)}, log_decay]", False),
        ("mask: [causal]\n" + SUMS.replace("AXES", "token").replace("x[q] - x[k]", "2 - (x[k] - x[q])"), True),
        ("mask: [causal]\n" + SUMS.replace("AXES", "token").replace("x[q] - x[k]", "x[q] - x[k] - floor(x[q])"), False),
        *((text, True) for text in SLOPES.values()),
        ("score: [alibi]", False),
        ("mask: [prefix_lm]\nscore: [alibi]", False),
        ("mask: [causal]\nscore: [alibi, bias]", False),
        ("mask: [causal]\nscore: [alibi, alibi]", False),
        ("mask: [causal]\nscore: [alibi, log_decay]", False),
        ("mask: [causal]\nscore: [{softcap: {cap: 20}}, alibi]", False),
        ("mask: [causal]\nscore: [alibi, {expr: score + score}]", False),
        ("mask: [causal]\nscore: [{expr: score + score - 0.5 * (q - k)}]", False),
        ("mask: [causal]\nscore: [{expr: score - (0.5 * (q - k) - score)}]", False),
        ("mask: [causal]\nscore: [{expr: score + score}, log_decay]", False),
    ],
)
def test_which_weights_vanish(text: str, found: bool, tmp_path: Path) -> None:
    path = tmp_path / "vanishing.yaml"
    path.write_text(f"name: vanishing\n{text}\n")
    loaded = spec.load(path, terms=resources.terms_for(path))
    assert bool(plan.build(loaded).kernels.vanishing) == found
