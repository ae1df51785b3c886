"""The tasks that models are trained for, and one table of the values in which they differ.

Where tasks differ in what is done, not in a value, each has its own class: `nmt/tasks/` turns lines into results, and
`nmt/text/` turns targets into symbols.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

TaskName = Literal["translate", "parse", "language_model"]
TREE = "tree"
"""The `data.target` of a parser."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What is special about the models of one task."""

    noun: str
    """What messages call such a model."""
    command: str
    """The command that runs it."""
    condition: str
    """What makes a recipe one for this task."""
    metric: str
    """Name of the dev score by which checkpoints are compared."""
    label: str
    """Name of that score for people."""
    sign: int = 1
    """-1 if a lower score is better."""
    has_source: bool = True
    """False if the model reads nothing before it writes."""
    has_trees: bool = False
    """Whether the target is trees."""
    unit: str = "pairs"
    """What training examples are called."""
    defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Values of recipe keys, by section, that replace the general defaults."""
    fixed: Mapping[str, tuple[Any, str]] = field(default_factory=dict)
    """The only value that a recipe key may have, and why."""

    def rank(self, score: float) -> float:
        """Map a dev score to a number that is larger the better the score; to -inf if the score is not finite."""
        return self.sign * score if math.isfinite(score) else -math.inf


_NO_SAMPLES = "trees are not drawn at random"

KINDS: Mapping[TaskName, Kind] = {
    "translate": Kind(
        noun="a translator",
        command="nmt translate",
        condition="with data.source and a language as data.target",
        metric="bleu",
        label="BLEU",
    ),
    "parse": Kind(
        noun="a parser",
        command="nmt parse",
        condition=f"with data.target: {TREE}",
        metric="f1",
        label="F1",
        has_trees=True,
        # The search is as in section 6.3 of the paper. A tree has about three symbols for each word, so the limits on
        # lengths must be higher than those of translations.
        defaults={
            "data": {"max_length": 512, "max_ratio": 20.0},
            "tokenizer": {"shared": False},
            "model": {"tie_embeddings": "target"},
            "decoding": {"beam": 21, "alpha": 0.3, "max_extra": 300},
        },
        fixed={
            "tokenizer.shared": (False, "words and trees have no symbols in common"),
            "training.target_embeddings": (None, "the symbols of trees are not words"),
            "decoding.min_length": (0, "the words of a sentence determine how long its tree can be"),
            "decoding.split": ("auto", "a tree is over one sentence"),
            "decoding.no_repeat": (None, "a tree repeats its brackets"),
            "decoding.temperature": (1.0, _NO_SAMPLES),
            "decoding.top_k": (None, _NO_SAMPLES),
            "decoding.top_p": (1.0, _NO_SAMPLES),
            "decoding.seed": (1, _NO_SAMPLES),
        },
    ),
    "language_model": Kind(
        noun="a language model",
        command="nmt score",
        condition="without data.source",
        metric="perplexity",
        label="ppl",
        sign=-1,
        has_source=False,
        unit="lines",
        fixed={
            "tokenizer.shared": (True, "there is only one side"),
            "training.source_embeddings": (None, "a language model has training.target_embeddings only"),
        },
    ),
}
"""Everything that differs between tasks in a value, by the name that recipes and bundle.json give the task."""


def task_of(source: object, target: object) -> TaskName:
    """Return the task of a recipe with this `data.source` and `data.target`."""
    if target == TREE:
        return "parse"
    return "language_model" if source is None else "translate"
