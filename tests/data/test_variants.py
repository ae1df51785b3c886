"""Texts in capitals, in title case, without final punctuation, with typos and in a row."""

from __future__ import annotations

from random import Random

import pytest

from nmt.data.variants import in_a_row, with_typos, without_final_mark
from nmt.formats.letter_case import in_capitals, in_title_case

KEPT = "{name} %(count)d https://a.org/b?c=d x@y.org <b>%s</b> &amp; a/b.txt --all HTML5 x86_64 1,000.5 20th"


@pytest.mark.parametrize(
    ("text", "language", "capitals", "title"),
    [
        ("don't stop", "en", "DON'T STOP", "Don't Stop"),
        ("it’s 'quoted'", "en", "IT’S 'QUOTED'", "It’s 'Quoted'"),
        ("große straße", "de", "GROSSE STRASSE", "Große Straße"),
        ("a well-known l'homme", "fr", "A WELL-KNOWN L'HOMME", "A Well-Known L'homme"),
        ("the iPod of NASA", "en", "THE IPOD OF NASA", "The iPod Of NASA"),
        ("istanbul ılık", "tr_TR", "İSTANBUL ILIK", "İstanbul Ilık"),
        ("Άνθρωποι ταΐζουν", "el", "ΑΝΘΡΩΠΟΙ ΤΑΪΖΟΥΝ", "Άνθρωποι Ταΐζουν"),
        ("e\u0301te\u0301 col·legi", "ca", "E\u0301TE\u0301 COL·LEGI", "E\u0301te\u0301 Col·legi"),
        ("ijsvrij en wij, ij", "nl", "IJSVRIJ EN WIJ, IJ", "IJsvrij En Wij, IJ"),
        ("ի՞նչ է", "hy", "Ի՞ՆՉ Է", "Ի՞նչ Է"),
        ("ALREADY THERE", "en", "ALREADY THERE", "ALREADY THERE"),
        ("我们在家。", "zh", "我们在家。", "我们在家。"),
        (f"see {KEPT} now", "en", f"SEE {KEPT} NOW", f"See {KEPT} Now"),
        ("<b>bold</b> {n}th", "en", "<b>BOLD</b> {n}TH", "<b>Bold</b> {n}th"),
        ("", "", "", ""),
    ],
)
def test_case_changes_by_the_rules_of_a_language_and_leaves_what_is_to_keep(
    text: str, language: str, capitals: str, title: str
) -> None:
    assert in_capitals(text, language) == capitals
    assert in_title_case(text, language) == title


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ("He left.", "He left"),
        ("Really?!", "Really"),
        ("Well...", "Well"),
        ("Well…", "Well"),
        ("我们在家。", "我们在家"),
        ("घर में।", "घर में"),
        ('He said "no."', 'He said "no"'),
        ('He said "no".', 'He said "no"'),
        ("(He left.)", "(He left)"),
        ("「行く。」", "「行く」"),
        ("Il dit : « non ! »", "Il dit : « non »"),
        ("Vraiment\u202f?", "Vraiment"),
        ("¿Qué tal?", "Qué tal"),
        ("Hola, ¿qué tal?", "Hola, qué tal"),
        ("¡¿Qué?!", "Qué"),
        ("¿Sí? ¿No?", "¿Sí? No"),
        ("¿Sí? Bueno.", "¿Sí? Bueno"),
        ("See https://a.org/b.", "See https://a.org/b"),
        ("It is 3.5", "It is 3.5"),
        ("It is 3.", "It is 3"),
        ("Dear {name.}", "Dear {name.}"),
        ("{{why?}}", "{{why?}}"),
        ("No mark", "No mark"),
        ("?!", "?!"),
    ],
)
def test_final_marks_go_with_those_that_belong_to_them(text: str, bare: str) -> None:
    assert without_final_mark(text) == bare


def test_a_semicolon_is_a_final_mark_in_greek_alone() -> None:
    assert [without_final_mark("ναι;", language) for language in ("el", "en")] == ["ναι", "ναι;"]


LETTERS = "alpha bravo charlie delta echo foxtrot golf hotel"


def is_a_typo(word: str, typed: str) -> bool:
    """Whether two letters are swapped, or one is left out, doubled or another one."""
    places = range(len(word))
    swapped = {word[:at] + word[at : at + 2][::-1] + word[at + 2 :] for at in places}
    left_out = {word[:at] + word[at + 1 :] for at in places}
    doubled = {word[:at] + word[at] + word[at:] for at in places}
    differing = sum(one != other for one, other in zip(word, typed, strict=False))
    replaced = len(word) == len(typed) and differing == 1
    return word != typed and (typed in swapped | left_out | doubled or replaced)


def test_one_word_in_eight_has_a_typo_and_nothing_else_changes() -> None:
    kinds = set()
    for seed in range(60):
        text = f"{LETTERS} {KEPT} {LETTERS.title()}"
        typed = with_typos(text, Random(seed))
        assert typed == with_typos(text, Random(seed))
        assert f" {KEPT} " in typed
        pairs = zip(text.split(), typed.split(), strict=True)
        changed = [(word, other) for word, other in pairs if word != other]
        assert len(changed) == 2
        assert all(is_a_typo(*each) for each in changed)
        kinds |= {len(other) - len(word) for word, other in changed}
    assert kinds == {-1, 0, 1}


def test_few_words_have_their_share_of_typos_or_the_least_that_is_wanted() -> None:
    short = [with_typos("alpha bravo", Random(seed)) != "alpha bravo" for seed in range(400)]
    assert 60 < sum(short) < 140
    assert all(with_typos("alpha bravo", Random(seed), at_least=1) != "alpha bravo" for seed in range(100))


@pytest.mark.parametrize("text", ["我们在家。", "ภาษาไทย", "한국어", "{name} 1,000", "a", ""])
def test_what_is_not_typed_letter_by_letter_has_no_typos(text: str) -> None:
    assert with_typos(text, Random(1), at_least=3) == text


def test_a_key_beside_another_keeps_the_case() -> None:
    typed = {with_typos("QQ", Random(seed), at_least=1) for seed in range(100)}
    assert typed == {"Q", "QQQ", "WQ", "AQ"}


def test_texts_in_a_row_have_spaces_where_their_script_has() -> None:
    assert in_a_row(["One.", "Two", "Three."]) == "One. Two Three."
    assert in_a_row(["我们。", "在家", "了。"]) == "我们。在家了。"
    assert in_a_row(["สวัสดี", "ครับ"]) == "สวัสดี ครับ"
