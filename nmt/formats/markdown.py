"""Reader of Markdown inside a paragraph: links, images, emphasis, code, and HTML (CommonMark, section 6).

Its blocks are read by document.py.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from nmt.formats.segments import Segment
from nmt.formats.tags import TAGS, Elements
from nmt.formats.terms import COPIED, Span
from nmt.formats.tokens import Sign, Token, parts_of, plain

_PLACE = r"<[^<>\n]*>|(?:[^\s()<>]|\((?:[^\s()]|\([^\s()]*\))*\))*"  # of a link; brackets in it are balanced
_TITLE = r"\"[^\"]*\"|'[^']*'|\([^()]*\)"
_TO = re.compile(rf"\]\(\s*(?:{_PLACE})(?:\s+(?:{_TITLE}))?\s*\)(?:\{{[^{{}}\n]*\}})?|\]\[(?P<label>[^\[\]\n]*)\]")
"""Pattern for the end of a link: its place and title, or the label of a reference, which may be empty"""
_IN_URL = r"[^\s<>\"`()\[\]\u3000-\u303f\uff00-\uffef]"
SHORTCODE = r"(?<![\d:]):(?:[a-z][\w+-]{1,40}|[+-]1|100):(?![^\W_]|:)"
"""Pattern for the name of a pictograph: :dog:, :+1:"""
_INLINE = re.compile(
    r"(?P<ticks>`+)|(?P<copy><(?:[A-Za-z][A-Za-z\d+.-]{1,30}:[^\s<>]*|[^\s<>@/]+@[^\s<>@]+)>"
    r"|\$\$(?=[^$\n]{0,500}[\\_^=+<>]|[^\s$]{1,40}\$\$)[^$\n]{1,500}\$\$"  # a formula
    r"|(?<![\w+])\+\+(?=[A-Za-z\d\"])[\w\"-]+(?:\+[\w\"-]+)*\+\+(?!\w)"  # keys, of PyMdown
    r"|(?<![\w$])\$(?![\s{$])(?=[^$\n]{0,200}[\\_^=+<>]|[^\s$]{1,40}\$)[^$\n]{1,200}(?<!\s)\$(?![\w$]))"
    rf"|(?P<url>(?<![A-Za-z\d])(?:https?://|www\.)(?:{_IN_URL}|\({_IN_URL}*\))*(?<![*_~.,;:!?]))"
    rf"|\\(?P<escaped>[!-/:-@\[-`{{-~])|(?P<note>\[\^[^\[\]\s]+\]|{SHORTCODE})"
    r"|(?P<opening>!?\[)|(?P<closing>\])|(?P<emphasis>\*{1,3}|(?<!_)_{1,3}(?!_)|~~|(?<![=!<>])==(?![=>])|\^\^)"
    r"|(?P<script>(?<=\w)(?P<of_script>[~^])(?P<raised>[^\W_][\w,.+-]{0,20})(?P=of_script))|(?P<html>[<&])",
    re.DOTALL,
)
_PIPES = re.compile(r"\\[!-/:-@\[-`{-~]|(?P<ticks>`+)|(?P<pipe>\|)")  # between cells
_ESCAPES_OF_CELLS = {"|": "\\|"}
_END_OF_REFERENCE = re.compile(r"_{1,2}(?![\w*])")  # of reStructuredText: `a page`_
_WORD = re.compile(r"\S")
_BRACKET = re.compile(r"[\[\]]")
BRACKETS = ("[", "![")
LONGEST_LABEL = 999  # characters

Defines = Callable[[str], bool]
"""Whether a document defines the place of a link by its label"""


class _Open(NamedTuple):
    """A bracket or a mark of emphasis that is text unless it finds its other half."""

    token: int
    """Index of its token"""
    end: int
    """Offset behind it in the text"""


NOTHING = _Open(-1, 0)  # less than any other


class _Reader:
    """The tokens of a paragraph so far; what is text is put together at the end."""

    def __init__(self, text: str, defines: Defines) -> None:
        self.text = text
        self.defines = defines
        self.tokens: list[Token] = []
        self.opened = defaultdict[str, list[_Open]](list)  # by their marks

    def add(self, raw: str, sign: str = "") -> None:
        """Add text; `sign` is what it stands for, by default itself."""
        if raw:
            signs: Sequence[Sign] = [(sign, raw)] if sign else plain(raw)
            self.tokens.append(Token("text", raw, signs))

    def open(self, found: re.Match[str]) -> None:
        """Add what may turn out to open a link or emphasis."""
        self.opened[found[0]].append(_Open(len(self.tokens), found.end()))
        self.add(found[0])

    def close(self, other: _Open, raw: str, label: str = "", is_mark: bool = False) -> None:
        """Add the other half of what was opened; what was opened inside it without another half stays text."""
        for opened in self.opened.values():
            while opened and opened[-1] >= other:
                opened.pop()
        name = str(other.token)
        self.tokens[other.token] = Token("open", self.tokens[other.token].raw, name=name, is_mark=is_mark)
        self.tokens.append(Token("close", raw, name=name, label=label, is_mark=is_mark))

    def last_bracket(self) -> _Open:
        """Return the last opening bracket that has no other half yet."""
        last: list[_Open] = []
        for mark in BRACKETS:
            last += self.opened[mark][-1:]
        return max(last, default=NOTHING)

    def bracket(self, at: int) -> int:
        """Read a closing bracket at an offset; return the offset behind it and, for a link, behind its place."""
        other = self.last_bracket()
        place = _TO.match(self.text, at)
        if other is not NOTHING and place:
            label = self.text[other.end : at] if place["label"] == "" else ""
            self.close(other, place[0], label)
            return place.end()
        label = self.text[max(other.end, at - LONGEST_LABEL) : at]
        if other is not NOTHING and not _BRACKET.search(label) and self.defines(label):
            self.close(other, "]", label)
            return at + 1
        for mark in BRACKETS:
            if self.opened[mark][-1:] == [other]:
                self.opened[mark].pop()
        self.add("]")
        return at + 1

    def emphasis(self, found: re.Match[str]) -> None:
        """Read a mark of emphasis: it opens before a word, and closes behind one; _ and = not inside a word."""
        mark = found[0]
        before = self.text[: found.start()][-1:]
        behind = self.text[found.end() : found.end() + 1]
        is_inside = mark[0] in "_=" and before.isalnum() and behind.isalnum()
        opened = self.opened[mark]
        if opened and opened[-1] > self.last_bracket() and _WORD.match(before) and not is_inside:
            self.close(opened[-1], mark, is_mark=True)
        elif _WORD.match(behind) and not (mark[0] in "_=" and before.isalnum()):
            self.open(found)
        else:
            self.add(mark)

    def script(self, found: re.Match[str]) -> None:
        """Add a subscript or superscript, as in H~2~O."""
        mark = found["of_script"]
        name = str(len(self.tokens))
        self.tokens.append(Token("open", mark, name=name, is_mark=True))
        self.add(found["raised"])
        self.tokens.append(Token("close", mark, name=name, is_mark=True))


def _defines_nothing(label: str) -> bool:
    return False


def read_markdown(text: str, defines: Defines = _defines_nothing, separators: Sequence[Span] = ()) -> Segment:
    """Take out the marks of links, images and emphasis, and tags; copy code; decode escapes and entities.

    [text] is a link if the document defines it. `separators` divide cells, in which sentences and marks end.
    """
    tokens: list[Token] = []
    at = 0
    for start, end in separators:
        tokens += _cell(text[at:start], defines)
        tokens.append(Token("alone", text[start:end], parts=True, ends=True))
        at = end
    tokens += _cell(text[at:], defines) if separators else _read(text, defines)
    is_row = any("|" in span.text_in(text) for span in separators)
    return Segment(text, _put_together(tokens), _ESCAPES_OF_CELLS if is_row else None)


def _cell(text: str, defines: Defines) -> list[Token]:
    """Return the tokens of a cell; one without letters, such as a number, is copied."""
    core = text.strip()
    if not core or any(map(str.isalpha, core)):
        return _read(text, defines)
    before, _, behind = text.partition(core)
    return [*parts_of(plain(before)), Token("copy", core), *parts_of(plain(behind))]


def pipes_of(row: str) -> list[Span]:
    """Return the pipes between the cells of a row, outside code and not escaped."""
    spans = _code_spans(row)
    found: list[Span] = []
    at = 0
    while pipe := _PIPES.search(row, at):
        at = pipe.end()
        if pipe["ticks"]:
            at = spans.get(pipe.start(), at)
        elif pipe["pipe"]:
            found.append(Span(*pipe.span()))
    return found


def unbroken(text: str) -> list[Span]:
    """Return the spans in which a line must not break: places of links, tags, code and placeholders."""
    found: list[Span] = []
    at = 0
    for token in _read(text, _defines_nothing):
        end = at + len(token.raw)
        if token.kind != "text":
            found.append(Span(at, end))
        at = end
    return [*found, *COPIED.spans(text)]


def _read(text: str, defines: Defines) -> list[Token]:
    """Return the tokens of a text without separators; those of consecutive text are not put together yet."""
    reader = _Reader(text, defines)
    elements = Elements(text)
    spans = _code_spans(text)
    at = 0
    while found := _INLINE.search(text, at):
        reader.add(text[at : found.start()])
        at = found.end()
        if found["ticks"]:
            at = spans.get(found.start(), at)
            is_code = at > found.end()
            reference = _END_OF_REFERENCE.match(text, at) if is_code else None
            if reference and not reader.opened[reference[0]]:  # else it closes emphasis: _see `code`_
                at = reference.end()
            code = text[found.start() : at]
            if is_code:
                reader.tokens.append(Token("copy", code))
            else:
                reader.add(code)
        elif found["url"]:
            reader.add(found[0])
        elif found["copy"]:
            reader.tokens.append(Token("copy", found[0]))
        elif found["escaped"]:
            reader.add(found[0], found["escaped"])
        elif found["note"]:
            reader.tokens.append(Token("alone", found[0]))
        elif found["opening"]:
            reader.open(found)
        elif found["closing"]:
            at = reader.bracket(found.start())
        elif found["emphasis"]:
            reader.emphasis(found)
        elif found["script"]:
            reader.script(found)
        else:
            tag = TAGS.match(text, found.start())
            if tag:
                token, at = elements.token(tag)
                reader.tokens.append(token)
            else:
                reader.add(found[0])
    reader.add(text[at:])
    return reader.tokens


def _code_spans(text: str) -> dict[int, int]:
    """Return the end of each code span by its start: it ends at the next run of as many backticks."""
    spans: dict[int, int] = {}
    following: dict[int, int] = {}  # end of the next run of backticks, by its length
    for run in reversed([*re.finditer("`+", text)]):
        length = len(run[0])
        if length in following:
            spans[run.start()] = following[length]
        following[length] = run.end()
    return spans


def _put_together(tokens: Sequence[Token]) -> Iterator[Token]:
    """Yield tokens, with consecutive text as one, and the white space at its edges apart."""
    run: list[Sign] = []
    for token in tokens:
        if token.kind in ("text", "space"):
            run += token.signs
            continue
        yield from parts_of(run)
        run = []
        yield token
    yield from parts_of(run)
