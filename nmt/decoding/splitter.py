"""How a line is split into parts, which are translated one by one, and how their translations are joined.

The splitter sees text, its subwords and the phrases that no cut may go through; it knows no model. Imports no torch.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from operator import attrgetter

from nmt.formats.frames import Frames
from nmt.formats.letter_case import has_word_in_capitals, is_in_capitals
from nmt.formats.names import SIGNS, amounts
from nmt.formats.sentences import CLAUSE_MARKS, STOPS, WIDE, SentenceSplitter, TrainedLengths, as_sentence, clauses
from nmt.formats.terms import Phrase, Span, offsets_in
from nmt.recipe import Decoding
from nmt.search.sources import Source
from nmt.system.errors import UserError
from nmt.text.scripts import UNSPACED, has_words, is_wide, joins
from nmt.text.vocabulary import SPACE_MARK, Vocabulary

ENDS = (tuple(STOPS + WIDE), tuple(",;:–—،؛、，；："))  # sentence and clause punctuation to cut after
_ABBREVIATION = re.compile(r"(?=[^A-Z]*[A-Z])[!-`{-~]{0,4}[A-Z0-9]")  # FAQ, N/A, A1
_BEFORE_CLAUSE = re.compile(r"[^\W_](?:\s?;|\s[–—-]{1,2})\s*\Z")  # not behind a colon, as in Tom: I see
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
        self._source = source
        self.lacking = re.compile(amounts(source.lacking(SIGNS) if decoding.keep else ""))
        """Pattern for the signs that the vocabulary lacks, for which models invent words"""
        self._lengths = lengths
        self._symbols = list(symbols)
        self._how: str = decoding.split
        self._limit = max(1, decoding.max_source - len(symbols))
        self._longest = self._limit
        if lengths is None:
            if self._how == "auto":
                self._how = "sentences"
        else:
            language = language or lengths.language
            if self._how in ("auto", "sentences"):
                self._longest = min(self._limit, max(1, lengths.longest_source))
        self._sentences = SentenceSplitter(language)
        # Models from elsewhere have learnt much text, and write the quotation marks of their language.
        self._frames = Frames(language, quotes=lengths is not None)
        self._has_frames = decoding.keep and self._how != "none"
        self._full_stop = ""
        self._unseen = ""
        if lengths and lengths.full_stop and self._has_frames:  # the model has seen only whole sentences
            self._full_stop = lengths.full_stop
            self._unseen = lengths.unseen

    def split(
        self, text: str, phrases: Sequence[Phrase] = (), ends: Sequence[int] = (), copies_numbers: bool = False
    ) -> list[Source]:
        """Encode a line in parts, none of which begins or ends inside one of `phrases`, or goes on behind an offset in
        `ends`, where its format ends a sentence.

        What no part has stays as it is: spaces between them and at the ends of the line, what stands around sentences,
        unknown abbreviations, text to keep that is longer than a part, and what has no letters or digits but in text to
        keep; if it `copies_numbers`, or within brackets and the like, no letters or digits of other scripts. Numbers
        and caps of the parts are set later. Raise UserError if the line is too long and must not be split.
        """
        text = clean(text)
        language = self._source.language(text.lstrip())  # a symbol for the target language that was typed, or ""
        start = len(text) - len(text.lstrip())
        parts = list[Source]()
        for span in self._stretches(text, start + len(language), phrases, ends):
            if language:  # a typed symbol must not stay in the line, and so no text of its own may be behind it
                parts += self._split(span.text_in(text), span.start, phrases, has_frames=False)
                continue
            inner = self._inside(span.text_in(text), span.start, phrases)
            if self._stays(inner.text_in(text)):
                continue
            if _has_words(text, inner, phrases, copies_numbers or inner != span):
                parts += self._split(inner.text_in(text), inner.start, phrases)
        if self._full_stop:
            parts = [self._as_sentence(part, text[: part.start]) for part in parts]
        symbols = self._symbols
        if language:
            symbols = self._source.encode(language)
            if parts:
                parts[0] = replace(parts[0], start=start, text=text[start : parts[0].end])
        return [replace(part, ids=symbols + part.ids) for part in parts]

    def ends_around_others(self, text: str, phrases: Sequence[Phrase]) -> list[int]:
        """Return where a line's sentences end if some of them are in brackets or quotation marks, or in capitals.

        They are parts of their own then, and only the translations of those in capitals are in capitals. So are items
        behind the first, as in - Who? - Me., what introduces a quotation, asides, as in (laughs) I see., and clauses
        between marks that the model has not seen.
        """
        may_be_framed = self._has_frames and self._frames.may_be_inside(text)
        may_have_clauses = any(CLAUSE_MARKS[mark].search(text) for mark in self._unseen)
        if not (may_be_framed or may_have_clauses or has_word_in_capitals(text)):
            return []  # at once, like most lines
        if self._how in ("none", "length") or (is_in_capitals(text) and not may_have_clauses):
            return []
        ends = list[int]()
        is_other = False
        at = 0
        for sentence in _joined_in_phrases(self._sentences.split(text), 0, phrases):
            is_other = is_other or is_in_capitals(sentence)
            cuts = clauses(sentence, self._unseen) if may_have_clauses else []
            if may_be_framed:
                cuts += [*self._frames.asides(sentence), self._frames.quotation(sentence)]
            inner = sorted(at + cut for cut in cuts if cut and not _is_inside(at + cut, phrases))
            ends += inner
            is_other = is_other or bool(inner)
            if may_be_framed:
                is_other = is_other or (at > 0 and self._frames.is_item(sentence))
                is_other = is_other or self._frames.closing(sentence.rstrip()) > 0
            at += len(sentence)
            ends.append(at)
        return ends[:-1] if is_other else []

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
        if not ids or self._source.language(text):
            return ids
        return self._symbols + ids

    def _as_sentence(self, part: Source, before: str) -> Source:
        """Return a part of a line as a model that has seen only whole sentences knows it.

        It ends as a sentence does. Outputs, which begin in a capital, get a small letter if the part does.
        """
        is_clause = part.text.startswith("I ") and _BEFORE_CLAUSE.search(before) is not None
        part = replace(part, is_small=is_clause or part.text[:1].islower())
        text = as_sentence(part.text, self._full_stop)
        if text == part.text:
            return part
        ids = self._source.encode(text)
        full_stop = text.removeprefix(part.text) if text.startswith(part.text) else ""
        return replace(part, ids=ids, full_stop=full_stop) if len(ids) <= self._limit else part

    def _stays(self, text: str) -> bool:
        """Return whether a text has no letters or only one, or is an abbreviation that the vocabulary lacks.

        Models of sentences make sentences of such texts.
        """
        if not self._full_stop:
            return False
        if not any(map(str.isalpha, text)):
            return True
        return _ABBREVIATION.fullmatch(text) is not None and (len(text) == 1 or len(self._source.encode(text)) > 1)

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
            if first > start:
                closing = _CLOSING.match(text, first, end)
                if closing:
                    first = closing.end()
            inner = [at for at in sentence_ends if first < at < end]
            for begin, stop in pairwise([first, *inner, end]):
                stretch = text[begin:stop].strip()
                if has_words(stretch):
                    at = text.index(stretch, begin)
                    yield Span(at, at + len(stretch))

    def _inside(self, text: str, start: int, phrases: Sequence[Phrase]) -> Span:
        """Return the span of a line that is within the brackets and the like of a text, which begins at `start`.

        It cuts none of `phrases`.
        """
        whole = Span(start, start + len(text))
        if not self._has_frames:
            return whole
        first, end = self._frames.inside(text)
        inner = Span(start + first, start + end)
        return whole if any(_is_inside(at, phrases) for at in inner) else inner

    def _split(self, text: str, start: int, phrases: Sequence[Phrase], has_frames: bool = True) -> Iterator[Source]:
        """Encode a stretch of a line, which begins at `start`, in parts; sentences may have frames of their own."""
        if self._how == "none":
            yield Source(0, self.encode_whole(text)[len(self._symbols) :], 0, text=text, start=start)
        elif self._how == "length" or (self._how == "auto" and self._is_usual(text)):
            yield from self._cut(text, start, phrases)
        else:
            for group in self._groups(text, start, phrases):
                sentence = group.rstrip()
                inner = Span(start, start + len(sentence))
                if has_frames:
                    inner = self._inside(sentence, start, phrases)
                yield from self._cut(sentence[inner.start - start : inner.end - start], inner.start, phrases)
                start += len(group)

    def _is_usual(self, text: str) -> bool:
        """Return whether a line resembles the training lines."""
        assert self._lengths is not None, "auto asks for them"
        fits = len(self._source.encode(text)) <= min(self._longest, self._lengths.source)
        return fits and len(self._sentences.split(text)) <= self._lengths.sentences

    def _groups(self, text: str, start: int, phrases: Sequence[Phrase]) -> Iterator[str]:
        """Yield groups of sentences within the length limit: by default, as many as training lines usually had."""
        together = 1  # sentences of a group
        if self._how == "auto" and self._lengths:
            together = self._lengths.usual_sentences
        group: list[str] = []
        size = 0  # in subwords
        for sentence in self._sentences_of(text, start, phrases):
            subwords = len(self._source.encode(sentence.rstrip()))
            if group and (len(group) >= together or size + subwords > self._longest):
                yield "".join(group)
                group = []
                size = 0
            group.append(sentence)
            size += subwords
        if group:
            yield "".join(group)

    def _sentences_of(self, text: str, start: int, phrases: Sequence[Phrase]) -> Iterator[str]:
        """Yield sentences; any over half as long as long training sources is split where full stops may be missing."""
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
        while first < len(ids):
            rest = len(ids) - first
            cut = len(ids)
            if rest > self._longest:
                pieces = -(-rest // self._longest)  # rounded up
                length = -(-rest // pieces)
                cut = self._best_cut(ids, first, first + length, barred)
            own = text[ends[first] : ends[cut]].strip()
            yield Source(0, ids[first:cut], 0, text=own, start=start + text.index(own, ends[first]))
            first = cut

    def _best_cut(self, ids: list[int], start: int, ideal: int, barred: set[int]) -> int:
        """Return the best cut near `ideal`: after a sentence, else a clause, else before a word, else at the limit.

        `barred` are cuts inside phrases, used only if there is no other.
        """
        last = start + self._longest
        earliest = start + max(1, self._longest // 2)
        free = [cut for cut in range(earliest, last + 1) if cut not in barred]
        if not free:
            shorter = {*range(start + 1, earliest)} - barred
            free = [max(shorter, default=last)]
        cuts = sorted(free, key=lambda cut: abs(cut - ideal))
        pieces = self._source.pieces(ids[start : last + 1])
        words = [cut for cut in cuts if pieces[cut - start].startswith(SPACE_MARK)]
        for ends in ENDS:
            for cut in words or cuts:
                if pieces[cut - start - 1].endswith(ends):
                    return cut
        return words[0] if words else max(cuts)


def _joined_in_phrases(pieces: Iterable[str], start: int, phrases: Sequence[Phrase]) -> Iterator[str]:
    """Join consecutive pieces of a line, the first of which begins at `start`, that end inside a phrase."""
    whole = ""
    for piece in pieces:
        whole += piece
        start += len(piece)
        if not _is_inside(start, phrases):
            yield whole
            whole = ""
    if whole:
        yield whole


def _is_inside(at: int, phrases: Sequence[Phrase]) -> bool:
    """Return whether an offset is inside one of `phrases`, which are in order."""
    before = bisect_left(phrases, at, key=attrgetter("start"))
    return before > 0 and at < phrases[before - 1].end


def _has_words(text: str, span: Span, phrases: Sequence[Phrase], of_letters: bool) -> bool:
    """Return whether a span of a line has a term or, outside of text to keep, letters or digits.

    If only `of_letters`, the digits 0 to 9 do not count, which stay in every language; ٣ does.
    """
    first, last = (bisect_left(phrases, at, key=attrgetter("start")) for at in span)
    own = phrases[first:last]
    if not all(phrase.kept and not phrase.term for phrase in own):
        return True
    kept = offsets_in(phrase.span for phrase in own)
    free = (text[at] for at in range(*span) if at not in kept)
    if of_letters:
        return any(each.isalpha() or (each.isdecimal() and not each.isascii()) for each in free)
    return any(map(str.isalnum, free))


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
    found = clean(line[: parts[0].start])
    starts = list[int]()
    last = 0  # offset behind the last part
    is_blank = not found.strip()  # so far
    for part, text in zip(parts, texts, strict=True):
        between = clean(line[last : part.start]) if last else ""
        has_copied = between.strip() != ""
        if has_copied:
            is_blank = False
        elif is_blank or not text:
            between = ""
        elif last and len(between) < 2:
            between = _between(found[-1], between, line[last - 1])
        found += _apart(found, between, line, last) + between
        if has_copied or not last:  # `between` is text of its own, or the beginning of the line
            found += _apart(found, text, line, part.start)
        starts.append(len(found))
        found += text
        last = part.end
        is_blank = is_blank and not text
    rest = clean(line[last:])
    if is_blank and not rest.strip():
        return "", starts
    return found + _apart(found, rest, line, last) + rest, starts


def _between(last: str, between: str, source: str) -> str:
    """Return what follows a part that ends in `last`, whose source ends in `source`, with `between` behind it."""
    if is_wide(last) or (UNSPACED.match(last) and source not in STOPS + WIDE):
        return ""
    if not between and UNSPACED.match(source):
        return " "
    return between


def _apart(found: str, following: str, line: str, at: int) -> str:
    """Return a space if two words would become one that are apart at this offset of the line."""
    if not (found and following and joins(found[-1]) and joins(following[0])):
        return ""
    is_inside_word = at > 0 and joins(line[at - 1]) and joins(line[at])
    return "" if is_inside_word else " "
