"""Engines for models in memory or in bundles: in this process, or in several workers, which act as one engine.

A worker requests sources before it runs out, so that it never waits for them. Workers are served in turn. They end with
the process that started them, however it ends. torch is imported only where an engine is made; spawned workers import
it in their own processes.
"""

from __future__ import annotations

import gc
import multiprocessing.process
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Self

from nmt.checkpoint.reading import Bundle
from nmt.recipe import Model as ModelSettings
from nmt.search.sources import Engine, Hypothesis, Pool, Source, SourceQueue
from nmt.system.device import choose_device, known_error
from nmt.system.errors import UserError
from nmt.system.parallelism import can_fork, count_workers, threads_in_all, threads_of_worker
from nmt.system.processes import ending, safe_path

if TYPE_CHECKING:
    from nmt.decoding.completion import Completion
    from nmt.model.transformer import Transformer
    from nmt.search.beam import SearchEngine

LOOK = 0.05  # seconds between polls of the queue while a worker waits for sources

MakeEngine = Callable[["Sequence[Transformer]", Callable[[str], None]], "SearchEngine | Completion"]
"""Factory for a task's engine, given its models and a callback for reports; imports torch; picklable."""
MakeEngineOfWorker = Callable[[int, int], Engine]
"""Factory for a worker's engine, given its 0-based number and the worker count; picklable unless forked."""
Command = tuple[int, bool]  # starts a search in a worker: the number of hypotheses per source, and whether to sample
# From a worker: ("idle",) once its engine is made or a search has ended; ("asks", tokens) to request sources of up to
# `tokens` padded tokens; ("found", number, hypotheses) for a source; ("failed", message, hint, traceback) at exit.
Message = tuple[Any, ...]


class Loaded:
    """Models in memory, searched in this process."""

    def __init__(self, models: Transformer | Sequence[Transformer]) -> None:
        self._models = list(models) if isinstance(models, Sequence) else [models]
        self.configs = [model.config for model in self._models]
        self._engines: list[SearchEngine | Completion] = []

    def open(self, make: MakeEngine) -> AbstractContextManager[Engine]:
        """Return the engine in a context manager that does nothing on exit."""
        self._engines.append(make(self._models, lambda line: None))
        return nullcontext(self._engines[-1])

    def rest(self) -> None:
        """Have all engines rest: until their next search, they take no memory, and the models' weights may change."""
        for engine in self._engines:
            engine.rest()

    def only(self) -> Transformer:
        """Return the single model."""
        return self._models[0]

    def narrowed(self, symbols: int) -> Loaded:
        """Return the models with the first `symbols` of their target vocabularies alone."""
        narrowed = Loaded([model.narrowed(symbols) for model in self._models])
        narrowed._engines = self._engines
        return narrowed


@dataclass(frozen=True)
class Saved:
    """Models in bundles, with the devices to run them on."""

    bundles: Sequence[Bundle]
    """One model, or several as an ensemble."""
    device: str
    """auto, cpu, cuda or cuda:N; with several workers, each has its own GPU."""
    workers: int | None
    """Number of processes; 1 means this process. None means one per thread where `forks` applies, otherwise one."""
    threads: int | None
    """Total CPU threads of all workers; None leaves the choice to the engine."""
    forks: bool
    """Whether workers on a CPU are forked to share one model; this process must then be single-threaded."""
    say: Callable[[str], None]
    """Callback for reports of slow operations and deviations from the requested settings."""
    symbols: int | None = None
    """Number of symbols of the target vocabulary to output; None means all."""

    @property
    def configs(self) -> Sequence[ModelSettings]:
        """Settings of each model."""
        return [bundle.recipe.model for bundle in self.bundles]

    @contextmanager
    def open(self, make: MakeEngine) -> Iterator[Engine]:
        """Yield the engine, or several workers that act as one and end with the context.

        Raise UserError if the engine cannot be made.
        """
        of_worker: MakeEngineOfWorker = partial(self._make, make)
        forks = self.forks and can_fork(self.device)
        count = count_workers(self.workers, self.threads, forks)
        if count == 1:
            yield of_worker(0, 1)
            return
        if forks:
            of_worker = self._shared(of_worker)
        with Workers(of_worker, count, forks) as workers:
            yield workers

    def only(self) -> Transformer:
        """Load the single model into this process, in full precision."""
        return self._models(choose_device(self.device, self.threads))[0]

    def narrowed(self, symbols: int) -> Saved:
        """Return the models with the first `symbols` of their target vocabularies alone."""
        return replace(self, symbols=symbols)

    def _models(self, device: Any) -> list[Transformer]:
        models = [bundle.model(device) for bundle in self.bundles]
        if self.symbols is None:
            return models
        return [model.narrowed(self.symbols) for model in models]

    def _make(self, make: MakeEngine, number: int, count: int) -> Engine:
        """Make the engine for worker `number`, 0-based, of `count`."""
        worker = number if count > 1 else None
        device = choose_device(self.device, threads_of_worker(self.threads, count), worker)
        return make(self._models(device), self.say)

    def _shared(self, make: MakeEngineOfWorker) -> MakeEngineOfWorker:
        """Make one engine in this process; return a factory for forked workers, which share its read-only memory.

        The threads are divided among the workers, because small operations run faster on one thread each than split
        across threads that have to synchronise.
        """
        # As for one of as many workers as threads: on one thread, since forked workers would not inherit others.
        engine = make(0, threads_in_all(self.threads))

        def share(number: int, count: int) -> Engine:
            choose_device("cpu", threads_of_worker(self.threads, count))
            return engine

        return share


