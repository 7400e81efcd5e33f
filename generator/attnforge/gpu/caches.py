"""Calls of `attend_with_cache` to time: queries of an `attention` call become new tokens at the end of a full cache."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..plan.cached_arguments import CachedArgument
from ..plan.plan import Plan
from .calls import Call

if TYPE_CHECKING:
    import torch

PAGE = 16  # places in a page
PAGED = f"pages of {PAGE}"  # the contender's name


def read_from(planned: Plan, call: Call) -> Call:
    """The call, without gradients and as a cache holds it: values of latent heads are columns of their keys."""
    q, k, v = (x.detach() for x in call.operands)
    keywords = {name: x.detach() if hasattr(x, "detach") else x for name, x in call.keywords.items()}
    v = k[..., : v.shape[-1]] if planned.spec.latent and k.shape[-1] > 512 else v
    return Call(call.sizes, (q, k, v), keywords, ())


def bytes_of_key(call: Call) -> int:
    """The bytes in a cache of one key and its value, over all heads."""
    _, k, v = call.operands
    columns = k.shape[-1] + (0 if v.data_ptr() == k.data_ptr() else v.shape[-1])
    return int(k.shape[-2] * columns * k.element_size())


def function(package: Any, planned: Plan, call: Call, page: int = 0) -> Callable[[], torch.Tensor]:
    """The call over a cache, contiguous or in shuffled pages, with all its buffers allocated."""
    import torch

    assert planned.decode is not None
    decode = importlib.import_module(f"{package.__name__}.decode")
    q, k, v = call.operands
    sequences, keys = k.shape[:2]
    if page and keys % page:
        raise ValueError(f"{keys} keys do not fill pages of {page}")
    order, pages, places = torch.arange(sequences * keys, device=k.device), {}, (sequences, keys)
    if page:
        places = (-1, page)
        table = torch.randperm(sequences * keys // page, device=k.device).view(sequences, -1)
        order = (table[..., None] * page + order[:page]).flatten()
        pages = {"page_table": table.int()}

    def stored(x: torch.Tensor) -> torch.Tensor:
        """A tensor of values per key, (B, keys, ...), in the order of the cache."""
        made = torch.empty_like(x).flatten(0, 1)
        made[order] = x.flatten(0, 1)
        return made.view(*places, *x.shape[2:])

    k_cache, v_cache = (x.new_zeros(x.shape).view(*places, *x.shape[2:]) for x in (k, v))
    if v.data_ptr() == k.data_ptr():
        v_cache = k_cache[..., : v.shape[-1]]
    told = dict(call.keywords)
    counted = {"positions": torch.arange(keys, device=k.device).repeat(sequences)} if planned.spec.rope else {}
    asked = inspect.signature(decode.append).parameters
    turned = {name: x for name, x in (told | counted).items() if name in asked}
    decode.append(k.flatten(0, 1), v.flatten(0, 1), k_cache, v_cache, order, **turned)
    for one in planned.decode.arguments:
        if one.argument.name in told and page and "page" in one.shape:
            told[one.argument.name] = _by_key(told[one.argument.name], one, stored)
    lengths = torch.full((sequences,), keys, device=k.device, dtype=torch.int32)
    size = decode.workspace_size(q, k_cache, v_cache, max_seqlen_q=q.shape[1], max_seqlen_k=keys)
    room = {"out": q.new_empty(*q.shape[:-1], v.shape[-1]), "workspace": q.new_empty(size, dtype=torch.float32)}

    def called() -> torch.Tensor:
        found: torch.Tensor = decode.attend_with_cache(q, k_cache, v_cache, lengths, **pages, **room, **told)
        return found

    return called


def _by_key(x: torch.Tensor, one: CachedArgument, stored: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """An argument with values per key, stored like keys."""
    kinds = [axis.kind for axis in one.argument.axes]
    places = kinds.index("batch"), next(i for i, kind in enumerate(kinds) if kind in ("key", "token"))
    return stored(x.movedim(places, (0, 1)).contiguous()).movedim((0, 1), places)
