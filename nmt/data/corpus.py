"""Encode and filter pairs, convert them to Arrow tables, and read Arrow files through shared memory maps."""

from __future__ import annotations

import gc
import mmap
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, compress
from pathlib import Path
from threading import Thread
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nmt.data.directions import dataset_direction
from nmt.data.known import Known
from nmt.data.pairs import Pair
from nmt.data.suspicion import suspicions
from nmt.recipe import Data
from nmt.system.errors import UserError
from nmt.system.files import not_read, regular, remedy
from nmt.text.scripts import count_words
from nmt.text.tokenizer import Tokenizer
from nmt.text.vocabulary import TargetVocabulary

EXAMPLES = 10  # pairs kept for each reason to drop them or to look at them
SOURCE_WORDS = "words of sources"
TARGET_WORDS = "words of targets"
REPEATED = "pairs that repeat an earlier one"
DUPLICATE = "dropped as duplicates"
HELD_OUT = "set aside for valid and test, duplicates included"
NO_LANGUAGE = "sources without a target language"
TWO_LANGUAGES = "sources with a second target language"
Ids = NDArray[np.int32]
Rows = NDArray[np.int64]
Numbered = tuple[int, Pair]
"""A pair after its 1-based line number in its split"""


class Chunk(NamedTuple):
    """Consecutive pairs of one data set, encoded together."""

    dataset: int
    """Index of the data set in its split"""
    first: int
    """1-based line number of the first pair in its split"""
    pairs: list[Pair]
    repeated: NDArray[np.bool_]
    """(pairs,) which of them have come before in their split and direction"""


class Sentences(NamedTuple):
    """Concatenated ids (subwords,) of sentences, and the length of each (sentences,)."""

    ids: Ids
    lengths: Ids

    def only(self, kept: NDArray[np.bool_]) -> Sentences:
        """Return the sentences selected by the mask `kept` (sentences,)."""
        return Sentences(self.ids[np.repeat(kept, self.lengths)], self.lengths[kept])

    def gather(self, rows: Rows) -> tuple[Rows, Ids]:
        """Return the ids of sentences (rows, longest), padded with 0, and their lengths (rows,)."""
        ends: Rows = self.lengths.cumsum(dtype=np.int64)
        lengths = self.lengths[rows]
        begin: Rows = ends[rows] - lengths
        return _padded(self.ids, begin, lengths), lengths


def _padded(words: Ids, begin: Rows, lengths: Ids) -> Rows:
    """Return the ids that begin at offsets of `words`, padded with 0: (rows, longest)."""
    columns = np.arange(lengths.max(initial=0))
    inside = columns < lengths[:, None]
    ids = np.zeros(inside.shape, dtype=np.int64)
    places = begin[:, None] + columns  # (rows, longest)
    ids[inside] = words[places[inside]]
    return ids


@dataclass(frozen=True)
class EncodedChunk:
    """Encoded pairs of a chunk, and counts of the dropped ones."""

    dataset: int
    read: int
    source: Sentences
    target: Sentences
    lines: NDArray[np.int64]
    """(pairs,) 1-based line number of each pair in its split"""
    texts: list[Pair] | None
    """Texts of the pairs; None in the training split"""
    counts: Counter[str]
    """Counts of dropped pairs by reason, of overlaps with evaluation splits and of targets that are not spelled"""
    examples: dict[str, list[Numbered]]
    """The first dropped pairs by reason"""
    known: Known
    """What is in the evaluation splits, too"""


