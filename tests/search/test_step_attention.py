"""Attention to pages is attention to a row of keys; Triton's interpreter computes it."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nmt.search.on_gpu import PAGE, gathered, slots_of

pytest.importorskip("triton", reason="Triton is not installed")
from triton.runtime import interpreter

from nmt.search import step_attention as kernel
from nmt.search.step_attention import step_attention

HEADS, PLACES, TILE = 2, 160, kernel.TILE.value
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3}  # bf16 is computed wrongly by the interpreter
SOURCES = [1, 15, 16, 17, TILE - 1, TILE, TILE + 1, 130, 0]
EXTENTS = [130, TILE + 1, TILE, TILE - 1, 17, 16, 15, 4, 4]  # of a row's places; the last row is nobody's


@pytest.fixture(autouse=True)
def bounds_of_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy makes no number of an array of one element any more, which the interpreter does for `range`."""
    patch = interpreter._patch_lang_tensor

    def patch_too(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patch_too)


class Rows:
    """Pages in random order, filled with random keys and values, and hypotheses that see some of them."""

    def __init__(self, beam: int, widths: tuple[int, int], dtype: torch.dtype) -> None:
        torch.manual_seed(1)
        needed = [-(-source // PAGE) - (-extent // PAGE) for source, extent in zip(SOURCES, EXTENTS, strict=True)]
        needed[-1] = 0
        order = torch.randperm(sum(needed)) + 1
        self.table = torch.zeros((len(SOURCES), 1 + max(needed)), dtype=torch.int32)
        self.table[:, 0] = torch.tensor(SOURCES)
        for row, pages in enumerate(order.split(needed)):
            self.table[row, 1 : 1 + len(pages)] = pages
        self.widths, self.pool = widths, torch.randn((1 + sum(needed)) * PAGE, HEADS * sum(widths)).to(dtype)
        self.seen, self.newest = torch.zeros((len(SOURCES), PLACES, beam), dtype=torch.bool), []
        for row, extent in enumerate(EXTENTS):
            self.seen[row, :extent] = torch.rand(extent, beam) < 0.5
            self.newest.append(torch.randperm(extent)[:beam])
            self.seen[row, self.newest[-1]] = torch.eye(beam, dtype=torch.bool)
            self.hide(row)
        self.query = torch.randn(len(SOURCES), beam, HEADS * (2 * widths[0] + widths[1])).to(dtype)

    def hide(self, row: int) -> None:
        """What nobody sees is infinite."""
        first = -(-SOURCES[row] // PAGE) * PAGE
        unseen = (~self.seen[row, : EXTENTS[row]].any(1)).nonzero().T
        at = slots_of(self.table[row : row + 1], first + unseen) if row < len(SOURCES) - 1 else unseen
        self.pool[at] = math.inf

    def given(self, own: bool) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, Tensor, Tensor] | None]:
        query = self.query if own else self.query[:, :, : HEADS * self.widths[0]].contiguous()
        places = torch.stack(self.newest), self.seen, torch.tensor(EXTENTS, dtype=torch.int32)
        return query, self.pool.clone(), self.table, places if own else None

    def exact(self, own: bool) -> Tensor:
        """By the formula, in fp64, one hypothesis after another; the last row is left out."""
        query, pool, table, _ = self.given(own)
        sizes = [HEADS * width for width in (self.widths[0], *self.widths)]
        mixed = torch.zeros(len(SOURCES) - 1, query.size(1), HEADS, self.widths[1], dtype=torch.float64)
        for row, (source, extent) in enumerate(zip(SOURCES[:-1], EXTENTS[:-1], strict=True)):
            first = -(-source // PAGE) * PAGE
            at = torch.arange(first, first + extent) if own else torch.arange(source)
            states = pool[slots_of(table[row : row + 1], at[None])[0]].double().split(sizes[1:], 1)
            for number, each in enumerate(query[row].double()):
                q, *new = (part.view(HEADS, -1) for part in each.split(sizes if own else sizes[:1]))
                keys, values = (each.unflatten(1, (HEADS, -1)) for each in states)
                for of, newest in zip((keys, values), new, strict=own):
                    of[self.newest[row][number]] = newest
                visible = self.seen[row, :extent, number] if own else at >= 0
                scores = torch.einsum("shd,hd->sh", keys[visible], q) / math.sqrt(self.widths[0])
                mixed[row, number] = torch.einsum("sh,shd->hd", scores.softmax(0), values[visible])
        return mixed.flatten(2)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=["fp32", "fp16"])
@pytest.mark.parametrize(("beam", "widths"), [(4, (64, 64)), (1, (16, 24)), (3, (24, 16))])
@pytest.mark.parametrize("own", [True, False], ids=["own places", "source"])
def test_both_ways_are_the_formula(own: bool, beam: int, widths: tuple[int, int], dtype: torch.dtype) -> None:
    rows = Rows(beam, widths, dtype)
    expected, stored = rows.exact(own), []
    for has_kernel in (True, False):
        query, pool, table, places = rows.given(own)
        kernel = partial(step_attention, table=table, own=places, page=PAGE)
        way = kernel if has_kernel else gathered(table, places, dtype)
        found = way(query, pool, heads=HEADS, widths=widths)
        assert found.dtype == dtype
        assert (found[:-1].double() - expected).abs().max() <= TOLERANCE[dtype] * expected.abs().max()
        assert found.isfinite().all()
        stored.append(pool[PAGE:])
    assert torch.equal(*stored)


@pytest.mark.parametrize(("beam", "width"), [(4, 64), (21, 128)])
def test_the_kernel_of_an_h100_spills_no_registers(beam: int, width: int) -> None:
    script = Path(__file__).parents[1] / "support" / "compiled_attention.py"
    own = {**os.environ, "TRITON_INTERPRET": "0"}
    command = [sys.executable, script, "90", "step", str(width), str(beam)]
    done = subprocess.run(command, env=own, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        _, spilled, shared = map(int, line.split()[1:])
        assert (spilled, shared <= 100 * 1024) == (0, True), line
