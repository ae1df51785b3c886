"""Beam search (section 6.1) with continuous batching.

Each step takes the 2 · beam best extensions of a sentence's alive hypotheses. Those that end join the finished ones if
they are among the best `beam`; the best `beam` of the others stay alive. At most `beam` finished hypotheses are kept.
Finished scores are log-probability / lp(|Y|) with lp(n) = ((5 + n) / 6)^α, where |Y| counts `</s>`. A sentence stops
once no alive hypothesis can enter its n-best list: the n-th best finished score ≥ best alive log-probability / lp(cap).
At the cap, alive hypotheses compete by length-normalised score. A beam of 1 is greedy search, which stops at the first
`</s>`. `</s>` is forbidden before `min_length` symbols.

When a sentence finishes, another takes its place in the batch, so short sentences never wait for long ones and the
batch stays full. Every step is vectorised over all hypotheses of all sentences.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any
from weakref import proxy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from nmt.compute.beams import Beams, Candidates, length_penalty, record
from nmt.compute.choice import CPU_BEAM, batch_tokens, for_scoring, for_search, search_precision
from nmt.decoding.constraints import MakeConstraint, MinLength
from nmt.decoding.engine import Found, Hypothesis, Pool, Source, SourceQueue
from nmt.decoding.forced import annotate
from nmt.decoding.placement import Placer
from nmt.decoding.sampling import draw, key, random_bits
from nmt.model.batch import pad_ids
from nmt.model.cache import Removal, with_room
from nmt.model.transformer import Transformer
from nmt.recipe import Decoding
from nmt.system.device import Download, available_memory, check_room, upload
from nmt.text.vocabulary import BOS, EOS

REFILL = 8  # refill the batch once 1/8 of it is empty
HELD = 4096  # source and output tokens to collect before annotating


class SearchEngine:
    """`Engine` for one model or an ensemble, whose probabilities are averaged."""

    def __init__(
        self,
        models: Sequence[Transformer],
        decoding: Decoding,
        constraints: Sequence[MakeConstraint] = (),
        say: Callable[[str], None] = lambda line: None,
        annotated: bool = False,
        placer: Callable[[Sequence[Transformer]], Placer] | None = None,
    ) -> None:
        """Prepare the models; the default constraint is `decoding.min_length` alone.

        `placer` makes the object that puts phrases into results. `say` reports a change of precision or batch size, and
        missing C kernels. If `annotated`, hypotheses have alignments and log-probabilities. Raise UserError if the
        machine does not support `decoding.precision` or lacks memory for even one sentence.
        """
        self.decoding, self._say = decoding, say
        scorers = list(map(for_scoring, models))
        self._annotate = partial(annotate, scorers) if annotated else None
        self._placer = placer(scorers) if placer else None
        self.constraints = constraints or [partial(MinLength, decoding.min_length)]
        self.device = models[0].output_embedding.weight.device
        self.vocabulary = len(models[0].output_embedding.weight)
        check_room(  # a bundle may ask for more than any machine has
            4 * decoding.beam * sum(self.vocabulary + model.config.d_model for model in models),
            available_memory(self.device),
            f"decoding.beam: the logits of {decoding.beam} hypotheses over {self.vocabulary:,} symbols",
            "--set decoding.beam=4",
        )
        self.precision = search_precision(decoding.precision, self.device, say)
        self.models, self.logits, self.operations, self.ancestry, self.steps = for_search(models, self.precision, say)
        self.batch_tokens, self._has_shrunk = batch_tokens(decoding, models), False
        self._kept: dict[Any, Search] = {}  # the last search, if the next one may go on with it

    def search(
        self, queue: SourceQueue, n_best: int, sample: bool = False
    ) -> Generator[tuple[int, list[Hypothesis]], None, None]:
        """Search as `Engine.search` does; on a GPU, the next one of its kind finds its memory and its CUDA graphs."""
        kind = n_best, sample
        new = partial(Sampling, self, n_best) if sample else partial(Search, self, self.decoding.beam, n_best)
        search = self._kept.get(kind) or new()
        self._kept.clear()
        yield from search.run(queue)
        if search._ancestry.late:
            self._kept[kind] = search

    def wants_others(self, source: Source, hypotheses: Sequence[Hypothesis]) -> bool:
        """Return whether other hypotheses may serve a source better than its best ones."""
        return self._placer is not None and not any(self._placer.copies(source, each) for each in hypotheses)

    def completes(self, source: Source, hypotheses: Sequence[Hypothesis]) -> bool:
        """Return whether what a search finds for a source is to be completed."""
        needs = self._annotate or source.phrases or source.whole or source.aligned
        return bool(needs) or self.wants_others(source, hypotheses)

    def complete(self, found: list[Found], n_best: int | None) -> tuple[list[Found], list[Source]]:
        """Return completed results, and sources to search again for the others.

        The `n_best` hypotheses of each source get its phrases; None for samples, which get none.
        """
        again: list[Source] = []
        if self._placer and n_best is not None:
            found, again = self._placer.place(found, n_best)
        return self._annotate(found) if self._annotate else found, again

    def shrink(self, factor: float) -> None:
        """Scale the batch size of later searches by `factor` after an out-of-memory error; report it once."""
        self.batch_tokens = max(1, int(self.batch_tokens * factor))
        if not self._has_shrunk:
            self._say("out of memory: the search continues with smaller batches; a smaller --batch-tokens avoids this")
        self._has_shrunk = True


class Search:
    """One beam search: the sentences in progress and the models' caches for them."""

    places = True  # whether results get the phrases of their sources, and C kernels may take several steps
    replaced = ("_beams",)  # as `KVCache.replaced`

    def __init__(self, engine: SearchEngine, beam: int, n_best: int) -> None:
        self._engine: SearchEngine = proxy(engine)  # which may keep this
        self._beam, self._n_best = beam, n_best
        self._batch_tokens = engine.batch_tokens
        self._again = Pool()  # sources in progress when memory ran out
        self._found: list[Found] = []  # finished but not yet yielded
        self._starved = False  # whether the last request to the queue returned nothing
        self._left: tuple[NDArray[Any], Download] | None = None  # from `_remove`, for `_results`
        self._reset()

    def _reset(self) -> None:
        """Start from an empty batch."""
        engine, device = self._engine, self._engine.device
        self._ancestry = engine.ancestry(self._beam, device)
        self._caches = [self._ancestry.cache() for _ in engine.models]
        self._rules = [make(self._ancestry) for make in engine.constraints]
        self._beams = self._empty([])
        self._links = self._beams.ends.new_zeros((0, 16, self._beam))  # (rows, positions, k): links of each step
        self._sources: NDArray[Any] = np.empty(0, dtype=object)  # (n,)
        self._caps = np.empty(0, dtype=np.int64)  # (n,): the caps, on the host
        self._penalties = torch.empty(0, device=device)  # `length_penalty` by length, up to the largest cap
        self._first = 0  # symbols of an output that its length does not count
        self._unread: Download | None = None  # which rows were finished after the previous step, if read late
        self._held: list[Source] = []

    def run(self, queue: SourceQueue) -> Generator[tuple[int, list[Hypothesis]], None, None]:
        """Search until the queue ends; halve the batch size whenever the GPU runs out of memory."""
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
            self._restart()  # outside `except`, so the traceback's tensors are freed

    def _release(self) -> list[tuple[int, list[Hypothesis]]]:
        """Return finished sentences; hold back those to complete until they fill a batch or no other work is left."""
        held, found = list[Found](), list[Found]()
        for source, hypotheses in self._found:
            is_held = hypotheses and self._engine.completes(source, hypotheses)
            (held if is_held else found).append((source, hypotheses))
        tokens = sum(len(source.ids) + len(each.ids) for source, hypotheses in held for each in hypotheses)
        if held and (not self._ancestry.count or self._starved or tokens >= HELD):
            completed, again = self._engine.complete(held, self._n_best if self.places else None)
            found, held = found + completed, []
            self._again.add(again)
        self._found = held
        return [(source.number, hypotheses) for source, hypotheses in found]

    def _restart(self) -> None:
        """Restart the sentences in progress with half the batch size; a failed step cannot be resumed."""
        self._found += self._results()
        self._again.add([*self._sources, *self._held])
        before, self._batch_tokens = self._batch_tokens, max(1, min(self._batch_tokens, self._again.tokens) // 2)
        self._engine.shrink(self._batch_tokens / before)
        self._reset()
        torch.cuda.empty_cache()

    def _admit(self, queue: SourceQueue) -> None:
        """Refill the batch from the queue if enough of it is empty."""
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
        # Much longer sources would pad every sentence in progress to their own length.
        if not self._held or (rows and (rows + len(self._held)) * max(width, longest) > budget):
            return
        self._add(self._held)
        self._held = []

    @torch.inference_mode()
    def _add(self, sources: list[Source]) -> None:
        ids = upload(pad_ids([source.ids for source in sources], after=EOS), self._engine.device)
        lengths = [len(source.ids) + 1 for source in sources]
        self._ancestry.admit(len(sources), lengths, max(source.cap for source in sources))
        for model, cache in zip(self._engine.models, self._caches, strict=True):
            model.admit(ids, lengths, cache)
        for rule in self._rules:
            rule.admit(sources)
        self._links = with_room(self._links, 0, self._ancestry.room)
        self._beams = Beams(*map(torch.cat, zip(self._beams, self._empty(sources), strict=True)))
        self._caps = np.append(self._caps, [source.cap for source in sources])
        size, first = max(int(self._caps.max()), self._ancestry.end + 1) + 1, len(sources[0].first)
        if len(self._penalties) < size or first != self._first:  # the first symbols of another search may be others
            counted = (torch.arange(size, device=self._engine.device) - first).clamp_min(0)
            self._penalties, self._first = length_penalty(counted, self._engine.decoding.alpha), first
        self._sources = np.append(self._sources, np.array(sources, dtype=object))

    def _empty(self, sources: list[Source]) -> Beams:
        """Return initial beams: all k hypotheses of a source would be the same, so only the first is alive."""
        shape, device = (len(sources), self._beam), self._engine.device
        caps = upload(torch.tensor([source.cap for source in sources], dtype=torch.int64), device)[:, None]
        parents, ends, positions = torch.zeros((3, *shape), dtype=torch.int64, device=device)
        none = torch.full(shape, -math.inf, device=device)
        seeds = parents[:, :1]  # which samples alone replace and read
        return Beams(caps, parents + BOS, parents, F.pad(none[:, 1:], (1, 0)), ends, positions, none, seeds)

    @torch.inference_mode()
    def _advance(self) -> list[Found]:
        """Extend every hypothesis; remove finished sentences from the batch and return them.

        On a GPU, the host learns one step late which sentences are finished, while the device computes the next step,
        in which they have no alive hypothesis. There, they leave together once they are an eighth of the batch.
        """
        self._links = with_room(self._links, 1, self._ancestry.end + 1)
        newest, late = Download(self._steps()), self._ancestry.late
        results = self._results()  # while the device computes
        rows = self._ancestry.finished(self._unread if late else newest)
        self._unread = newest if late else None
        if not rows or (late and REFILL * len(rows) < len(self._sources)):
            return results
        if late:
            rows, self._unread = self._ancestry.finished(newest), None
        removal = Removal(rows, self._ancestry.count, self._engine.device)
        self._left = self._remove(removal)
        self._sources = removal.keep(self._sources)  # last: if memory runs out above, all restart
        return results if late and self._ancestry.count else results + self._results()

    def _steps(self) -> Tensor:
        """Extend every hypothesis, in C by several symbols; return what `Ancestry.take` does."""
        steps, leasts = self._engine.steps if self.places else None, [rule.least_length() for rule in self._rules]
        if steps is None or None in leasts or not steps.is_in_c(self._beams.totals.numel()):
            return self._ancestry.take(self._step, (self, *self._caches), self._rules)
        given = self._beams, self._links, self._penalties, self._n_best, max(least or 0 for least in leasts)
        return steps.take(self._ancestry, self._caches[0], *given)

    def _step(self) -> Tensor:
        """Extend every hypothesis by one symbol; return (n,), whether each sentence is finished."""
        symbols, alive = self._beams.symbols, ~self._beams.totals.isneginf()
        self._ancestry.extend(self._beams.parents, alive)
        models = zip(self._engine.models, self._caches, strict=True)
        states = [model.step(symbols, cache, alive) for model, cache in models]
        done = self._extend(states)
        for rule in self._rules:
            rule.advance(self._beams.parents, self._beams.symbols)
        return done

    def _extend(self, states: list[Tensor]) -> Tensor:
        """Extend every hypothesis, given each model's states; return (n,), whether each sentence is finished."""
        self._beams, done = self._engine.operations.choose_(
            *(self._beams, self._candidates(states), self._links, self._ancestry.positions, self._penalties),
            *(self._n_best, self._engine.vocabulary),
        )
        return done

    def _candidates(self, states: list[Tensor]) -> Candidates:
        """Return the 2 · beam best extensions of each row (one in greedy search), best first.

        Each model's states are (n, k, d_model); the returned log-probabilities, parents and symbols are (n, 2 · beam).
        """
        count = 2 * self._beam if self._beam > 1 else 1
        found = [
            self._engine.operations.best_extensions(log_probs, self._beams.totals[part], count)
            for part, log_probs in self._allowed(states)
        ]
        totals, parents, symbols = found[0] if len(found) == 1 else map(torch.cat, zip(*found, strict=True))
        # Where all log-probabilities are -inf, a padding index may have been chosen.
        return Candidates(totals, parents, symbols.clamp_max_(self._engine.vocabulary - 1))

    def _allowed(self, states: list[Tensor]) -> Iterator[tuple[slice, Tensor]]:
        """Yield slices of rows and their log-probabilities (rows, k, padded vocabulary), -inf for forbidden symbols."""
        rows = max(1, self._engine.models[0].operations.chunk_logits // (self._beam * self._engine.vocabulary))
        for start in range(0, self._ancestry.count, rows):
            part = slice(start, start + rows)
            logits = (output(x[part]).float() for output, x in zip(self._engine.logits, states, strict=True))
            each = [self._engine.operations.log_softmax_(of_model, self._engine.vocabulary) for of_model in logits]
            log_probs = each[0] if len(each) == 1 else torch.stack(each).logsumexp(0) - math.log(len(each))
            for rule in self._rules:
                rule.restrict(log_probs, part)
            yield part, log_probs

    def _remove(self, removal: Removal) -> tuple[NDArray[Any], Download]:
        """Remove finished rows; return their sources, and all that tells their hypotheses."""
        beams, rows = self._beams, upload(removal.leaving, self._engine.device)
        longest = int(self._ancestry.lengths[removal.leaving].max())
        ends, positions, scores = (each[rows] for each in (beams.ends, beams.positions, beams.scores))
        left = self._sources[removal.leaving], Download(self._links[rows, :longest], ends, positions, scores)
        for cache in self._caches:
            cache.leave(removal)
        self._ancestry.leave(removal)
        for rule in self._rules:
            rule.leave(removal)
        removal.move(self._links)
        self._beams, self._caps = Beams(*map(removal.keep, self._beams)), removal.keep(self._caps)
        return left

    def _results(self) -> list[Found]:
        """Return the sources that `_remove` removed last, with their hypotheses, best first. A CPU-GPU sync point."""
        if self._left is None:
            return []
        (sources, download), self._left, results = self._left, None, []
        links, *finished = (each.tolist() for each in download.read())
        for source, links_of, *of_source in zip(sources, links, *finished, strict=True):
            each = (self._hypothesis(links_of, *end) for end in zip(*of_source, strict=True) if end[2] > -math.inf)
            hypotheses = list(islice(each, self._n_best))
            if self.places and self._engine.wants_others(source, hypotheses):
                hypotheses += each
            results.append((source, hypotheses))
        return results

    def _hypothesis(self, links: list[list[int]], end: int, position: int, score: float) -> Hypothesis:
        """Build a hypothesis by following its links back from the last one, `end`."""
        parent, symbol = divmod(end, self._engine.vocabulary)
        ids = [symbol]
        for before in reversed(links[:position]):
            parent, symbol = divmod(before[parent], self._engine.vocabulary)
            ids.append(symbol)
        ids.reverse()
        finished = ids[-1] == EOS
        return Hypothesis(ids[:-1] if finished else ids, score, finished)


class Sampling(Search):
    """Ancestral sampling, batched like a search: a source's samples form one row, but are independent."""

    places = False

    def __init__(self, engine: SearchEngine, count: int) -> None:
        super().__init__(engine, beam=count, n_best=count)
        decoding = engine.decoding
        if decoding.batch_tokens == "auto":  # rescaled from the beam to `count`
            self._batch_tokens = max(1, engine.batch_tokens * max(CPU_BEAM, decoding.beam) // max(CPU_BEAM, count))

    def _empty(self, sources: list[Source]) -> Beams:
        """Return `count` empty samples per source."""
        keys = torch.tensor([key(self._engine.decoding.seed, source.ids) for source in sources], dtype=torch.int64)
        beams = super()._empty(sources)
        own = torch.arange(self._beam, device=beams.parents.device).expand_as(beams.parents)
        return beams._replace(
            parents=own, totals=torch.zeros_like(beams.totals), keys=upload(keys, own.device)[:, None]
        )

    def _extend(self, states: list[Tensor]) -> Tensor:
        beams = self._beams
        positions = self._ancestry.positions
        bits = random_bits(beams.keys[:, 0], self._beam, positions)
        drawn = []
        for part, log_probs in self._allowed(states):
            symbols = draw(log_probs, bits[part], self._engine.decoding)
            drawn.append((symbols, log_probs.gather(2, symbols[:, :, None])[:, :, 0]))
        symbols, chosen = (torch.cat(parts) for parts in zip(*drawn, strict=True))
        # Where all log-probabilities are -inf, a padding index may have been chosen.
        symbols = symbols.clamp_max_(self._engine.vocabulary - 1)
        totals = beams.totals + chosen  # -inf for samples that have already ended
        links = beams.parents * self._engine.vocabulary + symbols
        ends = (symbols.eq(EOS) | (positions + 1).eq(beams.caps)) & ~totals.isneginf()
        scores = totals / self._penalties[positions + 1]
        record(self._links, positions, links)
        self._beams = beams._replace(
            symbols=symbols,
            totals=totals.masked_fill(ends, -math.inf),
            ends=torch.where(ends, links, beams.ends),
            positions=torch.where(ends, positions, beams.positions),
            scores=torch.where(ends, scores, beams.scores),
        )
        return self._beams.totals.isneginf().all(1)
