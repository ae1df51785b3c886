"""Inline markup: HTML or XML tags of a line, taken out before it is translated and put back around aligned words."""

from __future__ import annotations

import html
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile

import numpy as np
from numpy.typing import NDArray

from nmt.formats.alignment import AlignedLine
from nmt.formats.terms import Span, find_copies
from nmt.text.lines import one_line

_CLOSING = re.compile(r"[.!?…,;:)\]}»”’\"'。！？、，；：）」』】]")
IN_WORD = -2  # owner of a word that has tags inside it
MOST_INSIDE = 1000  # tags of its own name inside an element that is copied
_CODE = "bpt|ept|it|ph|script|style"  # elements whose content is code; the first four are of XLIFF and TMX
_COPIED = re.compile(  # elements that are copied whole
    r"<(?:code|kbd|samp|pre)\b|<[^>]*\s(?:translate=[\"']?no\b|class=[\"']?[^\"'>]*\bnotranslate\b)"
    r"|<mrk\b[^>]*\smtype=[\"'](?:x-)?protected\b",
    re.IGNORECASE,
)
_BREAK = re.compile(  # tags of HTML that part words even without a space
    r"br|hr|p|div|li|[uod]l|d[td]|t[dhr]|table|h[1-6]|blockquote|section|article|option"
)
_ATTRIBUTES = r"(?:\s(?:[^<>\"']|\"[^\"]*\"|'[^']*')*+)?"
_TAG = rf"<(?P<slash>/?)(?P<name>[^\W\d][\w:.-]*|\d{{1,3}}){_ATTRIBUTES}/?>"  # <0> is of React
TAGS = re.compile(
    rf"<({_CODE})\b{_ATTRIBUTES}(?<!/)>(?:(?!<\1\b).)*?</\1\s*>|{_TAG}|(?P<pair><!\[CDATA\[|\]\]>)"
    r"|<!--(?:(?!<!--).)*?-->|<\?[^<>]*>|<![A-Z\[][^<>]*>"
    r"|(?P<entity>&(?:\#\d{1,7}|\#[xX][0-9A-Fa-f]{1,6}|[A-Za-z]\w{1,31});)"
)
"""Pattern for tags and entities of HTML and XML"""
LINKS = re.compile(r"(?P<pair>!?\[(?=[^\[\]]*\]\([^()\s]+(?:\s\"[^\"]*\")?\))|\]\([^()\s]+(?:\s\"[^\"]*\")?\))")
"""Pattern for what surrounds the words of links in Markdown"""


_Sign = tuple[str, str]
"""A character of text, and how the line writes it; an entity may stand for several characters"""


@dataclass(frozen=True)
class _Token:
    """A piece of a line: a tag, text, a copied element, or the space at an edge of text."""

    kind: str  # open, close, tag (of neither kind), text, copy or space
    raw: str
    signs: Sequence[_Sign] = ()  # of text and space
    name: str = ""  # of tags
    end: int = 0  # offset behind it in the line

    @property
    def text(self) -> str:
        """Text and space without entities, a copied element as it is."""
        return "".join(sign for sign, _ in self.signs) or self.raw

    @property
    def breaks(self) -> bool:
        """Whether it parts words even without a space."""
        return self.raw.startswith("&") or _BREAK.fullmatch(self.name) is not None


