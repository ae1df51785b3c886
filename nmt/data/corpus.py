"""Encode and filter pairs, write them as Arrow files, and read these through memory maps, which processes share."""

from __future__ import annotations

import gc
import mmap
import os
from collections import Counter, deque
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

from nmt.data.pairs import LENGTH_STEPS, Pair
from nmt.system.errors import UserError
from nmt.system.files import not_read, regular, remedy
from nmt.text.vocabulary import UNK, TargetVocabulary

Ids = NDArray[np.int32]
Rows = NDArray[np.int64]


class Chunk(NamedTuple):
    """Neighbouring pairs of one data set, encoded together."""

    dataset: int
    """Index of the data set in its split"""
    first: int
    """Line number of the first pair in its split, from 1"""
    pairs: list[Pair]
    """Stripped of whitespace"""


class Sentences(NamedTuple):
    """Encoded sentences, end to end."""

    ids: Ids
    """(subwords,)"""
    lengths: Ids
    """(sentences,) subwords of each"""

    def only(self, kept: NDArray[np.bool_]) -> Sentences:
        """Select those for which `kept` (sentences,) is true."""
        return Sentences(self.ids[np.repeat(kept, self.lengths)], self.lengths[kept])

    def with_symbol(self, index: int) -> int:
        """Count those that contain an id."""
        return len(np.unique(np.repeat(np.arange(len(self.lengths)), self.lengths)[self.ids == index]))


@dataclass(frozen=True)
class EncodedChunk:
    """The kept pairs of a chunk, encoded, and counts of the dropped ones by reason."""

    dataset: int
    read: int
    sides: Sequence[Sentences]
    """Source and target, or the target alone for a language model"""
    lines: NDArray[np.int64]
    """(pairs,) line number of each in its split, from 1"""
    texts: list[Pair] | None
    """The text of these pairs, in evaluation splits"""
    counts: Counter[str]
    """Dropped pairs by reason, and pairs and source sentences that are also in an evaluation split"""

    def length_classes(self) -> Counter[int]:
        """Count the sentences of all sides by the upper end of their length class, in subwords.

        Above the last of `LENGTH_STEPS`, each length is a class.
        """
        lengths = np.concatenate([side.lengths for side in self.sides])
        steps = np.array(LENGTH_STEPS)[np.searchsorted(LENGTH_STEPS[:-1], lengths)]
        tops, sentences = np.unique(np.maximum(steps, lengths), return_counts=True)
        return Counter(dict(zip(tops.tolist(), sentences.tolist(), strict=True)))


@dataclass(frozen=True)
class PairEncoder:
    """An encoder that also cleans and filters pairs, chunk by chunk."""

    vocabularies: Sequence[TargetVocabulary]
    """One for each side"""
    max_length: int
    max_ratio: float
    evaluation: frozenset[Pair]
    """Pairs of valid and test, whose occurrences in train are counted"""
    keep_all: bool
    """Whether nothing is dropped and texts are kept: evaluation splits stay aligned and comparable"""
    unit: str = "pairs"
    """The name of pairs in the counts"""

    @cached_property
    def _evaluation_sources(self) -> frozenset[str]:
        return frozenset(pair[0] for pair in self.evaluation)

    def encode(self, chunk: Chunk) -> EncodedChunk:
        """Encode a chunk; thread-safe."""
        counts: Counter[str] = Counter()
        lines, pairs = self._usable(chunk, counts)
        self._count_leaks(pairs, counts)
        columns = zip(*pairs, strict=True) if pairs else [()] * len(self.vocabularies)
        sides = [_encode_all(*side) for side in zip(self.vocabularies, columns, strict=True)]
        if reason := self.vocabularies[-1].UNSEEN:
            counts[reason] = sides[-1].with_symbol(UNK)
        if not self.keep_all and not (kept := self._fitting(sides, counts)).all():
            sides, lines = [side.only(kept) for side in sides], lines[kept]
        return EncodedChunk(chunk.dataset, len(chunk.pairs), sides, lines, pairs if self.keep_all else None, +counts)

    def _usable(self, chunk: Chunk, counts: Counter[str]) -> tuple[NDArray[np.int64], list[Pair]]:
        """Return line numbers (pairs,) and pairs without those that are empty or not UTF-8, which are counted."""
        lines, pairs = [], []
        for line, pair in enumerate(chunk.pairs, chunk.first):
            if not self.keep_all and not all(pair):
                counts["dropped as empty"] += 1
            elif not self.keep_all and "\ufffd" in "".join(pair):
                counts["dropped as not UTF-8"] += 1
            else:
                lines.append(line)
                pairs.append(pair)
        return np.array(lines, dtype=np.int64), pairs

    def _count_leaks(self, pairs: Sequence[Pair], counts: Counter[str]) -> None:
        """Count pairs that are also in an evaluation split, and other pairs whose source is."""
        known = self._evaluation_sources
        for pair in [pair for pair in pairs if pair[0] in known]:
            both = pair in self.evaluation
            counts[f"{self.unit} also in valid or test" if both else "source sentences also in valid or test"] += 1

    def _fitting(self, sides: Sequence[Sentences], counts: Counter[str]) -> NDArray[np.bool_]:
        """Return which pairs (pairs,) are within the limits on lengths; the others are counted."""
        shorter, longer = (extreme.reduce([side.lengths for side in sides]) for extreme in (np.minimum, np.maximum))
        fits = longer <= self.max_length
        kept: NDArray[np.bool_] = fits & (longer <= self.max_ratio * shorter)
        counts["dropped as too long"] = len(fits) - int(fits.sum())
        counts["dropped for their length ratio"] = int(fits.sum() - kept.sum())
        return kept


