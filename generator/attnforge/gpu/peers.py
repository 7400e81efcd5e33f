"""Peers to time a variant against: other libraries, each called from the module that `export --to flex` prints.

That module rotates q and k, passes them on, and joins the results. The peer's own function replaces flex_attention, so
that each peer gets the same tensors and does everything that the variant asks for.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import importlib.util
import inspect
import itertools
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ..language.patterns import Number
from ..language.spec import Spec
from ..render import render
from .calls import Call
from .library_features import Traits, traits

if TYPE_CHECKING:
    import torch

_COUNT = itertools.count()
Attend = Callable[..., Any]  # takes flex_attention's arguments: q, k, v (B, H, T, D)


@dataclass(frozen=True)
class Asked:
    """A request to a peer."""

    traits: Traits
    call: Call

    def number(self, value: Number | None) -> Any:
        """A number, or the value of the call's keyword that holds it."""
        return self.call.keywords[value] if isinstance(value, str) else value


@dataclass(frozen=True)
class Peer:
    """A library, or one of its attention functions."""

    name: str
    package: str  # the package that has to be installed
    features: frozenset[str] | None  # the features that it has; None: it takes the variant's own formulas
    attend: Callable[[Asked], Attend]
    needs: frozenset[str] = frozenset()  # features that cannot be turned off
    within: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext

    def refusal(self, asked: Asked) -> str:
        """The reason why it cannot express a variant, or is missing; "" if there is none."""
        if self.package and not _installed(self.package):
            return f"{self.package} is not installed"
        has = asked.traits.features
        if self.features is None:
            lacks = ["dropout"] if has["dropout"] and self.name != "naive" else []
        else:
            lacks = [name for name, there in has.items() if there and name not in self.features]
            lacks += asked.traits.others
        if lacks:
            return f"has no {', '.join(lacks)}"
        if missing := [name for name in self.needs if not has[name]]:
            return f"is always {', '.join(missing)}"
        s = asked.call.sizes
        apart = has["causal"] and s.q_len != s.k_len and not _alone(asked)
        if self.features is not None and "packed" not in self.features and apart:
            return "lines up the first query with the first key"
        return ""


def module(name: str, path: Path) -> Any:
    """The module of a file, or the package if the file is its __init__.py, under a given name."""
    inside = [str(path.parent)] if path.name == "__init__.py" else None
    found = importlib.util.spec_from_file_location(name, path, submodule_search_locations=inside)
    assert found is not None and found.loader is not None
    made = sys.modules[name] = importlib.util.module_from_spec(found)
    found.loader.exec_module(made)
    return made


def _installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ImportError:
        return False


