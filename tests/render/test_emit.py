"""Writes are atomic, manual changes survive, and files that are out of date or left over are reported."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from attnforge.render import emit, header


def text(body: str, source: str = "specs/one.yaml") -> str:
    return header.stamp(header.write(source, b"content") + body)


def package(tmp_path: Path, name: str = "one", body: str = "x = 1\n", **files: str) -> emit.Package:
    spec = tmp_path / "specs" / f"{name}.yaml"
    spec.parent.mkdir(exist_ok=True)
    spec.touch()
    source = f"specs/{name}.yaml"
    texts = {"__init__.py": text(body, source), "kernels.py": text(body * 2, source)}
    return emit.Package(name, source, spec, texts | {f"{n}.py": text(t, source) for n, t in files.items()})


def states(findings: list[emit.Finding]) -> dict[str, str]:
    return {f"{f.path.parent.name}/{f.path.name}": f.state for f in findings if f.state != "current"}


def contents(folder: Path) -> dict[str, str]:
    return {p.relative_to(folder).as_posix(): p.read_text() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_a_write_makes_all_files_current(tmp_path: Path) -> None:
    out, made = tmp_path / "out", package(tmp_path)
    assert states(emit.survey([made], out)) == {"one/__init__.py": "missing", "one/kernels.py": "missing"}
    assert not out.exists(), "a survey writes nothing"
    emit.write([made], out)
    assert contents(out) == {f"one/{name}": text for name, text in made.files.items()}
    assert states(emit.survey([made], out)) == {}


def test_files_that_are_current_are_left_alone(tmp_path: Path) -> None:
    out, made = tmp_path / "out", package(tmp_path)
    emit.write([made], out)
    before = (out / "one" / "kernels.py").stat()
    emit.write([made], out)
    after = (out / "one" / "kernels.py").stat()
    assert (before.st_mtime_ns, before.st_ino) == (after.st_mtime_ns, after.st_ino)


def test_stale_files_are_replaced(tmp_path: Path) -> None:
    out = tmp_path / "out"
    emit.write([package(tmp_path)], out)
    newer = package(tmp_path, body="x = 2\n")
    assert states(emit.survey([newer], out)) == {"one/__init__.py": "stale", "one/kernels.py": "stale"}
    emit.write([newer], out)
    assert (out / "one" / "__init__.py").read_text() == newer.files["__init__.py"]


@pytest.mark.parametrize(
    "edit",
    [
        lambda t: t + b"y = 2\n",
        lambda t: t.replace(b"x = 1", b"x = 3"),
        lambda t: t.replace(b"specs/one", b"specs/two"),
        lambda t: t.replace(b"\n", b"\r\n"),
        lambda t: t + b"# \xff\n",
        lambda t: b"x = 1\n",
        lambda t: b"",
    ],
    ids=["appended", "changed", "header", "line ends", "encoding", "without header", "emptied"],
)
def test_hand_edits_are_overwritten_only_when_forced(tmp_path: Path, edit: object) -> None:
    out, made = tmp_path / "out", package(tmp_path)
    emit.write([made], out)
    path = out / "one" / "kernels.py"
    changed = edit(path.read_bytes())  # type: ignore[operator]
    path.write_bytes(changed)
    newer = package(tmp_path, body="x = 2\n")
    assert states(emit.survey([newer], out))["one/kernels.py"] == "edited"
    with pytest.raises(emit.Edited, match=r"kernels\.py"):
        emit.write([newer], out)
    assert path.read_bytes() == changed
    assert (out / "one" / "__init__.py").read_text() == made.files["__init__.py"], "all or nothing"
    emit.write([newer], out, force=True)
    assert path.read_text() == newer.files["kernels.py"]


def test_a_folder_of_somebody_else_is_not_taken_over(tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "one").mkdir(parents=True)
    (out / "one" / "__init__.py").write_text("mine = 1\n")
    with pytest.raises(emit.Edited):
        emit.write([package(tmp_path)], out)
    assert contents(out) == {"one/__init__.py": "mine = 1\n"}


def test_files_no_longer_rendered_are_orphans_and_go(tmp_path: Path) -> None:
    out = tmp_path / "out"
    emit.write([package(tmp_path, extra="y = 1\n", more="z = 1\n")], out)
    (out / "one" / "notes.py").write_text("# mine\n")
    made = package(tmp_path)
    assert states(emit.survey([made], out)) == {"one/extra.py": "orphaned", "one/more.py": "orphaned"}
    emit.write([made], out)
    assert set(contents(out)) == {"one/__init__.py", "one/kernels.py", "one/notes.py"}


def test_an_edited_orphan_stays_until_forced(tmp_path: Path) -> None:
    out = tmp_path / "out"
    emit.write([package(tmp_path, extra="y = 1\n")], out)
    path = out / "one" / "extra.py"
    path.write_text(path.read_text() + "mine = 1\n")
    with pytest.raises(emit.Edited):
        emit.write([package(tmp_path)], out)
    assert "mine" in path.read_text()
    emit.write([package(tmp_path)], out, force=True)
    assert not path.exists()


def test_packages_whose_spec_is_gone_are_told_but_stay(tmp_path: Path) -> None:
    out = tmp_path / "out"
    one, old = package(tmp_path), package(tmp_path, "old")
    elsewhere = emit.Package("theirs", "other/theirs.yaml", tmp_path, {"__init__.py": text("", "other/theirs.yaml")})
    emit.write([one, old, elsewhere], out)
    assert states(emit.survey([one], out)) == {}, "not given, yet its spec exists"
    old.spec.unlink()
    told = {"old/__init__.py": "orphaned", "old/kernels.py": "orphaned"}
    assert states(emit.survey([one], out)) == told
    emit.write([one], out, force=True)
    assert states(emit.survey([one], out)) == told
    assert "theirs/__init__.py" in contents(out), "specs of other folders are not judged"


@pytest.mark.parametrize(("source", "place"), [("specs/two.yaml", "more/specs"), ("two.yaml", "drafts/of/mine")])
def test_a_spec_that_stands_in_another_folder_is_not_gone(tmp_path: Path, source: str, place: str) -> None:
    out, here = tmp_path / "out", package(tmp_path)
    if source == "two.yaml":
        here = emit.Package("one", "one.yaml", tmp_path / "one.yaml", here.files)
    spec = tmp_path / place / "two.yaml"
    spec.parent.mkdir(parents=True)
    spec.touch()
    two = emit.Package("two", source, spec, {"__init__.py": text("", source)})
    emit.write([here, two], out)
    assert states(emit.survey([here], out)) == {}
    spec.rename(spec.with_name("three.yaml"))
    assert states(emit.survey([here], out)) == {"two/__init__.py": "orphaned"}


@pytest.mark.parametrize("folder", ["variants", "more/specs", "."])
def test_specs_in_any_folder_beside_the_output_judge_their_own(tmp_path: Path, folder: str) -> None:
    out, home = tmp_path / "out", tmp_path / folder
    home.mkdir(parents=True, exist_ok=True)
    packages = []
    for name in ("one", "two"):
        spec = home / f"{name}.yaml"
        spec.touch()
        source = f"specs/{name}.yaml" if home.name == "specs" else spec.name
        packages.append(emit.Package(name, source, spec, {"__init__.py": text("", source)}))
    emit.write(packages, out)
    assert states(emit.survey(packages[:1], out)) == {}
    packages[1].spec.unlink()
    assert states(emit.survey(packages[:1], out)) == {"two/__init__.py": "orphaned"}


def test_a_folder_of_the_same_name_elsewhere_judges_no_spec(tmp_path: Path) -> None:
    # such as the folder that the shipped variants come from
    ours, theirs = (tmp_path / name for name in ("ours", "theirs"))
    ours.mkdir(), theirs.mkdir()
    out = ours / "generated"
    made = package(ours)
    emit.write([made], out)
    made.spec.unlink()
    missing = {f"two/{name}": "missing" for name in ("__init__.py", "kernels.py")}
    assert states(emit.survey([package(theirs, "two")], out)) == missing


def test_a_file_in_place_of_a_package_is_told_before_anything_is_written(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "two").write_text("mine")
    (out / "three").symlink_to(tmp_path / "nowhere")
    for force in (False, True):
        for name in ("two", "three"):
            with pytest.raises(NotADirectoryError, match=rf"{name} is no folder: nothing was written"):
                emit.write([package(tmp_path), package(tmp_path, name)], out, force=force)
    assert sorted(path.name for path in out.iterdir()) == ["three", "two"]


def test_diff_is_what_a_write_changes(tmp_path: Path) -> None:
    out = tmp_path / "out"
    emit.write([package(tmp_path, extra="y = 1\n")], out)
    shown = emit.diff(emit.survey([package(tmp_path, body="x = 2\n", added="z = 1\n")], out))
    assert "-x = 1\n+x = 2\n" in shown
    assert f"+++ {(out / 'one' / 'added.py').as_posix()}\n" in shown
    assert "--- /dev/null\n" in shown
    assert "+++ /dev/null\n" in shown
    assert emit.diff(emit.survey([package(tmp_path, extra="y = 1\n")], out)) == ""


def test_a_failing_write_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    emit.write([package(tmp_path)], out)
    before = contents(out)
    calls = []

    def full(handle: int) -> None:
        calls.append(handle)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        emit.write([package(tmp_path, body="x = 2\n")], out)
    assert contents(out) == before


WRITER = """
import pathlib, sys
from attnforge.render import emit, header
out, body, marker = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
files = {f"f{n}.py": header.stamp(header.write("specs/one.yaml", b"") + body * 20000) for n in range(12)}
pathlib.Path(marker).touch()
for n in range(int(sys.argv[4])):
    emit.write([emit.Package("one", "specs/one.yaml", out.parent / "specs" / "one.yaml", files)], out, force=True)
    for path in (out / "one").glob("*.py"):
        if n % 2:
            path.unlink(missing_ok=True)
