"""`nmt score REF HYP...`: translations of one system, or of several beside each other."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nmt.commands.command_line import refuse
from nmt.commands.options import ScoreOptions
from nmt.commands.process import read_input, show
from nmt.metrics.differences import ChangedLine, Differences, Means, parts
from nmt.metrics.metric import Metric, check_lengths
from nmt.metrics.string_metrics import OF_WORDS, StringMetric
from nmt.metrics.words import Lines, Moses, language_of, unknown_words
from nmt.system.console import clock, has_colours, tabulated, width_of
from nmt.system.errors import UserError, counted, printable
from nmt.text.language_codes import Language, code_for

if TYPE_CHECKING:
    from nmt.metrics.comet import CometModel

FEW_LINES = 20_000  # up to which BLEU's interval takes seconds; with more it is narrow
LANGUAGES = (".ts", ".arb")  # of Tsonga and Arabic in names of files of lines: endings of formats, too
RED = "\x1b[31m"
PLAIN = "\x1b[39m"


@dataclass(frozen=True)
class Texts:
    """What is scored, and what it is compared with; all have the same number of lines, by the name of their file."""

    systems: dict[str, Lines]
    references: dict[str, Lines]  # empty if a model needs none
    source: dict[str, Lines]  # empty if nothing needs it

    @property
    def all(self) -> dict[str, Lines]:
        """Source and references before systems"""
        return {**self.source, **self.references, **self.systems}


def score_texts(options: ScoreOptions, names: Sequence[str]) -> None:
    """Print each metric's scores of the hypotheses; compare several with the baseline, or else with the best.

    What a word is depends on a language, by default inferred from the first reference's name.
    """
    refuse(options, "show", "needs --baseline", not options.baseline)
    if options.models:
        refuse(options, "overrides", "cannot be combined with --show")
        if len(options.models) > 1:
            raise click.UsageError("--show takes one --model, whose training data has the words")
        if options.source is None:
            raise click.UsageError("--show with --model needs --source FILE, whose words training may have seen")
    needs_no_source = "comet" not in names and options.show is None
    refuse(options, "source", "needs --model, --show or --metric comet", needs_no_source)
    # Models come first: what is wrong with them is reported before files are read.
    model = None
    if "comet" in names:
        refuse(options, "more_references", "cannot be combined with --metric comet, which takes one reference")
        if options.source is None:
            raise click.UsageError("--metric comet needs --source FILE, with the source of each line")
        model = _load_comet(options)
    needs_reference = model is None or model.needs_reference or names != ["comet"]
    refuse(options, "show", "compares --baseline with one HYP", len(options.files) > needs_reference + 1)
    if needs_reference and not options.files:
        raise click.BadArgumentUsage("score takes REF and any number of HYP, but got no files")
    language = code_for(options.language or "")
    if language and not Language.of(language).is_known:
        raise click.UsageError(f"--language must be a code, such as de (got {language})")
    if needs_reference and not language:
        language = code_for(language_of(options.reference))
    moses = None if set(names).isdisjoint(OF_WORDS) else Moses(language)
    texts = _read_texts(options, needs_reference)
    references = list(texts.references.values())
    if not {"bleu", "ter", *OF_WORDS}.isdisjoint(names):
        warning = unknown_words(language, references[0])
        if warning:
            options.console.say(f"{warning}; give --language CODE, such as zh, ja or th")
    metrics = dict[str, Metric]()
    for name in names:
        if model and name == "comet":
            metrics[name] = _comet(options, model, texts)
        else:
            metrics[name] = StringMetric(name, references, language, options.lowercase, moses)
    if len(texts.systems) > 1:
        _show_several(options, metrics, texts)
    else:
        _show_one(options, metrics, *texts.systems.values())


def _read_texts(options: ScoreOptions, needs_reference: bool) -> Texts:
    """Read all files; raise UserError if their lengths differ."""
    references: list[Path | None] = []
    hypotheses: list[Path | None] = list(options.files)
    if needs_reference:
        references = [options.reference, *options.more_references]
        hypotheses = hypotheses[1:]
    hypotheses = hypotheses or [None]
    if options.baseline:
        hypotheses.append(options.baseline)
    source = [options.source] if options.source else []
    texts = Texts(_read(options, hypotheses), _read(options, references), _read(options, source))
    check_lengths(texts.all)
    return texts


def _read(options: ScoreOptions, paths: Sequence[Path | None]) -> dict[str, Lines]:
    """Read the lines of files, and of stdin for None, by name.

    Raise BadArgumentUsage if a name is given twice, and UserError for a file whose format has more than lines.
    """
    from nmt.formats.declared import ending_of, is_of_a_format, kind_of

    found = dict[str, Lines]()
    for path in paths:
        name = str(path or "<stdin>")
        if name in found:
            raise click.BadArgumentUsage(f"{name} is given twice")
        found[name] = list(read_input(path, options.console))
        is_language = path and ending_of(path) in LANGUAGES and not kind_of(path)
        if path and is_of_a_format(path) and not is_language:
            problem = f"{path}: is no file of lines, and its tags or keys would be scored as words"
            raise UserError(problem, "write its texts to a file, one on each line, and name that")
    return found


def _load_comet(options: ScoreOptions) -> CometModel:
    from nmt.metrics.comet import load
    from nmt.system.device import choose_device

    return load(options.comet, choose_device(options.device, options.threads))


def _comet(options: ScoreOptions, model: CometModel, texts: Texts) -> Metric:
    """Read every distinct line by COMET's encoder, which takes almost all of the time, and say how long it took."""
    from nmt.metrics.comet import Comet

    (source,) = texts.source.values()
    reference = next(iter(texts.references.values())) if model.needs_reference else None
    metric = Comet(model, source, reference, texts.systems.values())
    lines = len(source) * len(texts.systems)
    start = time.perf_counter()
    with options.console.progress("reading by COMET", len(metric.texts), "texts") as advance:
        metric.read(advance)
    seconds = time.perf_counter() - start
    options.console.say(f"COMET: {counted(lines, 'line')} in {clock(seconds)}, {lines / seconds:,.1f} lines/s")
    return metric


