"""Feeds of sources for engines that are tested without a pipeline."""

from __future__ import annotations

from collections.abc import Sequence

from nmt.search.sources import Pool, Source


class Pile:
    """A queue that holds all its sources from the beginning."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self.pool = Pool(sources)

    def take_sources(self, tokens: int, wait: bool) -> list[Source]:
        """The longest sources that fit into `tokens`; at least one if waited for."""
        return self.pool.take_sources(tokens, at_least=int(wait))
