"""What the names in rendered kernels mean: the head of a file explains those that the file has."""

from __future__ import annotations

import ast
import functools
import re
import textwrap
from collections.abc import Iterable, Iterator

from ..expressions.tree import Node
from . import running_sums, symbols_on_hopper
from .access import Access
from .formula import written
from .plan import Plan

WIDTH = 116  # characters of a line, behind an indentation of four
Row = tuple[str, str]
"""Names, and what they mean."""


def text(plan: Plan, file: str, code: str) -> str:
    """The symbols of a file beside kernels.py, as a section of its head."""
    of = {
        "hopper": symbols_on_hopper.forward,
        "hopper_backward": symbols_on_hopper.backward,
        "hopper_wide": symbols_on_hopper.wide,
        "decode_kernels": _decoding,
        "decode_hopper": symbols_on_hopper.decoding,
    }
    rows = of[file](plan)
    return "\n".join(["Symbols", *(f"    {line}".rstrip() for line in listed(symbols(rows, code)))])


def symbols(rows: Iterable[Row], code: str) -> Iterator[Row]:
    """The rows of names that stand in code, with those of a row's names that do."""
    used = names(code)
    for row, meaning in rows:
        if there := [name for name in row.split(", ") if name in used or _stands_for(name, used)]:
            yield ", ".join(there), meaning


def _stands_for(name: str, used: Iterable[str]) -> bool:
    """True if a name such as x_ptr stands for some of these."""
    return name.startswith("x_") and any(one.endswith(name[1:]) for one in used)


def names(code: str) -> frozenset[str]:
    """The names in code, those of parameters included."""
    try:
        return frozenset().union(*map(_names, re.split(r"\n(?=@)", code)))
    except SyntaxError:  # a line of a string that looks like a decorator, or several decorators of a function
        return _names(code)


@functools.lru_cache(4096)  # to parse takes long, and kernels share most of their functions
def _names(code: str) -> frozenset[str]:
    found: set[str] = set()
    nodes: list[object] = [ast.parse(code)]
    for node in nodes:  # as ast.walk goes, in a quarter of its time
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.AST):
            if isinstance(node, ast.arg):
                found.add(node.arg)
            for part in vars(node).values():
                if isinstance(part, list):
                    nodes += part
                elif isinstance(part, ast.AST):
                    nodes.append(part)
    return frozenset(found)


def listed(rows: Iterable[Row]) -> list[str]:
    """Names with their meanings in a column beside them."""
    rows = list(rows)
    width = max(len(name) for name, _ in rows if len(name) <= 24) + 3
    found: list[str] = []
    for name, meaning in rows:
        first, *more = wrapped(meaning, WIDTH - width)
        found += [f"{name:{width}}{first}"] if len(name) < width else [name, " " * width + first]
        found += [" " * width + line for line in more]
    return found


def wrapped(line: str, width: int = WIDTH) -> list[str]:
    """The lines of a paragraph."""
    return textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False)


def read(access: Access) -> str:
    """The read of an input, as a term writes it."""
    return written(Node("input", access.index, access.input.name, access.input.dtype))


def of_kernels(plan: Plan) -> Iterator[Row]:
    """Those that kernels.py may have, side by side those that share a meaning."""
    yield from _of_programs(plan)
    yield from _of_steps(plan)
    yield from _of_tensors(plan)
    yield "keys, queries, terms", "tuples that a kernel makes for its steps: what none of them changes"
    yield "PRECISION", "how float32 is multiplied: ieee, or tf32 where PyTorch does so; 16-bit types do not heed it"
    at_a_time = "; tokens that `scan` takes at a time" if plan.kernels.scanned else ""
    yield "BLOCK", f"rows of a tile, in functions that serve both sides{at_a_time}"
    if plan.spec.rope:
        yield "BLOCK_T, tiles", "rows of a tile of `rotate`, and how many such tiles the longest sequence has"
    yield "ROWS, COLUMNS, WIDTH", "rows and columns of a tile, and how many of the columns the tensor has"
    yield "count", "how many rows or tokens there are: the index behind the last one"
    for a in plan.arguments:
        if a.kind != "tensor" and a.code not in ("seed", "dropout_p"):
            yield a.code, f"the call's number `{a.name}`"
    for given in plan.kernels.scanned:
        yield f"{given.name}_anchor", f"the sum that a program reads {given.name} as a difference from"
    for access in dict.fromkeys((*plan.by_query.accesses, *plan.by_key.accesses)):
        yield access.name, _meaning(access)


