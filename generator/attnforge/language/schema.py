"""The language of specs as typed models, and the JSON Schema that editors read.

The loader reports mistakes with their places, which no schema can; this one is for completion and hints while typing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, RootModel

from ..expressions.parser import LARGEST_TABLE
from ..source import resources
from . import let, names
from .spec import MOST_TERMS

Axis = Literal["batch", "head", "kv_head", "query", "key", "token"]
Divided = Annotated[str, Field(pattern=r"^(query|key) *// *[1-9][0-9]*$|^batch *(//|%) *([1-9][0-9]*|[A-Za-z]\w*)$")]
Size = Annotated[int, Field(ge=1, le=LARGEST_TABLE)]
Word = Annotated[str, Field(pattern=f"^{names.IDENTIFIER.pattern}$", max_length=60)]
Line = Annotated[str, Field(max_length=300)]


@dataclass(frozen=True)
class AxisMeaning:
    """Kinds of axes of an input, and how expressions read them."""

    axes: tuple[str, ...]
    holds: str
    read: str


AXES = (
    AxisMeaning(("batch", "head", "kv_head"), "one entry for each", "implicitly"),
    AxisMeaning(
        ("query", "key"),
        "one entry for each row of that side",
        "implicitly; if it occurs twice, explicitly: `tree_mask[q, k]`",
    ),
    AxisMeaning(("query // 64", "key // 64"), "one entry for 64 positions of that side", "implicitly"),
    AxisMeaning(("batch // 8", "batch // rows"), "one entry for that many consecutive batch entries", "implicitly"),
    AxisMeaning(("batch % 8", "batch % windows"), "that many entries, which batch entries use in turn", "implicitly"),
    AxisMeaning(
        ("token",),
        "one entry for each key; no more queries than keys",
        "explicitly, at any whole number within its bounds: `x[q]`, `x[max(k - 1, 0)]`",
    ),
    AxisMeaning(
        ("32",),
        "a table of 32 entries",
        "explicitly: `table[min(abs(q - k), 31)]`; an index outside is moved to the nearest entry",
    ),
)


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


class InputModel(_Model):
    """A tensor (or, without axes, a number) that expressions read and `attention` takes as a keyword."""

    axes: list[Axis | Size | Divided] = Field(
        max_length=6,
        description="The axes of the tensor, in any order; `[]`: a number of the call.",
    )
    dtype: Literal["float", "int", "bool"] = Field("float", description="The type of its values; `bool`: truth values.")
    grad: bool = Field(False, description="Whether it gets a gradient: float inputs of score terms only.")
    scan: Literal["cumsum"] | None = Field(
        None,
        description="Expressions see the cumulative sum over tokens, summed in float64 and restarted at each sequence. "
        "A value of -inf begins a new document: it adds nothing, and neither side of it is visible from the other. "
        "So does a value of -4096 or less if the input has `max: 0`, only its sums change `scale * (q . k)`, and a "
        "causal mask shows each query its own key: weights across it are 0 as long as scores differ by less. Of 4096 "
        "queries or more, keys so far back that their weights are 0 are then not visited.",
    )
    default: bool | str | float | None = Field(
        None,
        description="Its value, or that of all its entries, if the call gives none: a number or truth value. For "
        "numbers with the single axis `head` it may be an expression of `h` and `heads`.",
    )
    min: float | None = Field(
        None,
        description="The smallest value: checked for a number of the call, promised by the caller for a tensor; "
        "samples and tests keep to it.",
    )
    max: float | None = Field(None, description="The largest value, likewise.")
    description: Line = Field("", description="What it is; goes into the docstring of `attention`.")


class RopeModel(_Model):
    """Rotary embedding of q and k by `cos` and `sin`."""

    layout: Literal["half", "interleaved"] = Field(
        description="`half`: component i is paired with component i + dims / 2; `interleaved`: neighbours are paired."
    )
    dims: Literal["all"] | Annotated[int, Field(ge=2, le=512, multiple_of=2)] = Field(
        "all", description="How many components are rotated: the first ones."
    )


class DomainModel(_Model):
    """The scores for which the formula is defined; at least one limit."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    min: float | None = Field(None, description="The smallest score.")
    max: float | None = Field(None, description="The largest score.")


Parts = Annotated[dict[Word, str | float], Field(min_length=1, max_length=let.MOST)]
_PARTS = "Names for parts of the expression, which it and later names may read."


class InlineModel(_Model):
    """A term that no other spec has."""

    expr: str = Field(description="For a mask: the condition under which a key is visible; for a score: its new value.")
    let: Parts | None = Field(None, description=_PARTS)


class TermModel(RootModel[str | InlineModel | dict[str, Any]]):
    """A term: its name, its name with options, `expr` with an expression and its `let`, or `any`, `all` and `not`."""


