"""Runs generated suites from a temporary folder."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from . import emit


def run(packages: Sequence[emit.Package], *, cpu: bool) -> int:
    """Renders the packages and runs their suites; gives 0 if all passed, 1 if one failed, 3 if none could run."""
    if importlib.util.find_spec("pytest") is None:
        raise click.UsageError("`attnforge test` needs pytest: pip install attnforge[test]")
    for library in ("torch", "triton"):
        if importlib.util.find_spec(library) is None:
            raise click.UsageError(f"this needs {library}: pip install {library}")
    env = os.environ | ({"TRITON_INTERPRET": "1"} if cpu else {})
    with tempfile.TemporaryDirectory(prefix="attnforge-") as folder:
        out = Path(folder) / "generated"
        emit.write(packages, out)
        # no settings of the user's folder
        command = [sys.executable, "-m", "pytest", "-c", os.devnull, f"--rootdir={folder}", "-p", "no:cacheprovider"]
        done = subprocess.run([*command, *(str(out / p.name) for p in packages)], env=env, cwd=folder)
    return done.returncode if done.returncode in (0, 1) else 3