def _of_programs(plan: Plan) -> Iterator[Row]:
    """Heads, lengths and rows."""
    yield "b", plan.storage.entry
    yield "Hq, h", "query heads, and one of them"
    yield "Hkv", "key heads"
    yield "kv_h, GROUP", "the key head that query head h reads, h // GROUP, and how many query heads share one"
    yield "q_len, k_len", "queries and keys of a sequence"
    yield "D", "head size of q and k"
    yield "DV", "head size of v and out"
    yield "scale", "what q . k is multiplied by"
    yield "scale_log2", "scale * LOG2E"
    yield "LOG2E", "log2(e): it turns natural-log units into log2 units"
    yield "MAKES", "the gradient that a launch makes, dk or dv, where heads are wider than 256; None: both"
    yield "q_start, k_start", "first row of a tile of queries, first key of a tile of keys, within the sequence"
    yield "row", "rows of a tile's queries, counted from the sequence's first one"
    told = ", unless the call tells another" if plan.storage.entries else ""
    yield "q_begin", f"the position of row 0: k_len - q_len, so that last query and last key line up{told}"
    yield "q_pos", "positions of a tile's queries, row + q_begin"
    yield "k_pos", "positions of a tile's keys"
    yield "distance", "how far each key stands before each query, q_pos - k_pos"
    yield "q_at, k_at", "the same in float32, both less as much: what distances are made of"
    for side, name in (("q", "queries"), ("k", "keys")):
        yield f"{side}_first", f"first position of a tile of {name}"
        yield f"{side}_last", f"last position of a tile of {name}, below k_len"


def _of_steps(plan: Plan) -> Iterator[Row]:
    """Tiles that are visited, and what steps make of them."""
    backward = plan.spec.algorithm.backward
    yield "first, last", "tiles in [first, last) show something to the program's own tile"
    yield "full_first, full_last", "those in [full_first, full_last) show all to it: no step there needs the mask"
    yield "span", "which of several such ranges, where the mask has gaps"
    yield "mixed", "whether a step applies the mask"
    yield "tail", "whether a step's tile may reach into the next sequence"
    yield "inner", "tiles before it end within the sequence"
    yield "TILE_AXIS", "the axis of the grid that holds the tiles which programs own"
    yield "m, l, acc", "running maximum, denominator and numerator of the softmax, the maximum in log2 units"
    yield "p", f"weights, before they are divided by l{' in `forward`' if backward else ''}"
    yield "pivot, shrink", "what a step measures scores from; what it multiplies earlier sums by as m grows"
    yield "dp, ds", "gradients of the weights and of the score"
    yield "delta", "rowsum(out * dout) - dlse, what the softmax takes off each dp of a row"


