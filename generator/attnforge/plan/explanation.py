"""The head of a rendered `kernels.py`: formula, kernels and symbols, for a reader who opens no other file."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..expressions.inputs import Input
from . import glossary, running_sums
from .formula import Section, derivatives, formula
from .glossary import WIDTH, Row, listed, read, wrapped
from .kernel_terms import Sum
from .plan import Plan
from .reduction import Reduction

# kernels whose grid has one axis
_ONE_AXIS = (
    "scan",
    "scan_back",
    "norms",
    "shorten",
    "horizons",
    "rotate",
    "bounds",
    "ranges",
    "list_keys",
    "list_queries",
    "backward_tables",
)


def text(plan: Plan, description: str, code: str) -> str:
    """The description of the variant and the sections below it; the glossary is for the file's code."""
    sections = [
        ("Formula, in natural-log units; q and k are positions, in `q . k` the rows there", _formula(plan)),
        ("Softmax, in log2 units", _softmax(plan)),
        ("Backward", _backward(plan) if plan.spec.algorithm.backward else []),
        ("Programs", _programs(plan)),
        ("Tensors, by their axes", listed(_tensors(plan))),
        ("Packing", _packing(plan) if plan.storage.cut else []),
        ("Tiles", listed(_tiles(plan))),
        ("Symbols", listed(glossary.symbols(glossary.of_kernels(plan), code))),
    ]
    found = ([title, *(f"    {line}".rstrip() for line in lines)] for title, lines in sections if lines)
    return "\n\n".join(map("\n".join, [wrapped(description), *found]))


def _paragraph(*sentences: str) -> list[str]:
    return wrapped(" ".join(sentences))


def _formula(plan: Plan) -> list[str]:
    found = formula(plan.spec).within(WIDTH)
    for given in plan.kernels.scanned:
        name, reset = given.name, running_sums.largest_reset(plan.spec, given)
        begins = f"{reset} or less" if math.isfinite(reset) else "-inf"
        found += ["", *_paragraph(
            f"Kernels read the cumulative sum of {name} over the tokens of a sequence, which `scan` computes. A value",
            f"of {begins} begins a document: it adds nothing to the sum, and queries see only keys of their own",
            "document. A sum is stored as a float32 and the remainder that rounding left. Kernels subtract",
            f"{name}_anchor, the sum at the first token of the program's own tile, so that late sums are as exact as",
            "early ones.",
        )]  # fmt: skip
    if plan.kernels.vanishing:
        largest, limit = (kernel.name for kernel in plan.kernels.vanishing)
        found += ["", *_paragraph(
            "Scores fall with the distance, so the weights of keys that are far enough back are 0 in float32:",
            f"`{largest}` and `{limit}` find out where in long sequences, and no tile of such keys is visited.",
        )]  # fmt: skip
    if plan.tabled:
        names = " and ".join(part.name for part in plan.tabled.parts)
        learned = ", and what gradients need of it" if plan.spec.algorithm.backward else ""
        found += ["", *_paragraph(
            f"Kernels read, as {names}, what depends on the head and the distance q - k alone and takes more than a",
            f"few instructions: by_distance.py evaluates it once for each distance{learned}.",
        )]  # fmt: skip
    if plan.spec.dropout:
        found += ["", *_paragraph(
            "Dropout sets a weight to 0 depending on a random number that `seed` and the weight's place determine, and",
            "multiplies the others by `rescale`, 1 / (1 - the share that is dropped). Without a seed it drops nothing.",
        )]  # fmt: skip
    if plan.spec.scores and (plan.analysis.scaling, plan.analysis.scale_log2) != (" * scale", "LOG2E"):
        inner = plan.analysis.scaling.removeprefix(" * ")
        found += ["", *_paragraph(
            f"The kernels' terms omit their outermost factors: q . k is multiplied by {inner} instead of scale, and",
            f"the last term's result by {plan.analysis.scale_log2} instead of LOG2E.",
        )]  # fmt: skip
    return found


