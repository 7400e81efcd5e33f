"""The lines of rendered kernels that stem from each term of the spec.

Statements are compared as syntax, so that neither line breaks nor brackets matter. A statement is a term's own if its
value is what the plan printed for the term, if it reads or makes a name that the plan gave to the term alone, or if it
loads an input for it. Of the ends of tile ranges, a term's own are those that would be others without it.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field

from ..expressions.tree import Node
from ..language.spec import Spec
from ..plan import plan, tile_ranges
from ..plan.access import Site
from ..plan.kernel_terms import KernelTerms
from ..plan.statements import label, targets


@dataclass
class _Marks:
    """The marks by which a term's statements are found."""

    values: set[str] = field(default_factory=set)  # syntax of what is assigned
    names: set[str] = field(default_factory=set)  # its own, wherever they stand
    made: set[str] = field(default_factory=set)  # assigned for it, read by others too
    ends: set[str] = field(default_factory=set)  # syntax of arguments in the functions that work out ranges


def lines(spec: Spec, text: str) -> list[frozenset[int]]:
    """For each line of the kernels' text the terms that it stems from, counted over the masks, then the scores."""
    marks = _marks(spec)
    found: list[set[int]] = [set() for _ in text.splitlines()]
    for function in (node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)):
        ranged = function.name in ("key_tiles", "query_tiles")
        for first, last, owns in _ends(function, marks) if ranged else _statements(function, marks):
            for line in range(first, last + 1):
                found[line - 1] |= owns
    _headings(spec, text, found)
    return [frozenset(owners) for owners in found]


def _marks(spec: Spec) -> list[_Marks]:
    planned = plan.build(spec)
    spec = planned.spec  # with the names that the text has
    marks = [_Marks() for _ in (*spec.masks, *spec.scores)]
    for terms in (planned.by_query, planned.by_key, *(pair.terms for pair in planned.kernels.pairs)):
        texts = [statement.value for statement in (*terms.keep[: len(spec.masks)], *terms.score)]
        nodes = [*(mask.keep for mask in spec.masks), *(score.score for score in spec.scores)]
        for mark, text, node in zip(marks, texts, nodes, strict=True):
            mark.values.add(_syntax(text))
            mark.made |= _loads(terms, node)
        for mark, term in zip(marks[len(spec.masks) :], terms.backward_terms, strict=True):
            slopes = (term.slope, *(slope for _, slope in term.sums))
            mark.values |= {_syntax(statement.value) for statement in (*term.before, term.value)}
            mark.values |= {_syntax("-ds")} if not term.slope.text and term.slope.sign == "-" else set()
            mark.names |= {*targets(term.before), *(slope.text for slope in slopes if slope.text)}
            mark.names |= {name for total, _ in term.sums for name in (total.name, f"{total.name}_ptr")}
    for states in (planned.analysis.key_states, planned.analysis.query_states):
        for mark, state in zip(marks, states.conditions if states else (), strict=False):
            mark.values |= {_syntax(statement.value) for statement in state}
    whole = _range_ends(spec)
    for i, mark in enumerate(marks[: len(spec.masks)]):
        left = dataclasses.replace(spec, masks=spec.masks[:i] + spec.masks[i + 1 :])
        mark.ends = whole - _range_ends(left)
    return marks


def _syntax(text: str) -> str:
    return ast.dump(ast.parse(text, mode="eval").body)


def _loads(terms: KernelTerms, node: Node) -> set[str]:
    """The names that a kernel loads so that an expression can be read."""
    given = {i.name for i in terms.spec.inputs if i.axes}
    accesses = [terms.access(n) for n in node.walk() if n.op == "input" and n.value in given]
    sites: tuple[Site, ...] = ("program", "head", "tile", "step", "mask")
    made = {name for site in sites for name in targets(terms.loads(site))}
    return {
        name
        for name in made
        for access in accesses
        if name in (access.name, f"{access.input.name}_base") or name.startswith(f"{access.name}_")
    }


def _range_ends(spec: Spec) -> set[str]:
    walks = (tile_ranges.build(spec, "k"), tile_ranges.build(spec, "q"))
    return {_syntax(text) for w in walks for e in w.ends for text in (e.lo, e.hi, *(e.full or ()))}


_Found = Iterator[tuple[int, int, set[int]]]


def _ends(function: ast.FunctionDef, marks: list[_Marks]) -> _Found:
    for call in ast.walk(function):
        if isinstance(call, ast.Call):
            for argument in call.args:
                dump = ast.dump(argument)
                yield argument.lineno, argument.end_lineno or 0, {i for i, m in enumerate(marks) if dump in m.ends}


def _statements(function: ast.FunctionDef, marks: list[_Marks]) -> _Found:
    for node in ast.walk(function):
        if isinstance(node, ast.Assign | ast.AugAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        elif isinstance(node, ast.Expr):
            target = None
        else:
            continue
        # what a call gives at once belongs to all terms
        if target is None or isinstance(target, ast.Name):
            made = target.id if target else ""
            names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
            value = ast.dump(node.value)
            owns = {i for i, m in enumerate(marks) if value in m.values or names & m.names or made in m.made}
            yield node.lineno, node.end_lineno or 0, owns


def _headings(spec: Spec, text: str, found: list[set[int]]) -> None:
    """A line with nothing but a term's label belongs to the term that the next line stems from."""
    rows = text.splitlines()
    for i, row in enumerate(rows[:-1]):
        if row.strip().startswith("# ") and found[i + 1]:
            heading = row.strip()[2:]
            labels = [*(label(mask.label) for mask in spec.masks), *(label(term.label) for term in spec.scores)]
            found[i] |= {owner for owner in found[i + 1] if labels[owner] == heading}
