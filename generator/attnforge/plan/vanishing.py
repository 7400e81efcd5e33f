"""Keys whose weights are 0 because their scores lie too far below that of a query's own key.

Where scores fall with the distance, up to the products of queries and keys, the norms of these limit the products: from
some distance on all weights are 0 in float32. Small kernels find it, those of attention visit no tiles beyond it, and
no bit of any result changes. Scores fall with running sums of values that are never above 0, whose documents are
shortened, or by a slope, which determines the horizon of a head.
"""

from __future__ import annotations

import math

from ..language.spec import Spec
from . import running_sums, slopes
from .parameters import Kernel, Parameter
from .shared_parameters import SharedParameters
from .statements import Block, Branch, Comment, Loop, Statement, names, needed, reads


def by_sums(spec: Spec) -> bool:
    """True if weights vanish with the difference of two running sums."""
    resets = (running_sums.largest_reset(spec, given) for given in spec.inputs if given.scan)
    # q and k of latent heads come in two parts
    return not spec.latent and any(map(math.isfinite, resets))


def cause(spec: Spec) -> tuple[str, int]:
    """The name of the input because of which scores fall, or "" for a number, and the sign that it has then."""
    if by_sums(spec):
        return next(given.name for given in spec.inputs if given.scan), -1
    slope = slopes.falling(spec)
    assert slope
    (bare,) = slope.args if slope.op == "neg" else (slope,)
    return str(bare.value) if bare.op == "input" else "", -1 if slope.op == "neg" else 1


def kernels(p: SharedParameters) -> tuple[Kernel, ...]:
    """The kernels of a variant that find where weights vanish: of norms, and of what follows from them."""
    if by_sums(p.spec):
        return norms(p), shorten(p)
    return (norms(p), horizons(p)) if slopes.falling(p.spec) else ()


_PART = Parameter("PART", "constexpr", "PART")
_OF_SUMS = (Parameter("heads", "i32", "sums.shape[-3]"), Parameter("k_rows", "i32", "sums.shape[-1]"))


def norms(p: SharedParameters) -> Kernel:
    """The kernel of the largest norms of queries and of keys."""
    axes, lead, (fall, read) = p.storage.outer, p.storage.lead, _fall(p)
    strides = [
        Parameter(f"{x}_stride_{axis}", "i32", f"{x}.stride({i})") for x in ("q", "k") for i, axis in enumerate(axes)
    ]
    found = Statement(", ".join((*lead, "own")), "place // (Hq + Hkv), place % (Hq + Hkv)" if lead else "place")

    def located(x: str, head: str, past: str) -> tuple[Block, ...]:
        entries = (f"{b}.to(tl.int64) * {x}_stride_batch" for b in lead)
        place = " + ".join((f"{x}_ptr", *entries, f"{head}.to(tl.int64) * {x}_stride_head"))
        return (
            Statement("ptr", place),
            Statement("stride, rows", f"{x}_stride_token, {x}_total"),
            *((Statement("first, past", past),) if fall else ()),
        )

    return Kernel(
        "norms",
        (
            Parameter("q_ptr", "*T", "q"),
            Parameter("k_ptr", "*T", "k"),
            Parameter("norms_ptr", "*fp32", "norms", written=True),
            *strides,
            *(Parameter(f"{x}_total", "i32", p.rows_of(x)) for x in ("q", "k")),
            Parameter("Hq", "i32", "q.shape[-2]"),
            *((Parameter("Hkv", "i32", "k.shape[-2]"),) if lead or fall else ()),
            Parameter("parts", "i32", "norms.shape[-1]"),
            *read,
            *p.constants("D", "BLOCK_D"),
            _PART,
            Parameter("ROWS", "constexpr", "min(PART, 32)"),
        ),
        "portable/norms.jinja",
        blocks={
            "enter": (
                found,
                Branch(
                    "own < Hq",
                    located("q", "own", "own, own + 1"),
                    located("k", "(own - Hq)", "(own - Hq) * (Hq // Hkv), (own - Hq + 1) * (Hq // Hkv)"),
                ),
                *fall,
            )
        },
    )


