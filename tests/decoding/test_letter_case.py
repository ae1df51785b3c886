"""Lines in capitals, which are translated as if they were in small letters."""

from __future__ import annotations

import re

import pytest
import torch
from random_bundle import WORDS, sentence
from reference_search import random_model

from nmt.decoding.engine import Request
from nmt.decoding.translator import Translator
from nmt.formats.letter_case import in_capitals, without_capitals
from nmt.formats.sentences import TrainedLengths
from nmt.formats.terms import Term, Terms
from nmt.recipe import Decoding, TokenizerSettings
from nmt.text.tokenizer import Tokenizer
from nmt.text.vocabulary import EOS

GERMAN = ["Baum", "Straße", "Hündchen", "große", "Katze", "Fluß", "Garten", "weiß", "sieht", "mag", "der", "."]
LINES = [" ".join(sentence(seed).split()) for seed in range(8)]


def german(line: str) -> str:
    return " ".join(GERMAN[WORDS.index(word)] for word in line.split())


@pytest.fixture(scope="module")
def translator() -> Translator:
    """A random model whose outputs are of words with letters that capitals write in another way."""
    pairs = [(sentence(seed), german(sentence(seed))) for seed in range(300)]
    tokenizer = Tokenizer.train(pairs, TokenizerSettings(vocab_size=440))
    model = random_model(len(tokenizer.source), len(tokenizer.target), EOS, 3.0, 3)
    whole = {f"\u2581{word}" for word in GERMAN}
    other = [index for index, piece in enumerate(tokenizer.target.listing()) if piece not in whole and index > EOS]
    with torch.no_grad():
        model.output_embedding.weight[other] = 0.0
    return Translator(model, tokenizer, Decoding(beam=3, max_extra=6, min_length=3), directions=[("en", "de")])


def small(translator: Translator, line: str) -> str:
    return without_capitals(line, translator.tokenizer.source, "en")


def test_translation_is_that_of_small_letters_in_capitals(translator: Translator) -> None:
    lines = [line.upper() for line in LINES if small(translator, line.upper()) != line.upper()]
    assert len(lines) > len(LINES) / 2
    expected = translator.translate([small(translator, line) for line in lines])
    found = translator.translate(lines)
    assert found == [in_capitals(text, "de") for text in expected]
    assert any("FLUSS" in text for text in found)


def test_a_model_of_sentences_gets_one_and_its_output_begins_as_the_line(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = TrainedLengths(
        language="en",
        sentences=1,
        usual_sentences=1,
        source=30,
        longest_source=40,
        least_ratio=0.1,
        greatest_ratio=9.0,
        full_stop=".",
    )
    of_sentences = Translator(
        translator._models, translator.tokenizer, translator.decoding, lengths, directions=[("en", "de")]
    )
    monkeypatch.setattr("nmt.decoding.translator.inside_sentence", lambda text, _, language: f"{language} {text}")
    small, large = of_sentences.stream(["the dog", "The dog."])
    assert small.texts[0].startswith("de ")
    assert not large.texts[0].startswith("de ")
    assert [ids for ids, _ in small.pairs] == [translator.tokenizer.source.encode("the dog.")]


@pytest.mark.parametrize("tags", [("", ""), ("<b>", "</b>")])
def test_only_sentences_in_capitals_are_translated_in_capitals(tags: tuple[str, str], translator: Translator) -> None:
    shouted = "THE TREE SEES THE DOG."
    other = "the cat likes the river."
    is_marked = tags[0] != ""
    pieces = translator.translate([small(translator, shouted), other.capitalize()])
    first, second = in_capitals(pieces[0], "de"), pieces[1]
    for text, expected in (
        (f"{shouted} {other.capitalize()}", f"{first} {second}"),
        (f"{other.capitalize()} {shouted}", f"{second} {first}"),
    ):
        marked = text.replace(shouted, shouted.join(tags))
        assert translator.translate([marked], markup=is_marked) == [expected.replace(first, first.join(tags))]
    assert first.isupper()
    assert not second.isupper()
    (going_on,) = translator.translate([f"{shouted} {other.capitalize()}"], prefix=["Der "])
    assert not going_on.isupper()


@pytest.mark.parametrize(
    ("line", "in_small_letters"),
    [
        ("THE <b>RIVER</b> SEES {n} X&amp;Y<br/>", "The <b>river</b> sees {n} x&amp;y<br/>"),
        ("<i>TREE <code>cat dog</code> LIKES</i> DOG", "<i>Tree <code>cat dog</code> likes</i> dog"),
        ("{n} <b>DOG LIKES</b>", "{n} <b>dog likes</b>"),
    ],
)
def test_codes_stay_around_the_same_words(line: str, in_small_letters: str, translator: Translator) -> None:
    terms = [("river", "Fluß"), ("tree", "große"), ("dog", "Straße")]
    (expected,) = translator.translate([in_small_letters], terms=terms, markup=True)
    (found,) = translator.translate([line], terms=terms, markup=True)
    assert found == in_capitals(expected, "de").replace("CAT DOG", "cat dog")
    assert "SS" in found


def test_terms_with_capitals_are_found_in_the_line_as_it_is(translator: Translator) -> None:
    terms = Terms([Term("DOG", "Katze", case=True), Term("dog", "Garten", case=True), Term("tree", "Hündchen")])
    (result,) = translator.stream([Request("THE TREE DOG SEES", terms=terms)])
    assert "Katze" in result.texts[0]  # as it is asked for
    assert "HÜNDCHEN" in result.texts[0]
    assert "GARTEN" not in result.texts[0]
    assert result.missing == []


@pytest.mark.parametrize("kept", ["dog", "DOG", "the cat.", "x=1"])
def test_what_is_kept_is_as_it_is(kept: str, translator: Translator) -> None:
    (found,) = translator.translate([f"THE TREE SEES {kept} LIKES"], keep=[re.escape(kept)])
    assert kept in found
    assert found.replace(kept, "").isupper()


def test_what_is_too_long_for_a_part_is_as_it_is(translator: Translator) -> None:
    code = "<code>" + "cat dog " * 60 + "</code>"
    (found,) = translator.translate([f"THE TREE SEES. {code} THE DOG LIKES."], markup=True)
    assert code in found
    assert found.replace(code, "").isupper()


def test_scores_are_those_of_what_is_searched(translator: Translator) -> None:
    (result,) = translator.stream([LINES[0].upper()])
    attention = translator.attention(LINES[0].upper(), result.texts[0])
    assert attention.source.tokens[:-1] == translator.tokenizer.source.pieces(result.source)
    assert len(attention.target_out.tokens) == len(result.ids[0]) + 1


def test_a_prefix_in_capitals_goes_on_in_capitals(translator: Translator) -> None:
    prefixes = ["DER GROSSE H", "FLUSS B", "Der ", "DER GROßE "]
    found = translator.translate(["THE TREE SEES"] * 4, prefix=prefixes)
    assert [text.startswith(prefix) for text, prefix in zip(found, prefixes, strict=True)] == [True] * 4
    assert [text.isupper() for text in found] == [True, True, False, False]


def test_hypotheses_that_differ_in_capitals_alone_are_one(translator: Translator) -> None:
    results = translator.stream([line.upper() for line in LINES], n_best=3)
    assert all(len({*result.texts}) == len(result.texts) for result in results)
