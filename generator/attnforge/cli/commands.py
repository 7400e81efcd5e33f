"""The command line. Heavy modules are imported inside the commands, so that `--help` answers at once."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from .. import __version__
from . import arguments
from .program import DIFFERENT, EXIT_CODES, Program

_FILE = arguments.Output()
_DTYPE = click.option(
    "--dtype",
    default="bf16",
    show_default=True,
    type=click.Choice(["bf16", "fp16", "fp32"]),
    help="Type of q, k and v.",
)
_HEADS = click.option(
    "--heads", metavar="H", help="Query heads, 32:8 for key heads apart; 2048 / D of both, if left out."
)
_LENGTH = click.option(
    "--length", default="4096", show_default=True, metavar="T", help="Queries and keys of a sequence."
)
_TARGET = click.option(
    "--target", default="both", show_default=True, type=click.Choice(["portable", "hopper", "both"]),
    help="The kernels: for all GPUs, for Hopper GPUs, or both, where a package has both.",
)  # fmt: skip
_TOKENS = click.option("--tokens", default=16384, show_default=True, type=click.IntRange(1), help="Keys of a batch.")


@click.group(
    cls=Program,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    epilog="Exit codes: " + "; ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES.items()) + ".",
)
@click.version_option(__version__, prog_name="attnforge")
def main() -> None:
    """Turns attention variants, written as YAML, into readable Triton kernel packages.

    A SPEC is a YAML file or the name of a shipped variant.
    """


@main.command()
@click.argument("name")
@click.option("--from", "origin", metavar="VARIANT", help="Start from a shipped variant, or from a file.")
def new(name: str, origin: str | None) -> None:
    """Write a commented starter spec to specs/NAME.yaml."""
    from ..language import names
    from . import starter

    if why := names.wrong_package(name):
        raise click.BadParameter(why, param_hint="NAME")
    path = Path("specs") / f"{name}.yaml"
    text = starter.text(name, arguments.find(origin) if origin else None)
    path.parent.mkdir(exist_ok=True)
    try:
        with path.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except FileExistsError:
        raise click.UsageError(f"{path} exists already") from None
    click.echo(f"{path} written; next: attnforge check {path}, attnforge test {path}, attnforge render {path}")


@main.command("list")
def list_() -> None:
    """Show the shipped variants and terms, one line each."""
    from . import starter

    for title, entries in starter.shipped().items():
        click.echo(f"{title}:")
        width = max((len(name) for name, _ in entries), default=0)
        for name, description in entries:
            click.echo(f"  {name:{width}}  {description}")


@main.command()
@click.argument("specs", metavar="SPEC...", nargs=-1, required=True)
def check(specs: Sequence[str]) -> None:
    """Parse and plan only; tell every mistake with its place, and which specs are good."""
    from ..plan import plan
    from ..source import resources

    loaded, problems = arguments.read(specs)
    shipped = set(resources.variants().values())
    for path, spec in loaded.items():
        plan.build(spec)
        told = (f"; {term.label} takes the place of the score so far" for term in spec.scores if term.replaces)
        name = spec.source if path in shipped else path.as_posix()
        click.echo(f"{name}: good{''.join(told)}")
    arguments.refuse(problems)


@main.command()
@click.argument("specs", metavar="SPEC...", nargs=-1, required=True)
@click.option(
    "-o",
    "--out",
    type=arguments.Folder(),
    default=Path("generated"),
    metavar="DIR",
    help="The folder of the packages.",
    show_default=True,
)
@click.option("--check", "checks", is_flag=True, help="Write nothing; exit 1 if a file is not what a render gives.")
@click.option("--diff", "diffs", is_flag=True, help="Write nothing; show what a render changes, exit 1 if it does.")
@click.option("--force", is_flag=True, help="Overwrite, or remove, files that were edited by hand.")
def render(specs: Sequence[str], out: Path, checks: bool, diffs: bool, force: bool) -> None:
    """Write the packages of the specs into a folder; files edited by hand stay unless forced."""
    if checks and diffs:
        raise click.UsageError("--check and --diff cannot both be given")
    from ..render import emit

    packages = arguments.packages(arguments.load(specs), None if force else out)
    if checks or diffs:
        findings = emit.survey(packages, out)
        if diffs:
            _echo(emit.diff(findings))
        else:
            _report(findings)
        sys.exit(DIFFERENT if any(f.changes or (checks and f.abandoned) for f in findings) else 0)
    try:
        findings = emit.write(packages, out, force=force)
    except emit.Edited as error:
        click.echo(f"{error}\nerror: nothing was written; --force does it all the same", err=True)
        sys.exit(DIFFERENT)
    for package in packages:
        changed = sum(f.changes and f.path.parent.name == package.name for f in findings)
        click.echo(f"{out / package.name}: {f'{changed} files changed' if changed else 'up to date'}")
    for f in findings:
        if f.changes and f.state == "orphaned":
            click.echo(f"{f.path}: removed, no part of the package any more")
    for folder in sorted({f.path.parent for f in findings if f.abandoned}):
        click.echo(f"{folder}: its spec is not found; delete the folder if the package is not wanted", err=True)


@main.command()
@click.argument("specs", metavar="SPEC...", nargs=-1, required=True)
@click.option("--cpu", is_flag=True, help="Use Triton's interpreter even where there is a GPU.")
@click.option("-k", "only", metavar="EXPR", help="Only the tests whose names pytest finds to match: values and not h4.")
@click.option("-n", "processes", type=click.IntRange(1), metavar="N", help="Run in N processes; needs pytest-xdist.")
def test(specs: Sequence[str], cpu: bool, only: str | None, processes: int | None) -> None:
    """Render into a temporary folder and run the generated suites."""
    from . import suites

    sys.exit(suites.run(arguments.packages(arguments.load(specs)), cpu=cpu, only=only, processes=processes))


@main.command()
@click.argument("spec")
@click.option("--shape", metavar="Tq,Tk", help="Draw the mask for this many queries and keys.")
@click.option("--png", metavar="FILE", type=_FILE, help="Write the picture there; needs matplotlib.")
@click.option("--html", metavar="FILE", type=_FILE, help="Write a page to explore there.")
@click.option(
    "--md", metavar="FILE", type=_FILE, help="Write a page in Markdown there, and its picture as .svg beside it."
)
@click.option("--head", type=click.IntRange(0, 4095), metavar="N", help="Draw this query head's mask, in place of 0's.")
@click.option(
    "--with", "numbers", metavar="NAME=N", multiple=True,
    help="Draw the mask with this number of the call, or of the sample: documents, branches, share, seed.",
)  # fmt: skip
def explain(
    spec: str, shape: str | None, png: Path | None, html: Path | None, md: Path | None, head: int | None,
    numbers: Sequence[str],
) -> None:  # fmt: skip
    """Show the formula, its derivatives and the mask with its tiles: as text, a picture, or a page."""
    from ..explain import explain as explanation
    from ..explain import kernels, markdown_page, summary

    sizes = explanation.lengths(shape) if shape else None
    path, loaded = next(iter(arguments.load([spec]).items()))
    arguments.apart(path, loaded.name, png, html, md)
    asked = explanation.given(loaded, head, numbers)
    if sizes is None and (png or html or md or asked):
        sizes = explanation.shape(loaded)
    drawn = explanation.draw(loaded, *sizes, asked) if sizes else None
    told = summary.text(loaded), drawn.text() if drawn else "", kernels.text(loaded, drawn.mask if drawn else None)
    _echo("\n".join(filter(None, told)))
    if sizes and drawn:
        if png:
            drawn.png(png)
        if html:
            html.write_text(explanation.page(loaded, *sizes, asked), encoding="utf-8", newline="\n")
        if md:
            for file, text in markdown_page.Sheet(drawn, path, md, Path.cwd()).files().items():
                file.write_text(text, encoding="utf-8", newline="\n")


@main.command()
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


@main.command()
@click.argument("specs", metavar="SPEC...", nargs=-1, required=True)
@click.option("--against", metavar="PEER,...", help="Only these peers; all that can say a variant, if left out.")
@click.option(
    "--lengths", default="1024,4096,16384", show_default=True, metavar="T,...", help="Keys, and queries, of a sequence."
)
@click.option("--queries", type=click.IntRange(1), metavar="N", help="Queries of a sequence, if not as many as keys.")
@click.option(
    "--tokens", default=16384, show_default=True, type=click.IntRange(1), help="Keys of a batch; the longer, the fewer."
)
@click.option("--head-dim", default="128", show_default=True, metavar="D,...", help="Head sizes; 192:128 for v apart.")
@_HEADS
@_DTYPE
@_TARGET
@click.option("--forward", "forward", is_flag=True, help="Time forward alone, without gradients.")
@click.option("--replay", is_flag=True, help="Time forward in a CUDA graph: what the GPU takes, without the host.")
@click.option("--json", "json_", metavar="FILE", type=_FILE, help="Write the measures there.")
@click.option("--plot", metavar="FILE", type=_FILE, help="Draw them there, as PNG; needs matplotlib.")
def bench(
    specs: Sequence[str], against: str | None, lengths: str, queries: int | None, tokens: int, head_dim: str,
    heads: str | None, dtype: str, target: str, forward: bool, replay: bool, json_: Path | None, plot: Path | None,
) -> None:  # fmt: skip
    """Time variants on this GPU beside other libraries that can say them, with the memory they take."""
    from rich.console import Console

    from ..explain import picture
    from ..gpu import bench as timing
    from ..gpu.peers import PEERS
    from ..gpu.results import Machine, document, summary, table

    names = against.split(",") if against else list(PEERS)
    if unknown := [name for name in names if name not in PEERS]:
        raise click.BadParameter(f"unknown peer {unknown[0]!r}; there are {', '.join(PEERS)}", param_hint="--against")
    sizes = timing.sizes(lengths, queries, tokens, head_dim, heads, dtype)
    loaded = arguments.load(specs)
    arguments.fit(loaded.values(), [one.head_dim for one in sizes], [one.v_dim for one in sizes])
    if plot:
        picture.needed("--plot")
    machine = Machine.here()
    packages = arguments.packages(loaded)
    console, results = Console(width=None if sys.stdout.isatty() else 150), []
    click.echo(f"{machine.device}, torch {machine.torch}, triton {machine.triton}")
    for spec, package in zip(loaded.values(), packages, strict=True):
        for result in timing.run(spec, package, sizes, names, target=target, backward=not forward, replays=replay):
            results.append(result)
            console.print(table(result))
            if json_:
                json_.write_text(document(machine, results), encoding="utf-8", newline="\n")
    if told := summary(results):
        click.echo(told)
    if plot:
        from ..gpu import plots

        plots.write(plot, machine, results)


@main.command()
@click.argument("spec")
@click.option("--head-dim", default="128", show_default=True, metavar="D,...", help="Head sizes; 192:128 for v apart.")
@_LENGTH
@_TOKENS
@_HEADS
@_DTYPE
@click.option(
    "--target", type=click.Choice(["portable", "hopper"]), help="Kernels to look at, if not those that a call takes."
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


@main.command()
@click.argument("specs", metavar="SPEC...", nargs=-1, required=True)
@click.option(
    "--head-dim", default="64,128", show_default=True, metavar="D,...", help="Head sizes; 192:128 for v apart."
)
@_LENGTH
@_TOKENS
@_HEADS
@click.option(
    "--dtype", default="bf16", show_default=True, type=click.Choice(["bf16", "fp16", "fp32"]),
    help="Type of q, k and v; one table serves both of 16 bits.",
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


@main.command()
@click.argument("spec")
@click.option("--to", required=True, type=click.Choice(["flex"]), help="flex: PyTorch's FlexAttention.")
def export(spec: str, to: str) -> None:
    """Print a variant as a module for another library."""
    from ..export import flex
    from ..render import render as renderer

    loaded = arguments.one(spec)
    try:
        text = renderer.export(loaded, to)
    except flex.Inexpressible as why:
        raise click.UsageError(f"{loaded.source}: {why}") from None
    _echo(text)


@main.command()
@click.option("--terms", is_flag=True, help="Of files that hold a term, in place of specs.")
def schema(terms: bool) -> None:
    """Print the JSON Schema of the spec language, for editors."""
    import json

    from ..language import schema as language

    click.echo(json.dumps(language.term_schema() if terms else language.schema(), indent=2))


def _report(findings: Sequence[Any]) -> None:
    for f in (f for f in findings if f.state != "current"):
        by_hand = "  (edited by hand)" if f.state == "orphaned" and f.edited else ""
        click.echo(f"{f.state:8}  {f.path}{'  (its spec is not found)' if f.abandoned else by_hand}")


def _echo(text: str) -> None:
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    safe = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    click.echo(safe.encode(encoding, "replace").decode(encoding), nl=not text.endswith("\n") and bool(text))
