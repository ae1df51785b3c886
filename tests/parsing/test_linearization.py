"""Trees become sequences of symbols and come back; what is no tree is said to be none."""

from __future__ import annotations

import json
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.parsing.brackets import score_brackets
from nmt.parsing.linearization import ANY, LEAF, MARK, TRACE, WORD, TreeVocabulary, escape, linearise
from nmt.parsing.tree import Tree, parse_tree
from nmt.system.errors import UserError
from nmt.text.vocabulary import BOS, EOS, PAD, UNK

TRAINING = [
    "(TOP (S (NP (DT the) (NN cat)) (VP (VBZ sees) (NP (NP (DT the) (NN dog)) (PP (IN of) (NP (NNP Mary))))) (. .)))",
    "(TOP (S (NP (NNP Mary)) (, ,) (VP (VBZ sleeps)) (. .)))",
    "(TOP (INTJ (UH no)) (. !))",
    "(TOP (. .))",
]
VOCABULARY = TreeVocabulary.train(TRAINING)
LABELS = ("NP", "S", "VP", "INTJ", "PP")  # by frequency, then by name

WORDS = st.sampled_from(["the", "cat", ".", ",", "?", "''", "XX", "TOP", "😀", "a\u00a0b", "-LRB-"])


def preterminal(word: str) -> Tree:
    return Tree(VOCABULARY.tag(word), (word,))


CONSTITUENTS = st.recursive(
    WORDS.map(preterminal),
    lambda trees: st.builds(Tree, st.sampled_from(LABELS), st.lists(trees, min_size=1, max_size=3).map(tuple)),
    max_leaves=15,
)
TREES = st.builds(Tree, st.just("TOP"), st.lists(CONSTITUENTS, min_size=1, max_size=3).map(tuple))


def ids_of(text: str) -> list[int]:
    """Ids of symbols with spaces between them."""
    listing = VOCABULARY.listing()
    return [listing.index(symbol) for symbol in text.split()]


def test_the_linear_form_is_that_of_vinyals() -> None:
    tree = parse_tree(TRAINING[0])
    text = "(S (NP XX XX )NP (VP XX (NP (NP XX XX )NP (PP XX (NP XX )NP )PP )NP )VP XX )S"
    assert " ".join(linearise(tree)) == text
    ids = VOCABULARY.encode(TRAINING[0])
    assert ids == ids_of(text)
    assert VOCABULARY.decode([BOS, *ids, EOS, PAD, UNK]) == text
    assert VOCABULARY.pieces([BOS, *ids[:2], EOS]) == ["<s>", "(S", "(NP", "</s>"]
    assert VOCABULARY.encode_all(TRAINING) == [VOCABULARY.encode(line) for line in TRAINING]


def test_leaves_may_be_tags_which_the_tree_then_has() -> None:
    vocabulary = TreeVocabulary.train(TRAINING, pos_tags=True)
    assert vocabulary.tags == (".", "DT", "NN", "NNP", "VBZ", ",", "IN", "UH")
    assert vocabulary.listing()[4:14] == [*vocabulary.tags, "(NP", "(S"]
    assert TreeVocabulary(vocabulary.serialized, "tree.json").listing() == vocabulary.listing()
    ids = vocabulary.encode(TRAINING[1])
    assert vocabulary.decode(ids) == "(S (NP NNP )NP , (VP VBZ )VP . )S"
    assert vocabulary.tree(ids, ["Mary", ",", "sleeps", "."]) == parse_tree(TRAINING[1])
    assert vocabulary.tree(ids, ["a", "b", ".", "?"]).pos() == [("a", "NNP"), ("b", "XX"), (".", "."), ("?", ".")]
    assert vocabulary.pieces(vocabulary.encode("(TOP (NP (QQ a) (NN b)))")) == ["(NP", "<unk>", "NN", ")NP"]


def test_the_longest_run_of_opening_brackets_is_counted() -> None:
    trees = ["(TOP (A (B (C (x y) (D (E (x y)))))))", "(TOP (A (x y)) (A (B (x y))))", "(TOP (A (x y)))"]
    assert [TreeVocabulary.train([tree] * 2).longest_run for tree in trees] == [3, 2, 1]


def test_labels_that_training_had_not_are_unknown() -> None:
    ids = VOCABULARY.encode("(TOP (S (ZP (NP (NN cat)))))")
    assert VOCABULARY.pieces(ids) == ["(S", "<unk>", "(NP", "XX", ")NP", "<unk>", ")S"]
    with pytest.raises(ValueError, match="never closed"):
        VOCABULARY.encode("(TOP (S (NN cat))")


