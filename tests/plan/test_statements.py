"""Rendered kernels set only the names that they read."""

from __future__ import annotations

from attnforge.plan.statements import Loop, Statement, lines, needed


def test_of_several_names_those_are_set_that_others_read() -> None:
    pair, found = Statement("a, b", "x, y"), Statement("c, d", "find(x, y)")
    assert needed([pair, found], {"a", "b", "d"}) == (pair, found)
    assert needed([pair, found], {"b"}) == (Statement("b", "y"),)
    assert needed([Statement("a, b", "x[y, z]")], {"a"}) == (Statement("a, b", "x[y, z]"),)
    assert needed([pair, Statement("e", "a * 2")], {"e", "b"}) == (pair, Statement("e", "a * 2"))


def test_a_loop_names_its_number_where_its_body_reads_it() -> None:
    assert lines([Loop("i", "0", "n", (Statement("a", "i"),))])[0] == "for i in tl.range(0, n):"
    assert lines([Loop("i", "0", "n", (Statement("a", "1", "+="),))])[0] == "for _ in tl.range(0, n):"
