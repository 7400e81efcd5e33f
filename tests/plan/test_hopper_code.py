"""The order of operations in kernels for Hopper GPUs, checked in their code, as no interpreter runs them."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

GENERATED = Path(__file__).parents[2] / "generated"
FILES = ("hopper.py", "hopper_backward.py", "hopper_wide.py", "decode_hopper.py")


@functools.cache
def functions(file: str) -> tuple[tuple[str, ast.FunctionDef], ...]:
    """The functions in all files of a name, each with its package."""
    parsed = ((path.parent.name, ast.parse(path.read_text())) for path in sorted(GENERATED.glob(f"*/{file}")))
    return tuple((package, node) for package, tree in parsed for node in tree.body if isinstance(node, ast.FunctionDef))


@functools.cache
def within(function: ast.FunctionDef) -> tuple[ast.AST, ...]:
    """All nodes of one of these functions."""
    return tuple(ast.walk(function))


@functools.cache
def called(node: ast.AST) -> frozenset[str]:
    """The functions that some code calls."""
    return frozenset(ast.unparse(x.func) for x in ast.walk(node) if isinstance(x, ast.Call))


def is_load(name: str) -> bool:
    return name == "tl.load" or name.startswith("load_")


def goes_through_tiles(x: ast.AST) -> bool:
    """Whether a node is a program's loop over tiles of queries."""
    if isinstance(x, ast.While):
        return ast.unparse(x.test) in ("tile >= 0", "number >= 0", "item < items", "idle < Q_STAGES")
    return isinstance(x, ast.For) and ast.unparse(x.target) == "half"


def asks_for_queries(x: ast.AST) -> bool:
    """Whether a node is the branch in which such a tile is processed."""
    return isinstance(x, ast.If) and ast.unparse(x.test).lstrip("(").startswith(("half == 0", "q_start < q_len"))


@pytest.mark.parametrize("roles", [("work", "work_through"), ("load_tiles", "load_through")])
def test_nothing_is_loaded_of_a_tile_before_it_is_known_to_be_there(roles: tuple[str, ...]) -> None:
    """If it does not exist, the values at its rows may lie outside their tensor."""
    found, seen = {}, set()
    for package, function in functions("hopper.py"):
        loops = [x for x in within(function) if function.name in roles and goes_through_tiles(x)]
        if not loops:
            continue
        (loop,) = loops
        seen.add(package)
        assert isinstance(loop, ast.For | ast.While)
        (there,) = (i for i, x in enumerate(loop.body) if asks_for_queries(x))
        before = loop.body[:there]
        if early := {name for x in before for name in called(x) if is_load(name)}:
            found[package] = early
    assert found == {} and seen == {package for package, _ in functions("hopper.py")}


@pytest.mark.parametrize("file", FILES)
def test_all_barriers_are_made_before_the_fence_that_shows_them_to_copies(file: str) -> None:
    seen, found = set(), {}
    for package, function in functions(file):
        calls = [called(x) for x in function.body]
        if not any("gl.warp_specialize" in x for x in calls):
            continue
        fence = next(i for i, x in enumerate(calls) if "fence_async_shared" in x)
        made = [i for i, x in enumerate(calls) if "barriers" in x]
        seen.add(package)
        if max(made) > fence:
            found[package] = [ast.unparse(function.body[i]) for i in made if i > fence]
    assert seen and found == {}


COUNTS = {"at", "begun", "ends", "visits"}  # counts from which a warp derives a barrier's round


@pytest.mark.parametrize("file", ["hopper.py", "hopper_backward.py"])
def test_rounds_of_barriers_are_counted_from_tile_to_tile(file: str) -> None:
    """Programs process many tiles: if a count started again, a wait for the round before would return at once."""
    seen, found = set(), {}
    for package, function in functions(file):
        if function.name not in ("work", "load_tiles"):
            continue
        begun = {id(x) for x in function.body}
        for x in within(function):
            if isinstance(x, ast.Assign) and COUNTS & {ast.unparse(target) for target in x.targets}:
                if isinstance(x.value, ast.Constant):
                    seen.add(package)
                    if id(x) not in begun:
                        found[package] = ast.unparse(x)
    assert seen and found == {}


