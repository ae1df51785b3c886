"""Strings of programs: what a translation leaves as it is in the source is taken out, and put back.

This is the accelerator, the key that a mark names in a label (_File, &File); spaces and line breaks at the edges and
inside; punctuation at the end; and placeholders and tags, which are compared.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby, pairwise
from os.path import commonprefix

from nmt.formats.document import Piece, pieces
from nmt.formats.placeholders import MESSAGE
from nmt.formats.segments import Segment
from nmt.formats.sentences import CLOSING, FULL_STOPS, without_exclamation
from nmt.formats.tags import ESCAPES, TAGS, tokens_of
from nmt.formats.terms import COPIED, PLACEHOLDERS, Span, in_order, offsets_in
from nmt.formats.tokens import Sign, Token
from nmt.text.scripts import TOUCHING, is_wide

MARKS = "&_~"  # of accelerators: of Qt and Windows, of GTK, of LibreOffice
SIGNS = re.compile(r"[%{}<>]")  # of placeholders
_WORD = re.compile(r"[^\W_]+")
GAP = re.compile(r"\s{2,}|[\t\r\v\f\n]")  # white space that lays a text out, beside single spaces
_TERM = re.compile(r"[^\W\d_]{2}")  # in the left one of two columns
_BULLET = re.compile(r"[•‣◦▪▫·●○■□–—→►✓✔✗✘★☆*+-]\s+(?=\S)")
_BETWEEN_KINDS = re.compile(r"(?<=\));;(?=\S)")
_WORDS_ALONE = re.compile(r"(?=[^\W\d_])[^\W_]+(?:[,;:.!?)»”]*[ ][(«„“]?[^\W_]+|[-/’.][^\W_]+)*(?:\.{3}|[.:…!?)»”]+)?")
"""Words with single spaces and usual punctuation, as two of three strings are: there is nothing to take out"""
_BARE_NEWLINE = re.compile(r"(?<!\r)\n")
_LINE_BREAK = re.compile(r"\n")
_BLANK_LINE = re.compile(r"\n[^\S\n]*\n")
_SENTENCE_END = re.compile(r"\S[)\]}>»”’\"']*[.!?:…][)\]}»”’\"']*\Z")
_SENTENCE_BEGIN = re.compile(r"[^\w\s]*[^\W\d_]")
_COLONS = ":：՝៖፦"  # of European scripts, Chinese, Armenian, Khmer and Ethiopic
_END = re.compile(rf"(?<!\s)\s*(?:\.{{3}}|[…⋯]+|・{{3}}|。{{3}}|[{FULL_STOPS}{_COLONS}])\Z")
_END_INSIDE = re.compile(rf"[{FULL_STOPS}…!?！？]\s*[{re.escape(CLOSING)}]+\Z")
"""The end of a text whose last sentence ends inside quotation marks or brackets"""


class Accelerators:
    """The accelerators of a file: their mark, which is empty if it has none."""

    def __init__(self, texts: Iterable[str], declared: str = "") -> None:
        """Find the mark in the file's strings, unless the file declares it."""
        texts = [*texts]
        self._words: set[str] = set()
        for text in texts:
            self._words.update(map(str.casefold, _WORD.findall(text)))
        self.mark = declared or self._most_used(texts)

    def _most_used(self, texts: Sequence[str]) -> str:
        """Return the mark that most strings have; empty if there is none.

        At least half of the strings with this sign before a letter have it as a mark, and one begins with it, unless
        it is &.
        """
        found: dict[str, int] = {}
        for mark in MARKS:
            self.mark = mark  # which `split` looks for
            candidates = [text for text in texts if re.search(rf"{mark}(?!\#?\w{{1,31}};)[^\W_]", text)]
            marked: set[str] = set()
            begins = mark == "&"
            for text in candidates:
                _, letter = self.split(text)
                if letter:
                    marked.add(text)
                    begins |= text[0] == mark and not letter.islower()
            if marked and begins and 2 * len(marked) >= len(candidates):
                found[mark] = len(marked)
        return max(found, key=found.__getitem__, default="")

    def split(self, text: str, is_label: bool = False) -> tuple[str, str]:
        """Return a string without its accelerator, and the letter of this; an empty one if it has none, or several.

        An accelerator may be inside a word: E&xit and E_xit, or nu_mbers if the file has this word or `is_label`, the
        translation of a string with an accelerator; mask_apply is none.
        """
        if not self.mark or self.mark not in text:
            return text, ""
        inside = _taken(text)
        marks = [at for at, each in enumerate(text) if each == self.mark and at not in inside]
        found = [match for match in _pattern(self.mark).finditer(text) if inside.isdisjoint(range(*match.span()))]
        if len(found) != 1 or (self.mark != "&" and len(marks) > 1):
            return text, ""
        match = found[0]
        word = match["word"]
        if word and not (is_label or self._is_marked(word)):
            return text, ""
        if match["letter"]:
            return text[: match.start()] + text[match.end() :], match["letter"]
        at = text.index(self.mark, match.start())
        return text[:at] + text[at + 1 :], text[at + 1]

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
    tags = [Span(*tag.span()) for tag in _tags(text)]
    return offsets_in([*PLACEHOLDERS.spans(text), *tags])


