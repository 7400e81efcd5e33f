"""A spec -> the texts of a module for PyTorch's FlexAttention: `score_mod`, `mask_mod` and what they capture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..expressions import whole_numbers
from ..expressions.folding import fold
from ..expressions.inputs import Axis, Input
from ..expressions.tree import Node
from ..language.spec import Spec
from ..plan import storage
from ..plan.arguments import Argument
from ..plan.finite import is_finite, sheltered, wild
from ..plan.names_in_code import in_code
from ..plan.statements import labelled, names
from ..printing import printers

_KV_HEAD = "h // (heads // kv_heads)"
# names inside the two functions, in the order of their definition
_PLACES = {"q_pos": "q_idx + shift", "kv_h": _KV_HEAD}
_FAR_PLACES = {"q_pos": "q_idx.long() + shift", "k_pos": "kv_idx.long()", "kv_h": _KV_HEAD}
_PACKED_PLACES = {
    "sequence": "sequence_q[q_idx]",
    "q_pos": "place_q[q_idx]",
    "k_pos": "place_k[kv_idx]",
    "q_len": "length_q[sequence]",
    "k_len": "length_k[sequence]",
    "first": "first_k[sequence]",
    "kv_h": _KV_HEAD,
}
# parameters of the factory, if it needs them: the type, and the text of the argument in `attention`
_FACTS = {
    "batch": ("int", "q.shape[0]"),
    "heads": ("int", "q.shape[1]"),
    "kv_heads": ("int", "k.shape[1]"),
    "queries": ("int", "q.shape[2]"),
    "keys": ("int", "k.shape[2]"),
    "device": ("torch.device", "q.device"),
    "dtype": ("torch.dtype", "dtype"),
}
_OUTSIDE = frozenset(("cos", "sin", "positions", "sinks"))  # keywords that `attention` alone needs
_KEEP = Node("local", (), "keep", "bool")
_SHOWN = "score = torch.where(keep, score, 0.0)"
_SCORE = Node("var", (), "score")
_SHIFT = Node("option", (), "shift", "int")
_ZERO, _ONE = Node("num", (), 0, "int"), Node("num", (), 1, "int")


class Inexpressible(Exception):
    """FlexAttention cannot express what a spec asks for; the message says why."""


@dataclass(frozen=True)
class Flex:
    """The texts that the module's template prints."""

    arguments: tuple[Argument, ...]  # the keywords that the factory takes
    made: dict[str, str]  # texts of the values of those that a call leaves out, by their names in code
    facts: tuple[tuple[str, str, str], ...]  # further parameters of the factory: name, type, text in `attention`
    prepare: tuple[str, ...]  # statements of the factory
    views: tuple[str, ...]  # further statements of it: a name for each place where an input is read
    score: tuple[str, ...]  # the statements of score_mod; none if there is no such function
    mask: tuple[str, ...]  # the statements of mask_mod
    mask_batch: str  # text of the number of batch entries with different masks; "None" if there is one for all
    mask_heads: str  # the same for heads
    read_at_both: tuple[str, ...]  # inputs that need a key for each query
    words: frozenset[str]  # all names in these texts
    tiles: str  # the keyword that takes a mask's tiles


