"""Which symbols may follow each hypothesis of a search: the search asks, whatever the rule.

As in the search, all hypotheses of all rows are looked at together and the host never waits for the device. Shapes:
n rows, which are sentences, k hypotheses of each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from nmt.model.cache import move_rows, with_room
from nmt.search.feed import Source
from nmt.text.linear import TreeVocabulary
from nmt.text.symbols import EOS


class Constraint(Protocol):
    """A rule for outputs, and what it has to remember of the hypotheses of one search.

    A hypothesis of probability 0 is one that does not exist: for it any answer will do, and any parent and symbol
    may be named.
    """

    def admit(self, sources: Sequence[Source]) -> None:
        """Adds rows whose hypotheses are empty."""
        ...

    def restrict(self, log_probs: Tensor, rows: slice) -> None:
        """Sets to -inf, in place, what must not come next; log_probs (rows, k, vocabulary or more) are of `rows`."""
        ...

    def advance(self, parents: Tensor, symbols: Tensor) -> None:
        """Has each hypothesis follow the one of its row that `parents` (n, k) names, by one of `symbols` (n, k)."""
        ...

    def leave(self, holes: Sequence[int], last: Sequence[int], count: int) -> None:
        """Overwrites rows `holes` by rows `last` and keeps the first `count`."""
        ...


MakeConstraint = Callable[[int, torch.device], Constraint]
"""The constraint of a search with a beam, on a device."""


class MinLength:
    """No output has fewer symbols than `length`, `</s>` not counted."""

    def __init__(self, length: int, beam: int, device: torch.device) -> None:
        self._least = length
        self._lengths = np.empty(0, dtype=np.int64)

    def admit(self, sources: Sequence[Source]) -> None:
        """See `Constraint`."""
        self._lengths = np.append(self._lengths, np.zeros(len(sources), dtype=np.int64))

    def restrict(self, log_probs: Tensor, rows: slice) -> None:
        """See `Constraint`."""
        early = self._lengths[rows] < self._least
        if early.any():
            log_probs[torch.from_numpy(early).to(log_probs.device), :, EOS] = -math.inf

    def advance(self, parents: Tensor, symbols: Tensor) -> None:
        """See `Constraint`."""
        self._lengths += 1

    def leave(self, holes: Sequence[int], last: Sequence[int], count: int) -> None:
        """See `Constraint`."""
        self._lengths[holes] = self._lengths[last]
        self._lengths = self._lengths[:count]


class TreeConstraint:
    """Every output is the linear form of a tree over exactly as many words as its source has.

    - A leaf comes only while leaves are left, `</s>` only when none is and no bracket is open.
    - A bracket opens only while leaves are left, so that it will have something in it, and after no more than
      `longest_run` others in a row. That bounds unary chains, and an output by its words.
    - A bracket closes if it is the innermost that is open and not empty.
    - The source's cap leaves places for (cap - words - 1) / 2 brackets and those that close them; no more are opened.

    So a hypothesis can always go on and always end: by a leaf while any is left, else by closing what is open, else
    by `</s>`, for all of which there is room.

    What is open is a linked list. Each hypothesis has a head, which names the label of the innermost open bracket and
    the place where the head from before that bracket stands; its descendants share what is behind it.
    """

    def __init__(self, vocabulary: TreeVocabulary, beam: int, device: torch.device) -> None:
        self._run = vocabulary.longest_run
        self._leaves, self._openers, self._closers = (
            slice(ids.start, ids.stop) for ids in (vocabulary.leaves, vocabulary.openers, vocabulary.closers)
        )
        self._kinds = 1 + len(vocabulary.labels)  # of heads: nothing is open, or which label
        self._beam = beam
        self._bias, self._spent = (table.to(device) for table in self._tables(len(vocabulary)))
        ids = torch.empty((0, beam), dtype=torch.int64, device=device)
        # (n, 3, k): leaves left, brackets that may still be opened, and how many of them in a row
        self._left = ids.new_empty((0, 3, beam))
        self._head = self._places = ids  # (n, k): place · kinds + kind, or 0; the place of a head that comes next
        self._heads = ids.new_empty((0, 0))  # (rows, places)

    def _tables(self, vocabulary: int) -> tuple[Tensor, Tensor]:
        """What `restrict` and `advance` look up.

        (3 · kinds, vocabulary) is 0 at what may follow, else -inf: for each kind of head where no leaf is left, then
        where leaves are but no bracket may be opened, then where one may. (vocabulary, 3) is what a symbol takes from
        what is left; one that opens no bracket gives back all that may be opened in a row.
        """
        allowed = torch.zeros((3, self._kinds, vocabulary), dtype=torch.bool)
        allowed[0, 0, EOS] = True
        allowed[1:, :, self._leaves] = True
        allowed[2, :, self._openers] = True
        allowed[:, 1:, self._closers] = torch.eye(self._kinds - 1, dtype=torch.bool)
        spent = torch.tensor([0, 0, -self._run]).repeat(vocabulary, 1)
        spent[self._leaves, 0] = 1
        spent[self._openers, 1:] = 1
        return torch.zeros(allowed.shape).masked_fill_(~allowed, -math.inf).flatten(0, 1), spent

    def admit(self, sources: Sequence[Source]) -> None:
        """See `Constraint`. Raises ValueError for a source without words, or with more than its cap has room for."""
        for source in sources:
            if not 1 <= source.words < source.cap:
                raise ValueError(f"source {source.number}: {source.words} words do not fit into a cap of {source.cap}")
        start, count = len(self._left), len(sources)
        left = [[source.words, (source.cap - source.words - 1) // 2, self._run] for source in sources]
        places = torch.arange(self._beam).expand(count, -1)
        self._left = torch.cat((self._left, torch.tensor(left)[:, :, None].expand(-1, -1, self._beam).to(self._left)))
        self._head = torch.cat((self._head, torch.zeros_like(places).to(self._head)))
        self._places = torch.cat((self._places, places.to(self._places)))
        heads = with_room(self._heads, 0, start + count, start)
        self._heads = with_room(heads, 1, self._beam * max(source.cap for source in sources), heads.size(1))

    def restrict(self, log_probs: Tensor, rows: slice) -> None:
        """See `Constraint`."""
        left = self._left[rows]
        may_close = left[:, 2] == self._run  # else the last symbol opened a bracket, which is empty
        which = left[:, 0].clamp(0, 1) + left.amin(1).clamp_(0, 1)
        which = (self._head[rows] % self._kinds * may_close).add_(which, alpha=self._kinds)
        log_probs[:, :, : self._bias.size(1)] += F.embedding(which, self._bias)

    def advance(self, parents: Tensor, symbols: Tensor) -> None:
        """See `Constraint`."""
        self._left = self._left.gather(2, parents[:, None].expand(-1, 3, -1))
        self._left.transpose(1, 2).sub_(F.embedding(symbols, self._spent))
        self._left[:, 2].clamp_max_(self._run)
        head = self._head.gather(1, parents)
        heads = self._heads[: len(head)].scatter_(1, self._places, head)
        outer = heads.gather(1, head // self._kinds)
        inner = (self._places * self._kinds).add_(symbols).sub_(self._openers.start - 1)
        head = torch.where(symbols < self._openers.start, head, inner)
        self._head = torch.where(symbols < self._closers.start, head, outer)
        self._places += self._beam

    def leave(self, holes: Sequence[int], last: Sequence[int], count: int) -> None:
        """See `Constraint`."""
        state = (self._left, self._head, self._places)
        move_rows((*state, self._heads), holes, last)
        self._left, self._head, self._places = (each[:count] for each in state)
