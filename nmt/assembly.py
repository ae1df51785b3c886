"""The one place that makes an engine, and a pipeline of it, from models, decoding settings and a task.

torch is imported when an engine is made; with several workers, this happens in the workers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeVar

from nmt.bundle import Bundle
from nmt.device import cores
from nmt.errors import UserError
from nmt.recipe import Decoding
from nmt.search.feed import Engine
from nmt.search.workers import MakeEngine, Workers
from nmt.tasks.pipeline import Pipeline, Result, Task, longest_served

if TYPE_CHECKING:
    from nmt.model.transformer import Transformer

MOST_WORKERS = 16  # on a CPU, unless the user asks for more
Model = TypeVar("Model")


def pipeline_of(models: Sequence[Transformer], decoding: Decoding, task: Task[Result]) -> Pipeline[Result]:
    """Make the pipeline of a task in this process, with one model or an ensemble of several.

    Raises UserError if decoding.max_source is longer than what a model serves.
    """
    positions = longest_served((model.config for model in models), decoding)
    return Pipeline(task, decoding, make_engine(models, decoding, task), positions)


def make_engine(
    models: Sequence[Transformer],
    decoding: Decoding,
    task: Task[Result],
    say: Callable[[str], None] = lambda line: None,
) -> Engine:
    """Make the engine of nmt for a task; `say` reports another precision than asked for, and smaller batches."""
    from nmt.search.annotation import AnnotatingEngine
    from nmt.search.engine import SearchEngine

    engine = SearchEngine(models, decoding, task.constraints(decoding), say)
    if decoding.precision not in ("auto", engine.precision):
        say(f"precision {decoding.precision}: not faster on this machine, so {engine.precision} is used")
    return AnnotatingEngine(engine, models) if task.annotated else engine


def only(models: Sequence[Model]) -> Model:
    """Return the model whose attention is asked for; raises UserError if there are several."""
    if len(models) > 1:
        raise UserError(
            f"attention: each of the {len(models)} models of an ensemble has its own", "ask for that of one model"
        )
    return models[0]


@dataclass(frozen=True)
class Assembly:
    """Which models search, with which settings, engine and devices."""

    bundles: Sequence[Bundle]
    """One model, or several as an ensemble."""
    decoding: Decoding
    engine: Literal["nmt", "ctranslate2"]
    device: str
    """auto, cpu, cuda or cuda:N; each of several workers has its own GPU."""
    workers: int | None
    """Number of processes; with one, this process does the work. Default: one for each thread on a CPU, else one."""
    threads: int | None
    """CPU threads of all workers together; by default the engine decides."""
    forks: bool
    """Whether workers on a CPU are forked and share one model; this process must not have threads then."""
    say: Callable[[str], None]
    """Reports what takes long."""

    @contextmanager
    def open(self, task: Task[Result]) -> Iterator[Pipeline[Result]]:
        """Give the pipeline of a task; its workers end with the block.

        Raises UserError if something is missing or wrong.
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

    def model(self) -> Transformer:
        """Load the only model into this process in full precision, whatever searches with it.

        Raises UserError if there are several.
        """
        from nmt.device import choose_device

        return only(self.bundles).model(choose_device(self.device, self.threads))

    def _make(self, task: Task[Result], number: int, count: int) -> Engine:
        """Make the engine of worker `number`, from 0, of `count` workers."""
        worker = number if count > 1 else None
        threads = max(1, (self.threads or cores()) // count)
        if self.engine == "ctranslate2":
            from nmt.search.ctranslate2 import CTranslate2Engine

            bundle = self.bundles[0]
            return CTranslate2Engine(bundle, self.decoding, self.say, threads, self.device, worker)
        from nmt.device import choose_device

        device = choose_device(self.device, threads if self.threads or count > 1 else None, worker)
        return make_engine([bundle.model(device) for bundle in self.bundles], self.decoding, task, self.say)

    def _on_cpu(self) -> bool:
        import torch

        from nmt.device import find_device

        return find_device(self.device, torch.cuda.device_count()) == "cpu"

    def _shared(self, make: MakeEngine) -> MakeEngine:
        """Make one engine whose memory all forked workers share, since none writes to it.

        The threads are divided among the workers: many small operations are faster on one thread each, because threads
        that share an operation wait for each other at its end.
        """
        import torch

        engine = make(0, self.threads or cores())  # on one thread, since a fork would lack the others

        def share(number: int, count: int) -> Engine:
            torch.set_num_threads(max(1, (self.threads or cores()) // count))
            return engine

        return share
