"""Unformatted packages for tests that run them: formatting takes most of the time of rendering."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

from attnforge.gpu import cases
from attnforge.language import spec
from attnforge.language.spec import Spec
from attnforge.plan import plan, suite_cases
from attnforge.render import emit, format, render
from attnforge.source import resources

SUITE = "test_{name}.py"


def files(loaded: Spec) -> dict[str, str]:
    """The files of a spec's package as templates print them, not formatted by black."""
    with as_printed():
        return render.render(loaded)


def interpreted(loaded: Spec, *, suite: bool = False, far: bool = False) -> dict[str, str]:
    """The files that the interpreter runs; of the others, kernels for Hopper GPUs take most of the time.

    Without its `far` cases, a suite need not find the lengths at which a spec's numbers matter, which takes longer than
    everything else for some specs.
    """
    from devices import GPU  # turns the interpreter on if there is none: not wanted by tests that compile

    if GPU:
        return files(loaded)
    kept = {name: template for name, template in render._FILES.items() if suite or name != SUITE}
    found = suite_cases.cases(loaded) if suite and far else ()
    with (
        mock.patch.object(render, "_FILES", kept),
        mock.patch.object(render, "hopper_files", return_value=()),
        mock.patch.object(suite_cases, "cases", return_value=found),
    ):
        return files(loaded)


def write(path: Path, package: Path, chosen: Callable[[Spec], dict[str, str]] = interpreted) -> Spec:
    """Writes the `chosen` files of the package of a spec's file into a new folder; returns the spec."""
    loaded = spec.load(path, terms=resources.terms_for(path))
    package.mkdir(parents=True)
    for name, text in chosen(loaded).items():
        (package / name).write_text(text)
    return loaded


def compiled(loaded: Spec) -> dict[str, str]:
    """The files that the compiler needs: all but the suite."""
    with mock.patch.dict(render._FILES):
        del render._FILES[SUITE]
        return files(loaded)


def file(loaded: Spec, name: str) -> str:
    """One of these files."""
    with as_printed():
        return render.file(loaded, name)


def package(path: Path) -> tuple[Spec, emit.Package]:
    """The spec of a file, and its package."""
    loaded = spec.load(path, terms=resources.terms_for(path))
    return loaded, emit.Package(loaded.name, loaded.source, path, files(loaded))


def launches(path: Path, folder: Path, head_dim: int, dtype: str, v_dim: int | None = None) -> cases.Cases:
    """The kernels of a spec's package, which is written to a folder, as cases for the compiler."""
    loaded = spec.load(path, terms=resources.terms_for(path))
    planned = plan.build(loaded)
    with of_plan(planned):
        made = emit.Package(loaded.name, loaded.source, path, compiled(loaded))
    return cases.rendered(made, planned, folder, head_dim, dtype, v_dim)


def shipped(name: str, head_dim: int, dtype: str, v_dim: int | None = None) -> cases.Cases:
    """The kernels of a variant's package in `generated`, as cases for the compiler."""
    path = resources.variants()[name]
    planned = plan.build(spec.load(path, terms=resources.terms_for(path)))
    return cases.written(planned, Path(__file__).parents[1], head_dim, dtype, v_dim)


@contextlib.contextmanager
def of_plan(planned: plan.Plan) -> Iterator[None]:
    """A context in which everything is rendered from this plan, as templates print it."""
    with as_printed(), mock.patch.object(plan, "build", return_value=planned):
        yield


@contextlib.contextmanager
def as_printed() -> Iterator[None]:
    """A context in which packages are rendered as templates print them."""
    with mock.patch.object(format, "python", lambda text, template: text):
        yield
