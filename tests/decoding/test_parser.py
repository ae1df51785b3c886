"""Lines as words and parts, and what becomes of symbols that are trees or not; with engines that only say symbols."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Generator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from engines import Characters, Found, Searched

from nmt.decoding.engine import Request
from nmt.decoding.parser import Parse, Parser, words_of
from nmt.parsing.linearization import MARK, WORD, TreeVocabulary
from nmt.recipe import Decoding
from nmt.search.sources import Hypothesis, Source, SourceQueue

TREES = TreeVocabulary.train(["(TOP (S (NP (DT the) (NN dog)) (VP (VBZ barks)) (. .)))"])


class Words(Characters):
    """Characters, all of a word at once."""

    def encode_all(self, texts: list[str]) -> list[list[int]]:
        return [self.encode(text) for text in texts]


class Saying:
    """Finds for each source what `say` has of it, best first."""

    def __init__(self, say: Callable[[Source], list[str]]) -> None:
        self.say = say
        self.sources: list[Source] = []

    def search(self, queue: SourceQueue, n_best: int, sample: bool = False) -> Generator[Found, None, None]:
        while batch := queue.take_sources(1000, wait=True):
            self.sources += batch
            for source in batch:
                found = [Hypothesis(ids_of(text), -1.0 - n, True) for n, text in enumerate(self.say(source)[:n_best])]
                yield source.number, found


def ids_of(linear: str) -> list[int]:
    """(NP XX )NP as ids."""
    return [TREES.listing().index(symbol) for symbol in linear.split()]


def parser(engine: Any = None, **settings: Any) -> Parser:
    tokenizer: Any = SimpleNamespace(source=Words(), target=TREES, older=None)
    return Parser(Searched(engine), tokenizer, Decoding(**settings))


def parses(engine: Saying, lines: list[str], n_best: int = 1, **settings: Any) -> list[Parse]:
    return list(parser(engine, **settings).stream(lines, n_best))


def flat(source: Source) -> list[str]:
    return [f"(S {'XX ' * source.words})S"]


# --- words --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("The cat sleeps .", ["The", "cat", "sleeps", "."]),
        ("  two \t\t tabs\r\x0b\x0c", ["two", "tabs"]),
        ("a\u00a0b c\u2028d e\u3000f \x85 \x1c", ["a\u00a0b", "c\u2028d", "e\u3000f", "\x85", "\x1c"]),
        ("\x00 \ufeffx", ["\x00", "\ufeffx"]),
        ("x\ud800y", ["x?y"]),
        (" \t", []),
    ],
)
def test_words_are_what_ascii_whitespace_parts(line: str, words: list[str]) -> None:
    assert words_of(line) == words


def test_brackets_of_words_are_read_and_written_as_a_treebank_spells_them() -> None:
    engine = Saying(flat)
    (parse,) = parses(engine, ["( a(b)"])
    assert Characters().decode(engine.sources[0].ids) == "-LRB-a-LRB-b-RRB-"
    assert parse.texts == ["(TOP (S (XX -LRB-) (XX a-LRB-b-RRB-)))"]


def test_a_source_tells_its_words_and_leaves_room_for_more() -> None:
    engine = Saying(flat)
    parses(engine, ["ab c . "], max_extra=7)
    assert [(source.words, source.cap) for source in engine.sources] == [(3, 4 + 7)]


# --- long lines ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("abc de", [("abcde", 2)]),
        ("abc def", [("abc", 1), ("def", 1)]),
        ("a b c d e f", [("abcde", 5), ("f", 1)]),
        ("abcde f", [("abcde", 1), ("f", 1)]),
        ("a bcdefgh i", [("a", 1), ("bcdef", 1), ("i", 1)]),
        ("abcdefgh", [("abcde", 1)]),
    ],
)
def test_long_lines_are_split_between_words_and_long_words_are_cut(line: str, parts: list[tuple[str, int]]) -> None:
    found = parser(max_source=5).split(Request(line))
    assert [(Characters().decode(part.ids), part.words) for part in found] == parts


def test_parts_know_the_kinds_of_their_words() -> None:
    parts = parser(max_source=5).split(Request("the dog . ) ."))
    assert [(part.words, part.kinds) for part in parts] == [(1, [WORD]), (2, [WORD, MARK]), (1, [WORD]), (1, [MARK])]


def test_parts_have_one_root_and_all_the_words() -> None:
    (parse,) = parses(Saying(flat), ["ab c def longest x"], max_source=4)
    assert parse.texts == ["(TOP (S (XX ab) (XX c)) (S (XX def)) (S (XX longest)) (S (XX x)))"]
    assert (parse.parts, parse.cut, parse.scores) == (4, 1, [-4.0])
    assert Characters().decode(parse.source) == "abcdeflongx"
    assert TREES.decode(parse.ids[0]) == "(S XX XX )S (S XX )S (S XX )S (S XX )S"


# --- what the engine says -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("The cat did n't sleep , Mr. Smith 's dog did ( etc . )", 0),
        ('"The cat" isn\'t here, Mr. Smith.', 3),
        ("It’s we're , the cat?  \t", 3),
    ],
)
def test_words_that_are_several_tokens_are_counted(line: str, count: int) -> None:
    (parse,) = parses(Saying(flat), [line])
    assert parse.untokenised == count


def test_hypotheses_are_ranked_and_each_tree_stands_once() -> None:
    def say(source: Source) -> list[str]:
        return ["(S XX )S", "(S XX )S", "(NP XX )NP"]

    (parse,) = parses(Saying(say), ["."], n_best=3)
    assert parse.texts == ["(TOP (S (. .)))", "(TOP (NP (. .)))"]
    assert parse.scores == [-1.0, -3.0]


def test_json_tells_all_of_a_parse_in_one_line() -> None:
    serve = parser(Saying(flat))
    (parse,) = serve.stream(["ab ."])
    line = serve.as_json(3, replace(parse, texts=[*parse.texts, ""], scores=[-0.25, -math.inf], ids=[*parse.ids, []]))
    assert "\n" not in line
    assert json.loads(line) == {
        "line": 3,
        "source": ["a", "b", "."],
        "hypotheses": [
            {"tree": "(TOP (S (XX ab) (. .)))", "score": -0.25, "tokens": ["(S", "XX", "XX", ")S"]},
            {"tree": None, "score": None, "tokens": []},
        ],
        **{"parts": 1, "capped": False, "unknown": 0, "cut": 0, "untokenised": 0},
    }
