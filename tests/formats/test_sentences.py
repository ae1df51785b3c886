"""Sentences of lines: hand-made ones with abbreviations, initials, numbers, quotes and other scripts."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.formats.sentences import (
    STOPS,
    WIDE,
    SentenceSplitter,
    TrainedLengths,
    as_sentence,
    unseen_marks,
    usual_stop,
    with_end_of,
)

MARKED = [
    tuple(line.split("\t", 1))
    for line in Path(__file__).with_name("sentences.txt").read_text(encoding="utf-8").split("\n")
    if line and not line.startswith("#")
]


@pytest.mark.parametrize(("language", "marked"), MARKED)
def test_hand_made_lines_are_split_where_they_are_marked(language: str, marked: str) -> None:
    assert SentenceSplitter(language).split(marked.replace("|", "")) == marked.split("|")


ENDINGS = {
    "en": [
        "The dog sees {} in the garden.",
        "Dr. Miller paid $3.50 to J. K. Walters at 5 p.m. for {}!",
        "Who has {}?!",
    ],
    "de": ["Der Hund sieht {} im Garten.", "Wo ist {}, z. B. am 3. Mai?", "Version 2.0.1 von {} ist da …"],
    "fr": ["Le chien voit {} dans le jardin.", "M. Dupont cherche {} ?", "« Voilà {} ! »"],
    "es": ["El perro ve {} en el jardín.", "¿Dónde está {}?", "¡Mira {}!"],
    "ru": ["Собака видит {} в саду.", "Где {}?", "Это стоит 5 тыс. рублей: {}!"],
    "el": ["Ο σκύλος βλέπει {}.", "Πού είναι {};", "Πού είναι {}\u037e"],
    "hy": ["Շունը տեսնում է {}։", "Կատուն տեսնում է {}։"],
    "ka": ["ძაღლი ხედავს {}.", "სად არის {}?"],
    "he": ["הכלב רואה את {}.", "איפה {}?"],
    "ar": ["الكلب يرى {}.", "أين {}؟"],
    "ur": ["کتا {} دیکھتا ہے۔", "{} کہاں ہے؟"],
    "hi": ["कुत्ता {} देखता है।", "{} कहाँ है?", "यह {} है।"],
    "si": ["බල්ලා {} දකියි.", "{} කොහෙද?"],
    "am": ["ውሻው {} ያያል።", "{} የት ነው፧"],
    "my": ["ခွေးက {} ကိုမြင်သည်။", "{} ဘယ်မှာလဲ။"],
    "km": ["ឆ្កែឃើញ {} ។", "{} នៅឯណា?"],
    "ko": ["개가 {} 본다.", "{} 어디에 있니?"],
    "zh": ["狗看见{}。", "{}在哪里？", "他说：“{}！”"],
    "ja": ["犬が{}を見る。", "{}はどこですか？", "「{}だ。」"],
}
"""Sentences of each language, in which other things stand."""
INSIDE = "2|3.14|12:30|v1.2|a.txt|example.com|http://a.b/?q=1|ann@example.org|50%|C++|Max|(1)|“x”|2.000,50"
BETWEEN = "|😀|👍🏽|👨‍👩‍👧|🇩🇪|→|✓|•|©|★|@max|#tag|%s|%1$s|{0}|{name}|$name|${x}|[3]|(a)|–|—|«|“|(|¿|1️⃣|§"


def test_of_generated_lines_nearly_all_are_split_into_their_sentences() -> None:
    draw, right = random.Random(7), 0
    for _ in range(300):
        language = draw.choice([*ENDINGS])
        sentences = []
        for _ in range(draw.randint(2, 5)):
            begin = draw.choice(BETWEEN.split("|"))
            sentence = draw.choice(ENDINGS[language]).format(draw.choice(INSIDE.split("|")))
            sentences.append(f"{begin} {sentence}" if sentences and begin else sentence)
        found = SentenceSplitter(language).split(" ".join(sentences))
        right += [sentence.strip() for sentence in found] == sentences
    assert right >= 0.98 * 300


@pytest.mark.parametrize("mark", WIDE + STOPS)
def test_every_mark_ends_a_sentence(mark: str) -> None:
    line = f"ab{mark} cd{mark} ef{mark}"
    assert SentenceSplitter("").split(line) == [f"ab{mark} ", f"cd{mark} ", f"ef{mark}"]


@given(
    st.text(alphabet="aAbB1 .!?…。」\"'»«()\u2028\u00a0é日\U0001f600-", max_size=60),
    st.sampled_from(["en", "de", "xx", ""]),
)
def test_sentences_joined_are_the_line(text: str, language: str) -> None:
    found = SentenceSplitter(language).split(text)
    assert "".join(found) == text
    assert all(sentence.strip() for sentence in found[1:])


@pytest.mark.parametrize(
    ("language", "marked"),
    [
        ("en", "A man sings |A dog barks |Two women run."),
        ("en", "They climb to the top of The Shard and I wave."),
        ("en", "a man sings a dog barks"),
        ("de", "Ein Mann singt |Ein Hund bellt |Die Frau läuft."),
        ("de", "Er dankt Ihnen und Sie lachen mit der Frau Die Zeit."),
        ("en", "-- 'twas raining |A well-known 'singer' |The end"),
        ("en", "Mother-in-law The dogs' |A cat"),
        ("pl", "Pies śpi The end"),  # of Polish no such words are known
    ],
)
def test_sentences_without_full_stops_begin_with_a_capital_article(language: str, marked: str) -> None:
    assert SentenceSplitter(language).split_unmarked(marked.replace("|", "")) == marked.split("|")


def test_a_region_does_not_hide_the_language() -> None:
    line = "Am 3. Oktober. |Im Mai."
    for code in ("de", "de_AT", "de-CH", "DE", "deu", "ger"):
        assert SentenceSplitter(code).split(line.replace("|", "")) == line.split("|")


UNITS = """A. |Dr. |.|. |."|1. |(|。|a.b.|etc. a |a|a-|日|'|a |a A |.😀|. 😀|. <|\u2028(|! (|。(|.[1]|.&"""


