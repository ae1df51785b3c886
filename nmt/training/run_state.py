"""How far a run is: its position and its cost, as a checkpoint stores them, and its best dev scores.

The report's process starts often, so importing this module loads neither torch nor pyarrow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

import pydantic.dataclasses
from pydantic import ConfigDict, ValidationError

from nmt.checkpoint.reading import POSITION, Bundle, Figure, Natural, best
from nmt.recipe import Task, Training
from nmt.system.errors import UserError
from nmt.system.files import remedy
from nmt.training.budget import Budget

# Fields of `RunState` under `cost` in bundle.json: sums over all resumptions, and a validation's seconds
COST = ("seconds", "device_seconds", "tokens", "flops", "estimated_flops", "devices", "scoring", "spent")


@pydantic.dataclasses.dataclass(config=ConfigDict(strict=True, extra="forbid", allow_inf_nan=False))
class RunState:
    """Progress and cost of a run, as stored in training.json."""

    step: Natural  # updates done, including skipped ones
    epoch: Natural
    offset: Natural  # updates done in this epoch
    skipped: Natural = 0  # updates without effect, because a gradient was not finite
    device_tokens: Natural = 0  # micro-batch size, which affects rounding; 0 until chosen
    place: str = ""  # devices for which that size was chosen, such as 8 × NVIDIA H200
    tokens: Natural = 0  # target tokens processed
    flops: Figure = 0.0  # forward and backward, over all devices
    seconds: Figure = 0.0  # of training and validation, over all resumptions
    device_seconds: Figure = 0.0  # `seconds` × number of devices
    estimated_flops: Figure = 0.0  # `device_seconds` × sustained fp32 FLOP/s, as the paper does
    devices: dict[str, Figure] = field(default_factory=dict)  # seconds by devices used, such as 8 × NVIDIA H200
    scoring: Figure = 0.0  # seconds of a validation, as last measured or estimated; 0 if unknown
    spent: Figure = 0.0  # seconds of whole commands, from their start, which training.minutes limits
    fallen: Figure = 0.0  # share by which training.minutes have brought the learning rate down; 1 once they are over

    @classmethod
    def of(cls, checkpoint: Bundle) -> Self:
        """Read the state from a checkpoint's training.json, and its cost from bundle.json.

        The cost in bundle.json also includes the last validation. Raise UserError if a value is missing or has the
        wrong type, or if the update number is wrong.
        """
        position = checkpoint.position()
        if not isinstance(position, dict):
            position = {}
        try:
            state = replace(cls(**position), **checkpoint.cost)
        except ValidationError as error:
            names = error.errors()[0]["loc"] or ("a name",)  # Pydantic gives no location for a key that is not a string
            raise incomplete(checkpoint, f"{names[0]} is missing or of the wrong kind") from None
        if not state.step == checkpoint.step >= state.skipped:
            raise incomplete(checkpoint, f"its position is not that of update {checkpoint.step}")
        return state

    def is_checkpoint_due(self, training: Training, saved: RunState, budget: Budget) -> bool:
        """Return whether to save a checkpoint after the next update; `saved` is the state of the last one.

        It remains due until it is saved: an update may be skipped, after which nothing is.
        """
        every = training.checkpoint_updates
        if every:
            return (self.step + 1) // every > saved.step // every
        minutes = training.checkpoint_minutes
        return minutes is not None and self.seconds - saved.seconds >= budget.between(minutes)

    def begin(self, epoch: int, offset: int) -> None:
        """Begin the next update, which is the one at `offset` of an epoch."""
        self.step += 1
        self.epoch = epoch
        self.offset = offset + 1

    def begin_epoch(self) -> None:
        """Leave out the rest of this epoch."""
        self.epoch += 1
        self.offset = 0

    def compute_on(self, place: str, device_tokens: int) -> None:
        """Note the micro-batch size for this process's devices, as `place` names them."""
        self.place = place
        self.device_tokens = device_tokens

    def spend(self, seconds: float, devices: str, number: int, sustained: float) -> None:
        """Count seconds of a `number` of devices, each of which sustains so many fp32 FLOP/s."""
        self.seconds += seconds
        self.device_seconds += number * seconds
        self.devices[devices] = self.devices.get(devices, 0.0) + seconds
        self.estimated_flops += number * seconds * sustained

    def keep(self, budget: Budget) -> None:
        """Store what a resumed run must know of its minutes."""
        self.spent = budget.spent
        self.fallen = budget.fallen
        self.scoring = budget.scoring or 0.0

    @property
    def cost(self) -> dict[str, Any]:
        """The run's cost so far as plain values, excluding work lost when a process was killed."""
        values = asdict(self)
        return {name: values[name] for name in COST}


def incomplete(checkpoint: Bundle, problem: object) -> UserError:
    """Return the error that a checkpoint's training state lacks something."""
    file = checkpoint.path / POSITION
    return UserError(f"{checkpoint.path}: its training state is not complete: {problem}", remedy(file))


@dataclass
class BestScore:
    """Dev scores of a run's best checkpoint, and the number of checkpoints since then."""

    scores: dict[str, float] = field(default_factory=dict)  # by name; empty until a checkpoint is scored
    without_improvement: int = 0  # checkpoints since the best

    @classmethod
    def of(cls, found: Sequence[Bundle], data: Mapping[str, str]) -> Self:
        """Return that of a run's checkpoints, newest first, by their scores on the development set of `data`."""
        scored = [each for each in found if each.scores and each.is_scored_on(data["dev_set"])]
        top = best(scored)
        if top is None:
            return cls()
        return cls(top.scores, scored[0].info.without_improvement)

    def add(self, scores: dict[str, float], task: Task) -> bool:
        """Add the next checkpoint's dev scores; return whether it is the best so far."""
        is_best = not self.scores or task.rank(scores[task.metric]) > task.rank(self.scores[task.metric])
        if is_best:
            self.scores = scores
            self.without_improvement = 0
        else:
            self.without_improvement += 1
        return is_best
