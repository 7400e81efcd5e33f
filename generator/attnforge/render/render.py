"""A spec -> the files of its package. The only importer of jinja2."""

from __future__ import annotations

import base64
import dataclasses
import functools
import hashlib
import os
import traceback
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import jinja2

from .. import __version__
from ..export import context_parallel, flex, module, transformers
from ..language.spec import Spec
from ..plan import explanation, glossary, plan, reference, statements
from ..source import resources
from . import emit, format, header

_FILES = {
    "__init__.py": "host/init.py.jinja",
    "kernels.py": "portable/kernels.py.jinja",
    "launch.py": "host/launch.py.jinja",
    "tiles.py": "host/tiles.py.jinja",
    "api.py": "host/api.py.jinja",
    "reference.py": "host/reference.py.jinja",
    "test_{name}.py": "tests/suite.py.jinja",
}
_BY_DISTANCE = {"by_distance.py": "portable/by_distance.py.jinja"}
_VANISHING = {"vanishing.py": "host/vanishing.py.jinja"}
_DECODING = {
    "decode.py": "decode/decode.py.jinja",
    "decode_launch.py": "decode/launch.py.jinja",
    "decode_operators.py": "decode/operators.py.jinja",
    "decode_kernels.py": "decode/kernels.py.jinja",
}
_DECODING_AS_TRAINING = {"decode_training.py": "decode/training.py.jinja"}
_DECODING_ON_HOPPER = {"decode_hopper.py": "decode/hopper.py.jinja"}
_MEASURING = {"statistics.py": "statistics/statistics.py.jinja"}
_LAYERS = {"transformers.py": "transformers/transformers.py.jinja"}
_MODULE = {"module.py": "module/module.py.jinja"}
_RANKS = {"context_parallel.py": "ranks/context_parallel.py.jinja"}

# files with the same bytes in every package, in each whose calls may leave rows out, in each that decodes, and in each
# whose tokens are shared among ranks
_SHARED = {
    "arguments.py": "host/arguments.py.jinja",
    "runtime.py": "host/runtime.py.jinja",
    "checks.py": "tests/checks.py.jinja",
}
_SHARED_PADDING = {"padding.py": "host/padding.py.jinja"}
_SHARED_DECODING = {"decode_arguments.py": "decode/arguments.py.jinja"}
_SHARED_RANKS = {"ranks.py": "ranks/ranks.py.jinja"}


class TemplateFault(Exception):
    """A template failed: the program's own fault, never the user's."""


def render(spec: Spec, out: Path | None = None) -> dict[str, str]:
    """The names and texts of the files that make up the package of a spec.

    Files in `out` that were made from the same contents are reused, as formatting takes most of the time.
    """
    values = _values(spec)
    files = _FILES | {f"{name}.py": f"hopper/{name}.py.jinja" for name in hopper_files(values["plan"])}
    files |= _BY_DISTANCE if values["plan"].by_distance else {}
    files |= _VANISHING if values["plan"].kernels.vanishing else {}
    files |= _DECODING if values["plan"].decode else {}
    files |= _DECODING_AS_TRAINING if values["plan"].decode_training else {}
    files |= _DECODING_ON_HOPPER if values["plan"].decode_hopper else {}
    files |= _MEASURING if values["plan"].statistics else {}
    files |= _LAYERS if values["transformers"] else {}
    files |= _MODULE if values["module"] else {}
    files |= _RANKS if values["context_parallel"] else {}
    shared = _SHARED | (_SHARED_PADDING if values["plan"].storage.entries else {})
    shared |= _SHARED_DECODING if values["plan"].decode else {}
    shared |= _SHARED_RANKS if values["context_parallel"] else {}
    printed = {name.format(name=spec.name): (_printed(file, values), file) for name, file in files.items()}
    printed |= {name: (_shared(file), file) for name, file in shared.items()}
    return {name: _formatted(*text, out / spec.name / name if out else None) for name, text in printed.items()}


def hopper_files(planned: plan.Plan) -> tuple[str, ...]:
    """The names of a package's modules for Hopper GPUs."""
    if not planned.hopper:
        return ()
    backward = ("hopper_backward", "hopper_launch") if planned.hopper.backward else ()
    return ("hopper", *backward, *(("hopper_wide",) if planned.hopper.wide else ()))


def file(spec: Spec, name: str) -> str:
    """The text of one file of a package, without rendering the others."""
    return _formatted(_printed(_FILES[name], _values(spec)), _FILES[name])


def unformatted_kernels(spec: Spec, lines: Callable[[Iterable[statements.Block]], list[str]]) -> str:
    """The kernels of a spec before they are formatted; `lines` turns statements into lines."""
    return _overlay(lines).get_template(_FILES["kernels.py"]).render(_values(spec))


