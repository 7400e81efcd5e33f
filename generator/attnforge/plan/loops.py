"""The loops in which a kernel visits the tiles of a range; each step calls the function that handles one tile."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from .sides import BLOCKS, RANGE
from .statements import Block, Branch, Call, Comment, Loop, Statement, needed, reads, targets_of
from .tile_ranges import TileRange
from .tile_states import TileStates

Step = Callable[[str, str], Call]
"""Makes the call for a tile, from the texts of whether it is mixed and whether a sequence may end in it."""


@dataclass(frozen=True)
class Loops:
    """How the programs of a kernel visit the tiles of the other side."""

    tiles: TileRange
    states: TileStates | None  # the states of tiles that the call's tensors determine, if any
    step: Step
    joined: bool  # whether mixed and full tiles share a loop, with the mask under a branch
    tails: bool  # whether a tile may hold rows of the next sequence: such tiles have a loop of their own
    narrowed: tuple[Block, ...] = ()  # statements that narrow the range
    backwards: bool = False  # from the last tile to the first
    full_if: str = ""  # a further condition for full tiles
    full_why: str = "keys behind the last one need the mask"
    alike: bool = False  # whether `full_if` alone decides: either all tiles of a program are full, or all take a mask
    masked: bool = False  # whether all tiles take the mask
    stages: int | None = None
    tail_stages: int | None = None
    tails_last: bool = False  # the wrong order makes the assembler serialize products
    known: bool = False  # whether the range has been computed before the loops

    @property
    def start(self) -> str:
        """The first row of a tile."""
        return "k_start" if self.tiles.block == "BLOCK_N" else "q_start"

    @property
    def listed(self) -> TileStates | None:
        """The states of tiles in a list, full ones first, if they are not a range: ranges are then of places in it."""
        return self.states if self.states and not self.states.ranged else None

    @property
    def full(self) -> bool:
        """Whether some tiles may need no mask; lists do not know where documents of running sums end."""
        return self.tiles.full and not (self.listed and self.narrowed)

    @property
    def left(self) -> bool:
        """Whether tiles that need the mask may precede full ones."""
        return self.tiles.left and not self.listed

    def begun(self, place: str) -> Statement:
        """The statement that finds the first row of the tile at a place of the range."""
        if self.listed:
            return Statement(self.start, f"listed({self.listed.own_list}, {place}) * {self.tiles.block}")
        return Statement(self.start, f"{f'({place})' if ' ' in place else place} * {self.tiles.block}")

    @property
    def by_place(self) -> bool:
        """Whether the range depends on the program's tile, so that a part of its rows may have another range."""
        own = "q" if self.tiles.block == "BLOCK_N" else "k"
        told = self.states or len(self.tiles.ends) > 1
        return not told and not {f"{own}_first", f"{own}_last"}.isdisjoint(self.tiles.parameters)

    @property
    def range(self) -> tuple[Block, ...]:
        """The statements that compute the range."""
        return self.range_for(self.visit)

    @property
    def visit(self) -> tuple[Block, ...]:
        """The statements that visit the tiles of one range."""
        return (*self._short, *self._tiles)

    def range_for(self, walk: Iterable[Block]) -> tuple[Block, ...]:
        """The statements that compute the range, with the limits of full tiles only if the loops over it read them."""
        read = reads(walk if self.listed else (*self.narrowed, *walk))
        if not self.states:
            return (Statement(targets_of(RANGE, read), self.tiles.call("span")), *self.narrowed)
        own = self.states.own
        if self.listed:
            found = Statement(targets_of(RANGE, read), f"list_range({self.states.own_list})")
            return (self.states.list_found(f"{own}_start // {BLOCKS[own]}"), found)
        given = (f"{self.states.ranges}_ptr", self.states.place, f"{own}_parts", f"{own}_start", BLOCKS[own])
        found = Statement(targets_of(RANGE, read), f"load_range({', '.join((*given, self.tiles.block))})")
        return (found, *self.narrowed)

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The statements that visit all tiles."""
        spans = len(self.tiles.ends)
        inner = (*(() if self.known else self.range), *self.visit)
        return (Loop("span", "0", str(spans), inner),) if spans > 1 else inner

    @property
    def _short(self) -> tuple[Block, ...]:
        """The statements that count no tile as full if the program's own tile, the last of its side, is short."""
        if not self.full_if or not self.full or "full_last" not in reads(self._tiles):
            return ()
        return (
            Comment(self.full_why),
            Statement("full_last", f"tl.where({self.full_if}, full_last, full_first)"),
        )

    @property
    def _tiles(self) -> tuple[Block, ...]:
        if self.alike:
            full, mixed = (self._loop("first", "last", mixed=kind, tail=kind) for kind in ("False", "True"))
            return (full,) if full == mixed else (Branch(self.full_if, (full,), (mixed,)),)
        if self.masked or not self.full:
            return (self._loop("first", "last", mixed="True", tail="True"),)
        if not self.joined or (self.tails and self.listed):
            return self._apart
        if self.tails and self.tiles.whole:
            return (
                self._loop("full_last", "last", self.tail_stages, mixed="True", tail="True"),
                self._loop("0", "full_last", mixed="False", tail="False"),
            )
        if self.backwards:
            why = "a branch between products of this width costs more than separate loops for mixed tiles"
            return (Branch("BLOCK_DV <= 128", self._together, (Comment(why), *self._apart)),)
        return self._together

    @property
    def _together(self) -> tuple[Block, ...]:
        """Mixed and full tiles in one loop."""
        mixed = "(i < full_first) | (i >= full_last)" if self.left else "i >= full_last"
        end = "inner" if self.tails else "last"
        tile: tuple[Statement, ...] = (self.begun("i"), Statement("mixed", mixed))
        if self.backwards:
            tile = (Statement("i", f"first + {end} - 1 - j", label="descending from the diagonal"), *tile)
        call = self.step("mixed", "False")
        body: tuple[Block, ...] = (*needed(tile, call.reads), call)
        loop = Loop("j" if self.backwards else "i", "first", end, body, self.stages)
        if not self.tails:
            return (loop,)
        inner = f"tl.minimum(tl.maximum({self.tiles.count} // {self.tiles.block}, first), last)"
        tails = self._loop("inner", "last", self.tail_stages, mixed="True", tail="True")
        return (
            Comment("tiles before `inner` lie within the sequence"),
            Statement("inner", inner),
            *((loop, tails) if self.tails_last else (tails, loop)),
        )

    @property
    def _apart(self) -> tuple[Block, ...]:
        """Mixed tiles in loops of their own; backwards, keys are summed in the same order whichever tiles are mixed."""
        # if all keys are seen, which of them need a mask does not depend on a row's own tile
        loop = self._loop_back if self.backwards and not self.tiles.whole else self._loop
        after = loop("full_last", "last", mixed="True", tail="True")
        full = loop("full_first", "full_last", mixed="False", tail="False")
        if not self.left:
            return (after, full)
        if self.backwards:
            return (after, full, loop("first", "full_first", mixed="True", tail="True"))
        tile = f"tl.where(i < left, first + i, full_last + i - left) * {self.tiles.block}"
        body = (Statement(self.start, tile), self.step("True", "True"))
        count = Statement("left", "full_first - first")
        return (count, Loop("i", "0", "left + last - full_last", body, self.stages), full)

    def _loop(self, begin: str, end: str, stages: int | None = None, *, mixed: str, tail: str) -> Loop:
        call = self.step(mixed, tail)
        body: tuple[Block, ...] = (*needed((self.begun("i"),), call.reads), call)
        return Loop("i", begin, end, body, stages or self.stages)

    def _loop_back(self, begin: str, end: str, *, mixed: str, tail: str) -> Loop:
        # counting in another way, such as by steps of -1, makes the assembler serialize products
        body = (self.begun(f"{end} - 1 - i"), self.step(mixed, tail))
        return Loop("i", "0", f"{end} - {begin}", body, self.stages)