def _of_tensors(plan: Plan) -> Iterator[Row]:
    """Where rows stand in tensors, and what tells of them."""
    own = "sequence" if plan.storage.cut else "batch entry"
    yield "q_offset, k_offset", f"first rows of a {own} {'in the tensors' if plan.storage.cut else 'that count'}"
    yield "q_end, k_end", "rows behind the last ones of a sequence"
    yield "q_total, k_total", f"rows of the tensors{'' if plan.storage.cut else ', in each batch entry'}"
    yield "max_seqlen_q, max_seqlen_k", "rows of a sequence that count at most, as the call tells"
    yield "sequences", "how many sequences the call has"
    yield "entries_ptr", "what `find_entry` finds for each batch entry, and q_begin; None where all rows count"
    yield "q_rows, k_rows", "values of a head in vectors of the package's own"
    yield "q_aligned, k_aligned", "where a sequence begins there: at multiples of 4, where descriptors can read"
    yield "row_base", f"where the values of the program's {own} and head begin in lse and delta"
    yield "first_row", f"the first one of the program's {own} and head in out, dq, dk or dv, of rows of one head each"
    yield "q_bounds_ptr, k_bounds_ptr", "the least and the greatest of what masks read along each tile"
    yield "q_bounds_base, k_bounds_base", "those that concern the program's own tile"
    yield "q_tiles, k_tiles", "how many tiles of queries and of keys have such notes"
    yield "x_least, x_most", "the least and the greatest of x along a tile, as noted there"
    yield "others, some, every", "some tiles of the other side; of each, whether it shows something, and all"
    yield "key_ranges_ptr, query_ranges_ptr", "first, full_first, full_last and last of GRAIN rows, in steps of GRAIN"
    yield "q_parts, k_parts", "how many times GRAIN queries or keys have such a range"
    yield "PAIRS, BLOCK_PAIRS", "rotated pairs of components, and the power of 2 that holds as many"
    yield "BLOCK_REST", "the power of 2 that holds the components which are not rotated"
    yield "position_end", "how many rows cos and sin have"
    yield "x_sum_row", "where the sums of a tile's rows begin among the gradients of x, entry by entry"
    yield "seed, drop_below", "what random numbers hang on, and the 16-bit numbers that drop a weight"
    yield "rescale", "what makes up for the weights that are dropped"
    yield "drawn", "by which row random numbers are drawn for row 0"
    yield "slot", "which of all programs this is, for sums that each has by itself"


def _meaning(access: Access) -> str:
    """The meaning of an access's name in a kernel."""
    given, row = access.input, "query" if access.tie == "q" else "key"
    if given.source:
        end = "begins" if given.part == running_sums.BEGIN else "ends"
        return f"where the document of each {row} {end}, by {given.source}"
    if given.scan:
        return f"sum of {given.name} up to {read(access).removeprefix(given.name)}, less {given.name}_anchor"
    each = {"value": " of the head", "row": f", for each {row}", "pair": ", for each score"}
    return read(access) + each.get(access.form, ", looked up")


