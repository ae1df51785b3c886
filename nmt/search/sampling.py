"""Ancestral sampling: each symbol is drawn from the model's distribution.

A sample's random numbers are hashes of the seed, its source's subwords, its own index, a position and a symbol. They
are therefore the same in any batch, process or file, and equal sources get equal samples.

Each draw is the symbol with the largest sum of log-probability and Gumbel noise (Gumbel-max; Maddison et al. 2014,
section 2). Rounding, which differs between batches, changes a draw only if two symbols are nearly tied. Inverting the
cumulative distribution would be simpler, but rounding moves thousands of its boundaries, so outputs would change now
and then.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from hashlib import blake2b

import torch
from torch import Tensor

from nmt.recipe import Decoding

SYMBOLS_PER_BLOCK = 64  # of a two-stage draw
STEP = 0x9E3779B97F4A7C15 - (1 << 64)  # SplitMix64's constants, as signed numbers: the increment of its counter
FIRST = 0xBF58476D1CE4E5B9 - (1 << 64)  # its first multiplier
SECOND = 0x94D049BB133111EB - (1 << 64)  # its second multiplier


def key(seed: int, ids: Sequence[int]) -> int:
    """Hash a seed and a source's subwords to 64 bits."""
    text = b"".join(number.to_bytes(8, "little") for number in (seed, *ids))
    digest = blake2b(text, digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def random_bits(keys: Tensor, count: int, positions: Tensor) -> Tensor:
    """Return (n, count), 64 random bits for each sample at positions (n, 1), given source keys (n,)."""
    of_samples = stream(keys, count)  # (n, count)
    return stream(of_samples + STEP * positions, 1)[:, :, 0]


def stream(bits: Tensor, count: int) -> Tensor:
    """Return (…, count), the first `count` SplitMix64 outputs for seeds `bits` (…) (Steele et al. 2014)."""
    numbers = torch.arange(1, count + 1, device=bits.device)
    bits = bits[..., None] + STEP * numbers
    bits = (bits ^ _shifted(bits, 30)) * FIRST
    bits = (bits ^ _shifted(bits, 27)) * SECOND
    return bits ^ _shifted(bits, 31)


def _shifted(bits: Tensor, by: int) -> Tensor:
    """Shift right, filling with zeros."""
    low = (1 << (64 - by)) - 1
    return (bits >> by) & low


def draw(log_probs: Tensor, bits: Tensor, decoding: Decoding) -> Tensor:
    """Draw symbols (n, k) from log_probs (n, k, vocabulary), using random bits (n, k).

    First decoding.temperature flattens or sharpens the distribution. Then only the decoding.top_k most probable symbols
    are kept, and of these the smallest set with a total probability of at least decoding.top_p.
    """
    highest = log_probs.amax(-1, keepdim=True)
    scaled = (log_probs - highest) / decoding.temperature
    if decoding.top_k is not None or decoding.top_p < 1.0:
        scaled = _most_probable(scaled, decoding)
    # Draw a block, then one of its symbols: this takes far fewer random numbers.
    vocabulary = scaled.size(-1)
    members = math.gcd(vocabulary, SYMBOLS_PER_BLOCK)  # so that all blocks are of one size
    blocks = vocabulary // members
    noise = _gumbel(stream(bits, blocks + members))
    probabilities = scaled.exp().view(*bits.shape, members, blocks)  # symbol = member · blocks + block
    of_blocks = probabilities.sum(2).log()  # (n, k, blocks)
    noisy = of_blocks + noise[:, :, :blocks]
    block = noisy.argmax(-1, keepdim=True)
    numbers = torch.arange(0, vocabulary, blocks, device=bits.device)
    symbols = block + numbers  # (n, k, members)
    of_members = scaled.gather(2, symbols)
    noisy = of_members + noise[:, :, blocks:]
    chosen = noisy.argmax(-1, keepdim=True)
    return symbols.gather(2, chosen)[:, :, 0]


def _most_probable(scaled: Tensor, decoding: Decoding) -> Tensor:
    """Return `scaled` (n, k, vocabulary) with -inf for all symbols except those that top_k and top_p keep."""
    vocabulary = scaled.size(-1)
    count = min(decoding.top_k or vocabulary, vocabulary)
    best, order = scaled.topk(count)
    share = best.double().softmax(-1)
    before = share.cumsum(-1) - share  # of those that are more probable
    kept = best.masked_fill(before >= decoding.top_p, -math.inf)
    nothing = torch.full_like(scaled, -math.inf)
    return nothing.scatter_(2, order, kept)


def _gumbel(bits: Tensor) -> Tensor:
    """Convert uniform random bits to standard Gumbel noise."""
    whole = _shifted(bits, 11).double()  # the highest 53 bits
    uniform = (whole + 0.5) * 2.0**-53  # never 0
    return uniform.log_().neg_().log_().neg_()
