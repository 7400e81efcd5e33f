"""A wheel, installed away from the checkout, renders a user's spec in another folder."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import attnforge

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
pytest.importorskip("hatchling")


def built(kind: str, source: Path, out: Path) -> Path:
    """A wheel or a source distribution, built from a folder."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(out)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (path,) = out.iterdir()
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


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
    # the wheel's dependencies come from the environment of the tests, but not an editable install of the checkout
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
    assert shown == "generated/mine: 15 files changed\ngenerated/causal: 25 files changed\n"
    assert "321" in (user / "generated" / "mine" / "reference.py").read_text()
    assert "rope_swa_softcap" in attnforge("list")
    attnforge("render", "mine.yaml", "--check")


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution."""
    return built("sdist", ROOT, tmp_path_factory.mktemp("archive"))


@pytest.fixture(scope="module")
def source(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, unpacked."""
    out = tmp_path_factory.mktemp("source")
    with tarfile.open(archive) as packed:
        packed.extractall(out, filter="data")
    (folder,) = out.iterdir()
    return folder


def test_what_is_built_elsewhere_later_has_the_same_bytes(
    wheel: Path, archive: Path, source: Path, tmp_path: Path
) -> None:
    for path in (source / "README.md", source / "generator" / "attnforge" / "__init__.py"):
        path.chmod(0o664)
        os.utime(path, (1e9, 1e9))
    for kind, first in (("wheel", wheel), ("sdist", archive)):
        (tmp_path / kind).mkdir()
        again = built(kind, source, tmp_path / kind)
        assert again.name == first.name
        assert again.read_bytes() == first.read_bytes()


def test_the_version_stands_in_one_place(wheel: Path) -> None:
    assert wheel.name.startswith(f"attnforge-{attnforge.__version__}-")
    headings = re.findall(r"(?m)^## (\S+)$", (ROOT / "CHANGELOG.md").read_text())
    assert headings[0] == attnforge.__version__
    others = [ROOT / "pyproject.toml", ROOT / "README.md", *(ROOT / "generator").rglob("*.py")]
    assert [path.name for path in others if f'"{attnforge.__version__}"' in path.read_text()] == ["__init__.py"]


def test_triton_is_asked_for_where_it_exists(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        metadata = packed.read(f"attnforge-{attnforge.__version__}.dist-info/METADATA").decode()
    (line,) = (line for line in metadata.splitlines() if line.startswith("Requires-Dist: triton"))
    assert line.endswith("; sys_platform == 'linux'")


DECODER = """
import torch

from .attention.module import Attention


class Decoder(torch.nn.Module):
    def __init__(self, symbols, width, layers):
        super().__init__()
        self.embed = torch.nn.Embedding(symbols, width)
        self.layers = torch.nn.ModuleList(Attention(width, num_heads=2, num_kv_heads=1) for _ in range(layers))
        self.norms = torch.nn.ModuleList(torch.nn.RMSNorm(width) for _ in range(layers))
        self.head = torch.nn.Linear(width, symbols)

    def forward(self, ids):
        x = self.embed(ids)
        for norm, layer in zip(self.norms, self.layers):
            x = x + layer(norm(x))
        return self.head(x)
"""
TRAIN = """
import importlib.util
import sys

import torch

from model.decoder import Decoder

assert importlib.util.find_spec("attnforge") is None
torch.manual_seed(0)
model, ids = Decoder(symbols=8, width=32, layers=2), torch.randint(8, (2, 12))
optimizer, losses = torch.optim.Adam(model.parameters(), 0.03), []
for _ in range(6):
    # the symbol before is known to attention alone
    logits = model(ids)[:, 1:]
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, :-1].flatten())
    optimizer.zero_grad()
    loss.backward()
    assert all(p.grad.abs().max() > 0 for p in model.parameters())
    optimizer.step()
    losses.append(loss.item())
assert losses[-1] < 0.8 * losses[0], losses
torch.save(model.state_dict(), "trained.pt")
assert not any("attnforge" in name for name in sys.modules)
"""


def test_a_model_with_a_copied_package_trains_where_attnforge_is_not_installed(tmp_path: Path) -> None:
    """The user's folder has code and a copy under another name; everything is installed as here, except attnforge."""
    user, installed = tmp_path / "user", tmp_path / "installed"
    (user / "model").mkdir(parents=True)
    without = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "generated" / "causal", user / "model" / "attention", ignore=without)
    (user / "model" / "decoder.py").write_text(DECODER)
    (user / "train.py").write_text(TRAIN)
    installed.mkdir()
    for packages in {Path(p).resolve() for p in sys.path if p.endswith("site-packages")}:
        for path in packages.iterdir():
            if "attnforge" not in path.name:
                (installed / path.name).symlink_to(path)
    env = os.environ | {"PYTHONPATH": str(installed), "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    # -S: no folder of installed packages except that one
    done = subprocess.run([sys.executable, "-S", "train.py"], cwd=user, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (user / "trained.pt").exists()


def test_the_source_distribution_carries_what_its_tests_read(source: Path) -> None:
    folders = ("generator", "templates", "specs", "tests", "generated", "benchmarks", "docs", "examples", "website")
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
