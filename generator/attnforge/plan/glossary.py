"""Meanings of the names in rendered kernels: the head of each file explains those that it uses."""

from __future__ import annotations

import ast
import functools
import re
import textwrap
from collections.abc import Iterable, Iterator

from ..expressions.tree import Node
from . import running_sums, symbols_by_distance, symbols_on_hopper
from .access import Access
from .formula import written
from .plan import Plan

WIDTH = 116  # characters of a line, after an indentation of four
Row = tuple[str, str]
"""Names and their common meaning."""


def text(plan: Plan, file: str, code: str) -> str:
    """The symbols of a file other than kernels.py, as a section of its head."""
    of = {
        "hopper": symbols_on_hopper.forward,
        "hopper_backward": symbols_on_hopper.backward,
        "hopper_wide": symbols_on_hopper.wide,
        "by_distance": symbols_by_distance.evaluated,
        "decode_kernels": _decoding,
        "decode_hopper": symbols_on_hopper.decoding,
    }
    rows = of[file](plan)
    return "\n".join(["Symbols", *(f"    {line}".rstrip() for line in listed(symbols(rows, code)))])


def symbols(rows: Iterable[Row], code: str) -> Iterator[Row]:
    """The rows with names that occur in code, reduced to those names."""
    used = names(code)
    for row, meaning in rows:
        if there := [name for name in row.split(", ") if name in used or _stands_for(name, used)]:
            yield ", ".join(there), meaning


def _stands_for(name: str, used: Iterable[str]) -> bool:
    """True if a name such as x_ptr stands for any of the used names."""
    return name.startswith("x_") and any(one.endswith(name[1:]) for one in used)


def names(code: str) -> frozenset[str]:
    """The names in code, including those of parameters."""
    try:
        return frozenset().union(*map(_names, re.split(r"\n(?=@)", code)))
    except SyntaxError:  # a line of a string that looks like a decorator, or several decorators of a function
        return _names(code)


@functools.lru_cache(4096)  # parsing is slow, and kernels share most of their functions
def _names(code: str) -> frozenset[str]:
    found: set[str] = set()
    nodes: list[object] = [ast.parse(code)]
    for node in nodes:  # like ast.walk, in a quarter of the time
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
    """Names, with their meanings in a second column."""
    rows = list(rows)
    width = max(len(name) for name, _ in rows if len(name) <= 24) + 3
    found: list[str] = []
    for name, meaning in rows:
        first, *more = wrapped(meaning, WIDTH - width)
        found += [f"{name:{width}}{first}"] if len(name) <= width - 3 else [name, " " * width + first]
        found += [" " * width + line for line in more]
    return found


def wrapped(line: str, width: int = WIDTH) -> list[str]:
    """The lines of a paragraph."""
    return textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False)


def read(access: Access) -> str:
    """An access to an input, as a term writes it."""
    return written(Node("input", access.index, access.input.name, access.input.dtype))


def of_kernels(plan: Plan) -> Iterator[Row]:
    """Names that kernels.py may have; those that share a meaning share a row."""
    yield from _of_programs(plan)
    yield from _of_steps(plan)
    yield from _of_tensors(plan)
    yield "keys, queries, terms", "tuples of the values that a kernel passes to every step and that no step changes"
    yield "PRECISION", "how float32 is multiplied: ieee, or tf32 if PyTorch uses it; no effect on 16-bit types"
    at_a_time = "; tokens per iteration of `scan`" if plan.kernels.scanned else ""
    yield "BLOCK", f"rows of a tile, in functions used for both queries and keys{at_a_time}"
    if plan.spec.rope:
        yield "BLOCK_T, tiles", "rows of a tile of `rotate`, and the number of such tiles in the longest sequence"
    yield "ROWS, COLUMNS, WIDTH", "rows and columns of a tile, and how many of the columns the tensor has"
    yield "count", "number of rows or tokens: one past the last index"
    if plan.kernels.vanishing:
        yield "PART", "rows of which the largest norm is stored, and tokens whose documents are shortened alike"
        yield "horizons_ptr", "for each head, beyond which distance keys have no weight; None if that is not known"
        yield "parts, own_parts", "number of such groups in a tensor of rows, and in the longest sequence"
        yield "norms_ptr", "the largest squared norms, by head: those of q, then those of k"
        yield "sums_stride_batch", "elements from the sums of one batch entry to those of the next; 0 if all share them"
        yield "far", "how much scores have to fall between a query and a key for the key's weight to be 0"
    for a in plan.arguments:
        if a.kind != "tensor" and a.code not in ("seed", "dropout_p"):
            yield a.code, f"the argument `{a.name}` of the call"
    if plan.kernels.scanned:
        yield "sums_ptr, heads", "the sums that `scan` stores, in four parts, and the number of heads that have some"
    for given in plan.kernels.scanned:
        yield f"{given.name}_anchor", f"the sum that a program subtracts from each sum of {given.name} it reads"
    for access in dict.fromkeys((*plan.by_query.accesses, *plan.by_key.accesses)):
        if access.form != "distance":
            yield access.name, _meaning(access)
    yield from symbols_by_distance.read(plan)


