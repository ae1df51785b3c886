"""Paragraphs of a text: which lines to join, which to leave as they are, and the layout of translations.

A *block* is a run of lines without a blank one. Indentation, list marks and widths divide it into paragraphs: a line
goes on in the next one if that one's first word had no room on it. Code, tables and rules stay. The rules know texts
as people type and format them: mails, Markdown, reStructuredText, manual pages, Debian's control files, verse.
"""

from __future__ import annotations

import re
import unicodedata
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, pairwise

LONGEST_BLOCK = 1000  # lines; a longer block is cut, so that memory is bounded
NARROW = 45  # columns; narrower lines seldom are wrapped ones: they are verse, addresses, items of a list
LONGEST_WRAPPED = 140  # columns
LONG_WORD = 40  # characters; a word that makes its line longer than the text is wide, such as a URL
UNDERLINE = 2  # maximum difference in length between a heading and its underline
TAB = 8  # columns

_LETTER = re.compile(r"[^\W\d_]")
_PLAIN_WORD = re.compile(  # other than a path, an option or code; of two letters, or one that stands for a word
    r"[\"'(\[*_]*+(?=.*[^\W\d_]{2}|.*[\u2e80-\uffdc])"
    r"[A-Za-z\x80-\U0010ffff]++(?:['/,.-][A-Za-z\x80-\U0010ffff]++)*+[\"')\]*_.,;:!?]*"
)
_ENDS_SENTENCE = re.compile(r"[.!?:…。！？][\"'”’»)\]*_]*\Z")
_WIDE = r"\u2e80-\ua4cf\uf900-\ufaff\uff00-\uff60"  # full-width characters, written without spaces
_NO_SPACE = re.compile(  # at a line break: between full-width characters, after hyphens of groff and of compounds
    rf"(?<=[{_WIDE}])\n(?=[{_WIDE}])|[\xad‐]\n"
    r"|(?<=\w-)\n(?=[^\W\d_A-Z])(?!(?:and|or|to|und|oder|bis|et|ou|y|e|o)\b)"
)
_STRETCHED = re.compile(r"(?<![.!?:\s])(?<![.!?][)\"'”]) {2,}")  # space that fills a line, not after a sentence

_MARK = r"(?:[-*+•‣◦▪·→o–—]|[-=]>|\(?(?:\d{1,3}(?:\.\d+)*|[A-Za-z]|[ivx]{1,4})[.)]|\[[ xX]\]|#{1,6})"
_TERM = r"(?:-\S+(?: \S+){0,5}(?:\t|  )|\S+(?: \S+){0,3}(?<![.!?])(?:\t|   ))"  # option or term in a left column
_LINE = re.compile(
    rf"((?: {{0,3}}>(?: (?!    ))?)*)(\s*)((?:(?:(?:{_MARK}\s+){{1,2}}|{_TERM}\s*)(?=\S))?)(.*)", re.DOTALL
)
# A full-width character, or a word with what would be a list mark at the beginning of the next line
_CHUNK = re.compile(rf"\s*(?:[{_WIDE}][、。，．！？：；」』）】]*|[^\s{_WIDE}]+(?:\s{_MARK}(?=\s))*)")

_RULE = re.compile(r"[\s>]*([^\w\s>|`])\1{2,}\s*\Z")
_FENCE = re.compile(r"`{3,}(?=[^`]*\Z)|~{3,}|<!--(?!.*-->)")
_FRONT, _KEY = re.compile(r"(-{3}|\+{3})\s*\Z"), re.compile(r"[\w\"'.-]+\s*[:=](?:\s|\Z)")  # YAML or TOML at the top
_STAYS = re.compile(r"\||<.*>\Z|\[[^\]]+\]:\s|\$ |\.\. |:[\w-]+:(?:\s|\Z)")  # table, tag, link, prompt, directive
_PIPE, _GAP = re.compile(r"(?![A-Z][\w-]*:).*\s\|\s"), re.compile(r"\t+| {4,}")  # between columns of a table
_FIELD = re.compile(r"\A([A-Z]\w*(?:-\w+)*):(?:\s+|\Z)")  # of a mail or a control file
_FIRST_FIELDS = {"From", "To", "Cc", "Date", "Subject", "Message-ID", "Return-Path", "Received", "Delivered-To"} | {
    *("Package", "Name", "Metadata-Version", "Format", "Files", "License", "Source")
}
_TEXT_FIELDS = {"Subject", "Title", "Summary", "Description", "Description-en", "License"}


