"""Parts of scores that portable kernels read by distance, and what these learn, in calls of all kinds."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import devices  # noqa: F401  # where kernels run is settled before triton is imported
import numpy as np
import padding
import pytest
import torch
from random_specs import RandomSpec, suite, write
from triton.runtime import interpreter

from attnforge.language import spec
from attnforge.plan import plan
from attnforge.plan.plan import Plan

SLOPE = "{axes: [head], grad: true}"
TABLE = "{axes: [head, 10], grad: true}"
NEAR = "table[clamp(q - k, 0, 9)]"


def planned(text: str) -> Plan:
    return plan.build(spec.loads(f"name: mine\ndescription: A trial.\n{text}\n", Path(), shown="mine.yaml"))


def of_score(score: str, more: str = "") -> Plan:
    """The plan of a variant with one score term, and the inputs that it reads."""
    known = {"table": "[head, 10]", "rate": "[head]", "width": "[head]", "two": "[3, 4]"}
    inputs = (f"{name}: {{axes: {axes}, grad: true}}" for name, axes in known.items() if name in score)
    return planned(f"score: [{{expr: '{score}'}}]\ninputs: {{{', '.join(inputs)}}}\n{more}")


@pytest.mark.parametrize(
    ("score", "partials"),
    [
        (f"score + {NEAR}", {"in_table_at": 1.0}),
        (f"score - 3 * {NEAR}", {"in_table_at": 3.0}),
        (f"score - log(1 + abs(q - k)) * {NEAR}", {"in_table_at": "in_table_at_slope"}),
        (
            f"score + {NEAR} * table[(q - k) % 10]",
            {"in_table_at": "in_table_at_slope", "in_table_at1": "in_table_at1_slope"},
        ),
        (
            f"score - rate * log(1 + width * abs(q - k)) * {NEAR}",
            {"in_rate": "in_rate_slope", "in_width": "in_width_slope", "in_table_at": "in_table_at_slope"},
        ),
        (f"score + (rate + {NEAR})", {"in_rate": 1.0, "in_table_at": 1.0}),
        (f"score + rate + {NEAR}", {"in_table_at": 1.0}),  # `score + rate` comes first, and is no part
        ("score + two[clamp(q - k, 0, 2), clamp(k - q, 0, 3)]", {"in_two_at": 1.0}),
    ],
)
def test_derivatives_of_parts_are_numbers_or_values_by_distance(score: str, partials: dict[str, Any]) -> None:
    found = of_score(score)
    assert found.tabled
    (part,) = found.tabled.parts
    assert {x.access.name: x.slope for x in part.partials} == partials
    dq = found.kernels.own.dq
    assert dq
    taken = {parameter.name for parameter in dq.parameters}
    entries = {name for name in partials if "_at" in name}
    assert {name.removesuffix("_ptr") for name in taken if "_slope_" in name} == {
        x for x in partials.values() if isinstance(x, str)
    }
    assert {name for name in taken if name.endswith("_entries_ptr")} == {f"{name}_entries_ptr" for name in entries}


@pytest.mark.parametrize("more", ["targets: [portable]", "algorithm: flash1", "algorithm: flash2_strided_k", ""])
def test_all_portable_kernels_read_values(more: str) -> None:
    found = planned(f"score: [relative_bias]\n{more}")
    assert found.tabled and bool(found.hopper) == (not more)
    for kernel in found.kernels.own.all:
        taken = {parameter.name for parameter in kernel.parameters}
        assert "by_distance_ptr" in taken and "in_rel_bias_ptr" not in taken


@pytest.mark.parametrize(
    "score",
    [
        "score - exp(rate) * (q - k)",
        "score - 0.5 * abs(q - k) * table[3]",
        "score - rate * log(1 + width * abs(q - k))",
    ],
)
def test_what_costs_little_for_each_score_is_computed(score: str) -> None:
    found = of_score(score)
    assert found.hopper and found.hopper.by_distance and not found.tabled
    assert not any("by_distance_ptr" in str(kernel.parameters) for kernel in found.kernels.own.all)
    assert of_score(score, "targets: [portable]").by_distance is None


def test_kernels_that_do_not_learn_read_values_alone() -> None:
    found = of_score(f"score - rate * log(1 + width * abs(q - k)) * {NEAR}", "exports: [statistics]")
    assert found.statistics
    for kernel in (found.kernels.forward, found.kernels.own.dkv, found.statistics.kernel):
        assert kernel
        by_distance = {parameter.name for parameter in kernel.parameters if "distance" in parameter.name}
        assert by_distance == {"by_distance_ptr", "by_distance_stride_head"}
        assert not any("slope" in parameter.name for parameter in kernel.parameters)


def test_only_slots_of_a_program_are_added_to() -> None:
    """Sums of floats in an order that differs from run to run would be no deterministic gradient."""
    for score in (f"score + {NEAR}", f"score + {NEAR} * table[(q - k) % 10]"):
        dq = of_score(score).kernels.own.dq
        assert dq
        added = [line for line in str(dq.blocks["outward"]).split("'") if "add_by_entry" in line]
        assert added and all("_sum_ptr + slot * 10, " in line for line in added)


# variants, with everything that a step reads beside values by distance
SPECS = {
    "t5": "heads: equal\nscore: [{relative_bias: {buckets: 8, max_distance: 20, bidirectional: true}}]",
    "t5_causal": "mask: [causal]\nscore: [{relative_bias: {buckets: 6, max_distance: 30, bidirectional: false}}]",
    "clamped": f"score: [{{expr: 'score + {NEAR}'}}]\ninputs: {{table: {TABLE}}}",
    "twice": f"score: [{{expr: 'score + {NEAR} - 2 * exp(table[(q - k) % 10] / 4)'}}]\ninputs: {{table: {TABLE}}}",
    "besides": f"score: [{{expr: 'score + {NEAR} + table[q % 10]'}}]\ninputs: {{table: {TABLE}}}",
    "products": f"score: [{{expr: 'score * sigmoid(rate) + rate * {NEAR} * sqrt(1 + abs(q - k))'}}]\n"
    f"inputs: {{table: {TABLE}, rate: {SLOPE}}}",
    "slopes": "mask: [causal]\n"
    f"score: [{{expr: 'score - softplus(rate) * log(1 + softplus(width) * (q - k)) * {NEAR}'}}]\n"
    f"inputs: {{rate: {SLOPE}, width: {SLOPE}, table: {TABLE}}}",
    "capped": f"score: [{{expr: 'score + {NEAR}'}}, softcap: {{cap: 2}}]\ninputs: {{table: {TABLE}}}",
    "within": f"score: [{{expr: '3 * tanh((score + {NEAR}) / 3)'}}]\ninputs: {{table: {TABLE}}}",
    "scaled": f"score: [{{expr: 'score * 2'}}, {{expr: '3 * (score + {NEAR})'}}]\ninputs: {{table: {TABLE}}}",
    "factors": f"score: [{{expr: 'score * 2'}}, {{expr: '3 * {NEAR} + score'}}]\ninputs: {{table: {TABLE}}}",
    "replaced": f"score: [{{expr: '2 * {NEAR}'}}]\ninputs: {{table: {TABLE}}}",
    "negated": f"score: [{{expr: '{NEAR} - score'}}]\ninputs: {{table: {TABLE}}}",
    "window": "mask: [causal, sliding_window: {size: 37}]\nscore: [relative_bias]\nsink: true",
    "dropped": f"mask: [{{expr: 'k <= q or k < 9'}}]\nscore: [{{expr: 'score + {NEAR}'}}]\ndropout: true\n"
    f"inputs: {{table: {TABLE}}}",
    "pairs": f"score: [bias, {{expr: 'score - {NEAR}'}}]\ninputs: {{table: {TABLE}}}",
    "decays": f"mask: [causal]\nscore: [log_decay, {{expr: 'score + {NEAR}'}}]\ninputs: {{table: {TABLE}}}",
    "two_axes": "score: [{expr: 'score + two[clamp(q - k, 0, 2), clamp(k - q, 0, 3)]'}]\n"
    "inputs: {two: {axes: [3, 4], grad: true}}",
    "by_key_head": "score: [{expr: 'score + table[clamp(q - k, 0, 9)] * exp(-kv_h)'}]\n"
    "inputs: {table: {axes: [kv_head, 10], grad: true}}",
    "numbers": "mask: [causal, sliding_window: {size: runtime}]\nrope: {layout: half}\n"
    f"score: [{{expr: 'score - power * rate * sqrt(q - k) * {NEAR}'}}, softcap: {{cap: 5}}]\n"
    f"inputs: {{rate: {SLOPE}, power: {{axes: []}}, table: {TABLE}}}",
}
KINDS = (*padding.KINDS, "keys")
# two kinds of padding for each spec
PADDED = [(name, KINDS[(i + turn) % 4]) for i, name in enumerate(SPECS) for turn in (0, 2)]
PACKED = ("t5", "t5_causal", "clamped", "products", "slopes", "window", "dropped", "decays")


@pytest.fixture(scope="module")
def suites(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModuleType]:
    """The suites of all of them."""
    folder, found = tmp_path_factory.mktemp("by_distance"), dict[str, ModuleType]()
    every = [*((name, "") for name in SPECS), *((name, "packed") for name in PACKED)]
    for name, layout in every:
        called = f"by_distance_{name}{layout}"
        more = f"layout: {layout}\n" if layout else ""
        write(RandomSpec(called, f"name: {called}\n{more}{SPECS[name]}\n"), folder)
        found[f"{name}{layout}"] = suite(folder, called)
    return found


def case(module: ModuleType, q_lens: tuple[int, ...], k_lens: tuple[int, ...]) -> Any:
    """A case with two query heads to a key head, if heads may differ."""
    grouped = module.SMALL.Hq != module.SMALL.Hkv
    return dataclasses.replace(module.SMALL, q_lens=q_lens, k_lens=k_lens, Hq=4 if grouped else 2, Hkv=2)


@pytest.mark.slow
@pytest.mark.parametrize("name", SPECS)
def test_calls_of_all_lengths_follow_the_reference(name: str, suites: dict[str, ModuleType]) -> None:
    module = suites[name]
    over = any(x in SPECS[name] for x in ("rope:", "log_decay"))  # no more queries than keys
    for queries, keys in ((97, 97), (5, 130), *(() if over else ((70, 20),))):
        module.check(case(module, (queries,) * 2, (keys,) * 2))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), PADDED)
def test_padded_calls_follow_the_reference(name: str, kind: str, suites: dict[str, ModuleType]) -> None:
    module = suites[name]
    queries, places = padding.of(kind, 97)
    module.check(case(module, (queries,) * 3, (97,) * 3), **places)


@pytest.mark.slow
@pytest.mark.parametrize("name", PACKED)
def test_packed_sequences_follow_the_reference(name: str, suites: dict[str, ModuleType]) -> None:
    module = suites[f"{name}packed"]
    for q_lens, k_lens in (((0, 33, 1, 90, 0),) * 2, ((5, 0, 40, 8), (50, 7, 97, 70))):
        module.check(case(module, q_lens, k_lens))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["t5", "t5_causal", "slopes", "twice"])
def test_bits_hang_on_no_other_row(name: str, suites: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch) -> None:
    module = suites[name]
    monkeypatch.setattr("numpy.matmul", module.checks.row_by_row)
    call = module.make_inputs(case(module, (70, 70), (70, 70)))
    whole = module.checks.attention(**call)
    for first, end in ((0, 33), (33, 64), (64, 70)):
        chunk = module.checks.attention(**call | {"q": call["q"][:, first:end], "q_start": first})
        assert torch.equal(chunk, whole[:, first:end])
    alone = module.checks.attention(**call | {x: call[x][1:, :50] for x in "qkv"})
    if "causal" in SPECS[name]:
        assert torch.equal(alone, whole[1:, :50])


class Guarded:
    """Tensors by distance with room around them, and reads that leave them."""

    def __init__(self, module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rooms: list[tuple[int, int, torch.Tensor]] = []
        self.read = self.left = 0
        tables, load = importlib.import_module(f"{module.__package__}.by_distance"), self._load
        # what tiles of 32 rows need, instead of what the largest ones need
        text = Path(str(tables.__file__)).read_text()
        pairs = "// 16 * 16 + 528" in text
        self.margin = 16 + 32 * (1 + pairs)
        first_and_last = tables.distances

        def distances(q: torch.Tensor, k: torch.Tensor) -> tuple[int, int]:
            first, last = first_and_last(q, k)
            less = (528 if pairs else 272) - self.margin
            return first + less, last - less

        monkeypatch.setattr(tables, "distances", distances)
        monkeypatch.setattr(tables, "new_table", self._made(tables))
        builder, usual = interpreter.InterpreterBuilder, interpreter.InterpreterBuilder.create_masked_load

        def masked_load(own: Any, ptrs: Any, mask: Any, *more: Any, **named: Any) -> Any:
            load(ptrs.data, mask.data)
            return usual(own, ptrs, mask, *more, **named)

        monkeypatch.setattr(builder, "create_masked_load", masked_load)

    def _made(self, tables: ModuleType) -> Any:
        def new_table(q: torch.Tensor, k: torch.Tensor, new: Any = torch.empty, dtype: Any = torch.float32) -> Any:
            first, last = tables.distances(q, k)
            heads, room = q.shape[-2], 4096
            every = torch.full((heads * (last - first) + 2 * room,), torch.nan)
            table = every[room : len(every) - room].view(heads, last - first)
            self.rooms.append((table.data_ptr(), table.numel() * 4, every))
            return table[:, -first:]

        return new_table

    def _load(self, ptrs: Any, mask: Any) -> None:
        places = np.asarray(ptrs)[np.asarray(mask)].astype(np.int64)
        for begin, size, _ in self.rooms:
            near = (places >= begin - 4 * 4096) & (places < begin + size + 4 * 4096)
            inside = (places >= begin) & (places < begin + size)
            self.read += int(inside.sum())
            self.left += int((near & ~inside).sum())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["clamped", "slopes", "pairs", "clampedpacked"])
def test_no_tile_reads_beyond_the_last_distance(
    name: str, suites: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = suites[name]
    guarded = Guarded(module, monkeypatch)
    if module.PACKED:
        calls: Iterator[tuple[Any, Any]] = iter([(((0, 33, 1), (40, 7, 64)), {}), (((65, 65), (64, 1)), {})])
    else:
        lens = [((q,), (k,)) for q, k in itertools.product((1, 33, 64), (1, 31, 65)) if name != "slopes" or q <= k]
        padded = ((padding.of(kind, 49), kind) for kind in KINDS)
        more = [(((queries,) * 3, (49,) * 3), places) for (queries, places), _ in padded]
        # the first row that counts is the last one of its tile, the last key the first one
        more.append((((33,), (33,)), {"q_start": -31}))
        calls = iter([*((x, {}) for x in lens), *more])
    for lens_of, places in calls:
        call = module.make_inputs(dataclasses.replace(module.SMALL, q_lens=lens_of[0], k_lens=lens_of[1], Hq=1, Hkv=1))
        module.VARIANT.run(call | places)
    assert guarded.read > 0 and guarded.left == 0
