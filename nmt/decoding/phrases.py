"""Lexically constrained beam search by vectorised dynamic beam allocation: outputs contain given phrases.

As in Post and Vilar (2018), each hypothesis may also be extended by symbols that continue a missing phrase, and the
beam is divided among hypotheses of different progress, because those that lack phrases tend to be more probable. Their
banks count symbols, so there are often more banks than the beam has slots. We use levels, which count whole phrases,
including an unfinished one. Each level keeps its best hypothesis and the one with the most progress. If these exceed
the beam, the levels closest to the progress expected at this output length win, so that phrases do not all come first.

An Aho-Corasick automaton (1975) finds phrases symbol by symbol. It has two initial states, because the symbol before a
phrase determines whether a word may begin there. Shapes: r rows with phrases, k hypotheses per row, g phrases, s
states, e outgoing symbols per state, m candidates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from nmt.decoding.beam import best_extensions
from nmt.decoding.constraints import Candidates, Constraint, forbid
from nmt.decoding.engine import Required, Source
from nmt.model.cache import Ancestry, Removal, upload
from nmt.text.vocabulary import EOS, Vocabulary

FAR = 1 << 14  # symbols left in a phrase that has not begun
WITHIN, OPEN = 0, 1  # initial states: within a word, or where a word may begin


class Automaton:
    """Aho-Corasick automaton that finds one source's phrases in an output."""

    def __init__(self, wanted: Sequence[Required], opens: Sequence[bool], closes: Sequence[bool]) -> None:
        """Build the automaton.

        `opens` says for each symbol whether a word may begin after it, `closes` whether a word ends before it.
        """
        self._opens, self._closes = opens, closes
        count = len(wanted)
        self.next: list[dict[int, int]] = [{}, {}]
        # By state, for each phrase: symbols left, whether it ends, and whether it ends if the word ends there too.
        self.left = [np.full(count, FAR), np.full(count, FAR)]
        self.ends = [np.zeros(count, dtype=bool), np.zeros(count, dtype=bool)]
        self.ends_if_closed = [np.zeros(count, dtype=bool), np.zeros(count, dtype=bool)]
        for index, phrase in enumerate(wanted):
            for spelling in phrase.spellings:
                for start in (OPEN,) if spelling.begins_word else (WITHIN, OPEN):
                    self._insert(start, index, spelling.ids, spelling.ends_word)
        self._link()

    def _insert(self, state: int, index: int, ids: Sequence[int], ends_word: bool) -> None:
        for left, symbol in zip(range(len(ids) - 1, -1, -1), ids, strict=True):
            if symbol not in self.next[state]:
                self.next[state][symbol] = len(self.next)
                self.next.append({})
                for table in (self.left, self.ends, self.ends_if_closed):
                    table.append(np.full_like(table[0], FAR if table is self.left else False))
            state = self.next[state][symbol]
            self.left[state][index] = min(left, self.left[state][index])
        (self.ends_if_closed if ends_word else self.ends)[state][index] = True

    def _link(self) -> None:
        """Merge into each state its failure link: the longest proper suffix that is a prefix of a phrase."""
        queue = [(self._start(symbol), state) for start in (WITHIN, OPEN) for symbol, state in self.next[start].items()]
        for fallback, state in queue:  # breadth-first: the loop extends the queue
            onwards = self.next[state]
            queue += [
                (self.next[fallback].get(symbol, self._start(symbol)), following)
                for symbol, following in onwards.items()
            ]
            self.next[state] = {**self.next[fallback], **onwards}
            self.left[state] = np.minimum(self.left[state], self.left[fallback])
            self.ends[state] |= self.ends[fallback]
            self.ends_if_closed[state] |= self.ends_if_closed[fallback]

    def count(self, ids: Sequence[int]) -> NDArray[np.int64]:
        """Count each phrase's occurrences in a complete output."""
        state, found = OPEN, np.zeros(len(self.left[OPEN]), dtype=np.int64)
        for symbol, following in zip(ids, [*ids[1:], EOS], strict=True):
            state = self.next[state].get(symbol, self._start(symbol))
            found += self.ends[state] | (self.ends_if_closed[state] & self._closes[following])
        return found

    def _start(self, symbol: int) -> int:
        return OPEN if self._opens[symbol] else WITHIN


