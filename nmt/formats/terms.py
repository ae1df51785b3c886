"""Terminology tables and text to keep: phrases that a translation must contain, given its source.

Text to keep is URLs, addresses, placeholders of message formats, names of programs, and what patterns of the user
match. A phrase matches only at word boundaries: "Hund" does not match in "Hunde". In scripts without spaces, and for
kept text that stands inside a word of the source, it matches anywhere.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, pairwise, product
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import NamedTuple

from nmt.formats.program_names import MAY_HAVE_NAMES, NAMES
from nmt.system.errors import UserError
from nmt.text.lines import read_lines, stripped
from nmt.text.scripts import IDENTIFIER, TOUCHING, TOUCHING_RANGES, UNCASED_RANGES, joins

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

# Text of scripts without spaces, and of Korean, may follow a URL directly
_NO_URL = rf"\s<>\"'{{}}|\\^`()«»“”„‘’…\u3000-\u303f\uff00-\uffef{TOUCHING_RANGES}"  # nor brackets and quotes
_GROUP = (  # a balanced bracket, or a placeholder
    rf"\([^{_NO_URL}]*\)|\{{\{{?[^{{}}\s]{{0,60}}\}}\}}?|<(?!(?:a|b|i|u|p|br|em|li|td|div|span|code|strong)>)[a-z][\w-]{{0,40}}>|\[[\w-]{{1,40}}\](?!\()"
)
_IN_URL = rf"[^{_NO_URL}]|'(?=\w)|[|^](?=[^{_NO_URL}])|{_GROUP}"
_END = rf"[^{_NO_URL}.,;:!?*\]]|{_GROUP}"  # no punctuation
_SCHEME = r"(?i:[a-z][a-z\d+]{1,19}://|www\.|(?:mailto|tel|sms|xmpp|magnet|urn):)"
_WORD = rf"(?<=[/.=_\-])[{TOUCHING_RANGES}]++"  # of an unspaced script
_NESTED = r"[^{}]"
for _ in range(3):
    _NESTED = rf"(?:[^{{}}]|\{{{_NESTED}{{0,400}}+\}})"
# Without the space that C allows between sign and letter: 100 % sicher. After a number, % is text too: 50%-a.
_OPTIONS = r"(?:[#0+']|-(?=[\d*]))*(?:\d{1,3}|\*)?(?:\.(?:\d{1,3}|\*)?)?"
_LENGTH = r"(?:hh?|ll?|[qjztLw]|I64|I32)?"
_NO_LETTER = rf"(?![^\W\d_](?<![{UNCASED_RANGES}]))"

_NAME = (  # of a placeholder such as %title; after a letter of printf, only names that are usual: %s stands in "%sread"
    r"(?:(?!ll?[du]|[zhjtq]+[du])[abe-nqrtvwyz][a-z\d_]{2,60}"
    r"|(?:code|colou?r|column|command|comment|content|context|count|country|current|date|day|description|dir|directory"
    r"|domain|object|option|order|owner|page|path|percent|plugin|product|profile|project|server|service|site|size"
    r"|source|state|status|subject|uid|url|user|username)(?:_[a-z\d_]{1,40})?)"
)
_BYTE = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_HEX = r"[\dA-Fa-f]"
_NO_NUMBER_BEFORE = rf"(?<!{IDENTIFIER}|[.,\-])"
_NO_NUMBER_BEHIND = rf"(?!{IDENTIFIER}|-|[.,]\d)"
_THOUSANDS = r"\d{1,3}(?:\.\d{3})+(?!\d|\.\d)"  # 1.000.000
_DATE = r"(?:0?[1-9]|[12]\d|3[01])\.(?:0?[1-9]|1[0-2])\.(?:1\d|20)\d\d(?!\d|\.\d)"  # 30.11.2026
_PICTOGRAPH = r"[\u00a9\u00ae\u2022\u2122\u2190-\u21ff\u2300-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff]"  # © → ✓ 😀

FORMATS = {
    "URL": rf"(?<![A-Za-z\d]){_SCHEME}(?:{_IN_URL})*(?:{_END})",
    "URL beside spaces": rf"(?<![^\s(<\"']){_SCHEME}(?:{_IN_URL}|{_WORD})*(?:{_END}|{_WORD})",
    "domain": rf"(?<!{IDENTIFIER}|[.@/\-])(?:[A-Za-z\d][A-Za-z\d\-]{{0,62}}\.){{1,5}}"
    rf"(?:(?:com|org|net|edu|gov)(?:\.[a-z]{{2}})?|(?:co|ac)\.[a-z]{{2}})(?!{IDENTIFIER}|[-@]|\.[A-Za-z\d])"
    rf"(?:[/:?#](?:{_IN_URL})*(?:{_END}))?",
    "address": rf"(?<!{IDENTIFIER}|[.+\-]){IDENTIFIER}(?:{IDENTIFIER}|[.+\-]|'(?={IDENTIFIER})){{0,63}}"
    rf"@{IDENTIFIER}(?:{IDENTIFIER}|-){{0,62}}(?:\.{IDENTIFIER}(?:{IDENTIFIER}|-){{0,62}}){{1,9}}",
    "version": rf"{_NO_NUMBER_BEFORE}(?!{_THOUSANDS}|{_DATE})v?\d{{1,5}}(?:\.\d{{1,8}}){{2,5}}"
    rf"(?:[-~+.]?(?:alpha|beta|rc|pre|dev|post)[.\d]{{0,8}}(?<!\.))?{_NO_NUMBER_BEHIND}",
    "address of a machine": rf"{_NO_NUMBER_BEFORE}(?:{_BYTE}\.){{3}}{_BYTE}(?:[:/]\d{{1,5}})?{_NO_NUMBER_BEHIND}"
    rf"|(?<!{IDENTIFIER}|:)(?:{_HEX}{{2}}:){{5}}{_HEX}{{2}}(?!{IDENTIFIER}|:)"
    rf"|(?<!{IDENTIFIER})0x{_HEX}{{1,16}}(?!{IDENTIFIER})"
    rf"|(?<!{IDENTIFIER}|-){_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}(?!{IDENTIFIER}|-)",
    "telephone, ISBN": rf"(?<!\+){_NO_NUMBER_BEFORE}(?:"
    r"\+(?=(?:[ .\-/()]{0,2}\d){7})\d{1,3}(?:[ .\-/]?(?:\(\d{1,5}\)|\d{1,12})){1,6}"
    r"|\((?:0\d{1,4}|\d{3})\)[ \-]?(?:\d{2,5}(?:[ \-]\d{2,5}){1,4}|\d{5,10})"
    r"|\d{3}-\d{3}-\d{4}|97[89](?:[ \-]\d{1,7}){3}[ \-]\d"
    rf"){_NO_NUMBER_BEHIND}",
    "hashtag": rf"(?<!{IDENTIFIER}|[#&/])#(?:[^\W\d](?<![{UNCASED_RANGES}]){IDENTIFIER}{{1,60}}|{_HEX}{{6}})"
    rf"(?!{IDENTIFIER}|#)",
    "mustache": r"\$?\{{2,3}[^{}\n]{0,200}\}{2,3}|\{%[^{}\n]{0,200}%\}",  # also of Vue, i18next, Jinja
    "ICU": rf"\{{\s?[\w.]{{1,60}}\s?,\s?(?:plural|select(?:ordinal)?|choice|number|date|time)\b{_NESTED}{{0,400}}+\}}",
    "Ruby, JavaScript": r"[$#%]\{[^{}\n]{1,200}\}",
    "Python, C#": r"\{\$?[\w.:\-\[\]]{0,60}(?:,-?\d{1,3})?(?:![rsa])?(?::(?:[^{}\s]|\{[^{}\s]{0,20}\}){0,30})?\}"
    r"|\{ \w{1,60} \}",
    "printf, named": rf"%(?:\([\w.\-]{{1,60}}\)|<\w{{1,60}}>|\d{{1,2}}\$){_OPTIONS}{_LENGTH}[A-Za-z@]",
    "printf": rf"(?<!\d)(?<!(?<![%$])\d\s)%{_OPTIONS}{_LENGTH}(?:[doxXucsSp@]|[ieEfFgGaAnC]{_NO_LETTER})",
    "percent sign": "%%",
    "date": rf"(?<![\d%])%(?:[EO_^]|-(?=[dmHIMSjekl]))?[A-Za-z]{_NO_LETTER}",  # strftime
    "Qt, KDE": r"(?<![\d%])%(?:L\d\d?|[1-9])%?(?![\d%]|[.,]\d)",
    "Windows, Symfony": rf"(?<!{IDENTIFIER}|%)%[A-Za-z_]{IDENTIFIER}{{0,60}}(?:[.\-]{IDENTIFIER}{{1,60}}){{0,5}}%"
    rf"(?!{IDENTIFIER}|%)",
    "Drupal": rf"(?<![.+\-@/%$#])(?<!{IDENTIFIER})@[A-Za-z][A-Za-z\d_]{{1,60}}(?:[/\-][A-Za-z\d_]{{1,60}}){{0,3}}"
    rf"(?!{IDENTIFIER})",  # also @user, @a/b
    "Drupal, LibreOffice": rf"(?<!{IDENTIFIER}|%)(?<!(?<![%$])\d\s)%(?:[A-Z][A-Z\d_]{{2,60}}|{_NAME})"
    rf"(?!{IDENTIFIER}|%)",
    "Apple": r"%(?:\d{1,2}\$)?#@\w{1,60}@",  # of a .stringsdict; %arg is of a string catalog
    "Boost": r"%\|[^|%\s]{1,20}\|",
    "subtitles": r"\{\\[a-z\d][^{}\n]{0,80}\}|(?:\d{1,3}:)?\d\d:\d\d[.,]\d{3} --> (?:\d{1,3}:)?\d\d:\d\d[.,]\d{3}"
    r"(?: [A-Za-z]\w{0,20}:[\w.,%\-]{0,30}[\w%]){0,9}|<(?:\d{1,3}:)?\d\d:\d\d\.\d{3}>",
    "variable": rf"(?<!{IDENTIFIER}|\$)\$"
    rf"(?:[A-Za-z_]{IDENTIFIER}{{0,60}}(?:\([^()\n]{{1,200}}\))?|\(\w{{1,60}}\))",  # $t(key) is of i18next
    "React": r"</?\d{1,3} ?/?>",
    "ERB, EJS": r"<%[^<>\n]{1,200}%>",
    "PHP": r"<\?=[^<>\n]{1,200}\?>",
    "pictograph": rf"{_PICTOGRAPH}(?:{_PICTOGRAPH}|[\u200d\ufe0e\ufe0f\u20e3\U000e0020-\U000e007f])*+"
    r"|[\d#*]\ufe0f?\u20e3",
    "wiki": r"\[\[[^\[\]\n]{1,200}\]\]",
    "underscores": rf"(?<!{IDENTIFIER})__(?=[^\W_]){IDENTIFIER}{{1,60}}?(?<=[^\W_])__(?!{IDENTIFIER})",
}
"""Patterns of what is kept, by where it comes from"""
PICTOGRAPH = re.compile(FORMATS["pictograph"])
"""Pattern for what is kept, but does no harm where a translation has it for (c) or ->"""
MESSAGE = re.compile(r"\{\s?[\w.]{1,60}\s?,\s?(?:plural|select(?:ordinal)?|choice)\b")
"""Pattern for the beginning of an ICU message with texts inside, which stay in the language of the source"""
_STYLED = re.compile(r"(?<!\d)(?<!(?<!%)\d\s)%(?:[A-KM-Z]\d\d?(?!\d)|[A-Z](?=[A-Z][a-z]))")
"""Pattern for a code of a colour or style, such as %C18, or %B before a capital letter"""
_STYLES = re.compile(r"%[A-Z]\d{0,2}|\$(?:\d\d?|[a-z](?![a-z]))")
"""Pattern for the codes and variables of a text that has such a code; elsewhere, $5 is a price"""
_NUMBERED = re.compile(r"\$[1-9](?!\d|[.,]\d)")
"""Pattern for the variables of a text that has $1"""
_SIGN_RANGES = (
    *(range(0xA2, 0xA6), range(0xB0, 0xB4), range(0xBC, 0xBF), range(0x2032, 0x2034), range(0x2070, 0x209D)),
    *(range(0x20A0, 0x20C1), range(0x2150, 0x2160), range(0x2200, 0x2300)),
)
SIGNS = "§¬¶·¹×÷‰⁄℃℉№" + "".join(map(chr, chain.from_iterable(_SIGN_RANGES)))
"""Signs of currencies, units and formulas, which are the same in every language"""
_MAY_HAVE = (  # any of them: most lines have nothing of this kind; each branch begins with a sign, so that sre is fast
    re.compile(
        r"%|\{|\$|@|\u20e3|<[/?\d]|:\S|w(?=[wW]{2}\.)|W(?=[wW]{2}\.)|\[\[|__"
        r"|\.(?=com|org|net|edu|gov|co\.|ac\.|\d+\.\d)|0(?=x)|-(?=[\dA-Fa-f]{3,4}-)"
        r"|\+(?=\d)|\((?=\d\d)|9(?=7[89][ -])|#(?=\w)"
    ),
    re.compile(_PICTOGRAPH),
)
NOTHING = r"(?!)"
"""Pattern that matches nowhere"""
_LINK = re.compile(r"[^\w\s<>]?")  # what two spans may have between them and be copied as one: %d/%d
# Without ' and ’, which join words to what is kept: d'%s, %s's
_OPENING = re.compile(r"\A[\"“„«»‘‚‹›(\[]")
_CLOSING = re.compile(r"[.,!?…]?[\"“”«»‘‹›)\]]\Z")
_BY_ORDER = re.compile(  # placeholders that a program fills in by their order: %s, {}
    rf"%{_OPTIONS}{_LENGTH}[diouxXeEfFgGaAcCsSpn@]|\{{(?::[^{{}}]*)?\}}"
)


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

    @property
    def span(self) -> Span:
        """The occurrence in the source."""
        return Span(self.start, self.end)


def amounts(signs: str) -> str:
    """Return the pattern for some of SIGNS with the numbers, units and letters beside them: £20, 5 €, 30 °C, m²."""
    if not signs:
        return NOTHING
    before = r"(?<![\d.,])\d[\d.,]*[ \u00a0]?|[A-Za-z]{1,3}(?=[¹²³⁰-ₜ])"
    unit, number = r"[CFK](?!\w)", r"\d(?:[\d.,]*\d)?"
    return rf"(?:{before})[{signs}](?:{unit}|{number})?|[{signs}](?:{unit}|[ \u00a0]?{number})?"


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
        for term in table:
            if not (term.source.strip() and term.target.strip()):
                problem = f"terms: a term is blank: {term.source!r}, {term.target!r}"
                raise UserError(problem, "give each source term a target term, or leave both out")
            source = _folded(term.source)
            self._table[source].append(term)
            lengths[source[0]].add(len(source))
        self._lengths = {first: sorted(found, reverse=True) for first, found in lengths.items()}

    def spans(
        self, text: str, copied: Sequence[Span] = (), walls: Sequence[int] = (), linked: bool = True
    ) -> list[Span]:
        """Return the spans of text to keep, in order: matches of the patterns, and `copied` ones.

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
        if self._formats and any(pattern.search(text) for pattern in _MAY_HAVE):
            patterns += self._formats
            if _STYLED.search(text):
                patterns.append(_STYLES)
            if "$1" in _NUMBERED.findall(text):
                patterns.append(_NUMBERED)
        if self._names and MAY_HAVE_NAMES.search(text):
            patterns += self._names
        return patterns

    def table(self) -> list[str]:
        """Return the patterns that count in every text, for nmt/exchange/html/case.js."""
        return [pattern.pattern for pattern in self._own + self._names + self._formats]

    def phrases(
        self, text: str, copied: Sequence[Span] = (), walls: Sequence[int] = (), ends: Sequence[int] = ()
    ) -> list[Phrase]:
        """Return text to keep and, outside it, terms, in order; the leftmost, then the longest term wins.

        `copied` are more spans to keep; nothing to keep crosses an offset in `walls`, and no term one in `ends`.
        """
        spans = self.spans(text, copied, walls)
        found: list[Phrase] = []
        for span in spans:
            kept = span.text_in(text)
            found.append(Phrase(kept, (kept,), span.start, kept=True))
        if self._table:
            folded = _folded(text)
            for gap in outside(spans, len(text)):
                inner = [end for end in ends if gap.start < end < gap.end]
                for start, limit in pairwise([gap.start, *inner, gap.end]):
                    found += self._terms(text, folded, start, limit)
        return sorted(found, key=attrgetter("start"))

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
    by_order = [copy for copy in copies if _BY_ORDER.fullmatch(copy)]
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
    return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")


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
"""Finds what is kept in every text: URLs, addresses, placeholders and names of programs"""
PLACEHOLDERS = Terms(names=False)
"""Finds the same without names of programs, which people may translate, such as Ctrl+Q"""
