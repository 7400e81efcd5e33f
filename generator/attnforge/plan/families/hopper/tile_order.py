"""In which order programs for Hopper GPUs take tiles: of queries in the forward pass, of keys in the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...analysis import Analysis
from ...sides import BLOCKS, Side
from ...statements import Block, Branch, Bundle, Loop, Statement
from ...tile_ranges import TileRange
from . import steady_rows

_STAGE = Statement("stage", "begun % Q_STAGES")
_BEGUN = Statement("begun", "1", "+=")
# what was written of a stage by threads is seen by the copies that come next
_FENCE = Statement("", "fence_async_shared()")
_FREE = Statement("", "mbarrier.arrive(q_free.index(stage), count=1)")
_OF_KEYS = ("tiles", "group", "grouped", "joined")


@dataclass(frozen=True)
class Order:
    """How programs of the forward pass come to the next tile of queries."""

    numbers: tuple[str, ...]  # by which a launch tells of it
    found: tuple[Statement, ...]  # the statements by which the loader finds an item's tile, sequence and head
    handed: tuple[Statement, ...]  # those by which workers do
    there: str  # text of whether the tile has queries
    blocks: dict[str, tuple[Block, ...]]  # of the kernel
    texts: dict[str, str]  # likewise
    read: frozenset[str] = frozenset()  # what the loader reads for it besides
    bundle: tuple[Bundle, ...] = ()  # the numbers as one tuple, if all warps take them

    @property
    def given(self) -> tuple[str, ...]:
        """What workers and the loader take for it, beside single values."""
        return tuple(bundle.name for bundle in self.bundle)


def build(a: Analysis, again: bool) -> Order:
    """The order of a variant's tiles, which some programs go through `again`."""
    tile = (*a.key_head, Statement("q_start", "tile * BLOCK_M"), *a.storage.found("qk"))
    return _as_taken(tile, again) if a.storage.cut else _in_turns(tile, again)


def loads(
    spanned: Callable[[tuple[Block, ...]], tuple[Block, ...]], load: tuple[Block, ...], at_once: bool
) -> dict[str, tuple[Block, ...]]:
    """How the loader comes to the tiles of keys of a tile of queries: before it waits for room for these, and after.

    The memory of a single stage of queries is free late, so that the first keys come before them. Not if it has room
    `at_once`, as that is how it came to the tile, or where tiles of keys are in several ranges.
    """
    if at_once:
        return {"load_ahead": (), "load_visit": spanned((Loop("j", "first", "last", load),))}
    first = (Statement("ahead", "tl.minimum(first + 1, last)"), Loop("j", "first", "ahead", load))
    return {
        "load_ahead": spanned((Statement("ahead", "first"), Branch("Q_STAGES == 1", first))),
        "load_visit": (Loop("j", "ahead", "last", load),),
    }


def visited(tiles: TileRange) -> str:
    """In which order a worker visits tiles of keys, in words."""
    each = " of each range" if len(tiles.ends) > 1 else ""
    kinds = "mixed tiles, then full ones" if tiles.full else "the mask applies to all of them"
    kinds = "mixed tiles, full ones, and mixed ones again" if tiles.full and tiles.left else kinds
    return f"Tiles of keys{each} are visited from the last to the first: {kinds}."


def _in_turns(tile: tuple[Statement, ...], again: bool) -> Order:
    """Sequences of a batch have as many tiles each: which are whose all warps know, and items may be pairs of them."""
    found = (
        Statement("early", "place[1]"),
        Statement("tile", "tl.where(half == 0, tiles - 1 - early, early)"),
        Statement("head", "place[0] * group + place[2]"),
        Statement("b, h", "head // Hq, head % Hq"),
        *((Statement("nth", "(i * per_item + half) % 32"),) if again else ()),
        *tile,
    )
    numbers = ("items", "tiles", "group", "per_item")
    blocks: dict[str, tuple[Block, ...]] = {
        "comes": (_STAGE, Statement("", "mbarrier.wait(q_ready.index(stage), begun // Q_STAGES & 1)")),
        "given_back": (Branch("Q_STAGES == 1", (_FREE,)),),
        "done": (Branch("Q_STAGES > 1", (_FENCE, _FREE)), _BEGUN),
        "load_comes": (_STAGE, Statement("", "mbarrier.wait(q_free.index(stage), begun // Q_STAGES & 1 ^ 1)")),
        "load_done": (_BEGUN,),
        "places": steady_rows.PLACES if again else (),
    }
    texts = {
        "frame": "again" if again else "in_turns",
        "work_frame": "in_turns",
        "load_frame": "in_turns",
        "words": """\
Programs take items in turn. An item is a tile of BLOCK_M queries, or a pair of a late and an early tile. Late tiles of
a group of heads come first; if all tiles have the same amount of work, one head follows the other. In each program one
warp loads, and each worker, a group of four warps, computes 64 of the queries:""",
        "arrivals": "1",
        "counter": "i" if again else "_",
        "places": ", asked, asked_ready" if again else "",
    }
    there = "((half == 0) | (early < tiles - 1 - early))"
    if again:
        there += " & (wanted >> nth & 1 > 0)"
    return Order(numbers, found, found, there, blocks, texts, bundle=(Bundle("order", numbers, packs=False),))


# of a tile that is done again its stage still tells
_OF_STAGE = (
    Statement("tile", "tl.where(again > 0, handed_on(places.index(stage * 3)) // 2, tile)"),
    Statement("b", "tl.where(again > 0, handed_on(places.index(stage * 3 + 1)), b)"),
    Statement("h", "tl.where(again > 0, handed_on(places.index(stage * 3 + 2)), h)"),
    Statement("tile", "tl.where((again > 0) | (item < items), tile, NO_TILE)"),
)


