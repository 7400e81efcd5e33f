"""An implementation of layers with experts that transformers does not have."""

from __future__ import annotations

from typing import Any

import torch
from transformers.integrations import moe

NAME = "grouped_mm_biases"


class Biases:
    """The biases of experts, indexed by the expert of each token.

    Torch's backward pass of indexing adds the rows of one expert one by one, in one warp and in the tensor's own dtype:
    for thousands of rows this takes longer than the experts' products. That of an embedding adds segments in parallel.
    """

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows

    def __getitem__(self, index: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.embedding(index, self.rows)


class Experts:
    """A layer's experts, with biases that are looked up as above."""

    def __init__(self, experts: torch.nn.Module) -> None:
        self.experts = experts

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.experts, name)
        return Biases(found) if name.endswith("_bias") else found


def forward(experts: torch.nn.Module, *given: Any, **more: Any) -> Any:
    """The same as `grouped_mm`."""
    return moe.grouped_mm_experts_forward(Experts(experts), *given, **more)


def register() -> None:
    """Registers it with transformers."""
    moe.ExpertsInterface.register(NAME, forward)
