"""Constraints on outputs: which symbols may follow each hypothesis of a search.

A constraint is functions over its state, a NamedTuple of tensors with a row for each sentence. The search keeps the
state: it joins the rows of new sentences to it, takes out those that leave, and on a GPU repeats the functions by CUDA
graphs that know where each tensor of the state lies. So a constraint changes nothing but what it returns:

    class Last(NamedTuple):
        symbols: Tensor  # (n, k)

    class NoSymbolTwiceInARow(Constraint[Last]):
        def begin(self, sources: Sequence[Source], end: int) -> Last:
            return Last(torch.full((len(sources), self.beam), PAD, device=self.device))

        def restrict(self, state: Last, positions: Tensor, log_probs: Tensor) -> None:
            log_probs.scatter_(2, state.symbols[:, :, None], -math.inf)

        def advance(self, state: Last, newest: Newest) -> Last:
            return Last(newest.symbols)

A state that remembers more takes it from the hypotheses that are extended: `state.counts.gather(1, newest.parents)`.
All but `PrefixConstraint` are vectorised over all hypotheses of all rows and never make the host wait for the device.
Shapes: n rows, one per sentence, and k hypotheses per row.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from nmt.parsing.linearization import ANY, TreeVocabulary
from nmt.search.sources import Prefix, Source
from nmt.search.state import Newest
from nmt.system.device import upload
from nmt.text.vocabulary import EOS, PAD, Vocabulary

NONE = -1  # padding before the first symbol


S = TypeVar("S", bound=tuple[Any, ...])


class Constraint(Generic[S]):
    """A rule for the outputs of one search; subclasses define the functions over its state S.

    Hypotheses of probability 0 are empty slots: their parents and symbols are arbitrary, and so are results for them.
    """

    padding = 0
    """What fills up the rows of a state where those of others are longer"""
    in_use = False
    """Whether a search uses it, so that it may not change"""

    def __init__(self, beam: int, device: torch.device) -> None:
        """Make the rule for a search with `beam` hypotheses per sentence, on `device`."""
        self.beam, self.device = beam, device

    def __setattr__(self, name: str, value: Any) -> None:
        if self.in_use:  # a repeated step would not see it
            raise AttributeError(f"{type(self).__name__}.{name} belongs in the state that a search keeps")
        super().__setattr__(name, value)

    def begin(self, sources: Sequence[Source], end: int) -> S:
        """Return the state of empty hypotheses, a row for each source; output positions are less than `end`."""
        raise NotImplementedError

    def restrict(self, state: S, positions: Tensor, log_probs: Tensor) -> None:
        """Set forbidden next symbols to -inf in log_probs (n, k, at least vocabulary), in place.

        `positions` (n, 1) are those of the next symbols in their outputs, from 0. The rows may be a part of a search's.
        """
        raise NotImplementedError

    def advance(self, state: S, newest: Newest) -> S:
        """Return the state after the newest symbols, which are the search's own: read them, do not change them.

        Tensors of the state before may be overwritten and returned.
        """
        return state

    def is_on_device(self, state: S) -> bool:
        """Return whether the next `restrict` and `advance` need nothing of the host."""
        return True

    def least_length(self, state: S) -> int | None:
        """Return the least number of symbols before `</s>` if this is all that the constraint now means, else None.

        Then `restrict` and `advance` need not be called.
        """
        return None


MakeConstraint = Callable[[int, torch.device], Constraint[Any]]
"""Make a search's constraint, given its beam and device."""


class Nothing(NamedTuple):
    """The state of a rule that needs none."""


class MinLength(Constraint[Nothing]):
    """Outputs have at least `length` symbols, not counting `</s>`."""

    def __init__(self, length: int, beam: int, device: torch.device) -> None:
        super().__init__(beam, device)
        self._least = length

    def begin(self, sources: Sequence[Source], end: int) -> Nothing:
        return Nothing()

    def restrict(self, state: Nothing, positions: Tensor, log_probs: Tensor) -> None:
        is_short = positions < self._least
        log_probs[:, :, EOS].masked_fill_(is_short, -math.inf)

    def least_length(self, state: Nothing) -> int | None:
        return self._least


