"""Rules for outputs: which symbols may follow each hypothesis of a search.

As in the search, all hypotheses of all rows are handled together, and the host never waits for the device. Shapes: n
rows, which are sentences, k hypotheses of each.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from nmt.decoding.engine import Source
from nmt.model.cache import ROOM, Ancestry, Removal, upload, with_room
from nmt.parsing.linearization import TreeVocabulary
from nmt.text.vocabulary import EOS, PAD, Vocabulary

NONE = -1  # stands before the first symbol


class Candidates(NamedTuple):
    """Extensions of the hypotheses of rows, (n, candidates) each: the best first, and where there are fewer, -inf."""

    totals: Tensor
    """Log-probability."""
    parents: Tensor
    """The hypothesis of the row that is extended."""
    symbols: Tensor
    """The symbol that extends it."""


class Constraint:
    """A rule for outputs and its state in one search; subclasses override what they need.

    The ancestry is always a step ahead: it admits, extends and removes rows before the rule does.

    A hypothesis of probability 0 does not exist: its parent and its symbol may be any, and so may the answer for it.
    """

    def admit(self, sources: Sequence[Source]) -> None:
        """Add rows whose hypotheses are empty."""

    def restrict(self, log_probs: Tensor, rows: slice) -> None:
        """Set forbidden next symbols to -inf, in place, in log_probs (rows, k, vocabulary or more) of `rows`."""

    def choose(self, log_probs: Tensor, alive: Tensor, rows: slice, found: Candidates) -> Candidates:
        """Return the candidates of `rows`, given those that the search has found: 2k of each row, or one if k is 1.

        The first k that end may join the finished hypotheses; the best k of the others stay alive. `alive` (rows, k)
        has the log-probabilities of the hypotheses. Two candidates may be returned where k is 1.
        """
        return found

    def chosen_rows(self) -> Sequence[int]:
        """Return the rows in which `choose` may prefer a candidate to a more probable one."""
        return ()

    def horizons(self, caps: Tensor, lengths: Tensor) -> Tensor:
        """Return (n, 1), the length whose penalty bounds the scores of alive hypotheses, given `caps` and `lengths`."""
        return caps

    def advance(self, parents: Tensor, symbols: Tensor) -> None:
        """Extend the hypotheses `parents` (n, k) by `symbols` (n, k)."""

    def kept_from_repeating(self, rows: Tensor, positions: Tensor, hypotheses: Tensor) -> Tensor:
        """Return (r, m), whether a rule against repetitions ever forbade the most probable symbol of a hypothesis.

        The hypotheses (r, m) are those of `rows` (r,), as of their extension at `positions` (r, m).
        """
        return torch.zeros_like(positions, dtype=torch.bool)

    def leave(self, removal: Removal) -> None:
        """Remove rows."""


MakeConstraint = Callable[[Ancestry], Constraint]
"""Makes a rule of a search, whose rows are those of the ancestry."""


class MinLength(Constraint):
    """No output has fewer symbols than `length`, `</s>` not counted."""

    def __init__(self, length: int, ancestry: Ancestry) -> None:
        self._least, self._ancestry = length, ancestry

    def restrict(self, log_probs: Tensor, rows: slice) -> None:
        early = self._ancestry.lengths[rows] <= self._least  # the position to fill is counted already
        if early.any():
            log_probs[:, :, EOS].masked_fill_(upload(early, log_probs.device)[:, None], -math.inf)


class NoRepeat(Constraint):
    """No n-gram of symbols comes twice in an output (Paulus et al. 2018, section 2.5).

    `</s>` is never forbidden, because it comes only once. Where nothing else is left, as in a prefix that repeats
    itself, a repetition is allowed.
    """

    def __init__(self, n: int, ancestry: Ancestry) -> None:
        self._n, self._ancestry = n, ancestry
        beam, device = ancestry.beam, ancestry.rows.device
        self._newest = torch.empty((0, beam, 0), dtype=torch.int64, device=device)  # (rows, k, longest): newest first
        self._acted = torch.empty((0, beam), dtype=torch.bool, device=device)  # (rows, k): on each hypothesis
        self._history = torch.empty((0, ROOM, beam), dtype=torch.bool, device=device)  # (rows, positions, k): the same

    def admit(self, sources: Sequence[Source]) -> None:
        self._newest = F.pad(self._newest, (0, 0, 0, 0, 0, len(sources)), value=NONE)
        self._acted = F.pad(self._acted, (0, 0, 0, len(sources)))
        self._history = with_room(self._history, 0, len(self._acted))

    def restrict(self, log_probs: Tensor, rows: slice) -> None:
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
        self._history = with_room(self._history, 1, int(self._ancestry.lengths.max()))
        self._history[self._ancestry.rows, self._ancestry.positions] = self._acted[:, None]
        self._acted = self._acted.gather(1, parents)
        newest = self._newest.gather(1, parents[:, :, None].expand(-1, -1, self._newest.size(2)))
        self._newest = torch.cat((symbols[:, :, None], newest), dim=2)

    def kept_from_repeating(self, rows: Tensor, positions: Tensor, hypotheses: Tensor) -> Tensor:
        return self._history[rows[:, None], positions, hypotheses]

    def leave(self, removal: Removal) -> None:
        removal.move(self._history)
        self._acted = removal.keep(self._acted)
        self._newest = removal.keep(self._newest)[:, :, : self._ancestry.lengths.max(initial=0)]


class TreeConstraint(Constraint):
    """Every output is the linear form of a tree over exactly as many words as its source has.

    - A leaf may come only while leaves are left, `</s>` only when none is left and no bracket is open.
    - A bracket may open only while leaves are left, so that it will not be empty. At most `longest_run` brackets open
      in a row; this bounds unary chains, and the length of an output by its words.
    - A bracket may close if it is the innermost open one and not empty.
    - The source's cap has room for (cap - words - 1) / 2 pairs of brackets; no more are opened.

    Every hypothesis can therefore be completed within its cap: by a leaf while any is left, then by closing what is
    open, then by `</s>`.

    The open brackets are a linked list. Each hypothesis has a head, which encodes the label of the innermost open
    bracket and the place of the head before it. Descendants share the rest of the list.
    """

    def __init__(self, vocabulary: TreeVocabulary, ancestry: Ancestry) -> None:
        beam, device = ancestry.beam, ancestry.rows.device
        self._run = vocabulary.longest_run
        self._leaves, self._openers, self._closers = (
            slice(ids.start, ids.stop) for ids in (vocabulary.leaves, vocabulary.openers, vocabulary.closers)
        )
        self._kinds = 1 + len(vocabulary.labels)  # of heads: no bracket is open, or the label of the innermost
        self._beam = beam
        self._bias, self._spent = (table.to(device) for table in self._tables(len(vocabulary)))
        ids = torch.empty((0, beam), dtype=torch.int64, device=device)
        # (n, 3, k): leaves left, brackets that may still be opened, and how many of them in a row
        self._left = ids.new_empty((0, 3, beam))
        self._head = self._places = ids  # (n, k): place · kinds + kind, or 0; the place of the next head
        self._heads = ids.new_empty((0, 0))  # (rows, places)

    def _tables(self, vocabulary: int) -> tuple[Tensor, Tensor]:
        """Return the tables that `restrict` and `advance` look up.

        The first, (3 · kinds, vocabulary), is 0 at symbols that may follow, else -inf: for each kind of head if no leaf
        is left, then if leaves are left but no bracket may open, then if one may. The second, (vocabulary, 3), is what
        a symbol takes from `left`; one that opens no bracket gives back all that may open in a row.
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
        left = [[source.words, (source.cap - source.words - 1) // 2, self._run] for source in sources]
        device = self._head.device
        places = torch.arange(self._beam, device=device).expand(len(sources), -1)
        self._left = torch.cat((self._left, upload(left, device)[:, :, None].expand(-1, -1, self._beam)))
        self._head = torch.cat((self._head, torch.zeros_like(places)))
        self._places = torch.cat((self._places, places))
        heads = with_room(self._heads, 0, len(self._left))
        self._heads = with_room(heads, 1, self._beam * max(source.cap for source in sources))

    def restrict(self, log_probs: Tensor, rows: slice) -> None:
        left = self._left[rows]
        may_close = left[:, 2] == self._run  # else the last symbol opened a bracket, which is still empty
        which = left[:, 0].clamp(0, 1) + left.amin(1).clamp_(0, 1)
        which = (self._head[rows] % self._kinds * may_close).add_(which, alpha=self._kinds)
        log_probs[:, :, : self._bias.size(1)] += F.embedding(which, self._bias)

    def advance(self, parents: Tensor, symbols: Tensor) -> None:
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

    def leave(self, removal: Removal) -> None:
        removal.move(self._heads)
        self._left, self._head, self._places = map(removal.keep, (self._left, self._head, self._places))


LAST = "\U0010ffff"  # sorts after every text


class SubwordIndex:
    """The subwords of a vocabulary by what they spell."""

    def __init__(self, spellings: Sequence[str]) -> None:
        """Index the spelling of each symbol, by id; symbols that spell nothing are left out."""
        found = sorted((spelling, index) for index, spelling in enumerate(spellings) if spelling)
        self._texts = [spelling for spelling, _ in found]
        self._ids = [index for _, index in found]
        self._longest = max(map(len, self._texts), default=0)

    def steps(self, text: str) -> list[dict[int, int]] | None:
        """Return for each position in a text the symbols that may come next, each with the position it leads to.

        A symbol that goes on beyond the text leads to its end. Every path leads there. Return None if there is no path.
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
        """Return the symbols whose spelling sorts from `first` on and before `last`."""
        return self._ids[bisect_left(self._texts, first) : bisect_left(self._texts, last)]


class PrefixConstraint(Constraint):
    """Outputs begin with the prefix of their source, if it has one. Nothing is computed for sources without one."""

    def __init__(self, vocabulary: Vocabulary, ancestry: Ancestry) -> None:
        self._vocabulary, self._device = vocabulary, ancestry.rows.device
        # The automaton of each row's prefix: for each state but the last, the symbols that may come next with the
        # states that they lead to, and the same symbols as a tensor.
        self._plans: list[list[tuple[Mapping[int, int], Tensor]]] = []
        self._states: NDArray[np.int64] = np.empty((0, ancestry.beam), dtype=np.int64)  # -1: after the prefix
        self._under_way = False

    def admit(self, sources: Sequence[Source]) -> None:
        plans = list(map(self._plan, sources))
        self._plans += plans
        states = np.array([[0 if plan else -1] for plan in plans]).repeat(self._states.shape[1], axis=1)
        self._states = np.concatenate((self._states, states))
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
        """Follow the symbols; a CPU-GPU sync point while there are prefixes."""
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
