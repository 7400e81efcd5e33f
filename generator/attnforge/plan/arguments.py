"""The keyword arguments of `attention` that come from a spec."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from ..expressions import whole_numbers
from ..expressions.divisors import divisors
from ..expressions.folding import LARGEST
from ..expressions.inputs import Axis, Input
from ..expressions.tree import Node
from ..language.spec import Spec
from ..printing import printers, spec_text
from . import storage
from .names_in_code import names_in_code


@dataclass(frozen=True)
class Argument:
    """A keyword argument of `attention` and `reference` that comes from a term, an input or the rope."""

    name: str
    kind: Literal["tensor", "scalar"]
    dtype: Literal["float", "int", "bool"]
    axes: tuple[Axis, ...] = ()  # of a tensor
    grad: bool = False
    scan: bool = False
    optional: bool = False
    default: str | None = None  # torch text of what kernels use if it is not given
    formula: str = ""  # the same as the spec has it
    value: str | None = None  # the number, or each entry of the tensor, if it is not given
    sizes: tuple[str, ...] = ()  # of a tensor that has a value: those of its axes, 1 for an axis that broadcasts
    minimum: float | None = None
    maximum: float | None = None
    divides: bool = False  # whether integers are divided by it, and its limits allow 0
    doc: str = ""
    renamed: str = ""  # its name in code, if that is not the users' name

    @property
    def code(self) -> str:
        """Its name in generated code."""
        return self.renamed or self.name

    @property
    def absent(self) -> bool:
        """Whether it is a tensor that a call may leave out."""
        return self.kind == "tensor" and (self.optional or self.default is not None or self.value is not None)

    @property
    def facts(self) -> tuple[str, ...]:
        """How the variant uses it, and the limits that its description leaves out."""
        held = "" if self.doc else limits(self.minimum, self.maximum)
        used = {"learned": self.grad, "read as its cumulative sum": self.scan}
        return tuple(filter(None, (held, *(name for name, holds in used.items() if holds))))

    def made(self, **called: str) -> str:
        """Torch text of its value if a call leaves it out, over `heads`, `queries`, `keys`, `dtype` and `device`.

        A tensor of one value takes one entry of memory, whatever its axes; `called` has the texts for these names.
        """
        if self.default is not None:
            return self.default
        assert self.value is not None
        ones = ", ".join("1" for _ in self.sizes) + ("," if len(self.sizes) == 1 else "")
        dtype = _DTYPES.get(self.dtype) or called.get("dtype", "dtype")
        one = f"torch.full(({ones}), {self.value}, dtype={dtype}, device={called.get('device', 'device')})"
        return one if set(self.sizes) == {"1"} else f"{one}.expand({', '.join(called.get(x, x) for x in self.sizes)})"

    @property
    def pairs(self) -> bool:
        """Whether it has a query and a key axis: leading axes may then be missing."""
        return {"query", "key"} <= {axis.kind for axis in self.axes}


_DTYPES = {"int": "torch.int32", "bool": "torch.bool"}
# beyond this, the sum of two positions or bounds could overflow int32
_MOST = {"int": LARGEST, "float": None}


def limits(low: float | None, high: float | None) -> str:
    """The limits of a number in words, without those that hold for all numbers."""
    low, high = (None if x is None or abs(x) == LARGEST else x for x in (low, high))
    if low is not None and high is not None:
        return f"from {low} to {high}"
    return f"at least {low}" if low is not None else f"at most {high}" if high is not None else ""


def build(spec: Spec) -> tuple[Argument, ...]:
    """The keyword arguments of a variant, in order."""
    dividing = {str(node.value) for node in divisors(spec.nodes) if node.op in ("input", "option")}
    return tuple(_not_0(a) if a.kind == "scalar" and a.name in dividing else a for a in _arguments(spec))


def made_divisors(spec: Spec) -> tuple[tuple[str, str], ...]:
    """The computed divisors of integers that read only a call's numbers and may be 0: as in the spec, and as Python."""
    numbers = {option.keyword for option in spec.options} | {given.name for given in spec.inputs if not given.axes}
    limits, own = whole_numbers.limits(spec.inputs, spec.options), names_in_code(spec)
    ranges = whole_numbers.Ranges(limits)

    def text(divisor: Node) -> str:
        return printers.torch(of_numbers(divisor), lambda leaf: own[str(leaf.value)], limits, atom=True, total=True)

    found = (node for node in divisors(spec.nodes) if node.op not in ("input", "option") and ranges.may_be_0(node))
    read = ((node, {n.value for n in node.walk() if n.op in ("input", "option")}) for node in found)
    return tuple((spec_text.source(node), text(node)) for node, names in read if names <= numbers)


