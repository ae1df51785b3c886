"""How lines go through a search, for any task and engine: split ahead, searched, joined to results, given out in order.

This module knows no model and imports no torch.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from nmt.decoding.engine import Hypothesis, SourceQueue
from nmt.decoding.models import Loaded, Models, Saved
from nmt.decoding.read_ahead import Line, Part, ReadAhead, Request, Wanted
from nmt.recipe import Decoding, Model
from nmt.system.errors import UserError
from nmt.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from nmt.decoding.constraints import MakeConstraint
    from nmt.decoding.forced import Attention
    from nmt.model.transformer import Transformer


@dataclass(frozen=True, kw_only=True)
class LineResult:
    """The result of one line, whatever the task."""

    texts: list[str]
    """The outputs as text: the best first, no two equal, up to as many as were asked for; or all samples, as drawn."""
    scores: list[float]
    """Length-normalised log-probability of each output, in nats; for a line split into parts, their sum."""
    ids: list[list[int]]
    """The symbols of each output, those of parts joined."""
    source: list[int]
    """The subwords of the line."""
    parts: int
    """Number of parts that the line was split into: 0 if it is blank, more than one if it was split."""
    capped: bool
    """Whether the best output was cut off at its cap."""
    unknown: int
    """Number of characters of the line for which the vocabulary has no subword."""
    pairs: list[tuple[list[int], list[int]]]
    """Of each part, the subwords and the symbols of its best output."""

    @property
    def complaints(self) -> list[str]:
        """What the best output lacks, in words."""
        return []

    @classmethod
    def of(cls, line: Line, ranks: Iterable[int], tokenizer: Tokenizer, texts: list[str], **own: Any) -> Self:
        """Collect what is known of the hypotheses of these ranks, which have these texts; `own` is for the task."""
        found, source = line.hypotheses, [symbol for part in line.parts for symbol in part.ids]
        kept = list(ranks)
        return cls(
            texts=texts,
            scores=[sum((part[rank].score for part in found), 0.0) for rank in kept],
            ids=[[symbol for part in found for symbol in part[rank].ids] for rank in kept],
            source=source,
            parts=len(line.parts),
            capped=any(not part[0].finished for part in found),
            unknown=tokenizer.source.count_unknown(source),
            pairs=[(part.ids, ranked[kept[0]].ids) for part, ranked in zip(line.parts, found, strict=True)],
            **own,
        )


Result = TypeVar("Result", bound=LineResult)


class Pipeline(ABC, Generic[Result]):
    """Lines in, results out: each line is split, searched, joined and given out in order.

    `Translator` and `Parser` say how a line is split and joined. A context: its workers end with the block, and in any
    case with the object.
    """

    annotated = False
    """Whether hypotheses get alignments and log-probabilities of their symbols."""

    def __init__(
        self, models: Transformer | Sequence[Transformer] | Models, tokenizer: Tokenizer, decoding: Decoding
    ) -> None:
        """Search with a model or an ensemble of several, in this process or as `models` says.

        Raise UserError if decoding.max_source is longer than what a model serves, or if the engine cannot be made.
        """
        self.tokenizer, self.decoding = tokenizer, decoding
        source = models if isinstance(models, Loaded | Saved) else Loaded(models)
        self._count, self._load = len(source.configs), cache(source.only)
        self._positions = longest_served(source.configs, decoding)
        with ExitStack() as held:
            self.engine = held.enter_context(
                source.open(decoding, partial(self.constraints, tokenizer, decoding), self.annotated)
            )
            self._held = held.pop_all()

    def close(self) -> None:
        """End the workers, if there are any."""
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    @staticmethod
    @abstractmethod
    def warnings(decoding: Decoding) -> Mapping[str, Callable[[Any], int]]:
        """Return functions that count how often something is wrong with a result, by the name of the warning."""

    @staticmethod
    @abstractmethod
    def constraints(tokenizer: Tokenizer, decoding: Decoding) -> list[MakeConstraint]:
        """Return the rules for outputs of a search; called where the engine is made, since it imports torch."""

    @abstractmethod
    def split(self, request: Request) -> list[Part]:
        """Return the parts of a line that are searched, none for a blank line; another thread calls `join`."""

    @abstractmethod
    def encode_pair(self, source: str, output: str) -> tuple[list[int], list[int]]:
        """Encode a line, which is left whole, and an output of it.

        Raise UserError if the line is too long for that, or if the output is none of this task.
        """

    @abstractmethod
    def join(self, line: Line, wanted: Wanted) -> Result:
        """Join what was found for the parts of a line: the outputs that are wanted, or fewer different ones.

        A line without parts has empty outputs.
        """

    @abstractmethod
    def as_json(self, number: int, result: Result) -> str:
        """Show all that is known of the result of input line `number` as one JSON object on a line."""

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

    def attention(self, source: str, target: str | None = None) -> Attention:
        """Return what the model attends to while it reads a sentence and writes `target`, by default its best output.

        The target of a parser is a tree over the words of the sentence, on one line. The weights, fp32, are `encoder`
        (layers, heads, s, s), `decoder` (layers, heads, t, t) and `cross` (layers, heads, t, s), where s counts the
        subwords of the source and t those of the target, each with `</s>`; section 3.2 and figures 3 to 5 of the paper.
        They are computed in full precision, whatever searches; with workers or CTranslate2, the first call loads the
        model into this process.

        Raise UserError for an ensemble, for a blank source, for one that is too long or that a search would split, and
        for a target of the wrong form or length.
        """
        from nmt.decoding.forced import attend

        for text in (source, target or ""):
            if not isinstance(text, str):
                raise TypeError("attention takes one sentence, and one target or None")
        if self._count > 1:
            raise UserError(
                f"attention: each of the {self._count} models of an ensemble has its own", "ask for that of one model"
            )
        return attend(self._load(), self.tokenizer, *self._pair(source, target))

    def _groups(
        self, lines: Iterable[str | Request], wanted: Wanted, searched: Callable[[int], None]
    ) -> Generator[list[Result], None, None]:
        ahead = ReadAhead(lines, self.split, self._cap)
        search = None
        try:
            while ahead.wait():
                if due := ahead.due():  # blank lines, for which no engine has to begin a search
                    yield [self.join(line, wanted) for line in due]
                    continue
                search = self._search(ahead, wanted)
                for number, hypotheses in search:
                    line = ahead.put(number, hypotheses)
                    if not line.missing:
                        searched(wanted.tokens(line))
                    if due := ahead.due():
                        yield [self.join(line, wanted) for line in due]
        finally:
            ahead.close()  # first, since an engine may be waiting for it
            if search is not None:
                search.close()

    def _search(self, queue: SourceQueue, wanted: Wanted) -> Generator[tuple[int, list[Hypothesis]], None, None]:
        if wanted.samples:
            return self.engine.sample(queue, wanted.count)
        # Several hypotheses may be the same text; then those behind them in the beam are needed.
        return self.engine.search(queue, 1 if wanted.count == 1 else self.decoding.beam)

    def _cap(self, length: int) -> int:
        """Return the most symbols that the output for an input of so many subwords may have."""
        cap = length + self.decoding.max_extra
        return cap if self._positions is None else min(cap, self._positions)

    def _pair(self, source: str, output: str | None = None) -> tuple[list[int], list[int]]:
        """Return the symbols of a sentence and of its `output`, or of the best one that is found; neither has `</s>`.

        Raise UserError if the sentence is blank or too long, or if the search splits it.
        """
        if output is not None:
            pairs = [self.encode_pair(source, output)]
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

    def _json(self, number: int, result: Result, hypotheses: list[dict[str, Any]], **more: Any) -> str:
        """Show input line `number` as one JSON object; `more` is what its task adds."""
        line = {
            "line": number,
            "source": self.tokenizer.source.pieces(result.source),
            "hypotheses": hypotheses,
            "parts": result.parts,
            "capped": result.capped,
            "unknown": result.unknown,
            **more,
        }
        return json.dumps(line, ensure_ascii=False)


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
