"""F1 of constituents: the figures of EVALB with COLLINS.prm, and an F1 that counts failures as missed.

These rules apply to each tree. Leaves tagged -NONE-, TOP or `, : `` '' .` are removed with their words, and so are
constituents that become empty. Labels are cut at the first - or =, and PRT becomes ADVP. Preterminals are not counted,
nor are constituents whose label is then TOP or one of those tags. What is left of both trees is matched one to one by
label and span. Counts are summed over sentences before they are divided.

In an error, the remaining words differ from those of the gold; in a skip, no words remain. EVALB leaves both out of all
sums, which favours a parser that fails on hard sentences, so `f1_all` counts their gold constituents as missed. Unlike
the C program, this one has no limit on errors or on the length of sentences, and an F1 of nothing is 0.

`score_brackets` takes trees as they are; ROOT and S1 are labels like any other. `score_files` first compares the roots
of a pair. If they differ and one is only a root (a gold may have ROOT, S1 or `( (S …) )`, and a parser TOP or nothing),
it becomes TOP and does not count, as if the gold had been prepared. Equal roots are left to the rules, by which ROOT
counts.
"""

from __future__ import annotations

import reprlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from nmt.parsing.tree import EMPTY, ROOTS, TOP, Tree, read_tree_lines, read_trees
from nmt.system.errors import UserError

DELETED = frozenset({TOP, EMPTY, ",", ":", "``", "''", "."})
SHORT = 40

Bracket = tuple[str, int, int]
"""Label, first word, and the word after the last, among the words that are scored."""


def _percent(part: float, whole: float) -> float:
    return 100.0 * part / whole if whole else 0.0


def _harmonic_mean(one: float, other: float) -> float:
    return 2 * one * other / (one + other) if one + other else 0.0


@dataclass(frozen=True)
class Matches:
    """Numbers of constituents of one label, or of all, and their rates in percent."""

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
        return _harmonic_mean(self.precision, self.recall)


@dataclass
class Sums:
    """Counts over some sentences, and the figures computed from them."""

    sentences: int = 0
    errors: int = 0
    """Sentences whose words differ from those of the gold"""
    skips: int = 0
    """Sentences without a word to score in the hypothesis: failures of the parser, and punctuation alone"""
    empty: int = 0
    """Skips in which there was no tree at all"""
    exact_matches: int = 0
    crossings: int = 0
    """Constituents of the hypothesis that overlap one of the gold, with neither inside of the other"""
    without_crossing: int = 0
    two_or_less: int = 0
    """Sentences with at most two crossings"""
    missed: int = 0
    """Constituents of the gold in errors and skips"""
    gold: Counter[str] = field(default_factory=Counter)
    """Constituents of valid sentences by label, like the next two"""
    test: Counter[str] = field(default_factory=Counter)
    matched: Counter[str] = field(default_factory=Counter)

    @property
    def valid(self) -> int:
        """Sentences that are neither errors nor skips."""
        return self.sentences - self.errors - self.skips

    @property
    def total(self) -> Matches:
        return Matches(self.gold.total(), self.test.total(), self.matched.total())

    @property
    def labels(self) -> dict[str, Matches]:
        """The matches of each label, by frequency in the gold, then by name; PRT is part of ADVP."""
        order = sorted(self.gold | self.test, key=lambda label: (-self.gold[label], -self.test[label], label))
        return {label: Matches(self.gold[label], self.test[label], self.matched[label]) for label in order}

    @property
    def recall_all(self) -> float:
        """Recall over all sentences: the constituents of errors and skips count as missed."""
        return _percent(self.matched.total(), self.gold.total() + self.missed)

    @property
    def f1_all(self) -> float:
        """F1 of the precision and `recall_all`."""
        return _harmonic_mean(self.total.precision, self.recall_all)

    def figures(self) -> dict[str, float]:
        """Compute all figures and counts by name; crossings are per valid sentence, the other figures percentages."""
        total, valid = self.total, self.valid
        return {
            "f1": total.f1,  # of EVALB, over valid sentences
            "f1_all": self.f1_all,
            "precision": total.precision,
            "recall": total.recall,
            "recall_all": self.recall_all,
            "exact": _percent(self.exact_matches, valid),
            "average_crossing": self.crossings / max(valid, 1),
            "no_crossing": _percent(self.without_crossing, valid),
            "two_or_less_crossing": _percent(self.two_or_less, valid),
            **{name: getattr(self, name) for name in COUNTS},
        }


