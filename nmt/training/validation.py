"""Dev scores: perplexity, chrF, BLEU and F1, and of several directions their mean."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray

from nmt.checkpoint.reading import Bundle
from nmt.compute.choice import for_scoring
from nmt.data.corpus import Corpus, Rows
from nmt.data.data_report import read_report
from nmt.data.directions import dataset_direction
from nmt.data.epochs import plan_epoch
from nmt.data.folders import directory, find
from nmt.decoding.engine import Request
from nmt.decoding.forced import token_log_probabilities
from nmt.decoding.parser import Parser
from nmt.decoding.splitter import LineSplitter
from nmt.decoding.translator import Translator
from nmt.decoding.workers import Loaded
from nmt.formats.sentences import TrainedLengths
from nmt.metrics.significance import Comparison, Sampled, interval
from nmt.metrics.string_metrics import Score, StringMetric, score
from nmt.metrics.words import unknown_words
from nmt.model.operations import perplexity as perplexity_of
from nmt.model.transformer import Transformer
from nmt.parsing.brackets import score_brackets
from nmt.parsing.tree import Tree, parse_tree
from nmt.recipe import Dataset, Decoding, Recipe
from nmt.system.errors import UserError
from nmt.system.files import read_json
from nmt.system.integrity import intact
from nmt.system.launchers import World
from nmt.text.tokenizer import Tokenizer
from nmt.training.batches import make_batch, split_update
from nmt.training.budget import Pace
from nmt.training.calibration import FEWEST, calibrated
from nmt.training.dev_outputs import spread
from nmt.training.directory import ABOUT
from nmt.training.distributed import Group
from nmt.training.robustness import LINES, robustness

VALID_TOKENS = 4096  # padded tokens per side of a batch


@dataclass(frozen=True)
class DevScores:
    """A model's scores on the development set."""

    # By name, in the order of `Task.labels`: chrF and BLEU (sacreBLEU on raw text) or bracketing F1 (failed parses
    # count as missed), 0 to 100, of outputs searched with the recipe's decoding settings; perplexity per target subword
    # or symbol, including `</s>`, without label smoothing
    scores: dict[str, float]
    signatures: dict[str, str]  # settings of the metrics, by name
    hypotheses: Sequence[str] = ()  # one per sentence, blank if a parser found no tree
    signs: Sequence[Sequence[float]] = ()  # of each translation, which its confidence follows from


class Output(NamedTuple):
    """What a search found for a dev line."""

    text: str = ""
    signs: Sequence[float] = ()


