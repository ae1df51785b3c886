"""Tokens of a unit: codes, text and white space, as a reader finds them, and as a segment is built from them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from typing import Literal, Self

from nmt.formats.codes import PLAIN_SPACES, Code
from nmt.text.scripts import has_words

SPECIAL_SPACE = re.compile(r"[^\S \n]")
"""White space other than plain spaces and line ends"""
_LINK = re.compile(r"[^\w\s<>()\[\]{}\"'“”‘’«»]")  # what two copies may have between them and be one
Sign = tuple[str, str]
"""A character of text, and how the unit writes it; an entity may stand for several characters"""
Kind = Literal["text", "space", "open", "close", "alone", "copy"]
_CODES = ("open", "close", "alone")


@dataclass(frozen=True)
class Token:
    """A piece of a unit: a code, text, an element that is copied, or the white space at an edge of text.

    `a <b>x &amp; y</b>` is text "a", space, open "<b>", text "x & y", close "</b>".
    """

    kind: Kind
    raw: str
    signs: Sequence[Sign] = ()  # of text and space, and of white space that is a code, such as &nbsp;
    name: str = ""  # of codes that open and close
    parts: bool = False  # whether it parts words even without a space
    ends: bool = False  # whether a sentence ends at it
    label: str = ""  # of a closing code: the text inside, by which it is found elsewhere, as in Markdown's [text][]
    is_mark: bool = False  # whether it would be text beside its other half, as in ****

    @classmethod
    def of(cls, kind: Kind, signs: Sequence[Sign], parts: bool = False, ends: bool = False) -> Self:
        """Return the token of a run of characters."""
        return cls(kind, "".join(raw for _, raw in signs), signs, parts=parts, ends=ends)

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
    number = 0
    follows = False
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
        beside = [*tokens[max(0, index - 1) : index], *tokens[index + 1 : index + 2]]
        yield Code(
            token.raw,
            kind,
            number,
            before=_space_at(tokens, index - 1),
            behind=_space_at(tokens, index + 1),
            follows=follows,
            parts=token.parts,
            ends=token.ends,
            is_between_words=all(other.kind in ("text", "copy") for other in beside),
            is_blank=bool(token.signs),
            is_mark=token.is_mark,
            mark=tokens[index + 2].text[:1] if index + 2 < len(tokens) else "",
        )
        number += 1
        follows = True


def _space_at(tokens: Sequence[Token], index: int) -> str:
    """Return a token's text if it is white space between two other tokens, else an empty one."""
    is_inner = 0 < index < len(tokens) - 1
    return tokens[index].raw if is_inner and tokens[index].kind == "space" else ""


def raw_of(tokens: Iterable[Token]) -> str:
    """Return how the unit writes tokens."""
    return "".join(token.raw for token in tokens)


def prepared(tokens: Iterable[Token]) -> list[Token]:
    """Turn white space with a meaning of its own into codes; join codes without words that touch, and copies."""
    parts = chain.from_iterable(map(_cut_at_special_space, _joined_copies(tokens)))
    return [*_joined_codes(_with_own_space([*parts]))]


def parts_of(signs: Sequence[Sign]) -> Iterator[Token]:
    """Yield a run of text, and the white space at its edges."""
    start = 0
    while start < len(signs) and signs[start][0].isspace():
        start += 1
    stop = len(signs)
    while stop > start and signs[stop - 1][0].isspace():
        stop -= 1
    if start > 0:
        yield Token.of("space", signs[:start])
    if start < stop:
        yield Token.of("text", signs[start:stop])
    if stop < len(signs):
        yield Token.of("space", signs[stop:])


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
    signs = token.signs
    run: list[Sign] = []
    end = 0
    for is_space, group in groupby(signs, lambda sign: sign[0].isspace()):
        own = [*group]
        start = end
        end += len(own)
        is_special = is_space and any(sign not in PLAIN_SPACES for sign, _ in own)
        is_inner = start > 0 and end < len(signs)
        if is_special and is_inner and not _is_of_language(signs[start - 1][0], signs[end][0]):
            yield Token.of("text", run)
            yield Token.of("alone", own, parts=True)
            run = []
        else:
            run += own
    yield Token.of("text", run)


