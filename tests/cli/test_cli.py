"""Every command: what it prints, where, its exit code, and what it leaves on the disk."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner, Result

import attnforge
from attnforge.cli import commands, program, suites
from attnforge.explain import kernels
from attnforge.gpu import results
from attnforge.render import emit, format, render
from attnforge.source import resources

GOOD = "name: {name}\ndescription: A test.\nmask:\n  - causal\n"
LEARNED = GOOD + 'score:\n  - expr: "score * temp"\ninputs:\n  temp: {{axes: [head], grad: true}}\n'


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "specs").mkdir()
    return tmp_path


def write(name: str, text: str = GOOD) -> str:
    path = Path("specs") / f"{name}.yaml"
    path.write_text(text.format(name=name))
    return str(path)


def run(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(commands.main, arguments)
    assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
    return result


def files(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


def test_check_tells_good_specs() -> None:
    assert run("check", write("one"), "causal").stdout == "specs/one.yaml: good\nspecs/causal.yaml: good\n"


def test_check_calls_specs_as_the_user_does(monkeypatch: pytest.MonkeyPatch) -> None:
    path = write("one")
    assert run("check", str(Path(path).resolve())).stdout == f"{Path(path).resolve().as_posix()}: good\n"
    monkeypatch.chdir("specs")
    assert run("check", "one.yaml").stdout == "one.yaml: good\n"


def test_check_tells_of_scores_that_leave_out_the_product() -> None:
    path = write("far", "name: {name}\nscore:\n  - softcap: {{cap: 3}}\n  - expr: -0.5 * abs(q - k)\n")
    told = "specs/far.yaml: good; -0.5 * abs(q - k) takes the place of the score so far\n"
    assert run("check", path).stdout == told


def test_check_speaks_of_good_specs_beside_bad_ones() -> None:
    result = run("check", write("one"), write("two", "name: {name}\nmask: [causall]\n"), "causal", code=2)
    assert result.stdout == "specs/one.yaml: good\nspecs/causal.yaml: good\n"
    assert result.stderr.startswith("specs/two.yaml:2:8: error: ")


def test_check_tells_all_mistakes_of_all_files() -> None:
    first = write("one", "name: {name}\ndescription: A test.\nmusk: [causal]\nscore: [causall]\n")
    second = write("two", 'name: {name}\ndescription: A test.\nmask:\n  - expr: "q - k < windw"\n')
    result = run("check", first, second, code=2)
    assert result.stdout == ""
    assert "specs/one.yaml:3:1: error: unknown key 'musk'" in result.stderr
    assert "specs/one.yaml:4:" in result.stderr
    assert "specs/two.yaml:4:" in result.stderr


@pytest.mark.parametrize("command", ["check", "render", "test", "explain", "inspect"])
def test_a_spec_that_does_not_exist(command: str) -> None:
    result = run(command, "causel", code=2)
    assert "did you mean 'causal'?" in result.stderr
    assert result.stdout == ""
    run(command, "specs", code=2)
    run(command, code=2)


def test_render_writes_packages(folder: Path) -> None:
    first = run("render", write("one"), write("two", LEARNED))
    assert first.stdout == "generated/one: 15 files changed\ngenerated/two: 15 files changed\n"
    shared = {"arguments.py", "padding.py", "runtime.py", "checks.py"}
    expected = {"__init__.py", "kernels.py", "launch.py", "tiles.py", "api.py", "reference.py", *shared}
    expected |= {"hopper.py", "hopper_backward.py", "hopper_wide.py", "hopper_launch.py"}
    assert files(folder / "generated" / "two") == expected | {"test_two.py"}
    assert files(folder / "generated" / "one") == expected | {"test_one.py"}
    assert run("render", "specs/one.yaml").stdout == "generated/one: up to date\n"
    assert run("render", "specs/one.yaml", "specs/two.yaml", "--check").stdout == ""
    (folder / "generated" / "one" / "api.py").unlink()
    assert run("render", "specs/one.yaml").stdout == "generated/one: 1 file changed\n"


def test_render_into_another_folder(folder: Path) -> None:
    run("render", write("one"), "-o", "a/b")
    assert (folder / "a" / "b" / "one" / "api.py").is_file()
    assert not (folder / "generated").exists()


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("/dev/null", "/dev/null is no folder"),
        ("specs/one.yaml", "specs/one.yaml is no folder"),
        ("specs/one.yaml/a", "specs/one.yaml is no folder"),
        ("nowhere/a", "nowhere is no folder"),
        ("", "expected a folder, got ''"),
    ],
)
def test_render_into_what_is_no_folder(out: str, message: str, folder: Path) -> None:
    one = write("one")
    (folder / "nowhere").symlink_to("lost")
    result = run("render", one, "-o", out, code=2)
    assert message in result.stderr and "Errno" not in result.stderr
    assert files(folder) == {"specs/one.yaml"}


def test_a_shipped_variant_renders_by_name_and_as_its_header_says(folder: Path) -> None:
    run("render", "causal")
    text = (folder / "generated" / "causal" / "__init__.py").read_text()
    assert "attnforge render specs/causal.yaml\n" in text
    assert run("render", "specs/causal.yaml").stdout == "generated/causal: up to date\n"


def test_a_shipped_variant_in_place_of_a_spec_of_ones_own_is_told(folder: Path) -> None:
    assert "causal is the shipped variant; your own is" not in run("check", "causal").stderr
    own = write("causal")
    assert run("check", "causal").stderr == f"causal is the shipped variant; your own is {own}\n"
    assert run("check", own).stderr == ""
    Path(own).write_bytes(resources.variants()["causal"].read_bytes())
    assert run("check", "causal").stderr == ""


def test_nothing_is_written_if_one_spec_is_wrong(folder: Path) -> None:
    result = run("render", write("one"), write("two", "name: {name}\nmask: [causall]\n"), code=2)
    assert "specs/two.yaml:2:" in result.stderr
    assert not (folder / "generated").exists()


def test_two_specs_of_one_name(folder: Path) -> None:
    (folder / "more").mkdir()
    (folder / "more" / "one.yaml").write_text(GOOD.format(name="one"))
    assert "same name" in run("render", write("one"), "more/one.yaml", code=2).stderr
    assert not (folder / "generated").exists()


@pytest.mark.slow
def test_check_lists_what_is_not_up_to_date(folder: Path) -> None:
    one, two = write("one"), write("two")
    run("render", one, two)
    package = folder / "generated" / "one"
    (package / "api.py").unlink()
    (package / "launch.py").write_text((package / "launch.py").read_text() + "# mine\n")
    (package / "runtime.py").write_text((package / "runtime.py").read_text().replace("2**15", "2**14"))
    (package / "extra.py").write_text((package / "__init__.py").read_text())
    Path(two).unlink()
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    result = run("render", one, "--check", code=1)
    lines = [line.split(maxsplit=1) for line in result.stdout.splitlines()]
    assert ["missing", "generated/one/api.py"] in lines
    assert ["edited", "generated/one/launch.py"] in lines
    assert ["edited", "generated/one/runtime.py"] in lines
    assert ["current", "generated/two/runtime.py"] not in lines and "generated/two/runtime.py" in result.stdout
    assert ["orphaned", "generated/one/extra.py"] in lines
    assert ["orphaned", "generated/two/api.py  (its spec is not found)"] in lines
    write("one", LEARNED)
    assert "stale     generated/one/reference.py\n" in run("render", one, "--check", code=1).stdout
    write("one")
    assert before == {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.slow
def test_diff_writes_nothing(folder: Path) -> None:
    one = write("one")
    run("render", one)
    assert run("render", one, "--diff").stdout == ""
    write("one", LEARNED)
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    shown = run("render", one, "--diff", code=1).stdout
    assert "--- generated/one/api.py\n+++ generated/one/api.py\n" in shown
    assert "\n+" in shown
    assert "temp" in shown
    assert before == {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    run("render", one, "--diff", "--check", code=2)


@pytest.mark.slow
def test_force_overwrites_hand_edits(folder: Path) -> None:
    one = write("one")
    run("render", one)
    path = folder / "generated" / "one" / "api.py"
    good = path.read_text()
    path.write_text(good + "# mine\n")
    result = run("render", one, code=1)
    assert "generated/one/api.py: edited by hand" in result.stderr
    assert path.read_text() == good + "# mine\n"
    run("render", one, "--force")
    assert path.read_text() == good


@pytest.mark.slow
def test_a_file_that_a_render_removes_is_told(folder: Path) -> None:
    one = write("one")
    run("render", one)
    extra = folder / "generated" / "one" / "extra.py"
    text = (folder / "generated" / "one" / "api.py").read_text()
    extra.write_text(text)
    assert "generated/one/extra.py: removed, no part of the package any more\n" in run("render", one).stdout
    extra.write_text(text + "# mine\n")
    refused = run("render", one, code=1).stderr
    assert "generated/one/extra.py: edited by hand, and no part of the package: it would be removed\n" in refused
    assert extra.exists()
    assert "extra.py: removed" in run("render", one, "--force").stdout and not extra.exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--html", "specs/one.yaml"], "--html would overwrite the spec"),
        (["--png", "a.png", "--html", "a.png"], "--html would overwrite --png"),
        (["--html", "a.svg", "--md", "a.md"], "--md's picture would overwrite --html"),
        (["--md", "mine.md"], "--md's picture would overwrite mine.svg, which is no picture of one"),
        (["--md", "a.svg"], "--md's picture would overwrite --md"),
        (["--md", "."], "is a directory"),
        (["--html", "nowhere/a.html"], "there is no folder nowhere"),
        (["--html", ""], "expected a file, got ''"),
        (["--png", "mine.jpg"], "expected a name that ends with .png"),
    ],
)
def test_explain_overwrites_nothing_of_the_users(options: list[str], message: str, folder: Path) -> None:
    one = write("one")
    (folder / "mine.svg").write_text("<svg/>")
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    result = run("explain", one, *options, code=2)
    assert message in result.stderr and result.stdout == ""
    assert before == {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.slow
def test_a_diff_of_nothing_is_no_difference(folder: Path) -> None:
    one, two = write("one"), write("two")
    run("render", one, two)
    Path(two).unlink()
    assert run("render", one, "--diff").stdout == ""


@pytest.mark.parametrize("arch", ["sm_91", "sm_75", "sm_999999", "gfx9zz", ""])
def test_an_architecture_that_nobody_knows(arch: str) -> None:
    result = run("inspect", "full", "--arch", arch, code=2)
    assert f"unknown architecture {arch!r}; expected some of sm_80, " in result.stderr


def test_a_spec_behind_a_broken_link(folder: Path) -> None:
    (folder / "specs" / "causal.yaml").symlink_to("nowhere.yaml")
    assert "specs/causal.yaml is a link that leads nowhere" in run("check", "specs/causal.yaml", code=2).stderr


def test_a_spec_in_its_folder_is_told_by_its_path(folder: Path) -> None:
    (folder / "specs" / "mine.yaml").write_text("name: mine\n")
    assert "(did you mean specs/mine.yaml?)" in run("check", "mine", code=2).stderr


def test_a_folder_in_place_of_a_spec_is_told_with_the_pattern_of_its_files() -> None:
    told = "Error: 'specs/' is neither a file nor a shipped variant: it is a folder; write specs/*.yaml\n"
    assert run("check", "specs/", code=2).stderr == told


def test_the_usage_comes_with_errors_of_usage_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "_driver", lambda: False)
    run("new", "mine")
    for files in ("new mine", "bench full", "check nowhere", "export gpt2_dropout --to flex"):
        told = run(*files.split(), code=2).stderr
        assert told.startswith("Error: ") and "Usage:" not in told
    for usage in ("new", "new my-attn", "render full --check --diff", "bench full --dtype x"):
        assert run(*usage.split(), code=2).stderr.startswith("Usage: ")


def test_a_name_that_no_file_can_have() -> None:
    assert "is neither a file nor a shipped variant" in run("check", "a" * 300, code=2).stderr


@pytest.mark.parametrize("text", ["²", "1" * 5000, "64:²"])
def test_numbers_that_are_none(text: str) -> None:
    assert "expected numbers from 1 to 576" in run("bench", "full", "--head-dim", text, code=2).stderr


@pytest.mark.parametrize(
    ("command", "name", "text", "why"),
    [("inspect", "causal", "513", "causal takes head sizes up to 512 there, got 513"),
     ("bench", "causal", "64,576:512", "causal takes head sizes up to 512 there, got 576"),
     ("tune", "deepseek_mla_absorbed", "576", "deepseek_mla_absorbed takes head sizes up to 512 there, got 576")],
)  # fmt: skip
def test_head_sizes_that_a_variant_does_not_take(command: str, name: str, text: str, why: str) -> None:
    assert why in " ".join(run(command, name, "--head-dim", text, code=2).stderr.split())


@pytest.mark.parametrize("command", ["tune", "profile"])
def test_an_option_is_called_by_its_name(command: str) -> None:
    assert "Invalid value for --length:" in run(command, "full", "--length", "0", code=2).stderr


def test_an_output_folder_that_is_a_file(folder: Path) -> None:
    (folder / "generated").write_text("mine")
    result = run("render", write("one"), code=2)
    assert "generated" in result.stderr
    assert "Traceback" not in result.stderr


def test_terms_beside_the_users_spec_come_first(folder: Path) -> None:
    terms = folder / "specs" / "terms"
    terms.mkdir()
    (terms / "near.yaml").write_text('name: near\nkind: mask\ndescription: A test.\nkeep: "abs(q - k) < 321"\n')
    run("render", write("one", "name: {name}\ndescription: A test.\nmask: [causal, near]\n"))
    assert "321" in (folder / "generated" / "one" / "reference.py").read_text()


def test_new_writes_a_spec_that_renders(folder: Path) -> None:
    assert "specs/mine.yaml" in run("new", "mine").stdout
    text = (folder / "specs" / "mine.yaml").read_text()
    assert text.startswith("name: mine\n")
    assert "#" in text
    run("render", "specs/mine.yaml")
    assert "temp" in (folder / "generated" / "mine" / "api.py").read_text()
    assert "exists already" in run("new", "mine", code=2).stderr
    assert (folder / "specs" / "mine.yaml").read_text() == text


@pytest.mark.parametrize("variant", sorted(resources.variants()))
def test_new_from_a_variant(variant: str, folder: Path) -> None:
    run("new", "mine", "--from", variant)
    run("check", "specs/mine.yaml")
    made = (folder / "specs" / "mine.yaml").read_text()
    known, mine = (yaml.safe_load(text) for text in (resources.variants()[variant].read_text(), made))
    citation, left = known.pop("citation", None), known.pop("group")
    assert mine == known | {"name": "mine"} and f"{left}\n" not in made
    assert citation is None or f"\n# citation: {citation}\n" in made


def test_new_from_a_file_keeps_a_long_citation_as_a_comment(folder: Path) -> None:
    text = "name: cited\ngroup:\n  Mine\ncitation: >\n  Attention (2017),\n\n  again\n# causal\nmask: [causal]"
    (folder / "cited.yaml").write_text(text)
    run("new", "mine", "--from", "cited.yaml")
    made = "name: mine\n# citation: >\n#   Attention (2017),\n\n#   again\n# causal\nmask: [causal]"
    assert (folder / "specs" / "mine.yaml").read_text() == made
    run("check", "specs/mine.yaml")


def test_new_from_a_file_with_a_mark_of_its_byte_order(folder: Path) -> None:
    (folder / "marked.yaml").write_bytes(b"\xef\xbb\xbfname: marked\nmask: [causal]\n")
    run("new", "mine", "--from", "marked.yaml")
    assert (folder / "specs" / "mine.yaml").read_bytes() == b"name: mine\nmask: [causal]\n"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"name: bad\ndescription: caf\xe9\n", "bad.yaml:2:1: error: this file is not UTF-8 text"),
        (b"", "bad.yaml:1:1: error: this file is empty"),
        (b"{name: bad, mask: [causal]}\n", "bad.yaml has no line that begins with `name:`"),
    ],
)
def test_new_from_a_file_that_tells_no_name(data: bytes, message: str, folder: Path) -> None:
    (folder / "bad.yaml").write_bytes(data)
    assert message in run("new", "mine", "--from", "bad.yaml", code=2).stderr
    assert files(folder) == {"bad.yaml"}


@pytest.mark.parametrize("name", ["../up", "a b", "class", "1st", "", "a.b", "é"])
def test_new_refuses_names_that_are_no_identifiers(name: str, folder: Path) -> None:
    run("new", name, code=2)
    assert files(folder) == set()


def test_list_shows_variants_and_terms() -> None:
    shown = run("list").stdout
    for name in ("rope_swa_softcap", "causal", "sliding_window", "softcap", "alibi"):
        assert any(line.split()[:1] == [name] and len(line.split()) > 1 for line in shown.splitlines()), name


def drawn(shown: str) -> list[str]:
    """The lines up to the end of a drawing, without the table of kernels that follows."""
    return shown.partition("\nKernels on Hopper GPUs")[0].splitlines()


def test_explain_shows_formula_derivative_and_tiles() -> None:
    shown = run("explain", write("one", LEARNED), "--shape", "64,64").stdout
    assert "score = score * temp" in shown
    assert "visible if k <= q" in shown
    assert "d score / d score = temp" in shown
    assert "d score / d temp = score" in shown
    rows = drawn(shown)[-64:]
    assert rows[0] == "  " + "#" + "." * 63
    assert rows[-1] == "  " + "#" * 64
    for wrong in ("64", "a,b", "0,4", "4,-1"):
        run("explain", "specs/one.yaml", "--shape", wrong, code=2)


def test_explain_tells_sinks_and_dropout() -> None:
    shown = run("explain", write("one", "name: {name}\ndescription: A test.\nsink: true\ndropout: true\n")).stdout
    assert "lse = log(exp(sinks) + exp(logsumexp of score over the visible keys))\n" in shown
    assert "out = sum of dropout(exp(score - lse)) * v\n" in shown


@pytest.mark.slow
def test_explain_chooses_lengths_that_show_the_mask(folder: Path) -> None:
    window = "name: {name}\ndescription: A test.\nmask: [sliding_window: {{size: 1024}}]\n"
    run("explain", write("one", window), "--html", "page.html")
    assert (
        'id="q_len" type="number" min="1" max="65536" step="1" required value="4096"' in Path("page.html").read_text()
    )
    run("explain", write("one"), "--html", "page.html")
    assert 'required value="1024"' in Path("page.html").read_text()


def test_explain_writes_one_page_that_needs_nothing_else(folder: Path) -> None:
    run("explain", write("one", "name: {name}\ndescription: A <b> & c.\nmask: [causal]\n"), "--html", "page.html")
    page = (folder / "page.html").read_text()
    assert "A &lt;b&gt; &amp; c." in page
    assert not any(word in page for word in ("http:", "https:", "src=", "href=", "@import", "url("))


def test_explain_writes_a_picture(folder: Path) -> None:
    one = write("one")
    if importlib.util.find_spec("matplotlib") is None:
        assert "pip install matplotlib" in run("explain", one, "--png", "tiles.png", code=2).stderr
    else:
        run("explain", one, "--png", "tiles.png")
        assert (folder / "tiles.png").read_bytes().startswith(b"\x89PNG")


PAGE = """name: {name}
description: A <b> | *c*.
citation: "X (2020), arXiv:2001.00001"
rope: {{layout: half, dims: 32}}
mask: [prefix_lm]
score: [alibi, expr: "score * temp"]
inputs: {{temp: {{axes: [head], grad: true}}}}
"""


def test_explain_writes_a_page_in_markdown_with_its_picture(folder: Path) -> None:
    (folder / "generated" / "one").mkdir(parents=True)
    (folder / "pages of mine").mkdir()
    for _ in range(2):  # the second time, it replaces its own picture
        run("explain", write("one", PAGE), "--md", "pages of mine/page.md")
    assert files(folder / "pages of mine") == {"page.md", "page.svg"}
    page = (folder / "pages of mine" / "page.md").read_text(encoding="utf-8")
    assert "\n# one\n" in page
    assert r"A \<b\> \| \*c\*." in page
    assert "[arXiv:2001.00001](https://arxiv.org/abs/2001.00001)" in page
    assert "[`specs/one.yaml`](../specs/one.yaml); rendered: [`generated/one`](../generated/one)." in page
    assert f"```yaml\n{PAGE.format(name='one')}```\n" in page
    assert "](page.svg)\n" in page
    assert "1024 queries downwards, 1024 keys to the right\n" in page
    assert "prefix_len = k_len // 4 = 256" in page
    assert "\nout = attention(q, k, v, cos=cos, sin=sin, prefix_len=prefix_len, temp=temp)\n" in page
    assert "    slopes: torch.Tensor | None = None,\n" in page
    assert "| `cos` | (positions, 32 / 2) |" in page
    assert "| `prefix_len` | int (B,) | keys of the prefix |" in page
    assert "| `temp` | (Hq,) | learned |" in page
    assert "d score / d temp = score" in page
    assert "visible if k <= q or k < prefix_len" in page
    picture = (folder / "pages of mine" / "page.svg").read_text(encoding="utf-8")
    assert picture.startswith("<svg ")
    assert "The mask of one for 1024 queries and 1024 keys" in picture


def test_the_tiles_that_values_rule_out_are_told(folder: Path) -> None:
    for variant, told in {"llama3_documents": " q_segments and k_segments ", "tree_decoding": "", "mpt": ""}.items():
        shown = run("explain", variant).stdout
        assert (f"less the tiles that the values of{told}" in shown) == bool(told)


def test_a_page_in_markdown_takes_the_shape_that_is_given(folder: Path) -> None:
    run("explain", write("one"), "--md", "page.md", "--shape", "32,64")
    page = (folder / "page.md").read_text(encoding="utf-8")
    assert "32 queries downwards, 64 keys to the right\n" in page
    # nothing was rendered, and files elsewhere get no link
    assert "Spec: [`specs/one.yaml`](specs/one.yaml).\n" in page
    run("explain", "causal", "--md", "causal.md")
    assert "Spec: `specs/causal.yaml`.\n" in (folder / "causal.md").read_text(encoding="utf-8")


def test_a_page_in_markdown_must_not_stand_where_its_picture_does(folder: Path) -> None:
    assert "--md" in run("explain", write("one"), "--md", "page.svg", code=2).stderr
    run("explain", "specs/one.yaml", "--md", "nowhere/page.md", code=2)
    assert files(folder) == {"specs/one.yaml"}


def test_the_help_tells_the_exit_codes() -> None:
    shown = run("--help").stdout
    assert all(f"{code} {meaning}" in " ".join(shown.split()) for code, meaning in program.EXIT_CODES.items())


def test_a_command_that_is_interrupted_found_no_difference(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(emit, "survey", interrupt)
    shown = run("render", write("one"), "--check", code=program.INTERRUPTED)
    assert (shown.stdout, shown.stderr) == ("", "\ninterrupted\n")


def unread(*arguments: str) -> tuple[int, str]:
    """The exit code and messages of a command whose output goes into a closed pipe."""
    reader, writer = os.pipe()
    os.close(reader)
    env = os.environ | {"PYTHONPATH": str(Path(attnforge.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-m", "attnforge", *arguments], stdout=writer, stderr=subprocess.PIPE, env=env
    )
    os.close(writer)
    return done.returncode, done.stderr.decode()


@pytest.mark.parametrize("arguments", ["list", "check causal", "--help", "list --help", "--version"])
def test_a_command_whose_output_nobody_reads_ends_as_other_programs_do(arguments: str) -> None:
    assert unread(*arguments.split()) == (program.UNREAD, "")


@pytest.mark.slow
def test_a_table_that_nobody_reads(folder: Path) -> None:
    assert unread("inspect", "flash1", "--arch", "sm_80") == (program.UNREAD, "")


def closed(redirections: str, *arguments: str) -> tuple[int, str]:
    """The exit code and output of a command that a shell starts without some of its standard streams."""
    env = os.environ | {"PYTHONPATH": str(Path(attnforge.__file__).parents[1])}
    command = ["sh", "-c", f'exec "$@" {redirections}', "sh", sys.executable, "-m", "attnforge", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    return done.returncode, done.stdout


def test_without_standard_error_a_command_ends_as_ever(folder: Path) -> None:
    """Messages do not end up among the results instead."""
    write("bad", "name: {name}\nmusk: [causal]\n")
    for arguments in (("check", "specs/bad.yaml"), ("check", "specs/none.yaml"), ("bogus",)):
        for redirections in ("2>&-", "<&- >&- 2>&-"):
            assert closed(redirections, *arguments) == (program.WRONG_INPUT, "")


def test_where_there_is_no_room_for_a_message_the_exit_code_tells(folder: Path) -> None:
    write("bad", "name: {name}\nmusk: [causal]\n")
    for arguments in (("check", "specs/bad.yaml"), ("check", "specs/none.yaml"), ("bogus",), ("check", "--bogus")):
        assert closed("2>/dev/full", *arguments) == (program.WRONG_INPUT, "")
    assert closed("2>/dev/full", "check", "causal")[0] == 0
    for arguments in (("list",), ("--help",), ("list", "--help"), ("--version",)):
        assert closed(">/dev/full 2>/dev/full", *arguments) == (program.WRONG_INPUT, "")
    run("render", write("mine"))
    (folder / "generated/mine/__init__.py").write_text("edited")
    assert closed("2>/dev/full", "render", "specs/mine.yaml") == (program.DIFFERENT, "")


@pytest.mark.slow
@pytest.mark.parametrize("redirections", ["2>&-", ">&- 2>&-"])
def test_without_standard_error_kernels_compile(redirections: str, folder: Path) -> None:
    assert closed(redirections, "inspect", "flash1", "--arch", "sm_80")[0] == 0


GIVEN = """name: {name}
mask:
  - expr: "k < clean if h < 2 else k <= q"
  - segments
