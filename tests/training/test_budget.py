"""`training.minutes`: what fits is done, what does not is left out and named. By a clock of the tests' own."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from reverse_task import metrics, small

from nmt.checkpoint import writing
from nmt.checkpoint.reading import Bundle, checkpoints
from nmt.training import meter, run, validation
from nmt.training.budget import Budget, Pace
from nmt.training.distributed import Requests
from nmt.training.run import Run
from nmt.training.trainer import Trainer
from nmt.training.validation import Validation

SMALL = small("updates: 1000, log_updates: 1, valid_beam: 1")


@dataclass
class World:
    """The time, and how many seconds things take."""

    now: float = 0.0
    started: float = 0.0  # when the command began
    start: float = 3.0
    update: float = 0.5
    line: float = 0.01  # of the development set
    report: float = 0.4

    def seconds(self) -> float:
        """The time since the command began"""
        return self.now - self.started


# --- the budget ---------------------------------------------------------------------------------------------


def begun(world: World, minutes: float | None = 1.0, **given: Any) -> Budget:
    """A budget after the first update"""
    world.now = world.start
    budget = Budget(minutes, world.seconds, **given)
    budget.updated(world.update)
    return budget


def test_the_learning_rate_falls_in_proportion_to_time_and_never_rises() -> None:
    world = World()
    budget = begun(world)
    falls = [budget.fall()]
    last = world.now + budget.seconds_left()
    while falls[-1] < 1.0:
        world.now += world.update
        falls.append(budget.fall())
    assert falls[:-1] == pytest.approx(
        [number * world.update / (last - world.start) for number in range(len(falls) - 1)]
    )
    world = World()
    budget = begun(world)
    budget.validations = 2.0
    falls = []
    for scoring in (7.0, 7.0, 1.0, 1.0, 5.0, 100.0, None, 2.0):
        for _ in range(4):
            budget.scoring = scoring
            falls.append(budget.fall())
            world.now += world.update
    assert all(after >= before for before, after in pairwise(falls))
    assert falls[-1] < 1.0


def test_time_for_validations_is_kept_unless_they_take_over_a_tenth() -> None:
    world = World()
    budget = begun(world)
    budget.validations, budget.averages = 1.0, True
    left = budget.seconds_left()
    budget.scoring = 5.0
    assert budget.seconds_left() == pytest.approx(left - 10.0)
    budget.scoring = 8.0
    assert budget.seconds_left() == left
    assert begun(world, None).seconds_left() == float("inf")


def test_time_to_decide_on_a_new_model_is_kept_even_if_it_takes_long() -> None:
    world = World()
    budget = begun(world)
    left = budget.seconds_left()
    budget.decision = 2.0
    budget.scoring = 8.0
    assert budget.seconds_left() == pytest.approx(left - 16.0)
    budget.scoring = 100.0
    assert budget.seconds_left() == pytest.approx(left - 30.0)


@pytest.mark.parametrize("spent", [4.0, 58.0, 61.0, 150.0])
def test_a_run_goes_on_with_the_minutes_that_it_names(spent: float) -> None:
    world = World(start=20.0)
    assert begun(world, before=58.0, fallen=1.0).is_used_up
    before = Budget(1.0, lambda: spent)
    before.updated(1.0)
    again = begun(world, before.more(), before=spent, fallen=None)
    assert not again.is_used_up
    assert again.seconds_left() > world.start
    assert 0 < again.fall() < 1


# --- a validation -------------------------------------------------------------------------------------------


def paced(
    world: World, allowed: float, seconds: Callable[[int, int], float], expected: float | None = None, lines: int = 1000
) -> tuple[Pace, int]:
    """Validate as if the lines from one to another took so many seconds; return also how many were searched."""
    pace, done = Pace(world.seconds, allowed, expected, rest=0.0), 0
    while done < lines and (end := pace.next(done, lines)) > done:
        world.now += seconds(done, end)
        done = end
    if done == lines:
        pace.next(done, lines)
    return pace, done


def test_the_time_of_all_lines_is_known_from_a_few() -> None:
    pace, done = paced(World(), 5.0, lambda first, end: 0.06 + 0.012 * (end - first))
    assert done <= 30
    assert pace.expected == pytest.approx(12.6, rel=0.02)
    assert pace.reason == "; it takes about 13s"
    assert paced(World(), 13.0, lambda first, end: 0.06 + 0.012 * (end - first))[1] == 1000


def test_many_lines_at_once_may_take_as_long_as_few() -> None:
    """As on a GPU, once the engine is made"""
    assert paced(World(), 10.0, lambda first, end: 0.3 + 2.0 * (first == 0))[1] == 1000


def test_a_validation_that_becomes_slow_is_given_up() -> None:
    pace, done = paced(World(), 10.0, lambda first, end: 0.005 * (end - first) * (1 + 9 * (first >= 500)), expected=5.0)
    assert done == 750
    assert pace.seconds > 10.0


def test_none_is_begun_that_is_known_to_take_far_too_long() -> None:
    assert paced(World(), 2.0, lambda first, end: 1.0, expected=7.0)[1] == 0
    assert paced(World(), 0.0, lambda first, end: 1.0)[1] == 0


def test_ranks_stop_together_and_outputs_are_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first rank decides, whatever the clocks of the others say."""
    meeting = threading.Barrier(2, timeout=60)
    values: list[Any] = [None, None]

    def gathered(rank: int, value: Any) -> list[Any]:
        values[rank] = value
        meeting.wait()
        found = list(values)
        meeting.wait()
        return found

    def group(rank: int) -> Any:
        largest = lambda *own: [max(each) for each in zip(*gathered(rank, own), strict=True)]  # noqa: E731
        sent = lambda own: json.loads(json.dumps(gathered(rank, own)))  # noqa: E731 - as forks send it
        return SimpleNamespace(rank=rank, size=2, largest=largest, gather=sent)

    def output(row: int) -> Any:
        return validation.Output(str(row), [0.5])

    monkeypatch.setattr(Validation, "_pipeline", lambda *_: None)
    monkeypatch.setattr(Validation, "_found", lambda self, pipeline, rows: list(map(output, rows)))
    for allowed, is_complete in ((100.0, True), (0.0, False)):
        found: list[Any] = [None, None]

        def search(rank: int, own: float, into: list[Any] = found) -> None:
            scorer = Validation.__new__(Validation)
            scorer.sources, scorer._decoding, scorer._group = [""] * 101, Any, group(rank)
            into[rank] = scorer._search_within(None, Pace(lambda: 0.0, own, None, 0.0))  # type: ignore[arg-type]

        other = threading.Thread(target=search, args=(1, 100.0 - allowed))
        other.start()
        search(0, allowed)
        other.join()
        assert found == [list(map(output, range(101))) if is_complete else None] * 2


