"""What the names in rendered kernels for Hopper GPUs mean, beside those of other kernels: rows of the glossary."""

from __future__ import annotations

from collections.abc import Iterator

from .plan import Plan


def _in_gluon() -> Iterator[tuple[str, str]]:
    """Those that both passes for Hopper GPUs may have."""
    yield "WORKERS", "how many workers a program has"
    yield "WORKER", "which of the workers this is"
    yield "arguments", "what workers take of the kernel's parameters"
    yield "lengths", "what the loader takes of the kernel's parameters"
    yield "terms", "a tuple that a worker, or the loader, makes for its steps: what none of them changes"
    yield "x_buffer", "tiles of x in shared memory, by stage"
    yield "x_ready", "for each of its stages a barrier that the tile has come"
    yield "x_free", "for each of its stages a barrier that all workers are done with the tile"
    yield "scale_log2", "scale * LOG2E"
    yield "at", "tiles of the walk so far: this one has stage at % STAGES, in round at // STAGES"
    yield "phase", "a round's last bit: by it a barrier tells the round that a wait is for from the one before"
    yield "ends", "tiles so far that reach into the next sequence"
    yield "v_come, come", "a barrier that such a tile has come: the loader clears rows before workers see it"


def forward(plan: Plan) -> Iterator[tuple[str, str]]:
    """Those of hopper.py, beside those of kernels.py."""
    if plan.storage.cut:
        yield "items, item", "tiles of queries of all heads, and the number of one"
        yield "slots, slot", "room for tiles of queries of a head, and the number of such a place"
        yield "group", "heads of a group"
        yield "coming", "the next item, taken while the one at hand is loaded"
        yield "places", "for each stage of queries which tile, sequence and head they are of"
        yield "number", "twice the tile, and one more if it is done again"
        yield "again", "1 if the tile is done again, as rows have outgrown their first keys"
        yield "idle", "how many stages in a row had no tile"
        yield "room", "tiles of a sequence, or one more"
    else:
        yield "items, per_item", "what programs take in turns, and its tiles of queries: 1, or 2 where they make pairs"
        yield "tiles, group", "tiles of queries of a head, and heads of a group"
        yield "order", "these four, which `digits` counts by"
        yield "place, step", "a program's item and the way to its next one, as (group, tile or pair, head of the group)"
        yield "early, half", "the number of an item's early tile; which tile of the item: 0 for the late one"
    yield "STAGES, Q_STAGES", "stages of the buffers of keys and of values, and of that of queries"
    yield "queries, buffers", "the buffer of queries with its barriers; those of keys and of values"
    yield from _in_gluon()
    yield "vectors_ready", "for each stage a barrier that the loader has stored what terms read of each key"
    yield "x_k_tile", "what they read of x, a value for each key of the tile at hand"
    yield "k_added", "what terms add to all scores of a key, divided by the scale: products of scores begin with it"
    yield "q_added", "what they add to all scores of a query, likewise"
    yield "k_added_tile", "k_added of each key of the tile at hand"
    yield "added_ready", "for each stage a barrier that the loader has stored k_added"
    yield "visits", "walks so far that had a tile"
    yield "low, high", "ends of the tiles of keys that rows of any worker see"
    yield "begun", "tiles of queries so far: this one has stage begun % Q_STAGES"
    yield "ahead", "tiles of keys before this one are copied ahead of the queries"
    yield "others", "the tile whose rows make scores with those of a tile of queries, or of keys"
    yield "before", "the stage of the tile before"
    yield "turns", "a barrier for each of three workers: it is its turn to issue products"
    yield "packed", "the weights of the tile before, two in each int32"
    yield "OVERLAPPED", "whether the product of the values before runs on while scores are weighed"
    yield "rest", "tiles before it are still to come"
    yield (
        "grows",
        "whether m follows a row's largest score: with float16 always, else if it has outgrown its first keys",
    )
    yield "STEADY", "whether m stays what it is for all rows of a tile"
    yield "outgrown", "whether a row's weights add up to too much of what they are measured from"
    yield "nth", "the number of a tile among those of its program, as far as 32 bits tell them apart"
    yield "wanted", "a pass goes through the tiles whose bits are set in it"
    yield "asks, asked", "the bits of tiles that a row asks for once more; the same of all workers' rows"
    yield "asked_ready", "a barrier that all workers have told"
    yield "verdicts", "for each stage and worker which rows have outgrown their first keys"
    yield "AGAIN", "whether this is the second pass through the program's tiles, in which few are wanted"
    yield "counts", "how many tiles there were before a pass, or are after it"
    yield "first_lse", "what the first pass left in the place of the LSE"
    if plan.storage.entries:
        yield "entries_ptr", "None, and not read: launches are the same for the portable kernel, which alone reads it"


