"""Lines as people type them and as models know them: in capitals, with emphasis, in title case and in small letters.

Vocabularies spell words with unusual capitals in many subwords, and models have seen few: they translate what the line
would usually be. Of a line in capitals, the translation is in capitals, too. Text to keep stays as it is: placeholders,
URLs, tags, names of files and the like, and words with digits. Quotation marks and dashes that a vocabulary lacks
become those of the keyboard.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from nmt.formats.sentences import CLOSING, listed, stops_of
from nmt.formats.tags import TAGS
from nmt.formats.terms import Edit, Span, Terms, find_copies, offsets_in, outside, written
from nmt.text.language_codes import Language
from nmt.text.scripts import has_words, joins

FEWEST_LETTERS = 4  # of a line in capitals: fewer may be an abbreviation
UNUSUAL = 1.6  # times as many subwords a line in capitals has if the vocabulary has its words in small letters
FEWEST_SPELLED = 3  # subwords of a word that is emphasised, or of a name without its capital
FEWEST_WORDS = 3  # of a line in title case or in small letters: fewer may be a name
FEWEST_UNUSUAL = 2  # words that the vocabulary has in small letters alone, for a line to be in title case
LONGEST_SMALL = 4  # letters of the words that may have no capital in a headline
_DOTTED = {language: str.maketrans("i", "İ") for language in ("tr", "az")}
_CAPITALS: dict[str, Mapping[int, int | str]] = {
    **_DOTTED,
    "el": str.maketrans("άέήίόύώΐΰΆΈΉΊΌΎΏ", "ΑΕΗΙΟΥΩΪΫΑΕΗΙΟΥΩ"),  # Greek capitals have no accents
}
_SMALL = dict.fromkeys(("tr", "az"), str.maketrans("Iİ", "ıi"))
_AMONG_CAPITALS = "ßªº"  # small letters that stand among capitals, too: STRAßE, Nº
_GEORGIAN = re.compile("[\u10d0-\u10ff]")  # has capitals, which nobody uses
_ENGLISH_I = re.compile(r"(?:(?<=[\s\"“‘(])|^)[Ii](?=['’]\w|,?\s|[,.!?]?$)(?!\s+in\b)")
"""The pronoun, but not i.e., (i) or a loop's index"""
_ELISION = re.compile(r"(?<=['’])\w(?=\w)")
_FINAL = re.compile(r"[.?]\W*$")
_LETTERS = re.compile(r"[^\W\d_]{2,}")
_SHARP = "ß\u00ad"
"""What SS may have been in German, with a soft hyphen, which vocabularies drop, so that there are as many characters"""
_WORD = re.compile(r"[^\W\d_](?:[\w\u0300-\u036f\u00ad]|['’·\u055b-\u055e](?=\w))*")  # marks of Armenian, too
_UNITS = r"[kKMGT]i?[Bb](?:it)?|[kMGT]?(?:Hz|Wh|Pa)|[kM][WVJ]|mAh?|dB|[kcmµ]?m[²³]?|[kmµ]?g|[md]?l|m?s"
KEPT = Terms(
    keep=[
        r"(?<!\w)(?:(?<!-)(?:[A-Z]{1,5}-)+)?\w*\d\w*",  # words with digits, UTF-8
        rf"(?<=\d\s)(?:{_UNITS})(?:/[hs])?(?![\w'’])",  # 5 kWh
        r"(?<!\w)[A-Za-z]:\\[^\s<>|\"]+",  # C:\Windows
        r"(?<![\w-])(?=(?:[A-Z]+-)*[B-DF-HJ-NP-TV-XZ]{2,}(?!\w))[A-Z]+(?:-[A-Z]+){2,}(?![\w-])",  # TTB-LTR-UPRIGHT
    ]
)
# Without any of them, there is nothing to keep
_MAY_KEEP = re.compile(r"[\d_/~$%@{}\[\]<>&+-]|\(\)|\.\w|:\S|![a-z]")
_MIXED = re.compile(r"(?<!\w)\w*(?:[a-zà-ÿ][A-ZÀ-Þ]|[A-Z]{2}[a-z])\w*")
"""Names with capitals of their own: iPHONE, McDONALD, DVDs, tÚ"""
_ROMAN = "X{0,3}(?:IX|IV|V?I{2,3})|X{1,3}(?:VI?|I)|X{2,3}"  # numerals that are no words
_AS_THEY_ARE = re.compile(rf"[^\W\d_]\.|(?:{_ROMAN})(?!\w)|{_MIXED.pattern}")
_KEYS = {**dict.fromkeys("“”„«»", '"'), **dict.fromkeys("‘’‚", "'"), **dict.fromkeys("‑–—", "-"), "…": "."}
"""What texts have in place of signs of typography that no key has"""
POLITE = frozenset({"sie", "ihr", "ihre", "ihren", "ihrem", "ihrer", "ihnen"})
"""Words that German writes with a capital to say you"""
_FIRST_WORD = re.compile(r"[^\W\d_]+")
_CONSONANTS = re.compile("(?!MRS$)[B-DF-HJ-NP-TV-XZ]{3,}")


