"""Statistics of a search, and resumable output, written in blocks.

While `big.out` is unfinished, the folder `big.out.parts` holds:

- `blocks.json`: the plan, with everything the output depends on and the division of the input into blocks;
- `00000012.txt`: a block's output. `00000012.json`, with its hash and counts, is written afterwards;
- `.lock`: held by the process that makes the blocks.

Once no block is missing, it joins them, writes `.big.out.job`, the hash of the output and everything that the output
depends on, and deletes the folder. A later command for the same output compares these, not file times. This module is
independent of models.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from glob import escape
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from nmt.commands.process import open_output
from nmt.system.compression import compressed
from nmt.system.console import Advance, Console, unseen
from nmt.system.errors import UserError
from nmt.system.files import clear_parts, identify, remove_directory, whole_file
from nmt.system.integrity import HASHES, hash_file, read_manifest, replace_manifest
from nmt.system.processes import exclusive

if TYPE_CHECKING:
    from nmt.decoding.pipeline import LineResult

PLAN = "blocks.json"
LOCK = ".lock"
FORMAT = 1  # version of blocks.json
BLOCK_LINES = 10_000  # a killed process loses at most one block; smaller blocks leave the device idle more often


@dataclass
class Counts:
    """Counts over a range of input lines."""

    lines: int = 0
    tokens: int = 0
    """Target symbols, including `</s>`"""
    warnings: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Each warning's number of occurrences and first line number"""

    def add(self, other: Counts) -> None:
        """Add the counts of other lines of the same input."""
        self.lines += other.lines
        self.tokens += other.tokens
        for warning, (count, line) in other.warnings.items():
            before, first = self.warnings.get(warning, (0, line))
            self.warnings[warning] = (before + count, min(first, line))


class Statistics:
    """Progress, speed and warnings of a search.

    `searched` counts a line when its search finishes, in any order; `add` counts it when it is written, in order.
    """

    def __init__(self, doing: str, warnings: Mapping[str, Callable[[Any], int]], noun: str = "sentence") -> None:
        """Label the progress with `doing` and the lines with `noun`.

        Each function in `warnings` counts one kind of defect in a result.
        """
        self.counts = Counts()
        self._advance: Advance = unseen
        self.before = 0  # input lines that precede those of `counts`
        self._doing = doing
        self._warnings = warnings
        self._noun = noun
        self._tokens = 0  # since `_began`
        self._began: float | None = None

    def begin(self, before: int) -> Counts:
        """Reset and return the counts; from now on they cover the input after its first `before` lines."""
        self.counts = Counts()
        self.before = before
        return self.counts

    @contextmanager
    def progress(self, console: Console, total: int | None, done: int = 0) -> Iterator[None]:
        """Show the search's progress, starting from `done` lines that an earlier run finished."""
        with console.progress(self._doing, total, "lines", done) as self._advance:
            yield

    def timed(self, lines: Iterator[Any]) -> Iterator[Any]:
        """Yield the lines; start the clock of `speed` at the first."""
        for line in lines:
            self._began = self._began or time.monotonic()
            yield line

    def searched(self, tokens: int) -> None:
        """Count a finished line's target symbols, including `</s>`; lines may finish out of order."""
        self.counts.tokens += tokens
        self._tokens += tokens
        self._advance(1, self.speed())

    def add(self, result: LineResult, with_warnings: bool = True) -> int:
        """Count the next line's result; return its 1-based line number in the input."""
        self.counts.lines += 1
        number = self.before + self.counts.lines
        if not result.parts:
            self.searched(0)  # a blank line, which never reaches the engine
        if with_warnings:
            self.warn(self.occurring(result), number)
        return number

    def warn(self, warnings: Mapping[str, int], number: int = 0) -> None:
        """Count the warnings of line `number`, each with how often it occurs; 0 for text that is no line."""
        self.counts.add(Counts(warnings={name: (times, number) for name, times in warnings.items()}))

    def occurring(self, result: LineResult) -> dict[str, int]:
        """Return how often each warning occurs in a result, without those that do not."""
        found = {}
        for warning, occurs in self._warnings.items():
            count = occurs(result)
            if count:
                found[warning] = count
        return found

    def speed(self) -> str:
        """Return the target symbols per second since the first line, as text."""
        seconds = 0.0
        if self._began is not None:
            seconds = time.monotonic() - self._began
        return f"{self._tokens / max(seconds, 1e-9):,.0f} tokens/s"

    def summary(self, typed: bool) -> str:
        """Format lines, speed and the warnings that occurred on one line; no speed if the lines were typed."""
        text = f"{self.counts.lines:,} {self._noun}"
        if self.counts.lines != 1:
            text += "s"
        if not typed:
            text += f", {self.speed()}"
        found = ", ".join(f"{name} {count:,}" for name, count, _ in self._occurred())
        if found:
            text += f"; {found}"
        return text

    def check(self, first: Mapping[str, str] = MappingProxyType({})) -> None:
        """Raise UserError if any warning occurred; say where it was `first`, or else the number of its line."""
        found = []
        for name, count, line in self._occurred():
            where = first.get(name, f"line {line:,}")
            found.append(f"{name} {count:,} (first in {where})")
        if found:
            raise UserError(f"--strict: {', '.join(found)}", "use the output, which is complete, or leave out --strict")

    def _occurred(self) -> Iterator[tuple[str, int, int]]:
        """Yield each warning that occurred, with how often, and the number of its first line."""
        for name in self._warnings:
            if name in self.counts.warnings:
                yield name, *self.counts.warnings[name]


