"""Times models of transformers with rendered attention beside the library's own, on the GPU at hand.

python benchmarks/models.py                    training steps, eager and compiled, padded batches, generation
python benchmarks/models.py --only llama       the cases with such a name
python benchmarks/models.py --json FILE        keeps the numbers, for the docs in benchmarks/results/models.json
python benchmarks/models.py --page             times nothing: writes those into the table of docs/transformers.md
python benchmarks/models.py --tiny             sizes at which the script itself can be tried, in the interpreter, too

Random weights in bfloat16. All contenders of a line are made first, then they take turns, each round beginning with
another one; a line tells the median of their rounds, and the most memory that one takes beside the weights.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "generator")]

from attnforge.gpu.turns import turns  # noqa: E402

RESULTS, PAGE = ROOT / "benchmarks" / "results" / "models.json", ROOT / "docs" / "transformers.md"
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
    row: str = ""  # of the table in docs/transformers.md that tells of it
    config: str = ""  # if its name does not follow from the model's
    sizes: dict[str, Any] = field(default_factory=dict)

    def configured(self, tiny: bool) -> Any:
        """The configuration, or one of a model that takes no time."""
        name = self.config or self.model.removesuffix("Model").removesuffix("ForCausalLM") + "Config"
        return getattr(transformers, name)(**(shrunk(self.sizes) if tiny else self.sizes))


# of models that take no time
SMALL: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "sliding_window": 8, "vocab_size": 64, "image_token_id": 63,
    "image_size": 28, "projection_dim": 32, "d_model": 32, "d_kv": 16, "d_ff": 32, "num_layers": 2, "num_heads": 2,
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 16,
    "first_k_dense_replace": 2,
}  # fmt: skip


def shrunk(sizes: dict[str, Any]) -> dict[str, Any]:
    """The like of some sizes that takes no time; heads are in groups where they were."""
    found = {key: shrunk(x) if isinstance(x, dict) else SMALL.get(key, x) for key, x in sizes.items()}
    if "num_key_value_heads" in sizes and sizes["num_key_value_heads"] == sizes["num_attention_heads"]:
        found["num_key_value_heads"] = found["num_attention_heads"]
    return found


LLAMA = {  # that of Llama 3.2 1B
    "vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 32768,
}  # fmt: skip
MISTRAL = {  # a quarter of Mistral 7B's layers
    "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 8,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 32768,
    "sliding_window": 4096,
}  # fmt: skip
QWEN = {  # half of Qwen 3 1.7B's layers
    "vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 14,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 32768,
}  # fmt: skip
GEMMA_2 = {  # a third of Gemma 2 2B's layers
    "vocab_size": 32000, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 8,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 32768,
    "sliding_window": 4096, "attn_logit_softcapping": 50.0,
}  # fmt: skip
GEMMA_3 = {  # half of Gemma 3 1B's layers: two of twelve see all tokens
    "vocab_size": 32000, "hidden_size": 1152, "intermediate_size": 6912, "num_hidden_layers": 12,
    "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256, "max_position_embeddings": 32768,
    "sliding_window": 512,
}  # fmt: skip
GPT_OSS = {  # layers of gpt-oss 20B with an eighth of its experts
    "vocab_size": 32000, "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 4, "num_local_experts": 4,
    "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 32768,
    "sliding_window": 128,
}  # fmt: skip
T5 = {  # a third of the encoder of T5 large
    "vocab_size": 32000, "d_model": 1024, "d_kv": 64, "d_ff": 4096, "num_layers": 8, "num_heads": 16,
    "dropout_rate": 0.0,
}  # fmt: skip
PALIGEMMA = {  # a third of the text layers of PaliGemma 3B, a sixth of those that see its image
    "image_token_id": 31999, "projection_dim": 2048,
    "text_config": {
        "model_type": "gemma", "vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 16384,
        "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 256,
        "max_position_embeddings": 32768,
    },
    "vision_config": {
        "model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 4,
        "num_attention_heads": 16, "image_size": 448, "patch_size": 14, "projection_dim": 2048,
    },
}  # fmt: skip
DEEPSEEK = {  # heads of DeepSeek V3, a quarter of them, in layers without experts
    "vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 4,
    "num_attention_heads": 32, "num_key_value_heads": 32, "q_lora_rank": 1536, "kv_lora_rank": 512,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "first_k_dense_replace": 4,
    "max_position_embeddings": 32768,
}  # fmt: skip
BOTH = ("sdpa", "flex_attention")
CASES = (
    Case("llama", "LlamaModel", "causal", BOTH, 8192, patched="llama3", row="Llama", sizes=LLAMA),
    Case("llama padded", "LlamaModel", "causal", ("sdpa",), 4096, 8, patched="llama3", padded=True, sizes=LLAMA),
    Case("mistral", "MistralModel", "runtime_window", BOTH, 8192, patched="mistral", row="Mistral", sizes=MISTRAL),
    Case("qwen 3", "Qwen3Model", "causal", BOTH, 8192, patched="qwen3", row="Qwen 3", sizes=QWEN),
    Case("gemma 2", "Gemma2Model", "softcap_window", ("eager", BOTH[1]), 8192, row="Gemma 2", sizes=GEMMA_2),
    Case("gemma 3", "Gemma3TextModel", "runtime_window", BOTH, 8192, row="Gemma 3", sizes=GEMMA_3),
    Case("gpt-oss", "GptOssModel", "sink_window", ("eager", BOTH[1]), 8192, row="gpt-oss", sizes=GPT_OSS),
    Case("t5", "T5EncoderModel", "pair_bias", BOTH, 2048, 2, row="T5, its encoder alone", config="T5Config", sizes=T5),
    Case("paligemma", "PaliGemmaModel", "prefix_lm", BOTH, 2048, 2, row="PaliGemma", sizes=PALIGEMMA),
    Case("deepseek", "DeepseekV3Model", "deepseek_mla", BOTH, 4096, row="DeepSeek V2, V3", sizes=DEEPSEEK),
)
GENERATING = Case("llama generates", "LlamaForCausalLM", "causal", ("sdpa",), 16384, sizes=LLAMA)


def made(case: Case, attention: str, tiny: bool) -> Any:
    """A model with an attention of the library, or with rendered kernels where that is a spec's name."""
    torch.manual_seed(0)
    dtype = torch.float32 if DEVICE == "cpu" else torch.bfloat16
    with torch.device(DEVICE):
        model = getattr(transformers, case.model)(case.configured(tiny)).to(dtype)
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