@pytest.mark.parametrize("unit", UNITS.split("|"))
def test_a_long_line_takes_steps_in_proportion_to_its_length(unit: str) -> None:
    line = unit * (200_000 // len(unit))  # would not end if steps grew with the square
    splitter = SentenceSplitter("en")
    assert "".join(splitter.split(line)) == line
    assert "".join(splitter.split_unmarked(line)) == line


# --- lengths of training pairs ------------------------------------------------------------------------------


def trained(*values: str | int | float) -> TrainedLengths:
    """These values in the order of the fields; the last ones have defaults."""
    return TrainedLengths.model_validate(dict(zip(TrainedLengths.model_fields, values, strict=False)))


def test_quantiles_are_values_that_so_many_do_not_exceed() -> None:
    sources = list(range(1, 1001))
    found = TrainedLengths.of("en", sources, [2 * length + 1 for length in sources], [1] * 600 + [2] * 395 + [9] * 5)
    assert found == trained("en", 2, 1, 990, 999, 2.0, 2.0)
    assert TrainedLengths.of("en", [3], [7], [1]) == trained("en", 1, 1, 3, 3, 2.0, 2.0)
    assert TrainedLengths.of("en", [3, 9], [3, 19], [1, 3]) == trained("en", 3, 1, 9, 9, 1.0, 2.0)


@pytest.mark.parametrize(("source", "target", "unusual"), [(9, 4, False), (9, 3, True), (9, 19, False), (9, 20, True)])
def test_a_target_beyond_the_ratios_of_training_is_unusual(source: int, target: int, unusual: bool) -> None:
    assert trained("en", 1, 1, 20, 30, 0.5, 2.0).is_unusual(source, target) == unusual


@pytest.mark.parametrize(
    ("last", "stop"),
    [
        (["He came."] * 7 + ["Did he?", 'He said: "Go!"', "(He did.)"], "."),
        (["彼は来た。"] * 9 + ["来た？"], "。"),
        (["वह आया।"] * 9 + ["He came."], "।"),
        (["Who?"] * 6 + ["He."] * 4, ""),  # most are questions
        (["He came."] * 9 + ["Open the file"], ""),
        (["Open file"] * 10, ""),
    ],
)
def test_the_usual_stop_is_what_ends_most_of_texts_that_nearly_all_end(last: list[str], stop: str) -> None:
    assert usual_stop(last) == stop


@pytest.mark.parametrize(
    ("source", "output", "expected"),
    [
        ("Really?!", "Vraiment !", "Vraiment ?!"),
        ("Really???", "Vraiment ?", "Vraiment ???"),
        ("Stop!!", "Arrête", "Arrête!!"),
        ("Stop!!", "¡Alto!", "¡Alto!!"),
        ("Really?!", "真的吗？", "真的吗？"),
        ("Really?!", "?", "?"),
        ("Really?!", "Il dit : « Oui »", "Il dit : « Oui »"),
    ],
)
def test_several_marks_stay_several(source: str, output: str, expected: str) -> None:
    assert with_end_of(source, output) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("So", "So."),
        ("So (yes)", "So (yes)."),
        ("So?!", "So?"),
        ("So!!!", "So!"),
        ("So？！", "So？"),
        ("Hi Tom,", "Hi Tom."),
        ("Et alors :", "Et alors."),
        ("So!", "So!"),
        ("wait…", "wait…"),
        ("5 %", "5 %"),
        ("", ""),
    ],
)
def test_a_model_of_sentences_gets_one_that_ends(text: str, expected: str) -> None:
    assert as_sentence(text, ".") == expected