def _as_taken(tile: tuple[Statement, ...], again: bool) -> Order:
    """Packed sequences have slots of tiles, one behind the other as their rows are, and programs take the next one.

    Tiles up to the longest one's length would be empty where lengths are mixed; and how much a tile has to do, no
    program knows before.
    """
    found = (
        Statement("slot", "slots - 1 - item // group % slots"),
        Statement("b, tile", "find_tile(cu_seqlens_q_ptr, slot, sequences, BLOCK_M)"),
        Statement("h", "item // (group * slots) * group + item % group"),
        *(_OF_STAGE if again else ()),
        *tile,
    )
    told = (Statement("tile, again", "number // 2, number % 2"),) if again else ()
    handed = (*told, *tile, _room("q"))
    layout = "gl.SwizzledSharedLayout(1, 1, 1, [0])"
    places = Statement("places", f"gl.allocate_shared_memory(gl.int32, [Q_STAGES * 3, 1], {layout})")
    texts = {
        "frame": "retaken" if again else "as_taken",
        "work_frame": "work_as_taken",
        "handed": "number" if again else "tile",
        "load_frame": "load_retaken" if again else "load_as_taken",
        "words": """\
Programs take the next item when they are free. An item is a tile of BLOCK_M queries; a group of heads goes from the
last row back. In each program one warp loads, and each worker, a group of four warps, computes 64 of the queries:""",
        "arrivals": "2",
        "places": ", places, verdicts" if again else ", places",
    }
    blocks: dict[str, tuple[Block, ...]] = {
        "comes": (),
        "given_back": (),
        "done": (_FENCE,),
        "load_comes": (),
        "load_done": (),
        "places": (places, *(steady_rows.VERDICTS if again else ())),
    }
    numbers = ("items", "slots", "group")
    read = frozenset({*numbers, "tile", "b", "h", "lse_ptr", "q_rows"})
    return Order(numbers, found, handed, "q_start < q_len", blocks, texts, read)


@dataclass(frozen=True)
class KeyOrder:
    """How programs of the backward pass find a tile of keys by its place in the order of all."""

    takes: tuple[str, ...]  # what the function that does takes beside the place
    given: tuple[str, ...]  # what it is given for that
    tells: str  # what it tells beside the tile, in words
    found: tuple[Statement, ...]  # the tile, its sequence and its head
    named: str  # how its sequence, or batch entry, and its key head are called
    heads: str  # text of how many there are, of all sequences if each has tiles of its own
    rows: str  # text of how many rows of keys each has tiles for
    sequences: str = ""  # text of how many sequences have slots of tiles, one behind the other
    room: tuple[Statement, ...] = ()  # how many tiles share the rows that no sequence has

    @property
    def grid(self) -> str:
        """Text of a grid of them, whose programs walk along the tensors of queries."""
        sequences = f", sequences={self.sequences}" if self.sequences else ""
        return f"runtime.grid({self.heads}, {self.rows}, block_n, q, dout, dq_sum{sequences})"

    @property
    def axis(self) -> str:
        """Text of its axis that holds the tiles."""
        return f"runtime.tile_axis({self.rows}, block_n)"

    def placed(self, place: str) -> Statement:
        """The statement that finds which tile of which head stands at a place."""
        return Statement(f"tile, {self.named}", f"place_of({place}, {', '.join(self.given)})")


def of_keys(a: Analysis) -> KeyOrder:
    """The order of a variant's tiles of keys; packed sequences have slots of them, too."""
    head = (
        Statement("behind", "place - grouped * tiles", label="from 0 on: tiles of the last heads, a single group"),
        Statement("first", "tl.where(behind < 0, 0, grouped)"),
        Statement("place", "tl.where(behind < 0, place, behind)"),
        Statement("group", "tl.where(behind < 0, group, joined)"),
        Statement("head", "first + place // (group * tiles) * group + place % group"),
    )
    tile, named = "place // group % tiles", f"b, {a.kv}"
    if not a.storage.cut:
        heads = "Hq // GROUP" if a.spec.grouped else "Hq"
        found = (*head, Statement("tile", tile), Statement("b, head", "head // Hkv, head % Hkv"))
        tells, all_heads = "batch entry and its head, one of Hkv", f"{a.storage.sequences} * k.shape[-2]"
        return KeyOrder(("Hkv", *_OF_KEYS), (heads, *_OF_KEYS), tells, found, named, all_heads, a.storage.longest[1])
    rows = "(k.shape[0] // block_n + cu_seqlens_k.shape[0] - 1) * block_n"
    found = (
        *head,
        Statement("slot", tile),
        Statement("b, tile", "find_tile(cu_seqlens_k_ptr, slot, sequences, BLOCK_N)"),
    )
    takes = ("cu_seqlens_k_ptr", "sequences", *_OF_KEYS, "BLOCK_N")
    return KeyOrder(
        takes,
        takes,
        "sequence and its key head",
        found,
        named,
        "k.shape[-2]",
        rows,
        "cu_seqlens_k.shape[0] - 1",
        (_room("k"),),
    )


def _room(side: Side) -> Statement:
    """How many tiles a packed sequence has, or one more."""
    block = BLOCKS[side]
    shared = "this many tiles share the rows outside all sequences"
    return Statement("room", f"{side}_end // {block} - {side}_offset // {block} + 1", label=shared)