# --- blocks ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """An output and everything it depends on; a change to any of it invalidates finished blocks."""

    output: Path
    inputs: Mapping[str, Path]
    """Files read line by line, keyed by option"""
    settings: Mapping[str, Any]
    """Everything else that affects the output, with hashes of models, keyed by user-visible name; values are JSON"""

    def files(self) -> dict[str, list[Any]]:
        """Return the inputs by `identify`, keyed by option."""
        return {option: identify(path, None) for option, path in self.inputs.items()}

    def is_done(self, say: Callable[[str], None]) -> bool:
        """Return whether the output is complete; `say` why it is to be made again, if it exists.

        Raise UserError if it has changed since it was made: somebody may have edited it.
        """
        if not self.output.exists():
            return False
        try:
            record = read_manifest(record_of(self.output))
        except UserError:  # there is none, or it is damaged
            say(f"{self.output}: there is no record of how it was made, so it is made again")
            return False
        if record.get("output") != hash_file(self.output):
            hint = "keep it, or remove it to have it made again"
            raise UserError(f"{self.output}: has changed since it was made", hint)
        differences = _differences(record.get("job", {}), _described(self.settings, self.files()))
        if differences:
            say(f"{self.output}: was made with other settings or files, so it is made again: {', '.join(differences)}")
        return not differences


