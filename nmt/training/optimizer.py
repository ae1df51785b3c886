"""Adam, Muon and their learning-rate schedules (section 5.3); their state is saved without pickle."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from nmt.compute.choice import muon_dtype
from nmt.model.layers import Linear
from nmt.model.operations import PLAIN, Operations
from nmt.model.transformer import part_of
from nmt.recipe import Training
from nmt.system import torch_internals

MOMENTS = ("exp_avg", "exp_avg_sq")  # keys in the state of PyTorch's Adam
MOMENTUM = "momentum"  # that of Muon
GIVEN = "given"  # rows of an embedding that began as word vectors: 1, the others 0
MOMENTUM_DECAY = 0.95
# Coefficients a, b, c of the polynomials a x + b x³ + c x⁵ of the two steps, which together bring [0.04, 1] as near to
# 1 as two such steps can, within 0.29 (Amsel et al. 2025)
NEWTON_SCHULZ = ((7.0441, -19.4936, 14.169), (2.7004, -2.0091, 0.4562))
SAFETY = 1.04  # these polynomials diverge beyond 1, where rounding might lead
# Maximum entries of the matrices that Muon stacks: what a core's cache holds; on a GPU, few launches in 1 GB
AT_ONCE = {"cpu": 1 << 18, "cuda": 1 << 25}
RISING = 0.1  # share of training.minutes in which the learning rate rises at most
LIKE_ADAM = 0.2  # root mean square of Adam's updates, in learning rates

Matrix = tuple[Tensor, slice]  # a weight and the rows that are a matrix of their own


def learning_rate(step: int, d_model: int, settings: Training, spent: float = 0.0) -> float:
    """Return the learning rate of 1-based update `step` under `training.schedule`.

    All schedules share the paper's linear warm-up and peak; inverse_sqrt is equation 3. `spent` is the share of
    training.minutes that is used up: linear and cosine decay by it, or by updates where these end first, and their
    warm-up ends by it, too.
    """
    warmup = settings.warmup
    scale = settings.learning_rate_scale * d_model**-0.5
    if settings.schedule == "inverse_sqrt":
        return float(scale * min(step**-0.5, step * warmup**-1.5))
    risen = max(step, warmup * spent / RISING) if settings.is_timed else step
    if risen <= warmup:
        return float(scale * risen * warmup**-1.5)
    peak = scale * warmup**-0.5
    if settings.schedule == "constant":
        return float(peak)
    done = min(1.0, max(spent, (step - warmup) / (settings.updates - warmup)))
    if settings.schedule == "linear":
        return float(peak * (1.0 - done))
    return float(peak * ((1.0 + math.cos(math.pi * done)) / 2.0))


def count_moments(model: nn.Module, settings: Training) -> int:
    """Count the numbers in an optimizer's state: two for each parameter that is trained, one in Muon's matrices."""
    trained = {name: each for name, each in model.named_parameters() if part_of(name) not in settings.freeze}
    count = 2 * sum(parameter.numel() for parameter in trained.values())
    if settings.optimizer == "muon":
        for name, layer in model.named_modules():
            if isinstance(layer, Linear) and f"{name}.weight" in trained:
                count -= layer.weight.numel()
    return count


class Optimizer:
    """Adam over named parameters, or Muon for the layers' matrices; the learning rate is that of the step."""

    def __init__(self, model: nn.Module, d_model: int, settings: Training) -> None:
        self._parameters = {name: each for name, each in model.named_parameters() if each.requires_grad}
        layers = []
        if settings.optimizer == "muon":
            layers = [each for each in model.modules() if isinstance(each, Linear) and each.weight.requires_grad]
        device = next(model.parameters()).device
        self._muon = Muon(layers, settings.decay, muon_dtype(settings.precision, device, d_model))
        decayed: list[Tensor] = []
        others: list[Tensor] = []
        for name, parameter in self._parameters.items():
            if parameter in self._muon.momenta:
                continue
            is_fixed = settings.freeze_embeddings and part_of(name) == "embeddings"
            if parameter.dim() > 1 and not is_fixed:
                decayed.append(parameter)
            else:
                others.append(parameter)
        groups: list[dict[str, Any]] = [{"params": decayed, "weight_decay": settings.decay}, {"params": others}]
        options: dict[str, Any] = {"betas": settings.adam_betas, "eps": settings.adam_epsilon}
        self._adam = torch.optim.Adam(groups, **options, decoupled_weight_decay=True, fused=True)
        for weight in (*decayed, *others):  # as Adam's first update would, so that `state` is complete before
            moments = {moment: torch.zeros_like(weight) for moment in MOMENTS}
            self._adam.state[weight] = {"step": torch.tensor(0.0, device=weight.device), **moments}
        self._d_model = d_model
        self._settings = settings
        self._keeps = False
        self._given: dict[str, Tensor] = {}

    def note_given(self, given: Mapping[str, Tensor]) -> None:
        """Note which rows of embeddings began as word vectors: 1, the others 0, by the name of the parameter.

        With training.freeze_embeddings, they get no gradient from now on.
        """
        self._given |= given
        if self._settings.freeze_embeddings:
            for name, rows in given.items():
                self._parameters[name].register_hook((1.0 - rows)[:, None].mul)

    def rate(self, step: int, spent: float = 0.0) -> float:
        """Return the learning rate of 1-based update `step` when `spent` of training.minutes is used up."""
        return learning_rate(step, self._d_model, self._settings, spent)

    def clip(self, over_ranks: Callable[[Tensor], Tensor] = lambda own: own) -> Tensor:
        """Clip the gradients in place to a global norm of training.clip_norm; return the norm () before clipping.

        `over_ranks` turns the norm of this rank's gradients into that of all ranks'.
        """
        parameters = list(self._parameters.values())
        gradients = [each.grad for each in parameters if each.grad is not None]
        norm = over_ranks(get_total_norm(gradients))
        if self._settings.clip_norm is not None:
            clip_grads_with_norm_(parameters, self._settings.clip_norm, norm)
        return norm

    def update(self, rate: float, skip: Tensor) -> None:
        """Apply the gradients with a learning rate of `rate` unless `skip` () is true, then clear them.

        `skip` stays on the device, so the host does not wait for it.
        """
        for group in self._adam.param_groups:
            group["lr"] = rate
        self._adam.found_inf = skip.float()  # type: ignore[attr-defined]  # tells the kernel to skip, as GradScaler does
        self._adam.step()
        self._muon.update(rate, skip)
        self.clear()

    def keep_gradients(self, keep: bool) -> None:
        """Have `clear` keep the gradients' tensors or not; to `keep` them, begin with new ones of 0."""
        self._keeps = keep
        if keep:
            for parameter in self._parameters.values():
                parameter.grad = torch.zeros_like(parameter)

    def clear(self) -> None:
        """Set all gradients to 0 if their tensors are kept, else to None."""
        self._adam.zero_grad(set_to_none=not self._keeps)
        for weight in self._muon.momenta:
            if not self._keeps:
                weight.grad = None
            elif weight.grad is not None:
                weight.grad.zero_()

    def state(self) -> dict[str, Tensor]:
        """Return Adam's moments, Muon's momenta and rows of word vectors, keyed `parameter:moment`."""
        state = {f"{name}:{GIVEN}": rows for name, rows in self._given.items()}
        for name, parameter in self._parameters.items():
            if parameter in self._muon.momenta:
                state[f"{name}:{MOMENTUM}"] = self._muon.momenta[parameter]
            else:
                for moment in MOMENTS:
                    state[f"{name}:{moment}"] = self._adam.state[parameter][moment]
        return state

    def load(self, state: dict[str, Tensor], step: int, frozen: Collection[str] = ()) -> None:
        """Restore moments saved by `Optimizer.state` after `step` updates, not counting skipped ones.

        Parts of the model that were `frozen` before begin with moments of zero. Updates change the given tensors,
        unless those are of another device or precision. Raise KeyError if a moment is missing, and ValueError if its
        shape is wrong.
        """
        for name, parameter in self._parameters.items():
            values = dict[str, Tensor]()
            for moment in (MOMENTUM,) if parameter in self._muon.momenta else MOMENTS:
                if part_of(name) in frozen:
                    values[moment] = torch.zeros_like(parameter)
                else:
                    values[moment] = state[f"{name}:{moment}"].to(parameter)  # precision may change
                if values[moment].shape != parameter.shape:
                    raise ValueError(f"{name}:{moment} has another shape than the weight {name}")
            if f"{name}:{GIVEN}" in state:
                rows = state[f"{name}:{GIVEN}"].to(parameter)
                if rows.shape != parameter.shape[:1]:
                    raise ValueError(f"{name}:{GIVEN} has another length than the weight {name}")
                self.note_given({name: rows})
                if self._settings.freeze_embeddings:  # rows that were trained until now have momentum
                    values = {moment: value * (1.0 - rows)[:, None] for moment, value in values.items()}
            if parameter in self._muon.momenta:
                self._muon.momenta[parameter] = values[MOMENTUM]
            else:
                count = torch.tensor(float(step), device=parameter.device)
                self._adam.state[parameter] = {"step": count, **values}


