"""Extensions that take one module and one folder of templates: a family of kernels, and a storage."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import unformatted
import unrewritten

from attnforge.language import spec
from attnforge.plan import storage
from attnforge.plan.families import family, known, portable
from attnforge.plan.parameters import Function
from attnforge.plan.shared_parameters import SharedParameters
from attnforge.plan.sides import Side
from attnforge.plan.statements import Block, Statement
from attnforge.render import render
from attnforge.source import resources

SPEC = """\
name: {name}
mask:
  - causal
score:
  - alibi
"""
FORWARD = """\
{{% include "portable/forward.jinja" %}}
# written from {folder}/forward.jinja
"""
LOADS = """\
{% macro load_guarded() %}
@triton.jit
def load_guarded(desc, b, h, first, count, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    \"\"\"Load rows of a head; 0 from row `count` on, whatever stands there.\"\"\"
    tile = load_tile(desc, b, h, first, count, ROWS, COLUMNS)
    return tl.where((first + tl.arange(0, ROWS) < count)[:, None], tile, 0.0)
{% endmacro %}
"""


@pytest.fixture
def templates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the templates to which a test may add a folder."""
    copied = tmp_path / "templates"
    shutil.copytree(resources.templates(), copied)
    monkeypatch.setattr(resources, "templates", lambda: copied)
    render._environment.cache_clear()
    yield copied
    render._environment.cache_clear()


def package(name: str, folder: Path) -> tuple[dict[str, str], ModuleType]:
    """The files of the package of a small spec, and its suite."""
    path = folder / f"{name}.yaml"
    path.write_text(SPEC.format(name=name))
    files = unformatted.interpreted(spec.load(path, terms=resources.terms_for(path)), suite=True)
    (folder / name).mkdir()
    for file, text in files.items():
        (folder / name / file).write_text(text)
    return files, unrewritten.module(folder, f"{name}.test_{name}")


def test_a_family_is_a_module_and_a_folder(tmp_path: Path, templates: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (templates / "eager").mkdir()
    (templates / "eager" / "forward.jinja").write_text(FORWARD.format(folder="eager"))

    def kernels(p: SharedParameters) -> family.Kernels:
        """The portable family's kernels, with another template for the forward pass and one more mask."""
        found = portable.kernels(p)
        hidden: tuple[Block, ...] = (Statement("keep", "k_pos[None, :] >= 0", "&="),)
        blocks = found.forward.blocks | {"masked": (*found.forward.blocks["masked"], *hidden)}
        forward = dataclasses.replace(found.forward, template="eager/forward.jinja", blocks=blocks)
        return dataclasses.replace(found, forward=forward)

    eager = family.Family("eager", lambda given: given.name == "seam_family", kernels)
    monkeypatch.setattr(known, "FAMILIES", [eager, *known.FAMILIES])
    files, suite = package("seam_family", tmp_path)
    assert "written from eager/forward.jinja" in files["kernels.py"]
    assert "keep &= k_pos[None, :] >= 0" in files["kernels.py"]
    suite.check(suite.SMALL)


def test_a_storage_is_a_module_and_a_folder(tmp_path: Path, templates: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (templates / "guarded").mkdir()
    (templates / "guarded" / "loads.jinja").write_text(LOADS)

    class Guarded(storage.Dense):
        """Tensors with other data after the rows of a head."""

        functions = (*storage.Dense.functions, Function("guarded/loads.jinja", "load_guarded"))

        def tile(self, x: str, side: Side, head: str, rows: str, columns: str) -> str:
            return super().tile(x, side, head, rows, columns).replace("load_tile", "load_guarded")

    monkeypatch.setitem(storage.STORAGES, False, Guarded())
    files, suite = package("seam_storage", tmp_path)
    assert "q_tile = load_guarded(q_desc" in files["kernels.py"]
    suite.check(suite.SMALL)
