"""Packages that `attnforge.build` renders into a cache and imports."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import devices  # where kernels run is settled before triton is imported
import numpy as np
import pytest
import torch
import unformatted

import attnforge
from attnforge.language import spec
from attnforge.render import cache, render
from attnforge.source import resources
from attnforge.source.errors import SpecError

TESTS = Path(__file__).parents[1]
TEXT = "name: near\nmask: [causal, {sliding_window: {size: 4}}]\nscore: [softcap: {cap: 5.0}]\n"
MAPPING = {"name": "near", "mask": ["causal", {"sliding_window": {"size": 4}}], "score": [{"softcap": {"cap": 5.0}}]}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, in place of the user's; packages are not formatted, which takes most of the time."""
    monkeypatch.setenv("ATTNFORGE_CACHE", str(tmp_path / "cache"))
    for name in [name for name in sys.modules if name.startswith("attnforge_near_")]:
        monkeypatch.delitem(sys.modules, name)
    with unformatted.as_printed():
        yield tmp_path / "cache"


def test_a_build_runs_and_says_where_it_lies(place: Path) -> None:
    module = attnforge.build(TEXT)
    q = torch.randn(1, 9, 1, 16, requires_grad=True)
    found, wanted = (function(q, q, q) for function in (module.attention, module.reference))
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)
    gradients = (torch.autograd.grad(out.sum(), q) for out in (found, wanted))
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-3)
    (home,) = place.iterdir()
    assert module.__doc__ and module.__doc__.endswith(f"\n\nIts code is in {home / 'near'}.\n")


