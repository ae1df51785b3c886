"""Cost and dev score of runs: the last lines of `nmt train`, and the columns of the paper's Table 2."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nmt.bundle import Bundle, best, resolve, survey
from nmt.console import Console, clock
from nmt.errors import UserError, printable
from nmt.training.samples import PAGE
from nmt.training.state import COST, RunState
from nmt.training.validation import Validation

UNKNOWN = "–"


def summary(state: RunState, out: Path, ending: str, following: str) -> list[str]:
    """The last lines of `nmt train`: how the run in `out` ended, its best checkpoint, its cost, and what to do next."""
    found, _ = survey(out)
    bundle = best(found) or found[-1]
    scored = "" if bundle.dev_score is None else f"dev {bundle.kind.label} {bundle.dev_score:.2f}, "
    rows = {
        "checkpoint": f"{scored}update {bundle.step:,}: {bundle.path}",
        "training cost": f"{state.flops:.2e} FLOPs counted exactly, {state.tokens:,} target tokens",
        "by the paper": _estimate(state),
        "devices": ", ".join(state.devices),
        "run": str(out),
        **({"report": str(page)} if (page := out / PAGE).exists() else {}),
        "next": following,
    }
    return [f"finished: {ending}", *(f"  {name:14} {text}" for name, text in rows.items())]


def _estimate(state: RunState) -> str:
    """The cost of training as section 6.1 of the paper estimates it."""
    if state.estimated_flops is None:
        return "not known"
    sustained = state.estimated_flops / state.device_seconds / 1e12
    seconds = f"{state.device_seconds:,.0f} device seconds"
    return f"{state.estimated_flops:.2e} FLOPs: {seconds} × {sustained:.3g} TFLOP/s in fp32"


@dataclass(frozen=True)
class RunSummary:
    """Dev score and cost of a run: a row of the table."""

    path: Path
    bundle: Bundle
    """The bundle that a command would use"""
    updates: int
    score: float | None
    """Of the bundle on the development set, as in training"""
    signature: str | None
    cost: dict[str, Any]
    """Of the whole run; see `COST`. Empty where the bundle does not have it"""

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        score = {"metric": self.bundle.kind.metric, "score": self.score, "signature": self.signature}
        cost = {name: self.cost.get(name) for name in COST}
        return {"model": str(self.path), "bundle": str(self.bundle.path), "dev": score, "updates": self.updates, **cost}

    def cells(self) -> list[str]:
        """A text for each column of `HEADER`."""
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


def summarise(path: Path, device: torch.device, console: Console) -> RunSummary:
    """Reads the summary of a run from its directory or one of its bundles.

    A bundle without a dev score is scored here if its data is prepared. Raises UserError where there is no such model.
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
    """The columns of Table 2, aligned, and below them how the dev scores were computed."""
    rows = [HEADER, *(run.cells() for run in runs)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADER))]
    lines = []
    for row in rows:
        model, *figures, devices = row
        cells = [model.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(figures, widths[1:], strict=False))]
        lines.append("  ".join([*cells, devices]))
    signatures = {f"dev {run.bundle.kind.label}: {run.signature}": None for run in runs if run.signature}
    return "\n".join(map(printable, (*lines, *signatures)))
