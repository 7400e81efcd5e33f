"""Batches of three entries that leave rows out: on the right, on the left, around a chunk of a prompt, or of keys."""

from __future__ import annotations

from collections.abc import Sequence

import torch

KINDS = ("right", "left", "chunk")  # besides "keys", where all queries count


def of(kind: str, length: int, device: str = "cpu") -> tuple[int, dict[str, torch.Tensor]]:
    """The number of queries of a call with `length` keys, and the keywords that say which rows count."""
    queries = length
    if kind == "right":
        places = {"k_lens": (length, length * 7 // 10, 0), "q_start": (0, 0, 0)}
    elif kind == "left":
        starts = (0, length // 8, length // 2)
        places = {"k_starts": starts, "k_lens": (length, length, length - 10), "q_start": tuple(-x for x in starts)}
    elif kind == "keys":
        queries, places = length * 2 // 5, {"k_lens": (length, length // 7, 0)}
    else:
        queries, begin = length * 3 // 10, length // 5
        lengths = (5 + begin + queries, queries, length // 7 + begin + queries - 1)
        places = {"k_starts": (5, 0, length // 7), "k_lens": lengths, "q_start": (begin, 0, begin)}
    return queries, {name: torch.tensor(x, dtype=torch.int32, device=device) for name, x in places.items()}


def left_out(queries: int, keys: int, places: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Which rows of q and of k are padding: true values of (3, rows)."""
    first = places.get("k_starts", torch.zeros_like(places["k_lens"]))[:, None]
    last = places["k_lens"][:, None]
    row, key = (torch.arange(n, device=last.device) for n in (queries, keys))
    position = row + places["q_start"][:, None] if "q_start" in places else 0 * row.expand(len(last), -1)
    counts = (position >= 0) & (position < last - first) if "q_start" in places else position == 0
    return ~counts, (key < first) | (key >= last)


def leaves(
    operands: Sequence[torch.Tensor], places: dict[str, torch.Tensor]
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Copies of q, k and v with NaN in the padding, which get gradients; and which queries are padding."""
    queries_out, keys_out = left_out(operands[0].shape[1], operands[1].shape[1], places)
    outs = (queries_out, keys_out, keys_out)
    return [with_nan(x, out).requires_grad_() for x, out in zip(operands, outs, strict=True)], queries_out


def with_nan(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """The tensor (B, T, H, D) with NaN in some rows."""
    return x.detach().masked_fill(rows[:, :, None, None], torch.nan)
