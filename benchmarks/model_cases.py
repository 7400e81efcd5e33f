"""The models that `models.py` times: their classes, their sizes, and the attention functions of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import transformers


@dataclass(frozen=True)
class Case:
    """A model class, its sizes, and the attention functions it is timed with."""

    name: str
    model: str  # the class in transformers; without a language-modelling head, except to generate
    spec: str  # a shipped one, or one of benchmarks/specs
    peers: tuple[str, ...]
    length: int
    batch: int = 1
    padded: bool = False
    patched: str = ""  # a spec whose `patch` changes layers, which then leave a rotation or a bias to kernels
    row: str = ""  # its row in the table of docs/transformers.md
    config: str = ""  # the configuration class, if its name does not follow from the model's
    experts: str = ""  # the implementation of layers with experts, for all attention functions
    sizes: dict[str, Any] = field(default_factory=dict)

    def configured(self, attention: str, tiny: bool) -> Any:
        """The configuration with an attention function, of a model that takes no time if `tiny`."""
        name = self.config or self.model.removesuffix("Model").removesuffix("ForCausalLM") + "Config"
        ways = {"attn_implementation": attention} | ({"experts_implementation": self.experts} if self.experts else {})
        return getattr(transformers, name)(**(shrunk(self.sizes) if tiny else self.sizes), **ways)

    def contenders(self) -> Iterator[str]:
        """Names of all attention functions, rendered ones first."""
        yield self.spec
        if self.patched not in ("", self.spec):
            yield self.patched
        yield from self.peers

    def few(self) -> Case:
        """The same with few layers and few padded rows: it compiles the same kernels, and needs little memory."""
        return dataclasses.replace(self, batch=min(self.batch, 2 if self.padded else 64), sizes=fewer(self.sizes))


# sizes of models that take no time
SMALL: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "sliding_window": 8, "vocab_size": 64, "image_token_id": 63,
    "image_size": 28, "projection_dim": 32, "d_model": 32, "d_kv": 16, "d_ff": 32, "num_layers": 2, "num_heads": 2,
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 16,
    "first_k_dense_replace": 2, "num_local_experts": 4, "n_embd": 32, "n_layer": 2, "n_head": 2, "encoder_layers": 2,
    "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
}  # fmt: skip


def shrunk(sizes: dict[str, Any]) -> dict[str, Any]:
    """Sizes of the same kind that take no time; heads stay grouped if they are."""
    found = {key: shrunk(x) if isinstance(x, dict) else SMALL.get(key, x) for key, x in sizes.items()}
    if "num_key_value_heads" in sizes and sizes["num_key_value_heads"] == sizes["num_attention_heads"]:
        found["num_key_value_heads"] = found["num_attention_heads"]
    return found


LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "encoder_layers", "decoder_layers")


def fewer(sizes: dict[str, Any]) -> dict[str, Any]:
    """The same sizes with at most six layers, which include all kinds that a model has."""
    return {k: fewer(x) if isinstance(x, dict) else min(x, 6) if k in LAYERS else x for k, x in sizes.items()}


LLAMA = {  # the sizes of Llama 3.2 1B
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
GPT_OSS = {  # two of gpt-oss 20B's layers, one with a window and one without, with all experts
    "vocab_size": 32000, "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 2,
    "num_local_experts": 32, "num_experts_per_tok": 4, "num_attention_heads": 64, "num_key_value_heads": 8,
    "head_dim": 64, "max_position_embeddings": 32768, "sliding_window": 128,
}  # fmt: skip
T5 = {  # a third of the encoder of T5 large
    "vocab_size": 32000, "d_model": 1024, "d_kv": 64, "d_ff": 4096, "num_layers": 8, "num_heads": 16,
    "dropout_rate": 0.0,
}  # fmt: skip
T5_WHOLE = T5 | {"num_layers": 4}  # a sixth of T5 large, decoder and encoder
GPT_2 = {  # a third of GPT-2 medium
    "vocab_size": 32000, "n_embd": 1024, "n_layer": 8, "n_head": 16, "n_positions": 1024,
}  # fmt: skip
BART = {  # a third of BART large
    "vocab_size": 32000, "d_model": 1024, "encoder_layers": 4, "decoder_layers": 4, "encoder_attention_heads": 16,
    "decoder_attention_heads": 16, "encoder_ffn_dim": 4096, "decoder_ffn_dim": 4096, "dropout": 0.0,
    "max_position_embeddings": 1024,
}  # fmt: skip
BERT = {  # a third of BERT large
    "vocab_size": 32000, "hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 16,
    "intermediate_size": 4096, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    "max_position_embeddings": 512,
}  # fmt: skip
PALIGEMMA = {  # a third of the text layers of PaliGemma 3B, a sixth of those for its image
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
DEEPSEEK = {  # a quarter of the heads of DeepSeek V3, in layers without experts
    "vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 4,
    "num_attention_heads": 32, "num_key_value_heads": 32, "q_lora_rank": 1536, "kv_lora_rank": 512,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "first_k_dense_replace": 4,
    "max_position_embeddings": 32768,
}  # fmt: skip
BOTH = ("sdpa", "flex_attention")
# the slower one last, so that a run that is cut off there has the others' times
CAPPED = ("flex_attention", "eager")
# the most requested models first, then smaller ones
CASES = (
    Case("llama", "LlamaModel", "causal", BOTH, 8192, patched="llama3", row="Llama", sizes=LLAMA),
    Case("mistral", "MistralModel", "runtime_window", BOTH, 8192, patched="mistral", row="Mistral", sizes=MISTRAL),
    Case("qwen 3", "Qwen3Model", "causal", BOTH, 8192, patched="qwen3", row="Qwen 3", sizes=QWEN),
    Case("gemma 2", "Gemma2Model", "softcap_window", CAPPED, 8192, row="Gemma 2", sizes=GEMMA_2),
    Case("gemma 3", "Gemma3TextModel", "runtime_window", BOTH, 8192, row="Gemma 3", sizes=GEMMA_3),
    Case("gpt-oss", "GptOssModel", "sink_window", CAPPED, 8192, row="gpt-oss", experts="grouped_mm", sizes=GPT_OSS),
    Case("deepseek", "DeepseekV3Model", "deepseek_mla", BOTH, 4096, row="DeepSeek V2, V3", sizes=DEEPSEEK),
    Case("paligemma", "PaliGemmaModel", "prefix_lm", BOTH, 2048, 2, row="PaliGemma", sizes=PALIGEMMA),
    Case(
        "t5",
        "T5EncoderModel",
        "t5_encoder",
        BOTH,
        2048,
        2,
        patched="t5_encoder",
        row="T5, encoder only",
        config="T5Config",
        sizes=T5,
    ),
    Case(
        "t5 padded",
        "T5EncoderModel",
        "t5_encoder",
        ("sdpa",),
        2048,
        8,
        patched="t5_encoder",
        config="T5Config",
        padded=True,
        sizes=T5,
    ),
    Case("t5 whole", "T5Model", "t5", BOTH, 2048, 2, row="T5", sizes=T5_WHOLE),
    Case("gpt-2", "GPT2Model", "gpt2_dropout", ("sdpa", "eager"), 1024, 16, row="GPT-2", sizes=GPT_2),
    Case("bart", "BartModel", "prefix_lm", BOTH, 1024, 16, row="BART and other encoder-decoder models", sizes=BART),
    Case("bert", "BertModel", "full", BOTH, 512, 32, row="BERT, ViT, other encoders", sizes=BERT),
    Case("llama padded", "LlamaModel", "causal", ("sdpa",), 4096, 8, patched="llama3", padded=True, sizes=LLAMA),
)
GENERATING = Case("llama generates", "LlamaForCausalLM", "causal", ("sdpa",), 16384, sizes=LLAMA)
