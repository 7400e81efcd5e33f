"""The order in which programs for Hopper GPUs take tiles: of queries in the forward pass, of keys in the backward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...analysis import Analysis
from ...loops import Loops
from ...parameters import Parameter
from ...sides import BLOCKS, Side
from ...statements import Block, Branch, Bundle, Loop, Statement
from . import steady_rows

_STAGE = Statement("stage", "begun % Q_STAGES")
_BEGUN = Statement("begun", "1", "+=")
# makes what threads wrote to a stage visible to the copies that follow
_FENCE = Statement("", "fence_async_shared()")
_FREE = Statement("", "mbarrier.arrive(q_free.index(stage), count=1)")
_OF_KEYS = ("tiles", "group", "grouped", "joined")


@dataclass(frozen=True)
class Order:
    """How programs of the forward pass find their next tile of queries."""

    numbers: tuple[str, ...]  # the arguments with which a launch describes the order
    found: tuple[Statement, ...]  # the statements with which the loader finds an item's tile, sequence and head
    handed: tuple[Statement, ...]  # the statements with which workers find them
    there: str  # text of the condition that the tile has queries
    blocks: dict[str, tuple[Block, ...]]  # statements of the kernel that depend on the order
    texts: dict[str, str]  # texts of the kernel that do
    read: frozenset[str] = frozenset()  # further names that the loader reads for it
    bundle: tuple[Bundle, ...] = ()  # the numbers as one tuple, if all warps take them
    ranked: tuple[Parameter, ...] = ()  # the parameter that gives the order if rows are left out
    counted: tuple[Block, ...] = ()  # the statements that count its items then

    @property
    def given(self) -> tuple[str, ...]:
        """The arguments of workers and the loader for it, besides single values."""
        return tuple(bundle.name for bundle in self.bundle)


def build(a: Analysis, again: bool) -> Order:
    """The order of a variant's tiles; `again`: whether some tiles may be computed a second time."""
    tile = (*a.key_head, Statement("q_start", "tile * BLOCK_M"), *a.storage.found("qk"))
    return _as_taken(tile, again) if a.storage.cut else _in_turns(tile, again)


def loads(
    spanned: Callable[[tuple[Block, ...]], tuple[Block, ...]], load: tuple[Block, ...], at_once: bool
) -> dict[str, tuple[Block, ...]]:
    """The loader's statements for a query tile's tiles of keys: before it waits for room for the queries, and after.

    With a single stage, memory for queries becomes free late, so the first keys are loaded before them. Not if there is
    room `at_once`, as the loader waited for it to find the tile, or if tiles of keys are in several ranges.
    """
    if at_once:
        return {"load_ahead": (), "load_visit": spanned((Loop("j", "first", "last", load),))}
    first = (Statement("ahead", "tl.minimum(first + 1, last)"), Loop("j", "first", "ahead", load))
    return {
        "load_ahead": spanned((Statement("ahead", "first"), Branch("Q_STAGES == 1", first))),
        "load_visit": (Loop("j", "ahead", "last", load),),
    }


def visited(loops: Loops) -> str:
    """The order in which a worker visits tiles of keys, in words."""
    each = " of each range" if len(loops.tiles.ends) > 1 else " in a list" if loops.listed else ""
    kinds = "mixed tiles, then full ones" if loops.full else "the mask applies to all of them"
    kinds = "mixed tiles, full ones, and mixed ones again" if loops.full and loops.left else kinds
    return f"Tiles of keys{each} are visited from the last to the first: {kinds}."


def _in_turns(tile: tuple[Statement, ...], again: bool) -> Order:
    """The order for sequences with equally many tiles: all warps can compute whose is which; items may be pairs."""
    found = (
        Statement("early", "place[1]"),
        Statement("tile", "tl.where(half == 0, tiles - 1 - early, early)"),
        Statement("head", "place[0] * group + place[2]"),
        Statement("b, tile, h", "find_item(head, tile, i, ranked_ptr, Hq)"),
        *((Statement("nth", "(i * per_item + half) % 32"),) if again else ()),
        *tile,
    )
    numbers = ("items", "tiles", "group", "per_item")
    rounds = Statement("items", "tl.cdiv(tl.load(ranked_ptr) * Hq, tl.num_programs(0)) * tl.num_programs(0)")
    counted = Branch("ranked_ptr is not None", (rounds,))
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
a group of heads come first; if all tiles have the same amount of work, one head follows the other. In a call that
leaves rows out, tiles are ranked by their work. In each program one warp loads, and each worker, a group of four warps,
computes 64 of the queries:""",
        "arrivals": "1",
        "places": ", asked, asked_ready" if again else "",
    }
    there = "((half == 0) | (early < tiles - 1 - early)) & (q_start < q_len)"
    if again:
        there += " & (wanted >> nth & 1 > 0)"
    return Order(
        numbers,
        found,
        found,
        there,
        blocks,
        texts,
        bundle=(Bundle("order", numbers, packs=False),),
        ranked=(Parameter("ranked_ptr", "*i32", "ranked", absent=True),),
        counted=(counted,),
    )


# for a tile that is computed again, its stage still holds these numbers
_OF_STAGE = (
    Statement("tile", "tl.where(again > 0, handed_on(places.index(stage * 3)) // 2, tile)"),
    Statement("b", "tl.where(again > 0, handed_on(places.index(stage * 3 + 1)), b)"),
    Statement("h", "tl.where(again > 0, handed_on(places.index(stage * 3 + 2)), h)"),
    Statement("tile", "tl.where((again > 0) | (item < items), tile, NO_TILE)"),
)


def _as_taken(tile: tuple[Statement, ...], again: bool) -> Order:
    """The order for packed sequences: slots of tiles, one after another like their rows; programs take the next slot.

    With as many tiles per sequence as the longest one has, many would be empty if lengths are mixed; and no program
    knows in advance how much work a tile is.
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

    takes: tuple[str, ...]  # the parameters of the function that does so, besides the place
    given: tuple[str, ...]  # the arguments for them
    tells: str  # what it returns besides the tile, in words
    found: tuple[Statement, ...]  # the statements that find the tile, its sequence and its head
    named: str  # the names of its sequence, or batch entry, and of its key head
    heads: str  # text of the number of heads, of all sequences if each has tiles of its own
    rows: str  # text of the number of rows of keys for which each has tiles
    sequences: str = ""  # text of the number of sequences that have slots of tiles, one after another
    room: tuple[Statement, ...] = ()  # counts the tiles that share the rows outside all sequences

    @property
    def grid(self) -> str:
        """Text of a grid over these tiles, whose programs walk along the tensors of queries."""
        sequences = f", sequences={self.sequences}" if self.sequences else ""
        return f"runtime.grid({self.heads}, {self.rows}, block_n, q, dout, dq_sum{sequences})"

    @property
    def axis(self) -> str:
        """Text of the grid axis that holds the tiles."""
        return f"runtime.tile_axis({self.rows}, block_n)"

    def placed(self, place: str) -> Statement:
        """The statement that finds the tile and the head at a place."""
        return Statement(f"tile, {self.named}", f"place_of({place}, {', '.join(self.given)})")


def of_keys(a: Analysis) -> KeyOrder:
    """The order of a variant's tiles of keys; packed sequences have slots here as well."""
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
    """The statement that counts a packed sequence's tiles; the result may be one more."""
    block = BLOCKS[side]
    shared = "this many tiles share the rows outside all sequences"
    return Statement("room", f"{side}_end // {block} - {side}_offset // {block} + 1", label=shared)
