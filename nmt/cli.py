"""argv to one call of the core; the only place that prints errors or exits.

Results go to stdout, everything else to stderr. Handlers import what they need when they run, so that `nmt --help`
answers before torch is loaded.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, NoReturn, TypeVar

import click

from nmt import __version__
from nmt.errors import TRY_AGAIN, GroupError, Interrupted, UserError

F = TypeVar("F", bound=Callable[..., Any])


def _common(function: F) -> F:
    """Options of every command."""
    for option in (
        click.version_option(__version__, prog_name="nmt"),
        click.option("--debug", is_flag=True, help="Show tracebacks."),
        click.option("--quiet", is_flag=True, help="Say nothing but errors."),
        click.option("--threads", type=click.IntRange(1, 1024), help="CPU threads."),
    ):
        function = option(function)
    return function


def _device(function: F) -> F:
    return click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N.")(function)


def _overrides(function: F) -> F:
    return click.option(
        "--set",
        "overrides",
        multiple=True,
        metavar="SECTION.KEY=VALUE",
        help="Override a recipe key; repeatable.",
    )(function)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="nmt")
def cli() -> None:
    """Train and run your own Transformer: raw text in, detokenised text out.

    \b
    nmt train recipes/wmt14_en_de.yaml
    nmt average ckpts/ --last 5
    cat input.txt | nmt translate --beam 4
    """


@cli.command(short_help="Train the tokenizer and encode every split into data/NAME/.")
@click.argument("recipe")
@_overrides
@_common
def preprocess(recipe: str, overrides: tuple[str, ...], threads: int | None, quiet: bool, debug: bool) -> None:
    """Train the tokenizer of RECIPE on its training data and encode every split into data/NAME/."""
    from nmt import recipe as recipes
    from nmt.bundle import resolve
    from nmt.console import Console
    from nmt.data.prepare import directory, prepare

    loaded, console = recipes.load(recipe, overrides), Console(quiet)
    base = loaded.training.init_from
    tokenizer_from = resolve(Path(base))[0].path if base else None
    if not prepare(loaded, console, threads or _cores(), tokenizer_from):
        console.say(f"nothing to do: {directory(loaded)} is up to date")


@cli.command(short_help="Train a recipe, or go on with the run in ckpts/.")
@click.argument("recipe")
@click.option("--out", type=Path, default=Path("ckpts"), show_default=True, help="Directory of the run.")
@click.option("--plan", is_flag=True, help="Print what the run would need, and train nothing.")
@click.option("--devices", type=click.IntRange(min=1), help="Workers, a device each; every visible GPU unless given.")
@_overrides
@_device
@_common
def train(
    recipe: str,
    out: Path,
    plan: bool,
    devices: int | None,
    overrides: tuple[str, ...],
    device: str,
    threads: int | None,
    quiet: bool,
    debug: bool,
) -> None:
    """Train RECIPE, or go on with the run that the directory holds; preprocess first where that is needed."""
    from nmt import recipe as recipes
    from nmt.console import Console
    from nmt.device import choose_device
    from nmt.training.distributed import Place, count_workers, device_of, find_place, launch

    loaded = recipes.load(recipe, overrides)
    place = find_place(os.environ)
    if place is None:
        workers = count_workers(device, devices)
        if plan:
            from nmt.training.plan import plan_run

            click.echo(plan_run(loaded, choose_device(device, threads), workers))
            return
        if workers > 1:
            choose_device(device, threads)  # says once if there is none
            launch(workers, sys.argv[1:], Console(quiet))
            return
        place = Place()
    from nmt.training.run import train as run

    threads_each = threads or (max(1, _cores() // place.local_size) if place.size > 1 else None)
    chosen = choose_device(device_of(device, place), threads_each)
    run(loaded, out, Console(quiet or place.rank > 0), chosen, threads or _cores(), place)


@cli.command(short_help="Average the newest checkpoints into one bundle.")
@click.argument("ckpts", type=Path)
@click.option("--last", type=click.IntRange(min=1), help="How many of the newest; the recipe's number unless given.")
@click.option("--out", type=Path, help="The bundle to write; CKPTS/averaged unless given.")
@_common
def average(ckpts: Path, last: int | None, out: Path | None, threads: int | None, quiet: bool, debug: bool) -> None:
    """Average the newest checkpoints of the run in CKPTS into one bundle."""
    from nmt.bundle import average as average_checkpoints
    from nmt.console import Console

    result = average_checkpoints(ckpts, last, out)
    steps = result.info["steps"]
    fewer = f" (only {len(steps)} there, {last} asked for)" if last and len(steps) < last else ""
    Console(quiet).say(
        f"averaged {len(steps)} checkpoints, updates {steps[0]:,} to {steps[-1]:,}{fewer}: {result.path}"
    )


@cli.command(short_help="Translate lines: one out for each in, in order.")
@click.option("--model", type=Path, help="A bundle or a directory of checkpoints; $NMT_MODEL or ckpts/ unless given.")
@click.option("--beam", type=click.IntRange(min=1), help="Hypotheses kept alive; 1 is greedy search.")
@click.option("--alpha", type=click.FloatRange(min=0), help="Exponent of the length penalty.")
@click.option("--n-best", type=click.IntRange(min=1), help="Print N lines per input: line, rank, score, text.")
@click.option("--input", "source", type=Path, help="Read from a file, plain or .gz, instead of stdin.")
@click.option("--output", type=Path, help="Write to a file, plain or .gz, instead of stdout.")
@_overrides
@_device
@_common
def translate(
    model: Path | None,
    beam: int | None,
    alpha: float | None,
    n_best: int | None,
    source: Path | None,
    output: Path | None,
    overrides: tuple[str, ...],
    device: str,
    threads: int | None,
    quiet: bool,
    debug: bool,
) -> None:
    """Translate lines: one line out for each line in, in order."""
    from nmt.console import Console

    console = Console(quiet)
    settings = [f"decoding.{key}={value}" for key, value in (("beam", beam), ("alpha", alpha)) if value is not None]
    translator = _load_translator(model, [*overrides, *settings], device, threads, console)
    split = capped = count = 0
    with ExitStack() as files:
        lines = _open_input(source)
        if source and output and output.exists() and source.samefile(output):
            raise UserError(f"--output {output}: is the input too", "name another file")
        results = translator.stream(lines, n_best or 1)
        write = _open_output(output, files)
        for count, result in enumerate(results, 1):
            split += result.parts > 1
            capped += result.capped
            if n_best is None:
                write(result.texts[0])
            else:
                for rank, (score, text) in enumerate(zip(result.scores, result.texts, strict=True), 1):
                    write(f"{count}\t{rank}\t{score:.4f}\t{text}")
    if split:
        limit = translator.pipeline.decoding.max_source
        console.say(f"{split:,} of {count:,} lines were longer than decoding.max_source {limit:,} subwords and split")
    if capped:
        console.say(f"{capped:,} of {count:,} outputs were cut at their cap, their input's length + decoding.max_extra")


@cli.command(short_help="BLEU, chrF and TER, with signatures.")
@click.argument("reference", type=Path, metavar="REF")
@click.argument("hypothesis", type=Path, metavar="[HYP]", required=False)
@click.option("--reference", "more", type=Path, multiple=True, help="A further reference; repeatable.")
@click.option(
    "--metric",
    "metrics",
    default="bleu,chrf",
    show_default=True,
    help="bleu, chrf, ter; separated by commas.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@_common
def score(
    reference: Path,
    hypothesis: Path | None,
    more: tuple[Path, ...],
    metrics: str,
    as_json: bool,
    threads: int | None,
    quiet: bool,
    debug: bool,
) -> None:
    """Score HYP, or stdin, against REF: detokenised text, one sentence per line."""
    from nmt.metrics.translation import LABELS, METRICS
    from nmt.metrics.translation import score as score_translations
    from nmt.text.lines import read_lines

    names = [name.strip() for name in metrics.split(",") if name.strip()]
    unknown = [name for name in names if name not in METRICS]
    if unknown or not names:
        raise click.BadParameter(
            f"{(unknown or [metrics])[0]!r} is none of {', '.join(METRICS)}", param_hint="--metric"
        )
    references = [list(read_lines(path)) for path in (reference, *more)]
    hypotheses = list(_open_input(hypothesis))
    results = score_translations(hypotheses, references, names)
    if as_json:
        click.echo(json.dumps({name: vars(result) for name, result in results.items()}))
        return
    for name, result in results.items():
        click.echo(f"{LABELS[name]} {result.score:.2f}  {result.signature}")


@cli.command(
    short_help="Sentences to bracketed trees (not there yet).", context_settings={"ignore_unknown_options": True}
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@_common
def parse(arguments: tuple[str, ...], threads: int | None, quiet: bool, debug: bool) -> None:
    """Parse sentences into bracketed trees (not there yet)."""
    raise UserError("nmt parse is not there yet: this version trains and runs translators")


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _load_translator(model: Path | None, overrides: list[str], device: str, threads: int | None, console: Any) -> Any:
    from nmt.bundle import resolve
    from nmt.decoding.translator import Translator
    from nmt.device import choose_device
    from nmt.recipe import override_decoding

    bundle, note = resolve(model or Path(os.environ.get("NMT_MODEL") or "ckpts"))
    decoding = override_decoding(bundle.recipe.decoding, overrides)
    console.say(note)
    return Translator(bundle.model(choose_device(device, threads)), bundle.tokenizer(), decoding)


def _open_input(path: Path | None) -> Iterator[str]:
    from nmt.text.lines import decode, open_input, read_lines

    if path is not None:
        open_input(path).close()  # says that there is no such file before any output is opened
        return read_lines(path)
    if sys.stdin is None:
        raise UserError("stdin is closed", "give --input FILE, or a pipe")
    if sys.stdin.isatty():
        click.echo("reading from the terminal, a sentence per line; end with Ctrl-D", err=True)
    return map(decode, sys.stdin.buffer)


def _open_output(path: Path | None, files: ExitStack) -> Callable[[str], None]:
    from nmt.text.lines import open_output

    if path is None and sys.stdout is None:
        raise UserError("stdout is closed", "give --output FILE, or a pipe")
    stream: IO[bytes] = sys.stdout.buffer if path is None else files.enter_context(open_output(path))

    def write(line: str) -> None:
        stream.write(line.encode() + b"\n")
        if path is None:
            stream.flush()  # whoever reads the pipe sees each line when it is there

    return write


def main() -> NoReturn:
    """The command `nmt`: 0 done, 1 a problem of the user's, 2 usage, 128 + signal when stopped."""
    debug = "--debug" in sys.argv
    signal.signal(signal.SIGTERM, _terminated)
    try:
        with cli.make_context("nmt", sys.argv[1:]) as context:  # not cli.main, which makes a closed pipe an error
            cli.invoke(context)
        if sys.stdout is not None:
            sys.stdout.flush()
        code = 0
    except UserError as error:
        code = 1
        click.echo(f"error: {error.message}", err=True)
        if error.hint:
            click.echo(f"hint: {error.hint}", err=True)
        if debug:
            raise
    except GroupError as error:
        code = TRY_AGAIN if error.retry else 1
        if error.message:
            click.echo(f"error: {error.message}", err=True)
        if debug and error.retry:
            raise
    except Interrupted as stop:
        code = 128 + stop.signal_number
        if stop.message and _speaks():
            click.echo(stop.message, err=True)
    except (KeyboardInterrupt, click.Abort):
        code = 128 + signal.SIGINT
        if _speaks():
            click.echo("interrupted", err=True)
    except click.exceptions.Exit as stop:
        code = stop.exit_code
    except click.ClickException as error:
        code = error.exit_code
        error.show()
    except BrokenPipeError:  # the reader, head for one, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except OSError as error:  # a full disk under stdout, say
        if debug:
            raise
        code = 1
        click.echo(f"error: {error.filename or 'input or output'}: {error.strerror or error}", err=True)
    except Exception as error:
        if debug:
            raise
        code = 1
        click.echo(f"error: {type(error).__name__}: {error}", err=True)
        click.echo("hint: this should not happen; run it with --debug and report what it shows", err=True)
    if "RANK" in os.environ:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # its launcher's, to one that is ending and has said why
    sys.exit(code)


def _speaks() -> bool:
    """Whether this process says what all processes of its group would."""
    return os.environ.get("RANK", "0") == "0"


def _terminated(number: int, frame: object) -> NoReturn:
    raise Interrupted("terminated", number)
