"""Segments as lists of pieces, written by those who know what each piece is. Imports nothing of nmt."""

from __future__ import annotations

import codecs
import html
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

CJK = "犬猫家木花山川空海鳥魚馬人手目口耳足心水火土金石田町村道店本"
SIGNS = "āăąćĉċčďđēĕėęěĝğġģĥħĩīĭį"
WIDE_SIGNS = "アイウエオカキクケコサシスセソタチツテトナニヌネ"
"""Letters of the signatures behind words, and behind words of scripts without spaces"""
_SHIFTED = str.maketrans(CJK, CJK[len(CJK) // 2 :] + CJK[: len(CJK) // 2])
_SPELLED = re.compile(r"&(?:#\d{1,7}|#[xX][0-9A-Fa-f]{1,6}|[A-Za-z]\w{1,31});")
WORD = "word"
MARK = "mark"
SPACE = "space"
OPEN = "open"
CLOSE = "close"
ALONE = "alone"
COPIED = "copied"
HOLDER = "holder"
ENTITY = "entity"
KEY = "key"
XML = ("xliff", "tmx", "android")
"""Formats whose segments are XML"""
CODES = (OPEN, CLOSE, ALONE)


@dataclass(frozen=True)
class Piece:
    """A piece of a segment."""

    kind: str
    raw: str
    """How the segment has it"""
    pair: int = -1
    """Number of the element that a code opens or closes"""
    breaks: bool = False
    """Whether a code, or a line break, ends a sentence"""
    soft: bool = False
    """Whether white space may become one space, a line break or another run of its kind"""
    sentence: int = -1
    """Number of the sentence of a word"""


@dataclass(frozen=True)
class Segment:
    """A unit of a format, piece by piece."""

    number: int
    form: str
    """html, xliff, tmx, po, ts, android or markdown"""
    pieces: Sequence[Piece]
    traits: frozenset[str] = frozenset()
    """Of its unit: preserve (white space), marked (in the file with accelerators)"""

    @property
    def raw(self) -> str:
        """The segment as its format has it."""
        return self.render(lambda word: word)

    @property
    def words(self) -> list[Piece]:
        """The pieces that a model translates."""
        return [piece for piece in self.pieces if piece.kind == WORD]

    def render(self, translate: Callable[[str], str]) -> str:
        """Return the segment with each of its words translated, and nothing else changed."""
        return "".join(translate(piece.raw) if piece.kind == WORD else piece.raw for piece in self.pieces)

    def spelled(self) -> Segment:
        """Return the segment with the entities of its XML in one spelling."""
        if self.form not in (*XML, "html"):
            return self
        return replace(self, pieces=[replace(piece, raw=spelled(piece.raw, self.form)) for piece in self.pieces])


def translated(word: str) -> str:
    """Return the word of the other language: letters shifted by half the alphabet."""
    return codecs.encode(word, "rot13").translate(_SHIFTED)


def spelled(text: str, form: str) -> str:
    """Return HTML or XML with its entities in one spelling: as characters but for those of &, < and >.

    Android also escapes characters that need not be escaped, or may be written as numbers.
    """

    def one(entity: re.Match[str]) -> str:
        return html.escape(html.unescape(entity[0]), quote=False)

    code = r"<!--.*?-->|<!\[CDATA\[|\]\]>|<[^<>]*>"
    text = re.sub(
        rf"({code})|([^<>\]]+|\])|>",
        lambda part: part[1] or _SPELLED.sub(one, part[2] or "&gt;"),
        text,
        flags=re.DOTALL,
    )
    if form == "android":
        text = re.sub(r"\\u([0-9A-Fa-f]{4})", lambda code: chr(int(code[1], 16)), text)
        text = re.sub(r"\\([?@])", r"\1", text)
    return text
