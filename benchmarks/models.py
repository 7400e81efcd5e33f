"""Times models of transformers with rendered attention and with the library's own, on the current GPU.

python benchmarks/models.py                    training steps, eager and compiled, padded batches, generation
python benchmarks/models.py --only llama t5    the cases with these names, or with names that contain them
python benchmarks/models.py --modes layers     training steps with layers compiled one by one, which takes seconds
python benchmarks/models.py --jobs 6           first runs a step of each in its own process, six at a time: what these
                                               compile is cached, and those that fail are not timed
python benchmarks/models.py --experts eager    another implementation of experts than a case has
python benchmarks/models.py --json FILE        writes the numbers; benchmarks/results/models.json has those of the docs
python benchmarks/models.py --page             times nothing: writes those of the docs into docs/transformers.md
python benchmarks/models.py --tiny             sizes for trying the script itself, even in the interpreter

Weights are random, in bfloat16. All contenders of a line are built first and then timed in turns, each round starting
with another one; a line has the medians of their rounds, and the peak memory of a step in addition to the weights. A
line for each contender has the time of one step as soon as that is known, and FILE is rewritten after each case.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import importlib
import json
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import experts
import torch
import transformers
from model_cases import CASES, GENERATING, Case
from transformers.modeling_layers import GradientCheckpointingLayer

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "generator")]

import attnforge  # noqa: E402
from attnforge.gpu.turns import turns  # noqa: E402

RESULTS, PAGE = ROOT / "benchmarks" / "results" / "models.json", ROOT / "docs" / "transformers.md"
MODES = ("eager", "layers", "compiled")
EXPERTS = ("grouped_mm", experts.NAME, "batched_mm", "eager")
Step = Callable[[], Any]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROUNDS = 7


def exported(spec: str) -> Any:
    """The transformers module of a shipped spec, or of one that is rendered only for this."""
    if (ROOT / "generated" / spec).is_dir():
        return importlib.import_module(f"generated.{spec}.transformers")
    return attnforge.build(ROOT / "benchmarks" / "specs" / f"{spec}.yaml").transformers


def made(case: Case, attention: str, tiny: bool) -> Any:
    """A model with an attention function of the library, or with rendered kernels if `attention` is a spec's name."""
    torch.manual_seed(0)
    experts.register()
    own = exported(attention) if attention in (case.spec, case.patched) else None
    name = own.register() if own else attention
    dtype = torch.float32 if DEVICE == "cpu" else torch.bfloat16
    with torch.device(DEVICE):
        model = getattr(transformers, case.model)(case.configured(name, tiny)).to(dtype)
    # an encoder and a decoder have their own configurations, which may keep another attention
    given = {part.config._attn_implementation for part in model.modules() if hasattr(part, "set_attn_implementation")}
    if given != {name}:
        raise ValueError(f"{case.model} with {name} has {', '.join(sorted(given))}")
    if own and attention == case.patched:
        own.patch(model)
    return model