def of_numbers(node: Node) -> Node:
    """An expression with its inputs as options: at the start of a call, inputs without axes are Python numbers too."""
    return node.replaced(lambda n: Node("option", (), n.value, n.type) if n.op == "input" else None)


def _arguments(spec: Spec) -> Iterable[Argument]:
    own = names_in_code(spec)
    if spec.rope:
        yield Argument("cos", "tensor", "float", doc="cosines of the angles, row p for position p")
        yield Argument("sin", "tensor", "float", doc="sines of the angles, row p for position p")
        rows = storage.of(spec).kept(Input("positions", (Axis("batch"), Axis("token"))))
        yield Argument(
            "positions", "tensor", "int", rows, optional=True, doc="rows of cos and sin, for keys and queries"
        )
    for option in spec.options:
        most = option.maximum if option.maximum is not None else _MOST[option.type]
        least = -LARGEST if option.type == "int" and option.minimum is None else option.minimum
        code = own[option.keyword]
        yield Argument(option.keyword, "scalar", option.type, minimum=least, maximum=most, renamed=code)
    for given in spec.inputs:
        # an integer stays within the range in which kernels count
        least, most = (-LARGEST, LARGEST) if not given.axes and given.dtype == "int" else (None, None)
        yield Argument(
            given.name,
            "tensor" if given.axes else "scalar",
            given.dtype,
            given.axes,
            grad=given.grad,
            minimum=least if given.minimum is None else given.minimum,
            maximum=most if given.maximum is None else given.maximum,
            scan=given.scan is not None,
            default=_default(given) if given.default is not None else None,
            formula="" if given.default is None else spec_text.source(given.default),
            value=None if given.value is None else repr(given.value),
            sizes=_sizes(given, spec),
            doc=given.description,
            renamed=own[given.name],
        )
    if spec.sink:
        doc = "a logit of each head that joins the denominator of the softmax and carries no value"
        yield Argument("sinks", "tensor", "float", (Axis("head"),), grad=spec.algorithm.backward, doc=doc)
    if spec.dropout:
        yield Argument(
            "dropout_p", "scalar", "float", value="0.0", minimum=0, doc="share of the weights to drop, below 1"
        )
        yield Argument(
            "seed",
            "scalar",
            "int",
            value="None",
            doc="selects which weights are dropped; required if dropout_p is above 0",
        )


def _not_0(number: Argument) -> Argument:
    """A number by which integers are divided: a minimum of 0 becomes 1; else `divides` is set if limits allow 0."""
    if number.minimum == 0:
        return replace(number, minimum=1)
    return replace(number, divides=number.minimum is None or number.minimum < 0)


def _sizes(given: Input, spec: Spec) -> tuple[str, ...]:
    """Texts of the sizes of an input's axes, as a call stores them; 1 for an axis that broadcasts."""
    broad, axes = storage.broad_axes(given, spec), storage.of(spec).kept(given)
    counts = {"query": "queries", "key": "keys", "token": "keys"}
    return tuple("1" if i in broad else counts.get(a.kind) or str(a.size) for i, a in enumerate(axes))


def _default(given: Input) -> str:
    """Torch text of the default that kernels compute, over heads, device and dtype."""
    assert given.default is not None
    node, dtype = given.default, _DTYPES.get(given.dtype, "dtype")
    if not given.axes or not any(n.op == "var" and n.value == "h" for n in node.walk()):
        ones = "(" + "1, " * len(given.axes) + ")"
        return f"torch.full({ones}, {printers.torch(node, _plain)}, dtype={dtype}, device=device)"
    text = printers.torch(node, _plain)
    shape = tuple(-1 if kind == "head" else 1 for kind in given.kinds)
    view = "" if len(shape) == 1 else f".view({', '.join(map(str, shape))})"
    return f"(lambda h: {text})(torch.arange(heads, device=device)){view}.to({dtype})"


def _plain(node: Node) -> str:
    return str(node.value)
