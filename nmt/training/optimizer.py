"""Adam, Muon and their learning-rate schedules (section 5.3); their state is saved without pickle."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import accumulate
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
# a, b, c of a x + b x³ + c x⁵, one after the other: of all such polynomials they bring [0.04, 1] nearest to 1, within
# 0.29 (Amsel et al. 2025)
NEWTON_SCHULZ = ((7.0441, -19.4936, 14.169), (2.7004, -2.0091, 0.4562))
SAFETY = 1.04  # these polynomials diverge beyond 1, where rounding might lead
# Numbers of matrices that Muon computes at a time: what a core's cache holds; on a GPU, few launches in 1 GB
AT_ONCE = {"cpu": 1 << 16, "cuda": 1 << 25}
LIKE_ADAM = 0.2  # root mean square of Adam's updates, in learning rates


def learning_rate(step: int, d_model: int, settings: Training, spent: float = 0.0) -> float:
    """Return the learning rate of 1-based update `step` under `training.schedule`.

    All schedules share the paper's linear warm-up and peak; inverse_sqrt is equation 3. `spent` is the share of
    training.minutes that is used up: linear and cosine decay by it, or by updates where these end first.
    """
    warmup, scale = settings.warmup, settings.learning_rate_scale * d_model**-0.5
    if settings.schedule == "inverse_sqrt" or step <= warmup:
        return float(scale * min(step**-0.5, step * warmup**-1.5))
    peak = scale * warmup**-0.5
    if settings.schedule == "constant":
        return float(peak)
    done = min(1.0, max(spent, (step - warmup) / (settings.updates - warmup)))
    return float(peak * (1.0 - done if settings.schedule == "linear" else (1.0 + math.cos(math.pi * done)) / 2.0))


def count_moments(model: nn.Module, settings: Training) -> int:
    """Count the numbers in an optimizer's state: two for each parameter that is trained, one in Muon's matrices."""
    trained = {name: each for name, each in model.named_parameters() if part_of(name) not in settings.freeze}
    matrices = [
        each.weight for name, each in model.named_modules() if isinstance(each, Linear) and f"{name}.weight" in trained
    ]
    twice = 2 * sum(parameter.numel() for parameter in trained.values())
    return twice - (sum(matrix.numel() for matrix in matrices) if settings.optimizer == "muon" else 0)


class Optimizer:
    """Adam over named parameters, or Muon for the layers' matrices; the learning rate is that of the step."""

    def __init__(self, model: nn.Module, d_model: int, settings: Training) -> None:
        self._parameters = {name: each for name, each in model.named_parameters() if each.requires_grad}
        layers = [each for each in model.modules() if isinstance(each, Linear)] if settings.optimizer == "muon" else []
        layers = [layer for layer in layers if layer.weight.requires_grad]
        device = next(model.parameters()).device
        self._muon = Muon(layers, settings.decay, muon_dtype(settings.precision, device, d_model))
        decayed: list[Tensor] = []
        others: list[Tensor] = []
        for name, parameter in self._parameters.items():
            is_fixed = settings.freeze_embeddings and part_of(name) == "embeddings"
            if parameter not in self._muon.momenta:
                (decayed if parameter.dim() > 1 and not is_fixed else others).append(parameter)
        groups: list[dict[str, Any]] = [{"params": decayed, "weight_decay": settings.decay}, {"params": others}]
        options: dict[str, Any] = {"betas": settings.adam_betas, "eps": settings.adam_epsilon}
        self._adam = torch.optim.Adam(groups, **options, decoupled_weight_decay=True, fused=True)
        for weight in (*decayed, *others):  # what Adam's first update would begin with
            moments = {moment: torch.zeros_like(weight) for moment in MOMENTS}
            self._adam.state[weight] = {"step": torch.tensor(0.0, device=weight.device), **moments}
        self._d_model, self._settings, self._keeps = d_model, settings, False
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

        `over_ranks` returns it for all ranks, given that of the gradients which this rank has.
        """
        parameters = list(self._parameters.values())
        norm = over_ranks(get_total_norm([each.grad for each in parameters if each.grad is not None]))
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
            weight.grad = None if weight.grad is None or not self._keeps else weight.grad.zero_()

    def state(self) -> dict[str, Tensor]:
        """Return Adam's moments, Muon's momenta and rows of word vectors, keyed `parameter:moment`."""
        state = {f"{name}:{GIVEN}": rows for name, rows in self._given.items()}
        for name, parameter in self._parameters.items():
            if parameter in self._muon.momenta:
                state[f"{name}:{MOMENTUM}"] = self._muon.momenta[parameter]
            else:
                state |= {f"{name}:{moment}": self._adam.state[parameter][moment] for moment in MOMENTS}
        return state

    def load(self, state: dict[str, Tensor], step: int, frozen: Collection[str] = ()) -> None:
        """Restore moments saved by `Optimizer.state` after `step` updates, not counting skipped ones.

        Parts of the model that were `frozen` before begin with moments of zero. Updates change the given tensors,
        unless those are of another device or precision. Raise KeyError if a moment is missing, and ValueError if its
        shape is wrong.
        """
        for name, parameter in self._parameters.items():
            moments = (MOMENTUM,) if parameter in self._muon.momenta else MOMENTS
            if part_of(name) in frozen:
                state = state | {f"{name}:{moment}": torch.zeros_like(parameter) for moment in moments}
            values = {moment: state[f"{name}:{moment}"].to(parameter) for moment in moments}  # precision may change
            for moment, value in values.items():
                if value.shape != parameter.shape:
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
        self._decay, self._dtype, self._operations = decay, dtype, layers[0].operations if layers else PLAIN
        alike = defaultdict[tuple[int, int], list[tuple[Tensor, slice]]](list)  # matrices by their shape
        for layer in layers:
            for end, rows in zip(accumulate(layer.outputs), layer.outputs, strict=True):
                alike[rows, layer.in_features].append((layer.weight, slice(end - rows, end)))
        self._alike = list[list[tuple[Tensor, slice]]]()  # so many of one shape as are computed at a time
        for (rows, width), matrices in alike.items():
            most = max(1, AT_ONCE[matrices[0][0].device.type] // (rows * width))
            self._alike += [matrices[first : first + most] for first in range(0, len(matrices), most)]

    @torch.no_grad()
    def update(self, rate: float, skip: Tensor) -> None:
        """Apply the gradients unless `skip` () is true; those of one shape together, to have few operations."""
        share = torch.where(skip, 0.0, 1.0 - MOMENTUM_DECAY)
        keep, scale = torch.where(skip, 1.0, 1.0 - rate * self._decay), torch.where(skip, 0.0, -LIKE_ADAM * rate)
        for matrices in self._alike:
            own = [(w[rows], self.momenta[w][rows], w.grad[rows]) for w, rows in matrices if w.grad is not None]
            if own:  # it has gradients on another rank otherwise
                learning, momenta, grads = (list(each) for each in zip(*own, strict=True))
                grad = torch.stack(grads).nan_to_num_(0.0, 0.0, 0.0)
                momentum = torch.stack(momenta).lerp_(grad, share.to(grad))
                _store(momentum, momenta)
                ahead = grad.lerp_(momentum, MOMENTUM_DECAY)  # Nesterov's
                steps = orthogonalised(ahead, self._dtype, self._operations).mul_(
                    scale * math.sqrt(max(ahead.shape[1:]))
                )
                _store(torch.stack(learning).mul_(keep).add_(steps), learning)


def _store(stack: Tensor, tensors: list[Tensor]) -> None:
    """Copy the rows of a stack into tensors, on a GPU at once."""
    if copy := torch_internals.find("torch:_foreach_copy_"):
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
        return operations.products(operations.products(square, square, c, square, b), y, 1.0, y, a)

    y = x.mT.contiguous() if x.size(1) > x.size(2) else x
    y = y / y.norm(dim=(1, 2), keepdim=True).clamp_min_(1e-7)
    y = y.to(dtype)
    square = operations.products(y, y.mT)
    bound = square.norm(dim=(1, 2), keepdim=True).mul_(SAFETY).clamp_min_(1e-7)  # of σ²
    y = step(y * bound.rsqrt(), square / bound, *NEWTON_SCHULZ[0])
    y = step(y, operations.products(y, y.mT), *NEWTON_SCHULZ[1])
    return (y.mT if x.size(1) > x.size(2) else y).to(x.dtype)