def build(spec: Spec, arguments: Iterable[Argument]) -> Flex:
    """Prints the terms of a spec for FlexAttention; `arguments` are the plan's."""
    if spec.dropout:
        raise Inexpressible(
            "FlexAttention has no dropout: its functions see scores, never the weights after the softmax"
        )
    arguments, spec = tuple(arguments), in_code(spec)
    taken = tuple(a for a in arguments if a.name not in _OUTSIDE)
    inputs = {given.name: given for given in spec.inputs}
    scores = [_whole(_bound(sheltered(term.score, inputs), spec)) for term in spec.scores]
    masks = [_bound(mask.keep, spec) for mask in spec.masks]
    limits = whole_numbers.limits(spec.inputs, spec.options)
    far = whole_numbers.stretched((*scores, *masks), limits)
    numbers = _Numbers(limits)
    scores, masks = [numbers.read(node) for node in scores], [numbers.read(node) for node in masks]
    # a derivative may be infinite or NaN where the mask hides the score: terms must not see such scores
    guarded = (spec.packed or bool(masks)) and wild((term.score for term in spec.scores), inputs)
    leaf, seen = (_Leaf(spec, bool(far & {"q", "k"}), limits) for _ in range(2))
    leaf.learn(scores, guarded)
    seen.detach(masks)
    score = []
    if guarded:
        hidden = "a NaN or an infinite derivative elsewhere reaches no gradient"
        score = [*labelled("keep = mask_mod(b, h, q_idx, kv_idx)", hidden), _SHOWN]
    score += [f"{name} = {text}" for name, text in leaf.named.items()]
    for i, (node, formula) in enumerate(zip(scores, spec.scores, strict=True)):
        if guarded and i and not is_finite(scores[i - 1]):
            score.append(_SHOWN)
        score += labelled(f"score = {leaf.text(node)}", formula.label)
    mask = ["keep = sequence == sequence_k[kv_idx]  # a sequence sees itself only"] if spec.packed else []
    for node, term in zip(masks, spec.masks, strict=True):
        joined = Node("and", (_KEEP, node), None, "bool") if mask else node
        mask += labelled(f"keep = {_keep(joined, seen)}", term.label)
    score, mask = _placed(score, leaf.places), _placed(mask, leaf.places)
    prepare = [line for given in spec.inputs if given.axes for line in _prepared(given, spec, given.name in far)]
    prepare += [f"{name} = {text}" for text, name in numbers.named.items()]
    rows = {} if spec.packed else {"queries": "q_len", "keys": "k_len"}
    made = {a.code: a.made(**rows) for a in taken if a.absent}
    words = _words((*score, *mask, *prepare, *made.values()))
    words |= {"queries", "keys"} if spec.packed else set()  # numbers of rows, with those outside all sequences
    return Flex(
        arguments=taken,
        made=made,
        facts=tuple((name, *fact) for name, fact in _FACTS.items() if name in words),
        prepare=tuple(prepare),
        views=(*leaf.views, *seen.views),
        score=tuple(score),
        mask=tuple(mask),
        mask_batch="q.shape[0]" if "b" in _words(mask) else "None",
        mask_heads="q.shape[1]" if "h" in _words(mask) else "None",
        read_at_both=tuple(i.keyword for i in spec.inputs if "token" in i.kinds),
        words=frozenset(words),
        tiles=_free("tiles", {a.name for a in arguments}),
    )


def _free(name: str, taken: Collection[str]) -> str:
    """The name, with underscores appended until no keyword has it."""
    return _free(f"{name}_", taken) if name in taken else name


def _words(texts: Iterable[str]) -> set[str]:
    return set(names(*(text.split("#")[0] for text in texts)))


def _placed(lines: Sequence[str], places: Mapping[str, str]) -> list[str]:
    """The statements, after the definitions of the places that they name."""
    needed: list[str] = []
    words = _words(lines)
    for name, text in reversed(list(places.items())):
        if name in words:
            needed.insert(0, f"{name} = {text}")
            words |= _words([text])
    return [*needed, *lines]


def _bound(node: Node, spec: Spec) -> Node:
    """An expression with Python numbers marked as such: inputs without axes, but not lengths of packed sequences."""
    return _typed(fold(node), {i.name for i in spec.inputs if not i.axes}, spec.packed)


def _typed(node: Node, numbers: Collection[str], packed: bool) -> Node:
    if node.op == "input" and node.value in numbers:
        return Node("option", (), node.value, node.type)
    if packed and node.op == "var" and node.value in ("q_len", "k_len"):
        return Node("local", (), node.value, node.type)
    return Node(node.op, tuple(_typed(arg, numbers, packed) for arg in node.args), node.value, node.type)


