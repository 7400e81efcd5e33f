"""The lines of rendered kernels that implement each term of the spec.

Statements of the plan say which terms they serve. The kernels are printed once more with these terms after each
statement, and the statements are found again in the formatted text, which has them in the same order. An end of a tile
range belongs to a term if it would be different without the term.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterable, Iterator

from ..language.spec import Spec
from ..plan import names_in_code, statements, tile_ranges
from ..plan.statements import Block, Branch, Loop, Statement
from ..render import render

_MARK = "#@"


def lines(spec: Spec, text: str) -> list[frozenset[int]]:
    """For each line of the kernels' text, the terms that it implements, counted over the masks, then the scores."""
    printed = render.unformatted_kernels(spec, _marked_lines)
    terms = [*(f"mask{i}" for i in range(len(spec.masks))), *(f"score{i}" for i in range(len(spec.scores)))]
    marks = [row.rpartition(_MARK)[2].split() if _MARK in row else [] for row in printed.splitlines()]
    served = [{terms.index(mark) for mark in row if mark in terms} for row in marks]
    rows = printed.splitlines()
    found: list[set[int]] = [set() for _ in text.splitlines()]
    for before, after in zip(_statements(printed), _statements(text), strict=True):
        owners = served[before.lineno - 1]
        for line in range(after.lineno, (after.end_lineno or 0) + 1):
            found[line - 1] |= owners
        if rows[before.lineno - 2].lstrip().startswith("#"):  # the heading of a term's first statement
            found[after.lineno - 2] |= served[before.lineno - 2]
    for first, last, owners in _ends(spec, text):
        for line in range(first, last + 1):
            found[line - 1] |= owners
    return [frozenset(owners) for owners in found]


def _marked_lines(blocks: Iterable[Block]) -> list[str]:
    """The lines of blocks, each followed by the terms that it serves."""
    return statements.lines(map(_marked, blocks))


def _marked(block: Block) -> Block:
    """The same block, with the lines of each statement followed by the terms that it serves."""
    if isinstance(block, Statement):
        mark = " ".join((_MARK, *(f"{kind}{i}" for kind, i in sorted(block.serves))))
        heading = f"{block.heading} {mark}" if block.heading else ""
        return dataclasses.replace(block, label=f"{block.label} {mark}", heading=heading)
    if isinstance(block, Loop):
        return dataclasses.replace(block, body=tuple(map(_marked, block.body)))
    if isinstance(block, Branch):
        both = (tuple(map(_marked, part)) for part in (block.then, block.otherwise))
        return Branch(block.condition, *both)
    return block


def _statements(text: str) -> list[ast.stmt]:
    """The statements of a text that contain no other statements, in an order that formatting keeps."""
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Assign | ast.AugAssign | ast.Expr)]


def _ends(spec: Spec, text: str) -> Iterator[tuple[int, int, set[int]]]:
    """The first and last lines of the arguments from which ranges are computed, and the terms that each is from."""
    spec = names_in_code.in_code(spec)
    whole = _range_ends(spec)
    others = (dataclasses.replace(spec, masks=spec.masks[:i] + spec.masks[i + 1 :]) for i in range(len(spec.masks)))
    own = [whole - _range_ends(other) for other in others]
    for function in ast.parse(text).body:
        if isinstance(function, ast.FunctionDef) and function.name in ("key_tiles", "query_tiles"):
            calls = (node for node in ast.walk(function) if isinstance(node, ast.Call))
            for argument in (argument for call in calls for argument in call.args):
                owners = {i for i, ends in enumerate(own) if ast.dump(argument) in ends}
                yield argument.lineno, argument.end_lineno or 0, owners


def _range_ends(spec: Spec) -> set[str]:
    """The syntax trees, as text, of all ends of tile ranges."""
    ranges = (tile_ranges.build(spec, "k"), tile_ranges.build(spec, "q"))
    texts = (text for found in ranges for end in found.ends for text in (end.lo, end.hi, *(end.full or ())))
    return {ast.dump(ast.parse(text, mode="eval").body) for text in texts}
