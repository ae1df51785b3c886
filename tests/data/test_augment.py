"""Pairs with changed text: what a line becomes, and which keep their prepared ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prepared import OUT, QUIET, recipe, report, write

from nmt.data.augment import Augmenter
from nmt.data.corpus import Corpus
from nmt.data.epochs import Update
from nmt.data.prepare import prepare
from nmt.data.variants import in_a_row, without_final_mark
from nmt.formats.letter_case import in_capitals, in_title_case
from nmt.text.tokenizer import Tokenizer

SIZES = 40, 30
GERMAN = [(f"The dog number {n} sees a house.", f"Hund Nummer {n} sieht „Straße“.") for n in range(SIZES[0])]
FRENCH = [(f"A cat's tail {n}, isn't it?", f"La queue d'un chat {n}, non ?") for n in range(SIZES[1])]
PAIRS = GERMAN + FRENCH
ALL = {"upper": 0.2, "title": 0.2, "unpunctuated": 0.3, "typos": 0.3, "joined": 0.3}
Make = Callable[..., Augmenter]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("augment")


@pytest.fixture(scope="module")
def make(folder: Path) -> Make:
    """Makes the augmenter of a model with two targets."""
    sets = [{"file": "de.tsv"}, {"file": "fr.tsv", "languages": ["en", "fr"]}]
    data = {"train": sets, "valid": [], "test": []}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write("de.tsv", ["\t".join(pair) for pair in GERMAN])
        write("fr.tsv", ["\t".join(pair) for pair in FRENCH])
        prepare(recipe(data=data, tokenizer={"vocab_size": 330}), QUIET, 1)
        sizes = report("train")["kept by set"]
    tokenizer = Tokenizer.load(folder / OUT)

    def made(shares: dict[str, float], max_length: int = 500, **training: Any) -> Augmenter:
        own = recipe(data={**data, "augment": shares, "max_length": max_length}, training=training)
        return Augmenter(own, Corpus(folder / OUT / "train.arrow"), tokenizer, sizes)

    return made


@pytest.fixture
def texts(folder: Path) -> Callable[..., list[tuple[str, str]]]:
    """Returns the texts of some rows after augmentation, each source after its symbol."""
    corpus = Corpus(folder / OUT / "train.arrow")
    vocabulary = Tokenizer.load(folder / OUT).source

    def of(augmenter: Augmenter, rows: Sequence[int], epoch: int = 3) -> list[tuple[str, str]]:
        given = np.array(rows)
        update = augmenter.augmented(Update(epoch, 0, given, corpus.lengths(given)))
        pairs: Any = corpus if update.changed is None else update.changed
        places = given if update.changed is None else np.arange(len(rows))
        found = []
        for place, *lengths in zip(places, *update.lengths, strict=True):
            sides = pairs.sources(np.array([place]))[0][0].tolist(), pairs.targets(np.array([place]))[0][0].tolist()
            assert [len(side) for side in sides] == lengths
            (symbol, *source), target = sides
            assert not {symbol for symbol in [*source, *target] if symbol in vocabulary.languages.values()}
            found.append((vocabulary.pieces([symbol])[0] + vocabulary.decode(source), vocabulary.decode(target)))
        return found

    return of


def prepared(row: int) -> tuple[str, str]:
    source, target = PAIRS[row]
    return (">>de<<" if row < SIZES[0] else ">>fr<<") + source, target


EVERY = range(len(PAIRS))


def test_what_a_line_becomes_depends_on_seed_and_epoch_alone(make: Make, texts) -> None:
    whole = texts(make(ALL), EVERY)
    assert [texts(make(ALL), [row])[0] for row in EVERY] == whole
    assert texts(make(ALL), EVERY[::-1]) == whole[::-1]
    assert texts(make(ALL), [5, 60, 5]) == [whole[5], whole[60], whole[5]]
    assert texts(make(ALL), EVERY, epoch=4) != whole != texts(make(ALL, seed=2), EVERY)
    changed = sum(text != prepared(row) for row, text in enumerate(whole))
    assert 0.6 * len(PAIRS) < changed < len(PAIRS)
    assert texts(make({}), EVERY) == [*map(prepared, EVERY)]


@pytest.mark.parametrize(
    ("kind", "change"), [("upper", in_capitals), ("title", in_title_case), ("unpunctuated", without_final_mark)]
)
def test_both_sides_change_alike(make: Make, texts, kind: str, change: Callable[[str], str]) -> None:
    expected = [(prepared(row)[0][:6] + change(source), change(target)) for row, (source, target) in enumerate(PAIRS)]
    assert texts(make({kind: 1}), EVERY) == expected


def test_only_sources_have_typos(make: Make, texts) -> None:
    for (source, target), (before, same) in zip(texts(make({"typos": 1}), EVERY), map(prepared, EVERY), strict=True):
        assert target == same
        assert source != before
        assert sum(one != other for one, other in zip(source.split(), before.split(), strict=True)) == 1


def test_pairs_are_joined_with_those_of_their_set_on_both_sides(make: Make, texts) -> None:
    rows = {pair: row for row, pair in enumerate(PAIRS)}
    counts = set()
    for row, (source, target) in enumerate(texts(make({"joined": 1}), EVERY)):
        own = GERMAN if row < SIZES[0] else FRENCH
        first, *more = [pair for pair in own for _ in range(source.count(pair[0]))]
        assert sum(map(len, (first[0], *(pair[0] for pair in more)))) + len(more) == len(source) - 6
        assert sorted(target) == sorted(in_a_row([first[1], *(pair[1] for pair in more)]))
        assert source.startswith(prepared(row)[0])
        assert target.startswith(prepared(row)[1])
        assert all(rows[pair] in EVERY for pair in more)
        counts.add(1 + len(more))
    assert counts == {2, 3, 4}


def test_kinds_are_combined(make: Make, texts) -> None:
    for source, target in texts(make(dict.fromkeys(("upper", "unpunctuated", "joined"), 1)), EVERY):
        assert source[6:].isupper()
        assert target.isupper()
        assert source[-1] not in ".?"
        assert ". " in source or "? " in source


def test_a_pair_that_would_be_too_long_keeps_its_ids(make: Make, texts, folder: Path) -> None:
    corpus = Corpus(folder / OUT / "train.arrow")
    limit = corpus.longest()
    for row, text in enumerate(texts(make({"joined": 1}, max_length=limit), EVERY)):
        assert text == prepared(row)
    lengths = corpus.lengths(np.array(EVERY))
    update = make({"upper": 1}, max_length=limit + 9).augmented(Update(0, 0, np.array(EVERY), lengths))
    assert limit < max(max(side) for side in update.lengths) <= limit + 9


def test_an_update_exceeds_its_tokens_by_a_tenth_at_most(make: Make, folder: Path) -> None:
    corpus = Corpus(folder / OUT / "train.arrow")
    rows = np.array(EVERY)
    lengths = corpus.lengths(rows)
    tokens = max(lengths.source_tokens, lengths.target_tokens)
    augmenter = make({"upper": 1, "unpunctuated": 1}, batch_tokens=tokens)
    update = augmenter.augmented(Update(0, 0, rows, lengths))
    found = max(update.lengths.source_tokens, update.lengths.target_tokens)
    assert tokens * 1.05 < found <= augmenter.most_tokens == tokens * 11 // 10
    kept = {row for row in EVERY if update.lengths.source[row] == lengths.source[row]}
    assert kept & {*EVERY[:20]}  # whatever their place in the update
    assert kept & {*EVERY[-20:]}
    again = augmenter.augmented(Update(1, 0, rows, lengths))
    assert kept != {row for row in EVERY if again.lengths.source[row] == lengths.source[row]}


@pytest.mark.parametrize("kind", ["upper", "title", "unpunctuated"])
def test_a_target_stays_as_it_is_if_its_source_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.chdir(tmp_path)
    write("zh.tsv", [f"第{n}只狗\tdie Nummer {n}." for n in range(10)])
    data = {"source": "zh", "target": "de", "train": [{"file": "zh.tsv"}], "valid": [], "test": []}
    own = recipe(data={**data, "augment": {kind: 1}}, tokenizer={"vocab_size": 330})
    prepare(own, QUIET, 1)
    corpus = Corpus(tmp_path / OUT / "train.arrow")
    rows = np.arange(10)
    augmenter = Augmenter(own, corpus, Tokenizer.load(tmp_path / OUT), [10])
    assert augmenter.augmented(Update(0, 0, rows, corpus.lengths(rows))).changed is None
