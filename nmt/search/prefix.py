"""Outputs that begin as they are told to, exactly, and go on."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmt.model.cache import Removal
from nmt.search.constraints import Constraint
from nmt.search.feed import Source
from nmt.text.vocabulary import Vocabulary

LAST = "\U0010ffff"  # sorts behind every text


class SubwordIndex:
    """The subwords of a vocabulary by what they spell."""

    def __init__(self, spellings: Sequence[str]) -> None:
        """`spellings` is what each symbol spells, by id; symbols that spell nothing do not take part."""
        found = sorted((spelling, index) for index, spelling in enumerate(spellings) if spelling)
        self._texts = [spelling for spelling, _ in found]
        self._ids = [index for _, index in found]
        self._longest = max(map(len, self._texts), default=0)

    def steps(self, text: str) -> list[dict[int, int]] | None:
        """Which symbols may come next after 0, 1, 2, … characters of a text, each with how many characters it leads to.

        A symbol that goes on beyond the text leads to its end. Every path leads there; None if there is no path.
        """
        steps: list[dict[int, int]] = [{} for _ in text]
        for at in reversed(range(len(text))):
            rest = text[at:]
            for end in range(at + 1, min(len(text), at + self._longest) + 1):
                if end == len(text) or steps[end]:
                    steps[at].update({index: end for index in self._between(text[at:end], text[at:end] + "\0")})
            steps[at].update({index: len(text) for index in self._between(rest, rest + LAST)})
        return steps if not text or steps[0] else None

    def _between(self, first: str, last: str) -> list[int]:
        """The symbols whose spelling sorts from `first` on and before `last`."""
        return self._ids[bisect_left(self._texts, first) : bisect_left(self._texts, last)]


class PrefixConstraint(Constraint):
    """Outputs begin with the prefix of their source, if it has one. Nothing is computed for sources without one."""

    def __init__(self, vocabulary: Vocabulary, beam: int, device: torch.device) -> None:
        self._vocabulary, self._device = vocabulary, device
        # Of each row how an output begins: for each state but the last, the symbols that may come next with the states
        # that they lead to, and the same symbols as a tensor.
        self._plans: list[list[tuple[Mapping[int, int], Tensor]]] = []
        self._states: NDArray[np.int64] = np.empty((0, beam), dtype=np.int64)  # of each hypothesis; -1 after the prefix
        self._under_way = False

    def admit(self, sources: Sequence[Source]) -> None:
        for source in sources:
            self._plans.append(self._plan(source))
        states = [[0 if plan else -1] * self._states.shape[1] for plan in self._plans[len(self._states) :]]
        self._states = np.concatenate((self._states, np.array(states, dtype=np.int64)))
        self._under_way = bool((self._states >= 0).any())

    @cached_property
    def _index(self) -> SubwordIndex:
        return SubwordIndex(self._vocabulary.spellings())

    def _plan(self, source: Source) -> list[tuple[Mapping[int, int], Tensor]]:
        if (prefix := source.prefix) is None:
            return []
        spelled = self._index.steps(prefix.rest)
        ids = prefix.ids + (prefix.rest_ids if spelled is None else [])
        steps: list[Mapping[int, int]] = [{index: at + 1} for at, index in enumerate(ids)]
        steps += [{index: len(ids) + end for index, end in step.items()} for step in spelled or []]
        ends = [{index: state for index, state in step.items() if state < len(steps)} for step in steps]
        return [(end, torch.tensor(list(step), device=self._device)) for end, step in zip(ends, steps, strict=True)]

    def restrict(self, log_probs: Tensor, rows: slice) -> None:
        if not self._under_way:
            return
        for row, states in enumerate(self._states[rows]):
            for hypothesis in np.flatnonzero(states >= 0):
                _, allowed = self._plans[(rows.start or 0) + row][states[hypothesis]]
                kept = log_probs[row, hypothesis, allowed]
                log_probs[row, hypothesis] = -torch.inf
                log_probs[row, hypothesis, allowed] = kept

    def advance(self, parents: Tensor, symbols: Tensor) -> None:
        """Follow the symbols, for which the host waits while there are prefixes."""
        if not self._under_way:
            return
        before = np.take_along_axis(self._states, parents.cpu().numpy(), axis=1)
        for (row, hypothesis), symbol in np.ndenumerate(symbols.cpu().numpy()):
            state = before[row, hypothesis]
            if state >= 0:  # a hypothesis of probability 0 may have any symbol
                before[row, hypothesis] = self._plans[row][state][0].get(int(symbol), -1)
        self._states = before
        self._under_way = bool((before >= 0).any())

    def leave(self, removal: Removal) -> None:
        self._states = removal.keep(self._states)
        for hole, last in zip(removal.holes, removal.last, strict=True):
            self._plans[hole] = self._plans[last]
        del self._plans[removal.count :]
