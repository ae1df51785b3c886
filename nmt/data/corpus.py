"""Encode and filter pairs, convert them to Arrow tables, and read Arrow files through shared memory maps."""

from __future__ import annotations

import gc
import mmap
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from threading import Thread
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nmt.data.pairs import Pair
from nmt.recipe import Data
from nmt.system.errors import UserError
from nmt.system.files import not_read, regular, remedy
from nmt.text.vocabulary import TargetVocabulary

EXAMPLES = 3  # dropped pairs shown for each reason
REPEATED, DUPLICATE = "pairs that repeat an earlier one", "dropped as duplicates"
HELD_OUT = "set aside for valid and test, duplicates included"
NO_LANGUAGE, TWO_LANGUAGES = "sources without a target language", "sources with a second target language"
Ids = NDArray[np.int32]
Rows = NDArray[np.int64]


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


@dataclass(frozen=True)
class EncodedChunk:
    """Encoded pairs of a chunk, and counts of the dropped ones."""

    dataset: int
    read: int
    sides: Sequence[Sentences]
    """Source and target"""
    lines: NDArray[np.int64]
    """(pairs,) 1-based line number of each pair in its split"""
    texts: list[Pair] | None
    """Texts of the pairs; None in the training split"""
    counts: Counter[str]
    """Counts of dropped pairs by reason, of overlaps with evaluation splits and of targets that are not spelled"""
    examples: dict[str, list[tuple[int, Pair]]]
    """The first dropped pairs by reason, each with its line number in the split"""


@dataclass(frozen=True)
class PairEncoder:
    """Encoder and filter for chunks of pairs, with a vocabulary per side."""

    vocabularies: Sequence[TargetVocabulary]
    data: Data
    keep_all: bool = False
    """Whether to keep all pairs and their texts, so that evaluation splits stay aligned and comparable"""
    evaluation: frozenset[Pair] = frozenset()
    """Evaluation pairs to count in the training split"""
    held_out: frozenset[str] = frozenset()
    """Sources of pairs that `valid` and `test` take from the training split"""
    symbols: Sequence[Sequence[Sequence[int]]] = ()
    """Symbols of languages that begin each side, by data set; by default none"""
    older: Sequence[Sequence[TargetVocabulary]] = ()
    """Vocabularies that encode each side, by data set, where `vocabularies` have languages added to them"""
    typed: frozenset[int] = frozenset()
    """Symbols of which users type one at the beginning of each source, only in data sets without `symbols`"""

    @cached_property
    def _evaluation_sources(self) -> frozenset[str]:
        return frozenset(pair[0] for pair in self.evaluation)

    def encode(self, chunk: Chunk) -> EncodedChunk:
        """Encode and filter a chunk; thread-safe."""
        dropped: dict[str, list[tuple[int, Pair]]] = defaultdict(list)
        usable: list[tuple[int, Pair]] = []
        drops = self.data.duplicates == "drop" and not self.keep_all
        for numbered, is_repeated in zip(enumerate(chunk.pairs, chunk.first), chunk.repeated.tolist(), strict=True):
            if reason := self._defect(numbered[1]) or (DUPLICATE if drops and is_repeated else None):
                dropped[reason].append(numbered)
            if self.keep_all or not reason:
                usable.append(numbered)
        lines, pairs = np.array([line for line, _ in usable], dtype=np.int64), [pair for _, pair in usable]
        counts = Counter(self._leak(pair) for pair in pairs if pair[0] in self._evaluation_sources)
        columns = zip(*pairs, strict=True) if pairs else [()] * len(self.vocabularies)
        vocabularies = self.older[chunk.dataset] if self.older else self.vocabularies
        rows = [vocabulary.encode_all(texts) for vocabulary, texts in zip(vocabularies, columns, strict=True)]
        if reason := self.vocabularies[-1].UNSEEN:
            spells = self.vocabularies[-1].spells
            counts[reason] = sum(not spells(pair[-1], ids) for pair, ids in zip(pairs, rows[-1], strict=True))
        symbols = self.symbols[chunk.dataset] if self.symbols else [()] * len(rows)
        if self.typed:
            typed = sum(not self.typed.isdisjoint(ids[:1]) for ids in rows[0])
            counts.update({TWO_LANGUAGES: typed} if symbols[0] else {NO_LANGUAGE: len(rows[0]) - typed})
        sides = [_concatenate(side, first) for side, first in zip(rows, symbols, strict=True)]
        if not self.keep_all and not (kept := self._fitting(sides, usable, dropped)).all():
            sides, lines = [side.only(kept) for side in sides], lines[kept]
        counts.update({reason: len(found) for reason, found in dropped.items()})
        kept_rows = lines - chunk.first
        again = [row for row in kept_rows[chunk.repeated[kept_rows]].tolist() if all(chunk.pairs[row])]
        counts[REPEATED] = len(again)
        dropped[REPEATED] = [(chunk.first + row, chunk.pairs[row]) for row in again[:EXAMPLES]]
        some = sorted((reason, found[:EXAMPLES]) for reason, found in dropped.items() if reason != HELD_OUT)
        examples = {reason: found for reason, found in some if found}
        texts = pairs if self.keep_all else None
        return EncodedChunk(chunk.dataset, len(chunk.pairs), sides, lines, texts, +counts, examples)

    def _defect(self, pair: Pair) -> str | None:
        """Return the defect of a pair's texts, if any, for which a training pair is not used."""
        what = "pairs kept though" if self.keep_all else "dropped as"
        if not all(pair):
            return f"{what} empty"
        if "\ufffd" in "".join(pair):  # what bytes that are not UTF-8 become; few texts have it
            return f"{what} not UTF-8 or with U+FFFD"
        return HELD_OUT if pair[0] in self.held_out else None

    def _leak(self, pair: Pair) -> str:
        """Return what is counted of a pair whose source occurs in an evaluation split."""
        return f"{'pairs' if pair in self.evaluation else 'source sentences'} also in valid or test"

    def _fitting(
        self, sides: Sequence[Sentences], usable: Sequence[tuple[int, Pair]], dropped: dict[str, list[tuple[int, Pair]]]
    ) -> NDArray[np.bool_]:
        """Return a mask (pairs,) of the pairs within the length limits; drop the others."""
        lengths = [side.lengths for side in sides]
        shorter, longer = (extreme.reduce(lengths) for extreme in (np.minimum, np.maximum))
        is_long = longer > self.data.max_length
        is_uneven = ~is_long & (longer > self.data.max_ratio * shorter)
        for reason, found in (("dropped as too long", is_long), ("dropped for their length ratio", is_uneven)):
            if found.any():
                dropped[reason] += [usable[row] for row in np.flatnonzero(found).tolist()]
        kept: NDArray[np.bool_] = ~(is_long | is_uneven)
        return kept


