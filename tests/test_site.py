"""The docs as a site: it builds without a warning, no link is broken, and a browser shows it from the disk alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import browser
import pytest

pytestmark = pytest.mark.slow
pytest.importorskip("material", reason="needs the extra `site`")

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a site, built as `make site` does."""
    out = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "-f",
        str(ROOT / "website" / "mkdocs.yml"),
        "-d",
        str(out),
    ]
    done = subprocess.run(command, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Browser]:
    if browser.PROGRAM is None:
        pytest.skip("needs chromium on the PATH: apt-get install chromium")
    running = browser.Browser(tmp_path_factory.mktemp("profile"))
    yield running
    running.close()


def test_every_page_is_there(site: Path) -> None:
    docs = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    wanted = {path.with_name("index.html") if path.stem == "README" else path for path in docs}
    wanted |= {Path("generated", f"{path.stem}.html") for path in (ROOT / "specs").glob("*.yaml")}
    wanted |= {Path(name) for name in ("contents.html", "contributing.html", "changelog.html", "license.html")}
    assert sorted(str(path) for path in wanted if not (site / path).is_file()) == []


def test_links_and_pictures_of_the_site_lead_somewhere(site: Path) -> None:
    pages = {path: path.read_text(encoding="utf-8") for path in site.rglob("*.html") if path.name != "404.html"}
    places = {path: set(re.findall(r'\sid="?([^"\s>]+)', text)) for path, text in pages.items()}
    lost = []
    for path, text in pages.items():
        for target in set(re.findall(r'\s(?:href|src)="?([^"\s>]+)', text)):
            if re.match(r"[a-z]+:", target):
                continue
            file, _, anchor = unquote(target).partition("#")
            found = (path.parent / file).resolve() if file else path
            if not found.is_file() or (anchor and anchor not in places[found]):
                lost.append(f"{path.relative_to(site)}: {target}")
    assert lost == []


def test_a_variant_leads_to_its_code(site: Path) -> None:
    page = (site / "variants" / "mistral.html").read_text(encoding="utf-8")
    assert page.count('href="../generated/mistral.html"') == 2
    shown = re.sub(r"<[^>]+>", "", (site / "generated" / "mistral.html").read_text(encoding="utf-8"))
    for line in ("sliding_window: {size: 4096}", "def attend(", "visible if q - k &lt; 4096"):
        assert line in shown


def test_a_browser_shows_pages_from_the_disk_and_loads_nothing_else(site: Path, chromium: browser.Browser) -> None:
    for name in ("index.html", "training.html", "variants/mistral.html", "generated/causal.html"):
        chromium.open(site / name)
        chromium.until("document.readyState == 'complete'")
        assert chromium.errors == [], name
        assert [url for url in chromium.requests if not url.startswith(("file:", "data:", "about:"))] == [], name
        assert chromium.value("[...document.images].every(image => image.complete && image.naturalWidth > 100)"), name
    chromium.open(site / "variants" / "mistral.html")
    assert "mistral.svg" in chromium.value("document.querySelector('article img').src")
    assert "visible if q - k < 4096" in chromium.value("document.querySelector('article').innerText")


def test_a_newcomer_finds_the_way(site: Path, chromium: browser.Browser) -> None:
    chromium.open(site / "index.html")
    tabs = chromium.value("[...document.querySelectorAll('.md-tabs__link')].map(x => x.innerText.trim())")
    assert tabs == ["Home", "First steps", "Writing specs", "In your code", "Behind it", "Project"]
    chromium.value("[...document.querySelectorAll('.md-tabs__link')][1].click()")
    chromium.until("document.querySelector('h1')?.innerText.startsWith('Installing')")
    page = "[...document.querySelectorAll('.md-nav__link')].find(x => x.textContent.trim() == 'mistral')"
    chromium.open(site / "variants" / "index.html")
    chromium.value(f"{page}.click()")
    chromium.until("document.querySelector('h1')?.innerText.startsWith('mistral')")


def test_search_finds_a_word_without_a_server(site: Path, chromium: browser.Browser) -> None:
    chromium.open(site / "index.html")
    chromium.value("document.querySelector('#__search').click()")
    chromium.value("document.querySelector('.md-search__input').focus()")
    chromium.send("Input.insertText", text="neighbourhood_2d")
    chromium.send("Input.dispatchKeyEvent", type="keyUp", key="d")
    chromium.until("document.querySelectorAll('.md-search-result__link').length > 0")
    first = chromium.value("document.querySelector('.md-search-result__link').href")
    assert "variants/" in first
    assert [url for url in chromium.requests if not url.startswith(("file:", "data:", "about:"))] == []
