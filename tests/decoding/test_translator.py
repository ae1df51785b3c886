"""Translations and parses as lines."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from engines import Alphabet, Mirror, Searched, pipeline

from nmt.commands.translate import ranked
from nmt.decoding.parser import Parse, Parser
from nmt.decoding.translator import Translation, Translator
from nmt.parsing.tree import parse_tree
from nmt.recipe import Decoding

FOX = Translation(
    texts=['fox \u2028 "', "foxes"],
    scores=[-0.125, -2.0],
    ids=[[1, 2], [3]],
    alignments=[[1, 0], [1]],
    log_probabilities=[[-0.5, -0.123456], [-1.0]],
    source=[7, 8],
    parts=1,
    capped=False,
    unknown=0,
    pairs=[([7, 8], [1, 2])],
    unusual_length=False,
    kept_from_repeating=False,
    missing=[],
    lost=["3"],
    invented=[],
    deleted=[],
    loop="fox",
)
TREE = parse_tree("(TOP (S (NP (XX cats)) (VP (XX sleep)) (. .)))")
CATS = Parse(
    texts=[str(TREE), ""],
    trees=[TREE, None],
    scores=[-0.25, -1.0],
    ids=[[5, 4], [4]],
    source=[7, 8, 9],
    parts=1,
    capped=False,
    unknown=0,
    pairs=[([7, 8, 9], [5, 4])],
    cut=0,
)


class Numbers:
    def pieces(self, ids: list[int]) -> list[str]:
        return [f"\u2581{index}" for index in ids]


class Numbered(Alphabet):
    source = target = Numbers()  # type: ignore[assignment]


TOKENIZER: Any = Numbered()
ANNOTATING = Translator(Searched(None), TOKENIZER, Decoding(), annotated=True)


class ParsingNumbers(Parser):
    """Needs no vocabulary of trees, since it makes none."""

    def __init__(self) -> None:
        self.tokenizer = TOKENIZER


def test_ranked_lines_tell_number_rank_score_and_text() -> None:
    assert ranked(12, FOX) == '12\t1\t-0.1250\tfox \u2028 "\n12\t2\t-2.0000\tfoxes'
    assert ranked(1, replace(FOX, texts=[" fox  "], scores=[-1.0])) == "1\t1\t-1.0000\tfox"


def test_translations_have_the_spaces_at_the_ends_of_their_lines() -> None:
    lines = pipeline(Mirror()).stream(["  abc ", "\t", "\u3000abc"])
    assert [result.texts for result in lines] == [["  cba "], ["\t"], ["\u3000cba"]]


def test_json_tells_all_of_a_parse_in_one_line() -> None:
    line = ParsingNumbers().as_json(3, CATS)
    assert "\n" not in line
    assert json.loads(line) == {
        "line": 3,
        "source": ["\u25817", "\u25818", "\u25819"],
        "hypotheses": [
            {"tree": str(TREE), "score": -0.25, "tokens": ["\u25815", "\u25814"]},
            {"tree": None, "score": -1.0, "tokens": ["\u25814"]},
        ],
        "parts": 1,
        "capped": False,
        "unknown": 0,
        "cut": 0,
    }


def test_json_tells_all_in_one_line() -> None:
    line = ANNOTATING.as_json(3, FOX)
    assert "\n" not in line
    assert json.loads(line) == {
        "line": 3,
        "source": ["\u25817", "\u25818"],
        "hypotheses": [
            {
                "text": 'fox \u2028 "',
                "score": -0.125,
                "tokens": ["\u25811", "\u25812"],
                "alignment": [1, 0],
                "log_probabilities": [-0.5, -0.1235],
            },
            {"text": "foxes", "score": -2.0, "tokens": ["\u25813"], "alignment": [1], "log_probabilities": [-1.0]},
        ],
        "parts": 1,
        "capped": False,
        "unknown": 0,
        "unusual_length": False,
        "missing": [],
        "kept_from_repeating": False,
        "lost": ["3"],
        "invented": [],
        "deleted": [],
        "loop": "fox",
    }
