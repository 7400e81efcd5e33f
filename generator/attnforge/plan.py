"""A spec -> the plan that templates print: what each kernel takes, loads, visits, adds, masks and differentiates."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from . import printers, tiles, walk
from .binding import ROW_AXES, Sum, View, seen_axes
from .expression import Node
from .spec import Input, Spec
from .walk import Walk


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


@dataclass(frozen=True)
class Parameter:
    """What a kernel takes, and the launcher's text for it."""

    name: str
    type: str  # tiles, *T (pointer to elements as q has them), *fp32, *i32, *i1, i32, fp32, constexpr
    given: str
    block: tuple[str, str] = ("", "")  # rows and columns of tiles

    @property
    def varies(self) -> bool:
        """Whether the compiler must not bind itself to this call's value: lengths and options change from call to call."""
        return self.type == "i32" and "_stride_" not in self.name


@dataclass(frozen=True)
class Kernel:
    """A kernel's face; `step` are the parameters of the function that handles one tile."""

    name: str
    parameters: tuple[Parameter, ...]
    step: tuple[str, ...] = ()

    @property
    def varying(self) -> tuple[str, ...]:
        """The parameters that the compiler must not bind itself to."""
        return tuple(p.name for p in self.parameters if p.varies)


@dataclass(frozen=True)
class Reduction:
    """The gradient of an input on the host: from the kernels' sums to the input's own axes."""

    input: Input
    sums: tuple[Sum, ...]
    text: str  # over `total`, the sums added up


@dataclass(frozen=True)
class Pass:
    """A backward kernel as the host launches it."""

    kernel: Kernel
    by_query: bool
    heads: str  # text of the number of heads that programs are made for
    condition: str  # whether some gradient that it makes is wanted
    made: tuple[str, ...]  # statements that make its outputs
    partial: tuple[str, ...]  # sums with one value per program


