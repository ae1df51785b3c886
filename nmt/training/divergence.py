"""Gradients that are not finite: counts the updates that they skip, and ends a run that has diverged."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from nmt.console import Console
from nmt.data.corpus import Corpus, Rows
from nmt.errors import UserError
from nmt.training.state import RunState

MANY = 10  # updates skipped in a row that end a run
REMEDY = "lower training.learning_rate_scale, raise training.warmup or set training.clip_norm; "


class _Outcome(NamedTuple):
    """An update, and whether it was skipped, which a GPU may not have told yet."""

    step: int
    rows: Rows
    skipped: Tensor
    """(), on the host; valid once the copy is done"""
    copied: torch.cuda.Event | None
    """When a GPU has copied it; None on a CPU"""


class Divergence:
    """Counts skipped updates, and raises UserError once training has diverged."""

    def __init__(self, module: nn.Module, corpus: Corpus, console: Console, state: RunState) -> None:
        self._parameters, self._corpus, self._console, self._state = list(module.parameters()), corpus, console, state
        self._unseen: list[_Outcome] = []
        self.in_a_row: list[_Outcome] = []  # skipped updates up to the last one counted

    def note(self, rows: Rows, skipped: Tensor) -> None:
        """Note an update of some pairs, `skipped` () on the device; tally finished ones now and then.

        The host does not wait for a GPU here. All ranks tally the same updates.
        """
        copied = None
        if skipped.is_cuda:
            skipped, copied = skipped.to("cpu", non_blocking=True), torch.cuda.Event()
            copied.record()
        self._unseen.append(_Outcome(self._state.step, rows, skipped, copied))
        under_way = 0 if copied is None else MANY
        if len(self._unseen) >= MANY + under_way:
            self._tally(under_way)

    def check(self) -> None:
        """Tally all updates; raise UserError if weights are not finite, before they are saved over good checkpoints."""
        self._tally(0)
        norm = float(get_total_norm([parameter.detach() for parameter in self._parameters]))
        if not math.isfinite(norm):
            raise UserError(
                f"training diverged: the norm of the weights is {norm} after update {self._state.step}",
                REMEDY + "earlier checkpoints are intact",
            )

    def _tally(self, leave: int) -> None:
        """Count the skipped updates in the run's state, without the last `leave`; raise UserError for many in a row."""
        end = len(self._unseen) - leave
        outcomes, self._unseen = self._unseen[:end], self._unseen[end:]
        for outcome in outcomes:
            if outcome.copied is not None:
                outcome.copied.synchronize()
            skipped = bool(outcome.skipped)
            self.in_a_row = [*self.in_a_row, outcome] if skipped else []
            self._state.skipped += skipped
            if skipped:
                self._console.say(f"update {outcome.step}: skipped, its gradient is not finite")
            if len(self.in_a_row) >= MANY:
                raise self._too_many()

    def _too_many(self) -> UserError:
        first = self.in_a_row[0]
        lines = sorted(self._corpus.lines(first.rows))
        shown = ", ".join(f"{line:,}" for line in lines[:8]) + (" …" if len(lines) > 8 else "")
        return UserError(
            f"training diverged: {MANY} updates in a row had gradients that are not finite, update {first.step} "
            f"(data.train, {len(lines):,} lines: {shown}) and those after it",
            REMEDY + "checkpoints are intact",
        )