STEPS = {"accumulate", "weigh", "derive", "spread"}


def walked(node: ast.AST) -> bool:
    """Whether some code has a loop whose steps multiply tiles."""
    return any(called(x) & STEPS for x in ast.walk(node) if isinstance(x, ast.For))


def test_keys_are_given_back_once_for_each_tile() -> None:
    """After the loop over queries, and by each worker: the next keys are copied to the same place."""
    seen = 0
    for package, function in functions("hopper_backward.py"):
        if function.name != "work":
            continue
        (there,) = (x for x in within(function) if isinstance(x, ast.If) and ast.unparse(x.test) == "k_start < k_len")
        texts = [ast.unparse(x) for x in there.body]
        waits = [i for i, text in enumerate(texts) if text.startswith("mbarrier.wait(kv_ready.")]
        walks = [i for i, x in enumerate(there.body) if walked(x)]
        frees = [i for i, text in enumerate(texts) if text.startswith("mbarrier.arrive(kv_free.")]
        (wait,), (free,), read = waits, frees, [i for i, text in enumerate(texts) if "wait(shares_read" in text]
        assert wait < min(walks) <= max(walks) < free < min(read), package
        assert [ast.unparse(x) for x in there.orelse] == [texts[free]], package  # a tile that no sequence has
        seen += 1
    assert seen


@pytest.mark.parametrize("file", ["hopper_backward.py", "hopper_wide.py"])
def test_no_loop_of_the_backward_pass_follows_another_over_the_same_tiles(file: str) -> None:
    """If the first loop has no tile, the assembler of CUDA 12.8 would leave addresses unset for the second one."""
    seen, found = set(), {}
    for package, function in functions(file):
        blocks = (x for x in within(function) if isinstance(x, (ast.FunctionDef, ast.For, ast.While, ast.If)))
        for x in blocks:
            for body in (x.body, getattr(x, "orelse", [])):
                loops = [one for one in body if walked(one)]
                seen |= {package} if loops else set()
                if len(loops) > 1:
                    found[package] = ast.unparse(loops[1])
    assert seen and found == {}


@pytest.mark.parametrize("package", ["full", "cross", "packed_full"])
def test_tiles_of_keys_that_are_whole_have_no_mask_where_nothing_else_asks_for_one(package: str) -> None:
    found = {f.name: f for name, f in functions("hopper_backward.py") if name == package}
    branches = (x for x in ast.walk(found["work"]) if isinstance(x, ast.If) and x.orelse)
    (choice,) = (x for x in branches if "BLOCK_N" in ast.unparse(x.test))
    assert ast.unparse(choice.test) == "k_start + BLOCK_N <= k_len"
    for body, mixed in ((choice.body, "False"), (choice.orelse, "True")):
        assert walked(body[0]) and f"mixed={mixed}" in ast.unparse(body[0])
    # both cases share the loop that copies
    assert ast.unparse(found["load_tiles"]).count("load_queries(") == 1


@pytest.mark.parametrize("file", ["hopper.py", "hopper_backward.py", "hopper_wide.py"])
def test_masks_read_distances_that_are_worked_out_once(file: str) -> None:
    """Comparisons of the positions themselves become a vector of truth values."""
    seen, found = set(), {}
    for package, function in functions(file):
        for x in within(function):
            if isinstance(x, (ast.Assign, ast.AugAssign)) and ast.unparse(x).startswith("keep "):
                text = ast.unparse(x.value)
                seen |= {package} if "distance" in text else set()
                if re.search(r"[qk]_pos\[[^]]*\] (<=?|>=?|==|-) [qk]_pos\[", text):
                    found[package] = text
    assert seen and found == {}


def test_values_are_in_registers_where_a_step_has_room_for_them() -> None:
    """Scores that are plain products, with no mask or a causal one, leave room; other terms do not."""
    held = {package for package, function in functions("hopper_backward.py") if function.name == "load_values"}
    assert held >= {"causal", "full", "cross", "packed_causal", "llama3", "gpt_oss"}
    assert not held & {"sliding_window", "alibi", "softcap", "log_decay", "packed_log_decay", "gpt_oss_window"}
