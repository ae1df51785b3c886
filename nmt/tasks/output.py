"""The result of a line, whatever its task, and its form as JSON; imports no torch."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

from nmt.tasks.lines import Line
from nmt.text.tokenizer import Tokenizer


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


def as_json(
    number: int, result: LineResult, tokenizer: Tokenizer, hypotheses: list[dict[str, Any]], **more: Any
) -> str:
    """Show all that is known of input line `number` as one JSON object; `more` is what its task adds."""
    line = {
        "line": number,
        "source": tokenizer.source.pieces(result.source),
        "hypotheses": hypotheses,
        "parts": result.parts,
        "capped": result.capped,
        "unknown": result.unknown,
        **more,
    }
    return json.dumps(line, ensure_ascii=False)
