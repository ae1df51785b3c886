"""Beam search (section 6.1), fast: for any number of sentences that come and go.

The rules, exactly: of the 2 · beam best extensions of the alive hypotheses the best `beam` that do not end stay alive,
and those that end join at most `beam` finished ones, if they are among the best `beam` of all. Finished scores are
log-probability / lp(|Y|) with lp(n) = ((5 + n) / 6)^α, where |Y| counts `</s>`. A sentence stops once its finished
hypotheses cannot be beaten: their worst wanted score ≥ best alive log-probability / lp(cap). At its cap, alive ones
compete length-normalised. A beam of 1 is greedy search: it stops at the first `</s>`. Before `min_length` symbols
`</s>` is impossible.

A sentence that is done leaves the batch and another takes its place, so that short ones never wait for long ones and
the matrices stay full. All hypotheses of all sentences go through one step together; in it nothing is done
hypothesis by hypothesis.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from nmt.batch import pad_ids
from nmt.model.cache import KVCache, Tree, move_rows, with_room
from nmt.model.inference import for_inference, pays
from nmt.model.likelihood import chunk_logits
from nmt.model.transformer import Transformer
from nmt.recipe import CPU_BATCH_TOKENS, CPU_BEAM, Decoding
from nmt.search.constraints import MakeConstraint, MinLength
from nmt.search.feed import Feed, Hypothesis, Source
from nmt.text.symbols import BOS, EOS, PAD, UNK

BLOCK, LANES = 64, 16  # logits of which first the largest is looked at, and how many blocks are compared at a time
AT_ONCE = 512  # symbols; so small a vocabulary, as a parser has, is quicker compared whole
GPU_BATCH_TOKENS = 1 << 15  # at most, where memory allows: larger batches gain nothing
REFILL = 8  # an 8th of the batch is empty before sentences are admitted


class SearchEngine:
    """Beam search by one model, or by an ensemble of several, which averages their probabilities."""

    def __init__(
        self, models: Sequence[Transformer], decoding: Decoding, constraint: MakeConstraint | None = None
    ) -> None:
        """With a `constraint`, which takes the place of `decoding.min_length`, all outputs are as it wants them.

        Raises UserError where this machine cannot compute in `decoding.precision`.
        """
        self.decoding = decoding
        self.constraint = constraint or partial(MinLength, decoding.min_length)
        self.device = models[0].output_embedding.weight.device
        self.vocabulary = len(models[0].output_embedding.weight)
        self.precision = _precision(decoding.precision, self.device)
        multiple = BLOCK * LANES if self.vocabulary > AT_ONCE else LANES
        twins = [for_inference(model, self.precision, multiple) for model in models]
        self.models, self.logits = zip(*twins, strict=True)
        self.batch_tokens = batch_tokens(decoding, models)

    def search(self, feed: Feed, n_best: int) -> Generator[tuple[int, list[Hypothesis]], None, None]:
        """See `feed.Engine`."""
        return _Search(self, n_best).run(feed)


def batch_tokens(decoding: Decoding, models: Sequence[Transformer]) -> int:
    """Padded source tokens that are searched together, by `decoding.batch_tokens`."""
    if decoding.batch_tokens != "auto":
        return decoding.batch_tokens
    weight = models[0].output_embedding.weight
    if weight.device.type == "cpu":
        return max(1, CPU_BATCH_TOKENS * CPU_BEAM // max(CPU_BEAM, decoding.beam))
    free, _ = torch.cuda.mem_get_info(weight.device)
    # Keys and values of a token of the source and, taken as equally long, of each hypothesis.
    values = sum(2 * model.config.decoder_depth * model.config.d_model * (1 + decoding.beam) for model in models)
    return min(GPU_BATCH_TOKENS, max(1, free // 2 // (values * weight.element_size())))


def _precision(wanted: str, device: torch.device) -> str:
    if wanted == "auto":
        return "fp32" if device.type == "cpu" else "bf16"
    if wanted != "fp32" and device.type == "cpu" and not pays(wanted):
        return "fp32"
    return wanted


def length_penalty(length: Tensor, alpha: float) -> Tensor:
    """lp = ((5 + length) / 6)^α (Wu et al. 2016, equation 14); length counts `</s>`."""
    return ((5.0 + length) / 6.0) ** alpha


class _Search:
    """The sentences under way, by row, and their hypotheses."""

    def __init__(self, engine: SearchEngine, n_best: int) -> None:
        self._engine, self._n_best = engine, n_best
        decoding, device = engine.decoding, engine.device
        self._beam, self._alpha = decoding.beam, decoding.alpha
        windows = [model.config.attention_window for model in engine.models]
        known = [window for window in windows if window is not None]
        self._tree = Tree(self._beam, device, max(known) if len(known) == len(windows) else None)
        self._caches = [KVCache(self._tree, window) for window in windows]
        self._constraint = engine.constraint(self._beam, device)
        self._numbers: list[int] = []
        self._caps = np.empty(0, dtype=np.int64)
        ids, scores = (torch.empty((0, self._beam), dtype=kind, device=device) for kind in (torch.int64, torch.float32))
        # (n, k): newest symbols, whom they follow, Σ log p
        self._symbols, self._parents, self._alive = ids, ids, scores
        # A link is parent · vocabulary + symbol: with those of the positions before it, a hypothesis.
        self._links = ids.new_zeros((0, 16, self._beam))  # (rows, positions, k)
        self._ends, self._end_positions, self._end_scores = ids, ids, scores  # (n, k): last links of finished ones
        self._held: list[Source] = []

    def run(self, feed: Feed) -> Generator[tuple[int, list[Hypothesis]], None, None]:
        """Searches until the feed has come to its end."""
        while self._admit(feed) or self._numbers:
            yield from self._advance()

    def _admit(self, feed: Feed) -> bool:
        """Fills the batch from the feed where enough of it is empty; says whether there is anything to search."""
        budget, rows = self._engine.batch_tokens, len(self._numbers)
        width = max(self._caches[0].lengths, default=0)
        room = budget - rows * width
        if rows and room < budget // REFILL:
            return True
        sources = self._held or feed.take(max(room, 1), wait=not rows)
        longest = max((len(source.ids) + 1 for source in sources), default=0)
        # Sources much longer than those under way would pad all of these to their own length.
        self._held = sources if rows and (rows + len(sources)) * max(width, longest) > budget else []
        if sources and not self._held:
            self._add(sources)
        return bool(sources)

    @torch.inference_mode()
    def _add(self, sources: list[Source]) -> None:
        count, beam = len(sources), self._beam
        ids = pad_ids([source.ids for source in sources], after=EOS).to(self._engine.device)
        self._tree.admit(count)
        for model, cache in zip(self._engine.models, self._caches, strict=True):
            model.admit(ids, [len(source.ids) + 1 for source in sources], cache)
        self._constraint.admit(sources)
        start = len(self._numbers)
        self._numbers += [source.number for source in sources]
        self._caps = np.append(self._caps, [source.cap for source in sources])
        self._links = with_room(self._links, 0, start + count, start)
        alive = torch.full((count, beam), -math.inf, device=ids.device)
        nothing = torch.zeros((count, beam), dtype=torch.int64, device=ids.device)
        self._end_scores = torch.cat((self._end_scores, alive))
        alive = alive.index_fill(1, nothing[0, :1], 0.0)  # all begin alike, so only one of them counts
        self._alive = torch.cat((self._alive, alive))
        self._symbols = torch.cat((self._symbols, nothing + BOS))
        self._parents, self._ends, self._end_positions = (
            torch.cat((old, nothing)) for old in (self._parents, self._ends, self._end_positions)
        )

    @torch.inference_mode()
    def _advance(self) -> list[tuple[int, list[Hypothesis]]]:
        """Extends every hypothesis by a symbol; gives the sentences that are done and lets them go."""
        self._tree.extend(self._parents)
        totals, parents, symbols = self._best_extensions()
        device, beam = totals.device, self._beam
        positions = self._tree.positions
        lengths = torch.from_numpy(positions + 1).to(device)[:, None]
        caps = torch.from_numpy(self._caps).to(device)[:, None]
        links = parents * self._engine.vocabulary + symbols

        ends = symbols.eq(EOS) | lengths.eq(caps)
        scores = (totals / length_penalty(lengths, self._alpha)).masked_fill(~ends, -math.inf)[:, :beam]
        self._end_scores, kept = torch.cat((self._end_scores, scores), dim=1).topk(beam)
        self._ends = torch.cat((self._ends, links[:, :beam]), dim=1).gather(1, kept)
        self._end_positions = torch.cat((self._end_positions, (lengths - 1).expand_as(scores)), dim=1).gather(1, kept)

        self._alive, order = totals.masked_fill(ends, -math.inf).topk(beam)
        self._parents, self._symbols = parents.gather(1, order), symbols.gather(1, order)
        self._constraint.advance(self._parents, self._symbols)
        self._links = with_room(self._links, 1, int(positions.max()) + 1, self._links.size(1))
        rows = torch.arange(len(positions), device=device)
        self._links[rows, lengths[:, 0] - 1] = links.gather(1, order)

        # Dividing by the largest penalty still possible bounds what any alive hypothesis can reach (α ≥ 0).
        best = self._alive[:, :1]
        bound = best / length_penalty(caps, self._alpha)
        done = (self._end_scores[:, self._n_best - 1 : self._n_best] >= bound) | best.isneginf()
        rows = done[:, 0].nonzero()[:, 0]  # a CPU-GPU sync point
        return self._leave(rows) if len(rows) else []

    def _best_extensions(self) -> tuple[Tensor, Tensor, Tensor]:
        """The 2 · beam best candidates of each row (one in greedy search), best first: Σ log p, parent, symbol."""
        states = [
            model.step(self._symbols, cache) for model, cache in zip(self._engine.models, self._caches, strict=True)
        ]
        found = []
        rows = max(1, chunk_logits(self._alive.device) // (self._beam * self._engine.vocabulary))
        for start in range(0, len(self._alive), rows):
            part = slice(start, start + rows)
            log_probs = self._log_probs([each[part] for each in states])
            self._constraint.restrict(log_probs, part)
            found.append(best_extensions(log_probs, self._alive[part], 2 * self._beam if self._beam > 1 else 1))
        totals, parents, symbols = (torch.cat(parts) for parts in zip(*found, strict=True))
        return totals, parents, symbols.clamp_max_(self._engine.vocabulary - 1)  # where nothing is left to choose

    def _log_probs(self, states: list[Tensor]) -> Tensor:
        """(rows, k, vocabulary filled up) from each model's (rows, k, d_model)."""
        each = []
        for logits, x in zip(self._engine.logits, states, strict=True):
            scores = logits(x).float()
            scores[:, :, self._engine.vocabulary :] = -math.inf
            each.append(torch.log_softmax(scores, -1, out=scores))
        log_probs = each[0] if len(each) == 1 else torch.stack(each).logsumexp(0) - math.log(len(each))
        log_probs[:, :, [PAD, UNK, BOS]] = -math.inf  # never output, though they have their share of the probability
        return log_probs

    def _leave(self, rows: Tensor) -> list[tuple[int, list[Hypothesis]]]:
        """The results of rows that are done, whose places others take."""
        done = rows.tolist()
        found = self._read(done, rows)
        count = len(self._numbers) - len(done)
        leaving = set(done)
        holes = [row for row in done if row < count]
        last = [row for row in range(count, len(self._numbers)) if row not in leaving]
        for cache in self._caches:
            cache.leave(holes, last, count)
        self._tree.leave(holes, last, count)
        self._constraint.leave(holes, last, count)
        for hole, row in zip(holes, last, strict=True):
            self._numbers[hole], self._caps[hole] = self._numbers[row], self._caps[row]
        del self._numbers[count:]
        self._caps = self._caps[:count]
        small = (self._symbols, self._parents, self._alive, self._ends, self._end_positions, self._end_scores)
        move_rows((*small, self._links), holes, last)
        self._symbols, self._parents, self._alive, self._ends, self._end_positions, self._end_scores = (
            each[:count] for each in small
        )
        return found

    def _read(self, done: list[int], rows: Tensor) -> list[tuple[int, list[Hypothesis]]]:
        """Follows the links of finished hypotheses back to their beginnings."""
        best = slice(self._n_best)
        ends, positions, scores = (
            each[rows, best].tolist() for each in (self._ends, self._end_positions, self._end_scores)
        )
        links = self._links[rows, : int(self._tree.positions.max()) + 1].tolist()
        return [
            (
                self._numbers[row],
                [
                    self._hypothesis(links[i], end, position, score)
                    for end, position, score in zip(ends[i], positions[i], scores[i], strict=True)
                    if score > -math.inf
                ],
            )
            for i, row in enumerate(done)
        ]

    def _hypothesis(self, links: list[list[int]], end: int, position: int, score: float) -> Hypothesis:
        ids, link = [], end
        while True:
            parent, symbol = divmod(link, self._engine.vocabulary)
            ids.append(symbol)
            if position == 0:
                break
            position -= 1
            link = links[position][parent]
        ids.reverse()
        finished = ids[-1] == EOS
        return Hypothesis(ids[:-1] if finished else ids, score, finished)


