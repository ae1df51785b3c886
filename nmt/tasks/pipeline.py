"""How lines go through a search, for any task and engine: split ahead, searched, joined, and given out in order.

This module knows no model and imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from nmt.errors import UserError
from nmt.recipe import Decoding, Model
from nmt.search.feed import Engine, Feed, Hypothesis
from nmt.tasks.lines import Line, Part, ReadAhead, Request, Wanted
from nmt.tasks.output import LineResult

if TYPE_CHECKING:
    from nmt.search.constraints import MakeConstraint

Result = TypeVar("Result", bound=LineResult)


class Task(Protocol[Result]):
    """How lines become sources of a search, and its hypotheses results."""

    annotated: bool
    """Whether hypotheses need alignments and log-probabilities of their symbols."""
    warnings: Mapping[str, Callable[[Result], int]]
    """Functions that count how often something is wrong with a result, by the name of the warning."""

    def constraints(self, decoding: Decoding) -> list[MakeConstraint]:
        """Return the rules for outputs of a search."""
        ...

    def split(self, request: Request) -> list[Part]:
        """Return the parts of a line that are searched, none for a blank line; another thread calls `join`."""
        ...

    def pair(self, source: str, output: str) -> tuple[list[int], list[int]]:
        """Encode a line, which is left whole, and an output of it.

        Raises UserError if the line is too long for that, or if the output is none of this task.
        """
        ...

    def join(self, line: Line, wanted: Wanted) -> Result:
        """Join what was found for the parts of a line: the outputs that are wanted, or fewer different ones.

        A line without parts has empty outputs.
        """
        ...

    def as_json(self, number: int, result: Result) -> str:
        """Show all that is known of the result of input line `number` as one JSON object on a line."""
        ...


class Pipeline(Generic[Result]):
    """A task and an engine: lines in, results out."""

    def __init__(self, task: Task[Result], decoding: Decoding, engine: Engine, positions: int | None = None) -> None:
        """`positions` is what `longest_served` returns for the models of the engine."""
        self.decoding, self.engine = decoding, engine
        self._task, self._positions = task, positions

    def stream(
        self, lines: Iterable[str | Request], n_best: int = 1, sample: int | None = None
    ) -> Generator[Result, None, None]:
        """Search lines as they come, in bounded memory; yields a result for each, in order.

        A result has up to `n_best` different outputs, or as many as `sample` says, which are drawn at random.
        An error of the engine is raised at once; one of reading the lines after the results of the lines before it.
        """
        return (result for group in self.groups(lines, n_best, sample=sample) for result in group)

    def groups(
        self,
        lines: Iterable[str | Request],
        n_best: int = 1,
        searched: Callable[[int], None] = lambda tokens: None,
        sample: int | None = None,
    ) -> Generator[list[Result], None, None]:
        """Do as `stream` does, but yield the results together that are ready at the same time.

        As soon as a line that is not blank is done, in any order, `searched` is called with the number of symbols of
        its best output or of all samples, `</s>` included.
        """
        if sample is not None:
            if sample < 1:
                raise UserError(f"sample: must be at least 1 (got {sample})", "leave it out to search for the best")
            return self._groups(lines, Wanted(sample, samples=True), searched)
        if n_best > self.decoding.beam:
            raise UserError(
                f"n-best {n_best} needs a beam at least as wide (got {self.decoding.beam})", f"use --beam {n_best}"
            )
        return self._groups(lines, Wanted(n_best), searched)

    def pair(self, source: str, output: str | None = None) -> tuple[list[int], list[int]]:
        """Return the symbols of a sentence and of its `output`, or of the best one that is found; neither has `</s>`.

        Raises UserError if the sentence is blank or too long, or if the search splits it.
        """
        if output is not None:
            pairs = [self._task.pair(source, output)]
        else:
            pairs = next(self.stream([source])).pairs
            if len(pairs) > 1:
                raise UserError(
                    f"the line was split into {len(pairs)} parts, which were searched one by one: {source[:60]} …",
                    "give one sentence at a time",
                )
        if not pairs or not pairs[0][0]:
            raise UserError("the line is blank", "give a sentence")
        longest = self._cap(self.decoding.max_source)
        if len(pairs[0][1]) >= longest:
            raise UserError(
                f"the output has {len(pairs[0][1]):,} symbols, and a search makes fewer than {longest:,}",
                "give the output of one sentence",
            )
        return pairs[0]

    def _groups(
        self, lines: Iterable[str | Request], wanted: Wanted, searched: Callable[[int], None]
    ) -> Generator[list[Result], None, None]:
        ahead = ReadAhead(lines, self._task.split, self._cap)
        search = None
        try:
            while ahead.wait():
                if due := ahead.due():  # blank lines, for which no engine has to begin a search
                    yield [self._task.join(line, wanted) for line in due]
                    continue
                search = self._search(ahead, wanted)
                for number, hypotheses in search:
                    line = ahead.put(number, hypotheses)
                    if not line.missing:
                        searched(wanted.tokens(line))
                    if due := ahead.due():
                        yield [self._task.join(line, wanted) for line in due]
        finally:
            ahead.close()  # first, since an engine may be waiting for it
            if search is not None:
                search.close()

    def _search(self, feed: Feed, wanted: Wanted) -> Generator[tuple[int, list[Hypothesis]], None, None]:
        if wanted.samples:
            return self.engine.sample(feed, wanted.count)
        # Several hypotheses may be the same text; then those behind them in the beam are needed.
        return self.engine.search(feed, 1 if wanted.count == 1 else self.decoding.beam)

    def _cap(self, length: int) -> int:
        """Return the most symbols that the output for an input of so many subwords may have."""
        cap = length + self.decoding.max_extra
        return cap if self._positions is None else min(cap, self._positions)


def longest_served(models: Iterable[Model], decoding: Decoding) -> int | None:
    """Return the longest sequence, in positions, that every model serves; None if all serve any length.

    Raises UserError if decoding.max_source is not below it.
    """
    positions = min((model.max_positions for model in models if model.positions == "learned"), default=None)
    if positions is not None and decoding.max_source >= positions:
        raise UserError(
            f"decoding.max_source: must be below model.max_positions {positions} of this model "
            f"(got {decoding.max_source})",
            f"--set decoding.max_source={positions - 1}; longer inputs are split",
        )
    return positions
