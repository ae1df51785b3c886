"""What a run has cost, over all its resumptions, and what it tells of its memory."""

from __future__ import annotations

import resource
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from reverse_task import BARE, small

from nmt.checkpoint.reading import Bundle, checkpoints
from nmt.data.corpus import Corpus, Lengths
from nmt.data.epochs import plan_epoch
from nmt.recipe import Model
from nmt.system.launchers import World
from nmt.training import meter
from nmt.training.distributed import Group
from nmt.training.flops import training_flops
from nmt.training.meter import Meter
from nmt.training.run_state import RunState
from nmt.training.validation import DevScores, Validation

SMALL = small("updates: 12, log_updates: 4", *BARE)

SCORED = "data.name=reverse", "data.valid=[{source: valid.a, target: valid.b}]"


@pytest.mark.parametrize(("platform", "bytes_per_unit"), [("linux", 1024), ("darwin", 1)])
def test_peak_memory_is_in_bytes_on_every_system(
    platform: str, bytes_per_unit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    meter = Meter(RunState(step=1, epoch=0, offset=1), Group(World(), 1), "fp32")
    meter.add([(torch.ones(()), torch.ones(()), 8)], Lengths(np.array([3]), np.array([3])), 1.0, torch.ones(()))
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(resource, "getrusage", lambda who: SimpleNamespace(ru_maxrss=123_456))
    assert meter.figures()["memory_bytes"] == 123_456 * bytes_per_unit


# --- cost ------------------------------------------------------------------------------------------------


def summary_of(said: str) -> list[str]:
    """The last lines of a run."""
    return said[said.index("finished: ") :].splitlines()


def test_the_cost_of_a_run_adds_up_over_resumptions(train, task, monkeypatch: pytest.MonkeyPatch) -> None:
    said = ""
    for updates, speed in ((5, 1e9), (9, 3e9)):
        monkeypatch.setattr(meter, "sustained_flops", lambda device, speed=speed: speed)
        monkeypatch.setattr(meter, "device_name", lambda device, speed=speed, **_: f"{speed:.0e}")
        said = train(f"training.updates={updates}")
    again = train("training.updates=9")
    corpus = Corpus(task / "data/reverse/train.arrow")
    plan = plan_epoch(corpus.source_lengths, corpus.target_lengths, 500, 1, 0)
    lengths = [corpus.lengths(plan.rows(number)) for number in range(9)]
    config = Model(layers=1, d_model=16, d_ff=16, heads=2)
    first, second = (Bundle.read(bundle.path).cost for bundle in checkpoints(task / "ckpts"))
    assert second["flops"] == pytest.approx(sum(training_flops(config, 280, *of) for of in lengths))
    assert second["tokens"] == sum(int(target.sum()) + len(target) for _, target in lengths)
    assert 0 < first["seconds"] < second["seconds"] == second["device_seconds"]
    parts = second["devices"]
    assert parts.keys() == {"1 × 1e+09", "1 × 3e+09"}
    assert sum(parts.values()) == pytest.approx(second["seconds"])
    assert second["estimated_flops"] == pytest.approx(1e9 * parts["1 × 1e+09"] + 3e9 * parts["1 × 3e+09"])
    lines = summary_of(said)
    assert 1 < len(lines) <= 10
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("finished: 9 of 9 updates in ")
    assert f"  training cost  {second['flops']:.2e} FLOPs counted exactly, {second['tokens']:,} target tokens" in lines
    estimate = next(line for line in lines if line.startswith("  by the paper   "))
    assert estimate.startswith(f"  by the paper   {second['estimated_flops']:.2e} FLOPs: ")
    assert "  devices        1 × 1e+09, 1 × 3e+09" in lines
    assert "  checkpoint     update 9: ckpts/step-00000009" in lines
    assert "  run            ckpts" in lines
    assert lines[-1] == "  next           nmt average ckpts"
    # A run that was finished before is summed up as well, but for what to do next.
    assert summary_of(again)[:-1] == lines[:-1]
    assert summary_of(again)[-1] == "  next           to continue: --set training.updates=18"


def test_the_last_validation_is_part_of_the_cost(train, task, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that all but stands still, except while a model is scored."""
    now = [0.0]

    def tick() -> float:
        now[0] += 1e-6
        return now[0]

    def validate(*arguments: object) -> DevScores:
        now[0] += 1000.0
        return DevScores({"chrf": 1.0, "bleu": 1.0, "perplexity": 2.0}, {"chrf": "made up"})

    monkeypatch.setattr(meter, "sustained_flops", lambda device: 1e9)
    monkeypatch.setattr(meter, "time", SimpleNamespace(perf_counter=tick, monotonic=time.monotonic))
    monkeypatch.setattr(Validation, "__call__", validate)
    for updates in (2, 4):
        said = train(f"training.updates={updates}", *SCORED)
    first, second = (bundle.cost for bundle in checkpoints(task / "ckpts"))
    found = first["seconds"], second["seconds"], second["estimated_flops"]
    assert found == pytest.approx((1000, 2000, 2000 * 1e9), rel=1e-6)
    assert "finished: 4 of 4 updates in 33m" in said
