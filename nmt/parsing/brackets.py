"""Constituent F1 as EVALB computes it with its COLLINS.prm, and with the constituents of failed sentences as missed.

In each tree, leaves tagged -NONE-, TOP or `, : `` '' .` are removed with their words, as are constituents left empty.
Labels are cut at the first - or =, and PRT becomes ADVP. Preterminals do not count, nor do constituents whose label is
then TOP or one of those tags. The remaining constituents of both trees are matched one to one by label and span. Rates
are computed from counts summed over sentences.

A sentence is a skip if no words of the hypothesis remain, and an error if those that do differ from the gold's. EVALB
excludes both from all sums, which favours parsers that fail on hard sentences, so `f1_all` counts the gold constituents
of both as missed. Unlike EVALB, this module limits neither errors nor sentence lengths, and F1 is 0 if there are no
constituents.

`score_brackets` takes trees as they are: ROOT and S1 count like any label. `score_files` first compares the roots of
each pair. If they differ, root labels become TOP and do not count, as if the gold had been prepared (gold roots may be
ROOT, S1 or unlabelled; parsers write TOP or no root). Equal roots stay, so an equal ROOT counts.
"""

from __future__ import annotations

import reprlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from nmt.parsing.tree import EMPTY, ROOTS, TOP, Tree, read_tree_lines, read_trees
from nmt.system.errors import UserError, counted

DELETED = frozenset({TOP, EMPTY, ",", ":", "``", "''", "."})
SHORT = 40  # words of a short sentence, at most

Bracket = tuple[str, int, int]
"""Label, start and end (exclusive) of a constituent, counting scored words only"""


def _percent(part: float, whole: float) -> float:
    return 100.0 * part / whole if whole else 0.0


@dataclass(frozen=True)
class Matches:
    """Constituent counts for one label or for all, with rates in percent."""

    gold: int
    test: int
    matched: int

    @property
    def precision(self) -> float:
        return _percent(self.matched, self.test)

    @property
    def recall(self) -> float:
        return _percent(self.matched, self.gold)

    @property
    def f1(self) -> float:
        both = self.precision + self.recall
        if not both:
            return 0.0
        return 2 * self.precision * self.recall / both


@dataclass
class BracketCounts:
    """Counts summed over sentences, and figures computed from them."""

    sentences: int = 0
    errors: int = 0
    """Sentences whose words differ from the gold's"""
    skips: int = 0
    """Sentences without a scored word in the hypothesis: parser failures, or punctuation only"""
    empty: int = 0
    """Skips without a tree"""
    exact_matches: int = 0
    missed: int = 0
    """Gold constituents in errors and skips"""
    gold: Counter[str] = field(default_factory=Counter)
    """Gold constituents of valid sentences, by label; likewise `test` and `matched`"""
    test: Counter[str] = field(default_factory=Counter)
    matched: Counter[str] = field(default_factory=Counter)

    @property
    def valid(self) -> int:
        """Number of sentences that are neither errors nor skips."""
        return self.sentences - self.errors - self.skips

    @property
    def total(self) -> Matches:
        """Matches of valid sentences."""
        return Matches(self.gold.total(), self.test.total(), self.matched.total())

    @property
    def with_failures(self) -> Matches:
        """Matches of all sentences, with the gold constituents of errors and skips as missed."""
        return Matches(self.gold.total() + self.missed, self.test.total(), self.matched.total())

    @property
    def labels(self) -> dict[str, Matches]:
        """Matches by label, sorted by frequency in the gold, then in the hypothesis; PRT counts as ADVP."""
        order = sorted(self.gold | self.test, key=lambda label: (-self.gold[label], -self.test[label], label))
        return {label: Matches(self.gold[label], self.test[label], self.matched[label]) for label in order}

    def figures(self) -> dict[str, float]:
        """Return all figures and counts by name; figures are percentages."""
        figures = {name: compute(self) for name, (_, compute) in FIGURES.items()}
        return figures | {name: getattr(self, name) for name in COUNTS}