def _fall(p: SharedParameters) -> tuple[tuple[Block, ...], tuple[Parameter, ...]]:
    """The statements that leave out heads whose scores fall by too little in all, and the parameters they read."""
    if by_sums(p.spec):
        if p.storage.cut:  # a part has rows of several sequences
            return (), ()
        last = "b.to(tl.int64) * sums_stride_batch + tl.maximum(k_len, 1) - 1"
        before = (*p.storage.found(), Statement("sums_ptr", last, "+="))
        within: tuple[Statement, ...] = ()
        most = "-tl.load(sums_ptr + tl.cast(h * heads // Hq, tl.int64) * 4 * k_rows)"
        read: tuple[Parameter, ...] = (
            Parameter("sums_ptr", "*fp32", "sums"),
            Parameter("sums_stride_batch", "i32", "runtime.stride(sums, 0)"),
            *_OF_SUMS,
            *(x for x in p.sizes() if x.name == "entries_ptr"),
        )
    else:
        before, (within, read) = (), _slope(p)
        if p.storage.cut and "b" in reads(within):
            return (), ()
        most = "slope * k_total"
    return (
        *before,
        Comment("by how much scores fall in all: see least_fall"),
        Statement("fall", "0.0"),
        Loop("h", "first", "past", (*within, Statement("fall", f"tl.maximum(fall, {most})"))),
        Branch(
            "fall < VANISHED",
            (Statement("", "tl.store(norms_ptr + tl.program_id(0), 0.0)"), Statement("", "return")),
        ),
    ), read


def _slope(p: SharedParameters) -> tuple[tuple[Statement, ...], tuple[Parameter, ...]]:
    """The statements that compute by how much scores of a head fall from key to key, and the parameters they read."""
    terms, slope = p.analysis.by_query, slopes.falling(p.spec)
    assert slope
    text = terms.text(slope)
    # as the product of two integers could exceed 32 bits
    fall = Statement("slope", f"1.0 * {text}" if any(node.type == "int" for node in slope.walk()) else text)
    loads = needed((*p.analysis.key_head, *terms.loads("program")), reads((fall,)))
    read = names(*(statement.value for statement in loads)) | reads((fall,))
    taken = tuple(parameter for parameter in p.given(terms) if parameter.name in read)
    return (*loads, fall), (*taken, *(p.constants("GROUP") if "GROUP" in read else ()))


def shorten(p: SharedParameters) -> Kernel:
    """The kernel that shortens the documents of tokens to the tokens whose weights may differ from 0."""
    head, ahead = ("h", " + k_aligned") if p.storage.cut else ("place", "")
    return Kernel(
        "shorten",
        (
            Parameter("sums_ptr", "*fp32", "sums", written=True),
            Parameter("norms_ptr", "*fp32", "norms"),
            *p.sizes(),
            Parameter("Hkv", "i32", "k.shape[-2]"),
            *_OF_SUMS,
            Parameter("parts", "i32", "norms.shape[-1]"),
            Parameter("own_parts", "i32", f"runtime.cdiv({p.storage.longest[1]}, PART)"),
            _PART,
        ),
        "portable/shorten.jinja",
        blocks={
            "enter": (
                Statement("b, h", "place // heads, place % heads"),
                *p.storage.found("k"),
                Statement("sums_ptr", f"{head}.to(tl.int64) * 4 * k_rows{ahead}", "+="),
                *_of_entry(p),
            )
        },
    )


def horizons(p: SharedParameters) -> Kernel:
    """The kernel that finds, for each head, beyond which distance keys have no weight."""
    slope, read = _slope(p)
    return Kernel(
        "horizons",
        (
            Parameter("horizons_ptr", "*i32", "horizons", written=True),
            Parameter("norms_ptr", "*fp32", "norms"),
            *p.sizes(),
            Parameter("Hkv", "i32", "k.shape[-2]"),
            Parameter("parts", "i32", "norms.shape[-1]"),
            *read,
            _PART,
        ),
        "portable/horizons.jinja",
        blocks={
            "enter": (
                Statement("b, h", "tl.program_id(0) // Hq, tl.program_id(0) % Hq"),
                *p.storage.found(),
                *_of_entry(p),
            ),
            "slope": slope,
        },
    )


def _of_entry(p: SharedParameters) -> tuple[Statement, ...]:
    """The statement that finds the norms of a batch entry; packed sequences share their parts."""
    return () if p.storage.cut else (Statement("norms_ptr", "b.to(tl.int64) * (Hq + Hkv) * parts", "+="),)
