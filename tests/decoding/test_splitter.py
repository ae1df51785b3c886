"""Lines in parts: sentences, clauses, lengths, and how the parts are joined."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from nmt.decoding.splitter import LineSplitter, joined
from nmt.formats.sentences import TrainedLengths
from nmt.formats.terms import Phrase
from nmt.recipe import Decoding
from nmt.search.sources import Source
from nmt.system.errors import UserError
from nmt.text.vocabulary import SPACE_MARK, Vocabulary

ONE_SENTENCE = TrainedLengths(
    language="en", sentences=1, usual_sentences=1, source=8, longest_source=12, least_ratio=0.5, greatest_ratio=2.0
)
PARAGRAPHS = TrainedLengths(
    language="en", sentences=5, usual_sentences=3, source=40, longest_source=60, least_ratio=0.5, greatest_ratio=2.0
)


class Words:
    """A vocabulary in which every word, with the space before it, is one subword."""

    def __init__(self) -> None:
        self._words: list[str] = []

    languages: ClassVar[dict[str, int]] = {}

    def encode(self, text: str) -> list[int]:
        first = len(self._words)
        self._words += [SPACE_MARK + word for word in text.split()]
        return list(range(first, len(self._words)))

    def pieces(self, ids: list[int]) -> list[str]:
        return [self._words[index] for index in ids]

    def lacking(self, characters: str) -> str:
        return ""

    def language(self, text: str) -> str:
        return text[:7] if text.startswith(">>") else ""

    ends_in = Vocabulary.ends_in


class Letters(Words):
    """A vocabulary of single letters, none of which begins a word."""

    def encode(self, text: str) -> list[int]:
        first = len(self._words)
        self._words += text
        return list(range(first, len(self._words)))


def split(line: str, phrases: Sequence[Phrase] = (), words: type[Words] = Words) -> list[Source]:
    """The parts of a line as a model of single sentences gets them."""
    vocabulary: Any = words()
    return LineSplitter(vocabulary, Decoding(), ONE_SENTENCE).split(line, phrases)


def parts(line: str, lengths: TrainedLengths | None, how: str = "auto", **more: Any) -> list[str]:
    """The texts of the parts."""
    vocabulary: Any = Words()
    found = LineSplitter(vocabulary, Decoding(split=how, **more), lengths).split(line)
    return ["".join(vocabulary.pieces(part.ids)).replace(SPACE_MARK, " ").strip() for part in found]


ONE, TWO = "The dog sleeps.", "The dog sleeps. The cat is awake."
BOTH = [ONE, "The cat is awake."]
LONG, LONG_TOO = (" ".join([word] * 24) + " end." for word in ("Red", "Blue"))
SHORTER = "So it is, " + " ".join(["green"] * 21) + " end."
CLAUSES = ["one two three four five six seven,", "eight nine ten eleven twelve thirteen fourteen"]


@pytest.mark.parametrize(
    ("line", "lengths", "how", "expected"),
    [
        # Lines like those of training are left alone; if they have more sentences, these are translated one by one.
        (TWO, ONE_SENTENCE, "auto", BOTH),
        (TWO, PARAGRAPHS, "auto", [TWO]),
        (ONE, ONE_SENTENCE, "auto", [ONE]),
        # Every part asks for the language that its line asks for.
        (f">>fra<< {TWO}", ONE_SENTENCE, "auto", [f">>fra<< {one}" for one in BOTH]),
        (f">>fra<< {TWO}", PARAGRAPHS, "auto", [f">>fra<< {TWO}"]),
        # Sentences that are too long together are kept apart rather than cut.
        (f"{LONG} {SHORTER} {LONG_TOO}", PARAGRAPHS, "auto", [f"{LONG} {SHORTER}", LONG_TOO]),
        (
            f"{SHORTER} {SHORTER} {LONG} {LONG_TOO} {LONG_TOO}",
            PARAGRAPHS,
            "auto",
            [f"{SHORTER} {SHORTER}", f"{LONG} {LONG_TOO}", LONG_TOO],
        ),
        # A model of which no lengths are known translates each sentence.
        (TWO, None, "auto", BOTH),
        (TWO, None, "length", [TWO]),
        # The user decides.
        (TWO, ONE_SENTENCE, "length", [TWO]),
        (TWO, ONE_SENTENCE, "none", [TWO]),
        (TWO, PARAGRAPHS, "sentences", BOTH),
        # A sentence longer than any in training is cut behind a clause.
        (" ".join(CLAUSES), ONE_SENTENCE, "auto", CLAUSES),
    ],
)
def test_a_line_is_split_as_training_and_the_user_say(
    line: str, lengths: TrainedLengths | None, how: str, expected: list[str]
) -> None:
    assert parts(line, lengths, how) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("the dog", ["the dog."]),
        ("The dog sleeps. The cat", ["The dog sleeps.", "The cat."]),
        ("Is it so? Yes", ["Is it so?", "Yes."]),
        ("- the dog (brown)", ["the dog (brown)."]),
        (">>fra<< the dog", [">>fra<< the dog."]),
        ("The dog:", ["The dog."]),
        ("Dear dog,", ["Dear dog."]),
    ],
)
def test_a_model_of_sentences_that_end_gets_no_other_ones(line: str, expected: list[str]) -> None:
    ended = ONE_SENTENCE.model_copy(update={"full_stop": "."})
    assert parts(line, ended) == expected
    assert parts(line, ended, keep=False) != expected
    vocabulary: Any = Words()
    found = LineSplitter(vocabulary, Decoding(), ended).split(line)
    assert "".join(part.text for part in found).replace(" ", "") in line.replace(" ", "")  # what is aligned is the line


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("It was cold; we stayed at home.", ["It was cold", "we stayed at home."]),
        ("Tom: I am tired. Mary: Me too.", ["Tom", "I am tired.", "Mary", "Me too."]),
        ("Go on – I wait – if you like.", ["Go on – I wait – if you like."]),
        ("Go on – I wait.", ["Go on", "I wait."]),
        ("At 10:30; not later", ["At 10:30", "not later"]),
        ("Chapter 5: The dog", ["Chapter 5", "The dog"]),
        ("He won 10: 3.", ["He won 10: 3."]),
        ("Tom &amp; Mary :-)", ["Tom &amp; Mary :-)"]),
        ("It is 10 - 5; 3", ["It is 10 - 5"]),
        ("I see... and you?", ["I see", "and you?"]),
        ("I see ... you.", ["I see", "you."]),
        ("dogs & cats / cows", ["dogs", "cats", "cows"]),
        ("STOP THERE: GO BACK; RUN AWAY", ["STOP THERE", "GO BACK", "RUN AWAY"]),
        ('He said "no"; she left.', ['He said "no"', "she left."]),
    ],
)
def test_clauses_behind_marks_that_the_model_has_not_seen_are_parts(line: str, expected: list[str]) -> None:
    lengths = ONE_SENTENCE.model_copy(update={"full_stop": ".", "unseen": ";:…/&–"})
    vocabulary: Any = Words()
    splitter = LineSplitter(vocabulary, Decoding(), lengths)
    found = splitter.split(line, ends=splitter.ends_around_others(line, ()))
    assert [part.text for part in found] == expected
    seen = LineSplitter(vocabulary, Decoding(), ONE_SENTENCE)
    assert len(seen.split(line, ends=seen.ends_around_others(line, ()))) <= line.count(".") + 1


@pytest.mark.parametrize(
    ("line", "small"),
    [
        ("a dog", [True]),
        ("A dog", [False]),
        ("It was cold; we stayed.", [False, True]),
        ("It was cold; I stayed.", [False, True]),
        ("I stayed: It was cold.", [False, False]),
        ("Tom: I am cold.", [False, False]),
        ("- I am cold. - I am not.", [False, False]),
    ],
)
def test_what_goes_on_in_small_letters_is_translated_so(line: str, small: list[bool]) -> None:
    lengths = ONE_SENTENCE.model_copy(update={"full_stop": ".", "unseen": ";:…/&–"})
    vocabulary: Any = Words()
    splitter = LineSplitter(vocabulary, Decoding(), lengths)
    found = splitter.split(line, ends=splitter.ends_around_others(line, ()))
    assert [part.is_small for part in found] == small


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("FAQ", []),
        ("N/A", []),
        ("2 + 2 = 4", []),
        ("A: Come here.", ["Come here."]),
        ("(USA)", []),
        ("TOM: Come here.", ["Come here."]),
        ("NO!", ["NO!"]),
        ("США", ["США."]),
        ("WARNING", ["WARNING."]),
        ("A CAT", ["A CAT."]),
    ],
)
def test_abbreviations_that_a_model_of_sentences_does_not_know_stay(line: str, expected: list[str]) -> None:
    ended = ONE_SENTENCE.model_copy(update={"full_stop": ".", "unseen": ";:…/&–"})
    vocabulary: Any = Letters()
    splitter = LineSplitter(vocabulary, Decoding(), ended)
    found = splitter.split(line, ends=splitter.ends_around_others(line, ()))
    assert [part.text + part.full_stop for part in found] == expected
    vocabulary = Words()  # has each as one subword
    assert bool(LineSplitter(vocabulary, Decoding(), ended).split(line)) == any(map(str.isalpha, line))


def test_a_full_stop_that_the_line_lacks_does_not_make_a_part_too_long() -> None:
    ended = ONE_SENTENCE.model_copy(update={"full_stop": " ."})
    assert parts("a b c", ended, max_source=3) == ["a b c"]
    assert parts("a b c", ended, max_source=4) == ["a b c ."]


def test_sentences_stay_together_as_they_mostly_were_in_training() -> None:
    line = " ".join(f"Sentence {n} is here." for n in range(8))
    assert [part.count(".") for part in parts(line, PARAGRAPHS)] == [3, 3, 2]


@pytest.mark.parametrize(("language", "count"), [("", 2), ("de", 1), ("en", 2)])
def test_where_its_sentences_end_its_language_tells(language: str, count: int) -> None:
    vocabulary: Any = Words()
    splitter = LineSplitter(vocabulary, Decoding(), None, language)
    assert len(splitter.split("Das Buch ist von Hr. Schmidt.")) == count


@pytest.mark.parametrize(
    ("line", "first"),
    [
        ("WATCH OUT! A dog comes.", "WATCH OUT! "),
        ("<b>STOP!</b> A dog comes.", "<b>STOP!</b> "),
        ("A dog comes. (GO AWAY!)", "A dog comes. "),
        ("A dog comes. (It is old.)", "A dog comes. "),
        ("“Watch out!” “A dog comes.”", "“Watch out!” "),
        ("A dog comes. (It is old).", "A dog comes. "),
        ("(laughs) A dog comes.", "(laughs) "),
        ("[LAUGHS] A dog comes.", "[LAUGHS] "),
        ("A dog comes. [it is old]", "A dog comes. "),
        ("(Old) Dogs come.", ""),
        ("(iv) Dogs come.", ""),
        ("(old) dogs come.", ""),
        ("- A dog? - Yes.", "- A dog? "),
        ("—A dog? —Yes.", "—A dog? "),
        ("A dog? 2) Yes.", "A dog? "),
        ("- A dog? Yes - it comes.", ""),
        ('He said, "A dog comes."', "He said, "),
        ('He said: “It is "Rex", a dog!”', "He said: "),
        ('The word "dog", "Rex" and "cat."', ""),
        ('He said, "A dog comes," and went.', ""),
        ("A dog (an old one) comes.", ""),
        ("(A dog comes. It is old.)", ""),
        ("WATCH OUT! A DOG COMES.", ""),
        ("See the PDF. A dog comes.", ""),
    ],
)
def test_a_line_with_sentences_in_capitals_or_brackets_and_others_is_cut_around_them(line: str, first: str) -> None:
    vocabulary: Any = Words()
    ends = LineSplitter(vocabulary, Decoding(), PARAGRAPHS, "en").ends_around_others(line, ())
    assert ends == ([len(first)] if first else [])


def test_brackets_and_marks_around_sentences_are_in_no_part() -> None:
    for line in (f"- {ONE}", f"({ONE})", f'1) "{ONE}"'):
        assert parts(line, PARAGRAPHS) == [ONE]
        assert parts(line, PARAGRAPHS, "none") == parts(line, PARAGRAPHS, keep=False) == [line]
    assert parts(f"{ONE} (The cat is awake.)", PARAGRAPHS, "sentences") == BOTH
    assert parts(f'"{ONE}"', None) == [f'"{ONE}"']
    assert parts(f">>deu<< ({ONE})", PARAGRAPHS) == [f">>deu<< ({ONE})"]
    assert [parts(line, PARAGRAPHS) for line in ("(5)", "- 12.5", "(٣)", "5")] == [[], [], ["٣"], ["5"]]
    (whole,) = split("(dog)", [Phrase("(dog", ("Hund",), 0)])
    assert whole.text == "(dog)"


def test_without_clauses_it_is_cut_into_parts_of_about_the_same_length() -> None:
    letters = "abcdefghijklmnopqrstuvwxyz"
    assert [len(part.ids) for part in split(" ".join(letters))] == [9, 9, 8]
    assert [len(part.ids) for part in split(letters, words=Letters)] == [12, 12, 2]


@pytest.mark.parametrize("how", ["auto", "sentences", "length"])
def test_no_part_is_longer_than_max_source(how: str) -> None:
    found = parts(" ".join(f"w{n}" for n in range(23)), ONE_SENTENCE, how, max_source=5)
    assert [len(part.split()) for part in found] == [5, 5, 5, 4, 4]


def test_a_line_that_may_not_be_split_and_is_too_long_is_refused() -> None:
    with pytest.raises(UserError, match=r"may not be split has 6 subwords.*max_source 5: a b c d e f"):
        parts("a b c d e f", ONE_SENTENCE, "none", max_source=5)


LINES = ["A dog. B dog.  C dog.", "狗。猫。", " A dog.\tB dog. ", "狗。 猫。", "A dog. – B dog."]


@pytest.mark.parametrize("line", LINES)
def test_parts_know_where_they_are_and_are_joined_as_the_line_was(line: str) -> None:
    found = split(line)
    assert len(found) > 1
    assert [line[part.start : part.end] for part in found] == [part.text for part in found]
    assert joined(line, found, [part.text for part in found])[0] == line.replace("。 ", "。")


@pytest.mark.parametrize(
    ("line", "texts", "text"),
    [
        ("A dog.  B dog.", ["Ein Hund.", "Eine Katze."], "Ein Hund.  Eine Katze."),
        ("狗。猫。", ["A dog.", "A cat."], "A dog. A cat."),
        ("A dog. B dog.", ["狗。", "猫。"], "狗。猫。"),
        ("A dog. B dog.", ["개", "개"], "개 개"),
        (" ".join(CLAUSES), ["หมา", "แมว"], "หมาแมว"),
        ("A dog. B dog.  C dog. ", ["Ein Hund.", "", "Eine Katze."], "Ein Hund.  Eine Katze. "),
        (" A dog. B dog.", ["", "Eine Katze."], " Eine Katze."),
        (" A dog. ", [""], ""),
        (" \t", [], " \t"),
        ("?!", [], "?!"),
    ],
)
def test_translations_are_joined_as_the_line_was(line: str, texts: list[str], text: str) -> None:
    found = split(line)
    joint, starts = joined(line, found, texts)
    assert joint == text
    assert [joint[start:].startswith(each) for start, each in zip(starts, texts, strict=True)] == [True] * len(texts)


def test_no_cut_is_inside_a_phrase() -> None:
    words = [f"w{number}" for number in range(40)]
    line = " ".join(words)
    for length in (2, 5, 9):
        for first in range(len(words) - length):
            source = " ".join(words[first : first + length])
            phrase = Phrase(source, ("x",), line.index(f"{source} "))
            found = split(line, [phrase])
            assert any(source in part.text for part in found)
            assert " ".join(part.text for part in found) == line
            assert max(len(part.ids) for part in found) <= ONE_SENTENCE.longest_source


def test_sentences_are_not_divided_inside_a_phrase() -> None:
    line = "See Dr. Who. Then sleep. Then wake."
    found = split(line, [Phrase("Who. Then", ("x",), 8)])
    assert [part.text for part in found] == ["See Dr. Who. Then sleep.", "Then wake."]


@pytest.mark.parametrize("line", ["→", " %s", "%s (%s)", "2024", " 1,000.5 % ", "10:30–12:00", "5 %s"])
def test_what_has_no_words_is_copied_and_so_are_numbers_beside_codes(line: str) -> None:
    kept = [Phrase("%s", ("%s",), at.start(), kept=True) for at in re.finditer("%s", line)]
    vocabulary: Any = Words()
    splitter = LineSplitter(vocabulary, Decoding(), ONE_SENTENCE)
    has_digits = re.search(r"\d", line) is not None
    assert bool(splitter.split(line, kept)) == has_digits
    assert splitter.split(line, kept, copies_numbers=True) == []
    assert joined(line, [], [])[0] == line


def test_digits_that_a_reader_of_another_script_cannot_read_are_not_copied() -> None:
    vocabulary: Any = Words()
    splitter = LineSplitter(vocabulary, Decoding(), ONE_SENTENCE)
    assert [part.text for part in splitter.split("٣٤", copies_numbers=True)] == ["٣٤"]


def test_a_number_that_is_a_term_is_translated_and_a_symbol_does_not_stay() -> None:
    assert [part.text for part in split("24", [Phrase("24", ("42",), 0)])] == ["24"]
    assert [part.text for part in split(">>deu<< %s", [Phrase("%s", ("%s",), 8, kept=True)])] == [">>deu<< %s"]


def test_text_to_keep_that_is_longer_than_a_part_is_copied_around_the_search() -> None:
    kept = " ".join("abcdefghijklmn")
    line = f"One {kept}, two {kept}."
    phrases = [Phrase(kept, (kept,), at, kept=True) for at in (4, line.rindex(kept))]
    found = split(line, phrases)
    assert [part.text for part in found] == ["One", "two"]
    assert joined(line, found, ["Eins", "zwei"])[0] == f"Eins {kept}, zwei {kept}."
    assert joined(f"{kept}?x", [Source(0, [1], 9, text="x", start=len(kept) + 1)], ["n"])[0] == f"{kept}?n"
    assert joined(f"x!{kept}", [Source(0, [1], 9, text="x!")], ["n"])[0] == f"n {kept}"  # two words stay apart
