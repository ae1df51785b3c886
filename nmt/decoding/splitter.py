"""How a line is split into parts, which are translated one by one, and joined again. Imports no torch."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from operator import attrgetter

from nmt.formats.sentences import STOPS, WIDE, SentenceSplitter, TrainedLengths
from nmt.formats.terms import Phrase, Span
from nmt.recipe import Decoding
from nmt.search.sources import Source
from nmt.system.errors import UserError
from nmt.text.scripts import UNSPACED, has_words, is_wide, joins
from nmt.text.vocabulary import SPACE_MARK, Vocabulary

ENDS = (tuple(STOPS + WIDE), tuple(",;:–—،؛、，；："))  # sentence and clause punctuation to cut after
_CLOSING = re.compile(rf"[\s{re.escape(STOPS + WIDE)},;:،؛、，；：)\]}}»”’\"'）」』】]*")


class LineSplitter:
    """Splitter of lines into parts, as `decoding.split` specifies."""

    def __init__(
        self,
        source: Vocabulary,
        decoding: Decoding,
        lengths: TrainedLengths | None,
        language: str = "",
        symbols: Sequence[int] = (),
    ) -> None:
        """Split lines for a model; `lengths` are statistics of its training pairs, None if unknown.

        Then auto means at every sentence, of the `language`: such models mostly learnt single sentences. Every part
        begins with `symbols`, those of its languages.
        """
        self._source, self._lengths, self._symbols = source, lengths, list(symbols)
        self._how = "sentences" if decoding.split == "auto" and lengths is None else decoding.split
        self._sentences = SentenceSplitter(language or (lengths.language if lengths else ""))
        self._limit = self._longest = max(1, decoding.max_source - len(symbols))
        if lengths is not None and self._how in ("auto", "sentences"):
            self._longest = min(self._limit, max(1, lengths.longest_source))

    def split(self, text: str, phrases: Sequence[Phrase] = (), ends: Sequence[int] = ()) -> list[Source]:
        """Encode a line in parts, none of which begins or ends inside one of `phrases`, or goes on behind an offset in
        `ends`, where its format ends a sentence.

        What no part has stays as it is: spaces between them and at the ends of the line, text to keep that is longer
        than a part, and what has no letters or digits. Raise UserError if the line is too long and must not be split.
        """
        text = clean(text)
        language = self._source.language(text.lstrip())
        start = len(text) - len(text.lstrip())
        parts = [
            part
            for first, end in self._stretches(text, start + len(language), phrases, ends)
            for part in self._split(text[first:end], first, phrases)
        ]
        if language and parts:
            parts[0] = replace(parts[0], start=start, text=text[start : parts[0].end])
        first_ids = self._source.encode(language) if language else self._symbols
        return [replace(part, ids=first_ids + part.ids) for part in parts]

    def encode_whole(self, text: str) -> list[int]:
        """Encode a line without splitting it; a blank one has no ids. Raise UserError if it is too long."""
        text = clean(text).strip()
        ids = self._source.encode(text)
        if len(ids) > self._limit:
            raise UserError(
                f"a line that may not be split has {len(ids):,} subwords, more than decoding.max_source "
                f"{self._limit:,}: {text[:60]} …",
                f"--set decoding.max_source={len(ids)}, or let it be split: decoding.split=auto, and no --prefix",
            )
        return ids if not ids or self._source.language(text) else self._symbols + ids

    def _stretches(
        self, text: str, start: int, phrases: Sequence[Phrase], sentence_ends: Sequence[int]
    ) -> Iterator[Span]:
        """Yield the spans of a line, from `start` on, that are translated: all but text to keep that is too long."""
        ends = [len(text)]
        for phrase in reversed(phrases):
            # Beside other text, a span may have one more subword at each end.
            if phrase.kept and self._how != "none" and len(self._source.encode(phrase.source)) + 2 > self._longest:
                ends += [phrase.end, phrase.start]
        bounds = [start, *reversed(ends)]
        for first, end in zip(bounds[::2], bounds[1::2], strict=True):
            if first > start and (closing := _CLOSING.match(text, first, end)):
                first = closing.end()
            inner = [at for at in sentence_ends if first < at < end]
            for begin, stop in pairwise([first, *inner, end]):
                stretch = text[begin:stop].strip()
                if has_words(stretch):
                    at = text.index(stretch, begin)
                    yield Span(at, at + len(stretch))

    def _split(self, text: str, start: int, phrases: Sequence[Phrase]) -> Iterator[Source]:
        """Encode a stretch of a line, which begins at `start`, in parts."""
        if self._how == "none":
            yield Source(0, self.encode_whole(text)[len(self._symbols) :], 0, text=text, start=start)
        elif self._how == "length" or (self._how == "auto" and self._is_usual(text)):
            yield from self._cut(text, start, phrases)
        else:
            for group in self._groups(text, start, phrases):
                yield from self._cut(group.rstrip(), start, phrases)
                start += len(group)

    def _is_usual(self, text: str) -> bool:
        """Return whether a line resembles the training lines."""
        assert self._lengths is not None, "auto asks for them"
        fits = len(self._source.encode(text)) <= min(self._longest, self._lengths.source)
        return fits and len(self._sentences.split(text)) <= self._lengths.sentences

    def _groups(self, text: str, start: int, phrases: Sequence[Phrase]) -> Iterator[str]:
        """Yield groups of sentences within the length limit: by default, as many as training lines usually had."""
        together = self._lengths.usual_sentences if self._how == "auto" and self._lengths else 1
        group, count, size = "", 0, 0
        for part in self._sentences_of(text, start, phrases):
            subwords = len(self._source.encode(part.rstrip()))
            if count and (count >= together or size + subwords > self._longest):
                yield group
                group, count, size = "", 0, 0
            group, count, size = group + part, count + 1, size + subwords
        if group:
            yield group

    def _sentences_of(self, text: str, start: int, phrases: Sequence[Phrase]) -> Iterator[str]:
        """Yield sentences; long ones are split where full stops may be missing."""
        for sentence in _joined_in_phrases(self._sentences.split(text), start, phrases):
            if self._lengths is None or 2 * len(self._source.encode(sentence.rstrip())) <= self._lengths.source:
                yield sentence
            else:
                yield from _joined_in_phrases(self._sentences.split_unmarked(sentence), start, phrases)
            start += len(sentence)

    def _cut(self, text: str, start: int, phrases: Sequence[Phrase]) -> Iterator[Source]:
        """Encode text, which begins at `start`, in parts of similar length within the limit."""
        ids = self._source.encode(text)
        if len(ids) <= self._longest:
            yield Source(0, ids, 0, text=text, start=start)
            return
        ends = [0, *self._source.ends_in(text, ids)]  # by the number of subwords before
        barred = {cut for cut, end in enumerate(ends) if _is_inside(start + end, phrases)}
        first = 0
        while rest := len(ids) - first:
            pieces = -(-rest // self._longest)
            cut = self._best_cut(ids, first, first - (-rest // pieces), barred) if pieces > 1 else len(ids)
            own = text[ends[first] : ends[cut]].strip()
            yield Source(0, ids[first:cut], 0, text=own, start=start + text.index(own, ends[first]))
            first = cut

    def _best_cut(self, ids: list[int], start: int, ideal: int, barred: set[int]) -> int:
        """Return the best cut near `ideal`: after a sentence, else a clause, else before a word, else at the limit.

        `barred` are cuts inside phrases, used only if there is no other.
        """
        last = start + self._longest
        free = [cut for cut in range(start + max(1, self._longest // 2), last + 1) if cut not in barred]
        free = free or [max({*range(start + 1, last + 1)} - barred, default=last)]
        cuts = sorted(free, key=lambda cut: abs(cut - ideal))
        pieces = self._source.pieces(ids[start : last + 1])
        words = [cut for cut in cuts if pieces[cut - start].startswith(SPACE_MARK)]
        found = (cut for ends in ENDS for cut in words or cuts if pieces[cut - start - 1].endswith(ends))
        return next(found, words[0] if words else max(cuts))


def _joined_in_phrases(pieces: Iterable[str], start: int, phrases: Sequence[Phrase]) -> Iterator[str]:
    """Join consecutive pieces of a line, the first of which begins at `start`, that end inside a phrase."""
    whole = ""
    for piece in pieces:
        whole, start = whole + piece, start + len(piece)
        if not _is_inside(start, phrases):
            yield whole
            whole = ""
    if whole:
        yield whole


def _is_inside(at: int, phrases: Sequence[Phrase]) -> bool:
    """Return whether an offset is inside one of `phrases`, which are in order."""
    before = bisect_left(phrases, at, key=attrgetter("start"))
    return before > 0 and at < phrases[before - 1].end


def clean(text: str) -> str:
    """Replace lone surrogates, which cannot be encoded, by question marks."""
    return text.encode(errors="replace").decode()


def joined(line: str, parts: Sequence[Source], texts: Sequence[str]) -> tuple[str, list[int]]:
    """Return a line with translations in place of its parts, and the offset of each.

    A single space between two parts is dropped in scripts without spaces, but for one behind a sentence of Thai and its
    like; where the source needs none, a missing one is added. Empty translations leave no spaces.
    """
    if not parts:
        return clean(line), []
    found, starts, last = clean(line[: parts[0].start]), list[int](), 0
    is_blank = not found.strip()  # so far
    for part, text in zip(parts, texts, strict=True):
        between = clean(line[last : part.start]) if last else ""
        if between.strip():
            is_blank = False
        elif is_blank or not text:
            between = ""
        elif last and len(between) < 2:
            between = _between(found[-1], between, line[last - 1])
        found += _apart(found, between, line, last) + between
        found += _apart(found, text, line, part.start) * bool(between.strip() or not last)
        starts.append(len(found))
        found, last, is_blank = found + text, part.end, is_blank and not text
    rest = clean(line[last:])
    return ("" if is_blank and not rest.strip() else found + _apart(found, rest, line, last) + rest), starts


def _between(last: str, between: str, source: str) -> str:
    """Return what follows a part that ends in `last`, whose source ends in `source`, with `between` behind it."""
    if is_wide(last) or (UNSPACED.match(last) and source not in STOPS + WIDE):
        return ""
    return between or " " * (UNSPACED.match(source) is not None)


def _apart(found: str, following: str, line: str, at: int) -> str:
    """Return a space if two words would become one that are apart at this offset of the line."""
    touch = found[-1:] != "" and joins(found[-1]) and following[:1] != "" and joins(following[0])
    return " " * (touch and not (at and joins(line[at - 1]) and joins(line[at])))
