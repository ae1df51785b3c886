"""Rules of normalisation, which a SentencePiece model records: differences that a reader does not see are removed.

White space of other kinds becomes a plain space, characters that show nothing are dropped, and letters with their marks
apart (NFD, as in file names of macOS) are composed (NFC). U+200C and U+200D stay: they change how others are written.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import cache
from itertools import permutations

SPACES = "\t\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
INVISIBLE = "\u00ad\u034f\u061c\u180e\u200b\u200e\u200f\u2060\ufeff"
LAST = 0x12000  # behind all letters that NFC composes
_HANGUL = range(0xAC00, 0xD7A4)  # composed syllables
_HANGUL_SIGN = re.compile("[\u1100-\u11ff\uac00-\ud7a3]")


@cache
def rules(with_hangul: bool) -> str:
    """Return the rules as SentencePiece reads them, one a line: code points, a tab, and those that they become.

    For e and its accent apart, which become é, that is "65 301\\tE9". Most rules are for syllables of Hangul, which are
    left out unless `with_hangul`.
    """
    found = dict.fromkeys(SPACES, " ") | dict.fromkeys(INVISIBLE, "")
    for code in range(LAST):
        if with_hangul or code not in _HANGUL:
            character = chr(code)
            found |= dict.fromkeys(_decomposed(character), character)
    lines = ""
    for text, plain in found.items():
        lines += f"{_codes(text)}\t{_codes(plain)}\n"
    return lines


def has_hangul(text: str) -> bool:
    """Return whether a text has syllables of Hangul, or the letters that these are composed of."""
    return _HANGUL_SIGN.search(text) is not None


def _decomposed(character: str) -> Iterator[str]:
    """Yield the ways to write a character that NFC makes this one: its marks in any order, some of them composed."""
    whole = unicodedata.normalize("NFD", character)
    if whole == character or unicodedata.normalize("NFC", character) != character:
        return
    for marks in map("".join, permutations(whole[1:])):
        for at in range(len(marks) + 1):
            written = unicodedata.normalize("NFC", whole[0] + marks[:at]) + marks[at:]
            if written != character and unicodedata.normalize("NFC", written) == character:
                yield written


def _codes(text: str) -> str:
    return " ".join(f"{ord(character):X}" for character in text)
