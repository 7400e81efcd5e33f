"""A wheel, installed beside nothing of the checkout, renders a user's spec in another folder."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
pytest.importorskip("hatchling")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = out.glob("*.whl")
    return built


def test_the_wheel_carries_templates_and_specs(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder in ("templates", "specs"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".jinja", ".yaml"):
                assert f"attnforge/{path.relative_to(ROOT).as_posix()}" in names
    assert "attnforge/py.typed" in names
    assert all(name.startswith(("attnforge/", "attnforge-")) for name in names)


def test_an_installed_wheel_renders_a_users_spec(wheel: Path, tmp_path: Path) -> None:
    place = tmp_path / "venv"
    venv.create(place, with_pip=False)
    (packages,) = place.glob("lib/python*/site-packages")
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(packages)]
    subprocess.run([*install, str(wheel)], check=True, env=env)
    # what the wheel needs comes from the environment of the tests, but not an editable install of the checkout
    dependencies = sorted({str(Path(p).resolve()) for p in sys.path if p.endswith("site-packages")})
    (packages / "dependencies.pth").write_text("\n".join(dependencies) + "\n")

    user = tmp_path / "elsewhere"
    (user / "terms").mkdir(parents=True)
    near = 'name: near\nkind: mask\ndescription: A test.\nkeep: "abs(q - k) < 321"\n'
    (user / "terms" / "near.yaml").write_text(near)
    (user / "mine.yaml").write_text("name: mine\ndescription: A test.\nmask: [near]\nscore: [softcap: {cap: 5.0}]\n")

    def attnforge(*arguments: str) -> str:
        command = [str(place / "bin" / "python"), "-m", "attnforge", *arguments]
        done = subprocess.run(command, cwd=user, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = subprocess.run(
        [str(place / "bin" / "python"), "-c", "import attnforge; print(attnforge.__file__)"],
        cwd=user, env=env, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert str(place) in where
    shown = attnforge("render", "mine.yaml", "causal")
    assert shown == "generated/mine: 13 files changed\ngenerated/causal: 18 files changed\n"
    assert "321" in (user / "generated" / "mine" / "reference.py").read_text()
    assert "rope_swa_softcap" in attnforge("list")
    attnforge("render", "mine.yaml", "--check")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, unpacked."""
    out = tmp_path_factory.mktemp("source")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = out.glob("*.tar.gz")
    with tarfile.open(built) as archive:
        archive.extractall(out, filter="data")
    (folder,) = (path for path in out.iterdir() if path.is_dir())
    return folder


def test_the_source_distribution_carries_what_its_tests_read(source: Path) -> None:
    folders = ("generator", "templates", "specs", "tests", "generated", "benchmarks", "docs", "examples")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    files += [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "Makefile")]
    wanted = {path.relative_to(ROOT) for path in files if "__pycache__" not in path.parts}
    assert len(wanted) > 400
    assert [str(path) for path in sorted(wanted) if not (source / path).is_file()] == []


def test_tests_run_in_the_source_distribution(source: Path) -> None:
    env = os.environ | {"PYTHONPATH": str(source / "generator")}
    suites = ["tests/test_how_it_works.py", "tests/cli/test_docs.py", "tests/language/test_bad_specs.py"]
    picked = ["-k", "quoted or links or message"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *suites, *picked]
    done = subprocess.run(command, cwd=source, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
