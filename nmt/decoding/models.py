"""A pipeline's models, in memory or in bundles, and the engine that runs them.

torch is imported only when an engine is opened; spawned workers import it in their own processes.
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
    from nmt.decoding.placement import Placer
    from nmt.model.transformer import Transformer

MakePlacer = Callable[["Sequence[Transformer]"], "Placer"]
"""Factory for the object that puts phrases into results, given the models."""
Rules = Callable[[], "tuple[list[MakeConstraint], MakePlacer | None]"]
"""Factory for the task's constraints and placer; called in the process that makes the engine: it imports torch."""
MOST_WORKERS = 16  # cap on the default number of CPU workers


class Loaded:
    """Models in memory, searched in this process."""

    def __init__(self, models: Transformer | Sequence[Transformer]) -> None:
        self._models = list(models) if isinstance(models, Sequence) else [models]
        self.configs = [model.config for model in self._models]

    def open(self, decoding: Decoding, rules: Rules, annotated: bool) -> AbstractContextManager[Engine]:
        """Return the engine in a context manager that does nothing on exit."""
        from nmt.decoding.search import SearchEngine

        constraints, placer = rules()
        return nullcontext(SearchEngine(self._models, decoding, constraints, annotated=annotated, placer=placer))

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
    """Number of processes; 1 means this process. None means one per thread, up to MOST_WORKERS, where `forks` applies,
    otherwise one."""
    threads: int | None
    """Total CPU threads of all workers; None leaves the choice to the engine."""
    forks: bool
    """Whether workers on a CPU are forked to share one model; this process must then be single-threaded."""
    say: Callable[[str], None]
    """Callback for reports of slow operations and deviations from the requested settings."""

    @property
    def configs(self) -> Sequence[ModelSettings]:
        """Settings of each model."""
        return [bundle.recipe.model for bundle in self.bundles]

    @contextmanager
    def open(self, decoding: Decoding, rules: Rules, annotated: bool) -> Iterator[Engine]:
        """Yield the engine, or several workers that act as one and end with the context.

        Raise UserError if the engine cannot be made.
        """
        if self.engine == "ctranslate2" and len(self.bundles) > 1:
            raise UserError(
                "--engine ctranslate2: searches with one model, not with an ensemble",
                "use --engine nmt, or one --model",
            )
        make: MakeEngine = partial(self._make, decoding, rules, annotated)
        forks = self.forks and self.engine == "nmt" and sys.platform == "linux" and self._on_cpu()
        count = self.workers or (min(self.threads or cores(), MOST_WORKERS) if forks else 1)
        if count == 1:
            yield make(0, 1)
            return
        with Workers(self._shared(make) if forks else make, count, forks) as workers:
            yield workers

    def only(self) -> Transformer:
        """Load the single model into this process, in full precision."""
        return self.bundles[0].model(choose_device(self.device, self.threads))

    def _make(self, decoding: Decoding, rules: Rules, annotated: bool, number: int, count: int) -> Engine:
        """Make the engine for worker `number`, 0-based, of `count`."""
        worker = number if count > 1 else None
        threads = max(1, (self.threads or cores()) // count)
        if self.engine == "ctranslate2":
            from nmt.decoding.ctranslate2_engine import CTranslate2Engine, convert
            from nmt.exchange.ctranslate2 import library

            bundle, name = self.bundles[0], find_device(self.device, library().get_cuda_device_count(), worker)
            return CTranslate2Engine(convert(bundle, decoding, self.say), bundle.tokenizer(), decoding, name, threads)
        from nmt.decoding.search import SearchEngine

        device = choose_device(self.device, threads if self.threads or count > 1 else None, worker)
        models = [bundle.model(device) for bundle in self.bundles]
        constraints, placer = rules()
        return SearchEngine(models, decoding, constraints, self.say, annotated, placer)

    def _on_cpu(self) -> bool:
        import torch

        return find_device(self.device, torch.cuda.device_count()) == "cpu"

    def _shared(self, make: MakeEngine) -> MakeEngine:
        """Make one engine in this process; return a factory for forked workers, which share its read-only memory.

        The threads are divided among the workers, because small operations run faster on one thread each than split
        across threads that have to synchronise.
        """
        import torch

        engine = make(0, self.threads or cores())  # on one thread: forked workers would not inherit others

        def share(number: int, count: int) -> Engine:
            torch.set_num_threads(max(1, (self.threads or cores()) // count))
            return engine

        return share


Models = Loaded | Saved