class Validation:
    """Scorer of models on the development set; the ranks of a group share the work."""

    def __init__(
        self, corpus: Corpus, tokenizer: Tokenizer, recipe: Recipe, group: Group, lengths: TrainedLengths | None
    ) -> None:
        """Score as the recipe decodes; `lengths` are statistics of a translator's training pairs, if known.

        Raise UserError if a sentence exceeds the model's positions, or if no tree has words.
        """
        longest = corpus.longest() + 1
        if recipe.model.positions == "learned" and longest > recipe.model.max_positions:
            too_many = f"{longest:,} subwords, more than model.max_positions {recipe.model.max_positions:,}"
            hint = f"leave that sentence out, or --set model.max_positions={longest}"
            raise UserError(f"data.valid: its longest sentence has {too_many}", hint)
        self._corpus = corpus
        self._tokenizer = tokenizer
        self._group = group
        self._lengths = lengths
        beam = recipe.training.valid_beam or recipe.decoding.beam
        self._decoding = recipe.decoding.model_copy(update={"beam": beam, "shortlist": None})
        self._task = recipe.task
        self.sources, self.references = corpus.texts()
        if self._task.has_trees and not any(self.references):
            raise UserError("data.valid: none of its trees has words", "name trees with words, or leave data.valid out")
        sets = _sets(corpus, recipe, len(self.sources))
        self._languages = [recipe.data.of(each).languages for each in sets]  # source and target of each line
        # The languages that a translator of several is told for each line; none if it needs none
        self._directions = [dataset_direction(recipe.data, each, tokenizer) for each in sets]
        self._data = recipe.data
        self._searched: WeakKeyDictionary[Transformer, tuple[Loaded, Parser | Translator]] = WeakKeyDictionary()
        rows = [row for row in range(len(self.sources)) if self._may_count(row)]
        self._rows = rows or list(range(len(self.sources)))  # lines that count in scores; all if none may
        self.notes = list(self._notes(len(self.sources) - len(rows)))

    @property
    def tokens(self) -> int:
        """Tokens of the development set, on the side that has more of them."""
        subwords = max(self._corpus.source_lengths.sum(), self._corpus.target_lengths.sum())
        return int(subwords) + len(self._corpus)

    @classmethod
    def of(cls, bundle: Bundle, run: Path | None = None) -> Validation:
        """Return the validation of a bundle's run, for this process alone; `run` is its directory if not the parent.

        Raise UserError if the run's training data is not prepared here, or has no development set.
        """
        prepared = find_prepared(bundle, run or bundle.path.parent)
        recipe = bundle.recipe
        corpus = Corpus(intact(prepared / "valid.arrow"))
        if not len(corpus):
            hint = f"average a number of your choice: nmt average {bundle.path.parent} --last N"
            raise UserError(f"{bundle.path}: its recipe has no development set, data.valid", hint)
        group = Group(World(), recipe.training.timeout_minutes)
        return cls(corpus, bundle.tokenizer(), recipe, group, bundle.lengths)

    def __call__(self, model: Transformer) -> DevScores:
        """Score a model, which may be compiled and in training mode."""
        return self.scored(model, self.outputs(model))

    def outputs(self, model: Transformer) -> list[Output]:
        """Return what a model makes of the development set, an output for each line."""
        with self._searching(model) as pipeline:
            return self._search(pipeline)

    def within(self, model: Transformer, pace: Pace) -> DevScores | None:
        """Score a model as by a call; return None if that is given up, because it would take too long.

        The pace of rank 0 counts.
        """
        with self._searching(model) as pipeline:
            outputs = self._search_within(pipeline, pace)
        return None if outputs is None else self.scored(model, outputs)

    def scored(self, model: Transformer, outputs: Sequence[Output]) -> DevScores:
        """Score a model's outputs, and compute its perplexity."""
        hypotheses = [output.text for output in outputs]
        scorer = for_scoring(model)  # not compiled: a search would compile a graph for each shape
        targets = [target for _, target in self._directions]
        sizes = np.array([len(self._tokenizer.of(target).target) for target in targets])  # (pairs,)
        of_model = {"perplexity": perplexity(scorer, self._corpus, self._group, sizes)}
        of_directions = dict[str, float]()
        if self._task.has_trees:
            found = {"f1": f1(self.references, hypotheses)}
        else:
            found, of_directions = self._score(hypotheses)
        scores = {name: one.score for name, one in found.items()}
        signatures = {name: one.signature for name, one in found.items()}
        signs = [output.signs for output in outputs]
        return DevScores(scores | of_model | of_directions, signatures, hypotheses, signs)

    def _score(self, hypotheses: Sequence[str]) -> tuple[dict[str, Score], dict[str, float]]:
        """Return the scores of translations; for several directions their means, and the scores of each."""
        names = (self._task.metric, *self._task.others)
        by_direction = defaultdict[tuple[str, str], list[int]](list)
        for row in self._rows:
            by_direction[self._languages[row]].append(row)
        each = dict[str, dict[str, Score]]()
        for direction, rows in by_direction.items():
            _, target = direction
            found = score(*self._counted(hypotheses, rows), names, language=target)
            each["-".join(direction)] = found
        first, *others = each.values()
        if not others:
            return first, {}
        means = dict[str, Score]()
        for name in names:
            mean = fmean(found[name].score for found in each.values())
            means[name] = Score(mean, first[name].signature)
        of_directions = dict[str, float]()
        for languages, found in each.items():
            for name in names:
                of_directions[f"{name} {languages}"] = found[name].score
        return means, of_directions

    def info(self, dev: DevScores) -> dict[str, Any]:
        """Return the scores as bundle.json keeps them, with the 95% confidence interval of the one that ranks.

        There is no interval of a mean over directions. Of a translator, its confidence is there, too.
        """
        info: dict[str, Any] = {
            "scores": dev.scores,
            "signatures": dev.signatures,
            "interval": None,
            "confidence": None,
        }
        if self._task.has_trees:
            info["interval"] = f1_interval(self.references, dev.hypotheses)
            return info
        hypotheses, references = self._counted(dev.hypotheses)
        _, target = self._languages[0]
        metric = StringMetric(self._task.metric, references, target)
        counts = metric.counts(hypotheses)
        if len(set(self._languages)) == 1:
            info["interval"] = interval(counts, metric.score)
        signs = []
        scores = []
        for row, of_line in zip(self._rows, counts, strict=True):
            if dev.signs[row]:
                signs.append(dev.signs[row])
                scores.append(metric.score(of_line))
        if len(signs) >= FEWEST:
            info["confidence"] = calibrated(signs, scores).model_dump()
        return info

    def each(self, references: Sequence[str], hypotheses: Sequence[str]) -> list[float]:
        """Return each hypothesis's own score, 0 to 100: chrF for translations, F1 for trees."""
        if not self._task.has_trees:
            return StringMetric("chrf", [references]).line_scores(hypotheses)
        return [f1([reference], [tree]).score for reference, tree in zip(references, hypotheses, strict=True)]

    def unlike_splits(self) -> list[int]:
        """Return the numbers of the dev lines that are split differently at every sentence and by auto."""
        at_sentences = LineSplitter(self._tokenizer.source, self._split("sentences"), self._lengths)
        by_auto = LineSplitter(self._tokenizer.source, self._split("auto"), self._lengths)
        unlike = []
        for row in self._rows:
            sentences = [part.ids for part in at_sentences.split(self.sources[row])]
            parts = [part.ids for part in by_auto.split(self.sources[row])]
            if sentences != parts:
                unlike.append(row)
        return unlike

    def compare_splits(self, model: Transformer, rows: Sequence[int]) -> Comparison:
        """Compare the score of dev lines split at every sentence with that of the same lines split by auto."""
        references = [self.references[row] for row in rows]
        ours = self._translated(self._pipeline(model, self._split("sentences")), rows)
        others = self._translated(self._pipeline(model, self._split("auto")), rows)
        metric = StringMetric(self._task.metric, [references])
        return Sampled(metric, ours).compared(Sampled(metric, others))

    def sampled(self, outputs: Sequence[Output]) -> Sampled:
        """Score a translator's outputs, for comparisons with others on the same lines."""
        hypotheses, references = self._counted([output.text for output in outputs])
        return Sampled(StringMetric(self._task.metric, references), hypotheses)

    def robustness(self, model: Transformer, most: int) -> dict[str, float]:
        """Return a translator's chrF on up to `most` dev lines, plain and changed in each way, and their number."""
        rows = spread(self._rows, most)
        pairs = [(self.sources[row], self.references[row]) for row in rows]
        languages = [self._languages[row] for row in rows]
        translate = partial(self._translated, self._pipeline(model, self._decoding), rows)
        scores: dict[str, float] = {LINES: len(rows)}
        for name, found in robustness(translate, pairs, languages):
            scores[name] = found.score
        return scores

    def with_split(self, way: str) -> Validation:
        """Return a validation that splits lines in another way."""
        changed = copy(self)
        changed._decoding = self._split(way)
        changed._searched = WeakKeyDictionary()
        return changed

    def _notes(self, same: int) -> Iterator[str]:
        """Yield notes on the scores; `same` is the number of references that equal their source."""
        count = len(self.sources)
        scores = " and ".join((self._task.label, *self._task.others.values()))
        if same == count > 0:
            yield f"the reference of every dev line equals its source, so all count in dev {scores}"
        elif same:
            yield f"dev lines whose reference equals their source do not count in dev {scores}: {same:,} of {count:,}"
        if self._task.name != "translate":
            return
        by_target = defaultdict[str, list[str]](list)  # references
        for (_, target), reference in zip(self._languages, self.references, strict=True):
            by_target[target].append(reference)
        for target, references in by_target.items():
            warning = unknown_words(target, references)
            if warning:
                yield f"{warning}; name their language by data.target, such as zh, ja or th"

    def _may_count(self, row: int) -> bool:
        """Return whether a pair counts in scores: its reference may be its source only within one language."""
        # A corrector leaves some lines as they are, and a tree without words is blank on both sides.
        source, target = self._languages[row]
        return source == target or self._task.has_trees or self.sources[row] != self.references[row]

    def _counted(
        self, hypotheses: Sequence[str], rows: Sequence[int] | None = None
    ) -> tuple[list[str], list[list[str]]]:
        """Return the hypotheses and references of `rows`, by default of those that count."""
        if rows is None:
            rows = self._rows
        return [hypotheses[row] for row in rows], [[self.references[row] for row in rows]]

    def _requests(self, rows: Sequence[int], texts: Sequence[str]) -> list[str | Request]:
        """Return texts in place of the sources of `rows`, with their directions if the data sets name these."""
        requests = list[str | Request]()
        for row, text in zip(rows, texts, strict=True):
            direction = self._directions[row]
            _, target = direction
            requests.append(Request(text, direction=direction) if target else text)
        return requests

    def _split(self, way: str) -> Decoding:
        return self._decoding.model_copy(update={"split": way})

    def _pipeline(self, models: Transformer | Loaded, decoding: Decoding) -> Parser | Translator:
        if self._task.has_trees:
            return Parser(models, self._tokenizer, decoding)
        data = self._data
        return Translator(
            models, self._tokenizer, decoding, self._lengths, directions=data.directions, titles=data.has_titles
        )

    @contextmanager
    def _searching(self, model: Transformer) -> Iterator[Parser | Translator]:
        """Yield what searches with a model.

        It is made once. Until the next search, it takes no memory, and the model's weights may change.
        """
        if model not in self._searched:
            models = Loaded(for_scoring(model))
            self._searched[model] = models, self._pipeline(models, self._decoding)
        models, pipeline = self._searched[model]
        try:
            yield pipeline
        finally:
            models.rest()

    def _search(self, pipeline: Parser | Translator) -> list[Output]:
        """Return one output per source, with a line as its text; blank if the parser found no tree."""
        rows = range(len(self.sources))
        return self._gathered(rows, self._found(pipeline, rows[self._group.rank :: self._group.size]))

    def _search_within(self, pipeline: Parser | Translator, pace: Pace) -> list[Output] | None:
        """Search part by part, each a sample of all lines, and agree with the other ranks on each; None if given up."""
        rank = self._group.rank
        size = self._group.size
        rows = Random(0).sample(range(len(self.sources)), len(self.sources))
        own = list[Output]()
        done = 0
        lines = math.ceil(len(rows) / size)  # of the rank with the most
        while done < lines:
            (end,) = self._group.largest(pace.next(done, lines) if rank == 0 else 0)
            if end == done:
                return None
            pace.has_begun = True
            own += self._found(pipeline, rows[rank::size][done:end])
            done = end
        pace.next(done, lines)  # notes the time of the last part
        return self._gathered(rows, own)

    def _translated(
        self, pipeline: Parser | Translator, rows: Sequence[int], texts: Sequence[str] | None = None
    ) -> list[str]:
        """Return the translations or trees of the sources of `rows`, or of texts in their place."""
        return [output.text for output in self._found(pipeline, rows, texts)]

    def _found(
        self, pipeline: Parser | Translator, rows: Sequence[int], texts: Sequence[str] | None = None
    ) -> list[Output]:
        """Return the same, with their signs."""
        if texts is None:
            texts = [self.sources[row] for row in rows]
        results = pipeline.stream(self._requests(rows, texts))
        return [Output(result.texts[0], result.signs) for result in results]

    def _gathered(self, rows: Sequence[int], own: Sequence[Output]) -> list[Output]:
        """Return the outputs of all ranks, in the order of the lines; a rank has every n-th of `rows`."""
        outputs = [Output()] * len(rows)
        for rank, of_rank in enumerate(self._group.gather(own)):
            for row, output in zip(rows[rank :: self._group.size], of_rank, strict=True):
                outputs[row] = Output(*output)  # forks send lists
        return outputs