def _kept(text: str) -> Counter[str]:
    """Count what a translation must have as often as its source.

    That is placeholders and tags, and signs of unknown placeholders, since each program may have its own.
    """
    tags = [Span(*tag.span()) for tag in _tags(text) if not tag["entity"]]
    in_brackets = [tag for tag in tags if text[tag.start] == "["]  # no URL goes on behind them: [url=https://x.org]the
    found = Counter(span.text_in(text) for span in PLACEHOLDERS.spans(text, in_brackets, linked=False))
    found.update(tag.text_in(text) for tag in tags if text[tag.start] != "[")
    found.update(SIGNS.findall(text))
    return found


def _tags(text: str) -> Iterator[re.Match[str]]:
    if "<" in text or "&" in text or "[" in text or "**" in text:  # most strings have none
        yield from TAGS.finditer(text)


def placeholders(text: str) -> list[str]:
    """Return the placeholders of a text, in order."""
    return [span.text_in(text) for span in PLACEHOLDERS.spans(text, linked=False)]


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
        self.text = text
        self._accelerators = accelerators
        self._punctuation = punctuation
        self.body, self._letter = accelerators.split(text)
        self._newline = "\n"
        if "\r\n" in text and not _BARE_NEWLINE.search(text):  # all its lines end as on Windows
            self._newline = "\r\n"
            self.body = self.body.replace("\r\n", "\n")
        self.mark = accelerators.mark if self._letter else ""
        self._place = len(commonprefix((text, self.body)))  # of the accelerator  # noqa: RUF071
        self._lines = [*_divided(self.body, may_wrap)]
        self.texts = [line for _, line in self._lines if _has_letters(line)]

    @property
    def has_message(self) -> bool:
        """Whether it has a message of ICU, which is copied with the texts inside."""
        tags = offsets_in(Span(*tag.span()) for tag in _tags(self.body))  # some have such a message as an attribute
        spans = PLACEHOLDERS.spans(self.body, linked=False)
        return any(MESSAGE.match(span.text_in(self.body)) and span.start not in tags for span in spans)

    def used(self, translations: Mapping[str, str]) -> Sequence[str]:
        """Return those of `texts` whose translations the string is made of."""
        return self.texts

    def put(self, translations: Mapping[str, str]) -> str:
        """Return the string with translations of `texts`, which `read_string` takes apart; empty if it would break."""
        text = self.laid_out(translations)
        if self.body.strip() and not text.strip():
            return ""
        return self.dressed(text)

    def laid_out(self, translations: Mapping[str, str]) -> str:
        """Return the body with translations of its texts as they are; empty if it lacks one."""
        lines = []
        for piece, line in self._lines:
            translation = translations.get(line, line)
            if line.strip() and not translation.strip():
                return ""
            if piece:
                translation = piece.lay_out(translation)
            lines.append(translation)
        return "\n".join(lines)

    def dressed(self, text: str) -> str:
        """Return a translation with the edges, the end and the accelerator of the source; empty if it would break."""
        source = self.body.strip()
        if not source:
            return self.text
        bare, _ = self._accelerators.split(text, bool(self._letter))
        core = in_order(bare.strip(), placeholders(source))
        if _kept(core) != _kept(source):
            return ""
        core = self._with_end(core, source)
        if self._letter:
            core = self._with_accelerator(core)
        before, _, after = self.body.partition(source)
        whole = before + core + after
        if self._newline != "\n":
            whole = whole.replace("\r\n", "\n").replace("\n", self._newline)
        return whole

    def _with_end(self, text: str, source: str) -> str:
        """Return a translation that ends as the source does, or as its language has it, whatever tags are behind."""
        body, tags = _without_tags_behind(text)
        source_body, source_tags = _without_tags_behind(source)
        core, own = _without_end(body)
        source_core, end = _without_end(source_body)
        if end and not own:
            core = without_exclamation(source, core)
            if _plain_end(end) == "." and core.endswith(("!", "?", "！", "？")):
                return text
        if end and source_tags and not source_core:  # the end alone stands before the tags
            return text
        plain_end = _plain_end(end)
        wanted = self._punctuation(plain_end).rstrip() if end else ""
        if wanted == plain_end and core and is_wide(core[-1]) and is_wide(end[-1:] or "."):
            wanted = end
        is_of_script = _plain_end(own) == plain_end and not own.strip().isascii()
        if own in (end, wanted) or is_of_script or (own and not core):
            return text
        if not own and wanted and body.endswith(wanted.strip()):
            return text
        without_end, with_end = (source_core, core) if own else (core, source_core)
        is_quoted = _END_INSIDE.search(without_end) and not _END_INSIDE.search(with_end)
        if is_quoted and not (end and own):
            return text
        is_outside = end != "" and _without_tags_behind(source_core)[1] != ""
        if is_outside:
            return core + tags + wanted
        return core + wanted + tags

    def _with_accelerator(self, text: str) -> str:
        """Mark the same letter of the translation, best at the beginning of a word and in this case; else the first.

        Names such as config.ini have no mark if there are other words, nor has a shortcut behind a tab.
        """
        inside = _taken(text)
        names = offsets_in(COPIED.spans(text))
        letter = self._letter.lower()
        label, tab, shortcut = text.partition("\t")
        free = [at for at, each in enumerate(label) if each.isalnum() and at not in inside]
        free = [at for at in free if at not in names] or free
        same = [at for at in free if text[at].lower() == letter]
        if same:
            at = min(same, key=lambda at: self._rank(at, text))
        elif free and not TOUCHING.match(text[free[0]]):
            at = free[0]
        else:
            core, end = _without_end(label)
            return f"{core}({self.mark}{letter.upper()}){end}{tab}{shortcut}"
        return text[:at] + self.mark + text[at:]

    def _rank(self, at: int, text: str) -> tuple[bool, bool, float]:
        """Return a key to sort offsets of a translation by, the best for the accelerator first.

        Best is the beginning of a word, then the same case, then the place that the source has it at, as a share.
        """
        is_inside_word = text[at - 1 : at].isalnum()
        share = self._place / max(1, len(self.body))
        distance = 0.0 if is_inside_word else abs(at / len(text) - share)
        return is_inside_word, text[at] != self._letter, distance


