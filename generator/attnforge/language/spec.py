"""The YAML text of a spec -> frozen, typed objects."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..expressions.inputs import Input, RuntimeOption
from ..expressions.parser import TALLEST, Runtime, Scope, parse
from ..expressions.tree import Node
from ..source import resources, suggestions
from ..source.errors import Location, Problems
from ..source.fields import Fields, number, outside
from ..source.located_yaml import Value, read
from ..source.located_yaml import parse as parse_yaml
from . import algorithm, domain, exports, layers, let, lost_gradients, names, rope, targets
from .algorithm import FLASH2, Algorithm
from .declarations import dividing, read_inputs, unread
from .domain import Domain
from .layers import ALL_KEYS, LayerTerms
from .rope import Rope
from .terms import Library, Term, is_term

__all__ = ["MaskTerm", "Rope", "ScoreTerm", "Spec", "load"]

MOST_TERMS = 50
KEYS = (
    *("name", "group", "description", "citation", "layout", "heads", "rope", "mask", "score", "domain", "sink"),
    *("dropout", "algorithm", "inputs", "targets", "exports", "latent"),
)


@dataclass(frozen=True)
class MaskTerm:
    """A mask and its label: as the user would name it, "causal" or the text of an inline expression."""

    label: str
    keep: Node


@dataclass(frozen=True)
class ScoreTerm:
    """A score term and its label."""

    label: str
    score: Node

    @property
    def replaces(self) -> bool:
        """True if it does not read the score so far."""
        return all(n.value != "score" for n in self.score.walk())


@dataclass(frozen=True)
class Spec:
    """One attention variant. Names of options and inputs are final, and unique."""

    name: str
    description: str
    citation: str  # the paper or model that it comes from
    path: Path  # the file that it was read from
    source: str  # the file's name as the generated code mentions it, e.g. "specs/causal.yaml"
    packed: bool = False
    grouped: bool = True
    rope: Rope | None = None
    masks: tuple[MaskTerm, ...] = ()
    scores: tuple[ScoreTerm, ...] = ()
    domain: Domain | None = None
    sink: bool = False  # a learned logit of each head joins the denominator
    dropout: bool = False
    algorithm: Algorithm = FLASH2
    inputs: tuple[Input, ...] = ()  # in the order of the keywords
    options: tuple[RuntimeOption, ...] = ()
    layers: LayerTerms = ALL_KEYS  # its terms as the layers of a model would describe them
    exports: tuple[str, ...] = ()  # additional files of the package
    latent: bool = False  # whether q and k may have 64 columns more than the widest tile
    targets: tuple[str, ...] = targets.TARGETS  # the GPUs that it has kernels for
    text: str = ""  # the canonical text of the spec and its terms, for the content hash

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All expressions of its terms."""
        return (*(mask.keep for mask in self.masks), *(term.score for term in self.scores))

    @property
    def given(self) -> Spec:
        """The spec for calls that need only the gradients of q, k and v: no input gets a gradient."""
        return dataclasses.replace(self, inputs=tuple(dataclasses.replace(x, grad=False) for x in self.inputs))


def load(path: Path, *, terms: Sequence[Path]) -> Spec:
    """The spec of a file; `terms` are the folders of terms, searched in order. Raises SpecError with all mistakes."""
    problems = Problems()
    return _loaded(read(path, path.as_posix(), problems), path, terms, problems)


def loads(text: str, folder: Path, *, shown: str) -> Spec:
    """The spec of a text, as if it were a file of its name in `folder`; messages call the text `shown`."""
    problems = Problems()
    document = parse_yaml(text.encode(errors="surrogatepass"), shown, problems)
    names = [e.value.data for e in document.entries() if e.key == "name"] if document else []
    name = names[0] if names and isinstance(names[0], str) and names[0].isidentifier() else "variant"
    path = folder / f"{name}.yaml"
    return _loaded(document, path, resources.terms_for(path), problems)


def _loaded(document: Value | None, path: Path, terms: Sequence[Path], problems: Problems) -> Spec:
    spec = None if document is None or is_term(document, problems) else _Loader(path, terms, problems).spec(document)
    problems.raise_if_any()
    assert spec is not None
    return spec


