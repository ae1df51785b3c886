"""A training run in its directory: updates, checkpoints, scores and report."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import uuid4

from nmt.checkpoint.reading import MANIFEST, POOR, Bundle, checkpoint_folders, checkpoint_path, prune
from nmt.checkpoint.writing import Checkpoints, add_info
from nmt.compute.choice import ROUNDED
from nmt.data.corpus import TARGET_WORDS, Corpus
from nmt.data.data_report import figures_of, read_report
from nmt.data.epochs import AHEAD, EpochPlans, Update, mixture_of, remove_plans, updates_from
from nmt.data.folders import directory, fingerprints_of
from nmt.data.prepare import trained_lengths
from nmt.parsing.linearization import load_tokenizer
from nmt.recipe import Recipe, Task
from nmt.system.clock import stopwatch
from nmt.system.console import Console, JsonLines, figure
from nmt.system.errors import Interrupted, counted
from nmt.system.files import replace_json, whole_file
from nmt.training.batches import prefetched
from nmt.training.budget import Budget, Pace
from nmt.training.dev_outputs import DevExample, Samples
from nmt.training.directory import ABOUT, about_run
from nmt.training.distributed import MILLION, Group, Requests, stop_requests
from nmt.training.farewell import farewell
from nmt.training.forecast import SHORTEST, Forecast, forecast, known_curves, run_so_far, tells
from nmt.training.learner import Learner
from nmt.training.log import LOG, forget_after
from nmt.training.optimizer import count_moments
from nmt.training.progress import Progress, show_progress
from nmt.training.report_process import Page
from nmt.training.run_state import BestScore, RunState
from nmt.training.selection import cost_of_robustness, cost_of_splits
from nmt.training.succession import DECISION
from nmt.training.trainer import Trainer
from nmt.training.validation import DevScores, Validation

SECONDS_PER_NUMBER = 4e-8  # to write a checkpoint, until one has been measured: 100 MB/s
EARLY = 0.05  # share of training.minutes after which a validation is measured early
LAST_MEASURED = 0.97  # share of training.minutes after which validations are measured no more


class Run:
    """A run in its directory: updates, checkpoints, scores and report."""

    def __init__(
        self,
        recipe: Recipe,
        out: Path,
        learner: Learner,
        group: Group,
        console: Console,
        resumed: Bundle | None,
        best: BestScore,
        base: Recipe | None,
    ) -> None:
        """Begin the run of `learner`, or resume it from a checkpoint; `base` is the recipe that `recipe` extends."""
        self.recipe = recipe
        self.out = out
        self.learner = learner
        self.best = best
        self.state = learner.state
        self.group = group
        self.console = console
        prepared = learner.corpus.path.parent
        report = read_report(prepared)
        tokenizer = load_tokenizer(prepared)
        dev = Corpus(prepared / "valid.arrow")
        lengths = trained_lengths(prepared)
        self.data = data = fingerprints_of(prepared)
        self.validation = Validation(dev, tokenizer, recipe, group, lengths) if len(dev) else None
        self.metrics = JsonLines(out / LOG if group.leads else Path(os.devnull), console.say)
        self.samples: Samples | None = None
        scorer = self.validation
        if group.leads and scorer is not None and scorer.sources:
            self.samples = Samples(out, scorer.sources, scorer.references, scorer.each, console.say)
        mixture = mixture_of(report["train"]["kept by set"], recipe.data)
        self.epochs = EpochPlans(out, data["train_data"], learner.corpus, mixture, recipe.training, group.leads)
        self.page = Page(out, console, wanted=group.leads and recipe.training.report)
        self.checkpoints = Checkpoints(out, recipe, tokenizer)

        self.info: dict[str, Any] = dict(data)  # of every checkpoint's bundle.json
        self.mark = dict[str, bool]()  # added to the next line of metrics.jsonl with scores
        self.lacks_scores = False  # whether the checkpoint to resume from has none
        self.unscored: Path | None = None  # the checkpoint to score before any update
        if resumed is None:
            self.info["run"] = uuid4().hex[:12]
        else:
            self.info["run"] = resumed.info.run
            if not resumed.is_scored_on(data["dev_set"]):
                self.mark = {"new_dev_set": True}
            if recipe.data.valid:
                # The run may have been killed before it scored the checkpoint, or have another development set now.
                self.lacks_scores = not resumed.scores
                if resumed.info.unscored or self.mark:
                    self.unscored = resumed.path
        if lengths:
            self.info["lengths"] = lengths.model_dump()
        before = (resumed.recipe if resumed else recipe).training
        is_as_long = (before.updates, before.minutes) == (recipe.training.updates, recipe.training.minutes)
        self.words = report["train"].get(TARGET_WORDS) if is_as_long and tells(recipe) else None  # to forecast by
        self.sample: DevExample | None = None  # of the newest checkpoint's outputs
        parameters = sum(parameter.numel() for parameter in learner.model.parameters())
        self.budget = self._budget(resumed, parameters)
        self.is_out_of_time = False
        self.used = 0  # millionths of training.minutes, as `Requests.spent`
        self.measured = 0  # those that were used when the last validation began
        place = os.path.relpath(directory(recipe).resolve(), out.resolve())
        self.about = about_run(parameters, base, figures_of(report) if group.leads else {}, place)

    def _budget(self, resumed: Bundle | None, parameters: int) -> Budget:
        """Return the budget of the run, of which a resumed one has used a part."""
        state = self.state
        training = self.recipe.training
        is_same = resumed is None or resumed.recipe.training.minutes == training.minutes
        fallen = state.fallen if is_same else None
        budget = Budget(training.minutes, stopwatch(), max(state.spent, state.seconds), fallen)
        budget.scoring = state.scoring or None
        budget.saving = SECONDS_PER_NUMBER * (parameters + count_moments(self.learner.model, training))
        scorer = self.validation
        if training.minutes is not None and scorer is not None:
            budget.lines = len(scorer.sources)
            budget.batches = scorer.tokens / training.batch_tokens
            budget.validations = 1.0
            budget.averages = resumed is not None and self.recipe.training.average_last > 1
            if training.replace_init:  # which one process decides
                budget.decision = DECISION * (1 if self.group.device.type == "cpu" else self.group.size)
        return budget

    def train(self) -> Budget:
        """Train to completion from the current state; report the outcome and the cost.

        Return the budget, of which a part is left for averaging.
        """
        before = self.state.step
        leads = self.group.leads
        # A new run performs at least one update.
        (is_out_of_time,) = self.group.largest(int(leads and before > 0 and self.budget.is_used_up))
        self.is_out_of_time = bool(is_out_of_time)
        if self.is_out_of_time and self.state.fallen < 1.0 and self.lacks_scores:  # stopped between two checkpoints
            self.unscored = checkpoint_path(self.out, before)
        if self.unscored is not None or not self._is_done():
            if leads:
                self._prepare_files()
            self._announce()
            try:
                with self.page.refreshed(at_the_end=self.recipe.training.minutes is None):
                    self._train()
                    if leads:
                        replace_json(self.out / ABOUT, self.about | {"finished": self.state.step})
                        self._record_cost(before)
            except Interrupted:
                self._record_cost(before)  # the report took time as well
                raise
        if leads:
            remove_plans(self.out)
            more = self.budget.more() if self.is_out_of_time else None
            for line in farewell(self.recipe, self.out, self.state, self.best, self.sample, more, before):
                self.console.say(line, best=line.startswith("  checkpoint"))
        return self.budget

    def _record_cost(self, before: int) -> None:
        """Add what has been spent since the newest checkpoint was written to it, unless no update was done."""
        path = checkpoint_path(self.out, self.state.step)
        if self.group.leads and self.state.step > before and (path / MANIFEST).exists():
            self.state.keep(self.budget)
            add_info(path, {"cost": self.state.cost})

    def _prepare_files(self) -> None:
        """Write the run's recipe and run.json; remove checkpoints to prune, and records of updates to repeat."""
        step = self.state.step
        is_scored = self.unscored is None
        prune(self.out, self.recipe.training.keep_last)  # a killed run may not have pruned
        forget_after(self.out / LOG, step, is_scored)
        if self.samples is not None:  # a checkpoint's samples are written before its scores
            self.samples.begin(step if is_scored else step - 1)
        with whole_file(self.out / "recipe.yaml") as file:
            file.write(self.recipe.to_yaml().encode())
        replace_json(self.out / ABOUT, self.about)

    def _record(self) -> dict[str, Any]:
        """Return a checkpoint's line in metrics.jsonl, except scores."""
        return {"step": self.state.step, "seconds": self.state.seconds, "tokens": self.state.tokens}

    def _train(self) -> None:
        """Score the resumed checkpoint if necessary, run the remaining updates, and wait for pending saves."""
        training = self.recipe.training
        leads = self.group.leads
        with show_progress(self.console, self.metrics, leads, self.state.step, training) as progress:
            try:
                if self.unscored is not None:
                    pace = self.budget.last_pace() if self._is_done() else self.budget.pace(True)
                    self._score(self.unscored, progress, pace)
                if not self._is_done():
                    self._make_updates(progress)
            finally:
                self.checkpoints.wait()

    def _make_updates(self, progress: Progress) -> None:
        """Run updates to the end; on a signal, save everything and raise Interrupted."""
        state = self.state
        trainer = Trainer(self.learner, self.group, self.console, progress, self.budget.seconds_left)
        saved = replace(state)
        with (
            stop_requests(escalate=self.group.escalates) as signals,
            closing(prefetched(self._updates(signals), AHEAD)) as ahead,
        ):
            for update in trainer.meter.waiting(ahead):
                began = time.perf_counter()
                agreed = trainer.update(update, self._requests(signals, saved))
                self.budget.updated(time.perf_counter() - began)
                self.used = agreed.spent
                self.is_out_of_time |= agreed.finish
                ends = self._is_over()
                is_last = ends or agreed.stop > 0
                if is_last or agreed.checkpoint:
                    trainer.divergence.check()
                    # Do not let a run that may be diverging push out good checkpoints.
                    if is_last or not trainer.divergence.in_a_row:
                        self.save(trainer, due=ends or agreed.checkpoint, stops=agreed.stop > 0 and not ends)
                        trainer.meter.tick()
                        saved = replace(state)
                elif is_time_to_measure(self.used, self.measured, self.budget.decision > 0):
                    self._measure(progress)
                self.checkpoints.check()
                self.budget.saving = self.checkpoints.seconds or self.budget.saving
                self.page.check()
                if self._is_done():
                    return
                if agreed.stop:
                    said = f"stopped at update {state.step}, saved in {self.out}"
                    raise Interrupted(f"{said}; to resume, run the same command again", agreed.stop)

    def _updates(self, signals: list[int]) -> Iterator[Update]:
        """Return the updates that remain; a rank that waits for rank 0 to plan them gives up on a signal."""
        state = self.state

        def check() -> None:
            self.group.check()
            if signals:
                said = f"stopped after update {state.step} while waiting for rank 0"
                again = "to resume from the newest checkpoint, run the same command again"
                raise Interrupted(f"{said}; {again}", max(signals))

        plan = replace(self.epochs, check=check).plan
        updates = updates_from(state.epoch, state.offset, plan, self.learner.corpus)
        augmenter = self.learner.augmenter
        if augmenter is not None:
            updates = map(augmenter.augmented, updates)
        return islice(updates, self.recipe.training.updates - state.step)

    def _requests(self, signals: list[int], saved: RunState) -> Requests:
        """Return this rank's requests for the next update; `saved` is the state of the last checkpoint."""
        if self.group.is_orphaned():
            signals.append(signal.SIGTERM)
        is_due = False
        spent = 0
        if self.group.leads:
            is_due = self.state.is_checkpoint_due(self.recipe.training, saved, self.budget)
            spent = int(MILLION * self.budget.fall())
        return Requests(max(signals, default=0), is_due, spent)

    def _is_over(self) -> bool:
        """Return whether all updates are done or training.minutes are used up."""
        return self.is_out_of_time or self.state.step >= self.recipe.training.updates

    def _is_done(self) -> bool:
        """Return whether the run is over or training.patience is exhausted."""
        patience = self.recipe.training.patience
        return self._is_over() or (patience is not None and self.best.without_improvement >= patience)

    def save(self, trainer: Trainer, *, due: bool, stops: bool) -> None:
        """Write a checkpoint in the background; score it if it was `due`, on resuming if the run `stops` now."""
        trainer.equalise()
        state = self.state
        progress = trainer.progress
        unscored = due and self.validation is not None
        validate = unscored and not stops
        step = state.step
        path = checkpoint_path(self.out, step)
        if self.group.leads:
            state.keep(self.budget)
            info = self.info | {"step": step, "cost": state.cost, "unscored": unscored}
            weights = dict(trainer.model.named_parameters())
            training_state = trainer.optimizer.state(), asdict(state)
            record = self._record()

            def written() -> None:
                if not validate:  # otherwise `_score` reports it
                    progress.record(record)
                    progress.checkpoint(step, path)

            self.checkpoints.write(path, weights, training_state, info, written)
        if validate:
            is_frequent = self.recipe.training.checkpoint_updates is not None
            pace = self.budget.last_pace() if self._is_over() else self.budget.pace(is_frequent)
            self._score(path, progress, pace)
        self.budget.averages = self.recipe.training.average_last > 1  # with the checkpoint that is to come

    def _score(self, path: Path, progress: Progress, pace: Pace | None) -> None:
        """Score the model on the development set, and add the scores to its checkpoint at `path`.

        Leave it out if `pace`, where there is one, leaves no time.
        """
        assert self.validation is not None
        task = self.recipe.task
        scorer = self.validation
        with progress.validating():
            dev = scorer(self.learner.model) if pace is None else self._within(scorer, pace)
        is_best = dev is not None and self.best.add(dev.scores, task)
        if not self.group.leads:
            return
        step = self.state.step
        record = self._record()
        info: dict[str, Any] = {"unscored": False}
        sample: DevExample | None = None
        if dev is None:
            assert pace is not None
            said = f"not scored: {pace.reason}"
        else:
            if self.samples and dev.hypotheses:
                sample = self.samples.add(step, dev.hypotheses)
            record |= self.mark | {f"valid_{name}": score for name, score in dev.scores.items()}
            self.mark = {}  # the first score alone has it
            # The last checkpoint has an interval, as averages have: it may become one.
            if dev.hypotheses and (self._is_over() or path == self.unscored):
                scores = scorer.info(dev)
            else:
                scores = {"scores": dev.scores, "signatures": dev.signatures}
            info |= self.data | scores | {"without_improvement": self.best.without_improvement}
        # Record before the checkpoint has its scores, so that a run killed in between does both again.
        progress.record(record)
        if dev is not None:
            said = _said(dev, task, self._forecast(), is_best)
        if pace is not None:
            self.budget.scored(pace, dev is not None)
            if dev is not None and dev.scores["perplexity"] <= POOR and self.budget.validations == 1.0:
                # Once the model is good enough to tell, and it is known how long scoring takes
                self.budget.validations += cost_of_splits(scorer, self.recipe)
                if self.recipe.training.report:
                    self.budget.validations += cost_of_robustness(scorer, self.recipe, self.budget)
        self.state.keep(self.budget)
        info["cost"] = self.state.cost

        def added() -> None:
            if sample:
                self.sample = sample
                self.console.pin(sample.rows())
            progress.checkpoint(step, path, said)
            self.page.refresh()

        self.checkpoints.add(path, info, added)

    def _forecast(self) -> Forecast | None:
        """Return the dev chrF that the run will end with, if its scores so far tell it."""
        step = self.state.step
        share = max(self.budget.fallen, step / self.recipe.training.updates)
        if not self.words or step < SHORTEST * share:
            return None
        so_far = run_so_far(self.out / LOG, step, share, self.recipe.training)
        return forecast(so_far, self.words, known_curves())

    def _measure(self, progress: Progress) -> None:
        """Find out how long a validation takes."""
        pace = self.budget.probe()
        if self.validation is not None and pace is not None:
            with progress.validating():
                self.budget.scored(pace, self._within(self.validation, pace) is not None)

    def _within(self, validation: Validation, pace: Pace) -> DevScores | None:
        """Score the model within a pace."""
        found = validation.within(self.learner.model, pace)
        if pace.has_begun:
            self.measured = self.used
        return found

    def _announce(self) -> None:
        """Say what is trained, on what and for how long, and what to know of the dev scores."""
        learner = self.learner
        training = self.recipe.training
        say = self.console.say
        begin = f"resuming at update {self.state.step:,}" if self.state.step else "starting"
        devices = self.group.place + (f" in {learner.precision}" if learner.precision in ROUNDED else "")
        size = self.about["parameters"] / 1e6
        pairs = counted(len(learner.corpus), "pair")
        say(f"{begin}: {size:.2f} M parameters, {pairs}, on {devices}, into {self.out}")
        limit = ""
        if training.minutes is not None:
            limit = f"{training.minutes:g} {'minute' if training.minutes == 1 else 'minutes'}, at most "
        say(f"  {limit}{counted(training.updates, 'update')} of {training.batch_tokens:,} tokens")
        if self.validation is not None:
            for note in self.validation.notes:
                say(f"  {note}")


