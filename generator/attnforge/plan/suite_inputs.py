"""How suites draw the arguments of a call, and which changes of them their tests try."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..expressions.inputs import ROW_AXES, Input, RuntimeOption
from ..language.spec import Spec
from . import running_sums, storage, tile_ranges
from .arguments import Argument
from .statements import names

_SIZES = {
    "B": "len(case.q_lens)",
    "S": "len(case.q_lens)",
    "Tq": "case.q_lens[0]",
    "Tk": "case.k_lens[0]",
    "Nq": "sum(case.q_lens)",
    "Nk": "sum(case.k_lens)",
    "Hq": "case.Hq",
    "Hkv": "case.Hkv",
    "longest": "max(case.k_lens)",
    # names in the texts of defaults
    "heads": "case.Hq",
    "device": "checks.DEVICE",
    "dtype": "torch.float32",
}


def sample(argument: Argument, shape: str, spec: Spec) -> str:
    """Text of one argument's values, inside its limits."""
    if argument.name in ("cos", "sin"):
        return f"angles.{argument.name}()"
    if argument.name == "positions":
        return f"make.integers({shape}, longest + 3)"
    if argument.name == "dropout_p":
        return "0.25"
    if argument.dtype == "bool":
        return "True" if argument.kind == "scalar" else f"make.bools({shape})"
    if argument.kind == "scalar":
        return str(sizing(spec).get(argument.name) or between(argument, 17 if argument.dtype == "int" else 0.25))
    by_row = any(axis.kind in ROW_AXES for axis in argument.axes)
    if argument.dtype == "int":
        return _integers(argument, shape, few=by_row and argument.name not in tile_ranges.compared(spec))
    text = _floats(argument, shape, by_row)
    return f"checks.as_operand({text}, case)" if argument.pairs else text


def sizing(spec: Spec) -> dict[str, int]:
    """The values of a call's numbers that determine sizes of axes: divisors for a few batch entries."""
    named = {name for given in spec.inputs for name in given.numbers}
    return {given.name: int(between(given, 2)) for given in spec.inputs if given.name in named}


def sized(given: Input, spec: Spec) -> Input:
    """The input with these values in place of the names."""
    return given.filled(sizing(spec))


def sizes(samples: Iterable[str], spec: Spec) -> dict[str, str]:
    """The sizes of a case that the texts of samples name, with their own texts."""
    named = names(*samples) | ({"longest"} if spec.rope else set())
    return {name: text for name, text in _SIZES.items() if name in named}


def narrowed(broad: Mapping[str, tuple[int, ...]]) -> list[tuple[str, tuple[int, ...]]]:
    """Inputs and their axes that tests give a size of 1: each that may have it, and all of them."""
    return [(name, some) for name, axes in broad.items() for some in dict.fromkeys((*((i,) for i in axes), axes))]


def summed(spec: Spec) -> list[tuple[str, int]]:
    """The inputs whose running sums kernels read, and the axis of their tokens in a call's tensors."""
    kept = storage.of(spec).kept
    return [(x.name, [axis.kind for axis in kept(x)].index("token")) for x in spec.inputs if x.scan]


def large(spec: Spec) -> list[tuple[str, int, list[int], float]]:
    """The same, with tokens and a large value for them, after which sums have to be exact.

    The value of the first token is part of all sums. A later value is left out of them if it begins a document;
    otherwise the sums of its tile are far apart, and only as exact as large numbers are.
    """
    given, found = {x.name: x for x in spec.inputs}, []
    for name, axis in summed(spec):
        resets = running_sums.largest_reset(spec, given[name])
        values = [([0], -3000.0), *([([3, 40], -1e9)] if resets >= -1e9 else [])]
        found += [(name, axis, *value) for value in values if between(given[name], value[1]) == value[1]]
    return found


def between(argument: Argument | Input | RuntimeOption, value: float) -> float:
    """The value, clamped to the limits."""
    low = value if argument.minimum is None else max(argument.minimum, value)
    return low if argument.maximum is None else min(argument.maximum, low)


def _integers(argument: Argument, shape: str, few: bool) -> str:
    """Integers out of a few, so that some are equal, or out of as many as there are positions."""
    low = int(between(argument, 0))
    high = None if argument.maximum is None else int(argument.maximum)
    if few:
        end = str(low + 3 if high is None else min(low + 3, high + 1))
    else:
        end = f"longest + {low + 1}" if high is None else f"min(longest + {low + 1}, {high + 1})"
    return f"make.integers({shape}, {end}{f', {low}' if low else ''})"


def _floats(argument: Argument, shape: str, by_row: bool) -> str:
    low, high = argument.minimum, argument.maximum
    if low is not None and high is not None:
        return f"make.between({shape}, {low}, {high})"
    if argument.scan:
        return f"make.decays({shape})"
    if argument.default:
        return f"{argument.default} * (1 + make.floats({shape}) / 8)"
    beyond = "" if low is None and high is None else ".abs()"
    # values that all rows share may be multiplied by a distance: large ones would leave a softmax of one key
    text = f"make.floats({shape}){beyond}{'' if by_row else ' / 8'}"
    if low is not None:
        return f"{low} + {text}" if low else text
    return f"{high} - {text}" if high is not None else text