FORCED = 4  # upper bound on candidates per hypothesis that continue missing phrases


class _Tables(NamedTuple):
    """Padded tables of each row's automaton and required phrases, and whether it has a complete output."""

    symbols: Tensor  # (r, s, e): outgoing symbols, or -1
    states: Tensor  # (r, s, e): states that they lead to
    left: Tensor  # (r, s, g): symbols left in a phrase, or FAR
    ends: Tensor  # (r, s, g): 1 where a phrase ends
    ends_if_closed: Tensor  # (r, s, g): 1 where a phrase ends if the next symbol ends the word
    times: Tensor  # (r, g): required occurrences of a phrase
    most: Tensor  # (r, g): maximum occurrences, not counting those inside other phrases
    inner: Tensor  # (r, g, g): occurrences of the second phrase inside the first
    lengths: Tensor  # (r, g): symbols in a phrase's longest spelling
    whole: Tensor  # (r, 1): symbols in all required phrases
    steps: Tensor  # (r, 1): step by which all phrases should have occurred
    caps: Tensor  # (r, 1): maximum output length
    ended: Tensor  # (r, 1): 1 once a complete output has been found


_FILL = (-1, 0, FAR, 0, 0, 0, FAR, 0, 0, 0, 0, 0, 0)  # padding value of each table


def _tables_of(source: Source, opens: Sequence[bool], closes: Sequence[bool]) -> list[Tensor]:
    """Return the fields of `_Tables` for one row, in order, as tensors on the host."""
    found, wanted = Automaton(source.required, opens, closes), source.required
    width = max(map(len, found.next))
    symbols, states = np.full((2, len(found.next), width), -1)
    for state, onwards in enumerate(found.next):
        symbols[state, : len(onwards)], states[state, : len(onwards)] = list(onwards), list(onwards.values())
    lengths = [max(len(spelling.ids) for spelling in phrase.spellings) for phrase in wanted]
    exactly = np.array([phrase.exactly for phrase in wanted])
    inner = np.array([found.count(phrase.spellings[0].ids) for phrase in wanted]) * np.outer(exactly, exactly)
    np.fill_diagonal(inner, 0)
    apart = np.array([phrase.times for phrase in wanted])
    times = apart + apart @ inner
    whole = int(np.dot(lengths, times))
    steps = max(1, min(len(source.ids), source.cap - whole - 2))
    of_states = (symbols, states.clip(0), found.left, found.ends, found.ends_if_closed)
    of_phrases = (times, np.where(exactly, apart, FAR), inner, lengths)
    return [
        torch.as_tensor(np.array(each)).long()[None]
        for each in (*of_states, *of_phrases, [whole], [steps], [source.cap], [0])
    ]


def _stacked(parts: Sequence[Tensor], fill: int) -> Tensor:
    """Concatenate tensors along their rows, padding all other dimensions with `fill`."""
    shape = [max(sizes) for sizes in zip(*(part.shape[1:] for part in parts), strict=True)]
    out = parts[0].new_full((sum(map(len, parts)), *shape), fill)
    for part, place in zip(parts, out.split(list(map(len, parts))), strict=True):
        place[(slice(None), *map(slice, part.shape[1:]))] = part
    return out


def _at(table: Tensor, states: Tensor) -> Tensor:
    """Gather (r, m, …) from a table (r, s, …) at states (r, m)."""
    return table[torch.arange(len(table), device=table.device)[:, None], states]


class _Reached(NamedTuple):
    """Progress of hypotheses: tensors (r, m) unless noted."""

    states: Tensor  # of the automaton
    met: Tensor  # (r, m, g): occurrences of each phrase
    progress: Tensor  # symbols of required phrases so far
    level: Tensor  # `progress` with an unfinished phrase counted as complete

    def of(self, hypotheses: Tensor) -> _Reached:
        """Gather `hypotheses` (r, m), possibly repeated."""
        return _Reached(*(_at(each, hypotheses) for each in self))