@dataclass(frozen=True)
class TextLine:
    """Line that may belong to a paragraph, taken apart."""

    whole: str
    quote: str  # > of mails and Markdown
    indent: str
    mark: str  # of a list or a heading, or a term, with the space after it
    text: str

    @classmethod
    def of(cls, line: str) -> TextLine:
        """Take a line apart."""
        text = line.rstrip()
        return cls(line, *_LINE.findall(text.removesuffix("\\") or text)[0])

    @property
    def start(self) -> int:
        """Column of its first character after the quote marks"""
        return columns(self.indent)

    @property
    def end(self) -> int:
        """Column after its last character"""
        return columns(self.whole.rstrip())

    @property
    def body(self) -> str:
        """All after the indentation"""
        return self.mark + self.text

    @property
    def tail(self) -> str:
        """Hard line break of Markdown, if it has one"""
        is_marked = self.whole.rstrip().endswith("\\") and bool(self.text)
        return "\\" if is_marked else "  " if self.whole.endswith("  ") else ""

    @property
    def is_alone(self) -> bool:
        """Whether it is a heading of Markdown, or longer than wrapped lines are, by more than a word"""
        return self.mark.startswith("#") or self.end - max(map(len, self.text.split())) > LONGEST_WRAPPED


@dataclass(frozen=True)
class Piece:
    """Paragraph, or lines that stay as they are."""

    lines: Sequence[str]
    text: str = ""  # to translate; "" if the lines stay
    first: str = ""  # what stands before the first line
    rest: str = ""  # what stands before each further line
    tail: str = ""  # hard line break of Markdown
    width: int | None = None  # columns to wrap at; None for a paragraph of one line
    rules: tuple[str, str] = ("", "")  # lines over and under a heading

    @classmethod
    def paragraph(cls, lines: Sequence[TextLine]) -> Piece:
        """Join lines to a paragraph; they stay if they have no words to translate."""
        whole, first, last = [line.whole for line in lines], lines[0], lines[-1]
        if not any(_has_words(line.body) for line in lines):
            return cls(whole)
        before = first.quote + first.indent + first.mark
        text = _NO_SPACE.sub("", "\n".join([first.text, *(line.body for line in lines[1:])])).replace("\n", " ")
        if last is first:
            return cls(whole, text, before, tail=first.tail)
        return cls(whole, _STRETCHED.sub(" ", text), before, last.quote + last.indent, last.tail, _width(lines))

    def lay_out(self, translation: str) -> str:
        """Return the lines of a translation of `text`, or those that stay."""
        if not self.text:
            return "\n".join(self.lines)
        lines = [self.first + translation] if self.width is None else self._wrapped(translation, self.width)
        grown = columns(translation) - columns(self.text)
        over, under = ((rule + rule[-1:] * max(0, grown))[: max(3, len(rule) + grown)] for rule in self.rules)
        return "\n".join(filter(None, (over, *lines[:-1], lines[-1] + self.tail, under)))

    def _wrapped(self, text: str, width: int) -> list[str]:
        """Wrap a text; words that are too long stay whole."""
        lines, is_empty = [self.first], True
        for chunk in _CHUNK.findall(text.strip()):
            if not is_empty and columns(lines[-1] + chunk) > width:
                lines.append(self.rest)
                is_empty = True
            lines[-1] += chunk.lstrip() if is_empty else chunk
            is_empty = False
        return lines


class Document:
    """Text whose paragraphs are translated: iterate over the texts, and lay out their translations in order.

    There is a text for each input line, so that line numbers stay right: a paragraph's for its first line, and "" for
    all other lines.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        """Read `lines` as they come, a block at a time."""
        self._lines = lines
        self._pieces: deque[Piece | None] = deque()  # a piece for its first line, and None for its others

    def __iter__(self) -> Iterator[str]:
        for piece in pieces(self._lines):
            others = len(piece.lines) - 1
            self._pieces += [piece, *[None] * others]
            yield from [piece.text, *[""] * others]

    def lay_out(self, translation: str) -> str | None:
        """Return the lines of the next text's translation; None if an earlier paragraph has that line."""
        piece = self._pieces.popleft()
        return piece.lay_out(translation) if piece else None


