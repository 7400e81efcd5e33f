"""Calls kernels for Hopper GPUs with random shapes, again and again, and compares them with the portable kernels.

python tests/gpu/stress.py [--launches N] [--times N] [--seconds S] [--seed N] [--variants NAME,...] [--jobs N]
                           [--small] [--here]

It needs `generator` on PYTHONPATH, and the packages in `generated`. The calls run in a process of their own; the parent
process ends it if it hangs, and prints what was called last.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import queue
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import IO, Any

import torch

from attnforge.gpu import calls, targets
from attnforge.gpu.calls import Call, Sizes
from attnforge.gpu.peers import module
from attnforge.language import spec
from attnforge.plan import plan
from attnforge.source import resources

GENERATED = Path(__file__).parents[2] / "generated"
PATIENCE = 20.0  # seconds that a GPU may take for a call
COMPILING = 300.0  # seconds that a call may take before it waits for the GPU
# head sizes of each variant: few of them, since each new one has to be compiled
VARIANTS = {
    "causal": (32, 64, 128, 192, 256),
    "full": (80, 128),
    "rope_gqa": (64, 128, 256),
    "softcap": (128, 256),
    "sliding_window": (64, 128),
    "alibi": (128,),
    "packed_causal": (32, 64, 128, 192),
    "packed_rope": (128, 256),
    "llama3_documents": (128,),
    # variants whose loader passes on the inputs that terms read for each key
    "log_decay": (32, 64, 128, 256),
    "packed_log_decay": (128, 256),
    "forgetting_transformer": (64,),
    "transfusion": (128,),
    "block_sparse": (32, 64, 128, 256),
    "gpt2_dropout": (32, 64, 128, 256),
    # values by distance, and additions to sums by distance
    "t5_decoder": (64, 128),
    "t5_encoder": (32, 64, 128),
}
V_SIZES = {192: 128}  # head sizes of v that differ from those of q and k
LENGTHS = (1, 2, 63, 64, 65, 127, 128, 129, 300, 385, 640, 1000, 1111, 2048, 4097)
ROWS = 2**16  # per call, over batch and heads
APART = {"bf16": 2e-2, "fp16": 4e-3}  # largest relative difference of two correct results


class Wrong(Exception):
    """Results are wrong."""


@dataclass(frozen=True)
class Shape:
    """A random call of a variant."""

    variant: str
    sizes: Sizes

    @property
    def told(self) -> str:
        """The shape in words."""
        return f"{self.variant}: {self.sizes.told}"


def shapes(names: Sequence[str], seed: int, small: bool) -> Iterator[Shape]:
    """An endless stream of random shapes; `small` ones suit the compute sanitizer."""
    draw = random.Random(seed)
    while True:
        name = draw.choice(list(names))
        lengths = [n for n in LENGTHS if n <= 300] if small else LENGTHS
        k_len = draw.choice(lengths)
        q_len = k_len if name.startswith("packed") or draw.random() < 0.7 else draw.choice(lengths)
        # no multiples of 16, which would be compiled separately; a single head is not
        kv_heads = draw.choice((1, 3, 7) if not small else (1,))
        longest = max(q_len, k_len)
        batch = draw.randint(1, max(ROWS // (longest * kv_heads * 4), 1)) if not small else 1
        dtype = "bf16" if len(name) % 2 else "fp16"
        size = draw.choice(VARIANTS[name])
        lengths, dims = (min(q_len, k_len), k_len), (size, V_SIZES.get(size, size))
        yield Shape(name, Sizes(min(batch, 40), *lengths, kv_heads * 4, kv_heads, *dims, dtype))


class Package:
    """A shipped package, imported once for each target."""

    def __init__(self, name: str, device: str = "cuda") -> None:
        path = resources.variants()[name]
        self.spec = spec.load(path, terms=resources.terms_for(path))
        self.planned, self.device = plan.build(self.spec), device
        self.modules = {
            target: module(f"stressed_{name}_{target}", GENERATED / name / "__init__.py") for target in targets.TARGETS
        }

    def call(self, shape: Shape) -> Call:
        """The arguments of a call."""
        return calls.make(self.planned, shape.sizes.of(self.spec), self.device)

    def forward(self, target: str, call: Call) -> torch.Tensor:
        """The output by the kernels of a target."""
        with targets.asked(target):
            out: torch.Tensor = self.modules[target].attention(*call.operands, **call.keywords)
        return out

    def backward(self, target: str, call: Call, out: torch.Tensor) -> list[torch.Tensor]:
        """The gradients of all learned inputs, by the kernels of a target."""
        make = torch.Generator(out.device).manual_seed(1)
        upstream = torch.randn(out.shape, generator=make, device=out.device).to(out.dtype)
        with targets.asked(target):
            return list(torch.autograd.grad(out, call.wanted, upstream, retain_graph=True))

    def took(self) -> dict[str, str]:
        """The targets that calls for `hopper` took since this method was last called, by pass."""
        known = targets.runtime(self.modules["hopper"])
        found = targets.taken(known)
        known.LaunchCache.known.clear()
        return found


def hold(what: str, found: torch.Tensor, right: torch.Tensor, limit: float) -> None:
    """Raises Wrong if the relative error of a result is above the limit."""
    apart, size = ((x.double().square().mean().sqrt()) for x in (found - right, right))
    off = float(apart / size.clamp(min=1e-3))
    if not off <= limit:  # also refuses NaN
        raise Wrong(f"{what}: {off:.2g} apart")


def same(what: str, found: Sequence[torch.Tensor], again: Sequence[torch.Tensor]) -> None:
    """Raises Wrong if two results differ in any bit."""
    if not all(torch.equal(x, y) for x, y in zip(found, again, strict=True)):
        raise Wrong(f"{what}: other bits the second time")


def stress(
    package: Package, shape: Shape, tell: Callable[[str, float], None], times: int, repeats: bool
) -> Counter[str]:
    """Makes a call for both targets, and `times` more for Hopper GPUs; returns the number of its launches by pass.

    `repeats`: also compares the gradients of two deterministic calls.
    """
    call = package.call(shape)
    limit = APART[shape.sizes.dtype]

    def done(what: str, function: Callable[[], Any], times: int) -> list[Any]:
        # launches in a row: programs of the next one start while those of the last one end
        tell(f"{shape.told}, {what}", COMPILING)
        made = [function() for _ in range(times)]
        tell(f"{shape.told}, {what}: waiting for the GPU", PATIENCE)
        if package.device == "cuda":
            torch.cuda.synchronize()
        return made

    def forward(target: str, times: int = 1) -> list[torch.Tensor]:
        return done(f"forward, {target}", lambda: package.forward(target, call), times)

    def backward(target: str, out: torch.Tensor, times: int = 1) -> list[list[torch.Tensor]]:
        return done(f"backward, {target}", lambda: package.backward(target, call, out), times)

    (out,), (right,) = forward("hopper"), forward("portable")
    hold("out", out.detach(), right.detach(), limit)
    # these use the launch cache
    for again in forward("hopper", times):
        same("out", [out], [again])
    (expected,) = backward("portable", right)
    for found in backward("hopper", out, 1 + times):
        for i, (x, y) in enumerate(zip(found, expected, strict=True)):
            hold(f"gradient {i}", x, y, 2 * limit)
    made = Counter({its: 1 + times for its, target in package.took().items() if target == "hopper"})
    if not made["forward"]:
        raise Wrong("portable kernels ran in the place of those for Hopper GPUs")
    if repeats:
        torch.use_deterministic_algorithms(True)
        try:
            same("gradients", *backward("hopper", out, 2))
        finally:
            torch.use_deterministic_algorithms(False)
    return made


def run(asked: argparse.Namespace) -> None:
    """Makes the calls, and prints a line of JSON before each step."""
    packages: dict[str, Package] = {}
    made: Counter[str] = Counter()
    begin, count = time.monotonic(), 0
    beside = torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16)
    stream = torch.cuda.Stream()

    def tell(what: str, patience: float) -> None:
        print(json.dumps({"doing": what, "patience": patience, "launches": sum(made.values())}), flush=True)

    for shape in shapes(asked.variants, asked.seed, asked.small):
        if sum(made.values()) >= asked.launches or (asked.seconds and time.monotonic() - begin > asked.seconds):
            break
        if shape.variant not in packages:
            packages[shape.variant] = Package(shape.variant)
        # concurrent work changes which program waits for which
        if count % 2:
            with torch.cuda.stream(stream):
                for _ in range(asked.times):
                    beside @ beside
        try:
            made += stress(packages[shape.variant], shape, tell, asked.times, repeats=count % 8 == 0)
        except Wrong as why:
            raise SystemExit(f"{shape.told}: {why}") from None
        count += 1
    tell(f"done: {count} calls, launches {dict(made)} in {time.monotonic() - begin:.0f} s", PATIENCE)


def compile_first(names: Sequence[str], jobs: int) -> None:
    """Calls each variant once with each head size, in `jobs` processes at a time, to fill compile caches."""
    wanted = [(name, size) for name in names for size in VARIANTS[name]]
    with ProcessPoolExecutor(jobs, get_context("spawn"), max_tasks_per_child=1) as pool:
        list(pool.map(_compile, wanted))


def _compile(wanted: tuple[str, int]) -> None:
    name, size = wanted
    some = next(shape for shape in shapes([name], 0, small=True) if shape.sizes.head_dim == size)
    stress(Package(name), some, lambda what, patience: None, times=1, repeats=True)


def watch(command: Sequence[str]) -> int:
    """Runs a command that prints its steps in lines; ends it if a step takes longer than its line allows."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=_read, args=(process.stdout, lines), daemon=True).start()
    last: Mapping[str, Any] = {"doing": "nothing yet", "patience": COMPILING, "launches": 0}
    while True:
        try:
            line = lines.get(timeout=last["patience"])
        except queue.Empty:
            # a process that waits for a GPU may take a while to end
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=30)
            return _failed(f"stood still for {last['patience']:g} s", last)
        if line is None:
            break
        last = json.loads(line)
    if code := process.wait():
        return _failed(f"ended with {code}", last)
    print(last["doing"])
    return 0