def batch(case: Case, config: Any) -> dict[str, Any]:
    """Random inputs of a model's forward pass; an image and half of the text are a prefix of the answer."""
    found: dict[str, Any] = {}
    length = case.length
    # the last token id is that of images
    words = config.get_text_config().vocab_size - 1
    ids = found["input_ids"] = torch.randint(words, (case.batch, length), device=DEVICE)
    if not case.model.endswith("EncoderModel"):
        found["use_cache"] = False
        if config.is_encoder_decoder:
            found["decoder_input_ids"] = torch.randint_like(ids, words)
    if case.padded:
        # lengths from a tenth of the longest to all of it, half of it on average
        counts = torch.linspace(0.1, 0.9, case.batch).mul(length).long().clamp(min=1)
        counts[-1] = length
        found["attention_mask"] = (torch.arange(length)[None] < counts[:, None]).long().to(DEVICE)
    if hasattr(config, "vision_config"):
        side = config.vision_config.image_size
        places = (side // config.vision_config.patch_size) ** 2
        ids[:, :places] = config.image_token_id
        found["pixel_values"] = torch.randn(case.batch, 3, side, side, device=DEVICE)
        found["token_type_ids"] = (torch.arange(length, device=DEVICE) >= (places + length) // 2).long().expand_as(ids)
    return found


def training(case: Case, attention: str, mode: str, tiny: bool) -> Step:
    """A forward and backward pass over random tokens."""
    model = made(case, attention, tiny)
    model.train()
    if tiny:
        case = dataclasses.replace(case, length=24, batch=min(case.batch, 2))
    given = batch(case, model.config)
    if mode == "layers":
        # each kind of layer of each contender has its own graph
        torch._dynamo.config.recompile_limit = 64
        for layer in model.modules():
            if isinstance(layer, GradientCheckpointingLayer):
                layer.compile()
    run = torch.compile(model) if mode == "compiled" else model

    def step() -> None:
        states = run(**given).last_hidden_state
        states.float().square().mean().backward()
        model.zero_grad(set_to_none=True)

    return step


def generating(case: Case, attention: str, tiny: bool) -> Step:
    """Generation of tokens after a long prompt."""
    model = made(case, attention, tiny)
    prompt, new = (24, 3) if tiny else (case.length, 256)
    ids = torch.randint(model.config.vocab_size, (1, prompt), device=DEVICE)
    given = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False, "pad_token_id": 0}
    return lambda: model.generate(ids, attention_mask=torch.ones_like(ids), **given)


def clock(step: Step) -> float:
    """Milliseconds of a step."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    begin = time.perf_counter()
    step()
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - begin) * 1e3


def memory(step: Step) -> float:
    """Peak memory of a step in MiB, in addition to what is allocated before it."""
    if DEVICE == "cpu":
        return 0.0
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def release() -> None:
    """Frees memory that nothing refers to."""
    gc.collect()
    if DEVICE == "cuda":
        torch.cuda.empty_cache()


def forget() -> None:
    """Discards compiled code, with the models that it belongs to."""
    torch.compiler.reset()
    release()


def reason(error: Exception) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:100]}"


def in_turns(title: str, makers: dict[str, Callable[[], Step]], rounds: int) -> dict[str, Any]:
    """Times steps in turns and prints the medians; those that cannot run are left out, with the reason printed."""
    steps: dict[str, Step] = {}
    mib: dict[str, float] = {}
    for name, make in makers.items():
        begin = time.perf_counter()
        try:
            step = make()
            step(), step()
            mib[name] = memory(step)
            once = clock(step)
        except Exception as error:  # whatever a library raises
            print(f"  {title}, {name}: {reason(error)}", file=sys.stderr, flush=True)
            release()
            continue
        steps[name] = step
        print(f"  {title}, {name}: {once:.1f} ms, {time.perf_counter() - begin:.0f} s in all", flush=True)
    times: dict[str, list[float]] = {name: [] for name in steps}
    for i in range(rounds):
        for name in turns([*steps], i):
            times[name].append(clock(steps[name]))
    found = {name: statistics.median(each) for name, each in times.items()}
    print(f"{title}: " + ", ".join(f"{name} {x:.1f} ms {mib[name]:.0f} MiB" for name, x in found.items()), flush=True)
    return {"case": title, "ms": found, "mib": mib}


Part = tuple[Case, str, str, bool]


def once(part: Part) -> str:
    """Runs a step of one contender to compile its kernels; returns why it cannot run, or an empty string."""
    case, name, mode, tiny = part
    try:
        clock(training(case.few(), name, mode, tiny))
    except Exception as error:
        return reason(error)
    return ""


def alone(part: Part) -> str:
    """The same in its own process: an illegal access on a GPU breaks everything that a process does afterwards."""
    try:
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            return pool.submit(once, part).result()
    except Exception as error:  # the process died
        return reason(error)


Failed = dict[tuple[str, str, str], str]


def compile_first(parts: Sequence[Part], jobs: int) -> Failed:
    """Runs a step of each part, `jobs` at a time, to fill compile caches. Returns which failed, and why."""
    begin = time.perf_counter()
    with ThreadPoolExecutor(jobs) as pool:
        found = zip(parts, pool.map(alone, parts), strict=True)
        failed = {(case.name, mode, name): why for (case, name, mode, _), why in found if why}
    print(f"compiled {len(parts)} contenders in {time.perf_counter() - begin:.0f} s", flush=True)
    return failed


def makers(case: Case, mode: str, tiny: bool, failed: Failed) -> dict[str, Callable[[], Step]]:
    """Functions that build the contenders; those that failed in their own process are left out, with the reason."""
    found = {}
    for name in case.contenders():
        # a model that is compiled as a whole has no such process: it runs the kernels of the other modes
        tried = MODES if mode == "compiled" else (mode,)
        why = next((failed[key] for one in tried if (key := (case.name, one, name)) in failed), "")
        if why:
            print(f"  {case.name}, {mode}, {name} is left out: {why}", file=sys.stderr, flush=True)
        else:
            found[name] = partial(training, case, name, mode, tiny)
    return found


def parts(cases: Sequence[Case], modes: Sequence[str], tiny: bool) -> Iterator[Part]:
    """Contenders to compile first; with fewer layers, a model compiled as a whole would have another graph."""
    for mode in modes:
        for case in cases:
            for name in case.contenders():
                if mode == "layers" or (mode == "eager" and name not in ("eager", "sdpa")):
                    yield case, name, mode, tiny


# -- the table of the docs -----------------------------------------------------------------------------------------

UNKNOWN = "not measured"


def speed(case: Case, found: list[dict[str, Any]]) -> str:
    """The time of a step with the library's fastest attention divided by ours, in each mode."""
    told = []
    for mode in MODES:
        ms = next((one["ms"] for one in found if one["case"] == f"{case.name}, {mode}"), {})
        peers = {name: ms[name] for name in case.peers if name in ms}
        if case.spec in ms and peers:
            best = min(peers, key=peers.__getitem__)
            told.append(f"{mode} {peers[best] / ms[case.spec]:.2f} ({best})")
    return ", ".join(told) or UNKNOWN


def page(text: str, record: dict[str, Any]) -> str:
    """The page with the last column of its table, and the line below, filled in from a record."""
    cases = {case.row: case for case in CASES if case.row}
    lines = text.split("\n")
    first = next(i for i, line in enumerate(lines) if line.startswith("| models |")) + 2
    for i in range(first, lines.index("", first)):
        *cells, _ = lines[i].strip("| ").split(" | ")
        row = cells[0]
        lines[i] = f"| {' | '.join(cells)} | {speed(cases[row], record['cases']) if row in cases else UNKNOWN} |"
    where = (
        f"Measured on one {record['device']}, {record['libraries']}." if record["cases"] else "Nothing is measured yet."
    )
    return re.sub(r"(?m)^(Speed: ).*$", rf"\g<1>{where}", "\n".join(lines))


def recorded() -> dict[str, Any]:
    """The record for the docs."""
    found: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {"cases": []}
    return found


def asked() -> argparse.Namespace:
    """The parsed arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[""])
    parser.add_argument("--modes", nargs="*", choices=MODES, default=["eager", "compiled"])
    parser.add_argument("--experts", choices=EXPERTS)
    parser.add_argument("--length", type=int)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--jobs", type=int, default=0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    return parser.parse_args()


def wanted(case: Case, only: Sequence[str]) -> bool:
    """Whether a case is selected: by its name, or by a part of it that is not the name of another case."""
    names = {one.name for one in (*CASES, GENERATING)}
    return any(name == case.name or (name not in names and name in case.name) for name in only)


def chosen(given: argparse.Namespace) -> Iterator[Case]:
    """The selected cases; one that differs from its row in the docs gets another name."""
    for case in CASES:
        if not wanted(case, given.only):
            continue
        if given.experts and case.experts not in ("", given.experts):
            case = dataclasses.replace(case, experts=given.experts, name=f"{case.name} with {given.experts}")
        if given.length:
            case = dataclasses.replace(case, length=given.length, name=f"{case.name} at {given.length}")
        yield case


def keep(found: list[dict[str, Any]], path: Path, about: dict[str, Any]) -> None:
    """Adds results to a record; it has to be of the same GPU and libraries."""
    old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else about | {"cases": []}
    if {key: old[key] for key in about} != about:
        raise SystemExit(f"{path}: is of {old['device']}, {old['libraries']}")
    new = {one["case"]: one for one in (*old["cases"], *found)}
    path.write_text(json.dumps(about | {"cases": [*new.values()]}, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Runs the benchmarks that the arguments select."""
    given = asked()
    if given.page:
        PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), recorded()), encoding="utf-8", newline="\n")
        return
    rounds = 1 if given.tiny else given.rounds
    device = torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU"
    about = {"device": device, "libraries": f"torch {torch.__version__}, transformers {transformers.__version__}"}
    print(", ".join(about.values()), flush=True)
    cases = [*chosen(given)]
    if given.json:
        keep([], given.json, about)
    failed = compile_first([*parts(cases, given.modes, given.tiny)], given.jobs) if given.jobs else {}

    def timed(title: str, makers: dict[str, Callable[[], Step]], rounds: int) -> None:
        one = in_turns(title, makers, rounds)
        forget()
        if given.json:
            keep([one], given.json, about)

    for mode in given.modes:
        for case in cases:
            if case.experts:
                print(f"  {case.name}: experts by {case.experts}")
            timed(f"{case.name}, {mode}", makers(case, mode, given.tiny, failed), rounds)
    if wanted(GENERATING, given.only):
        steps = {name: partial(generating, GENERATING, name, given.tiny) for name in GENERATING.contenders()}
        timed(GENERATING.name, steps, min(rounds, 3))


if __name__ == "__main__":
    main()
