"""The demonstration treebank: hand-checked trees, and properties of every tree drawn."""

import random
import re
from collections import defaultdict
from functools import cache

import pytest
from demo_scripts import load_script, run_script

from nmt.text.tree import parse_tree, prepare_tree

LABELS = "ADJP ADVP CONJP FRAG INTJ NP PP PRN PRT QP S SBAR SBARQ SINV SQ TOP VP WHADJP WHADVP WHNP WHPP"
TAGS = """, . : '' `` -LRB- -RRB- CC CD DT EX IN JJ JJR JJS MD NN NNP NNS POS PRP PRP$ RB RP TO UH VB VBD VBG VBN VBP
VBZ WDT WP WRB"""

demo = load_script("demo_treebank")


def skeleton(tree):
    """What a parser is to find: the prepared tree, its preterminals XX."""
    return re.sub(r"\([^ ()]+ [^ ()]+\)", "XX", str(prepare_tree(parse_tree(tree))))


def skeletons(sentence):
    """Of all trees that the grammar gives to the sentence: a recogniser that tries every expansion everywhere."""
    words = [{word, word.lower(), "a" if word in ("an", "An") else word} for word in sentence.split()]

    def is_at(position, choices):
        return position < len(words) and not words[position].isdisjoint(choices)

    @cache
    def matches(symbol, start):
        """Bracketings by the positions where they end."""
        label = symbol.partition("/")[0]
        if symbol in demo.LEXICON:
            return {start + 1: {"(XX XX)"}} if is_at(start, demo.LEXICON[symbol]) else {}
        found = defaultdict(set)
        for items in demo.RULES[demo.rule_name(symbol)]:
            states, previous = {start: {""}}, ""
            for item in items:
                extended = defaultdict(set)
                for position, texts in states.items():
                    for end, pieces in step(item, previous, position).items():
                        extended[end] |= {f"{text} {piece}" for text in texts for piece in pieces}
                states, previous = extended, item
            for end, texts in states.items():
                found[end] |= texts if label[0].islower() else {f"({label} {text})" for text in texts}
        return found

    def step(item, previous, position):
        if demo.is_symbol(item):
            return matches(item, position)
        if item.startswith("(") or item == ")" or previous == "(-NONE-":
            return {position: {item}}
        return {position + 1: {item}} if is_at(position, {item[:-1]}) else {}

    return {skeleton(tree) for tree in matches("TOP", 0).get(len(words), ())}


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("We saw a man with a telescope .", "(S (NP XX) (VP XX (NP XX XX) (PP XX (NP XX XX))) XX)"),
        ("We saw a man with a beard .", "(S (NP XX) (VP XX (NP (NP XX XX) (PP XX (NP XX XX)))) XX)"),
        ("We knew a man with a telescope .", "(S (NP XX) (VP XX (NP (NP XX XX) (PP XX (NP XX XX)))) XX)"),
        ("She put the ring on the table .", "(S (NP XX) (VP XX (NP XX XX) (PP XX (NP XX XX))) XX)"),
        ("She saw the ring on the table .", "(S (NP XX) (VP XX (NP (NP XX XX) (PP XX (NP XX XX)))) XX)"),
        ("He turned off the lamp .", "(S (NP XX) (VP XX (PRT XX) (NP XX XX)) XX)"),
        ("He turned off the road .", "(S (NP XX) (VP XX (PP XX (NP XX XX))) XX)"),
        ("They asked him to sleep .", "(S (NP XX) (VP XX (NP XX) (S (VP XX (VP XX)))) XX)"),
        ("They wanted him to sleep .", "(S (NP XX) (VP XX (S (NP XX) (VP XX (VP XX)))) XX)"),
        ("It saw the cat and the dog .", "(S (NP XX) (VP XX (NP (NP XX XX) XX (NP XX XX))) XX)"),
        ("It saw the cat and slept .", "(S (NP XX) (VP (VP XX (NP XX XX)) XX (VP XX)) XX)"),
        ("It saw the cat and the dog slept .", "(S (S (NP XX) (VP XX (NP XX XX))) XX (S (NP XX XX) (VP XX)) XX)"),
        ("It is hard to sleep .", "(S (NP (NP XX)) (VP XX (ADJP XX) (S (VP XX (VP XX)))) XX)"),
        ("It is ready to sleep .", "(S (NP XX) (VP XX (ADJP XX (S (VP XX (VP XX))))) XX)"),
        (
            "A friend of the dog who slept laughed .",
            "(S (NP (NP (NP XX XX) (PP XX (NP XX XX))) (SBAR (WHNP XX) (S (VP XX)))) (VP XX) XX)",
        ),
        (
            "A friend of the dog that slept laughed .",
            "(S (NP (NP XX XX) (PP XX (NP (NP XX XX) (SBAR (WHNP XX) (S (VP XX)))))) (VP XX) XX)",
        ),
        (
            "We know the story that he thought she painted .",
            "(S (NP XX) (VP XX (NP (NP XX XX) (SBAR (WHNP XX) (S (NP XX) (VP XX (SBAR (S (NP XX) (VP XX)))))))) XX)",
        ),
        (
            "We know the story that he slept .",
            "(S (NP XX) (VP XX (NP (NP XX XX) (SBAR XX (S (NP XX) (VP XX))))) XX)",
        ),
        ("What did Mary see ?", "(SBARQ (WHNP XX) (SQ XX (NP XX) (VP XX)) XX)"),
        ("`` I slept , '' said John .", None),
        ("`` She slept , '' said the king .", "(SINV XX (S (NP XX) (VP XX)) XX XX (VP XX) (NP XX XX) XX)"),
    ],
)
def test_words_decide_the_tree(sentence, expected):
    assert skeletons(sentence) == ({f"(TOP {expected})"} if expected else set())


