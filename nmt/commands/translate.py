"""`nmt translate` and `nmt parse`: search line by line, in one pass or in resumable blocks."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from functools import partial
from io import BytesIO
from itertools import islice, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nmt import __version__
from nmt.checkpoint.reading import Bundle, common_tokenizer, confidence_of, known_confidence
from nmt.commands.command_line import refuse
from nmt.commands.ledger import Ledger
from nmt.commands.process import count_input, is_typed, open_output, read_input
from nmt.commands.resume import Blocks, Job, Statistics, open_blocks, record_of
from nmt.commands.translate_files import FileTranslation, find_files
from nmt.data.memory import TranslationMemory, say_foreign, say_missing
from nmt.data.pairs import check_inputs, input_files
from nmt.decoding.engine import Request, read_tagged
from nmt.decoding.parser import Parser, drawn
from nmt.decoding.pipeline import Pipeline
from nmt.decoding.translator import Translator
from nmt.decoding.workers import Saved
from nmt.exchange.resolve import resolve
from nmt.formats.document import Document
from nmt.formats.terms import Terms, read_terms
from nmt.recipe import Dataset, Decoding, TaskName, override_decoding
from nmt.recipe.data import PAIRS
from nmt.system.compression import compressed, open_input
from nmt.system.console import Console
from nmt.system.errors import Interrupted, UserError, counted
from nmt.system.files import check_place, is_same_file, sha256, whole_file
from nmt.system.launchers import check_alone
from nmt.text.lines import one_line, read_lines

if TYPE_CHECKING:
    from nmt.commands.options import SearchOptions
    from nmt.decoding.pipeline import LineResult
    from nmt.report.attention import AttentionView

MOST_COMPLAINTS = 20  # maximum complaints about outputs to print
FOR_FILES = "is for files of translators, and does not go with lines"
NO_LINES = "is for lines, and does not go with files of translators"
WITHOUT_EFFECT = {"batch_tokens"}  # decoding settings that do not change outputs


def translate(options: SearchOptions) -> None:
    """Translate lines with the models named by the options."""
    search = LineSearch(options, "translate")
    search.files = find_files(options.source, options.output, options.document or options.markup, search.say)
    refuse(options, "n_best as_json attention sample prefix document", NO_LINES, search.files)
    refuse(options, "ledger everything", FOR_FILES, not search.files)
    others = "n_best as_json resume sample prefix document markup"
    refuse(options, others, "cannot be combined with --memory", options.memory and not search.files)
    table = read_terms(options.terms) if options.terms else ()
    terms = Terms(table, options.keep, search.decoding.keep)
    bundles = search.bundles
    tokenizer = common_tokenizer(bundles)
    directions = search.data.directions
    direction = (options.source_language, options.to)
    source, target = tokenizer.complete(direction, directions)
    search.data = search.data.model_copy(
        update={"source": source or search.data.source, "target": target or search.data.target}
    )
    if tokenizer.source.languages and not tokenizer.lossy and (source, target) not in directions:
        search.say(f"no training set has the direction {source}-{target}")
    warnings = dict(Translator.warnings)
    if options.document or search.files:
        del warnings["inputs split"]  # paragraphs are split at every sentence, and long strings are no fault
    statistics = Statistics("translating", warnings, "line" if options.document else "sentence")

    confidence = None if options.sample else confidence_of(bundles)
    if search.files and isinstance(search.decoding.review, float):
        confidence = known_confidence(bundles)

    def make(models: Saved) -> Translator:
        return Translator(
            models,
            tokenizer,
            search.decoding,
            bundles[0].lengths,
            options.as_json,
            terms,
            directions,
            direction,
            confidence,
            titles=bundles[0].recipe.data.has_titles,
        )

    search.run(make, statistics, options.identity)


def parse(options: SearchOptions) -> None:
    """Parse lines with the models named by the options."""
    search = LineSearch(options, "parse")
    tokenizer = common_tokenizer(search.bundles)

    def make(models: Saved) -> Parser:
        return Parser(models, tokenizer, search.decoding)

    search.run(make, Statistics("parsing", Parser.warnings), options.identity)


def find_models(
    paths: Sequence[Path], overrides: Sequence[str], task: TaskName, console: Console
) -> tuple[list[Bundle], Decoding]:
    """Resolve paths to bundles for a task, and report them; return them and the first one's decoding settings."""
    found = [resolve(path) for path in paths]
    for bundle, _ in found:
        bundle.check_task(task)
    decoding = override_decoding(found[0][0].recipe, overrides)
    for _, note in found:
        console.say(note)
    return [bundle for bundle, _ in found], decoding


