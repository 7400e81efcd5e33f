"""Modules for FlexAttention give the same results as the printed reference, or a reason why there is none."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import unformatted
from click.testing import CliRunner
from torch.nn.attention.flex_attention import AuxOutput

from attnforge.cli import commands
from attnforge.expressions.functions import FUNCTIONS
from attnforge.language import spec
from attnforge.plan import plan, reference
from attnforge.render import format, render
from attnforge.source import resources

pytestmark = pytest.mark.slow

Function = Callable[..., Any]
DROPPED = {name: path for name, path in resources.variants().items() if "dropout: true" in path.read_text()}
SHIPPED = {name: path for name, path in resources.variants().items() if name not in DROPPED}
FOUND = {path.stem: path for path in sorted((Path(__file__).parents[1] / "found_specs").glob("*.yaml"))}
GENERATED = Path(__file__).parents[2] / "generated"


HAND_MADE = {
    "floors": """
mask:
  - expr: "(q - k - 7) // 3 % 4 != 1 or k % 3 == (q - 20) % 3 or (k - q) * 0.5 % 2.0 < 0.75"
score:
  - expr: "score + (k - q) // 4 + (k - q) % -5 + (score - 1.5) // 0.5 + (q - 3 * k) % 0.75"
""",
    "nested": """
mask:
  - any: [causal, all: [not: causal, expr: "k < few"], not: {sliding_window: {size: 4}}]
  - not: {any: [{expr: "q == 3"}, all: [{expr: "h == 1"}, {expr: "b == 0 and kv_h == 0"}]]}
inputs:
  few: {axes: [], dtype: int}
""",
    "axes": """
mask:
  - expr: "shown or k < seen_rows"
  - expr: "not hidden or opened[q]"
score:
  - expr: "score * one + two * three + four[k] - four[q]"
  - expr: "score + other[q] * other[k] + whole * 0.5 + plain"
inputs:
  shown: {axes: [batch, key], dtype: bool}
  seen_rows: {axes: [query, head], dtype: int}
  hidden: {axes: [key, kv_head], dtype: bool}
  opened: {axes: [token], dtype: bool}
  one: {axes: [head], grad: true}
  two: {axes: [kv_head, batch], grad: true}
  three: {axes: [head, query, batch], grad: true}
  four: {axes: [kv_head, token], grad: true, scan: cumsum}
  other: {axes: [token, batch], grad: true}
  whole: {axes: [kv_head, key], dtype: int}
  plain: {axes: [], dtype: float}
""",
    "shared_by_batch_entries": """
mask:
  - expr: "shown or k < ends"
score:
  - expr: "score * warm + bias + by_key + table[min(abs(q - k), 3)] * n"
