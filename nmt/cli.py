"""argv to one call of the core; the only place that prints errors or exits.

Results go to stdout, everything else to stderr. Handlers import what they need when they run, so that `nmt --help`
answers before torch is loaded.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, NoReturn, TypeVar

import click

from nmt import __version__
from nmt.errors import TRY_AGAIN, GroupError, Interrupted, UserError

if TYPE_CHECKING:
    from nmt.bundle import Bundle
    from nmt.console import Console
    from nmt.decoding.forced import ForcedDecoder
    from nmt.decoding.pipeline import Translation
    from nmt.recipe import Decoding

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
    from nmt.device import cores

    loaded, console = recipes.load(recipe, overrides), Console(quiet)
    base = loaded.training.init_from
    tokenizer_from = resolve(Path(base))[0].path if base else None
    if not prepare(loaded, console, threads or cores(), tokenizer_from):
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
    from nmt.device import choose_device, cores
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

    threads_each = threads or (max(1, cores() // place.local_size) if place.size > 1 else None)
    chosen = choose_device(device_of(device, place), threads_each)
    run(loaded, out, Console(quiet or place.rank > 0), chosen, threads or cores(), place)


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
@click.option(
    "--model",
    "models",
    type=Path,
    multiple=True,
    help="A bundle or a directory of checkpoints; $NMT_MODEL or ckpts/ unless given. Repeatable: an ensemble.",
)
@click.option("--beam", type=click.IntRange(min=1), help="Hypotheses kept alive; 1 is greedy search.")
@click.option("--alpha", type=click.FloatRange(min=0), help="Exponent of the length penalty.")
@click.option("--n-best", type=click.IntRange(min=1), help="Print N lines per input: line, rank, score, text.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per input, with tokens and alignment.")
@click.option("--strict", is_flag=True, help="Exit with 1 if a line was split, cut, unknown in part or lost.")
@click.option("--input", "source", type=Path, help="Read from a file, plain or .gz, instead of stdin.")
@click.option("--output", type=Path, help="Write to a file, plain or .gz, instead of stdout.")
@click.option("--engine", type=click.Choice(["nmt", "ctranslate2"]), default="nmt", show_default=True)
@click.option("--precision", help="auto, fp32, bf16 or int8.")
@click.option("--batch-tokens", help="Source tokens that are searched together, or auto.")
@click.option("--devices", type=click.IntRange(min=1), help="Workers: a GPU or a share of the CPU threads each.")
@_overrides
@_device
@_common
def translate(
    models: tuple[Path, ...],
    beam: int | None,
    alpha: float | None,
    n_best: int | None,
    as_json: bool,
    strict: bool,
    source: Path | None,
    output: Path | None,
    engine: Literal["nmt", "ctranslate2"],
    precision: str | None,
    batch_tokens: str | None,
    devices: int | None,
    overrides: tuple[str, ...],
    device: str,
    threads: int | None,
    quiet: bool,
    debug: bool,
) -> None:
    """Translate lines: one line out for each line in, in order.

    At the end stderr says how many there were, how fast it was, and what went less than well.
    """
    from nmt.console import Console
    from nmt.decoding.composition import Composition
    from nmt.decoding.output import Ledger, ranked
    from nmt.decoding.output import as_json as json_line

    console = Console(quiet)
    flags = {"beam": beam, "alpha": alpha, "precision": precision, "batch_tokens": batch_tokens}
    settings = [f"decoding.{key}={value}" for key, value in flags.items() if value is not None]
    paths = models or [Path(os.environ.get("NMT_MODEL") or "ckpts")]
    bundles, decoding = _find_models(paths, [*overrides, *settings], console)
    aligned = as_json and engine == "nmt"
    with ExitStack() as held:
        lines = _open_input(source)
        if source and output and output.exists() and source.samefile(output):
            raise UserError(f"--output {output}: is the input too", "name another file")
        composition = Composition(bundles, decoding, engine, device, devices, threads, aligned, console.say)
        pipeline = held.enter_context(composition.open())
        shown = Console(quiet or (output is None and sys.stdout.isatty()))  # where it garbles no results
        ledger = Ledger()

        def searched(tokens: int) -> None:
            ledger.searched(tokens)
            advance(1, ledger.speed())

        def as_line(translation: Translation) -> str:
            ledger.add(translation)
            if not translation.parts:
                searched(0)  # being blank
            if as_json:
                return json_line(ledger.lines, translation, pipeline.tokenizer, aligned)
            return ranked(ledger.lines, translation) if n_best else translation.texts[0]

        groups = held.enter_context(closing(pipeline.groups(lines, n_best or 1, searched)))
        write = _open_output(output, held)
        advance = held.enter_context(shown.progress("translating", _count_input(source, shown), "lines"))
        for group in groups:
            write("\n".join(map(as_line, group)))
    console.say(ledger.summary())
    if strict:
        ledger.check()


@cli.command(short_help="BLEU, chrF and TER, with signatures; F1 of trees; perplexity under a model.")
@click.argument("reference", type=Path, metavar="REF")
@click.argument("hypothesis", type=Path, metavar="[HYP]", required=False)
@click.option("--reference", "more", type=Path, multiple=True, help="A further reference; repeatable.")
@click.option(
    "--metric",
    help="bleu, chrf, ter; separated by commas; bleu,chrf unless given. Or brackets: F1 of trees. With --model "
    "perplexity, unless given, or logprob, a line per sentence: log-probability, tab, subwords.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--model",
    "models",
    type=Path,
    multiple=True,
    help="A bundle or a directory of checkpoints by which to score REF; repeatable, an ensemble.",
)
@click.option("--source", type=Path, help="What REF translates, line by line; goes with --model.")
@_overrides
@_device
@_common
def score(
    reference: Path,
    hypothesis: Path | None,
    more: tuple[Path, ...],
    metric: str | None,
    as_json: bool,
    models: tuple[Path, ...],
    source: Path | None,
    overrides: tuple[str, ...],
    device: str,
    threads: int | None,
    quiet: bool,
    debug: bool,
) -> None:
    """Score HYP, or stdin, against REF: detokenised text, one sentence per line.

    With --metric brackets REF holds trees, a file or a folder of .mrg files, and HYP one tree per line, an empty line
    being a failure. The figures are EVALB's with COLLINS.prm, except that a root called ROOT, S1 or nothing does not
    count where the other tree's is called otherwise. "Failures missed" is F1 with errors and skips in the recall.

    With --model and --source no HYP is read: the score is how probable the model finds REF, by forced decoding. All
    subwords and the end of each sentence count, and nothing is smoothed.
    """
    from nmt.console import Console
    from nmt.metrics.translation import METRICS
    from nmt.text.lines import open_input

    allowed, default = (("perplexity", "logprob"), "perplexity") if models else ((*METRICS, "brackets"), "bleu,chrf")
    wanted = metric or default
    names = [name.strip() for name in wanted.split(",") if name.strip()]
    unknown = [name for name in names if name not in allowed]
    if unknown or not names:
        raise click.BadParameter(
            f"{(unknown or [wanted])[0]!r} is none of {', '.join(allowed)}, the metrics "
            f"{'with' if models else 'without'} --model",
            param_hint="--metric",
        )
    if models:
        if hypothesis or more:
            raise click.UsageError("--model scores REF itself: no HYP or --reference goes with it")
        if source is None:
            raise click.UsageError("--model needs --source, the lines that REF translates")
        if len(names) > 1 or (as_json and names == ["logprob"]):
            raise click.UsageError("--metric logprob goes alone; --json gives every line with perplexity")
        for path in (source, reference):
            if not path.is_fifo():
                open_input(path).close()  # says that there is no such file before a model is loaded
        from nmt.bundle import common_tokenizer
        from nmt.decoding.forced import ForcedDecoder
        from nmt.device import choose_device

        console = Console(quiet)
        bundles, decoding = _find_models(models, overrides, console)
        tokenizer, chosen = common_tokenizer(bundles), choose_device(device, threads)
        decoder = ForcedDecoder([bundle.model(chosen) for bundle in bundles], tokenizer, decoding)
        _score_by_model(decoder, source, reference, names[0], as_json, console)
        return
    for option, given in (("--source", source), ("--set", overrides)):
        if given:
            raise click.UsageError(f"{option} goes with --model")
    if "brackets" in names:
        if len(names) > 1:
            raise click.UsageError("--metric brackets goes alone: it reads trees")
        if more:
            raise click.UsageError("--metric brackets has one gold: no --reference goes with it")
        _score_trees(reference, hypothesis, as_json, Console(quiet))
    else:
        _score_translations((reference, *more), hypothesis, names, as_json)


def _score_translations(
    references: Sequence[Path], hypothesis: Path | None, metrics: Sequence[str], as_json: bool
) -> None:
    from nmt.metrics.translation import LABELS, score
    from nmt.text.lines import read_lines

    results = score(list(_open_input(hypothesis)), [list(read_lines(path)) for path in references], metrics)
    if as_json:
        click.echo(json.dumps({name: vars(result) for name, result in results.items()}))
        return
    for name, result in results.items():
        click.echo(f"{LABELS[name]} {result.score:.2f}  {result.signature}")


def _score_trees(gold: Path, hypothesis: Path | None, as_json: bool, console: Console) -> None:
    from nmt.metrics.brackets import as_dict, report, score_files

    scores = score_files(gold, hypothesis or _open_input(None))
    click.echo(json.dumps({"brackets": as_dict(scores)}) if as_json else report(scores))
    if scores.errors:
        console.say(f"errors: {scores.errors:,} of {scores.sentences:,} trees; the first: {scores.first_error}")


def _score_by_model(
    decoder: ForcedDecoder, source: Path, reference: Path, metric: str, as_json: bool, console: Console
) -> None:
    from nmt.decoding.forced import Totals
    from nmt.text.lines import read_parallel

    totals = Totals()
    pairs = totals.counted(decoder.stream(read_parallel(source, reference)))
    if metric == "logprob":
        with ExitStack() as files:
            write = _open_output(None, files)
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
            raise UserError("nothing to score: source and reference have no lines")
        if as_json:
            result = {"score": totals.perplexity, "subwords": totals.subwords}
            click.echo(json.dumps({"perplexity": result | {"log_probability": totals.log_probability, "lines": lines}}))
        else:
            signature = f"subwords:{totals.subwords}|lines:{totals.pairs}|logprob:{totals.log_probability:.1f}"
            click.echo(f"PPL {totals.perplexity:.2f}  {signature}")
    if totals.sources_cut:
        console.say(
            f"{totals.sources_cut:,} of {totals.pairs:,} source lines were longer than {decoder.max_source:,} subwords "
            "and cut there: decoding.max_source, or the model's positions"
        )
    if totals.targets_cut:
        console.say(
            f"{totals.targets_cut:,} of {totals.pairs:,} reference lines were longer than model.max_positions "
            f"{decoder.max_target:,} and cut there: {totals.subwords_cut:,} subwords are not scored"
        )


@cli.command(
    short_help="Sentences to bracketed trees (not there yet).", context_settings={"ignore_unknown_options": True}
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@_common
def parse(arguments: tuple[str, ...], threads: int | None, quiet: bool, debug: bool) -> None:
    """Parse sentences into bracketed trees (not there yet)."""
    raise UserError("nmt parse is not there yet: this version trains and runs translators")


def _find_models(paths: Sequence[Path], overrides: Sequence[str], console: Console) -> tuple[list[Bundle], Decoding]:
    """The bundles that paths stand for, which the user is told, and decoding settings, those of the first."""
    from nmt.bundle import resolve
    from nmt.recipe import override_decoding

    found = [resolve(path) for path in paths]
    decoding = override_decoding(found[0][0].recipe.decoding, overrides)
    for _, note in found:
        console.say(note)
    return [bundle for bundle, _ in found], decoding


def _open_input(path: Path | None) -> Iterator[str]:
    from nmt.text.lines import decode, read_lines

    if path is not None:
        return read_lines(path)
    if sys.stdin is None:
        raise UserError("stdin is closed", "give --input FILE, or a pipe")
    if sys.stdin.isatty():
        click.echo("reading from the terminal, a sentence per line; end with Ctrl-D", err=True)
    descriptor = _descriptor(sys.stdin)
    # A thread that waits for its input must not keep sys.stdin itself, which Python wants to close at its end.
    stream = sys.stdin.buffer if descriptor is None else open(descriptor, "rb", closefd=False)  # noqa: SIM115
    return map(decode, stream)


def _count_input(path: Path | None, console: Console) -> int | None:
    """Lines of a file, where someone watches; None where nobody knows."""
    from nmt.text.lines import count_lines, count_rest

    if not console.live:
        return None
    if path is not None:
        return count_lines(path) if path.is_file() else None
    descriptor = _descriptor(sys.stdin)
    return None if descriptor is None else count_rest(descriptor)


def _descriptor(stream: IO[str]) -> int | None:
    try:
        return stream.fileno()
    except OSError:  # it is no file of the system's
        return None


def _open_output(path: Path | None, held: ExitStack) -> Callable[[str], None]:
    """A function that writes one or more lines, without the end of the last."""
    from nmt.files import whole_file
    from nmt.text.lines import compressed

    if path is None:
        if sys.stdout is None:
            raise UserError("stdout is closed", "give --output FILE, or a pipe")
        stream: IO[bytes] = sys.stdout.buffer
    else:
        stream = held.enter_context(compressed(held.enter_context(whole_file(path)), path))

    def write(lines: str) -> None:
        stream.write(lines.encode() + b"\n")
        if path is None or not path.is_file():
            stream.flush()  # whoever reads a pipe sees what is there at once

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
