"""Stand-ins for the libraries of recipes: the parts of their documented interfaces that recipes use."""

from __future__ import annotations

import enum
import importlib.machinery
import importlib.util
import sys
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn


def install() -> None:
    """Installs a stand-in for each library that is not installed."""
    for library, modules in LIBRARIES.items():
        if importlib.util.find_spec(library):
            continue
        for name, members in modules.items():
            for i in range(name.count(".") + 1):
                package = name.rsplit(".", i)[0]
                # installed libraries check by module specs whether others are installed
                made = importlib.util.module_from_spec(importlib.machinery.ModuleSpec(package, None))
                sys.modules.setdefault(package, made)
            vars(sys.modules[name]).update({member.__name__: member for member in members})


# -- torchtitan ----------------------------------------------------------------------------------------------------


class VarlenMetadata(NamedTuple):
    """The offsets of documents, and the length of the longest one."""

    cu_seq_q: torch.Tensor
    cu_seq_k: torch.Tensor
    max_q: int
    max_k: int


class VarlenAttention(nn.Module):
    """An inner attention for documents in one row, built by its configuration."""

    @dataclass(kw_only=True, slots=True)
    class Config:
        window_size: tuple[int, int] = (-1, 0)
        owner: ClassVar[type]

        def build(self) -> Any:
            return self.owner(config=self)

    def __init_subclass__(cls) -> None:
        cls.Config.owner = cls

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.window_size = config.window_size

    def forward(self, q: Any, k: Any, v: Any, *, attention_masks: VarlenMetadata, scale: float | None = None) -> Any:
        raise NotImplementedError


# -- vLLM ----------------------------------------------------------------------------------------------------------


class AttentionBackend:
    """Names the classes of a backend, and says what layers do before they call it."""

    supported_dtypes: ClassVar[list[torch.dtype]] = []
    forward_includes_kv_cache_update = True


class AttentionMetadataBuilder:
    """Builds the metadata of a batch for a backend."""

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: Any) -> None:
        self.kv_cache_spec, self.layer_names, self.vllm_config = kv_cache_spec, layer_names, vllm_config
        self.device = device


class AttentionImpl:
    """A layer's attention."""


@dataclass
class CommonAttentionMetadata:
    """The metadata of a batch that all backends receive."""

    query_start_loc: torch.Tensor
    query_start_loc_cpu: torch.Tensor
    seq_lens: torch.Tensor
    num_reqs: int
    num_actual_tokens: int
    max_query_len: int
    max_seq_len: int
    block_table_tensor: torch.Tensor
    slot_mapping: torch.Tensor


class AttentionBackendEnum(enum.Enum):
    """The known backends."""

    CUSTOM = None

    def get_class(self) -> type:
        return _BACKENDS[self]


_BACKENDS: dict[AttentionBackendEnum, type] = {}


def register_backend(backend: AttentionBackendEnum) -> Any:
    """A decorator that registers a class."""

    def registered(cls: type) -> type:
        _BACKENDS[backend] = cls
        return cls

    return registered


# -- timm ----------------------------------------------------------------------------------------------------------


class Attention(nn.Module):
    """The attention of a vision transformer."""

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        qkv_bias: bool = False,
        qk_norm: bool = False,
        gated: bool = False,
        norm_layer: Any = None,
    ) -> None:
        super().__init__()
        self.num_heads, self.head_dim = num_heads, dim // num_heads
        self.scale = self.head_dim**-0.5
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.q_norm = norm_layer(self.head_dim) if qk_norm else nn.Identity()
        self.k_norm = norm_layer(self.head_dim) if qk_norm else nn.Identity()
        self.attn_drop, self.proj_drop = nn.Dropout(0.0), nn.Dropout(0.0)
        self.norm = nn.Identity()
        self.gate = nn.Linear(dim, dim, bias=qkv_bias) if gated else None
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor, attn_mask: torch.Tensor | None = None, is_causal: bool = False) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, self.head_dim)).permute(2, 0, 3, 1, 4)
        plain = nn.functional.scaled_dot_product_attention
        out = plain(self.q_norm(q), self.k_norm(k), v, attn_mask, is_causal=is_causal).transpose(1, 2).flatten(2)
        out = self.norm(out)
        made: torch.Tensor = self.proj_drop(self.proj(out if self.gate is None else out * self.gate(x).sigmoid()))
        return made


