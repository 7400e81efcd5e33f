"""Keys whose weights are 0 because their scores lie too far below that of a query's own key.

Where nothing but the difference of two sums of values that are never above 0 is added to scores, scores fall with the
distance, up to the products of queries and keys. Their norms limit these products, so that the sums alone tell from
which distance on all weights are 0 in float32. Two small kernels shorten the documents of tokens accordingly, which
changes no bit of any result.
"""

from __future__ import annotations

import math

from ..expressions.inputs import Input
from ..language.spec import Spec
from . import running_sums
from .parameters import Kernel, Parameter
from .shared_parameters import SharedParameters
from .statements import Block, Branch, Statement


def sums(spec: Spec) -> tuple[Input, ...]:
    """The inputs whose running sums make weights vanish with the distance: one at most."""
    # q and k of latent heads come in two parts
    scanned = () if spec.latent else tuple(given for given in spec.inputs if given.scan)
    return tuple(given for given in scanned if math.isfinite(running_sums.largest_reset(spec, given)))


def norms(p: SharedParameters) -> Kernel:
    """The kernel of the largest norms of queries and of keys."""
    axes, lead = p.storage.outer, p.storage.lead
    strides = [
        Parameter(f"{x}_stride_{axis}", "i32", f"{x}.stride({i})") for x in ("q", "k") for i, axis in enumerate(axes)
    ]
    found = Statement(", ".join((*lead, "h")), "place // (Hq + Hkv), place % (Hq + Hkv)" if lead else "place")

    def located(x: str, head: str) -> tuple[Block, ...]:
        entries = (f"{b}.to(tl.int64) * {x}_stride_batch" for b in lead)
        place = " + ".join((f"{x}_ptr", *entries, f"{head}.to(tl.int64) * {x}_stride_head"))
        return Statement("ptr", place), Statement("stride, rows", f"{x}_stride_token, {x}_total")

    return Kernel(
        "norms",
        (
            Parameter("q_ptr", "*T", "q"),
            Parameter("k_ptr", "*T", "k"),
            Parameter("norms_ptr", "*fp32", "norms", written=True),
            *strides,
            *(Parameter(f"{x}_total", "i32", p.rows_of(x)) for x in ("q", "k")),
            Parameter("Hq", "i32", "q.shape[-2]"),
            *((Parameter("Hkv", "i32", "k.shape[-2]"),) if lead else ()),
            Parameter("parts", "i32", "norms.shape[-1]"),
            *p.constants("D", "BLOCK_D", "PART", "ROWS"),
        ),
        "portable/norms.jinja",
        blocks={"enter": (found, Branch("h < Hq", located("q", "h"), located("k", "(h - Hq)")))},
    )


def shorten(p: SharedParameters) -> Kernel:
    """The kernel that shortens the documents of tokens to the tokens whose weights may differ from 0."""
    norms = () if p.storage.cut else (Statement("norms_ptr", "b.to(tl.int64) * (Hq + Hkv) * parts", "+="),)
    head, ahead = ("h", " + k_aligned") if p.storage.cut else ("place", "")
    return Kernel(
        "shorten",
        (
            Parameter("sums_ptr", "*fp32", "sums", written=True),
            Parameter("norms_ptr", "*fp32", "norms"),
            *p.sizes(),
            Parameter("Hkv", "i32", "k.shape[-2]"),
            Parameter("heads", "i32", "sums.shape[-3]"),
            Parameter("k_rows", "i32", "sums.shape[-1]"),
            Parameter("parts", "i32", "norms.shape[-1]"),
            Parameter("own_parts", "i32", f"runtime.cdiv({p.storage.longest[1]}, part)"),
            *p.constants("PART"),
        ),
        "portable/shorten.jinja",
        blocks={
            "enter": (
                Statement("b, h", "place // heads, place % heads"),
                *p.storage.found("k"),
                Statement("sums_ptr", f"{head}.to(tl.int64) * 4 * k_rows{ahead}", "+="),
                *norms,
            )
        },
    )