def _source(path: Path) -> str:
    """The name of a spec in generated files, whatever the working folder is."""
    return f"specs/{path.name}" if path.resolve().parent.name == "specs" else path.name


@dataclass(frozen=True)
class _Keyword:
    """A keyword and the term that gave it its meaning."""

    meaning: Input | RuntimeOption
    term: str


class _Loader:
    def __init__(self, path: Path, folders: Sequence[Path], problems: Problems) -> None:
        self.path, self.problems = path, problems
        self.library = Library(folders, problems)
        self.used: dict[str, Term] = {}
        self.keywords: dict[str, _Keyword] = {}
        self.own: dict[str, Input] = {}
        self.declared: dict[str, Location] = {}
        self.read: set[str] = set()
        # terms and their places; masks only of this file, as no other mask reads a learned input
        self.written: dict[str, list[tuple[Node, Value]]] = {"mask": [], "score": []}

    def spec(self, document: Value) -> Spec | None:
        """The spec; None if the document is no mapping."""
        clear = not self.problems
        fields = Fields(document, KEYS, self.problems, meant=lambda word: suggestions.key(word, self.library.names()))
        if not document.mapping:
            return None
        name = self._name(fields, document)
        inputs = fields.get("inputs")
        self.own = read_inputs(inputs, "spec", self.problems)
        self.declared = {entry.key: entry.at for entry in inputs.entries()} if inputs else {}
        packed = fields.choice("layout", ("dense", "packed"), "dense") == "packed"
        grouped = fields.choice("heads", ("grouped", "equal"), "grouped") == "grouped"
        turned = rope.read(fields.get("rope"), self.problems)
        before = len(list(self.problems))
        masks = [m for item in self._list(fields, "mask") if (m := self._mask(item)) and self._low(m.keep, item)]
        scores = [term for item in self._list(fields, "score") if (term := self._score(item))]
        nodes = (*(m.keep for m in masks), *(s.score for s in scores))
        dividing(inputs, self.own, nodes, self.problems)
        learned = [n for n, k in self.keywords.items() if isinstance(k.meaning, Input) and k.meaning.grad]
        # only if all was understood: the rest may read more inputs
        if clear and self.declared.keys() == self.own.keys() and len(list(self.problems)) == before:
            unread(document, KEYS, self.own.keys() - self.read, self.problems)
            lost_gradients.check_masks(self.written["mask"], self.written["score"], learned, self.problems)
        order = algorithm.read(fields, self.problems)
        if order.backward:
            lost_gradients.check(self.written["score"], learned, self.problems)
        fields.text("group")
        if packed:
            self._cut(fields.found["layout"].at)
        dropped = fields.truth("dropout", "; the share to drop is dropout_p of a call")
        given = tuple(order.seen(k.meaning) for k in self.keywords.values() if isinstance(k.meaning, Input))
        given = tuple(one.packed for one in given) if packed else given
        said = layers.of([m.keep for m in masks], [s.score for s in scores], given)
        wide = self._latent(fields, order)
        asking = exports.Candidate(name, nodes, self.keywords, given, said, packed, turned, dropped, order, wide)
        wanted = exports.read(fields.get("exports"), asking, self.problems)
        plain = {"spec": document.plain(), "terms": {n: t.plain for n, t in sorted(self.used.items())}}
        return Spec(
            name,
            fields.text("description") or f"The attention variant {name}.",
            fields.text("citation") or "",
            self.path,
            _source(self.path),
            packed,
            grouped,
            turned,
            tuple(masks),
            tuple(scores),
            domain.read(fields.get("domain"), "score" in fields, self.problems),
            fields.truth("sink"),
            dropped,
            order,
            given,
            tuple(k.meaning for k in self.keywords.values() if isinstance(k.meaning, RuntimeOption)),
            said,
            wanted,
            wide,
            targets.read(fields.get("targets"), self.problems),
            json.dumps(plain, sort_keys=True, ensure_ascii=False),
        )

    def _name(self, fields: Fields, document: Value) -> str:
        name, stem = fields.text("name"), self.path.stem
        if name is None:
            if "name" not in fields:
                why = names.wrong_package(stem)
                hint = f", and the file's name cannot be it: {why}" if why else f": name: {stem}"
                self.problems.add(document.at, f"name is missing{hint}")
            return stem
        if why := names.wrong_name(name, stem):
            self.problems.add(fields.found["name"].value.at, f"name: {why}")
        return name

    def _list(self, fields: Fields, key: str) -> list[Value]:
        value = fields.get(key)
        if value is None:
            return []
        if value.mapping or not isinstance(value.data, list):
            term = value.raw if value.raw.isidentifier() else f"{{expr: {json.dumps(value.raw)}}}"
            hint = f": write [{term}]" if value.said else ": put it into brackets" if value.mapping else ""
            got = value.shown("list") if value.misquoted("list") else f"{value.kind}{hint}"
            self.problems.add(value.at, f"{key}: expected a list of terms, got {got}")
            return []
        return self._few(value, key)

    def _low(self, keep: Node, value: Value) -> bool:
        """True if joined masks are nested no deeper than an expression may be."""
        if keep.extent[0] > TALLEST:
            self.problems.add(value.at, f"this term joins more than {TALLEST} parts")
            return False
        return True

    def _few(self, value: Value, key: str) -> list[Value]:
        items = list(value.items())
        if len(items) <= MOST_TERMS:
            return items
        self.problems.add(value.at, f"{key}: a list may have {MOST_TERMS} terms, this one has {len(items)}")
        return []

    def _cut(self, at: Location) -> None:
        """Reports the inputs that cannot be cut into packed sequences."""
        for given in (k.meaning for k in self.keywords.values() if isinstance(k.meaning, Input)):
            shared = [str(axis) for axis in given.axes if axis.divided]
            if len(given.rows) > 1 or shared:
                what = "for pairs of positions" if len(given.rows) > 1 else f"with the axis {shared[0]}"
                self.problems.add(at, f"{given.name} is an input {what}: it needs the dense layout")

    def _latent(self, fields: Fields, order: Algorithm) -> bool:
        """Whether q and k may be that wide; reports an earlier algorithm, whose kernels do not support it."""
        found = fields.truth("latent")
        if found and order != FLASH2:
            at = fields.found["latent"].value.at
            self.problems.add(
                at, f"latent: the algorithm {order.name} is for head sizes up to 512; leave one of them out"
            )
        return found

    # -- terms ---------------------------------------------------------------------------------------------------

    def _mask(self, value: Value) -> MaskTerm | None:
        word, inner = self._word(value)
        if word in ("any", "all"):
            return self._joined(value, word, inner)
        if word == "not":
            found = self._mask(inner) if inner is not None else None
            if inner is None:
                self.problems.add(value.at, "not: expected a term, as in `not: causal`")
            return found and MaskTerm(f"not {found.label}", Node("not", (found.keep,), None, "bool"))
        term = self._term(value, word, inner, "mask")
        return term and MaskTerm(*term)

    def _joined(self, value: Value, word: str, inner: Value | None) -> MaskTerm | None:
        if inner is None or not list(inner.items()):
            self.problems.add(value.at, f"{word}: expected a list of terms, as in `{word}: [causal, prefix_lm]`")
            return None
        parts = [self._mask(item) for item in self._few(inner, word)]
        keep = None
        for part in parts:
            if part is None:
                return None
            op = "or" if word == "any" else "and"
            keep = part.keep if keep is None else Node(op, (keep, part.keep), None, "bool")
        if keep is None:
            return None
        return MaskTerm(f"{word}({', '.join(part.label for part in parts if part)})", keep)

    def _score(self, value: Value) -> ScoreTerm | None:
        word, inner = self._word(value)
        if word in ("any", "all", "not"):
            self.problems.add(value.at, f"{word} joins masks, not scores")
            return None
        found = self._term(value, word, inner, "score")
        return found and ScoreTerm(*found)

    def _word(self, value: Value) -> tuple[str | None, Value | None]:
        """The word that a term begins with, and the value that follows it."""
        if isinstance(value.data, str):
            return value.data, None
        entries = list(value.entries())
        if any(entry.key in let.KEYS for entry in entries):
            return let.word(value, self.problems)
        if len(entries) == 1:
            return entries[0].key, entries[0].value
        if value.mapping:
            self.problems.add(
                value.at, f"expected a term with one name, got {len(entries)} keys: options go one level deeper"
            )
        else:
            self.problems.add(value.at, f"expected a term, got {value.raw or value.kind}")
        return None, None

    def _term(
        self, value: Value, word: str | None, inner: Value | None, kind: Literal["mask", "score"]
    ) -> tuple[str, Node] | None:
        if word is None:
            return None
        if word == "expr":
            return self._inline(value, inner, kind)
        if (term := self.library.find(word, value.at, kind)) is None:
            return None
        options = self._options(term, value.at, inner)
        if options is None or (node := term.parse(options, self.problems)) is None:
            return None
        self.used[word] = term
        for given in (inputs := term.filled(options)).values():
            for one in given.behind_numbers(inputs):
                self._take(one.name, one, term.name, value.at)
        if kind == "score":
            self.written[kind].append((node, term.expression))
        return word, node

    def _inline(self, value: Value, inner: Value | None, kind: Literal["mask", "score"]) -> tuple[str, Node] | None:
        if inner is None or not isinstance(inner.data, str):
            example = "k <= q" if kind == "mask" else "score + bias[k]"
            got = "nothing" if inner is None else inner.raw or inner.kind
            self.problems.add(value.at, f'expr: expected an expression such as expr: "{example}", got {got}')
            return None
        why = "{} is a term: it belongs in the list of terms, next to this expression"
        closed = {name: why.format(name) for name in self.library.names()}
        named = next((entry.value for entry in value.entries() if entry.key == "let"), None)
        wrong = self.declared.keys() - self.own.keys()
        scope = let.scope(named, inner, Scope(kind, {}, self.own, wrong, closed=closed), self.problems)
        node = parse(inner.data, scope, inner.place, self.problems)
        if node is None:
            return None
        for found in (n for n in node.walk() if n.op == "input"):
            for one in self.own[str(found.value)].behind_numbers(self.own):
                self.read.add(one.name)
                self._take(one.name, one, "", self.declared[one.name])
        self.written[kind].append((node, inner))
        return let.label(named, inner), node

    def _take(self, keyword: str, meaning: Input | RuntimeOption, term: str, at: Location) -> None:
        """Registers a keyword of `attention`; reports one that has another meaning already."""
        known = self.keywords.setdefault(keyword, _Keyword(meaning, term))
        if (known.meaning, known.term) != (meaning, term):
            whose = f"the term {known.term}" if known.term else "an input of this file"
            self.problems.add(at, f"the keyword {keyword!r} is taken already, by {whose}")

    def _options(
        self, term: Term, at: Location, given: Value | None
    ) -> Mapping[str, int | float | bool | Runtime] | None:
        before = len(list(self.problems))
        if not term.options_known:
            return {}
        if given is not None and not term.options:
            self.problems.add(given.at, f"{term.name} has no options")
            return None
        fields = Fields(given, term.options, self.problems, f"option of {term.name}:")
        found: dict[str, int | float | bool | Runtime] = {}
        for option in term.options.values():
            value = fields.get(option.name)
            if value is None:
                if option.default is None:
                    if given is None or given.mapping:
                        self.problems.add(
                            at, f"{term.name}: {option.name} is missing, as in {term.name}: {{{option.name}: ...}}"
                        )
                else:
                    found[option.name] = option.default
                continue
            if value.data == "runtime":
                if option.runtime is None or option.type == "bool":
                    self.problems.add(value.at, f"{option.name}: this option cannot be left to the call")
                    continue
                keyword = RuntimeOption(option.runtime, option.type, option.minimum, option.maximum)
                self._take(option.runtime, keyword, term.name, at)
                found[option.name] = Runtime(option.runtime, option.type)
                continue
            plain = number(value, option.type, self.problems, option.name, option.left)
            if plain is None:
                continue
            if why := outside(plain, option.minimum, option.maximum):
                self.problems.add(value.at, f"{option.name}: {why}")
            found[option.name] = plain
        for name, why in term.too_small(found) if len(list(self.problems)) == before else ():
            self.problems.add(value.at if (value := fields.get(name)) else at, why)
        return None if len(list(self.problems)) > before else found
