"""Lines in capitals and in title case: which are, how they are written otherwise, and translations written as they are.

Vocabularies spell words with unusual capitals in many subwords, and models have seen few: they translate what the line
would be otherwise. Text to keep stays as it is: placeholders, URLs, tags, names of files and the like, and words with
digits.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import NamedTuple, Protocol

from nmt.formats.sentences import CLOSING, stops_of
from nmt.formats.tags import TAGS
from nmt.formats.terms import Edit, Span, Terms, find_copies, outside, written
from nmt.text.language_codes import Language
from nmt.text.scripts import has_words, joins

FEWEST_LETTERS = 4  # of a line in capitals: fewer may be an abbreviation
UNUSUAL = 1.6  # times as many subwords a line in capitals has if the vocabulary has its words in small letters
FEWEST_SPELLED = 3  # subwords of a word in capitals that is emphasised
FREQUENT = 0.25  # share of the vocabulary that frequent words are in
COMMON = 0.5  # share of the vocabulary that names are in which it spells in two subwords without their capital
FEWEST_WORDS = 3  # of a line in title case: fewer may be a name
FEWEST_UNUSUAL = 2  # words that the vocabulary has in small letters alone, for a line to be in title case
LONGEST_SMALL = 4  # letters of the words that may have no capital in a headline
_DOTTED = {language: str.maketrans("i", "İ") for language in ("tr", "az")}
_CAPITALS: dict[str, Mapping[int, int | str]] = {
    **_DOTTED,
    "el": str.maketrans("άέήίόύώΐΰΆΈΉΊΌΎΏ", "ΑΕΗΙΟΥΩΪΫΑΕΗΙΟΥΩ"),  # Greek capitals have no accents
}
_SMALL = dict.fromkeys(("tr", "az"), str.maketrans("Iİ", "ıi"))
_CAPITAL = {"en": re.compile(r"[Ii](?!\w)")}
"""What has a capital wherever it stands, by language: I, I'm"""
_SHARP = "ß\u00ad"
"""What SS may have been in German, with a soft hyphen, which vocabularies drop, so that there are as many characters"""
_WORD = re.compile(r"[^\W\d_](?:[\w\u0300-\u036f\u00ad]|['’·](?=\w))*")
_KEPT = Terms(keep=[r"(?<!\w)\w*\d\w*"], names=True)
_MAY_KEEP = re.compile(r"[\d_/~$%@{}\[\]<>&+-]|\(\)|\.\w|:\S")  # without any of them, there is nothing to keep


class Vocabulary(Protocol):
    """What is asked of a vocabulary, whose frequent subwords come first."""

    def encode(self, text: str) -> list[int]: ...
    def __len__(self) -> int: ...


class _Word(NamedTuple):
    """A word of a text, and how it may be written otherwise."""

    span: Span
    text: str
    small: str
    """In small letters"""
    begins: bool
    """Whether it begins a sentence"""
    has_capital: bool
    """Whether its language writes it with a capital wherever it stands"""

    is_initial: bool
    """Whether it is a letter before a full stop: J. R."""
    is_german: bool

    @property
    def with_capital(self) -> str:
        """The word with nothing but its first letter as it is, in small letters otherwise"""
        return self.text[:1] + self.small[1:]

    def usual(self, vocabulary: Vocabulary) -> str:
        """Return a word in capitals as a vocabulary has it with the fewest subwords, in as many characters."""
        if self.is_initial or len(self.small) != len(self.text):
            return self.text
        forms = [self.small, self.with_capital, self.text]
        if self.is_german:
            forms += [form.replace("ss", _SHARP) for form in forms[:2]]  # STRASSE
            if len(vocabulary.encode(self.small)) > 1:  # of rare words, most are nouns
                forms.insert(0, self.with_capital)
        best = min(forms, key=partial(_rareness, vocabulary))  # of equal ones the first
        return self.text[:1] + best[1:] if self.begins or self.has_capital else best


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


def without_capitals(text: str, vocabulary: Vocabulary, language: str = "", copied: Sequence[Span] = ()) -> str:
    """Return a text in capitals as it would be written otherwise, in as many characters.

    A word is written in small letters, with a capital or in capitals, in German with ß or ss, as it has the fewest
    subwords: so it was in the texts that the vocabulary is from, where Boston and NASA may be one. Sentences begin with
    a capital. A text that has hardly fewer subwords then, such as abbreviations, stays in capitals.
    """
    edits: list[Edit] = []
    before = 0  # subwords
    after = 0
    for word in _read(text, language, copied):
        usual = word.usual(vocabulary)
        edits.append((word.span, usual))
        before += len(vocabulary.encode(word.text))
        after += len(vocabulary.encode(usual))
    return written(text, edits) if before >= UNUSUAL * after else text


