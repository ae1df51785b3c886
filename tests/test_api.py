"""Lines in, lines out: order, batches, splitting and n-best lists, with random models."""

import itertools
import random
from types import SimpleNamespace

import pytest
import reference_search

from nmt import Translator, load
from nmt.decoding.engine import Request
from nmt.decoding.splitter import LineSplitter
from nmt.recipe import Decoding, TokenizerSettings
from nmt.search.beam import SearchEngine
from nmt.system.errors import UserError
from nmt.text.tokenizer import Tokenizer

NOUNS = ["tree", "house", "dog", "cat", "river", "garden", "window", "teacher"]
VERBS = ["sees", "likes", "finds"]
NEWLINE, RETURN = 4 + 0x0A, 4 + 0x0D  # byte symbols follow the four control symbols


def sentence(words, seed):
    return " ".join(random.Random(seed).choices([*NOUNS, *VERBS, "the", "."], k=words))


SENTENCES = [sentence(1 + seed * 5 % 17, seed) for seed in range(40)]
SOME = SENTENCES[:18]
"""Of every length from 1 to 17 words."""

HOSTILE = [
    "a\u2028b",
    "a\u2029b",
    "a\rb",
    "a\x0bb\x0cc\x1cd\x85e",
    "😀 👩\u200d👩\u200d👧 tree",
    "\x00\x01\x07\x1b[31m\x7f",
    "\ufeffthe dog",
    "\u2581 \u2581the",
    "<s> </s> <pad> <unk>",
    "\u202eabc",
    "x" * 10_000,
    "the dog " * 1_250,
    " leading and trailing ",
]
BLANK = ["", " ", "\t", "\r", "\u2028", "\x85", "\u3000"]


@pytest.fixture(scope="module")
def tokenizer():
    triples = itertools.product(NOUNS, VERBS, NOUNS)
    pairs = [(f"the {a} {v} the {b} .", f"den {b} {v} der {a} , Nr. 1") for a, v, b in triples]
    return Tokenizer.train(pairs, TokenizerSettings(vocab_size=330))


def random_model(tokenizer, **changes):
    return reference_search.random_model(len(tokenizer.source), len(tokenizer.target), **changes)


MODELS = [
    {"liking": 6.0},
    {"liking": 2.0, "norm": "pre", "positions": "learned", "max_positions": 120, "d_k": 3, "d_v": 5},
]


def random_translator(tokenizer, model=None, **decoding):
    settings = {"beam": 3, "max_extra": 8, "max_source": 100} | decoding
    return Translator(model or random_model(tokenizer), tokenizer, Decoding(**settings))


# --- batches and order --------------------------------------------------------------------------------------


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("changes", MODELS)
def test_output_does_not_depend_on_batch_mates(tokenizer, beam, changes):
    model = random_model(tokenizer, **changes)
    one_by_one = random_translator(tokenizer, model, beam=beam)
    alone = {text: one_by_one.translate([text])[0] for text in SOME}
    assert len(set(alone.values())) > 12  # the outputs are worth comparing
    for batch_tokens in (60, 4096):
        translator = random_translator(tokenizer, model, beam=beam, batch_tokens=batch_tokens)
        texts = random.Random(batch_tokens).sample(SOME, len(SOME))
        assert translator.translate(texts) == [alone[text] for text in texts]
    assert one_by_one.translate(SOME[:5]) == [alone[text] for text in SOME[:5]]


# --- lines --------------------------------------------------------------------------------------------------


def test_hostile_lines_come_out_in_order_one_for_each(tokenizer):
    model = random_model(tokenizer, liking=0.0)  # whose outputs are never empty
    translator = random_translator(tokenizer, model, max_source=24, max_extra=3)
    lines = [line for pair in itertools.zip_longest(HOSTILE, BLANK, fillvalue="the cat") for line in pair]
    found = translator.translate(lines)
    alone = {line: translator.translate([line])[0] for line in HOSTILE}
    assert len(found) == len(lines)
    assert not any("\n" in text or "\r" in text for text in found)
    for line, text in zip(lines, found, strict=True):
        assert text == alone.get(line, text)
        assert (text.strip() == "") == (line in BLANK)


