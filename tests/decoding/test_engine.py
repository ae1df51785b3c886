"""Sources that wait for an engine, and how far lines are read ahead; the rest is tested with the pipeline."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from nmt.decoding import engine as reading
from nmt.decoding.engine import Pool, ReadAhead, Source


def test_without_waiting_nothing_is_given_that_does_not_fit() -> None:
    def sources() -> Pool:
        return Pool([Source(0, [1, 2, 3], 9), Source(1, [1], 9), Source(2, [1], 9)])

    assert sources().take(3, at_least=0) == []
    assert [source.number for source in sources().take(3, at_least=1)] == [0]
    assert [source.number for source in sources().take(8, at_least=0)] == [0, 1]
    pool = sources()
    assert [source.number for source in pool.take(1000, at_least=1)] == [0, 1, 2]
    assert not pool
    assert pool.take(1000, at_least=1) == []


def test_a_slow_input_is_not_read_further_ahead_than_a_fast_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("PATIENCE", 0.0), ("LARGEST_WINDOW", 64), ("IN_FLIGHT", 192)):
        monkeypatch.setattr(reading, name, value)
    begun, over, taken = threading.Event(), threading.Event(), list[Source]()

    def trickle() -> Iterator[str]:
        begun.wait()
        for _ in range(1000):
            taken.extend(ahead.take(1000, wait=False))  # by an engine that has room, while the input keeps it waiting
            yield "a line"
        over.set()

    with ReadAhead(trickle(), lambda request: [Source(0, [1], 1)]) as ahead:
        begun.set()
        assert not over.wait(0.3)  # since nothing is given out
        assert len(taken) <= 192
        given = 0
        while given < 1000:  # and then all is
            taken.extend(ahead.take(1000, wait=False))
            while taken:
                ahead.put(taken.pop().number, [])
            given += len(ahead.due())
