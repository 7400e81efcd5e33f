# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/swin.yaml
#   content hash  5bc4c85155b21717
#   text hash     b79771ece3949ca7
#   render with   attnforge render specs/swin.yaml
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
GRADIENTS = ("q", "k", "v", "offset_bias")
SMALL = Case((33, 33), (33, 33), 2, 2, 16, 16, torch.float32)
CASES = checks.cases(SMALL, packed=PACKED, more_queries=True)
MISTAKES = checks.mistakes(packed=PACKED, tensors=["offset_bias"])


def make_inputs(case, seed=0):
    """The arguments of one call."""
    make = checks.Make(seed)
    Hq = case.Hq
    q, k, v = make.qkv(case, PACKED)
    inputs = checks.arguments(case, PACKED, q, k, v)
    inputs["offset_bias"] = make.floats((Hq, 13, 13)) / 8
    return inputs


VARIANT = checks.Variant(make_inputs, SMALL, PACKED, GRADIENTS)
check = VARIANT.check


@pytest.fixture
def variant():
    return VARIANT


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_and_gradients(case):
    check(case)


# other kernels may compute these
@pytest.mark.parametrize("case", CASES if checks.GPU else [SMALL], ids=str)
def test_gradients_of_q_k_and_v_alone(case):
    VARIANT.check_operands(case)


@pytest.mark.parametrize("name", GRADIENTS)
def test_each_gradient_alone(name):
    VARIANT.check_gradient_alone(name)


@pytest.mark.parametrize("scale", [0.3, -0.5, 8.0])  # with the last one, scores reach a hundred
def test_scale(scale):
    check(SMALL, scale=scale)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named(mistake):
    VARIANT.check_mistake(*MISTAKES[mistake])


@pytest.mark.parametrize(("name", "axes"), [("offset_bias", (0,))])
def test_of_size_1_along(name, axes):
    VARIANT.check_size_1(name, axes)