def pieces(lines: Iterable[str]) -> Iterator[Piece]:
    """Divide a text into paragraphs and lines that stay."""
    lines, front = _front_matter(iter(lines))
    yield from (Piece([line]) for line in front)
    block: list[str] = []  # rules are in it too: one may begin it, and one ends it
    fence = ""  # that opened code, or <!-- for a comment
    for line in lines:
        body = line.lstrip(" \t>").rstrip()
        if fence:
            yield Piece([line])
            if "-->" in body if fence == "<!--" else body.startswith(fence) and not body.strip(fence[0]):
                fence = ""
            continue
        is_rule = _RULE.match(line) is not None
        if (found := _FENCE.match(body)) and not (is_rule and block and _underlines(line, block[-1])):
            fence, is_rule = found[0], False
        stays = bool(fence) or (not is_rule and _stays(body, bool(block)))
        if stays or (block and _begins(line, is_rule, block)):
            yield from _divided(block)
            block = []
        if stays:
            yield Piece([line])
        else:
            block.append(line)
            if is_rule and len(block) > 1:
                yield from _divided(block)
                block = []
    yield from _divided(block)


def _front_matter(lines: Iterator[str]) -> tuple[Iterator[str], list[str]]:
    """Return the lines of a text, and before them those of its front matter, up to its end or a blank line."""
    front = list(islice(lines, 2))
    if len(front) < 2 or not (_FRONT.match(front[0]) and _KEY.match(front[1])):
        return chain(front, lines), []
    for line in lines:
        front.append(line)
        if not line.strip() or _FRONT.match(line) or line.rstrip() == "...":
            break
    return lines, front


def _stays(body: str, in_block: bool) -> bool:
    """Return whether a line has no letters, or belongs to a table or to markup."""
    if not _LETTER.search(body) or _STAYS.match(body) or len(_GAP.split(body)) > 2:
        return True
    return _PIPE.match(body) is not None and not (in_block and _is_prose(body))


def _begins(line: str, is_rule: bool, block: Sequence[str]) -> bool:
    """Return whether a line begins a new block: after a long one, if quoted otherwise, or as a rule after a rule."""
    quotes = [TextLine.of(each).quote.replace(" ", "") for each in (line, block[0])]
    is_second = is_rule and len(block) == 1 and bool(_RULE.match(block[0]))
    return len(block) == LONGEST_BLOCK or quotes[0] != quotes[1] or is_second


def _underlines(rule: str, heading: str) -> bool:
    return abs(columns(rule.strip(" \t>")) - columns(heading.strip(" \t>"))) <= UNDERLINE


def _divided(block: list[str]) -> Iterator[Piece]:
    """Divide a block into a rule, paragraphs, and a heading with its underline or another rule."""
    over = block[:1] if block and _RULE.match(block[0]) else []
    under = block[-1:] if len(block) > 1 and _RULE.match(block[-1]) else []
    texts = block[len(over) : len(block) - len(under)]
    heading = texts[-1:] if under and texts and _underlines(under[0], texts[-1]) else []
    frame = over if heading and len(texts) == 1 and over and over[0].strip() == under[0].strip() else []
    if over and not frame:
        yield Piece(over)
    yield from _paragraphs(texts[: len(texts) - len(heading)])
    if heading:
        rules = ("".join(frame), under[0])
        yield replace(Piece.paragraph([TextLine.of(heading[0])]), lines=[*frame, *heading, *under], rules=rules)
    elif under:
        yield Piece(under)


