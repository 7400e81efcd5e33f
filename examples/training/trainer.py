"""A training run: its steps, and a checkpoint from which it continues as if never interrupted."""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .decoder import Decoder, Sizes
from .text import Diary

WARM_UP = 10  # steps over which the learning rate rises


@dataclass(frozen=True)
class Settings:
    """Everything that determines the losses of a run."""

    text: Diary
    sizes: Sizes
    batch: int
    rate: float
    seed: int
    device: str
    dtype: str


@dataclass(frozen=True)
class Step:
    """The results of one step: its loss, its loss at values of known names, and how long it took."""

    loss: float
    recall: float
    seconds: float


class Trainer:
    """A decoder with one of the two kinds of attention, its optimizer, its text, and the steps so far."""

    def __init__(self, settings: Settings, which: str, path: Path) -> None:
        self.settings, self.which, self.path = settings, which, path
        self.steps: list[Step] = []
        torch.manual_seed(settings.seed)
        self.model = Decoder(settings.text.symbols, settings.sizes, which).to(settings.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), settings.rate, betas=(0.9, 0.95))
        self.generator = torch.Generator().manual_seed(settings.seed)

    def step(self) -> Step:
        """Trains on one batch."""
        length = self.settings.sizes.length
        text, known = self.settings.text.draw(self.settings.batch, length + 1, self.generator)
        text, known = text.to(self.settings.device), known.to(self.settings.device)
        start = time.perf_counter()
        losses = self._losses(text)
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.rate * min(1.0, (len(self.steps) + 1) / WARM_UP)
        self.optimizer.zero_grad()
        losses.mean().backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        # reading the losses waits for the GPU
        loss, recall = losses.mean().item(), losses[known[:, 1:]].mean().item()
        self.steps.append(Step(loss, recall, time.perf_counter() - start))
        return self.steps[-1]

    def tokens_per_second(self) -> float:
        """The speed of the median step: the first ones compile kernels."""
        return self.settings.batch * self.settings.sizes.length / median(step.seconds for step in self.steps)

    def save(self) -> None:
        """Writes the checkpoint; the previous one stays until the new one is complete."""
        state = {name: part.state_dict() for name, part in self._parts().items()}
        state |= {"generator": self.generator.get_state(), "steps": [asdict(step) for step in self.steps]}
        staged = self.path.with_suffix(".staged")
        torch.save(state | {"settings": asdict(self.settings)}, staged)
        os.replace(staged, self.path)

    def load(self) -> None:
        """Restores the run from the checkpoint; raises ValueError if it was made with other settings."""
        state = torch.load(self.path, map_location="cpu", weights_only=True)
        if state["settings"] != asdict(self.settings):
            raise ValueError(f"{self.path} was made with other settings: {state['settings']}")
        for name, part in self._parts().items():
            part.load_state_dict(state[name])
        self.generator.set_state(state["generator"])
        self.steps = [Step(**step) for step in state["steps"]]

    def _parts(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer}

    def _losses(self, text: Tensor) -> Tensor:
        """The loss of each prediction, (B, T)."""
        dtype = getattr(torch, self.settings.dtype)
        with torch.autocast(self.settings.device, dtype, enabled=dtype != torch.float32):
            logits = self.model(text[:, :-1])
        return F.cross_entropy(logits.float().transpose(1, 2), text[:, 1:], reduction="none")
