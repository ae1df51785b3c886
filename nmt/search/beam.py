"""Beam search (section 6.1) with continuous batching.

Each step takes the 2 · beam best extensions of a sentence's alive hypotheses. Those that end join the finished ones if
they are among the best `beam`; the best `beam` of the others stay alive. At most `beam` finished hypotheses are kept.
Finished scores are log-probability / lp(|Y|) with lp(n) = ((5 + n) / 6)^α, where |Y| counts `</s>`. A sentence stops
once no alive hypothesis can enter its n-best list: the n-th best finished score ≥ best alive log-probability / lp(cap).
At the cap, the largest output length of its source, alive hypotheses compete by length-normalised score. A beam of 1 is
greedy search, which stops at the first `</s>`. `</s>` is forbidden before `min_length` symbols.

When a sentence finishes, another takes its place in the batch, so short sentences never wait for long ones and the
batch stays full. Every step is vectorised over all hypotheses of all sentences.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import Any
from weakref import proxy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from nmt.model.batch import pad_ids
from nmt.model.transformer import Transformer
from nmt.recipe import Decoding
from nmt.search.choosing import BeamOperations, Beams, Candidates, ends_at, length_penalty, record
from nmt.search.constraints import MakeConstraint, MinLength
from nmt.search.in_c import InC, LayersInC
from nmt.search.plain import Plain
from nmt.search.sampling import draw, key, random_bits
from nmt.search.shortlist import Shortlists, listed
from nmt.search.sources import Found, Hypothesis, Pool, Source, SourceQueue
from nmt.search.state import Newest, Removal, State, joined, mapped, with_room
from nmt.search.way import CPU_BEAM, PreparedModels, batch_tokens, for_search, search_precision
from nmt.system.device import Download, available_memory, check_room, upload
from nmt.system.errors import UserError
from nmt.text.vocabulary import BOS, EOS

REFILL = 8  # refill the batch once 1/8 of it is empty
ROOM_FOR_LINKS = 16  # positions at first


class SearchEngine:
    """`Engine` for one model or an ensemble, whose probabilities are averaged."""

    def __init__(
        self,
        models: Sequence[Transformer],
        decoding: Decoding,
        constraints: Sequence[MakeConstraint] = (),
        say: Callable[[str], None] = lambda line: None,
        wants_others: Callable[[Source, Sequence[Hypothesis]], bool] = lambda source, best: False,
    ) -> None:
        """Prepare the models; outputs satisfy `constraints` and have at least `decoding.min_length` symbols.

        `say` reports a change of precision or batch size, and missing C kernels. `wants_others` says of a source and
        its best hypotheses whether the other finished ones are to follow. Raise UserError if the machine does not
        support `decoding.precision` or lacks memory for even one sentence.
        """
        self.decoding = decoding
        self.wants_others = wants_others
        self.constraints = list(constraints)
        if decoding.min_length > 0:
            self.constraints.insert(0, partial(MinLength, decoding.min_length))
        self._say = say
        self._given = models
        self.device = models[0].output_embedding.weight.device
        self.vocabulary = len(models[0].output_embedding.weight)
        numbers = sum(self.vocabulary + model.config.d_model for model in models)  # logits and state of a hypothesis
        check_room(  # a bundle may ask for more than any machine has
            4 * decoding.beam * numbers,  # bytes in fp32
            available_memory(self.device),
            f"decoding.beam: the logits of {decoding.beam} hypotheses over {self.vocabulary:,} symbols",
            "--set decoding.beam=4",
        )
        self.precision = search_precision(decoding.precision, self.device, say)
        self._use(for_search(models, self.precision, say))
        self._check_shortlist()
        self.batch_tokens = batch_tokens(decoding, models)
        self._has_shrunk = False

    def search(
        self, queue: SourceQueue, n_best: int, sample: bool = False
    ) -> Generator[tuple[int, list[Hypothesis]], None, None]:
        """Search as `Engine.search` does."""
        for found in self.rounds(queue, n_best, sample):
            for source, hypotheses in found:
                yield source.number, hypotheses

    def rounds(self, queue: SourceQueue, n_best: int, sample: bool = False) -> Generator[list[Found], None, None]:
        """Search, and yield after each step the sentences that are done, if any.

        On a GPU, a search that ended is kept: the next one of its kind reuses its memory and its CUDA graphs.
        """
        if not self.models:  # after `rest`
            self._use(for_search(self._given, self.precision, self._say))
        kind = (n_best, sample)
        search = self._kept.get(kind)
        if search is None:
            search = Sampling(self, n_best) if sample else BeamSearch(self, self.decoding.beam, n_best)
        self._kept.clear()  # a search that is abandoned is not taken up again
        yield from search.run(queue)
        if search.way.is_late:
            self._kept[kind] = search

    def rest(self) -> None:
        """Free what the last search left; the next one takes the models' weights as they will be then."""
        self._use(PreparedModels([], [], BeamOperations(), partial(Plain, [])))

    def _use(self, prepared: PreparedModels) -> None:
        self.models, self.logits, self.operations, self.way, layers = prepared
        self.shortlists = self._shortlists(layers)
        self._kept: dict[Any, BeamSearch] = {}  # the last search, if the next one may go on with it

    def _shortlists(self, layers: Sequence[LayersInC]) -> Shortlists | None:
        """Return the shortlists of a search, if it has any."""
        count = self.decoding.shortlist
        lexicon = self._given[0].lexicon
        if count is None or lexicon is None or not layers or not layers[0].can_search:
            return None
        return Shortlists(layers[0], lexicon, count)

    def _check_shortlist(self) -> None:
        """Raise UserError if shortlists are wanted, but the models have none; say so if they are not used."""
        if self.decoding.shortlist is None:
            return
        if len(self._given) > 1:
            problem = f"decoding.shortlist: is for one model, and not for an ensemble of {len(self._given)}"
            raise UserError(problem, "--set decoding.shortlist=null")
        if self._given[0].lexicon is None:
            problem = "decoding.shortlist: this model has no lexicon.safetensors"
            hint = "of a translator, nmt average CKPTS writes it where the training data is prepared"
            raise UserError(problem, f"{hint}; or --set decoding.shortlist=null")
        if self.shortlists is None:
            self._say("decoding.shortlist: is for a CPU with C kernels, in fp32 or int8, so all symbols are computed")

    def shrink(self, factor: float) -> None:
        """Scale the batch size of later searches by `factor` after an out-of-memory error; report it once."""
        self.batch_tokens = max(1, int(self.batch_tokens * factor))
        if not self._has_shrunk:
            self._say("out of memory: the search continues with smaller batches; a smaller --batch-tokens avoids this")
        self._has_shrunk = True


