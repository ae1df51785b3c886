"""Strings of programs: what a translation leaves as it is in the source is taken out, and put back.

This is the accelerator, the key that a mark names in a label (_File, &File); spaces and line breaks at the edges and
inside; punctuation at the end; and placeholders and tags, which are compared.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import accumulate, groupby, pairwise
from os.path import commonprefix

from nmt.formats.document import Piece, pieces
from nmt.formats.segments import Segment
from nmt.formats.tags import ESCAPES, TAGS, tokens_of
from nmt.formats.terms import MESSAGE, Span, Terms, in_order
from nmt.formats.tokens import Sign, Token
from nmt.text.scripts import UNSPACED

MARKS = "&_~"  # of accelerators: of Qt and Windows, of GTK, of LibreOffice
SIGNS = "%{}<>"  # of placeholders
_WORD = re.compile(r"[^\W_]+")
GAP = re.compile(r"\s{2,}|[\t\r\v\f\n]")  # white space that a program lays out
_TERM = re.compile(r"[^\W\d_]{2}")  # in the left one of two columns
_BULLET = re.compile(r"[•‣◦▪▫·●○■□–—→►✓✔✗✘★☆*+-]\s+(?=\S)")
_LINE_BREAK = re.compile(r"\n")
_BLANK_LINE = re.compile(r"\n[^\S\n]*\n")
_SENTENCE_END = re.compile(r"\S[)\]}>»”’\"']*[.!?:…][)\]}»”’\"']*\Z")
_SENTENCE_BEGIN = re.compile(r"[^\w\s]*[^\W\d_]")
_END = re.compile(r"(?<!\s)\s*(?:\.{3}|[….:。：։])\Z")
_KEPT = Terms()


class Accelerators:
    """The accelerators of a file: their mark, which is empty if it has none."""

    def __init__(self, texts: Iterable[str], declared: str = "") -> None:
        """Find the mark in the file's strings, unless the file declares it.

        At least half of the strings with this sign before a letter have it as a mark, and one begins with it.
        """
        texts = [*texts]
        self._words = {word.casefold() for text in texts for word in _WORD.findall(text)}
        found = {}
        for self.mark in MARKS:
            signs = [text for text in texts if re.search(rf"{self.mark}(?!\#?\w{{1,31}};)[^\W_]", text)]
            letters = {text: letter for text in signs if (letter := self.split(text)[1])}
            begins = any(text[0] == self.mark and not letter.islower() for text, letter in letters.items())
            if 2 * len(letters) >= len(signs) and (begins or (self.mark == "&" and letters)):
                found[self.mark] = len(letters)
        self.mark = declared or max(found, key=found.__getitem__, default="")

    def split(self, text: str, is_label: bool = False) -> tuple[str, str]:
        """Return a string without its accelerator, and the letter of this; an empty one if it has none, or several.

        An accelerator may be inside a word: E&xit and E_xit, or nu_mbers if the file has this word or `is_label`, the
        translation of a string with an accelerator; mask_apply is none.
        """
        if not self.mark or self.mark not in text:
            return text, ""
        inside = _taken(text)
        marks = [at for at, each in enumerate(text) if each == self.mark and at not in inside]
        found = [match for match in _pattern(self.mark).finditer(text) if not inside.intersection(range(*match.span()))]
        if len(found) != 1 or (self.mark != "&" and len(marks) > 1):
            return text, ""
        match = found[0]
        if (word := match["word"]) and not (is_label or self._is_marked(word)):
            return text, ""
        start, end = match.span()
        if not match["letter"]:
            start = text.index(self.mark, start)
            end = start + 1
        return text[:start] + text[end:], match["letter"] or text[end]

    def _is_marked(self, word: str) -> bool:
        before, _, after = word.partition(self.mark)
        is_usual = after.islower() and (before.istitle() or self.mark == "&")
        return is_usual or (before + after).casefold() in self._words


@cache
def _pattern(mark: str) -> re.Pattern[str]:
    """Return an expression for a mark before or in a word, or for all of "(_F)", where a label has no such letter."""
    sign = f"{mark}(?!\\#?\\w{{1,31}};)(?=[^\\W_])"
    return re.compile(
        rf"\s?\({sign}(?P<letter>\w)\)|(?<![\w{mark}]){sign}"
        rf"|(?<![\w{mark}])(?P<word>[^\W_]+{sign}[^\W_]+)(?![\w(])"
    )


def _taken(text: str) -> set[int]:
    """Return the offsets of placeholders and tags."""
    spans = [*_KEPT.spans(text), *(Span(*tag.span()) for tag in _tags(text))]
    return {at for span in spans for at in range(*span)}


def _kept(text: str) -> Counter[str]:
    """Count the placeholders and tags of a text, and signs of others: each program may have its own."""
    tags = (tag[0] for tag in _tags(text) if not tag["entity"])
    return Counter([*placeholders(text), *tags, *(each for each in text if each in SIGNS)])


def _tags(text: str) -> Iterator[re.Match[str]]:
    return TAGS.finditer(text) if "<" in text or "&" in text else iter(())  # most strings have none


def placeholders(text: str) -> list[str]:
    """Return the placeholders of a text, in order."""
    return [text[slice(*span)] for span in _KEPT.spans(text, linked=False)]


class ProgramString:
    """A string of a program, taken apart into the texts to translate and all around them."""

    def __init__(
        self,
        text: str,
        accelerators: Accelerators,
        punctuation: Callable[[str], str] = str,
        may_wrap: bool = True,
    ) -> None:
        """Take a string apart; `punctuation` converts that of the end to the target language's.

        Unless it `may_wrap`, each line is a text.
        """
        self.text, self._accelerators, self._punctuation = text, accelerators, punctuation
        self.body, self._letter = accelerators.split(text)
        self.mark = accelerators.mark if self._letter else ""
        self._place = len(commonprefix((text, self.body)))  # of the accelerator  # noqa: RUF071
        self._lines = [*_divided(self.body, may_wrap)]
        self.texts = [line for _, line in self._lines if _has_letters(line)]

    @property
    def has_message(self) -> bool:
        """Whether it has a message of ICU, which is copied with the texts inside."""
        return any(MESSAGE.match(each) for each in placeholders(self.body))

    def used(self, translations: Mapping[str, str]) -> Sequence[str]:
        """Return those of `texts` whose translations the string is made of."""
        return self.texts

    def put(self, translations: Mapping[str, str]) -> str:
        """Return the string with translations of `texts`, which `read_string` takes apart; empty if it would break."""
        text = self.laid_out(translations)
        return self.dressed(text) if text.strip() or not self.body.strip() else ""

    def laid_out(self, translations: Mapping[str, str]) -> str:
        """Return the body with translations of its texts as they are; empty if it lacks one."""
        lines = []
        for piece, line in self._lines:
            translation = translations.get(line, line)
            if line.strip() and not translation.strip():
                return ""
            lines.append(piece.lay_out(translation) if piece else translation)
        return "\n".join(lines)

    def dressed(self, text: str) -> str:
        """Return a translation with the edges, the end and the accelerator of the source; empty if it would break."""
        source = self.body.strip()
        if not source:
            return self.text
        core = self._accelerators.split(text, bool(self._letter))[0].strip()
        core = in_order(core, placeholders(source))
        if _kept(core) != _kept(source):
            return ""
        core = self._with_end(core, source)
        if self._letter:
            core = self._with_accelerator(core)
        before, _, after = self.body.partition(source)
        return before + core + after

    def _with_end(self, text: str, source: str) -> str:
        """Return a translation that ends as the source does, or as its language has it, whatever tags are behind."""
        (body, after), (source_body, source_after) = _without_tags_behind(text), _without_tags_behind(source)
        end, other = _END.search(source_body), _END.search(body)
        if end and end.start() == 0 and source_after:  # what ends it stands behind its tags, alone
            return text
        wanted = (end[0], self._punctuation(end[0])) if end else ("",)
        if (other[0] if other else "") in wanted or (other and other.start() == 0):
            return text
        core = body[: other.start() if other else None]
        is_outside = end is not None and _without_tags_behind(source_body[: end.start()])[1] != ""
        return core + after + wanted[-1] if is_outside else core + wanted[-1] + after

    def _with_accelerator(self, text: str) -> str:
        """Mark the same letter of the translation, best at the beginning of a word and in this case; else the first."""
        inside, letter, mark = _taken(text), self._letter.lower(), self.mark
        free = [at for at, each in enumerate(text) if each.isalnum() and at not in inside]
        same = [at for at in free if text[at].lower() == letter]
        share = self._place / max(1, len(self.body))
        inside_word = {at: text[at - 1 : at].isalnum() for at in same}
        distance = {at: 0.0 if inside_word[at] else abs(at / len(text) - share) for at in same}
        best = sorted(same, key=lambda at: (inside_word[at], text[at] != self._letter, distance[at]))
        at = next(iter(best or free), None)
        if at is None or (not same and UNSPACED.match(text[at])):
            end = _END.search(text)
            at = end.start() if end else len(text)
            return f"{text[:at]}({mark}{letter.upper()}){text[at:]}"
        return text[:at] + mark + text[at:]


def _divided(text: str, may_wrap: bool) -> Iterator[tuple[Piece | None, str]]:
    """Yield each paragraph with its text, or None and a line; or the whole text if HTML or a code lays it out."""
    if "\n" not in text or _is_laid_out(text):
        yield None, text
        return
    if not may_wrap:
        lines = text.split("\n")
        yield from ((None, line) for line in (lines if all(map(_is_paired, lines)) else [text]))
        return
    for lines in _sections(text.split("\n")):
        for piece in pieces(lines):
            has_column = _TERM.search(piece.first) and not piece.first.lstrip().startswith("-")
            if piece.text and not has_column:
                yield piece, piece.text
            else:
                yield from ((None, line) for line in piece.lines)


def _sections(lines: Sequence[str]) -> Iterator[list[str]]:
    """Yield lines up to each at whose end a sentence ends: it stays there, whatever is wrapped before and behind."""
    section = list[str]()
    for line, following in pairwise([*lines, ""]):
        section.append(line)
        if _SENTENCE_END.search(line) and _SENTENCE_BEGIN.match(following):
            yield section
            section = []
    if section:
        yield section


def _is_laid_out(text: str) -> bool:
    """Return whether a text has blocks of HTML, or a code or placeholder that goes on over lines."""
    codes = [token for token in tokens_of(text) if token.kind not in ("text", "space")]
    over_lines = any("\n" in token.raw for token in codes) or any("\n" in each for each in placeholders(text))
    return over_lines or any(token.is_block for token in codes)


def _is_paired(line: str) -> bool:
    """Return whether a line closes all tags that it opens, and no others."""
    opened = Counter[str]()
    for token in tokens_of(line):
        opened[token.name] += (token.kind == "open") - (token.kind == "close")
    return not any(opened.values())


def _without_tags_behind(text: str) -> tuple[str, str]:
    """Return a text without the tags and spaces at its end, and these."""
    at = len(text)
    if "<" in text:
        for token in reversed([*tokens_of(text)]):
            if token.kind in ("text", "copy"):
                break
            at -= len(token.raw)
    body = text[:at].rstrip()
    return body, text[len(body) :]


def read_string(text: str, in_columns: bool = True) -> Segment:
    """Take out tags, decode entities, and keep white space that is more than one plain space: a sentence ends there.

    Unless it stands `in_columns`, as programs show it, it ends at a line break; in HTML with blocks, at a blank line.
    """
    tokens = [*_with_bullet(tokens_of(text))]
    ends = GAP if in_columns else _LINE_BREAK
    if any(token.is_block for token in tokens):
        ends = _BLANK_LINE
    return Segment(text, _with_gaps(tokens, ends), ESCAPES)


def _with_bullet(tokens: Iterable[Token]) -> Iterator[Token]:
    """Yield tokens; the mark of a list at the beginning is a code."""
    is_first = True
    for token in tokens:
        bullet = _BULLET.match(token.raw) if is_first and token.kind == "text" else None
        if bullet:
            yield Token("alone", bullet[0])
            yield Token("text", token.raw[bullet.end() :], token.signs[bullet.end() :])
        else:
            yield token
        is_first = is_first and token.kind == "space"


def _with_gaps(tokens: Iterable[Token], ends: re.Pattern[str]) -> Iterator[Token]:
    """Yield tokens; white space that a program lays out parts words, and may end a sentence."""
    for token in tokens:
        if token.kind not in ("text", "space") or not GAP.search(token.raw):
            yield token
            continue
        start = 0
        for copied in [span for span in _KEPT.spans(token.raw) if GAP.search(token.raw[slice(*span)])]:
            yield from _parted(token, start, copied.start, ends)
            yield Token("copy", token.raw[slice(*copied)])
            start = copied.end
        yield from _parted(token, start, len(token.raw), ends)


def _parted(token: Token, start: int, stop: int, ends: re.Pattern[str]) -> Iterator[Token]:
    """Yield the texts, and the white space that is kept, of a stretch of a token's raw form."""
    offsets = accumulate((len(raw) for _, raw in token.signs), initial=0)
    signs = [sign for sign, at in zip(token.signs, offsets, strict=False) if start <= at < stop]
    text = list[Sign]()
    for is_space, group in groupby(signs, lambda sign: sign[1].isspace()):
        run = [*group]
        raw = "".join(each for _, each in run)
        if not (is_space and GAP.search(raw)):
            text += run
            continue
        if text:
            yield Token("text", "".join(each for _, each in text), text)
        yield Token("space", raw, run, parts=True, ends=ends.search(raw) is not None)
        text = []
    if text:
        yield Token("text", "".join(each for _, each in text), text)


def _has_letters(text: str) -> bool:
    inside = _taken(text) if any(map(str.isalpha, text)) else ()
    return any(each.isalpha() and at not in inside for at, each in enumerate(text))


def plain_pairs(source: str, target: str, accelerators: Accelerators) -> Iterator[tuple[str, ...]]:
    """Yield a string and its translation as a model sees them, without accelerators and tags.

    They are divided into paragraphs if they have equally many.
    """
    one = ProgramString(source, accelerators)
    other = ProgramString(accelerators.split(target, one.text != one.body)[0], accelerators)
    sides = [[read_string(text) for text in each.texts] for each in (one, other)]
    pieces = [[piece for segment in side for piece in segment.pieces] for side in sides]
    if len(pieces[0]) != len(pieces[1]):
        pieces = [[segment.text for segment in side] for side in sides]
    if len(pieces[0]) != len(pieces[1]):
        pieces = [[read_string(each.body).text] for each in (one, other)]
    yield from zip(*pieces, strict=True)