@dataclass(frozen=True)
class Plan:
    """All that templates know of a variant."""

    spec: Spec
    arguments: tuple[Argument, ...]
    by_query: View  # the terms as the forward and dq kernels read them
    by_key: View  # the terms as the dkv kernel reads them
    keys: Walk
    queries: Walk
    helpers: tuple[str, ...]
    tables: tuple[dict[str, dict[int, tuple[tiles.Tile, ...]]], ...] = (tiles.HALF, tiles.SINGLE)

    @property
    def kv(self) -> str:
        """What kernels call the key head."""
        return "kv_h" if self.spec.grouped else "h"

    @property
    def totals(self) -> tuple[str, ...]:
        """The learned inputs without an axis of rows: their gradients are a few sums over all of them."""
        return tuple(r.input.name for r in self.learned if not set(ROW_AXES) & set(r.input.axes))

    @property
    def vectors(self) -> bool:
        """Whether terms read inputs that differ from row to row."""
        return any(leaf.side for leaf in self.by_query.leaves)

    @property
    def units(self) -> str:
        """What turns a kernel's score into log2 units: with terms in between, the scale is applied before them."""
        return "LOG2E" if self.spec.scores else "units"

    @cached_property
    def scanned(self) -> tuple[Input, ...]:
        """The inputs that kernels read as cumulative sums."""
        return tuple(i for i in self.spec.inputs if i.scan)

    @cached_property
    def learned(self) -> tuple[Reduction, ...]:
        """The inputs that get a gradient."""
        sums = (*self.by_query.sums, *self.by_key.sums)
        found = []
        for given in self.spec.inputs:
            if given.grad:
                mine = tuple(s for s in sums if s.leaf.input == given)
                found.append(Reduction(given, mine, _reduced(given, self.spec)))
        return tuple(found)

    # -- the host ------------------------------------------------------------------------------------------------

    @property
    def extras(self) -> tuple[Argument, ...]:
        """The arguments that reach the attention kernels: q and k come turned."""
        return tuple(a for a in self.arguments if a.name not in ("cos", "sin", "positions"))

    @property
    def tensors(self) -> tuple[str, ...]:
        """What the backward pass needs of the operator's tensors."""
        cuts = ("cu_seqlens_q", "cu_seqlens_k") if self.spec.packed else ()
        return ("q", "k", "v", *cuts, *(a.name for a in self.extras if a.kind == "tensor"))

    @property
    def numbers(self) -> tuple[str, ...]:
        """What the backward pass needs of the operator's numbers."""
        cuts = ("max_seqlen_q", "max_seqlen_k") if self.spec.packed else ()
        return (*cuts, *(a.name for a in self.extras if a.kind == "scalar"), "scale")

    @property
    def learned_places(self) -> tuple[int, ...]:
        """Where q, k, v and the learned inputs stand among the operator's arguments."""
        names = [a.name for a in self.extras]
        first = 7 if self.spec.packed else 3
        return (0, 1, 2, *(first + names.index(r.input.name) for r in self.learned))

    def scan_texts(self, given: Input) -> tuple[str, str]:
        """How the host hands an input to the scan, and what it drops of the result."""
        return scan_view(given, self.spec)

    @cached_property
    def passes(self) -> tuple[Pass, ...]:
        """The two halves of the backward pass."""
        return (
            self._pass(self.dq, self.by_query, {0: ("dq", "q")}, "q.shape[-2]"),
            self._pass(self.dkv, self.by_key, {1: ("dk", "k"), 2: ("dv", "v")}, "k.shape[-2]"),
        )

    def _pass(self, kernel: Kernel, view: View, made: dict[int, tuple[str, str]], heads: str) -> Pass:
        wanted = [*made, *(3 + i for i, r in enumerate(self.learned) if set(r.sums) & set(view.sums))]
        lines = [f"{grad} = {grad} if wanted[{i}] else {x}.new_empty({x}.shape)" for i, (grad, x) in made.items()]
        for s in view.sums:
            if s.leaf.side:
                # a token that no query stands at keeps a gradient of 0
                kind = "zeros" if s.leaf.side == "q" and s.leaf.row_axis == "token" else "empty"
                rows = "q" if s.leaf.row_axis == "query" else "k"
                axes = "q.shape[1], {0}.shape[0]" if self.spec.packed else "q.shape[0], q.shape[2], {0}.shape[1]"
                lines.append(f"{s.name} = lse.new_{kind}({axes.format(rows)})")
        partial = tuple(s.name for s in view.sums if not s.leaf.side)
        lines += [f"{name} = None" for name in partial]
        condition = " or ".join(f"wanted[{i}]" for i in wanted)
        return Pass(kernel, view.own == "q", heads, condition, tuple(lines), partial)

    # -- the kernels' faces --------------------------------------------------------------------------------------

    @cached_property
    def forward(self) -> Kernel:
        """One tile of queries, over the keys that it sees."""
        step = self._step(self.by_query, ("acc", "m", "l", "q_tile", "k_desc", "v_desc"), [line.text for line in self.by_query.score])
        return Kernel(
            "forward",
            (
                *self._operands("q_desc", "k_desc", "v_desc"),
                Parameter("out_ptr", "*T", "out"),
                Parameter("lse_ptr", "*fp32", "lse"),
                *self._sizes(),
                *self._given(self.by_query),
                *self._constants("GROUP", "DV", "BLOCK_M", "BLOCK_N", "BLOCK_D", "BLOCK_DV", "PRECISION"),
            ),
            step,
        )

    @cached_property
    def delta(self) -> Kernel:
        """The rows' sums of out times its gradient."""
        return Kernel(
            "backward_preprocess",
            (
                *self._operands("out_desc", "dout_desc"),
                Parameter("delta_ptr", "*fp32", "delta"),
                *self._sizes(keys=False, scale=False),
                *self._constants("BLOCK_M", "BLOCK_DV"),
            ),
        )

    @cached_property
    def dkv(self) -> Kernel:
        """The gradients of a tile of keys, over the queries that see it."""
        names = ("dk", "dv", *(s.name for s in self.by_key.sums), "k_tile", "v_tile", "q_desc", "dout_desc", "lse_base", "delta_base")
        return Kernel(
            "backward_dkv",
            (
                *self._operands("q_desc", "k_desc", "v_desc", "dout_desc"),
                Parameter("dk_ptr", "*T", "dk"),
                Parameter("dv_ptr", "*T", "dv"),
                Parameter("lse_ptr", "*fp32", "lse"),
                Parameter("delta_ptr", "*fp32", "delta"),
                *self._sizes(),
                *self._given(self.by_key),
                *(Parameter(f"{s.name}_ptr", "*fp32", s.name) for s in self.by_key.sums),
                *self._constants("GROUP", "D", "DV", "BLOCK_M", "BLOCK_N", "BLOCK_D", "BLOCK_DV", "PRECISION"),
            ),
            self._step(self.by_key, names, self._backward_texts(self.by_key)),
        )

    @cached_property
    def dq(self) -> Kernel:
        """The gradients of a tile of queries, over the keys that it sees."""
        names = ("dq", *(s.name for s in self.by_query.sums), "q_tile", "dout_tile", "lse", "delta", "k_desc", "v_desc")
        return Kernel(
            "backward_dq",
            (
                *self._operands("q_desc", "k_desc", "v_desc", "dout_desc"),
                Parameter("dq_ptr", "*T", "dq"),
                Parameter("lse_ptr", "*fp32", "lse"),
                Parameter("delta_ptr", "*fp32", "delta"),
                *self._sizes(),
                *self._given(self.by_query),
                *(Parameter(f"{s.name}_ptr", "*fp32", s.name) for s in self.by_query.sums),
                *self._constants("GROUP", "D", "BLOCK_M", "BLOCK_N", "BLOCK_D", "BLOCK_DV", "PRECISION"),
            ),
            self._step(self.by_query, names, self._backward_texts(self.by_query)),
        )

    @cached_property
    def rotate(self) -> Kernel:
        """Pairs of components of q and k, turned by the angles of their positions."""
        sides = []
        for x, rows in (("q", "Hq"), ("k", "Hkv")):
            axes = ("token", "head", "column") if self.spec.packed else ("batch", "token", "head", "column")
            sides += [Parameter(f"{x}_ptr", "*T", x)]
            sides += [Parameter(f"{x}_stride_{axis}", "i32", f"{x}.stride({i})") for i, axis in enumerate(axes)]
            sides += [Parameter(f"{x}_turned_ptr", "*T", f"{x}_turned")]
            sides += [
                Parameter(f"{x}_turned_stride_{axis}", "i32", f"{x}_turned.stride({i})")
                for i, axis in enumerate(axes[:-1])
            ]
        batch = () if self.spec.packed else (Parameter("positions_stride_batch", "i32", "0 if positions is None else positions.stride(0)"),)
        tables = [
            Parameter("cos_ptr", "*fp32", "cos"),
            Parameter("cos_stride_row", "i32", "cos.stride(0)"),
            Parameter("cos_stride_column", "i32", "cos.stride(1)"),
            Parameter("sin_ptr", "*fp32", "sin"),
            Parameter("sin_stride_row", "i32", "sin.stride(0)"),
            Parameter("sin_stride_column", "i32", "sin.stride(1)"),
            Parameter("positions_ptr", "*i32", "positions"),
            *batch,
            Parameter("positions_stride_token", "i32", "0 if positions is None else positions.stride(-1)"),
            Parameter("position_end", "i32", "cos.shape[0]"),
        ]
        constants = self._constants("D", "HALF", "BLOCK_T", "BLOCK_HALF")
        rest = self._constants("BLOCK_REST") if self.spec.rope and self.spec.rope.dims else ()
        return Kernel("rotate", (*sides, *tables, *self._sizes(scale=False), Parameter("Hkv", "i32", "k.shape[-2]"), Parameter("sign", "fp32", "sign"), *constants, *rest))

    @cached_property
    def scan(self) -> Kernel:
        """Cumulative sums over the tokens of each sequence."""
        outer = ("head", "token") if self.spec.packed else ("batch", "head", "token")
        lengths = (
            (Parameter("cu_seqlens_ptr", "*i32", "cu_seqlens_k"), Parameter("total", "i32", "x.shape[-1]"))
            if self.spec.packed
            else (Parameter("count", "i32", "x.shape[-1]"),)
        )
        return Kernel(
            "scan",
            (
                Parameter("x_ptr", "*fp32", "x"),
                *(Parameter(f"x_stride_{axis}", "i32", f"x.stride({i})") for i, axis in enumerate(outer)),
                Parameter("sums_ptr", "*fp32", "sums"),
                *lengths,
                Parameter("heads", "i32", "x.shape[-2]"),
                Parameter("REVERSE", "constexpr", "reverse"),
                Parameter("BLOCK", "constexpr", "block"),
            ),
        )

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """All kernels of the package."""
        found = (self.forward, self.delta, self.dkv, self.dq)
        return found + ((self.rotate,) if self.spec.rope else ()) + ((self.scan,) if self.scanned else ())

    # -- pieces of faces -----------------------------------------------------------------------------------------

    def _operands(self, *names: str) -> Iterable[Parameter]:
        rows = {"k": "BLOCK_N", "v": "BLOCK_N"}
        columns = {"q": "BLOCK_D", "k": "BLOCK_D"}
        for name in names:
            x = name.removesuffix("_desc")
            yield Parameter(name, "tiles", x, (rows.get(x, "BLOCK_M"), columns.get(x, "BLOCK_DV")))

    def _sizes(self, *, keys: bool = True, scale: bool = True) -> Iterable[Parameter]:
        if self.spec.packed:
            yield Parameter("cu_seqlens_q_ptr", "*i32", "cu_seqlens_q")
            if keys:
                yield Parameter("cu_seqlens_k_ptr", "*i32", "cu_seqlens_k")
            yield Parameter("q_total", "i32", "q.shape[0]")
            if keys:
                yield Parameter("k_total", "i32", "k.shape[0]")
        else:
            yield Parameter("q_len", "i32", "q.shape[1]")
            if keys:
                yield Parameter("k_len", "i32", "k.shape[1]")
        yield Parameter("Hq", "i32", "q.shape[-2]")
        if scale:
            yield Parameter("scale", "fp32", "scale")

    def _given(self, view: View) -> Iterable[Parameter]:
        for option in self.spec.options:
            yield Parameter(option.keyword, {"int": "i32", "float": "fp32"}[option.type], option.keyword)
        for given in self.spec.inputs:
            kind = {"float": "fp32", "int": "i32", "bool": "i1"}[given.dtype]
            if not given.axes:
                yield Parameter(given.name, kind, given.name)
                continue
            yield Parameter(f"{given.name}_ptr", "*" + kind, given.name)
            for i, name in enumerate(view.strides(given)):
                yield Parameter(name, "i32", f"_stride({given.name}, {i})")

    def _constants(self, *names: str) -> Iterable[Parameter]:
        return [Parameter(n, "constexpr", _CONSTANTS.get(n, n.lower())) for n in names if n != "GROUP" or self.spec.grouped]

    def _step(self, view: View, own: tuple[str, ...], texts: Iterable[str]) -> tuple[str, ...]:
        """A step's parameters: its own names, where it stands, and what the terms' texts read."""
        by_query = view.own == "q"
        place = ("k_offset" if by_query else "q_offset") if self.spec.packed else "b"
        where = (self.kv, "k_start", "k_len") if by_query else ("h", "q_start", "q_len", "k_len")
        known = (*own, place, *where, "scale" if self.spec.scores else "units")
        inside = ("k_pos",) if by_query else ("q_pos", "q_first")
        texts = [*texts, *(line.text for line in view.keep), *view.loads("step")]
        blocks = ("BLOCK_N" if by_query else "BLOCK_M", "BLOCK_D", "BLOCK_DV", "PRECISION", "MASKED")
        return (*known, *view.passed(texts, {*known, *inside}), *blocks)

    def _backward_texts(self, view: View) -> list[str]:
        found = []
        for term in view.terms:
            found += [term.value, *(text for _, text in term.before)]
        return found


