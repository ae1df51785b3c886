"""The tasks that models are trained for, and the values that depend on them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

TaskName = Literal["translate", "parse"]
TREE = "tree"
"""Value of `data.target` for a parser"""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task that models are trained for, and the values that depend on it."""

    name: TaskName
    """Name in recipes and bundle.json"""
    noun: str
    """Noun for its models in messages"""
    command: str
    """Command that runs its models"""
    condition: str
    """Recipe settings that select this task, for messages"""
    metric: str
    """Key of the dev score that ranks checkpoints"""
    label: str
    """Display name of the metric"""
    others: Mapping[str, str] = field(default_factory=dict)
    """Display names of further metrics that are shown, by key"""
    has_trees: bool = False
    defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Recipe defaults of this task, by section and key"""
    fixed: Mapping[str, tuple[Any, str]] = field(default_factory=dict)
    """Mandatory values of recipe keys, each with the reason"""

    @property
    def labels(self) -> dict[str, str]:
        """Display names of all dev scores by key, the one that ranks first."""
        return {self.metric: self.label, **self.others, "perplexity": "ppl"}

    def rank(self, score: float) -> float:
        """Return a dev score, or -inf if it is not finite, so that it ranks last."""
        return score if math.isfinite(score) else -math.inf


_NO_SAMPLES = "trees are not drawn at random"

_TRANSLATE = Task(
    name="translate",
    noun="a translator",
    command="nmt translate",
    condition="with a language as data.target",
    metric="chrf",
    label="chrF2",
    others={"bleu": "BLEU"},
)

_PARSE = Task(
    name="parse",
    noun="a parser",
    command="nmt parse",
    condition=f"with data.target: {TREE}",
    metric="f1",
    label="F1",
    has_trees=True,
    # Section 6.3 of the paper gives the search settings. A tree has about three symbols per word, so length limits
    # must be higher than for translation.
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
)

TASKS: Mapping[TaskName, Task] = {"translate": _TRANSLATE, "parse": _PARSE}


def task_of(target: object) -> TaskName:
    """Return the task that `data.target` selects."""
    return "parse" if target == TREE else "translate"
