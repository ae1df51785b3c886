"""Prepared data read back: equal to what was encoded, without a copy, whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from prepared import OUT, QUIET, recipe, sentences, write

from nmt.data import prepare as preparation
from nmt.data.corpus import Chunk, Corpus, PairEncoder, encode_chunks
from nmt.data.pairs import Pair
from nmt.system.errors import UserError
from nmt.text.tokenizer import Tokenizer

CHUNK = 20
SOURCE, TARGET = sentences(70, 1), sentences(70, 2)
VALID = ["a dog", "", "tree\u2028house"], ["ein Hund", "leer", ""]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared data of several record batches: three full ones and a rest, and an empty split."""
    folder = tmp_path_factory.mktemp("corpus")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(preparation, "CHUNK", CHUNK)
        for name, lines in (("a.en", SOURCE), ("a.de", TARGET), ("v.en", VALID[0]), ("v.de", VALID[1])):
            write(name, lines)
        preparation.prepare(recipe(data={"test": []}), QUIET, 1)
    return folder / OUT


def test_rows_are_what_was_encoded(prepared: Path) -> None:
    corpus, vocabulary = Corpus(prepared / "train.arrow"), Tokenizer.load(prepared).source
    assert len(corpus) == 70
    # over the bounds of record batches, backwards, and a row twice
    for rows in (range(70), [19, 20], [69, 0, 59, 60, 61, 19], [3, 3], [CHUNK], [69]):
        for gathered, lines in ((corpus.sources(np.array(rows)), SOURCE), (corpus.targets(np.array(rows)), TARGET)):
            encoded = [list(vocabulary.encode(lines[row])) for row in rows]
            width = max(map(len, encoded))
            assert gathered[0].tolist() == [ids + [0] * (width - len(ids)) for ids in encoded]
            assert gathered[1].tolist() == [len(ids) for ids in encoded]
            assert [part.dtype for part in gathered] == [np.int64, np.int32]


def test_lengths_are_those_of_the_rows(prepared: Path) -> None:
    corpus, vocabulary = Corpus(prepared / "train.arrow"), Tokenizer.load(prepared).source
    expected = [[len(vocabulary.encode(line)) for line in side] for side in (SOURCE, TARGET)]
    assert [corpus.source_lengths.tolist(), corpus.target_lengths.tolist()] == expected
    some = [60, 0, 19, 20, 69, 20]
    assert [side.tolist() for side in corpus.lengths(np.array(some))] == [[of[n] for n in some] for of in expected]


def test_rows_know_their_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropped pairs count, and a second file goes on where the first ended."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(preparation, "CHUNK", CHUNK)
    for name, count in (("first", 30), ("second", 25)):
        for side, lines in (("en", SOURCE), ("de", TARGET)):
            kept = ["" if number % 10 == 3 else line for number, line in enumerate(lines[:count], 1)]
            write(f"{name}.{side}", kept)
    sets = [{"source": f"{name}.en", "target": f"{name}.de"} for name in ("first", "second")]
    preparation.prepare(recipe(data={"train": sets, "valid": [], "test": []}), QUIET, 1)
    corpus = Corpus(OUT / "train.arrow")
    expected = [n for n in range(1, 31) if n % 10 != 3] + [30 + n for n in range(1, 26) if n % 10 != 3]
    assert corpus.lines(np.arange(len(corpus))) == expected
    assert corpus.lines(np.array([40, 0, 27])) == [expected[40], 1, expected[27]]


def test_evaluation_splits_have_their_text_and_empty_rows(prepared: Path) -> None:
    corpus = Corpus(prepared / "valid.arrow")
    assert corpus.texts() == VALID
    assert corpus.source_lengths[1] == corpus.target_lengths[2] == 0
    ids, lengths = corpus.sources(np.array([1, 0, 1]))
    assert lengths.tolist() == [0, len(ids[1]), 0]
    assert not ids[[0, 2]].any()
    assert corpus.targets(np.array([2]))[0].shape == (1, 0)


def test_a_file_cut_short_anywhere_is_a_user_error(prepared: Path, tmp_path: Path) -> None:
    whole, cut = (prepared / "train.arrow").read_bytes(), tmp_path / "cut.arrow"
    accepted = []
    for length in sorted({*range(0, len(whole), 64), *range(1, 40), *range(len(whole) - 20, len(whole))}):
        cut.write_bytes(whole[:length])
        try:
            accepted.append((length, len(Corpus(cut))))
        except UserError as error:
            assert str(cut) in error.message  # noqa: PT017
    # also where the cut falls between two record batches; all may be there without the mark of the end
    assert [rows for _, rows in accepted if rows < 70] == []


@pytest.mark.parametrize(
    ("changes", "options", "problem"),
    [
        ({"line": None}, {}, "its columns are source .*, target .*, source_text"),
        ({"target": None}, {}, "its columns are source .*, line"),
        ({"target": pa.array(["a", "b"])}, {}, r"target \(string\)"),
        ({"source": pa.array([[1], [2]], pa.list_(pa.int64()))}, {}, r"source \(list<item: int64>\)"),
        ({"target": (0, -100, 2)}, {}, "non-monotonic offset"),
        ({}, {"compression": "zstd"}, "it is compressed"),
    ],
)
def test_tables_of_another_kind_are_named(
    tmp_path: Path, changes: dict[str, Any], options: dict[str, Any], problem: str
) -> None:
    """Otherwise lists could lie anywhere, and what stands there would be trained on."""
    ids, values = pa.array([[5], [6]], pa.list_(pa.int32())), pa.array([5, 6], pa.int32())
    columns = {"source": ids, "target": ids, "line": pa.array([1, 2]), "source_text": pa.array(["a", "b"])}
    columns |= {"target_text": columns["source_text"], **changes}
    if isinstance(offsets := columns["target"], tuple):
        buffer = pa.py_buffer(np.array(offsets, np.int32))
        columns["target"] = pa.ListArray.from_buffers(pa.list_(pa.int32()), 2, [None, buffer], children=[values])
    table = pa.table({name: column for name, column in columns.items() if column is not None})
    with (
        pa.OSFile(str(tmp_path / "x.arrow"), "wb") as file,
        pa.ipc.new_stream(file, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as stream,
    ):
        stream.write_table(table)
    with pytest.raises(UserError, match=rf"x\.arrow: cannot be read: .*{problem}") as caught:
        Corpus(tmp_path / "x.arrow")
    assert caught.value.hint


def test_chunks_come_in_order_whichever_is_ready_first(given: Path) -> None:
    tokenizer = Tokenizer.load(given)
    encoder = PairEncoder((tokenizer.source, tokenizer.target), recipe().data)
    sizes = [400, 1, 300, 1, 1, 200]
    chunks = [
        Chunk(n, 1, [Pair("q " * size, "q " * size)] * size, np.zeros(size, np.bool_)) for n, size in enumerate(sizes)
    ]
    assert [(chunk.dataset, chunk.read) for chunk in encode_chunks(encoder, chunks, 3)] == list(enumerate(sizes))
