"""The reads of a kernel: what the terms of a spec read, along which sides it varies, and which terms do so."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ..expressions import whole_numbers
from ..expressions.inputs import Input
from ..expressions.tree import Node
from ..language.spec import Spec
from ..printing import printers
from . import conditions
from .access import Access
from .distance_reads import NOTHING, DistanceReads
from .sides import SIDE_OF, Side
from .statements import Place


@dataclass(frozen=True)
class KernelAccesses:
    """What a kernel's expressions over tiles read; `own` is the side whose tiles its programs own.

    Programs that own a `whole_head` go through the tiles of their side one after the other; their scores are by query.
    """

    spec: Spec
    own: Side
    whole_head: bool = False
    by_distance: DistanceReads = NOTHING  # parts that it loads; others by distance are loaded by a family

    @property
    def down(self) -> Side:
        """The side whose rows run down a tile of scores."""
        return "q" if self.whole_head else self.own

    def text(self, node: Node) -> str:
        """Triton text of an expression over tiles."""
        return printers.triton(node, self.leaf_text, self.limits)

    @cached_property
    def limits(self) -> dict[str, whole_numbers.Range]:
        """The ranges in which the call's numbers lie."""
        return whole_numbers.limits(self.spec.inputs, self.spec.options)

    def beside_tiles(self, node: Node) -> Node:
        """The expression with conditions that may be combined with tiles."""
        return conditions.beside_tiles(node, self.reach)

    def leaf_text(self, node: Node) -> str:
        """Text of a leaf of an expression."""
        name = str(node.value)
        if node.op == "var":
            if name in ("q", "k"):
                return f"{name}_pos{self.way(name)}"
            if name == "heads":
                return "Hq"
            return "h" if name == "kv_h" and not self.spec.grouped else name
        if node.op != "input":
            return name
        access = self.access(node)
        return access.name + (self.way(access.side) if access.side else "")

    def way(self, side: str) -> str:
        """The index that broadcasts a vector of one side's rows over a tile."""
        return "[:, None]" if side == self.down else "[None, :]"

    def access(self, node: Node) -> Access:
        """The access that an input node reads."""
        return self._known[node.value, node.args]

    @cached_property
    def _known(self) -> dict[tuple[object, tuple[Node, ...]], Access]:
        given = {i.name: i for i in self.spec.inputs}
        numbered = {(access.input.name, access.index): access for access in self.by_distance.accesses}
        found: dict[tuple[object, tuple[Node, ...]], Access] = {}
        for node in (n for root in self.spec.nodes for n in root.inside_out() if n.op == "input"):
            key, number = (str(node.value), node.args), sum(name == node.value for name, _ in found)
            found.setdefault(key, numbered.get(key, Access(given[key[0]], node.args, number)))
        return found

    @cached_property
    def accesses(self) -> tuple[Access, ...]:
        """All accesses with axes, in the order in which terms read them; those in an index precede what it indexes."""
        return tuple(access for access in self._known.values() if access.input.axes)

    @cached_property
    def scored(self) -> frozenset[Access]:
        """The accesses that scores read."""
        return frozenset(access for access, by in self._readers.items() if any(kind == "score" for kind, _ in by))

    @cached_property
    def _readers(self) -> dict[Access, frozenset[Place]]:
        """The terms that read an access."""
        roots: list[tuple[Place, Node]] = [(("mask", i), mask.keep) for i, mask in enumerate(self.spec.masks)]
        roots += [(("score", i), term.score) for i, term in enumerate(self.spec.scores)]
        found: dict[Access, frozenset[Place]] = {}
        for place, node in roots:
            read = {self.access(n) for n in node.walk() if n.op == "input"}
            for access in read.union(*map(self.by_distance.inside, read)):
                found[access] = found.get(access, frozenset()) | {place}
        return found

    def readers(self, given: Access | Input) -> frozenset[Place]:
        """The terms that read an access, or any access to an input."""
        if isinstance(given, Access):
            return self._readers[given]
        return frozenset().union(*(by for access, by in self._readers.items() if self.whole(access.input) == given))

    def extent(self, access: Access) -> frozenset[str]:
        """The sides along which an access varies inside a tile."""
        if access.form == "distance":
            return frozenset({"q", "k"})
        implied = (kind for i, kind in enumerate(access.input.kinds) if i not in access.input.written)
        found = frozenset(SIDE_OF[kind] for kind in implied if kind in SIDE_OF)
        return found.union(*map(self.reach, access.index))

    def reach(self, node: Node) -> frozenset[str]:
        """The sides along which an expression varies inside a tile."""
        if node.op == "var":
            return frozenset({str(node.value)} & {"q", "k"} if node.value != "score" else {"q", "k"})
        own = self.extent(self.access(node)) if node.op == "input" else frozenset[str]()
        return own.union(*map(self.reach, node.args))

    def per_head(self, access: Access) -> bool:
        """True if an access differs between query heads."""
        nodes = [n for index in access.index for n in index.walk()]
        inner = any(self.per_head(self.access(n)) for n in nodes if n.op == "input")
        return inner or "head" in access.input.kinds or any(n.op == "var" and n.value == "h" for n in nodes)

    def whole(self, given: Input) -> Input:
        """The input that the kernel takes: the given one, or the one that it is a part of."""
        return next(i for i in self.spec.inputs if i.name == given.source) if given.source else given
