"""Prepared splits as Arrow files: reads them through memory maps, which need no copies and which processes share."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nmt.data.encode import EncodedChunk, Sentences
from nmt.errors import UserError
from nmt.files import not_read, regular, remedy

Ids = NDArray[np.int32]
Rows = NDArray[np.int64]

SIDES = ("source", "target")  # columns of ids; a language model's data has the latter only
ABSENT = -1  # length of a source that is not there: lengths do not count `</s>`, and it lacks that too

END = b"\xff\xff\xff\xff\0\0\0\0"  # of an Arrow stream
READ_AHEAD = 1 << 20  # bytes at a time


def schema_of(sides: Sequence[str]) -> pa.Schema:
    """The columns of a split that has these sides."""
    columns = [*((side, pa.list_(pa.int32())) for side in sides), ("line", pa.int64())]
    return pa.schema([*columns, *((f"{side}_text", pa.string()) for side in sides)])


def table_of(chunk: EncodedChunk, schema: pa.Schema) -> pa.Table:
    """A chunk as a table of that schema."""
    texts = [pa.nulls(len(chunk.lines), pa.string())] * len(chunk.sides)
    if chunk.texts is not None:
        texts = [pa.array([pair[side] for pair in chunk.texts], pa.string()) for side in range(len(chunk.sides))]
    return pa.Table.from_arrays([*map(_lists, chunk.sides), pa.array(chunk.lines), *texts], schema=schema)


def _lists(sentences: Sentences) -> pa.ListArray:
    offsets = np.concatenate(([0], np.cumsum(sentences.lengths)), dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(sentences.ids))


class Lengths(NamedTuple):
    """Subwords of some pairs, `</s>` not counted."""

    source: Ids
    """(pairs,) ABSENT where there are no sources"""
    target: Ids
    """(pairs,)"""

    @property
    def source_tokens(self) -> int:
        """Of all sources, `</s>` counted; 0 where there are none."""
        return int(self.source.sum()) + len(self.source)

    @property
    def target_tokens(self) -> int:
        """Of all targets, `</s>` counted."""
        return int(self.target.sum()) + len(self.target)


class Corpus:
    """One split of a prepared directory, read without importing `datasets`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Maps an .arrow file; raises UserError where there is none or it is cut short."""
        path = regular(Path(path))
        try:
            with open(path, "rb") as file:
                pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            pages.madvise(mmap.MADV_RANDOM)  # otherwise the head of each record batch is read with all around it
            if pages[-len(END) :] != END:  # otherwise a file cut between record batches would pass for a shorter one
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
        """Whether these are pairs, rather than the sentences of a language model."""
        return self._source is not None

    @property
    def source_lengths(self) -> Ids:
        """(pairs,) subwords of each source, `</s>` not counted; ABSENT where there are none."""
        return np.full(len(self), ABSENT, np.int32) if self._source is None else self._source.all_lengths()

    @property
    def target_lengths(self) -> Ids:
        """(pairs,) subwords of each target, `</s>` not counted."""
        return self._target.all_lengths()

    def longest(self) -> int:
        """Subwords of the longest sentence on either side."""
        return int(max(self.source_lengths.max(initial=0), self.target_lengths.max(initial=0)))

    def lengths(self, rows: Rows) -> Lengths:
        """Lengths of some pairs."""
        absent = np.full(len(rows), ABSENT, np.int32)
        return Lengths(absent if self._source is None else self._source.spans(rows)[1], self._target.spans(rows)[1])

    def sources(self, rows: Rows) -> tuple[Rows, Ids]:
        """Ids of some sources, (rows, longest) padded with 0, and their lengths (rows,)."""
        assert self._source is not None, "a language model's data has no source"
        return self._source.gather(rows)

    def targets(self, rows: Rows) -> tuple[Rows, Ids]:
        """Ids of some targets, (rows, longest) padded with 0, and their lengths (rows,)."""
        return self._target.gather(rows)

    def lines(self, rows: Rows) -> list[int]:
        """Line numbers of some pairs, counted from 1 through all files of their split."""
        return self._table["line"].take(pa.array(rows)).to_pylist()  # type: ignore[no-any-return]

    def texts(self) -> tuple[list[str], list[str]]:
        """Sources and targets as text; evaluation splits of pairs have it."""
        return self._table["source_text"].to_pylist(), self._table["target_text"].to_pylist()


def _checked(table: pa.Table) -> pa.Table:
    """Gives back a table whose columns and lists are such as `table_of` makes; raises ValueError where they are not."""
    sides = SIDES if SIDES[0] in table.column_names else SIDES[1:]
    for field in schema_of(sides):
        if field.name not in table.column_names or table.schema.field(field.name).type != field.type:
            raise ValueError(f"it has no column {field.name} of the type {field.type}")
    table.validate(full=True)  # no list may end outside of the file, or before it begins
    return table


class _Column:
    """A column of id lists, addressed over all its record batches at once as 32-bit words of the mapped file."""

    def __init__(self, column: pa.ChunkedArray, mapped: pa.Buffer) -> None:
        chunks = [chunk for chunk in column.chunks if len(chunk)]
        self._words = np.frombuffer(mapped, dtype=np.int32, count=mapped.size // 4)
        self._first_rows = np.cumsum([0, *(len(chunk) for chunk in chunks)])
        self._offsets = np.array([_word(chunk.offsets, mapped) for chunk in chunks], dtype=np.int64)
        self._values = np.array([_word(chunk.values, mapped) for chunk in chunks], dtype=np.int64)

    def all_lengths(self) -> Ids:
        lengths = np.empty(self._first_rows[-1], np.int32)
        for row, end, offset in zip(self._first_rows, self._first_rows[1:], self._offsets, strict=False):
            lengths[row:end] = np.diff(self._words[offset : offset + end - row + 1])
        return lengths

    def spans(self, rows: Rows) -> tuple[Rows, Ids]:
        """Word at which each row's ids begin, and how many there are."""
        if not len(rows):
            return np.empty(0, np.int64), np.empty(0, np.int32)
        chunk = np.searchsorted(self._first_rows, rows, side="right") - 1
        offset = self._offsets[chunk] + (rows - self._first_rows[chunk])
        begin, end = self._words[offset], self._words[offset + 1]
        return self._values[chunk] + begin, end - begin

    def gather(self, rows: Rows) -> tuple[Rows, Ids]:
        begin, lengths = self.spans(rows)
        columns = np.arange(lengths.max(initial=0))
        inside = columns < lengths[:, None]
        ids = np.zeros(inside.shape, dtype=np.int64)
        ids[inside] = self._words[(begin[:, None] + columns)[inside]]
        return ids, lengths


def _read_ahead(path: str | os.PathLike[str]) -> None:
    """Reads a file into the page cache from start to end, since updates read pages of it in random order."""
    buffer = bytearray(READ_AHEAD)
    with suppress(OSError), open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def _word(array: pa.Array, mapped: pa.Buffer) -> int:
    """Position in the file, in words, at which the data of an array of 32-bit numbers begins."""
    buffer = array.buffers()[1]
    if buffer is None or len(array) == 0:  # without numbers, a buffer may lie anywhere
        return 0
    if not 0 <= buffer.address - mapped.address < mapped.size:
        raise ValueError("it is compressed")
    return int(buffer.address - mapped.address) // 4 + int(array.offset)
