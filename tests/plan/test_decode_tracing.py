"""Decoding under `torch.compile`: operators that a compiler can trace, and the results of compiled steps."""

from __future__ import annotations

import contextlib
import functools
import importlib
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from caches import Values, package
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

pytestmark = pytest.mark.slow

TEXTS = {
    "traced": ("rope: {layout: half}\nmask: [causal, sliding_window: {size: runtime}]", "decode, statistics"),
    "traced_sums": ("mask: [causal, sliding_window: {size: runtime}]\nscore: [log_decay]", "decode, statistics"),
    "traced_latent": ("latent: true\nmask: [causal]", "decode"),
}
ANGLES = torch.randn(64, 8)
ROPE = {"cos": ANGLES.cos(), "sin": ANGLES.sin()}


@pytest.fixture(scope="module")
def variant(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], ModuleType]:
    """Renders a variant when it is first asked for, with a compiler that is reset after earlier tests."""
    folder, made = tmp_path_factory.mktemp("decode_tracing"), dict[str, ModuleType]()

    def find(name: str) -> ModuleType:
        torch.compiler.reset()
        if name not in made:
            text, exports = TEXTS[name]
            made[name] = package(folder, name, text, exports=exports)
        return made[name]

    return find


def operators(module: ModuleType) -> ModuleType:
    """The module of a package that holds its operators for decoding."""
    return importlib.import_module(f"{module.__name__}.decode_operators")


def call(batch: int, room: int, tokens: int = 1) -> Values:
    """A call without pages."""
    torch.manual_seed(batch)
    q, k, v = (torch.randn(batch, n, heads, 16) for n, heads in ((tokens, 4), (room, 2), (room, 2)))
    lengths = torch.randint(tokens, room + 1, (batch,), dtype=torch.int32)
    return {"q": q, "k_cache": k, "v_cache": v, "seq_lens": lengths, "window": 7, **ROPE}


def new_rows(batch: int) -> Values:
    """A new token of each sequence, and its places in pages of 16."""
    torch.manual_seed(batch)
    places = torch.arange(batch) + 5
    table = torch.arange(2 * batch, dtype=torch.int32).view(batch, 2)
    rows: Values = {name: torch.randn(batch, 2, 16) for name in ("k_new", "v_new")}
    return rows | {"slot_mapping": table[:, 0].long() * 16 + places, "positions": places, "table": table}