def _values(spec: Spec) -> dict[str, Any]:
    """The values that the templates of a package print."""
    planned = plan.build(spec)
    content = (spec.text.encode(), resources.templates_digest(), __version__.encode())
    tuned = (repr(planned.tuned).encode(),) if planned.tuned else ()
    oracle = reference.build(spec, planned.arguments)
    return {
        "plan": planned,
        "oracle": oracle,
        "transformers": transformers.build(spec, planned.arguments) if "transformers" in spec.exports else None,
        "module": module.build(spec, planned.arguments) if "module" in spec.exports else None,
        "context_parallel": context_parallel.build(spec, planned.arguments)
        if "context_parallel" in spec.exports
        else None,
        "explanation": functools.partial(explanation.text, planned, oracle.description),
        "symbols": functools.partial(glossary.text, planned),
        "header": header.write(spec.source, *content, *tuned).rstrip("\n"),
    }


def render_all(specs: Sequence[Spec], out: Path | None = None) -> list[dict[str, str]]:
    """The packages of several specs; four or more are spread over the cores."""
    cores = os.cpu_count() or 1
    if len(specs) < 4 or cores == 1:
        return [render(spec, out) for spec in specs]
    with ProcessPoolExecutor(min(cores, len(specs))) as pool:
        return list(pool.map(functools.partial(render, out=out), specs))


def page(values: dict[str, Any]) -> str:
    """One page in HTML, which allows nothing to run or load but its own style and script."""
    values = dict(values)
    for part in ("style.css", "script.js"):
        text = _text(f"page/{part}.jinja", values, escape=True)
        values[part.partition(".")[0]] = text
        values[f"{part.partition('.')[0]}_hash"] = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return _text("page/page.html.jinja", values, escape=True)


def sheet(values: dict[str, Any]) -> str:
    """The page of a variant in Markdown."""
    return _text("docs/variant.md.jinja", values)


def index(values: dict[str, Any]) -> str:
    """The page that links the pages of all shipped variants."""
    return _text("docs/variants.md.jinja", values)


def language_page(values: dict[str, Any]) -> str:
    """The reference of the spec language and the commands."""
    return _text("docs/reference.md.jinja", values)


def signature(planned: plan.Plan) -> str:
    """The signature of `attention` as in its package."""
    return _python("docs/signature.py.jinja", {"plan": planned})


def export(spec: Spec, to: str) -> str:
    """A module with the variant of a spec for the library named by `to`. Raises flex.Inexpressible."""
    planned = dataclasses.replace(plan.build(spec), statistics=None)  # other libraries have none
    texts = reference.build(spec, planned.arguments)
    values = {"plan": planned, "oracle": texts, "flex": flex.build(spec, planned.arguments)}
    return _python(f"export/{to}.py.jinja", values)


def _printed(template: str, values: dict[str, Any]) -> str:
    """A file that depends on the spec, before it is formatted."""
    return header.close(_text(template, values).lstrip("\n"))


@functools.cache
def _shared(template: str) -> str:
    """A file that does not depend on the spec, before it is formatted."""
    return header.close(header.shared(template) + _text(template, {"smooth": reference.smooth()}).lstrip("\n"))


def _formatted(printed: str, template: str, place: Path | None = None) -> str:
    """The text of a file; the existing text at `place` if that was made from the same contents."""
    made = (emit.read(place) if place else None) or ""
    new, old = header.read(printed), header.read(made)
    if new and old and old.intact and old.content == new.content:
        return made
    return header.stamp(format.python(printed, template))


def _python(template: str, values: dict[str, Any]) -> str:
    return format.python(_text(template, values).lstrip("\n"), template)


def _text(template: str, values: dict[str, Any], *, escape: bool = False) -> str:
    try:
        return _environment(escape).get_template(template).render(values)
    except jinja2.TemplateSyntaxError as error:
        raise TemplateFault(f"template {error.name or template}, line {error.lineno}: {error.message}") from error
    except Exception as error:
        raise TemplateFault(f"template {_place(error, template)}: {type(error).__name__}: {error}") from error


def _place(error: Exception, template: str) -> str:
    """Template and line of the innermost frame that jinja2 mapped back to a template."""
    root = str(resources.templates())
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(root)]
    return f"{frames[-1].filename[len(root) + 1 :]}, line {frames[-1].lineno}" if frames else template


@functools.cache  # an overlay compiles its own templates
def _overlay(lines: Callable[[Iterable[statements.Block]], list[str]]) -> jinja2.Environment:
    environment = _environment().overlay()
    environment.filters = environment.filters | {"lines": lines}
    return environment


@functools.cache
def _environment(escape: bool = False) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(resources.templates(), encoding="utf-8"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=escape,
        newline_sequence="\n",
    )
    environment.filters["lines"] = statements.lines
    environment.filters["filled"] = statements.filled
    environment.filters["typed"] = statements.typed
    return environment
