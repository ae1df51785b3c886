"""The C kernels that choose how hypotheses go on, in each library that this processor can run."""

from __future__ import annotations

import math
from ctypes import CDLL

import pytest
import torch
from compiled import assert_close, numbers, pointer
from torch import Tensor
from torch.nn import functional as F

from nmt.search.choosing import BeamOperations, Beams, Candidates
from nmt.search.in_c import BeamOperationsInC


@pytest.mark.parametrize(("vocabulary", "width"), [(4, 4), (9, 16), (61, 64), (64, 64), (100, 128), (203, 256), (7, 9)])
@pytest.mark.parametrize("spread", [0.0, 1.0, 80.0, 1e4])
def test_log_softmax(functions: CDLL, vocabulary: int, width: int, spread: float) -> None:
    reserved = 3
    logits = spread * (2 * torch.rand((5, width), generator=torch.Generator().manual_seed(1)) - 1)
    logits[:, vocabulary:] = 1e9  # must not count
    logits[1] += 7.0
    expected = logits[:, :vocabulary].double().log_softmax(-1)
    found = logits.clone()
    functions.nmt_log_softmax(*found.shape, vocabulary, reserved, found.data_ptr())
    # The logarithm of the sum is added to the largest logit, and rounded with it.
    assert_close(found[:, reserved:vocabulary], expected[:, reserved:], magnitude=max(1.0, spread / 10))
    assert found[:, :reserved].isneginf().all()
    assert found[:, vocabulary:].isneginf().all()


def whole_sort(log_probs: Tensor, alive: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of equals, the first comes first."""
    width = log_probs.size(2)
    totals = F.pad((log_probs + alive[:, :, None]).flatten(1), (0, count), value=-math.inf)
    best, index = totals.sort(dim=1, descending=True, stable=True)
    best, index = best[:, :count], index[:, :count].masked_fill(best[:, :count].isneginf(), 0)
    return best, index // width, index % width


@pytest.mark.parametrize(("beam", "count"), [(1, 1), (1, 4), (4, 8), (9, 18), (5, 300)])
@pytest.mark.parametrize("width", [1, 5, 16, 129, 1024])
@pytest.mark.parametrize("steps", [0, 3])  # numbers are rounded to so many values, so that many are equal
def test_best_extensions(functions: CDLL, beam: int, count: int, width: int, steps: int) -> None:
    log_probs, alive = numbers(4, beam, width, seed=1), numbers(4, beam, seed=2)
    if steps:
        log_probs, alive = (log_probs * steps / 3).round(), alive.round()
    log_probs[1, :, ::3] = -math.inf
    log_probs[2, :, 1:] = -math.inf  # fewer than are wanted
    alive[1, 1:] = -math.inf
    alive[3] = -math.inf  # nothing at all
    found = torch.full((4, count), math.nan), *torch.full((2, 4, count), -7)
    functions.nmt_best_extensions(4, beam, width, count, *map(pointer, (log_probs, alive, *found)))
    expected = whole_sort(log_probs, alive, count)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


# --- which candidates end ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "beam", "n_best"), [(1, 1, 1), (5, 2, 1), (5, 2, 2), (40, 4, 1), (40, 4, 3)])
def test_candidates_end_or_stay_alive(functions: CDLL, rows: int, beam: int, n_best: int) -> None:
    vocabulary, count, cap = 11, 2 * beam if beam > 1 else 1, 9
    random = torch.Generator().manual_seed(rows + beam)
    shape = rows, count
    totals = numbers(*shape).sort(1, descending=True).values - 3.0
    totals[numbers(*shape, seed=1).sort(1).values > 1.0] = -math.inf
    parents, symbols = torch.randint(0, beam, shape, generator=random), torch.randint(2, 6, shape, generator=random)
    positions, caps = torch.randint(0, cap, (rows, 1), generator=random), torch.full((rows, 1), cap)
    scores = (numbers(rows, beam, seed=2) - 1.0).sort(1, descending=True).values
    scores[numbers(rows, beam, seed=3).sort(1).values > 0.0] = -math.inf
    finished, finished_at = torch.randint(0, 99, (2, rows, beam), generator=random)
    penalties = torch.linspace(1.0, 2.0, cap + 1)

    zeros = torch.zeros((rows, beam), dtype=torch.int64)
    ways, links = [BeamOperations(), BeamOperationsInC(functions)], torch.full((2, rows, cap, beam), -1)
    (expected, right), (found, done) = (
        way.choose_(
            Beams(caps, zeros, zeros, zeros + 0.0, finished.clone(), finished_at.clone(), scores.clone(), zeros[:, :1]),
            Candidates(totals, parents, symbols),
            *(of_way, positions, penalties, n_best, vocabulary),
        )
        for way, of_way in zip(ways, links, strict=True)
    )
    for name in ("totals", "scores"):
        assert torch.equal(getattr(found, name), getattr(expected, name))
    assert torch.equal(done, right)
    # What belongs to a total of -inf is arbitrary, also of those that were pruned.
    for names, total in ((("ends", "positions"), found.scores), (("parents", "symbols"), found.totals)):
        for name in names:
            assert torch.equal(getattr(found, name)[total > -math.inf], getattr(expected, name)[total > -math.inf])
    one, other = links[:, torch.arange(rows), positions[:, 0]]
    assert torch.equal(one[found.totals > -math.inf], other[found.totals > -math.inf])
    assert torch.equal(links[1].ne(-1).any(2).sum(1), torch.ones(rows, dtype=torch.int64))
    assert 0 <= int(found.parents.min()) <= int(found.parents.max()) < beam
