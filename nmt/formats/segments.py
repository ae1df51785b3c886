"""Segments: the text of a unit that a model sees, and its codes, put back around the words of the translation.

A reader for each format (tags.py, markdown.py, strings.py) takes a unit apart into tokens, before anything cuts it. A
`Segment` builds from them the text, without codes and with entities decoded, and knows what the format says of it:
which spans are copied, where a sentence ends whatever its words, and which white space belongs to a code.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise, takewhile
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from nmt.formats.alignment import AlignedLine
from nmt.formats.terms import Span, find_copies
from nmt.text.scripts import has_words, joins

_CLOSING = re.compile(r"[.!?…,;:)\]}»”’\"'。！？、，；：）」』】]")
_OPENING = re.compile(r"[(\[{«„“‘¿¡「『【]")
SPECIAL_SPACE = re.compile(r"[^\S \n]")
"""White space other than plain spaces and line ends"""
IN_WORD = -2  # owner of a word that has tags inside it
PLAIN_SPACES = " \n"  # what a line of markup may have as white space without a meaning of its own

Sign = tuple[str, str]
"""A character of text, and how the unit writes it; an entity may stand for several characters"""
Kind = Literal["text", "space", "open", "close", "alone", "copy"]


@dataclass(frozen=True)
class Token:
    """A piece of a unit: a code, text, an element that is copied, or the white space at an edge of text."""

    kind: Kind
    raw: str
    signs: Sequence[Sign] = ()  # of text and space
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


@dataclass(eq=False)
class _Element:
    """A pair of codes, or a code without its pair: the span of the text inside, and the index of the element around.

    Spaces at the edges of what is inside belong to the codes.
    """

    parent: int
    start: int
    end: int
    opening: str
    closing: str = ""
    spaces: tuple[bool, bool] = (False, False)  # whether a space is before the first code, and behind the last
    parts: bool = False
    label: str = ""

    def stands_for_space(self, side: int) -> bool:
        """Return whether words outside (0: before it, 1: behind it) are apart from those inside without a space."""
        edge = self.closing[:1] if side else self.opening[-1:]
        return (self.parts or edge.isspace()) and not self.spaces[side]

    def needs_space(self, side: int, beside: str) -> bool:
        """Return whether codes without words had a space on a side where now a word is, or punctuation before them."""
        if not self.spaces[side] or beside == "" or beside.isspace():
            return False
        is_alone = self.start == self.end and (side == 0 or not _CLOSING.match(beside))
        return is_alone or joins(beside) or beside == "<"  # of a word, or of what is copied

    def place(self, aligned: AlignedLine) -> int:
        """Return the offset of a code without words in the translation, on that side of a space where it was."""
        at = aligned.between(self.start, (not self.spaces[0], not self.spaces[1]))
        if self.spaces[0]:
            return len(aligned.output) - len(aligned.output[at:].lstrip())
        return len(aligned.output[:at].rstrip())

    def in_same_word(self, line: AlignedLine, owners: NDArray[np.int_]) -> tuple[int, Span] | None:
        """Return the word and the span of content inside a word such as H<sub>2</sub>O, if the translation has it."""
        part = line.part(self.start)
        if not part:
            return None
        start, end, aligned = self.start - part.source, self.end - part.source, part.aligned
        for i, word in enumerate(aligned.source_words):
            if not (word.start <= start < word.end and word.start < end <= word.end) or word == (start, end):
                continue
            text = aligned.source[slice(*word)]
            same = [j for j, other in enumerate(aligned.words) if aligned.output[slice(*other)] == text]
            free = [j for j in same if owners[part.word + j] in (self.parent, IN_WORD)]
            if free:
                best = max(free, key=lambda j: float(aligned.weights[j, i]))
                shift = part.output + aligned.words[best].start - word.start
                return part.word + best, Span(start + shift, end + shift)
        return None


class Segment:
    """A unit taken apart into its text and its codes."""

    def __init__(
        self,
        raw: str,
        tokens: Iterable[Token],
        escapes: Mapping[str, str] | None = None,
    ) -> None:
        """Build the text of a unit; in the translation of one with codes, characters of `escapes` are written so."""
        self.raw = raw
        self.text = ""  # of two spaces with nothing but codes between them, it has the first
        self.kept: list[Span] = []  # of the text: what is copied, with its codes
        self.walls: list[int] = []  # offsets in the text where codes are, one for each
        self.ends: list[int] = []  # offsets in the text where a sentence ends, whatever its words
        self._edges = ["", ""]  # white space at the ends of the unit
        self._elements: list[_Element] = []  # by their opening codes
        tokens = _with_own_space([part for token in tokens for part in _cut_at_special_space(token)])
        tokens = [*_joined_codes(tokens)]
        first, last = _edges_of(tokens)
        edges = [tokens[:first], tokens[last:]]
        tokens = tokens[first:last]
        self._read(tokens)
        before, behind = ("".join(token.raw for token in edge) for edge in edges)
        self._edges = [before + self._edges[0], self._edges[1] + behind]
        signs = [sign for token in tokens for sign in token.signs]
        self._written = {sign: raw for sign, raw in reversed(signs) if sign != raw}  # by what they stand for
        if escapes and (self._elements or self._written):
            own = {sign: raw for sign, raw in escapes.items() if (sign, sign) not in signs}
            self._written = own | self._written

    def _read(self, tokens: Sequence[Token]) -> None:
        """Build the text and the elements."""
        closings = _pairs(tokens)
        openings = {closing: opening for opening, closing in closings.items()}
        spaces = {at for at in range(1, len(tokens) - 1) if tokens[at].kind == "space"}
        elements: dict[int, _Element] = {}  # by their first token
        around, is_apart = [-1], False
        for index, token in enumerate(tokens):
            start = len(self.text)
            if token.kind == "space":
                is_apart |= index - 1 in closings or index + 1 in openings
                if index - 1 in closings:
                    elements[index - 1].opening += token.raw
                elif index + 1 in openings:
                    elements[openings[index + 1]].closing = token.raw
                elif index in (0, len(tokens) - 1):
                    self._edges[index > 0] = token.raw
                elif self.text and not self.text[-1].isspace():
                    self.text += token.text
            elif token.kind in ("text", "copy"):
                if is_apart and self.text and not self.text[-1].isspace():
                    self.text += " "
                is_apart, start = False, len(self.text)
                self.text += token.text
                if token.kind == "copy":
                    self.kept.append(Span(start, len(self.text)))
            else:
                self.walls.append(start)
                is_apart |= token.parts
                if token.ends and self.text:
                    self.ends.append(start)
                before = index - 1 in spaces and index - 2 not in closings
                behind = index + 1 in spaces and index + 2 not in openings
                if index in openings:
                    element = elements[openings[index]]
                    element.end, element.closing = start, element.closing + token.raw
                    element.spaces, element.label = (element.spaces[0], behind), token.label
                    around.pop()
                    continue
                elements[index] = _Element(
                    around[-1], start, start, token.raw, spaces=(before, behind), parts=token.parts
                )
                if index in closings:
                    around.append(len(self._elements))
                self._elements.append(elements[index])
        self.text = self.text.rstrip()
        self.ends = [end for end in dict.fromkeys(self.ends) if end < len(self.text)]
        for element in self._elements:
            element.start, element.end = min(element.start, len(self.text)), min(element.end, len(self.text))

    @property
    def pieces(self) -> list[str]:
        """The text, cut where a sentence ends whatever its words."""
        bounds = pairwise([0, *self.ends, len(self.text)])
        return [piece for start, end in bounds if (piece := self.text[start:end].strip())]

    def put(self, aligned: AlignedLine) -> str:
        """Return the translation of `text` with the codes around the words that stand for what they had inside.

        Words are those of `words_of` with GLUE. Codes without words go where the nearest words are.
        """
        spans, output = self._spans(aligned), aligned.output
        inside = defaultdict(list)
        for index, element in enumerate(self._elements):
            inside[element.parent].append(index)
        for siblings in inside.values():
            siblings.sort(key=lambda index: (*spans[index], index), reverse=True)
        signs = [self._written.get(sign, sign) for sign in output]
        for copy in find_copies(output, [self.text[slice(*span)] for span in self.kept]):
            signs[slice(*copy)] = output[slice(*copy)]
        written, last, around = "", 0, [-1]
        begun = dict[int, int]()  # where the content of each element is written
        while around:
            if siblings := inside[around[-1]]:
                index = siblings.pop()
                around.append(index)
                element, end = self._elements[index], spans[index].start
                text = "".join(signs[last:end])
                if element.stands_for_space(0) and element.closing:
                    text = text.rstrip()
                before = (written[-1:] + text)[-1:]
                written += text + " " * element.needs_space(0, before) + element.opening
                begun[index] = len(written)
            else:
                index = around.pop()
                end = spans[index].end if index >= 0 else len(output)
                written += "".join(signs[last:end])
                if index >= 0:
                    element, behind = self._elements[index], output[max(last, end) :][:1]
                    is_found = not element.label or written[begun[index] :] == element.label
                    closing = element.closing if is_found else f"][{element.label}]"
                    written += closing + " " * element.needs_space(1, behind)
                    end = max(last, end) + (element.stands_for_space(1) and behind.isspace())
            last = max(last, end)
        return self._edges[0] + written + self._edges[1]

    def _spans(self, aligned: AlignedLine) -> list[Span]:
        """Return the span of each element's content in the translation, inside its parent's, outside its siblings'."""
        spans = [Span(0, 0)] * len(self._elements)
        owners = np.full(len(aligned.words), -1)  # innermost element of each word
        with_words: dict[int, list[int]] = defaultdict(list)  # by their parents
        others = []
        for index, element in enumerate(self._elements):
            same = element.in_same_word(aligned, owners)
            run = None if same else aligned.run(Span(element.start, element.end), owners == element.parent)
            if same:
                owners[same[0]] = IN_WORD
                spans[index] = same[1]
            elif run:
                owners[slice(*run)] = index
                spans[index] = Span(aligned.words[run.start].start, aligned.words[run.end - 1].end)
                with_words[element.parent].append(index)
            else:
                others.append(index)
        neighbours = defaultdict[tuple[int, int], int](int)  # where the last code beside the same words is
        for index in others:
            element = self._elements[index]
            around = Span(0, len(aligned.output)) if element.parent < 0 else spans[element.parent]
            at = element.place(aligned)
            for other in with_words[element.parent]:
                if spans[other].start < at < spans[other].end:
                    at = spans[other].start if index < other else spans[other].end
                if self._follows(index, other):
                    at = max(at, spans[other].end)
                if self._follows(index, other):
                    at = max(at, spans[other].end)
            beside = element.parent, element.start
            at = min(max(at, around.start, neighbours[beside]), around.end)
            neighbours[beside] = at
            spans[index] = Span(at, at)
        return spans

    def _follows(self, index: int, other: int) -> bool:
        """Return whether an element follows another one inside a word."""
        element, before = self._elements[index], self._elements[other]
        is_behind = other < index and before.end <= element.start
        return is_behind and all(map(joins, self.text[before.start : element.end]))


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