def backward(plan: Plan) -> Iterator[tuple[str, str]]:
    """Those of hopper_backward.py, beside those of kernels.py."""
    whole = "sequence" if plan.storage.cut else "batch entry"
    shape = "[heads, rows, columns]" if plan.storage.cut else "[batch entries, heads, rows, columns]"
    yield (
        "dq_sum_ptr",
        f"what dQ is added up in: {shape} in float32, with rows for whole tiles of BLOCK_M queries of each {whole}, "
        "and columns for whole tiles of 64",
    )
    yield "dq_sum_desc", "the same as [.., 256]: 16 such rows are a [64, 64] tile"
    yield "sum_row", f"the first row of the {whole} and head there"
    yield "sum_tile", f"the first [64, 64] tile of the {whole} and head there"
    yield "items", "tiles of keys that programs take"
    yield "tiles", "tiles of keys that a head has"
    yield "slot", "the number of a tile of a head: a packed sequence may have room for one more than it has"
    yield "room", "tiles of a sequence, or one more"
    yield "group", "key heads of a group, whose tiles come one after the other"
    yield "grouped, joined", "heads that come group by group, and the last ones, which are one group"
    yield "behind", "a tile's place behind those of the heads that come group by group"
    yield "place", "the place of a tile in the order in which programs take them; also a place in dq_sum"
    yield (
        "taken_ptr",
        "how many tiles programs have taken beside the first of each; behind it, for each tile of queries of a head, "
        "how many have come with a share of dQ, and 2**24 more once that of the first is there",
    )
    yield "count_ptr", "the latter number of the tile at hand"
    yield "counted", "what add_shares takes of the kernel's parameters"
    yield "places", "for each stage of keys which tile of which head it is"
    yield "STAGES", "stages of the buffers of queries and of dout"
    yield "K_STAGES", "stages of those of keys and of values: 2 where programs take tiles in turns, else 1"
    yield (
        "keys, exchange, queries",
        "buffers of what workers own, of what they exchange, and of what they walk along, with their barriers",
    )
    yield from (row for row in _in_gluon() if row[0] != "x_free")
    yield "turns", "where programs take tiles in turns, kv_free and places: what tells of the next ones"
    yield "begun", "tiles of keys so far: this one has stage begun % K_STAGES"
    yield "kv_ready", "for each stage of these a barrier that keys and values have come"
    yield "kv_free", "for each a barrier that both workers are done with them, and add_shares knows which they are"
    yield "k_tiles", "the keys of each worker"
    yield (
        "v_held, v_shared",
        "the halves of 64 columns of a worker's values: v_held in registers, v_shared in shared memory",
    )
    yield "zeros", "what the products for scores and dP begin with"
    yield "free", "for each stage of the buffers a barrier that workers are done with it"
    yield "factors", "ds as workers exchange it, [BLOCK_M, 64] by stage and worker"
    yield (
        "factors_ready",
        "for each of these stages a barrier that both workers have stored theirs, and shares are read",
    )
    yield "turn", "the stage that is at hand"
    yield "distance", "how far each key stands before each query, q_pos - k_pos"
    yield "near, far", "q_pos - k_pos is near - far: near is known of each register, far one number for all of a thread"
    yield (
        "k_added",
        "what terms add to all scores of a key, in log2 units; what they add to a query's is taken from its LSE",
    )
    yield "walked", "at, in a number without a sign up to 64 columns"
    yield "low, high", "ends of the tiles of queries that keys of any worker see"
    yield "others", "dS of the other worker"
    yield "AHEAD, ASIDE", "the first query and the first column of the worker's half of the program's share of dQ"
    yield "shares", "each worker's half in shared memory, for the copy engine"
    yield "shares_ready", "for each worker a barrier that it has stored its half"
    yield "shares_read", "a barrier that the copy engine has read both"
    yield "eighths", "[8, 16], eight times 1 / 8: columns of a product of dS with it add up to its sums"
    yield (
        "key_sums, row_sums",
        "sums of dS over the queries of each of a worker's keys, and over the keys of 64 rows",
    )
    sums = plan.hopper.backward.sums.rows if plan.hopper and plan.hopper.backward else ()
    for total in sums:
        yield f"{total.name}_row", f"where {total.name} of the head at hand begins"


