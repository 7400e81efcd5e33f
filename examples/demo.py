"""Renders a variant and compares its kernels with its reference, forward and backward."""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
VARIANT = "rope_swa_softcap"
OUT = ROOT / "build" / "demo" / "generated"
ERRORS = ROOT / "build" / "demo" / "errors.jsonl"


def main() -> None:
    """Renders the package, checks it, and prints each error next to its limit."""
    render()
    gpu = torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1"
    where = f"on {torch.cuda.get_device_name()}" if gpu else "on the CPU, in Triton's interpreter: small shapes"
    print(f"\nKernels against the reference in float64, {where}\n", flush=True)
    print(f"{'queries x keys, heads, head sizes, dtype':54} {'result':7} {'error':>9} {'limit':>9}  rows")
    ERRORS.unlink(missing_ok=True)
    os.environ["ATTNFORGE_ERRORS"] = str(ERRORS)
    sys.path.insert(0, str(OUT.parent))
    # the generated suite has its own inputs and its own error limits
    suite = importlib.import_module(f"generated.{VARIANT}.test_{VARIANT}")
    cases = suite.CASES[:: max(1, len(suite.CASES) // 6)] if gpu else suite.CASES[:3]
    for case in cases:
        told = len(read())
        suite.check(case)
        for line in read()[told:]:
            title, name = line["test"].removeprefix(VARIANT).strip().rsplit(" ", 1)
            print(f"{title:54} {name:7} {line['error']:9.1e} {line['limit']:9.1e}  {line['row']:.2f}", flush=True)
    print("\n`error` and `limit` are maxima over a tensor; `rows` is the worst row's error, divided by its limit.")
    print(f"All {len(read())} results are within their limits.\n\nNext steps:")
    print("  .venv/bin/attnforge list                               shipped variants and terms")
    print(f"  .venv/bin/attnforge explain {VARIANT} --shape 4096,4096")
    print("  .venv/bin/attnforge new mine                           a starter spec in specs/mine.yaml")
    print("  .venv/bin/attnforge test specs/mine.yaml               compare its kernels with its reference")


def render() -> None:
    """Writes the package and prints where it is."""
    from attnforge.language import spec
    from attnforge.render import emit
    from attnforge.render import render as renderer
    from attnforge.source import resources

    path = resources.variants()[VARIANT]
    loaded = spec.load(path, terms=resources.terms_for(path))
    files = renderer.render(loaded)
    emit.write([emit.Package(loaded.name, loaded.source, path, files)], OUT, force=True)
    print(f"{path.relative_to(ROOT)}:\n")
    print("".join(f"  {line}\n" for line in path.read_text().splitlines()))
    print(f"rendered to {(OUT / VARIANT).relative_to(ROOT)}:")
    for name, text in files.items():
        print(f"  {name:28} {len(text.splitlines()):4} lines")


def read() -> list[dict[str, Any]]:
    """The errors that the suite has recorded so far."""
    return [json.loads(line) for line in ERRORS.read_text().splitlines()] if ERRORS.exists() else []


if __name__ == "__main__":
    main()
