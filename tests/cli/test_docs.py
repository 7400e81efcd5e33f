"""The docs agree with the code, the terms and the specs, and none of their links is broken."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest

from attnforge.cli import commands, manual, starter
from attnforge.explain import summary
from attnforge.expressions import parser
from attnforge.language import spec
from attnforge.source import resources

ROOT = Path(manual.__file__).parents[3]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]


@pytest.fixture(scope="module")
def made() -> dict[Path, str]:
    return manual.files(ROOT)


# -- nothing is stale ----------------------------------------------------------------------------------------------


def test_docs_are_what_the_code_makes_of_them(made: dict[Path, str]) -> None:
    stale = [
        str(path.relative_to(ROOT))
        for path, text in made.items()
        if not path.is_file() or path.read_bytes() != text.encode()
    ]
    assert not stale, "run `make docs`"
    assert manual.abandoned(ROOT, made) == [], "run `make docs`"


def test_every_variant_has_its_page_and_picture(made: dict[Path, str]) -> None:
    index = made[DOCS / "variants" / "README.md"]
    pages = [made[DOCS / "variants" / f"{name}.md"] for name in resources.variants()]
    alone = sum("The same formula under another name" not in page for page in pages)
    assert re.search(rf"\n{len(pages)} variants of (\d+) formulas: ", index)
    assert alone < int(re.findall(r"of (\d+) formulas", index)[0]) < len(pages)
    for name in resources.variants():
        assert f"[`{name}`]({name}.md)" in index
        page = made[DOCS / "variants" / f"{name}.md"]
        assert f"]({name}.svg)" in page
        assert f"](../../specs/{name}.yaml)" in page
        assert f"](../../generated/{name})" in page
        ElementTree.fromstring(made[DOCS / "variants" / f"{name}.svg"])
    assert [title for title in starter.variants() if f"\n## {title}\n" not in index] == []
    assert sum(len(text.encode()) for text in made.values()) < 3e6


def test_a_page_names_the_other_variants_of_its_formula(made: dict[Path, str]) -> None:
    def told(name: str) -> str:
        page = made[DOCS / "variants" / f"{name}.md"]
        return page.partition("The same formula under another name or in another layout: ")[2].partition(".\n")[0]

    assert told("log_decay") == (
        "[`forgetting_transformer`](forgetting_transformer.md), "
        "[`packed_log_decay`](packed_log_decay.md) (packed sequences, grouped heads)"
    )
    assert "[`llama3`](llama3.md), " in told("qwen3") and "[`qwen3`](qwen3.md)" in told("llama3")
    assert told("gpt_oss") == told("rope_swa_softcap") == ""
    # windows of different sizes are different formulas
    assert "runtime_window" not in told("sliding_window")


def test_names_of_inputs_and_the_order_of_masks_make_no_other_formula(tmp_path: Path) -> None:
    def identity(text: str) -> object:
        path = tmp_path / "mine.yaml"
        path.write_text(f"name: mine\n{text}")
        return summary.identity(spec.load(path, terms=resources.terms_for(path)))

    one = "mask: [causal, sliding_window: {size: 4}]\nscore: [expr: score * %s]\ninputs: {%s: {axes: [head]}}\n"
    two = one.replace("causal, sliding_window: {size: 4}", "sliding_window: {size: 4}, causal")
    assert identity(one % ("a", "a")) == identity(two % ("warmth", "warmth"))
    assert identity(one % ("a", "a")) != identity(one.replace("4", "5") % ("a", "a"))
    assert identity(one % ("a", "a")) != identity("sink: true\n" + one % ("a", "a"))


def test_the_readme_tells_every_command(made: dict[Path, str]) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert made[ROOT / "README.md"] == text, "run `make docs`"
    for name, command in commands.main.commands.items():
        (row,) = re.findall(rf"(?m)^\| \[`attnforge {name}[ `].*", text)
        assert str(command.help).rstrip(".") in row
    table = re.findall(r"(?m)^\| \[`attnforge (\w+)", text)
    assert table == list(commands.main.commands)

    with pytest.raises(AssertionError, match="README needs the lines"):
        manual.readme("# attnforge\n")


def test_the_reference_tells_every_word(made: dict[Path, str]) -> None:
    told = made[DOCS / "reference.md"]
    for word in [*spec.KEYS, "axes", "dtype", "grad", "scan", "default", "dims"]:
        assert f"| `{word}` |" in told, word
    for name in parser.ARGUMENTS:
        assert f"| `{name}(" in told, name
    for path in (resources.specs() / "terms").glob("*.yaml"):
        assert f"\n#### {path.stem}\n" in told
    for name, command in commands.main.commands.items():
        assert f"\n### attnforge {name}\n" in told
        for param in command.params:
            for option in param.opts if param.param_type_name == "option" else ():
                assert f"`{option}`" in told, (name, option)


@pytest.mark.parametrize(
    "words",
    [
        "a `positions` outside of the rows of `cos` and `sin` to the nearest row",
        "An expression may have 10,000 characters, be nested 50 deep, and join 100 parts",
        "no package of old and new files is left to run",
        "[recipes](recipes.md)",
        "`--with NAME=N`",
    ],
)
def test_the_reference_tells_of_limits_and_edges(made: dict[Path, str], words: str) -> None:
    assert words in " ".join(made[DOCS / "reference.md"].split())


def test_every_option_of_a_command_is_explained() -> None:
    for name, command in commands.main.commands.items():
        assert command.help, name
        for param in command.params:
            assert param.param_type_name == "argument" or getattr(param, "help", None), (name, param.name)


def test_writing_again_mends_what_is_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    one = {tmp_path / "docs" / "variants" / "causal.md": "new\n"}
    monkeypatch.setattr(manual, "files", lambda root: one)
    (tmp_path / "docs" / "variants").mkdir(parents=True)
    gone = tmp_path / "docs" / "variants" / "gone.svg"
    gone.write_text("old")
    for _ in range(2):
        manual.main()
        assert next(iter(one)).read_text() == "new\n"
        assert not gone.exists()
        next(iter(one)).write_text("edited\n")


# -- links ---------------------------------------------------------------------------------------------------------

LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)")


def prose(text: str) -> str:
    """Markdown without code blocks and code spans."""
    text = re.sub(r"(?ms)^( *)(`{3,}|~{3,}).*?^ *\2`*~*$", "", text)
    return re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "code", text, flags=re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The anchors of a page; those of headings are named as web hosts name them."""
    found: dict[str, int] = {}
    names = set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", page.read_text(encoding="utf-8")))
    text = re.sub(r"(?ms)^( *)(`{3,}|~{3,}).*?^ *\2`*~*$", "", page.read_text(encoding="utf-8"))
    for heading in re.findall(r"(?m)^#{1,6} +(.+?) *#*$", text):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("\\", "")
        word = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        count = found.setdefault(word, 0)
        found[word] += 1
        names.add(f"{word}-{count}" if count else word)
    return names


def lost(page: Path) -> list[str]:
    """The broken links of a page."""
    found = []
    for target in LINK.findall(prose(page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = unquote(target).partition("#")
        place = (page.parent / file) if file else page
        if not place.exists() or (anchor and place.suffix == ".md" and anchor not in anchors(place)):
            found.append(target)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    assert lost(page) == []


def test_lost_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# A `word`, twice\n\n## Twice\n\n## Twice\n\n```text\n# no heading\n```\n")
    page = tmp_path / "page.md"
    page.write_text(
        "# Here\n[a](other.md) [b](other.md#a-word-twice) [`c`](#here) ![d](https://x/y) [e](other.md#twice-1)\n"
        "`[f](no.md)`\n```text\n[g](no.md)\n```\n"
    )
    assert lost(page) == []
    page.write_text("[a](no.md) [b](other.md#no-heading) [`c`](#there) ![d](no.svg) [e](other.md#twice-2)\n")
    assert lost(page) == ["no.md", "other.md#no-heading", "#there", "no.svg", "other.md#twice-2"]
