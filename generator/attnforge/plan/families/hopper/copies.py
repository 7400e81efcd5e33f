"""Copies that the loading warp of kernels for Hopper GPUs starts: each moves a tile into one stage of a buffer."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from ...parameters import Parameter
from ...shared_parameters import SharedParameters
from ...statements import Block, Branch, Comment, Loop, Statement

_CLEAR = Comment("clear what lies behind the sequence: 0 times a NaN would be NaN")
_COME: tuple[Block, ...] = (Statement("", "mbarrier.wait(come, ends & 1)"), Statement("ends", "1", "+="))


def arrival(p: SharedParameters, name: str) -> Statement:
    """The statement that makes the barrier for the arrival of tiles that reach behind their sequence."""
    return Statement(name, p.storage.arrival("barriers(1, 1).index(0)"))


def sources(p: SharedParameters, *names: str) -> Iterable[Parameter]:
    """The parameters of tiles: descriptors in any call, as the loader clears what they read behind a sequence."""
    return (dataclasses.replace(q, condition="") for q in p.operands(*names))


def values(p: SharedParameters) -> tuple[Block, ...]:
    """The statements that copy a tile of values, after the copy of its keys was started."""
    tail: tuple[Block, ...] = (
        _CLEAR,
        *_copied("v", "v_come"),
        Statement("", "mbarrier.wait(v_come, ends & 1)"),
        Statement("", "clear_behind(matrix(v_buffer, stage), k_len - k_start, BLOCK_N)"),
        Statement("", "mbarrier.arrive(v_ready.index(stage), count=1)"),
        Statement("ends", "1", "+="),
    )
    reaches = p.storage.reaches("k")
    return (Branch(reaches, tail, _copied("v", "v_ready.index(stage)")), Statement("", "return ends"))


def keys(p: SharedParameters) -> tuple[Block, ...]:
    """The statements that copy a program's keys and values in the backward pass."""
    rows = p.storage.coordinates("k", p.analysis.kv, "k_start + worker * 64")
    ready = "kv_ready.index(stage)"

    def copied(barrier: str) -> tuple[Block, ...]:
        size = "WORKERS * (k_desc.block_type.nbytes + v_desc.block_type.nbytes)"
        copies = (
            Statement("rows", f"[{rows}]"),
            Statement("", f"copy_tile(k_desc, rows, {barrier}, k_buffer.index(stage * WORKERS + worker))"),
            Statement("", f"copy_tile(v_desc, rows, {barrier}, v_buffer.index(stage * WORKERS + worker))"),
        )
        return (Statement("", f"mbarrier.expect({barrier}, {size})"), _per_worker(copies))

    count = "k_len - k_start - worker * 64"
    clears = tuple(
        Statement("", f"clear_behind(matrix({x}_buffer, stage * WORKERS + worker), {count}, 64)") for x in ("k", "v")
    )
    arrived = Statement("", f"mbarrier.arrive({ready}, count=1)")
    tail = (_CLEAR, *copied("come"), *_COME, _per_worker(clears), arrived)
    return (Branch(p.storage.reaches("k"), tail, copied(ready)),)


def queries(p: SharedParameters) -> tuple[Block, ...]:
    """The statements that copy a tile of queries and a tile of dout in the backward pass."""
    plain = (*_copied("q", "q_ready.index(stage)"), *_copied("dout", "dout_ready.index(stage)"))
    tail: list[Block] = [_CLEAR]
    for x in ("q", "dout"):
        tail += (*_copied(x, "come"), *_COME)
        tail.append(Statement("", f"clear_behind(matrix({x}_buffer, stage), q_len - q_start, BLOCK_M)"))
        tail.append(Statement("", f"mbarrier.arrive({x}_ready.index(stage), count=1)"))
    return (Branch(p.storage.reaches("q"), tuple(tail), plain),)


def _copied(x: str, barrier: str) -> tuple[Statement, ...]:
    """The statements that copy the current rows of a tensor into a stage; a barrier counts the bytes."""
    copy = f"copy_tile({x}_desc, rows, {barrier}, {x}_buffer.index(stage))"
    return Statement("", f"mbarrier.expect({barrier}, {x}_desc.block_type.nbytes)"), Statement("", copy)


def _per_worker(body: tuple[Block, ...]) -> Block:
    return Loop("worker", "0", "WORKERS", body, static=True)
