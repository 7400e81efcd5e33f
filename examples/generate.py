"""Generates text with a small model with random weights, using a paged cache and continuous batching.

Sequences join as soon as a place and enough pages are free, and release both when they finish. A step processes new
tokens of all running sequences at once: a chunk of the prompt for some, one token for others. Decoding is greedy; at
the end the script checks that the model generates the same tokens without a cache.

python examples/generate.py            on a GPU if there is one, else in Triton's interpreter
python examples/generate.py --graph    on a GPU: steps without prompts replay one CUDA graph
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import click
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

GPU = torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1"
if not GPU:
    os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from generated.llama3 import attention  # noqa: E402
from generated.llama3.decode import append, attend_with_cache  # noqa: E402

DEVICE = "cuda" if GPU else "cpu"
# the interpreter takes milliseconds for each program
LAYERS, HEADS, KV_HEADS, WIDTH, CHUNK = (4, 8, 2, 64, 64) if GPU else (1, 2, 1, 16, 8)
LETTERS = [chr(code) for code in range(32, 127)]
TEXTS = (
    "Attention is a mean.",
    "Pages go from hand to hand, and",
    "Why?",
    "A step takes all there is:",
    "They come and go.",
)
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]  # of a layer's index, q (T, Hq, D), k and v (T, Hkv, D)


class Block(nn.Module):
    """A layer: attention, then a feed-forward network."""

    def __init__(self, heads: int, kv_heads: int, width: int) -> None:
        super().__init__()
        size = heads * width
        self.split = [heads, kv_heads, kv_heads]
        self.width = width
        self.norms = nn.ModuleList(nn.RMSNorm(size) for _ in range(2))
        self.qkv = nn.Linear(size, sum(self.split) * width, bias=False)
        self.out = nn.Linear(size, size, bias=False)
        self.wide = nn.Sequential(nn.Linear(size, 4 * size), nn.GELU(), nn.Linear(4 * size, size))
        for matrix in (self.qkv, self.out):  # so large that tokens depend on all earlier ones
            nn.init.normal_(matrix.weight, std=2 / size**0.5)

    def forward(self, x: Tensor, attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (-1, self.width)).split(self.split, 1)
        x = x + self.out(attend(q, k, v).flatten(1))
        return x + self.wide(self.norms[1](x))


class Model(nn.Module):
    """Predicts the token after each of the tokens (T,); `attend` knows which sequences these belong to."""

    def __init__(self, layers: int, heads: int, kv_heads: int, width: int) -> None:
        super().__init__()
        self.kv_heads, self.width = kv_heads, width
        self.embedding = nn.Embedding(len(LETTERS), heads * width)
        self.blocks = nn.ModuleList(Block(heads, kv_heads, width) for _ in range(layers))
        self.norm = nn.RMSNorm(heads * width)
        self.logits = nn.Linear(heads * width, len(LETTERS), bias=False)

    def forward(self, tokens: Tensor, attend: Attend) -> Tensor:
        x = self.embedding(tokens)
        for layer, block in enumerate(self.blocks):
            x = block(x, partial(attend, layer))
        return self.logits(self.norm(x)).argmax(-1)


@dataclass
class Request:
    """A sequence to continue: its prompt, the tokens generated so far, and the pages of its keys and values."""

    tokens: list[int]
    wanted: int  # total number of tokens, including the prompt
    prompt: int = field(init=False)
    cached: int = 0  # tokens whose keys are in the cache
    pages: list[int] = field(default_factory=list)
    joined: int = 0
    left: int = 0

    def __post_init__(self) -> None:
        self.prompt = len(self.tokens)


class Step(NamedTuple):
    """The model's input for one step: new tokens, one for each place or delimited by `cuts`."""

    tokens: Tensor
    positions: Tensor
    slots: Tensor  # of the cache, for their keys and values
    seq_lens: Tensor
    cuts: Tensor | None = None
    longest: int = 1


