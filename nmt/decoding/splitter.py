"""How a line is split into parts, which are translated one by one, and joined again. Imports no torch."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import replace

from nmt.decoding.read_ahead import Part
from nmt.recipe import Decoding
from nmt.system.errors import UserError
from nmt.text.sentences import SentenceSplitter, TrainedLengths
from nmt.text.vocabulary import Vocabulary

ENDS = (tuple(".!?…。！？।"), tuple(",;:–—،؛、，；："))  # sentence and clause punctuation to cut after


class LineSplitter:
    """Splitter of lines into parts, as `decoding.split` specifies."""

    def __init__(self, source: Vocabulary, decoding: Decoding, lengths: TrainedLengths | None) -> None:
        """Split lines for a model; `lengths` are statistics of its training pairs, None if unknown."""
        self._source, self._lengths = source, lengths
        self._how = "length" if decoding.split == "auto" and lengths is None else decoding.split
        self._sentences = SentenceSplitter(lengths.language if lengths else "")
        self._limit = self._longest = decoding.max_source
        if lengths is not None and self._how in ("auto", "sentences"):
            self._longest = min(self._limit, max(1, lengths.longest_source))

    def split(self, text: str) -> list[Part]:
        """Encode a line in parts, none if blank. Raise UserError if it is too long and must not be split."""
        text = clean(text)
        if language := self._source.language(text):
            first = self._source.encode(language)
            return [replace(part, ids=first + part.ids) for part in self._split(text.removeprefix(language))]
        return self._split(text)

    def encode_whole(self, text: str) -> list[int]:
        """Encode a line without splitting it. Raise UserError if it is too long."""
        ids = self._source.encode(clean(text))
        if len(ids) > self._limit:
            raise UserError(
                f"a line that may not be split has {len(ids):,} subwords, more than decoding.max_source "
                f"{self._limit:,}: {text[:60]} …",
                f"--set decoding.max_source={len(ids)}, or let it be split: decoding.split=auto, and no --prefix",
            )
        return ids

    def _split(self, text: str) -> list[Part]:
        if self._how == "none":
            whole = self.encode_whole(text)
            return [Part(whole)] if whole else []
        if self._how != "sentences":
            ids = self._source.encode(text)
            if self._how == "length" or self._is_usual(text, len(ids)):
                return list(self._cut(ids, ""))
        stripped = ((group.rstrip(), group) for group in self._groups(text))
        return [part for text, group in stripped for part in self._cut(self._source.encode(text), group[len(text) :])]

    def _is_usual(self, text: str, length: int) -> bool:
        """Return whether a line of `length` subwords resembles the training lines."""
        assert self._lengths is not None, "auto asks for them"
        fits = length <= min(self._longest, self._lengths.source)
        return fits and len(self._sentences.split(text)) <= self._lengths.sentences

    def _groups(self, text: str) -> Iterator[str]:
        """Yield groups of sentences within the length limit: by default, as many as training lines usually had."""
        together = self._lengths.usual_sentences if self._how == "auto" and self._lengths else 1
        group, count, size = "", 0, 0
        for part, subwords in self._sentences_of(text):
            if count and (count >= together or size + subwords > self._longest):
                yield group
                group, count, size = "", 0, 0
            group, count, size = group + part, count + 1, size + subwords
        if group:
            yield group

    def _sentences_of(self, text: str) -> Iterator[tuple[str, int]]:
        """Yield sentences with their lengths in subwords; long ones are split where full stops may be missing."""
        for sentence in self._sentences.split(text):
            length = len(self._source.encode(sentence.rstrip()))
            if self._lengths is None or 2 * length <= self._lengths.source:
                yield sentence, length
            else:
                for part in self._sentences.split_unmarked(sentence):
                    yield part, len(self._source.encode(part.rstrip()))

    def _cut(self, ids: list[int], space: str) -> Iterator[Part]:
        """Cut subwords into parts of similar length within the limit; `space` follows the last part."""
        start = 0
        while (rest := len(ids) - start) > self._longest:
            pieces = -(-rest // self._longest)
            cut = self._best_cut(ids, start, start - (-rest // pieces))
            yield Part(ids[start:cut], space=" " if self._source.starts_word(ids[cut]) else "")
            start = cut
        if rest:
            yield Part(ids[start:], space=space)

    def _best_cut(self, ids: list[int], start: int, ideal: int) -> int:
        """Return the best cut near `ideal`: after a sentence, else a clause, else before a word, else at the limit."""
        last = start + self._longest
        places = sorted(range(start + max(1, self._longest // 2), last + 1), key=lambda place: abs(place - ideal))
        words = [place for place in places if self._source.starts_word(ids[place])]
        pieces = self._source.pieces(ids[start:last])
        found = (place for ends in ENDS for place in words or places if pieces[place - start - 1].endswith(ends))
        return next(found, words[0] if words else last)


def clean(text: str) -> str:
    """Strip a text and replace lone surrogates, which cannot be encoded."""
    return text.strip().encode(errors="replace").decode()


def joined(texts: list[str], spaces: list[str]) -> str:
    """Join the parts' translations with the spaces that followed the parts in the source.

    After a full-width character, as in Chinese, a single space is dropped; after others, a missing space is added.
    """
    found: list[str] = []
    space = ""
    for text, following in zip(texts, spaces, strict=True):
        if text:
            if found:
                wide = unicodedata.east_asian_width(found[-1][-1]) in "WF"
                found.append(space if len(space) > 1 else "" if wide else space or " ")
            found.append(text)
        space = following
    return "".join(found)