class LineSearch:
    """A search over the lines of an input, in one pass or in resumable blocks."""

    def __init__(self, options: SearchOptions, task: TaskName) -> None:
        """Resolve the models.

        Raise UsageError for incompatible options, and UserError if several ranks would each search the whole input.
        """
        options.check()
        of_workers = "with --devices N for several workers; if each rank has an input of its own, "
        check_alone("search the whole input", of_workers)
        self.options = options
        self.say = options.console.say
        self.complaints = 0
        self.files = list[tuple[Path, Path]]()
        self.more = ""  # what else the last line says
        self.first: Mapping[str, str] = {}  # where each warning occurs first in files
        self.bundles, self.decoding = find_models(options.paths, options.settings, task, options.console)
        self.data = self.bundles[0].recipe.data

    def run(self, pipeline_of: Callable[[Saved], Pipeline[Any]], statistics: Statistics, own: dict[str, Any]) -> None:
        """Search all lines, write the results, and report the statistics.

        `pipeline_of` builds the pipeline, once the output has been checked. `own` holds the values of command-specific
        options that affect the output.
        """
        options = self.options
        _check_files(options, in_place=bool(self.files))
        models = Saved(self.bundles, options.device, options.devices, options.threads, forks=True, say=self.say)
        self.open = partial(pipeline_of, models)
        self.statistics = statistics
        path = options.attention
        with _attention_view(options, path, self.bundles[0]) if path else nullcontext() as self.view:
            is_up_to_date = False
            if self.files:
                is_up_to_date = self._in_files(own)
            elif options.resume:
                is_up_to_date = self._in_blocks(own)
            else:
                self._at_once()
            if self.view:
                self.view.write(models.only)
        if self.complaints > MOST_COMPLAINTS:
            self.say(f"and {self.complaints - MOST_COMPLAINTS:,} more such lines")
        if not is_up_to_date:
            self.say(self.statistics.summary(is_typed(options.source)) + self.more)
            if options.strict:
                self.statistics.check(self.first)

    def _in_files(self, own: dict[str, Any]) -> bool:
        """Translate files of translators; return True, and change nothing, if all are up to date."""
        options = self.options
        of_training = self.bundles[0].recipe.data
        known = (*of_training.train, *of_training.memory)
        trained = [each for each in known if of_training.of(each).languages == self.data.languages]
        say_missing(trained, self.data, self.say)
        named = self._memory_sets()
        memory = list[str]()  # hashes
        for each in (*named, *trained):
            memory += [sha256(path) for path in input_files(each, self.data) if path.is_file()]
        settings = {**self._settings(own), "--terms": None, "memory": memory}
        terms = None
        if options.terms:
            settings["--terms"] = sha256(options.terms)
            terms = Terms(read_terms(options.terms), common=False)  # only to check what comes from memory
        with ExitStack() as held:
            ledger = Ledger(options.ledger, self.say, held)
            translation = FileTranslation(
                self.files,
                named,
                trained,
                self.data,
                self.decoding,
                self.say,
                held,
                ledger,
                settings,
                options.resume,
                terms,
                options.everything,
            )
            if translation.is_done:
                self.say(f"{options.output}: already up to date; without --resume, it is translated again")
                return True
            with self.open() as pipeline, self.statistics.progress(options.console, None):
                translation.run(pipeline, self.statistics)
        self.more = f"; {translation.summary}"
        self.first = ledger.first
        return False

    def _memory_sets(self) -> list[Dataset]:
        """Return the data sets of --memory; raise an error if one is no file of pairs."""
        sets = []
        for path in self.options.memory:
            try:
                sets.append(Dataset(file=str(path.absolute())))
            except ValueError:
                raise click.UsageError(f"--memory {path}: must end in one of {', '.join(PAIRS)}") from None
        check_inputs(sets, self.data)
        say_foreign(sets, self.data, self.say)
        return sets

    def _recalled(self, lines: Iterator[str]) -> Iterator[str | Request]:
        """Yield the lines; one that the memory has is a blank request, with its translation as `origin`."""
        memory = TranslationMemory(None, self._memory_sets(), self.data)
        count = 0
        for line in lines:
            known = memory.recall_line(line)
            count += known is not None
            self.more = f"; {count:,} from memory"
            yield Request("", origin=one_line(known)) if known else line

    def _at_once(self) -> None:
        """Search the whole input and write results as they arrive."""
        options = self.options
        with ExitStack() as held:
            lines = self._read()
            _check_output(options)
            pipeline = held.enter_context(self.open())
            write = open_output(options.output, held)
            # Progress would garble typed lines and results on the same terminal.
            garbles = is_typed(options.source) or (options.output is None and sys.stdout.isatty())
            shown = Console(options.console.quiet or garbles)
            total = None if shown.quiet else count_input(options.source)
            held.enter_context(self.statistics.progress(shown, total))
            self._search(pipeline, lines, write)
        if options.output:
            record_of(options.output).unlink(missing_ok=True)  # of a job of --resume, whose output this has replaced

    def _in_blocks(self, own: dict[str, Any]) -> bool:
        """Search the missing blocks and join all, after which the statistics cover all lines.

        Return True, and change nothing, if the output is already up to date.
        """
        job = self._job(own)
        with open_blocks(job, lambda: sum(1 for _ in self._read()), self.say) as blocks:
            if blocks is None:
                self.say(f"{job.output}: already up to date; remove it to translate again")
                return True
            try:
                numbers = blocks.missing() or blocks.join(self.say)
                while numbers:
                    self._search_blocks(blocks, numbers)
                    numbers = blocks.join(self.say)
            except (KeyboardInterrupt, Interrupted) as error:
                number = error.signal_number if isinstance(error, Interrupted) else signal.SIGINT
                done = f"{blocks.total.lines:,} of {blocks.lines:,} lines are done; run the same command to continue"
                raise Interrupted(done, number) from error
            self.statistics.counts = blocks.total
            return False

    def _search_blocks(self, blocks: Blocks, numbers: Sequence[int]) -> None:
        done = blocks.total.lines
        total = done + sum(blocks.span(number)[1] for number in numbers)
        lines = self._read()
        read = 0
        with self.open() as pipeline, self.statistics.progress(self.options.console, total, done):
            for number in numbers:
                before, count = blocks.span(number)
                for _ in islice(lines, before - read):  # of finished blocks
                    pass
                read = before + count
                with blocks.writing(number, self.statistics.begin(before)) as write:
                    self._search(pipeline, islice(lines, count), write)

    def _search(self, pipeline: Pipeline[Any], lines: Iterator[Any], write: Callable[[str], None]) -> None:
        options = self.options
        statistics = self.statistics
        show = self._format(pipeline)
        document = None
        if options.memory:
            lines = self._recalled(lines)
        if options.document:
            document = Document(lines)
            lines = (Request(segment.raw, origin=piece).of_segment(segment) for segment, piece in document)
        if options.markup:
            lines = read_tagged(lines)
        searching = pipeline.stream(
            statistics.timed(lines), options.n_best or 1, options.sample, statistics.searched, statistics.before
        )
        with closing(searching) as results:
            for result in results:
                number = statistics.add(result)
                shown = show(number, result)
                if shown is not None:
                    write(shown)
                for complaint in result.complaints:
                    self.complaints += 1
                    if self.complaints <= MOST_COMPLAINTS:
                        self.say(f"line {number:,}: {complaint}")
                if self.view and not result.failed:
                    self.view.add(result)
        if document and document.left:
            self.more = f"; {document.left}"

    def _format(self, pipeline: Pipeline[Any]) -> Callable[[int, Any], str | None]:
        """Return the function that formats the result of an input line, given its number; None stands for no output."""
        if self.options.document:
            return laid_out
        if self.options.as_json:
            return pipeline.as_json
        if self.options.n_best:
            return ranked
        return drawn if self.options.pretty else texts

    def _job(self, own: dict[str, Any]) -> Job:
        """Return the job of --resume: its output, inputs, models and all options that affect the output.

        Raise UsageError unless all files are regular, and UserError if one cannot be read.
        """
        options = self.options
        if options.source is None or options.output is None:
            raise click.UsageError("--resume needs --input and --output: a pipe cannot be read twice")
        inputs = {"--input": options.source}
        if options.prefix:
            inputs["--prefix"] = options.prefix
        if options.terms:
            inputs["--terms"] = options.terms
        for option, path in {**inputs, "--output": options.output}.items():
            if path.exists() and not path.is_file():
                raise click.UsageError(f"--resume needs regular files, but {option} {path} is not one")
        for path in inputs.values():
            open_input(path).close()
        _check_output(options)
        return Job(options.output, inputs, self._settings(own))

    def _settings(self, own: dict[str, Any]) -> dict[str, Any]:
        """Return everything but files that affects the output, by user-visible name."""
        decoding = self.decoding.model_dump(exclude=WITHOUT_EFFECT)
        return {
            "nmt": __version__,
            "--model": [bundle.content() for bundle in self.bundles],
            **{f"decoding.{key}": value for key, value in decoding.items()},
            **own,
        }

    def _read(self) -> Iterator[Any]:
        """Return the input's lines from the start, with their prefixes if --prefix is given."""
        options = self.options
        expected = "a blank line after each paragraph" if options.document else "one sentence per line"
        lines = read_input(options.source, options.console, expected)
        if not options.prefix:
            return lines
        return _with_prefixes(lines, read_lines(options.prefix), options.prefix)


