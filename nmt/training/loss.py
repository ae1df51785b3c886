"""Label-smoothed cross-entropy without materialising all logits, its compilation, and detection of divergence.

The logits (tokens, vocabulary) would be by far the largest tensor in training. The forward pass computes them in chunks
and replaces each with its gradient immediately: the loss is a sum over tokens, so the gradient is known up to a scalar
factor before the backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import get_total_norm

from nmt.data.corpus import Corpus, Rows
from nmt.model.batch import PADDING, Batch
from nmt.model.operations import Operations, factor_dtype
from nmt.model.transformer import Transformer
from nmt.system import torch_internals
from nmt.system.console import Console
from nmt.system.errors import UserError, counted
from nmt.training.run_state import RunState

GRAPHS = 16  # Dynamo's recompile_limit: typical data needs 3 graphs per part; single-sentence batches need more
WIDEST = 1024  # d_model up to which loads that are staged ahead fit the shared memory of any GPU
UNLIKELY = -30.0  # added to logits of symbols not allowed: exact in bf16, and small beside smoothed targets
ALIGNED = 8  # bf16 tensor cores need row sizes that are multiples of 16 bytes

Softmax = Callable[[Tensor, Tensor, Tensor, torch.dtype], tuple[Tensor, Tensor, Tensor, Tensor, Tensor]]


class _SmoothedCrossEntropy(torch.autograd.Function):
    """Autograd function of `smoothed_cross_entropy`, whose forward pass already computes the gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,  # (tokens, d_model)
        weight: Tensor,  # (vocabulary, d_model)
        targets: Tensor,  # (tokens,)
        smoothing: float,
        product_dtype: torch.dtype,  # operand dtype of matrix multiplications; sums have the weight's dtype
        operations: Operations,
        softmax: Softmax,
    ) -> tuple[Tensor, Tensor]:
        """Return smoothed loss () and negative log-likelihood (); save the gradients of the loss."""
        dtype = weight.dtype
        vocabulary = weight.size(0)
        rows = operations.chunk_rows(vocabulary)
        needs_states, needs_weight, *_ = ctx.needs_input_grad
        states_grad = torch.empty_like(states, dtype=dtype) if needs_states else None  # (tokens, d_model)
        weight_grad = torch.zeros_like(weight) if needs_weight else None  # (vocabulary, d_model)
        nll = states.new_zeros((), dtype=torch.float64)
        log_totals = states.new_zeros((), dtype=torch.float64)
        cast_states = states.to(product_dtype)
        cast_weight = weight.to(product_dtype)
        is_rounded = product_dtype != dtype or torch.get_float32_matmul_precision() != "highest"
        for begin in range(0, states.size(0), rows):
            end = begin + rows
            chunk = cast_states[begin:end]  # (chunk, d_model)
            chunk_targets = targets[begin:end, None]  # (chunk, 1)
            # (chunk, vocabulary), (chunk, 1), (chunk, 1), (), ()
            exponentials, of_targets, totals, chunk_nll, chunk_logs = softmax(chunk, cast_weight, chunk_targets, dtype)
            nll += chunk_nll
            log_totals += chunk_logs
            # The logits' gradient is exponentials / totals − target distribution. Dividing the products' d_model-sized
            # rows instead, and subtracting the targets' terms below, saves passes over (chunk, vocabulary).
            if is_rounded:
                # A confident model's p − 1 would be lost in rounding: subtract the target here, before rounding.
                less = of_targets - (1.0 - smoothing) * totals
                every_row = torch.arange(len(chunk), device=chunk.device)
                # Not scatter_, which on a CPU copies all of a matrix in bf16
                exponentials.index_put_((every_row, chunk_targets[:, 0]), less[:, 0].to(product_dtype))
            if states_grad is not None:
                sums = operations.product(exponentials, cast_weight)  # (chunk, d_model)
                torch.div(sums, totals, out=states_grad[begin:end])
            if weight_grad is not None:
                scaled = (chunk / totals).to(product_dtype)
                operations.add_product(weight_grad, exponentials.t(), scaled)
        states = states.to(dtype)
        mean_weight = weight.mean(0)
        if states_grad is not None:
            if not is_rounded:
                states_grad.sub_(weight.index_select(0, targets), alpha=1.0 - smoothing)
            states_grad.sub_(mean_weight, alpha=smoothing)
        sum_states = states.sum(0)
        if weight_grad is not None:
            if not is_rounded:
                weight_grad.index_add_(0, targets, states, alpha=smoothing - 1.0)
            weight_grad.sub_(sum_states, alpha=smoothing / vocabulary)
        # The loss if targets were uniform: each token's −log p, averaged over the vocabulary
        uniform = log_totals - (sum_states.double() @ mean_weight.double())
        ctx.save_for_backward(states_grad, weight_grad)
        ctx.mark_non_differentiable(nll)
        return (1.0 - smoothing) * nll + smoothing * uniform, nll

    @staticmethod
    def backward(ctx: Any, loss_grad: Tensor, nll_grad: Tensor) -> tuple[Tensor | None, ...]:
        """Scale the saved gradients in place, which is possible only once."""
        states_grad, weight_grad = ctx.saved_tensors
        for grad in (states_grad, weight_grad):
            if grad is not None:
                grad.mul_(loss_grad.to(grad.dtype))
        return states_grad, weight_grad, None, None, None, None, None


