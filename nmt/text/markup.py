"""Inline markup: HTML or XML tags of a line, taken out before it is translated and put back around aligned words."""

from __future__ import annotations

import html
import re
from collections import Counter, defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nmt.text.alignment import AlignedLine, Span
from nmt.text.lines import one_line

IN_WORD = -2  # owner of a word that has tags inside it
_CODE = "bpt|ept|it|ph|script|style"  # elements whose content is code; the first four are of XLIFF and TMX
_BREAK = re.compile(  # tags of HTML that part words even without a space
    r"br|hr|p|div|li|[uod]l|d[td]|t[dhr]|table|h[1-6]|blockquote|section|article|option"
)
_ATTRIBUTES = r"(?:\s(?:[^<>\"']|\"[^\"]*\"|'[^']*')*+)?"
_MARKUP = re.compile(
    rf"<({_CODE})\b{_ATTRIBUTES}(?<!/)>(?:(?!<\1\b).)*?</\1\s*>"
    rf"|<(?P<slash>/?)(?P<name>[^\W\d][\w:.-]*){_ATTRIBUTES}/?>"
    r"|<!--(?:(?!<!--).)*?-->|<\?[^<>]*>|<![A-Z\[][^<>]*>"
    r"|(?P<entity>&(?:\#\d{1,7}|\#[xX][0-9A-Fa-f]{1,6}|[A-Za-z]\w{1,31});)"
)


@dataclass(eq=False)
class _Element:
    """A pair of tags, or a tag without its pair: the span of the text inside, and the index of the element around."""

    parent: int
    start: int
    end: int
    opening: str
    closing: str = ""
    spaces: tuple[bool, bool] = (False, False)  # whether a space is before the first tag, and behind the last
    parts: bool = False  # whether the space behind it in the text stands for it


