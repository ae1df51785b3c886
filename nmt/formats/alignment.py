"""Aligned texts: which words of an output stand for which words of its source, and where a text goes in the output.

This knows no format and no model: attention comes as an array. In names, i is a word of the source and j one
of the output.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, pairwise
from operator import attrgetter
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from nmt.formats.terms import Phrase, Span, capitalised, find_copies
from nmt.text.scripts import UNSPACED, has_words, joins

STRONG = 0.5  # share of attention that keeps a word in a run: of its own, or of the strongest in the run
CLEAR = 0.3  # attention to a source word from which an output word may stand for it
LIKELY = 0.2  # attention from which tags go around a word if no word stands clearly for theirs
GLUE = frozenset("-‐‑'’.,:/@&+·")  # punctuation that makes one word of what stands on both sides of it
JOINING = frozenset("-‐‑'’")  # punctuation that no text is inserted beside in a word: Asseyez-vous, l'homme
OPENING = "([{«„“‘¿¡–—<&"  # before which a space stays
STOPS = ".,:"  # which make none of a word and one that begins with a capital: cat.The
END_OF_TEXT = re.compile(r"(?<![\s.!?…。！？।])\s*[.!?…。！？।]++[\"'”’»)\]」』]*+\s*\Z")
_NO_SPACE = re.compile(r"\S+")


def words_of(text: str, glue: frozenset[str] = frozenset(), whole: Sequence[Span] = ()) -> list[Span]:
    """Return the spans of words; in scripts without spaces, and in punctuation, each character is a word.

    "don't go" has the words don, ', t and go; with `'` in `glue`, which joins what is on both sides, don't and go.
    Each span in `whole` is one word; they are in order.
    """
    joined = [joins(character) for character in text]
    keys: list[int | None] = []  # equal for adjacent characters of a word; None for white space
    for at, character in enumerate(text):
        is_glue = character in glue and 0 < at < len(text) - 1 and joined[at - 1] and joined[at + 1]
        is_stop = character in STOPS and is_glue and text[at + 1].isupper() and not text[at - 1].isupper()
        if joined[at] or (is_glue and not is_stop):
            keys.append(-1)
        elif character.isspace():
            keys.append(None)
        else:
            keys.append(at)
    for number, span in enumerate(whole, len(text)):  # numbers that are no offsets
        keys[span.start : span.end] = [number] * (span.end - span.start)
    words: list[Span] = []
    start = 0
    for key, same in groupby(keys):
        end = start + len([*same])
        if key is not None:
            words.append(Span(start, end))
        start = end
    return words


class Site(NamedTuple):
    """Where a text may be written into an output: over a span, or into it if the span is empty."""

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
        copies = find_copies(output, [phrase.source for phrase in kept])
        source_words = words_of(source, glue, [phrase.span for phrase in kept])
        words = words_of(output, glue, copies)
        queries = _shares(words, ends)  # (words, output subwords)
        keys = _shares(source_words, source_ends)  # (source words, source subwords)
        mean = queries / np.maximum(queries.sum(1, keepdims=True), 1e-9)
        of_subwords = weights @ keys.T  # (output subwords, source words)
        return cls(source, output, source_words, words, mean @ of_subwords, ends, of_subwords)

    @classmethod
    def copied(cls, text: str, walls: Iterable[int]) -> Self:
        """Return the alignment of a text with itself, whose words end at spaces and at `walls`."""
        inner = [wall for wall in walls if 0 < wall < len(text)]
        words: list[Span] = []
        for start, end in pairwise([0, *inner, len(text)]):
            words += [Span(*found.span()) for found in _NO_SPACE.finditer(text, start, end)]
        weights = np.eye(len(words))
        return cls(text, text, words, words, weights, (), weights)

    def pinned(self, phrases: Iterable[Phrase]) -> Self:
        """Let the targets of phrases that the output has stand for their sources alone, whatever the attention.

        Their weights are 1, and 0 to all other words. Of several occurrences, that with the most attention counts.
        """
        weights = self.weights.copy()
        taken: set[int] = set()
        for phrase in phrases:
            inside = _touched(self.source_words, phrase.span)
            free = [words for words in self._targets_of(phrase) if words and taken.isdisjoint(words)]
            if not free:
                continue
            best = max(free, key=lambda words: float(self.weights[words][:, inside].sum()))
            taken.update(best)
            weights[best] = 0.0
            weights[:, inside] = 0.0
            weights[np.ix_(best, inside)] = 1.0
        return replace(self, weights=weights)

    def _targets_of(self, phrase: Phrase) -> Iterator[list[int]]:
        """Yield the output words of each occurrence of a phrase's targets."""
        flags = 0 if phrase.case else re.IGNORECASE
        for target in phrase.targets:
            for found in re.finditer(re.escape(target), self.output, flags):
                yield _touched(self.words, Span(*found.span()))

    @cached_property
    def _source_texts(self) -> list[str]:
        return [word.text_in(self.source) for word in self.source_words]

    @cached_property
    def _counts(self) -> Counter[str]:
        return Counter(self._source_texts)

    @cached_property
    def _signs(self) -> list[tuple[int, str]]:
        """Output words that are punctuation or symbols, and their texts"""
        return [
            (j, word.text_in(self.output)) for j, word in enumerate(self.words) if _is_sign(self.output[word.start])
        ]

    @cached_property
    def _best_words(self) -> NDArray[np.intp]:
        """Output word that attends most to each source word"""
        return np.asarray(self.weights.argmax(0))

    @cached_property
    def _totals(self) -> NDArray[np.float64]:
        return np.asarray(self.weights.sum(1), np.float64)

    @cached_property
    def _is_pinned(self) -> NDArray[np.bool_]:
        return np.asarray(self.weights.max(1) == 1.0)

    def run(self, span: Span, free: NDArray[np.bool_]) -> Span | None:
        """Return the run (first, end) of free output words that stands for a span of the source; None if none does.

        `free` is (words,). Words in it that stand for others count against it, and are not at its ends. Punctuation
        belongs to a run if the span alone has it.
        """
        inside = _touched(self.source_words, span)
        if not (inside and free.any()):
            return None
        attention = self.weights[:, inside].sum(1)  # (words,)
        scores = np.where(free, self._scores(inside, attention), -np.inf)
        return _best_run(scores) or self._likely_word(inside, attention * free)

    def _scores(self, inside: Sequence[int], attention: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return what each output word adds to a run (words,), given its attention to the source words `inside`."""
        shares = attention / np.maximum(self._totals, 1e-9)
        scores = shares - STRONG
        own = Counter(self._source_texts[i] for i in inside)
        for j, sign in self._signs:
            is_elsewhere = self._counts[sign] > own[sign]
            if not own[sign]:
                scores[j] = 0.0
            elif not is_elsewhere:
                scores[j] = STRONG
        of_others = np.zeros(len(self.words), bool)  # an article attends to its noun, but stands for that of the source
        of_others[self._best_words] = True
        of_others[self._best_words[inside]] = False
        scores[of_others] = np.minimum(scores[of_others], 0.0)
        if len(inside) == len(self.source_words):
            scores[:] = STRONG
        scores[self._is_pinned & (shares == 0.0)] = -np.inf  # pinned to a word outside
        return scores

    def _likely_word(self, inside: Sequence[int], attention: NDArray[np.float64]) -> Span | None:
        """Return the word with the most attention, without punctuation; None if there is no attention at all.

        If that is weak, return a word that stands for no source word outside, if there is one.
        """
        for j, _ in self._signs:
            attention[j] = 0.0
        likely = int(attention.argmax())
        if attention[likely] < LIKELY:
            attention[np.delete(self._best_words, inside)] = 0.0
            likely = int(attention.argmax())
        return Span(likely, likely + 1) if attention[likely] > 0.0 else None

    def sites(self, span: Span, taken: set[int]) -> Iterator[Site]:
        """Yield sites in the output for a translation of a source span.

        They are those of the words that attend most to it, or beside the word that attends to it at all. `taken` are
        the words that no longer count; the chosen ones are added.
        """
        inside = _touched(self.source_words, span)
        mass = self.weights[:, inside].sum(1)  # (words,)
        favourites = self.weights.argmax(1)  # (words,), the source word that each attends to most
        free = [j for j, word in enumerate(self.words) if j not in taken and joins(self.output[word.start])]
        if not free:
            yield Site(Span(len(self.output), len(self.output)), before=" ")
            return
        hits = [j for j in free if favourites[j] in inside]
        best = [max(free, key=mass.__getitem__)]  # a run of output words
        if hits:
            best = max(self._runs(hits), key=lambda run: (self.weights[run][:, inside].sum(1).max(), run))
        first = best[0]
        last = best[-1]
        taken.update(range(first, last + 1))
        part = self._part(inside, first) if first == last else None
        if part:
            yield part
        elif hits:  # without weak words at its ends; for one source word the last word, since an article attends to it
            strong = first + np.flatnonzero(mass[first : last + 1] >= STRONG * mass[first : last + 1].max())
            start = strong[0 if len(inside) > 1 else -1]
            yield Site(Span(self.words[start].start, self.words[strong[-1]].end))
        else:
            word = self.words[first]
            is_clear = mass[first] >= CLEAR
            if is_clear:
                yield Site(word)
            if not is_clear or self._best_words[favourites[first]] == first:  # its own source has no other word
                yield Site(Span(word.start, word.start), after=" ")
                yield Site(Span(word.end, word.end), before=" ")

    def _runs(self, words: Iterable[int]) -> list[list[int]]:
        """Divide output words into runs of adjacent ones."""
        runs: list[list[int]] = []
        for j in words:
            if runs and self._adjacent(runs[-1][-1], j):
                runs[-1].append(j)
            else:
                runs.append([j])
        return runs

    def _part(self, inside: Sequence[int], j: int) -> Site | None:
        """Return the site of one part of the compound j, if its other part stands for a source word beside `inside`."""
        word = self.words[j]
        subwords = [k for k, end in enumerate(self.ends) if word.start < end <= word.end]
        owners = self.of_subwords[subwords].argmax(1).tolist()  # a source word for each subword
        own = [i in inside for i in owners]
        if len([*groupby(own)]) != 2:  # one part's subwords, then the other's
            return None
        neighbours = (inside[0] - 1, inside[-1] + 1)
        for i in set(owners).difference(inside):
            if i not in neighbours or self._best_words[i] != j:
                return None
        split = own.index(own[-1])
        middle = self.ends[subwords[split - 1]]
        first = self.output[word.start : middle]
        second = self.output[middle : word.end]
        if not own[0]:
            return Site(word, before=first + "-")
        if first[:1].isupper():
            second = capitalised(second)
        return Site(word, after="-" + second)

    def between(self, at: int, text: str, bound: tuple[bool, bool], fixed: int) -> tuple[int, str]:
        """Return where in the output to insert a text that stood at an offset of the source, and the text with spaces.

        `bound` says whether it touched what preceded it, and what followed. The first `fixed` characters stay.
        """
        before = range(bisect_right(self.source_words, at, key=attrgetter("end")))
        behind = range(bisect_left(self.source_words, at, key=attrgetter("start")), len(self.source_words))
        preceding = self._beside(before[::-1], bound[0])
        following = self._beside(behind, bound[1])
        is_left = len(before) > 0
        touches = False
        place = len(self.output) if is_left else 0
        if preceding and following:  # what it touched outweighs all attention, which is at most 1
            is_left = preceding[0] + (bound == (True, False)) >= following[0] + (bound == (False, True))
            if is_left:
                _, j, touches = preceding
                place = self.words[j].end
            else:
                _, j, touches = following
                place = self.words[j].start
        end = END_OF_TEXT.search(self.output)
        if end and place > end.start() and not END_OF_TEXT.search(self.source[:at]):  # it stood behind no full stop
            touches = False
            is_left = end.start() > 0
            place = end.start()
        if not touches:
            place = self._beside_word(place, is_left)
        if place < fixed:
            touches = False
            place = min(fixed, len(self.output))
        left = self.output[place - 1 : place]
        right = self.output[place : place + 1]
        needs_space_before = left != "" and not left.isspace() and not UNSPACED.match(left)
        needs_space_behind = right != "" and (joins(right) or right in OPENING)
        if needs_space_before and not (touches and is_left):
            text = " " + text
        if needs_space_behind and (is_left or not touches):
            text += " "
        return place, text

    def _beside_word(self, place: int, is_behind: bool) -> int:
        """Return the offset behind or before the word that an offset of the output is inside, or the offset itself."""
        for word in words_of(self.output, JOINING):
            if word.start < place < word.end:
                return word.end if is_behind else word.start
        return place

    def _beside(self, near: Sequence[int], bound: bool) -> tuple[float, int, bool] | None:
        """Return (attention, output word, whether to touch it) for the nearest of source words that has a word.

        Punctuation counts if the output has the same.
        """
        if not self.words:
            return None
        for i in near:
            source_word = self._source_texts[i]
            j = int(self._best_words[i])
            is_same = self.words[j].text_in(self.output) == source_word
            if is_same or has_words(source_word):
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
        if not self._parts:
            return None
        index = bisect_right(self._parts, at, key=lambda part: part.source)
        return self._parts[max(0, index - 1)]

    def run(self, span: Span, free: NDArray[np.bool_]) -> Span | None:
        """Return the run of free words that stands for a span of the source, as `Aligned.run` does.

        For a span in several parts, it goes from the first word that stands for it to the last one.
        """
        first = max(0, bisect_right(self._parts, span.start, key=lambda part: part.source) - 1)
        last = bisect_left(self._parts, span.end, key=lambda part: part.source)
        edges: list[int] = []
        for source, _, word, part in self._parts[first:last]:
            run = part.run(Span(span.start - source, span.end - source), free[word : word + len(part.words)])
            if run:
                edges += [word + run.start, word + run.end]
        if not edges:
            return None
        whole = Span(edges[0], edges[-1])
        return whole if free[whole.start : whole.end].all() else None

    def between(self, at: int, bound: tuple[bool, bool]) -> int:
        """Return where in the output something belongs that stood at an offset of the source, as `Aligned.between`.

        Between two parts, it is at the end of the first or, if it touched only what followed, at the beginning of the
        second.
        """
        index = bisect_right(self._parts, at, key=lambda part: part.source)
        if not index:
            return 0
        part = self._parts[index - 1]
        if at - part.source < len(part.aligned.source):
            return part.output + part.aligned.between(at - part.source, "", bound, 0)[0]
        if bound == (False, True) and index < len(self._parts):
            return self._parts[index].output
        return part.output + len(part.aligned.output.rstrip())


def _best_run(scores: NDArray[np.float64]) -> Span | None:
    """Return the run of the greatest sum of scores; None if no sum is positive."""
    found: Span | None = None
    best = 0.0
    first = 0
    total = 0.0
    for j, score in enumerate(scores.tolist()):
        if total <= 0.0:
            first = j
            total = 0.0
        total += score
        if total > best:
            best = total
            found = Span(first, j + 1)
    return found


def _is_sign(character: str) -> bool:
    return unicodedata.category(character)[0] in "PS"


def _touched(words: Sequence[Span], span: Span) -> list[int]:
    """Return the indices of the words, which are in order, that a span touches."""
    first = bisect_right(words, span.start, key=attrgetter("end"))
    stop = bisect_left(words, span.end, lo=first, key=attrgetter("start"))
    return [*range(first, stop)]


def _shares(words: Sequence[Span], ends: Sequence[int]) -> NDArray[np.float64]:
    """Return (words, subwords), the share of each subword's characters that belongs to each word."""
    starts = np.array([0, *ends][: len(ends)])  # (subwords,)
    word_starts, word_ends = np.array(words, int).reshape(-1, 2, 1).swapaxes(0, 1)  # (words, 1) each
    overlaps = np.minimum(word_ends, ends) - np.maximum(word_starts, starts)  # (words, subwords)
    shared = np.maximum(overlaps, 0.0)
    return np.asarray(shared / np.maximum(shared.sum(0), 1e-9), np.float64)
