"""Pipeline from lines to results, for any task and engine: read ahead and split, search, join, return in order.

`Pipeline.stream` is its main loop. translator.py and parser.py define the tasks. This module itself imports no torch.
"""

from __future__ import annotations

import atexit
import json
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from operator import index
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NoReturn, Self, TypeVar
from weakref import WeakSet, finalize

from nmt.decoding import MOST_SAMPLES
from nmt.decoding.engine import ReadAhead, Request, SplitLine, Turns, most_positions
from nmt.decoding.workers import Loaded, MakeEngine, Models
from nmt.recipe import Decoding
from nmt.search.sources import Engine, Hypothesis, Source
from nmt.system.errors import UserError
from nmt.text.tokenizer import Direction, Tokenizer

if TYPE_CHECKING:
    from nmt.decoding.forced import Attention
    from nmt.model.transformer import Transformer

NOTHING = Hypothesis([], -math.inf, finished=True)  # in place of what a search did not find


@dataclass(frozen=True, kw_only=True)
class LineResult:
    """Result of one line, for any task."""

    texts: list[str]
    """Distinct output texts, best first, at most as many as requested; when sampling, all samples, unsorted."""
    scores: list[float]
    """Length-normalised log-probability of each output, in nats; for a split line, the sum over its parts. -inf if no
    output was found for one of them."""
    ids: list[list[int]]
    """Symbols of each output, joined across parts."""
    source: list[int]
    """Subwords of the line."""
    parts: int
    """Number of parts: 0 for a blank line, more than one for a split line."""
    capped: bool
    """Whether the best output was cut off at its cap."""
    unknown: int
    """Number of characters in the line for which the vocabulary has no subword."""
    pairs: list[tuple[list[int], list[int]]]
    """Each part's subwords and the symbols of its best output."""
    signs: Sequence[float] = ()
    """What the confidence of the best output follows from; none of a tree, of a blank line, and without an output."""
    origin: Any = None
    """What the line's `Request` had as its `origin`."""

    @property
    def failed(self) -> bool:
        """Whether the search found no output for the line, or for one of its parts."""
        return self.scores[0] == -math.inf

    @property
    def complaints(self) -> list[str]:
        """Messages that say what the best output lacks."""
        if self.failed:
            return ["no output: the model gives each a probability of 0, or no number"]
        return []

    @classmethod
    def of(cls, line: SplitLine, found: Sequence[tuple[str, int]], tokenizer: Tokenizer, **own: Any) -> Self:
        """Build a result from (text, rank) pairs, one per output; `own` holds the task's fields."""
        texts = []
        scores = []
        ids = []
        for text, rank in found:
            of_parts = line.of_rank(rank)
            texts.append(text)
            scores.append(sum((each.score for each in of_parts), 0.0))
            ids.append(_joined(of_parts))
        pairs = []
        is_capped = False
        for part, best in line.best:
            pairs.append((part.ids, best.ids))
            is_capped = is_capped or not best.finished
        source = _joined(line.parts)
        return cls(
            texts=texts,
            scores=scores,
            ids=ids,
            source=source,
            parts=len(line.parts),
            capped=is_capped,
            unknown=tokenizer.source.count_unknown(source),
            pairs=pairs,
            origin=line.request.origin,
            **own,
        )


def _joined(parts: Sequence[Source | Hypothesis]) -> list[int]:
    """Return the symbols of all parts of a line, or of their hypotheses."""
    ids = list[int]()
    for part in parts:
        ids += part.ids
    return ids


Result = TypeVar("Result", bound=LineResult)
_open_streams = WeakSet[Generator[Any, None, None]]()


@atexit.register
def _close_streams() -> None:
    """Close open streams at exit, while their threads still run: one that Python stops may hold a lock for ever."""
    for stream in list(_open_streams):
        with suppress(ValueError):  # it runs in another thread
            stream.close()


