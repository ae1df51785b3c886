"""Tokens of a unit: codes, text and white space, as a reader finds them, and as a segment is built from them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, takewhile
from typing import Literal

from nmt.formats.codes import PLAIN_SPACES, Code
from nmt.text.scripts import has_words

SPECIAL_SPACE = re.compile(r"[^\S \n]")
"""White space other than plain spaces and line ends"""
Sign = tuple[str, str]
"""A character of text, and how the unit writes it; an entity may stand for several characters"""
Kind = Literal["text", "space", "open", "close", "alone", "copy"]
_CODES = ("open", "close", "alone")


@dataclass(frozen=True)
class Token:
    """A piece of a unit: a code, text, an element that is copied, or the white space at an edge of text."""

    kind: Kind
    raw: str
    signs: Sequence[Sign] = ()  # of text and space, also where space stands for a code
    name: str = ""  # of codes that open and close
    parts: bool = False  # whether it parts words even without a space
    ends: bool = False  # whether a sentence ends at it
    label: str = ""  # of a closing code: the text inside, by which it is found elsewhere, as in Markdown's [text][]

    @property
    def is_block(self) -> bool:
        """Whether it is a tag of a block, or of what stands between blocks."""
        return self.name != "" and self.parts

    @property
    def text(self) -> str:
        """Text and space without entities, what is copied as it is."""
        return "".join(sign for sign, _ in self.signs) or self.raw


def codes_of(tokens: Sequence[Token], closings: Mapping[int, int]) -> Iterator[Code | None]:
    """Yield the code that each token is, given the closing codes of the opening ones; None for text and space."""
    number, follows = 0, False
    closed = {*closings.values()}
    for index, token in enumerate(tokens):
        if token.kind not in _CODES:
            follows &= token.kind == "space"
            yield None
            continue
        kind: Literal["open", "close", "alone"] = "alone"
        if index in closed:
            kind = "close"
        elif index in closings:
            kind = "open"
        beside = (tokens[at].kind for at in (index - 1, index + 1) if 0 <= at < len(tokens))
        yield Code(
            token.raw,
            kind,
            number,
            before=_space_at(tokens, index - 1),
            behind=_space_at(tokens, index + 1),
            follows=follows,
            parts=token.parts,
            ends=token.ends,
            is_between_words=all(each in ("text", "copy") for each in beside),
            is_blank=bool(token.signs),
            mark="".join(other.text for other in tokens[index + 2 : index + 3])[:1],
        )
        number += 1
        follows = True


def _space_at(tokens: Sequence[Token], index: int) -> str:
    """Return the white space that a token is; that at the ends of the unit belongs to neither side."""
    is_inner = 0 < index < len(tokens) - 1
    return tokens[index].raw if is_inner and tokens[index].kind == "space" else ""


def prepared(tokens: Iterable[Token]) -> list[Token]:
    """Return tokens in which white space with a meaning of its own, and codes without words that touch, are codes."""
    own = _with_own_space([part for token in tokens for part in _cut_at_special_space(token)])
    return [*_joined_codes(own)]


def parts_of(signs: Sequence[Sign]) -> Iterator[Token]:
    """Yield a run of text, and the white space at its edges."""
    start = len([*takewhile(lambda sign: sign[0].isspace(), signs)])
    stop = len(signs) - len([*takewhile(lambda sign: sign[0].isspace(), reversed(signs[start:]))])
    parts: list[tuple[Kind, Sequence[Sign]]] = [
        ("space", signs[:start]),
        ("text", signs[start:stop]),
        ("space", signs[stop:]),
    ]
    for kind, part in parts:
        if part:
            yield Token(kind, "".join(raw for _, raw in part), part)


def plain(text: str) -> list[Sign]:
    """Return the characters of a text that stand for themselves."""
    return [(character, character) for character in text]


def _cut_at_special_space(token: Token) -> Iterator[Token]:
    """Yield the words of a text and, as codes, the white space between two that is no plain space: 5&nbsp;km.

    That beside punctuation is of the language, as in French, and is text.
    """
    if token.kind != "text" or not SPECIAL_SPACE.search(token.text):
        yield token
        return
    run = list[Sign]()
    signs = token.signs
    for is_space, group in groupby(range(len(signs)), lambda at: signs[at][0].isspace()):
        places = [*group]
        own = [signs[at] for at in places]
        is_special = is_space and any(sign not in PLAIN_SPACES for sign, _ in own)
        is_outer = places[0] == 0 or places[-1] + 1 == len(signs)
        if is_special and not is_outer and not _is_of_language(signs[places[0] - 1][0], signs[places[-1] + 1][0]):
            yield Token("text", "".join(raw for _, raw in run), run)
            yield Token("alone", "".join(raw for _, raw in own), own, parts=True)
            run = []
        else:
            run += own
    yield Token("text", "".join(raw for _, raw in run), run)


def _joined_codes(tokens: Sequence[Token]) -> Iterator[Token]:
    """Yield tokens; codes without words that have nothing but spaces between them are one, and stay together."""
    paired = {place for pair in pairs_of(tokens).items() for place in pair}
    run = list[Token]()
    for index, token in enumerate(tokens):
        is_alone = token.kind in ("open", "close", "alone") and index not in paired
        if is_alone or (run and token.kind == "space"):
            run.append(token)
            continue
        yield from _as_one(run)
        yield token
        run = []
    yield from _as_one(run)


def _as_one(run: Sequence[Token]) -> Iterator[Token]:
    """Yield codes without words as one code, and the space behind them."""
    behind = run[-1:] if run and run[-1].kind == "space" else []
    codes = run[: len(run) - len(behind)]
    if len(codes) == 1:
        yield replace(codes[0], kind="alone", name="")
    elif codes:
        raw = "".join(token.raw for token in codes)
        parts = any(token.parts or token.kind == "space" for token in codes)
        yield Token("alone", raw, parts=parts, ends=any(token.ends for token in codes))
    yield from behind


def edges_of(tokens: Sequence[Token]) -> tuple[int, int]:
    """Return which tokens are between the codes without words that a unit begins and ends with, which stay there.

    What has no letters and digits, such as the / of <x/> / <x/>, stays between them at the beginning.
    """
    first, last = 0, len(tokens)
    for index, token in enumerate(tokens):
        if token.kind == "alone":
            first = index + 1
        elif token.kind != "space" and not (token.kind == "text" and not has_words(token.text)):
            break
    while last > first and tokens[last - 1].kind in ("alone", "space"):
        last -= 1
    return first, last if any(token.kind == "alone" for token in tokens[last:]) else len(tokens)


def _is_of_language(before: str, behind: str) -> bool:
    """Return whether white space is that of French and others, which have it beside some marks."""
    return behind in "!?:;»›%" or before in "«‹"


def _with_own_space(tokens: list[Token]) -> list[Token]:
    """Make codes of white space outside of elements that is kept: what parts words, and the like of &nbsp;<br/>."""
    closings = pairs_of(tokens)
    at_edges = {opening + 1 for opening in closings} | {closing - 1 for closing in closings.values()}
    at_edges |= {0, len(tokens) - 1}
    codes = ("open", "close", "alone", "copy")
    for index, token in enumerate(tokens):
        if token.kind != "space" or index in at_edges:
            continue
        is_beside = tokens[index - 1].kind in codes or tokens[index + 1].kind in codes
        if token.parts or (is_beside and token.raw.strip(PLAIN_SPACES)):
            tokens[index] = replace(token, kind="alone", parts=True)
    return tokens


def pairs_of(tokens: Sequence[Token]) -> dict[int, int]:
    """Return the index of the closing code by that of the opening code of each pair; what overlaps a pair is none."""
    opened, names, pairs = list[int](), Counter[str](), dict[int, int]()
    for index, token in enumerate(tokens):
        if token.kind == "open":
            opened.append(index)
            names[token.name] += 1
        elif token.kind == "close" and names[token.name]:
            closed = ""
            while closed != token.name:
                other = opened.pop()
                closed = tokens[other].name
                names[closed] -= 1
            pairs[other] = index
    return pairs
