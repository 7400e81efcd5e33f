"""Attention over tokens that are split among ranks: the results and gradients of one call over all tokens."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import devices
import pytest
import torch
import torch.distributed as dist
import unformatted
import unrewritten
from torch.distributed.device_mesh import DeviceMesh
from torch.testing._internal.distributed.fake_pg import FakeStore

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
B, T, HEADS, KV_HEADS, D = 1, 24, 2, 1, 8
LONG = 192
ALIGNED = 16  # keys that neighbours send start at a multiple of this: of the one in use, it would take 1,344 tokens
Values = dict[str, Any]


def seeded(*sizes: int) -> torch.Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(sum(sizes)))


def angles(rows: int = 2 * T) -> Values:
    turned = torch.arange(rows)[:, None] / 3.0 ** torch.arange(D // 2)
    return {"cos": turned.cos(), "sin": turned.sin()}


def decays(*sizes: int) -> torch.Tensor:
    return torch.nn.functional.logsigmoid(seeded(*sizes) + 2)


@dataclass(frozen=True)
class Call:
    """A spec, and a call's arguments besides q, k and v: their token axes, and which of them are learned."""

    text: str
    inputs: Callable[[], Values] = dict
    axes: tuple[tuple[str, int], ...] = ()
    learned: tuple[str, ...] = ()
    keys: int | None = None
    packed: bool = False
    batch: int = B
    tokens: int = T


