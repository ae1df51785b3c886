"""Aligned texts: which words of an output stand for which words of its source, and edits of the output by them."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby, pairwise
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from nmt.text.terms import Phrase, Span, capitalised, find_copies, joins

STRONG = 0.5  # part of the strongest attention in a run that keeps a word in it
CLEAR = 0.3  # attention to a source word from which an output word may stand for it
LIKELY = 0.2  # attention from which tags go around a word if no word stands clearly for theirs
GLUE = frozenset("-‐‑'’.,:/@&+·")  # punctuation that makes one word of what stands on both sides of it


def words_of(text: str, glue: frozenset[str] = frozenset(), whole: Sequence[Span] = ()) -> list[Span]:
    """Return the spans of words; in scripts without spaces, and in punctuation, each character is a word.

    A character of `glue` joins the words on both sides of it to one. Each span in `whole` is one word, in order.
    """
    found: list[Span] = []
    joined = [joins(character) for character in text]
    for at in range(1, len(text) - 1):
        joined[at] = joined[at] or (text[at] in glue and joins(text[at - 1]) and joins(text[at + 1]))
    start = 0
    for span in (*whole, Span(len(text), len(text))):
        for is_word, run in groupby(range(start, span.start), key=joined.__getitem__):
            places = list(run)
            if is_word:
                found.append(Span(places[0], places[-1] + 1))
            else:
                found += [Span(at, at + 1) for at in places if not text[at].isspace()]
        found += [span] * (span.end > span.start)
        start = span.end
    return found


def ends_of(decode: Callable[[list[int]], str], ids: Sequence[int]) -> list[int]:
    """Return the offset in decode(ids) at which each subword ends.

    A byte that does not complete a character ends with the subword before it.
    """
    texts = [decode(list(ids[:count])) for count in range(1, len(ids) + 1)]
    return [*accumulate((len(text) if texts[-1].startswith(text) else 0 for text in texts), max)]


class Place(NamedTuple):
    """Where a text may be written into an output: over a span, or beside a word if that is empty."""

    span: Span
    before: str = ""  # what precedes the text: a space, or the part of a compound that stays
    after: str = ""


@dataclass(frozen=True, eq=False)
class Aligned:
    """A source and an output, with the attention of each word of the output to each word of the source."""

    source: str
    output: str
    source_words: list[Span]
    words: list[Span]
    weights: NDArray[np.float64]
    """(words, source words): sums over a source word's subwords, means over an output word's"""
    ends: Sequence[int]
    """Offsets at which the output's subwords end"""
    of_subwords: NDArray[np.float64]
    """(output subwords, source words)"""

    @classmethod
    def of(
        cls,
        source: str,
        source_ends: Sequence[int],
        output: str,
        ends: Sequence[int],
        weights: NDArray[np.floating],
        glue: frozenset[str] = frozenset(),
        phrases: Sequence[Phrase] = (),
    ) -> Self:
        """Sum up weights (output subwords, source subwords), given the offsets at which subwords end.

        Words are those of `words_of` with this `glue`; each of `phrases` that is kept is one.
        """
        kept = [phrase for phrase in phrases if phrase.kept]
        source_words = words_of(source, glue, [Span(phrase.start, phrase.end) for phrase in kept])
        words = words_of(output, glue, find_copies(output, [phrase.source for phrase in kept]))
        queries, keys = _shares(words, ends), _shares(source_words, source_ends)
        mean = queries / np.maximum(queries.sum(1, keepdims=True), 1e-9)
        of_subwords = weights @ keys.T
        return cls(source, output, source_words, words, mean @ of_subwords, ends, of_subwords)

    @classmethod
    def copied(cls, text: str, walls: Iterable[int]) -> Self:
        """Return the alignment of a text with itself, whose words end at spaces and at `walls`."""
        bounds = [0, *(wall for wall in walls if 0 < wall < len(text)), len(text)]
        pieces = (re.compile(r"\S+").finditer(text, *bound) for bound in pairwise(bounds))
        words = [Span(*found.span()) for piece in pieces for found in piece]
        weights = np.eye(len(words))
        return cls(text, text, words, words, weights, (), weights)

    def pinned(self, phrases: Iterable[Phrase]) -> Self:
        """Let the targets of phrases that the output has stand for their sources alone, whatever the attention."""
        weights = self.weights.copy()
        taken: set[int] = set()
        for phrase in phrases:
            inside = self._inside(Span(phrase.start, phrase.end))
            places = [
                [j for j, word in enumerate(self.words) if word.start < found.end() and found.start() < word.end]
                for target in phrase.targets
                for found in re.finditer(re.escape(target), self.output, 0 if phrase.case else re.IGNORECASE)
            ]
            if free := [words for words in places if words and not taken.intersection(words)]:
                best = max(free, key=lambda words: float(self.weights[words][:, inside].sum()))
                taken.update(best)
                weights[best] = 0.0
                weights[:, inside] = 0.0
                weights[np.ix_(best, inside)] = 1.0
        return replace(self, weights=weights)

    def run(self, span: Span, free: NDArray[np.bool_]) -> Span | None:
        """Return the run (first, end) of free output words that stands for a span of the source; None if none does.

        `free` is (words,). Words in it that stand for others count against it, and are not at its ends. Punctuation
        belongs to a run if the span alone has it.
        """
        inside = self._inside(span)
        if not (inside and free.any()):
            return None
        shares = self.weights[:, inside].sum(1) / np.maximum(self.weights.sum(1), 1e-9)
        scores = shares - STRONG
        own, others = (
            {self.source[slice(*word)] for i, word in enumerate(self.source_words) if (i in inside) == is_own}
            for is_own in (True, False)
        )
        attention = self.weights[:, inside].sum(1) * free
        for j, word in enumerate(self.words):
            if unicodedata.category(self.output[word.start])[0] in "PS":  # punctuation or a symbol
                attention[j] = 0.0
                if (sign := self.output[slice(*word)]) not in own & others:
                    scores[j] = STRONG if sign in own else 0.0
        best_words = self.weights.argmax(0)  # of each source word
        for j in {*best_words.tolist()} - {*best_words[inside].tolist()}:
            scores[j] = min(scores[j], 0.0)  # an article attends to its noun, but stands for that of the source
        if len(inside) == len(self.source_words):
            scores[:] = STRONG
        scores[(self.weights.max(1) == 1.0) & (shares == 0.0)] = -np.inf  # pinned to a word outside
        best, first, total, found = 0.0, 0, 0.0, None
        for j, score in enumerate(np.where(free, scores, -np.inf).tolist()):
            if total <= 0.0:
                first, total = j, 0.0
            total += score
            if total > best:
                best, found = total, Span(first, j + 1)
        likely = int(attention.argmax())
        return Span(likely, likely + 1) if found is None and attention[likely] >= LIKELY else found

    def _inside(self, span: Span) -> list[int]:
        """Return the indices of the source words that a span of the source touches."""
        return [i for i, word in enumerate(self.source_words) if word.start < span.end and span.start < word.end]

    def _runs(self, span: Span, taken: Collection[int]) -> Iterator[tuple[float, int, int]]:
        """Yield (attention, first, last) for runs of output words that attend most to words of a source span."""
        inside = self._inside(span)
        hits = [
            j
            for j, i in enumerate(self.weights.argmax(1))
            if i in inside and j not in taken and joins(self.output[self.words[j].start])
        ]
        starts = [at for at in range(len(hits)) if at == 0 or not self._adjacent(hits[at - 1], hits[at])]
        for start, end in pairwise([*starts, len(hits)]):
            run = hits[start:end]
            yield float(self.weights[run][:, inside].sum(1).max()), run[0], run[-1]

    def places(self, span: Span, taken: set[int]) -> Iterator[Place]:
        """Yield places in the output for a translation of a source span.

        `taken` are the words that no longer count; the chosen ones are added.
        """
        if run := max(self._runs(span, taken), default=None):
            _, first, last = run
            taken.update(range(first, last + 1))
            part = self._part(span, first) if first == last else None
            yield part or Place(self._core(span, first, last))
            return
        mass = self.weights[:, self._inside(span)].sum(1)
        free = [j for j, word in enumerate(self.words) if j not in taken and joins(self.output[word.start])]
        if not free:
            yield Place(Span(len(self.output), len(self.output)), before=" ")
            return
        best = max(free, key=lambda j: float(mass[j]))
        taken.add(best)
        if part := self._part(span, best):
            yield part
            return
        word, other = self.words[best], int(self.weights[best].argmax())
        if mass[best] >= CLEAR:
            yield Place(word)
            if self.weights[:, other].argmax() != best:  # what else it stands for has another word
                return
        yield Place(Span(word.start, word.start), after=" ")
        yield Place(Span(word.end, word.end), before=" ")

    def _core(self, span: Span, first: int, last: int) -> Span:
        """Return the span of a run without weak words at its ends; for one source word, of its last word.

        An article often attends to its noun, which follows it.
        """
        inside = self._inside(span)
        attention = self.weights[first : last + 1, inside].sum(1)
        strong = np.flatnonzero(attention >= STRONG * attention.max())
        start = first + int(strong[0 if len(inside) > 1 else -1])
        return Span(self.words[start].start, self.words[first + int(strong[-1])].end)

    def _part(self, span: Span, j: int) -> Place | None:
        """Return the place of one part of the compound j, if its other part stands for another source word."""
        word, inside = self.words[j], self._inside(span)
        at = [k for k, end in enumerate(self.ends) if word.start < end <= word.end]
        owners = self.of_subwords[at].argmax(1).tolist()
        others = {i for i in owners if i not in inside}
        own = [i in inside for i in owners]
        is_parted = len([key for key, _ in groupby(own)]) == 2  # one part's subwords, then the other's
        near = {inside[0] - 1, inside[-1] + 1}
        if not is_parted or not others <= near or any(self.weights[:, i].argmax() != j for i in others):
            return None
        split = own.index(own[-1])
        middle = self.ends[at[split - 1]]
        first, second = self.output[word.start : middle], self.output[middle : word.end]
        if own[0]:
            return Place(word, after="-" + (capitalised(second) if first[:1].isupper() else second))
        return Place(word, before=first + "-")

    def between(self, at: int, text: str, bound: tuple[bool, bool], fixed: int) -> tuple[int, str]:
        """Return where in the output to insert a text that stood at an offset of the source, and the text with spaces.

        `bound` says whether it touched what preceded it, and what followed. The first `fixed` characters stay.
        """
        before = [i for i, word in enumerate(self.source_words) if word.end <= at][::-1]
        behind = [i for i, word in enumerate(self.source_words) if word.start >= at]
        preceding, following = self._beside(before, bound[0]), self._beside(behind, bound[1])
        if preceding and following:
            is_left = preceding[0] + (bound == (True, False)) >= following[0] + (bound == (False, True))
            _, j, touches = preceding if is_left else following
            place = self.words[j].end if is_left else self.words[j].start
        else:
            is_left, touches, place = bool(before), False, len(self.output) if before else 0
        if place < fixed:
            touches, place = False, min(fixed, len(self.output))
        left = place > 0 and not self.output[place - 1].isspace() and not (touches and is_left)
        right = place < len(self.output) and joins(self.output[place]) and (is_left or not touches)
        return place, " " * left + text + " " * right

    def _beside(self, near: Sequence[int], bound: bool) -> tuple[float, int, bool] | None:
        """Return (attention, output word, whether to touch it) for the nearest of source words that has a word.

        Punctuation counts if the output has the same.
        """
        for i in near if self.words else ():
            j, source_word = int(self.weights[:, i].argmax()), self.source_words[i]
            is_same = self.output[slice(*self.words[j])] == self.source[slice(*source_word)]
            if is_same or joins(self.source[source_word.start]):
                touches = bound and is_same and i == near[0]
                return float(self.weights[j, i]) + touches, j, touches
        return None

    def _adjacent(self, j: int, k: int) -> bool:
        """Whether no word, and at most a hyphen or the like without spaces, stands between output words j and k."""
        between = self.output[self.words[j].end : self.words[k].start]
        return k == j + 1 or (k == j + 2 and " " not in between)


