"""The sections of a file of kernels: each kernel, preceded by the jitted functions that it is the first to call."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..expressions.inputs import Input
from ..printing.printers import TRITON_HELPERS
from . import slopes, uniform_entries
from .package_kernels import PackageKernels
from .parameters import Function, Kernel, jitted


@dataclass(frozen=True)
class Section:
    """Some functions, and the kernel after them; None if several kernels call the functions."""

    functions: tuple[Function, ...]
    kernel: Kernel | None = None


def build(s: PackageKernels, helpers: frozenset[str], defaults: tuple[Input, ...]) -> tuple[Section, ...]:
    """The sections in order; `helpers` are functions that expressions call, `defaults` the inputs with a default."""
    expressions = jitted("portable/expressions", *(name for name in ("moved", *TRITON_HELPERS) if name in helpers))
    made = (Function("portable/defaults.jinja", "default", (given,)) for given in defaults)
    found = [Section((*expressions, *_ranges(s), *made, *_rows(s, helpers)))]
    states = tuple(_states(s))
    if not s.bounds and states:
        found.append(Section(states))
    before = {
        "bounds": (*states, *jitted("portable/tiles", "store_extremes")),
        "ranges": jitted("portable/tiles", "add_states", "store_range", "load_range"),
        "rotate": jitted("portable/rotation", *_rotation(s)),
        "scan": jitted("portable/stores", "later", "last_of"),
        **dict.fromkeys(("shorten", "horizons"), jitted("portable/loads", "largest_norm", "least_fall")),
    }
    for kernel in s.lists[:1]:
        before[kernel.name] = jitted("portable/tiles", "tile_list", "append", "list_range", "listed")
    found += [Section(before.get(kernel.name, ()), kernel) for kernel in s.all]
    return tuple(found)


def _ranges(s: PackageKernels) -> Iterator[Function]:
    """The functions that compute ranges of tiles."""
    a, walks = s.analysis, s.spec.algorithm.walks
    told = a.key_states is not None
    alone = s.pairs or not told  # kernels for pairs compute ranges themselves
    placed = [tiles for states in s.listed if (tiles := s.placed(states))]
    if alone or placed:
        yield Function("portable/tiles.jinja", "tile_range")
    if (alone and "k" in walks) or a.keys in placed:
        yield Function("portable/tiles.jinja", "range_function", (a.keys,))
    if (not told and "q" in walks) or a.queries in placed:
        yield Function("portable/tiles.jinja", "range_function", (a.queries,))
    if s.scanned and not s.lists:
        yield Function("portable/tiles.jinja", "keep_documents")
    if slopes.falling(s.spec):
        yield Function("portable/tiles.jinja", "keep_near")


def _states(s: PackageKernels) -> Iterator[Function]:
    """The functions that find the states of tiles from the call's tensors."""
    keys, queries = s.analysis.key_states, s.analysis.query_states
    if not keys:
        return
    yield Function("portable/tiles.jinja", "state_function", (keys,))
    if queries and queries.walked:
        yield Function("portable/tiles.jinja", "state_function", (queries,))
    if keys.blocks:
        yield Function("portable/tiles.jinja", "block_extremes")


def _rows(s: PackageKernels, helpers: frozenset[str]) -> Iterator[Function]:
    """The functions that load and store rows, or entries."""
    a, spec = s.analysis, s.spec
    forms = {access.form for access in a.by_query.accesses}
    tables = a.by_query.tables
    tied = (*(s for s in tables if s.access.tie), *a.by_key.tables)
    uniform = tuple(entry for terms in (a.by_query, a.by_key) for entry in uniform_entries.of(terms).all)
    alone = {entry.total for entry in uniform if entry.alone}
    wanted = {
        "loads to_32bit load_vector": "row" in forms or bool(uniform) or spec.algorithm.backward,
        "loads load_pairs": "pair" in forms,
        "loads within": "entry" in forms or "within" in helpers,
        "stores add_by_entry": any(s.access.tie is None for s in tables),
        "stores add_by_entry_at": any(kind == "*i32" for kind in a.by_query.tables_back.values()),
        "stores add_by_row_and_entry": any(s not in alone for s in tied),
        "stores add_to_entries": any(s in alone for s in tied),
        "loads batch_and_head": spec.algorithm.by_query,
        "loads load_rows": s.described,
        "stores add_product": True,
        "stores kept": spec.dropout,
        "stores kept_alone": spec.dropout and bool(s.pairs),
        "stores partial_row_sums": spec.algorithm.by_query,
        "stores store_rows": True,
    }
    yield from (*s.storage.functions, *s.own.functions)
    for names in (names for names, needed in wanted.items() if needed):
        template, *functions = names.split()
        yield from jitted(f"portable/{template}", *functions)


def _rotation(s: PackageKernels) -> Iterator[str]:
    yield from ("load_cos_sin", "rotated", "rotate_pairs")
    if s.spec.rope and s.spec.rope.dims:
        yield "pass_on"
    if s.spec.algorithm.backward:
        yield "unrotate"
