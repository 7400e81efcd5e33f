"""The texts that make up the reference and the checks of `attention`, from a spec."""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Iterable, Sequence
from dataclasses import dataclass

from ..expressions import whole_numbers
from ..expressions.functions import FUNCTIONS
from ..expressions.indices import IMPLICIT
from ..expressions.inputs import Axis, Input
from ..expressions.tree import SCORE, Node
from ..language import lost_gradients
from ..language.spec import Spec
from ..printing import printers
from . import running_sums, storage, suite_cases, suite_inputs
from .arguments import Argument
from .finite import sheltered, wild
from .names_in_code import in_code
from .positions import FIRST
from .statements import labelled, names
from .storage import Storage

_SHORT = 40  # characters of a default that a docstring shows
SCORE_AXES = ("batch", "head", "query", "key")
_PLACES = {"q": "q_pos", "k": "k_pos"}
_LOCALS = {
    "batch": "q.shape[0]",
    "q_len": "q.shape[1]",
    "k_len": "k.shape[1]",
    "heads": "q.shape[2]",
    "kv_heads": "k.shape[2]",
    "dtype": "q.dtype",
    "device": "q.device",
    # places in a score [batch, heads, q_len, k_len]
    "b": "torch.arange(batch, device=device)[:, None, None, None]",
    "h": "torch.arange(heads, device=device)[:, None, None]",
    "kv_h": "h // (heads // kv_heads)",
    "q_pos": "torch.arange(q_begin, q_begin + q_len, device=device)[:, None]",
    "k_pos": "torch.arange(k_len, device=device)",
}
_KEEP = Node("local", (), "keep", "bool")
_ZEROS = Node("local", (), "torch.zeros_like(score)", "float")


@dataclass(frozen=True)
class Oracle(suite_cases.Decided):
    """The texts that the templates of the reference and of the interface print."""

    keep: tuple[str, ...]  # lines of code
    score: tuple[str, ...]
    prepare: dict[str, str]  # input, by its name in code -> text that prepares it for the terms
    slices: dict[str, str]  # the same -> its part for one packed sequence, or for a batch entry's rows
    guarded: bool  # whether terms read the score and inputs through `visible`
    sequence: bool  # whether terms read the number of the packed sequence
    shapes: dict[str, str]  # input -> text of its shape, over the sizes that the interface knows
    full_axes: dict[str, str]  # input -> text of the axes along which a size of 1 does not broadcast
    samples: dict[str, str]  # keyword -> text that makes one for a test
    sample_sizes: dict[str, str]  # the sizes that these texts name -> their text
    narrowed: list[tuple[str, tuple[int, ...]]]  # inputs, and their axes that a test gives a size of 1
    summed: list[tuple[str, int]]  # inputs whose running sums kernels read, and the axis of these
    large: list[tuple[str, int, list[int], float]]  # the same, tokens, a value that leaves later sums exact
    added: tuple[str, ...]  # inputs of pairs that are added to the score last: they may hide the score at their place
    faint: bool  # whether terms may give scores that are finite, but not in the kernels' units
    optional: tuple[str, ...]  # keywords that may be left out
    token_axes: tuple[str, ...]  # inputs that are read at both positions: they need q_len <= k_len
    sizes: dict[str, str]  # the sizes that the interface's checks name -> their text
    docs: dict[str, str]  # keyword -> what it is, on one line
    refused: dict[str, bool]  # tensors that get no gradient, and whether the spec could ask for one
    description: str  # of the spec, safe inside a docstring
    citation: str  # the same of the paper or model

    @property
    def numbered(self) -> bool:
        """Whether packed sequences are counted: terms read the number, or it selects a sequence's part of an input."""
        return self.sequence or "sequence" in names(*self.slices.values())

    def locals(self, body: str) -> list[tuple[str, str]]:
        """The sizes and positions of scores that the body of the reference uses, in the order of definition."""
        words, needed = set(names(re.sub("#.*", "", body))), []
        for name, text in reversed(_LOCALS.items()):
            if name in words:
                needed.append((name, text))
                words |= names(text)
        return needed[::-1]


def smooth() -> str:
    """The names of torch's functions that kernels compute to a few units in the last place."""
    functions = (FUNCTIONS[name].torch.rpartition(".")[2] for name in printers.SMOOTH)
    return " ".join(sorted({"div", "exp2", "log2", "pow", "reciprocal", "rsqrt", *functions}))


