"""Texts in capitals: which are, and how they are written otherwise."""

from __future__ import annotations

import re

import pytest

from nmt.formats.letter_case import (
    capitals,
    in_capitals,
    inside_sentence,
    is_in_capitals,
    is_in_title_case,
    title_case,
    with_capitals,
    with_known_signs,
    without_capitals,
    without_emphasis,
    without_title_case,
)
from nmt.formats.terms import Span

KNOWN = ["not", "the", "The", "der", "ist", "große", "Straße", "Messer", "man", "Haus", "i'm", "door", "led"]
KNOWN += ["Diese", "best", "home", "part", "l'Italie", "vive", "Tom", "Boston", "NASA", "USB", "XYZ"]
"""Words that a vocabulary has as one subword, the frequent ones first"""


class Vocabulary:
    """Of other words, each letter is a subword, and a capital inside is three."""

    def encode(self, text: str) -> list[int]:
        ids = list[int]()
        for word in re.findall(r"[\w’']+", text.replace("\u00ad", "")):
            capital_letters = sum(map(str.isupper, word[1:]))
            ids += [KNOWN.index(word)] if word in KNOWN else [0] * (len(word) + 2 * capital_letters)
        return ids


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A MAN IN BOSTON", True),
        ("WARNING!", True),
        ("DELETE {count} FILES AT https://a.org/b? <b>NO</b> &amp; 3rd", True),
        ("USB", False),  # too short to tell
        ("", False),
        ("WARNING: not now", False),
        ("A McDONALD", False),
        ("12 34 56 78", False),
        ("今天很好。", False),
        ("დღეს კარგია", False),  # Georgian has capitals that nobody uses
        ("ПРИВЕТ, МИР", True),
        ("GROßE STRAßE", True),
        ("SECCIÓN Nº", True),
        ("DELETE {n, plural, one {file} other {files}}", True),
        ("McDONALD HAS 5 kWh ON THE iPAD DOOR", True),
        ("LEFT 20 km of IT", False),
        ("iPhone XS MAX", False),
        ("TTB-LTR-UPRIGHT", False),
        ("STATE-OF-THE-ART", True),
    ],
)
def test_text_without_small_letters_is_in_capitals(text: str, expected: bool) -> None:
    assert is_in_capitals(text) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The man", "the man"),
        ("Boston is", "Boston is"),
        ("NASA", "NASA"),
        ("I'm here", "I'm here"),
        ("Zebras", "Zebras"),  # of a word that is not known, nobody can say
        ("¿Is", "¿Is"),
        ("", ""),
    ],
)
def test_a_text_goes_on_in_a_sentence_in_a_small_letter_unless_its_word_has_a_capital(text: str, expected: str) -> None:
    assert inside_sentence(text, Vocabulary()) == expected


@pytest.mark.parametrize(
    ("text", "language", "expected"),
    [
        ("Elle zebra", "fr", "elle zebra"),
        ("Elle zebra", "de", "Elle zebra"),
        ("Er zebra", "de", "er zebra"),
        ("Sie zebra", "de", "Sie zebra"),  # it may say you
    ],
)
def test_words_that_are_no_names_go_on_in_small_letters(text: str, language: str, expected: str) -> None:
    assert inside_sentence(text, Vocabulary(), language) == expected


def test_what_a_format_keeps_does_not_count() -> None:
    assert is_in_capitals("PRESS ok NOW", [Span(6, 8)])
    assert without_capitals("PRESS THE NOW", Vocabulary(), copied=[Span(6, 9)]) == "Press THE now"


