"""Packages that tests write into temporary folders: most files of one are those of others, and are compiled once."""

from __future__ import annotations

import functools
import tempfile
from importlib.machinery import SourceFileLoader
from types import CodeType

_get_code = SourceFileLoader.get_code


def once() -> None:
    """Makes files in temporary folders share their code, and leave none there: no other process imports them."""
    SourceFileLoader.get_code = _shared  # type: ignore[method-assign]


def _shared(loader: SourceFileLoader, name: str) -> CodeType | None:
    path = loader.get_filename(name)
    if not path.startswith(tempfile.gettempdir()):
        return _get_code(loader, name)
    return _placed(_compiled(loader.get_data(path)), path)


@functools.lru_cache(1024)
def _compiled(text: bytes) -> CodeType:
    return compile(text, "<shared>", "exec", dont_inherit=True)


def _placed(code: CodeType, path: str) -> CodeType:
    inner = (_placed(x, path) if isinstance(x, CodeType) else x for x in code.co_consts)
    return code.replace(co_filename=path, co_consts=tuple(inner))
