"""Random specs, the same for a seed on every machine, and their packages.

`python tests/random_specs.py --count 2000 --out FOLDER` renders packages for a machine that cannot; `--errors FILE`
prints how close their suites came to failing.
"""

from __future__ import annotations

import argparse
import ast
import functools
import json
import re
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import unrewritten
from random_inputs import Declared, Draw, Text, binary, opposite
from random_scores import Scores
from random_values import visible

# the share of a random sample of pairs that masks have to leave visible, unless they hide on purpose
LEAST_VISIBLE = 0.15


@dataclass(frozen=True)
class Sizes:
    """Options of shipped terms that have to be the same in a whole spec."""

    block: int
    buckets: tuple[int, int, bool]

    @property
    def inputs(self) -> tuple[Declared, ...]:
        """The inputs of shipped terms."""
        block_mask = Declared("block_mask", ("batch", "head", f"query // {self.block}", f"key // {self.block}"), "bool")
        return (*SHIPPED, block_mask, Declared("rel_bias", ("head", str(self.buckets[0]))))


SHIPPED = (
    Declared("prefix_len", ("batch",), "int"),
    Declared("q_segments", ("batch", "query"), "int"),
    Declared("k_segments", ("batch", "key"), "int"),
    Declared("tree_mask", ("batch", "query", "query"), "bool"),
    Declared("slopes", ("head",)),
    Declared("log_decay", ("batch", "token", "head"), scan=True),
    Declared("bias", ("batch", "head", "query", "key")),
)
# masks and their expressions; options have a keyword, for calls that choose the number, and numbers
ShippedMask = tuple[str, str, dict[str, tuple[str, tuple[int, ...]]]]
MASKS: tuple[ShippedMask, ...] = (
    ("causal", "k <= q", {}),
    ("causal", "k <= q", {}),
    ("sliding_window", "q - k < {size}", {"size": ("window", (1, 3, 17, 32, 33))}),
    ("chunked", "k <= q and k // {size} == q // {size}", {"size": ("chunk_size", (1, 5, 16, 33))}),
    ("dilated", "(q - k) % {stride} == 0", {"stride": ("dilation", (1, 2, 3))}),
    ("global_tokens", "q < {count} or k < {count}", {"count": ("global_count", (0, 2, 32, 35))}),
    (
        "local_2d",
        "abs(q // {width} - k // {width}) <= {radius} and abs(q % {width} - k % {width}) <= {radius}",
        {"width": ("image_width", (5, 8, 32)), "radius": ("image_radius", (1, 3, 4))},
    ),
    ("prefix_lm", "k <= q or k < prefix_len", {}),
    ("segments", "q_segments == k_segments", {}),
)


@dataclass(frozen=True)
class Term:
    """A term as in YAML, and as the plain expression that it is short for."""

    yaml: str
    text: Text


@dataclass(frozen=True)
class RandomSpec:
    """A spec, and its masks and scores as Python understands them."""

    name: str
    yaml: str
    masks: tuple[str, ...] = ()
    scores: tuple[str, ...] = ()
    inputs: tuple[Declared, ...] = ()  # including those of shipped terms
    sink: bool = False


def generate(seed: int) -> RandomSpec:
    """The spec for a seed."""
    draw = Draw(f"spec {seed}")
    packed, equal, sink, dropout = (draw.chance(p) for p in (0.4, 0.25, 0.15, 0.1))
    head = [line for line, on in zip(HEAD, (packed, equal, sink, dropout), strict=True) if on]
    if draw.chance(0.15):
        head.append(
            f"rope: {{layout: {draw.pick(('half', 'interleaved'))}, dims: {draw.pick(('all', '2', '8', '16'))}}}"
        )
    limits, parts = Draw(f"domain {seed}"), Draw(f"let {seed}")
    domain = limits.pick(("{min: 0.5}", "{min: -3, max: 1.5}", "{max: 2}")) if limits.chance(0.1) else ""
    sizes = Sizes(draw.pick((4, 16, 32, 40)), draw.pick(((32, 128, True), (8, 32, False), (6, 20, True))))
    count = 3 + draw.below(4)
    ordinary, hidden = draw.below(count + 1), draw.chance(0.06)
    for attempt in range(50):
        scores = Scores(draw, packed)
        scores.shared = Draw(f"shared {seed}")
        masks: list[Term] = []
        for _ in range(ordinary):
            masks.append(_mask(scores, sizes, 2))
            _forget(scores, masks)
        if hidden:
            masks.append(_inline(scores.degenerate()))
            _forget(scores, masks)
        if (
            hidden
            or attempt == 49
            or visible([m.text for m in masks], (*sizes.inputs, *scores.inputs.values())) >= LEAST_VISIBLE
        ):
            break
    masks = [_named(term, parts) for term in masks]
    scores.scoring = True
    terms: list[Term] = []
    size = 3.0
    for _ in range(count - len(masks)):
        term, size = _score(scores, sizes, size)
        terms.append(term)
        _forget(scores, masks + terms)
    terms = [_named(term, parts) for term in terms]
    sloping = {name for term in terms for name in _sloping(ast.parse(term.text.text, mode="eval").body)}
    inputs = tuple(replace(x, grad=x.grad and x.name in sloping) for x in scores.inputs.values())
    lines = [f"name: random_{seed}", *head]
    lines += ["mask:", *(f"  - {m.yaml}" for m in masks)] if masks else []
    lines += ["score:", *(f"  - {t.yaml}" for t in terms)] if terms else []
    lines += [f"domain: {domain}"] if terms and domain else []
    lines += ["inputs:", *(f"  {x.yaml}" for x in inputs)] if inputs else []
    texts = tuple(m.text.text for m in masks), tuple(t.text.text for t in terms)
    return RandomSpec(f"random_{seed}", "\n".join(lines) + "\n", *texts, (*sizes.inputs, *inputs), sink)


