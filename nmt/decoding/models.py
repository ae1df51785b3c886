"""The models of a pipeline, in memory or in bundles, and the engine made from them.

torch is imported when an engine is made; with several workers, this happens in the workers.
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
"""Reports what takes long, or differs from what was asked for."""
EngineOf = Callable[["Sequence[Transformer]", Say], Engine]
"""Makes the engine of nmt from models."""
MOST_WORKERS = 16  # on a CPU, by default


def make_engine(
    decoding: Decoding,
    constraints: Callable[[], list[MakeConstraint]],
    annotated: bool,
    models: Sequence[Transformer],
    say: Say,
) -> Engine:
    """Make the engine of nmt, in the process that searches."""
    from nmt.decoding.forced import annotated as annotate
    from nmt.decoding.search import SearchEngine

    return SearchEngine(models, decoding, constraints(), say, partial(annotate, models) if annotated else None)


class Loaded:
    """Models in the memory of this process, which also searches."""

    def __init__(self, models: Transformer | Sequence[Transformer]) -> None:
        self._models = list(models) if isinstance(models, Sequence) else [models]
        self.configs = [model.config for model in self._models]

    def open(self, decoding: Decoding, engine_of: EngineOf) -> AbstractContextManager[Engine]:
        """Give the engine, in this process."""
        return nullcontext(engine_of(self._models, lambda line: None))

    def only(self) -> Transformer:
        """Return the only model."""
        return self._models[0]


@dataclass(frozen=True)
class Saved:
    """Models in bundles, and the engine and devices that search with them."""

    bundles: Sequence[Bundle]
    """One model, or several as an ensemble."""
    engine: Literal["nmt", "ctranslate2"]
    device: str
    """auto, cpu, cuda or cuda:N; each of several workers has its own GPU."""
    workers: int | None
    """Number of processes; with one, this process does the work. Default: one for each thread on a CPU, else one."""
    threads: int | None
    """CPU threads of all workers together; by default the engine decides."""
    forks: bool
    """Whether workers on a CPU are forked and share one model; then this process must not have threads."""
    say: Say

    @property
    def configs(self) -> Sequence[ModelSettings]:
        """Return the settings of each model."""
        return [bundle.recipe.model for bundle in self.bundles]

    @contextmanager
    def open(self, decoding: Decoding, engine_of: EngineOf) -> Iterator[Engine]:
        """Give the engine, or several workers as one engine; they end with the block.

        Raise UserError if something is missing or wrong.
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
        """Load the only model into this process, in full precision."""
        return self.bundles[0].model(choose_device(self.device, self.threads))

    def _make(self, decoding: Decoding, engine_of: EngineOf, number: int, count: int) -> Engine:
        """Make the engine of worker `number`, from 0, of `count` workers."""
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


Models = Loaded | Saved