def wide(plan: Plan) -> Iterator[tuple[str, str]]:
    """Those of hopper_wide.py: groups of warps hand on what workers exchange there."""
    yield "weights", "[64, BLOCK_M], what dS is by dP - delta, as [16, 256] in the order of threads"
    yield "weights_ready, weights_free", "barriers that they stand there, and that they may be written over"
    yield "below", "-delta in each row of a tile of scores: a product adds dp to it"
    yield "dp_less_delta", "dp - delta, in the order of threads"
    yield "factors", "dS, [64, BLOCK_M] by stage"
    yield "factors_ready, factors_free", "for each of these stages such barriers"
    yield "for_dv, for_dk, for_dq", "what these groups take of the kernel's parameters"
    yield "final", "the last tile of the walk"
    yield "dk, dk_rest", "the first 128 columns of dK, and the REST columns behind them"
    told = {
        "keys, exchange, queries": "buffers of a program's own, of what groups hand on, and of what they walk along, "
        "with their barriers",
        "WORKERS": "how many times 64 keys a program has, for load_tiles: once",
        "K_STAGES": "stages of keys and of values, for load_tiles: one",
        "turns": "what load_tiles takes where programs take tiles in turns: nothing",
        "taken_ptr": "for load_tiles, which reads it where programs take tiles in turns",
        "place": "places in dq_sum",
        "kv_ready": "a barrier that keys and values have come",
        "lengths": "what load_tiles takes of the kernel's parameters",
        "terms": "a tuple that make_dv makes for its steps: what none of them changes",
        "x_buffer": "tiles of x in shared memory, those of queries and of dout by stage",
        "v_come, come": "a barrier that the next sequence's rows came along: the loader clears them before others look",
        "free": "for each stage of the buffers a barrier that make_dv and make_dk are done with it",
    }
    others = {"factors", "factors_ready"}
    for names, meaning in backward(plan):
        if names not in others:
            yield names, told.get(names, meaning)
        if names == "sum_tile":
            yield "share_tile", "the first one of the queries at hand"


def decoding(plan: Plan) -> Iterator[tuple[str, str]]:
    """Those of decode_hopper.py, beside those of decode_kernels.py."""
    yield "sequences", "what all warps take of the kernel's parameters: what they find sequences and splits by"
    yield (
        "arguments, results, places, factors",
        "what score_keys, add_values, load_keys and convert_keys take of the others",
    )
    yield "queries", "q_buffer and the barrier of what comes into it"
    yield "q_quarters", "columns 0 to 511 of the queries by 128, as products take them"
    yield "keys, boxes", "k_buffer and rest_buffer, k_boxes and rest_boxes, with the same barriers, boxes with q_loaded"
    yield "weights, totals", "p_buffer with its barriers, and shrinks; shares with its barrier"
    yield "scales", "k_scales and v_scales; None twice where keys have no scales of their own"
    yield "cache", "what tells where rows of float8 and their scales stand, for one sequence and key head"
    yield "q_loaded", "a barrier that all queries of a tile have come from memory"
    yield "k_ready, k_free", "for each half of a stage a barrier that it is ready, and one that it is free"
    yield (
        "p_ready, p_free",
        "for each tile of weights a barrier that it is there, and one that no worker needs it any more",
    )
    yield "shares_ready", "a barrier that shares are there"
    yield "STAGES", "stages of the buffers of keys"
    yield "at", "tiles so far: this one has stage at % STAGES, in round at // STAGES"
    yield "phase", "a round's last bit: by it a barrier tells the round that a wait is for from the one before"
    yield "turn", "which of the two tiles of weights is at hand"
    yield "WORKER", "which of the two workers that add values this is"
    yield "FLOAT8", "whether keys are float8, which a tuple of their place and strides in steps of 16 bytes tells"
    yield "ROWS, BOXES", "keys of a box, and how many boxes all stages have for 64 columns"
    yield "LAYOUT", "the layout of tiles whose rows are asked for"
    yield "q_place", "where the rows of a tile begin in q"
    yield "place", "rows of a tile; of k_buffer, a half of a stage"
    yield (
        "page, slot",
        "a box's page, or without pages its sequence, and its place there; `slot` of splits as in decode_kernels.py",
    )
