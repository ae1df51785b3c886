"""Plural forms: the numbers that take them, and texts that tell a model by one of these which form is wanted."""

from __future__ import annotations

from collections.abc import Sequence
from gettext import c2py
from pathlib import Path

import pytest

from nmt.formats.bilingual import BilingualFile
from nmt.formats.catalogs import numbers_of_qt, numbers_of_quantities, usual_plurals
from nmt.formats.plurals import SAMPLE, PluralString, numbers_of_forms, telling_number, with_number
from nmt.formats.strings import Accelerators

pytest.importorskip("translate", reason="needs the package translate-toolkit")

RUSSIAN = "n%10==1 && n%100!=11 ? 0 : n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20) ? 1 : 2"
KDE = f"nplurals=4; plural=n==1 ? 3 : {RUSSIAN}"
"""Ukrainian in programs of KDE"""
HEADER = 'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n"Plural-Forms: {};\\n"\n'
FILES = 'msgid "{}%d file"\nmsgid_plural "{}%d files"\n'
NO_MARKS = Accelerators(())


def opened(path: Path, text: str, language: str = "uk") -> BilingualFile:
    path.write_text(text)
    return BilingualFile(path, ["en", language])


@pytest.mark.parametrize(
    ("language", "numbers"),
    [
        ("uk", [21, 2, 5]),
        ("pl", [1, 2, 5]),
        ("sl", [101, 2, 3, 5]),
        ("ar", [0, 1, 2, 3, 11, 100]),
        ("de", [1, 2]),
        ("fr", [1, 2]),
        ("ja", [2]),
    ],
)
def test_each_form_has_the_smallest_number_above_one_that_takes_it(language: str, numbers: list[int]) -> None:
    assert [*map(telling_number, numbers_of_forms(*usual_plurals(language)))] == numbers
    assert [*map(telling_number, numbers_of_qt(language))] == numbers


def test_a_form_without_a_number_has_none() -> None:
    """As in catalogs of GNOME that have a form for decimals."""
    assert [*map(telling_number, numbers_of_forms(4, RUSSIAN))] == [21, 2, 5, None]


def test_rules_are_those_of_gettext() -> None:
    from translate.lang.data import languages

    rules = [(int(count), rule) for _, count, rule in languages.values()]
    for count, rule in [*rules, (2, "!n || n == 1 == 1"), (2, "2 - 1 - 1 + n / 3 % 2")]:
        form_of = c2py(rule)
        taken = [[number for number in SAMPLE if form_of(number) == form] for form in range(count)]
        assert [sorted(numbers) for numbers in numbers_of_forms(count, rule)] == taken, rule
    assert 9 in numbers_of_forms(2, "(0 || n) > 1")[0], "as in C, what is true is 1"


@pytest.mark.parametrize(
    "rule",
    [
        *("", "n ==", "n n", "5 5", "n ? 1", "n != 1)", "((n)", "-1", "n % 0", "n!1", "n;", "n.real", "exec('n')"),
        *("(" * 400 + "n" + ")" * 400, "n" + " " * 1000),
    ],
)
def test_what_is_no_rule_is_an_error(rule: str) -> None:
    with pytest.raises(ValueError, match="no rule for plural forms"):
        numbers_of_forms(2, rule)


@pytest.mark.parametrize(
    ("language", "numbers"),
    [
        ("uk", {"one": 21, "few": 2, "many": 5}),  # `other` is for decimals
        ("sl", {"one": 101, "two": 2, "few": 3, "other": 5}),
        ("ar", {"zero": 0, "one": 1, "two": 2, "few": 3, "many": 11, "other": 100}),
        ("pt_BR", {"one": 1, "many": 1_000_000, "other": 2}),
        ("lv", {"zero": 10, "one": 21, "other": 2}),
        ("es", {"one": 1, "many": 1_000_000, "other": 2}),
        ("cv", {"zero": 0, "one": 1, "other": 2}),
        ("vec", {"one": 1, "many": 1_000_000, "other": 2}),
        ("fil", {"one": 2, "other": 4}),
        ("cy", {"zero": 0, "one": 1, "two": 2, "few": 3, "many": 6, "other": 4}),
        ("zh_TW", {"other": 2}),
    ],
)
def test_quantities_of_android_have_numbers(language: str, numbers: dict[str, int]) -> None:
    assert {name: telling_number(each) for name, each in numbers_of_quantities(language).items()} == numbers


def test_the_singular_of_some_languages_is_for_one_alone() -> None:
    for language in ("ca", "es", "it", "pt_PT", "vec"):
        assert numbers_of_quantities(language)["one"] == {1}, language
    for language in ("fr", "pt_BR"):
        assert numbers_of_quantities(language)["one"] == {0, 1}, language


def test_forms_of_qt_are_in_its_own_order() -> None:
    assert [*map(telling_number, numbers_of_qt("lv"))] == [21, 2, 0]
    assert [*map(telling_number, numbers_of_qt("tr"))] == [2], "gettext has two"


def test_every_language_of_the_toolkit_has_numbers() -> None:
    from translate.lang.data import plural_tags, qt_plural_tags

    for language in qt_plural_tags:
        assert None not in map(telling_number, numbers_of_qt(language)), language
    for language in plural_tags:
        assert None not in map(telling_number, numbers_of_quantities(language).values()), language


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("%d files", "5 files"),
        ("%'d files", "5 files"),
        ("%n file(s)", "5 file(s)"),
        ("%1$s has %2$ld files", "%1$s has 5 files"),
        ("%2 of %1", "%2 of 5"),
        ("%(count)s files", "5 files"),
        ("{count} files", "5 files"),
        ("@count files by @user", "5 files by @user"),
        ("%{count} files by %{user}", "5 files by %{user}"),
        ("top %d%%", "top 5%%"),
        ("%d of %d", ""),
        ("{a} of {b}", ""),
        ("%d of 5 files", ""),
        ("files", ""),
        ("%2 files", ""),
        ("%.1f files", ""),
    ],
)
def test_a_number_stands_for_the_only_placeholder_that_can_be_one(text: str, told: str) -> None:
    assert with_number(text, {5, 6, 7}) == told


