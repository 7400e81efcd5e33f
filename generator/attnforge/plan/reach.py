"""How far back a mask lets queries see, as far as the host can tell from numbers of a call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from ..expressions.evaluation import evaluate
from ..expressions.linear_forms import Linear, atom, linear, variable
from ..expressions.tree import Node
from ..language.spec import Spec
from ..printing import printers
from . import tile_ranges

EVERYTHING = "2**28"  # no sequence is longer


@dataclass(frozen=True)
class Reach:
    """The host's texts of how many keys before its own position a query may see, and how many first keys besides."""

    reach: str = EVERYTHING
    first_keys: str = "0"
    numbers: tuple[str, ...] = ()  # the call's numbers that these texts read
    forms: tuple[Linear, ...] = field(default=(), compare=False)  # `reach` is the largest of these

    @property
    def known(self) -> bool:
        """Whether numbers determine the reach; else tensors limit what queries see, or nothing does."""
        return self.reach != EVERYTHING

    def of(self, numbers: Mapping[str, float]) -> int:
        """The value of `reach`."""
        return max([0, *(int(evaluate(form.node(), numbers)) for form in self.forms)])


def hides_early_keys(spec: Spec) -> bool:
    """True if a mask hides keys before a query, judging by its formula."""
    return not all(_shows_all_before(mask.keep) for mask in spec.masks)


def _shows_all_before(keep: Node) -> bool:
    if keep.op in ("and", "or"):
        return (all if keep.op == "and" else any)(map(_shows_all_before, keep.args))
    if keep.op not in ("<=", ">="):
        return False
    early, late = keep.args if keep.op == "<=" else reversed(keep.args)
    return linear(early) - linear(late) == linear(variable("k")) - linear(variable("q"))


def build(spec: Spec) -> Reach:
    """The reach of a spec's mask; everything if only tensors limit it, or nothing does."""
    scalars, reaches, heads = numbers(spec), list[Linear](), list[Linear]()
    for span in tile_ranges.spans(spec, "k"):
        reach = _first(span.lo, "max", lambda form: _known(atom(variable("q_first")) - form, scalars))
        head = _first(span.hi, "min", lambda form: _known(form, scalars))
        if reach is not None:
            reaches.append(reach)
        elif head is not None:
            heads.append(head)
        else:
            return Reach()
    read = {str(part.value) for form in (*reaches, *heads) for part, _ in form.terms}
    return Reach(_text(reaches), _text(heads), tuple(name for name in given(spec) if name in read), tuple(reaches))


def given(spec: Spec) -> Iterable[str]:
    """The names of all that a call gives besides queries, keys and values, in order."""
    return (*(o.keyword for o in spec.options), *(i.name for i in spec.inputs))


def numbers(spec: Spec) -> set[str]:
    """The names of those arguments that are plain numbers."""
    return {o.keyword for o in spec.options} | {i.name for i in spec.inputs if not i.axes}


def _known(form: Linear, scalars: set[str]) -> Linear | None:
    """The form, or an upper bound, if the call's numbers determine it; a quotient rounds off less than its divisor."""
    for part, factor in form.terms:
        divisor = part.args[1].value if part.op == "//" and part.args[1].op == "num" else None
        if isinstance(divisor, int) and divisor > 0 and factor < 0 and factor % divisor == 0:
            least = linear(part.args[0]) + (1 - divisor)
            form = form.without(part) + least * (factor // divisor)
    host = all(part.type == "int" and str(part.value) in scalars and not part.args for part, _ in form.terms)
    return form if host else None


def _first(end: Node | None, extreme: str, find: Callable[[Linear], Linear | None]) -> Linear | None:
    """The first form that `find` returns for an end, or for one of the ends of which it is the extreme."""
    if end is None:
        return None
    found = (find(linear(x)) for x in (end.args if end.op == extreme else (end,)))
    return next((form for form in found if form is not None), None)


def _text(forms: list[Linear]) -> str:
    least = max([0, *(form.constant for form in forms if not form.terms)])
    texts = [printers.torch(form.node(), lambda node: str(node.value)) for form in forms if form.terms]
    return f"max({', '.join((str(least), *dict.fromkeys(texts)))})" if texts else str(least)
