"""Terminology tables and text to keep: phrases that a translation must contain, given its source.

A phrase matches only at word boundaries: "Hund" does not match in "Hunde". In scripts without spaces, and for kept text
that stands inside a word of the source, it matches anywhere.
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

CASE = "case"  # third column of a case-sensitive term
_END = r"[^\s<>\"'{}|\\^`.,;:!?)\]]"  # last character of a URL: no punctuation
KEPT = (
    rf"(?:https?|ftp)://[^\s<>\"'{{}}|\\^`]*{_END}",
    rf"(?<![\w.])www\.[^\s<>\"'{{}}|\\^`]*{_END}",
    r"(?<![\w.+\-])\w[\w.+\-]{0,63}@\w[\w\-]{0,62}(?:\.\w[\w\-]{0,62}){1,9}",
    r"\$?\{\{[\w.:\-]{1,60}\}\}|\$?\{[\w.:\-]{0,60}\}",  # {name}, {0}, {{name}}, ${name}
    r"%(?:\(\w{1,60}\)|\d{1,2}\$)?[#0\-+]?\d{0,3}(?:\.\d{1,3})?[sdifgxu](?![^\W\d_])",  # %s, %(name)s, %1$d, %.2f
)
"""Patterns for URLs, e-mail addresses and placeholders"""
FIRST = 3  # length of the prefix by which terms are looked up
NO_SPACES = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]")  # Thai, Lao, Burmese, Khmer


class Term(NamedTuple):
    """One row of a terminology table; rows with the same source are alternatives."""

    source: str
    target: str
    case: bool = False
    """Whether both sides are case-sensitive; if not, the source may have any case and the target may be capitalised"""


@dataclass(frozen=True)
class Phrase:
    """A phrase that a translation must contain."""

    source: str
    targets: tuple[str, ...]
    """Alternative translations; occurrences of any of them count"""
    times: int = 1
    """Minimum number of occurrences in the translation"""
    exactly: bool = False
    """Whether `times` is also the maximum"""
    stands_free: tuple[bool, bool] = (True, True)
    """Whether a word boundary precedes, and follows, every occurrence in the source"""
    inside: int = 0
    """Number of occurrences in the source that are inside longer kept text"""

    def __str__(self) -> str:
        return self.source if self.exactly else f"{self.source} → {' | '.join(self.targets)}"

    def bounds(self, target: str) -> tuple[bool, bool]:
        """Return whether `target` must have a word boundary before it, and after it."""
        return self.stands_free if self.exactly else (joins(target[0]), joins(target[-1]))

    def is_missing(self, translation: str) -> bool:
        """Return whether the phrase occurs too rarely in the translation or, if `exactly`, too often."""
        found = sum(1 for target in self.targets for _ in _occurrences(target, translation, self.bounds(target)))
        return found != self.times if self.exactly else found < self.times


class Terms:
    """A terminology table, and patterns for text to keep."""

    def __init__(self, table: Iterable[Term] = (), keep: Iterable[str] = (), common: bool = True) -> None:
        """Compile the regular expressions `keep`, plus KEPT if `common`, and index the table.

        Raise UserError for an invalid regular expression or a blank term.
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
        """Return phrases for text to keep and, outside it, for terms; the leftmost, then the longest term wins."""
        kept = list(self._kept(text))
        found = list(_kept_phrases(text, kept))
        if self._table:
            folded, ends = _folded(text), [0, *(end for _, end in kept)]
            gaps = zip(ends, [*(start for start, _ in kept), len(text)], strict=True)
            terms = (phrase for gap in gaps for phrase in self._terms(text, folded, *gap))
            found += {phrase.targets: phrase for phrase in terms}.values()
        return found

    def _kept(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield non-overlapping spans to keep, leftmost first; on a tie, the earlier pattern wins."""
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
        """Yield a phrase for each term in text[at:limit]; `folded` is the text in lower case."""
        while at < limit:
            end, terms = next(self._terms_at(text, folded, at, limit), (at + 1, []))
            if terms:
                targets = dict.fromkeys(form for term in terms for form in _forms(term))
                yield Phrase(text[at:end], tuple(targets))
            at = end

    def _terms_at(self, text: str, folded: str, at: int, limit: int) -> Iterator[tuple[int, list[Term]]]:
        """Yield (end, terms) for terms that start at `at` and end by `limit`, longest first."""
        beginnings = (self._lengths.get(folded[at : at + length], []) for length in range(FIRST, 0, -1))
        for end in (at + length for lengths in beginnings for length in lengths if at + length <= limit):
            terms = self._table.get(folded[at:end], [])
            fitting = [term for term in terms if not term.case or text[at:end] == term.source]
            if fitting and _has_bounds(text, at, end, (joins(text[at]), joins(text[end - 1]))):
                yield end, fitting


def read_terms(path: Path) -> list[Term]:
    """Read a tab-separated table of source term, target term and, optionally, `case`; skip blank lines.

    Raise UserError naming file and line of an invalid row.
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
    """Return whether `character` is a word character of a script that separates words with spaces."""
    wide = unicodedata.east_asian_width(character) in "WF" or NO_SPACES.match(character)
    return not wide and (character == "_" or unicodedata.category(character)[0] in "LNM")


def _forms(term: Term) -> list[str]:
    """Return the target term and, unless it is case-sensitive, its capitalised form."""
    return [term.target] if term.case else [term.target, term.target[0].upper() + term.target[1:]]


def _kept_phrases(text: str, kept: list[tuple[int, int]]) -> Iterator[Phrase]:
    """Yield a phrase for each distinct text in the spans `kept`, required exactly as often as `text` contains it."""
    starts = [start for start, _ in kept]
    free: dict[str, tuple[bool, bool]] = {}
    for start, end in kept:
        before, after = free.get(text[start:end], (True, True))
        free[text[start:end]] = (before and _is_free(text, start - 1), after and _is_free(text, end))
    for source, bounds in free.items():
        places = list(_occurrences(source, text, bounds))
        around = (kept[max(0, bisect_right(starts, at) - 1)] for at in places)
        inside = sum(
            start <= at and at + len(source) <= end and end - start > len(source)
            for at, (start, end) in zip(places, around, strict=True)
        )
        yield Phrase(source, (source,), len(places), True, bounds, inside)


def _occurrences(phrase: str, text: str, bounds: tuple[bool, bool]) -> Iterator[int]:
    """Yield the offsets at which `phrase` occurs in a text with the word boundaries that `bounds` requires."""
    at = text.find(phrase)
    while at >= 0:
        if _has_bounds(text, at, at + len(phrase), bounds):
            yield at
        at = text.find(phrase, at + 1)


def _has_bounds(text: str, start: int, end: int, bounds: tuple[bool, bool]) -> bool:
    """Return whether text[start:end] has the word boundaries that `bounds` requires, before and after it."""
    return all(_is_free(text, at) for at, matters in zip((start - 1, end), bounds, strict=True) if matters)


def _is_free(text: str, at: int) -> bool:
    """Return whether there is no word character at an offset, which may be out of range."""
    return not 0 <= at < len(text) or not joins(text[at])


def _folded(text: str) -> str:
    """Return the text in lower case, except characters whose lower case is longer."""
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