# --- a run --------------------------------------------------------------------------------------------------


@pytest.fixture
def command(train: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[str, float]]:
    """Trains in a world; returns what was said and the seconds that the command took."""

    def command(world: World, *settings: str, code: int = 0) -> tuple[str, float]:
        def slowed(original: Callable[..., Any], seconds: Callable[..., float]) -> Callable[..., Any]:
            def method(*given: Any) -> Any:
                world.now += seconds(*given)
                return original(*given)

            return method

        def searched(self: Validation, pipeline: object, rows: Sequence[int], texts: object = None) -> float:
            return 0.05 + world.line * len(rows)

        def reported(*_: object) -> None:
            world.now += world.report

        with monkeypatch.context() as patch:
            for module in (run, meter):
                patch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: world.now, monotonic=time.monotonic))
            patch.setattr(writing, "time", SimpleNamespace(perf_counter=lambda: 0.0))  # in a thread of its own
            patch.setattr(run, "stopwatch", lambda: world.seconds)
            patch.setattr(Trainer, "update", slowed(Trainer.update, lambda *_: world.update))
            patch.setattr(Validation, "_found", slowed(Validation._found, searched))
            patch.setattr(validation, "perplexity", slowed(validation.perplexity, lambda *_: 0.2))
            patch.setattr("nmt.commands.train.refresh_report", reported)
            world.started = world.now
            world.now += world.start
            return train(*settings, code=code), world.seconds()

    return command


def rates(folder: Path) -> list[float]:
    return [row["learning_rate"] for row in metrics(folder) if "loss" in row]


FALLS = "training.schedule=linear", "training.warmup=2"
EVERY_10 = "training.checkpoint_updates=10"


