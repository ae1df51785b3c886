"""Adam and its learning-rate schedules (section 5.3); its state is saved without pickle."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from nmt.recipe import Training

MOMENTS = ("exp_avg", "exp_avg_sq")  # keys in the state of PyTorch's Adam


def learning_rate(step: int, d_model: int, settings: Training) -> float:
    """Return the learning rate of 1-based update `step` under `training.schedule`.

    All schedules share the paper's linear warm-up and peak; inverse_sqrt is equation 3.
    """
    warmup, scale = settings.warmup, settings.learning_rate_scale * d_model**-0.5
    if settings.schedule == "inverse_sqrt" or step <= warmup:
        return float(scale * min(step**-0.5, step * warmup**-1.5))
    peak = scale * warmup**-0.5
    if settings.schedule == "constant":
        return float(peak)
    done = min(1.0, (step - warmup) / (settings.updates - warmup))
    return float(peak * (1.0 - done if settings.schedule == "linear" else (1.0 + math.cos(math.pi * done)) / 2.0))


class Optimizer:
    """Adam over named parameters; the learning rate is a pure function of the step."""

    def __init__(self, model: nn.Module, d_model: int, settings: Training) -> None:
        self._parameters = dict(model.named_parameters())
        decayed: list[Tensor] = []
        others: list[Tensor] = []
        files = {"source": settings.source_embeddings, "target": settings.target_embeddings}
        sides = [side for side, file in files.items() if file and settings.freeze_embeddings]
        frozen = {id(model.get_parameter(f"{side}_embedding.weight")) for side in sides}
        for parameter in self._parameters.values():
            (decayed if parameter.dim() > 1 and id(parameter) not in frozen else others).append(parameter)
        groups: list[dict[str, Any]] = [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": others}]
        options: dict[str, Any] = {"betas": settings.adam_betas, "eps": settings.adam_epsilon}
        self._adam = torch.optim.Adam(groups, **options, decoupled_weight_decay=True, fused=True)
        self._d_model, self._settings = d_model, settings

    def rate(self, step: int) -> float:
        """Return the learning rate of 1-based update `step`."""
        return learning_rate(step, self._d_model, self._settings)

    def clip(self) -> Tensor:
        """Clip the gradients in place to a global norm of training.clip_norm; return the norm () before clipping."""
        parameters = list(self._parameters.values())
        norm = get_total_norm([parameter.grad for parameter in parameters if parameter.grad is not None])
        if self._settings.clip_norm is not None:
            clip_grads_with_norm_(parameters, self._settings.clip_norm, norm)
        return norm

    def update(self, step: int, skip: Tensor) -> None:
        """Apply the gradients as 1-based update `step` unless `skip` () is true, then clear them.

        `skip` stays on the device, so the host does not wait for it.
        """
        for group in self._adam.param_groups:
            group["lr"] = self.rate(step)
        self._adam.found_inf = skip.float()  # type: ignore[attr-defined]  # tells the kernel to skip, as GradScaler does
        self._adam.step()
        self.clear()

    def clear(self) -> None:
        """Set all gradients to None."""
        self._adam.zero_grad(set_to_none=True)

    def bytes_to_come(self) -> int:
        """Return the bytes that the first update will allocate for Adam's moments; 0 afterwards."""
        return sum(2 * parameter.nbytes for parameter in self._parameters.values() if parameter not in self._adam.state)

    def state(self) -> dict[str, Tensor]:
        """Return Adam's moments, keyed `parameter:moment`; empty before the first update."""
        return {
            f"{name}:{moment}": self._adam.state[parameter][moment]
            for name, parameter in self._parameters.items()
            if parameter in self._adam.state
            for moment in MOMENTS
        }

    def load(self, state: dict[str, Tensor], step: int) -> None:
        """Restore moments saved by `Optimizer.state` after `step` updates, not counting skipped ones.

        Raise KeyError if a moment is missing, and ValueError if its shape is wrong.
        """
        for name, parameter in self._parameters.items():
            self._adam.state[parameter] = {"step": torch.tensor(float(step), device=parameter.device)}
            for moment in MOMENTS:
                value = state[f"{name}:{moment}"]
                if value.shape != parameter.shape:
                    raise ValueError(f"{name}:{moment} has another shape than the weight {name}")
                self._adam.state[parameter][moment] = value.to(parameter)  # training.precision may have changed
