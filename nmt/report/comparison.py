"""What `nmt score --runs A B --html FILE` shows of a run or, of which less is known, of a bundle."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nmt.console import Console
from nmt.errors import UserError
from nmt.report.record import RunRecord, read_run

if TYPE_CHECKING:
    from nmt.training.cost import RunSummary


def record_of(run: RunSummary, console: Console) -> RunRecord:
    """What a page can show of a run; of a bundle on its own its recipe, dev score and cost, and no curves."""
    try:
        return read_run(run.path)
    except UserError as error:
        console.say(f"{error.message}: the page has its dev score and cost, but no curves")
    point = {"step": float(run.updates), "seconds": run.cost.get("seconds"), "tokens": run.cost.get("tokens")}
    point |= {"score": run.score, "perplexity": None}
    return RunRecord(
        path=run.path,
        recipe=run.bundle.recipe,
        base={},
        base_name=None,
        parameters=None,
        logged={name: np.zeros(0) for name in ("step", "seconds", "tokens")},
        validated={name: np.array([np.nan if value is None else value]) for name, value in point.items()},
        signature=run.signature,
        sources=(),
        references=(),
        dev_outputs=(),
        data={},
        cost=run.cost,
        averages=(),
    )