def _softmax(plan: Plan) -> list[str]:
    spec, used = plan.spec, "dropped p" if plan.spec.dropout else "p"
    if spec.scores:
        rows = [("s = score * LOG2E", "exp(score) = exp2(s)")]
    else:
        rows = [("s = (q . k) * scale_log2", "scale_log2 = scale * LOG2E, so that exp(score) = exp2(s)")]
    start = "m = sinks * LOG2E, l = 1, acc = 0" if spec.sink else "m = -inf, l = 0, acc = 0"
    rows += [
        (start, "before the first tile of keys"),
        ("m_new = max(m, largest s of the tile)", ""),
        ("p = exp2(s - m_new)", "0 where the key is hidden"),
    ]
    if not spec.algorithm.by_query:
        rows += [
            ("l_new = l * exp2(m - m_new) + sum of p", "acc, m and l of all queries are kept in memory"),
            (f"acc = (acc * l * exp2(m - m_new) + {used} @ v) / l_new", "at the end, out = acc"),
        ]
    else:
        rows += [
            ("l = l * exp2(m - m_new) + sum of p", ""),
            (f"acc = acc * exp2(m - m_new) + {used} @ v", "at the end, out = acc / l"),
        ]
    rows += [("out = out * rescale", "")] if spec.dropout else []
    rows.append(("lse = m + log2(l)", ""))
    bare = "no visible key and a sink of -inf" if spec.sink else "no visible key"
    return [
        *Section("", tuple(rows)).within(WIDTH),
        *_paragraph(
            f"The LSE in memory is in log2 units. For a row with {bare} it is inf, so that each exp2(s - lse) is",
            "0, and out is 0. launch.py returns the LSE in natural-log units, lse / LOG2E, and -inf for such a row.",
        ),
    ]


def _backward(plan: Plan) -> list[str]:
    spec = plan.spec
    by_key = "backward_dkv" + (", over the query heads of a key head" if spec.grouped else "")
    weights = "dropped p * rescale" if spec.dropout else "p"
    rows = [
        (f"p = exp2({'score * LOG2E' if spec.scores else '(q . k) * scale_log2'} - lse)", "0 where the key is hidden"),
        ("dp = dropped (dout . v) * rescale" if spec.dropout else "dp = dout . v", "the gradient of p"),
        ("delta = rowsum(out * dout) - dlse", "dlse: gradient of the LSE in natural-log units, dlse_ptr * LOG2E"),
        ("ds = p * (dp - delta)", "the gradient of the last score"),
        *(row for row in derivatives(spec).lines if row[0] != "d score / d score = 1.0"),
    ]
    if any(term.slope.text or term.slope.sign == "-" for term in plan.by_query.backward_terms):
        rows.append(("ds = ds * (d score / d score)", "for each term, the last one first"))
    for learned in plan.learned:
        rows += [row for total in learned.sums for row in _sum(plan, learned, total)]
        rows.append(_total(learned))
    rows += [
        (f"dq = {plan.analysis.slope} * sum of ds * k over the keys", "backward_dq"),
        (f"dk = {plan.analysis.slope} * sum of ds * q over the queries", by_key),
        (f"dv = sum of {weights} * dout over the queries", by_key),
    ]
    if spec.sink:
        rows.append(("dsinks = -sum of exp2(sinks * LOG2E - lse) * delta over the queries", "launch.py"))
    more = ["The programs that compute dq and dk rotate them back (`unrotate`)."] if spec.rope else []
    if any(learned.input.scan for learned in plan.learned):
        more += _paragraph(
            "The sum over later tokens need not stop at the end of a document: its terms add up to 0 over each",
            "document, up to rounding, as no query sees a key of another one.",
        )
    return [*Section("", tuple(rows)).within(WIDTH), *more]


def _sum(plan: Plan, learned: Reduction, total: Sum) -> Iterator[Row]:
    """The line about one sum of gradients of scores."""
    access = total.access
    over, each = "the scores that read it", ""
    if access.form == "pair":
        over, kernel = "the batch entries and heads that share it", f"backward_{access.input.name}"
    else:
        apart = plan.kernels.tables is not None and total in plan.kernels.tables.sums
        by_query = "backward_dq or backward_tables" if apart else "backward_dq"
        kernel = "backward_dkv" if total in plan.by_key.learned else by_query
    if access.form == "row":
        over = "the keys" if access.tie == "q" else "the queries"
    elif access.form == "entry":
        each = f", for each {'program' if access.tie is None else 'query' if access.tie == 'q' else 'key'} and entry"
    elif access.form == "value":
        each = ", for each program"
    idle = "; 0 if there is no dlse" if total in learned.idle else ""
    loaded = f"{access.input.name}[...]" if access.form == "entry" else read(access)
    yield f"{total.name} = sum of ds * (d score / d {loaded}) over {over}", kernel + each + idle


def _total(learned: Reduction) -> Row:
    """The line that computes the gradient of an input from its sums."""
    name, sums = learned.input.name, " + ".join(total.name for total in learned.sums)
    if learned.input.scan:
        later = f"sum of {sums} from t to the end of the sequence"
        return f"d{name}[t] = 0 if t begins a document, else {later}", "scan_back"
    return f"d{name} = {sums}", "launch.py, summed over the axes that the input lacks"


