"""Beam search (section 6.1), fast: for any number of sentences that come and go.

The rules: of the 2 · beam best extensions of the alive hypotheses, those that end join the finished ones if they are
among the best `beam`, and the best `beam` of the others stay alive. At most `beam` finished hypotheses are kept.
Finished scores are log-probability / lp(|Y|) with lp(n) = ((5 + n) / 6)^α, where |Y| counts `</s>`. A sentence stops
once no alive hypothesis can beat its finished ones: the worst wanted score ≥ best alive log-probability / lp(cap). At
the cap, alive hypotheses compete length-normalised. A beam of 1 is greedy search, which stops at the first `</s>`.
Before `min_length` symbols `</s>` is impossible.

A sentence that is done leaves the batch and another takes its place, so short sentences never wait for long ones and
the matrices stay full. All hypotheses of all sentences go through a step together; nothing in it is done hypothesis by
hypothesis.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.data.batch import pad_ids
from nmt.decoding.constraints import Candidates, MakeConstraint
from nmt.decoding.engine import Hypothesis, Pool, Source, SourceQueue
from nmt.model.cache import Ancestry, Download, KVCache, Removal, upload, with_room
from nmt.model.functional import CHUNK_LOGITS
from nmt.model.transformer import Transformer
from nmt.native import functions_for
from nmt.recipe import Decoding
from nmt.text.vocabulary import BOS, EOS

REFILL = 8  # sentences are admitted once an 8th of the batch is empty
BLOCK = 64  # values of which only the largest is compared at first
HELD = 4096  # tokens of sources and outputs that are annotated together
AT_ONCE = 512  # symbols; PyTorch compares a vocabulary this small, such as a parser's, faster whole


Found = tuple[Source, list[Hypothesis]]


def length_penalty(length: Tensor, alpha: float) -> Tensor:
    """Return lp = ((5 + length) / 6)^α (Wu et al. 2016, equation 14); length counts `</s>`."""
    return ((5.0 + length) / 6.0) ** alpha


class SearchModels:
    """Models prepared for inference, with the settings of their searches."""

    models: Sequence[Transformer]
    logits: Sequence[nn.Module]
    """The output layer of each model: logits of its states."""
    vocabulary: int
    device: torch.device
    decoding: Decoding
    constraints: Sequence[MakeConstraint]
    annotate: Callable[[list[Found]], list[Found]] | None
    """Adds alignments and log-probabilities to hypotheses."""
    batch_tokens: int
    say: Callable[[str], None]

    def shrink(self, share: float) -> None:
        """Reduce the batch of later searches to this share, because memory ran out; report it the first time."""
        self.batch_tokens = max(1, int(self.batch_tokens * share))
        self.say("out of memory: the search continues with smaller batches; a smaller --batch-tokens avoids this")
        self.say = lambda line: None


class Beams(NamedTuple):
    """The hypotheses of the sentences under way, alive and finished; each sentence is a row of every tensor.

    A link is parent · vocabulary + symbol; with the links of the positions before it, it is a hypothesis.
    """

    caps: Tensor  # (n, 1): most symbols of an output
    symbols: Tensor  # (n, k): the newest of each alive hypothesis
    parents: Tensor  # (n, k): its hypothesis in the step before
    totals: Tensor  # (n, k): its log-probability; -inf where there is none
    ends: Tensor  # (n, k): the last link of each finished hypothesis
    positions: Tensor  # (n, k): the position of that link
    scores: Tensor  # (n, k): its score; -inf where there is none
    keys: Tensor  # (n, 1): of the source, in samples


class Search:
    """One beam search: the sentences under way and the models' caches of them.

    `sampling.Sampling` overrides how hypotheses are extended.
    """

    def __init__(self, engine: SearchModels, beam: int, n_best: int) -> None:
        self._engine, self._beam, self._n_best = engine, beam, n_best
        self._batch_tokens = engine.batch_tokens
        self._again = Pool()  # sources that were under way when memory ran out
        self._found: list[Found] = []  # not yet yielded
        self._starved = False  # whether the queue had nothing when it was last asked
        self._begin()

    def _begin(self) -> None:
        """Empty the batch."""
        engine, device = self._engine, self._engine.device
        windows = [model.config.attention_window for model in engine.models]
        widest = None if None in windows else max(window for window in windows if window is not None)
        self._ancestry = Ancestry(self._beam, device, widest)
        self._caches = [KVCache(self._ancestry, window) for window in windows]
        self._rules = [make(self._ancestry) for make in engine.constraints]
        self._beams = Search._empty(self, [])  # of no rows, in samples too
        self._links = self._beams.ends.new_zeros((0, 16, self._beam))  # (rows, positions, k): of alive hypotheses
        self._sources: NDArray[Any] = np.empty(0, dtype=object)  # (n,)
        self._caps = np.empty(0, dtype=np.int64)  # (n,): of the sources
        # Of the step before: which rows are finished, and the ancestry's `seen`.
        self._unread: Download | None = None
        self._held: list[Source] = []

    def run(self, queue: SourceQueue) -> Generator[tuple[int, list[Hypothesis]], None, None]:
        """Search until the queue ends; if the GPU's memory runs out, continue with a batch half as large."""
        while True:
            yield from self._release()
            try:
                self._admit(queue)
                if not self._ancestry.count:
                    return
                self._found += self._advance()
                continue
            except torch.OutOfMemoryError:
                if len(self._sources) + len(self._held) <= 1:
                    raise
            self._begin_again()  # outside `except`, so the traceback's tensors are freed

    def _release(self) -> list[tuple[int, list[Hypothesis]]]:
        """Return finished sentences; those to be annotated once they fill a batch, or nothing else is left."""
        found = self._found
        if found and self._engine.annotate:
            tokens = sum(len(source.ids) + len(each.ids) for source, hypotheses in found for each in hypotheses)
            if self._ancestry.count and not self._starved and tokens < HELD:
                return []
            found = self._engine.annotate(found)
        self._found = []
        return [(source.number, hypotheses) for source, hypotheses in found]

    def _begin_again(self) -> None:
        """Restart the sources under way with a batch half as large, because a failed step cannot be resumed."""
        self._again.add([*self._sources, *self._held])
        before, self._batch_tokens = self._batch_tokens, max(1, min(self._batch_tokens, self._again.tokens) // 2)
        self._engine.shrink(self._batch_tokens / before)
        self._begin()
        torch.cuda.empty_cache()

    def _admit(self, queue: SourceQueue) -> None:
        """Fill the batch from the queue if enough of it is empty."""
        budget, rows, width = self._batch_tokens, self._ancestry.count, self._caches[0].longest
        room = budget - rows * width
        if rows and room < budget // REFILL:
            return
        if not self._held and self._again:
            self._held = self._again.take(max(room, 1), at_least=int(not rows))
        elif not self._held:
            self._held = queue.take(max(room, 1), wait=not rows)
            self._starved = not self._held
        longest = max((len(source.ids) + 1 for source in self._held), default=0)
        # Sources much longer than those under way would pad all of these to their own length.
        if not self._held or (rows and (rows + len(self._held)) * max(width, longest) > budget):
            return
        self._add(self._held)
        self._held = []

    @torch.inference_mode()
    def _add(self, sources: list[Source]) -> None:
        ids = upload(pad_ids([source.ids for source in sources], after=EOS), self._engine.device)
        self._ancestry.admit(len(sources))
        for model, cache in zip(self._engine.models, self._caches, strict=True):
            model.admit(ids, [len(source.ids) + 1 for source in sources], cache)
        for rule in self._rules:
            rule.admit(sources)
        self._links = with_room(self._links, 0, self._ancestry.count)
        self._beams = Beams(*map(torch.cat, zip(self._beams, self._empty(sources), strict=True)))
        self._caps = np.append(self._caps, [source.cap for source in sources])
        self._sources = np.append(self._sources, np.array(sources, dtype=object))

    def _empty(self, sources: list[Source]) -> Beams:
        """Return one empty hypothesis for each source: all k would begin alike, so only the first of them exists."""
        shape, device = (len(sources), self._beam), self._engine.device
        caps = upload(torch.tensor([source.cap for source in sources], dtype=torch.int64), device)[:, None]
        zeros = torch.zeros(shape, dtype=torch.int64, device=device)
        none = torch.full(shape, -math.inf, device=device)
        return Beams(caps, zeros + BOS, zeros, F.pad(none[:, 1:], (1, 0)), zeros, zeros, none, zeros[:, :1])

    @torch.inference_mode()
    def _advance(self) -> list[Found]:
        """Extend every hypothesis by a symbol; remove the finished sentences from the batch and return them.

        On a GPU the host reads one step late which sentences are finished, while the device computes the next step;
        finished sentences have no hypothesis left to extend. Nothing is read late in a step that brings a sentence to
        its cap, because the model may not have the next position.
        """
        self._ancestry.extend(self._beams.parents)
        symbols = self._beams.symbols
        alive = ~self._beams.totals.isneginf()
        models = zip(self._engine.models, self._caches, strict=True)
        states = [model.step(symbols, cache, alive) for model, cache in models]
        done = self._extend(states)
        late = self._ancestry.late and bool((self._ancestry.lengths < self._caps).all())
        rows: list[int] = []
        if unread := self._unread if late else Download(done, self._ancestry.seen):
            done_before, seen = unread.read()
            rows = done_before.nonzero()[:, 0].tolist()
            if self._ancestry.late:
                self._ancestry.limit(int(seen) + late * self._beam)
        removal = Removal(rows, self._ancestry.count, self._engine.device)
        results = self._remove(removal) if rows else []
        self._unread = Download(removal.keep(done), self._ancestry.seen) if late else None
        self._sources = removal.keep(self._sources)  # last: if memory runs out before, they are searched again
        return results

    def _extend(self, states: list[Tensor]) -> Tensor:
        """Extend every hypothesis, given the states of each model; return (n,), whether a sentence is finished."""
        beams, beam, alpha = self._beams, self._beam, self._engine.decoding.alpha

        # 1. The 2 · beam best extensions of a sentence are its candidates.
        totals, parents, symbols = self._candidates(states)
        links = parents * self._engine.vocabulary + symbols
        positions = self._ancestry.positions
        lengths = positions + 1
        ends = symbols.eq(EOS) | lengths.eq(beams.caps)

        # 2. Candidates that end join the finished hypotheses if they are among the best `beam`.
        scores = (totals / length_penalty(lengths, alpha)).masked_fill(~ends, -math.inf)[:, :beam]
        scores, kept = torch.cat((beams.scores, scores), dim=1).topk(beam)
        finished = torch.cat((beams.ends, links[:, :beam]), dim=1).gather(1, kept)
        finished_at = torch.cat((beams.positions, positions.expand(-1, beam)), dim=1).gather(1, kept)

        # 3. The best `beam` of the others stay alive.
        alive, order = totals.masked_fill(ends, -math.inf).topk(beam)
        parents, symbols = parents.gather(1, order), symbols.gather(1, order)
        self._record(parents, symbols, links.gather(1, order), positions)

        # 4. A hypothesis that cannot get into the n-best list is dropped. Dividing by the largest possible penalty
        # bounds the scores of its descendants (α ≥ 0). Those ranked behind it cannot get there either, unless a rule
        # reorders candidates.
        horizons = beams.caps
        for rule in self._rules:
            horizons = rule.horizons(horizons, lengths)
        hopeless = alive / length_penalty(horizons, alpha) <= scores[:, self._n_best - 1 : self._n_best]
        if chosen := [row for rule in self._rules for row in rule.chosen_rows()]:
            rows = upload(chosen, totals.device)
            hopeless[rows] = hopeless[rows, :1]
        alive = alive.masked_fill_(hopeless, -math.inf)
        self._beams = Beams(beams.caps, symbols, parents, alive, finished, finished_at, scores, beams.keys)
        return alive[:, 0].isneginf()

    def _record(self, parents: Tensor, symbols: Tensor, links: Tensor, positions: Tensor) -> None:
        """Record how the alive hypotheses were extended, (n, k) each, at positions (n, 1)."""
        for rule in self._rules:
            rule.advance(parents, symbols)
        self._links = with_room(self._links, 1, int(self._ancestry.lengths.max()))
        self._links[self._ancestry.rows, positions] = links[:, None]

    def _candidates(self, states: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Return the 2 · beam best extensions of each row (one in greedy search), best first.

        The states of each model are (n, k, d_model), the results (n, 2 · beam): log-probability, parent, symbol.
        """
        found = []
        for part, log_probs in self._allowed(states):
            alive = self._beams.totals[part]
            best = best_extensions(log_probs, alive, 2 * self._beam if self._beam > 1 else 1)
            for rule in self._rules:
                best = rule.choose(log_probs, alive, part, best)
            found.append(best)
        totals, parents, symbols = (torch.cat(parts) for parts in zip(*found, strict=True))
        return totals, parents, symbols.clamp_max_(self._engine.vocabulary - 1)  # where nothing is left to choose

    def _allowed(self, states: list[Tensor]) -> Iterator[tuple[slice, Tensor]]:
        """Yield a few rows at a time with (rows, k, padded vocabulary), log-probabilities of the next symbols."""
        rows = max(1, CHUNK_LOGITS[self._engine.device.type] // (self._beam * self._engine.vocabulary))
        for start in range(0, self._ancestry.count, rows):
            part = slice(start, start + rows)
            logits = (output(x[part]).float() for output, x in zip(self._engine.logits, states, strict=True))
            each = [log_softmax_(of_model, self._engine.vocabulary) for of_model in logits]
            log_probs = each[0] if len(each) == 1 else torch.stack(each).logsumexp(0) - math.log(len(each))
            for rule in self._rules:
                rule.restrict(log_probs, part)
            yield part, log_probs

    def _remove(self, removal: Removal) -> list[Found]:
        """Remove rows from the batch; return their n-best lists, each with its source. One CPU-GPU sync point."""
        beams, rows = self._beams, upload(removal.leaving, self._engine.device)
        longest = int(self._ancestry.lengths[removal.leaving].max())
        ends, positions, scores = (each[rows, : self._n_best] for each in (beams.ends, beams.positions, beams.scores))
        parents = ends // self._engine.vocabulary
        kept = torch.stack([rule.kept_from_repeating(rows, positions, parents) for rule in self._rules]).any(0)
        found = Download(self._links[rows, :longest], ends, positions, scores, kept).read()
        links, *finished = (each.tolist() for each in found)
        results = [
            (source, [self._hypothesis(links_of, *end) for end in zip(*ends, strict=True) if end[2] > -math.inf])
            for source, links_of, *ends in zip(self._sources[removal.leaving], links, *finished, strict=True)
        ]
        for cache in self._caches:
            cache.leave(removal)
        self._ancestry.leave(removal)
        for rule in self._rules:
            rule.leave(removal)
        removal.move(self._links)
        self._beams, self._caps = Beams(*map(removal.keep, self._beams)), removal.keep(self._caps)
        return results

    def _hypothesis(self, links: list[list[int]], end: int, position: int, score: float, kept: bool) -> Hypothesis:
        """Follow the links from the end of a hypothesis back to its beginning."""
        parent, symbol = divmod(end, self._engine.vocabulary)
        ids = [symbol]
        for before in reversed(links[:position]):
            parent, symbol = divmod(before[parent], self._engine.vocabulary)
            ids.append(symbol)
        ids.reverse()
        finished = ids[-1] == EOS
        return Hypothesis(ids[:-1] if finished else ids, score, finished, kept_from_repeating=kept)


def log_softmax_(logits: Tensor, vocabulary: int) -> Tensor:
    """Return log-probabilities of logits (n, k, at least `vocabulary`), which are overwritten.

    Those of padding, unknown and `<s>`, which are never output, and those beyond the vocabulary are -inf; the former
    keep their share of the probability.
    """
    if functions := functions_for(logits):
        n, k, width = logits.shape
        functions.nmt_log_softmax(n * k, width, vocabulary, EOS, logits.data_ptr())
        return logits
    logits[:, :, vocabulary:] = -math.inf
    torch.log_softmax(logits, -1, out=logits)
    logits[:, :, :EOS] = -math.inf  # the control symbols before `</s>`
    return logits


def best_extensions(log_probs: Tensor, alive: Tensor, count: int) -> Candidates:
    """Return the `count` largest of alive (n, k) + log_probs (n, k, vocabulary), (n, count) each.

    A vocabulary larger than AT_ONCE must be a multiple of BLOCK. Where all is -inf, parent and symbol may be any.
    """
    if functions := functions_for(log_probs, alive):
        n, k, width = log_probs.shape
        totals = alive.new_empty((n, count))
        parents, symbols = torch.empty((2, n, count), dtype=torch.int64)
        found = (each.data_ptr() for each in (log_probs, alive, totals, parents, symbols))
        functions.nmt_best_extensions(n, k, width, count, *found)
        return Candidates(totals, parents, symbols)
    return plain_best_extensions(log_probs, alive, count)


def plain_best_extensions(log_probs: Tensor, alive: Tensor, count: int) -> Candidates:
    """Do as `best_extensions` does, by operations of PyTorch.

    Comparing all values at once is slow. The largest values are in the blocks with the largest maxima.
    """
    n, k, vocabulary = log_probs.shape
    if vocabulary <= AT_ONCE:
        best, chosen = (log_probs + alive[:, :, None]).flatten(1).topk(count)
        return Candidates(best, chosen // vocabulary, chosen % vocabulary)
    blocks = vocabulary // BLOCK
    maxima = (log_probs.view(n, k, blocks, BLOCK).amax(3) + alive[:, :, None]).flatten(1)
    block = maxima.topk(min(count, k * blocks)).indices  # (n, c)
    members = log_probs.view(n, -1, BLOCK).gather(1, block[:, :, None].expand(-1, -1, BLOCK))
    best, at = (members + alive.gather(1, block // blocks)[:, :, None]).flatten(1).topk(count)
    chosen = block.gather(1, at // BLOCK) * BLOCK + at % BLOCK
    return Candidates(best, chosen // vocabulary, chosen % vocabulary)
