"""Phrases in translations: always there, kept ones as often as they must be, on any batch, and free where none is."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from nmt.decoding.engine import Required, Source, Spelling
from nmt.decoding.phrases import FAR, OPEN, WITHIN, Automaton, PhraseConstraint, _order
from nmt.decoding.read_ahead import Request
from nmt.decoding.search import SearchEngine
from nmt.decoding.translator import Translation, Translator
from nmt.model.cache import Ancestry, Removal
from nmt.model.transformer import Transformer
from nmt.recipe import Decoding, Model, TokenizerSettings
from nmt.text.terms import Term, Terms
from nmt.text.tokenizer import Tokenizer
from nmt.text.vocabulary import EOS

TEXTS = ["the dog sees the house", "a cat likes the tree", "the tree sees a dog", "cats like houses and dogs"]
TABLE = [
    Term("dog", "cat"),
    Term("house", "trees and dogs"),
    Term("house", "zebra"),
    Term("cat", "été"),
    Term("a", "a"),
]
KEPT = [
    "the dog sees https://x.org/house",
    "%s likes {name}s and %s",
    "the tree %s {name} sees a dog, x@y.org",
    "a cat",
    "https://x.org https://x.org/house likes %s, https://x.org/%s",
    "see x@y.org or ftp://x@y.org/dog",
]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train([(text, text[::-1]) for text in TEXTS] * 20, TokenizerSettings(vocab_size=340))


def model_of(tokenizer: Tokenizer, seed: int = 5) -> Transformer:
    torch.manual_seed(seed)
    size = len(tokenizer.source)
    model = Transformer(Model(layers=1, d_model=16, d_ff=32, heads=2), size, size)
    return model.double().eval()  # else scores differ between batches by their rounding


def translations(
    tokenizer: Tokenizer, requests: Sequence[Request | str], n_best: int = 1, models: int = 1, **decoding: object
) -> list[Translation]:
    settings = Decoding.model_validate({"beam": 4, "max_extra": 30, **decoding})
    serve = Translator([model_of(tokenizer, seed) for seed in range(5, 5 + models)], tokenizer, settings)
    return list(serve.stream(requests, n_best))


def with_terms(texts: Sequence[str], prefix: str = "") -> list[Request]:
    return [Request(text, prefix, Terms(TABLE)) for text in texts]


@pytest.mark.parametrize(("beam", "models"), [(1, 1), (2, 2), (9, 1)])
def test_every_hypothesis_holds_its_phrases(beam: int, models: int, tokenizer: Tokenizer) -> None:
    requests = with_terms([*TEXTS, *KEPT])
    found = translations(tokenizer, requests, beam, models, beam=beam)
    for request, result in zip(requests, found, strict=True):
        assert result.missing == []
        assert request.terms is not None
        phrases = request.terms.phrases(request.text)
        assert bool(phrases) == (request.text != TEXTS[3])  # which has other words
        assert not any(phrase.is_missing(text) for phrase in phrases for text in result.texts)


@pytest.mark.parametrize(("beam", "tokens"), [(1, 20), (4, 64)])
def test_the_batch_makes_no_difference(beam: int, tokens: int, tokenizer: Tokenizer) -> None:
    requests = [*with_terms(TEXTS), *KEPT, *with_terms(KEPT), *TEXTS]
    expected = [result.texts for result in translations(tokenizer, requests, beam, beam=beam)]
    assert [
        result.texts for result in translations(tokenizer, requests, beam, beam=beam, batch_tokens=tokens)
    ] == expected


def test_a_prefix_and_phrases_go_together(tokenizer: Tokenizer) -> None:
    for result in translations(tokenizer, with_terms(TEXTS, "the zeb"), 3):
        assert all(text.startswith("the zeb") for text in result.texts)
        assert result.missing == []


@pytest.mark.parametrize("text", ["xAB-1 and AB-1", "AB-1 and xAB-1 dog", "xAB-1, {name}s {name}"])
@pytest.mark.parametrize("beam", [1, 4])
def test_what_is_a_part_of_a_word_is_kept_as_such(text: str, beam: int, tokenizer: Tokenizer) -> None:
    terms = Terms(keep=[r"[A-Z]{2}-\d"])
    (result,) = translations(tokenizer, [Request(text, terms=terms)], beam, beam=beam)
    phrases = terms.phrases(text)
    assert phrases
    assert not any(phrase.is_missing(found) for phrase in phrases for found in [text, *result.texts])


@pytest.mark.parametrize("beam", [1, 4])
def test_a_prefix_may_hold_what_is_kept_too_often(beam: int, tokenizer: Tokenizer) -> None:
    terms = Terms(TABLE)
    texts = ["the dog %s", "%d likes a cat", "the dog"]
    over, whole, none = translations(tokenizer, [Request(text, "%s %s ,", terms) for text in texts], beam, beam=beam)
    assert all(text.startswith("%s %s ,") for result in (over, whole, none) for text in result.texts)
    assert [str(phrase) for phrase in over.missing] == ["%s"]
    assert whole.missing == none.missing == []
    assert not any(phrase.is_missing(text) for phrase in terms.phrases(texts[1]) for text in whole.texts)


@pytest.mark.parametrize(
    "text",
    ["%s %s", "{name}s, {name}", "%%s %s", "https://x.org https://x.org/%s %s", "x@y.org %s%s", "https://x.org/"],
)
def test_whatever_a_model_likes_to_say_phrases_are_there_as_often_as_in_the_source(
    text: str, tokenizer: Tokenizer
) -> None:
    """Only the symbols of the phrases, a few others and `</s>` are likely, so that phrases come about everywhere."""
    likely = [*tokenizer.source.encode(f"a b, {text}"), *tokenizer.source.encode(text.replace(" ", "")), EOS]
    phrases = Terms().phrases(text)
    for seed in range(6):
        beam = seed % 6 + 1
        torch.manual_seed(seed)
        liking = torch.full((len(tokenizer.source),), -20.0).index_fill(0, torch.tensor(likely), 0.0)
        liking[likely] += 2 * torch.randn(len(likely))
        (result,) = liked(tokenizer, liking, Decoding(beam=beam, max_extra=15, min_length=seed % 4), text)
        assert not any(phrase.is_missing(found) for phrase in phrases for found in result.texts)


def liked(tokenizer: Tokenizer, liking: torch.Tensor, decoding: Decoding, text: str) -> list[Translation]:
    """What a search finds where `liking` is added to the logits of symbols."""
    translator = Translator(model_of(tokenizer), tokenizer, decoding)
    engine = translator.engine
    assert isinstance(engine, SearchEngine)
    (logits,) = engine.logits
    engine.logits = (lambda x: (found := logits(x)) * 3 + F.pad(liking, (0, found.size(-1) - len(liking))),)
    return list(translator.stream([text], decoding.beam))


@pytest.mark.parametrize(("beam", "order"), [(1, [2, 1, 0]), (4, [2, 0, 1])])
def test_the_most_probable_candidate_stays_in_a_wider_beam(beam: int, order: list[int]) -> None:
    """Three candidates, of which the last one has come as far as is wanted by now."""
    totals, come = torch.tensor([[0.0, -1.0, -2.0]]), torch.tensor([[0, 2, 4]])
    reached: Any = SimpleNamespace(level=come, progress=come)
    tables: Any = SimpleNamespace(whole=torch.tensor([[4]]), steps=torch.tensor([[4]]))
    assert _order(totals, reached, tables, torch.tensor([[4]]), beam).argsort(1).tolist() == [order]


def test_candidates_lead_on_to_what_is_lacking_alone() -> None:
    """Symbols 5 and 6 are phrases, 5 has come, and 8 is the most probable."""
    letters: Any = SimpleNamespace(word_ends=lambda: ([True] * 9, [True] * 9))
    ancestry = Ancestry(1, torch.device("cpu"))
    rule = PhraseConstraint(letters, ancestry)
    phrases = [Required([Spelling([symbol], False, False)], 1, False) for symbol in (5, 6)]
    ancestry.admit(2)
    rule.admit([Source(0, [4, 4], cap=4, required=phrases), Source(1, [4], cap=20, required=phrases)])
    assert rule._tables.steps.tolist() == [[1], [1]]  # the cap is as low as can be, and the source one subword long
    rule.leave(Removal([0], 2))
    rule.advance(torch.tensor([[0]]), torch.tensor([[5]]))
    log_probs = torch.full((1, 1, 9), -5.0).index_fill(2, torch.tensor(8), -1.0)
    found = rule._candidates(log_probs, torch.zeros(1, 1), rule._tables, rule._reached)
    assert sorted(found.symbols[found.totals.gt(-math.inf)].tolist()) == [6, 8]


def test_what_has_no_room_is_named(tokenizer: Tokenizer) -> None:
    torch.manual_seed(5)
    config = Model(layers=1, d_model=16, d_ff=32, heads=2, positions="learned", max_positions=12)
    model = Transformer(config, len(tokenizer.source), len(tokenizer.source)).eval()
    serve = Translator(model, tokenizer, Decoding(max_source=8, max_extra=5))
    terms = Terms([Term("dog", "one two three four five six seven"), Term("cat", "x")])
    first, second = serve.stream([Request("dog", terms=terms), Request("cat", terms=terms)])
    assert [str(phrase) for phrase in first.missing] == [
        "dog → one two three four five six seven | One two three four five six seven"
    ]
    assert second.missing == []


# --- Automata find what a plain search finds ----------------------------------------------------------------


def test_an_automaton_finds_what_a_search_for_strings_finds() -> None:
    """Symbols are letters; a word may go on before and after each but the hyphen."""
    draw = random.Random(3)
    opens = [False, False, False, True]  # a b c -
    for _ in range(300):
        phrases = [[draw.randrange(3) for _ in range(draw.randint(1, 3))] for _ in range(draw.randint(1, 4))]
        begins, ends = (draw.random() < 0.5 for _ in range(2))
        found = Automaton([Required([Spelling(ids, begins, ends)], 1, False) for ids in phrases], opens, opens)
        text = [draw.randrange(4) for _ in range(12)]
        state = OPEN
        for at, symbol in enumerate(text, 1):
            state = found.next[state].get(symbol, OPEN if opens[symbol] else WITHIN)
            for index, ids in enumerate(phrases):
                start = at - len(ids)
                stands = start >= 0 and text[start:at] == ids
                if begins and start > 0:
                    stands = stands and opens[text[start - 1]]
                assert (found.ends_if_closed if ends else found.ends)[state][index] == stands
                assert not (found.ends if ends else found.ends_if_closed)[state][index]
                left = [
                    len(ids) - length
                    for length in range(1, min(len(ids), at) + 1)
                    if text[at - length : at] == ids[:length]
                    and (not begins or at == length or opens[text[at - length - 1]])
                ]
                assert found.left[state][index] == min(left, default=FAR)
