"""Text generated on the fly: a diary of names and values, in which each value has to be looked up further back."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

NAMES, VALUES = "abcdefghijklmnopqrstuvwxyz", "0123456789"


@dataclass(frozen=True)
class Diary:
    """Pairs such as `a3 c7 a3 b0`, without the spaces: a name, then the value it was last assigned.

    A name's first value is drawn at random; each later mention draws a new one with probability `change`.
    """

    names: int
    values: int
    change: float = 0.1

    @property
    def symbols(self) -> int:
        """The number of symbols; names come first."""
        return self.names + self.values

    def draw(self, count: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Texts (count, length), and which of their symbols are values of names that have occurred before."""
        pairs = count, (length + 1) // 2
        name = torch.randint(self.names, pairs, generator=generator)
        value = torch.randint(self.values, pairs, generator=generator)
        changed = torch.rand(pairs, generator=generator) < self.change
        mentions = F.one_hot(name, self.names)
        again = mentions.cumsum(1).gather(2, name[..., None])[..., 0] > 1
        # for each name, the latest pair so far that assigned it a value
        gave = mentions * (changed | ~again)[..., None] * torch.arange(pairs[1])[:, None]
        latest = gave.cummax(1).values.gather(2, name[..., None])[..., 0]
        text = torch.stack([name, self.names + value.gather(1, latest)], 2).flatten(1)
        known = torch.stack([torch.zeros_like(again), again], 2).flatten(1)
        return text[:, :length], known[:, :length]

    def bounds(self) -> tuple[float, float]:
        """Losses at values of known names: of the best model that looks nothing up, and of the best possible one."""
        wrong = self.change / self.values
        right = 1 - self.change + wrong
        return math.log(self.values), -right * math.log(right) - (self.values - 1) * wrong * math.log(wrong)

    def written(self, text: Tensor) -> str:
        """A text as letters and digits."""
        return "".join((NAMES[: self.names] + VALUES)[symbol] for symbol in text.tolist())