def test_the_lines_of_a_text_are_translated_one_by_one(tokenizer):
    translator = random_translator(tokenizer, random_model(tokenizer, liking=0.0), max_extra=3)
    one, other = translator.translate(["the dog", "the cat"])
    assert translator.translate(["  the dog\n\nthe cat\n", "the cat"]) == [f"  {one}\n\n{other}\n", other]
    assert translator.translate(["the dog\r\nthe cat\r\n"]) == [f"{one}\r\n{other}\r\n"]
    assert translator.translate(["the dog\nthe cat"], prefix=["xy"])[0].split("\n")[1:] == [other]


def test_texts_and_prefixes_may_come_from_any_iterable(tokenizer):
    translator = random_translator(tokenizer)
    texts = ["the dog", "a cat"]
    asked = (text for text in texts), (prefix for prefix in ("Hund", ""))
    assert translator.translate(*asked) == translator.translate(texts, ["Hund", ""])


@pytest.mark.parametrize("symbol", [NEWLINE, RETURN])
def test_no_output_contains_a_line_end(tokenizer, symbol):
    assert tokenizer.target.decode([symbol]) in ("\n", "\r")
    model = random_model(tokenizer, favourite=symbol, liking=40.0)
    (found,) = random_translator(tokenizer, model, max_extra=3).stream(["the dog"], n_best=3)
    assert found.texts[0].strip() == ""
    assert len(found.texts[0]) > 1  # spaces in their place
    assert not any("\n" in text or "\r" in text for text in found.texts)


# --- long lines ---------------------------------------------------------------------------------------------


def split_at_words(tokenizer, line, limit):
    """The parts of a line, as text."""
    parts = LineSplitter(tokenizer.source, Decoding(max_source=limit, split="length"), None).split(line)
    assert max(len(part.ids) for part in parts) <= limit
    texts = [tokenizer.source.decode(part.ids) for part in parts]
    assert " ".join(texts) == line
    return texts


@pytest.mark.parametrize("limit", [14, 24, 63])
def test_long_lines_are_split_at_words_and_joined(tokenizer, limit):
    line = sentence(60, seed=5)
    parts = split_at_words(tokenizer, line, limit)
    subwords = len(tokenizer.source.encode(line))
    assert subwords / limit <= len(parts) <= 1 + subwords / (limit // 2)  # no part but the last is less than half full
    translator = random_translator(tokenizer, max_source=limit, split="length")
    short, long = translator.stream(["the dog", line])
    assert (short.parts, long.parts) == (1, len(parts))
    alone = list(translator.stream(parts))
    assert long.texts == [" ".join(part.texts[0] for part in alone)]
    assert long.scores == pytest.approx([sum(part.scores[0] for part in alone)], abs=1e-4)


# --- caps ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("positions", "most"), [("sinusoidal", None), ("learned", 7)])
def test_an_output_that_does_not_end_is_cut_at_its_cap_and_marked(tokenizer, monkeypatch, positions, most):
    caps = []
    rounds = SearchEngine.rounds

    def spy(engine, queue, n_best, sample):
        def take_sources(tokens, wait):
            taken = queue.take_sources(tokens, wait)
            caps.extend(source.cap for source in taken)
            return taken

        return rounds(engine, SimpleNamespace(take_sources=take_sources), n_best, sample)

    monkeypatch.setattr(SearchEngine, "rounds", spy)
    model = random_model(tokenizer, liking=-60.0, positions=positions, max_positions=most or 1)
    (found,) = random_translator(tokenizer, model, max_extra=9, max_source=6).stream(["the dog sees"])
    length = len(tokenizer.source.encode("the dog sees"))  # `</s>` not counted
    assert length + 1 <= 7 < length + 9
    assert caps == [most or length + 9]
    assert found.capped


# --- terms ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "error", "problem"),
    [
        ({"terms": [("dog", "")]}, UserError, "a term is blank: 'dog', ''"),
        ({"terms": [(" ", "Hund")]}, UserError, "a term is blank"),
        ({"terms": ["dog"]}, TypeError, "pairs of a source term and a target term, not 'dog'"),
        ({"terms": {"dog": "Hund"}}, TypeError, "pairs"),
        ({"terms": [("dog",)]}, TypeError, "pairs"),
        ({"terms": [("dog", None)]}, TypeError, "pairs"),
        ({"texts": "a string"}, TypeError, r"translate\(\[sentence\]\)"),
        ({"prefix": ["a", "b"]}, ValueError, "there are 2 prefixes for 1 text"),
        ({"keep": "dog"}, TypeError, "a list of regular expressions"),
        ({"sample": 0}, UserError, r"sample: must be from 1 to 1,000 \(got 0\)"),
        ({"sample": 1001}, UserError, r"sample: must be from 1 to 1,000 \(got 1001\)"),
        ({"sample": 1.5}, TypeError, "float"),
        ({"sample": "2"}, TypeError, "str"),
        *(
            ({"sample": 2, key: value}, ValueError, "sample cannot be combined with terms, keep or markup")
            for key, value in (("terms", [("dog", "Hund")]), ("keep", ["dog"]), ("markup", True))
        ),
    ],
)
def test_what_is_asked_wrongly_is_named(asked, error, problem, tokenizer):
    with pytest.raises(error, match=problem):
        random_translator(tokenizer).translate(**{"texts": ["the dog"], **asked})


