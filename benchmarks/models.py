"""Times models of transformers with rendered attention beside the library's own, on the GPU at hand.

python benchmarks/models.py                    training steps, eager and compiled, padded batches, generation
python benchmarks/models.py --only llama t5    the cases of these names, or of all that have such a part
python benchmarks/models.py --modes layers     steps of models whose layers are compiled one by one, which takes seconds
python benchmarks/models.py --jobs 6           takes a step of each first, in a process of its own, six at a time: what
                                               it compiles is kept, and one that fails is not timed
python benchmarks/models.py --experts eager    another way through experts than a case has
python benchmarks/models.py --json FILE        keeps the numbers, for the docs in benchmarks/results/models.json
python benchmarks/models.py --page             times nothing: writes those into the table of docs/transformers.md
python benchmarks/models.py --tiny             sizes at which the script itself can be tried, in the interpreter, too

Random weights in bfloat16. All contenders of a line are made first, then they take turns, each round beginning with
another one; a line tells the median of their rounds, and the most memory that one takes beside the weights. What one
takes before that stands on a line of its own as soon as it is known, and FILE is written anew behind each case.
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
    """The file for transformers of a shipped spec, or of one that is rendered for this alone."""
    if (ROOT / "generated" / spec).is_dir():
        return importlib.import_module(f"generated.{spec}.transformers")
    return attnforge.build(ROOT / "benchmarks" / "specs" / f"{spec}.yaml").transformers


def made(case: Case, attention: str, tiny: bool) -> Any:
    """A model with an attention of the library, or with rendered kernels where that is a spec's name."""
    torch.manual_seed(0)
    experts.register()
    own = exported(attention) if attention in (case.spec, case.patched) else None
    name = own.register() if own else attention
    dtype = torch.float32 if DEVICE == "cpu" else torch.bfloat16
    with torch.device(DEVICE):
        model = getattr(transformers, case.model)(case.configured(name, tiny)).to(dtype)
    # an encoder and a decoder have configurations of their own, which may keep another one
    given = {part.config._attn_implementation for part in model.modules() if hasattr(part, "set_attn_implementation")}
    if given != {name}:
        raise ValueError(f"{case.model} with {name} has {', '.join(sorted(given))}")
    if own and attention == case.patched:
        own.patch(model)
    return model


def batch(case: Case, config: Any) -> dict[str, Any]:
    """Random tokens as keywords of a model's forward; behind an image and half of the text come the answers."""
    found: dict[str, Any] = {}
    length = case.length
    # the last token stands for images
    words = config.get_text_config().vocab_size - 1
    ids = found["input_ids"] = torch.randint(words, (case.batch, length), device=DEVICE)
    if not case.model.endswith("EncoderModel"):
        found["use_cache"] = False
        if config.is_encoder_decoder:
            found["decoder_input_ids"] = torch.randint_like(ids, words)
    if case.padded:
        # lengths from a tenth of the longest to all of it: half of it in the mean
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
    """A step forward and backward over random tokens."""
    model = made(case, attention, tiny)
    model.train()
    if tiny:
        case = dataclasses.replace(case, length=24, batch=min(case.batch, 2))
    given = batch(case, model.config)
    if mode == "layers":
        # each kind of layer of each contender is a graph of its own
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
    """Some tokens behind a long prompt."""
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
    """MiB that a step takes at most beside what there is before it."""
    if DEVICE == "cpu":
        return 0.0
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def release() -> None:
    """Gives memory back that nothing refers to."""
    gc.collect()
    if DEVICE == "cuda":
        torch.cuda.empty_cache()


def forget() -> None:
    """Forgets what was compiled, with the models that it belongs to."""
    torch.compiler.reset()
    release()


def reason(error: Exception) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:100]}"


def in_turns(title: str, makers: dict[str, Callable[[], Step]], rounds: int) -> dict[str, Any]:
    """Medians of all steps, told in one line; those that cannot run are left out, with the reason."""
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
        print(f"  {title}, {name}: {once:.1f} ms, {time.perf_counter() - begin:.0f} s until then", flush=True)
    times: dict[str, list[float]] = {name: [] for name in steps}
    for i in range(rounds):
        for name in turns([*steps], i):
            times[name].append(clock(steps[name]))
    found = {name: statistics.median(each) for name, each in times.items()}
    print(f"{title}: " + ", ".join(f"{name} {x:.1f} ms {mib[name]:.0f} MiB" for name, x in found.items()), flush=True)
    return {"case": title, "ms": found, "mib": mib}


