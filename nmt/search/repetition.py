"""Outputs in which no n subwords come twice in the same order (Paulus et al. 2018, section 2.5)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from nmt.model.rows import ROOM, Removal, with_room
from nmt.model.transfer import upload
from nmt.search.constraints import Constraint
from nmt.search.feed import Source
from nmt.text.symbols import PAD

NONE = -1  # stands before the first symbol


class NoRepeat(Constraint):
    """No n-gram of symbols comes twice in an output.

    `</s>` is never forbidden, because it comes only once. Where nothing else is left, as in a prefix that repeats
    itself, a repetition is allowed.
    """

    def __init__(self, n: int, beam: int, device: torch.device) -> None:
        self._n = n
        self._lengths = np.empty(0, dtype=np.int64)  # (rows,): of the outputs so far
        self._newest = torch.empty((0, beam, 0), dtype=torch.int64, device=device)  # (rows, k, longest): newest first
        self._acted = torch.empty((0, beam), dtype=torch.bool, device=device)  # (rows, k): on each hypothesis
        self._history = torch.empty((0, ROOM, beam), dtype=torch.bool, device=device)  # (rows, positions, k): the same

    def admit(self, sources: Sequence[Source]) -> None:
        """See `Constraint`."""
        self._lengths = np.append(self._lengths, np.zeros(len(sources), dtype=np.int64))
        self._newest = F.pad(self._newest, (0, 0, 0, 0, 0, len(sources)), value=NONE)
        self._acted = F.pad(self._acted, (0, 0, 0, len(sources)))
        self._history = with_room(self._history, 0, len(self._acted))

    def restrict(self, log_probs: Tensor, rows: slice) -> None:
        """See `Constraint`."""
        newest = self._newest[rows]
        if newest.size(2) < self._n:
            return
        # Each symbol with the n - 1 before it; it may not follow if these are the newest ones.
        grams = newest.unfold(2, self._n, 1)  # (rows, k, longest - n + 1, n)
        again = grams[..., 1:].eq(newest[:, :, None, : self._n - 1]).all(-1) & grams[..., 0].ne(NONE)
        forbidden = grams[..., 0].where(again, PAD)  # which is never output
        values = log_probs.gather(2, forbidden)
        log_probs.scatter_(2, forbidden, -math.inf)
        best = log_probs.amax(2, keepdim=True)
        nothing_left = best.isneginf()
        log_probs.scatter_(2, forbidden, values.masked_fill(~nothing_left, -math.inf))
        self._acted[rows] |= (values > best).any(2) & ~nothing_left[:, :, 0]

    def advance(self, parents: Tensor, symbols: Tensor) -> None:
        """See `Constraint`."""
        self._history = with_room(self._history, 1, int(self._lengths.max()) + 1)
        positions = upload(self._lengths, self._history.device)
        self._history[torch.arange(len(positions), device=self._history.device), positions] = self._acted
        self._acted = self._acted.gather(1, parents)
        self._lengths = self._lengths + 1
        newest = self._newest.gather(1, parents[:, :, None].expand(-1, -1, self._newest.size(2)))
        self._newest = torch.cat((symbols[:, :, None], newest), dim=2)

    def kept_from_repeating(self, rows: Tensor, positions: Tensor, hypotheses: Tensor) -> Tensor:
        """See `Constraint`."""
        return self._history[rows[:, None], positions, hypotheses]

    def leave(self, removal: Removal) -> None:
        """See `Constraint`."""
        removal.move(self._history)
        self._lengths, newest = removal.keep(self._lengths), removal.keep(self._newest)
        self._acted = removal.keep(self._acted)
        self._newest = newest[:, :, : self._lengths.max(initial=0)]
