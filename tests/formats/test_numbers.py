"""What counts as a changed number, a changed name or a loop, and what does not."""

from __future__ import annotations

import re

import pytest

from nmt.formats.numbers import Changes, compare, is_garbled, with_numbers_of

SAME = Changes([], [], "")


@pytest.mark.parametrize(
    ("source", "output"),
    [
        ("1,000.5 and 12,345,678", "1.000,5 und 12.345.678"),
        ("1,000.5 and 2000", "1\u202f000,5 e 2\xa0000"),
        ("1,234,567", "1'234'567"),
        ("version 2.0 of 1.5", "1,5 in der Version 2.0"),
        ("pages 455-461", "pagine da 455 a 461"),
        ("2024-05-03 at 17:30", "03.05.2024, 17.30 Uhr"),
        ("007 and ٣", "7 e 3"),
        ("a 4x4 board, 50%", "ein Brett von 4 × 4, 50 %"),
        ("64bit, 58Hz and 3D", "64 Bit, 58 Hz und 3-D"),
        ("3D, 2d", "tridimensionale, in due dimensioni"),
        ("Python3, Qt 5, MP3s and v3.11", "MP3, Python 3, Qt5 e versione 3.11"),
        ("x86_64 and i18n", "Internationalisierung, x86-64"),
        ("the 1st of 2 in the 20th century", "la prima delle due nel XX secolo"),
        ("seven of three, 2nd", "7 von 3, zweiter"),
        ("the 90s, the 1980s", "anni '90 e '80"),
        ("MP3 is old, and MP3 is good", "MP3 ist alt und gut"),  # a name once is enough
        ("the X11 system", "Il sistema X11 (X11)"),
        ("-----------------", "---------------------------"),
        ("la la la la", "la la la la la"),
        ("3 files of Python 3.11", "Python3.11的3個文件"),
        ("no digits", "keine Ziffern"),
    ],
)
def test_what_good_translations_do_is_no_change(source: str, output: str) -> None:
    assert compare(source, output) == SAME


@pytest.mark.parametrize(
    ("source", "output", "lost", "invented"),
    [
        ("31 (2010), 455-461", "31 (14555), 461", ["2010", "455"], ["14555"]),
        ("libfoo-extra59", "libfoo-extra95", ["extra59"], ["extra95"]),
        ("1.5 of 1,000", "5.1 di 10,00", ["1.5", "1,000"], ["5.1", "10,00"]),
        ("i386, 3D, lib32z", "i368, 3B, lib32x", ["i386", "3D", "lib32z"], ["i368", "3B", "lib32x"]),
        ("X1 and mp3", "X11 e mp3play", ["X1", "mp3"], ["X11", "mp3play"]),
        ("Python 3, 16th", "Python", ["3", "16th"], []),
        ("Python 3 and 12", "Python 3 und 12 und 13", [], ["13"]),
        ("Python 3", "Python 2", ["3"], ["2"]),
        ("for Qt 3", "per Qt, tre", ["3"], []),  # a number after a name is not spelled out
        ("2 of 2", "2", ["2"], []),  # a number counts each time
        ("1.2.3 and rc1", "1.2.4 e rc2", ["1.2.3", "rc1"], ["1.2.4", "rc2"]),
    ],
)
def test_numbers_and_names_that_differ_are_named(
    source: str, output: str, lost: list[str], invented: list[str]
) -> None:
    assert compare(source, output) == Changes(lost, invented, "")


@pytest.mark.parametrize(
    ("output", "loop"),
    [
        ("er sagte la la la la", "la"),
        ("gut!!!!!!!", "!"),
        ("il client, con il client, con il client, con il client", "il client, con"),
        ("pululululu", "ul"),
        ("55555555", "5"),
        ("ha ha, www, ... und erschienenen", ""),
    ],
)
def test_a_loop_is_named_by_what_it_repeats(output: str, loop: str) -> None:
    assert compare("he said 55555", output).loop == loop


def test_what_terms_ask_for_is_no_change() -> None:
    assert compare("a GPU of 2020", "eine H100", "GPU H100 2020") == SAME
    assert compare("a GPU of 2020", "eine H100", "GPU H1000 202") == Changes(["2020"], ["H100"], "")


