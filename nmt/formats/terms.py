"""Terminology tables and text to keep: phrases that a translation must contain, given its source.

Text to keep is placeholders and their like, names, and what patterns of the user match. A phrase matches only at word
boundaries: "Hund" does not match in "Hunde". In scripts without spaces, and for kept text that stands inside a word of
the source, it matches anywhere.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise, product
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import NamedTuple

from nmt.formats.names import MAY_HAVE_NAMES, NAMES, NOTHING
from nmt.formats.placeholders import BY_ORDER, FORMATS, MAY_HAVE, NUMBERED, STYLED, STYLES
from nmt.system.errors import UserError
from nmt.text.lines import read_lines, stripped
from nmt.text.scripts import TOUCHING, joins

CASE = "case"  # third column of a case-sensitive term


class Span(NamedTuple):
    """Characters start to end - 1 of a text."""

    start: int
    end: int

    def text_in(self, text: str) -> str:
        """Return these characters of a text."""
        return text[self.start : self.end]


Edit = tuple[Span, str]
"""Text for a span of an output; an empty span inserts it"""

_LINK = re.compile(r"[^\w\s<>]?")  # what two spans may have between them and be copied as one: %d/%d
_DIGIT = re.compile(r"\d")
_SEPARATOR = re.compile(r"(?<=\d)[., '’\u00a0\u202f](?=\d{3}(?!\d))")  # of thousands
# Without ' and ’, which join words to what is kept: d'%s, %s's
_OPENING = re.compile(r"\A[\"“„«»‘‚‹›(\[]")
_CLOSING = re.compile(r"[.,!?…]?[\"“”«»‘‹›)\]]\Z|[.!?…]\Z")


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
    term: str = ""
    """The translation that a table has for text to keep: it is copied, and then replaced"""

    def __str__(self) -> str:
        return self.source if self.kept else f"{self.source} → {' | '.join(self.targets)}"

    @property
    def end(self) -> int:
        """Offset of the end of the occurrence in the source."""
        return self.start + len(self.source)

    @property
    def span(self) -> Span:
        """The occurrence in the source."""
        return Span(self.start, self.end)


def in_translation(phrases: Iterable[Phrase]) -> list[Phrase]:
    """Return phrases as a translation has them: text to keep for which there is a term is a term then."""
    return [replace(each, targets=(each.term,), kept=False, term="") if each.term else each for each in phrases]


def beyond(placed: Sequence[Phrase], phrases: Sequence[Phrase]) -> list[Phrase]:
    """Return a line's phrases without those to keep that its given beginning of a translation has: `placed`."""
    known = Counter(phrase.source for phrase in placed if phrase.kept)
    found: list[Phrase] = []
    for phrase in phrases:
        if phrase.kept and known[phrase.source] > 0:
            known[phrase.source] -= 1
        else:
            found.append(phrase)
    return found


def missing(phrases: Sequence[Phrase], source: str, translation: str) -> list[Phrase]:
    """Return the distinct phrases that a translation contains too rarely or, if kept, too often."""
    alike = attrgetter("targets", "kept")  # the same for all occurrences of a term
    found: list[Phrase] = []
    for (_, is_kept), group in groupby(sorted(phrases, key=alike), alike):
        same = list(group)
        if is_kept:
            is_missing = _differs(same, source, translation)
        else:
            is_missing = _count_targets(same[0], translation) < len(same)
        if is_missing:
            found.append(same[0])
    return sorted(found, key=attrgetter("start"))


def _differs(same: Sequence[Phrase], source: str, translation: str) -> bool:
    """Return whether a translation contains text to keep more or less often than its source, given its occurrences.

    Inside a word of the translation, it counts only if it is inside one of the source.
    """
    kept = same[0].targets[0]
    if kept.isdecimal():  # a translation may have it in digits of another script, or its thousands parted
        translation = _SEPARATOR.sub("", _DIGIT.sub(lambda digit: str(int(digit[0])), translation))
    is_free_before = all(_is_free(source, phrase.start - 1) for phrase in same)
    is_free_behind = all(_is_free(source, phrase.end) for phrase in same)
    bounds = (is_free_before, is_free_behind)
    return _count(kept, source, bounds) != _count(kept, translation, bounds)


def _count_targets(term: Phrase, text: str) -> int:
    """Count the occurrences of a term's translations."""
    forms = {*term.targets}
    if not term.case:
        forms.update(map(capitalised, term.targets))
    return sum(_count(form, text, _own_bounds(form)) for form in forms)


