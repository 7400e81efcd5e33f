"""A spec -> the texts of a `torch.nn.Module` around its package: its parameters, its arguments, and its cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..expressions.inputs import Axis, Input
from ..language.exports import constants, learned, projected
from ..language.spec import Spec
from ..plan import storage
from ..plan.arguments import Argument
from ..plan.statements import names
from ..printing import printers


@dataclass(frozen=True)
class Parameter:
    """A tensor that is itself a parameter of the module, and the text of its shape."""

    name: str
    shape: str


@dataclass(frozen=True)
class Constant:
    """An input with a default, and the text of that over `heads`, `kv_heads`, `device` and `dtype`."""

    name: str
    default: str


@dataclass(frozen=True)
class Projection:
    """An input that a linear layer computes from each token."""

    name: str
    columns: str  # text of the number of values per token
    value: str  # text of the input
    kept: str  # text of its shape in a cache; "" if it does not belong to keys
    dtype: str  # text of its type in a cache
    places: tuple[int, ...]  # its axes of sequences and of tokens


@dataclass(frozen=True)
class Module:
    """The texts that the module's template prints."""

    template: str  # for the layout of rows in x
    kv_heads: str  # text of the number of key heads
    options: tuple[Argument, ...]  # numbers of a layer, which its constructor takes
    given: tuple[Argument, ...]  # the arguments that its forward takes
    parameters: tuple[Parameter, ...]
    constants: tuple[Constant, ...]  # inputs that become parameters if the constructor is asked for it
    projections: tuple[Projection, ...]
    passed: tuple[tuple[str, str], ...]  # keywords of `attention` and their texts
    turned: str  # text of the number of columns of a head that are rotated; "" if none are
    cached: bool  # whether it decodes
    crosses: bool  # whether keys may come from another sequence (cross-attention)
    parallel: bool  # whether its tokens may be divided among ranks

    @property
    def siblings(self) -> tuple[str, ...]:
        """The names of the package's modules that it calls, besides `attention` and its cache."""
        packed = self.template == "packed"
        asked = {
            "arguments": self.cached or (packed and self.turned),
            "context_parallel": self.parallel,
            "decode_arguments": self.cached,
            "ranks": self.parallel and self.turned and not packed,
        }
        return tuple(name for name, wanted in asked.items() if wanted)

    @property
    def counts(self) -> dict[str, str]:
        """The numbers of heads that defaults read, and their texts."""
        read = names(*(constant.default for constant in self.constants))
        known = {"heads": "num_heads", "kv_heads": self.kv_heads}
        return {name: text for name, text in known.items() if name in read}

    @property
    def computes(self) -> bool:
        """Whether defaults need functions of numbers."""
        return any("math." in constant.default for constant in self.constants)

    @property
    def kept(self) -> tuple[Projection, ...]:
        """The projections that a cache keeps, besides keys and values."""
        return tuple(p for p in self.projections if p.kept)


def build(spec: Spec, arguments: Sequence[Argument]) -> Module:
    """Finds for each keyword of `attention` where a layer gets it from; `arguments` are the plan's."""
    kv_heads = "num_kv_heads" if spec.grouped else "num_heads"
    heads = {"head": "num_heads", "kv_head": kv_heads}
    parameters = [Parameter(x.name, ", ".join(_sizes(x.axes, heads))) for x in spec.inputs if learned(x)]
    parameters += [Parameter("sinks", "num_heads")] if spec.sink else []
    left = _constants(constants(spec.inputs), arguments)
    projections = [_projection(x, storage.of(spec).kept(x), heads) for x in spec.inputs if projected(x)]
    options = {*(option.keyword for option in spec.options), *(("dropout_p",) if spec.dropout else ())}
    held = {name: f"self.{name}" for name in (*options, *(p.name for p in parameters))}
    own_values = {c.name: f"self.{c.name} if {c.name} is None else {c.name}" for c in left}
    held |= {p.name: p.value for p in projections} | (_DROPOUT if spec.dropout else {})
    rotated = ("cos", "sin", "positions") if spec.rope else ()
    # arguments for tokens in a cache would have to be passed again with each call
    cached = "decode" in spec.exports and not spec.packed and all(map(projected, filter(_by_key, spec.inputs)))
    own = spec.packed or spec.rope or cached or projections or spec.layers.seen != "all"
    return Module(
        "packed" if spec.packed else "dense",
        kv_heads,
        tuple(a for a in arguments if a.name in options),
        tuple(a for a in arguments if a.name not in (*held, *rotated)),
        tuple(parameters),
        left,
        tuple(projections),
        tuple((a.name, (held | own_values).get(a.name, a.name)) for a in arguments),
        "" if spec.rope is None else str(spec.rope.dims or "self.head_dim"),
        cached,
        not own,
        "context_parallel" in spec.exports,
    )


_DROPOUT = {
    "dropout_p": "self.dropout_p if self.training else 0.0",
    # from the CPU's generator: checkpointing draws the same number again, and nothing waits for a GPU
    "seed": 'int(torch.randint(2**62, (), device="cpu")) if self.training and self.dropout_p else None',
}


def _constants(inputs: Sequence[Input], arguments: Sequence[Argument]) -> tuple[Constant, ...]:
    """The inputs, each with its default: a tensor of its whole shape, as each entry is to be learned."""
    named = {a.name: a for a in arguments}
    found = []
    for given in inputs:
        node = given.default
        if node is not None and any(leaf.op == "var" and leaf.value == "h" for leaf in node.walk()):
            text = named[given.name].made()
        else:
            number = given.value if node is None else printers.torch(node, lambda leaf: str(leaf.value))
            sizes = ", ".join(_sizes(given.axes, {"head": "heads", "kv_head": "kv_heads"}))
            text = f"torch.full(({sizes},), {number}, dtype=dtype, device=device)"
        found.append(Constant(given.name, text))
    return tuple(found)


def _by_key(given: Input) -> bool:
    return any(row in ("key", "token") for row in given.rows)


def _sizes(axes: Sequence[Axis], counts: dict[str, str]) -> list[str]:
    """Texts of the sizes of axes, with the counts of kinds that have no size of their own."""
    return [axis.count(counts.get(axis.kind, "")) for axis in axes]


def _projection(given: Input, axes: Sequence[Axis], heads: dict[str, str]) -> Projection:
    """The projection that computes an input with these axes in a call."""
    value = f"self.{given.name}_proj(x)"
    if given.scan:
        # inputs summed along tokens are logarithms of what gates keep; near 0, 16 bits would lose them
        value = f"torch.nn.functional.logsigmoid({value}.float())"
    columns = [axis for axis in axes if axis.kind not in ("batch", *given.rows)]
    own = {kind: f"self.{count}" for kind, count in heads.items()}
    if len(columns) != 1:
        shape = ", ".join(_sizes(columns, own))
        value += f".unflatten(-1, ({shape}))" if columns else ".squeeze(-1)"
    # x has its columns last
    before = [axis for axis in axes if axis not in columns]
    before.sort(key=lambda axis: axis.kind != "batch")
    order = tuple([*before, *columns].index(axis) for axis in axes)
    if order != tuple(range(len(order))):
        value += f".permute{order}"
    sizes = _sizes(axes, own | {"batch": "batch", "key": "size", "token": "size"})
    places = tuple(i for kind in ("batch", "key", "token") for i, axis in enumerate(axes) if axis.kind == kind)
    kept = ", ".join(sizes) if _by_key(given) else ""
    return Projection(
        given.name,
        " * ".join(_sizes(columns, heads)) or "1",
        value,
        kept,
        "torch.float32" if given.scan else "dtype",
        places,
    )
