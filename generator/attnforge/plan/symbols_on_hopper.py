"""The meaning of names in rendered kernels for Hopper GPUs that other kernels do not have: rows of the glossary."""

from __future__ import annotations

from collections.abc import Iterator

from . import symbols_by_distance
from .plan import Plan


def _in_gluon() -> Iterator[tuple[str, str]]:
    """Names that both passes for Hopper GPUs may have."""
    yield "WORKERS", "number of workers in a program"
    yield "WORKER", "index of this worker"
    yield "arguments", "the kernel parameters that workers need"
    yield "lengths", "the kernel parameters that the loader needs"
    yield "terms", "a tuple that a worker or the loader builds for its steps: values that no step changes"
    yield "x_buffer", "tiles of x in shared memory, one per stage"
    yield "x_ready", "for each of its stages, the barrier for the tile's arrival"
    yield "x_free", "for each of its stages, the barrier at which all workers report that they are done with the tile"
    yield "scale_log2", "scale * LOG2E"
    yield "at", "number of tiles so far: the current one has stage at % STAGES, in round at // STAGES"
    yield "phase", "phase bit: the lowest bit of the round, by which a wait tells it from the previous one"
    yield "ends", "number of tiles so far that reach behind their sequence"
    yield "eighth", "index of a group of eight keys, which share a call of the random number generator"
    yield "words", "four words of 32 bits, the result of a call"
    yield "draws", "a random number of 16 bits for each weight: dropout drops it if that is less than drop_below"
    yield "CALLS", "the layout in which threads call the generator, each for draws of its own"
    yield (
        "v_come, come",
        "the barrier for the arrival of such a tile, in which the loader clears rows before workers see it; () if "
        "there is no such tile",
    )


def _of_tables(plan: Plan) -> Iterator[tuple[str, str]]:
    """Names of what kernels read by distance."""
    yield from symbols_by_distance.read(plan)
    yield from symbols_by_distance.summed(plan)


def _of_pairs(plan: Plan) -> Iterator[tuple[str, str]]:
    """Names about values of pairs."""
    pairs = plan.hopper.pairs if plan.hopper else None
    if pairs:
        name = pairs.input.name
        yield f"{name}_batches, {name}_heads, {name}_kv_heads", "number of entries along an axis: one stands for all"
        yield f"{name}_place", "coordinates of a worker's part of a tile in the tensor"
        yield f"{name}_stages", "the buffer of tiles of values of pairs, and its barriers, as one tuple"
        yield f"{name}_tile", "this worker's part of the current tile"


