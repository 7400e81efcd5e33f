"""Text is formatted part by part, with the result that black gives for the whole."""

from __future__ import annotations

import black
import pytest

from attnforge.language import spec
from attnforge.render import format, render
from attnforge.source import resources

TEXTS = {
    "nothing": "",
    "no function": "x = [1,2]\ny = {  }\n",
    "functions": "import os\n\ndef f( x ):\n  return x\ndef g(y) :\n\n    return y\n\n\n\n\nz=f(1)\n# h\ndef h(): 0\n",
    "a comment above, apart": "def f(): pass\n# apart\n\ndef g(): pass\n",
    "decorators": "class A:\n  x=1\n@dec\n@mark(\n  [1,2],\n)\n# why\ndef g(): pass\n@dec\nclass B: pass\n",
    "not touched": "import os\n\ndef f(\n  a,b\n):  # fmt: skip\n  pass\n\n\ndef g(\n  a,b\n):  # fmt: skip\n  pass\n",
    "a string": 'def f(): pass\nx = """\ndef g( x ):\nclass\n"""\ndef h( x ): return """\n@\ndef i(): pass\n"""\n',
    "a trailing comma": "def f(a,): return g(a,\n  b,)\ndef g(a,b): return f((a,b,),)\n",
}


@pytest.mark.parametrize("case", TEXTS)
def test_parts_are_the_whole(case: str) -> None:
    assert format.python(TEXTS[case], "of this test") == black.format_str(TEXTS[case], mode=format._MODE)


def test_a_package_is_as_black_makes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, str] = {}

    def noted(text: str, template: str) -> str:
        return seen.setdefault(text, python(text, template))

    python = format.python
    monkeypatch.setattr(format, "python", noted)
    path = resources.variants()["flash1"]
    render.render(spec.load(path, terms=resources.terms_for(path)))
    assert len(seen) > 7
    for text, made in seen.items():
        assert made == black.format_str(text, mode=format._MODE)


def test_what_specs_share_is_formatted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []
    format_str = black.format_str
    monkeypatch.setattr(black, "format_str", lambda text, mode: taken.append(text) or format_str(text, mode=mode))
    same = "@mark(\n  1\n)\n# why\ndef of_this_test_alone( x ):\n    return x\n"
    for head in ("first", "second"):
        format.python(f"x = '{head}'\ndef f(): pass\n{same}", "of this test")
    assert sum(same in text for text in taken) == 1


def test_an_error_tells_its_line_of_the_whole_text() -> None:
    with pytest.raises(format.Unformattable, match=r"(?s)template of.jinja .* at line 6 .*>    6     return x \+$"):
        format.python("def f():\n    pass\n\n\ndef g():\n    return x +\n", "of.jinja")