def smoothed_cross_entropy(
    states: Tensor,
    weight: Tensor,
    targets: Tensor,
    smoothing: float,
    operations: Operations,
    softmax: Softmax | None = None,
) -> tuple[Tensor, Tensor]:
    """Return label-smoothed loss () and negative log-likelihood (), summed over tokens, in nats, float64.

    Logits are states (tokens, d_model) · weight (vocabulary, d_model)ᵀ; targets are (tokens,). Where a target is
    `PADDING`, which counts for nothing, the state must be 0. The smoothed target distribution spreads `smoothing`
    uniformly over the vocabulary and gives the rest to the target (section 5.4). Only the loss is differentiable, and
    only once. Under autocast, operands and results of matrix multiplications, including logits, are rounded to its
    dtype; sums and gradients have the weight's. `softmax` may be that of `operations`, compiled.
    """
    dtype = factor_dtype(weight)
    with torch.autocast(states.device.type, enabled=False):
        return _SmoothedCrossEntropy.apply(  # type: ignore[no-any-return, no-untyped-call]
            *(states, weight, targets, smoothing, dtype, operations, softmax or operations.softmax)
        )


class Objective(nn.Module):
    """The model and its loss as one module, mapping a micro-batch to its summed losses."""

    def __init__(self, model: Transformer, smoothing: float) -> None:
        super().__init__()
        self.model = model
        self.smoothing = smoothing
        self.softmax: Softmax = model.operations.softmax
        self._limits: tuple[Tensor, Tensor] | None = None
        self._symbols_first = False

    def limit(self, sizes: Sequence[int], symbols_first: bool) -> None:
        """Keep outputs in a language to the first symbols of the vocabulary, those before others were added.

        `sizes` (vocabulary,) gives their number for the symbol of each language, which begins targets if
        `symbols_first`, else sources. Each distinct size becomes one more column of the output weights, `UNLIKELY` for
        the symbols beyond it and 0 for others. States in a language of that size have a 1 there, so that the softmax
        rounds the probabilities of the symbols beyond to nothing.
        """
        distinct, numbers = torch.tensor(sizes).unique(return_inverse=True)
        padded = F.pad(distinct, (0, -len(distinct) % ALIGNED), value=len(sizes))  # (columns,)
        is_beyond = torch.arange(len(sizes))[:, None].ge(padded)  # (vocabulary, columns)
        of_symbols = F.one_hot(numbers, len(padded)).float()  # (vocabulary, columns)
        device = self.model.output_embedding.weight.device
        self._limits = of_symbols.to(device), (is_beyond * UNLIKELY).to(device)
        self._symbols_first = symbols_first

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return smoothed loss () and negative log-likelihood (), summed over target tokens, excluding padding."""
        states = self.model.states(batch.source, batch.target_in, batch.packing)
        states = states.flatten(0, 1)  # (tokens, d_model)
        targets = batch.target_out.flatten()  # (tokens,)
        if batch.real is not None:
            states = states.index_select(0, batch.real)
            targets = targets.index_select(0, batch.real)
        weight = self.model.output_embedding.weight  # (vocabulary, d_model)
        bias = self.model.output_bias
        if bias is not None:
            # The bias is an extra weight column for a constant state of 1; zeros pad it to `ALIGNED`.
            states = F.pad(states, (0, ALIGNED), value=1.0)
            columns = F.pad(bias[:, None], (0, ALIGNED - 1))
            weight = torch.cat((weight, columns), dim=1)
        if self._limits is not None:
            of_symbols, columns = self._limits
            of_tokens = of_symbols[self._languages(batch)]  # (tokens, columns)
            states = torch.cat((states, of_tokens.to(states.dtype)), dim=1)
            weight = torch.cat((weight, columns.to(weight.dtype)), dim=1)
        if batch.real is None:  # packed: little filler, and shapes that do not depend on it
            is_filler = targets.eq(PADDING)[:, None]
            states = states.masked_fill(is_filler, 0.0)
        return smoothed_cross_entropy(states, weight, targets, self.smoothing, self.model.operations, self.softmax)

    def tables(self) -> list[Tensor]:
        """Return the tensors that `forward` reads beside its batch and parameters; longer ones may replace some."""
        return [*self.model.tables(), *(self._limits or ())]

    def _languages(self, batch: Batch) -> Tensor:
        """Return the symbol of the target language for each target token that has a state: (tokens,)."""
        ids = batch.target_out if self._symbols_first else batch.source
        packing = batch.packing
        if packing is None:
            symbols = ids[:, :1].expand_as(batch.target_out)  # (pairs, length)
            return symbols.flatten()[batch.real]
        sequences = packing.target if self._symbols_first else packing.source
        numbers = packing.target.positions[0].eq(0).cumsum(0) - 1  # (tokens,), of each token's sequence
        firsts = sequences.bounds[numbers].long()
        return ids[0, firsts]


def compile_parts(objective: Objective, backend: str = "inductor") -> None:
    """Compile embedding, layers and softmax for dynamic shapes; the layers of a stack share their graphs."""
    # Otherwise DistributedDataParallel makes Dynamo split each layer into one graph per gradient bucket. Layers are
    # compiled separately, so the all-reduce overlaps the backward pass anyway.
    torch_internals.set_option("torch._dynamo.config:optimize_ddp", False)
    limit = "torch._dynamo.config:recompile_limit"
    torch_internals.set_option(limit, max(torch_internals.find(limit) or 0, GRAPHS))
    # Otherwise a graph traced with equal source and target lengths is valid only for equal lengths.
    torch_internals.set_option("torch.fx.experimental._config:use_duck_shape", False)
    # Otherwise small micro-batches get separate graphs, which do not fuse two reductions in LayerNorm's gradient.
    torch_internals.set_option("torch._inductor.config:triton.mix_order_reduction_non_strict_mode", True)
    # Otherwise blocks take 16 rows each: few fit at a time, since registers are short, all wait for their loads, and
    # partial sums are many.
    if objective.model.config.d_model <= WIDEST:
        torch_internals.set_option("torch._inductor.config:triton.mix_order_reduction_split_size", 64)
        torch_internals.set_option("torch._inductor.config:triton.mix_order_reduction_allow_multi_stages", True)
    for part in (objective.model.embed, *objective.model.encoder, *objective.model.decoder):
        part.compile(dynamic=True, backend=backend)
    # Not dynamic=True, so that only sizes that change become dynamic: the token count, never the vocabulary.
    objective.softmax = torch.compile(objective.softmax, backend=backend)


def compile_for(model: Transformer, work: Callable[[Batch], object], probes: Iterable[Batch]) -> None:
    """Compile the parts of `model` by `work`, a forward and backward pass, on each of `probes`.

    Inductor chooses kernels for the sizes that come first. Those would otherwise be of a small memory probe or, where a
    run is resumed, of any micro-batch. One layer of each stack is enough, since the others have the same graphs.
    """
    encoder = model.encoder
    decoder = model.decoder
    model.encoder = nn.ModuleList(list(encoder)[:1])
    model.decoder = nn.ModuleList(list(decoder)[:1])
    try:
        with suppress(torch.OutOfMemoryError):
            for batch in probes:
                work(batch)
    finally:
        model.encoder = encoder
        model.decoder = decoder


MANY = 10  # consecutive skipped updates that end a run
REMEDY = "lower training.learning_rate_scale, raise training.warmup or set training.clip_norm; checkpoints are intact"


class Divergence:
    """Counter of skipped updates that ends a diverged run with a UserError."""

    def __init__(self, module: nn.Module, corpus: Corpus, console: Console, state: RunState) -> None:
        self._parameters = list(module.parameters())
        self._corpus = corpus
        self._console = console
        self._state = state
        self._unseen: list[tuple[int, Rows, Tensor]] = []  # updates since the last `check`, as `note` got them
        self.in_a_row: list[tuple[int, Rows]] = []  # consecutive skipped updates at the last `check`

    def note(self, rows: Rows, skipped: Tensor) -> None:
        """Record, without synchronising, whether an update of `rows` was skipped; `skipped` () stays on the device."""
        self._unseen.append((self._state.step, rows, skipped))

    def check(self) -> None:
        """Count skipped updates in the run's state; this synchronises with the GPU.

        Raise UserError after `MANY` in a row, or if any weight is not finite, so that good checkpoints are kept.
        """
        unseen = self._unseen
        self._unseen = []
        for step, rows, skipped in unseen:
            if not skipped:
                self.in_a_row = []
                continue
            self.in_a_row.append((step, rows))
            self._state.skipped += 1
            self._console.say(f"update {step}: skipped, its gradient is not finite")
            if len(self.in_a_row) >= MANY:
                raise self._diverged(*self.in_a_row[0])
        norm = float(get_total_norm([parameter.detach() for parameter in self._parameters]))
        if not math.isfinite(norm):
            raise UserError(f"training diverged: at update {self._state.step} the weights have norm {norm}", REMEDY)

    def _diverged(self, step: int, rows: Rows) -> UserError:
        """Return the error that all updates from `step`, of `rows`, have been skipped."""
        lines = sorted(self._corpus.lines(rows))
        shown = ", ".join(f"{line:,}" for line in lines[:8])
        if len(lines) > 8:
            shown += " …"
        return UserError(
            f"training diverged: {MANY} updates in a row had gradients that are not finite, update {step} "
            f"(data.train, {counted(len(lines), 'line')}: {shown}) and those after it",
            REMEDY,
        )