def _decoding(plan: Plan) -> Iterator[Row]:
    """Those of decode_kernels.py, beside those of kernels.py."""
    yield "b", "a sequence"
    yield "Hkv", "key heads"
    yield "kv_h, GROUP", "a key head, and how many query heads read it"
    yield "tokens, longest", "new tokens of all sequences, and the most that one sequence has"
    yield "token", "first new token of a sequence among all"
    yield "max_seqlen_k", "keys that the host made room for: those of a sequence past as many do not count"
    yield "splits, split_size", "for how many splits of a sequence there is room in `parts`, and how many keys each has"
    yield "first_keys, reach", "keys from the first on, and keys before the first new token, that masks may show"
    yield "head", "splits of the first_keys keys"
    yield "first_split", "the split of the key `reach` before the new tokens, or `head`, if that is more"
    yield "split_end", "the split behind that of the last key"
    yield (
        "slot",
        "the place of a split in `parts`: those before `head`, then those from first_split on; in `append_rows` "
        "the place of a token in the cache, page * page_size + place in the page",
    )
    yield "slots, page_size", "places in the cache, and in one page"
    yield "place", "rows of a tile: pairs of a token and a head, the heads of a token side by side"
    yield "row", "their tokens, counted from the first new one of the sequence"
    yield "own_row", "their rows in inputs and lse: where cu_seqlens_q cuts tokens among all, else as `row`"
    yield "count", "rows that the sequence has: q_len * GROUP"
    yield "lo, hi", "keys in [lo, hi) show something to some row of the tile"
    yield "full_lo, full_hi", "those in [full_lo, full_hi) show all to all"
    yield "span", "which of several such ranges, where the mask has gaps"
    yield "inside", "which keys of a tile, or places, are to be read"
    yield "page", "pages of the keys of the tile that comes next, loaded a tile ahead"
    yield "k_page, k_slot", "pages of a tile's keys, and the places in them"
    yield "k_begin, k_places", "the place of a sequence's first key in a cache without pages; how many places it has"
    yield "PAGE", "places in a page; 1 without a page table"
    yield "q_rest, k_rest", "columns behind the tiles' BLOCK_D, REST of them; there are none unless D is above 512"
    yield "REST", "how many columns those have, with padding"
    yield "V_IN_K", "whether v is the first columns of k, so that a tile of keys is one of values too"
    yield (
        "q_unit",
        "factors of rows' scores: powers of 2 that float16 in place of bfloat16 divides q by, times a scale BY_HEAD",
    )
    yield "key, APART", "keys of a tile, counted from its first; whether each has a page of its own"
    yield "there", "which of a tile's keys are loaded, None: all; which rows or heads of a program are the call's"
    yield "TURNED", "whether the rows of a tile stand as columns in products, as few do"
    yield "SUMS", "partial sums of each row's weights"
    yield "IN_TWOS", "whether float8 values are read two columns at a time"
    yield "KV_HEADS, QUERIES", "key heads that a program reads, and query heads that read them"
    yield "own", "which of a program's key heads a row reads"
    yield "BY_HEAD", "whether float8 has one scale for all keys of a head"
    yield "FAR", "whether rows of a tile may stand 2**31 numbers apart"
    yield "END_STAGES", "tiles that are under way where those take a mask that loads"
    yield "mass", "weights that keys get, summed over the new tokens"
    yield "CHUNK", "splits that are added up one after the other"
    yield "CHUNKS, BLOCK_S", "chunks that are loaded at a time, and the splits in them"
    yield "COLUMNS, TOGETHER", "columns of out that a program joins at a time, and its query heads"
    yield "column", "columns of out"
    if not plan.decode or not plan.decode.scans.each:
        yield "BLOCK_H", "the power of 2 that holds the key heads"
    yield "out_row, lse_row", "the places of rows among all rows of out, and in lse"
    yield "sequences", "how many there are"
    yield "came", "how many programs of other splits of the same rows have stored their parts before this one"
    yield "JOINED", "rows that the last of these joins; 0 where `join_splits` joins all"
    yield "MEASURED", "whether the scales of float8 are worked out here, and stored"
    yield "OVERLAP", "whether a kernel starts while the one before it ends"
    if plan.decode and plan.decode.scans.each:
        yield from _of_sums()


def _of_sums() -> Iterator[Row]:
    """Those of running sums in decode_kernels.py."""
    yield "STRETCH", "keys whose running sums begin at one place, a multiple of as many"
    yield "stretches, first_stretch", "for how many stretches of a sequence there is room in `sums`; the first of them"
    yield "AT_A_TIME", "stretches that `sum_stretches` takes at a time"
    yield "first_key", "the first key that is summed up"
    yield "HEADS, BLOCK_H", "heads that have sums, and those of a program; of `append_rows` all key heads"
    yield "x_ptr, RESET", "what `sum_keys` sums up; the largest value that begins a document, and counts 0"
    yield "STRIPS", "strips of a stretch that a program sums up side by side, of BLOCK_H keys each"
    yield "k_first", "the first key of each strip"
    yield "is_head", "which heads there are"
    yield "values, resets", "what a thread sums up, and which of it begins a document"
    yield (
        "totals, total, begin",
        "the sums up to each key of a strip and of all, and where its last document begins, or -1",
    )
    yield "before, sums", "the sum of all strips before, and the sums up to each key of the stretch"
    yield "begins", "the same of many stretches"
    yield "sums_begin, x_sums_begin", "where the sums of an input x begin in the workspace, in steps of 16 values"
    yield "x_base", "where the sums of x stand, for the heads of a tile's rows"
    yield (
        "x_before",
        "the sum of all stretches before that of each row's position, in float64; x_q and x_k lack it",
    )
    yield "x_anchor", "the same in float32"