def forward(plan: Plan) -> Iterator[tuple[str, str]]:
    """Names of hopper.py that kernels.py does not have."""
    yield from _of_tables(plan)
    yield from _of_pairs(plan)
    if plan.storage.cut:
        yield "items, item", "number of tiles of queries of all heads, and the index of one"
        yield "slots, slot", "number of places for tiles of queries of a head, and the index of one"
        yield "group", "number of heads in a group"
        yield "coming", "the next item, taken while the current one is loaded"
        yield "places", "for each stage of queries, its tile, sequence and head"
        yield "number", "twice the index of the tile, plus 1 if it is computed again"
        yield "again", "1 if the tile is computed again because rows have outgrown their first keys"
        yield "idle", "number of consecutive stages without a tile"
        yield "room", "number of tiles of a sequence, or one more"
    else:
        yield (
            "items, per_item",
            "number of items that programs take in turn, and of tiles of queries in each: 1, or 2 for pairs",
        )
        yield "tiles, group", "number of tiles of queries of a head, and of heads in a group"
        yield "order", "these four, by which `digits` splits numbers"
        yield (
            "place, step",
            "a program's item and the step to its next one, as (group, tile or pair, head within the group)",
        )
        yield "early, half", "index of the early tile of an item; which tile of the item is current: 0 for the late one"
        yield (
            "ranked_ptr",
            "number of tiles of queries with rows that count, then entry and tile of each; None if no row is left out, "
            "or for a single batch entry",
        )
    yield "STAGES, Q_STAGES", "number of stages of the buffers of keys and of values, and of the buffer of queries"
    yield "queries, buffers", "the buffer of queries, and the buffers of keys and of values, with their barriers"
    yield from _in_gluon()
    yield (
        "vectors_ready",
        "for each stage, the barrier at which the loader reports that it has stored what terms read of keys",
    )
    yield "x_k_tile", "what terms read of x: a value for each key of the current tile"
    yield (
        "k_added",
        "what terms add to all scores of a key, divided by the scale: the products for scores start from it",
    )
    yield "q_added", "what terms add to all scores of a query, likewise"
    yield "k_added_tile", "k_added of each key of the current tile"
    yield "added_ready", "for each stage, the barrier at which the loader reports that it has stored k_added"
    yield "visits", "number of ranges of tiles of keys so far that were not empty"
    yield "low, high", "range of the tiles of keys that rows of any worker see"
    yield "begun", "number of tiles of queries so far: the current one has stage begun % Q_STAGES"
    yield "ahead", "tiles of keys before this index are copied ahead of the queries"
    yield "others", "the second operand of the product for scores: a tile of keys, or of queries"
    yield "before", "the stage of the previous tile"
    yield "turns", "for each of three workers, the barrier at which it waits for its turn to issue products"
    yield "packed", "the weights of the previous tile, two in each int32"
    yield "dropout", "what a worker draws random numbers from, and drop_below"
    yield "first_query", "first row of a worker's queries"
    yield "OVERLAPPED", "whether the product with the previous values keeps running while weights are computed"
    yield "rest", "tiles of keys before this index remain"
    yield (
        "grows",
        "whether m tracks a row's largest score: always with float16, otherwise if it has outgrown its first keys",
    )
    yield "STEADY", "whether m stays unchanged for all rows of a tile"
    yield "outgrown", "whether the sum of a row's weights, which are relative to its first keys, is too large"
    yield "nth", "index of a tile among those of its program, modulo 32: its bit in wanted and asks"
    yield "wanted", "bit mask of the tiles that a pass visits"
    yield "asks, asked", "bit mask of the tiles for which a row asks for a second pass; the masks of all workers' rows"
    yield "asked_ready", "the barrier at which all workers report that they have asked"
    yield "verdicts", "for each stage and worker, which rows have outgrown their first keys"
    yield "AGAIN", "whether this is the second pass through the program's tiles, which visits few of them"
    yield "counts", "numbers of tiles so far, before or after a pass"
    yield "first_lse", "the LSE that the first pass stored"