def with_spaces_of(source: str, output: str) -> str:
    """Return an output with the white space of its source, such as U+00A0, between two words that are the same there.

    It replaces plain spaces, a character for a character.
    """
    if not SPECIAL_SPACE.search(source.strip()):
        return output
    for found in re.finditer(r"(?<!\S)(?=(\S+)([^\S \n])(\S+))", source):
        before, space, behind = found.groups()
        at = output.find(f"{before} {behind}") + len(before)
        if at >= len(before):
            output = output[:at] + space + output[at + 1 :]
    return output


def read_line(text: str) -> Segment:
    """Keep tabs of a plain line, at which a sentence ends, and white space such as U+00A0 between words."""
    tokens = list[Token]()
    for is_tab, group in groupby(plain(text), lambda sign: sign[0] == "\t"):
        run = [*group]
        kind: Kind = "space" if is_tab else "text"
        raw = "".join(each for _, each in run)
        tokens.append(Token(kind, raw, run, parts=is_tab, ends=is_tab))
    return Segment(text, tokens)


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
        if is_special and not is_outer and _parts_words(signs[places[0] - 1][0], signs[places[-1] + 1][0]):
            yield Token("text", "".join(raw for _, raw in run), run)
            yield Token("alone", "".join(raw for _, raw in own), parts=True)
            run = []
        else:
            run += own
    yield Token("text", "".join(raw for _, raw in run), run)


