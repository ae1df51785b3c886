"""The commands: argv to one call of the core.

Results go to stdout, everything else to stderr. Commands import what they need when they run, so that `nmt --help`
answers before torch is loaded.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal, NoReturn

import click

from nmt.terminal import process
from nmt.terminal.options import (
    FILE,
    TEXT,
    WORKERS,
    NumberOrAuto,
    ScoreOptions,
    SearchOptions,
    Shares,
    TranslateOptions,
    common_options,
    device_option,
    overrides_option,
    score_options,
    search_options,
    version_option,
)

if TYPE_CHECKING:
    from nmt.console import Console


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@version_option
def cli() -> None:
    """Train and run your own Transformer: raw text in, detokenised text out.

    \b
    nmt train recipes/wmt14_en_de.yaml
    nmt average ckpts/ --last 5
    cat input.txt | nmt translate --beam 4
    """


@cli.command(short_help="Train the tokenizer and encode every split into data/NAME/.")
@click.argument("recipe", type=TEXT)
@overrides_option
@common_options
def preprocess(recipe: str, overrides: tuple[str, ...], threads: int | None, console: Console) -> None:
    """Train the tokenizer of RECIPE on its training data and encode every split into data/NAME/."""
    from nmt import recipe as recipes
    from nmt.bundle import initial_bundle
    from nmt.data.prepare import directory, prepare
    from nmt.device import cores

    loaded = recipes.load(recipe, overrides)
    initial = initial_bundle(loaded)
    if not prepare(loaded, console, threads or cores(), initial.path if initial else None):
        console.say(f"nothing to do: {directory(loaded)} is up to date")


@cli.command(short_help="Train a recipe, or resume its run in ckpts/.")
@click.argument("recipe", type=TEXT)
@click.option("--out", type=FILE, default=Path("ckpts"), show_default=True, help="Directory of the run.")
@click.option("--plan", is_flag=True, help="Print parameters, memory, disk, FLOPs and time, and train nothing.")
@click.option("--devices", type=WORKERS, help="Number of devices to train on; default: all visible GPUs.")
@overrides_option
@device_option
@common_options
def train(
    recipe: str,
    out: Path,
    plan: bool,
    devices: int | None,
    overrides: tuple[str, ...],
    device: str,
    threads: int | None,
    console: Console,
) -> None:
    """Train RECIPE, or resume the run that --out holds. The data is preprocessed first if needed."""
    from nmt import recipe as recipes
    from nmt.terminal import training

    loaded, base = recipes.load_with_base(recipe, overrides)
    if plan:
        training.show_plan(loaded, devices, device, threads)
    else:
        training.train(loaded, base, out, devices, device, threads, console)


@cli.command(short_help="Average the newest or the best checkpoints, or several models, into one bundle.")
@click.argument("ckpts", type=FILE, nargs=-1, required=True)
@click.option(
    "--last",
    type=NumberOrAuto(min=1),
    metavar="N|auto",
    help="Average the newest N; auto: as many as score best on the dev set. Default: decoding.average_last.",
)
@click.option("--best", type=click.IntRange(min=1), metavar="N", help="Average the N with the best dev scores instead.")
@click.option(
    "--weights",
    type=Shares(),
    metavar="W,W,…",
    help="Average models of one shape, such as those before and after fine-tuning, CKPTS being several.",
)
@click.option("--out", type=FILE, help="Bundle to write; default: CKPTS/averaged, with --weights averaged.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["nmt", "huggingface"]),
    default="nmt",
    show_default=True,
    help="huggingface: also write the average to --out, as a folder that transformers loads.",
)
@device_option
@common_options
def average(
    ckpts: tuple[Path, ...],
    last: int | Literal["auto"] | None,
    best: int | None,
    weights: tuple[float, ...] | None,
    out: Path | None,
    form: Literal["nmt", "huggingface"],
    device: str,
    threads: int | None,
    console: Console,
) -> None:
    """Average the newest or the best checkpoints of the run in CKPTS into one bundle.

    With --last auto the newest 1, 2, 3, 5, 8, … and all are averaged and scored as checkpoints are in training, which
    needs the prepared data and computes on --device; stderr shows the scores, and the best average is written.

    With --weights 0.3,0.7 the models in two CKPTS, each a bundle, a run's directory or a name of the hub, are averaged
    with these shares of their sum. A model between those before and after fine-tuning forgets less of what it knew.

    With --format huggingface CKPTS may also be a bundle, which is written to --out as it is.
    """
    from nmt.terminal import training

    if weights is not None:
        if last or best or form != "nmt":
            raise click.UsageError("--weights does not go with --last, --best or --format")
        training.mix(ckpts, weights, out, console)
    elif len(ckpts) > 1:
        raise click.UsageError("several CKPTS need --weights, one for each, such as --weights 0.3,0.7")
    elif form == "huggingface":
        training.export(ckpts[0], last, best, out, device, threads, console)
    else:
        training.average(ckpts[0], last, best, out, device, threads, console)


@cli.command(short_help="Translate lines: one out for each in, in order.")
@click.option("--engine", type=click.Choice(["nmt", "ctranslate2"]), default="nmt", show_default=True)
@click.option("--prefix", type=FILE, help="Begin translation N with line N of this file.")
@click.option(
    "--terms",
    type=FILE,
    help="Table of source term, tab, target term: where the first stands in a line, its translation has the second.",
)
@click.option(
    "--keep", type=TEXT, multiple=True, metavar="PATTERN", help="Copy what this regular expression matches; repeatable."
)
@click.option(
    "--sample",
    type=click.IntRange(1, 1000),
    metavar="N",
    help="Draw N translations of each line at random, one per line, instead of searching for the best one.",
)
@search_options
def translate(
    options: SearchOptions,
    engine: Literal["nmt", "ctranslate2"],
    prefix: Path | None,
    terms: Path | None,
    keep: tuple[str, ...],
    sample: int | None,
) -> None:
    """Translate lines: one line out for each line in, in order; with --sample N, N lines.

    At the end stderr shows the number of lines, the speed, and counts of warnings.
    """
    from nmt.terminal import searching

    searching.translate(options, TranslateOptions(engine, prefix, terms, keep, sample))


@cli.command(short_help="Sentences to bracketed trees: one out for each in, in order.")
@click.option("--pretty", is_flag=True, help="Draw each tree over several lines, with an empty one after it.")
@click.option("--unconstrained", is_flag=True, help="Search without the constraint to trees; mend malformed outputs.")
@search_options
def parse(options: SearchOptions, pretty: bool, unconstrained: bool) -> None:
    """Parse sentences, Treebank tokens with a space between: one bracketed tree for each line in, in order.

    The search finds nothing but trees over exactly the words of a line. With --unconstrained an output may be
    malformed; brackets are added or removed to mend it, and where its leaves are not as many as the words the line
    stays empty. At the end stderr shows the number of lines, the speed, and counts of warnings.
    """
    from nmt.terminal import searching

    searching.parse(options, pretty, unconstrained)


@cli.command(short_help="BLEU, chrF and TER, with signatures; F1 of trees; perplexity under a model.")
@score_options
def score(options: ScoreOptions) -> None:
    """Score HYP, or stdin, against REF: detokenised text, one sentence per line.

    The metric tokenised is BLEU after Moses' tokenizer, unsmoothed, as multi-bleu prints it. The metric paper is the
    same with compounds split at hyphens: on newstest2014 about 1.5 above sacreBLEU's, and only for comparison with
    figures of 2017. sacreBLEU's BLEU is printed too. With --baseline every score comes with its 95% confidence interval
    and the p-value of its difference from the other system's.

    With --metric brackets REF holds trees, a file or a folder of .mrg files, and HYP one tree per line, an empty line
    being a failure. The figures are EVALB's with COLLINS.prm, except that a root called ROOT, S1 or nothing does not
    count where the other tree's is called otherwise. "Failures missed" is F1 with errors and skips in the recall.

    With --model no HYP is read: the score is how probable a translator finds REF given --source, or a language model
    finds REF alone, by forced decoding. All subwords and the end of each sentence count, and nothing is smoothed.

    With --runs there is a line for each run's directory or bundle, with the columns of the paper's Table 2: dev score;
    FLOPs of training as the paper estimates them, time × devices × sustained single-precision FLOP/s, and as counted
    exactly; time, target tokens, updates and devices, over all parts of the run.
    """
    from nmt.terminal import scoring

    scoring.score(options)


def main() -> NoReturn:
    """The command `nmt`; its exit codes are those of `nmt/terminal/process.py:run`."""
    process.run(cli)