class PhraseConstraint(Constraint):
    """Outputs contain their source's phrases; sources without phrases cost nothing."""

    def __init__(self, vocabulary: Vocabulary, ancestry: Ancestry) -> None:
        self._ancestry, self._beam, self._device = ancestry, ancestry.beam, ancestry.rows.device
        # For each symbol, whether a word may begin after it, and whether a word ends before it.
        self._ends = vocabulary.word_ends()
        self._opens, self._closes = (torch.tensor(each, device=self._device) for each in self._ends)
        self._rows = np.empty(0, dtype=np.int64)  # rows with phrases; the fields below cover only these
        self._tables: _Tables
        self._reached: _Reached

    def admit(self, sources: Sequence[Source]) -> None:
        first = self._ancestry.count - len(sources)
        rows = [row for row, source in enumerate(sources, first) if source.required]
        if not rows:
            return
        made = [_tables_of(source, *self._ends) for source in sources if source.required]
        columns = map(_stacked, zip(*made, strict=True), _FILL)
        tables = _Tables(*(column.to(self._device) for column in columns))
        zeros = torch.zeros((len(rows), self._beam), dtype=torch.int64, device=self._device)
        nothing = zeros[:, :, None].expand(-1, -1, tables.times.size(1))
        reached = _Reached(zeros + OPEN, nothing, zeros, zeros)
        if len(self._rows):
            tables = _Tables(*map(_stacked, zip(self._tables, tables, strict=True), _FILL))
            reached = _Reached(*(_stacked(pair, 0) for pair in zip(self._reached, reached, strict=True)))
        self._tables, self._reached = tables, reached
        self._rows = np.append(self._rows, rows)

    def choose(self, log_probs: Tensor, alive: Tensor, rows: slice, found: Candidates) -> Candidates:
        if not len(self._rows):
            return found
        start, stop, _ = rows.indices(self._ancestry.count)
        own = np.flatnonzero((start <= self._rows) & (self._rows < stop))
        index = upload(own, self._device)
        at = upload(self._rows[own] - start, self._device)
        lacking = (0, 2 * self._beam - found.totals.size(1))  # padding columns
        found = Candidates(
            *(F.pad(each, lacking, value=fill) for each, fill in zip(found, (-math.inf, 0, 0), strict=True))
        )
        if not len(own):
            return found
        chosen = self._choose(log_probs[at], alive[at], index, self._ancestry.positions[rows][at] + 1)
        for each, ours in zip(found, chosen, strict=True):
            each[at] = ours
        return found

    def _choose(self, log_probs: Tensor, alive: Tensor, own: Tensor, steps: Tensor) -> Candidates:
        """Return (r, 2k) candidates for `own` rows at `steps` (r, 1): first those that end, then the others."""
        tables = _Tables(*(each[own] for each in self._tables))
        reached = _Reached(*(each[own] for each in self._reached))
        ended = tables.ended.bool()
        endings = alive + log_probs[:, :, EOS]
        at_end = reached.met + _at(tables.ends_if_closed, reached.states)
        endings = endings.masked_fill((at_end < tables.times[:, None]).any(2), -math.inf)
        log_probs[:, :, EOS] = -math.inf
        self._forbid_surplus(log_probs, tables, reached)

        totals, parents, symbols = self._candidates(log_probs, alive, tables, reached)
        before = reached.of(parents)
        new = self._extended(tables, before, symbols)
        lacks = new.progress < tables.whole
        # Incomplete hypotheses are dropped once a complete output has been found and all phrases had time to occur.
        late = ended & (steps > tables.steps + tables.whole)
        totals = totals.masked_fill(lacks & late, -math.inf)
        rest = totals.masked_fill(self._is_too_much(tables, before, new), -math.inf)
        nothing_left = torch.cat((rest, endings), 1).isneginf().all(1, keepdim=True)
        totals = torch.where(nothing_left, totals, rest)

        # A hypothesis may end if it is among the best `beam` of those that lack nothing.
        better = (totals[:, None] > endings[:, :, None]) & ~lacks[:, None]
        endings = endings.masked_fill(better.sum(2) >= self._beam, -math.inf)
        hypotheses = torch.arange(self._beam, device=alive.device).expand_as(endings)
        order = _order(totals, new, tables, steps, self._beam).topk(self._beam, largest=False).indices
        ending = (endings, hypotheses, torch.full_like(hypotheses, EOS))
        going = (each.gather(1, order) for each in (totals, parents, symbols))
        found = Candidates(*(torch.cat(pair, 1) for pair in zip(ending, going, strict=True)))

        # At the cap all hypotheses end; incomplete ones count only if there is no complete output.
        at_cap = steps.eq(tables.caps)
        complete = F.pad(~lacks.gather(1, order), (self._beam, 0), value=True) & found.totals.gt(-math.inf)
        ended |= (complete & (at_cap | (found.symbols == EOS))).any(1, keepdim=True)
        self._tables.ended[own] = ended.long()
        kept = found.totals.masked_fill(~complete & ended, -math.inf)
        by_total = kept.argsort(dim=1, descending=True, stable=True)
        index = torch.where(at_cap, by_total, torch.arange(2 * self._beam, device=alive.device))
        totals = torch.where(at_cap, kept, found.totals)
        return Candidates(totals.gather(1, index), found.parents.gather(1, index), found.symbols.gather(1, index))

    def _forbid_surplus(self, log_probs: Tensor, tables: _Tables, reached: _Reached) -> None:
        """Set symbols that make a phrase occur too often to -inf in log_probs (r, k, vocabulary), in place.

        If a prefix leaves no other symbol, they stay allowed. `</s>` is -inf already.
        """
        symbols = _at(tables.symbols, reached.states).clamp_min(0)  # (r, k, e)
        hypotheses = torch.arange(symbols.size(1), device=symbols.device)[None, :, None].expand_as(symbols)
        before = reached.of(hypotheses.flatten(1))
        new = self._extended(tables, before, symbols.flatten(1))
        forbid(log_probs, symbols, self._is_too_much(tables, before, new).view_as(symbols))

    def _candidates(self, log_probs: Tensor, alive: Tensor, tables: _Tables, reached: _Reached) -> Candidates:
        """Return (r, m) candidates: the best extensions of each hypothesis and those that continue missing phrases."""
        r, k, _ = log_probs.shape
        symbols, states = (_at(table, reached.states) for table in (tables.symbols, tables.states))  # (r, k, e)
        lacking = (reached.met < tables.times[:, None])[:, :, None]  # (r, k, 1, g)
        left = tables.left[torch.arange(r, device=alive.device)[:, None, None], states]  # (r, k, e, g)
        leads = ((left < FAR) & lacking).any(3) & symbols.ge(0)
        forced = log_probs.gather(2, symbols.clamp_min(0)).masked_fill_(~leads, -math.inf)
        # Prefer symbols that continue a phrase to those that begin one.
        goes_on = ((left < tables.lengths[:, None, None] - 1) & lacking).any(3)
        best = (forced + goes_on * 1e4).topk(min(FORCED, forced.size(2))).indices
        forced, symbols = forced.gather(2, best), symbols.gather(2, best)

        # Where a phrase is complete once its word ends, add the best symbol that ends the word.
        waits = (_at(tables.ends_if_closed, reached.states).gt(0) & lacking[:, :, 0]).any(2).flatten()
        closing = log_probs.new_full((r * k,), -math.inf)
        closer = torch.zeros_like(closing, dtype=torch.int64)
        if len(waiting := waits.nonzero()[:, 0]):  # a CPU-GPU sync point
            within = log_probs.view(r * k, -1)[waiting, : len(self._closes)]
            closing[waiting], closer[waiting] = within.masked_fill_(~self._closes, -math.inf).max(1)
        closing, closer = closing.view(r, k, 1), closer.view(r, k, 1)
        closing = closing.masked_fill((closer.eq(symbols) & forced.gt(-math.inf)).any(2, keepdim=True), -math.inf)
        forced, symbols = torch.cat((forced, closing), 2), torch.cat((symbols, closer), 2)

        best, _, free = (
            each.view(r, k, k) for each in best_extensions(log_probs.view(r * k, 1, -1), alive.new_zeros(r * k, 1), k)
        )
        # Where all log-probabilities are -inf, a padding index may have been chosen.
        free = free.clamp_max(len(self._closes) - 1)
        twice = (free[:, :, :, None].eq(symbols[:, :, None]) & forced[:, :, None].gt(-math.inf)).any(3)
        totals = torch.cat((best.masked_fill(twice, -math.inf), forced), 2) + alive[:, :, None]
        symbols = torch.cat((free, symbols.clamp_min(0)), 2)
        parents = torch.arange(k, device=alive.device)[:, None].expand_as(symbols[0]).expand_as(symbols)
        return Candidates(totals.flatten(1), parents.flatten(1), symbols.flatten(1))

    def _extended(self, tables: _Tables, reached: _Reached, symbols: Tensor) -> _Reached:
        """Return the progress of hypotheses (r, m) after extending them by `symbols` (r, m)."""
        leads = _at(tables.symbols, reached.states).eq(symbols[:, :, None])
        onwards = (_at(tables.states, reached.states) * leads).sum(2)
        states = torch.where(leads.any(2), onwards, self._opens[symbols].long())
        closed = _at(tables.ends_if_closed, reached.states) * self._closes[symbols][:, :, None]
        met = reached.met + closed + _at(tables.ends, states)
        lengths, times = tables.lengths[:, None], tables.times[:, None]
        there = (met.minimum(times) * lengths).sum(2)
        under_way = (lengths - _at(tables.left, states)).clamp_min(0) * (met < times)
        most, which = under_way.max(2)
        level = there + lengths.expand_as(met).gather(2, which[:, :, None])[:, :, 0] * most.gt(0)
        return _Reached(states, met, there + most, level)

    @staticmethod
    def _is_too_much(tables: _Tables, before: _Reached, reached: _Reached) -> Tensor:
        """Return (r, m), whether a phrase occurs too often, or would if the word ended, with no other phrase under way.

        Surplus occurrences that were already in `before`, as in a prefix, do not count.
        """
        times = tables.times[:, None]
        left = _at(tables.left, reached.states)
        under_way = (left < FAR) & (reached.met < times)
        # float: CUDA has no integer matmul
        others = (reached.met.minimum(times) + under_way).float() @ tables.inner.float()
        most = (tables.most[:, None] + others).maximum(before.met)
        again = (_at(tables.ends_if_closed, reached.states) + reached.met > most).any(2)
        leads = (under_way & (left > 0)).any(2)
        return (reached.met > most).any(2) | (again & ~leads)

    def chosen_rows(self) -> Sequence[int]:
        return self._rows.tolist()

    def horizons(self, caps: Tensor, lengths: Tensor) -> Tensor:
        """Limit them to `lengths` plus all phrases; else incomplete hypotheses look promising up to the cap."""
        if not len(self._rows):
            return caps
        rows = upload(self._rows, self._device)
        return caps.index_put((rows,), caps[rows].minimum(lengths[rows] + self._tables.whole + 1))

    def advance(self, parents: Tensor, symbols: Tensor) -> None:
        if not len(self._rows):
            return
        rows = upload(self._rows, self._device)
        self._reached = self._extended(self._tables, self._reached.of(parents[rows]), symbols[rows])

    def leave(self, removal: Removal) -> None:
        if not len(self._rows):
            return
        moved = dict(zip(removal.last, removal.holes, strict=True))
        stays = ~np.isin(self._rows, removal.leaving)
        self._rows = np.array([moved.get(row, row) for row in self._rows[stays].tolist()], dtype=np.int64)
        kept = upload(np.flatnonzero(stays), self._device)
        self._tables = _Tables(*(each[kept] for each in self._tables))
        self._reached = _Reached(*(each[kept] for each in self._reached))


def _order(totals: Tensor, reached: _Reached, tables: _Tables, steps: Tensor, beam: int) -> Tensor:
    """Return (r, m), sort keys of candidates; those with the smallest keys stay alive."""
    wanted = (tables.whole * steps / tables.steps).minimum(tables.whole)
    same = reached.level[:, :, None].eq(reached.level[:, None])  # (r, candidate, other)
    one, other = totals[:, :, None], totals[:, None]
    place = torch.arange(totals.size(1), device=totals.device)
    ahead = (other > one) | (other.eq(one) & (place[None, :] < place[:, None]))  # the first wins a tie
    further = reached.progress[:, None] - reached.progress[:, :, None]
    furthest = ~(same & (further.gt(0) | (further.eq(0) & ahead))).any(2)
    best = ~(same & ahead).any(2)
    distance = (reached.level - wanted).abs() / tables.whole
    rank = ahead.sum(2).float()
    key = torch.where(furthest, distance, torch.where(best, distance + 0.3, rank + 10.0))
    if beam > 1:
        key = torch.where(rank.eq(0), key.clamp_max(0.01), key)
    return key.masked_fill(totals.isneginf(), math.inf)
