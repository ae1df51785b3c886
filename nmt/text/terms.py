"""Terms of a table and text to keep: what a translation must contain because of its source.

A phrase occurs in a text only at word boundaries: "Hund" does not occur in "Hunde". In scripts without spaces, it
occurs wherever its characters do.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from nmt.system.errors import UserError
from nmt.text.lines import read_lines

CASE = "case"  # the flag of a term whose case matters on both sides
_END = r"[^\s<>\"'{}|\\^`.,;:!?)\]]"  # the last character of a URL, which is no punctuation
KEPT = (
    rf"(?:https?|ftp)://[^\s<>\"'{{}}|\\^`]*{_END}",
    rf"(?<![\w.])www\.[^\s<>\"'{{}}|\\^`]*{_END}",
    r"(?<![\w.+\-])\w[\w.+\-]{0,63}@\w[\w\-]{0,62}(?:\.\w[\w\-]{0,62}){1,9}",
    r"\$?\{\{[\w.:\-]{1,60}\}\}|\$?\{[\w.:\-]{0,60}\}",  # {name}, {0}, {{name}}, ${name}
    r"%(?:\(\w{1,60}\)|\d{1,2}\$)?[#0\-+]?\d{0,3}(?:\.\d{1,3})?[sdifgxu](?![^\W\d_])",  # %s, %(name)s, %1$d, %.2f
)
"""Patterns of URLs, e-mail addresses and placeholders."""
FIRST = 3  # characters by which terms are looked up
NO_SPACES = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]")  # Thai, Lao, Burmese, Khmer


class Term(NamedTuple):
    """A line of a table; lines with the same source are alternatives."""

    source: str
    target: str
    case: bool = False
    """Whether case matters on both sides; else a source may have any case, and the target may begin with a capital"""


@dataclass(frozen=True)
class Phrase:
    """Text that a translation must contain."""

    source: str
    """The text in the source"""
    targets: tuple[str, ...]
    """The alternatives in the translation"""
    times: int = 1
    """How often it must occur"""
    exactly: bool = False
    """Whether it must not occur more often"""
    stands_free: tuple[bool, bool] = (True, True)
    """Whether it is never next to a letter in the source, before and after"""
    inside: int = 0
    """How many of its `times` are inside longer text that is kept"""

    def __str__(self) -> str:
        return self.source if self.exactly else f"{self.source} → {' | '.join(self.targets)}"

    def bounds(self, target: str) -> tuple[bool, bool]:
        """Return whether one of its targets needs a word boundary before and after it."""
        return self.stands_free if self.exactly else (joins(target[0]), joins(target[-1]))

    def is_missing(self, translation: str) -> bool:
        """Does a translation lack it, or not contain it as often as it must?"""
        found = sum(1 for target in self.targets for _ in _places(target, translation, self.bounds(target)))
        return found != self.times if self.exactly else found < self.times


class Terms:
    """A table of terms, and patterns of text to keep."""

    def __init__(self, table: Iterable[Term] = (), keep: Iterable[str] = (), common: bool = True) -> None:
        """Compile regular expressions of text to `keep`, besides the `common` ones (KEPT), and index the table.

        Raises UserError for a wrong regular expression, or a blank term.
        """
        self._patterns = [_compiled(pattern) for pattern in (*keep, *(KEPT if common else ()))]
        self._table: dict[str, list[Term]] = {}
        for term in table:
            if not (term.source.strip() and term.target.strip()):
                raise UserError(
                    f"terms: a term is blank: {term.source!r}, {term.target!r}",
                    "give each source term a target term, or leave both out",
                )
            self._table.setdefault(_folded(term.source), []).append(term)
        lengths: dict[str, set[int]] = {}
        for source in self._table:
            lengths.setdefault(source[:FIRST], set()).add(len(source))
        self._lengths = {beginning: sorted(found, reverse=True) for beginning, found in lengths.items()}

    def phrases(self, text: str) -> list[Phrase]:
        """Find the text to keep, and the longest terms in the rest, from left to right."""
        kept = list(self._kept(text))
        found = list(_as_often(text, kept))
        if self._table:
            folded, ends = _folded(text), [0, *(end for _, end in kept)]
            gaps = zip(ends, [*(start for start, _ in kept), len(text)], strict=True)
            terms = (phrase for gap in gaps for phrase in self._terms(text, folded, *gap))
            found += {phrase.targets: phrase for phrase in terms}.values()
        return found

    def _kept(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield the spans to keep: the leftmost match, of several that of the first pattern."""
        spans = (
            (match.start(), order, match.end())
            for order, pattern in enumerate(self._patterns)
            for match in pattern.finditer(text)
        )
        last = 0
        for start, _, end in sorted(spans):
            if start >= last and (stripped := text[start:end].strip()):
                last = end
                start = text.index(stripped, start)
                yield start, start + len(stripped)

    def _terms(self, text: str, folded: str, at: int, limit: int) -> Iterator[Phrase]:
        """Yield the terms in text[at:limit], given the text `folded`."""
        while at < limit:
            end, terms = next(self._terms_at(text, folded, at, limit), (at + 1, []))
            if terms:
                targets = dict.fromkeys(form for term in terms for form in _forms(term))
                yield Phrase(text[at:end], tuple(targets))
            at = end

    def _terms_at(self, text: str, folded: str, at: int, limit: int) -> Iterator[tuple[int, list[Term]]]:
        """Yield the ends of terms that begin at a character and end by `limit`, the longest first, and the terms."""
        beginnings = (self._lengths.get(folded[at : at + length], []) for length in range(FIRST, 0, -1))
        for end in (at + length for lengths in beginnings for length in lengths if at + length <= limit):
            terms = self._table.get(folded[at:end], [])
            fitting = [term for term in terms if not term.case or text[at:end] == term.source]
            if fitting and _stands(text, at, end, (joins(text[at]), joins(text[end - 1]))):
                yield end, fitting


