"""Lengths of prepared pairs, and how lines like and unlike them are split."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from prepared import WORDS

from nmt.data import prepare as measuring
from nmt.data.corpus import Corpus
from nmt.data.prepare import directory, measure_lengths, prepare
from nmt.decoding.translator import LineSplitter
from nmt.recipe import Decoding, Recipe
from nmt.system.console import Console
from nmt.text.sentences import TrainedLengths
from nmt.text.tokenizer import Tokenizer


def sentence(draw: random.Random, words: int) -> str:
    return f"A {' '.join(draw.choices(WORDS, k=words))}."


def measured(lines: list[tuple[str, str]], target: str = "de") -> tuple[TrainedLengths | None, Tokenizer]:
    """Lengths of training pairs as `nmt train` measures them, and the tokenizer."""
    Path("a.en").write_text("".join(f"{source}\n" for source, _ in lines))
    Path("a.de").write_text("".join(f"{translation}\n" for _, translation in lines))
    data: dict[str, Any] = {"name": "x", "target": target, "train": [{"target": "a.de"}]}
    if target == "de":
        data |= {"source": "en", "train": [{"source": "a.en", "target": "a.de"}]}
    recipe = Recipe.model_validate({"name": "x", "data": data, "tokenizer": {"vocab_size": 300}})
    prepare(recipe, Console(quiet=True), 1)
    out = directory(recipe)
    tokenizer = Tokenizer.load(out)
    return measure_lengths(recipe, Corpus(out / "train.arrow"), tokenizer), tokenizer


@pytest.fixture(autouse=True)
def _workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("sample", [10_000, 70])
def test_lengths_are_those_of_the_training_pairs(sample: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "SAMPLE", sample)
    draw = random.Random(1)
    lines = [(source, source) for source in (sentence(draw, 3 + n % 5) for n in range(300))]
    lengths, tokenizer = measured(lines)
    assert lengths is not None
    assert (lengths.language, lengths.sentences, lengths.usual_sentences) == ("en", 1, 1)
    longest = max(len(tokenizer.source.encode(source)) for source, _ in lines)
    assert 0.7 * longest <= lengths.source <= lengths.longest_source <= longest
    assert lengths.least_ratio == lengths.greatest_ratio == 1.0


def test_a_model_trained_on_several_sentences_a_line_gets_such_lines_whole() -> None:
    draw = random.Random(1)
    lines = []
    for n in range(300):
        source = " ".join(sentence(draw, 5) for _ in range(3 + n % 3))
        lines.append((source, source))
    lengths, tokenizer = measured(lines)
    assert lengths is not None
    assert (lengths.sentences, lengths.usual_sentences) == (5, 4)
    splitter = LineSplitter(tokenizer.source, Decoding(), lengths)
    assert [len(splitter.split(source)) for source, _ in lines[:50]] == [1] * 50
    assert len(splitter.split(" ".join(sentence(draw, 5) for _ in range(20)))) == 5


def test_a_language_model_has_none() -> None:
    draw = random.Random(1)
    assert measured([("", sentence(draw, 5)) for _ in range(100)], target="en")[0] is None