class Blocks:
    """The blocks of an unfinished output; created by `open_blocks`."""

    def __init__(self, job: Job, plan: Mapping[str, Any]) -> None:
        """Find out which blocks of the plan are finished."""
        self.lines: int = plan["lines"]
        self._size: int = plan["block_lines"]
        self._numbers = range(-(-self.lines // self._size))  # rounded up: the last block may be shorter
        self._output = job.output
        self._folder = folder_of(job.output)
        # Here and below, HASHES: {} makes the file hold a hash of its own contents.
        self._record = {"job": _described(plan["settings"], plan["files"]), HASHES: {}}
        self._files = {path: plan["files"][option] for option, path in job.inputs.items()}
        self._finished: dict[int, tuple[Counts, str]] = {}  # counts and text hash by block number
        for number in self._numbers:
            with suppress(UserError):  # it is unfinished, or its record is damaged
                record = read_manifest(self._text(number).with_suffix(".json"))
                if HASHES in record:
                    counts = Counts(record["lines"], record["tokens"], record["warnings"])
                    self._finished[number] = (counts, record["text"])

    @property
    def total(self) -> Counts:
        """Sum of the counts of all finished blocks"""
        total = Counts()
        for counts, _ in self._finished.values():
            total.add(counts)
        return total

    def missing(self) -> list[int]:
        """Return the numbers of the unfinished blocks."""
        return [number for number in self._numbers if number not in self._finished]

    def span(self, number: int) -> tuple[int, int]:
        """Return a block's 0-based first line and its number of lines."""
        before = number * self._size
        return before, min(self._size, self.lines - before)

    @contextmanager
    def writing(self, number: int, counts: Counts) -> Iterator[Callable[[str], None]]:
        """Yield a function that writes lines of a block; on exit, mark the block as finished and store `counts`.

        Raise UserError if the input has changed since it was opened.
        """
        text = self._text(number)
        with ExitStack() as held:
            yield open_output(text, held)
            changed = [path for path, known in self._files.items() if identify(path, known)[-1] != known[-1]]
            if changed or counts.lines != self.span(number)[1]:
                problem = f"{(changed or list(self._files))[0]}: has changed while it was read"
                raise UserError(problem, f"restore it, or remove {self._folder} to start over with the new one")
        digest = hash_file(text)
        replace_manifest(text.with_suffix(".json"), {"text": digest, **asdict(counts), HASHES: {}})
        self._finished[number] = (counts, digest)

    def join(self, say: Callable[[str], None]) -> list[int]:
        """Join the blocks into the output and delete the folder.

        If blocks are damaged, report them through `say` and return their numbers: they must be made again first.
        """
        damaged = [number for number in self._numbers if not self._is_intact(number)]
        for number in damaged:
            say(f"{self._text(number)}: damaged; these lines are searched again")
            self._text(number).with_suffix(".json").unlink(missing_ok=True)
            del self._finished[number]
        if not damaged:
            with whole_file(self._output) as file, compressed(file, self._output) as stream:
                for number in self._numbers:
                    with self._text(number).open("rb") as block:
                        shutil.copyfileobj(block, stream)
            replace_manifest(record_of(self._output), {"output": hash_file(self._output), **self._record})
            remove_directory(self._folder)
        return damaged

    def _text(self, number: int) -> Path:
        return self._folder / f"{number:08}.txt"

    def _is_intact(self, number: int) -> bool:
        with suppress(UserError):  # the file is missing
            return hash_file(self._text(number)) == self._finished[number][1]
        return False


def folder_of(output: Path) -> Path:
    """Return the folder that holds the blocks of an unfinished output."""
    return output.with_name(f"{output.name}.parts")


def record_of(output: Path) -> Path:
    """Return the file that says what a finished output was made of."""
    return output.with_name(f".{output.name}.job")


@contextmanager
def open_blocks(job: Job, count: Callable[[], int], say: Callable[[str], None]) -> Iterator[Blocks | None]:
    """Create or reopen an output's blocks and yield them; yield None if the output is complete and up to date.

    `count` returns the number of input lines. Raise UserError if the blocks belong to other inputs or settings, if the
    output has changed since it was made, or if another process is at work.
    """
    folder = folder_of(job.output)
    clear_parts(folder.parent, escape(folder.name))
    if not (folder / PLAN).exists() and job.is_done(say):
        yield None
        return
    folder.mkdir(exist_ok=True)
    with exclusive(folder / LOCK, str(job.output), say):
        try:
            yield Blocks(job, _agree_on_plan(folder / PLAN, job, count))
        except BaseException:
            if {path.name for path in folder.glob("*")} <= {LOCK, PLAN}:  # before the first block: a wrong option
                shutil.rmtree(folder, ignore_errors=True)
            raise


def _agree_on_plan(path: Path, job: Job, count: Callable[[], int]) -> dict[str, Any]:
    """Read the plan, or write one if there is none: `lines`, `block_lines`, `files` and `settings`.

    `count` returns the number of input lines. Raise UserError if the plan has other inputs or settings.
    """
    folder = path.parent
    plan: dict[str, Any] = {"files": job.files(), "settings": job.settings}
    if not os.path.lexists(path):
        others = sorted(file.name for file in folder.glob("[!.]*"))
        if others:
            hint = "move it away, or name another --output"
            raise UserError(f"{folder}: holds {others[0]}, but no blocks of this output", hint)
        plan = {"format": FORMAT, "lines": count(), "block_lines": BLOCK_LINES, **plan, HASHES: {}}
        replace_manifest(path, plan)
        return plan
    before = _read_plan(path)
    there = _described(before["settings"], before["files"])
    differences = _differences(there, _described(plan["settings"], plan["files"]))
    if differences:
        problem = f"{folder}: holds blocks made with other settings or files: {', '.join(differences)}"
        raise UserError(problem, f"repeat the command that made them, or remove {folder} to start over")
    return {**before, **plan}  # with the files' present stamps: equal contents may have another time


def _read_plan(path: Path) -> dict[str, Any]:
    with suppress(UserError):
        plan = read_manifest(path)
        if plan.get("format") == FORMAT and HASHES in plan:
            return plan
    problem = f"{path}: damaged, or written by another version of nmt"
    raise UserError(problem, f"remove {path.parent} to start over, or use the version that wrote it")


def _described(settings: Mapping[str, Any], files: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Return everything that an output depends on, by name; `files` are the inputs by `identify`."""
    described: dict[str, Any] = json.loads(json.dumps(settings))
    for option, stamp in files.items():
        described[option] = stamp[-1:]  # the hash; as a list, which `_differences` does not print
    return described


def _differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Return the names of settings that differ, with both values unless they are lists or dicts."""
    differences = []
    for name in {**there, **here}:
        before = there.get(name)
        now = here.get(name)
        if before == now:
            continue
        if isinstance(before, list | dict) or isinstance(now, list | dict):
            differences.append(name)
        else:
            differences.append(f"{name} ({before} there, {now} here)")
    return differences
