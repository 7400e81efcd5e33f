"""Random specs: kernels against the generated reference, and the reference against Python's own arithmetic.

ATTNFORGE_RANDOM=N sets how many; ATTNFORGE_RANDOM_PACKAGES=FOLDER takes packages that `random_specs.py` has rendered.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from devices import GPU
from random_inputs import Draw
from random_specs import RandomSpec, generate, refused, suite, write
from random_values import Place

pytestmark = pytest.mark.slow

READY = os.environ.get("ATTNFORGE_RANDOM_PACKAGES")
COUNT = int(os.environ.get("ATTNFORGE_RANDOM", "10"))
FOUND = sorted(int(path.stem.removeprefix("random_")) for path in Path(READY).glob("*.yaml")) if READY else range(COUNT)


def cases(given: RandomSpec, module: ModuleType) -> list[Any]:
    """One case with many tiles and one with few rows, of lengths around tile sizes, from what the package supports."""
    draw = Draw(f"cases of {given.name}")
    lens: list[tuple[tuple[int, ...], tuple[int, ...]]]
    over = any(q > k for case in module.CASES for q, k in zip(case.q_lens, case.k_lens, strict=True))
    # gradients of one or two numbers, each a sum over the batch, err by chance and say nothing about each other
    lonely = not any(x.grad and (module.PACKED or (x.rows and "batch" not in x.kinds)) for x in given.inputs)
    sizes, dtypes = [(16, 16), (24, 40), (40, 24)], [torch.float32]
    if GPU:
        sizes, dtypes = [*sizes, (64, 64), (128, 128)], [*dtypes, torch.bfloat16, torch.float16]
    size, dtype = draw.pick(sizes), draw.pick(dtypes)
    # and the yardstick sums the long products of single rows in a tree, with smaller errors
    lonely = lonely and not (dtype == torch.float32 and size[0] > 40)
    if module.PACKED:
        lens = [((0, 33, 0, 1, 17, 0),) * 2, ((5, 0, 33, 8), (40, 7, 33, 70)), ((32, 0, 64, 31),) * 2]
        lens += [((40, 7, 33), (5, 0, 33))] if over else []
        few = [((3, 1, 2) * 5, (3, 1, 2) * 5), ((0, 0), (0, 40))]
        few += [((1,) * 10, (8, 9, 0 if over else 3, 33, 1) * 2)] if lonely else []
    else:
        lens = [((33,) * 2,) * 2, ((40,) * 2, (70,) * 2), ((64,),) * 2, ((31,), (97,))]
        lens += [((70,), (20,)), ((66,), (65,))] if over else []
        few = [((12,) * 5, (13,) * 5)]
        few += [((1,) * 10, (8,) * 10), ((2,) * 8, (2,) * 8)] if lonely else []
    grouped = module.SMALL.Hq != module.SMALL.Hkv
    heads = [(4, 2), (2, 2), (3, 1)] if grouped else [(3, 3), (2, 2), (2, 2)]
    if GPU:
        lens += [((300, 129, 0, 511), (300, 200, 40, 513))] if module.PACKED else [((513,) * 2, (700,) * 2)]
    # the same kind of kernel for both cases: most of the time goes into compiling
    kind = *draw.pick(heads), *size, dtype
    return [module.checks.Case(*draw.pick(pairs), *kind) for pairs in (lens, few)]


@pytest.mark.parametrize("seed", FOUND)
def test_kernels_follow_the_reference(seed: int, tmp_path: Path) -> None:
    given = generate(seed)
    folder = Path(READY) if READY else tmp_path
    text = (folder / f"random_{seed}.yaml").read_text() if READY else given.yaml
    assert text == given.yaml, "the packages are of another version: render them again"
    if not READY:
        if why := refused(given):
            pytest.skip(why)
        write(given, folder)
    module = suite(folder, given.name)
    absent = {x.name: None for x in given.inputs if x.default}
    for case, more in zip(cases(given, module), ({}, absent), strict=True):
        try:
            module.check(case, **more)
        except Exception as error:
            pytest.fail(f"seed {seed}, case {case}: {type(error).__name__}: {error}\n{given.yaml}")
    if not GPU:
        check_reference(given, module)


def places(case: Any, packed: bool) -> Iterator[list[Place]]:
    """The places in each row of a call: one list for each sequence, head and query."""
    for b, (q_len, k_len) in enumerate(zip(case.q_lens, case.k_lens, strict=True)):
        starts = (sum(case.q_lens[:b]), sum(case.k_lens[:b])) if packed else None
        for h, row in itertools.product(range(case.Hq), range(q_len)):
            kv_h, q = h // (case.Hq // case.Hkv), row + k_len - q_len
            yield [Place(b, h, kv_h, q, k, q_len, k_len, starts) for k in range(k_len)]


def check_reference(given: RandomSpec, module: ModuleType) -> None:
    """Compares the reference's LSE with the terms as Python itself computes them, place by place."""
    lens, packed = ((0, 3, 1), (2, 5, 4)) if module.PACKED else ((3, 3), (5, 5)), module.PACKED
    heads = (4, 2) if module.SMALL.Hq != module.SMALL.Hkv else (2, 2)
    case = module.checks.Case(*lens, *heads, 16, 16, torch.float32)
    inputs = module.checks.widened(module.make_inputs(case))
    if "cos" in inputs:
        inputs["q"] *= 0  # this does not test rotations
    _, lse = module.checks.reference(**inputs, return_lse=True)
    masks, scores = ([compile(text, given.name, "eval") for text in texts] for texts in (given.masks, given.scores))
    for row in places(case, packed):
        found = [float(inputs["sinks"][row[0].h])] if given.sink else []
        for at in row:
            env = at.names(inputs, given.inputs)
            if all(eval(mask, env) for mask in masks):
                score = at.product(inputs["q"], inputs["k"]) / 4
                for code in scores:
                    score = eval(code, env | {"score": score})
                found.append(score)
        at = row[0]
        got = float(lse[at.h, at.starts[0] + at.row] if at.starts else lse[at.b, at.h, at.row])
        top = max(found, default=0.0)
        expected = top + math.log(sum(math.exp(score - top) for score in found)) if found else -math.inf
        assert got == pytest.approx(expected, rel=1e-9, abs=1e-9), f"row {at}\n{given.yaml}"


FOLDERS = [Path(__file__).parents[1] / name for name in ("stated_specs", "found_specs")]


@pytest.mark.skipif(READY is not None, reason="needs to render")
@pytest.mark.parametrize("path", sorted(FOLDERS[0].glob("*.yaml")), ids=lambda p: p.stem)
def test_what_people_write_takes_five_lines(path: Path, tmp_path: Path) -> None:
    given = RandomSpec(path.stem, path.read_text())
    assert len(given.yaml.splitlines()) <= 5
    write(given, tmp_path)
    module = suite(tmp_path, given.name)
    module.check(module.SMALL)
    module.check(dataclasses.replace(module.SMALL, q_lens=(40,), k_lens=(135,)))


@pytest.mark.skipif(READY is not None, reason="needs to render")
@pytest.mark.parametrize("path", sorted(FOLDERS[1].glob("*.yaml")), ids=lambda p: p.stem)
def test_specs_that_failed_once(path: Path, tmp_path: Path) -> None:
    given = RandomSpec(path.stem, path.read_text())
    write(given, tmp_path)
    module = suite(tmp_path, given.name)
    for case in (module.SMALL, *cases(given, module)):
        module.check(case)