def backward(plan: Plan) -> Iterator[tuple[str, str]]:
    """Names of hopper_backward.py that kernels.py does not have."""
    whole = "sequence" if plan.storage.cut else "batch entry"
    shape = "[heads, rows, columns]" if plan.storage.cut else "[batch entries, heads, rows, columns]"
    yield (
        "dq_sum_ptr",
        f"accumulator of dQ: {shape} in float32, with rows for whole tiles of BLOCK_M queries of each {whole}, and "
        "columns for whole pieces",
    )
    yield "PIECE, PIECES", "columns of a piece of dQ, 64, or 32 for heads of up to 32; number of pieces side by side"
    yield "dq_sum_desc", "the same, viewed as [.., 256]: PIECE / 4 such rows are a piece, of 64 queries"
    yield "sum_row", f"first row of the {whole} and head in dq_sum"
    yield "sum_tile", f"first piece of the {whole} and head in dq_sum"
    yield "items", "number of tiles of keys that programs take"
    yield "tiles", "number of tiles of keys of a head"
    yield "slot", "index of a place for a tile of a head: a packed sequence may have one place more than tiles"
    yield "room", "number of tiles of a sequence, or one more"
    yield "group", "number of key heads in a group, whose tiles follow one another"
    yield "grouped, joined", "number of heads in such groups, and of the last heads, which form one group"
    yield "behind", "a tile's place, counted from the first tile of the last heads"
    yield "place", "position of a tile in the order in which programs take them; also a position in dq_sum"
    yield (
        "taken_ptr",
        "number of tiles that programs have taken besides the first of each; then, for each tile of queries of a head, "
        "the number of programs that have reached it with a share of dQ, plus 2**24 once the first share is stored",
    )
    yield "count_ptr", "the latter number for the current tile"
    yield "counted", "the kernel parameters that add_shares needs"
    yield "places", "for each stage of keys, which tile of which head it holds"
    yield "STAGES", "number of stages of the buffers of queries and of dout"
    yield "PAIR_STAGES", "number of stages of the buffer of values of pairs"
    yield "K_STAGES", "number of stages of the buffers of keys and of values: 2 in persistent programs, or 1"
    yield (
        "keys, exchange, queries",
        "buffers of what workers own, of what they exchange, and of what they iterate over, with their barriers",
    )
    yield from (row for row in _in_gluon() if row[0] != "x_free")
    yield "turns", "kv_free and places, which announce the next tiles in persistent programs"
    yield "begun", "number of tiles of keys so far: the current one has stage begun % K_STAGES"
    yield "kv_ready", "for each of these stages, the barrier for the arrival of keys and values"
    yield (
        "kv_free",
        "for each, the barrier at which both workers report that they are done, and add_shares that it knows the tile",
    )
    yield "keys_of", "the keys of each worker"
    yield (
        "v_held, v_shared",
        "the two halves, of 64 columns, of a worker's values: v_held in registers, v_shared in shared memory",
    )
    yield "zeros", "the accumulator from which the products for scores and dP start"
    yield "free", "for each stage of the buffers, the barrier at which workers report that they are done"
    yield "factors", "dS as workers exchange it, [BLOCK_M, 64] per stage and worker"
    yield (
        "factors_ready",
        "for each of these stages, the barrier at which both workers have stored dS, and all of the last step is read",
    )
    yield "turn", "the current stage of factors"
    yield "distance", "how far each key is before each query, q_pos - k_pos"
    yield "near, far", "q_pos - k_pos is near - far: near is a constant per register, far one number per thread"
    yield (
        "k_added",
        "what terms add to all scores of a key, in log2 units; what they add for a query is subtracted from its LSE",
    )
    yield "walked", "at, as an unsigned number up to 64 columns"
    yield from _of_tables(plan)
    yield from _of_pairs(plan)
    yield "exact", "dS in float32"
    yield "low, high", "range of the tiles of queries that see keys of any worker"
    yield "others", "dS of the other worker"
    yield "AHEAD, ASIDE", "first query and first column of the worker's half of the program's share of dQ"
    yield "shares", "each worker's half in shared memory, for the copy engine"
    yield "shares_ready", "for each worker, the barrier at which it reports that its half is stored"
    yield "shares_read", "the barrier that signals that the copy engine has read both"
    yield "eighths", "[8, 16], filled with 1 / 8: the eight columns of a product of dS with it add up to the sums of dS"
    yield (
        "key_sums, row_sums",
        "sums of dS over the queries of each of a worker's keys, and over the keys of 64 rows",
    )
    sums = plan.hopper.backward.sums.rows if plan.hopper and plan.hopper.backward else ()
    for total in sums:
        yield f"{total.name}_row", f"offset of the {whole} and head in {total.name}"


