"""How sure a translation is: the probability that its chrF is at least 80, from what a search knows of it.

The numbers come from a development set (`nmt.training.calibration`), and bundle.json has them: no texts. This module
knows neither models nor references.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from nmt.formats.numbers import Changes, is_garbled

GOOD = 80.0  # chrF from which a translation needs little or no correction
SIGNS = ("probability", "uncertainty", "length", "ratio", "unknown", "marks")
LARGEST = 1e6
Number = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]
Scale = Annotated[float, Field(ge=1e-9, le=LARGEST)]
OF_SIGNS = Field(min_length=len(SIGNS), max_length=len(SIGNS), strict=False)  # JSON has lists


class Confidence(BaseModel):
    """A logistic regression on the signs of a translation, by their order in `SIGNS`."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    means: Annotated[tuple[Number, ...], OF_SIGNS]
    """Mean of each sign on the development set"""
    scales: Annotated[tuple[Scale, ...], OF_SIGNS]
    """Its standard deviation, or 1 for a sign that never differs"""
    weights: Annotated[tuple[Number, ...], OF_SIGNS]
    """Change of the log-odds by one scale"""
    bias: Number
    """Log-odds where all signs have their means"""

    def __call__(self, signs: Sequence[float]) -> float:
        """Return the probability that the chrF of a translation with these signs is at least `GOOD`."""
        odds = self.bias
        for sign, mean, scale, weight in zip(signs, self.means, self.scales, self.weights, strict=True):
            odds += weight * (sign - mean) / scale
        return 1 / (1 + math.exp(min(-odds, 700.0)))  # e^710 overflows


def signs_of(
    source: str,
    output: str,
    subwords: tuple[int, int],
    log_probability: float,
    unknown: int,
    changes: Changes,
    is_unusual: bool,
) -> list[float]:
    """Return the signs of a translation, (signs,).

    `subwords` are the numbers of its source and of its own with `</s>`, `log_probability` is their sum in nats, and
    `unknown` counts characters of the source.
    """
    of_source, own = subwords
    marks = [changes.lost, changes.invented, changes.loop, is_unusual, is_garbled(source, output)]
    return [
        log_probability / own,
        math.log1p(-min(log_probability, 0.0)),
        math.log(own),
        math.log(own / (of_source + 1)),
        math.log1p(unknown),
        float(sum(map(bool, marks))),
    ]