"""


def start(out: Path, body: str, marker: Path, rounds: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", textwrap.dedent(WRITER), str(out), body, str(marker), str(rounds)]
    folder = str(Path(emit.__file__).parents[2])
    return subprocess.Popen(command, env=os.environ | {"PYTHONPATH": folder}, stderr=subprocess.PIPE)


@pytest.mark.parametrize("delay", [0.0, 0.004, 0.013, 0.031])
def test_a_kill_leaves_whole_files_and_the_next_run_finishes(tmp_path: Path, delay: float) -> None:
    out = tmp_path / "out"
    start(out, "x = 1\n", tmp_path / "first", 1).communicate()
    second = start(out, "y = 2\n", tmp_path / "second", 1000)
    while not (tmp_path / "second").exists():
        time.sleep(0.001)
    time.sleep(delay)
    second.send_signal(signal.SIGKILL)
    assert second.communicate()[1] == b""
    for path in (out / "one").glob("*.py"):
        found = header.read(path.read_text())
        assert found is not None
        assert found.intact, "a file is whole, old or new"
    third = start(out, "z = 3\n", tmp_path / "third", 1)
    assert third.communicate() == (None, b""), "no lock is left behind"
    assert sorted(p.name for p in (out / "one").iterdir()) == sorted(f"f{n}.py" for n in range(12))
    assert all("z = 3" in p.read_text() for p in (out / "one").iterdir())


def versioned(tmp_path: Path, version: int) -> emit.Package:
    """A package of four files, each with its version; version 1 has one more file."""
    parts = {f"part{n}": f"version = {version}\n" for n in range(3 if version > 1 else 4)}
    body = "".join(f"from .{name} import version as {name}\n" for name in list(parts)[:3]) + f"face = {version}\n"
    made = package(tmp_path, body=body, **parts)
    return emit.Package(made.name, made.source, made.spec, {n: t for n, t in made.files.items() if n != "kernels.py"})


def imported(out: Path) -> str:
    """The versions of the package's files that an import finds, or why it fails."""
    code = "import one; print(one.part0, one.part1, one.part2, one.face)"
    done = subprocess.run([sys.executable, "-B", "-c", code], cwd=out, capture_output=True, text=True)
    return done.stdout.strip() or done.stderr.splitlines()[-1]


