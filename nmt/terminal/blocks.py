"""A large output that is made block by block, by one process or by several, and that survives their end.

While `big.out` is unfinished, the folder `big.out.parts` stands beside it:

- `blocks.json` says what the output is made from, and how the input is cut into blocks;
- `00000012.txt` is the output of a block. `00000012.json` is written after it, with its hash and its tally;
- `.claims` is locked byte by byte: the process that makes block n holds byte n + 1. The system releases the byte when
  that process ends, however it ends, on a file system of several hosts as well.

The process that finds all blocks finished writes the output and removes the folder. This module knows no models.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from glob import escape
from pathlib import Path
from typing import IO, Any

from nmt.errors import UserError
from nmt.files import clear_parts, remove_directory, whole_file
from nmt.integrity import HASHES, hash_file, read_manifest, replace_manifest
from nmt.terminal.ledger import Tally
from nmt.terminal.making import Making, agree_on_plan
from nmt.terminal.streams import open_output
from nmt.text.lines import compressed

LOOK = 0.5  # seconds between two looks at the blocks of other processes
PLAN, CLAIMS = "blocks.json", ".claims"


class Blocks:
    """The blocks of an output; `open_blocks` opens them."""

    def __init__(self, making: Making, claims: IO[bytes], plan: Mapping[str, Any]) -> None:
        self.lines: int = plan["lines"]
        self.gone = False
        """Whether the folder has been removed, usually because the output is whole."""
        self._size: int = plan["block_lines"]
        self._output, self._folder, self._claims = making.output, folder_of(making.output), claims
        self._stamps = {path: plan["files"][option][:2] for option, path in making.inputs.items()}
        self._finished: dict[int, tuple[Tally, str]] = {}  # what was counted of each block, and the hash of its text
        self._missing = set(range(-(-self.lines // self._size)))
        self._look(self._missing)

    @property
    def total(self) -> Tally:
        """What was counted of all finished blocks."""
        total = Tally()
        for tally, _ in self._finished.values():
            total.add(tally)
        return total

    @property
    def is_finished(self) -> bool:
        """Whether no block is missing, as far as this process knows."""
        return not self._missing

    def claimed(self, elsewhere: Callable[[Tally], None]) -> Generator[tuple[int, int, int], None, None]:
        """Yield a block that no other process makes meanwhile, until all are finished; `writing` finishes it.

        A block is its number, the number of lines before it, and its own. `elsewhere` is told what other processes
        have counted. Their blocks become free when they are killed, so this waits until all blocks are finished.
        """
        while self._missing:
            before = len(self._missing)
            for number in sorted(self._missing):
                with _locked(self._claims, number + 1, 1, wait=False) as free:
                    if free:
                        elsewhere(self._look([number]))  # another process may have finished it just now
                        if number in self._missing:
                            yield number, number * self._size, self._lines_of(number)
            elsewhere(self._look(self._missing))
            if len(self._missing) == before:
                time.sleep(LOOK)

    @contextmanager
    def writing(self, number: int, tally: Tally) -> Iterator[Callable[[str], None]]:
        """Give what writes the lines of a claimed block; at the end it is finished, with what `tally` has counted.

        Raises UserError if the input is not the one that was opened.
        """
        text = self._text(number)
        with ExitStack() as held:
            yield open_output(text, held)
            changed = [path for path, stamp in self._stamps.items() if _stamp(path) != stamp]
            if changed or tally.lines != self._lines_of(number):
                raise UserError(
                    f"{(changed or list(self._stamps))[0]}: has changed while it was read",
                    f"put it back, or remove {self._folder} to begin with the new one",
                )
        digest = hash_file(text)
        replace_manifest(text.with_suffix(".json"), {"text": digest, **asdict(tally), HASHES: {}})
        self._keep(number, tally, digest)

    def join(self, say: Callable[[str], None]) -> bool:
        """Write the output if all blocks are intact, and remove the folder; tells whether this process did.

        If not, then another process has, or some blocks were damaged, which `say` is told: they are missing again.
        """
        with _locked(self._claims, 0, 0, wait=True):  # all bytes: nobody makes a block meanwhile
            self._look(())
            if self.gone:
                return False
            for number, (_, digest) in sorted(self._finished.items()):
                if not self._is_intact(number, digest):
                    say(f"{self._text(number)}: damaged; these lines are searched again")
                    self._text(number).with_suffix(".json").unlink(missing_ok=True)
                    del self._finished[number]
                    self._missing.add(number)
            if self._missing:
                return False
            with whole_file(self._output) as file, compressed(file, self._output) as stream:
                for number in sorted(self._finished):
                    with self._text(number).open("rb") as block:
                        shutil.copyfileobj(block, stream)
            self._remove()
        return True

    def leave(self) -> None:
        """Remove the folder if no block is finished and nobody else is making one, as after a wrong option."""
        with _locked(self._claims, 0, 0, wait=False) as alone:
            self._look(self._missing)
            if alone and not self.gone and not self._finished:
                self._remove()

    def _remove(self) -> None:
        remove_directory(self._folder)
        self.gone = True

    def _look(self, numbers: Iterable[int]) -> Tally:
        """Look which of these blocks have been finished since, or whether all are; returns what was counted of them."""
        found = Tally()
        for number in sorted(numbers):
            if record := self._read_record(number):
                self._keep(number, *record)
                found.add(record[0])
        if _is_gone(self._claims, self._folder):
            self._missing, self.gone = set(), True
        return found

    def _lines_of(self, number: int) -> int:
        return min(self._size, self.lines - number * self._size)

    def _text(self, number: int) -> Path:
        return self._folder / f"{number:08}.txt"

    def _keep(self, number: int, tally: Tally, digest: str) -> None:
        self._finished[number] = (tally, digest)
        self._missing.discard(number)

    def _read_record(self, number: int) -> tuple[Tally, str] | None:
        """What was counted of a finished block, and its hash; None if it is unfinished, or its record is damaged."""
        with suppress(UserError, KeyError, TypeError, ValueError, AttributeError):
            record = read_manifest(self._text(number).with_suffix(".json"))
            warnings = {str(name): (int(count), int(line)) for name, (count, line) in record["warnings"].items()}
            tally = Tally(int(record["lines"]), int(record["tokens"]), warnings)
            return (tally, str(record["text"])) if tally.lines == self._lines_of(number) else None
        return None

    def _is_intact(self, number: int, digest: str) -> bool:
        with suppress(UserError):  # it is missing
            return hash_file(self._text(number)) == digest
        return False


def folder_of(output: Path) -> Path:
    """Where the blocks of an unfinished output stand."""
    return output.with_name(f"{output.name}.parts")


@contextmanager
def open_blocks(making: Making, count: Callable[[], int]) -> Iterator[Blocks | None]:
    """Give the blocks of an output, begun now or before, by this process or others that have them open.

    Gives None if there are none, but an output that is newer than all it is made from. Raises UserError if the blocks
    were made from something else. `count` counts the lines of the input.
    """
    output = making.output
    folder = folder_of(output)
    clear_parts(folder.parent, escape(folder.name))
    while folder.exists() or not making.is_done():
        try:
            folder.mkdir(exist_ok=True)
            claims = (folder / CLAIMS).open("ab")
        except OSError as error:
            if isinstance(error, FileNotFoundError) and output.parent.is_dir():
                continue  # another process has just written the output and removed the folder
            raise UserError(
                f"{folder}: cannot be written: {error.strerror}",
                f"see that you may write to {output.parent}, or name another --output",
            ) from None
        with claims:
            with _locked(claims, 0, 1, wait=True):
                plan = None if _is_gone(claims, folder) else _agree(folder, making, count)
            if plan:
                blocks = Blocks(making, claims, plan)
                try:
                    yield blocks
                finally:
                    blocks.leave()
                return
    yield None


def _agree(folder: Path, making: Making, count: Callable[[], int]) -> dict[str, Any]:
    """The plan of a folder; where there can be none, an empty folder is removed."""
    try:
        return agree_on_plan(folder / PLAN, making, count)
    except BaseException:
        if not (folder / PLAN).exists():
            (folder / CLAIMS).unlink()
            with suppress(OSError):  # it holds files that are not ours
                folder.rmdir()
        raise


def _stamp(path: Path) -> list[int] | None:
    """Size and time of a file; None if it is missing."""
    with suppress(OSError):
        status = path.stat()
        return [status.st_size, status.st_mtime_ns]
    return None


def _is_gone(claims: IO[bytes], folder: Path) -> bool:
    """Whether the folder in which `claims` was opened has been removed; there may be a new one."""
    with suppress(OSError):
        return not os.path.samestat(os.fstat(claims.fileno()), (folder / CLAIMS).stat())
    return True


@contextmanager
def _locked(file: IO[bytes], first: int, length: int, wait: bool) -> Iterator[bool]:
    """Hold bytes of a file, all from `first` on if `length` is 0; tells whether no other process holds any of them.

    POSIX locks, unlike flock's, work across hosts on NFS, and workers that this process forks do not hold them.
    """
    free = True
    try:
        fcntl.lockf(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB, length, first)
    except (BlockingIOError, PermissionError):
        free = False
    except OSError as error:
        raise UserError(
            f"{file.name}: cannot be locked: {error.strerror}",
            "write --output to a file system that supports locks, such as a local disk",
        ) from None
    try:
        yield free
    finally:
        if free:
            fcntl.lockf(file, fcntl.LOCK_UN, length, first)
