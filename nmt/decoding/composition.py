"""What `nmt translate` and `nmt parse` search with: models, an engine and its processes, put together.

Imports no torch before an engine needs it, and that is in the workers where there are several.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Literal

from nmt.bundle import Bundle
from nmt.decoding.feed import Engine
from nmt.decoding.pipeline import Pipeline, Result, Treatment, longest_served
from nmt.decoding.workers import MakeEngine, Workers
from nmt.device import cores
from nmt.errors import UserError
from nmt.recipe import Decoding
from nmt.text.linear import TreeVocabulary

MOST_WORKERS = 16  # of a CPU unless told


@dataclass(frozen=True)
class Composition:
    """Which models search, how, and on what."""

    bundles: Sequence[Bundle]
    """One model, or several as an ensemble."""
    decoding: Decoding
    engine: Literal["nmt", "ctranslate2"]
    device: str
    """auto, cpu, cuda or cuda:N; of several workers each has its own GPU."""
    devices: int | None
    """Workers; with one this process does the work. Unless given: on a CPU one for each thread, else one."""
    threads: int | None
    """CPU threads of all workers together; what the engine thinks best unless given."""
    aligned: bool
    """Whether hypotheses get alignments, which CTranslate2's do not."""
    trees: TreeVocabulary | None
    """The symbols of trees, where every output has to be one."""
    say: Callable[[str], None]
    """Told what takes long."""

    def make(self, number: int, count: int) -> Engine:
        """The engine of a worker, `number` of `count` from 0 on."""
        worker = number if count > 1 else None
        threads = max(1, (self.threads or cores()) // count)
        if self.engine == "ctranslate2":
            from nmt.decoding.ctranslate2 import load_engine

            bundle = self.bundles[0]
            return load_engine(bundle, self.decoding, threads=threads, device=self.device, worker=worker, say=self.say)
        from nmt.decoding.alignment import AligningEngine
        from nmt.decoding.constraints import TreeConstraint
        from nmt.decoding.engine import SearchEngine
        from nmt.device import choose_device

        device = choose_device(self.device, threads if self.threads or count > 1 else None, worker)
        models = [bundle.model(device) for bundle in self.bundles]
        constraint = None if self.trees is None else partial(TreeConstraint, self.trees)
        engine = SearchEngine(models, self.decoding, constraint)
        if self.decoding.precision not in ("auto", engine.precision):
            self.say(f"precision {self.decoding.precision}: not faster on this machine, so {engine.precision} is used")
        return AligningEngine(engine, models) if self.aligned else engine

    @contextmanager
    def open(self, treatment: Treatment[Result]) -> Iterator[Pipeline[Result]]:
        """The pipeline of a treatment, whose workers end with the block.

        Raises UserError where something is missing or wrong.
        """
        if self.engine == "ctranslate2" and len(self.bundles) > 1:
            raise UserError(
                "--engine ctranslate2: searches with one model, not with an ensemble",
                "use --engine nmt, or one --model",
            )
        positions = longest_served((bundle.recipe.model for bundle in self.bundles), self.decoding)
        count = self.devices or 1
        if self.engine == "nmt" and sys.platform == "linux" and self._on_cpu():
            count = self.devices or min(self.threads or cores(), MOST_WORKERS)
            if count > 1:
                with Workers(self._shared(), count, self.decoding.max_source, fork=True) as workers:
                    yield Pipeline(treatment, self.decoding, workers, positions)
                return
        if count == 1:
            yield Pipeline(treatment, self.decoding, self.make(0, 1), positions)
            return
        with Workers(self.make, count, self.decoding.max_source) as workers:
            yield Pipeline(treatment, self.decoding, workers, positions)

    def _on_cpu(self) -> bool:
        import torch

        from nmt.device import find_device

        return find_device(self.device, torch.cuda.device_count()) == "cpu"

    def _shared(self) -> MakeEngine:
        """Makes one engine that all workers share until they write to it, which they do not.

        Many small operations are quicker by one thread, and each worker has its own: threads that share an operation
        wait for one another at its end.
        """
        import torch

        engine = self.make(0, self.threads or cores())  # with one thread: a fork would lack the others

        def share(number: int, count: int) -> Engine:
            torch.set_num_threads(max(1, (self.threads or cores()) // count))
            return engine

        return share
