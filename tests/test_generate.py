"""The example that generates text: sequences join and leave, and tokens equal those of the model without a cache."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from click.testing import CliRunner

pytestmark = pytest.mark.slow

GPU = torch.cuda.is_available()


@pytest.fixture(scope="module")
def generate() -> Iterator[ModuleType]:
    """The example as a module."""
    path = Path(__file__).parents[1] / "examples" / "generate.py"
    found = importlib.util.spec_from_file_location("generate", path)
    assert found and found.loader
    module, before = importlib.util.module_from_spec(found), list(sys.path)
    sys.modules["generate"] = module  # dataclasses look up modules there
    found.loader.exec_module(module)
    yield module
    del sys.modules["generate"]
    sys.path[:] = before


@pytest.mark.parametrize("graph", [False, pytest.param(True, marks=pytest.mark.skipif(not GPU, reason="needs a GPU"))])
def test_tokens_are_those_without_a_cache(generate: ModuleType, graph: bool) -> None:
    torch.manual_seed(0)
    model = generate.Model(1, 2, 1, 16).to(generate.DEVICE)
    angles = generate.angles_of(17, 16)
    requests = [generate.Request(list(range(n)), n + more) for n, more in ((11, 2), (3, 3), (6, 4), (13, 1))]
    engine = generate.Engine(model, angles, places=2, pages=6, page=3, chunk=7, graph=graph)
    # whatever an earlier call left there must not matter
    engine.k.fill_(torch.nan)
    engine.v.fill_(torch.nan)
    with torch.no_grad():
        engine.run(requests)
        for one in requests:
            said = generate.without_cache(model, angles, one.tokens[:-1])
            assert one.tokens[one.prompt :] == said[one.prompt - 1 :]
            assert len(one.tokens) == one.wanted
    first, *_, last = requests
    assert first.joined == 0 < requests[2].joined < last.joined  # the third joins one that is already running
    assert {*first.pages} & {*last.pages}
    assert sorted(engine.free) == list(range(6)) and not any(engine.running)
    assert bool(engine.replays) == graph


def called(generate: ModuleType, *options: str) -> Any:
    return CliRunner().invoke(generate.main, options)


def test_the_command_tells_what_became_of_each(generate: ModuleType) -> None:
    done = called(generate, "--prompt", "[b]Why?", "--tokens", "2", "--pages", "3", "--page", "4")
    assert done.exit_code == 0, done.output
    assert "[b]Why?" in done.output and "0, 1, 2" in done.output
    assert "Without a cache, the model generates the same text." in done.output


def test_the_command_tells_of_a_difference(generate: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "without_cache", lambda model, angles, tokens: [0] * len(tokens))
    done = called(generate, "--prompt", "Why?", "--tokens", "1")
    assert done.exit_code == 1
    assert "without a cache, requests [0] continue differently" in done.output


def test_a_cache_that_is_too_small_is_refused(generate: ModuleType) -> None:
    done = called(generate, "--prompt", "Why?", "--tokens", "6", "--pages", "2", "--page", "4")
    assert done.exit_code == 1
    assert "a sequence needs 3 pages, but there are only 2" in done.output
