"""Prepared data as memory-mapped arrays: reading costs no copy and, over processes, no second page of memory."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nmt.errors import UserError

Ids = NDArray[np.int32]

END = b"\xff\xff\xff\xff\0\0\0\0"  # of an Arrow stream


class Corpus:
    """One split of a prepared directory, read without importing `datasets`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Maps an .arrow file; raises UserError where there is none or it is cut short."""
        try:
            file = pa.memory_map(os.fspath(path))
            self._table = pa.ipc.open_stream(file).read_all()
            file.seek(max(0, file.size() - len(END)))
            if file.read() != END:  # else a file cut between two record batches would pass for a shorter one
                raise OSError("it is cut short")
        except (OSError, pa.ArrowInvalid) as error:
            raise UserError(
                f"{Path(path)}: cannot be read: {error}", f"remove {Path(path).parent} and run the same command again"
            ) from None
        self._source, self._target = _Column(self._table["source"]), _Column(self._table["target"])

    def __len__(self) -> int:
        return int(self._table.num_rows)

    @property
    def source_lengths(self) -> Ids:
        """(pairs,) subwords of each source, `</s>` not counted."""
        return self._source.lengths()

    @property
    def target_lengths(self) -> Ids:
        """(pairs,) subwords of each target, `</s>` not counted."""
        return self._target.lengths()

    def source(self, row: int) -> Ids:
        """Ids of one source, a view of the file."""
        return self._source[row]

    def target(self, row: int) -> Ids:
        """Ids of one target, a view of the file."""
        return self._target[row]

    def texts(self) -> tuple[list[str], list[str]]:
        """Sources and targets as text; evaluation splits have it."""
        return self._table["source_text"].to_pylist(), self._table["target_text"].to_pylist()


class _Column:
    """A column of id lists as numpy views of its chunks' buffers."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        chunks = [chunk for chunk in column.chunks if len(chunk)]
        self._values = [chunk.values.to_numpy() for chunk in chunks]
        self._offsets = [chunk.offsets.to_numpy() for chunk in chunks]
        self._starts = np.cumsum([0, *(len(chunk) for chunk in chunks)])

    def lengths(self) -> Ids:
        return np.concatenate([np.empty(0, np.int32), *(np.diff(offsets) for offsets in self._offsets)])

    def __getitem__(self, row: int) -> Ids:
        chunk = int(np.searchsorted(self._starts, row, side="right")) - 1
        begin, end = self._offsets[chunk][row - self._starts[chunk] :][:2]
        return self._values[chunk][begin:end]  # type: ignore[no-any-return]
