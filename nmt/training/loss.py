"""Label-smoothed cross-entropy of a micro-batch without ever holding its logits, and the check for divergence.

Logits are tokens × vocabulary, the largest tensor of training by far. They are computed, turned into their gradient
and dropped again chunk by chunk, in one pass: the forward result is a sum over tokens, so its gradient is known up
to one factor before the backward pass begins.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import get_total_norm

from nmt.data.batch import Batch
from nmt.data.corpus import Corpus, Rows
from nmt.model import products
from nmt.model.functional import CHUNK_LOGITS
from nmt.model.transformer import Transformer
from nmt.system.console import Console
from nmt.system.errors import UserError
from nmt.training.state import RunState

GRAPHS = 16  # of a compiled part; usual data needs three, batches of one sentence and windows some more
ALIGNED = 8  # GPUs multiply in bf16 on tensor cores only if rows are multiples of 16 bytes

Softmax = Callable[[Tensor, Tensor, Tensor, torch.dtype], tuple[Tensor, Tensor, Tensor, Tensor, Tensor]]


def chunk_softmax(
    states: Tensor,  # (chunk, d_model)
    weight: Tensor,  # (vocabulary, d_model)
    targets: Tensor,  # (chunk, 1)
    wide: torch.dtype,  # to compute in
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compute the softmax of a chunk's logits, before its division, and the sums over tokens that the loss consists of.

    Return the exponentials (chunk, vocabulary) of the logits less each row's highest, in the weight's type; those of
    the targets (chunk, 1) and the totals (chunk, 1), not rounded; the sum () of −log p of the targets; and the sum ()
    of log Σ exp(logits). Compiled, it reads the logits twice and writes the exponentials once.
    """
    logits = products.linear(states, weight).to(wide)
    right, highest = logits.gather(-1, targets), logits.amax(-1, keepdim=True)
    exponentials = logits.sub_(highest).exp_()  # in the logits' place
    totals = exponentials.sum(-1, keepdim=True)
    log_totals = totals.log() + highest
    right_exponentials = (right - highest).exp()
    return exponentials.to(weight.dtype), right_exponentials, totals, (log_totals - right).sum(), log_totals.sum()


class _SmoothedCrossEntropy(torch.autograd.Function):
    """The function of `smoothed_cross_entropy`, whose forward pass already computes the gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,  # (tokens, d_model)
        weight: Tensor,  # (vocabulary, d_model)
        targets: Tensor,  # (tokens,)
        smoothing: float,
        product: torch.dtype,  # of the factors of matrix products; all sums have the weight's
        softmax: Softmax,
    ) -> tuple[Tensor, Tensor]:
        """Return smoothed loss () and negative log-likelihood (); keep the gradients of the former."""
        vocabulary, wide = weight.size(0), weight.dtype
        rows = max(1, CHUNK_LOGITS[states.device.type] // vocabulary)
        learn_states, learn_weight = ctx.needs_input_grad[:2]
        states_grad = torch.empty_like(states, dtype=wide) if learn_states else None
        weight_grad = torch.zeros_like(weight) if learn_weight else None
        nll = states.new_zeros((), dtype=torch.float64)
        log_totals = states.new_zeros((), dtype=torch.float64)
        factors, factor = states.to(product), weight.to(product)
        is_rounded = product != wide or torch.get_float32_matmul_precision() != "highest"
        for begin in range(0, states.size(0), rows):
            part, answer = factors[begin : begin + rows], targets[begin : begin + rows, None]
            exponentials, right, totals, chunk_nll, chunk_log_totals = softmax(part, factor, answer, wide)
            nll += chunk_nll
            log_totals += chunk_log_totals
            # The gradient of the logits is exponentials / totals − target. The division is done on the small side of
            # the products, and the target's part of them is added below: fewer passes over the vocabulary.
            if is_rounded:  # but of a good model's target little is left, which must not be lost in rounding
                exponentials.scatter_(-1, answer, (right - (1.0 - smoothing) * totals).to(product))
            if states_grad is not None:
                torch.div(products.product(exponentials, factor), totals, out=states_grad[begin : begin + rows])
            if weight_grad is not None:
                _add_product(weight_grad, exponentials.t(), (part / totals).to(product))
        states, mean_weight = states.to(wide), weight.mean(0)
        if states_grad is not None:
            if not is_rounded:
                states_grad.sub_(weight.index_select(0, targets), alpha=1.0 - smoothing)
            states_grad.sub_(mean_weight, alpha=smoothing)
        sum_states = states.sum(0)
        if weight_grad is not None:
            if not is_rounded:
                weight_grad.index_add_(0, targets, states, alpha=smoothing - 1.0)
            weight_grad.sub_(sum_states, alpha=smoothing / vocabulary)
        uniform = log_totals - (sum_states.double() @ mean_weight.double())  # −Σ log p, averaged over the vocabulary
        ctx.save_for_backward(states_grad, weight_grad)
        ctx.mark_non_differentiable(nll)
        return (1.0 - smoothing) * nll + smoothing * uniform, nll

    @staticmethod
    def backward(ctx: Any, loss_grad: Tensor, nll_grad: Tensor) -> tuple[Tensor | None, ...]:
        """Scale the gradients in place, so this works once."""
        scaled = [None if g is None else g.mul_(loss_grad.to(g.dtype)) for g in ctx.saved_tensors]
        return *scaled, None, None, None, None


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add the product a b to `total`, whose type may be wider."""
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    elif total.device.type == "cuda" and total.dtype == torch.float32:  # without rounding or storing the product
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    else:
        total += a @ b


