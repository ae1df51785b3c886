"""Updates: accidents that a run survives, what it records, and that nothing but the recipe decides its weights."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from reverse_task import BARE, assert_equal_to_the_bit, metrics, parameters, position, small
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from nmt.checkpoint.reading import checkpoints
from nmt.compute.gpu import GPU
from nmt.data.corpus import Corpus
from nmt.data.epochs import plan_epoch
from nmt.system.console import Console
from nmt.system.errors import UserError
from nmt.training.loss import MANY, Divergence
from nmt.training.optimizer import Optimizer
from nmt.training.run_state import RunState
from nmt.training.trainer import Trainer
from nmt.training.validation import DevScores, Validation

SMALL = small("updates: 12, log_updates: 4", *BARE)

SCORED = "data.name=reverse", "data.valid=[{source: valid.a, target: valid.b}]"


def not_finite(value: float, *numbers: int):
    """Losses and gradients of some calls times a value."""

    def losses(number, batch, forward, objective):
        loss, nll = forward(objective, batch)
        return (loss * value, nll * value) if number in numbers else (loss, nll)

    return losses


# --- gradients that are not finite --------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_update_that_is_not_finite_changes_nothing_and_is_counted(train, inject, task, value) -> None:
    train("training.updates=4")
    before = parameters(task / "ckpts")
    inject(not_finite(value, 1))
    said = train("training.updates=5")
    assert "update 5: skipped, its gradient is not finite" in said
    after = parameters(task / "ckpts")
    assert all(torch.equal(before[name], after[name]) for name in before)
    at = position(task / "ckpts")
    assert (at["step"], at["offset"], at["skipped"]) == (5, 5, 1)


def test_a_run_goes_on_after_a_skipped_update_and_resumes_to_the_bit(
    train, inject, task, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context():
        inject(not_finite(math.nan, 5))
        assert train(out="whole").count("skipped") == 1
        inject(not_finite(math.nan, 5))
        train("training.updates=7", out="parts")
        inject(not_finite(math.nan))
        assert "skipped" not in train(out="parts")
    assert_equal_to_the_bit(task / "whole", task / "parts")
    assert position(task / "parts")["skipped"] == 1
    rows = metrics(task / "whole")
    assert [row["skipped"] for row in rows if "skipped" in row] == [0, 0, 1, 1]  # updates 1, 4, 8, 12
    assert all(math.isfinite(row["gradient_norm"]) for row in rows if "gradient_norm" in row)


@pytest.mark.parametrize(
    ("skipped", "saved"), [({4}, [5, 8, 12]), ({8, 9}, [4, 10, 12]), ({4, 5, 6, 7, 8}, [9, 12]), ({12}, [4, 8, 12])]
)
def test_a_checkpoint_due_at_a_skipped_update_is_saved_after_the_next_good_one(
    train, inject, task, skipped: set[int], saved: list[int]
) -> None:
    inject(not_finite(math.nan, *skipped))
    train("training.checkpoint_updates=4")
    assert [bundle.step for bundle in checkpoints(task / "ckpts")] == saved


def test_weights_that_are_not_finite_stop_the_run() -> None:
    model = torch.nn.Linear(2, 2)
    torch.nn.init.constant_(model.weight, math.inf)
    divergence = Divergence(model, None, Console(quiet=True), RunState(step=7, epoch=0, offset=7))  # type: ignore[arg-type]
    with pytest.raises(UserError, match="at update 7 the weights have norm inf"):
        divergence.check()


def test_many_in_a_row_stop_the_run_and_name_the_lines(train, inject, task) -> None:
    train("training.updates=2")
    inject(not_finite(math.nan, *range(1, 100)))
    said = train("training.updates=100", "training.checkpoint_updates=1", code=1)
    corpus = Corpus(task / "data/reverse/train.arrow")
    rows = plan_epoch(corpus.source_lengths, corpus.target_lengths, 500, 1, 0).rows(2)
    lines = sorted(corpus.lines(rows))
    error = next(line for line in said.splitlines() if line.startswith("error:"))
    assert f"training diverged: {MANY} updates in a row" in error
    assert "update 3 " in error
    assert f"{len(lines):,} lines: {', '.join(f'{line:,}' for line in lines[:8])} …)" in error
    assert "Traceback" not in said
    assert [bundle.step for bundle in checkpoints(task / "ckpts")] == [2]  # no doubtful one pushes it out


# --- clipping and figures -----------------------------------------------------------------------------------


@pytest.fixture
def norms(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The norm of each gradient that the optimizer is given."""
    seen: list[float] = []
    original = Optimizer.update

    def update(self: Optimizer, step: int, skip: Tensor) -> None:
        gradients = [p.grad for p in self._parameters.values() if p.grad is not None]
        seen.append(float(torch.nn.utils.get_total_norm(gradients)))
        original(self, step, skip)

    monkeypatch.setattr(Optimizer, "update", update)
    return seen


