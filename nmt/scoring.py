"""What `nmt score` prints on stdout: scores of translations and trees, probabilities by a model, the cost of runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nmt.console import Console
from nmt.errors import UserError
from nmt.streams import open_output, read_input
from nmt.text.lines import read_lines, read_parallel

if TYPE_CHECKING:
    import torch

    from nmt.search.forced import ForcedDecoder, Totals


def translations(
    references: Sequence[Path],
    hypothesis: Path | None,
    baseline: Path | None,
    metrics: Sequence[str],
    language: str | None,
    lowercase: bool,
    as_json: bool,
    console: Console,
) -> None:
    """Scores of a hypothesis, or of stdin, by each of `metrics`; with a baseline its scores, intervals and p-values.

    Metrics of words take the `language`, or that of the first reference's name.
    """
    from nmt.metrics.bleu import COMPARED, OF_WORDS, as_dict, report, score
    from nmt.metrics.moses import Moses, language_of

    counts_words = not set(metrics).isdisjoint(OF_WORDS)
    moses = Moses(language or language_of(references[0])) if counts_words else None  # fails before it reads
    texts = [list(read_lines(path)) for path in references]
    other = None if baseline is None else list(read_lines(baseline))
    results = score(list(read_input(hypothesis)), texts, metrics, other, moses, lowercase)
    click.echo(json.dumps(as_dict(results)) if as_json else report(results))
    if baseline and not as_json:
        console.say(COMPARED)


def trees(gold: Path, hypothesis: Path | None, as_json: bool, console: Console) -> None:
    """EVALB's figures of a hypothesis, or of stdin, a tree per line."""
    from nmt.metrics.brackets import as_dict, report, score_files

    scores = score_files(gold, hypothesis or read_input(None))
    click.echo(json.dumps({"brackets": as_dict(scores)}) if as_json else report(scores))
    if scores.errors:
        console.say(f"errors: {scores.errors:,} of {scores.sentences:,} trees; the first: {scores.first_error}")


def by_model(
    decoder: ForcedDecoder, source: Path | None, reference: Path, metric: str, as_json: bool, console: Console
) -> None:
    """How probable a decoder finds the reference: perplexity of the whole, or logprob, a line for each of its lines.

    Raises UserError where perplexity is asked for and there is no line.
    """
    from nmt.search.forced import Totals

    totals = Totals()
    lines_of_both = read_parallel(source, reference) if source else (("", line) for line in read_lines(reference))
    pairs = totals.counted(decoder.stream(lines_of_both))
    if metric == "logprob":
        with ExitStack() as files:
            write = open_output(None, files)
            for pair in pairs:
                write(f"{pair.log_probability:.4f}\t{pair.subwords}")
    else:
        lines = []
        with console.progress("scoring", None, "lines") as advance:
            for pair in pairs:
                advance(1)
                if as_json:
                    lines.append({"log_probability": pair.log_probability, "subwords": pair.subwords})
        if not totals.pairs:
            raise UserError(
                f"nothing to score: {'source and reference have' if source else 'the reference has'} no lines",
                "name a REF with a sentence on each line",
            )
        if as_json:
            result = {"score": totals.perplexity, "subwords": totals.subwords}
            click.echo(json.dumps({"perplexity": result | {"log_probability": totals.log_probability, "lines": lines}}))
        else:
            signature = f"subwords:{totals.subwords}|lines:{totals.pairs}|logprob:{totals.log_probability:.1f}"
            click.echo(f"PPL {totals.perplexity:.2f}  {signature}")
    _say_cuts(decoder, totals, console)


def _say_cuts(decoder: ForcedDecoder, totals: Totals, console: Console) -> None:
    if totals.sources_cut:
        console.say(
            f"{totals.sources_cut:,} of {totals.pairs:,} source lines were cut to {decoder.max_source:,} subwords, the "
            "limit by decoding.max_source or model.max_positions"
        )
    if totals.targets_cut:
        console.say(
            f"{totals.targets_cut:,} of {totals.pairs:,} reference lines were cut to {decoder.max_target:,} subwords: "
            f"{totals.subwords_cut:,} subwords are not scored"
        )


def runs(paths: Sequence[Path], device: torch.device, as_json: bool, console: Console) -> None:
    """Dev score and cost of each run: columns of the paper's Table 2."""
    from nmt.training.cost import read_run, table

    found = [read_run(path, device, console) for path in paths]
    click.echo(json.dumps({"runs": [run.as_dict() for run in found]}) if as_json else table(found))
