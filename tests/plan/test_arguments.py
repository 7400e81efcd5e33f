"""How `attention` treats arguments that it cannot take, and arguments that only look as if it could not."""

from __future__ import annotations

import importlib
import inspect
import itertools
import math
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy
import pytest
import torch
import unformatted
from devices import GPU
from torch.utils.checkpoint import checkpoint

from attnforge.gpu import bench

DEVICE = "cuda" if GPU else "cpu"
CONSTANTS = """inputs:
  reach: {axes: [kv_head, 3], dtype: int, default: 6}
  open: {axes: [batch], dtype: bool, default: true}
  doc: {axes: [batch, token], dtype: int, default: 3}
  lift: {axes: [batch, head, query], grad: true, default: 0.5}
  fade: {axes: [batch, token, head], grad: true, scan: cumsum, default: -0.125}
  calm: {axes: [key, batch], default: 0.75, min: 0.5}
"""
SPECS = {
    "rope": "rope: {layout: half}\nmask: [causal]",
    "inputs": "mask:\n  - expr: q - k < reach\nscore:\n  - expr: score + lift * rise\n"
    "  - expr: score + table[min(abs(q - k), 7)]\n"
    "inputs:\n  reach: {axes: [head]}\n  lift: {axes: [head], default: 1.0}\n  rise: {axes: []}\n"
    "  table: {axes: [head, 8], grad: true}",
    "window": "mask: [causal, sliding_window: {size: runtime}]",
    "without_gradients": "mask: [causal]\nscore:\n  - expr: score + plain + steps[max(k - 1, 0)] + floor(flat)\n"
    "inputs:\n  plain: {axes: [head]}\n  steps: {axes: [batch, token]}\n  flat: {axes: [head]}",
    "numbers": "mask:\n  - expr: q - k < reach or everything\nscore: [expr: score * temp]\ninputs:\n"
    "  reach: {axes: [], dtype: int, default: 3, min: 1}\n  everything: {axes: [], dtype: bool, default: false}\n"
    "  temp: {axes: [], default: -1.5}",
    "constants": "mask: [causal, expr: 'q - k < reach[(q - k) % 3]', expr: 'near and open and doc[k] == doc[q]']\n"
    f"score: [expr: 'score * calm + bias + lift * tanh(score) + fade[q] - fade[k]']\n{CONSTANTS}"
    "  bias: {axes: [head, query, key], default: -0.25}\n"
    "  near: {axes: [query // 4, key // 4], dtype: bool, default: true}",
    "packed_constants": "layout: packed\n"
    "mask: [causal, expr: 'q - k < reach[(q - k) % 3]', expr: 'open and doc[k] == doc[q]']\n"
    f"score: [expr: 'score * calm + lift * tanh(score) + fade[q] - fade[k]']\n{CONSTANTS}",
    "capitals": "mask: [causal]\nscore: [expr: score * T + B]\n"
    "inputs: {T: {axes: []}, B: {axes: [head, key], grad: true}}",
    "divided": "mask:\n  - causal\n  - expr: q % 7 < 5 and (q - k) % step == 0 or k == q\n"
    "  - expr: wide == 0 or q // wide == k // wide\nscore: [expr: score * (1 + k // part % 2)]\n"
    "inputs:\n  step: {axes: [], dtype: int, default: 2}\n  wide: {axes: [], dtype: int, default: 0}\n"
    "  part: {axes: [], dtype: int, min: 0, default: 3}",
    "by_0": "mask: [expr: 'q % few[h] == 0 and q // k != 3']\n"
    "score: [expr: 'score + 0.1 * ((q - 6) // few[h] + (q - k) % (k_len - q - 1))']\n"
    "inputs: {few: {axes: [head], dtype: int}}",
    "described": "rope: {layout: half, dims: 8}\nmask: [causal, sliding_window: {size: runtime}]\nsink: true\n"
    "score: [alibi, log_decay, expr: 'score * sharp + apart * three[1] + high[min(k, 3)]']\ninputs:\n"
    "  sharp: {axes: [head], grad: true, default: '2 ** -h'}\n"
    "  apart: {axes: [batch, head, query, key], default: 0.5, description: Of pairs.}\n"
    "  three: {axes: [batch, query, key, 3]}\n  high: {axes: [4], min: 0}\nexports: [decode]",
    "dropout": "dropout: true",
    "packed": "layout: packed\nmask: [causal]",
    "packed_tokens": "layout: packed\nmask: [causal]\nscore: [log_decay]",
    "packed_rope": "layout: packed\nrope: {layout: half}\nmask: [causal]",
}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], ModuleType]:
    """Packages of several specs, by name."""
    folder, made = tmp_path_factory.mktemp("arguments"), {}

    def find(name: str) -> ModuleType:
        if name not in made:
            path = folder / f"arguments_{name}.yaml"
            path.write_text(f"name: arguments_{name}\ndescription: A test.\n{SPECS[name]}\n")
            package = folder / "packages" / path.stem
            unformatted.write(path, package)
            made[name] = bench.module(path.stem, package / "__init__.py")
        return made[name]

    return find


