"""A spec -> the plan that templates print: what each kernel loads, loops over, adds, masks and differentiates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Argument:
    """A keyword argument of `attention` and `reference` that stems from a term, an input or the rope."""

    name: str
    kind: Literal["tensor", "scalar"]
    dtype: Literal["float", "int", "bool"]
    axes: tuple[str, ...] = ()  # of a tensor: batch, head, kv_head, query, key, token
    grad: bool = False
    scan: bool = False
    optional: bool = False
    default: str | None = None  # torch text that makes it when it is not given
    minimum: float | None = None
    maximum: float | None = None
    doc: str = ""