class Markup:
    """A line of markup, taken apart into its text and its tags."""

    def __init__(self, line: str) -> None:
        """Take out tags and decode entities. What is neither, such as the < of "a < b", is text."""
        self.line = line
        self.text = ""  # of two spaces with nothing but tags between them, it has the first
        self._elements: list[_Element] = []  # by their opening tags
        self._entities: dict[str, str] = {}  # by the characters for which they stand
        self._read()
        if self._elements or self._entities:
            raw = _MARKUP.sub("", line)
            self._entities = {sign: html.escape(sign) for sign in "&<" if sign not in raw} | self._entities

    @property
    def has_tags(self) -> bool:
        """Whether there are any tags."""
        return bool(self._elements)

    def _read(self) -> None:
        open_ones: list[tuple[str, int]] = []  # names and indices of elements that have no closing tag yet
        names: Counter[str] = Counter()
        last, is_tag, is_break = 0, False, False
        for found in _MARKUP.finditer(self.line):
            if found.start() > last:
                self._add(self.line[last : found.start()], is_tag, is_break)
                is_tag = is_break = False
            last = found.end()
            if entity := found["entity"]:
                sign = one_line(html.unescape(entity))
                self._entities.setdefault(sign, entity)
                self._add(sign, is_tag, is_break)
                is_tag = is_break = False
                continue
            name = (found["name"] or "").lower()
            is_tag, is_break = True, is_break or _BREAK.fullmatch(name) is not None
            if found["slash"] and names[name]:
                closed = ""
                while closed != name:
                    closed, index = open_ones.pop()
                    names[closed] -= 1
                element = self._elements[index]
                element.end, element.closing = len(self.text), found[0]
                element.spaces = element.spaces[0], self.line[last : last + 1].isspace()
                continue
            first = found.start()
            spaces = self.line[max(0, first - 1) : first].isspace(), self.line[last : last + 1].isspace()
            parent = open_ones[-1][1] if open_ones else -1
            if name and not found["slash"] and not found[0].endswith("/>"):
                open_ones.append((name, len(self._elements)))
                names[name] += 1
            self._elements.append(_Element(parent, len(self.text), len(self.text), found[0], spaces=spaces))
        self._add(self.line[last:], is_tag, is_break)
        for element in self._elements:  # tags that were never closed have nothing inside
            while element.parent >= 0 and not self._elements[element.parent].closing:
                element.parent = self._elements[element.parent].parent

    def _add(self, text: str, is_tag: bool, is_break: bool) -> None:
        """Add what follows to the text; `is_tag` says whether tags precede it, and is_break whether one parts words."""
        if is_tag and (not self.text or self.text[-1].isspace()):
            text = text.lstrip()
        elif is_break and text and not text[0].isspace():
            text = " " + text
            self._elements[-1].parts = True
        self.text += text

    def put(self, aligned: AlignedLine) -> str:
        """Return the translation of `text` with the tags around the words that stand for what they had inside.

        Words are those of `words_of` with GLUE. Tags without words go where the nearest words are.
        """
        spans = self._spans(aligned)
        inside = defaultdict(list)
        for index, element in enumerate(self._elements):
            inside[element.parent].append(index)
        for siblings in inside.values():
            siblings.sort(key=lambda index: (*spans[index], index), reverse=True)
        written, last, around = "", 0, [-1]
        while around:
            if siblings := inside[around[-1]]:
                index = siblings.pop()
                around.append(index)
                element, end = self._elements[index], spans[index].start
                tag = " " * self._needs_space(element, 0, aligned.output[max(0, end - 1) : end]) + element.opening
            else:
                index = around.pop()
                tag, end = "", len(aligned.output)
                if index >= 0:
                    element, end = self._elements[index], spans[index].end
                    tag = element.closing + " " * self._needs_space(element, 1, aligned.output[end : end + 1])
            written += "".join(self._entities.get(sign, sign) for sign in aligned.output[last:end]) + tag
            stands_for_space = index >= 0 and element.parts and element.start == element.end
            last = max(last, end + (stands_for_space and aligned.output[end : end + 1].isspace()))
        return written

    def _spans(self, aligned: AlignedLine) -> list[Span]:
        """Return the span of each element's content in the translation, inside its parent's, outside its siblings'."""
        spans = [Span(0, 0)] * len(self._elements)
        owners = np.full(len(aligned.words), -1)  # innermost element of each word
        with_words: dict[int, list[int]] = defaultdict(list)  # by their parents
        others = []
        for index, element in enumerate(self._elements):
            if same := self._in_same_word(element, aligned, owners):
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
            at = self._place(element, aligned)
            for other in with_words[element.parent]:
                if spans[other].start < at < spans[other].end:
                    at = spans[other].start if index < other else spans[other].end
            at = min(max(at, around.start), around.end)
            spans[index] = Span(at, at)
        return spans

    @staticmethod
    def _in_same_word(element: _Element, line: AlignedLine, owners: NDArray[np.int_]) -> tuple[int, Span] | None:
        """Return the word and the span of content inside a word such as H<sub>2</sub>O, if the translation has it."""
        if not (part := line.part(element.start)):
            return None
        start, end, aligned = element.start - part.source, element.end - part.source, part.aligned
        for i, word in enumerate(aligned.source_words):
            is_inside = word.start < start < word.end or word.start < end < word.end
            if is_inside and word.start <= start and end <= word.end:
                text = aligned.source[slice(*word)]
                same = [
                    j
                    for j, other in enumerate(aligned.words)
                    if aligned.output[slice(*other)] == text and owners[part.word + j] in (element.parent, IN_WORD)
                ]
                if same:
                    best = max(same, key=lambda j: float(aligned.weights[j, i]))
                    shift = part.output + aligned.words[best].start - word.start
                    return part.word + best, Span(start + shift, end + shift)
        return None

    @staticmethod
    def _place(element: _Element, aligned: AlignedLine) -> int:
        """Return the offset of a tag without words in the translation, on that side of a space where it was."""
        at = aligned.between(element.start, (not element.spaces[0], not element.spaces[1]))
        start = end = at
        while start and aligned.output[start - 1].isspace():
            start -= 1
        while aligned.output[end : end + 1].isspace():
            end += 1
        return end if element.spaces == (True, False) else start

    @staticmethod
    def _needs_space(element: _Element, side: int, beside: str) -> bool:
        """Return whether tags without words had a space on a side where now a word is, or punctuation before them."""
        is_needed = beside.isalnum() or (side == 0 and beside != "" and not beside.isspace())
        return element.start == element.end and element.spaces[side] and is_needed