def operands(packed: bool = False, count: int = 12) -> dict[str, Any]:
    make = torch.Generator().manual_seed(0)
    lead = (count,) if packed else (1, count)
    return {name: torch.randn(*lead, 2, 16, generator=make).to(DEVICE) for name in "qkv"}


def cuts(*places: int, longest: int = 12) -> dict[str, Any]:
    return {"cu_seqlens": torch.tensor(places, dtype=torch.int32, device=DEVICE), "max_seqlen": longest}


def more(name: str) -> dict[str, Any]:
    """Further arguments for a package."""
    angles = torch.arange(12, device=DEVICE)[:, None] * torch.tensor([1.0, 0.5, 0.2, 0.1] * 2, device=DEVICE)
    rope = {"cos": angles.cos(), "sin": angles.sin()}
    heads = torch.tensor([3.0, 5.0], device=DEVICE)
    learned = torch.linspace(-1, 1, 16, device=DEVICE).view(2, 8)
    return {
        "rope": rope,
        "inputs": {"reach": heads, "lift": heads / 4, "rise": 0.5, "table": learned},
        "window": {"window": 4},
        "dropout": {"dropout_p": 0.25, "seed": 3},
        "packed": cuts(0, 5, 12),
        "packed_rope": rope | cuts(0, 5, 12),
    }[name]


def arguments(name: str) -> dict[str, Any]:
    """The arguments of a valid call."""
    return operands(name.startswith("packed")) | more(name)


LONE = [("rope", "cos", False), ("rope", "sin", False), ("inputs", "reach", False), ("inputs", "lift", True)]


@pytest.mark.parametrize(("name", "argument", "could"), LONE)
def test_a_gradient_that_would_be_lost_is_refused(
    name: str, argument: str, could: bool, package: Callable[[str], ModuleType]
) -> None:
    attention, given = package(name).attention, arguments(name)
    wanted = attention(**given)
    given[argument] = given[argument].clone().requires_grad_()
    with pytest.raises(ValueError, match=rf"^{argument}: expected .* got .*{argument}\.detach\(\)") as found:
        attention(**given)
    assert ("grad: true" in str(found.value)) == could
    with torch.no_grad():
        assert torch.equal(attention(**given), wanted)
    assert torch.equal(attention(**given | {argument: given[argument].detach()}), wanted)


