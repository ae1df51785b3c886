"""The six commands, with their help texts and examples.

Results go to stdout, everything else to stderr. Each command imports its implementation when it runs, so that
`nmt --help` answers before torch loads.
"""

from __future__ import annotations

from typing import NoReturn

import click

from nmt.commands import options, process
from nmt.commands.command_line import CommandGroup, LineCommand, accepts, version_option


@click.group(
    cls=CommandGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    examples=[
        ("nmt preprocess my.yaml", "learn subwords, encode the data"),
        ("nmt train my.yaml", "train into ckpts/, or resume there"),
        ("nmt average ckpts/", "one model from the last checkpoints"),
        ("nmt translate < input.en > output.de", "one line out for each line in"),
        ("nmt score test.de output.de", "BLEU and chrF"),
    ],
)
@version_option
def cli() -> None:
    """Train and run your own Transformer: raw text in, detokenised text out."""


@cli.command(
    short_help="Look at the data, and encode it.",
    examples=[
        ("nmt preprocess pairs.en-de.tsv", "what these pairs are like: on the screen and as a page"),
        ("nmt preprocess my.yaml", "into data/NAME/, as the recipe names it"),
    ],
)
@accepts(options.PreprocessOptions)
def preprocess(given: options.PreprocessOptions) -> None:
    """Train the tokenizer of RECIPE, encode every split into data/NAME/, and say what the data is like.

    The page data/NAME/data.html shows examples of what is left out and of what may be wrong. For FILES of pairs, a
    recipe is written as nmt train writes it.
    """
    from nmt.commands.train import preprocess as run

    run(given)


@cli.command(
    short_help="Train a recipe or resume its run.",
    examples=[
        ("nmt train pairs.en-de.tsv", "write a recipe for these pairs, and train it"),
        ("nmt train my.yaml", "into ckpts/, or resume there"),
        ("nmt train my.yaml --plan", "parameters, memory and time"),
        ("nmt train my.yaml --set training.updates=20000 --out ckpts/long", "another length, elsewhere"),
    ],
)
@accepts(options.TrainOptions)
def train(given: options.TrainOptions) -> None:
    """Train RECIPE, or resume the run that --out holds. The data is preprocessed first if needed.

    FILES are pairs instead: .tsv, .csv, .jsonl, .parquet, .zip, translators' files or a folder of them, or two files of
    lines, x.en and x.de. A recipe for them, NAME.yaml, is written with a comment on each choice, and trained into the
    folder NAME; the same command, or nmt train NAME.yaml, goes on there. --set goes into the recipe when it is written.
    With --set training.init_from=MODEL, FILES are corrections: MODEL learns them for a minute, and keeps only as much
    as does not significantly lower its score.
    """
    from nmt.commands.train import train as run

    run(given)


@cli.command(
    short_help="Average checkpoints or models into one bundle.",
    examples=[
        ("nmt average ckpts/", "the newest; the recipe says how many"),
        ("nmt average ckpts/ --last auto", "as many as score best on the dev set"),
        ("nmt average before after --weights 0.3,0.7", "two models of one shape"),
    ],
)
@accepts(options.AverageOptions)
def average(given: options.AverageOptions) -> None:
    """Average the newest or the best checkpoints of the run in CKPTS into one bundle, and score it on the dev set.

    --last auto averages the newest 1, 2, 3, 5, 8, … and all checkpoints, scores each average on the development set as
    in training, and writes the best one. It needs the prepared data, and shows the scores.

    --weights 0.3,0.7 averages two models with these weights, divided by their sum. Each CKPTS is a bundle, a run's
    directory or a name on the hub. Averaging the models before and after fine-tuning preserves more of what the
    first one knew.

    With --format, CKPTS may also be a bundle, which is exported as it is.
    """
    from nmt.commands.average import average_or_export as run

    run(given)


