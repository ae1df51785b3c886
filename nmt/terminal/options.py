"""Options that commands share, and those of a search as one value."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from nmt import __version__
from nmt.console import Console
from nmt.terminal.help import MACHINE, Decorator, in_section, option, together
from nmt.terminal.types import FILE, TEXT, WORKERS, Heads, LayerOf, Word

if TYPE_CHECKING:
    from nmt.search.attention import Kind

in_files, in_search, in_drawn, in_machine = map(in_section, ("Input and output", "Search", "Attention", MACHINE))


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


version_option = option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)

common_options = together(
    in_machine("--threads", type=click.IntRange(1, 1024), metavar="N", help="CPU threads; default: all."),
    option(
        "--quiet",
        "console",
        is_flag=True,
        callback=lambda context, option, quiet: Console(quiet),
        help="Print nothing but errors on stderr.",
    ),
    option("--debug", is_flag=True, expose_value=False, help="Show tracebacks."),
    version_option,
)

device_option = in_machine(
    "--device",
    type=Word("auto", "cpu", "cuda"),
    default="auto",
    show_default=True,
    metavar="DEVICE",
    help="auto, cpu, cuda or cuda:N.",
)


def overrides_option(in_place: Callable[..., Decorator]) -> Decorator:
    """Changes keys of a recipe; `in_place` is the section of the help text in which it stands."""
    return in_place(
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
        in_files(
            "--model",
            "models",
            type=FILE,
            multiple=True,
            help="Bundle or run's directory; default: $NMT_MODEL or ckpts/. Repeat for an ensemble.",
        ),
        in_files(
            "--input", "source", type=FILE, metavar="FILE", help="Read from a file, plain or .gz, instead of stdin."
        ),
        in_files("--output", type=FILE, metavar="FILE", help="Write to a file, plain or .gz, instead of stdout."),
        in_files(
            "--n-best",
            type=click.IntRange(min=1),
            metavar="N",
            help="Print up to N different results per line, separated by tabs: line, rank, score, result.",
        ),
        in_files(
            "--json", "as_json", is_flag=True, help="Print one JSON object per line, with scores, subwords and more."
        ),
        in_files(
            "--resume",
            is_flag=True,
            help="Keep what is done beside --output, and go on from there; ranks of torchrun or Slurm share the input.",
        ),
        in_search("--beam", type=click.IntRange(min=1), metavar="N", help="Beam size; 1 is greedy search."),
        in_search("--alpha", type=click.FloatRange(min=0), metavar="X", help="Exponent of the length penalty."),
        overrides_option(in_search),
        in_drawn(
            "--attention",
            type=FILE,
            metavar="FILE",
            help="Also show what the model attends to: in a page, .html, of the first 50 sentences, or in a figure, "
            ".svg, of the first.",
        ),
        in_drawn(
            "--layer",
            type=LayerOf(),
            metavar="[KIND:]N",
            help="Layer of the figure, such as 5 of the encoder, decoder:5 or cross:5; default: the encoder's last but "
            "one.",
        ),
        in_drawn("--heads", type=Heads(), metavar="N,N,…", help="Heads of the figure; default: all."),
        device_option,
        in_machine(
            "--devices", type=WORKERS, metavar="N", help="Number of workers, each on its own GPU or share of the CPU."
        ),
        in_machine(
            "--precision",
            type=Word("auto", "fp32", "bf16", "fp16", "int8"),
            metavar="FORMAT",
            help="Of matrix products: auto, fp32, bf16, fp16 or int8.",
        ),
        in_machine(
            "--batch-tokens", type=Word("auto"), metavar="N|auto", help="Padded source tokens per batch, or auto."
        ),
        option("--strict", is_flag=True, help="Exit with 1 if any of the warnings counted at the end occurred."),
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
        for name, value in given.items():
            if value and self.engine != "nmt":
                raise click.UsageError(f"{name} goes with --engine nmt")
        if self.sample and (self.terms or self.keep or options.n_best):
            raise click.UsageError("--sample does not go with --terms, --keep or --n-best")