def build(spec: Spec, arguments: Iterable[Argument]) -> Oracle:
    """Prints the terms of a spec for its reference; `arguments` are the plan's."""
    own = in_code(spec)
    cut = running_sums.by_documents(own)
    inputs = {i.name: i for i in cut.inputs}
    guarded = bool(cut.masks) and wild((term.score for term in own.scores), inputs)
    leaf = _Leaf(own, inputs)
    keep: list[str] = []
    for mask in cut.masks:
        node = Node("and", (_KEEP, mask.keep), None, "bool") if keep else mask.keep
        text = printers.torch(node, leaf, leaf.limits, total=True)
        text = f"torch.as_tensor({text})" if printers.is_scalar(node) else text
        keep += labelled(f"keep = {text}", mask.label)
    leaf.guarded = guarded  # only from here on: masks, which determine what is visible, read everything
    score: list[str] = []
    for term in own.scores:
        text = printers.torch(_value(sheltered(term.score, inputs)), leaf, leaf.limits, total=True)
        if any(n.op == "input" and inputs[str(n.value)].scan for n in term.score.walk()):
            text = f"({text}).to(dtype)"
        score += labelled(f"score = {text}", term.label)
    read = [n for term in own.scores for n in term.score.walk() if n.op == "input"]
    far = whole_numbers.stretched(own.nodes, leaf.limits)
    stored = storage.of(spec)
    shapes = {i.keyword: _shape(i, stored) for i in own.inputs if i.axes}
    counts = {i.name: len(stored.kept(i)) for i in spec.inputs if i.axes}
    broad = {i.name: storage.broad_axes(i, spec) for i in spec.inputs if i.axes}
    if spec.rope:
        shapes["positions"] = "(Nk,)" if spec.packed else "(B, Tk)"
        counts["positions"], broad["positions"] = (1, ()) if spec.packed else (2, (0, 1))
    if spec.sink:
        shapes["sinks"], counts["sinks"], broad["sinks"] = "(Hq,)", 1, (0,)
    told = shapes | {i.name: _shape(i, stored) for i in spec.inputs if i.axes}
    fewer = {i.name: broadcast(_axis_sizes(i, stored), broad[i.name]) for i in spec.inputs if i.pairs}
    told |= dict.fromkeys(("cos", "sin"), spec.rope.shape) if spec.rope else {}
    drawn = shapes | {i.name: _shape(suite_inputs.sized(i, spec), stored) for i in spec.inputs if i.axes}
    samples = {a.name: suite_inputs.sample(a, drawn.get(a.name, ""), spec) for a in arguments}
    full_axes = {name: text for name, axes in broad.items() if (text := _full_axes(counts[name], axes))}
    return Oracle(
        spec,
        keep=tuple(keep),
        score=tuple(score),
        prepare={i.name: text for i in cut.inputs[::-1] if (text := _prepare(i, leaf.gathered, far))},
        slices={i.name: (_slice if spec.packed else _part)(i) for i in own.inputs if i.axes},
        guarded=guarded,
        sequence=leaf.sequence or (spec.packed and spec.dropout),
        shapes=shapes,
        full_axes=full_axes,
        samples=samples,
        sample_sizes=suite_inputs.sizes(samples.values(), spec),
        narrowed=suite_inputs.narrowed({name: axes for name, axes in broad.items() if axes}),
        summed=suite_inputs.summed(spec),
        large=suite_inputs.large(spec),
        added=_added(own, inputs),
        faint=any(inputs[str(n.value)].dtype == "float" for n in read),
        optional=tuple(a.name for a in arguments if a.absent),
        token_axes=tuple(i.name for i in spec.inputs if "token" in i.kinds),
        sizes=_sizes(spec, shapes),
        docs={a.name: described(a, told.get(a.name, ""), fewer.get(a.name, "")) for a in arguments},
        refused=_refused(spec, arguments),
        description=quoted(spec.description),
        citation=quoted(spec.citation).rstrip("."),
    )


def _added(spec: Spec, inputs: dict[str, Input]) -> tuple[str, ...]:
    last = spec.scores[-1].score if spec.scores else SCORE
    plain = last.op == "+" and last.args[0] == SCORE and last.args[1].op == "input" and not last.args[1].args
    given = inputs[str(last.args[1].value)] if plain else None
    free = given and given.minimum is given.maximum is None and not given.scan and given.pairs
    return (given.keyword,) if given and free and given.dtype == "float" else ()


def _value(score: Node) -> Node:
    """A score term's value, one for each score even if the term does not contain the score."""
    return score if any(n == SCORE for n in score.walk()) else Node("+", (_ZEROS, score))


def _sizes(spec: Spec, shapes: dict[str, str]) -> dict[str, str]:
    if spec.packed:
        texts = {"S": "cu_seqlens_q.shape[0] - 1", "Nq": "q.shape[0]", "Nk": "k.shape[0]"}
    else:
        texts = {"B": "q.shape[0]", "Tq": "q.shape[1]", "Tk": "k.shape[1]"}
    texts |= {"Hq": "q.shape[-2]", "Hkv": "k.shape[-2]"}
    named = names(*shapes.values())
    if any("token" in i.kinds for i in spec.inputs):
        named |= {"Tq", "Tk", "Nq", "Nk"}
    named |= {"Tq", "Tk", "Nk"} if spec.rope else set()
    return {name: text for name, text in texts.items() if name in named}