@dataclass(eq=False)
class _Element:
    """A pair of tags, or a tag without its pair: the span of the text inside, and the index of the element around.

    Spaces at the edges of what is inside belong to the tags.
    """

    parent: int
    start: int
    end: int
    opening: str
    closing: str = ""
    spaces: tuple[bool, bool] = (False, False)  # whether a space is before the first tag, and behind the last
    breaks: bool = False

    def stands_for_space(self, side: int) -> bool:
        """Return whether words outside (0: before it, 1: behind it) are apart from those inside without a space."""
        edge = self.closing[:1] if side else self.opening[-1:]
        return (self.breaks or edge.isspace()) and not self.spaces[side]

    def needs_space(self, side: int, beside: str) -> bool:
        """Return whether tags without words had a space on a side where now a word is, or punctuation before them."""
        is_needed = beside != "" and not beside.isspace() and (side == 0 or not _CLOSING.match(beside))
        return self.start == self.end and self.spaces[side] and is_needed

    def place(self, aligned: AlignedLine) -> int:
        """Return the offset of a tag without words in the translation, on that side of a space where it was."""
        at = aligned.between(self.start, (not self.spaces[0], not self.spaces[1]))
        if self.spaces == (True, False):
            return len(aligned.output) - len(aligned.output[at:].lstrip())
        return len(aligned.output[:at].rstrip())

    def in_same_word(self, line: AlignedLine, owners: NDArray[np.int_]) -> tuple[int, Span] | None:
        """Return the word and the span of content inside a word such as H<sub>2</sub>O, if the translation has it."""
        if not (part := line.part(self.start)):
            return None
        start, end, aligned = self.start - part.source, self.end - part.source, part.aligned
        for i, word in enumerate(aligned.source_words):
            if not (word.start <= start < word.end and word.start < end <= word.end) or word == (start, end):
                continue
            text = aligned.source[slice(*word)]
            same = [j for j, other in enumerate(aligned.words) if aligned.output[slice(*other)] == text]
            if free := [j for j in same if owners[part.word + j] in (self.parent, IN_WORD)]:
                best = max(free, key=lambda j: float(aligned.weights[j, i]))
                shift = part.output + aligned.words[best].start - word.start
                return part.word + best, Span(start + shift, end + shift)
        return None


class Markup:
    """A line of markup, taken apart into its text and its tags."""

    def __init__(self, line: str, tags: re.Pattern[str] = TAGS) -> None:
        """Take out tags and decode entities. What is neither, such as the < of "a < b", is text."""
        self.line = line
        self.text = ""  # of two spaces with nothing but tags between them, it has the first
        self.kept: list[Span] = []  # of the text: elements that are copied, with their tags
        self.walls: list[int] = []  # offsets in the text where tags are, one for each
        self._edges = ["", ""]  # spaces at the ends of the line
        self._elements: list[_Element] = []  # by their opening tags
        tokens = [*_tokens_of(line, tags)]
        self._read(tokens)
        signs = [sign for token in tokens for sign in token.signs]
        self._entities = {sign: raw for sign, raw in reversed(signs) if sign != raw}  # by what they stand for
        if tags is TAGS and (self._elements or self._entities):
            self._entities = {sign: html.escape(sign) for sign in "&<" if (sign, sign) not in signs} | self._entities

    def _read(self, tokens: Sequence[_Token]) -> None:
        """Build the text and the elements."""
        closings = _pairs(tokens)
        openings = {closing: opening for opening, closing in closings.items()}
        elements: dict[int, _Element] = {}  # by their first token
        around, is_apart = [-1], False
        inner = range(len(self.line) - len(self.line.lstrip()), len(self.line.rstrip()))  # without the line's edges
        spaces = {at for at in inner if self.line[at].isspace()}
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
                self.kept += [Span(start, len(self.text))] * (token.kind == "copy")
            else:
                self.walls.append(start)
                is_apart |= token.breaks
                if index in openings:
                    element = elements[openings[index]]
                    element.end, element.closing = start, element.closing + token.raw
                    element.spaces = element.spaces[0], token.end in spaces
                    around.pop()
                    continue
                beside = token.end - len(token.raw) - 1 in spaces, token.end in spaces
                elements[index] = _Element(around[-1], start, start, token.raw, spaces=beside, breaks=token.breaks)
                if index in closings:
                    around.append(len(self._elements))
                self._elements.append(elements[index])
        self.text = self.text.rstrip()
        for element in self._elements:
            element.start, element.end = min(element.start, len(self.text)), min(element.end, len(self.text))

    def put(self, aligned: AlignedLine) -> str:
        """Return the translation of `text` with the tags around the words that stand for what they had inside.

        Words are those of `words_of` with GLUE. Tags without words go where the nearest words are.
        """
        spans, output = self._spans(aligned), aligned.output
        inside = defaultdict(list)
        for index, element in enumerate(self._elements):
            inside[element.parent].append(index)
        for siblings in inside.values():
            siblings.sort(key=lambda index: (*spans[index], index), reverse=True)
        signs = [self._entities.get(sign, sign) for sign in output]
        for copy in find_copies(output, [self.text[slice(*span)] for span in self.kept]):
            signs[slice(*copy)] = output[slice(*copy)]
        written, last, around = "", 0, [-1]
        while around:
            if siblings := inside[around[-1]]:
                index = siblings.pop()
                around.append(index)
                element, end = self._elements[index], spans[index].start
                text = "".join(signs[last:end])
                if element.stands_for_space(0) and element.closing:
                    text = text.rstrip()
                before = (written + text)[-1:]
                written += text + " " * element.needs_space(0, before) + element.opening
            else:
                index = around.pop()
                end = spans[index].end if index >= 0 else len(output)
                written += "".join(signs[last:end])
                if index >= 0:
                    element, behind = self._elements[index], output[end : end + 1]
                    written += element.closing + " " * element.needs_space(1, behind)
                    end += element.stands_for_space(1) and behind.isspace()
            last = max(last, end)
        return self._edges[0] + written + self._edges[1]

    def _spans(self, aligned: AlignedLine) -> list[Span]:
        """Return the span of each element's content in the translation, inside its parent's, outside its siblings'."""
        spans = [Span(0, 0)] * len(self._elements)
        owners = np.full(len(aligned.words), -1)  # innermost element of each word
        with_words: dict[int, list[int]] = defaultdict(list)  # by their parents
        others = []
        for index, element in enumerate(self._elements):
            if same := element.in_same_word(aligned, owners):
                spans[index], owners[same[0]] = same[1], IN_WORD
            elif run := aligned.run(Span(element.start, element.end), owners == element.parent):
                owners[slice(*run)] = index
                spans[index] = Span(aligned.words[run.start].start, aligned.words[run.end - 1].end)
                with_words[element.parent].append(index)
            else:
                others.append(index)
        for index in others:
            element = self._elements[index]
            around = Span(0, len(aligned.output)) if element.parent < 0 else spans[element.parent]
            at = element.place(aligned)
            for other in with_words[element.parent]:
                if spans[other].start < at < spans[other].end:
                    at = spans[other].start if index < other else spans[other].end
            at = min(max(at, around.start), around.end)
            spans[index] = Span(at, at)
        return spans


