"""How far a run has come and what it has cost: saved with every checkpoint, and restored from it."""

from __future__ import annotations

import time
from dataclasses import asdict, field, replace
from typing import Annotated, Any, Self

import torch
from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

from nmt.bundle import LARGEST_FIGURE, POSITION, Bundle
from nmt.errors import UserError
from nmt.files import remedy
from nmt.training.flops import device_name, sustained_flops

Count = Annotated[int, Field(ge=0, lt=2**63)]
Figure = Annotated[float, Field(ge=0, le=LARGEST_FIGURE)]


@dataclass(config=ConfigDict(strict=True, extra="forbid", allow_inf_nan=False))
class RunState:
    """How far a run has come, in training.json, and what it has cost."""

    step: Count
    """Updates done, including skipped ones"""
    epoch: Count
    offset: Count
    """Updates of this epoch done"""
    skipped: Count = 0
    """Updates that changed nothing because a gradient was not finite"""
    device_tokens: Count = 0
    """Size of micro-batches, on which sums depend to the last bit; 0 before it is known"""
    place: str = ""
    """Devices that this size is meant for, such as 8 × NVIDIA H200"""
    tokens: Count = 0
    """Target tokens seen"""
    flops: Figure = 0.0
    """Of the model, forward and backward, over all devices"""
    seconds: Figure = 0.0
    """Time spent in training and validation, over all resumptions"""
    device_seconds: Figure = 0.0
    """The same, times the number of devices"""
    estimated_flops: Figure | None = 0.0
    """The same, times what a device sustains in single precision: the paper's estimate; None where not known"""
    devices: dict[str, Figure] = field(default_factory=dict)
    """Seconds by the devices that computed, such as 8 × NVIDIA H200"""

    @classmethod
    def of(cls, checkpoint: Bundle) -> Self:
        """Reads the state from a checkpoint's training.json and from the cost in its bundle.json.

        The latter includes the last validation. Earlier versions did not estimate FLOPs. Raises UserError where
        something is missing, of the wrong kind, or of another update than the checkpoint.
        """
        found = checkpoint.position()
        values = found if isinstance(found, dict) else {}
        try:
            state = replace(cls(**{"estimated_flops": None, **values}), **checkpoint.cost)
        except ValidationError as error:
            names = error.errors()[0]["loc"] or ("a name",)  # of one that is no text, Pydantic says nothing
            problem = f"{names[0]} is missing or of the wrong kind"
        else:
            if state.step == checkpoint.step >= state.skipped:
                return state
            problem = f"its position is not that of update {checkpoint.step}"
        raise UserError(
            f"{checkpoint.path}: its training state is not complete: {problem}", remedy(checkpoint.path / POSITION)
        )


COST = ("seconds", "device_seconds", "tokens", "flops", "estimated_flops", "devices")
"""Fields of `RunState` that bundle.json holds under `cost`: sums over all resumptions of a run."""


def cost_of(state: RunState) -> dict[str, Any]:
    """Return what a run has cost so far, as plain values, without the work that was lost with a killed process."""
    values = asdict(state)
    return {name: values[name] for name in COST}


class Clock:
    """Adds the time that passes to a run's state, and what it costs by the paper's estimate (section 6.1)."""

    def __init__(self, state: RunState, devices: int, device: torch.device) -> None:
        self._state, self._devices = state, devices
        self._sustained = sustained_flops(device)
        self._place = f"{devices} × {device_name(device)}"
        self._last = time.perf_counter()

    def tick(self) -> None:
        """Adds the time since the last tick."""
        now, state = time.perf_counter(), self._state
        seconds = now - self._last
        state.seconds += seconds
        state.device_seconds += self._devices * seconds
        state.devices[self._place] = state.devices.get(self._place, 0.0) + seconds
        if state.estimated_flops is not None:
            state.estimated_flops += self._devices * seconds * self._sustained
        self._last = now