@pytest.mark.slow
def test_what_learns_goes_on_beside_what_does_not(package: Callable[[str], ModuleType]) -> None:
    attention, given = package("inputs").attention, arguments("inputs")
    given["q"].requires_grad_()
    given["table"].requires_grad_()
    plain = torch.autograd.grad(attention(**given).sum(), (given["q"], given["table"]))
    for reentrant in (True, False):
        out = checkpoint(lambda q: attention(**given | {"q": q}), given["q"], use_reentrant=reentrant)
        kept = torch.autograd.grad(out.sum(), (given["q"], given["table"])) if not reentrant else None
        assert kept is None or all(map(torch.equal, kept, plain))
    with torch.autocast(DEVICE, torch.float16):
        assert attention(**given).dtype == torch.float16
    compiled = torch.compile(lambda x: attention(**x), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(torch.autograd.grad(compiled(given).sum(), given["q"])[0], plain[0])


class Whole:
    """An integer of another library."""

    def __index__(self) -> int:
        return 4


class Real:
    """A real number of another library."""

    def __float__(self) -> float:
        return 0.25


@pytest.mark.parametrize(
    ("name", "argument", "value", "plain"),
    [
        ("window", "window", numpy.int64(4), 4),
        ("window", "window", Whole(), 4),
        ("window", "scale", numpy.float32(0.25), 0.25),
        ("window", "scale", Real(), 0.25),
        ("window", "scale", numpy.int32(2), 2),
        ("window", "scale", Whole(), 4.0),
        ("inputs", "rise", numpy.float64(0.5), 0.5),
        ("dropout", "dropout_p", numpy.float32(0.25), 0.25),
        ("dropout", "seed", numpy.uint32(7), 7),
        ("packed", "max_seqlen", numpy.int64(7), 7),
    ],
)
def test_numbers_of_other_libraries_are_numbers(
    name: str, argument: str, value: Any, plain: Any, package: Callable[[str], ModuleType]
) -> None:
    attention, given = package(name).attention, arguments(name)
    out = attention(**given | {argument: value})
    assert torch.equal(out, attention(**given | {argument: plain}))


@pytest.mark.parametrize(
    ("name", "argument", "value", "error"),
    [
        ("window", "window", True, TypeError),
        ("window", "window", 4.0, TypeError),
        ("window", "window", "4", TypeError),
        ("window", "window", torch.tensor(4), TypeError),
        ("window", "window", numpy.array([4, 5]), TypeError),
        ("window", "window", 10**5000, ValueError),
        ("window", "scale", True, TypeError),
        ("window", "scale", "1", TypeError),
        ("window", "scale", 1j, TypeError),
        ("window", "scale", torch.tensor(1.0), TypeError),
        ("window", "scale", numpy.array([1.0, 2.0]), TypeError),
        ("window", "scale", 10**400, ValueError),
        ("window", "scale", -(10**5000), ValueError),
        ("window", "scale", 1e39, ValueError),
        ("window", "scale", numpy.float64(-1e39), ValueError),
        ("window", "scale", math.nan, ValueError),
        ("window", "scale", numpy.float32(math.inf), ValueError),
        ("inputs", "rise", 1e39, ValueError),
        ("packed", "max_seqlen", 2**40, ValueError),
        ("packed", "max_seqlen", 2**28 + 1, ValueError),
        ("packed", "max_seqlen", -1, ValueError),
        ("window", "return_lse", "no", TypeError),
        ("packed", "return_lse", torch.ones(2), TypeError),
    ],
    ids=lambda x: x if isinstance(x, str) else type(x).__name__,
)
def test_numbers_that_are_refused(
    name: str, argument: str, value: Any, error: type[Exception], package: Callable[[str], ModuleType]
) -> None:
    with pytest.raises(error, match=rf"^{argument}: expected .*, got ") as found:
        package(name).attention(**arguments(name) | {argument: value})
    assert len(str(found.value)) < 200


HALVES = "a pair has one column: of two equal halves pass"
MASK = "of a mask with padding on the right pass mask.sum(1).int()"


@pytest.mark.parametrize(
    ("name", "change", "told"),
    [
        ("rope", lambda x: {"cos": x["cos"].repeat(1, 2)}, f"{HALVES} cos[:, :8], of doubled columns cos[:, ::2]"),
        (
            "rope",
            lambda x: {"sin": x["sin"].repeat(1, 2)[None]},
            f"{HALVES} sin[0, :, :8], of doubled columns sin[0, :, ::2]",
        ),
        ("rope", lambda x: {"cos": x["cos"][None]}, "pass cos[0]"),
        ("rope", lambda x: {"cos": x["cos"][None, None]}, "pass cos[0, 0]"),
        ("rope", lambda x: {"cos": x["cos"][:, :5]}, None),
        ("rope", lambda x: {"cos": x["cos"].double()}, "pass cos.float()"),
        ("rope", lambda x: {"q": x["q"].double()}, "`reference` takes float64"),
        ("rope", lambda x: {"positions": torch.zeros(1, 12)}, None),
        ("rope", lambda x: {"positions": torch.zeros(1, 12, dtype=torch.uint8)}, "pass positions.int()"),
        ("rope", lambda x: {"k_lens": torch.ones(1).long()}, "pass k_lens.int()"),
        ("rope", lambda x: {"k_starts": torch.ones(1, 12).bool()}, None),
        *(
            ("rope", lambda x, mask=mask: {"k_lens": mask}, MASK)
            for mask in (torch.ones(1, 12).bool(), torch.ones(1, 12).long(), torch.ones(1, 12).int())
        ),
        ("packed", lambda x: {"cu_seqlens": x["cu_seqlens"].long()}, "pass cu_seqlens.int()"),
        ("packed", lambda x: {"max_seqlen": None}, "required: the longest sequence's length, or more"),
        ("dropout", lambda x: {"seed": None}, "required if dropout_p is above 0"),
        ("dropout", lambda x: {"dropout_p": None}, None),
    ],
)
def test_messages_say_what_to_pass_instead(
    name: str,
    change: Callable[[dict[str, Any]], dict[str, Any]],
    told: str | None,
    package: Callable[[str], ModuleType],
) -> None:
    given = arguments(name)
    wrong = {key: x.to(DEVICE) if isinstance(x, torch.Tensor) else x for key, x in change(given).items()}
    with pytest.raises((TypeError, ValueError), match=f"^{next(iter(wrong))}: expected .*, got ") as found:
        package(name).attention(**given | wrong)
    assert str(found.value).partition("; ")[2] == (told or "")


@pytest.mark.parametrize("packed", [False, True])
def test_heads_before_tokens_are_recognised(packed: bool, package: Callable[[str], ModuleType]) -> None:
    attention, told = package("packed" if packed else "inputs").attention, "of tensors with heads before tokens pass "
    x = operands(packed)
    if packed:
        given, swap = cuts(0, 12), "x.transpose(0, 1)"
    else:
        given, swap = more("inputs"), "x.transpose(1, 2)"
        wanted = rf"^reach: expected shape \(12,\), got \(2,\); {told}{re.escape(swap)}$"
        with pytest.raises(ValueError, match=wanted):
            attention(**{name: t.transpose(1, 2) for name, t in x.items()}, **given)
        with pytest.raises(ValueError, match=r"^reach: expected shape \(2,\), got \(3,\)$"):
            attention(**x, **given | {"reach": torch.ones(3, device=DEVICE)})
    turned = {name: t.transpose(-3, -2) for name, t in x.items() if name != "q"}
    with pytest.raises(ValueError, match=rf"^k: expected a number of heads .* q's 2, got 12; {told}{re.escape(swap)}$"):
        attention(x["q"], **turned, **given)
    with pytest.raises(ValueError, match=r"^k: expected a number of heads that divides q's 2, got 3$"):
        attention(x["q"], *(x[name].repeat_interleave(2, -2)[..., :3, :] for name in "kv"), **given)


def test_numbers_that_divide_are_not_0(package: Callable[[str], ModuleType]) -> None:
    divided = package("divided")
    with pytest.raises(ValueError, match=r"^step: expected a number to divide by, got 0$"):
        divided.attention(**operands(), step=0)
    with pytest.raises(ValueError, match=r"^part: expected at least 1, got 0$"):
        divided.attention(**operands(), part=0)
    for numbers in ({}, {"step": -3, "wide": 0, "part": 1}, {"wide": -5}):
        given = operands() | numbers
        torch.testing.assert_close(divided.attention(**given), divided.reference(**given), rtol=1e-4, atol=1e-4)


def test_tensors_positions_and_lengths_divide_by_0_as_by_1(package: Callable[[str], ModuleType]) -> None:
    """Their values are not known before: a quotient by 0 would be arbitrary, and differ from the reference's."""
    divided, few = package("by_0"), torch.tensor([0, 3], dtype=torch.int32, device=DEVICE)
    given = operands() | {"few": few}
    found, wanted = divided.attention(**given), divided.reference(**given)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found, divided.attention(**given | {"few": few.clamp(1)}), rtol=0, atol=0)


