"""Whether the compiler accepts kernels: it checks types, while the interpreter only has values. Needs no GPU.

`python tests/frontend.py FOLDER` checks the specs of a folder.
"""

from __future__ import annotations

import gc
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import unformatted

from attnforge.gpu import cases, compile
from attnforge.source import resources


def lowered(case: cases.Case, target: Any) -> None:
    """Lowers a kernel to the compiler's first intermediate representation, which is where types are checked."""
    from triton._C.libtriton import ir
    from triton.compiler import make_backend

    backend = make_backend(target)
    # overflow checks of integers are for the debug mode only, and take a seventh of the time
    options = backend.parse_options({**case.options, "sanitize_overflow": False})
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    functions, modules = backend.get_codegen_implementation(options), backend.get_module_map()
    compile.source(case, target).make_ir(target, options, functions, modules, context)


def faults(path: Path) -> list[str]:
    """The kernels of a spec that the compiler rejects, and why."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        launches = unformatted.launches(path, Path(folder), 64, "bf16")
        # other targets have a subset of these kernels; tiles only differ in numbers, and the last has the most workers
        (target,) = compile.targets(("sm_90",)).values()
        for case in {case.name: case for case in launches.of("sm_90")}.values():
            try:
                lowered(case, target)
            except Exception as error:  # whatever the compiler raises
                found.append(f"{path.stem}: {case.name}: {compile.why(error, '')}")
    return found


def main() -> None:
    """Checks the specs of a folder."""
    import torch  # noqa: F401 - once, not in each process of the pool
    import triton  # noqa: F401

    gc.disable()  # it ends soon, and collecting would take a tenth of the time
    unformatted.package(resources.variants()["causal"])  # likewise its templates
    with ProcessPoolExecutor() as pool:
        found = [fault for one in pool.map(faults, sorted(Path(sys.argv[1]).glob("*.yaml"))) for fault in one]
    print("\n".join(found) or "the compiler takes all kernels")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