def _count(phrase: str, text: str, bounds: tuple[bool, bool]) -> int:
    """Count the occurrences of a phrase that have the word boundaries which `bounds` requires, before and after it."""
    count = 0
    for found in re.finditer(f"(?={re.escape(phrase)})", text):
        start = found.start()
        count += _has_bounds(text, start, start + len(phrase), bounds)
    return count


class Terms:
    """A terminology table, and patterns for text to keep."""

    def __init__(
        self, table: Iterable[Term] = (), keep: Iterable[str] = (), common: bool = True, names: bool = True
    ) -> None:
        """Compile the regular expressions `keep`, plus FORMATS if `common`, and then NAMES if `names`; index the table.

        Raise UserError for an invalid regular expression or a blank term.
        """
        self._own = [*map(_compiled, keep)]
        self._formats: list[re.Pattern[str]] = []
        self._names: list[re.Pattern[str]] = []
        if common:
            self._formats += map(re.compile, FORMATS.values())
            if names:
                self._names += map(re.compile, NAMES.values())
        self._table = defaultdict[str, list[Term]](list)
        lengths = defaultdict[str, set[int]](set)
        table = list(table)
        for term in table:
            if not (term.source.strip() and term.target.strip()):
                problem = f"terms: a term is blank: {term.source!r}, {term.target!r}"
                raise UserError(problem, "give each source term a target term, or leave both out")
            source = _folded(term.source)
            self._table[source].append(term)
            lengths[source[0]].add(len(source))
        self._lengths = {first: sorted(found, reverse=True) for first, found in lengths.items()}
        self._has_copies = any(self.spans(term.source) for term in table)
        """Whether a term has text inside that would be kept"""

    def spans(
        self,
        text: str,
        copied: Sequence[Span] = (),
        walls: Sequence[int] = (),
        linked: bool = True,
        terms: Iterable[Span] = (),
    ) -> list[Span]:
        """Return the spans of text to keep, in order: matches of the patterns, and `copied` ones, outside of `terms`.

        Of overlapping ones the leftmost wins, then the longest. If `linked`, those that touch, or are one sign apart,
        are joined. None crosses an offset in `walls`.
        """
        inner = set(walls).union(*copied)  # offsets that no match crosses
        stretches = pairwise(sorted({0, len(text), *inner}))
        found = {*copied}
        for pattern, stretch in product(self._patterns_for(text), stretches):
            for match in pattern.finditer(text, *stretch):
                inside = match[0].strip()
                if inside:
                    first = text.index(inside, match.start())
                    found.add(Span(first, first + len(inside)))
        taken = offsets_in(terms)
        if taken:
            found = {span for span in found if taken.isdisjoint(range(*span))}
        spans: list[Span] = []
        last = Span(0, 0)
        for span in sorted(found, key=lambda span: (span.start, -span.end)):
            if span.start < last.end:
                continue
            between = range(last.end, span.start + 1)
            if linked and spans and _LINK.fullmatch(text, last.end, span.start) and inner.isdisjoint(between):
                last = Span(spans.pop().start, span.end)
            else:
                last = span
            spans.append(last)
        return spans

    def _patterns_for(self, text: str) -> list[re.Pattern[str]]:
        """Return the patterns that may match in a text."""
        patterns = [*self._own]
        if self._formats and any(pattern.search(text) for pattern in MAY_HAVE):
            patterns += self._formats
            if STYLED.search(text):
                patterns.append(STYLES)
            if "$1" in NUMBERED.findall(text):
                patterns.append(NUMBERED)
        if self._names and MAY_HAVE_NAMES.search(text):
            patterns += self._names
        return patterns

    def table(self) -> list[str]:
        """Return the patterns that count in every text, for nmt/exchange/html/case.js."""
        return [pattern.pattern for pattern in self._own + self._names + self._formats]

    def phrases(
        self, text: str, copied: Sequence[Span] = (), walls: Sequence[int] = (), ends: Sequence[int] = ()
    ) -> list[Phrase]:
        """Return text to keep and, outside it or around it, terms, in order; the leftmost, then the longest term wins.

        `copied` are more spans to keep; nothing to keep crosses an offset in `walls`, and no term one in `ends`.
        """
        found: list[Phrase] = []
        if self._has_copies:
            found += self._over_copies(text, copied, walls, ends)
        around = [phrase.span for phrase in found]
        spans = self.spans(text, copied, walls, terms=around)
        for span in spans:
            kept = span.text_in(text)
            found.append(Phrase(kept, (kept,), span.start, kept=True))
        if self._table:
            folded = _folded(text)
            for gap in outside(sorted([*spans, *around]), len(text)):
                inner = [end for end in ends if gap.start < end < gap.end]
                for start, limit in pairwise([gap.start, *inner, gap.end]):
                    found += self._terms(text, folded, start, limit)
        return sorted(found, key=attrgetter("start"))

    def _over_copies(
        self, text: str, copied: Sequence[Span], walls: Sequence[int], ends: Sequence[int]
    ) -> Iterator[Phrase]:
        """Yield the terms that have text to keep inside, whole: Ctrl+Q, C++ compiler. What the user keeps stays.

        A term for nothing but text to keep is that text until a translation has it.
        """
        copies = self.spans(text, copied, walls, linked=False)
        fixed = [*copied]
        for pattern in self._own:
            fixed += [Span(*match.span()) for match in pattern.finditer(text)]
        stays = offsets_in(fixed)
        folded = _folded(text)
        for start, limit in pairwise(sorted({0, *ends, len(text)})):
            for phrase in self._terms(text, folded, start, limit):
                own = set(range(*phrase.span))
                inside = [span for span in copies if not own.isdisjoint(range(*span))]
                is_around = inside and own.issuperset(offsets_in(inside)) and own.isdisjoint(stays)
                if is_around and phrase.span in inside:
                    yield replace(phrase, targets=(phrase.source,), kept=True, term=phrase.targets[0])
                elif is_around:
                    yield phrase

    def _terms(self, text: str, folded: str, at: int, limit: int) -> Iterator[Phrase]:
        """Yield the longest term at each offset in text[at:limit], outside those before; `folded` is in lower case."""
        while at < limit:
            phrase = self._term_at(at, text, folded, limit)
            if phrase:
                yield phrase
                at = phrase.end
            else:
                at += 1

    def _term_at(self, start: int, text: str, folded: str, limit: int) -> Phrase | None:
        """Return the longest term that begins at an offset of text[:limit]; None if none does."""
        for length in self._lengths.get(folded[start], ()):
            end = start + length
            if end > limit:
                continue
            source = text[start:end]
            terms = self._table.get(folded[start:end], ())
            fitting = [term for term in terms if not term.case or source == term.source]
            if fitting and _has_bounds(text, start, end, _own_bounds(source)):
                targets = dict.fromkeys(term.target for term in fitting)
                return Phrase(source, tuple(targets), start, case=any(term.case for term in fitting))
        return None


