"""The lexicon of a translator: translations of symbols, best first, written with averages and checked when read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from reverse_task import reseal
from word_pairs import SYMBOLS, WORDS, some_pairs

from nmt.checkpoint.reading import LEXICON, Bundle
from nmt.checkpoint.writing import save_tensors
from nmt.system.errors import UserError
from nmt.training import lexicon
from nmt.training.budget import Budget
from nmt.training.lexicon import lexicon_of


class Words:
    """A vocabulary of control symbols and words."""

    def __len__(self) -> int:
        return SYMBOLS + WORDS

    def listing(self) -> list[str]:
        return [f"symbol {index}" for index in range(len(self))]

    def spellings(self) -> list[str]:
        return [""] * SYMBOLS + self.listing()[SYMBOLS:]


class Both:
    source = target = Words()


def test_a_translation_comes_first_and_frequent_symbols_are_those_of_most_pairs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lexicon, "FREQUENT", 3)
    monkeypatch.setattr(lexicon, "WIDTH", 4)
    corpus: Any = some_pairs(0)
    tokenizer: Any = Both()
    found = lexicon_of(corpus, tokenizer)
    words = list(range(SYMBOLS, SYMBOLS + WORDS))
    assert found.translations[:, 0].tolist() == list(range(SYMBOLS + WORDS))  # the same symbol
    assert found.translations[SYMBOLS:, 1].tolist() == words
    assert found.translations[:SYMBOLS, 1:].tolist() == [[-1] * 4] * SYMBOLS  # no pair has them
    counts = lexicon.count(corpus, len(tokenizer.target), len(tokenizer.target)).target
    assert found.frequent.tolist()[:SYMBOLS] == list(range(SYMBOLS))
    assert counts[found.frequent[SYMBOLS:].numpy()].min() >= sorted(counts)[-3]


def test_an_average_gets_it_where_the_data_is_and_the_recipe_or_the_vocabulary_asks_for_it(
    nmt: Callable[..., Any], runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = nmt("average", "a")
    assert done.code == 0, done.err
    assert not Path("a/averaged", LEXICON).exists()
    refused = nmt("translate", "--model", "a/averaged", "--set", "shortlist=5", stdin=b"a b c\n")
    assert refused.code == 1
    assert "error: decoding.shortlist: this model has no lexicon.safetensors" in refused.err
    bundle = Bundle.read(Path("a/averaged"))
    assert bundle.lexicon() is None
    said: list[str] = []
    console: Any = type("Said", (), {"say": said.append})
    monkeypatch.setattr(lexicon, "WORTHWHILE", len(bundle.tokenizer().target))
    late = Budget(1 / 60, lambda: 100.0)
    assert lexicon.add_lexicon(bundle, Path("a"), console, late).lexicon() is None
    assert "training.minutes leaves no time" in said[0]
    monkeypatch.setattr(lexicon, "FREQUENT", 5)
    added = lexicon.add_lexicon(bundle, Path("a"), console, Budget(None, lambda: 0.0))
    assert added.lexicon() is not None
    assert added.content()[LEXICON]
    assert torch.equal(added.weights()["source_embedding.weight"], bundle.weights()["source_embedding.weight"])
    text = b"a b c\nd e f g\n"
    found = nmt("translate", "--model", "a/averaged", "--set", "shortlist=5", stdin=text)
    assert found.code == 0, found.err
    assert found.out == nmt("translate", "--model", "a/averaged", stdin=text).out


@pytest.mark.parametrize("change", ["beyond", "below", "order", "control", "short", "name"])
def test_a_lexicon_that_does_not_fit_is_refused(runs: Path, change: str) -> None:
    bundle = Bundle.read(Path("a/averaged"))
    size = len(bundle.tokenizer().target)
    tensors = {
        "translations": torch.zeros((len(bundle.tokenizer().source), 3), dtype=torch.int32),
        "frequent": torch.arange(6, dtype=torch.int32),
    }
    match change:
        case "beyond":
            tensors["translations"][2, 1] = size
        case "below":
            tensors["translations"][2, 1] = -2
        case "order":
            tensors["frequent"] = tensors["frequent"].flip(0)
        case "control":
            tensors["frequent"] = tensors["frequent"][2:]
        case "short":
            tensors["translations"] = tensors["translations"][1:]
        case "name":
            tensors["other"] = tensors.pop("frequent")
    save_tensors(bundle.path / LEXICON, tensors, bundle.path)
    reseal(bundle.path)
    with pytest.raises(UserError, match=f"{LEXICON}: is not a lexicon for the model's vocabularies"):
        Bundle.read(bundle.path).model(torch.device("cpu"))
