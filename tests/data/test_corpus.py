"""Prepared data read back: equal to what was encoded, without a copy, whole or not at all."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from nmt.console import Console
from nmt.data import prepare as preparation
from nmt.data.corpus import Corpus
from nmt.errors import UserError
from nmt.recipe import Recipe
from nmt.text.tokenizer import Tokenizer

TEXT = "the a dog cat sees likes tree big small red green house man woman walks runs under over"
WORDS = TEXT.split()
CHUNK = 20


def sentences(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(3, 8))) for _ in range(count)]


SOURCE, TARGET = sentences(70, 1), sentences(70, 2)
VALID = ["a dog", "", "tree\u2028house"], ["ein Hund", "leer", ""]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared data of several record batches: three full ones and a rest, and an empty split."""
    folder = tmp_path_factory.mktemp("corpus")
    for name, lines in (("a.en", SOURCE), ("a.de", TARGET), ("v.en", VALID[0]), ("v.de", VALID[1])):
        (folder / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    data = {"name": "x", "source": "en", "target": "de", "root": str(folder)}
    data |= {"train": [{"source": "a.en", "target": "a.de"}], "valid": [{"source": "v.en", "target": "v.de"}]}
    recipe = Recipe.model_validate({"name": "x", "data": data, "tokenizer": {"vocab_size": 300}})
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(preparation, "CHUNK", CHUNK)
        preparation.prepare(recipe, Console(quiet=True), 1)
    return folder / "data" / "x"


def test_rows_are_what_was_encoded(prepared: Path) -> None:
    corpus, vocabulary = Corpus(prepared / "train.arrow"), Tokenizer.load(prepared).source
    assert len(corpus) == 70
    for row in (*range(70), 19, 20, 0, 69):
        assert corpus.source(row).tolist() == vocabulary.encode(SOURCE[row])
        assert corpus.target(row).tolist() == vocabulary.encode(TARGET[row])


def test_lengths_are_those_of_the_rows(prepared: Path) -> None:
    corpus = Corpus(prepared / "train.arrow")
    assert corpus.source_lengths.tolist() == [len(corpus.source(row)) for row in range(70)]
    assert corpus.target_lengths.tolist() == [len(corpus.target(row)) for row in range(70)]


def test_rows_are_views_that_cannot_be_written(prepared: Path) -> None:
    corpus = Corpus(prepared / "train.arrow")
    for row in (0, CHUNK - 1, CHUNK, 69):
        for ids in (corpus.source(row), corpus.target(row)):
            assert ids.dtype == np.int32
            assert ids.base is not None
            assert not ids.flags.owndata
            assert not ids.flags.writeable
    assert np.shares_memory(corpus.source(3), corpus.source(3))


def test_evaluation_splits_have_their_text_and_empty_rows(prepared: Path) -> None:
    corpus = Corpus(prepared / "valid.arrow")
    assert corpus.texts() == VALID
    assert corpus.source_lengths[1] == corpus.target_lengths[2] == 0
    assert corpus.source(1).tolist() == corpus.target(2).tolist() == []


def test_an_empty_split_is_a_corpus_without_rows(prepared: Path) -> None:
    corpus = Corpus(prepared / "test.arrow")
    assert len(corpus) == len(corpus.source_lengths) == len(corpus.target_lengths) == 0
    assert corpus.source_lengths.dtype == np.int32
    assert corpus.texts() == ([], [])


def test_a_file_cut_short_anywhere_is_a_user_error(prepared: Path, tmp_path: Path) -> None:
    whole, cut = (prepared / "train.arrow").read_bytes(), tmp_path / "cut.arrow"
    accepted = []
    for length in sorted({*range(0, len(whole), 8), *range(1, 40), *range(len(whole) - 20, len(whole))}):
        cut.write_bytes(whole[:length])
        try:
            accepted.append((length, len(Corpus(cut))))
        except UserError as error:
            assert str(cut) in error.message  # noqa: PT017
    # also where the cut falls between two record batches; all may be there without the mark of the end
    assert [rows for _, rows in accepted if rows < 70] == []


@pytest.mark.parametrize("content", [None, b"", b"no arrow file\n" * 10, bytes(64)])
def test_what_is_no_arrow_file_is_a_user_error_naming_it(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "x.arrow").write_bytes(content)
    with pytest.raises(UserError, match=r"x\.arrow: cannot be read"):
        Corpus(tmp_path / "x.arrow")


def test_reading_prepared_data_imports_neither_datasets_nor_torch(prepared: Path) -> None:
    program = (
        "import sys; from nmt.data.corpus import Corpus; "
        f"assert len(Corpus({str(prepared / 'train.arrow')!r})) == 70; "
        "sys.exit(bool({'datasets', 'torch'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
