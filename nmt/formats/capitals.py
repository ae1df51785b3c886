"""Texts in capitals: how they are recognised, written in small letters for a model, and its translations in capitals.

Vocabularies spell capitals letter by letter, and models have seen few texts of them: they translate what the same text
would be in small letters. Text to keep stays as it is: placeholders, URLs, tags, names of files and the like, and words
with digits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from nmt.formats.sentences import CLOSING, stops_of
from nmt.formats.tags import TAGS
from nmt.formats.terms import Edit, Span, Terms, find_copies, outside, written
from nmt.text.language_codes import Language
from nmt.text.scripts import has_words, joins

FEWEST = 4  # letters of a text in capitals: fewer may be an abbreviation
WORD = re.compile(r"[^\W\d_](?:[\w\u0300-\u036f\u00ad]|['’·](?=\w))*")
DOTTED = {ord("i"): "İ"}
_CAPITALS: dict[str, Mapping[int, int | str]] = {
    **dict.fromkeys(("tr", "az"), DOTTED),
    "el": str.maketrans("άέήίόύώΐΰΆΈΉΊΌΎΏ", "ΑΕΗΙΟΥΩΪΫΑΕΗΙΟΥΩ"),  # Greek capitals have no accents
}
_SMALL = dict.fromkeys(("tr", "az"), str.maketrans("Iİ", "ıi"))
_CAPITAL = {"en": re.compile(r"I(?!\w)")}
"""What has a capital wherever it stands, by language: I, I'm"""
_SHARP = "ß\u00ad"
"""What SS may have been in German, with a soft hyphen, which vocabularies drop, so that there are as many characters"""
_KEPT = Terms(keep=[r"(?<!\w)\w*\d\w*"], names=True)
_MAY_KEEP = re.compile(r"[\d_/~$%@{}\[\]<>&+-]|\(\)|\.\w|:\S")  # without any of them, there is nothing to keep


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


def capitals(text: str, language: str = "", copies: Iterable[str] = ()) -> list[str]:
    """Return each character of a text in capitals; what it has of `copies` is kept, too."""
    found = [*text]
    special = _CAPITALS.get(Language.of(language).base, {})
    copied = [span for span in find_copies(text, copies) if _is_whole(text, span)]
    for gap in outside(kept_in(text, copied), len(text)):
        for at in range(*gap):
            found[at] = text[at].translate(special).upper()
    return found


def is_in_capitals(text: str, copied: Sequence[Span] = (), fewest: int = FEWEST) -> bool:
    """Return whether a text has no small letters outside of what is to keep, and at least so many capitals.

    `copied` are more spans to keep.
    """
    if not copied and any(word.isalpha() and word.islower() for word in text.split()):
        return False  # at once, like most lines
    count = 0
    for gap in outside(kept_in(text, copied), len(text)):
        for character in gap.text_in(text):
            if character.islower():
                return False
            count += character.isupper()
    return count >= fewest


def without_capitals(
    text: str, encode: Callable[[str], Sequence[int]], language: str = "", copied: Sequence[Span] = ()
) -> str:
    """Return a text in capitals as it would be written otherwise, in as many characters.

    A word is written in small letters, with a capital or in capitals, in German with ß or ss, as it has the fewest
    subwords: so it was in the texts that the vocabulary is from, where Boston and NASA may be one. Sentences begin with
    a capital.
    """
    base = Language.of(language).base
    ended = re.compile(rf"[{re.escape(stops_of(language))}][{re.escape(CLOSING)}]*\s\W*$")
    edits: list[Edit] = []
    last = 0  # offset behind the word before
    for span in words_in(text, WORD, copied):
        word = span.text_in(text)
        small = word.translate(_SMALL.get(base, {})).lower()
        with_capital = word[:1] + small[1:]
        before = text[last : span.start]
        begins = ended.search(before) if last else not has_words(before)
        last = span.end
        is_initial = len(word) == 1 and text[last : last + 1] == "."  # J. R.
        if is_initial or len(small) != len(word):
            continue
        forms = [small, with_capital, word]
        if base == "de":
            forms += [form.replace("ss", _SHARP) for form in forms[:2]]  # STRASSE
            if len(encode(small)) > 1:  # of rare words, most are nouns
                forms.insert(0, with_capital)
        new = min(forms, key=lambda form: len(encode(form)))  # of equal ones the first
        if begins or (base in _CAPITAL and _CAPITAL[base].match(word)):
            new = word[:1] + new[1:]
        edits.append((span, new))
    return written(text, edits)


def _is_whole(text: str, span: Span) -> bool:
    """Return whether a span neither begins nor ends inside a word."""
    return not any(0 < at < len(text) and joins(text[at - 1]) and joins(text[at]) for at in span)