class Speller(Protocol):
    """What is asked of a vocabulary, whose frequent subwords come first."""

    def encode(self, text: str) -> list[int]: ...


class _Word(NamedTuple):
    """A word of a text, and how it may be written otherwise."""

    span: Span
    text: str
    small: str
    """In small letters"""
    begins: bool
    """Whether it begins a sentence"""
    is_pronoun: bool
    """Whether it is I, which English writes with a capital wherever it stands"""
    is_abbreviation: bool
    """Whether it is listed as one, a letter before a full stop as in J. R., a Roman numeral, or like iPHONE"""
    is_german: bool
    is_function_word: bool
    """Whether it is listed as a word that is no name, and no noun of German"""
    follows: bool
    """Whether nothing but white space is between the word before and this one"""

    @property
    def is_polite(self) -> bool:
        """Whether German writes it with a capital to say you"""
        return self.is_german and self.small in POLITE

    @property
    def with_capital(self) -> str:
        """The word with nothing but its first letter as it is, in small letters otherwise"""
        return self.text[:1] + self.small[1:]

    def is_whole(self, vocabulary: Speller) -> bool:
        """Return whether a word in capitals usually has others, and is one subword then."""
        usual = self.usual(vocabulary)
        return usual != self.text and len(vocabulary.encode(usual)) == 1

    def usual(self, vocabulary: Speller) -> str:
        """Return a word in capitals as a vocabulary has it with the fewest subwords, in as many characters."""
        if self.is_abbreviation or len(self.small) != len(self.text):
            return self.text
        plain = [self.small] if self.is_function_word else [self.small, self.with_capital]
        forms = [*plain, self.text]
        forms += [_ELISION.sub(_upper, form) for form in plain]  # l'Italie, O'Brien
        if self.is_german:
            forms += [form.replace("ss", _SHARP) for form in plain]  # STRASSE
            if len(vocabulary.encode(self.small)) > 1:
                forms.insert(0, plain[-1])  # of rare words, most are nouns
        best = min(forms, key=partial(_rareness, vocabulary))  # of equal ones the first
        if _CONSONANTS.fullmatch(self.text) and 2 * len(vocabulary.encode(best)) > len(self.text):
            return self.text  # PDF, unless the vocabulary knows it as a word
        return self.text[:1] + best[1:] if self.begins or self.is_pronoun else best


def kept_in(text: str, copied: Sequence[Span] = ()) -> list[Span]:
    """Return the spans of text to keep, in order, `copied` ones among them."""
    if not copied and not _MAY_KEEP.search(text):
        return []
    tags = [Span(*tag.span()) for tag in TAGS.finditer(text)]
    return KEPT.spans(text, [*tags, *copied], linked=False)


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


def in_small_letters(text: str, language: str = "") -> str:
    """Return a text in small letters by the rules of a language: a Turkish I becomes ı."""
    return text.translate(_SMALL.get(Language.of(language).base, {})).lower()


def letters_of(text: str, language: str = "") -> str:
    """Return a text in capitals, whatever is to keep, so that texts that differ in case alone are one."""
    return text.translate(_CAPITALS.get(Language.of(language).base, {})).upper()


def capitals(text: str, language: str = "", copies: Iterable[str] = ()) -> list[str]:
    """Return each character of a text as `in_capitals` writes it; what it has of `copies` is kept, too."""
    found = [*text]
    letters = _CAPITALS.get(Language.of(language).base, {})
    for gap in outside(kept_in(text, _copied(text, copies)), len(text)):
        for at in range(*gap):
            if not _GEORGIAN.match(text[at]):
                found[at] = text[at].translate(letters).upper()
    return found


def title_case(text: str, language: str = "", copies: Iterable[str] = ()) -> list[str]:
    """Return each character of a text as `in_title_case` writes it; what it has of `copies` is kept, too."""
    found = [*text]
    base = Language.of(language).base
    letters = _DOTTED.get(base, {})
    for start, end in words_in(text, _WORD, _copied(text, copies)):
        if text[start:end] == text[start:end].lower():  # others are names or abbreviations
            found[start] = text[start].translate(letters).title()
            if base == "nl" and text.startswith("ij", start):
                found[start + 1] = "J"  # IJsland
    return found