_CONSTANTS = {
    "D": "q.shape[-1]",
    "DV": "v.shape[-1]",
    "GROUP": "q.shape[-2] // k.shape[-2]",
    "PRECISION": "_precision(q)",
    "HALF": "cos.shape[1]",
}


def build(spec: Spec) -> Plan:
    """Works out all that the templates print."""
    by_query, by_key = View(spec, "q"), View(spec, "k")
    helpers = {*by_query.helpers, *walk.helpers(spec)}
    return Plan(
        spec,
        tuple(_arguments(spec)),
        by_query,
        by_key,
        walk.build(spec, "k"),
        walk.build(spec, "q"),
        tuple(sorted(helpers)),
    )


def _arguments(spec: Spec) -> Iterable[Argument]:
    if spec.rope:
        yield Argument("cos", "tensor", "float", doc="cosines of the angles, row p for position p")
        yield Argument("sin", "tensor", "float", doc="sines of the angles, row p for position p")
        rows = ("token",) if spec.packed else ("batch", "token")
        yield Argument("positions", "tensor", "int", rows, optional=True, doc="rows of cos and sin, for keys and queries")
    for option in spec.options:
        yield Argument(option.keyword, "scalar", option.type, minimum=option.minimum, maximum=option.maximum)
    for given in spec.inputs:
        yield Argument(
            given.name,
            "tensor" if given.axes else "scalar",
            given.dtype,
            given.axes,
            grad=given.grad,
            scan=given.scan is not None,
            default=_default(given) if given.default is not None else None,
            doc=given.description,
        )


