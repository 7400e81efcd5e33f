"""Packages for tests that run them: formatting takes most of the time of a rendering."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest import mock

from attnforge.language.spec import Spec
from attnforge.render import format, render


def files(loaded: Spec) -> dict[str, str]:
    """The files of a spec's package as templates print them, before black has seen them."""
    with as_printed():
        return render.render(loaded)


def file(loaded: Spec, name: str) -> str:
    """One of these files."""
    with as_printed():
        return render.file(loaded, name)


@contextlib.contextmanager
def as_printed() -> Iterator[None]:
    """While it lasts, packages are rendered as templates print them."""
    with (
        mock.patch.object(format, "python", lambda text, template: text),
        # a process remembers the files that all packages share, formatted
        mock.patch.object(render, "_shared", render._shared.__wrapped__),
    ):
        yield
