"""The command line. Heavy modules are imported inside the commands, so that `--help` answers at once."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from .. import __version__
from ..source.messages import Refused, say
from . import arguments, measures
from .program import DIFFERENT, EXIT_CODES, Program

_FILE, _PICTURE = arguments.Output(), arguments.Output(".png")


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
@click.option(
    "--from", "origin", metavar="VARIANT",
    help="Start from a shipped variant, or from a file; its group is left out, its citation becomes a comment.",
)  # fmt: skip
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
        raise Refused(f"{path} exists already") from None
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
    """Parse and plan only; report every mistake with its position, and which specs are valid."""
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
@click.option(
    "--check", "checks", is_flag=True, help="Write nothing; exit 1 if a file differs from what a render writes."
)
@click.option(
    "--diff", "diffs", is_flag=True, help="Write nothing; show what a render would change, exit 1 if anything."
)
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
        say(f"{error}\nerror: nothing was written; --force does it all the same")
        sys.exit(DIFFERENT)
    for package in packages:
        changed = sum(f.changes and f.path.parent.name == package.name for f in findings)
        told = f"{changed} file{'s' * (changed > 1)} changed" if changed else "up to date"
        click.echo(f"{out / package.name}: {told}")
    for f in findings:
        if f.changes and f.state == "orphaned":
            click.echo(f"{f.path}: removed, no part of the package any more")
    for folder in sorted({f.path.parent for f in findings if f.abandoned}):
        say(f"{folder}: its spec is not found; delete the folder if the package is not wanted")


@main.command()
@click.argument("specs", metavar="SPEC...", nargs=-1, required=True)
@click.option("--cpu", is_flag=True, help="Use Triton's interpreter even if there is a GPU.")
@click.option("-k", "only", metavar="EXPR", help="Only tests whose names match, as in pytest: values and not h4.")
@click.option("-n", "processes", type=click.IntRange(1), metavar="N", help="Run in N processes; needs pytest-xdist.")
def test(specs: Sequence[str], cpu: bool, only: str | None, processes: int | None) -> None:
    """Render into a temporary folder and run the generated suites."""
    from . import suites

    sys.exit(suites.run(arguments.packages(arguments.load(specs)), cpu=cpu, only=only, processes=processes))


@main.command()
@click.argument("spec")
@click.option(
    "--shape", metavar="Tq,Tk", help="Draw the mask for this many queries and keys, in place of as many as it needs."
)
@click.option("--png", metavar="FILE", type=_PICTURE, help="Write the picture there; needs matplotlib.")
@click.option("--html", metavar="FILE", type=_FILE, help="Write an interactive page there.")
@click.option(
    "--md", metavar="FILE", type=_FILE, help="Write a page in Markdown there, and its picture as .svg beside it."
)
@click.option(
    "--head", type=click.IntRange(0, 4095), metavar="N", help="Draw the mask of this query head, in place of head 0."
)
@click.option(
    "--with", "numbers", metavar="NAME=N", multiple=True,
    help="Draw the mask with this number of the call, or of the sample: documents, branches, share, seed.",
)  # fmt: skip
def explain(
    spec: str, shape: str | None, png: Path | None, html: Path | None, md: Path | None, head: int | None,
    numbers: Sequence[str],
) -> None:  # fmt: skip
    """Show the formula, its derivatives and the mask with its tiles: as text, a picture, or a page."""
    from ..explain import decoding, kernels, markdown_page, summary
    from ..explain import explain as explanation

    wanted = explanation.lengths(shape) if shape else None
    path, loaded = next(iter(arguments.load([spec]).items()))
    arguments.apart(path, loaded.name, png, html, md)
    asked = explanation.given(loaded, head, numbers)
    sizes = wanted or explanation.shape(loaded)
    drawn = explanation.draw(loaded, *sizes, asked)
    told = summary.text(loaded), drawn.text(), kernels.text(loaded, drawn.mask), decoding.text(loaded, drawn.mask)
    _echo("\n".join(filter(None, told)))
    if png:
        drawn.png(png)
    if html:
        html.write_text(explanation.page(loaded, *sizes, asked), encoding="utf-8", newline="\n")
    if md:
        for file, text in markdown_page.Sheet(drawn, path, md, Path.cwd()).files().items():
            file.write_text(text, encoding="utf-8", newline="\n")


for _measure in (measures.inspect, measures.bench, measures.profile, measures.tune):
    main.add_command(_measure)


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
        raise Refused(f"{loaded.source}: {why}") from None
    _echo(text)


@main.command()
@click.option("--terms", is_flag=True, help="The schema of term files, in place of specs.")
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
