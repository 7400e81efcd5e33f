"""The page of a variant in Markdown, with its picture beside it: its description, its call, its formulas."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ..language.spec import Spec
from ..plan import formula, plan, reference
from ..plan.arguments import Argument
from ..plan.plan import Plan
from ..render import render
from . import markdown, summary
from .explain import Drawn


@dataclass(frozen=True)
class Sheet:
    """Everything that the template reads. `path` is the spec's file, `page` the one to write; links stay in `root`."""

    drawn: Drawn
    path: Path
    page: Path
    root: Path
    alike: tuple[Spec, ...] = ()  # other variants of the same formula, whose pages are beside this one

    def files(self) -> dict[Path, str]:
        """The page and its picture."""
        return {self.page: render.sheet({"sheet": self, "spec": self.spec}), self.picture: self.drawn.svg()}

    @property
    def spec(self) -> Spec:
        """The variant."""
        return self.drawn.spec

    @property
    def picture(self) -> Path:
        """The picture's file."""
        return self.page.with_suffix(".svg")

    @property
    def title(self) -> str:
        """The name, as words."""
        return markdown.words(self.spec.name)

    @property
    def description(self) -> str:
        """The description of the variant."""
        return markdown.words(self.spec.description)

    @property
    def citation(self) -> str:
        """The model or paper that it comes from."""
        return markdown.cited(self.spec.citation).rstrip(".")

    @property
    def traits(self) -> str:
        """Its layout and heads."""
        text = summary.traits(self.spec)
        return text[0].upper() + text[1:]

    @property
    def same(self) -> str:
        """The other variants of the same formula, each with its traits if they differ."""
        found = []
        for other in self.alike:
            apart = "" if summary.traits(other) == summary.traits(self.spec) else f" ({summary.traits(other)})"
            found.append(f"[`{other.name}`]({markdown.address(other.name)}.md){apart}")
        return ", ".join(found)

    @property
    def links(self) -> tuple[str, ...]:
        """Links to its spec and its package."""
        package = self.root / "generated" / self.spec.name
        shown = [markdown.link(markdown.code(self.spec.source), self.path, self.page, self.root)]
        if package.is_dir():
            shown.append(markdown.link(markdown.code(f"generated/{self.spec.name}"), package, self.page, self.root))
        return tuple(shown)

    @property
    def yaml(self) -> str:
        """The spec as it was written."""
        return markdown.fenced(self.path.read_text(encoding="utf-8"), "yaml")

    @property
    def image(self) -> str:
        """The picture, with its content in words."""
        mask, tiling = self.drawn.mask, self.drawn.tiling
        saved = f"{100 * tiling.saved:.1f} % of the work saved"
        saved += "".join(f", {100 * one.saved:.1f} % where {who}" for who, one in tiling.kernels[1:])
        shown = f"The mask for {mask.q_len} queries and {mask.k_len} keys: {saved}"
        return f"![{shown}]({markdown.address(self.picture.name)})"

    @property
    def blocks(self) -> str:
        """The drawing in characters."""
        return markdown.fenced(self.drawn.blocks(), "text")

    @cached_property
    def sections(self) -> tuple[tuple[str, str], ...]:
        """What it computes: titles and blocks."""
        found = (formula.formula(self.spec), formula.derivatives(self.spec), summary.tiles(self.spec))
        return tuple((s.title, markdown.fenced("\n".join(s.rows), "text")) for s in found if s.lines)

    @cached_property
    def plan(self) -> Plan:
        """The plan, whose keywords `attention` takes."""
        return plan.build(self.spec)

    @property
    def call(self) -> str:
        """A call with the keywords that it requires."""
        given = [a.name for a in self.plan.arguments if not a.absent]
        cuts = ["cu_seqlens", "max_seqlen"] if self.spec.packed else []
        keywords = "".join(f", {name}={name}" for name in (*cuts, *given))
        lines = f"from generated.{self.spec.name} import attention, reference\n\nout = attention(q, k, v{keywords})"
        return markdown.fenced(lines, "python")

    @property
    def signature(self) -> str:
        """The head of `attention`."""
        return markdown.fenced(render.signature(self.plan), "python")

    @cached_property
    def keywords(self) -> tuple[tuple[str, str, str], ...]:
        """The keywords of the terms: name, type with shape, and meaning."""
        shapes = reference.build(self.spec, self.plan.arguments).shapes
        if self.spec.rope:
            shapes |= dict.fromkeys(("cos", "sin"), self.spec.rope.shape)
        return tuple(
            (markdown.code(a.name), _type(a, shapes.get(a.name, "")), markdown.words(summary.meaning(a)))
            for a in self.plan.arguments
        )


def _type(argument: Argument, shape: str) -> str:
    """The type of a keyword as a caller thinks of it; sizes that are rounded up have ceiling brackets."""
    kind = argument.dtype if argument.kind == "scalar" or argument.dtype != "float" else ""
    rounded = re.sub(r"-\(-(\w+) // (\w+)\)", r"⌈\1 / \2⌉", shape)
    return markdown.words(" ".join(filter(None, (kind, rounded))))
