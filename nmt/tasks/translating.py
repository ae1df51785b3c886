"""Translation: how lines are tokenised and split, and what their results are; imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, cast

from nmt.errors import UserError
from nmt.recipe import Decoding
from nmt.search.feed import Prefix, Required, Spelling
from nmt.tasks.lines import Line, Part, Request, Wanted
from nmt.tasks.output import LineResult, as_json
from nmt.tasks.splitting import LineSplitter, clean, joined
from nmt.text.lines import one_line
from nmt.text.sentences import TrainedLengths
from nmt.text.terms import Phrase, Terms
from nmt.text.tokenizer import Tokenizer
from nmt.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from nmt.search.constraints import MakeConstraint


@dataclass(frozen=True, kw_only=True)
class Translation(LineResult):
    """The translations of one line."""

    alignments: list[list[int]]
    """For each subword of each output the index in `source` that it attends to most; empty unless asked for."""
    log_probabilities: list[list[float]]
    """Of each subword of each output, in nats, given those before it; empty unless asked for."""
    unusual_length: bool
    """Whether the best output of a part is shorter or longer for its source than targets of training were."""

    missing: list[Phrase]
    """What the best output should hold and does not."""
    kept_from_repeating: bool
    """Whether `decoding.no_repeat` once kept the best output of a part from its most probable subword."""

    @property
    def complaints(self) -> list[str]:
        """See `LineResult`."""
        return [f"missing: {phrase}" for phrase in self.missing]

    @property
    def empty(self) -> bool:
        """Whether a line that is not blank has an empty translation."""
        return self.parts > 0 and not self.texts[0].strip()


class Translating:
    """Translation as the task of a `Pipeline`."""

    warnings: Mapping[str, Callable[[Translation], int]] = {
        "caps hit": lambda translation: translation.capped,
        "inputs split": lambda translation: translation.parts > 1,
        "unknown characters": lambda translation: translation.unknown,
        "empty outputs": lambda translation: translation.empty,
        "unusual lengths": lambda translation: translation.unusual_length,
        "missing terms": lambda translation: len(translation.missing),
    }

    def __init__(
        self,
        tokenizer: Tokenizer,
        decoding: Decoding,
        lengths: TrainedLengths | None = None,
        annotated: bool = False,
        terms: Terms | None = None,
    ) -> None:
        """`lengths` are those of the model's training, if they are known.

        `terms` is what translations must hold, unless a request says otherwise; None is what `decoding.keep` says.
        """
        self.tokenizer, self.annotated, self._lengths = tokenizer, annotated, lengths
        self._target = cast(Vocabulary, tokenizer.target)  # translations are no trees
        self._terms = terms or Terms(common=decoding.keep)
        if decoding.no_repeat is not None:
            self.warnings = {
                **self.warnings,
                "repetitions avoided": lambda translation: int(translation.kept_from_repeating),
            }
        self._splitter, self._longest_prefix = LineSplitter(tokenizer.source, decoding, lengths), decoding.max_source

    def constraint(self, decoding: Decoding) -> MakeConstraint:
        """See `Task`."""
        from nmt.search.constraints import All, MinLength
        from nmt.search.phrases import PhraseConstraint
        from nmt.search.prefix import PrefixConstraint
        from nmt.search.repetition import NoRepeat

        rules: list[MakeConstraint] = [
            partial(MinLength, decoding.min_length),
            partial(PrefixConstraint, self._target),
            partial(PhraseConstraint, self._target),
        ]
        if decoding.no_repeat is not None:
            rules.append(partial(NoRepeat, decoding.no_repeat))  # last, since it gives way to the others
        return partial(All, rules)

    def split(self, request: Request) -> list[Part]:
        """See `Task`; a line whose translation has a prefix is left whole."""
        terms = request.terms or self._terms
        return [self._with_phrases(part, terms) for part in self._parts(request)]

    def pair(self, source: str, output: str) -> tuple[list[int], list[int]]:
        """See `Task`."""
        ids = [symbol for part in self._splitter.whole(source) for symbol in part.ids]
        return ids, self._target.encode(clean(output))

    def _parts(self, request: Request) -> list[Part]:
        if not request.prefix.strip():
            return self._splitter.split(request.text)
        beginning = Prefix(*self._target.encode_beginning(request.prefix))
        if beginning.longest > self._longest_prefix:
            raise UserError(
                f"prefix: may need {beginning.longest:,} subwords, more than decoding.max_source "
                f"{self._longest_prefix:,}: {request.prefix[:60]} …",
                "shorten the prefix, or raise decoding.max_source",
            )
        return [replace(part, prefix=beginning) for part in self._splitter.whole(request.text)]

    def _with_phrases(self, part: Part, terms: Terms) -> Part:
        """A part with what its output must hold."""
        phrases = terms.phrases(self.tokenizer.source.decode(part.ids))
        if not phrases:
            return part
        required = [
            Required(list(self._spellings(phrase)), phrase.times - phrase.inside, phrase.exactly) for phrase in phrases
        ]
        return replace(part, phrases=phrases, required=required)

    def _spellings(self, phrase: Phrase) -> Iterator[Spelling]:
        for target in phrase.targets:
            begins, ends = phrase.bounds(target)
            yield Spelling(self._target.encode(target), False, ends)
            if within := self._target.encode_within(target):
                yield Spelling(within, begins, ends)

    def join(self, line: Line, wanted: Wanted) -> Translation:
        """See `Task`."""
        found = wanted.choose((self._text(line, rank), rank) for rank in wanted.ranks(line))
        texts, ranks = [text for text, _ in found], [rank for _, rank in found]
        alignments = [_alignment(line, rank) for rank in ranks]
        scores = [[p for part in line.hypotheses for p in part[rank].log_probabilities] for rank in ranks]
        unusual = self._lengths is not None and any(
            self._lengths.is_unusual(len(part.ids), len(hypotheses[0].ids))
            for part, hypotheses in zip(line.parts, line.hypotheses, strict=True)
        )
        best = [self.tokenizer.target.decode(part[0].ids) for part in line.hypotheses]
        missing = [
            phrase
            for part, text in zip(line.parts, best, strict=True)
            for phrase in part.phrases
            if phrase.is_missing(text)
        ]
        return Translation.of(
            line,
            ranks,
            self.tokenizer,
            texts,
            alignments=alignments,
            log_probabilities=scores,
            unusual_length=unusual,
            missing=missing,
            kept_from_repeating=any(part[0].kept_from_repeating for part in line.hypotheses),
        )

    def as_json(self, number: int, translation: Translation) -> str:
        """See `Task`."""
        hypotheses: list[dict[str, Any]] = [
            {"text": text, "score": score, "tokens": self.tokenizer.target.pieces(ids)}
            for text, score, ids in zip(translation.texts, translation.scores, translation.ids, strict=True)
        ]
        if self.annotated:
            for hypothesis, alignment, scores in zip(
                hypotheses, translation.alignments, translation.log_probabilities, strict=True
            ):
                hypothesis |= {"alignment": alignment, "log_probabilities": [round(score, 4) for score in scores]}
        return as_json(
            number,
            translation,
            self.tokenizer,
            hypotheses,
            unusual_length=translation.unusual_length,
            missing=list(map(str, translation.missing)),
            kept_from_repeating=translation.kept_from_repeating,
        )

    def _text(self, line: Line, rank: int) -> str:
        """Join the texts of all parts of a line in the hypotheses of a rank."""
        texts = [self.tokenizer.target.decode(part[rank].ids) for part in line.hypotheses]
        return one_line(joined(texts, [part.space for part in line.parts]))


def _alignment(line: Line, rank: int) -> list[int]:
    """Join the alignments of all parts of a line in the hypotheses of a rank."""
    starts = accumulate((len(part.ids) for part in line.parts), initial=0)
    return [start + i for start, part in zip(starts, line.hypotheses, strict=False) for i in part[rank].alignment]
