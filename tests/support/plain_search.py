"""Beam search (section 6.1) in its plain form, which the fast search must equal; `nmt.decoding.beam` states the rules.

Knows no model and no text: it searches over a step function.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from nmt.decoding.beam import length_penalty
from nmt.decoding.engine import Hypothesis


class Step(Protocol):
    """What a search needs of a model."""

    def __call__(self, ids: Tensor, sentences: Tensor) -> Tensor:
        """Log-probabilities (n, beam, vocabulary), float32, of the symbol after each hypothesis.

        `ids` (n, beam, length) are whole hypotheses from `<s>` on, `sentences` (n,) which of the batch they translate.
        """
        ...


@torch.inference_mode()
def beam_search(
    step: Step,
    caps: Sequence[int],
    *,
    beam: int,
    alpha: float,
    bos: int,
    eos: int,
    device: torch.device | None = None,
    n_best: int = 1,
    min_length: int = 0,
) -> list[list[Hypothesis]]:
    """Search all sentences of a batch together; returns the `n_best` (≤ beam) hypotheses of each, best first.

    `caps` are the largest numbers of symbols of each output, `</s>` counted; `min_length` is the smallest, not
    counting it.
    """
    if not 1 <= n_best <= beam:
        raise ValueError(f"n_best must be from 1 to beam {beam} (got {n_best})")
    results: list[list[Hypothesis]] = [[] for _ in caps]
    candidates = 2 * beam if beam > 1 else 1
    sentences = torch.arange(len(caps), device=device)  # those that are not done
    cap = torch.tensor(caps, device=device)
    shape = (len(caps), beam)
    ids = torch.full((*shape, 1), bos, device=device)  # (sentences, beam, length): alive hypotheses
    alive = torch.full(shape, -math.inf, device=device)  # their log-probabilities
    alive[:, 0] = 0.0  # all begin alike, so only one of them counts
    ended = torch.full((*shape, 1), bos, device=device)  # finished hypotheses, padded with eos
    ended_scores = torch.full(shape, -math.inf, device=device)
    for length in range(1, max(caps, default=0) + 1):  # of the extended hypotheses, without <s>
        log_probs = step(ids, sentences)
        if length <= min_length:
            log_probs = log_probs.index_fill(-1, torch.tensor([eos], device=device), -math.inf)
        vocabulary = log_probs.size(-1)
        totals = (alive[:, :, None] + log_probs).flatten(1)  # (sentences, beam · vocabulary)
        best, index = totals.topk(min(candidates, totals.size(1)))
        parents, symbols = index // vocabulary, index % vocabulary
        extended = torch.cat((_pick(ids, parents), symbols[:, :, None]), dim=2)  # (sentences, candidates, 1 + length)

        ends = symbols.eq(eos)
        last = cap.eq(length)[:, None]
        penalty = length_penalty(torch.tensor(float(length), device=device), alpha)
        counts = (ends | last) & (torch.arange(best.size(1), device=device) < beam)
        normalised = (best / penalty).masked_fill(~counts, -math.inf)
        padding = torch.full_like(ended[:, :, :1], eos)
        pool = torch.cat((torch.cat((ended, padding), dim=2), extended), dim=1)
        ended_scores, kept = torch.cat((ended_scores, normalised), dim=1).topk(beam)
        ended = _pick(pool, kept)

        alive, order = best.masked_fill(ends | last, -math.inf).topk(min(beam, best.size(1)))
        if alive.size(1) < beam:  # a vocabulary too small to fill the beam
            alive, order = _widen(alive, beam, -math.inf), _widen(order, beam, 0)
        ids = _pick(extended, order)

        # Dividing by the largest penalty still possible bounds what any alive hypothesis can reach (α ≥ 0).
        bound = alive[:, 0] / length_penalty(cap.float(), alpha)
        done = (ended_scores[:, n_best - 1] >= bound) | (alive[:, 0] == -math.inf)
        for row in done.nonzero().flatten().tolist():  # a CPU-GPU sync point
            results[int(sentences[row])] = _hypotheses(ended[row], ended_scores[row], eos)[:n_best]
        sentences, cap, ids, alive, ended, ended_scores = (
            state[~done] for state in (sentences, cap, ids, alive, ended, ended_scores)
        )
        if not len(sentences):
            break
    return results


def _pick(sequences: Tensor, index: Tensor) -> Tensor:
    """sequences (sentences, n, length) at index (sentences, m): (sentences, m, length)."""
    return sequences.gather(1, index[:, :, None].expand(-1, -1, sequences.size(2)))


def _widen(values: Tensor, width: int, fill: float) -> Tensor:
    """values (sentences, n) filled up to (sentences, width)."""
    return torch.cat((values, values.new_full((values.size(0), width - values.size(1)), fill)), dim=1)


def _hypotheses(ids: Tensor, scores: Tensor, eos: int) -> list[Hypothesis]:
    """The finished hypotheses (beam, 1 + length) that exist: those whose score (beam,) is finite."""
    found = []
    for sequence, score in zip(ids[:, 1:].tolist(), scores.tolist(), strict=True):
        if score > -math.inf:
            finished = eos in sequence
            found.append(Hypothesis(sequence[: sequence.index(eos)] if finished else sequence, score, finished))
    return found