class Pipeline(ABC, Generic[Result]):
    """Base class of `Translator` and `Parser`, which define how lines are split and results are joined.

    As a context manager, it ends its workers on exit; otherwise they end when it is closed or garbage-collected.
    """

    warnings: ClassVar[Mapping[str, Callable[[Any], int]]]
    """Functions that count the occurrences of each warning in a result."""

    def __init__(
        self,
        models: Transformer | Sequence[Transformer] | Models,
        tokenizer: Tokenizer,
        decoding: Decoding,
        make: MakeEngine,
    ) -> None:
        """Search with a model or an ensemble, in this process or as `models` specifies.

        `make` makes the engine from models in memory. Raise UserError if decoding.max_source exceeds what a model
        supports, or if the engine cannot be made.
        """
        self.tokenizer = tokenizer
        self.decoding = decoding
        self._process = os.getpid()
        given = models if isinstance(models, Models) else Loaded(models)
        self._count = len(given.configs)
        self._load_model = cache(given.only)
        self._positions = most_positions(given.configs)
        if decoding.max_source >= self._positions:
            raise UserError(
                f"decoding.max_source: must be below model.max_positions {self._positions} of this model "
                f"(got {decoding.max_source})",
                f"--set decoding.max_source={self._positions - 1}; longer inputs are split",
            )
        self._turns = Turns()
        self._opened = ExitStack()  # engines, which end with it
        self.engine = self._opened.enter_context(given.open(make))
        self._end = finalize(self, self._opened.close)

    def _check_process(self) -> None:
        """Raise UserError in a fork of the process that made the pipeline: it lacks that one's threads and workers."""
        if os.getpid() != self._process:
            problem = f"this model was loaded in process {self._process}, and cannot be used in a fork of it"
            raise UserError(problem, "load it after the fork, in each process, or start processes by the method spawn")

    def close(self) -> None:
        """End the workers, if any."""
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        """Raise UserError: threads and workers cannot be pickled, as `multiprocessing` tries."""
        raise UserError("a model cannot be pickled, and so not be sent to another process", "load it in each process")

    # --- the way of a line

    def stream(
        self,
        lines: Iterable[str | Request],
        n_best: int = 1,
        sample: int | None = None,
        searched: Callable[[int], None] = lambda tokens: None,
        before: int = 0,
    ) -> Generator[Result, None, None]:
        """Process lines as they arrive, in bounded memory; yield one result per line, in order.

        Each result has up to `n_best` distinct outputs, or `sample` random ones. Errors from the engine are raised
        immediately, errors from reading `lines` after the results of all preceding lines. They number the lines after
        the `before` first ones of the input, which are not among `lines`. `searched` is called as soon as a non-blank
        line is finished, in any order, with the number of symbols in its best output or in all samples, including
        `</s>`.
        """
        self._check_process()
        if isinstance(lines, str):
            raise TypeError("stream takes lines; for one: stream([line])")
        n_best = index(n_best)
        if sample is not None:
            sample = index(sample)
            if not 1 <= sample <= MOST_SAMPLES:
                problem = f"sample: must be from 1 to {MOST_SAMPLES:,} (got {sample})"
                raise UserError(problem, "leave it out to search for the best")
            if n_best > 1:
                raise ValueError("n_best cannot be combined with sample: samples have no order")
        if n_best < 1:
            raise UserError(f"n_best: must be at least 1 (got {n_best})", "leave it out for the best alone")
        if sample is None and n_best > self.decoding.beam:
            problem = f"n-best {n_best} needs a beam at least as wide (got {self.decoding.beam})"
            raise UserError(problem, f"use --beam {n_best}")
        results = self._results(lines, before, n_best, sample, searched)
        _open_streams.add(results)
        return results

    def _results(
        self,
        lines: Iterable[str | Request],
        before: int,
        n_best: int,
        sample: int | None,
        searched: Callable[[int], None],
    ) -> Generator[Result, None, None]:
        """Search lines as `_search` does, consecutive ones for the same engine together; yield their results."""
        for engine, group in groupby(map(self._request, lines), self._engine_for):
            ahead = ReadAhead(group, self.split, before)
            for line in self._search(engine, ahead, n_best, sample, searched):
                before += 1
                yield self._result(line, n_best, sample)

    def _request(self, line: str | Request) -> Request:
        """Return the request for a line, which it may be already."""
        return Request.of(line)

    def _engine_for(self, request: Request) -> Engine:
        """Return the engine that searches a request."""
        return self.engine

    def _search(
        self, engine: Engine, ahead: ReadAhead, n_best: int, sample: int | None, searched: Callable[[int], None]
    ) -> Generator[SplitLine, None, None]:
        """Search the lines' parts; yield each line once all lines before it are finished too."""

        def put(number: int, hypotheses: list[Hypothesis]) -> None:
            found = [each for each in hypotheses if each.score > -math.inf]
            lacking = (sample or 1) - len(found)  # may be negative
            line = ahead.put(number, found + [NOTHING] * lacking)
            if line.missing:
                return
            tokens = 0
            for of_part in line.hypotheses:
                counted = of_part if sample else of_part[:1]
                tokens += sum(each.symbols for each in counted)
            searched(tokens)

        count = 1  # hypotheses to search for
        if sample:
            count = sample
        elif n_best > 1:
            count = self.decoding.beam  # hypotheses may share a text, so more than `n_best` may be needed
        with ahead:
            while ahead.wait():
                due = ahead.due()
                if due:  # blank lines, which need no search
                    yield from due
                    continue
                with closing(self._turns.search(engine, ahead, count, sample is not None, put)) as search:
                    for _ in search:
                        yield from ahead.due()

    @abstractmethod
    def split(self, request: Request) -> list[Source]:
        """Encode a line in parts; a blank line has none. Runs in the read-ahead thread."""

    def _cap(self, length: int) -> int:
        """Return the maximum output length for an input of `length` subwords."""
        return min(length + self.decoding.max_extra, self._positions)

    def _result(self, line: SplitLine, n_best: int, sample: int | None) -> Result:
        """Join a line's parts into all samples, or into the first `n_best` distinct texts by rank.

        Different hypotheses can have the same text, because a word may have several segmentations.
        """
        count = min(map(len, line.hypotheses), default=sample or 1)
        ranks = range(count)
        if sample:
            return self.join(line, [(self._text(line, rank), rank) for rank in ranks])
        found: dict[str, int] = {}
        for rank in ranks:
            found.setdefault(self._text(line, rank), rank)
        return self.join(line, list(found.items())[:n_best])

    @abstractmethod
    def _text(self, line: SplitLine, rank: int) -> str:
        """Join the hypotheses of this `rank` from all parts into one text; "" for a blank line."""

    @abstractmethod
    def join(self, line: SplitLine, found: Sequence[tuple[str, int]]) -> Result:
        """Build the result of a line from (text, rank) pairs, one per output."""

    @abstractmethod
    def as_json(self, number: int, result: Result) -> str:
        """Format the result of input line `number` as a JSON object on one line."""

    def _json(self, number: int, result: Result, hypotheses: list[dict[str, Any]], **own: Any) -> str:
        """Format a result as JSON; `own` holds the task's fields."""
        for hypothesis in hypotheses:
            if hypothesis["score"] == -math.inf:
                hypothesis["score"] = None  # JSON has no -inf
        source = self.tokenizer.source.pieces(result.source)
        counts = {"parts": result.parts, "capped": result.capped, "unknown": result.unknown}
        return json.dumps(
            {"line": number, "source": source, "hypotheses": hypotheses, **counts, **own}, ensure_ascii=False
        )

    # --- attention

    def attention(self, sentence: str, target: str | None = None) -> Attention:
        """Return the model's attention weights for a sentence and `target`, by default its best output.

        A parser's target is a tree over the sentence's words, on one line. The weights are `encoder`
        (layers, heads, s, s), `decoder` (layers, heads, t, t) and `cross` (layers, heads, t, s), in fp32, where s and t
        are the lengths of source and target in symbols, including `</s>` (section 3.2 and figures 3 to 5 of the paper).
        They are computed in full precision, whatever that of the search; with workers, the first call loads the model
        into this process.

        Raise UserError for an ensemble, for a source that is blank, too long or split by the search, and for a target
        of the wrong form or length.
        """
        return self._attend(sentence, target)

    def _attend(self, sentence: str, target: str | None, direction: Direction = (None, None)) -> Attention:
        """Return the weights for a sentence of a direction, by default that of all lines."""
        from nmt.decoding.forced import attend

        self._check_process()
        if not isinstance(sentence, str) or not isinstance(target, str | None):
            raise TypeError("attention takes one sentence, and one target or None")
        if self._count > 1:
            problem = f"attention: each of the {self._count} models of an ensemble has its own"
            raise UserError(problem, "ask for that of one model")
        request = Request(sentence, direction=direction)
        if target is None:
            (found,) = self.stream([request])
            if found.failed:
                raise UserError(found.complaints[0], "give a target")
            pairs = found.pairs
        else:
            pairs = self._encode_pair(request, target)
        if len(pairs) != 1:
            hint = f"give one sentence, of at most decoding.max_source {self.decoding.max_source:,} subwords"
            raise UserError(f"attention: the line is searched in {len(pairs)} parts, not in one: {sentence[:60]}", hint)
        ((source, output),) = pairs
        longest = self._cap(self.decoding.max_source)
        if len(output) >= longest:
            problem = f"the output has {len(output):,} symbols, and a search makes fewer than {longest:,}"
            raise UserError(problem, "give the output of one sentence")
        return attend(self._load_model(), self.tokenizer, source, output)

    @abstractmethod
    def _encode_pair(self, request: Request, output: str) -> list[tuple[list[int], list[int]]]:
        """Encode a line and an output for it as one pair; return another number if it is blank or cannot be one.

        Raise UserError if the line is too long, or if the output does not suit the task.
        """