Part = tuple[Case, str, str, bool]


def once(part: Part) -> str:
    """A step of one contender, for what it compiles; tells why it cannot run, or nothing."""
    case, name, mode, tiny = part
    try:
        clock(training(case.few(), name, mode, tiny))
    except Exception as error:
        return reason(error)
    return ""


def alone(part: Part) -> str:
    """The like in a process of its own: an illegal access on a GPU breaks all that a process does from then on."""
    try:
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            return pool.submit(once, part).result()
    except Exception as error:  # the process died
        return reason(error)


Failed = dict[tuple[str, str, str], str]


def compile_first(parts: Sequence[Part], jobs: int) -> Failed:
    """Takes a step of everything, some at a time: what they compile stays in caches. Tells which failed, and why."""
    begin = time.perf_counter()
    with ThreadPoolExecutor(jobs) as pool:
        found = zip(parts, pool.map(alone, parts), strict=True)
        failed = {(case.name, mode, name): why for (case, name, mode, _), why in found if why}
    print(f"compiled {len(parts)} contenders in {time.perf_counter() - begin:.0f} s", flush=True)
    return failed


def makers(case: Case, mode: str, tiny: bool, failed: Failed) -> dict[str, Callable[[], Step]]:
    """What makes each contender; those that failed in a process of their own are left out, with the reason."""
    found = {}
    for name in case.contenders():
        # one that is compiled as a whole has no such process: it runs the kernels of the other modes
        tried = MODES if mode == "compiled" else (mode,)
        why = next((failed[key] for one in tried if (key := (case.name, one, name)) in failed), "")
        if why:
            print(f"  {case.name}, {mode}, {name} is left out: {why}", file=sys.stderr, flush=True)
        else:
            found[name] = partial(training, case, name, mode, tiny)
    return found


def parts(cases: Sequence[Case], modes: Sequence[str], tiny: bool) -> Iterator[Part]:
    """What is worth a call before all others: a model that is compiled as a whole is none of fewer layers."""
    for mode in modes:
        for case in cases:
            for name in case.contenders():
                if mode == "layers" or (mode == "eager" and name not in ("eager", "sdpa")):
                    yield case, name, mode, tiny


# -- the table of the docs -----------------------------------------------------------------------------------------

UNKNOWN = "not measured"


def speed(case: Case, found: list[dict[str, Any]]) -> str:
    """By how much a step of the fastest attention of the library is longer than ours, in each mode."""
    told = []
    for mode in MODES:
        ms = next((one["ms"] for one in found if one["case"] == f"{case.name}, {mode}"), {})
        peers = {name: ms[name] for name in case.peers if name in ms}
        if case.spec in ms and peers:
            best = min(peers, key=peers.__getitem__)
            told.append(f"{mode} {peers[best] / ms[case.spec]:.2f} ({best})")
    return ", ".join(told) or UNKNOWN


def page(text: str, record: dict[str, Any]) -> str:
    """The page with the last column of its table, and the line below, as a record has it."""
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
    """What is recorded for the docs."""
    found: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {"cases": []}
    return found


def asked() -> argparse.Namespace:
    """What the arguments ask for."""
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
    """Whether a case is asked for: by its name, or by a part of it that is no other's name."""
    names = {one.name for one in (*CASES, GENERATING)}
    return any(name == case.name or (name not in names and name in case.name) for name in only)


def chosen(given: argparse.Namespace) -> Iterator[Case]:
    """The cases that are asked for; one that is not as its line of the docs has it has another name."""
    for case in CASES:
        if not wanted(case, given.only):
            continue
        if given.experts and case.experts not in ("", given.experts):
            case = dataclasses.replace(case, experts=given.experts, name=f"{case.name} with {given.experts}")
        if given.length:
            case = dataclasses.replace(case, length=given.length, name=f"{case.name} at {given.length}")
        yield case


def keep(found: list[dict[str, Any]], path: Path, about: dict[str, Any]) -> None:
    """Writes a record; what it has of other cases stays if it is of the same GPU and libraries."""
    old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else about | {"cases": []}
    if {key: old[key] for key in about} != about:
        raise SystemExit(f"{path}: is of {old['device']}, {old['libraries']}")
    new = {one["case"]: one for one in (*old["cases"], *found)}
    path.write_text(json.dumps(about | {"cases": [*new.values()]}, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Runs what the arguments ask for."""
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
