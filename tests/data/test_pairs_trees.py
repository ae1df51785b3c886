"""Trees, of one file or of many, become pairs of their words and themselves."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from nmt.data.pairs import read_pairs
from nmt.recipe import Data, Dataset


def read_trees(root: Path, name: str, **settings: Any) -> list[tuple[str, str]]:
    dataset = Dataset(trees=name)
    data = Data(name="x", root=str(root), source="en", target="tree", train=(dataset,), **settings)
    return list(read_pairs(dataset, data))


BROKEN_OVER_LINES = """\
( (S (NP-SBJ-1 (-LRB- -LRB-) (NN tree) (-RRB- -RRB-))
     (VP (VBZ grows) (NP (-NONE- *T*-1)))) )   (ROOT (NP (NNS trees)))
"""


def test_a_tree_is_the_pair_of_its_words_and_itself_on_one_line(tmp_path: Path) -> None:
    for name, content in (("a.mrg", BROKEN_OVER_LINES.encode()), ("a.gz", gzip.compress(BROKEN_OVER_LINES.encode()))):
        (tmp_path / name).write_bytes(content)
        assert read_trees(tmp_path, name) == [
            ("-LRB- tree -RRB- grows", "(TOP (S (NP (-LRB- -LRB-) (NN tree) (-RRB- -RRB-)) (VP (VBZ grows))))"),
            ("trees", "(TOP (NP (NNS trees)))"),
        ]


def test_functional_tags_and_traces_may_be_kept(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(BROKEN_OVER_LINES)
    assert "(NP-SBJ-1 " in read_trees(tmp_path, "a", functional_tags=True)[0][1]
    source, target = read_trees(tmp_path, "a", traces=True)[0]
    assert source.endswith("grows *T*-1")
    assert "(NP (-NONE- *T*-1))" in target


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("0[2-4]", ["two", "three"]),
        ("0[2-4]/*.mrg", ["three"]),
        ("0[2-4]/*", ["two", "no", "three"]),
        ("**/*.mrg", ["one", "two", "three", "four"]),
        ("02", ["two"]),
        (".", ["one", "two", "three", "four"]),
        ("[04]*", ["one", "two", "three"]),  # a folder of this name is not meant
        ("[09]*", ["four"]),  # and of this it is, being there
    ],
)
def test_folders_and_patterns_give_their_files_in_order(tmp_path: Path, name: str, words: list[str]) -> None:
    root = tmp_path / "root[1]"
    files = {"01/a.mrg": "one", "02/b/c.mrg": "two", "02/b.txt": "no", "03/d.mrg": "three", "[09]*/e.mrg": "four"}
    for file, word in files.items():
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text(f"(NP (NN {word}))")
    assert [source for source, _ in read_trees(root, name)] == words
