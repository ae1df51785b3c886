"""`nmt translate` and `nmt parse`: lines in, results out, and what the ledger says at the end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from itertools import starmap, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from nmt.assembly import Assembly
from nmt.bundle import Bundle, common_tokenizer, resolve
from nmt.console import Console
from nmt.errors import UserError
from nmt.recipe import Decoding, TaskName, override_decoding
from nmt.tasks.lines import Request
from nmt.tasks.parsing import Parsing, drawn
from nmt.tasks.pipeline import Result, Task
from nmt.tasks.translating import Translating
from nmt.terminal.ledger import Ledger
from nmt.terminal.streams import count_input, open_output, read_input
from nmt.text.lines import read_lines
from nmt.text.terms import Terms, read_terms

MOST_COMPLAINTS = 20  # that are shown

if TYPE_CHECKING:
    from nmt.tasks.output import LineResult
    from nmt.terminal.options import SearchOptions


def translate(
    options: SearchOptions,
    engine: Literal["nmt", "ctranslate2"],
    prefix: Path | None,
    terms: Path | None,
    keep: Sequence[str],
    sample: int | None,
) -> None:
    """Translates lines by the models that the options name.

    Translations begin with the lines of `prefix`, and hold what the table `terms` and the patterns `keep` ask for. With
    `sample`, so many translations of each line are drawn at random.
    """
    for option, given in (("--prefix", prefix), ("--terms", terms), ("--keep", keep), ("--sample", sample)):
        if given and engine != "nmt":
            raise click.UsageError(f"{option} goes with --engine nmt")
    if sample and (terms or keep or options.n_best):
        raise click.UsageError("--sample does not go with --terms, --keep or --n-best")
    bundles, decoding = find_models(options.paths, "translate", options.settings, options.console)
    annotated = options.as_json and engine == "nmt"
    asked = Terms(read_terms(terms) if terms else (), keep, decoding.keep)
    task = Translating(common_tokenizer(bundles), decoding, bundles[0].lengths, annotated, asked)
    _answer(options, bundles, decoding, engine, task, all_of if sample else None, prefix, sample)


def parse(options: SearchOptions, pretty: bool, unconstrained: bool) -> None:
    """Parses lines by the models that the options name; `pretty` draws the trees."""
    if pretty and (options.as_json or options.n_best):
        raise click.UsageError("--pretty does not go with --json or --n-best")
    bundles, decoding = find_models(options.paths, "parse", options.settings, options.console)
    task = Parsing(common_tokenizer(bundles), decoding, constrained=not unconstrained)
    _answer(options, bundles, decoding, "nmt", task, drawn if pretty else None)


def find_models(
    paths: Sequence[Path], task: TaskName, overrides: Sequence[str], console: Console
) -> tuple[list[Bundle], Decoding]:
    """The bundles that paths stand for, which the user is told, and decoding settings, those of the first.

    Raises UserError where one is for another task.
    """
    found = [resolve(path) for path in paths]
    for bundle, _ in found:
        bundle.check_task(task)
    decoding = override_decoding(found[0][0].recipe, overrides)
    for _, note in found:
        console.say(note)
    return [bundle for bundle, _ in found], decoding


def _answer(
    options: SearchOptions,
    bundles: Sequence[Bundle],
    decoding: Decoding,
    engine: Literal["nmt", "ctranslate2"],
    task: Task[Result],
    plain: Callable[[int, Result], str] | None = None,
    prefix: Path | None = None,
    sample: int | None = None,
) -> None:
    """Searches all lines, with their prefixes, and writes the results as the options ask for, else by `plain`."""
    as_line = task.as_json if options.as_json else ranked if options.n_best else plain or best
    console, device, workers, threads = options.console, options.device, options.devices, options.threads
    assembly = Assembly(bundles, decoding, engine, device, workers, threads, forks=True, say=console.say)
    ledger, complaints = Ledger(task.warnings), 0
    with ExitStack() as held:
        lines: Iterator[Any] = read_input(options.source)
        if prefix:
            lines = _with_prefixes(lines, read_lines(prefix), prefix)
        if options.source and options.output and options.output.exists() and options.source.samefile(options.output):
            raise UserError(f"--output {options.output}: is also the input", "give --output another file")
        pipeline = held.enter_context(assembly.open(task))
        searching = pipeline.groups(ledger.timed(lines), options.n_best or 1, ledger.searched, sample)
        groups = held.enter_context(closing(searching))
        write = open_output(options.output, held)
        # A progress bar would garble results on the same terminal.
        shown = Console(console.quiet or (options.output is None and sys.stdout.isatty()))
        total = count_input(options.source) if shown.live else None
        ledger.advance = held.enter_context(shown.progress("searching", total, "lines"))
        for group in groups:
            numbered = [(ledger.add(result), result) for result in group]
            write("\n".join(starmap(as_line, numbered)))
            for number, complaint in ((number, each) for number, result in numbered for each in result.complaints):
                if (complaints := complaints + 1) <= MOST_COMPLAINTS:
                    console.say(f"line {number:,}: {complaint}")
    console.say(ledger.summary())
    if options.strict:
        ledger.check()


def _with_prefixes(lines: Iterator[str], prefixes: Iterator[str], path: Path) -> Iterator[Request]:
    """Lines and their prefixes, which `path` holds; raises UserError where either of both ends first."""
    for number, (line, prefix) in enumerate(zip_longest(lines, prefixes)):
        if line is None or prefix is None:
            what = "ends" if prefix is None else "goes on"
            raise UserError(
                f"--prefix {path}: {what} after {number:,} lines, unlike the input",
                "give it a line for each input line; an empty one asks for nothing",
            )
        yield Request(line, prefix)


def best(number: int, result: LineResult) -> str:
    """The line of the best hypothesis."""
    return result.texts[0]


def all_of(number: int, result: LineResult) -> str:
    """A line for each sample."""
    return "\n".join(result.texts)


def ranked(number: int, result: LineResult) -> str:
    """A line for each hypothesis of input line `number`: number, rank, score, text."""
    hypotheses = enumerate(zip(result.scores, result.texts, strict=True), 1)
    return "\n".join(f"{number}\t{rank}\t{score:.4f}\t{text}" for rank, (score, text) in hypotheses)