HEAD = ("layout: packed", "heads: equal", "sink: true", "dropout: true")


def _forget(scores: Scores, terms: list[Term]) -> None:
    """Drops the inputs that no term reads."""
    words = {word for term in terms for word in re.findall(r"\w+", term.text.text)}
    scores.inputs = {name: given for name, given in scores.inputs.items() if name in words}


def _sloping(tree: ast.expr) -> Iterator[str]:
    """The names that an expression reads in parts that are not flat."""
    match tree:
        case ast.Name(id=name):
            yield name
        case ast.Compare() | ast.BinOp(op=ast.FloorDiv()) | ast.Call(func=ast.Name(id="floor")):
            return
        case ast.Subscript(value=inner):
            yield from _sloping(inner)
        case ast.IfExp(body=a, orelse=b) | ast.Call(func=ast.Name(id="where"), args=[_, a, b]):
            yield from (*_sloping(a), *_sloping(b))
        case _:
            for inner in ast.iter_child_nodes(tree):
                if isinstance(inner, ast.expr):
                    yield from _sloping(inner)


# -- terms -------------------------------------------------------------------------------------------------------


def _inline(text: Text) -> Term:
    return Term(f"{{expr: {json.dumps(text.text)}}}", text)


def _named(term: Term, draw: Draw) -> Term:
    """The same term; if it is an inline one, sometimes with a name for a part of it."""
    if not term.yaml.startswith("{expr:") or not draw.chance(0.3):
        return term
    tree = ast.parse(term.text.text, mode="eval")
    found = [node for node in ast.walk(tree.body) if isinstance(node, ast.BinOp | ast.Compare | ast.BoolOp | ast.Call)]
    if not found:
        return term
    part = ast.unparse(draw.pick(found))
    rest = ast.unparse(_Naming(part).visit(tree))
    return Term(f"{{expr: {json.dumps(rest)}, let: {{part: {json.dumps(part)}}}}}", term.text)


class _Naming(ast.NodeTransformer):
    """Replaces each occurrence of a text by the name `part`."""

    def __init__(self, text: str) -> None:
        self.text = text

    def visit(self, node: ast.AST) -> ast.AST:
        """The node, or the name that replaces it."""
        if isinstance(node, ast.expr) and ast.unparse(node) == self.text:
            return ast.Name("part")
        return self.generic_visit(node)


def _mask(scores: Scores, sizes: Sizes, depth: int) -> Term:
    draw = scores.draw
    ways: list[Callable[[], Term]] = [lambda: _shipped(draw)] * 4 + [lambda: _any_condition(scores)] * 4
    if not scores.packed and draw.chance(0.1):
        return of_pairs(sizes)["tree" if draw.chance(0.5) else "block_sparse"]
    if depth:
        ways += [lambda: _joined(scores, sizes, depth)] * 2 + [lambda: _not(scores, sizes, depth)]
    return draw.pick(ways)()


def _shipped(draw: Draw) -> Term:
    mask = draw.pick(MASKS)
    options = mask[2].items()
    return _filled(
        mask, {o: keyword if draw.chance(0.4) else str(draw.pick(values)) for o, (keyword, values) in options}
    )


def shipped(mask: ShippedMask, *, keywords: bool) -> Term:
    """A shipped mask, with options that the call passes or with numbers."""
    return _filled(mask, {o: word if keywords else str(values[-1]) for o, (word, values) in mask[2].items()})


def _filled(mask: ShippedMask, values: dict[str, str]) -> Term:
    name, text, _ = mask
    given = ", ".join(f"{option}: {x if x.isdigit() else 'runtime'}" for option, x in values.items())
    return Term(f"{{{name}: {{{given}}}}}" if given else name, Text(f"({text.format(**values)})"))