def test_what_the_docs_show_runs(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (TESTS.parent / "docs" / "build.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    x = torch.randn(1, 9, 1, 16)
    exec(compile(block, "build.md", "exec"), dict.fromkeys("qkv", x))
    assert capsys.readouterr().out.splitlines()[-2] == f"Its code is in {next(place.iterdir()) / 'near'}."


def test_what_a_spec_exports_is_imported_once_it_is_asked_for(place: Path) -> None:
    module = attnforge.build(f"{TEXT}exports: [decode, module]\n")
    assert f"{module.__name__}.decode" not in sys.modules
    assert module.decode is sys.modules[f"{module.__name__}.decode"]
    layer = module.module.Attention(16, num_heads=1)
    assert layer(torch.randn(1, 5, 16)).shape == (1, 5, 16)
    # a file that belongs to no export, and one that a different spec would have
    for name in ("tiles_of_mine", "transformers"):
        hint = f": its spec does not say `exports: .{name}.`" if name == "transformers" else "$"
        with pytest.raises(AttributeError, match=f"module 'attnforge_near_.*' has no attribute '{name}'{hint}"):
            getattr(module, name)


def test_a_build_is_what_a_render_writes(place: Path, tmp_path: Path) -> None:
    path = tmp_path / "near.yaml"
    path.write_text(TEXT)
    home = Path(str(attnforge.build(path).__file__)).parent
    written = {p.name: p.read_text() for p in home.glob("*.py")}
    assert written == render.render(spec.load(path, terms=resources.terms_for(path)))


def test_what_is_the_same_is_rendered_once(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = attnforge.build(TEXT)

    def refuse(_: Any) -> dict[str, str]:
        raise AssertionError("rendered again")

    monkeypatch.setattr(render, "render", refuse)
    (tmp_path / "near.yaml").write_text(f"# with a comment\n{TEXT}")
    for given in (TEXT, MAPPING, tmp_path / "near.yaml", str(tmp_path / "near.yaml")):
        assert attnforge.build(given) is first
    # as in another process
    monkeypatch.delitem(sys.modules, first.__name__)
    assert attnforge.build(MAPPING).__file__ == first.__file__


def test_an_edited_spec_stands_beside_the_first(place: Path) -> None:
    first, second = attnforge.build(TEXT), attnforge.build(TEXT.replace("size: 4", "size: 1"))
    assert first.__name__ != second.__name__
    assert len(list(place.iterdir())) == 2
    x = torch.randn(1, 5, 1, 16)
    torch.testing.assert_close(second.attention(x, x, x), x, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(first.attention(x, x, x), first.reference(x, x, x), rtol=1e-3, atol=1e-3)


def test_another_generator_renders_anew(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = attnforge.build(TEXT)
    monkeypatch.setattr(resources, "generator_digest", lambda: b"another")
    assert attnforge.build(TEXT).__file__ != first.__file__


def test_a_build_that_was_cut_off_is_finished(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = attnforge.build(TEXT)
    home = Path(str(first.__file__)).parent
    whole = {path.name for path in home.glob("*.py")}
    # files are written in this order: `__init__.py` comes last
    (home / "__init__.py").unlink()
    (home / "launch.py").unlink()
    monkeypatch.delitem(sys.modules, first.__name__)
    attnforge.build(TEXT)
    assert {path.name for path in home.glob("*.py")} == whole


@pytest.mark.parametrize("lost", ["folder", "file"])
@pytest.mark.parametrize("known", [True, False])
def test_what_was_deleted_is_rendered_again(
    lost: str, known: bool, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether this process imported it before (most of its files are not imported yet then) or another one did."""
    first = attnforge.build(TEXT)
    home = Path(str(first.__file__)).parent
    if lost == "folder":
        shutil.rmtree(place)
    else:
        (home / "launch.py").unlink()
    if not known:
        for name in [name for name in sys.modules if name.startswith(first.__name__)]:
            monkeypatch.delitem(sys.modules, name)
    second = attnforge.build(TEXT)
    assert (second is first) == known
    assert {path.name for path in home.glob("*.py")} == set(render.render(spec.loads(TEXT, Path.cwd(), shown="<spec>")))
    x = torch.randn(1, 5, 1, 16)
    torch.testing.assert_close(second.attention(x, x, x), second.reference(x, x, x), rtol=1e-3, atol=1e-3)


def test_threads_that_build_the_same_at_once(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, found = threading.Event(), importlib.util.spec_from_file_location

    def slowly(*given: Any, **more: Any) -> Any:
        made = found(*given, **more)
        assert made is not None and made.loader is not None
        run = made.loader.exec_module

        def later(module: ModuleType) -> None:
            begun.set()
            time.sleep(0.2)
            run(module)

        monkeypatch.setattr(made.loader, "exec_module", later)
        return made

    monkeypatch.setattr(importlib.util, "spec_from_file_location", slowly)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(attnforge.build, TEXT)
        assert begun.wait(60)
        assert callable(attnforge.build(TEXT).attention)
        assert attnforge.build(TEXT) is first.result()


@pytest.mark.parametrize("cache", ["file", "file/below", "/dev/null/a"])
def test_a_cache_that_cannot_be_is_told(cache: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ATTNFORGE_CACHE", str(tmp_path / cache))
    with pytest.raises(OSError, match=re.escape(f"{tmp_path / cache} cannot be written to")):
        attnforge.build(TEXT)


@pytest.mark.slow
def test_processes_that_build_the_same_at_once(place: Path) -> None:
    code = f"""
import attnforge, unformatted
with unformatted.as_printed():
    print(attnforge.build({TEXT!r}).attention.__doc__)
"""
    env = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (Path(attnforge.__file__).parents[1], TESTS)))}
    started = [subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE) for _ in range(2)]
    shown = [process.communicate()[0] for process in started]
    assert [process.returncode for process in started] == [0, 0]
    assert shown[0] == shown[1] and b"The attention variant near" in shown[0]
    (home,) = place.iterdir()
    loaded = spec.loads(TEXT, Path.cwd(), shown="<spec>")
    assert {path.name for path in (home / "near").glob("[!_]*")} == set(render.render(loaded)) - {"__init__.py"}
    assert not list((home / "near").glob(".*"))


@pytest.mark.slow
@pytest.mark.parametrize("interpreter", ["1", "0"])
def test_without_triton_all_but_the_kernels_works(interpreter: str, place: Path) -> None:
    code = f"""
import sys
sys.modules["triton"] = None
import attnforge, importlib, torch, unformatted
with unformatted.as_printed():
    near = attnforge.build({TEXT + "exports: [decode, statistics]"!r})
x = torch.ones(1, 3, 1, 16)
assert torch.equal(near.reference(x, x, x), x)
decode = importlib.import_module(near.__name__ + ".decode")
calls = [
    lambda: near.attention(x, x, x, return_max_logit=True),
    lambda: decode.attend_with_cache(x, x, x, torch.tensor([3], dtype=torch.int32)),
    lambda: decode.append(x, x, x.clone(), x.clone(), torch.tensor([[0, 1, 2]])),
    *(lambda name=name: importlib.import_module(near.__name__ + name) for name in (".decode_launch", ".statistics")),
    lambda: near.attention(x, x, x),
]
for call in calls:
    try:
        call()
    except ModuleNotFoundError as error:
        print("ModuleNotFoundError:", error)
"""
    path = os.pathsep.join(map(str, (Path(attnforge.__file__).parents[1], TESTS)))
    env = os.environ | {"PYTHONPATH": path, devices.INTERPRETER: interpreter}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = (
        "ModuleNotFoundError: attention needs triton, which PyTorch brings along on Linux; "
        "`reference` runs without it, on any system"
    )
    assert done.stdout.splitlines() == [told] * 6


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("name: near\nmask: [causl]\n", "<spec>:2:8: error: unknown term 'causl' (did you mean 'causal'?)"),
        ({"name": "near", "mask": ["causl"]}, "<spec>:4:5: error: unknown term 'causl' (did you mean 'causal'?)"),
        ({"name": "near", "windw": 3}, "<spec>:3:3: error: unknown key 'windw'"),
        ("mask: [causal]\nscore: []\n", "<spec>:1:1: error: name is missing: name: variant"),
        ("name: a/b\nmask: [causal]\n", "<spec>:1:7: error: name: expected letters of ASCII"),
        ("- causal\n", "<spec>:1:1: error: "),
        ({"name": "near", "description": "\ud800"}, "<spec>:3:1: error: this file is not UTF-8 text"),
        ('{"name":"near","windw":3}', "<spec>:1:16: error: unknown key 'windw'"),
    ],
)
def test_mistakes_keep_their_places(given: str | Mapping[str, object], message: str, place: Path) -> None:
    with pytest.raises(SpecError) as found:
        attnforge.build(given)
    assert str(found.value).startswith(message)
    assert not place.exists()


DEEP: dict[str, Any] = functools.reduce(lambda inner, _: {"not": inner}, range(3000), {})
ENDLESS: dict[str, Any] = {"name": "near"}
ENDLESS["mask"] = [ENDLESS]


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (3, TypeError, "spec: expected a path, YAML text or a mapping, got int"),
        (
            {"name": "near", "mask": [torch.ones(1)]},
            TypeError,
            "spec: expected texts, numbers, truth values, lists and mappings, got Tensor at mask[0]",
        ),
        (
            {"name": "near", "mask": ["causal", {"any": ({"dilated": {"stride": np.int64(5)}}, "causal")}]},
            TypeError,
            "spec: expected texts, numbers, truth values, lists and mappings, "
            "got int64 at mask[1].any[0].dilated.stride; write int(...)",
        ),
        (
            {"name": "near", "score": [{"softcap": {"cap": np.float32(5)}}]},
            TypeError,
            "spec: expected texts, numbers, truth values, lists and mappings, "
            "got float32 at score[0].softcap.cap; write float(...)",
        ),
        (DEEP, ValueError, "spec: its lists and mappings are nested too deep"),
        (ENDLESS, ValueError, "spec: a list or mapping contains itself"),
        ("cusal", FileNotFoundError, "'cusal' is neither a file nor a shipped variant (did you mean 'causal'?)"),
        ("specs/" + "x" * 300, FileNotFoundError, f"'specs/{'x' * 300}' is neither a file nor a shipped variant"),
        (Path("specs/lost.yaml"), FileNotFoundError, "'specs/lost.yaml' is neither a file nor a shipped variant"),
    ],
)
def test_what_is_no_spec_is_told(given: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as found:
        attnforge.build(given)
    assert str(found.value) == message


def test_terms_of_a_text_stand_in_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "terms").mkdir()
    (tmp_path / "terms" / "own.yaml").write_text("name: own\nkind: mask\ndescription: A test.\nkeep: k == q\n")
    monkeypatch.chdir(tmp_path)
    x = torch.randn(1, 3, 1, 16)
    out = attnforge.build({"name": "near", "mask": ["own"]}).attention(x, x, x)
    torch.testing.assert_close(out, x, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("platform", "variables", "wanted"),
    [
        ("linux", {}, "home/.cache/attnforge"),
        ("linux", {"XDG_CACHE_HOME": "/xdg"}, "/xdg/attnforge"),
        ("linux", {"XDG_CACHE_HOME": "relative"}, "home/.cache/attnforge"),
        ("darwin", {"XDG_CACHE_HOME": "/xdg"}, "home/Library/Caches/attnforge"),
        ("win32", {}, "home/AppData/Local/attnforge/Cache"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/attnforge/Cache"),
        ("linux", {"ATTNFORGE_CACHE": "~/here"}, "home/here"),
    ],
)
def test_the_cache_stands_where_the_platform_has_caches(
    platform: str, variables: dict[str, str], wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ATTNFORGE_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ({"HOME": str(tmp_path / "home")} | variables).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", platform)
    assert cache.folder() == tmp_path / wanted
