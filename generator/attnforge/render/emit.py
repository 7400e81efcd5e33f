"""Brings the packages in a folder up to date, without ever losing a hand-made change.

A hand-edited file is recognised by its header, which holds a hash of its text. A file without the header is somebody's
own and counts as edited, too.

Two kinds of files are orphaned: a file with the header in a rendered package that is no longer part of it; and a whole
package whose header names a spec in the same folder as one being rendered (`specs/old.yaml` while `specs/new.yaml` is
rendered into `generated`), if the latter is below the parent of the output folder, where a spec of the former's name no
longer exists. Files of the first kind are removed by a write; a package of the second kind is only reported.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from ..source import resources
from . import header

try:
    import fcntl
except ImportError:  # no such lock on this system: each file is still written atomically
    fcntl = None  # type: ignore[assignment]

State = Literal["current", "stale", "edited", "missing", "orphaned"]
_STAGED = ".attnforge-staged"
_FACE = "__init__.py"
_CUT_OFF = 'raise ImportError(f"{__name__} is half written: a render was cut off, and the command above finishes it")\n'
_MOST = 20_000  # most folders that are searched for a spec
_LOST = ", and no part of the package: it would be removed"


@dataclass(frozen=True)
class Package:
    """The rendered files of a spec, and its path: as the header names it, and on this machine."""

    name: str
    source: str
    spec: Path
    files: Mapping[str, str]


@dataclass(frozen=True)
class Finding:
    """The state of a file in the output folder, compared with what is rendered now."""

    path: Path
    state: State
    old: str = ""
    new: str = ""
    edited: bool = False  # orphaned files can be edited too
    abandoned: bool = False  # belongs to a package whose spec is not found

    @property
    def changes(self) -> bool:
        """True if a write would touch the file."""
        return self.state != "current" and not self.abandoned


class Edited(Exception):
    """Files that a write would overwrite were edited by hand."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        edited = (f"{f.path}: edited by hand{_LOST if f.state == 'orphaned' else ''}" for f in findings)
        super().__init__("\n".join(edited))
        self.findings = findings


def survey(packages: Sequence[Package], out: Path) -> list[Finding]:
    """Compares the output folder with what is rendered; changes nothing."""
    findings = [_compare(out / p.name / file, text) for p in packages for file, text in p.files.items()]
    for package in packages:
        own = set(package.files)
        findings += [f for f in _generated(out / package.name) if f.path.name not in own]
    findings += _abandoned(packages, out)
    return sorted(findings, key=lambda f: f.path)