def _of_programs(plan: Plan) -> Iterator[Row]:
    """Heads, lengths and rows."""
    yield "b", plan.storage.entry
    yield "Hq, h", "number of query heads, and the index of one"
    yield "Hkv", "number of key heads"
    yield "kv_h, GROUP", "the key head that query head h reads, h // GROUP, and the number of query heads that share it"
    yield "q_len, k_len", "number of queries and of keys of a sequence"
    yield "D", "head size of q and k"
    yield "DV", "head size of v and out"
    yield "scale", "factor of q . k"
    yield "scale_log2", "scale * LOG2E"
    yield "LOG2E", "log2(e): converts natural-log units to log2 units"
    yield "MAKES", "the gradient that a launch computes, dk or dv, if heads are wider than 256; None: both"
    yield "q_start, k_start", "first row of a tile of queries, first key of a tile of keys, within the sequence"
    yield "row", "rows of a tile's queries, counted from the sequence's first one"
    told = ", unless the call gives another" if plan.storage.entries else ""
    yield "q_begin", f"the position of row 0: k_len - q_len, which aligns the last query with the last key{told}"
    yield "q_pos", "positions of a tile's queries, row + q_begin"
    yield "k_pos", "positions of a tile's keys"
    yield "distance", "how far each key is before each query, q_pos - k_pos"
    yield "q_at, k_at", "q_pos and k_pos in float32, both minus the same number, for the computation of distances"
    for side, name in (("q", "queries"), ("k", "keys")):
        yield f"{side}_first", f"first position of a tile of {name}"
        yield f"{side}_last", f"last position of a tile of {name}, below k_len"


def _of_steps(plan: Plan) -> Iterator[Row]:
    """The tiles that are visited, and the values that steps compute."""
    backward = plan.spec.algorithm.backward
    if plan.kernels.listed:
        yield "first, last", "range [first, last) of the places in the list for the program's own tile"
        yield "full_first, full_last", "range of the places of fully visible tiles: no step there needs the mask"
    else:
        yield "first, last", "range [first, last) of the tiles with something visible to the program's own tile"
        yield "full_first, full_last", "range of the tiles that are fully visible to it: no step there needs the mask"
    yield "span", "index of such a range, if the mask has gaps and therefore several"
    yield "mixed", "whether a step applies the mask"
    yield "tail", "whether a step's tile may extend into the next sequence"
    yield "inner", "end of the tiles that lie within the sequence"
    yield "TILE_AXIS", "the grid axis along which programs own tiles"
    yield "m, l, acc", "running maximum (in log2 units), denominator and numerator of the softmax"
    yield "p", f"weights{'; in `forward`' if backward else ''}, before the division by l"
    yield "pivot", "the value that a step subtracts from scores"
    yield "shrink", "the factor of earlier sums as m grows"
    yield "dp, ds", "gradients of the weights and of the score"
    yield "delta", "rowsum(out * dout) - dlse, which the gradient of the softmax subtracts from each dp of a row"


