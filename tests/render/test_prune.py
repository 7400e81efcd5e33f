"""What no kernel reads is not rendered, and nothing else goes."""

from __future__ import annotations

from attnforge.render import prune

KERNEL = '''
@triton.jit
def forward(ptr, count):
    """Says what it does."""
    # a comment stays
    first = 1
    second = first + (
        count
    )
    third = second * 2
    place = tl.arange(0, 16)
    if count > 1:
        place = place + 1
        third = 3
    a, b = 1, 2
    tl.store(ptr + place, a)


def other(third):
    return third
'''


def test_what_is_never_read_goes_with_all_that_led_to_it() -> None:
    gone = (
        "    first = 1\n",
        "    second = first + (\n        count\n    )\n",
        "    third = second * 2\n",
        "        third = 3\n",
    )
    wanted = KERNEL
    for lines in gone:
        assert lines in wanted
        wanted = wanted.replace(lines, "")
    assert prune.unread(KERNEL) == wanted
    assert prune.unread(wanted) == wanted