def _whole(node: Node) -> Node:
    """A term with the score in it, so that its text has the shape of scores and a gradient, even if that is 0."""
    return node if _SCORE in node.walk() else Node("+", (Node("*", (_SCORE, _ZERO)), node))


def _keep(node: Node, leaf: _Leaf) -> str:
    text = leaf.text(node)
    return f"torch.full_like(q_idx, {text}, dtype=torch.bool)" if printers.is_scalar(node) else text


class _Numbers:
    """Names for expressions of numbers alone that may not be finite, as the two functions must not raise errors."""

    def __init__(self, limits: Mapping[str, whole_numbers.Range]) -> None:
        self.limits = limits
        self.named: dict[str, str] = {}  # by their texts

    def read(self, node: Node) -> Node:
        """The expression with such parts replaced by names."""
        if printers.is_scalar(node):
            plain, text = (
                printers.torch(node, lambda leaf: str(leaf.value), self.limits, total=total) for total in (False, True)
            )
            if "torch." in text:
                # through tensors only if necessary: a compiler would break the graph there
                text = text if text == plain else f"_number(lambda: {plain}, lambda: {text})"
                name = self.named.setdefault(text, f"number_{len(self.named) + 1}")
                return Node("option", (), name, node.type, definition=node)
        return replace(node, args=tuple(map(self.read, node.args)))


class _Leaf:
    """Texts of leaves inside one of the two functions."""

    def __init__(self, spec: Spec, far: bool, limits: Mapping[str, whole_numbers.Range]) -> None:
        self.limits = limits
        self.packed, self.stored = spec.packed, storage.of(spec)
        self.places = _PACKED_PLACES if spec.packed else _FAR_PLACES if far else _PLACES
        self.inputs = {i.name: i for i in spec.inputs}
        self.views: list[str] = []  # statements of the factory
        self.named: dict[str, str] = {}  # local names of score_mod
        self._viewed: dict[Node, str] = {}
        self._named: dict[Node, str] = {}

    def _learned(self, terms: Iterable[Node]) -> Counter[Node]:
        return Counter(n for t in terms for n in t.walk() if n.op == "input" and self.inputs[str(n.value)].grad)

    def detach(self, masks: Iterable[Node]) -> None:
        """Makes masks read learned inputs detached, as mask_mod may not capture tensors that have a gradient."""
        for node in self._learned(masks):
            self._viewed[node] = f"{node.value}_still"
        self.views = [f"{name}_still = {name}.detach()" for name in dict.fromkeys(str(n.value) for n in self._viewed)]

    def learn(self, scores: Iterable[Node], guarded: bool) -> None:
        """Names the reads of learned inputs in scores.

        The compiled backward pass allows one read of a captured tensor that has a gradient. So a repeated read becomes
        a local name, and each different read gets a view of the tensor.
        """
        found = self._learned(scores)
        for name in dict.fromkeys(str(node.value) for node in found):
            reads = [node for node in found if node.value == name]
            if len(reads) > 1:
                self._viewed |= {node: f"{name}_{_ending(node, i)}" for i, node in enumerate(reads, 1)}
                self.views += [f"{self._viewed[node]} = {name}.view_as({name})" for node in reads]
        for node, count in found.items():
            if count > 1 or guarded:
                text = self._read(node)
                local = f"{self._viewed.get(node, node.value)}_at"
                self.named[local] = f"torch.where(keep, {text}, 0.0)" if guarded else text
                self._named[node] = local

    def __call__(self, node: Node) -> str:
        name = str(node.value)
        if node.op == "input":
            return self._named[node] if node in self._named else self._read(node)
        if node.op != "var":
            return name
        key = "k_pos" if "k_pos" in self.places else "kv_idx"
        return {"q": "q_pos", "k": key}.get(name, "sequence" if name == "b" and self.packed else name)

    def text(self, node: Node, *, atom: bool = False) -> str:
        """The text of an expression inside the two functions; `atom`: whether it will be called or indexed."""
        return printers.torch(node, self, self.limits, atom=atom, total=True)

    def _read(self, node: Node) -> str:
        given, written = self.inputs[str(node.value)], list(node.args)
        places = {"batch": "b", "head": "h", "kv_head": "kv_h", "query": "q_idx", "key": "kv_idx"}
        if self.packed:
            places["batch"] = "sequence"
        texts = []
        for i, axis in enumerate(given.axes):
            if i in given.written:
                texts.append(self._index(axis, written.pop(0)))
            elif axis in self.stored.kept(given):
                texts.append(axis.place(places[axis.kind]))
        return f"{self._viewed.get(node, given.name)}[{', '.join(texts)}]"

    def _index(self, axis: Axis, index: Node) -> str:
        """An index that is written in the spec, clamped to its axis if it may leave it."""
        index = fold(index)
        own = {"token": ("q", "k"), "query": "q", "key": "k"}.get(axis.kind, ())
        if index.op == "var" and index.value in own:
            if index.value == "k":
                return "kv_idx"
            return "q_idx" if axis.kind == "query" else f"first + {self(index)}" if self.packed else self(index)
        if axis.kind == "query":
            index = _int("-", index, _SHIFT)
        last = Node("num", (), int(axis.size) - 1, "int")
        if axis.kind != "size":
            length = "q_len" if axis.kind == "query" else "k_len"
            last = _int("-", Node("local" if self.packed else "var", (), length, "int"), _ONE)
        if self.packed and axis.kind == "token":
            return f"first + {self.text(_clamped(index, last))}"
        if printers.is_scalar(index):
            # with tensor indices beside it, vmap rejects a number, and a compiled backward pass a constant tensor
            text = self.text(fold(_clamped(index, last)))
            return f"kv_idx.clamp({text}, {text})"
        return f"{self.text(index, atom=True)}.clamp(0, {self.text(last)})"


