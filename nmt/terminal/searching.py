"""`nmt translate` and `nmt parse`: lines in, results out, and what the ledger says at the end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass
from functools import partial
from itertools import starmap, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from nmt import __version__
from nmt.assembly import Assembly
from nmt.bundle import WEIGHTS, Bundle, common_tokenizer, resolve
from nmt.console import Console
from nmt.errors import UserError
from nmt.recipe import Decoding, TaskName, override_decoding
from nmt.tasks.lines import Request
from nmt.tasks.parsing import Parsing, drawn
from nmt.tasks.pipeline import Pipeline, Result, Task
from nmt.tasks.translating import Translating
from nmt.terminal.attending import attending
from nmt.terminal.ledger import Ledger
from nmt.terminal.making import Making
from nmt.terminal.resuming import Search, Share, files_to_resume, search_in_blocks
from nmt.terminal.streams import count_input, is_typed, open_output, read_input
from nmt.text.lines import read_lines
from nmt.text.terms import Terms, read_terms

MOST_COMPLAINTS = 20  # that are shown
WITHOUT_EFFECT = {"batch_tokens", "average_last"}
"""Decoding settings that do not change what is written."""

if TYPE_CHECKING:
    from nmt.tasks.output import LineResult
    from nmt.terminal.options import SearchOptions, TranslateOptions


@dataclass(frozen=True)
class _Asked:
    """What a command asks for besides the options of a search."""

    doing: str
    """What its progress is called."""
    settings: Mapping[str, Any]
    """Its own options that change what is written, by name, as plain values."""
    plain: Callable[[int, Any], str] | None = None
    """Shows a result if no option says how; by default its best line."""
    engine: Literal["nmt", "ctranslate2"] = "nmt"
    prefix: Path | None = None
    terms: Path | None = None
    sample: int | None = None


class _Complaints:
    """Says what results lack, the first few times."""

    def __init__(self, console: Console) -> None:
        self._console, self._left = console, MOST_COMPLAINTS

    def say(self, numbered: Sequence[tuple[int, LineResult]]) -> None:
        """Says it of results, each with the number of its line."""
        for number, complaint in ((number, each) for number, result in numbered for each in result.complaints):
            if self._left:
                self._left -= 1
                self._console.say(f"line {number:,}: {complaint}")


def translate(options: SearchOptions, own: TranslateOptions) -> None:
    """Translates lines by the models that the options name."""
    options.check()
    own.check(options)
    share = Share.of(options)
    bundles, decoding = find_models(options.paths, "translate", options.settings, share.console)
    annotated = options.as_json and own.engine == "nmt"
    terms = Terms(read_terms(own.terms) if own.terms else (), own.keep, decoding.keep)
    task = Translating(common_tokenizer(bundles), decoding, bundles[0].lengths, annotated, terms)
    if own.engine == "ctranslate2" and decoding.no_repeat is not None:
        share.console.say("--engine ctranslate2 does not tell where decoding.no_repeat acts, so this is not counted")
    settings = {"--engine": own.engine, "--keep": list(own.keep), "--sample": own.sample}
    plain = all_of if own.sample else None
    asked = _Asked("translating", settings, plain, own.engine, own.prefix, own.terms, own.sample)
    _answer(options, share, bundles, decoding, task, asked)


def parse(options: SearchOptions, pretty: bool) -> None:
    """Parses lines by the models that the options name; `pretty` draws the trees."""
    options.check()
    if pretty and (options.as_json or options.n_best):
        raise click.UsageError("--pretty does not go with --json or --n-best")
    share = Share.of(options)
    bundles, decoding = find_models(options.paths, "parse", options.settings, share.console)
    task = Parsing(common_tokenizer(bundles), decoding)
    settings = {"--pretty": pretty, "--unconstrained": False}  # the latter as in outputs begun by earlier versions
    _answer(options, share, bundles, decoding, task, _Asked("parsing", settings, drawn if pretty else None))


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
    share: Share,
    bundles: Sequence[Bundle],
    decoding: Decoding,
    task: Task[Result],
    asked: _Asked,
) -> None:
    """Searches all lines and writes the results."""
    show = task.as_json if options.as_json else ranked if options.n_best else asked.plain or best
    workers, say = options.devices, share.console.say
    assembly = Assembly(bundles, decoding, asked.engine, share.device, workers, share.threads, forks=True, say=say)
    ledger = Ledger(asked.doing, task.warnings)
    complaints = _Complaints(share.console)

    def search(pipeline: Pipeline[Result], lines: Iterator[Any], write: Callable[[str], None]) -> None:
        searching = pipeline.groups(ledger.timed(lines), options.n_best or 1, ledger.searched, asked.sample)
        with closing(searching) as groups:
            for group in groups:
                numbered = [(ledger.add(result), result) for result in group]
                write("\n".join(starmap(show, numbered)))
                complaints.say(numbered)
                if attended:
                    attended.add(group)

    opened, read = partial(assembly.open, task), partial(_requests, options.source, asked.prefix, share.console)
    with attending(options, bundles[0]) as attended:
        if options.resume:
            making = _making(options, bundles, decoding, asked)
            if not search_in_blocks(making, read, opened, search, ledger, share):
                return
        else:
            _search_at_once(options, read, opened, search, ledger)
        if attended:
            attended.write(assembly.model)
    options.console.say(ledger.summary())
    if options.strict:
        ledger.check()


def _search_at_once(
    options: SearchOptions,
    read: Callable[[], Iterator[Any]],
    opened: Callable[[], AbstractContextManager[Pipeline[Result]]],
    search: Search[Result],
    ledger: Ledger[Result],
) -> None:
    """Searches the input from its beginning to its end, and writes the results as they come."""
    with ExitStack() as held:
        lines = read()
        _check_output(options)
        pipeline = held.enter_context(opened())
        write = open_output(options.output, held)
        # A progress line would garble what is typed, and results, on the same terminal.
        garbles = is_typed(options.source) or (options.output is None and sys.stdout.isatty())
        shown = Console(options.console.quiet or garbles)
        total = None if shown.quiet else count_input(options.source)
        held.enter_context(ledger.progress(shown, total))
        search(pipeline, lines, write)


def _making(options: SearchOptions, bundles: Sequence[Bundle], decoding: Decoding, asked: _Asked) -> Making:
    """What the output of --resume is made from; every option that changes what is written must be in it."""
    inputs, output = files_to_resume(options.source, options.output, {"--prefix": asked.prefix, "--terms": asked.terms})
    _check_output(options)
    settings = {
        "nmt": __version__,
        "--model": [bundle.content() for bundle in bundles],
        **{f"decoding.{key}": value for key, value in decoding.model_dump(exclude=WITHOUT_EFFECT).items()},
        "--json": options.as_json,
        "--n-best": options.n_best,
        **asked.settings,
    }
    models = [bundle.path / WEIGHTS for bundle in bundles]
    return Making(output, inputs, models, settings)


def _check_output(options: SearchOptions) -> None:
    """Raises UserError if the output would be written over the input, which is there."""
    if options.source and options.output and options.output.exists() and options.source.samefile(options.output):
        raise UserError(f"--output {options.output}: is also the input", "give --output another file")


def _requests(source: Path | None, prefix: Path | None, console: Console) -> Iterator[Any]:
    """The lines of the input, from the beginning of a file; with their prefixes if there is a file of these."""
    lines = read_input(source, console)
    return _with_prefixes(lines, read_lines(prefix), prefix) if prefix else lines


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