def best_extensions(log_probs: Tensor, alive: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The `count` largest of alive (n, k) + log_probs (n, k, vocabulary), largest first: value, k, symbol, (n, count).

    A vocabulary beyond AT_ONCE is made of whole blocks. The largest are in the blocks with the largest maxima, and
    blocks of a stride are as quick to compare as memory is to read: all at once would take many times longer.
    """
    n, k, vocabulary = log_probs.shape
    if vocabulary <= AT_ONCE:
        best, chosen = (log_probs + alive[:, :, None]).flatten(1).topk(count)
        return best, chosen // vocabulary, chosen % vocabulary
    blocks = vocabulary // BLOCK
    maxima = (log_probs.view(n, k, BLOCK, blocks).amax(2) + alive[:, :, None]).flatten(1)
    block = maxima.topk(min(count, k * blocks)).indices  # (n, c)
    parents = block // blocks
    members = torch.arange(0, vocabulary, blocks, device=block.device)
    index = (parents * vocabulary + block % blocks)[:, :, None] + members  # (n, c, BLOCK)
    values = log_probs.view(n, -1).gather(1, index.flatten(1)).view_as(index) + alive.gather(1, parents)[:, :, None]
    best, at = values.flatten(1).topk(count)
    chosen = index.flatten(1).gather(1, at)
    return best, chosen // vocabulary, chosen % vocabulary