def _read(stream: IO[str], lines: queue.Queue[str | None]) -> None:
    """Puts the JSON lines of a command into a queue, and None at its end; other lines may be mixed in."""
    with stream:
        for line in stream:
            if line.startswith("{"):
                lines.put(line)
    lines.put(None)


def _failed(how: str, last: Mapping[str, Any]) -> int:
    print(f"{how} after {last['launches']} launches: {last['doing']}")
    return 1


def main(given: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=style, allow_abbrev=False)
    parser.add_argument("--launches", type=int, default=10_000, help="passes by kernels for Hopper GPUs")
    parser.add_argument("--times", type=int, default=16, help="launches of each shape and pass after the first")
    parser.add_argument("--seconds", type=float, default=0, help="stop after this many; 0: no limit")
    parser.add_argument("--seed", type=int, default=0, help="of the shapes")
    parser.add_argument("--variants", type=lambda text: text.split(","), default=[*VARIANTS], metavar="NAME,...")
    parser.add_argument("--jobs", type=int, default=0, help="compile in this many processes first")
    parser.add_argument("--small", action="store_true", help="short sequences and few heads")
    parser.add_argument("--here", action="store_true", help="in this process, without a watchdog")
    asked = parser.parse_args(given)
    if unknown := set(asked.variants) - set(VARIANTS):
        parser.error(f"unknown variant {min(unknown)!r}; there are {', '.join(VARIANTS)}")
    if asked.jobs:
        compile_first(asked.variants, asked.jobs)
    if asked.here:
        run(asked)
        return 0
    return watch([sys.executable, __file__, *(given if given is not None else sys.argv[1:]), "--jobs", "0", "--here"])


if __name__ == "__main__":
    sys.exit(main())