@pytest.mark.parametrize("given", [{}, {"max_seqlen_q": 3}])
def test_a_packed_call_wants_cuts(given: dict[str, Any], package: Callable[[str], ModuleType]) -> None:
    packed = {name: x for name, x in arguments("packed").items() if "seqlen" not in name}
    with pytest.raises(TypeError, match=r"^cu_seqlens: expected it and max_seqlen, or cu_seqlens_q, .*, got none"):
        package("packed").attention(**packed, **given)


def test_a_seed_of_no_dropout_is_a_seed(package: Callable[[str], ModuleType]) -> None:
    attention, given = package("dropout").attention, operands() | {"dropout_p": 0.0}
    assert torch.equal(attention(**given), attention(**given, seed=5))
    with pytest.raises(TypeError, match=r"^seed: expected an int, got str"):
        attention(**given, seed="5")


def sparse(x: torch.Tensor) -> torch.Tensor:
    return x.to_sparse()


def jagged(x: torch.Tensor) -> torch.Tensor:
    return torch.nested.nested_tensor(list(x), layout=torch.jagged)


def nested(x: torch.Tensor) -> torch.Tensor:
    return torch.nested.nested_tensor(list(x))


def mkldnn(x: torch.Tensor) -> torch.Tensor:
    return x.cpu().to_mkldnn()


