"""Times models of transformers with rendered attention beside the library's own, on the GPU at hand.

python benchmarks/models.py                    training steps, eager and compiled, padded batches, generation
python benchmarks/models.py --only llama       the cases with such a name
python benchmarks/models.py --json FILE        keeps the numbers too
python benchmarks/models.py --tiny             sizes at which the script itself can be tried, in the interpreter, too

Random weights in bfloat16. All contenders of a line are made first, then they take turns, each round beginning with
another one; a line tells the median of their rounds, and the most memory that one takes beside the weights.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

sys.path.insert(0, str(Path(__file__).parents[1]))
Step = Callable[[], Any]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROUNDS = 7


@dataclass(frozen=True)
class Case:
    """A class of models, its sizes, and the attentions that it is timed with."""

    name: str
    model: str  # the class of transformers, without a head that makes tokens
    spec: str
    peers: tuple[str, ...]
    length: int
    batch: int = 1
    padded: bool = False
    patched: str = ""  # a spec that rotates inside of the kernels
    sizes: dict[str, Any] = field(default_factory=dict)

    def config(self, tiny: bool) -> Any:
        """The configuration, or one of a model that takes no time."""
        small = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
        small |= {"num_key_value_heads": 1, "head_dim": 16, "sliding_window": 8, "vocab_size": 64}
        sizes = self.sizes | ({key: x for key, x in small.items() if key in self.sizes} if tiny else {})
        return getattr(transformers, self.model.removesuffix("Model").removesuffix("ForCausalLM") + "Config")(**sizes)


LLAMA = {  # that of Llama 3.2 1B
    "vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 32768,
}  # fmt: skip
GEMMA = {  # a third of Gemma 2 2B's layers
    "vocab_size": 32000, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 8,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 32768,
    "sliding_window": 4096, "attn_logit_softcapping": 50.0,
}  # fmt: skip
GPT_OSS = {  # layers of gpt-oss 20B with an eighth of its experts
    "vocab_size": 32000, "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 4, "num_local_experts": 4,
    "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 32768,
    "sliding_window": 128,
}  # fmt: skip
CASES = (
    Case("llama", "LlamaModel", "causal", ("sdpa", "flex_attention"), 8192, patched="llama3", sizes=LLAMA),
    Case("llama padded", "LlamaModel", "causal", ("sdpa",), 4096, 8, padded=True, sizes=LLAMA),
    Case("gemma 2", "Gemma2Model", "softcap_window", ("eager", "flex_attention"), 8192, sizes=GEMMA),
    Case("gpt-oss", "GptOssModel", "sink_window", ("eager", "flex_attention"), 4096, sizes=GPT_OSS),
)
GENERATING = Case("llama generates", "LlamaForCausalLM", "causal", ("sdpa",), 16384, sizes=LLAMA)


def made(case: Case, attention: str, tiny: bool) -> Any:
    """A model with an attention of the library, or with rendered kernels where that is a spec's name."""
    torch.manual_seed(0)
    dtype = torch.float32 if DEVICE == "cpu" else torch.bfloat16
    with torch.device(DEVICE):
        model = getattr(transformers, case.model)(case.config(tiny)).to(dtype)
    if attention in (case.spec, case.patched):
        export = importlib.import_module(f"generated.{attention}.transformers")
        if attention == case.patched:
            export.patch(model)
        else:
            model.set_attn_implementation(export.register())
    else:
        model.set_attn_implementation(attention)
    return model


def contenders(case: Case) -> Iterator[str]:
    """Names of all attentions of a case, rendered ones first."""
    yield case.spec
    if case.patched:
        yield case.patched
    yield from case.peers


def training(case: Case, attention: str, compiled: bool, tiny: bool) -> Step:
    """A step forward and backward over random tokens."""
    model = made(case, attention, tiny)
    model.train()
    length = 24 if tiny else case.length
    ids = torch.randint(model.config.vocab_size, (case.batch, length), device=DEVICE)
    held = None
    if case.padded:
        # lengths from a tenth of the longest to all of it: half of it in the mean
        counts = torch.linspace(0.1, 0.9, case.batch).mul(length).long().clamp(min=1)
        counts[-1] = length
        held = (torch.arange(length)[None] < counts[:, None]).long().to(DEVICE)
    run = torch.compile(model) if compiled else model

    def step() -> None:
        states = run(ids, attention_mask=held, use_cache=False).last_hidden_state
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


def in_turns(title: str, steps: dict[str, Step], rounds: int) -> dict[str, Any]:
    """Medians of all steps, told in one line; those that cannot run are left out, with the reason."""
    mib: dict[str, float] = {}
    for name, step in [*steps.items()]:
        try:
            step(), step()
            mib[name] = memory(step)
        except Exception as error:  # whatever a library raises
            print(f"  {title}, {name}: {type(error).__name__}: {str(error).splitlines()[0][:100]}", file=sys.stderr)
            del steps[name]
    times: dict[str, list[float]] = {name: [] for name in steps}
    names = [*steps]
    for i in range(rounds):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            times[name].append(clock(steps[name]))
    found = {name: statistics.median(each) for name, each in times.items()}
    print(f"{title}: " + ", ".join(f"{name} {x:.1f} ms {mib[name]:.0f} MiB" for name, x in found.items()), flush=True)
    return {"case": title, "ms": found, "mib": mib}


def main() -> None:
    """Runs what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    rounds, found = 1 if given.tiny else ROUNDS, []
    if DEVICE == "cuda":
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, transformers {transformers.__version__}")
    for case in CASES:
        for compiled in (False, True)[: 1 if given.tiny else 2]:
            title = f"{case.name}, {'compiled' if compiled else 'eager'}"
            if given.only in title:
                steps = {name: training(case, name, compiled, given.tiny) for name in contenders(case)}
                found.append(in_turns(title, steps, rounds))
                del steps
                torch.compiler.reset()
    if given.only in GENERATING.name:
        steps = {name: generating(GENERATING, name, given.tiny) for name in contenders(GENERATING)}
        found.append(in_turns(GENERATING.name, steps, min(rounds, 3)))
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