def _programs(plan: Plan) -> list[str]:
    spec, kernels = plan.spec, plan.kernels
    of = f"of a {plan.storage.entry}"
    rows: list[Row] = []
    if kernels.scanned:
        rows.append(("scan", f"one head {of}, BLOCK tokens at a time; runs before `forward`"))
    of_vanishing = {
        "norms": f"PART rows of one head of q or k{'' if plan.storage.cut else ' of a batch entry'}",
        "shorten": f"PART tokens of one head {of}; runs after `scan` and `norms`, before `forward`",
        "horizons": f"one query head {of}; runs after `norms`, before the kernels that visit tiles",
    }
    rows += [(kernel.name, of_vanishing[kernel.name]) for kernel in kernels.vanishing]
    if spec.rope:
        rows.append(("rotate", f"BLOCK_T rows of q or k of one head {of}; runs before `forward`"))
    if kernels.bounds:
        rows.append(
            ("bounds", f"a tile of queries or of keys {of}: finds the minimum and maximum of what masks read there")
        )
    if kernels.ranges:
        rows.append(
            ("ranges", f"GRAIN queries or keys {of}: finds the range of tiles that they need; runs before `forward`")
        )
    for kernel in kernels.lists:
        own, listed_tiles = kernel.texts["own"], kernel.texts["listed"]
        reader = "`forward` and `backward_dq`" if own == "queries" and spec.algorithm.backward else "`forward`"
        reader = "`backward_dkv`" if own == "keys" else reader
        whose = f"of one query head {of}" if plan.key_states and plan.key_states.per_head else of
        work = f"a tile of {own} {whose}: lists the tiles of {listed_tiles} that it needs"
        rows.append((kernel.name, f"{work}; runs before {reader}, with the same tiles"))
    if not spec.algorithm.by_query:
        walk = "loads each tile of BLOCK_N keys once and loops over the tiles of BLOCK_M queries that see it"
        rows.append(
            ("forward", f"all of one query head {of}; {walk}; the grid has one axis, along which heads vary fastest")
        )
    else:
        strided = ", loaded as columns by pointers" if plan.kernels.own.functions else ""
        rows.append(
            ("forward", f"a tile of BLOCK_M queries of one query head {of}; loops over tiles of BLOCK_N keys{strided}")
        )
    if spec.algorithm.backward:
        head = "key head" if spec.grouped else "head"
        heads = " of each of the GROUP query heads that read it" if spec.grouped else ""
        rows += [
            ("backward_dq", "the same; runs before the other backward kernels, for which it stores delta"),
            ("backward_dkv", f"a tile of BLOCK_N keys of one {head} {of}; loops over tiles of BLOCK_M queries{heads}"),
        ]
    for pair in kernels.pairs:
        name = pair.access.input.name
        owned = f"a tile [BLOCK_M, BLOCK_N] of one batch entry and head of {name}; loops over those of q that share it"
        grid = f"(batch entries * heads of {name}, tiles of queries, tiles of keys)"
        rows.append((pair.kernel.name, f"{owned}; the grid is {grid}"))
    if tables := kernels.tables:
        whose = "of one query head in a share of the batch entries" if tables.by_head else "in a share of all heads"
        rows.append(
            (
                tables.kernel.name,
                f"a tile of BLOCK_M queries {whose}; loops over tiles of BLOCK_N keys, and for each over the share",
            )
        )
    if kernels.scanned and spec.algorithm.backward:
        rows.append(("scan_back", "as `scan`, from the last token to the first; runs after the other backward kernels"))
    return [*listed(rows), *_grid(plan)]


def _grid(plan: Plan) -> list[str]:
    spec, found = plan.spec, list[str]()
    if spec.algorithm.by_query:
        names = "`forward`, `backward_dq` and `backward_dkv`" if spec.algorithm.backward else "`forward`"
        found += _paragraph(
            f"The grid of {names} is (heads of a group, tiles, groups) or, from 65536 tiles on, (tiles,",
            "heads of a group, groups); TILE_AXIS, 1 or 0, is the axis of the tiles. Heads are numbered across all",
            f"{'sequences' if plan.storage.cut else 'batch entries'}; a group has as many as keep the rows that their",
            "programs loop over within a third of the L2 cache.",
        )
    small = [f"`{kernel.name}`" for kernel in plan.kernels.all if kernel.name in _ONE_AXIS]
    if small:
        found.append(f"Grids of one axis: {', '.join(small)}.")
    return found if spec.algorithm.backward else [*found, "There is no backward pass."]