def _sets(corpus: Corpus, recipe: Recipe, count: int) -> list[Dataset]:
    """Return the data set of each of the `count` pairs of the development set `corpus`."""
    sets = recipe.data.splits["valid"]
    if len(sets) == 1:
        return [*sets] * count
    of_pairs = list[Dataset]()
    for each, kept in zip(sets, read_report(corpus.path.parent)["valid"]["kept by set"], strict=True):
        of_pairs += [each] * kept
    return of_pairs


def find_prepared(bundle: Bundle, run: Path) -> Path:
    """Return the prepared data of a bundle's run: in the working directory, or where the run's run.json says.

    Raise UserError if the data is in neither place.
    """
    places = [directory(bundle.recipe)]
    with suppress(UserError, KeyError, TypeError):  # no run.json, or a damaged one
        places.append((run / read_json(run / ABOUT)["prepared"]).resolve())
    for place in places:
        found = find(place, bundle.info.train_data, bundle.info.dev_set)
        if found is not None:
            return found
    problem = "was prepared from other data or settings" if places[0].exists() else "holds no prepared data"
    hint = f"run this where the model was trained, or prepare the data: nmt preprocess {bundle.path / 'recipe.yaml'}"
    raise UserError(f"{places[0]}: {problem}, but the development set of {bundle.path} is needed", hint)