class Muon:
    """Momentum with orthogonalised updates (Jordan 2024): U Vᵀ where U S Vᵀ is the gradients' moving average.

    An update of an r × c matrix is scaled by 0.2 √max(r, c), so that its entries are as large as Adam's (Liu et al.
    2025) and one learning rate serves both.
    """

    def __init__(self, layers: Sequence[Linear], decay: float, dtype: torch.dtype) -> None:
        """Begin with momenta of zero for the matrices of `layers`, which compute by the same operations.

        Products have factors in `dtype`.
        """
        self.momenta = {layer.weight: torch.zeros_like(layer.weight, requires_grad=False) for layer in layers}
        self._decay = decay
        self._dtype = dtype
        self._operations = layers[0].operations if layers else PLAIN
        alike = defaultdict[tuple[int, int], list[Matrix]](list)  # by their shape
        for layer in layers:
            first = 0
            for rows in layer.outputs:
                alike[rows, layer.in_features].append((layer.weight, slice(first, first + rows)))
                first += rows
        self._alike = list[list[Matrix]]()  # matrices of one shape that are computed together
        for (rows, width), matrices in alike.items():
            weight, _ = matrices[0]
            most = max(1, AT_ONCE[weight.device.type] // (rows * width))
            for first in range(0, len(matrices), most):
                self._alike.append(matrices[first : first + most])

    @torch.no_grad()
    def update(self, rate: float, skip: Tensor) -> None:
        """Apply the gradients unless `skip` () is true; those of one shape together, to have few operations."""
        share = torch.where(skip, 0.0, 1.0 - MOMENTUM_DECAY)
        keep = torch.where(skip, 1.0, 1.0 - rate * self._decay)
        scale = torch.where(skip, 0.0, -LIKE_ADAM * rate)
        for matrices in self._alike:
            own = [(weight, rows) for weight, rows in matrices if weight.grad is not None]
            if not own:  # another rank has their gradients
                continue
            learning = [weight[rows] for weight, rows in own]
            momenta = [self.momenta[weight][rows] for weight, rows in own]
            grads = [weight.grad[rows] for weight, rows in own]  # type: ignore[index]  # not None
            grad = torch.stack(grads).nan_to_num_(0.0, 0.0, 0.0)  # (matrices, rows, width), as all below
            momentum = torch.stack(momenta).lerp_(grad, share.to(grad))
            _store(momentum, momenta)
            ahead = grad.lerp_(momentum, MOMENTUM_DECAY)  # Nesterov's
            steps = orthogonalised(ahead, self._dtype, self._operations)
            steps.mul_(scale * math.sqrt(max(ahead.shape[1:])))
            _store(torch.stack(learning).mul_(keep).add_(steps), learning)


def _store(stack: Tensor, tensors: list[Tensor]) -> None:
    """Copy the rows of a stack into tensors, on a GPU at once."""
    copy = torch_internals.find("torch:_foreach_copy_")
    if copy:
        copy(tensors, list(stack))
    else:
        for tensor, row in zip(tensors, stack, strict=True):
            tensor.copy_(row)


def orthogonalised(x: Tensor, dtype: torch.dtype, operations: Operations) -> Tensor:
    """Return matrices (n, r, c) with the singular vectors of x and singular values near 1, by Newton and Schulz.

    They begin with x divided by (Σ σ⁴)^¼, which bounds the singular values σ more closely than the Frobenius norm does,
    and so two steps suffice. Products are computed by `operations`, of factors in `dtype`.
    """

    def step(y: Tensor, square: Tensor, a: float, b: float, c: float) -> Tensor:
        factors = operations.products(square, square, c, square, b)
        return operations.products(factors, y, 1.0, y, a)

    is_tall = x.size(1) > x.size(2)
    y = x.mT.contiguous() if is_tall else x
    y = y / y.norm(dim=(1, 2), keepdim=True).clamp_min_(1e-7)
    y = y.to(dtype)
    square = operations.products(y, y.mT)  # of a matrix and its transpose, the smaller one
    bound = square.norm(dim=(1, 2), keepdim=True).mul_(SAFETY).clamp_min_(1e-7)  # of σ²
    first, second = NEWTON_SCHULZ
    y = step(y * bound.rsqrt(), square / bound, *first)
    y = step(y, operations.products(y, y.mT), *second)
    if is_tall:
        y = y.mT
    return y.to(x.dtype)
