"""Scripts that are written without spaces between words: one property, for all that asks where words end."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

WIDE_RANGES = r"\u2e80-\u312f\u31a0-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff00-\uff9f\U00020000-\U000323af"
"""Chinese, kana, and full-width signs and letters, for a class in a pattern: a line may break between any two"""
UNSPACED_RANGES = (
    r"\u0e00-\u109f\u1780-\u17ff\u1950-\u19ff\u1a20-\u1aaf\u1b00-\u1b7f\ua980-\ua9ff\uaa60-\uaadf" + WIDE_RANGES
)
"""Characters of scripts written without spaces: Thai, Lao, Tibetan, Burmese, Khmer, Balinese
and their relatives, Chinese, kana, and full-width signs and letters"""
TOUCHING_RANGES = UNSPACED_RANGES + r"\uac00-\ud7af"
"""The same, and Hangul: Korean has spaces, but its endings follow numbers, URLs and names directly"""
UNCASED_RANGES = r"\u0590-\u109f" + TOUCHING_RANGES
"""Characters of the scripts of Asia, from Hebrew and Arabic to Hangul, whose words may touch a placeholder"""
IDENTIFIER = rf"(?:\w(?<![{UNCASED_RANGES}]))"
"""Pattern for a character of names and placeholders, which letters of these scripts end"""
WIDE = re.compile(f"[{WIDE_RANGES}]")
"""A Chinese or Japanese character"""
UNSPACED = re.compile(f"[{UNSPACED_RANGES}]")
"""A character of a script written without spaces"""
TOUCHING = re.compile(f"[{TOUCHING_RANGES}]")
"""A character of such a script, or of Korean"""


def joins(character: str) -> bool:
    """Return whether `character` is a word character of a script that separates words with spaces."""
    is_of_word = character == "_" or unicodedata.category(character)[0] in "LNM"
    return is_of_word and not UNSPACED.match(character)


def has_words(text: str) -> bool:
    """Return whether a text has a letter or a digit, of whatever script."""
    return any(map(str.isalnum, text))


def count_words(text: str) -> int:
    """Return the number of words between spaces; where none separate words, that of letters and digits."""
    if text.isascii() or not UNSPACED.search(text):
        return len(text.split())
    characters = "".join(UNSPACED.findall(text))
    return len(UNSPACED.sub(" ", text).split()) + sum(map(str.isalnum, characters))


def is_wide(character: str) -> bool:
    """Return whether no space follows `character` even at the end of a sentence: Chinese, kana, full-width marks."""
    return bool(UNSPACED.match(character)) and unicodedata.east_asian_width(character) in "WF"


def is_unspaced(lines: Iterable[str]) -> bool:
    """Return whether most letters of the lines are of scripts written without spaces."""
    text = "".join(lines)
    return 2 * len(UNSPACED.findall(text)) > sum(map(str.isalpha, text))
