"""`nmt score`: score runs, trees, translations, or a reference by models."""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from itertools import tee
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from nmt.commands.command_line import refuse
from nmt.commands.options import ScoreOptions
from nmt.commands.process import count_input, open_output, read_input, show
from nmt.commands.score_texts import score_texts
from nmt.formats.confidence import signs_of
from nmt.formats.letter_case import as_usual
from nmt.formats.numbers import compare
from nmt.metrics.string_metrics import METRICS, OF_WORDS
from nmt.system.compression import open_input
from nmt.system.console import Advance, Console, figure, width_of
from nmt.system.errors import UserError, counted
from nmt.text.lines import read_parallel

if TYPE_CHECKING:
    from nmt.checkpoint.reading import Bundle
    from nmt.decoding.forced import ForcedDecoder, PairScores
    from nmt.formats.confidence import Confidence
    from nmt.formats.sentences import TrainedLengths
    from nmt.recipe import Decoding
    from nmt.text.tokenizer import Direction, Tokenizer
    from nmt.text.vocabulary import Vocabulary

Item = TypeVar("Item")
OF_TEXTS = (*METRICS, "comet")
BY_MODEL = ("perplexity", "logprob", "confidence")


def score(options: ScoreOptions) -> None:
    """Score runs, trees, translations, or a reference by models; raise UsageError for incompatible options."""
    if options.runs:
        return _score_runs(options)
    refuse(options, "html", "needs --runs")
    refuse(options, "robust", "needs --model", not options.models)
    if options.robust:
        refuse(options, "metric", "must be chrf with --robust", options.metric != "chrf")
        refuse(options, "baseline more_references lowercase paper show", "cannot be combined with --robust")
        return _score_robustness(options)
    by_model = bool(options.models) and options.show is None  # with --show, it tells which words its training has seen
    if by_model:
        refuse(options, "baseline more_references lowercase paper", "cannot be combined with --model without --show")
    metrics = _metrics(options, by_model)
    if not by_model:
        no_texts = set(metrics).isdisjoint(OF_TEXTS)
        refuse(options, "baseline lowercase language", f"needs --metric {', '.join(OF_TEXTS)}", no_texts)
        refuse(options, "overrides", "needs --model", not options.models)
        if "brackets" not in metrics:
            return score_texts(options, metrics)
    if not 1 <= len(options.files) <= 2:
        raise click.BadArgumentUsage(f"score takes REF and at most one HYP here, but got {len(options.files)} files")
    if by_model:
        return _score_by_model(options, metrics)
    refuse(options, "more_references source show", "cannot be combined with --metric brackets")
    return _score_trees(options, metrics)


def _score_runs(options: ScoreOptions) -> None:
    """Print each run's dev score and cost, the columns of the paper's Table 2; with --html, also write a page."""
    if options.html and options.html.suffix != ".html":
        raise click.UsageError(f"--html {options.html}: must end in .html, since it is a page")
    if not options.files:
        raise click.UsageError("--runs needs runs: nmt score --runs CKPTS ...")
    others = "more_references metric models source robust overrides paper lowercase language baseline show"
    refuse(options, others, "cannot be combined with --runs")
    from nmt.report.page import write_page
    from nmt.report.record import read_summarised
    from nmt.system.device import choose_device
    from nmt.training.summary import summarise, table

    device = choose_device(options.device, options.threads)
    with options.console.progress("reading", len(options.files), "runs") as advance:
        found = [summarise(path, device, options.console) for path in _counted(options.files, advance)]
    if options.as_json:
        show(json.dumps({"runs": [run.as_dict() for run in found]}))
    else:
        show(table(found, width_of(sys.stdout)))
    if options.html:
        write_page([read_summarised(run, options.console, len(found) > 1) for run in found], options.html)
        options.console.say(f"page: {options.html}")


def _score_trees(options: ScoreOptions, metrics: Sequence[str]) -> None:
    """Print EVALB's figures for a hypothesis file with one tree per line."""
    if len(metrics) > 1:
        raise click.UsageError("--metric brackets cannot be combined with others: it reads trees")
    from nmt.parsing.brackets import as_dict, report, score_files

    hypothesis = options.hypothesis
    # The command that writes to stdin may show its own progress on the same terminal.
    with _progress(options, hypothesis, "trees", garbles=hypothesis is None) as advance:
        lines = _counted(read_input(hypothesis, options.console), advance)
        scores = score_files(options.reference, lines, str(hypothesis or "<stdin>"))
    show(json.dumps({"brackets": as_dict(scores)}) if options.as_json else report(scores))
    for note, count in scores.notes.items():
        options.console.say(f"{options.reference}: {count:,} {note}")
    if scores.errors:
        first = f"the first: {scores.first_error}"
        options.console.say(f"errors: {scores.errors:,} of {counted(scores.sentences, 'tree')}; {first}")