class AlignedPart(NamedTuple):
    """A part of a line: where it begins in source, output and the output's words, and its alignment."""

    source: int
    output: int
    word: int
    aligned: Aligned


class AlignedLine:
    """The output of a line whose parts were searched one by one, and their alignments, in order."""

    def __init__(self, output: str, parts: Iterable[tuple[int, int, Aligned]]) -> None:
        """Join parts, each given with the offsets at which it begins in the source and the output."""
        self.output = output
        self.words: list[Span] = []  # of the output
        self._parts: list[AlignedPart] = []
        for source, start, part in parts:
            self._parts.append(AlignedPart(source, start, len(self.words), part))
            self.words += [Span(start + word.start, start + word.end) for word in part.words]

    def part(self, at: int) -> AlignedPart | None:
        """Return the part that has an offset of the source, or is nearest before it; None if there is no part."""
        index = bisect_right(self._parts, at, key=lambda part: part.source)
        return self._parts[max(0, index - 1)] if self._parts else None

    def run(self, span: Span, free: NDArray[np.bool_]) -> Span | None:
        """Return the run of free words that stands for a span of the source, as `Aligned.run` does.

        For a span in several parts, it goes from the first word that stands for it to the last one.
        """
        first = max(0, bisect_right(self._parts, span.start, key=lambda part: part.source) - 1)
        last = bisect_left(self._parts, span.end, key=lambda part: part.source)
        runs = []
        for source, _, word, part in self._parts[first:last]:
            run = part.run(Span(span.start - source, span.end - source), free[word : word + len(part.words)])
            if run:
                runs.append(Span(word + run.start, word + run.end))
        whole = Span(runs[0].start, runs[-1].end) if runs else None
        return whole if whole and free[slice(*whole)].all() else None

    def between(self, at: int, bound: tuple[bool, bool]) -> int:
        """Return where in the output something belongs that stood at an offset of the source, as `Aligned.between`."""
        part = self.part(at)
        return part.output + part.aligned.between(at - part.source, "", bound, 0)[0] if part else 0


def _shares(words: Sequence[Span], ends: Sequence[int]) -> NDArray[np.float64]:
    """Return (words, subwords), the share of each subword's characters that belongs to each word."""
    starts = np.array([0, *ends][: len(ends)])
    firsts, lasts = np.array(words, int).reshape(-1, 2, 1).swapaxes(0, 1)
    shares = np.maximum(np.minimum(lasts, ends) - np.maximum(firsts, starts), 0.0)  # (words, subwords)
    normalised: NDArray[np.float64] = shares / np.maximum(shares.sum(0), 1e-9)
    return normalised
