"""The language of specs as typed models, and the JSON Schema that editors read.

The loader reports mistakes with their places, which no schema can; this one is for completion and hints while typing.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, RootModel

from . import resources
from .parser import LARGEST_TABLE

Axis = Literal["batch", "head", "kv_head", "query", "key", "token"]
Blocks = Annotated[str, Field(pattern=r"^(query|key) *// *[1-9][0-9]*$")]
Word = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=60)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


class InputModel(_Model):
    """A tensor (or, without axes, a number) that expressions read and `attention` takes as a keyword."""

    axes: list[Axis | Annotated[int, Field(ge=1, le=LARGEST_TABLE)] | Blocks] = Field(
        description="What the tensor is indexed by: a number is the size of a table, [] means a number of the call."
    )
    dtype: Literal["float", "int", "bool"] = "float"
    grad: bool = Field(False, description="Whether it gets a gradient; float inputs of score terms only.")
    scan: Literal["cumsum"] | None = Field(None, description="Terms read its cumulative sum over the tokens.")
    default: str | float | None = Field(
        None, description="Its value where none is given: an expression of h and heads."
    )
    description: str = ""


class RopeModel(_Model):
    """Rotary embedding of q and k."""

    layout: Literal["half", "interleaved"]
    dims: Literal["all"] | Annotated[int, Field(ge=2, le=256, multiple_of=2)] = "all"


class TermModel(RootModel[str | dict[str, Any]]):
    """A term: its name, its name with options, `expr` with an expression, or `any`, `all` and `not` of masks."""


class SpecModel(_Model):
    """One attention variant."""

    name: Word = Field(description="The file's name without .yaml; names the generated package.")
    group: str = Field("", max_length=300, description="Where `attnforge list` shows it.")
    description: str = Field("", max_length=300)
    citation: str = Field("", max_length=300, description="The paper or model that it stems from.")
    layout: Literal["dense", "packed"] = "dense"
    heads: Literal["grouped", "equal"] = "grouped"
    rope: RopeModel | Literal[False] | None = None
    mask: list[TermModel] = Field([], description="A key is visible when every term allows it.")
    score: list[TermModel] = Field([], description="Applied in order to score = scale * (q . k).")
    sink: bool = Field(False, description="A learned logit of each query head joins the denominator: `sinks`.")
    dropout: bool = Field(False, description="Dropout of the weights, after the softmax: `dropout_p` and `seed`.")
    inputs: dict[Word, InputModel] = Field({}, description="What the inline expressions of this file read.")
    targets: list[Literal["portable"]] = ["portable"]


def schema() -> dict[str, Any]:
    """The JSON Schema of a spec, with the names of the shipped terms as suggestions."""
    made = SpecModel.model_json_schema()
    made["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    made["title"] = "An attnforge spec"
    words = sorted(path.stem for path in (resources.specs() / "terms").glob("*.yaml"))
    made["$defs"]["TermModel"]["anyOf"][0]["examples"] = words
    return made
