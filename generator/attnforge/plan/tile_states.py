"""Tile states of a mask that reads tensors: the tiles that are empty, full or mixed in a call.

A small kernel notes the least and the greatest value that the mask reads along each tile of queries and of keys; those
of blocks are found where they are needed. From these extremes the mask is evaluated over intervals, for many tiles at a
time: the result is a range of tiles or, for blocks, a list.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property

from ..expressions import sharing
from ..expressions.tree import Node
from ..language.spec import Spec
from ..printing import printers
from ..tiling import intervals
from ..tiling.intervals import FALSE, TRUE, Ends
from . import positions
from .access import Access
from .kernel_inputs import KernelInputs
from .sides import BLOCKS, OTHER, Side
from .statements import Statement, label, needed, reads, serving, targets

_ZERO = Node("num", (), 0, "int")


@dataclass(frozen=True)
class TileStates:
    """The states of one side's tiles, as found by programs that own tiles of the other side."""

    spec: Spec
    own: Side

    @cached_property
    def inputs(self) -> KernelInputs:
        """The masks alone, as these programs read them."""
        return KernelInputs(dataclasses.replace(self.spec, scores=()), self.own)

    @property
    def _accesses(self) -> tuple[Access, ...]:
        """The accesses that could tell tiles apart: none for programs that own more than one tile."""
        return self.inputs.accesses if self.spec.algorithm.by_query else ()

    @property
    def function(self) -> str:
        """The name of the function that computes the states."""
        return "key_states" if self.own == "q" else "query_states"

    @property
    def block(self) -> str:
        """The size of the other side's tiles."""
        return BLOCKS[OTHER[self.own]]

    def noted(self, side: Side) -> tuple[Access, ...]:
        """The accesses along one side whose extremes are noted for each tile of that side."""
        whole = (access for access in self._accesses if access.input.dtype != "float")
        return tuple(access for access in whole if self.inputs.extent(access) == {side})

    @property
    def blocks(self) -> tuple[Access, ...]:
        """The accesses with one entry for several positions of a side: few enough to be examined directly."""
        return tuple(access for access in self._accesses if max(access.shared.values(), default=1) > 1)

    @property
    def tellers(self) -> tuple[Access, ...]:
        """All accesses whose extremes tell tiles apart."""
        return (*self.noted("q"), *self.noted("k"), *self.blocks)

    @property
    def any(self) -> bool:
        """True if the mask reads anything that determines the states of tiles."""
        return bool(self.tellers)

    @property
    def ranged(self) -> bool:
        """True if the tiles to visit are a range; blocks leave holes in it, so those tiles are listed one by one."""
        return not self.blocks

    @property
    def walked(self) -> bool:
        """True if kernels visit tiles of the other side at all."""
        return OTHER[self.own] in self.spec.algorithm.walks

    @property
    def ranges(self) -> str:
        """The name of the tensor of ranges."""
        return "key_ranges" if self.own == "q" else "query_ranges"

    @property
    def lists(self) -> str:
        """The name of the tensor of lists of tiles, if they are not ranges."""
        return "key_lists" if self.own == "q" else "query_lists"

    @property
    def own_list(self) -> str:
        """The name of the list for a program's own tile."""
        return self.lists.removesuffix("s")

    def list_found(self, tile: str) -> Statement:
        """The statement that finds the list for a tile; `tile` is text of its index."""
        place = f"{self.place.strip('()')}, {tile}, {self.own}_tiles, {OTHER[self.own]}_tiles"
        return Statement(self.own_list, f"tile_list({self.lists}_ptr, {place})")

    @cached_property
    def noting_names(self) -> set[str]:
        """The names that the kernel that notes extremes uses, for both sides."""
        return set(reads(statement for side in self._sides for statement in side.noting))

    @cached_property
    def telling_names(self) -> set[str]:
        """The names that a kernel uses that finds the states of these tiles from extremes."""
        return {*targets(self.telling), *reads(self.telling), *self.parameters}

    @cached_property
    def _sides(self) -> tuple[TileStates, TileStates]:
        return self, TileStates(self.spec, OTHER[self.own])

    @property
    def per_head(self) -> bool:
        """True if the notes of query heads differ."""
        told = (name for side in self._sides for name in side.telling_names)
        return bool({"h", "kv_h"} & {*self.noting_names, *told})

    @property
    def place(self) -> str:
        """Text of the index of this batch entry's and head's notes."""
        return "(b * Hq + h)" if self.per_head else "b"

    def notes(self, side: Side) -> tuple[Statement, ...]:
        """The statements that load the extremes of one side: of the own tile, or of the tiles in question."""
        width, noted = 2 * len(self.noted(side)), self.noted(side)
        lines = []
        for i, access in enumerate(noted):
            for j, end in enumerate(("least", "most")):
                place = f"{side}_bounds_base" + (f" + tile * {width}" if side != self.own else "")
                place += f" + {2 * i + j}" if i + j else ""
                place += f", mask=tile < {side}_tiles, other=0" if side != self.own else ""
                lines.append(Statement(f"{access.name}_{end}", f"tl.load({place})"))
        return tuple(lines)

    def bases(self, tile: str) -> tuple[Statement, ...]:
        """The statements that locate the notes; `tile` is the index of the program's own tile."""
        lines = []
        for side in ("q", "k"):
            width = 2 * len(self.noted(side))
            if width:
                own = f" + {tile}" if side == self.own else ""
                place = f"tl.cast({self.place} * {side}_tiles{own}, tl.int64) * {width}"
                lines.append(Statement(f"{side}_bounds_base", f"{side}_bounds_ptr + {place}"))
        return tuple(lines)

    @cached_property
    def _shared(self) -> tuple[tuple[list[tuple[str, Node]], list[Node]], ...]:
        """For each mask the named parts that `every` and `some` share, and the two in terms of these parts."""
        ends = (intervals.condition(mask.keep, self.known) for mask in self.spec.masks)
        return tuple(sharing.share(list(found), f"state{i}_") for i, found in enumerate(ends))

    @cached_property
    def conditions(self) -> tuple[tuple[Statement, ...], ...]:
        """For each mask the statements that derive `some` and `every` from a tile's extremes: it shows any, or all."""
        found = []
        for i, (mask, (shared, (every, some))) in enumerate(zip(self.spec.masks, self._shared, strict=True)):
            lines = [Statement(name, self._text(node)) for name, node in shared]
            for name, node in (("some", some), ("every", every)):
                if node != TRUE:
                    value = "tile < 0" if node == FALSE else self._text(node)
                    lines.append(Statement(name, value, "&=", label(mask.label)))
            found.append(serving({("mask", i)}, lines))
        return tuple(found)

    @property
    def extremes(self) -> tuple[Statement, ...]:
        """The statements that find the extremes of the blocks that tiles overlap."""
        lines = []
        for access in self.blocks:
            row = [positions.row(end) for end in ("q_first", "q_last")]
            ends = {"q": (*row, "query"), "k": ("k_first", "k_last", "key")}
            texts = []
            for side in (self.own, OTHER[self.own]):
                (first, last, kind), per = ends[side], access.shared[side]
                at_once = _at_once(per, access.shared[OTHER[side]])
                texts.append(f"{first}, {last}, {per}, {at_once}, {access.input.name}_stride_{kind}")
            call = f"block_extremes({self.inputs.base(access.input)}, {', '.join(texts)}, {self.block})"
            lines.append(Statement(f"{access.name}_least, {access.name}_most", call))
        return tuple(lines)

    @property
    def body(self) -> tuple[Statement, ...]:
        """The function's statements, up to `some` and `every`."""
        other = OTHER[self.own]
        past = positions.of("q_len") if other == "q" else "k_len"
        return (
            *positions.ends(other, f"tile * {self.block}"),
            *self.notes(other),
            *self.extremes,
            Statement("some", f"{other}_first <= {other}_last"),
            Statement("every", f"{other}_first + {self.block} <= {past}"),
            *(statement for found in self.conditions for statement in found),
        )

    @property
    def parameters(self) -> tuple[str, ...]:
        """The function's parameters besides the tiles in question and their size."""
        other = OTHER[self.own]
        states = (statement for found in self.conditions for statement in found)
        named = reads((*states, *self.extremes, *self.notes(other)))
        named |= {"k_len"} if self.own == "q" else {"q_len", positions.BEGIN}
        made = {f"{access.name}_{end}" for access in (*self.noted(other), *self.blocks) for end in ("least", "most")}
        made |= {f"{other}_first", f"{other}_last"}
        own = [f"{access.name}_{end}" for access in self.noted(self.own) for end in ("least", "most")]
        loaded = targets((*self.inputs.loads("program"), *self.inputs.loads("head")))
        candidates = [f"{self.own}_first", f"{self.own}_last", "q_len", "k_len", positions.BEGIN]
        candidates += ["b", "h", "kv_h", *own]
        candidates += [f"{other}_bounds_base", f"{other}_tiles", *loaded, *self.inputs.arguments]
        return tuple(name for name in dict.fromkeys(candidates) if name in named and name not in made)

    @property
    def helpers(self) -> tuple[str, ...]:
        """The functions that the text of the statements calls."""
        if not self.any:
            return ()
        nodes = [node for shared, roots in self._shared for node in (*(part for _, part in shared), *roots)]
        return printers.triton_helpers(nodes)

    @property
    def noting(self) -> tuple[Statement, ...]:
        """The statements that load the values of the own side whose extremes are noted."""
        return self._loads({access.name for access in self.noted(self.own)})

    @property
    def telling(self) -> tuple[Statement, ...]:
        """The statements that load the other values on which the states depend."""
        return self._loads(set(self.parameters))

    def _loads(self, names: set[str]) -> tuple[Statement, ...]:
        made = needed((*self.inputs.loads("program"), *self.inputs.loads("head")), names)
        # numbers get their type before any branch, as no branch may change the type of a name
        return tuple(statement for statement in made if statement not in self.numbers)

    @cached_property
    def numbers(self) -> tuple[Statement, ...]:
        """The statements that turn the call's numbers into values of the kernel language."""
        return tuple(self.inputs.numbers())

    def _text(self, node: Node) -> str:
        return self.inputs.text(node)

    def known(self, node: Node) -> Ends | None:
        """The least and greatest value of an access over a tile, or None if they are not known."""
        if node.op == "var" and node.value in ("q", "k"):
            return Ends(*(Node("local", (), f"{node.value}_{end}", "int") for end in ("first", "last")))
        if node.op != "input":
            return Ends(node, node) if node.type == "int" else None
        access = self.inputs.access(node)
        if access.input.dtype == "float":
            return None
        if not self.inputs.extent(access):
            return Ends(node, node)
        if access not in self.tellers:
            return None
        least, most = (Node("local", (), f"{access.name}_{end}", "int") for end in ("least", "most"))
        if access.input.dtype == "int":
            return Ends(least, most)
        return Ends(*(Node("!=", (end, _ZERO), None, "bool") for end in (least, most)))


def _at_once(per: int, per_other: int) -> int:
    """How many entries along one side are loaded together, a power of 2: of both sides at most 32 for each tile."""
    return 16 if per < 16 <= per_other else 2 if per >= 16 else 4
