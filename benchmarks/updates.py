"""Updates of `nmt train` without a run around them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import chain, islice
from pathlib import Path

import numpy as np
import torch

from counts import synchronize
from nmt.data.corpus import Corpus
from nmt.data.epochs import AHEAD, EpochPlan, Update, plan_epoch, updates_from
from nmt.model.transformer import Transformer
from nmt.recipe import Training
from nmt.system.console import Console, JsonLines, unseen
from nmt.system.launchers import World
from nmt.training.batches import prefetched
from nmt.training.distributed import Group, Requests
from nmt.training.learner import Learner
from nmt.training.progress import Progress
from nmt.training.run_state import RunState
from nmt.training.trainer import Trainer

Plan = Callable[[int], EpochPlan]
"""The plan of each epoch."""


def plan_of(corpus: Corpus, tokens: int) -> Plan:
    """Plan updates of so many tokens as `nmt train` does."""
    return partial(plan_epoch, corpus.source_lengths, corpus.target_lengths, tokens, 1)


class Ours:
    """A model and its updates."""

    def __init__(
        self,
        model: Transformer,
        corpus: Corpus,
        settings: Training,
        device: torch.device,
        state: RunState | None = None,
        console: Console | None = None,
    ) -> None:
        console = console or Console(quiet=True)
        self._corpus, learner = corpus, Learner(model, corpus, settings, device)
        learner.state = state or learner.state
        progress = Progress(Console(quiet=True), JsonLines(Path(os.devnull), console.say), "", unseen)
        self.trainer = Trainer(learner, Group(World(), timeout_minutes=10, device=device), console, progress)

    def updates(self, plan: Plan, count: int) -> Iterator[Update]:
        """Yield the next updates of a plan."""
        state = self.trainer.state
        return islice(updates_from(state.epoch, state.offset, plan, self._corpus), count)

    def make(self, updates: Sequence[Update]) -> float:
        """Make the micro-batches of updates; return the seconds of one."""
        began = time.perf_counter()
        for update in updates:
            self.trainer.micro_batches.of(update, self.trainer.state.device_tokens)
        return (time.perf_counter() - began) / len(updates)

    def train(self, updates: Iterator[Update]) -> float:
        """Perform updates, as a thread reads them; return the seconds of one."""
        with closing(prefetched(updates, AHEAD)) as ahead:
            return self.perform(chain([next(ahead)], ahead))  # the first one is read before the clock starts

    def perform(self, updates: Iterable[Update]) -> float:
        """Perform updates; return the seconds of one."""
        device, count = self.trainer.device, 0
        synchronize(device)
        began = time.perf_counter()
        for count, update in enumerate(updates, 1):  # noqa: B007
            self.trainer.update(update, Requests())
        synchronize(device)
        return (time.perf_counter() - began) / count


def again(rows: Sequence[range]) -> Plan:
    """Return a plan whose every epoch has the same updates."""
    plan = EpochPlan(np.arange(rows[-1].stop, dtype=np.int32), np.array([(each.start, each.stop) for each in rows]))
    return lambda epoch: plan
