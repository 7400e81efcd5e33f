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

from ..render import emit
from ..source.messages import Refused

_UNKNOWN_EXPRESSION, _NO_TESTS = 4, 5  # exit codes of pytest


def run(packages: Sequence[emit.Package], *, cpu: bool, only: str | None = None, processes: int | None = None) -> int:
    """Renders the packages and runs their suites, or only the tests whose names match a pytest expression, `only`.

    Returns 0 if all passed, 1 if one failed, 3 if none could run.
    """
    if importlib.util.find_spec("pytest") is None:
        raise Refused("`attnforge test` needs pytest: pip install pytest")
    if processes is not None and importlib.util.find_spec("xdist") is None:
        raise Refused("-n needs pytest-xdist: pip install pytest-xdist")
    for library in ("torch", "triton"):
        if importlib.util.find_spec(library) is None:
            raise Refused(f"this needs {library}: pip install {library}")
    path = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))))
    env = os.environ | {"PYTHONPATH": path} | ({"TRITON_INTERPRET": "1"} if cpu else {})
    with tempfile.TemporaryDirectory(prefix="attnforge-") as folder:
        out = Path(folder) / "generated"
        emit.write(packages, out)
        # no pytest settings from the user's folder, and none from around this one
        command = [sys.executable, "-m", "pytest", "-c", os.devnull, f"--rootdir={folder}", f"--confcutdir={folder}"]
        command += ["-p", "no:cacheprovider"]
        command += ["-p", "attnforge.gpu.interpreter", "--tb=short", *(str(out / p.name) for p in packages)]
        command += [] if only is None else ["-k", only]
        command += [] if processes is None else ["-n", str(processes)]
        code = subprocess.run(command, env=env, cwd=folder).returncode
    if only is not None and code in (_UNKNOWN_EXPRESSION, _NO_TESTS):
        why = "no test's name matches" if code == _NO_TESTS else "pytest does not understand"
        raise click.BadParameter(f"{why} {only!r}", param_hint="-k")
    return code if code in (0, 1) else 3
