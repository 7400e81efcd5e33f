"""Finds the templates and the shipped specs, both in a wheel and in a checkout."""

from __future__ import annotations

import hashlib
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


def _folder(name: str) -> Path:
    # a wheel has a copy inside the package; a checkout, even if installed as editable, has none
    inside = _PACKAGE / name
    return inside if inside.is_dir() else _PACKAGE.parents[1] / name


def templates() -> Path:
    """The folder of all templates."""
    return _folder("templates")


def specs() -> Path:
    """The folder of the shipped variants; `terms` below it holds the shipped terms."""
    return _folder("specs")


def variants() -> dict[str, Path]:
    """The shipped variants by name."""
    return {path.stem: path for path in sorted(specs().glob("*.yaml"))}


def terms_for(spec: Path) -> list[Path]:
    """The folders searched for the terms that a spec names: first `terms` beside it, if any, then the shipped ones."""
    return list(dict.fromkeys((spec.resolve().parent / "terms", specs() / "terms")))


def templates_digest() -> bytes:
    """A hash of the name and text of every template that packages are made of."""
    digest = hashlib.sha256()
    root = templates()
    for path in sorted(root.rglob("*.jinja"), key=lambda p: p.relative_to(root).as_posix()):
        if path.parent in (root / "page", root / "export", root / "docs"):
            continue
        text = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()}\0{len(text)}\0".encode())
        digest.update(text)
    return digest.digest()


def generator_digest() -> bytes:
    """A hash of everything that turns a spec into a package: code, tables of tiles, templates."""
    digest = hashlib.sha256(templates_digest())
    for path in sorted(_PACKAGE.rglob("*")):
        if path.suffix == ".py" or path == _PACKAGE / "plan" / "tiles.yaml":
            digest.update(f"{path.relative_to(_PACKAGE).as_posix()}\0".encode())
            digest.update(path.read_bytes())
    return digest.digest()
