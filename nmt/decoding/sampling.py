"""Ancestral sampling: each symbol is drawn from the model's distribution.

A sample's random numbers are hashes of the seed, its source's subwords, its own index, a position and a symbol. They
are therefore the same in any batch, process or file, and equal sources get equal samples.

Each draw is the symbol with the largest sum of log-probability and Gumbel noise (Gumbel-max; Maddison et al. 2014,
section 2). Rounding, which differs between batches, changes a draw only if two symbols are nearly tied. Inverting the
cumulative distribution would be simpler, but rounding moves thousands of its boundaries, so outputs would change now
and then.

A source's samples form one row of the batch, like the hypotheses of a beam, but are independent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from hashlib import blake2b

import torch
from torch import Tensor

from nmt.compute.beams import Beams, record
from nmt.decoding.beam import CPU_BEAM, Search, SearchModels, length_penalty
from nmt.decoding.engine import Source
from nmt.recipe import Decoding
from nmt.system.device import upload
from nmt.text.vocabulary import EOS

SYMBOLS_PER_BLOCK = 64  # of a two-stage draw
STEP, FIRST, SECOND = (signed - (1 << 64) for signed in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


class Sampling(Search):
    """Ancestral sampling, batched like a search."""

    places = False

    def __init__(self, engine: SearchModels, count: int) -> None:
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
        scores = totals / length_penalty(positions + 1, self._engine.decoding.alpha)
        record(self._links, positions, links)
        self._beams = beams._replace(
            symbols=symbols,
            totals=totals.masked_fill(ends, -math.inf),
            ends=torch.where(ends, links, beams.ends),
            positions=torch.where(ends, positions, beams.positions),
            scores=torch.where(ends, scores, beams.scores),
        )
        self._advance_rules()
        return self._beams.totals.isneginf().all(1)


def key(seed: int, ids: Sequence[int]) -> int:
    """Hash a seed and a source's subwords to 64 bits."""
    text = b"".join(number.to_bytes(8, "little") for number in (seed, *ids))
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little", signed=True)


def random_bits(keys: Tensor, count: int, positions: Tensor) -> Tensor:
    """Return (n, count), 64 random bits for each sample at positions (n, 1), given source keys (n,)."""
    return stream(stream(keys, count) + STEP * positions, 1)[:, :, 0]


def stream(bits: Tensor, count: int) -> Tensor:
    """Return (…, count), the first `count` SplitMix64 outputs for seeds `bits` (…) (Steele et al. 2014)."""
    bits = bits[..., None] + STEP * torch.arange(1, count + 1, device=bits.device)
    bits = (bits ^ _shifted(bits, 30)) * FIRST
    bits = (bits ^ _shifted(bits, 27)) * SECOND
    return bits ^ _shifted(bits, 31)


def _shifted(bits: Tensor, by: int) -> Tensor:
    """Shift right, filling with zeros."""
    return (bits >> by) & ((1 << (64 - by)) - 1)


def draw(log_probs: Tensor, bits: Tensor, decoding: Decoding) -> Tensor:
    """Draw symbols (n, k) from log_probs (n, k, vocabulary), using random bits (n, k).

    First decoding.temperature flattens or sharpens the distribution. Then only the decoding.top_k most probable symbols
    are kept, and of these the smallest set with a total probability of at least decoding.top_p.
    """
    scaled = (log_probs - log_probs.amax(-1, keepdim=True)) / decoding.temperature
    if decoding.top_k is not None or decoding.top_p < 1.0:
        scaled = _most_probable(scaled, decoding)
    # Draw a block, then one of its symbols: this takes far fewer random numbers.
    vocabulary = scaled.size(-1)
    members = math.gcd(vocabulary, SYMBOLS_PER_BLOCK)
    blocks = vocabulary // members
    noise = _gumbel(stream(bits, blocks + members))
    of_blocks = scaled.exp().view(*bits.shape, members, blocks).sum(2).log()
    block = (of_blocks + noise[:, :, :blocks]).argmax(-1, keepdim=True)
    symbols = block + torch.arange(0, vocabulary, blocks, device=bits.device)
    chosen = (scaled.gather(2, symbols) + noise[:, :, blocks:]).argmax(-1, keepdim=True)
    return symbols.gather(2, chosen)[:, :, 0]


def _most_probable(scaled: Tensor, decoding: Decoding) -> Tensor:
    """Return `scaled` (n, k, vocabulary) with -inf for all symbols except those that top_k and top_p keep."""
    vocabulary = scaled.size(-1)
    best, order = scaled.topk(min(decoding.top_k or vocabulary, vocabulary))
    share = best.double().softmax(-1)
    before = share.cumsum(-1) - share
    kept = best.masked_fill(before >= decoding.top_p, -math.inf)
    return torch.full_like(scaled, -math.inf).scatter_(2, order, kept)


def _gumbel(bits: Tensor) -> Tensor:
    """Convert uniform random bits to standard Gumbel noise."""
    uniform = (_shifted(bits, 11).double() + 0.5) * 2.0**-53
    return uniform.log_().neg_().log_().neg_()
