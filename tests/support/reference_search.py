"""Random models with varied outputs, and the plain search that the fast one must equal, by lists and without a cache.

`nmt.search.beam` states the rules (section 6.1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from nmt.model.batch import pad_ids
from nmt.model.transformer import Memory, Transformer
from nmt.recipe import Model
from nmt.search.choosing import length_penalty
from nmt.search.sources import Hypothesis, Source
from nmt.text.vocabulary import BOS, EOS, PAD, UNK


def random_model(
    source: int, target: int, favourite: int = EOS, liking: float = 6.0, seed: int = 3, **changes: Any
) -> Transformer:
    """A small random Transformer over vocabularies of these sizes, whose outputs differ, vary in length and depend on
    the input.

    The logits of the symbol `favourite` are raised by `liking`. The model computes in fp64, so that rounding does not
    decide between hypotheses that are equally good.
    """
    torch.manual_seed(seed)
    settings: dict[str, Any] = {"layers": 2, "d_model": 16, "d_ff": 32, "heads": 2, "tie_embeddings": "none"} | changes
    source_starts, target_starts = ([index % 3 == 1 for index in range(size)] for size in (source, target))
    model = Transformer(Model(**settings), source, target, (source_starts, target_starts)).double().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2 and "embedding" not in name:
                weight.mul_(3.0)
            if name.endswith(("qkv.bias", "query.bias", "key_value.bias", "out.bias", "output_bias")):
                weight.normal_(std=0.3)  # they begin as zero
        model.output_embedding.weight.mul_(2.0)
        direction = torch.nn.functional.normalize(torch.randn(model.config.d_model).double(), dim=0)
        model.output_embedding.weight.sub_(torch.outer(model.output_embedding.weight @ direction, direction))
        model.output_embedding.weight[favourite] += 2.0 * direction
        post = model.config.norm == "post"
        last = model.get_submodule(
            f"decoder.{len(model.decoder) - 1}.feed_forward_residual.norm" if post else "decoder_norm"
        )
        last.get_parameter("bias").add_(direction * liking / 2.0)
    return model


class UncachedStep:
    """The step function of one model, or of an ensemble, whose probabilities are averaged."""

    @torch.inference_mode()
    def __init__(self, models: Sequence[Transformer], sources: Sequence[Sequence[int]]) -> None:
        source = pad_ids(sources, after=EOS)
        self.members = [(model, model.encode(source)) for model in models]

    def __call__(self, ids: Tensor, sentences: Tensor) -> Tensor:
        n, beam, length = ids.shape
        of = sentences.repeat_interleave(beam)
        found = []
        for model, memory in self.members:
            mask = None if memory.mask is None else memory.mask[of]
            states = model.decode_states(ids.view(n * beam, length), Memory(memory.states[of], mask))[:, -1]
            logits = F.linear(states, model.output_embedding.weight, model.output_bias)
            found.append(logits.float().softmax(-1))
        log_probs = torch.stack(found).mean(0).log()
        log_probs[:, [PAD, UNK, BOS]] = -math.inf
        return log_probs.view(n, beam, -1)


@torch.inference_mode()
def beam_search(
    step: Callable[[Tensor, Tensor], Tensor],
    caps: Sequence[int],
    *,
    beam: int,
    alpha: float,
    n_best: int = 1,
    min_length: int = 0,
    bos: int = BOS,
    eos: int = EOS,
) -> list[list[Hypothesis]]:
    """Return the `n_best` hypotheses of each sentence, best first.

    `step` maps whole hypotheses (n, beam, length), from `<s>` on, and the numbers (n,) of their sentences to
    log-probabilities (n, beam, vocabulary). `caps` are the largest numbers of symbols, `</s>` counted; `min_length` is
    the smallest, not counting it.
    """
    live: dict[int, list[tuple[list[int], float]]] = {number: [([], 0.0)] for number in range(len(caps))}
    ended: list[list[Hypothesis]] = [[] for _ in caps]
    length = 0
    while live:
        length += 1
        rows = [[[bos, *ids] for ids, _ in (own + own[:1] * beam)[:beam]] for own in live.values()]
        log_probs = step(torch.tensor(rows), torch.tensor(list(live)))
        if length <= min_length:
            log_probs[..., eos] = -math.inf
        for (number, before), follow in zip(list(live.items()), log_probs, strict=True):
            totals = follow[: len(before)] + torch.tensor([total for _, total in before])[:, None]
            best, at = totals.flatten().topk(min(2 * beam if beam > 1 else 1, totals.numel()))
            scores = best / length_penalty(torch.tensor(float(length)), alpha)
            going_on = []
            for rank, (total, score, index) in enumerate(zip(*(x.tolist() for x in (best, scores, at)), strict=True)):
                parent, symbol = divmod(index, totals.size(1))
                ids = [*before[parent][0], symbol]
                if total > -math.inf and symbol != eos and length < caps[number]:
                    going_on.append((ids, total))
                elif total > -math.inf and rank < beam:
                    ended[number].append(Hypothesis(ids[:-1] if symbol == eos else ids, score, symbol == eos))
            live[number] = going_on[:beam]
            ended[number] = sorted(ended[number], key=lambda one: -one.score)[:beam]
            # Dividing by the largest penalty still possible bounds what any live hypothesis can reach (α ≥ 0).
            most = going_on[0][1] / length_penalty(torch.tensor(float(caps[number])), alpha) if going_on else -math.inf
            if not going_on or (len(ended[number]) >= n_best and ended[number][n_best - 1].score >= most):
                del live[number]
    return [own[:n_best] for own in ended]


def reference_search(
    models: Sequence[Transformer], sources: Sequence[Sequence[int]], caps: Sequence[int], **options: Any
) -> list[list[Hypothesis]]:
    """Hypotheses for each of `sources` (ids without `</s>`), all in one batch."""
    return beam_search(UncachedStep(models, sources), caps, **options)


@torch.inference_mode()
def ruled_search(
    models: Sequence[Transformer],
    sources: Sequence[Source],
    allowed: Callable[[Source, list[int]], Iterable[int]],
    **options: Any,
) -> list[list[Hypothesis]]:
    """The plain search by a rule: `allowed` names the symbols that may follow the first ones of an output."""
    step = UncachedStep(models, [source.ids for source in sources])

    def masked(ids: Tensor, sentences: Tensor) -> Tensor:
        log_probs = step(ids, sentences)
        mask = torch.full_like(log_probs, -math.inf)
        for row, sentence in enumerate(sentences.tolist()):
            for k, first in enumerate(ids[row, :, 1:].tolist()):
                mask[row, k, list(allowed(sources[sentence], first))] = 0.0
        return log_probs + mask

    return beam_search(masked, [source.cap for source in sources], bos=BOS, eos=EOS, **options)


def assert_same(found: Sequence[Sequence[Hypothesis]], expected: Sequence[Sequence[Hypothesis]]) -> None:
    """Assert that two searches found the same for each source, but for the rounding of scores."""
    for one, other in zip(found, expected, strict=True):
        kept = [[(each.ids, each.finished) for each in of] for of in (one, other)]
        assert kept[0] == kept[1]
        assert [each.score for each in one] == pytest.approx([each.score for each in other], rel=1e-6, abs=1e-5)