def _refused(spec: Spec, arguments: Iterable[Argument]) -> dict[str, bool]:
    if not spec.algorithm.backward:
        return {}
    scores = [term.score for term in spec.scores]
    could = {i.name: lost_gradients.could_learn(i, scores) for i in spec.inputs}
    floats = (a for a in arguments if (a.kind, a.dtype, a.grad) == ("tensor", "float", False))
    return {a.name: could.get(a.name, False) for a in floats}


def quoted(text: str) -> str:
    """A user's text as one line that can stand in a docstring or a comment."""
    return " ".join(text.split()).replace("\\", "\\\\").replace('"', '\\"')


def described(argument: Argument, shape: str, fewer: str = "") -> str:
    """The description of an argument on one line: what it is, its default, and the spec's words about it.

    `fewer` says how it may have fewer values than its shape.
    """
    default = f"{argument.value or argument.formula} if None" if argument.absent else ""
    if argument.absent and not argument.value and not 0 < len(argument.formula) <= _SHORT:
        default = "each head's own default if None" if argument.formula else "optional"
    facts = (f"{argument.dtype} {shape}".strip(), *argument.facts, fewer, default)
    return "; ".join(filter(None, (", ".join(filter(None, facts)), quoted(argument.doc))))


def broadcast(sizes: Sequence[str], broad: Collection[int]) -> str:
    """How an input of pairs may have fewer values than these sizes, if it broadcasts along the axes `broad`."""
    which = "any axis" if len(broad) == len(sizes) else ", ".join(sizes[i] for i in sorted(broad))
    return f"{which} may be 1, leading ones may be missing"


class _Leaf:
    """Texts of leaves; records which places and inputs they need."""

    def __init__(self, spec: Spec, inputs: dict[str, Input]) -> None:
        self.spec, self.inputs, self.guarded = spec, inputs, False
        self.limits = whole_numbers.limits(spec.inputs, spec.options)
        self.sequence, self.gathered = False, set[str]()

    def __call__(self, node: Node) -> str:
        name = str(node.value)
        if node.op == "var":
            return self._var(name)
        if node.op != "input":
            return name
        given = self.inputs[name]
        text = self._read(given, node) if given.axes else name
        return f"visible({text})" if self.guarded and given.grad else text

    def _var(self, name: str) -> str:
        if name == "score":
            return "visible(score)" if self.guarded else "score"
        if name == "b" and self.spec.packed:
            self.sequence = True
            return "sequence"
        if name == "b":
            return "(b + entry)"
        return _PLACES.get(name, name)

    def _read(self, given: Input, node: Node) -> str:
        kinds, whole = given.kinds, not any(axis.divided for axis in given.axes)
        # axes in a score's own order broadcast by themselves
        if kinds == tuple(kind for kind in SCORE_AXES if kind in kinds) and whole:
            return f"{given.name}[{_view(kinds)}]"
        position = node.args[0] if len(node.args) == 1 else None
        plain = position is not None and position.op == "var" and position.value in ("q", "k")
        if "token" in kinds and plain and whole and set(kinds) <= {"batch", "head", "token"}:
            return _row(given, str(node.args[0].value))
        self.gathered.add(given.name)
        written = list(node.args)
        places = (self._index(axis, written if i in given.written else None) for i, axis in enumerate(given.axes))
        return f"{given.name}[{', '.join(places)}]"

    def _index(self, axis: Axis, written: list[Node] | None) -> str:
        if written is None:
            if axis.kind in ("query", "key"):
                place = "k_pos" if axis.kind == "key" else "q_pos - q_begin"
                return axis.place(f"({place})" if axis.divided and axis.kind == "query" else place)
            return axis.place(IMPLICIT[axis.kind])
        node = written.pop(0)
        if axis.kind == "query":
            node = Node("-", (node, FIRST), None, "int")
        text = printers.torch(node, self, self.limits, atom=True, total=True)
        if node.op == "var" and node.value in ("q", "k") and axis.kind == "token":
            return text
        last = {"token": "k_len - 1", "key": "k_len - 1", "query": "q_len - 1"}.get(
            axis.kind, str(int(axis.size or 0) - 1)
        )
        return f"torch.as_tensor({text}).clamp(0, {last})" if printers.is_scalar(node) else f"{text}.clamp(0, {last})"


