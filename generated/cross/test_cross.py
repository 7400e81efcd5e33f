# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/cross.yaml
#   content hash  dd8d64faccd88b32
#   text hash     c49b64c98512e015
#   render with   attnforge render specs/cross.yaml
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
SMALL = Case((33, 33), (33, 33), 2, 2, 16, 16, torch.float32)
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
