"""Reader of Markdown inside a paragraph: links, images, emphasis, code, and HTML (CommonMark, section 6).

Its blocks are read by document.py.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from nmt.formats.segments import Segment, Sign, Token, parts_of, plain
from nmt.formats.tags import TAGS, Elements

_PLACE = r"<[^<>\n]*>|(?:[^\s()<>]|\((?:[^\s()]|\([^\s()]*\))*\))*"  # of a link; brackets in it are balanced
_TITLE = r"\"[^\"]*\"|'[^']*'|\([^()]*\)"
_TO = re.compile(rf"\]\(\s*(?:{_PLACE})(?:\s+(?:{_TITLE}))?\s*\)(?:\{{[^{{}}\n]*\}})?|\]\[(?P<label>[^\[\]\n]*)\]")
"""Pattern for the end of a link: its place and title, or the label of a reference, which may be empty"""
_INLINE = re.compile(
    r"(?P<ticks>`+)|(?P<copy><(?:[A-Za-z][A-Za-z\d+.-]{1,30}:[^\s<>]*|[^\s<>@/]+@[^\s<>@]+)>)"
    r"|\\(?P<escaped>[!-/:-@\[-`{-~])|(?P<note>\[\^[^\[\]\s]+\]|(?<![\w:]):[a-z][\w+-]{1,40}:(?![\w:]))"
    r"|(?P<opening>!?\[)|(?P<closing>\])|(?P<emphasis>\*{1,3}|(?<!_)_{1,3}(?!_)|~~)|(?P<html>[<&])",
    re.DOTALL,
)
_WORD = re.compile(r"\S")
BRACKETS = ("[", "![")


class _Open(NamedTuple):
    """A bracket or a mark of emphasis that is text unless it finds its other half."""

    token: int
    """Index of its token"""
    end: int
    """Offset behind it in the text"""


NOTHING = _Open(-1, 0)


class _Reader:
    """The tokens of a paragraph so far; what is text is put together at the end."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[Token] = []
        self.opened = defaultdict[str, list[_Open]](list)  # by their marks

    def add(self, raw: str, sign: str = "") -> None:
        """Add text; `sign` is what it stands for, by default itself."""
        signs: Sequence[Sign] = [(sign, raw)] if sign else plain(raw)
        if raw:
            self.tokens.append(Token("text", raw, signs))

    def open(self, found: re.Match[str]) -> None:
        """Add what may turn out to open a link or emphasis."""
        self.opened[found[0]].append(_Open(len(self.tokens), found.end()))
        self.add(found[0])

    def close(self, other: _Open, raw: str, label: str = "") -> None:
        """Add the other half of what was opened; what was opened inside it and has none is text."""
        for opened in self.opened.values():
            while opened and opened[-1] >= other:
                opened.pop()
        name = str(other.token)
        self.tokens[other.token] = Token("open", self.tokens[other.token].raw, name=name)
        self.tokens.append(Token("close", raw, name=name, label=label))

    def last_bracket(self) -> _Open:
        """Return the last opening bracket that has no other half yet."""
        return max((opened[-1] for mark in BRACKETS if (opened := self.opened[mark])), default=NOTHING)

    def bracket(self, at: int) -> int:
        """Read a closing bracket at an offset; return the offset behind it, and behind the place of the link."""
        other, place = self.last_bracket(), _TO.match(self.text, at)
        if other is NOTHING or place is None:
            for mark in BRACKETS:
                if self.opened[mark][-1:] == [other]:
                    self.opened[mark].pop()
            self.add("]")
            return at + 1
        self.close(other, place[0], self.text[other.end : at] if place["label"] == "" else "")
        return place.end()

    def emphasis(self, found: re.Match[str]) -> None:
        """Read a mark of emphasis: it opens before a word, and closes behind one; _ not inside a word."""
        mark = found[0]
        before = self.text[: found.start()][-1:]
        behind = self.text[found.end() : found.end() + 1]
        is_inside = mark[0] == "_" and before.isalnum() and behind.isalnum()
        opened = self.opened[mark]
        if opened and opened[-1] > self.last_bracket() and _WORD.match(before) and not is_inside:
            self.close(opened[-1], mark)
        elif _WORD.match(behind) and not (mark[0] == "_" and before.isalnum()):
            self.open(found)
        else:
            self.add(mark)


def read_markdown(text: str) -> Segment:
    """Take out the marks of links, images and emphasis, and tags; copy code; decode escapes and entities."""
    return Segment(text, _put_together(_read(text)))


def _read(text: str) -> list[Token]:
    reader, elements, spans = _Reader(text), Elements(text), _code_spans(text)
    at = 0
    while found := _INLINE.search(text, at):
        reader.add(text[at : found.start()])
        at = found.end()
        if found["ticks"]:
            at = spans.get(found.start(), at)
            code = text[found.start() : at]
            reader.add(code) if at == found.end() else reader.tokens.append(Token("copy", code))
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
        elif tag := TAGS.match(text, found.start()):
            token, at = elements.token(tag)
            reader.tokens.append(token)
        else:
            reader.add(found[0])
    reader.add(text[at:])
    return reader.tokens


def _code_spans(text: str) -> dict[int, int]:
    """Return the end of each code span by its start: it ends at the next run of as many backticks."""
    spans, following = dict[int, int](), dict[int, int]()
    for run in reversed([*re.finditer("`+", text)]):
        length = len(run[0])
        if length in following:
            spans[run.start()] = following[length]
        following[length] = run.end()
    return spans


def _put_together(tokens: Sequence[Token]) -> Iterator[Token]:
    """Yield tokens, with consecutive text as one, and the white space at its edges apart."""
    run = list[Sign]()
    for token in tokens:
        if token.kind in ("text", "space"):
            run += token.signs
            continue
        yield from parts_of(run)
        run = []
        yield token
    yield from parts_of(run)