def test_skipped_updates_are_counted_between_log_lines(train, inject, norms, monkeypatch) -> None:
    monkeypatch.setattr("nmt.training.trainer.CHECKED", MANY)
    inject(not_finite(math.nan, *range(1, 100)))
    assert "training diverged" in train("training.updates=100", "training.log_updates=1000", code=1)
    assert len(norms) == MANY


def test_gradients_are_clipped_to_the_norm_and_recorded_as_they_were(train, norms, task) -> None:
    train(out="plain")
    plain = norms.copy()
    norms.clear()
    limit = sorted(plain)[6]
    train(f"training.clip_norm={limit}", out="clipped")
    assert max(norms) <= limit * (1 + 1e-5)
    assert norms[0] == pytest.approx(min(plain[0], limit), rel=1e-5)
    first = [next(row["gradient_norm"] for row in metrics(task / name)) for name in ("plain", "clipped")]
    assert first == pytest.approx([plain[0], plain[0]], rel=1e-6)
    mean = [row["gradient_norm"] for row in metrics(task / "plain") if "gradient_norm" in row]
    assert mean == pytest.approx([plain[0], sum(plain[1:4]) / 3, sum(plain[4:8]) / 4, sum(plain[8:]) / 4], rel=1e-6)


def test_every_figure_is_recorded(train, task) -> None:
    train("training.updates=8")
    rows = [row for row in metrics(task / "ckpts") if "loss" in row]
    assert [row["step"] for row in rows] == [1, 4, 8]
    corpus = Corpus(task / "data/reverse/train.arrow")
    plan = plan_epoch(corpus.source_lengths, corpus.target_lengths, 500, 1, 0)
    targets = [int(corpus.targets(plan.rows(n))[1].sum()) + len(plan.rows(n)) for n in range(8)]
    for row, updates in zip(rows, (targets[:1], targets[1:4], targets[4:8]), strict=True):
        assert row.keys() == {
            *("step", "epoch", "seconds", "learning_rate", "loss", "perplexity", "gradient_norm", "skipped", "tokens"),
            *("tokens_per_second", "tokens_per_update", "seconds_per_update", "padding", "data_wait"),
            *("memory_bytes", "flops_per_second"),
        }
        assert all(value is not None and math.isfinite(value) for value in row.values())
        assert row["tokens_per_update"] == pytest.approx(sum(updates) / len(updates))
        assert 0 <= row["padding"] < 0.2
        assert 0 <= row["data_wait"] < 1
        assert row["memory_bytes"] > 50 << 20
        assert row["tokens_per_second"] * row["seconds_per_update"] == pytest.approx(row["tokens_per_update"])


