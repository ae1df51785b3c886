"""Numbers, names with digits, and loops: what a translation lost of its source, invented, or repeats over and over.

Numbers are compared by value, so 1,000.5 is 1.000,5; names with digits, such as `i386`, as they are, but for case. What
good translations do is no change: 64bit may become 64 bit, 20th may become XX, and 3 may become a word.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import cache, partial
from itertools import chain, filterfalse
from typing import NamedTuple

from nmt.formats.names import plain_number
from nmt.text.scripts import TOUCHING

_DIGIT = re.compile(r"\d")
_TOKEN = re.compile(  # a number, or a name with digits
    r"(?<![^\W_])(?:\d{1,3}(?:[ '’]\d{3})+(?:[.,]\d+)?(?![^\W_])"  # 1 000
    r"|[^\W_]*\d[^\W_]*(?:[.,][^\W_]*\d[^\W_]*)*)"  # 1,000.5, 3.11 and i386; hyphens, colons and slashes part two
)
ALONE = re.compile(r"\s*[^\w\s]{0,4}[0-9][0-9.,:/'’+\-]*[^\w\s]{0,4}\s*")
"""Pattern for a text that is a number, such as 12:30 or 50%, in the digits that all languages have"""
_THOUSANDS = re.compile(r"\d{1,3}([., '’])\d{3}(?:\1\d{3})*(?:(?!\1)[.,]\d+)?")
_ORDINAL = re.compile(r"(\d{1,2})(?:st|nd|rd|th|[aeo]|er|re|ème)?")
_LOOP = re.compile(r"(?<!\S)((?:\S++ ){1,8}?)\1\1+|(\S{1,8}?)\2\2+")  # of words, or of characters
SHORTEST_LOOP = 7  # characters: hahaha is none
_WORD = re.compile(r"[^\W\d_]{2,}")
_STUTTER = re.compile(r"([^\W\d_])\1{4,}|([^\W\d_]{2,8})\2{2,}", re.IGNORECASE)  # of a letter or a syllable
_ALPHABETS = ("LATIN", "CYRILLIC", "GREEK", "ARMENIAN", "HEBREW", "ARABIC")  # which no word mixes
MOST_CHANGES = 100  # different numbers and names to look for in other words, which takes a search of the text each
PLAIN = re.compile(plain_number(r"\d{1,9}"))
"""Pattern for a number in digits alone"""
_DIGITS = re.compile(r"\d{1,9}")
_GROUPED = re.compile(r"(?<!\d)\d{1,3}(?:[., '’\u00a0\u202f]\d{3})+(?!\d)")
_CONVERTED = re.compile(  # what translations may write with other numbers: 5 miles, half past 7, um halb 8
    r"\b(?:half past|halb|halv|miles?|feet|foot|inch(?:es)?|yards?|acres?|pounds?|lbs?|ounces?|gallons?|fahrenheit)\b"
    r"|°F\b",
    re.IGNORECASE,
)
LARGEST_WORD = 12  # larger numbers seldom become words; also the hours that p.m. adds or takes
_SPELLED = (  # beginnings of words for 1 to 12 in English, German, French, Italian, Spanish, Portuguese and Dutch
    "one|once|first|un|um|ein|een|erst|prim|prem",
    "two|twi|twe|second|segund|due|duo|dou|deu|dos|dois|doi|zwei|zwo",
    "three|third|tre|trê|tri|ter|tie|troi|dre|dri",
    "four|vier|qua|cua",
    "fif|five|fünf|vijf|cin|quin",
    "six|sei|ses|sech|zes",
    "seven|sieb|zeven|sett|sete|séti|siet",
    "eigh|acht|huit|ott|och|oit",
    "nin|neun|neuf|neg|nov|nuev",
    "ten|tien|zehn|dix|die[cz]|de[cz]",
    "eleven|elf|onz|once|undic",
    "twel|twaalf|zwölf|douz|do[cdz]",
)


class Changes(NamedTuple):
    """Where a translation does not say what its source says."""

    lost: list[str]
    """Numbers and names of the source that the output lacks"""
    invented: list[str]
    """Numbers and names of the output that the source does not have"""
    loop: str
    """What the output repeats in a row, more than twice as often as the source repeats anything; "" for nothing"""


def compare(source: str, output: str, asked: str = "") -> Changes:
    """Compare an output with its source; numbers and names in `asked`, the terms and what is kept, do not count."""
    lost: list[str] = []
    invented: list[str] = []
    if _DIGIT.search(source + output):
        lost, invented = _changed(source, output, asked)
    times, loop = _loop(output)
    is_new = times > 0 and times > 2 * _loop(source)[0]  # most outputs have none, and cost no look at the source
    return Changes(lost, invented, loop if is_new else "")


def with_numbers_of(source: str, output: str) -> str:
    """Return an output with plain numbers of its source for those that it has instead: 1912 for 191.

    They are put there in order, if it lacks as many as it invents. The smallest numbers may have become words, so they
    count as lacking only if the others are not as many. Where the source has a unit or a time of day that may be
    converted, nothing is put.
    """
    if _CONVERTED.search(source):
        return output
    there = Counter(_values(output))
    lost = list[str]()
    for number in PLAIN.findall(source):
        there[int(number)] -= 1
        if there[int(number)] < 0:
            lost.append(number)
    known = set(_values(source))
    invented = [found for found in PLAIN.finditer(output) if int(found[0]) not in known]
    large = [number for number in lost if int(number) > LARGEST_WORD]
    numbers = lost if len(large) != len(invented) else large
    if not numbers or len(numbers) != len(invented):
        return output
    text = ""
    last = 0
    for found, number in zip(invented, numbers, strict=True):
        if abs(int(found[0]) - int(number)) == LARGEST_WORD:  # 5 p.m. may become 17 hours, and these 5 p.m.
            return output
        text += output[last : found.start()] + _in_digits_of(found[0], number)
        last = found.end()
    return text + output[last:]


def _in_digits_of(other: str, number: str) -> str:
    """Return a number in the digits that another one has: in those of Arabic, for example."""
    zero = ord(other[0]) - int(other[0])
    return "".join(chr(zero + int(digit)) for digit in number)


def _values(text: str) -> list[int]:
    """Return the values of all digits of a text that stand together, and of its numbers with thousands separators."""
    grouped = [re.sub(r"\D", "", number) for number in _GROUPED.findall(text)]
    return [*map(int, _DIGITS.findall(text) + grouped)]


def is_garbled(source: str, output: str) -> bool:
    """Return whether an output is no translation.

    It is none if it has a word too often, or a word of letters of two alphabets or of repeated syllables, or bytes that
    spell no character, for which U+FFFD stands. Too often is at least three times, and at least three more than the
    source has any word; two more are enough for a word that is a quarter of the output.
    """
    if output.count("\ufffd") > source.count("\ufffd"):
        return True
    here = _WORD.findall(source)
    there = _WORD.findall(output)
    often = max(Counter(map(str.casefold, here)).values(), default=0)
    for times in Counter(map(str.casefold, there)).values():
        more = 2 if 4 * times >= len(there) else 3
        if times >= max(3, often + more):
            return True
    stutters = _STUTTER.search(source) is not None  # as YYYY-MM-DD does
    for word in set(there).difference(here):
        if len(_alphabets(word)) > 1 or (not stutters and _STUTTER.search(word)):
            return True
    return False


def _alphabets(word: str) -> set[str]:
    """Return the alphabets that a word has letters of."""
    if word.isascii():
        return set()
    names = {unicodedata.name(letter, "").partition(" ")[0] for letter in word}
    return names.intersection(_ALPHABETS)


def _changed(source: str, output: str, asked: str) -> tuple[list[str], list[str]]:
    """Return the numbers and names that are lost, and those that are invented."""
    source = _normalized(source)
    output = _normalized(output)
    here = _TOKEN.findall(source)
    there = _TOKEN.findall(output)
    # From the strictest comparison to the laxest: what one matches, the next ones do not see
    lost, invented = _unmatched(here, there, _folded, lambda token: [_folded(token)])
    is_close = len({*lost, *invented}) <= MOST_CHANGES
    if is_close:
        lost, invented = _unmatched(lost, invented, _key, cache(partial(_pieces, text=output)))
        invented, lost = _unmatched(invented, lost, _key, cache(partial(_pieces, text=source)))
        lost, invented = _unmatched(lost, invented, _measure, lambda token: [_measure(token)])
    is_kept = cache(partial(_is_said, text=source, other=output))
    is_known = cache(partial(_is_said, text=output, other=source))
    # Once is enough for a name, which may become a pronoun. A number or name that the source has is no invention.
    wanted = set(_TOKEN.findall(_normalized(asked)))
    known = wanted.union(map(_key, here))
    lost = [token for token in lost if token not in wanted]
    invented = [token for token in invented if not {token, _key(token)} & known]
    if is_close:
        lost = [*filterfalse(is_kept, lost)]
        invented = [*filterfalse(is_known, invented)]
    return lost, invented


def _loop(text: str) -> tuple[int, str]:
    """Return how often the longest loop of a text repeats something, and what; (0, "") if there is none."""
    longest = max(_LOOP.finditer(text + " "), key=lambda match: len(match[0]), default=None)
    if longest is None or len(longest[0]) < SHORTEST_LOOP:
        return 0, ""
    repeated = longest[1] or longest[2]
    return len(longest[0]) // len(repeated), repeated.strip()


def _normalized(text: str) -> str:
    """Return a text with one form of each digit, and with spaces around numbers: 4x4, 3個."""
    text = _DIGIT.sub(lambda digit: str(int(digit[0])), unicodedata.normalize("NFKC", text))
    return re.sub(r"(?<=\d)[x×](?=\d)", " x ", TOUCHING.sub(" ", text))


def _unmatched(
    one: list[str], other: list[str], key: Callable[[str], str], pieces: Callable[[str], list[str]]
) -> tuple[list[str], list[str]]:
    """Remove each token of `one` whose pieces are all keys of tokens of `other`, and these."""
    by_key: defaultdict[str, list[str]] = defaultdict(list)
    for token in other:
        by_key[key(token)].append(token)
    rest = []
    for token in one:
        wanted = Counter(pieces(token))
        if all(len(by_key[piece]) >= times for piece, times in wanted.items()):
            for piece in wanted.elements():
                by_key[piece].pop()
        else:
            rest.append(token)
    return rest, [*chain.from_iterable(by_key.values())]


def _is_number(token: str) -> bool:
    return not re.search(r"[^\W\d]", token)


def _key(token: str) -> str:
    """Write a number with "." before decimals, and without thousands separators and leading zeros; a name as it is."""
    if not _is_number(token):
        return token
    grouped = _THOUSANDS.fullmatch(token)
    if grouped:
        token = token.replace(grouped[1], "")
    return re.sub(r"^0+(?=\d)", "", token.replace(",", "."))


def _folded(token: str) -> str:
    """Return the key in lower case, without the v of a version and a plural s: v3.11 is 3.11, MP3s is mp3."""
    return re.sub(r"^v(?=[\d.]+$)|(?<=\d)s$", "", _key(token).casefold())


def _measure(token: str) -> str:
    """Return the key without lower-case letters behind a number, and without the century of a decade.

    "20th" becomes "20", and "90er" and "1990s" become "90".
    """
    number = _key(re.sub(r"^([\d.,]+)[^\W\d_A-Z]+$", r"\1", token))
    return re.sub(r"^(?:19|20)(?=\d0$)", "", number)


def _pieces(token: str, text: str) -> list[str]:
    """Return the keys of the numbers in a token if `text` may write these apart; else the token.

    "17.30" becomes "17" and "30", "64bit" becomes "64", and "Python3" becomes "3" if `text` has Python 3.
    """
    if _is_number(token):
        return [*map(_key, re.findall(r"\d+", token))]
    if token[0].isdigit() or _is_in(token, text):
        return [*map(_key, re.findall(r"\d+(?:[.,]\d+)*", token))]
    return [token]


def _is_in(name: str, text: str) -> bool:
    """Return whether a name stands in a text, in whatever case and with or without spaces and hyphens."""
    apart = r"[\W_]{0,3}".join(re.findall(r"\d+|[^\W\d_]+", name))
    return bool(re.search(rf"(?<![^\W_]){apart}(?![^\W_])", text, re.IGNORECASE))


def _is_said(token: str, text: str, other: str) -> bool:
    """Return whether another text has a name, or words for 3, 3rd, 16th, 3D or i18n, but not for the 3 of Python 3."""
    if re.fullmatch(r"[1-4][dD]", token):
        return "dimension" in other.casefold()
    short = re.fullmatch(r"([a-z])(\d\d?)[a-z]", token, re.IGNORECASE)
    if short:
        return bool(re.search(rf"\b{short[1]}\w{{{short[2]},}}", other, re.IGNORECASE))
    ordinal = _ORDINAL.fullmatch(token)
    value = int(ordinal[1]) if ordinal else 0
    if not 0 < value < 40:  # Roman numerals from 40 on have other letters than X, V and I
        return not _is_number(token) and _is_in(token, other)
    if re.search(rf"(?<=[\w,] )[A-Z]\w*[ -]{token}(?!\w)", text):
        return False
    roman = "X" * (value // 10) + ("", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX")[value % 10]
    words = _SPELLED[value - 1] if value <= len(_SPELLED) else roman
    return bool(re.search(rf"\b{roman}\b|\b(?i:{words})", other))
