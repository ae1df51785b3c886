"""The demonstration corpus: sentences with their translations and trees, in splits that depend on the seed only."""

import re

from demo_scripts import load_script, run_script

from nmt.text.tree import parse_tree

demo = load_script("demo_corpus")
SIZES = {"train": 60, "valid": 20, "test": 10}


def test_every_word_stands_in_distinct_pairs_whose_trees_are_over_the_english():
    corpus = demo.draw_corpus(seed=1, size=5000)
    assert len({pair.english for pair in corpus}) == len({pair.german for pair in corpus}) == 5000
    words = {word for pair in corpus for word in demo.words_of(pair.tree)}
    assert {noun for name in demo.NOUNS for noun in name.split()} | set(demo.ADJECTIVES) <= {w.lower() for w in words}
    for english, german, tree in corpus:
        assert re.sub(r" ([,.?])", r"\1", " ".join(parse_tree(tree).leaves())) == english
        assert english[-1] == german[-1]


def test_files_depend_on_the_seed_only(tmp_path):
    first, again, other = (
        run_script("demo_corpus", tmp_path / f"{n}", SIZES, seed, n) for n, seed in enumerate((1, 1, 2))
    )
    assert first == again
    assert all(first[name] != other[name] for name in first)


def test_splits_are_parallel_and_disjoint(tmp_path):
    files = {name: text.splitlines() for name, text in run_script("demo_corpus", tmp_path / "out", SIZES, 3, 0).items()}
    assert set(files) == {f"{split}.{suffix}" for split in SIZES for suffix in ("en", "de", "trees")}
    for split, size in SIZES.items():
        assert all(len(files[f"{split}.{suffix}"]) == size for suffix in ("en", "de", "trees"))
    for suffix in ("en", "de"):
        assert len({line for split in SIZES for line in files[f"{split}.{suffix}"]}) == sum(SIZES.values())
    pairs = {(pair.english, pair.german, pair.tree) for pair in demo.draw_corpus(3, sum(SIZES.values()))}
    columns = ([line for split in SIZES for line in files[f"{split}.{suffix}"]] for suffix in ("en", "de", "trees"))
    assert set(zip(*columns, strict=True)) == pairs