def diff(findings: Sequence[Finding]) -> str:
    """The changes that a write would make, as one unified diff."""
    lines: list[str] = []
    for f in findings:
        if f.changes:
            old, new = f.old.splitlines(keepends=True), f.new.splitlines(keepends=True)
            before = "/dev/null" if f.state == "missing" else f.path.as_posix()
            after = "/dev/null" if f.state == "orphaned" else f.path.as_posix()
            for line in difflib.unified_diff(old, new, before, after):
                lines.append(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n")
    return "".join(lines)


def write(packages: Sequence[Package], out: Path, *, force: bool = False) -> list[Finding]:
    """Brings the output folder up to date and returns the findings from before; raises `Edited` before any change.

    Every new text is on disk before the first old one is replaced, and each file is replaced atomically: whenever the
    program is killed, each file is complete, either the old one or the new one. If several files of a package change,
    it cannot be imported until the last of them is in place, and the next run finishes the work.
    """
    out.mkdir(parents=True, exist_ok=True)
    with _alone(out):
        findings = survey(packages, out)
        refused = [f for f in findings if f.edited and f.changes]
        if refused and not force:
            raise Edited(refused)
        for place in (out / package.name for package in packages):
            if os.path.lexists(place) and not place.is_dir():
                raise NotADirectoryError(f"{place} is no folder: nothing was written")
        for package in packages:
            for left in (out / package.name).glob(f".*{_STAGED}"):
                left.unlink()
        changes = [f for f in findings if f.changes]
        barred = [f for f in findings if f.path.name == _FACE and _in_parts(f, changes)]
        _replace([*barred, *(f for f in changes if f not in barred)], barred)
    return findings


def _in_parts(face: Finding, changes: Sequence[Finding]) -> bool:
    """True if an existing package changes in more than one step; `face` is its `__init__.py`."""
    return bool(face.old) and sum(f.path.parent == face.path.parent for f in changes) > 1


def _replace(findings: Sequence[Finding], barred: Sequence[Finding]) -> None:
    """Brings files up to date; `barred` are the faces of packages that must not be imported meanwhile."""
    staged: list[tuple[Path, Path]] = []

    def stage(path: Path, text: str) -> None:
        path.parent.mkdir(exist_ok=True)
        place = path.with_name(f".{path.name}.{secrets.token_hex(4)}{_STAGED}")
        staged.append((place, path))
        _write_through(place, text)

    try:
        for f in barred:
            stage(f.path, header.instead(f.new, _CUT_OFF))
        for f in findings:
            if f.state != "orphaned":
                stage(f.path, f.new)
        bars, texts = staged[: len(barred)], staged[len(barred) :]
        for place, path in bars:
            os.replace(place, path)
            _flush(path.parent)
        # the face of a package comes last: a mix of old and new files, or an incomplete package, cannot be imported
        faces = [pair for pair in texts if pair[1].name == _FACE]
        for place, path in texts:
            if path.name != _FACE:
                os.replace(place, path)
        for f in findings:
            if f.state == "orphaned":
                f.path.unlink()
        for place, path in faces:
            _flush(path.parent)
            os.replace(place, path)
        for folder in {f.path.parent for f in findings}:
            _flush(folder)
    finally:
        for place, _ in staged:
            place.unlink(missing_ok=True)


def _compare(path: Path, new: str) -> Finding:
    old = read(path)
    if old is None:
        return Finding(path, "missing", "", new)
    if old == new:
        return Finding(path, "current", old, new)
    found = header.read(old)
    if found is not None and found.intact:
        return Finding(path, "stale", old, new)
    return Finding(path, "edited", old, new, edited=True)


def _generated(folder: Path, *, abandoned: bool = False) -> Iterator[Finding]:
    """The files of a folder that carry the header."""
    for path in sorted(folder.glob("*.py")):
        text = read(path)
        found = header.read(text) if text is not None else None
        if text is not None and found:
            yield Finding(path, "orphaned", text, edited=not found.intact, abandoned=abandoned)


def _abandoned(packages: Sequence[Package], out: Path) -> Iterator[Finding]:
    rendered = {p.name for p in packages}
    root = out.resolve().parent
    # if a spec is outside of root, the missing one may be in its folder there, which is not searched
    folders = {PurePosixPath(p.source).parent for p in packages if p.spec.resolve().is_relative_to(root)}
    for folder in sorted(out.iterdir()) if out.is_dir() else ():
        text = None if folder.name in rendered else read(folder / _FACE)
        found = header.read(text) if text is not None else None
        if found:
            source = PurePosixPath(found.source)
            if source.stem in resources.variants() and source.parent.name == resources.specs().name:
                continue
            if source.parent in folders and not _somewhere(source, root):
                yield from _generated(folder, abandoned=True)


def _somewhere(source: PurePosixPath, root: Path) -> bool:
    """True if a spec of that name exists anywhere below a folder, or might: a large folder is not searched fully."""
    for count, (place, folders, files) in enumerate(os.walk(root)):
        if count == _MOST or (source.name in files and Path(place, source.name).match(source.as_posix())):
            return True
        folders[:] = [name for name in folders if not name.startswith(".")]
    return False


def read(path: Path) -> str | None:
    """The text of a file; None if there is none."""
    try:
        # as it is on disk: a changed line end or a broken encoding is an edit
        return path.read_bytes().decode("utf-8", "surrogateescape")
    except (FileNotFoundError, NotADirectoryError):
        return None


def _write_through(path: Path, text: str) -> None:
    with open(path, "xb") as file:
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())


def _flush(folder: Path) -> None:
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Waits until no other generator writes into the folder; a killed generator leaves no lock behind."""
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        # some network file systems cannot lock a folder
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
