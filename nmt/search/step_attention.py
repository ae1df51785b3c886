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
    page = tl.load(pages + places // PAGE, exists, 0).to(tl.int64)
    return page * PAGE + places % PAGE


@triton.jit
def _copied(source, target, mask):
    """Copy the values that `mask` selects from one address to another; return them."""
    values = tl.load(source, mask, 0.0)
    tl.store(target, values, mask)
    return values


@triton.jit
def _add(scores, values, highest, total, sums):
    """Add a tile's scores, for powers of 2, to a softmax: to the highest one, and to sums of powers and of products."""
    higher = tl.maximum(highest, tl.max(scores, 1))
    base = tl.where(higher > -float("inf"), higher, 0.0)
    powers = tl.exp2(scores - base[:, None])
    shrunk = tl.exp2(highest - base)
    products = tl.dot(powers.to(values.dtype), values, input_precision="ieee")
    total = total * shrunk + tl.sum(powers, 1)
    sums = sums * shrunk[:, None] + products
    return higher, total, sums


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
    head = tl.program_id(0)
    heads = tl.num_programs(0)
    row = tl.program_id(1).to(tl.int64)
    hypotheses = tl.arange(0, BEAM)[:, None]
    tile = tl.arange(0, TILE)
    block = tl.arange(0, BLOCK)
    exists = hypotheses < beam
    k_inside = block < K_WIDTH
    v_inside = block < V_WIDTH
    keys = heads * K_WIDTH
    width = heads * (K_WIDTH + V_WIDTH)
    scale = 1.4426950408889634 * K_WIDTH**-0.5  # log₂ e, for powers of 2
    k_first = head * K_WIDTH
    v_first = keys + head * V_WIDTH
    rows = row * beam + hypotheses
    query += rows * (keys + width if OWN else keys) + block  # where each hypothesis's row begins
    q = tl.load(query + k_first, exists & k_inside, 0.0)
    pages = table + row * columns + 1
    length = tl.load(table + row * columns)
    first = 0
    end = length
    total = tl.zeros((BEAM,), tl.float32)
    highest = total - float("inf")
    sums = tl.zeros((BEAM, BLOCK), tl.float32)
    if OWN:  # the newest keys and values stay in registers; nothing that is stored here is read here
        first = (length + PAGE - 1) // PAGE * PAGE
        end = tl.load(extents + row)
        place = tl.load(newest + rows, exists, 0)
        own = pool + _slots(pages, first + place, exists, PAGE) * width + block
        key = _copied(query + keys + k_first, own + k_first, exists & k_inside)
        sums += _copied(query + keys + v_first, own + v_first, exists & v_inside)
        with_own = q.to(tl.float32) * key.to(tl.float32)
        highest = tl.sum(with_own, 1) * scale
        total += 1.0
    for start in range(0, end, TILE):
        numbers = start + tile
        visible = exists & (numbers < end)
        if OWN:
            seen_at = seen + (row * places + numbers) * beam + hypotheses
            visible &= tl.load(seen_at, visible, 0) != 0
            visible &= numbers != place  # which is counted already
        used = tl.max(visible.to(tl.int32), 0) != 0  # others may hold infinity, and 0 times that is not 0
        slots = _slots(pages, first + numbers, used, PAGE) * width
        k_at = pool + slots + (k_first + block)[:, None]
        v_at = pool + slots[:, None] + v_first + block
        k = tl.load(k_at, used & k_inside[:, None], 0.0)
        v = tl.load(v_at, used[:, None] & v_inside, 0.0)
        products = tl.dot(q, k, input_precision="ieee") * scale
        scores = tl.where(visible, products, -float("inf"))
        highest, total, sums = _add(scores, v, highest, total, sums)
    divisor = tl.where(total > 0.0, total, 1.0)  # the result is 0 where there is no key
    out = sums / divisor[:, None]
    at = rows * (width - keys) + head * V_WIDTH + block
    tl.store(mixed + at, out.to(q.dtype), exists & v_inside)


def constants(own: bool, page: int, widths: Sequence[int], beam: int) -> dict[str, int | bool]:
    """Return the constants of the kernel, whose every combination is compiled."""
    k_width, v_width = widths
    block = max(16, triton.next_power_of_2(max(widths)))
    rows = max(16, triton.next_power_of_2(beam))
    return {
        "OWN": own,
        "PAGE": page,
        "K_WIDTH": k_width,
        "V_WIDTH": v_width,
        "BLOCK": block,
        "BEAM": rows,
        "num_warps": 8 if block * rows > 2048 else 4,  # with fewer, registers would spill
    }


def step_attention(
    query: Tensor, pool: Tensor, table: Tensor, own: Any, heads: int, widths: Sequence[int], page: int
) -> Tensor:
    """Return softmax(Q Kᵀ / √d_k) V (n, k, h · d_v), over the places of hypotheses, or their source if `own` is None.

    `query` (n, k, …) and the others are contiguous, as the kernel describes them; `own` are `newest`, `seen` and
    `extents`. The newest keys and values are stored, too. `widths` are d_k and d_v.
    """
    n, k, _ = query.shape
    mixed = query.new_empty(n, k, heads * widths[1])
    newest, seen, extents = own or (table, table, table)  # which are not read then
    sizes = (k, table.size(1), seen.size(1))
    kernel = _attention[heads, n]
    compiled = constants(own is not None, page, widths, k)
    kernel(query, pool, mixed, table, newest, seen, extents, *sizes, **compiled)
    return mixed
