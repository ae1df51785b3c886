"""Segments: the text of a unit that a model sees, and its codes, put back around the words of the translation.

A reader for each format (tags.py, markdown.py, strings.py) takes a unit apart into tokens, before anything cuts it. A
`Segment` builds from them the text, without codes and with entities decoded, and knows what the format says of it:
which spans are copied, where a sentence ends whatever its words, and which white space belongs to a code.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.formats.alignment import AlignedLine
from nmt.formats.codes import Code, spaces_around
from nmt.formats.raw_text import RawText
from nmt.formats.terms import Span
from nmt.formats.tokens import SPECIAL_SPACE, Kind, Token, codes_of, edges_of, pairs_of, plain, prepared, raw_of
from nmt.text.scripts import UNSPACED, joins

NOBODY = -1  # owner of a word that is in no element; parent of an outermost one
IN_WORD = -2  # owner of a word that has tags inside it: H<sub>2</sub>O


@dataclass(eq=False)
class _Element:
    """A pair of codes with the span of the text inside, which is empty for a code without its pair."""

    parent: int  # index of the element around, or NOBODY
    start: int
    end: int
    opening: Code
    closing: Code | None = None
    label: str = ""  # of the closing code, as in `Token.label`

    @property
    def spaces(self) -> tuple[bool, bool]:
        """Whether a space is before the first code, and behind the last."""
        last = self.closing or self.opening
        return self.opening.before != "", last.behind != ""

    def place(self, aligned: AlignedLine) -> int:
        """Return the offset of a code without words in the translation, on the side of a space where it was."""
        at = aligned.between(self.start, (not self.spaces[0], not self.spaces[1]))
        if self.spaces[0]:
            return len(aligned.output) - len(aligned.output[at:].lstrip())
        return len(aligned.output[:at].rstrip())

    def in_same_word(self, line: AlignedLine, owners: NDArray[np.int_]) -> tuple[int, Span] | None:
        """Return the word of the translation and the span of content, for content inside a word such as H<sub>2</sub>O.

        Return None if it is not inside a word, or the translation lacks the word.
        """
        part = line.part(self.start)
        if not part:
            return None
        aligned = part.aligned
        start = self.start - part.source
        end = self.end - part.source
        for i, word in enumerate(aligned.source_words):
            is_inside = word.start <= start < word.end and word.start < end <= word.end
            if not is_inside or word == (start, end):
                continue
            text = word.text_in(aligned.source)
            same = [j for j, other in enumerate(aligned.words) if other.text_in(aligned.output) == text]
            free = [j for j in same if owners[part.word + j] in (self.parent, IN_WORD)]
            if free:
                best = max(free, key=lambda j: float(aligned.weights[j, i]))
                shift = part.output + aligned.words[best].start - word.start
                return part.word + best, Span(start + shift, end + shift)
        return None


class _Placed(NamedTuple):
    """A code, and the offset in the output at which it is written."""

    at: int
    element: int
    """Index of the element that it opens or closes"""
    code: Code


class Segment:
    """A unit taken apart into its text and its codes."""

    def __init__(
        self,
        raw: str,
        tokens: Iterable[Token],
        escapes: Mapping[str, str] | None = None,
    ) -> None:
        """Build the text of a unit; `escapes` say how characters that it lacks are written in its translation.

        They count only for a unit with codes or entities: in others, & and < are written as they are.
        """
        self.raw = raw
        self.text = ""  # of two spaces with nothing but codes between them, it has the first
        self.kept: list[Span] = []  # of the text: what is copied, with its codes
        self.walls: list[int] = []  # offsets in the text where codes are, one for each
        self.ends: list[int] = []  # offsets in the text where a sentence ends, whatever its words
        self._edges = ["", ""]  # white space at the ends of the unit
        self._raws: list[str] = []  # how the unit writes each character of the text
        self._elements: list[_Element] = []  # by their opening codes
        parts = prepared(tokens)
        first, last = edges_of(parts)
        self._read(parts[first:last])
        before = raw_of(parts[:first]) + self._edges[0]
        behind = self._edges[1] + raw_of(parts[last:])
        self._edges = [before, behind]
        self._escapes = escapes or {}

    def _read(self, tokens: Sequence[Token]) -> None:
        """Build the text and the elements."""
        closings = pairs_of(tokens)
        openings = {closing: opening for opening, closing in closings.items()}
        elements: dict[int, _Element] = {}  # by their first token
        around = [NOBODY]  # the open elements, the innermost one last
        is_apart = False  # whether what follows needs a space behind the text so far, as in a<br/>b
        for index, (token, code) in enumerate(zip(tokens, codes_of(tokens, closings), strict=True)):
            start = len(self.text)
            if code is None:
                is_inside = token.kind == "space" and (index - 1 in closings or index + 1 in openings)
                is_edge = token.kind == "space" and index in (0, len(tokens) - 1)
                if is_edge and not is_inside:
                    self._edges[index > 0] = token.raw
                elif not is_inside:
                    self._add(token, is_apart)
                is_apart = is_inside or (is_apart and token.kind == "space")
                continue
            self.walls.append(start)
            is_apart |= token.parts
            is_between = token.is_block and index > 0 and tokens[index - 1].is_block  # </button><button>
            if (token.ends or is_between) and self.text:
                self.ends.append(start)
            if code.kind == "close":
                element = elements[openings[index]]
                element.end = start
                element.closing = code
                element.label = token.label
                around.pop()
                continue
            elements[index] = _Element(around[-1], start, start, code)
            if code.kind == "open":
                around.append(len(self._elements))
            self._elements.append(elements[index])
        self.text = self.text.rstrip()
        self.ends = [end for end in dict.fromkeys(self.ends) if end < len(self.text)]
        for element in self._elements:
            element.start = min(element.start, len(self.text))
            element.end = min(element.end, len(self.text))
            for each in (element.opening, element.closing):
                if each:
                    each.is_empty = not self.text[element.start : element.end].strip()

    def _add(self, token: Token, is_apart: bool) -> None:
        """Add what a token stands for to the text; of two spaces that have only codes between, the text has one."""
        is_behind_word = self.text != "" and not self.text[-1].isspace()
        if token.kind == "space" and not is_behind_word:
            return
        if is_apart and is_behind_word and token.kind != "space":
            self.text += " "
            self._raws.append(" ")
        start = len(self.text)
        self.text += token.text
        for sign, raw in token.signs or plain(token.raw):
            self._raws += [raw, *[""] * (len(sign) - 1)]
        if token.kind == "copy":
            self.kept.append(Span(start, len(self.text)))

    @property
    def pieces(self) -> list[str]:
        """The text, cut where a sentence ends whatever its words."""
        bounds = pairwise([0, *self.ends, len(self.text)])
        stripped = [self.text[start:end].strip() for start, end in bounds]
        return [*filter(None, stripped)]

    def put(self, aligned: AlignedLine, longer: Mapping[int, str] | None = None) -> str:
        """Return the translation of `text` with the codes around the words that stand for what they had inside.

        Characters of the output at the offsets in `longer` are written as the text there.

        Words are those of `words_of` with GLUE. Codes without words go where the nearest words are; marks whose words
        have none are left out.
        """
        output = aligned.output
        spans = self._spans(aligned)
        codes = [placed for placed in self._in_order(spans) if not _is_text(placed.code, spans[placed.element])]
        signs = [*output]
        if self._elements or self._raws[: len(self.text)] != [*self.text]:
            signs = RawText(self.text, self._raws, self.kept, self.walls, self._escapes).of(output)
        for at, text in (longer or {}).items():
            signs[at] = text
        written = ""
        last = 0
        begun: dict[int, int] = {}  # where the content of each element is written
        for run in _without_words_between(codes, output):
            start = len(output[: run[0].at].rstrip())
            stop = len(output) - len(output[run[-1].at :].lstrip())
            beside = (output[start - 1 : start], output[stop : stop + 1])
            touching = sum(placed.at == start < stop for placed in run)
            spaces = spaces_around([placed.code for placed in run], beside, output[start:stop], touching)
            written += "".join(signs[last:start])
            for space, (_, index, code) in zip(spaces, run, strict=False):
                written += space
                label = self._elements[index].label if code.kind == "close" else ""
                is_found = not label or written[begun[index] :] == label
                written += code.raw if is_found else f"][{label}]"  # [Text][text] once the text is translated
                begun.setdefault(index, len(written))
            written += spaces[-1]
            last = stop
        written += "".join(signs[last:])
        return self._edges[0] + written + self._edges[1]

    def _in_order(self, spans: Mapping[int, Span]) -> Iterator[_Placed]:
        """Yield codes as they are written, given the span of each element's content."""
        inside = defaultdict[int, list[int]](list)  # what is in each element, the first one last
        for index in spans:
            inside[self._elements[index].parent].append(index)
        for siblings in inside.values():
            siblings.sort(key=lambda index: (*spans[index], index), reverse=True)
        around = [NOBODY]
        last = 0
        while around:
            siblings = inside[around[-1]]
            if siblings:
                index = siblings.pop()
                around.append(index)
                last = max(last, spans[index].start)
                yield _Placed(last, index, self._elements[index].opening)
                continue
            index = around.pop()
            closing = self._elements[index].closing if index >= 0 else None
            if closing:
                last = max(last, spans[index].end)
                yield _Placed(last, index, closing)

    def _spans(self, aligned: AlignedLine) -> dict[int, Span]:
        """Return the span of each element's content in the translation, inside its parent's, outside its siblings'.

        First come elements with words, then, beside them, those without. White space of another kind than plain spaces,
        which has its place between two words, has none in one word.
        """
        spans: dict[int, Span] = {}
        owners = np.full(len(aligned.words), NOBODY)  # innermost element of each word
        with_words: dict[int, list[int]] = defaultdict(list)  # by their parents
        others = []
        for index, element in enumerate(self._elements):
            same = element.in_same_word(aligned, owners)
            if same:
                word, spans[index] = same
                owners[word] = IN_WORD
                continue
            run = aligned.run(Span(element.start, element.end), owners == element.parent)
            if run:
                owners[run.start : run.end] = index
                spans[index] = Span(aligned.words[run.start].start, aligned.words[run.end - 1].end)
                with_words[element.parent].append(index)
            else:
                others.append(index)
        gaps: list[Span] = []  # of the output, which have white space of the unit
        neighbours = defaultdict[tuple[int, int], int](int)  # where the last code beside the same words is
        for index in others:
            element = self._elements[index]
            around = Span(0, len(aligned.output)) if element.parent < 0 else spans[element.parent]
            beside = element.parent, element.start
            at = max(self._place(index, aligned, around, with_words[element.parent], spans), neighbours[beside])
            at = min(max(at, around.start), around.end)
            is_in_sentence = _is_inside_of_part(element.start, at, aligned) and not self._is_at_edge(element)
            if element.opening.is_word_space and is_in_sentence:
                taken = [spans[other] for other in with_words[element.parent]]
                if element.opening.is_between_words:
                    taken += gaps
                gap = _nearest_gap(aligned, element.start, at, around, taken)
                if gap:
                    gaps.append(gap)
                    at = min(max(at, gap.start), gap.end)
                elif element.opening.is_between_words:
                    continue
            neighbours[beside] = at
            spans[index] = Span(at, at)
        return spans

    def _place(
        self, index: int, aligned: AlignedLine, around: Span, siblings: Sequence[int], spans: Mapping[int, Span]
    ) -> int:
        """Return the offset of a code without words in the translation, outside of siblings that have words."""
        element = self._elements[index]
        at = element.place(aligned)
        if self._is_at_edge(element):
            is_first = element.start == self._elements[element.parent].start
            at = around.start if is_first else around.end
        for other in siblings:
            if spans[other].start < at < spans[other].end:
                at = spans[other].start if index < other else spans[other].end
            if self._follows(index, other):
                at = max(at, spans[other].end)
        return at

    def _is_at_edge(self, element: _Element) -> bool:
        """Return whether a code without words stands at an edge of an element that has words."""
        if element.parent < 0:
            return False
        parent = self._elements[element.parent]
        return parent.start < parent.end and element.start in (parent.start, parent.end)

    def _follows(self, index: int, other: int) -> bool:
        """Return whether an element follows another one inside a word."""
        element = self._elements[index]
        before = self._elements[other]
        is_behind = other < index and before.end <= element.start
        return is_behind and all(map(joins, self.text[before.start : element.end]))


