"""Lines in capitals and in title case: which are, how they are written otherwise, and translations written as they are.

Vocabularies spell words with unusual capitals in many subwords, and models have seen few: they translate what the line
would be otherwise. Text to keep stays as it is: placeholders, URLs, tags, names of files and the like, and words with
digits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from nmt.formats.sentences import CLOSING, stops_of
from nmt.formats.tags import TAGS
from nmt.formats.terms import Edit, Span, Terms, find_copies, outside, written
from nmt.text.language_codes import Language
from nmt.text.scripts import has_words, joins

FEWEST_LETTERS = 4  # of a line in capitals: fewer may be an abbreviation
UNUSUAL = 1.6  # times as many subwords a line in capitals has if the vocabulary has its words in small letters
FEWEST_WORDS = 3  # of a line in title case: fewer may be a name
FEWEST_UNUSUAL = 2  # words that the vocabulary has in small letters alone, for a line to be in title case
LONGEST_SMALL = 4  # letters of the words that may have no capital in a headline
_DOTTED = {language: str.maketrans("i", "İ") for language in ("tr", "az")}
_CAPITALS: dict[str, Mapping[int, int | str]] = {
    **_DOTTED,
    "el": str.maketrans("άέήίόύώΐΰΆΈΉΊΌΎΏ", "ΑΕΗΙΟΥΩΪΫΑΕΗΙΟΥΩ"),  # Greek capitals have no accents
}
_SMALL = dict.fromkeys(("tr", "az"), str.maketrans("Iİ", "ıi"))
_CAPITAL = {"en": re.compile(r"I(?!\w)")}
"""What has a capital wherever it stands, by language: I, I'm"""
_SHARP = "ß\u00ad"
"""What SS may have been in German, with a soft hyphen, which vocabularies drop, so that there are as many characters"""
_WORD = re.compile(r"[^\W\d_](?:[\w\u0300-\u036f\u00ad]|['’·](?=\w))*")
_KEPT = Terms(keep=[r"(?<!\w)\w*\d\w*"], names=True)
_MAY_KEEP = re.compile(r"[\d_/~$%@{}\[\]<>&+-]|\(\)|\.\w|:\S")  # without any of them, there is nothing to keep

Encode = Callable[[str], Sequence[int]]
"""What a vocabulary encodes a text as"""


class _Word(NamedTuple):
    """A word of a text, and how it may be written otherwise."""

    span: Span
    text: str
    small: str
    """In small letters"""
    begins: bool
    """Whether it begins a sentence, or is in a language that writes it with a capital anywhere"""

    @property
    def with_capital(self) -> str:
        """The word with nothing but its first letter as it is, in small letters otherwise"""
        return self.text[:1] + self.small[1:]


def kept_in(text: str, copied: Sequence[Span] = ()) -> list[Span]:
    """Return the spans of text to keep, in order, `copied` ones among them."""
    if not copied and not _MAY_KEEP.search(text):
        return []
    tags = [Span(*tag.span()) for tag in TAGS.finditer(text)]
    return _KEPT.spans(text, [*tags, *copied], linked=False)


def words_in(text: str, pattern: re.Pattern[str], copied: Sequence[Span] = ()) -> list[Span]:
    """Return the matches of a pattern outside of what is to keep that touch at most tags: <b>it</b>, but not {n}th."""
    words = [Span(*match.span()) for match in pattern.finditer(text)]
    taken: set[int] = set()
    for start, end in kept_in(text, copied):
        edge = 0 if text[start] in "<&" else 1
        taken.update(range(start - edge, end + edge))
    if not taken:
        return words
    return [word for word in words if taken.isdisjoint(range(*word))]


def in_capitals(text: str, language: str = "") -> str:
    """Return a text in capitals by the rules of a language: ß becomes SS, and a Turkish i becomes İ."""
    return "".join(capitals(text, language))


def in_title_case(text: str, language: str = "") -> str:
    """Return a text in which each word in lower case begins with a capital, as in headlines: Don't Eat the iPod."""
    return "".join(title_case(text, language))


def capitals(text: str, language: str = "", copies: Iterable[str] = ()) -> list[str]:
    """Return each character of a text as `in_capitals` writes it; what it has of `copies` is kept, too."""
    found = [*text]
    letters = _CAPITALS.get(Language.of(language).base, {})
    for gap in outside(kept_in(text, _copied(text, copies)), len(text)):
        for at in range(*gap):
            found[at] = text[at].translate(letters).upper()
    return found


def title_case(text: str, language: str = "", copies: Iterable[str] = ()) -> list[str]:
    """Return each character of a text as `in_title_case` writes it; what it has of `copies` is kept, too."""
    found = [*text]
    letters = _DOTTED.get(Language.of(language).base, {})
    for start, end in words_in(text, _WORD, _copied(text, copies)):
        if text[start:end] == text[start:end].lower():  # others are names or abbreviations
            found[start] = text[start].translate(letters).title()
    return found


