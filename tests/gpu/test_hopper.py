"""Kernels for Hopper GPUs: results agree with the portable ones in any order of tiles, and failures are handled."""

from __future__ import annotations

import importlib
import itertools
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import padding
import pytest
import row_tables
import torch

import attnforge
from attnforge.gpu import calls, targets
from attnforge.gpu.calls import Sizes
from attnforge.language import spec as language
from attnforge.plan import plan
from attnforge.source import resources

sys.path.insert(0, str(Path(__file__).parents[2]))
hopper = torch.cuda.is_available() and torch.cuda.get_device_capability(0) == (9, 0)
pytestmark = pytest.mark.skipif(not hopper, reason="needs a Hopper GPU")


class Package:
    """A shipped package whose calls each choose a target."""

    def __init__(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.module = importlib.import_module(f"generated.{name}")
        self.runtime = importlib.import_module(f"generated.{name}.runtime")
        self.monkeypatch = monkeypatch

    def call(self, target: str, *args: Any, **more: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Out and LSE."""
        self.monkeypatch.setenv("ATTNFORGE_TARGET", target)
        self.runtime.LaunchCache.known.clear()
        out, lse = self.module.attention(*args, **more, return_lse=True)
        return out, lse

    def gradients(self, target: str, *args: torch.Tensor, **more: Any) -> tuple[torch.Tensor, ...]:
        """The gradients of q, k and v from those of out and LSE, which are the same for all targets and dtypes."""
        learned = [x.detach().requires_grad_() for x in args]
        out, lse = self.call(target, *learned, **more)
        make = torch.Generator("cuda").manual_seed(1)
        dout, dlse = (torch.randn(x.shape, generator=make, device="cuda").half().to(x.dtype) for x in (out, lse))
        return torch.autograd.grad((out, lse), learned, (dout, dlse))

    def kernels(self, name: str = "forward") -> list[str]:
        """The modules of the kernels that ran in a pass."""
        known = self.runtime.LaunchCache.known.values()
        chosen = [cache.hopper_tiles.get(name, cache.tiles.get(name)) for cache in known]
        return ["kernels" if len(x) <= 4 else x[4].__name__.rpartition(".")[2] for x in chosen if x is not None]


def random(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype)


def uniform(heads: int) -> torch.Tensor:
    return torch.rand(heads, device="cuda")


# odd numbers of tiles, heads that no group divides, fewer and more items than multiprocessors, pairs and single tiles
SHAPES = [
    (1, 5, 1, 300, 300),
    (3, 7, 7, 65, 700),
    (2, 12, 3, 640, 640),
    (40, 8, 2, 1111, 1111),
    (9, 61, 61, 385, 385),
    (40, 24, 12, 640, 640),
    (1, 2, 1, 9000, 9000),
]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [32, 64, 80, 128, 192, 256])
@pytest.mark.parametrize(("rows", "keys"), [(300, 300), (65, 700), (1111, 1111)])
def test_dropout_keeps_the_weights_that_portable_kernels_keep(
    rows: int, keys: int, size: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = Package("gpt2_dropout", monkeypatch)
    q, k, v = (random(2, count, 3, size, dtype=dtype) for count in (rows, keys, keys))
    more = {"dropout_p": 0.2, "seed": 2**40 + 7}
    for first in range(0, keys, size):
        # out is a row's weight of the key whose value is 1 in that column
        v[:] = 0
        v[:, first : first + size] = torch.eye(size, device="cuda", dtype=dtype)[: keys - first, None]
        found, known = (package.call(target, q, k, v, **more)[0] for target in ("hopper", "portable"))
        assert torch.equal(found == 0, known == 0)
    v = random(2, keys, 3, size, dtype=dtype)
    found, known = (package.call(target, q, k, v, **more) for target in ("hopper", "portable"))
    for x, y in zip(found, known, strict=True):
        torch.testing.assert_close(x, y, rtol=2e-2, atol=2e-2)
    found, known = (package.gradients(target, q, k, v, **more) for target in ("hopper", "portable"))
    for x, y in zip(found, known, strict=True):
        assert (x - y).norm() / y.norm() < 1e-2


@pytest.mark.parametrize("name", ["causal", "full"])
@pytest.mark.parametrize("size", [32, 64, 80, 128, 256])
@pytest.mark.parametrize("shape", SHAPES)
def test_results_are_those_of_the_portable_kernels(
    name: str, size: int, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, heads, kv_heads, rows, keys = shape
    kv_heads = heads if name == "full" else kv_heads
    torch.manual_seed(0)
    q = random(batch, rows, heads, size, dtype=torch.float16)
    k, v = (random(batch, keys, kv_heads, size, dtype=torch.float16) for _ in range(2))
    package = Package(name, monkeypatch)
    out, lse = package.call("hopper", q, k, v)
    assert package.kernels() == ["hopper"]
    expected, expected_lse = package.call("portable", q, k, v)
    assert package.kernels() == ["kernels"]
    torch.testing.assert_close(lse, expected_lse, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(out, expected, rtol=2e-3, atol=2e-3)


def check_gradients(package: Package, *args: torch.Tensor, **more: Any) -> None:
    """Compares the gradients of kernels for Hopper GPUs with those of the portable ones."""
    found = package.gradients("hopper", *args, **more)
    assert package.kernels("backward") == ["hopper_launch"]
    expected = package.gradients("portable", *args, **more)
    assert package.kernels("backward") == ["kernels"]
    close = [
        torch.allclose(x, y, rtol=1e-2, atol=1e-2 * float(y.float().std()))
        for x, y in zip(found, expected, strict=True)
    ]
    if not all(close):
        # one weight in millions that is rounded the other way makes a difference: neither may be further from the truth
        truth = package.gradients("portable", *(x.float() for x in args), **more)
        for x, y, exact in zip(found, expected, truth, strict=True):
            errors = [(gradient.float() - exact).abs() for gradient in (x, y)]
            assert errors[0].max() <= 1.25 * errors[1].max() and errors[0].mean() <= 1.05 * errors[1].mean()


@pytest.mark.parametrize("name", ["causal", "full", "cross", "mistral", "rope_gqa", "softcap"])
@pytest.mark.parametrize(
    ("size", "v_size"),
    [
        *((size, size) for size in (64, 80, 128, 160, 256)),
        (192, 128),
        (160, 64),
        (200, 128),
        (256, 128),
        (24, 24),
        (24, 64),
        (64, 16),
        (192, 32),
    ],
)
@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_are_those_of_the_portable_kernels(
    name: str, size: int, v_size: int, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, heads, kv_heads, rows, keys = shape
    kv_heads = heads if name in ("full", "cross") else kv_heads
    torch.manual_seed(0)
    q = random(batch, rows, heads, size, dtype=torch.float16)
    k, v = (random(batch, keys, kv_heads, width, dtype=torch.float16) for width in (size, v_size))
    more: dict[str, Any] = {}
    if name in ("mistral", "rope_gqa"):
        angles = torch.arange(keys, device="cuda")[:, None] * 10000.0 ** (-torch.arange(size // 2, device="cuda") / 32)
        more = {"cos": angles.cos(), "sin": angles.sin()}
    check_gradients(Package(name, monkeypatch), q, k, v, **more)


GIVEN: dict[str, Callable[[int, int, int], dict[str, torch.Tensor]]] = {
    "alibi": lambda batch, heads, keys: {},
    "bloom": lambda batch, heads, keys: {"slopes": uniform(heads)},
    "mpt": lambda batch, heads, keys: {"prefix_len": torch.arange(batch, device="cuda") * keys // batch},
    "kerple": lambda batch, heads, keys: {"decay": uniform(heads), "width": uniform(heads)},
    "t5_decoder": lambda batch, heads, keys: {"rel_bias": random(heads, 32)},
    "t5_encoder": lambda batch, heads, keys: {"rel_bias": random(heads, 32)},
    "swin": lambda batch, heads, keys: {"offset_bias": random(heads, 13, 13)},
}


@pytest.mark.parametrize("name", GIVEN)
@pytest.mark.parametrize("size", [32, 64, 128, 256])
@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_beside_given_inputs_are_those_of_the_portable_kernels(
    name: str, size: int, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, heads, kv_heads, rows, keys = shape
    kv_heads = kv_heads if name == "alibi" else heads
    torch.manual_seed(0)
    q = random(batch, rows, heads, size, dtype=torch.float16)
    k, v = (random(batch, keys, kv_heads, size, dtype=torch.float16) for _ in range(2))
    check_gradients(Package(name, monkeypatch), q, k, v, **GIVEN[name](batch, heads, keys))


def test_learned_inputs_get_their_gradients_from_the_portable_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    q, k, v = (random(1, 300, 4, 64) for _ in range(3))
    package, learned = Package("alibi", monkeypatch), uniform(4).requires_grad_()
    out, _ = package.call("hopper", q, k, v, slopes=learned)
    (found,) = torch.autograd.grad(out.float().square().sum(), learned)
    assert package.kernels("forward") == ["hopper"] and package.kernels("backward") == []
    assert found.abs().max() > 0


@pytest.mark.parametrize("name", ["t5_decoder", "t5_encoder"])
@pytest.mark.parametrize("size", [32, 64, 80, 128])
@pytest.mark.parametrize("shape", [*SHAPES, (2, 4, 4, 3000, 3000)])
def test_biases_of_distances_learn(
    name: str, size: int, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, heads, _, rows, keys = shape
    torch.manual_seed(0)
    q = random(batch, rows, heads, size, dtype=torch.float16).requires_grad_()
    k, v = (random(batch, keys, heads, size, dtype=torch.float16).requires_grad_() for _ in range(2))
    package, learned = Package(name, monkeypatch), random(heads, 32).float().requires_grad_()
    upstream = random(batch, rows, heads, size, dtype=torch.float16)
    found = {}
    for target in ("portable", "hopper"):
        out, _ = package.call(target, q, k, v, rel_bias=learned)
        found[target] = torch.autograd.grad(out, (learned, q, k, v), upstream)
    assert package.kernels("backward") == ["hopper_launch"]
    for mine, portable in zip(found["hopper"], found["portable"], strict=True):
        assert (mine.float() - portable.float()).norm() < 4e-3 * portable.float().norm()


@pytest.mark.parametrize("size", [32, 64, 80, 128, 256])
@pytest.mark.parametrize("shape", [(1, 4, 49, 49), (2, 4, 49, 49), (301, 3, 49, 49), (3, 7, 65, 300), (2, 4, 300, 300)])
def test_tables_learn_beside_queries_keys_and_values(
    size: int, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a kernel of their own if several batch entries read the same entries, which are not too few."""
    batch, heads, rows, keys = shape
    torch.manual_seed(0)
    q = random(batch, rows, heads, size, dtype=torch.float16).requires_grad_()
    k, v = (random(batch, keys, heads, size, dtype=torch.float16).requires_grad_() for _ in range(2))
    package, learned = Package("swin", monkeypatch), random(heads, 13, 13).float().requires_grad_()
    upstream = random(batch, rows, heads, size, dtype=torch.float16)
    found = {}
    for target in ("portable", "hopper"):
        out, _ = package.call(target, q, k, v, offset_bias=learned)
        found[target] = torch.autograd.grad(out, (learned, q, k, v), upstream)
    assert package.kernels("backward") == (["hopper_launch"] if batch > 1 else [])
    assert package.kernels("backward_tables") == (["kernels"] if batch > 1 else [])
    for mine, portable in zip(found["hopper"], found["portable"], strict=True):
        assert (mine.float() - portable.float()).norm() < 4e-3 * portable.float().norm()


@pytest.mark.parametrize("lengths", [(300, 300), (65, 700), (1111, 1111)])
@pytest.mark.parametrize("size", [32, 64, 80, 128])
@pytest.mark.parametrize("name", row_tables.SPECS)
def test_tables_of_rows_give_what_they_give_portable_kernels(
    name: str, size: int, lengths: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most tiles of scores read one entry of each row."""
    pytest.importorskip("black")
    monkeypatch.setenv("ATTNFORGE_CACHE", str(tmp_path))
    path = tmp_path / "tables_of_rows.yaml"
    path.write_text(row_tables.text(name))
    module, of = attnforge.build(path), plan.build(language.load(path, terms=resources.terms_for(path)))
    known = targets.runtime(module)
    q_len = lengths[1] if of.spec.packed else lengths[0]
    call = calls.make(of, Sizes(3, q_len, lengths[1], 4, 2, size, size, "fp16").of(of.spec), "cuda")
    found = {}
    for target in ("portable", "hopper"):
        known.LaunchCache.known.clear()
        with targets.asked(target):
            out = module.attention(*call.operands, **call.keywords)
            upstream = torch.randn(out.shape, generator=torch.Generator("cuda").manual_seed(1), device="cuda").half()
            found[target] = (out, *torch.autograd.grad(out, call.wanted, upstream))
        backward = target if name in row_tables.DIFFERENTIATED else "portable"
        assert targets.taken(known) == {"forward": target, "backward": backward}
    for mine, portable in zip(found["hopper"], found["portable"], strict=True):
        assert (mine.float() - portable.float()).norm() < 4e-3 * portable.float().norm()


def decays(*shape: int) -> torch.Tensor:
    """Logarithms of decays, some of which begin a document."""
    found = torch.nn.functional.logsigmoid(torch.randn(*shape, device="cuda") + 4)
    return found.masked_fill(torch.rand(*shape, device="cuda") < 0.003, -torch.inf)


@pytest.mark.parametrize("size", [32, 64, 80, 128])
@pytest.mark.parametrize("shape", [*SHAPES, "packed", "packed, fewer heads"])
def test_decays_are_in_the_gradients_of_queries_keys_and_values(
    size: int, shape: tuple[int, ...] | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    more: dict[str, Any] = {}
    if isinstance(shape, str):
        cuts = torch.tensor([0, 70, 71, 300, 1356], device="cuda", dtype=torch.int32)
        q, more = random(1400, 4, size, dtype=torch.float16), {"cu_seqlens": cuts, "max_seqlen": 1056}
        k, v = (random(1400, 2 if "fewer" in shape else 4, size, dtype=torch.float16) for _ in range(2))
        decay, package = decays(1400, 4), Package("packed_log_decay", monkeypatch)
    else:
        batch, heads, kv_heads, rows, keys = shape
        q = random(batch, rows, heads, size, dtype=torch.float16)
        k, v = (random(batch, keys, kv_heads, size, dtype=torch.float16) for _ in range(2))
        decay, package = decays(batch, keys, heads), Package("log_decay", monkeypatch)
    dout = random(*q.shape, dtype=torch.float16)

    def gradients(target: str, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        learned = [x.detach().requires_grad_() for x in (*given, decay)]
        out, _ = package.call(target, *learned[:3], **more, log_decay=learned[3])
        return torch.autograd.grad(out, learned, dout.to(out.dtype))

    *found, found_decay = gradients("hopper", q, k, v)
    assert package.kernels("backward") == ["hopper_launch"]
    *expected, _ = gradients("portable", q, k, v)
    assert "hopper_launch" not in package.kernels("backward")
    *truth, exact_decay = gradients("portable", *(x.float() for x in (q, k, v)))
    for x, y, exact in zip(found, expected, truth, strict=True):
        errors = [(gradient.float() - exact).abs() for gradient in (x, y)]
        assert errors[0].max() <= 1.5 * errors[1].max() and errors[0].mean() <= 1.25 * errors[1].mean()
    # errors of rows do not add up in the gradient of running sums
    assert (found_decay - exact_decay).norm() < 5e-3 * exact_decay.norm()


@pytest.mark.parametrize("name", ["log_decay", "packed_log_decay"])
def test_decays_learn_by_programs_that_take_tiles_in_turns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    package, rows = Package(name, monkeypatch), (700,) if name == "packed_log_decay" else (2, 700)
    cuts = torch.tensor([0, 70, 71, 300, 700], device="cuda", dtype=torch.int32)
    more = {"cu_seqlens": cuts, "max_seqlen": 400} if name == "packed_log_decay" else {}
    given = [random(*rows, 8, 64, dtype=torch.float16) for _ in range(3)]
    decay, dout, stages = decays(*rows, 8), random(*rows, 8, 64, dtype=torch.float16), []
    by_groups = package.runtime.by_groups

    def told(*given: Any) -> Any:
        found = by_groups(*given)
        stages.append(found[1]["K_STAGES"])
        return found

    monkeypatch.setattr(package.runtime, "by_groups", told)
    found = []
    for programs in (132, 3):
        monkeypatch.setattr(package.runtime, "multiprocessors", lambda device, programs=programs: programs)
        learned = [x.detach().requires_grad_() for x in (*given, decay)]
        out, _ = package.call("hopper", *learned[:3], **more, log_decay=learned[3])
        found.append(torch.autograd.grad(out, learned, dout))
    assert stages == [1, 2 if name == "log_decay" else 1]  # the parameters of packed ones leave no room for two
    one, turns = ([x.float() for x in gradients] for gradients in found)
    # atomic adds of programs come in any order
    assert torch.equal(one[1], turns[1]) and torch.equal(one[2], turns[2])
    assert (one[0] - turns[0]).norm() < 1e-3 * one[0].norm() and (one[3] - turns[3]).norm() < 1e-4 * one[3].norm()


RAISED = """
name: raised
mask: [causal]
score: [{expr: "score + x[q] + x[k]"}]
inputs: {x: {axes: [batch, token], description: what a token adds, grad: true}}
"""


def test_what_tokens_add_may_be_infinite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries that add -inf see no key, keys that add it are seen by none, and NaN remains NaN."""
    pytest.importorskip("black")
    monkeypatch.setenv("ATTNFORGE_CACHE", str(tmp_path))
    torch.manual_seed(0)
    module = attnforge.build(RAISED)
    cache = importlib.import_module(f"{module.__name__}.runtime").LaunchCache
    x = torch.randn(3, 700, device="cuda")
    x[0, 5], x[1, :140], x[2, 650] = -torch.inf, -torch.inf, torch.nan
    q, k, v, dout = (random(3, 700, 4, 64, dtype=torch.float16) for _ in range(4))

    def found(target: str, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        monkeypatch.setenv("ATTNFORGE_TARGET", target)
        cache.known.clear()
        learned = [one.detach().requires_grad_() for one in given]
        out, lse = module.attention(*learned, x=x, return_lse=True)
        return (out, lse, *torch.autograd.grad(out, learned, dout.to(out.dtype)))

    ours, truth = found("hopper", q, k, v), found("portable", *(one.float() for one in (q, k, v)))
    for one, exact in zip(ours, truth, strict=True):
        torch.testing.assert_close(one[:2].float(), exact[:2], atol=2e-2, rtol=2e-2)
    out, lse = ours[:2]
    assert (out[0, 5] == 0).all() and (out[1, :140] == 0).all() and (lse[1, :, :140] == -torch.inf).all()
    assert out[2, :650].isfinite().all() and out[2, 650:].isnan().all()


@pytest.mark.parametrize("scale", [0.0, -0.2, 1e-35])
def test_decays_weigh_whatever_the_scale(scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    q, k, v = (random(2, 700, 4, 64, dtype=torch.float16) for _ in range(3))
    package, more = Package("log_decay", monkeypatch), {"log_decay": decays(2, 700, 4), "scale": scale}
    out, lse = package.call("hopper", q, k, v, **more)
    assert package.kernels() == ["hopper"]
    truth, exact = package.call("portable", *(x.float() for x in (q, k, v)), **more)
    assert (out.float() - truth).abs().max() < 2e-3
    torch.testing.assert_close(lse, exact, atol=2e-4, rtol=1e-5)


def test_gradients_have_the_same_bits_each_time_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    q, k, v = (random(2, 3000, 4, 128) for _ in range(3))
    package = Package("causal", monkeypatch)
    package.gradients("hopper", q, k, v)
    torch.use_deterministic_algorithms(True)
    try:
        first = package.gradients("hopper", q, k, v)
        assert package.kernels("backward") == []
        for _ in range(3):
            again = package.gradients("hopper", q, k, v)
            assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("name", ["packed_full", "packed_causal"])
@pytest.mark.parametrize(("size", "v_size"), [(128, 128), (256, 256), (192, 128)])
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_gradients_see_nothing_of_the_next_sequence(
    name: str, size: int, v_size: int, kv_heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    cuts = torch.tensor([0, 70, 71, 300, 556], device="cuda", dtype=torch.int32)
    q, k, v = random(600, 4, size), random(600, kv_heads, size), random(600, kv_heads, v_size)
    package = Package(name, monkeypatch)
    more = {"cu_seqlens": cuts, "max_seqlen": 256}
    found = package.gradients("hopper", q, k, v, **more)
    assert package.kernels("backward") == ["hopper_launch"]
    expected = package.gradients("portable", q, k, v, **more)
    for x in (q, k, v):
        x[70:71], x[300:] = float("nan"), float("nan")
    spoilt = package.gradients("hopper", q, k, v, **more)
    for x, y, z in zip(found, expected, spoilt, strict=True):
        assert torch.equal(x[556:], torch.zeros_like(x[556:]))
        torch.testing.assert_close(x, y, rtol=2e-2, atol=2e-2)
        for rows in (slice(0, 70), slice(71, 300)):
            torch.testing.assert_close(x[rows], z[rows], rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(("size", "length", "end"), [(128, 1000, 512), (256, 1000, 512), (64, 4000, 1000)])
def test_a_row_has_the_same_bits_alone_and_in_a_batch(
    size: int, length: int, end: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also as the end of a prefix, whose tiles may differ: neither they nor other rows affect a row."""
    torch.manual_seed(0)
    q, k, v = (random(33, length, 4, size) for _ in range(3))
    package = Package("causal", monkeypatch)
    out, _ = package.call("hopper", q, k, v)
    alone, _ = package.call("hopper", q[7:8], k[7:8], v[7:8])
    assert torch.equal(out[7:8], alone)
    prefix, _ = package.call("hopper", q[7:8, :end], k[7:8, :end], v[7:8, :end])
    assert torch.equal(out[7:8, :end], prefix)


PADDED = (
    "causal full cross mistral llama3 gpt_oss softcap alibi bloom log_decay gpt2_dropout block_sparse longformer "
    "t5_encoder t5_decoder pair_bias"
)


@pytest.mark.parametrize("kind", padding.KINDS)
@pytest.mark.parametrize("name", PADDED.split())
@pytest.mark.parametrize("size", [32, 64, 80, 128, 256])
@pytest.mark.parametrize("length", [333, 4200])
def test_rows_left_out_are_not_read(
    name: str, size: int, kind: str, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = resources.variants()[name]
    of, package = plan.build(language.load(path, terms=resources.terms_for(path))), Package(name, monkeypatch)
    queries, places = padding.of(kind, length, "cuda")
    call = calls.make(of, Sizes(3, queries, length, 4, 2, size, size, "fp16").of(of.spec), "cuda")
    given, queries_out = padding.leaves(call.operands, places)
    wanted = (*given, *call.wanted[3:])
    dout = padding.with_nan(random(*given[0].shape, dtype=torch.float16), queries_out)
    found = {}
    for target in ("portable", "hopper"):
        out, lse = package.call(target, *given, **call.keywords, **places)
        found[target] = (out, lse, *torch.autograd.grad(out, wanted, dout))
    learned = [one for one in of.learned if one.input.keyword in call.learned]
    at_once = of.hopper.backward and all(one.made_of({*of.summed_at_once}) for one in learned)
    at_once = at_once and not of.hopper.pairs and (size <= 128 or (of.hopper.wide and not learned))
    assert package.kernels("forward") == ["kernels" if of.hopper.pairs else "hopper"]
    assert (package.kernels("backward") == ["hopper_launch"]) == bool(at_once)
    for mine, portable in zip(found["hopper"], found["portable"], strict=True):
        there = portable.isfinite()
        assert torch.equal(mine[~there], portable[~there])
        mine, portable = mine[there].float(), portable[there].float()
        assert (mine - portable).norm() <= 4e-3 * portable.norm()


@pytest.mark.parametrize("name", ["causal", "full", "gpt_oss", "sliding_window", "alibi", "softcap", "log_decay"])
@pytest.mark.parametrize("size", [32, 64, 80, 128, 192, 256])
@pytest.mark.parametrize("rows", [700, 3000])
def test_rows_that_outgrow_their_first_keys_are_right(
    name: str, size: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their tiles are processed twice, and all other rows keep their bits."""
    torch.manual_seed(0)
    q, k, v = (random(2, rows, 8, size) for _ in range(3))
    more: dict[str, Any] = {"log_decay": torch.zeros(2, rows, 8, device="cuda")} if name == "log_decay" else {}
    if name == "gpt_oss":
        angles = torch.zeros(rows, size // 2, device="cuda")
        more = {"cos": angles.cos(), "sin": angles.sin(), "sinks": torch.randn(8, device="cuda")}
    package = Package(name, monkeypatch)
    before, _ = package.call("hopper", q, k, v, **more)
    grown = torch.tensor([290, 513, rows - 1], device="cuda")
    q[0, grown] = 60 * k[0, grown - 140]
    out, lse = package.call("hopper", q, k, v, **more)
    assert package.kernels() == ["hopper"]
    truth, known = package.call("portable", *(x.float() for x in (q, k, v)), **more)
    torch.testing.assert_close(out.float(), truth, atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(lse, known, atol=1e-3, rtol=1e-5)
    others = torch.ones(2, rows, dtype=torch.bool, device="cuda")
    others[0, grown] = False
    assert torch.equal(out[others], before[others])


@pytest.mark.parametrize("name", ["packed_causal", "packed_full", "packed_log_decay"])
@pytest.mark.parametrize("size", [32, 64, 128, 256])
@pytest.mark.parametrize("cuts", [[0, 3, 303, 690], [0, 1000, 1001, 3500, 6000], list(range(0, 60001, 400))])
def test_packed_rows_that_outgrow_their_first_keys_are_right(
    name: str, size: int, cuts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their tiles are redone one by one, and all other rows keep their bits."""
    torch.manual_seed(0)
    q, k, v = (random(cuts[-1] + 10, 4, size) for _ in range(3))
    longest = max(end - begin for begin, end in itertools.pairwise(cuts))
    more: dict[str, Any] = {"cu_seqlens": torch.tensor(cuts, device="cuda", dtype=torch.int32), "max_seqlen": longest}
    if name == "packed_log_decay":
        more["log_decay"] = -0.1 * torch.rand(q.shape[0], 4, device="cuda")
    package = Package(name, monkeypatch)
    before, _ = package.call("hopper", q, k, v, **more)
    grown = torch.tensor([cut - 1 for cut in cuts[2:]], device="cuda")
    q[grown] = 60 * k[grown - 140]
    out, lse = package.call("hopper", q, k, v, **more)
    assert package.kernels() == ["hopper"]
    truth, known = package.call("portable", *(x.float() for x in (q, k, v)), **more)
    torch.testing.assert_close(out.float(), truth, atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(lse, known, atol=1e-3, rtol=1e-5)
    others = torch.ones(q.shape[0], dtype=torch.bool, device="cuda")
    others[grown] = False
    assert torch.equal(out[others], before[others])


@pytest.mark.parametrize("name", ["causal", "full"])
@pytest.mark.parametrize("size", [32, 64, 128, 256])
@pytest.mark.parametrize("length", [1000, 4000])
def test_a_row_has_the_same_bits_in_a_chunk(name: str, size: int, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the first query's own key is the last one of a tile."""
    torch.manual_seed(0)
    q, k, v = (random(2, length, 4, size) for _ in range(3))
    package = Package(name, monkeypatch)
    out, _ = package.call("hopper", q, k, v)
    for rows in (1, 37, length % 128 + 1, length % 64 + 65, 500):
        chunk, _ = package.call("hopper", q[:, -rows:], k, v)
        assert package.kernels() == ["hopper"]
        assert torch.equal(chunk, out[:, -rows:])


def test_nothing_of_the_next_sequence_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    cuts = torch.tensor([0, 70, 71, 300, 556], device="cuda", dtype=torch.int32)
    q, k, v = (random(600, 4, 128) for _ in range(3))
    package = Package("packed_full", monkeypatch)
    out, lse = package.call("hopper", q, k, v, cu_seqlens=cuts, max_seqlen=256)
    assert torch.equal(out[556:], torch.zeros_like(out[556:]))
    for x in (q, k, v):
        x[70:71], x[300:] = float("nan"), float("nan")
    spoilt, spoilt_lse = package.call("hopper", q, k, v, cu_seqlens=cuts, max_seqlen=256)
    for rows in (slice(0, 70), slice(71, 300)):
        assert torch.equal(out[rows], spoilt[rows])
        assert torch.equal(lse[..., rows], spoilt_lse[..., rows])


@pytest.mark.parametrize("name", ["packed_full", "packed_causal"])
@pytest.mark.parametrize("size", [32, 64, 128])
@pytest.mark.parametrize(("first", "behind"), [(0, 0), (1, 200), (1000, 1)])
@pytest.mark.parametrize(("count", "longest"), [(1, 300), (3, 2000), (33, 500), (200, 120)])
def test_every_row_of_mixed_sequences_is_found(
    name: str, size: int, first: int, behind: int, count: int, longest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some are empty, some longer than stated; rows before the first and after the last belong to none, and are 0."""
    torch.manual_seed(0)
    lengths = torch.randint(0, longest + 1, (count,)) * torch.randint(0, 3, (count,)).clamp(max=1)
    lengths[-1] = longest
    cuts = (torch.cat((torch.tensor([0]), lengths.cumsum(0))) + first).to("cuda", torch.int32)
    rows = first + int(lengths.sum()) + behind
    q, k, v = (random(rows, heads, size, dtype=torch.float16) for heads in (4, 2, 2))
    package = Package(name, monkeypatch)
    for told in (longest, longest - 90):
        more = {"cu_seqlens": cuts, "max_seqlen": told}
        out, lse = package.call("hopper", q, k, v, **more)
        assert package.kernels() == ["hopper"]
        expected, expected_lse = package.call("portable", q, k, v, **more)
        torch.testing.assert_close(lse, expected_lse, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(out, expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("size", [128, 256])
def test_a_sequence_with_more_queries_than_keys_reads_values_of_its_own_keys(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first queries see no keys; shorter sequences have no such tiles, and no values at their rows."""
    torch.manual_seed(0)
    q_lens, k_lens = (3000, 0, 3, 70), (1000, 40, 0, 2100)
    cuts_of_q, cuts_of_k = (torch.tensor((0, *x), device="cuda").cumsum(0).to(torch.int32) for x in (q_lens, k_lens))
    q = random(sum(q_lens), 4, size, dtype=torch.float16)
    k, v = (random(sum(k_lens), 2, size, dtype=torch.float16) for _ in range(2))
    more: dict[str, Any] = {
        "cu_seqlens_q": cuts_of_q,
        "cu_seqlens_k": cuts_of_k,
        "max_seqlen_q": max(q_lens),
        "max_seqlen_k": max(k_lens),
        "log_decay": torch.nn.functional.logsigmoid(random(sum(k_lens), 4, dtype=torch.float32) + 5),
    }
    package = Package("packed_log_decay", monkeypatch)
    out, lse = package.call("hopper", q, k, v, **more)
    assert package.kernels() == ["hopper"]
    expected, expected_lse = package.call("portable", q, k, v, **more)
    assert torch.equal(out[:2000], torch.zeros_like(out[:2000])) and bool((lse[:, :2000] == -torch.inf).all())
    torch.testing.assert_close(lse, expected_lse, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(out, expected, rtol=2e-3, atol=2e-3)


def test_a_failure_to_compile_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    package = Package("causal", monkeypatch)
    q, k, v = (random(1, 128, 2, 128) for _ in range(3))
    kernels = importlib.import_module("generated.causal.hopper")
    monkeypatch.setattr(kernels, "forward", None)
    for remembered in ("unwilling", "failed"):
        monkeypatch.setattr(package.runtime, remembered, set())
    with pytest.warns(UserWarning, match="portable kernels take the place"):
        package.call("", q, k, v)
    assert package.kernels() == ["kernels"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        package.call("", q, k, v)
    with pytest.raises(AttributeError):
        package.call("hopper", q, k, v)


AFTER_A_FAULT = """
import os, time
import torch
from generated.causal import attention, runtime
q, k, v = (torch.randn(1, 1024, 2, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3))
place = torch.tensor([9], device="cuda")
os.environ["ATTNFORGE_TARGET"] = "portable"
attention(q, k, v)
torch.cuda.synchronize()
del os.environ["ATTNFORGE_TARGET"]
runtime.LaunchCache.known.clear()
q[place]
time.sleep(1)
attention(q, k, v)
"""


def test_an_earlier_kernel_that_failed_is_not_told_as_one_that_does_not_compile() -> None:
    """In a process of its own, as nothing can run in it afterwards."""
    command, root = [sys.executable, "-c", AFTER_A_FAULT], Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, timeout=300)
    assert done.returncode == 1 and "device-side assert triggered" in done.stderr, done.stderr
    assert "portable kernels take the place" not in done.stderr


def test_an_unknown_target_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = (random(1, 128, 2, 128) for _ in range(3))
    with pytest.raises(ValueError, match="expected portable or hopper, got 'volta'"):
        Package("causal", monkeypatch).call("volta", q, k, v)
