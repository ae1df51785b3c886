"""The options of each command: a dataclass whose fields say how each is called, read, explained and completed."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
from click.shell_completion import CompletionItem

from nmt import __version__
from nmt.commands.help import MACHINE, MORE, Option
from nmt.metrics import METRICS
from nmt.system.console import Console

if TYPE_CHECKING:
    from nmt.decoding.forced import AttentionType

PARAMETER, FLAG = "parameter", "flag"  # keys of a field's metadata: what gives a command its option, and its name
AT_LEAST_1 = click.IntRange(min=1)
WORKERS = click.IntRange(1, 256)  # more GPUs than a host has, and more shares than are worth cutting its CPU into


class Text(click.ParamType[Any]):
    """A string that is not empty: an empty one is a shell variable that was never set.

    `read` makes the value of it. The shell completes it to one of `words`, though others may be allowed.
    """

    name = "text"

    def __init__(self, *words: str, read: Callable[[str], Any] = str) -> None:
        self._words, self._read = words, read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value; fails with a usage error if the string is empty."""
        if value == "":
            self.fail("must not be empty", param, ctx)
        return self._read(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the words that begin like this."""
        return [CompletionItem(word) for word in self._words if word.startswith(incomplete)]


class FilePath(Text):
    """A path that is not empty, which Python would take for the working directory."""

    name = "path"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Leave it to the shell to find files."""
        return [CompletionItem(incomplete, type="file")]


class NumberOrAuto(click.IntRange):
    """A whole number, or auto."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number or "auto"; fails with a usage error on anything else."""
        return value if value == "auto" else super().convert(value, param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the word, if it begins like this."""
        return Text("auto").shell_complete(ctx, param, incomplete)


def shares(text: str) -> tuple[float, ...]:
    """Read numbers from 0 on with commas between them, at least one of them above 0."""
    try:
        found = tuple(map(float, text.split(",")))
    except ValueError:
        found = ()
    if not found or not all(0 <= share < math.inf for share in found) or not 0 < sum(found) < math.inf:
        raise click.BadParameter(f"{text!r} are not numbers from 0 on, such as 0.3,0.7")
    return found


def layer(text: str) -> tuple[str, int]:
    """Read a layer, counted from 1, of encoder, decoder or cross: cross:5; without a kind, of the encoder."""
    found = re.fullmatch("(?:(encoder|decoder|cross):)?([1-9][0-9]{0,5})", text)
    if not found:
        raise click.BadParameter(f"{text!r} is no layer, such as 5, encoder:5, decoder:5 or cross:5")
    return found[1] or "encoder", int(found[2])


def heads(text: str) -> tuple[int, ...]:
    """Read numbers of heads from 1 on with commas between them; returns them in order, each once."""
    if not re.fullmatch("[1-9][0-9]{0,5}(,[1-9][0-9]{0,5})*", text):
        raise click.BadParameter(f"{text!r} are not numbers of heads from 1 on, such as 1,2")
    return tuple(sorted({int(head) for head in text.split(",")}))


TEXT, FILE = Text(), FilePath(read=Path)


def option(
    flag: str, help: str, type: Any = None, metavar: str | None = None, section: str = MORE, **keywords: Any
) -> Any:
    """Declare a field that is an option in a section of the help text; without a type it is True if it is given."""
    keywords |= {"help": help, "type": type, "metavar": metavar, "section": section, "is_flag": type is None}
    return field(metadata={PARAMETER: lambda name: click.option(flag, name, cls=Option, **keywords), FLAG: flag})


def argument(**keywords: Any) -> Any:
    """Declare a field that is an argument, as click.argument makes it."""
    return field(metadata={PARAMETER: lambda name: click.argument(name, **keywords)})


def takes(kind: type[Any]) -> Callable[[Callable[[Any], None]], Callable[..., None]]:
    """Give a command the options of a dataclass, which it receives as one value of it."""

    def decorate(function: Callable[[Any], None]) -> Callable[..., None]:
        @debug_option
        @version_option
        @wraps(function)
        def command(**given: Any) -> None:
            function(kind(**given))

        for each in reversed(fields(kind)):  # so that `--help` lists them in the order of the fields
            if PARAMETER in each.metadata:
                command = each.metadata[PARAMETER](each.name)(command)
        return command

    return decorate


def refuse(options: Any, names: str, why: str) -> None:
    """Raises UsageError naming the first of some fields, with spaces between them, whose option is given."""
    for each in fields(options):
        if each.name in names.split() and getattr(options, each.name):
            raise click.UsageError(f"{each.metadata[FLAG]} {why}")


def _show_version(context: click.Context, _option: click.Parameter, wanted: bool) -> None:
    """Prints the version and which C kernels are in use, and exits."""
    if not wanted or context.resilient_parsing:
        return
    from nmt.native import library  # imports torch

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


debug_option = click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks.")
console_option = partial(
    option, "--quiet", "Print nothing but errors on stderr.", callback=lambda context, option, quiet: Console(quiet)
)
in_machine = partial(option, section=MACHINE)
threads_option = partial(in_machine, "--threads", "CPU threads; default: all.", click.IntRange(1, 1024), "N")
device_option = partial(
    in_machine,
    "--device",
    "auto, cpu, cuda or cuda:N.",
    Text("auto", "cpu", "cuda"),
    "DEVICE",
    default="auto",
    show_default=True,
)
overrides_option = partial(
    option, "--set", "Override a recipe key; repeatable.", TEXT, "SECTION.KEY=VALUE", multiple=True
)


@dataclass(frozen=True)
class PreprocessOptions:
    """Options of `nmt preprocess`."""

    recipe: Path = argument(type=FILE)
    overrides: tuple[str, ...] = overrides_option(section="Recipe")
    threads: int | None = threads_option()
    console: Console = console_option()


in_run = partial(option, section="Run")


@dataclass(frozen=True)
class TrainOptions:
    """Options of `nmt train`."""

    recipe: Path = argument(type=FILE)
    out: Path = in_run("--out", "Directory of the run.", FILE, "FOLDER", default=Path("ckpts"), show_default=True)
    plan: bool = in_run("--plan", "Print parameters, memory, disk, FLOPs and time, and train nothing.")
    overrides: tuple[str, ...] = overrides_option(section="Run")
    device: str = device_option()
    devices: int | None = in_machine(
        "--devices", "Number of devices to train on; default: all visible GPUs.", WORKERS, "N"
    )
    threads: int | None = threads_option()
    console: Console = console_option()


in_averaged, in_output = partial(option, section="What is averaged"), partial(option, section="Output")


@dataclass(frozen=True)
class AverageOptions:
    """Options of `nmt average`."""

    ckpts: tuple[Path, ...] = argument(type=FILE, nargs=-1, required=True)
    last: int | Literal["auto"] | None = in_averaged(
        "--last",
        "Average the newest N; auto: as many as score best on the development set. Default: decoding.average_last.",
        NumberOrAuto(min=1),
        "N|auto",
    )
    best: int | None = in_averaged("--best", "Average the N with the best dev scores instead.", AT_LEAST_1, "N")
    weights: tuple[float, ...] | None = in_averaged(
        "--weights",
        "Average models of one shape, such as those before and after fine-tuning, CKPTS being several.",
        Text(read=shares),
        "W,W,…",
    )
    out: Path | None = in_output(
        "--out", "Bundle to write; default: CKPTS/averaged, with --weights averaged.", FILE, "FOLDER"
    )
    form: Literal["nmt", "huggingface", "ctranslate2"] = in_output(
        "--format",
        "Also write the average to --out, as a folder that transformers or CTranslate2 loads.",
        click.Choice(["nmt", "huggingface", "ctranslate2"]),
        default="nmt",
        show_default=True,
    )
    quantization: Literal["float32", "int8"] | None = in_output(
        "--quantization",
        "Number format of the weights for CTranslate2; default: float32.",
        click.Choice(["float32", "int8"]),
    )
    device: str = device_option()
    threads: int | None = threads_option()
    console: Console = console_option()


in_files, in_search, in_drawn = (partial(option, section=name) for name in ("Input and output", "Search", "Attention"))


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Options of the commands that search with a model: `nmt translate` and `nmt parse`."""

    models: tuple[Path, ...] = in_files(
        "--model",
        "Bundle or run's directory; default: $NMT_MODEL or ckpts/. Repeat for an ensemble.",
        FILE,
        multiple=True,
    )
    source: Path | None = in_files("--input", "Read from a file, plain or .gz, instead of stdin.", FILE, "FILE")
    output: Path | None = in_files("--output", "Write to a file, plain or .gz, instead of stdout.", FILE, "FILE")
    n_best: int | None = in_files(
        "--n-best",
        "Print up to N different results per line, separated by tabs: line, rank, score, result.",
        AT_LEAST_1,
        "N",
    )
    as_json: bool = in_files("--json", "Print one JSON object per line, with scores, subwords and more.")
    resume: bool = in_files(
        "--resume",
        "Keep what is done beside --output, and go on from there; ranks of torchrun or Slurm share the input.",
    )
    beam: int | None = in_search("--beam", "Beam size; 1 is greedy search.", AT_LEAST_1, "N")
    alpha: float | None = in_search("--alpha", "Exponent of the length penalty.", click.FloatRange(min=0), "X")
    overrides: tuple[str, ...] = overrides_option(section="Search")
    attention: Path | None = in_drawn(
        "--attention",
        "Also show what the model attends to: in a page, .html, of the first 50 sentences, or in a figure, .svg, of "
        "the first.",
        FILE,
        "FILE",
    )
    layer: tuple[AttentionType, int] | None = in_drawn(
        "--layer",
        "Layer of the figure, such as 5 of the encoder, decoder:5 or cross:5; default: the encoder's last but one.",
        Text(read=layer),
        "[KIND:]N",
    )
    heads: tuple[int, ...] | None = in_drawn("--heads", "Heads of the figure; default: all.", Text(read=heads), "N,N,…")
    device: str = device_option()
    devices: int | None = in_machine(
        "--devices", "Number of workers, each on its own GPU or share of the CPU.", WORKERS, "N"
    )
    precision: str | None = in_machine(
        "--precision",
        "Of matrix products: auto, fp32, bf16, fp16 or int8.",
        Text("auto", "fp32", "bf16", "fp16", "int8"),
        "FORMAT",
    )
    batch_tokens: str | None = in_machine(
        "--batch-tokens", "Padded source tokens per batch, or auto.", Text("auto"), "N|auto"
    )
    strict: bool = option("--strict", "Exit with 1 if any of the warnings counted at the end occurred.")
    threads: int | None = threads_option()
    console: Console = console_option()

    # What only one of the two commands has as an option
    sample: int | None = None
    prefix: Path | None = None
    terms: Path | None = None
    keep: tuple[str, ...] = ()
    engine: Literal["nmt", "ctranslate2"] = "nmt"
    pretty: bool = False

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
        """Raises UsageError for options that do not go together."""
        if self.pretty and (self.as_json or self.n_best):
            raise click.UsageError("--pretty does not go with --json or --n-best")
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


@dataclass(frozen=True, kw_only=True)
class TranslateOptions(SearchOptions):
    """Options of `nmt translate`."""

    sample: int | None = in_search(
        "--sample",
        "Draw N translations of each line at random, one per line, instead of searching for the best one.",
        click.IntRange(1, 1000),
        "N",
    )
    prefix: Path | None = in_search("--prefix", "Begin translation N with line N of this file.", FILE, "FILE")
    terms: Path | None = in_search(
        "--terms",
        "Table of source term, tab, target term: where the first stands in a line, its translation has the second.",
        FILE,
        "FILE",
    )
    keep: tuple[str, ...] = in_search(
        "--keep", "Copy what this regular expression matches; repeatable.", TEXT, "PATTERN", multiple=True
    )
    engine: Literal["nmt", "ctranslate2"] = in_machine(
        "--engine", "What searches.", click.Choice(["nmt", "ctranslate2"]), default="nmt", show_default=True
    )

    def check(self) -> None:
        """Raises UsageError for options that do not go together."""
        super().check()
        if self.engine != "nmt":
            refuse(self, "prefix terms keep sample", "goes with --engine nmt")
        if self.sample and (self.terms or self.keep or self.n_best):
            raise click.UsageError("--sample does not go with --terms, --keep or --n-best")


@dataclass(frozen=True, kw_only=True)
class ParseOptions(SearchOptions):
    """Options of `nmt parse`."""

    pretty: bool = in_files("--pretty", "Draw each tree over several lines, with an empty one after it.")


in_scored, in_by_model = partial(option, section="What is scored"), partial(option, section="By a model")


@dataclass(frozen=True)
class ScoreOptions:
    """Options of `nmt score`."""

    files: tuple[Path, ...] = argument(type=FILE, nargs=-1, metavar="REF [HYP]")
    metric: str | None = in_scored(
        "--metric",
        "bleu, chrf, ter, tokenised, paper; separated by commas; default: bleu,chrf. Or brackets: F1 of trees. With "
        "--model perplexity (default) or logprob, a line per sentence: log-probability, tab, subwords.",
        Text(*METRICS, "brackets", "perplexity", "logprob"),
        "NAME,…",
    )
    baseline: Path | None = in_scored("--baseline", "Another HYP to compare with by paired bootstrap.", FILE, "FILE")
    more_references: tuple[Path, ...] = in_scored(
        "--reference", "A further reference; repeatable.", FILE, "FILE", multiple=True
    )
    lowercase: bool = in_scored("--lowercase", "Ignore case, as most figures on IWSLT and Multi30k do.")
    paper: bool = in_scored("--paper", "Add the metric paper: BLEU as the papers of 2017 counted it.")
    language: str | None = in_scored(
        "--language", "Language code of REF, for tokenised and paper; default: what REF's name ends in.", TEXT, "CODE"
    )
    runs: bool = in_scored("--runs", "The files are runs: print the dev score and the cost of each.")
    html: Path | None = in_scored(
        "--html", "With --runs: also write a page with their curves beside each other.", FILE, "FILE"
    )
    as_json: bool = in_scored("--json", "Print one JSON object.")
    models: tuple[Path, ...] = in_by_model(
        "--model", "Score REF by this bundle or run's directory; repeat for an ensemble.", FILE, multiple=True
    )
    source: Path | None = in_by_model(
        "--source", "Text that REF translates line by line; needed if --model is a translator.", FILE, "FILE"
    )
    overrides: tuple[str, ...] = overrides_option(section="By a model")
    device: str = device_option()
    threads: int | None = threads_option()
    console: Console = console_option()

    @property
    def reference(self) -> Path:
        """REF, which every mode but --runs needs."""
        return self.files[0]

    @property
    def hypothesis(self) -> Path | None:
        """HYP; None stands for stdin."""
        return self.files[1] if len(self.files) > 1 else None
