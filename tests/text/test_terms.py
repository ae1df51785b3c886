"""Terms and things to keep: what is found in a source, and what counts as standing in a translation."""

from __future__ import annotations

from pathlib import Path

import pytest

from nmt.system.errors import UserError
from nmt.text.terms import Term, Terms, missing, read_terms

TABLE = [
    Term("dog", "Hund"),
    Term("dog", "köter"),
    Term("New York", "Neu York"),
    Term("York", "Yorck"),
    Term("US", "Vereinigte Staaten", case=True),
    Term("犬", "Hund"),
]


def sources(text: str, *keep: str, common: bool = True) -> list[str]:
    """What is found in a text."""
    return [phrase.source for phrase in Terms(TABLE, keep, common).phrases(text)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("A Dog, and a DOG!", ["Dog", "DOG"]),  # every occurrence counts
        ("dogs, hotdog, dog_food, dog1", []),
        ("dog-house 'dog' (dog)", ["dog", "dog", "dog"]),
        ("new york, York", ["new york", "York"]),
        ("New  York", ["York"]),
        ("us in the US", ["US"]),
        ("小犬が", ["犬"]),
        ("do", []),
        ("", []),
    ],
)
def test_terms_stand_as_words_the_longest_first(text: str, found: list[str]) -> None:
    assert sources(text) == found


def test_a_term_has_its_alternatives() -> None:
    (dog,) = Terms(TABLE).phrases("a dog")
    assert (dog.targets, dog.case) == (("Hund", "köter"), False)
    (states,) = Terms([Term("US", "die USA", True)]).phrases("in the US")
    assert (states.targets, states.case) == (("die USA",), True)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("See https://x.org/a?b=c&d#e. It (www.y.de/q) is", ["https://x.org/a?b=c&d#e", "www.y.de/q"]),
        ("ftp://x.org/a_(b), http://x.org", ["ftp://x.org/a_(b)", "http://x.org"]),
        ("me@x.org, Me.Too+x@mail.x.co.uk.", ["me@x.org", "Me.Too+x@mail.x.co.uk"]),
        ("a@b", []),
        ("Hi {name}, {0} {{x.y}} ${z} {} { }", ["{name}", "{0}", "{{x.y}}", "${z}", "{}"]),
        ("%s of %(n)d, %1$s %.2f %5d%%", ["%s", "%(n)d", "%1$s", "%.2f", "%5d%%"]),
        ("20% sure, 5%ige, 100%", []),
    ],
)
def test_urls_addresses_and_placeholders_are_kept(text: str, found: list[str]) -> None:
    assert sources(text) == found
    assert sources(text, common=False) == []


def test_what_a_pattern_matches_is_kept_each_time() -> None:
    found = Terms([], [r"[A-Z]{2}-\d+"]).phrases("AB-1 and CD-22, AB-1 %s")
    assert [(phrase.source, phrase.start) for phrase in found] == [("AB-1", 0), ("CD-22", 9), ("AB-1", 16), ("%s", 21)]


@pytest.mark.parametrize(
    ("source", "translation", "lacking"),
    [
        ("a dog", "Der Hund.", []),
        ("a dog", "Die Hunde.", ["dog"]),
        ("a dog", "„Hund“, Hund", []),
        ("a dog", "Köter", []),  # capitalised
        ("a dog and a dog", "Hund und Hunde", ["dog"]),
        ("a dog and a dog", "Hund und köter", []),
        ("犬", "小Hund", []),
        ("%s and %s", "%s und %s", []),
        ("%s and %s", "%s und %s und %s", ["%s"]),
        ("%s and %s", "%s", ["%s"]),
        ("www.x.org", "awww.x.org", ["www.x.org"]),
        ("https://x.org and https://x.org/a", "https://x.org/a, https://x.org", []),
        ("https://x.org and https://x.org/a", "https://x.org/a", ["https://x.org"]),
        ("{a}b {a}", "{a}c {a}", []),
    ],
)
def test_what_is_missing(source: str, translation: str, lacking: list[str]) -> None:
    assert [phrase.source for phrase in missing(Terms(TABLE).phrases(source), source, translation)] == lacking


def test_a_table_is_read(tmp_path: Path) -> None:
    (tmp_path / "terms").write_text("dog\tHund\n\n US \tUSA\tcase\ndog\tKöter\t\n", encoding="utf-8")
    assert read_terms(tmp_path / "terms") == [Term("dog", "Hund"), Term("US", "USA", True), Term("dog", "Köter")]


@pytest.mark.parametrize("line", ["dog", "dog\t", "\tHund", "dog\tHund\tx", "dog\tHund\tcase\tmore"])
def test_a_wrong_line_is_named(line: str, tmp_path: Path) -> None:
    (tmp_path / "terms").write_text(f"dog\tHund\n{line}\n", encoding="utf-8")
    with pytest.raises(UserError) as raised:
        read_terms(tmp_path / "terms")
    assert raised.value.message.startswith(f"{tmp_path / 'terms'}:2: is no source term, tab, target term")
    assert "a line of its own" in raised.value.hint


@pytest.mark.parametrize(("pattern", "problem"), [("(", "is no regular expression"), ("a*", "matches an empty text")])
def test_a_wrong_pattern_is_named(pattern: str, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        Terms([], [pattern])