@cli.command(
    cls=LineCommand,
    short_help="Translate lines: one out for each in.",
    examples=[
        ("nmt translate < input.en > output.de", "with the model in ckpts/"),
        ("nmt translate --model my-model --beam 8", "type sentences, Ctrl-D to end"),
        ("nmt translate --document < letter.en", "a whole text, keeping its layout"),
        ("nmt translate --input po/ --output finished/", "files of translators: PO, XLIFF, TMX, TS, Android"),
        ("nmt translate --input big.en.gz --output big.de.gz --resume", "continue where it stopped"),
    ],
)
@accepts(options.SearchOptions)
def translate(given: options.SearchOptions) -> None:
    """Translate lines: one line out for each line in, in order; with --sample N, N lines; with --document, paragraphs.

    A summary on stderr has the number of lines, the speed, and a count of each warning.
    """
    from nmt.commands.translate import translate as run

    run(given)


@cli.command(
    cls=LineCommand,
    short_help="Parse sentences: one bracketed tree for each.",
    examples=[
        ("nmt parse --model parser < test.words > test.parsed", "one tree per line"),
        ("nmt parse --model parser --pretty", "type sentences, see their trees"),
    ],
)
@accepts(options.SearchOptions)
def parse(given: options.SearchOptions) -> None:
    """Parse sentences of space-separated Treebank tokens: one bracketed tree for each line in, in order.

    The search finds only trees over exactly the words of a line. A summary on stderr has the number of lines, the
    speed, and a count of each warning.
    """
    from nmt.commands.translate import parse as run

    run(given)


@cli.command(
    short_help="Score translations and trees; compare runs.",
    examples=[
        ("nmt score test.de output.de", "BLEU and chrF, with signatures"),
        ("nmt score test.de a.de b.de c.de", "which is best, and which are not clearly worse"),
        ("nmt score test.de new.de --baseline old.de --show 10", "what changed, and where most"),
        ("nmt score test.de output.de --source test.en --metric comet", "COMET"),
        ("nmt score --metric brackets test.trees test.parsed", "F1 of trees, as EVALB counts"),
        ("nmt score --model ckpts --source test.en test.de", "perplexity"),
        ("nmt score --model ckpts --source test.en --robust test.de", "chrF with capitals, typos and so on"),
        ("nmt score --runs ckpts/a ckpts/b", "dev score and cost of runs"),
    ],
)
@accepts(options.ScoreOptions)
def score(given: options.ScoreOptions) -> None:
    """Score HYP, or stdin, against REF: detokenised text, one sentence per line.

    What BLEU and TER count as a word depends on the language of REF: characters of Thai, for example. The signature
    tells.

    The metric tokenised is the unsmoothed BLEU that Moses' multi-bleu script prints, on words of Moses' tokenizer. The
    metric paper also splits compounds at hyphens, for comparison with figures of 2017; on newstest2014 it is about 1
    above sacreBLEU's. Both come with sacreBLEU's BLEU. The metric comet needs --source and the package transformers; of
    a model without references, give HYP and no REF.

    Several HYP are compared with the best of them or, with --baseline, with that one: each score has its 95% confidence
    interval, and each difference its p-value and how often people prefer the system that scores higher by so much.

    With --metric brackets, REF is a file of trees or a folder of .mrg files, and HYP has one tree per line, or an empty
    line for a failure. The figures are those of EVALB with COLLINS.prm, except that a root called ROOT, S1 or nothing
    is ignored where the other tree's has another name. For "failures missed", errors and skips count in the recall.

    With --model, unless with --show, no HYP is read: the score is how probable REF is by forced decoding, given
    --source. All subwords and the end of each sentence count; nothing is smoothed. With --robust, the model translates
    --source up to five times: plain, in capitals, in title case, without final punctuation, and with about one typo in
    eight words. Where a line's capitals or final punctuation change, those of its line in REF change, too.

    With --runs, each run's directory or bundle gets a row with the columns of the paper's Table 2: dev score; FLOPs of
    training as estimated in the paper (time × devices × sustained single-precision FLOP/s) and as counted exactly;
    time, target tokens, updates and devices, over all parts of the run.
    """
    from nmt.commands.score import score as run

    run(given)


def main() -> NoReturn:
    """Run the command `nmt` with the exit codes of `nmt.commands.process.run`."""
    process.run(cli)
