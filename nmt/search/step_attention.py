"""Attention in a step of a search on a GPU, in Triton: a program for each head of each sentence.

Keys and values lie in pages, which a table lists, and the device knows how many there are: a program reads as far as
its own sentence needs, whatever the others need. Each score is a part of one softmax, computed tile by tile. Only
`nmt.search.on_gpu` imports this module, and only if Triton is installed.

Shapes: n rows (sentences), k hypotheses per row, h heads of width d_k (keys) and d_v (values).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

TILE = tl.constexpr(64)  # places that a program reads at a time


@triton.jit
def _slots(pages, places, exists, PAGE: tl.constexpr):
    return tl.load(pages + places // PAGE, exists, 0).to(tl.int64) * PAGE + places % PAGE


@triton.jit
def _moved(source, target, mask):
    """Copy values, and return them."""
    values = tl.load(source, mask, 0.0)
    tl.store(target, values, mask)
    return values


@triton.jit
def _add(scores, values, highest, total, sums):
    """Add a tile's scores, for powers of 2, to a softmax: to the highest one, and to sums of powers and of products."""
    higher = tl.maximum(highest, tl.max(scores, 1))
    base = tl.where(higher > -float("inf"), higher, 0.0)
    powers, shrunk = tl.exp2(scores - base[:, None]), tl.exp2(highest - base)
    products = tl.dot(powers.to(values.dtype), values, input_precision="ieee")
    return higher, total * shrunk + tl.sum(powers, 1), sums * shrunk[:, None] + products


@triton.jit(do_not_specialize=["beam", "columns", "places"])
def _attention(
    query,  # (n · k, h · (2 d_k + d_v)), queries, keys and values, if OWN, else (n · k, h · d_k)
    pool,  # (slots, h · (d_k + d_v)), keys and values
    mixed,  # (n · k, h · d_v), the result
    table,  # (n, columns = 1 + pages), of each row its source's length, and its pages
    newest,  # (n, k), places of the newest keys and values, if OWN, as all below
    seen,  # (n, places, k), which places each hypothesis attends to
    extents,  # (n,), places up to the last that one attends to
    beam,
    columns,
    places,
    OWN: tl.constexpr,
    PAGE: tl.constexpr,
    K_WIDTH: tl.constexpr,
    V_WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    BEAM: tl.constexpr,
):
    head, heads, row = tl.program_id(0), tl.num_programs(0), tl.program_id(1).to(tl.int64)
    hypotheses, tile, block = tl.arange(0, BEAM)[:, None], tl.arange(0, TILE), tl.arange(0, BLOCK)
    exists, k_inside, v_inside = hypotheses < beam, block < K_WIDTH, block < V_WIDTH
    keys, width, scale = heads * K_WIDTH, heads * (K_WIDTH + V_WIDTH), 1.4426950408889634 * K_WIDTH**-0.5  # log₂ e
    k_first, v_first, rows = head * K_WIDTH, keys + head * V_WIDTH, row * beam + hypotheses
    query += rows * (keys + width if OWN else keys) + block
    q = tl.load(query + k_first, exists & k_inside, 0.0)
    pages, length = table + row * columns + 1, tl.load(table + row * columns)
    first, end, total = 0, length, tl.zeros((BEAM,), tl.float32)
    highest, sums = total - float("inf"), tl.zeros((BEAM, BLOCK), tl.float32)
    if OWN:  # the newest keys and values stay in registers; nothing that is stored here is read here
        first, end = (length + PAGE - 1) // PAGE * PAGE, tl.load(extents + row)
        place = tl.load(newest + rows, exists, 0)
        own = pool + _slots(pages, first + place, exists, PAGE) * width + block
        key = _moved(query + keys + k_first, own + k_first, exists & k_inside)
        sums += _moved(query + keys + v_first, own + v_first, exists & v_inside)
        highest, total = tl.sum(q.to(tl.float32) * key.to(tl.float32), 1) * scale, total + 1.0
    for start in range(0, end, TILE):
        numbers = start + tile
        visible = exists & (numbers < end)
        if OWN:
            visible &= tl.load(seen + (row * places + numbers) * beam + hypotheses, visible, 0) != 0
            visible &= numbers != place
        used = tl.max(visible.to(tl.int32), 0) != 0  # others may hold infinity, and 0 times that is not 0
        slots = _slots(pages, first + numbers, used, PAGE) * width
        k = tl.load(pool + slots + (k_first + block)[:, None], used & k_inside[:, None], 0.0)
        v = tl.load(pool + slots[:, None] + v_first + block, used[:, None] & v_inside, 0.0)
        scores = tl.where(visible, tl.dot(q, k, input_precision="ieee") * scale, -float("inf"))
        highest, total, sums = _add(scores, v, highest, total, sums)
    out = (sums / tl.where(total > 0.0, total, 1.0)[:, None]).to(q.dtype)  # 0 where there is no key
    tl.store(mixed + rows * (width - keys) + head * V_WIDTH + block, out, exists & v_inside)


def constants(own: bool, page: int, widths: Sequence[int], beam: int) -> dict[str, int | bool]:
    """Return the constants of the kernel, whose every combination is compiled."""
    blocks = [max(16, triton.next_power_of_2(each)) for each in (max(widths), beam)]
    warps = 8 if blocks[0] * blocks[1] > 2048 else 4  # with fewer, registers would spill
    names = ("OWN", "PAGE", "K_WIDTH", "V_WIDTH", "BLOCK", "BEAM", "num_warps")
    return dict(zip(names, (own, page, *widths, *blocks, warps), strict=True))


def step_attention(
    query: Tensor, pool: Tensor, table: Tensor, own: Any, heads: int, widths: Sequence[int], page: int
) -> Tensor:
    """Return softmax(Q Kᵀ / √d_k) V (n, k, h · d_v), over the places of hypotheses, or their source if `own` is None.

    `query` (n, k, …) and the others are contiguous, as the kernel describes them; `own` are `newest`, `seen` and
    `extents`. The newest keys and values are stored, too. `widths` are d_k and d_v.
    """
    n, k, _ = query.shape
    mixed, (newest, seen, extents) = query.new_empty(n, k, heads * widths[1]), own or (table, table, table)
    _attention[heads, n](
        *(query, pool, mixed, table, newest, seen, extents, k, table.size(1), seen.size(1)),
        **constants(own is not None, page, widths, k),
    )
    return mixed
