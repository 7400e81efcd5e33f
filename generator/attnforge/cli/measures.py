"""Commands that measure a variant's kernels: their resources when compiled, and their time and memory on a GPU."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from . import arguments
from .program import DIFFERENT

_FILE, _PICTURE = arguments.Output(), arguments.Output(".png")
_DTYPE = click.option(
    "--dtype",
    default="bf16",
    show_default=True,
    type=click.Choice(["bf16", "fp16", "fp32"]),
    help="Type of q, k and v.",
)
_HEADS = click.option(
    "--heads", metavar="H", help="Query heads, 32:8 for fewer key heads; 2048 / D of both, if left out."
)
_LENGTH = click.option(
    "--length", default="4096", show_default=True, metavar="T", help="Queries and keys of a sequence."
)
_TARGET = click.option(
    "--target", default="both", show_default=True, type=click.Choice(["portable", "hopper", "both"]),
    help="The kernels: for all GPUs, for Hopper GPUs, or both, if a package has both.",
)  # fmt: skip
_TOKENS = click.option("--tokens", default=16384, show_default=True, type=click.IntRange(1), help="Keys of a batch.")


@click.command()
@click.argument("spec")
@click.option(
    "--arch",
    "archs",
    metavar="sm_90,...",
    default="sm_80,sm_90,sm_100,sm_120,gfx942",
    show_default=True,
    help="Architectures to compile for.",
)
@click.option(
    "--head-dim", default=128, show_default=True, type=click.IntRange(1, 576), help="Head size of q, k and v."
)
@_DTYPE
def inspect(spec: str, archs: str, head_dim: int, dtype: str) -> None:
    """Compile each kernel without a GPU; show the resources it takes and what the assembler warns of."""
    import tempfile

    from ..gpu import cases, compile
    from ..plan import plan

    targets = compile.targets(archs.split(","))
    loaded = arguments.load([spec])
    arguments.fit(loaded.values(), [head_dim], [])
    (package,), (planned,) = arguments.packages(loaded), map(plan.build, loaded.values())
    with tempfile.TemporaryDirectory(prefix="attnforge-") as folder:
        launches = cases.rendered(package, planned, Path(folder), head_dim, dtype)
        found = {arch: launches.ladders(arch) for arch in targets}
        title = f"{package.name}, head size {head_dim}, {dtype}"
        if not compile.report(title, found, targets):
            sys.exit(DIFFERENT)


@click.command()
@click.argument("specs", metavar="SPEC...", nargs=-1, required=True)
@click.option("--against", metavar="PEER,...", help="Only these peers; all that can express a variant, if left out.")
@click.option(
    "--beside",
    "folders",
    metavar="NAME=DIR",
    multiple=True,
    help="Add the packages in DIR, such as an earlier version's, as NAME; no other peers then but those of --against.",
)
@click.option(
    "--lengths", default="1024,4096,16384", show_default=True, metavar="T,...", help="Keys, and queries, of a sequence."
)
@click.option("--queries", type=click.IntRange(1), metavar="N", help="Queries of a sequence, if not as many as keys.")
@click.option(
    "--tokens",
    default=16384,
    show_default=True,
    type=click.IntRange(1),
    help="Keys of a batch; longer sequences, fewer of them.",
)
@click.option(
    "--head-dim", default="128", show_default=True, metavar="D,...", help="Head sizes; 192:128 for another one of v."
)
@_HEADS
@_DTYPE
@_TARGET
@click.option("--forward", "forward", is_flag=True, help="Time only the forward pass, without gradients.")
@click.option(
    "--cache",
    is_flag=True,
    help="Time `attend_with_cache`: 1 new token of each sequence, or --queries, over --lengths.",
)
@click.option("--replay", is_flag=True, help="Time the forward pass in a CUDA graph: the GPU's time, without the host.")
@click.option("--json", "json_", metavar="FILE", type=_FILE, help="Write the measurements there.")
@click.option("--plot", metavar="FILE", type=_PICTURE, help="Draw them there, as PNG; needs matplotlib.")
def bench(
    specs: Sequence[str], against: str | None, folders: Sequence[str], lengths: str, queries: int | None, tokens: int,
    head_dim: str, heads: str | None, dtype: str, target: str, forward: bool, cache: bool, replay: bool,
    json_: Path | None, plot: Path | None,
) -> None:  # fmt: skip
    """Time variants on this GPU beside other libraries that can express them, with the memory they take."""
    from rich.console import Console

    from ..explain import picture
    from ..gpu import bench as timing
    from ..gpu.peers import PEERS
    from ..gpu.results import Machine, document, summary, table

    names = against.split(",") if against else [] if folders else list(PEERS)
    if unknown := [name for name in names if name not in PEERS]:
        raise click.BadParameter(f"unknown peer {unknown[0]!r}; there are {', '.join(PEERS)}", param_hint="--against")
    sizes = timing.sizes(lengths, queries or (1 if cache else None), tokens, head_dim, heads, dtype)
    loaded = arguments.load(specs)
    arguments.fit(loaded.values(), [one.head_dim for one in sizes], [one.v_dim for one in sizes])
    beside = [_beside(folders, spec.name) for spec in loaded.values()]
    if cache:
        arguments.decoding(loaded.values())
        if longer := [one for one in sizes if one.q_len > one.k_len]:
            told = f"{longer[0].q_len} new tokens are more than a cache of {longer[0].k_len} keys holds"
            raise click.BadParameter(told, param_hint="--queries")
    if plot:
        picture.needed("--plot")
    machine = Machine.here()
    packages = arguments.packages(loaded)
    console, results = Console(width=None if sys.stdout.isatty() else 150), []
    click.echo(f"{machine.device}, torch {machine.torch}, triton {machine.triton}")
    for spec, package, others in zip(loaded.values(), packages, beside, strict=True):
        for result in timing.run(
            spec, package, sizes, names, target=target, backward=not forward, replays=replay, cache=cache, beside=others
        ):
            results.append(result)
            console.print(table(result))
            if json_:
                json_.write_text(document(machine, results), encoding="utf-8", newline="\n")
    if told := summary(results):
        click.echo(told)
    if plot:
        from ..gpu import plots

        plots.write(plot, machine, results)


def _beside(folders: Sequence[str], variant: str) -> dict[str, Path]:
    """The folder of each other package of a variant, by its name."""
    from ..gpu.peers import PEERS
    from ..gpu.results import OURS
    from ..gpu.targets import TARGETS

    found: dict[str, Path] = {}
    for text in folders:
        name, _, folder = text.partition("=")
        place = Path(folder) / variant
        if not (name and folder):
            raise click.BadParameter(f"expected NAME=DIR, got {text!r}", param_hint="--beside")
        if name in {*PEERS, *TARGETS, *found, OURS}:
            raise click.BadParameter(f"another contender is called {name!r}", param_hint="--beside")
        if not (place / "__init__.py").is_file():
            raise click.BadParameter(f"no package in {place.as_posix()}", param_hint="--beside")
        found[name] = place
    return found


@click.command()
@click.argument("spec")
@click.option(
    "--head-dim", default="128", show_default=True, metavar="D,...", help="Head sizes; 192:128 for another one of v."
)
@_LENGTH
@_TOKENS
@_HEADS
@_DTYPE
@click.option(
    "--target", type=click.Choice(["portable", "hopper"]), help="Kernels to profile, if not those that a call takes."
)
@click.option("--forward", "forward", is_flag=True, help="Leave the backward pass out.")
@click.option("--json", "json_", metavar="FILE", type=_FILE, help="Write the counts there.")
@click.option("--ncu", metavar="FILE", help="Nsight Compute's command line, if not on the PATH.")
def profile(
    spec: str, head_dim: str, length: str, tokens: int, heads: str | None, dtype: str, target: str | None,
    forward: bool, json_: Path | None, ncu: str | None,
) -> None:  # fmt: skip
    """Count what each kernel moves and waits for on this GPU; needs Nsight Compute."""
    from rich.console import Console

    from ..gpu import bench as timing
    from ..gpu import counters
    from ..gpu import profile as profiling
    from ..gpu.results import Machine

    sizes = timing.sizes(length, None, tokens, head_dim, heads, dtype, option="--length")
    loaded = arguments.load([spec])
    arguments.fit(loaded.values(), [one.head_dim for one in sizes], [one.v_dim for one in sizes])
    ((path, found),) = loaded.items()
    machine, tool = Machine.here(), counters.program(ncu)
    (package,) = arguments.packages(loaded)
    console, profiles = Console(width=None if sys.stdout.isatty() else 150), []
    click.echo(f"{machine.device}, torch {machine.torch}, triton {machine.triton}")
    for one in sizes:
        profiles.append(profiling.run(path, found, package, one, tool, backward=not forward, target=target or ""))
        console.print(profiling.table(profiles[-1]))
        for line in profiling.meanings(profiles[-1]):
            click.echo(line)
        if json_:
            json_.write_text(profiling.document(machine, profiles), encoding="utf-8", newline="\n")


@click.command()
@click.argument("specs", metavar="SPEC...", nargs=-1, required=True)
@click.option(
    "--head-dim", default="64,128", show_default=True, metavar="D,...", help="Head sizes; 192:128 for another one of v."
)
@_LENGTH
@_TOKENS
@_HEADS
@click.option(
    "--dtype", default="bf16", show_default=True, type=click.Choice(["bf16", "fp16", "fp32"]),
    help="Type of q, k and v; one table serves both 16-bit types.",
)  # fmt: skip
@_TARGET
def tune(
    specs: Sequence[str], head_dim: str, length: str, tokens: int, heads: str | None, dtype: str, target: str
) -> None:
    """Search tile shapes on this GPU and keep them in tuning/ beside the spec, for renders from then on."""
    from rich.console import Console

    from ..gpu import bench as timing
    from ..gpu import tuning
    from ..gpu.results import Machine
    from ..plan import tiles

    sizes = timing.sizes(length, None, tokens, head_dim, heads, dtype, option="--length")
    loaded = arguments.load(specs)
    arguments.fit(loaded.values(), [one.head_dim for one in sizes], [one.v_dim for one in sizes])
    machine = Machine.here()
    packages = arguments.packages(loaded)
    for (path, spec), package in zip(loaded.items(), packages, strict=True):
        found = tuning.run(spec, package, sizes, Console(), target=target)
        file = tiles.tuned_path(path)
        file.parent.mkdir(exist_ok=True)
        text = tuning.text(tuning.merged(tiles.tuned(path), found), machine)
        file.write_text(text, encoding="utf-8", newline="\n")
        click.echo(f"{file}: written; next: attnforge render {path}")
