"""Random arguments of a call that resemble those of models: long documents, decays close to 1, tables of angles."""

from __future__ import annotations

import ast
import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..expressions.inputs import Axis
from ..language.domain import Domain
from ..language.spec import Spec
from ..plan import suite_inputs
from ..plan.arguments import Argument
from ..plan.plan import Plan

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Sizes:
    """The shape of a call; for packed sequences the lengths are averages."""

    batch: int
    q_len: int
    k_len: int
    heads: int
    kv_heads: int
    head_dim: int
    v_dim: int
    dtype: str

    @property
    def told(self) -> str:
        """The sizes in words, for the title of a table."""
        lengths = str(self.q_len) if self.q_len == self.k_len else f"{self.q_len} x {self.k_len}"
        heads, dims = pair(self.heads, self.kv_heads), pair(self.head_dim, self.v_dim)
        return f"batch {self.batch}, length {lengths}, heads {heads}, head size {dims}, {self.dtype}"

    def of(self, spec: Spec) -> Sizes:
        """The sizes for a variant, which may need as many key heads as query heads."""
        return self if spec.grouped else dataclasses.replace(self, kv_heads=self.heads)


@dataclass(frozen=True)
class Call:
    """The tensors of a call: q, k, v, and the keywords of the variant."""

    sizes: Sizes
    operands: tuple[torch.Tensor, ...]
    keywords: dict[str, Any]
    learned: tuple[str, ...]  # keywords that get a gradient

    @property
    def wanted(self) -> tuple[torch.Tensor, ...]:
        """All tensors that get a gradient."""
        return (*self.operands, *(self.keywords[name] for name in self.learned))


def pair(a: int, b: int) -> str:
    """Two numbers as the command line takes them: a single one if they are equal."""
    return str(a) if a == b else f"{a}:{b}"


def make(planned: Plan, sizes: Sizes, device: str) -> Call:
    """A call of a variant; the same for the same sizes."""
    return _Maker(planned, sizes, device).call()


