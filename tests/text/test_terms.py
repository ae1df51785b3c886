"""Terms and things to keep: what is found in a source, and what counts as standing in a translation."""

from __future__ import annotations

from pathlib import Path

import pytest

from nmt.system.errors import UserError
from nmt.text.terms import Phrase, Term, Terms, read_terms

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
        ("A Dog, and a DOG!", ["DOG"]),  # once is enough for a term
        ("dogs, hotdog, dog_food, dog1", []),
        ("dog-house 'dog' (dog)", ["dog"]),
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


def test_a_term_has_its_alternatives_and_capitals_unless_case_matters() -> None:
    (dog,) = Terms(TABLE).phrases("a dog")
    assert dog.targets == ("Hund", "köter", "Köter")
    (states,) = Terms([Term("US", "die USA", True)]).phrases("in the US")
    assert states.targets == ("die USA",)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("See https://x.org/a?b=c&d#e. It (www.y.de/q) is", ["https://x.org/a?b=c&d#e", "www.y.de/q"]),
        ("ftp://x.org/a_(b), http://x.org", ["ftp://x.org/a_(b", "http://x.org"]),
        ("me@x.org, Me.Too+x@mail.x.co.uk.", ["me@x.org", "Me.Too+x@mail.x.co.uk"]),
        ("a@b", []),
        ("Hi {name}, {0} {{x.y}} ${z} {} { }", ["{name}", "{0}", "{{x.y}}", "${z}", "{}"]),
        ("%s of %(n)d, %1$s %.2f %5d%%", ["%s", "%(n)d", "%1$s", "%.2f", "%5d"]),
        ("20% sure, 5%ige, 100%", []),
    ],
)
def test_urls_addresses_and_placeholders_are_kept(text: str, found: list[str]) -> None:
    assert sources(text) == found
    assert sources(text, common=False) == []


def test_what_a_pattern_matches_is_kept_as_often_as_it_comes() -> None:
    found = {phrase.source: phrase.times for phrase in Terms([], [r"[A-Z]{2}-\d+"]).phrases("AB-1 and CD-22, AB-1 %s")}
    assert found == {"AB-1": 2, "CD-22": 1, "%s": 1}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("https://x.org and https://x.org/a", [("https://x.org", 2, 1), ("https://x.org/a", 1, 0)]),
        ("https://x.org/%s, %s %s", [("https://x.org/%s", 1, 0), ("%s", 3, 1)]),
        ("{a}b {a}", [("{a}", 2, 0)]),
    ],
)
def test_what_is_kept_may_be_part_of_something_longer(text: str, found: list[tuple[str, int, int]]) -> None:
    phrases = Terms().phrases(text)
    assert [(phrase.source, phrase.times, phrase.inside) for phrase in phrases] == found
    assert not any(phrase.is_missing(text) for phrase in phrases)


@pytest.mark.parametrize(
    ("targets", "times", "exactly", "text", "missing"),
    [
        (("Hund",), 1, False, "Der Hund.", False),
        (("Hund",), 1, False, "Die Hunde.", True),
        (("Hund",), 1, False, "„Hund“, Hund", False),
        (("Hund", "Köter"), 1, False, "Köter", False),
        (("犬",), 1, False, "小犬が", False),
        (("%s",), 2, True, "%s und %s", False),
        (("%s",), 2, True, "%s und %s und %s", True),
        (("%s",), 2, True, "%s", True),
        (("x.org",), 1, True, "xx.org", True),
    ],
)
def test_what_is_missing(targets: tuple[str, ...], times: int, exactly: bool, text: str, missing: bool) -> None:
    assert Phrase("x", targets, times, exactly).is_missing(text) is missing


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