@pytest.mark.parametrize("kind", [sparse, jagged, nested, mkldnn])
@pytest.mark.parametrize(
    ("name", "argument"), [("rope", "q"), ("rope", "k"), ("rope", "v"), ("rope", "cos"), ("inputs", "table")]
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_tensors_that_are_not_strided_are_refused(
    name: str, argument: str, kind: Callable[[torch.Tensor], torch.Tensor], package: Callable[[str], ModuleType]
) -> None:
    given = arguments(name)
    given[argument] = kind(given[argument])
    with pytest.raises(TypeError, match=rf"^{argument}: expected a strided tensor, got "):
        package(name).attention(**given)


@pytest.mark.skipif(GPU, reason="values of tensors on a GPU are not looked at")
@pytest.mark.parametrize(
    ("wrong", "argument"),
    [
        (cuts(-1, 5, 12), "cu_seqlens"),
        (cuts(0, 5, 13), "cu_seqlens"),
        (cuts(0, 5, 2**30), "cu_seqlens"),
        (cuts(0, 7, 5, 12), "cu_seqlens"),
        (cuts(0, 5, 12, longest=6), "max_seqlen"),
    ],
)
def test_cuts_outside_the_rows_are_refused(
    wrong: dict[str, Any], argument: str, package: Callable[[str], ModuleType]
) -> None:
    attention, given = package("packed").attention, operands(packed=True)
    with pytest.raises(ValueError, match=rf"^{argument}: expected .*, got "):
        attention(**given, **wrong)
    for side, other in ("qk", "kq"):
        pair = {f"{name}_{side}": x for name, x in wrong.items()}
        level = torch.linspace(0, 12, len(wrong["cu_seqlens"])).int()
        pair |= {f"cu_seqlens_{other}": level, f"max_seqlen_{other}": 12}
        with pytest.raises(ValueError, match=rf"^{argument}_{side}: expected .*, got "):
            attention(**given, **pair)


@pytest.mark.parametrize("function", ["attention", "reference"])
def test_a_first_cut_other_than_0_leaves_rows_out(function: str, package: Callable[[str], ModuleType]) -> None:
    """Also where lengths were meant."""
    attend, given = getattr(package("packed"), function), operands(packed=True)
    out, lse = attend(**given, **cuts(5, 7), return_lse=True)
    row = torch.arange(12, device=DEVICE)
    within = (row >= 5) & (row < 7)
    assert torch.equal(out.flatten(1).any(1), within)
    assert (lse[:, ~within] == -math.inf).all() and lse[:, within].isfinite().all()


@pytest.mark.parametrize("function", ["attention", "reference"])
def test_values_that_are_not_checked_are_clamped(function: str, package: Callable[[str], ModuleType]) -> None:
    attend, given = getattr(package("rope"), function), operands() | more("rope")

    def same(one: dict[str, Any], other: dict[str, Any]) -> None:
        pair = [{key: torch.tensor(x, device=DEVICE, dtype=torch.int32) for key, x in y.items()} for y in (one, other)]
        assert torch.equal(*(attend(**given, **x) for x in pair))

    same({"k_lens": [99]}, {"k_lens": [12]})
    same({"k_starts": [-4], "k_lens": [7]}, {"k_starts": [0], "k_lens": [7]})
    same({"k_lens": [-3]}, {"k_lens": [0]})
    same({"k_starts": [7], "k_lens": [5]}, {"k_starts": [12]})
    same({"positions": [[-9, *range(1, 11), 40]]}, {"positions": [[*range(12)]]})


@pytest.mark.parametrize(("name", "could"), [("plain", True), ("steps", False), ("flat", False)])
def test_what_the_spec_could_not_ask_for_is_no_advice(
    name: str, could: bool, package: Callable[[str], ModuleType]
) -> None:
    given = {"plain": torch.zeros(2), "steps": torch.zeros(1, 12), "flat": torch.zeros(2)}
    given = {key: x.to(DEVICE).requires_grad_(key == name) for key, x in given.items()}
    with pytest.raises(ValueError, match=f"{name}: expected a tensor that requires no gradient") as found:
        package("without_gradients").attention(**operands(), **given)
    assert ("set `grad: true`" in str(found.value)) == could


@pytest.mark.skipif(GPU, reason="kernels run on the GPU")
@pytest.mark.parametrize("told", ["true", "ON", "0"])
def test_the_interpreter_is_asked_for_as_triton_reads_it(
    told: str, package: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", told)
    if told != "0":
        assert package("window").attention(**operands(), window=3).isfinite().all()
        return
    with pytest.raises(ValueError, match="q: expected a GPU tensor, got one on the CPU; set TRITON_INTERPRET=1"):
        package("window").attention(**operands(), window=3)


def test_sequences_have_as_many_keys_as_queries_where_both_read_an_input(package: Callable[[str], ModuleType]) -> None:
    """Lengths are compared for each sequence, whatever the totals are."""
    given = {**operands(packed=True), "log_decay": torch.zeros(12, 2, device=DEVICE)}
    cuts = [torch.tensor(x, dtype=torch.int32) for x in ([0, 5, 9], [0, 4, 12])]
    more = {"cu_seqlens_q": cuts[0], "cu_seqlens_k": cuts[1], "max_seqlen_q": 8, "max_seqlen_k": 8}
    told = "cu_seqlens_q: expected no more queries than keys, as log_decay is read at both, got 5 and 4 of sequence 0"
    if not GPU:
        with pytest.raises(ValueError, match=told):
            package("packed_tokens").attention(**given, **more)
        assert package("packed").attention(**operands(packed=True), **more).isfinite().all()


@pytest.mark.parametrize("function", ["attention", "reference"])
def test_numbers_of_a_call_may_be_left_out(package: Callable[[str], ModuleType], function: str) -> None:
    attend = getattr(package("numbers"), function)
    known = {"reach": 3, "everything": False, "temp": -1.5}
    plain = attend(**operands())
    assert torch.equal(plain, attend(**operands(), **known))
    for other in ({"reach": 5}, {"everything": True}, {"temp": 1.0}):
        assert not torch.equal(plain, attend(**operands(), **other))


DESCRIBED = """
cos: float (positions, 8 / 2); cosines of the angles, row p for position p
sin: float (positions, 8 / 2); sines of the angles, row p for position p
positions: int (B, Tk), optional; rows of cos and sin, for keys and queries
window: int, at least 1
slopes: float (Hq,), learned, each head's own default if None; penalty per position of distance
log_decay: float (B, Tk, Hq), learned, read as its cumulative sum; logarithm of each token's decay, at most 0
sharp: float (Hq,), learned, 2 ** -h if None
apart: float (B, Hq, Tq, Tk), any axis may be 1, leading ones may be missing, 0.5 if None; Of pairs.
three: float (B, Tq, Tk, 3), B, Tq, Tk may be 1, leading ones may be missing
high: float (4,), at least 0.0
sinks: float (Hq,), learned; a logit of each head that joins the denominator of the softmax and carries no value
k_lens, k_starts: int32 (B,), optional; entry b has the keys of rows k_starts[b] to k_lens[b] - 1. Self-attention
"""
OF_DECODING = """
slopes: float (Hq,), each head's own default if None; penalty per position of distance
apart: float (B, Hq, Tq, Tk), any axis may be 1, leading ones may be missing, 0.5 if None; Of pairs.
three: float (B, Tq, Tk, 3), B, Tq, Tk may be 1, leading ones may be missing
sinks: float (Hq,), a logit of each head that joins the denominator; None leaves it to `merge`
"""


def test_docstrings_say_type_use_and_default(package: Callable[[str], ModuleType]) -> None:
    module = package("described")
    decoding = importlib.import_module(f"{module.__name__}.decode")
    for function, told in ((module.attention, DESCRIBED), (decoding.attend_with_cache, OF_DECODING)):
        lines = {line.strip() for line in function.__doc__.splitlines()}
        assert [line for line in told.strip().splitlines() if line not in lines] == []


def test_inputs_of_pairs_broadcast_as_docstrings_say(package: Callable[[str], ModuleType]) -> None:
    module, given = package("described"), operands()
    decoding = importlib.import_module(f"{module.__name__}.decode")
    angles = torch.zeros(12, 4, device=DEVICE)
    given |= {"cos": angles.cos(), "sin": angles, "window": 9, "high": torch.ones(4, device=DEVICE)}
    given |= {"log_decay": torch.full((1, 12, 2), -0.1, device=DEVICE), "sinks": torch.zeros(2, device=DEVICE)}
    caches = {"k_cache": given["k"], "v_cache": given["v"], "seq_lens": torch.tensor([12], device=DEVICE).int()}
    decoded = caches | {name: x for name, x in given.items() if name not in "kv"}
    three, apart = torch.rand(1, 12, 12, 3, device=DEVICE), torch.rand(1, 2, 12, 12, device=DEVICE)
    shapes = [
        ((1, 12, 1, 3), (1, 1, 1, 12)),
        ((12, 12, 3), (2, 12, 1)),
        ((1, 3), (1, 12)),
        ((3,), (12,)),
        ((1, 1, 3), ()),
    ]
    for shape, other in shapes:
        few = {"three": three.flatten()[: math.prod(shape)].view(shape)}
        few["apart"] = apart.flatten()[: math.prod(other)].view(other)
        whole = {"three": few["three"].expand(1, 12, 12, 3), "apart": few["apart"].expand(1, 2, 12, 12)}
        wanted = module.reference(**given, **whole)
        for attend, call in ((module.attention, given), (decoding.attend_with_cache, decoded)):
            torch.testing.assert_close(attend(**call, **few), wanted, rtol=1e-4, atol=1e-4)
            with pytest.raises(ValueError, match=r"^three: expected shape"):
                attend(**call, **(whole | {"three": three[..., :1]}))


def held(name: str) -> dict[str, torch.Tensor]:
    """The tensors that a call without them behaves as if it had."""
    count, packed = 12, name.startswith("packed")
    rows = () if packed else (1,)
    found = {
        "reach": torch.full((2, 3), 6),
        "open": torch.ones(2 if packed else 1, dtype=torch.bool),
        "doc": torch.full((*rows, count), 3),
        "lift": torch.full((*rows, 2, count), 0.5),
        "fade": torch.full((*rows, count, 2), -0.125),
        "calm": torch.full((count, *rows), 0.75),
    }
    pairs = {"bias": torch.full((2, count, count), -0.25), "near": torch.ones(3, 3, dtype=torch.bool)}
    return {key: x.to(DEVICE) for key, x in (found if packed else found | pairs).items()}


@pytest.mark.parametrize("function", ["attention", "reference"])
@pytest.mark.parametrize("name", ["constants", "packed_constants"])
def test_tensors_of_one_value_may_be_left_out(name: str, function: str, package: Callable[[str], ModuleType]) -> None:
    attend, full = getattr(package(name), function), held(name)
    given = operands(name.startswith("packed")) | (cuts(0, 5, 12) if name.startswith("packed") else {})
    tensors = [given[x].requires_grad_() for x in "qkv"]
    plain, known = (attend(**given, **x, return_lse=True) for x in ({}, full))
    slopes, known_slopes = (torch.autograd.grad(out.square().sum() + lse.sum(), tensors) for out, lse in (plain, known))
    for x, y in zip((*plain, *slopes), (*known, *known_slopes), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(plain, package(name).reference(**given, return_lse=True), rtol=1e-4, atol=1e-4)
    for key, x in full.items():
        learns = x.float().requires_grad_() if key in ("lift", "fade") else x
        torch.testing.assert_close(attend(**given, **{key: learns}), plain[0], rtol=1e-6, atol=1e-6)
        rising = torch.linspace(1, 4, x.numel(), device=DEVICE).view(x.shape)
        other = ~x if x.dtype == torch.bool else rising.to(x.dtype)
        assert not torch.equal(attend(**given, **{key: other}), plain[0])


@pytest.mark.parametrize("name", ["constants", "packed"])
@pytest.mark.parametrize(
    ("wrong", "change"),
    [
        *itertools.product("qkv", ["flat", "more heads", "another batch"]),
        *(("q", "narrow"), ("k", "narrow"), ("k", "short"), ("v", "short")),
    ],
)
def test_the_reference_tells_of_shapes_as_attention_does(
    name: str, wrong: str, change: str, package: Callable[[str], ModuleType]
) -> None:
    packed = name == "packed"
    given = operands(packed) | (cuts(0, 12) if packed else {})
    x = given[wrong]
    given[wrong] = {
        "narrow": x[..., :8], "short": x[:5] if packed else x[:, :5], "flat": x.flatten(-2),
        "more heads": x.repeat_interleave(3, -2)[..., :3, :],
        "another batch": x[None] if packed else x.repeat(2, 1, 1, 1),
    }[change]  # fmt: skip
    with pytest.raises(ValueError, match=r"^[kvq]: expected .*, got .*") as told:
        package(name).attention(**given)
    with pytest.raises(ValueError, match=f"^{re.escape(str(told.value))}$"):
        package(name).reference(**given)


def test_a_shape_of_any_head_size_is_told_by_letters(package: Callable[[str], ModuleType]) -> None:
    x = operands()
    with pytest.raises(ValueError, match=r"^v: expected shape \(1, 12, 2, Dv\) beside k, got \(1, 11, 2, 16\)$"):
        package("constants").attention(x["q"], x["k"], x["v"][:, :11])


@pytest.mark.parametrize(
    ("name", "shape", "told"),
    [
        ("bias", (12, 5), r"expected shape \(2, 12, 12\), got \(12, 5\)"),
        ("bias", (1, 1, 12, 12), r"expected shape \(2, 12, 12\), got \(1, 1, 12, 12\)"),
        ("near", (4,), r"expected shape \(3, 3\), got \(4,\)"),
    ],
)
def test_messages_show_the_shape_that_was_given(
    name: str, shape: tuple[int, ...], told: str, package: Callable[[str], ModuleType]
) -> None:
    x = torch.zeros(shape, device=DEVICE)
    with pytest.raises(ValueError, match=f"^{name}: {told}$"):
        package("constants").attention(**operands(), **{name: x.bool() if name == "near" else x})


@pytest.mark.slow
def test_a_compiler_takes_calls_without_them(package: Callable[[str], ModuleType]) -> None:
    attention, given = package("constants").attention, operands()
    compiled = torch.compile(lambda x: attention(**x), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(given), attention(**given))


def test_what_is_left_out_takes_no_memory(
    package: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    module, seen = package("constants"), dict[str, torch.Tensor]()
    launch = importlib.import_module(f"{module.__name__}.launch")
    attend, names = launch.attend, inspect.signature(launch.attend).parameters

    def watched(*given: Any) -> Any:
        seen.update({name.removeprefix("in_"): x for name, x in zip(names, given, strict=True)})
        return attend(*given)

    monkeypatch.setattr(launch, "attend", watched)
    module.attention(**operands())
    for name in held("constants"):
        assert seen[name].untyped_storage().nbytes() <= 4
    float16 = {x: y.half() for x, y in operands().items()}
    module.attention(**float16)
    assert seen["lift"].dtype == torch.float32


def test_names_of_a_user_may_be_those_of_sizes(package: Callable[[str], ModuleType]) -> None:
    both = package("capitals")
    lift = torch.linspace(-1, 1, 24, device=DEVICE).view(2, 12).requires_grad_()
    found, known = (f(**operands(), T=0.5, B=lift) for f in (both.attention, both.reference))
    torch.testing.assert_close(found, known, rtol=1e-3, atol=1e-3)
    slopes, known_slopes = (torch.autograd.grad(x.square().sum(), lift) for x in (found, known))
    torch.testing.assert_close(slopes, known_slopes, rtol=1e-2, atol=1e-2)


@pytest.mark.skipif(GPU, reason="of Triton's interpreter")
@pytest.mark.parametrize("name", ["rope", "packed"])
def test_bfloat16_is_rounded_at_both_ends_in_the_interpreter(name: str, package: Callable[[str], ModuleType]) -> None:
    given = arguments(name)
    tensors = {x: given[x].bfloat16().requires_grad_() for x in "qkv"}
    wide = {x: tensors[x].detach().float().requires_grad_() for x in "qkv"}
    out, lse = package(name).attention(**given | tensors, return_lse=True)
    known, known_lse = package(name).attention(**given | wide, return_lse=True)
    assert torch.equal(out, known.bfloat16()) and torch.equal(lse, known_lse)
    slopes = torch.autograd.grad(out.sum(), [*tensors.values()])
    for slope, known_slope in zip(slopes, torch.autograd.grad(known.sum(), [*wide.values()]), strict=True):
        assert torch.equal(slope, known_slope.bfloat16())
