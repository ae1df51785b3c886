"""An engine that is several processes, each with an engine and a device of its own; imports no torch itself.

A worker asks for sources as soon as it has little more than what it works on, so that the next ones are there when
it wants them; who asks first is served first. Workers end with the process that started them, however that ends.
"""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections.abc import Callable, Generator
from dataclasses import dataclass
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from queue import SimpleQueue
from typing import Self

from nmt.device import memory_error
from nmt.errors import UserError
from nmt.search.feed import Engine, Feed, Hypothesis, Pool, Source

LOOK = 0.05  # seconds between two looks at the feed while a worker asks in vain
PORTION = 1024  # most padded tokens that a worker is given at once, so that all have their share of few

MakeEngine = Callable[[int, int], Engine]
"""From a worker's number, from 0 on, and how many there are; importable by name unless workers are forks."""


@dataclass(frozen=True)
class _Ready:
    """A worker has its engine."""


@dataclass(frozen=True)
class _Asks:
    """A worker wants sources, of so many padded tokens."""

    tokens: int


@dataclass(frozen=True)
class _Found:
    """A worker has searched a source."""

    number: int
    hypotheses: list[Hypothesis]


@dataclass(frozen=True)
class _Done:
    """A worker has ended its search."""


@dataclass(frozen=True)
class _Failed:
    """A worker's last words."""

    message: str
    hint: str
    trace: str


_Message = _Ready | _Asks | _Found | _Done | _Failed


class Workers:
    """So many processes as one engine; a context, at whose end they end too."""

    def __init__(self, make: MakeEngine, count: int, longest: int, fork: bool = False) -> None:
        """Waits until all are ready. `longest` is the most subwords of a source.

        With `fork` workers begin as copies of this process and share its memory; it must not have other threads, not
        even those of PyTorch's operations. Raises UserError where a worker cannot make its engine; later, from
        `search`, where one fails or is killed.
        """
        self._longest = longest
        self._over = False  # whether the search's feed has come to its end
        self._workers: list[_Worker] = []
        try:
            for number in range(count):
                self._workers.append(_Worker(make, number, count, self._workers if fork else None))
            for worker in self._workers:
                worker.receive()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the workers, whatever they do."""
        for worker in self._workers:
            worker.process.kill()  # what they hold is not worth an orderly end
        for worker in self._workers:
            worker.process.join()
            worker.connection.close()
        self._workers = []

    def search(self, feed: Feed, n_best: int) -> Generator[tuple[int, list[Hypothesis]], None, None]:
        """See `Engine`; here a search that is closed before its end ends the workers."""
        searching, self._over = list(self._workers), False
        try:
            for worker in searching:
                worker.begin(n_best)
            while searching:
                in_vain = not self._over and self._serve(feed)
                for worker in _ready(searching, LOOK if in_vain else None):
                    message = worker.receive()
                    if isinstance(message, _Asks):
                        worker.asks = message.tokens
                    elif isinstance(message, _Done):
                        searching.remove(worker)
                    elif isinstance(message, _Found):
                        worker.busy -= 1
                        yield message.number, message.hypotheses
        except BaseException:
            self.close()
            raise

    def _serve(self, feed: Feed) -> bool:
        """Gives sources to those who ask, or the word that there are no more; whether someone asks in vain."""
        for worker in self._workers:
            if worker.asks:
                idle = not any(worker.busy for worker in self._workers)
                sources = feed.take(max(min(worker.asks, PORTION), self._longest + 1), wait=idle)
                if sources:
                    worker.give(sources)
                    continue
                if idle:
                    self._over = True
                    for each in self._workers:
                        each.give([])
                return not idle
        return False


class _Worker:
    """A worker as its parent sees it."""

    def __init__(self, make: MakeEngine, number: int, count: int, elder: list[_Worker] | None) -> None:
        """Starts it; by a fork where `elder` are given, those forked before."""
        self.name = f"worker {number + 1} of {count}"
        self.asks = 0
        """Padded tokens that it wants and was not given"""
        self.busy = 0
        """Sources that it was given and has not searched"""
        context = get_context("spawn") if elder is None else get_context("fork")
        self.connection, theirs = context.Pipe()
        # The parent's ends, of which a fork has copies: while one is open, its worker does not see the parent end.
        foreign = [] if elder is None else [self.connection, *(worker.connection for worker in elder)]
        self.process = context.Process(target=_work, args=(theirs, make, number, count, foreign), daemon=True)
        resource_tracker.ensure_running()  # which would else unblock the signal
        of_terminal = (signal.SIGINT, signal.SIGHUP)  # these are for the parent, which ends the worker
        signal.pthread_sigmask(signal.SIG_BLOCK, of_terminal)
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, of_terminal)
        theirs.close()

    def begin(self, n_best: int) -> None:
        """Has it begin a search for so many hypotheses of each source."""
        self._send(n_best)
        self.asks = 0

    def give(self, sources: list[Source]) -> None:
        """Answers what it asked; no sources mean that there are no more."""
        self._send(sources)
        self.busy += len(sources)
        self.asks = 0

    def _send(self, message: int | list[Source]) -> None:
        try:
            self.connection.send(message)
        except ConnectionError:
            while True:  # to what it said before, and to its end
                self.receive()

    def receive(self) -> _Message:
        """Its next message. Raises UserError where it has failed, or is gone."""
        try:
            message: _Message = self.connection.recv()
        except (EOFError, ConnectionError):
            self.process.join()
            code = self.process.exitcode or 0
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            raise UserError(
                f"{self.name} {how}", "if memory ran out, use fewer --devices or smaller --batch-tokens"
            ) from None
        if isinstance(message, _Failed):
            raise UserError(f"{self.name}: {message.message}", message.hint) from _Trace(message.trace)
        return message


class _Trace(Exception):
    """Where a worker failed, for a traceback of its parent."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def _ready(workers: list[_Worker], timeout: float | None) -> list[_Worker]:
    """Those with something to say."""
    by_connection = {worker.connection: worker for worker in workers}
    return [by_connection[connection] for connection in wait(list(by_connection), timeout)]  # type: ignore[index]