def test_a_run_uses_all_its_minutes_for_updates_scores_and_an_average(command: Any, task: Path) -> None:
    world = World()
    settings = "training.minutes=0.3", EVERY_10
    said, seconds = command(world, *settings)
    assert 0.9 <= seconds / 18 <= 1.02
    assert "finished: training.minutes 0.3 reached; " in said
    assert said.splitlines()[-1] == "next: nmt translate --model ckpts < input.a"
    found, averaged = checkpoints(task / "ckpts"), Bundle.read(task / "ckpts/averaged")
    assert all(bundle.dev_score is not None for bundle in found)
    assert found[-1].info.interval is not None
    assert averaged.step == found[-1].step
    # if the average is worse, the best checkpoint is taken
    assert averaged.dev_score is not None
    assert averaged.dev_score >= max(bundle.scores["chrf"] for bundle in found)
    before = (task / "ckpts/averaged/bundle.json").stat().st_mtime_ns
    again, seconds = command(world, *settings)
    assert "to continue: --set training.minutes=0.6" in again
    assert seconds == pytest.approx(world.start + world.report)
    assert (task / "ckpts/averaged/bundle.json").stat().st_mtime_ns == before
    command(world, "training.minutes=100", EVERY_10, f"training.updates={found[-1].step + 2}")
    assert checkpoints(task / "ckpts")[-1].step == found[-1].step + 2  # whichever is first


def test_the_minutes_of_corrections_include_the_decision_on_them(command: Any, task: Path) -> None:
    command(World(), "training.minutes=0.1", *FALLS)
    (task / "ckpts").rename("start")
    learned = "training.init_from=start", "training.replace_init=true", "training.learning_rate_scale=1e-6"
    said, seconds = command(
        World(line=0.04), "training.minutes=0.3", "training.checkpoint_updates=1000", *learned, *FALLS
    )
    assert 0.7 <= seconds / 18 <= 1.02
    assert "accepted: " in said
    assert "start is the new model, start-1 the one before" in said
    model = Bundle.read(task / "start/averaged")
    assert model.dev_score is not None


def test_updates_and_the_last_checkpoint_come_before_scores(command: Any, task: Path) -> None:
    """A validation takes 25 seconds of 18."""
    said, seconds = command(World(line=0.5), "training.minutes=0.3", EVERY_10)
    assert 0.9 <= seconds / 18 <= 1.02
    newest = checkpoints(task / "ckpts")[-1]
    assert newest.step * 0.5 >= 0.5 * 18
    assert newest.scores == {}
    assert (
        f"update {newest.step}  saved ckpts/step-{newest.step:08d}  not scored: training.minutes leaves no time" in said
    )
    assert "not averaged: training.minutes leaves no time for it; later: nmt average ckpts" in said
    assert not (task / "ckpts/averaged").exists()


def test_a_first_validation_that_is_slow_does_not_end_a_run(
    command: Any, task: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does a faster one let the learning rate rise."""
    world, update = World(line=0.2), Trainer.update

    def learns(self: Trainer, *given: Any) -> Requests:
        if self.state.step == 15:
            world.line = 0.01
        return update(self, *given)

    monkeypatch.setattr(Trainer, "update", learns)
    said, seconds = command(world, "training.minutes=0.3", "training.checkpoint_updates=4", *FALLS)
    assert 0.9 <= seconds / 18 <= 1.02
    first, *_, last = checkpoints(task / "ckpts")
    assert first.scores == {}
    assert "saved ckpts/step-00000004  not scored: updates come first; it takes about 1" in said
    assert last.scores
    falling = rates(task / "ckpts")[2:]
    assert falling == sorted(falling, reverse=True)
    assert falling[-1] == 0.0


def test_the_time_of_a_run_counts_over_all_commands_and_more_of_it_lets_it_go_on(
    command: Any, task: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, requests = World(), Run._requests

    def stopped(self: Run, *given: Any) -> Requests:
        return requests(self, *given)._replace(stop=signal.SIGTERM if self.state.step == 8 else 0)

    settings = "training.minutes=0.3", "training.checkpoint_minutes=null", *FALLS
    with monkeypatch.context() as patch:
        patch.setattr(Run, "_requests", stopped)
        _, first = command(world, *settings, code=143)
    said, second = command(world, *settings)
    assert "resuming at update 9" in said
    assert 0.9 <= (first + second) / 18 <= 1.02
    ended = checkpoints(task / "ckpts")[-1].step
    falling = rates(task / "ckpts")[2:]
    assert falling == sorted(falling, reverse=True)
    said, third = command(world, "training.minutes=0.6", *settings[1:])
    assert "changed: training.minutes from 0.3 to 0.6, at whose end the learning rate is zero now" in said
    assert 0.9 <= (first + second + third) / 36 <= 1.02
    assert checkpoints(task / "ckpts")[-1].step > ended + 10
    falling = rates(task / "ckpts")[2:]
    assert [number for number, (before, after) in enumerate(pairwise(falling), 3) if after > before] == [ended]
    assert falling[-1] == 0.0
