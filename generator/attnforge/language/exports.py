"""The key `exports`: further files of a package, and why some specs cannot have them."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from ..expressions.inputs import Input
from ..source.errors import Problems, near
from ..source.located_yaml import Value
from .algorithm import Algorithm

EXPORTS = ("decode",)
# keywords of `attend_with_cache` and `append` beside those of `attention`
_OF_DECODING = frozenset(
    (
        "k_cache",
        "v_cache",
        "k_new",
        "v_new",
        "seq_lens",
        "page_table",
        "slot_mapping",
        "workspace",
        "out",
        "k_scale",
        "v_scale",
    )
)


def read(
    value: Value | None,
    keywords: Collection[str],
    inputs: Collection[Input],
    dropout: bool,
    algorithm: Algorithm,
    problems: Problems,
) -> tuple[str, ...]:
    """The exports that a spec asks for; tells those that it cannot have, and why."""
    if value is None:
        return ()
    if value.mapping or not isinstance(value.data, list) or not value.data:
        problems.add(value.at, f"exports: expected a list such as [decode], got {value.raw or value.kind}")
        return ()
    found = []
    for item in value.items():
        if item.data not in EXPORTS:
            word = item.raw or item.kind
            problems.add(item.at, f"unknown export {word!r}{near(word, EXPORTS)}")
        elif item.data in found:
            problems.add(item.at, f"{item.data} stands twice")
        else:
            found.append(str(item.data))
            for why in _no_decoding(keywords, inputs, dropout, algorithm):
                problems.add(item.at, f"decode: {why}")
    return tuple(found)


def _no_decoding(
    keywords: Collection[str], inputs: Collection[Input], dropout: bool, algorithm: Algorithm
) -> Iterator[str]:
    """Why there is no decoding of a spec."""
    for name in sorted(_OF_DECODING.intersection(keywords)):
        yield f"{name!r} is a keyword that decoding has anyway; call the input otherwise"
    if not algorithm.backward:
        yield f"the algorithm {algorithm.name} is an earlier order of the whole forward pass; leave algorithm out"
    if dropout:
        yield "dropout is for training; decode with a spec that leaves dropout out"
    for given in inputs:
        if given.scan:
            why = "needs the running sum of every cached token, which a cache does not hold"
            yield f"{given.name} is summed over tokens: that {why}"