def read_terms(path: Path) -> list[Term]:
    """Read a table: source term, tab, target term, and perhaps another tab and `case`; blank lines are left out.

    Raises UserError naming the file and the line that is wrong.
    """
    table = []
    for number, line in enumerate(read_lines(path), 1):
        source, *others = (column.strip() for column in line.split("\t"))
        if not line.strip():
            continue
        if not source or not others or not others[0] or others[1:] not in ([], [""], [CASE]):
            raise UserError(
                f"{path}:{number}: is no source term, tab, target term, and perhaps another tab and {CASE!r}: "
                f"{line[:60].strip()!r}",
                "write two or three columns; another target for the same source goes on a line of its own",
            )
        table.append(Term(source, others[0], others[1:] == [CASE]))
    return table


def joins(character: str) -> bool:
    """Is this a word character?"""
    wide = unicodedata.east_asian_width(character) in "WF" or NO_SPACES.match(character)
    return not wide and (character == "_" or unicodedata.category(character)[0] in "LNM")


def _forms(term: Term) -> list[str]:
    """Return the target, and with a capital as at the beginning of a sentence."""
    return [term.target] if term.case else [term.target, term.target[0].upper() + term.target[1:]]


def _as_often(text: str, kept: list[tuple[int, int]]) -> Iterator[Phrase]:
    """Yield what is `kept` of a text, to occur as often as there, also inside longer text."""
    starts = [start for start, _ in kept]
    free: dict[str, tuple[bool, bool]] = {}
    for start, end in kept:
        before, after = free.get(text[start:end], (True, True))
        free[text[start:end]] = (before and _is_free(text, start - 1), after and _is_free(text, end))
    for source, bounds in free.items():
        places = list(_places(source, text, bounds))
        around = (kept[max(0, bisect_right(starts, at) - 1)] for at in places)
        inside = sum(
            start <= at and at + len(source) <= end and end - start > len(source)
            for at, (start, end) in zip(places, around, strict=True)
        )
        yield Phrase(source, (source,), len(places), True, bounds, inside)


def _places(phrase: str, text: str, bounds: tuple[bool, bool]) -> Iterator[int]:
    """Yield where a phrase occurs in a text."""
    at = text.find(phrase)
    while at >= 0:
        if _stands(text, at, at + len(phrase), bounds):
            yield at
        at = text.find(phrase, at + 1)


def _stands(text: str, start: int, end: int, bounds: tuple[bool, bool]) -> bool:
    """Is text[start:end] at word boundaries, as far as `bounds` asks before and after it?"""
    return all(_is_free(text, at) for at, matters in zip((start - 1, end), bounds, strict=True) if matters)


def _is_free(text: str, at: int) -> bool:
    """Is there no word character at a place, which may be outside the text?"""
    return not 0 <= at < len(text) or not joins(text[at])


def _folded(text: str) -> str:
    """Return the text in lower case, with its length unchanged."""
    return "".join(lower if len(lower := character.lower()) == 1 else character for character in text)


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise UserError(
            f"--keep: {pattern!r} is no regular expression: {error}", "escape what has a meaning in one: \\. \\( \\["
        ) from None
    if compiled.search(""):
        raise UserError(
            f"--keep: {pattern!r} matches an empty text", "let it match at least one character, as in [A-Z]+"
        )
    return compiled