class Ngrams(NamedTuple):
    """The symbols of each hypothesis so far, as `NoRepeat` needs them."""

    newest: Tensor
    """(n, k, longest) symbols, the newest first, and NONE"""


class NoRepeat(Constraint[Ngrams]):
    """No n-gram of symbols occurs twice in an output (Paulus et al. 2018, section 2.5).

    A repetition is allowed if it is the only choice, as within a prefix that repeats itself.
    """

    padding = NONE

    def __init__(self, n: int, beam: int, device: torch.device) -> None:
        super().__init__(beam, device)
        self._n = n

    def begin(self, sources: Sequence[Source], end: int) -> Ngrams:
        shape = (len(sources), self.beam, end)
        return Ngrams(torch.full(shape, NONE, device=self.device))

    def restrict(self, state: Ngrams, positions: Tensor, log_probs: Tensor) -> None:
        if state.newest.size(2) < self._n:
            return
        # A symbol is forbidden if an earlier occurrence of it follows the same n - 1 symbols.
        grams = state.newest.unfold(2, self._n, 1)  # (n, k, longest - n + 1, n)
        symbols = grams[..., 0]
        newest = state.newest[:, :, None, : self._n - 1]
        follows = grams[..., 1:].eq(newest).all(-1)
        forbid(log_probs, symbols, follows & symbols.ne(NONE))

    def advance(self, state: Ngrams, newest: Newest) -> Ngrams:
        parents = newest.parents[:, :, None].expand_as(state.newest)
        before = state.newest.gather(1, parents)
        symbols = torch.cat((newest.symbols[:, :, None], before), dim=2)
        return Ngrams(symbols[:, :, : newest.end])


def forbid(log_probs: Tensor, symbols: Tensor, where: Tensor) -> None:
    """Set `symbols` (n, k, m), where the mask `where` is true, to -inf in log_probs (n, k, vocabulary), in place.

    A hypothesis with no other choice keeps them.
    """
    symbols = symbols.where(where, PAD)  # padding is never output anyway
    values = log_probs.gather(2, symbols)
    log_probs.scatter_(2, symbols, -math.inf)
    nothing_left = log_probs.amax(2, keepdim=True).isneginf()
    kept = values.masked_fill(~nothing_left, -math.inf)
    log_probs.scatter_(2, symbols, kept)


class OpenTrees(NamedTuple):
    """How far the trees of hypotheses are."""

    left: Tensor
    """(n, 3, k): leaves left, brackets that may still open, and brackets that may open in a row"""
    head: Tensor
    """(n, k): slot · kinds + kind, or 0"""
    heads: Tensor
    """(n, slots): the previous heads"""
    kinds: Tensor
    """(n, words + 1): the next word's kind, by the number of leaves left"""


