"""Pairs set aside for valid and test; nearness of sources to the training data."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from prepared import OUT, QUIET, recipe, report, sentences, table, write

from nmt.data.corpus import HELD_OUT, concatenate
from nmt.data.data_report import Overlap, near_lines
from nmt.data.prepare import prepare, take
from nmt.system.errors import UserError

PAIRS = [(f"source {number % 80}", f"target {number}") for number in range(100)]  # 20 sources come twice


def test_taken_pairs_have_distinct_sources_that_no_order_changes() -> None:
    found = take(PAIRS, {"valid": 10, "test": 20})
    sources = [pair[0] for split in found.values() for pair in split]
    assert len(set(sources)) == 30
    assert all(pair == next(each for each in PAIRS if each[0] == pair[0]) for pair in found["test"])
    shuffled = random.Random(1).sample(PAIRS, len(PAIRS))
    again = take(shuffled, {"valid": 10, "test": 20})
    assert {pair[0] for pair in again["test"]} == {pair[0] for pair in found["test"]}
    assert {pair[0] for pair in take([*PAIRS, ("new", "neu")], {"test": 20})["test"]} <= {
        *(pair[0] for pair in found["test"]),
        "new",
    }
    assert take(PAIRS, {"valid": 5, "test": 20})["test"] == found["test"]  # whatever valid takes
    assert len(take([*PAIRS, ("", "x"), ("x", ""), ("\ufffd", "x")], {"test": 100})["test"]) == 80


@pytest.mark.usefixtures("workplace")
def test_what_valid_and_test_take_is_not_trained_on() -> None:
    source, target = [*sentences(100, 1), *sentences(20, 1)], sentences(120, 2)
    write("a.en", source)
    write("a.de", target)
    prepare(recipe(data={"valid": {"take": 7}, "test": [{"take": 11}]}), QUIET, 1)
    texts = {split: table(split)["source_text"].to_pylist() for split in ("valid", "test")}
    assert [len(texts["valid"]), len(texts["test"])] == [7, 11]
    held = {*texts["valid"], *texts["test"]}
    assert len(held) == 18
    kept = [number for number, text in enumerate(source, 1) if text not in held]
    assert table("train")["line"].to_pylist() == kept
    assert report("train")[HELD_OUT] == 120 - len(kept)
    assert (OUT / "test.en").read_text().splitlines() == texts["test"]
    assert (OUT / "test.de").read_text().splitlines() == [target[source.index(text)] for text in texts["test"]]
    for wanted in (500, len(set(source))):  # something is to be left for training
        with pytest.raises(UserError, match=rf"data\.valid: take {wanted} sources, but data\.train has only"):
            prepare(recipe(data={"valid": {"take": wanted}}), QUIET, 1)
    assert not prepare(recipe(data={"valid": {"take": 7}, "test": [{"take": 11}]}), QUIET, 1).is_new
    assert prepare(recipe(data={"valid": {"take": 8}, "test": [{"take": 11}]}), QUIET, 1).is_new
    assert table("test")["source_text"].to_pylist() == texts["test"]


def test_a_source_shares_the_ngrams_that_training_has() -> None:
    """Symbols 10 to 19 begin a word, 20 to 29 go on with it."""
    starts = [number < 20 for number in range(30)]
    evaluation = concatenate([[10, 11, 12, 13, 14], [10, 21, 11, 12, 13], [10, 11], [11, 10], []])
    overlap = Overlap(starts, evaluation)
    overlap.add(concatenate([[15, 10, 11, 12, 13, 16], [10, 11], [13]]))
    overlap.add(concatenate([[10, 21, 11, 12], [13]]))  # no n-gram crosses from one sentence into the next
    assert overlap.shares().tolist() == [0.5, 0, 1, 0, 0]


@pytest.mark.usefixtures("workplace")
def test_lines_without_spaces_are_near_by_what_is_smaller_than_a_line() -> None:
    draw = random.Random(1)
    characters = [chr(0x4E00 + number) for number in range(60)]
    lines = ["".join(draw.choices(characters, k=20)) + "。" for _ in range(100)]
    write("a.en", lines)
    write("a.de", lines)
    write("t.en", [lines[0][:-2] + "一。", lines[1][:15] + "。", "".join(draw.choices(characters, k=20))])
    write("t.de", ["eins", "zwei", "drei"])
    prepare(recipe(tokenizer={"vocab_size": 400}), QUIET, 1)
    assert near_lines(OUT, ["eins", "zwei", "drei"]) == [True, True, False]


@pytest.mark.usefixtures("workplace")
def test_near_lines_are_found_by_the_references_of_a_split() -> None:
    known = (Path("a.en")).read_text().splitlines()[:2]
    write("t.en", [*known, "x x x x x"])
    write("t.de", ["eins", " zwei ", "drei"])
    prepare(recipe(), QUIET, 1)
    assert near_lines(OUT, ["eins", "zwei", "drei"]) == [True, True, False]
    assert report("test")["near to training"] == 2
    with pytest.raises(UserError, match="REF is not the target side of valid or test"):
        near_lines(OUT, ["eins", "zwei", "vier"])