def wide(plan: Plan) -> Iterator[tuple[str, str]]:
    """Names of hopper_wide.py: there groups of warps hand on what workers exchange in hopper_backward.py."""
    yield "weights", "dS / (dP - delta), [64, BLOCK_M], stored as [16, 256] in the order of threads"
    yield "stays, used", "which weights dropout keeps, and the weights by which dout is multiplied"
    yield "factor", "weights as stored; with dropout, those kept times rescale, or dS with a mark, its last bit"
    yield "weights_ready, weights_free", "barriers that signal that these are stored, and that they may be overwritten"
    yield "below", "-delta in each row of a tile of scores; a product adds dp to it"
    yield "dp_less_delta", "dp - delta, in the order of threads"
    yield "factors", "dS, [64, BLOCK_M] per stage"
    yield "factors_ready, factors_free", "the same barriers for each stage of factors"
    yield "for_dv, for_dk, for_dq", "the kernel parameters that each of these groups needs"
    yield "final", "index of the last tile visited"
    yield "dk, dk_rest", "the first 128 columns of dK, and the REST columns after them"
    told = {
        "keys, exchange, queries": "buffers of what the program owns, of what groups hand on, and of what they "
        "iterate over, with their barriers",
        "WORKERS": "multiples of 64 keys that a program owns, for load_tiles: one",
        "K_STAGES": "number of stages of keys and of values, for load_tiles: one",
        "turns": "what load_tiles needs in persistent programs: nothing here",
        "taken_ptr": "for load_tiles, which reads it in persistent programs",
        "place": "positions in dq_sum",
        "kv_ready": "the barrier for the arrival of keys and values",
        "lengths": "the kernel parameters that load_tiles needs",
        "terms": "a tuple that make_dv builds for its steps: values that no step changes",
        "x_buffer": "tiles of x in shared memory; for queries and dout, one per stage",
        "v_come, come": "the barrier for the arrival of tiles that reach behind a sequence; the loader clears them",
        "free": "for each stage of the buffers, the barrier at which make_dv and make_dk report that they are done",
    }
    others = {"factors", "factors_ready"}
    for names, meaning in backward(plan):
        if names not in others:
            yield names, told.get(names, meaning)
        if names == "sum_tile":
            yield "share_tile", "first such tile of the current queries"


def decoding(plan: Plan) -> Iterator[tuple[str, str]]:
    """Names of decode_hopper.py that decode_kernels.py does not have."""
    yield "sequences", "the kernel parameters that all warps need: those by which they find sequences and splits"
    yield (
        "arguments, results, places, factors",
        "the other kernel parameters that score_keys, add_values, load_keys and convert_keys need",
    )
    yield "queries", "q_buffer, and the barrier for the arrival of queries"
    yield "q_quarters", "columns 0 to 511 of the queries, 128 at a time, as operands of products"
    yield (
        "keys, boxes",
        "k_buffer and rest_buffer, or k_boxes and rest_boxes, with the same barriers; boxes also has q_loaded",
    )
    yield "weights, totals", "p_buffer with its barriers and shrinks; shares with its barrier"
    yield "scales", "k_scales and v_scales; both None unless each key has its own scale"
    yield "cache", "pointers and strides of float8 rows and their scales, for one sequence and key head"
    yield "q_loaded", "the barrier that signals that all queries of a tile have been loaded from memory"
    yield "k_ready, k_free", "for each half of a stage, the barriers that signal that it is ready, and that it is free"
    yield (
        "p_ready, p_free",
        "for each tile of weights, the barriers that signal that it is stored, and that no worker needs it any more",
    )
    yield "shares_ready", "the barrier that signals that shares are stored"
    yield "STAGES", "number of stages of the buffers of keys"
    yield "at", "number of tiles so far: the current one has stage at % STAGES, in round at // STAGES"
    yield "phase", "phase bit: the lowest bit of the round, by which a wait tells it from the previous one"
    yield "turn", "index of the current one of the two tiles of weights"
    yield "WORKER", "index of this worker, one of the two that add values"
    yield "FLOAT8", "whether keys are float8: then k_desc is a tuple of their address and strides in steps of 16 bytes"
    yield "ROWS, BOXES", "keys of a box, and number of boxes in all stages for 64 columns"
    yield "LAYOUT", "the layout of tiles whose rows are wanted"
    yield "q_place", "where the rows of a tile begin in q"
    yield "place", "rows of a tile; for k_buffer, a half of a stage"
    yield (
        "page, slot",
        "a box's page, or without pages its sequence, and its place there; `slot` of a split as in decode_kernels.py",
    )
