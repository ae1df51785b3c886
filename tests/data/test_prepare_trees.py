"""Treebanks to a prepared directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prepared import OUT, report, table

from nmt.data.prepare import prepare
from nmt.parsing.linearization import load_tokenizer
from nmt.recipe import Recipe
from nmt.system.console import Console

pytestmark = pytest.mark.usefixtures("workplace")


TREES = """\
( (S (NP-SBJ (DT the) (NN dog))
     (VP (VBZ sees) (NP (DT a) (NN tree)))
     (. .)) )
( (S (NP-SBJ (-NONE- *)) (VP (VB look) (NP-PRD (-NONE- *T*-1))) (. !)) )
( (NP (-NONE- *)) )
"""


def tree_recipe(**data: Any) -> Recipe:
    """A parser's recipe on files of trees that `treebank` writes."""
    sets = {"train": [{"trees": "a.mrg"}], "valid": [{"trees": "v.mrg"}]}
    return Recipe.model_validate(
        {
            "name": "x",
            "data": {"name": "x", "source": "en", "target": "tree", **sets, **data},
            "tokenizer": {"vocab_size": 286},
        }
    )


@pytest.fixture
def treebank(workplace: None) -> None:
    Path("a.mrg").write_text(TREES * 40)
    Path("v.mrg").write_text(TREES + "(TOP (INTJ (UH oh)))")


@pytest.mark.usefixtures("treebank")
def test_trees_become_words_and_symbols(capsys: pytest.CaptureFixture[str]) -> None:
    prepare(tree_recipe(), Console(), 1)
    assert {path.name for path in OUT.iterdir()} >= {"source.model", "tree.json"}
    tokenizer = load_tokenizer(OUT)
    rows = table("train")
    assert rows["source"][0].as_py() == tokenizer.source.encode("the dog sees a tree .")
    symbols = tokenizer.target.decode(rows["target"][0].as_py())
    assert symbols == "(S (NP XX XX )NP (VP XX (NP XX XX )NP )VP XX )S"
    assert tokenizer.target.decode(rows["target"][1].as_py()) == "(S (VP XX )VP XX )S"
    # those without words are dropped, but kept for evaluation
    train, valid = report("train"), report("valid")
    assert (train["read"], train["kept"], train["dropped as empty"]) == (120, 80, 40)
    assert table("train")["line"].to_pylist()[:3] == [1, 2, 4]
    assert (valid["read"], valid["kept"]) == (4, 4)
    texts = table("valid").select(["source_text", "target_text"]).to_pylist()
    assert texts[1] == {"source_text": "look !", "target_text": "(TOP (S (VP (VB look)) (. !)))"}
    assert texts[2] == {"source_text": "", "target_text": ""}
    assert valid["trees with a label unseen in training"] == 1
    assert "trees with a label unseen in training" not in train
    err = capsys.readouterr().err
    for said in (
        "286 pieces and 11 tree symbols",
        "train: 80 of 120 trees, ",
        "tree symbols out",
        "1 trees with a label",
        "dropped as empty: a.mrg:5: ( (NP (-NONE- *))); also a.mrg:10, a.mrg:15\n",
        "pairs kept though empty: v.mrg:5: ( (NP (-NONE- *)))\n",
    ):
        assert said in err
