"""Perplexity, BLEU and F1 on the development set, and checkpoint averages selected by these scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from nmt.checkpoint.averaging import Mean, average, averageable
from nmt.checkpoint.reading import AVERAGED, MANIFEST, Bundle, best, checkpoints, load_weights
from nmt.checkpoint.writing import add_info, save_bundle
from nmt.data.corpus import Corpus, Rows
from nmt.data.epochs import plan_epoch
from nmt.data.prepare import directory, fingerprint_of
from nmt.decoding.forced import token_log_probabilities
from nmt.decoding.parser import Parser
from nmt.decoding.read_ahead import Request
from nmt.decoding.translator import Translator
from nmt.metrics import Score, score, sentence_chrf
from nmt.model import functional
from nmt.model.transformer import Transformer
from nmt.parsing.brackets import score_brackets
from nmt.parsing.tree import parse_tree
from nmt.recipe import TASKS, Decoding, Recipe
from nmt.system.console import Console
from nmt.system.device import World
from nmt.system.errors import UserError
from nmt.system.integrity import intact
from nmt.text.sentences import TrainedLengths
from nmt.text.tokenizer import Tokenizer
from nmt.training.batches import make_batch, split_update
from nmt.training.distributed import Group

LINES_TO_COMPARE, SIGNIFICANT = 20, 0.05  # minimum lines and maximum p-value that decide how lines are split
VALID_TOKENS = 4096  # padded tokens per side of a batch
PERPLEXITY = TASKS["language_model"].label


@dataclass(frozen=True)
class DevScores:
    """A model's scores on the development set."""

    perplexity: float  # per target subword or symbol, including `</s>`, without label smoothing
    # BLEU (sacreBLEU on raw text) or bracketing F1 (failed parses count as missed), 0 to 100, of outputs searched with
    # the recipe's decoding settings; perplexity for a language model
    score: float
    signature: str  # settings of the metric
    hypotheses: Sequence[str] = ()  # one per sentence, blank if a parser found no tree; empty for a language model

    def by_name(self, score: str, perplexity: str = "perplexity") -> dict[str, float]:
        """Return score and perplexity under the given names; only one value if the names are equal."""
        return {score: self.score, perplexity: self.perplexity}


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
            raise UserError(
                f"data.valid: its longest sentence has {longest:,} subwords, more than model.max_positions "
                f"{recipe.model.max_positions:,}",
                f"leave that sentence out, or --set model.max_positions={longest}",
            )
        self._corpus, self._tokenizer, self._group, self._lengths = corpus, tokenizer, group, lengths
        self._decoding = recipe.decoding.model_copy(update={"beam": recipe.training.valid_beam or recipe.decoding.beam})
        self._task = recipe.task
        self.sources, self.references = corpus.texts() if self._task.has_source else ([], [])
        if self._task.has_trees and not any(self.references):
            raise UserError(
                "data.valid: none of its trees has words", "name trees that have words, or leave data.valid out"
            )

    @classmethod
    def of(cls, bundle: Bundle) -> Validation:
        """Return the validation of a bundle's run, for this process alone.

        Raise UserError if the run's training data is not prepared here, or has no development set.
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
        group = Group(World(), recipe.training.timeout_minutes)
        return cls(corpus, bundle.tokenizer(), recipe, group, bundle.lengths)

    def __call__(self, model: Transformer) -> DevScores:
        """Score a model, restoring its training mode afterwards."""
        was_training = model.training
        model.eval()
        try:
            with torch.compiler.set_stance("force_eager"):  # search would compile a graph for each shape
                dev_perplexity = perplexity(model, self._corpus, self._group)
                if not self._task.has_source:
                    return DevScores(dev_perplexity, dev_perplexity, "per subword, </s> counted")
                metric, hypotheses = f1 if self._task.has_trees else bleu, self._search(model)
                return DevScores(dev_perplexity, *metric(self.references, hypotheses), hypotheses)
        finally:
            model.train(was_training)

    def each(self, references: Sequence[str], hypotheses: Sequence[str]) -> list[float]:
        """Return each hypothesis's own score, 0 to 100: chrF for translations, F1 for trees."""
        if not self._task.has_trees:
            return sentence_chrf(references, hypotheses)
        return [f1([reference], [tree])[0] for reference, tree in zip(references, hypotheses, strict=True)]

    def compare_splits(self, model: Transformer) -> tuple[Score | None, int]:
        """Return the BLEU of splitting at every sentence, beside auto, and the number of dev lines that it is of.

        These are the lines that the two ways split differently. Fewer than LINES_TO_COMPARE have no score.
        """
        both = [
            self._translator(model, self._decoding.model_copy(update={"split": way})) for way in ("sentences", "auto")
        ]
        parts = [[[part.ids for part in each.split(Request(line))] for each in both] for line in self.sources]
        rows = [row for row, (one, other) in enumerate(parts) if one != other]
        if len(rows) < LINES_TO_COMPARE:
            return None, len(rows)
        sources, references = [self.sources[row] for row in rows], [self.references[row] for row in rows]
        ours, others = ([result.texts[0] for result in each.stream(sources)] for each in both)
        return score(ours, [references], ["bleu"], others)["bleu"], len(rows)

    def _translator(self, model: Transformer, decoding: Decoding) -> Translator:
        return Translator(model, self._tokenizer, decoding, self._lengths)

    def _search(self, model: Transformer) -> list[str]:
        """Return one hypothesis per source, as a line; blank if the parser found no tree."""
        rank, size = self._group.rank, self._group.size
        pipeline = (
            Parser(model, self._tokenizer, self._decoding)
            if self._task.has_trees
            else self._translator(model, self._decoding)
        )
        own = [result.texts[0] for result in pipeline.stream(self.sources[rank::size])]
        hypotheses = [""] * len(self.sources)
        for other, texts in enumerate(self._group.gather(own)):
            hypotheses[other::size] = texts
        return hypotheses


