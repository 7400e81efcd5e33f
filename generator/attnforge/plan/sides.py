"""The two sides of a tile: its queries and its keys."""

from __future__ import annotations

from typing import Literal

Side = Literal["q", "k"]
SIDES: tuple[Side, Side] = ("q", "k")
OTHER: dict[Side, Side] = {"q": "k", "k": "q"}
BLOCKS: dict[Side, str] = {"q": "BLOCK_M", "k": "BLOCK_N"}  # the number of rows of a side's tile
RANGE = ("first", "full_first", "full_last", "last")
"""Ends of the range of the other side's tiles that a tile needs, and of the part in which no mask hides anything."""
SIDE_OF: dict[str, Side] = {"query": "q", "key": "k"}  # by the kind of an axis