inputs:
  clean: {{axes: [], dtype: int, min: 1}}
"""


@pytest.mark.slow
def test_explain_takes_numbers_and_a_head(folder: Path) -> None:
    one = write("one", GIVEN)
    shown = run("explain", one, "--shape", "64,64", "--with", "clean=3", "--with", "documents=1").stdout
    assert "sample: clean = 3; q_segments: 1 documents of equal length; " in shown
    assert drawn(shown)[-64:] == ["  ###" + "." * 61] * 64
    shown = run("explain", one, "--shape", "64,64", "--with", "documents=1", "--head", "2").stdout
    assert "head 2" in shown and drawn(shown)[-1] == "  " + "#" * 64
    assert drawn(shown)[-64] == "  #" + "." * 63
    # these options only affect drawings, so one is made
    assert "1024 queries downwards" in run("explain", one, "--with", "clean=3").stdout
    run("explain", one, "--with", "clean=7", "--html", "page.html", "--shape", "64,64")
    assert "numbers: (qLen, kLen) => [0, 7, 5]" in (folder / "page.html").read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--with", "cleen=3"],
            "unknown number 'cleen' (did you mean 'clean'?): the mask of one takes clean, documents",
        ),
        (["--with", "clean=a"], "clean: expected a whole number from 1 to 268435456, got 'a'"),
        (["--with", "clean=0"], "clean: expected a whole number from 1 to 268435456, got '0'"),
        (["--with", "clean"], "clean: expected a whole number from 1 to 268435456, got ''"),
        (["--with", "clean=3", "--with", "clean=4"], "clean: expected one number, got several"),
        (["--head", "-1"], "-1 is not in the range"),
    ],
)
def test_numbers_that_no_mask_takes(options: list[str], message: str) -> None:
    assert message in run("explain", write("one", GIVEN), *options, code=2).stderr


def test_a_head_of_a_mask_that_all_heads_share() -> None:
    assert "is the same for all query heads" in run("explain", write("one"), "--head", "1", code=2).stderr


def test_long_formulas_are_wrapped_and_choices_of_equals_are_none() -> None:
    for variant in ("t5_decoder", "longformer"):
        parts = run("explain", variant).stdout.split("\n\n")
        others = [part for part in parts if not part.startswith(kernels.TITLE)]  # a table may be wider
        assert len(others) == len(parts) - 1
        assert max(len(line) for part in others for line in part.splitlines()) <= 124
    shown = run("explain", write("one", 'name: {name}\nmask:\n  - expr: "k < (q if h < 2 else q)"\n')).stdout
    assert "  visible if k < q\n" in shown


def test_explain_draws_what_the_numbers_of_a_mask_need() -> None:
    path = write("one", "name: {name}\nmask: [causal, {{sliding_window: {{size: 700}}}}]\n")
    assert "4096 queries downwards, 4096 keys to the right\n" in run("explain", path).stdout
    assert "300 queries downwards, 500 keys to the right\n" in run("explain", path, "--shape", "300,500").stdout


@pytest.mark.parametrize("variant", sorted(resources.variants()))
def test_explain_takes_every_variant(variant: str) -> None:
    assert run("explain", variant, "--shape", "300,500").stdout.startswith(f"{variant}: ")


def test_schema_is_json_schema() -> None:
    schema = json.loads(run("schema").stdout)
    assert {"mask", "score", "inputs"} <= set(schema["properties"])


def test_test_runs_the_suite(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    seen: list[Any] = []

    def fake(packages: list[emit.Package], **options: Any) -> int:
        seen.append(([p.name for p in packages], options))
        return 1

    monkeypatch.setattr(suites, "run", fake)
    run("test", write("one"), "--cpu", "-k", "values and not h4", "-n", "3", code=1)
    assert seen == [(["one"], {"cpu": True, "only": "values and not h4", "processes": 3})]
    assert not (folder / "generated").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("body", "code"), [("assert True", 0), ("assert False", 1), ("import nothing_like_it", 1)])
def test_test_gives_the_outcome_of_the_suite(
    body: str, code: int, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from attnforge.render import header

    # settings of other tests, in the folder for temporary files
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "conftest.py").write_text("import nothing_like_it")
    text = header.stamp(header.write("specs/one.yaml") + f"def test_it():\n    {body}\n")
    made = emit.Package("one", "specs/one.yaml", Path("specs/one.yaml"), {"__init__.py": text, "test_one.py": text})
    assert suites.run([made], cpu=True) == code
    assert "test_one.py" in capfd.readouterr().out


def package(*tests: str) -> emit.Package:
    """A package whose suite has passing tests with these names."""
    from attnforge.render import header

    body = "".join(f"def {name}():\n    pass\n" for name in tests)
    text = header.stamp(header.write("specs/one.yaml") + body)
    return emit.Package("one", "specs/one.yaml", Path("specs/one.yaml"), {"__init__.py": text, "test_one.py": text})


@pytest.mark.slow
def test_test_runs_the_tests_that_match_in_processes(capfd: pytest.CaptureFixture[str]) -> None:
    assert suites.run([package("test_that", "test_this")], cpu=True, only="not this", processes=2) == 0
    out = capfd.readouterr().out
    assert "1 passed" in out and "2 workers" in out


@pytest.mark.parametrize(("only", "why"), [("those", "no test's name matches"), ("a b", "pytest does not understand")])
def test_test_without_a_test_to_run(only: str, why: str) -> None:
    with pytest.raises(click.BadParameter, match=f"{why} '{only}'"):
        suites.run([package("test_that")], cpu=True, only=only)


def test_processes_need_a_plugin_of_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "xdist" else find(name))
    with pytest.raises(click.UsageError, match="-n needs pytest-xdist: pip install pytest-xdist"):
        suites.run([package("test_that")], cpu=True, processes=2)


def test_faults_of_the_program_are_told_apart(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    def fail(*given: object) -> dict[str, str]:
        raise render.TemplateFault("template host/api.py.jinja, line 3: 'x' is undefined")

    monkeypatch.setattr(render, "render", fail)
    result = run("render", write("one"), code=3)
    assert "error: attnforge itself failed: TemplateFault: template host/api.py.jinja, line 3" in result.stderr
    assert result.stdout == ""
    assert not (folder / "generated").exists()


def test_a_template_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    templates = tmp_path / "templates"
    templates.mkdir()
    (templates / "undefined.jinja").write_text("{{ header }}\n{{ nothing.here }}\n")
    (templates / "syntax.jinja").write_text("{{ header }}\n\n{% if %}\n")
    (templates / "python.jinja").write_text("{{ header }}\nx = 1\ndef (:\n")
    monkeypatch.setattr(resources, "templates", lambda: templates)
    render._environment.cache_clear()
    try:
        with pytest.raises(render.TemplateFault, match=r"template undefined\.jinja, line 2: UndefinedError"):
            render._python("undefined.jinja", {"header": "# x"})
        with pytest.raises(render.TemplateFault, match=r"template syntax\.jinja, line 3"):
            render._python("syntax.jinja", {"header": "# x"})
        with pytest.raises(format.Unformattable, match=r"template python\.jinja .*(?s:.)*>    3 def \(:"):
            render._python("python.jinja", {"header": "# x"})
    finally:
        render._environment.cache_clear()


def test_version() -> None:
    assert run("--version").stdout.startswith("attnforge, version ")
