"""Prefixes of translations: exact, spelled by any subwords, on any batch, and without effect where there is none."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
from reference_search import random_model

from nmt import Translator
from nmt.decoding.constraints import SubwordIndex
from nmt.decoding.engine import Request
from nmt.model.transformer import Transformer
from nmt.recipe import Decoding, Model, TokenizerSettings
from nmt.text.tokenizer import Tokenizer
from nmt.text.vocabulary import EOS

TEXTS = ["the dog sees the house", "a cat likes the tree", "the tree sees a dog", "cats like houses and dogs"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    pairs = [(text, text[::-1]) for text in TEXTS] + [(text[::-1], text) for text in TEXTS]
    return Tokenizer.train(pairs * 20, TokenizerSettings(vocab_size=340))


@pytest.fixture(scope="module")
def model(tokenizer: Tokenizer) -> Transformer:
    torch.manual_seed(5)
    size = len(tokenizer.source)
    config = Model(layers=1, d_model=16, d_ff=32, heads=2)
    return Transformer(config, size, size).double().eval()  # no rounding decides


def speaking_words(tokenizer: Tokenizer, seed: int) -> Transformer:
    """A random model whose likeliest outputs consist of words of these texts, each of one subword."""
    model = random_model(len(tokenizer.source), len(tokenizer.source), liking=3.0, seed=seed)
    words = {f"\u2581{word}" for text in TEXTS for word in text.split()}
    other = [index for index, piece in enumerate(tokenizer.target.spellings()) if piece not in words and index > EOS]
    with torch.no_grad():
        model.output_embedding.weight[other] = 0.0
    return model


def begins_with(output: str, prefix: str) -> bool:
    """Whether an output is as its prefix asks: spaces around a whole output are no part of it."""
    return output.startswith(prefix.lstrip()) or output == prefix.strip()


def translator(model: Transformer, tokenizer: Tokenizer, **decoding: object) -> Translator:
    settings = {"beam": 3, "max_extra": 6, **decoding}
    return Translator(model, tokenizer, Decoding.model_validate(settings))


PREFIXES = ["", "the", "th", "The d", "the dog ", "the  dog", "zebra", "x", "a cat, ", "été 日本", "\u2581", "  cat"]
PREFIXES += ["a\tb", "."]


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("beam", [1, 4])
def test_every_output_begins_with_its_prefix_and_may_go_on(
    prefix: str, beam: int, model: Transformer, tokenizer: Tokenizer
) -> None:
    serve = translator(model, tokenizer, beam=beam, max_extra=20)
    for result in serve.stream([Request(text, prefix) for text in TEXTS], n_best=beam):
        assert all(begins_with(text, prefix) for text in result.texts)


def test_other_lines_are_translated_as_without(model: Transformer, tokenizer: Tokenizer) -> None:
    serve = translator(model, tokenizer)
    alone = list(serve.stream(TEXTS, n_best=3))
    mixed = list(serve.stream([Request(text, "the " if n % 2 else "") for n, text in enumerate(TEXTS)], n_best=3))
    for n in range(0, len(TEXTS), 2):
        assert mixed[n].scores == pytest.approx(alone[n].scores, abs=1e-5)
        assert replace(mixed[n], scores=alone[n].scores) == alone[n]
    assert mixed[1].texts != alone[1].texts


@pytest.mark.parametrize("tokens", [1, 20, 64])
def test_the_batch_makes_no_difference(tokens: int, model: Transformer, tokenizer: Tokenizer) -> None:
    requests = [Request(text, prefix) for text, prefix in product(TEXTS, PREFIXES)]
    expected = [result.texts for result in translator(model, tokenizer).stream(requests, n_best=2)]
    found = [result.texts for result in translator(model, tokenizer, batch_tokens=tokens).stream(requests, n_best=2)]
    assert found == expected


@pytest.mark.parametrize("seeds", [(1,), (2,), (4,), (1, 4)])
def test_a_prefix_of_what_is_found_anyway_changes_nothing(tokenizer: Tokenizer, seeds: tuple[int, ...]) -> None:
    models = [speaking_words(tokenizer, seed) for seed in seeds]
    serve = Translator(models, tokenizer, Decoding(beam=1, min_length=4, max_extra=6))
    outputs, compared = set(), 0
    for text, free in zip(TEXTS, serve.stream(TEXTS), strict=True):
        output = free.texts[0]
        assert not free.capped  # with a prefix more symbols are allowed
        assert tokenizer.target.encode(output) == free.ids[0]  # only the last word of a prefix has several spellings
        beginnings = [output[:length] for length in range(1, len(output))]
        assert serve.translate([text] * len(beginnings), beginnings) == [output] * len(beginnings)
        outputs.add(output)
        compared += len(beginnings)
    assert compared >= 40
    assert len(outputs) > 1


def test_learned_positions_have_room_for_every_prefix_that_is_allowed(tokenizer: Tokenizer) -> None:
    config = Model(layers=1, d_model=16, d_ff=32, heads=2, positions="learned", max_positions=20)
    short = Transformer(config, len(tokenizer.source), len(tokenizer.source)).eval()
    (found,) = translator(short, tokenizer, max_source=19).translate(["a dog"], prefix=["the dog sees the h"])
    assert found.startswith("the dog sees the h")


def test_translate_takes_a_prefix_for_each_sentence(model: Transformer, tokenizer: Tokenizer) -> None:
    serve = translator(model, tokenizer)
    found = serve.translate(TEXTS[:2], prefix=["a d", ""])
    assert found[0].startswith("a d")
    assert found[1] == serve.translate(TEXTS[1:2])[0]


def test_spellings_lead_to_the_end_by_every_path() -> None:
    spelling = SubwordIndex(["", "a", "ab", "b", "bc", "abc", "c", "x"])
    assert spelling.steps("ab") == [{1: 1, 2: 2, 5: 2}, {3: 2, 4: 2}]
    assert spelling.steps("") == []
    assert spelling.steps("ay") is None
    assert spelling.steps("yb") is None
    assert spelling.steps("abx") == [{1: 1, 2: 2}, {3: 2}, {7: 3}]
    assert spelling.steps("abcx") == [{1: 1, 2: 2, 5: 3}, {3: 2, 4: 3}, {6: 3}, {7: 4}]
