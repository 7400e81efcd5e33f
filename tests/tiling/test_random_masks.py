"""Random masks: parsed trees mean what Python means, and no tile is wrongly left out or taken for full."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from brute_force import Scene, cells, sides
from random_inputs import Declared, Draw
from random_specs import MASKS, RandomSpec, Sizes, generate, of_pairs, refused, shipped
from random_values import Place, Sample, named

from attnforge.expressions.evaluation import evaluate
from attnforge.expressions.tree import Node
from attnforge.language.spec import Spec, load
from attnforge.plan import tile_ranges
from attnforge.plan.tile_states import TileStates
from attnforge.source import resources
from attnforge.tiling import intervals

pytestmark = pytest.mark.slow

NUMBERS = ("window", "chunk_size", "dilation", "global_count", "image_width", "image_radius")
SIZES = Sizes(4, (32, 128, True))
COUNT = int(os.environ.get("ATTNFORGE_RANDOM", "100"))


class Scenery:
    """The numbers of a call, the same wherever they are read."""

    def __init__(self, given: RandomSpec, spec: Spec) -> None:
        self.draw = Draw(f"scenery of {given.name}")
        read = {i.name for i in spec.inputs}
        self.samples = {x: Sample(self.draw, x) for x in given.inputs if x.name in read}
        self.numbers = {name: 1 + self.draw.below(20) for name in NUMBERS}

    def python(self, place: Place) -> dict[str, Any]:
        """The names that expressions read in Python."""
        return place.env() | self.numbers | {x.name: named(x, self._at(x, place)) for x in self.samples}

    def nodes(self, place: Place) -> dict[str, Any]:
        """The same for trees, which pass indices as the arguments of a call."""
        return place.env() | self.numbers | {x.name: _spread(self._at(x, place)) for x in self.samples}

    def _at(self, given: Declared, place: Place) -> Callable[[tuple[int, ...]], float]:
        """An input's numbers at a place, as a function of the index."""
        plain: type[int] | type[float] = float if given.dtype == "float" else int
        return lambda index: plain(self.samples[given](place.locate(given, index)))


def _spread(function: Callable[[tuple[int, ...]], float]) -> Callable[..., float]:
    return lambda *index: function(index)


@pytest.mark.parametrize("seed", [seed for seed in range(COUNT) if generate(seed).masks])
def test_tiles_of_random_masks(seed: int, tmp_path: Path) -> None:
    given = generate(seed)
    if why := refused(given):
        pytest.skip(why)
    check_tiles(given, tmp_path, calls=2)


@pytest.mark.parametrize("name", sorted({*(name for name, _, _ in MASKS), "tree", "block_sparse"}))
def test_tiles_of_each_mask_term(name: str, tmp_path: Path) -> None:
    terms = [shipped(mask, keywords=keywords) for mask in MASKS if mask[0] == name for keywords in (False, True)]
    for term in terms or [of_pairs(SIZES)[name]]:
        given = RandomSpec("one_term", f"name: one_term\nmask: [{term.yaml}]\n", (term.text.text,), inputs=SIZES.inputs)
        check_tiles(given, tmp_path, calls=12)


def check_tiles(given: RandomSpec, tmp_path: Path, calls: int) -> None:
    """Checks what is known of tiles, before a call and from its tensors, against every pair of a few calls."""
    path = tmp_path / f"{given.name}.yaml"
    path.write_text(given.yaml)
    spec = load(path, terms=resources.terms_for(path))
    whole, scenery = tile_ranges.mask(spec), Scenery(given, spec)
    assert whole is not None
    code = compile(" and ".join(f"({mask})" for mask in given.masks), given.name, "eval")
    shapes = [(7, 40), (24, 24), (1, 9), (13, 33)]
    if not any("token" in x.axes for x in scenery.samples):
        shapes += [(20, 12)]
    for _ in range(calls):
        q_len, k_len = scenery.draw.pick(shapes)
        b, h, tile = scenery.draw.below(2), scenery.draw.below(4), scenery.draw.pick((1, 3, 8, 16))
        every = sides({"q_len": q_len, "k_len": k_len})
        truth = {}
        for q in every["q"]:
            for k in every["k"]:
                place = Place(b, h, h // 2, q, k, q_len, k_len)
                truth[q, k] = bool(eval(code, scenery.python(place)))
                assert bool(evaluate(whole, scenery.nodes(place))) == truth[q, k], (place, given.yaml)
        scene = scenery.nodes(Place(b, h, h // 2, 0, 0, q_len, k_len))
        along: Literal["k", "q"]
        for along in ("k", "q"):
            for seen, full, told, told_full in cells(tile_ranges.spans(spec, along), truth, scene, along, tile):
                assert seen <= told, f"missed along {along}: {given.yaml}"
                assert told_full <= full, f"hidden but full along {along}: {given.yaml}"
        check_states(TileStates(spec, "q"), scenery, truth, scene, tile)


def check_states(
    states: TileStates, scenery: Scenery, truth: dict[tuple[int, int], bool], scene: Scene, tile: int
) -> None:
    """Checks what the extremes of a call's tensors say about tiles against what the tiles show."""
    whole = tile_ranges.mask(states.spec)
    assert whole is not None
    told = intervals.condition(whole, states.known)
    every = {side: [held[i : i + tile] for i in range(0, len(held), tile)] for side, held in sides(scene).items()}
    for qs, ks in itertools.product(every["q"], every["k"]):
        held = {**scene, "q_first": qs[0], "q_last": qs[-1], "k_first": ks[0], "k_last": ks[-1]}
        sizes = scene["q_len"], scene["k_len"]
        places = [Place(scene["b"], scene["h"], scene["kv_h"], q, k, *sizes) for q in qs for k in ks]
        envs = [scenery.nodes(place) for place in places]
        for access in states.tellers:
            node = Node("input", access.index, access.input.name, access.input.dtype)
            found = [evaluate(node, env) for env in envs]
            held |= {f"{access.name}_least": min(found), f"{access.name}_most": max(found)}
        shown = {truth[q, k] for q in qs for k in ks}
        assert True not in shown or evaluate(told.most, held), f"missed: {held}"
        assert False not in shown or not evaluate(told.least, held), f"hidden but full: {held}"