def _progress(options: ScoreOptions, path: Path | None, unit: str, garbles: bool) -> AbstractContextManager[Advance]:
    """Show progress through a file or stdin, unless it `garbles` output on the terminal."""
    shown = Console(options.console.quiet or garbles)
    total = None if shown.quiet else count_input(path)
    return shown.progress("scoring", total, unit)


def _counted(items: Iterable[Item], advance: Advance) -> Iterator[Item]:
    """Yield the items; count each as done when the next is requested."""
    for item in items:
        yield item
        advance(1)


def _score_by_model(options: ScoreOptions, metrics: Sequence[str]) -> None:
    """Print the models' perplexity on the reference, or with another metric a figure for each line."""
    if options.hypothesis:
        raise click.UsageError("--model scores REF itself, so it takes no HYP")
    by_line = metrics != ["perplexity"]
    if len(metrics) > 1 or (options.as_json and by_line):
        named = f"--metric {','.join(metrics)}"
        raise click.UsageError(f"{named} cannot be combined; perplexity with --json also has every line")
    if options.source is None:
        raise click.UsageError("--model needs --source FILE, with the source of each line of REF")
    decoder, sureness = _forced_decoder(options, options.source, metrics)  # checks the files before loading a model
    from nmt.decoding.forced import PairScores

    totals = PairScores()
    lines = []
    reference = options.reference
    pairs, texts = tee(read_parallel(options.source, reference))
    garbles = by_line and sys.stdout.isatty()
    with ExitStack() as held, _progress(options, reference, "lines", garbles) as advance:
        write = open_output(None, held) if by_line else None
        for (source, output), pair in zip(texts, _counted(decoder.stream(pairs), advance), strict=True):
            totals = totals.plus(pair)
            if write and sureness:
                write(f"{sureness(source.strip(), output.strip(), pair):.4f}")
            elif write:
                write(f"{pair.log_probability:.4f}\t{pair.subwords}")
            elif options.as_json:
                lines.append({"log_probability": pair.log_probability, "subwords": pair.subwords})
    if not by_line:
        show(_perplexity(totals, lines, options))
    _report_truncation(decoder, totals, options.console)


def _score_robustness(options: ScoreOptions) -> None:
    """Print chrF of the models' translations of the source, plain and changed in each way."""
    if not options.files:
        raise click.BadArgumentUsage("score takes REF with --robust, but got no files")
    if len(options.files) > 1:
        raise click.UsageError("--robust translates --source itself, so it takes no HYP")
    if options.source is None:
        raise click.UsageError("--robust needs --source FILE, with the source of each line of REF")
    from nmt.decoding.translator import Translator
    from nmt.decoding.workers import Saved
    from nmt.training.robustness import LABELS, LINES, figures, robustness, table

    pairs = list(read_parallel(options.source, options.reference))  # before a model is loaded
    if not pairs:
        raise _nothing_to_score()
    bundles, tokenizer, decoding, direction = _models(options)
    data = bundles[0].recipe.data
    lengths = bundles[0].lengths
    languages = (direction[0] or data.source, direction[1] or data.target)
    models = Saved(bundles, options.device, None, options.threads, forks=True, say=options.console.say)
    scores = {}
    with (
        Translator(
            models,
            tokenizer,
            decoding,
            lengths,
            directions=data.directions,
            direction=direction,
            titles=data.has_titles,
        ) as translator,
        options.console.progress("translating", len(LABELS) * len(pairs), "lines") as advance,
    ):

        def translate(sources: list[str]) -> list[str]:
            return [result.texts[0] for result in _counted(translator.stream(sources), advance)]

        for name, found in robustness(translate, pairs, [languages] * len(pairs)):
            scores[name] = found.score
            signature = found.signature
    if options.as_json:
        show(json.dumps({"robust": {LINES: len(pairs), "signature": signature, **figures(scores)}}))
    else:
        show(table(scores, signature))


def _perplexity(totals: PairScores, lines: list[dict[str, float]], options: ScoreOptions) -> str:
    """Format the overall perplexity, as text or as JSON with `lines`; raise UserError if there are no pairs."""
    if not totals.pairs:
        raise _nothing_to_score()
    if options.as_json:
        result = {
            "score": totals.perplexity,
            "subwords": totals.subwords,
            "log_probability": totals.log_probability,
            "lines": lines,
        }
        return json.dumps({"perplexity": result})
    signature = f"subwords:{totals.subwords}|lines:{totals.pairs}|logprob:{totals.log_probability:.1f}"
    return f"PPL {figure(totals.perplexity)}\n  {signature}"