def _divided(text: str, may_wrap: bool) -> Iterator[tuple[Piece | None, str]]:
    """Yield each paragraph with its text, or None and a line; or the whole text if HTML or a code lays it out."""
    if "\n" not in text or _is_laid_out(text):
        yield None, text
        return
    lines = text.split("\n")
    if not may_wrap:
        if not all(map(_is_paired, lines)):
            lines = [text]
        for line in lines:
            yield None, line
        return
    for section in _sections(lines):
        for piece in pieces(section):
            has_column = _TERM.search(piece.first) and not piece.first.lstrip().startswith("-")
            if piece.text and not has_column:
                yield piece, piece.text
                continue
            for line in piece.lines:
                yield None, line


def _sections(lines: Sequence[str]) -> Iterator[list[str]]:
    """Yield lines up to each at whose end a sentence ends: it stays there, whatever is wrapped before and behind."""
    section: list[str] = []
    for line, following in pairwise([*lines, ""]):
        section.append(line)
        if _SENTENCE_END.search(line) and _SENTENCE_BEGIN.match(following):
            yield section
            section = []
    if section:
        yield section


def _is_laid_out(text: str) -> bool:
    """Return whether a text has blocks of HTML, or a code, pair of BBCode or placeholder that goes on over lines."""
    opened = Counter[str]()  # tags of BBCode, which are tags only where both are
    for token in tokens_of(text):
        is_code = token.kind not in ("text", "space")
        if is_code and (token.is_block or "\n" in token.raw):
            return True
        if token.raw.startswith("["):
            opened[token.name] += (token.kind == "open") - (token.kind == "close")
        elif "\n" in token.raw and any(opened.values()):
            return True
    return any("\n" in each for each in placeholders(text))


def _is_paired(line: str) -> bool:
    """Return whether a line closes all tags that it opens, and no others."""
    opened = Counter[str]()
    for token in tokens_of(line):
        opened[token.name] += (token.kind == "open") - (token.kind == "close")
    return not any(opened.values())


