"""Fixtures shared by the tests of preparing data."""

from __future__ import annotations

from pathlib import Path

import pytest
from prepared import QUIET, recipe, sentences, write

from nmt.data.prepare import prepare
from nmt.text.tokenizer import Tokenizer


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, count, seed in (("a", 120, 1), ("v", 9, 3), ("t", 5, 5)):
        write(f"{name}.en", sentences(count, seed))
        write(f"{name}.de", sentences(count, seed + 1))


@pytest.fixture
def given(workplace: None) -> Path:
    """A tokenizer that knows no q: it spells "qqq" as a lone U+2581 and three bytes."""
    prepare(recipe(data={"name": "given"}), QUIET, 1)
    vocabulary = Tokenizer.load(Path("data/given")).source
    assert [len(vocabulary.encode("q" * count)) for count in (1, 20)] == [2, 21]
    return Path("data/given")