def test_a_drawn_sentence_has_no_second_tree():
    choose = random.Random(5)
    for _ in range(120):
        tree = demo.spell(demo.expand("TOP", choose))
        if len(demo.words_of(tree).split()) <= 20:
            assert skeletons(demo.words_of(tree)) == {skeleton(tree)}


@pytest.fixture(scope="module")
def treebank():
    return demo.draw_treebank(seed=1, size=1500)


def test_trees_are_as_in_the_treebank(treebank):
    labels, tags = set(), set()
    for line in treebank:
        raw, prepared = parse_tree(line), prepare_tree(parse_tree(line))
        assert str(raw) == line
        assert prepared.label == "TOP"
        assert " ".join(prepared.leaves()) == demo.words_of(line)
        labels |= {label for label, _, _ in prepared.spans()}
        tags |= {tag for _, tag in prepared.pos()}
    assert labels == set(LABELS.split())
    assert tags == set(TAGS.split())


def test_preparation_has_something_to_do(treebank):
    text = "\n".join(treebank)
    labels, traces = set(re.findall(r"\((\S+) \(", text)), set(re.findall(r"-NONE- ([^)]+)\)", text))
    assert {"NP-SBJ", "PP-LOC", "S-NOM-SBJ", "S-TPC-1", "WHNP-1"} <= labels
    assert {"*", "0", "*-1", "*T*-1", "*EXP*-1"} <= traces


def test_sentences_are_distinct_and_of_bounded_length(treebank):
    sentences = [demo.words_of(tree) for tree in treebank]
    assert len(set(sentences)) == 1500
    lengths = [len(sentence.split()) for sentence in sentences]
    assert (min(lengths), max(lengths)) == (2, demo.MAX_WORDS)
    assert 10 <= sum(lengths) / len(lengths) <= 15


def test_classes_of_words_decide_what_their_tags_leave_open(treebank, monkeypatch):
    by_tag = defaultdict(list)
    for key, words in demo.LEXICON.items():
        by_tag[key.partition("/")[0]] += words
    monkeypatch.setattr(demo, "LEXICON", {key: by_tag[key.partition("/")[0]] for key in demo.LEXICON})
    middling = [tree for tree in treebank if 10 <= len(demo.words_of(tree).split()) <= 14][:60]
    trees = [skeletons(demo.words_of(tree)) for tree in middling]
    assert all(skeleton(tree) in found for tree, found in zip(middling, trees, strict=True))
    assert sum(len(found) > 1 for found in trees) >= 25


def test_depth_is_bounded(monkeypatch):
    monkeypatch.setattr(demo, "MAX_DEPTH", 0)
    trees = {demo.expand("S/main", random.Random(seed)) for seed in range(50)}
    assert max(len(demo.words_of(tree).split()) for tree in trees) <= 9


def test_text_looks_like_text(treebank):
    for sentence in map(demo.words_of, treebank):
        assert re.match(r"(`` )?[A-Z]", sentence), sentence
        assert re.search(r" [.?!]$", sentence), sentence
        assert not re.search(r"\b[Aa] [aeiou]|\b[Aa]n [^aeiou]", sentence), sentence


SIZES = {"train": 60, "valid": 20, "test": 10}


def test_files_depend_on_the_seed_only(tmp_path):
    first, again, other = (
        run_script("demo_treebank", tmp_path / f"{n}", SIZES, seed, n) for n, seed in enumerate((1, 1, 2))
    )
    assert first == again
    assert all(first[name] != other[name] for name in first)


def test_splits_are_disjoint(tmp_path):
    files = {
        name: text.splitlines() for name, text in run_script("demo_treebank", tmp_path / "out", SIZES, 3, 0).items()
    }
    assert set(files) == {"train.trees", "valid.trees", "test.trees", "test.words"}
    assert {split: len(files[f"{split}.trees"]) for split in SIZES} == SIZES
    assert len({demo.words_of(tree) for split in SIZES for tree in files[f"{split}.trees"]}) == sum(SIZES.values())
    assert files["test.words"] == [demo.words_of(tree) for tree in files["test.trees"]]
