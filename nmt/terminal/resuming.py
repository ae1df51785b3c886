"""`--resume`: a search that goes on after it was stopped, and whose blocks are dealt out to ranks."""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
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

MOST_NUMBERS = 10  # of missing blocks that are listed

Search = Callable[[Pipeline[Result], Iterator[Any], Callable[[str], None]], None]
"""Searches lines by a pipeline and writes their results."""


@dataclass(frozen=True)
class Share:
    """What one of several ranks has for itself; a process that runs alone has everything."""

    place: Place
    console: Console
    """Quiet unless this is rank 0, which speaks for all."""
    own_console: Console
    """Says what concerns this rank alone."""
    device: str
    threads: int | None

    @classmethod
    def of(cls, options: SearchOptions) -> Share:
        """The share of this process; raises UserError if it is one of several that would all do the same."""
        place = find_place(os.environ) or Place()
        if place.size == 1:
            return cls(place, options.console, options.console, options.device, options.threads)
        if not options.resume:
            raise UserError(
                f"this is one of {place.size} ranks, and each would search the whole input",
                "give --resume, --input and --output, and they share one input; where each has an input of its own, "
                "unset RANK and SLURM_STEP_NUM_TASKS",
            )
        console = Console(options.console.quiet or place.rank > 0)
        threads = place.threads(options.threads or cores())
        return cls(place, console, options.console, device_of(options.device, place), threads)


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
    share: Share,
) -> bool:
    """Search the missing blocks of this rank, and join all if none is missing; return whether this process did.

    `read` reads the input from its beginning, and `opened` loads the models. The ledger of the process that joins the
    blocks has counted all lines then. Rank r of R makes the blocks whose number is r modulo R, and waits for no other.
    """

    def search_blocks(blocks: Blocks, numbers: Sequence[int]) -> None:
        done, at, lines = blocks.total.lines, 0, read()
        total = done + sum(blocks.span(number)[1] for number in numbers)
        with opened() as pipeline, ledger.progress(share.console, total, done):
            for number in numbers:
                before, count = blocks.span(number)
                deque(islice(lines, before - at), maxlen=0)
                at = before + count
                with blocks.writing(number, ledger.begin(before)) as write:
                    search(pipeline, islice(lines, count), write)

    output, folder, place = making.output, folder_of(making.output), share.place
    with open_blocks(making, lambda: sum(1 for _ in read()), place, share.console.say) as blocks:
        if blocks is None:
            share.console.say(f"{output}: is there, and newer than what it is made from; remove it to make it again")
            return False
        numbers = [number for number in blocks.missing() if number % place.size == place.rank]
        with _saying_what_is_done(blocks):
            while True:
                if numbers:
                    search_blocks(blocks, numbers)
                numbers = [] if blocks.missing() else blocks.join(share.own_console.say)
                if not numbers:
                    break
        if missing := blocks.missing():
            numbered = ", ".join(map(str, missing[:MOST_NUMBERS])) + (", …" if len(missing) > MOST_NUMBERS else "")
            hint = "if one was stopped, run the same command again"
            share.own_console.say(f"{folder}: other ranks have yet to make blocks {numbered}; {hint}")
        elif not blocks.joined and not making.is_done():
            hint = "run the same command again; it begins anew"
            raise UserError(f"{folder}: was removed before the output was whole", hint)
        ledger.tally = blocks.total
        return blocks.joined


@contextmanager
def _saying_what_is_done(blocks: Blocks) -> Iterator[None]:
    """Says, where a signal ends the process, how much is done."""
    try:
        yield
    except (KeyboardInterrupt, Interrupted) as error:
        number = error.signal_number if isinstance(error, Interrupted) else signal.SIGINT
        done = f"{blocks.total.lines:,} of {blocks.lines:,} lines are done; the same command goes on from there"
        raise Interrupted(done, number) from error
