"""Choice of the best extensions of a beam, by PyTorch: on GPUs, and on CPUs without C kernels.

Shapes: n rows (sentences), k hypotheses per row.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from nmt.text.vocabulary import EOS, PAD

COMPARED = 64  # symbols in a block; top-k first compares the maxima of blocks
AT_ONCE = 512  # largest vocabulary, such as a parser's, for which a plain top-k is faster


class Candidates(NamedTuple):
    """The best extensions of each row, best first."""

    totals: Tensor  # (n, count): their log-probabilities
    parents: Tensor  # (n, count): indices of the hypotheses that they extend
    symbols: Tensor  # (n, count): the symbols that they append


class Beams(NamedTuple):
    """Alive and finished hypotheses of the sentences in progress; row i of every tensor belongs to sentence i.

    A link, parent · vocabulary + symbol, encodes one step. Following links backwards yields a hypothesis.
    """

    caps: Tensor  # (n, 1): maximum output length in symbols
    symbols: Tensor  # (n, k): last symbol of each alive hypothesis
    parents: Tensor  # (n, k): index of its parent in the previous step
    totals: Tensor  # (n, k): its log-probability; -inf in empty slots
    ends: Tensor  # (n, k): last link of each finished hypothesis
    positions: Tensor  # (n, k): position of that link
    scores: Tensor  # (n, k): its score; -inf in empty slots
    keys: Tensor  # (n, 1): seed derived from the source; arbitrary unless sampling


def length_penalty(length: Tensor, alpha: float) -> Tensor:
    """Return lp = ((5 + length) / 6)^α (Wu et al. 2016, equation 14); `length` counts `</s>`."""
    return ((5.0 + length) / 6.0) ** alpha


def ends_at(symbols: Tensor, positions: Tensor, caps: Tensor) -> Tensor:
    """Return whether hypotheses end with `symbols` (n, m) at `positions` (n, 1): by `</s>`, or at the caps (n, 1)."""
    return symbols.eq(EOS) | (positions + 1).eq(caps)


def cannot_enter(bounds: Tensor, worst: Tensor) -> Tensor:
    """Return whether hypotheses, whose scores have upper bounds (n, k), cannot beat the worst (n, 1) to be returned."""
    return bounds <= worst


class BeamOperations:
    """How a search computes what lies between two steps of its models: here by PyTorch."""

    def log_softmax_(self, logits: Tensor, vocabulary: int) -> Tensor:
        """Convert logits (n, k, at least `vocabulary`) to log-probabilities in place.

        Padding, unknown and `<s>` are never output: they become -inf, without renormalisation. Logits beyond
        `vocabulary` are ignored and become -inf too.
        """
        logits[:, :, vocabulary:] = -math.inf
        torch.log_softmax(logits, -1, out=logits)
        logits[:, :, :EOS] = -math.inf  # control symbols with ids below `</s>`
        return logits

    def log_softmax_within_(self, logits: Tensor, symbols: Tensor) -> Tensor:
        """Convert logits (n, k, …) in place, as `log_softmax_` does, of only the `symbols` (n, s) of each row.

        Others become -inf. Rows of `symbols` are padded with -1.
        """
        n, k, _ = logits.shape
        chosen = symbols.clamp_min(PAD)[:, None].expand(n, k, -1)
        own = logits.gather(2, chosen).masked_fill_(symbols.lt(0)[:, None], -math.inf)
        log_probs = self.log_softmax_(own, own.size(2))
        return logits.fill_(-math.inf).scatter_(2, chosen, log_probs)  # padding has that of PAD, -inf

    def best_extensions(self, log_probs: Tensor, alive: Tensor, count: int) -> Candidates:
        """Return the `count` best extensions of hypotheses with log-probabilities `alive` (n, k).

        `log_probs` (n, k, vocabulary) are those of the next symbols; above AT_ONCE, their number must be a multiple of
        COMPARED. An extension of log-probability -inf has an arbitrary parent and symbol.
        """
        n, k, width = log_probs.shape
        if width <= AT_ONCE:
            totals = log_probs + alive[:, :, None]  # (n, k, vocabulary)
            best, chosen = totals.flatten(1).topk(count)
            return Candidates(best, chosen // width, chosen % width)
        # A top-k over all values is slow, so it is restricted to the blocks with the largest maxima.
        blocks = width // COMPARED
        maxima = log_probs.view(n, k, blocks, COMPARED).amax(3)
        highest = (maxima + alive[:, :, None]).flatten(1)  # (n, k · blocks)
        compared = min(count, k * blocks)  # c below
        block = highest.topk(compared).indices  # (n, c)
        whole = block[:, :, None].expand(-1, -1, COMPARED)
        all_blocks = log_probs.view(n, -1, COMPARED)
        members = all_blocks.gather(1, whole)  # (n, c, COMPARED)
        before = alive.gather(1, block // blocks)  # (n, c)
        totals = members + before[:, :, None]
        best, at = totals.flatten(1).topk(count)
        of_best = block.gather(1, at // COMPARED)
        chosen = of_best * COMPARED + at % COMPARED
        return Candidates(best, chosen // width, chosen % width)

    def choose_(
        self,
        beams: Beams,
        candidates: Candidates,  # the 2 · beam best extensions
        links: Tensor,  # (at least n, positions, k): links of each step
        positions: Tensor,  # (n, 1): of the candidates' symbols
        penalties: Tensor,  # length penalty by length, up to the largest cap
        n_best: int,  # hypotheses to be returned
        vocabulary: int,
    ) -> tuple[Beams, Tensor]:
        """Return the beams after a step, and (n,), whether each row is finished; store the step's links in `links`.

        The tensors of `beams` may be overwritten.
        """
        totals, parents, symbols = candidates
        beam = beams.totals.size(1)
        new_links = parents * vocabulary + symbols
        lengths = positions + 1
        ends = ends_at(symbols, positions, beams.caps)

        # 1. Candidates that end join the finished hypotheses if they are among the best `beam`.
        new_scores = (totals / penalties[lengths]).masked_fill(~ends, -math.inf)
        new_positions = positions.expand(-1, beam)
        all_scores = torch.cat((beams.scores, new_scores[:, :beam]), dim=1)  # (n, 2 · beam)
        all_ends = torch.cat((beams.ends, new_links[:, :beam]), dim=1)
        all_positions = torch.cat((beams.positions, new_positions), dim=1)
        scores, kept = all_scores.topk(beam)

        # 2. The best `beam` of the other candidates stay alive.
        going_on = totals.masked_fill(ends, -math.inf)
        alive, order = going_on.topk(beam)
        record(links, positions, new_links.gather(1, order))

        # 3. Hypotheses that can no longer enter the n-best list are dropped. Since α ≥ 0, dividing by the largest
        # possible penalty bounds the scores of all descendants.
        bounds = alive / penalties[beams.caps]
        worst = scores[:, n_best - 1 : n_best]
        hopeless = cannot_enter(bounds, worst)
        alive = alive.masked_fill_(hopeless, -math.inf)
        chosen = Beams(
            caps=beams.caps,
            symbols=symbols.gather(1, order),
            parents=parents.gather(1, order),
            totals=alive,
            ends=all_ends.gather(1, kept),
            positions=all_positions.gather(1, kept),
            scores=scores,
            keys=beams.keys,
        )
        return chosen, alive[:, 0].isneginf()


def record(links: Tensor, positions: Tensor, new: Tensor) -> None:
    """Store the links (n, k) of a step at `positions` (n, 1) in `links` (at least n, positions, k)."""
    at = positions[:, :, None].expand(-1, -1, new.size(1))  # (n, 1, k)
    of_rows = links[: len(new)]
    of_rows.scatter_(1, at, new[:, None])