# --- in the worker ----------------------------------------------------------------------------------------------


def _work(connection: Connection, make: MakeEngine, number: int, count: int, foreign: list[Connection]) -> None:
    """A worker's life."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for end in foreign:
        end.close()
    parent = _Parent(connection)
    try:
        engine = make(number, count)
        parent.tell(_Ready())
        while True:
            for found in engine.search(parent, parent.next_search()):
                parent.tell(_Found(*found))
            parent.tell(_Done())
    except UserError as error:
        parent.tell(_Failed(error.message, error.hint, traceback.format_exc()))
    except Exception as error:
        message = " ".join(f"{type(error).__name__}: {error}".split())
        known = memory_error(error) or UserError(message, "run it with --debug and report the traceback")
        parent.tell(_Failed(known.message, known.hint, traceback.format_exc()))


class _Parent:
    """The parent as its worker sees it, and the feed of the worker's engine."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._searches: SimpleQueue[int] = SimpleQueue()
        self._pool = Pool()
        self._wants = 0  # the most tokens that the engine wanted at once
        self._asked = self._over = False
        self._changed, self._sending = threading.Condition(), threading.Lock()
        threading.Thread(target=self._listen, daemon=True).start()

    def tell(self, message: _Message) -> None:
        """Says something to the parent."""
        with self._sending:
            try:
                self._connection.send(message)
            except ConnectionError:
                os._exit(1)  # it is gone

    def next_search(self) -> int:
        """How many hypotheses the next search wants, once there is one."""
        return self._searches.get()

    def take(self, tokens: int, wait: bool) -> list[Source]:
        """See `Feed`."""
        while True:
            with self._changed:
                self._wants = max(self._wants, tokens)
                taken = self._pool.take(tokens, at_least=int(wait))
                asks = self._pool.tokens < self._wants and not self._asked and not self._over
                self._asked |= asks
            if asks:
                self.tell(_Asks(self._wants))
            if taken or not wait:
                return taken
            with self._changed:
                self._changed.wait_for(lambda: self._pool or self._over)
                if not self._pool:
                    return []

    def _listen(self) -> None:
        while True:
            try:
                message: int | list[Source] = self._connection.recv()
            except (EOFError, ConnectionError):
                os._exit(1)  # it is gone, and nobody wants what is being searched
            with self._changed:
                if isinstance(message, int):
                    self._asked = self._over = False
                    self._searches.put(message)
                else:
                    self._pool.add(message)
                    self._asked, self._over = False, not message
                    self._changed.notify_all()