class _Maker:
    def __init__(self, planned: Plan, sizes: Sizes, device: str) -> None:
        import torch

        self.planned, self.sizes, self.device = planned, sizes, device
        self.dtype = getattr(torch, {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}[sizes.dtype])
        self.generator = torch.Generator(device).manual_seed(0)
        self.packed = planned.spec.packed

    def call(self) -> Call:
        s = self.sizes
        shapes = ((s.q_len, s.heads, s.head_dim), (s.k_len, s.kv_heads, s.head_dim), (s.k_len, s.kv_heads, s.v_dim))
        lead = (lambda n: (s.batch * n,)) if self.packed else (lambda n: (s.batch, n))
        learns = self.planned.spec.algorithm.backward
        drawn = [self.normal(*lead(n), *rest) for n, *rest in shapes]
        if domain := self.planned.spec.domain:
            drawn[:2] = (self.within(domain, x, held) for x, held in zip(drawn[:2], domain.held, strict=True))
        q, k, v = (x.to(self.dtype).requires_grad_(learns) for x in drawn)
        keywords = self.cuts() if self.packed else {}
        for argument in self.planned.arguments:
            if not argument.optional:
                keywords[argument.name] = self.argument(argument)
        # arguments with a default are rarely learned
        learned = tuple(a.name for a in self.planned.arguments if a.grad and not a.absent)
        for name in learned:
            keywords[name].requires_grad_()
        return Call(s, (q, k, v), keywords, learned)

    def normal(self, *shape: int) -> torch.Tensor:
        import torch

        return torch.randn(shape, generator=self.generator, device=self.device)

    def within(self, domain: Domain, x: torch.Tensor, held: float) -> torch.Tensor:
        """A q or k, short except for one column that holds its part of the middle of the domain."""
        x = x * (domain.length / x.norm(dim=-1, keepdim=True))
        x[..., -1] = held
        x *= x.shape[-1] ** 0.25
        return x

    def whole(self, low: int, end: int, *shape: int) -> torch.Tensor:
        import torch

        return torch.randint(low, end, shape, generator=self.generator, device=self.device, dtype=torch.int32)

    def cuts(self) -> dict[str, Any]:
        """Random starts of packed sequences, the same for queries and keys if there are equally many."""
        import torch

        s = self.sizes
        found: dict[str, Any] = {}
        places = torch.rand(s.batch - 1, generator=self.generator, device=self.device).sort().values
        for side, length in (("q", s.q_len), ("k", s.k_len)):
            ends = torch.tensor([0, s.batch * length], device=self.device)
            inner = (places * (s.batch * length)).long()
            cuts = torch.cat((ends[:1], inner, ends[1:])).to(torch.int32)
            found[f"cu_seqlens_{side}"], found[f"max_seqlen_{side}"] = cuts, int(cuts.diff().max())
        return found

    def argument(self, a: Argument) -> Any:
        """The value of a keyword."""
        if a.name in ("cos", "sin"):
            return self.angles(a.name)
        if a.absent:
            return self.default(a.made())
        if a.kind == "scalar":
            return self.scalar(a)
        shape = [self.count(axis) for axis in self.axes(a)]
        if a.dtype == "bool":
            return self.truths(a, shape)
        if a.dtype == "int":
            return self.numbers(a, shape)
        if a.minimum is not None and a.maximum is not None:
            return self.normal(*shape).sigmoid() * (a.maximum - a.minimum) + a.minimum
        if a.scan:
            return (self.normal(*shape) + 5).sigmoid().log()
        value = self.normal(*shape) / 8
        if a.minimum is not None:
            value = value.abs() + a.minimum
        elif a.maximum is not None:
            value = a.maximum - value.abs()
        return value.to(self.dtype) if a.pairs else value

    def angles(self, function: str) -> torch.Tensor:
        import torch

        rope = self.planned.spec.rope
        assert rope is not None
        dims = rope.dims or self.sizes.head_dim
        speeds = 10000.0 ** (-torch.arange(0, dims, 2, device=self.device) / dims)
        if self.planned.spec.domain:
            speeds[-1] = 0  # the column that holds the middle is not rotated
        table: torch.Tensor = getattr(torch.arange(self.longest, device=self.device)[:, None] * speeds, function)()
        return table

    def default(self, text: str) -> torch.Tensor:
        """The value of an argument that is not given."""
        import torch

        s = self.sizes
        many = s.batch if self.packed else 1
        sizes = {"heads": s.heads, "queries": s.q_len * many, "keys": s.k_len * many}
        known = {"math": math, "torch": torch, "device": self.device, "dtype": torch.float32}
        value: torch.Tensor = eval(text, known | sizes)
        return value

    @property
    def longest(self) -> int:
        """An exclusive upper bound on positions."""
        return self.sizes.k_len * (self.sizes.batch if self.packed else 1)

    def scalar(self, a: Argument) -> Any:
        plain = {"dropout_p": 0.1, "seed": 0}
        if a.name in plain:
            return plain[a.name]
        if a.value is not None:
            return ast.literal_eval(a.value)
        if a.dtype == "bool":
            return True
        own = suite_inputs.sizing(self.planned.spec).get(a.name)
        return own or suite_inputs.between(a, self.sizes.k_len // 8 if a.dtype == "int" else 0.5)

    def axes(self, a: Argument) -> list[Axis]:
        rows = {axis.kind for axis in a.axes} & {"query", "key", "token"}
        return [axis for axis in a.axes if not (axis.kind == "batch" and self.packed and rows)]

    def count(self, axis: Axis) -> int:
        s, many = self.sizes, self.sizes.batch if self.packed else 1
        counts = {"query": s.q_len * many, "key": s.k_len * many, "token": s.k_len * many}
        counts |= {"batch": s.batch, "head": s.heads, "kv_head": s.kv_heads}
        own = axis.filled(suite_inputs.sizing(self.planned.spec))
        if own.kind == "size" or own.rest:
            return int(own.size or own.per)
        return -(-counts[own.kind] // int(own.per))

    def truths(self, a: Argument, shape: list[int]) -> torch.Tensor:
        """Half of the values are true; with a query and a key axis also the diagonal, so that no row is empty."""
        import torch

        value = self.normal(*shape) > 0
        sides = [i for i, axis in enumerate(self.axes(a)) if axis.kind in ("query", "key")]
        if len(sides) == 2:
            value |= torch.eye(shape[sides[0]], shape[sides[1]], dtype=torch.bool, device=self.device).view(
                *(n if i in sides else 1 for i, n in enumerate(shape))
            )
        return value

    def numbers(self, a: Argument, shape: list[int]) -> torch.Tensor:
        """Whole numbers: within the limits if there are any, else a quarter of the keys, or each row's document."""
        import torch

        if a.minimum is not None or a.maximum is not None:
            low = int(a.minimum or 0)
            return self.whole(low, int(a.maximum if a.maximum is not None else low + self.sizes.k_len) + 1, *shape)
        kinds = [axis.kind for axis in self.axes(a)]
        along = [i for i, kind in enumerate(kinds) if kind in ("query", "key", "token")]
        if len(along) != 1:
            return torch.full(shape, self.sizes.k_len // 4, dtype=torch.int32, device=self.device)
        k_len = self.sizes.k_len
        length = max(k_len // 16, min(k_len // 4, 1024), 1)
        first = k_len - self.sizes.q_len if kinds[along[0]] == "query" else 0
        rows = (torch.arange(shape[along[0]], device=self.device) + first) // length
        return rows.to(torch.int32).view(-1, *[1] * (len(shape) - along[0] - 1)).expand(shape).contiguous()
