"""What is counted of a search, and in which line each warning was first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nmt.commands import streams as counts
from nmt.commands.streams import Statistics
from nmt.decoding.translator import Translation, Translator
from nmt.recipe import Decoding
from nmt.system.errors import UserError
from nmt.text.terms import Phrase

PLAIN = Translation(
    texts=["fox"],
    scores=[-0.125],
    ids=[[1]],
    alignments=[[0]],
    log_probabilities=[[-0.5]],
    source=[7],
    parts=1,
    capped=False,
    unknown=0,
    pairs=[([7], [1])],
    unusual_length=False,
    kept_from_repeating=False,
    missing=[],
)
BLANK = replace(PLAIN, texts=[""], parts=0)


def test_statistics_know_where_each_problem_was_first(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 10.0
    monkeypatch.setattr(counts.time, "monotonic", lambda: now)
    statistics = Statistics("searching", Translator.warnings(Decoding()))
    assert list(statistics.timed(iter(["a line"]))) == ["a line"]
    now = 12.0
    split, capped, odd = replace(PLAIN, parts=3), replace(PLAIN, capped=True, parts=2), replace(PLAIN, unknown=5)
    empty = replace(PLAIN, texts=[" "], unusual_length=True, missing=[Phrase("fox", ("Fuchs", "Füchsin"))])
    assert empty.complaints == ["missing: fox → Fuchs | Füchsin"]
    for translation in [PLAIN, BLANK, split, capped, odd, odd, empty]:
        statistics.add(translation)
        statistics.searched(1000)
    assert statistics.summary() == (
        "7 sentences, 3,500 tokens/s; caps hit 1, inputs split 2, unknown characters 10, empty outputs 1, "
        "unusual lengths 1, missing terms 1"
    )
    with pytest.raises(UserError) as error:
        statistics.check()
    assert error.value.message == (
        "--strict: caps hit 1 (first in line 4), inputs split 2 (first in line 3), "
        "unknown characters 10 (first in line 5), empty outputs 1 (first in line 7), "
        "unusual lengths 1 (first in line 7), missing terms 1 (first in line 7)"
    )
