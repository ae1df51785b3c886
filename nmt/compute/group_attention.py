"""Attention of short packed sentences on a GPU, in Triton: a program for each head of each group of whole sentences.

All scores of a group fit one tile, so no sum goes over several. The backward pass computes the weights again; it needs
neither the result nor atomic additions, and writes the gradient of each projection whole. torch.compile launches the
kernels itself. Only `nmt.compute.gpu` imports this module, and only if Triton is installed.

Shapes: n tokens of one side, h heads, d the width of one head.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

# --- kernels ----------------------------------------------------------------------------------------------------------

# Loads stand in the kernels themselves: if a function loads what addresses of results are computed from, torch.compile
# thinks that its arguments are written to, and copies them.


@triton.jit
def _block(first, tokens, exists, stride, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Return where a head begins in a group's rows, the offsets (tile, block) from there, and which of them exist."""
    columns = tl.arange(0, BLOCK)
    inside = exists[:, None]
    if WIDTH < BLOCK:
        inside &= columns[None, :] < WIDTH
    begin = first.to(tl.int64) * stride + tl.program_id(0) * WIDTH
    return begin, tokens[:, None] * stride + columns[None, :], inside


@triton.jit
def _weights(q, k, first, end, WIDTH: tl.constexpr, TILE: tl.constexpr):
    """Return the weights (tile, tile) of keys; those from token `first` to before `end` are visible to a query."""
    tokens = tl.arange(0, TILE)[None, :]
    visible = (tokens >= first[:, None]) & (tokens < end[:, None])
    scores = tl.dot(q, tl.trans(k)) * (1.4426950408889634 * WIDTH**-0.5)  # log₂ e, for powers of 2
    scores = tl.where(visible, scores, -float("inf"))
    highest = tl.max(scores, 1)
    powers = tl.exp2(scores - tl.where(highest > -float("inf"), highest, 0.0)[:, None])
    total = tl.sum(powers, 1)
    return powers * (1.0 / tl.where(total > 0.0, total, 1.0))[:, None]  # 0 where there is no key


@triton.jit(do_not_specialize=["after"])
def _attention(
    query,  # (n, 3 · h · d) with keys and values if SELF, else (n, h · d)
    memory,  # (keys, 2 · h · d), keys and values; unused if SELF
    mixed,  # (n, h · d), the result; if BACKWARD, its gradient
    query_grad,  # as query, a result if BACKWARD
    memory_grad,  # as memory, a result if BACKWARD and not SELF
    groups,  # (groups + 1,), where groups of queries begin
    key_groups,  # (groups + 1,)
    segments,  # (n,), the sentences of queries
    key_bounds,  # (sentences + 1,), where sentences of keys begin
    after,
    SELF: tl.constexpr,
    BACKWARD: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
):
    group = tl.program_id(1)
    width = tl.num_programs(0) * WIDTH
    tokens = tl.arange(0, TILE)
    first = tl.load(groups + group)
    end = tl.load(groups + group + 1)
    if first == end:  # empty: one of those that make the number of groups round
        return
    exists = first + tokens < end
    row, row_at, inside = _block(first, tokens, exists, width, WIDTH, BLOCK)  # of the result
    if SELF:
        begin, at, inside = _block(first, tokens, exists, 3 * width, WIDTH, BLOCK)  # of the queries
        key_first = first
        key_at = at
        key_inside = inside
        keys = query + begin + width
        key_grads = query_grad + begin + width
    else:
        begin = row
        at = row_at
        key_first = tl.load(key_groups + group)
        key_exists = key_first + tokens < tl.load(key_groups + group + 1)
        key_begin, key_at, key_inside = _block(key_first, tokens, key_exists, 2 * width, WIDTH, BLOCK)
        keys = memory + key_begin
        key_grads = memory_grad + key_begin
    q = tl.load(query + begin + at, inside, 0.0)
    k = tl.load(keys + key_at, key_inside, 0.0)
    v = tl.load(keys + width + key_at, key_inside, 0.0)
    if BACKWARD:
        grad = tl.load(mixed + row + row_at, inside, 0.0)
    sentences = tl.load(segments + first + tokens, exists, 0)
    low = tl.load(key_bounds + sentences) - key_first
    high = tl.minimum(tl.load(key_bounds + sentences + 1) - key_first, tokens + after + 1)
    weights = _weights(q, k, low, tl.where(exists, high, 0), WIDTH, TILE)
    rounded = weights.to(q.dtype)
    if BACKWARD:
        v_grad = tl.dot(tl.trans(rounded), grad)
        tl.store(key_grads + width + key_at, v_grad.to(q.dtype), key_inside)
        slopes = tl.dot(grad, tl.trans(v))
        mean = tl.sum(weights * slopes, 1)[:, None]  # which the gradient of the softmax subtracts
        scores = (weights * (slopes - mean) * WIDTH**-0.5).to(q.dtype)
        q_grad = tl.dot(scores, k)
        tl.store(query_grad + begin + at, q_grad.to(q.dtype), inside)
        k_grad = tl.dot(tl.trans(scores), q)
        tl.store(key_grads + key_at, k_grad.to(q.dtype), key_inside)
    else:
        result = tl.dot(rounded, v)
        tl.store(mixed + row + row_at, result.to(q.dtype), inside)