Models = Loaded | Saved


class Workers:
    """Worker processes that act as one engine; a context manager, which starts them on entry and kills them on exit.

    Entry waits until all are ready and raises UserError if one cannot make its engine. A search raises UserError if a
    worker fails or is killed.
    """

    def __init__(self, make: MakeEngineOfWorker, count: int, fork: bool = False) -> None:
        """Configure `count` workers.

        With `fork`, they share the memory of this process, which must then be single-threaded; PyTorch's own threads
        count too.
        """
        self._make = make
        self._count = count
        self._fork = fork
        self._process = os.getpid()
        self._workers: list[_Worker] = []
        self._pool = Pool()  # taken from the current search's queue, but not yet sent to a worker
        self._over = False  # whether the current search's queue has ended

    def __enter__(self) -> Self:
        if self._fork:
            gc.freeze()  # otherwise garbage collection writes to all objects and so copies shared memory
        try:
            for number in range(self._count):
                self._workers.append(_Worker.start(self._make, number, self._count, self._fork))
            for worker in self._workers:
                worker.receive()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill the workers, unless this is a fork of the process that started them."""
        if os.getpid() != self._process:
            return
        for worker in self._workers:
            worker.process.kill()  # they have nothing to save
        for worker in self._workers:
            worker.close()
        self._workers = []

    def search(
        self, queue: SourceQueue, n_best: int, sample: bool = False
    ) -> Generator[tuple[int, list[Hypothesis]], None, None]:
        """Search as `Engine.search` does; if the generator is closed early, the next search awaits what was sent."""
        self._pool = Pool()
        self._over = False
        try:
            for worker in self._alive():
                worker.end_search()
            for worker in self._workers:
                worker.begin_search((n_best, sample))
            while True:
                searching = {worker.connection: worker for worker in self._alive() if worker.is_searching}
                if not searching:
                    break
                must_poll = not self._over and self._serve(queue)
                ready = wait(list(searching), LOOK if must_poll else None)
                heard = [searching[connection].hear() for connection in ready]  # type: ignore[index]
                for found in heard:
                    if found:
                        yield found
        except GeneratorExit:
            raise
        except BaseException:
            self.close()
            raise

    def _alive(self) -> list[_Worker]:
        if not self._workers:
            raise UserError(
                "the workers have ended, because the model was closed or one of them failed", "load it again"
            )
        return self._workers

    def _serve(self, queue: SourceQueue) -> bool:
        """Send sources to workers that ask, or tell all that the queue has ended; return whether a worker must wait.

        A worker gets no more than its share of all tokens that are left, so that all end at about the same time.
        """
        asking = [worker for worker in self._workers if worker.asks]
        for worker in sorted(asking, key=lambda each: each.load):
            if not self._pool:
                is_idle = not any(each.busy for each in self._workers)
                self._pool.add(queue.take_sources(sys.maxsize, wait=is_idle))
                if not self._pool:
                    if not is_idle:
                        return True
                    self._over = True
                    for each in self._workers:
                        each.send([])
                    return False
            left = self._pool.tokens + sum(each.load for each in self._workers)
            share = min(worker.asks, left // len(self._workers) - worker.load)  # may be negative
            sources = self._pool.take_sources(share, at_least=int(not worker.busy))
            if sources:
                worker.send(sources)
                for source in sources:
                    worker.busy[source.number] = len(source.ids) + 1
        return False


@dataclass(eq=False)
class _Worker:
    """Parent-side handle of a worker process."""

    name: str
    process: BaseProcess
    connection: Connection
    asks: int = 0  # padded tokens requested but not yet sent
    busy: dict[int, int] = field(default_factory=dict)  # tokens of the sources sent but not yet searched, by number
    outbox: SimpleQueue[bytes] = field(default_factory=SimpleQueue)  # pickled messages, and b"" at the end
    sender: threading.Thread | None = None  # started after all forks
    is_searching: bool = False
    is_told: bool = False  # whether it knows that the queue of its search has ended

    @property
    def load(self) -> int:
        """Total tokens sent but not yet searched."""
        return sum(self.busy.values())

    @classmethod
    def start(cls, make: MakeEngineOfWorker, number: int, count: int, fork: bool) -> Self:
        """Start a worker process."""
        context = get_context("fork") if fork else get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, make, number, count), daemon=True)
        of_terminal = (signal.SIGINT, signal.SIGHUP)  # the parent handles these and kills the worker
        with safe_path():
            resource_tracker.ensure_running()  # if started later, it would unblock the signals
            signal.pthread_sigmask(signal.SIG_BLOCK, of_terminal)
            try:
                process.start()
            finally:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, of_terminal)
        theirs.close()
        # Otherwise each fork of this process would terminate the worker at its own exit. It ends with this one anyway.
        multiprocessing.process._children.discard(process)  # type: ignore[attr-defined]
        return cls(f"worker {number + 1} of {count}", process, ours)

    def begin_search(self, command: Command) -> None:
        """Start a search."""
        self.is_searching = True
        self.is_told = False
        self.send(command)

    def end_search(self) -> None:
        """Wait for the end of a search that was given up, if there is one; what it finds is lost."""
        while self.is_searching:
            if self.asks and not self.is_told:
                self.send([])
            self.hear()
        self.busy.clear()

    def hear(self) -> tuple[int, list[Hypothesis]] | None:
        """Take note of the worker's next message; return what it found, if it tells that."""
        match self.receive():
            case "asks", tokens:
                self.asks = tokens
            case "found", number, hypotheses:
                self.busy.pop(number)
                return number, hypotheses
            case ("idle",):
                self.is_searching = False
        return None

    def send(self, message: Command | list[Source]) -> None:
        """Send a command, or sources; an empty list means that there are no more.

        Return at once: if this process waited until the worker reads, the worker could wait until this process does.
        """
        self.asks = 0  # sources answer a request, and a command comes before one
        self.is_told = self.is_told or not message
        if self.sender is None:
            self.sender = threading.Thread(target=self._send_all, name=f"to {self.name}", daemon=True)
            self.sender.start()
        self.outbox.put(bytes(ForkingPickler.dumps(message)))

    def _send_all(self) -> None:
        with suppress(OSError):  # the worker has ended; `receive` says how
            for message in iter(self.outbox.get, b""):
                self.connection.send_bytes(message)

    def receive(self) -> Message:
        """Return the worker's next message; raise UserError if the worker failed or was killed."""
        try:
            message: Message = self.connection.recv()
        except (EOFError, OSError):  # OSError: it ended in the middle of a message
            self.process.join()
            problem = f"{self.name} {ending(self.process.exitcode or 0)}"
            raise UserError(problem, "if memory ran out, use fewer --devices or smaller --batch-tokens") from None
        if message[0] == "failed":
            _, problem, hint, trace = message
            raise UserError(f"{self.name}: {problem}", hint) from RuntimeError(f"\n{trace}")
        return message

    def close(self) -> None:
        """Release what belongs to a worker whose process was killed."""
        self.process.join()
        if self.sender:
            self.outbox.put(b"")
            self.sender.join()
        self.connection.close()