def _row(given: Input, side: str) -> str:
    """An input read at a position, as a view with the axes of a score: an index would be slow to differentiate."""
    axes = [{"q": "query", "k": "key"}[side] if kind == "token" else kind for kind in given.kinds]
    text = given.name
    if side == "q":
        text += f"[{':, ' * axes.index('query')}q_begin : q_begin + q_len]"
    wanted = [axis for axis in SCORE_AXES if axis in axes]
    if wanted != axes:
        text += f".permute({', '.join(str(axes.index(axis)) for axis in wanted)})"
    return f"{text}[{_view(tuple(wanted))}]"


def _view(axes: tuple[str, ...]) -> str:
    """Subscript that gives a tensor the four axes of a score; missing leading axes need no mention."""
    marks = [":" if axis in axes else "None" for axis in SCORE_AXES]
    while marks[0] == "None":
        marks.pop(0)
    return ", ".join(marks)


def _prepare(given: Input, gathered: Container[str], far: Container[str]) -> str:
    """Text of an input as the terms read it; integers computed from those in `far` may overflow int32."""
    text, whole = given.name, "long" if given.name in far else "int"
    if given.pairs:
        # as in any broadcast, leading axes may be missing
        text += f"[(None,) * ({len(given.axes)} - {given.name}.dim())]"
    if not given.axes:
        dtype = {"float": "dtype", "int": f"torch.{whole}", "bool": "torch.bool"}[given.dtype]
        return f"torch.as_tensor({text}, dtype={dtype}, device=device)"
    if given.source:
        text = f"({given.source} == -math.inf).cumsum({given.kinds.index('token')})"
    elif given.scan:
        text = f"_sums({text}, {given.kinds.index('token')})"
    elif given.dtype == "float":
        text += ".to(dtype)"
    elif given.dtype == "int" and given.name in far:
        text += ".long()"
    # an index does not broadcast an axis of size 1
    if given.name in gathered and any(kind in IMPLICIT for kind in given.kinds):
        counts = {"batch": "batch", "head": "heads", "kv_head": "kv_heads", "query": "q_len", "key": "k_len"}
        sizes = ["-1" if i in given.written else axis.count(counts[axis.kind]) for i, axis in enumerate(given.axes)]
        text += f".expand({', '.join(sizes)})"
    return text if text != given.name else ""


def _slice(given: Input) -> str:
    """The part of an input that belongs to one packed sequence, with a batch axis of 1 if the input has one."""
    rows = {"query": "q_first:q_end", "key": "k_first:k_end", "token": "k_first:k_end"}
    if not given.rows:
        if "batch" not in given.kinds:
            return given.name
        at = given.kinds.index("batch")  # a size of 1 serves all sequences
        return f"{given.name}.narrow({at}, sequence % {given.name}.shape[{at}], 1)"
    marks = ["None" if kind == "batch" else rows.get(kind, ":") for kind in given.kinds]
    while marks and marks[-1] == ":":
        marks.pop()
    return f"{given.name}[{', '.join(marks)}]" if marks else given.name


def _part(given: Input) -> str:
    """The part of an input that belongs to the rows of one batch entry; blocks count from its first row."""
    rows = {"batch": "entry", "query": "queries", "key": "keys", "token": "keys"}
    found = {i: axis for i, axis in enumerate(given.axes) if axis.kind in rows}
    places = ", ".join(f"{i}: {_cut(axis, rows[axis.kind])}" for i, axis in found.items())
    return f"_part({given.name}, {len(given.axes)}, {{{places}}})" if places else given.name


def _cut(axis: Axis, rows: str) -> str:
    """Text of the range of entries for a range of rows or for a batch entry."""
    if not axis.divided:
        return rows
    if axis.kind == "batch":
        own = axis.place(f"{rows}[0]")
        return f"({own}, {own} + 1)"
    return f"(0, {axis.count(f'({rows}[1] - {rows}[0])')})"


def _full_axes(count: int, broad: tuple[int, ...]) -> str:
    """Text of those of `count` axes that must have their full size."""
    full = [str(i) for i in range(count) if i not in broad]
    return f"({', '.join(full)},)" if full else ""


def _shape(given: Input, stored: Storage) -> str:
    texts = _axis_sizes(given, stored)
    return f"({', '.join(texts)}{',' if len(texts) == 1 else ''})"


def _axis_sizes(given: Input, stored: Storage) -> list[str]:
    counts = {"batch": "B", "head": "Hq", "kv_head": "Hkv", "query": "Tq", "key": "Tk", "token": "Tk"}
    if stored.cut:
        counts |= {"batch": "S", "query": "Nq", "key": "Nk", "token": "Nk"}
    return [axis.count(counts.get(axis.kind, "")) for axis in stored.kept(given)]
