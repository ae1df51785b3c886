"""Options that commands share, and what those that search say together."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from nmt import __version__

F = TypeVar("F", bound=Callable[..., Any])

WORKERS = click.IntRange(1, 256)  # more GPUs than a host has, and more shares than are worth cutting its CPU into


class NumberOrAuto(click.IntRange):
    """A whole number from 1 on, or auto."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Fails, as click has it, on anything else."""
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
        """Fails, as click has it, on an empty one."""
        if value == "":
            self.fail("must not be empty", param, ctx)
        return value


class FilePath(Text):
    """A path that is not empty, which Python would take for the working directory."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Fails, as click has it, on an empty one."""
        return Path(super().convert(value, param, ctx))


TEXT, FILE = Text(), FilePath()


def common_options(function: F) -> F:
    """Options of every command."""
    for option in (
        click.version_option(__version__, prog_name="nmt"),
        click.option("--debug", is_flag=True, help="Show tracebacks."),
        click.option("--quiet", is_flag=True, help="Print nothing but errors on stderr."),
        click.option("--threads", type=click.IntRange(1, 1024), help="CPU threads in all."),
    ):
        function = option(function)
    return function


def device_option(function: F) -> F:
    """Where to compute."""
    return click.option("--device", type=TEXT, default="auto", show_default=True, help="auto, cpu, cuda or cuda:N.")(
        function
    )


def overrides_option(function: F) -> F:
    """Keys of a recipe."""
    return click.option(
        "--set",
        "overrides",
        type=TEXT,
        multiple=True,
        metavar="SECTION.KEY=VALUE",
        help="Override a recipe key; repeatable.",
    )(function)


@dataclass(frozen=True)
class SearchOptions:
    """What the options of the commands say that search lines with a model."""

    models: tuple[Path, ...]
    beam: int | None
    alpha: float | None
    n_best: int | None
    as_json: bool
    strict: bool
    source: Path | None
    output: Path | None
    precision: str | None
    batch_tokens: str | None
    devices: int | None
    overrides: tuple[str, ...]
    device: str
    threads: int | None
    quiet: bool
    debug: bool

    @property
    def paths(self) -> tuple[Path, ...]:
        """Where the models are."""
        return self.models or (Path(os.environ.get("NMT_MODEL") or "ckpts"),)

    @property
    def settings(self) -> list[str]:
        """What overrides the decoding settings of a bundle, flags last."""
        flags = {"beam": self.beam, "alpha": self.alpha, "precision": self.precision, "batch_tokens": self.batch_tokens}
        return [*self.overrides, *(f"decoding.{key}={value}" for key, value in flags.items() if value is not None)]


def search_options(function: Callable[..., None]) -> Callable[..., None]:
    """Options of the commands that search lines with a model; the handler gets them as one `SearchOptions`."""

    @wraps(function)
    def command(**given: Any) -> None:
        options = SearchOptions(**{field.name: given.pop(field.name) for field in fields(SearchOptions)})
        function(options, **given)

    for option in (
        common_options,
        device_option,
        overrides_option,
        click.option("--devices", type=WORKERS, help="Number of workers, each on its own GPU or share of the CPU."),
        click.option("--batch-tokens", type=TEXT, help="Padded source tokens per batch, or auto."),
        click.option("--precision", type=TEXT, help="Of matrix products: auto, fp32, bf16 or int8."),
        click.option("--output", type=FILE, help="Write to a file, plain or .gz, instead of stdout."),
        click.option("--input", "source", type=FILE, help="Read from a file, plain or .gz, instead of stdin."),
        click.option("--strict", is_flag=True, help="Exit with 1 if any of the warnings counted at the end occurred."),
        click.option(
            "--json", "as_json", is_flag=True, help="Print one JSON object per line, with scores, subwords and more."
        ),
        click.option(
            "--n-best",
            type=click.IntRange(min=1),
            help="Print up to N different results per line, separated by tabs: line, rank, score, result.",
        ),
        click.option("--alpha", type=click.FloatRange(min=0), help="Exponent of the length penalty."),
        click.option("--beam", type=click.IntRange(min=1), help="Beam size; 1 is greedy search."),
        click.option(
            "--model",
            "models",
            type=FILE,
            multiple=True,
            help="Bundle or run's directory; default: $NMT_MODEL or ckpts/. Repeat for an ensemble.",
        ),
    ):
        command = option(command)
    return command
