"""decoding.no_repeat: no n-gram twice, and otherwise the search that there is without."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from queues import Pile
from reference_search import random_model, ruled_search

from nmt.model.transformer import Transformer
from nmt.recipe import Decoding
from nmt.search.beam import SearchEngine
from nmt.search.constraints import NoRepeat
from nmt.search.sources import Source
from nmt.search.state import Newest

VOCABULARY = 40
FAVOURITE = 7
SOURCES = [Source(n, [4 + (7 * n + 5 * i) % 36 for i in range(1 + n % 7)], cap=8 + n % 13) for n in range(18)]


def repeats(ids: Sequence[int], n: int) -> bool:
    grams = [tuple(ids[at : at + n]) for at in range(len(ids) - n + 1)]
    return len(set(grams)) < len(grams)


def forbidden(ids: Sequence[int], n: int) -> list[int]:
    return [symbol for symbol in range(4, VOCABULARY) if repeats([*ids, symbol], n)]


def allowed(ids: Sequence[int], n: int) -> set[int]:
    return set(range(VOCABULARY)) - set(forbidden(ids, n))


def engine_of(models: Sequence[Transformer], n: int, **decoding: Any) -> SearchEngine:
    return SearchEngine(models, Decoding(**decoding), [partial(NoRepeat, n)])


@pytest.mark.parametrize(("n", "beam"), [(1, 1), (2, 4), (3, 4)])
def test_the_fast_search_finds_what_the_plain_one_finds(n: int, beam: int) -> None:
    models = [random_model(VOCABULARY, VOCABULARY, FAVOURITE, 2.0, seed) for seed in (3, 4)]
    free = SearchEngine(models, Decoding(beam=beam))
    looping = sum(repeats(found[0].ids, n) for _, found in free.search(Pile(SOURCES), 1))
    assert looping > 6  # of 18: worth forbidding
    expected = ruled_search(models, SOURCES, lambda source, ids: allowed(ids, n), beam=beam, alpha=0.6, n_best=beam)
    assert not any(repeats(hypothesis.ids, n) for hypotheses in expected for hypothesis in hypotheses)
    for tokens in (20, 4096):
        found = sorted(engine_of(models, n, beam=beam, batch_tokens=tokens).search(Pile(SOURCES), beam))
        for (_, one), other in zip(found, expected, strict=True):
            assert [h.ids for h in one] == [h.ids for h in other]
            assert [h.score for h in one] == pytest.approx([h.score for h in other], rel=1e-6, abs=1e-5)


def test_where_nothing_else_is_left_a_repetition_is_allowed() -> None:
    """Three symbols cannot fill an output of ten."""
    rule = NoRepeat(1, 1, torch.device("cpu"))
    state, seen = rule.begin([Source(0, [5], cap=20)], 0), []
    for position in range(10):
        log_probs = torch.full((1, 1, 16), -math.inf)
        log_probs[0, 0, [4, 5, 6]] = torch.tensor([-1.0, -2.0, -3.0])
        positions = torch.tensor([[position]])
        rule.restrict(state, positions, log_probs)
        seen.append(int(log_probs.argmax()))
        state = rule.advance(state, Newest(torch.tensor([[0]]), torch.tensor([[seen[-1]]]), positions, position + 1))
    assert seen[:4] == [4, 5, 6, 4]
    assert set(seen) <= {4, 5, 6}
