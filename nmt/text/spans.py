"""Spans of a line that a translation copies: URLs, addresses, and placeholders of message formats."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple


class Span(NamedTuple):
    """Characters start to end - 1 of a text."""

    start: int
    end: int


# Scripts written without spaces, in which text may follow a URL directly
_UNSPACED = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u2fff\u3005-\u3007\u3040-\ua4cf\uac00-\ud7af\uf900-\ufaff"
_NO_URL = rf"\s<>\"'{{}}|\\^`()«»“”„‘’…\u3000-\u303f\uff00-\uffef{_UNSPACED}"  # nor brackets and quotes
_GROUP = rf"\([^{_NO_URL}]*\)|\{{\{{?[^{{}}\s]{{0,60}}\}}\}}?"  # a balanced bracket, or a placeholder
_IN_URL = rf"[^{_NO_URL}]|'(?=\w)|{_GROUP}"
_END = rf"[^{_NO_URL}.,;:!?*\]]|{_GROUP}"  # no punctuation
_SCHEME = r"(?i:[a-z][a-z\d+]{1,19}://|www\.|(?:mailto|tel|sms|xmpp|magnet|urn):)"
_WORD = rf"(?<=[/.=_\-])[{_UNSPACED}]++"  # of an unspaced script
_NESTED = r"[^{}]"
for _ in range(3):
    _NESTED = rf"(?:[^{{}}]|\{{{_NESTED}{{0,400}}+\}})"
# Without the space that C allows between sign and letter: 100 % sicher. After a number, % is text too: 50%-a.
_OPTIONS = r"(?:[#0+']|-(?=[\d*]))*(?:\d{1,3}|\*)?(?:\.(?:\d{1,3}|\*)?)?"
_LENGTH = r"(?:hh?|ll?|[qjztLw]|I64|I32)?"
_NO_LETTER = r"(?![^\W\d_])"

FORMATS = {
    "URL": rf"(?<![A-Za-z\d]){_SCHEME}(?:{_IN_URL})*(?:{_END})",
    "URL beside spaces": rf"(?<![^\s(<\"']){_SCHEME}(?:{_IN_URL}|{_WORD})*(?:{_END}|{_WORD})",
    "address": r"(?<![\w.+\-])\w(?:[\w.+\-]|'(?=\w)){0,63}@\w[\w\-]{0,62}(?:\.\w[\w\-]{0,62}){1,9}",
    "mustache": r"\$?\{{2,3}[^{}\n]{0,200}\}{2,3}|\{%[^{}\n]{0,200}%\}",  # also of Vue, i18next, Jinja
    "ICU": rf"\{{\s?[\w.]{{1,60}}\s?,\s?(?:plural|select(?:ordinal)?|choice|number|date|time)\b{_NESTED}{{0,400}}+\}}",
    "Ruby, JavaScript": r"[$#%]\{[^{}\n]{1,200}\}",
    "Python, C#": r"\{\$?[\w.:\-\[\]]{0,60}(?:,-?\d{1,3})?(?:![rsa])?(?::(?:[^{}\s]|\{[^{}\s]{0,20}\}){0,30})?\}"
    r"|\{ \w{1,60} \}",
    "printf, named": rf"%(?:\([\w.\-]{{1,60}}\)|<\w{{1,60}}>|\d{{1,2}}\$){_OPTIONS}{_LENGTH}[A-Za-z@]",
    "printf": rf"(?<!\d)(?<!(?<!%)\d\s)%{_OPTIONS}{_LENGTH}(?:[doxXucsSp@]|[ieEfFgGaAnC]{_NO_LETTER})",
    "percent sign": "%%",
    "date": rf"(?<![\d%])%(?:[EO_^]|-(?=[dmHIMSjekl]))?[A-Za-z]{_NO_LETTER}",  # strftime
    "Qt, KDE": r"(?<![\d%])%(?:L\d\d?|[1-9])%?(?![\d%]|[.,]\d)",
    "Windows, Symfony": r"(?<![\w%])%[A-Za-z_]\w{0,60}(?:[.\-]\w{1,60}){0,5}%(?![\w%])",
    "variable": r"(?<![\w$])\$(?:[A-Za-z_]\w{0,60}(?:\([^()\n]{1,200}\))?|\(\w{1,60}\))",  # $t(key) is of i18next
    "React": r"</?\d{1,3} ?/?>",
}
"""Patterns of what is kept, by where it comes from"""
_MAY_HAVE = re.compile(r"[%{$@]|</?\d|:\S|www\.", re.IGNORECASE)  # any of them: most lines have nothing of this kind
_LINK = re.compile(r"[^\w\s<>]?")  # what two spans may have between them to be one: %d/%d
_BY_ORDER = re.compile(rf"%{_OPTIONS}{_LENGTH}[diouxXeEfFgGaAcCsSpn@]|\{{(?::[^{{}}]*)?\}}")


def compiled_formats() -> list[re.Pattern[str]]:
    """Return the compiled patterns of FORMATS."""
    return [re.compile(pattern) for pattern in FORMATS.values()]


def find_spans(
    text: str,
    own: Sequence[re.Pattern[str]],
    formats: Sequence[re.Pattern[str]],
    copied: Sequence[Span] = (),
    walls: Iterable[int] = (),
    linked: bool = True,
) -> list[Span]:
    """Return the spans to keep, in order: matches of `own` patterns and of `formats`, and `copied` ones.

    Of overlapping matches the leftmost wins, then the longest. If `linked`, matches that touch, or are one sign
    apart, are joined. None crosses an offset in `walls`.
    """
    patterns = [*own, *(formats if _MAY_HAVE.search(text) else ())]
    inner = {*walls, *(edge for span in copied for edge in span)}
    bounds = sorted({0, len(text), *inner})
    found = sorted({*copied, *_matches(text, patterns, bounds)}, key=lambda span: (span.start, -span.end))
    spans: list[Span] = []
    for span in found:
        last = spans[-1] if spans else Span(0, 0)
        if span.start < last.end:
            continue
        between = range(last.end, span.start + 1)
        if linked and spans and _LINK.fullmatch(text, last.end, span.start) and inner.isdisjoint(between):
            spans[-1] = Span(last.start, span.end)
        else:
            spans.append(span)
    return spans


def _matches(text: str, patterns: Sequence[re.Pattern[str]], bounds: Sequence[int]) -> Iterator[Span]:
    for pattern in patterns:
        for start, end in pairwise(bounds):
            for match in pattern.finditer(text, start, end):
                if stripped := match[0].strip():
                    first = text.index(stripped, match.start())
                    yield Span(first, first + len(stripped))


def find_copies(text: str, copies: Iterable[str]) -> list[Span]:
    """Return where any of `copies` stands in a text; of overlapping ones the leftmost, then the longest."""
    longest_first = sorted({*copies}, key=len, reverse=True)
    pattern = re.compile("|".join(map(re.escape, longest_first)))
    return [Span(*match.span()) for match in pattern.finditer(text)] if longest_first else []


def in_order(text: str, copies: Sequence[str]) -> str:
    """Return a text whose placeholders without names or numbers, such as %s, are in the order of `copies`.

    A program fills them in by their order.
    """
    by_order = [copy for copy in copies if _BY_ORDER.search(copy)]
    spans = find_copies(text, by_order)
    if sorted(text[slice(*span)] for span in spans) != sorted(by_order):
        return text
    written, last = "", 0
    for span, copy in zip(spans, by_order, strict=True):
        written, last = written + text[last : span.start] + copy, span.end
    return written + text[last:]