class TreeConstraint(Constraint[OpenTrees]):
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

    def __init__(self, vocabulary: TreeVocabulary, beam: int, device: torch.device) -> None:
        super().__init__(beam, device)
        self._run = vocabulary.longest_run
        self._leaves = slice(vocabulary.leaves.start, vocabulary.leaves.stop)
        self._openers = slice(vocabulary.openers.start, vocabulary.openers.stop)
        self._closers = slice(vocabulary.closers.start, vocabulary.closers.stop)
        self._kinds = 1 + len(vocabulary.labels)  # kinds of head: no open bracket, or the innermost one's label
        bias, spent = self._tables(len(vocabulary))
        self._bias = bias.to(device)
        self._spent = spent.to(device)
        fits = torch.tensor(vocabulary.fitting, dtype=torch.bool)  # (kinds of words, tags)
        unfit = torch.where(fits, 0.0, -math.inf)
        self._unfit = unfit.to(device)

    def _tables(self, vocabulary: int) -> tuple[Tensor, Tensor]:
        """Return the lookup tables of `restrict` and `advance`.

        The first, (3 · kinds, vocabulary), is 0 for allowed symbols and -inf for others. It covers all kinds of head
        for three cases: no leaf left, leaves left but no bracket may open, a bracket may open. The second,
        (vocabulary, 3), is what each symbol subtracts from `left`; all but opening brackets reset the run.
        """
        allowed = torch.zeros((3, self._kinds, vocabulary), dtype=torch.bool)
        allowed[0, 0, EOS] = True
        allowed[1:, :, self._leaves] = True
        allowed[2, :, self._openers] = True
        allowed[:, 1:, self._closers] = torch.eye(self._kinds - 1, dtype=torch.bool)
        of_others = torch.tensor([0, 0, -self._run])
        spent = of_others.repeat(vocabulary, 1)
        spent[self._leaves, 0] = 1
        spent[self._openers, 1:] = 1
        bias = torch.zeros(allowed.shape).masked_fill_(~allowed, -math.inf)
        return bias.flatten(0, 1), spent

    def begin(self, sources: Sequence[Source], end: int) -> OpenTrees:
        left = []
        kinds = []
        for source in sources:
            brackets = (source.cap - source.words - 1) // 2
            left.append([source.words, brackets, self._run])
            kinds.append(torch.tensor([ANY, *reversed(source.kinds)]))
        longest = max(end, *(source.cap for source in sources))
        none = torch.zeros((len(sources), self.beam), dtype=torch.int64, device=self.device)
        return OpenTrees(
            left=upload(left, self.device)[:, :, None].repeat(1, 1, self.beam),
            head=none,
            heads=none.new_zeros((len(sources), self.beam * (longest + 1))),
            kinds=upload(pad_sequence(kinds, batch_first=True), self.device),
        )

    def restrict(self, state: OpenTrees, positions: Tensor, log_probs: Tensor) -> None:
        left = state.left
        if self._unfit.numel():
            leaves = log_probs[:, :, self._leaves]
            kinds = state.kinds.gather(1, left[:, 0].clamp_min(0))  # (n, k)
            fit = leaves + F.embedding(kinds, self._unfit)
            lost = leaves.logsumexp(2, keepdim=True) - fit.logsumexp(2, keepdim=True)
            leaves.copy_(fit.add_(lost))
        may_close = left[:, 2] == self._run  # otherwise the innermost bracket is still empty
        has_leaves = left[:, 0].clamp(0, 1)
        may_open = left.amin(1).clamp_(0, 1)  # leaves, brackets and the run are all left
        case = has_leaves + may_open  # of three, as in `_tables`
        kind = (state.head % self._kinds) * may_close  # 0, as if no bracket were open, if it may not close
        which = kind.add_(case, alpha=self._kinds)
        bias = F.embedding(which, self._bias)  # (n, k, vocabulary)
        log_probs[:, :, : bias.size(2)] += bias

    def advance(self, state: OpenTrees, newest: Newest) -> OpenTrees:
        parents, symbols, positions, _ = newest
        left = state.left.gather(2, parents[:, None].expand(-1, 3, -1))
        spent = F.embedding(symbols, self._spent)  # (n, k, 3)
        left.transpose(1, 2).sub_(spent)
        left[:, 2].clamp_max_(self._run)
        head = state.head.gather(1, parents)
        # The slot of the next head. That of a finished row, whose position does not change, is written again and again.
        numbers = torch.arange(self.beam, device=self.device)
        slots = positions * self.beam + numbers
        heads = state.heads.scatter_(1, slots, head)
        outer = heads.gather(1, head // self._kinds)
        inner = (slots * self._kinds).add_(symbols).sub_(self._openers.start - 1)
        head = torch.where(symbols < self._openers.start, head, inner)
        head = torch.where(symbols < self._closers.start, head, outer)
        return OpenTrees(left, head, heads, state.kinds)


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
            last = min(len(text), at + self._longest)
            for end in range(at + 1, last + 1):
                if end == len(text) or steps[end]:
                    part = text[at:end]
                    symbols = self._between(part, part + "\0")
                    steps[at].update(dict.fromkeys(symbols, end))
            rest = text[at:]
            beyond = self._between(rest, rest + LAST)
            steps[at].update(dict.fromkeys(beyond, len(text)))
        return steps if not text or steps[0] else None

    def _between(self, first: str, last: str) -> list[int]:
        """Return the symbols with `first` <= spelling < `last`."""
        start = bisect_left(self._texts, first)
        end = bisect_left(self._texts, last)
        return self._ids[start:end]


class Spelling(NamedTuple):
    """An automaton that spells a prefix."""

    states: list[tuple[Mapping[int, int], Tensor]]
    """For each state except the final one, its transitions to other non-final states, and all allowed symbols"""
    unscored: int
    """States at its beginning in which the only symbol counts as certain"""


class InPrefix(NamedTuple):
    """How far hypotheses are in their prefixes, on the host."""

    states: NDArray[np.int64]
    """(n, k), -1 past the prefix"""
    plans: NDArray[Any]
    """(n,), a `Spelling` of each row"""


class PrefixConstraint(Constraint[InPrefix]):
    """Outputs begin with their source's prefix, if any; sources without one cost nothing."""

    def __init__(self, vocabulary: Vocabulary, beam: int, device: torch.device) -> None:
        super().__init__(beam, device)
        self._vocabulary = vocabulary

    def begin(self, sources: Sequence[Source], end: int) -> InPrefix:
        plans = np.empty(len(sources), dtype=object)
        states = np.full((len(sources), self.beam), -1)
        for row, source in enumerate(sources):
            plan = self._plan(source)
            plans[row] = plan
            if plan.states:
                states[row] = 0
        return InPrefix(states, plans)

    @cached_property
    def _index(self) -> SubwordIndex:
        return SubwordIndex(self._vocabulary.spellings())

    def _plan(self, source: Source) -> Spelling:
        """Return the automaton of a source's first symbols and its prefix; without either, it has no states."""
        if source.prefix is None and not source.first:
            return Spelling([], 0)
        prefix = source.prefix or Prefix([], "", [])
        spelled = self._index.steps(prefix.rest) if prefix.rest else []
        ids = [*source.first, *prefix.ids]
        if spelled is None:  # no subwords spell it
            ids += prefix.rest_ids
        steps = [{index: at + 1} for at, index in enumerate(ids)]  # by state: symbols, and the states they lead to
        for step in spelled or []:
            steps.append({index: len(ids) + end for index, end in step.items()})
        states: list[tuple[Mapping[int, int], Tensor]] = []
        for step in steps:
            # Symbols that lead past the prefix are left out, as `advance` expects.
            following = {index: state for index, state in step.items() if state < len(steps)}
            allowed = torch.tensor(list(step), device=self.device)
            states.append((following, allowed))
        return Spelling(states, len(source.first))

    def restrict(self, state: InPrefix, positions: Tensor, log_probs: Tensor) -> None:
        for row, hypothesis in np.argwhere(state.states >= 0):
            at = state.states[row, hypothesis]
            plan: Spelling = state.plans[row]
            _, allowed = plan.states[at]
            kept = log_probs[row, hypothesis, allowed] if at >= plan.unscored else 0.0
            log_probs[row, hypothesis] = -torch.inf
            log_probs[row, hypothesis, allowed] = kept

    def advance(self, state: InPrefix, newest: Newest) -> InPrefix:
        """Advance the automata; a CPU-GPU sync point while any prefix is unfinished."""
        if self.is_on_device(state):
            return state
        parents = newest.parents.cpu().numpy()
        symbols = newest.symbols.cpu().numpy()
        states = np.take_along_axis(state.states, parents, axis=1)
        for (row, hypothesis), symbol in np.ndenumerate(symbols):
            at = states[row, hypothesis]
            if at >= 0:  # `get` returns -1 past the prefix, and for an empty slot's arbitrary symbol
                following, _ = state.plans[row].states[at]  # type: ignore[attr-defined]
                states[row, hypothesis] = following.get(int(symbol), -1)
        return InPrefix(states, state.plans)

    def is_on_device(self, state: InPrefix) -> bool:
        """Return whether all hypotheses are past their prefixes, as they mostly are."""
        return bool(state.states.max(initial=-1) < 0)

    def least_length(self, state: InPrefix) -> int | None:
        return 0 if self.is_on_device(state) else None