inputs:
  shown: {axes: [batch % 2, query, key], dtype: bool}
  ends: {axes: [head, batch // 2], dtype: int}
  warm: {axes: [batch % n, head], grad: true}
  bias: {axes: [batch // n, head, query, key], grad: true}
  by_key: {axes: [kv_head, batch % 3, key], grad: true}
  table: {axes: [batch // 2, 4], grad: true}
  n: {axes: [], dtype: int, min: 1}
""",
    "reads_again": """
mask: [causal]
score:
  - expr: "temp * tanh(score / temp) + x[q] * x[k] - x[q] * temp"
  - expr: "score + x_here * x[k]"
inputs:
  temp: {axes: [head], grad: true}
  x: {axes: [batch, token], grad: true}
  x_here: {axes: [query], grad: true}
""",
    "hides_what_it_learns": """
mask:
  - expr: "slope < 0.5 or slope * (q - k) < 4"
  - expr: "decay[q] - decay[k] > -3 and table[min(k, 3)] + table[min(q, 3)] < 2"
score:
  - expr: "score - slope * (q - k) + (decay[q] - decay[k]) + slope * table[min(k, 3)]"
inputs:
  slope: {axes: [head], grad: true}
  decay: {axes: [batch, token, head], grad: true, scan: cumsum, max: 0}
  table: {axes: [4], grad: true}
""",
    "packed_hides_what_it_learns": """
layout: packed
mask: [causal, expr: "lift[k] > -0.5"]
score: [expr: "score + log(lift[k] + 0.5)"]
inputs: {lift: {axes: [token, head], grad: true}}
""",
    "sums_that_nothing_hides": """
score: [log_decay, expr: "log(exp(score) + x[k] * x[k])"]
inputs: {x: {axes: [token], grad: true}}
""",
    "packed_sequences_that_nothing_else_hides": """
layout: packed
score: [expr: "score + lift[k] * sqrt(k_len - k)"]
inputs: {lift: {axes: [token, head], grad: true}}
""",
    "choices": """
score:
  - expr: "score if k % 3 == 0 else score / (k % 3)"
  - expr: "score + (lift[k] * log(lift[k]) if lift[k] > 0 else lift[k])"
inputs: {lift: {axes: [token, head], grad: true}}
""",
    "functions": """
mask:
  - expr: "min(q, 9) >= max(k - 3, 0, 1) and clamp(k, 2, 7) <= abs(q) and exp(size / 8) > 0.1 * k"
score:
  - expr: "sin(score) + cos(k) + sigmoid(size) + softplus(q - k) + sqrt(abs(score)) + log(k + 1) + floor(score * size)"
  - expr: "score + (0.1 if q > k else 0.7) + min(score, 0.3) + max(k - q, 0.5)"
  - expr: "score + (k + 1) ** 2 + (k + 1) ** -0.5 + 2 ** -k"
  - expr: "where(q_len > 4, score, 2 * score) + exp(0.1 * size) + k / 3 + (q if q > k else 0.25 * k)"
inputs:
  size: {axes: []}
""",
    "every_function": "score:\n  - expr: '"
    + " + ".join(f"{name}({', '.join(['0.5 + abs(score)', 'k'][: f.count or 2])})" for name, f in FUNCTIONS.items())
    + "'\n",
    "constants": """
mask:
  - expr: "q_len > 0"
  - expr: "k_len > 1 or h > 0"
score:
  - expr: "q - k"
""",
    "number": "score:\n  - expr: '2'\n  - expr: score - k\n",
    "left_out": """
mask:
  - expr: "q - k < reach[(q - k) % 3] and open and doc[k] == doc[q] and near"
score:
  - expr: "score * calm + bias + lift * tanh(score) + fade[q] - fade[k]"
inputs:
  reach: {axes: [kv_head, 3], dtype: int, default: 6}
  open: {axes: [batch], dtype: bool, default: true}
  near: {axes: [query // 4, key // 4], dtype: bool, default: true}
  doc: {axes: [batch, token], dtype: int, default: 3}
  lift: {axes: [batch, head, query], grad: true, default: 0.5}
  fade: {axes: [batch, token, head], grad: true, scan: cumsum, default: -0.125}
  calm: {axes: [key, batch], default: 0.75, min: 0.5}
  bias: {axes: [head, query, key], default: -0.25}
""",
    "packed_left_out": """
layout: packed
mask:
  - expr: "q - k < reach[(q - k) % 3] and open and doc[k] == doc[q]"
score:
  - expr: "score * calm + lift * tanh(score) + fade[q] - fade[k]"
inputs:
  reach: {axes: [kv_head, 3], dtype: int, default: 6}
  open: {axes: [batch], dtype: bool, default: true}
  doc: {axes: [batch, token], dtype: int, default: 3}
  lift: {axes: [batch, head, query], grad: true, default: 0.5}
  fade: {axes: [batch, token, head], grad: true, scan: cumsum, default: -0.125}
  calm: {axes: [key, batch], default: 0.75, min: 0.5}
""",
    "numbers": "mask: [causal]\nscore:\n  - expr: q_len - 3\n",
    # expressions of a call's numbers for which Python raises an error: the inputs are 5 and 0.75
    "poles": """
mask:
  - expr: "k <= q and k >= k_len % (q_len // 512) - q_len or log(size - 0.75) > k"
score:
  - expr: "score + max(log(k_len // 512), -1) + tanh(1 / (q_len // 512)) + 1 / exp(900 * k_len)"
  - expr: "score + min(score, exp(900 * few)) + few % (few - 5) + table[min(few // (few - 5), 1)]"
  - expr: "score + (0.5 if sqrt(q_len - 500) > 0 else 0.25) + (0.5 if (q_len - 500) ** size > 1 else 0.25)"
  - expr: "score + where(k_len > 512, log(k_len // 512), 2) + table[floor(log(few - 5))]"
inputs:
  size: {axes: []}
  few: {axes: [], dtype: int}
  table: {axes: [4], grad: true}
""",
    "packed_poles": """
layout: packed
mask: [causal]
score:
  - expr: "score + max(log(few - 5), -1) + tanh(size / (few - 5)) + 1 / exp(900 * few)"
  - expr: "score + few // (few - 5) + few % (few - 5)"
  - expr: "score + (0.5 if sqrt(size - 1) > 0 else 0.25) + (0.5 if (size - 1) ** size > 1 else 0.25) + sigmoid(size)"
inputs:
  size: {axes: []}
  few: {axes: [], dtype: int}
""",
    "runtime": """
rope: {layout: interleaved, dims: 4}
mask: [causal, sliding_window: {size: runtime}]
score: [softcap: {cap: 2.0}, alibi]
""",
    "patterns": """
mask:
  - any: [chunked: {size: 4}, dilated: {stride: runtime}, global_tokens: {count: 2}]
  - not: {local_2d: {width: 3, radius: 1}}
  - segments
""",
    "tree": "mask: [tree]\nscore: [bias]\n",
    "blocks": "mask: [block_sparse: {block: 4}]\nscore: [relative_bias: {buckets: 8, max_distance: 9}]\n",
    "one_way": "mask: [causal]\nscore: [relative_bias: {buckets: 6, max_distance: 9, bidirectional: false}]\n",
    "tables": """
mask:
  - expr: "by_key[max(k - 5, 0)] or by_row[k, q - 1] or by_key[0] or parents[max(q - 2, 0)] <= k"
  - expr: "not by_key[parents[k]] or k_len < few or by_key[min(few, k_len - 1)]"
score:
  - expr: "score * table[q - k, parents[k] + 1] + far[k - 3] * far[abs(q - k)] + far[k - 3] + table[0, -7]"
  - expr: "score + pairs + pairs[h, k, q] * 0.5 + spread[floor(score_scale * k)]"
inputs:
  by_key: {axes: [token, head], dtype: bool}
  by_row: {axes: [query, batch, query], dtype: bool}
  parents: {axes: [token], dtype: int}
  few: {axes: [], dtype: int}
  table: {axes: [5, kv_head, 3], grad: true}
  far: {axes: [batch, 4], grad: true}
  pairs: {axes: [head, key, query], grad: true}
  spread: {axes: [7]}
  score_scale: {axes: []}
""",
    "packed_tables": """
layout: packed
mask:
  - segments
  - expr: "by_key[k // 2] or by_key[min(k + 1, k_len - 1)] or by_key[parents[q]] or exp(b) > 9"
score:
  - relative_bias: {buckets: 8, max_distance: 9}
  - expr: "score + far[k - 3] + by_token[b, k % 2] + far[0]"
inputs:
  by_key: {axes: [token, head], dtype: bool}
  far: {axes: [batch, 4], grad: true}
  parents: {axes: [token], dtype: int}
  by_token: {axes: [key, 3, kv_head, 2], grad: true}
""",
    "packed_axes": """
layout: packed
mask:
  - expr: "k <= q + b or k_len - k < few"
  - expr: "shown or q == 0 or opened[k]"
score:
  - expr: "score * one + two * three + four[k] - four[q] + q_len / (k_len + 1) + b"
inputs:
  few: {axes: [batch], dtype: int}
  shown: {axes: [batch, key], dtype: bool}
  opened: {axes: [token], dtype: bool}
  one: {axes: [head, batch], grad: true}
  two: {axes: [kv_head], grad: true}
  three: {axes: [head, query, batch], grad: true}
  four: {axes: [kv_head, token], grad: true, scan: cumsum}
""",
    "far": """
mask:
  - expr: "(q * 99999989 + k * 123456789 + mark[k] * 268435399) % 3 > 0"
score:
  - expr: "score - (q - k) ** 2 * 0.000001 * (mark[q] * 123456789 % 7) + (mark[k] * jump * 268435399 % 5)"
inputs:
  mark: {axes: [batch, token], dtype: int}
  jump: {axes: [], dtype: int, min: 0, max: 100}
""",
    "sinks": "sink: true\nmask: [causal]\nscore: [softcap: {cap: 3.0}]\n",
    "packed_sinks": "layout: packed\nsink: true\nheads: equal\nmask: [sliding_window: {size: 2}]\n",
    "packed_turned": """
layout: packed
rope: {layout: interleaved}
mask: [sliding_window: {size: 3}, not: {expr: "q_len == 2"}]
score: [softcap: {cap: 3.0}]
""",
}


@dataclass(frozen=True)
class Variant:
    """A variant, as computed by both modules."""

    planned: plan.Plan
    texts: reference.Oracle
    exported: dict[str, Any]
    reference: Function


@pytest.fixture(scope="module")
def variants(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Variant]:
    """A shipped or hand-made variant by name."""
    folder = tmp_path_factory.mktemp("export")

    @functools.cache
    def variant(name: str) -> Variant:
        path = SHIPPED.get(name) or FOUND.get(name) or written(name, HAND_MADE[name], folder)
        loaded = spec.load(path, terms=resources.terms_for(path))
        planned = plan.build(loaded)
        printed = GENERATED / name / "reference.py"
        with unformatted.of_plan(planned):
            flex = render.export(loaded, "flex")
            text = printed.read_text() if name in SHIPPED else render.file(loaded, "reference.py")
        return Variant(
            planned,
            reference.build(loaded, planned.arguments),
            module(flex, folder / f"{name}_flex.py"),
            module(text, folder / f"{name}_reference.py")["reference"],
        )

    return variant


def test_what_leaves_int32_is_computed_from_int64(tmp_path: Path) -> None:
    """Positions are int32 in FlexAttention's compiled functions, and numbers of a call may be int32, too."""
    path = written("far", HAND_MADE["far"], tmp_path)
    loaded = spec.load(path, terms=resources.terms_for(path))
    text = render.export(loaded, "flex")
    assert "q_pos = q_idx.long() + shift" in text and "k_pos = kv_idx.long()" in text and "in_mark.long()" in text
    printed = unformatted.file(loaded, "reference.py")
    assert "in_mark.long()" in printed and "torch.as_tensor(in_jump, dtype=torch.long" in printed


def written(name: str, document: str, folder: Path) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(f"name: {name}\ndescription: A test.\n{document}")
    return path


def module(text: str, path: Path) -> dict[str, Any]:
    path.write_text(text)
    found = importlib.util.spec_from_file_location(path.stem, path)
    assert found is not None and found.loader is not None
    made = importlib.util.module_from_spec(found)
    sys.modules[path.stem] = made  # flex_attention looks up there the names that its functions use
    found.loader.exec_module(made)
    return vars(made)


@dataclass(frozen=True)
class Case:
    """Sizes of a call: the length of all sequences of a batch, or of each packed sequence."""

    q_lens: tuple[int, ...]
    k_lens: tuple[int, ...]
    heads: tuple[int, int]
    dtype: torch.dtype = torch.float64
    widths: tuple[int, int] = (8, 6)  # columns of q and k, and of v


def arguments(of: Variant, case: Case, *, whole: bool = True) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """q, k, v and keywords; unless `whole`, axes that may have size 1 do."""
    torch.manual_seed(sum(case.q_lens) * 100 + sum(case.k_lens))
    (Hq, Hkv), (D, Dv), B = case.heads, case.widths, 2
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
            keywords[a.name] = {"int": 5, "float": 0.75, "bool": True}[a.dtype]
        elif not a.optional:
            numbers = {other.code: keywords.get(other.name) for other in of.planned.arguments}
            shape = eval(of.texts.shapes[a.name], sizes | numbers)
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
        x = torch.randint(-2, 9, shape, dtype=torch.int32)
    else:
        x = torch.rand(shape, dtype=torch.float64)
        x = -x if a.scan else x + 0.25
    return x.clamp(a.minimum, a.maximum) if (a.minimum, a.maximum) != (None, None) else x


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


def close(case: Case) -> dict[str, float]:
    return {} if case.dtype == torch.float32 else {"rtol": 1e-9, "atol": 1e-10}


def dense(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    score_mod: Function | None = None,
    block_mask: Function | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_aux: Any = None,
) -> tuple[torch.Tensor, Any]:
    """The results of flex_attention, differentiable on a CPU: its functions get indices that broadcast."""
    assert enable_gqa or q.shape[1] == k.shape[1]
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    score = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    places = [torch.arange(n, device=q.device).view(-1, *[1] * (3 - i)) for i, n in enumerate(score.shape)]
    if score_mod is not None:
        score = score_mod(score, *places).expand_as(score)
    keep = torch.ones_like(score, dtype=torch.bool)
    if block_mask is not None:
        keep = keep & block_mask(*places)
    some = keep.any(-1, keepdim=True)
    score = torch.where(keep, score, torch.where(some, -torch.inf, 0.0))
    lse = torch.where(some[..., 0], score.logsumexp(-1), -torch.inf)
    return torch.where(some, score.softmax(-1), 0) @ v, AuxOutput(lse=lse if return_aux.lse else None)


def gradients(of: Variant, function: Function, operands: list[torch.Tensor], keywords: dict[str, Any]) -> Any:
    """Output, LSE and the gradients of everything learned."""
    learn = {a.name for a in of.planned.arguments if a.grad}
    operands = [x.clone().requires_grad_() for x in operands]
    keywords = {name: x.clone().requires_grad_() if name in learn else x for name, x in keywords.items()}
    out, lse = function(*operands, **keywords, return_lse=True)
    seen = torch.where(lse == -torch.inf, 0, lse)
    loss = (out * torch.linspace(-1, 1, out.numel(), device=out.device).view(out.shape)).sum() + (seen * seen).sum()
    learned = [*operands, *(keywords[name] for name in sorted(learn))]
    # a score may depend on nothing that is learned
    return out, lse, *torch.autograd.grad(loss, learned, materialize_grads=True)


def telling() -> list[str]:
    """Shipped variants with something that none before them has: a word, a kind of input, or a layout of tensors."""
    found, known = [], set[object]()
    for name, path in SHIPPED.items():
        one = spec.load(path, terms=resources.terms_for(path))
        said = {(n.op, n.value) for term in one.nodes for n in term.walk() if n.op not in ("num", "input")}
        said |= {(given.dtype, given.kinds, bool(given.default)) for given in one.inputs}
        said |= {f"{one.packed=}", f"{one.grouped=}", f"{one.latent=}", f"{one.sink=}", f"{one.rope=}"}
        found += [name] if said - known else []
        known |= said
    return found


@pytest.mark.parametrize("name", [*telling(), *HAND_MADE])
def test_flex_attention_gives_what_the_reference_gives(name: str, variants: Callable[[str], Variant]) -> None:
    of = variants(name)
    # PyTorch traces the functions for each case; the next test calls those of shipped variants with all cases, too
    for case in cases(of)[1 : 2 if name in SHIPPED else None]:
        operands, keywords = arguments(of, case)
        got = of.exported["attention"](*operands, **keywords, return_lse=True)
        torch.testing.assert_close(got, of.reference(*operands, **keywords, return_lse=True), **close(case))


@pytest.mark.parametrize("name", ["left_out", "packed_left_out"])
def test_what_may_be_left_out_is_what_the_reference_has(
    name: str, variants: Callable[[str], Variant], monkeypatch: pytest.MonkeyPatch
) -> None:
    of = variants(name)
    monkeypatch.setitem(of.exported, "flex_attention", dense)
    monkeypatch.setitem(of.exported, "create_block_mask", lambda mask, *sizes, device: mask)
    for case in cases(of):
        operands, keywords = arguments(of, case)
        cuts = {x: value for x, value in keywords.items() if "seqlen" in x}
        got = of.exported["attention"](*operands, **cuts, return_lse=True)
        torch.testing.assert_close(got, of.reference(*operands, **cuts, return_lse=True), **close(case))


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("name", [*SHIPPED, *HAND_MADE, *FOUND])
def test_the_functions_have_the_gradients_of_the_reference(
    name: str, whole: bool, variants: Callable[[str], Variant], monkeypatch: pytest.MonkeyPatch
) -> None:
    of = variants(name)
    monkeypatch.setitem(of.exported, "flex_attention", dense)
    monkeypatch.setitem(of.exported, "create_block_mask", lambda mask, *sizes, device: mask)
    for case in cases(of):
        operands, keywords = arguments(of, case, whole=whole)
        got = gradients(of, of.exported["attention"], operands, keywords)
        want = gradients(of, of.reference, operands, keywords)
        torch.testing.assert_close(got, want, **close(case))


def test_rows_without_keys_are_zero(variants: Callable[[str], Variant]) -> None:
    of = variants("causal")
    for case, unseen in ((Case((9,), (4,), (4, 2)), 5), (Case((3,), (0,), (2, 2)), 3)):
        operands, keywords = arguments(of, case)
        out, lse = of.exported["attention"](*operands, **keywords, return_lse=True)
        assert not out[:, :unseen].any()
        assert (lse[..., :unseen] == -torch.inf).all() and lse[..., unseen:].isfinite().all()


@pytest.mark.parametrize("name", ["packed_log_decay", "packed_rope", "packed_sinks", "packed_turned"])
def test_rows_that_no_sequence_has_are_zero(
    name: str, variants: Callable[[str], Variant], monkeypatch: pytest.MonkeyPatch
) -> None:
    of = variants(name)
    operands, keywords = arguments(of, Case((2, 3, 0, 5, 4), (2, 3, 0, 5, 4), (2, 2)))
    for ends in (slice(1, -1), slice(0, -1), slice(1, None)):
        cuts = {x: keywords[x][ends] for x in ("cu_seqlens_q", "cu_seqlens_k")}
        want = gradients(of, of.reference, operands, keywords | cuts)
        if ends == slice(1, -1):  # only once, as PyTorch traces the functions for each call
            got = of.exported["attention"](*operands, **keywords | cuts, return_lse=True)
            torch.testing.assert_close(got, want[:2], rtol=1e-9, atol=1e-10)
        with monkeypatch.context() as patch:
            patch.setitem(of.exported, "flex_attention", dense)
            patch.setitem(of.exported, "create_block_mask", lambda mask, *sizes, device: mask)
            got = gradients(of, of.exported["attention"], operands, keywords | cuts)
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", ["packed_causal", "packed_log_decay", "packed_rope", "packed_sinks", "packed_axes"])
def test_calls_without_sequences_give_zeros(name: str, variants: Callable[[str], Variant]) -> None:
    of = variants(name)
    operands, keywords = arguments(of, Case((5,), (5,), (2, 2)))
    keywords |= {x: torch.zeros(1, dtype=torch.int32) for x in ("cu_seqlens_q", "cu_seqlens_k")}
    out, lse, *learned = gradients(of, of.exported["attention"], operands, keywords)
    assert out.shape == (5, 2, 6) and lse.shape == (2, 5)
    assert (lse == -torch.inf).all()
    assert not any(x.any() for x in (out, *learned))


@pytest.mark.parametrize("name", ["causal", "sinks", "rope", "packed_causal", "packed_rope"])
@pytest.mark.parametrize("sizes", [(3, 0), (0, 3)])
def test_gradients_of_no_keys_and_of_no_queries_are_zeros(
    name: str, sizes: tuple[int, int], variants: Callable[[str], Variant]
) -> None:
    of = variants(name)
    operands, keywords = arguments(of, Case(sizes[:1], sizes[1:], (2, 2)))
    got = gradients(of, of.exported["attention"], operands, keywords)
    assert not any(x.any() for x in (got[0], *got[2:5]))


def test_sinks_are_the_lse_of_rows_without_keys(variants: Callable[[str], Variant]) -> None:
    of = variants("sinks")
    operands, keywords = arguments(of, Case((3,), (0,), (2, 2)))
    out, lse = of.exported["attention"](*operands, **keywords, return_lse=True)
    assert not out.any()
    assert torch.equal(lse, keywords["sinks"][:, None].expand_as(lse))


@pytest.mark.parametrize("name", DROPPED)
def test_dropout_is_refused_with_the_reason(name: str) -> None:
    result = CliRunner().invoke(commands.main, ["export", name, "--to", "flex"])
    assert result.exit_code == 2 and result.stdout == ""
    assert f"{name}.yaml: FlexAttention has no dropout" in result.stderr


@pytest.mark.parametrize("given", ["k_lens", "k_starts", "q_start", "return_max_logit"])
def test_what_only_kernels_take_is_no_keyword(given: str, variants: Callable[[str], Variant]) -> None:
    one = variants("sink_window")
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{given}'"):
        one.exported["attention"](*(torch.zeros(1, 2, 1, 16) for _ in range(3)), **{given: None})


def test_only_the_output_comes_unless_the_lse_is_asked_for(variants: Callable[[str], Variant]) -> None:
    for name in ("full", "packed_full", "sinks"):
        of = variants(name)
        operands, keywords = arguments(of, cases(of)[0])
        out, _ = of.exported["attention"](*operands, **keywords, scale=0.3, return_lse=True)
        assert torch.equal(of.exported["attention"](*operands, **keywords, scale=0.3), out)


def test_more_queries_than_keys_are_refused_where_each_needs_one(variants: Callable[[str], Variant]) -> None:
    of = variants("log_decay")
    operands, keywords = arguments(of, Case((5,), (3,), (2, 2)))
    with pytest.raises(ValueError, match="no more queries than keys, as log_decay is read at both, got 5 and 3"):
        of.exported["attention"](*operands, **keywords)


# variants that torch 2.11 fails to compile, with errors of its own
NOT_COMPILED = {(n, True) for n in ("functions", "axes", "packed_axes", "packed_tables")}
NOT_COMPILED |= {("functions", False), ("tables", False)}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="flex_attention has no gradients on a CPU")
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", [*SHIPPED, *HAND_MADE])
def test_gradients_of_flex_attention(
    name: str, compiled: bool, variants: Callable[[str], Variant], request: pytest.FixtureRequest
) -> None:
    if (name, compiled) in NOT_COMPILED:
        from torch._dynamo.exc import TorchDynamoException

        request.applymarker(pytest.mark.xfail(raises=TorchDynamoException, strict=False))
    of = variants(name)
    # it does not compile fewer than 16 columns, nor fewer than 128 queries in float32
    lens = ((70, 0, 59), (70, 3, 61)) if of.planned.spec.packed else ((150,), (190,))
    case = Case(*lens, (4, 2), torch.float32, (32, 16))
    operands, keywords = arguments(of, case)
    operands = [x.cuda() for x in operands]
    keywords = {name: x.cuda() if isinstance(x, torch.Tensor) else x for name, x in keywords.items()}
    attention = of.exported["attention"]
    got = gradients(of, torch.compile(attention) if compiled else attention, operands, keywords)
    torch.testing.assert_close(got, gradients(of, of.reference, operands, keywords), rtol=1e-3, atol=1e-3)


def test_the_command_prints_the_module() -> None:
    result = CliRunner().invoke(commands.main, ["export", "alibi", "--to", "flex"])
    assert result.exit_code == 0
    assert result.stdout == format.python(result.stdout, "flex")
    assert "def mods(" in result.stdout and "def attention(" in result.stdout
    for wrong in (["export", "alibi"], ["export", "alibi", "--to", "flax"], ["export", "alibbi", "--to", "flex"]):
        result = CliRunner().invoke(commands.main, wrong)
        assert result.exit_code == 2 and result.stdout == ""
        assert "flex" in result.stderr or "did you mean 'alibi'?" in result.stderr
