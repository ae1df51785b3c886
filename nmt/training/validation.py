"""Scores models on the development set: perplexity, and BLEU or the F1 of a parser; chooses by it how many checkpoints
to average.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from nmt.api import PIPELINES
from nmt.checkpoint.averaging import Mean, averageable
from nmt.checkpoint.reading import Bundle, load_weights
from nmt.data.corpus import Corpus, Rows
from nmt.data.epochs import plan_epoch
from nmt.data.prepare import directory, fingerprint_of
from nmt.decoding.forced import token_log_probabilities
from nmt.metrics import score, sentence_chrf
from nmt.model import functional
from nmt.model.transformer import Transformer
from nmt.parsing.brackets import score_brackets
from nmt.parsing.tree import parse_tree
from nmt.recipe import TASKS, Recipe
from nmt.system.console import Console
from nmt.system.device import World
from nmt.system.errors import UserError
from nmt.system.integrity import intact
from nmt.text.tokenizer import Tokenizer
from nmt.training.batches import make_batch, split_update
from nmt.training.distributed import Group

VALID_TOKENS = 4096  # padded, per side of a batch
PERPLEXITY = TASKS["language_model"].label


@dataclass(frozen=True)
class DevScores:
    """How good the model is on the development set."""

    perplexity: float
    """Per target subword or symbol, `</s>` counted, from the unsmoothed negative log-likelihood."""
    score: float
    """0 to 100, searched by the recipe's own decoding settings: sacreBLEU of the raw text, or F1 of constituents where
    those of failures count as missed. Of a language model its perplexity."""
    signature: str
    """How it was computed."""
    hypotheses: Sequence[str] = ()
    """A translation or a tree for each sentence; blank where a parser found none. A language model has none."""

    def by_name(self, metric: str) -> dict[str, float]:
        """As bundle.json has them: the score, whose name is given, and the perplexity."""
        return {metric: self.score, "perplexity": self.perplexity}

    def shown(self, label: str) -> dict[str, float]:
        """For people, the score by its label, and the perplexity where that is another."""
        return {label: self.score, PERPLEXITY: self.perplexity}


class Validation:
    """Scores models on the development set; the ranks of a group share the work."""

    def __init__(self, corpus: Corpus, tokenizer: Tokenizer, recipe: Recipe, group: Group) -> None:
        """Raises UserError where a sentence is longer than the model serves, or there are trees but none has words."""
        longest = corpus.longest() + 1
        if recipe.model.positions == "learned" and longest > recipe.model.max_positions:
            raise UserError(
                f"data.valid: its longest sentence has {longest:,} subwords, more than model.max_positions "
                f"{recipe.model.max_positions:,}",
                f"leave that sentence out, or --set model.max_positions={longest}",
            )
        self._corpus, self._tokenizer, self._group = corpus, tokenizer, group
        beam = recipe.training.valid_beam or recipe.decoding.beam
        self._decoding = recipe.decoding.model_copy(update={"beam": beam})
        self._task = recipe.task
        self.sources, self.references = corpus.texts() if self._task.has_source else ([], [])
        if self._task.has_trees and not any(self.references):
            raise UserError(
                "data.valid: none of its trees has words", "name trees that have words, or leave data.valid out"
            )

    @classmethod
    def of(cls, bundle: Bundle) -> Validation:
        """The validation of the run that a bundle comes from, for this process alone.

        Raises UserError where the data that the run was trained on is not prepared here, or has no development set.
        """
        prepared, recipe = directory(bundle.recipe), bundle.recipe
        there = fingerprint_of(prepared)
        if there != bundle.info["data"]:
            problem = "holds no prepared data" if there is None else "was prepared from other data or settings"
            raise UserError(
                f"{prepared}: {problem}, but the development set of {bundle.path} is needed",
                f"run it where the model was trained, or prepare it: nmt preprocess {bundle.path / 'recipe.yaml'}",
            )
        corpus = Corpus(intact(prepared / "valid.arrow"))
        if not len(corpus):
            raise UserError(
                f"{bundle.path}: its recipe has no development set, data.valid",
                f"average a number of your choice: nmt average {bundle.path.parent} --last N",
            )
        return cls(corpus, bundle.tokenizer(), recipe, Group(World(), recipe.training.timeout_minutes))

    def __call__(self, model: Transformer) -> DevScores:
        """Scores a model, whose training or evaluation mode is restored afterwards."""
        was_training = model.training
        model.eval()
        try:
            with torch.compiler.set_stance("force_eager"):  # the shapes of search would each compile a graph
                surprise = perplexity(model, self._corpus, self._group)
                if not self._task.has_source:
                    return DevScores(surprise, surprise, "per subword, </s> counted")
                compare, hypotheses = f1 if self._task.has_trees else bleu, self._search(model)
                return DevScores(surprise, *compare(self.references, hypotheses), hypotheses)
        finally:
            model.train(was_training)

    def each(self, references: Sequence[str], hypotheses: Sequence[str]) -> list[float]:
        """The score of each of some hypotheses by itself, 0 to 100: chrF of translations, F1 of trees."""
        if not self._task.has_trees:
            return sentence_chrf(references, hypotheses)
        return [f1([reference], [tree])[0] for reference, tree in zip(references, hypotheses, strict=True)]

    def _search(self, model: Transformer) -> list[str]:
        """A hypothesis for each source, as a line; blank where a parser found no tree."""
        rank, size = self._group.rank, self._group.size
        hypotheses = [""] * len(self.sources)
        for other, texts in enumerate(self._group.gather(self._search_lines(model, self.sources[rank::size]))):
            hypotheses[other::size] = texts
        return hypotheses

    def _search_lines(self, model: Transformer, sources: Sequence[str]) -> list[str]:
        results = PIPELINES[self._task.name](model, self._tokenizer, self._decoding).stream(sources)
        return [result.texts[0] for result in results]


def bleu(references: Sequence[str], hypotheses: Sequence[str]) -> tuple[float, str]:
    """BLEU of translations, 0 to 100, and its signature."""
    found = score(hypotheses, [references], ["bleu"])["bleu"]
    return found.score, found.signature


def f1(references: Sequence[str], hypotheses: Sequence[str]) -> tuple[float, str]:
    """F1 of trees on a line each, 0 to 100, and its signature; a blank hypothesis is a failure, which counts as missed.

    Blank references do not count.
    """
    pairs = [pair for pair in zip(references, hypotheses, strict=True) if pair[0]]
    gold = (parse_tree(reference) for reference, _ in pairs)
    found = (parse_tree(hypothesis) if hypothesis else None for _, hypothesis in pairs)
    return score_brackets(gold, found).f1_all, "EVALB|COLLINS.prm|failures:missed"


@torch.no_grad()
def perplexity(model: Transformer, corpus: Corpus, group: Group) -> float:
    """Exponential of the mean negative log-likelihood of the corpus's target symbols, `</s>` counted."""
    device = next(model.parameters()).device
    sources, targets = corpus.source_lengths, corpus.target_lengths
    plan = plan_epoch(sources, targets, max(VALID_TOKENS, corpus.longest() + 1), seed=0, epoch=0)
    nll = tokens = 0.0
    for update in range(group.rank, len(plan), group.size):
        rows = plan.rows(update)
        for part in split_update(sources[rows], targets[rows], VALID_TOKENS):
            nll += _negative_log_likelihood(model, corpus, rows[part], device)
        tokens += float(targets[rows].sum() + len(rows))
    nll, tokens = group.total(nll, tokens)
    return functional.perplexity(nll, tokens)


