"""Lines that become translations: how they are tokenised and split, and what is known of each in the end.

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from nmt.recipe import Decoding
from nmt.tasks.lines import Line, Part, distinct
from nmt.tasks.output import as_json
from nmt.text.linear import TreeVocabulary
from nmt.text.lines import one_line
from nmt.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Translation:
    """What became of one line."""

    texts: list[str]
    """Best first; one unless more were asked for. No two are equal."""
    scores: list[float]
    """Length-normalised log-probability of each, in nats; of a line split into parts their sum."""
    ids: list[list[int]]
    """Subwords of each, those of parts joined."""
    alignments: list[list[int]]
    """For each subword of each the index in `source` that it attends to most; empty unless asked for."""
    source: list[int]
    """Subwords of the line."""
    parts: int
    """How many pieces the line was split into; 0 where it is blank, more than one beyond decoding.max_source."""
    capped: bool
    """Whether the best output was cut off at its cap."""
    unknown: int
    """Characters of the line for which the vocabulary has no subword."""

    @property
    def empty(self) -> bool:
        """Whether a line that is not blank became nothing."""
        return self.parts > 0 and not self.texts[0].strip()


class Translating:
    """Translation as the task of a `Pipeline`."""

    only_trees: TreeVocabulary | None = None
    warnings: Mapping[str, Callable[[Translation], int]] = {
        "caps hit": lambda translation: translation.capped,
        "inputs split": lambda translation: translation.parts > 1,
        "unknown characters": lambda translation: translation.unknown,
        "empty outputs": lambda translation: translation.empty,
    }

    def __init__(self, tokenizer: Tokenizer, decoding: Decoding, aligned: bool = False) -> None:
        self.tokenizer, self.aligned, self._limit = tokenizer, aligned, decoding.max_source

    def split(self, text: str) -> list[Part]:
        """See `Task`; a line beyond decoding.max_source subwords is cut, between words where there are any."""
        source = self.tokenizer.source
        ids = source.encode(text.strip().encode(errors="replace").decode())  # a lone surrogate is no text
        parts, start = [], 0
        while (end := start + self._limit) < len(ids):
            words = (i for i in range(end, start + self._limit // 2, -1) if source.starts_word(ids[i]))
            cut = next(words, end)
            parts.append(Part(ids[start:cut]))
            start = cut
        return [*parts, Part(ids[start:])] if ids else []

    def join(self, line: Line, n_best: int) -> Translation:
        """See `Task`."""
        source = line.source()
        found = distinct(((self._text(line, rank), rank) for rank in line.ranks()), n_best)
        ranks = found.values()
        return Translation(
            texts=list(found),
            scores=[line.score(rank) for rank in ranks],
            ids=[line.ids(rank) for rank in ranks],
            alignments=[_alignment(line, rank) for rank in ranks],
            source=source,
            parts=len(line.parts),
            capped=line.capped(),
            unknown=self.tokenizer.source.count_unknown(source),
        )

    def as_json(self, number: int, translation: Translation) -> str:
        """See `Task`."""
        hypotheses = []
        for rank, text in enumerate(translation.texts):
            pieces = self.tokenizer.target.pieces(translation.ids[rank])
            hypothesis: dict[str, Any] = {"text": text, "score": translation.scores[rank], "tokens": pieces}
            if self.aligned:
                hypothesis["alignment"] = translation.alignments[rank]
            hypotheses.append(hypothesis)
        return as_json(number, translation, self.tokenizer, hypotheses)

    def _text(self, line: Line, rank: int) -> str:
        """Text of the hypotheses of a rank, joined."""
        return " ".join(one_line(self.tokenizer.target.decode(part[rank].ids)) for part in line.hypotheses)


def _alignment(line: Line, rank: int) -> list[int]:
    """Alignment of the hypotheses of a rank, joined."""
    starts = accumulate((len(part.ids) for part in line.parts), initial=0)
    return [start + i for start, part in zip(starts, line.hypotheses, strict=False) for i in part[rank].alignment]
