"""A pipeline's models, in memory or in bundles, and the engine that runs them.

torch is imported only when an engine is made, which spawned workers do in their own processes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from nmt.checkpoint.reading import Bundle
from nmt.decoding.engine import Engine
from nmt.decoding.workers import MakeEngine, Workers
from nmt.recipe import Decoding
from nmt.recipe import Model as ModelSettings
from nmt.system.device import choose_device, cores, find_device
from nmt.system.errors import UserError

if TYPE_CHECKING:
    from nmt.decoding.constraints import MakeConstraint
    from nmt.model.transformer import Transformer

Say = Callable[[str], None]
"""Callback that reports slow operations and deviations from the requested settings."""
EngineOf = Callable[["Sequence[Transformer]", Say], Engine]
"""Factory for our own engine, given the models."""
MOST_WORKERS = 16  # cap on the default number of CPU workers


def make_engine(
    decoding: Decoding,
    constraints: Callable[[], list[MakeConstraint]],
    annotated: bool,
    models: Sequence[Transformer],
    say: Say,
) -> Engine:
    """Make our own engine, in the process that searches."""
    from nmt.decoding.forced import annotated as annotate
    from nmt.decoding.search import SearchEngine

    return SearchEngine(models, decoding, constraints(), say, partial(annotate, models) if annotated else None)


class Loaded:
    """Models in memory, searched in this process."""

    def __init__(self, models: Transformer | Sequence[Transformer]) -> None:
        self._models = list(models) if isinstance(models, Sequence) else [models]
        self.configs = [model.config for model in self._models]

    def open(self, decoding: Decoding, engine_of: EngineOf) -> AbstractContextManager[Engine]:
        """Return the engine in a context manager that does nothing on exit."""
        return nullcontext(engine_of(self._models, lambda line: None))

    def only(self) -> Transformer:
        """Return the single model."""
        return self._models[0]


@dataclass(frozen=True)
class Saved:
    """Models in bundles, with the engine and devices to run them on."""

    bundles: Sequence[Bundle]
    """One model, or several as an ensemble."""
    engine: Literal["nmt", "ctranslate2"]
    device: str
    """auto, cpu, cuda or cuda:N; with several workers, each has its own GPU."""
    workers: int | None
    """Number of processes; 1 means this process. Default: one per thread if `forks` applies, otherwise one."""
    threads: int | None
    """Total CPU threads of all workers; None leaves the choice to the engine."""
    forks: bool
    """Whether workers on a CPU are forked to share one model; this process must then be single-threaded."""
    say: Say

    @property
    def configs(self) -> Sequence[ModelSettings]:
        """Settings of each model."""
        return [bundle.recipe.model for bundle in self.bundles]

    @contextmanager
    def open(self, decoding: Decoding, engine_of: EngineOf) -> Iterator[Engine]:
        """Yield the engine, or several workers that act as one and end with the context.

        Raise UserError if the engine cannot be made.
        """
        if self.engine == "ctranslate2" and len(self.bundles) > 1:
            raise UserError(
                "--engine ctranslate2: searches with one model, not with an ensemble",
                "use --engine nmt, or one --model",
            )
        count = self.workers or 1
        make: MakeEngine = partial(self._make, decoding, engine_of)
        forks = self.forks and self.engine == "nmt" and sys.platform == "linux" and self._on_cpu()
        if forks:
            count = self.workers or min(self.threads or cores(), MOST_WORKERS)
        if count == 1:
            yield make(0, 1)
            return
        with Workers(self._shared(make) if forks else make, count, decoding.max_source, forks) as workers:
            yield workers

    def only(self) -> Transformer:
        """Load the single model into this process, in full precision."""
        return self.bundles[0].model(choose_device(self.device, self.threads))

    def _make(self, decoding: Decoding, engine_of: EngineOf, number: int, count: int) -> Engine:
        """Make the engine for worker `number`, 0-based, of `count`."""
        worker = number if count > 1 else None
        threads = max(1, (self.threads or cores()) // count)
        if self.engine == "ctranslate2":
            from nmt.decoding.ctranslate2_engine import CTranslate2Engine

            return CTranslate2Engine(self.bundles[0], decoding, self.say, threads, self.device, worker)
        device = choose_device(self.device, threads if self.threads or count > 1 else None, worker)
        return engine_of([bundle.model(device) for bundle in self.bundles], self.say)

    def _on_cpu(self) -> bool:
        import torch

        return find_device(self.device, torch.cuda.device_count()) == "cpu"

    def _shared(self, make: MakeEngine) -> MakeEngine:
        """Make one engine in this process, whose read-only memory all forked workers share.

        The threads are divided among the workers, because small operations run faster on one thread each than split
        across threads, which wait for each other at the end.
        """
        import torch

        engine = make(0, self.threads or cores())  # single-threaded: a fork would not inherit other threads

        def share(number: int, count: int) -> Engine:
            torch.set_num_threads(max(1, (self.threads or cores()) // count))
            return engine

        return share


Models = Loaded | Saved