def bleu(references: Sequence[str], hypotheses: Sequence[str]) -> tuple[float, str]:
    """Return the BLEU of translations, 0 to 100, and its signature."""
    found = score(hypotheses, [references], ["bleu"])["bleu"]
    return found.score, found.signature


def f1(references: Sequence[str], hypotheses: Sequence[str]) -> tuple[float, str]:
    """Return the F1 of trees, one per line, 0 to 100, and its signature.

    A blank hypothesis is a failed parse and counts as missed; blank references are skipped.
    """
    pairs = [pair for pair in zip(references, hypotheses, strict=True) if pair[0]]
    gold = (parse_tree(reference) for reference, _ in pairs)
    found = (parse_tree(hypothesis) if hypothesis else None for _, hypothesis in pairs)
    return score_brackets(gold, found).f1_all, "EVALB|COLLINS.prm|failures:missed"


@torch.no_grad()
def perplexity(model: Transformer, corpus: Corpus, group: Group) -> float:
    """Return the perplexity of the corpus's target symbols, including `</s>`."""
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
    """Return the negative log-likelihood of the pairs' targets in nats, halving the batch if memory runs out.

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
    """Average a run's newest 1, 2, 3, 5, 8, … and all checkpoints, and write the average with the best dev score.

    The score is BLEU or F1 of outputs searched as in training, or a language model's perplexity. Ties go to the lower
    perplexity, then to the smaller number. Each checkpoint is read once. bundle.json holds the scores and, as `curve`,
    those of every number tried. Raise UserError if there are no checkpoints, if they are from different runs, or if
    their data is not prepared here.
    """
    found, path = averageable(directory, out)
    newest, task = found[-1], found[-1].task
    validation, mean, model = Validation.of(newest), Mean(newest), newest.model(device)
    names = [f"dev {name}" for name in dict.fromkeys((task.label, PERPLEXITY))]
    console.say("  ".join(["averaged", *names, "updates"]))
    scores: dict[int, DevScores] = {}  # by number of checkpoints averaged
    sizes = numbers_to_try(len(found))
    with console.progress("scoring", len(sizes), "averages") as advance:
        for count, bundle in enumerate(reversed(found), 1):
            mean.add(bundle)
            if count not in sizes:
                continue
            weights = mean.weights()
            load_weights(model, weights, bundle.path)
            dev = scores[count] = validation(model)
            figures = zip(names, dev.by_name(task.label, PERPLEXITY).values(), strict=True)
            cells = (f"{figure:{len(name)}.2f}" for name, figure in figures)
            console.say("  ".join([f"{count:8}", *cells, f"{bundle.step:,} to {newest.step:,}"]))
            last, top = max(scores.items(), key=lambda item: (task.rank(item[1].score), -item[1].perplexity))
            if last == count:
                best_weights = weights
            advance(1, f"best dev {task.label} {top.score:.2f} of {last}")
    curve = [{"last": count, **dev.by_name(task.metric)} for count, dev in scores.items()]
    more = {"scores": top.by_name(task.metric), "signature": top.signature, "curve": curve}
    return mean.save(path, best_weights, last, **more)


def choose_split(average: Bundle, device: torch.device, console: Console) -> Bundle:
    """Make splitting at every sentence a translator's default if that has a significantly better dev BLEU than auto.

    Leave a recipe alone that asks for another way than auto, or whose development set is missing. Not splitting at all
    is no candidate: lines longer than those of the development set would lose their ends.
    """
    recipe = average.recipe
    if recipe.task.name != "translate" or recipe.decoding.split != "auto" or not recipe.data.valid:
        return average
    try:
        validation = Validation.of(average)
    except UserError as error:
        console.say(f"  ways of splitting lines are not compared: {error.message}")
        return average
    found, lines = validation.compare_splits(average.model(device))
    if found is None or (one := found.comparison) is None:
        return average
    better = one.system.score > one.baseline.score and one.p_value < SIGNIFICANT
    console.say(
        f"  dev BLEU of {lines:,} lines with several sentences: {one.system.score:.2f} split at each, "
        f"{one.baseline.score:.2f} split as auto does (p = {one.p_value:.3f}): decoding.split is "
        f"{'sentences' if better else 'auto'}"
    )
    if not better:
        return average
    recipe = recipe.model_copy(update={"decoding": recipe.decoding.model_copy(update={"split": "sentences"})})
    info = {key: value for key, value in average.info.items() if key not in ("format", "task", "lossy", "hashes")}
    save_bundle(average.path, average.weights(), recipe, average.tokenizer(), info)
    average = Bundle.read(average.path)
    if average.scores:
        dev = Validation.of(average)(average.model(device))
        add_info(average.path, {"scores": dev.by_name(average.task.metric)})
    return Bundle.read(average.path)


def average_and_score(directory: Path, device: torch.device, console: Console) -> None:
    """Average the newest checkpoints of a run, score the average, and choose how it splits lines, unless that is done.

    If the average is worse than the best checkpoint, that one takes its place.
    """
    found, path = checkpoints(directory), directory / AVERAGED
    newest, top = found[-1], best(found)
    if (path / MANIFEST).exists():
        there = Bundle.read(path)
        is_same = (there.info["run"], there.step) == (newest.info["run"], newest.step)
        if is_same and (there.dev_score is not None or top is None):
            return
    result = average(directory, console=console)
    said = f"averaged {len(result.info['steps'])} checkpoints: {path}"
    if top is not None and top.dev_score is not None:
        dev, task = Validation.of(result)(result.model(device)), result.task
        scores, signature = dev.by_name(task.metric), dev.signature
        if task.rank(top.dev_score) > task.rank(dev.score):
            said += f"; its dev {task.label} {dev.score:.2f} is worse than that of {top.path}, which is taken"
            result, scores, signature = average(directory, best=1), top.scores, top.info["signature"]
        add_info(path, {"scores": scores, "signature": signature})
        result = choose_split(Bundle.read(path), device, console)
        said += f", dev {task.label} {result.dev_score:.2f}"
    console.say(said)
    console.say(f"next: {newest.task.command} --model {directory}")


def numbers_to_try(most: int) -> list[int]:
    """Return the Fibonacci numbers 1, 2, 3, 5, 8, … below `most`, followed by `most`."""
    numbers = [1, 2]
    while numbers[-1] < most:
        numbers.append(sum(numbers[-2:]))
    return [number for number in numbers if number < most] + [most]
