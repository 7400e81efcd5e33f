"""Code that packages share is that of each package."""

from __future__ import annotations

import inspect
from pathlib import Path

import recompiling
import unrewritten

TEXT = """\
def outer():
    def inner():
        return VALUE
    return inner
VALUE = __file__
"""


def test_files_of_the_same_text_share_their_code_but_not_their_place(tmp_path: Path) -> None:
    found, before = [], recompiling._compiled.cache_info()
    for name, text in (("of_one", TEXT), ("of_two", TEXT), ("of_three", TEXT + "VALUE = 3\n")):
        (tmp_path / f"{name}.py").write_text(text)
        module = unrewritten.module(tmp_path, name)
        inner = module.outer()
        assert {inspect.getfile(x) for x in (module.outer, inner)} == {str(tmp_path / f"{name}.py")}
        found.append(inner())
    assert found == [str(tmp_path / "of_one.py"), str(tmp_path / "of_two.py"), 3]
    after = recompiling._compiled.cache_info()
    assert (after.misses - before.misses, after.hits - before.hits) == (2, 1)
    assert not list(tmp_path.rglob("*.pyc"))