@dataclass
class BracketScores(BracketCounts):
    """Sums over all sentences, and separately over short ones."""

    short: BracketCounts = field(default_factory=BracketCounts)
    """Sums over sentences of at most 40 gold words, punctuation included"""
    first_error: str = ""
    """Location of the first error, and how its words differ"""
    notes: Counter[str] = field(default_factory=Counter)
    """Roots that count"""


def score_brackets(gold: Iterable[Tree], hypotheses: Iterable[Tree | None]) -> BracketScores:
    """Score hypotheses (None for a failure) against gold trees by EVALB's rules alone.

    Both are read in parallel, in constant memory. Raise UserError if their numbers differ or there is nothing to score.
    """
    return _score(_pairs(gold, hypotheses), BracketScores())


def score_files(gold: Path, hypotheses: Iterable[str], name: str = "<stdin>") -> BracketScores:
    """Score lines of trees, blank for a failure, against a treebank file or folder.

    Different roots become TOP, as the module docstring explains. Errors call the lines `name`. Raise UserError as
    `score_brackets` does, or if a file cannot be read.
    """
    scores = BracketScores()
    pairs = _pairs(read_trees(gold), read_tree_lines(hypotheses, name))
    return _score((_with_one_root(*pair, scores.notes) for pair in pairs), scores)


def _score(pairs: Iterable[tuple[Tree, Tree | None]], scores: BracketScores) -> BracketScores:
    """Add each sentence to the overall sums and, if it is short, to those of short sentences."""
    for gold, hypothesis in pairs:
        length, words, brackets = _scored(gold)
        _, tested, found = _scored(hypothesis)
        matched = list((Counter(brackets) & Counter(found)).elements())
        sums: list[BracketCounts] = [scores]
        if length <= SHORT:
            sums.append(scores.short)
        for each in sums:
            each.sentences += 1
            if tested and tested == words:
                each.gold.update(_labels(brackets))
                each.test.update(_labels(found))
                each.matched.update(_labels(matched))
                each.exact_matches += len(matched) == len(brackets) == len(found)
            else:
                each.skips += not tested
                each.empty += hypothesis is None
                each.errors += bool(tested)
                each.missed += len(brackets)
        if scores.errors and not scores.first_error:
            scores.first_error = f"tree {scores.sentences:,}: {_difference(words, tested)}"
    if not scores.sentences:
        hint = "name a file or a folder of trees as REF, and their parses as HYP"
        raise UserError("nothing to score: there are no trees", hint)
    return scores


def _pairs(gold: Iterable[Tree], hypotheses: Iterable[Tree | None]) -> Iterator[tuple[Tree, Tree | None]]:
    trees = iter(gold)
    tests = iter(hypotheses)
    for number, (tree, test) in enumerate(zip_longest(trees, tests, fillvalue=""), 1):  # "": this side has ended
        if isinstance(tree, str):
            raise _unequal(number - 1, number + sum(1 for _ in tests))
        if isinstance(test, str):
            raise _unequal(number + sum(1 for _ in trees), number - 1)
        yield tree, test


def _unequal(gold: int, hypotheses: int) -> UserError:
    hint = "parse the sentence of tree N of the gold on line N; leave a line empty where there is no tree"
    return UserError(f"the gold has {counted(gold, 'tree')} and the hypothesis {hypotheses:,}", hint)


def _with_one_root(gold: Tree, hypothesis: Tree | None, notes: Counter[str]) -> tuple[Tree, Tree | None]:
    """Return both trees, with TOP in place of different roots; note equal ones that count."""
    if hypothesis and gold.label == hypothesis.label:
        if gold.label in ROOTS - {TOP}:
            notes[f"roots '{gold.label}' count as constituents: both trees have them"] += 1
        return gold, hypothesis
    if hypothesis and hypothesis.label in ROOTS:
        hypothesis = Tree(TOP, hypothesis.children)
    if gold.label in ROOTS:
        gold = Tree(TOP, gold.children)
    return gold, hypothesis