def _encode_all(vocabulary: TargetVocabulary, texts: Sequence[str]) -> Sentences:
    rows = vocabulary.encode_all(texts)
    lengths = np.fromiter(map(len, rows), np.int32, len(rows))
    return Sentences(np.fromiter(chain.from_iterable(rows), np.int32, int(lengths.sum())), lengths)


def encode_chunks(encoder: PairEncoder, chunks: Iterable[Chunk], threads: int) -> Iterator[EncodedChunk]:
    """Encode chunks on `threads` threads and yield them in order."""
    pool = ThreadPoolExecutor(threads)
    waiting: deque[Future[EncodedChunk]] = deque()
    collecting = gc.isenabled()
    gc.disable()  # there are millions of lists and no cycles: visiting them took 8% of the time
    try:
        for chunk in chunks:  # a bounded queue, so that a large corpus is not read ahead into memory
            waiting.append(pool.submit(encoder.encode, chunk))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
        if collecting:
            gc.enable()


SIDES = ("source", "target")  # columns of ids; a language model's data has the latter only
ABSENT = -1  # length of a missing source, which lacks even the `</s>` that lengths do not count

END = b"\xff\xff\xff\xff\0\0\0\0"  # of an Arrow stream
READ_AHEAD = 1 << 20  # bytes at a time


def schema_of(sides: Sequence[str]) -> pa.Schema:
    """Return the columns of a split with these sides."""
    columns = [*((side, pa.list_(pa.int32())) for side in sides), ("line", pa.int64())]
    return pa.schema([*columns, *((f"{side}_text", pa.string()) for side in sides)])


def table_of(chunk: EncodedChunk, schema: pa.Schema) -> pa.Table:
    """Convert a chunk to a table of that schema."""
    texts = [pa.nulls(len(chunk.lines), pa.string())] * len(chunk.sides)
    if chunk.texts is not None:
        texts = [pa.array([pair[side] for pair in chunk.texts], pa.string()) for side in range(len(chunk.sides))]
    return pa.Table.from_arrays([*map(_lists, chunk.sides), pa.array(chunk.lines), *texts], schema=schema)


def _lists(sentences: Sentences) -> pa.ListArray:
    offsets = np.concatenate(([0], np.cumsum(sentences.lengths)), dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(sentences.ids))


class Lengths(NamedTuple):
    """Lengths of some pairs in subwords, without `</s>`."""

    source: Ids
    """(pairs,) ABSENT for a language model"""
    target: Ids
    """(pairs,)"""

    @property
    def source_tokens(self) -> int:
        """Tokens of all sources, with `</s>`; 0 for a language model."""
        return int(self.source.sum()) + len(self.source)

    @property
    def target_tokens(self) -> int:
        """Tokens of all targets, with `</s>`."""
        return int(self.target.sum()) + len(self.target)