CALLS = {
    "a window, a cap, sinks and angles": Call(
        "mask: [causal, sliding_window: {size: runtime}]\nscore: [softcap: {cap: 5.0}]\n"
        "rope: {layout: half}\nsink: true",
        lambda: angles() | {"window": 7, "sinks": seeded(HEADS)},
        learned=("sinks",),
    ),
    "running sums, and rows of angles": Call(
        "mask: [causal]\nscore: [log_decay]\nrope: {layout: half}",
        lambda: angles()
        | {"positions": torch.arange(T).flip(0).expand(B, T).contiguous(), "log_decay": decays(B, T, HEADS)},
        (("positions", 1), ("log_decay", 1)),
        ("log_decay",),
    ),
    "pairs of another source, which is padded": Call(
        "score: [bias]",
        lambda: {
            **{name: torch.tensor([count], dtype=torch.int32) for name, count in (("k_lens", 20), ("k_starts", 3))},
            "bias": seeded(B, 1, T, 36),
        },
        (("bias", 2),),
        ("bias",),
        keys=36,
    ),
    "a prefix, and a table by distances": Call(
        "mask: [prefix_lm]\nscore: [relative_bias: {buckets: 8, max_distance: 16}]",
        lambda: {"prefix_len": torch.tensor([17], dtype=torch.int32), "rel_bias": seeded(HEADS, 8)},
        learned=("rel_bias",),
        keys=36,
    ),
    "documents, pages, and one entry for all keys": Call(
        "mask: [causal, segments, expr: page, expr: mine >= least]\n"
        "inputs:\n  page: {axes: [kv_head, key // 2], dtype: bool}\n"
        "  mine: {axes: [batch, query], dtype: int}\n  least: {axes: [batch, key], dtype: int}",
        lambda: {
            **{name: (torch.arange(T) // 9).int().expand(B, T) for name in ("q_segments", "k_segments")},
            "page": seeded(KV_HEADS, T // 2) > -0.5,
            "mine": torch.arange(T).int().expand(B, T) % 5,
            "least": torch.tensor([[2]]).int(),
        },
        (("q_segments", 1), ("k_segments", 1), ("page", 1), ("mine", 1)),
    ),
    "blocks of queries, pairs of keys, and a later key that is seen": Call(
        "mask: [expr: k <= q or k == 20]\nscore: [expr: 'score * lift + near[max(q, 3), k]']\n"
        "inputs: {lift: {axes: [batch, head, query // 2, key // 3]}, near: {axes: [key, key]}}",
        lambda: {"lift": seeded(B, HEADS, T // 2, T // 3), "near": seeded(T, T)},
        (("lift", 2),),
    ),
    "dropout, all keys counted, and the next key": Call(
        "mask: [causal]\nscore: [expr: score * k_len / 16, expr: 'score + lift[min(k + 1, k_len - 1)]']\n"
        "dropout: true\ninputs: {lift: {axes: [batch, token, head]}}",
        lambda: {"dropout_p": 0.3, "seed": 11, "lift": seeded(B, T, HEADS)},
        (("lift", 1),),
    ),
    "padding": Call(
        "mask: [causal]",
        lambda: {
            name: torch.tensor(found, dtype=torch.int32)
            for name, found in (("k_lens", (20, 24)), ("k_starts", (0, 3)), ("q_start", (0, -3)))
        },
        batch=2,
    ),
    "packed": Call(
        "layout: packed\nmask: [causal]\nscore: [log_decay]",
        lambda: {
            "log_decay": decays(T, HEADS), "cu_seqlens": torch.tensor([0, 4, 4, 15, 22]).int(), "max_seqlen": 11
        },
        (("log_decay", 0),),
        ("log_decay",),
        packed=True,
    ),
    "packed, without order": Call(
        "layout: packed", lambda: {"cu_seqlens": torch.tensor([0, 9, 24]).int(), "max_seqlen": 15}, packed=True
    ),
    "keys of neighbours": Call(
        "mask: [causal, sliding_window: {size: runtime}, expr: page, segments]\nrope: {layout: half}\n"
        "score: [relative_bias: {buckets: 8, max_distance: 16}, expr: score * lift + tint]\n"
        "inputs:\n  page: {axes: [kv_head, key // 2], dtype: bool}\n  lift: {axes: [query, key // 4]}\n"
        "  tint: {axes: [batch, key, head], grad: true}",
        lambda: angles(LONG)
        | {name: (torch.arange(LONG) // 42).int().expand(B, LONG) for name in ("q_segments", "k_segments")}
        | {"page": seeded(KV_HEADS, LONG // 2) > -1, "lift": seeded(LONG, LONG // 4) + 3}
        | {"window": 35, "rel_bias": seeded(HEADS, 8), "tint": seeded(B, LONG, HEADS)},
        (("q_segments", 1), ("k_segments", 1), ("page", 1), ("lift", 0), ("tint", 1)),
        ("rel_bias", "tint"),
        tokens=LONG,
    ),
    "rows of angles of neighbours": Call(
        "mask: [causal, sliding_window: {size: 47}]\nrope: {layout: half}\nscore: [log_decay]",
        lambda: angles(LONG)
        | {"positions": torch.arange(LONG).flip(0).expand(B, LONG).contiguous()}
        | {"log_decay": decays(B, LONG, HEADS).index_fill(1, torch.tensor([75, 142]), -torch.inf)},  # documents
        (("positions", 1), ("log_decay", 1)),
        ("log_decay",),
        tokens=LONG,
    ),
    "a chunk, whose keys are of neighbours": Call(
        "mask: [chunked: {size: 32}]\nscore: [expr: 'score + near[k // 32 - q // 32 + 1, k % 32]']\n"
        "inputs: {near: {axes: [3, 32]}}\nrope: {layout: half}",
        lambda: angles(LONG) | {"near": seeded(3, 32)},
        tokens=LONG,
    ),
    "packed, keys of neighbours": Call(
        "layout: packed\nmask: [causal, sliding_window: {size: 9}]\nscore: [alibi, log_decay]",
        lambda: {
            "slopes": seeded(HEADS).abs(), "log_decay": decays(LONG, HEADS), "max_seqlen": 142,
            "cu_seqlens": torch.tensor([0, 4, 4, 142, 157, LONG]).int(),
        },
        (("log_decay", 0),),
        ("slopes", "log_decay"),
        packed=True,
        tokens=LONG,
    ),
}  # fmt: skip
NEIGHBOURS = [name for name, call in CALLS.items() if call.tokens == LONG]  # sending all keys would send more
RANKS = min(3, torch.cuda.device_count()) if devices.GPU else 3
ORDERS = {"from both ends": True, "in one stretch": False}
IN_ONE_STRETCH = ("padding", "packed", *NEIGHBOURS)
ASKED = [(name, order) for name in CALLS for order in ORDERS if ORDERS[order] or name in IN_ONE_STRETCH]


@dataclass(frozen=True)
class Ran:
    """A folder with the results of ranks for each call, and the results of one process."""

    folder: Path
    expected: dict[str, Values]

    def found(self, name: str, order: str) -> Values:
        """The results of ranks for a call."""
        return dict(torch.load(self.folder / f"{[*CALLS].index(name)} {order}.found"))


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """The results of all calls, from several ranks and from one process."""
    if RANKS < 2:
        pytest.skip("needs two GPUs")
    folder = tmp_path_factory.mktemp("ranks")
    expected = {}
    for i, (name, call) in enumerate(CALLS.items()):
        package = rendered(folder, f"cut_{i}", call.text)
        given, upstream = made(call)
        expected[name] = at_once(package, call, given, upstream)
        rows = 0 if call.packed else 1
        axes = dict.fromkeys("qkv", rows) | dict(call.axes)
        asked = {"package": f"cut_{i}", "inputs": given, "axes": axes, "learned": [*"qkv", *call.learned]}
        asked |= {"upstream": upstream, "results": (rows, rows + 1), "aligned": ALIGNED}
        for order, zigzag in ORDERS.items():
            if (name, order) in ASKED:
                torch.save(asked | {"zigzag": zigzag}, folder / f"{i} {order}.call")
    (folder / "page.py").write_text(page())
    command = [sys.executable, str(Path(__file__).parents[1] / "rank.py"), str(folder)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT / "generator"), str(ROOT)))}
    ranks = [subprocess.Popen([*command, str(rank), str(RANKS)], env=env) for rank in range(RANKS)]
    assert [rank.wait(300) for rank in ranks] == [0] * RANKS
    return Ran(folder, expected)


def rendered(folder: Path, name: str, text: str) -> ModuleType:
    """The package of a spec's text."""
    path = folder / f"{name}.yaml"
    path.write_text(f"name: {name}\nexports: [context_parallel]\n{text}\n")
    unformatted.write(path, folder / name)
    return unrewritten.module(folder, name)


def made(call: Call) -> tuple[Values, list[torch.Tensor]]:
    """The call's arguments, and the gradients of its results."""
    lead = () if call.packed else (call.batch,)
    keys = call.keys or call.tokens
    q, k, v = seeded(*lead, call.tokens, HEADS, D), seeded(*lead, keys, KV_HEADS, D), seeded(*lead, keys, KV_HEADS, D)
    lse = (*lead, HEADS, call.tokens)
    return {"q": q, "k": k.flip(-1) - 0.5, "v": v, **call.inputs()}, [seeded(*q.shape).flip(-1), seeded(*lse)]


def at_once(package: ModuleType, call: Call, given: Values, upstream: list[torch.Tensor]) -> Values:
    """The results and gradients of one call."""
    given = devices.moved(given)
    learned = {name: given[name].detach().requires_grad_() for name in [*"qkv", *call.learned]}
    out, lse = package.attention(**given | learned, return_lse=True)
    gradients = torch.autograd.grad((out, lse), list(learned.values()), [devices.moved(x) for x in upstream])
    found = {"out": out, "lse": lse} | {f"d{name}": x for name, x in zip(learned, gradients, strict=True)}
    return {name: x.detach().cpu() for name, x in found.items()}


@pytest.mark.parametrize(("name", "order"), ASKED)
def test_ranks_find_what_one_call_does(ran: Ran, name: str, order: str) -> None:
    found, expected = ran.found(name, order), ran.expected[name]
    assert "error" not in found, found["error"]
    assert found.pop("gathers") == (name not in NEIGHBOURS)
    assert found.keys() == expected.keys()
    for result, wanted in expected.items():
        torch.testing.assert_close(found[result], wanted, rtol=1e-4, atol=1e-5, msg=lambda x, of=result: f"{of}: {x}")


@pytest.fixture
def first_of_two() -> Iterator[None]:
    """A group of two ranks, the other of which never answers."""
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def of_pairs(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    text = (
        "mask: [causal, expr: page]\nscore: [expr: score + lift + pairs]\n"
        "inputs:\n  page: {axes: [batch, key // 4], dtype: bool}\n"
        "  lift: {axes: [query, head]}\n  pairs: {axes: [query, key]}"
    )
    rendered(tmp_path_factory.mktemp("mistaken"), "pairs_of_ranks", text)
    return importlib.import_module("pairs_of_ranks.context_parallel")


def mistaken(tokens: int = 8, keys: int = 8, **more: Any) -> Values:
    k = seeded(B, keys, KV_HEADS, D)
    given = {
        "q": seeded(B, tokens, HEADS, D),
        "k": k,
        "v": k,
        "lift": seeded(tokens, HEADS),
        "pairs": seeded(tokens, 1),
    }
    return given | {"page": torch.ones(B, keys // 4, dtype=torch.bool)} | more


@pytest.mark.usefixtures("first_of_two")
@pytest.mark.parametrize(
    ("given", "told"),
    [
        (mistaken(7), "q: expected an even number of tokens on each rank, or zigzag=False, got 7"),
        (mistaken(k_lens=torch.tensor([5]).int()), "q_start: expected the position of the first query of all ranks"),
        (mistaken(4, 4, page=torch.ones(B, 1).bool()), "page: expected stretches of a multiple of 4 tokens, .* got 2"),
        (mistaken(page=torch.ones(B, 4).bool()), r"page: expected this rank's 2 along axis -1, got shape \(1, 4\)"),
        (mistaken(lift=seeded(16, HEADS)), r"lift: expected this rank's 8 along axis -2, got shape \(16, 2\)"),
        (mistaken(pairs=seeded(8, 8)), r"pairs: expected all ranks' 16 along axis -1, got shape \(8, 8\)"),
        (mistaken(pairs=seeded(8, 20)), r"pairs: expected all ranks' 16 along axis -1, got shape \(8, 20\)"),
        (mistaken(k=seeded(B, 8, 3, D)), "k: expected"),
        (mistaken(keys=9), "k: expected an even number of tokens on each rank, or zigzag=False, got 9"),
        (mistaken(zigzag=1), "zigzag: expected"),
        (mistaken(q_start="first"), "q_start: expected an int, got str"),
    ],
)
def test_mistakes_are_told_before_ranks_wait_for_each_other(of_pairs: ModuleType, given: Values, told: str) -> None:
    with pytest.raises((ValueError, TypeError), match=told):
        of_pairs.attention(**devices.moved(given))


@pytest.mark.usefixtures("first_of_two")
def test_tokens_that_do_not_come_out_even_are_not_cut(of_pairs: ModuleType) -> None:
    with pytest.raises(ValueError, match="x: expected a multiple of 4 along axis 1, got 10"):
        of_pairs.part(seeded(B, 10), 1)
    with pytest.raises(ValueError, match="axis: expected one of the 2 that x has, got 2"):
        of_pairs.whole(seeded(B, 8), 2)
    with pytest.raises(TypeError, match="x: expected a tensor, got list"):
        of_pairs.part([1, 2], 0)
    assert of_pairs.part(torch.arange(12), 0).tolist() == [0, 1, 2, 9, 10, 11]
    assert of_pairs.part(torch.arange(10), 0, zigzag=False).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.usefixtures("first_of_two")
def test_calls_that_name_a_group_are_compiled(of_pairs: ModuleType) -> None:
    given = devices.moved(mistaken())
    compiled = torch.compile(of_pairs.attention, fullgraph=True, dynamic=True, backend="eager")
    assert compiled(**given, group=dist.group.WORLD).shape == given["q"].shape  # the other rank's keys are arbitrary


@pytest.fixture(scope="module")
def of_windows(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    text = "mask: [causal, sliding_window: {size: runtime}]\nrope: {layout: half}"
    rendered(tmp_path_factory.mktemp("windows"), "windows_of_ranks", text)
    return importlib.import_module("windows_of_ranks.context_parallel")


def windowed(window: int | float) -> Values:
    """One of two ranks' tokens, in stretches as long as a window of 256 and the step that its start is rounded to."""
    return {name: seeded(B, 1024, HEADS, D) for name in "qkv"} | angles(2048) | {"window": window}


@pytest.mark.usefixtures("first_of_two")
def test_a_window_asks_for_the_keys_of_neighbours_alone(
    of_windows: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(of_windows.ranks.Parts, "gathered", lambda *_: asked.append(0) or pytest.fail("gathers"))
    exchange = dist.all_to_all_single

    def exchanged(found: torch.Tensor, sent: torch.Tensor, *sizes: Any, **group: Any) -> None:
        assert found.is_contiguous() and sent.is_contiguous()  # memory is sent as it is laid out
        asked.append(len(found))
        exchange(found, sent, *sizes, **group)

    monkeypatch.setattr(dist, "all_to_all_single", exchanged)
    given = devices.moved(windowed(100))
    # the batch is the innermost dimension in memory
    given |= {
        name: given[name].expand(2, -1, -1, -1).permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2) for name in "qkv"
    }
    given["k"].requires_grad_()
    of_windows.attention(**given).sum().backward()
    # the last rank's stretches are adjacent, so one piece is sent to it, and two to each of the others
    assert asked == [256, 256, 256]


@pytest.mark.usefixtures("first_of_two")
def test_a_window_of_nearly_all_keys_gathers_them(of_windows: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "all_to_all_single", lambda *_, **__: pytest.fail("sends some keys"))
    assert of_windows.attention(**devices.moved(windowed(258))).shape == (B, 1024, HEADS, D)


@pytest.mark.usefixtures("first_of_two")
def test_calls_that_see_a_window_are_compiled(of_windows: ModuleType) -> None:
    compiled = torch.compile(of_windows.attention, fullgraph=True, dynamic=True, backend="eager")
    given = devices.moved(windowed(100))
    assert compiled(**given, group=dist.group.WORLD).shape == given["q"].shape


@pytest.mark.usefixtures("first_of_two")
def test_a_window_is_checked_before_it_says_which_keys_are_sent(of_windows: ModuleType) -> None:
    with pytest.raises(TypeError, match="window: expected an int, got float"):
        of_windows.attention(**devices.moved(windowed(100.0)))


@pytest.mark.usefixtures("first_of_two")
def test_a_mesh_that_is_no_group_of_this_rank_is_told(of_pairs: ModuleType) -> None:
    both = DeviceMesh("cpu", torch.arange(2)[:, None], mesh_dim_names=("data", "tokens"))
    assert of_pairs.part(torch.arange(8), 0, both["data"]).tolist() == [0, 1, 6, 7]
    assert of_pairs.part(torch.arange(8), 0, both["tokens"]).tolist() == [*range(8)]
    with pytest.raises(ValueError, match="group: expected a DeviceMesh of one dimension, got one of 2"):
        of_pairs.part(torch.arange(8), 0, both)
    with pytest.raises(ValueError, match="group: expected one that has this rank"):
        of_pairs.part(torch.arange(8), 0, DeviceMesh("cpu", [1]))


def test_one_process_alone_has_all_tokens(of_pairs: ModuleType) -> None:
    given = devices.moved(mistaken(7))
    found = of_pairs.attention(**given)
    # with more keys than queries it passes the position of the first query, for which GPUs have a separate kernel
    torch.testing.assert_close(found, sys.modules["pairs_of_ranks"].attention(**given))
    assert torch.equal(of_pairs.whole(of_pairs.part(given["q"], 1), 1), given["q"])


CHECKED = """
assert everything.shape == x.shape and mine.grad.abs().min() > 0
torch.testing.assert_close(context_parallel.whole(out, 1), layer(hidden))
"""


def page() -> str:
    """The program on the page, with small sizes and without creating a group of its own."""
    text = (ROOT / "docs" / "context-parallel.md").read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    for there, here in (
        ('dist.init_process_group("nccl")\n', ""),
        ('torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))\n', ""),
        ('device="cuda", dtype=torch.bfloat16', f'device="{"cuda" if devices.GPU else "cpu"}"'),
        ("4096, 8, 64", "24, 1, 16"),
        ("4096, 64", "24, 64"),
        ("dist.destroy_process_group()\n", CHECKED),
    ):
        assert there in code
        code = code.replace(there, here)
    return code


def test_the_page_runs_on_two_ranks(ran: Ran) -> None:
    x, gradient, everything = torch.load(ran.folder / "page.found")
    assert everything.shape == x.shape
    assert gradient.abs().min() > 0
