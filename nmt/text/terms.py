"""Terminology tables and text to keep: phrases that a translation must contain, given its source.

A phrase matches only at word boundaries: "Hund" does not match in "Hunde". In scripts without spaces, and for kept text
that stands inside a word of the source, it matches anywhere.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from nmt.system.errors import UserError
from nmt.text.lines import read_lines, stripped
from nmt.text.spans import Span, compiled_formats, find_spans

CASE = "case"  # third column of a case-sensitive term
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
    """Text that a translation must contain, for one occurrence of a term or of text to keep in the source."""

    source: str
    targets: tuple[str, ...]
    """Alternative translations, any of which counts"""
    start: int
    """Offset of the occurrence in the source"""
    kept: bool = False
    """Whether it is text to keep, which a translation must contain exactly as often as the source does"""
    case: bool = True
    """Whether case matters; otherwise a target is capitalised where it begins the translation"""

    def __str__(self) -> str:
        return self.source if self.kept else f"{self.source} → {' | '.join(self.targets)}"

    @property
    def end(self) -> int:
        """Offset of the end of the occurrence in the source."""
        return self.start + len(self.source)


def missing(phrases: Sequence[Phrase], source: str, translation: str) -> list[Phrase]:
    """Return the distinct phrases that a translation contains too rarely or, if kept, too often."""
    found = []
    for (targets, kept), group in groupby(sorted(phrases, key=_alike), _alike):
        same = list(group)
        if kept:  # inside a word of the translation only if inside one of the source
            free = [(_is_free(source, phrase.start - 1), _is_free(source, phrase.end)) for phrase in same]
            bounds = all(before for before, _ in free), all(after for _, after in free)
            is_missing = _count(targets[0], source, bounds) != _count(targets[0], translation, bounds)
        else:
            forms = {*targets, *(() if same[0].case else map(capitalised, targets))}
            times = sum(_count(form, translation, (joins(form[0]), joins(form[-1]))) for form in forms)
            is_missing = times < len(same)
        found += same[:1] * is_missing
    return sorted(found, key=lambda phrase: phrase.start)


def _alike(phrase: Phrase) -> tuple[tuple[str, ...], bool]:
    return phrase.targets, phrase.kept


def _count(phrase: str, text: str, bounds: tuple[bool, bool]) -> int:
    """Count the occurrences of a phrase that have the word boundaries which `bounds` requires, before and after it."""
    places = (match.start() for match in re.finditer(f"(?={re.escape(phrase)})", text))
    return sum(_has_bounds(text, at, at + len(phrase), bounds) for at in places)


class Terms:
    """A terminology table, and patterns for text to keep."""

    def __init__(self, table: Iterable[Term] = (), keep: Iterable[str] = (), common: bool = True) -> None:
        """Compile the regular expressions `keep`, plus FORMATS if `common`, and index the table.

        Raise UserError for an invalid regular expression or a blank term.
        """
        self._own, self._formats = [_compiled(pattern) for pattern in keep], compiled_formats() if common else []
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

    def spans(
        self, text: str, copied: Sequence[Span] = (), walls: Sequence[int] = (), linked: bool = True
    ) -> list[Span]:
        """Return the spans of text to keep, as `find_spans` does."""
        return find_spans(text, self._own, self._formats, copied, walls, linked)

    def phrases(self, text: str, copied: Sequence[Span] = (), walls: Sequence[int] = ()) -> list[Phrase]:
        """Return text to keep and, outside it, terms, in order; the leftmost, then the longest term wins.

        `copied` are more spans to keep; nothing to keep crosses an offset in `walls`.
        """
        spans = self.spans(text, copied, walls)
        found = [Phrase(text[start:end], (text[start:end],), start, kept=True) for start, end in spans]
        if self._table:
            folded, ends = _folded(text), [0, *(phrase.end for phrase in found)]
            gaps = zip(ends, [*(phrase.start for phrase in found), len(text)], strict=True)
            found += [phrase for gap in gaps for phrase in self._terms(text, folded, *gap)]
        return sorted(found, key=lambda phrase: phrase.start)

    def _terms(self, text: str, folded: str, at: int, limit: int) -> Iterator[Phrase]:
        """Yield a phrase for each term in text[at:limit]; `folded` is the text in lower case."""
        while at < limit:
            end, terms = next(self._terms_at(text, folded, at, limit), (at + 1, []))
            if terms:
                targets = tuple(dict.fromkeys(term.target for term in terms))
                yield Phrase(text[at:end], targets, at, case=any(term.case for term in terms))
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
        if not stripped(line):
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


def capitalised(text: str) -> str:
    """Return the text with its first letter in upper case."""
    return text[:1].upper() + text[1:]


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
