# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/prefix_lm.yaml
#   content hash  da51cba4318f529d
#   text hash     2d874558bca85d1e
#   render with   attnforge render specs/prefix_lm.yaml
"""Compares `attention` with `reference`: on a GPU if there is one, otherwise with small shapes in Triton's interpreter.

checks.py has the checks and their acceptance rule. ATTNFORGE_FULL=1 runs every combination of lengths, head sizes and
dtypes; ATTNFORGE_ERRORS=FILE appends errors with their limits, as JSON.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.register_assert_rewrite(f"{__package__}.checks")

from . import checks
from .checks import Case, TestAnyVariant, TestBackward, TestLengths  # pytest collects their tests here

import triton
import triton.language as tl

from .kernels import key_tiles, query_tiles

PACKED = False
GRADIENTS = ("q", "k", "v")
SMALL = Case((33, 33), (33, 33), 2, 1, 16, 16, torch.float32)
CASES = checks.cases(SMALL, packed=PACKED, more_queries=True)
MISTAKES = checks.mistakes(packed=PACKED, tensors=["prefix_len"])


def make_inputs(case, seed=0):
    """The arguments of one call."""
    make = checks.Make(seed)
    B = len(case.q_lens)
    longest = max(case.k_lens)
    q, k, v = make.qkv(case, PACKED)
    inputs = checks.arguments(case, PACKED, q, k, v)
    inputs["prefix_len"] = make.integers((B,), longest + 1)
    return inputs


VARIANT = checks.Variant(make_inputs, SMALL, PACKED, GRADIENTS)
check = VARIANT.check


@pytest.fixture
def variant():
    return VARIANT


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_and_gradients(case):
    check(case)


@pytest.mark.parametrize("name", GRADIENTS)
def test_each_gradient_alone(name):
    VARIANT.check_gradient_alone(name)


@pytest.mark.parametrize("scale", [0.3, -0.5, 8.0])  # with the last one, scores reach a hundred
def test_scale(scale):
    check(SMALL, scale=scale)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named(mistake):
    VARIANT.check_mistake(*MISTAKES[mistake])


@pytest.mark.parametrize(("name", "axes"), [("prefix_len", (0,))])
def test_of_size_1_along(name, axes):
    VARIANT.check_size_1(name, axes)


@triton.jit
def key_tiles_found(
    found_ptr, in_prefix_len, q_len, k_len, TILE: tl.constexpr, BLOCK: tl.constexpr, COUNT: tl.constexpr
):
    """The tiles that each tile of queries visits."""
    q_first, q_last = checks.rows_of_tiles(k_len - q_len, k_len, TILE, COUNT)
    found = key_tiles(q_first, q_last, k_len, in_prefix_len, BLOCK)
    checks.store_range(found_ptr, 0, found, COUNT)


@triton.jit
def query_tiles_found(
    found_ptr, in_prefix_len, q_len, k_len, TILE: tl.constexpr, BLOCK: tl.constexpr, COUNT: tl.constexpr
):
    """The tiles that each tile of keys visits."""
    q_begin = k_len - q_len
    k_first, k_last = checks.rows_of_tiles(0, k_len, TILE, COUNT)
    found = query_tiles(k_first, k_last, q_len, q_begin, in_prefix_len, BLOCK)
    checks.store_range(found_ptr, 0, found, COUNT)


RANGES = {
    "queries": checks.Ranges(key_tiles_found, numbers=("prefix_len",)),
    "keys": checks.Ranges(query_tiles_found, numbers=("prefix_len",)),
}


@pytest.mark.skipif(checks.GPU, reason="whole numbers: what holds in the interpreter holds there")
@pytest.mark.parametrize("rows", RANGES)
@pytest.mark.parametrize("case", [replace(SMALL, q_lens=(40,), k_lens=(70,))], ids=str)
def test_tiles_are_visited_where_the_mask_shows_something(case, rows):
    checks.check_ranges(VARIANT, case, rows, RANGES[rows])