_SIZES = {"head": ("h", "heads"), "kv_head": ("kv_h", "kv_heads")}


def _default(given: Input) -> str:
    """Torch text of an input's default; api and reference have heads, device and dtype in scope."""
    assert given.default is not None
    node = given.default
    if not given.axes or not any(n.op == "var" and n.value == "h" for n in node.walk()):
        return f"torch.full(({', '.join('1' for _ in given.axes)},), {printers.torch(node, _plain)}, dtype=dtype, device=device)"
    text = printers.torch(node, _plain)
    shape = tuple(-1 if axis == "head" else 1 for axis in given.axes)
    view = "" if len(shape) == 1 else f".view({', '.join(map(str, shape))})"
    return f"(lambda h: {text})(torch.arange(heads, device=device)){view}.to(dtype)"


def _plain(node: Node) -> str:
    return str(node.value)


def _reduced(given: Input, spec: Spec) -> str:
    """Torch text from `total`, with axes (batch, head, row or tile) or in packed sequences (head, row), to the input's axes."""
    rows = any(axis in ROW_AXES for axis in given.axes)
    row_axis = next((axis for axis in given.axes if axis in ROW_AXES), "row")
    dims = ["head", row_axis] if spec.packed and rows else ["batch", "head", row_axis]
    wanted = list(seen_axes(given, spec))
    text = "total"
    if "kv_head" in wanted:
        text += f".unflatten({dims.index('head')}, (k.shape[-2], -1)).sum({dims.index('head') + 1})"
        dims[dims.index("head")] = "kv_head"
    gone = [i for i, axis in enumerate(dims) if axis not in wanted]
    if gone:
        text += f".sum(({', '.join(map(str, gone))},))" if len(gone) == 1 else f".sum(({', '.join(map(str, gone))}))"
    left = [axis for axis in dims if axis in wanted]
    if left != wanted:
        text += f".permute({', '.join(str(left.index(axis)) for axis in wanted)})"
    return text + f".sum_to_size({given.name}.shape).to({given.name}.dtype)"


def scan_view(given: Input, spec: Spec) -> tuple[str, str]:
    """Torch texts: an input with the axes that a scan takes, (batch, head, token), and what drops those it lacks.

    Packed sequences have no batch axis.
    """
    axes = [a for a in given.axes if not (a == "batch" and spec.packed)]
    order = seen_axes(given, spec)
    text, drop = given.name, ""
    if list(order) != axes:
        text += f".permute({', '.join(str(axes.index(a)) for a in order)})"
    if not {"head", "kv_head"} & set(axes):
        text, drop = text + ".unsqueeze(-2)", ".squeeze(-2)"
    if not spec.packed and "batch" not in axes:
        text, drop = text + "[None]", "[0]" + drop
    return text, drop
