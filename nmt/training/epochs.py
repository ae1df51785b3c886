"""The plans of a run's epochs, in its directory: which pairs make up each update."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Collection
from pathlib import Path

from nmt.data.corpus import Corpus
from nmt.data.epochs import MANIFEST, EpochPlan, Mixture, plan_epoch, stored_plan
from nmt.errors import UserError
from nmt.integrity import check_files
from nmt.recipe import Training
from nmt.training.distributed import Group
from nmt.training.loop import AHEAD


class Epochs:
    """The plans of epochs, which rank 0 makes and all ranks map from the run's directory."""

    def __init__(
        self, out: Path, data: str, corpus: Corpus, mixture: Mixture, settings: Training, group: Group
    ) -> None:
        """For a corpus, with the fingerprint `data` of its prepared data, from which a mixture takes its sets."""
        self._out, self._data, self._corpus, self._mixture = out, data, corpus, mixture
        self._settings, self._group = settings, group

    def plan(self, epoch: int) -> EpochPlan:
        """The plan of an epoch; raises UserError where rank 0 does not make it in time."""
        settings = self._settings
        shaping = [self._data, self._mixture.weights, settings.batch_tokens, settings.seed, epoch]
        key = hashlib.sha256(json.dumps(shaping).encode()).hexdigest()[:12]
        folder = self._out / f".epoch-{epoch}-{key}"

        def make() -> EpochPlan:
            self.forget(range(epoch - AHEAD, epoch))  # other ranks may be so many updates behind
            lengths = self._corpus.source_lengths, self._corpus.target_lengths
            return plan_epoch(*lengths, settings.batch_tokens, settings.seed, epoch, self._mixture)

        making = make if self._group.leads else None
        return stored_plan(folder, making, 60 * settings.timeout_minutes, self._group.check)

    def forget(self, keep: Collection[int] = ()) -> None:
        """Removes the plans of all epochs except some."""
        for old in self._out.glob(".epoch-*"):
            if int(old.name.split("-")[1]) not in keep:
                shutil.rmtree(old, ignore_errors=True)


def remove_damaged_plans(out: Path) -> None:
    """Removes the plans in a run's directory that are not as they were written; rank 0 will make them again."""
    for folder in out.glob(".epoch-*"):
        try:
            check_files(folder / MANIFEST)
        except UserError:
            shutil.rmtree(folder, ignore_errors=True)
