"""Words in, trees out, whatever the words are and whatever the model would say, with random weights."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from tiny_parser import DECODING, make_model, train_tokenizer, write_parser

import nmt
from nmt import Parser, Translator
from nmt.decoding.parser import words_of
from nmt.parsing.brackets import DELETED
from nmt.parsing.linearization import XX, TreeVocabulary, escape
from nmt.parsing.tree import Tree, parse_tree
from nmt.recipe import Decoding
from nmt.system.errors import UserError
from nmt.text.tokenizer import Tokenizer

VOCABULARY = ["the", "a", "dog", "cat", "house", "she", "sees", "likes", "old", "fish", ",", ".", "``", "''", "?"]


def sentence(words: int, seed: int) -> str:
    return " ".join(random.Random(seed).choices(VOCABULARY, k=words))


HOSTILE = [
    "dog",
    ".",
    '"',
    ". , ; : ? ! `` '' -- ...",
    sentence(200, seed=1),
    "the 😀 👩\u200d👩\u200d👧 sees",
    "( ) (( )) a(b)c -LRB- (NP (XX XX) )NP XX",
    "a\u00a0b c\u2028d e\u3000f g\x85h i\x1cj",
    "\u00a0 \u2028 \u3000 \x85",
    "\x00 a\x00b \x01\x7f\x1b[31m",
    "x" * 5_000,
    "the " + "x" * 5_000 + " sees",
    "\ud800 x\udfffy",
    "\tthe\t\tdog  sees \r",
    "\ufeffthe \u2581 \u2581dog \ufdd0",
    "<s> </s> <pad> <unk>",
    sentence(3_000, seed=2),
]
BLANK = ["", " ", "\t\r\x0b\x0c"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer()


def make_parser(tokenizer: Tokenizer, model: Any = None, **decoding: Any) -> Parser:
    return Parser(model or make_model(tokenizer), tokenizer, Decoding(**DECODING | decoding))


def assert_tree_over(tree: Tree | None, line: str, labels: TreeVocabulary) -> None:
    """A tree with root TOP, exactly these words and nothing empty, as one line that reads back."""
    assert tree is not None
    assert tree.label == "TOP"
    assert tree.leaves() == [escape(word) for word in words_of(line)]
    assert {tag for _, tag in tree.pos()} <= {XX, *DELETED}
    opened = {label for label, word in tree.symbols() if label and word is None}
    assert opened <= {"TOP", *labels.labels}
    assert "\n" not in str(tree)
    assert parse_tree(str(tree)) == tree


# --- any words, any model -----------------------------------------------------------------------------------


def test_any_line_becomes_a_tree_over_exactly_its_words(tokenizer: Tokenizer) -> None:
    parser = make_parser(tokenizer)
    assert isinstance(tokenizer.target, TreeVocabulary)
    found = list(parser.stream([*HOSTILE, *BLANK]))
    for line, parse in zip(HOSTILE, found, strict=False):
        assert_tree_over(parse.trees[0], line, tokenizer.target)
        assert not parse.capped
    assert [parse.trees for parse in found[len(HOSTILE) :]] == [[None]] * len(BLANK)
    assert [parse.cut for parse in found] == [line.count("x" * 5_000) for line in (*HOSTILE, *BLANK)]
    assert found[HOSTILE.index(sentence(3_000, seed=2))].parts > 50


@pytest.mark.parametrize(("favourite", "liking"), [("</s>", -60.0), ("</s>", 60.0), ("(NP", 60.0), (")S", 60.0)])
def test_no_wish_of_a_model_makes_it_anything_but_a_tree(tokenizer: Tokenizer, favourite: str, liking: float) -> None:
    assert isinstance(tokenizer.target, TreeVocabulary)
    model = make_model(tokenizer, favourite=tokenizer.target.listing().index(favourite), liking=liking)
    lines = [sentence(1 + seed, seed) for seed in range(8)]
    for parse, line in zip(make_parser(tokenizer, model, max_extra=5).stream(lines, n_best=3), lines, strict=True):
        for tree in parse.trees:
            assert_tree_over(tree, line, tokenizer.target)


# --- splitting, order and batches ---------------------------------------------------------------------------


def test_subwords_of_words_are_those_of_their_line(tokenizer: Tokenizer) -> None:
    """What lets a line be split between words after it has been encoded: training encodes whole lines."""
    for line in (*HOSTILE, *(sentence(20, seed) for seed in range(20))):
        words = [escape(word) for word in words_of(line)]
        together = tokenizer.source.encode(" ".join(words))
        assert [symbol for word in tokenizer.source.encode_all(words) for symbol in word] == together


def test_a_tree_does_not_depend_on_batch_mates(tokenizer: Tokenizer) -> None:
    model = make_model(tokenizer)
    lines = [sentence(1 + seed * 5 % 17, seed) for seed in range(12)]
    alone = make_parser(tokenizer, model, batch_tokens=1, max_extra=12).parse(lines)
    assert len(set(alone)) > 10
    assert make_parser(tokenizer, model, max_extra=12).parse(lines) == alone


# --- from Python --------------------------------------------------------------------------------------------


def test_what_is_loaded_parses_and_says_so_when_asked_to_translate(tokenizer: Tokenizer, tmp_path: Path) -> None:
    write_parser(tmp_path / "bundle", tokenizer)
    model = nmt.load(tmp_path / "bundle", beam=2)
    assert model.decoding.beam == 2
    (tree, nothing) = model.parse(["The cat sleeps .", ""])
    assert isinstance(tree, nmt.Tree)
    assert (tree.leaves(), nothing) == (["The", "cat", "sleeps", "."], None)
    with pytest.raises(UserError, match="is a parser") as error:
        model.translate(["The cat sleeps ."])
    assert "model.parse" in error.value.hint
    with pytest.raises(UserError, match="de: a parser has no choice of languages"):
        nmt.load(tmp_path / "bundle", to="de")


def test_a_translator_says_so_when_asked_to_parse() -> None:
    with pytest.raises(UserError, match="is a translator"):
        Translator.parse(object(), ["a"])  # type: ignore[arg-type]