def read_terms(path: Path) -> list[Term]:
    """Read a tab-separated table of source term, target term and, optionally, `case`; skip blank lines.

    Raise UserError naming file and line of an invalid row.
    """
    table = []
    for number, line in enumerate(read_lines(path), 1):
        if not stripped(line):
            continue
        columns = [column.strip() for column in line.split("\t")]
        source, target, *others = [*columns, ""]
        if not (source and target) or others not in ([""], ["", ""], [CASE, ""]):
            shown = line[:60].strip()
            problem = f"is no source term, tab, target term, and perhaps another tab and {CASE!r}: {shown!r}"
            hint = "write two or three columns; another target for the same source goes on a line of its own"
            raise UserError(f"{path}:{number}: {problem}", hint)
        table.append(Term(source, target, CASE in others))
    return table


def find_copies(text: str, copies: Iterable[str]) -> list[Span]:
    """Return where any of `copies` stands in a text; of overlapping ones the leftmost, then the longest."""
    return [Span(*match.span()) for match in _any_of(copies).finditer(text)]


def in_order(text: str, copies: Sequence[str]) -> str:
    """Return a text whose placeholders without names or numbers, such as %s, are in the order of `copies`.

    A program fills them in by their order.
    """
    by_order = [copy for copy in copies if BY_ORDER.fullmatch(copy)]
    pattern = _any_of(by_order)
    if sorted(pattern.findall(text)) != sorted(by_order):
        return text
    rest = iter(by_order)
    return pattern.sub(lambda _: next(rest), text)


