"""Packages that are rendered on request, and stored on disk under a hash of everything they are made from."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import numbers
import os
import sys
import threading
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType

from ..language import spec as language
from ..language.exports import EXPORTS
from ..language.spec import Spec
from ..plan import tiles
from ..source import resources
from ..source.errors import near
from . import emit, render

_LIST = "files.txt"
_LOCK = threading.RLock()


def build(spec: str | os.PathLike[str] | Mapping[str, object]) -> ModuleType:
    """The package of a spec, imported; rendered first unless there is a build made from the same contents."""
    found = _load(spec)
    key = _key(found)
    name = f"attnforge_{found.name}_{key}"
    # one thread at a time: others would find a module whose code has not finished running
    with _LOCK:
        known = sys.modules.get(name)
        home = Path(str(known.__file__)).parents[1] if known else folder() / f"{found.name}-{key}"
        # also for a known module, which imports most of its files only when they are needed
        if not _whole(home / found.name):
            _write(home, found)
            importlib.invalidate_caches()
        return known or _imported(name, home / found.name / "__init__.py", found.exports)


def _whole(package: Path) -> bool:
    """True if all files of a package exist; the list of them is written last."""
    try:
        listed = (package.parent / _LIST).read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    return all((package / file).is_file() for file in listed)


def _write(home: Path, spec: Spec) -> None:
    """Renders the package of a spec into a folder."""
    files = render.render(spec)
    try:
        home.mkdir(parents=True, exist_ok=True)
        emit.write([emit.Package(spec.name, spec.source, spec.path, files)], home)
        (home / _LIST).write_text("\n".join(files), encoding="utf-8")
    except OSError as error:
        told = f"{home.parent} cannot be written to ({error.strerror}); ATTNFORGE_CACHE names another folder"
        raise type(error)(told) from error


def folder() -> Path:
    """The folder of all builds: the one named by ATTNFORGE_CACHE, else the platform's folder for caches."""
    if own := os.environ.get("ATTNFORGE_CACHE"):
        return Path(own).expanduser().absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "attnforge"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "attnforge" / "Cache"
    # a relative path is ignored: its meaning changes with the working folder
    caches = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(caches) if os.path.isabs(caches) else Path.home() / ".cache") / "attnforge"


def _load(spec: str | os.PathLike[str] | Mapping[str, object]) -> Spec:
    """The spec of a file, a shipped variant, a text or a mapping; texts count as files in the working folder."""
    if isinstance(spec, Mapping):
        return language.loads(_written(spec), Path.cwd(), shown="<spec>")
    # no file has such a name; JSON without spaces is YAML, too
    if isinstance(spec, str) and ("\n" in spec or ": " in spec or spec.lstrip().startswith("{")):
        return language.loads(spec, Path.cwd(), shown="<spec>")
    if not isinstance(spec, str | os.PathLike):
        raise TypeError(f"spec: expected a path, YAML text or a mapping, got {type(spec).__name__}")
    path = Path(spec)
    # unlike Path.is_file, this is also false for strings that cannot be file names
    if not os.path.isfile(path):
        shipped = resources.variants()
        if str(spec) not in shipped:
            raise FileNotFoundError(f"{str(spec)!r} is neither a file nor a shipped variant{near(str(spec), shipped)}")
        path = shipped[str(spec)]
    return language.load(path, terms=resources.terms_for(path))


def _written(spec: Mapping[str, object]) -> str:
    """A mapping as YAML, of which JSON is a subset."""

    def plain(value: object) -> object:
        if isinstance(value, Mapping):
            return dict(value)
        # numbers of other libraries
        kind = "int" if isinstance(value, numbers.Integral) else "float" if isinstance(value, numbers.Real) else ""
        told = type(value).__name__ + (f" at {place}" if (place := _place(spec, value)) else "")
        hint = f"; write {kind}(...)" if kind else ""
        raise TypeError(f"spec: expected texts, numbers, truth values, lists and mappings, got {told}{hint}")

    try:
        return json.dumps(dict(spec), indent=2, ensure_ascii=False, default=plain) + "\n"
    except RecursionError:
        raise ValueError("spec: its lists and mappings are nested too deep") from None
    except ValueError:
        raise ValueError("spec: a list or mapping contains itself") from None


def _place(inside: object, wanted: object) -> str:
    """The place of an object inside mappings and lists, such as mask[0].tree.depth; "" if it is not there."""
    found: list[tuple[str, object]] = []
    if isinstance(inside, Mapping):
        found = [(f".{key}", value) for key, value in inside.items()]
    elif isinstance(inside, list | tuple):
        found = [(f"[{i}]", value) for i, value in enumerate(inside)]
    for step, value in found:
        if value is wanted:
            return step.removeprefix(".")
        if rest := _place(value, wanted):
            return f"{step}{'' if rest.startswith('[') else '.'}{rest}".removeprefix(".")
    return ""


def _key(spec: Spec) -> str:
    """A hash of everything that determines a package's text."""
    parts = spec.source, spec.text, repr(tiles.tuned(spec.path)), resources.generator_digest().hex()
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _imported(name: str, face: Path, exports: Collection[str]) -> ModuleType:
    """The package of an `__init__.py` under a name of its own, with a docstring that says where its code is."""
    found = importlib.util.spec_from_file_location(name, face, submodule_search_locations=[str(face.parent)])
    assert found is not None and found.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(found)
    vars(module)["__getattr__"] = partial(_exported, name, exports)
    try:
        found.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    module.__doc__ = f"{(module.__doc__ or '').rstrip()}\n\nIts code is in {face.parent}.\n"
    return module


def _exported(package: str, exports: Collection[str], name: str) -> ModuleType:
    """A file that a spec exports, imported when it is accessed as an attribute: it may need another library."""
    if name not in exports:
        hint = f": its spec does not say `exports: [{name}]`" if name in EXPORTS else ""
        raise AttributeError(f"module {package!r} has no attribute {name!r}{hint}", name=name)
    return importlib.import_module(f"{package}.{name}")