def _int(op: str, *args: Node) -> Node:
    return Node(op, args, None, "int")


def _clamped(index: Node, last: Node) -> Node:
    return _int("min", _int("max", index, _ZERO), last)


def _ending(read: Node, number: int) -> str:
    """The suffix of a name, for one of several ways to read an input."""
    position = str(read.args[0].value) if len(read.args) == 1 else ""
    return position if position in ("q", "k") else f"at{number}"


def _prepared(given: Input, spec: Spec, far: bool) -> Iterable[str]:
    """Statements that turn an input into the tensor that the functions index."""
    text = given.name
    if given.pairs:
        # leading axes may be missing, as in any broadcast
        text += f"[(None,) * ({len(given.axes)} - {given.name}.dim())]"
    if given.dtype == "float":
        text += ".double()" if given.scan else ".to(dtype)"
    elif given.dtype == "int" and far:
        text += ".long()"
    axes = storage.of(spec).kept(given)
    kinds = [axis.kind for axis in axes]
    if given.scan and spec.packed:
        at = kinds.index("token")
        where = f", {at}" if at else ""
        parts = f"{text}.tensor_split(cu_seqlens_k.tolist(){where})"
        text = f"torch.cat([tokens.cumsum({at}) for tokens in {parts}]{where})"
    elif given.scan:
        text += f".cumsum({kinds.index('token')})"
    if given.scan:
        text += ".to(dtype)"
    counts = {"batch": "batch", "head": "heads", "kv_head": "kv_heads"}
    counts |= {"batch": "len(length_q)"} if spec.packed else {"query": "q_len", "key": "k_len"}
    sizes = []
    for i, axis in enumerate(given.axes):
        if axis in axes:
            sizes.append(axis.count(counts[axis.kind]) if axis.kind in counts and i not in given.written else "-1")
    # indexing does not broadcast an axis of size 1
    if set(sizes) != {"-1"}:
        text += f".expand({', '.join(sizes)})"
    if text != given.name:
        yield f"{given.name} = {text}"