def of_pairs(sizes: Sizes) -> dict[str, Term]:
    """Shipped masks that packed sequences cannot have."""
    return {
        "tree": Term("tree", Text("(k < k_len - q_len or tree_mask[q, k])")),
        "block_sparse": Term(f"{{block_sparse: {{block: {sizes.block}}}}}", Text("block_mask")),
    }


def _any_condition(scores: Scores) -> Term:
    return _inline(scores.condition(scores.draw.below(3)))


def _joined(scores: Scores, sizes: Sizes, depth: int) -> Term:
    word, op = scores.draw.pick((("any", "or"), ("any", "or"), ("all", "and")))
    parts = [_mask(scores, sizes, depth - 1) for _ in range(1 + scores.draw.below(3))]
    text = parts[0].text
    for part in parts[1:]:
        text = binary(op, text, part.text)
    return Term(f"{{{word}: [{', '.join(part.yaml for part in parts)}]}}", text)


def _not(scores: Scores, sizes: Sizes, depth: int) -> Term:
    inner = _mask(scores, sizes, depth - 1)
    return Term(f"{{not: {inner.yaml}}}", opposite(inner.text))


def _score(scores: Scores, sizes: Sizes, size: float) -> tuple[Term, float]:
    """A score term and the usual size of its results."""
    draw = scores.draw
    if draw.chance(0.35):
        cap = draw.pick((1.5, 4.0, 30.0))
        buckets, furthest, both = sizes.buckets
        options = f"{{buckets: {buckets}, max_distance: {furthest}, bidirectional: {str(both).lower()}}}"
        ways = [
            (Term(f"{{softcap: {{cap: {cap}}}}}", Text(f"{cap} * tanh(score / {cap})")), min(cap, size)),
            (Term("alibi", Text("score - slopes * abs(q - k)")), 10),  # as large as the sequences are long
            (Term("log_decay", Text("score + log_decay[q] - log_decay[k]")), size + 2),
            (
                Term(
                    f"{{relative_bias: {options}}}",
                    Text(f"score + rel_bias[bucket(q - k, {buckets}, {furthest}, {both})]"),
                ),
                size + 1,
            ),
        ]
        ways += [] if scores.packed else [(Term("bias", Text("score + bias")), size + 3)]
        return draw.pick([way for way in ways if way[1] <= 10] or ways[:1])
    text, size = scores.term(size)
    return _inline(Text(text)), size


# -- packages ----------------------------------------------------------------------------------------------------


def refused(given: RandomSpec) -> str:
    """Why the language rejects a spec: sometimes a factor is always 0, and the other one gets no gradient."""
    from attnforge.language import spec
    from attnforge.source import errors, resources

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{given.name}.yaml"
        path.write_text(given.yaml)
        try:
            spec.load(path, terms=resources.terms_for(path))
        except errors.SpecError as error:
            if "this expression is flat" in str(error):
                return str(error)
            raise
    return ""


def write(given: RandomSpec, folder: Path, *, far: bool = False, whole: bool = False) -> None:
    """Renders a spec's package into a folder, next to its YAML: the files that run here, or the `whole` package.

    With `far`, its suite has cases with many keys.
    """
    import unformatted

    path = folder / f"{given.name}.yaml"
    path.write_text(given.yaml)
    ran = functools.partial(unformatted.interpreted, suite=True, far=far)
    unformatted.write(path, folder / given.name, unformatted.files if whole else ran)


def suite(folder: Path, name: str) -> ModuleType:
    """The generated suite of a package in a folder, as a module."""
    with unrewritten.assertions():
        return unrewritten.module(folder, f"{name}.test_{name}")


def main() -> None:
    """Renders packages into a folder, or summarises the errors that their suites recorded."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--count", type=int, default=100)
    wanted = parser.add_mutually_exclusive_group(required=True)
    wanted.add_argument("--out", type=Path)
    wanted.add_argument("--errors", type=Path)
    args = parser.parse_args()
    if args.errors:
        print("\n".join(closest(args.errors.read_text())))
        return
    args.out.mkdir(parents=True)
    with ProcessPoolExecutor() as pool:
        list(pool.map(functools.partial(_render, args.out), range(args.count)))


def closest(text: str, count: int = 20) -> Iterator[str]:
    """Lines with the checks that came closest to their limits, from recorded errors."""
    lines = [json.loads(line) for line in text.splitlines()]
    shares = [(max(x["error"] / x["limit"] if x["limit"] else 0.0, x["row"]), x["test"]) for x in lines]
    yield f"{len(shares)} checks, {sum(share > 1 for share, _ in shares)} beyond their limit"
    yield from (f"{share:.2f}  {test}" for share, test in sorted(shares, reverse=True)[:count])


def _render(out: Path, seed: int) -> None:
    given = generate(seed)
    if why := refused(given):
        print(f"seed {seed}: {why}")
    else:
        write(given, out, whole=True)


if __name__ == "__main__":
    main()