def f1(references: Sequence[str], hypotheses: Sequence[str]) -> Score:
    """Return the F1 of trees, one per line, 0 to 100.

    A blank hypothesis is a failed parse and counts as missed; blank references are skipped.
    """
    pairs = _trees(references, hypotheses)
    gold = [tree for tree, _ in pairs]
    found = [tree for _, tree in pairs]
    return Score(score_brackets(gold, found).with_failures.f1, "EVALB|COLLINS.prm|failures:missed")


def f1_interval(references: Sequence[str], hypotheses: Sequence[str]) -> tuple[float, float]:
    """Return the bounds of the 95% confidence interval of F1."""
    counts = []
    for gold, tree in _trees(references, hypotheses):
        found = score_brackets([gold], [tree])
        counts.append((2 * found.total.matched, found.total.test + found.total.gold + found.missed))
    return interval(counts, lambda sums: 100 * sums[0] / max(sums[1], 1))


def _trees(references: Sequence[str], hypotheses: Sequence[str]) -> list[tuple[Tree, Tree | None]]:
    """Read pairs of trees, except those whose reference is blank; a blank hypothesis is None."""
    pairs = list[tuple[Tree, Tree | None]]()
    for reference, hypothesis in zip(references, hypotheses, strict=True):
        if reference:
            pairs.append((parse_tree(reference), parse_tree(hypothesis) if hypothesis else None))
    return pairs