@pytest.mark.parametrize(
    ("text", "language", "expected"),
    [
        ("THE MAN FROM NASA KNOWS TOM AND BOSTON", "", "The man from NASA knows Tom and Boston"),
        ("DAS HAUS", "de", "Das Haus"),
        ("DER GROSSE PÖBEL DER STRASSE", "de", "Der groß\u00ade Pöbel der Straß\u00ade"),
        ("DER MESSER IST", "de", "Der Messer ist"),
        ("DER GROßE", "de", "Der große"),
        ("DER STRASSE", "fr", "Der strasse"),
        ("VIVE L'ITALIE", "fr", "Vive l'Italie"),
        ("STOP! GO HOME. “NO.” (WHY?) 5 MEN", "", "Stop! Go home. “No.” (Why?) 5 men"),
        ("DO I KNOW? WHAT I'M", "en_GB", "Do I know? What I'm"),
        ("DO I KNOW", "fr", "Do i know"),
        ("ASK J. R. SMITH", "", "Ask J. R. Smith"),
        ("DELETE {count} OF X86 <B>NOW</B> {n}TH", "", "Delete {count} of X86 <B>now</B> {n}TH"),
        ("{name} LEFT", "", "{name} left"),
        (
            "<b>STOP!</b> DOOR, <i>“NOT</i>.” <b>THE</b> <a href='x'>DOOR</a>",
            "",
            "<b>Stop!</b> Door, <i>“not</i>.” <b>The</b> <a href='x'>door</a>",
        ),
        ("2. HOW NOT. 3) HOME", "", "2. How not. 3) home"),
        ("OPEN THE README.TXT, UTF-8 OR THE MOST-4", "", "Open the README.TXT, UTF-8 or the MOST-4"),
        ("ACT VIII. THE HTML OF THE USA IS NOT UNESCO", "en", "Act VIII. The HTML of the USA is not UNESCO"),
        ("THE USA", "it", "The usa"),
        ("THE C:\\BEST\\HOME, CTRL+LED, 9 km/h", "", "The C:\\BEST\\HOME, CTRL+LED, 9 km/h"),
        ("THE McDONALD, tÚ AND 9 DVDs IN 5 kWh", "", "The McDONALD, tÚ and 9 DVDs in 5 kWh"),
        ("DER MAN IST SIE DIESE NOTARE", "de", "Der man ist sie diese Notare"),
        ("IŞIK VE İNSAN IRMAK", "tr", "Işık ve insan ırmak"),
        ("USB XYZ NASA", "", "USB XYZ NASA"),  # abbreviations
        ("İNSAN GELDİ", "en", "İNSAN GELDİ"),  # in small letters, these are longer in other languages
        ("ΚΑΛΗ ΟΔΟΣ; ΝΑΙ", "el", "Καλη οδος; Ναι"),
        ("ΚΑΛΗ; ΝΑΙ", "en", "Καλη; ναι"),
    ],
)
def test_words_are_written_as_the_vocabulary_has_them(text: str, language: str, expected: str) -> None:
    assert without_capitals(text, Vocabulary(), language) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The man is NOT here", "The man is not here"),
        ("The LED, the DOOR of NASA", "The LED, the DOOR of NASA"),  # perhaps abbreviations
        ("Usage: [OPTION]... SOURCE", "Usage: [OPTION]... SOURCE"),
        ("Boston: OPEN THE DOOR {n}", "Boston: open the door {n}"),
        ("Stop. NOT YOU", "Stop. Not you"),
        ("At USB. NOT at XYZ, NOT NASA", "At USB. Not at XYZ, not NASA"),
        ("I AM NOT here", "I am not here"),
        ("DOOR! NOT LED", "Door! Not led"),
        ("do <b>NOT</b> open {NOT} X1 A_NOT", "do <b>not</b> open {NOT} X1 A_NOT"),
        ("IT and US", "IT and US"),
        ("man said: HOME DOOR! He is best.", "man said: home door! He is best."),
        ("the NASA HOME and the HOME XYZ", "the NASA HOME and the HOME XYZ"),  # no words alone
    ],
)
def test_emphasis_is_dropped(text: str, expected: str) -> None:
    assert without_emphasis(text, Vocabulary(), "en") == expected