def _show_one(options: ScoreOptions, metrics: dict[str, Metric], hypotheses: Lines) -> None:
    """Print one system's scores, each with its signature on the next line."""
    lines = []
    found = {}
    with options.console.progress("scoring", len(metrics), "metrics") as advance:
        for name, metric in metrics.items():
            advance(0, metric.label)
            score = metric.corpus_score(hypotheses)
            figures: dict[str, Any] = {"score": score}
            if name == "comet":
                figures["lines"] = metric.line_scores(hypotheses)
            found[name] = metric.as_dict(figures)
            lines += [f"{metric.label} {metric.written(score)}{_note(metric)}", f"  {metric.signature}"]
            advance(1)
    explained = ""
    if "bleu" in metrics and len(hypotheses) <= FEW_LINES:
        from nmt.metrics.significance import interval

        bleu = metrics["bleu"]
        low, high = interval(bleu.counts(hypotheses), bleu.score)
        found["bleu"]["interval"] = (low, high)
        explained = f"BLEU of all lines is {low:.2f} to {high:.2f} in 95% of bootstrap samples"
    if options.as_json:
        show(json.dumps(found))
        return
    show("\n".join(lines))
    if explained:
        options.console.say(explained)


def _note(metric: Metric) -> str:
    return f"  ({metric.note})" if metric.note else ""


def _show_several(options: ScoreOptions, metrics: dict[str, Metric], texts: Texts) -> None:
    """Print a table for each metric, with its signature on the line below; with --show, also lines."""
    from nmt.metrics.systems import EXPLAINED, MEANING, standings

    baseline = str(options.baseline) if options.baseline else None
    tables = []
    found: dict[str, Any] = {}
    has_meaning = False
    with options.console.progress("comparing", len(metrics), "metrics") as advance:
        for name, metric in metrics.items():
            advance(0, metric.label)
            standing = standings(metric, texts.systems, baseline)
            systems = [one.as_dict() for one in standing]
            if name == "comet":
                for one in systems:
                    one["lines"] = metric.line_scores(texts.systems[one["system"]])
            found[name] = metric.as_dict({"systems": systems})
            tables += tabulated([one.cells() for one in standing], width_of(sys.stdout))
            tables += [f"  {metric.signature}{_note(metric)}", ""]
            has_meaning |= any(one.people is not None for one in standing)
            advance(1)
    if options.show:
        by_line = metrics.get("comet") or StringMetric("chrf", list(texts.references.values()))
        scores, before = map(by_line.line_scores, texts.systems.values())
        differences = Differences(scores, before, texts.all)
        measured = [*texts.references.values(), *texts.source.values()][0]
        means = {"length": differences.by_length(measured)}
        if options.models:
            means |= _by_unseen(options, differences, *texts.source.values())
        found["means"] = {heading: [one.as_dict() for one in rows] for heading, rows in means.items()}
        found["gained"] = [line.as_dict() for line in differences.gained(options.show)]
        found["lost"] = [line.as_dict() for line in differences.lost(options.show)]
    if options.as_json:
        show(json.dumps(found))
        return
    show("\n".join(tables[:-1]))
    options.console.say(EXPLAINED)
    if has_meaning:
        options.console.say(MEANING)
    if options.show:
        for heading, rows in means.items():
            cells = [_cells(heading, one, by_line) for one in rows]
            show("\n".join(["", *tabulated(cells, width_of(sys.stdout))]))
        _show_lines("gained", by_line, differences.gained(options.show), texts)
        _show_lines("lost", by_line, differences.lost(options.show), texts)


def _by_unseen(options: ScoreOptions, differences: Differences, source: Lines) -> dict[str, list[Means]]:
    """Return means by the words that the model's training has not seen; none, and say why, if its data is not here."""
    from nmt.exchange.resolve import resolve
    from nmt.training.unseen import unseen_words

    bundle, _ = resolve(options.models[0])
    try:
        counts = unseen_words(bundle, bundle.path.parent, source, options.console)
    except UserError as error:
        options.console.say(f"unseen words are not counted: {error.message}")
        return {}
    return {"unseen words": differences.by_unseen(counts)}


def _cells(heading: str, means: Means, metric: Metric) -> dict[str, str]:
    """Return the cells of a table's row, by heading."""
    return {
        heading: means.words,
        "lines": f"{means.lines:,}",
        "baseline": metric.written(means.baseline),
        "system": metric.written(means.score),
        "difference": f"{means.difference:+.{metric.decimals}f}",
    }


def _show_lines(heading: str, metric: Metric, lines: Sequence[ChangedLine], texts: Texts) -> None:
    """Print the lines that gained or lost most.

    A terminal shows in red what the outputs have and the first reference lacks.
    """
    show(f"\n{heading} most by {metric.label}:{'' if lines else ' no line'}")
    for line in lines:
        difference = f"{line.difference:+.{metric.decimals}f}"
        show(f"\nline {line.number:,}: {metric.written(line.baseline)} to {metric.written(line.score)}, {difference}")
        width = max(map(len, line.texts))
        reference = printable(next((line.texts[name] for name in texts.references), ""))
        for name, text in line.texts.items():
            text = printable(text)
            if name in texts.systems and reference and has_colours(sys.stdout):
                text = "".join(f"{RED}{part}{PLAIN}" if lacks else part for part, lacks in parts(text, reference))
            click.echo(f"  {printable(name):{width}}  {text}")