class Engine:
    """Generates with a cache of pages that sequences share; `places` is the number of sequences that run at once."""

    def __init__(
        self,
        model: Model,
        angles: tuple[Tensor, Tensor],
        *,
        places: int,
        pages: int,
        page: int,
        chunk: int,
        graph: bool,
    ) -> None:
        self.model, (self.cos, self.sin) = model, angles
        self.page, self.chunk, self.graph = page, chunk, graph
        shape = (len(model.blocks), pages, page, model.kv_heads, model.width)
        self.k, self.v = (torch.zeros(shape, device=DEVICE) for _ in "kv")
        self.free = deque(range(pages))
        self.running: list[Request | None] = [None] * places
        self.waiting: deque[Request] = deque()
        self.page_table = torch.zeros(places, -(-len(self.cos) // page), dtype=torch.int32, device=DEVICE)
        self.steps = self.replays = 0
        self.replay: Callable[[Step], Tensor] | None = None

    def run(self, requests: Sequence[Request]) -> None:
        """Runs all requests to their end."""
        self.waiting.extend(requests)
        while self.waiting or any(self.running):
            self.join()
            self.step()

    def join(self) -> None:
        """Assigns free places to the requests that have waited longest, with all the pages that they will need."""
        for place, there in enumerate(self.running):
            if there is not None or not self.waiting:
                continue
            count = -(-self.waiting[0].wanted // self.page)
            if count > len(self.free):
                if not any(self.running):
                    raise ValueError(f"a sequence needs {count} pages, but there are only {len(self.free)}")
                return  # no other request may overtake it, or it could wait forever
            one = self.running[place] = self.waiting.popleft()
            one.joined, one.pages = self.steps, [self.free.popleft() for _ in range(count)]
            self.page_table[place, :count] = torch.tensor(one.pages, dtype=torch.int32)

    def step(self) -> None:
        """Runs new tokens of all sequences through the model; sequences without pending tokens get the next one."""
        new = [0 if one is None else min(len(one.tokens) - one.cached, self.chunk) for one in self.running]
        last = [sum(new[: place + 1]) - 1 for place in range(len(new))]
        if max(new) == 1:
            step, found = self.gathered([1] * len(new)), range(len(new))
            answer = (self.replayed if self.graph else self.forward)(step).tolist()
            self.replays += self.graph
        else:
            step, found = self.gathered(new), last
            answer = self.forward(step).tolist()
        self.steps += 1
        for place, (one, count) in enumerate(zip(self.running, new, strict=True)):
            if one is None:
                continue
            one.cached += count
            if one.cached == len(one.tokens):
                one.tokens.append(answer[found[place]])
            if len(one.tokens) == one.wanted:
                one.left = self.steps
                self.free.extend(one.pages)
                self.running[place] = None

    def gathered(self, new: Sequence[int]) -> Step:
        """The given number of new tokens of each place; those of an empty place are dummies without a slot."""
        tokens, positions, slots, lengths = [], [], [], []
        for one, count in zip(self.running, new, strict=True):
            at = range(one.cached, one.cached + count) if one else [0] * count
            positions += at
            tokens += [one.tokens[i] if one else 0 for i in at]
            slots += [one.pages[i // self.page] * self.page + i % self.page if one else -1 for i in at]
            lengths.append(one.cached + count if one else 0)
        long = [torch.tensor(x, device=DEVICE) for x in (tokens, positions, slots)]
        seq_lens = torch.tensor(lengths, dtype=torch.int32, device=DEVICE)
        if max(new) == 1:
            return Step(*long, seq_lens)
        cuts = torch.tensor([0, *new], device=DEVICE).cumsum(0).int()
        return Step(*long, seq_lens, cuts, max(new))

    def forward(self, step: Step) -> Tensor:
        """The predicted token after each of the new ones."""

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            turned = {"cos": self.cos, "sin": self.sin}
            append(k, v, self.k[layer], self.v[layer], step.slots, positions=step.positions, **turned)
            return attend_with_cache(
                q,
                self.k[layer],
                self.v[layer],
                step.seq_lens,
                page_table=self.page_table,
                cu_seqlens_q=step.cuts,
                max_seqlen_q=step.longest,
                max_seqlen_k=len(self.cos),
                **turned,
            )

        return self.model(step.tokens, attend)

    def replayed(self, step: Step) -> Tensor:
        """The same with a CUDA graph, captured by the first such step; each one overwrites the tensors it reads."""
        if self.replay is None:
            held = Step(*(x.clone() for x in step[:4]))
            self.forward(held)  # compiles
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                answer = self.forward(held)

            def replay(step: Step) -> Tensor:
                for x, value in zip(held[:4], step[:4], strict=True):
                    x.copy_(value)
                graph.replay()
                return answer

            self.replay = replay
        return self.replay(step)


def without_cache(model: Model, angles: tuple[Tensor, Tensor], tokens: Sequence[int]) -> list[int]:
    """The predicted token after each token of a sequence, from one call of attention over all of it."""

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q[None], k[None], v[None], cos=angles[0], sin=angles[1])[0]

    return model(torch.tensor(tokens, device=DEVICE), attend).tolist()


def angles_of(positions: int, width: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotary embedding."""
    speeds = 10000.0 ** (-torch.arange(0, width, 2, device=DEVICE) / width)
    angles = torch.arange(positions, device=DEVICE)[:, None] * speeds
    return angles.cos(), angles.sin()


def shown(requests: Sequence[Request], console: Console) -> None:
    """Prints the result of each request."""
    table = Table("prompt", "generated", "steps", "pages", title="Random weights generate random text")
    for one in requests:
        text = "".join(LETTERS[token] for token in one.tokens)
        pages = ", ".join(map(str, one.pages))
        table.add_row(repr(text[: one.prompt]), repr(text[one.prompt :]), f"{one.joined} to {one.left}", pages)
    console.print(table, markup=False)


@click.command(help=__doc__.partition("\n")[0])
@click.option(
    "--prompt", "prompts", multiple=True, default=TEXTS, help="A text to continue; may be given several times."
)
@click.option("--tokens", default=9, show_default=True, type=click.IntRange(1), help="Maximum per prompt.")
@click.option("--places", default=3, show_default=True, type=click.IntRange(1), help="Sequences that run at once.")
@click.option("--pages", default=12, show_default=True, type=click.IntRange(1), help="Pages of the cache.")
@click.option("--page", default=8, show_default=True, type=click.IntRange(1), help="Tokens per page.")
@click.option("--chunk", default=CHUNK, show_default=True, type=click.IntRange(1), help="Prompt tokens per step.")
@click.option("--layers", default=LAYERS, show_default=True, type=click.IntRange(1))
@click.option("--graph", is_flag=True, help="Replay a CUDA graph in steps without prompts.")
def main(
    prompts: Sequence[str], tokens: int, places: int, pages: int, page: int, chunk: int, layers: int, graph: bool
) -> None:
    if graph and not GPU:
        raise click.UsageError("--graph needs a GPU")
    torch.manual_seed(0)
    console = Console()
    model = Model(layers, HEADS, KV_HEADS, WIDTH).to(DEVICE)
    requests = []
    for i, text in enumerate(prompts):
        letters = [LETTERS.index(letter) for letter in text if letter in LETTERS]
        if not letters:
            raise click.UsageError(f"--prompt: expected letters, got {text!r}")
        # some finish sooner than others
        requests.append(Request(letters, len(letters) + max(1, tokens - 3 * (i % 3))))
    angles = angles_of(max(one.wanted for one in requests), model.width)
    engine = Engine(model, angles, places=places, pages=pages, page=page, chunk=chunk, graph=graph)
    begin = time.perf_counter()
    try:
        with torch.no_grad():
            engine.run(requests)
            took = time.perf_counter() - begin
            wanted = [without_cache(model, angles, one.tokens[:-1])[one.prompt - 1 :] for one in requests]
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    shown(requests, console)
    made, lent = sum(map(len, wanted)), sum(len(one.pages) for one in requests)
    console.print(f"{made} tokens in {engine.steps} steps and {took:.1f} s; {pages} pages served {lent} allocations.")
    if graph:
        console.print(f"{engine.replays} steps replayed a CUDA graph.")
    apart = [i for i, one in enumerate(requests) if one.tokens[one.prompt :] != wanted[i]]
    if apart:
        raise click.ClickException(f"without a cache, requests {apart} continue differently")
    console.print("Without a cache, the model generates the same text.")


if __name__ == "__main__":
    main()
