"""Models, settings and a task, put together to something that answers lines: the one place that makes an engine.

Imports no torch before an engine needs it, and that is in the workers where there are several.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from nmt.bundle import Bundle
from nmt.device import cores
from nmt.errors import UserError
from nmt.recipe import Decoding
from nmt.search.feed import Engine
from nmt.search.workers import MakeEngine, Workers
from nmt.tasks.pipeline import Pipeline, Result, Task, longest_served

if TYPE_CHECKING:
    from nmt.model.transformer import Transformer

MOST_WORKERS = 16  # of a CPU, unless the user asks for more


def pipeline_of(models: Sequence[Transformer], decoding: Decoding, task: Task[Result]) -> Pipeline[Result]:
    """What answers lines in this process, by one model or by several as an ensemble.

    Raises UserError where decoding.max_source is beyond what a model serves.
    """
    positions = longest_served((model.config for model in models), decoding)
    return Pipeline(task, decoding, make_engine(models, decoding, task), positions)


def make_engine(
    models: Sequence[Transformer],
    decoding: Decoding,
    task: Task[Result],
    say: Callable[[str], None] = lambda line: None,
) -> Engine:
    """Our engine, as a task wants it; `say` is told where it computes in another precision than was asked for."""
    from nmt.search.alignment import AligningEngine
    from nmt.search.constraints import TreeConstraint
    from nmt.search.engine import SearchEngine

    constraint = None if task.only_trees is None else partial(TreeConstraint, task.only_trees)
    engine = SearchEngine(models, decoding, constraint)
    if decoding.precision not in ("auto", engine.precision):
        say(f"precision {decoding.precision}: not faster on this machine, so {engine.precision} is used")
    return AligningEngine(engine, models) if task.aligned else engine


@dataclass(frozen=True)
class Assembly:
    """Which models search, how, and on what."""

    bundles: Sequence[Bundle]
    """One model, or several as an ensemble."""
    decoding: Decoding
    engine: Literal["nmt", "ctranslate2"]
    device: str
    """auto, cpu, cuda or cuda:N; with several workers each has its own GPU."""
    workers: int | None
    """With one, this process does the work. By default, on a CPU one for each thread, else one."""
    threads: int | None
    """CPU threads of all workers together; by default what the engine thinks best."""
    forks: bool
    """Whether workers on a CPU are forked and share one model, which takes a process without threads of its own."""
    say: Callable[[str], None]
    """Told what takes long."""

    @contextmanager
    def open(self, task: Task[Result]) -> Iterator[Pipeline[Result]]:
        """What answers the lines of a task. Its workers end with the block.

        Raises UserError where something is missing or wrong.
        """
        if self.engine == "ctranslate2" and len(self.bundles) > 1:
            raise UserError(
                "--engine ctranslate2: searches with one model, not with an ensemble",
                "use --engine nmt, or one --model",
            )
        positions = longest_served((bundle.recipe.model for bundle in self.bundles), self.decoding)
        count = self.workers or 1
        make: MakeEngine = partial(self._make, task)
        forks = self.forks and self.engine == "nmt" and sys.platform == "linux" and self._on_cpu()
        if forks:
            count = self.workers or min(self.threads or cores(), MOST_WORKERS)
        if count == 1:
            yield Pipeline(task, self.decoding, make(0, 1), positions)
            return
        with Workers(self._shared(make) if forks else make, count, self.decoding.max_source, forks) as workers:
            yield Pipeline(task, self.decoding, workers, positions)

    def _make(self, task: Task[Result], number: int, count: int) -> Engine:
        """The engine of a worker, `number` of `count` from 0 on."""
        worker = number if count > 1 else None
        threads = max(1, (self.threads or cores()) // count)
        if self.engine == "ctranslate2":
            from nmt.search.ctranslate2 import load_engine

            bundle = self.bundles[0]
            return load_engine(bundle, self.decoding, threads=threads, device=self.device, worker=worker, say=self.say)
        from nmt.device import choose_device

        device = choose_device(self.device, threads if self.threads or count > 1 else None, worker)
        return make_engine([bundle.model(device) for bundle in self.bundles], self.decoding, task, self.say)

    def _on_cpu(self) -> bool:
        import torch

        from nmt.device import find_device

        return find_device(self.device, torch.cuda.device_count()) == "cpu"

    def _shared(self, make: MakeEngine) -> MakeEngine:
        """Makes one engine that all workers share until they write to it, which they do not.

        Many small operations are quicker by one thread, and each worker has its own: threads that share an operation
        wait for one another at its end.
        """
        import torch

        engine = make(0, self.threads or cores())  # with one thread: a fork would lack the others

        def share(number: int, count: int) -> Engine:
            torch.set_num_threads(max(1, (self.threads or cores()) // count))
            return engine

        return share
