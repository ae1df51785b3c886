"""Embeddings by the training pairs: translations get similar vectors, and nothing else of a new model changes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor
from word_pairs import SYMBOLS, WORDS, some_pairs

from nmt.model.transformer import Transformer
from nmt.recipe import Model
from nmt.training import cooccurrence
from nmt.training.first_embeddings import begin_with_pairs

UNSEEN = 3  # words that no pair has


def new_model(sizes: Sequence[int], shared: bool) -> Transformer:
    torch.manual_seed(7)
    config = Model(layers=1, d_model=32, d_ff=8, heads=2, tie_embeddings="all" if shared else "target")
    return Transformer(config, *sizes)


def nearest(rows: Tensor, table: Tensor) -> list[int]:
    return [int(index) for index in (rows @ table.T).argmax(1)]


@pytest.mark.parametrize("at_once", [cooccurrence.AT_ONCE, 1000])
def test_translations_get_similar_vectors_in_tables_of_their_own(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(cooccurrence, "AT_ONCE", at_once)
    model = new_model([SYMBOLS + WORDS + UNSEEN] * 2, shared=False)
    before = model.source_embedding.weight.detach().clone()
    state = torch.get_rng_state()
    assert begin_with_pairs(model, some_pairs(0)) == 2 * WORDS
    assert torch.equal(torch.get_rng_state(), state)
    source = model.source_embedding.weight.detach()
    target = model.target_embedding.weight.detach()
    words = list(range(SYMBOLS, SYMBOLS + WORDS))
    assert nearest(source[words], target) == words
    assert source[words].norm(dim=1).tolist() == pytest.approx([1.0] * WORDS, abs=1e-5)
    assert torch.equal(source[:SYMBOLS], before[:SYMBOLS])
    assert torch.equal(source[-UNSEEN:], before[-UNSEEN:])


def test_translations_get_similar_vectors_in_one_table() -> None:
    model = new_model([SYMBOLS + 2 * WORDS] * 2, shared=True)
    assert begin_with_pairs(model, some_pairs(WORDS)) == 2 * WORDS
    table = model.source_embedding.weight.detach()
    words = torch.arange(SYMBOLS, SYMBOLS + WORDS)
    alike = table[words] @ table[SYMBOLS + WORDS :].T
    assert alike.argmax(1).tolist() == list(range(WORDS))


def test_of_a_large_corpus_some_pairs_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cooccurrence, "MOST", 5000)
    counts = cooccurrence.count(some_pairs(0, 1200), SYMBOLS + WORDS, SYMBOLS + WORDS)
    assert counts.pairs == 200
    assert counts.source.sum() == 5 * 200


def test_a_corpus_without_words_in_common_changes_nothing(tmp_path: Path) -> None:
    model = new_model([SYMBOLS + WORDS] * 2, shared=True)
    before = model.source_embedding.weight.detach().clone()
    assert begin_with_pairs(model, some_pairs(0, 1)) == 0
    assert torch.equal(model.source_embedding.weight.detach(), before)
