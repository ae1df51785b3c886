"""Variants of a text as people write it: without final punctuation, with typos, in a row.

Text to keep stays as it is: placeholders, URLs, tags, names of files and the like, and words with digits. Each function
is pure; `with_typos` makes the same typos of generators in the same state.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from random import Random

from nmt.formats.letter_case import kept_in, words_in
from nmt.formats.sentences import CLOSING, WIDE, stops_of
from nmt.formats.terms import offsets_in, written
from nmt.text.scripts import TOUCHING_RANGES, has_words, is_wide

EVERY = 8  # words for a typo
_TYPED = re.compile(rf"(?:(?![{TOUCHING_RANGES}])[^\W\d_]){{2,}}")  # of scripts that are typed letter by letter
_BEHIND_MARKS = CLOSING + " \u00a0\u2009\u202f"
_OPENING = {"?": "¿", "!": "¡"}
"""Spanish marks by those at the end that they belong to"""
_KEYBOARDS = (
    ("qwertyuiop", "asdfghjkl", "zxcvbnm"),
    ("йцукенгшщзхъ", "фывапролджэ", "ячсмитьбю"),
    ("ςερτυθιοπ", "ασδφγηξκλ", "ζχψωβνμ"),
)
"""Rows of letters"""


def _neighbours() -> dict[str, str]:
    """Return the letters beside each letter on its keyboard, and those that it touches above and below."""
    found = defaultdict[str, str](str)
    for rows in _KEYBOARDS:
        touching = [pair for row in rows for pair in pairwise(row)]
        for upper, lower in pairwise(rows):
            touching += [*zip(upper, lower, strict=False), *zip(upper[1:], lower, strict=False)]
        for one, other in touching:
            found[one] += other
            found[other] += one
    return dict(found)


_BESIDE = _neighbours()


def without_final_mark(text: str, language: str = "") -> str:
    """Return a text without the marks that end it, such as ?!, nor the Spanish ¿ and ¡ that belong to them.

    Quotation marks and brackets around them stay. A text without words stays as it is.
    """
    core = text.rstrip(_BEHIND_MARKS)
    bare = core.rstrip(stops_of(language) + WIDE)
    marks = core[len(bare) :]
    if not marks or not has_words(bare) or not offsets_in(kept_in(text)).isdisjoint(range(len(bare), len(core))):
        return text
    before = bare.rstrip()
    for mark, opening in _OPENING.items():
        head, _, tail = before.rpartition(opening)
        if mark in marks and mark not in tail:
            before = head + tail
    return before + text[len(core) :].rstrip()


def with_typos(text: str, random: Random, at_least: int = 0) -> str:
    """Return a text with a typo in one of `EVERY` words: letters swapped, or one left out, doubled or of the next key.

    A rest of words gets one with the probability of its share. Scripts that are not typed by letters have no typos.
    """
    # Of Python's generator, only random() is the same in all versions.
    words = sorted(words_in(text, _TYPED), key=lambda _: random.random())
    count = max(at_least, int(len(words) / EVERY + random.random()))
    return written(text, [(span, _mistyped(span.text_in(text), random)) for span in words[:count]])


def _mistyped(word: str, random: Random) -> str:
    """Return a word of at least two letters with a typo."""
    kind = int(4 * random.random())
    at = int(random.random() * (len(word) - 1))
    letter, following = word[at], word[at + 1]
    before, behind = word[:at], word[at + 1 :]
    beside = _BESIDE.get(letter.lower(), "")
    if kind == 0 and letter != following:
        return before + following + letter + behind[1:]
    if kind == 1:
        return before + behind
    if kind == 2 and beside:
        other = beside[int(random.random() * len(beside))]
        return before + (other.upper() if letter.isupper() else other) + behind
    return before + 2 * letter + behind


def in_a_row(texts: Iterable[str]) -> str:
    """Return texts as one, with spaces between them unless their script has none."""
    row = ""
    for text in texts:
        if row and not is_wide(row[-1]):
            row += " "
        row += text
    return row