def _tokens_of(line: str, tags: re.Pattern[str]) -> Iterator[_Token]:
    """Yield the pieces of a line."""
    run = list[_Sign]()  # of text
    at, in_pair = 0, False
    while found := tags.search(line, at):
        run += _plain(line[at : found.start()])
        raw, at, groups = found[0], found.end(), defaultdict(str, found.groupdict(""))
        name, pair, sign = groups["name"].lower(), groups["pair"], one_line(html.unescape(groups["entity"]))
        if sign == raw or (pair[:1] == "]" and not in_pair):
            run += _plain(raw)
            continue
        if sign and sign not in (" ", "\t"):
            run.append((sign, raw))
            continue
        yield from _parts_of(run, found.start())
        run = []
        is_closing, is_opening = bool(groups["slash"]) or pair[:1] == "]", name != "" and not raw.endswith("/>")
        if is_opening and _COPIED.match(raw) and (end := _end_of(line, name, at)):
            yield _Token("copy", line[found.start() : end], end=end)
            at = end
            continue
        in_pair = not is_closing if pair else in_pair
        kind = "close" if is_closing else "open" if is_opening or pair else "tag"
        yield _Token(kind, raw, name=name or "[" * bool(pair), end=at)
    yield from _parts_of(run + _plain(line[at:]), len(line))


def _plain(text: str) -> list[_Sign]:
    """Return the characters of a text that stand for themselves."""
    return [(character, character) for character in text]


def _parts_of(run: list[_Sign], end: int) -> Iterator[_Token]:
    """Yield text that ends at `end`, and the spaces at its edges."""
    start = len([*takewhile(lambda sign: sign[0].isspace(), run)])
    stop = len(run) - len([*takewhile(lambda sign: sign[0].isspace(), reversed(run[start:]))])
    for kind, part in (("space", run[:start]), ("text", run[start:stop]), ("space", run[stop:])):
        if part:
            yield _Token(kind, "".join(raw for _, raw in part), part, end=end)


def _pairs(tokens: Sequence[_Token]) -> dict[int, int]:
    """Return the index of the closing tag by that of the opening tag of each pair; what overlaps a pair is none."""
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


def _end_of(line: str, name: str, at: int) -> int:
    """Return the offset behind an element whose first tag ends at `at`; 0 if it has no end soon."""
    depth, pattern = 1, re.compile(rf"<(/?){re.escape(name)}\b[^<>]*>", re.IGNORECASE)
    for tag in islice(pattern.finditer(line, at), MOST_INSIDE):
        depth += -1 if tag[1] else not tag[0].endswith("/>")
        if not depth:
            return tag.end()
    return 0
