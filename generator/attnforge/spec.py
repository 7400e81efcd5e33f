"""YAML text -> frozen, typed objects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .expression import Node


@dataclass(frozen=True)
class Input:
    """A tensor (or, without axes, a scalar) that expressions read and `attention` takes as a keyword."""

    name: str
    axes: tuple[str, ...]
    dtype: Literal["float", "int", "bool"] = "float"
    grad: bool = False
    scan: Literal["cumsum"] | None = None
    default: Node | None = None  # over b, h, kv_h, q, k, heads
    description: str = ""


@dataclass(frozen=True)
class RuntimeOption:
    """A term's option that the spec left to the call; becomes a keyword of `attention`."""

    keyword: str
    type: Literal["int", "float"]
    minimum: float | None = None
    maximum: float | None = None


@dataclass(frozen=True)
class MaskTerm:
    label: str  # as the user would name it: "causal", "any(causal, prefix)", the text of an inline expression
    keep: Node


@dataclass(frozen=True)
class ScoreTerm:
    label: str
    score: Node


@dataclass(frozen=True)
class Rope:
    layout: Literal["half", "interleaved"]
    dims: int | None = None  # None: all of them


@dataclass(frozen=True)
class Spec:
    """One attention variant. Names of options and inputs are final: unique, and free of the kernels' own names."""

    name: str
    description: str
    source: str  # the file's name as the generated code mentions it, e.g. "specs/causal.yaml"
    packed: bool = False
    grouped: bool = True
    rope: Rope | None = None
    masks: tuple[MaskTerm, ...] = ()
    scores: tuple[ScoreTerm, ...] = ()
    inputs: tuple[Input, ...] = ()  # in the order of the keywords
    options: tuple[RuntimeOption, ...] = ()
    text: str = ""  # the canonical text of the spec and its terms, for the content hash
