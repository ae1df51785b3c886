"""What runs have scored and cost, as `nmt score --runs` lists them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nmt.checkpoint.reading import Bundle, survey
from nmt.exchange.resolve import resolve
from nmt.system.console import Console, clock, figure, tabulated
from nmt.system.errors import UserError, printable
from nmt.training.run_state import COST
from nmt.training.validation import Validation

UNKNOWN = "–"
COSTS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "FLOPs by the paper": ("estimated_flops", "{:.1e}".format),
    "FLOPs counted": ("flops", "{:.1e}".format),
    "time": ("seconds", clock),
    "target tokens": ("tokens", "{:,}".format),
}


@dataclass(frozen=True)
class RunSummary:
    """Dev score and cost of a run: one row of the table."""

    path: Path
    bundle: Bundle  # bundle that commands use by default
    updates: int
    score: float | None  # the bundle's dev score, computed as in training
    signature: str | None
    cost: dict[str, Any]  # of the whole run, keyed by `COST`; empty if the bundle lacks it

    def as_dict(self) -> dict[str, Any]:
        """Return the values for --json."""
        score = {"metric": self.bundle.task.metric, "score": self.score, "signature": self.signature}
        cost = {name: self.cost.get(name) for name in COST}
        return {"model": str(self.path), "bundle": str(self.bundle.path), "dev": score, "updates": self.updates, **cost}

    def cells(self) -> dict[str, str]:
        """Return the row's cells, keyed by column heading."""
        cells = {"model": str(self.path), "dev score": UNKNOWN}
        if self.score is not None:
            cells["dev score"] = f"{self.bundle.task.label} {figure(self.score)}"
        for heading, (key, write) in COSTS.items():
            value = self.cost.get(key)
            cells[heading] = UNKNOWN if value is None else write(value)
        cells["updates"] = f"{self.updates:,}"
        cells["devices"] = ", ".join(self.cost.get("devices", ())) or UNKNOWN
        return cells


def summarise(path: Path, device: torch.device, console: Console) -> RunSummary:
    """Summarise a run, given its directory or one of its bundles.

    Score a bundle without a dev score now, if its data is prepared. Raise UserError if `path` holds no model.
    """
    bundle, note = resolve(path)
    console.say(note)
    checkpoints, _ = survey(path)
    newest = checkpoints[-1] if checkpoints else bundle
    metric = bundle.task.metric
    score = bundle.dev_score
    signature = bundle.signatures.get(metric)
    if score is None:
        try:
            validation = Validation.of(bundle)
        except UserError as error:
            console.say(f"no dev score: {error.message}")
        else:
            dev = validation(bundle.model(device))
            score = dev.scores[metric]
            signature = dev.signatures[metric]
    return RunSummary(path, bundle, newest.step, score, signature, newest.cost)


def table(runs: Sequence[RunSummary], width: int = 0) -> str:
    """Format runs as a table with the columns of the paper's Table 2, followed by their dev scores' signatures.

    `width` is that of `nmt.system.console.tabulated`.
    """
    lines = tabulated([run.cells() for run in runs], width)
    # Each signature once, in the order of the runs
    signatures = {f"dev {run.bundle.task.label}: {run.signature}": None for run in runs if run.signature}
    return "\n".join(map(printable, (*lines, *signatures)))