def test_long_words_take_no_quadratic_time() -> None:
    text = "a" * 200_000 + " 1"
    assert compare(text, "1 " + "b-" * 100_000).lost == []


@pytest.mark.parametrize("source", ["1x " * 1000, " ".join(f"a{number}" for number in range(1000))])
def test_a_text_is_not_searched_for_each_of_its_numbers(monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    searched = list[int]()

    def search(pattern: str, text: str, *flags: re.RegexFlag) -> re.Match[str] | None:
        searched.append(len(text))
        return re.compile(pattern, *flags).search(text)

    monkeypatch.setattr("nmt.formats.numbers.re.search", search)
    assert compare(source, "la " * 1000).lost == source.split()
    assert sum(searched) < 20 * len(source)


@pytest.mark.parametrize(
    ("source", "output", "garbled"),
    [
        ("Number of rows in new windows", "Unsere wirft in neuen neuen neuen Taschen", True),
        ("The dog of the woman", "Der Hund der Frau der Stadt", False),
        ("one two three four five six seven", "das xa ab das xc cd das xe ef fg gh hi ij", False),
        ("one two three four five six seven", "das xa ab das xc cd das xe ef fg gh das ij jk kl lm mn no op", True),
        ("Open the file", "\u041e\u0442крыть файл", False),
        ("Open the file", "Oткрыть файл", True),  # a Latin O
        ("Show Xфайл", "Показать Xфайл", False),  # which the source has
        ("no no no", "nein nein nein", False),
        ("Show today", "räfträfträft", True),
        ("Export", "bbbbbb", True),
        ("The dog » it", "Der Hund \ufffdes", True),  # half of a character
        ("a \ufffd", "ein \ufffd", False),
        ("YYYYY-MM-DD", "ÅÅÅÅÅ-MM-DD", False),
    ],
)
def test_what_repeats_a_word_or_mixes_alphabets_is_no_translation(source: str, output: str, garbled: bool) -> None:
    assert is_garbled(source, output) == garbled


@pytest.mark.parametrize(
    ("source", "output", "expected"),
    [
        ("It sank in 1912.", "Il a coulé en 191.", "Il a coulé en 1912."),
        ("from 1963 to 2013", "von 19633 bis 2013", "von 1963 bis 2013"),
        ("215 votes and 50%", "25 Stimmen und 5 %", "215 Stimmen und 50 %"),
        ("on March 5, 1977", "am fünften März 197", "am fünften März 1977"),
        ("It costs $5.", "Es kostet 15 Dollar.", "Es kostet 5 Dollar."),
        ("born in 1912年", "生于191年", "生于1912年"),
        ("in 1912", "في ١٩١٢", "في ١٩١٢"),
        ("in 1912", "في ١٩١", "في ١٩١٢"),
        ("１９１２年に", "in 191", "in 1912"),
        *(
            (source, output, output)
            for source, output in [
                ("30 minutes", "trente minutes"),
                ("at 5 p.m.", "um 17 Uhr"),
                ("à 17 heures", "at 5 p.m."),
                ("at 2:30", "à 14 h 30"),
                ("at half past 7", "um halb 8"),
                ("um halb 8", "at half past 7"),
                ("5 miles", "8 Kilometer"),
                ("100 °F", "38 Grad"),
                ("1,000 dogs", "1.000 Hunde"),
                ("1,000 dogs and 30 cats", "1000 Hunde und dreißig Katzen"),
                ("1000 dogs and two cats", "1\u202f000 chiens et 2 chats"),
                ("3 million dogs", "300万只狗"),
                ("3000万人", "30 million people"),
                ("20 million dogs", "2 करोड़ कुत्ते"),
                ("5,000 dogs", "500 Hunde"),  # it would be another number elsewhere
                ("215 and 16", "25"),
                ("no number", "5 Zahlen"),
                ("3 dogs of 1912", "drei Hunde von 1912"),
                ("the 20th of 1912", "der 20. von 1912"),
            ]
        ),
    ],
)
def test_numbers_of_the_source_take_the_place_of_others(source: str, output: str, expected: str) -> None:
    assert with_numbers_of(source, output) == expected