class Corpus:
    """One split of prepared data, read without importing `datasets`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Map an .arrow file; raises UserError if it is missing or damaged."""
        path = regular(Path(path))
        try:
            with open(path, "rb") as file:
                pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            pages.madvise(mmap.MADV_RANDOM)  # else the head of each record batch is read with its surroundings
            if pages[-len(END) :] != END:  # else a file cut between record batches would pass for a shorter one
                raise OSError("it is cut short")
            mapped = pa.py_buffer(pages)
            self._table = _checked(pa.ipc.open_stream(mapped).read_all())
            source, target = SIDES
            self._source = _Column(self._table[source], mapped) if source in self._table.column_names else None
            self._target = _Column(self._table[target], mapped)
        except OSError as error:
            raise not_read(path, error, remedy(path)) from None
        except (ValueError, pa.ArrowException) as error:  # ValueError: the file is empty
            raise UserError(f"{path}: cannot be read: {error}", remedy(path)) from None
        Thread(target=_read_ahead, args=(path,), daemon=True).start()

    def __len__(self) -> int:
        return int(self._table.num_rows)

    @property
    def has_source(self) -> bool:
        """Whether these are pairs, not the sentences of a language model."""
        return self._source is not None

    @property
    def source_lengths(self) -> Ids:
        """(pairs,) subwords of each source, without `</s>`; ABSENT for a language model."""
        return np.full(len(self), ABSENT, np.int32) if self._source is None else self._source.all_lengths()

    @property
    def target_lengths(self) -> Ids:
        """(pairs,) subwords of each target, without `</s>`."""
        return self._target.all_lengths()

    def longest(self) -> int:
        """Return the length of the longest sentence on either side, in subwords."""
        return int(max(self.source_lengths.max(initial=0), self.target_lengths.max(initial=0)))

    def lengths(self, rows: Rows) -> Lengths:
        """Return the lengths of some pairs."""
        absent = np.full(len(rows), ABSENT, np.int32)
        return Lengths(absent if self._source is None else self._source.spans(rows)[1], self._target.spans(rows)[1])

    def sources(self, rows: Rows) -> tuple[Rows, Ids]:
        """Return the ids of some sources, (rows, longest) padded with 0, and their lengths (rows,)."""
        assert self._source is not None, "a language model's data has no source"
        return self._source.gather(rows)

    def targets(self, rows: Rows) -> tuple[Rows, Ids]:
        """Return the ids of some targets, (rows, longest) padded with 0, and their lengths (rows,)."""
        return self._target.gather(rows)

    def lines(self, rows: Rows) -> list[int]:
        """Return the line numbers of some pairs, from 1 through all files of their split."""
        return self._table["line"].take(pa.array(rows)).to_pylist()  # type: ignore[no-any-return]

    def texts(self) -> tuple[list[str], list[str]]:
        """Return sources and targets as text, which evaluation splits of pairs have."""
        return self._table["source_text"].to_pylist(), self._table["target_text"].to_pylist()


def _checked(table: pa.Table) -> pa.Table:
    """Return a table if its columns and lists are as `table_of` makes them; else raise ValueError."""
    sides = SIDES if SIDES[0] in table.column_names else SIDES[1:]
    for field in schema_of(sides):
        if field.name not in table.column_names or table.schema.field(field.name).type != field.type:
            raise ValueError(f"it has no column {field.name} of the type {field.type}")
    table.validate(full=True)  # no list may end outside of the file, or before it begins
    return table


class _Column:
    """A column of id lists in all record batches, addressed as 32-bit words of the mapped file."""

    def __init__(self, column: pa.ChunkedArray, mapped: pa.Buffer) -> None:
        chunks = [chunk for chunk in column.chunks if len(chunk)]
        self._words = np.frombuffer(mapped, dtype=np.int32, count=mapped.size // 4)
        self._first_rows = np.cumsum([0, *(len(chunk) for chunk in chunks)])
        self._offsets = np.array([_word(chunk.offsets, mapped) for chunk in chunks], dtype=np.int64)
        self._values = np.array([_word(chunk.values, mapped) for chunk in chunks], dtype=np.int64)

    def all_lengths(self) -> Ids:
        """Return the number of ids in every row."""
        lengths = np.empty(self._first_rows[-1], np.int32)
        for row, end, offset in zip(self._first_rows, self._first_rows[1:], self._offsets, strict=False):
            lengths[row:end] = np.diff(self._words[offset : offset + end - row + 1])
        return lengths

    def spans(self, rows: Rows) -> tuple[Rows, Ids]:
        """Return the word at which each row's ids begin, and their number."""
        if not len(rows):
            return np.empty(0, np.int64), np.empty(0, np.int32)
        chunk = np.searchsorted(self._first_rows, rows, side="right") - 1
        offset = self._offsets[chunk] + (rows - self._first_rows[chunk])
        begin, end = self._words[offset], self._words[offset + 1]
        return self._values[chunk] + begin, end - begin

    def gather(self, rows: Rows) -> tuple[Rows, Ids]:
        """Return the ids of some rows, (rows, longest) padded with 0, and their numbers (rows,)."""
        begin, lengths = self.spans(rows)
        columns = np.arange(lengths.max(initial=0))
        inside = columns < lengths[:, None]
        ids = np.zeros(inside.shape, dtype=np.int64)
        ids[inside] = self._words[(begin[:, None] + columns)[inside]]
        return ids, lengths


def _read_ahead(path: str | os.PathLike[str]) -> None:
    """Read a file into the page cache in order, since updates read its pages in random order."""
    buffer = bytearray(READ_AHEAD)
    with suppress(OSError), open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def _word(array: pa.Array, mapped: pa.Buffer) -> int:
    """Return the word of the file at which the data of an array of 32-bit numbers begins."""
    buffer = array.buffers()[1]
    if buffer is None or len(array) == 0:  # without numbers, a buffer may lie anywhere
        return 0
    if not 0 <= buffer.address - mapped.address < mapped.size:
        raise ValueError("it is compressed")
    return int(buffer.address - mapped.address) // 4 + int(array.offset)