def test_operators_pass_all_checks_of_pytorch(
    variant: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    decode, traced = variant("traced").decode, operators(variant("traced"))
    calls: list[tuple[Any, Any]] = []
    for module in (torch.compiler, importlib.import_module("traced.runtime")):
        monkeypatch.setattr(module, "is_compiling", lambda: True)
    for operator in (traced._attend, traced._append):
        run = operator.traced
        monkeypatch.setattr(operator, "traced", lambda *x, run=run: (calls.append((run, x)), run(*x))[1])
    decode.attend_with_cache(**call(2, 20, 3), return_lse=True, return_key_sums=True)
    decode.attend_with_cache(**call(2, 20, 3), return_lse=True, bitwise="training")
    rows, cache = new_rows(3), torch.zeros(6, 16, 2, 16)
    rows.pop("table")
    decode.append(**rows, k_cache=cache, v_cache=cache.clone(), **ROPE)
    monkeypatch.undo()
    for run, given in calls:
        assert set(torch.library.opcheck(run, given).values()) == {"SUCCESS"}
    changed = [[x.name for x in run._schema.arguments if x.alias_info] for run, _ in calls]
    assert changed == [[], [], ["k_cache", "v_cache", "k_scale", "v_scale"]]


def test_a_step_of_changing_batches_compiles_at_most_twice(variant: Callable[[str], ModuleType]) -> None:
    decode = variant("traced").decode

    def step(q: torch.Tensor, table: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, **rows: Any) -> Any:
        decode.append(**rows, k_cache=k_cache, v_cache=v_cache, **ROPE)
        lengths = (rows["positions"] + 1).int()
        given = {"page_table": table, "window": 4, "return_lse": True, "return_key_sums": True}
        return decode.attend_with_cache(q, k_cache, v_cache, lengths, **ROPE, **given)

    counted = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(step, fullgraph=True, dynamic=True, backend=counted)
    for batch in (2, 3, 5):
        found = []
        for run in (step, compiled):
            rows = new_rows(batch)
            caches = torch.randn(2, 2 * batch, 16, 2, 16).unbind()
            torch.manual_seed(0)
            for cache in caches:
                cache.normal_()
            found.append((*run(torch.randn(batch, 4, 16), k_cache=caches[0], v_cache=caches[1], **rows), *caches))
        torch.testing.assert_close(*found, rtol=0, atol=0)
    assert counted.frame_count <= 2


def test_new_tokens_and_room_may_change(variant: Callable[[str], ModuleType]) -> None:
    attend = variant("traced").decode.attend_with_cache
    counted = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(attend, fullgraph=True, backend=counted)
    for batch, room, tokens in ((2, 20, 3), (3, 30, 5), (5, 25, 2)):
        given = call(batch, room, tokens)
        assert torch.equal(compiled(**given), attend(**given))
    assert counted.frame_count <= 2


def test_running_sums_of_a_compiled_call(variant: Callable[[str], ModuleType]) -> None:
    attend = variant("traced_sums").decode.attend_with_cache
    counted = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(attend, fullgraph=True, backend=counted)
    for batch, room, tokens in ((2, 90, 3), (3, 80, 5), (5, 70, 2)):
        given = {x: y for x, y in call(batch, room, tokens).items() if x not in ROPE}
        given |= {"log_decay": -torch.rand(batch, room, 4), "return_lse": True, "return_key_sums": True}
        torch.testing.assert_close(compiled(**given), attend(**given), rtol=0, atol=0)
    assert counted.frame_count <= 2


def test_a_compiled_call_fills_in_what_it_is_given(variant: Callable[[str], ModuleType]) -> None:
    attend, given = variant("traced").decode.attend_with_cache, call(2, 20)
    out, workspace = torch.empty(2, 1, 4, 16), torch.empty(1000)
    found = torch.compile(attend, fullgraph=True, backend="aot_eager")(**given, out=out, workspace=workspace)
    assert found is out
    assert torch.equal(out, attend(**given))


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"max_seqlen_k": 21}, "max_seqlen_k: expected at most the 20 keys"),
        ({"out": torch.empty(3)}, "out: expected shape"),
        ({"workspace": torch.empty(9).half()}, "workspace: expected float32, got float16"),
        ({"q": torch.randn(2, 1, 4, 16, requires_grad=True)}, "q: decoding has no backward pass"),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else "",
)
def test_what_a_trace_refuses(variant: Callable[[str], ModuleType], wrong: Values, told: str) -> None:
    compiled = torch.compile(variant("traced").decode.attend_with_cache, fullgraph=True, backend="eager")
    with pytest.raises(torch._dynamo.exc.Unsupported, match=told):
        compiled(**call(2, 20) | wrong)


