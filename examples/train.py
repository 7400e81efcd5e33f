"""Trains a small decoder twice, with rendered kernels and with PyTorch's own attention, and compares the two.

python examples/train.py                 # on a CPU in two minutes: kernels run in Triton's interpreter
python examples/train.py --size large    # on a GPU, where this is the default
"""

from __future__ import annotations

import importlib.util
import os
import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import click
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from training import report
from training.decoder import Sizes
from training.text import Diary
from training.trainer import Settings, Trainer

from attnforge.gpu import interpreter

SIZES = {
    "small": partial(
        Settings,
        text=Diary(names=2, values=4),
        sizes=Sizes(layers=2, width=32, heads=2, kv_heads=1, head_size=16, window=2, length=32),
        batch=8,
        rate=1e-2,
    ),
    "large": partial(
        Settings,
        text=Diary(names=16, values=10),
        sizes=Sizes(layers=8, width=512, heads=8, kv_heads=4, head_size=64, window=8, length=1024),
        batch=16,
        rate=1e-3,
    ),
}
STEPS = {"small": 120, "large": 1000}
SAVE_EVERY = 20


@click.command()
@click.option(
    "--steps", type=click.IntRange(min=2), help="Training steps: by default 120 for the small size, 1000 for the large."
)
@click.option("--size", type=click.Choice(list(SIZES)), help="Model and text: by default small on a CPU, else large.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), help="By default the GPU if there is one.")
@click.option("--dtype", type=click.Choice(["float32", "bfloat16"]), help="By default bfloat16 on a GPU, else float32.")
@click.option(
    "--attention",
    type=click.Choice(["ours", "sdpa", "both"]),
    default="both",
    show_default=True,
    help="Rendered kernels, PyTorch's own, or both on the same text.",
)
@click.option("--seed", default=0, show_default=True, help="Of the model's initial weights and of the text.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("build/train"),
    show_default=True,
    help="Output folder.",
)
@click.option("--resume", is_flag=True, help="Continue from the checkpoints in the folder.")
def main(
    steps: int | None,
    size: str | None,
    device: str | None,
    dtype: str | None,
    attention: str,
    seed: int,
    out: Path,
    resume: bool,
) -> None:
    """Train a small decoder with rendered kernels and with sdpa; write losses, a picture of them, and checkpoints."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda" and not torch.cuda.is_available():
        raise click.UsageError("--device cuda: torch finds no GPU here")
    size = size or ("large" if device == "cuda" else "small")
    dtype = dtype or ("bfloat16" if device == "cuda" else "float32")
    if device == "cpu" and attention != "sdpa":
        interpret()
    settings = SIZES[size](seed=seed, device=device, dtype=dtype)
    names = ["ours", "sdpa"] if attention == "both" else [attention]
    out.mkdir(parents=True, exist_ok=True)
    trainers = {name: Trainer(settings, name, out / f"{name}.pt") for name in names}
    if resume:
        load(trainers, out)
    console = Console()
    introduce(console, settings)
    for trainer in trainers.values():
        train(console, trainer, steps or STEPS[size])
    tell(console, trainers, out)


def interpret() -> None:
    """Makes Triton run kernels on the CPU; this has to come before triton is first imported."""
    if importlib.util.find_spec("triton") is None:
        raise click.UsageError("kernels need triton, which exists on Linux; --attention sdpa needs none")
    os.environ["TRITON_INTERPRET"] = "1"
    interpreter.hasten()
    # numpy warns about overflows at positions that a mask hides
    warnings.filterwarnings("ignore", category=RuntimeWarning, module="triton")


def load(trainers: Mapping[str, Trainer], out: Path) -> None:
    """Loads the checkpoints that exist: the second of two runs may not have begun."""
    found = [trainer for trainer in trainers.values() if trainer.path.is_file()]
    if not found:
        raise click.UsageError(f"--resume: no checkpoint of {' or '.join(trainers)} in {out}")
    for trainer in found:
        try:
            trainer.load()
        except ValueError as error:
            raise click.UsageError(f"--resume: {error}") from None


def introduce(console: Console, settings: Settings) -> None:
    """Prints what is trained, and on what text."""
    text, _ = settings.text.draw(1, min(settings.sizes.length, 64), torch.Generator().manual_seed(settings.seed))
    s = settings.sizes
    gpu = settings.device == "cuda"
    where = torch.cuda.get_device_name() if gpu else "a CPU, where Triton's interpreter is slow, so sizes are small"
    shape = f"{s.layers} layers, {s.width} wide, {s.heads} heads of {s.head_size}, T {s.length}, batch {settings.batch}"
    console.print(f"A decoder of {shape}, {settings.dtype} on {where}", highlight=False)
    console.print(f"learns to continue texts such as  {settings.text.written(text[0])}\n", highlight=False)


def train(console: Console, trainer: Trainer, steps: int) -> None:
    """Trains up to a step, with a progress bar, and saves checkpoints."""
    columns = TextColumn(trainer.which), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, TextColumn("{task.description}"), console=console) as progress:
        task = progress.add_task("", total=steps, completed=len(trainer.steps))
        while len(trainer.steps) < steps:
            step = trainer.step()
            progress.update(task, advance=1, description=f"loss {step.loss:.3f}, of values {step.recall:.3f}")
            if len(trainer.steps) % SAVE_EVERY == 0 or len(trainer.steps) == steps:
                trainer.save()


def tell(console: Console, trainers: Mapping[str, Trainer], out: Path) -> None:
    """Prints and writes the results; exits with 1 if the losses of both runs differ by more than their noise."""
    runs = {name: trainer.steps for name, trainer in trainers.items()}
    bounds = next(iter(trainers.values())).settings.text.bounds()
    console.print(table(trainers))
    console.print(f"values: {bounds[0]:.3f} if nothing is looked up, {bounds[1]:.3f} at best", highlight=False)
    report.write_table(out / "losses.csv", runs)
    console.print(f"losses of each step: {out / 'losses.csv'}", highlight=False)
    if importlib.util.find_spec("matplotlib") is None:
        console.print("no picture of them without matplotlib: pip install matplotlib", highlight=False)
    else:
        report.draw(out / "losses.png", runs, bounds)
        console.print(f"their picture: {out / 'losses.png'}", highlight=False)
    if len(runs) == 2:
        compare(console, runs)


def table(trainers: Mapping[str, Trainer]) -> Table:
    """The final losses and the speed of each run."""
    made = Table("attention", "loss", "loss of values", "tokens/s")
    for name, trainer in trainers.items():
        loss, recall = report.last(trainer.steps)
        made.add_row(name, f"{loss:.3f}", f"{recall:.3f}", f"{trainer.tokens_per_second():,.0f}")
    return made


def compare(console: Console, runs: report.Runs) -> None:
    """Prints whether the two loss curves agree."""
    apart = report.difference(runs["ours"], runs["sdpa"])
    verdict = "agree" if apart.within_noise else "DISAGREE"
    console.print(
        f"ours and sdpa {verdict}: their losses differ by {apart.mean:.1e} on average, {apart.largest:.1e} at most;\n"
        f"from one batch to the next the loss changes by {apart.noise:.1e}",
        highlight=False,
    )
    if not apart.within_noise:
        raise click.exceptions.Exit(1)


if __name__ == "__main__":
    main()
