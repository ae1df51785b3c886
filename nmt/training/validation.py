"""Scores on the development set: perplexity, and BLEU or a parser's F1; how many checkpoints to average by them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

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
    """How good a model is on the development set."""

    perplexity: float  # per target subword or symbol, `</s>` counted, from the unsmoothed negative log-likelihood
    score: float
    """0 to 100, searched by the recipe's decoding settings: sacreBLEU of the raw text, or F1 of constituents where
    those of failures count as missed; of a language model its perplexity"""
    signature: str  # how the score was computed
    hypotheses: Sequence[str] = ()
    """A translation or a tree for each sentence; blank where a parser found none; none of a language model"""

    def by_name(self, metric: str) -> dict[str, float]:
        """Return the score under the name of its metric and the perplexity, as bundle.json has them."""
        return {metric: self.score, "perplexity": self.perplexity}

    def shown(self, label: str) -> dict[str, float]:
        """Return the score under its label for people, and the perplexity unless that is the score."""
        return {label: self.score, PERPLEXITY: self.perplexity}


class Validation:
    """The development set and how models are scored on it; the ranks of a group share the work."""

    def __init__(self, corpus: Corpus, tokenizer: Tokenizer, recipe: Recipe, group: Group) -> None:
        """Raise UserError if a sentence is longer than the model allows, or if there are trees but none has words."""
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
        """Return the validation of the run that a bundle comes from, for this process alone.

        Raise UserError if the data that the run was trained on is not prepared here, or has no development set.
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
        """Score a model, whose training or evaluation mode is restored afterwards."""
        was_training = model.training
        model.eval()
        try:
            with torch.compiler.set_stance("force_eager"):  # the shapes of search would each compile a graph
                dev_perplexity = perplexity(model, self._corpus, self._group)
                if not self._task.has_source:
                    return DevScores(dev_perplexity, dev_perplexity, "per subword, </s> counted")
                metric, hypotheses = f1 if self._task.has_trees else bleu, self._search(model)
                return DevScores(dev_perplexity, *metric(self.references, hypotheses), hypotheses)
        finally:
            model.train(was_training)

    def each(self, references: Sequence[str], hypotheses: Sequence[str]) -> list[float]:
        """Return the score of each hypothesis by itself, 0 to 100: chrF of translations, F1 of trees."""
        if not self._task.has_trees:
            return sentence_chrf(references, hypotheses)
        return [f1([reference], [tree])[0] for reference, tree in zip(references, hypotheses, strict=True)]

    def _search(self, model: Transformer) -> list[str]:
        """Return a hypothesis for each source, as a line; blank where a parser found no tree."""
        rank, size = self._group.rank, self._group.size
        pipeline = PIPELINES[self._task.name](model, self._tokenizer, self._decoding)
        own = [result.texts[0] for result in pipeline.stream(self.sources[rank::size])]
        hypotheses = [""] * len(self.sources)
        for other, texts in enumerate(self._group.gather(own)):
            hypotheses[other::size] = texts
        return hypotheses


def bleu(references: Sequence[str], hypotheses: Sequence[str]) -> tuple[float, str]:
    """Return BLEU of translations, 0 to 100, and its signature."""
    found = score(hypotheses, [references], ["bleu"])["bleu"]
    return found.score, found.signature


def f1(references: Sequence[str], hypotheses: Sequence[str]) -> tuple[float, str]:
    """Return F1 of trees on a line each, 0 to 100, and its signature.

    A blank hypothesis is a failure, which counts as missed. Blank references do not count.
    """
    pairs = [pair for pair in zip(references, hypotheses, strict=True) if pair[0]]
    gold = (parse_tree(reference) for reference, _ in pairs)
    found = (parse_tree(hypothesis) if hypothesis else None for _, hypothesis in pairs)
    return score_brackets(gold, found).f1_all, "EVALB|COLLINS.prm|failures:missed"


@torch.no_grad()
def perplexity(model: Transformer, corpus: Corpus, group: Group) -> float:
    """Return the exponential of the mean negative log-likelihood of the corpus's target symbols, `</s>` counted."""
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
    """Return that of the target symbols of some pairs, in nats; if memory runs out, take one half after the other.

    Raise UserError if not even one pair fits.
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
    torch.cuda.empty_cache()  # outside `except`, so the traceback's tensors are freed
    middle = len(rows) // 2
    halves = rows[:middle], rows[middle:]
    return sum(_negative_log_likelihood(model, corpus, half, device) for half in halves)


def average_by_score(directory: Path, out: Path | None, device: torch.device, console: Console) -> Bundle:
    """Average the newest 1, 2, 3, 5, 8, … and all checkpoints of a run, and write the average that scores best.

    The score is BLEU or F1 of the development set, searched as in training, or the perplexity of a language model;
    perplexity decides between equals, then the smaller number. Each checkpoint is read once. The bundle's bundle.json
    holds the scores and, as `curve`, those of every number tried. Raise UserError if there are no checkpoints, if they
    are of different runs, or if the data they were trained on is not prepared here.
    """
    found, path = averageable(directory, out)
    newest, task = found[-1], found[-1].task
    validation, mean, model = Validation.of(newest), Mean(newest), newest.model(device)
    names = [f"dev {name}" for name in dict.fromkeys((task.label, PERPLEXITY))]
    console.say("  ".join(["averaged", *names, "updates"]))
    scores: dict[int, DevScores] = {}  # by number of checkpoints
    sizes = numbers_to_try(len(found))
    with console.progress("scoring", len(sizes), "averages") as advance:
        for count, bundle in enumerate(reversed(found), 1):
            mean.add(bundle)
            if count not in sizes:
                continue
            weights = mean.weights()
            load_weights(model, weights, bundle.path)
            dev = scores[count] = validation(model)
            figures = zip(names, dev.shown(task.label).values(), strict=True)
            cells = (f"{figure:{len(name)}.2f}" for name, figure in figures)
            console.say("  ".join([f"{count:8}", *cells, f"{bundle.step:,} to {newest.step:,}"]))
            last, best = max(scores.items(), key=lambda item: (task.rank(item[1].score), -item[1].perplexity))
            if last == count:
                best_weights = weights
            advance(1, f"best dev {task.label} {best.score:.2f} of {last}")
    curve = [{"last": count, **dev.by_name(task.metric)} for count, dev in scores.items()]
    more = {"scores": best.by_name(task.metric), "signature": best.signature, "curve": curve}
    return mean.save(path, best_weights, last, **more)


def numbers_to_try(most: int) -> list[int]:
    """Return 1, 2, 3, 5, 8, … below `most`, each the sum of the two before it, and `most`."""
    numbers, number, following = [], 1, 2
    while number < most:
        numbers.append(number)
        number, following = following, number + following
    return [*numbers, most]