@pytest.mark.parametrize(("precision", "expected"), [("bf32", "medium"), ("bf16", "highest"), ("fp32", "highest")])
def test_factors_are_rounded_in_updates_alone(
    precision: str, expected: str, train, inject, task, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, set[str]] = {where: set() for where in ("forward", "backward", "applying", "scoring")}

    def note(where: str) -> None:
        seen[where].add(torch.get_float32_matmul_precision())

    def losses(_, batch, forward, objective):
        loss, nll = forward(objective, batch)
        assert torch.is_autocast_enabled("cpu") == (precision == "bf16")
        note("forward")
        loss.register_hook(lambda gradient: note("backward"))
        return loss, nll

    def score(self: Validation, model: object, **_: object) -> DevScores:
        note("scoring")
        return original(self, model, **_)

    def apply(self: Optimizer, *arguments: object) -> None:
        note("applying")
        update(self, *arguments)

    inject(losses)
    original, update = Validation.__call__, Optimizer.update
    monkeypatch.setattr(Validation, "__call__", score)
    monkeypatch.setattr(Optimizer, "update", apply)
    train(*SCORED, f"training.precision={precision}", "training.checkpoint_updates=6")
    assert seen.pop("scoring") == {torch.get_float32_matmul_precision()}
    assert seen == {"forward": {expected}, "backward": {expected}, "applying": {expected}}
    assert torch.get_float32_matmul_precision() == "highest"


def test_padding_is_the_share_of_cells_that_hold_none(train, inject, task) -> None:
    cells = padding = 0

    def losses(number, batch, forward, objective):
        nonlocal cells, padding
        if number > 1:
            cells += batch.source.numel() + batch.target_out.numel()
            padding += int((batch.source == 0).sum()) + int((batch.target_out == 0).sum())
        return forward(objective, batch)

    inject(losses)
    train("training.updates=4")
    assert metrics(task / "ckpts")[1]["padding"] == pytest.approx(padding / cells)


def test_figures_are_null_and_not_nan_in_json(train, inject, task) -> None:
    inject(not_finite(math.nan, 1))
    train("training.updates=4")
    text = (task / "ckpts/metrics.jsonl").read_text()
    assert "NaN" not in text
    assert metrics(task / "ckpts")[0]["gradient_norm"] is None


class Waits(TorchDispatchMode):
    """Names the operations after which the host waits for a GPU: it asks for a value, or for the size of a result."""

    ASKING = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "bincount")

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.operations = 0

    def __torch_dispatch__(
        self, operation: Any, types: Any, arguments: tuple[Any, ...] = (), options: dict[str, Any] | None = None
    ) -> Any:
        self.operations += 1
        if operation.overloadpacket.__name__ in self.ASKING:
            self.found.append(str(operation))
        return operation(*arguments, **(options or {}))


@pytest.mark.parametrize("clip", ["null", "1.0"])
def test_nothing_in_an_update_would_wait_for_a_gpu(train, task, monkeypatch, clip) -> None:
    """The operations of an update are counted on a CPU that takes the way of a GPU."""
    monkeypatch.setattr("nmt.training.learner.for_training", lambda *given, **options: GPU())
    original, waits = Trainer.update, Waits()

    def update(*arguments: Any) -> Any:
        with waits:
            return original(*arguments)

    monkeypatch.setattr(Trainer, "update", update)
    monkeypatch.setattr(Trainer, "_log", lambda *given: None)  # which waits
    train("training.updates=2", f"training.clip_norm={clip}", "training.optimizer=muon")
    assert waits.operations > 100
    assert waits.found == []


def test_skipped_updates_are_counted_when_they_are_asked_for_and_not_before() -> None:
    asked: list[int] = []

    class Skipped:
        """What an update left on a GPU: to look at it waits."""

        def __init__(self, step: int) -> None:
            self.step = step

        def __bool__(self) -> bool:
            asked.append(self.step)
            return self.step in (3, 20)

    state = RunState(step=0, epoch=0, offset=0)
    divergence = Divergence(torch.nn.Module(), None, Console(quiet=True), state)
    for step in range(1, 21):
        state.step = step
        divergence.note(np.arange(2), Skipped(step))
    assert (asked, state.skipped) == ([], 0)
    divergence.check()
    assert (asked, state.skipped) == (list(range(1, 21)), 2)
    assert [step for step, _ in divergence.in_a_row] == [20]
    divergence.check()
    assert (len(asked), state.skipped) == (20, 2)