# --- in the worker ----------------------------------------------------------------------------------------------


def _work(connection: Connection, make: MakeEngineOfWorker, number: int, count: int) -> None:
    """Run the worker's process: make an engine, then search until the parent ends."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        engine = make(number, count)
        while True:
            connection.send(("idle",))
            command: Command = connection.recv()
            for found in engine.search(_WorkerQueue(connection), *command):
                connection.send(("found", *found))
    except (EOFError, ConnectionError):
        pass  # the parent has ended
    except Exception as error:
        known = known_error(error)
        with suppress(ConnectionError):
            connection.send(("failed", known.message, known.hint, traceback.format_exc()))


def _end_with_parent() -> None:
    """Exit as soon as the parent ends, whatever the engine is doing."""
    parent = parent_process()
    if parent:
        parent.join()
    os._exit(1)


class _WorkerQueue:
    """`SourceQueue` of a worker's engine for one search, filled by the parent."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._pool = Pool()
        self._wants = 0  # largest request of the engine so far
        self._asked = self._over = False

    def take_sources(self, tokens: int, wait: bool) -> list[Source]:
        """Remove and return sources as in `SourceQueue`, requesting more before the pool runs dry."""
        self._wants = max(self._wants, tokens)
        while True:
            if self._asked and ((wait and not self._pool) or self._connection.poll()):
                given: list[Source] = self._connection.recv()
                self._pool.add(given)
                self._asked = False
                self._over = not given
            taken = self._pool.take_sources(tokens, at_least=int(wait))
            if self._pool.tokens < self._wants and not self._asked and not self._over:
                self._connection.send(("asks", self._wants))
                self._asked = True
            if taken or not wait or self._over:
                return taken
