"""Lines cut into the parts that a translator can take: at ends of sentences, else of clauses, else between words."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import replace

from nmt.errors import UserError
from nmt.recipe import Decoding
from nmt.tasks.read_ahead import Part
from nmt.text.sentences import SentenceSplitter, TrainedLengths
from nmt.text.vocabulary import Vocabulary

ENDS = (tuple(".!?…。！？।"), tuple(",;:–—،؛、，；："))  # of sentences, and of clauses: subwords to cut behind


class LineSplitter:
    """Cuts lines as `decoding.split` says."""

    def __init__(self, source: Vocabulary, decoding: Decoding, lengths: TrainedLengths | None) -> None:
        """`lengths` are those of the model's training; None if they are not known."""
        self._source, self._lengths = source, lengths
        self._how = "length" if decoding.split == "auto" and lengths is None else decoding.split
        self._sentences = SentenceSplitter(lengths.language if lengths else "")
        self._limit = self._longest = decoding.max_source
        if lengths is not None and self._how in ("auto", "sentences"):
            self._longest = min(self._limit, max(1, lengths.longest_source))

    def split(self, text: str) -> list[Part]:
        """The parts of a line; none of a blank one. Raises UserError for a line that is too long to be left whole."""
        text = clean(text)
        if language := self._source.language(text):
            first = self._source.encode(language)
            return [replace(part, ids=first + part.ids) for part in self._split(text.removeprefix(language))]
        return self._split(text)

    def _split(self, text: str) -> list[Part]:
        if self._how == "none":
            return self.whole(text)
        if self._how != "sentences":
            ids = self._source.encode(text)
            if self._how == "length" or self._fits(text, len(ids)):
                return list(self._cut(ids, ""))
        return [
            part
            for group in self._groups(text)
            for part in self._cut(self._source.encode(group.rstrip()), _space(group))
        ]

    def _fits(self, text: str, length: int) -> bool:
        """Whether a line of so many subwords is like those of training."""
        assert self._lengths is not None, "auto asks for them"
        fits = length <= min(self._longest, self._lengths.source)
        return fits and len(self._sentences.split(text)) <= self._lengths.sentences

    def _groups(self, text: str) -> Iterator[str]:
        """The sentences of a line, as many together as training mostly had, if those are not too long together."""
        together = self._lengths.usual_sentences if self._how == "auto" and self._lengths else 1
        group, count, size = "", 0, 0
        for sentence in self._sentences.split(text):
            length = len(self._source.encode(sentence.rstrip()))
            for part, subwords in self._unmarked(sentence, length):
                if count and (count >= together or size + subwords > self._longest):
                    yield group
                    group, count, size = "", 0, 0
                group, count, size = group + part, count + 1, size + subwords
        if group:
            yield group

    def _unmarked(self, sentence: str, length: int) -> list[tuple[str, int]]:
        """The parts of a sentence, which may be several without full stops if it is long, and their lengths."""
        if self._lengths is None or 2 * length <= self._lengths.source:
            return [(sentence, length)]
        parts = self._sentences.split_unmarked(sentence)
        return [(part, len(self._source.encode(part.rstrip()))) for part in parts]

    def whole(self, text: str) -> list[Part]:
        """A line as one part; none for a blank one. Raises UserError for a line that is too long."""
        ids = self._source.encode(clean(text))
        if len(ids) > self._limit:
            raise UserError(
                f"a line that may not be split has {len(ids):,} subwords, more than decoding.max_source "
                f"{self._limit:,}: {text[:60]} …",
                f"--set decoding.max_source={len(ids)}, or let it be split: decoding.split=auto, and no --prefix",
            )
        return [Part(ids)] if ids else []

    def _cut(self, ids: list[int], space: str) -> Iterator[Part]:
        """Cuts subwords into parts of about the same length that are not too long; `space` follows the last."""
        start = 0
        while (rest := len(ids) - start) > self._longest:
            pieces = -(-rest // self._longest)
            cut = self._best_cut(ids, start, start - (-rest // pieces))
            yield Part(ids[start:cut], space=" " if self._source.starts_word(ids[cut]) else "")
            start = cut
        if rest:
            yield Part(ids[start:], space=space)

    def _best_cut(self, ids: list[int], start: int, ideal: int) -> int:
        """Where to cut, near `ideal`: behind a sentence, else a clause, else before a word, else at the limit."""
        last = start + self._longest
        places = sorted(range(start + max(1, self._longest // 2), last + 1), key=lambda place: abs(place - ideal))
        words = [place for place in places if self._source.starts_word(ids[place])]
        pieces = self._source.pieces(ids[start:last])
        found = (place for ends in ENDS for place in words or places if pieces[place - start - 1].endswith(ends))
        return next(found, words[0] if words else last)


def clean(text: str) -> str:
    """The text without space around it; a lone surrogate is no text."""
    return text.strip().encode(errors="replace").decode()


def _space(text: str) -> str:
    """The space at the end of a text."""
    return text[len(text.rstrip()) :]


def joined(texts: list[str], spaces: list[str]) -> str:
    """The translations of the parts of a line as one, with the space between them that the parts had.

    After characters of full width, as in Chinese, no space is needed; elsewhere there is at least one.
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