def _of_tensors(plan: Plan) -> Iterator[Row]:
    """The places of rows in tensors, and the values that determine them."""
    own = "sequence" if plan.storage.cut else "batch entry"
    yield "q_offset, k_offset", f"first row of a {own} {'in the tensors' if plan.storage.cut else 'that counts'}"
    yield "q_end, k_end", "one past the last row of a sequence"
    yield "q_total, k_total", f"rows of the tensors{'' if plan.storage.cut else ' per batch entry'}"
    yield "max_seqlen_q, max_seqlen_k", "maximum rows per sequence, from the call; rows past it are ignored"
    yield "sequences", "number of sequences of the call"
    yield "entries_ptr", "per batch entry, the values that `find_entry` returns, and q_begin; None if all rows count"
    yield "q_rows, k_rows", "values per head in vectors that the package allocates, such as lse"
    yield "q_aligned, k_aligned", "where a sequence begins in them: at a multiple of 4, so that descriptors can read it"
    yield "row_base", f"offset of the program's {own} and head in lse and delta"
    yield "first_row", f"first row of the program's {own} and head in out, dq, dk or dv, as rows of one head each"
    yield "q_bounds_ptr, k_bounds_ptr", "minimum and maximum of the values that masks read along each tile"
    yield "q_bounds_base, k_bounds_base", "the bounds of the program's own tile"
    yield "q_tiles, k_tiles", "number of tiles of queries and of keys"
    yield "key_lists_ptr, query_lists_ptr", "for each tile of queries the tiles of keys that it needs, or vice versa"
    yield "key_list, query_list", "the list for the program's own tile: two numbers, then tiles, as `tile_list` says"
    stored = ", as stored there" if plan.kernels.analysis.key_states else "; of a table, of the entries that it reads"
    yield "x_least, x_most", f"minimum and maximum of x along a tile{stored}"
    yield "others, some, every", "tiles of the other side; for each, whether some of it is visible, and all of it"
    yield "key_ranges_ptr, query_ranges_ptr", "first, full_first, full_last and last of GRAIN rows, in units of GRAIN"
    yield "q_parts, k_parts", "number of such ranges: groups of GRAIN queries or keys"
    yield "PAIRS, BLOCK_PAIRS", "number of rotated pairs of components, and that number rounded up to a power of 2"
    yield "BLOCK_REST", "number of components that are not rotated, rounded up to a power of 2"
    yield "position_end", "number of rows of cos and sin"
    yield "x_sum_row", "rows of a tile in the sums for the gradient of x, which have a value for each entry"
    yield "seed, drop_below", "seed of the random numbers, and the limit below which a 16-bit number drops a weight"
    yield "rescale", "factor that makes up for dropped weights"
    yield "drawn", "the row number with which random numbers are drawn for row 0"
    yield "slot", "index of this program among all, for sums that each program keeps by itself"
    yield "own_tiles", "number of tiles of queries"
    yield "share", "the part of a batch that a program sums over"


def _meaning(access: Access) -> str:
    """The meaning of an access's name in a kernel."""
    given, row = access.input, "query" if access.tie == "q" else "key"
    if given.source:
        end = "begins" if given.part == running_sums.BEGIN else "ends"
        return f"where the document of each {row} {end}, according to {given.source}"
    if given.scan:
        return f"sum of {given.name} up to {read(access).removeprefix(given.name)}, minus {given.name}_anchor"
    each = {"value": " of the current sequence and head", "row": f", for each {row}", "pair": ", for each score"}
    return read(access) + each.get(access.form, ", looked up")


