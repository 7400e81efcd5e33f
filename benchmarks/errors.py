"""Summarises errors that the generated suites recorded: the worst over its limit, by variant, dtype and result.

ATTNFORGE_FULL=1 ATTNFORGE_ERRORS=errors.jsonl pytest generated
python benchmarks/errors.py errors.jsonl... > benchmarks/results/errors.md
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

DTYPES = ("float16", "bfloat16", "float32")


def main() -> None:
    """Prints a table for each dtype: the largest error over limit of a tensor / of a row, and the number of checks."""
    worst: dict[tuple[str, str, str], tuple[float, float, int]] = {}
    for path in sys.argv[1:]:
        for line in Path(path).read_text().splitlines():
            noted = json.loads(line)
            variant, case, result = noted["test"].split()
            key = (variant, case.rsplit("-", 1)[1], result)
            tensor, row, count = worst.get(key, (0.0, 0.0, 0))
            worst[key] = max(tensor, noted["error"] / (noted["limit"] or 1)), max(row, noted["row"]), count + 1
    results = list(
        dict.fromkeys(result for _, _, result in sorted(worst, key=lambda key: key[2] not in ("out", "lse")))
    )
    for dtype in DTYPES:
        print(f"\n## {dtype}\n\n| variant | checks | {' | '.join(results)} |\n|---|---|{'---|' * len(results)}")
        for variant in sorted({key[0] for key in worst}):
            found = [worst.get((variant, dtype, result)) for result in results]
            cells = [f"{x[0]:.2f} / {x[1]:.2f}" if x else "" for x in found]
            print(f"| {variant} | {sum(x[2] for x in found if x)} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