def _joined_codes(tokens: Sequence[Token]) -> Iterator[Token]:
    """Yield tokens; codes without words that have nothing but spaces between them are one, and stay together."""
    paired = {place for pair in _pairs(tokens).items() for place in pair}
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
    if codes:
        raw = "".join(token.raw for token in codes)
        parts = any(token.parts or token.kind == "space" for token in codes)
        yield Token("alone", raw, parts=parts, ends=any(token.ends for token in codes))
    yield from behind


def _edges_of(tokens: Sequence[Token]) -> tuple[int, int]:
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


def _parts_words(before: str, behind: str) -> bool:
    return not _CLOSING.match(behind) and not _OPENING.match(before)


def _with_own_space(tokens: list[Token]) -> list[Token]:
    """Make codes of white space outside of elements that is kept: what parts words, and the like of &nbsp;<br/>."""
    closings = _pairs(tokens)
    at_edges = {opening + 1 for opening in closings} | {closing - 1 for closing in closings.values()}
    at_edges |= {0, len(tokens) - 1}
    codes = ("open", "close", "alone")
    for index, token in enumerate(tokens):
        if token.kind != "space" or index in at_edges:
            continue
        is_beside = tokens[index - 1].kind in codes or tokens[index + 1].kind in codes
        if token.parts or (is_beside and token.raw.strip(PLAIN_SPACES)):
            tokens[index] = replace(token, kind="alone", signs=(), parts=True)
    return tokens


def _pairs(tokens: Sequence[Token]) -> dict[int, int]:
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
