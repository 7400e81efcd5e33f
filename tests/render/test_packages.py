"""What the files of a package contain, and which of them are the same everywhere."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import unformatted

from attnforge.render import header, render

GENERATED = Path(render.__file__).parents[3] / "generated"
PACKAGES = sorted(path.parent for path in GENERATED.glob("*/__init__.py"))
# private names of torch and triton, which may change without notice
PRIVATE = re.compile(r"\btorch(?:\.\w+)*\._(?!_)\w+|\btriton\.(?:runtime|knobs|tools)\b")


def test_the_runtime_is_the_same_in_every_package_and_says_so() -> None:
    (text,) = {(package / "runtime.py").read_bytes() for package in PACKAGES}
    opening = text.decode().partition('"""')[0]
    assert "the same in every package" in opening and "specs/" not in opening
    found = header.read(text.decode())
    assert found and found.intact and found.source == "templates/host/runtime.py.jinja"


def test_the_head_of_the_runtime_names_what_there_is_in_its_order() -> None:
    module = ast.parse((PACKAGES[0] / "runtime.py").read_text())
    defined = [x.name for x in module.body if isinstance(x, ast.ClassDef | ast.FunctionDef)]
    lists = re.findall(r": ([\w, ]+)", ast.get_docstring(module) or "")
    named = [name for found in lists for name in found.split(", ")]
    assert named and named == [name for name in defined if name in named]


def test_private_interfaces_are_used_in_the_runtime_alone() -> None:
    names = set(PRIVATE.findall((PACKAGES[0] / "runtime.py").read_text()))
    assert names >= {
        "torch._C._dynamo",
        "torch._ops",
        "triton.knobs",
        "triton.runtime",
        "triton.tools",
    }
    files = [path for package in PACKAGES for path in package.glob("*.py")]
    files = [path for path in files if not path.name.startswith(("test_", "checks"))]
    assert {path.name for path in files if PRIVATE.search(path.read_text())} == {"runtime.py"}


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_launches_are_short_and_leave_tiles_and_triton_to_others(package: Path) -> None:
    text = (package / "launch.py").read_text()
    padding = "padding, " if (package / "padding.py").is_file() else ""
    assert text.count("\n") < 230
    first, second, *others = re.findall(r"^(?:import|from) .*", text, re.MULTILINE)
    assert first == "import torch"
    assert (
        second
        == f"from . import runtime, kernels, {padding}tiles  # runtime first: its error explains a missing triton"
    )
    evaluated = "by_distance_ptr" in (package / "kernels.py").read_text()  # by kernels of other files, or by none
    vanishing = (package / "vanishing.py").is_file()
    told = ["from .by_distance"] * evaluated + ["from .vanishing"] * vanishing
    assert [line.partition(" import ")[0] for line in others] == told


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_tables_of_tiles_tell_of_kernels_that_there_are(package: Path) -> None:
    tables: dict[str, Any] = {}
    exec((package / "tiles.py").read_text(), tables)
    files = {"forward": "hopper.py", "backward": "hopper_backward.py"}
    there = {name for name, file in files.items() if (package / file).is_file()}
    assert {*tables.get("TILES_HOPPER", ())} == {*tables.get("HOPPER_IS_FASTER", ())} == there
    kernels = {
        node.name for node in ast.parse((package / "kernels.py").read_text()).body if isinstance(node, ast.FunctionDef)
    }
    if (package / "statistics.py").is_file():
        kernels.add("measure")
    assert {*tables["TILES_FP32"]}.union(*tables["TILES_16BIT"].values()) <= kernels


def test_a_spec_may_leave_out_kernels_for_hopper_gpus(tmp_path: Path) -> None:
    path = tmp_path / "some.yaml"
    files = {}
    for targets in ("", "targets: [portable]", "targets: [hopper, portable]", "targets: [hopper]"):
        path.write_text(f"name: some\nmask: [causal]\n{targets}\n")
        files[targets] = set(unformatted.package(path)[1].files)
    every, portable, both, hopper = files.values()
    assert every == both == hopper
    assert every - portable == {"hopper.py", "hopper_backward.py", "hopper_wide.py", "hopper_launch.py"}
