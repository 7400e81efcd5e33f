"""Draws a mask with characters: in colours on a terminal, else as plain text."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .arrays import EMPTY, FULL, MIXED, UNKNOWN, Mask, Tiling, power
from .picture import BLUE, ORANGE

if TYPE_CHECKING:
    from rich.console import Console

_MOST = 64  # signs per side
_PLAIN, _SHADES = "./#?", "·▒█?"
_MEANING = {FULL: "all visible", MIXED: "some visible", EMPTY: "none visible", UNKNOWN: "not looked into"}
_PART, _DARK, _DIM = "#c79a6b", "#6b5a48", "#4a5058"  # partly visible in a mixed tile, hidden in one, in an empty tile


def draw(mask: Mask, tiling: Tiling, notes: Sequence[str]) -> str:
    """The drawing as text that suits standard output: colours for a terminal, ASCII for a file or a pipe."""
    from rich.console import Console

    console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
    most = min(_MOST, console.width - 2) if console.is_terminal else _MOST
    signs = _signed(mask, tiling, most)
    drawable = console.is_terminal and _encodes(console.encoding)
    if drawable and console.color_system and not console.no_color:
        return _coloured(console, mask, tiling, signs, notes)
    return "\n".join([*_told(mask, tiling, notes), *_signs(signs, _SHADES if drawable else _PLAIN, 1)])


def blocks(mask: Mask, tiling: Tiling, notes: Sequence[str]) -> str:
    """The drawing as text for a page, in block characters, of which two side by side make a square."""
    return "\n".join([*_told(mask, tiling, notes), *_signs(_signed(mask, tiling, _MOST // 2), _SHADES, 2)])


def _signed(mask: Mask, tiling: Tiling, most: int) -> Tiling:
    """The tiles that signs represent: those of the picture, joined if they are smaller."""
    side = _side(mask, most)
    times = side // tiling.size[0], side // tiling.size[1]
    return tiling.coarser(times) if min(times) > 0 else mask.tiles((side, side))


def _signs(signs: Tiling, marks: str, wide: int) -> list[str]:
    keys = [f"{marks[state]} {_MEANING[state]}" for state in _MEANING if state != UNKNOWN or signs.count(UNKNOWN)]
    rows = ["  " + "".join(marks[state] * wide for state in row) for row in signs.states.tolist()]
    return [f"  {'   '.join(keys)}   in {signs.size[0]} x {signs.size[1]} pairs", "", *rows]


def _told(mask: Mask, tiling: Tiling, notes: Sequence[str]) -> list[str]:
    m, n = tiling.size
    named = ((FULL, "full"), (MIXED, "mixed"), (EMPTY, "empty"), (UNKNOWN, "not looked into"))
    counts = ", ".join(f"{tiling.count(s)} {name}" for s, name in named if s != UNKNOWN or tiling.count(s))
    lines = [
        f"{mask.q_len} queries downwards, {mask.k_len} keys to the right",
        f"  tiles of {m} x {n}: {counts}",
    ]
    for who, one in tiling.kernels:
        vain = f", {one.vain} of them empty" if one.vain else ""
        lines.append(f"  {who} {one.visited} of {one.total} tiles{vain}: {100 * one.saved:.1f} % of the work saved")
    return [*lines, *([f"  sample: {'; '.join(notes)}"] if notes else [])]


def _side(mask: Mask, most: int) -> int:
    """The number of queries and of keys that a sign represents."""
    return power(-(-max(mask.q_len, mask.k_len) // max(most, 8)))


def _encodes(encoding: str) -> bool:
    try:
        (_SHADES + "▀■").encode(encoding)
    except (LookupError, UnicodeEncodeError):
        return False
    return True


def _coloured(console: Console, mask: Mask, tiling: Tiling, signs: Tiling, notes: Sequence[str]) -> str:
    """Two rows of signs in each line: half blocks in the colour of the upper row on that of the lower row."""
    from rich.style import Style
    from rich.text import Text

    rows = _colours(tiling, signs)
    key = Text("  ")
    for colour, name in ((BLUE, "full tile"), (ORANGE, "visible in a mixed tile"), (_DARK, "hidden in it")):
        key.append("■ ", colour).append(f"{name}   ")
    key.append("■ ", _DIM).append(f"empty tile   in {signs.size[0]} x {signs.size[0]} pairs")
    lines = [*(Text(line) for line in _told(mask, tiling, notes)), key, Text()]
    for upper, lower in zip(rows[::2], [*rows[1::2], []] if len(rows) % 2 else rows[1::2], strict=True):
        line = Text("  ")
        for i, colour in enumerate(upper):
            line.append("▀", Style(color=colour, bgcolor=lower[i] if lower else None))
        lines.append(line)
    with console.capture() as captured:
        console.print(Text("\n").join(lines), end="")
    return captured.get()


def _colours(tiling: Tiling, signs: Tiling) -> list[list[str]]:
    """The colour of each sign, by its own state and by that of the tile around it."""

    def colour(shown: int, tile: int) -> str:
        if tile in (FULL, EMPTY) and shown == tile:
            return BLUE if tile == FULL else _DIM
        return {FULL: ORANGE, MIXED: _PART, UNKNOWN: _PART, EMPTY: _DARK}[shown]

    around: Any = signs.states
    if signs.size[0] <= min(tiling.size):
        row, key = ([i * signs.size[0] // t for i in range(n)] for n, t in zip(around.shape, tiling.size, strict=True))
        around = tiling.states[row][:, key]
    return [[colour(*pair) for pair in zip(*rows, strict=True)] for rows in zip(signs.states, around, strict=True)]
