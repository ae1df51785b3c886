"""`--resume`: a search that goes on after it was stopped, and that several ranks share."""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nmt.console import Console
from nmt.device import cores
from nmt.errors import Interrupted, UserError
from nmt.place import Place, device_of, find_place
from nmt.tasks.pipeline import Pipeline, Result
from nmt.terminal.blocks import Blocks, folder_of, open_blocks
from nmt.terminal.ledger import Ledger
from nmt.terminal.making import Making
from nmt.text.lines import open_input

if TYPE_CHECKING:
    from nmt.terminal.options import SearchOptions

Search = Callable[[Pipeline[Result], Iterator[Any], Callable[[str], None]], None]
"""Searches lines by a pipeline and writes their results."""


@dataclass(frozen=True)
class Share:
    """What one of several ranks has for itself; a process that runs alone has everything."""

    console: Console
    """Quiet unless this is rank 0, which speaks for all."""
    device: str
    threads: int | None

    @classmethod
    def of(cls, options: SearchOptions) -> Share:
        """The share of this process; raises UserError if it is one of several that would all do the same."""
        place = find_place(os.environ) or Place()
        if place.size == 1:
            return cls(options.console, options.device, options.threads)
        if not options.resume:
            raise UserError(
                f"this is one of {place.size} ranks, and each would search the whole input",
                "give --resume, --input and --output, and they share one input; where each has an input of its own, "
                "unset RANK and SLURM_STEP_NUM_TASKS",
            )
        console = Console(options.console.quiet or place.rank > 0)
        return cls(console, device_of(options.device, place), place.threads(options.threads or cores()))


def files_to_resume(
    source: Path | None, output: Path | None, others: Mapping[str, Path | None]
) -> tuple[dict[str, Path], Path]:
    """The files that --resume reads, by their options, and the one that it writes.

    Raises UsageError if they cannot be read again, or be written in blocks; UserError if one cannot be read at all.
    """
    if source is None or output is None:
        raise click.UsageError("--resume needs --input and --output: what a pipe has sent cannot be read again")
    inputs = {"--input": source, **{option: path for option, path in others.items() if path}}
    for option, path in {**inputs, "--output": output}.items():
        if path.exists() and not path.is_file():
            raise click.UsageError(f"--resume needs regular files, and {option} {path} is none")
    for path in inputs.values():
        open_input(path).close()
    return inputs, output


def search_in_blocks(
    making: Making,
    read: Callable[[], Iterator[Any]],
    opened: Callable[[], AbstractContextManager[Pipeline[Result]]],
    search: Search[Result],
    ledger: Ledger[Result],
    console: Console,
) -> bool:
    """Searches what is missing of an output, and joins it; tells whether this process did the latter.

    `read` reads the input from its beginning, and `opened` loads the models. The ledger has counted all lines then.
    """
    with open_blocks(making, lambda: sum(1 for _ in read())) as blocks:
        if blocks is None:
            console.say(f"{making.output}: is there, and newer than what it is made from; remove it to make it again")
            return False
        joined = False
        with _saying_what_is_done(blocks):
            while not blocks.gone:
                if not blocks.is_finished:
                    with opened() as pipeline:
                        _search_missing(blocks, _Spans(read), pipeline, search, ledger, console)
                joined = blocks.join(console.say)
        if not joined and not making.is_done():
            raise UserError(
                f"{folder_of(making.output)}: was removed before the output was whole",
                "run the same command again; it begins anew",
            )
        ledger.tally = blocks.total
        return joined


def _search_missing(
    blocks: Blocks,
    spans: _Spans,
    pipeline: Pipeline[Result],
    search: Search[Result],
    ledger: Ledger[Result],
    console: Console,
) -> None:
    done = blocks.total.lines
    with (
        ledger.progress(console, blocks.lines, done),
        closing(blocks.claimed(ledger.searched_elsewhere)) as claimed,
    ):
        for number, before, count in claimed:
            tally = ledger.begin(before)
            with blocks.writing(number, tally) as write:
                search(pipeline, spans.lines(before, count), write)


class _Spans:
    """Successive lines of an input, at any place; memory does not depend on its size."""

    def __init__(self, read: Callable[[], Iterator[Any]]) -> None:
        self._read = read
        self._lines: Iterator[Any] = iter(())
        self._at: int | None = None  # number of lines that were taken

    def lines(self, before: int, count: int) -> Iterator[Any]:
        """The lines that come after the first `before`; all have to be taken before this is called again."""
        if self._at is None or before < self._at:
            self._lines, self._at = self._read(), 0
        deque(islice(self._lines, before - self._at), maxlen=0)
        self._at = before + count
        return islice(self._lines, count)


@contextmanager
def _saying_what_is_done(blocks: Blocks) -> Iterator[None]:
    """Says, where a signal ends the process, how much is done."""
    try:
        yield
    except (KeyboardInterrupt, Interrupted) as error:
        number = error.signal_number if isinstance(error, Interrupted) else signal.SIGINT
        done = f"{blocks.total.lines:,} of {blocks.lines:,} lines are done; the same command goes on from there"
        raise Interrupted(done, number) from error