@dataclass
class BracketScores(Sums):
    """Sums over all sentences, and over the short ones."""

    short: Sums = field(default_factory=Sums)
    """Over sentences of at most 40 words in the gold, with punctuation"""
    first_error: str = ""
    """Where the first error is, and what differs"""


def score_brackets(gold: Iterable[Tree], hypotheses: Iterable[Tree | None]) -> BracketScores:
    """Score hypotheses, None for a failure, against as many gold trees by the rules of EVALB alone.

    Both are read side by side, in constant memory. Raises UserError naming both numbers if they differ, or if there is
    nothing to score.
    """
    return _score(_pairs(gold, hypotheses))


def score_files(gold: Path, hypotheses: Path | Iterable[str], name: str = "<stdin>") -> BracketScores:
    """Score a file of trees, or lines of which an empty one is a failure, against any treebank file or folder.

    Errors call lines `name`.

    Roots that differ become TOP, see above. Raises UserError as `score_brackets` does, or if a file cannot be read.
    """
    return _score(_with_one_root(*pair) for pair in _pairs(read_trees(gold), read_tree_lines(hypotheses, name)))


def _score(pairs: Iterable[tuple[Tree, Tree | None]]) -> BracketScores:
    scores = BracketScores()
    for gold, hypothesis in pairs:
        _add(scores, gold, hypothesis)
    if not scores.sentences:
        raise UserError(
            "nothing to score: there are no trees", "name a file or a folder of trees as REF, and their parses as HYP"
        )
    return scores


def _pairs(gold: Iterable[Tree], hypotheses: Iterable[Tree | None]) -> Iterator[tuple[Tree, Tree | None]]:
    trees, tests = iter(gold), iter(hypotheses)
    for before, (tree, test) in enumerate(zip_longest(trees, tests, fillvalue="")):  # a string where one side has ended
        if isinstance(tree, str) or isinstance(test, str):
            rest = before + 1 + sum(1 for _ in (tests if isinstance(tree, str) else trees))
            counts = (before, rest) if isinstance(tree, str) else (rest, before)
            raise UserError(
                "the gold has {:,} trees and the hypothesis {:,}".format(*counts),
                "parse the sentence of tree N of the gold on line N; leave a line empty where there is no tree",
            )
        yield tree, test


def _with_one_root(gold: Tree, hypothesis: Tree | None) -> tuple[Tree, Tree | None]:
    if hypothesis and gold.label == hypothesis.label:
        return gold, hypothesis
    return _as_top(gold), hypothesis and _as_top(hypothesis)


def _as_top(tree: Tree) -> Tree:
    return Tree(TOP, tree.children) if tree.label in ROOTS else tree


def _add(scores: BracketScores, gold: Tree, hypothesis: Tree | None) -> None:
    """Add a sentence to all sums that it belongs to."""
    length, words, brackets = _scored(gold)
    _, tested, found = _scored(hypothesis) if hypothesis else (0, [], [])
    sums = (scores, scores.short) if length <= SHORT else (scores,)
    for each in sums:
        each.sentences += 1
    if not tested or tested != words:
        for each in sums:
            each.skips += not tested
            each.empty += hypothesis is None
            each.errors += bool(tested)
            each.missed += len(brackets)
        if tested and not scores.first_error:
            scores.first_error = f"tree {scores.sentences:,}: {_difference(words, tested)}"
        return
    matched = list((Counter(brackets) & Counter(found)).elements())
    crossings = _crossings(brackets, found)
    for each in sums:
        each.gold.update(label for label, _, _ in brackets)
        each.test.update(label for label, _, _ in found)
        each.matched.update(label for label, _, _ in matched)
        each.exact_matches += len(matched) == len(brackets) == len(found)
        each.crossings += crossings
        each.without_crossing += crossings == 0
        each.two_or_less += crossings <= 2


