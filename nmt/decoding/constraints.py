"""Constraints on outputs: which symbols may follow each hypothesis of a search.

All but `PrefixConstraint` are vectorised over all hypotheses of all rows and never make the host wait for the device.
Shapes: n rows, one per sentence, and k hypotheses per row.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from nmt.decoding.engine import Prefix, Source
from nmt.model.cache import Ancestry, Removal, with_room
from nmt.parsing.linearization import ANY, TreeVocabulary
from nmt.system.device import upload
from nmt.text.vocabulary import EOS, PAD, Vocabulary

NONE = -1  # padding before the first symbol


class Constraint:
    """Constraint on the outputs of one search, with its state; subclasses override the methods they need.

    The ancestry is updated first: it admits, extends and removes rows before the constraint does.

    Hypotheses of probability 0 are empty slots: their parents and symbols are arbitrary, and so are results for them.
    """

    replaced: tuple[str, ...] = ()  # tensors, a row of each for every sentence, that `restrict` and `advance` replace

    def admit(self, sources: Sequence[Source]) -> None:
        """Add a row of empty hypotheses for each source."""

    def restrict(self, log_probs: Tensor, rows: slice) -> None:
        """Set forbidden next symbols of `rows` to -inf in log_probs (rows, k, at least vocabulary), in place."""

    def advance(self, parents: Tensor, symbols: Tensor) -> None:
        """Extend hypotheses `parents` (n, k) by `symbols` (n, k)."""

    def is_on_device(self) -> bool:
        """Return whether the next `restrict` and `advance` need nothing of the host but what all others need, too."""
        return True

    def least_length(self) -> int | None:
        """Return the least number of symbols before `</s>` if this is all that the constraint now means, else None.

        Then `restrict` and `advance` need not be called.
        """
        return None

    def leave(self, removal: Removal) -> None:
        """Remove the rows that leave the batch."""


MakeConstraint = Callable[[Ancestry], Constraint]
"""Factory for a search's constraint, given the search's ancestry."""


class MinLength(Constraint):
    """Outputs have at least `length` symbols, not counting `</s>`."""

    def __init__(self, length: int, ancestry: Ancestry) -> None:
        self._least, self._ancestry = length, ancestry

    def restrict(self, log_probs: Tensor, rows: slice) -> None:
        log_probs[:, :, EOS].masked_fill_(self._ancestry.positions[rows] < self._least, -math.inf)

    def least_length(self) -> int:
        return self._least


class NoRepeat(Constraint):
    """No n-gram of symbols occurs twice in an output (Paulus et al. 2018, section 2.5).

    A repetition is allowed if it is the only choice, as within a prefix that repeats itself.
    """

    replaced = ("_newest",)

    def __init__(self, n: int, ancestry: Ancestry) -> None:
        self._n, self._ancestry = n, ancestry
        # (rows, k, longest): newest first
        self._newest = torch.empty((0, ancestry.beam, 0), dtype=torch.int64, device=ancestry.rows.device)

    def admit(self, sources: Sequence[Source]) -> None:
        longer = max(0, self._ancestry.end - self._newest.size(2))
        self._newest = F.pad(self._newest, (0, longer, 0, 0, 0, len(sources)), value=NONE)

    def restrict(self, log_probs: Tensor, rows: slice) -> None:
        newest = self._newest[rows]
        if newest.size(2) < self._n:
            return
        # A symbol is forbidden if an earlier occurrence of it follows the same n - 1 symbols.
        grams = newest.unfold(2, self._n, 1)  # (rows, k, longest - n + 1, n)
        again = grams[..., 1:].eq(newest[:, :, None, : self._n - 1]).all(-1) & grams[..., 0].ne(NONE)
        forbid(log_probs, grams[..., 0], again)

    def advance(self, parents: Tensor, symbols: Tensor) -> None:
        newest = self._newest.gather(1, parents[:, :, None].expand(-1, -1, self._newest.size(2)))
        self._newest = torch.cat((symbols[:, :, None], newest), dim=2)[:, :, : self._ancestry.end]

    def leave(self, removal: Removal) -> None:
        self._newest = removal.keep(self._newest)[:, :, : self._ancestry.end]


def forbid(log_probs: Tensor, symbols: Tensor, where: Tensor) -> None:
    """Set `symbols` (n, k, m), where the mask `where` is true, to -inf in log_probs (n, k, vocabulary), in place.

    A hypothesis with no other choice keeps them.
    """
    symbols = symbols.where(where, PAD)  # padding is never output anyway
    values = log_probs.gather(2, symbols)
    log_probs.scatter_(2, symbols, -math.inf)
    nothing_left = log_probs.amax(2, keepdim=True).isneginf()
    log_probs.scatter_(2, symbols, values.masked_fill(~nothing_left, -math.inf))


class TreeConstraint(Constraint):
    """Outputs are linearised trees with exactly as many leaves as the source has words.

    - Leaves are allowed while any are left. `</s>` is allowed only when none is left and no bracket is open.
    - Leaves must fit the next word (`TreeVocabulary.fitting`), and get the probability of those that do not: whether a
      leaf comes next is the model's decision.
    - A bracket may open only while leaves are left, so that it will not be empty. At most `longest_run` brackets open
      in a row, which bounds unary chains and thus the output length.
    - Only the innermost open bracket may close, and only if it is not empty.
    - At most (cap - words - 1) / 2 brackets open, because the cap has room for no more pairs.

    Every hypothesis can therefore be completed within its cap by the remaining leaves, closing brackets and `</s>`.

    Open brackets form a linked list. Each hypothesis has a head, which encodes the label of the innermost open bracket
    and the slot of the previous head. Descendants share the rest of the list.
    """

    replaced = ("_left", "_head")

    def __init__(self, vocabulary: TreeVocabulary, ancestry: Ancestry) -> None:
        beam, device = ancestry.beam, ancestry.rows.device
        self._run = vocabulary.longest_run
        self._leaves, self._openers, self._closers = (
            slice(ids.start, ids.stop) for ids in (vocabulary.leaves, vocabulary.openers, vocabulary.closers)
        )
        self._kinds = 1 + len(vocabulary.labels)  # kinds of head: no open bracket, or the innermost one's label
        self._ancestry = ancestry
        self._bias, self._spent = (table.to(device) for table in self._tables(len(vocabulary)))
        # (kinds of words, tags)
        self._unfit = torch.where(torch.tensor(vocabulary.fitting, dtype=torch.bool), 0.0, -math.inf).to(device)
        ids = torch.empty((0, beam), dtype=torch.int64, device=device)
        # (n, 3, k): leaves left, brackets that may still open, and brackets that may open in a row
        self._left = ids.new_empty((0, 3, beam))
        self._head = ids  # (n, k): slot · kinds + kind, or 0
        self._heads = ids.new_empty((0, 0))  # (rows, slots): the previous heads
        # (rows, words + 1): the next word's kind, by the number of leaves left
        self._kinds_left = ids.new_empty((0, 0))

    def _tables(self, vocabulary: int) -> tuple[Tensor, Tensor]:
        """Return the lookup tables of `restrict` and `advance`.

        The first, (3 · kinds, vocabulary), is 0 for allowed symbols and -inf for others. It covers all kinds of head
        for three cases: no leaf left, leaves left but no bracket may open, a bracket may open. The second,
        (vocabulary, 3), is what each symbol subtracts from `_left`; all but opening brackets reset the run.
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
        device, beam, room = self._head.device, self._ancestry.beam, self._ancestry.room
        self._left = torch.cat((self._left, upload(left, device)[:, :, None].expand(-1, -1, beam)))
        self._head = F.pad(self._head, (0, 0, 0, len(sources)))
        longest = max(self._ancestry.end, *(source.cap for source in sources))
        self._heads = with_room(with_room(self._heads, 0, room), 1, beam * (longest + 1))
        kinds = [torch.tensor([ANY, *reversed(source.kinds)]) for source in sources]
        padded = upload(pad_sequence(kinds, batch_first=True), device)
        self._kinds_left = with_room(with_room(self._kinds_left, 0, room), 1, padded.size(1))
        self._kinds_left[len(self._left) - len(kinds) : len(self._left), : padded.size(1)] = padded

    def restrict(self, log_probs: Tensor, rows: slice) -> None:
        left = self._left[rows]
        if self._unfit.numel():
            leaves = log_probs[:, :, self._leaves]
            fit = leaves + F.embedding(self._kinds_left[rows].gather(1, left[:, 0].clamp_min(0)), self._unfit)
            leaves.copy_(fit.add_(leaves.logsumexp(2, keepdim=True) - fit.logsumexp(2, keepdim=True)))
        may_close = left[:, 2] == self._run  # otherwise the innermost bracket is still empty
        which = left[:, 0].clamp(0, 1) + left.amin(1).clamp_(0, 1)
        which = (self._head[rows] % self._kinds * may_close).add_(which, alpha=self._kinds)
        log_probs[:, :, : self._bias.size(1)] += F.embedding(which, self._bias)

    def advance(self, parents: Tensor, symbols: Tensor) -> None:
        self._left = self._left.gather(2, parents[:, None].expand(-1, 3, -1))
        self._left.transpose(1, 2).sub_(F.embedding(symbols, self._spent))
        self._left[:, 2].clamp_max_(self._run)
        head = self._head.gather(1, parents)
        # The slot of the next head. That of a finished row, whose position does not change, is written again and again.
        slots = self._ancestry.positions * self._ancestry.beam + torch.arange(parents.size(1), device=parents.device)
        heads = self._heads[: len(head)].scatter_(1, slots, head)
        outer = heads.gather(1, head // self._kinds)
        inner = (slots * self._kinds).add_(symbols).sub_(self._openers.start - 1)
        head = torch.where(symbols < self._openers.start, head, inner)
        self._head = torch.where(symbols < self._closers.start, head, outer)

    def leave(self, removal: Removal) -> None:
        removal.move(self._heads, self._kinds_left)
        self._left, self._head = map(removal.keep, (self._left, self._head))


LAST = "\U0010ffff"  # sorts after every text


class SubwordIndex:
    """Index of a vocabulary's subwords by spelling."""

    def __init__(self, spellings: Sequence[str]) -> None:
        """Index symbols by `spellings`, one per id; symbols with an empty spelling are skipped."""
        found = sorted((spelling, index) for index, spelling in enumerate(spellings) if spelling)
        self._texts = [spelling for spelling, _ in found]
        self._ids = [index for _, index in found]
        self._longest = max(map(len, self._texts), default=0)

    def steps(self, text: str) -> list[dict[int, int]] | None:
        """Return, for each position in `text`, the possible next symbols, mapped to the positions they lead to.

        A symbol that extends beyond the text leads to its end, as every path does. Return None if there is no path.
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
        """Return the symbols with `first` <= spelling < `last`."""
        return self._ids[bisect_left(self._texts, first) : bisect_left(self._texts, last)]


class PrefixConstraint(Constraint):
    """Outputs begin with their source's prefix, if any; sources without one cost nothing."""

    def __init__(self, vocabulary: Vocabulary, ancestry: Ancestry) -> None:
        self._vocabulary, self._device = vocabulary, ancestry.rows.device
        # An automaton per row: for each state except the final one, its transitions to other non-final states, and a
        # tensor of all allowed symbols.
        self._plans: list[list[tuple[Mapping[int, int], Tensor]]] = []
        self._unscored = 0  # states in which the only symbol counts as certain
        self._states: NDArray[np.int64] = np.empty((0, ancestry.beam), dtype=np.int64)  # -1: past the prefix

    def admit(self, sources: Sequence[Source]) -> None:
        plans = list(map(self._plan, sources))
        self._plans += plans
        states = np.array([[0 if plan else -1] for plan in plans]).repeat(self._states.shape[1], axis=1)
        self._states = np.concatenate((self._states, states))

    @cached_property
    def _index(self) -> SubwordIndex:
        return SubwordIndex(self._vocabulary.spellings())

    def _plan(self, source: Source) -> list[tuple[Mapping[int, int], Tensor]]:
        if source.prefix is None and not source.first:
            return []
        prefix = source.prefix or Prefix([], "", [])
        spelled = self._index.steps(prefix.rest) if prefix.rest else []
        ids = [*source.first, *prefix.ids] + (prefix.rest_ids if spelled is None else [])
        steps: list[Mapping[int, int]] = [{index: at + 1} for at, index in enumerate(ids)]
        steps += [{index: len(ids) + end for index, end in step.items()} for step in spelled or []]
        self._unscored = len(source.first)
        ends = [{index: state for index, state in step.items() if state < len(steps)} for step in steps]
        return [(end, torch.tensor(list(step), device=self._device)) for end, step in zip(ends, steps, strict=True)]

    def restrict(self, log_probs: Tensor, rows: slice) -> None:
        if self._over():
            return
        for row, hypothesis in np.argwhere(self._states[rows] >= 0):
            state = self._states[rows.start + row, hypothesis]
            _, allowed = self._plans[rows.start + row][state]
            kept = log_probs[row, hypothesis, allowed] if state >= self._unscored else 0.0
            log_probs[row, hypothesis] = -torch.inf
            log_probs[row, hypothesis, allowed] = kept

    def advance(self, parents: Tensor, symbols: Tensor) -> None:
        """Advance the automata; a CPU-GPU sync point while any prefix is unfinished."""
        if self._over():
            return
        before = np.take_along_axis(self._states, parents.cpu().numpy(), axis=1)
        for (row, hypothesis), symbol in np.ndenumerate(symbols.cpu().numpy()):
            state = before[row, hypothesis]
            if state >= 0:  # `get` returns -1 past the prefix, and for an empty slot's arbitrary symbol
                before[row, hypothesis] = self._plans[row][state][0].get(int(symbol), -1)
        self._states = before

    def is_on_device(self) -> bool:
        return self._over()

    def least_length(self) -> int | None:
        return 0 if self._over() else None

    def _over(self) -> bool:
        """Return whether all hypotheses are past their prefixes, as they mostly are."""
        return bool(self._states.max(initial=-1) < 0)

    def leave(self, removal: Removal) -> None:
        self._states = removal.keep(self._states)
        for hole, last in zip(removal.holes, removal.last, strict=True):
            self._plans[hole] = self._plans[last]
        del self._plans[removal.count :]