def batch(case: Case, config: Any, length: int) -> dict[str, Any]:
    """Random tokens as keywords of a model's forward; behind an image and half of the text come the answers."""
    found: dict[str, Any] = {}
    # the last token stands for images
    words = config.get_text_config().vocab_size - 1
    ids = found["input_ids"] = torch.randint(words, (case.batch, length), device=DEVICE)
    if not case.model.endswith("EncoderModel"):
        found["use_cache"] = False
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


def training(case: Case, attention: str, compiled: bool, tiny: bool) -> Step:
    """A step forward and backward over random tokens."""
    model = made(case, attention, tiny)
    model.train()
    given = batch(case, model.config, 24 if tiny else case.length)
    run = torch.compile(model) if compiled else model

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
    for i in range(rounds):
        for name in turns([*steps], i):
            times[name].append(clock(steps[name]))
    found = {name: statistics.median(each) for name, each in times.items()}
    print(f"{title}: " + ", ".join(f"{name} {x:.1f} ms {mib[name]:.0f} MiB" for name, x in found.items()), flush=True)
    return {"case": title, "ms": found, "mib": mib}


# -- the table of the docs -----------------------------------------------------------------------------------------

UNKNOWN = "not measured"


def speed(case: Case, found: list[dict[str, Any]]) -> str:
    """By how much a step of the fastest attention of the library is longer than ours, eager and compiled."""
    told = []
    for mode in ("eager", "compiled"):
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


def main() -> None:
    """Runs what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    if given.page:
        PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), recorded()), encoding="utf-8", newline="\n")
        return
    rounds, found = 1 if given.tiny else ROUNDS, []
    device = torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU"
    libraries = f"torch {torch.__version__}, transformers {transformers.__version__}"
    print(f"{device}, {libraries}")
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
        given.json.write_text(json.dumps({"device": device, "libraries": libraries, "cases": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
