"""Hooks for mkdocs: they add pages from outside docs, order all pages, and make links lead to the right pages."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
# pages whose source is outside docs, or has another name
PAGES = {
    "index.md": "README.md",
    "contents.md": "docs/README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "license.md": "LICENSE",
    "notes.md": "benchmarks/NOTES.md",
}
PROJECT = ["contributing.md", "changelog.md", "notes.md", "license.md"]
# the files of a package that are shown; the names of the others are listed
FILES = ["kernels.py", "api.py", "reference.py"]
LINK = re.compile(r"(?<=\]\()([^)#\s:]+)(?=[#)])")
ENTRY = re.compile(r"^## (.+)$|^[-|] \[([^\]]+)\]\(([\w/-]+\.md)\)", re.MULTILINE)


def on_config(config: MkDocsConfig) -> None:
    """Orders the pages as docs/README.md does, and the variants as their own list does."""
    variants = ["variants/README.md", *sections("variants/README.md")]
    groups = sections("README.md", {"variants/README.md": variants})
    config.nav = [{"Home": ["index.md", "contents.md"]}, *groups, {"Project": PROJECT}]


def sections(name: str, inside: Mapping[str, list[Any]] | None = None) -> list[dict[str, list[Any]]]:
    """The headings of a list of links, each with the titles and pages below it; `inside`: the pages below some."""
    found: dict[str, list[Any]] = {}
    pages: list[Any] = []
    for heading, title, link in ENTRY.findall((ROOT / "docs" / name).read_text(encoding="utf-8")):
        if heading:
            pages = found.setdefault(heading, [])
        else:
            page = str(PurePosixPath(name).parent / link)
            pages.append({title.strip("`"): (inside or {}).get(page, page)})
    return [{heading: pages} for heading, pages in found.items() if pages]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages from outside docs, and one for each package."""
    listed = files.get_file_from_path("README.md")
    assert listed is not None
    files.remove(listed)
    for page, source in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    for asset in ("iframe-worker.js", "style.css"):
        files.append(File.generated(config, f"assets/{asset}", abs_src_path=str(ROOT / "website" / asset)))
    for package in packages():
        files.append(File.generated(config, f"generated/{package.name}.md", content=code(package)))
    return files


def packages() -> list[Path]:
    """The folders of all rendered packages."""
    return sorted(path.parent for path in (ROOT / "generated").glob("*/kernels.py"))


def code(package: Path) -> str:
    """A page with the spec and the files of a package."""
    name = package.name
    shown = {f"specs/{name}.yaml": ROOT / "specs" / f"{name}.yaml"} | {file: package / file for file in FILES}
    rest = sorted(path.name for path in package.glob("*.py") if path.name not in FILES)
    parts = [
        "---\nsearch: {exclude: true}\n---\n",
        f"# The code of {name}\n\nWritten by `attnforge render {name}`; [the variant](../docs/variants/{name}.md).\n",
        f"Not shown: {', '.join(f'`{file}`' for file in rest)}.\n",
    ]
    for title, path in shown.items():
        language = path.suffix.strip(".")
        parts.append(f"## {title}\n\n````{language}\n{path.read_text(encoding='utf-8')}````\n")
    return "\n".join(parts)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Makes links between files of the checkout lead to their pages; strips all but the language from code fences."""
    place = page.file.src_uri
    here = ROOT / origin(place)

    def lead(match: re.Match[str]) -> str:
        target = os.path.normpath(here.parent / match[1])
        found = destination(Path(target).relative_to(ROOT).as_posix()) if target.startswith(str(ROOT)) else None
        return match[1] if found is None else os.path.relpath(found, PurePosixPath(place).parent)

    return LINK.sub(lead, re.sub(r"(?m)^(```\w+) .*$", r"\1", markdown))


def origin(page: str) -> str:
    """The file that a page shows."""
    if page.startswith("generated/"):
        return page
    return PAGES.get(page, f"docs/{page}")


def destination(file: str) -> str | None:
    """The page that shows a file or a folder."""
    for page, source in PAGES.items():
        if file == source:
            return page
    if match := re.fullmatch(r"(?:specs|generated)/(\w+)(?:\.yaml)?", file):
        return f"generated/{match[1]}.md"
    return file.removeprefix("docs/") if file.startswith("docs/") else None
