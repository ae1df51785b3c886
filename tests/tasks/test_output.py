"""Translations and parses as lines, and what the ledger says of them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from engines import Alphabet, Searched

from nmt.errors import UserError
from nmt.recipe import Decoding
from nmt.tasks.parser import Parse, Parser
from nmt.tasks.translator import Translation, Translator
from nmt.terminal import counts as ledgers
from nmt.terminal.counts import Statistics as Ledger
from nmt.terminal.searching import ranked
from nmt.text.terms import Phrase
from nmt.text.tree import parse_tree

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
)
EMPTY: dict[str, Any] = {"texts": [""], "scores": [0.0], "ids": [[]], "source": []}
EMPTY |= {"parts": 0, "capped": False, "unknown": 0, "pairs": []}
BLANK = Translation(
    **EMPTY, alignments=[[]], log_probabilities=[[]], unusual_length=False, missing=[], kept_from_repeating=False
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


def test_json_tells_all_of_a_parse_in_one_line() -> None:
    line = ParsingNumbers().as_json(3, CATS)
    assert "\n" not in line
    assert json.loads(line) == {
        "line": 3,
        "source": ["\u25817", "\u25818", "\u25819"],
        "hypotheses": [
            {"tree": str(TREE), "score": -0.25, "malformed": False, "tokens": ["\u25815", "\u25814"]},
            {"tree": None, "score": -1.0, "malformed": False, "tokens": ["\u25814"]},
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
    }


def test_the_ledger_counts_and_knows_where_each_problem_was_first(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 10.0
    monkeypatch.setattr(ledgers.time, "monotonic", lambda: now)
    ledger = Ledger("searching", Translator.warnings(Decoding()))
    assert list(ledger.timed(iter(["a line"]))) == ["a line"]
    now = 12.0
    split, capped, odd = replace(FOX, parts=3), replace(FOX, capped=True, parts=2), replace(FOX, unknown=5)
    empty = replace(FOX, texts=[" "], unusual_length=True, missing=[Phrase("fox", ("Fuchs", "Füchsin"))])
    assert empty.complaints == ["missing: fox → Fuchs | Füchsin"]
    for translation in [FOX, BLANK, split, capped, odd, odd, empty]:
        ledger.add(translation)
        ledger.searched(1000)
    assert ledger.summary() == (
        "7 sentences, 3,500 tokens/s; caps hit 1, inputs split 2, unknown characters 10, empty outputs 1, "
        "unusual lengths 1, missing terms 1"
    )
    with pytest.raises(UserError) as error:
        ledger.check()
    assert error.value.message == (
        "--strict: caps hit 1 (first in line 4), inputs split 2 (first in line 3), "
        "unknown characters 10 (first in line 5), empty outputs 1 (first in line 7), "
        "unusual lengths 1 (first in line 7), missing terms 1 (first in line 7)"
    )
