"""The direction of imports, who may import what, and how quickly the command line answers."""

from __future__ import annotations

import ast
import builtins
import functools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import unformatted

import attnforge
from attnforge.language import spec
from attnforge.source import resources

PACKAGE = Path(attnforge.__file__).parent
ROOT = PACKAGE.parents[1]
MODULES = {
    path.relative_to(PACKAGE).with_suffix("").as_posix(): path
    for path in PACKAGE.rglob("*.py")
    if path.stem not in ("__init__", "__main__")
}

# Modules of a package may import those of packages on the lines above.
LINES = ["source", "expressions", "printing tiling language", "plan", "export", "render", "explain", "gpu", "cli"]
ONLY = {
    "jinja2": {"render/render"},
    "black": {"render/format"},
    "yaml": {"source/located_yaml", "plan/tiles", "cli/starter"},
}
TOOLS = {"explain", "gpu", "cli"}


def imports(path: Path, *, at_top: bool = False) -> set[str]:
    """The modules that a file imports, own ones as `.package/name`; `at_top`: those that importing it imports."""
    tree = ast.parse(path.read_text())
    found: set[str] = set()
    for node in top_level(tree) if at_top else statements(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add(str(node.module).split(".")[0])
        elif isinstance(node, ast.ImportFrom):
            found |= {f".{name}" for name in own_modules(path.parents[node.level - 1], node)}
    assert "attnforge" not in found, f"{path.name}: own modules are imported relatively"
    return found


def own_modules(start: Path, node: ast.ImportFrom) -> Iterator[str]:
    """The modules that a relative import names: the one it imports from, or those it imports from a package."""
    place = start.joinpath(*(node.module or "").split("."))
    for alias in node.names:
        module = place / alias.name if place.is_dir() else place
        if module.with_suffix(".py").is_file() and PACKAGE in module.parents:
            yield module.relative_to(PACKAGE).as_posix()


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """All statements, including nested ones."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.stmt, ast.excepthandler, ast.match_case)):
            yield node
            yield from statements(node)


def top_level(tree: ast.AST) -> list[ast.AST]:
    """All statements outside functions and `if TYPE_CHECKING`."""
    found: list[ast.AST] = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        found += [node, *top_level(node)]
    return found


def line(package: str) -> int:
    return next(i for i, packages in enumerate(LINES) if package in packages.split())


def test_every_module_has_a_package() -> None:
    assert {name.split("/")[0] for name in MODULES} == set(" ".join(LINES).split())
    assert all(re.fullmatch(r"\w+/\w+|plan/families/(\w+/)?\w+", name) for name in MODULES)


def test_a_folder_of_a_family_has_a_module_of_its_name() -> None:
    folders = {Path(name).parent for name in MODULES if name.count("/") == 3}
    assert folders
    assert {(folder / folder.name).as_posix() for folder in folders} <= set(MODULES)


@pytest.mark.parametrize("name", sorted(MODULES))
def test_imports_point_in_one_direction(name: str) -> None:
    package = name.split("/")[0]
    others = {found[1:].split("/")[0] for found in imports(MODULES[name]) if found.startswith(".")} - {package}
    assert {other for other in others if line(other) >= line(package)} == set()


def test_no_modules_import_each_other() -> None:
    pending = {name: {i[1:] for i in imports(path) if i.startswith(".")} for name, path in MODULES.items()}
    while pending:
        free = [name for name, needs in pending.items() if not needs & set(pending)]
        assert free, f"a circle among {sorted(pending)}"
        for name in free:
            del pending[name]


@pytest.mark.parametrize("library", ONLY)
def test_each_library_has_its_one_importer(library: str) -> None:
    importers = {name for name, path in MODULES.items() if library in imports(path)}
    assert importers
    assert importers <= ONLY[library]


@pytest.mark.parametrize("name", sorted(MODULES))
def test_torch_and_triton_are_imported_by_tools_inside_functions(name: str) -> None:
    heavy = {"torch", "triton", "matplotlib", "numpy"}
    assert not imports(MODULES[name], at_top=True) & heavy
    if name.split("/")[0] not in TOOLS:
        assert not imports(MODULES[name]) & heavy


@pytest.mark.parametrize("name", sorted(MODULES))
def test_modules_and_public_functions_say_what_they_are(name: str) -> None:
    tree = ast.parse(MODULES[name].read_text())
    assert ast.get_docstring(tree)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), node.name


@pytest.mark.parametrize("path", sorted(MODULES.values()), ids=lambda p: p.name)
def test_modules_stay_small(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400


@pytest.mark.parametrize("path", sorted((ROOT / "templates").rglob("*.jinja")), ids=lambda p: p.name)
def test_templates_stay_small(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 200


KERNEL_TEMPLATES = [
    path for folder in ("portable", "early", "macros") for path in sorted((ROOT / "templates" / folder).glob("*.jinja"))
] + [ROOT / "templates" / "decode" / f"{name}.jinja" for name in ("append", "functions", "join", "kernels.py", "split")]
KERNEL_TEMPLATES.append(ROOT / "templates" / "statistics" / "measure.jinja")


@pytest.mark.parametrize("path", KERNEL_TEMPLATES, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_templates_of_kernels_ask_nothing_of_the_spec(path: Path) -> None:
    assert not re.search(r"\bspec\b", path.read_text())


def test_templates_of_kernels_leave_decisions_to_the_plan() -> None:
    found = {path.name: len(re.findall(r"\{%-? *(?:el)?if\b", path.read_text())) for path in KERNEL_TEMPLATES}
    assert sum(found.values()) < 10, found


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": str(PACKAGE.parent)}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=env, check=True)


def test_help_answers_in_under_300_ms() -> None:
    run("-m", "attnforge", "--help")  # writes the bytecode
    took = []
    for _ in range(5):
        start = spent()
        run("-m", "attnforge", "--help")
        took.append(spent() - start)
    assert min(took) < 0.3


def spent() -> float:
    """The CPU seconds of child processes of this process, to which other tests contribute nothing."""
    found = os.times()
    return found.children_user + found.children_system


def test_help_imports_nothing_heavy() -> None:
    code = "import sys, attnforge.cli.commands; print(*sys.modules)"
    loaded = set(run("-c", code).stdout.split())
    assert not loaded & {"torch", "triton", "jinja2", "black", "pydantic", "yaml", "rich", "numpy", "sympy"}


@pytest.mark.parametrize("command", ["bench", "tune", "profile"])
def test_commands_for_a_gpu_tell_at_once_that_there_is_none(command: str) -> None:
    code = f"""
import contextlib, sys
from attnforge.cli import commands
from attnforge.gpu import results
from attnforge.render import render
results._driver, render.render_all = lambda: False, None
with contextlib.suppress(SystemExit):
    commands.main(["{command}", "causal"])
print(*sys.modules)
"""
    done = run("-c", code)
    assert "this needs a GPU that torch can use" in done.stderr
    assert not set(done.stdout.split()) & {"torch", "triton"}


def test_rendering_needs_neither_torch_nor_triton() -> None:
    code = "import sys, attnforge.render.render, attnforge.render.emit, attnforge.explain.explain; print(*sys.modules)"
    assert not set(run("-c", code).stdout.split()) & {"torch", "triton", "numpy"}


def test_generated_packages_import_torch_triton_and_the_standard_library() -> None:
    allowed = set(sys.stdlib_module_names) | {"torch", "triton"}
    # some files are the same in many packages
    files = {(path.name, path.read_bytes()): path for path in sorted((ROOT / "generated").rglob("*.py"))}
    for path in files.values():
        found = {name for name in imports(path) if not name.startswith(".")}
        suite = path.name.startswith("test_") or path.name == "checks.py"
        more = {"pytest"} if suite else {"transformers"} if path.name == "transformers.py" else set()
        assert found <= allowed | more, path


def names(node: ast.AST, context: type[ast.expr_context]) -> set[ast.Name]:
    return {n for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, context)}


@pytest.mark.parametrize("path", sorted((ROOT / "generated").glob("*/kernels.py")), ids=lambda path: path.parent.name)
def test_a_loops_variable_is_read_inside_alone(path: Path) -> None:
    # before and after the loop that binds it, Python has a value for it; on a GPU the value is undefined
    for function in (node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)):
        loops = [node for node in ast.walk(function) if isinstance(node, ast.For)]
        inside: set[ast.Name] = set()
        for loop in loops:
            made = {n.id for n in names(loop, ast.Store)}
            inside |= {n for part in loop.body for n in names(part, ast.Load) if n.id in made}
        bound = {n.id for loop in loops for n in names(loop.target, ast.Store)}
        assert not {n.id for n in names(function, ast.Load) - inside} & bound, function.name


@pytest.mark.parametrize("path", sorted((ROOT / "generated").glob("*/kernels.py")), ids=lambda path: path.parent.name)
def test_kernels_read_all_that_they_name(path: Path) -> None:
    for function in (node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)):
        read = {n.id for n in names(function, ast.Load)}
        alone = (node.targets[0] for node in ast.walk(function) if isinstance(node, ast.Assign))
        named = {target.id for target in alone if isinstance(target, ast.Name)}
        assert not (named | {a.arg for a in function.args.args}) - read, function.name


@functools.cache  # some files are the same in many packages
def undefined(text: str) -> dict[str, set[str]]:
    """Names that kernels of a module read and nothing defines."""
    if "jit" not in text:
        return {}
    module = ast.parse(text)
    known = {n.name for n in ast.walk(module) if isinstance(n, ast.FunctionDef | ast.ClassDef)} | set(dir(builtins))
    known |= {a.asname or a.name.split(".")[0] for n in ast.walk(module) if isinstance(n, _IMPORTS) for a in n.names}
    known |= {target.id for n in module.body if isinstance(n, ast.Assign) for target in names(n, ast.Store)}
    found = {}
    for function in (n for n in module.body if isinstance(n, ast.FunctionDef) and "jit" in decorated(n)):
        made = {n.id for n in names(function, ast.Store)} | {a.arg for a in function.args.args}
        found[function.name] = {n.id for n in names(function, ast.Load)} - made - known
    return {function: lost for function, lost in found.items() if lost}


_IMPORTS = (ast.Import, ast.ImportFrom)


def decorated(function: ast.FunctionDef) -> str:
    """The text of a function's decorators."""
    return " ".join(map(ast.unparse, function.decorator_list))


@pytest.mark.parametrize("package", sorted((ROOT / "generated").glob("*/")), ids=lambda path: path.name)
def test_kernels_of_all_files_define_what_they_read(package: Path) -> None:
    """Including the kernels for Hopper GPUs."""
    for path in package.glob("*.py"):
        assert not undefined(path.read_text()), path.name


# specs with a single feature: a name that two parts of a kernel read may be undefined if only one is present
ALONE = {
    "nothing": "",
    "rope": "rope: {layout: half, dims: 32}\n",
    "sink": "sink: true\n",
    "dropout": "dropout: true\n",
    "decay": "score: [log_decay]\n",
    "alibi": "score: [alibi]\n",
    "softcap": "score: [softcap: {cap: 30}]\n",
    "of_a_query": 'score: [expr: "score + w[q]"]\ninputs: {w: {axes: [token], grad: true}}\n',
    "of_a_key": 'score: [expr: "score * w[k]"]\ninputs: {w: {axes: [token, head], grad: true}}\n',
    "of_heads": 'score: [expr: "score * w"]\ninputs: {w: {axes: [head], grad: true}}\n',
    "equal_heads": "heads: equal\n",
}
MASKS = {
    "nothing": "",
    "causal": "mask: [causal]\n",
    "window": "mask: [causal, sliding_window: {size: 40}]\n",
    "of_heads": 'mask: [expr: "q - k < 8 * (h + 1)"]\n',
}


# how rows are loaded does not depend on what a mask compares: for packed ones, no masked tile or some are enough
@pytest.mark.parametrize("name", ALONE)
@pytest.mark.parametrize(
    ("layout", "masks"), [*(("dense", masks) for masks in MASKS), ("packed", "nothing"), ("packed", "of_heads")]
)
def test_kernels_define_what_they_read_of_a_part_alone(name: str, layout: str, masks: str, tmp_path: Path) -> None:
    path = tmp_path / "alone.yaml"
    path.write_text(f"name: alone\nlayout: {layout}\n{MASKS[masks]}{ALONE[name]}")
    for file, text in unformatted.compiled(spec.load(path, terms=resources.terms_for(path))).items():
        if file.endswith(".py"):
            assert not undefined(text), file
