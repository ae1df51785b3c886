"""The way of a line through a search, whatever searches and whatever it becomes: split ahead, search, join, in order.

Knows no model and imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Generic, Protocol, TypeVar

from nmt.errors import UserError
from nmt.recipe import Decoding, Model
from nmt.search.feed import Engine
from nmt.tasks.lines import Line, Part, ReadAhead
from nmt.tasks.output import LineResult
from nmt.text.linear import TreeVocabulary

Result = TypeVar("Result", bound=LineResult)


class Task(Protocol[Result]):
    """What a line is to a search, and what becomes of it."""

    aligned: bool
    """Whether hypotheses are to have alignments."""
    only_trees: TreeVocabulary | None
    """The symbols of trees where every output has to be one."""
    warnings: Mapping[str, Callable[[Result], int]]
    """What may be amiss with a result, by what it is called: how often it is in one."""

    def split(self, text: str) -> list[Part]:
        """The parts of a line that are searched, none of a blank one; another thread asks than for `join`."""
        ...

    def join(self, line: Line, n_best: int) -> Result:
        """What was found for all parts of a line as one result: its best `n_best` outputs that differ, or fewer; for a
        line without parts an empty one."""
        ...

    def as_json(self, number: int, result: Result) -> str:
        """All that is known of the result of input line `number`, as one JSON object on a line."""
        ...


class Pipeline(Generic[Result]):
    """A task and an engine: lines in, results out."""

    def __init__(self, task: Task[Result], decoding: Decoding, engine: Engine, positions: int | None = None) -> None:
        """`positions` are what `longest_served` gives for the engine's models."""
        self.decoding, self.engine = decoding, engine
        self._task, self._positions = task, positions

    def stream(self, lines: Iterable[str], n_best: int = 1) -> Generator[Result, None, None]:
        """Searches lines as they come, in bounded memory; a result for each, in order.

        Raises what reading the lines raised once those before are done, and at once what the engine raises.
        """
        return (result for group in self.groups(lines, n_best) for result in group)

    def groups(
        self, lines: Iterable[str], n_best: int = 1, searched: Callable[[int], None] = lambda tokens: None
    ) -> Generator[list[Result], None, None]:
        """As `stream`, those together that can be given out at the same time.

        `searched` is told of each line that is not blank as soon as it is done, in whatever order: the symbols of
        its best output, `</s>` counted.
        """
        if n_best > self.decoding.beam:
            raise UserError(
                f"n-best {n_best} needs a beam at least as wide (got {self.decoding.beam})", f"use --beam {n_best}"
            )
        return self._groups(lines, n_best, searched)

    def _groups(
        self, lines: Iterable[str], n_best: int, searched: Callable[[int], None]
    ) -> Generator[list[Result], None, None]:
        ahead = ReadAhead(lines, self._task.split, self._cap)
        search = None
        try:
            while ahead.wait():
                if due := ahead.due():  # blank lines, for which no engine has to begin a search
                    yield [self._task.join(line, n_best) for line in due]
                    continue
                # Several hypotheses may be one text, and then those behind them in the beam are wanted.
                search = self.engine.search(ahead, 1 if n_best == 1 else self.decoding.beam)
                for number, hypotheses in search:
                    line = ahead.put(number, hypotheses)
                    if not line.missing:
                        searched(line.tokens())
                    if due := ahead.due():
                        yield [self._task.join(line, n_best) for line in due]
        finally:
            ahead.close()  # first, since an engine may be waiting for it
            if search is not None:
                search.close()

    def _cap(self, length: int) -> int:
        """Most symbols of the output for an input of so many subwords."""
        cap = length + self.decoding.max_extra
        return cap if self._positions is None else min(cap, self._positions)


def longest_served(models: Iterable[Model], decoding: Decoding) -> int | None:
    """The longest sequence, in positions, that each of the models serves; None where all serve any.

    Raises UserError where it is not above decoding.max_source.
    """
    positions = min((model.max_positions for model in models if model.positions == "learned"), default=None)
    if positions is not None and decoding.max_source >= positions:
        raise UserError(
            f"decoding.max_source: must be below model.max_positions {positions} of this model "
            f"(got {decoding.max_source})",
            f"--set decoding.max_source={positions - 1}; longer inputs are split",
        )
    return positions
