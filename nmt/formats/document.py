"""Paragraphs of a text: which lines to join, which to leave as they are, and the layout of translations.

A *block* is a run of lines without a blank one. Indentation, list marks and widths divide it into paragraphs: a line
goes on in the next one if that one's first word had no room on it. Code, tables and rules stay. The rules know texts
as people type and format them: mails, Markdown, reStructuredText, manual pages, Debian's control files, verse.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise, takewhile
from typing import NamedTuple, Self

from nmt.formats.markdown import SHORTCODE, pipes_of, read_markdown, unbroken
from nmt.formats.placeholders import PICTOGRAPH
from nmt.formats.segments import Segment
from nmt.formats.tags import open_in
from nmt.formats.terms import Span, offsets_in, outside
from nmt.text.scripts import UNSPACED, UNSPACED_RANGES, WIDE_RANGES

LONGEST_BLOCK = 1000  # lines; a longer block is cut, so that memory is bounded
LONGEST_AHEAD = 10_000  # lines to look ahead for the definition of a link
LONGEST_STATEMENT = 200  # lines of code of MDX
LONGEST_FRONT = 200  # lines of front matter
LONGEST_COMMENT = 200  # lines of one that begins behind text
LONGEST_TAG = 20  # lines of a tag, or of code, inside a paragraph
USUAL_WIDTH = 80  # columns, where no line tells the width
NARROW = 45  # columns; narrower lines seldom are wrapped ones: they are verse, addresses, items of a list
LONGEST_WRAPPED = 140  # columns
LONG_WORD = 40  # characters; a longer word, such as a URL, may make its line longer than the text is wide
CUE_WIDTH = 42  # columns of a line of subtitles
LONGEST_CUE = 20  # lines
UNDERLINE = 2  # maximum difference in length between a heading and its underline
TAB = 8  # columns from one tab stop to the next
CODE_AT = 4  # columns of indentation that make a block code, as in Markdown
NO_CODE = 10**6  # columns: in a block of HTML, where lines may have any indentation

_LETTER = re.compile(r"[^\W\d_]")
_PLAIN_WORD = re.compile(  # other than a path, an option or code; of two letters, or one that stands for a word
    r"(?:\.{3})?[\"'(\[*_]*+(?=.*[^\W\d_]{2}|.*[\u2e80-\uffdc])"
    r"[A-Za-z\x80-\U0010ffff]++(?:['/,.-][A-Za-z\x80-\U0010ffff]++)*+[\"')\]*_.,;:!?]*"
)
_SPOKEN = re.compile(r"[-–—][^\W\d_a-z].*[.!?…]\Z")  # -Yes. is no option
_UNSPACED_WORD = re.compile(rf"(?=[^\W\d_])[{UNSPACED_RANGES}]")
_ENDS_SENTENCE = re.compile(r"[.!?:…。！？][\"'”’»)\]*_]*\Z")
_NO_SPACE = re.compile(  # at a line break: in scripts without spaces, after hyphens of groff and of compounds
    rf"(?<=[{UNSPACED_RANGES}])\n(?=[{UNSPACED_RANGES}])|[\xad‐]\n"
    r"|(?<=\w-)\n(?=[^\W\d_A-Z])(?!(?:and|or|to|und|oder|bis|et|ou|y|e|o)\b)"
)
_STRETCHED = re.compile(r"(?<![.!?:\s])(?<![.!?][)\"'”]) {2,}")  # space that fills a line, not after a sentence

_MARK = (
    r"(?:[-*+•‣◦▪·→o–—:]|[-=]>|\(?(?:\d{1,3}(?:\.\d+)*|[A-Za-z]|[ivx]{1,4}|#)[.)]|\[[ xX]\]|#{1,6}"
    r"|\*?\[\^?[^\[\]\s][^\[\]]{0,40}\]:|\[![\w-]+\][+-]?|:[a-z][\w+-]{0,40}:)"  # [^1]:, [Anna]:, [!NOTE], :warning:
)
_TERM = r"(?:-\S+(?: \S+){0,5}(?:\t|  )|\S+(?: \S+){0,3}(?<![.!?])(?:\t|   ))"  # option or term in a left column
_TERM_OF_WORDS = re.compile(r"[*_]{0,3}[^\W\d_]{2,}(?:[ '’-][^\W\d_]+)*[*_]{0,3}:?")
_MARKS = re.compile(rf"(?:{_MARK}\s+)+")
_COLUMN = re.compile(r"\t+ *| {3,}")  # between a term and its text
_LINE = re.compile(
    rf"((?: {{0,3}}>(?: (?!    ))?)*)(\s*)((?:(?:(?:{_MARK}\s+){{1,2}}|{_TERM}\s*)(?=\S))?)(.*)", re.DOTALL
)
# A full-width character, or a word with what would be a list mark at the beginning of the next line, or begins no line
_CHUNK = re.compile(
    rf"[ \t]*(?:[{WIDE_RANGES}][、。，．！？：；」』）】]*"
    rf"|(?:« )?[^ \t{WIDE_RANGES}]+(?:\s{_MARK}(?=\s)| [?!;:»]+(?=[\s<*_]|\Z))*)"
)
_BEGINS_BLOCK = re.compile(  # if a line begins with it
    rf">|<[!?]|</?(?:p|div|[uod]l|li|d[td]|table|t[dhr]|h[1-6r]|blockquote|details|summary|section|center|pre)\b"
    rf"|(?:{_MARK}|=+|-+)\Z",
    re.IGNORECASE,
)
_BETWEEN_WIDE = re.compile(rf"(?<=[{WIDE_RANGES}])(?<!\u3000)(?=[{WIDE_RANGES}])(?!\u3000)")
BLANKS = " \t"

_RULE = re.compile(r"[\s>]*([^\w\s>|`])\1{2,}\s*\Z")
_FRONT = re.compile(r"(-{3}|\+{3})\s*\Z")  # YAML or TOML at the top
_KEY = re.compile(r"[\w\"'.-]+\s*[:=](?:\s|\Z)")
_END_OF_FRONT = re.compile(r"(?:-{3}|\+{3}|\.{3})\s*\Z")
_IN_FRONT = re.compile(r"\s|[-#\[\]{}]")
_FENCE = re.compile(r"(`{3,})(?=[^`]*\Z)|(~{3,})|(\$\$)\Z")  # of code and formulas
_CODE_TAG = re.compile(  # of HTML, Liquid, Hugo and LaTeX
    r"(?:<(?=(?:pre|script|style|svg|textarea)\b)|\{[{%][<%-]?\s*(?=(?:highlight|comment|mermaid|katex)(?![\w-]))"
    r"|\\begin\{(?=(?:equation|align|gather|multline)\*?\}))([a-z]+)",
    re.IGNORECASE,
)
_TAG = re.compile(r"</?[A-Za-z][\w-]*(?:\s[^<>]*)?/?>|<[!?][^<>]*>|&#?\w{1,31};")  # <https://example.org> is none
_CODES = re.compile(  # of a line, beside its words: the places of links, notes, tags, placeholders, marks
    r"\]\([^()\s]*(?:\([^()]*\))?[^()]*\)|\]\[[^\[\]]*\]|\[\^[^\[\]\s]+\]"
    rf"|{SHORTCODE}|{_TAG.pattern}|[$#%]?\{{[^{{}}]*\}}|%\(\w+\)[a-z]|!?\[|\]|~~|\*+|…"
)
_UNCLOSED_TAG = re.compile(r"\s*<[A-Za-z][^<>]*\Z")
_UNCLOSED_COMMENT = re.compile(r"(?<=\S)\s*<!--(?:(?!-->|<!--)[^`])*\Z")  # behind text; `<!--` is code
_END_OF_COMMENT = re.compile(r".*?-->")
_ELEMENT = re.compile(
    r"<(p|li|d[dt]|t[dh]|h[1-6]|summary|(?:fig)?caption|blockquote|center|div)\b[^<>]*>", re.IGNORECASE
)
_BEGINS_HTML = re.compile(r"[>\s]{0,3}</?[A-Za-z][\w-]*(?=[\s>]|\Z)")
_BREAK = re.compile(r"<br\s*/?>\Z", re.IGNORECASE)
_ADMONITION = r"(?:note|tip|hint|important|warning|caution|attention|danger|error|admonition|seealso|dropdown)"
_DIRECTIVE = re.compile(rf"(`{{3,}}|~{{3,}})\{{{_ADMONITION}\}}")  # of MyST, with text inside
_WITHOUT_TEXT = re.compile(  # directives of reStructuredText that have code or names of files inside, and comments
    r"\.\. (?:(?:code|code-block|sourcecode|parsed-literal|math|raw|toctree|highlight|literalinclude|include|graphviz"
    r"|mermaid|uml|doctest|test\w+|productionlist|auto\w+|csv-table|prompt)::|(?!\[)(?!\S+:: )(?!.*::\Z)\S)"
)
_HOLDER = re.compile(r"!!!|\?\?\?|===[!+]?\s\"|\[\^[^\[\]\s]+\]:")  # whose text is indented: of mkdocs, and a footnote
_TITLED = re.compile(  # an admonition or a tab with a title
    r"([\s>]*(?:!{3}|\?{3}\+?|={3}[!+]?)[\w -]*\")([^\"]+)(\"\s*)\Z"
    rf"|([\s>]*(?::{{3,}}\s*[a-z][\w-]*|(?:`{{3,}}|:{{3,}})\{{{_ADMONITION}\}}|\.\. {_ADMONITION}::)\s+)"
    r"([^{}\s][^{}]*)()\Z"
    r"|([\s>]*:{3,}\s*[a-z][\w-]*\[)([^\[\]]+)(\](?:\{[^{}]*\})?\s*)\Z"  # :::note[Title] of Docusaurus
)
_ATTRIBUTES = re.compile(r"(?<=\S)\s+\{:?\s*[.#][^{}]*\}\s*\Z")  # of a heading
_SECOND_COLON = re.compile(r"(?<=[^\s:]:):\s*\Z")
_CLOSING_MARK = re.compile(r"(?<=\S)\s+#+\s*\Z")  # of a heading
_DEFINITION = re.compile(  # of a link
    r"\[(?!\^)(?P<label>[^\[\]]+)\]:\s*(?:<[^<>]*>|(?=\S*[./#:?=@]\w|[A-Z]{3,}(?:\s|\Z))\S+)"
    r"(?:\s+(?:\"[^\"]*\"|'[^']*'|\([^()]*\)))?\s*\Z"
)
_TIMES = r"(?:\d+:)?\d\d:\d\d[.,]\d{3} --> "  # of subtitles
_TIMES_AT = re.compile(_TIMES)
_CAPTIONS = re.compile(r"\ufeff?WEBVTT(?:\s|\Z)")
_NO_CAPTION = re.compile(r"\ufeff?(?:WEBVTT|NOTE|STYLE|REGION)(?:\s|\Z)")  # what a block of WebVTT begins with
_MARKUP = re.compile(  # labels, classes, directives and times of subtitles, which have a line of their own
    _TIMES + r"|WEBVTT(?:\s|\Z)|(?i:@?\[{1,2}_?toc_?\]{1,2})\Z"  # [TOC] is where a table of contents goes
    r"|\[![\w-]+\][+-]?\Z|\{[^{}]*\}\Z|\{\{.*\}\}\Z|\{%.*%\}\Z|\([\w:.-]+\)=\Z|\.\. |:{3,}"
    r"|(?:!{3}|\?{3}\+?)\s*[\w-]+(?:\s+(?:inline|end))*\Z"
)
_PROMPT = re.compile(r"\$ (?!\d)")
_SPEECH = re.compile(r"\$ .*[a-z]{2}[.!?]\Z")
_MODULE = re.compile(r"import\s.*\bfrom\s+[\"']|import\s+[\"']|export\s+(?:default|const|let|function|class)\s")  # MDX
_BEGINS_CODE = re.compile(  # of MDX
    r"import\s*(?:[\w$]+\s*,\s*)?\{[\w\s,$]*\Z|export\s+(?:(?:default|async|const|let|var|function|class)\s|\{)|\{"
)
_BEGINS_JSX = re.compile(r"<[A-Za-z][\w.:-]*(?:\s(?:[^<>]|=>)*)?\Z")  # a tag that does not end on its line
_END_OF_TAG = re.compile(r"(?<!=)>")
_FIELDS = re.compile(  # of reStructuredText; another is an emoji
    r":(?:[A-Z][\w. -]*|[a-z]\w*\s[^:]+|returns?|rtype|raises?|yields?|authors?|version|date|copyright|license|status"
    r"|contact|organization|address|revision):(?:\s|\Z)|:[\w-]+:(?:\s+\S+)?\Z"
)
_PIPE = re.compile(r"(?![A-Z][\w-]*:).*\s\|\s")  # between columns of a table
_GAP = re.compile(r"\t+| {4,}")  # between them too
_DELIMITERS = re.compile(r"(?=.*\|)\|?(?:\s*:?-+:?\s*(?:\||\Z))+")  # below the header of a table
_BORDER = re.compile(r"={2,}(?: +={2,})+\s*\Z")  # of a simple table of reStructuredText
_GRID = re.compile(r"\+(?:[-=]+\+)+")  # around the rows of a table whose columns are as wide in each line
_BEFORE_ROW = re.compile(rf"\A[\s>]*(?:{_MARK}\s+)?")
_FIELD = re.compile(r"\A([A-Z]\w*(?:-\w+)*):(?:\s+|\Z)")  # of a mail or a control file
_FIRST_FIELDS = {"From", "To", "Cc", "Date", "Subject", "Message-ID", "Return-Path", "Received", "Delivered-To"} | {
    *("Package", "Name", "Metadata-Version", "Format", "Files", "License", "Source")
}
_TEXT_FIELDS = {"Subject", "Title", "Summary", "Description", "Description-en", "License"}


@dataclass(frozen=True)
class TextLine:
    """Line that may belong to a paragraph, taken apart: "> - Hello" has the quote "> ", the mark "- " and the text."""

    whole: str
    quote: str  # > of mails and Markdown
    indent: str
    mark: str  # of a list or a heading, or a term, with the space after it
    text: str

    @classmethod
    def of(cls, line: str) -> TextLine:
        """Take a line apart."""
        text = line.rstrip()
        text = text.removesuffix(cls._attributes(text)).removesuffix("\\") or text
        return cls(line, *_LINE.findall(text)[0])

    @staticmethod
    def _attributes(line: str) -> str:
        """Return what stands behind a text: attributes of a heading, or marks like those before it, or a comment that
        goes on in the next line, or the second colon before code in reStructuredText."""
        text = line.lstrip(" >")
        found = _ATTRIBUTES.search(text) or _UNCLOSED_COMMENT.search(text) or _SECOND_COLON.search(text)
        if not found and text.startswith("#"):
            found = _CLOSING_MARK.search(text)
        return found[0] if found else ""

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
    def is_column(self) -> bool:
        """Whether its mark is a left column, other than an option"""
        return self.mark.endswith(("   ", "\t")) and not self.mark.startswith("-")

    @property
    def term(self) -> str:
        """Its mark, if that is a left column of words"""
        return self.mark if self.is_column and _TERM_OF_WORDS.fullmatch(self.mark.strip()) else ""

    @property
    def tail(self) -> str:
        """Hard line break of Markdown, or what stands behind a heading"""
        attributes = self._attributes(self.whole)
        if attributes:
            return attributes
        if self.text and self.whole.rstrip().endswith("\\"):
            return "\\"
        return "  " if self.whole.endswith("  ") else ""

    @property
    def has_long_word(self) -> bool:
        """Whether it may be longer than the text is wide"""
        return max(map(len, self.text.split())) > LONG_WORD

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
    tail: str = ""  # what stands behind the last line, such as a hard line break of Markdown
    width: int | None = None  # columns to wrap at; None for a paragraph of one line
    rules: tuple[str, str] = ("", "")  # lines over and under a heading
    kind: str = ""  # of lines that stay though they may have words, such as code
    separators: Sequence[Span] = ()  # of the text: what parts its cells

    @classmethod
    def row(cls, line: str) -> Piece:
        """Take a row of a table apart; it stays if its cells have no words to translate."""
        whole = line.rstrip()
        before = _BEFORE_ROW.findall(whole)[0]
        text = whole.removeprefix(before)
        pipes = pipes_of(text)
        if not any(_has_words(cell.text_in(text)) for cell in outside(pipes, len(text))):
            return cls([line])
        return cls([line], text, before, tail=line[len(whole) :], separators=pipes)

    @classmethod
    def paragraph(cls, lines: Sequence[TextLine], narrow: int = NARROW) -> Piece:
        """Join lines to a paragraph, at least `narrow` columns wide; they stay if they have no words to translate."""
        whole = [line.whole for line in lines]
        if not any(_has_words(line.body) for line in lines):
            return cls(whole)
        first = lines[0]
        last = lines[-1]
        others = [line.body for line in lines[1:]]
        text = _NO_SPACE.sub("", "\n".join([first.text, *others])).replace("\n", " ")
        if others:
            text = _without_stretches(text)
        term = first.term
        before = first.quote + first.indent + first.mark.removesuffix(term)
        piece = cls(whole, term + text, before, tail=last.tail)
        if term:
            piece = replace(piece, separators=[Span(len(term.rstrip()), len(term))])
        if others:
            piece = replace(piece, rest=last.quote + last.indent, width=max(_width(lines), narrow))
        return piece

    @classmethod
    def behind(cls, line: str, at: int) -> Piece:
        """Return what of a line begins at an offset as a paragraph."""
        piece = cls.paragraph([TextLine.of(line[at:])])
        return replace(piece, lines=[line], first=line[:at] + piece.first)

    def lay_out(self, translation: str) -> str:
        """Return the lines of a translation of `text`, or those that stay."""
        if translation == self.text:  # or there is none
            return "\n".join(self.lines)
        lines = [self.first + translation]
        if self.width is not None:
            lines = self._wrapped(translation, self.width)
        lines[-1] += self.tail
        grown = columns(translation) - columns(self.text)
        over, under = self.rules
        return "\n".join(filter(None, [_resized(over, grown), *lines, _resized(under, grown)]))

    def _wrapped(self, text: str, width: int) -> list[str]:
        """Wrap a text; words that are too long stay whole."""
        lines = [self.first]
        is_empty = True
        for chunk in _chunks(text.strip(), bool(self.separators)):
            if not is_empty and columns(lines[-1] + chunk) > width:
                lines.append(self.rest)
                is_empty = True
            lines[-1] += chunk.lstrip(BLANKS) if is_empty else chunk
            is_empty = False
        return lines


def _resized(rule: str, grown: int) -> str:
    """Return a rule that is longer by so many characters, or shorter, but not of less than three."""
    longer = rule + rule[-1:] * max(0, grown)
    return longer[: max(3, len(rule) + grown)]


def _without_stretches(text: str) -> str:
    """Return a text without the spaces that justify its lines, as manual pages have; those in code stay."""
    inside = _inner(unbroken(text)) if "`" in text or "<" in text else ()
    return _STRETCHED.sub(lambda gap: gap[0] if gap.start() in inside else " ", text)


def _chunks(text: str, has_term: bool) -> Iterator[str]:
    """Yield the parts of a text between which a line may break, each with the space before it."""
    whole = unbroken(text)
    column = _COLUMN.search(text) if has_term else None
    if column:
        whole.append(Span(*column.span()))
    inside = _inner(whole)
    start = 0
    for found in _CHUNK.finditer(text):
        word = found[0].lstrip(BLANKS)
        at = found.start()
        may_break = word != found[0] or _BETWEEN_WIDE.match(text, at)
        if at and may_break and at not in inside and not _BEGINS_BLOCK.match(word):
            yield text[start:at]
            start = at
    yield text[start:]


def _inner(spans: Iterable[Span]) -> set[int]:
    """Return the offsets inside spans, at which a line must not break."""
    return offsets_in(Span(start + 1, end) for start, end in spans)


class _LinesAhead:
    """Lines of a text, in some of which one may look ahead."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._source = iter(lines)
        self._ahead = deque[str]()
        self._labels = set[str]()  # of the definitions so far

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        if not (self._ahead or self._read_one()):
            raise StopIteration
        return self._ahead.popleft()

    def ahead(self, count: int) -> list[str]:
        """Return the next lines."""
        while len(self._ahead) < count and self._read_one():
            pass
        return list(islice(self._ahead, count))

    def defines(self, label: str) -> bool:
        """Return whether the text so far, or the lines ahead, define the place of a link."""
        wanted = _folded(label)
        while wanted not in self._labels and len(self._ahead) < LONGEST_AHEAD and self._read_one():
            pass
        return wanted in self._labels

    def _read_one(self) -> bool:
        """Read one line more; return False at the end of the text."""
        line = next(self._source, None)
        if line is None:
            return False
        self._ahead.append(line)
        found = _DEFINITION.match(line.lstrip(" \t>"))
        if found:
            self._labels.add(_folded(found["label"]))
        return True