@pytest.mark.parametrize(
    ("text", "language", "expected"),
    [
        ("the man and i saw tom in boston", "en", "the man and I saw Tom in Boston"),
        ("i'm not. i am, i, i", "en", "I'm not. I am, I, I"),
        ("for i in (i) i.e. i/o is", "en", "for i in (i) i.e. i/o is"),
        ("tom is in boston. tom is not", "", "tom is in Boston. tom is not"),  # as strings begin
        ("a man in boston", "fr", "a man in Boston"),
        ("das haus ist diese not", "de", "das Haus ist diese not"),
        ("Tom is in boston", "", "Tom is in boston"),
        ("in boston", "", "in boston"),
        ("man ist ıo", "tr", "man ist ıo"),
    ],
)
def test_small_letters_get_the_capitals_of_names(text: str, language: str, expected: str) -> None:
    assert with_capitals(text, Vocabulary(), language) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The Man Ist Der Große Boston Fan", "The man ist der große Boston fan"),
        ("In 1979, Not Best won the Home Part.", "In 1979, Not Best won the Home Part."),
        ("Did you see Not or Part", "Did you see Not or Part"),
        ("The Boston Man", "The Boston Man"),  # one word that has small letters otherwise is too little
        ("Getting the Best of a Man’s Home: Part {n}", "Getting the best of a man’s home: part {n}"),
        ("Getting started With The Man", "Getting started With The Man"),
        ("See https://a.org/b And Der Man. Ist It iPod?", "See https://a.org/b and der man. Ist it iPod?"),
        ("The man is Here", "The man is Here"),
        ("THE MAN", "THE MAN"),
        ("", ""),
    ],
)
def test_headlines_become_sentences(text: str, expected: str) -> None:
    assert without_title_case(text, Vocabulary()) == expected


@pytest.mark.parametrize(
    ("text", "language", "expected"),
    [
        ("Boston Is This Way", "en", "Boston is this way"),
        ("Boston Is This Way", "", "Boston Is This Way"),
        ("Tom and Boston met Him", "en", "Tom and Boston met Him"),
        ("Haben Sie Messer", "de", "Haben Sie Messer"),
        ("Boston Ist Nicht Der", "de", "Boston ist nicht der"),
    ],
)
def test_a_word_that_is_no_name_tells_a_headline(text: str, language: str, expected: str) -> None:
    assert without_title_case(text, Vocabulary(), language) == expected


def test_only_several_words_with_capitals_are_title_case() -> None:
    assert [is_in_title_case(text) for text in ("New York City", "New York", "The Man is Here", "A, B {n} C")] == [
        True,
        False,
        False,
        True,
    ]
    assert "".join(title_case("der ok ist iPod", "de", ["ok"])) == "Der ok Ist iPod"


def test_copies_stay_where_they_are_whole_words() -> None:
    assert "".join(capitals("der ok ist token, große {n}", "de", ["ok"])) == "DER ok IST TOKEN, GROSSE {n}"
    assert capitals("groß")[3] == "SS"
    assert in_capitals("დღეს tbilisi") == "დღეს TBILISI"
    assert in_capitals("iPod, 5 kWh") == "IPOD, 5 kWh"


def test_capitals_come_back() -> None:
    text = "L’ÉTÉ À PARIS: «OUI», {n} FOIS"
    assert in_capitals(without_capitals(text, Vocabulary(), "fr"), "fr") == text


def test_signs_that_the_vocabulary_lacks_are_those_of_the_keyboard() -> None:
    class Ascii:
        def encode(self, text: str) -> list[int]:
            return [0] * len(f" {text}".encode())

    text = "“It’s 5–6…” – <a b='“'>«yes»</a> https://a.org/b–c"
    assert with_known_signs(text, Ascii()) == '"It\'s 5-6." - <a b=\'“\'>"yes"</a> https://a.org/b–c'
    assert with_known_signs(text, Vocabulary()) == text
