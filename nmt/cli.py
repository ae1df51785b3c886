"""argv to one call of the core; the only place that prints errors or exits.

Results go to stdout, everything else to stderr. Handlers import what they need when they run, so that `nmt --help`
answers before torch is loaded.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from threading import Timer
from types import FrameType
from typing import TYPE_CHECKING, Literal, NoReturn, TypeVar

import click

from nmt import __version__
from nmt.errors import TRY_AGAIN, GroupError, Interrupted, UserError, printable
from nmt.options import (
    FILE,
    TEXT,
    WORKERS,
    NumberOrAuto,
    SearchOptions,
    common_options,
    device_option,
    overrides_option,
    search_options,
)

if TYPE_CHECKING:
    from nmt.bundle import Bundle
    from nmt.console import Console
    from nmt.recipe import Decoding, TaskName
    from nmt.search.forced import ForcedDecoder
    from nmt.tasks.output import LineResult
    from nmt.tasks.pipeline import Task

Result = TypeVar("Result", bound="LineResult")

UNINTERRUPTED = ("<frozen importlib._bootstrap>", os.path.join("multiprocessing", "popen_fork.py"))  # files of code


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
@click.argument("recipe", type=TEXT)
@overrides_option
@common_options
def preprocess(recipe: str, overrides: tuple[str, ...], threads: int | None, quiet: bool, debug: bool) -> None:
    """Train the tokenizer of RECIPE on its training data and encode every split into data/NAME/."""
    from nmt import recipe as recipes
    from nmt.bundle import base
    from nmt.console import Console
    from nmt.data.prepare import directory, prepare
    from nmt.device import cores

    loaded, console = recipes.load(recipe, overrides), Console(quiet)
    start = base(loaded)
    if not prepare(loaded, console, threads or cores(), start.path if start else None):
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
    quiet: bool,
    debug: bool,
) -> None:
    """Train RECIPE, or resume the run that --out holds. The data is preprocessed first if needed."""
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

    # As many as there are cores and no more: threads that wait for one another take the time of those that work.
    threads_each = max(1, (threads or cores()) // place.local_size) if place.size > 1 else threads
    chosen = choose_device(device_of(device, place), threads_each)
    run(loaded, out, Console(quiet or place.rank > 0), chosen, threads or cores(), place)


@cli.command(short_help="Average the newest or the best checkpoints into one bundle.")
@click.argument("ckpts", type=FILE)
@click.option(
    "--last",
    type=NumberOrAuto(min=1),
    metavar="N|auto",
    help="Average the newest N; auto: as many as score best on the dev set. Default: decoding.average_last.",
)
@click.option("--best", type=click.IntRange(min=1), metavar="N", help="Average the N with the best dev scores instead.")
@click.option("--out", type=FILE, help="Bundle to write; default: CKPTS/averaged.")
@device_option
@common_options
def average(
    ckpts: Path,
    last: int | Literal["auto"] | None,
    best: int | None,
    out: Path | None,
    device: str,
    threads: int | None,
    quiet: bool,
    debug: bool,
) -> None:
    """Average the newest or the best checkpoints of the run in CKPTS into one bundle.

    With --last auto the newest 1, 2, 3, 5, 8, … and all are averaged and scored as checkpoints are in training, which
    needs the prepared data and computes on --device; stderr shows the scores, and the best average is written.
    """
    from nmt.bundle import average as average_checkpoints
    from nmt.console import Console

    if last and best:
        raise click.UsageError("--last does not go with --best")
    console = Console(quiet)
    if last == "auto":
        from nmt.device import choose_device
        from nmt.training.averaging import average_by_score

        result = average_by_score(ckpts, out, choose_device(device, threads), console)
    else:
        result = average_checkpoints(ckpts, last, out, best)
    steps, wanted = result.info["steps"], best or last
    updates = ", ".join(f"{step:,}" for step in steps) if best else f"{steps[0]:,} to {steps[-1]:,}"
    there = f"only {len(steps)} there{' with a dev score' if best else ''}"
    fewer = f" ({there}, {wanted} asked for)" if isinstance(wanted, int) and len(steps) < wanted else ""
    scored = "" if result.dev_score is None else f", dev {result.kind.label} {result.dev_score:.2f}"
    plural = "s" if len(steps) > 1 else ""
    console.say(f"averaged {len(steps)} checkpoint{plural}, update{plural} {updates}{fewer}{scored}: {result.path}")


@cli.command(short_help="Translate lines: one out for each in, in order.")
@click.option("--engine", type=click.Choice(["nmt", "ctranslate2"]), default="nmt", show_default=True)
@search_options
def translate(options: SearchOptions, engine: Literal["nmt", "ctranslate2"]) -> None:
    """Translate lines: one line out for each line in, in order.

    At the end stderr shows the number of lines, the speed, and counts of warnings.
    """
    from nmt.bundle import common_tokenizer
    from nmt.console import Console
    from nmt.tasks.translating import Translating

    console = Console(options.quiet)
    bundles, decoding = _find_models(options.paths, "translate", options.settings, console)
    task = Translating(common_tokenizer(bundles), decoding, aligned=options.as_json and engine == "nmt")
    _answer(options, bundles, decoding, engine, task, console)


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
    from nmt.bundle import common_tokenizer
    from nmt.console import Console
    from nmt.tasks.parsing import Parsing, drawn

    if pretty and (options.as_json or options.n_best):
        raise click.UsageError("--pretty does not go with --json or --n-best")
    console = Console(options.quiet)
    bundles, decoding = _find_models(options.paths, "parse", options.settings, console)
    task = Parsing(common_tokenizer(bundles), decoding, constrained=not unconstrained)
    _answer(options, bundles, decoding, "nmt", task, console, drawn if pretty else None)


def _answer(
    options: SearchOptions,
    bundles: Sequence[Bundle],
    decoding: Decoding,
    engine: Literal["nmt", "ctranslate2"],
    task: Task[Result],
    console: Console,
    as_line: Callable[[int, Result], str] | None = None,
) -> None:
    """Has lines searched and writes what becomes of them: as the options say, unless `as_line` makes the lines."""
    from nmt.assembly import Assembly
    from nmt.console import Console
    from nmt.streams import count_input, open_output, read_input
    from nmt.tasks.output import Ledger, best, ranked

    as_line = as_line or (task.as_json if options.as_json else ranked if options.n_best else best)
    device, workers, threads = options.device, options.devices, options.threads
    assembly = Assembly(bundles, decoding, engine, device, workers, threads, forks=True, say=console.say)
    ledger = Ledger(task.warnings)
    with ExitStack() as held:
        lines = read_input(options.source)
        if options.source and options.output and options.output.exists() and options.source.samefile(options.output):
            raise UserError(f"--output {options.output}: is also the input", "give --output another file")
        pipeline = held.enter_context(assembly.open(task))
        # Where it garbles no results
        shown = Console(options.quiet or (options.output is None and sys.stdout.isatty()))

        def searched(tokens: int) -> None:
            ledger.searched(tokens)
            advance(1, ledger.speed())

        def line_of(result: Result) -> str:
            ledger.add(result)
            if not result.parts:
                searched(0)  # being blank
            return as_line(ledger.lines, result)

        groups = held.enter_context(closing(pipeline.groups(ledger.timed(lines), options.n_best or 1, searched)))
        write = open_output(options.output, held)
        total = count_input(options.source) if shown.live else None
        advance = held.enter_context(shown.progress("searching", total, "lines"))
        for group in groups:
            write("\n".join(map(line_of, group)))
    console.say(ledger.summary())
    if options.strict:
        ledger.check()


@cli.command(short_help="BLEU, chrF and TER, with signatures; F1 of trees; perplexity under a model.")
@click.argument("files", type=FILE, nargs=-1, metavar="REF [HYP]")
@click.option("--runs", is_flag=True, help="The files are runs: print the dev score and the cost of each.")
@click.option("--reference", "more", type=FILE, multiple=True, help="A further reference; repeatable.")
@click.option(
    "--metric",
    type=TEXT,
    help="bleu, chrf, ter, tokenised, paper; separated by commas; default: bleu,chrf. Or brackets: F1 of trees. "
    "With --model perplexity (default) or logprob, a line per sentence: log-probability, tab, subwords.",
)
@click.option("--paper", is_flag=True, help="Add the metric paper: BLEU as the papers of 2017 counted it.")
@click.option("--lowercase", is_flag=True, help="Ignore case, as most figures on IWSLT and Multi30k do.")
@click.option(
    "--language",
    type=TEXT,
    help="Language code of REF, for tokenised and paper; default: what REF's name ends in.",
)
@click.option("--baseline", type=FILE, help="Another HYP to compare with by paired bootstrap.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--model",
    "models",
    type=FILE,
    multiple=True,
    help="Score REF by this bundle or run's directory; repeat for an ensemble.",
)
@click.option("--source", type=FILE, help="Text that REF translates line by line; needed if --model is a translator.")
@overrides_option
@device_option
@common_options
def score(
    files: tuple[Path, ...],
    runs: bool,
    more: tuple[Path, ...],
    metric: str | None,
    paper: bool,
    lowercase: bool,
    language: str | None,
    baseline: Path | None,
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
    if not runs and not 1 <= len(files) <= 2:
        raise click.UsageError(f"score takes REF and at most one HYP, but {len(files)} files are given")
    from nmt import scoring
    from nmt.console import Console

    console = Console(quiet)
    if runs:
        if not files:
            raise click.UsageError("--runs needs runs: nmt score --runs CKPTS ...")
        others: dict[str, object] = {"--reference": more, "--metric": metric, "--model": models, "--source": source}
        others |= {"--set": overrides, "--paper": paper, "--lowercase": lowercase, "--language": language}
        _refuse(others | {"--baseline": baseline}, "does not go with --runs")
        from nmt.device import choose_device

        scoring.runs(files, choose_device(device, threads), as_json, console)
        return
    from nmt.metrics.bleu import METRICS, OF_WORDS

    reference, hypothesis = files[0], next(iter(files[1:]), None)
    names = _metrics(metric, paper, by_model=bool(models))
    if not set(names) & set(METRICS):
        _refuse({"--baseline": baseline, "--lowercase": lowercase}, f"goes with --metric {', '.join(METRICS)}")
    if not set(names) & set(OF_WORDS):
        _refuse({"--language": language is not None}, f"goes with --metric {', '.join(OF_WORDS)}")
    if models:
        if hypothesis or more:
            raise click.UsageError("--model scores REF itself, so it takes no HYP or --reference")
        if len(names) > 1 or (as_json and names == ["logprob"]):
            raise click.UsageError("--metric logprob goes alone; --json gives every line with perplexity")
        decoder = _forced_decoder(models, source, reference, overrides, device, threads, console)
        scoring.by_model(decoder, source, reference, names[0], as_json, console)
        return
    _refuse({"--source": source, "--set": overrides}, "goes with --model")
    if "brackets" in names:
        if len(names) > 1:
            raise click.UsageError("--metric brackets goes alone: it reads trees")
        if more:
            raise click.UsageError("--metric brackets takes one REF and no --reference")
        scoring.trees(reference, hypothesis, as_json, console)
    else:
        if "bleu" not in names and set(names) & set(OF_WORDS):
            names.insert(0, "bleu")  # the one that may be compared with others stands beside it
        references = (reference, *more)
        scoring.translations(references, hypothesis, baseline, names, language, lowercase, as_json, console)


def _refuse(options: Mapping[str, object], why: str) -> None:
    """Raises UsageError naming the first option that is given."""
    for name, value in options.items():
        if value:
            raise click.UsageError(f"{name} {why}")


def _metrics(wanted: str | None, paper: bool, by_model: bool) -> list[str]:
    """The metrics to compute, or those that go without saying; raises BadParameter for one that there is not."""
    from nmt.metrics.bleu import METRICS

    allowed, default = (("perplexity", "logprob"), "perplexity") if by_model else ((*METRICS, "brackets"), "bleu,chrf")
    wanted = wanted or default
    names = [name.strip() for name in wanted.split(",") if name.strip()]
    if paper and "paper" not in names:
        names.append("paper")
    unknown = [name for name in names if name not in allowed]
    if unknown or not names:
        raise click.BadParameter(
            f"{(unknown or [wanted])[0]!r} is none of {', '.join(allowed)}, the metrics "
            f"{'with' if by_model else 'without'} --model",
            param_hint="--metric",
        )
    return names


def _forced_decoder(
    paths: Sequence[Path],
    source: Path | None,
    reference: Path,
    overrides: Sequence[str],
    device: str,
    threads: int | None,
    console: Console,
) -> ForcedDecoder:
    """What scores a reference by models, given a source or none; raises UserError where a file or model is missing."""
    from nmt.text.lines import open_input

    for path in (source, reference):
        if path is not None and not path.is_fifo():
            open_input(path).close()  # says that there is no such file before a model is loaded
    from nmt.bundle import common_tokenizer
    from nmt.device import choose_device
    from nmt.search.forced import ForcedDecoder

    bundles, decoding = _find_models(paths, _task_to_score(paths, source), overrides, console)
    tokenizer, chosen = common_tokenizer(bundles), choose_device(device, threads)
    return ForcedDecoder([bundle.model(chosen) for bundle in bundles], tokenizer, decoding)


def _task_to_score(paths: Sequence[Path], source: Path | None) -> TaskName:
    """What models have to be for to score a reference given such a source.

    Raises UserError where one is a translator and there is none, or a language model and there is one.
    """
    from nmt.bundle import resolve

    for bundle in (resolve(path)[0] for path in paths):
        if source is None and bundle.info["task"] == "translate":
            raise UserError(
                f"{bundle.path}: is a translator, which scores REF given its source",
                "add --source FILE, line N of which REF translates on its line N",
            )
        if source is not None and not bundle.kind.has_source:
            raise UserError(
                f"--source {source}: {bundle.path} is a language model, which has none", "leave out --source"
            )
    return "language_model" if source is None else "translate"


def _find_models(
    paths: Sequence[Path], task: TaskName, overrides: Sequence[str], console: Console
) -> tuple[list[Bundle], Decoding]:
    """The bundles that paths stand for, which the user is told, and decoding settings, those of the first.

    Raises UserError where one is for another task.
    """
    from nmt.bundle import resolve
    from nmt.recipe import override_decoding

    found = [resolve(path) for path in paths]
    for bundle, _ in found:
        bundle.check_task(task)
    decoding = override_decoding(found[0][0].recipe.decoding, overrides)
    for _, note in found:
        console.say(note)
    return [bundle for bundle, _ in found], decoding


def main() -> NoReturn:
    """The command `nmt`: 0 done, 1 a problem of the user's, 2 usage, 128 + signal when stopped."""
    from nmt.device import let_waiting_threads_sleep
    from nmt.streams import open_standard_streams, release

    open_standard_streams()
    debug = "--debug" in sys.argv
    signal.signal(signal.SIGTERM, _stop)
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as they are under nohup, or in the background of a script
            signal.signal(number, _stop)
    let_waiting_threads_sleep()
    try:
        with cli.make_context("nmt", sys.argv[1:]) as context:  # not cli.main, which makes a closed pipe an error
            cli.invoke(context)
        sys.stdout.flush()
        code = 0
    except UserError as error:
        code = 1
        _complain(error.message, error.hint)
        if debug:
            raise
    except GroupError as error:
        code = TRY_AGAIN if error.retry else 1
        if error.message:
            _complain(error.message, "run the same command again; it resumes from the last checkpoint")
        if debug and error.retry:
            raise
    except Interrupted as stop:
        code = 128 + stop.signal_number
        if stop.message and _speaks():
            _tell(stop.message)
    except (KeyboardInterrupt, click.Abort):
        code = 128 + signal.SIGINT
        if _speaks():
            _tell("interrupted")
    except click.exceptions.Exit as stop:
        code = stop.exit_code
    except click.ClickException as error:
        code = error.exit_code
        with suppress(OSError):
            error.show()
    except BrokenPipeError:  # the reader, head for one, has enough
        code = 0
    except OSError as error:  # a full disk under stdout, say
        if debug:
            raise
        code = 1
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        hint = "free some space" if full else "see that it exists and that you may use it; --debug shows the traceback"
        _complain(f"{error.filename or 'input or output'}: {error.strerror or error}", hint)
    except Exception as error:
        from nmt.device import memory_error

        if debug:
            raise
        code = 1
        known = memory_error(error) or UserError(
            f"{type(error).__name__}: {error}", "run it with --debug and report the traceback: this is a bug of nmt"
        )
        _complain(known.message, known.hint)
    if "RANK" in os.environ:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # its launcher's, to one that is ending and has said why
    for stream in (sys.stdout, sys.stderr):
        release(stream)
    sys.exit(code)


def _complain(message: str, hint: str) -> None:
    """Prints an error and its hint, a line each; what they quote of files cannot steer the terminal."""
    _tell(f"error: {printable(message)}")
    _tell(f"hint: {printable(hint)}")


def _tell(line: str) -> None:
    """Prints a line on stderr, unless nobody takes it."""
    with suppress(OSError):
        click.echo(line, err=True)


def _speaks() -> bool:
    """Whether this process says what all processes of its group would."""
    return os.environ.get("RANK", "0") == "0"


def _stop(number: int, frame: FrameType | None) -> None:
    """Raises what ends the command; while a module is imported or a process is forked, when that is done.

    An exception that is raised in the middle of these may be lost: callbacks of weak references, of forks and
    extension modules ignore it, and the command would go on.
    """
    while frame is not None:
        if frame.f_code.co_filename.endswith(UNINTERRUPTED):
            again = Timer(0.02, os.kill, (os.getpid(), number))  # the signal comes once more
            again.daemon = True
            again.start()
            return
        frame = frame.f_back
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise Interrupted("hung up" if number == signal.SIGHUP else "terminated", number)
