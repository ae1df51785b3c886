"""What runs took and what they reached: `nmt train`'s last lines, and the columns of the paper's Table 2."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nmt.bundle import Bundle, resolve, survey
from nmt.console import Console
from nmt.errors import UserError, printable
from nmt.training.loop import Position
from nmt.training.progress import clock
from nmt.training.validation import Validation

COST = ("seconds", "device_seconds", "tokens", "flops", "estimated_flops", "devices")
"""What bundle.json says of a run under `cost`, over all its parts: fields of `Position`."""
UNKNOWN = "–"


def cost_of(position: Position) -> dict[str, Any]:
    """What it took to come so far, as plain values; work that a killed process lost is not known of."""
    values = position.to_json()
    return {name: values[name] for name in COST}


def describe_cost(position: Position) -> str:
    """For people."""
    estimate = "not known"
    if position.estimated_flops is not None:
        sustained = position.estimated_flops / position.device_seconds / 1e12
        estimate = (
            f"{position.estimated_flops:.2e} (time × devices, {position.device_seconds:,.0f} s, × "
            f"{sustained:.3g} TFLOP/s sustained in single precision by {', '.join(position.devices)})"
        )
    return (
        f"{position.flops:.2e} FLOPs by the model's own count; as the paper estimates it, {estimate}; "
        f"{position.tokens:,} target tokens in {clock(position.seconds)}"
    )


@dataclass(frozen=True)
class RunSummary:
    """A row of the table."""

    path: Path
    bundle: Bundle
    """The one that a command would use"""
    updates: int
    score: float | None
    """Of the bundle on the development set, as in training"""
    signature: str | None
    cost: dict[str, Any]
    """Of the whole run; see `COST`. Empty in bundles that do not say"""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        score = {"metric": self.bundle.kind.metric, "score": self.score, "signature": self.signature}
        cost = {name: self.cost.get(name) for name in COST}
        return {"model": str(self.path), "bundle": str(self.bundle.path), "dev": score, "updates": self.updates, **cost}

    def cells(self) -> list[str]:
        """For people."""
        cost = {name: value for name, value in self.cost.items() if value is not None}
        return [
            str(self.path),
            UNKNOWN if self.score is None else f"{self.bundle.kind.label} {self.score:.2f}",
            f"{cost['estimated_flops']:.1e}" if "estimated_flops" in cost else UNKNOWN,
            f"{cost['flops']:.1e}" if "flops" in cost else UNKNOWN,
            clock(cost["seconds"]) if "seconds" in cost else UNKNOWN,
            f"{cost['tokens']:,}" if "tokens" in cost else UNKNOWN,
            f"{self.updates:,}",
            ", ".join(cost.get("devices", ())) or UNKNOWN,
        ]


HEADER = ["model", "dev score", "FLOPs by the paper", "FLOPs counted", "time", "target tokens", "updates", "devices"]


def read_run(path: Path, device: torch.device, console: Console) -> RunSummary:
    """What a run's directory, or a bundle of it, says; where that has no dev score, it is scored, if its data is here.

    Raises UserError where there is no such model.
    """
    bundle, note = resolve(path)
    console.say(note)
    newest = next(reversed(survey(path)[0]), bundle)
    score, signature = bundle.dev_score, bundle.info.get("signature")
    if score is None:
        try:
            validation = Validation.of(bundle)
        except UserError as error:
            console.say(f"no dev score: {error.message}")
        else:
            dev = validation(bundle.model(device))
            score, signature = dev.score, dev.signature
    return RunSummary(path, bundle, newest.step, score, signature, newest.cost)


def table(runs: Sequence[RunSummary]) -> str:
    """Table 2's columns, aligned, and how the dev scores were computed."""
    rows = [HEADER, *(run.cells() for run in runs)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADER))]
    lines = []
    for row in rows:
        model, *figures, devices = row
        cells = [model.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(figures, widths[1:], strict=False))]
        lines.append("  ".join([*cells, devices]))
    signatures = {f"dev {run.bundle.kind.label}: {run.signature}": None for run in runs if run.signature}
    return "\n".join(map(printable, (*lines, *signatures)))