@torch.no_grad()
def perplexity(model: Transformer, corpus: Corpus, group: Group, limits: NDArray[np.int64]) -> float:
    """Return the perplexity of the corpus's target symbols, including `</s>`.

    `limits` (pairs,) are the sizes of the vocabularies that targets may be of.
    """
    device = next(model.parameters()).device
    sources = corpus.source_lengths
    targets = corpus.target_lengths
    plan = plan_epoch(sources, targets, max(VALID_TOKENS, corpus.longest() + 1), seed=0, epoch=0)
    nll = tokens = 0.0
    for update in range(group.rank, len(plan), group.size):
        rows = plan.rows(update)
        for part in split_update(sources[rows], targets[rows], VALID_TOKENS):
            pairs = rows[part]
            for size in set(limits[pairs].tolist()):
                alike = pairs[limits[pairs] == size]
                nll += _negative_log_likelihood(model.narrowed(size), corpus, alike, device)
        tokens += float(targets[rows].sum() + len(rows))
    nll, tokens = group.total(nll, tokens)
    return perplexity_of(nll, tokens)


def _negative_log_likelihood(model: Transformer, corpus: Corpus, rows: Rows, device: torch.device) -> float:
    """Return the negative log-likelihood of the pairs' targets in nats, halving the batch if memory runs out.

    Raise UserError if not even one pair fits.
    """
    try:
        batch = make_batch(corpus, rows).to(device)
        return -float(token_log_probabilities([model], batch).sum(dtype=torch.float64))
    except torch.OutOfMemoryError:
        if len(rows) == 1:
            hint = "leave long sentences out of data.valid, or train without it: --set data.valid=[]"
            raise UserError(f"{device}: out of memory with one sentence of data.valid", hint) from None
    torch.cuda.empty_cache()  # outside `except`, so the traceback's tensors are freed
    middle = len(rows) // 2
    first = _negative_log_likelihood(model, corpus, rows[:middle], device)
    return first + _negative_log_likelihood(model, corpus, rows[middle:], device)
