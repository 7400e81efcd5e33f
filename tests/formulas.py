"""Attention written by hand, term by term, to compare the printed references with."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

Options = Mapping[str, Any]


@dataclass(frozen=True)
class Place:
    """One score: batch, head, kv head, row of the query, positions, and the lengths."""

    b: int
    h: int
    kv_h: int
    row: int
    q: int
    k: int
    q_len: int
    k_len: int


def _within(cell: int, other: int, count: int, radius: int) -> bool:
    """Whether a cell sees another one of its row or column: its window of 2 * radius + 1 cells never leaves them."""
    first = max(0, min(cell - radius, count - (2 * radius + 1)))
    return first <= other < first + 2 * radius + 1


def _neighbourhood(at: Place, o: Options, x: Options) -> bool:
    (row, column), (key_row, key_column) = divmod(at.q, o["width"]), divmod(at.k, o["width"])
    rows = math.ceil(at.k_len / o["width"])
    return _within(row, key_row, rows, o["radius"]) and _within(column, key_column, o["width"], o["radius"])


MASKS: dict[str, Callable[[Place, Options, Options], bool]] = {
    "causal": lambda at, o, x: at.k <= at.q,
    "sliding_window": lambda at, o, x: at.q - at.k < (x["window"] if o["size"] == "runtime" else o["size"]),
    "prefix_lm": lambda at, o, x: at.k < int(x["prefix_len"][at.b]) or at.k <= at.q,
    "chunked": lambda at, o, x: at.k <= at.q and math.floor(at.q / o["size"]) == at.k // o["size"],
    "dilated": lambda at, o, x: (at.q - at.k) / o["stride"] == round((at.q - at.k) / o["stride"]),
    "global_tokens": lambda at, o, x: min(at.q, at.k) < o["count"],
    "local_2d": lambda at, o, x: (
        max(abs(a - b) for a, b in zip(divmod(at.q, o["width"]), divmod(at.k, o["width"]), strict=True)) <= o["radius"]
    ),
    "neighbourhood": _neighbourhood,
    "segments": lambda at, o, x: bool(x["q_segments"][at.b, at.row] == x["k_segments"][at.b, at.k]),
    "tree": lambda at, o, x: at.q_len + at.k < at.k_len or bool(x["tree_mask"][at.b, at.row, at.k - at.k_len]),
    "block_sparse": lambda at, o, x: bool(x["block_mask"][0, at.h, at.row // o["block"], at.k // o["block"]]),
}


def visible(mask: Any, at: Place, x: Options) -> bool:
    """Whether a mask term, as written in the YAML file, shows a key."""
    name, options = (mask, {}) if isinstance(mask, str) else next(iter(mask.items()))
    if name in ("any", "all"):
        return (any if name == "any" else all)(visible(m, at, x) for m in options)
    if name == "not":
        return not visible(options, at, x)
    return MASKS[name](at, options, x)


def _softcap(score: torch.Tensor, i: torch.Tensor, j: torch.Tensor, o: Options, x: Options) -> torch.Tensor:
    grown = torch.exp(2 * score / o["cap"])
    return o["cap"] * (grown - 1) / (grown + 1)


def alibi_slopes(heads: int) -> torch.Tensor:
    """The published slopes; heads beyond a power of two take every other slope of the next power."""
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2.0 ** (-8 * (h + 1) / power) for h in range(power)]
    slopes += [2.0 ** (-4 * (2 * h + 1) / power) for h in range(heads - power)]
    return torch.tensor(slopes, dtype=torch.float64)


def _alibi(score: torch.Tensor, i: torch.Tensor, j: torch.Tensor, o: Options, x: Options) -> torch.Tensor:
    slopes = x.get("slopes")
    slopes = alibi_slopes(score.shape[1]) if slopes is None else slopes
    return score - slopes[:, None, None] * (i[:, None] - j).abs()


def _log_decay(score: torch.Tensor, i: torch.Tensor, j: torch.Tensor, o: Options, x: Options) -> torch.Tensor:
    total = torch.stack([x["log_decay"][:, : n + 1].sum(1) for n in range(len(j))], -1)  # [B, H, Tk]
    return score + total[:, :, i][..., None] - total[:, :, None, :]


def _bias(score: torch.Tensor, i: torch.Tensor, j: torch.Tensor, o: Options, x: Options) -> torch.Tensor:
    return score + x["bias"]


def bucket(distance: int, buckets: int, furthest: int, bidirectional: bool) -> int:
    """The bucket of a key at this distance before the query, in integer arithmetic where possible."""
    first = 0
    if bidirectional:
        buckets //= 2
        first, distance = (buckets, -distance) if distance < 0 else (0, distance)
    distance, exact = max(distance, 0), buckets // 2
    if distance < exact:
        return first + distance
    # the largest bucket whose first distance, exact * (furthest / exact) ** (n / rest), is not greater
    rest = buckets - exact
    passed = [n for n in range(rest) if (distance / exact) ** rest >= (furthest / exact) ** n * (1 - 1e-9)]
    return first + exact + passed[-1]


def _relative_bias(score: torch.Tensor, i: torch.Tensor, j: torch.Tensor, o: Options, x: Options) -> torch.Tensor:
    count, furthest, both = o.get("buckets", 32), o.get("max_distance", 128), o.get("bidirectional", True)
    rows = [[bucket(a - b, count, furthest, both) for b in j.tolist()] for a in i.tolist()]
    return score + x["rel_bias"][:, torch.tensor(rows)]


SCORES: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Options, Options], torch.Tensor]] = {
    "softcap": _softcap,
    "alibi": _alibi,
    "log_decay": _log_decay,
    "bias": _bias,
    "relative_bias": _relative_bias,
}


def rotated(x: torch.Tensor, rope: Options, cos: torch.Tensor, sin: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Rope as a product of complex numbers; x [B, T, H, D], rows [B or 1, T]."""
    turn = torch.complex(cos, sin)[rows.clamp(min=0)][:, :, None]
    dims = 2 * turn.shape[-1]
    head, rest = x[..., :dims], x[..., dims:]
    if rope.get("layout", "half") == "half":
        a, b = head.chunk(2, -1)
        turned = torch.complex(a, b) * turn
        return torch.cat((turned.real, turned.imag, rest), -1)
    turned = torch.view_as_complex(head.unflatten(-1, (-1, 2)).contiguous()) * turn
    return torch.cat((torch.view_as_real(turned).flatten(-2), rest), -1)