@given(tree=TREES)
def test_every_tree_over_known_labels_survives_the_round_trip(tree: Tree) -> None:
    ids = VOCABULARY.encode(str(tree))
    assert ids == ids_of(VOCABULARY.decode(ids))
    assert VOCABULARY.tree(ids, tree.leaves()) == tree


@pytest.mark.parametrize(
    ("symbols", "words", "reason"),
    [
        ("(S XX XX )S", "a", "each word has a leaf"),
        ("(S XX )S", "a b", "each word has a leaf"),
        ("", "", "each word has a leaf"),
        ("(S )S", "", "each word has a leaf"),
        ("(S (NP )NP XX )S", "a", "(NP is empty"),
        ("(S (NP XX )S )NP", "a", ")S cannot close (NP"),
        ("XX )S", "a", ")S cannot close (TOP"),
        ("(S (NP XX )NP", "a", "(S is not closed"),
        ("(S XX )S </s>", "a", "</s> cannot close (TOP"),
        ("<unk> XX <unk>", "a", "<unk> cannot close (TOP"),
        ("(S XX <unk> )S", "a", "<unk> cannot close (S"),
    ],
)
def test_ids_that_are_no_tree_are_an_error_that_says_why(symbols: str, words: str, reason: str) -> None:
    with pytest.raises(AssertionError, match=f"^{re.escape(reason)}"):
        VOCABULARY.tree(ids_of(symbols), words.split())


# --- words -------------------------------------------------------------------------------------------------------


def test_brackets_in_words_are_spelled_as_in_a_treebank() -> None:
    assert [escape(word) for word in ("(", ")", ":-)", "f(x)", "[a]", "-LRB-")] == [
        *("-LRB-", "-RRB-", ":--RRB-", "f-LRB-x-RRB-", "[a]", "-LRB-")
    ]
    tree = VOCABULARY.tree(ids_of("(NP XX XX )NP XX"), ["(a", ")", "."])
    assert str(tree) == "(TOP (NP (XX -LRB-a) (XX -RRB-)) (. .))"
    assert parse_tree(str(tree)) == tree


def test_punctuation_gets_its_tag_and_other_words_xx() -> None:
    tree = VOCABULARY.tree(ids_of("(S (NP XX )NP XX (VP XX )VP XX )S"), ["Mary", ",", "sleeps", "!"])
    assert str(tree) == "(TOP (S (NP (XX Mary)) (, ,) (VP (XX sleeps)) (. !)))"


def treebank(pos_tags: bool = False, **tags: str) -> TreeVocabulary:
    """The vocabulary of a tree whose words have so many leaves with these tags."""
    leaves = [f"({tag} {word})" for word, given in tags.items() for tag in given.split()]
    return TreeVocabulary.train([f"(TOP (S {' '.join(leaves)}))"], pos_tags)


def test_training_decides_what_is_punctuation_and_by_which_tags() -> None:
    tags = {
        **{",": ", , ,", "-": ": HYPH HYPH", "'": "'' `` '' POS POS", "+": ": SYM :", "o": ": SYM", "word": "NN"},
        **{"…": ": . SYM SYM .", "``": "``", "$": "$", "#": "SYM", ";": ":"},
    }
    vocabulary = treebank(**tags)
    expected = {",": ",", "-": "HYPH", "'": "''", "+": ":", "…": ".", "``": "``", "$": "$", "#": "SYM", ";": ":"}
    assert vocabulary.punctuation == expected
    words = ["o", "word", "unseen", ";;;", "''", "§", "-LRB-", "*T*-1"]
    assert [vocabulary.tag(word) for word in words] == ["XX", "XX", "XX", ":", "''", ":", "XX", "XX"]


def test_kinds_of_words_are_those_of_their_tags_unless_they_are_ambiguous() -> None:
    given = {".": ".", "!": ".", "-": ": HYPH", "word": "NN", "*T*-1": "-NONE-", "*-2": "-NONE-", "0": "CD -NONE-"}
    vocabulary = treebank(pos_tags=True, **given)
    words = [".", "!!!!", "word", "unseen", "1990", "*T*-17", "*-3", "*U*", "-", "0", "("]
    kinds = [MARK, MARK, WORD, WORD, WORD, TRACE, TRACE, WORD, ANY, ANY, WORD]
    assert vocabulary.kinds(words) == kinds
    assert dict(zip(vocabulary.tags, vocabulary.fitting[MARK], strict=True)) == {
        "-NONE-": False, ".": True, ":": True, "CD": False, "HYPH": False, "NN": False
    }  # fmt: skip
    assert all(treebank(pos_tags=True, word="NN").fitting[MARK])  # no tag would be left


