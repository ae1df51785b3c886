"""Options that commands share, and the options of a search and of scoring as one value each."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from nmt import __version__
from nmt.console import Console

if TYPE_CHECKING:
    from nmt.search.attention import Kind

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

WORKERS = click.IntRange(1, 256)  # more GPUs than a host has, and more shares than are worth cutting its CPU into


class NumberOrAuto(click.IntRange):
    """A whole number from 1 on, or auto."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number or "auto"; fails with a usage error on anything else."""
        if value == "auto":
            return value
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"{value!r} is neither auto nor a whole number from {self.min} on", param, ctx)


class Text(click.ParamType[Any]):
    """A string that is not empty: an empty one is a shell variable that was never set."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The string; fails with a usage error if it is empty."""
        if value == "":
            self.fail("must not be empty", param, ctx)
        return value


class FilePath(Text):
    """A path that is not empty, which Python would take for the working directory."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """The path; fails with a usage error if it is empty."""
        return Path(super().convert(value, param, ctx))


class Shares(Text):
    """Numbers from 0 on with commas between them, at least one of them above 0."""

    name = "shares"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The numbers; fails with a usage error on anything else."""
        try:
            shares = tuple(map(float, super().convert(value, param, ctx).split(",")))
        except ValueError:
            shares = ()
        if not shares or not all(0 <= share < math.inf for share in shares) or not 0 < sum(shares) < math.inf:
            self.fail(f"{value!r} are not numbers from 0 on, such as 0.3,0.7", param, ctx)
        return shares


class LayerOf(Text):
    """A layer, counted from 1, of encoder, decoder or cross: cross:5; without a kind, of the encoder."""

    name = "layer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The kind and the number; fails with a usage error on anything else."""
        found = re.fullmatch("(?:(encoder|decoder|cross):)?([1-9][0-9]{0,5})", super().convert(value, param, ctx))
        if not found:
            self.fail(f"{value!r} is no layer, such as 5, encoder:5, decoder:5 or cross:5", param, ctx)
        return found[1] or "encoder", int(found[2])


class Heads(Text):
    """Numbers of heads from 1 on with commas between them."""

    name = "heads"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The numbers in order, each once; fails with a usage error on anything else."""
        if not re.fullmatch("[1-9][0-9]{0,5}(,[1-9][0-9]{0,5})*", super().convert(value, param, ctx)):
            self.fail(f"{value!r} are not numbers of heads from 1 on, such as 1,2", param, ctx)
        return tuple(sorted({int(head) for head in value.split(",")}))


TEXT, FILE = Text(), FilePath()


def together(*options: Decorator) -> Decorator:
    """Several options as one decorator; `--help` lists them in this order."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def gathered(kind: type[Any], options: Sequence[Decorator]) -> Decorator:
    """Options as one decorator whose command receives them as one value of the dataclass `kind`."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def command(**given: Any) -> Any:
            return function(kind(**{field.name: given.pop(field.name) for field in fields(kind)}), **given)

        return together(*options)(command)

    return decorate


def _show_version(context: click.Context, _option: click.Parameter, wanted: bool) -> None:
    """Prints the version and which C kernels are in use, and exits."""
    if not wanted or context.resilient_parsing:
        return
    from nmt.native.loading import library  # imports torch

    opened = library()
    kernels = f"C kernels: {opened.instruction_set}" if opened else "no C kernels; PyTorch's are used"
    click.echo(f"nmt {__version__} ({kernels})")
    context.exit()


version_option = click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)

common_options = together(
    click.option("--threads", type=click.IntRange(1, 1024), help="CPU threads in all."),
    click.option(
        "--quiet",
        "console",
        is_flag=True,
        callback=lambda context, option, quiet: Console(quiet),
        help="Print nothing but errors on stderr.",
    ),
    click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks."),
    version_option,
)

device_option = click.option(
    "--device", type=TEXT, default="auto", show_default=True, help="auto, cpu, cuda or cuda:N."
)

overrides_option = click.option(
    "--set",
    "overrides",
    type=TEXT,
    multiple=True,
    metavar="SECTION.KEY=VALUE",
    help="Override a recipe key; repeatable.",
)


@dataclass(frozen=True)
class SearchOptions:
    """Options of the commands that search with a model: `nmt translate` and `nmt parse`."""

    models: tuple[Path, ...]
    beam: int | None
    alpha: float | None
    n_best: int | None
    as_json: bool
    strict: bool
    source: Path | None
    output: Path | None
    resume: bool
    attention: Path | None
    layer: tuple[Kind, int] | None
    heads: tuple[int, ...] | None
    precision: str | None
    batch_tokens: str | None
    devices: int | None
    overrides: tuple[str, ...]
    device: str
    threads: int | None
    console: Console

    @property
    def paths(self) -> tuple[Path, ...]:
        """Where the models are."""
        return self.models or (Path(os.environ.get("NMT_MODEL") or "ckpts"),)

    @property
    def settings(self) -> list[str]:
        """Overrides of a bundle's decoding settings; flags come last, so that they win over --set."""
        flags = {"beam": self.beam, "alpha": self.alpha, "precision": self.precision, "batch_tokens": self.batch_tokens}
        return [*self.overrides, *(f"decoding.{key}={value}" for key, value in flags.items() if value is not None)]

    def check(self) -> None:
        """Raises UsageError for options of --attention that do not go together."""
        kind = self.attention and self.attention.suffix
        if kind != ".svg" and (self.layer or self.heads):
            raise click.UsageError("--layer and --heads go with --attention FILE.svg")
        if kind is None:
            return
        if kind not in (".html", ".svg"):
            raise click.UsageError(f"--attention {self.attention}: must end in .html for a page, or .svg for a figure")
        if len(self.paths) > 1:
            raise click.UsageError("--attention goes with one --model: each model of an ensemble attends on its own")
        if self.resume:
            raise click.UsageError("--attention does not go with --resume, which searches in blocks")


