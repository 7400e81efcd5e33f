"""The storage of a cache: keys and values in pages that a table lists, or an axis of sequences with room for each."""

from __future__ import annotations

import dataclasses

from ..expressions.inputs import Input
from ..language.spec import Spec
from .parameters import Parameter
from .statements import Statement


@dataclasses.dataclass(frozen=True)
class Paged:
    """Keys as [pages, slot in the page, heads, columns]; without a page table each sequence has a page of its own."""

    functions = ("find_sequence", "find_first_key", "find_tile")  # that decoding calls

    def sequence(self) -> Statement:
        """The statement that finds a sequence's first new token, and its numbers of new tokens and of keys."""
        given = "seq_lens_ptr, cu_seqlens_q_ptr, b, tokens, longest, max_seqlen_k"
        return Statement("token, q_len, k_len", f"find_sequence({given})")

    def first_key(self) -> Statement:
        """The statement that finds the slot of a sequence's first key if the sequence has a page of its own."""
        return Statement("k_begin", "find_first_key(k_starts_ptr, b, k_len, k_places)")

    def page(self, names: str, position: str, inside: str) -> Statement:
        """The statement that finds the pages of some positions, and the slots in them."""
        return Statement(names, f"find_page(pages_ptr, b, {position}, {inside}, k_begin, PAGE)")

    def holds(self, given: Input) -> bool:
        """True if an input is stored in pages as keys are: it has one value for each token of each sequence."""
        rows = [axis for axis in given.axes if axis.kind in ("query", "key", "token")]
        own = "batch" in given.kinds and given.shared_batch is None
        return own and len(rows) == 1 and rows[0].kind != "query" and not rows[0].divided

    def follows(self, given: Input) -> bool:
        """True if an input is laid out as new tokens are: if these are packed, it has no axis of sequences."""
        rows = [axis for axis in given.axes if axis.kind in ("query", "key", "token")]
        return given.shared_batch is None and len(rows) == 1 and rows[0].kind == "query" and not rows[0].divided


PAGED = Paged()


def decoded(spec: Spec) -> Spec:
    """The spec as decode kernels see it: sequences are stored as in a cache, and nothing gets a gradient."""
    inputs = tuple(dataclasses.replace(given, grad=False) for given in spec.inputs)
    return dataclasses.replace(spec, packed=False, grouped=True, inputs=inputs)


def cache_strides(x: str) -> tuple[Parameter, ...]:
    """The strides of a cache's tensor, whose pages take the place of a batch."""
    axes = ("page", "token", "head")
    return tuple(Parameter(f"{x}_stride_{axis}", "i32", f"{x}.stride({i})") for i, axis in enumerate(axes))


def scale_strides(x: str) -> tuple[Parameter, ...]:
    """The strides of a cache's scales; 0 along axes that share one."""
    axes = ("sequence", "page", "token", "head")
    return tuple(
        Parameter(f"{x}_scale_stride_{axis}", "i32", f"runtime.stride({x}_scale, {i})") for i, axis in enumerate(axes)
    )
