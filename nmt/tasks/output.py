"""What tasks know of each line when it is done; imports no torch."""

from __future__ import annotations

import json
from typing import Any, Protocol

from nmt.text.tokenizer import Tokenizer


class LineResult(Protocol):
    """What became of one line, be it a translation or a parse."""

    @property
    def texts(self) -> list[str]:
        """Of each hypothesis, best first."""
        ...

    @property
    def scores(self) -> list[float]:
        """Of each hypothesis."""
        ...

    @property
    def source(self) -> list[int]:
        """Subwords of the line."""
        ...

    @property
    def parts(self) -> int:
        """How many pieces the line was split into; 0 where it is blank."""
        ...

    @property
    def capped(self) -> bool:
        """Whether the best output was cut off at its cap."""
        ...

    @property
    def unknown(self) -> int:
        """Characters of the line for which the vocabulary has no subword."""
        ...


def as_json(
    number: int, result: LineResult, tokenizer: Tokenizer, hypotheses: list[dict[str, Any]], **more: int
) -> str:
    """What is known of the result of input line `number` as one JSON object, with what its task adds."""
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
