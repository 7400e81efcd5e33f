"""Specs and files for the SPEC arguments of the command line. Heavy modules are imported where needed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..source.messages import Refused, say

if TYPE_CHECKING:
    from ..language.spec import Spec
    from ..render.emit import Package
    from ..source.errors import Problem


class Output(click.Path):
    """A file to write: a path that cannot be written is reported before the work is done, not after.

    A picture's path may have no other `suffix` than that of its format.
    """

    def __init__(self, suffix: str = "") -> None:
        super().__init__(dir_okay=False, path_type=Path)
        self.suffix = suffix

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path, whose folder has to exist."""
        path = Path(str(super().convert(value, param, ctx)))
        if not value:
            self.fail("expected a file, got ''", param, ctx)
        if self.suffix and path.suffix.lower() not in ("", self.suffix):
            told = f"expected a name that ends with {self.suffix}, the picture's format, got {path.name}"
            self.fail(told, param, ctx)
        if not path.parent.is_dir():
            self.fail(f"there is no folder {path.parent}", param, ctx)
        return path


class Folder(click.Path):
    """A folder to write into, which need not exist yet."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path, if the part of it that exists is a folder."""
        path = Path(str(super().convert(value, param, ctx)))
        if not str(value):
            self.fail("expected a folder, got ''", param, ctx)
        found = next(part for part in (path, *path.parents) if os.path.lexists(part))
        if not found.is_dir():
            self.fail(f"{found} is no folder", param, ctx)
        return path


def apart(spec: Path, name: str, png: Path | None, html: Path | None, md: Path | None) -> None:
    """Refuses outputs that would overwrite the spec, each other, or, beside --md, a file that is no earlier picture."""
    from ..explain import svg

    drawn, taken = "--md's picture", {spec.resolve(): "the spec"}
    outputs = {"--png": png, "--html": html, "--md": md, drawn: md and md.with_suffix(".svg")}
    for option, path in outputs.items():
        if path and (other := taken.setdefault(path.resolve(), option)) != option:
            raise Refused(f"{option} would overwrite {other}, {path}")
    if (picture := outputs[drawn]) and picture.exists() and not svg.drew(picture, name):
        raise Refused(f"{drawn} would overwrite {picture}, which is no picture of {name}")


def find(argument: str) -> Path:
    """The file of a spec, or of a shipped variant by its name."""
    from ..source import resources
    from ..source.errors import near

    path = Path(argument)
    # unlike Path.is_file, this is also false for names that no file can have
    if os.path.isfile(argument):
        return path
    if os.path.islink(argument):
        raise Refused(f"{argument} is a link that leads nowhere")
    shipped = resources.variants()
    own = os.path.join("specs", f"{argument}.yaml")
    # the name that the header of a generated file gives works in every folder
    if argument in (path.stem, f"specs/{path.stem}.yaml") and path.stem in shipped:
        found = shipped[path.stem]
        if os.path.isfile(own) and Path(own).read_bytes() != found.read_bytes():
            say(f"{argument} is the shipped variant; your own is {own}")
        return found
    if os.path.isdir(argument):
        hint = f": it is a folder; write {path.as_posix()}/*.yaml"
    elif os.path.isfile(own):
        hint = f" (did you mean {own}?)"
    else:
        hint = near(argument, shipped) or ": `attnforge list` shows the shipped variants"
    raise Refused(f"{argument!r} is neither a file nor a shipped variant{hint}")


def read(arguments: Sequence[str]) -> tuple[dict[Path, Spec], list[Problem]]:
    """The valid specs, and the mistakes of the others."""
    from ..language import spec
    from ..source import resources
    from ..source.errors import SpecError

    loaded: dict[Path, Spec] = {}
    problems: list[Problem] = []
    for path in dict.fromkeys(map(find, arguments)):
        try:
            loaded[path] = spec.load(path, terms=resources.terms_for(path))
        except SpecError as error:
            problems += error.problems
    return loaded, list(dict.fromkeys(problems))


def fit(specs: Iterable[Spec], head_dims: Sequence[int], v_dims: Sequence[int]) -> None:
    """Refuses head sizes, of q and k and of v, that a spec's kernels do not support."""
    from ..plan import tiles

    for spec in specs:
        for most, dims in zip(tiles.widest(spec.latent), (head_dims, v_dims), strict=True):
            if wrong := [size for size in dims if size > most]:
                told = f"{spec.name} takes head sizes up to {most} there, got {wrong[0]}"
                raise click.BadParameter(told, param_hint="--head-dim")


def decoding(specs: Iterable[Spec]) -> None:
    """Refuses specs whose packages read no cache, and packed ones, whose calls have sequences of different lengths."""
    for spec in specs:
        if "decode" not in spec.exports:
            raise Refused(f"{spec.source}: {spec.name} has no attend_with_cache; it takes `exports: [decode]`")
        if spec.packed:
            raise Refused(f"{spec.source}: --cache times dense variants, and {spec.name} is packed")


def refuse(problems: list[Problem]) -> None:
    """Raises the mistakes, if there are any."""
    from ..source.errors import SpecError

    if problems:
        raise SpecError(problems)


def load(arguments: Sequence[str]) -> dict[Path, Spec]:
    """All specs, or an error that reports the mistakes of all of them."""
    loaded, problems = read(arguments)
    refuse(problems)
    named: dict[str, Path] = {}
    for path, found in loaded.items():
        other = named.setdefault(found.name, path)
        if other.resolve() != path.resolve():
            raise Refused(f"{other} and {path} have the same name, {found.name}")
    return loaded


def one(argument: str) -> Spec:
    """The spec of an argument."""
    return next(iter(load([argument]).values()))


def packages(loaded: Mapping[Path, Spec], out: Path | None = None) -> list[Package]:
    """The packages of loaded specs, rendered; files of `out` that were made from the same are reused."""
    from ..render import render as renderer
    from ..render.emit import Package

    files = renderer.render_all(list(loaded.values()), out)
    return [Package(s.name, s.source, path, made) for (path, s), made in zip(loaded.items(), files, strict=True)]
