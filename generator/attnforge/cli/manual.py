"""Writes what README and docs/ say about specs, terms, commands and variants: `python -m attnforge.cli.manual`.

Prose that cannot be derived from the code is in templates/docs/reference.md.jinja.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from ..explain import explain, markdown, markdown_page, summary
from ..expressions import parser, syntax, vocabulary
from ..gpu import counters, profile
from ..gpu.peers import PEERS
from ..language import schema, spec, terms
from ..language.spec import Spec
from ..language.terms import Option, Term
from ..plan import arguments
from ..printing import spec_text
from ..render import render
from ..source import resources
from ..source.errors import Problems
from . import commands, program, starter

_COMMANDS, _END = "<!-- commands: written by `make docs` -->", "<!-- end of commands -->"
_MANY = 6  # variants listed with a term


@dataclass(frozen=True)
class Command:
    """A command as the reference shows it."""

    usage: str
    help: str
    options: str


@dataclass(frozen=True)
class Shown:
    """A term as the reference shows it."""

    name: str
    description: str
    formula: str
    options: tuple[str, ...]
    keywords: tuple[str, ...]
    variants: str


def files(root: Path) -> dict[Path, str]:
    """README and all generated files of docs/, with their texts; `root` is the checkout."""
    docs, loaded = root / "docs", {name: _load(path) for name, path in resources.variants().items()}
    face = root / "README.md"
    made = {
        face: readme(face.read_text(encoding="utf-8")),
        docs / "reference.md": reference(loaded),
        docs / "variants" / "README.md": _index(loaded),
    }
    identities = {name: summary.identity(variant) for name, variant in loaded.items()}
    for name, path in resources.variants().items():
        drawn = explain.draw(loaded[name], *explain.shape(loaded[name]))
        alike = tuple(loaded[n] for n, other in identities.items() if other == identities[name] and n != name)
        made |= markdown_page.Sheet(drawn, path, docs / "variants" / f"{name}.md", root, alike).files()
    return made


def abandoned(root: Path, made: Iterable[Path]) -> list[Path]:
    """Pages of variants that no longer exist."""
    return sorted(set((root / "docs" / "variants").glob("*")) - set(made))


def readme(text: str) -> str:
    """README with the table of commands in its place."""
    rows = []
    for name, command in commands.main.commands.items():
        needed = [param for param in command.params if isinstance(param, click.Argument) or param.required]
        given = (_metavar(p) if isinstance(p, click.Argument) else f"{p.opts[0]} {_metavar(p)}" for p in needed)
        usage = " ".join(("attnforge", name, *given))
        rows.append((f"[`{usage}`](docs/reference.md#attnforge-{name})", (command.help or "").rstrip(".")))
    return markdown.between(text, _COMMANDS, _END, markdown.table(("command", "does"), rows))


def reference(loaded: Mapping[str, Spec]) -> str:
    """The reference; `loaded` are the variants by name."""
    made = schema.schema()
    models, of_terms = made["$defs"], schema.term_schema()
    shown = list(_terms(loaded))
    return render.language_page(
        {
            "keys": _keys(made),
            "rope": _keys(models["RopeModel"]),
            "domain": _keys(models["DomainModel"]),
            "inline": _keys(models["InlineModel"]),
            "term": _keys(of_terms),
            "option": _keys(of_terms["$defs"]["OptionModel"]),
            "inputs": _keys(models["InputModel"]),
            "axes": markdown.table(("axis", "holds", "read"), _axes()),
            "names": markdown.table(("name", "stands for", "available in"), _names()),
            "operators": markdown.table(("written", "means"), _operators()),
            "functions": markdown.table(("function", "gives"), _functions()),
            "limits": {
                "characters": f"{syntax.LONGEST:,}",
                "depth": syntax.DEEPEST,
                "parts": parser.TALLEST,
                "nodes": f"{parser.MOST_NODES:,}",
            },
            "kinds": {kind: [term for term, its in shown if its == kind] for kind in ("mask", "score")},
            "commands": [_command(name, command) for name, command in commands.main.commands.items()],
            "peers": markdown.table(("peer", "requires", "supports"), _peers()),
            "counts": markdown.table(
                ("column", "meaning"), ((f"`{column}`", x) for column, x in profile.COLUMNS.items())
            ),
            "stalls": markdown.table(
                ("top stall", "the warp"), ((counters.words(x), meaning) for x, meaning in counters.STALLS.items())
            ),
            "codes": markdown.table(("exit code", "meaning"), ((str(c), m) for c, m in program.EXIT_CODES.items())),
        }
    )


def main() -> None:
    """Writes the files below the working folder and prints which have changed."""
    root = Path.cwd()
    made = files(root)
    for path in abandoned(root, made):
        path.unlink()
        click.echo(f"{path.relative_to(root)}: removed")
    for path, text in made.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8", newline="\n")
            click.echo(f"{path.relative_to(root)}: written")


def _load(path: Path) -> Spec:
    return spec.load(path, terms=resources.terms_for(path))


def _index(loaded: Mapping[str, Spec]) -> str:
    groups = {
        title: markdown.table(
            ("variant", "description"), ((f"[`{name}`]({name}.md)", markdown.words(text)) for name, text in entries)
        )
        for title, entries in starter.variants().items()
    }
    formulas = len(set(map(summary.identity, loaded.values())))
    return render.index({"groups": groups, "variants": len(loaded), "formulas": formulas})


# -- keys of specs -----------------------------------------------------------------------------------------------


def _keys(model: Mapping[str, Any]) -> str:
    """The properties of an object in the JSON Schema."""
    rows = []
    for name, field in model["properties"].items():
        needed = "; required" if name in model.get("required", ()) else ""
        rows.append((f"`{name}`", _value(field) + needed, field["description"]))
    return markdown.table(("key", "value", "meaning"), rows)


def _value(field: Mapping[str, Any]) -> str:
    """The values that a key takes, in words."""
    if "anyOf" in field:
        return ", ".join(_value({**one, "default": field.get("default")}) for one in field["anyOf"] if not _null(one))
    if "enum" in field or "const" in field or field.get("type") == "boolean":
        choices = field.get("enum", [field["const"]] if "const" in field else [False, True])
        default = field.get("default")
        words = (f"`{json.dumps(x).strip(chr(34))}`{' (default)' if x == default else ''}" for x in choices)
        return ", ".join(words)
    if "$ref" in field:
        return "mapping"
    match field["type"]:
        case "integer":
            kind = "even number" if field.get("multipleOf") == 2 else "number"
            return f"{kind} from {field['minimum']} to {field['maximum']}"
        case "array":
            inner = field["items"]
            few = f"up to {field['maxItems']} " if "maxItems" in field else ""
            return f"list of {few}{'terms' if '$ref' in inner else 'axes' if 'anyOf' in inner else _value(inner)}"
        case "object":
            of = str(field)
            held = "options" if "OptionModel" in of else "inputs" if "InputModel" in of else "expressions"
            return f"mapping of names to {held}"
        case "string" if "pattern" in field:
            return f"identifier of up to {field['maxLength']} characters"
        case "string" if "maxLength" in field:
            return f"one line of up to {field['maxLength']} characters"
        case kind:
            return {"string": "expression", "number": "number"}[kind]


def _null(field: Mapping[str, Any]) -> bool:
    return field.get("type") == "null"


def _axes() -> Iterator[tuple[str, str, str]]:
    for meaning in schema.AXES:
        yield ", ".join(f"`{axis}`" for axis in meaning.axes), meaning.holds, meaning.read


# -- the expression language -------------------------------------------------------------------------------------


def _names() -> Iterator[tuple[str, str, str]]:
    where = {"mask": "masks", "score": "scores", "default": "defaults"}
    for name, known in vocabulary.NAMES.items():
        yield f"`{name}`", known.meaning, ", ".join(where[kind] for kind in known.kinds)


def _operators() -> Iterator[tuple[str, str]]:
    for operator in vocabulary.OPERATORS:
        yield " ".join(f"`{form}`" for form in operator.forms), operator.meaning


def _functions() -> Iterator[tuple[str, str]]:
    for name, function in vocabulary.CALLS.items():
        yield f"`{name}({function.arguments})`", function.meaning


# -- terms -------------------------------------------------------------------------------------------------------


def _terms(loaded: Mapping[str, Spec]) -> Iterator[tuple[Shown, str]]:
    users: dict[str, list[str]] = {}
    for name, variant in loaded.items():
        for word in json.loads(variant.text)["terms"]:
            users.setdefault(word, []).append(name)
    for path in sorted((resources.specs() / "terms").glob("*.yaml")):
        problems = Problems()
        term = terms.load(path, problems)
        problems.raise_if_any()
        assert term is not None
        yield _shown(term, users.get(term.name, [])), term.kind


def _shown(term: Term, users: list[str]) -> Shown:
    lines = textwrap.dedent(str(term.expression.data)).strip()
    formula = f"visible if {lines}" if term.kind == "mask" else f"score = {lines}"
    keywords = []
    for given in term.inputs.values():
        axes = ", ".join(map(str, given.axes))
        learned = ", learned" if given.grad else ""
        scanned = ", read as its cumulative sum" if given.scan else ""
        default = f", by default `{spec_text.source(given.default)}`" if given.default is not None else ""
        facts = f"{given.dtype} ({axes}), {given.description}{learned}{scanned}{default}"
        keywords.append(f"`{given.name}`: {facts}")
    links = [f"[`{name}`](variants/{name}.md)" for name in users[:_MANY]]
    more = f" and {len(users) - _MANY} more" if len(users) > _MANY else ""
    return Shown(
        term.name,
        markdown.words(term.description),
        markdown.fenced(formula, "text"),
        tuple(map(_option, term.options.values())),
        tuple(keywords),
        ", ".join(links) + more,
    )


def _option(option: Option) -> str:
    facts: list[str] = [option.type]
    facts += filter(
        None, [arguments.limits(option.minimum, option.maximum), option.least and f"at least `{option.least}`"]
    )
    facts.append("required" if option.default is None else f"`{json.dumps(option.default)}` by default")
    if option.runtime:
        facts.append(f"`{option.name}: runtime` makes it the keyword `{option.runtime}`")
    return f"`{option.name}`: {', '.join(facts)}"


# -- commands ----------------------------------------------------------------------------------------------------


def _peers() -> Iterator[tuple[str, str, str]]:
    for peer in PEERS.values():
        kept = "" if peer.name == "naive" else ", but no dropout"
        takes = f"every formula{kept}" if peer.features is None else ", ".join(sorted(peer.features))
        always = f"; always {', '.join(peer.needs)}" if peer.needs else ""
        yield f"`{peer.name}`", f"`{peer.package}`" if peer.package else "", takes + always


def _command(name: str, command: click.Command) -> Command:
    usage, rows = [f"attnforge {name}"], []
    for param in command.params:
        if isinstance(param, click.Option):
            written = " ".join(filter(None, (param.opts[0], "" if param.is_flag else _metavar(param))))
            usage.append(written if param.required else f"[{written}]")
            rows.append((", ".join(f"`{word}`" for word in param.opts), _told(param)))
        else:
            usage.append(_metavar(param))
    return Command(" ".join(usage), command.help or "", markdown.table(("option", "does"), rows) if rows else "")


def _metavar(param: click.Parameter) -> str:
    metavar: str | None = getattr(param, "metavar", None)
    return metavar or (param.name or "").upper().replace("_", "-")


def _told(option: click.Option) -> str:
    facts = [(option.help or "").rstrip(".")]
    if isinstance(option.type, click.Choice):
        facts.append("one of " + ", ".join(f"`{word}`" for word in option.type.choices))
    if isinstance(option.type, click.IntRange):
        facts.append(arguments.limits(option.type.min, option.type.max))
    if option.show_default:
        facts.append(f"by default `{option.default}`")
    return "; ".join(facts)


if __name__ == "__main__":
    main()