def _decoding(plan: Plan) -> Iterator[Row]:
    """Names of decode_kernels.py, in addition to those of kernels.py."""
    yield "b", "a sequence"
    yield "Hkv", "number of key heads"
    yield "kv_h, GROUP", "a key head, and the number of query heads that read it"
    yield "tokens, longest", "number of new tokens of all sequences, and the maximum of one sequence"
    yield "token", "index of a sequence's first new token among those of all sequences"
    yield "max_seqlen_k", "keys per sequence that the host made room for; later keys are ignored"
    yield "splits, split_size", "splits per sequence that `parts` has room for, and keys per split"
    yield "first_keys, reach", "number of first keys, and of keys before the first new token, that masks may show"
    yield "head", "number of splits of the first_keys keys"
    yield "first_split", "the split of the key that is `reach` before the first new token, or `head` if that is larger"
    yield "split_end", "one past the split of the last key"
    yield (
        "slot",
        "the place of a split in `parts`: splits before `head`, then those from first_split on; in `append_rows` "
        "the place of a token in the cache, page * page_size + place in the page",
    )
    yield "slots, page_size", "number of places in the cache, and in one page"
    yield "place", "rows of a tile: pairs of a token and a head, with the heads of a token adjacent"
    yield "row", "their tokens, counted from the first new token of the sequence"
    yield "own_row", "their rows in inputs and lse: counted among all tokens if cu_seqlens_q is given, else `row`"
    yield "count", "number of rows of the sequence: q_len * GROUP"
    yield "lo, hi", "range [lo, hi) of the keys that are visible to some row of the tile"
    yield "full_lo, full_hi", "range of the keys that are visible to all its rows"
    yield "span", "index of such a range, if the mask has gaps and therefore several"
    yield "inside", "which keys of a tile, or which places, are read"
    yield "page", "pages of the next tile's keys, loaded one tile ahead"
    yield "k_page, k_slot", "pages of a tile's keys, and the places in them"
    yield "k_begin, k_places", "the place of a sequence's first key in a cache without pages; the number of its places"
    yield "PAGE", "number of places in a page; 1 without a page table"
    yield "q_rest, k_rest", "columns after the first BLOCK_D, REST of them; none unless D is above 512"
    yield "REST", "the number of those columns, with padding"
    yield "V_IN_K", "whether v is the first columns of k, so that a tile of keys serves as one of values"
    yield (
        "q_unit",
        "factor of each row's scores: the power of 2 that q is divided by if float16 replaces bfloat16, times the "
        "scale if BY_HEAD",
    )
    yield "key, APART", "keys of a tile, counted from its first; whether the page of each key is looked up by itself"
    yield "there", "which of a tile's keys are loaded, None: all; which rows or heads of a program exist"
    yield "TURNED", "whether products take the rows of a tile as columns, as they do if there are few"
    yield "SUMS", "number of partial sums of each row's weights"
    yield "IN_TWOS", "whether float8 values are read two columns at a time"
    yield "KV_HEADS", "number of key heads that a program reads"
    yield "QUERIES", "number of query heads that read the key heads of a program"
    yield "own", "the one of a program's key heads that a row reads"
    yield "BY_HEAD", "whether all float8 keys of a head share one scale"
    yield "FAR", "whether rows of a tile may be 2**31 elements apart"
    yield "END_STAGES", "pipeline stages of the loops over tiles with a mask that loads"
    yield "mass", "the weights of keys, summed over the new tokens"
    yield "CHUNK", "number of splits that are added one after the other"
    yield "CHUNKS, BLOCK_S", "number of chunks that are loaded at a time, and of the splits in them"
    yield "COLUMNS, TOGETHER", "number of columns of out that a program joins at a time, and of its query heads"
    yield "column", "columns of out"
    if not plan.decode or not plan.decode.scans.each:
        yield "BLOCK_H", "number of key heads, rounded up to a power of 2"
    yield "out_row, lse_row", "the places of rows in out, counted in rows, and in lse"
    yield "sequences", "number of sequences"
    yield "came", "number of programs of other splits of the same rows that stored their parts before this one"
    yield "JOINED", "number of rows that the last of these programs joins; 0 if `join_splits` joins all"
    yield "MEASURED", "whether float8 scales are computed here and stored"
    yield "OVERLAP", "whether a kernel starts while the previous one ends"
    if plan.decode and plan.decode.scans.each:
        yield from _of_sums()


def _of_sums() -> Iterator[Row]:
    """Names of running sums in decode_kernels.py."""
    yield "STRETCH", "number of keys of a stretch: running sums begin anew at each multiple of it"
    yield "stretches, first_stretch", "stretches per sequence that `sums` has room for; the first of them"
    yield "AT_A_TIME", "stretches per iteration of `sum_stretches`"
    yield "first_key", "the first key that is summed"
    yield "HEADS, BLOCK_H", "number of heads that have sums, and of heads of a program; in `append_rows` all key heads"
    yield "x_ptr, RESET", "the input that `sum_keys` sums; the largest value that begins a document and counts as 0"
    yield "STRIPS", "number of strips of a stretch that a program sums in parallel, of BLOCK_H keys each"
    yield "k_first", "the first key of each strip"
    yield "is_head", "which heads exist"
    yield "values, resets", "the values that a thread sums, and which of them begin a document"
    yield (
        "totals, total, begin",
        "the sums up to each key of a strip, the sum of all its keys, and where its last document begins, or -1",
    )
    yield "before, sums", "the sum of all strips before, and the sums up to each key of the stretch"
    yield "begins", "the same for keys or for stretches: where the last document up to each begins, or -1"
    yield "sums_begin, x_sums_begin", "where the sums of an input x begin in the workspace, in units of 16 values"
    yield "x_base", "where the sums of x begin for the heads of a tile's rows"
    yield (
        "x_before",
        "the sum of all stretches before that of each row's position, in float64; not part of x_q and x_k",
    )
    yield "x_anchor", "the same in float32"
