"""Trees in which constituents stand in the place of others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest
from prepared import OUT, QUIET, report, write

from nmt.data.augment import Augmenter
from nmt.data.constituents import Sentence, constituents, with_others
from nmt.data.corpus import Corpus
from nmt.data.epochs import Update
from nmt.data.prepare import prepare
from nmt.parsing.linearization import TreeVocabulary, load_tokenizer
from nmt.parsing.tree import parse_tree
from nmt.recipe import Recipe

PHRASES = ["(NP (DT a) (NN dog))", "(NP (NP (DT the) (NN tail)) (PP (IN of) (NP (DT a) (NN cat))))", "(NP (PRP us))"]
BANK = [f"(TOP (S {one} (VP (VBZ sees) {two}) (. .)))" for one in PHRASES for two in PHRASES]
TREES = TreeVocabulary.train(BANK, pos_tags=True)


def sentence(tree: str) -> Sentence:
    return Sentence(parse_tree(tree).leaves(), TREES.encode(tree))


def test_constituents_have_their_labels_symbols_and_words() -> None:
    words, symbols = sentence("(TOP (S (NP (PRP us)) (VP (VBZ sees) (NP (DT a) (NN dog))) (. .)))")
    found = constituents(symbols, TREES)
    named = [(TREES.decode(each.kind), TREES.decode(symbols[each.symbols]), words[each.words]) for each in found]
    assert named == [
        ("(S", "(S (NP PRP )NP (VP VBZ (NP DT NN )NP )VP . )S", ["us", "sees", "a", "dog", "."]),
        ("(NP (S", "(NP PRP )NP", ["us"]),
        ("(VP (S", "(VP VBZ (NP DT NN )NP )VP", ["sees", "a", "dog"]),
        ("(NP (VP", "(NP DT NN )NP", ["a", "dog"]),
    ]
    assert constituents([*symbols, 1], TREES) == []


def test_words_and_symbols_are_replaced_together() -> None:
    sentences = [*map(sentence, BANK)]
    known = {str(parse_tree(tree)) for tree in BANK}
    outcomes = set()
    for seed in range(300):
        random = Random(seed)
        own = sentences[seed % len(BANK)]
        new = with_others(own, sentences, random, TREES)
        tree = TREES.tree(new.symbols, new.words)  # refuses what does not match
        assert str(tree) in known
        assert tree.children[0].label == "S"
        outcomes.add(str(tree))
        # Of long ones within long ones, length is near; a word does not stand for six.
        if own.words[0] == "us":
            assert len(new.words) - len(own.words) < 4
    assert len(outcomes) == len(BANK)
    assert with_others(sentences[0], [], Random(1), TREES) == sentences[0]


@pytest.fixture
def augmenter(workplace: None) -> Callable[..., Augmenter]:
    write("bank.mrg", BANK * 5)
    data = {"name": "x", "source": "en", "target": "tree", "train": [{"trees": "bank.mrg"}], "pos_tags": True}

    def made(share: float) -> Augmenter:
        given = {"name": "x", "data": {**data, "augment": {"constituents": share}}, "tokenizer": {"vocab_size": 290}}
        corpus = Corpus(OUT / "train.arrow")
        return Augmenter(Recipe.model_validate(given), corpus, load_tokenizer(OUT), [len(corpus)])

    prepare(Recipe.model_validate({"name": "x", "data": data, "tokenizer": {"vocab_size": 290}}), QUIET, 1)
    assert report("train")["kept by set"] == [len(BANK) * 5]
    return made


def test_trees_of_an_update_change_with_seed_and_epoch(augmenter: Callable[..., Augmenter]) -> None:
    corpus, tokenizer = Corpus(Path(OUT, "train.arrow")), load_tokenizer(OUT)
    rows = np.arange(len(BANK) * 5)

    def drawn(share: float, epoch: int) -> list[str]:
        update = augmenter(share).augmented(Update(epoch, 0, rows, corpus.lengths(rows)))
        changed = update.changed or corpus
        found = []
        for row in rows:
            words = tokenizer.source.decode(changed.sources(rows[row : row + 1])[0][0].tolist()).split(" ")
            assert isinstance(tokenizer.target, TreeVocabulary)
            found.append(str(tokenizer.target.tree(changed.targets(rows[row : row + 1])[0][0].tolist(), words)))
        return found

    before = drawn(0, 1)
    assert before == [str(parse_tree(tree)) for tree in BANK * 5]
    after = drawn(1, 1)
    assert after == drawn(1, 1) != drawn(1, 2)
    assert {*after} <= {*before}
    assert 0.1 < np.mean([one != other for one, other in zip(before, after, strict=True)]) < 0.9
