"""A process for tests that compile kernels: it has imported torch and triton for a GPU, and forks for each test.

Starting one takes seconds, and a process that interprets kernels cannot compile any.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# goes before code that reads the assembler's input: skips the assembler, which is slow
UNASSEMBLED = """
from triton.backends.nvidia.compiler import CUDABackend
CUDABackend.make_cubin = lambda *_: b""
"""
# goes before code that only reads stages before LLVM
UNLOWERED = f"""{UNASSEMBLED}
CUDABackend.make_llir = lambda self, source, metadata, *_: metadata.update(shared=0, name="unlowered") or ""
CUDABackend.make_ptx = lambda *_: ""
"""


class Compiler:
    """The process, which is started when it gets its first code."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def run(self, code: str, folder: Path, *arguments: str) -> list[str]:
        """Runs code and returns its printed lines; sys.argv has the folder, where kernels are cached, and arguments."""
        self._process = self._process or _started()
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps([code, str(folder), *arguments]) + "\n")
        self._process.stdin.flush()
        good, printed, errors = json.loads(self._process.stdout.readline())
        assert good, errors
        lines: list[str] = printed.splitlines()
        return lines

    def end(self) -> None:
        """Ends the process."""
        if self._process:
            self._process.communicate()


def _started() -> subprocess.Popen[str]:
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env["PYTHONPATH"] = os.pathsep.join(str(ROOT / place) for place in ("generator", "tests"))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen([sys.executable, __file__], env=env, text=True, **pipes)


def serve() -> None:
    """The main loop of the process: forks for each line it reads."""
    import torch  # noqa: F401
    import triton.experimental.gluon.language.nvidia.hopper  # noqa: F401
    import unformatted
    from triton.runtime.cache import triton_key

    import attnforge.gpu.compile  # noqa: F401
    from attnforge.source import resources

    triton_key()  # otherwise each process would read the whole compiler to hash it
    for name in ("causal", "deepseek_mla_absorbed", "flash1"):  # or each process would recompile their templates
        unformatted.package(resources.variants()[name])
    gc.freeze()
    for line in sys.stdin:
        with tempfile.TemporaryFile("w+") as printed, tempfile.TemporaryFile("w+") as errors:
            child = os.fork()
            if not child:
                os.dup2(printed.fileno(), 1)
                os.dup2(errors.fileno(), 2)
                _run(*json.loads(line))
            _, status = os.waitpid(child, 0)
            texts = []
            for file in (printed, errors):
                file.seek(0)
                texts.append(file.read())
        print(json.dumps([status == 0, *texts]), flush=True)


def _run(code: str, folder: str, *arguments: str) -> None:
    """Runs code in a process of its own, and ends it."""
    sys.argv[1:] = [folder, *arguments]
    os.environ["TRITON_CACHE_DIR"] = folder
    try:
        exec(compile(code, "<test>", "exec"), {"__name__": "__main__"})
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    serve()