def _scored(tree: Tree) -> tuple[int, list[str], list[Bracket]]:
    """Return the length of a tree, and the words and the constituents over them that the rules leave."""
    length, words, brackets = 0, list[str](), list[Bracket]()
    opened: list[tuple[str, int]] = []
    stack: list[Tree | str | None] = [tree]
    while stack:  # one walk, not Tree.pos and Tree.spans, which take twice as long
        node = stack.pop()
        if node is None:  # the end of a constituent
            label, start = opened.pop()
            if start < len(words) and (name := _name(label)) not in DELETED:
                brackets.append((name, start, len(words)))
            continue
        assert isinstance(node, Tree), "a word has a tag, and nothing beside it"
        word = node.children[0]
        if isinstance(word, Tree):
            opened.append((node.label, len(words)))
            stack.append(None)
            stack.extend(reversed(node.children))
            continue
        length += node.label != EMPTY
        if node.label not in DELETED:
            words.append(word)
    return length, words, brackets


def _name(label: str) -> str:
    name = label.partition("-")[0].partition("=")[0]
    return "ADVP" if name == "PRT" else name


def _crossings(gold: Iterable[Bracket], found: Iterable[Bracket]) -> int:
    spans = {(start, end) for _, start, end in gold}
    return sum(
        any(start < first < end < after or first < start < after < end for start, end in spans)
        for _, first, after in found
        if (first, after) not in spans  # constituents of the same tree do not cross
    )


def _difference(gold: list[str], test: list[str]) -> str:
    for number, (one, other) in enumerate(zip(gold, test, strict=False), 1):
        if one != other:
            return (
                f"word {number}, without punctuation, is {reprlib.repr(one)} in the gold and {reprlib.repr(other)} in "
                "the hypothesis"
            )
    return f"{len(gold)} words without punctuation in the gold and {len(test)} in the hypothesis"


FIGURES = {
    "f1": "F1",
    "f1_all": "F1, failures missed",
    "precision": "precision",
    "recall": "recall",
    "recall_all": "recall, failures missed",
    "exact": "exact match",
    "average_crossing": "average crossing",
    "no_crossing": "no crossing",
    "two_or_less_crossing": "two or less crossing",
}
COUNTS = {"sentences": "sentences", "errors": "errors", "skips": "skips", "empty": "skips: no tree"}


def as_dict(scores: BracketScores) -> dict[str, Any]:
    """Collect all figures and counts for JSON; `short` has those of short sentences, `labels` those of each label."""
    labels = {
        label: vars(counts) | {name: getattr(counts, name) for name in ("f1", "precision", "recall")}
        for label, counts in scores.labels.items()
    }
    return scores.figures() | {"short": scores.short.figures(), "labels": labels}


def report(scores: BracketScores) -> str:
    """Show the figures as lines, the main ones first."""
    total, figures, short = scores.total, scores.figures(), scores.short.figures()
    lines = [
        f"F1 {total.f1:.2f}  precision {total.precision:.2f}  recall {total.recall:.2f}  "
        f"failures missed {scores.f1_all:.2f}",
        "",
        f"{'EVALB, COLLINS.prm':24}{'all':>10}{f'≤ {SHORT} words':>14}",
    ]
    for names, form in ((COUNTS, ","), (FIGURES, ".2f")):
        for name, text in names.items():
            lines.append(f"{text:24}{figures[name]:>10{form}}{short[name]:>14{form}}")
    lines += ["", f"{'label':14}{'gold':>10}{'test':>10}{'matched':>10}{'precision':>11}{'recall':>9}{'F1':>9}"]
    for label, one in scores.labels.items():
        counts = f"{one.gold:>10,}{one.test:>10,}{one.matched:>10,}"
        lines.append(f"{label:14}{counts}{one.precision:>11.2f}{one.recall:>9.2f}{one.f1:>9.2f}")
    return "\n".join(lines)
