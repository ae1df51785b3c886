"""The demonstration treebank: distinct trees that preparation reads, in splits that depend on the seed only."""

import re

from demo_scripts import load_script, run_script

from nmt.text.tree import parse_tree, prepare_tree

LABELS = "ADJP ADVP CONJP FRAG INTJ NP PP PRN PRT QP S SBAR SBARQ SINV SQ TOP VP WHADJP WHADVP WHNP WHPP"
SIZES = {"train": 60, "valid": 20, "test": 10}

demo = load_script("demo_treebank")


def test_trees_are_distinct_and_read_back_with_every_label_of_the_treebank_and_something_to_prepare():
    treebank = demo.draw_treebank(seed=1, size=1500)
    assert len({demo.words_of(tree) for tree in treebank}) == 1500
    labels = set()
    for line in treebank:
        raw, prepared = parse_tree(line), prepare_tree(parse_tree(line))
        assert str(raw) == line
        assert " ".join(prepared.leaves()) == demo.words_of(line)
        assert 2 <= len(prepared.leaves()) <= demo.MAX_WORDS
        labels |= {label for label, _, _ in prepared.spans()}
    assert labels == set(LABELS.split())
    text = "\n".join(treebank)
    assert {"NP-SBJ", "S-NOM-SBJ", "WHNP-1"} <= set(re.findall(r"\((\S+) \(", text))
    assert {"*", "0", "*-1", "*T*-1"} <= set(re.findall(r"-NONE- ([^)]+)\)", text))


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