@pytest.mark.parametrize("steps", range(7))
def test_a_kill_between_two_steps_leaves_no_package_of_old_and_new_files(tmp_path: Path, steps: int) -> None:
    out, old, newer = tmp_path / "out", versioned(tmp_path, 1), versioned(tmp_path, 2)
    emit.write([old], out)
    child = os.fork()
    if child == 0:  # dies as in a power cut: nothing is cleaned up
        left = [steps]

        def dying(step: Callable[..., None]) -> Callable[..., None]:
            def once(*arguments: Path, **options: bool) -> None:
                if not left[0]:
                    os._exit(9)
                left[0] -= 1
                step(*arguments, **options)

            return once

        os.replace, Path.unlink = dying(os.replace), dying(Path.unlink)  # type: ignore[assignment,method-assign]
        with contextlib.suppress(BaseException):
            emit.write([newer], out)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    cut = imported(out)
    assert cut in ("1 1 1 1", "2 2 2 2") or "one is half written" in cut, cut
    assert ("half written" in cut) == (0 < steps < 6)
    emit.write([newer], out)
    assert contents(out) == {f"one/{name}": text for name, text in newer.files.items()}
    assert imported(out) == "2 2 2 2"


def test_a_face_that_stays_what_it_was_is_there_again(tmp_path: Path) -> None:
    out, made = tmp_path / "out", versioned(tmp_path, 1)
    emit.write([made], out)
    for name in ("part0.py", "part1.py"):
        (out / "one" / name).write_text("version = 3\n")
    emit.write([made], out, force=True)
    assert imported(out) == "1 1 1 1"