def _tensors(plan: Plan) -> Iterator[Row]:
    spec, cut = plan.spec, plan.storage.cut
    heads = "Hkv" if spec.grouped else "Hq"
    queries, keys = ("q_total", "k_total") if cut else ("B, q_total", "B, k_total")
    rows = (("q", queries, "Hq", "D"), ("out", queries, "Hq", "DV"), ("k", keys, heads, "D"), ("v", keys, heads, "DV"))
    gradients = {"q": ", dq", "out": ", dout", "k": ", dk", "v": ", dv"} if spec.algorithm.backward else {}
    for name, *axes in rows:
        yield name + gradients.get(name, ""), f"[{', '.join(axes)}]"
    vector = "[Hq, q_rows]" if cut else "[B, Hq, q_total]"
    yield "lse, delta" if spec.algorithm.backward else "lse", f"{vector}, float32, the LSE in log2 units"
    if spec.algorithm.backward:
        yield "dlse", f"{vector}, float32: the gradient of lse as stored, or None"
    if not spec.algorithm.by_query:
        yield "acc; m, l", f"{vector[:-1]}, DV]; {vector}, float32"
    if cut:
        row = "cu_seqlens_q, cu_seqlens_k" + (", cu_seqlens" if plan.kernels.scanned else "")
        which = "; in `scan`, of keys" if plan.kernels.scanned else ""
        yield row, f"[sequences + 1], int32: where each sequence's rows begin, then where the last ones end{which}"
    for given in spec.inputs:
        if given.axes:
            yield given.name, _input(plan, given)
    if spec.sink:
        yield "sinks", "[Hq], one logit per head, which the denominator of the softmax includes"
    if spec.rope:
        yield "cos, sin", "[position_end, PAIRS]"
        yield (
            "positions",
            f"[{'' if cut else 'B, '}k_total], int: the row of these for each position of a query or a key; None: "
            "the position itself",
        )
        yield "q_turned, k_turned", "q and k rotated, which the other kernels read as q and k"
    place = "h, row, column" if cut else "b, h, row, column"
    tiled = ["q", "k", "v", *(["out", "dout"] if spec.algorithm.backward else [])]
    tiled += ["q_rest", "k_rest"] if spec.latent else []
    loaded = f"for {', '.join(tiled)}: loads tiles of x at [{place}]"
    yield "x_desc", f"{loaded}; a TMA descriptor, or a tuple of pointer, width, strides"
    if plan.kernels.described:
        yield "", "for others: loads the values of consecutive rows; a descriptor of one axis, or a pointer"
    yield "x_ptr, x_base", "pointers to the first value of x, and to the first one of the program's own values"
    yield "x_stride_a", "stride of x along axis a; 0 if one value stands for all"


def _packing(plan: Plan) -> list[str]:
    learned = ", dq, dk, dv" if plan.spec.algorithm.backward else ""
    return _paragraph(
        "A TMA load may return rows of the next sequence. Steps with `tail` zero those that a product sums over (0 *",
        "NaN is NaN), and `keep` hides their scores; the program's own rows never mix, and none past the end is",
        "stored. Vectors that the package allocates, such as the LSE, hold a sequence's values from",
        "(offset // 4 + b) * 4 on, a 16-byte boundary. Rows of no sequence or past max_seqlen are 0 in",
        f"out{learned}; their LSE for users is -inf.",
    )


def _input(plan: Plan, given: Input) -> str:
    axes = ", ".join(map(str, plan.storage.kept(given)))
    if not given.scan:
        return f"[{axes}], {given.dtype}"
    parts = "sum, remainder, the first position of the token's document and one past its last, as bits of int32"
    return f"[{axes}], {given.dtype}; kernels read its sums, stored as 4 consecutive parts: {parts}"


def _tiles(plan: Plan) -> Iterator[Row]:
    algorithm = plan.spec.algorithm
    keys = "[BLOCK_D, BLOCK_N]" if plan.kernels.own.functions else "[BLOCK_N, BLOCK_D]"
    yield "q_tile, k_tile, v_tile", f"[BLOCK_M, BLOCK_D], {keys}, [BLOCK_N, BLOCK_DV]"
    if algorithm.backward:
        yield "score, p, dp, ds", "[BLOCK_M, BLOCK_N], in `backward_dkv` [BLOCK_N, BLOCK_M]"
        yield "out_tile, dout_tile", "[BLOCK_M, BLOCK_DV]"
        yield "dq, dk, dv", "[BLOCK_M, BLOCK_D], [BLOCK_N, BLOCK_D], [BLOCK_N, BLOCK_DV], in float32"
    else:
        yield "score, p", "[BLOCK_M, BLOCK_N]"
    sums = "[BLOCK_M, 8] (partial sums, added up at the end)" if algorithm.by_query else "[BLOCK_M]"
    yield "acc, m, l", f"[BLOCK_M, BLOCK_DV], [BLOCK_M], {sums}, in float32"
    yield "BLOCK_M, BLOCK_N", "number of queries and of keys of a tile, from a table by kernel, GPU and head size"
    yield "BLOCK_D, BLOCK_DV", "D and DV rounded up to a power of 2, from 16 to 512; columns past D and DV hold 0"
    if plan.spec.latent:
        yield "x_rest", "the columns of q, k, dq, dk after the first BLOCK_D; none unless D is above 512"
        yield "REST", "the number of those columns, with padding"