def _is_text(code: Code, span: Span) -> bool:
    """Return whether a code would be text around the span of its content, which has no words any more."""
    return code.is_mark and not code.is_empty and span.start == span.end


def _is_inside_of_part(start: int, at: int, aligned: AlignedLine) -> bool:
    """Return whether white space at an offset of the source was between words that were translated together.

    In a script without spaces, it has no gap of the output to go to.
    """
    part = aligned.part(start)
    is_unspaced = UNSPACED.match(aligned.output[:at].rstrip()[-1:]) is not None
    return part is not None and start < part.source + len(part.aligned.source.rstrip()) and not is_unspaced


def _nearest_gap(aligned: AlignedLine, start: int, at: int, around: Span, taken: Sequence[Span]) -> Span | None:
    """Return the white space of an output nearest to an offset, for what stood at `start` in the source.

    It is inside `around` and the part of this, and apart from what is taken.
    """
    part = aligned.part(start)
    first, stop = around
    if part:
        first = max(first, part.output)
        stop = min(stop, part.output + len(part.aligned.output))
    free: list[Span] = []
    for found in re.finditer(r"[^\S\n]+", aligned.output[:stop]):
        gap = Span(*found.span())
        is_taken = any(other.start < gap.end and gap.start < other.end for other in taken)
        if first < gap.start and gap.end < stop and not is_taken:
            free.append(gap)
    return min(free, key=lambda gap: max(gap.start - at, at - gap.end, 0), default=None)


def _without_words_between(codes: Iterable[_Placed], output: str) -> Iterator[list[_Placed]]:
    """Yield runs of codes that have nothing but white space between them in the output."""
    run: list[_Placed] = []
    for placed in codes:
        if run and output[run[-1].at : placed.at].strip():
            yield run
            run = []
        run.append(placed)
    if run:
        yield run


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
    tokens: list[Token] = []
    for is_tab, group in groupby(plain(text), lambda sign: sign[0] == "\t"):
        kind: Kind = "space" if is_tab else "text"
        tokens.append(Token.of(kind, [*group], parts=is_tab, ends=is_tab))
    return Segment(text, tokens)
