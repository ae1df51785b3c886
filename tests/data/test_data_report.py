"""Nearness of the sources of valid and test to the training data."""

from __future__ import annotations

import random

import pytest
from prepared import OUT, QUIET, recipe, report, write

from nmt.data.corpus import concatenate
from nmt.data.data_report import Overlap, near_lines
from nmt.data.prepare import prepare
from nmt.system.errors import UserError


def test_a_source_shares_the_ngrams_that_training_has() -> None:
    """Symbols 10 to 19 begin a word, 20 to 29 go on with it."""
    starts = [number < 20 for number in range(30)]
    evaluation = concatenate([[10, 11, 12, 13, 14], [10, 21, 11, 12, 13], [10, 11], [11, 10], []])
    overlap = Overlap(starts, evaluation)
    overlap.add(concatenate([[15, 10, 11, 12, 13, 16], [10, 11], [13]]))
    overlap.add(concatenate([[10, 21, 11, 12], [13]]))  # no n-gram crosses from one sentence into the next
    assert overlap.shares().tolist() == [0.5, 0, 1, 0, 0]


@pytest.mark.usefixtures("workplace")
@pytest.mark.parametrize("spaced", [True, False])
def test_near_lines_are_found_by_the_references_of_a_split(spaced: bool) -> None:
    """Of lines without spaces by what is smaller than a line."""
    draw = random.Random(1)
    words = [chr(0x4E00 + number) for number in range(60)]
    lines = [(" " if spaced else "").join([*draw.choices(words, k=20), "。"]) for _ in range(101)]
    write("a.en", lines[:100])
    write("a.de", lines[:100])
    write("t.en", [lines[0][:-1] + words[0], lines[1][:20] + "。", lines[100]])
    write("t.de", ["eins", " zwei ", "drei"])
    prepare(recipe(tokenizer={"vocab_size": 380}), QUIET, 1)
    assert near_lines(OUT, ["eins", "zwei", "drei"]) == [True, True, False]
    assert report("test")["near to training"] == 2
    with pytest.raises(UserError, match="REF is not the target side of valid or test"):
        near_lines(OUT, ["eins", "zwei", "vier"])