def is_in_capitals(text: str, copied: Sequence[Span] = (), fewest: int = FEWEST_LETTERS) -> bool:
    """Return whether a text has no small letters outside of what is to keep, and at least so many capitals.

    `copied` are more spans to keep. Words such as iPHONE do not count, unless they are most of the text.
    """
    if _has_small_word(text, copied, 1):
        return False  # at once, like most lines
    bare = written(text, [(span, " ") for span in kept_in(text, copied)])
    plain = _MIXED.sub("", bare)
    if any(character.islower() and character not in _AMONG_CAPITALS for character in plain):
        return False
    return sum(map(str.isupper, plain)) >= max(fewest, len(bare) - len(plain))


def has_word_in_capitals(text: str) -> bool:
    """Return whether a text has a word of two letters or more in capitals; few lines have."""
    return any(map(str.isupper, _LETTERS.findall(text)))


def is_in_title_case(text: str, copied: Sequence[Span] = ()) -> bool:
    """Return whether each word of a text begins with a capital, and there are enough words to tell."""
    words = words_in(text, _WORD, copied)
    return len(words) >= FEWEST_WORDS and all(text[start].isupper() for start, _ in words)


def without_capitals(text: str, vocabulary: Speller, language: str = "", copied: Sequence[Span] = ()) -> str:
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
        if usual != word.text:
            edits.append((word.span, usual))
            before += len(vocabulary.encode(word.text))
            after += len(vocabulary.encode(usual))
    return written(text, edits) if before >= UNUSUAL * after else text


def without_emphasis(text: str, vocabulary: Speller, language: str = "", copied: Sequence[Span] = ()) -> str:
    """Return a text with the words that are emphasised by capitals written as otherwise, in as many characters.

    They are those of a language's list, such as NOT in `STOP! Do NOT open`, or several, such as GO AWAY, and others in
    the same line, if the vocabulary spells them in several subwords that are one otherwise. Elsewhere, these may be
    abbreviations.
    """
    emphasised = listed("emphasised", language)
    if not has_word_in_capitals(text):
        return text
    clear: list[_Word] = []  # of runs with a word that the vocabulary has in small letters alone
    is_emphasised = False
    for run in _runs_in_capitals(_read(text, language, copied)):
        spelled = [word.small for word in run if len(vocabulary.encode(word.text)) >= FEWEST_SPELLED]
        whole = [small for small in spelled if len(vocabulary.encode(small)) == 1]
        if whole:
            clear += run
        is_phrase = len(run) > 1 and len(whole) > 0 and all(word.is_whole(vocabulary) for word in run)
        is_emphasised |= is_phrase or not emphasised.isdisjoint(whole)
    if not is_emphasised:
        return text
    edits: list[Edit] = []
    for word in clear:
        usual = word.usual(vocabulary)
        if word.begins or word.is_pronoun or len(vocabulary.encode(usual)) < len(vocabulary.encode(word.text)):
            edits.append((word.span, usual))
    return written(text, edits)


def _runs_in_capitals(words: Iterable[_Word]) -> Iterator[list[_Word]]:
    """Yield words in capitals, those together that nothing but white space is between."""
    run: list[_Word] = []
    for word in words:
        is_upper = word.text.isupper()
        if run and not (is_upper and word.follows):
            yield run
            run = []
        if is_upper:
            run.append(word)
    if run:
        yield run


def without_title_case(text: str, vocabulary: Speller, language: str = "", copied: Sequence[Span] = ()) -> str:
    """Return a text in title case as a sentence, in as many characters, and another text as it is.

    It is in title case if all words have capitals or, without a final mark, all but a few short ones have, and if the
    vocabulary has several of them with fewer subwords in small letters, or if one is no name, such as This.
    """
    if _has_small_word(text, copied, LONGEST_SMALL + 1):
        return text
    edits: list[Edit] = []
    with_capital = 0
    small = 0
    unusual = 0
    for word in _read(text, language, copied):
        if word.text == word.small:
            small += 1
            if len(word.text) > LONGEST_SMALL:
                return text
        elif word.text == word.with_capital and not (word.begins or word.is_pronoun):
            with_capital += 1
            if len(word.small) != len(word.text):
                continue
            is_no_name = word.is_function_word and not word.is_polite
            if is_no_name or _rareness(vocabulary, word.small) <= _rareness(vocabulary, word.text):
                edits.append((word.span, word.small))
            if is_no_name:
                unusual += FEWEST_UNUSUAL
            elif len(vocabulary.encode(word.small)) < len(vocabulary.encode(word.text)):
                unusual += 1
    may_be_sentence = small > 0 and (small >= with_capital or _FINAL.search(text) is not None)
    return text if may_be_sentence or unusual < FEWEST_UNUSUAL else written(text, edits)