# -- diffusers -----------------------------------------------------------------------------------------------------


class ImageAttention(nn.Module):
    """Attention to an image or to a text, computed by a processor."""

    def __init__(
        self,
        query_dim: int,
        cross_attention_dim: int | None = None,
        heads: int = 8,
        dim_head: int = 64,
        bias: bool = False,
        qk_norm: str | None = None,
        norm_num_groups: int | None = None,
        rescale_output_factor: float = 1.0,
        residual_connection: bool = False,
    ) -> None:
        super().__init__()
        self.heads, self.scale, inner = heads, dim_head**-0.5, heads * dim_head
        self.is_cross_attention = cross_attention_dim is not None
        self.rescale_output_factor, self.residual_connection = rescale_output_factor, residual_connection
        self.spatial_norm = None
        self.group_norm = nn.GroupNorm(norm_num_groups, query_dim) if norm_num_groups else None
        self.norm_q, self.norm_k = (nn.LayerNorm(dim_head) if qk_norm else None for _ in "qk")
        self.to_q = nn.Linear(query_dim, inner, bias)
        self.to_k, self.to_v = (nn.Linear(cross_attention_dim or query_dim, inner, bias) for _ in "kv")
        self.to_out = nn.ModuleList([nn.Linear(inner, query_dim), nn.Dropout(0.0)])
        self.processor: Any = plain_processor

    def set_processor(self, processor: Any) -> None:
        self.processor = processor

    def forward(self, hidden_states: Any, encoder_hidden_states: Any = None, attention_mask: Any = None) -> Any:
        return self.processor(
            self, hidden_states, encoder_hidden_states=encoder_hidden_states, attention_mask=attention_mask
        )


ImageAttention.__name__ = "Attention"


def plain_processor(attn: Any, hidden_states: Any, encoder_hidden_states: Any, attention_mask: Any) -> Any:
    """Attention to an image, or to its pixels in a row, with a mask that is added to scores [B, T, T]."""
    assert encoder_hidden_states is None
    x = hidden_states.flatten(2) if hidden_states.dim() == 4 else hidden_states.transpose(1, 2)
    x = attn.group_norm(x).transpose(1, 2)
    q, k, v = (to(x).unflatten(-1, (attn.heads, -1)).transpose(1, 2) for to in (attn.to_q, attn.to_k, attn.to_v))
    plain = nn.functional.scaled_dot_product_attention
    out = plain(attn.norm_q(q), attn.norm_k(k), v, attention_mask[:, None], scale=attn.scale)
    out = attn.to_out[0](out.transpose(1, 2).flatten(2))
    out = out.transpose(1, 2).reshape(hidden_states.shape) if hidden_states.dim() == 4 else out
    return (out + hidden_states * attn.residual_connection) / attn.rescale_output_factor


LIBRARIES: dict[str, dict[str, tuple[type | Any, ...]]] = {
    "torchtitan": {"torchtitan.models.common.attention": (VarlenAttention, VarlenMetadata)},
    "vllm": {
        "vllm.v1.attention.backend": (
            AttentionBackend,
            AttentionImpl,
            AttentionMetadataBuilder,
            CommonAttentionMetadata,
        ),
        "vllm.v1.attention.backends.registry": (AttentionBackendEnum, register_backend),
    },
    "timm": {"timm.layers": (Attention,)},
    "diffusers": {"diffusers.models.attention_processor": (ImageAttention,)},
}