def _paragraphs(block: list[str]) -> Iterator[Piece]:
    """Divide a block without rules into fields, paragraphs and code."""
    if block and (found := _FIELD.match(block[0])) and found[1] in _FIRST_FIELDS:
        stays = False  # the field before
        while block and ((found := _FIELD.match(block[0])) or (stays and block[0][0].isspace())):
            field, *block = block
            stays = not found or found[1] not in _TEXT_FIELDS
            text = field[found.end() :].rstrip() if found and not stays else ""
            yield Piece([field], text, found[0]) if found and _has_words(text) else Piece([field])
    lines = [TextLine.of(line) for line in block]
    if not lines or _is_code(lines):
        yield from (Piece([line]) for line in block)
        return
    width, is_verse = _width(lines), _is_verse(lines)
    paragraph = lines[:1]
    for line in lines[1:]:
        if is_verse or not _goes_on(paragraph, line, width):
            yield Piece.paragraph(paragraph)
            paragraph = []
        paragraph.append(line)
    yield Piece.paragraph(paragraph)


def _goes_on(paragraph: Sequence[TextLine], line: TextLine, width: int) -> bool:
    """Return whether a paragraph, in a block `width` columns wide, goes on in a line."""
    first, last, is_joined = paragraph[0], paragraph[-1], len(paragraph) > 1
    if last.tail or last.is_alone or line.is_alone or (is_joined and line.start != last.start):
        return False
    room = width - _needed(last, line)
    ends = _ENDS_SENTENCE.search(last.text) is not None
    is_lower = line.body[0].isalpha() and not line.body[0].isupper()
    is_indented = line.start > last.start
    is_term = line.mark.endswith(("   ", "\t")) and not line.mark.startswith("-")
    if line.mark and (first.mark or ends or room >= 0 or is_indented or is_term):
        return False  # otherwise it is a number or a dash of a sentence
    if is_joined and is_lower and not ends:
        return True
    if is_indented and not first.mark and (room >= 0 or width < NARROW):
        return False
    alike = 2 if is_lower else 1
    if line.body.split()[:alike] == last.body.split()[:alike] or (ends and last.end > width):
        return False  # items often begin alike; or last has a long word, and may have any width
    # People who wrap by hand leave more room. A line that ends with a sentence may be the last of its paragraph.
    by_hand = width >= NARROW and (not ends or (is_lower and last.text.endswith(".")))
    slack = width // (3 if is_lower or is_joined else 8) if by_hand else 0
    if not (first.mark and line.start > first.start):
        room += max(0, last.start + NARROW - width)
    return room < slack


def _needed(line: TextLine, following: TextLine) -> int:
    """Return the columns that a line would need to have the first word of the following one too."""
    return line.end + 1 + columns(_CHUNK.findall(following.body)[0])


def _width(lines: Sequence[TextLine]) -> int:
    """Return the columns of the longest line, of those without a long word if there are any."""
    usual = [line for line in lines if max(map(len, line.text.split())) <= LONG_WORD]
    return max(line.end for line in usual or lines)


def _is_verse(lines: Sequence[TextLine]) -> bool:
    """Return whether the lines of a block end on purpose: all begin with capitals, and not all are full."""
    if len(lines) < 3 or any(line.mark or line.text[0].islower() for line in lines):
        return False
    width = max(_width(lines), NARROW)
    return any(_needed(line, following) <= width for line, following in pairwise(lines))


def _is_code(lines: Sequence[TextLine]) -> bool:
    """Return whether a block is indented code: no list or options, and less than half of it reads like text."""
    if lines[0].mark.strip(" #") or lines[0].text.startswith("-") or min(line.start for line in lines) < 4:
        return False
    return 2 * sum(len(line.text) for line in lines if _is_prose(line.text)) < sum(len(line.text) for line in lines)


def _is_prose(text: str) -> bool:
    """Return whether most words are plain ones, and enough for a title or, after a small letter, for a sentence."""
    words = [word for word in text.split() if word[0].isalpha() or word[0] in "\"'“‘(*_"]
    plain = sum(word.isalpha() or _PLAIN_WORD.fullmatch(word) is not None for word in words)
    return 4 * plain >= 3 * len(words) and (plain >= (2 if text[0].isupper() else 5) or not text.isascii())


def _has_words(text: str) -> bool:
    """Return whether a text has something to translate besides names of fields."""
    return any(_PLAIN_WORD.fullmatch(word) for word in (_FIELD.sub("", text) or text).split())


def columns(text: str) -> int:
    """Return the width of a text in a terminal: full-width characters take two columns, combining ones none."""
    text = text.expandtabs(TAB)
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return len(text) + wide - sum(map(bool, map(unicodedata.combining, text)))