def test_eager_calls_stay_away_from_the_operators(
    variant: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = variant("traced")
    for name in ("attend", "append"):
        monkeypatch.setattr(operators(module), name, lambda *_: pytest.fail("the long way"))
    module.decode.attend_with_cache(**call(2, 20))
    rows, cache = new_rows(2), torch.zeros(4, 16, 2, 16)
    rows.pop("table")
    module.decode.append(**rows, k_cache=cache, v_cache=cache.clone(), **ROPE)


def test_rows_of_a_latent_cache_are_stored_once(
    variant: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys and values, and their scales, share the memory of the same tensors: a compiler must not separate them."""
    decode, launch = variant("traced_latent").decode, importlib.import_module("traced_latent.decode_launch")
    append, new, slots, found = launch.append, torch.randn(2, 1, 32), torch.tensor([3, 17]), []
    joined = []
    monkeypatch.setattr(launch, "append", lambda *given: (joined.append(given[-1]), append(*given)))

    def step(rows: torch.Tensor, scale: torch.Tensor) -> None:
        decode.append(new, new[..., :16], rows, rows[..., :16], slots, k_scale=scale, v_scale=scale)

    for run in (step, torch.compile(step, fullgraph=True, backend="aot_eager")):
        rows, scale = torch.zeros(2, 16, 1, 32).to(torch.float8_e4m3fn), torch.zeros(2, 16, 1)
        run(rows, scale)
        found.append((rows.float(), scale))
    assert joined == [True, True]
    assert all(map(torch.equal, *found))
    assert (found[0][1] > 0).sum() == 2


class Wrapped(torch.Tensor):
    """A tensor whose data is in another tensor."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapped:
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[attr-defined]
        made.inner = inner
        return made  # type: ignore[no-any-return]

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*tree_map_only(cls, lambda x: x.inner, args), **(kwargs or {}))


@pytest.mark.parametrize("bitwise", [None, "training"])
def test_tensors_that_dispatch_by_themselves(variant: Callable[[str], ModuleType], bitwise: str | None) -> None:
    decode, given = variant("traced").decode, call(2, 20)
    attend = functools.partial(decode.attend_with_cache, return_lse=True, bitwise=bitwise)
    wanted = attend(**given)
    for name in ("q", "k_cache", "v_cache"):
        negated = given | {name: torch._neg_view(-given[name])}
        torch.testing.assert_close(attend(**negated), wanted, rtol=0, atol=0)
        torch.testing.assert_close(attend(**given | {name: Wrapped(given[name])}), wanted, rtol=0, atol=0)
    with FakeTensorMode() as mode:
        fake = {name: mode.from_tensor(x) if isinstance(x, torch.Tensor) else x for name, x in given.items()}
        found = attend(**fake)
    assert [(x.shape, type(x)) for x in found] == [(x.shape, FakeTensor) for x in wanted]


def test_rows_that_dispatch_by_themselves_are_appended(variant: Callable[[str], ModuleType]) -> None:
    decode, given = variant("traced").decode, new_rows(2)
    del given["table"]
    caches = []
    for change in (lambda x: x, lambda x: torch._neg_view(-x), Wrapped):
        k, v = torch.zeros(4, 16, 2, 16), torch.zeros(4, 16, 2, 16)
        decode.append(**given | {"k_new": change(given["k_new"])}, k_cache=k, v_cache=v, **ROPE)
        caches.append((k, v))
    assert caches[0][0].any()
    torch.testing.assert_close(caches[1:], caches[:1] * 2, rtol=0, atol=0)


class Seen(TorchDispatchMode):
    """Records the names of operators; with `alone`, it does not pass them to outer modes."""

    def __init__(self, alone: bool = False) -> None:
        super().__init__()
        self.names: list[str] = []
        self.alone = alone

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(function.name())
        with torch._C._DisableTorchDispatch() if self.alone else contextlib.nullcontext():  # type: ignore[attr-defined]
            return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("bitwise", [None, "training"])
def test_modes_see_one_operator_for_a_call(
    variant: Callable[[str], ModuleType], bitwise: str | None, alone: bool
) -> None:
    decode, given = variant("traced").decode, call(2, 20)
    attend = functools.partial(decode.attend_with_cache, **given, return_lse=True, bitwise=bitwise)
    decode.CALLS.clear()
    name = operators(variant("traced"))._attend.traced.name()
    first = Seen()
    with first:
        found = attend()
    # a call with new shapes inspects the layout of its tensors in memory
    assert [x for x in first.names if x != "aten::view"] == [name]
    torch.testing.assert_close(found, attend(), rtol=0, atol=0)
    for _ in range(2):
        outer, inner = Seen(), Seen(alone)
        with outer, inner:
            torch.testing.assert_close(attend(), found, rtol=0, atol=0)
        assert [x for x in inner.names if x.startswith("attnforge")] == [name]
        assert outer.names.count(name) == (not alone)


@pytest.mark.parametrize("alone", [False, True])
def test_modes_see_one_operator_for_new_rows(variant: Callable[[str], ModuleType], alone: bool) -> None:
    decode, given = variant("traced").decode, new_rows(2)
    del given["table"]
    wanted, found = ([torch.zeros(4, 16, 2, 16) for _ in range(2)] for _ in range(2))
    decode.append(**given, k_cache=wanted[0], v_cache=wanted[1], **ROPE)
    seen = Seen(alone)
    with Seen(), seen:
        decode.append(**given, k_cache=found[0], v_cache=found[1], **ROPE)
    # on a CPU, values are checked first
    assert seen.names.index(operators(variant("traced"))._append.traced.name()) == len(seen.names) - 1
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


@pytest.mark.parametrize("pre_dispatch", [False, True])
def test_traces_of_the_dispatcher_see_one_operator(variant: Callable[[str], ModuleType], pre_dispatch: bool) -> None:
    """Even if the last call was like it: guards do not see such a mode, or it is on a stack of its own."""
    decode, given = variant("traced").decode, call(2, 20)
    attend = functools.partial(decode.attend_with_cache, **{name: x for name, x in given.items() if name != "q"})
    decode.CALLS.clear()
    other, name = torch.randn_like(given["q"]), operators(variant("traced"))._attend.traced.name()
    for _ in range(2):
        graph = make_fx(attend, pre_dispatch=pre_dispatch)(given["q"])
        seen = [node.target.name() for node in graph.graph.nodes if isinstance(node.target, torch._ops.OpOverload)]
        assert [x for x in seen if x not in ("aten::view", "aten::reshape")] == [name]
        for _ in range(2):
            wanted = attend(given["q"])
        assert torch.equal(graph(given["q"]), wanted)
        assert torch.equal(graph(other), attend(other))
        assert torch.equal(attend(given["q"]), wanted)


def test_a_call_behind_one_that_an_operator_made_is_known_again(
    variant: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recognising a call that is like the last one depends on what PyTorch's dispatcher does in the meantime."""
    decode, given = variant("traced").decode, call(2, 20)
    attend = functools.partial(decode.attend_with_cache, **given, max_seqlen_k=20)
    decode.CALLS.clear()
    with Seen():
        found = attend()
    assert torch.equal(attend(), found)

    def looked(given: Any) -> bool:
        raise AssertionError("a call like the last one was looked at")

    monkeypatch.setattr(decode.decode_arguments, "needs_dispatcher", looked)
    assert torch.equal(attend(), found)


@contextlib.contextmanager
def overlapping(mode: TorchDispatchMode) -> Iterator[None]:
    """Enters a mode while another thread leaves an earlier one: its flag is unset, and set again afterwards."""
    there, go_on = threading.Event(), threading.Event()

    def other() -> None:
        with Seen():
            there.set()
            go_on.wait()

    thread = threading.Thread(target=other)
    thread.start()
    there.wait()
    with mode:
        go_on.set()
        thread.join()
        yield


@pytest.mark.parametrize("known", [False, True])
def test_modes_of_threads_may_overlap(
    variant: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    monkeypatch.setattr(_python_dispatch, "_is_in_torch_dispatch_mode", False)
    module, given = variant("traced"), call(2, 20)
    decode, operator = module.decode, operators(module)._attend
    attend = functools.partial(decode.attend_with_cache, **given, max_seqlen_k=20)
    attention = functools.partial(module.attention, *(given["q"] for _ in range(3)), window=7, **ROPE)
    decode.CALLS.clear()
    for _ in range(2 * known):
        attend(), attention()
    seen = Seen()
    with overlapping(seen):
        assert not _python_dispatch._is_in_torch_dispatch_mode
        found = attend(), attention()
    assert [x for x in seen.names if x.startswith("attnforge")] == [
        operator.traced.name(),
        importlib.import_module("traced.launch")._attend.traced.name(),
    ]
    # afterwards no call takes the path of calls that a mode sees
    assert _python_dispatch._is_in_torch_dispatch_mode
    for x in (operator, importlib.import_module("traced.launch")._attend):
        monkeypatch.setattr(x, "traced", lambda *_: pytest.fail("the long way"))
    assert torch.equal(attend(), found[0]) and torch.equal(attention(), found[1])
    monkeypatch.setattr(decode.decode_arguments, "needs_dispatcher", lambda _: pytest.fail("looked at again"))
    assert torch.equal(attend(), found[0])


def test_calls_under_a_mode_that_stands_aside_are_handed_on(variant: Callable[[str], ModuleType]) -> None:
    """A mode may call attention when it sees another operator: it is then dispatched as PyTorch's own operators are."""
    module, given = variant("traced"), call(2, 20)
    q = given["q"].requires_grad_()
    attend = functools.partial(module.attention, q, q, q, window=7, **ROPE)
    found = []

    class Calls(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            found.append(attend())
            return function(*args, **(kwargs or {}))

    with Calls():
        torch.zeros(1)
    assert torch.equal(found[0], attend()) and not found[0].requires_grad