def _negative_log_likelihood(model: Transformer, corpus: Corpus, rows: Rows, device: torch.device) -> float:
    """Of the target symbols of some pairs, in nats; where memory runs out, one half of the pairs after the other.

    Raises UserError where not even one pair fits.
    """
    try:
        batch = make_batch(corpus, rows).to(device)
        return -float(token_log_probabilities([model], batch).sum(dtype=torch.float64))
    except torch.OutOfMemoryError:
        if len(rows) == 1:
            raise UserError(
                f"{device}: out of memory with one sentence of data.valid",
                "leave long sentences out of data.valid, or train without it: --set data.valid=[]",
            ) from None
    torch.cuda.empty_cache()  # not above, where the error still holds what was allocated
    middle = len(rows) // 2
    halves = rows[:middle], rows[middle:]
    return sum(_negative_log_likelihood(model, corpus, half, device) for half in halves)


class _Average(NamedTuple):
    """The average of a run's newest checkpoints."""

    last: int
    """Number of checkpoints"""
    oldest: Bundle
    weights: dict[str, Tensor]
    dev: DevScores

    def rank(self) -> tuple[float, float]:
        """What grows with how good the average is."""
        return self.oldest.task.rank(self.dev.score), -self.dev.perplexity


def average_by_score(directory: Path, out: Path | None, device: torch.device, console: Console) -> Bundle:
    """Averages the newest 1, 2, 3, 5, 8, … and all checkpoints of a run, and writes the average that scores best.

    The score is BLEU or F1 of the development set, searched as in training, or the perplexity of a language model;
    perplexity decides between equals, then the smaller number. Each checkpoint is read once. The bundle's bundle.json
    holds the scores and, as `curve`, those of every number tried. Raises UserError where there are no checkpoints,
    where they are of different runs, or where the data they were trained on is not prepared here.
    """
    found, path = averageable(directory, out)
    newest, task = found[-1], found[-1].task
    validation, mean = Validation.of(newest), Mean(newest)
    names = [f"dev {name}" for name in dict.fromkeys((task.label, PERPLEXITY))]
    console.say("  ".join(["averaged", *names, "updates"]))
    best, curve = None, []
    sizes = numbers_to_try(len(found))
    with console.progress("scoring", len(sizes), "averages") as advance:
        for average in _averages(found, sizes, mean, validation, newest.model(device)):
            figures = zip(names, average.dev.shown(task.label).values(), strict=True)
            cells = (f"{figure:{len(name)}.2f}" for name, figure in figures)
            console.say("  ".join([f"{average.last:8}", *cells, f"{average.oldest.step:,} to {newest.step:,}"]))
            curve.append({"last": average.last, **average.dev.by_name(task.metric)})
            best = average if best is None or average.rank() > best.rank() else best
            advance(1, f"best dev {task.label} {best.dev.score:.2f} of {best.last}")
    assert best is not None
    scores = best.dev.by_name(task.metric)
    return mean.save(path, best.weights, best.last, scores=scores, signature=best.dev.signature, curve=curve)


def _averages(
    found: Sequence[Bundle], sizes: Sequence[int], mean: Mean, validation: Validation, model: Transformer
) -> Iterator[_Average]:
    """The averages of `sizes` checkpoints, scored one after another."""
    for count, bundle in enumerate(reversed(found), 1):
        mean.add(bundle)
        if count in sizes:
            weights = mean.weights()
            load_weights(model, weights, bundle.path)
            yield _Average(count, bundle, weights, validation(model))


def numbers_to_try(most: int) -> list[int]:
    """1, 2, 3, 5, 8, … below `most`, each the sum of the two before it, and `most`."""
    numbers, number, following = [], 1, 2
    while number < most:
        numbers.append(number)
        number, following = following, number + following
    return [*numbers, most]