search_options = gathered(
    SearchOptions,
    [
        click.option(
            "--model",
            "models",
            type=FILE,
            multiple=True,
            help="Bundle or run's directory; default: $NMT_MODEL or ckpts/. Repeat for an ensemble.",
        ),
        click.option("--beam", type=click.IntRange(min=1), help="Beam size; 1 is greedy search."),
        click.option("--alpha", type=click.FloatRange(min=0), help="Exponent of the length penalty."),
        click.option(
            "--n-best",
            type=click.IntRange(min=1),
            help="Print up to N different results per line, separated by tabs: line, rank, score, result.",
        ),
        click.option(
            "--json", "as_json", is_flag=True, help="Print one JSON object per line, with scores, subwords and more."
        ),
        click.option("--strict", is_flag=True, help="Exit with 1 if any of the warnings counted at the end occurred."),
        click.option("--input", "source", type=FILE, help="Read from a file, plain or .gz, instead of stdin."),
        click.option("--output", type=FILE, help="Write to a file, plain or .gz, instead of stdout."),
        click.option(
            "--resume",
            is_flag=True,
            help="Keep what is done beside --output, and go on from there; ranks of torchrun or Slurm share the input.",
        ),
        click.option(
            "--attention",
            type=FILE,
            metavar="FILE",
            help="Also show what the model attends to: in a page, .html, of the first 50 sentences, or in a figure, "
            ".svg, of the first.",
        ),
        click.option(
            "--layer",
            type=LayerOf(),
            metavar="[KIND:]N",
            help="Layer of the figure, such as 5 of the encoder, decoder:5 or cross:5; default: the encoder's last but "
            "one.",
        ),
        click.option("--heads", type=Heads(), metavar="N,N,…", help="Heads of the figure; default: all."),
        click.option("--precision", type=TEXT, help="Of matrix products: auto, fp32, bf16, fp16 or int8."),
        click.option("--batch-tokens", type=TEXT, help="Padded source tokens per batch, or auto."),
        click.option("--devices", type=WORKERS, help="Number of workers, each on its own GPU or share of the CPU."),
        overrides_option,
        device_option,
        common_options,
    ],
)


@dataclass(frozen=True)
class TranslateOptions:
    """Options of `nmt translate` that no other search has."""

    engine: Literal["nmt", "ctranslate2"]
    prefix: Path | None
    terms: Path | None
    keep: tuple[str, ...]
    sample: int | None

    def check(self, options: SearchOptions) -> None:
        """Raises UsageError for options that do not go together."""
        given = {"--prefix": self.prefix, "--terms": self.terms, "--keep": self.keep, "--sample": self.sample}
        for option, value in given.items():
            if value and self.engine != "nmt":
                raise click.UsageError(f"{option} goes with --engine nmt")
        if self.sample and (self.terms or self.keep or options.n_best):
            raise click.UsageError("--sample does not go with --terms, --keep or --n-best")


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
        click.option("--runs", is_flag=True, help="The files are runs: print the dev score and the cost of each."),
        click.option("--html", type=FILE, help="With --runs: also write a page with their curves beside each other."),
        click.option(
            "--reference", "more_references", type=FILE, multiple=True, help="A further reference; repeatable."
        ),
        click.option(
            "--metric",
            type=TEXT,
            help="bleu, chrf, ter, tokenised, paper; separated by commas; default: bleu,chrf. Or brackets: F1 of "
            "trees. With --model perplexity (default) or logprob, a line per sentence: log-probability, tab, subwords.",
        ),
        click.option("--paper", is_flag=True, help="Add the metric paper: BLEU as the papers of 2017 counted it."),
        click.option("--lowercase", is_flag=True, help="Ignore case, as most figures on IWSLT and Multi30k do."),
        click.option(
            "--language",
            type=TEXT,
            help="Language code of REF, for tokenised and paper; default: what REF's name ends in.",
        ),
        click.option("--baseline", type=FILE, help="Another HYP to compare with by paired bootstrap."),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
        click.option(
            "--model",
            "models",
            type=FILE,
            multiple=True,
            help="Score REF by this bundle or run's directory; repeat for an ensemble.",
        ),
        click.option(
            "--source", type=FILE, help="Text that REF translates line by line; needed if --model is a translator."
        ),
        overrides_option,
        device_option,
        common_options,
    ],
)