def _without_tags_behind(text: str) -> tuple[str, str]:
    """Return a text without the tags and spaces at its end, and these."""
    at = len(text)
    if "<" in text or "[" in text or "**" in text:
        for token in reversed([*tokens_of(text)]):
            if token.kind in ("text", "copy"):
                break
            at -= len(token.raw)
    body = text[:at].rstrip()
    return body, text[len(body) :]


def _without_end(text: str) -> tuple[str, str]:
    """Return a text without the punctuation at its end, and this."""
    found = _END.search(text)
    at = found.start() if found else len(text)
    return text[:at], text[at:]


def _plain_end(end: str) -> str:
    """Return the end that European scripts have for one of any script."""
    bare = end.strip()
    if bare in _COLONS:
        return bare and ":"
    if bare in FULL_STOPS:
        return "."
    if end.isascii():
        return end
    return "…" if bare.strip("…⋯") == "" else "..."


def read_string(text: str, in_columns: bool = True) -> Segment:
    """Take out tags, decode entities, and keep white space that is more than one plain space: a sentence ends there.

    Unless it stands `in_columns`, as programs show it, it ends at a line break; in HTML with blocks, at a blank line.
    """
    tokens = [*_with_bullet(_cut_at_kinds(tokens_of(text)))]
    ends = GAP if in_columns else _LINE_BREAK
    if any(token.is_block for token in tokens):
        ends = _BLANK_LINE
    return Segment(text, _with_gaps(tokens, ends), ESCAPES)


def _cut_at_kinds(tokens: Iterable[Token]) -> Iterator[Token]:
    """Yield tokens; what parts the kinds of files of Qt's dialogs is a code: Images (*.png);;All files (*)."""
    for token in tokens:
        start = 0
        if token.kind == "text":
            for found in _BETWEEN_KINDS.finditer(token.text):
                yield Token.of("text", token.signs[start : found.start()])
                yield Token("alone", found[0], parts=True, ends=True)
                start = found.end()
        yield Token.of("text", token.signs[start:]) if start else token


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
        for span in PLACEHOLDERS.spans(token.raw):
            copied = span.text_in(token.raw)
            if GAP.search(copied):
                yield from _parted(token, start, span.start, ends)
                yield Token("copy", copied)
                start = span.end
        yield from _parted(token, start, len(token.raw), ends)


def _parted(token: Token, start: int, stop: int, ends: re.Pattern[str]) -> Iterator[Token]:
    """Yield the texts, and the white space that is kept, of a stretch of a token's raw form."""
    signs: list[Sign] = []
    at = 0
    for sign in token.signs:
        if start <= at < stop:
            signs.append(sign)
        at += len(sign[1])
    text: list[Sign] = []
    for is_space, group in groupby(signs, lambda sign: sign[1].isspace()):
        run = [*group]
        raw = "".join(each for _, each in run)
        if not (is_space and GAP.search(raw)):
            text += run
            continue
        if text:
            yield Token.of("text", text)
        yield Token("space", raw, run, parts=True, ends=ends.search(raw) is not None)
        text = []
    if text:
        yield Token.of("text", text)


def _has_letters(text: str) -> bool:
    """Return whether a text has letters outside of placeholders and tags."""
    letters = {at for at, each in enumerate(text) if each.isalpha()}
    return bool(letters) and not letters <= _taken(text)


def plain_pairs(source: str, target: str, accelerators: Accelerators) -> Iterator[tuple[str, str]]:
    """Yield a string and its translation as a model sees them, without accelerators and tags.

    They are divided into paragraphs if they have equally many.
    """
    body, letter = accelerators.split(source)
    bare, _ = accelerators.split(target, letter != "")
    if _WORDS_ALONE.fullmatch(body) and _WORDS_ALONE.fullmatch(bare):
        yield body, bare
        return
    string = ProgramString(source, accelerators)
    translation = ProgramString(bare, accelerators)
    segments = [*map(read_string, string.texts)]
    target_segments = [*map(read_string, translation.texts)]
    sources = _pieces_of(segments)
    targets = _pieces_of(target_segments)
    if len(sources) != len(targets):
        sources = [segment.text for segment in segments]
        targets = [segment.text for segment in target_segments]
    if len(sources) != len(targets):
        sources = [read_string(string.body).text]
        targets = [read_string(translation.body).text]
    yield from zip(sources, targets, strict=True)


def _pieces_of(segments: Iterable[Segment]) -> list[str]:
    pieces: list[str] = []
    for segment in segments:
        pieces += segment.pieces
    return pieces