class Exported:
    """The exported module of a variant, loaded anew for each peer."""

    def __init__(self, spec: Spec, folder: Path) -> None:
        # dropout comes after the scores: peers that have it drop weights themselves
        plain = dataclasses.replace(spec, dropout=False)
        # likewise sinks, which come after the softmax
        self.texts = {s: render.export(dataclasses.replace(plain, sink=s), "flex") for s in {False, spec.sink}}
        self.traits, self.name, self.folder = traits(spec), spec.name, folder

    def function(self, peer: Peer, call: Call, compiled: bool) -> Callable[[], torch.Tensor]:
        """The call through a peer; everything that a model does only once is done in advance."""
        import torch

        exported = self._module(sink=peer.features is None or "sink" not in peer.features)
        keywords, flex = _keywords(exported, call), peer.name.startswith("flex")
        if hasattr(exported, "create_block_mask"):
            keywords["tiles"] = self._tiles(exported, call, real=flex)
        if hasattr(exported, "mods") and peer.features is not None:
            exported.mods = lambda *_, **__: (None, None)
        elif hasattr(exported, "mods") and not call.learned:
            self._once(exported, "mods", call)
        if hasattr(exported, "_rows"):
            self._once(exported, "_rows", call)
        exported.flex_attention, attention = peer.attend(Asked(self.traits, call)), exported.attention
        if compiled and flex:
            attention = torch.compile(attention, dynamic=False)
        elif compiled and hasattr(exported, "_turned"):
            exported._turned = torch.compile(exported._turned, dynamic=False)
        return lambda: attention(*call.operands, **keywords)

    def seen(self, call: Call) -> tuple[int, int]:
        """The number of visible query-key pairs over all heads, and of keys in dense sequences that some query sees."""
        s, total, seen = call.sizes, 0, None
        for keep in self._visible(call):
            some = keep.flatten(1, 2).any(1)
            total, seen = total + int(keep.sum()), some if seen is None else seen | some
            heads = s.heads // keep.shape[1]
        if seen is None:
            return s.batch * s.heads * s.q_len * s.k_len, s.batch * s.k_len
        batches = 1 if self.traits.packed else s.batch // seen.shape[0]
        return total * batches * heads, int(seen.sum()) * batches

    def _visible(self, call: Call) -> Iterator[torch.Tensor]:
        """Whether queries see keys, for some queries at a time: (batch, head, query, key), of size 1 if all are alike.

        Yields nothing if no mask hides a key.
        """
        import torch

        exported = self._module()
        if not hasattr(exported, "create_block_mask"):
            return
        shown = self._tiles(exported, call, real=False)
        (B, H), device = shown.heads, call.operands[0].device
        rows, keys = (call.operands[i].shape[-3] for i in (0, 1))
        b, h = torch.arange(B, device=device).view(-1, 1, 1, 1), torch.arange(H, device=device).view(-1, 1, 1)
        step = max(2**26 // (B * H * keys), 1)
        for first in range(0, rows, step):
            row = torch.arange(first, min(first + step, rows), device=device)[:, None]
            yield shown.mask_mod(b, h, row, torch.arange(keys, device=device)).expand(B, H, row.shape[0], keys)

    def _module(self, *, sink: bool = True) -> Any:
        # a unique name: compiled functions are cached by it
        path = self.folder / f"exported_{self.name}_{next(_COUNT)}.py"
        path.write_text(self.texts[sink and self.traits.sink], encoding="utf-8")
        return module(path.stem, path)  # flex_attention looks up the names in its functions among the modules

    @staticmethod
    def _tiles(exported: Any, call: Call, *, real: bool) -> Any:
        """The mask function from which the module makes tiles, or the tiles themselves."""
        make = exported.create_block_mask

        def note(mask_mod: Any, batch: int | None, heads: int | None, *sizes: int, device: Any) -> Any:
            if real:
                return make(mask_mod, batch, heads, *sizes, device=device)
            return SimpleNamespace(mask_mod=mask_mod, heads=(batch or 1, heads or 1))

        exported.create_block_mask = note
        made = _first(exported, "create_block_mask", call)
        exported.create_block_mask = make
        return made

    @staticmethod
    def _once(exported: Any, name: str, call: Call) -> None:
        """Makes a function of the module return its result in this call, without computing it again."""
        made = _first(exported, name, call)
        setattr(exported, name, lambda *_, **__: made)


def _keywords(exported: Any, call: Call) -> dict[str, Any]:
    """The keywords that an exported module takes: without those of features that peers implement themselves."""
    known = inspect.signature(exported.attention).parameters
    return {name: x for name, x in call.keywords.items() if name in known}


def _first(exported: Any, name: str, call: Call) -> Any:
    """The result of a function of the module at its first call, after which the attention call is aborted."""
    function, made = getattr(exported, name), []

    def note(*args: Any, **more: Any) -> Any:
        made.append(function(*args, **more))
        raise _Enough

    setattr(exported, name, note)
    with contextlib.suppress(_Enough):
        exported.attention(*call.operands, **_keywords(exported, call))
    setattr(exported, name, function)
    return made[0]


class _Enough(Exception):
    """Aborts a call that has got as far as needed."""


# -- ways to attend -----------------------------------------------------------------------------------------------


def _naive(asked: Asked) -> Attend:
    """The straightforward implementation, with all scores in memory."""
    import torch

    def attend(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, score_mod: Any = None, block_mask: Any = None,
        scale: float | None = None, enable_gqa: bool = False, return_aux: Any = None,
    ) -> Any:  # fmt: skip
        if enable_gqa:
            k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        score = q @ k.mT * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
        places = [torch.arange(n, device=q.device).view(-1, *[1] * (3 - i)) for i, n in enumerate(score.shape)]
        if score_mod is not None:
            score = score_mod(score, *places)
        if block_mask is not None:
            score = score.masked_fill(~block_mask.mask_mod(*places), -math.inf)
        lse = score.logsumexp(-1) if return_aux.lse else None
        weight = score.softmax(-1)
        if asked.traits.dropout:
            weight = torch.nn.functional.dropout(weight, asked.call.keywords["dropout_p"])
        return weight.to(v.dtype) @ v, SimpleNamespace(lse=lse)

    return attend


def _flex(options: dict[str, Any] | None) -> Callable[[Asked], Attend]:
    def make(_: Asked) -> Attend:
        from torch.nn.attention.flex_attention import flex_attention

        attend: Attend = flex_attention
        return lambda *args, **more: attend(*args, **more, kernel_options=options)

    return make


def _alone(asked: Asked) -> bool:
    """True for a single query that sees all keys: the last one under a causal mask, if nothing else hides keys."""
    return asked.call.sizes.q_len == 1 and asked.traits.window is None


def _sdpa(asked: Asked) -> Attend:
    import torch

    share = asked.call.keywords["dropout_p"] if asked.traits.dropout else 0.0
    fixed: dict[str, Any] = {"is_causal": asked.traits.causal and not _alone(asked), "dropout_p": share}

    def attend(q: Any, k: Any, v: Any, *, scale: Any, enable_gqa: bool = False, **_: Any) -> Any:
        function = torch.nn.functional.scaled_dot_product_attention
        return function(q, k, v, scale=scale, enable_gqa=enable_gqa, **fixed), SimpleNamespace(lse=None)

    return attend


def _backend(name: str) -> contextlib.AbstractContextManager[object]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel(getattr(SDPBackend, name))


def _tokens_first(function: Callable[..., Any], asked: Asked) -> Attend:
    """Wraps a function of (B, T, H, D), or of (N, H, D) for packed sequences, as one of (B, H, T, D)."""
    packed = asked.traits.packed

    def attend(q: Any, k: Any, v: Any, *, scale: Any, **_: Any) -> Any:
        tensors = (x.transpose(1, 2)[0] if packed else x.transpose(1, 2) for x in (q, k, v))
        out = function(*tensors, scale)
        out = out[0] if isinstance(out, tuple) else out
        return (out[None] if packed else out).transpose(1, 2), SimpleNamespace(lse=None)

    return attend


def _flash(package: str, open_side: int | None) -> Callable[[Asked], Attend]:
    """The interface of flash-attn and of its successor; `open_side` stands for a window side without limit."""

    def make(asked: Asked) -> Attend:
        library = importlib.import_module(package)
        t, keywords = asked.traits, asked.call.keywords
        fixed: dict[str, Any] = {"causal": t.causal}
        if t.window is not None:
            fixed["window_size"] = (asked.number(t.window) - 1, 0 if t.causal else open_side)
        if t.softcap is not None:
            fixed["softcap"] = asked.number(t.softcap)
        if t.sink:
            fixed["learnable_sink"] = keywords["sinks"]
        if t.dropout:
            fixed["dropout_p"] = keywords["dropout_p"]
        if t.alibi is not None:
            fixed["alibi_slopes"] = keywords[t.alibi]
        if t.packed:
            fixed |= {name: x for name, x in keywords.items() if name.startswith(("cu_seqlens", "max_seqlen"))}
        function = library.flash_attn_varlen_func if t.packed else library.flash_attn_func
        return _tokens_first(lambda q, k, v, scale: function(q, k, v, softmax_scale=scale, **fixed), asked)

    return make


def _fla(asked: Asked) -> Attend:
    parallel_attn = importlib.import_module("fla.ops.attn.parallel").parallel_attn
    t, keywords = asked.traits, asked.call.keywords
    fixed = {"window_size": asked.number(t.window), "g": keywords[t.decay] if t.decay else None}
    if not t.packed:
        return _tokens_first(lambda q, k, v, scale: parallel_attn(q, k, v, scale=scale, **fixed), asked)
    fixed["g"] = None if fixed["g"] is None else fixed["g"][None]
    cuts = keywords["cu_seqlens_q"].long()

    def function(q: Any, k: Any, v: Any, scale: Any) -> Any:
        return parallel_attn(q[None], k[None], v[None], scale=scale, cu_seqlens=cuts, **fixed)[0]

    return _tokens_first(function, asked)


PEERS = {
    peer.name: peer
    for peer in (
        Peer("naive", "", None, _naive),
        *(
            Peer(
                f"sdpa-{name}", "", frozenset({"causal", "dropout"}), _sdpa,
                within=functools.partial(_backend, f"{name.upper()}_ATTENTION"),
            )
            for name in ("flash", "efficient", "cudnn")
        ),
        Peer("flex", "", None, _flex(None)),
        Peer("flex-flash", "flash_attn.cute", None, _flex({"BACKEND": "FLASH"})),
        Peer(
            "flash-attn", "flash_attn_2_cuda",
            frozenset({"causal", "window", "softcap", "alibi", "dropout", "packed"}), _flash("flash_attn", -1),
        ),
        Peer(
            "fa4", "flash_attn.cute", frozenset({"causal", "window", "softcap", "sink", "packed"}),
            _flash("flash_attn.cute", None),
        ),
        Peer("fla", "fla", frozenset({"causal", "window", "decay", "packed"}), _fla, frozenset({"causal"})),
    )
}  # fmt: skip