@dataclass(frozen=True)
class PairEncoder:
    """Encoder and filter for chunks of pairs, with a vocabulary per side."""

    vocabularies: tuple[TargetVocabulary, TargetVocabulary]
    data: Data
    keep_all: bool = False
    """Whether to keep all pairs and their texts, so that evaluation splits stay aligned and comparable"""
    evaluation: frozenset[Pair] = frozenset()
    """Evaluation pairs to count in the training split"""
    held_out: frozenset[str] = frozenset()
    """Sources of pairs that `valid` and `test` take from the training split"""
    symbols: Sequence[tuple[Sequence[int], Sequence[int]]] = ()
    """Symbols of languages that begin each side, by data set; by default none"""
    older: Sequence[tuple[TargetVocabulary, TargetVocabulary]] = ()
    """By data set, the vocabularies to encode it with; empty unless languages were added to `vocabularies`"""
    typed: frozenset[int] = frozenset()
    """Language symbols, one of which users type before each source, unless the data set has `symbols`"""

    @cached_property
    def _evaluated(self) -> Known:
        return Known.of(self.evaluation)

    @cached_property
    def _translates(self) -> bool:
        """Whether all pairs are of two languages"""
        return not self.data.task.has_trees and all(len(set(each)) == 2 for each in self.data.directions)

    def encode(self, chunk: Chunk) -> EncodedChunk:
        """Encode and filter a chunk; thread-safe."""
        noticed: dict[str, list[Numbered]] = defaultdict(list)
        numbers, pairs = self._usable(chunk, noticed)
        counts = Counter[str]()
        source, target = self._sides(chunk.dataset, pairs, counts)
        lines = np.array(numbers, dtype=np.int64)
        if not self.keep_all:
            is_long, is_uneven = self._misfits(source.lengths, target.lengths)
            for reason, mask in (("dropped as too long", is_long), ("dropped for their length ratio", is_uneven)):
                for row in np.flatnonzero(mask).tolist():
                    noticed[reason].append((numbers[row], pairs[row]))
            kept = ~(is_long | is_uneven)
            if not kept.all():
                source = source.only(kept)
                target = target.only(kept)
                lines = lines[kept]
                pairs = list(compress(pairs, kept.tolist()))
        if self._translates:
            for line, pair in zip(lines.tolist(), pairs, strict=True):
                for reason in suspicions(pair):
                    noticed[reason].append((line, pair))
        known = self._evaluated.among(pairs)
        counts += self._leaks(pairs, known.sources)
        if self.data.task.has_trees:
            counts[SOURCE_WORDS] = sum(len(pair.source.split()) for pair in pairs)
        else:
            counts[SOURCE_WORDS] = sum(count_words(pair.source) for pair in pairs)
            counts[TARGET_WORDS] = sum(count_words(pair.target) for pair in pairs)
        for reason, found in noticed.items():
            counts[reason] = len(found)
        repeated = _repeated(chunk, lines)
        counts[REPEATED] = len(repeated)
        noticed[REPEATED] = repeated
        examples = {}
        for reason in sorted(noticed):
            if noticed[reason] and reason != HELD_OUT:
                examples[reason] = noticed[reason][:EXAMPLES]
        texts = pairs if self.keep_all else None
        counts = +counts  # without zeros
        return EncodedChunk(chunk.dataset, len(chunk.pairs), source, target, lines, texts, counts, examples, known)

    def _usable(self, chunk: Chunk, noticed: dict[str, list[Numbered]]) -> tuple[list[int], list[Pair]]:
        """Return the line numbers of the pairs that are encoded, and these; add those with a defect to `noticed`."""
        lines = list[int]()
        pairs = list[Pair]()
        drops_repeated = self.data.duplicates == "drop" and not self.keep_all
        numbers = range(chunk.first, chunk.first + len(chunk.pairs))
        for line, pair, is_repeated in zip(numbers, chunk.pairs, chunk.repeated.tolist(), strict=True):
            reason = self._defect(pair)
            if reason is None and drops_repeated and is_repeated:
                reason = DUPLICATE
            if reason is not None:
                noticed[reason].append((line, pair))
            if self.keep_all or reason is None:
                lines.append(line)
                pairs.append(pair)
        return lines, pairs

    def _defect(self, pair: Pair) -> str | None:
        """Return the defect of a pair's texts, if any, for which a training pair is not used."""
        what = "pairs kept though" if self.keep_all else "dropped as"
        if not (pair.source and pair.target):
            return f"{what} empty"
        if "\ufffd" in pair.source or "\ufffd" in pair.target:  # what bytes become that are not UTF-8
            return f"{what} not UTF-8 or with U+FFFD"
        return HELD_OUT if pair.source in self.held_out else None

    def _leaks(self, pairs: Sequence[Pair], known: Collection[str]) -> Counter[str]:
        """Count the pairs whose sources occur in an evaluation split: those that are `known`."""
        counts = Counter[str]()
        for pair in pairs:
            if pair.source not in known:
                continue
            if pair in self.evaluation:
                counts["pairs also in valid or test"] += 1
            else:
                counts["source sentences also in valid or test"] += 1
        return counts

    def _sides(self, dataset: int, pairs: Sequence[Pair], counts: Counter[str]) -> tuple[Sentences, Sentences]:
        """Encode both sides of pairs of a data set; add to `counts` which cannot be spelled or lack a language."""
        source_vocabulary, target_vocabulary = self.encoders(dataset)
        sources = source_vocabulary.encode_all([pair.source for pair in pairs])
        targets = target_vocabulary.encode_all([pair.target for pair in pairs])
        newest = self.vocabularies[1]
        if newest.UNSEEN:
            spelled = [newest.spells(pair.target, ids) for pair, ids in zip(pairs, targets, strict=True)]
            counts[newest.UNSEEN] = len(spelled) - sum(spelled)
        before_source, before_target = self.before(dataset)
        if self.typed:
            with_language = [ids for ids in sources if not self.typed.isdisjoint(ids[:1])]
            if before_source:
                counts[TWO_LANGUAGES] = len(with_language)
            else:
                counts[NO_LANGUAGE] = len(sources) - len(with_language)
        return concatenate(sources, before_source), concatenate(targets, before_target)

    def encoders(self, dataset: int) -> tuple[TargetVocabulary, TargetVocabulary]:
        """Return the vocabularies that encode the sides of a data set's pairs."""
        return self.older[dataset] if self.older else self.vocabularies

    def before(self, dataset: int) -> tuple[Sequence[int], Sequence[int]]:
        """Return the symbols that begin each side of a data set's pairs."""
        return self.symbols[dataset] if self.symbols else ((), ())

    def _misfits(self, source: Ids, target: Ids) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return masks (pairs,) of the pairs that are too long, and of others too uneven, given lengths (pairs,)."""
        shorter = np.minimum(source, target)
        longer = np.maximum(source, target)
        is_long = longer > self.data.max_length
        is_uneven = ~is_long & (longer > self.data.max_ratio * shorter)
        return is_long, is_uneven


def _repeated(chunk: Chunk, lines: NDArray[np.int64]) -> list[Numbered]:
    """Return the pairs of a chunk at `lines` that have come before, without empty ones."""
    rows = lines - chunk.first
    repeated = []
    for row in rows[chunk.repeated[rows]].tolist():
        pair = chunk.pairs[row]
        if pair.source and pair.target:
            repeated.append((chunk.first + row, pair))
    return repeated


def pair_encoder(data: Data, split: str, tokenizer: Tokenizer) -> PairEncoder:
    """Return an encoder for the pairs of a split."""
    typed = frozenset[int]()
    if tokenizer.typed:
        typed = frozenset(tokenizer.source.languages.values())
    symbols = []
    older = []
    for dataset in data.splits[split]:
        symbols.append(tokenizer.first(dataset_direction(data, dataset, tokenizer)))
        if tokenizer.older:
            source, target = data.of(dataset).languages
            older.append((tokenizer.of(source).source, tokenizer.of(target).source))
    sides = (tokenizer.source, tokenizer.target)
    return PairEncoder(sides, data, symbols=symbols, older=older, typed=typed)


def concatenate(rows: Sequence[Sequence[int]], first: Sequence[int] = ()) -> Sentences:
    """Join the ids of sentences, each after the `first` symbols."""
    if first:
        rows = [[*first, *ids] for ids in rows]
    lengths = np.fromiter(map(len, rows), np.int32, len(rows))
    return Sentences(np.fromiter(chain.from_iterable(rows), np.int32, int(lengths.sum())), lengths)


def encode_chunks(encoder: PairEncoder, chunks: Iterable[Chunk], threads: int) -> Iterator[EncodedChunk]:
    """Encode chunks with `threads` threads; yield them in order."""
    pool = ThreadPoolExecutor(threads)
    waiting: deque[Future[EncodedChunk]] = deque()
    collects = gc.isenabled()
    gc.disable()  # scanning millions of lists, which form no cycles, took 8% of the time
    try:
        for chunk in chunks:  # the queue is bounded: a large corpus may not fit into memory
            waiting.append(pool.submit(encoder.encode, chunk))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
        if collects:
            gc.enable()


END = b"\xff\xff\xff\xff\0\0\0\0"  # end-of-stream marker of Arrow's IPC format
READ_AHEAD = 1 << 20  # bytes per read


SCHEMA = pa.schema(
    [
        ("source", pa.list_(pa.int32())),
        ("target", pa.list_(pa.int32())),
        ("line", pa.int64()),
        ("source_text", pa.string()),
        ("target_text", pa.string()),
    ]
)
"""Arrow schema of a split"""


def table_of(chunk: EncodedChunk) -> pa.Table:
    """Convert a chunk to an Arrow table with `SCHEMA`."""
    if chunk.texts is None:
        sources = pa.nulls(len(chunk.lines), pa.string())
        targets = sources
    else:
        sources = pa.array([pair.source for pair in chunk.texts], pa.string())
        targets = pa.array([pair.target for pair in chunk.texts], pa.string())
    columns = [_lists(chunk.source), _lists(chunk.target), pa.array(chunk.lines), sources, targets]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def _lists(sentences: Sentences) -> pa.ListArray:
    offsets = np.concatenate(([0], np.cumsum(sentences.lengths)), dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(sentences.ids))


class Lengths(NamedTuple):
    """Lengths (pairs,) in subwords, excluding `</s>`."""

    source: Ids
    target: Ids

    @property
    def source_tokens(self) -> int:
        """Total number of source tokens, including `</s>`."""
        return int(self.source.sum()) + len(self.source)

    @property
    def target_tokens(self) -> int:
        """Total number of target tokens, including `</s>`."""
        return int(self.target.sum()) + len(self.target)


class ChangedPairs(NamedTuple):
    """Pairs of an update, some of which are not as in the corpus; read like a corpus."""

    source: Sentences
    target: Sentences

    @property
    def lengths(self) -> Lengths:
        """Lengths of all pairs."""
        return Lengths(self.source.lengths, self.target.lengths)

    def sources(self, rows: Rows) -> tuple[Rows, Ids]:
        """Return source ids (rows, longest), padded with 0, and their lengths (rows,)."""
        return self.source.gather(rows)

    def targets(self, rows: Rows) -> tuple[Rows, Ids]:
        """Return target ids (rows, longest), padded with 0, and their lengths (rows,)."""
        return self.target.gather(rows)


class Corpus:
    """Memory-mapped split of prepared data, read without the slow import of `datasets`."""

    def __init__(self, path: Path) -> None:
        """Map an .arrow file; raise UserError if it is missing or damaged."""
        self.path = path
        try:
            with regular(path).open("rb") as file:
                pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            pages.madvise(mmap.MADV_RANDOM)  # no read-ahead: opening a stream touches only record batch headers
            if pages[-len(END) :] != END:  # Arrow accepts a file truncated between record batches
                raise OSError("it is cut short")
            mapped = pa.py_buffer(pages)
            table = pa.ipc.open_stream(mapped).read_all()
            if not table.schema.equals(SCHEMA):
                columns = ", ".join(f"{each.name} ({each.type})" for each in table.schema)
                raise ValueError(f"its columns are {columns}")
            table.validate(full=True)  # also checks list offsets, which later index the mapped file unchecked
            self._table = table
            self._source = _Column(table["source"], mapped)
            self._target = _Column(table["target"], mapped)
        except OSError as error:
            raise not_read(path, error, remedy(path)) from None
        except (ValueError, pa.ArrowException) as error:  # mmap raises ValueError for an empty file
            raise UserError(f"{path}: cannot be read: {error}", remedy(path)) from None
        Thread(target=_read_ahead, args=(path,), daemon=True).start()

    def __len__(self) -> int:
        return int(self._table.num_rows)

    @property
    def source_lengths(self) -> Ids:
        """(pairs,) source lengths in subwords, excluding `</s>`."""
        return self._source.all_lengths()

    @property
    def target_lengths(self) -> Ids:
        """(pairs,) target lengths in subwords, excluding `</s>`."""
        return self._target.all_lengths()

    def longest(self) -> int:
        """Return the maximum sentence length on either side, in subwords."""
        source = self.source_lengths.max(initial=0)
        target = self.target_lengths.max(initial=0)
        return int(max(source, target))

    def lengths(self, rows: Rows) -> Lengths:
        """Return the lengths of the pairs at `rows`."""
        return Lengths(self._source.spans(rows)[1], self._target.spans(rows)[1])

    def sources(self, rows: Rows) -> tuple[Rows, Ids]:
        """Return source ids (rows, longest), padded with 0, and their lengths (rows,)."""
        return self._source.gather(rows)

    def targets(self, rows: Rows) -> tuple[Rows, Ids]:
        """Return target ids (rows, longest), padded with 0, and their lengths (rows,)."""
        return self._target.gather(rows)

    def lines(self, rows: Rows) -> list[int]:
        """Return the 1-based line numbers of the pairs at `rows`, counted over all files of the split."""
        return self._table["line"].take(pa.array(rows)).to_pylist()  # type: ignore[no-any-return]

    def texts(self) -> tuple[list[str], list[str]]:
        """Return the source and target texts of an evaluation split."""
        return self._table["source_text"].to_pylist(), self._table["target_text"].to_pylist()


class _Column:
    """A column of id lists across record batches, read as 32-bit words of the mapped file."""

    def __init__(self, column: pa.ChunkedArray, mapped: pa.Buffer) -> None:
        first_rows = [0]
        offsets = list[int]()
        values = list[int]()
        for chunk in column.chunks:
            if len(chunk):
                first_rows.append(first_rows[-1] + len(chunk))
                offsets.append(_word(chunk.offsets, mapped))
                values.append(_word(chunk.values, mapped))
        self._words = np.frombuffer(mapped, dtype=np.int32, count=mapped.size // 4)
        self._first_rows = np.array(first_rows, dtype=np.int64)
        self._offsets = np.array(offsets, dtype=np.int64)
        self._values = np.array(values, dtype=np.int64)

    def all_lengths(self) -> Ids:
        """Return the length of every row: (rows,)."""
        lengths = np.empty(self._first_rows[-1], np.int32)
        for row, end, offset in zip(self._first_rows, self._first_rows[1:], self._offsets, strict=False):
            lengths[row:end] = np.diff(self._words[offset : offset + end - row + 1])
        return lengths

    def spans(self, rows: Rows) -> tuple[Rows, Ids]:
        """Return the word offsets of the ids at `rows`, and their lengths: (rows,) each."""
        chunk = np.searchsorted(self._first_rows, rows, side="right") - 1
        offset = self._offsets[chunk] + (rows - self._first_rows[chunk])
        begin = self._words[offset]
        end = self._words[offset + 1]
        return self._values[chunk] + begin, end - begin

    def gather(self, rows: Rows) -> tuple[Rows, Ids]:
        """Return the ids at `rows` (rows, longest), padded with 0, and their lengths (rows,)."""
        begin, lengths = self.spans(rows)
        return _padded(self._words, begin, lengths), lengths


def _read_ahead(path: Path) -> None:
    """Read a file sequentially into the page cache, before training reads it at random."""
    with suppress(OSError), open(path, "rb", buffering=0) as file:
        while file.read(READ_AHEAD):
            pass


def _word(array: pa.Array, mapped: pa.Buffer) -> int:
    """Return the offset of a 32-bit array's data in the file, in words; raise ValueError if it is compressed."""
    buffer = array.buffers()[1]
    if buffer is None or len(array) == 0:  # an empty array's buffer may lie outside the file
        return 0
    begin = buffer.address - mapped.address
    if not 0 <= begin < mapped.size:
        raise ValueError("it is compressed")
    return int(begin) // 4 + int(array.offset)