UNITS = [
    ('msgstr[0] "a %d"\nmsgstr[1] "b %1$d"\nmsgstr[2] "c"\n', ["21 file|a 21", "2 files|b 2", "%d files|c"]),
    ('msgstr[0] "a %d"\nmsgstr[1] ""\nmsgstr[2] "c %d 5"\n', ["21 file|a 21", "%d files|c %d 5"]),
]


@pytest.mark.parametrize(("forms", "pairs"), UNITS)
def test_pairs_for_training_have_numbers_where_both_sides_have_the_place(
    forms: str, pairs: Sequence[str], tmp_path: Path
) -> None:
    file = opened(tmp_path / "a.po", HEADER.format(f"nplurals=3; plural={RUSSIAN}") + FILES.format("", "") + forms)
    assert ["|".join(pair) for pair in file.pairs()] == pairs


def test_pairs_of_qt_have_numbers(tmp_path: Path) -> None:
    forms = "".join(f"<numerusform>{form} %n</numerusform>" for form in "abc")
    message = f"<message numerus='yes'><source>%n file(s)</source><translation>{forms}</translation></message>"
    file = opened(tmp_path / "a.ts", f"<!DOCTYPE TS>\n<TS language='pl'><context>{message}</context></TS>", "pl")
    assert [*file.pairs()] == [("1 file(s)", "a 1"), ("2 file(s)", "b 2"), ("5 file(s)", "c 5")]


def test_the_only_number_of_a_form_stands_in_its_translation_even_where_the_source_has_a_word(tmp_path: Path) -> None:
    unit = 'msgid "One file{0}"\nmsgid_plural "%d files{0}"\nmsgstr[0] "%d plik{0}"\nmsgstr[1] ""\nmsgstr[2] ""\n\n'
    header = HEADER.format("nplurals=3; plural=n==1 ? 0 : n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20) ? 1 : 2")
    file = opened(tmp_path / "a.po", header + unit.format("") + unit.format(" in %s"), "pl")
    assert [*file.pairs()] == [("One file", "1 plik"), ("One file in %s", "%d plik in %s")]
    assert file.string(file.units[1]).texts == ["One file in %s"]


def test_a_form_of_many_numbers_has_the_source_with_the_number(tmp_path: Path) -> None:
    """Not a singular that lacks it, though it has other placeholders."""
    unit = 'msgid "One file in %s"\nmsgid_plural "%d files in %s"\nmsgstr[0] ""\n'
    (three,) = opened(tmp_path / "a.po", HEADER.format(f"nplurals=3; plural={RUSSIAN}") + unit).units
    assert three.sources == ["%d files in %s"] * 3
    (four,) = opened(tmp_path / "a.po", HEADER.format(KDE) + unit).units
    assert four.sources == [*three.sources, "One file in %s"]


def test_forms_are_searched_for_with_their_numbers_and_without(tmp_path: Path) -> None:
    unit = FILES.format("_Delete ", "_Delete ") + 'msgstr[0] ""\nmsgstr[1] ""\nmsgstr[2] ""\n'
    header = HEADER.format(f"nplurals=3; plural={RUSSIAN}")
    file = opened(tmp_path / "a.po", header + unit + '\nmsgid "_Open"\nmsgstr ""\n')
    strings = [file.string(file.units[0], form) for form in range(3)]
    assert [string.texts for string in strings] == [
        ["Delete 21 file", "Delete %d file"],
        ["Delete 2 files", "Delete %d files"],
        ["Delete 5 files", "Delete %d files"],
    ]
    found = {"Delete 21 file": "Вилучити 21 файл", "Delete 2 files": "2 файли вилучити", "Delete 5 files": "файлів"}
    plain = {"Delete %d file": "а", "Delete %d files": "Вилучити %d файлів"}
    done = [string.put(found | plain) for string in strings]
    assert done == ["_Вилучити %d файл", "%d _файли вилучити", "_Вилучити %d файлів"]
    assert strings[0].put({"Delete 21 file": "", "Delete %d file": ""}) == ""


@pytest.mark.parametrize(
    ("source", "told", "expected"),
    [
        ("%s has %d files", "%s – 5 Dateien", "%s – %d Dateien"),
        ("%s has %d files", "5 Dateien – %s", ""),  # the program would put each in the place of the other
        ("%2$s has %1$d files", "5 Dateien – %2$s", "%1$d Dateien – %2$s"),
        ("%d files", "5 Dateien: 5", ""),
        ("%d files", "15 Dateien", ""),
        ("%d files", "5Dateien", "%d Dateien"),  # as a model may write it
        ("%d files", "1.5 Dateien", ""),
        ("%d files.", "Dateien: 5.", "Dateien: %d."),
        ("%d files", "fünf Dateien", ""),
        ("<b>%d</b> files", "<b>5</b> Dateien", "<b>%d</b> Dateien"),
        ("%d files\n", "5 Dateien", "%d Dateien\n"),
    ],
)
def test_a_number_becomes_its_placeholder_again_if_that_is_sure(source: str, told: str, expected: str) -> None:
    """Else the translation of the text without the number is taken."""
    string = PluralString(source, {5, 6}, NO_MARKS)
    number, plain = string.texts
    placeholders = source.replace("files", "Stück")
    assert string.put({number: told, plain: plain.replace("files", "Stück")}) == (expected or placeholders)