class SpecModel(_Model):
    """One attention variant."""

    name: Word = Field(description="The file's name without `.yaml`; the name of the generated package.")
    description: Line = Field("", description="Included in the generated docstrings.")
    citation: Line = Field("", description="The model or paper that it comes from; included there too.")
    group: Line = Field("", description="The heading under which `attnforge list` shows it.")
    layout: Literal["dense", "packed"] = Field(
        "dense",
        description="`dense`: batches of equal lengths; "
        "`packed`: sequences of any lengths in one tensor, delimited by `cu_seqlens`.",
    )
    heads: Literal["grouped", "equal"] = Field(
        "grouped",
        description="`grouped`: the query heads are any multiple of the key heads (MHA, GQA, MQA); "
        "`equal`: the same number of both.",
    )
    rope: RopeModel | Literal[False] | None = Field(None, description="Rotary embedding of q and k.")
    mask: list[TermModel] = Field(
        [], max_length=MOST_TERMS, description="A key is visible if every term allows it; without a list, every key is."
    )
    score: list[TermModel] = Field(
        [],
        max_length=MOST_TERMS,
        description="Applied in order to `score = scale * (q . k)`, in natural-log units.",
    )
    domain: DomainModel | None = Field(
        None,
        description="The scores, `scale * (q . k)`, for which the first term is defined: a promise of the caller, "
        "which tests and samples keep.",
    )
    sink: bool = Field(
        False,
        description="`sinks` (Hq,), a learned logit for each query head, is added to the denominator and has no value.",
    )
    dropout: bool = Field(
        False, description="Drops a share `dropout_p` of the weights, after the softmax, selected by `seed`."
    )
    latent: bool = Field(
        False,
        description="Allows q and k head sizes up to 576, for absorbed latent attention: v is a view of the "
        "first 512 columns of k. Not with an earlier `algorithm`.",
    )
    algorithm: Literal["flash2", "flash1", "flash2_strided_k"] = Field(
        "flash2",
        description="The order in which kernels work, for measuring what each historical step brought. "
        "`flash2`: a program owns a tile of queries and loops over keys; `flash1`: a program owns a head and, for each "
        "tile of keys, goes through all queries, whose sums are kept in memory; `flash2_strided_k`: as `flash2`, but "
        "keys are loaded as columns. The last two have only the forward pass, so no input may have `grad`.",
    )
    inputs: dict[Word, InputModel] = Field(
        {}, description="Extra tensors and numbers that the inline expressions of this file read."
    )
    targets: list[Literal["portable", "hopper"]] = Field(
        ["portable", "hopper"],
        min_length=1,
        description="Which kernels to render: `portable` ones for any GPU, and those for Hopper GPUs, if the variant "
        "has any. `hopper` includes the portable ones, which run the calls that it does not support.",
    )
    exports: list[Literal["decode", "transformers", "module", "statistics", "context_parallel"]] = Field(
        [],
        description="Additional files of the package. `decode`: `decode.py`, which attends to dense and paged caches; "
        "not with `dropout` or an earlier `algorithm`. `transformers`: `transformers.py`, which registers the "
        "variant with models of that library; not with an earlier `algorithm`, `rope` other than `{layout: half}`, or "
        "terms that read `q` in a spec that is not causal. `module`: `module.py`, a layer with projections, norms, "
        "angles and a cache; not with `latent` or an earlier `algorithm`. `statistics`: `statistics.py`, with which "
        "`attention` returns, on request, the largest logit of each head and the sum of the weights that each key "
        "receives, and with `decode` also `attend_with_cache` the latter; not with an earlier `algorithm`. "
        "`context_parallel`: `context_parallel.py`, attention of tokens that are distributed over several GPUs; not "
        "with `latent`, an earlier `algorithm`, terms that read `q_len`, or packed sequences with terms that read `q` "
        "and are not causal.",
    )


class OptionModel(_Model):
    """A number or truth value that specs give to a term."""

    type: Literal["int", "float", "bool"] = Field(description="Its type.")
    min: float | str | None = Field(
        None, description="The smallest value: a number, or an expression of options that a spec fixes."
    )
    max: float | None = Field(None, description="The largest value.")
    default: float | bool | None = Field(
        None, description="Its value if a spec gives none; without a default it is required."
    )
    runtime: Word | None = Field(
        None, description="The keyword of `attention` that it becomes if a spec leaves it to the call."
    )


class TermInputModel(InputModel):
    """An input of a term, whose sizes may be given by options."""

    axes: list[Axis | Size | Annotated[str, Field(pattern=r"^((query|key) *// *|batch *(//|%) *)?\w+$")]] = Field(
        max_length=6,
        description="As in a spec; an integer option may give the size of a table or of blocks.",
    )


class TermFileModel(_Model):
    """A term, in a file of its own."""

    name: Word = Field(description="The file's name without `.yaml`; what specs call it.")
    kind: Literal["mask", "score"] = Field(description="Whether it is a mask or a score term.")
    description: Line = Field(description="What it does.")
    options: dict[Word, OptionModel] = Field({}, description="The options that specs set.")
    inputs: dict[Word, TermInputModel] = Field({}, description="Keywords of `attention` that it reads.")
    keep: str | None = Field(None, description="For a mask: the condition under which a key is visible.")
    score: str | None = Field(None, description="For a score term: the new score.")
    let: Parts | None = Field(None, description=_PARTS)


_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def term_schema() -> dict[str, Any]:
    """The JSON Schema of a term's file."""
    made = TermFileModel.model_json_schema()
    made |= {"$schema": _DIALECT, "title": "A term of attnforge"}
    made["oneOf"] = [
        {"properties": {"kind": {"const": kind}}, "required": [wanted], "not": {"required": [other]}}
        for kind, wanted, other in (("mask", "keep", "score"), ("score", "score", "keep"))
    ]
    return made


def schema() -> dict[str, Any]:
    """The JSON Schema of a spec, with the names of the shipped terms as suggestions."""
    made = SpecModel.model_json_schema()
    made |= {"$schema": _DIALECT, "title": "An attnforge spec"}
    along = (f"{', '.join(f'`{axis}`' for axis in a.axes)}: {a.holds}; read {a.read}." for a in AXES)
    made["$defs"]["InputModel"]["properties"]["axes"]["items"]["description"] = "\n".join(along)
    words = sorted(path.stem for path in (resources.specs() / "terms").glob("*.yaml"))
    made["$defs"]["TermModel"]["anyOf"][0]["examples"] = words
    return made
