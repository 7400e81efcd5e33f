"""The GPUs that a spec has kernels for."""

from __future__ import annotations

from ..source.errors import Problems
from ..source.fields import words
from ..source.located_yaml import Value

TARGETS = ("portable", "hopper")


def read(value: Value | None, problems: Problems) -> tuple[str, ...]:
    """The targets that a spec asks for, by default all; reports unknown ones."""
    if value is None:
        return TARGETS
    found = {word for word, _ in words(value, "target", TARGETS, problems)}
    # calls that the kernels for Hopper GPUs do not support run on the portable ones
    return TARGETS if "hopper" in found else tuple(found)
