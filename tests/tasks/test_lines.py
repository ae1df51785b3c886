"""Sources that wait for an engine; the rest of a feed is tested with the pipeline."""

from __future__ import annotations

from nmt.search.feed import Pool, Source


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
