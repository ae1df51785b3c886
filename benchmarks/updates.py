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
from nmt.data.epochs import AHEAD, EpochPlan, plan_epoch
from nmt.model.transformer import Transformer
from nmt.recipe import Training
from nmt.system.console import Console, JsonLines, unseen
from nmt.system.launchers import World
from nmt.training.batches import Update, prefetched
from nmt.training.distributed import Group, Requests
from nmt.training.progress import Progress
from nmt.training.run_files import RunState
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
        self.trainer = Trainer(model, corpus, settings, Group(World(), timeout_minutes=10, device=device), console)
        self.trainer.state = state or self.trainer.state
        self.trainer.start(Progress(Console(quiet=True), JsonLines(Path(os.devnull), console.say), "", unseen))

    def updates(self, plan: Plan, count: int) -> Iterator[Update]:
        """Yield the next updates of a plan."""
        return islice(self.trainer.micro_batches.updates(plan, self.trainer.state), count)

    def train(self, updates: Iterator[Update]) -> float:
        """Perform updates, as they are made in a thread; return the seconds of one."""
        with closing(prefetched(updates, AHEAD)) as ahead:
            return self.perform(chain([next(ahead)], ahead))  # the first one is made before the clock starts

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
