"""Rows of cells as lines of text."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """A line for each row, with the cells of each column aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return tuple("   ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
