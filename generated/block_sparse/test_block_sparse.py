# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/block_sparse.yaml
#   content hash  c2a0e9e2a2ed86dd
#   text hash     e7e013df137c8837
#   render with   attnforge render specs/block_sparse.yaml
"""Compares `attention` with `reference`: on a GPU if there is one, otherwise with small shapes in Triton's interpreter.

checks.py has the checks and their acceptance rule. ATTNFORGE_FULL=1 runs every combination of lengths, head sizes and
dtypes; ATTNFORGE_ERRORS=FILE appends errors with their limits, as JSON.
"""

from __future__ import annotations

import pytest
import torch

pytest.register_assert_rewrite(f"{__package__}.checks")

from . import checks
from .checks import Case, TestAnyVariant, TestBackward, TestLengths  # pytest collects their tests here

PACKED = False
GRADIENTS = ("q", "k", "v")
SMALL = Case((33, 33), (33, 33), 2, 1, 16, 16, torch.float32)
CASES = checks.cases(SMALL, packed=PACKED, more_queries=True)
MISTAKES = checks.mistakes(packed=PACKED, tensors=["block_mask"])


def make_inputs(case, seed=0):
    """The arguments of one call."""
    make = checks.Make(seed)
    B = len(case.q_lens)
    Tq = case.q_lens[0]
    Tk = case.k_lens[0]
    Hq = case.Hq
    q, k, v = make.qkv(case, PACKED)
    inputs = checks.arguments(case, PACKED, q, k, v)
    inputs["block_mask"] = make.bools((B, Hq, -(-Tq // 64), -(-Tk // 64)))
    return inputs


VARIANT = checks.Variant(make_inputs, SMALL, PACKED, GRADIENTS, any_chunk=False)
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


@pytest.mark.parametrize(
    ("name", "axes"),
    [
        ("block_mask", (0,)),
        ("block_mask", (1,)),
        ("block_mask", (2,)),
        ("block_mask", (3,)),
        ("block_mask", (0, 1, 2, 3)),
    ],
)
def test_of_size_1_along(name, axes):
    VARIANT.check_size_1(name, axes)


def test_block_mask_without_leading_axes():
    check(SMALL, block_mask=make_inputs(SMALL)["block_mask"][0, 0])
