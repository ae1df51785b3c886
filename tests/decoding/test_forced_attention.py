"""Attention of a pair of sentences against the model's own weights, and subwords merged to words."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from random_bundle import random_bundle, tokenizer_of_words
from tiny_parser import make_model, train_tokenizer

import nmt
from nmt import Parser, Translator
from nmt.decoding.forced import Attention, Tokens, attend
from nmt.recipe import Decoding
from nmt.system.errors import UserError
from nmt.text.vocabulary import BOS, EOS

TASKS = ("encoder", "decoder", "cross")
SENTENCE = "the teacher sees, likes (the) river."


def sides(found: Attention, kind: str) -> tuple[Tokens, Tokens, np.ndarray]:
    """The tokens that attend, those that they attend to, and the weights between them."""
    queries = found.source if kind == "encoder" else found.target_out
    keys = found.target_in if kind == "decoder" else found.source
    return queries, keys, getattr(found, kind)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory):
    return random_bundle(tmp_path_factory.mktemp("attention") / "model", decoder_layers=3)


@pytest.fixture(scope="module")
def model(bundle) -> Translator:
    found = nmt.load(bundle.path, device="cpu")
    assert isinstance(found, Translator)
    return found


def test_the_weights_are_those_of_the_model(bundle) -> None:
    source, output = [9, 8, 7, 6, 5], [7, 7, 5]
    transformer = bundle.model(torch.device("cpu"))
    found = attend(transformer, bundle.tokenizer(), source, output)
    with torch.inference_mode():
        expected = transformer.attention_weights(torch.tensor([[*source, EOS]]), torch.tensor([[BOS, *output]]))
    for kind, layers, queries, keys in (("encoder", 2, 6, 6), ("decoder", 3, 4, 4), ("cross", 3, 4, 6)):
        weights = getattr(found, kind)
        assert weights.shape == (layers, 2, queries, keys)
        assert weights.dtype == np.float32
        np.testing.assert_allclose(weights, torch.cat(getattr(expected, kind)).numpy(), rtol=1e-5)  # kernels round
        np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
    assert not np.triu(found.decoder, 1).any()
    with torch.inference_mode():
        states = transformer.states(torch.tensor([[*source, EOS]]), torch.tensor([[BOS, *output]]))[0]
        logits = torch.nn.functional.linear(states, transformer.output_embedding.weight, transformer.output_bias)
    scores = logits.log_softmax(-1)[range(4), [*output, EOS]]
    np.testing.assert_allclose(found.log_probabilities, scores.numpy(), rtol=1e-5)


def test_tokens_are_what_is_read_and_written(model: Translator) -> None:
    found = model.attention("the dog", "HOUSE")
    assert found.source.tokens[-1] == found.target_out.tokens[-1] == "</s>"
    assert found.target_in.tokens == ["<s>", *found.target_out.tokens[:-1]]
    assert (found.source.text, found.target_in.text, found.target_out.text) == ("the dog", "HOUSE", "HOUSE")
    sizes = [(len(queries.tokens), len(keys.tokens)) for queries, keys, _ in (sides(found, kind) for kind in TASKS)]
    assert sizes == [array.shape[2:] for array in (found.encoder, found.decoder, found.cross)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("the dog", ["the", "dog"]),
        ("the dog.", ["the", "dog", "."]),
        (".dog.", [".", "dog", "."]),
        ("teacher .dog", ["teacher", ".", "dog"]),
        ("dog's", ["dog's"]),
        ("e-mail 3.5 ...", ["e-mail", "3.5", ".", ".", "."]),
        ("\U0001f600 \u00e9", ["\U0001f600", "\u00e9"]),
        ("<s> </s>", ["<s>", "</s>"]),
    ],
)
def test_subwords_make_up_words(text: str, words: list[str]) -> None:
    vocabulary = tokenizer_of_words(True).source
    tokens = Tokens.of(vocabulary, [BOS, *vocabulary.encode(text), EOS])
    assert [word for word in tokens.words if word != "\u2581"] == ["<s>", *words, "</s>"]
    assert tokens.word_of == sorted(tokens.word_of)
    assert set(tokens.word_of) == set(range(len(tokens.words)))


def test_weights_of_words_are_sums_over_keys_and_means_over_queries(model: Translator) -> None:
    found = model.attention(SENTENCE, "THE TEACHER, SEES.")
    merged = found.by_words()
    sums = [0.0] * len(merged.target_out.words)
    for word, score in zip(found.target_out.word_of, found.log_probabilities, strict=True):
        sums[word] += score
    np.testing.assert_allclose(merged.log_probabilities, sums)
    for kind in TASKS:
        queries, keys, weights = sides(found, kind)
        expected = np.zeros((*weights.shape[:2], len(queries.words), len(keys.words)))
        for i, query in enumerate(queries.word_of):
            for j, key in enumerate(keys.word_of):
                expected[:, :, query, key] += weights[:, :, i, j] / queries.word_of.count(query)
        words, _, got = sides(merged, kind)
        np.testing.assert_allclose(got, expected, atol=1e-6)
        np.testing.assert_allclose(got.sum(-1), 1, rtol=1e-5)
        assert got.shape[2] < weights.shape[2]
        assert words.tokens == words.words == queries.words


@pytest.mark.parametrize(
    ("source", "target", "problem"),
    [
        (" ", None, "in 0 parts"),
        (" ", "DOG", "in 0 parts"),
        ("the dog " * 80, None, "in [2-9] parts"),
        ("the dog " * 80, "DOG", "decoding.max_source 70"),
        ("the dog", "DOG " * 80, "fewer than 79"),
    ],
)
def test_what_is_no_pair_of_sentences_is_refused(
    model: Translator, source: str, target: str | None, problem: str
) -> None:
    with pytest.raises(UserError, match=problem) as raised:
        model.attention(source, target)
    assert raised.value.hint


def test_a_parser_attends_between_words_and_symbols_of_trees() -> None:
    tokenizer = train_tokenizer()
    parser = Parser(make_model(tokenizer), tokenizer, Decoding(max_source=48, max_extra=24, beam=3))
    tree = "(TOP (S (NP (DT the) (NN dog)) (VP (VBZ sees) (NP (PRP it)))))"
    found = parser.attention("the dog sees it", tree)
    symbols = ["(S", "(NP", "XX", "XX", ")NP", "(VP", "XX", "(NP", "XX", ")NP", ")VP", ")S"]
    assert found.target_out.tokens == found.target_out.words == [*symbols, "</s>"]
    assert found.source.words == ["the", "dog", "sees", "it", "</s>"]
    best = parser.parse(["the dog sees it"])[0]
    assert parser.attention("the dog sees it").target_out == parser.attention("the dog sees it", str(best)).target_out
    for target, problem in (("(TOP (S (XX dog)))", "1 leaves .* 4 words"), ("", "0 leaves"), ("(S", "never closed")):
        with pytest.raises(UserError, match=problem):
            parser.attention("the dog sees it", target)
    with pytest.raises(UserError, match=r"in [2-9] parts") as error:
        parser.attention("dog " * 60, f"(TOP (S {'(XX dog)' * 60}))")
    assert "decoding.max_source 48" in error.value.hint