@pytest.mark.parametrize(
    ("asked", "error", "problem"),
    [
        ({"n_best": 0}, UserError, r"n_best: must be at least 1 \(got 0\)"),
        ({"n_best": -1}, UserError, r"n_best: must be at least 1 \(got -1\)"),
        ({"n_best": 1.5}, TypeError, "float"),
        ({"n_best": 2, "sample": 2}, ValueError, "n_best cannot be combined with sample"),
        ({"lines": "the dog"}, TypeError, r"stream\(\[line\]\)"),
    ],
)
def test_what_a_stream_is_asked_wrongly_is_named(asked, error, problem, tokenizer):
    with pytest.raises(error, match=problem):
        random_translator(tokenizer).stream(**{"lines": ["the dog"], **asked})


@pytest.mark.parametrize("asked", [{"workers": 0}, {"workers": 257}, {"threads": 0}, {"threads": 1_000_000}])
def test_as_many_workers_and_threads_are_taken_as_by_the_command_line(asked):
    with pytest.raises(UserError, match=r"^(workers|threads): must be from 1 to [0-9,]+ \(got [0-9,]+\)"):
        load("ckpts", **asked)


def test_no_model_is_an_error_that_says_so():
    with pytest.raises(UserError, match="no path is given"):
        load([])


# --- samples ------------------------------------------------------------------------------------------------


def test_samples_of_a_line_in_parts_join_samples_of_the_parts_by_number(tokenizer):
    translator = random_translator(tokenizer, random_model(tokenizer, liking=2.0), max_source=9, split="length")
    line = max(SENTENCES, key=len)
    (whole,) = translator.stream([line], sample=3)
    parts = [tokenizer.source.decode(part.ids) for part in translator.split(Request(line))]
    assert len(parts) == whole.parts > 1
    found = list(translator.stream(parts, sample=3))
    for number, ids in enumerate(whole.ids):
        assert ids == [symbol for part in found for symbol in part.ids[number]]
    assert whole.scores == pytest.approx([sum(scores) for scores in zip(*(part.scores for part in found), strict=True)])


def test_translate_draws_samples_of_texts_that_begin_with_their_prefixes(tokenizer):
    translator = random_translator(tokenizer, random_model(tokenizer, liking=0.0), max_extra=3)
    texts = ["the dog\n\nthe cat\r\n", "the dog", ""]
    whole, dog, blank = translator.translate(texts, sample=3)
    one, other = (found.texts for found in translator.stream(["the dog", "the cat"], sample=3))
    assert whole == [f"{first}\n\n{second}\r\n" for first, second in zip(one, other, strict=True)]
    assert (dog, blank) == (one, [""] * 3)
    assert len(set(dog)) == 3
    assert translator.translate(texts, sample=1) == [[samples[0]] for samples in (whole, dog, blank)]
    (begun,) = translator.translate(["the dog"], ["xy"], sample=2)
    assert [text[:2] for text in begun] == ["xy", "xy"]


# --- repetitions --------------------------------------------------------------------------------------------


def test_a_prefix_may_repeat_itself(tokenizer):
    strict = random_translator(tokenizer, max_extra=20, no_repeat=2)
    (found,) = strict.translate(["the dog"], prefix=["der Baum der Baum der"])
    assert found.startswith("der Baum der Baum der")
