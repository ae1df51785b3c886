"""The arguments and options of `nmt score` as one value."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from nmt.console import Console
from nmt.metrics.bleu import METRICS
from nmt.terminal.help import in_section
from nmt.terminal.options import common_options, device_option, gathered, overrides_option
from nmt.terminal.types import FILE, TEXT, Word

in_scored, in_by_model = map(in_section, ("What is scored", "By a model"))


@dataclass(frozen=True)
class ScoreOptions:
    """Arguments and options of `nmt score`."""

    files: tuple[Path, ...]
    runs: bool
    html: Path | None
    more_references: tuple[Path, ...]
    metric: str | None
    paper: bool
    lowercase: bool
    language: str | None
    baseline: Path | None
    as_json: bool
    models: tuple[Path, ...]
    source: Path | None
    overrides: tuple[str, ...]
    device: str
    threads: int | None
    console: Console

    @property
    def reference(self) -> Path:
        """REF, which every mode but --runs needs."""
        return self.files[0]

    @property
    def hypothesis(self) -> Path | None:
        """HYP; None stands for stdin."""
        return self.files[1] if len(self.files) > 1 else None


score_options = gathered(
    ScoreOptions,
    [
        click.argument("files", type=FILE, nargs=-1, metavar="REF [HYP]"),
        in_scored(
            "--metric",
            type=Word(*METRICS, "brackets", "perplexity", "logprob"),
            metavar="NAME,…",
            help="bleu, chrf, ter, tokenised, paper; separated by commas; default: bleu,chrf. Or brackets: F1 of "
            "trees. With --model perplexity (default) or logprob, a line per sentence: log-probability, tab, subwords.",
        ),
        in_scored("--baseline", type=FILE, metavar="FILE", help="Another HYP to compare with by paired bootstrap."),
        in_scored(
            "--reference",
            "more_references",
            type=FILE,
            multiple=True,
            metavar="FILE",
            help="A further reference; repeatable.",
        ),
        in_scored("--lowercase", is_flag=True, help="Ignore case, as most figures on IWSLT and Multi30k do."),
        in_scored("--paper", is_flag=True, help="Add the metric paper: BLEU as the papers of 2017 counted it."),
        in_scored(
            "--language",
            type=TEXT,
            metavar="CODE",
            help="Language code of REF, for tokenised and paper; default: what REF's name ends in.",
        ),
        in_scored("--runs", is_flag=True, help="The files are runs: print the dev score and the cost of each."),
        in_scored(
            "--html",
            type=FILE,
            metavar="FILE",
            help="With --runs: also write a page with their curves beside each other.",
        ),
        in_scored("--json", "as_json", is_flag=True, help="Print one JSON object."),
        in_by_model(
            "--model",
            "models",
            type=FILE,
            multiple=True,
            help="Score REF by this bundle or run's directory; repeat for an ensemble.",
        ),
        in_by_model(
            "--source",
            type=FILE,
            metavar="FILE",
            help="Text that REF translates line by line; needed if --model is a translator.",
        ),
        overrides_option(in_by_model),
        device_option,
        common_options,
    ],
)