def record_spent(out: Path, budget: Budget) -> None:
    """Add what a run has spent to its newest checkpoint, for when it goes on."""
    if budget.has_trained:
        newest = Bundle.read(checkpoint_folders(out)[-1])
        add_info(newest.path, {"cost": newest.cost | {"spent": budget.spent}})


def is_time_to_measure(used: int, measured: int, is_early: bool) -> bool:
    """Return whether to find out how long a validation takes, given millionths of training.minutes that are used up.

    It is when half of what was left at the last validation is used up, except near the end; the first time also early,
    if the model has been trained before and so the first validation tells the time of others.
    """
    if is_early and not measured:
        return used >= EARLY * MILLION
    return 2 * (MILLION - used) <= MILLION - measured and used <= LAST_MEASURED * MILLION


def _said(dev: DevScores, task: Task, expected: Forecast | None, is_best: bool) -> str:
    """Describe the scores of a checkpoint, and what is expected at the end."""
    scores = dev.scores
    of_direction = f"{task.metric} "
    figures = [f"dev {label} {figure(scores[name])}" for name, label in task.labels.items()]
    figures += [f"{name.removeprefix(of_direction)} {scores[name]:.2f}" for name in scores if of_direction in name]
    if expected:
        figures.append(f"{task.label} {expected}")
    if is_best:
        figures.append("best")
    return "  ".join(figures)
