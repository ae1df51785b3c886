"""The last lines of `nmt train`."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from pathlib import Path

from nmt.checkpoint.reading import Bundle, best, survey
from nmt.recipe import Recipe
from nmt.system.console import BEYOND, clock, figure
from nmt.system.errors import counted
from nmt.training.dev_outputs import DevExample
from nmt.training.directory import PAGE
from nmt.training.log import LOG, dev_scores
from nmt.training.run_state import BestScore, RunState

FEW_UPDATES = 20  # which hardly change what a run goes on from


def farewell(
    recipe: Recipe,
    out: Path,
    state: RunState,
    top: BestScore,
    sample: DevExample | None,
    minutes: float | None,
    began: int,
) -> list[str]:
    """Return the last lines of `nmt train`: why the run ended, its scores, a sample, its cost, and what to do next.

    `top` counts the checkpoints since the best. `minutes`, if training.minutes are used up, is what to set them to for
    the run to go on. `began` is the update at which this process began. The estimated cost follows section 6.1 of the
    paper.
    """
    found, _ = survey(out)
    bundle = best(found) or found[-1]  # the newest without dev scores
    task = bundle.task
    training = recipe.training
    checkpoints = top.without_improvement
    ending = f"{state.step:,} of {counted(training.updates, 'update')} in {clock(state.seconds)}"
    more = f"--set training.updates={2 * state.step}"  # exceeds `updates` even if that was lowered
    if minutes is not None:
        ending = f"training.minutes {training.minutes:g} reached; {ending}"
        more = f"--set training.minutes={minutes:g}"
    elif state.step < training.updates:
        ending = f"no better dev {task.label} for {counted(checkpoints, 'checkpoint')}; {ending}"
        more = f"--set training.patience={2 * checkpoints}"

    rows = dict[str, str]()
    scores = dev_scores(out / LOG, task.metric)
    if len(scores) > 1:
        rows[f"dev {task.label}"] = sparkline(scores)
    if sample is not None:
        rows.update(sample.rows())
    rows["checkpoint"] = f"update {bundle.step:,}: {bundle.path}"
    if bundle.dev_score is not None:
        rows["checkpoint"] = f"dev {task.label} {figure(bundle.dev_score)}, {rows['checkpoint']}"
    rows["training cost"] = f"{state.flops:.2e} FLOPs counted exactly, {state.tokens:,} target tokens"
    sustained = state.estimated_flops / state.device_seconds / 1e12
    by_device = f"{state.device_seconds:,.0f} device seconds × {sustained:.3g} TFLOP/s in fp32"
    rows["by the paper"] = f"{state.estimated_flops:.2e} FLOPs: {by_device}"
    rows["devices"] = ", ".join(state.devices)
    rows["run"] = str(out)
    if (out / PAGE).exists():
        rows["report"] = str(out / PAGE)
    warning = _warning(recipe, state.step, bundle)
    if warning:
        rows["warning"] = warning
    if state.step == began:
        rows["next"] = f"to continue: {more}"
    elif training.minutes is None:  # otherwise an average is made now
        rows["next"] = shlex.join(["nmt", "average", str(out)])
    return [f"finished: {ending}", *(f"  {name:14} {text}" for name, text in rows.items())]


def _warning(recipe: Recipe, step: int, bundle: Bundle) -> str:
    """Say why the output of a run's best checkpoint is poor after `step` updates; empty if it may be good."""
    training = recipe.training
    may_end_early = training.init_from is not None or training.is_timed
    if may_end_early and step < FEW_UPDATES:
        return f"only {counted(step, 'update')}: it has hardly learned anything"
    if not may_end_early and step < training.warmup:
        return f"ended during warm-up ({counted(training.warmup, 'update')}): expect poor output"
    if bundle.task.name != "translate" or not bundle.is_poor:
        return ""
    value = bundle.scores["perplexity"]
    advice = "train longer, or expect poor output"
    if value >= BEYOND:
        advice = "training has diverged; start again with a lower training.learning_rate_scale"
    return f"dev perplexity {figure(value)}: {advice}"


def sparkline(values: Sequence[float]) -> str:
    """Draw at most 40 of the values, the last one included, as bars from the lowest to the highest value."""
    drawn = values[:: -math.ceil(len(values) / 40)][::-1]  # every n-th, counted from the last
    low = min(values)
    high = max(values)
    bars = "".join("▁▂▃▄▅▆▇█"[round(7 * (value - low) / (high - low or 1))] for value in drawn)
    return f"{bars}  {figure(low)} to {figure(high)}"
