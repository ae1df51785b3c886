"""Prefixes, terms and kept text in translations: always there, whatever a model says and however it is batched."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import pytest
import torch
from reference_search import random_model

from nmt.decoding.engine import Request, read_tagged
from nmt.decoding.placement import Placer, without
from nmt.decoding.translator import Translation, Translator
from nmt.formats.terms import Span, Term, Terms, missing, written
from nmt.model.transformer import Transformer
from nmt.recipe import Decoding, Model, TokenizerSettings
from nmt.search.sources import Hypothesis, Source
from nmt.text.tokenizer import Tokenizer
from nmt.text.vocabulary import EOS, Vocabulary

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


PREFIXES = ["", "the", "th", "The d", "the dog ", "the  dog", "zebra", "x", "a cat, ", "été 日本", "\u2581", "  cat"]
PREFIXES += ["a\tb", "."]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train([(text, text[::-1]) for text in TEXTS] * 20, TokenizerSettings(vocab_size=340))


def model_of(tokenizer: Tokenizer, seed: int = 5) -> Transformer:
    torch.manual_seed(seed)
    size = len(tokenizer.source)
    model = Transformer(Model(layers=1, d_model=16, d_ff=32, heads=2), size, size)
    return model.double().eval()  # else scores differ between batches by their rounding


@pytest.fixture(scope="module")
def model(tokenizer: Tokenizer) -> Transformer:
    return model_of(tokenizer)


def translations(
    tokenizer: Tokenizer, requests: Sequence[Request | str], n_best: int = 1, models: int = 1, **decoding: object
) -> list[Translation]:
    settings = Decoding.model_validate({"beam": 4, "max_extra": 30, **decoding})
    serve = Translator([model_of(tokenizer, seed) for seed in range(5, 5 + models)], tokenizer, settings)
    return list(serve.stream(requests, n_best))


def with_terms(texts: Sequence[str], prefix: str = "") -> list[Request]:
    return [Request(text, prefix, Terms(TABLE)) for text in texts]


@pytest.mark.parametrize("frame", ["- {}", "### {}", "1) {}", "({})", "[{}]", "- ({})", "  > {}"])
def test_what_stands_around_a_sentence_stays(frame: str, tokenizer: Tokenizer) -> None:
    (plain,) = translations(tokenizer, ["the dog sees"])
    assert plain.texts[0] != ""
    line, empty = frame.format("the dog sees"), frame.format("")
    tagged = read_tagged([Request(frame.format("the <b>dog</b> sees"))])
    texts = [each.texts[0] for each in translations(tokenizer, [line, *tagged, empty])]
    assert texts[0] == frame.format(plain.texts[0])
    assert re.sub("</?b>", "", texts[1]) == texts[0]
    assert texts[2] == empty


def test_a_prefix_begins_the_translation_of_a_line_with_a_mark(tokenizer: Tokenizer) -> None:
    assert translations(tokenizer, [Request("- the dog", "the")])[0].texts[0].startswith("the")


@pytest.mark.parametrize(("beam", "models"), [(1, 1), (2, 2), (9, 1)])
def test_every_hypothesis_holds_its_phrases(beam: int, models: int, tokenizer: Tokenizer) -> None:
    requests = with_terms([*TEXTS, *KEPT])
    found = translations(tokenizer, requests, beam, models, beam=beam)
    for request, result in zip(requests, found, strict=True):
        assert result.missing == []
        assert request.terms is not None
        phrases = request.terms.phrases(request.text)
        assert bool(phrases) == (request.text != TEXTS[3])  # which has other words
        assert not any(missing(phrases, request.text, text) for text in result.texts)
        assert result.scores == sorted(result.scores, reverse=True)


@pytest.mark.parametrize(("beam", "tokens"), [(1, 20), (3, 1), (4, 64)])
def test_the_batch_makes_no_difference(beam: int, tokens: int, tokenizer: Tokenizer) -> None:
    requests = [
        *with_terms(TEXTS),
        *KEPT,
        *with_terms(KEPT),
        *TEXTS,
        *(Request(TEXTS[0], prefix) for prefix in PREFIXES),
    ]
    expected = [result.texts for result in translations(tokenizer, requests, beam, beam=beam)]
    assert [
        result.texts for result in translations(tokenizer, requests, beam, beam=beam, batch_tokens=tokens)
    ] == expected


def test_a_prefix_stays_as_it_is(tokenizer: Tokenizer) -> None:
    for result in translations(tokenizer, with_terms([*TEXTS, *KEPT[:3]], "the zeb"), 3):
        assert all(text.startswith("the zeb") for text in result.texts)
        assert result.missing == []


@pytest.mark.parametrize("prefix", ["the {name}", "x@y.org", "https://x.org/a b", "%d", "{no} the", "%s %s"])
def test_a_prefix_may_have_what_is_kept(prefix: str, tokenizer: Tokenizer) -> None:
    lines = ["the dog sees {name} and {age}", "%s likes %d and x@y.org", "https://x.org/a sees a dog"]
    for line, result in zip(lines, translations(tokenizer, [Request(line, prefix) for line in lines], 2), strict=True):
        for text in result.texts:
            assert text.startswith(prefix)
            for kept in ("{name}", "{age}", "%d", "x@y.org"):
                assert text.count(kept) == max(line.count(kept), prefix.count(kept)), (line, text)


@pytest.mark.parametrize(
    "prefix", ["the\u00a0dog", "the\tdog ", "e\u0301", "the\u200bd", "a\u00ad", "  the dog", "the\u00a0"]
)
def test_an_output_begins_with_its_prefix_as_it_is(prefix: str, tokenizer: Tokenizer) -> None:
    (result,) = translations(tokenizer, [Request("  the cat sees", prefix)])
    assert result.texts[0].startswith("  " + prefix.lstrip())


def test_only_text_to_keep_is_copied_whole(tokenizer: Tokenizer) -> None:
    texts = ["https://x.org/a, %s", "{name}"]
    assert [result.texts for result in translations(tokenizer, texts, 2)] == [[text] for text in texts]


@pytest.mark.parametrize("keep", [True, False])
def test_names_of_programs_are_copied_if_anything_is(keep: bool, tokenizer: Tokenizer) -> None:
    (result,) = translations(tokenizer, ["the dog sees config.ini and a cat"], 2, keep=keep)
    assert [text.count("config.ini") for text in result.texts] == [int(keep)] * len(result.texts)


@pytest.mark.parametrize("text", ["config.ini", "the dog sees config.ini and a cat", "config.ini: `%s` config.ini"])
def test_a_term_for_what_is_kept_is_in_its_place(text: str, tokenizer: Tokenizer) -> None:
    terms = Terms([Term("config.ini", "setup.ini"), Term("a cat", "Katze")])
    (kept,) = translations(tokenizer, [text])
    (result,) = translations(tokenizer, [Request(text, terms=terms)])
    assert result.texts[0].count("setup.ini") == text.count("config.ini") == kept.texts[0].count("config.ini")
    assert "config.ini" not in result.texts[0]
    assert (result.missing, result.lost, result.invented) == ([], [], [])


def test_outputs_beyond_a_models_last_position_are_cut_for_scores_alone(tokenizer: Tokenizer) -> None:
    torch.manual_seed(5)
    config = Model(layers=1, d_model=16, d_ff=32, heads=2, positions="learned", max_positions=12)
    model = Transformer(config, len(tokenizer.source), len(tokenizer.source)).eval()
    serve = Translator(model, tokenizer, Decoding(max_source=8, max_extra=5), annotated=True)
    terms = Terms([Term("dog", "one two three four five six seven")])
    (result,) = serve.stream([Request("dog", terms=terms)])
    assert result.missing == []
    for annotation in (*result.alignments, *result.log_probabilities):
        assert None not in annotation[:12]
        assert set(annotation[12:]) == {None}
        assert len(annotation) == len(result.ids[0])
    (hypothesis,) = json.loads(serve.as_json(1, result))["hypotheses"]
    assert hypothesis["alignment"][12:] == hypothesis["log_probabilities"][12:] != []


INVENTED = "the %s dog {x} sees"


def placed(tokenizer: Tokenizer, text: str, outputs: Sequence[str], n_best: int = 1) -> list[Hypothesis]:
    """Place the phrases of a source, which needs no search again, in outputs."""
    source = Source(0, tokenizer.source.encode(text), 30, text=text, phrases=Terms().phrases(text))
    hypotheses = [Hypothesis(tokenizer.target.encode(output), -1.0, True) for output in outputs]
    placer = Placer(tokenizer.source, cast(Vocabulary, tokenizer.target), Decoding(), [model_of(tokenizer)])
    ((_, found),), again = placer.place([(source, hypotheses)], n_best)
    assert not again
    return found


def test_a_hypothesis_that_invents_placeholders_loses_against_others(tokenizer: Tokenizer) -> None:
    (found,) = placed(tokenizer, "", [INVENTED, "see www.x.org", "the dog"])
    assert found.text is None
    assert tokenizer.target.decode(found.ids) == "the dog"
    (found,) = placed(tokenizer, "{x}%s", ["{x}", "%s{x}", "{x}%s"])
    assert tokenizer.target.decode(found.ids) == "{x}%s"


def test_without_others_what_is_invented_is_deleted_and_counted(tokenizer: Tokenizer) -> None:
    first, second = placed(tokenizer, "", [INVENTED, "me@x.org"], 2)
    assert (first.text, first.deleted) == ("the dog sees", ["%s", "{x}"])
    assert (second.text, second.deleted) == ("", ["me@x.org"])
    (found,) = placed(tokenizer, "%s", ["%s and %s"])
    assert (found.text, found.deleted) == ("%s and", ["%s"])
    (found,) = placed(tokenizer, "(c) dog", ["© dog %s"])
    assert (found.text, found.deleted) == ("© dog", ["%s"])


def test_placeholders_without_numbers_get_their_order_back(tokenizer: Tokenizer) -> None:
    (found,) = placed(tokenizer, "%s of %d", ["%d von %s"])
    assert found.text == "%s von %d"


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("狗看见%s。", "狗看见。"),
        ("{name}がいる", "がいる"),
        ("หมา %s ครับ", "หมา ครับ"),
        ("개가 %s를 본다", "개가 를 본다"),
        ("a %s dog", "a dog"),
        ("%s!", None),
    ],
)
def test_a_source_whose_placeholder_is_garbled_is_searched_again_without_it(
    tokenizer: Tokenizer, text: str, rest: str | None
) -> None:
    """Whatever its script; what has no words else is copied."""
    source = Source(0, tokenizer.source.encode(text), 30, text=text, phrases=Terms().phrases(text))
    placer = Placer(tokenizer.source, cast(Vocabulary, tokenizer.target), Decoding(), [model_of(tokenizer)])
    found, again = placer.place([(source, [Hypothesis(tokenizer.target.encode("a dog"), -1.0, True)])], 1)
    assert [each.text for each in again] == [rest] * bool(rest)
    assert [each.text for _, (each,) in found] == [text] * (not rest)


def test_signs_that_a_vocabulary_lacks_are_copied_with_their_numbers(tokenizer: Tokenizer) -> None:
    lines = ["the dog likes 30° and 5 €", "½ a dog, 50 m²", "£20 × a cat", "the £20/€25 tree", "₂ -5 °C"]
    for line, result in zip(lines, translations(tokenizer, lines), strict=True):
        for sign in re.findall(r"30°|€25|5 €|½|m²|£20 ×|₂|5 °C", line):
            assert sign in result.texts[0], (line, result.texts)
        assert not result.missing
    (left,) = translations(tokenizer, ["30°"], keep=False)
    assert left.parts == 1


@pytest.mark.parametrize(
    ("text", "output", "expected"),
    [
        ("%s sees dogs.", "The dog.", "%s the dog."),
        ("%s Sees dogs.", "The dog.", "%s The dog."),
        ("sees %s.", "The dog.", "The dog %s."),
        ('sees "%s" and dogs.', "The dog.", 'The "%s" dog.'),
        ("sees (%s) and dogs.", "The dog.", "The (%s) dog."),
        ("sees (“%s”) and dogs.", "The dog.", "The (“%s”) dog."),
        ("'%s'%d' sees dogs.", "The dog.", "'%s'%d' the dog."),
    ],
)
def test_what_is_copied_is_put_back_with_its_quotation_marks_into_a_sentence(
    text: str, output: str, expected: str, tokenizer: Tokenizer
) -> None:
    whole = Source(0, tokenizer.source.encode(text), 30, text=text, phrases=Terms().phrases(text))
    placer = Placer(tokenizer.source, cast(Vocabulary, tokenizer.target), Decoding(), [model_of(tokenizer)])
    garbled = [Hypothesis(tokenizer.target.encode("x"), -1.0, True)]
    _, (bare,) = placer.place([(whole, garbled)], 1)
    found, _ = placer.place([(bare, [Hypothesis(tokenizer.target.encode(output), -1.0, True)])], 1)
    assert [each.text for _, (each,) in found] == [expected]


def test_any_line_keeps_what_it_has_once_and_its_edges(tokenizer: Tokenizer) -> None:
    seed = random.randrange(1 << 30)
    choose = random.Random(seed)
    kept = ["%s", "{name}", "%1$d", "https://x.org/a_(b)", "x@y.org", "{{ a.b }}", "%(n)s"]
    lines = []
    for _ in range(60):
        chosen = [*choose.sample(kept, choose.randint(0, 4)), *choose.choices(["dog", "a", "→", "so.", "✓", "%"], k=6)]
        choose.shuffle(chosen)
        lines.append(choose.choice(["", " ", "\t"]) + " ".join(chosen) + choose.choice(["", "  "]))
    found = translations(tokenizer, lines, max_extra=10, max_source=choose.choice([8, 20, 200]))
    for line, result in zip(lines, found, strict=True):
        text, expected = result.texts[0], Counter(span for span in kept if span in line)
        assert Counter(span for span in kept for _ in range(text.count(span))) == expected, (seed, line, text)
        assert (text[: len(text) - len(text.lstrip())], text[len(text.rstrip()) :]) == (
            line[: len(line) - len(line.lstrip())],
            line[len(line.rstrip()) :],
        ), (seed, line)


def test_edits_are_made_in_the_order_of_their_places() -> None:
    edits = [(Span(8, 8), " X"), (Span(4, 4), "Y "), (Span(0, 3), "Z"), (Span(8, 8), " V")]
    assert written("one four", edits) == "Z Y four X V"


@pytest.mark.parametrize(
    ("text", "rest"),
    [("See %s now", "See now"), ("%s is {n}px.", "is px."), ("See %s.", "See."), ("({a})", "()"), ("%s", "")],
)
def test_what_is_kept_leaves_no_spaces_behind(text: str, rest: str) -> None:
    found, cuts = without(text, Terms().phrases(text))
    assert found == rest
    for cut in reversed(cuts):  # and can be put back
        at = cut.start - sum(other.end - other.start for other in cuts if other < cut)
        found = found[:at] + text[slice(*cut)] + found[at:]
    assert found == text


# --- prefixes -----------------------------------------------------------------------------------------------


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


def test_what_is_copied_may_have_white_space_that_the_vocabulary_makes_plain(
    model: Transformer, tokenizer: Tokenizer
) -> None:
    """The alignment is that of the text, not of what its subwords spell."""
    line = "<b>the <tt>a\u00a0%1, b</tt></b> dog"
    (found,) = translator(model, tokenizer, max_extra=20).translate([line], markup=True)
    assert re.findall(r"<b>|</b>|<tt>a\u00a0%1, b</tt>", found) == ["<b>", "<tt>a\u00a0%1, b</tt>", "</b>"]