def spaced_like(text: str, source: str, kept: Sequence[Phrase]) -> str:
    """Return a translation in which what is kept touches words, or is apart from them, as in its source.

    With {n} kept, "{n}km" becomes "{n} km" if the source has "{n} km". Other white space than plain
    spaces, such as U+00A0, is as it is there.
    """
    by_source = defaultdict[str, list[Phrase]](list)
    for phrase in reversed(kept):
        by_source[phrase.source].append(phrase)
    edits: dict[Span, str] = {}  # two that are kept may have a gap in common
    for span in find_copies(text, by_source):
        same = by_source[span.text_in(text)]
        if not same:
            continue
        phrase = same.pop()
        for side in (0, 1):
            gap, has_word = _gap(text, span[side], side)
            source_gap, source_has_word = _gap(source, phrase.span[side], side)
            space = gap.text_in(text)
            wanted = source_gap.text_in(source)
            is_joined = space != "" and wanted == "" and has_word and source_has_word
            is_special = space != "" and wanted.strip(" ") != ""
            is_apart = space == "" and wanted != "" and has_word
            if is_joined or is_special or is_apart:
                edits[gap] = wanted
    return written(text, [*edits.items()])


def _gap(text: str, at: int, side: int) -> tuple[Span, bool]:
    """Return the white space before an offset (side 0) or behind it (side 1), and whether a word is beyond it.

    The word may be in quotation marks or brackets. Korean does not count as a word: its endings follow directly what
    they belong to.
    """
    if side:
        gap = Span(at, len(text) - len(text[at:].lstrip()))
        beyond = _OPENING.sub("", text[gap.end : gap.end + 2])[:1]
    else:
        gap = Span(len(text[:at].rstrip()), at)
        beyond = _CLOSING.sub("", text[: gap.start][-3:])[-1:]
    return gap, beyond != "" and joins(beyond) and not TOUCHING.match(beyond)


def written(text: str, edits: Sequence[Edit]) -> str:
    """Return the text with all edits."""
    found = ""
    last = 0
    for span, new in sorted(edits, key=itemgetter(0)):
        found += text[last : span.start] + new
        last = span.end
    if not text:
        return found.strip()
    return found + text[last:]


def outside(spans: Iterable[Span], length: int) -> Iterator[Span]:
    """Yield what is before, between and behind spans, which are in order, in a text of this length."""
    start = 0
    for span in spans:
        yield Span(start, span.start)
        start = span.end
    yield Span(start, length)


def offsets_in(spans: Iterable[Span]) -> set[int]:
    """Return the offsets of all characters in spans."""
    offsets: set[int] = set()
    for start, end in spans:
        offsets.update(range(start, end))
    return offsets


def _any_of(texts: Iterable[str]) -> re.Pattern[str]:
    """Return an expression that matches the longest of `texts`; it matches nothing if there are none."""
    longest_first = sorted({*texts}, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or NOTHING)


def capitalised(text: str) -> str:
    """Return the text with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def _has_bounds(text: str, start: int, end: int, bounds: tuple[bool, bool]) -> bool:
    """Return whether text[start:end] has the word boundaries that `bounds` requires, before and after it."""
    before, behind = bounds
    if before and not _is_free(text, start - 1):
        return False
    return not behind or _is_free(text, end)


def _own_bounds(text: str) -> tuple[bool, bool]:
    """Return which boundaries a text must have to be no part of a word: those beside its word characters."""
    return joins(text[0]), joins(text[-1])


def _is_free(text: str, at: int) -> bool:
    """Return whether there is no word character at an offset, which may be out of range."""
    return not 0 <= at < len(text) or not joins(text[at])


def _folded(text: str) -> str:
    """Return the text in lower case, except characters whose lower case is longer, so that offsets stay the same."""
    folded = ""
    for character in text:
        lower = character.lower()
        folded += lower if len(lower) == 1 else character
    return folded


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        hint = "escape what has a meaning in one: \\. \\( \\["
        raise UserError(f"--keep: {pattern!r} is no regular expression: {error}", hint) from None
    if compiled.search(""):
        hint = "let it match at least one character, as in [A-Z]+"
        raise UserError(f"--keep: {pattern!r} matches an empty text", hint)
    return compiled


COPIED = Terms()
"""Finds what is kept in every text: URLs, addresses, placeholders, names"""
PLACEHOLDERS = Terms(names=False)
"""Finds the same without names, which people may translate, such as Ctrl+Q"""
