"""The range of scores for which the terms of a spec are defined, and random queries and keys with such scores."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..source.errors import Problems
from ..source.fields import Fields
from ..source.located_yaml import Value

# width of the range if only one limit is given, and the share of it that is used, so that rounded scores stay inside
_REACH, _SHARE = 4.0, 0.9


@dataclass(frozen=True)
class Domain:
    """The scores, `scale * (q . k)`, for which the first term is defined."""

    minimum: float | None
    maximum: float | None

    @property
    def limits(self) -> tuple[float, float]:
        """The limits of random scores."""
        if self.minimum is None:
            assert self.maximum is not None
            return self.maximum - _REACH, self.maximum
        return self.minimum, self.minimum + _REACH if self.maximum is None else self.maximum

    @property
    def held(self) -> tuple[float, float]:
        """The last columns of q and of k, times the root of the scale: their product is the middle of the range."""
        middle = sum(self.limits) / 2
        root = math.sqrt(abs(middle))
        return root, math.copysign(root, middle)

    @property
    def length(self) -> float:
        """The norm of the other columns, times the root of the scale: their product stays within the limits."""
        low, high = self.limits
        return math.sqrt(_SHARE * (high - low) / 2)


def read(value: Value | None, scored: bool, problems: Problems) -> Domain | None:
    """Reads the key `domain`; `scored`: whether the spec has a list of score terms."""
    if value is None:
        return None
    fields = Fields(value, ("min", "max"), problems)
    before = len(list(problems))
    low, high = fields.limits("float")
    if value.mapping and not fields.found:
        problems.add(value.at, "domain: expected min, max or both, such as {min: 0.1}")
    elif low is not None and low == high:
        problems.add(fields.found["max"].at, f"max: expected more than min, {low}, got {high}")
    elif not scored:
        problems.add(value.at, "domain says which scores make sense: it needs a list of terms under `score`")
    return Domain(low, high) if fields.found and len(list(problems)) == before else None
