"""Label-smoothed cross-entropy of a whole update, without ever holding its logits.

Logits are tokens × vocabulary, the largest tensor of training by far. They are computed, turned into their gradient
and dropped again chunk by chunk, in one pass: the forward result is a sum over tokens, so its gradient is known up
to one factor before the backward pass begins.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.data.batches import Batch
from nmt.model.transformer import PADDING, Transformer

CHUNK_LOGITS = {"cpu": 1 << 22, "cuda": 1 << 27}  # 16 MB stay in a CPU's cache, 512 MB fill a GPU


def chunk_logits(device: torch.device) -> int:
    """How many logits are alive at a time."""
    return CHUNK_LOGITS[device.type]


class _SmoothedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,  # (tokens, d_model)
        weight: Tensor,  # (vocabulary, d_model)
        targets: Tensor,  # (tokens,)
        smoothing: float,
    ) -> tuple[Tensor, Tensor]:
        vocabulary = weight.size(0)
        rows = max(1, chunk_logits(states.device) // vocabulary)
        learn_states, learn_weight = ctx.needs_input_grad[:2]
        states_grad = torch.empty_like(states) if learn_states else None
        weight_grad = torch.zeros_like(weight) if learn_weight else None
        loss = states.new_zeros((), dtype=torch.float64)
        nll = states.new_zeros((), dtype=torch.float64)
        for begin in range(0, states.size(0), rows):
            part, answer = states[begin : begin + rows], targets[begin : begin + rows, None]
            logits = F.linear(part, weight)
            total = logits.logsumexp(-1, keepdim=True)  # (chunk, 1)
            nll += (total - logits.gather(-1, answer)).sum()
            if smoothing:
                loss += smoothing * (total.sum() - logits.sum() / vocabulary)
            if not (learn_states or learn_weight):
                continue
            gradient = logits.sub_(total).exp_()  # softmax − smoothed target, in the logits' place
            gradient.scatter_add_(-1, answer, gradient.new_full((1, 1), smoothing - 1.0).expand_as(answer))
            if smoothing:
                gradient -= smoothing / vocabulary
            if states_grad is not None:
                torch.mm(gradient, weight, out=states_grad[begin : begin + rows])
            if weight_grad is not None:
                weight_grad.addmm_(gradient.t(), part)
        loss += (1.0 - smoothing) * nll
        ctx.save_for_backward(states_grad, weight_grad)
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, loss_grad: Tensor, nll_grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        scaled = [None if g is None else g.mul_(loss_grad.to(g.dtype)) for g in ctx.saved_tensors]
        return scaled[0], scaled[1], None, None


def smoothed_cross_entropy(states: Tensor, weight: Tensor, targets: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Sums over tokens of the label-smoothed loss and of the plain negative log-likelihood, in nats, float64.

    Logits are states (tokens, d_model) · weight (vocabulary, d_model)ᵀ; targets (tokens,). The smoothed target gives
    `smoothing` uniformly to the whole vocabulary and the rest to the right symbol (section 5.4). Only the first
    result can be differentiated, and only once.
    """
    return _SmoothedCrossEntropy.apply(states, weight, targets, smoothing)  # type: ignore[no-any-return, no-untyped-call]


class Objective(nn.Module):
    """The model and its loss as one module: a micro-batch in, its summed losses out."""

    def __init__(self, model: Transformer, smoothing: float) -> None:
        super().__init__()
        self.model = model
        self.smoothing = smoothing

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Summed smoothed loss and negative log-likelihood of the batch's target tokens, padding left out."""
        states = self.model.decode_states(batch.target_in, self.model.encode(batch.source))
        real = (batch.target_out != PADDING).flatten().nonzero().squeeze(1)
        return smoothed_cross_entropy(
            states.flatten(0, 1).index_select(0, real),
            self.model.output_embedding.weight,
            batch.target_out.flatten().index_select(0, real),
            self.smoothing,
        )