def smoothed_cross_entropy(
    states: Tensor, weight: Tensor, targets: Tensor, smoothing: float, softmax: Softmax = chunk_softmax
) -> tuple[Tensor, Tensor]:
    """Return the sums () over tokens of label-smoothed loss and plain negative log-likelihood, in nats, float64.

    Logits are states (tokens, d_model) · weight (vocabulary, d_model)ᵀ; targets (tokens,). The smoothed target gives
    `smoothing` uniformly to the whole vocabulary and the rest to the right symbol (section 5.4). Only the first
    result can be differentiated, and only once. Under autocast the factors and results of matrix products are rounded
    to its type, logits among them; sums and gradients have the weight's. `softmax` may be compiled.
    """
    kind = states.device.type
    product = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
    with torch.autocast(kind, enabled=False):
        return _SmoothedCrossEntropy.apply(states, weight, targets, smoothing, product, softmax)  # type: ignore[no-any-return, no-untyped-call]


class Objective(nn.Module):
    """The model and its loss as one module, from a micro-batch to its summed losses."""

    def __init__(self, model: Transformer, smoothing: float) -> None:
        super().__init__()
        self.model, self.smoothing = model, smoothing
        self.softmax: Softmax = chunk_softmax

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the sums () of smoothed loss and negative log-likelihood over the target tokens, without padding."""
        states = self.model.states(batch.source, batch.target_in, batch.packing)
        states = states.flatten(0, 1).index_select(0, batch.real)
        targets = batch.target_out.flatten().index_select(0, batch.real)
        weight, bias = self.model.output_embedding.weight, self.model.output_bias
        if bias is not None:  # a bias is the weight of a state that is always 1; its column is followed by zeros
            states = F.pad(states, (0, ALIGNED), value=1.0)
            weight = torch.cat((weight, F.pad(bias[:, None], (0, ALIGNED - 1))), dim=1)
        return smoothed_cross_entropy(states, weight, targets, self.smoothing, self.softmax)


def compile_parts(objective: Objective, backend: str = "inductor") -> None:
    """Compile embedding, layers and softmax for inputs of any size; layers of a stack share their graphs."""
    dynamo = torch._dynamo.config
    # Otherwise DistributedDataParallel has every layer cut into one graph per bucket of gradients. It exchanges buckets
    # whenever they are full, and each layer is compiled on its own, so backward passes overlap the exchange anyway.
    dynamo.optimize_ddp = False
    dynamo.recompile_limit = max(dynamo.recompile_limit, GRAPHS)
    # Otherwise a graph made for a source as long as its target holds for no other.
    torch.fx.experimental._config.use_duck_shape = False
    # Otherwise small micro-batches get graphs of their own, in which two sums of a LayerNorm's gradient are not fused.
    torch._inductor.config.triton.mix_order_reduction_non_strict_mode = True
    for part in (objective.model.embed, *objective.model.encoder, *objective.model.decoder):
        part.compile(dynamic=True, backend=backend)
    # Without dynamic=True, sizes are dynamic once they have changed: the number of tokens, never the vocabulary.
    objective.softmax = torch.compile(objective.softmax, backend=backend)


MANY = 10  # updates skipped in a row that end a run
REMEDY = "lower training.learning_rate_scale, raise training.warmup or set training.clip_norm; "


class Divergence:
    """The count of skipped updates, which ends a run that has diverged with a UserError."""

    def __init__(self, module: nn.Module, corpus: Corpus, console: Console, state: RunState) -> None:
        self._parameters, self._corpus, self._console, self._state = list(module.parameters()), corpus, console, state
        self._unseen: list[tuple[int, Rows, Tensor]] = []
        self.in_a_row: list[tuple[int, Rows]] = []  # skipped updates up to the last one counted

    def note(self, rows: Rows, skipped: Tensor) -> None:
        """Note whether an update of some pairs was skipped, () on the device; the host does not wait for a GPU here."""
        self._unseen.append((self._state.step, rows, skipped))

    def check(self) -> None:
        """Count the skipped updates in the run's state, which waits for a GPU.

        Raise UserError for many in a row, or if weights are not finite, before they are saved over good checkpoints.
        """
        unseen, self._unseen = self._unseen, []
        for step, rows, skipped in unseen:
            if not skipped:
                self.in_a_row = []
                continue
            self.in_a_row.append((step, rows))
            self._state.skipped += 1
            self._console.say(f"update {step}: skipped, its gradient is not finite")
            if len(self.in_a_row) >= MANY:
                first, rows = self.in_a_row[0]
                lines = sorted(self._corpus.lines(rows))
                shown = ", ".join(f"{line:,}" for line in lines[:8]) + (" …" if len(lines) > 8 else "")
                raise UserError(
                    f"training diverged: {MANY} updates in a row had gradients that are not finite, update {first} "
                    f"(data.train, {len(lines):,} lines: {shown}) and those after it",
                    REMEDY + "checkpoints are intact",
                )
        norm = float(get_total_norm([parameter.detach() for parameter in self._parameters]))
        if not math.isfinite(norm):
            raise UserError(
                f"training diverged: the norm of the weights is {norm} after update {self._state.step}",
                REMEDY + "earlier checkpoints are intact",
            )