def _nothing_to_score() -> UserError:
    problem = "nothing to score: source and reference have no lines"
    return UserError(problem, "name a REF with a sentence on each line")


def _report_truncation(decoder: ForcedDecoder, totals: PairScores, console: Console) -> None:
    for side, cut, longest, more in (
        ("source", totals.sources_cut, decoder.max_source, ", the limit by decoding.max_source or model.max_positions"),
        ("reference", totals.targets_cut, decoder.max_target, f": {totals.subwords_cut:,} subwords are not scored"),
    ):
        if cut:
            console.say(f"{cut:,} of {totals.pairs:,} {side} lines were cut to {longest:,} subwords{more}")


def _metrics(options: ScoreOptions, by_model: bool) -> list[str]:
    """Return the names of the metrics to compute, `by_model` or of texts; raise BadParameter for an unknown one."""
    allowed: Sequence[str]
    kind = "without --model" if options.show is None else "with --show"
    if by_model:
        kind = "with --model"
        allowed = BY_MODEL
        wanted = options.metric or "perplexity"
    else:
        allowed = (*OF_TEXTS, "brackets")
        wanted = options.metric or "bleu,chrf"
    names = [name.strip() for name in wanted.split(",") if name.strip()]
    if options.paper and "paper" not in names:
        names.append("paper")
    unknown = [name for name in names if name not in allowed]
    if unknown or not names:
        wrong = unknown[0] if unknown else wanted
        refuse(options, "metric", f"{wrong} needs --model", wrong in BY_MODEL and not options.models)
        problem = f"{wrong!r} is none of {', '.join(allowed)}, the metrics {kind}"
        near = difflib.get_close_matches(wrong.lower(), allowed, n=1)
        if near:
            problem += f"; did you mean {near[0]}?"
        raise click.BadParameter(problem, param_hint="--metric")
    if not set(names).isdisjoint(OF_WORDS) and "bleu" not in names:
        names.insert(0, "bleu")  # word-based scores are not comparable: add one that is
    return names


def _forced_decoder(
    options: ScoreOptions, source: Path, metrics: Sequence[str]
) -> tuple[ForcedDecoder, Callable[[str, str, PairScores], float] | None]:
    """Load the scoring models, and what tells the confidence of a source, its translation and their scores, if wanted.

    Raise UserError if a file, model or confidence is missing, or a model is for another task.
    """
    for path in (source, options.reference):
        if not path.is_fifo():
            open_input(path).close()  # report a missing file before loading a model
    from nmt.checkpoint.reading import known_confidence
    from nmt.decoding.forced import ForcedDecoder
    from nmt.system.device import choose_device

    bundles, tokenizer, decoding, direction = _models(options)
    sureness = None
    if "confidence" in metrics:
        language, _ = direction
        own = tokenizer.of(language).source
        sureness = partial(_sureness, known_confidence(bundles), own, language or "", bundles[0].lengths)
    device = choose_device(options.device, options.threads)
    models = [bundle.model(device) for bundle in bundles]
    return ForcedDecoder(models, tokenizer, decoding, direction), sureness


def _sureness(
    confidence: Confidence,
    vocabulary: Vocabulary,
    language: str,
    lengths: TrainedLengths | None,
    source: str,
    output: str,
    scores: PairScores,
) -> float:
    """Return the confidence of a translation as a search would have it; 1 if both texts are blank."""
    if not source and not output:
        return 1.0
    ids = vocabulary.encode(as_usual(source, vocabulary, language))
    is_unusual = lengths is not None and lengths.is_unusual(len(ids), scores.subwords - 1)
    changes = compare(source, output)
    unknown = vocabulary.count_unknown(ids)
    subwords = (len(ids), scores.subwords)
    return confidence(signs_of(source, output, subwords, scores.log_probability, unknown, changes, is_unusual))


def _models(options: ScoreOptions) -> tuple[list[Bundle], Tokenizer, Decoding, Direction]:
    """Return the translators, their tokenizer, decoding settings, and the direction to which they translate.

    Raise UserError if a model is missing or is for another task, or if they differ in tokenizers.
    """
    from nmt.checkpoint.reading import common_tokenizer
    from nmt.commands.translate import find_models

    bundles, decoding = find_models(options.models, options.overrides, "translate", options.console)
    tokenizer = common_tokenizer(bundles)
    direction = tokenizer.complete((None, options.language), bundles[0].recipe.data.directions)
    return bundles, tokenizer, decoding, direction
