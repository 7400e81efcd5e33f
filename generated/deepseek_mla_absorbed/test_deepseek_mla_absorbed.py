# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/deepseek_mla_absorbed.yaml
#   content hash  65064ba38c1b8dac
#   text hash     6eaf3cbe9a3b58c1
#   render with   attnforge render specs/deepseek_mla_absorbed.yaml
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
MISTAKES = checks.mistakes(packed=PACKED)


def make_inputs(case, seed=0):
    """The arguments of one call."""
    make = checks.Make(seed)
    q, k, v = make.qkv(case, PACKED)
    return checks.arguments(case, PACKED, q, k, v)


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


@triton.jit
def key_tiles_found(found_ptr, q_len, k_len, TILE: tl.constexpr, BLOCK: tl.constexpr, COUNT: tl.constexpr):
    """The tiles that each tile of queries visits."""
    q_first, q_last = checks.rows_of_tiles(k_len - q_len, k_len, TILE, COUNT)
    found = key_tiles(q_first, q_last, k_len, BLOCK)
    checks.store_range(found_ptr, 0, found, COUNT)


@triton.jit
def query_tiles_found(found_ptr, q_len, k_len, TILE: tl.constexpr, BLOCK: tl.constexpr, COUNT: tl.constexpr):
    """The tiles that each tile of keys visits."""
    q_begin = k_len - q_len
    k_first, k_last = checks.rows_of_tiles(0, k_len, TILE, COUNT)
    found = query_tiles(k_first, k_last, q_len, q_begin, BLOCK)
    checks.store_range(found_ptr, 0, found, COUNT)


RANGES = {
    "queries": checks.Ranges(key_tiles_found),
    "keys": checks.Ranges(query_tiles_found),
}


@pytest.mark.skipif(checks.GPU, reason="whole numbers: what holds in the interpreter holds there")
@pytest.mark.parametrize("rows", RANGES)
@pytest.mark.parametrize("case", [replace(SMALL, q_lens=(40,), k_lens=(70,))], ids=str)
def test_tiles_are_visited_where_the_mask_shows_something(case, rows):
    checks.check_ranges(VARIANT, case, rows, RANGES[rows])