NESTED = "(TOP (S (NP (NN a) ({comma} ,) (NN b)) (VP (VB c) (NP ({hyphen} -) (NN d))) ({stop} .)))"
UNSEEN = "(TOP (S ({comma} ;) (NP (NN x) ({stop} ?)) (VP (VB y) ({stop} !!!!))))"
PENN = {"comma": ",", "stop": ".", "hyphen": ":"}


@pytest.mark.parametrize("pos_tags", [False, True])
@pytest.mark.parametrize(
    ("trees", "tests"),
    [
        pytest.param([NESTED.format(**tags)], [UNSEEN.format(**tags)], id=name)
        for name, tags in {
            "Penn": PENN,
            "UD": dict.fromkeys(PENN, "PUNCT"),
            "TIGER": {"comma": "$,", "stop": "$.", "hyphen": "$["},
            "CTB": dict.fromkeys(PENN, "PU"),
        }.items()
    ]
    + [
        pytest.param([NESTED.format(**PENN | {"hyphen": "HYPH"})] * 2, [], id="HYPH"),
        pytest.param([NESTED.format(**PENN).replace(" (. .)", "")], [], id="no final stops"),
        pytest.param(
            ["(TOP (S (NP (-NONE- *T*-1)) (VP (VB a) (NP (-NONE- *)) (SBAR (-NONE- 0) (S (NP (CD 10) (CD 7)))))))"],
            ["(TOP (S (VP (VB b) (NP (-NONE- *T*-12)) (SBAR (CD 1990)) (NP (-NONE- ***)))))"],
            id="traces",
        ),
    ],
)
def test_the_trees_of_a_treebank_are_without_errors_however_it_tags(
    trees: list[str], tests: list[str], pos_tags: bool
) -> None:
    vocabulary = TreeVocabulary.train(trees, pos_tags)
    gold = list(map(parse_tree, trees + tests))
    found = []
    for tree in gold:
        ids = [LEAF if index == UNK else index for index in vocabulary.encode(str(tree))]
        if pos_tags:  # as the search allows it
            kinds = iter(vocabulary.kinds(tree.leaves()))
            for place, index in enumerate(ids):
                if index in vocabulary.leaves and not (fits := vocabulary.fitting[next(kinds)])[index - LEAF]:
                    ids[place] = LEAF + fits.index(True)
        found.append(vocabulary.tree(ids, tree.leaves()))
    scores = score_brackets(gold, found)
    assert (scores.errors, scores.total.f1, scores.with_failures.f1) == (0, 100, 100)


# --- bytes -------------------------------------------------------------------------------------------------------


def test_a_vocabulary_is_its_bytes_and_they_depend_on_no_order() -> None:
    again = TreeVocabulary(VOCABULARY.serialized, "tree.json")
    assert again.serialized == VOCABULARY.serialized
    assert again.listing() == VOCABULARY.listing()
    assert again.tags == ()
    assert (again.longest_run, again.punctuation) == (VOCABULARY.longest_run, VOCABULARY.punctuation)
    shuffled = random.Random(1).sample(TRAINING, len(TRAINING))
    assert TreeVocabulary.train(shuffled).serialized == VOCABULARY.serialized


@pytest.mark.parametrize("trees", [[], ["(TOP (NN a) (. .))"]])
def test_training_wants_constituents(trees: list[str]) -> None:
    with pytest.raises(UserError, match=r"data\.train: no tree has a constituent"):
        TreeVocabulary.train(trees)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"labels": []}, "labels: Tuple should have at least 1 item"),
        ({"labels": ["NP", 3]}, "labels: 1: must be a valid string"),
        ({"labels": ["\ud800"]}, "Invalid JSON"),
        ({"tags": ["NN", "(NN"]}, "tags: 1: String should match pattern"),
        ({"longest_run": True}, "longest_run: must be a valid integer"),
        ({"longest_run": 2**63 - 1}, "longest_run: must be less than or equal to 1000000000"),
        ({"punctuation": {"a": ["XX"]}}, "punctuation: a: must be a valid string"),
        ({"punctuation": {"a": "(X"}}, "punctuation: a: String should match pattern"),
    ],
)
def test_a_vocabulary_that_was_changed_is_an_error(change: dict[str, object], reason: str) -> None:
    content = json.dumps(json.loads(VOCABULARY.serialized) | change).encode()
    with pytest.raises(UserError) as error:
        TreeVocabulary(content, "x/tree.json")
    assert error.value.message.startswith("x/tree.json: ")
    assert error.value.hint
    assert reason in error.value.message
