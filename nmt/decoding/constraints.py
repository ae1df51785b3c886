"""Which symbols may follow each hypothesis of a search.

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
from nmt.model.cache import ROOM, Removal, upload, with_room
from nmt.parsing.linearization import TreeVocabulary
from nmt.text.vocabulary import EOS, PAD, Vocabulary

NONE = -1  # stands before the first symbol


class Candidates(NamedTuple):
    """Extensions of the hypotheses of rows, (n, candidates) each: the best first, and where there are fewer, -inf."""

    totals: Tensor
    """Log-probability."""
    parents: Tensor
    """Which hypothesis of its row it extends."""
    symbols: Tensor
    """By which symbol."""


class Constraint:
    """A rule for outputs, and what it remembers of the hypotheses of one search; it overrides what it needs.

    A hypothesis of probability 0 does not exist: its parent and its symbol may be any, and so may the answer for it.
    """

    def admit(self, sources: Sequence[Source]) -> None:
        """Add rows whose hypotheses are empty."""

    def restrict(self, log_probs: Tensor, rows: slice) -> None:
        """Set to -inf, in place, what must not come next; log_probs (rows, k, vocabulary or more) are of `rows`."""

    def choose(self, log_probs: Tensor, alive: Tensor, rows: slice, found: Candidates) -> Candidates:
        """Return the candidates of `rows`, given those that the search has found: 2k of each row, or one if k is 1.

        The first k that end may join the finished hypotheses; the best k of the others stay alive. `alive` (rows, k)
        has the log-probabilities of the hypotheses. Instead of one candidate there may be two where k is 1.
        """
        return found

    def chosen_rows(self) -> Sequence[int]:
        """Return the rows in which `choose` may prefer a candidate to one that is more probable."""
        return ()

    def horizons(self, caps: Tensor, lengths: Tensor) -> Tensor:
        """(n, 1): the length for which hypotheses that are alive may hope, given their `caps` and `lengths`."""
        return caps

    def advance(self, parents: Tensor, symbols: Tensor) -> None:
        """Extend the hypotheses of its row that `parents` (n, k) names by `symbols` (n, k)."""

    def kept_from_repeating(self, rows: Tensor, positions: Tensor, hypotheses: Tensor) -> Tensor:
        """Did a rule against repetitions forbid what was most probable, up to the extension of a hypothesis?

        (r, m) of `rows` (r,), where each of `hypotheses` (r, m) was extended at its position, one of `positions`.
        """
        return torch.zeros_like(positions, dtype=torch.bool)

    def leave(self, removal: Removal) -> None:
        """Remove rows."""


MakeConstraint = Callable[[int, torch.device], Constraint]
"""Makes a rule of a search from its beam and its device."""


class MinLength(Constraint):
    """No output has fewer symbols than `length`, `</s>` not counted."""

    def __init__(self, length: int, beam: int, device: torch.device) -> None:
        self._least = length
        self._lengths = np.empty(0, dtype=np.int64)

    def admit(self, sources: Sequence[Source]) -> None:
        self._lengths = np.append(self._lengths, np.zeros(len(sources), dtype=np.int64))

    def restrict(self, log_probs: Tensor, rows: slice) -> None:
        early = self._lengths[rows] < self._least
        if early.any():
            log_probs[:, :, EOS].masked_fill_(upload(early, log_probs.device)[:, None], -math.inf)

    def advance(self, parents: Tensor, symbols: Tensor) -> None:
        self._lengths += 1

    def leave(self, removal: Removal) -> None:
        self._lengths = removal.keep(self._lengths)


class NoRepeat(Constraint):
    """No n-gram of symbols comes twice in an output (Paulus et al. 2018, section 2.5).

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
        self._lengths = np.append(self._lengths, np.zeros(len(sources), dtype=np.int64))
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
        self._history = with_room(self._history, 1, int(self._lengths.max()) + 1)
        positions = upload(self._lengths, self._history.device)
        self._history[torch.arange(len(positions), device=self._history.device), positions] = self._acted
        self._acted = self._acted.gather(1, parents)
        self._lengths = self._lengths + 1
        newest = self._newest.gather(1, parents[:, :, None].expand(-1, -1, self._newest.size(2)))
        self._newest = torch.cat((symbols[:, :, None], newest), dim=2)

    def kept_from_repeating(self, rows: Tensor, positions: Tensor, hypotheses: Tensor) -> Tensor:
        return self._history[rows[:, None], positions, hypotheses]

    def leave(self, removal: Removal) -> None:
        removal.move(self._history)
        self._lengths, newest = removal.keep(self._lengths), removal.keep(self._newest)
        self._acted = removal.keep(self._acted)
        self._newest = newest[:, :, : self._lengths.max(initial=0)]


class TreeConstraint(Constraint):
    """Every output is the linear form of a tree over exactly as many words as its source has.

    - A leaf may come only while leaves are left, `</s>` only when none is left and no bracket is open.
    - A bracket may open only while leaves are left, so that something will stand in it, and at most `longest_run` of
      them open in a row. This bounds unary chains, and an output by its words.
    - A bracket may close if it is the innermost open one and not empty.
    - The source's cap has room for (cap - words - 1) / 2 brackets and those that close them; no more are opened.

    Every hypothesis can therefore go on and end: by a leaf while any is left, else by closing what is open, else by
    `</s>`. There is room for all of these.

    The open brackets are a linked list. Each hypothesis has a head, which names the label of the innermost open bracket
    and the place of the head from before that bracket. Its descendants share the rest of the list.
    """

    def __init__(self, vocabulary: TreeVocabulary, beam: int, device: torch.device) -> None:
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
        """What `restrict` and `advance` look up.

        (3 · kinds, vocabulary) is 0 at what may follow, else -inf: for each kind of head where no leaf is left, then
        where leaves are left but no bracket may be opened, then where one may. (vocabulary, 3) is what a symbol takes
        from what is left; one that opens no bracket gives back all that may be opened in a row.
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