def is_in_capitals(text: str, copied: Sequence[Span] = (), fewest: int = FEWEST_LETTERS) -> bool:
    """Return whether a text has no small letters outside of what is to keep, and at least so many capitals.

    `copied` are more spans to keep.
    """
    if not copied and _has_small_word(text, 1):
        return False  # at once, like most lines
    count = 0
    for gap in outside(kept_in(text, copied), len(text)):
        for character in gap.text_in(text):
            if character.islower() and character != "ß":  # which capitals may have: STRAßE
                return False
            count += character.isupper()
    return count >= fewest


def is_in_title_case(text: str, copied: Sequence[Span] = ()) -> bool:
    """Return whether each word of a text begins with a capital, and there are enough words to tell."""
    if not copied and _has_small_word(text, 1):
        return False
    words = words_in(text, _WORD, copied)
    return len(words) >= FEWEST_WORDS and all(text[start].isupper() for start, _ in words)


def without_capitals(text: str, encode: Encode, language: str = "", copied: Sequence[Span] = ()) -> str:
    """Return a text in capitals as it would be written otherwise, in as many characters.

    It stays as it is if it has hardly more subwords in capitals, like abbreviations.
    A word is written in small letters, with a capital or in capitals, in German with ß or ss, as it has the fewest
    subwords: so it was in the texts that the vocabulary is from, where Boston and NASA may be one. Sentences begin with
    a capital.
    """
    edits: list[Edit] = []
    before = 0  # subwords
    after = 0
    for word in _read(text, language, copied):
        is_initial = len(word.text) == 1 and text[word.span.end : word.span.end + 1] == "."  # J. R.
        if is_initial or len(word.small) != len(word.text):
            continue
        forms = [word.small, word.with_capital, word.text]
        if Language.of(language).base == "de":
            forms += [form.replace("ss", _SHARP) for form in forms[:2]]  # STRASSE
            if len(encode(word.small)) > 1:  # of rare words, most are nouns
                forms.insert(0, word.with_capital)
        new = min(forms, key=partial(_rareness, encode))  # of equal ones the first
        if word.begins:
            new = word.text[:1] + new[1:]
        edits.append((word.span, new))
        before += len(encode(word.text))
        after += len(encode(new))
    return written(text, edits) if before >= UNUSUAL * after else text


def without_title_case(text: str, encode: Encode, language: str = "", copied: Sequence[Span] = ()) -> str:
    """Return a text in title case as a sentence, in as many characters, and another text as it is.

    It is in title case if all but short words have capitals, several of which make the words longer in subwords.
    """
    if not copied and _has_small_word(text, LONGEST_SMALL + 1):
        return text
    edits: list[Edit] = []
    unusual = 0
    for word in _read(text, language, copied):
        if word.text == word.small:
            if len(word.text) > LONGEST_SMALL:
                return text
        elif word.text == word.with_capital and not word.begins and len(word.small) == len(word.text):
            if _rareness(encode, word.small) <= _rareness(encode, word.text):
                edits.append((word.span, word.small))
            unusual += len(encode(word.small)) < len(encode(word.text))
    return written(text, edits) if unusual >= FEWEST_UNUSUAL else text


def _has_small_word(text: str, letters: int) -> bool:
    """Return whether a text has a word of at least so many letters, all of them small, between spaces."""
    return any(len(word) >= letters and word.isalpha() and word.islower() for word in text.split())


def _read(text: str, language: str, copied: Sequence[Span]) -> Iterator[_Word]:
    """Yield the words of a text that are not to keep."""
    base = Language.of(language).base
    ended = re.compile(rf"[{re.escape(stops_of(language))}][{re.escape(CLOSING)}]*\s\W*$")
    last = 0  # offset behind the word before
    for span in words_in(text, _WORD, copied):
        word = span.text_in(text)
        small = word.translate(_SMALL.get(base, {})).lower()
        before = text[last : span.start]
        begins = ended.search(before) is not None if last else not has_words(before)
        begins |= base in _CAPITAL and _CAPITAL[base].match(word) is not None
        yield _Word(span, word, small, begins)
        last = span.end


def _rareness(encode: Encode, form: str) -> tuple[int, int]:
    """Return the number of subwords of a word's form, and its place in the vocabulary if it is one.

    Frequent subwords come first. A place with a capital counts double, since every word may begin a sentence.
    """
    ids = encode(form)
    place = ids[0] if len(ids) == 1 else 0
    return len(ids), place * (1 + form[0].isupper())


def _copied(text: str, copies: Iterable[str]) -> list[Span]:
    """Return where a text has any of `copies`, but not in a word."""
    found: list[Span] = []
    for span in find_copies(text, copies):
        if not any(0 < at < len(text) and joins(text[at - 1]) and joins(text[at]) for at in span):
            found.append(span)
    return found