def _scored(tree: Tree | None) -> tuple[int, list[str], list[Bracket]]:
    """Return a tree's length in words, its scored words, and its scored constituents."""
    length = 0
    words = list[str]()
    brackets = list[Bracket]()
    opened: list[tuple[str, int]] = []
    for label, word in tree.symbols() if tree else ():
        if label is None:  # closing bracket
            opening, start = opened.pop()
            name = _name(opening)
            if start < len(words) and name not in DELETED:
                brackets.append((name, start, len(words)))
        elif word is None:
            opened.append((label, len(words)))
        else:
            length += label != EMPTY
            if label not in DELETED:
                words.append(word)
    return length, words, brackets


def _labels(brackets: Iterable[Bracket]) -> list[str]:
    return [label for label, _, _ in brackets]


def _name(label: str) -> str:
    name = label.partition("-")[0].partition("=")[0]
    return "ADVP" if name == "PRT" else name


def _difference(gold: list[str], test: list[str]) -> str:
    for number, (one, other) in enumerate(zip(gold, test, strict=False), 1):
        if one != other:
            ours, theirs = map(reprlib.repr, (one, other))
            return f"word {number}, without punctuation, is {ours} in the gold and {theirs} in the hypothesis"
    return f"{len(gold)} words without punctuation in the gold and {len(test)} in the hypothesis"


FIGURES: dict[str, tuple[str, Callable[[BracketCounts], float]]] = {
    "f1": ("F1", lambda counts: counts.total.f1),  # as in EVALB, over valid sentences only
    "f1_all": ("F1, failures missed", lambda counts: counts.with_failures.f1),
    "precision": ("precision", lambda counts: counts.total.precision),
    "recall": ("recall", lambda counts: counts.total.recall),
    "recall_all": ("recall, failures missed", lambda counts: counts.with_failures.recall),
    "exact": ("exact match", lambda counts: _percent(counts.exact_matches, counts.valid)),
}
COUNTS = {"sentences": "sentences", "errors": "errors", "skips": "skips", "empty": "skips: no tree"}


def as_dict(scores: BracketScores) -> dict[str, Any]:
    """Return all figures and counts for JSON, with `short` for short sentences and `labels` for each label."""
    labels = {}
    for label, one in scores.labels.items():
        rates = {"f1": one.f1, "precision": one.precision, "recall": one.recall}
        labels[label] = vars(one) | rates
    return scores.figures() | {"short": scores.short.figures(), "labels": labels}


def report(scores: BracketScores) -> str:
    """Format the figures as a table below a summary line."""
    total = scores.total
    figures = scores.figures()
    short = scores.short.figures()
    lines = [
        f"F1 {total.f1:.2f}  precision {total.precision:.2f}  recall {total.recall:.2f}  "
        f"failures missed {scores.with_failures.f1:.2f}",
        "",
        f"{'EVALB, COLLINS.prm':24}{'all':>10}{f'≤ {SHORT} words':>14}",
    ]
    for name, text in COUNTS.items():
        lines.append(f"{text:24}{figures[name]:>10,}{short[name]:>14,}")
    for name, (text, _) in FIGURES.items():
        lines.append(f"{text:24}{figures[name]:>10.2f}{short[name]:>14.2f}")
    lines += ["", f"{'label':14}{'gold':>10}{'test':>10}{'matched':>10}{'precision':>11}{'recall':>9}{'F1':>9}"]
    for label, one in scores.labels.items():
        counts = f"{one.gold:>10,}{one.test:>10,}{one.matched:>10,}"
        lines.append(f"{label:14}{counts}{one.precision:>11.2f}{one.recall:>9.2f}{one.f1:>9.2f}")
    return "\n".join(lines)