def test_two_generators_at_once_write_one_after_the_other(tmp_path: Path) -> None:
    out = tmp_path / "out"
    bodies = ("x = 1\n", "y = 2\n", "z = 3\n")
    writers = [start(out, body, tmp_path / f"m{n}", 5) for n, body in enumerate(bodies)]
    for writer in writers:
        _, errors = writer.communicate(timeout=60)
        assert (writer.returncode, errors) == (0, b"")
    texts = {p.read_text() for p in (out / "one").iterdir()}
    assert len(texts) == 1, "all files are of one generator"


def test_no_text_of_a_path_escapes_the_header() -> None:
    for source in ("a\nimport os/x.yaml", "a\rb/x.yaml", "coding: utf-7/x.yaml", "a\u2028b/x.yaml", "\udcff/x.yaml"):
        made = header.stamp(header.write(source, b"") + "x = 1\n")
        lines = made.splitlines()
        assert all(line.startswith("#") for line in lines[:-1]), made
        assert "coding" not in "".join(lines[:2])
        made.encode("ascii" if source.isascii() else "utf-8")
        found = header.read(made)
        assert found is not None
        assert found.intact


def with_shared(tmp_path: Path, name: str, body: str = "x = 1\n") -> emit.Package:
    """A package with a file that is the same in every package."""
    made = package(tmp_path, name)
    shared = header.stamp(header.shared("tests/checks.py.jinja", b"generator") + body)
    return emit.Package(made.name, made.source, made.spec, {**made.files, "checks.py": shared})


def test_a_shared_file_is_missing_stale_or_edited_as_any_other(tmp_path: Path) -> None:
    out, made = tmp_path / "out", with_shared(tmp_path, "one")
    emit.write([made], out)
    assert states(emit.survey([made], out)) == {}
    assert states(emit.survey([with_shared(tmp_path, "one", "x = 2\n")], out)) == {"one/checks.py": "stale"}
    path = out / "one" / "checks.py"
    path.write_text(path.read_text() + "y = 2\n")
    assert states(emit.survey([made], out)) == {"one/checks.py": "edited"}
    with pytest.raises(emit.Edited, match=r"checks\.py"):
        emit.write([made], out)
    path.unlink()
    assert states(emit.survey([made], out)) == {"one/checks.py": "missing"}


def test_a_shared_file_of_no_package_is_an_orphan(tmp_path: Path) -> None:
    out = tmp_path / "out"
    emit.write([with_shared(tmp_path, "one")], out)
    assert states(emit.survey([package(tmp_path, "one")], out)) == {"one/checks.py": "orphaned"}


def test_a_shared_file_goes_with_an_abandoned_package(tmp_path: Path) -> None:
    out, old = tmp_path / "out", with_shared(tmp_path, "old")
    emit.write([old], out)
    old.spec.unlink()
    found = emit.survey([package(tmp_path, "one")], out)
    assert states(found)["old/checks.py"] == "orphaned"
