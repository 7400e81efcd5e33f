"""The GPUs that a spec has kernels for."""

from __future__ import annotations

from ..source.errors import Problems, near
from ..source.located_yaml import Value

TARGETS = ("portable", "hopper")


def read(value: Value | None, problems: Problems) -> tuple[str, ...]:
    """The targets that a spec asks for, or all; tells those that there are not."""
    if value is None:
        return TARGETS
    if value.mapping or not isinstance(value.data, list) or not value.data:
        problems.add(value.at, f"targets: expected a list such as [portable], got {value.raw or value.kind}")
        return TARGETS
    found: list[str] = []
    for item in value.items():
        if item.data in found:
            problems.add(item.at, f"{item.data} stands twice")
        elif item.data in TARGETS:
            found.append(str(item.data))
        else:
            word = item.raw or item.kind
            problems.add(item.at, f"unknown target {word!r}{near(word, TARGETS)}")
    if found == ["hopper"]:
        problems.add(value.at, "targets: what these kernels do not run, portable ones do: [portable, hopper]")
    return tuple(found)
