"""Attention in groups of sentences is attention of one sentence after another; Triton's interpreter computes it."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from padded import padded
from torch import Tensor

from nmt.compute.gpu import GPU, attention_tiles
from nmt.model.operations import PLAIN
from nmt.model.transformer import Transformer, computed_by
from nmt.recipe import Model
from nmt.training.batches import Packer
from nmt.training.loss import Objective

pytest.importorskip("triton", reason="Triton is not installed")
from nmt.compute import group_attention as tiles

HEADS = 2
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3}  # bf16 is computed wrongly by the interpreter


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "wrap_triton", lambda kernel: kernel)


def one_by_one(q: Tensor, k: Tensor, v: Tensor, queries: list[int], keys: list[int], after: int) -> Tensor:
    """(n, h · d): by the formula, in which sentences without keys have no result."""
    mixed = []
    for rows in zip(q.split(queries), k.split(keys), v.split(keys), strict=True):
        query, key, value = (part.transpose(0, 1) for part in rows)
        away = torch.arange(key.size(1)) - torch.arange(query.size(1))[:, None]
        scores = query @ key.transpose(1, 2) / math.sqrt(q.size(2))
        mixed.append((scores.masked_fill(away > after, -math.inf).softmax(-1) @ value).transpose(0, 1).flatten(1))
    return torch.cat(mixed)


def lists_of(groups: list[list[int]]) -> tuple[Tensor, Tensor, Tensor]:
    """Bounds of groups, the sentence of each token, and bounds of sentences."""
    lengths = torch.tensor([length for group in groups for length in group])
    ends = [torch.tensor([0, *each]).cumsum(0).int() for each in (map(sum, groups), lengths.tolist())]
    return ends[0], torch.arange(len(lengths)).repeat_interleave(lengths).int(), ends[1]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=["fp32", "fp16"])
@pytest.mark.parametrize(("tile", "width"), [(64, 64), (128, 24)])
@pytest.mark.parametrize("way", ["all", "causal", "cross"])
def test_results_and_gradients_are_those_of_single_sentences(
    way: str, tile: int, width: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(1)
    queries = [[1, 15, 16, 17, 1], [tile - 1, 1], [tile], [2], [], [3, tile - 4]]
    keys = [[5, 1, 30, 8, 9], [1, tile - 1], [0], [tile], [], [1, 1]]
    after = 0 if way == "causal" else tile
    groups, segments, bounds = lists_of(queries)
    others, _, key_bounds = lists_of(keys) if way == "cross" else (groups, segments, bounds)
    shapes = [(len(segments), 1), (int(others[-1]), 2)] if way == "cross" else [(len(segments), 3)]
    given = [torch.randn(rows, parts * HEADS * width).to(dtype).requires_grad_() for rows, parts in shapes]
    grad = torch.randn(len(segments), HEADS * width).to(dtype)
    memory = given[1] if way == "cross" else None
    lists = [groups, others, segments, key_bounds]
    found = tiles.group_attention(given[0], memory, lists, [HEADS, tile, after])
    exact = [x.detach().double().requires_grad_() for x in given]
    parts = [part for x in exact for part in x.view(len(x), -1, HEADS, width).unbind(1)]
    lengths = [torch.diff(each).tolist() for each in (bounds, key_bounds)]
    right = one_by_one(*parts, *lengths, after)
    results = [found, *torch.autograd.grad(found, given, grad)]
    for ours, theirs in zip(results, [right, *torch.autograd.grad(right, exact, grad.double())], strict=True):
        assert ours.dtype == dtype
        assert (ours.double() - theirs).abs().max() <= TOLERANCE[dtype] * theirs.abs().max()


@pytest.mark.parametrize("longest", [60, 100])
def test_losses_and_gradients_are_those_of_padded_batches(longest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    config = Model(layers=1, d_model=32, d_ff=24, heads=2, dropout=0.0)
    model = Transformer(config, 60, 60)
    draw = np.random.default_rng(1)
    sides = [[draw.integers(4, 60, length).tolist() for length in (3, longest - 1, 0, 20, 31, 1)] for _ in range(2)]
    batch = padded(*sides)
    monkeypatch.setattr(GPU, "packed_attention", lambda *_: pytest.fail("not in groups"))
    results = []
    for way, each in ((GPU(), Packer(400, 150, [64, 128]).pack(batch, 400)), (PLAIN, batch)):
        objective = Objective(computed_by(model, way), 0.1)
        objective.zero_grad()
        loss, _ = objective(each)
        loss.backward()
        results.append([loss.detach().clone(), *(parameter.grad.clone() for parameter in objective.parameters())])
    for ours, theirs in zip(*results, strict=True):
        assert (ours - theirs).norm() <= 1e-5 * theirs.norm() + 1e-6


@pytest.mark.parametrize(("width", "tile"), [(64, 64), (128, 64), (64, 128)])
def test_kernels_of_an_h100_spill_no_registers(width: int, tile: int) -> None:
    script = Path(__file__).parents[1] / "support" / "compiled_attention.py"
    own = {**os.environ, "TRITON_INTERPRET": "0"}
    done = subprocess.run(
        [sys.executable, script, "90", "group", str(width), str(tile)], env=own, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        _, spilled, shared = map(int, line.split()[2:])
        assert (spilled, shared <= 100 * 1024) == (0, True), line


def test_tiles_are_for_heads_that_fit_them_and_for_new_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    there = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert attention_tiles(Model(d_model=512, heads=8), there) == [64, 128]
    assert attention_tiles(Model(d_model=512, heads=4), there) == [64]
    assert attention_tiles(Model(d_model=512, heads=2), there) == []
    assert attention_tiles(Model(), torch.device("cpu")) == []
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert attention_tiles(Model(d_model=512, heads=8), there) == [64]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert attention_tiles(Model(d_model=512, heads=8), there) == []
