"""Decoding with the bits of training: what the forward pass reads from a cache, or why it cannot run over one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from ..expressions import whole_numbers
from ..expressions.inputs import Input
from ..expressions.tree import Node
from ..language.spec import Spec
from ..printing import printers
from . import reach, tile_ranges
from .arguments import of_numbers
from .cached_arguments import CachedArgument
from .paged import PAGED
from .statements import Statement


@dataclass(frozen=True)
class CachedTraining:
    """How the forward pass of a variant runs over the sequences in a cache."""

    spec: Spec  # as decode kernels see it
    arguments: tuple[CachedArgument, ...]

    @property
    def of_keys(self) -> tuple[Statement, ...]:
        """The statements that take inputs out of pages, as keys are taken, with `keys_of`."""
        return tuple(_from_pages(given) for given in self._inputs if PAGED.holds(given))

    @property
    def of_tokens(self) -> tuple[Statement, ...]:
        """The statements that unpack inputs of packed new tokens, as queries are unpacked, by `place`."""
        return tuple(_from_tokens(given) for given in self._inputs if PAGED.follows(given) and "batch" in given.kinds)

    @property
    def shared(self) -> tuple[str, ...]:
        """Inputs laid out as new tokens are, but shared by all sequences: packed ones cannot be unpacked."""
        return tuple(
            one.argument.name
            for one, given in zip(self._tensors, self._inputs, strict=True)
            if PAGED.follows(given) and "batch" not in given.kinds
        )

    @property
    def checked(self) -> tuple[str, ...]:
        """The tensors that decide whether a call can be served."""
        packed = ("cu_seqlens_q",) if self.shared else ()
        return ("q", "k_cache", *packed, *(("sinks",) if self.spec.sink else ()))

    @property
    def by_position(self) -> bool:
        """Whether keys have to begin with the first one: an input outside of pages is read by positions of keys."""
        along = ("key", "token")
        return any(not PAGED.holds(given) and any(kind in along for kind in given.kinds) for given in self._inputs)

    @property
    def at_keys(self) -> bool:
        """Whether queries have to be at positions of keys: an input is read at both."""
        return any("token" in given.kinds for given in self._inputs)

    @cached_property
    def seen(self) -> str:
        """Text of which keys new tokens see, over `key` and `begin`; "" if numbers hide no earlier ones."""
        found = []
        for span in tile_ranges.spans(self.spec, "k"):
            ends = [end for end in _ends(span.lo, "max") if self._told(end, {"q_first"})]
            first = [self._compared(">=", end) for end in ends if "q_first" in _leaves(end)]
            heads = [self._compared("<", end) for end in _ends(span.hi, "min") if self._told(end, set())]
            if not (first or heads):
                return ""
            found.append(" & ".join(first or heads[:1]))
        return " | ".join(found)

    def _told(self, end: Node, more: set[str]) -> bool:
        """Whether numbers of the call, and `more` of each sequence, determine an end of a range."""
        return _leaves(end) <= reach.numbers(self.spec) | more

    def _compared(self, op: str, end: Node) -> str:
        """The host's text that compares keys with an end for each sequence's new tokens; it raises for no number."""
        leaf, limits = {"q_first": "begin[:, None]"}, whole_numbers.limits(self.spec.inputs, self.spec.options)
        found = Node(op, (Node("var", value="key", type="int"), of_numbers(end)), type="bool")
        return f"({printers.torch(found, lambda x: leaf.get(str(x.value), str(x.value)), limits, total=True)})"

    @property
    def entries(self) -> tuple[str, ...]:
        """The host's texts of a sequence's values in the tensor `entries`: see `Dense`."""
        first_key = "none" if self.by_position else "first_key"
        if self.at_keys:
            return "skipped", "q_len - skipped", first_key, "k_len", "begin + skipped"
        return "none", "q_len", first_key, "k_len", "begin"

    @property
    def _tensors(self) -> tuple[CachedArgument, ...]:
        return tuple(one for one in self.arguments if one.argument.axes)

    @property
    def _inputs(self) -> Iterator[Input]:
        inputs = {given.name: given for given in self.spec.inputs}
        return (inputs[one.argument.code] for one in self._tensors)


def refusal(spec: Spec, by_tile: bool) -> str:
    """Why decoding cannot have the bits of training, or ""; `by_tile`: a row's bits depend on where its tile begins."""
    if spec.packed:
        return "attention of this package takes packed sequences alone, and those of a cache have room behind them"
    if any(given.scan for given in spec.inputs):
        return "sums over tokens start at the first row of a tile: the bits of a row depend on where that is"
    if by_tile:
        return "the bits of a row depend on its tile with a mask such as block_sparse"
    return ""


def _ends(end: Node | None, extreme: str) -> tuple[Node, ...]:
    """The ends of which this one is the `extreme`."""
    return () if end is None else end.args if end.op == extreme else (end,)


def _leaves(end: Node) -> set[str]:
    """The names that an end reads."""
    return {str(node.value) for node in end.walk() if not node.args and node.op != "num"}


def _from_pages(given: Input) -> Statement:
    """The statement that takes an input out of pages; an axis of size 1 broadcasts."""
    row = next(i for i, kind in enumerate(given.kinds) if kind in ("key", "token"))
    ahead, back = _moved(given.kinds.index("batch"), row)
    sizes = ", ".join(("*k_cache.shape[:2]", *["-1"] * (len(given.axes) - 2)))
    return _where_given(given, f"keys_of({given.name}{ahead}.expand({sizes})){back}")


def _from_tokens(given: Input) -> Statement:
    """The statement that unpacks an input of packed new tokens, which lack the axis of sequences."""
    batch, row = given.kinds.index("batch"), given.kinds.index("query")
    packed = row - (batch < row)
    ahead = f".movedim({packed}, 0)" if packed else ""
    sizes = ", ".join(("q.shape[0]", *["-1"] * (len(given.axes) - 2)))
    return _where_given(given, f"{given.name}{ahead}.expand({sizes})[place]{_moved(batch, row)[1]}")


def _where_given(given: Input, value: str) -> Statement:
    return Statement(given.name, value, condition="" if given.default is None else f"{given.name} is not None")


def _moved(batch: int, row: int) -> tuple[str, str]:
    """Texts that move the axes of sequences and of rows to the front, and back."""
    if (batch, row) == (0, 1):
        return "", ""
    return f".movedim(({batch}, {row}), (0, 1))", f".movedim((0, 1), ({batch}, {row}))"
