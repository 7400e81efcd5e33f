"""The rotary embedding of a spec."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..source import suggestions
from ..source.errors import Problems
from ..source.fields import Fields, number
from ..source.located_yaml import Value

_LAYOUTS = ("half", "interleaved")


@dataclass(frozen=True)
class Rope:
    """Rotary embedding of q and k."""

    layout: Literal["half", "interleaved"]
    dims: int | None = None  # None: all of them

    @property
    def shape(self) -> str:
        """Text of the shape of cos and sin: a column for each pair of components."""
        return f"(positions, {self.dims or 'D'} / 2)"


def read(value: Value | None, problems: Problems) -> Rope | None:
    """The rotary embedding of a spec, if it has one."""
    if value is None or value.data is False:
        return None
    if not value.mapping:
        layout = value.data if value.data in _LAYOUTS else _LAYOUTS[0]
        got = value.shown("mapping", f": write {{layout: {layout}}}")
        problems.add(value.at, f"rope: expected a mapping, got {got}")
        return None
    fields = Fields(value, ("layout", "dims"), problems, meant=suggestions.rope)
    layout = fields.choice("layout", _LAYOUTS, _LAYOUTS[0])
    if "layout" not in fields:
        problems.add(value.at, f"rope: layout is missing, {' or '.join(_LAYOUTS)}")
    dims = None
    given = fields.get("dims")
    if given is not None and given.data != "all":
        found = number(given, "int", problems, "dims")
        if found is not None and (found % 2 or not 2 <= found <= 512):
            problems.add(given.at, f"dims: expected all, or an even number from 2 to 512, got {found}")
        dims = int(found) if found is not None else None
    return Rope("half" if layout == "half" else "interleaved", dims)