class BeamSearch:
    """One search: the sentences in progress and the state of their hypotheses."""

    is_sampling = False

    def __init__(self, engine: SearchEngine, beam: int, n_best: int) -> None:
        self._engine: SearchEngine = proxy(engine)  # which may keep this
        self._beam = beam
        self._n_best = n_best
        self._batch_tokens = engine.batch_tokens
        self._again = Pool()  # sources in progress when memory ran out
        self._found: list[Found] = []  # finished but not yet yielded
        self._left: tuple[NDArray[Any], Download] | None = None  # removed, but not yet read
        self._reset()

    def _reset(self) -> None:
        """Start from an empty batch."""
        engine = self._engine
        self.way = engine.way(self._beam)
        self._rules = [make(self._beam, engine.device) for make in engine.constraints]
        for rule in self._rules:
            rule.in_use = True
        beams = self._empty([])
        links = beams.ends.new_zeros((0, ROOM_FOR_LINKS, self._beam))
        penalties = torch.empty(0, device=engine.device)
        self._state = State(beams, links, (), penalties, self.way.begin())
        self._sources: NDArray[Any] = np.empty(0, dtype=object)  # (n,)
        self._shortlists: NDArray[Any] = np.empty(0, dtype=object)  # (n,): None without
        self._shortlists_in_c: Any = None  # until a step needs them
        self._widths = np.empty(0, dtype=np.int64)  # (n,): lengths of the sources
        self._caps = np.empty(0, dtype=np.int64)  # (n,): `Beams.caps` on the host
        self._first = 0  # symbols of an output that its length does not count
        self._unread: Download | None = None  # which rows were finished after the previous step, if read late
        self._held: list[Source] = []  # taken from the queue, but not yet in the batch

    def run(self, queue: SourceQueue) -> Generator[list[Found], None, None]:
        """Search until the queue ends; halve the batch size whenever the GPU runs out of memory."""
        while True:
            found = self._found
            self._found = []
            yield found
            try:
                self._admit(queue)
                if not len(self._sources):
                    return
                self._found += self._advance()
                continue
            except torch.OutOfMemoryError:
                if len(self._sources) + len(self._held) <= 1:
                    raise
            self._restart()  # outside `except`, so the traceback's tensors are freed

    def _restart(self) -> None:
        """Restart the sentences in progress with half the batch size; a failed step cannot be resumed."""
        self._found += self._results()
        self._again.add([*self._sources, *self._held])
        before = self._batch_tokens
        self._batch_tokens = max(1, min(before, self._again.tokens) // 2)
        self._engine.shrink(self._batch_tokens / before)
        self._reset()
        torch.cuda.empty_cache()

    # --- sentences come

    def _admit(self, queue: SourceQueue) -> None:
        """Refill the batch from the queue if enough of it is empty."""
        budget = self._batch_tokens
        rows = len(self._sources)
        width = int(self._widths.max(initial=0))
        room = budget - rows * width
        if rows and room < budget // REFILL:
            return
        tokens = max(room, 1)
        if not self._held and self._again:
            self._held = self._again.take_sources(tokens, at_least=int(not rows))
        elif not self._held:
            self._held = queue.take_sources(tokens, wait=not rows)
        if not self._held:
            return
        longest = max(len(source.ids) + 1 for source in self._held)
        padded = (rows + len(self._held)) * max(width, longest)
        # Much longer sources would pad every sentence in progress to their own length.
        if rows and padded > budget:
            return
        self._add(self._held)
        self._held = []

    @torch.inference_mode()
    def _add(self, sources: list[Source]) -> None:
        state = self._state
        ids = pad_ids([source.ids for source in sources], after=EOS)  # (m, s)
        lengths = [len(source.ids) + 1 for source in sources]
        caps = [source.cap for source in sources]
        on_device = upload(ids, self._engine.device)
        past = self.way.admit(state.past, on_device, lengths, max(caps))
        beams = joined(state.beams, self._empty(sources))
        links = F.pad(state.links, (0, 0, 0, 0, 0, len(sources)))
        rules = [rule.begin(sources, past.rows.end) for rule in self._rules]
        if len(self._sources):
            pairs = zip(self._rules, state.rules, rules, strict=True)
            rules = [joined(before, new, rule.padding) for rule, before, new in pairs]
        new = np.array(sources, dtype=object)
        self._sources = np.append(self._sources, new)
        shortlists = self._engine.shortlists
        added = [shortlists and shortlists.of(source) for source in sources]
        self._shortlists = np.append(self._shortlists, np.array(added, dtype=object))
        self._shortlists_in_c = None
        self._widths = np.append(self._widths, lengths)
        self._caps = np.append(self._caps, caps)
        longest = max(int(self._caps.max()), past.rows.end + 1)
        first = len(sources[0].first)  # as many in all sources of a search
        penalties = self._penalties(longest + 1, first)
        self._state = State(beams, links, tuple(rules), penalties, past)

    def _penalties(self, size: int, first: int) -> Tensor:
        """Return `length_penalty` by length below `size`, where the `first` symbols do not count."""
        before = self._state.penalties
        if size <= len(before) and first == self._first:  # the first symbols of another search may be others
            return before
        self._first = first
        lengths = torch.arange(size, device=self._engine.device)
        counted = (lengths - first).clamp_min(0)
        return length_penalty(counted, self._engine.decoding.alpha)

    def _empty(self, sources: list[Source]) -> Beams:
        """Return initial beams: all k hypotheses of a source would be the same, so only the first is alive."""
        device = self._engine.device
        shape = (len(sources), self._beam)
        caps = torch.tensor([source.cap for source in sources], dtype=torch.int64)
        caps = upload(caps, device)
        parents, ends, positions = torch.zeros((3, *shape), dtype=torch.int64, device=device)
        scores = torch.full(shape, -math.inf, device=device)
        totals = F.pad(scores[:, 1:], (1, 0))  # 0 for the first hypothesis
        return Beams(
            caps=caps[:, None],
            symbols=parents + BOS,
            parents=parents,
            totals=totals,
            ends=ends,
            positions=positions,
            scores=scores,
            keys=parents[:, :1],  # which samples alone replace and read
        )

    # --- steps

    @torch.inference_mode()
    def _advance(self) -> list[Found]:
        """Extend every hypothesis; remove finished sentences from the batch and return them.

        On a GPU, the host learns one step late which sentences are finished, while the device computes the next step,
        in which they have no alive hypothesis. There, they leave together once they are an eighth of the batch.
        """
        is_late = self.way.is_late
        newest = Download(self._steps())
        results = self._results()  # while the device computes
        rows = self._finished(self._unread if is_late else newest)
        self._unread = newest if is_late else None
        are_few = REFILL * len(rows) < len(self._sources)
        if not rows or (is_late and are_few):
            return results
        if is_late:  # read the newest report too, before rows are renumbered
            rows = self._finished(newest)
            self._unread = None
        removal = Removal(rows, len(self._sources), self._engine.device)
        self._left = self._remove(removal)
        self._sources = removal.keep(self._sources)  # last: if memory runs out above, all restart
        if not is_late or not len(self._sources):
            results += self._results()
        return results

    def _finished(self, report: Download | None) -> list[int]:
        """Return the rows that a report, if there is one, says are finished."""
        past, rows = self.way.finished(self._state.past, report)
        self._state = self._state._replace(past=past)
        return rows

    def _steps(self) -> Tensor:
        """Extend every hypothesis, in C by several symbols; return the report of `Plain.take_step`."""
        way = self.way
        state = self._state
        end = state.past.rows.end
        state = state._replace(links=with_room(state.links, 1, end + 1))
        least = self._least_length(state)
        count = state.beams.totals.numel()
        shortlists = self._engine.shortlists
        if isinstance(way, InC) and not self.is_sampling and least is not None:
            if shortlists and self._shortlists_in_c is None:
                self._shortlists_in_c = shortlists.in_c(self._shortlists)
            if shortlists or way.can_take_steps(count):
                self._state, report = way.take_steps(state, self._n_best, least, self._shortlists_in_c)
                return report
        pairs = zip(self._rules, state.rules, strict=True)
        on_device = all(rule.is_on_device(of_rule) for rule, of_rule in pairs)
        self._state, report = way.take_step(self._step, state, on_device)
        return report

    def _least_length(self, state: State) -> int | None:
        """Return the least number of symbols before `</s>` if the rules now mean nothing else, else None."""
        longest = 0
        for rule, of_rule in zip(self._rules, state.rules, strict=True):
            least = rule.least_length(of_rule)
            if least is None:
                return None
            longest = max(longest, least)
        return longest

    def _step(self, state: State) -> tuple[State, Tensor]:
        """Extend every hypothesis by one symbol; return the state and (n,), whether each sentence is finished."""
        beams = state.beams
        alive = ~beams.totals.isneginf()
        past, states = self.way.step(state.past, beams.parents, beams.symbols, alive)
        state, done = self._extend(state._replace(past=past), states)
        beams = state.beams
        newest = Newest(beams.parents, beams.symbols, past.rows.positions, past.rows.end)
        pairs = zip(self._rules, state.rules, strict=True)
        rules = [rule.advance(of_rule, newest) for rule, of_rule in pairs]
        return state._replace(rules=tuple(rules)), done

    def _extend(self, state: State, states: list[Tensor]) -> tuple[State, Tensor]:
        """Extend every hypothesis, given each model's states; return what `_step` does."""
        candidates = self._candidates(state, states)
        engine = self._engine
        positions = state.past.rows.positions
        given = (state.beams, candidates, state.links, positions, state.penalties)
        beams, done = engine.operations.choose_(*given, self._n_best, engine.vocabulary)
        return state._replace(beams=beams), done

    def _candidates(self, state: State, states: list[Tensor]) -> Candidates:
        """Return the 2 · beam best extensions of each row (one in greedy search), best first.

        Each model's states are (n, k, d_model); the returned log-probabilities, parents and symbols are (n, 2 · beam).
        """
        count = 2 * self._beam if self._beam > 1 else 1
        found = []
        for part, log_probs in self._allowed(state, states):
            totals = state.beams.totals[part]
            found.append(self._engine.operations.best_extensions(log_probs, totals, count))
        best = found[0]
        if len(found) > 1:
            best = Candidates(*map(torch.cat, zip(*found, strict=True)))
        # Where all log-probabilities are -inf, a padding index may have been chosen.
        best.symbols.clamp_max_(self._engine.vocabulary - 1)
        return best

    def _allowed(self, state: State, states: list[Tensor]) -> Iterator[tuple[slice, Tensor]]:
        """Yield slices of rows and their log-probabilities (rows, k, padded vocabulary), -inf for forbidden symbols."""
        count = len(state.beams.totals)
        logits = self._beam * self._engine.vocabulary  # of a row
        at_once = self._engine.models[0].operations.chunk_logits
        rows = max(1, at_once // logits)
        for start in range(0, count, rows):
            part = slice(start, start + rows)
            symbols = listed(self._shortlists[part]) if self._engine.shortlists else None
            log_probs = self._log_probs([x[part] for x in states], symbols)
            for rule, of_rule in zip(self._rules, state.rules, strict=True):
                of_part = of_rule if rows >= count else mapped(itemgetter(part), of_rule)
                rule.restrict(of_part, state.past.rows.positions[part], log_probs)
            yield part, log_probs

    def _log_probs(self, states: list[Tensor], symbols: Tensor | None) -> Tensor:
        """Return log-probabilities (rows, k, padded vocabulary) of symbols, given each model's states.

        `symbols` are those of the rows' shortlists, if they have any.
        """
        engine = self._engine
        found = []
        for output, x in zip(engine.logits, states, strict=True):
            logits = output(x).float()
            if symbols is None:
                found.append(engine.operations.log_softmax_(logits, engine.vocabulary))
            else:
                found.append(engine.operations.log_softmax_within_(logits, symbols))
        if len(found) == 1:
            return found[0]
        total = torch.stack(found).logsumexp(0)
        return total - math.log(len(found))

    # --- sentences leave

    def _remove(self, removal: Removal) -> tuple[NDArray[Any], Download]:
        """Remove finished rows; return their sources, and all that tells their hypotheses."""
        state = self._state
        beams = state.beams
        rows = upload(removal.leaving, self._engine.device)
        longest = int(state.past.rows.ages[removal.leaving].max())
        told = Download(state.links[rows, :longest], beams.ends[rows], beams.positions[rows], beams.scores[rows])
        sources = self._sources[removal.leaving]
        links = removal.keep(state.links)
        rules = removal.remaining(state.rules)
        past = self.way.leave(state.past, removal)
        self._state = state._replace(beams=removal.remaining(beams), links=links, rules=rules, past=past)
        self._shortlists = removal.keep(self._shortlists)
        self._shortlists_in_c = None
        self._widths = removal.keep(self._widths)
        self._caps = removal.keep(self._caps)
        return sources, told

    def _results(self) -> list[Found]:
        """Return the sources that `_remove` removed last, with their hypotheses, best first. A CPU-GPU sync point."""
        if self._left is None:
            return []
        sources, download = self._left
        self._left = None
        links, ends, positions, scores = (each.tolist() for each in download.read())
        results = []
        for row, source in enumerate(sources):
            finished = zip(ends[row], positions[row], scores[row], strict=True)
            possible = [each for each in finished if each[2] > -math.inf]  # others are empty slots
            hypotheses = [self._hypothesis(links[row], *each) for each in possible[: self._n_best]]
            if not self.is_sampling and self._engine.wants_others(source, hypotheses):
                hypotheses += [self._hypothesis(links[row], *each) for each in possible[self._n_best :]]
            results.append((source, hypotheses))
        return results

    def _hypothesis(self, links: list[list[int]], end: int, position: int, score: float) -> Hypothesis:
        """Build a hypothesis by following its links back from the last one, `end`, which is at `position`."""
        parent, symbol = divmod(end, self._engine.vocabulary)
        ids = [symbol]
        for before in reversed(links[:position]):
            parent, symbol = divmod(before[parent], self._engine.vocabulary)
            ids.append(symbol)
        ids.reverse()
        finished = ids[-1] == EOS
        if finished:
            ids.pop()
        return Hypothesis(ids, score, finished)


class Sampling(BeamSearch):
    """Ancestral sampling, batched like a search: a source's samples form one row, but are independent."""

    is_sampling = True

    def __init__(self, engine: SearchEngine, count: int) -> None:
        super().__init__(engine, beam=count, n_best=count)
        decoding = engine.decoding
        if decoding.batch_tokens == "auto":  # rescaled from the beam to `count`
            of_hypotheses = engine.batch_tokens * max(CPU_BEAM, decoding.beam)  # as `batch_tokens` divides them
            self._batch_tokens = max(1, of_hypotheses // max(CPU_BEAM, count))

    def _empty(self, sources: list[Source]) -> Beams:
        """Return `count` empty samples per source."""
        seed = self._engine.decoding.seed
        keys = torch.tensor([key(seed, source.ids) for source in sources], dtype=torch.int64)
        beams = super()._empty(sources)
        own = torch.arange(self._beam, device=beams.parents.device)
        keys = upload(keys, own.device)[:, None]
        totals = torch.zeros_like(beams.totals)
        return beams._replace(parents=own.expand_as(beams.parents), totals=totals, keys=keys)

    def _extend(self, state: State, states: list[Tensor]) -> tuple[State, Tensor]:
        beams = state.beams
        positions = state.past.rows.positions
        bits = random_bits(beams.keys[:, 0], self._beam, positions)
        drawn = []
        steps = []  # log-probabilities of what is drawn
        for part, log_probs in self._allowed(state, states):
            of_part = draw(log_probs, bits[part], self._engine.decoding)
            chosen = log_probs.gather(2, of_part[:, :, None])
            drawn.append(of_part)
            steps.append(chosen[:, :, 0])
        # Where all log-probabilities are -inf, a padding index may have been chosen.
        symbols = torch.cat(drawn)
        symbols.clamp_max_(self._engine.vocabulary - 1)
        totals = beams.totals + torch.cat(steps)  # -inf for samples that have already ended
        links = beams.parents * self._engine.vocabulary + symbols
        ends = ends_at(symbols, positions, beams.caps) & ~totals.isneginf()
        scores = totals / state.penalties[positions + 1]
        record(state.links, positions, links)
        beams = beams._replace(
            symbols=symbols,
            totals=totals.masked_fill(ends, -math.inf),
            ends=torch.where(ends, links, beams.ends),
            positions=torch.where(ends, positions, beams.positions),
            scores=torch.where(ends, scores, beams.scores),
        )
        done = beams.totals.isneginf().all(1)
        return state._replace(beams=beams), done