def _folded(label: str) -> str:
    return " ".join(label.split()).casefold()


class Document:
    """Text whose paragraphs are translated: iterate over the texts, each with the piece that lays out its translation.

    There is a text for each input line, so that line numbers stay right: a paragraph's for its first line, and an empty
    one, without a piece, for all other lines.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        """Read `lines` as they come, a block at a time; behind [text], which may be a link, until its definition."""
        self._lines = _LinesAhead(lines)
        self._left = Counter[str]()  # lines that stay and have letters, by their kind

    def __iter__(self) -> Iterator[tuple[Segment, Piece | None]]:
        empty = read_markdown("")
        for piece in pieces(self._lines):
            if piece.kind:
                self._left[piece.kind] += sum(_LETTER.search(line) is not None for line in piece.lines)
            segment = empty
            if piece.text:
                segment = read_markdown(piece.text, self._lines.defines, piece.separators)
            yield segment, piece
            for _ in piece.lines[1:]:
                yield empty, None

    @property
    def left(self) -> str:
        """What was not translated, for a message; empty if nothing was left"""
        kinds = [f"{kind} ({count:,})" for kind, count in self._left.most_common() if count]
        return f"left as they were: lines of {', '.join(kinds)}" if kinds else ""


class _Fence(NamedTuple):
    """Lines that stay up to one that the pattern matches, because of their kind."""

    end: re.Pattern[str]
    kind: str = ""

    @classmethod
    def of(cls, body: str) -> _Fence | None:
        """Return what a line opens."""
        mark = _MARKS.match(body)
        item = body[mark.end() :] if mark else body  # of a list
        fence = _FENCE.match(item)
        if fence:
            return cls(re.compile(rf"{re.escape(fence[0])}[{fence[0][0]}]*\Z"), "code")
        if item.startswith("<!--") and "-->" not in item:
            return cls(_END_OF_COMMENT)
        tag = _CODE_TAG.match(item)
        if tag:
            name = tag[1]
            end = re.compile(
                rf".*?(?:</{name}\b[^>]*>|\{{[{{%][<%-]?\s*(?:end|/\s*){name}\b[^}}]*\}}+|\\end\{{{name}\b[^}}]*\}})",
                re.IGNORECASE,
            )
            if not end.match(item):
                return cls(end, "code")
        if _UNCLOSED_TAG.match(_TAG.sub("", body)):
            return cls(re.compile(r".*?>|\Z"))
        return None


_UP_TO_BLANK = _Fence(re.compile(r"\Z"))


def _comment_ahead(text: str, lines: _LinesAhead) -> _Fence | None:
    """Return the fence of a comment that begins behind text and ends in a later line; None if there is none."""
    if _UNCLOSED_COMMENT.search(text) and any("-->" in line for line in lines.ahead(LONGEST_COMMENT)):
        return _Fence(_END_OF_COMMENT)
    return None


def pieces(lines: Iterable[str]) -> Iterator[Piece]:
    """Divide a text into paragraphs and lines that stay."""
    if not isinstance(lines, _LinesAhead):
        lines = _LinesAhead(lines)
    for line in islice(lines, _front_matter(lines)):
        yield Piece([line], kind="front matter")
    division = _Division(lines)
    for line in lines:
        yield from division.read(line)
    yield from division.end_block()


class _Division:
    """The division of a text into blocks and lines that stay: what is open at a line."""

    def __init__(self, lines: _LinesAhead) -> None:
        self._lines = lines
        self._is_captions = any(map(_CAPTIONS.match, lines.ahead(1)))
        self._body = ""  # of the last line
        self._block: list[str] = []  # rules are in it too: one may begin it, and one ends it
        self._code_at_here = CODE_AT  # of the block; NO_CODE if it is HTML
        self._code_at = CODE_AT
        self._in_html = False
        self._fence: _Fence | None = None
        self._in_quote = False  # whether the fence is quoted
        self._directives: list[str] = []
        self._table = ""
        self._literal = -1  # column of a line whose indented lines stay; -1 for none

    def read(self, line: str) -> Iterator[Piece]:
        """Return the pieces that end with the next line, or before it."""
        is_behind_blank = not self._body
        self._body = body = line.lstrip(" \t>").rstrip()
        is_quoted = line.lstrip().startswith(">")
        if self._fence and (is_quoted or not self._in_quote):
            yield self._fenced(line, self._fence)
            return
        self._fence = None
        self._in_quote = is_quoted
        if self._is_captions and is_behind_blank:
            is_name = any(map(_TIMES_AT.match, self._lines.ahead(1)))  # of the next cue
            is_note = not is_name and _NO_CAPTION.match(body) is not None
            if is_note:
                self._fence = _UP_TO_BLANK
            if is_name or is_note:
                yield Piece([line])
                return
        if self._is_literal(line):
            yield from self.end_block()
            yield Piece([line], kind="code")
            return
        self._literal = _indentation(line) if _has_literal(body, self._lines) else -1
        if _TIMES_AT.match(body):
            yield from self.end_block()
            yield Piece([line])
            yield from _cue(self._lines)
            return
        further = _code_ahead(body, self._lines)
        if further:
            yield from self.end_block()
            for each in [line, *islice(self._lines, further)]:
                yield Piece([each], kind="code")
            self._in_html = body.startswith("<")
            return
        yield from self._in_block(line, body)

    def end_block(self) -> Iterator[Piece]:
        """Return the pieces of the block, and begin another one."""
        block = self._block
        self._block = []
        return _divided(block, self._code_at_here)

    def _fenced(self, line: str, fence: _Fence) -> Piece:
        """Return the piece for a line that belongs to what began before it, and may end it."""
        end = fence.end.match(self._body)
        if not end:
            return Piece([line], kind=fence.kind)
        self._fence = _comment_ahead(self._body[end.end() :], self._lines)
        return Piece.behind(line, line.index(self._body) + end.end())

    def _is_literal(self, line: str) -> bool:
        """Return whether a line is code, names or a comment of reStructuredText, behind the line that says so."""
        return self._literal >= 0 and (not self._body or _indentation(line) > self._literal)

    def _in_block(self, line: str, body: str) -> Iterator[Piece]:
        """Add a line to the block, or end it and return the line as a piece."""
        is_rule = _RULE.match(line) is not None
        piece = self._staying(line, body, is_rule)
        if not (piece or is_rule):
            self._fence = _comment_ahead(body, self._lines)
        if piece or (self._block and _begins(line, is_rule, self._block)):
            yield from self.end_block()
        self._in_html = body != "" and (self._in_html or _BEGINS_HTML.match(line) is not None)
        self._code_at = _code_column(line, body, self._code_at)
        self._code_at_here = NO_CODE if self._in_html else self._code_at
        if piece:
            yield piece
            return
        self._block.append(line)
        if self._fence or (is_rule and len(self._block) > 1):
            yield from self.end_block()

    def _staying(self, line: str, body: str, is_rule: bool) -> Piece | None:
        """Return the piece for a line that is not of the block, and open what it begins; None for text and rules."""
        self._table = _table_at(body, self._table, self._lines)
        piece = None if is_rule else _kept(line, body, bool(self._block), self._table)
        directive = _DIRECTIVE.match(body)
        if self._directives and body == self._directives[-1]:
            self._directives.pop()
            return Piece([line])
        if directive:
            self._directives.append(directive[1])
            return piece or Piece([line])
        is_underline = is_rule and bool(self._block) and _underlines(line, self._block[-1])
        if not is_underline:
            self._fence = _Fence.of(body)
        return Piece([line]) if self._fence else piece


def _has_literal(body: str, lines: _LinesAhead) -> bool:
    """Return whether what is indented behind a line of reStructuredText is code, names or a comment."""
    is_before_blank = body.endswith("::") and not any(map(str.strip, lines.ahead(1)))
    return _WITHOUT_TEXT.match(body) is not None or (is_before_blank and not body.startswith(".. "))


def _cue(lines: _LinesAhead) -> Iterator[Piece]:
    """Yield the paragraphs of what is said at a time of subtitles: a line that ends no sentence goes on in the next."""
    ahead = takewhile(lambda line: line.strip() and not _TIMES_AT.match(line), lines.ahead(LONGEST_CUE))
    paragraph = list[TextLine]()
    for text in islice(lines, len([*ahead])):
        line = TextLine.of(text)
        if paragraph and not _goes_on_in_cue(paragraph[-1].text, line):
            yield Piece.paragraph(paragraph, CUE_WIDTH)
            paragraph = []
        paragraph.append(line)
    if paragraph:
        yield Piece.paragraph(paragraph, CUE_WIDTH)


def _goes_on_in_cue(last: str, line: TextLine) -> bool:
    """Return whether a line of a cue goes on in the next one, which begins no other speech, sound or song."""
    text = _TAG.sub("", line.text)
    first = text[:1]
    is_word = (first.isalnum() or first in "'\"’“«¿¡") and not UNSPACED.match(first)
    if line.mark or not is_word or last.endswith((")", "]", "♪")):
        return False
    is_within = last[-1:].islower() or (last[-1:].isupper() and text.isupper())
    return first.islower() or last.endswith(",") or (is_within and not PICTOGRAPH.search(last))


def _code_ahead(body: str, lines: _LinesAhead) -> int:
    """Return how many further lines belong to what a line of MDX begins: a statement, an expression, a tag of JSX.

    It goes on until its brackets are closed; 0 if it has none or ends on the line, or if they never are.
    """
    is_tag = _BEGINS_JSX.match(body) is not None
    if not (is_tag or _BEGINS_CODE.match(body)):
        return 0
    opening, closing = ("{", "}") if is_tag else ("([{", ")]}")
    opened = 0
    has_brackets = False
    for number, line in enumerate([body, *lines.ahead(LONGEST_STATEMENT)]):
        opened += sum(map(line.count, opening)) - sum(map(line.count, closing))
        has_brackets |= opened > 0
        if opened <= 0 and (not is_tag or not line.strip() or _END_OF_TAG.search(line)):
            return number if has_brackets else 0
    return 0


def _front_matter(lines: _LinesAhead) -> int:
    """Return how many lines of front matter a text begins with; without an end mark, it ends at a blank line."""
    first = lines.ahead(2)
    if len(first) < 2 or not (_FRONT.match(first[0]) and _KEY.match(first[1])):
        return 0
    up_to_blank = 0
    for number, line in enumerate(lines.ahead(LONGEST_FRONT)[1:], 2):
        if _END_OF_FRONT.match(line):
            return number
        if not line.strip():
            up_to_blank = up_to_blank or number
        elif not (_KEY.match(line) or _IN_FRONT.match(line)):
            return up_to_blank
    return up_to_blank or number


def _kept(line: str, body: str, in_block: bool, table: str) -> Piece | None:
    """Return a line that is no part of a paragraph: one without letters, of a table, markup or code, or a title."""
    if table == "rows":
        return Piece.row(line)
    if table in ("grid", "simple"):
        return Piece([line], kind="tables")
    titled = _TITLED.match(line)
    if titled:
        first, text, tail = (group for group in titled.groups() if group is not None)
        return Piece([line], text, first, tail=tail)
    has_text = _LETTER.search(_TAG.sub("", body) if "<" in body else body) is not None
    if not has_text or _MARKUP.match(body) or _DEFINITION.match(body):
        return Piece([line])
    if _MODULE.match(body) or (_PROMPT.match(body) and not _SPEECH.match(body)):
        return Piece([line], kind="code")
    if _FIELDS.match(body):
        return Piece([line], kind="fields")
    if body.startswith("|"):
        return Piece.row(line)
    if len(_GAP.split(body)) > 2:
        return Piece([line], kind="tables")
    if _PIPE.match(body) and not (in_block and _is_prose(body)):
        if _is_prose(_CODES.sub(" ", body).strip() or body):
            return Piece.row(line)
        return Piece([line], kind="tables")
    return None


def _table_at(body: str, before: str, lines: _LinesAhead) -> str:
    """Return which table a line belongs to, given that of the line before: "rows", "grid", "simple", or "" for none.

    Rows have pipes, and a line such as |---|---| below the header; a grid has +---+---+ around its rows, and a simple
    table === ===.
    """
    if _BORDER.match(body) or (before == "simple" and body):
        return "simple"
    if before == "grid" or _GRID.match(body):
        return "grid" if body.startswith(("|", "+")) else ""
    if "|" not in body:
        return ""
    is_header = any(_DELIMITERS.fullmatch(line.strip(" \t>")) for line in lines.ahead(1))
    return "rows" if before or is_header else ""


def _code_column(line: str, body: str, before: int) -> int:
    """Return the column where code begins: after an admonition or a footnote, its text is indented already."""
    indent = _indentation(line)
    if _HOLDER.match(body):
        return indent + 2 * CODE_AT
    return CODE_AT if body and indent < before - CODE_AT else before


def _indentation(line: str) -> int:
    return columns(line[: len(line) - len(line.lstrip())])


def _begins(line: str, is_rule: bool, block: Sequence[str]) -> bool:
    """Return whether a line begins a new block: the block is full, quoted otherwise, or one rule, as the line is."""
    quote = TextLine.of(line).quote.replace(" ", "")
    quote_of_block = TextLine.of(block[0]).quote.replace(" ", "")
    is_second = is_rule and len(block) == 1 and bool(_RULE.match(block[0]))
    return len(block) == LONGEST_BLOCK or quote != quote_of_block or is_second


def _underlines(rule: str, heading: str) -> bool:
    return abs(columns(rule.strip(" \t>")) - columns(heading.strip(" \t>"))) <= UNDERLINE


def _divided(block: list[str], code_at: int = CODE_AT) -> Iterator[Piece]:
    """Divide a block into a rule, paragraphs, and a heading with its underline or another rule."""
    texts = [*block]
    over = ""
    under = ""
    heading = ""
    if texts and _RULE.match(texts[0]):
        over = texts.pop(0)
    if texts and _RULE.match(texts[-1]):
        under = texts.pop()
    if under and texts and _underlines(under, texts[-1]):
        heading = texts.pop()
    is_framed = heading != "" and not texts and over.strip() == under.strip()
    if over and not is_framed:
        yield Piece([over])
        over = ""
    yield from _paragraphs(texts, code_at)
    if heading:
        lines = [*filter(None, [over, heading, under])]
        yield replace(Piece.paragraph([TextLine.of(heading)]), lines=lines, rules=(over, under))
    elif under:
        yield Piece([under])


def _fields(block: Sequence[str]) -> list[Piece]:
    """Return the fields that the head of a mail, or of a control file, begins with; none for another block."""
    fields: list[Piece] = []
    if not block:
        return fields
    first = _FIELD.match(block[0])
    if not first or first[1] not in _FIRST_FIELDS:
        return fields
    stays = False  # the field before
    for line in block:
        found = _FIELD.match(line)
        if not (found or (stays and line[0].isspace())):
            break
        stays = True
        piece = Piece([line], kind="fields")
        if found and found[1] in _TEXT_FIELDS:
            stays = False
            text = line[found.end() :].rstrip()
            if _has_words(text):
                piece = Piece([line], text, found[0])
        fields.append(piece)
    return fields


def _paragraphs(block: Sequence[str], code_at: int) -> Iterator[Piece]:
    """Divide a block without rules into fields, paragraphs and code."""
    fields = _fields(block)
    yield from fields
    lines = _with_columns([TextLine.of(line) for line in block[len(fields) :]])
    if not lines:
        return
    if _is_code(lines, code_at):
        for line in lines:
            yield Piece([line.whole], kind="code")
        return
    width = _width(lines)
    is_verse = _is_verse(lines)
    inside = _inside_tags(lines)
    paragraph = lines[:1]
    for index, line in enumerate(lines[1:], 1):
        if index not in inside and (is_verse or not _goes_on(paragraph, line, width)):
            yield Piece.paragraph(paragraph)
            paragraph = []
        paragraph.append(line)
    yield Piece.paragraph(paragraph)


def _inside_tags(lines: Sequence[TextLine]) -> set[int]:
    """Return the indices of lines that begin inside a tag, or an element that is copied, of a line before."""
    inside = set[int]()
    for index, line in enumerate(lines):
        end, tag = open_in(line.text)
        further = [other.text.lower() for other in lines[index + 1 : index + 1 + LONGEST_TAG]] if end else []
        for number, text in enumerate(further, index + 1):
            before, found, _ = text.partition(end)
            tag += before
            if found and (end != ">" or "=" in tag):  # a <b and c> d are no tag
                inside.update(range(index + 1, number + 1))
            if found:
                break
    return inside


def _with_columns(lines: Sequence[TextLine]) -> list[TextLine]:
    """Return lines in which a gap of three spaces parts columns only if the text of another line begins there too."""
    begins = Counter(line.start + columns(line.mark) for line in lines if line.mark)
    found: list[TextLine] = []
    for line in lines:
        is_term = line.is_column and not _MARKS.fullmatch(line.mark)
        is_narrow = is_term and _COLUMN.findall(line.mark)[-1:] == [" " * 3]
        if is_narrow and begins[line.start + columns(line.mark)] == 1:
            line = replace(line, mark="", text=line.body)
        found.append(line)
    return found


def _goes_on(paragraph: Sequence[TextLine], line: TextLine, width: int) -> bool:
    """Return whether a paragraph, in a block `width` columns wide, goes on in a line."""
    first = paragraph[0]
    last = paragraph[-1]
    is_joined = len(paragraph) > 1
    if _BREAK.search(last.text) or _ELEMENT.match(line.text) or line.text.startswith(("![", "[![")):
        return False
    if _is_open(paragraph):
        return True
    if last.tail or last.is_alone or line.is_alone or (is_joined and line.start != last.start):
        return False
    room = width - _needed(last, line)  # columns; negative if the first word did not fit
    ends = _ENDS_SENTENCE.search(last.text) is not None
    is_lower = line.body[0].isalpha() and not line.body[0].isupper()
    is_indented = line.start > last.start
    if line.mark and (first.mark or ends or room >= 0 or is_indented or line.is_column):
        return False  # otherwise it is a number or a dash of a sentence
    if is_joined and is_lower and not ends:
        return True
    if is_indented and not first.mark and (room >= 0 or width < NARROW):
        return False
    alike = 2 if is_lower else 1  # words
    if line.body.split()[:alike] == last.body.split()[:alike] or (ends and last.end > width):
        return False  # items often begin alike; or last has a long word, and may have any width
    # People who wrap by hand leave more room. A line that ends with a sentence may be the last of its paragraph.
    by_hand = width >= NARROW and (not ends or (is_lower and last.text.endswith(".")))
    slack = 0  # columns that may be left free in a line that is wrapped
    if by_hand:
        slack = width // (3 if is_lower or is_joined else 8)
    if not (first.mark and line.start > first.start):
        room += max(0, last.start + NARROW - width)
    return room < slack


def _is_open(paragraph: Sequence[TextLine]) -> bool:
    """Return whether a paragraph begins with a tag of HTML, and does not have the closing one."""
    found = _ELEMENT.match(paragraph[0].text)
    if not found:
        return False
    closing = f"</{found[1]}".lower()
    return not any(closing in line.text.lower() for line in paragraph)


def _needed(line: TextLine, following: TextLine) -> int:
    """Return the width in columns that a line would have with the first word of the following one."""
    return line.end + 1 + columns(_CHUNK.findall(following.body)[0])


def _width(lines: Sequence[TextLine]) -> int:
    """Return the columns of the longest line without a long word.

    Lines may end early before such a word. If all do, it is the usual width of texts, as far as a line fills it.
    """
    widths = [line.end for line in lines if not line.has_long_word]
    has_long_word = [line.has_long_word for line in lines]
    if (False, False) not in pairwise(has_long_word):
        longest = max(line.end for line in lines)
        widths.append(min(longest, USUAL_WIDTH))
    return max(widths)


def _is_verse(lines: Sequence[TextLine]) -> bool:
    """Return whether the lines of a block end on purpose: all begin with capitals, and not all are full."""
    if len(lines) < 3 or any(line.mark or line.text[0].islower() or line.text[0] == "<" for line in lines):
        return False
    width = max(_width(lines), NARROW)
    return any(_needed(line, following) <= width for line, following in pairwise(lines))


def _is_code(lines: Sequence[TextLine], code_at: int) -> bool:
    """Return whether a block is indented code: no list or options, and less than half of it reads like text."""
    if lines[0].mark.strip(" #") or lines[0].text.startswith("-") or min(line.start for line in lines) < code_at:
        return False
    texts = [line.text for line in lines]
    prose = filter(_is_prose, texts)
    return 2 * sum(map(len, prose)) < sum(map(len, texts))


def _is_prose(text: str) -> bool:
    """Return whether most words are plain ones, and enough for a title or, after a small letter, for a sentence."""
    words = [word for word in text.split() if word[0].isalpha() or word[0] in "\"'“‘(*_"]
    plain = sum(word.isalpha() or _PLAIN_WORD.fullmatch(word) is not None for word in words)
    enough = 2 if text[0].isupper() else 5  # plain words
    return 4 * plain >= 3 * len(words) and (plain >= enough or not text.isascii())


def _has_words(text: str) -> bool:
    """Return whether a text has something to translate besides names of fields, tags and places of links."""
    text = _CODES.sub(" ", _FIELD.sub("", text) or text)
    return _SPOKEN.match(text) is not None or any(
        _PLAIN_WORD.fullmatch(word) or _UNSPACED_WORD.search(word) for word in text.split()
    )


def columns(text: str) -> int:
    """Return the width of a text in a terminal: full-width characters take two columns, combining ones none."""
    text = text.expandtabs(TAB)
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    combining = sum(map(bool, map(unicodedata.combining, text)))
    return len(text) + wide - combining