def test_marks_are_unseen_if_hardly_any_text_has_them() -> None:
    texts = ["He came at 10:30; she left."] * 5 + ["Tom: Go!"] * 6 + ["A dog – or a cat"] * 1 + ["They left."] * 988
    assert unseen_marks(texts) == "…/&–"
    assert unseen_marks(texts * 2 + ["They left."]) == ";…/&–"


@pytest.mark.parametrize("text", ["a dog", "I am 30", 'He said "yes"', "a dog (brown)", "der Hund ", "chapter 5"])
def test_a_text_that_ends_in_a_word_gets_a_full_stop(text: str) -> None:
    assert as_sentence(text, ".") == f"{text}."


@pytest.mark.parametrize("text", ["He came.", "So?", "(So!)", "(So?!)", "(so:)", "wait…", "so –", "5 %", "今天", ""])
def test_a_text_that_has_an_end_gets_no_full_stop(text: str) -> None:
    assert as_sentence(text, ".") == text


GOOD = trained("en", 3, 1, 40, 60, 0.5, 2.5).model_dump()


@pytest.mark.parametrize(
    "values",
    [None, [], {}, {"sentences": 1}, GOOD | {"more": 1}, GOOD | {"source": -1}, GOOD | {"source": "40"},
     GOOD | {"source": 1.5}, GOOD | {"sentences": True}, GOOD | {"least_ratio": float("nan")},
     GOOD | {"greatest_ratio": float("inf")}, GOOD | {"language": 3}, GOOD | {"sentences": 10**12}],
)  # fmt: skip
def test_other_values_are_refused(values: object) -> None:
    with pytest.raises(ValueError, match="validation error"):
        TrainedLengths.model_validate(values)


@pytest.mark.parametrize(
    ("source", "output", "expected"),
    [
        ("good morning", "guten Morgen.", "guten Morgen"),
        ("Tom (my friend)", "Tom (mein Freund).", "Tom (mein Freund)"),
        ("Tom:", "Tom.", "Tom:"),
        ("Dear Tom,", "Lieber Tom.", "Lieber Tom,"),
        ("in 1984", "1984. ", "1984 "),
        ("good morning", "早上好。", "早上好"),
        ("She is...", "Sie ist.", "Sie ist..."),
        ("“She is…”", "Sie ist", "Sie ist…"),
        ("Yet she is...", "Mais elle est.", "Mais elle est..."),  # no abbreviation
        ("He asked:", "Il a demandé :.", "Il a demandé :"),
        ("what there is", "ce qu'il y a.", "ce qu'il y a"),
        ("Click here", "Cliquez ici !", "Cliquez ici"),
        ("Saving...", "Enregistrez !", "Enregistrez..."),
        ("Mind:", "Attention ! ", "Attention: "),
        *(
            (source, output, output)
            for source, output in [
                ("Good morning.", "Guten Morgen."),
                ("Open it.", "Ouvrez-le !"),
                ("Hello", "¡Hola!"),
                ("The game Kaboom! in French", "Kaboom!"),
                ("one", "!"),
                ("He said, “Good morning.”", "Er sagte: „Guten Morgen.“."),
                ("Il dit : «\u202fBonjour.\u202f»", "He said good morning."),
                ("and so on", "etc."),
                ("at 8 in the evening", "um 8 p.m."),
                ("on the 3rd", "am 3."),
                ("and then", "und dann..."),
                ("and then...", "und dann…"),
                ("and then…", "und dann?"),
                ("J", "J."),
                ("早上好", "Good morning."),
                ("Why", "Warum?"),
                ("Πού είναι;", "Where is it."),
                ("", "."),
            ]
        ),
    ],
)
def test_an_output_ends_in_no_full_stop_that_its_source_lacks(source: str, output: str, expected: str) -> None:
    assert with_end_of(source, output) == expected
