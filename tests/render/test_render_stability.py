"""The same spec gives the same bytes, whatever the machine and the environment."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import unformatted

from attnforge.language import spec
from attnforge.render import emit, format, header, render
from attnforge.source import resources

ROOT = Path(render.__file__).parents[3]
CODE = """
import hashlib, pathlib, sys
from attnforge.language import spec
from attnforge.render import render
from attnforge.source import resources
path = pathlib.Path(sys.argv[1])
for name, text in render.render(spec.load(path, terms=resources.terms_for(path))).items():
    print(path.stem, name, hashlib.sha256(text.encode()).hexdigest())
"""
SAMPLE = sorted(resources.variants().values())[::30]
SURROUNDINGS = (
    {"PYTHONHASHSEED": "0", "LC_ALL": "tr_TR.UTF-8"},
    {"PYTHONHASHSEED": "1", "LC_ALL": "C", "PYTHONUTF8": "0", "TZ": "Asia/Kolkata"},
)


def rendered(path: Path, cwd: Path, **env: str) -> str:
    surroundings = os.environ | {"PYTHONPATH": str(ROOT / "generator")} | env
    command = [sys.executable, "-c", CODE, os.path.relpath(path, cwd)]
    return subprocess.run(command, cwd=cwd, env=surroundings, stdout=subprocess.PIPE, check=True).stdout.decode()


@pytest.mark.slow
@pytest.mark.parametrize(("path", "env"), zip(SAMPLE, SURROUNDINGS, strict=True), ids=[path.stem for path in SAMPLE])
def test_bytes_hang_on_nothing_but_the_spec(path: Path, env: dict[str, str], tmp_path: Path) -> None:
    """`attnforge render --check` accepts a text if its header names the same inputs; this test formats everything."""
    # black would find another style here
    (tmp_path / "pyproject.toml").write_text("[tool.black]\nline-length = 60\nskip-string-normalization = true\n")
    files = sorted((ROOT / "generated" / path.stem).glob("*.py"))
    known = {f"{path.stem} {file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}" for file in files}
    assert known and set(rendered(path, tmp_path, HOME=str(tmp_path), **env).splitlines()) == known


# shared files that only some packages have, and the file that exactly those packages have
BESIDE = {"decode_arguments.py": "decode.py", "ranks.py": "context_parallel.py", "padding.py": "api.py"}
SAYING = {"padding.py": "k_lens"}


def test_files_say_what_they_were_made_from_and_no_more() -> None:
    # `attnforge render --check` tells whether these are what a render gives
    shared: dict[str, list[str]] = {}
    for path in (ROOT / "generated").rglob("*.py"):
        name, text = path.relative_to(ROOT / "generated").as_posix(), path.read_bytes().decode()
        found = header.read(text)
        assert found is not None, name
        assert found.intact, name
        if found.source.startswith("templates/"):
            shared.setdefault(path.name, []).append(text)
        else:
            assert found.source == f"specs/{name.split('/')[0]}.yaml"
            assert f"attnforge render {found.source}\n" in text, name
        assert str(ROOT) not in text, name
        assert os.path.expanduser("~") + "/" not in text, name
        assert "\r" not in text, name
        assert text.endswith("\n"), name
        assert not text.endswith("\n\n"), name
    for file, texts in shared.items():
        beside = BESIDE.get(file, "__init__.py")
        packages = sum(SAYING.get(file, "") in path.read_text() for path in (ROOT / "generated").glob(f"*/{beside}"))
        assert len(set(texts)) == 1 and len(texts) == packages, f"{file} is not the same in every package"


UNLIKE = (
    "name: one\nexports: [decode]\n",
    "name: two\nlayout: packed\nrope: {layout: half}\nsink: true\nscore: [log_decay]\n",
    "name: three\nheads: equal\nmask: [causal]\ndropout: true\nalgorithm: flash1\n",
    "name: four\nheads: equal\nrope: {layout: half}\nsink: true\nmask: [causal]\nexports: [decode]\n",
)
SHARED = {
    "checks.py": "tests/checks.py.jinja",
    "arguments.py": "host/arguments.py.jinja",
    "runtime.py": "host/runtime.py.jinja",
    "decode_arguments.py": "decode/arguments.py.jinja",
    "padding.py": "host/padding.py.jinja",
}


def test_some_files_are_the_same_bytes_in_every_package(tmp_path: Path) -> None:
    made: dict[str, list[str]] = {}
    for text in UNLIKE:
        path = tmp_path / f"{text.split()[1]}.yaml"
        path.write_text(text)
        for name, content in unformatted.files(spec.load(path, terms=resources.terms_for(path))).items():
            made.setdefault(name, []).append(content)
    for name, template in SHARED.items():
        assert len(made[name]) == {"decode_arguments.py": 2, "padding.py": 3}.get(name, 4)
        assert len(set(made[name])) == 1
        found = header.read(made[name][0])
        assert found is not None and found.intact and found.source == f"templates/{template}"
        opening = made[name][0].partition('"""')[0]
        assert "the same in every package" in opening and "specs/" not in opening


def test_files_that_were_made_of_the_same_are_not_formatted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    formatted: list[str] = []

    def python(text: str, template: str) -> str:
        formatted.append(template)
        return f"{text}# formatted\n"

    def loaded(mask: str) -> spec.Spec:
        (tmp_path / "one.yaml").write_text(f"name: one\nalgorithm: flash1\nmask: [{mask}]\n")
        return spec.load(tmp_path / "one.yaml", terms=resources.terms_for(tmp_path / "one.yaml"))

    monkeypatch.setattr(format, "python", python)
    out, first = tmp_path / "out", loaded("causal")
    made = render.render(first, out)
    assert len(formatted) == len(made)
    emit.write([emit.Package("one", first.source, first.path, made)], out)
    formatted.clear()
    assert render.render(first, out) == made and not formatted
    # none of these is reused: an edited file, one in another encoding, the stub that bars a half-written package
    (out / "one" / "__init__.py").write_text(header.instead(made["__init__.py"], "raise ImportError\n"))
    (out / "one" / "api.py").write_text(f"{made['api.py']}x = 1\n")
    (out / "one" / "launch.py").write_bytes(made["launch.py"].encode() + b"# \xe9\n")
    assert render.render(first, out) == made
    assert formatted == [f"host/{name}.py.jinja" for name in ("init", "launch", "api")]
    formatted.clear()
    other = render.render(loaded("sliding_window: {size: 8}"), out)
    assert other.keys() == made.keys()
    assert "portable/kernels.py.jinja" in formatted and "host/runtime.py.jinja" not in formatted
    assert other["kernels.py"] != made["kernels.py"] and other["runtime.py"] == made["runtime.py"]


@pytest.mark.slow
def test_the_content_hash_follows_spec_templates_and_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def line(text: str) -> str:
        return next(line for line in text.splitlines() if "content hash" in line)

    path = SAMPLE[0]
    loaded = spec.load(path, terms=resources.terms_for(path))
    before = line(render.file(loaded, "api.py"))
    monkeypatch.setattr(render, "__version__", "0.0.0")
    other_version = line(render.file(loaded, "api.py"))
    monkeypatch.undo()
    monkeypatch.setattr(resources, "templates_digest", lambda: b"other")
    other_templates = line(render.file(loaded, "api.py"))
    assert len({before, other_version, other_templates}) == 3
    monkeypatch.undo()
    assert line(render.file(loaded, "api.py")) == before