def _concatenate(rows: Sequence[Sequence[int]], first: Sequence[int]) -> Sentences:
    """Join the ids of sentences, each after the `first` symbols."""
    rows = [[*first, *ids] for ids in rows] if first else rows
    lengths = np.fromiter(map(len, rows), np.int32, len(rows))
    return Sentences(np.fromiter(chain.from_iterable(rows), np.int32, int(lengths.sum())), lengths)


def encode_chunks(encoder: PairEncoder, chunks: Iterable[Chunk], threads: int) -> Iterator[EncodedChunk]:
    """Encode chunks with `threads` threads; yield them in order."""
    pool = ThreadPoolExecutor(threads)
    waiting: deque[Future[EncodedChunk]] = deque()
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
        gc.enable()


SIDES = ("source", "target")  # columns of ids

END = b"\xff\xff\xff\xff\0\0\0\0"  # end-of-stream marker of Arrow's IPC format
READ_AHEAD = 1 << 20  # bytes per read


_COLUMNS = [*((side, pa.list_(pa.int32())) for side in SIDES), ("line", pa.int64())]
SCHEMA = pa.schema([*_COLUMNS, *((f"{side}_text", pa.string()) for side in SIDES)])
"""Arrow schema of a split"""


def table_of(chunk: EncodedChunk) -> pa.Table:
    """Convert a chunk to an Arrow table with `SCHEMA`."""
    texts = [pa.nulls(len(chunk.lines), pa.string())] * len(chunk.sides)
    if chunk.texts is not None:
        texts = [pa.array([pair[side] for pair in chunk.texts], pa.string()) for side in range(len(chunk.sides))]
    return pa.Table.from_arrays([*map(_lists, chunk.sides), pa.array(chunk.lines), *texts], schema=SCHEMA)


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
            self._table = table = pa.ipc.open_stream(mapped).read_all()
            if not table.schema.equals(SCHEMA):
                raise ValueError(f"its columns are {', '.join(f'{each.name} ({each.type})' for each in table.schema)}")
            table.validate(full=True)  # also checks list offsets, which later index the mapped file unchecked
            self._source, self._target = (_Column(table[side], mapped) for side in SIDES)
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
        return int(max(self.source_lengths.max(initial=0), self.target_lengths.max(initial=0)))

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
        chunks = [chunk for chunk in column.chunks if len(chunk)]
        self._words = np.frombuffer(mapped, dtype=np.int32, count=mapped.size // 4)
        self._first_rows = np.cumsum([0, *(len(chunk) for chunk in chunks)])
        self._offsets = np.array([_word(chunk.offsets, mapped) for chunk in chunks], dtype=np.int64)
        self._values = np.array([_word(chunk.values, mapped) for chunk in chunks], dtype=np.int64)

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
        begin, end = self._words[offset], self._words[offset + 1]
        return self._values[chunk] + begin, end - begin

    def gather(self, rows: Rows) -> tuple[Rows, Ids]:
        """Return the ids at `rows` (rows, longest), padded with 0, and their lengths (rows,)."""
        begin, lengths = self.spans(rows)
        columns = np.arange(lengths.max(initial=0))
        inside = columns < lengths[:, None]
        ids = np.zeros(inside.shape, dtype=np.int64)
        ids[inside] = self._words[(begin[:, None] + columns)[inside]]
        return ids, lengths


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
    if not 0 <= buffer.address - mapped.address < mapped.size:
        raise ValueError("it is compressed")
    return int(buffer.address - mapped.address) // 4 + int(array.offset)