def attention_by_hand(
    spec: Options, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, x: Options, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and LSE in fp64 for dense inputs, from the YAML document of a variant with named terms only."""
    B, Tq, Hq, D = q.shape
    Tk, Hkv = k.shape[1], k.shape[2]
    i, j = torch.arange(Tq) + Tk - Tq, torch.arange(Tk)
    if spec.get("rope"):
        rows = x.get("positions")
        q_rows, k_rows = (i[None], j[None]) if rows is None else (rows[:, Tk - Tq :].long(), rows.long())
        q = rotated(q, spec["rope"], x["cos"], x["sin"], q_rows)
        k = rotated(k, spec["rope"], x["cos"], x["sin"], k_rows)
    owner = torch.arange(Hq) // (Hq // Hkv)
    score = q.permute(0, 2, 1, 3) @ k.permute(0, 2, 3, 1)[:, owner] * (D**-0.5 if scale is None else scale)
    for term in spec.get("score") or ():
        name, options = (term, {}) if isinstance(term, str) else next(iter(term.items()))
        score = SCORES[name](score, i, j, options or {}, x)
    keep = torch.ones(B, Hq, Tq, Tk, dtype=torch.bool)
    for b, h, row, key in torch.cartesian_prod(*map(torch.arange, keep.shape)).tolist() if spec.get("mask") else ():
        at = Place(b, h, h // (Hq // Hkv), row, row + Tk - Tq, key, Tq, Tk)
        keep[b, h, row, key] = all(visible(m, at, x) for m in spec["mask"])
    some = keep.any(-1, keepdim=True)
    score = torch.where(keep | ~some, score, -torch.inf)
    lse = torch.where(some[..., 0], score.logsumexp(-1), -torch.inf)
    out = torch.where(some, score.softmax(-1), 0) @ v.permute(0, 2, 1, 3)[:, owner]
    return out.permute(0, 2, 1, 3), lse
