"""What the directory of a run tells about it: recipe, figures, dev scores and outputs, data, cost.

A report is made from this alone, so it can be made of a run that goes on, has ended, or was copied from elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmt.recipe import Recipe


@dataclass(frozen=True)
class DevOutputs:
    """What a checkpoint made of the development set."""

    step: int
    outputs: Sequence[str]
    """A translation or a tree for each shown sentence; blank where a parser found none."""
    scores: Sequence[float]
    """Of each: chrF or F1, 0 to 100."""


@dataclass(frozen=True)
class RunRecord:
    """All that is known of a run; what is not known is empty or None."""

    path: Path
    recipe: Recipe
    base: Mapping[str, Any]
    """Differences of the recipe from the one that it extends, or from the defaults: value by `section.key`"""
    base_name: str | None
    """The recipe that it extends"""
    parameters: int | None
    logged: Mapping[str, NDArray[np.float64]]
    """Figures of the training log, each (logged steps,): step, epoch, seconds, tokens, loss, perplexity, learning_rate,
    gradient_norm, tokens_per_second, padding and more; NaN where a figure was not finite"""
    validated: Mapping[str, NDArray[np.float64]]
    """Figures of the checkpoints with dev scores, each (checkpoints,): step, seconds, tokens, score, perplexity"""
    signature: str | None
    """How the dev score was computed"""
    sources: Sequence[str]
    """Sentences of the development set that outputs are kept of"""
    references: Sequence[str]
    dev_outputs: Sequence[DevOutputs]
    """By step; of a long run as many as the page can hold: the first, the best, the last and some between them"""
    data: Mapping[str, Any]
    """report.json of the prepared data"""
    cost: Mapping[str, Any]
    """See `nmt.training.cost.COST`"""
    averages: Sequence[tuple[int, float]]
    """Number of averaged checkpoints and the dev score of their average"""

    @property
    def step(self) -> int:
        """The last update that is logged; 0 before the first."""
        return int(self.logged["step"][-1]) if len(self.logged["step"]) else 0


def read_run(path: Path) -> RunRecord:
    """Read the run in a directory; raises UserError where there is none."""
    raise NotImplementedError(path)