def without_emphasis(text: str, vocabulary: Vocabulary, language: str = "", copied: Sequence[Span] = ()) -> str:
    """Return a text whose words in capitals among others are written as otherwise: do NOT open, in as many characters.

    They are emphasised if the vocabulary spells one of them in several subwords that is one subword otherwise. A word
    that stands alone must be frequent, too: LED and RAM are not.
    """
    if not any(len(word) >= FEWEST_SPELLED and word.isupper() for word in text.split()):
        return text
    edits: list[Edit] = []
    for is_in_capitals, run in groupby(_read(text, language, copied), lambda word: word.text.isupper()):
        if not is_in_capitals:
            continue
        words = [*run]
        places: list[int] = []  # of emphasised words in the vocabulary
        for word in words:
            ids = min(map(vocabulary.encode, (word.small, word.with_capital)), key=len)
            if len(ids) == 1 and len(vocabulary.encode(word.text)) >= FEWEST_SPELLED:
                places += ids
        if places and (len(words) > 1 or min(places) < FREQUENT * len(vocabulary)):
            edits += [(word.span, word.usual(vocabulary)) for word in words]
    return written(text, edits)


def without_title_case(text: str, vocabulary: Vocabulary, language: str = "", copied: Sequence[Span] = ()) -> str:
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
        elif word.text == word.with_capital and not word.begins and not word.has_capital:
            if len(word.small) != len(word.text):
                continue
            if _rareness(vocabulary, word.small) <= _rareness(vocabulary, word.text):
                edits.append((word.span, word.small))
            unusual += len(vocabulary.encode(word.small)) < len(vocabulary.encode(word.text))
    return written(text, edits) if unusual >= FEWEST_UNUSUAL else text


def with_capitals(text: str, vocabulary: Vocabulary, language: str = "", copied: Sequence[Span] = ()) -> str:
    """Return a text in small letters with the capitals that it lacks, in as many characters; another one as it is.

    These are those of names, which the vocabulary has as one subword, but spells in small letters; of I in English; and
    of nouns in German. A word that begins a sentence stays as it is, since strings of programs begin so.
    """
    if any(map(str.isupper, text)):
        return text
    words = [*_read(text, language, copied)]
    if len(words) < FEWEST_WORDS:
        return text
    letters = _DOTTED.get(Language.of(language).base, {})
    edits: list[Edit] = []
    for word in words:
        capital = word.text[0].translate(letters).upper() + word.text[1:]
        if len(capital) != len(word.text):
            continue
        ids = vocabulary.encode(capital)
        spelled = len(vocabulary.encode(word.text))
        is_clear = spelled >= FEWEST_SPELLED or ids[0] < COMMON * len(vocabulary)
        is_name = len(ids) == 1 < spelled and is_clear
        is_noun = word.is_german and len(ids) < spelled
        if word.has_capital or (not word.begins and (is_name or is_noun)):
            edits.append((word.span, capital))
    return written(text, edits)


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
        has_capital = base in _CAPITAL and _CAPITAL[base].match(word) is not None
        last = span.end
        is_initial = len(word) == 1 and text[last : last + 1] == "."
        yield _Word(span, word, small, begins, has_capital, is_initial, base == "de")


def _rareness(vocabulary: Vocabulary, form: str) -> tuple[int, int]:
    """Return the number of subwords of a word's form, and its place in the vocabulary if it is one.

    Frequent subwords come first. A place with a capital counts double, since every word may begin a sentence.
    """
    ids = vocabulary.encode(form)
    place = ids[0] if len(ids) == 1 else 0
    return len(ids), place * (1 + form[0].isupper())


def _copied(text: str, copies: Iterable[str]) -> list[Span]:
    """Return where a text has any of `copies`, but not in a word."""
    found: list[Span] = []
    for span in find_copies(text, copies):
        if not any(0 < at < len(text) and joins(text[at - 1]) and joins(text[at]) for at in span):
            found.append(span)
    return found