def with_capitals(text: str, vocabulary: Speller, language: str = "", copied: Sequence[Span] = ()) -> str:
    """Return a text in small letters with the capitals that it lacks, in as many characters; another one as it is.

    These are those of names, which the vocabulary has as one subword, but spells in small letters; of I in English; and
    of nouns in German. A word that begins a sentence stays as it is, since strings of programs begin so.
    """
    if any(map(str.isupper, text)):
        return text
    words = [*_read(text, language, copied)]
    if len(words) < FEWEST_WORDS:
        return text
    edits: list[Edit] = []
    for word in words:
        capital = in_title_case(word.text, language)
        if len(capital) != len(word.text):
            continue
        size = len(vocabulary.encode(capital))
        spelled = len(vocabulary.encode(word.text))
        is_name = size == 1 and spelled >= FEWEST_SPELLED
        is_noun = word.is_german and size < spelled
        if word.is_pronoun or (not (word.begins or word.is_function_word) and (is_name or is_noun)):
            edits.append((word.span, capital))
    return written(text, edits)


def with_known_signs(text: str, vocabulary: Speller, copied: Sequence[Span] = ()) -> str:
    """Return a text with signs of the keyboard in place of typographic ones that the vocabulary spells as bytes."""
    lacking = [sign for sign in _KEYS if sign in text and len(vocabulary.encode(sign)) >= FEWEST_SPELLED]
    if not lacking:
        return text
    kept = offsets_in(kept_in(text, copied))
    edits: list[Edit] = []
    for span in find_copies(text, lacking):
        if span.start not in kept:
            edits.append((span, _KEYS[span.text_in(text)]))
    return written(text, edits)


def as_usual(text: str, vocabulary: Speller, language: str = "", copied: Sequence[Span] = ()) -> str:
    """Return a text as it would usually be written, in as many characters; `copied` are more spans to keep."""
    text = with_known_signs(text, vocabulary, copied)
    if is_in_capitals(text, copied):
        return without_capitals(text, vocabulary, language, copied)
    for change in (without_emphasis, without_title_case, with_capitals):
        text = change(text, vocabulary, language, copied)
    return text


def inside_sentence(text: str, vocabulary: Speller, language: str = "") -> str:
    """Return a text that begins a sentence as it goes on in one: in a small letter, unless its word has a capital."""
    found = _FIRST_WORD.match(text)
    if not found or found[0] == "I":
        return text
    small = text[0].lower() + found[0][1:]
    if len(small) != found.end() or (small in POLITE and Language.of(language).base == "de"):
        return text
    is_name = _rareness(vocabulary, small) >= _rareness(vocabulary, found[0])
    if is_name and small not in listed("starters", language):
        return text
    return small + text[found.end() :]


def pair_as_usual(
    pair: tuple[str, str], vocabularies: tuple[Speller, Speller], languages: tuple[str | None, str | None]
) -> tuple[str, str]:
    """Return a source as it would usually be written and, if it was all in capitals, its translation without them."""
    source, target = pair
    usual = as_usual(source, vocabularies[0], languages[0] or "")
    if usual != source and is_in_capitals(source):
        target = without_capitals(target, vocabularies[1], languages[1] or "")
    return usual, target


def _has_small_word(text: str, copied: Sequence[Span], letters: int) -> bool:
    """Return whether a text has nothing to keep, but a word of at least so many letters, all of them small."""
    if copied or _MAY_KEEP.search(text):
        return False
    return any(len(word) >= letters and word.isalpha() and word.islower() for word in text.split())


def _read(text: str, language: str, copied: Sequence[Span]) -> Iterator[_Word]:
    """Yield the words of a text that are not to keep."""
    base = Language.of(language).base
    ended = re.compile(rf"[{re.escape(stops_of(language))}][{re.escape(CLOSING)}]*\s\W*$")
    last = 0  # offset behind the word before
    for span in words_in(text, _WORD, copied):
        word = span.text_in(text)
        before = text[last : span.start]
        bare = TAGS.sub(" ", before)
        begins = ended.search(bare) is not None or not (last or has_words(bare))
        last = span.end
        small = in_small_letters(word, language)
        yield _Word(
            span,
            word,
            small=small,
            begins=begins,
            is_pronoun=base == "en" and _ENGLISH_I.match(text, span.start) is not None,
            is_abbreviation=small in listed("abbreviations", language)
            or _AS_THEY_ARE.match(text, span.start) is not None,
            is_german=base == "de",
            is_function_word=small in listed("starters", language),
            follows=before.isspace(),
        )


def _upper(found: re.Match[str]) -> str:
    return found[0].upper()


def _rareness(vocabulary: Speller, form: str) -> tuple[int, int]:
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