# --- operators --------------------------------------------------------------------------------------------------------


def _constants(alone: bool, backward: bool, width: int, tile: int) -> dict[str, Any]:
    """Return the constants of a kernel, whose every combination is compiled."""
    block = max(16, triton.next_power_of_2(width))
    warps = 8 if backward and tile > 64 else 4  # with fewer, registers would spill; more are slower
    return {"SELF": alone, "BACKWARD": backward, "WIDTH": width, "BLOCK": block, "TILE": tile, "num_warps": warps}


@triton_op("nmt::group_attention", mutates_args={})
def group_attention(query: Tensor, memory: Tensor | None, lists: list[Tensor], numbers: list[int]) -> Tensor:
    """Return softmax(Q Kᵀ / √d) V of packed sentences (n, h · d), each group in a tile of 64 or 128 tokens.

    Without `memory`, `query` is (n, 3 · h · d) with queries, keys and values. With it, the keys and values of the other
    side (keys, 2 · h · d), `query` is (n, h · d). `lists` are int32: where groups of queries and of keys begin, each
    (groups + 1,); which sentence a query belongs to (n,); where a sentence's keys begin (sentences + 1,). `numbers` are
    the heads, the size of a tile, and how far after itself a query sees keys of its sentence; from the size on,
    this is no limit.
    """
    heads, tile, after = numbers
    query = query.contiguous()
    if memory is None:
        keys = query
        columns = query.size(1) // 3
    else:
        keys = memory.contiguous()
        columns = query.size(1)
    mixed = query.new_empty(query.size(0), columns)
    constants = _constants(memory is None, False, columns // heads, tile)
    kernel = wrap_triton(_attention)[heads, lists[0].size(0) - 1]
    kernel(query, keys, mixed, query, keys, *lists, after, **constants)
    return mixed


@triton_op("nmt::group_attention_backward", mutates_args={})
def group_attention_backward(
    grad: Tensor, query: Tensor, memory: Tensor | None, lists: list[Tensor], numbers: list[int]
) -> list[Tensor]:
    """Return the gradients of `query` and, if given, `memory`, for that of the result of `group_attention`."""
    heads, tile, after = numbers
    grad = grad.contiguous()
    query = query.contiguous()
    grads = [torch.empty_like(query)]
    keys = query
    memory_grad = query  # unused
    if memory is not None:
        keys = memory.contiguous()
        memory_grad = torch.empty_like(keys)
        grads.append(memory_grad)
    constants = _constants(memory is None, True, grad.size(1) // heads, tile)
    kernel = wrap_triton(_attention)[heads, lists[0].size(0) - 1]
    kernel(query, keys, grad, grads[0], memory_grad, *lists, after, **constants)
    return grads


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    query, memory, lists, ctx.numbers = inputs
    ctx.save_for_backward(query, memory, *lists)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    query, memory, *lists = ctx.saved_tensors
    query_grad, *others = group_attention_backward(grad, query, memory, lists, ctx.numbers)
    memory_grad = None if memory is None else others[0]
    return query_grad, memory_grad, [None] * len(lists), None


group_attention.register_autograd(_gradients, setup_context=_save)
