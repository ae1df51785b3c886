"""Adam and the learning rate of the paper (section 5.3), with a state that is saved without pickle."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from nmt.recipe import Training


def learning_rate(step: int, d_model: int, settings: Training) -> float:
    """Return the rate of update `step`, counted from 1, by `training.schedule`.

    All schedules share the paper's linear warm-up and its peak; inverse_sqrt is equation 3.
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
        given = {"source": settings.source_embeddings, "target": settings.target_embeddings}
        sides = [side for side, file in given.items() if file and settings.freeze_embeddings]
        held = {id(model.get_parameter(f"{side}_embedding.weight")) for side in sides}
        for parameter in self._parameters.values():
            (decayed if parameter.dim() > 1 and id(parameter) not in held else others).append(parameter)
        groups: list[dict[str, Any]] = [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": others}]
        self._adam = torch.optim.Adam(
            groups,
            betas=settings.adam_betas,
            eps=settings.adam_epsilon,
            decoupled_weight_decay=True,
            fused=True,
        )
        self._d_model, self._settings = d_model, settings

    def rate(self, step: int) -> float:
        """The learning rate of update `step`, counted from 1."""
        return learning_rate(step, self._d_model, self._settings)

    def update(self, step: int, skip: Tensor) -> None:
        """Applies the gradients as update `step`, counted from 1, unless `skip` () is true; then drops them.

        Whether to skip is decided on the device, so that nothing waits for it.
        """
        for group in self._adam.param_groups:
            group["lr"] = self.rate(step)
        self._adam.found_inf = skip.float()  # type: ignore[attr-defined]  # what gradient scalers tell the fused kernel
        self._adam.step()
        self.clear()

    def clear(self) -> None:
        """Drops the gradients."""
        self._adam.zero_grad(set_to_none=True)

    def bytes_to_come(self) -> int:
        """Memory that the first update will allocate for moments; 0 after it."""
        return sum(2 * parameter.nbytes for parameter in self._parameters.values() if parameter not in self._adam.state)

    def state(self) -> dict[str, Tensor]:
        """Adam's moments by parameter name; empty before the first update."""
        return {
            f"{name}:{moment}": self._adam.state[parameter][moment]
            for name, parameter in self._parameters.items()
            if parameter in self._adam.state
            for moment in ("exp_avg", "exp_avg_sq")
        }

    def load(self, state: dict[str, Tensor], step: int) -> None:
        """Restores what `state` returned after `step` updates, not counting skipped ones.

        Raises KeyError where a parameter's moments are missing, and ValueError where they have another shape.
        """
        for name, parameter in self._parameters.items():
            for moment in ("exp_avg", "exp_avg_sq"):
                if state[f"{name}:{moment}"].shape != parameter.shape:
                    raise ValueError(f"{name}:{moment} has another shape than the weight {name}")
            self._adam.state[parameter] = {
                "step": torch.tensor(float(step), device=parameter.device),
                "exp_avg": state[f"{name}:exp_avg"].to(parameter),  # training.precision may have changed
                "exp_avg_sq": state[f"{name}:exp_avg_sq"].to(parameter),
            }
