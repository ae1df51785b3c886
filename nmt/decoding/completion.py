"""An engine that completes what a search finds: terms and kept text, alignments and log-probabilities.

A search knows nothing of these. Its results wait until they fill a batch or no other work is left. Sources whose text
to keep was garbled go back to the search, without that text.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial

from nmt.compute.choice import for_scoring
from nmt.decoding.forced import annotate
from nmt.decoding.placement import Placer
from nmt.model.transformer import Transformer
from nmt.recipe import Decoding
from nmt.search.beam import SearchEngine
from nmt.search.constraints import MakeConstraint
from nmt.search.sources import Found, Hypothesis, Pool, Source, SourceQueue

HELD = 4096  # source and output tokens to collect before completing


class Completion:
    """`Engine` whose hypotheses have their sources' phrases and, if `annotated`, alignments and log-probabilities."""

    def __init__(
        self,
        models: Sequence[Transformer],
        decoding: Decoding,
        constraints: Sequence[MakeConstraint],
        say: Callable[[str], None],
        annotated: bool,
        placer: Callable[[Sequence[Transformer]], Placer],
    ) -> None:
        """Prepare the models as `SearchEngine` does; `placer` makes the object that puts phrases into results."""
        scorers = list(map(for_scoring, models))
        self._annotate = partial(annotate, scorers) if annotated else None
        self._placer = placer(scorers)
        self.engine = SearchEngine(models, decoding, constraints, say, self._wants_others)

    def search(
        self, queue: SourceQueue, n_best: int, sample: bool = False
    ) -> Generator[tuple[int, list[Hypothesis]], None, None]:
        """Search as `Engine.search` does."""
        waiting = _Waiting(queue)
        while not waiting.is_over:
            for found in self.engine.rounds(waiting, n_best, sample):
                for source, hypotheses in found:
                    if self._completes(source, hypotheses):
                        waiting.held.append((source, hypotheses))
                    else:
                        yield source.number, hypotheses
                if waiting.is_due():
                    yield from self._complete(waiting, n_best, sample)
            yield from self._complete(waiting, n_best, sample)

    def rest(self) -> None:
        """Free what the last search left, as `SearchEngine.rest` does."""
        self.engine.rest()

    def _complete(
        self, waiting: _Waiting, n_best: int, sample: bool
    ) -> Generator[tuple[int, list[Hypothesis]], None, None]:
        found = waiting.held
        waiting.held = []
        if not sample and found:
            found, again = self._placer.place(found, n_best)
            waiting.again.add(again)
        if self._annotate and found:
            found = self._annotate(found)
        for source, hypotheses in found:
            yield source.number, hypotheses

    def _wants_others(self, source: Source, best: Sequence[Hypothesis]) -> bool:
        """Return whether other hypotheses may serve a source better than its best ones."""
        return not any(self._placer.copies(source, each) for each in best)

    def _completes(self, source: Source, hypotheses: Sequence[Hypothesis]) -> bool:
        """Return whether what a search finds for a source is to be completed."""
        if not hypotheses:
            return False
        needs = self._annotate or source.phrases or source.whole or source.aligned
        return bool(needs) or self._placer.mends(source) or self._wants_others(source, hypotheses)


class _Waiting:
    """`SourceQueue` that gives first what is to be searched again."""

    def __init__(self, queue: SourceQueue) -> None:
        self._queue = queue
        self.again = Pool()  # sources to search again
        self.held: list[Found] = []  # results to complete
        self.is_over = False  # whether the queue has ended
        self._is_starved = False  # whether the queue had nothing when last asked

    def is_due(self) -> bool:
        """Return whether what is held fills a batch, or the queue has nothing more for now."""
        tokens = 0
        for source, hypotheses in self.held:
            tokens += sum(len(source.ids) + len(each.ids) for each in hypotheses)
        return bool(self.held) and (self._is_starved or tokens >= HELD)

    def take_sources(self, tokens: int, wait: bool) -> list[Source]:
        """Remove and return sources as in `SourceQueue`; [] also ends a search after which results are completed."""
        if self.again:
            return self.again.take_sources(tokens, at_least=int(wait))
        if wait and self.held:
            return []
        taken = self._queue.take_sources(tokens, wait)
        self._is_starved = not taken
        self.is_over = wait and not taken
        return taken