def _check_output(options: SearchOptions) -> None:
    """Raise UserError if the output has no place, or cannot be compressed as named."""
    with compressed(BytesIO(), options.output or ""):
        pass
    if options.output:
        check_place(options.output)


def _check_files(options: SearchOptions, in_place: bool) -> None:
    """Raise UserError if a file that is written would replace one that is read, or another one that is written.

    With `in_place`, the output may replace the input, and translations that the memory has.
    """
    replaceable = [("--input", options.source), *(("--memory", path) for path in options.memory)]
    taken = [("--prefix", options.prefix), ("--terms", options.terms)]
    if in_place:
        _check_file("--output", options.output, taken)
    else:
        _check_file("--output", options.output, [*replaceable, *taken])
    taken += [*replaceable, ("--output", options.output)]
    _check_file("--attention", options.attention, taken)
    _check_file("--ledger", options.ledger, taken)


def _check_file(option: str, path: Path | None, taken: Sequence[tuple[str, Path | None]]) -> None:
    """Raise UserError if the file of an option is that of another one."""
    for other, its in taken:
        if path and its and is_same_file(path, its):
            raise UserError(f"{option} {path}: is also the file of {other}", f"give {option} another file")


def _with_prefixes(lines: Iterator[str], prefixes: Iterator[str], path: Path) -> Iterator[Request]:
    """Yield each line with its prefix from the file `path`; raise UserError if one has more lines than the other."""
    for number, (line, prefix) in enumerate(zip_longest(lines, prefixes)):
        if line is None or prefix is None:
            what = "ends" if prefix is None else "goes on"
            problem = f"--prefix {path}: {what} after {counted(number, 'line')}, unlike the input"
            raise UserError(problem, "give it one line per input line, empty where no prefix is wanted")
        yield Request(line, prefix)


def texts(number: int, result: LineResult) -> str:
    """Return the translation that the memory had; else the best output, or one line per sample."""
    return result.origin or "\n".join(result.texts)


def laid_out(number: int, result: LineResult) -> str | None:
    """Return the lines of the paragraph that begins on input line `number`; None if that is inside of one."""
    return result.origin.lay_out(result.texts[0]) if result.origin else None


def ranked(number: int, result: LineResult) -> str:
    """Return one line per hypothesis of input line `number`: number, rank, score, text without spaces at its ends."""
    lines = []
    for rank, (score, text) in enumerate(zip(result.scores, result.texts, strict=True), 1):
        lines.append(f"{number}\t{rank}\t{score:.4f}\t{text.strip()}")
    return "\n".join(lines)


@contextmanager
def _attention_view(options: SearchOptions, path: Path, bundle: Bundle) -> Iterator[AttentionView]:
    """Yield the writer of the --attention file, which is complete on exit; raise UserError if it cannot be written."""
    from nmt.report.attention import AttentionView

    with whole_file(path) as stream:
        view = AttentionView(stream, path, bundle)
        yield view
    options.console.say(f"attention: {path} shows {view.shown}")