def _joined_codes(tokens: Sequence[Token]) -> Iterator[Token]:
    """Yield tokens; codes without words that have nothing but spaces between them are one, and stay together."""
    pairs = pairs_of(tokens)
    paired = {*pairs, *pairs.values()}
    run: list[Token] = []
    for index, token in enumerate(tokens):
        is_alone = token.kind in ("open", "close", "alone") and index not in paired
        if is_alone or (run and token.kind == "space"):
            run.append(token)
            continue
        yield from _as_one(run)
        yield token
        run = []
    yield from _as_one(run)


def _joined_copies(tokens: Iterable[Token]) -> Iterator[Token]:
    """Yield tokens; what is copied is one with the next such thing one sign behind it: <kbd>Ctrl</kbd>+<kbd>C</kbd>."""
    run: list[Token] = []  # a copy, and maybe a sign behind it
    for token in tokens:
        if run and token.kind == "copy":
            run = [Token("copy", raw_of([*run, token]))]
        elif len(run) == 1 and token.kind == "text" and _LINK.fullmatch(token.raw):
            run.append(token)
        else:
            yield from run
            run = [token] if token.kind == "copy" else []
            if not run:
                yield token
    yield from run


def _as_one(run: Sequence[Token]) -> Iterator[Token]:
    """Yield codes without words as one code, and the space behind them."""
    codes = [*run]
    behind: list[Token] = []
    if codes and codes[-1].kind == "space":
        behind.append(codes.pop())
    if len(codes) == 1:
        yield replace(codes[0], kind="alone", name="")
    elif codes:
        parts = any(token.parts or token.kind == "space" for token in codes)
        ends = any(token.ends for token in codes)
        yield Token("alone", raw_of(codes), parts=parts, ends=ends)
    yield from behind


def edges_of(tokens: Sequence[Token]) -> tuple[int, int]:
    """Return (first, stop) of the tokens between a unit's edges: codes without words at its ends, which stay there.

    At its beginning, what has no letters and digits stays between them, such as the / of <x/> / <x/>.
    """
    first = 0
    last = len(tokens)
    for index, token in enumerate(tokens):
        if token.kind == "alone":
            first = index + 1
        elif token.kind != "space" and not (token.kind == "text" and not has_words(token.text)):
            break
    while last > first and tokens[last - 1].kind in ("alone", "space"):
        last -= 1
    if any(token.kind == "alone" for token in tokens[last:]):
        return first, last
    return first, len(tokens)


def _is_of_language(before: str, behind: str) -> bool:
    """Return whether the language has white space between these characters, as French has: « oui » !"""
    return behind in "!?:;»›%" or before in "«‹"


def _with_own_space(tokens: list[Token]) -> list[Token]:
    """Turn white space between tokens into codes if it parts words, or is special and beside a code: &nbsp;<br/>.

    That at the edges of the unit and of elements stays space.
    """
    at_edges = {0, len(tokens) - 1}
    for opening, closing in pairs_of(tokens).items():
        at_edges |= {opening + 1, closing - 1}
    codes = (*_CODES, "copy")
    for index, token in enumerate(tokens):
        if token.kind != "space" or index in at_edges:
            continue
        is_beside = tokens[index - 1].kind in codes or tokens[index + 1].kind in codes
        if token.parts or (is_beside and token.raw.strip(PLAIN_SPACES)):
            tokens[index] = replace(token, kind="alone", parts=True)
    return tokens


def pairs_of(tokens: Sequence[Token]) -> dict[int, int]:
    """Return the index of the closing code by that of the opening code of each pair.

    In <b><i></b></i>, only b is a pair: </b> closes what is open inside.
    """
    opened: list[int] = []
    names = Counter[str]()
    pairs: dict[int, int] = {}
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
