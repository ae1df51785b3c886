"""How a search chooses among all extensions of its hypotheses, in C where that applies, else by PyTorch.

Shapes: n rows, which are sentences, k hypotheses of each.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nmt.native.loading import functions_for
from nmt.text.symbols import EOS

BLOCK = 64  # values of which only the largest is compared at first
AT_ONCE = 512  # symbols; PyTorch compares a vocabulary this small, such as a parser's, faster whole


def log_softmax_(logits: Tensor, vocabulary: int) -> Tensor:
    """Log-probabilities of logits (n, k, at least `vocabulary`), which are overwritten.

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


def best_extensions(log_probs: Tensor, alive: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The `count` largest of alive (n, k) + log_probs (n, k, vocabulary), largest first: value, k, symbol, (n, count).

    A vocabulary larger than AT_ONCE must be a multiple of BLOCK. Where all is -inf, k and symbol may be any.
    """
    if functions := functions_for(log_probs, alive):
        n, k, width = log_probs.shape
        totals = alive.new_empty((n, count))
        parents, symbols = torch.empty((2, n, count), dtype=torch.int64)
        found = (each.data_ptr() for each in (log_probs, alive, totals, parents, symbols))
        functions.nmt_best_extensions(n, k, width, count, *found)
        return totals, parents, symbols
    return plain_best_extensions(log_probs, alive, count)


def plain_best_extensions(log_probs: Tensor, alive: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """`best_extensions` by PyTorch.

    To compare all values at once takes long. The largest values are in the blocks with the largest maxima.
    """
    n, k, vocabulary = log_probs.shape
    if vocabulary <= AT_ONCE:
        best, chosen = (log_probs + alive[:, :, None]).flatten(1).topk(count)
        return best, chosen // vocabulary, chosen % vocabulary
    blocks = vocabulary // BLOCK
    maxima = (log_probs.view(n, k, blocks, BLOCK).amax(3) + alive[:, :, None]).flatten(1)
    block = maxima.topk(min(count, k * blocks)).indices  # (n, c)
    members = log_probs.view(n, -1, BLOCK).gather(1, block[:, :, None].expand(-1, -1, BLOCK))
    best, at = (members + alive.gather(1, block // blocks)[:, :, None]).flatten(1).topk(count)
    chosen = block.gather(1, at // BLOCK) * BLOCK + at % BLOCK
    return best, chosen // vocabulary, chosen % vocabulary
