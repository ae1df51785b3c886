"""What stands around a sentence without being part of it: the mark of a list's item, brackets, quotation marks.

Small models have seldom seen a line in brackets, or with a number before it, and lose the sentence over it.
"""

from __future__ import annotations

import re
from typing import Any

from nmt.formats.sentences import FULL_STOPS, STOPS, WIDE, WORDS
from nmt.formats.terms import Span
from nmt.text.language_codes import Language
from nmt.text.scripts import UNSPACED_RANGES, joins

_MARK = (  # also of a quotation, a heading, a dialogue, a note
    r"[-+~*·•‣–—]|--|>{1,3}|#{1,6}|[(（]?(?:\d{1,3}|[A-Za-z]|[ivx]{2,4})[)）]|\[(?:\d{1,3}|[ xX])\]"
)
_SPEECH = r"[-–—](?=[^\W\d_]|[¿¡“„«])"  # without a space
_ELLIPSIS = r"(?:\.{3}|…)\s*(?=[^\W\d_])|\.\s+(?=\S)"  # for vocabularies that lack it, … is a full stop
_STYLES = r"(?:\{\\[a-z\d][^{}]{0,80}\})+\s*(?=\S)"  # of subtitles: {\an8}
ITEM = re.compile(rf"(?:{_MARK})\s+(?=\S)|\d{{1,3}}、\s*(?=\S)|{_SPEECH}|{_ELLIPSIS}|{_STYLES}")
"""Pattern for how an item of a list begins: - # > 1) (a), or what someone says: -Yes., …and."""
NUMBERED_ITEM = re.compile(rf"(?:\d{{1,3}}\.)+\s+(?=\S)|{ITEM.pattern}")
"""The same, and 1. and 1.2., where a full stop makes no ordinal number"""
BRACKETS = {"(": ")", "[": "]", "（": "）", "【": "】", "〔": "〕"}
"""Closing brackets, by the opening one"""
QUOTES = {
    '"': '"',
    "'": "'",
    "‘": "’",
    "“": "”",
    "”": "”",
    "„": "“”",
    "«": "»",
    "»": "«",
    "‹": "›",
    "「": "」",
    "『": "』",
}
"""Closing quotation marks, by the opening one"""
_BEHIND = FULL_STOPS + "…,;:，；：、"
"""Marks that may stand behind what closes a sentence: "I see"."""
_NO_SENTENCE = re.compile(rf"(?=.*[^\W\d_])(?!.*(?:[^\W\d_]{{2}}|[{UNSPACED_RANGES}]))", re.DOTALL)
"""Pattern for a text that has letters, but no word of two: the (s) of an ending, the [y/N] of a question"""
_BEFORE_QUOTATION = re.compile(rf"[,:،，：]\s*(?=[{re.escape(''.join(QUOTES))}])")
_ASIDE = r"[(\[](?=[^\W\d_])[^()\[\]]{2,60}[)\]]"
_ASIDE_BEFORE = re.compile(rf"{_ASIDE}\s+")
_ASIDE_BEHIND = re.compile(rf"(?<=\w\w[.!?…])\s+(?={_ASIDE}\s*$)")
MOST_FRAMES = 9  # no text has more around it, and each takes a look at all of it


class Frames:
    """Finder of what stands around a sentence of one language."""

    def __init__(self, language: str, quotes: bool) -> None:
        """Find marks and brackets and, if so asked, quotation marks around a sentence.

        In a language that marks ordinals by a full stop, or in an unknown one, a number with one is no mark.
        """
        ordinals = WORDS["marks"]["ordinals"].split()
        may_be_ordinal = not language or Language.of(language).base in ordinals
        self._item = ITEM if may_be_ordinal else NUMBERED_ITEM
        self._later_item = re.compile(rf"\s(?:{self._item.pattern})")
        self._pairs = BRACKETS | QUOTES if quotes else BRACKETS

    def table(self) -> dict[str, Any]:
        """Return the rules as plain values for nmt/exchange/html/sentences.js."""
        return {
            "item": self._item.pattern,
            "pairs": self._pairs,
            "behind": _BEHIND,
            "noSentence": _NO_SENTENCE.pattern,
            "beforeQuotation": _BEFORE_QUOTATION.pattern,
            "asideBefore": _ASIDE_BEFORE.pattern,
            "asideBehind": _ASIDE_BEHIND.pattern,
        }

    def inside(self, text: str) -> Span:
        """Return the span of the sentence that a text has within marks and brackets; all of it if there are none."""
        start = 0
        end = len(text)
        for _ in range(MOST_FRAMES):
            item = self._item.match(text, start, end)
            closing = self.closing(text[start:end])
            if item:
                start = item.end()
            elif closing:
                end = start + closing
                start += 1
            else:
                break
            inner = text[start:end]
            end -= len(inner) - len(inner.rstrip())
            start = min(end, start + len(inner) - len(inner.lstrip()))
        if start == end or _NO_SENTENCE.match(text[start:end]):
            return Span(0, len(text))
        return Span(start, end)

    def quotation(self, sentence: str) -> int:
        """Return where a quotation begins that is a sentence and ends this one: He said, "I see." Without one: 0."""
        for found in _BEFORE_QUOTATION.finditer(sentence):
            rest = sentence[found.end() :].rstrip()
            at = self.closing(rest)
            if at == len(rest) - 1 and rest[at - 1] in STOPS + WIDE:
                return found.end()
        return 0

    def asides(self, sentence: str) -> list[int]:
        """Return where a sentence is to be cut from what is in brackets before and behind it: (laughs) I see. [sighs]

        What is before it must be all in small letters or all in capitals, and the sentence begin with a capital.
        """
        cuts: list[int] = []
        before = _ASIDE_BEFORE.match(sentence)
        if before and not self.is_item(sentence):
            is_plain = before[0] in (before[0].lower(), before[0].upper())
            if is_plain and sentence[before.end() : before.end() + 1].isupper():
                cuts.append(before.end())
        behind = _ASIDE_BEHIND.search(sentence)
        if behind:
            cuts.append(behind.end())
        return cuts

    def may_be_inside(self, text: str) -> bool:
        """Return whether a text has a bracket or mark that opens, or may have an item that does not begin it."""
        return not self._pairs.keys().isdisjoint(text) or self._later_item.search(text) is not None

    def is_item(self, sentence: str) -> bool:
        """Return whether a sentence begins as an item of a list does."""
        return self._item.match(sentence) is not None

    def closing(self, text: str) -> int:
        """Return where that closes at the end of a text, and not before, which opens at its start; 0 if nothing does.

        Marks such as a full stop may follow.
        """
        opening = text[:1]
        closing = self._pairs.get(opening)
        if closing is None:
            return 0
        depth = 1
        for at in range(1, len(text)):
            if _is_apostrophe(text, at):
                continue
            if text[at] in closing:
                depth -= 1
                if depth == 0:
                    return 0 if text[at + 1 :].rstrip(_BEHIND) else at
            elif text[at] == opening:
                depth += 1
        return 0


def _is_apostrophe(text: str, at: int) -> bool:
    """Return whether the mark at an offset stands inside a word."""
    return joins(text[at - 1]) and at + 1 < len(text) and joins(text[at + 1])
